"""Imports the database of nmem itself (M-12), or makes it the cache.

Newer migrations of nmem are supported; unknown tables and columns are ignored. Unreadable rows are
counted and skipped. Importing again adds nothing.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import orjson

from relay.client.foreign_database import bound, code_in, room_in, weight
from relay.client.nmem.apply import PINS_WAIT
from relay.client.nmem.database import MUST_ERASE, CacheUnusable, open_connection
from relay.client.nmem.rebuild import rebuild_index
from relay.client.nmem.summaries import cleaned
from relay.client.nmem.updates import (
    ONESELF,
    Origin,
    begin_session,
    event_id_of,
    own_session_in,
    put_session,
    queue,
    record_observation,
    record_pin,
    record_prompt,
    set_about,
)
from relay.errors import Invalid
from relay.files import refuse_super_journal
from relay.memory.fields import compact, is_integer
from relay.memory.nmem.checks import MAX_PROMPT
from relay.memory.nmem.records import (
    Observation,
    Prompt,
    Session,
    Source,
    hash_in,
    observation_draft,
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
    from relay.memory.draft import Draft
    from relay.memory.nmem.summary import Summary
    from relay.memory.secrets import SecretFilter
    from relay.nostr.keys import SecretKey

_BATCH: Final = 500
_MAX_PART: Final = 16 << 20
"""Bytes of rows held at a time; a single row may be larger."""
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
    refuse_super_journal(path)
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
        for part in _parts(_rows_of(source, table, path)):
            with database.transaction() as db:
                for row in part:
                    try:
                        put(db, row)
                    except (Invalid, TypeError, ValueError):
                        done.skipped += 1
            if progress is not None:
                progress(len(part))


def _rows_of(source: Any, table: str, path: Path) -> Iterator[Sequence[Any]]:
    """The file may come from somebody else. Raises CacheUnusable."""
    try:
        bound(source)
        if fault := code_in(source, table):
            raise ValueError(fault)
        room = room_in(path)
        for row in source.execute(_COLUMNS[table]):
            room -= weight(row)
            if room < 0:
                raise ValueError(f"the rows of {table} hold more than the file")
            yield row
    except Exception as error:
        raise CacheUnusable(
            f"{path} cannot be read as a database of nmem: {error}; set NMEM_KEY if it is encrypted"
        ) from error


def _parts(rows: Iterator[Sequence[Any]]) -> Iterator[list[Sequence[Any]]]:
    part: list[Sequence[Any]] = []
    size = 0
    for row in rows:
        part.append(row)
        size += weight(row)
        if len(part) == _BATCH or size > _MAX_PART:
            yield part
            part, size = [], 0
    if part:
        yield part


def adopt(db: Any, secrets: SecretFilter, group: str | None) -> Imported:
    """Make the rows of an original nmem database records of ours, queued for the relay; in a
    transaction, with our tables created. Ids stay. Pins wait for the key (`bind`). Rows that are no
    record, or the same as another, are deleted: no purge would find them."""
    done = Imported()
    hashes: dict[int, str] = {}

    def put_session_row(row: Sequence[Any]) -> None:
        _queue_session(db, _session_of(row, secrets), group)
        done.sessions += 1

    def put_prompt_row(row: Sequence[Any]) -> None:
        prompt = _prompt_of(row, secrets)
        draft = prompt_draft(prompt, group)
        if own_session_in(db, prompt.session) is None:
            raise Invalid("a record must have a session")
        hashes[row[0]] = hash_in(draft.d)
        if prompt.content != row[-1]:
            db.execute("UPDATE prompts SET content = ? WHERE id = ?", (prompt.content, row[0]))
        is_first = _adopt_row(db, "prompts", row[0], draft)
        if not is_first:
            db.execute(
                "UPDATE observations SET prompt_id ="
                " (SELECT prompt_id FROM _rk_prompts WHERE d = ?) WHERE prompt_id = ?",
                (draft.d, row[0]),
            )
        done.prompts += is_first

    def put_observation_row(row: Sequence[Any]) -> None:
        observation = _observation_of(row, secrets, hashes)
        session = own_session_in(db, observation.session)
        if session is None:
            raise Invalid("a record must have a session")
        values = (
            observation.file_path,
            observation.content,
            None if observation.metadata is None else compact(observation.metadata),
        )
        if values != tuple(row[7:10]):
            db.execute(
                "UPDATE observations SET file_path = ?, content = ?, metadata = ? WHERE id = ?",
                (*values, row[0]),
            )
        draft = observation_draft(observation, session.project, group)
        done.observations += _adopt_row(db, "observations", row[0], draft)
        done.pins += bool(row[-1])

    puts = (put_session_row, put_prompt_row, put_observation_row)
    for sql, put in zip(_COLUMNS.values(), puts, strict=True):
        for row in db.execute(sql).fetchall():
            try:
                put(row)
            except (Invalid, TypeError, ValueError):
                done.skipped += 1
    rebuild_index(db)
    db.execute(
        "UPDATE observations SET prompt_id = NULL"
        " WHERE prompt_id NOT IN (SELECT prompt_id FROM _rk_prompts)"
    )
    for statement in _DELETE_NO_RECORDS:
        db.execute(statement)
    set_about(db, {MUST_ERASE: "1", **({PINS_WAIT: group or ""} if done.pins else {})})
    return done


_DELETE_NO_RECORDS: Final = (
    "DELETE FROM observations WHERE id NOT IN (SELECT observation_id FROM _rk_observations)",
    "DELETE FROM prompts WHERE id NOT IN (SELECT prompt_id FROM _rk_prompts)",
    "DELETE FROM sessions WHERE id IS NULL OR id NOT IN (SELECT session_id FROM _rk_sessions)",
)


def _adopt_row(db: Any, table: str, number: int, draft: Draft) -> bool:
    """Make a row a record; False: another row is the same record already."""
    known = f"SELECT 1 FROM _rk_{table} WHERE d = ?"  # noqa: S608  a name of ours
    if db.execute(known, (draft.d,)).fetchone():
        return False
    db.execute(
        f"INSERT INTO _rk_{table} VALUES (?, ?, ?, NULL, ?)",  # noqa: S608
        (number, draft.d, ONESELF, draft.created_at),
    )
    queue(db, draft)
    return True


def _put_session(db: Any, row: Sequence[Any], settings: ImportSettings, done: Imported) -> None:
    session = _session_of(row, settings.secrets)
    if own_session_in(db, session.id) is None:
        _queue_session(db, session, settings.group)
        done.sessions += 1


def _queue_session(db: Any, session: Session, group: str | None) -> None:
    draft = session_draft(session, None, group)
    put_session(db, session, Origin(ONESELF, None, draft.created_at))
    queue(db, draft)


def _session_of(row: Sequence[Any], secrets: SecretFilter) -> Session:
    id_, project, started, ended, signature, summary = row
    if not isinstance(id_, str) or not id_ or not isinstance(project, str):
        raise Invalid("a session must have an id and a project")
    return Session(
        id_,
        project,
        _time(started),
        None if ended is None else max(_time(ended), _time(started)),
        _signature_in(signature),
        _summary_in(summary, secrets),
    )


def _signature_in(text: object) -> tuple[tuple[str, int], ...] | None:
    """The signature, from pairs or from an object of counts: both forms occur."""
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


def _summary_in(text: object, secrets: SecretFilter) -> Summary | None:
    value = _json_in(text)
    try:
        return cleaned(summary_from(value), secrets) if isinstance(value, dict) else None
    except Invalid:
        return None


def _put_prompt(
    db: Any, row: Sequence[Any], settings: ImportSettings, hashes: dict[int, str], done: Imported
) -> None:
    prompt = _prompt_of(row, settings.secrets)
    hashes[row[0]] = hash_in(prompt_draft(prompt).d)
    _ensure_session(db, prompt.session, prompt.timestamp, settings)
    if record_prompt(db, prompt, settings.group) is not None:
        done.prompts += 1


def _prompt_of(row: Sequence[Any], secrets: SecretFilter) -> Prompt:
    _, session, at, source, content = row
    filtered = secrets.filtered(_text(content), MAX_PROMPT).text
    return Prompt(_session(session), _time(at), Source(source), filtered)


def _put_observation(
    db: Any,
    row: Sequence[Any],
    settings: ImportSettings,
    hashes: dict[int, str],
    now: int,
    done: Imported,
) -> None:
    observation = _observation_of(row, settings.secrets, hashes)
    _ensure_session(db, observation.session, observation.timestamp, settings)
    known = own_session_in(db, observation.session)
    assert known is not None
    number = record_observation(db, observation, known.project, settings.group)
    if number is None:
        return
    done.observations += 1
    if row[-1]:
        target = event_id_of(db, number, settings.signer)
        record_pin(db, number, target, now, settings.group, is_pinned=True)
        done.pins += 1


def _observation_of(
    row: Sequence[Any], secrets: SecretFilter, hashes: Mapping[int, str]
) -> Observation:
    """`hashes`: of prompts, by their id in the file."""
    (_, session, prompt, at, obs_type, source_event, tool, path, content, metadata, _) = row
    facts = secrets.redacted(_json_in(metadata))
    return Observation(
        _session(session),
        _time(at),
        _text(obs_type),
        _text(source_event),
        secrets.filtered(_text(content)).text,
        None if tool is None else _text(tool),
        None if path is None else secrets.filtered(_text(path)).text,
        facts if isinstance(facts, dict) and facts else None,
        hashes.get(prompt),
    )


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
