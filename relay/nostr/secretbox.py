"""secretbox-v1: content encrypted with a shared key (A-23, A-24).

The content is base64 of nonce (24 bytes), MAC (16 bytes) and ciphertext (XSalsa20-Poly1305).
Nonces are arguments: 24 random bytes, never used twice with one key.
"""

from __future__ import annotations

import re
from base64 import b64decode, b64encode
from typing import Final

from nacl.exceptions import CryptoError
from nacl.secret import SecretBox

from relay.errors import Invalid

KEY_BYTES: Final = SecretBox.KEY_SIZE
NONCE_BYTES: Final = SecretBox.NONCE_SIZE
MIN_BYTES: Final = SecretBox.NONCE_SIZE + SecretBox.MACBYTES
"""Of an empty plaintext (A-25)."""

_HEX: Final = re.compile(r"(?:[0-9a-fA-F]{2})*").fullmatch
_NO_KEY: Final = "key must be hex or base64 of 32 bytes"


def key_from(text: str) -> bytes:
    """32 bytes from `hex:` and 64 hex, from 64 hex, or from base64; whitespace is stripped (A-24).

    Raises Invalid without quoting the text.
    """
    text = text.strip()
    digits = text.removeprefix("hex:")
    if digits != text or len(digits) == 2 * KEY_BYTES:
        if not _HEX(digits):
            raise Invalid(_NO_KEY)
        key = bytes.fromhex(digits)
    else:
        try:
            key = b64decode(text, validate=True)
        except ValueError:
            raise Invalid(_NO_KEY) from None
    if len(key) != KEY_BYTES:
        raise Invalid("key must be 32 bytes")
    return key


def seal(text: str, key: bytes, nonce: bytes) -> str:
    """Raises Invalid when key or nonce has a wrong length."""
    if len(nonce) != NONCE_BYTES:
        raise Invalid("nonce must be 24 bytes")
    return b64encode(_box(key).encrypt(text.encode(), nonce)).decode()


def unseal(content: str, key: bytes) -> str:
    """Raises Invalid with the reason, never with a part of the content."""
    box = _box(key)
    try:
        sealed = b64decode(content, validate=True)
    except ValueError:
        sealed = b""
    if len(sealed) < MIN_BYTES:
        raise Invalid("content is not secretbox-v1")
    try:
        return box.decrypt(sealed).decode()
    except CryptoError:
        raise Invalid("cannot decrypt: wrong key, or the content was altered") from None
    except UnicodeDecodeError:
        raise Invalid("cannot decrypt: the plaintext is not UTF-8") from None


def _box(key: bytes) -> SecretBox:
    if len(key) != KEY_BYTES:
        raise Invalid("key must be 32 bytes")
    return SecretBox(key)
