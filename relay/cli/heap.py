"""Heap: gives the memory that a burst of large answers took back to the system.

Connections that close leave some cycles, which Python finds late. And glibc keeps what was freed:
the size from which a block gets pages of its own (mmap) grows with each such block, up to 32 MiB;
later ones come from the heap, where small blocks between them keep the pages. Blocks of up to 512
bytes are in arenas of Python, 1 MiB each: one that is left in a cycle keeps its arena.
"""

from __future__ import annotations

import asyncio
import ctypes
import gc
import platform
import resource
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from typing import Never

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


def limit_heap() -> None:
    """Fix both limits of glibc; before threads are started."""
    libc = _glibc()
    if libc is not None:
        libc.mallopt(_M_MMAP_THRESHOLD, _MMAP_BYTES)
        libc.mallopt(_M_ARENA_MAX, _ARENAS)


async def keep_small() -> Never:
    """Collect garbage and return free pages whenever the process has grown, or has freed much."""
    least, most = own_bytes(), sys.getallocatedblocks()
    while True:
        await asyncio.sleep(_CHECK_S)
        now, blocks = own_bytes(), sys.getallocatedblocks()
        if now > least + _GROWN_BYTES or blocks < most - _FREED_BLOCKS:
            await give_back()
            least, most = own_bytes(), sys.getallocatedblocks()
        least, most = min(least, now), max(most, blocks)


async def give_back() -> None:
    """Collect garbage, some milliseconds on the loop, 30 with the most values that filters may
    have open, and let a thread return free pages."""
    gc.collect()
    libc = _glibc()
    if libc is not None:
        await asyncio.to_thread(libc.malloc_trim, 0)


def own_bytes() -> int:
    """Of this process in memory, without pages of files; 0 where the system does not tell."""
    try:
        _, resident, shared, *_ = Path("/proc/self/statm").read_text("ascii").split()
    except OSError:
        return 0
    return (int(resident) - int(shared)) * resource.getpagesize()


def _glibc() -> Any:
    return ctypes.CDLL(None) if platform.libc_ver()[0] == "glibc" else None
