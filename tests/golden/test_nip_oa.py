"""nip_oa.json: an owner's attestation of an agent (NIP-OA)."""

from __future__ import annotations

import pytest

from relay.errors import Refused
from relay.nostr.agents import Attestation, attestation_of, signed_digest
from relay.nostr.event import event_from
from relay.nostr.keys import SecretKey, is_signed
from tests.golden import document

VECTOR = document("nip_oa.json")
OWNER, AGENT = (SecretKey.parse(VECTOR[f"{who}_secret"]) for who in ("owner", "agent"))
TAG = VECTOR["tag"]
ANY = "0" * 128


@pytest.mark.proves("B-10")
def test_the_tag_attests_the_agent_of_the_event() -> None:
    event = event_from(VECTOR["event"])
    assert is_signed(event)
    found = attestation_of(event)
    expected = Attestation(AGENT.pubkey, OWNER.pubkey, frozenset({1}), until=1_713_957_000)
    assert found == expected
    assert [expected.is_about(kind) for kind in (0, 1, 9)] == [False, True, False]
    assert [expected.holds_at(1_713_957_000 + n) for n in (-1, 0, 1)] == [True, False, False]


@pytest.mark.proves("B-10")
def test_the_digest_is_that_of_the_text() -> None:
    assert signed_digest(AGENT.pubkey, VECTOR["conditions"]).hex() == VECTOR["sha256"]
    assert (OWNER.pubkey, AGENT.pubkey) == (VECTOR["owner"], VECTOR["agent"])


def signed_tag(conditions: str, *, agent: SecretKey = AGENT, owner: SecretKey = OWNER) -> list[str]:
    signature = owner.sign_digest(signed_digest(agent.pubkey, conditions))
    return ["auth", owner.pubkey, conditions, signature]


BAD = {
    "two tags": ([TAG, TAG], "one tag only"),
    "no elements": ([["auth"]], "must have four elements"),
    "three elements": ([TAG[:3]], "must have four elements"),
    "five elements": ([[*TAG, ""]], "must have four elements"),
    "a trailing &": ([signed_tag("kind=1&")], "condition 2 is malformed or unknown"),
    "a leading &": ([signed_tag("&kind=1")], "condition 1 is malformed or unknown"),
    "a leading zero": ([signed_tag("kind=01")], "condition 1 is malformed or unknown"),
    "a space": ([signed_tag("kind=1& kind=2")], "condition 2 is malformed or unknown"),
    "no number": ([signed_tag("kind=")], "condition 1 is malformed or unknown"),
    "foreign digits": ([signed_tag("kind=١")], "condition 1 is malformed or unknown"),
    "a line break": ([signed_tag("kind=1\n")], "condition 1 is malformed or unknown"),
    "an unknown clause": ([signed_tag("relay=wss://x")], "condition 1 is malformed or unknown"),
    "another operator": ([signed_tag("created_at<=5")], "condition 1 is malformed or unknown"),
    "a kind too high": ([signed_tag("kind=65536")], "condition 1 is malformed or unknown"),
    "a time too high": ([signed_tag("created_at<4294967296")], "condition 1 is malformed"),
    "too long": ([signed_tag("&".join(["kind=1"] * 200))], "at most 1024 characters"),
    "by itself": ([signed_tag("", owner=AGENT)], "nobody is their own owner"),
    "for another agent": ([signed_tag("", agent=OWNER)], "not signed by this owner"),
    "other conditions": ([[*TAG[:2], "", TAG[3]]], "not signed by this owner"),
    "another owner": ([["auth", "f" * 64, *TAG[2:]]], "not signed by this owner"),
    "no hex": ([["auth", "x" * 64, "", ANY]], "the owner must be 64"),
    "upper case": ([["auth", OWNER.pubkey.upper(), *TAG[2:]]], "the owner must be 64"),
    "a short signature": ([[*TAG[:3], TAG[3][:-2]]], "the signature must be 128"),
    "an upper signature": ([[*TAG[:3], TAG[3].upper()]], "the signature must be 128"),
}


@pytest.mark.proves("B-10")
@pytest.mark.parametrize("says", BAD)
def test_what_the_text_calls_invalid_is_refused(says: str) -> None:
    tags, why = BAD[says]
    with pytest.raises(Refused, match=f"auth: .*{why}") as refused:
        attestation_of(AGENT.sign(22242, tags, "", 1_713_956_400))
    assert refused.value.prefix == "restricted"


@pytest.mark.proves("B-10", "B-16")
def test_every_clause_counts() -> None:
    conditions = "created_at>5&kind=7&created_at<90&created_at<80&created_at>3"
    event = AGENT.sign(1, [signed_tag(conditions)], "", 0)
    found = attestation_of(event)
    assert found is not None
    assert [found.holds_at(n) for n in (5, 6, 79, 80)] == [False, True, True, False]
    both = attestation_of(AGENT.sign(1, [signed_tag("kind=1&kind=7")], "", 0))
    assert both is not None
    assert not both.is_about(1)
    assert not both.is_about(7)
    plain = attestation_of(AGENT.sign(1, [signed_tag("")], "", 0))
    assert plain == Attestation(AGENT.pubkey, OWNER.pubkey)
    assert attestation_of(AGENT.sign(1, [], "", 0)) is None
