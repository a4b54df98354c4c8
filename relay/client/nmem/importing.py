"""Reading the database of nmem itself. MEMORY.md M-12.

It has since grown to twelve migrations: what the document does not name is left where it is. A row
that cannot be read is counted and passed over. What was read before is not taken twice.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import orjson

from relay.client.nmem.database import CacheUnusable, opened
from relay.client.nmem.summaries import cleaned
from relay.client.nmem.writing import (
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

    from relay.client.nmem.cipher import CacheKey
    from relay.client.nmem.database import Database
    from relay.client.nmem.taking import Progress
    from relay.memory.nmem.secrets import SecretFilter
    from relay.memory.nmem.summary import Summary
    from relay.nostr.keys import SecretKey

_AT_ONCE: Final = 500
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
    """Rows that were new here, and those that are no records."""

    sessions: int = 0
    prompts: int = 0
    observations: int = 0
    pins: int = 0
    skipped: int = 0


@dataclass(frozen=True, slots=True)
class Reader:
    """Whose memory it becomes, and what leaves it first."""

    signer: SecretKey
    secrets: SecretFilter
    group: str | None = None


def import_file(
    database: Database,
    path: Path,
    key: CacheKey | None,
    reader: Reader,
    now: int,
    progress: Progress | None = None,
) -> Imported:
    """Take in what the file holds; it waits for the relay then. Raises CacheUnusable, OSError."""
    if not path.is_file():
        raise CacheUnusable(f"there is no file {path}")
    done = Imported()
    source, _ = opened(path, key, busy_s=10.0)
    try:
        _read_all(source, path, database, reader, now, done, progress)
    finally:
        source.close()
    return done


def _read_all(
    source: Any,
    path: Path,
    database: Database,
    reader: Reader,
    now: int,
    done: Imported,
    progress: Progress | None,
) -> None:
    hashes: dict[int, str] = {}
    """Number of a prompt there → the hash in its `d`."""
    puts: Mapping[str, Callable[[Any, Sequence[Any]], None]] = {
        "sessions": lambda db, row: _put_session(db, row, reader, done),
        "prompts": lambda db, row: _put_prompt(db, row, reader, hashes, done),
        "observations": lambda db, row: _put_observation(db, row, reader, hashes, now, done),
    }
    for table, put in puts.items():
        try:
            rows = source.execute(_COLUMNS[table]).fetchall()
        except Exception as error:
            raise CacheUnusable(
                f"{path} cannot be read as a database of nmem: {error}; when it is encrypted, its"
                " key is given in NMEM_KEY"
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
    for start in range(0, len(rows), _AT_ONCE):
        yield rows[start : start + _AT_ONCE]


def _put_session(db: Any, row: Sequence[Any], reader: Reader, done: Imported) -> None:
    id_, project, started, ended, signature, summary = row
    if not isinstance(id_, str) or not id_ or not isinstance(project, str):
        raise Invalid("a session needs an id and a project")
    if session_in(db, id_) is not None:
        return
    session = Session(
        id_,
        project,
        _time(started),
        None if ended is None else max(_time(ended), _time(started)),
        _signature_in(signature),
        _summary_in(summary, reader),
    )
    draft = session_draft(session, None, reader.group)
    put_session(db, session, Origin(ONESELF, None, draft.created_at))
    queue(db, draft)
    done.sessions += 1


def _signature_in(text: object) -> tuple[tuple[str, int], ...] | None:
    """Pairs, or an object of counts, as the file may have it."""
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


def _summary_in(text: object, reader: Reader) -> Summary | None:
    value = _json_in(text)
    try:
        return cleaned(summary_from(value), reader.secrets) if isinstance(value, dict) else None
    except Invalid:
        return None


def _put_prompt(
    db: Any, row: Sequence[Any], reader: Reader, hashes: dict[int, str], done: Imported
) -> None:
    number, session, at, source, content = row
    said = reader.secrets.filtered(_text(content), MAX_PROMPT).text
    prompt = Prompt(_session(session), _time(at), Source(source), said)
    hashes[number] = hash_in(prompt_draft(prompt).d)
    _know(db, prompt.session, prompt.timestamp, reader)
    if record_prompt(db, prompt, reader.group) is not None:
        done.prompts += 1


def _put_observation(
    db: Any, row: Sequence[Any], reader: Reader, hashes: dict[int, str], now: int, done: Imported
) -> None:
    (_, session, prompt, at, obs_type, source_event, tool, path, content, metadata, is_pinned) = row
    facts = reader.secrets.freed(_json_in(metadata))
    observation = Observation(
        _session(session),
        _time(at),
        _text(obs_type),
        _text(source_event),
        reader.secrets.filtered(_text(content)).text,
        None if tool is None else _text(tool),
        None if path is None else reader.secrets.filtered(_text(path)).text,
        facts if isinstance(facts, dict) and facts else None,
        hashes.get(prompt),
    )
    _know(db, observation.session, observation.timestamp, reader)
    known = session_in(db, observation.session)
    assert known is not None
    number = record_observation(db, observation, known.project, reader.group)
    if number is None:
        return
    done.observations += 1
    if is_pinned:
        target = event_id_of(db, number, reader.signer)
        record_pin(db, number, target, now, reader.group, is_pinned=True)
        done.pins += 1


def _know(db: Any, session: str, at: int, reader: Reader) -> None:
    begin_session(db, Session(session, "unknown", at), reader.group)


def _json_in(text: object) -> object:
    try:
        return orjson.loads(text) if isinstance(text, str) else None
    except orjson.JSONDecodeError:
        return None


def _time(value: object) -> int:
    if not is_integer(value) or value < 0:
        raise Invalid("a time is a number of seconds")
    return value


def _text(value: object) -> str:
    if not isinstance(value, str):
        raise Invalid("not a text")
    return value


def _session(value: object) -> str:
    if not (text := _text(value)):
        raise Invalid("a record needs its session")
    return text
