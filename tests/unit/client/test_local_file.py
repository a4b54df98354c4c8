"""relay/client/local_file.py: client files are private to their owner."""

from __future__ import annotations

import sqlite3
import stat
from contextlib import closing
from typing import TYPE_CHECKING, Any

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


class BusyAtFirst:
    """A connection whose first transactions meet another program's, without waiting for it."""

    def __init__(self, connection: sqlite3.Connection, times: int) -> None:
        self._connection = connection
        self.left = times

    def execute(self, sql: str) -> sqlite3.Cursor:
        if sql == "BEGIN IMMEDIATE" and self.left:
            self.left -= 1
            error = sqlite3.OperationalError("database is locked")
            error.sqlite_errorcode = sqlite3.SQLITE_BUSY
            raise error
        return self._connection.execute(sql)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._connection, name)

    def __enter__(self) -> Any:
        return self._connection.__enter__()

    def __exit__(self, *error: Any) -> Any:
        return self._connection.__exit__(*error)


def test_a_transaction_waits_for_another_program_also_where_sqlite_does_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As while a file is made by three programs at once."""
    with closing(LocalFile(tmp_path / "kept", SCHEMA, 1)) as file:
        busy = BusyAtFirst(file._connection, 3)
        monkeypatch.setattr(file, "_connection", busy)
        with file.transaction() as connection:
            assert connection.execute("SELECT 1").fetchone() == (1,)
        assert busy.left == 0
        busy.left = 10**9
        monkeypatch.setattr("relay.client.local_file._BUSY_S", 0.0)
        with pytest.raises(OSError, match="database is locked"), file.transaction():
            pass
