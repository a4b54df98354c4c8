"""Encrypted memory: NIP-44 from the agent to itself (S-12, S-13).

The key is the conversation key of the agent with itself (`nip44.conversation_key(k, k.pubkey)`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from relay.errors import Invalid
from relay.memory.encrypted import may_be_encrypted
from relay.memory.unreadable import UnreadableRecord
from relay.nostr import nip44

if TYPE_CHECKING:
    from relay.memory.draft import Draft
    from relay.nostr.event import Event

TAG: Final = ("encrypted", "nip44")


def encrypted(draft: Draft, key: bytes, nonce: bytes) -> Draft:
    """The draft with encrypted content and the tag `encrypted`.

    `nonce`: 32 random bytes, unique. Raises Invalid for an empty content.
    """
    tags = [*(tag for tag in draft.tags if tag[0] != TAG[0]), list(TAG)]
    return draft._replace(tags=tags, content=nip44.encrypt(draft.content, key, nonce))


def is_encrypted(event: Event) -> bool:
    """Whether the content is encrypted and so not checked (S-12)."""
    return event.tag(TAG[0]) == TAG[1]


def content_of(event: Event, key: bytes | None) -> str | UnreadableRecord:
    """The plain text. Encrypted content, by tag or form, is decrypted or reported, never returned.

    `key` decrypts the content of its own agent only.
    """
    if not may_be_encrypted(event):
        return event.content
    if key is None:
        return UnreadableRecord(event, "encrypted, and no key is at hand", is_locked=True)
    try:
        return nip44.decrypt(event.content, key)
    except Invalid:
        return UnreadableRecord(event, "encrypted, and not with the key at hand", is_locked=True)
