"""Whether a write-ahead log was damaged before its end.

SQLite reads a log up to the first frame with a wrong checksum: after a crash this is the end of the
log, but a damaged disk looks the same, and then acknowledged commits are lost silently. The frames
after it show which of the two it is: a commit is synced before the next one is written, so a frame
that continues a commit that SQLite does not read proves that the log was longer. So does any frame
behind a wrong header, which is synced before the first frame; SQLite then reads none. Nothing
follows the last commit: damage in it is not found, nor is a log that was cut off.

Format: https://www.sqlite.org/fileformat2.html#walformat, https://www.sqlite.org/walformat.html
"""

from __future__ import annotations

import ctypes
import os
import sqlite3
import struct
from collections import Counter
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Final

from relay.errors import StoreFault
from relay.storage.sqlite.connections import fault_of, file_connection

if TYPE_CHECKING:
    from collections.abc import Iterator

_HEADER: Final = struct.Struct(">8I")
_FRAME: Final = struct.Struct(">6I")
_ORDERS: Final = {0x377F0682: "<", 0x377F0683: ">"}
"""First word of the header → order of bytes in the checksums."""
_MAX_FRAME_AT: Final = 16
"""Position in the wal-index of the number of frames that SQLite reads."""
_MAX_CHECKED: Final = 8

_Sums = tuple[int, int]
_opened: Final = Counter[str]()
"""How often this process has a store open, by its path."""


@contextmanager
def opened(store: Path) -> Iterator[None]:
    """This process has the store open: `check_log` looks at none of its files. Closing a descriptor
    of a file ends all locks that the process has of it (fcntl(2)). Without those of `-shm` the next
    program takes itself for the first one, and truncates it while others have it mapped."""
    path = os.path.realpath(store)
    _opened[path] += 1
    try:
        yield
    finally:
        _opened[path] -= 1


def check_log(store: Path) -> None:
    """Call it before anything else opens the file: the last connection that is closed copies what
    it reads of the log into the file and deletes the log, and then no damage can be seen. Does
    nothing while this process has the store open; the log was checked before.

    Raises StoreFault when the log is damaged before its end.
    """
    if _opened[os.path.realpath(store)]:
        return
    log = Path(f"{store}-wal")
    try:
        if log.stat().st_size <= _HEADER.size:
            return
    except FileNotFoundError:
        return
    try:
        db = file_connection(store)
        try:
            page_size = db.execute("PRAGMA page_size").fetchone()[0]
            db.execute("PRAGMA schema_version").fetchone()  # SQLite recovers the log
            is_damaged = is_cut_short(store, page_size)
            if is_damaged:
                # Never closed, not even when the program ends: the next start must refuse it too.
                ctypes.pythonapi.Py_IncRef(ctypes.py_object(db))
        except BaseException:
            db.close()
            raise
    except sqlite3.Error as error:
        raise fault_of(error, store) from error
    if is_damaged:
        raise StoreFault(
            f"{log} is damaged: SQLite reads only the commits before the damage. Restore a backup,"
            f" or go on with those: sqlite3 {store} 'PRAGMA wal_checkpoint(TRUNCATE)'"
        )
    db.close()


def is_cut_short(store: Path, page_size: int) -> bool:
    """Call it once SQLite has recovered the log, before a checkpoint."""
    try:
        log = os.open(f"{store}-wal", os.O_RDONLY)
    except FileNotFoundError:
        return False
    try:
        if os.fstat(log).st_size <= _HEADER.size:
            return False
        read = _frames_read(store)
        # A relay that runs may have committed meanwhile.
        return _goes_on(log, read, page_size) and _frames_read(store) == read
    except (OSError, struct.error):
        return False
    finally:
        os.close(log)


def _frames_read(store: Path) -> int:
    with open(f"{store}-shm", "rb") as index:
        return int(struct.unpack_from("=I", index.read(32), _MAX_FRAME_AT)[0])


def _goes_on(log: int, read: int, page_size: int) -> bool:
    header = os.pread(log, _HEADER.size, 0)
    magic, _, _, _, salt1, salt2, sum1, sum2 = _HEADER.unpack(header)
    frames = (os.fstat(log).st_size - _HEADER.size) // (_FRAME.size + page_size)
    order = _ORDERS.get(magic)
    if order is None or _sums(header[:24], (0, 0), order) != (sum1, sum2):
        return frames > 0
    before = _frame(log, read - 1, page_size)[2] if read else (sum1, sum2)
    is_intact = True
    """No frame was wrong so far: SQLite leaves out what belongs to no whole commit."""
    ends: tuple[_Sums, ...] = ()
    """The sums with which the log may go on after the frame before, if that ends a commit."""
    checked = 0
    for number in range(read, frames):
        is_commit, salts, sums = _frame(log, number, page_size)
        is_of_log = salts == (salt1, salt2)
        if is_intact:
            should_be = _sums(_summed(log, number, page_size), before, order)
            if is_of_log and sums == should_be:
                before = sums
                continue
        elif ends and is_of_log and checked < _MAX_CHECKED:
            checked += 1
            data = _summed(log, number, page_size)
            if any(_sums(data, each, order) == sums for each in ends):
                return True
        ends = (sums,) if is_commit and is_of_log else ()
        if is_intact and is_commit:  # its salts or sums alone may be damaged
            ends += (should_be,)
        is_intact = False
    return False


def _frame(log: int, number: int, page_size: int) -> tuple[bool, tuple[int, int], _Sums]:
    """Whether the frame ends a commit; its salts and sums."""
    at = _HEADER.size + number * (_FRAME.size + page_size)
    _, pages, salt1, salt2, sum1, sum2 = _FRAME.unpack(os.pread(log, _FRAME.size, at))
    return bool(pages), (salt1, salt2), (sum1, sum2)


def _summed(log: int, number: int, page_size: int) -> bytes:
    """The bytes that the sums of a frame are of, beside the sums of the frame before."""
    at = _HEADER.size + number * (_FRAME.size + page_size)
    return os.pread(log, 8, at) + os.pread(log, page_size, at + _FRAME.size)


def _sums(data: bytes, sums: _Sums, order: str) -> _Sums:
    one, two = sums
    words = struct.unpack(f"{order}{len(data) // 4}I", data)
    for even, odd in zip(words[::2], words[1::2], strict=True):
        one = (one + even + two) & 0xFFFFFFFF
        two = (two + odd + one) & 0xFFFFFFFF
    return one, two
