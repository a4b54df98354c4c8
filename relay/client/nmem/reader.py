"""NmemReader: the reading half of Nmem.

`relay.client.nmem.queries` has the SQL.
"""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeVar

from relay.client.base import BaseClient
from relay.client.errors import ClientError, quoted_id
from relay.client.nmem import queries
from relay.client.nmem.apply import bind, check_relay
from relay.client.nmem.cipher import CacheKey
from relay.client.nmem.database import Database
from relay.client.nmem.queries import Order, Scope
from relay.errors import Invalid

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from contextlib import AsyncExitStack
    from enum import StrEnum

    from relay.client.client import Client
    from relay.client.nmem.database import Adopt
    from relay.client.nmem.queries import Counts, Found, FoundPrompt
    from relay.memory.nmem.records import Session
    from relay.nostr.keys import SecretKey

    Result = TypeVar("Result")
    Option = TypeVar("Option", bound=StrEnum)


class NotFound(ClientError):
    """The cache has no such row."""


_MAX_CANDIDATES: Final = 10
"""Sessions named where a beginning fits several."""


class NmemReader(BaseClient):
    """The cache is open inside `async with`. Every method may raise CacheUnusable and OSError."""

    def __init__(
        self,
        relay: Client | str,
        signer: SecretKey,
        db_path: Path | str,
        key: CacheKey | str | None = None,
        home_relay: str | None = None,
    ) -> None:
        """`relay`: see BaseClient. `key`: encrypts the cache. `home_relay`: URL of the relay whose
        cache it is; it is not opened for another one. None: for any."""
        super().__init__(relay, signer, start_offline=True)
        self._path = Path(db_path)
        self._key = key_of(key)
        self._home_relay = home_relay
        self._adopt: Adopt | None = None

    async def _open(self, opening: AsyncExitStack) -> None:
        self.database = await asyncio.to_thread(Database, self._path, self._key, adopt=self._adopt)
        opening.callback(self.database.close)
        await asyncio.to_thread(bind, self.database, self.pubkey)
        await asyncio.to_thread(check_relay, self.database, self.url, self._home_relay)
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
        """Observations and prompts with these words (M-26); the type of a prompt is `prompt`, its
        id negative. Times are Unix seconds. Raises Invalid for an unknown order."""
        scope, now = Scope(project, obs_type, before, after), self._client.now()
        order = one_of(Order, order_by, "order_by")
        return await self._read(
            lambda db: queries.search(db, query, scope, order, now, limit, offset)
        )

    async def get(self, ids: Iterable[int]) -> list[Found]:
        """In the order given, without unknown ids."""
        return await self._read(lambda db: queries.get(db, ids))

    async def timeline(self, anchor: int, before: int = 5, after: int = 5) -> list[Found]:
        """Observations around an anchor, including it. Raises NotFound."""
        found = await self._read(lambda db: queries.timeline(db, anchor, before, after))
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
        """Sessions with a summary, newest first."""
        scope = Scope(project=project, before=before, after=after)
        return await self._read(lambda db: queries.summaries(db, scope, limit))

    async def recent(
        self,
        project: str | None = None,
        limit: int = 30,
        *,
        before: int | None = None,
        after: int | None = None,
    ) -> list[Found]:
        """The highest ranked observations for a project, one per file (M-27)."""
        scope, now = Scope(project=project, before=before, after=after), self._client.now()
        return await self._read(lambda db: queries.recent(db, scope, now, limit))

    async def trace(
        self, session_id: str, *, before: int | None = None, after: int | None = None
    ) -> tuple[Session, list[FoundPrompt], list[Found]]:
        """A session with its prompts and observations. Raises NotFound."""
        scope = Scope(before=before, after=after)
        found = await self._read(lambda db: queries.trace(db, session_id, scope))
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
        """Observations of a file, newest first."""
        scope = Scope(before=before, after=after)
        return await self._read(lambda db: queries.file_history(db, file_path, scope, limit))

    async def commits_of(self, file_path: str, limit: int = 50) -> list[Found]:
        """Commits and pushes of sessions that had changed the file, newest first."""
        return await self._read(lambda db: queries.commits_of(db, file_path, limit))

    async def context(self, project: str, before: int | None = None) -> str:
        """The context of an agent in the project (M-28), fenced; `before`: as of that time."""
        now = self._client.now()
        return await self._read(lambda db: queries.fenced_context_of(db, project, now, before))

    async def session_authors(self, sessions: Iterable[Session]) -> dict[str, str]:
        """By session id: `NAME (npub1abc…)` of another key that wrote what is shown of it."""
        ids = [session.id for session in sessions]
        return await self._read(lambda db: queries.session_authors(db, ids))

    async def counts(self) -> Counts:
        return await self._read(queries.counts)

    async def session_id(self, begin: str) -> str:
        """The id of the session that is meant. `begin`: an id, or the beginning of a single one.
        Raises NotFound."""
        found = await self._read(lambda db: queries.sessions_beginning(db, begin, _MAX_CANDIDATES))
        if not (begin and found):
            raise NotFound(f"session not found: {begin}")
        if len(found) > 1:
            # A model may read this: no text that another key chose.
            named = [quoted_id(id_) for id_, is_own in found if is_own]
            if len(named) < len(found):
                named.append("some of other keys")
            raise NotFound(f"several sessions begin with {begin}: {', '.join(named)}")
        return found[0][0]

    async def last_session(self) -> Session | None:
        """The session that started last."""
        return await self._read(queries.last_session)

    async def deletions_waiting(self) -> int:
        """Number of deletion requests not sent yet; each names many events."""
        return await self._read(queries.deletions_waiting)

    async def refused(self) -> list[tuple[str, str]]:
        """(`d`, reason) of records refused by the relay."""
        return await self._read(queries.refused)

    async def _read(self, work: Callable[[Any], Result]) -> Result:
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
