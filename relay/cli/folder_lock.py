"""The lock of a data folder: only one process writes in it."""

from __future__ import annotations

import errno
import os
from contextlib import ExitStack, contextmanager, suppress
from pwd import getpwuid
from typing import TYPE_CHECKING

from relay.errors import FolderBusy, UserError
from relay.files import in_container, regular_file, take_lock, trusted_users, way_to

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from pathlib import Path


@contextmanager
def locked(folder: Path, name: str = "rookery.lock") -> Iterator[None]:
    """Holds the lock inside. Raises FolderBusy with the process id of the holder, UserError where
    there are no locks, and for root in the folder of another user's relay.

    `flock` is released when the process ends, however it ends. The file is not removed: two
    processes could then lock two files of this name.
    """
    path = folder / name
    refuse_root(folder)
    try:
        # The folder may be of a clone, and the link lead to a file that would be emptied.
        flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
        file = regular_file(str(path), flags)
    except FileNotFoundError:
        raise UserError(f"{folder} is not a folder") from None
    except OSError as wrong:
        if wrong.errno == errno.ELOOP:
            raise UserError(f"{path} is a symbolic link: remove it") from None
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


def refuse_root(folder: Path) -> None:
    """For root in the folder of another user, whose relay could not open the files that root makes,
    and who could make root read or write others by links, and run plug-ins; also below a folder of
    that user, who could put another one in its place. The key and the store may tell whose folder
    it is, too; in a container only they do. Raises UserError, also where no folder is; OSError.
    """
    try:
        _refuse_root_in(folder)
    except FileNotFoundError:  # and another user may put one there now
        raise UserError(f"{folder} is not a folder") from None


def refuse_root_to_make(folder: Path) -> None:
    """As `refuse_root`, for a folder that may be missing: before it, and what is missing above it,
    is made. What is made then belongs to root. Raises UserError, OSError."""
    with suppress(FileNotFoundError):
        _refuse_root_in(folder)


def _refuse_root_in(folder: Path) -> None:
    if os.geteuid() != 0:
        return
    is_contained = in_container()
    if is_contained:
        folder.stat()
    else:
        _refuse_places_of_others(way_to(folder))
    for name in ("relay.key", "rookery.db"):
        path = folder / name
        with suppress(FileNotFoundError, NotADirectoryError):
            ends = [(path, path.lstat()), (path, path.stat())]
            _refuse_places_of_others(ends if is_contained else way_to(path))


def _refuse_places_of_others(places: Iterable[tuple[Path, os.stat_result]]) -> None:
    trusted = trusted_users()
    for place, about in places:
        if about.st_uid in trusted:
            continue
        owner = about.st_uid
        try:
            name, by = getpwuid(owner).pw_name, "runuser --pty -u {}"
        except KeyError:  # of a container, or of another machine
            name, by = str(owner), "setsid -w setpriv --reuid {} --clear-groups"
        raise UserError(
            f"{place} belongs to user {name}, who could not open what root makes there, and could"
            " have root read, write or run other files: run this as that user,"
            f" `{by.format(name)} -- rookery …` (in a container `docker run --user {owner} …`)"
        )


@contextmanager
def flocked(folder: Path) -> Iterator[None]:
    """Holds a lock of the folder itself, without a file in it. Raises BlockingIOError when another
    process holds it, OSError where there are no locks."""
    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        take_lock(fd, folder)
        yield
    finally:
        os.close(fd)


@contextmanager
def filling(folder: Path) -> Iterator[None]:
    """For commands that make a data folder of an empty one: each has it alone from its look at what
    is there to its last file. Raises UserError, also for root as `refuse_root`; OSError."""
    refuse_root(folder)
    with ExitStack() as held:
        try:
            held.enter_context(flocked(folder))
        except BlockingIOError:
            raise UserError(
                f"{folder} is being filled by another command: wait until that has ended"
            ) from None
        yield


def _note_pid(file: int) -> None:
    text = f"{os.getpid()}\n".encode()
    with suppress(OSError):  # on a full disk others are told of the lock, not of its holder
        os.ftruncate(file, os.pwrite(file, text, 0))


def _pid_in(file: int) -> int | None:
    """None between the other process's lock and its write."""
    text = os.pread(file, 32, 0).strip()
    return int(text) if text.isdigit() else None
