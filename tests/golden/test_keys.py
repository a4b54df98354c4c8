"""keys.json: the key pairs that the generated vectors are signed with."""

from __future__ import annotations

import pytest

from relay.nostr.keys import SecretKey
from tests.golden import document

PAIRS = document("keys.json")["keys"]


@pytest.mark.parametrize("name", PAIRS)
def test_a_secret_key_has_its_public_key(name: str) -> None:
    assert SecretKey.parse(PAIRS[name]["secret"]).pubkey == PAIRS[name]["public"]
