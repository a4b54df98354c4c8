"""`rookery hook EVENT`, as quick as it can be: it tells the keeper.

A coding agent waits for its hooks, and to import what records one takes longer than it may wait. So
a process stays behind, the keeper (relay.client.nmem.keeper), which does it for all of them. Of the
hooks that find none, the one that gets the keeper's lock leaves one behind, with that lock, and
does its own work itself; the others wait for its keeper. This module imports nothing of ours and
little of Python: `socket` alone, which only wraps `_socket`, would double the time.

To the keeper: words apart by NUL, the last of them what the agent said; then the end of writing.
From it: `+` and what is to be printed; anything else means that it does not do it.
"""

from __future__ import annotations

import _socket
import io
import os
import sys
import time

from relay import __version__

SOCKET = ".local/share/rookery/hook.sock"
"""Below the home folder."""
LOCK = "hook.lock"
"""Beside the socket: whose it is, is the keeper, or is about to start it."""
VARIABLES = ("ROOKERY_RELAY", "ROOKERY_KEY", "NMEM_KEY")
"""A keeper that was started with others does not do."""
ANSWER_S = 1.0
"""After which the hook does it itself: both together take less than two seconds (M-13)."""
_PAUSE_S = 0.01
"""Between two tries to reach a keeper that is about to listen."""
_NO_HOOKS = ("install", "uninstall", "keep", "--help", "-h")


class Heard(io.BytesIO):
    """What the agent said, in place of stdin: it can be read again."""

    def __init__(self, said: bytes, at: int) -> None:
        super().__init__(said)
        self.at = at
        """Unix seconds. Whoever records it, or both, names the same time: it stays one record."""


def tell_keeper(args: list[str]) -> bool:
    """Whether nothing is left to do. If something is, stdin of a hook is `Heard`."""
    if args and args[0] in _NO_HOOKS:
        return False
    if sys.stdin is None:
        return True  # closed by the agent, which says nothing
    if isinstance(sys.stdin.buffer, Heard):
        return False  # it was asked before
    said = sys.stdin.buffer.read()
    at = int(time.time())  # noqa: TID251  a hook has no other clock
    answer = _answer(b"\0".join([*words(args[0] if args else "", at), said]))
    if answer is None:
        sys.stdin = io.TextIOWrapper(Heard(said, at), "utf-8", "replace")
        return False
    sys.stdout.buffer.write(answer)
    sys.stdout.buffer.flush()
    return True


def words(named: str, at: int) -> list[bytes]:
    """What keeper and hook must agree about, how the agent named the hook, and when, in Unix
    seconds."""
    said = [__version__, *(os.environ.get(name, "") for name in VARIABLES), named, str(at)]
    return [os.fsencode(word) for word in said]


def _answer(asking: bytes) -> bytes | None:
    """What a keeper has to say; None: the hook is to do it itself."""
    home = os.path.expanduser("~")
    if not os.path.isabs(home) or not hasattr(_socket, "AF_UNIX"):
        return None
    socket = f"{home}/{SOCKET}"
    ends = time.monotonic() + ANSWER_S
    while time.monotonic() < ends:
        answer = _asked(socket, asking, ends)
        if answer is not None:
            return answer
        try:
            if _leave_keeper(os.path.dirname(socket)):
                return None
        except OSError:
            return None  # nowhere to leave one
        time.sleep(_PAUSE_S)
    return None


def _asked(socket: str, asking: bytes, ends: float) -> bytes | None:
    """None: there is no keeper, or it does not do it, or not until `ends` (of `monotonic`)."""
    keeper = _socket.socket(_socket.AF_UNIX, _socket.SOCK_STREAM)
    try:
        keeper.settimeout(_left(ends))
        keeper.connect(socket)
        keeper.settimeout(_left(ends))
        keeper.sendall(asking)
        keeper.shutdown(_socket.SHUT_WR)
        answer = b""
        keeper.settimeout(_left(ends))
        while part := keeper.recv(65_536):
            answer += part
            keeper.settimeout(_left(ends))
    except OSError:
        return None
    finally:
        keeper.close()
    return answer[1:] if answer.startswith(b"+") else None


def _left(ends: float) -> float:
    return max(0.0, ends - time.monotonic())


def _leave_keeper(folder: str) -> bool:
    """Start a keeper with its lock, which it inherits, so that it is never free in between; False:
    another process has that lock. Raises OSError."""
    import fcntl

    os.makedirs(folder, 0o700, exist_ok=True)
    lock = os.open(f"{folder}/{LOCK}", os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600)
    try:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        os.ftruncate(lock, 0)  # the number of the process that had it before
        _start_keeper(lock)
        return True
    finally:
        os.close(lock)


def _start_keeper(lock: int) -> None:
    """It outlives the agent, holds none of its files, and runs none that lies in its folder."""
    import subprocess

    subprocess.Popen(  # noqa: S603  ourselves
        [sys.executable, "-P", "-m", "relay", "hook", "keep", "--lock", str(lock)],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        cwd=os.path.expanduser("~"),
        start_new_session=True,
        pass_fds=(lock,),
    )
