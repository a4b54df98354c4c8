"""Nmem: what coding agents did, said and wanted kept, on this machine and at the relay.

    async with Nmem("ws://127.0.0.1:7777", key, Path("~/.local/share/rookery/nmem.db")) as nmem:
        await nmem.sync()
        for found in await nmem.search("dedupe"):
            print(found.id, found.content)

MEMORY.md §5. All of it works while the relay is away: records wait in the cache until `sync`.
"""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from relay.client.errors import Unanswered
from relay.client.information import owners_in
from relay.client.nmem import forgetting, rebuilding, sync
from relay.client.nmem.capturing import Capturing
from relay.client.nmem.finding import key_of
from relay.client.nmem.forgetting import Purge, Removed
from relay.client.nmem.importing import Reader, import_file
from relay.errors import UserError

if TYPE_CHECKING:
    from relay.client.nmem.cipher import CacheKey
    from relay.client.nmem.importing import Imported
    from relay.client.nmem.sync import Synced
    from relay.client.nmem.taking import Progress

_RELAY_S: Final = 10.0
"""How long the relay is waited for."""


class Nmem(Capturing):
    """Used as `async with`. Every method may raise CacheUnusable and OSError."""

    async def sync(self, progress: Progress | None = None) -> Synced:
        """Send what waits, fetch what others wrote. Raises UserError when the relay is away."""
        await self._relay_there()
        sent = await sync.send(self._client, self._signer, self.database, progress)
        fetched = await sync.fetch(self._client, self._signer, self.database, progress)
        return replace(sent, fetched=fetched.fetched, deleted=fetched.deleted)

    async def send(self, wait_s: float | None = None) -> Synced:
        """Send what waits, and fetch nothing. Raises UserError when the relay is away, for so
        long."""
        await self._relay_there(wait_s)
        return await sync.send(self._client, self._signer, self.database)

    async def rebuild(self, progress: Progress | None = None) -> int:
        """Make the cache anew from the relay; the number of its records. Raises UserError when
        the relay is away."""
        await self._relay_there()
        await sync.send(self._client, self._signer, self.database)
        said = await self._client.information_or_empty()
        events = await sync.everything(self._client, self._signer, said, progress)
        return await asyncio.to_thread(
            rebuilding.rebuild, self.database, self._key, events, self.pubkey, owners_in(said)
        )

    async def import_file(
        self,
        path: Path | str,
        key: CacheKey | str | None = None,
        progress: Progress | None = None,
    ) -> Imported:
        """Take in a database of nmem itself (M-12). Raises CacheUnusable."""
        reader = Reader(self._signer, self._secrets, self._group)
        return await asyncio.to_thread(
            import_file,
            self.database,
            Path(path),
            key_of(key),
            reader,
            self._client.now(),
            progress,
        )

    async def sweep(self, now: int | None = None) -> Removed:
        """What is too old leaves the cache (M-25)."""
        at = self._client.now() if now is None else now
        return await asyncio.to_thread(forgetting.sweep, self.database, at)

    async def purge(
        self,
        *,
        before: int | None = None,
        project: str | None = None,
        session: str | None = None,
        id: int | None = None,
        obs_type: str | None = None,
        older_than: int | None = None,
        search: str | None = None,
        confirm: bool = False,
    ) -> Removed:
        """What oneself recorded and all of this holds for, is deleted, also at the relay (soon);
        without `confirm` it is only counted. `older_than`: seconds. Raises UserError without any
        condition."""
        now = self._client.now()
        bounds = [
            time
            for time in (before, None if older_than is None else now - older_than)
            if time is not None
        ]
        wanted = Purge(min(bounds, default=None), project, session, id, obs_type, search)
        if not wanted.is_bounded:
            raise UserError("say what to purge: a purge without a condition would take all", code=2)

        def run(db: Any) -> Removed:
            return forgetting.purge(db, wanted, now, is_confirmed=confirm)

        return await (self._writing(run) if confirm else self._reading(run))

    async def rebuild_index(self) -> None:
        """Make the full-text index anew."""
        await self._writing(rebuilding.index_anew)

    async def _relay_there(self, wait_s: float | None = None) -> None:
        try:
            await self._client.wait_connected(deadline_s=_RELAY_S if wait_s is None else wait_s)
        except Unanswered:
            raise UserError(
                f"{self._client.url} does not answer; what is recorded waits for it in {self._path}"
            ) from None
        if self._client.login_refusal:
            raise UserError(
                f"{self._client.url} refused the login of {self._signer.npub}:"
                f" {self._client.login_refusal}"
            )
