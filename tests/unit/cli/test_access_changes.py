"""What `policy check` and a reload say when an edit opens something to everybody or closes it."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from policies import load
from relay.cli import run
from relay.cli.policy.access_changes import (
    _MAX_ROWS,
    _rows_of_rules,
    access_changes,
    preset_policy,
)
from relay.memory.systems import MEMORY_SYSTEMS
from tests.cast import owner, robot

if TYPE_CHECKING:
    from pathlib import Path

    from policies import PolicySet

ALL = "known keys, members of the group, admins of the group, agents, owners"
IN_GROUP = "members of the group, admins of the group, owners"
OUTSIDE = "whoever may read such events outside groups reads those about private groups too"
KNOWN_WRITE = '[[rule]]\nname = "known people write"\n'


def rule(name: str, keys: str) -> str:
    return f'[[rule]]\nname = "{name}"\n{keys}\n'


def off(*names: str) -> str:
    return "".join(rule(name, "enabled = false") for name in names)


WIDER = {
    "the last rule that keeps unknown authors from writing is switched off": (
        f"{KNOWN_WRITE}enabled = false",
        [
            "unknown authors may write now: notes (1), kinds that no rule names, messages (9) in"
            f" open groups, requests to join the relay (28934); before: {ALL}"
        ],
    ),
    "it lets everybody write": (
        f'{KNOWN_WRITE}write = ["anyone"]',
        [
            "unknown authors may write now: notes (1), kinds that no rule names, messages (9) in"
            f" open groups, requests to join the relay (28934); before: {ALL}"
        ],
    ),
    "it excepts notes": (
        f'{KNOWN_WRITE}write = ["known"]\nexcept = {{ kinds = [1] }}',
        [f"unknown authors may write now: notes (1); before: {ALL}"],
    ),
    "anyone creates groups": (
        '[groups]\ncreate = ["anyone"]\n' + f"{KNOWN_WRITE}enabled = false",
        [
            "unknown authors may write now: notes (1), kinds that no rule names, messages (9) in"
            f" open groups, requests to join the relay (28934); before: {ALL}",
            "unknown authors may write now: new groups (9007); before: agents, owners",
        ],
    ),
    "an archive takes nothing": (
        rule("archive", 'write = ["nobody"]\nmatch = { kinds = [1, 9] }'),
        [
            "nobody may write now: notes (1), messages (9) in open groups; before: " + ALL,
            "nobody may write now: messages (9) in restricted groups, messages (9) in private"
            f" groups; before: {IN_GROUP}",
        ],
    ),
    "new groups are public": (
        "[groups]\nnew = []\nalways = []",
        [
            "anybody, without a login, may read now: messages (9) of groups made from now on;"
            " before: owners",
            "anybody, without a login, may read now: messages (9) of private groups that their"
            f" admin opens; before: {IN_GROUP}",
        ],
    ),
    "admins may open groups": (
        "[groups]\nalways = []",
        [
            "anybody, without a login, may read now: messages (9) of private groups that their"
            f" admin opens; before: {IN_GROUP}",
        ],
    ),
    "new groups are private, but not closed": (
        '[groups]\nnew = ["private", "restricted"]\nalways = ["private", "restricted"]',
        [
            "unknown authors may write now: requests to join groups made from now on (9021),"
            " granted at once; before: owners"
        ],
    ),
    "whoever logs in reads who is a member of the relay": (
        rule("members of the relay", 'match = { kinds = [13534, 33534] }\nread = ["anyone"]'),
        [
            "anybody, without a login, may read now: members of the relay (13534), kind 33534;"
            f" before: {ALL}",
        ],
    ),
    "anybody reads who joined and left the relay": (
        off("who joined and left the relay"),
        [f"anybody, without a login, may read now: kinds 8000 to 8001; before: {ALL}"],
    ),
    "lists of roles are excepted from a rule": (
        rule(
            "members of the relay",
            'match = { kinds = [13534, 33534] }\nread = ["known"]\nexcept = { kinds = [33534] }',
        ),
        [f"anybody, without a login, may read now: kind 33534; before: {ALL}"],
    ),
    "anybody reads private Nomen memory": (
        off("nomen memory needs a login", "private nomen memory"),
        [
            "anybody, without a login, may read now: kind 31234 with visibility private;"
            " before: agents, owners"
        ],
    ),
    "members of any group read Nomen memory of others": (
        off("private nomen memory", "personal nomen memory", "nomen memory of a group"),
        [
            "members of any group may read now: kind 31234 with visibility private, kind 31234 with"
            " visibility personal, kind 31234 with visibility group; before: agents, owners"
        ],
    ),
    "anybody reads public collective memory": (
        off("app data needs a login", "public collective memory"),
        [
            "anybody, without a login, may read now: kind 30078 with d snow:memory:… and snow:tier"
            f" public; before: {ALL}"
        ],
    ),
    "members of any group read Aman memory": (
        rule(
            "aman memory",
            'match = { kinds = ["30090-30097"] }\nread = ["author", "owner", "member"]',
        ),
        [
            "members of any group may read now: aman records (30090), encrypted aman records"
            " (30090), aman records (30091), encrypted aman records (30091), aman records (30092),"
            " encrypted aman records (30092), 10 more; before: agents, owners",
        ],
    ),
    "encrypted Aman memory is public": (
        '[memory.aman]\nanonymous_read = "encrypted"',
        [
            "anybody, without a login, may read now: encrypted aman records (30090), encrypted aman"
            " records (30091), encrypted aman records (30092), encrypted aman records (30093),"
            " encrypted aman records (30094), encrypted aman records (30095), 2 more;"
            " before: agents, owners",
        ],
    ),
    "messages are in no group": (
        "[groups]\nforeign_h = [9, 443, 444, 445]",
        [
            "anybody, without a login, may read now: messages (9) of private groups, messages (9)"
            " of hidden groups, messages (9) of private groups that their admin opens; before:"
            f" {IN_GROUP}",
            "anybody, without a login, may read now: messages (9) of groups made from now on;"
            " before: owners",
            f"events with an `h` are in no group now: kinds 9; {OUTSIDE}",
        ],
    ),
    "threads, articles and reports are in no group": (
        "[groups]\nforeign_h = [443, 444, 445, 30023, 1984, 11]",
        [f"events with an `h` are in no group now: kinds 11, 1984, 30023; {OUTSIDE}"],
    ),
    "nothing without `h` is in a group": (
        "[groups]\nderived = []",
        [
            "events without `h` that name a group's event are in no group now: kinds 5, 6, 7, 16,"
            f" 1018, 1111, 9 more; {OUTSIDE}"
        ],
    ),
    "reactions are in no group": (
        "[groups]\nderived = [5, 6, 16, 1018, 1111, 1244, 1311, 1984, 1985, 4550, 9321, 9735, 9802,"
        " 40003]",
        [f"events without `h` that name a group's event are in no group now: kinds 7; {OUTSIDE}"],
    ),
    "whoever asks joins the relay": (
        '[members]\njoin = "anyone"\ninvite = ["anyone"]',
        [
            f"unknown authors may write now: requests to join the relay (28934); before: {ALL}",
            "unknown authors may write now: requests for an invite code of the relay (28935);"
            " before: owners",
        ],
    ),
    "every address is a trusted reader": (
        '[actors]\ntrusted_readers = ["0.0.0.0/0"]',
        [
            "anybody, without a login, may read now: aman records (30090), encrypted aman records"
            " (30090), aman records (30091), encrypted aman records (30091), aman records (30092),"
            " encrypted aman records (30092), 10 more; before: agents, owners",
        ],
    ),
    "the rule about Aman memory goes": (
        rule("aman memory", "enabled = false"),
        [
            "anybody, without a login, may read now: aman records (30090), encrypted aman records"
            " (30090), aman records (30091), encrypted aman records (30091), aman records (30092),"
            " encrypted aman records (30092), 10 more; before: agents, owners",
        ],
    ),
    "unknown authors write agents' memory": (
        rule("agents write nmem memory", "enabled = false") + f"{KNOWN_WRITE}enabled = false\n",
        [
            "unknown authors may write now: notes (1), kinds that no rule names, messages (9) in"
            f" open groups, requests to join the relay (28934); before: {ALL}",
            "unknown authors may write now: nmem records (30078) with d nmem:session:…, nmem"
            " records (30078) with d nmem:…, nmem records (78) with d nmem:obs:…, nmem records (78)"
            " with d nmem:prompt:…, nmem records (78) with d nmem:…; before: agents",
        ],
    ),
    "nobody is named any more": (
        "[actors]\nowners = []\nagents = []",
        [
            "the policies no longer name an owner, agent or allowed key: outside groups only"
            " unknown authors are left"
        ],
    ),
}
SILENT = {
    "more kinds are in groups": "[groups]\nforeign_h = []\nderived = [5, 6, 7, 16, 1018, 1068,"
    " 1111, 1244, 1311, 1984, 1985, 4550, 9321, 9735, 9802, 40003]",
    "nothing is edited": "",
    "a pace is added": rule("pace", 'rate = { per = "address", burst = 9, per_minute = 9 }'),
    "a quota is added": rule("room", 'quota = { per = "author", events = 1 }'),
    "a larger event is allowed": "[limits]\nmax_content_length = 500000",
    "work is asked for": rule("work", "match = { kinds = [1] }\npow = 20"),
    "the text of a refusal changes": f'{KNOWN_WRITE}write = ["known"]\nreject = "go away"',
    "fewer may write notes": rule("notes", 'match = { kinds = [1] }\nwrite = ["owner"]'),
    "fewer may read notes": rule("notes", 'match = { kinds = [1] }\nread = ["known"]'),
    "another rule stands beside the switched off one": (
        f"{KNOWN_WRITE}enabled = false\n" + rule("mine", 'write = ["known"]')
    ),
    "unknown authors write one kind": (
        f'{KNOWN_WRITE}write = ["known"]\nexcept = {{ kinds = [62, 9021, 10002] }}'
    ),
    "comments are refused": rule("comments", 'match = { kinds = [1111] }\nwrite = ["nobody"]'),
    "only owners comment": rule("comments", 'match = { kinds = [1111] }\nwrite = ["owner"]'),
    "work is asked for comments": rule("comments", "match = { kinds = [1111] }\npow = 20"),
    "an owner is added": f'[actors]\nowners = ["{owner.npub}", "{robot.npub}"]',
    "agents are trusted by one address": '[actors]\ntrusted_readers = ["192.0.2.7/32"]',
    "old messages go": '[[retention]]\nname = "old"\nmatch = { kinds = [9] }\ndays = 30',
    "a login is asked for": '[auth]\nwrites = "always"',
}


def edited(folder: Path, edit: str) -> tuple[PolicySet, PolicySet]:
    """The preset "group" with an owner and an agent, and the same with one more file."""
    actors = f'[actors]\nowners = ["{owner.npub}"]\nagents = ["{robot.npub}"]\n'
    (folder / "00-actors.toml").write_text(actors)
    before = load(folder, MEMORY_SYSTEMS)
    (folder / "20-mine.toml").write_text(edit)
    return before, load(folder, MEMORY_SYSTEMS)


@pytest.mark.parametrize("edit", WIDER)
def test_what_an_edit_opens_or_closes_is_said_in_words(tmp_path: Path, edit: str) -> None:
    text, says = WIDER[edit]
    assert access_changes(*edited(tmp_path, text)) == says


@pytest.mark.parametrize("edit", SILENT)
def test_of_another_edit_nothing_is_said(tmp_path: Path, edit: str) -> None:
    assert access_changes(*edited(tmp_path, SILENT[edit])) == []


def test_an_edit_that_allows_comments_and_takes_them_out_of_groups_opens_them(
    tmp_path: Path,
) -> None:
    refused = rule("comments", 'match = { kinds = [1111] }\nwrite = ["nobody"]')
    _, before = edited(tmp_path, refused)
    text, says = WIDER["nothing without `h` is in a group"]
    assert access_changes(before, edited(tmp_path, text)[1]) == says


def test_an_edit_that_grants_requests_to_join_at_once_opens_groups(tmp_path: Path) -> None:
    _, before = edited(tmp_path, '[groups]\njoins = "review"')
    _, after = edited(tmp_path, '[groups]\njoins = "admit"')
    assert access_changes(before, after) == [
        "unknown authors may write now: requests to join private groups that are not closed (9021),"
        " granted at once; before: members of the group, admins of the group"
    ]
    assert access_changes(after, before) == []


@pytest.mark.parametrize("edit", sorted(WIDER.keys() - {"it excepts notes"}))
def test_taking_it_back_opens_nothing(tmp_path: Path, edit: str) -> None:
    """The one left out no longer excepts gift wraps: taken back, it does again."""
    before, after = edited(tmp_path, WIDER[edit][0])
    assert access_changes(after, before) == []


OWN = {
    "one group": (
        'match = { kinds = [30023], h = ["tea"] }\nread = ["insider"]',
        f"kind 30023 in the group tea; before: {IN_GROUP.removesuffix(', owners')}",
    ),
    "groups": (
        'match = { kinds = [30023], h = true }\nread = ["insider"]',
        f"kind 30023 in open groups; before: {IN_GROUP.removesuffix(', owners')}",
    ),
    "what is in no group is excepted": (
        'match = { kinds = [30023] }\nexcept = { h = false }\nread = ["admin"]',
        "kind 30023 in open groups; before: admins of the group",
    ),
    "member lists": (
        'match = { kinds = ["39001-39003"] }\nread = ["insider"]',
        "members of open groups (39002), members of restricted groups (39002), kind 39001 in open"
        " groups, kind 39003 in open groups; before: members of the group, admins of the group",
    ),
    "one author": (
        f'match = {{ kinds = ["30000-30077"], authors = ["{owner.npub}"] }}\nread = ["known"]',
        f"kinds 30000 to 30077 by {owner.pubkey[:8]}…; before: {ALL}",
    ),
    "one value of d, and tags": (
        'match = { kinds = [30023], d = ["diary"], tags = { t = ["a", "b"], shared = true } }\n'
        'read = ["owner"]',
        "kind 30023 with d diary and t a and shared, kind 30023 with d diary and t b and shared;"
        " before: owners",
    ),
    "kinds of a row that stands for others": (
        'match = { kinds = ["0-2"] }\nread = ["agent"]',
        "notes (1), kind 0, kind 2; before: agents",
    ),
    "every kind": (
        f'match = {{ authors = ["{owner.npub}"] }}\nread = ["owner"]',
        f"kinds that no rule names by {owner.pubkey[:8]}…; before: owners",
    ),
}


@pytest.mark.parametrize("about", OWN)
def test_a_rule_of_one_s_own_that_goes_opens_what_it_was_about(tmp_path: Path, about: str) -> None:
    keys, says = OWN[about]
    none, before = edited(tmp_path, rule("mine", keys))
    assert access_changes(none, before) == []
    assert access_changes(before, none) == [f"anybody, without a login, may read now: {says}"]


def test_a_rule_that_changes_is_compared_however_many_do_not(tmp_path: Path) -> None:
    """Of many that change a bounded number."""
    many = "".join(
        rule(f"mine {n}", f'match = {{ kinds = [30023], d = ["{n}"] }}\nread = ["owner"]')
        for n in range(_MAX_ROWS + 1)
    )
    none, before = edited(tmp_path, many)
    assert len(list(_rows_of_rules(none, before))) == _MAX_ROWS
    text, says = WIDER["anybody reads private Nomen memory"]
    assert access_changes(before, edited(tmp_path, many + text)[1]) == says


def test_the_preset_open_differs_from_group_in_what_it_says() -> None:
    group, open_ = (preset_policy(name, MEMORY_SYSTEMS) for name in ("group", "open"))
    assert access_changes(open_, group) == []
    assert len(access_changes(group, open_)) == 4


@pytest.mark.parametrize("preset", ["group", "open"])
def test_check_compares_with_the_preset_of_the_folder(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], preset: str
) -> None:
    home = tmp_path / "data"
    args = ["--owner", owner.npub, "--agent", robot.npub, "--preset", preset]
    assert run(["init", str(home), *args]) == 0
    capsys.readouterr()
    check = ["policy", "check", "--data", str(home)]
    assert run([*check, "--strict"]) == 0
    assert "warning" not in capsys.readouterr().out
    (home / "policies" / "20-mine.toml").write_text(rule("aman memory", "enabled = false"))
    assert run([*check, "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    [change] = told["access"]
    assert change.startswith("anybody, without a login, may read now: aman records (30090), ")


def test_check_compares_with_other_policies(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    old, new = tmp_path / "old", tmp_path / "new"
    for folder in (old, new):
        folder.mkdir()
    (new / "mine.toml").write_text(f"{KNOWN_WRITE}enabled = false\n")
    check = ["policy", "check", str(new), "--against", str(old)]
    assert run(check) == 0
    out = capsys.readouterr().out
    assert f"(28934); before: {ALL} (warning)\n" in out
    assert run([*check, "--strict"]) == 1
    assert run(["policy", "check", str(new), "--strict", "--against", str(new)]) == 0
