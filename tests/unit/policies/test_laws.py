"""Laws that hold whatever an admin writes."""

from __future__ import annotations

import tempfile
from inspect import signature
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from policies import PolicySet, load
from policies.conditions import Condition
from policies.write_rule import Place, WriteRule
from relay.facts import Facts, Origin, Who
from relay.memory.systems import MEMORY_SYSTEMS
from relay.nostr.event import Event
from relay.nostr.kinds import VANISH, KindSet
from tests.cast import alice, bob, owner
from tests.unit.policies.facts import NOBODY, NOW

pytestmark = pytest.mark.slow

KINDS = st.sampled_from([0, 1, 5, 9, 62, 78, 1059, 1080, 1989, 30078, 30093, 30095, 31989])
WHO = st.frozensets(
    st.sampled_from([Who.OWNER, Who.AGENT, Who.MEMBER, Who.KNOWN, Who.INSIDER, Who.ADMIN])
)
TAGS = st.lists(
    st.sampled_from(
        [
            ["d", "snowclaw:config:global"],
            ["d", "nmem:obs:x"],
            ["d", "x"],
            ["h", "tea"],
            ["-"],
            ["k", "aman_preference"],
            ["hk", "x"],
            ["p", bob.pubkey],
            ["relay", "ALL_RELAYS"],
            [],
        ]
    ),
    max_size=4,
)
EVENTS = st.builds(
    lambda kind, tags, content, age: Event(
        "0" * 64, alice.pubkey, NOW - age, kind, tags, content, "", b""
    ),
    KINDS,
    TAGS,
    st.sampled_from(["", "{}", "x", "[]"]),
    st.integers(-2000, 2000),
)
FACTS = st.builds(
    lambda who, readers, keys, flags, origin: replace(
        NOBODY,
        who=NOBODY.who | who,
        authenticated_who=readers,
        authenticated=keys,
        origin=origin,
        wraps_for_known=flags[0],
        deletes_own=flags[1],
        replaces=flags[2],
    ),
    WHO,
    WHO,
    st.frozensets(st.sampled_from([alice.pubkey, bob.pubkey])),
    st.tuples(st.booleans(), st.booleans(), st.booleans()),
    st.sampled_from(list(Origin)),
)
CONDITIONS = st.builds(
    Condition,
    kinds=st.none() | KINDS.map(KindSet.of),
    d_prefixes=st.none() | st.just(("snowclaw:",)),
    h=st.none() | st.booleans(),
    content_chars=st.none() | st.integers(0, 2),
    age=st.none() | st.integers(0, 1000),
    replaces=st.none() | st.booleans(),
)
RULES = st.builds(
    WriteRule,
    place=st.just(Place("a new rule", "a.toml", 1)),
    match=CONDITIONS,
    excepts=st.lists(CONDITIONS, max_size=2).map(tuple),
    writers=st.none() | WHO | st.just(frozenset({Who.ANYONE})) | st.just(frozenset({Who.NOBODY})),
    require=st.sampled_from([(), ("d",), ("k", "q")]),
    pow_bits=st.sampled_from([0, 8]),
)


def _policy() -> PolicySet:
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "a.toml").write_text(f'[actors]\nowners = ["{owner.npub}"]\n')
        return load(folder, MEMORY_SYSTEMS)


POLICY = _policy()


def _with_rule(policy: PolicySet, rule: WriteRule, at: int) -> PolicySet:
    told = {name: getattr(policy, name) for name in signature(PolicySet).parameters}
    rules = (*policy.write_rules[:at], rule, *policy.write_rules[at:])
    return PolicySet(**{**told, "write_rules": rules})


@given(event=EVENTS, facts=FACTS, at=st.integers(0, 25))
def test_an_added_rule_is_asked_wherever_it_stands(event: Event, facts: Facts, at: int) -> None:
    nobody = WriteRule(Place("nobody", "a.toml", 1), writers=frozenset({Who.NOBODY}))
    if event.kind != VANISH and not facts.origin.is_trusted:
        assert _with_rule(POLICY, nobody, at).refusal(event, facts) is not None


@given(event=EVENTS, facts=FACTS, rule=RULES, at=st.integers(0, 25))
def test_adding_a_rule_never_turns_a_refusal_into_acceptance(
    event: Event, facts: Facts, rule: WriteRule, at: int
) -> None:
    if POLICY.refusal(event, facts) is not None:
        assert _with_rule(POLICY, rule, at).refusal(event, facts) is not None


@given(event=EVENTS, facts=FACTS)
def test_judge_and_explain_agree(event: Event, facts: Facts) -> None:
    decided = POLICY.explain(event, facts).decided
    first = POLICY.screen(event, facts.now, facts.origin) or POLICY.refusal(event, facts)
    assert (None if decided is None else decided.verdict) == first


@given(event=EVENTS, facts=FACTS)
def test_a_trusted_import_is_refused_nothing_that_the_wire_takes(
    event: Event, facts: Facts
) -> None:
    wire = replace(facts, origin=Origin.WIRE)
    if POLICY.refusal(event, wire) is None:
        assert POLICY.refusal(event, replace(facts, origin=Origin.IMPORT)) is None
        assert POLICY.refusal(event, replace(facts, origin=Origin.TRUSTED_IMPORT)) is None
