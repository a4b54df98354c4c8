"""What is done to the relays, their ways to the database, and the database; a seed decides."""

from __future__ import annotations

import asyncio
import signal
from collections import Counter
from typing import TYPE_CHECKING, Final

from tests.harness.database_proxy import AtCommit
from tests.harness.relay_program import until

if TYPE_CHECKING:
    from collections.abc import Awaitable, Sequence
    from random import Random
    from typing import Protocol

    from tests.harness.database_proxy import Proxy
    from tests.harness.network import Cable
    from tests.harness.postgres import PostgresServer
    from tests.harness.relay_program import Rookery

    class Disturbance(Protocol):
        __name__: str

        def __call__(self, at: int, seconds: float, /) -> Awaitable[None]: ...


_AT_ONCE: Final = 2
_PAUSE_S: Final = 0.3
_LONGEST_S: Final = 12.0


class Disturbances:
    def __init__(
        self,
        relays: Sequence[Rookery],
        proxies: Sequence[Proxy],
        cable: Cable | None,
        server: PostgresServer,
        chance: Random,
    ) -> None:
        """`proxies`: of the first relays. `cable`: of the last one."""
        self._relays, self._proxies, self._server = relays, proxies, server
        self._cable = cable
        self._chance = chance
        self._database = asyncio.Lock()
        self._busy = [asyncio.Lock() for _ in relays]
        """One disturbance of a relay at a time."""
        self.done: Counter[str] = Counter()
        for proxy in proxies:
            proxy.crash = self._crash
        everywhere, first = range(len(relays)), range(len(proxies))
        self.some: Sequence[tuple[Disturbance, range]] = (
            (self.kill_relay, everywhere),
            (self.stop_relay, everywhere),
            (self.crash_database, everywhere),
            (self.cut, first),
            (self.stall, first),
            (self.stall_writes, first),
            (self.lose_answer, first),
            (self.lose_commit, first),
            (self.crash_in_commit, first),
            (self.unplug, everywhere[len(proxies) :]),
        )[: 9 if cable is None else 10]
        """And the relays that each may happen to."""

    def only(self, name: str) -> None:
        self.some = [each for each in self.some if each[0].__name__ == name]

    async def go_on(self, seconds: float) -> None:
        """Each once in an order of its own, then again; at least once. All are well after it."""
        loop = asyncio.get_running_loop()
        until_ = loop.time() + seconds
        room = asyncio.Semaphore(_AT_ONCE)
        async with asyncio.TaskGroup() as tasks:
            while True:
                for disturb, places in self._chance.sample(self.some, len(self.some)):
                    await room.acquire()
                    task = tasks.create_task(self._one(disturb, self._chance.choice(places)))
                    task.add_done_callback(lambda _: room.release())
                    await asyncio.sleep(self._chance.expovariate(1 / _PAUSE_S))
                if loop.time() > until_:
                    return

    async def _one(self, disturb: Disturbance, at: int) -> None:
        async with self._busy[at]:
            await disturb(at, self._some_time())
        self.done[disturb.__name__] += 1

    def _some_time(self) -> float:
        """Mostly short; some longer than a relay may be behind, some than it may hold the lock."""
        return min(_LONGEST_S, self._chance.expovariate(1 / 1.5))

    async def kill_relay(self, at: int, seconds: float) -> None:
        await self._relays[at].stop(signal.SIGKILL)
        await asyncio.sleep(seconds)
        async with until("the relay starts") as tries:
            async for _ in tries:
                try:
                    await self._relays[at].start()
                except AssertionError:  # the database is away
                    await self._relays[at].stop(signal.SIGKILL)
                else:
                    return

    async def stop_relay(self, at: int, seconds: float) -> None:
        """It wakes with what it knew before."""
        self._relays[at].send_signal(signal.SIGSTOP)
        await asyncio.sleep(seconds)
        self._relays[at].send_signal(signal.SIGCONT)

    async def crash_database(self, _: int, seconds: float) -> None:
        await self._crash(seconds)

    async def _crash(self, seconds: float = 0.0) -> None:
        async with self._database:
            at_once = self._chance.random() < 0.5
            await asyncio.to_thread(self._server.crash if at_once else self._server.stop_at_once)
            await asyncio.sleep(seconds)
            await asyncio.to_thread(self._server.start)
            self.done["starts of the database"] += 1

    async def cut(self, at: int, seconds: float) -> None:
        self._proxies[at].cut()
        await asyncio.sleep(seconds)
        self._proxies[at].mend()

    async def stall(self, at: int, seconds: float) -> None:
        self._proxies[at].stall()
        await asyncio.sleep(seconds)
        self._proxies[at].mend()

    async def stall_writes(self, at: int, seconds: float) -> None:
        """It can read still, and does not hear what others write."""
        self._proxies[at].stall(reads_go_on=True)
        await asyncio.sleep(seconds + 3)  # longer than it may give what it has read
        self._proxies[at].mend()

    async def unplug(self, _: int, seconds: float) -> None:
        """Long enough at times for both ends to give up their connections."""
        assert self._cable is not None
        await asyncio.to_thread(self._cable.unplug)
        await asyncio.sleep(2 * seconds)
        await asyncio.to_thread(self._cable.plug)

    async def lose_answer(self, at: int, seconds: float) -> None:
        await self._at_commit(at, seconds, AtCommit.LOSE_ANSWER)

    async def lose_commit(self, at: int, seconds: float) -> None:
        await self._at_commit(at, seconds, AtCommit.LOSE_REQUEST)

    async def crash_in_commit(self, at: int, seconds: float) -> None:
        await self._at_commit(at, seconds, AtCommit.CRASH)

    async def _at_commit(self, at: int, seconds: float, what: AtCommit) -> None:
        proxy = self._proxies[at]
        proxy.at_commit = what
        await asyncio.sleep(seconds)
        async with self._database:  # a crash has begun and ended
            proxy.mend()
