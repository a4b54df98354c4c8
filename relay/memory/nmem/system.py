"""nmem as a memory system of the registry: what a pin refers to, what a sweep keeps."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from relay.errors import Prefix
from relay.memory.nmem.checks import OBSERVATION, PIN, PROMPT, SESSION, check
from relay.memory.nmem.retention import DAYS
from relay.memory.registry import (
    NO_REFERENCES,
    AgedRecords,
    Authors,
    Hold,
    MemorySystem,
    RecordName,
    RecordType,
    References,
    Sweeping,
    object_fault,
)
from relay.memory.search_text import fields, fields_text, object_or_empty
from relay.nostr import kinds
from relay.nostr.event import is_hex64

if TYPE_CHECKING:
    from collections.abc import Sequence

    from relay.facts import RecordFacts
    from relay.memory.registry import Objection, Owns
    from relay.nostr.event import Event

_NMEM: Final = "nmem:"
_HASH_CHARS: Final = 64
_SUMMARY_FIELDS: Final = (
    "intent",
    "learned",
    "completed",
    "next_steps",
    "files_read",
    "files_edited",
    "notes",
)
_MAY_NOT_PIN: Final = Prefix.RESTRICTED, "only the author or the owner may pin"


def _session_text(event: Event) -> str:
    summary = object_or_empty(event.content).get("summary")
    return fields_text(summary, _SUMMARY_FIELDS) if isinstance(summary, dict) else ""


# -- pins ----------------------------------------------------------------------------------------


def pinned_by(event: Event) -> str | None:
    """Id of the event that a pin names; None: its `d` holds no id."""
    target = event.d.removeprefix(PIN)
    return target if is_hex64(target) else None


def _pin_references(event: Event) -> References:
    target = pinned_by(event)
    return NO_REFERENCES if target is None else References(ids=frozenset({target}))


def _pin_objection(event: Event, targets: Sequence[RecordFacts], owns: Owns) -> Objection | None:
    """A pin whose `d` holds no id is left to the check."""
    if pinned_by(event) is None:
        return None
    for target in targets:
        if target.pubkey == event.pubkey or owns(target.pubkey):
            return None
    return _MAY_NOT_PIN


# -- sweeps --------------------------------------------------------------------------------------


def _holds(event: Event) -> Sequence[Hold]:
    """Pins of the record (M-07)."""
    name = RecordName(kinds.APP_DATA, f"{PIN}{event.id}")
    return (Hold("pinned", name, Authors.AUTHOR_OR_OWNERS, _is_pin),)


def _observation_holds(event: Event) -> Sequence[Hold]:
    """Pins, and a session without a summary (M-02)."""
    session = event.d[len(OBSERVATION) : -_HASH_CHARS - 1]
    name = RecordName(kinds.APP_DATA, f"{SESSION}{session}")
    unsummarised = Hold("its session has no summary", name, Authors.AUTHOR, _has_no_summary)
    return (*_holds(event), unsummarised)


def _is_pin(record: Event | None) -> bool:
    if record is None:
        return False
    return object_or_empty(record.content).get("pinned") is not False


def _has_no_summary(session: Event | None) -> bool:
    return session is None or object_or_empty(session.content).get("summary") is None


NMEM: Final = MemorySystem(
    "nmem",
    records=(
        RecordType(
            kinds.APP_DATA,
            SESSION,
            search_text=_session_text,
            holds=_holds,
            sweeping=Sweeping.NAMED,  # M-23, as pins and prompts
        ),
        RecordType(
            kinds.APP_DATA,
            PIN,
            references=_pin_references,
            holds=_holds,
            sweeping=Sweeping.NAMED,
        ),
        RecordType(kinds.APP_DATA, _NMEM, holds=_holds),
        RecordType(
            kinds.APP_RECORD,
            OBSERVATION,
            search_text=fields("content", "file_path"),
            holds=_observation_holds,
        ),
        RecordType(
            kinds.APP_RECORD,
            PROMPT,
            search_text=fields("content"),
            holds=_holds,
            sweeping=Sweeping.NAMED,
        ),
        RecordType(kinds.APP_RECORD, _NMEM, holds=_holds),
    ),
    check=check,
    check_lenient=object_fault,
    record_rules={"agents and owners pin": _pin_objection},
    aged=AgedRecords("nmem observations", kinds.APP_RECORD, OBSERVATION, DAYS),
    search_version=0,
)
