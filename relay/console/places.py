"""Places: requests that wait for the same kind of work, whose turn it is, and the rest after each.

Invariants: owners have turns of their own, and known keys have. Clients of one address, and those
of one key, have at most half of these at a time, however many of their requests wait. The next turn
is that of another network, and in it of another address; a key that an owner has admitted is a
network of its own. Clients whose address is unknown are told apart by their keys.
"""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from time import perf_counter
from typing import TYPE_CHECKING, Final
from weakref import WeakValueDictionary

from relay.access.shares import RoundRobin, Shares
from relay.console.sessions import Standing
from relay.errors import Prefix, Refused

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator

    from relay.access.shares import Rights

_REST_RATIO: Final = {Standing.OWNER: 2, Standing.KNOWN: 2, Standing.OTHER: 9}
"""Length of the rest after work, as a multiple of the work: from many addresses, work for unknown
keys takes a tenth of the loop together."""
_MAX_REST_S: Final = 5.0
"""Half of what a request waits for: the rest alone refuses nobody."""


def standing_of(rights: Rights) -> Standing:
    if rights.is_owner:
        return Standing.OWNER
    return Standing.KNOWN if rights.is_known else Standing.OTHER


class _Turns:
    def __init__(self, at_once: int) -> None:
        self._free = at_once
        self._waiting: RoundRobin[asyncio.Future[None]] = RoundRobin()

    @asynccontextmanager
    async def one(self, part: str) -> AsyncIterator[None]:
        if self._free:
            self._free -= 1
        else:
            turn = asyncio.get_running_loop().create_future()
            self._waiting.add(part, turn)
            try:
                await turn
            except asyncio.CancelledError:
                self._waiting.discard(part, turn)
                if not turn.cancelled():  # it had just been given
                    self._give()
                raise
        try:
            yield
        finally:
            self._give()

    def _give(self) -> None:
        while self._waiting:
            turn = self._waiting.pop()
            if not turn.done():  # else its request was cancelled
                turn.set_result(None)
                return
        self._free += 1


class Places:
    def __init__(self, most: int, ordinary: int, at_once: int, refusal: str) -> None:
        """`most`, `ordinary`: see `Shares.room_for`; sizes of requests that wait or have a turn.
        `at_once`: turns of each standing. `refusal`: what is said to those without a place."""
        self._most = most
        self._ordinary = ordinary
        self._of_one = max(at_once // 2, 1)
        self._refusal = refusal
        self._held = Shares()
        self._turns = {standing: _Turns(at_once) for standing in Standing}
        self._turns_of: WeakValueDictionary[tuple[Standing, str | None], asyncio.Semaphore]
        self._turns_of = WeakValueDictionary()
        self._begin_at = dict.fromkeys(Standing, 0.0)
        """`perf_counter` from which on work may be begun."""

    @contextmanager
    def place(self, rights: Rights, part: str | None, size: int = 1) -> Iterator[None]:
        """`part`: the client's address or key. Raises Refused."""
        if self._held.room_for(rights, part, self._most, self._ordinary) < size:
            raise Refused(Prefix.RATE_LIMITED, self._refusal)
        self._held.add(part, size)
        try:
            yield
        finally:
            self._held.add(part, -size)

    @asynccontextmanager
    async def turn(
        self, standing: Standing, part: str | None, pubkey: str | None = None
    ) -> AsyncIterator[None]:
        """Wait for a turn; `rest` must be awaited before the work. `part`: whose turn it is: an
        admitted key, else as in `place`."""
        async with AsyncExitStack() as held:
            # Own first: then one address or key never has more than its turns in the common queue.
            for one in dict.fromkeys((pubkey or part, part)):
                own = self._turns_of.get((standing, one))
                if own is None:
                    own = self._turns_of[standing, one] = asyncio.Semaphore(self._of_one)
                await held.enter_async_context(own)
            await held.enter_async_context(self._turns[standing].one(part or ""))
            yield

    async def rest(self, standing: Standing) -> None:
        """Until work may begin."""
        await asyncio.sleep(max(self._begin_at[standing] - perf_counter(), 0.0))

    def count(self, standing: Standing, seconds: float) -> None:
        """The work took so long."""
        now = perf_counter()
        begin = max(now, self._begin_at[standing]) + _REST_RATIO[standing] * seconds
        self._begin_at[standing] = min(begin, now + _MAX_REST_S)
