"""What leaves the cache: by age, or because somebody says so. MEMORY.md M-25, 5.8 `purge`."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import chain
from typing import TYPE_CHECKING, Any, Final

from relay.client.nmem.writing import (
    ONESELF,
    drop_observations,
    drop_prompts,
    drop_sessions,
    pass_over,
    queue_deletion,
    queued_id,
)
from relay.memory.nmem.finding import safe_query
from relay.memory.nmem.retention import DAYS, due_before
from relay.nostr import kinds

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from relay.client.nmem.database import Database

_DAY: Final = 86_400
_AT_ONCE: Final = 500
"""Rows of one transaction."""


@dataclass(frozen=True, slots=True)
class Removed:
    """Rows of the cache."""

    observations: int = 0
    prompts: int = 0
    sessions: int = 0

    @property
    def total(self) -> int:
        return self.observations + self.prompts + self.sessions


# -- by age ---------------------------------------------------------------------------------------


def sweep(database: Database, now: int, days: Mapping[str, int] = DAYS) -> Removed:
    """What is too old goes (M-23, M-24); then prompts that nothing follows from, and empty
    sessions. These two only of sessions that ended more than a day ago: an agent stops after each
    turn, and goes on."""
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
                    " AND NOT o.is_pinned AND k.event_id IS NOT NULL LIMIT ?",
                    (obs_type, before, _AT_ONCE),
                ).fetchall()
                drop_observations(db, [row[0] for row in rows])
                pass_over(db, [row[1:] for row in rows])
            observations += len(rows)
            if len(rows) < _AT_ONCE:
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
        pass_over(db, [row[1:] for row in (*prompts, *sessions)])
    return Removed(observations, len(prompts), len({row[0] for row in sessions}))


# -- because somebody says so ---------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Purge:
    """What is to go: rows that all of it holds for. Times are Unix seconds."""

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
    def takes_sessions(self) -> bool:
        """Whole sessions go, with what was said in them: nothing smaller is named."""
        return self.id is None and self.obs_type is None and self.search is None


def purge(db: Any, wanted: Purge, now: int, *, is_confirmed: bool) -> Removed:
    """What is oneself's of it; gone, here and soon at the relay, only when that is confirmed."""
    observations = _observations(db, wanted)
    prompts: Sequence[Sequence[Any]] = ()
    sessions: Sequence[Sequence[Any]] = ()
    if wanted.takes_sessions:
        prompts = _prompts(db, wanted)
        sessions = _sessions(db, wanted, [row[0] for row in observations], [p[0] for p in prompts])
    if is_confirmed:
        told = [
            *(_events(db, row[1], kinds.APP_RECORD, row[2]) for row in (*observations, *prompts)),
            *(_events(db, row[1], kinds.APP_DATA, f"nmem:session:{row[0]}") for row in sessions),
        ]
        drop_observations(db, [row[0] for row in observations])
        drop_prompts(db, [row[0] for row in prompts])
        drop_sessions(db, [row[0] for row in sessions])
        pins = _drop_pins(db, [row[1] for row in observations])
        queue_deletion(db, list(chain.from_iterable([*told, *pins])), now)
        db.executemany(
            "DELETE FROM _rk_outbox WHERE d = ?", [(row[2],) for row in (*observations, *prompts)]
        )
        db.executemany(
            "DELETE FROM _rk_outbox WHERE d = ?", [(f"nmem:session:{row[0]}",) for row in sessions]
        )
    return Removed(len(observations), len(prompts), len(sessions))


def _observations(db: Any, wanted: Purge) -> list[tuple[int, str | None, str]]:
    query = None if wanted.search is None else safe_query(wanted.search) or '""'
    rows: list[tuple[int, str | None, str]] = db.execute(
        "SELECT o.id, k.event_id, k.d FROM observations o JOIN sessions s ON s.id = o.session_id"
        " JOIN _rk_observations k ON k.observation_id = o.id"
        " WHERE k.author = :own AND (:id IS NULL OR o.id = :id)"
        " AND (:session IS NULL OR o.session_id = :session)"
        " AND (:project IS NULL OR s.project = :project)"
        " AND (:obs_type IS NULL OR o.obs_type = :obs_type)"
        " AND (:before IS NULL OR o.timestamp < :before) AND (:query IS NULL OR o.id IN"
        " (SELECT rowid FROM observations_fts WHERE observations_fts MATCH :query))",
        {
            "own": ONESELF,
            "id": wanted.id,
            "session": wanted.session,
            "project": wanted.project,
            "obs_type": wanted.obs_type,
            "before": wanted.before,
            "query": query,
        },
    ).fetchall()
    return rows


def _prompts(db: Any, wanted: Purge) -> list[tuple[int, str | None, str]]:
    rows: list[tuple[int, str | None, str]] = db.execute(
        "SELECT p.id, k.event_id, k.d FROM prompts p JOIN sessions s ON s.id = p.session_id"
        " JOIN _rk_prompts k ON k.prompt_id = p.id WHERE k.author = :own"
        " AND (:session IS NULL OR p.session_id = :session)"
        " AND (:project IS NULL OR s.project = :project)"
        " AND (:before IS NULL OR p.timestamp < :before)",
        {
            "own": ONESELF,
            "session": wanted.session,
            "project": wanted.project,
            "before": wanted.before,
        },
    ).fetchall()
    return rows


def _sessions(
    db: Any, wanted: Purge, observations: Iterable[int], prompts: Iterable[int]
) -> list[tuple[str, str | None]]:
    """Those of which nothing is left."""
    rows = db.execute(
        "SELECT s.id, k.event_id FROM sessions s JOIN _rk_sessions k ON k.session_id = s.id"
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
    done, said = set(observations), set(prompts)

    def is_left(session_id: str) -> bool:
        of_it = "SELECT id FROM observations WHERE session_id = ?"
        said_in_it = "SELECT id FROM prompts WHERE session_id = ?"
        return any(n not in done for (n,) in db.execute(of_it, (session_id,))) or any(
            n not in said for (n,) in db.execute(said_in_it, (session_id,))
        )

    return [(id_, event_id) for id_, event_id in rows if not is_left(id_)]


def _events(db: Any, event_id: str | None, kind: int, d: str) -> list[tuple[str, int]]:
    """What a relay may have of a row: its event, and the version that waits or is on its way."""
    found = dict.fromkeys((event_id, queued_id(db, kind, d)))
    return [(known, kind) for known in found if known is not None]


def _drop_pins(db: Any, targets: Iterable[str | None]) -> list[list[tuple[str, int]]]:
    """One's own pins of these; the events that a relay may have of each."""
    found: list[list[tuple[str, int]]] = []
    for target in targets:
        rows = db.execute(
            "SELECT event_id FROM _rk_pins WHERE target = ? AND author = ?", (target, ONESELF)
        ).fetchall()
        found += [
            _events(db, event_id, kinds.APP_DATA, f"nmem:pin:{target}") for (event_id,) in rows
        ]
        db.execute("DELETE FROM _rk_pins WHERE target = ?", (target,))
        db.execute("DELETE FROM _rk_outbox WHERE d = ?", (f"nmem:pin:{target}",))
    return found
