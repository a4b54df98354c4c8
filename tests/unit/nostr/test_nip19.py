"""relay/nostr/nip19.py: encoding and decoding of pointers. NIP-19."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from relay.errors import Invalid
from relay.nostr.kinds import GROUP_METADATA, MAX_KIND
from relay.nostr.nip19 import (
    AddressPointer,
    EventPointer,
    Pointer,
    ProfilePointer,
    decode_bech32,
    decode_pointer,
    encode_bech32,
    encode_pointer,
)
from tests.cast import alice, bob

RELAY = "wss://relay.example"
KEY, ID = bytes.fromhex(alice.pubkey), bytes(32)

hex64 = st.binary(min_size=32, max_size=32).map(bytes.hex)
relays = st.lists(st.text(st.characters(max_codepoint=127), max_size=255), max_size=3).map(tuple)
kinds = st.integers(0, MAX_KIND)
ds = st.text(st.characters(exclude_categories=["Cs"]), max_size=63)
pointers = (
    st.builds(ProfilePointer, hex64, relays)
    | st.builds(EventPointer, hex64, relays, st.none() | hex64, st.none() | kinds)
    | st.builds(AddressPointer, ds, hex64, kinds, relays)
)


def code(prefix: str, *values: tuple[int, bytes]) -> str:
    return encode_bech32(prefix, b"".join(bytes((t, len(v))) + v for t, v in values))


@pytest.mark.proves("N19-01")
@given(pointers)
def test_a_pointer_reads_back(pointer: Pointer) -> None:
    text = encode_pointer(pointer)
    assert decode_pointer(text) == pointer
    assert decode_pointer(text.upper()) == pointer


@pytest.mark.proves("N19-01")
def test_unknown_types_are_skipped() -> None:
    known = [(0, ID), (2, KEY), (3, (7).to_bytes(4))]
    text = code("nevent", (9, b"new"), *known, (255, b""))
    assert decode_pointer(text) == EventPointer(ID.hex(), (), alice.pubkey, 7)


@pytest.mark.proves("N19-01")
def test_relays_repeat_and_the_first_of_other_values_counts() -> None:
    relays = [(1, b"wss://a"), (1, b"wss://b"), (1, "wss://ä".encode()), (1, b"wss://a")]
    text = code("nprofile", (0, KEY), *relays, (0, bytes.fromhex(bob.pubkey)))
    assert decode_pointer(text) == ProfilePointer(alice.pubkey, ("wss://a", "wss://b", "wss://a"))


@pytest.mark.proves("N19-02")
def test_a_group_is_the_address_of_its_39000_with_a_relay_to_ask() -> None:
    group = AddressPointer("tea", alice.pubkey, GROUP_METADATA, (RELAY,))
    expected = [(0, b"tea"), (1, RELAY.encode()), (2, KEY), (3, (39000).to_bytes(4))]
    assert encode_pointer(group) == code("naddr", *expected)


@pytest.mark.proves("N19-01")
@pytest.mark.parametrize(
    "text",
    [
        pytest.param(code("nprofile"), id="empty"),
        pytest.param(code("nprofile", (1, b"wss://a")), id="no key"),
        pytest.param(code("nprofile", (0, KEY[:31])), id="a short key"),
        pytest.param(code("nevent", (0, ID), (2, KEY[:31])), id="a short author"),
        pytest.param(code("nevent", (0, ID), (3, b"\1")), id="a short kind"),
        pytest.param(code("nevent", (0, ID), (3, b"\0\1\0\0")), id="a kind over 65535"),
        pytest.param(code("naddr", (0, b"d"), (2, KEY)), id="an address without a kind"),
        pytest.param(code("naddr", (0, b"d"), (3, bytes(4))), id="an address without an author"),
        pytest.param(code("naddr", (0, b"\xff"), (2, KEY), (3, bytes(4))), id="d is no UTF-8"),
        pytest.param(encode_bech32("nevent", b"\0\x20" + ID[:31]), id="cut"),
        pytest.param(encode_bech32("nevent", b"\0\x20" + ID + b"\1"), id="cut after a type"),
        pytest.param(encode_bech32("nevent", b"\0\x20" + ID + b"\1\7wss://"), id="cut in a relay"),
        pytest.param(code("nprofile", (0, KEY), *[(1, b"wss://a")] * 400), id="over 5000 letters"),
    ],
)
def test_a_pointer_that_is_not_whole_is_refused(text: str) -> None:
    with pytest.raises(Invalid, match="not a valid n"):
        decode_pointer(text)


@pytest.mark.parametrize("text", ["", "1", "nevent", alice.npub, "naddr2", "nrelay1qqqqqq"])
def test_another_code_is_no_pointer(text: str) -> None:
    with pytest.raises(Invalid, match="not an nprofile, nevent or naddr"):
        decode_pointer(text)


def test_a_hint_that_cannot_be_encoded_is_left_out() -> None:
    unsaid = ("wss://" + "a" * 250, "wss://ä", RELAY)
    pointer = ProfilePointer(alice.pubkey, unsaid)
    assert decode_pointer(encode_pointer(pointer)) == ProfilePointer(alice.pubkey, (RELAY,))


@pytest.mark.proves("N19-01")
@pytest.mark.parametrize(
    "text",
    [
        pytest.param(
            "npub1qqqsyqcyq5rqwzqfpg9scrgwpugpzysnzs23v9ccrydpk8qarc03kzr9xj",
            id="a bit behind the last byte",
        ),
        pytest.param(
            "npub1qqqsyqcyq5rqwzqfpg9scrgwpugpzysnzs23v9ccrydpk8qarc0sqyspp3r",
            id="a letter behind the last byte",
        ),
    ],
)
def test_one_key_has_one_code(text: str) -> None:
    """The checksum of these is right, and they hold the bytes 0 to 31 and a bit more."""
    with pytest.raises(Invalid, match="not a valid npub"):
        decode_bech32("npub", text)


def test_an_address_of_more_than_255_bytes_cannot_be_encoded() -> None:
    longest = AddressPointer("ä" * 127 + "a", alice.pubkey, 30023)
    assert decode_pointer(encode_pointer(longest)) == longest
    with pytest.raises(Invalid, match="at most 255"):
        encode_pointer(AddressPointer("ä" * 128, alice.pubkey, 30023))


@given(st.text(max_size=80) | st.binary(max_size=60).map(lambda data: encode_bech32("naddr", data)))
def test_any_text_is_a_pointer_or_raises_invalid(text: str) -> None:
    try:
        pointer = decode_pointer(text)
    except Invalid:
        return
    assert isinstance(pointer, AddressPointer)
