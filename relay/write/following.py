"""Following: takes over what other relays on the store commit, in the order of their commits.

Invariants: the state is brought up to date with the log before the lane decides and before anything
else is read; when a commit cannot be followed, all state is read again. The lane delivers the
events.
"""

from __future__ import annotations

import asyncio
import logging
from contextlib import suppress
from typing import TYPE_CHECKING, Final

from relay.errors import Outdated, StoreFault
from relay.write.replay import groups_after, rebuilt_groups

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Protocol

    from relay.lifecycle.rows import Lookups
    from relay.state import RelayState
    from relay.storage import Inspector, Others, SharedLog
    from relay.write.ingest import Ingest

    class Log(SharedLog, Inspector, Protocol):
        """A store that is shared."""


_log = logging.getLogger(__name__)

_POLL_S: Final = 0.5
"""Interval at which a failed delivery is tried again."""
_AGAIN_S: Final = 0.5


class Following:
    """A context manager: follows inside. `rights_changed` is called when NIP-86 state changed."""

    def __init__(self, store: Log, state: RelayState, ingest: Ingest, relay_pubkey: str) -> None:
        self._store = store
        self._state = state
        self._ingest = ingest
        self._relay = relay_pubkey
        self.rights_changed: Callable[[], None] = lambda: None
        self._task: asyncio.Task[None] | None = None
        state.is_current = store.is_current
        store.take_over = self._take_over

    async def __aenter__(self) -> Following:
        self._task = asyncio.create_task(self._run(), name="follow")
        return self

    async def __aexit__(self, *_: object) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    async def _run(self) -> None:
        while True:
            with suppress(TimeoutError):
                async with asyncio.timeout(_POLL_S):
                    await self._store.news()
            try:
                await self._ingest.change_state(self.follow)
            except StoreFault as fault:
                _log.error("cannot follow the other relays on the store: %s", fault)
                await asyncio.sleep(_AGAIN_S)
            except Exception:  # last frame of the task: it must go on  # noqa: BLE001
                _log.exception("cannot follow the other relays on the store")
                await asyncio.sleep(_AGAIN_S)

    async def follow(self) -> None:
        """Take over commits of others; passed to `Ingest.change_state`. Raises StoreFault."""
        try:
            await self._store.follow()
        except Outdated as outdated:
            _log.warning("%s: all state is read again", outdated)
            await self._read_again()

    async def _take_over(self, others: Others) -> Callable[[], Lookups] | None:
        """Called where nothing else changes the state of groups."""
        state = self._state
        groups = state.groups
        if others.rebuilt:  # 25 us for each record
            groups = await asyncio.to_thread(groups_after, groups, others, self._relay)
        else:
            groups = groups_after(groups, others, self._relay)
        before = state.management
        state.adopt(groups)
        state.manage(before.with_lists(others.lists))
        if state.management is not before:
            self.rights_changed()
        passed_on = {
            seq: rows for seq, rows in others.passed_on.items() if seq >= others.rights_at
        }  # before, it was for those who could read it then
        return self._ingest.overtaken(range(others.after + 1, others.upto + 1), passed_on)

    async def _read_again(self) -> None:
        store, state = self._store, self._state
        after = store.committed()
        upto = await store.head()
        groups = await rebuilt_groups(store, self._relay, upto)
        management = await store.management()
        state.adopt(groups)
        state.manage(management)
        store.follow_from(upto)
        self.rights_changed()
        self._ingest.overtaken(range(after + 1, upto + 1), {})
