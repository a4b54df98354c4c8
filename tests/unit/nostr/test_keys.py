"""relay/nostr/keys.py: key pairs, their text forms, signatures. N01-11, N19-01."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from relay.errors import Invalid, UserError
from relay.nostr.event import Event, event_from_raw
from relay.nostr.keys import (
    SecretKey,
    are_signed,
    is_curve_point,
    is_signed,
    public_key,
    read_key_file,
)
from relay.nostr.nip19 import decode_bech32, encode_bech32
from tests.cast import alice, bob

if TYPE_CHECKING:
    from collections.abc import Callable

NOTE = alice.sign(1, [], "hello", 1_700_000_000)
NO_POINT = "f" * 64
ORDER = 0xFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFEBAAEDCE6AF48A03BBFD25E8CD0364141
BECH32 = "qpzry9x8gf2tvdw0s3jn54khce6mua7l"


def with_sig(event: Event, sig: str) -> Event:
    return event_from_raw(event.raw.replace(event.sig.encode(), sig.encode()))


def test_a_valid_signature_is_accepted() -> None:
    """N01-11."""
    assert is_signed(NOTE)


@pytest.mark.proves("N01-11")
@pytest.mark.parametrize(
    "sig",
    [
        pytest.param("0" * 128, id="zeros"),
        pytest.param("f" * 128, id="ones"),
        pytest.param(bob.sign_digest(bytes.fromhex(NOTE.id)), id="by somebody else"),
        pytest.param(alice.sign_digest(b"\1" * 32), id="over something else"),
        pytest.param(NOTE.sig[64:] + NOTE.sig[:64], id="halves swapped"),
    ],
)
def test_a_wrong_signature_is_refused(sig: str) -> None:
    """N01-11."""
    assert not is_signed(with_sig(NOTE, sig))


@pytest.mark.proves("N01-11")
def test_a_public_key_off_the_curve_verifies_nothing() -> None:
    """N01-11."""
    event = Event(NOTE.id, NO_POINT, 0, 1, [], "", NOTE.sig, b"")
    assert not is_curve_point(NO_POINT)
    assert not is_signed(event)


def test_a_batch_is_verified_event_by_event() -> None:
    events = [NOTE, with_sig(NOTE, "0" * 128), bob.sign(1, [], "", 0)]
    assert are_signed(events) == [True, False, True]


@given(st.binary(min_size=32, max_size=32).filter(lambda b: 0 < int.from_bytes(b) < ORDER))
def test_a_key_reads_back_from_each_of_its_text_forms(secret: bytes) -> None:
    key = SecretKey(secret)
    for text in (key.nsec, key.hex, key.hex.upper(), f" {key.nsec}\n"):
        assert SecretKey.parse(text).hex == secret.hex()
    for text in (key.npub, key.pubkey, key.pubkey.upper(), f" {key.npub}\n", key.npub):
        assert public_key(text) == key.pubkey
    assert is_curve_point(key.pubkey)


@pytest.mark.parametrize(
    "secret", [b"", b"\1", b"\1" * 31, b"\1" * 33, b"\0" * 8 + b"\1" * 32], ids=repr
)
def test_a_secret_of_another_length_is_refused(secret: bytes) -> None:
    with pytest.raises(Invalid):
        SecretKey(secret)


@pytest.mark.parametrize("number", [0, ORDER, 2**256 - 1])
def test_a_number_outside_the_group_order_is_no_secret_key(number: int) -> None:
    with pytest.raises(Invalid):
        SecretKey(number.to_bytes(32))


@pytest.mark.parametrize("spoil", [str.swapcase, lambda text: text[:-1], lambda text: text + "q"])
def test_a_malformed_secret_key_is_not_quoted(spoil: Callable[[str], str]) -> None:
    wrong = spoil(alice.nsec)
    with pytest.raises(Invalid) as refused:
        SecretKey.parse(wrong)
    assert wrong not in str(refused.value)


def test_a_secret_key_never_shows_itself() -> None:
    shown = f"{alice!r} {alice}"
    assert alice.hex not in shown
    assert alice.nsec not in shown
    assert alice.npub in shown


def test_a_secret_key_in_place_of_a_public_key_is_refused_and_not_quoted() -> None:
    with pytest.raises(Invalid) as refused:
        public_key(alice.nsec)
    assert alice.nsec not in str(refused.value)


def test_a_broken_key_file_is_named_and_not_quoted() -> None:
    assert read_key_file(alice.nsec + "\n", "owner.nsec").hex == alice.hex
    with pytest.raises(UserError) as refused:
        read_key_file("nsec1secret", "owner.nsec")
    assert "owner.nsec" in str(refused.value)
    assert "nsec1secret" not in str(refused.value)


@pytest.mark.proves("N19-01")
@given(st.binary(min_size=32, max_size=32), st.sampled_from(["npub", "nsec", "note"]))
def test_a_code_reads_back_under_its_own_name_only(data: bytes, prefix: str) -> None:
    """N19-01."""
    code = encode_bech32(prefix, data)
    assert decode_bech32(prefix, code) == data
    assert decode_bech32(prefix, code.upper()) == data
    with pytest.raises(Invalid):
        decode_bech32("nrelay", code)


@pytest.mark.proves("N19-01")
@given(st.binary(min_size=32, max_size=32), st.integers(5, 62), st.sampled_from(BECH32))
def test_one_wrong_character_is_noticed(data: bytes, place: int, letter: str) -> None:
    """N19-01: the checksum of bech32."""
    code = encode_bech32("npub", data)
    assume(code[place] != letter)
    with pytest.raises(Invalid):
        decode_bech32("npub", code[:place] + letter + code[place + 1 :])


@given(st.binary(max_size=64).filter(lambda data: len(data) != 32))
def test_a_code_of_another_length_is_no_key(data: bytes) -> None:
    with pytest.raises(Invalid):
        decode_bech32("npub", encode_bech32("npub", data))


@given(st.text(max_size=80))
def test_any_text_is_a_key_or_raises_invalid(text: str) -> None:
    for read in (public_key, SecretKey.parse, lambda text: decode_bech32("npub", text)):
        with suppress(Invalid):
            read(text)
