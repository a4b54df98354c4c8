"""nip44.vectors.json and nip44_extended.json: encrypted payloads, version 2 (NIP-44)."""

from __future__ import annotations

from hashlib import sha256
from typing import Any

import pytest

from relay.errors import Invalid
from relay.nostr.keys import SecretKey
from relay.nostr.nip44 import conversation_key, decrypt, encrypt, message_keys, padded_length
from tests.golden import document

VECTORS = document("nip44.vectors.json")["v2"]
VALID, INVALID = VECTORS["valid"], VECTORS["invalid"]
EXTENDED = document("nip44_extended.json")


def secret(text: str) -> SecretKey:
    return SecretKey(bytes.fromhex(text))


@pytest.mark.proves("N44-01")
@pytest.mark.parametrize("case", VALID["get_conversation_key"], ids=lambda case: case["sec1"][:8])
def test_two_keys_have_one_conversation_key(case: dict[str, str]) -> None:
    assert conversation_key(secret(case["sec1"]), case["pub2"]).hex() == case["conversation_key"]


@pytest.mark.proves("N44-13")
@pytest.mark.parametrize("case", INVALID["get_conversation_key"], ids=lambda case: case["note"])
def test_what_is_no_key_has_none(case: dict[str, str]) -> None:
    with pytest.raises(Invalid):
        conversation_key(secret(case["sec1"]), case["pub2"])


@pytest.mark.proves("N44-03")
@pytest.mark.parametrize("case", VALID["get_message_keys"]["keys"], ids=lambda c: c["nonce"][:8])
def test_a_nonce_makes_the_keys_of_one_message(case: dict[str, str]) -> None:
    key = bytes.fromhex(VALID["get_message_keys"]["conversation_key"])
    found = message_keys(key, bytes.fromhex(case["nonce"]))
    assert found.chacha_key.hex() == case["chacha_key"]
    assert found.chacha_nonce.hex() == case["chacha_nonce"]
    assert found.hmac_key.hex() == case["hmac_key"]


@pytest.mark.proves("N44-06")
@pytest.mark.parametrize(("length", "padded"), VALID["calc_padded_len"])
def test_a_plaintext_is_padded_to_few_sizes(length: int, padded: int) -> None:
    assert padded_length(length) == padded


@pytest.mark.proves("N44-01", "N44-05", "N44-07", "N44-08", "N44-09", "N44-11", "N44-12")
@pytest.mark.parametrize("case", VALID["encrypt_decrypt"], ids=lambda case: case["payload"][40:52])
def test_a_message_is_the_same_payload_everywhere(case: dict[str, str]) -> None:
    one, other = secret(case["sec1"]), secret(case["sec2"])
    key = conversation_key(one, other.pubkey)
    assert key.hex() == case["conversation_key"]
    assert key == conversation_key(other, one.pubkey)
    assert encrypt(case["plaintext"], key, bytes.fromhex(case["nonce"])) == case["payload"]
    assert decrypt(case["payload"], key) == case["plaintext"]


@pytest.mark.proves("N44-05", "N44-06")
@pytest.mark.parametrize("case", VALID["encrypt_decrypt_long_msg"], ids=lambda c: c["pattern"])
def test_a_long_message_too(case: dict[str, Any]) -> None:
    key = bytes.fromhex(case["conversation_key"])
    plaintext = case["pattern"] * case["repeat"]
    assert sha256(plaintext.encode()).hexdigest() == case["plaintext_sha256"]
    payload = encrypt(plaintext, key, bytes.fromhex(case["nonce"]))
    assert sha256(payload.encode()).hexdigest() == case["payload_sha256"]
    assert decrypt(payload, key) == plaintext


@pytest.mark.proves("N44-04", "N44-05", "N44-06", "Z-15")
@pytest.mark.parametrize("case", EXTENDED["cases"], ids=lambda case: str(case["plaintext_len"]))
def test_from_65536_bytes_on_the_prefix_is_long(case: dict[str, Any]) -> None:
    key = bytes.fromhex(EXTENDED["conversation_key"])
    plaintext = "a" * case["plaintext_len"]
    assert sha256(plaintext.encode()).hexdigest() == case["plaintext_sha256"]
    assert padded_length(case["plaintext_len"]) == case["padded_len"]
    payload = encrypt(plaintext, key, bytes.fromhex(EXTENDED["nonce"]))
    assert sha256(payload.encode()).hexdigest() == case["payload_sha256"]
    assert decrypt(payload, key) == plaintext


SAID = {
    "unknown encryption version": "unknown version",
    "invalid base64": "is not base64",
    "invalid MAC": "invalid MAC",
    "invalid padding": "wrong padding",
    "invalid payload length": "invalid payload length",
}
"""Their words for a fault, and ours."""


@pytest.mark.proves("N44-10", "N44-11", "N44-12")
@pytest.mark.parametrize("case", INVALID["decrypt"], ids=lambda c: f"{c['note']} {c['nonce'][:6]}")
def test_a_payload_that_is_wrong_is_refused_for_what_is_wrong(case: dict[str, str]) -> None:
    said = next(said for note, said in SAID.items() if case["note"].startswith(note))
    if case["payload"] == "":
        said = "unknown version"
    with pytest.raises(Invalid, match=said):
        decrypt(case["payload"], bytes.fromhex(case["conversation_key"]))


@pytest.mark.proves("N44-04")
def test_an_empty_plaintext_is_refused() -> None:
    # The lengths from 65,536 on are of before the long prefix: what was too long no longer is.
    assert INVALID["encrypt_msg_lengths"] == [0, 65536, 100000, 10000000]
    with pytest.raises(Invalid, match="plaintext: must have 1 to"):
        encrypt("", bytes(32), bytes(32))
