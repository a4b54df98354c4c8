"""The socket in a folder: only its user may connect, and a stale one is told from a live one."""

from __future__ import annotations

import contextlib
import os
import socket
import stat
import struct
from typing import TYPE_CHECKING, Final

from relay.errors import FolderBusy, UserError

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


def _peer(connection: socket.socket) -> tuple[int, int] | None:
    """Process and user id of the other end; None where the system does not tell."""
    if not hasattr(socket, "SO_PEERCRED"):
        return None
    size = struct.calcsize("3i")
    pid, uid, _ = struct.unpack(
        "3i", connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, size)
    )
    return pid, uid


def stranger(connection: socket.socket) -> str | None:
    """Why the other end may not talk to us; the mode 0600 of the socket says the same."""
    peer, own = _peer(connection), os.geteuid()
    if peer is None or peer[1] == own:
        return None
    return f"this relay runs as user {own}; run the command as that user, not as {peer[1]}"


def bound(path: Path) -> socket.socket:
    """A socket on the path that only we may open. Raises FolderBusy when somebody answers there."""
    _remove_stale(path)
    listening = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    # Before it listens, so that there is no moment in which others could connect.
    before = os.umask(0o177)
    try:
        with address_of(path) as address:
            listening.bind(address)
    except BaseException:
        listening.close()
        raise
    finally:
        os.umask(before)
    return listening


def _remove_stale(path: Path) -> None:
    try:
        mode = path.lstat().st_mode
    except FileNotFoundError:
        return
    if not stat.S_ISSOCK(mode):
        raise UserError(f"{path} is in the way: it is no socket; move it elsewhere")
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe, address_of(path) as address:
        probe.settimeout(1.0)
        try:
            probe.connect(address)
        except ConnectionRefusedError:
            path.unlink()
            return
        peer = _peer(probe)
    raise FolderBusy(str(path.parent), None if peer is None else peer[0])


_MAX_ADDRESS: Final = 100
"""Bytes; Linux takes 107 of a socket's path, others 103."""


@contextlib.contextmanager
def address_of(path: Path) -> Iterator[str]:
    """The path, or a short detour to it: folders may be deeper than a socket's address is long."""
    if len(os.fsencode(path)) <= _MAX_ADDRESS:
        yield str(path)
        return
    folder = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY)
    try:
        detour = f"/proc/self/fd/{folder}"
        if not os.path.isdir(detour):
            raise UserError(f"{path}: too long for a socket; use a folder with a shorter path")
        yield f"{detour}/{path.name}"
    finally:
        os.close(folder)
