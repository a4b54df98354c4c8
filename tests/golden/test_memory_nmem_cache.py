"""memory/nmem.json, played in the cache: its tables, what rebuilds it, what an agent is told, what
leaves it.
"""

from __future__ import annotations

import re
import sqlite3
from typing import TYPE_CHECKING, Any

import pytest

from relay.client.nmem.apply import put_all
from relay.client.nmem.database import Database
from relay.client.nmem.queries import context_of
from relay.client.nmem.removal import sweep
from relay.memory.nmem.ranking import Row, blended, safe_query
from relay.memory.nmem.records import (
    Observation,
    Pin,
    Session,
    observation_draft,
    pin_draft,
    session_draft,
)
from relay.memory.nmem.summary import Summary
from relay.nostr.event import event_from
from relay.nostr.keys import SecretKey
from tests.golden import document

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

VECTORS = document("memory/nmem.json")
EVENTS = {name: event_from(fields) for name, fields in VECTORS["events"].items()}
AGENT = VECTORS["keys"]["agent"]["pubkey"]
AGENT_KEY = SecretKey.parse(VECTORS["keys"]["agent"]["nsec"])
DAY = 86_400
NOW = VECTORS["now"]
SCHEMA = VECTORS["schema"]


@pytest.fixture
def database(tmp_path: Path) -> Iterator[Database]:
    made = Database(tmp_path / "nmem.db")
    yield made
    made.close()


def statement_of(db: Any, name: str) -> str:
    (sql,) = db.execute("SELECT sql FROM sqlite_master WHERE name = ?", (name,)).fetchone()
    return " ".join(sql.split())


def own_names(db: Any, kind: str) -> set[str]:
    rows = db.execute("SELECT name FROM sqlite_master WHERE type = ?", (kind,))
    return {
        name
        for (name,) in rows
        if not name.startswith(("_rk_", "sqlite_")) and not re.search(r"_fts_[a-z]+$", name)
    }


@pytest.mark.proves("M-08")
def test_the_tables_are_those_of_the_document_to_the_letter(database: Database) -> None:
    with database.reading() as db:
        assert own_names(db, "table") == {*SCHEMA["tables"], *SCHEMA["fts"]}
        for table, columns in SCHEMA["tables"].items():
            written = f"CREATE TABLE {table} ( {', '.join(columns)} )"
            assert statement_of(db, table) == written


@pytest.mark.proves("M-08")
def test_the_indices_are_those_of_the_document(database: Database) -> None:
    with database.reading() as db:
        assert own_names(db, "index") == set(SCHEMA["indices"])
        for name, on in SCHEMA["indices"].items():
            assert statement_of(db, name) == f"CREATE INDEX {name} ON {on}"


@pytest.mark.proves("M-08")
def test_full_text_is_kept_by_triggers_in_external_tables(database: Database) -> None:
    with database.reading() as db:
        for name, events in SCHEMA["fts"].items():
            table = name.removesuffix("_fts")
            options = SCHEMA["fts_options"].replace("<table>", table)
            assert statement_of(db, name) == (
                f"CREATE VIRTUAL TABLE {name} USING fts5( content, {options} )"
            )
            triggers = db.execute(
                "SELECT sql FROM sqlite_master WHERE type = 'trigger' AND tbl_name = ?", (table,)
            ).fetchall()
            found = [re.search(r"AFTER (\w+) ON", sql) for (sql,) in triggers]
            assert sorted(each[1].lower() for each in found if each) == sorted(events)


@pytest.mark.proves("M-08")
def test_the_version_and_the_pragmas_are_those_of_the_document(database: Database) -> None:
    with database.reading() as db:
        (version,) = db.execute("PRAGMA user_version").fetchone()
        (journal,) = db.execute("PRAGMA journal_mode").fetchone()
        (synchronous,) = db.execute("PRAGMA synchronous").fetchone()
        (foreign_keys,) = db.execute("PRAGMA foreign_keys").fetchone()
    assert version == SCHEMA["user_version"]
    assert (journal, synchronous, foreign_keys) == ("wal", 1, 1)


@pytest.mark.proves("M-28")
def test_the_records_come_to_the_context_of_the_vectors(database: Database) -> None:
    case = VECTORS["context"]
    names = ("prompt", "file_read", "git_commit", "session_closed", "pin")
    put_all(database, [EVENTS[name] for name in names], AGENT, frozenset())
    with database.reading() as db:
        numbers = dict(db.execute("SELECT obs_type, id FROM observations").fetchall())
        assert numbers == {"file_read": 1, "git_commit": 2}
        assert context_of(db, case["project"], case["now"]) == case["text"]
        assert context_of(db, "another", case["now"]) != case["text"]


@pytest.mark.proves("M-03", "M-10")
def test_a_record_told_twice_is_one_row(database: Database) -> None:
    case = VECTORS["repeat"]
    twice = [event_from(case["event"]), event_from(case["again"])]
    assert put_all(database, twice, AGENT, frozenset()) == 1
    assert put_all(database, twice, AGENT, frozenset()) == 0


@pytest.mark.proves("M-26")
@pytest.mark.parametrize("case", VECTORS["fts_sanitise"], ids=lambda case: str(case["input"]))
def test_whatever_is_asked_is_no_fault_of_the_search(
    database: Database, case: dict[str, Any]
) -> None:
    query = safe_query(case["input"])
    if query is not None:
        with database.reading() as db:
            asked = "SELECT rowid FROM observations_fts WHERE observations_fts MATCH ?"
            assert db.execute(asked, (query,)).fetchall() == []


@pytest.mark.proves("M-26")
def test_the_order_of_the_vectors_is_that_of_the_blend() -> None:
    rows = VECTORS["blended"]["rows"]
    found = [
        (Row(row["id"], NOW - row["age_days"] * 86_400, row["obs_type"], "", ""), row["raw_rank"])
        for row in rows
    ]
    assert [row.id for row in blended(found, NOW)] == VECTORS["blended"]["order"]


def test_another_program_reads_the_file_as_a_plain_database(
    database: Database, tmp_path: Path
) -> None:
    put_all(database, [EVENTS["prompt"], EVENTS["file_read"]], AGENT, frozenset())
    other = sqlite3.connect(tmp_path / "nmem.db")
    try:
        assert other.execute(
            "SELECT prompts.content FROM prompts JOIN observations o ON o.prompt_id = prompts.id"
        ).fetchall() == [("please add dedupe",)]
    finally:
        other.close()


@pytest.mark.proves("M-25")
@pytest.mark.parametrize(
    "case", VECTORS["retention"], ids=lambda case: " ".join(str(value) for value in case.values())
)
def test_what_is_old_summarised_and_unpinned_leaves(
    database: Database, case: dict[str, Any]
) -> None:
    at = NOW - case["age_days"] * DAY
    told = Observation("s", at, case["obs_type"], "Stop", "a text")
    observed = AGENT_KEY.sign(*observation_draft(told, "rook"))
    summary = Summary("tea") if case["session_summarised"] else None
    drafts = [session_draft(Session("s", "rook", at, at + 9, summary=summary))]
    drafts += [pin_draft(Pin(observed.id, is_pinned=True, at=at))] if case["pinned"] else []
    stored = [observed, *(AGENT_KEY.sign(*draft) for draft in drafts)]
    assert put_all(database, stored, AGENT, frozenset()) == len(stored)
    assert sweep(database, NOW).observations == case["swept"]
