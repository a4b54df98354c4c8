"""Conditions read no more of a row than they need."""

from __future__ import annotations

import sqlite3

import pytest

from relay.storage.sqlite.sql.conditions import MAX_PARAMETERS, starts_with_any


@pytest.fixture
def rows() -> sqlite3.Connection:
    db = sqlite3.connect(":memory:")
    db.execute("CREATE TABLE events (seq INTEGER PRIMARY KEY, d TEXT)")
    texts = ["a:1", "a\0:1", "ä:1", "b:", "", "p16:x", "p3", "p3:", "P3:"]
    db.executemany("INSERT INTO events (d) VALUES (?)", [(text,) for text in texts])
    return db


def found(db: sqlite3.Connection, prefixes: list[str]) -> list[str]:
    sql, values = starts_with_any(prefixes)
    return [d for (d,) in db.execute(f"SELECT d FROM events AS e WHERE {sql} ORDER BY seq", values)]


def test_many_prefixes_match_the_same_rows_as_few(rows: sqlite3.Connection) -> None:
    others = [f"other{number}:" for number in range(MAX_PARAMETERS)]
    for some in (["a:"], ["a\0:"], ["ä:", "b:"], ["p3:", "p16:"]):
        expected = [d for (d,) in rows.execute("SELECT d FROM events") if d.startswith(tuple(some))]
        assert found(rows, some) == found(rows, some + others) == expected


def test_a_row_is_converted_once_for_all_prefixes(rows: sqlite3.Connection) -> None:
    """A stored `d` of 480 kB was converted for each of 256 prefixes: 60 ms of the loop."""
    converted: list[int] = []

    def counted(value: bytes | None) -> str:
        converted.append(len(value or b""))
        return (value or b"").hex().upper()

    rows.create_function("hex", 1, counted)
    rows.execute("INSERT INTO events (d) VALUES (?)", ("x" * 100_000,))
    assert not found(rows, [f"other{number}:" for number in range(256)])
    assert len(converted) == rows.execute("SELECT count(*) FROM events").fetchone()[0]
    assert max(converted) == len("other255:")
