"""What an Aman record must look like. MEMORY.md 2.7, in its order."""

from __future__ import annotations

from hashlib import sha256
from typing import TYPE_CHECKING, Final

from relay.memory.fields import NOT_AN_OBJECT, decoded, object_in, whole_number
from relay.nostr import kinds

if TYPE_CHECKING:
    from relay.memory.terms import Terms
    from relay.nostr.event import Event

_LABELS: Final = {
    kinds.PREFERENCE: "aman_preference",
    kinds.SUMMARY: "aman_summary",
    kinds.TOOL_HISTORY: "aman_tool_history",
    kinds.CLEAR_CONTEXT: "aman_clear_context",
    kinds.SUBSCRIPTION_STATE: "aman_subscription_state",
}
_D_ENDS: Final = {
    kinds.PREFERENCE: "preference",
    kinds.SUMMARY: "summary",
    kinds.SUBSCRIPTION_STATE: "subscription_state",
}
_SECRETBOX_LEAST: Final = 40
"""Nonce and MAC of secretbox-v1 (A-25)."""


def check(event: Event, terms: Terms) -> str | None:
    label = _LABELS.get(event.kind)
    if label is None:  # documents, chunks and policies: only the tags are fixed
        return None
    if event.tag("k") != label:
        return f"tag k must be {label}"
    version = event.tag("v") or ""
    if not version.isascii() or not version.isdigit() or not version.strip("0"):
        return "tag v must be a positive integer"
    ts = whole_number(event.tag("ts"))
    if ts is None:
        return "tag ts must be unix seconds"
    if terms.latest is not None and ts > terms.latest:
        return "ts is in the future"
    if terms.ts_is_created_at and ts != event.created_at:
        return "ts must equal created_at"
    hk = event.tag("hk") or ""
    end = _D_ENDS.get(event.kind)
    if end is not None and event.d != f"{hk}:{end}":
        return f"d must be {hk}:{end}"
    if end is None and not (event.d.startswith(f"{hk}:") and len(event.d) > len(hk) + 1):
        return f"d must start with {hk}:"
    enc = event.tag("enc")
    if enc is not None:
        if enc != "secretbox-v1":
            return "tag enc must be secretbox-v1"
        box = decoded(event.content)
        return "content is not secretbox-v1" if box is None or len(box) < _SECRETBOX_LEAST else None
    if version.lstrip("0") != "1":
        return None
    if object_in(event.content) is None:
        return NOT_AN_OBJECT
    if terms.verify_hash and end is None:
        digest = sha256(event.content.encode()).hexdigest()
        if event.d[len(hk) + 1 :] != digest:
            return "d does not match the payload hash"
    return None


def check_lenient(event: Event, terms: Terms) -> str | None:
    if event.kind in _LABELS and event.tag("enc") is None and object_in(event.content) is None:
        return NOT_AN_OBJECT
    return None
