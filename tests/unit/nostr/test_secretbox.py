"""secretbox-v1: spellings of keys, sealing and opening."""

from __future__ import annotations

from base64 import b64encode

import pytest
from hypothesis import given
from hypothesis import strategies as st
from nacl.secret import SecretBox

from relay.errors import Invalid
from relay.nostr.secretbox import key_from, seal, unseal

KEY = bytes(range(32))
NONCE = bytes(24)


@pytest.mark.proves("A-24")
@pytest.mark.parametrize("before", ["", " ", "\n\t"])
@pytest.mark.parametrize(
    "spelt", ["hex:" + KEY.hex(), KEY.hex(), KEY.hex().upper(), b64encode(KEY).decode()]
)
def test_a_key_has_three_spellings_and_space_around_it(spelt: str, before: str) -> None:
    assert key_from(before + spelt + before) == KEY


@pytest.mark.proves("A-24")
@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("", "key must be 32 bytes"),
        ("hex:", "key must be 32 bytes"),
        ("hex:" + "ab" * 31, "key must be 32 bytes"),
        ("hex:" + "ab" * 33, "key must be 32 bytes"),
        ("hex:" + "a" * 63, "key must be hex or base64 of 32 bytes"),
        ("hex:" + "g" * 64, "key must be hex or base64 of 32 bytes"),
        ("hex:" + " " * 32 + "ab" * 16, "key must be hex or base64 of 32 bytes"),
        ("g" * 64, "key must be hex or base64 of 32 bytes"),
        ("hex:" + "é" * 64, "key must be hex or base64 of 32 bytes"),
        ("é" * 44, "key must be hex or base64 of 32 bytes"),
        (b64encode(KEY).decode().rstrip("="), "key must be hex or base64 of 32 bytes"),
        (b64encode(KEY + b"x").decode(), "key must be 32 bytes"),
        ("nsec1" + "q" * 58, "key must be hex or base64 of 32 bytes"),
    ],
)
def test_what_is_no_key_is_refused_without_being_repeated(text: str, why: str) -> None:
    with pytest.raises(Invalid) as refused:
        key_from(text)
    assert refused.value.text == why
    assert refused.value.__cause__ is None


@pytest.mark.proves("A-23")
@given(st.text(), st.binary(min_size=32, max_size=32), st.binary(min_size=24, max_size=24))
def test_what_is_sealed_is_opened(text: str, key: bytes, nonce: bytes) -> None:
    assert unseal(seal(text, key, nonce), key) == text


@pytest.mark.proves("A-23")
def test_every_altered_byte_is_noticed() -> None:
    content = seal("tea", KEY, NONCE)
    for at, letter in enumerate(content):
        altered = content[:at] + ("A" if letter != "A" else "B") + content[at + 1 :]
        with pytest.raises(Invalid):
            unseal(altered, KEY)


@pytest.mark.proves("A-22", "A-23")
@pytest.mark.parametrize(
    ("content", "why"),
    [
        ("", "content is not secretbox-v1"),
        ("{}", "content is not secretbox-v1"),
        ("é" * 60, "content is not secretbox-v1"),
        (seal("tea", KEY, NONCE) + "\n", "content is not secretbox-v1"),
        (b64encode(bytes(39)).decode(), "content is not secretbox-v1"),
        (b64encode(bytes(40)).decode(), "cannot decrypt: wrong key, or the content was altered"),
        (
            b64encode(SecretBox(KEY).encrypt(b"\xff", NONCE)).decode(),
            "cannot decrypt: the plaintext is not UTF-8",
        ),
    ],
)
def test_what_cannot_be_opened_says_why(content: str, why: str) -> None:
    with pytest.raises(Invalid) as refused:
        unseal(content, KEY)
    assert refused.value.text == why


def test_another_key_opens_nothing() -> None:
    with pytest.raises(Invalid, match="cannot decrypt: wrong key") as refused:
        unseal(seal("secret tea", KEY, NONCE), bytes(32))
    assert "tea" not in str(refused.value)


def test_keys_and_nonces_of_another_length_are_refused() -> None:
    with pytest.raises(Invalid, match="key must be 32 bytes"):
        seal("tea", KEY[:31], NONCE)
    with pytest.raises(Invalid, match="nonce must be 24 bytes"):
        seal("tea", KEY, NONCE[:23])
    with pytest.raises(Invalid, match="key must be 32 bytes"):
        unseal("", KEY + b"x")
