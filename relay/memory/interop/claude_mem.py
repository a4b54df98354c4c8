"""claude-mem: its tables, from the SQLite file or an export as JSON, as records of nmem.

Read here: `sdk_sessions`, `observations`, `session_summaries`, `user_prompts`, in the columns of
all versions since 2025. A summary that a later one of its session replaces becomes an observation
of the type `session_summary`.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import orjson

from relay.memory.fields import is_integer, repaired
from relay.memory.interop.records import Fault, Item, Recorded, time_of
from relay.memory.junk import KeptOut, Why, without_echo
from relay.memory.nmem.checks import MAX_PROMPT
from relay.memory.nmem.records import (
    Observation,
    Prompt,
    Session,
    Source,
    hash_in,
    prompt_draft,
)
from relay.memory.nmem.summary import Summary

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from relay.memory.interop.records import Parsed
    from relay.memory.secrets import SecretFilter

    Row = Mapping[str, object]

TABLES: Final = {
    "sdk_sessions": "sessions",
    "user_prompts": "prompts",
    "session_summaries": "summaries",
    "observations": "observations",
}
"""Table → its name in an export."""
_SOURCE: Final = "claude-mem"
_LATER: Final = "session_summary"
_MAX_SESSION: Final = 200


class _Bad(Exception):
    """Why a row cannot be taken."""


class _Place(NamedTuple):
    """A row of a table, with its place in the file."""

    where: str
    row: Row
    session: str
    at: int


def records_in(
    tables: Mapping[str, Sequence[object]], name: str, secrets: SecretFilter | None
) -> Iterator[Parsed]:
    """`tables`: by the names that an export gives them. `name`: of the file. `secrets`: None keeps
    texts as they are."""
    reading = _Reading(name, secrets)
    rows = {table: tables.get(table) or () for table in TABLES.values()}
    yield from reading.note_sessions(rows["sessions"])
    yield from reading.prompts(rows["prompts"])
    yield from reading.note_summaries(rows["summaries"])
    yield from reading.observations(rows["observations"])
    yield from reading.earlier_summaries()
    yield from reading.sessions()


class _Reading:
    """Reads one file. Sessions come last, because they are summed up from their records."""

    def __init__(self, name: str, secrets: SecretFilter | None) -> None:
        self._name = name
        self._secrets = secrets
        self._ids: dict[str, str] = {}
        """claude-mem's id of a session → the coding agent's."""
        self._rows: dict[str, tuple[str, Row]] = {}
        self._prompts: dict[tuple[str, int], str] = {}
        self._summaries: defaultdict[str, list[_Place]] = defaultdict(list)
        self._types: defaultdict[str, Counter[str]] = defaultdict(Counter)
        self._projects: dict[str, str] = {}
        self._times: dict[str, tuple[int, int]] = {}
        self._changed: dict[str, None] = {}
        """Remarks on changes to the current record; the keys, in order."""

    # -- tables -----------------------------------------------------------------------------------

    def note_sessions(self, rows: Sequence[object]) -> Iterator[Parsed]:
        for where, row in self._each("sessions", rows):
            try:
                own = _id(row, "content_session_id", "claude_session_id")
                tools = _first(row, "memory_session_id", "sdk_session_id")
                at = _time(row, "started_at")
            except _Bad as bad:
                yield Fault(where, str(bad))
                continue
            if isinstance(tools, str):
                self._ids[tools] = own
            self._rows[own] = where, row
            self._seen(own, row, at)
            if (end := time_of(_first(row, "completed_at_epoch", "completed_at"))) is not None:
                self._seen(own, row, end)

    def prompts(self, rows: Sequence[object]) -> Iterator[Parsed]:
        for where, row in self._each("prompts", rows):
            try:
                session = _id(row, "content_session_id", "claude_session_id")
                at, given = _time(row, "created_at"), without_echo(_text(row, "prompt_text"))
            except _Bad as bad:
                yield Fault(where, str(bad))
                continue
            text = self._clean(given)
            if not text.strip() or "\0" in text:
                yield Fault(where, "prompt_text must be a text, without NUL bytes")
                continue
            if len(text) > MAX_PROMPT:
                text = text[:MAX_PROMPT]
                self._changed[f"prompts are cut at {MAX_PROMPT} characters"] = None
            self._seen(session, row, at)
            prompt = Prompt(session, at, Source.USER, text)
            if is_integer(number := row.get("prompt_number")):
                self._prompts[session, number] = hash_in(prompt_draft(prompt).d)
            yield self._item(where, prompt, session)

    def note_summaries(self, rows: Sequence[object]) -> Iterator[Parsed]:
        for where, row in self._each("summaries", rows):
            try:
                session, at = self._session_of(row), _time(row, "created_at")
            except _Bad as bad:
                yield Fault(where, str(bad))
                continue
            self._seen(session, row, at)
            self._summaries[session].append(_Place(where, row, session, at))
        for places in self._summaries.values():
            places.sort(key=lambda place: place.at)

    def observations(self, rows: Sequence[object]) -> Iterator[Parsed]:
        for where, row in self._each("observations", rows):
            try:
                session, at = self._session_of(row), _time(row, "created_at")
                obs_type = _text(row, "type")
            except _Bad as bad:
                yield Fault(where, str(bad))
                continue
            if not obs_type or not obs_type.isprintable():
                yield Fault(where, "type must be a word")
                continue
            read, changed = self._list(row, "files_read"), self._list(row, "files_modified")
            facts = {
                "concepts": self._list(row, "concepts"),
                "files_read": read,
                "files_modified": changed,
            }
            texts = [_or_empty(row, each) for each in ("title", "subtitle")]
            texts += [_or_empty(row, "narrative") or _or_empty(row, "text")]
            texts += ["\n".join(f"- {fact}" for fact in self._list(row, "facts"))]
            yield self._observation(
                _Place(where, row, session, at), obs_type, texts, next(iter(changed or read), None),
                {name: values for name, values in facts.items() if values},
            )  # fmt: skip

    def earlier_summaries(self) -> Iterator[Parsed]:
        for places in self._summaries.values():
            for place in places[:-1]:
                texts = [
                    f"{name}: {_or_empty(place.row, name)}"
                    for name in ("request", "investigated", "learned", "completed", "next_steps")
                    if _or_empty(place.row, name)
                ]
                yield self._observation(place, _LATER, texts, None, {})

    def sessions(self) -> Iterator[Parsed]:
        for session, (began, ended) in self._times.items():
            where, _ = self._rows.get(session, (f"{self._name}: session {session}", {}))
            places, types = self._summaries[session], self._types[session]
            signature = sorted(types.items(), key=lambda each: (-each[1], each[0]))
            summary = self._summary(places[-1].row) if places else None
            project = self._projects.get(session, "unknown")
            record = Session(session, project, began, ended, tuple(signature), summary)
            yield self._item(where, record, session)

    # -- rows -------------------------------------------------------------------------------------

    def _each(self, table: str, rows: Sequence[object]) -> Iterator[tuple[str, Any]]:
        for index, row in enumerate(rows):
            number = row.get("id") if isinstance(row, dict) else None
            place = f"{table}[{index}]" if number is None else f"{table} id {number}"
            yield f"{self._name}: {place}", row if isinstance(row, dict) else {}

    def _session_of(self, row: Row) -> str:
        session = _id(row, "memory_session_id", "sdk_session_id")
        return self._ids.get(session, session)

    def _seen(self, session: str, row: Row, at: int) -> None:
        began, ended = self._times.get(session, (at, at))
        self._times[session] = min(began, at), max(ended, at)
        project = row.get("project")
        if isinstance(project, str) and project:
            self._projects.setdefault(session, repaired(project))

    def _observation(
        self,
        place: _Place,
        obs_type: str,
        texts: Sequence[str],
        path: str | None,
        facts: Mapping[str, object],
    ) -> Parsed:
        content = self._clean(without_echo("\n".join(filter(None, texts))))
        if not content.strip():
            return Fault(place.where, "it has no text", is_error=False)
        if "\0" in content:
            return Fault(place.where, "narrative: a NUL byte")
        self._seen(place.session, place.row, place.at)
        self._types[place.session][obs_type] += 1
        number = place.row.get("prompt_number")
        prompt = self._prompts.get((place.session, number)) if is_integer(number) else None
        return self._item(
            place.where,
            Observation(
                place.session, place.at, obs_type, _SOURCE, content,
                file_path=path, metadata=facts or None, prompt=prompt,
            ),
            place.session,
        )  # fmt: skip

    def _summary(self, row: Row) -> Summary:
        notes = {name: self._clean(_or_empty(row, name)) for name in ("investigated", "notes")}
        texts = {
            name: tuple(filter(None, [self._clean(_or_empty(row, name))]))
            for name in ("learned", "completed", "next_steps")
        }
        return Summary(
            self._clean(_or_empty(row, "request")),
            **texts,
            files_read=tuple(self._list(row, "files_read")),
            files_edited=tuple(self._list(row, "files_edited")),
            notes={name: text for name, text in notes.items() if text} or None,
        )

    def _list(self, row: Row, name: str) -> list[str]:
        """A list, a list as JSON text, or lines of text."""
        value = row.get(name)
        if isinstance(value, str):
            try:
                value = orjson.loads(value)
            except orjson.JSONDecodeError:
                value = str(value).splitlines()
        if isinstance(value, str):
            value = [value]
        if not isinstance(value, list):
            return []
        return [self._clean(each) for each in value if isinstance(each, str) and each.strip()]

    def _clean(self, text: str) -> str:
        text = repaired(text)
        if self._secrets is None:
            return text
        filtered = self._secrets.filtered(text)
        if filtered.is_redacted:
            self._changed[str(KeptOut(Why.SECRET))] = None
        return filtered.text

    def _item(self, where: str, record: Session | Prompt | Observation, session: str) -> Item:
        changed, self._changed = tuple(self._changed), {}
        project = self._projects.get(session, "unknown")
        return Item(where, Recorded(record, project), changed)


def _first(row: Row, *names: str) -> object:
    return next((row[name] for name in names if row.get(name) is not None), None)


def _id(row: Row, *names: str) -> str:
    value = _first(row, *names)
    if isinstance(value, str) and value and value.isprintable() and len(value) <= _MAX_SESSION:
        return value
    raise _Bad(f"{names[0]} must be 1 to {_MAX_SESSION} printable characters")


def _text(row: Row, name: str) -> str:
    value = row.get(name)
    if not isinstance(value, str):
        raise _Bad(f"{name} must be a string")
    return value


def _or_empty(row: Row, name: str) -> str:
    value = row.get(name)
    return value if isinstance(value, str) else ""


def _time(row: Row, name: str) -> int:
    value = _first(row, f"{name}_epoch", name)
    at = time_of(int(value) if isinstance(value, float) and value.is_integer() else value)
    if at is None:
        raise _Bad(
            f"{name} must be a time" if not is_integer(value) else f"{name}_epoch is no time"
        )
    return at
