"""What a hook of a coding agent does to the cache. MEMORY.md M-13…M-21."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, assert_never

from relay.client.nmem.reading import context_of
from relay.client.nmem.writing import (
    begin_session,
    end_session,
    newest_prompt,
    record_observation,
    record_prompt,
    session_in,
)
from relay.memory.nmem.capture import (
    Ending,
    HookEvent,
    captured,
    hook_in,
    project_at,
    thoughts_in,
)
from relay.memory.nmem.records import Observation, Prompt, Session

if TYPE_CHECKING:
    from pathlib import PurePath

    from relay.client.nmem.database import Database
    from relay.memory.nmem.capture import Captured, Hook
    from relay.memory.nmem.secrets import SecretFilter

_SCANNED: Final = 16_000_000
"""Bytes of a transcript that one hook reads; the next one goes on from there."""


@dataclass(frozen=True, slots=True)
class Told:
    """What a hook came to."""

    event: HookEvent
    session: str
    answer: str
    """For the agent; empty but at the start of a session."""


def take_hook(
    database: Database,
    text: str,
    named: str | None,
    now: int,
    home: Path,
    secrets: SecretFilter,
    group: str | None = None,
) -> Told:
    """Record one hook: `text` is its JSON, `now` Unix seconds. Raises Invalid, CacheUnusable,
    OSError."""
    hook = hook_in(text, named)
    project = project_at(hook.cwd, str(home), is_root)
    scan = _scanned(database, hook)
    with database.transaction() as db:
        begin_session(db, Session(hook.session, project, now), group)
        if scan is not None:
            _record_thoughts(db, hook.session, scan, now, secrets, group)
        prompt = newest_prompt(db, hook.session)
        for record in captured(hook, now, project, secrets, prompt):
            _record(db, record, group)
    answer = ""
    if hook.event is HookEvent.SESSION_START:
        with database.reading() as db:
            answer = context_of(db, project, now, source=hook.source)
    return Told(hook.event, hook.session, answer)


def is_root(folder: PurePath) -> bool:
    """Whether a repository begins there: for `project_at`."""
    try:
        return Path(folder, ".git").exists()
    except (OSError, ValueError):  # not ours to look at, or no path at all
        return False


def _record(db: Any, record: Captured, group: str | None) -> None:
    match record:
        case Session():
            begin_session(db, record, group)
        case Prompt():
            record_prompt(db, record, group)
        case Observation():
            session = session_in(db, record.session)
            assert session is not None
            record_observation(db, record, session.project, group)
        case Ending():
            end_session(db, record.session, record.at, group)
        case _:
            assert_never(record)


# -- the transcript -------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Scan:
    """Whole lines of a transcript, from where the last hook ended."""

    began: int
    """The offset that was known then."""
    ends: int
    lines: list[bytes]
    is_anew: bool
    """The file was written anew: it is read from its beginning."""


def _scanned(database: Database, hook: Hook) -> _Scan | None:
    if hook.transcript_path is None:
        return None
    with database.reading() as db:
        began = _read_to(db, hook.session)
    try:
        with Path(hook.transcript_path).open("rb") as file:
            is_anew = began > file.seek(0, 2)
            start = file.seek(0 if is_anew else began)
            part = file.read(_SCANNED)
    except (OSError, ValueError):
        return None  # it may not be there yet
    end = part.rfind(b"\n") + 1
    if not end and len(part) == _SCANNED:
        end = len(part)  # one line that is longer than anybody reads
    lines = part[:end].removesuffix(b"\n").split(b"\n") if end else []
    return _Scan(began, start + end, lines, is_anew)


def _record_thoughts(
    db: Any, session: str, scan: _Scan, now: int, secrets: SecretFilter, group: str | None
) -> None:
    """The cursor moves past every line, bad ones included (M-19)."""
    if _read_to(db, session) != scan.began:
        return  # another hook of this session was there first
    known = db.execute(
        "SELECT content FROM prompts WHERE session_id = ? AND source = 'agent'", (session,)
    ).fetchall()
    for thought in thoughts_in(scan.lines, session, now, secrets, [text for (text,) in known]):
        record_prompt(db, thought, group)
    db.execute("INSERT OR REPLACE INTO _rk_read_to VALUES (?, ?)", (session, scan.ends))
    lines = len(scan.lines)
    db.execute(
        "INSERT INTO _cursor VALUES (?1, ?2) ON CONFLICT (session_id) DO UPDATE SET"
        " line_number = CASE WHEN ?3 THEN ?2 ELSE line_number + ?2 END",
        (session, lines, scan.is_anew),
    )


def _read_to(db: Any, session: str) -> int:
    found = db.execute("SELECT offset FROM _rk_read_to WHERE session_id = ?", (session,)).fetchone()
    return 0 if found is None else int(found[0])
