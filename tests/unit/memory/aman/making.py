"""Signed Aman events, valid except for what a test changes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from relay.memory.aman.records import draft_of
from relay.memory.fields import compact
from tests.cast import robot

if TYPE_CHECKING:
    from collections.abc import Mapping

    from relay.memory.aman.records import Record
    from relay.nostr.event import Event
    from relay.nostr.keys import SecretKey

LABELS: Final = {
    30093: ("aman_preference", "hk:preference"),
    30094: ("aman_summary", "hk:summary"),
    30095: ("aman_tool_history", "hk:1"),
    30096: ("aman_clear_context", "hk:1"),
    30097: ("aman_subscription_state", "hk:subscription_state"),
}
"""`k`, and a `d` that will do, by kind."""

PAYLOADS: Final[Mapping[int, Mapping[str, object]]] = {
    30093: {"history_key": "hk", "preference": "tea", "updated_at": 7},
    30094: {"history_key": "hk", "summary": "all", "message_count": 3, "updated_at": 7},
    30095: {
        "history_key": "hk",
        "tool_name": "kettle",
        "success": True,
        "content": "hot",
        "sender_id": "u",
        "group_id": None,
        "created_at": 7,
    },
    30096: {"history_key": "hk", "sender_id": None, "created_at": 7},
    30097: {"history_key": "hk", "topics": ["tea"], "updated_at": 7},
}


def written(record: Record, by: SecretKey = robot) -> Event:
    return by.sign(*draft_of(record))


def event_of(
    kind: int,
    content: str | Mapping[str, object] | None = None,
    by: SecretKey = robot,
    at: int = 7,
    **tags: str | None,
) -> Event:
    """`tags`: other values by name, None to leave one out."""
    k, d = LABELS[kind]
    values: dict[str, str | None] = {"d": d, "k": k, "hk": "hk", "v": "1", "ts": str(at), **tags}
    text = content if isinstance(content, str) else compact(content or PAYLOADS[kind])
    listed = [[name, value] for name, value in values.items() if value is not None]
    return by.sign(kind, listed, text, at)
