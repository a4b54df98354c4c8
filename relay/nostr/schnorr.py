"""Signing by BIP-340, with a key pair that is made once.

coincurve's `sign_schnorr` makes the pair anew for each signature and checks what it made: 55 µs in
place of 15, most of what it costs to send a long session. The library that it brings is asked
directly, by a module that coincurve does not promise; without that module, coincurve signs itself.
Fresh randomness goes into each signature, which is what BIP-340 asks of who does not check them.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Final

from coincurve import PrivateKey
from coincurve.context import GLOBAL_CONTEXT

if TYPE_CHECKING:
    from collections.abc import Callable

    Sign = Callable[[bytes], bytes]
    """The 64 bytes of a signature of 32 bytes."""

try:
    from coincurve._libsecp256k1 import ffi, lib  # type: ignore[import-not-found]
except ImportError:
    ffi = lib = None

_LENGTH: Final = 32


def signing(secret: bytes) -> Sign:
    """What signs with this key: 32 bytes, 1 ≤ value < group order. Raises ValueError."""
    if lib is None or not hasattr(lib, "secp256k1_schnorrsig_sign32"):
        return PrivateKey(secret).sign_schnorr
    context = GLOBAL_CONTEXT.ctx
    pair = ffi.new("secp256k1_keypair *")
    if not lib.secp256k1_keypair_create(context, pair, secret):
        raise ValueError("not a valid key")

    def sign(digest: bytes) -> bytes:
        if len(digest) != _LENGTH:  # the library would read on
            raise ValueError("a digest has 32 bytes")
        signature = ffi.new("unsigned char[64]")
        fresh = os.urandom(_LENGTH)
        if not lib.secp256k1_schnorrsig_sign32(context, signature, digest, pair, fresh):
            raise ValueError("the key signs nothing")
        return bytes(ffi.buffer(signature))

    return sign
