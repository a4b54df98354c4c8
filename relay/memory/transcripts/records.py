"""Session states, session commands and run configurations (D-27).

Kinds 31988, 31989 and 31991: addressable, all data in tags.
"""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from enum import StrEnum
from typing import TYPE_CHECKING, Final

from relay.errors import Invalid
from relay.memory.draft import Draft
from relay.memory.transcripts.notes import TOPIC, optional_tag
from relay.memory.unreadable import UnreadableRecord
from relay.nostr import kinds

if TYPE_CHECKING:
    from collections.abc import Mapping

    from relay.nostr.event import Event

_STATE_TOPIC: Final = "ai-session-state"
_COMMAND_TOPIC: Final = "ai-session-command"
SOURCE: Final = "rookery"
"""Tag `source` of our records; notedeck's is `notedeck-dave`."""


class Status(StrEnum):
    IDLE = "idle"
    WORKING = "working"
    NEEDS_INPUT = "needs_input"
    ERROR = "error"
    DONE = "done"
    PENDING = "pending"
    DELETED = "deleted"
    """Hides the session from lists; its notes remain."""


class Verb(StrEnum):
    """The command to a host."""

    SPAWN = "spawn_session"
    RESUME = "resume_session"


_STATUSES: Final = {status.value: status for status in Status}
_VERBS: Final = {verb.value: verb for verb in Verb}


@dataclass(frozen=True, slots=True)
class SessionState:
    """The state of one session. Empty strings are unknown."""

    session: str
    title: str = ""
    custom_title: str | None = None
    cwd: str = ""
    status: Status = Status.IDLE
    indicator: str | None = None
    hostname: str = ""
    home_dir: str = ""
    backend: str = ""
    permission_mode: str = ""
    cli_session: str = ""
    spawn_id: str | None = None
    source: str = SOURCE


@dataclass(frozen=True, slots=True)
class SessionCommand:
    id: str
    verb: Verb
    target_host: str = ""
    cwd: str = ""
    backend: str = ""
    custom_title: str | None = None
    prompt: str | None = None
    spawn_id: str = ""
    session_id: str | None = None
    resume_session_id: str | None = None
    source: str = SOURCE


@dataclass(frozen=True, slots=True)
class RunConfiguration:
    """A command offered for a folder of a host."""

    id: str
    cwd: str
    hostname: str
    name: str = ""
    command: str = ""
    is_deleted: bool = False


Record = SessionState | SessionCommand | RunConfiguration


_OPTIONAL: Final = frozenset({"custom_title", "indicator", "spawn_id"})
_CHANGEABLE: Final = frozenset(field.name for field in fields(SessionState)) - {"session"}


def changed(state: SessionState, changes: Mapping[str, object]) -> SessionState:
    """The state with changed fields; `status` may be its value. Raises Invalid."""
    for name, value in changes.items():
        if name not in _CHANGEABLE:
            raise Invalid(f"{name}: the state of a session has no such field")
        if not (isinstance(value, str) or (value is None and name in _OPTIONAL)):
            raise Invalid(f"{name}: must be a text")
    status = _STATUSES.get(str(changes.get("status", state.status.value)))
    if status is None:
        raise Invalid(f"status: must be one of {', '.join(_STATUSES)}")
    return replace(state, **{**changes, "status": status})  # type: ignore[arg-type]


def state_draft(state: SessionState, created_at: int) -> Draft:
    """`created_at`: of `next_created_at`."""
    tags = [
        ["d", state.session],
        ["title", state.title],
        *optional_tag("custom_title", state.custom_title),
        ["cwd", state.cwd],
        ["status", state.status.value],
        *optional_tag("indicator", state.indicator),
        ["hostname", state.hostname],
        ["home_dir", state.home_dir],
        ["backend", state.backend],
        ["permission-mode", state.permission_mode],
        ["cli_session", state.cli_session],
        *optional_tag("spawn_id", state.spawn_id),
        ["t", _STATE_TOPIC],
        ["t", TOPIC],
        ["source", state.source],
    ]
    return Draft(kinds.SESSION_STATE, tags, "", created_at)


def command_draft(command: SessionCommand, created_at: int) -> Draft:
    tags = [
        ["d", command.id],
        ["command", command.verb.value],
        ["target_host", command.target_host],
        ["cwd", command.cwd],
        ["backend", command.backend],
        *optional_tag("custom_title", command.custom_title),
        *optional_tag("prompt", command.prompt),
        ["spawn_id", command.spawn_id],
        *optional_tag("session_id", command.session_id),
        *optional_tag("resume_session_id", command.resume_session_id),
        ["t", _COMMAND_TOPIC],
        ["source", command.source],
    ]
    return Draft(kinds.SESSION_COMMAND, tags, "", created_at)


def configuration_draft(configuration: RunConfiguration, created_at: int) -> Draft:
    what = (
        [["deleted", "true"]]
        if configuration.is_deleted
        else [["name", configuration.name], ["command", configuration.command]]
    )
    tags = [
        ["d", configuration.id],
        ["cwd", configuration.cwd],
        ["hostname", configuration.hostname],
        *what,
    ]
    return Draft(kinds.RUN_CONFIGURATION, tags, "", created_at)


def record_in(event: Event) -> Record | Event | UnreadableRecord:
    """The record; notes and source data as the event itself: see `assembly` and `display`."""
    match event.kind:
        case kinds.SESSION_STATE:
            return state_of(event)
        case kinds.SESSION_COMMAND:
            return command_of(event)
        case kinds.RUN_CONFIGURATION:
            return configuration_of(event)
        case kinds.CONVERSATION_NOTE | kinds.SOURCE_DATA:
            return event
    return UnreadableRecord(event, f"kind {event.kind} is none of a conversation")


def state_of(event: Event) -> SessionState | UnreadableRecord:
    status = _STATUSES.get(event.tag("status") or Status.IDLE.value)
    if not event.d:
        return UnreadableRecord(event, "no tag d")
    if status is None:
        return UnreadableRecord(event, "tag status is unknown")
    return SessionState(
        session=event.d,
        title=event.tag("title") or "",
        custom_title=event.tag("custom_title"),
        cwd=event.tag("cwd") or "",
        status=status,
        indicator=event.tag("indicator"),
        hostname=event.tag("hostname") or "",
        home_dir=event.tag("home_dir") or "",
        backend=event.tag("backend") or "",
        permission_mode=event.tag("permission-mode") or "",
        cli_session=event.tag("cli_session") or "",
        spawn_id=event.tag("spawn_id"),
        source=event.tag("source") or "",
    )


def command_of(event: Event) -> SessionCommand | UnreadableRecord:
    verb = _VERBS.get(event.tag("command") or "")
    if not event.d:
        return UnreadableRecord(event, "no tag d")
    if verb is None:
        return UnreadableRecord(event, "tag command is unknown")
    return SessionCommand(
        id=event.d,
        verb=verb,
        target_host=event.tag("target_host") or "",
        cwd=event.tag("cwd") or "",
        backend=event.tag("backend") or "",
        custom_title=event.tag("custom_title"),
        prompt=event.tag("prompt"),
        spawn_id=event.tag("spawn_id") or "",
        session_id=event.tag("session_id"),
        resume_session_id=event.tag("resume_session_id"),
        source=event.tag("source") or "",
    )


def configuration_of(event: Event) -> RunConfiguration | UnreadableRecord:
    if not event.d:
        return UnreadableRecord(event, "no tag d")
    return RunConfiguration(
        id=event.d,
        cwd=event.tag("cwd") or "",
        hostname=event.tag("hostname") or "",
        name=event.tag("name") or "",
        command=event.tag("command") or "",
        is_deleted=event.tag("deleted") == "true",
    )
