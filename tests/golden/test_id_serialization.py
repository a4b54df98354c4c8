"""id_serialization.json: the exact bytes that an id is the hash of (N01-20…25)."""

from __future__ import annotations

from hashlib import sha256
from typing import Any

import pytest

from relay.nostr.event import id_bytes
from tests.golden import document

CASES = document("id_serialization.json")["cases"]


@pytest.mark.proves("N01-10", "N01-20", "N01-21", "N01-22", "N01-23", "N01-25")
@pytest.mark.parametrize("case", CASES, ids=lambda case: case["note"])
def test_the_hashed_bytes_are_canonical(case: dict[str, Any]) -> None:
    hashed = id_bytes(**case["fields"])
    assert hashed.hex() == case["serialized_utf8_hex"]
    assert sha256(hashed).hexdigest() == case["id"]
