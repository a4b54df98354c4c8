"""Signatures of what a relay sends, checked beside the loop: in threads, or for a lot in processes.

A signature takes 25 µs of a core, more than all else that a client does with an event. Threads that
ask libsecp256k1 for one after another wait for Python's lock each time while the loop reads on, so
who reads thousands of events gets processes for it (`relay.client.checker`). Threads do the work
until those are there, and when they fail.
"""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from itertools import cycle
from typing import TYPE_CHECKING, Final

from relay.client import checker
from relay.nostr.keys import are_signed

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from concurrent.futures import Future

    from relay.nostr.event import Event

_A_LOT: Final = 1_000
"""Events, without a pause between them, for which processes are worth their start."""
_PAUSE_S: Final = 5.0
"""Without events for so long, processes end."""
_MOST_PROCESSES: Final = 4


class Checking:
    """Owned by a Client, used on its loop."""

    def __init__(self, pause_s: float = _PAUSE_S) -> None:
        self._pause_s = pause_s
        self._lately = 0
        """Events since the last pause."""
        self._processes: tuple[_Process, ...] = ()
        self._turns: Iterator[_Process] = iter(())
        self._at_pause: asyncio.TimerHandle | None = None

    def begin(self, events: Sequence[Event]) -> asyncio.Future[list[bool]]:
        """`are_signed`, of at most some hundred."""
        loop = asyncio.get_running_loop()
        if self._at_pause is not None:
            self._at_pause.cancel()
        self._at_pause = loop.call_later(self._pause_s, self._end)
        self._lately += len(events)
        if self._lately >= _A_LOT and not self._processes:
            self._processes = tuple(_Process() for _ in range(_process_count()))
            self._turns = cycle(self._processes)
        if self._processes:
            process = next(self._turns)
            if process.is_ready:
                return loop.run_in_executor(process.thread, process.checked, events)
        return loop.run_in_executor(None, are_signed, events)

    @property
    def pids(self) -> list[int]:
        """Of the processes that are ready."""
        return [process.pid for process in self._processes if process.is_ready]

    async def close(self) -> None:
        """End the processes."""
        await asyncio.gather(*self._end())

    def _end(self) -> list[asyncio.Future[None]]:
        """End the processes. What is under way is done before each is gone."""
        if self._at_pause is not None:
            self._at_pause.cancel()
        processes, self._processes, self._lately = self._processes, (), 0
        return [asyncio.wrap_future(process.end()) for process in processes]


def _process_count() -> int:
    """One beside the loop's own core is better than none; more than a few do not help."""
    cores = len(os.sched_getaffinity(0)) if sys.platform == "linux" else os.cpu_count() or 1
    return min(cores, _MOST_PROCESSES)


class _Process:
    """One, with the thread that waits for it."""

    def __init__(self) -> None:
        self.is_ready = False
        self.thread = ThreadPoolExecutor(1, "signatures")
        self._is_over = False
        self._process: subprocess.Popen[bytes] | None = None
        self.thread.submit(self._start)

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    def checked(self, events: Sequence[Event]) -> list[bool]:
        """Blocks."""
        spelt = "".join([f"{event.id}{event.pubkey}{event.sig}" for event in events])
        verdicts = self._told(len(events).to_bytes(checker.COUNT, "big") + bytes.fromhex(spelt))
        if len(verdicts) != len(events):
            self.is_ready = False
            return are_signed(events)
        return [verdict == 1 for verdict in verdicts]

    def end(self) -> Future[None]:
        """Kill it; what it was asked is checked by its thread, and then it is gone."""
        self._is_over = True
        if self._process is not None:
            self._process.kill()
        ended = self.thread.submit(self._clear_away)
        self.thread.shutdown(wait=False)
        return ended

    def _start(self) -> None:
        with suppress(OSError):
            self._process = subprocess.Popen(  # noqa: S603  our own file
                [sys.executable, "-P", checker.__file__],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
            )
            if self._is_over:
                self._process.kill()
            assert self._process.stdout is not None
            self.is_ready = self._process.stdout.read(1) == checker.READY

    def _told(self, asked: bytes) -> bytes:
        process = self._process
        assert process is not None
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            process.stdin.write(asked)
            process.stdin.flush()
            return process.stdout.read((len(asked) - checker.COUNT) // checker.EVENT)
        except OSError:
            return b""

    def _clear_away(self) -> None:
        if self._process is not None:
            self._process.kill()
            with suppress(BrokenPipeError), self._process:  # closes its pipes, waits for it
                pass
