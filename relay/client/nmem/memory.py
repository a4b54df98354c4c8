"""Nmem: the history of coding agents, on this machine and at the relay.

    async with Nmem("ws://127.0.0.1:7777", key, Path("~/.local/share/rookery/nmem.db")) as nmem:
        await nmem.sync()
        for found in await nmem.search("dedupe"):
            print(found.id, found.content)

Works offline: records wait in the cache until `sync`.
"""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from relay.client.errors import ClientError, Unanswered
from relay.client.information import owners_in
from relay.client.nmem import rebuild, removal, sync
from relay.client.nmem.import_db import ImportSettings, import_file
from relay.client.nmem.reader import key_of
from relay.client.nmem.recorder import NmemRecorder
from relay.client.nmem.removal import Purge, Purged, Removed
from relay.errors import UserError

if TYPE_CHECKING:
    from collections.abc import Collection

    from relay.client.nmem.apply import Progress
    from relay.client.nmem.cipher import CacheKey
    from relay.client.nmem.import_db import Imported
    from relay.client.nmem.sync import Synced
    from relay.client.recall import Recall

_RELAY_S: Final = 10.0
"""How long to wait for the relay."""
_RECALL_S: Final = 3.0
"""As `_RELAY_S`, for calls that a model waits for."""
_NOTED: Final = 8_000
"""Characters of a recalled text by which an echo of it is known: others may store 400,000."""


class Nmem(NmemRecorder):
    """Used as `async with`. Every method may raise CacheUnusable and OSError."""

    async def sync(self, progress: Progress | None = None, *, retries: bool = False) -> Synced:
        """Send waiting records, fetch those of others, and drop what is no longer there.

        `retries`: send also what the relay refused because of its author or a policy. Raises
        UserError if the relay is unreachable; QueryClosed.
        """
        await self._wait_for_relay()
        sent = await sync.send(self._client, self._signer, self.database, progress, retries=retries)
        fetched = await sync.fetch(
            self._client, self._signer, self.database, self._sources, progress
        )
        deleted = sent.deleted + fetched.deleted
        return replace(sent, fetched=fetched.fetched, deleted=deleted, removed=fetched.removed)

    async def send(self, wait_s: float | None = None) -> Synced:
        """Send waiting records without fetching. Raises UserError if the relay is unreachable for
        `wait_s`."""
        await self._wait_for_relay(wait_s)
        return await sync.send(self._client, self._signer, self.database)

    async def rebuild(self, progress: Progress | None = None) -> int:
        """Rebuild the cache from the relay; returns the number of its records. Raises UserError if
        the relay is unreachable."""
        await self._wait_for_relay()
        await sync.send(self._client, self._signer, self.database)
        before = await asyncio.to_thread(rebuild.held_in, self.database)
        document = await self._client.information_or_empty()
        events = await sync.fetch_all(self._client, self._signer, document, self._sources, progress)
        return await asyncio.to_thread(
            rebuild.rebuild,
            self.database,
            self._key,
            events,
            self.pubkey,
            owners_in(document),
            before=before,
        )

    async def import_file(
        self,
        path: Path | str,
        key: CacheKey | str | None = None,
        progress: Progress | None = None,
    ) -> Imported:
        """Import a database of nmem itself (M-12). Raises CacheUnusable."""
        import_settings = ImportSettings(self._signer, self._secrets, self._group)
        return await asyncio.to_thread(
            import_file,
            self.database,
            Path(path),
            key_of(key),
            import_settings,
            self._client.now(),
            progress,
        )

    async def recall(
        self, question: str, *, systems: Collection[str] = (), limit: int = 20
    ) -> Recall:
        """`Client.recall`: of all memory systems, at the relay. Raises UserError while it is
        away."""
        await self._wait_for_relay(_RECALL_S, "ask again when the relay runs")
        found = await self._client.recall(question, systems=systems, limit=limit)
        self.note_recalled(hit.text[:_NOTED] for hit in found.hits)
        return found

    async def sweep(self, now: int | None = None) -> Removed:
        """Remove expired rows from the cache (M-25)."""
        at = self._client.now() if now is None else now
        return await asyncio.to_thread(removal.sweep, self.database, at)

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
    ) -> Purged:
        """Delete one's own records that match all conditions, here and soon at the relay; without
        `confirm` only count them. `older_than`: seconds. Raises UserError without any condition."""
        now = self._client.now()
        bounds = [
            time
            for time in (before, None if older_than is None else now - older_than)
            if time is not None
        ]
        wanted = Purge(min(bounds, default=None), project, session, id, obs_type, search)
        if not wanted.is_bounded:
            raise UserError("a purge needs at least one condition", code=2)

        def run(db: Any) -> Purged:
            return removal.purge(db, wanted, now, self._group, is_confirmed=confirm)

        return await (self._write(run) if confirm else self._read(run))

    async def rebuild_index(self) -> None:
        """Rebuild the full-text index."""
        await self._write(rebuild.rebuild_index)

    async def _wait_for_relay(self, wait_s: float | None = None, meanwhile: str = "") -> None:
        """Wait for the relay. `meanwhile`: the consequence, for the error text. Raises
        UserError, ClientError."""
        try:
            await self._client.wait_connected(deadline_s=_RELAY_S if wait_s is None else wait_s)
        except Unanswered:
            follows = meanwhile or f"records are queued in {self._path}"
            raise UserError(f"{self._client.url} does not answer; {follows}") from None
        if self._client.login_refusal:
            # No UserError: the relay's text is fenced for a model.
            raise ClientError(
                f"{self._client.url} refused the login of {self._signer.npub}:"
                f" {self._client.login_refusal}"
            )
