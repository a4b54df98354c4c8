"""Data folders whose events are in PostgreSQL (`[storage] url`)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from relay.config import load_config
from relay.errors import ConfigFaults, UserError

if TYPE_CHECKING:
    from pathlib import Path


def database_of(folder: Path) -> str | None:
    """Where the events of the folder are; None: in its file. Of settings with faults: None."""
    try:
        return load_config(folder / "rookery.toml").storage.url
    except ConfigFaults:
        return None


def has_store(folder: Path) -> bool:
    return (folder / "rookery.db").is_file() or database_of(folder) is not None


def refuse_database(folder: Path, cure: str) -> None:
    """For what works on the file of SQLite. Raises UserError."""
    if database_of(folder) is not None:
        raise UserError(f"the events of {folder} are in PostgreSQL: {cure}")
