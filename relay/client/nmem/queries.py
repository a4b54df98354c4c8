"""Queries on the cache (M-26 to M-29). Each function takes an open connection."""

from __future__ import annotations

import sqlite3
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Any, Final

import orjson

from relay.client.nmem.cipher import database_errors
from relay.client.nmem.updates import ECHOES, UNKNOWN, about, session_of
from relay.memory.fence import attribution
from relay.memory.nmem import context, ranking
from relay.memory.nmem.ranking import Row
from relay.memory.nmem.summary import EMPTY_SESSION
from relay.nostr import kinds
from relay.nostr.keywords import any_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from relay.memory.nmem.records import Session

_DAY: Final = 86_400
_MAX_INT: Final = 2**63 - 1
_RECENT: Final = 5_000
"""Number of newest rows that are ranked: older ones weigh almost nothing."""
_SHOWN_SESSIONS: Final = 20


class Order(StrEnum):
    """Order of search results."""

    RELEVANCE = "relevance"
    BLENDED = "blended"


@dataclass(frozen=True, slots=True)
class Scope:
    """Filter on rows; None: all. Times are Unix seconds."""

    project: str | None = None
    obs_type: str | None = None
    before: int | None = None
    """Exclusive."""
    after: int | None = None
    """Inclusive."""

    @property
    def names(self) -> dict[str, object]:
        return {
            "project": self.project,
            "obs_type": self.obs_type,
            "before": self.before,
            "after": self.after,
        }


@dataclass(frozen=True, slots=True)
class Found:
    """An observation in the cache, or a prompt: its id is negative, its type PROMPT, its
    `source_event` the source."""

    id: int
    session_id: str
    prompt_id: int | None
    timestamp: int
    """Unix seconds."""
    obs_type: str
    source_event: str
    tool_name: str | None
    file_path: str | None
    content: str
    metadata: dict[str, object] | None
    is_pinned: bool
    project: str
    event_id: str | None
    """None: not signed yet."""
    author: str = ""
    """`NAME (npub1abc…)` of another key; empty for one's own."""

    @property
    def row(self) -> Row:
        return Row(
            self.id,
            self.timestamp,
            self.obs_type,
            self.content,
            self.project,
            self.file_path,
            self.is_pinned,
            self.author,
        )


@dataclass(frozen=True, slots=True)
class FoundPrompt:
    id: int
    session_id: str
    timestamp: int
    source: str
    content: str
    author: str = ""
    """As of `Found`."""


_PROJECT: Final = f"""
CASE WHEN ifnull(k.author, '') = '' OR coalesce(
    (SELECT min(author) FROM _rk_sessions WHERE session_id = s.id), k.author) IN ('', k.author)
THEN s.project ELSE '{UNKNOWN}' END
"""
"""Of a row: not one that a third key has given its session."""
_COLUMNS: Final = f"""
SELECT o.id, o.session_id, o.prompt_id, o.timestamp, o.obs_type, o.source_event, o.tool_name,
       o.file_path, o.content, o.metadata, o.is_pinned, {_PROJECT}, k.event_id, k.author, n.value
FROM observations o JOIN sessions s ON s.id = o.session_id
     LEFT JOIN _rk_observations k ON k.observation_id = o.id
     LEFT JOIN _rk_about n ON n.name = 'name:' || k.author
"""
PROMPT: Final = "prompt"
_PROMPT_COLUMNS: Final = f"""
SELECT -p.id, p.session_id, p.id, p.timestamp, '{PROMPT}', p.source, NULL, NULL, p.content, NULL, 0,
       {_PROJECT}, k.event_id, k.author, n.value
FROM prompts p JOIN sessions s ON s.id = p.session_id
     LEFT JOIN _rk_prompts k ON k.prompt_id = p.id
     LEFT JOIN _rk_about n ON n.name = 'name:' || k.author
WHERE p.id = ?
"""
_SCOPED: Final = """
    (:project IS NULL OR s.project = :project) AND (:obs_type IS NULL OR o.obs_type = :obs_type)
    AND (:before IS NULL OR o.timestamp < :before) AND (:after IS NULL OR o.timestamp >= :after)
"""
_TABLES: Final = (("observations", "", "o.obs_type"), ("prompts", "-", f"'{PROMPT}'"))
_MATCHES: Final = tuple(
    f"SELECT {sign}o.id, o.timestamp, {kind}, f.rank"
    f" FROM {table}_fts f JOIN {table} o ON o.id = f.rowid JOIN sessions s ON s.id = o.session_id"
    f" WHERE {table}_fts MATCH :query AND" + _SCOPED.replace("o.obs_type", kind)
    for table, sign, kind in _TABLES
)
_MATCHES_ANYWHERE: Final = tuple(
    f"SELECT {sign}rowid, rank FROM {table}_fts WHERE {table}_fts MATCH :query"
    for table, sign, _ in _TABLES
)
_BEST: Final = " ORDER BY rank LIMIT :most"


def _found(row: Sequence[Any]) -> Found:
    metadata = None if row[9] is None else orjson.loads(row[9])
    return Found(
        row[0],
        row[1],
        row[2],
        row[3],
        row[4],
        row[5],
        row[6],
        row[7],
        row[8],
        metadata,
        bool(row[10]),
        row[11],
        row[12],
        _author(row[13], row[14]),
    )


_SESSION_AUTHOR: Final = """
SELECT coalesce(
    (SELECT min(author) FROM _rk_sessions WHERE session_id = :session),
    (SELECT author FROM observations JOIN _rk_observations ON observation_id = id
     WHERE session_id = :session ORDER BY id LIMIT 1),
    (SELECT author FROM prompts JOIN _rk_prompts ON prompt_id = id
     WHERE session_id = :session ORDER BY id LIMIT 1)
)
"""
"""A prompt names a session but no project."""


def _author(pubkey: str | None, name: str | None) -> str:
    """`NAME (npub1abc…)`; empty for one's own rows."""
    return attribution(pubkey, name) if pubkey else ""


def search(
    db: Any, text: str, scope: Scope, order: Order, now: int, limit: int, offset: int
) -> list[Found]:
    """Observations and prompts that contain the words of `text` (M-26).

    If none contains all words, as for a question in a sentence, those that contain any.
    """
    query = ranking.safe_query(text)
    if query is None:
        return []
    found = _matching(db, query, scope, order, now, limit, offset)
    if found or not ranking.is_plain(text):
        return found
    if offset > 0 and _matching(db, query, scope, order, now, 1, 0):
        return []  # past the last page
    loose = any_of(text)
    return _matching(db, loose, scope, order, now, limit, offset) if loose else []


def _matching(
    db: Any, query: str, scope: Scope, order: Order, now: int, limit: int, offset: int
) -> list[Found]:
    """`query`: FTS5 syntax."""
    is_relevance = order is Order.RELEVANCE
    wanted = _MATCHES_ANYWHERE if is_relevance and scope == Scope() else _MATCHES
    end = _BEST if is_relevance else ""
    names = {"query": query, "most": min(limit + offset, _MAX_INT)} | scope.names
    try:
        matches = [row for sql in wanted for row in db.execute(sql + end, names).fetchall()]
    except database_errors() as error:
        if getattr(error, "sqlite_errorcode", 0) & 0xFF == sqlite3.SQLITE_ERROR:
            return []  # a query FTS5 rejects, such as NEAR of a phrase
        raise
    if is_relevance:
        matches.sort(key=lambda row: (row[-1], row[0] < 0, abs(row[0])))
        numbers = [row[0] for row in matches]
    else:
        ranked = [(Row(id_, at, kind, "", ""), rank) for id_, at, kind, rank in matches]
        numbers = [row.id for row in ranking.blended(ranked, now)]
    return get(db, numbers[offset : offset + limit])


def get(db: Any, numbers: Iterable[int]) -> list[Found]:
    """In the order given; unknown ids are skipped."""
    found = []
    for number in numbers:
        if number < 0:
            row = db.execute(_PROMPT_COLUMNS, (-number,)).fetchone()
        else:
            row = db.execute(_COLUMNS + " WHERE o.id = ?", (number,)).fetchone()
        if row is not None:
            found.append(_found(row))
    return found


def timeline(db: Any, anchor: int, before: int, after: int) -> list[Found] | None:
    """Observations around an anchor, including it; None: no such observation."""
    middle = get(db, [anchor])
    if not middle:
        return None
    at = (middle[0].timestamp, anchor)
    # Ids only: covered by an index.
    older = db.execute(
        "SELECT id FROM observations WHERE (timestamp, id) < (?, ?)"
        " ORDER BY timestamp DESC, id DESC LIMIT ?",
        (*at, before),
    ).fetchall()
    newer = db.execute(
        "SELECT id FROM observations WHERE (timestamp, id) > (?, ?) ORDER BY timestamp, id LIMIT ?",
        (*at, after),
    ).fetchall()
    return get(db, [number for (number,) in [*older[::-1], (anchor,), *newer]])


_IS_OWN: Final = f"coalesce(({_SESSION_AUTHOR.replace(':session', 'sessions.id')}), '') = ''"


def summaries(
    db: Any, scope: Scope, limit: int, condition: str = "1", now: int = _MAX_INT
) -> list[Session]:
    """Sessions with a summary, newest first; those dated after `now` last. `condition`: SQL."""
    rows = db.execute(
        f"SELECT * FROM sessions WHERE summary IS NOT NULL AND {condition}"
        " AND (:project IS NULL OR project = :project)"
        " AND (:before IS NULL OR started_at < :before)"
        " AND (:after IS NULL OR started_at >= :after)"
        " ORDER BY started_at > :now, started_at DESC, id",
        scope.names | {"now": now},
    )
    sessions: list[Session] = []
    for row in rows:
        session = session_of(row)
        if session.summary != EMPTY_SESSION:
            sessions.append(session)
            if len(sessions) == limit:
                break
    return sessions


def recent(db: Any, scope: Scope, now: int, limit: int) -> list[Found]:
    """The highest ranked observations for a project, or for none in particular (M-27)."""
    rows = db.execute(
        _COLUMNS + " WHERE (:obs_type IS NULL OR o.obs_type = :obs_type)"
        " AND (:before IS NULL OR o.timestamp < :before)"
        " AND (:after IS NULL OR o.timestamp >= :after)"
        " ORDER BY o.id DESC LIMIT :limit",
        scope.names | {"limit": _RECENT},
    )
    found = {row[0]: _found(row) for row in rows}
    best = ranking.recent((each.row for each in found.values()), now, scope.project)
    return [found[row.id] for row in best[:limit]]


def trace(
    db: Any, session_id: str, scope: Scope
) -> tuple[Session, list[FoundPrompt], list[Found]] | None:
    """A session with its prompts and observations, in order; None: unknown session."""
    row = db.execute("SELECT * FROM sessions WHERE id = ?", (session_id,)).fetchone()
    if row is None:
        return None
    names = scope.names | {"session": session_id}
    prompt_rows = db.execute(
        "SELECT id, session_id, timestamp, source, content, author, value FROM prompts"
        " LEFT JOIN _rk_prompts ON prompt_id = id LEFT JOIN _rk_about ON name = 'name:' || author"
        " WHERE session_id = :session AND (:before IS NULL OR timestamp < :before)"
        " AND (:after IS NULL OR timestamp >= :after) ORDER BY timestamp, id",
        names,
    )
    prompts = [
        FoundPrompt(id_, of, at, said_by, content, _author(author, name))
        for id_, of, at, said_by, content, author, name in prompt_rows
    ]
    done = db.execute(
        _COLUMNS + " WHERE o.session_id = :session AND" + _SCOPED + " ORDER BY o.timestamp, o.id",
        names,
    )
    return session_of(row), prompts, [_found(each) for each in done]


def file_history(db: Any, file_path: str, scope: Scope, limit: int) -> list[Found]:
    """Observations of a file, newest first."""
    rows = db.execute(
        _COLUMNS
        + " WHERE o.file_path = :path AND"
        + _SCOPED
        + " ORDER BY o.timestamp DESC, o.id DESC LIMIT :limit",
        scope.names | {"path": file_path, "limit": limit},
    )
    return [_found(row) for row in rows]


def commits_of(db: Any, file_path: str, limit: int) -> list[Found]:
    """Commits of sessions that had changed the file before, newest first."""
    rows = db.execute(
        _COLUMNS + " WHERE o.obs_type IN ('git_commit', 'git_push') AND EXISTS ("
        "SELECT 1 FROM observations e WHERE e.session_id = o.session_id AND e.file_path = ?"
        " AND e.obs_type IN ('file_edit', 'file_write') AND e.timestamp <= o.timestamp)"
        " ORDER BY o.timestamp DESC, o.id DESC LIMIT ?",
        (file_path, limit),
    )
    return [_found(row) for row in rows]


def session_authors(db: Any, session_ids: Iterable[str]) -> dict[str, str]:
    """Authors of the versions shown of these sessions, as of `Found`; without one's own. Where no
    record of a session is known, the author of the record that named it first."""
    shown: dict[str, str] = {}
    for session_id in session_ids:
        (author,) = db.execute(_SESSION_AUTHOR, {"session": session_id}).fetchone()
        if author:
            name = db.execute(
                "SELECT value FROM _rk_about WHERE name = 'name:' || ?", (author,)
            ).fetchone()
            shown[session_id] = _author(author, None if name is None else name[0])
    return shown


_PINNED: Final = (
    "o.is_pinned AND o.id IN (SELECT n.observation_id FROM _rk_pins p"
    " CROSS JOIN _rk_observations n ON n.event_id = p.target)"
)
_FRESH: Final = (
    "s.project = :project AND o.timestamp >= :since"
    " AND o.obs_type IN ('file_edit', 'file_write', 'git_commit', 'git_push')"
)
_MOST_READ: Final = 1_000
"""Rows of each kind that a context is made of, own ones first, then the newest; it shows 30, and
the edits of a file as one. Others of the group write any number."""


def context_of(
    db: Any,
    project: str,
    now: int,
    before: int | None = None,
    source: str = "",
) -> str:
    """The context of an agent in the project (M-28), not fenced. `before`: as of that time."""
    now = now if before is None else min(now, before)
    scope = Scope(project=project, before=before)
    sessions = summaries(db, scope, _SHOWN_SESSIONS, _IS_OWN, now)
    sessions += summaries(db, scope, context.MAX_OTHERS, f"NOT {_IS_OWN}", now)
    asked = {"project": project, "since": now - _DAY, "before": before, "most": _MOST_READ}
    rows = {
        row[0]: _found(row).row
        for condition in (
            _PINNED + " AND s.project = :project",
            _PINNED + " AND s.project <> :project",
            _FRESH,
        )
        for row in db.execute(
            f"{_COLUMNS} WHERE o.id IN (SELECT o.id FROM observations o"
            f" JOIN sessions s ON s.id = o.session_id"
            f" LEFT JOIN _rk_observations k ON k.observation_id = o.id WHERE {condition}"
            " AND (:before IS NULL OR o.timestamp < :before)"
            " ORDER BY ifnull(k.author, '') = '' DESC, o.timestamp DESC, o.id DESC LIMIT :most)",
            asked,
        )
    }
    return context.context(
        project,
        sessions,
        rows.values(),
        now,
        source,
        authors=session_authors(db, [session.id for session in sessions]),
    )


def fenced_context_of(
    db: Any, project: str, now: int, before: int | None = None, source: str = ""
) -> str:
    """As `context_of`, in a fence: see `fenced_context`."""
    own = about(db, "pubkey") or "this machine"
    return context.fenced_context(context_of(db, project, now, before, source), own)


@dataclass(frozen=True, slots=True)
class Counts:
    """Row counts."""

    sessions: int
    prompts: int
    observations: int
    pinned: int
    waiting: int
    """Records not sent to the relay yet."""
    refused: int
    redacted: int
    """Observations of which a secret was kept out."""
    echoes: int
    """Prompts of which recalled text was kept out."""


def counts(db: Any) -> Counts:
    return Counts(
        *db.execute(
            "SELECT (SELECT count(*) FROM sessions), (SELECT count(*) FROM prompts),"
            " (SELECT count(*) FROM observations),"
            " (SELECT count(*) FROM observations WHERE is_pinned),"
            " (SELECT count(*) FROM _rk_outbox WHERE refusal IS NULL),"
            " (SELECT count(*) FROM _rk_outbox WHERE refusal IS NOT NULL),"
            " (SELECT count(*) FROM observations WHERE metadata LIKE '%\"redacted\":true%'),"
            " coalesce((SELECT CAST(value AS INTEGER) FROM _rk_about WHERE name = ?), 0)",
            (ECHOES,),
        ).fetchone()
    )


def deletions_waiting(db: Any) -> int:
    """Deletion requests not sent to the relay yet."""
    return int(
        db.execute(
            "SELECT count(*) FROM _rk_outbox WHERE kind = ? AND refusal IS NULL", (kinds.DELETION,)
        ).fetchone()[0]
    )


def refused(db: Any) -> list[tuple[str, str]]:
    """(`d`, reason) of records refused by the relay, in the order of recording."""
    rows = db.execute(
        "SELECT d, refusal FROM _rk_outbox WHERE refusal IS NOT NULL ORDER BY position"
    )
    return list(rows.fetchall())


def sessions_beginning(db: Any, begin: str, most: int) -> list[tuple[str, bool]]:
    """Session ids, and whether it is one's own: this id alone if there is such a session, and none
    of one's own that begins with it, else those that begin with it, one's own first."""
    rows = db.execute(
        f"SELECT id, {_IS_OWN} AS own FROM sessions"
        " WHERE substr(id, 1, length(?1)) = ?1 ORDER BY own DESC, id <> ?1, id LIMIT ?2",
        (begin, most),
    ).fetchall()
    found = [(str(id_), bool(is_own)) for id_, is_own in rows]
    return found[:1] if found and found[0][0] == begin else found


def last_session(db: Any) -> Session | None:
    row = db.execute("SELECT * FROM sessions ORDER BY started_at DESC, id LIMIT 1").fetchone()
    return None if row is None else session_of(row)
