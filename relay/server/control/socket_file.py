"""The socket file: only the relay's user and root may connect; a stale socket is removed."""

from __future__ import annotations

import os
import socket
import stat
import struct
from typing import TYPE_CHECKING

from relay.errors import FolderBusy, UserError
from relay.files import socket_address

if TYPE_CHECKING:
    from pathlib import Path


def _peer(connection: socket.socket) -> tuple[int, int] | None:
    """Process and user id of the other end; None where SO_PEERCRED does not exist."""
    if not hasattr(socket, "SO_PEERCRED"):
        return None
    size = struct.calcsize("3i")
    pid, uid, _ = struct.unpack(
        "3i", connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, size)
    )
    return pid, uid


def peer_refusal(connection: socket.socket) -> str | None:
    """Why the other end may not connect, or None. Mode 0600 of the socket enforces the same.

    Root may: it can become any user, and what a request changes the relay writes as its own.
    """
    peer, own = _peer(connection), os.geteuid()
    if peer is None or peer[1] in (own, 0):
        return None
    return f"this relay runs as user {own}; run the command as that user, not as {peer[1]}"


def bound_socket(path: Path) -> socket.socket:
    """A socket of mode 0600 at `path`. Raises FolderBusy when another process listens there."""
    _remove_stale(path)
    listening = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    # Before it listens: others can never connect.
    before = os.umask(0o177)
    try:
        with socket_address(path) as address:
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
        raise UserError(f"{path} is not a socket; move it elsewhere")
    with (
        socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe,
        socket_address(path) as address,
    ):
        probe.settimeout(1.0)
        try:
            probe.connect(address)
        except ConnectionRefusedError:
            path.unlink()
            return
        peer = _peer(probe)
    raise FolderBusy(str(path.parent), None if peer is None else peer[0])
