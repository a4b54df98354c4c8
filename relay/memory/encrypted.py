"""Which events may be encrypted: by kind, by tag, by the form of their content. G-21."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

from relay.nostr import kinds

if TYPE_CHECKING:
    from relay.nostr.event import Event

_TAGS: Final = frozenset({"enc", "encrypted"})
_KINDS: Final = frozenset(
    {
        kinds.ENCRYPTED_MESSAGE,
        kinds.SEAL,
        kinds.GIFT_WRAP,
        kinds.EPHEMERAL_GIFT_WRAP,
        kinds.NOSTR_CONNECT,
        kinds.ENVELOPE,
        kinds.SHARED_ENVELOPE,
        kinds.KEY_SHARE,
    }
)
_NIP44: Final = re.compile(r"A[g-v][A-Za-z0-9+/]{130,}={0,2}")
"""Base64 of at least 99 bytes whose first, the version, is 2."""
_NIP04: Final = re.compile(r"[A-Za-z0-9+/]+={0,2}\?iv=[A-Za-z0-9+/]+={0,2}")


def may_be_encrypted(event: Event) -> bool:
    """Whether the content is encrypted or marked so: then it is not parsed, indexed or logged."""
    return (
        event.kind in _KINDS
        or not _TAGS.isdisjoint([tag[0] for tag in event.tags if tag])
        or _NIP44.fullmatch(event.content) is not None
        or _NIP04.fullmatch(event.content) is not None
    )
