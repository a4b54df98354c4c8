"""A conversation for display: messages, and tool calls joined with their results (D-25, D-26).

Reading never fails: unexpected content is shown as it is.
"""

from __future__ import annotations

from collections import defaultdict, deque
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import TYPE_CHECKING, Final, assert_never

from relay.memory.fields import readable_object
from relay.memory.transcripts.order import order_of, ordered
from relay.nostr import kinds

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from relay.nostr.event import Event


class Role(StrEnum):
    USER = "user"
    ASSISTANT = "assistant"
    TOOL_CALL = "tool_call"
    TOOL_RESULT = "tool_result"
    SYSTEM = "system"
    PROGRESS = "progress"
    QUEUE_OPERATION = "queue-operation"
    FILE_HISTORY_SNAPSHOT = "file-history-snapshot"
    COMPACTION_COMPLETE = "compaction_complete"
    PERMISSION_REQUEST = "permission_request"
    PERMISSION_RESPONSE = "permission_response"
    SET_PERMISSION_MODE = "set_permission_mode"
    INTERRUPT = "interrupt"
    UNKNOWN = "unknown"


_ROLES: Final = {role.value: role for role in Role}
_QUIET: Final = frozenset({Role.PROGRESS, Role.QUEUE_OPERATION, Role.FILE_HISTORY_SNAPSHOT})


@dataclass(frozen=True, slots=True)
class Note:
    """One event 1988."""

    id: str
    author: str
    session: str
    role: Role
    content: str
    ms: int
    """Unix milliseconds."""
    answers: str | None
    """For a permission response: id of the request."""
    tool_id: str | None
    tool_name: str | None
    model: str | None
    perm_id: str | None
    is_cut: bool
    """Whether `content` is truncated."""
    line_type: str | None = None
    """Type of the line in the session's file."""

    @property
    def is_quiet(self) -> bool:
        """Whether it may be hidden."""
        return self.role in _QUIET or not self.content

    @property
    def label(self) -> str:
        """The role; without one the type of the line."""
        has_none = self.role is Role.UNKNOWN and self.line_type
        return self.line_type or "" if has_none else self.role.value


def note_of(event: Event) -> Note:
    role = _ROLES.get(event.tag("role") or "", Role.UNKNOWN)
    tool_name = event.tag("tool-name")
    if role is Role.ASSISTANT and tool_name is not None and not event.content:
        role = Role.TOOL_CALL  # notedeck's format of a single tool call (D-09)
    # The `e` of a response has no marker, those of the thread have one (D-07).
    targets = (tag[1] for tag in event.tags if tag[:1] == ["e"] and len(tag) == 2)
    return Note(
        id=event.id,
        author=event.pubkey,
        session=event.d,
        role=role,
        content=event.content,
        ms=order_of(event)[0],
        answers=next(targets, None) if role is Role.PERMISSION_RESPONSE else None,
        tool_id=event.tag("tool-id"),
        tool_name=tool_name,
        model=event.tag("model"),
        perm_id=event.tag("perm-id"),
        is_cut=event.has_tag("truncated"),
        line_type=event.tag("turn-type"),
    )


def notes_in_order(events: Iterable[Event]) -> list[Note]:
    """The notes among the events, in order, each once."""
    found = ordered(event for event in events if event.kind == kinds.CONVERSATION_NOTE)
    return [note_of(event) for event in found.events]


@dataclass(frozen=True, slots=True)
class Output:
    """A tool's result."""

    note: Note
    summary: str
    """Empty if there is only output."""
    text: str


@dataclass(frozen=True, slots=True)
class Decision:
    """The answer to a permission request."""

    note: Note
    is_allowed: bool
    message: str = ""
    is_interrupt: bool = False
    is_automatic: bool = False


@dataclass(frozen=True, slots=True)
class Message:
    """Any other note."""

    note: Note


@dataclass(frozen=True, slots=True)
class ToolUse:
    """A tool call and its result; at least one of them is set."""

    call: Note | None
    output: Output | None

    @property
    def name(self) -> str:
        note = self.call or (self.output and self.output.note)
        return (note and note.tool_name) or ""


@dataclass(frozen=True, slots=True)
class Permission:
    """A permission request and its decision, if any."""

    request: Note
    tool_name: str
    tool_input: Mapping[str, object]
    decision: Decision | None


Entry = Message | ToolUse | Permission


def entries(notes: Iterable[Note]) -> list[Entry]:
    """Notes in order, with tool results joined to their author's calls, and decisions to the
    requests that they name, those of others by the request's id only.

    Results and decisions without a call or request are entries of their own. Without ids (the
    specification has none) a result belongs to the first call that has none.
    """
    folded: list[Entry] = []
    calls: dict[tuple[str, str], int] = {}
    unnamed: defaultdict[str, deque[int]] = defaultdict(deque)
    requests: dict[str | tuple[str, str], int] = {}
    for note in notes:
        match note.role:
            case Role.TOOL_CALL:
                if note.tool_id is not None:
                    calls[note.author, note.tool_id] = len(folded)
                else:
                    unnamed[note.author].append(len(folded))
                folded.append(ToolUse(note, None))
            case Role.TOOL_RESULT:
                if note.tool_id is not None:
                    at = calls.pop((note.author, note.tool_id), None)
                else:
                    own = unnamed[note.author]
                    at = own.popleft() if own else None
                _put(folded, at, output_of(note))
            case Role.PERMISSION_REQUEST:
                requests[note.id] = len(folded)
                if note.perm_id is not None:
                    requests[note.author, note.perm_id] = len(folded)
                folded.append(_permission(note))
            case Role.PERMISSION_RESPONSE:
                named = (note.answers or "", (note.author, note.perm_id or ""))
                positions = (requests.get(key) for key in named)
                _put(
                    folded,
                    next((at for at in positions if at is not None), None),
                    decision_of(note),
                )
            case _:
                folded.append(Message(note))
    return folded


def _put(folded: list[Entry], at: int | None, what: Output | Decision) -> None:
    """Join it to the entry at `at`; append it if there is none or it is already decided."""
    entry = None if at is None else folded[at]
    match what:
        case Output():
            if at is not None and isinstance(entry, ToolUse):
                folded[at] = replace(entry, output=what)
            else:
                folded.append(ToolUse(None, what))
        case Decision():
            if at is not None and isinstance(entry, Permission) and entry.decision is None:
                folded[at] = replace(entry, decision=what)
            else:
                folded.append(Message(what.note))
        case _:
            assert_never(what)


def output_of(note: Note) -> Output:
    """`{"summary","output"}`, or plain text."""
    fields = readable_object(note.content)
    if fields is None or not {"summary", "output"} & fields.keys():
        return Output(note, "", note.content)
    return Output(note, _text(fields.get("summary")), _text(fields.get("output")))


def decision_of(note: Note) -> Decision:
    """Unreadable content counts as denied."""
    fields = readable_object(note.content) or {}
    return Decision(
        note,
        is_allowed=fields.get("decision") == "allow",
        message=_text(fields.get("message")),
        is_interrupt=fields.get("interrupt") is True,
        is_automatic=fields.get("auto") is True,
    )


def mode_of(note: Note) -> str | None:
    """The mode of a SET_PERMISSION_MODE note."""
    return _text((readable_object(note.content) or {}).get("mode")) or None


def _permission(note: Note) -> Permission:
    fields = readable_object(note.content) or {}
    given = fields.get("tool_input")
    return Permission(
        note,
        _text(fields.get("tool_name")) or note.tool_name or "",
        given if isinstance(given, dict) else {},
        None,
    )


def _text(value: object) -> str:
    return value if isinstance(value, str) else ""
