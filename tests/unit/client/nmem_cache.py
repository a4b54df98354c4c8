"""Caches of nmem for tests: what agents did, and what becomes of it without a relay."""

from __future__ import annotations

import json
import sqlite3
from contextlib import closing, contextmanager
from typing import TYPE_CHECKING, Any

import orjson

from relay.client.nmem.cipher import cipher_module
from relay.client.nmem.database import Database, statements
from relay.client.nmem.hooks import record_hook
from relay.client.nmem.sync import record_answers, waiting_after
from relay.memory.secrets import SecretFilter
from tests.cast import robot

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from relay.client.nmem.cipher import CacheKey
    from relay.nostr.event import Event
    from relay.nostr.keys import SecretKey

NOW = 1_700_000_000
DAY = 86_400
SECRETS = SecretFilter()
TABLES = ("sessions", "prompts", "observations")


@contextmanager
def cache(path: Path, key: CacheKey | None = None) -> Iterator[Database]:
    with closing(Database(path, key)) as database:
        yield database


def told(database: Database, event: str, at: int = NOW, session: str = "s", **said: object) -> str:
    """What an agent is told after this hook."""
    hook = {"session_id": session, "cwd": "/w/rook", "hook_event_name": event, **said}
    home = database.path.parent
    return record_hook(database, json.dumps(hook), None, at, home, SECRETS).answer


def a_session(database: Database, session: str = "s", at: int = NOW, edits: int = 3) -> None:
    """One of a prompt and some edits, each a second after the other, that ended."""
    told(database, "SessionStart", at, session, source="startup")
    told(database, "UserPromptSubmit", at + 1, session, prompt=f"work on {session}")
    for number in range(edits):
        told(
            database,
            "PostToolUse",
            at + 2 + number,
            session,
            tool_name="Edit",
            tool_input={"file_path": f"/w/{session}/{number}.py"},
        )
    told(database, "Stop", at + 2 + edits, session)


def an_original(path: Path, cipher_key: CacheKey | None = None) -> None:
    """As nmem itself wrote it, in its second migration; with triggers of other names."""
    module: Any = sqlite3 if cipher_key is None else cipher_module()
    other = module.connect(str(path))
    if cipher_key is not None:
        other.execute(cipher_key.pragma)
    other.execute("PRAGMA journal_mode = WAL")
    for statement in statements():
        if "_rk_" not in statement:
            other.execute(statement.replace("observations_fts_insert", "observations_ai"))
    other.executescript(
        """
        INSERT INTO sessions VALUES ('s', 'rook', 100, 200, '[["command",1]]', NULL);
        INSERT INTO prompts VALUES (7, 's', 110, 'user', 'why, password=hunter2');
        INSERT INTO prompts VALUES (8, 's', 111, 'nobody', 'unreadable');
        INSERT INTO observations VALUES (41, 's', 7, 120, 'command', 'PostToolUse', 'Bash', NULL,
            'make tea', '{"failed": true}', 1);
        INSERT INTO observations VALUES (45, 's', NULL, 130, 'file_edit', 'PostToolUse', 'Edit',
            '/w/a', '/w/a', NULL, 0);
        INSERT INTO _cursor VALUES ('s', 12);
        PRAGMA user_version = 2;
        """
    )
    other.commit()
    other.close()


def sent(database: Database, key: SecretKey = robot) -> list[Event]:
    """What waited, as events that a relay has taken."""
    waiting = waiting_after(database, 0, -1)
    done = [(each, key.sign(*each.draft)) for each in waiting]
    record_answers(database, done, [])
    return [event for _, event in done]


def rows(database: Database, table: str) -> list[tuple[Any, ...]]:
    with database.reading() as db:
        return list(db.execute(f"SELECT * FROM {table} ORDER BY 1").fetchall())


def fetch_all(database: Database) -> dict[str, list[tuple[Any, ...]]]:
    """Every column of the document's tables but `_cursor`, and what a search finds."""
    found = {table: rows(database, table) for table in TABLES}
    with database.reading() as db:
        for table in TABLES[1:]:
            asked = f"SELECT rowid FROM {table}_fts WHERE {table}_fts MATCH 'py OR work' ORDER BY 1"
            found[f"{table}_fts"] = list(db.execute(asked).fetchall())
    return found


def query(database: Database, sql: str, *values: object) -> list[tuple[Any, ...]]:
    with database.transaction() as db:
        return list(db.execute(sql, values).fetchall())


def summary_of(text: str | None) -> Any:
    return None if text is None else orjson.loads(text)
