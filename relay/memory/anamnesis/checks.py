"""The checks of Anamnesis records, in the order of their refusals.

Invariants: the first fault of each list is the relay's refusal; `records.validated` gives all of
them (X-20). Checks against stored records are in `permissions`.
"""

from __future__ import annotations

import re
from datetime import datetime
from enum import StrEnum
from hashlib import sha256
from typing import TYPE_CHECKING, Final

from relay.memory.anamnesis.references import ENTRY
from relay.memory.fields import no_object
from relay.nostr import kinds
from relay.nostr.event import is_hex64, object_in

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from relay.memory.check_options import CheckOptions
    from relay.nostr.event import Event

    Fields = Mapping[str, object]

_BAD_RECORD: Final = "d must be anamnesis:memory, vouch, superseded or meta and a hash"
_BAD_VOUCH: Final = "d must be anamnesis:vouch:<64 lowercase hex>"
DATE_TIME: Final = (
    r"[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9]{2}:[0-9]{2}:[0-9]{2}(\.[0-9]+)?(Z|[+-][0-9]{2}:[0-9]{2})"
)
_DATE_TIME: Final = re.compile(DATE_TIME)
_NAME_CHARS: Final = 64
"""Characters of an unknown field name that are quoted."""


class MemoryType(StrEnum):
    EPISODIC = "episodic"
    SEMANTIC = "semantic"
    PROCEDURAL = "procedural"
    INSIGHT = "insight"


class Attestation(StrEnum):
    """A voucher's judgement of a memory."""

    CONFIRM = "confirm"
    PARTIAL = "partial"
    DISPUTE = "dispute"


ENTRY_FIELDS: Final = (
    "content",
    "author",
    "timestamp",
    "content_hash",
    "memory_type",
    "parent_refs",
    "vouchers",
    "confidence",
    "tags",
    "context",
    "superseded_by",
)
PATCH_FIELDS: Final = ("memory_type", "confidence", "tags", "context")


def content_hash(content: str) -> str:
    """X-02. Raises UnicodeEncodeError for lone surrogates."""
    return sha256(content.encode()).hexdigest()


def time_in(timestamp: object) -> int | None:
    """Unix seconds of an ISO 8601 date-time with seconds and zone, else None."""
    if not isinstance(timestamp, str) or _DATE_TIME.fullmatch(timestamp) is None:
        return None
    try:
        return int(datetime.fromisoformat(timestamp).timestamp() // 1)
    except (ValueError, OverflowError):
        return None


def check(event: Event, options: CheckOptions) -> str | None:
    system, what, hashed = (*event.d.split(":", 2), "", "")[:3]
    if event.kind == kinds.APP_RECORD and event.d.startswith(ENTRY):
        return _entry_fault(event, options)
    if system != "anamnesis" or event.kind != kinds.APP_DATA or what not in _FAULTS:
        return _BAD_RECORD
    if not is_hex64(hashed) or set(event.tag_values("x")) != {hashed}:
        return _BAD_VOUCH if what == "vouch" else _BAD_RECORD
    fields = object_in(event.content)
    if fields is None:
        return no_object(event.content)
    return next(_FAULTS[what](fields), None)


def _entry_fault(event: Event, options: CheckOptions) -> str | None:
    fields = object_in(event.content)
    if fields is None:
        return no_object(event.content)
    fault = next(identity_faults(fields, options.max_chars, options.max_bytes), None)
    if fault is not None:
        return fault
    hashed = fields["content_hash"]
    if event.d != f"{ENTRY}{hashed}" or set(event.tag_values("x")) != {hashed}:
        return f"d must be {ENTRY}{hashed}"
    return next(detail_faults(fields), None)


def entry_faults(fields: Fields, max_chars: int) -> Iterator[str]:
    yield from identity_faults(fields, max_chars)
    yield from detail_faults(fields)


def identity_faults(fields: Fields, max_chars: int, max_bytes: int = 0) -> Iterator[str]:
    """Faults of the required fields: content, author, timestamp, hash."""
    yield from _unknown(fields, ENTRY_FIELDS)
    content = fields.get("content")
    if not isinstance(content, str) or not 1 <= len(content) <= max_chars:
        yield f"content.content must be a string of 1 to {max_chars} characters"
    elif max_bytes and len(content.encode(errors="replace")) > max_bytes:
        yield f"content.content is over {max_bytes} bytes"
    author = fields.get("author")
    if not isinstance(author, dict):
        yield "content.author must be an object"
    else:
        for name in ("id", "name"):
            if not isinstance(author.get(name), str):
                yield f"content.author.{name} must be a string"
    yield from _time_fault(fields, "content")
    hashed = fields.get("content_hash")
    if not is_hex64(hashed):
        yield "content_hash must be 64 lowercase hex characters"
    elif not isinstance(content, str) or not _has_hash(content, hashed):
        yield "content_hash does not match content"


def detail_faults(fields: Fields) -> Iterator[str]:
    """Faults of the optional fields."""
    if "memory_type" in fields:
        yield from _memory_type_fault(fields["memory_type"])
    if "parent_refs" in fields:
        parents = fields["parent_refs"]
        if not (isinstance(parents, list) and all(is_hex64(parent) for parent in parents)):
            yield "content.parent_refs must be an array of 64 lowercase hex characters"
        elif fields.get("content_hash") in parents:
            yield "a memory cannot be its own parent"
    if "vouchers" in fields:
        yield from _voucher_faults(fields["vouchers"])
    yield from _confidence_fault(fields, "content")
    yield from _label_faults(fields)
    if "superseded_by" in fields:
        yield from _supersession_faults(fields)


def vouch_faults(fields: Fields) -> Iterator[str]:
    if not isinstance(fields.get("id"), str):
        yield "content.id must be a string"
    yield from _time_fault(fields, "content")
    yield from _confidence_fault(fields, "content")
    if fields.get("attestation", Attestation.CONFIRM) not in list(Attestation):
        yield "content.attestation must be confirm, partial or dispute"


def patch_faults(fields: Fields) -> Iterator[str]:
    yield from _unknown(fields, PATCH_FIELDS)
    if "memory_type" in fields:
        yield from _memory_type_fault(fields["memory_type"])
    yield from _confidence_fault(fields, "content")
    yield from _label_faults(fields)


def _supersession_faults(fields: Fields) -> Iterator[str]:
    if not is_hex64(fields.get("superseded_by")):
        yield "content.superseded_by must be 64 lowercase hex characters"


_FAULTS: Final = {
    "vouch": vouch_faults,
    "superseded": _supersession_faults,
    "meta": patch_faults,
}


def _unknown(fields: Fields, known: tuple[str, ...]) -> Iterator[str]:
    for name in fields:
        if name not in known:
            # Lone surrogates cannot be sent.
            yield f"unknown field {name[:_NAME_CHARS].encode(errors='replace').decode()}"


def _time_fault(fields: Fields, where: str) -> Iterator[str]:
    if time_in(fields.get("timestamp")) is None:
        yield f"{where}.timestamp must be an ISO 8601 date-time with zone"


def _memory_type_fault(value: object) -> Iterator[str]:
    if value not in list(MemoryType):
        yield "content.memory_type must be episodic, semantic, procedural or insight"


def _confidence_fault(fields: Fields, where: str) -> Iterator[str]:
    value = fields.get("confidence")
    if "confidence" in fields and not (
        isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value <= 1
    ):
        yield f"{where}.confidence must be a number from 0 to 1"


def _label_faults(fields: Fields) -> Iterator[str]:
    tags = fields.get("tags")
    if "tags" in fields and not (
        isinstance(tags, list) and all(isinstance(tag, str) for tag in tags)
    ):
        yield "content.tags must be an array of strings"
    if "context" in fields and not isinstance(fields["context"], dict):
        yield "content.context must be an object"


def _voucher_faults(vouchers: object) -> Iterator[str]:
    if not isinstance(vouchers, list):
        yield "content.vouchers must be an array of objects"
        return
    for number, voucher in enumerate(vouchers):
        where = f"content.vouchers[{number}]"
        fields = voucher if isinstance(voucher, dict) else {}
        if not isinstance(fields.get("id"), str):
            yield f"{where}.id must be a string"
        yield from _time_fault(fields, where)
        yield from _confidence_fault(fields, where)


def _has_hash(content: str, hashed: object) -> bool:
    try:
        return content_hash(content) == hashed
    except UnicodeEncodeError:
        return False
