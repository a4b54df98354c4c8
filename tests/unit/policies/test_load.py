"""What an admin hears about a file that cannot be used, and how files are laid over each other."""

from __future__ import annotations

import os
import tomllib
from pathlib import Path

import pytest

from policies import load
from policies.lint import warnings_of
from policies.load import KNOWN_WRITE, PRESETS
from policies.settings import AuthWrites
from relay.access.management import BannedAuthorRows
from relay.facts import Who
from relay.groups.actions import Flag
from relay.lifecycle.rows import Keep, Tie
from relay.memory.systems import MEMORY_SYSTEMS
from relay.nostr.keys import SecretKey
from tests.cast import alice, owner
from tests.harness.folders import faults_of, loaded

BAD = tomllib.loads((Path(__file__).parent / "faults.toml").read_text())["fault"]


@pytest.mark.proves("G-01")
@pytest.mark.parametrize("bad", BAD, ids=[bad["says"][:60] for bad in BAD])
def test_a_fault_names_the_line_and_the_nearest_word(
    tmp_path: Path, bad: dict[str, str | int]
) -> None:
    assert faults_of(tmp_path, a=str(bad["text"])) == [f"a.toml:{bad['line']}: {bad['says']}"]


@pytest.mark.parametrize(
    ("text", "what"),
    [
        ("[memory]\nversions = 3", '"versions" in [memory]'),
    ],
)
def test_what_is_not_enforced_yet_is_refused_and_not_ignored(
    tmp_path: Path, text: str, what: str
) -> None:
    [fault] = faults_of(tmp_path, a=text)
    assert fault.endswith(f"{what} is not offered by this version")


@pytest.mark.proves("N86-11")
def test_an_admin_says_what_becomes_of_what_the_banned_wrote(tmp_path: Path) -> None:
    assert load(tmp_path, MEMORY_SYSTEMS).banned_rows is BannedAuthorRows.HIDE
    assert loaded(tmp_path, a='[bans]\nstored = "delete"').banned_rows is BannedAuthorRows.DELETE
    [fault] = faults_of(tmp_path, a='[bans]\nstored = "hid"')
    assert fault.startswith("a.toml:2: ")
    assert "hide" in fault


def test_a_later_setting_is_checked_before_it_is_refused(tmp_path: Path) -> None:
    assert faults_of(tmp_path, a='[[rule]]\nname = "x"\nrate = { burts = 3 }')[0] == (
        'a.toml:3: unknown key "burts" in rate; did you mean "burst"?'
    )


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        (
            '[[rule]]\nname = "x"\nreject = "no"\nwrit = ["owner"]',
            'a.toml:4: unknown key "writ" in [[rule]]; did you mean "write"?',
        ),
        (
            '[[retention]]\nname = "x"\nday = 9',
            'a.toml:3: unknown key "day" in [[retention]]; did you mean "days"?',
        ),
    ],
)
def test_a_misspelt_effect_is_one_fault(tmp_path: Path, text: str, fault: str) -> None:
    assert faults_of(tmp_path, a=text) == [fault]


def test_a_secret_key_is_refused_and_never_repeated(tmp_path: Path) -> None:
    secret = alice.nsec
    for spelling in (secret, secret.upper(), f" {secret}"):
        [fault] = faults_of(tmp_path, a=f'[actors]\nagents = ["{spelling}"]')
        assert fault.startswith("a.toml:2: agents: this is a secret key (nsec)")
        assert secret not in fault.lower()


def test_all_faults_of_all_files_are_told_at_once_in_order(tmp_path: Path) -> None:
    found = faults_of(
        tmp_path,
        a='[limits]\nmax_event_tags = "x"\n[auth]\nwrites = "x"\nother = 1',
        b="[limits\n",
        c="[groups]\nlate = -1",
    )
    assert [fault.partition(": ")[0] for fault in found] == [
        "a.toml:2",
        "a.toml:4",
        "a.toml:5",
        "b.toml:1",
        "c.toml:2",
    ]


def test_a_pipe_is_a_fault_and_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "a.toml")
    assert faults_of(tmp_path) == ["a.toml: cannot be read: it is a pipe, not a file"]


def test_a_byte_order_mark_is_passed_over(tmp_path: Path) -> None:
    """Editors of Windows begin a file with one."""
    found = loaded(tmp_path, a="\ufeff[limits]\nmax_event_tags = 7")
    assert found.limits.max_event_tags == 7
    assert faults_of(tmp_path, a="\ufeffx = 1")[0].startswith("a.toml:1: ")


def test_one_name_twice_in_a_file_is_a_fault(tmp_path: Path) -> None:
    rule = '[[rule]]\nname = "x"\nwrite = ["owner"]\n'
    assert faults_of(tmp_path, a=rule + rule) == [
        'a.toml:5: "x" is used twice in this file, first in line 1'
    ]


def test_a_file_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    (tmp_path / "a.toml").mkdir()
    assert faults_of(tmp_path) == ["a.toml: cannot be read: Is a directory"]


def test_a_file_that_is_no_utf8_is_named_with_its_line(tmp_path: Path) -> None:
    (tmp_path / "a.toml").write_bytes(b"# fine\n# \xff\n")
    assert faults_of(tmp_path) == ["a.toml:2: is not UTF-8 text"]


def test_a_folder_that_is_not_there_is_named(tmp_path: Path) -> None:
    [fault] = faults_of(tmp_path / "nowhere")
    assert fault == f"{tmp_path}/nowhere: no such folder"


def test_files_that_include_each_other_are_a_fault(tmp_path: Path) -> None:
    assert faults_of(tmp_path, a='include = ["b"]', b='\ninclude = ["a"]') == [
        "b.toml:2: files include each other: a.toml includes b.toml includes a.toml"
    ]


def test_a_file_that_includes_itself_is_a_fault(tmp_path: Path) -> None:
    assert faults_of(tmp_path, a='include = ["a"]') == [
        "a.toml:1: files include each other: a.toml includes a.toml"
    ]


def test_a_long_chain_of_files_is_a_fault(tmp_path: Path) -> None:
    """The stack of the program ends before a chain of a thousand does."""
    chain = {f"f{number}": f'include = ["f{number + 1}"]' for number in range(600)}
    found = faults_of(tmp_path, **chain)
    assert found[0] == ('f32.toml:1: include "f33": more than 32 files include each other in a row')


def test_what_a_file_includes_comes_before_it_and_once(tmp_path: Path) -> None:
    (tmp_path / "shared").mkdir()
    (tmp_path / "shared" / "team.toml").write_text(
        "[limits]\nmax_event_tags = 1\ncreated_at_lower = 7"
    )
    found = loaded(
        tmp_path,
        a='include = ["shared/team", "z"]\n[limits]\nmax_event_tags = 2',
        z="[groups]\nlate = 5",
    )
    assert found.limits.max_event_tags == 2
    assert found.limits.created_at_lower == 7
    assert [name.rpartition("/")[2] for name in found.files[-3:]] == [
        "team.toml",
        "z.toml",
        "a.toml",
    ]


def test_the_fixed_read_rules_cannot_be_named(tmp_path: Path) -> None:
    for name in (
        "rows of a group",
        "gift wraps",
        "encrypted messages",
        "remote signing",
        "invites",
    ):
        for body in ('read = ["anyone"]', "enabled = false"):
            [fault] = faults_of(tmp_path, a=f'[[rule]]\nname = "{name}"\n{body}')
            assert fault.startswith(f'a.toml:1: "{name}" is fixed')


def test_a_later_rule_stands_in_the_place_of_the_earlier(tmp_path: Path) -> None:
    before = [rule.place.name for rule in loaded(tmp_path).write_rules]
    found = loaded(
        tmp_path,
        a='[[rule]]\nname = "agents and owners pin"\nwrite = ["nobody"]\nmatch = { kinds = [7] }',
    )
    assert [rule.place.name for rule in found.write_rules] == before
    [rule] = [rule for rule in found.write_rules if rule.place.name == "agents and owners pin"]
    assert rule.writers == frozenset({Who.NOBODY})
    assert rule.place.file == f"{tmp_path}/a.toml"


def test_replacing_a_packaged_rule_is_told(tmp_path: Path) -> None:
    found = loaded(
        tmp_path,
        a='[[rule]]\nname = "transcripts"\nread = ["owner"]\nmatch = { kinds = [1988] }',
        b='\n[[rule]]\nname = "aman memory"\nenabled = false',
    )
    assert [str(note) for note in found.notes] == [
        f'{tmp_path}/a.toml:1: replaces the packaged rule "transcripts"',
        f'{tmp_path}/b.toml:2: switches off the packaged rule "aman memory"',
    ]


def test_a_rule_is_switched_off_and_on_again(tmp_path: Path) -> None:
    off = f'[[rule]]\nname = "{KNOWN_WRITE}"\nenabled = false'
    assert loaded(tmp_path).restricted_writes
    assert not loaded(tmp_path, a=off).restricted_writes
    assert loaded(tmp_path, a=off, b=off.replace("false", "true")).restricted_writes


def test_tables_are_merged_key_by_key_and_lists_replaced(tmp_path: Path) -> None:
    key = owner.npub
    found = loaded(
        tmp_path,
        a=f'[actors]\nowners = ["{key}"]\nagents = ["{alice.pubkey}"]\n[groups]\nlate = 5',
        b='[actors]\nowners = []\nagent_role = "bot"\n[auth]\nwrites = "groups"',
    )
    assert found.actors.owners == frozenset()
    assert found.actors.agents == {alice.pubkey}
    assert found.actors.agent_role == "bot"
    assert found.groups.late_s == 5
    assert found.groups.invite_uses == 1
    assert found.auth_writes is AuthWrites.GROUPS


def test_keys_are_npub_or_hex(tmp_path: Path) -> None:
    found = loaded(tmp_path, a=f'[actors]\nowners = ["{owner.npub}", "{alice.pubkey.upper()}"]')
    assert found.actors.owners == {owner.pubkey, alice.pubkey}


def test_a_household_has_owners_and_agents_of_its_own(tmp_path: Path) -> None:
    robot = SecretKey(b"\1" * 32)
    found = loaded(
        tmp_path,
        a=f"""
        [[actors.household]]
        name = "attic"
        owner = "{alice.npub}"
        agents = ["{robot.npub}"]
        """,
    )
    [home] = found.actors.households
    assert (home.name, home.owners, home.agents) == (
        "attic",
        frozenset({alice.pubkey}),
        frozenset({robot.pubkey}),
    )


def test_an_unused_draft_of_an_editor_is_not_read(tmp_path: Path) -> None:
    (tmp_path / ".#a.toml").write_text("nonsense")
    (tmp_path / "a.toml~").write_text("nonsense")
    assert loaded(tmp_path).files[-1] == "packaged/30-people.toml"


def test_the_packaged_policies_alone_are_those_of_the_preset_group(tmp_path: Path) -> None:
    (tmp_path / "bare").mkdir()
    bare = loaded(tmp_path / "bare")
    preset = loaded(tmp_path, a=(PRESETS / "group.toml").read_text())
    assert preset.groups == bare.groups
    assert preset.read_rules == bare.read_rules
    assert [rule.match for rule in preset.write_rules] == [rule.match for rule in bare.write_rules]
    assert [rule.excepts for rule in preset.write_rules] == [
        rule.excepts for rule in bare.write_rules
    ]
    assert [(rule.writers, rule.reject) for rule in preset.write_rules] == [
        (rule.writers, rule.reject) for rule in bare.write_rules
    ]
    assert preset.notes == ()
    assert preset.restricted_writes


def test_the_preset_open_lets_anyone_write_and_make_groups(tmp_path: Path) -> None:
    found = loaded(tmp_path, a=(PRESETS / "open.toml").read_text())
    assert not found.restricted_writes
    assert (found.groups.always, found.groups.new) == (frozenset(), frozenset())
    assert found.groups.create == {Who.ANYONE}


def test_the_preset_group_keeps_groups_shut(tmp_path: Path) -> None:
    shut = {Flag.PRIVATE, Flag.RESTRICTED, Flag.CLOSED}
    found = loaded(tmp_path)
    assert found.groups.always == found.groups.new == shut
    assert found.groups.create == {Who.OWNER, Who.AGENT}


def test_the_packaged_rules_keep_what_memory_needs_kept(tmp_path: Path) -> None:
    keeps = {rule.name: rule.keep for rule in loaded(tmp_path).keep.rules}
    assert keeps == {
        "aman states": Keep.LATEST_TS,
        "tool history": Keep.FIRST,
        "clears": Keep.FIRST,
        "memory entries": Keep.FIRST,
    }
    assert loaded(tmp_path).keep.tie is Tie.HIGH
    assert loaded(tmp_path, a='[memory.aman]\ntie = "low"').keep.tie is Tie.LOW


def test_every_setting_of_the_design_is_known(tmp_path: Path) -> None:
    # Every setting of policy files, with its default.
    found = loaded(
        tmp_path,
        all=f"""
        include = []
        [actors]
        owners = ["{owner.npub}"]
        agents = []
        agent_role = "agent"
        trusted_readers = ["10.1.2.3/32"]
        [[actors.household]]
        name = "x"
        owner = "{alice.npub}"
        agents = []
        [groups]
        always = ["private", "restricted", "closed"]
        new = ["private", "restricted", "closed"]
        create = ["owner", "agent"]
        joins = "admit"
        invite_uses = 1
        late = 600
        previous = 0
        foreign_h = [443, 444, 445]
        compat = []
        [auth]
        writes = "never"
        [limits]
        created_at_upper = 900
        created_at_lower = 0
        max_content_length = 400000
        max_event_tags = 5000
        min_pow_difficulty = 0
        [search]
        kinds = "all"
        [bans]
        files = []
        stored = "hide"
        [allow]
        files = []
        [memory]
        owner_annotations = false
        schema = "strict"
        versions = 20
        reject_patterns = []
        [memory.aman]
        schema = "strict"
        tie = "high"
        ts_rule = "order"
        verify_hash = false
        anonymous_read = "none"
        [memory.transcripts]
        schema = "strict"
        [memory.snowclaw]
        schema = "strict"
        [memory.envelopes]
        keys = []
        [memory.nmem]
        schema = "strict"
        sweep = true
        retention_days = {{}}
        [memory.anamnesis]
        schema = "strict"
        max_chars = 10000
        max_bytes = 0
        vouchers = "agents"
        [[rule]]
        name = "config is the owner's"
        match = {{ kinds = [30078], d_prefix = "snowclaw:config:" }}
        write = ["owner"]
        read = ["owner", "agent"]
        reject = "only an owner may write config"
        [[rule]]
        name = "all keys"
        enabled = true
        match.kinds = ["9000-9022", 1]
        match.d = "x"
        match.d_prefix = ["x"]
        match.h = true
        match.authors = ["member"]
        match.tags = {{ t = ["x"], q = false }}
        match.content_chars = 5
        match.age = 5
        match.replaces = false
        except = [{{ h = ["tea"] }}, {{ kinds = [7] }}]
        write = ["admin", "insider"]
        require = ["t"]
        schema = "off"
        pow = 8
        reject = "no"
        [[rule]]
        name = "all keys of reading"
        match = {{ kinds = [7] }}
        read = [
          "owner", "agent", "member", "known", "insider", "admin", "group", "visible", "author",
          "recipient", "tag:e", "trusted", "anyone", "nobody",
        ]
        only_by = ["authors", "#p"]
        [[retention]]
        name = "clears"
        match = {{ kinds = [30096] }}
        keep = "first"
        never = true
        never_before = {{ kinds = [30094, 30095], same = ["author", "hk"], up_to = "ts" }}
        """,
    )
    [network] = found.trusted_readers
    assert str(network) == "10.1.2.3/32"


def test_the_relays_own_key_is_taken_along(tmp_path: Path) -> None:
    assert load(tmp_path, MEMORY_SYSTEMS, relay=owner.pubkey).actors.relay == owner.pubkey


def test_an_empty_file_is_noted(tmp_path: Path) -> None:
    found = loaded(tmp_path, a="", b="# nothing yet\n")
    assert [str(note) for note in found.notes] == [f"{tmp_path / 'a.toml'}: is empty"]
    assert list(found.notes) == list(warnings_of(found)), "`rookery policy check` names it too"
