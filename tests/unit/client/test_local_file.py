"""relay/client/local_file.py: client files are private to their owner."""

from __future__ import annotations

import sqlite3
import stat
from contextlib import closing
from typing import TYPE_CHECKING

import pytest

from relay.client.local_file import LocalFile

if TYPE_CHECKING:
    from pathlib import Path

SCHEMA = "CREATE TABLE kept (text TEXT)"


def test_a_file_readable_by_others_is_made_private(tmp_path: Path) -> None:
    path = tmp_path / "new" / "kept"
    for _ in range(2):
        LocalFile(path, SCHEMA, 1).close()
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
        path.chmod(0o644)
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700


def test_a_symbolic_link_is_refused(tmp_path: Path) -> None:
    others, nothing = tmp_path / "others.db", tmp_path / "nothing"
    with closing(sqlite3.connect(others)) as file, file:
        file.execute("CREATE TABLE theirs (text TEXT)")
    for target in (others, nothing):
        path = tmp_path / f"to-{target.name}"
        path.symlink_to(target)
        with pytest.raises(OSError, match="symbolic links"):
            LocalFile(path, SCHEMA, 1)
    assert not nothing.exists()
    with closing(sqlite3.connect(others)) as file:
        assert file.execute("SELECT name FROM sqlite_master").fetchall() == [("theirs",)]
