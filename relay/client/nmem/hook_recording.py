"""Opens settings and cache for hooks, and logs their failures (M-13)."""

from __future__ import annotations

import os
from contextlib import suppress
from typing import TYPE_CHECKING, Final

from relay.client.nmem.adoption import Adoption
from relay.client.nmem.apply import bind, bind_relay, drop_other_sources
from relay.client.nmem.cipher import cache_key
from relay.client.nmem.database import Database, beside
from relay.client.nmem.hooks import record_hook
from relay.client.nmem.settings import find_nmem_settings
from relay.client.settings import FILE, Actor, find_settings, named_key
from relay.errors import RookeryError, UserError, masked
from relay.files import make_private, own_file, place_of_others
from relay.hook import SOCKET
from relay.memory.fence import with_unseen

if TYPE_CHECKING:
    from pathlib import Path

    from relay.client.nmem.hooks import HookResult

_BUSY_S: Final = 1.0
"""SQLite busy timeout: a hook ends within two seconds."""
_MAX_LOG: Final = 1_000_000
"""Bytes; a larger log is rotated, keeping one old file."""


class Hooks:
    """Settings and cache of a user's hooks, opened on demand."""

    def __init__(self, home: Path) -> None:
        """Raises ConfigFaults, UserError, CacheUnusable, OSError."""
        self.home = home
        file, self.settings = find_nmem_settings(home)
        named = (file.key_file, file.agent_key_file)
        self._key_files = [path for path in named if path is not None and path.exists()]
        key = cache_key(os.environ, self.settings.key_file, self.settings.data / "nmem.key")
        self._secrets = self.settings.secret_filter()
        adoption = Adoption(self._secrets, self.settings.group)
        self.database = Database(self.settings.db, key, busy_s=_BUSY_S, adopt=adoption.adopt)
        try:
            self._bind()
            drop_other_sources(self.database, self.settings.sources)
        except BaseException:
            self.database.close()
            raise

    def _bind(self) -> None:
        """Before anything is recorded: the key of the cache signs and sends all that is in it.
        Without a key, it is recorded for the one that comes. Raises CacheUnusable, UserError."""
        try:
            found = find_settings(
                Actor.AGENT,
                relay=None,
                key_file=None,
                environ=os.environ,
                home=self.home,
                here=None,
            )
        except UserError:
            key = named_key(None, os.environ)
            if key is not None:
                bind(self.database, key.pubkey)
            return
        bind(self.database, found.key.pubkey)
        bind_relay(self.database, found.relay, found.file.relay)

    def is_in_place(self) -> bool:
        """Whether the cache's folder, and the key files of the settings, are still there."""
        return self.database.is_in_place() and all(path.exists() for path in self._key_files)

    def record(self, data: bytes, named: str, now: int) -> HookResult:
        """Raises Invalid, CacheUnusable, OSError."""
        return record_hook(
            self.database,
            data.decode(errors="replace"),
            named or None,
            now,
            self.home,
            self._secrets,
            self.settings.group,
        )


def others_in(home: Path) -> str:
    """What another user of the machine may have put where the hooks' settings, lock, log and socket
    are: nothing is read or written there. Empty: nothing."""
    return place_of_others(home / FILE, home) or place_of_others((home / SOCKET).parent, home)


def record_alone(home: Path, data: bytes, named: str, now: int) -> str:
    """Record one hook without a keeper; returns the context for the agent. `now`: Unix seconds.
    Never raises: errors are logged."""
    answer = ""
    try:
        hooks = Hooks(home)
        try:
            answer = hooks.record(data, named, now).answer
        finally:
            hooks.database.close()
    except Exception as error:  # noqa: BLE001  hooks must never stop an agent
        with suppress(OSError):
            make_private(log_of(home).parent)
        log(home, named, error, now)
    return answer


def log(home: Path, named: str, error: BaseException, now: int) -> None:
    """Log an error on one line, without any recorded text, if the folder of the log exists."""
    why = str(error) if isinstance(error, (RookeryError, OSError)) else ""
    note(home, named, f"{type(error).__name__}: {why}", now)


def note(home: Path, named: str, text: str, now: int) -> None:
    """As `log`, of what is no error."""
    path = log_of(home)
    line = f"{now} {named or '-'} {text}".replace("\n", " ")
    line = masked(with_unseen(line, lambda _: "�"))  # it may quote a relay
    with suppress(OSError):
        with suppress(FileNotFoundError):
            if path.stat().st_size > _MAX_LOG:
                path.replace(beside(path, ".1"))
        file = own_file(path, os.O_APPEND | os.O_NOFOLLOW)
        try:
            os.write(file, line.encode(errors="replace") + b"\n")
        finally:
            os.close(file)


def log_of(home: Path) -> Path:
    return (home / SOCKET).with_name("hook.log")
