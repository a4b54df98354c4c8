"""nip19.json: keys and ids as people copy them (N19-01)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from relay.errors import Invalid
from relay.nostr.keys import SecretKey, npub, public_key
from relay.nostr.nip19 import (
    AddressPointer,
    ProfilePointer,
    decode_bech32,
    decode_pointer,
    encode_bech32,
    encode_pointer,
)
from tests.golden import document

if TYPE_CHECKING:
    from collections.abc import Callable

SAMPLES = document("nip19.json")
PLAIN = [case for case in SAMPLES["cases"] if "hex" in case]
COMPOUND = [case for case in SAMPLES["cases"] if "hex" not in case]


@pytest.mark.proves("N19-01")
@pytest.mark.parametrize("case", PLAIN, ids=lambda case: case["bech32"])
def test_a_code_of_32_bytes_reads_and_writes(case: dict[str, Any]) -> None:
    assert decode_bech32(case["type"], case["bech32"]).hex() == case["hex"]
    assert encode_bech32(case["type"], bytes.fromhex(case["hex"])) == case["bech32"]


@pytest.mark.parametrize("case", PLAIN, ids=lambda case: case["bech32"])
def test_the_bytes_of_a_code_are_another_code_under_another_name(case: dict[str, Any]) -> None:
    note = encode_bech32("note", bytes.fromhex(case["hex"]))
    assert note.startswith("note1")
    assert decode_bech32("note", note).hex() == case["hex"]
    with pytest.raises(Invalid):
        decode_bech32(case["type"], note)


@pytest.mark.parametrize(
    "case", [case for case in PLAIN if case["type"] == "npub"], ids=lambda case: case["bech32"]
)
def test_an_npub_names_a_public_key(case: dict[str, Any]) -> None:
    assert public_key(case["bech32"]) == case["hex"]
    assert npub(case["hex"]) == case["bech32"]


@pytest.mark.parametrize(
    "case", [case for case in PLAIN if case["type"] == "nsec"], ids=lambda case: case["bech32"]
)
def test_an_nsec_is_a_secret_key(case: dict[str, Any]) -> None:
    key = SecretKey.parse(case["bech32"])
    assert (key.hex, key.nsec) == (case["hex"], case["bech32"])


@pytest.mark.parametrize("case", COMPOUND, ids=lambda case: case["type"])
def test_a_compound_code_is_no_key(case: dict[str, Any]) -> None:
    with pytest.raises(Invalid):
        public_key(case["bech32"])
    with pytest.raises(Invalid):
        decode_bech32(case["type"], case["bech32"])


@pytest.mark.proves("N19-01")
@pytest.mark.parametrize("case", COMPOUND, ids=lambda case: case["type"])
def test_a_compound_code_points_to_what_it_says(case: dict[str, Any]) -> None:
    relays = tuple(case["relays"])
    pointers: dict[str, Callable[[], ProfilePointer | AddressPointer]] = {
        "nprofile": lambda: ProfilePointer(case["pubkey"], relays),
        "naddr": lambda: AddressPointer(case["identifier"], case["pubkey"], case["kind"], relays),
    }
    pointer = pointers[case["type"]]()
    assert decode_pointer(case["bech32"]) == pointer
    assert encode_pointer(pointer) == case["bech32"]


@pytest.mark.proves("N19-01")
@pytest.mark.parametrize("code", SAMPLES["invalid"])
def test_a_broken_code_is_refused(code: str) -> None:
    with pytest.raises(Invalid):
        decode_bech32(code.partition("1")[0], code)
    with pytest.raises(Invalid, match="not a valid nevent"):
        decode_pointer(code)
