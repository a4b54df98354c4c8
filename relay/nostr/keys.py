"""Key pairs, how people spell them, and signatures (BIP-340 by libsecp256k1)."""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING

from coincurve import PrivateKey, PublicKeyXOnly

from relay.errors import Invalid, UserError
from relay.nostr.event import Event, is_hex64, signed
from relay.nostr.nip19 import decode_bech32, encode_bech32
from relay.nostr.schnorr import signing

if TYPE_CHECKING:
    from collections.abc import Sequence


class SecretKey:
    """One key pair that can sign. Its `repr` never shows the secret."""

    __slots__ = ("_key", "_sign", "pubkey")

    def __init__(self, secret: bytes) -> None:
        """`secret`: 32 bytes, 1 ≤ value < group order; else Invalid."""
        if len(secret) != 32:  # libsecp256k1's wrapper pads a short one without a word
            raise Invalid("secret key: must have 32 bytes")
        try:
            self._key = PrivateKey(secret)
            self._sign = signing(secret)
        except ValueError:
            raise Invalid("secret key: not a valid key") from None
        self.pubkey: str = self._key.public_key_xonly.format().hex()

    @classmethod
    def parse(cls, text: str) -> SecretKey:
        """nsec1… or 64 hex. Raises Invalid without repeating the text."""
        text = text.strip()
        if text.startswith("nsec1"):
            return cls(decode_bech32("nsec", text))
        if is_hex64(text.lower()):
            return cls(bytes.fromhex(text))
        raise Invalid("secret key: must be an nsec or 64 hex characters")

    @property
    def hex(self) -> str:
        return self._key.secret.hex()

    @property
    def nsec(self) -> str:
        return encode_bech32("nsec", self._key.secret)

    @property
    def npub(self) -> str:
        return npub(self.pubkey)

    def sign_digest(self, digest: bytes) -> str:
        return self._sign(digest).hex()

    def sign(self, kind: int, tags: list[list[str]], content: str, created_at: int) -> Event:
        return signed(self.pubkey, created_at, kind, tags, content, self.sign_digest)

    def __repr__(self) -> str:
        return f"SecretKey(of {self.npub})"


@lru_cache(maxsize=16_384)
def _parsed(pubkey: str) -> PublicKeyXOnly | None:
    # 3.8 µs to parse; the keys of a relay's people fit here many times over.
    try:
        return PublicKeyXOnly(bytes.fromhex(pubkey))
    except ValueError:
        return None


def is_signed(event: Event) -> bool:
    """Whether `sig` is a BIP-340 signature of `id` by `pubkey` (N01-11)."""
    return is_signature(event.pubkey, bytes.fromhex(event.id), bytes.fromhex(event.sig))


def is_signature(pubkey: str, digest: bytes, signature: bytes) -> bool:
    """Whether 64 bytes are a BIP-340 signature of 32, by a key of 64 hex."""
    key = _parsed(pubkey)
    return key is not None and key.verify(signature, digest)


def are_signed(events: Sequence[Event]) -> list[bool]:
    """`is_signed` of each; meant for a worker thread: libsecp256k1 works without the GIL."""
    return [is_signed(event) for event in events]


def is_curve_point(pubkey: str) -> bool:
    return _parsed(pubkey) is not None


def public_key(text: str) -> str:
    """64 hex of an npub or of 64 hex. Raises Invalid."""
    text = text.strip()
    if text.lower().startswith("npub1"):
        return decode_bech32("npub", text).hex()
    if text.lower().startswith("nsec1"):
        raise Invalid("that is a secret key (nsec); a public key (npub or 64 hex) is needed")
    lowered = text.lower()
    if not is_hex64(lowered):
        raise Invalid(f"not a public key: {text[:80]!r} (an npub or 64 hex characters)")
    return lowered


def npub(pubkey: str) -> str:
    return encode_bech32("npub", bytes.fromhex(pubkey))


def read_key_file(text: str, where: str) -> SecretKey:
    """The key in the text of a key file; UserError names the file, never its content."""
    try:
        return SecretKey.parse(text)
    except Invalid:
        raise UserError(f"{where} holds no nsec and no 64 hex characters") from None
