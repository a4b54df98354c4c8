"""Which rules about "how much" an event meets, and that rules of other kinds cost it nothing."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from msgspec.structs import replace

from policies.describe import amounts_text
from policies.engine import Stage
from policies.load import PRESETS, load
from policies.write_rule import RulesByKind
from relay.access.quotas import Per, Quota, Rate, Unit, UsageLimit
from relay.facts import Origin, Who
from relay.memory.systems import MEMORY_SYSTEMS
from relay.nostr import kinds
from tests.cast import alice
from tests.harness.folders import loaded
from tests.harness.relay_in_process import policy_of
from tests.unit.policies.facts import NOBODY, event_by

if TYPE_CHECKING:
    from pathlib import Path

    from policies.engine import PolicySet

OPEN = '[[rule]]\nname = "known people write"\nenabled = false\n'
RATE = 'rate = { per = "author", burst = 3, per_minute = 2 }'
QUOTA = 'quota = { per = "group", events = 10, bytes = 1000 }'


def rules(folder: Path, *texts: str) -> PolicySet:
    named = [f'[[rule]]\nname = "r{number}"\n{text}\n' for number, text in enumerate(texts)]
    return loaded(folder, a=OPEN + "".join(named))


def met(policy: PolicySet, kind: int, *tags: list[str]) -> list[str]:
    event = event_by(alice, kind, list(tags))
    return [limit.rule for limit in policy.usage_limits(event, NOBODY)]


def test_a_rule_may_have_both_and_each_says_what_it_is(tmp_path: Path) -> None:
    policy = rules(tmp_path, f"match = {{ kinds = [1] }}\n{RATE}\n{QUOTA}\nreject = 'enough'")
    [limit] = policy.usage_limits(event_by(alice, 1), NOBODY)
    assert isinstance(limit, UsageLimit)
    assert limit.reject == "enough"
    assert isinstance(limit.rate, Rate)
    assert (limit.rate.per, limit.rate.burst, limit.rate.refill) == (Per.AUTHOR, 3, 2)
    assert isinstance(limit.quota, Quota)
    assert (limit.quota.per, limit.quota.events, limit.quota.bytes) == (Per.GROUP, 10, 1000)
    assert policy.quotas_of(1) == (limit.quota,)


def test_a_rate_counts_events_or_bytes_and_is_described_so(tmp_path: Path) -> None:
    in_bytes = RATE.replace("}", ', counts = "bytes" }')
    policy = rules(tmp_path, RATE, in_bytes)
    texts = [amounts_text(rule) for rule in policy.write_rules if rule.place.name in ("r0", "r1")]
    assert texts == ["2 a minute per author, 3 at once", "2 bytes a minute per author, 3 at once"]
    event = event_by(alice, 1)
    costs = [
        limit.rate.cost_of(event) for limit in policy.usage_limits(event, NOBODY) if limit.rate
    ]
    assert costs == [1, len(event.raw)]


def test_each_event_meets_the_rules_about_it_in_their_order(tmp_path: Path) -> None:
    policy = rules(
        tmp_path,
        RATE,
        f"match = {{ kinds = [1] }}\n{RATE}",
        f"match = {{ tags = {{ t = true }} }}\n{RATE}",
        f"{RATE}\nexcept = {{ kinds = [7] }}",
        'match = { kinds = [9] }\nwrite = ["owner"]',
    )
    assert met(policy, 1) == ["r0", "r1", "r3"]
    assert met(policy, 1, ["t", "x"]) == ["r0", "r1", "r2", "r3"]
    assert met(policy, 7) == ["r0"]
    assert met(policy, 9) == ["r0", "r3"]


@pytest.mark.parametrize(
    "kind",
    [kinds.DELETION, kinds.VANISH, kinds.CREATE_GROUP, kinds.JOIN_REQUEST, kinds.GROUP_METADATA],
)
def test_no_quota_is_about_what_makes_room_or_leads_groups(tmp_path: Path, kind: int) -> None:
    policy = rules(tmp_path, QUOTA, f"match = {{ kinds = [{kind}, 1] }}\n{QUOTA}\n{RATE}")
    assert all(quota.is_of_a_day for quota in policy.quotas_of(kind)), "packaged"
    limits = policy.usage_limits(event_by(alice, kind), NOBODY)
    assert ("r1", None) in [(limit.rule, limit.quota) for limit in limits]
    assert all(limit.quota is None for limit in limits if limit.rule in ("r0", "r1"))
    for quota in policy.quotas_of(1):
        assert not quota.counts(kind)


@pytest.mark.parametrize("per", ["address", "relay"])
def test_a_quota_of_a_day_counts_what_its_rule_names(tmp_path: Path, per: str) -> None:
    """Also what makes room: it frees nothing of an address."""
    quota = f'quota = {{ per = "{per}", bytes = 9 }}'
    policy = rules(tmp_path, quota, f"match = {{ kinds = [5, 9000] }}\n{quota}")
    for kind, counting in ((1, ["r0"]), (kinds.DELETION, ["r1"]), (kinds.PUT_USER, ["r1"])):
        limits = policy.usage_limits(event_by(alice, kind), NOBODY)
        counted = [limit.rule for limit in limits if limit.quota is not None]
        assert [rule for rule in counted if rule in ("r0", "r1")] == counting


def test_what_an_operator_brings_in_is_not_measured(tmp_path: Path) -> None:
    policy = rules(tmp_path, RATE, QUOTA)
    event = event_by(alice, 1)
    assert list(policy.usage_limits(event, replace(NOBODY, origin=Origin.TRUSTED_IMPORT))) == []
    assert len(policy.usage_limits(event, replace(NOBODY, origin=Origin.IMPORT))) == 2


def test_the_packaged_rules_measure_nothing_that_is_stored(tmp_path: Path) -> None:
    policy = load(tmp_path, MEMORY_SYSTEMS)
    for kind in (0, 1, 9, 30023, 30095):
        event = event_by(alice, kind)
        assert not any(quota.accounts_of(event, "tea") for quota in policy.quotas_of(kind)), kind
        assert met(policy, kind) == []


@pytest.mark.parametrize(
    "kind", [kinds.PUT_USER, kinds.REMOVE_USER, kinds.CREATE_GROUP, kinds.CREATE_INVITE]
)
def test_changes_of_groups_have_a_limit_per_network_and_a_total(tmp_path: Path, kind: int) -> None:
    """One /24 of made-up keys filled 1 GiB of memory in three minutes, for good."""
    policy = load(tmp_path, MEMORY_SYSTEMS)
    limits = policy.usage_limits(event_by(alice, kind), NOBODY)
    of = {each.quota.per: each.quota.bytes for each in limits if each.quota and each.quota.bytes}
    assert of[Per.ADDRESS] <= 4_000_000
    assert 20 * of[Per.NETWORK] <= of[Per.RELAY] <= 64_000_000


def test_in_an_open_relay_whatever_only_some_may_read_has_a_total_of_its_network(
    tmp_path: Path,
) -> None:
    (tmp_path / "10-preset.toml").write_bytes((PRESETS / "open.toml").read_bytes())
    policy = load(tmp_path, MEMORY_SYSTEMS)
    of_many = {Who.ANYONE, Who.KNOWN, Who.GROUP, Who.VISIBLE, Who.ADMIN}
    guarded = {
        kind
        for rule in policy.read_rules
        if rule.match.kinds is not None and rule.match.quiet is None
        if rule.readers.isdisjoint(of_many)
        for low, high in rule.match.kinds.ranges
        for kind in range(low, high + 1)
    }
    stored = {kind for kind in guarded if not 20_000 <= kind < 30_000}
    stored.difference_update(kinds.GROUP_MEMBER_NOTICES)  # signed by the relay
    assert {4, 78, 1059, 1080, 30078, 31234} <= stored
    lacking = {
        kind
        for kind in stored
        if "private messages and records of a network"
        not in [limit.rule for limit in policy.usage_limits(event_by(alice, kind), NOBODY)]
    }
    assert lacking == set()


def test_short_values_of_a_change_of_a_group_count_with_the_memory_that_they_take() -> None:
    in_bytes, in_events, in_signed = (
        Rate("day", Per.ADDRESS, 9, 1, counts=counts)
        for counts in (Unit.BYTES, Unit.EVENTS, Unit.SIGNED)
    )
    codes = [["code", f"{number}"] for number in range(100)]
    invites, note = (event_by(alice, kind, codes) for kind in (kinds.CREATE_INVITE, 1))
    assert in_bytes.cost_of(note) == len(note.raw)
    assert in_bytes.cost_of(invites) == len(invites.raw) + 200 * 64
    assert in_events.cost_of(invites) == 1
    assert [in_signed.cost_of(invites, signed) for signed in (0, 9, 10)] == [0, 9, 9]


@pytest.mark.parametrize("kind", [kinds.DELETION, kinds.VANISH])
def test_what_unknown_senders_leave_for_ever_has_a_limit_per_address_and_a_total(
    tmp_path: Path, kind: int
) -> None:
    """One address is far from the total."""
    policy = load(tmp_path, MEMORY_SYSTEMS)
    known = replace(NOBODY, who=NOBODY.who | {Who.KNOWN})
    login = replace(NOBODY, authenticated_who=NOBODY.authenticated_who | {Who.KNOWN})
    unknown, *others = (
        [
            limit.quota
            for limit in policy.usage_limits(event_by(alice, kind), facts)
            if limit.quota is not None and limit.quota.bytes is not None
        ]
        for facts in (NOBODY, known, login)
    )
    total = sum(quota.bytes or 0 for quota in unknown if quota.per is Per.RELAY)
    assert total >= 20 * min(quota.bytes or 0 for quota in unknown if quota.per is Per.ADDRESS) > 0
    assert all(quota.per is not Per.RELAY for quotas in others for quota in quotas)


def test_a_bucket_is_named_for_all_that_its_rule_says(tmp_path: Path) -> None:
    def name(text: str) -> str:
        [rule] = [rule for rule in rules(tmp_path, text).write_rules if rule.place.name == "r0"]
        assert rule.usage_limit is not None
        assert rule.usage_limit.rate is not None
        return rule.usage_limit.rate.name

    assert name(RATE) == name(f"{RATE}  # said otherwise")
    assert name(RATE) != name(RATE.replace("3", "4"))
    assert name(RATE) != name(f"match = {{ kinds = [1] }}\n{RATE}")


def test_explain_names_them_and_says_nothing_of_how_much_is_left(tmp_path: Path) -> None:
    policy = rules(tmp_path, f"match = {{ kinds = [1] }}\n{RATE}")
    steps = policy.explain(event_by(alice, 1), NOBODY).steps
    asked = [step for step in steps if step.stage is Stage.QUOTA]
    assert [(step.place.name, step.matched, step.verdict) for step in asked] == [("r0", True, None)]


def test_rules_are_found_by_kind_in_their_order(tmp_path: Path) -> None:
    policy = rules(
        tmp_path,
        'match = { kinds = [1] }\nwrite = ["owner"]',
        'write = ["known"]',
        'match = { kinds = [1, "5-9"] }\npow = 3',
        'match = { kinds = ["0-65535"] }\npow = 2',
        "match = { kinds = [] }\npow = 1",
    )
    found = RulesByKind(policy.write_rules)

    def own(kind: int) -> list[str]:
        return [rule.place.name for rule in found.of(kind) if rule.place.name[:1] == "r"]

    assert own(1) == ["r0", "r1", "r2", "r3"]
    assert own(7) == ["r1", "r2", "r3"]
    assert own(30023) == ["r1", "r3"]


def test_with_write_the_words_of_the_admin_are_for_whom_it_keeps_out(tmp_path: Path) -> None:
    policy = rules(tmp_path, f'write = ["anyone"]\nreject = "agents only"\n{RATE}')
    [limit] = policy.usage_limits(event_by(alice, 1), NOBODY)
    assert limit.reject is None


def test_what_names_a_message_of_a_group_has_the_limit_of_a_network_on_an_open_relay() -> None:
    """A reader passes over rows of groups that he may not see, whatever kind they have."""
    policy = policy_of("open")
    assert policy.groups.derived
    for kind in policy.groups.derived:
        for tags in ([], [["h", "tea"]]):
            limits = policy.usage_limits(event_by(alice, kind, tags), NOBODY)
            assert Per.NETWORK in {each.quota.per for each in limits if each.quota}, kind


@pytest.mark.parametrize("kind", [0, 1, kinds.DELETION, 1059, 9735, 10002, 30023, 40003])
def test_what_expires_has_the_limit_of_a_network_on_an_open_relay(kind: int) -> None:
    """A reader passes over expired rows until a sweep has removed them, whatever kind they have."""
    limits = policy_of("open").usage_limits(
        event_by(alice, kind, [["expiration", "4102444800"]]), NOBODY
    )
    assert "expiring events of a network" in {each.rule for each in limits if each.quota}


@pytest.mark.parametrize("kind", [kinds.VANISH, 9007, 9021, 20001])
def test_it_does_not_bound_what_has_limits_of_its_own(kind: int) -> None:
    limits = policy_of("open").usage_limits(
        event_by(alice, kind, [["expiration", "4102444800"]]), NOBODY
    )
    assert "expiring events of a network" not in {each.rule for each in limits}
