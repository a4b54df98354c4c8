"""nip13_difficulty.json: the zero bits that an id begins with (N13-01)."""

from __future__ import annotations

from typing import Any

import pytest

from relay.nostr.nip13 import difficulty
from tests.golden import document


@pytest.mark.proves("N13-01")
@pytest.mark.parametrize("case", document("nip13_difficulty.json")["cases"], ids=lambda c: c["id"])
def test_difficulty_is_the_number_of_leading_zero_bits(case: dict[str, Any]) -> None:
    assert difficulty(case["id"]) == case["difficulty"]
