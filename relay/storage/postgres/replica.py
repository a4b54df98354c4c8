"""Reads of clients on a replica: a server that follows the primary by streaming replication.

A read runs there when its snapshot has everything that this relay has committed or taken over; else
on the primary. With a replica, or several relays, every batch raises `head`, under the lock of the
database: a snapshot with a seq has that batch and all before it, with their deletions.
"""

from __future__ import annotations

import asyncio
import logging
from contextlib import asynccontextmanager
from time import monotonic
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Protocol, TypeVar

from relay.errors import StoreFault, TooSlow
from relay.storage.postgres.connections import FAULTS, Connections, end
from relay.storage.postgres.reading import Reader
from relay.storage.postgres.sql.named import QUERIES

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Mapping

    from relay.storage.postgres.connections import On
    from relay.storage.postgres.hashes import KeyedHashes
    from relay.storage.postgres.reading import Ask, Turns
    from relay.storage.tokens import Tokenizer

T = TypeVar("T")

_log = logging.getLogger("rookery")

_WAIT_S: Final = 0.05
"""How long a read waits for the replica to catch up."""
_STEP_S: Final = 0.005
_ANSWER_S: Final = 1.0
_TRY_S: Final = 3.0
"""While one read tries the replica after a failure, other reads use the primary, at most for this
time."""
_AGAIN_S: Final = 0.1
"""Delay until the next try, doubled after each failure."""
_MAX_AGAIN_S: Final = 5.0
_TOLD_AT: Final = 3
"""Failures in a row before a warning, about half a second: a replica may be briefly behind."""


class Needed(NamedTuple):
    """What the snapshot of a read must contain."""

    seq: int
    rules: str | None = None
    """Version of the text index, for a search."""
    indexed: int = 0
    ahead: int = 0


class Away(Exception):
    """The read must run on the primary."""


class Replica:
    """One server. A snapshot that is behind this relay is never used."""

    def __init__(
        self,
        url: str,
        password: str | None,
        primary: Connections,
    ) -> None:
        self._there = Connections(url, password, acquire_s=_ANSWER_S)
        self._primary = primary
        self.history = ""
        """A name in `meta` of the primary, written when a relay last connected. A server with
        another name follows another primary, or the one from before a fail-over. Empty: not
        known."""
        self.reads = {"replica": 0, "primary": 0}
        self.waited_s = 0.0
        """Total seconds spent on waiting for the replica."""
        self.seq = 0
        """The replica's seq when it was last read."""
        self._again_at = 0.0
        self._failed_at = 0.0
        self._failures = 0

    async def open(self) -> None:
        """Does not connect yet. Raises StoreFault for an invalid address."""
        await self._there.open()

    async def close(self) -> None:
        await self._there.close()

    async def read(self, ask: Ask[T], needed: Needed, within_s: float | None, on: On) -> T:
        """Raises Away, or TooSlow as `Connections.reading`."""
        if not self.history or monotonic() < self._again_at:
            raise Away
        hold = self._there.paging if on == "paging" else self._there.reading
        began, is_level = monotonic(), False
        if self._failures:
            self._again_at = began + _TRY_S
        try:
            while True:
                async with hold(within_s) as db, _snapshot(db):
                    why = await self._why_not(db, needed)
                    if not why:
                        is_level = True
                        self._is_back(began)
                        return await ask(db)
                if monotonic() - began >= _WAIT_S:
                    break
                await asyncio.sleep(_STEP_S)
        except TooSlow:
            if is_level:
                raise
            why = "it does not answer in time"
        except StoreFault as fault:
            if is_level:  # as when recovery needs what the read uses
                raise Away from fault
            why = str(fault)
        self._is_away(why, began)
        raise Away

    async def _why_not(self, db: Any, needed: Needed) -> str:
        """Why the snapshot cannot be used; empty: it has all that is needed."""
        async with asyncio.timeout(_ANSWER_S):
            found = await db.fetchrow(QUERIES["replica"])
            self.seq, is_replica, history, rules, indexed, ahead = found
        if not is_replica:
            return "it is no replica"
        if history != (known := self.history):
            async with self._primary.reading(_ANSWER_S) as primary:
                now = await primary.fetchval(QUERIES["get_meta"], "history")
            if self.history == known:
                self.history = now or ""
        if history != self.history:
            return "it has not followed this database"
        if self.seq < needed.seq:
            return f"it is {needed.seq - self.seq} behind"
        if needed.rules is not None and (
            rules != needed.rules or indexed < needed.indexed or ahead < needed.ahead
        ):
            return "its text index is behind"
        return ""

    def _is_back(self, began: float) -> None:
        self.waited_s += monotonic() - began
        if self._failures >= _TOLD_AT:
            _log.info("the replica has caught up: clients read there again")
        self._failures = 0
        self._again_at = 0.0

    def _is_away(self, why: str, began: float) -> None:
        self.waited_s += monotonic() - began
        if began < self._failed_at:  # another read has found that too
            return
        self._failures += 1
        self._failed_at = monotonic()
        self._again_at = self._failed_at + min(_MAX_AGAIN_S, _AGAIN_S * 2**self._failures)
        if self._failures == _TOLD_AT:
            _log.warning("clients read on the primary, not on the replica: %s", why)


class _Store(Protocol):
    """`PostgresStore`."""

    def committed(self) -> int: ...
    def indexed(self) -> tuple[str, int, int]: ...
    def known_state(self) -> int | None: ...
    async def current(self) -> None: ...


class ReplicaReader(Reader):
    """`relay.storage.ClientReads`: on the replica when it is level, else on the primary."""

    def __init__(
        self,
        replica: Replica,
        connections: Connections,
        hashes: KeyedHashes,
        turns: Turns,
        tokenizer: Tokenizer,
        store: _Store,
    ) -> None:
        """`connections`: to the primary."""
        super().__init__(connections, hashes, turns, tokenizer)
        self._replica = replica
        self._store = store

    @property
    def reads(self) -> Mapping[str, float]:
        return self._replica.reads

    @property
    def waited_s(self) -> float:
        return self._replica.waited_s

    def lag_rows(self) -> int:
        """As of the last read of the replica."""
        return max(0, self.committed() - self._replica.seq)

    async def _ask(
        self,
        ask: Ask[T],
        within_s: float | None = None,
        on: On = "reading",
        *,
        searches: bool = False,
    ) -> T:
        await self._current()
        self._connections.check()
        needed = Needed(self.committed(), *(self._store.indexed() if searches else ()))
        reads = self._replica.reads
        try:
            found = await self._replica.read(ask, needed, within_s, on)
        except Away:
            reads["primary"] += 1
            return await super()._ask(ask, within_s, on)
        reads["replica"] += 1
        return found

    def committed(self) -> int:
        return self._store.committed()

    def _known_state(self) -> int | None:
        return self._store.known_state()

    async def _current(self) -> None:
        await self._store.current()


@asynccontextmanager
async def _snapshot(db: Any) -> AsyncIterator[None]:
    try:
        async with asyncio.timeout(_ANSWER_S):
            await db.execute(QUERIES["begin_reading"])
        yield
    finally:
        try:
            async with asyncio.timeout(_ANSWER_S):  # for a cancelled statement, too
                await db.execute(QUERIES["rollback"])
        except FAULTS:
            end(db)
