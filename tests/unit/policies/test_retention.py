"""`[[retention]]` and `[memory.nmem]`: what they come to, and each fault in its line."""

from __future__ import annotations

import tomllib
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from policies.describe import match_text
from policies.lint import warnings_of
from policies.retention import MAX_OLD_DAYS
from relay.access.read_rules import Match
from relay.groups.group import Groups
from relay.lifecycle.retention import MaxAge, MaxAmount, NeverBefore, Scope
from relay.lifecycle.rows import Keep, Stored, UpTo
from relay.lifecycle.versions import History
from relay.nostr.event import signed
from relay.nostr.kinds import KindSet
from tests.cast import alice, bob, owner, robot, rover
from tests.harness.folders import faults_of, loaded

if TYPE_CHECKING:
    from relay.nostr.keys import SecretKey

BAD = tomllib.loads((Path(__file__).parent / "retention_faults.toml").read_text())["fault"]


@pytest.mark.parametrize("bad", BAD, ids=[bad["says"][:60] for bad in BAD])
def test_a_fault_names_the_line_and_the_nearest_word(
    tmp_path: Path, bad: dict[str, str | int]
) -> None:
    assert faults_of(tmp_path, a=str(bad["text"])) == [f"a.toml:{bad['line']}: {bad['says']}"]


def test_all_faults_of_a_rule_are_told_at_once(tmp_path: Path) -> None:
    text = """
    [[retention]]
    name = "x"
    days = 0
    bytes = "much"
    never_before = { kinds = ["x"], same = 3 }
    """
    assert [fault.split(": ")[0] for fault in faults_of(tmp_path, a=text)] == [
        "a.toml:4",
        "a.toml:5",
        "a.toml:6",
        "a.toml:6",
    ]


def test_each_key_comes_to_a_rule_with_its_place(tmp_path: Path) -> None:
    found = loaded(
        tmp_path,
        a="""
        [memory.nmem]
        sweep = false
        [[retention]]
        name = "tools"
        match = { kinds = [30095] }
        days = 14
        count = { per = "hk", max = 200 }
        bytes = 9000
        [[retention]]
        name = "notes"
        match = { kinds = [1] }
        bytes = 5000
        """,
    ).sweeps
    found = replace(found, rules=tuple(rule for rule in found.rules if "a.toml" in rule.place))
    tools = Match(KindSet.of(30095))
    assert [(rule.name, rule.match, rule.limit) for rule in found.rules] == [
        ("tools", tools, MaxAge(14)),
        ("tools", tools, MaxAmount(Scope.HK, 200, 9000)),
        ("notes", Match(KindSet.of(1)), MaxAmount(None, None, 5000)),
    ]
    assert [rule.place.rpartition("a.toml:")[2] for rule in found.rules] == ["4", "4", "10"]


@pytest.mark.proves("A-18")
def test_packaged_a_clear_never_goes_before_what_it_clears(tmp_path: Path) -> None:
    found = loaded(tmp_path, a="").sweeps
    before = NeverBefore(KindSet.of(30094, 30095), ("author", "hk"), UpTo.TS)
    assert found.waiting == ((Match(KindSet.of(30096)), before),)
    of_members = {"notices of membership", "who joined and left the relay"}
    assert {rule.name for rule in found.rules} == {*of_members, "nmem observations"}


ACTORS = f"""
    [actors]
    owners = ["{owner.npub}"]
    agents = ["{robot.npub}"]
    [[actors.household]]
    name = "home"
    owner = "{alice.npub}"
    agents = ["{rover.npub}"]
    """


def test_words_for_authors_are_the_keys_of_the_files(tmp_path: Path) -> None:
    rule = '[[retention]]\nname = "n"\nmatch = { kinds = [1], authors = [%s] }\ndays = 3\n'
    agents, owners = {robot.pubkey, rover.pubkey}, {owner.pubkey, alice.pubkey}
    for number, (words, keys) in enumerate(
        [
            ('"agent"', agents),
            ('"owner"', owners),
            ('"owner", "agent"', owners | agents),
            (f'"agent", "{bob.npub}"', agents | {bob.pubkey}),
            (f'"{bob.npub}"', {bob.pubkey}),
        ]
    ):
        folder = tmp_path / str(number)
        folder.mkdir()
        # Whichever file comes first.
        found = loaded(folder, a=rule % words, b=ACTORS)
        [match] = [rule.match for rule in found.sweeps.rules if rule.name == "n"]
        assert match.authors == frozenset(keys)
        said = match_text(match)
        assert said.startswith("notes (1) by ")
        assert ("agent" in said, "owner" in said) == ("agent" in words, "owner" in words)
        assert (bob.pubkey[:12] in said) is (bob.npub in words)


def test_a_word_for_nobody_matches_nothing_and_is_told(tmp_path: Path) -> None:
    rule = '[[retention]]\nname = "n"\nmatch = { kinds = [1], authors = ["agent"] }\ndays = 3\n'
    found = loaded(tmp_path, a=rule)
    [match] = [rule.match for rule in found.sweeps.rules if rule.name == "n"]
    assert match.authors == frozenset()
    note = signed(robot.pubkey, 1, 1, [], "", lambda _: "0" * 128)
    assert not match.matches(Stored(1, note), Groups())
    assert [warning.text for warning in warnings_of(found)] == [
        '"n" can never match: [actors] agents is empty'
    ]


def test_every_part_of_a_rule_is_about_the_same_authors(tmp_path: Path) -> None:
    found = loaded(
        tmp_path,
        a=ACTORS,
        b="""
        [[retention]]
        name = "chatter"
        match = { kinds = [30023], authors = ["agent"] }
        keep = "first"
        days = 3
        never_before = { kinds = [1], same = ["author"] }
        [[retention]]
        name = "for good"
        match = { kinds = [30023], authors = ["owner"] }
        never = true
        """,
    )
    agents = frozenset({robot.pubkey, rover.pubkey})
    owners = frozenset({owner.pubkey, alice.pubkey})
    [sweep] = [rule for rule in found.sweeps.rules if rule.name == "chatter"]
    [waiting] = [match for match, _ in found.sweeps.waiting if match.kinds == KindSet.of(30023)]
    [never] = found.sweeps.never
    assert sweep.match.authors == waiting.authors == agents
    assert never.authors == owners
    by_agent, by_owner = [
        signed(key, 1, 30023, [["d", "x"]], "", lambda _: "0" * 128)
        for key in (rover.pubkey, owner.pubkey)
    ]
    assert found.keep.keep_of(by_agent) is Keep.FIRST
    assert found.keep.keep_of(by_owner) is Keep.LATEST


def test_a_rule_that_is_switched_off_lets_nothing_go(tmp_path: Path) -> None:
    off = '[[retention]]\nname = "n"\nenabled = false'
    on = '[[retention]]\nname = "n"\nmatch = { kinds = [1] }\ndays = 3'
    assert "n" in [rule.name for rule in loaded(tmp_path, a=on).sweeps.rules]
    assert "n" not in [rule.name for rule in loaded(tmp_path, a=on, b=off).sweeps.rules]


def test_a_rule_about_going_leaves_alone_how_versions_are_kept(tmp_path: Path) -> None:
    found = loaded(tmp_path, a='include = ["aman-app"]')
    event = signed(robot.pubkey, 1, 30095, [["d", "x"]], "", lambda _: "0" * 128)
    assert found.keep.keep_of(event) is Keep.FIRST
    assert {rule.name for rule in found.sweeps.rules if rule.name.startswith("aman-app")} == {
        "aman-app summaries",
        "aman-app tool history",
        "aman-app tool history of one key",
        "aman-app clears",
    }


def test_rules_that_say_the_same_are_the_same(tmp_path: Path) -> None:
    """A reload that changes nothing lets a sweep go on."""
    assert loaded(tmp_path, a="").sweeps == loaded(tmp_path, a="").sweeps


def test_what_others_wait_for_goes_first(tmp_path: Path) -> None:
    found = loaded(tmp_path, a='include = ["aman-app"]').sweeps
    kinds = [step.rule.match.kinds for step in found.in_sweep_order()]
    assert kinds[-2:] == [KindSet.of(30096)] * 2


@pytest.mark.parametrize("days", [1, 10**18])
def test_any_number_of_days_is_a_time(days: int) -> None:
    row = Stored(1, signed(robot.pubkey, 5, 1, [], "", lambda _: "0" * 128))
    assert MaxAge(days).before(1000) <= row.event.created_at


def test_the_last_rule_about_a_row_decides_its_history(tmp_path: Path) -> None:
    found = loaded(
        tmp_path,
        a=f"""
        include = ["memory-history"]
        [actors]
        agents = ["{robot.npub}"]
        [[retention]]
        name = "articles"
        match = {{ kinds = ["30023-30024"], authors = ["agent"] }}
        history = {{ count = 5 }}
        [[retention]]
        name = "not of drafts"
        match = {{ kinds = [30024] }}
        history = false
        """,
    ).keep.history

    def kept(kind: int, who: SecretKey = alice) -> History | None:
        event = signed(who.pubkey, 1, kind, [["d", "x"]], "", lambda _: "0" * 128)
        return found.of(Stored(1, event))

    assert kept(30078) == History(20, 90)
    assert kept(30023, robot) == History(5)
    assert kept(30023) is kept(30024, robot) is kept(1) is kept(39002) is None


@pytest.mark.parametrize("days", [100_000, MAX_OLD_DAYS])
def test_old_versions_may_be_kept_for_longer_than_anybody_lives(tmp_path: Path, days: int) -> None:
    text = f"""
        [[retention]]
        name = "all"
        match = {{ kinds = [30023] }}
        history = {{ count = 5, days = {days} }}
        """
    (rule,) = (rule for rule in loaded(tmp_path, a=text).keep.history.rules if rule.name == "all")
    assert rule.history == History(5, days)


def test_a_history_of_what_is_never_replaced_is_told(tmp_path: Path) -> None:
    loaded_rules = loaded(
        tmp_path,
        a="""
        [[retention]]
        name = "notes"
        match = { kinds = [1, 9] }
        history = { count = 5 }
        [[retention]]
        name = "preferences"
        match = { kinds = [30093] }
        history = { count = 5 }
        """,
    )
    (warning,) = map(str, warnings_of(loaded_rules))
    assert '"notes" history has no effect: events of these kinds are never replaced' in warning
