"""What a relay says of itself (NIP-11), as far as its clients go by it.

Of a document any field may be missing or of another type, and then nothing was said; of a relay
that is away, or has no document, the empty one is read.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from relay.client.errors import NotARelay, Unanswered, Unreachable
from relay.memory.fields import is_integer
from relay.nostr.event import is_hex64

if TYPE_CHECKING:
    from collections.abc import Mapping

    from relay.client.connection import Client


async def document_at(client: Client) -> Mapping[str, object]:
    """The relay's, asked for now; empty when there is none."""
    try:
        return await client.information()
    except (Unreachable, Unanswered, NotARelay):
        return {}


def owners_in(document: Mapping[str, object]) -> frozenset[str]:
    """Whose relay it is: one key of 64 hex, or none."""
    named = document.get("pubkey")
    return frozenset({named} if isinstance(named, str) and is_hex64(named) else ())


def lists_nip(document: Mapping[str, object], number: int) -> bool:
    """Whether it says that it does what this NIP asks."""
    listed = document.get("supported_nips")
    return isinstance(listed, list) and number in listed


def can_search(document: Mapping[str, object]) -> bool:
    """Whether a filter may have `search` (NIP-50)."""
    return lists_nip(document, 50)


def limit_in(document: Mapping[str, object], name: str) -> int | None:
    """`max_limit`, `max_message_length`, …; None: it names none."""
    limits = document.get("limitation")
    most = limits.get(name) if isinstance(limits, dict) else None
    return most if is_integer(most) and most > 0 else None


def keeps_memory(document: Mapping[str, object]) -> bool:
    """Whether it knows records of memory, and asks who may write and correct them (G-30)."""
    return isinstance(document.get("memory"), dict)


def offers_memory(document: Mapping[str, object], extra: str, value: object) -> bool:
    """Whether it does with memory what NIP-01 does not ask: `"prefix_d_kinds", 30078`. G-25."""
    said = document.get("memory")
    listed = said.get(extra) if isinstance(said, dict) else None
    return isinstance(listed, list) and value in listed


def reads_prefixes(document: Mapping[str, object], kind: int) -> bool:
    """Whether `:` at the end of a `#d` makes it a prefix, for this kind (G-09)."""
    return offers_memory(document, "prefix_d_kinds", kind)
