"""Writes to the cache's tables and its outbox (M-08, M-11).

Each function takes the connection of a transaction. A local record is a row and a draft in the
outbox; the sender signs it, so hooks need no key. An event from a relay is a row only.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from hashlib import sha256
from typing import TYPE_CHECKING, Any, Final

import orjson

from relay.client.nmem.database import MUST_ERASE
from relay.memory.draft import Draft
from relay.memory.fields import compact
from relay.memory.nmem.checks import SESSION
from relay.memory.nmem.records import (
    Observation,
    ObsType,
    Prompt,
    Session,
    Source,
    closed,
    hash_in,
    observation_draft,
    pin_draft,
    prompt_draft,
    session_draft,
)
from relay.memory.nmem.records import Pin as PinRecord
from relay.memory.nmem.summary import summary_from
from relay.nostr import kinds
from relay.nostr.event import MADE_FROM, Address, id_bytes

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from relay.memory.nmem.summary import Summary
    from relay.nostr.event import Event
    from relay.nostr.keys import SecretKey

UNKNOWN: Final = "unknown"
"""Project of a session of which nothing else is known."""
ECHOES: Final = "echoes"
"""In `_rk_about`: number of prompts from which recalled text was left out."""
ONESELF: Final = ""
"""Author of local rows."""
_PURGED: Final = "purged:"
"""In `_rk_about`, followed by the hash of a deleted thought."""
_MOST_MARKERS: Final = 1_000
_DELETE_BATCH: Final = 500
"""Events per kind 5."""


@dataclass(frozen=True, slots=True)
class Origin:
    """The event of a row."""

    author: str
    """64 hex, or ONESELF."""
    event_id: str | None
    created_at: int


# -- local records --------------------------------------------------------------------------------


def begin_session(db: Any, session: Session, group: str | None) -> bool:
    """Record a session unless one's own version exists; whether it is new."""
    if own_session_in(db, session.id) is not None:
        return False
    _record_session(db, session, group)
    return True


def end_session(
    db: Any, session_id: str, at: int, group: str | None, summary: Summary | None = None
) -> Session | None:
    """End a session (M-04, M-06); None: unknown, or only others have it: what they wrote about it
    is not signed by oneself."""
    session = own_session_in(db, session_id)
    if session is None:
        return None
    ended = closed(session, at, _types_in(db, session_id))
    if summary is not None:
        ended = replace(ended, summary=summary)
    _record_session(db, ended, group)
    return ended


def summarise(db: Any, session_id: str, summary: Summary, group: str | None) -> None:
    """Store a model's summary of an ended session; ignored if the session was continued."""
    session = own_session_in(db, session_id)
    if session is not None and session.ended_at is not None:
        _record_session(db, replace(session, summary=summary), group)


def drop_summary(db: Any, session_id: str, until: int, group: str | None) -> None:
    """Record one's own session without its summary, in a version newer than `until`. One with
    enough in it may be summarised again, of what is left."""
    session = own_session_in(db, session_id)
    if session is None:
        return
    left = replace(session, summary=None)
    if session.ended_at is not None:
        left = replace(
            left, summary=closed(left, session.ended_at, _types_in(db, session_id)).summary
        )
    _must_erase(db)
    _record_session(db, left, group, until)


def _types_in(db: Any, session_id: str) -> list[str]:
    """Types of one's own observations of a session."""
    rows = db.execute(
        "SELECT obs_type FROM observations JOIN _rk_observations ON observation_id = id"
        " WHERE session_id = ? AND author = ?",
        (session_id, ONESELF),
    )
    return [name for (name,) in rows]


def _record_session(db: Any, session: Session, group: str | None, after: int = 0) -> None:
    """`after`: what is older is deleted at the relay, and this version holds nothing of it. Else it
    names the version that it was made from: if another machine has deleted that, the relay refuses
    it."""
    last = db.execute(
        "SELECT created_at, event_id FROM _rk_sessions WHERE session_id = ? AND author = ?",
        (session.id, ONESELF),
    ).fetchone()
    draft = session_draft(session, max(after, 0 if last is None else last[0]) or None, group)
    waiting = db.execute(
        "SELECT tags FROM _rk_outbox WHERE kind = ? AND d = ?", (draft.kind, draft.d)
    ).fetchone()
    base: list[list[str]] = []
    if after == 0 and waiting is not None:  # which may never come to the relay
        base = [tag for tag in orjson.loads(waiting[0]) if tag[0] == MADE_FROM]
    elif after == 0 and last is not None and last[1] is not None:
        base = [[MADE_FROM, last[1], str(last[0])]]
    draft = draft._replace(tags=[*draft.tags, *base])
    put_session(db, session, Origin(ONESELF, None, draft.created_at))
    queue(db, draft)


def record_prompt(db: Any, prompt: Prompt, group: str | None) -> int | None:
    """Insert a prompt and queue its record; returns its id. None: one has it already."""
    draft = prompt_draft(prompt, group)
    number = put_prompt(db, prompt, draft.d, Origin(ONESELF, None, draft.created_at))
    if number is None:
        number = _taken_over(db, "_rk_prompts", draft)
    if number is not None:
        queue(db, draft)
    return number


def record_observation(
    db: Any, observation: Observation, project: str, group: str | None
) -> int | None:
    """Insert an observation and queue its record; returns its id. None: one has it already."""
    draft = observation_draft(observation, project, group)
    origin = Origin(ONESELF, None, draft.created_at)
    number = put_observation(db, observation, draft.d, origin)
    if number is None:
        number = _taken_over(db, "_rk_observations", draft)
    if number is not None:
        queue(db, draft)
    return number


def _taken_over(db: Any, table: str, draft: Draft) -> int | None:
    """Make another key's row of the same record one's own; returns its id. None: it is already.
    Whoever guesses what one records can publish it before, and delete it later."""
    found = db.execute(
        f"SELECT rowid, event_id, created_at FROM {table} WHERE d = ? AND author <> ?",  # noqa: S608  names of ours
        (draft.d, ONESELF),
    ).fetchone()
    if found is None:
        return None
    number, event_id, at = found
    ignore_events(db, [(event_id, at)])
    db.execute(
        f"UPDATE {table} SET author = ?, event_id = NULL, created_at = ? WHERE rowid = ?",  # noqa: S608
        (ONESELF, draft.created_at, number),
    )
    return int(number)


def record_pin(
    db: Any, number: int, target: str, at: int, group: str | None, *, is_pinned: bool
) -> None:
    """`target`: event id of the observation with this number."""
    last = db.execute(
        "SELECT created_at FROM _rk_pins WHERE target = ? AND author = ?", (target, ONESELF)
    ).fetchone()
    pin = PinRecord(target, is_pinned, at)
    draft = pin_draft(pin, None if last is None else last[0], group)
    db.execute(
        "INSERT OR REPLACE INTO _rk_pins VALUES (?, ?, NULL, ?, ?)",
        (target, ONESELF, is_pinned, draft.created_at),
    )
    db.execute("UPDATE observations SET is_pinned = ? WHERE id = ?", (is_pinned, number))
    queue(db, draft)


def event_id_of(db: Any, number: int, signer: SecretKey) -> str:
    """Event id of one's own observation, also before it is sent."""
    event_id, d = db.execute(
        "SELECT event_id, d FROM _rk_observations WHERE observation_id = ?", (number,)
    ).fetchone()
    if event_id is None:
        kind, tags, content, at = db.execute(
            "SELECT kind, tags, content, created_at FROM _rk_outbox WHERE d = ?", (d,)
        ).fetchone()
        event_id = signer.sign(*Draft(kind, orjson.loads(tags), content, at)).id
        db.execute(
            "UPDATE _rk_observations SET event_id = ? WHERE observation_id = ?", (event_id, number)
        )
    return str(event_id)


def queued_event(db: Any, kind: int, d: str) -> tuple[str, int] | None:
    """Event id and `created_at` of the waiting version of an address, which may already be at the
    relay without its OK. None: nothing waits, or no key is bound yet."""
    signer = about(db, "pubkey")
    row = db.execute(
        "SELECT created_at, tags, content FROM _rk_outbox WHERE kind = ? AND d = ?", (kind, d)
    ).fetchone()
    if signer is None or row is None:
        return None
    at, tags, content = row
    return sha256(id_bytes(signer, at, kind, orjson.loads(tags), content)).hexdigest(), at


def queue(db: Any, draft: Draft) -> None:
    """Add to the outbox, replacing an older waiting version of its address."""
    db.execute(
        "INSERT OR REPLACE INTO _rk_outbox (kind, d, tags, content, created_at)"
        " VALUES (?, ?, ?, ?, ?)",
        (draft.kind, draft.d, compact(draft.tags), draft.content, draft.created_at),
    )


def add_task(
    db: Any, prompt: str, project: str | None, cwd: str | None, at: int, not_before: int | None
) -> int:
    """Insert a task; returns its id. Tasks are not sent."""
    return int(
        db.execute(
            "INSERT INTO _rk_tasks (queued_at, not_before, project, cwd, prompt)"
            " VALUES (?, ?, ?, ?, ?)",
            (at, not_before, project, cwd, prompt),
        ).lastrowid
    )


def drop_tasks(db: Any, numbers: Iterable[int]) -> None:
    rows = [(number,) for number in numbers]
    if rows:
        _must_erase(db)
    db.executemany("DELETE FROM _rk_tasks WHERE id = ?", rows)


def queue_deletion_of_record(
    db: Any, d: str, versions: Sequence[tuple[str, int, int]], now: int
) -> int:
    """Queue the deletion of every version of one's own record up to the date that is returned.
    `versions`: id, kind and created_at of those that this machine knows; another may have written a
    newer one.

    The request names this record alone: another may have other readers, who would learn of it.
    """
    until = max([now, *(at for _, _, at in versions)])
    tags = [["e", event_id] for event_id, _, _ in versions]
    signer = about(db, "pubkey")
    if signer is not None:
        tags.append(["a", str(Address(signer, kinds.APP_DATA, d))])
    if tags:
        queue(db, Draft(kinds.DELETION, [*tags, ["k", str(kinds.APP_DATA)]], "", until))
    return until


def queue_deletion(db: Any, events: Sequence[tuple[str, int]], at: int) -> None:
    """Queue deletion requests (NIP-09) for events: (id, kind) of each."""
    for start in range(0, len(events), _DELETE_BATCH):
        part = events[start : start + _DELETE_BATCH]
        tags = [["e", event_id] for event_id, _ in part]
        tags += [["k", str(kind)] for kind in sorted({kind for _, kind in part})]
        queue(db, Draft(kinds.DELETION, tags, "", at))


def session_deletions(db: Any) -> dict[str, tuple[int, int]]:
    """Addresses of the sessions whose deletion waits for the relay: its position and date."""
    found = db.execute(
        "SELECT position, tags, created_at FROM _rk_outbox WHERE kind = ? AND refusal IS NULL",
        (kinds.DELETION,),
    )
    return {
        tag[1]: (position, at)
        for position, tags, at in found
        for tag in orjson.loads(tags)
        if tag[0] == "a"
    }


def date_deletion(db: Any, position: int, version: Event) -> None:
    """Date the waiting deletion of a session as a version that another machine has stored, and
    what was recorded of the session here since after that."""
    at, own = version.created_at, (version.d.removeprefix(SESSION), ONESELF)
    newer = "created_at = ?1 + 1 WHERE created_at <= ?1 AND"
    found = db.execute(
        "SELECT event_id FROM _rk_sessions WHERE session_id = ? AND author = ?", own
    ).fetchone()
    if found is not None and found[0] == version.id:
        return  # it is of after the purge
    db.execute("UPDATE _rk_outbox SET created_at = ? WHERE position = ?", (at, position))
    db.execute(
        f"UPDATE _rk_outbox SET {newer} kind = ?2 AND d = ?3",  # noqa: S608  text of ours
        (at, version.kind, version.d),
    )
    db.execute(
        f"UPDATE _rk_sessions SET {newer} session_id = ?2 AND author = ?3",  # noqa: S608
        (at, *own),
    )


# -- rows -----------------------------------------------------------------------------------------


def session_in(db: Any, session_id: str) -> Session | None:
    row = db.execute("SELECT * FROM sessions WHERE id = ?", (session_id,)).fetchone()
    return None if row is None else session_of(row)


def own_session_in(db: Any, session_id: str) -> Session | None:
    """The session if there is one's own version of it, which is the one that is shown."""
    row = db.execute(
        "SELECT 1 FROM _rk_sessions WHERE session_id = ? AND author = ?", (session_id, ONESELF)
    ).fetchone()
    return None if row is None else session_in(db, session_id)


def newest_session(db: Any, project: str) -> str | None:
    """Id of one's own newest session of the project; None: it has none."""
    found = db.execute(
        "SELECT id FROM sessions JOIN _rk_sessions ON session_id = id"
        " WHERE project = ? AND author = ? ORDER BY started_at DESC, id LIMIT 1",
        (project, ONESELF),
    ).fetchone()
    return None if found is None else str(found[0])


def session_of(row: Sequence[Any]) -> Session:
    """The session in a row of `sessions`."""
    id_, project, started, ended, signature, summary = row
    return Session(
        id_,
        project,
        started,
        ended,
        None if signature is None else tuple([(n, c) for n, c in orjson.loads(signature)]),
        None if summary is None else summary_from(orjson.loads(summary)),
    )


def own_project(db: Any, session_id: str) -> str | None:
    """The project of a session that has one's own records, which others do not rename: it is told
    as part of them. None: it has none."""
    row = db.execute(
        "SELECT project FROM sessions WHERE id = :session AND ("
        "EXISTS (SELECT 1 FROM _rk_sessions WHERE session_id = :session AND author = :own)"
        " OR EXISTS (SELECT 1 FROM observations JOIN _rk_observations ON observation_id = id"
        " WHERE session_id = :session AND author = :own)"
        " OR EXISTS (SELECT 1 FROM prompts JOIN _rk_prompts ON prompt_id = id"
        " WHERE session_id = :session AND author = :own))",
        {"session": session_id, "own": ONESELF},
    ).fetchone()
    return None if row is None else str(row[0])


def put_session(db: Any, session: Session, origin: Origin) -> None:
    """One's own version takes precedence over those of others, theirs in key order. Theirs do not
    change an own project."""
    known = db.execute(
        "SELECT min(author) FROM _rk_sessions WHERE session_id = ?", (session.id,)
    ).fetchone()[0]
    db.execute(
        "INSERT OR REPLACE INTO _rk_sessions VALUES (?, ?, ?, ?)",
        (session.id, origin.author, origin.event_id, origin.created_at),
    )
    if known is not None and known < origin.author:
        return
    project = None if origin.author == ONESELF else own_project(db, session.id)
    summary = session.summary
    db.execute(
        "INSERT INTO sessions VALUES (?, ?, ?, ?, ?, ?) ON CONFLICT (id) DO UPDATE SET"
        " project = excluded.project, started_at = excluded.started_at,"
        " ended_at = excluded.ended_at, signature = excluded.signature, summary = excluded.summary",
        (
            session.id,
            session.project if project is None else project,
            session.started_at,
            session.ended_at,
            None if session.signature is None else compact(session.signature),
            None if summary is None else compact(summary.fields()),
        ),
    )


def put_prompt(db: Any, prompt: Prompt, d: str, origin: Origin) -> int | None:
    """Insert a prompt; returns its id. None: it exists already. The session must exist."""
    if db.execute("SELECT 1 FROM _rk_prompts WHERE d = ?", (d,)).fetchone():
        return None
    number: int = db.execute(
        "INSERT INTO prompts (session_id, timestamp, source, content) VALUES (?, ?, ?, ?)",
        (prompt.session, prompt.timestamp, prompt.source.value, prompt.content),
    ).lastrowid
    db.execute("INSERT INTO _rk_prompts VALUES (?, ?, ?, ?, ?)", (number, d, *_columns_of(origin)))
    db.execute(
        "UPDATE observations SET prompt_id = ?"
        " WHERE id IN (SELECT observation_id FROM _rk_unlinked WHERE prompt = ?)",
        (number, d),
    )
    db.execute("DELETE FROM _rk_unlinked WHERE prompt = ?", (d,))
    return number


def put_observation(db: Any, observation: Observation, d: str, origin: Origin) -> int | None:
    """Insert an observation; returns its id. None: it exists already. The session must exist. It is
    linked to its prompt, at once or when that comes: a relay sends them in any order."""
    if db.execute("SELECT 1 FROM _rk_observations WHERE d = ?", (d,)).fetchone():
        return None
    metadata = observation.metadata
    prompt = observation.prompt
    prompt_d = None if prompt is None else f"nmem:prompt:{observation.session}:{prompt}"
    linked = db.execute("SELECT prompt_id FROM _rk_prompts WHERE d = ?", (prompt_d,)).fetchone()
    number: int = db.execute(
        "INSERT INTO observations (session_id, prompt_id, timestamp, obs_type, source_event,"
        " tool_name, file_path, content, metadata) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)",
        (
            observation.session,
            None if linked is None else linked[0],
            observation.timestamp,
            str(observation.obs_type),
            str(observation.source_event),
            observation.tool_name,
            observation.file_path,
            observation.content,
            None if metadata is None else compact(metadata),
        ),
    ).lastrowid
    db.execute(
        "INSERT INTO _rk_observations VALUES (?, ?, ?, ?, ?)", (number, d, *_columns_of(origin))
    )
    if prompt_d is not None and linked is None:
        db.execute("INSERT INTO _rk_unlinked VALUES (?, ?)", (number, prompt_d))
    return number


def _columns_of(origin: Origin) -> tuple[str, str | None, int]:
    return origin.author, origin.event_id, origin.created_at


def newest_prompt(db: Any, session_id: str, at: int) -> str | None:
    """Hash of one's own prompt that observations of this time follow."""
    found = db.execute(
        "SELECT d FROM prompts JOIN _rk_prompts ON prompt_id = id"
        " WHERE session_id = ? AND author = ? AND timestamp <= ?"
        " ORDER BY timestamp DESC, id DESC LIMIT 1",
        (session_id, ONESELF, at),
    ).fetchone()
    return None if found is None else hash_in(found[0])


def newest_observation(db: Any, session_id: str, content: str) -> int:
    """Id of an existing observation with this content."""
    (number,) = db.execute(
        "SELECT max(id) FROM observations WHERE session_id = ? AND content = ?",
        (session_id, content),
    ).fetchone()
    return int(number)


def markers_of(db: Any, project: str) -> dict[str, int]:
    """Text → id of one's own newest markers of a project."""
    rows = db.execute(
        "SELECT o.content, o.id FROM observations o JOIN sessions s ON s.id = o.session_id"
        " JOIN _rk_observations k ON k.observation_id = o.id AND k.author = ?"
        " WHERE o.obs_type = ? AND s.project = ? ORDER BY o.id DESC LIMIT ?",
        (ONESELF, ObsType.MARKER, project, _MOST_MARKERS),
    )
    return dict(rows.fetchall())


# -- removal: the database erases what was deleted after the commit -------------------------------


def _must_erase(db: Any) -> None:
    set_about(db, {MUST_ERASE: "1"})


def drop_observations(db: Any, numbers: Iterable[int]) -> None:
    rows = [(number,) for number in numbers]
    if rows:
        _must_erase(db)
    db.executemany("DELETE FROM observations WHERE id = ?", rows)
    db.executemany("DELETE FROM _rk_observations WHERE observation_id = ?", rows)


def drop_prompts(db: Any, numbers: Iterable[int]) -> None:
    """Also unlinks their observations."""
    rows = [(number,) for number in numbers]
    if rows:
        _must_erase(db)
    db.executemany("UPDATE observations SET prompt_id = NULL WHERE prompt_id = ?", rows)
    db.executemany("DELETE FROM prompts WHERE id = ?", rows)
    db.executemany("DELETE FROM _rk_prompts WHERE prompt_id = ?", rows)


def note_purged(db: Any, numbers: Iterable[int]) -> None:
    """Before these prompts are dropped: see `is_purged`."""
    query = "SELECT timestamp, content FROM prompts WHERE id = ? AND source = ?"
    found = [db.execute(query, (number, Source.AGENT)).fetchone() for number in numbers]
    set_about(db, {_purged_name(*row): "" for row in found if row is not None})


def is_purged(db: Any, thought: Prompt) -> bool:
    """Whether a thought of this second was deleted: a fork of its session, or one that is resumed
    under another id, begins with a copy of the lines."""
    return about(db, _purged_name(thought.timestamp, thought.content)) is not None


def _purged_name(timestamp: int, content: str) -> str:
    return _PURGED + sha256(f"{timestamp} {content}".encode()).hexdigest()


def drop_sessions(db: Any, ids: Iterable[str]) -> None:
    """They must be empty. How far their transcripts were read is kept: when one goes on, what was
    deleted is not read again."""
    for session_id in ids:
        _must_erase(db)
        db.execute("DELETE FROM sessions WHERE id = ?", (session_id,))
        db.execute("DELETE FROM _rk_sessions WHERE session_id = ?", (session_id,))


def drop_offsets(db: Any, ids: Iterable[str]) -> None:
    """Drop how far the transcripts of these sessions were read."""
    rows = [(session_id,) for session_id in ids]
    db.executemany("DELETE FROM _cursor WHERE session_id = ?", rows)
    db.executemany("DELETE FROM _rk_read_to WHERE session_id = ?", rows)


def drop_session_of(db: Any, session_id: str, author: str) -> None:
    """Drop an author's version of a session. If it is the one that is shown, only the row is left,
    without a text, but for an own project: the versions of others are dropped too, so that they
    are fetched again."""
    shown = db.execute(
        "SELECT min(author) FROM _rk_sessions WHERE session_id = ?", (session_id,)
    ).fetchone()[0]
    db.execute("DELETE FROM _rk_sessions WHERE session_id = ? AND author = ?", (session_id, author))
    if shown != author:
        return
    _must_erase(db)
    db.execute("DELETE FROM _rk_sessions WHERE session_id = ?", (session_id,))
    db.execute(
        "UPDATE sessions SET project = ?, ended_at = NULL, signature = NULL, summary = NULL"
        " WHERE id = ?",
        (own_project(db, session_id) or UNKNOWN, session_id),
    )


def ignore_events(db: Any, events: Iterable[tuple[str | None, int]]) -> None:
    """Do not fetch these events, (id, created_at) each, again."""
    db.executemany(
        "INSERT OR IGNORE INTO _rk_passed_over VALUES (?, ?)",
        [event for event in events if event[0] is not None],
    )


def purged_ids(db: Any, events: Iterable[Event]) -> set[str]:
    """Those of these events whose deletion waits for the relay, or was refused by it."""
    query = "SELECT tags, created_at FROM _rk_outbox WHERE kind = ?"
    ids: set[str] = set()
    until: dict[str, int] = {}
    for tags, at in db.execute(query, (kinds.DELETION,)).fetchall():
        for name, value, *_ in orjson.loads(tags):
            if name == "e":
                ids.add(value)
            elif name == "a":
                until[value] = max(at, until.get(value, 0))
    return {
        event.id
        for event in events
        if event.id in ids
        or event.created_at <= until.get(str(Address(event.pubkey, event.kind, event.d)), -1)
    }


def about(db: Any, name: str) -> str | None:
    found = db.execute("SELECT value FROM _rk_about WHERE name = ?", (name,)).fetchone()
    return None if found is None else str(found[0])


def set_about(db: Any, values: Mapping[str, str]) -> None:
    db.executemany("INSERT OR REPLACE INTO _rk_about VALUES (?, ?)", list(values.items()))
