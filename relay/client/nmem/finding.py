"""Finding: what is in the cache, found again: the part of Nmem that changes nothing.

What each question asks of the tables stands in relay.client.nmem.reading.
"""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from relay.client.base import BaseClient
from relay.client.errors import ClientError
from relay.client.nmem import reading
from relay.client.nmem.cipher import CacheKey
from relay.client.nmem.database import Database
from relay.client.nmem.reading import Order, Scope
from relay.client.nmem.taking import bind
from relay.errors import Invalid

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from contextlib import AsyncExitStack
    from enum import StrEnum

    from relay.client.client import Client
    from relay.client.nmem.reading import Counts, Found, FoundPrompt
    from relay.memory.nmem.records import Session
    from relay.nostr.keys import SecretKey

    Result = TypeVar("Result")
    Option = TypeVar("Option", bound=StrEnum)


class NotFound(ClientError):
    """The cache has no such row."""


class Finding(BaseClient):
    """The cache is open inside `async with`. Every method may raise CacheUnusable and OSError."""

    def __init__(
        self,
        relay: Client | str,
        signer: SecretKey,
        db_path: Path | str,
        key: CacheKey | str | None = None,
    ) -> None:
        """`relay`: as of AtRelay. `key`: encrypts the cache."""
        super().__init__(relay, signer, start_offline=True)
        self._path = Path(db_path)
        self._key = key_of(key)

    async def _open(self, opening: AsyncExitStack) -> None:
        self.database = await asyncio.to_thread(Database, self._path, self._key)
        opening.callback(self.database.close)
        await asyncio.to_thread(bind, self.database, self.pubkey)
        await super()._open(opening)

    async def search(
        self,
        query: str,
        *,
        project: str | None = None,
        obs_type: str | None = None,
        limit: int = 20,
        offset: int = 0,
        order_by: str = Order.RELEVANCE,
        before: int | None = None,
        after: int | None = None,
    ) -> list[Found]:
        """Observations with these words (M-26). Times are Unix seconds. Raises Invalid for an
        order that is none."""
        scope, now = Scope(project, obs_type, before, after), self._client.now()
        order = one_of(Order, order_by, "order_by")
        return await self._reading(
            lambda db: reading.search(db, query, scope, order, now, limit, offset)
        )

    async def get(self, ids: Iterable[int]) -> list[Found]:
        """In the order asked for, without those that are not there."""
        return await self._reading(lambda db: reading.get(db, ids))

    async def timeline(self, anchor: int, before: int = 5, after: int = 5) -> list[Found]:
        """What came before and after an observation, with itself. Raises NotFound."""
        found = await self._reading(lambda db: reading.timeline(db, anchor, before, after))
        if found is None:
            raise NotFound("anchor observation not found")
        return found

    async def summaries(
        self,
        project: str | None = None,
        limit: int = 10,
        *,
        before: int | None = None,
        after: int | None = None,
    ) -> list[Session]:
        """Sessions that came to something, the newest first."""
        scope = Scope(project=project, before=before, after=after)
        return await self._reading(lambda db: reading.summaries(db, scope, limit))

    async def recent(
        self,
        project: str | None = None,
        limit: int = 30,
        *,
        before: int | None = None,
        after: int | None = None,
    ) -> list[Found]:
        """What is worth most to who works on the project, of each file the best (M-27)."""
        scope, now = Scope(project=project, before=before, after=after), self._client.now()
        return await self._reading(lambda db: reading.recent(db, scope, now, limit))

    async def trace(
        self, session_id: str, *, before: int | None = None, after: int | None = None
    ) -> tuple[Session, list[FoundPrompt], list[Found]]:
        """A session, what was said and what was done in it. Raises NotFound."""
        scope = Scope(before=before, after=after)
        found = await self._reading(lambda db: reading.trace(db, session_id, scope))
        if found is None:
            raise NotFound(f"session not found: {session_id}")
        return found

    async def file_history(
        self,
        file_path: str,
        limit: int = 10,
        *,
        before: int | None = None,
        after: int | None = None,
    ) -> list[Found]:
        """What was done to a file, the newest first."""
        scope = Scope(before=before, after=after)
        return await self._reading(lambda db: reading.file_history(db, file_path, scope, limit))

    async def commits_of(self, file_path: str, limit: int = 50) -> list[Found]:
        """Commits and pushes of sessions that had changed the file, the newest first."""
        return await self._reading(lambda db: reading.commits_of(db, file_path, limit))

    async def context(self, project: str, before: int | None = None) -> str:
        """What an agent on the project is told (M-28); `before`: was told then."""
        now = self._client.now()
        return await self._reading(lambda db: reading.context_of(db, project, now, before))

    async def counts(self) -> Counts:
        return await self._reading(reading.counts)

    async def last_session(self) -> Session | None:
        """The one that began last."""
        return await self._reading(reading.last_session)

    async def deletions_waiting(self) -> int:
        """Of what was purged, how much the relay was not told yet: as requests, of many each."""
        return await self._reading(reading.deletions_waiting)

    async def refused(self) -> list[tuple[str, str]]:
        """(`d`, the relay's reason) of what it does not take."""
        return await self._reading(reading.refused)

    async def authors(self) -> list[str]:
        """Whose memory it is, 64 hex each."""
        found = await self._reading(reading.authors)
        return sorted({author or self.pubkey for author in found})

    async def _reading(self, work: Callable[[Any], Result]) -> Result:
        def run() -> Result:
            with self.database.reading() as db:
                return work(db)

        return await asyncio.to_thread(run)


def key_of(key: CacheKey | str | None) -> CacheKey | None:
    return CacheKey(key) if isinstance(key, str) else key


def one_of(options: type[Option], value: str, name: str) -> Option:
    """Raises Invalid."""
    try:
        return options(value)
    except ValueError:
        raise Invalid(f"{name} must be {' or '.join(options)}") from None
