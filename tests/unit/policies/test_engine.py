"""What is asked of an event, in which order, and what speaks first."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from msgspec.structs import replace

from policies import PolicySet, load
from policies.engine import Stage
from relay.access.actors import Actors
from relay.errors import Prefix
from relay.facts import Origin, Who
from relay.memory.systems import MEMORY_SYSTEMS
from relay.nostr.event import Event, event_from
from tests.cast import alice, bob, owner, robot, stranger
from tests.harness.folders import loaded
from tests.unit.policies.facts import NOBODY, NOW, being, event_by

if TYPE_CHECKING:
    from relay.errors import Reject
    from relay.facts import Facts

KNOWN = being(Who.KNOWN, Who.MEMBER)
AGENT = being(Who.AGENT, Who.KNOWN)
OWNER = being(Who.OWNER, Who.KNOWN)
PROTECTED = [["-"]]


@pytest.fixture
def policy(tmp_path: Path) -> PolicySet:
    return load(tmp_path, MEMORY_SYSTEMS)


def said(verdict: Reject | None) -> str | None:
    return None if verdict is None else f"{verdict.prefix}: {verdict.text}"


def test_content_is_measured_in_characters_not_bytes(tmp_path: Path) -> None:
    policy = loaded(tmp_path, a="[limits]\nmax_content_length = 3")
    assert policy.screen(event_by(alice, 1, content="äöü"), NOW, Origin.WIRE) is None
    assert said(policy.screen(event_by(alice, 1, content="abcd"), NOW, Origin.IMPORT)) == (
        "invalid: content: has 4 characters, at most 3 allowed"
    )


def test_tags_are_counted(tmp_path: Path) -> None:
    policy = loaded(tmp_path, a="[limits]\nmax_event_tags = 1")
    assert policy.screen(event_by(alice, 1, [["t", "a"]]), NOW, Origin.WIRE) is None
    assert said(policy.screen(event_by(alice, 1, [["t", "a"], []]), NOW, Origin.WIRE)) == (
        "invalid: tags: has 2, at most 1 allowed"
    )


@pytest.mark.proves("N59-06", "G-14")
def test_a_lower_limit_of_time_spares_memory_wraps_and_requests_to_vanish(tmp_path: Path) -> None:
    policy = loaded(tmp_path, a="[limits]\ncreated_at_lower = 60")
    long_ago = NOW - 61
    recipient = [["p", bob.pubkey]]
    spared = [
        event_by(robot, 30095, created_at=long_ago),
        event_by(robot, 1989, created_at=long_ago),
        event_by(robot, 1080, created_at=long_ago),
        event_by(robot, 78, [["d", "nmem:obs:x"]], created_at=long_ago),
        event_by(robot, 30078, [["d", "snowclaw:core:x"]], created_at=long_ago),
        event_by(stranger, 1059, recipient, created_at=long_ago),
        event_by(stranger, 62, created_at=long_ago),
    ]
    assert [policy.screen(event, NOW, Origin.WIRE) for event in spared] == [None] * len(spared)
    for late in (event_by(alice, 1, created_at=long_ago), event_by(alice, 78, created_at=long_ago)):
        assert said(policy.screen(late, NOW, Origin.WIRE)) == (
            "invalid: created_at: 61 s in the past, at most 60 s allowed"
        )
        assert policy.screen(late, NOW, Origin.IMPORT) is None


@pytest.mark.proves("G-14")
def test_the_upper_limit_of_time_spares_nobody(policy: PolicySet) -> None:
    for kind in (1, 62, 1059, 30095):
        event = event_by(robot, kind, [["p", bob.pubkey]], created_at=NOW + 901)
        for origin in (Origin.WIRE, Origin.IMPORT, Origin.TRUSTED_SYNC):
            assert said(policy.screen(event, NOW, origin)) == (
                "invalid: created_at: 901 s in the future, at most 900 s allowed"
            )


def test_an_own_export_keeps_what_was_accepted_by_a_clock_that_was_ahead(
    policy: PolicySet,
) -> None:
    event = event_by(alice, 1, created_at=NOW + 901)
    assert policy.screen(event, NOW, Origin.TRUSTED_IMPORT) is None


def worked(event_id: str, *tag: str) -> Event:
    return Event(event_id, alice.pubkey, NOW, 1, [list(tag)] if tag else [], "", "", b"")


def test_work_is_counted_and_committed(tmp_path: Path) -> None:
    policy = loaded(tmp_path, a="[limits]\nmin_pow_difficulty = 20")
    ten, lucky = "002f" + "0" * 60, "000000f0" + "0" * 56
    for event, difficulty in (
        (worked(ten), 10),
        (worked(ten, "nonce", "1", "20"), 10),
        (worked(lucky, "nonce", "1", "10"), 10),
        (worked(lucky, "nonce", "1", "a lot"), 0),
        (worked(ten, "nonce", "1", "9" * 5000), 10),
    ):
        assert said(policy.screen(event, NOW, Origin.WIRE)) == (
            f"pow: difficulty {difficulty} is less than 20"
        )
    for enough in (worked(lucky), worked(lucky, "nonce", "1", "20"), worked(lucky, "nonce", "1")):
        assert policy.screen(enough, NOW, Origin.WIRE) is None


def test_a_request_to_vanish_needs_neither_work_nor_standing(tmp_path: Path) -> None:
    policy = loaded(
        tmp_path,
        a='[limits]\nmin_pow_difficulty = 250\n[auth]\nwrites = "always"\n'
        '[[rule]]\nname = "shut"\nwrite = ["nobody"]',
    )
    request = event_by(stranger, 62, [["relay", "ALL_RELAYS"]])
    assert policy.screen(request, NOW, Origin.WIRE) is None
    assert policy.refusal(request, NOBODY) is None


@pytest.mark.proves("G-03")
def test_who_may_not_write_learns_nothing_of_logins_or_forms(policy: PolicySet) -> None:
    bare = event_by(stranger, 30093, PROTECTED)
    assert said(policy.refusal(bare, NOBODY)) == "restricted: only agents may write memory"
    assert said(policy.refusal(bare, AGENT)) == (
        "auth-required: this event may be published by its author only"
    )
    logged_in = replace(AGENT, authenticated=frozenset({stranger.pubkey}))
    assert said(policy.refusal(bare, logged_in)) == "invalid: missing tag d"


def test_a_trusted_import_asks_for_the_form_alone(policy: PolicySet) -> None:
    facts = replace(NOBODY, origin=Origin.TRUSTED_IMPORT)
    assert policy.refusal(event_by(stranger, 1, PROTECTED), facts) is None
    assert said(policy.refusal(event_by(stranger, 30093), facts)) == "invalid: missing tag d"
    assert (
        policy.refusal(event_by(stranger, 30078, [["d", "snowclaw:config:global"]]), facts) is None
    )


def test_an_import_of_envelopes_knows_no_logins(policy: PolicySet) -> None:
    facts = replace(NOBODY, origin=Origin.IMPORT)
    assert said(policy.refusal(event_by(stranger, 1080, content="x"), facts)) == (
        "invalid: content is not a NIP-44 payload"
    )


@pytest.mark.proves("G-14")
@pytest.mark.parametrize(
    ("seconds", "text"),
    [(900, None), (901, "invalid: ts is in the future")],
)
def test_ts_is_bound_by_the_same_limit_as_created_at(
    policy: PolicySet, seconds: int, text: str | None
) -> None:
    ts = str(NOW + seconds)
    tags = [["d", "u:preference"], ["k", "aman_preference"], ["hk", "u"], ["v", "1"], ["ts", ts]]
    event = event_by(robot, 30093, tags, '{"history_key":"u","preference":"x","updated_at":1}')
    for origin in (Origin.WIRE, Origin.IMPORT, Origin.TRUSTED_SYNC):
        assert said(policy.refusal(event, replace(AGENT, origin=origin))) == text
    assert policy.refusal(event, replace(AGENT, origin=Origin.TRUSTED_IMPORT)) is None


@pytest.mark.proves("A-08")
def test_ts_equals_created_at_where_an_admin_says_so(tmp_path: Path) -> None:
    policy = loaded(tmp_path, a='[memory.aman]\nts_rule = "equal"')
    tags = [["d", "u:preference"], ["k", "aman_preference"], ["hk", "u"], ["v", "1"], ["ts", "7"]]
    event = event_by(robot, 30093, tags, "{}")
    assert said(policy.refusal(event, AGENT)) == "invalid: ts must equal created_at"


@pytest.mark.proves("A-12")
def test_a_hash_is_checked_where_an_admin_says_so(tmp_path: Path) -> None:
    policy = loaded(tmp_path, a="[memory.aman]\nverify_hash = true")
    content = '{"history_key":"hk","sender_id":null,"created_at":1700000003}'
    right = "3f706dc2381589300174faddc4cdeb23c5d8ac9b4408d0207d9cb66b7f4467fc"
    for digest, text in ((right, None), ("0" * 64, "invalid: d does not match the payload hash")):
        tags = [
            ["d", f"hk:{digest}"],
            ["k", "aman_clear_context"],
            ["hk", "hk"],
            ["v", "1"],
            ["ts", "1700000003"],
        ]
        assert said(policy.refusal(event_by(robot, 30096, tags, content), AGENT)) == text


BAD_RECORDS = json.loads((Path(__file__).parent / "bad_records.json").read_text())
"""Signed events of the memory vectors, as far as they are checked by now."""

AUTHORS = {"agent": AGENT, "owner": OWNER, "member": KNOWN, "stranger": NOBODY}


@pytest.mark.proves("G-04")
@pytest.mark.parametrize("bad", BAD_RECORDS, ids=[bad["name"] for bad in BAD_RECORDS])
def test_a_bad_record_is_refused_with_its_text(policy: PolicySet, bad: dict[str, str]) -> None:
    verdict = policy.refusal(event_from(bad["event"]), AUTHORS[bad["by"]])
    assert said(verdict) == bad["message"]


def test_a_rule_may_ask_for_tags_in_words_of_its_own(tmp_path: Path) -> None:
    policy = loaded(
        tmp_path,
        a="""
        [[rule]]
        name = "articles have titles"
        match = { kinds = [30023] }
        require = ["title", "published_at"]
        reject = "an article needs title and published_at"
        """,
    )
    assert said(policy.refusal(event_by(alice, 30023, [["title", "x"]]), KNOWN)) == (
        "invalid: an article needs title and published_at"
    )


def test_a_rule_may_require_work_of_unknown_authors(tmp_path: Path) -> None:
    policy = loaded(
        tmp_path,
        a="""
        [[rule]]
        name = "known people write"
        enabled = false
        [[rule]]
        name = "strangers work"
        pow = 250
        except = { authors = ["known"] }
        """,
    )
    note = event_by(alice, 1)
    assert policy.refusal(note, KNOWN) is None
    refusal = policy.refusal(note, NOBODY)
    assert refusal is not None
    assert (refusal.prefix, refusal.rule) == (Prefix.POW, "strangers work")


def test_a_rule_without_words_of_its_own_is_named(tmp_path: Path) -> None:
    policy = loaded(
        tmp_path, a='[[rule]]\nname = "quiet"\nwrite = ["nobody"]\nmatch = { kinds = [7] }'
    )
    assert said(policy.refusal(event_by(alice, 7), KNOWN)) == (
        "restricted: not allowed by the rule 'quiet'"
    )


@pytest.mark.slow
def test_conditions_on_length_age_replacing_and_authors(tmp_path: Path) -> None:
    def refused(match: str, facts: Facts, event: Event) -> bool:
        rule = f'[[rule]]\nname = "x"\nwrite = ["nobody"]\nmatch = {{ {match} }}'
        return loaded(tmp_path, a=rule).refusal(event, facts) is not None

    note = event_by(alice, 1, content="12345", created_at=NOW - 60)
    assert refused("content_chars = 4", KNOWN, note)
    assert not refused("content_chars = 5", KNOWN, note)
    assert refused("age = 59", KNOWN, note)
    assert not refused("age = 60", KNOWN, note)
    assert not refused("age = 59", replace(KNOWN, origin=Origin.IMPORT), note)
    assert refused("replaces = true", replace(KNOWN, replaces=True), note)
    assert not refused("replaces = true", replace(KNOWN, deletes_own=True), note)
    deletion = event_by(alice, 5)
    assert refused("replaces = true", replace(KNOWN, deletes_own=True), deletion)
    assert refused("replaces = false", KNOWN, note)
    assert refused('authors = ["member"]', KNOWN, note)
    assert not refused('authors = ["agent"]', KNOWN, note)
    assert refused(f'authors = ["agent", "{alice.npub}"]', KNOWN, note)
    assert refused("h = false", KNOWN, note)
    tagged = event_by(alice, 1, [["h", "tea"], ["t", "x"], ["empty"]])
    in_tea = replace(KNOWN, group="tea")
    assert refused("h = true", in_tea, tagged)
    assert refused('h = ["tea"]', in_tea, tagged)
    assert not refused('h = ["milk"]', in_tea, tagged)
    assert refused('tags = { t = ["x", "y"] }', KNOWN, tagged)
    assert refused("tags = { t = true, q = false }", KNOWN, tagged)
    assert not refused("tags = { t = false }", KNOWN, tagged)
    assert refused('kinds = ["0-3"], tags = { t = "x" }', KNOWN, tagged)


def test_explain_tells_each_rule_and_the_one_that_decides(policy: PolicySet) -> None:
    told = policy.explain(event_by(stranger, 30093), NOBODY)
    assert [(step.stage, step.place.name) for step in told.steps] == [
        (Stage.SCREEN, "limits and forms"),
        (Stage.WRITER, "agents write aman memory"),
        (Stage.WRITER, "known people write"),
        (Stage.LOGIN, "protected events, [auth] writes"),
        (Stage.FORM, "agents write aman memory"),
        (Stage.QUOTA, "expiring records"),
        (Stage.QUOTA, "all expiring records by unknown senders"),
    ]
    decided = told.decided
    assert decided is not None
    assert decided.verdict == policy.refusal(event_by(stranger, 30093), NOBODY)
    assert decided.place.file == "packaged/20-memory.toml"
    assert decided.place.line > 0


def test_people_may_change_without_reading_the_files_again(policy: PolicySet) -> None:
    changed = policy.with_actors(Actors(owners=frozenset({owner.pubkey})))
    assert changed.actors.owners == {owner.pubkey}
    assert changed.write_rules == policy.write_rules
    assert policy.actors.owners == frozenset()


@pytest.mark.parametrize(
    ("match", "may"), [("", False), ("age = 60", True), ("local = true", True)]
)
def test_a_rule_that_asks_more_than_the_event_refuses_nobody_before_it_is_asked(
    tmp_path: Path, match: str, *, may: bool
) -> None:
    rule = f"[[rule]]\nname = 'r'\nmatch = {{ kinds = [1]{match and ', ' + match} }}\n"
    rules = loaded(tmp_path, a=rule + "write = ['owner']")
    assert rules.may_write(event_by(alice, 1), KNOWN.who) is may
