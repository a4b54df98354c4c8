"""BIP-340 signing with a key pair that is created once.

coincurve's `sign_schnorr` creates the pair for each signature and verifies the result: 55 µs
instead of 15, most of the cost of sending a long session. So its bundled library is called
directly, through a private module of coincurve; without that module, coincurve signs. Each
signature uses fresh randomness, as BIP-340 recommends when it is not verified afterwards.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Final

from coincurve import PrivateKey
from coincurve.context import GLOBAL_CONTEXT

if TYPE_CHECKING:
    from collections.abc import Callable

    Sign = Callable[[bytes], bytes]
    """32 bytes → signature of 64 bytes."""

try:
    from coincurve._libsecp256k1 import ffi, lib  # type: ignore[import-not-found]
except ImportError:
    ffi = lib = None

_LENGTH: Final = 32


def signing(secret: bytes) -> Sign:
    """The signing function of a key: 32 bytes, 1 ≤ value < group order. Raises ValueError."""
    if lib is None or not hasattr(lib, "secp256k1_schnorrsig_sign32"):
        return PrivateKey(secret).sign_schnorr
    context = GLOBAL_CONTEXT.ctx
    pair = ffi.new("secp256k1_keypair *")
    if not lib.secp256k1_keypair_create(context, pair, secret):
        raise ValueError("not a valid key")

    def sign(digest: bytes) -> bytes:
        if len(digest) != _LENGTH:  # the library would read beyond the end
            raise ValueError("a digest has 32 bytes")
        signature = ffi.new("unsigned char[64]")
        fresh = os.urandom(_LENGTH)
        if not lib.secp256k1_schnorrsig_sign32(context, signature, digest, pair, fresh):
            raise ValueError("signing failed")
        return bytes(ffi.buffer(signature))

    return sign
