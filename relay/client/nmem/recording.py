"""Where the hooks of a user are recorded, and what is said when that fails. MEMORY.md M-13."""

from __future__ import annotations

import os
from contextlib import suppress
from typing import TYPE_CHECKING, Final

from relay.client.nmem.cipher import cache_key
from relay.client.nmem.database import Database, beside
from relay.client.nmem.hooks import take_hook
from relay.client.nmem.settings import find_nmem_settings
from relay.errors import RookeryError
from relay.hook import SOCKET

if TYPE_CHECKING:
    from pathlib import Path

    from relay.client.nmem.hooks import Told

_BUSY_S: Final = 1.0
"""A hook is done within two seconds, whatever else uses the cache."""
_MOST_LOG: Final = 1_000_000
"""Bytes; the log begins anew then, and the one before is kept."""


class Hooks:
    """Where a user's hooks are recorded: settings and cache, opened when they are needed."""

    def __init__(self, home: Path) -> None:
        """Raises ConfigFaults, UserError, CacheUnusable, OSError."""
        self.home = home
        _, self.settings = find_nmem_settings(home)
        key = cache_key(os.environ, self.settings.key_file, self.settings.data / "nmem.key")
        self.database = Database(self.settings.db, key, busy_s=_BUSY_S)
        self._secrets = self.settings.secret_filter()

    def take(self, said: bytes, named: str, now: int) -> Told:
        """Raises Invalid, CacheUnusable, OSError."""
        return take_hook(
            self.database,
            said.decode(errors="replace"),
            named or None,
            now,
            self.home,
            self._secrets,
            self.settings.group,
        )


def take_alone(home: Path, said: bytes, named: str, now: int) -> str:
    """Record one hook without a keeper; what the agent is told. `now`: Unix seconds. Never raises:
    what went wrong is a line in the log."""
    answer = ""
    try:
        hooks = Hooks(home)
        try:
            answer = hooks.take(said, named, now).answer
        finally:
            hooks.database.close()
    except Exception as error:  # noqa: BLE001  an agent is never stopped by its hooks
        log(home, named, error, now)
    return answer


def log(home: Path, named: str, error: BaseException, now: int) -> None:
    """One line about what went wrong, without a word of what was said."""
    path = log_of(home)
    why = str(error) if isinstance(error, (RookeryError, OSError)) else ""
    line = f"{now} {named or '-'} {type(error).__name__}: {why}".replace("\n", " ")
    with suppress(OSError):
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        with suppress(FileNotFoundError):
            if path.stat().st_size > _MOST_LOG:
                path.replace(beside(path, ".1"))
        file = os.open(path, os.O_CREAT | os.O_APPEND | os.O_WRONLY | os.O_CLOEXEC, 0o600)
        try:
            os.write(file, line.encode(errors="replace") + b"\n")
        finally:
            os.close(file)


def log_of(home: Path) -> Path:
    return (home / SOCKET).with_name("hook.log")
