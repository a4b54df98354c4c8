"""Records one hook event of a coding agent in the cache (M-13 to M-21)."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, assert_never

from relay.client.nmem.queries import fenced_context_of
from relay.client.nmem.updates import (
    ECHOES,
    ONESELF,
    about,
    begin_session,
    end_session,
    is_purged,
    newest_prompt,
    own_session_in,
    record_observation,
    record_prompt,
    set_about,
)
from relay.files import regular_file
from relay.memory.junk import without_echo
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
    from collections.abc import Iterator
    from pathlib import PurePath

    from relay.client.nmem.database import Database
    from relay.memory.nmem.capture import Captured, Hook
    from relay.memory.secrets import SecretFilter

_READ_SIZE: Final = 16_000_000
"""Bytes of a transcript read per hook; the next hook continues there."""


@dataclass(frozen=True, slots=True)
class HookResult:
    """The result of a hook."""

    event: HookEvent
    session: str
    answer: str
    """Context for the agent; empty except at the start of a session."""


def record_hook(
    database: Database,
    text: str,
    named: str | None,
    now: int,
    home: Path,
    secrets: SecretFilter,
    group: str | None = None,
) -> HookResult:
    """Record one hook: `text` is its JSON, `now` Unix seconds. Raises Invalid, CacheUnusable,
    OSError."""
    hook = hook_in(text, named)
    project = project_at(hook.cwd, str(home), is_root)
    scan = _scan(database, hook)
    with database.transaction() as db:
        begin_session(db, Session(hook.session, project, now), group)
        if scan is not None:
            _record_thoughts(db, hook.session, scan, now, secrets, group)
        if without_echo(hook.prompt) != hook.prompt:
            set_about(db, {ECHOES: str(int(about(db, ECHOES) or 0) + 1)})
        prompt = newest_prompt(db, hook.session, now)
        for record in captured(hook, now, project, secrets, prompt):
            _record(db, record, group)
    answer = ""
    if hook.event is HookEvent.SESSION_START:
        with database.reading() as db:
            context = fenced_context_of(db, project, now, source=hook.source)
        answer = f"{context}\n" if context else ""
    return HookResult(hook.event, hook.session, answer)


def is_root(folder: PurePath) -> bool:
    """Whether a git repository starts at this folder: for `project_at`."""
    try:
        return Path(folder, ".git").exists()
    except (OSError, ValueError):  # unreadable folder, or an invalid path
        return False


def _record(db: Any, record: Captured, group: str | None) -> None:
    match record:
        case Session():
            begin_session(db, record, group)
        case Prompt():
            record_prompt(db, record, group)
        case Observation():
            session = own_session_in(db, record.session)
            assert session is not None
            record_observation(db, record, session.project, group)
        case Ending():
            end_session(db, record.session, record.at, group)
        case _:
            assert_never(record)


# -- the transcript -------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Scan:
    """Complete lines of a transcript, from the offset of the last hook."""

    start_offset: int
    """The offset known at the start."""
    ends: int
    lines: list[bytes]
    is_rewritten: bool
    """The file was rewritten: it is read from the start."""


def _scan(database: Database, hook: Hook) -> _Scan | None:
    if hook.transcript_path is None:
        return None
    with database.reading() as db:
        start_offset = _offset_of(db, hook.session)
    try:
        with open(hook.transcript_path, "rb", opener=regular_file) as file:
            is_rewritten = start_offset > file.seek(0, 2)
            start = file.seek(0 if is_rewritten else start_offset)
            part = file.read(_READ_SIZE)
    except (OSError, ValueError):
        return None  # it may not exist yet
    end = part.rfind(b"\n") + 1
    if not end and len(part) == _READ_SIZE:
        end = len(part)  # a line longer than the read size is skipped
    lines = part[:end].removesuffix(b"\n").split(b"\n") if end else []
    return _Scan(start_offset, start + end, lines, is_rewritten)


def _record_thoughts(
    db: Any, session: str, scan: _Scan, now: int, secrets: SecretFilter, group: str | None
) -> None:
    """The offset moves past every line, including invalid ones (M-19)."""
    if _offset_of(db, session) != scan.start_offset:
        return  # another hook of this session was faster
    for thought in thoughts_in(scan.lines, session, now, secrets, _thoughts_of(db, session)):
        if not is_purged(db, thought):
            record_prompt(db, thought, group)
    db.execute("INSERT OR REPLACE INTO _rk_read_to VALUES (?, ?)", (session, scan.ends))
    lines = len(scan.lines)
    db.execute(
        "INSERT INTO _cursor VALUES (?1, ?2) ON CONFLICT (session_id) DO UPDATE SET"
        " line_number = CASE WHEN ?3 THEN ?2 ELSE line_number + ?2 END",
        (session, lines, scan.is_rewritten or scan.start_offset == 0),
    )


def _thoughts_of(db: Any, session: str) -> Iterator[str]:
    """Those recorded by oneself; read with the first one."""
    for (text,) in db.execute(
        "SELECT content FROM prompts JOIN _rk_prompts ON prompt_id = id"
        " WHERE session_id = ? AND source = 'agent' AND author = ?",
        (session, ONESELF),
    ).fetchall():
        yield text


def _offset_of(db: Any, session: str) -> int:
    found = db.execute("SELECT offset FROM _rk_read_to WHERE session_id = ?", (session,)).fetchone()
    return 0 if found is None else int(found[0])
