"""Data folders whose events are in PostgreSQL (`[storage] url`)."""

from __future__ import annotations

import logging
import stat
from typing import TYPE_CHECKING

from relay.config import load_config
from relay.errors import ConfigFaults, UserError
from relay.files import MAX_KEY_FILE, content_of

if TYPE_CHECKING:
    from pathlib import Path

_log = logging.getLogger("rookery")


def database_of(folder: Path) -> str | None:
    """The database of the folder's events; None: they are in a file, or settings are faulty."""
    try:
        return load_config(folder / "rookery.toml").storage.url
    except ConfigFaults:
        return None


def has_store(folder: Path) -> bool:
    return (folder / "rookery.db").is_file() or database_of(folder) is not None


def refuse_database(folder: Path, cure: str) -> None:
    """Refuse a command that works on the SQLite file. Raises UserError."""
    if database_of(folder) is not None:
        raise UserError(f"the events of {folder} are in PostgreSQL: {cure}")


def password_in(file: Path | None) -> str | None:
    """The password in the file of `[storage] password_file`. Raises UserError."""
    if file is None:
        return None
    try:
        text = content_of(file, MAX_KEY_FILE).decode()
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "is not UTF-8 text"
        raise UserError(f"[storage] password_file: {file}: {reason}") from None
    if stat.S_IMODE(file.stat().st_mode) & 0o077:
        _log.warning("%s is readable by other users: run chmod 600 %s", file, file)
    return text.strip()
