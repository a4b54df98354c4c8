"""nip45_hll.json: where to look in a public key, and what is seen there (NIP-45)."""

from __future__ import annotations

from hashlib import sha256
from typing import Any

import pytest

from relay.nostr.nip45 import offset_of, registers
from tests.golden import document

VECTORS = document("nip45_hll.json")


def pubkeys_of(case: dict[str, Any]) -> list[bytes]:
    if "pubkeys" in case:
        return [bytes.fromhex(pubkey) for pubkey in case["pubkeys"]]
    assert case["pubkeys_rule"] == 'sha256(utf8("hll"+decimal i)) hex for i in 0..999'
    return [sha256(f"hll{i}".encode()).digest() for i in range(1000)]


@pytest.mark.proves("N45-11")
@pytest.mark.parametrize("case", VECTORS["offset"], ids=lambda case: case["first_tag_value"][:12])
def test_the_first_value_tells_the_offset(case: dict[str, Any]) -> None:
    assert offset_of(case["first_tag_value"]) == case["offset"]


@pytest.mark.proves("N45-12", "N45-13", "N45-14")
@pytest.mark.parametrize("case", VECTORS["registers"])
def test_the_registers_of_these_authors(case: dict[str, Any]) -> None:
    assert registers(pubkeys_of(case), case["offset"]) == case["hll"]
