"""LoopReader: reads on the event loop that are interrupted when they take long."""

from __future__ import annotations

import sqlite3
from contextlib import suppress
from functools import partial
from math import inf
from time import monotonic
from typing import TYPE_CHECKING, Any, Final, TypeVar

from relay.access.shares import network_of_client
from relay.errors import StoreFault
from relay.storage.sqlite.connections import FileMap, fault_of, sqlite_faults
from relay.storage.sqlite.sql.conditions import Query
from relay.storage.sqlite.tag_functions import OF_ROWS
from relay.storage.sqlite.work_thread import disk_reads

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from relay.storage.sqlite.connections import TagReader
    from relay.storage.sqlite.sql.conditions import Value

T = TypeVar("T")

_PREPARE_S: Final = 1e-6
"""For each character of a text, on a busy machine."""
_LOOP_READ_S: Final = 0.05
"""How long a read on the loop may take, for reads that wait for the disk."""
_PROGRESS_STEPS: Final = 2_000
"""Instructions of SQLite's virtual machine between two calls of the progress handler: 0.02 to
0.08 ms, or 30 ms if each of 130 look-ups reads a page of a disk."""
_LOOP_BYTES: Final = 4 << 20
"""Bytes of rows in which a read on the loop may look for tags; each MiB takes up to 3 ms."""
_LOOP_CALLS: Final = 100
"""Calls of the progress handler after which a read on the loop is interrupted …"""
_LEAST_CALLS: Final = 20
"""… and while many are interrupted; most reads end sooner."""
_WASTED_PER_S: Final = 1500
"""Calls of interrupted reads, per second, that do not shorten the others: 10 % of the loop."""
_MAX_UNWASTED: Final = 200
"""Calls that interrupted reads may use at once."""
_CALL_S: Final = 0.0002
"""A call that comes later than this counts as several: some instructions read long texts."""
_WAIT_S: Final = 0.005
"""A read on the loop that took longer, and read more than `_FEW_READS` blocks of the disk, has kept
everybody waiting: then the file is not mapped until none has done so for `_MAP_AGAIN_S`."""
_FEW_READS: Final = 8
_REST_RATIO: Final = 100
_MAX_REST_S: Final = 10.0
"""For `_REST_RATIO` times as long as such a read took, at most for this time, further reads of its
network run on threads."""
_MAP_AGAIN_S: Final = 600.0
_WASTEFUL_S: Final = 60.0
"""For so long after a read of a network was interrupted, its reads may be shorter."""
_SAME_S: Final = 30.0
"""For so long after a statement of a network was interrupted, it is not tried on the loop again."""
_MAX_WASTEFUL: Final = 1024
"""Networks whose interrupted or slow reads are remembered."""
_MAX_INTERRUPTED: Final = 64
"""Statements that were interrupted, until a new connection replaces the one they were on."""


class LoopReader:
    """The connection for reads on the event loop: it interrupts those that take long.

    What an interrupted read did is lost. While clients cause many, each read of their networks may
    do less before it is interrupted, so that they do not hold up the loop.
    """

    def __init__(self, connector: Callable[[], TagReader], mapping: FileMap | None = None) -> None:
        """`mapping`: of all readers."""
        self._connector = connector
        self._mapping = FileMap() if mapping is None else mapping
        self._interrupted: dict[str, int] = {}
        """Statement → how often it was interrupted, see `_never_interrupted`."""
        self._calls_left: float = 0
        """Calls of the progress handler that the current read may still make."""
        self._called_at = 0.0
        self._until = 0.0
        """When the current read is interrupted at the latest."""
        self._bytes_left: float = 0
        """Bytes of rows in which the current read may still look for tags."""
        self._unwasted: float = _MAX_UNWASTED
        """Calls that interrupted reads may still use before others are shortened."""
        self._wasteful: dict[object, float] = {}
        """Network → when a read of it was interrupted last, in this order."""
        self._interrupted_at: dict[tuple[object, int], float] = {}
        """Network and hash of a statement's text → when it was interrupted last."""
        self._refilled_at = monotonic()
        self._waited_at = 0.0
        """When a read waited for the disk last."""
        self._resting: dict[object, float] = {}
        """Network whose reads are on threads → until when."""
        self._disk_reads = disk_reads()
        """`disk_reads` when it was last looked at."""
        self._db = self._connection()

    def read(
        self,
        query: Query,
        fetch: Callable[[sqlite3.Connection, Query], list[T]],
        address: str | None = None,
    ) -> list[T] | None:
        """What `fetch` gives. None: the read was interrupted, its text is long, or reads of its
        network are on threads for now. `address`: of the client, as `Sharer.counted_as`. Raises
        StoreFault."""
        if query.is_long:
            return None
        now = monotonic()
        if self._unwasted < _MAX_UNWASTED:
            more = (now - self._refilled_at) * _WASTED_PER_S
            self._unwasted = min(self._unwasted + more, _MAX_UNWASTED)
        self._refilled_at = now
        # Instructions come after the text was prepared, if it is not cached.
        self._called_at = now + len(query.sql) * _PREPARE_S
        self._until = now + _LOOP_READ_S
        self._bytes_left = _LOOP_BYTES
        network = network_of_client(address)
        if self._resting and now < self._resting.get(network, now):
            return None
        same = network, hash(query.sql)
        if now - self._interrupted_at.get(same, -inf) < _SAME_S:
            return None
        calls = _LOOP_CALLS
        if now - self._wasteful.get(network, -inf) < _WASTEFUL_S:
            calls = max(_LEAST_CALLS, min(int(self._unwasted), _LOOP_CALLS))
        self._calls_left = calls
        if self._db.keeps_too_much:
            self._replace()
        if self._interrupted:
            query = self._never_interrupted(query)
        try:
            return fetch(self._db, query)
        except sqlite3.Error as error:  # DatabaseError: the file is damaged
            if getattr(error, "sqlite_errorcode", None) != sqlite3.SQLITE_INTERRUPT:
                raise fault_of(error) from error
        finally:
            self._note_wait(network, now)
        self._unwasted = max(self._unwasted - calls + min(self._calls_left, 0), 0)
        _note(self._wasteful, network, now)
        _note(self._interrupted_at, same, now)
        self._give_up(query.sql)
        return None

    def _note_wait(self, network: object, began: float) -> None:
        now = monotonic()
        took = now - began
        if took >= _WAIT_S:
            before, self._disk_reads = self._disk_reads, disk_reads()
            if self._disk_reads - before > _FEW_READS:
                self._waited_at = now
                self._mapping.end()
                if network is not None:
                    until = now + min(_REST_RATIO * took, _MAX_REST_S)
                    _note(self._resting, network, until)
        elif not self._mapping.bytes and now > self._waited_at + _MAP_AGAIN_S:
            self._mapping.begin()

    def one(self, sql: str, values: Sequence[Value]) -> Any:
        """The first row, or None; for a look-up by key, which is never interrupted: on a busy
        machine one step may seem to take long."""
        self._calls_left = self._until = self._bytes_left = inf
        with sqlite_faults():
            return self._db.execute(sql, values).fetchone()

    def close(self) -> None:
        self._db.close()

    def _connection(self) -> TagReader:
        db = self._connector()
        db.set_progress_handler(self._is_over, _PROGRESS_STEPS)
        for function, number in OF_ROWS:
            counted = partial(self._look_through, function)
            db.create_function(function.__name__, number, counted, deterministic=True)
        return db

    def _look_through(
        self, function: Callable[..., str | int | None], raw: bytes, *args: object
    ) -> str | int | None:
        """Call the function, and count the bytes of the row: to the progress handler the call is
        one instruction, however large the row is."""
        self._bytes_left -= len(raw)
        if self._bytes_left < 0:
            self._is_over()  # counts what it took
            self._db.interrupt()
            return None
        return function(raw, *args)

    def _is_over(self) -> bool:
        # Instructions rather than time alone: on a busy machine other processes use the time.
        now = monotonic()
        self._calls_left -= max(1, int((now - self._called_at) / _CALL_S))
        self._called_at = now
        return self._calls_left < 0 or now > self._until

    # Up to Python 3.11 the sqlite3 module keeps an interrupted statement marked as in use, and
    # prepares it again for each later call (90 us of 330). The same statement with a space more is
    # another one.

    def _never_interrupted(self, query: Query) -> Query:
        spaces = self._interrupted.get(query.sql)
        return query if spaces is None else Query(query.sql + " " * spaces, query.values)

    def _give_up(self, sql: str) -> None:
        statement = sql.rstrip(" ")
        self._interrupted[statement] = self._interrupted.get(statement, 0) + 1
        if sum(self._interrupted.values()) > _MAX_INTERRUPTED:
            self._replace()

    def _replace(self) -> None:
        with suppress(sqlite3.Error, StoreFault):  # then the next read tries again
            former, self._db = self._db, self._connection()
            former.close()
            self._interrupted.clear()


def _note(times: dict[T, float], name: T, time_s: float) -> None:
    """As the newest of at most `_MAX_WASTEFUL`."""
    times.pop(name, None)
    times[name] = time_s
    if len(times) > _MAX_WASTEFUL:
        del times[next(iter(times))]
