"""policies/lint.py: what `rookery policy check` warns of, and what it is silent about."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from policies.lint import warnings_of
from policies.load import PRESETS
from tests.harness.folders import loaded

if TYPE_CHECKING:
    from pathlib import Path

ACTORS = f'[actors]\nowners = ["{"11" * 32}"]\nagents = ["{"22" * 32}"]\n'
KEY = "33" * 32


def warnings(folder: Path, text: str, actors: str = ACTORS) -> list[str]:
    """Each as `line: text`."""
    found = warnings_of(loaded(folder, a=actors or "# nobody\n", b=text))
    assert all(warning.file == f"{folder}/b.toml" for warning in found)
    return [f"{warning.line}: {warning.text}" for warning in found]


@pytest.mark.parametrize(
    ("match", "why"),
    [
        ("kinds = []", "kinds is empty"),
        ("kinds = [1], d = []", "d is empty"),
        ("kinds = [1], d_prefix = []", "d_prefix is empty"),
        ("kinds = [1], h = []", "h is empty"),
        ("kinds = [1], authors = []", "authors is empty"),
        ("kinds = [1], tags = { t = [] }", "tags t is empty"),
        ('kinds = [30078], d = "x:1", d_prefix = "y:"', "no value of d begins with d_prefix"),
        (
            "kinds = [1], content_chars = 400000",
            "no content has over 400000 characters, by [limits] max_content_length = 400000",
        ),
        ('kinds = ["39000-39003"]', "these kinds are signed by the relay alone"),
    ],
)
def test_a_write_rule_that_can_never_match_is_told(tmp_path: Path, match: str, why: str) -> None:
    rule = f'[[rule]]\nname = "x"\nmatch = {{ {match} }}\nwrite = ["owner"]\n'
    assert warnings(tmp_path, rule) == [f'1: "x" can never match: {why}']


@pytest.mark.parametrize(
    ("match", "spared"),
    [
        ("kinds = [1, 2]", 'kinds = ["0-10"]'),
        ('kinds = [30078], d_prefix = "a:b:"', 'd_prefix = "a:"'),
        ('kinds = [9], h = ["tea"]', "h = true"),
        ('kinds = [9], tags = { t = ["a"] }', 'tags = { t = ["a", "b"] }'),
        ('kinds = [9], tags = { t = ["a"] }', "tags = { t = true }"),
        (f'kinds = [9], authors = ["{KEY}"]', 'authors = ["anyone"]'),
        ("kinds = [9], content_chars = 5", "kinds = [9]"),
    ],
)
def test_an_exception_that_takes_out_everything_is_told(
    tmp_path: Path, match: str, spared: str
) -> None:
    rule = (
        f'[[rule]]\nname = "x"\nmatch = {{ {match} }}\nexcept = {{ {spared} }}\nwrite = ["owner"]\n'
    )
    [warning] = warnings(tmp_path, rule)
    assert warning.startswith('1: "x" can never match: except excludes all of it')


@pytest.mark.parametrize(
    ("match", "spared"),
    [
        ("kinds = [1, 20]", 'kinds = ["0-10"]'),
        ("", "kinds = [1]"),
        ('kinds = [30078], d_prefix = "a:"', 'd_prefix = "a:b:"'),
        ("kinds = [9]", "h = true"),
        ("kinds = [9], tags = { t = true }", 'tags = { t = ["a"] }'),
        ("kinds = [9], tags = { t = false }", "tags = { t = true }"),
        ("kinds = [9], content_chars = 5", "content_chars = 6"),
        ("kinds = [9]", "age = 6"),
        ('kinds = [30078], d = ["a", "b"]', 'd = ["a", "c"]'),
        ('kinds = [9], tags = { t = ["a", "b"] }', 'tags = { t = ["a", "c"] }'),
    ],
)
def test_an_exception_that_leaves_something_is_no_reason_to_warn(
    tmp_path: Path, match: str, spared: str
) -> None:
    rule = (
        f'[[rule]]\nname = "x"\nmatch = {{ {match} }}\nexcept = {{ {spared} }}\nwrite = ["owner"]\n'
    )
    assert warnings(tmp_path, rule) == []


def test_whoever_wants_to_open_a_door_with_anyone_is_told_what_shuts_it(tmp_path: Path) -> None:
    opened = '[[rule]]\nname = "open"\nmatch = { kinds = [1] }\nwrite = ["anyone"]\n'
    [warning] = warnings(tmp_path, opened)
    assert warning.startswith(
        '1: "open" does nothing: a rule can only refuse, and write = ["anyone"] refuses nobody; '
        '"known people write" (packaged/30-people.toml:'
    )
    assert warning.endswith("decides who may write there: change that rule")
    spared = '[[rule]]\nname = "open"\nmatch = { kinds = [9021] }\nwrite = ["anyone"]\n'
    [warning] = warnings(tmp_path, spared)
    assert "who may write there" not in warning  # `except` of the other rule names the kind


def test_a_rule_shadowed_by_an_earlier_one_is_told(tmp_path: Path) -> None:
    rules = (
        '[[rule]]\nname = "nobody reacts"\nmatch = { kinds = ["6-8"] }\nwrite = ["nobody"]\n'
        '[[rule]]\nname = "members react"\nmatch = { kinds = [7] }\nwrite = ["member"]\n'
    )
    assert warnings(tmp_path, rules) == [
        '5: "members react" accepts nobody: the authors it allows are refused '
        f'by the earlier rule "nobody reacts" ({tmp_path}/b.toml:1)'
    ]


def test_what_owners_alone_may_write_shadows_what_is_for_agents(tmp_path: Path) -> None:
    rules = (
        '[[rule]]\nname = "first"\nmatch = { kinds = [7] }\nwrite = ["owner"]\n'
        '[[rule]]\nname = "second"\nmatch = { kinds = [7] }\nwrite = ["agent"]\n'
    )
    assert [text.partition(":")[0] for text in warnings(tmp_path, rules)] == ["5"]
    both = f'[actors]\nowners = ["{KEY}"]\nagents = ["{KEY}"]\n'
    assert warnings(tmp_path, rules, both) == []


@pytest.mark.parametrize(
    ("match", "write"),
    [
        ("kinds = [30]", '"owner", "agent"'),
        ("kinds = [30], h = true", '"owner"'),
        ("kinds = [30]", '"known"'),
    ],
)
def test_a_rule_whose_refusals_an_earlier_one_gives_is_told(
    tmp_path: Path, match: str, write: str
) -> None:
    rules = (
        '[[rule]]\nname = "wide"\nmatch = { kinds = ["20-40"] }\nwrite = ["owner"]\n'
        f'[[rule]]\nname = "narrow"\nmatch = {{ {match} }}\nwrite = [{write}]\n'
    )
    assert warnings(tmp_path, rules) == [
        '5: "narrow" has no effect: the authors it refuses are already refused '
        f'by the earlier rule "wide" ({tmp_path}/b.toml:1)'
    ]


def test_rules_that_some_people_pass_are_not_shadowed(tmp_path: Path) -> None:
    rules = (
        '[[rule]]\nname = "first"\nmatch = { kinds = [7] }\nwrite = ["known"]\n'
        "except = { kinds = [7], h = true }\n"
        '[[rule]]\nname = "second"\nmatch = { kinds = [7] }\nwrite = ["admin"]\n'
        '[[rule]]\nname = "third"\nmatch = { kinds = [7, 8] }\nwrite = ["owner", "agent"]\n'
    )
    assert warnings(tmp_path, rules) == []


@pytest.mark.parametrize(
    ("rule", "actors", "why"),
    [
        ('match = { kinds = [1] }\nwrite = ["owner"]', "", "lets nobody write: [actors] owners"),
        (
            'match = { kinds = [1], h = false }\nwrite = ["agent"]',
            "",
            "lets nobody write: [actors] agents is empty",
        ),
        (
            'match = { kinds = [1], h = false }\nwrite = ["insider", "admin"]',
            ACTORS,
            "lets nobody write: outside groups nobody is admin or insider",
        ),
        (
            'match = { kinds = [1] }\nread = ["trusted"]',
            ACTORS,
            "lets nobody read: [actors] trusted_readers is empty",
        ),
        (
            'match = { kinds = [1], h = false }\nread = ["group"]',
            ACTORS,
            "lets nobody read: outside groups nobody is group",
        ),
        (
            'match = { kinds = [1], authors = ["owner"] }\nwrite = ["nobody"]',
            "",
            "can never match: [actors] owners is empty",
        ),
    ],
)
def test_words_that_name_nobody_are_told(tmp_path: Path, rule: str, actors: str, why: str) -> None:
    [warning] = warnings(tmp_path, f'[[rule]]\nname = "x"\n{rule}\n', actors)
    assert warning.startswith(f'1: "x" {why}')


@pytest.mark.parametrize(
    "rule",
    [
        'match = { kinds = [1] }\nwrite = ["agent"]',  # a role in a group makes an agent
        'match = { kinds = [1] }\nwrite = ["nobody"]',
        'match = { kinds = [1] }\nread = ["nobody"]',
        'match = { kinds = [1], h = false }\nread = ["tag:scope"]',
        'match = { kinds = [1], h = false }\nwrite = ["owner", "insider"]',
    ],
)
def test_words_that_name_somebody_or_nobody_on_purpose_are_fine(tmp_path: Path, rule: str) -> None:
    actors = f'[actors]\nowners = ["{KEY}"]\n'
    assert warnings(tmp_path, f'[[rule]]\nname = "x"\n{rule}\n', actors) == []


def test_a_household_has_an_owner_and_agents(tmp_path: Path) -> None:
    home = f'[[actors.household]]\nname = "attic"\nowner = "{KEY}"\n'
    assert warnings(tmp_path, '[[rule]]\nname = "x"\nwrite = ["owner"]\n', home) == []


def test_reading_by_anyone_hides_nothing(tmp_path: Path) -> None:
    [warning] = warnings(
        tmp_path, '[[rule]]\nname = "x"\nmatch = { kinds = [31234] }\nread = ["anyone"]\n'
    )
    assert '; "nomen memory needs a login" (packaged/' in warning
    assert warning.endswith("decides who may read that")


def test_retention_without_effect_is_told(tmp_path: Path) -> None:
    rules = (
        '[[retention]]\nname = "early"\nmatch = { kinds = [30023] }\nkeep = "first"\n'
        '[[retention]]\nname = "passing"\nmatch = { kinds = ["20000-20999"] }\nkeep = "latest"\n'
        '[[retention]]\nname = "late"\nmatch = { kinds = ["30000-30050"] }\nkeep = "all"\n'
    )
    assert warnings(tmp_path, rules) == [
        f'1: "early" keep has no effect: the later rule "late" ({tmp_path}/b.toml:9) decides for '
        "all rows that it matches",
        '5: "passing" has no effect: kinds 20000 to 29999 are never stored',
        '9: "late" keeps versions that a deletion by address (kind 5 with `a`) does not delete; '
        "with `history` instead of `keep` it does",
    ]


@pytest.mark.parametrize(
    ("match", "is_told"),
    [
        ("kinds = [7]", True),
        ('authors = ["agent"]', True),
        ("kinds = [7], h = true", False),
        ("kinds = [9]", False),
    ],
)
def test_replacing_what_is_derived_is_told(tmp_path: Path, match: str, *, is_told: bool) -> None:
    """A reaction without `h` was of no group then, and public."""
    for keep in ("latest", "first", "latest-ts"):
        rule = f'[[retention]]\nname = "one"\nmatch = {{ {match} }}\nkeep = "{keep}"\n'
        told = [each for each in warnings(tmp_path, rule) if "[groups] derived" in each]
        assert len(told) is int(is_told), rule


def test_days_that_another_rule_is_faster_than_are_told(tmp_path: Path) -> None:
    rules = (
        'include = ["aman-app"]\n'
        '[[retention]]\nname = "longer"\nmatch = { kinds = [30095], h = true }\ndays = 30\n'
        '[[retention]]\nname = "shorter"\nmatch = { kinds = [30095] }\ndays = 7\n'
        '[[retention]]\nname = "again"\nmatch = { kinds = [30095] }\ndays = 7\n'
        '[[retention]]\nname = "all"\ndays = 100\n'
        '[[retention]]\nname = "deletions"\nmatch = { kinds = [5] }\ndays = 200\n'
        '[[retention]]\nname = "some"\nmatch = { kinds = [9] }\n'
        'count = { per = "group", max = 9 }\n'
    )
    told = [warning.partition(" has")[::2] for warning in warnings(tmp_path, rules)]
    assert [start for start, _ in told] == [
        '2: "longer" older than 30 days',
        '10: "again" older than 7 days',
    ]
    assert told[1][1] == (
        f' no effect: "shorter" ({tmp_path}/b.toml:6) removes rows older than 7 days'
    )


def test_days_for_what_never_goes_are_told(tmp_path: Path) -> None:
    rules = (
        '[[retention]]\nname = "for good"\nmatch = { kinds = [30095] }\nnever = true\n'
        '[[retention]]\nname = "a week"\nmatch = { kinds = [30095], h = true }\ndays = 7\n'
        '[[retention]]\nname = "a month"\nmatch = { kinds = [9] }\ndays = 30\n'
        '[[retention]]\nname = "passing"\nmatch = { kinds = [20001] }\ndays = 7\n'
    )
    assert warnings(tmp_path, rules) == [
        '5: "a week" removes nothing: a rule with never keeps every row it matches',
        '13: "passing" has no effect: kinds 20000 to 29999 are never stored',
    ]


@pytest.mark.parametrize("preset", ["group", "open"])
def test_the_presets_are_above_reproach(tmp_path: Path, preset: str) -> None:
    assert warnings(tmp_path, (PRESETS / f"{preset}.toml").read_text()) == []
