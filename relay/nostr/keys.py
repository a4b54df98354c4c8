"""Key pairs, the NIP-19 spellings of keys, and signatures (BIP-340 by libsecp256k1)."""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING, Final

from coincurve import PrivateKey, PublicKeyXOnly

from relay.errors import Invalid, UserError
from relay.nostr.event import Event, is_hex64, signed

if TYPE_CHECKING:
    from collections.abc import Sequence

_CHARSET: Final = "qpzry9x8gf2tvdw0s3jn54khce6mua7l"
_GENERATOR: Final = (0x3B6A57B2, 0x26508E6D, 0x1EA119FA, 0x3D4233DD, 0x2A1462B3)


class SecretKey:
    """One key pair that can sign. Its `repr` never shows the secret."""

    __slots__ = ("_key", "pubkey")

    def __init__(self, secret: bytes) -> None:
        """`secret`: 32 bytes, 1 ≤ value < group order; else Invalid."""
        if len(secret) != 32:  # libsecp256k1's wrapper pads a short one without a word
            raise Invalid("secret key: must have 32 bytes")
        try:
            self._key = PrivateKey(secret)
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
        return self._key.sign_schnorr(digest).hex()

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
    key = _parsed(event.pubkey)
    if key is None:
        return False
    try:
        return key.verify(bytes.fromhex(event.sig), bytes.fromhex(event.id))
    except ValueError:
        return False


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


def encode_bech32(prefix: str, data: bytes) -> str:
    """NIP-19 code of 32 bytes: npub, nsec, note."""
    values = _regroup(data, 8, 5, pad=True)
    checksum = _polymod([*_expanded(prefix), *values, 0, 0, 0, 0, 0, 0]) ^ 1
    tail = [(checksum >> 5 * (5 - i)) & 31 for i in range(6)]
    return prefix + "1" + "".join(_CHARSET[v] for v in [*values, *tail])


def decode_bech32(prefix: str, text: str) -> bytes:
    """The 32 bytes of a NIP-19 code of this prefix. Raises Invalid naming the prefix only."""
    wrong = Invalid(f"not a valid {prefix}: check that it was copied whole")
    if text.lower() != text and text.upper() != text:
        raise wrong
    text = text.lower()
    head, _, rest = text.rpartition("1")
    if head != prefix or len(rest) < 6 or any(c not in _CHARSET for c in rest):
        raise wrong
    values = [_CHARSET.index(c) for c in rest]
    if _polymod([*_expanded(prefix), *values]) != 1:
        raise wrong
    try:
        data = bytes(_regroup(values[:-6], 5, 8, pad=False))
    except ValueError:
        raise wrong from None
    if len(data) != 32:
        raise wrong
    return data


def _expanded(prefix: str) -> list[int]:
    return [ord(c) >> 5 for c in prefix] + [0] + [ord(c) & 31 for c in prefix]


def _polymod(values: Sequence[int]) -> int:
    check = 1
    for value in values:
        top = check >> 25
        check = (check & 0x1FFFFFF) << 5 ^ value
        for i in range(5):
            check ^= _GENERATOR[i] if (top >> i) & 1 else 0
    return check


def _regroup(data: Sequence[int], from_bits: int, to_bits: int, *, pad: bool) -> list[int]:
    acc = bits = 0
    out = []
    for value in data:
        acc = (acc << from_bits) | value
        bits += from_bits
        while bits >= to_bits:
            bits -= to_bits
            out.append((acc >> bits) & ((1 << to_bits) - 1))
    if pad:
        if bits:
            out.append((acc << (to_bits - bits)) & ((1 << to_bits) - 1))
    elif bits >= from_bits or (acc << (to_bits - bits)) & ((1 << to_bits) - 1):
        raise ValueError("padding")
    return out


def read_key_file(text: str, where: str) -> SecretKey:
    """The key in the text of a key file; UserError names the file, never its content."""
    try:
        return SecretKey.parse(text)
    except Invalid:
        raise UserError(f"{where} holds no nsec and no 64 hex characters") from None
