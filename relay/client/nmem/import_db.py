"""Imports the database of nmem itself (M-12).

Newer migrations of nmem are supported; unknown tables and columns are ignored. Unreadable rows are
counted and skipped. Importing again adds nothing.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import orjson

from relay.client.nmem.database import CacheUnusable, open_connection
from relay.client.nmem.summaries import cleaned
from relay.client.nmem.updates import (
    ONESELF,
    Origin,
    begin_session,
    event_id_of,
    put_session,
    queue,
    record_observation,
    record_pin,
    record_prompt,
    session_in,
)
from relay.errors import Invalid
from relay.memory.fields import is_integer
from relay.memory.nmem.checks import MAX_PROMPT
from relay.memory.nmem.records import (
    Observation,
    Prompt,
    Session,
    Source,
    hash_in,
    prompt_draft,
    session_draft,
)
from relay.memory.nmem.summary import summary_from

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from pathlib import Path

    from relay.client.nmem.apply import Progress
    from relay.client.nmem.cipher import CacheKey
    from relay.client.nmem.database import Database
    from relay.memory.nmem.secrets import SecretFilter
    from relay.memory.nmem.summary import Summary
    from relay.nostr.keys import SecretKey

_BATCH: Final = 500
_COLUMNS: Final[Mapping[str, str]] = {
    "sessions": "SELECT id, project, started_at, ended_at, signature, summary FROM sessions"
    " ORDER BY started_at, id",
    "prompts": "SELECT id, session_id, timestamp, source, content FROM prompts ORDER BY id",
    "observations": "SELECT id, session_id, prompt_id, timestamp, obs_type, source_event,"
    " tool_name, file_path, content, metadata, is_pinned FROM observations"
    " ORDER BY id",
}


@dataclass(slots=True)
class Imported:
    """New rows, and rows that are no valid records."""

    sessions: int = 0
    prompts: int = 0
    observations: int = 0
    pins: int = 0
    skipped: int = 0


@dataclass(frozen=True, slots=True)
class ImportSettings:
    """Settings of an import: signer, secret filter, group."""

    signer: SecretKey
    secrets: SecretFilter
    group: str | None = None


def import_file(
    database: Database,
    path: Path,
    key: CacheKey | None,
    settings: ImportSettings,
    now: int,
    progress: Progress | None = None,
) -> Imported:
    """Import a file; its records are queued for the relay. Raises CacheUnusable, OSError."""
    if not path.is_file():
        raise CacheUnusable(f"there is no file {path}")
    done = Imported()
    source, _ = open_connection(path, key, busy_s=10.0)
    try:
        _read_all(source, path, database, settings, now, done, progress)
    finally:
        source.close()
    return done


def _read_all(
    source: Any,
    path: Path,
    database: Database,
    settings: ImportSettings,
    now: int,
    done: Imported,
    progress: Progress | None,
) -> None:
    hashes: dict[int, str] = {}
    """Prompt id in the file → the hash in its `d`."""
    puts: Mapping[str, Callable[[Any, Sequence[Any]], None]] = {
        "sessions": lambda db, row: _put_session(db, row, settings, done),
        "prompts": lambda db, row: _put_prompt(db, row, settings, hashes, done),
        "observations": lambda db, row: _put_observation(db, row, settings, hashes, now, done),
    }
    for table, put in puts.items():
        try:
            rows = source.execute(_COLUMNS[table]).fetchall()
        except Exception as error:
            raise CacheUnusable(
                f"{path} cannot be read as a database of nmem: {error}; set NMEM_KEY if it is"
                " encrypted"
            ) from error
        for part in _parts(rows):
            with database.transaction() as db:
                for row in part:
                    try:
                        put(db, row)
                    except (Invalid, TypeError, ValueError):
                        done.skipped += 1
            if progress is not None:
                progress(len(part))


def _parts(rows: list[Any]) -> Iterator[list[Any]]:
    for start in range(0, len(rows), _BATCH):
        yield rows[start : start + _BATCH]


def _put_session(db: Any, row: Sequence[Any], settings: ImportSettings, done: Imported) -> None:
    id_, project, started, ended, signature, summary = row
    if not isinstance(id_, str) or not id_ or not isinstance(project, str):
        raise Invalid("a session must have an id and a project")
    if session_in(db, id_) is not None:
        return
    session = Session(
        id_,
        project,
        _time(started),
        None if ended is None else max(_time(ended), _time(started)),
        _signature_in(signature),
        _summary_in(summary, settings),
    )
    draft = session_draft(session, None, settings.group)
    put_session(db, session, Origin(ONESELF, None, draft.created_at))
    queue(db, draft)
    done.sessions += 1


def _signature_in(text: object) -> tuple[tuple[str, int], ...] | None:
    """Pairs, or an object of counts: both occur."""
    value = _json_in(text)
    pairs = list(value.items()) if isinstance(value, dict) else value
    if not isinstance(pairs, list):
        return None
    counts = [
        (str(pair[0]), pair[1])
        for pair in pairs
        if isinstance(pair, (list, tuple)) and len(pair) == 2 and is_integer(pair[1])
    ]
    return tuple(sorted(counts, key=lambda each: (-each[1], each[0])))


def _summary_in(text: object, settings: ImportSettings) -> Summary | None:
    value = _json_in(text)
    try:
        return cleaned(summary_from(value), settings.secrets) if isinstance(value, dict) else None
    except Invalid:
        return None


def _put_prompt(
    db: Any, row: Sequence[Any], settings: ImportSettings, hashes: dict[int, str], done: Imported
) -> None:
    number, session, at, source, content = row
    filtered = settings.secrets.filtered(_text(content), MAX_PROMPT).text
    prompt = Prompt(_session(session), _time(at), Source(source), filtered)
    hashes[number] = hash_in(prompt_draft(prompt).d)
    _ensure_session(db, prompt.session, prompt.timestamp, settings)
    if record_prompt(db, prompt, settings.group) is not None:
        done.prompts += 1


def _put_observation(
    db: Any,
    row: Sequence[Any],
    settings: ImportSettings,
    hashes: dict[int, str],
    now: int,
    done: Imported,
) -> None:
    (_, session, prompt, at, obs_type, source_event, tool, path, content, metadata, is_pinned) = row
    facts = settings.secrets.redacted(_json_in(metadata))
    observation = Observation(
        _session(session),
        _time(at),
        _text(obs_type),
        _text(source_event),
        settings.secrets.filtered(_text(content)).text,
        None if tool is None else _text(tool),
        None if path is None else settings.secrets.filtered(_text(path)).text,
        facts if isinstance(facts, dict) and facts else None,
        hashes.get(prompt),
    )
    _ensure_session(db, observation.session, observation.timestamp, settings)
    known = session_in(db, observation.session)
    assert known is not None
    number = record_observation(db, observation, known.project, settings.group)
    if number is None:
        return
    done.observations += 1
    if is_pinned:
        target = event_id_of(db, number, settings.signer)
        record_pin(db, number, target, now, settings.group, is_pinned=True)
        done.pins += 1


def _ensure_session(db: Any, session: str, at: int, settings: ImportSettings) -> None:
    begin_session(db, Session(session, "unknown", at), settings.group)


def _json_in(text: object) -> object:
    try:
        return orjson.loads(text) if isinstance(text, str) else None
    except orjson.JSONDecodeError:
        return None


def _time(value: object) -> int:
    if not is_integer(value) or value < 0:
        raise Invalid("a time must be a number of seconds")
    return value


def _text(value: object) -> str:
    if not isinstance(value, str):
        raise Invalid("not a text")
    return value


def _session(value: object) -> str:
    if not (text := _text(value)):
        raise Invalid("a record must have a session")
    return text
