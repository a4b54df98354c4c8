"""Stores of released versions, opened by this one; and a store of a newer one, refused.

`tests/contract/schema_N.sql` is the dump of what a version with schema N wrote: the folder of
`tests.harness.stocked_folder`, by a relay with the key RELAY.
"""

from __future__ import annotations

import asyncio
import re
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Final

import pytest

from relay.cli import archive
from relay.storage.sqlite.opening import SCHEMA_VERSION
from tests import cast
from tests.harness.stocked_folder import exported, findings, indexed, rookery

if TYPE_CHECKING:
    from collections.abc import Iterable

pytestmark = pytest.mark.slow

KEPT: Final = Path(__file__).parents[2] / "contract"
RELAY: Final = cast.person("the relay of a kept store")
SCHEMAS: Final = [4, 7, 8, 9, 10, 11, 12, 13, 14, 15]
"""4 is that of 0.1.0. Earlier ones were never released."""


def folder_of(schema: int, folder: Path) -> Path:
    printed, code = rookery("init", folder, "--owner", cast.owner.pubkey, "--preset", "open")
    assert code == 0, printed
    (folder / "relay.key").write_text(f"{RELAY.nsec}\n")
    with closing(sqlite3.connect(folder / "rookery.db")) as db:
        db.executescript((KEPT / f"schema_{schema}.sql").read_text())
    return folder


def raws(folder: Path) -> list[str]:
    with closing(sqlite3.connect(folder / "rookery.db")) as db:
        return [row[0].decode() for row in db.execute("SELECT raw FROM events ORDER BY seq")]


def test_a_store_of_this_schema_is_kept_for_the_versions_to_come() -> None:
    assert max(SCHEMAS) == SCHEMA_VERSION
    for schema in SCHEMAS:
        assert f"user_version = {schema};" in (KEPT / f"schema_{schema}.sql").read_text()


@pytest.mark.parametrize("schema", SCHEMAS)
def test_a_store_of_a_released_version_is_upgraded_after_a_backup(
    tmp_path: Path, schema: int
) -> None:
    folder = folder_of(schema, tmp_path / "data")
    before = raws(folder)
    assert len(before) == 24
    asyncio.run(indexed(folder))
    assert findings(folder) == []
    assert exported(folder).splitlines() == before
    backup = folder / "before-upgrade.tar.gz"
    assert backup.exists() == (schema < SCHEMA_VERSION)
    if backup.exists():
        assert archive.manifest_of(backup).schema == schema
        printed, code = rookery("restore", backup, tmp_path / "back")
        assert code == 0, printed
        assert raws(tmp_path / "back") == before


@pytest.mark.parametrize(
    "command", [("serve", "--check"), ("serve", "--port", "0"), ("export",), ("backup",)]
)
def test_a_store_of_a_newer_version_is_refused_and_left_as_it_is(
    tmp_path: Path, command: Iterable[str]
) -> None:
    folder = folder_of(SCHEMA_VERSION, tmp_path / "data")
    with closing(sqlite3.connect(folder / "rookery.db")) as db:
        db.execute(f"PRAGMA user_version = {SCHEMA_VERSION + 1}")
    before = (folder / "rookery.db").read_bytes()
    name, *options = command
    if name == "backup":
        options.append(str(tmp_path / "b.tar.gz"))
    printed, code = rookery(name, *options, "--data", folder)
    assert code == 1
    assert re.search(f"has schema {SCHEMA_VERSION + 1}, this Rookery knows up to", printed), printed
    assert (folder / "rookery.db").read_bytes() == before
