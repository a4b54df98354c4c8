"""Aman's five record types: values, drafts and decoding.

Documents, chunks and policies (30090-30092) are returned as events.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from hashlib import sha256
from typing import TYPE_CHECKING, Any, ClassVar, Final, NamedTuple

from relay.errors import Invalid
from relay.memory.aman.checks import (
    AFTER,
    D_ENDS,
    ENCRYPTION,
    FIELDS,
    LABELS,
    VERSION,
    content_fault,
)
from relay.memory.draft import Draft
from relay.memory.fields import compact_repaired, no_object, storable_object, whole_number
from relay.memory.unreadable import UnreadableRecord
from relay.nostr import kinds, secretbox

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from relay.nostr.event import Event

DOCUMENTS: Final = frozenset({kinds.DOC_MANIFEST, kinds.CHUNK_REF, kinds.DOC_POLICY})
KINDS: Final = (*sorted(DOCUMENTS), *LABELS)
"""Kinds of the backfill REQ (A-21)."""

NO_MORE: Final[Mapping[str, object]] = {}
"""`more` of a payload without unknown fields."""

_SHOWN: Final = 80
"""Characters of event text quoted in an error."""


@dataclass(frozen=True, slots=True)
class Preference:
    """Kind 30093. `more`, in every record type: unknown fields, kept on rewrite."""

    history_key: str
    preference: str
    updated_at: int
    more: Mapping[str, object] = field(default_factory=dict)

    kind: ClassVar[int] = kinds.PREFERENCE

    @property
    def time(self) -> int:
        """Unix seconds; in every record type tag `ts` and `created_at` of the event (A-01)."""
        return self.updated_at


@dataclass(frozen=True, slots=True)
class Summary:
    """Kind 30094."""

    history_key: str
    summary: str
    message_count: int
    updated_at: int
    more: Mapping[str, object] = field(default_factory=dict)

    kind: ClassVar[int] = kinds.SUMMARY

    @property
    def time(self) -> int:
        return self.updated_at


@dataclass(frozen=True, slots=True)
class ToolCall:
    """Kind 30095: one entry of the tool history."""

    history_key: str
    tool_name: str
    success: bool
    content: str
    sender_id: str | None
    group_id: str | None
    created_at: int
    more: Mapping[str, object] = field(default_factory=dict)

    kind: ClassVar[int] = kinds.TOOL_HISTORY

    @property
    def time(self) -> int:
        return self.created_at


@dataclass(frozen=True, slots=True)
class Clear:
    """Kind 30096: everything up to this time is cleared from the context."""

    history_key: str
    sender_id: str | None
    created_at: int
    more: Mapping[str, object] = field(default_factory=dict)

    kind: ClassVar[int] = kinds.CLEAR_CONTEXT

    @property
    def time(self) -> int:
        return self.created_at


@dataclass(frozen=True, slots=True)
class Subscriptions:
    """Kind 30097 (A-05)."""

    history_key: str
    topics: tuple[str, ...]
    updated_at: int
    more: Mapping[str, object] = field(default_factory=dict)

    kind: ClassVar[int] = kinds.SUBSCRIPTION_STATE

    @property
    def time(self) -> int:
        return self.updated_at


Record = Preference | Summary | ToolCall | Clear | Subscriptions


@dataclass(frozen=True, slots=True)
class SharedKey:
    """The secretbox key that agents share, and its source for error texts."""

    key: bytes = field(repr=False)
    source: str
    """Such as `NOSTR_SECRETBOX_KEY`."""


# -- writing ------------------------------------------------------------------------------------


def history_key(sender: str, group: str | None = None) -> str:
    """The history key of a group, else of one sender (A-03)."""
    return sender if group is None else f"group:{group}"


def payload_of(record: Record) -> dict[str, object]:
    """The fields in order, absent ones as null, unknown ones last (A-02)."""
    named = {name: getattr(record, name) for name, _, _ in FIELDS[record.kind]}
    return {**named, **record.more}


def payload_hash(payload: Mapping[str, object]) -> str:
    """SHA-256 of the compact plain-text JSON, 64 hex characters (A-02)."""
    return _hash(compact_repaired(payload))


def draft_of(record: Record, after: Iterable[str] = ()) -> Draft:
    """The record as an unencrypted event (A-01). `after`: ids of the clears of its second that it
    is written after."""
    text = compact_repaired(payload_of(record))
    return Draft(record.kind, _tags(record, text, after), text, record.time)


def encrypted_draft_of(
    record: Record, key: bytes, nonce: bytes, after: Iterable[str] = ()
) -> Draft:
    """The record encrypted with a secretbox key (A-23). `nonce`: 24 random bytes."""
    text = compact_repaired(payload_of(record))
    tags = [*_tags(record, text, after), ["enc", ENCRYPTION]]
    return Draft(record.kind, tags, secretbox.seal(text, key, nonce), record.time)


def _tags(record: Record, text: str, after: Iterable[str]) -> list[list[str]]:
    hk, clears = record.history_key, list(after)
    end = D_ENDS.get(record.kind) or _hash(text)
    return [
        ["d", f"{hk}:{end}"],
        ["k", LABELS[record.kind]],
        ["hk", hk],
        ["v", VERSION],
        ["ts", str(record.time)],
        *([[AFTER, *clears]] if clears else ()),
    ]


def _hash(text: str) -> str:
    return sha256(text.encode()).hexdigest()


# -- reading ------------------------------------------------------------------------------------


class KeyAndTime(NamedTuple):
    """History key and time by the tags: known even if the content cannot be read."""

    history_key: str
    """Empty if neither `hk` nor `d` has it."""
    ts: int | None
    """Unix seconds; None if the tag is missing or invalid."""


def key_and_time(event: Event) -> KeyAndTime:
    hk = event.tag("hk")
    return KeyAndTime(history_key_in(event) if hk is None else hk, whole_number(event.tag("ts")))


def history_key_in(event: Event) -> str:
    """The part of `d` before the suffix of the kind; it may contain colons (A-03)."""
    hk, colon, end = event.d.rpartition(":")
    return hk if colon and D_ENDS.get(event.kind, end) == end else ""


def record_in(event: Event, key: SharedKey | None = None) -> Record | Event | UnreadableRecord:
    """The record; documents, chunks and policies as the event itself."""
    if event.kind in DOCUMENTS:
        return event
    if event.kind not in LABELS:
        return UnreadableRecord(event, f"kind {event.kind} is none of Aman's")
    return read_under(key_and_time(event).history_key, event, key)


def read_under(hk: str, event: Event, key: SharedKey | None) -> Record | UnreadableRecord:
    """`record_in` for one of the five kinds, with its known history key."""
    end = D_ENDS.get(event.kind)
    is_free = event.kind == kinds.SUBSCRIPTION_STATE and event.d
    if end is not None and event.d != f"{hk}:{end}" and not is_free:
        return UnreadableRecord(event, f"{_named(event)}: d must be <hk>:{end}")
    enc = event.tag("enc")
    if enc is None:  # unencrypted, with or without a key
        return _parsed(event, event.content, hk)
    if enc != ENCRYPTION:
        why = f"{_named(event)}: enc is {enc[:_SHOWN]!r}, only {ENCRYPTION!r} can be opened"
        return UnreadableRecord(event, why, is_locked=True)
    if key is None:
        return UnreadableRecord(
            event, f"{_named(event)}: locked, and no key is configured", is_locked=True
        )
    try:
        text = secretbox.unseal(event.content, key.key)
    except Invalid as invalid:
        why = f"{_named(event)}: {invalid.text} (key from {key.source})"
        return UnreadableRecord(event, why, is_locked=True)
    return _parsed(event, text, hk)


def _named(event: Event) -> str:
    return f"{event.kind} {event.d[:_SHOWN]!r}"


def _parsed(event: Event, text: str, hk: str) -> Record | UnreadableRecord:
    version = event.tag("v")
    if version is not None and version.lstrip("0") != VERSION:
        why = f"{_named(event)}: schema version {version[:_SHOWN]!r}, only {VERSION} is known"
        return UnreadableRecord(event, why)
    fields = storable_object(text)
    if fields is None:
        return UnreadableRecord(event, f"{_named(event)}: {no_object(text)}")
    fault = content_fault(event.kind, fields, hk)
    if fault is not None:
        return UnreadableRecord(event, f"{_named(event)}: {fault}")
    return _record(event.kind, fields, _unknown(event.kind, fields))


_NAMES: Final = {kind: frozenset(name for name, _, _ in wanted) for kind, wanted in FIELDS.items()}


def _unknown(kind: int, fields: dict[str, object]) -> Mapping[str, object]:
    names = _NAMES[kind]
    if fields.keys() <= names:
        return NO_MORE
    return {name: value for name, value in fields.items() if name not in names}


def _record(kind: int, fields: Mapping[str, Any], more: Mapping[str, object]) -> Record:
    """`fields` must have passed `content_fault`: each is present and has its type."""
    hk = fields["history_key"]
    if kind == kinds.TOOL_HISTORY:
        return ToolCall(
            hk,
            fields["tool_name"],
            fields["success"],
            fields["content"],
            fields.get("sender_id"),
            fields.get("group_id"),
            fields["created_at"],
            more,
        )
    if kind == kinds.CLEAR_CONTEXT:
        return Clear(hk, fields.get("sender_id"), fields["created_at"], more)
    if kind == kinds.PREFERENCE:
        return Preference(hk, fields["preference"], fields["updated_at"], more)
    if kind == kinds.SUMMARY:
        count = fields["message_count"]
        return Summary(hk, fields["summary"], count, fields["updated_at"], more)
    return Subscriptions(hk, tuple(fields["topics"]), fields["updated_at"], more)
