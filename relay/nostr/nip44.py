"""NIP-44: encrypted payloads, version 2. Used by clients; the relay decrypts nothing.

A nonce is 32 random bytes, never used twice with one key (N44-02). `cryptography` takes 6 MB, which
a relay does not need: it is imported at the first use.
"""

from __future__ import annotations

from base64 import b64decode, b64encode
from hmac import compare_digest, digest
from secrets import token_bytes
from typing import TYPE_CHECKING, Final, NamedTuple

from coincurve import PublicKey

from relay.errors import Invalid
from relay.nostr.event import is_hex64
from relay.nostr.keys import is_signed

if TYPE_CHECKING:
    from relay.nostr.event import Event
    from relay.nostr.keys import SecretKey

MAX_PAYLOAD: Final = 16 * 2**20  # characters (N44-14)

_VERSION: Final = b"\2"
_NONCE: Final = 32
_MAC: Final = 32
_LONG: Final = 65_536  # bytes; longer plaintexts have the long length prefix
_MAX_PLAINTEXT: Final = 2**32 - 1
_MIN_PAYLOAD: Final = 132
_MIN_DECODED: Final = 99


class MessageKeys(NamedTuple):
    """Keys of one message (N44-03)."""

    chacha_key: bytes
    chacha_nonce: bytes
    hmac_key: bytes


def conversation_key(ours: SecretKey, theirs: str) -> bytes:
    """32 bytes, the same for both sides (N44-01). `theirs`: 64 hex; raises Invalid for no key."""
    if not is_hex64(theirs):
        raise Invalid("pubkey: must be 64 lowercase hex characters")
    try:
        point = PublicKey(b"\2" + bytes.fromhex(theirs))
    except ValueError:
        raise Invalid("pubkey: is not a point on the curve") from None
    shared_x = point.multiply(bytes.fromhex(ours.hex)).format()[1:]
    return digest(b"nip44-v2", shared_x, "sha256")


def message_keys(key: bytes, nonce: bytes) -> MessageKeys:
    """From a conversation key and a nonce of 32 bytes each."""
    if len(key) != 32 or len(nonce) != _NONCE:
        raise Invalid("payload: conversation key and nonce must have 32 bytes")
    from cryptography.hazmat.primitives.hashes import SHA256
    from cryptography.hazmat.primitives.kdf.hkdf import HKDFExpand

    stream = HKDFExpand(SHA256(), 76, nonce).derive(key)
    return MessageKeys(stream[:32], stream[32:44], stream[44:])


def encrypt(plaintext: str, key: bytes, nonce: bytes | None = None) -> str:
    """`nonce` is random by default. Raises Invalid for an empty plaintext (N44-04…09)."""
    nonce = token_bytes(_NONCE) if nonce is None else nonce
    keys = message_keys(key, nonce)
    ciphertext = _chacha20(keys, _padded(plaintext.encode()))
    mac = digest(keys.hmac_key, nonce + ciphertext, "sha256")
    return b64encode(_VERSION + nonce + ciphertext + mac).decode()


def decrypt(payload: str, key: bytes, max_payload: int = MAX_PAYLOAD) -> str:
    """`max_payload`: characters. Raises Invalid (N44-10…12, N44-14)."""
    data = _decoded(payload, max_payload)
    nonce, ciphertext, mac = data[1 : 1 + _NONCE], data[1 + _NONCE : -_MAC], data[-_MAC:]
    keys = message_keys(key, nonce)
    if not compare_digest(digest(keys.hmac_key, nonce + ciphertext, "sha256"), mac):
        raise Invalid("payload: invalid MAC: altered, or encrypted for another key")
    try:
        return _unpadded(_chacha20(keys, ciphertext)).decode()
    except UnicodeDecodeError:
        raise Invalid("payload: the plaintext is not UTF-8") from None


def plaintext_of(event: Event, reader: SecretKey) -> str:
    """The decrypted content of an event for this reader; the signature is checked first (N44-13).
    Raises Invalid."""
    if not is_signed(event):
        raise Invalid("sig: invalid signature")
    return decrypt(event.content, conversation_key(reader, event.pubkey))


def padded_length(length: int) -> int:
    """Bytes of a padded plaintext of `length` bytes, without the length prefix (N44-06)."""
    if length <= 32:
        return 32
    power = 1 << (length - 1).bit_length()
    chunk = 32 if power <= 256 else power // 8
    return chunk * ((length - 1) // chunk + 1)


def _padded(plaintext: bytes) -> bytes:
    """N44-04, N44-05."""
    length = len(plaintext)
    if not 1 <= length <= _MAX_PLAINTEXT:
        raise Invalid(f"plaintext: must have 1 to {_MAX_PLAINTEXT} bytes, has {length}")
    prefix = length.to_bytes(2) if length < _LONG else bytes(2) + length.to_bytes(4)
    return prefix + plaintext + bytes(padded_length(length) - length)


def _unpadded(padded: bytes) -> bytes:
    """N44-12."""
    start, length = 2, int.from_bytes(padded[:2])
    if length == 0:
        start, length = 6, int.from_bytes(padded[2:6])
        if length < _LONG:
            raise Invalid("payload: wrong padding")
    if len(padded) != start + padded_length(length):
        raise Invalid("payload: wrong padding")
    return padded[start : start + length]


def _decoded(payload: str, max_payload: int) -> bytes:
    """N44-10."""
    if not payload or payload.startswith("#"):
        raise Invalid("payload: unknown version")
    if not _MIN_PAYLOAD <= len(payload) <= max_payload:
        raise Invalid(
            f"payload: invalid payload length: must be {_MIN_PAYLOAD} to {max_payload} characters,"
            f" is {len(payload)}"
        )
    try:
        data = b64decode(payload, validate=True)
    except ValueError:
        raise Invalid("payload: is not base64") from None
    if len(data) < _MIN_DECODED:
        raise Invalid(
            f"payload: invalid payload length: must be {_MIN_DECODED} bytes or more, is {len(data)}"
        )
    if not data.startswith(_VERSION):
        raise Invalid(f"payload: unknown version {data[0]}")
    return data


def _chacha20(keys: MessageKeys, data: bytes) -> bytes:
    from cryptography.hazmat.primitives.ciphers import Cipher
    from cryptography.hazmat.primitives.ciphers.algorithms import ChaCha20

    # The first four bytes of what `cryptography` calls the nonce are the counter (N44-07).
    cipher = Cipher(ChaCha20(keys.chacha_key, bytes(4) + keys.chacha_nonce), mode=None)
    return cipher.encryptor().update(data)
