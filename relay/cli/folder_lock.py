"""The lock of a data folder: only one process writes in it."""

from __future__ import annotations

import os
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING

from relay.errors import FolderBusy, UserError
from relay.files import take_lock

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


@contextmanager
def locked(folder: Path, name: str = "rookery.lock") -> Iterator[None]:
    """Holds the lock inside. Raises FolderBusy with the process id of the holder, UserError where
    there are no locks.

    `flock` is released when the process ends, however it ends. The file is not removed: two
    processes could then lock two files of this name.
    """
    path = folder / name
    try:
        file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except FileNotFoundError:
        raise UserError(f"{folder} is not a folder") from None
    except OSError as wrong:
        raise UserError(f"{path} cannot be opened: {wrong.strerror}") from None
    try:
        try:
            take_lock(file, path)
        except BlockingIOError:
            raise FolderBusy(str(folder), _pid_in(file)) from None
        except OSError as none:
            raise UserError(f"{path} {none.strerror}") from None
        _note_pid(file)
        try:
            yield
        finally:
            os.ftruncate(file, 0)
    finally:
        os.close(file)


def _note_pid(file: int) -> None:
    text = f"{os.getpid()}\n".encode()
    with suppress(OSError):  # on a full disk others are told of the lock, not of its holder
        os.ftruncate(file, os.pwrite(file, text, 0))


def _pid_in(file: int) -> int | None:
    """None between the other process's lock and its write."""
    text = os.pread(file, 32, 0).strip()
    return int(text) if text.isdigit() else None
