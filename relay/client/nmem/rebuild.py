"""Rebuilds the cache from the relay's events (M-10)."""

from __future__ import annotations

from contextlib import closing, contextmanager
from typing import TYPE_CHECKING, Any, Final

import orjson

from relay.client.errors import ClientError
from relay.client.nmem.apply import drop_batch, put_all, recompute_pins
from relay.client.nmem.database import Database, rebuilding
from relay.client.nmem.updates import (
    ONESELF,
    Origin,
    ignore_events,
    purged_ids,
    put_observation,
    put_prompt,
    put_session,
    session_in,
    session_of,
)
from relay.memory.nmem.checks import PIN, SESSION
from relay.memory.nmem.records import Observation, Prompt, Source, hash_in

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence, Set

    from relay.client.nmem.apply import Progress
    from relay.client.nmem.cipher import CacheKey
    from relay.nostr.event import Event

    Held = tuple[str, str]
    """A record in a cache: its author, or ONESELF, and its `d`."""


def rebuild(
    database: Database,
    key: CacheKey | None,
    events: Sequence[Event],
    own: str,
    owners: frozenset[str],
    progress: Progress | None = None,
    before: Set[Held] | None = None,
) -> int:
    """The cache as if these events had been applied to an empty one (M-10); returns the number of
    rows. `before`: what it held before they were fetched; None: now.

    Built beside the old file, which is used until then. Records not yet sent, and transcript
    offsets, are copied. What leaves the old file meanwhile leaves the new one.
    """
    if before is None:
        before = held_in(database)
    try:
        with rebuilding(database.path) as path, closing(Database(path, key)) as new:
            with database.reading() as db:
                purged = purged_ids(db, events)
            left = [event for event in events if event.id not in purged]
            with _deferred_indexes(new):
                number = put_all(new, left, own, owners, batch=len(events) + 1, progress=progress)
            with new.transaction() as db:
                ignore_events(db, [(e.id, e.created_at) for e in events if e.id in purged])
            with database.replacing() as old:
                with new.transaction() as db:
                    number -= _drop_left(db, old, before)
                    _copy_local(db, old)
                new.close()
                database.replace_with(path)
    except BlockingIOError:
        raise ClientError("the cache is already being rebuilt") from None
    return number


def held_in(database: Database) -> set[Held]:
    """The records in the cache."""
    with database.reading() as db:
        return {(author, d) for author, d, _ in _records(db)}


def _records(db: Any) -> list[tuple[str, str, str]]:
    """Author, `d` and event id of each; one that waits to be sent may have no id yet."""
    found: list[tuple[str, str, str]] = db.execute(
        "SELECT author, d, event_id FROM _rk_observations"
        " UNION ALL SELECT author, d, event_id FROM _rk_prompts"
        " UNION ALL SELECT author, :session || session_id, event_id FROM _rk_sessions"
        " UNION ALL SELECT author, :pin || target, event_id FROM _rk_pins",
        {"session": SESSION, "pin": PIN},
    ).fetchall()
    return found


def _drop_left(db: Any, old: Any, before: Set[Held]) -> int:
    """Drop what the old cache held `before`, and holds no more; returns the number of rows."""
    left = before - {(author, d) for author, d, _ in _records(old)}
    if not left:
        return 0
    return drop_batch(db, [(id_, author) for author, d, id_ in _records(db) if (author, d) in left])


@contextmanager
def _deferred_indexes(new: Database) -> Iterator[None]:
    """Without indexes and triggers inside; building them at the end takes half the time."""
    with new.transaction() as db:
        db.execute("PRAGMA cache_size = -64000")
        objects = db.execute(
            "SELECT type, name, sql FROM sqlite_master WHERE type IN ('trigger', 'index')"
            " AND tbl_name IN ('observations', 'prompts') AND sql IS NOT NULL"
        ).fetchall()
        for kind, name, _ in objects:
            db.execute(f"DROP {kind} {name}")
    yield
    with new.transaction() as db:
        for _, _, sql in objects:
            db.execute(sql)
        rebuild_index(db)


def rebuild_index(db: Any) -> None:
    """Both full-text indexes."""
    db.execute("INSERT INTO observations_fts(observations_fts) VALUES ('rebuild')")
    db.execute("INSERT INTO prompts_fts(prompts_fts) VALUES ('rebuild')")


def _copy_local(db: Any, old: Any) -> None:
    """Copy what only the old cache has: waiting rows, and transcript offsets."""
    for row in old.execute(
        "SELECT s.*, k.created_at FROM sessions s JOIN _rk_sessions k ON k.session_id = s.id"
        " WHERE k.author = '' AND k.event_id IS NULL"
    ).fetchall():
        put_session(db, session_of(row[:-1]), Origin(ONESELF, None, row[-1]))
    for *row, d, at in old.execute(
        "SELECT p.session_id, p.timestamp, p.source, p.content, k.d, k.created_at"
        " FROM prompts p JOIN _rk_prompts k ON k.prompt_id = p.id WHERE k.event_id IS NULL"
    ).fetchall():
        _ensure_session(db, old, row[0])
        put_prompt(db, Prompt(row[0], row[1], Source(row[2]), row[3]), d, Origin(ONESELF, None, at))
    # One that waits has an event id if it is pinned.
    for *row, metadata, prompt, d, id_, at in old.execute(
        "SELECT o.session_id, o.timestamp, o.obs_type, o.source_event, o.content, o.tool_name,"
        " o.file_path, o.metadata, p.d, k.d, k.event_id, k.created_at"
        " FROM observations o JOIN _rk_observations k ON k.observation_id = o.id"
        " LEFT JOIN _rk_prompts p ON p.prompt_id = o.prompt_id WHERE k.author = ''"
        " AND (k.event_id IS NULL OR k.d IN (SELECT d FROM _rk_outbox))"
    ).fetchall():
        _ensure_session(db, old, row[0])
        observation = Observation(
            row[0],
            row[1],
            row[2],
            row[3],
            row[4],
            row[5],
            row[6],
            None if metadata is None else orjson.loads(metadata),
            None if prompt is None else hash_in(prompt),
        )
        put_observation(db, observation, d, Origin(ONESELF, id_, at))
    db.executemany(
        "INSERT OR REPLACE INTO _rk_pins VALUES (?, ?, ?, ?, ?)",
        old.execute("SELECT * FROM _rk_pins WHERE event_id IS NULL").fetchall(),
    )
    for read, write in _COPIED_TABLES:
        db.executemany(write, old.execute(read).fetchall())
    recompute_pins(db)


def _ensure_session(db: Any, old: Any, session_id: str) -> None:
    if session_in(db, session_id) is None:
        row = old.execute("SELECT * FROM sessions WHERE id = ?", (session_id,)).fetchone()
        db.execute("INSERT INTO sessions VALUES (?, ?, ?, ?, ?, ?)", row)


_COPIED_TABLES: Final = (
    ("SELECT * FROM _rk_about", "INSERT OR IGNORE INTO _rk_about VALUES (?, ?)"),
    ("SELECT * FROM _rk_outbox", "INSERT INTO _rk_outbox VALUES (?, ?, ?, ?, ?, ?, ?)"),
    ("SELECT * FROM _rk_tasks", "INSERT INTO _rk_tasks VALUES (?, ?, ?, ?, ?, ?)"),
    ("SELECT * FROM _rk_read_to", "INSERT INTO _rk_read_to VALUES (?, ?)"),
    ("SELECT * FROM _cursor", "INSERT INTO _cursor VALUES (?, ?)"),
)
