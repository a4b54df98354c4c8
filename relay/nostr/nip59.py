"""NIP-59: gift wraps, and what NIP-17 puts into them. Used by clients; the relay opens none."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import orjson

from relay.errors import Invalid
from relay.nostr import kinds
from relay.nostr.event import event_from, signed
from relay.nostr.nip44 import conversation_key, decrypt, encrypt, plaintext_of

if TYPE_CHECKING:
    from relay.nostr.event import Event
    from relay.nostr.keys import SecretKey

MAX_BACKDATED_S: Final = 2 * 86_400
"""How far in the past the dates of a seal and a wrap may be."""
_UNSIGNED: Final = "0" * 128


def unsigned(pubkey: str, kind: int, tags: list[list[str]], content: str, created_at: int) -> Event:
    """A message for a wrap. Its signature is zeros: nobody can prove who wrote it."""
    return signed(pubkey, created_at, kind, tags, content, lambda _: _UNSIGNED)


def wrapped(
    message: Event, author: SecretKey, reader: str, one_time: SecretKey, dates: tuple[int, int]
) -> Event:
    """The gift wrap for one reader (64 hex). `dates`: of the seal and of the wrap, each at random
    up to `MAX_BACKDATED_S` in the past. Raises Invalid for no key."""
    names = ("id", "pubkey", "created_at", "kind", "tags", "content")
    text = orjson.dumps({name: getattr(message, name) for name in names}).decode()
    seal = sealed(text, author, reader, dates[0])
    content = encrypt(seal.raw.decode(), conversation_key(one_time, reader))
    return one_time.sign(kinds.GIFT_WRAP, [["p", reader]], content, dates[1])


def opened(wrap: Event, reader: SecretKey) -> Event:
    """The message in a wrap, by the signer of its seal. The wrap's own signature proves nothing and
    is not checked. Raises Invalid."""
    text = decrypt(wrap.content, conversation_key(reader, wrap.pubkey))
    return unsealed(event_from(object_in_envelope(text)), reader)


def sealed(
    text: str, author: SecretKey, reader: str, created_at: int, nonce: bytes | None = None
) -> Event:
    """The seal (kind 13) around the JSON of an unsigned event of the author."""
    content = encrypt(text, conversation_key(author, reader), nonce)
    return author.sign(kinds.SEAL, [], content, created_at)


def unsealed(seal: Event, reader: SecretKey) -> Event:
    """The event in a seal, with a placeholder for its signature. Raises Invalid, also when its
    author is not the signer of the seal."""
    if seal.kind != kinds.SEAL:
        raise Invalid(f"seal: has kind {seal.kind}, not {kinds.SEAL}")
    fields = object_in_envelope(plaintext_of(seal, reader))
    message = event_from({**fields, "sig": _UNSIGNED})
    if message.pubkey != seal.pubkey:
        raise Invalid("pubkey: the rumor was sealed by another key")
    return message


def object_in_envelope(text: str) -> dict[str, object]:
    """Raises Invalid."""
    try:
        fields = orjson.loads(text)
    except orjson.JSONDecodeError:
        raise Invalid("envelope: the content is not JSON") from None
    if not isinstance(fields, dict):
        raise Invalid("envelope: the content is not an event")
    return fields
