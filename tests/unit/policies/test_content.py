"""`content` of a rule and `[memory] reject_patterns`: what is refused, and what is never told."""

from __future__ import annotations

import json
import logging
from typing import TYPE_CHECKING

import pytest
from msgspec.structs import replace

from relay.errors import Prefix, Reject
from relay.facts import Origin, Who
from relay.nostr import kinds
from tests.cast import alice, robot
from tests.harness.folders import faults_of, loaded
from tests.unit.policies.facts import NOBODY, being, event_by

if TYPE_CHECKING:
    from pathlib import Path

    from policies.engine import PolicySet
    from relay.nostr.event import Event

OPEN = '[[rule]]\nname = "known people write"\nenabled = false\n'
SECRET = "ghp_" + "a" * 36
NIP44 = "Agw" + "A" * 133
"""The form of a NIP-44 payload."""
BOX = "c2VjcmV0" * 8
"""The form of a secretbox: base64 of 48 bytes."""


def rule(folder: Path, content: str, more: str = "") -> PolicySet:
    return loaded(folder, a=f'{OPEN}[[rule]]\nname = "tidy"\ncontent = {content}\n{more}')


def said(policy: PolicySet, event: Event) -> str:
    found = policy.refusal(event, replace(NOBODY, group=event.tag("h")))
    return "" if found is None else f"{found.prefix}: {found.text}"


def note(content: str, *tags: list[str], kind: int = 1) -> Event:
    return event_by(alice, kind, list(tags), content)


@pytest.mark.parametrize("content", ["{}", ' \n{"a": [1, {"b": null}]}', '{"a": 1e400}'])
def test_a_json_object_is_one(tmp_path: Path, content: str) -> None:
    assert said(rule(tmp_path, "{ json = true }"), note(content)) == ""


@pytest.mark.parametrize(
    "content",
    [
        "",
        "[]",
        "1",
        '"x"',
        "null",
        "{",
        "{}}",
        "{'a': 1}",
        '{"a": NaN}',
        "{" * 10_000,
        '{"a": ' + "[" * 10_000,
        '{"a": ' + "9" * 5000 + "}",
    ],
    ids=lambda content: content[:12] or "nothing",
)
def test_what_is_no_json_object_is_invalid(tmp_path: Path, content: str) -> None:
    policy = rule(tmp_path, "{ json = true }")
    assert said(policy, note(content)) == "invalid: content is not a JSON object"


@pytest.mark.proves("G-21")
@pytest.mark.parametrize(
    "event",
    [
        note("no json", kind=kinds.GIFT_WRAP),
        note("no json", kind=kinds.ENCRYPTED_MESSAGE),
        note(BOX, ["enc", "secretbox-v1"]),
        note("x", ["encrypted", "nip44"]),
        note(NIP44),
        note("aGk=?iv=aGk="),
    ],
    ids=lambda event: f"{event.kind} {event.content[:10]}",
)
def test_what_is_encrypted_is_not_parsed(tmp_path: Path, event: Event) -> None:
    """G-21."""
    assert said(rule(tmp_path, "{ json = true }"), event) == ""


def test_a_pattern_refuses_wherever_it_is_found(tmp_path: Path) -> None:
    policy = rule(tmp_path, '{ refuse = ["https?://", "(?i)buy now"] }')
    blocked = "blocked: content is refused by the rule 'tidy'"
    assert said(policy, note("see http://x")) == blocked
    assert said(policy, note("please BUY NOW, ünïcödé")) == blocked
    assert said(policy, note("ünïcödé: http:/x")) == ""
    assert said(policy, note("")) == ""


def test_the_admin_has_the_word(tmp_path: Path) -> None:
    policy = rule(tmp_path, '{ json = true, refuse = ["x"] }', 'reject = "facts only"')
    assert said(policy, note("no json")) == "invalid: facts only"
    assert said(policy, note('{"x": 1}')) == "blocked: facts only"


def test_with_write_the_words_of_the_admin_are_for_whom_it_keeps_out(tmp_path: Path) -> None:
    policy = rule(tmp_path, '{ refuse = ["x"] }', 'write = ["agent"]\nreject = "agents only"')
    assert said(policy, note("x")) == "restricted: agents only"


@pytest.mark.proves("G-21")
@pytest.mark.parametrize(
    "event",
    [note(BOX, ["enc", "x"]), note(NIP44), note(BOX, kind=1059)],
    ids=["by tag", "by form", "by kind"],
)
def test_ciphertext_is_not_searched(tmp_path: Path, event: Event) -> None:
    """By chance anything can be found in it."""
    assert said(rule(tmp_path, '{ refuse = ["[A-Za-z]"] }'), event) == ""


@pytest.mark.parametrize(
    "event",
    [
        note("buy now at https://x", ["enc", "secretbox-v1"]),
        note("buy now", kind=kinds.ENCRYPTED_MESSAGE),
        note("buy", ["encrypted", "nip44"]),
        note("buy" * 20),
        note("nsec1" + "buy0" * 14 + "qy", ["enc", "nip44"]),
        note("buy0" * 16, ["encrypted"]),
        note("BUYbuy/" + "Aa" * 28, ["encrypted"]),
    ],
    ids=["a tag", "a kind", "too short", "only letters", "an nsec", "hex or so", "no base64"],
)
def test_a_claim_to_be_encrypted_does_not_get_past_a_pattern(tmp_path: Path, event: Event) -> None:
    policy = rule(tmp_path, '{ refuse = ["buy"] }')
    assert said(policy, event) == "blocked: content is refused by the rule 'tidy'"


@pytest.mark.parametrize(
    ("pattern", "content"),
    [
        ("(a+)+$", "a" * 100_000 + "!"),
        ("(a|aa)*b", "a" * 100_000),
        ("(x+x+)+y", "x" * 100_000),
        ("([a-z]+)*[0-9]", "q" * 100_000),
        ("a[ab]{100}c", "ab" * 50_000),
        ("(.*)(.*)(.*)(.*)(.*)[0-9]z", "ab" * 50_000),
    ],
)
def test_no_pattern_blows_up(tmp_path: Path, pattern: str, content: str) -> None:
    """A backtracking engine would not come back from these."""
    assert said(rule(tmp_path, f"{{ refuse = ['{pattern}'] }}"), note(content)) == ""


def test_patterns_are_not_without_number(tmp_path: Path) -> None:
    many = json.dumps([f"word{number}" for number in range(201)])
    [fault] = faults_of(tmp_path, a=f'[[rule]]\nname = "x"\ncontent = {{ refuse = {many} }}')
    assert fault == "a.toml:3: refuse has 201 patterns, at most 200 are allowed"


def test_what_was_found_is_neither_said_nor_logged(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    policy = rule(tmp_path, '{ refuse = ["ghp_[A-Za-z0-9]{36}"] }')
    event = note(f"my token is {SECRET}")
    steps = policy.explain(event, NOBODY).steps
    found = [step.verdict for step in steps if step.verdict is not None]
    assert [verdict.prefix for verdict in found] == [Prefix.BLOCKED]
    for text in (*[verdict.text for verdict in found], *[f.rule for f in found], caplog.text):
        assert "ghp_" not in text
        assert "token" not in text


def test_a_rule_is_about_what_it_matches(tmp_path: Path) -> None:
    policy = rule(tmp_path, '{ refuse = ["x"] }', "match = { kinds = [9] }\nexcept = { h = true }")
    assert said(policy, note("x")) == ""
    assert said(policy, note("x", kind=9)) != ""
    assert said(policy, note("x", ["h", "tea"], kind=9)) == ""


def test_imports_are_searched_too(tmp_path: Path) -> None:
    policy = rule(tmp_path, '{ refuse = ["x"] }')
    for origin in (Origin.IMPORT, Origin.TRUSTED_IMPORT):
        assert policy.refusal(note("x"), replace(NOBODY, origin=origin)) is not None


REJECTED = Reject(Prefix.BLOCKED, "content matches a reject pattern", "[memory] reject_patterns")


def memory_policy(folder: Path) -> PolicySet:
    return loaded(
        folder,
        a=(
            f'{OPEN}[actors]\nagents = ["{robot.npub}"]\n'
            '[memory]\nschema = "off"\nreject_patterns = ["ghp_[A-Za-z0-9]{36}"]'
        ),
    )


@pytest.mark.proves("M-31")
@pytest.mark.parametrize(
    ("kind", "d"),
    [(30093, "a"), (1988, "a"), (30078, "nmem:pref:x"), (78, "nmem:obs:x"), (30090, "a")],
)
def test_memory_with_a_secret_is_blocked(tmp_path: Path, kind: int, d: str) -> None:
    """M-31: the pattern is not told."""
    policy = memory_policy(tmp_path)
    facts = being(Who.AGENT)
    tags = [["d", d], *[[name, "1"] for name in ("k", "hk", "v", "ts")]]
    event = event_by(robot, kind, tags, f'{{"x": "{SECRET}"}}')
    assert policy.refusal(event, facts) == REJECTED
    assert policy.refusal(event_by(robot, kind, tags, "{}"), facts) is None
    sealed = event_by(robot, kind, [*tags, ["enc", "secretbox-v1"]], BOX)
    assert policy.refusal(sealed, facts) is None


def test_what_is_no_memory_is_nobodys_secret(tmp_path: Path) -> None:
    assert memory_policy(tmp_path).refusal(note(SECRET), NOBODY) is None


@pytest.mark.proves("G-03")
def test_whoever_may_not_write_learns_nothing_of_patterns(tmp_path: Path) -> None:
    """G-03."""
    event = event_by(alice, 30093, [["d", "a"]], SECRET)
    found = memory_policy(tmp_path).refusal(event, NOBODY)
    assert found is not None
    assert found.prefix is Prefix.RESTRICTED
