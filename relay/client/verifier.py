"""Signature verification outside the event loop: in threads, or for many events in processes.

One signature takes 25 µs of a core, the largest cost of an event for a client. Threads that call
libsecp256k1 contend for the GIL with the event loop, so thousands of events are verified by
processes (`relay.client.verify_worker`). Threads are used until those are ready, and if they fail.
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

from relay.client import verify_worker
from relay.nostr.keys import are_signed

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from concurrent.futures import Future

    from relay.nostr.event import Event

_PROCESS_MIN: Final = 1_000
"""Events without a pause between them that justify starting processes."""
_PAUSE_S: Final = 5.0
"""Processes end after so long without events."""
_MOST_PROCESSES: Final = 4


class SignatureVerifier:
    """Owned by a Client, used on its loop."""

    def __init__(self, pause_s: float = _PAUSE_S) -> None:
        self._pause_s = pause_s
        self._recent = 0
        """Events since the last pause."""
        self._processes: tuple[_Process, ...] = ()
        self._round_robin: Iterator[_Process] = iter(())
        self._pause_timer: asyncio.TimerHandle | None = None

    def begin(self, events: Sequence[Event]) -> asyncio.Future[list[bool]]:
        """`are_signed` for at most a few hundred events, in a thread or process."""
        loop = asyncio.get_running_loop()
        if self._pause_timer is not None:
            self._pause_timer.cancel()
        self._pause_timer = loop.call_later(self._pause_s, self._end)
        self._recent += len(events)
        if self._recent >= _PROCESS_MIN and not self._processes:
            self._processes = tuple(_Process() for _ in range(_process_count()))
            self._round_robin = cycle(self._processes)
        if self._processes:
            process = next(self._round_robin)
            if process.is_ready:
                return loop.run_in_executor(process.thread, process.verified, events)
        return loop.run_in_executor(None, are_signed, events)

    @property
    def pids(self) -> list[int]:
        """Process ids of the processes that are ready."""
        return [process.pid for process in self._processes if process.is_ready]

    async def close(self) -> None:
        """End the processes."""
        await asyncio.gather(*self._end())

    def _end(self) -> list[asyncio.Future[None]]:
        """Kill the processes. Pending work is finished by their threads."""
        if self._pause_timer is not None:
            self._pause_timer.cancel()
        processes, self._processes, self._recent = self._processes, (), 0
        return [asyncio.wrap_future(process.end()) for process in processes]


def _process_count() -> int:
    """One per core, at most 4: more do not help."""
    cores = len(os.sched_getaffinity(0)) if sys.platform == "linux" else os.cpu_count() or 1
    return min(cores, _MOST_PROCESSES)


class _Process:
    """One process, and the thread that waits for it."""

    def __init__(self) -> None:
        self.is_ready = False
        self.thread = ThreadPoolExecutor(1, "signatures")
        self._is_ended = False
        self._process: subprocess.Popen[bytes] | None = None
        self.thread.submit(self._start)

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    def verified(self, events: Sequence[Event]) -> list[bool]:
        """Blocks."""
        encoded = "".join([f"{event.id}{event.pubkey}{event.sig}" for event in events])
        verdicts = self._exchange(
            len(events).to_bytes(verify_worker.COUNT, "big") + bytes.fromhex(encoded)
        )
        if len(verdicts) != len(events):
            self.is_ready = False
            return are_signed(events)
        return [verdict == 1 for verdict in verdicts]

    def end(self) -> Future[None]:
        """Kill the process; its thread verifies what is pending and then ends."""
        self._is_ended = True
        if self._process is not None:
            self._process.kill()
        ended = self.thread.submit(self._reap)
        self.thread.shutdown(wait=False)
        return ended

    def _start(self) -> None:
        with suppress(OSError):
            self._process = subprocess.Popen(  # noqa: S603  our own file
                [sys.executable, "-P", verify_worker.__file__],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
            )
            if self._is_ended:
                self._process.kill()
            assert self._process.stdout is not None
            self.is_ready = self._process.stdout.read(1) == verify_worker.READY

    def _exchange(self, request: bytes) -> bytes:
        process = self._process
        assert process is not None
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            process.stdin.write(request)
            process.stdin.flush()
            return process.stdout.read((len(request) - verify_worker.COUNT) // verify_worker.EVENT)
        except OSError:
            return b""

    def _reap(self) -> None:
        if self._process is not None:
            self._process.kill()
            with suppress(BrokenPipeError), self._process:  # closes its pipes and waits for it
                pass
