"""What `rookery verify` finds wrong with the partitions of a store that a test has written to, and
moving rows a transaction at a time."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from typing import TYPE_CHECKING
from unittest.mock import patch

from relay.lifecycle.versions import KeepRules
from relay.storage.sqlite import verifying
from relay.storage.sqlite.row_check import Rules
from relay.storage.sqlite.verifying import Check
from tests.contract.writing import group_of

if TYPE_CHECKING:
    from pathlib import Path

    from relay.storage.sqlite.store import SqliteStore
    from relay.storage.sqlite.verifying import Report

RULES = Rules("f" * 64, KeepRules(()), group_of, lambda _event: None, "")
CHECKS = (Check.FILE, Check.COLUMNS, Check.GROUP, Check.TAGS, Check.SIZES, Check.PARTITION)
"""Tests sign nothing, and make groups without records."""


def report_of(path: Path) -> Report:
    with patch.object(verifying, "are_signed", lambda events: [True for _ in events]):
        return verifying.verify(path, RULES, 0, lambda _done, _all: None)


def faults(path: Path) -> list[str]:
    return [each.text for each in report_of(path).findings if each.check in CHECKS]


def partitions(path: Path) -> dict[str | None, dict[int, int]]:
    """Group → partition → number of its rows."""
    counted: dict[str | None, dict[int, int]] = {}
    with closing(sqlite3.connect(path)) as db:
        for group, partition, number in db.execute(
            "SELECT grp, partition, count(*) FROM events GROUP BY 1, 2"
        ):
            counted.setdefault(group, {})[partition] = number
    return counted


async def move_some(store: SqliteStore) -> bool:
    return await store._writing.run(store._writer.repartition)


async def move_all(store: SqliteStore) -> int:
    """How many transactions it takes."""
    number = 0
    while store._writer.has_moves:
        assert await move_some(store)
        number += 1
        assert number < 10_000
    return number


async def flush(store: SqliteStore) -> None:
    """All tags into the table."""
    while await store._writing.run(store._writer.flush_some):
        pass
