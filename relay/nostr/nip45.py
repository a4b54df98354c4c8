"""NIP-45: HyperLogLog registers, to merge counts of several relays."""

from __future__ import annotations

from hashlib import sha256
from typing import TYPE_CHECKING, Final

from relay.nostr.event import is_hex64

if TYPE_CHECKING:
    from collections.abc import Iterable

_REGISTERS: Final = 256
_COUNTED_BITS: Final = 56  # seven bytes, as other implementations do; the NIP has no limit (N45-13)


def offset_of(value: str) -> int:
    """Index of the byte of a public key, 8 to 23, that selects the register (N45-11).

    `value`: the first value of the filter's tag condition, in the order received.
    """
    return int(_hex_of(value)[32], 16) + 8


def registers(pubkeys: Iterable[bytes], offset: int) -> str:
    """512 hex for the authors of the counted events, 32 bytes each, in any order (N45-12…14).

    Duplicates do not matter. `offset`: from `offset_of`.
    """
    highest = bytearray(_REGISTERS)
    for pubkey in pubkeys:
        counted = int.from_bytes(pubkey[offset + 1 : offset + 8])
        value = 1 + _COUNTED_BITS - counted.bit_length()
        register = pubkey[offset]
        if value > highest[register]:
            highest[register] = value
    return highest.hex()


def _hex_of(value: str) -> str:
    if is_hex64(value):
        return value
    kind, _, rest = value.partition(":")
    pubkey, colon, _ = rest.partition(":")
    if colon and kind.isascii() and kind.isdigit() and is_hex64(pubkey):
        return pubkey
    return sha256(value.encode()).hexdigest()
