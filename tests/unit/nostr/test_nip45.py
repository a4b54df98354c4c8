"""relay/nostr/nip45.py: registers, merging, and the estimate. NIP-45."""

from __future__ import annotations

from hashlib import sha256

import pytest
from hypothesis import given
from hypothesis import strategies as st

from relay.nostr.nip45 import offset_of, registers

pubkeys = st.lists(st.binary(min_size=32, max_size=32), max_size=20)


@pytest.mark.proves("N45-11")
@given(st.text(st.characters(exclude_categories=["Cs"]), max_size=80))
def test_any_value_has_an_offset_from_8_to_23(value: str) -> None:
    assert 8 <= offset_of(value) <= 23


@pytest.mark.proves("N45-11")
@pytest.mark.parametrize(
    "value",
    [
        "F" * 64,
        "f" * 63,
        "f" * 65,
        "x:" + "f" * 64 + ":",
        "30023:" + "f" * 64,
        "30023:" + "F" * 64 + ":d",
        "²:" + "f" * 64 + ":d",
    ],
)
def test_a_value_that_is_no_id_or_address_is_hashed(value: str) -> None:
    assert offset_of(value) == int(sha256(value.encode()).hexdigest()[32], 16) + 8


@pytest.mark.proves("N45-11")
def test_the_offset_of_an_address_is_that_of_its_author() -> None:
    author = "0" * 32 + "a" + "0" * 31
    assert offset_of(author) == offset_of(f"30023:{author}:some:thing") == 18


@pytest.mark.proves("N45-12", "N45-14")
def test_no_authors_give_256_zero_registers() -> None:
    assert registers([], 8) == "00" * 256


@pytest.mark.proves("N45-12")
@given(pubkeys, pubkeys, st.integers(8, 23))
def test_registers_are_merged_by_their_maximum(
    one: list[bytes], other: list[bytes], offset: int
) -> None:
    both = map(max, bytes.fromhex(registers(one, offset)), bytes.fromhex(registers(other, offset)))
    assert registers(one + other + one, offset) == bytes(both).hex()


@pytest.mark.proves("N45-12", "N45-13", "Z-16")
@pytest.mark.parametrize(
    ("tail", "value"),
    [("ff", 1), ("7f", 2), ("01", 8), ("00ff", 9), ("00" * 6 + "01", 56), ("00" * 7 + "ff", 57)],
)
def test_a_register_holds_one_more_than_the_zeros_behind_its_number(tail: str, value: int) -> None:
    offset = 10
    pubkey = (bytes(offset) + b"\xc8" + bytes.fromhex(tail)).ljust(32, b"\xff")
    found = bytes.fromhex(registers([pubkey], offset))
    assert found[0xC8] == value
    assert sum(found) == value
