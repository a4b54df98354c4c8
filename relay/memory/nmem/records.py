"""nmem's four record types: values, drafts and decoding.

The `d` of observations and prompts ends with the hash of their content, so that a record that is
written twice is stored once (M-03).
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, replace
from enum import StrEnum
from hashlib import sha256
from typing import TYPE_CHECKING, Any, Final

from relay.memory.check_options import CheckOptions
from relay.memory.draft import Draft
from relay.memory.fields import compact, is_integer, storable_object
from relay.memory.nmem.checks import OBSERVATION, PIN, PROMPT, SESSION, check, session_in
from relay.memory.nmem.summary import EMPTY_SESSION, Summary, summary_from
from relay.memory.unreadable import UnreadableRecord, next_created_at
from relay.nostr import kinds

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Set

    from relay.nostr.event import Event

_PROJECT: Final = "project:"
_MIN_OBSERVATIONS: Final = 3
"""Sessions with fewer observations are not summarised (M-06)."""
_MAX_TIME: Final = 2**63 - 1


class ObsType(StrEnum):
    """Types written by this client (M-17). Others are accepted."""

    COMMAND = "command"
    GIT_COMMIT = "git_commit"
    GIT_PUSH = "git_push"
    GITHUB = "github"
    FILE_READ = "file_read"
    FILE_WRITE = "file_write"
    FILE_EDIT = "file_edit"
    SEARCH = "search"
    TASK_SPAWN = "task_spawn"
    WEB_FETCH = "web_fetch"
    WEB_SEARCH = "web_search"
    MCP_CALL = "mcp_call"
    TOOL_OTHER = "tool_other"
    SESSION_STARTUP = "session_startup"
    SESSION_COMPACT = "session_compact"
    SESSION_RESUME = "session_resume"
    SESSION_CLEAR = "session_clear"
    MARKER = "marker"


class Source(StrEnum):
    """Author of a prompt."""

    USER = "user"
    AGENT = "agent"
    """A thinking block."""


@dataclass(frozen=True, slots=True)
class Session:
    """A session of a coding agent. Times are Unix seconds."""

    id: str
    project: str
    started_at: int
    ended_at: int | None = None
    signature: tuple[tuple[str, int], ...] | None = None
    """(observation type, count)."""
    summary: Summary | None = None


@dataclass(frozen=True, slots=True)
class Prompt:
    session: str
    timestamp: int
    source: Source
    content: str


@dataclass(frozen=True, slots=True)
class Observation:
    """Something that an agent did, or a note."""

    session: str
    timestamp: int
    obs_type: str
    source_event: str
    content: str
    tool_name: str | None = None
    file_path: str | None = None
    metadata: Mapping[str, object] | None = None
    prompt: str | None = None
    """`hash_in` of the `d` of the preceding prompt."""


@dataclass(frozen=True, slots=True)
class Pin:
    """Exempts an observation from sweeps, or revokes that."""

    event_id: str
    is_pinned: bool
    at: int


Record = Session | Prompt | Observation | Pin


def closed(session: Session, at: int, obs_types: Iterable[str]) -> Session:
    """The session with its end, which may be repeated: an agent stops after each turn.

    `obs_types`: the type of each of its observations (M-04, M-06).
    """
    counts = Counter(obs_types)
    signature = sorted(counts.items(), key=lambda item: (-item[1], item[0]))
    earlier = None if session.summary == EMPTY_SESSION else session.summary
    return replace(
        session,
        ended_at=max(at, session.started_at),
        signature=tuple(signature),
        summary=EMPTY_SESSION if counts.total() < _MIN_OBSERVATIONS else earlier,
    )


# -- writing --------------------------------------------------------------------------------------


def session_draft(session: Session, last: int | None = None, group: str | None = None) -> Draft:
    """`last`: `created_at` of the previous version: the new one is newer (M-01)."""
    content = compact(
        {
            "id": session.id,
            "project": session.project,
            "started_at": session.started_at,
            "ended_at": session.ended_at,
            "signature": session.signature,
            "summary": None if session.summary is None else session.summary.fields(),
        }
    )
    tags = [*_tags(f"{SESSION}{session.id}", session.id), ["t", f"{_PROJECT}{session.project}"]]
    at = session.started_at if session.ended_at is None else session.ended_at
    return Draft(kinds.APP_DATA, [*tags, *_h_tag(group)], content, next_created_at(at, last))


def prompt_draft(prompt: Prompt, group: str | None = None) -> Draft:
    content = compact(
        {
            "session_id": prompt.session,
            "timestamp": prompt.timestamp,
            "source": prompt.source,
            "content": prompt.content,
        }
    )
    tags = [
        *_tags(_hashed(PROMPT, prompt.session, content), prompt.session),
        ["t", f"source:{prompt.source}"],
    ]
    return Draft(kinds.APP_RECORD, [*tags, *_h_tag(group)], content, prompt.timestamp)


def observation_draft(observation: Observation, project: str, group: str | None = None) -> Draft:
    content = compact(
        {
            "session_id": observation.session,
            "prompt": observation.prompt,
            "timestamp": observation.timestamp,
            "obs_type": observation.obs_type,
            "source_event": observation.source_event,
            "tool_name": observation.tool_name,
            "file_path": observation.file_path,
            "content": observation.content,
            "metadata": observation.metadata,
        }
    )
    tags = [
        *_tags(_hashed(OBSERVATION, observation.session, content), observation.session),
        ["t", f"type:{observation.obs_type}"],
        ["t", f"{_PROJECT}{project}"],
    ]
    if observation.file_path is not None:
        tags.append(["f", observation.file_path])
    return Draft(kinds.APP_RECORD, [*tags, *_h_tag(group)], content, observation.timestamp)


def pin_draft(pin: Pin, last: int | None = None, group: str | None = None) -> Draft:
    """`last`: see `session_draft`."""
    tags = [["d", f"{PIN}{pin.event_id}"], ["e", pin.event_id], *_h_tag(group)]
    content = compact({"pinned": pin.is_pinned, "at": pin.at})
    return Draft(kinds.APP_DATA, tags, content, next_created_at(pin.at, last))


def _tags(d: str, session: str) -> list[list[str]]:
    return [["d", d], ["s", session], ["t", "nmem"]]


def _h_tag(group: str | None) -> list[list[str]]:
    return [] if group is None else [["h", group]]


def _hashed(prefix: str, session: str, content: str) -> str:
    return f"{prefix}{session}:{sha256(content.encode()).hexdigest()}"


# -- reading --------------------------------------------------------------------------------------


def record_in(event: Event) -> Record | UnreadableRecord:
    """Decode an event."""
    if event.kind not in (kinds.APP_DATA, kinds.APP_RECORD):
        return UnreadableRecord(event, "not a record of nmem")
    fault = check(event, CheckOptions())
    if fault is not None:
        return UnreadableRecord(event, fault)
    fields: Any = storable_object(event.content)
    if fields is None:  # too deeply nested, or a lone surrogate
        return UnreadableRecord(event, "content cannot be written again")
    for name in ("timestamp", "started_at", "ended_at", "at"):
        value = fields.get(name)  # `check` looks only at those of the record's own type
        if is_integer(value) and abs(value) > _MAX_TIME:
            return UnreadableRecord(event, f"content.{name} is no time")
    return _record(event, fields)


def _record(event: Event, fields: Any) -> Record:
    d = event.d
    if d.startswith(OBSERVATION):
        return Observation(
            fields["session_id"],
            fields["timestamp"],
            fields["obs_type"],
            fields["source_event"],
            fields["content"],
            fields.get("tool_name"),
            fields.get("file_path"),
            fields.get("metadata"),
            fields.get("prompt"),
        )
    if d.startswith(PROMPT):
        return Prompt(
            fields["session_id"], fields["timestamp"], Source(fields["source"]), fields["content"]
        )
    if d.startswith(PIN):
        at = fields.get("at", event.created_at)
        return Pin(d.removeprefix(PIN), fields.get("pinned", True), at)
    signature, summary = fields.get("signature"), fields.get("summary")
    return Session(
        fields["id"],
        fields["project"],
        fields["started_at"],
        fields.get("ended_at"),
        None if signature is None else tuple([(name, count) for name, count in signature]),
        None if summary is None else summary_from(summary),
    )


def hash_in(d: str) -> str:
    """The content hash in the `d` of a prompt or an observation."""
    return d[-64:]


def session_of(event: Event) -> str:
    """The session of an observation, prompt or session record."""
    return session_in(event.d)


def pinned_ids(
    pins: Iterable[tuple[str, Pin]], authors: Mapping[str, str], owners: Set[str]
) -> frozenset[str]:
    """Ids of events pinned by their author or an owner (M-07).

    `pins`: (signer, pin); `authors`: event id → pubkey.
    """
    return frozenset(
        pin.event_id
        for signer, pin in pins
        if pin.is_pinned and (signer in owners or signer == authors.get(pin.event_id))
    )


def project_of(event: Event) -> str | None:
    """The project by tag; the content of an observation lacks it."""
    named = (
        value.removeprefix(_PROJECT)
        for value in event.tag_values("t")
        if value.startswith(_PROJECT)
    )
    return next(named, None)
