"""The checks of Aman records, in the order of their refusals."""

from __future__ import annotations

from hashlib import sha256
from typing import TYPE_CHECKING, Final

from relay.memory.fields import Need, Shape, decoded, first_fault, no_object, whole_number
from relay.nostr import kinds
from relay.nostr.event import is_hex64, object_in
from relay.nostr.secretbox import MIN_BYTES

if TYPE_CHECKING:
    from collections.abc import Mapping

    from relay.memory.check_options import CheckOptions
    from relay.memory.fields import FieldSpec
    from relay.nostr.event import Event

LABELS: Final = {
    kinds.PREFERENCE: "aman_preference",
    kinds.SUMMARY: "aman_summary",
    kinds.TOOL_HISTORY: "aman_tool_history",
    kinds.CLEAR_CONTEXT: "aman_clear_context",
    kinds.SUBSCRIPTION_STATE: "aman_subscription_state",
}
"""Tag `k`."""

D_ENDS: Final = {
    kinds.PREFERENCE: "preference",
    kinds.SUMMARY: "summary",
    kinds.SUBSCRIPTION_STATE: "subscription_state",
}
"""The part of `d` after `<hk>:`; for the other two kinds it is a hash. A subscription state may
have any `d`: the original's document gives none (A-05)."""

AFTER: Final = "after"
"""Tag of a row: the ids of clears of its second that it was written after."""

ENCRYPTION: Final = "secretbox-v1"
VERSION: Final = "1"

_KEY: Final = ("history_key", Shape.STRING, Need.REQUIRED)
_UPDATED: Final = ("updated_at", Shape.COUNT, Need.REQUIRED)
_CREATED: Final = ("created_at", Shape.COUNT, Need.REQUIRED)
_SENDER: Final = ("sender_id", Shape.STRING, Need.OPTIONAL)

FIELDS: Final[Mapping[int, tuple[FieldSpec, ...]]] = {
    kinds.PREFERENCE: (_KEY, ("preference", Shape.STRING, Need.REQUIRED), _UPDATED),
    kinds.SUMMARY: (
        _KEY,
        ("summary", Shape.STRING, Need.REQUIRED),
        ("message_count", Shape.COUNT, Need.REQUIRED),
        _UPDATED,
    ),
    kinds.TOOL_HISTORY: (
        _KEY,
        ("tool_name", Shape.STRING, Need.REQUIRED),
        ("success", Shape.BOOLEAN, Need.REQUIRED),
        ("content", Shape.STRING, Need.REQUIRED),
        _SENDER,
        ("group_id", Shape.STRING, Need.OPTIONAL),
        _CREATED,
    ),
    kinds.CLEAR_CONTEXT: (_KEY, _SENDER, _CREATED),
    kinds.SUBSCRIPTION_STATE: (_KEY, ("topics", Shape.STRINGS, Need.REQUIRED), _UPDATED),
}
"""The fields of a payload, in the order in which they are written and checked."""


def check(event: Event, options: CheckOptions) -> str | None:
    label = LABELS.get(event.kind)
    if label is None:  # documents, chunks and policies have required tags only
        return None
    if event.tag("k") != label:
        return f"tag k must be {label}"
    version = event.tag("v") or ""
    if not version.isascii() or not version.isdigit() or not version.strip("0"):
        return "tag v must be a positive integer"
    ts = whole_number(event.tag("ts"))
    if ts is None:
        return "tag ts must be unix seconds"
    if options.latest is not None and ts > options.latest:
        return "ts is in the future"
    if options.ts_is_created_at and ts != event.created_at:
        return "ts must equal created_at"
    hk, d = event.tag("hk") or "", event.d
    end = D_ENDS.get(event.kind)
    if end is not None and d != f"{hk}:{end}" and event.kind != kinds.SUBSCRIPTION_STATE:
        return f"d must be {hk}:{end}"
    if end is None and not (d.startswith(f"{hk}:") and len(d) > len(hk) + 1):
        return f"d must start with {hk}:"
    for tag in event.tags:
        if tag[:1] == [AFTER] and not all(map(is_hex64, tag[1:])):
            return f"tag {AFTER} must name events"
    enc = event.tag("enc")
    if enc is not None:
        if enc != ENCRYPTION:
            return f"tag enc must be {ENCRYPTION}"
        box = decoded(event.content)
        if box is None or len(box) < MIN_BYTES:
            return f"content is not {ENCRYPTION}"
        return None
    if version.lstrip("0") != VERSION:
        return None
    fields = object_in(event.content)
    if fields is None:
        return no_object(event.content)
    fault = content_fault(event.kind, fields, hk)
    if fault is None and options.verify_hash and end is None:
        digest = sha256(event.content.encode()).hexdigest()
        if d[len(hk) + 1 :] != digest:
            return "d does not match the payload hash"
    return fault


def content_fault(kind: int, fields: Mapping[str, object], hk: str) -> str | None:
    """The refusal for a payload of version 1 under this history key, or None."""
    fault = first_fault(fields, FIELDS[kind])
    if fault is None and fields["history_key"] != hk:
        return "content.history_key must equal tag hk"
    return fault


def check_lenient(event: Event, options: CheckOptions) -> str | None:
    if event.kind in LABELS and event.tag("enc") is None and object_in(event.content) is None:
        return no_object(event.content)
    return None
