"""Heap: gives the memory that a burst of large answers took back to the system, and closes
connections before the system ends the process.

Connections that close leave some cycles, which Python finds late. And glibc keeps what was freed:
the size from which a block gets pages of its own (mmap) grows with each such block, up to 32 MiB;
later ones come from the heap, where small blocks between them keep the pages. Blocks of up to 512
bytes are in arenas of Python, 1 MiB each: one that is left in a cycle keeps its arena.
"""

from __future__ import annotations

import asyncio
import ctypes
import gc
import logging
import platform
import resource
import sys
from contextlib import suppress
from pathlib import Path
from time import thread_time
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterator
    from typing import Never

_log = logging.getLogger(__name__)

_M_MMAP_THRESHOLD: Final = -3
_M_ARENA_MAX: Final = -8
_MMAP_BYTES: Final = 1 << 20
"""Blocks of this size have pages of their own; smaller ones would take longer by page faults."""
_ARENAS: Final = 2
"""Heaps of threads; by default eight for each core."""
_CHECK_S: Final = 10.0
_GROWN_BYTES: Final = 48 << 20
"""Growth of the process after which it is looked at."""
_FREED_BLOCKS: Final = 1 << 18
"""Blocks of Python that were freed, some 20 MB, after which it is looked at too: most arenas that
are left over have only garbage."""
_AGAIN: Final = 6
"""Looks after one for growth: what made the process grow may have been open still, and be left in
cycles when it is closed, which frees no block before they are found."""
_MUCH_WAITS: Final = 16 << 20
"""Weight of waiting events beside which a look is put off: garbage is found by looking at each of
their tags too, 36 ms on the loop for the 64 MiB of one address, 136 ms for those of four."""
_PUT_OFF: Final = 4
"""Checks for which a look is put off at most: somebody may let events wait all the time."""
_PRESSURE_S: Final = 0.5
_SETTLE_S: Final = 2.0
"""After connections were closed: what they held is freed by then."""
_SHARE: Final = 0.75
"""Of the memory that there is: the rest is for what is freed late, and for other programs."""
_STEP: Final = 1 / 16
"""Of the limit: by so much the process may grow after connections were closed that did not hold
what is too much: the store and the groups may hold it."""
_MOST: Final = 5 / 4
"""Of the limit, so 94 % of the memory: up to there by such steps."""
_LOOK_REST: Final = 200
"""Times that a look for garbage took pass until the next one: it takes 0.2 s of the loop beside
4,000 connections."""


def limit_heap() -> None:
    """Fix both limits of glibc; before threads are started."""
    libc = _glibc()
    if libc is not None:
        libc.mallopt(_M_MMAP_THRESHOLD, _MMAP_BYTES)
        libc.mallopt(_M_ARENA_MAX, _ARENAS)


async def restarted(job: Callable[[], Awaitable[Never]]) -> Never:
    """Begin it again after an error: when memory is short it may be one of memory or threads."""
    while True:
        try:
            await job()
        except Exception:  # or nothing would bound the memory until a restart  # noqa: BLE001
            _log.exception("the memory of the process could not be looked at")
            await asyncio.sleep(_CHECK_S)


async def keep_small(waiting: Callable[[], int]) -> Never:
    """Collect garbage and return free pages whenever the process has grown, or has freed much.

    `waiting`: weight of the events that wait."""
    least, most, again, put_off, rests = own_bytes(), sys.getallocatedblocks(), 0, 0, 0.0
    while True:
        await asyncio.sleep(_CHECK_S)
        now, blocks = own_bytes(), sys.getallocatedblocks()
        if now > least + _GROWN_BYTES:
            again = 1 + _AGAIN
        rests -= _CHECK_S
        if (again or put_off or blocks < most - _FREED_BLOCKS) and rests <= 0:
            if put_off < _PUT_OFF and waiting() > _MUCH_WAITS:
                put_off += 1
            else:
                rests = await give_back() * _LOOK_REST
                again, put_off = max(again - 1, 0), 0
                least, most = own_bytes(), sys.getallocatedblocks()
        least, most = min(least, now), max(most, blocks)


async def keep_below(limit: int, close_some: Callable[[int], Awaitable[str]]) -> Never:
    """Let `close_some` close connections while the process is larger than `limit` bytes. Everything
    that clients can fill is bounded, but the sum may be more than a small machine has, and no bound
    is for what nobody has thought of. If it does not help, only what is taken from then on counts,
    until the process is smaller.

    `close_some`: for so many bytes; gives what it closed, for the log; empty: nothing that would
    help.
    """
    threshold = limit
    """From this size on connections are closed."""
    while True:
        await asyncio.sleep(_PRESSURE_S)
        size = own_bytes()
        if size <= limit:
            threshold = limit
        if size <= threshold:
            continue
        await give_back()
        size = own_bytes()
        if size > threshold:
            closed = await close_some(size - threshold)
            _log.error(
                "the relay takes %d MiB of memory, more than %d: closed %s",
                size >> 20, threshold >> 20, closed or "nothing, no connection has sent much",
            )  # fmt: skip
            await asyncio.sleep(_SETTLE_S)
            await give_back()
            left = own_bytes()
            if left <= limit:
                threshold = limit
            elif size - left < (size - threshold) / 2:
                threshold = max(limit, min(int(left + _STEP * limit), int(_MOST * limit)))


def memory_limit(root: Path = Path("/")) -> int | None:
    """Bytes that this process may take: of the smallest limit of its control groups, or of the
    machine. None where the system does not tell."""
    found = [_machine_bytes(root), *_group_limits(root)]
    known = [each for each in found if each]
    return int(_SHARE * min(known)) if known else None


def _machine_bytes(root: Path) -> int | None:
    try:
        first = (root / "proc/meminfo").read_text("ascii").partition("\n")[0]
        return int(first.split()[1]) << 10
    except (OSError, ValueError, IndexError):
        return None


def _group_limits(root: Path) -> Iterator[int]:
    """Of control groups, version 2 and 1; in a container its own is at the root."""
    try:
        lines = (root / "proc/self/cgroup").read_text("utf-8").splitlines()
    except (OSError, ValueError):
        return
    for line in lines:
        _, controllers, path = (*line.split(":", 2), "", "")[:3]
        if controllers and "memory" not in controllers.split(","):
            continue
        top, name = ("sys/fs/cgroup", "memory.max")
        if controllers:
            top, name = ("sys/fs/cgroup/memory", "memory.limit_in_bytes")
        group = root / top / path.lstrip("/")
        for folder in (group, *group.parents):
            with suppress(OSError, ValueError):  # "max"
                yield int((folder / name).read_text("ascii"))


async def give_back() -> float:
    """Collect garbage, some milliseconds on the loop, 30 with the most values that filters may
    have open, more beside `_MUCH_WAITS` or thousands of connections, and let a thread return free
    pages. Returns how many seconds it took the loop."""
    began = thread_time()
    gc.collect()
    took = thread_time() - began
    libc = _glibc()
    if libc is not None:
        await asyncio.to_thread(libc.malloc_trim, 0)
    return took


def own_bytes() -> int:
    """Of this process in memory, without pages of files; 0 where the system does not tell."""
    try:
        _, resident, shared, *_ = Path("/proc/self/statm").read_text("ascii").split()
    except OSError:
        return 0
    return (int(resident) - int(shared)) * resource.getpagesize()


def _glibc() -> Any:
    return ctypes.CDLL(None) if platform.libc_ver()[0] == "glibc" else None
