"""Places: requests that wait for the same kind of work, whose turn it is, and the rest after each.

Invariants: known keys have turns of their own. Clients of one address have at most half of these at
a time, however many of their requests wait: the next turn is that of another address. Clients whose
address is unknown are told apart by their keys.
"""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager, contextmanager
from time import perf_counter
from typing import TYPE_CHECKING, Final
from weakref import WeakValueDictionary

from relay.access.shares import Shares
from relay.errors import Prefix, Refused

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator

    from relay.access.shares import Rights

_REST_RATIO: Final = {True: 2, False: 9}
"""Length of the rest after work for known and for unknown keys, as a multiple of the work: from
many addresses, work for unknown keys takes a tenth of the loop together."""


class Places:
    def __init__(self, most: int, at_once: int, max_rest_s: float, refusal: str) -> None:
        """`most`: requests that wait or have a turn, except those of owners (see `Shares`).
        `at_once`: turns of known keys, and as many of unknown ones. `refusal`: what is said to
        those without a place."""
        self._most = most
        self._of_one = max(at_once // 2, 1)
        self._max_rest_s = max_rest_s
        self._refusal = refusal
        self._held = Shares()
        self._turns = {known: asyncio.Semaphore(at_once) for known in (True, False)}
        self._turns_of: WeakValueDictionary[tuple[bool, str | None], asyncio.Semaphore]
        self._turns_of = WeakValueDictionary()
        self._begin_at = {True: 0.0, False: 0.0}
        """`perf_counter` from which on work may be begun for known and for unknown keys."""

    @contextmanager
    def place(self, rights: Rights, part: str | None) -> Iterator[None]:
        """`part`: the client's address or key. Raises Refused."""
        if self._held.room_for(rights, part, self._most) <= 0:
            raise Refused(Prefix.RATE_LIMITED, self._refusal)
        self._held.add(part, 1)
        try:
            yield
        finally:
            self._held.add(part, -1)

    @asynccontextmanager
    async def turn(self, part: str | None, *, known: bool) -> AsyncIterator[None]:
        """Wait for a turn; `rest` must be awaited before the work."""
        own = self._turns_of.get((known, part))
        if own is None:
            own = self._turns_of[known, part] = asyncio.Semaphore(self._of_one)
        # Own first: then one address never has more than its turns in the common queue.
        async with own, self._turns[known]:
            yield

    async def rest(self, *, known: bool) -> None:
        """Until work may begin."""
        await asyncio.sleep(max(self._begin_at[known] - perf_counter(), 0.0))

    def count(self, seconds: float, *, known: bool) -> None:
        """The work took so long."""
        begin = max(perf_counter(), self._begin_at[known])
        self._begin_at[known] = begin + min(_REST_RATIO[known] * seconds, self._max_rest_s)
