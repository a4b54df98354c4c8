"""PNS: events inside envelopes of a derived key. Kinds 1080 and 1081. MEMORY.md D-29, D-30.

A channel is a key pair with a conversation key of its own: one derived from a device's key (1080),
or a team's (1081). Who has its secret reads and writes all of it. A nonce is 32 random
bytes, never the same twice. How a team's secret travels (1082) is nobody's business here.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from hashlib import sha256
from hmac import digest
from typing import NamedTuple

import orjson

from relay.errors import Invalid
from relay.nostr import kinds, nip44
from relay.nostr.event import Event, event_from, id_bytes
from relay.nostr.keys import SecretKey, is_signed


@dataclass(frozen=True, slots=True)
class Channel:
    """What signs envelopes, and what they are encrypted with."""

    key: SecretKey
    conversation_key: bytes = field(repr=False)
    """32 bytes."""

    @property
    def pubkey(self) -> str:
        return self.key.pubkey


class Rumor(NamedTuple):
    """An event that nobody signs: whose it is, its seal says."""

    id: str
    pubkey: str
    created_at: int
    kind: int
    tags: list[list[str]]
    content: str

    def json(self) -> str:
        return orjson.dumps(self._asdict()).decode()


def derive(device_secret: SecretKey) -> Channel:
    """The channel of one device. HKDF's extract alone, no expand (D-29)."""
    return channel(SecretKey(digest(b"nip-pns", bytes.fromhex(device_secret.hex), "sha256")))


def channel(secret: SecretKey) -> Channel:
    """The channel of a secret that is shared as it is, as a team's."""
    return Channel(secret, digest(b"nip44-v2", bytes.fromhex(secret.hex), "sha256"))


def rumor(pubkey: str, kind: int, tags: list[list[str]], content: str, created_at: int) -> Rumor:
    id_ = sha256(id_bytes(pubkey, created_at, kind, tags, content)).hexdigest()
    return Rumor(id_, pubkey, created_at, kind, tags, content)


def wrap(
    keys: Channel, inner: Event, created_at: int | None = None, nonce: bytes | None = None
) -> Event:
    """The envelope (1080) of a signed event. `created_at`: Unix seconds, now by default; without
    a nonce, under a random one."""
    content = nip44.encrypt(inner.raw.decode(), keys.conversation_key, nonce)
    if created_at is None:
        created_at = int(time.time())  # noqa: TID251  its callers are scripts, who have no clock
    return keys.key.sign(kinds.ENVELOPE, [], content, created_at)


def unwrap(keys: Channel, event: Event) -> Event:
    """The event inside an envelope (1080). Raises Invalid, also when its signature is wrong."""
    inner = event_from(_opened(keys, event, kinds.ENVELOPE))
    _check_signed(inner)
    return inner


def wrap_shared(
    keys: Channel,
    author: SecretKey,
    inner: Rumor,
    created_at: tuple[int, int],
    nonces: tuple[bytes, bytes],
) -> Event:
    """The shared envelope (1081) of what `author` says; created_at and nonces: of the seal (13)
    and of the envelope."""
    if inner.pubkey != author.pubkey:
        raise Invalid("pubkey: a rumor is sealed by its author alone")
    key = nip44.conversation_key(author, keys.pubkey)
    content = nip44.encrypt(inner.json(), key, nonces[0])
    seal = author.sign(kinds.SEAL, [], content, created_at[0])
    content = nip44.encrypt(seal.raw.decode(), keys.conversation_key, nonces[1])
    return keys.key.sign(kinds.SHARED_ENVELOPE, [], content, created_at[1])


def unwrap_shared(keys: Channel, event: Event) -> Rumor:
    """What somebody says inside a shared envelope (1081). Raises Invalid, also when the rumor is
    not of whoever sealed it."""
    seal = event_from(_opened(keys, event, kinds.SHARED_ENVELOPE))
    if seal.kind != kinds.SEAL:
        raise Invalid(f"seal: has kind {seal.kind}, not {kinds.SEAL}")
    _check_signed(seal)
    text = nip44.decrypt(seal.content, nip44.conversation_key(keys.key, seal.pubkey))
    fields = _object(text)
    # A rumor has the shape of an event but for the signature, which nobody looks at.
    said = event_from({**fields, "sig": "0" * 128})
    if said.pubkey != seal.pubkey:
        raise Invalid("pubkey: the rumor is not of whoever sealed it")
    return Rumor(said.id, said.pubkey, said.created_at, said.kind, said.tags, said.content)


def _opened(keys: Channel, event: Event, kind: int) -> dict[str, object]:
    if event.kind != kind:
        raise Invalid(f"envelope: has kind {event.kind}, not {kind}")
    if event.pubkey != keys.pubkey:
        raise Invalid("envelope: is of another channel")
    _check_signed(event)
    return _object(nip44.decrypt(event.content, keys.conversation_key))


def _object(text: str) -> dict[str, object]:
    try:
        fields = orjson.loads(text)
    except orjson.JSONDecodeError:
        raise Invalid("envelope: what is inside is no JSON") from None
    if not isinstance(fields, dict):
        raise Invalid("envelope: what is inside is no event")
    return fields


def _check_signed(event: Event) -> None:
    if not is_signed(event):
        raise Invalid("sig: is no signature of this event by its pubkey")
