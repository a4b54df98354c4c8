"""Removal of rows: expiry (M-25), and `purge`."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import chain
from typing import TYPE_CHECKING, Any, Final

import orjson

from relay.client.nmem.updates import (
    ONESELF,
    drop_observations,
    drop_offsets,
    drop_prompts,
    drop_sessions,
    drop_summary,
    drop_tasks,
    ignore_events,
    note_purged,
    queue_deletion,
    queue_deletion_of_record,
    queued_event,
)
from relay.memory.fields import compact
from relay.memory.nmem.checks import SESSION
from relay.memory.nmem.ranking import safe_query
from relay.memory.nmem.retention import DAYS, due_before
from relay.memory.nmem.summary import EMPTY_SESSION, summary_from
from relay.nostr import kinds

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from relay.client.nmem.database import Database

_DAY: Final = 86_400
_BATCH: Final = 500
"""Rows per transaction."""


@dataclass(frozen=True, slots=True)
class Removed:
    """Rows removed from the cache."""

    observations: int = 0
    prompts: int = 0
    sessions: int = 0


# -- expiry ---------------------------------------------------------------------------------------


def sweep(database: Database, now: int, days: Mapping[str, int] = DAYS) -> Removed:
    """Remove expired observations (M-23, M-24), then prompts without observations and empty
    sessions. The latter two only of sessions that ended more than a day ago: an agent stops after
    each turn, and may continue."""
    due = due_before(now, days)
    observations = 0
    for obs_type, before in due.items():
        while True:
            with database.transaction() as db:
                rows = db.execute(
                    "SELECT o.id, k.event_id, k.created_at FROM observations o"
                    " JOIN sessions s ON s.id = o.session_id"
                    " JOIN _rk_observations k ON k.observation_id = o.id"
                    " WHERE o.obs_type = ? AND o.timestamp < ? AND s.summary IS NOT NULL"
                    # One that was pinned before it was sent has an event id.
                    " AND NOT o.is_pinned AND k.event_id IS NOT NULL"
                    " AND k.d NOT IN (SELECT d FROM _rk_outbox) LIMIT ?",
                    (obs_type, before, _BATCH),
                ).fetchall()
                drop_observations(db, [row[0] for row in rows])
                ignore_events(db, [row[1:] for row in rows])
            observations += len(rows)
            if len(rows) < _BATCH:
                break
    with database.transaction() as db:
        prompts = db.execute(
            "SELECT p.id, k.event_id, k.created_at FROM prompts p"
            " JOIN sessions s ON s.id = p.session_id JOIN _rk_prompts k ON k.prompt_id = p.id"
            " WHERE s.ended_at < ? AND k.event_id IS NOT NULL"
            " AND NOT EXISTS (SELECT 1 FROM observations o WHERE o.prompt_id = p.id)",
            (now - _DAY,),
        ).fetchall()
        drop_prompts(db, [row[0] for row in prompts])
        sessions = db.execute(
            "SELECT s.id, k.event_id, k.created_at FROM sessions s"
            " JOIN _rk_sessions k ON k.session_id = s.id"
            " WHERE s.ended_at < ? AND k.event_id IS NOT NULL"
            " AND NOT EXISTS (SELECT 1 FROM observations o WHERE o.session_id = s.id)"
            " AND NOT EXISTS (SELECT 1 FROM prompts p WHERE p.session_id = s.id)",
            (now - _DAY,),
        ).fetchall()
        drop_sessions(db, [row[0] for row in sessions])
        drop_offsets(db, [row[0] for row in sessions])
        ignore_events(db, [row[1:] for row in (*prompts, *sessions)])
    return Removed(observations, len(prompts), len({row[0] for row in sessions}))


# -- purge ----------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Purged(Removed):
    summaries: int = 0
    """Of sessions that stay."""
    tasks: int = 0

    @property
    def total(self) -> int:
        return self.observations + self.prompts + self.sessions + self.summaries + self.tasks


@dataclass(frozen=True, slots=True)
class Purge:
    """Conditions of a purge; rows must match all. Times are Unix seconds; a negative id is that of
    a prompt, as in a search."""

    before: int | None = None
    project: str | None = None
    session: str | None = None
    id: int | None = None
    obs_type: str | None = None
    search: str | None = None

    @property
    def is_bounded(self) -> bool:
        return self != Purge()

    @property
    def includes_prompts(self) -> bool:
        return self.obs_type is None and (self.id is None or self.id < 0)

    @property
    def includes_summaries(self) -> bool:
        """Whether a session that stays loses a summary that matches."""
        return self.search is not None and self.id is None and self.obs_type is None

    @property
    def includes_tasks(self) -> bool:
        """A task is of no session."""
        return self.session is None and self.id is None and self.obs_type is None

    @property
    def query(self) -> str | None:
        """For the full-text indexes."""
        return None if self.search is None else safe_query(self.search) or '""'

    @property
    def includes_sessions(self) -> bool:
        """Whether whole sessions are purged: no condition is narrower than a session."""
        return self.id is None and self.obs_type is None and self.search is None


def purge(
    db: Any, wanted: Purge, now: int, group: str | None = None, *, is_confirmed: bool
) -> Purged:
    """One's own matching rows; if confirmed, deleted here and queued for deletion at the relay.
    `group`: that of new versions."""
    observations = _observations(db, wanted)
    prompts = _prompts(db, wanted) if wanted.includes_prompts else []
    summaries = _summaries(db, wanted) if wanted.includes_summaries else []
    tasks = _tasks(db, wanted) if wanted.includes_tasks else []
    sessions: Sequence[Sequence[Any]] = ()
    if wanted.includes_sessions:
        sessions = _sessions(db, wanted, [row[0] for row in observations], [p[0] for p in prompts])
    if is_confirmed:
        records = [*observations, *prompts]
        events = [_events(db, row[1], row[3], kinds.APP_RECORD, row[2]) for row in records]
        ended = {
            f"{SESSION}{id_}": _events(db, event_id, at, kinds.APP_DATA, f"{SESSION}{id_}")
            for id_, event_id, at in (*sessions, *summaries)
        }
        drop_observations(db, [row[0] for row in observations])
        note_purged(db, [row[0] for row in prompts])
        drop_prompts(db, [row[0] for row in prompts])
        drop_sessions(db, [row[0] for row in sessions])
        drop_tasks(db, tasks)
        events += _drop_pins(db, [row[1] for row in observations])
        _drop_waiting(db, [*(row[2] for row in records), *ended])
        # Last: a row that is added moves others, and leaves their bytes where they were.
        until = {d: queue_deletion_of_record(db, d, versions, now) for d, versions in ended.items()}
        for id_, *_ in summaries:
            drop_summary(db, id_, until[f"{SESSION}{id_}"], group)
        gone = list(chain.from_iterable(events))
        queue_deletion(db, [(event_id, kind) for event_id, kind, _ in gone], now)
        if group is not None:
            # The first is a row of the group whose rows it deletes: when that ends, or this key
            # leaves it, another machine reads it no more. This one then deletes nothing, and stays
            # outside of groups.
            versions = chain(gone, *ended.values())
            queue_deletion(db, [(event_id, kind) for event_id, kind, _ in versions], now + 1)
        # The relay may be asked for records before it has taken the deletion.
        ignore_events(db, [(id_, at) for id_, _, at in chain(gone, *ended.values())])
    return Purged(len(observations), len(prompts), len(sessions), len(summaries), len(tasks))


def _drop_waiting(db: Any, ds: Iterable[str]) -> None:
    db.executemany("DELETE FROM _rk_outbox WHERE d = ?", [(d,) for d in ds])


def _observations(db: Any, wanted: Purge) -> list[tuple[int, str | None, str, int]]:
    rows: list[tuple[Any, ...]] = db.execute(
        "SELECT o.id, k.event_id, k.d, k.created_at, o.content, o.file_path, o.tool_name,"
        " o.metadata FROM observations o JOIN sessions s ON s.id = o.session_id"
        " JOIN _rk_observations k ON k.observation_id = o.id"
        " WHERE k.author = :own AND (:id IS NULL OR o.id = :id)"
        " AND (:session IS NULL OR o.session_id = :session)"
        " AND (:project IS NULL OR s.project = :project)"
        " AND (:obs_type IS NULL OR o.obs_type = :obs_type)"
        " AND (:before IS NULL OR o.timestamp < :before)",
        {
            "own": ONESELF,
            "id": wanted.id,
            "session": wanted.session,
            "project": wanted.project,
            "obs_type": wanted.obs_type,
            "before": wanted.before,
        },
    ).fetchall()
    if wanted.query is not None:
        # The index has the content only. A failed command's output is metadata, for instance.
        texts = [
            "\n".join(filter(None, (*row[4:7], *_texts_in(orjson.loads(row[7] or "null")))))
            for row in rows
        ]
        rows = [rows[number] for number in _matching(db, texts, wanted.query)]
    return [(number, event_id, d, at) for number, event_id, d, at, *_ in rows]


def _texts_in(value: object) -> Iterator[str]:
    """All texts of a JSON value, names of fields too."""
    left = [value]
    while left:
        match left.pop():
            case str() as text:
                yield text
            case dict() as fields:
                left += [*fields, *fields.values()]
            case list() as values:
                left += values


def _prompts(db: Any, wanted: Purge) -> list[tuple[int, str | None, str, int]]:
    rows: list[tuple[int, str | None, str, int]] = db.execute(
        "SELECT p.id, k.event_id, k.d, k.created_at FROM prompts p"
        " JOIN sessions s ON s.id = p.session_id"
        " JOIN _rk_prompts k ON k.prompt_id = p.id WHERE k.author = :own"
        " AND (:session IS NULL OR p.session_id = :session)"
        " AND (:project IS NULL OR s.project = :project) AND (:id IS NULL OR p.id = -:id)"
        " AND (:before IS NULL OR p.timestamp < :before) AND (:query IS NULL OR p.id IN"
        " (SELECT rowid FROM prompts_fts WHERE prompts_fts MATCH :query))",
        {
            "own": ONESELF,
            "id": wanted.id,
            "session": wanted.session,
            "project": wanted.project,
            "before": wanted.before,
            "query": wanted.query,
        },
    ).fetchall()
    return rows


def _summaries(db: Any, wanted: Purge) -> list[tuple[str, str | None, int]]:
    """Sessions whose summary has the words."""
    rows = db.execute(
        "SELECT s.id, k.event_id, k.created_at, s.summary FROM sessions s"
        " JOIN _rk_sessions k ON k.session_id = s.id"
        " WHERE k.author = :own AND s.summary IS NOT NULL"
        " AND (:session IS NULL OR s.id = :session) AND (:project IS NULL OR s.project = :project)"
        " AND (:before IS NULL OR s.ended_at < :before)",
        {
            "own": ONESELF,
            "session": wanted.session,
            "project": wanted.project,
            "before": wanted.before,
        },
    ).fetchall()
    texts = [_text_of(row[3]) for row in rows]
    return [rows[number][:3] for number in _matching(db, texts, wanted.query)]


def _tasks(db: Any, wanted: Purge) -> list[int]:
    rows = db.execute(
        "SELECT id, prompt || ' ' || ifnull(cwd, '') FROM _rk_tasks"
        " WHERE (:project IS NULL OR project = :project)"
        " AND (:before IS NULL OR queued_at < :before)",
        {"project": wanted.project, "before": wanted.before},
    ).fetchall()
    if wanted.query is None:
        return [row[0] for row in rows]
    return [rows[number][0] for number in _matching(db, [row[1] for row in rows], wanted.query)]


def _matching(db: Any, texts: Sequence[str], query: str | None) -> list[int]:
    """Positions of the texts that match. No index has them: it is made here, in memory."""
    db.execute("CREATE VIRTUAL TABLE temp.texts USING fts5(content, tokenize='porter unicode61')")
    db.executemany("INSERT INTO temp.texts(rowid, content) VALUES (?, ?)", enumerate(texts))
    asked = "SELECT rowid FROM temp.texts WHERE texts MATCH ? ORDER BY rowid"
    found = [number for (number,) in db.execute(asked, (query,))]
    db.execute("DROP TABLE temp.texts")
    return found


def _text_of(stored: str) -> str:
    """What a summary says; empty for that of a session with too little in it."""
    summary = summary_from(orjson.loads(stored))
    if summary == EMPTY_SESSION:
        return ""
    notes = "" if summary.notes is None else compact(summary.notes)
    *texts, _ = summary.fields().values()
    return "\n".join([*map(str, texts), notes])


def _sessions(
    db: Any, wanted: Purge, observations: Iterable[int], prompts: Iterable[int]
) -> list[tuple[str, str | None, int]]:
    """Sessions that would be empty."""
    rows = db.execute(
        "SELECT s.id, k.event_id, k.created_at FROM sessions s"
        " JOIN _rk_sessions k ON k.session_id = s.id"
        " WHERE k.author = :own AND (:session IS NULL OR s.id = :session)"
        " AND (:project IS NULL OR s.project = :project)"
        " AND (:before IS NULL OR s.started_at < :before)",
        {
            "own": ONESELF,
            "session": wanted.session,
            "project": wanted.project,
            "before": wanted.before,
        },
    ).fetchall()
    observation_ids, prompt_ids = set(observations), set(prompts)

    def has_other_rows(session_id: str) -> bool:
        observations_sql = "SELECT id FROM observations WHERE session_id = ?"
        prompts_sql = "SELECT id FROM prompts WHERE session_id = ?"
        return any(
            n not in observation_ids for (n,) in db.execute(observations_sql, (session_id,))
        ) or any(n not in prompt_ids for (n,) in db.execute(prompts_sql, (session_id,)))

    return [(id_, event_id, at) for id_, event_id, at in rows if not has_other_rows(id_)]


def _events(
    db: Any, event_id: str | None, at: int, kind: int, d: str
) -> list[tuple[str, int, int]]:
    """Events a relay may have of a row, (id, kind, created_at) each: the recorded one, and the
    waiting version."""
    recorded = None if event_id is None else (event_id, at)
    found = dict.fromkeys((recorded, queued_event(db, kind, d)))
    return [(each[0], kind, each[1]) for each in found if each is not None]


def _drop_pins(db: Any, targets: Iterable[str | None]) -> list[list[tuple[str, int, int]]]:
    """Drop one's own pins of these; returns their events at the relay."""
    found: list[list[tuple[str, int, int]]] = []
    for target in targets:
        rows = db.execute(
            "SELECT event_id, created_at FROM _rk_pins WHERE target = ? AND author = ?",
            (target, ONESELF),
        ).fetchall()
        found += [
            _events(db, event_id, at, kinds.APP_DATA, f"nmem:pin:{target}") for event_id, at in rows
        ]
        db.execute("DELETE FROM _rk_pins WHERE target = ?", (target,))
        db.execute("DELETE FROM _rk_outbox WHERE d = ?", (f"nmem:pin:{target}",))
    return found
