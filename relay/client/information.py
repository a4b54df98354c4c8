"""Readers for the fields of a relay information document (NIP-11) that the client uses.

Any field may be missing or of another type; it is then treated as absent.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from relay.memory.fields import is_integer
from relay.nostr.event import is_hex64

if TYPE_CHECKING:
    from collections.abc import Mapping


def owners_in(document: Mapping[str, object]) -> frozenset[str]:
    """The document's `pubkey` as a set: one key of 64 hex, or none."""
    named = document.get("pubkey")
    return frozenset({named} if isinstance(named, str) and is_hex64(named) else ())


LOGIN: Final = 42
"""Listed in `supported_nips` by a relay that clients log in to."""
GROUPS: Final = 29
"""Listed by a relay with groups, which decides who may send 9000–9022."""

COUNT: Final = 45
"""Listed by a relay that counts events."""


def lists_nip(document: Mapping[str, object], number: int) -> bool:
    """Whether `supported_nips` contains this NIP."""
    listed = document.get("supported_nips")
    return isinstance(listed, list) and number in listed


def can_search(document: Mapping[str, object]) -> bool:
    """Whether filters may contain `search` (NIP-50)."""
    return lists_nip(document, 50)


def limit_in(document: Mapping[str, object], name: str) -> int | None:
    """A limit such as `max_limit` or `max_message_length`; None if absent."""
    limits = document.get("limitation")
    most = limits.get(name) if isinstance(limits, dict) else None
    return most if is_integer(most) and most > 0 else None


def keeps_memory(document: Mapping[str, object]) -> bool:
    """Whether the relay checks memory records and their authors (G-30)."""
    return isinstance(document.get("memory"), dict)


def offers_memory(document: Mapping[str, object], extra: str, value: object) -> bool:
    """Whether the `memory` object lists an extension, such as `"prefix_d_kinds", 30078` (G-25)."""
    memory = document.get("memory")
    listed = memory.get(extra) if isinstance(memory, dict) else None
    return isinstance(listed, list) and value in listed


def reads_prefixes(document: Mapping[str, object], kind: int) -> bool:
    """Whether a `#d` value ending in `:` is a prefix for this kind (G-09)."""
    return offers_memory(document, "prefix_d_kinds", kind)
