"""bip340_test_vectors.csv: what is a signature, and what is none (N01-11)."""

from __future__ import annotations

import pytest

from relay.nostr.event import Event
from relay.nostr.keys import SecretKey, is_signed
from tests.golden import table

CASES = table("bip340_test_vectors.csv")
SIGNING = [case for case in CASES if case["secret key"]]


def signed_message(pubkey: str, message: str, sig: str) -> Event:
    """An event that stands for any signed message: only its id, pubkey and sig are looked at."""
    return Event(message.lower(), pubkey.lower(), 0, 1, [], "", sig.lower(), b"")


@pytest.mark.proves("N01-11")
@pytest.mark.parametrize("case", CASES, ids=lambda case: f"vector {case['index']}")
def test_a_signature_is_judged_as_bip340_judges_it(case: dict[str, str]) -> None:
    event = signed_message(case["public key"], case["message"], case["signature"])
    assert is_signed(event) is (case["verification result"] == "TRUE"), case["comment"]


@pytest.mark.parametrize("case", SIGNING, ids=lambda case: f"vector {case['index']}")
def test_a_secret_key_has_the_public_key_that_bip340_gives_it(case: dict[str, str]) -> None:
    assert SecretKey(bytes.fromhex(case["secret key"])).pubkey == case["public key"].lower()


@pytest.mark.parametrize("case", SIGNING, ids=lambda case: f"vector {case['index']}")
def test_what_these_keys_sign_is_signed(case: dict[str, str]) -> None:
    key = SecretKey(bytes.fromhex(case["secret key"]))
    digest = bytes.fromhex(case["message"])[:32].ljust(32, b"\0")
    assert is_signed(signed_message(key.pubkey, digest.hex(), key.sign_digest(digest)))
