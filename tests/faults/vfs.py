"""A VFS under the SQLite of this process: records what it writes and syncs, and lets calls fail.

Python's `sqlite3` and `ctypes` share one libsqlite3 where the module is linked dynamically (Debian,
the official images, pyenv). So the connections that the relay opens by itself go through here, with
its threads, its locks and its pragmas; another SQLite in the process (apsw has its own) would see
none of them. Where SQLite is part of the module, `is_available` is False.

Methods of a file are called through a copy of the table of the real VFS with some of its own.
"""

from __future__ import annotations

import _sqlite3
import ctypes
import threading
from collections.abc import Callable
from contextlib import contextmanager
from ctypes import CFUNCTYPE, POINTER, Structure, c_char_p, c_int, c_int64, c_void_p
from dataclasses import dataclass, field
from enum import Enum, auto
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

OK: Final = 0
FULL: Final = 13
IOERR: Final = 10
IOERR_READ: Final = IOERR | 1 << 8
IOERR_WRITE: Final = IOERR | 3 << 8
IOERR_FSYNC: Final = IOERR | 4 << 8
IOERR_TRUNCATE: Final = IOERR | 6 << 8

_NAME: Final = b"rookery-faults"

_File = c_void_p
_Open = CFUNCTYPE(c_int, c_void_p, c_void_p, _File, c_int, POINTER(c_int))
_Delete = CFUNCTYPE(c_int, c_void_p, c_char_p, c_int)
_Close = CFUNCTYPE(c_int, _File)
_Transfer = CFUNCTYPE(c_int, _File, c_void_p, c_int, c_int64)
_Truncate = CFUNCTYPE(c_int, _File, c_int64)
_Sync = CFUNCTYPE(c_int, _File, c_int)


class _Vfs(Structure):
    _fields_ = (
        ("iVersion", c_int),
        ("szOsFile", c_int),
        ("mxPathname", c_int),
        ("pNext", c_void_p),
        ("zName", c_char_p),
        ("pAppData", c_void_p),
        ("xOpen", c_void_p),
        ("xDelete", c_void_p),
        ("rest", c_void_p * 14),
    )


class _Methods(Structure):
    _fields_ = (
        ("iVersion", c_int),
        ("xClose", c_void_p),
        ("xRead", c_void_p),
        ("xWrite", c_void_p),
        ("xTruncate", c_void_p),
        ("xSync", c_void_p),
        ("rest", c_void_p * 13),
    )


class _Head(Structure):
    """How every `sqlite3_file` begins."""

    _fields_ = (("methods", POINTER(_Methods)),)


class Call(Enum):
    READ = auto()
    WRITE = auto()
    TRUNCATE = auto()
    SYNC = auto()
    DELETE = auto()
    ACK = auto()
    """Not of SQLite: somebody was told something."""


Fails = Callable[[Call, str], int]
"""Of a call and the path of its file: a result code of SQLite."""


@dataclass(frozen=True, slots=True)
class Step:
    call: Call
    path: str
    """Of the file; of an ACK, what was told."""
    offset: int = 0
    """Of a WRITE; of a TRUNCATE the new size."""
    data: bytes = b""


_ERRORS: Final = {
    Call.READ: IOERR_READ,
    Call.WRITE: IOERR_WRITE,
    Call.TRUNCATE: IOERR_TRUNCATE,
    Call.SYNC: IOERR_FSYNC,
}


@dataclass
class Disk:
    """What is recorded of the files below a folder, and which calls fail."""

    folder: str
    steps: list[Step] = field(default_factory=list)
    records: bool = False
    fails: Fails | None = None
    """Asked before each call on a file below the folder."""
    keeps_syncs: bool = True
    """False: a disk that says that it has synced, and has not."""
    failed: int = 0
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _calm: int | None = None

    @contextmanager
    def calm(self) -> Iterator[None]:
        """Inside, no call of this thread fails."""
        self._calm = threading.get_ident()
        try:
            yield
        finally:
            self._calm = None

    def note(self, call: Call, path: str, offset: int = 0, data: bytes = b"") -> None:
        if self.records:
            with self._lock:
                self.steps.append(Step(call, path, offset, data))

    def fault(self, call: Call, path: str) -> int:
        if self.fails is None or self._calm == threading.get_ident():
            return OK
        code = self.fails(call, path)
        self.failed += code != OK
        return code


def every(n: int, *calls: Call, code: int | None = None, times: int = 10**9) -> Fails:
    """A `fails`: the n-th of these calls, and each n-th after it, at most so often."""
    lock, state = threading.Lock(), [0, 0]

    def fails(call: Call, _path: str) -> int:
        if call not in calls:
            return OK
        with lock:
            state[0] += 1
            if state[0] % n or state[1] >= times:
                return OK
            state[1] += 1
        return _ERRORS[call] if code is None else code

    return fails


class _Shim:
    """The VFS; one for the process."""

    def __init__(self) -> None:
        library = ctypes.CDLL(_sqlite3.__file__)
        library.sqlite3_vfs_find.restype = POINTER(_Vfs)
        library.sqlite3_vfs_find.argtypes = (c_char_p,)
        library.sqlite3_vfs_register.argtypes = (POINTER(_Vfs), c_int)
        library.sqlite3_vfs_unregister.argtypes = (POINTER(_Vfs),)
        self._library = library
        self._real = library.sqlite3_vfs_find(None)
        self._vfs = _Vfs.from_buffer_copy(self._real.contents)
        self._real_open = _Open(self._real.contents.xOpen)
        self._real_delete = _Delete(self._real.contents.xDelete)
        self._open, self._delete = _Open(self._opened), _Delete(self._deleted)
        self._vfs.zName = _NAME
        self._vfs.pNext = None
        self._vfs.xOpen = ctypes.cast(self._open, c_void_p)
        self._vfs.xDelete = ctypes.cast(self._delete, c_void_p)
        self._tables: dict[int, _Methods] = {}
        """Address of a real table → its copy."""
        self._paths: dict[int, str] = {}
        """Address of an open file → its path."""
        self._kept: list[Any] = []
        self.disk: Disk | None = None

    def register(self) -> None:
        self._library.sqlite3_vfs_register(ctypes.byref(self._vfs), 1)

    def unregister(self) -> None:
        """Connections that are open go on through here."""
        self._library.sqlite3_vfs_register(self._real, 1)
        self._library.sqlite3_vfs_unregister(ctypes.byref(self._vfs))

    def _opened(self, _vfs: int, name: int | None, file: int, flags: int, out: Any) -> int:
        code = self._real_open(ctypes.addressof(self._real.contents), name, file, flags, out)
        if code == OK and name:
            path = ctypes.string_at(name).decode()
            disk = self.disk
            if disk is not None and path.startswith(disk.folder):
                head = ctypes.cast(file, POINTER(_Head)).contents
                self._paths[file] = path
                head.methods = ctypes.pointer(self._replaced(head.methods.contents))
        return int(code)

    def _deleted(self, _vfs: int, name: bytes, sync: int) -> int:
        disk = self.disk
        path = name.decode()
        if disk is not None and path.startswith(disk.folder):
            disk.note(Call.DELETE, path)
            if sync:
                disk.note(Call.SYNC, path)
        return int(self._real_delete(ctypes.addressof(self._real.contents), name, sync))

    def _replaced(self, real: _Methods) -> _Methods:
        """Without xFetch: what is mapped into memory is not read through here."""
        at = ctypes.addressof(real)
        found = self._tables.get(at)
        if found is not None:
            return found
        copy = _Methods.from_buffer_copy(real)
        copy.iVersion = 2
        close, read, write = _Close(real.xClose), _Transfer(real.xRead), _Transfer(real.xWrite)
        truncate, sync = _Truncate(real.xTruncate), _Sync(real.xSync)
        paths = self._paths

        def fault(call: Call, path: str) -> int:
            return OK if self.disk is None else self.disk.fault(call, path)

        def note(call: Call, path: str, offset: int = 0, data: bytes = b"") -> None:
            if self.disk is not None:
                self.disk.note(call, path, offset, data)

        def closed(file: int) -> int:
            paths.pop(file, None)
            return int(close(file))

        def was_read(file: int, into: int, size: int, offset: int) -> int:
            return fault(Call.READ, paths[file]) or int(read(file, into, size, offset))

        def written(file: int, data: int, size: int, offset: int) -> int:
            path = paths[file]
            code = fault(Call.WRITE, path)
            if code == OK:
                note(Call.WRITE, path, offset, ctypes.string_at(data, size))
                code = int(write(file, data, size, offset))
            return code

        def truncated(file: int, size: int) -> int:
            path = paths[file]
            code = fault(Call.TRUNCATE, path)
            if code == OK:
                note(Call.TRUNCATE, path, size)
                code = int(truncate(file, size))
            return code

        def synced(file: int, flags: int) -> int:
            path = paths[file]
            code = fault(Call.SYNC, path) or int(sync(file, flags))
            if code == OK and (self.disk is None or self.disk.keeps_syncs):
                note(Call.SYNC, path)
            return code

        replaced = {
            "xClose": _Close(closed),
            "xRead": _Transfer(was_read),
            "xWrite": _Transfer(written),
            "xTruncate": _Truncate(truncated),
            "xSync": _Sync(synced),
        }
        for name, function in replaced.items():
            setattr(copy, name, ctypes.cast(function, c_void_p))
        self._kept += [close, read, write, truncate, sync, *replaced.values()]
        self._tables[at] = copy
        return copy


_shim: _Shim | None = None


def is_available() -> bool:
    try:
        ctypes.CDLL(_sqlite3.__file__).sqlite3_vfs_find  # noqa: B018
    except (AttributeError, OSError):
        return False
    return True


@contextmanager
def watched(folder: Path) -> Iterator[Disk]:
    """Inside, databases opened below the folder are recorded; close them before the end."""
    global _shim
    _shim = _shim or _Shim()
    assert _shim.disk is None
    _shim.disk = disk = Disk(f"{folder}/")
    _shim.register()
    try:
        yield disk
    finally:
        _shim.unregister()
        _shim.disk = None
