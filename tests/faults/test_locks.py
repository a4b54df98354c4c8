"""Locks of SQLite files: closing any descriptor of a file ends all locks of the process of it."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from contextlib import AsyncExitStack, closing
from typing import TYPE_CHECKING, Final

import pytest

from relay.client.local_file import LocalFile
from relay.client.nmem.adoption import Adoption
from relay.client.nmem.cipher import CacheKey
from relay.client.nmem.database import Database
from relay.memory.secrets import SecretFilter
from relay.storage.sqlite import checkpoints
from relay.storage.sqlite.copying import schema_of
from relay.storage.sqlite.group_flags import groups_without
from relay.storage.sqlite.store import SqliteStore
from tests.contract.writing import TERMS
from tests.faults.script import Script, policy
from tests.harness.relay_in_process import Home
from tests.unit.client.nmem_cache import an_original

if TYPE_CHECKING:
    import sqlite3
    from pathlib import Path

    from relay.client.nmem.import_db import Imported

pytestmark = pytest.mark.process

SHARED: Final = (0x40000002, 510)
"""Place and length of the lock of whoever has a database open (https://sqlite.org/fileformat2.html,
"The Lock-Byte Page")."""
OPEN: Final = (128, 1)
"""The same of a wal-index. Who gets it alone truncates the file."""
_TAKE: Final = """
import fcntl, sys
path, start, length = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
with open(path, "rb+") as file:
    try:
        fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB, length, start)
    except BlockingIOError:
        sys.exit(3)
"""


def is_locked(path: Path, part: tuple[int, int]) -> bool:
    """For another process: those of one's own do not count."""
    command = [sys.executable, "-c", _TAKE, str(path), *map(str, part)]
    code = subprocess.run(command, check=False).returncode
    assert code in {0, 3}
    return code == 3


async def test_a_look_at_the_store_of_this_process_ends_no_lock_of_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As the console's findings do. The next program truncated the wal-index of a running relay,
    which ended by SIGBUS."""
    monkeypatch.setattr(checkpoints, "_GATHER_S", 3600.0)  # nothing truncates the WAL
    path = tmp_path / "rookery.db"
    store = await SqliteStore.open(path, TERMS)
    async with AsyncExitStack() as stack:
        stack.push_async_callback(store.close)
        await Script(5).begin(await stack.enter_async_context(Home(store, policy())))
        assert (tmp_path / "rookery.db-wal").stat().st_size > 32
        for look in (lambda: schema_of(path), lambda: groups_without(path, frozenset())):
            await asyncio.to_thread(look)
            assert is_locked(tmp_path / "rookery.db-shm", OPEN)
            assert is_locked(path, SHARED)


def test_a_file_of_a_client_that_is_opened_twice_stays_locked(tmp_path: Path) -> None:
    """Another program that closed it took itself for the last, and deleted the log."""
    path = tmp_path / "file"
    schema = "CREATE TABLE texts (text TEXT) STRICT;"
    with closing(LocalFile(path, schema, 1)):
        with closing(LocalFile(path, schema, 1)):
            assert is_locked(path, SHARED)
        assert is_locked(path, SHARED)


@pytest.mark.parametrize("key", [None, CacheKey("ab" * 32)], ids=["plain", "encrypted"])
def test_a_cache_of_nmem_that_is_opened_twice_stays_locked(
    tmp_path: Path, key: CacheKey | None
) -> None:
    path = tmp_path / "nmem.db"
    with closing(Database(path, key)) as first:
        assert first.is_encrypted == (key is not None)
        with closing(Database(path, key)) as second:
            assert is_locked(path, SHARED)
            assert second.is_encrypted == first.is_encrypted
        assert is_locked(path, SHARED)


def test_the_copy_of_a_database_that_is_adopted_ends_no_lock_of_its_transaction(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """nmem's own hooks, which may still run, wrote in the middle of it: the file was damaged."""
    path = tmp_path / "nmem.db"
    an_original(path)
    was_locked: list[bool] = []
    as_cache = Adoption._as_cache

    def look(adoption: Adoption, connection: sqlite3.Connection) -> Imported:
        was_locked.append(is_locked(path, SHARED))
        return as_cache(adoption, connection)

    monkeypatch.setattr(Adoption, "_as_cache", look)
    with closing(Database(path, adopt=Adoption(SecretFilter()).adopt)):
        assert was_locked == [True]
