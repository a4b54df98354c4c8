"""Applies nmem events to the cache's rows, and removes rows of deleted events (M-07, M-10).

Idempotent, and independent of the order of the events.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any, Final

import orjson

from relay.client.nmem.database import CacheUnusable
from relay.client.nmem.updates import (
    ONESELF,
    UNKNOWN,
    Origin,
    about,
    drop_observations,
    drop_prompts,
    drop_session_of,
    drop_sessions,
    ignore_events,
    note_purged,
    own_project,
    purged_ids,
    put_observation,
    put_prompt,
    put_session,
    queued_event,
    record_pin,
    set_about,
)
from relay.client.resume import OVERLAP_S
from relay.memory.fields import compact
from relay.memory.nmem.records import (
    Observation,
    Pin,
    Prompt,
    Session,
    pinned_ids,
    project_of,
    record_in,
)
from relay.memory.unreadable import UnreadableRecord
from relay.nostr import kinds
from relay.nostr.keys import npub
from relay.nostr.nip42 import may_stand_for, relay_address

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from relay.client.nmem.database import Database
    from relay.client.nmem.sources import Sources
    from relay.memory.nmem.records import Record
    from relay.nostr.event import Event

    Progress = Callable[[int], None]
    """Called with the number of records done since the last call."""

_log = logging.getLogger(__name__)

SOURCES: Final = "sources"
"""In `_rk_about`: the sources of the stored records of others."""
_BATCH: Final = 500
"""Rows per transaction, which bounds how long other programs wait."""
_FULL: Final = 1 << 18
"""Pages of 4 KiB in use in a cache that takes in no more records of others: a million of them."""


PINS_WAIT: Final = "pins_wait"
"""In `_rk_about`, until a key is bound: the group of the pins of an adopted database, or empty."""


def bind(database: Database, pubkey: str) -> None:
    """Bind the cache to a key on first use. Raises CacheUnusable for the cache of another key."""
    with database.transaction() as db:
        bound = about(db, "pubkey")
        if bound is None:
            set_about(db, {"pubkey": pubkey})
            _pin_adopted(db)
        elif bound != pubkey:
            raise CacheUnusable(
                f"{database.path} belongs to {npub(bound)}, not to {npub(pubkey)}: nothing is"
                " recorded into it or sent; set another file as [nmem] db"
            )


def bind_relay(database: Database, url: str, relay_of_file: str | None) -> None:
    """Bind the cache to the relay of its records, which may move. Raises as `check_relay`."""
    check_relay(database, url, relay_of_file)
    with database.transaction() as db:
        bound = about(db, "relay")
        if bound is None or relay_address(bound) != relay_address(url):
            set_about(db, {"relay": url})


def check_relay(database: Database, url: str, relay_of_file: str | None) -> None:
    """Raises CacheUnusable if the cache belongs to the relay of client.toml, or to none yet, and
    `url` is another: an environment that some folder or shell has of its own. `relay_of_file`: None
    if client.toml names none."""
    if relay_of_file is None or may_stand_for(url, relay_of_file):
        return
    with database.reading() as db:
        bound = about(db, "relay") or relay_of_file
    if relay_address(bound) == relay_address(relay_of_file):
        raise CacheUnusable(
            f"{database.path} belongs to {bound}, the relay of client.toml, not to {url}"
            " (ROOKERY_RELAY, or --relay): nothing is recorded into it or sent"
        )


def _pin_adopted(db: Any) -> None:
    """Record the pins of an adopted database: they name events, whose ids depend on the key."""
    group = about(db, PINS_WAIT)
    if group is None:
        return
    rows = db.execute(
        "SELECT id, d, timestamp FROM observations JOIN _rk_observations ON observation_id = id"
        " WHERE is_pinned"
    ).fetchall()
    for number, d, at in rows:
        waiting = queued_event(db, kinds.APP_RECORD, d)
        target = None if waiting is None else waiting[0]
        if target is not None:
            update = "UPDATE _rk_observations SET event_id = ? WHERE observation_id = ?"
            db.execute(update, (target, number))
            record_pin(db, number, target, at, group or None, is_pinned=True)
    db.execute("DELETE FROM _rk_about WHERE name = ?", (PINS_WAIT,))


def set_event_id(db: Any, event: Event) -> None:
    """Record the event of an own row. The row becomes one's own also if another key published the
    same text: its copy may have come first."""
    own = event.id, ONESELF, event.created_at, event.d
    for table in ("_rk_observations", "_rk_prompts"):
        changed = "event_id = ?, author = ?, created_at = ?"
        db.execute(f"UPDATE {table} SET {changed} WHERE d = ?", own)  # noqa: S608  names of ours
    if event.kind == kinds.APP_DATA:
        _set_version_id(db, event)


def _set_version_id(db: Any, event: Event) -> None:
    if event.d.startswith("nmem:pin:"):
        db.execute(
            "UPDATE _rk_pins SET event_id = ? WHERE target = ? AND author = ? AND created_at = ?",
            (event.id, event.d.removeprefix("nmem:pin:"), ONESELF, event.created_at),
        )
    else:
        db.execute(
            "UPDATE _rk_sessions SET event_id = ? WHERE session_id = ? AND author = ?"
            " AND created_at = ?",
            (event.id, event.d.removeprefix("nmem:session:"), ONESELF, event.created_at),
        )


def put_all(
    database: Database,
    events: Sequence[Event],
    own: str,
    owners: frozenset[str],
    *,
    batch: int = _BATCH,
    progress: Progress | None = None,
) -> int:
    """Apply records in the order of M-10; returns the number of new ones. `own`: own pubkey."""
    with database.reading() as db:
        ignored = {id_ for (id_,) in db.execute("SELECT event_id FROM _rk_passed_over")}
        ignored |= purged_ids(db, events)  # a version of another machine, too
    read = [(record_in(event), event) for event in events if event.id not in ignored]
    records = sorted(
        (
            (record, event)
            for record, event in read
            if not isinstance(record, UnreadableRecord) and not _is_ahead(record, event, own)
        ),
        key=lambda each: (_RANK[type(each[0])], _time_of(each[0], each[1]), each[1].id),
    )
    implied = _implied_sessions(records)
    new = left_out = 0
    for start in range(0, len(records), batch):
        with database.transaction() as db:
            for number, (record, event) in enumerate(records[start : start + batch]):
                if number % _BATCH == 0:
                    is_full = _is_full(db)
                if _is_ignored(db, event.id):
                    continue  # it was purged while it was fetched
                if is_full and event.pubkey != own:
                    left_out += 1
                    continue
                new += _put(db, record, event, own, implied)
        if progress is not None:
            progress(len(records[start : start + batch]))
    if left_out:
        text = "%s is full: it does not take in %d records of other keys"
        _log.warning(text, database.path, left_out)
    put = {event.id for _, event in records}
    with database.transaction() as db:
        ignore_events(db, [(e.id, e.created_at) for _, e in read if e.id not in put])
        owner_names = {ONESELF if owner == own else owner for owner in owners}
        set_about(db, {"owners": " ".join(sorted(owner_names)) if owner_names else "none"})
        recompute_pins(db)
    return new


def _is_full(db: Any) -> bool:
    used = "(SELECT * FROM pragma_page_count) - (SELECT * FROM pragma_freelist_count)"
    return bool(db.execute(f"SELECT {used} > ?", (_FULL,)).fetchone()[0])


def _is_ignored(db: Any, event_id: str) -> bool:
    found = db.execute("SELECT 1 FROM _rk_passed_over WHERE event_id = ?", (event_id,)).fetchone()
    return found is not None


_RANK: Final = {Session: 0, Prompt: 1, Observation: 2, Pin: 3}


def _time_of(record: Record, event: Event) -> int:
    return record.timestamp if isinstance(record, (Prompt, Observation)) else event.created_at


def _is_ahead(record: Record, event: Event, own: str) -> bool:
    """Whether a record of another key is dated after its event, whose date the relay has checked:
    what is newest is shown first, and some of the rest not at all."""
    match record:
        case Session():
            at = max(record.started_at, record.ended_at or 0)
        case Prompt() | Observation():
            at = record.timestamp
        case _:
            return False
    return event.pubkey != own and at > event.created_at + OVERLAP_S


def _implied_sessions(records: Iterable[tuple[Record, Event]]) -> dict[str, Session]:
    """Sessions implied by their prompts and observations, if the session record is missing."""
    found: dict[str, Session] = {}
    for record, event in records:
        if isinstance(record, (Prompt, Observation)):
            known = found.get(record.session)
            project = project_of(event) or (known.project if known is not None else UNKNOWN)
            at = record.timestamp if known is None else min(known.started_at, record.timestamp)
            found[record.session] = Session(record.session, project, at)
    return found


def _put(db: Any, record: Record, event: Event, own: str, implied: Mapping[str, Session]) -> bool:
    origin = Origin(ONESELF if event.pubkey == own else event.pubkey, event.id, event.created_at)
    match record:
        case Session():
            return _put_newer_session(db, record, origin)
        case Pin():
            return _put_newer_pin(db, record, origin)
        case Prompt() | Observation():
            session = implied[record.session]
            db.execute(
                "INSERT INTO sessions (id, project, started_at) VALUES (?1, ?2, ?3)"
                # Until there is a session record: an older one, or the project, may come later.
                " ON CONFLICT (id) DO UPDATE SET started_at = min(started_at, ?3),"
                " project = CASE project WHEN ?4 THEN ?2 ELSE project END"
                " WHERE NOT EXISTS (SELECT 1 FROM _rk_sessions WHERE session_id = ?1)",
                (session.id, session.project, session.started_at, UNKNOWN),
            )
            if origin.author == ONESELF:
                _set_own_project(db, record.session, project_of(event))
            if isinstance(record, Prompt):
                number = put_prompt(db, record, event.d, origin)
            else:
                number = put_observation(db, record, event.d, origin)
            if number is None and not _is_same_event(db, event, origin):
                ignore_events(db, [(event.id, event.created_at)])
            return number is not None


def _set_own_project(db: Any, session_id: str, project: str | None) -> None:
    """Before an own record is put. `project`: as the record names it. An own version of the session
    has the last word."""
    if project is None and own_project(db, session_id) is None:
        project = UNKNOWN
    if project is not None:
        db.execute(
            "UPDATE sessions SET project = ?1 WHERE id = ?2 AND NOT EXISTS"
            " (SELECT 1 FROM _rk_sessions WHERE session_id = ?2 AND author = ?3)",
            (project, session_id, ONESELF),
        )


def _is_same_event(db: Any, event: Event, origin: Origin) -> bool:
    """Whether the existing row is this event, sent before its OK could be recorded."""
    if origin.author == ONESELF:
        set_event_id(db, event)
    tables = (
        "SELECT 1 FROM _rk_observations WHERE event_id = ?1"
        " UNION ALL SELECT 1 FROM _rk_prompts WHERE event_id = ?1"
    )
    return db.execute(tables, (event.id,)).fetchone() is not None


def _put_newer_session(db: Any, session: Session, origin: Origin) -> bool:
    known = db.execute(
        "SELECT created_at, event_id FROM _rk_sessions WHERE session_id = ? AND author = ?",
        (session.id, origin.author),
    ).fetchone()
    if known is not None and not _is_newer(origin, *known):
        ignore_events(db, [(origin.event_id, origin.created_at)])
        return False
    put_session(db, session, origin)
    if origin.author == ONESELF:
        # Another machine with this key continued the session: the waiting version is older.
        db.execute(
            "DELETE FROM _rk_outbox WHERE kind = ? AND d = ?",
            (kinds.APP_DATA, f"nmem:session:{session.id}"),
        )
    return True


def _put_newer_pin(db: Any, pin: Pin, origin: Origin) -> bool:
    known = db.execute(
        "SELECT created_at, event_id FROM _rk_pins WHERE target = ? AND author = ?",
        (pin.event_id, origin.author),
    ).fetchone()
    if known is not None and not _is_newer(origin, *known):
        ignore_events(db, [(origin.event_id, origin.created_at)])
        return False
    db.execute(
        "INSERT OR REPLACE INTO _rk_pins VALUES (?, ?, ?, ?, ?)",
        (pin.event_id, origin.author, origin.event_id, pin.is_pinned, origin.created_at),
    )
    return True


def _is_newer(origin: Origin, created_at: int, event_id: str | None) -> bool:
    if origin.created_at != created_at:
        return origin.created_at > created_at
    assert origin.event_id is not None
    return event_id is not None and origin.event_id < event_id  # NIP-01


def recompute_pins(db: Any) -> None:
    """Recompute `is_pinned` of every row after pins changed (M-07)."""
    pins = db.execute("SELECT author, target FROM _rk_pins WHERE is_pinned").fetchall()
    rows = db.execute(
        "SELECT observation_id, event_id, author FROM _rk_observations"
        " WHERE event_id IN (SELECT target FROM _rk_pins)"
    ).fetchall()
    kept = pinned_ids(
        [(author, Pin(target, is_pinned=True, at=0)) for author, target in pins],
        {event_id: author for _, event_id, author in rows},
        set((about(db, "owners") or "none").split(" ")),
    )
    wanted = {number for number, event_id, _ in rows if event_id in kept}
    pinned = {number for (number,) in db.execute("SELECT id FROM observations WHERE is_pinned")}
    db.executemany(
        "UPDATE observations SET is_pinned = ? WHERE id = ?",
        [(1, number) for number in wanted - pinned] + [(0, number) for number in pinned - wanted],
    )


def drop_deleted(database: Database, deleted: Sequence[tuple[str, str]]) -> int:
    """Drop rows of events, each (id, author); returns their number. Events of another author than
    named are left."""
    dropped = 0
    for start in range(0, len(deleted), _BATCH):
        with database.transaction() as db:
            dropped += drop_batch(db, deleted[start : start + _BATCH])
    return dropped


def drop_other_sources(database: Database, sources: Sources) -> None:
    """Drop records of sources that the settings no longer name, before anything is told of them:
    `sync.fetch` does so when the relay has answered. Where a group is named, only the relay can
    tell which records are of it. Raises CacheUnusable, OSError."""
    with database.reading() as db:
        marks = about(db, SOURCES)
    if marks is None or sources.group is not None:
        return
    _, _, owners = orjson.loads(marks)
    now = compact([None, sorted(sources.agents), owners])
    if now == marks:
        return
    with database.reading() as db:
        foreign = db.execute(
            "SELECT event_id, author FROM _rk_observations WHERE event_id IS NOT NULL"
            " UNION ALL SELECT event_id, author FROM _rk_prompts WHERE event_id IS NOT NULL"
            " UNION ALL SELECT event_id, author FROM _rk_sessions WHERE event_id IS NOT NULL"
        ).fetchall()
    trusted = {ONESELF, *owners, *sources.agents}
    drop_deleted(database, [(id_, author) for id_, author in foreign if author not in trusted])
    with database.transaction() as db:
        set_about(db, {SOURCES: now})


def drop_refused(db: Any, event: Event) -> int:
    """Drop the own row of an event that the relay refused as deleted; returns the number of rows. A
    row that has become that of another event since, or of a newer version, is left."""
    if event.kind == kinds.APP_DATA:
        _set_version_id(db, event)
    for table in ("_rk_observations", "_rk_prompts"):
        waiting = "d = ? AND author = ? AND created_at = ? AND event_id IS NULL"
        db.execute(
            f"UPDATE {table} SET event_id = ? WHERE {waiting}",  # noqa: S608  names of ours
            (event.id, event.d, ONESELF, event.created_at),
        )
    return drop_batch(db, [(event.id, event.pubkey)])


def drop_batch(db: Any, deleted: Sequence[tuple[str, str]]) -> int:
    """`drop_deleted` in the transaction of this connection."""
    own = about(db, "pubkey")
    dropped = 0
    sessions: dict[str, None] = {}
    times: set[int] = set()
    for event_id, requester in deleted:
        named = (event_id, ONESELF if requester == own else requester)
        observations = db.execute(
            "SELECT id, timestamp, session_id FROM observations"
            " JOIN _rk_observations ON observation_id = id WHERE event_id = ? AND author = ?",
            named,
        ).fetchall()
        prompts = db.execute(
            "SELECT id, timestamp, session_id FROM prompts"
            " JOIN _rk_prompts ON prompt_id = id WHERE event_id = ? AND author = ?",
            named,
        ).fetchall()
        drop_observations(db, [number for number, *_ in observations])
        if named[1] == ONESELF:  # only one's own transcripts are read
            note_purged(db, [number for number, *_ in prompts])
        drop_prompts(db, [number for number, *_ in prompts])
        times.update(at for _, at, _ in (*observations, *prompts))
        dropped += len(observations) + len(prompts)
        dropped += db.execute(
            "DELETE FROM _rk_pins WHERE event_id = ? AND author = ?", named
        ).rowcount
        ended = db.execute(
            "SELECT session_id FROM _rk_sessions WHERE event_id = ? AND author = ?", named
        ).fetchall()
        for (session_id,) in ended:
            drop_session_of(db, session_id, named[1])
        dropped += len(ended)
        sessions |= dict.fromkeys(row[-1] for row in (*observations, *prompts, *ended))
        db.execute("DELETE FROM _rk_passed_over WHERE event_id = ?", (event_id,))
    if times:
        # Another key may have the same records, passed over since: they are fetched again. One
        # statement: it reads the whole table.
        db.execute(
            "DELETE FROM _rk_passed_over WHERE created_at IN (SELECT value FROM json_each(?))",
            (compact([*times]),),
        )
    drop_sessions(db, [session_id for session_id in sessions if not _is_used(db, session_id)])
    if dropped:
        recompute_pins(db)
    return dropped


def _is_used(db: Any, session_id: str) -> bool:
    tables = (
        "SELECT 1 WHERE EXISTS (SELECT 1 FROM observations WHERE session_id = ?1)"
        " OR EXISTS (SELECT 1 FROM prompts WHERE session_id = ?1)"
        " OR EXISTS (SELECT 1 FROM _rk_sessions WHERE session_id = ?1)"
    )
    return db.execute(tables, (session_id,)).fetchone() is not None
