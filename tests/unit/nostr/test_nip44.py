"""relay/nostr/nip44.py: both sides, and altered payloads. NIP-44."""

from __future__ import annotations

from base64 import b64decode, b64encode
from hashlib import sha256
from hmac import digest

import pytest
from cryptography.hazmat.primitives.ciphers import Cipher
from cryptography.hazmat.primitives.ciphers.algorithms import ChaCha20
from hypothesis import given
from hypothesis import strategies as st

from relay.errors import Invalid
from relay.nostr.event import event_from_raw
from relay.nostr.keys import SecretKey
from relay.nostr.nip44 import (
    conversation_key,
    decrypt,
    encrypt,
    message_keys,
    padded_length,
    plaintext_of,
)
from tests.cast import alice, bob, stranger

KEY = conversation_key(alice, bob.pubkey)
NONCE = sha256(b"once").digest()
PAYLOAD = encrypt("hello", KEY, NONCE)
NO_POINT = "f" * 64


def sealed(padded: bytes) -> str:
    """A payload whose MAC is right, whatever is in it."""
    keys = message_keys(KEY, NONCE)
    cipher = Cipher(ChaCha20(keys.chacha_key, bytes(4) + keys.chacha_nonce), mode=None)
    ciphertext = cipher.encryptor().update(padded)
    mac = digest(keys.hmac_key, NONCE + ciphertext, "sha256")
    return b64encode(b"\2" + NONCE + ciphertext + mac).decode()


def flipped(payload: str, place: int) -> str:
    data = bytearray(b64decode(payload))
    data[place] ^= 1
    return b64encode(data).decode()


@pytest.mark.proves("N44-01")
def test_both_sides_derive_the_same_key() -> None:
    assert conversation_key(bob, alice.pubkey) == KEY
    assert conversation_key(stranger, alice.pubkey) != KEY


@pytest.mark.proves("N44-04", "N44-06", "N44-07")
@given(
    st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=300),
    st.binary(min_size=32, max_size=32),
)
def test_what_is_written_is_read(plaintext: str, nonce: bytes) -> None:
    payload = encrypt(plaintext, KEY, nonce)
    assert decrypt(payload, KEY) == plaintext
    overhead = 1 + 32 + 2 + 32
    assert len(b64decode(payload)) == overhead + padded_length(len(plaintext.encode()))


@pytest.mark.proves("N44-11")
@pytest.mark.parametrize("place", [1, 32, 33, 40, -33, -32, -1])
def test_one_altered_bit_is_noticed(place: int) -> None:
    with pytest.raises(Invalid, match="invalid MAC"):
        decrypt(flipped(PAYLOAD, place), KEY)


@pytest.mark.proves("N44-11")
def test_another_key_decrypts_nothing() -> None:
    with pytest.raises(Invalid, match="invalid MAC"):
        decrypt(PAYLOAD, conversation_key(stranger, alice.pubkey))


@pytest.mark.proves("N44-12")
@pytest.mark.parametrize(
    "padded",
    [
        pytest.param(bytes(34), id="length 0"),
        pytest.param(bytes(2) + (5).to_bytes(4) + b"hello" + bytes(27), id="long form, short text"),
        pytest.param(bytes(2) + (65535).to_bytes(4) + b"a" * 65535 + b"\0", id="long form, 65535"),
        pytest.param((33).to_bytes(2) + b"a" * 32, id="length over the data"),
        pytest.param((5).to_bytes(2) + b"hello" + bytes(26), id="padding too short"),
        pytest.param((5).to_bytes(2) + b"hello" + bytes(28), id="padding too long"),
        pytest.param((5).to_bytes(2) + b"hello" + bytes(59), id="the next size up"),
        pytest.param(bytes(2) + b"\xff" * 4 + bytes(28), id="4 GiB announced"),
    ],
)
def test_sizes_that_do_not_agree_are_refused(padded: bytes) -> None:
    with pytest.raises(Invalid, match=r"wrong padding|99 bytes or more"):
        decrypt(sealed(padded), KEY)


@pytest.mark.proves("N44-12")
def test_the_padding_bytes_are_not_checked() -> None:
    assert decrypt(sealed((5).to_bytes(2) + b"hello" + b"\xff" * 27), KEY) == "hello"


@pytest.mark.proves("N44-04")
def test_a_plaintext_that_is_no_utf8_is_refused() -> None:
    with pytest.raises(Invalid, match="UTF-8"):
        decrypt(sealed((1).to_bytes(2) + b"\xff" + bytes(31)), KEY)


@pytest.mark.proves("N44-10")
@pytest.mark.parametrize(
    ("payload", "said"),
    [
        pytest.param("", "unknown version", id="empty"),
        pytest.param("#" + PAYLOAD, "unknown version", id="a version to come"),
        pytest.param(flipped(PAYLOAD, 0), "unknown version 3", id="version 3"),
        pytest.param(PAYLOAD[:131], "is 131", id="131 characters"),
        pytest.param(PAYLOAD[:-1] + "*", "base64", id="no base64"),
        pytest.param(PAYLOAD[:60] + "\n" + PAYLOAD[60:], "base64", id="broken into lines"),
        pytest.param(PAYLOAD[:-1] + "é", "base64", id="not ASCII"),
        pytest.param(PAYLOAD + "A", "base64", id="one too many"),
        pytest.param(b64encode(b"\2" * 97).decode(), "99 bytes", id="97 bytes"),
    ],
)
def test_a_malformed_payload_is_refused_with_the_reason(payload: str, said: str) -> None:
    with pytest.raises(Invalid, match=said):
        decrypt(payload, KEY)


@pytest.mark.proves("N44-14")
def test_a_payload_over_the_limit_is_not_decoded() -> None:
    assert decrypt(PAYLOAD, KEY, len(PAYLOAD)) == "hello"
    with pytest.raises(Invalid, match=f"132 to {len(PAYLOAD)} characters"):
        decrypt("*" * (len(PAYLOAD) + 1), KEY, len(PAYLOAD))


@pytest.mark.proves("N44-13")
def test_an_event_is_decrypted_only_with_a_valid_signature() -> None:
    event = alice.sign(4, [["p", bob.pubkey]], PAYLOAD, 0)
    assert plaintext_of(event, bob) == "hello"
    forged = event_from_raw(event.raw.replace(event.sig.encode(), b"0" * 128))
    with pytest.raises(Invalid, match="sig: "):
        plaintext_of(forged, bob)


@pytest.mark.proves("N44-13")
@pytest.mark.parametrize("pubkey", ["", "00", NO_POINT, alice.pubkey.upper(), alice.npub])
def test_a_malformed_key_has_no_conversation_key(pubkey: str) -> None:
    with pytest.raises(Invalid, match="pubkey: "):
        conversation_key(bob, pubkey)
    with pytest.raises(Invalid, match="secret key: "):
        SecretKey(bytes(32))


@pytest.mark.proves("N44-02")
@pytest.mark.parametrize("nonce", [b"", bytes(31), bytes(33)])
def test_a_nonce_has_32_bytes(nonce: bytes) -> None:
    with pytest.raises(Invalid, match="nonce must have 32 bytes"):
        encrypt("hello", KEY, nonce)
