"""What the recipes count and let go, which no table of cases can: how fast, how much, how long."""

from __future__ import annotations

from itertools import count
from typing import TYPE_CHECKING

import pytest

from policies.cases import NOW, Cast
from relay.access.quotas import Per
from relay.cli.policy.worlds import candidate_in, supposed_world
from relay.groups.group import Groups
from relay.lifecycle.rows import Keep
from relay.nostr import kinds
from relay.nostr.event import signed
from relay.nostr.nip13 import difficulty
from relay.write.candidate import Sender
from relay.write.world import facts_of
from tests.cast import owner, person, robot
from tests.harness.relay_in_process import Home, policy_of, store_of
from tests.unit.policies import readme

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from policies import PolicySet
    from relay.access.quotas import UsageLimit
    from relay.facts import Facts
    from relay.nostr.event import Event
    from tests.unit.policies.readme import Recipe

    Limits = Callable[[str, str, str], dict[str, UsageLimit]]

mallory = person("mallory")
RECIPES = {recipe.title: recipe for recipe in readme.recipes()}


@pytest.fixture
def limits_of(tmp_path: Path) -> Limits:
    """The limits by rule that run for an event of somebody, under a recipe over a preset."""

    def limits(recipe: str, preset: str, by: str) -> dict[str, UsageLimit]:
        policy = RECIPES[recipe].laid_over(preset, tmp_path)
        event, facts = sent(policy, by, 9, ["h", "tea"])
        limits = {limit.rule: limit for limit in policy.usage_limits(event, facts)}
        limits.pop("messages in groups of a network", None)  # of the preset "open"
        return limits

    return limits


def sent(policy: PolicySet, by: str, kind: int, *tags: list[str]) -> tuple[Event, Facts]:
    """An event of somebody on a relay that stores nothing yet."""
    cast = Cast(policy.actors)
    event = signed(cast.key(by), NOW, kind, list(tags), "", lambda _: "0" * 128)
    world = supposed_world(event, None, policy, cast.actors, Groups(), frozenset(), NOW)
    return event, facts_of(candidate_in(event, policy, Sender()), world)


def test_agents_have_thirty_a_minute_and_people_any_number(limits_of: Limits) -> None:
    (limit,) = limits_of("Agents at most 30 a minute", "group", "agent").values()
    assert limit.rate is not None
    assert (limit.rate.per, limit.rate.burst, limit.rate.refill) == (Per.AUTHOR, 30, 30)
    assert limits_of("Agents at most 30 a minute", "group", "alice") == {}


def test_agents_that_answer_have_ten_a_minute(limits_of: Limits) -> None:
    found = limits_of("Agents that may only talk when mentioned", "group", "agent")
    assert {rule: limit.rate and limit.rate.refill for rule, limit in found.items()} == {
        "agents take their time": 10
    }


async def test_an_agent_that_names_the_group_by_a_message_alone_has_to_answer_too() -> None:
    recipe = RECIPES["Agents that may only talk when mentioned"].policy
    async with store_of("sqlite") as store, Home(store, policy_of("group", recipe)) as here:
        await here.do(owner, kinds.CREATE_GROUP, h="tea")
        await here.do(owner, kinds.PUT_USER, ["p", robot.pubkey], h="tea")
        message = await here.do(owner, 9, h="tea")
        said = here.made(robot, kinds.COMMENT, ["E", message.id])
        why = "restricted: agents only answer here: quote the message and name its author"
        assert await here.take(said, logins=[robot.pubkey]) == [(False, why)]
        await here.do(robot, kinds.COMMENT, ["e", message.id], ["p", owner.pubkey])
        await here.do(robot, kinds.COMMENT, ["E", "0" * 64])


OF_ALL = {"bytes of a network"}
"""Rules of the preset."""


def test_strangers_of_a_community_have_a_pace_and_a_quota(limits_of: Limits) -> None:
    found = limits_of("A public community", "open", "stranger")
    assert set(found) == {"nobody floods", "nobody fills the disk", *OF_ALL}
    quota = found["nobody fills the disk"].quota
    assert quota is not None
    assert (quota.per, quota.bytes, quota.events) == (Per.ADDRESS, 5_000_000, None)
    assert limits_of("A public community", "open", "owner") == {}


async def test_a_key_that_asks_to_join_a_community_is_known_when_an_admin_says_so() -> None:
    recipe = RECIPES["A public community"].policy.replace("pow    = 20", "pow    = 4")
    async with store_of("sqlite") as store, Home(store, policy_of("open", recipe)) as here:
        await here.do(owner, kinds.CREATE_GROUP, h="lobby")
        requests = (here.made(mallory, kinds.JOIN_REQUEST, h="lobby") for _ in count())
        worked = next(each for each in requests if difficulty(each.id) >= 4)
        assert await here.take(worked) == [(False, "restricted: pending review")]
        notes = (here.made(mallory, 1) for _ in count())
        note = next(each for each in notes if not difficulty(each.id))
        assert await here.take(note) == [(False, "pow: difficulty 0 is less than 4")]
        await here.do(owner, kinds.PUT_USER, ["p", mallory.pubkey], h="lobby")
        await here.do(mallory, 1)


def test_each_has_the_pace_of_one_rule(limits_of: Limits) -> None:
    assert set(limits_of("Another pace for some", "open", "feeds")) == {"the feed reader", *OF_ALL}
    assert set(limits_of("Another pace for some", "open", "stranger")) == {"everybody", *OF_ALL}


def test_a_group_and_a_connection_have_caps(limits_of: Limits) -> None:
    found = limits_of("Size caps", "group", "owner")
    quota, rate = found["groups are no file store"].quota, found["one connection, one person"].rate
    assert quota is not None
    assert rate is not None
    assert (quota.per, rate.per) == (Per.GROUP, Per.CONNECTION)


def test_who_joined_by_asking_fills_no_disk(limits_of: Limits) -> None:
    (limit,) = limits_of("A relay that anyone may join", "group", "alice").values()
    assert limit.quota is not None
    assert (limit.quota.per, limit.quota.bytes) == (Per.ADDRESS, 50_000_000)
    assert limits_of("A relay that anyone may join", "group", "agent") == {}


@pytest.mark.parametrize("recipe", RECIPES.values(), ids=RECIPES)
def test_what_strangers_may_store_with_the_preset_group_has_a_limit_per_address(
    recipe: Recipe, tmp_path: Path
) -> None:
    policy = recipe.laid_over("group", tmp_path)
    rule = next(each for each in policy.write_rules if each.place.name == "known people write")
    excepted = [span for each in rule.excepts if each.kinds for span in each.kinds.ranges]
    unlimited = []
    for kind in {1, *(kind for low, high in excepted for kind in range(low, high + 1))}:
        event, facts = sent(policy, "stranger", kind)
        if kinds.is_ephemeral(kind) or policy.refusal(event, facts) is not None:
            continue
        limits = [limit.quota or limit.rate for limit in policy.usage_limits(event, facts)]
        if not any(limit.per is Per.ADDRESS for limit in limits if limit is not None):
            unlimited.append(kind)
    assert unlimited == []


def causes_of(recipe: str, preset: str, folder: Path) -> list[tuple[str, str]]:
    """(rule, why rows go) of the recipe's own rules."""
    policy = RECIPES[recipe].laid_over(preset, folder)
    return [
        (rule.name, str(rule.limit))
        for rule in policy.sweeps.rules
        if rule.place.startswith(str(folder))
    ]


def test_tool_history_is_kept_for_14_days_and_its_first_version_as_before(tmp_path: Path) -> None:
    recipe = "Keep tool history for 14 days"
    assert causes_of(recipe, "group", tmp_path) == [
        ("tool history for 14 days", "older than 14 days")
    ]
    policy = RECIPES[recipe].laid_over("group", tmp_path)
    assert [rule.keep for rule in policy.keep.rules if rule.name == "tool history"] == [Keep.FIRST]


def test_chats_and_pictures_go_by_age_number_and_size(tmp_path: Path) -> None:
    assert causes_of("Chats of a month, pictures of a week", "open", tmp_path) == [
        ("chat", "older than 30 days"),
        ("what agents chat, for a week", "older than 7 days"),
        ("no group has more than 50,000 messages", "more than 50000 events per group"),
        ("files are for a week, and 1 GB at most", "older than 7 days"),
        ("files are for a week, and 1 GB at most", "more than 1000000000 bytes"),
    ]


def test_an_article_keeps_its_first_version(tmp_path: Path) -> None:
    policy = RECIPES["Only the first version of an article stays"].laid_over("open", tmp_path)
    keep = {rule.name: rule.keep for rule in policy.keep.rules}
    assert keep["articles are final"] is Keep.FIRST
