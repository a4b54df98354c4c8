"""Encrypted memory: NIP-44 from the agent to itself (S-12, S-13)."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, Final, NamedTuple

from relay.errors import Invalid
from relay.memory.encrypted import may_be_encrypted
from relay.memory.unreadable import UnreadableRecord
from relay.nostr import nip44

if TYPE_CHECKING:
    from relay.memory.draft import Draft
    from relay.nostr.event import Event
    from relay.nostr.keys import SecretKey

TAG: Final = ("encrypted", "nip44")


class OwnKey(NamedTuple):
    """The conversation key of an author with itself.

    NIP-44 binds neither author nor `d`: other people may paste an author's ciphertext into records
    of their own, so it is decrypted in this author's events only.
    """

    pubkey: str
    conversation_key: bytes

    @classmethod
    def of(cls, key: SecretKey) -> OwnKey:
        return cls(key.pubkey, nip44.conversation_key(key, key.pubkey))


def encrypted(draft: Draft, key: OwnKey, nonce: bytes) -> Draft:
    """The draft with encrypted content and the tag `encrypted`.

    `nonce`: 32 random bytes, unique. Raises Invalid for an empty content.
    """
    tags = [*(tag for tag in draft.tags if tag[0] != TAG[0]), list(TAG)]
    return draft._replace(
        tags=tags, content=nip44.encrypt(draft.content, key.conversation_key, nonce)
    )


def is_encrypted(event: Event) -> bool:
    """Whether the content is encrypted and so not checked (S-12)."""
    return event.tag(TAG[0]) == TAG[1]


def content_of(event: Event, key: OwnKey | None) -> str | UnreadableRecord:
    """The plain text. Encrypted content, by tag or form, is decrypted or reported, never
    returned."""
    if not may_be_encrypted(event):
        return event.content
    if key is None:
        return UnreadableRecord(event, "encrypted, and no key is at hand", is_locked=True)
    if event.pubkey == key.pubkey:
        with suppress(Invalid):
            return nip44.decrypt(event.content, key.conversation_key)
    return UnreadableRecord(event, "encrypted, and not with the key at hand", is_locked=True)
