"""Events of nmem become rows of the cache, and leave it again. MEMORY.md M-07, M-10.

What is told twice, or in another order, comes to the same rows.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from relay.client.nmem.database import CacheUnusable
from relay.client.nmem.writing import (
    ONESELF,
    Origin,
    about,
    drop_observations,
    drop_prompts,
    drop_sessions,
    pass_over,
    put_observation,
    put_prompt,
    put_session,
    set_about,
)
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

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from relay.client.nmem.database import Database
    from relay.memory.nmem.records import Record
    from relay.nostr.event import Event

    Progress = Callable[[int], None]
    """Is told how many more records are done."""

_PUT_AT_ONCE: Final = 500
"""Rows of one transaction: other programs wait for no longer than that takes."""


def bind(database: Database, pubkey: str) -> None:
    """The cache is this key's, from its first use on. Raises CacheUnusable for another's."""
    with database.transaction() as db:
        bound = about(db, "pubkey")
        if bound is None:
            set_about(db, {"pubkey": pubkey})
        elif bound != pubkey:
            raise CacheUnusable(
                f"{database.path} is the memory of {npub(bound)}, and you are {npub(pubkey)}:"
                " name another file as [nmem] db"
            )


def note_event(db: Any, event: Event) -> None:
    """One's own row is this event."""
    d = event.d
    db.execute("UPDATE _rk_observations SET event_id = ? WHERE d = ?", (event.id, d))
    db.execute("UPDATE _rk_prompts SET event_id = ? WHERE d = ?", (event.id, d))
    if event.kind == kinds.APP_DATA:
        if d.startswith("nmem:pin:"):
            db.execute(
                "UPDATE _rk_pins SET event_id = ? WHERE target = ? AND author = ?"
                " AND created_at = ?",
                (event.id, d.removeprefix("nmem:pin:"), ONESELF, event.created_at),
            )
        else:
            db.execute(
                "UPDATE _rk_sessions SET event_id = ? WHERE session_id = ? AND author = ?"
                " AND created_at = ?",
                (event.id, d.removeprefix("nmem:session:"), ONESELF, event.created_at),
            )


def put_all(
    database: Database,
    events: Iterable[Event],
    own: str,
    owners: frozenset[str],
    *,
    at_once: int = _PUT_AT_ONCE,
    progress: Progress | None = None,
) -> int:
    """The records in the order of M-10; the number of those that were new. `own`: one's key."""
    with database.reading() as db:
        over = {id_ for (id_,) in db.execute("SELECT event_id FROM _rk_passed_over")}
    read = [(record_in(event), event) for event in events if event.id not in over]
    records = sorted(
        ((record, event) for record, event in read if not isinstance(record, UnreadableRecord)),
        key=lambda each: (_RANK[type(each[0])], _time_of(each[0], each[1]), each[1].id),
    )
    started = _starts(records)
    new = 0
    for start in range(0, len(records), at_once):
        with database.transaction() as db:
            for record, event in records[start : start + at_once]:
                new += _put(db, record, event, own, started)
        if progress is not None:
            progress(len(records[start : start + at_once]))
    with database.transaction() as db:
        pass_over(
            db, [(e.id, e.created_at) for record, e in read if isinstance(record, UnreadableRecord)]
        )
        told = {ONESELF if owner == own else owner for owner in owners}
        set_about(db, {"owners": " ".join(sorted(told)) if told else "none"})
        pin_again(db)
    return new


_RANK: Final = {Session: 0, Prompt: 1, Observation: 2, Pin: 3}


def _time_of(record: Record, event: Event) -> int:
    return record.timestamp if isinstance(record, (Prompt, Observation)) else event.created_at


def _starts(records: Iterable[tuple[Record, Event]]) -> dict[str, Session]:
    """For sessions of which only parts may be known: what their parts tell."""
    found: dict[str, Session] = {}
    for record, event in records:
        if isinstance(record, (Prompt, Observation)):
            known = found.get(record.session)
            project = project_of(event) or (known.project if known is not None else "unknown")
            at = record.timestamp if known is None else min(known.started_at, record.timestamp)
            found[record.session] = Session(record.session, project, at)
    return found


def _put(db: Any, record: Record, event: Event, own: str, started: Mapping[str, Session]) -> bool:
    origin = Origin(ONESELF if event.pubkey == own else event.pubkey, event.id, event.created_at)
    match record:
        case Session():
            return _put_newer_session(db, record, origin)
        case Pin():
            return _put_newer_pin(db, record, origin)
        case Prompt() | Observation():
            if (
                db.execute("SELECT 1 FROM sessions WHERE id = ?", (record.session,)).fetchone()
                is None
            ):
                session = started[record.session]
                db.execute(
                    "INSERT INTO sessions (id, project, started_at) VALUES (?, ?, ?)",
                    (session.id, session.project, session.started_at),
                )
            if isinstance(record, Prompt):
                number = put_prompt(db, record, event.d, origin)
            else:
                number = put_observation(db, record, event.d, origin)
            if number is None and not _is_noted(db, event, origin):
                pass_over(db, [(event.id, event.created_at)])
            return number is not None


def _is_noted(db: Any, event: Event, origin: Origin) -> bool:
    """The row that was there is this very event, sent before its answer could be noted."""
    if origin.author == ONESELF:
        note_event(db, event)
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
        pass_over(db, [(origin.event_id, origin.created_at)])
        return False
    put_session(db, session, origin)
    if origin.author == ONESELF:
        # Another machine with this key has gone on with it: what waits here is older.
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
        pass_over(db, [(origin.event_id, origin.created_at)])
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


def pin_again(db: Any) -> None:
    """`is_pinned` of every row, after pins have come or gone (M-07)."""
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
    """Rows whose own author asked for their removal; the number of them."""
    with database.transaction() as db:
        me = about(db, "pubkey")
        dropped = 0
        for event_id, asker in deleted:
            author = ONESELF if asker == me else asker
            observations = db.execute(
                "SELECT observation_id FROM _rk_observations WHERE event_id = ? AND author = ?",
                (event_id, author),
            ).fetchall()
            prompts = db.execute(
                "SELECT prompt_id FROM _rk_prompts WHERE event_id = ? AND author = ?",
                (event_id, author),
            ).fetchall()
            drop_observations(db, [number for (number,) in observations])
            drop_prompts(db, [number for (number,) in prompts])
            dropped += len(observations) + len(prompts)
            dropped += db.execute(
                "DELETE FROM _rk_pins WHERE event_id = ? AND author = ?", (event_id, author)
            ).rowcount
            dropped += _drop_session(db, event_id, author)
            db.execute("DELETE FROM _rk_passed_over WHERE event_id = ?", (event_id,))
        if dropped:
            pin_again(db)
        return dropped


def _drop_session(db: Any, event_id: str, author: str) -> int:
    found = db.execute(
        "SELECT session_id FROM _rk_sessions WHERE event_id = ? AND author = ?", (event_id, author)
    ).fetchall()
    for (session_id,) in found:
        db.execute(
            "DELETE FROM _rk_sessions WHERE session_id = ? AND author = ?", (session_id, author)
        )
        is_used = db.execute(
            "SELECT 1 WHERE EXISTS (SELECT 1 FROM observations WHERE session_id = ?1)"
            " OR EXISTS (SELECT 1 FROM prompts WHERE session_id = ?1)"
            " OR EXISTS (SELECT 1 FROM _rk_sessions WHERE session_id = ?1)",
            (session_id,),
        ).fetchone()
        if is_used is None:
            drop_sessions(db, [session_id])
    return len(found)
