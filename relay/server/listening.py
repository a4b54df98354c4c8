"""The listening sockets: bound here, or handed over by systemd or by the start before this one.

Both use the protocol of sd_listen_fds(3): LISTEN_FDS sockets from descriptor 3 on, for the process
LISTEN_PID. While a relay restarts, the kernel queues connections on the socket that stays open.
"""

from __future__ import annotations

import errno
import fcntl
import os
import signal
import socket
import sys
from contextlib import suppress
from typing import TYPE_CHECKING, Final

from relay.errors import UserError

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from typing import NoReturn

BACKLOG: Final = 65_535
"""Connections that may wait while a relay restarts; the kernel lowers it to net.core.somaxconn."""
_FIRST: Final = 3


def inherited_sockets() -> list[socket.socket]:
    """The sockets that were handed over; child processes do not inherit them. Raises UserError for
    another kind of socket."""
    given = {name: os.environ.pop(name, "") for name in ("LISTEN_PID", "LISTEN_FDS")}
    os.environ.pop("LISTEN_FDNAMES", None)
    if given["LISTEN_PID"] != str(os.getpid()) or not given["LISTEN_FDS"].isdigit():
        return []
    return [_listening(fd) for fd in range(_FIRST, _FIRST + int(given["LISTEN_FDS"]))]


def _listening(fd: int) -> socket.socket:
    try:
        fcntl.fcntl(fd, fcntl.F_SETFD, fcntl.FD_CLOEXEC)
        found = socket.socket(fileno=fd)
        if found.family in (socket.AF_INET, socket.AF_INET6) and found.getsockopt(
            socket.SOL_SOCKET, socket.SO_ACCEPTCONN
        ):
            return found
    except OSError:
        pass
    raise UserError(
        f"descriptor {fd} of LISTEN_FDS is no listening TCP socket: give the socket unit"
        " ListenStream= with a port, or an address and a port"
    )


def bound_sockets(host: str, port: int) -> list[socket.socket]:
    """Sockets bound to every address of `host`, which do not listen yet, and one of
    `add_ipv6_loopback`. Raises UserError."""
    bound: list[socket.socket] = []
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        for family, kind, protocol, _, address in dict.fromkeys(found):
            each = socket.socket(family, kind, protocol)
            bound.append(each)
            each.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            if family == socket.AF_INET6:
                each.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
            # A free port is the same for all, since a URL names one.
            each.bind((address[0], port or bound[0].getsockname()[1], *address[2:]))
    except (OSError, ValueError) as error:  # no host name, as one with a label of 64 characters
        for each in bound:
            each.close()
        raise cannot_listen(host, port, error) from error
    add_ipv6_loopback(bound)
    return bound


def add_ipv6_loopback(sockets: list[socket.socket]) -> None:
    """Add [::1] with the port of 127.0.0.1, if it can be had: many programs look for `localhost`
    there first, and another user of this machine could listen on it."""
    held = held_addresses(sockets)
    port = next((port for name, port in held if name == "127.0.0.1"), None)
    if port is None or ("::1", port) in held:
        return
    with suppress(OSError):  # no IPv6, or another program has it: `Server` warns
        each = socket.socket(socket.AF_INET6, socket.SOCK_STREAM)
        try:
            each.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            each.bind(("::1", port))
            each.listen(BACKLOG)  # of two that have bound it, the second cannot
        except OSError:
            each.close()
            raise
        sockets.append(each)


def held_addresses(sockets: Iterable[socket.socket]) -> list[tuple[str, int]]:
    """The addresses and ports of these sockets that nobody else can listen on; the loopback address
    of those that are bound to all addresses."""
    held: list[tuple[str, int]] = []
    for each in sockets:
        name, port = each.getsockname()[:2]
        if name == "::":
            held.append(("::1", port))
            if not each.getsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY):
                held.append(("127.0.0.1", port))
        else:
            held.append(("127.0.0.1" if name == "0.0.0.0" else name, port))  # noqa: S104
    return held


def has_ipv6_loopback() -> bool:
    """Whether any program of this machine can listen on [::1]."""
    try:
        with socket.socket(socket.AF_INET6, socket.SOCK_STREAM) as tried:
            tried.bind(("::1", 0))
    except OSError as error:
        return error.errno not in (errno.EADDRNOTAVAIL, errno.EAFNOSUPPORT)
    return True


def cannot_listen(host: str, port: int, error: OSError | ValueError) -> UserError:
    why = error.strerror if isinstance(error, OSError) else None
    return UserError(
        f"cannot listen on {host} port {port}: {why or error}; choose another with --host or --port"
    )


def tell_ready() -> None:
    """sd_notify(3), for a unit of Type=notify: `systemctl start` and `restart` wait for it."""
    path = os.environ.get("NOTIFY_SOCKET", "")
    if path:
        with suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as told:
            told.sendto(b"READY=1", f"\0{path[1:]}" if path.startswith("@") else path)


def start_again(listening: Sequence[int]) -> NoReturn:
    """Replace this process by a new start of the same command, with these descriptors of sockets.

    The process id stays, so that systemd, Docker or a terminal notice nothing.
    """
    # First to numbers above the range, because the sockets may be in it.
    moved = [fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, _FIRST + len(listening)) for fd in listening]
    for fd, place in enumerate(moved, _FIRST):
        os.dup2(place, fd)
    os.environ |= {"LISTEN_PID": str(os.getpid()), "LISTEN_FDS": str(len(moved))}
    # Stays ignored until `serve` has its handler: the new start reads the policies anyway.
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    os.execv(sys.executable, [sys.executable, *sys.orig_argv[1:]])  # noqa: S606
