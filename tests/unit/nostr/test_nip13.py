"""relay/nostr/nip13.py: proof of work. NIP-13."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from policies.rules.work import too_little_work
from relay.errors import Invalid, Prefix
from relay.nostr.event import Event, event_from
from relay.nostr.nip13 import committed_target, difficulty
from tests.cast import alice

TEN = "002f" + "f" * 60
TWENTY = "00000f" + "f" * 58


def worked(id_: str, *nonce: str) -> Event:
    """An event of this id, which is not looked at: the work is in the id alone."""
    return Event(id_, alice.pubkey, 0, 1, [["t", "x"], list(nonce)], "", "0" * 128, b"")


def refusal_of(event: Event, bits: int) -> str | None:
    refusal = too_little_work(event, bits, "some rule")
    if refusal is None:
        return None
    assert (refusal.prefix, refusal.rule) == (Prefix.POW, "some rule")
    return refusal.text


@pytest.mark.proves("N13-02")
@pytest.mark.parametrize(
    ("nonce", "target"),
    [
        ((), None),
        (("nonce",), None),
        (("nonce", "776797"), None),
        (("nonce", "776797", "20"), 20),
        (("nonce", "1", "020"), 20),
        (("nonce", "1", "0"), 0),
        (("nonce", "1", "20", "more"), 20),
        (("Nonce", "1", "20"), None),
        (("nonce", "1", "00000256"), 256),
    ],
)
def test_the_third_element_is_the_target(nonce: tuple[str, ...], target: int | None) -> None:
    assert committed_target(worked(TEN, *nonce)) == target


@pytest.mark.proves("N13-02")
def test_the_nonce_is_part_of_the_event() -> None:
    event = alice.sign(1, [["nonce", "1", "0"]], "", 0)
    moved = event.raw.replace(b'"nonce","1"', b'"nonce","2"')
    with pytest.raises(Invalid, match="id: is not the hash"):
        event_from(json.loads(moved))


@pytest.mark.proves("N13-04")
@pytest.mark.parametrize("target", ["", "many", "-1", "20.0", "1e3", "٢٠", "²", " 20", "0x14"])
def test_a_target_that_is_not_a_number_counts_as_0(target: str) -> None:
    assert committed_target(worked(TWENTY, "nonce", "1", target)) == 0
    assert refusal_of(worked(TWENTY, "nonce", "1", target), 16) == "difficulty 0 is less than 16"


@pytest.mark.proves("N13-04")
@pytest.mark.parametrize("target", ["257", "1000", "9" * 5000, str(2**64)])
def test_a_huge_target_is_above_every_id(target: str) -> None:
    event = worked(TWENTY, "nonce", "1", target)
    assert committed_target(event) == 256
    assert refusal_of(event, 16) == "difficulty 20 is less than the 256 that the tag nonce names"


@pytest.mark.proves("N13-04")
def test_a_difficulty_below_the_minimum_is_refused_with_both_numbers() -> None:
    assert refusal_of(worked(TEN), 20) == "difficulty 10 is less than 20"
    assert refusal_of(worked(TEN), 10) is None


@pytest.mark.proves("N13-03")
def test_the_committed_target_counts_not_the_actual_difficulty() -> None:
    assert refusal_of(worked(TWENTY, "nonce", "1", "10"), 20) == "difficulty 10 is less than 20"
    assert refusal_of(worked(TWENTY, "nonce", "1", "10"), 10) is None
    assert refusal_of(worked(TWENTY, "nonce", "1", "20"), 20) is None


@pytest.mark.proves("N13-03")
def test_a_target_that_was_missed_is_refused_above_the_minimum_too() -> None:
    text = "difficulty 20 is less than the 21 that the tag nonce names"
    assert refusal_of(worked(TWENTY, "nonce", "1", "21"), 16) == text


@pytest.mark.proves("N13-01")
@given(st.integers(0, 2**256 - 1))
def test_difficulty_counts_leading_zero_bits(number: int) -> None:
    zeros = f"{number:0256b}".find("1")
    assert difficulty(f"{number:064x}") == (256 if zeros < 0 else zeros)


@pytest.mark.proves("N13-05")
def test_no_signature_is_needed() -> None:
    assert worked(TEN).sig == "0" * 128
    assert refusal_of(worked(TEN), 10) is None
