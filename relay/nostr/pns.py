"""PNS: events in encrypted envelopes of a derived key. Kinds 1080 and 1081. D-29, D-30.

A channel is a key pair with its own conversation key, derived from the key of a device (1080) or of
a team (1081). Who has its secret can read and write all of it. A nonce is 32 random bytes, never
used twice. How a team's secret is distributed (1082) is out of scope here.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from hashlib import sha256
from hmac import digest
from typing import NamedTuple

import orjson

from relay.errors import Invalid
from relay.nostr import kinds, nip44
from relay.nostr.event import Event, event_from, id_bytes
from relay.nostr.keys import SecretKey, is_signed
from relay.nostr.nip59 import object_in_envelope, sealed, unsealed


@dataclass(frozen=True, slots=True)
class Channel:
    """The keys that sign and encrypt envelopes."""

    key: SecretKey
    conversation_key: bytes = field(repr=False)
    """32 bytes."""

    @property
    def pubkey(self) -> str:
        return self.key.pubkey


class Rumor(NamedTuple):
    """An unsigned event; its author is the signer of the seal."""

    id: str
    pubkey: str
    created_at: int
    kind: int
    tags: list[list[str]]
    content: str

    def json(self) -> str:
        return orjson.dumps(self._asdict()).decode()


def derive(device_secret: SecretKey) -> Channel:
    """The channel of one device. HKDF-Extract without Expand (D-29)."""
    return channel(SecretKey(digest(b"nip-pns", bytes.fromhex(device_secret.hex), "sha256")))


def channel(secret: SecretKey) -> Channel:
    """The channel of a shared secret, without derivation."""
    return Channel(secret, digest(b"nip44-v2", bytes.fromhex(secret.hex), "sha256"))


def rumor(pubkey: str, kind: int, tags: list[list[str]], content: str, created_at: int) -> Rumor:
    id_ = sha256(id_bytes(pubkey, created_at, kind, tags, content)).hexdigest()
    return Rumor(id_, pubkey, created_at, kind, tags, content)


def wrap(keys: Channel, inner: Event, created_at: int, nonce: bytes | None = None) -> Event:
    """The envelope (1080) of a signed event. `created_at`: Unix seconds; `nonce`: by default
    random."""
    content = nip44.encrypt(inner.raw.decode(), keys.conversation_key, nonce)
    return keys.key.sign(kinds.ENVELOPE, [], content, created_at)


def unwrap(keys: Channel, event: Event) -> Event:
    """The event in an envelope (1080). Raises Invalid, also for an invalid inner signature."""
    inner = event_from(_decrypt_envelope(keys, event, kinds.ENVELOPE))
    _check_signed(inner)
    return inner


def wrap_shared(
    keys: Channel,
    author: SecretKey,
    inner: Rumor,
    created_at: tuple[int, int],
    nonces: tuple[bytes, bytes],
) -> Event:
    """The shared envelope (1081) of a rumor; `created_at` and `nonces`: of the seal (13) and of
    the envelope."""
    if inner.pubkey != author.pubkey:
        raise Invalid("pubkey: a rumor must be sealed by its author")
    seal = sealed(inner.json(), author, keys.pubkey, created_at[0], nonces[0])
    content = nip44.encrypt(seal.raw.decode(), keys.conversation_key, nonces[1])
    return keys.key.sign(kinds.SHARED_ENVELOPE, [], content, created_at[1])


def unwrap_shared(keys: Channel, event: Event) -> Rumor:
    """The rumor in a shared envelope (1081). Raises Invalid, also when its author is not the signer
    of the seal."""
    seal = event_from(_decrypt_envelope(keys, event, kinds.SHARED_ENVELOPE))
    inner = unsealed(seal, keys.key)
    return Rumor(inner.id, inner.pubkey, inner.created_at, inner.kind, inner.tags, inner.content)


def _decrypt_envelope(keys: Channel, event: Event, kind: int) -> dict[str, object]:
    if event.kind != kind:
        raise Invalid(f"envelope: has kind {event.kind}, not {kind}")
    if event.pubkey != keys.pubkey:
        raise Invalid("envelope: belongs to another channel")
    _check_signed(event)
    return object_in_envelope(nip44.decrypt(event.content, keys.conversation_key))


def _check_signed(event: Event) -> None:
    if not is_signed(event):
        raise Invalid("sig: invalid signature")
