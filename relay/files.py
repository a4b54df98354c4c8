"""Files that survive a power failure, and files that a user names. Everything here blocks."""

from __future__ import annotations

import errno
import fcntl
import os
import secrets
import stat
import sys
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO, Final

if TYPE_CHECKING:
    from collections.abc import Iterator

MAX_KEY_FILE: Final = 64 << 10
_MAX_FILE: Final = 16 << 20
_JOURNAL_MAGIC: Final = bytes.fromhex("d9d505f920a163d7")
CONTAINER_FILES: Final = (Path("/.dockerenv"), Path("/run/.containerenv"))
"""Of Docker and Podman."""
_MAX_LINKS: Final = 40
"""As Linux: https://man7.org/linux/man-pages/man7/path_resolution.7.html"""
_MAX_ADDRESS: Final = 100
"""Bytes of the address of a Unix socket: the limit is 107 on Linux and 103 on other systems."""


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


@contextmanager
def socket_address(path: Path) -> Iterator[str]:
    """For `bind` or `connect`: the path, or a short alias below /proc/self/fd when it is too long
    for a Unix socket. Raises OSError."""
    if len(os.fsencode(path)) <= _MAX_ADDRESS:
        yield str(path)
        return
    folder = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        alias = f"/proc/self/fd/{folder}"
        if not os.path.isdir(alias):
            text = "too long for a socket address; use a folder with a shorter path"
            raise OSError(errno.ENAMETOOLONG, text, str(path))
        yield f"{alias}/{path.name}"
    finally:
        os.close(folder)


def content_of(path: Path, max_bytes: int = _MAX_FILE) -> bytes:
    """For a file of settings, policies or a key, which is read whole. Raises OSError, also for more
    than `max_bytes`, and for what is no file."""
    with open(path, "rb", opener=regular_file) as file:
        return _bounded(file, max_bytes)


def given_content(path: Path, max_bytes: int = _MAX_FILE) -> bytes:
    """As `content_of`, for what a user names to a command: it may be a pipe, as <(pass show key).
    Never for a relay or a service, which would wait for who writes to it."""
    with path.open("rb") as file:
        return _bounded(file, max_bytes)


def _bounded(file: BinaryIO, max_bytes: int) -> bytes:
    content = file.read(max_bytes + 1)  # /dev/zero has no end
    if len(content) > max_bytes:
        raise OSError(errno.EFBIG, f"too large, over {max_bytes >> 10} KiB", str(file.name))
    return content


def way_to(path: Path) -> Iterator[tuple[Path, os.stat_result]]:
    """Each folder and link on the way to a path, from the root down: who owns one, or may write to
    a folder, may have the path lead elsewhere. Each is given before the next is looked at. Raises
    OSError, FileNotFoundError after the last that is there.
    """
    here, left, links = Path("/"), [*reversed(path.absolute().parts)], 0
    while left:
        part = left.pop()
        here = here.parent if part == ".." else here / part
        about = here.lstat()
        yield here, about
        if stat.S_ISLNK(about.st_mode):
            links += 1
            if links > _MAX_LINKS:
                raise OSError(errno.ELOOP, os.strerror(errno.ELOOP), str(path))
            left += reversed(Path(os.readlink(here)).parts)
            here = here.parent


def in_container() -> bool:
    """Folders of the host may belong to anybody there, and no other user works in it."""
    return any(path.exists() for path in CONTAINER_FILES)


def trusted_users() -> set[int]:
    """Ids of this user and of root. In a user namespace root of the system may have another id,
    which the owner of the root folder tells; all users that are not mapped have the same one."""
    return {0, os.geteuid(), os.stat("/").st_uid}


def place_of_others(path: Path, home: Path) -> str:
    """What another user of the machine has made of a path below a home folder: a folder, link or
    file on the way from there that belongs to them, or that everybody may write to. Empty: nothing,
    or the path is not below it. The home folder itself may be everybody's, as /tmp."""
    if in_container() or not path.is_relative_to(home):
        return ""
    trusted, above = trusted_users(), set[Path]()
    with suppress(FileNotFoundError):
        above.update(place for place, _ in way_to(home))
        for place, about in way_to(path):
            if place in above:
                continue
            if about.st_uid not in trusted:
                return f"{place} belongs to another user ({about.st_uid})"
            everybodys = stat.S_IWOTH | (stat.S_ISVTX if stat.S_ISDIR(about.st_mode) else 0)
            if not stat.S_ISLNK(about.st_mode) and about.st_mode & everybodys == stat.S_IWOTH:
                return f"everybody may write to {place}"
    return ""


def regular_file(path: str, flags: int) -> int:
    """An `opener` for what must be a file: opening a pipe would wait until somebody writes to it. A
    new file is private. Raises OSError."""
    fd = os.open(path, flags | os.O_NONBLOCK, 0o600)
    try:
        _refuse_irregular(path, os.fstat(fd))
    except OSError:
        os.close(fd)
        raise
    return fd


def _refuse_irregular(path: str, about: os.stat_result) -> None:
    mode = about.st_mode
    if stat.S_ISREG(mode):
        return
    if stat.S_ISDIR(mode):
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), path)
    if stat.S_ISLNK(mode):
        raise OSError(errno.ELOOP, os.strerror(errno.ELOOP), path)
    kind = "pipe" if stat.S_ISFIFO(mode) else "device"
    raise OSError(errno.EINVAL, f"it is a {kind}, not a file", path)


def own_file(path: Path, flags: int = 0) -> int:
    """A descriptor for writing to a file, a new and private one if it is missing. Raises OSError
    for what is no file, and for a file of another user, who could read what is written."""
    fd = regular_file(str(path), os.O_CREAT | os.O_RDWR | os.O_CLOEXEC | flags)
    try:
        _refuse_foreign(path, os.fstat(fd))
    except OSError:
        os.close(fd)
        raise
    return fd


def own_database(path: Path, *, follows: bool = True) -> None:
    """As `own_file`, before SQLite opens it, which would make it readable for everyone, and which
    writes to its logs whoever made them. `follows`: a symbolic link."""
    real = Path(os.path.realpath(path))
    with suppress(FileNotFoundError):
        _refuse_foreign(path, path.lstat())  # a link, too
    for end in ("-journal", "-wal", "-shm"):
        log = Path(f"{real}{end}")
        with suppress(FileNotFoundError):
            _refuse_foreign(log, log.lstat())
    refuse_super_journal(path)
    file = real if follows else path
    try:
        os.close(os.open(file, os.O_CREAT | os.O_EXCL | os.O_RDWR | os.O_CLOEXEC, 0o600))
    except FileExistsError:
        # Not opened: closing it would end the locks that this process may have of it (fcntl(2)).
        about = file.lstat()
        _refuse_irregular(str(path), about)
        _refuse_foreign(path, about)


def refuse_super_journal(path: Path) -> None:
    """Before SQLite opens a database that somebody else may have made. It rolls back the journal
    that a crash seems to have left, and then deletes the file whose name ends the journal, whatever
    that is. Only commits to several attached databases end journals so
    (https://sqlite.org/atomiccommit.html#_multi_file_commit), and Rookery makes none. Raises
    OSError, which names the database."""
    journal = Path(f"{os.path.realpath(path)}-journal")
    with suppress(FileNotFoundError), open(journal, "rb", opener=regular_file) as file:
        file.seek(max(0, file.seek(0, os.SEEK_END) - len(_JOURNAL_MAGIC)))
        if file.read() == _JOURNAL_MAGIC:
            text = (
                f"{journal.name} names another file, which SQLite would delete: move it away, or"
                " open the database with the program that made both"
            )
            raise OSError(errno.EINVAL, text, str(path))


def private_database(path: Path, *, follows: bool = True) -> None:
    """`own_database`, with mode 0600, as its logs: SQLite gives new ones the mode of the file."""
    own_database(path, follows=follows)
    real = os.path.realpath(path)
    for file in (Path(f"{real}{end}") for end in ("", "-wal", "-shm")):
        with suppress(FileNotFoundError):
            about = file.lstat()
            is_own = about.st_uid == os.geteuid() and stat.S_ISREG(about.st_mode)
            if is_own and about.st_mode & 0o077:
                file.chmod(0o600)


def _refuse_foreign(path: Path, about: os.stat_result) -> None:
    if about.st_uid not in (0, os.geteuid()):
        text = f"belongs to another user ({about.st_uid})"
        raise PermissionError(errno.EPERM, text, str(path))


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


def take_lock(fd: int, path: Path, kind: int = fcntl.LOCK_EX | fcntl.LOCK_NB) -> None:
    """`flock` of an open file, which ends with it. Raises BlockingIOError, and another OSError on a
    file system without locks, as NFS without a lock daemon; its text says what to do."""
    try:
        fcntl.flock(fd, kind)
    except BlockingIOError:
        raise
    except OSError as wrong:
        text = f"cannot be locked: {wrong.strerror}; put the folder on a local disk"
        raise OSError(wrong.errno, text, str(path)) from None


def is_open_for_writing(path: Path) -> bool | None:
    """Whether a program has the file open for writing: it may be in the middle of a text.

    None: the system does not tell. The file is another user's, its file system has no leases, or
    this is not Linux.
    """
    if sys.platform != "linux":
        return None
    from fcntl import F_RDLCK, F_SETLEASE, F_SETSIG, F_UNLCK
    from signal import SIGURG

    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    except OSError:  # gone, or nobody of us can read it
        return False
    try:
        # Sent to this process if a program opens the file now; the default, SIGIO, would end it.
        fcntl.fcntl(fd, F_SETSIG, SIGURG)
        fcntl.fcntl(fd, F_SETLEASE, F_RDLCK)
        fcntl.fcntl(fd, F_SETLEASE, F_UNLCK)
    except BlockingIOError:
        return True
    except OSError:
        return None
    finally:
        os.close(fd)
    return False


def is_written_in_place(path: Path) -> bool:
    """Whether it is something else than a file: a pipe, a device, a folder, or a symbolic link to
    itself, which cannot be written to."""
    # Both: the target of /dev/stdout may have no name.
    return not path.is_file() and (path.exists() or os.path.lexists(os.path.realpath(path)))


def replace_own_file(path: Path, data: bytes, mode: int = 0o600) -> None:
    """Write a file, whole or not at all, that is no user's choice of a name. Whatever has the name
    is replaced: no symbolic link is followed, because somebody else may have made the folder. One
    task at a time. Raises OSError."""
    part = path.with_name(f".{path.name}.part")
    part.unlink(missing_ok=True)  # of a run before, or of another user who waits for the content
    with _renamed(part, path, mode) as file:
        file.write(data)


@contextmanager
def atomic_file(path: Path, mode: int = 0o600) -> Iterator[BinaryIO]:
    """A private file that is renamed into place when complete and durable; otherwise nothing
    changes. Raises OSError.

    A symbolic link stays one: its target is replaced. What is no regular file (a pipe, /dev/null)
    is written directly. Such a link or named pipe must not be another user's.
    """
    # One look at the name: who may write to the folder can put something else there at any time.
    target, there, is_in_place = path, _status(path), False
    if there is not None and stat.S_ISLNK(there.st_mode):
        _refuse_foreign(path, there)
        target = Path(os.path.realpath(path))
        there = _status(target)
        is_in_place = there is None and path.exists()  # the target of /dev/stdout may have no name
    if there is not None and stat.S_ISFIFO(there.st_mode):
        _refuse_foreign(target, there)
    if is_in_place or (there is not None and not stat.S_ISREG(there.st_mode)):
        with path.open("wb") as file:
            yield file
        return
    part = target.with_name(f".{target.name[:200]}.{secrets.token_hex(4)}.part")
    with _renamed(part, target, mode) as file:
        yield file


def _status(path: Path) -> os.stat_result | None:
    """None: there is nothing of this name. Raises OSError."""
    try:
        return path.lstat()
    except FileNotFoundError:
        return None


@contextmanager
def _renamed(part: Path, path: Path, mode: int) -> Iterator[BinaryIO]:
    """The new file `part`, which becomes `path`. Raises OSError, which names `path`."""
    try:
        fd = os.open(part, os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_CLOEXEC, mode)
    except OSError as error:
        raise OSError(error.errno, error.strerror, str(path)) from None
    try:
        with os.fdopen(fd, "wb") as file:
            if stat.S_IMODE(os.fstat(fd).st_mode) != mode:  # the umask took something
                os.fchmod(fd, mode)
            yield file
            file.flush()
            os.fsync(fd)
        part.replace(path)
    except BaseException:
        part.unlink(missing_ok=True)
        raise
