"""`rookery hook EVENT`: hands the hook to a background process, the keeper, as fast as possible.

A coding agent waits for its hooks, and importing the modules that record one takes too long. So a
keeper process (relay.client.nmem.keeper) does the work for all hooks. When no keeper runs, the hook
that gets the keeper's lock starts one, which inherits the lock, and does its own work itself; other
hooks wait for that keeper. This module imports nothing of Rookery and little of the standard
library: `socket`, a wrapper of `_socket`, would double the time.

Protocol. Request: words separated by NUL, the last one is the stdin of the hook; then end of file.
Reply: `+` and the text to print; anything else: the hook must do the work itself.

The home folder may be another user's, or open to all (`sudo -E`, HOME=/tmp): what that user has put
there gets neither the request, which holds keys, nor a lock. Then the hook does the work itself, or
nothing (`others_in` of relay.client.nmem.hook_recording).
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
"""Beside the socket: held by the keeper, or by the hook that is starting it."""
VARIABLES = ("ROOKERY_RELAY", "ROOKERY_KEY", "NMEM_KEY")
"""A keeper with other values refuses the request."""
ANSWER_S = 1.0
"""Then the hook does the work itself: both together take less than two seconds (M-13)."""
_MAX_ADDRESS = 100
"""As in relay.files, …"""
_CONTAINER_FILES = ("/.dockerenv", "/run/.containerenv")
"""… as are these."""
_PAUSE_S = 0.01
"""Between two attempts to connect to a keeper that is starting."""
_SUBCOMMANDS = ("install", "uninstall", "keep", "--help", "-h")


class HookInput(io.BytesIO):
    """Replaces stdin after it was read: can be read again."""

    def __init__(self, data: bytes, at: int) -> None:
        super().__init__(data)
        self.at = at
        """Unix seconds. Keeper and hook use the same time, so that a hook is recorded once."""


def ask_keeper(args: list[str]) -> bool:
    """True: the hook is done. False: the caller does the work; stdin is a `HookInput`."""
    if args and args[0] in _SUBCOMMANDS:
        return False
    if sys.stdin is None:
        return True  # closed by the agent: no input
    if isinstance(sys.stdin.buffer, HookInput):
        return False  # the keeper was asked before
    data = sys.stdin.buffer.read()
    at = int(time.time())  # noqa: TID251  a hook has no other clock
    reply = _reply(b"\0".join([*words(args[0] if args else "", at), data]))
    if reply is None:
        sys.stdin = io.TextIOWrapper(HookInput(data, at), "utf-8", "replace")
        return False
    if sys.stdout is not None:  # closed by the agent
        sys.stdout.buffer.write(reply)
        sys.stdout.buffer.flush()
    return True


def words(hook: str, at: int) -> list[bytes]:
    """Version and environment, which keeper and hook must share, the hook's name, and the time in
    Unix seconds."""
    parts = [__version__, *(os.environ.get(name, "") for name in VARIABLES), hook, str(at)]
    return [os.fsencode(part) for part in parts]


def is_home(folder: str) -> bool:
    """Whether the path leads to one folder from everywhere. `/proc/self/cwd` does not, nor does
    `/dev/fd/../cwd`: it would be the project's folder, with settings of somebody else."""
    parts = folder.split("/")
    prefixes = ("/".join(parts[:end]) for end in range(2, len(parts) + 1))
    return os.path.isabs(folder) and all(
        f"{os.path.realpath(prefix).lstrip('/')}/"[:5] != "proc/" for prefix in prefixes
    )


def _reply(request: bytes) -> bytes | None:
    """The reply of a keeper; None: the hook must do the work itself."""
    home = os.path.expanduser("~")
    if not is_home(home) or not hasattr(_socket, "AF_UNIX"):
        return None
    socket = f"{home}/{SOCKET}"
    deadline = time.monotonic() + ANSWER_S
    while time.monotonic() < deadline:
        reply = _ask(socket, request, deadline)
        if reply is not None:
            return reply
        try:
            if _start_keeper_if_free(os.path.dirname(socket)):
                return None
        except OSError:
            return None  # a keeper cannot be started here
        time.sleep(_PAUSE_S)
    return None


def _ask(socket: str, request: bytes, deadline: float) -> bytes | None:
    """None: no keeper, it refuses, or it does not reply before `deadline` (`time.monotonic`)."""
    keeper = _socket.socket(_socket.AF_UNIX, _socket.SOCK_STREAM)
    try:
        keeper.settimeout(_left(deadline))
        _connect(keeper, socket)
        _refuse_foreign(_user_of(keeper, socket))
        keeper.settimeout(_left(deadline))
        keeper.sendall(request)
        keeper.shutdown(_socket.SHUT_WR)
        reply = b""
        keeper.settimeout(_left(deadline))
        while part := keeper.recv(65_536):
            reply += part
            keeper.settimeout(_left(deadline))
    except OSError:
        return None
    finally:
        keeper.close()
    return reply[1:] if reply.startswith(b"+") else None


def _connect(keeper: _socket.socket, path: str) -> None:
    """Through an alias of the folder where the path is too long, as `relay.files.socket_address`.
    Raises OSError."""
    if len(os.fsencode(path)) <= _MAX_ADDRESS:
        keeper.connect(path)
        return
    folder = os.open(os.path.dirname(path), os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        keeper.connect(f"/proc/self/fd/{folder}/{os.path.basename(path)}")
    finally:
        os.close(folder)


def _user_of(keeper: _socket.socket, path: str) -> int:
    """Of the process that listens, or, where the system does not tell, of its socket."""
    if not hasattr(_socket, "SO_PEERCRED"):
        return os.lstat(path).st_uid
    about = keeper.getsockopt(_socket.SOL_SOCKET, _socket.SO_PEERCRED, 12)
    return int.from_bytes(about[4:8], sys.byteorder)


def _refuse_foreign(user: int) -> None:
    """As `relay.files`: root may do anything anyway. Raises PermissionError."""
    if user not in (0, os.geteuid()):
        raise PermissionError("of another user")


def _left(deadline: float) -> float:
    return max(0.0, deadline - time.monotonic())


def _start_keeper_if_free(folder: str) -> bool:
    """Start a keeper that inherits the lock. False: another process holds the lock. Raises
    OSError."""
    import fcntl

    above = os.path.dirname(folder)
    for each in (os.path.dirname(above), above, folder):
        _make_private(each)
        if not any(map(os.path.exists, _CONTAINER_FILES)):  # there they may be the host's
            _refuse_foreign(os.lstat(each).st_uid)
    _refuse_foreign(os.stat(folder).st_uid)
    flags = os.O_CREAT | os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW
    lock = os.open(f"{folder}/{LOCK}", flags, 0o600)
    try:
        _refuse_foreign(os.fstat(lock).st_uid)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        os.ftruncate(lock, 0)  # the process id of the previous holder
        _start_keeper(lock)
        return True
    finally:
        os.close(lock)


def _make_private(folder: str) -> None:
    """As `relay.files.make_private`: `makedirs` leaves the mode of parents to the umask."""
    if not os.path.isdir(folder):
        _make_private(os.path.dirname(folder))
        try:  # noqa: SIM105  what another import costs, a coding agent waits for
            os.mkdir(folder, 0o700)
        except FileExistsError:
            pass  # another hook was faster


def _start_keeper(lock: int) -> None:
    """Detached from the agent: no open files of it, and `-P`: no code from its folder."""
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
