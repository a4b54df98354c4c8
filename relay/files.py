"""Files that survive a power failure. Everything here blocks."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path


def sync(path: Path) -> None:
    """Wait until a file, or the names in a folder, are on disk. Raises OSError."""
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def make_private(folder: Path) -> None:
    """Make a folder and what is missing above it, of mode 0700: with `parents` of `mkdir` the umask
    would decide who may put something else there. Raises OSError."""
    missing = [path for path in (folder, *folder.parents) if not path.exists()]
    for path in reversed(missing):
        path.mkdir(mode=0o700, exist_ok=True)


def opened_below(root: Path, name: str) -> int:
    """A descriptor of a file or folder, for reading: no symbolic link below `root` is followed, nor
    one that took the place of a folder since it was listed. Raises OSError."""
    fd = os.open(root, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK
    for part in filter(None, name.split("/")):
        parent = fd
        try:
            fd = os.open(part, flags, dir_fd=parent)
        finally:
            os.close(parent)
    return fd


def replace_file(path: Path, data: bytes) -> None:
    """Write a file of mode 0600, whole or not at all. One task at a time. Raises OSError."""
    part = path.with_name(f".{path.name}.part")
    part.unlink(missing_ok=True)  # of a run before, or of another user who waits for the content
    fd = os.open(part, os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_CLOEXEC, 0o600)
    with os.fdopen(fd, "wb") as file:
        file.write(data)
        file.flush()
        os.fsync(fd)
    part.replace(path)
