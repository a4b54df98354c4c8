"""Anamnesis' four record types: values, drafts and decoding.

The id of a memory is the hash of its content. Author, voucher and corrector are the signers of the
events; the names and ids in contents are unverified claims.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Final

from relay.memory.anamnesis.checks import (
    PATCH_FIELDS,
    Attestation,
    MemoryType,
    check,
    content_hash,
    entry_faults,
    time_in,
)
from relay.memory.anamnesis.references import ENTRY, PATCH, SUPERSEDED, VOUCH
from relay.memory.check_options import MAX_BYTES, MAX_CHARS, CheckOptions
from relay.memory.draft import Draft
from relay.memory.fields import NOT_AN_OBJECT, compact, no_object, storable_object
from relay.memory.unreadable import UnreadableRecord
from relay.nostr import kinds

if TYPE_CHECKING:
    from collections.abc import Mapping

    from relay.nostr.event import Event

_LABEL: Final = "anamnesis"
_NOTHING_MORE: Final[Mapping[str, object]] = {}
_SUGGESTED: Final = ("memory_type", "tags", "confidence")


@dataclass(frozen=True, slots=True)
class Entry:
    """The content of one memory."""

    content: str
    author_id: str
    author_name: str
    timestamp: str
    """ISO 8601 with zone."""
    memory_type: MemoryType = MemoryType.EPISODIC
    parents: tuple[str, ...] = ()
    """Hashes of the memories it builds on."""
    confidence: float = 0.5
    tags: tuple[str, ...] = ()
    context: Mapping[str, object] | None = None
    more_of_author: Mapping[str, object] = field(default_factory=dict)
    """`platform` and other fields of the author beside `id` and `name`."""
    anchors: tuple[str, ...] = ()
    """Tags `r`: external sources that it can be checked against (X-14)."""
    group: str | None = None
    claimed_vouchers: tuple[Mapping[str, object], ...] = ()
    """Vouchers in a foreign entry: displayed, never counted (X-06)."""
    claimed_successor: str | None = None
    """Likewise."""

    @property
    def hash(self) -> str:
        return content_hash(self.content)


@dataclass(frozen=True, slots=True)
class Memory:
    """A stored entry."""

    event: Event
    entry: Entry

    @property
    def hash(self) -> str:
        return self.entry.hash

    @property
    def author(self) -> str:
        """Public key of the signer."""
        return self.event.pubkey


@dataclass(frozen=True, slots=True)
class Vouch:
    event: Event
    of: str
    claimed_id: str
    name: str | None
    timestamp: str
    confidence: float | None
    attestation: Attestation

    @property
    def voucher(self) -> str:
        """Public key of the signer."""
        return self.event.pubkey


@dataclass(frozen=True, slots=True)
class Supersession:
    event: Event
    old: str
    new: str


@dataclass(frozen=True, slots=True)
class Patch:
    """New metadata of a memory (X-07)."""

    event: Event
    of: str
    fields: Mapping[str, object]
    """Some of PATCH_FIELDS; empty: the entry's own values apply."""


Record = Memory | Vouch | Supersession | Patch


@dataclass(frozen=True, slots=True)
class Validity:
    """All errors and warnings about an entry (X-20)."""

    errors: tuple[str, ...]
    warnings: tuple[str, ...]

    @property
    def valid(self) -> bool:
        return not self.errors


# -- writing ------------------------------------------------------------------------------------


def timestamp_of(seconds: int) -> str:
    """Unix seconds as ISO 8601."""
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def fields_of(entry: Entry) -> dict[str, object]:
    """The JSON fields, in order (X-01). `vouchers` and `superseded_by` only of a foreign entry."""
    author = {"id": entry.author_id, "name": entry.author_name, **entry.more_of_author}
    fields: dict[str, object] = {
        "content": entry.content,
        "author": author,
        "timestamp": entry.timestamp,
        "content_hash": entry.hash,
        "memory_type": entry.memory_type.value,
        "parent_refs": list(entry.parents),
    }
    if entry.claimed_vouchers:
        fields["vouchers"] = list(entry.claimed_vouchers)
    fields |= {"confidence": entry.confidence, "tags": list(entry.tags)}
    if entry.context is not None:
        fields["context"] = entry.context
    if entry.claimed_successor is not None:
        fields["superseded_by"] = entry.claimed_successor
    return fields


def entry_draft(entry: Entry) -> Draft:
    """X-01. Raises ValueError for an invalid `timestamp`."""
    created_at = time_in(entry.timestamp)
    if created_at is None:
        raise ValueError("timestamp must be an ISO 8601 date-time with zone")
    hashed = entry.hash
    tags = [
        ["d", ENTRY + hashed],
        ["x", hashed],
        *(["X", parent] for parent in entry.parents),
        ["t", _LABEL],
        *(["t", tag] for tag in entry.tags),
        *(["r", anchor] for anchor in entry.anchors),
        *_h_tag(entry.group),
    ]
    return Draft(kinds.APP_RECORD, tags, compact(fields_of(entry)), created_at)


def vouch_draft(
    of: str,
    voucher: str,
    *,
    name: str | None,
    created_at: int,
    confidence: float = 1.0,
    attestation: Attestation = Attestation.CONFIRM,
    group: str | None = None,
) -> Draft:
    """X-11. `voucher`: public key of the signer."""
    fields: dict[str, object] = {"id": voucher}
    if name is not None:
        fields["name"] = name
    fields |= {"timestamp": timestamp_of(created_at), "confidence": confidence}
    if attestation is not Attestation.CONFIRM:
        fields["attestation"] = attestation.value
    return _draft(VOUCH, of, [], fields, created_at, group)


def supersession_draft(old: str, new: str, *, created_at: int, group: str | None = None) -> Draft:
    """X-15."""
    return _draft(SUPERSEDED, old, [["X", new]], {"superseded_by": new}, created_at, group)


def patch_draft(
    of: str, fields: Mapping[str, object], *, created_at: int, group: str | None = None
) -> Draft:
    """X-07. Without fields the entry's own values apply again."""
    ordered = {name: fields[name] for name in PATCH_FIELDS if name in fields}
    return _draft(PATCH, of, [], ordered, created_at, group)


def _draft(
    prefix: str,
    of: str,
    tags: list[list[str]],
    fields: Mapping[str, object],
    created_at: int,
    group: str | None,
) -> Draft:
    every = [["d", prefix + of], ["x", of], *tags, *_h_tag(group)]
    return Draft(kinds.APP_DATA, every, compact(fields), created_at)


def _h_tag(group: str | None) -> list[list[str]]:
    return [] if group is None else [["h", group]]


# -- reading ------------------------------------------------------------------------------------


def validated(fields: object, max_chars: int = MAX_CHARS) -> Validity:
    """All errors of an entry's JSON value, and warnings about missing suggested fields (X-20)."""
    if not isinstance(fields, dict):
        return Validity((NOT_AN_OBJECT,), ())
    warnings = [f"{name} is missing" for name in _SUGGESTED if name not in fields]
    content = fields.get("content")
    if isinstance(content, str) and len(content.encode(errors="replace")) > MAX_BYTES:
        warnings.append("content is over 10 KB")
    return Validity(tuple(entry_faults(fields, max_chars)), tuple(warnings))


def entry_in(fields: Mapping[str, object], event: Event | None = None) -> Entry:
    """The entry of valid fields; anchors and group come from the event."""
    author = _mapping(fields["author"])
    context, vouchers = fields.get("context"), fields.get("vouchers")
    successor = fields.get("superseded_by")
    return Entry(
        content=str(fields["content"]),
        author_id=str(author["id"]),
        author_name=str(author["name"]),
        timestamp=str(fields["timestamp"]),
        memory_type=MemoryType(str(fields.get("memory_type", MemoryType.EPISODIC))),
        parents=_strings(fields.get("parent_refs")),
        confidence=_number(fields.get("confidence", 0.5)),
        tags=_strings(fields.get("tags")),
        context=None if context is None else _mapping(context),
        more_of_author={k: v for k, v in author.items() if k not in ("id", "name")},
        anchors=() if event is None else tuple(dict.fromkeys(event.tag_values("r"))),
        group=None if event is None else event.tag("h"),
        claimed_vouchers=tuple(map(_mapping, vouchers)) if isinstance(vouchers, list) else (),
        claimed_successor=None if successor is None else str(successor),
    )


def record_in(event: Event) -> Record | UnreadableRecord:
    """Decode an event. Never raises for invalid ones."""
    # The length limit is each relay's own.
    fault = check(event, CheckOptions(max_chars=max(MAX_CHARS, len(event.content))))
    fields = storable_object(event.content)
    if fault is None and fields is None:
        fault = no_object(event.content)  # valid JSON that cannot be stored
    if fault is not None or fields is None:
        return UnreadableRecord(event, fault or no_object(event.content))
    of = event.tag("x") or ""
    if event.kind == kinds.APP_RECORD:
        return Memory(event, entry_in(fields, event))
    if event.d.startswith(VOUCH):
        return _vouch(event, of, fields)
    if event.d.startswith(SUPERSEDED):
        return Supersession(event, of, str(fields["superseded_by"]))
    return Patch(event, of, fields)


def _vouch(event: Event, of: str, fields: Mapping[str, object]) -> Vouch:
    name, confidence = fields.get("name"), fields.get("confidence")
    return Vouch(
        event=event,
        of=of,
        claimed_id=str(fields["id"]),
        name=name if isinstance(name, str) else None,
        timestamp=str(fields["timestamp"]),
        confidence=None if confidence is None else _number(confidence),
        attestation=Attestation(str(fields.get("attestation", Attestation.CONFIRM))),
    )


def _mapping(value: object) -> Mapping[str, object]:
    return value if isinstance(value, dict) else _NOTHING_MORE


def _strings(value: object) -> tuple[str, ...]:
    return tuple(map(str, value)) if isinstance(value, list) else ()


def _number(value: object) -> float:
    assert isinstance(value, int | float)
    return value
