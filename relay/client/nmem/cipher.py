"""SQLCipher, if installed, and the key of the cache (M-09)."""

from __future__ import annotations

import os
import re
import secrets
import sqlite3
from contextlib import suppress
from dataclasses import dataclass
from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

from relay.errors import UserError
from relay.files import MAX_KEY_FILE, content_of, make_private

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

VARIABLE: Final = "NMEM_KEY"
_RAW: Final = re.compile(r"[0-9a-fA-F]{64}")
_PLAIN_HEADER: Final = b"SQLite format 3\0"


@dataclass(frozen=True, slots=True)
class CacheKey:
    """64 hex characters are the key itself; other text is a passphrase, as in nmem, whose
    derivation takes a quarter of a second per opening."""

    text: str

    @property
    def pragma(self) -> str:
        if _RAW.fullmatch(self.text):
            return f"PRAGMA key = \"x'{self.text}'\""
        quoted = self.text.replace("'", "''")
        return f"PRAGMA key = '{quoted}'"

    def __repr__(self) -> str:
        return "CacheKey(…)"


def cipher_module() -> Any:
    """The SQLCipher module; None if it is not installed."""
    try:
        return import_module("sqlcipher3.dbapi2")
    except ImportError:
        return None


def database_errors() -> tuple[type[Exception], ...]:
    """Error classes of both modules, which have no common base."""
    cipher = cipher_module()
    return (
        (sqlite3.DatabaseError,)
        if cipher is None
        else (sqlite3.DatabaseError, cipher.DatabaseError)
    )


def is_encrypted(path: Path) -> bool | None:
    """Whether the file is encrypted; None: missing or empty."""
    try:
        with path.open("rb") as file:
            header = file.read(len(_PLAIN_HEADER))
    except FileNotFoundError:
        return None
    return header != _PLAIN_HEADER if header else None


def cache_key(environ: Mapping[str, str], key_file: Path | None, own_file: Path) -> CacheKey | None:
    """NMEM_KEY, else the configured key file, else a key file of our own, created if missing.

    None: a new key would be unused without SQLCipher. Raises UserError.
    """
    if environ.get(VARIABLE):
        return CacheKey(environ[VARIABLE])
    if key_file is not None:
        return _key_in(key_file)
    if cipher_module() is None and not own_file.exists():
        return None
    if not own_file.exists():
        _make_key(own_file)
    return _key_in(own_file)


def _make_key(path: Path) -> None:
    """Created atomically: if two hooks are first at the same time, one key wins."""
    make_private(path.parent)
    aside = path.with_name(f".{path.name}.{secrets.token_hex(8)}")
    file = os.open(aside, os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_CLOEXEC, 0o600)
    try:
        with os.fdopen(file, "w", encoding="ascii") as opened:
            opened.write(f"{secrets.token_hex(32)}\n")
        with suppress(FileExistsError):
            os.link(aside, path)
    finally:
        aside.unlink()


def _key_in(path: Path) -> CacheKey:
    try:
        text = content_of(path, MAX_KEY_FILE).decode().strip()
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"cannot read the key of the nmem cache in {path}: {error}") from error
    if not text:
        raise UserError(f"the key file of the nmem cache is empty: {path}")
    return CacheKey(text)
