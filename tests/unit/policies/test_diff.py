"""policies/diff.py: two sets of policies over one history."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from policies.changes import rule_changes
from policies.diff import Comparison, Effect, Finding
from relay.cli.policy.worlds import HistoryJudge
from relay.groups.group import Groups, replayed
from tests.cast import alice, bob, carol, owner, person, robot
from tests.harness.folders import loaded
from tests.unit.policies.facts import NOW

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from policies import PolicySet
    from relay.nostr.event import Event

RELAY = person("relay")
ACTORS = f'[actors]\nowners = ["{owner.pubkey}"]\nagents = ["{robot.pubkey}"]\n'


@pytest.fixture
def sets(tmp_path: Path) -> Sets:
    return Sets(tmp_path)


class Sets:
    """Sets of policies, each with the people of the cast."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._number = 0

    def of(self, text: str, actors: str = ACTORS) -> PolicySet:
        self._number += 1
        home = self._folder / str(self._number)
        home.mkdir()
        return loaded(home, a=actors, b=text)


def findings(old: PolicySet, new: PolicySet, events: Sequence[Event]) -> Sequence[Finding]:
    return compared(old, new, events).findings


def compared(old: PolicySet, new: PolicySet, events: Sequence[Event]) -> Comparison:
    groups = replayed(Groups(), events, RELAY.pubkey)
    result = Comparison(
        old,
        new,
        groups,
        relay=RELAY.pubkey,
        now=NOW,
        judge_of=lambda policy: HistoryJudge(policy, RELAY.pubkey, NOW),
    )
    for event in events:
        result.take(event)
    return result


def a_group(*members: str) -> list[Event]:
    """Private, with these members."""
    return [
        owner.sign(9007, [["h", "tea"]], "", NOW - 100),
        *(owner.sign(9000, [["h", "tea"], ["p", key]], "", NOW - 99) for key in members),
        RELAY.sign(39000, [["d", "tea"], ["private"]], "", NOW - 90),
    ]


def test_the_same_policies_make_no_difference(sets: Sets) -> None:
    events = [*a_group(alice.pubkey), alice.sign(9, [["h", "tea"]], "hi", NOW)]
    same = compared(sets.of(""), sets.of(""), events)
    assert same.findings == []
    assert same.events == len(events)


def test_what_a_new_rule_refuses_is_counted_under_it_with_its_line(sets: Sets) -> None:
    new = sets.of(
        '\n[[rule]]\nname = "short"\nmatch = { kinds = [1], content_chars = 3 }\n'
        'write = ["owner"]\nreject = "be brief"\n'
    )
    notes = [alice.sign(1, [], "x" * length, NOW + length) for length in range(10)]
    events = [*a_group(alice.pubkey), *notes, owner.sign(1, [], "long enough", NOW)]
    [finding] = findings(sets.of(""), new, events)
    assert (finding.effect, finding.rule, finding.line) == (Effect.REFUSED, "short", 2)
    assert finding.file.endswith("/b.toml")
    assert finding.says == "restricted: be brief"
    assert finding.events == 6
    assert finding.bytes == sum(len(note.raw) for note in notes[4:])
    assert finding.examples == [note.id for note in notes[4:7]]  # three are enough


def test_members_count_as_they_were_then(sets: Sets) -> None:
    left = owner.sign(9001, [["h", "tea"], ["p", alice.pubkey]], "", NOW - 10)
    before, after = alice.sign(1, [], "a", NOW - 50), alice.sign(1, [], "b", NOW)
    events = [*a_group(alice.pubkey), before, left, after]
    old = sets.of('[[rule]]\nname = "known people write"\nenabled = false\n')
    [finding] = findings(old, sets.of(""), events)
    assert finding.rule == "known people write"
    assert finding.examples == [after.id]  # she was known when she wrote the first


def test_what_both_sets_refuse_is_no_difference(sets: Sets) -> None:
    result = compared(sets.of(""), sets.of(""), [carol.sign(1, [], "", NOW)])
    assert result.findings == []
    assert result.refused_by_both == 1


def test_what_the_relay_signs_is_asked_of_nobody(sets: Sets) -> None:
    new = sets.of('[[rule]]\nname = "nothing"\nmatch = { h = false }\nwrite = ["nobody"]\n')
    assert findings(sets.of(""), new, [RELAY.sign(39000, [["d", "tea"]], "", NOW)]) == []


def test_windows_of_time_and_logins_are_no_difference(sets: Sets) -> None:
    new = sets.of('[limits]\ncreated_at_lower = 60\n[auth]\nwrites = "always"\n')
    assert findings(sets.of(""), new, [owner.sign(1, [["-"]], "", NOW - 10_000)]) == []


def test_limits_that_shrink_are_a_difference(sets: Sets) -> None:
    new = sets.of("[limits]\nmax_content_length = 3\n")
    [finding] = findings(sets.of(""), new, [owner.sign(1, [], "long", NOW)])
    assert finding.rule == "[limits] max_content_length"


def test_a_deletion_counts_as_one_that_found_its_target(sets: Sets) -> None:
    deletion = carol.sign(5, [["e", "0" * 64]], "", NOW)
    old = sets.of('[[rule]]\nname = "known people write"\nenabled = false\n')
    assert findings(old, sets.of(""), [deletion]) == []


def test_readers_from_whom_rows_are_hidden_are_listed(sets: Sets) -> None:
    new = sets.of('[[rule]]\nname = "stay"\nmatch = { kinds = [0] }\nread = ["member", "author"]\n')
    profile = alice.sign(0, [], "{}", NOW)
    [finding] = findings(sets.of(""), new, [*a_group(alice.pubkey), profile])
    assert (finding.effect, finding.rule, finding.examples) == (Effect.HIDDEN, "stay", [profile.id])
    assert finding.audiences == {"anonymous readers": 1, "agents": 1, "owners": 1}


def test_outside_groups_nobody_is_in_the_group(sets: Sets) -> None:
    new = sets.of('[[rule]]\nname = "mine"\nmatch = { kinds = [0] }\nread = ["owner"]\n')
    [finding] = findings(sets.of(""), new, [*a_group(alice.pubkey), alice.sign(0, [], "", NOW)])
    assert set(finding.audiences) == {
        "anonymous readers",
        "members of other groups",
        "agents",
        "its author",
    }


def test_who_is_banned_is_refused_and_what_they_wrote_is_hidden(sets: Sets) -> None:
    new = sets.of("")
    new = new.with_actors(replace(new.actors, banned=frozenset({alice.pubkey})))
    note = alice.sign(1, [], "", NOW)
    found = findings(sets.of(""), new, [*a_group(alice.pubkey), note, bob.sign(0, [], "", NOW)])
    refused, hidden = [each for each in found if note.id in each.examples]
    assert (refused.effect, hidden.effect, hidden.rule) == (Effect.REFUSED, Effect.HIDDEN, "bans")
    assert {"anonymous readers", "owners", "its author"} <= set(hidden.audiences)


def test_rows_of_a_group_are_listed_by_membership(sets: Sets) -> None:
    new = sets.of(
        '[[rule]]\nname = "minutes"\nmatch = { kinds = [9], h = true }\nread = ["admin", "owner"]\n'
    )
    said = bob.sign(9, [["h", "tea"], ["p", alice.pubkey]], "hi", NOW)
    [finding] = findings(sets.of(""), new, [*a_group(alice.pubkey, bob.pubkey), said])
    # Whoever is outside the private group could not read it before either.
    assert finding.audiences == {
        "members of its group": 1,
        "its author": 1,
        "the keys in its p tags": 1,
    }


def test_what_a_rule_hid_and_no_rule_hides_now_is_shown(sets: Sets) -> None:
    old = sets.of('[[rule]]\nname = "stay"\nmatch = { kinds = [0] }\nread = ["member", "author"]\n')
    profile = alice.sign(0, [], "{}", NOW)
    [finding] = findings(old, sets.of(""), [profile])
    assert (finding.effect, finding.rule) == (Effect.SHOWN, "stay")
    assert "anonymous readers" in finding.audiences


def test_somebody_who_is_no_owner_any_more_loses_what_owners_read(sets: Sets) -> None:
    new = sets.of("", ACTORS.replace(owner.pubkey, bob.pubkey))
    said = alice.sign(9, [["h", "tea"]], "hi", NOW)
    found = findings(sets.of(""), new, [*a_group(alice.pubkey)[1:], said])
    hidden = [each for each in found if each.effect is Effect.HIDDEN]
    assert f"the key {owner.pubkey[:12]}…" in {name for each in hidden for name in each.audiences}


def test_only_by_is_a_question_to_a_filter(sets: Sets) -> None:
    rule = '[[rule]]\nname = "stay"\nmatch = { kinds = [0] }\nread = ["anyone"]\n'
    new = sets.of(rule + 'only_by = ["authors"]\n')
    assert findings(sets.of(""), new, [alice.sign(0, [], "{}", NOW)]) == []


def test_versions_that_are_kept_otherwise_are_listed(sets: Sets) -> None:
    new = sets.of('[[retention]]\nname = "final"\nmatch = { kinds = [30023] }\nkeep = "first"\n')
    article = owner.sign(30023, [["d", "x"]], "", NOW)
    [finding] = findings(sets.of(""), new, [article, owner.sign(1, [], "", NOW)])
    assert (finding.effect, finding.rule, finding.says, finding.events) == (
        Effect.KEPT,
        "final",
        "first instead of latest",
        1,
    )


# -- what would be swept ---------------------------------------------------------------------------

DAY = 86_400


def test_what_is_too_old_by_a_new_rule_would_be_swept(sets: Sets) -> None:
    new = sets.of('[[retention]]\nname = "week"\nmatch = { kinds = [9] }\ndays = 7\n')
    chats = [alice.sign(9, [["h", "tea"]], "", NOW - days * DAY) for days in range(20)]
    [finding] = findings(sets.of(""), new, [*a_group(alice.pubkey), *chats])
    assert (finding.effect, finding.rule, finding.line) == (Effect.SWEPT, "week", 1)
    assert finding.says == "older than 7 days"
    assert finding.events == 12
    assert finding.bytes == sum(len(chat.raw) for chat in chats[8:])
    assert finding.examples == [chat.id for chat in chats[8:11]]


def test_what_the_old_rule_lets_go_already_is_no_difference(sets: Sets) -> None:
    rule = '[[retention]]\nname = "old"\nmatch = {{ kinds = [9] }}\ndays = {}\n'
    chats = [alice.sign(9, [], "", NOW - days * DAY) for days in range(20)]
    actors = '[[rule]]\nname = "known people write"\nenabled = false\n'
    old, new = sets.of(actors + rule.format(10)), sets.of(actors + rule.format(5))
    [finding] = findings(old, new, chats)
    assert finding.events == 5  # six to ten days old
    assert findings(new, old, chats) == []


@pytest.mark.parametrize(
    ("limit", "gone"),
    [
        ('count = { per = "author", max = 3 }', [6, 5, 4, 3]),
        ('count = { per = "hk", max = 3 }', [6, 5, 4]),
        ("bytes = 1500", None),
    ],
)
def test_the_oldest_that_are_too_many_would_be_swept(
    sets: Sets, limit: str, gone: list[int] | None
) -> None:
    new = sets.of(f'[[retention]]\nname = "few"\nmatch = {{ kinds = [9] }}\n{limit}\n')
    off = sets.of('[[rule]]\nname = "known people write"\nenabled = false\n')
    chats = [alice.sign(9, [["hk", "a"]], "", NOW - age) for age in range(7)]
    chats[3] = alice.sign(9, [["hk", "b"]], "", NOW - 3)
    found = findings(off, new, chats)
    [finding] = [each for each in found if each.effect is Effect.SWEPT]
    if gone is None:
        held, most = 0, 0
        for chat in chats:  # the newest comes first
            held += len(chat.raw)
            most += held <= 1500
        gone = list(range(most, 7))
    assert finding.events == len(gone)
    assert finding.bytes == sum(len(chats[at].raw) for at in gone)
    assert set(finding.examples) <= {chats[at].id for at in gone}


def test_a_rule_that_both_sets_have_sweeps_nothing_anew(sets: Sets) -> None:
    few = (
        '[[rule]]\nname = "known people write"\nenabled = false\n'
        '[[retention]]\nname = "few"\nmatch = { kinds = [9] }\n'
        'count = { per = "author", max = 1 }\n'
    )
    chats = [alice.sign(9, [], "", NOW - age) for age in range(3)]
    assert findings(sets.of(few), sets.of(f"# moved\n{few}"), chats) == []


@pytest.mark.parametrize("days", [7, 5])
def test_what_a_removed_hold_kept_would_be_swept(sets: Sets, days: int) -> None:
    week = '[[retention]]\nname = "week"\nmatch = { kinds = [9] }\ndays = 7\n'
    hold = '[[retention]]\nname = "hold"\nmatch = { kinds = [9], tags = { t = ["keep"] } }\n'
    actors = '[[rule]]\nname = "known people write"\nenabled = false\n'
    chats = [alice.sign(9, [["t", "keep"]], "", NOW - age * DAY) for age in (8, 9)]
    chats.append(alice.sign(9, [], "", NOW - 8 * DAY))  # swept by both
    old = sets.of(f"{actors}{week}{hold}never = true\n")
    new = sets.of(actors + week.replace("7", str(days)))
    [finding] = findings(old, new, chats)
    assert (finding.effect, finding.events) == (Effect.SWEPT, 2)
    assert findings(new, old, chats) == []


def test_what_is_pinned_in_a_group_stays(sets: Sets) -> None:
    new = sets.of('[[retention]]\nname = "week"\nmatch = { kinds = [9] }\ndays = 7\n')
    chat = alice.sign(9, [["h", "tea"]], "", NOW - 20 * DAY)
    pins = RELAY.sign(39005, [["d", "tea"], ["e", chat.id]], "", NOW)
    assert findings(sets.of(""), new, [*a_group(alice.pubkey), chat, pins]) == []


# -- what a reload changes ------------------------------------------------------------------------


def test_a_reload_names_the_rules_that_came_changed_and_went(sets: Sets) -> None:
    rule = '[[rule]]\nname = "{}"\nmatch = {{ kinds = [{}] }}\nwrite = ["owner"]\n'
    before = sets.of(rule.format("a", 1) + rule.format("b", 2))
    after = sets.of(rule.format("b", 3) + rule.format("c", 4) + "[limits]\nmax_event_tags = 7\n")
    assert rule_changes(before, after) == (
        "added: c; changed: b; removed: a; settings changed: limits"
    )


def test_a_rule_that_moved_to_another_line_has_not_changed(sets: Sets) -> None:
    rule = '[[rule]]\nname = "a"\nmatch = { kinds = [1] }\nwrite = ["owner"]\nread = ["owner"]\n'
    assert rule_changes(sets.of(rule), sets.of("\n\n# moved\n" + rule)) == ""


def test_rules_about_reading_and_keeping_count_too(sets: Sets) -> None:
    before = sets.of(
        '[[rule]]\nname = "a"\nmatch = { kinds = [1] }\nread = ["owner"]\n'
        '[[retention]]\nname = "k"\nmatch = { kinds = [30023] }\nkeep = "first"\n'
    )
    after = sets.of(
        '[[rule]]\nname = "a"\nmatch = { kinds = [1] }\nread = ["member"]\n'
        '[[retention]]\nname = "k"\nmatch = { kinds = [30023] }\nkeep = "all"\n'
    )
    assert rule_changes(before, after) == "changed: a, k"


@pytest.mark.parametrize(
    "says",
    [
        "days = 3",
        "bytes = 5",
        'count = { per = "author", max = 2 }',
        "never = true",
        'never_before = { kinds = [8], same = ["author"] }',
    ],
)
def test_rules_about_forgetting_count_too(sets: Sets, says: str) -> None:
    rule = '[[retention]]\nname = "k"\nmatch = { kinds = [7, 9] }\n'
    with_it = sets.of(rule + says)
    assert rule_changes(sets.of(""), with_it) == "added: k"
    assert rule_changes(with_it, sets.of(f"# moved\n{rule}{says}")) == ""
    assert rule_changes(with_it, sets.of(f"{rule}days = 4")) == "changed: k"
    assert rule_changes(with_it, sets.of("")) == "removed: k"


def test_days_of_observations_count_too(sets: Sets) -> None:
    days = sets.of("[memory.nmem]\nretention_days = { search = 4 }\n")
    assert rule_changes(sets.of(""), days) == "changed: nmem observations"


# -- what points to other rows --------------------------------------------------------------------

LIKE_NOTES = (
    '[[rule]]\nname = "like their notes"\nmatch = { kinds = [1111] }\nread = ["target"]\n'
    'target = { kinds = [1], tag = "r" }\n'
)


def a_comment_on_a_note(*tags: list[str]) -> list[Event]:
    note = alice.sign(1, [["r", "tea"], *tags], "tea", NOW - 5)
    return [*a_group(alice.pubkey), note, alice.sign(1111, [["r", "tea"]], "yes", NOW)]


def test_what_is_read_like_another_row_is_hidden_from_who_may_not_read_that(sets: Sets) -> None:
    in_private = a_comment_on_a_note(["h", "tea"])
    [finding] = findings(sets.of(""), sets.of(LIKE_NOTES), in_private)
    assert (finding.effect, finding.rule) == (Effect.HIDDEN, "like their notes")
    assert finding.events == 1
    # Every owner reads the group; who wrote the note is in it.
    assert set(finding.audiences) == {"anonymous readers", "members of other groups", "agents"}
    assert findings(sets.of(""), sets.of(LIKE_NOTES), a_comment_on_a_note()) == []


def test_a_row_before_its_target_is_read_by_nobody(sets: Sets) -> None:
    *group, note, comment = a_comment_on_a_note()
    [finding] = findings(sets.of(""), sets.of(LIKE_NOTES), [*group, comment, note])
    assert "owners" in finding.audiences
    [finding] = findings(sets.of(LIKE_NOTES), sets.of(""), [*group, comment])
    assert finding.effect is Effect.SHOWN


def test_what_agents_wrote_is_swept_and_nothing_of_others(sets: Sets) -> None:
    new = sets.of(
        '[[retention]]\nname = "agents"\nmatch = { kinds = [1], authors = ["agent"] }\ndays = 3\n'
    )
    old = NOW - 4 * 86_400
    events = [robot.sign(1, [], "a", old), robot.sign(1, [], "b", NOW), owner.sign(1, [], "c", old)]
    [finding] = findings(sets.of(""), new, events)
    assert (finding.effect, finding.rule, finding.events) == (Effect.SWEPT, "agents", 1)
    assert finding.examples == [events[0].id]


# -- groups, rates and quotas ---------------------------------------------------------------------


def test_who_may_create_groups_is_a_difference(sets: Sets) -> None:
    new = sets.of('[groups]\ncreate = ["agent"]\n')
    events = a_group(alice.pubkey)
    [finding] = findings(sets.of(""), new, events)
    assert (finding.effect, finding.rule) == (Effect.REFUSED, "groups")
    assert finding.says == "restricted: you may not create groups here"
    assert finding.examples == [events[0].id]


def test_what_groups_refuse_is_no_difference(sets: Sets) -> None:
    events = [*a_group(alice.pubkey), bob.sign(9000, [["h", "tea"], ["p", bob.pubkey]], "", NOW)]
    result = compared(sets.of(""), sets.of(""), events)
    assert result.findings == []
    assert result.refused_by_both == 1


OPEN = '[[rule]]\nname = "known people write"\nenabled = false\n'


def test_a_rate_counts_at_the_time_of_the_events(sets: Sets) -> None:
    new = sets.of(
        f'{OPEN}[[rule]]\nname = "slowly"\nmatch = {{ kinds = [1] }}\n'
        'rate = { per = "author", burst = 2, per_minute = 1 }\n'
    )
    times = [0, 0, 1, 200, 201]
    notes = [alice.sign(1, [], str(n), NOW - 1000 + at) for n, at in enumerate(times)]
    [finding] = findings(sets.of(OPEN), new, [*notes, bob.sign(1, [], "", NOW - 999)])
    assert (finding.rule, finding.examples) == ("slowly", [notes[2].id])
    assert finding.says == "rate-limited: too many events; try again in 59 s"


def test_a_rate_that_both_sets_have_is_no_difference(sets: Sets) -> None:
    slowly = (
        f'{OPEN}[[rule]]\nname = "slowly"\nmatch = {{ kinds = [1] }}\n'
        'rate = { per = "kind", burst = 2, per_minute = 1 }\n'
    )
    notes = [alice.sign(1, [], str(n), NOW) for n in range(3)]
    result = compared(sets.of(slowly), sets.of(slowly), notes)
    assert result.findings == []
    assert result.refused_by_both == 1


def test_rates_of_connections_are_no_difference(sets: Sets) -> None:
    new = sets.of(
        f'{OPEN}[[rule]]\nname = "slowly"\nrate = {{ per = "connection", burst = 1, '
        "per_minute = 1 }\n"
    )
    assert findings(sets.of(OPEN), new, [alice.sign(1, [], str(n), NOW) for n in range(3)]) == []


def test_a_quota_counts_what_the_new_set_took(sets: Sets) -> None:
    new = sets.of(
        f'{OPEN}[[rule]]\nname = "two"\nmatch = {{ kinds = [1] }}\n'
        'quota = { per = "author", events = 2 }\n'
    )
    notes = [alice.sign(1, [], str(n), NOW) for n in range(4)]
    [finding] = findings(sets.of(OPEN), new, [*notes, bob.sign(1, [], "", NOW)])
    assert (finding.rule, finding.examples) == ("two", [note.id for note in notes[2:]])
