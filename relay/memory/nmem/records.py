"""The four records of nmem: as drafts of events, and out of events. MEMORY.md 5.1.

An event's `d` ends with the hash of its content, so what is recorded twice is stored once (M-03).
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, replace
from enum import StrEnum
from hashlib import sha256
from typing import TYPE_CHECKING, Any, Final

from relay.memory.check_options import CheckOptions
from relay.memory.draft import Draft
from relay.memory.fields import compact, object_in
from relay.memory.nmem.checks import OBSERVATION, PIN, PROMPT, SESSION, check, session_in
from relay.memory.nmem.summary import EMPTY_SESSION, Summary, summary_from
from relay.memory.unreadable import UnreadableRecord, next_created_at
from relay.nostr import kinds

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Set

    from relay.nostr.event import Event

_PROJECT: Final = "project:"
_FEW: Final = 3
"""Observations below which no model is asked what a session was about (M-06)."""
_MAX_TIME: Final = 2**63 - 1


class ObsType(StrEnum):
    """Types that we give (M-17). Others are taken as they come."""

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
    """Who said a prompt."""

    USER = "user"
    AGENT = "agent"
    """A thought."""


@dataclass(frozen=True, slots=True)
class Session:
    """One run of a coding agent. Times are Unix seconds."""

    id: str
    project: str
    started_at: int
    ended_at: int | None = None
    signature: tuple[tuple[str, int], ...] | None = None
    """Types of its observations, each with their number."""
    summary: Summary | None = None


@dataclass(frozen=True, slots=True)
class Prompt:
    session: str
    timestamp: int
    source: Source
    content: str


@dataclass(frozen=True, slots=True)
class Observation:
    """What an agent did, or wants remembered."""

    session: str
    timestamp: int
    obs_type: str
    source_event: str
    content: str
    tool_name: str | None = None
    file_path: str | None = None
    metadata: Mapping[str, object] | None = None
    prompt: str | None = None
    """`hash_in` of the `d` of the prompt that it follows from."""


@dataclass(frozen=True, slots=True)
class Pin:
    """Whether an observation is kept for good."""

    event_id: str
    is_pinned: bool
    at: int


Record = Session | Prompt | Observation | Pin


def closed(session: Session, at: int, obs_types: Iterable[str]) -> Session:
    """The session at its end, which may come more than once: an agent stops after each turn.

    `obs_types` has the type of each of its observations (M-04, M-06).
    """
    counts = Counter(obs_types)
    signature = sorted(counts.items(), key=lambda item: (-item[1], item[0]))
    earlier = None if session.summary == EMPTY_SESSION else session.summary
    return replace(
        session,
        ended_at=max(at, session.started_at),
        signature=tuple(signature),
        summary=EMPTY_SESSION if counts.total() < _FEW else earlier,
    )


# -- written --------------------------------------------------------------------------------------


def session_draft(session: Session, last: int | None = None, group: str | None = None) -> Draft:
    """`last`: `created_at` of the version before, which the new one must be newer than (M-01)."""
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
    return Draft(kinds.APP_DATA, [*tags, *_in(group)], content, next_created_at(at, last))


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
    return Draft(kinds.APP_RECORD, [*tags, *_in(group)], content, prompt.timestamp)


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
    return Draft(kinds.APP_RECORD, [*tags, *_in(group)], content, observation.timestamp)


def pin_draft(pin: Pin, last: int | None = None, group: str | None = None) -> Draft:
    """`last`: as of a session."""
    tags = [["d", f"{PIN}{pin.event_id}"], ["e", pin.event_id], *_in(group)]
    content = compact({"pinned": pin.is_pinned, "at": pin.at})
    return Draft(kinds.APP_DATA, tags, content, next_created_at(pin.at, last))


def _tags(d: str, session: str) -> list[list[str]]:
    return [["d", d], ["s", session], ["t", "nmem"]]


def _in(group: str | None) -> list[list[str]]:
    return [] if group is None else [["h", group]]


def _hashed(prefix: str, session: str, content: str) -> str:
    return f"{prefix}{session}:{sha256(content.encode()).hexdigest()}"


# -- read -----------------------------------------------------------------------------------------


def record_in(event: Event) -> Record | UnreadableRecord:
    """The record that an event holds."""
    if event.kind not in (kinds.APP_DATA, kinds.APP_RECORD):
        return UnreadableRecord(event, "not a record of nmem")
    fault = check(event, CheckOptions())
    if fault is not None:
        return UnreadableRecord(event, fault)
    fields: Any = object_in(event.content)
    for name in ("timestamp", "started_at", "ended_at", "at"):
        if abs(fields.get(name) or 0) > _MAX_TIME:
            return UnreadableRecord(event, f"content.{name} is no time")
    try:
        compact(fields)
    except TypeError:  # nested too deep, half a character: read by no other program either
        return UnreadableRecord(event, "content cannot be written again")
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
    """The hash that the `d` of a prompt or an observation ends with."""
    return d[-64:]


def session_of(event: Event) -> str:
    """The session that a record of one is about."""
    return session_in(event.d)


def pinned_ids(
    pins: Iterable[tuple[str, Pin]], authors: Mapping[str, str], owners: Set[str]
) -> frozenset[str]:
    """Event ids that stay: pinned by their author or an owner (M-07).

    `pins`: each with the pubkey that signed it; `authors`: event id → pubkey.
    """
    return frozenset(
        pin.event_id
        for signer, pin in pins
        if pin.is_pinned and (signer in owners or signer == authors.get(pin.event_id))
    )


def project_of(event: Event) -> str | None:
    """The project that a tag names: an observation has it nowhere else."""
    named = (
        value.removeprefix(_PROJECT)
        for value in event.tag_values("t")
        if value.startswith(_PROJECT)
    )
    return next(named, None)
