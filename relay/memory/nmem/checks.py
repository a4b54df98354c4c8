"""The checks of nmem records, in the order of their refusals.

Who may pin an event is checked in `system`: that needs the pinned event.
"""

from __future__ import annotations

import re
from hashlib import sha256
from typing import TYPE_CHECKING, Final

from relay.memory.fields import Need, Shape, first_fault, is_integer, no_object
from relay.memory.nmem.summary import summary_fault
from relay.nostr import kinds
from relay.nostr.event import is_hex64, object_in

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from relay.memory.check_options import CheckOptions
    from relay.memory.fields import FieldSpec
    from relay.nostr.event import Event

    Fields = Mapping[str, object]

SESSION: Final = "nmem:session:"
PIN: Final = "nmem:pin:"
OBSERVATION: Final = "nmem:obs:"
PROMPT: Final = "nmem:prompt:"

MAX_PROMPT: Final = 2000
"""Characters."""
SOURCES: Final = ("user", "agent")

_HASHED: Final = re.compile(r".+:[0-9a-f]{64}", re.DOTALL)

_PROMPT_FIELDS: Final[tuple[FieldSpec, ...]] = (("timestamp", Shape.INTEGER, Need.REQUIRED),)
_OBSERVATION_FIELDS: Final[tuple[FieldSpec, ...]] = (
    ("prompt", Shape.STRING_OR_NULL, Need.REQUIRED),
    ("timestamp", Shape.INTEGER, Need.REQUIRED),
    ("obs_type", Shape.STRING, Need.REQUIRED),
    ("source_event", Shape.STRING, Need.REQUIRED),
    ("tool_name", Shape.STRING_OR_NULL, Need.REQUIRED),
    ("file_path", Shape.STRING_OR_NULL, Need.REQUIRED),
    ("content", Shape.STRING, Need.REQUIRED),
    ("metadata", Shape.OBJECT_OR_NULL, Need.REQUIRED),
)
_SESSION_FIELDS: Final[tuple[FieldSpec, ...]] = (
    ("project", Shape.STRING, Need.REQUIRED),
    ("started_at", Shape.INTEGER, Need.REQUIRED),
    ("ended_at", Shape.INTEGER, Need.OPTIONAL),
)
_PIN_FIELDS: Final[tuple[FieldSpec, ...]] = (
    ("pinned", Shape.BOOLEAN, Need.IF_PRESENT),
    ("at", Shape.INTEGER, Need.IF_PRESENT),
)


def check(event: Event, options: CheckOptions) -> str | None:
    d = event.d
    if event.kind == kinds.APP_RECORD:
        if d.startswith(OBSERVATION):
            return _hashed(event, OBSERVATION, _observation)
        if d.startswith(PROMPT):
            return _hashed(event, PROMPT, _prompt)
        return (
            "d must be nmem:obs:<session>:<sha256 of content> or "
            "nmem:prompt:<session>:<sha256 of content>"
        )
    if d.startswith(PIN):
        return _pin(event)
    if d.startswith(SESSION) and len(d) > len(SESSION):
        return _session(event)
    return "d must be nmem:session:<id> or nmem:pin:<event id>"


def session_in(d: str) -> str:
    """The session in a valid `d`; it may contain `:` (M-02)."""
    if d.startswith(SESSION):
        return d.removeprefix(SESSION)
    prefix = OBSERVATION if d.startswith(OBSERVATION) else PROMPT
    return d[len(prefix) : -65]


def _hashed(event: Event, prefix: str, fault_in: Callable[[Fields], str | None]) -> str | None:
    d = event.d
    shape = f"d must be {prefix}<session>:<sha256 of content>"
    if _HASHED.fullmatch(d, len(prefix)) is None:
        return shape
    fields = object_in(event.content)
    if fields is None:
        return no_object(event.content)
    if fields.get("session_id") != session_in(d):
        return "content.session_id must equal the session in d"
    digest = sha256(event.content.encode(errors="replace")).hexdigest()
    return fault_in(fields) if digest == d[-64:] else shape


def _observation(fields: Fields) -> str | None:
    return first_fault(fields, _OBSERVATION_FIELDS)


def _prompt(fields: Fields) -> str | None:
    fault = first_fault(fields, _PROMPT_FIELDS)
    if fault is not None:
        return fault
    if fields.get("source") not in SOURCES:
        return "content.source must be user or agent"
    text = fields.get("content")
    if not isinstance(text, str):
        return "content.content must be a string"
    if len(text) > MAX_PROMPT:
        return f"content.content is over {MAX_PROMPT} characters"
    return None


def _session(event: Event) -> str | None:
    fields = object_in(event.content)
    if fields is None:
        return no_object(event.content)
    if fields.get("id") != session_in(event.d):
        return "content.id must equal the session in d"
    fault = first_fault(fields, _SESSION_FIELDS)
    if fault is not None:
        return fault
    started, ended = fields["started_at"], fields.get("ended_at")
    assert isinstance(started, int)
    if isinstance(ended, int) and ended < started:
        return "content.ended_at is before started_at"
    signature, summary = fields.get("signature"), fields.get("summary")
    if signature is not None and not _is_signature(signature):
        return "content.signature must be an array of pairs"
    if summary is None:
        return None
    if not isinstance(summary, dict):
        return "content.summary must be an object or null"
    fault = summary_fault(summary)
    return None if fault is None else f"content.summary.{fault}"


def _is_signature(value: object) -> bool:
    """`[[obs_type, count], …]` (M-04)."""
    return isinstance(value, list) and all(
        isinstance(pair, list)
        and len(pair) == 2
        and isinstance(pair[0], str)
        and is_integer(pair[1])
        for pair in value
    )


def _pin(event: Event) -> str | None:
    if not is_hex64(event.d.removeprefix(PIN)):
        return "d must be nmem:pin:<event id>"
    fields = object_in(event.content)
    return no_object(event.content) if fields is None else first_fault(fields, _PIN_FIELDS)
