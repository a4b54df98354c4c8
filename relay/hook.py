"""`rookery hook EVENT`, as quick as it can be: it tells the keeper.

A coding agent waits for its hooks, and to import what records one takes longer than it may wait. So
the first hook of a session does the work itself and leaves a process behind, the keeper
(relay.client.nmem.keeper), which does it for those that follow. This module imports nothing of ours
and little of Python: `socket` alone, which only wraps `_socket`, would double the time.

To the keeper: words apart by NUL, the last of them what the agent said; then the end of writing.
From it: `+` and what is to be printed; anything else means that it cannot do it.
"""

from __future__ import annotations

import _socket
import io
import os
import sys

from relay import __version__

SOCKET = ".local/share/rookery/hook.sock"
"""Below the home folder."""
VARIABLES = ("ROOKERY_RELAY", "ROOKERY_KEY", "NMEM_KEY")
"""A keeper that was started with others does not do."""
_ANSWER_S = 1.0
"""After which the hook does it itself: both together take less than two seconds (M-13)."""
_NO_HOOKS = ("install", "uninstall", "keep", "--help", "-h")


def is_done(args: list[str]) -> bool:
    """Whether the keeper has done it. If not, what stdin said can be read again."""
    if args and args[0] in _NO_HOOKS:
        return False
    if isinstance(sys.stdin.buffer, io.BytesIO):
        return False  # it was asked before
    said = sys.stdin.buffer.read()
    answer = _answer(args[0] if args else "", said)
    if answer is None:
        sys.stdin = io.TextIOWrapper(io.BytesIO(said), "utf-8", "replace")
        return False
    sys.stdout.buffer.write(answer)
    sys.stdout.buffer.flush()
    return True


def words(named: str) -> list[bytes]:
    """What keeper and hook must agree about, and how the agent named the hook."""
    said = [__version__, *(os.environ.get(name, "") for name in VARIABLES), named]
    return [os.fsencode(word) for word in said]


def _answer(named: str, said: bytes) -> bytes | None:
    """What the keeper has to say; None: there is none that does it."""
    home = os.environ.get("HOME")
    if not home or not hasattr(_socket, "AF_UNIX"):
        return None
    keeper = _socket.socket(_socket.AF_UNIX, _socket.SOCK_STREAM)
    try:
        keeper.settimeout(_ANSWER_S)
        keeper.connect(f"{home}/{SOCKET}")
        keeper.sendall(b"\0".join([*words(named), said]))
        keeper.shutdown(_socket.SHUT_WR)
        answer = b""
        while part := keeper.recv(65_536):
            answer += part
    except OSError:
        return None
    finally:
        keeper.close()
    return answer[1:] if answer.startswith(b"+") else None
