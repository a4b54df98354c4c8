"""TLS 1.3 records that a client's `ssl` does not make: of any size, padded, KeyUpdates."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.hashes import SHA384
from cryptography.hazmat.primitives.kdf.hkdf import HKDFExpand

if TYPE_CHECKING:
    from pathlib import Path

CIPHER: Final = "TLS_AES_256_GCM_SHA384"
_HANDSHAKE, _DATA = 22, 23
_KEY_UPDATE: Final = b"\x18\0\0\1"


class Records:
    """Those of a client, with `CIPHER`, after its handshake. All that it sends must be made here:
    each has a number."""

    def __init__(self, key_log: Path) -> None:
        """`key_log`: its context's `keylog_filename`."""
        lines = [line.split() for line in key_log.read_text().splitlines()]
        [secret] = [each[2] for each in lines if each[0] == "CLIENT_TRAFFIC_SECRET_0"]
        self._use(bytes.fromhex(secret))

    def _use(self, secret: bytes) -> None:
        self._secret = secret
        self._aead = AESGCM(_derived(secret, "key", 32))
        self._iv = int.from_bytes(_derived(secret, "iv", 12), "big")
        self._number = 0

    def data(self, text: bytes, *, padding: int = 0) -> bytes:
        return self._record(text + bytes([_DATA]) + bytes(padding))

    def key_update(self, *, is_answered: bool = False) -> bytes:
        made = self._record(_KEY_UPDATE + bytes([is_answered, _HANDSHAKE]))
        self._use(_derived(self._secret, "traffic upd", 48))
        return made

    def _record(self, inner: bytes) -> bytes:
        """RFC 8446, section 5.2."""
        header = b"\x17\3\3" + (len(inner) + 16).to_bytes(2, "big")
        nonce = (self._iv ^ self._number).to_bytes(12, "big")
        self._number += 1
        return header + self._aead.encrypt(nonce, inner, header)


def _derived(secret: bytes, label: str, size: int) -> bytes:
    """HKDF-Expand-Label of RFC 8446, section 7.1."""
    name = b"tls13 " + label.encode()
    info = size.to_bytes(2, "big") + bytes([len(name)]) + name + b"\0"
    return HKDFExpand(SHA384(), size, info).derive(secret)
