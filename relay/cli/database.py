"""Where the events of a data folder are: in its file, or in PostgreSQL (`[storage] url`)."""

from __future__ import annotations

import logging
import os
import stat
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Final
from urllib.parse import parse_qs, urlsplit

from relay.cli.findings import error
from relay.config import load_config
from relay.errors import ConfigFaults, UserError, how_to_install
from relay.files import MAX_KEY_FILE, content_of
from relay.memory.fence import shell_word

if TYPE_CHECKING:
    from relay.cli.findings import Finding

_log = logging.getLogger("rookery")

_OF_A_STORE: Final = ("search.db", "day.jsonl")
"""Files that are made when a store was opened, and by nothing else: `init` and `restore` make none
of them, and a start that failed before has none."""
_WITH_PASSWORDS: Final = frozenset({"passfile", "service", "servicefile"})
"""Parameters of a database's URL that name a file with passwords, or an entry of one."""


def check_driver() -> None:
    """Raises UserError if the package for PostgreSQL is not installed."""
    if find_spec("asyncpg") is None:
        raise UserError(
            f"PostgreSQL needs a package that is not installed: {how_to_install('postgres')}"
        )


def database_of(folder: Path) -> str | None:
    """The database of the folder's events; None: they are in a file, or settings are faulty."""
    try:
        return load_config(folder / "rookery.toml").storage.url
    except ConfigFaults:
        return None


def has_store(folder: Path) -> bool:
    return (folder / "rookery.db").is_file() or database_of(folder) is not None


def store_fault(folder: Path) -> Finding | None:
    """Set when the store must not be opened as it is."""
    return _lost_store(folder) or _linked_store(folder)


def _lost_store(folder: Path) -> Finding | None:
    """Set when the folder had a store whose file is missing or empty: opened as it is, it would be
    served as a store without events, members, bans and tombstones."""
    store = folder / "rookery.db"
    is_there = store.exists()
    if is_there and store.stat().st_size > 1:  # SQLite takes one byte for an empty store, too
        return None
    left = " and ".join(name for name in _OF_A_STORE if (folder / name).exists())
    if not left or database_of(folder) is not None:
        return None
    return error(
        f"{store} is {'empty' if is_there else 'missing'}, though the relay has had one:"
        f" {left} {'were' if ' ' in left else 'was'} made beside it",
        "put it back, or restore a backup with `rookery restore FILE DIR`; if the events are in"
        f" PostgreSQL, set [storage] url; for a new, empty store remove {left}",
    )


def _linked_store(folder: Path) -> Finding | None:
    """Set when a file of the store is a symbolic link: SQLite keeps the log beside the target, so
    that its size and damage in it are not seen, and `compact` would write over the link and leave
    the target as it was."""
    for file in (folder / "rookery.db", folder / "search.db"):
        if file.is_symlink():
            target = file.resolve()
            return error(
                f"{file} is a symbolic link to {target}",
                f"stop the relay, move {target} over the link, and {target}-wal, if there is one,"
                f" to {file}-wal; to have the events on another disk, move the whole folder there:"
                f" {folder} may be a link",
            )
    return None


def second_store(folder: Path) -> Finding | None:
    """Set when there is a file of events beside the database of `[storage] url`."""
    store = folder / "rookery.db"
    if database_of(folder) is None or not store.exists():
        return None
    return error(
        f"{store} has events, and [storage] url names a database",
        "run the `rookery move` again that was interrupted; to move these events there, remove"
        f" [storage] url, then `rookery move --from {shell_word(folder)} --to URL`",
    )


def refuse_store_fault(folder: Path) -> None:
    """Raises UserError."""
    fault = store_fault(folder)
    if fault is not None:
        raise UserError(f"{fault.text}: {fault.cure}")


def refuse_database(folder: Path, cure: str) -> None:
    """Refuse a command that works on the SQLite file. Raises UserError."""
    if database_of(folder) is not None:
        raise UserError(f"the events of {folder} are in PostgreSQL: {cure}")


def refuse_password_from_elsewhere(folder: Path) -> None:
    """For `./data` of a folder that may be a cloned repository: its settings name a server, which
    would get any small file of the user's as a password. Raises UserError."""
    try:
        storage = load_config(folder / "rookery.toml").storage
    except (OSError, ConfigFaults):
        return  # whoever needs the settings reports it
    file, home = storage.password_file, os.path.realpath(folder)
    queries = [urlsplit(url).query for url in (storage.url, storage.replica) if url is not None]
    if (file is not None and not Path(os.path.realpath(file)).is_relative_to(home)) or any(
        _WITH_PASSWORDS & parse_qs(query).keys() for query in queries
    ):
        raise UserError(
            f"{folder}/rookery.toml takes the password of its database from outside of the folder:"
            f" if it is yours, name it with --data {shell_word(folder)}"
        )


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
        _log.warning("%s is readable by other users: run chmod 600 %s", file, shell_word(file))
    return text.strip()
