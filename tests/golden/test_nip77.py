"""negentropy.json: whole dialogues, byte for byte, and what they are made of (NIP-77)."""

from __future__ import annotations

import sys
from array import array
from typing import Any

import pytest

from relay.errors import Invalid
from relay.nostr.nip77 import Initiator, Items, reply_to, varint
from tests.golden import document

VECTORS = document("negentropy.json")
UNITS = VECTORS["units"]
EDGES = UNITS["edge_messages"]


def items(pairs: list[tuple[int, str]]) -> Items:
    pairs = sorted(pairs)
    ids = b"".join(bytes.fromhex(id_) for _, id_ in pairs)
    return Items(array("Q", (timestamp for timestamp, _ in pairs)), ids)


NOTHING = items([])


@pytest.mark.proves(
    "N77-20",
    "N77-22",
    "N77-23",
    "N77-24",
    "N77-25",
    "N77-27",
    "N77-29",
    "N77-30",
    "N77-31",
    "N77-32",
    "N77-33",
    "N77-34",
)
@pytest.mark.parametrize("case", VECTORS["cases"], ids=lambda case: case["name"])
def test_a_dialogue_is_the_same_byte_for_byte_on_both_sides(case: dict[str, Any]) -> None:
    limit = case["frame_size_limit"] or sys.maxsize
    client = Initiator(items(case["client_items"]), limit)
    ours = items(case["relay_items"])
    said = []
    message: bytes | None = client.first()
    while message is not None:
        reply = reply_to(message, ours, limit)
        said += [message.hex(), reply.hex()]
        message = client.reply(reply)
    assert said == case["transcript_client_relay_alternating"]
    assert sorted(id_.hex() for id_ in client.have) == sorted(case["have"])
    assert sorted(id_.hex() for id_ in client.need) == sorted(case["need"])


@pytest.mark.proves("N77-21", "N77-34")
@pytest.mark.parametrize(("number", "code"), UNITS["varint"])
def test_a_number_is_written_in_its_shortest_form(number: int, code: str) -> None:
    assert varint(number).hex() == code


@pytest.mark.proves("N77-28", "N77-34")
@pytest.mark.parametrize("case", UNITS["fingerprint"], ids=lambda case: case["fingerprint"])
def test_a_fingerprint_is_of_the_sum_and_the_count(case: dict[str, Any]) -> None:
    held = items(list(enumerate(case["ids"])))
    assert held.fingerprint(0, len(held)).hex() == case["fingerprint"]


@pytest.mark.proves("N77-22")
def test_another_version_is_answered_with_ours() -> None:
    query = bytes.fromhex(UNITS["version_mismatch"]["query"])
    assert reply_to(query, NOTHING).hex() == UNITS["version_mismatch"]["reply"]


@pytest.mark.proves("N77-22", "N77-27", "N77-34")
@pytest.mark.parametrize(
    "case",
    [case for case in EDGES if "expect" not in case],
    ids=lambda case: case["name"],
)
def test_an_unusual_message_has_an_answer(case: dict[str, str]) -> None:
    assert reply_to(bytes.fromhex(case["query"]), NOTHING).hex() == case["reply_from_empty_relay"]


@pytest.mark.proves("N77-21", "N77-22", "N77-24", "N77-25", "N77-26", "N77-34")
@pytest.mark.parametrize(
    "case", [case for case in EDGES if "expect" in case], ids=lambda case: case["name"]
)
def test_a_malformed_message_is_refused(case: dict[str, str]) -> None:
    assert case["expect"] == "NEG-ERR"
    with pytest.raises(Invalid, match="negentropy: "):
        reply_to(bytes.fromhex(case["query"]), NOTHING)
