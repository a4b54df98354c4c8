"""The lock of a data folder: one process writes in it (contract §4)."""

from __future__ import annotations

import fcntl
import os
from contextlib import contextmanager
from typing import TYPE_CHECKING

from relay.errors import FolderBusy, UserError

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """The folder is this process's inside. Raises FolderBusy with the other's process id.

    The lock dies with its process, however that ends. The file stays: if it were removed, two could
    each hold a lock on a file of this name.
    """
    path = folder / "rookery.lock"
    try:
        file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except FileNotFoundError:
        raise UserError(f"{folder} is not a folder") from None
    except OSError as wrong:
        raise UserError(f"{path} cannot be opened: {wrong.strerror}") from None
    try:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise FolderBusy(str(folder), _pid_in(file)) from None
        os.ftruncate(file, 0)
        os.pwrite(file, f"{os.getpid()}\n".encode(), 0)
        try:
            yield
        finally:
            os.ftruncate(file, 0)
    finally:
        os.close(file)


def _pid_in(file: int) -> int | None:
    """None in the moment between the other's lock and its writing."""
    text = os.pread(file, 32, 0).strip()
    return int(text) if text.isdigit() else None
