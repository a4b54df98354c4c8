"""NIP-19: bech32 text forms of keys, ids and addresses. Never used in events or filters.

bech32, not bech32m. Plain codes have 32 bytes; pointers are TLV lists: 0 special, 1 relay
(repeated), 2 author, 3 kind (N19-01).
"""

from __future__ import annotations

from base64 import b32encode
from dataclasses import dataclass
from functools import reduce
from operator import xor
from typing import TYPE_CHECKING, Final, assert_never

from relay.errors import Invalid
from relay.nostr.kinds import MAX_KIND

if TYPE_CHECKING:
    from collections.abc import Iterable

MAX_CODE: Final = 5000  # characters

_CHARSET: Final = "qpzry9x8gf2tvdw0s3jn54khce6mua7l"
_GENERATOR: Final = (0x3B6A57B2, 0x26508E6D, 0x1EA119FA, 0x3D4233DD, 0x2A1462B3)
_OF_TOP: Final = tuple(
    reduce(xor, (each for bit, each in enumerate(_GENERATOR) if top >> bit & 1), 0)
    for top in range(32)
)
"""What the five bits that leave the checksum add to it."""
_FROM_BASE32: Final = bytes.maketrans(b"ABCDEFGHIJKLMNOPQRSTUVWXYZ234567", bytes(range(32)))
_TO_CHARSET: Final = bytes.maketrans(bytes(range(32)), _CHARSET.encode())
_SPECIAL: Final = 0
_RELAY: Final = 1
_AUTHOR: Final = 2
_KIND: Final = 3


@dataclass(frozen=True, slots=True)
class ProfilePointer:
    """nprofile: a public key and relay hints."""

    pubkey: str
    relays: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class EventPointer:
    """nevent: an event id."""

    id: str
    relays: tuple[str, ...] = ()
    author: str | None = None
    kind: int | None = None


@dataclass(frozen=True, slots=True)
class AddressPointer:
    """naddr: an address; a group is named by its kind 39000 (N19-02)."""

    d: str
    author: str
    kind: int
    relays: tuple[str, ...] = ()


Pointer = ProfilePointer | EventPointer | AddressPointer


def encode_pointer(pointer: Pointer) -> str:
    """Relay hints that are not ASCII or over 255 bytes are left out.

    Raises Invalid for a `d` over 255 bytes: TLV lengths are one byte.
    """
    match pointer:
        case ProfilePointer(pubkey, relays):
            values = [(_SPECIAL, bytes.fromhex(pubkey)), *_hints(relays)]
            return _encode("nprofile", _packed(values))
        case EventPointer(id_, relays, author, kind):
            values = [(_SPECIAL, bytes.fromhex(id_)), *_hints(relays)]
            if author is not None:
                values.append((_AUTHOR, bytes.fromhex(author)))
            if kind is not None:
                values.append((_KIND, kind.to_bytes(4)))
            return _encode("nevent", _packed(values))
        case AddressPointer(d, author, kind, relays):
            special = d.encode()
            if len(special) > 255:
                raise Invalid(f"naddr: d has {len(special)} bytes, at most 255 can be encoded")
            values = [(_SPECIAL, special), *_hints(relays)]
            values += [(_AUTHOR, bytes.fromhex(author)), (_KIND, kind.to_bytes(4))]
            return _encode("naddr", _packed(values))
        case _:
            assert_never(pointer)


def decode_pointer(text: str) -> Pointer:
    """Decodes an nprofile, nevent or naddr. Raises Invalid naming the prefix only.

    Unknown types are skipped, the first of repeated values counts, and a relay hint that is not
    ASCII is skipped.
    """
    prefix = text.rpartition("1")[0].lower()
    if prefix not in ("nprofile", "nevent", "naddr"):
        raise Invalid("not an nprofile, nevent or naddr")
    values = _unpacked(prefix, _decode(prefix, text))
    first = dict(reversed(values))
    relays = tuple(
        value.decode("ascii") for type_, value in values if type_ == _RELAY and value.isascii()
    )
    special, author, kind = first.get(_SPECIAL), first.get(_AUTHOR), first.get(_KIND)
    author_hex = None if author is None else _hex64(prefix, author)
    kind_number = None if kind is None else _kind(prefix, kind)
    if special is None:
        raise _wrong(prefix)
    if prefix == "nprofile":
        return ProfilePointer(_hex64(prefix, special), relays)
    if prefix == "nevent":
        return EventPointer(_hex64(prefix, special), relays, author_hex, kind_number)
    if author_hex is None or kind_number is None:
        raise _wrong(prefix)
    try:
        return AddressPointer(special.decode(), author_hex, kind_number, relays)
    except UnicodeDecodeError:
        raise _wrong(prefix) from None


def encode_bech32(prefix: str, data: bytes) -> str:
    """npub, nsec or note of 32 bytes."""
    return _encode(prefix, data)


def decode_bech32(prefix: str, text: str) -> bytes:
    """The 32 bytes of an npub, nsec or note. Raises Invalid naming the prefix only."""
    data = _decode(prefix, text)
    if len(data) != 32:
        raise _wrong(prefix)
    return data


def _wrong(prefix: str) -> Invalid:
    return Invalid(f"not a valid {prefix}: check that it was copied whole")


def _hints(relays: Iterable[str]) -> list[tuple[int, bytes]]:
    return [(_RELAY, relay.encode()) for relay in relays if relay.isascii() and len(relay) <= 255]


def _packed(values: Iterable[tuple[int, bytes]]) -> bytes:
    return b"".join(bytes((type_, len(value))) + value for type_, value in values)


def _unpacked(prefix: str, data: bytes) -> list[tuple[int, bytes]]:
    values = []
    while data:
        if len(data) < 2 or len(data) < 2 + data[1]:
            raise _wrong(prefix)
        end = 2 + data[1]
        values.append((data[0], data[2:end]))
        data = data[end:]
    return values


def _hex64(prefix: str, value: bytes) -> str:
    if len(value) != 32:
        raise _wrong(prefix)
    return value.hex()


def _kind(prefix: str, value: bytes) -> int:
    kind = int.from_bytes(value)
    if len(value) != 4 or kind > MAX_KIND:
        raise _wrong(prefix)
    return kind


def _encode(prefix: str, data: bytes) -> str:
    groups = b32encode(data).rstrip(b"=").translate(_FROM_BASE32)
    checksum = _polymod([*_expanded(prefix), *groups, 0, 0, 0, 0, 0, 0]) ^ 1
    tail = bytes((checksum >> shift) & 31 for shift in (25, 20, 15, 10, 5, 0))
    return f"{prefix}1{(groups + tail).translate(_TO_CHARSET).decode()}"


def _decode(prefix: str, text: str) -> bytes:
    wrong = _wrong(prefix)
    if len(text) > MAX_CODE or (text.lower() != text and text.upper() != text):
        raise wrong
    text = text.lower()
    head, _, rest = text.rpartition("1")
    if head != prefix or len(rest) < 6 or any(c not in _CHARSET for c in rest):
        raise wrong
    values = [_CHARSET.index(c) for c in rest]
    if _polymod([*_expanded(prefix), *values]) != 1:
        raise wrong
    try:
        return _octets(values[:-6])
    except ValueError:
        raise wrong from None


def _expanded(prefix: str) -> list[int]:
    return [ord(c) >> 5 for c in prefix] + [0] + [ord(c) & 31 for c in prefix]


def _polymod(values: Iterable[int]) -> int:
    check = 1
    for value in values:
        check = (check & 0x1FFFFFF) << 5 ^ value ^ _OF_TOP[check >> 25]
    return check


def _octets(values: Iterable[int]) -> bytes:
    """Of groups of five bits. Raises ValueError for a rest that is no padding."""
    acc = bits = 0
    out = bytearray()
    for value in values:
        acc = (acc << 5 | value) & 0xFFF  # higher bits were output already
        bits += 5
        if bits >= 8:
            bits -= 8
            out.append(acc >> bits & 0xFF)
    if bits >= 5 or acc & ((1 << bits) - 1):
        raise ValueError("padding")
    return bytes(out)
