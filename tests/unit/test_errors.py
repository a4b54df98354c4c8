"""relay/errors.py: outcomes, refusals, the text of OK."""

from __future__ import annotations

from dataclasses import FrozenInstanceError

import pytest

from relay.errors import (
    Prefix,
    Reject,
    UserError,
    WriteOutcome,
    kind_of_reason,
    masked,
    ok_reply,
)
from relay.facts import Who
from tests.unit.policies.facts import NOBODY, being

MACHINE_WORDS = {
    "duplicate",
    "pow",
    "blocked",
    "rate-limited",
    "invalid",
    "restricted",
    "mute",
    "error",
    "auth-required",
    "unsupported",
}
"""The prefixes of NIP-01 and NIP-42 (N01-92)."""


@pytest.mark.parametrize(
    ("outcome", "accepted", "text"),
    [
        (WriteOutcome.STORED, True, ""),
        (WriteOutcome.PASSED_ON, True, ""),
        (WriteOutcome.DUPLICATE, True, "duplicate: already have this event"),
        (WriteOutcome.TAKEN, True, "duplicate: already stored under this d"),
        (WriteOutcome.SUPERSEDED, False, "duplicate: a newer version is stored"),
        (WriteOutcome.CHANGED, False, "duplicate: another version is stored"),
        (
            WriteOutcome.BASE_DELETED,
            False,
            "duplicate: the version that it was made from is deleted",
        ),
        (WriteOutcome.DELETED, False, "blocked: deleted"),
        (WriteOutcome.EXPIRED, False, "invalid: event expired"),
        (WriteOutcome.MEMBER, True, "duplicate: you are already a member of this relay"),
        (WriteOutcome.JOINED, True, "info: welcome to this relay"),
        (WriteOutcome.LEFT, True, "info: you have left this relay"),
        (WriteOutcome.NO_MEMBER, True, "duplicate: you are not a member of this relay"),
    ],
)
def test_each_outcome_has_its_ok(outcome: WriteOutcome, text: str, *, accepted: bool) -> None:
    """Clients may compare these texts."""
    assert ok_reply(outcome) == (accepted, text)


@pytest.mark.parametrize("outcome", list(WriteOutcome))
def test_every_ok_text_has_a_known_prefix(outcome: WriteOutcome) -> None:
    """N01-91: only with true the text may be empty; else it is `<prefix>: <text>`.

    `info` is that of NIP-43's example of a welcome (N43-03).
    """
    accepted, text = ok_reply(outcome)
    word, colon, rest = text.partition(": ")
    if text:
        assert word in MACHINE_WORDS or (accepted and word == "info")
        assert colon
        assert rest
    else:
        assert accepted


@pytest.mark.parametrize("prefix", list(Prefix))
def test_a_reject_is_sent_with_its_prefix_and_without_its_rule(prefix: Prefix) -> None:
    """The name of the rule is for logs and metrics."""
    reject = Reject(prefix, "not here", "a rule of the admin's")
    assert ok_reply(reject) == (False, f"{prefix.value}: not here")
    assert prefix.value in MACHINE_WORDS


@pytest.mark.parametrize(
    ("said", "counted"),
    [
        (
            "invalid: created_at: 2306578567 s in the future, at most 900 s allowed",
            "invalid: created_at: in the future, at most 900 s allowed",
        ),
        ("invalid: not JSON (column 12)", "invalid: not JSON"),
        (f"invalid: id (id {'0' * 64})", "invalid: id"),
        ("restricted: not a member", "restricted: not a member"),
    ],
)
def test_reasons_that_differ_in_a_number_are_counted_together(said: str, counted: str) -> None:
    assert kind_of_reason(said) == counted


def test_closed_has_the_same_text_as_ok() -> None:
    """N01-93: `<prefix>: …` in both."""
    reject = Reject(Prefix.AUTH_REQUIRED, "log in to write here", "logins")
    refused = reject.refused()
    assert (refused.prefix, refused.text) == (reject.prefix, reject.text)
    assert str(refused) == ok_reply(reject)[1]


def test_a_verdict_is_frozen() -> None:
    with pytest.raises(FrozenInstanceError):
        Reject(Prefix.BLOCKED, "no", "a rule").text = "yes"  # type: ignore[misc]
    with pytest.raises(AttributeError):
        NOBODY.has_group = True  # type: ignore[misc]
    assert being(Who.OWNER).who > NOBODY.who


def test_who_words_are_those_of_policy_files() -> None:
    assert {who.value for who in Who} == {
        "anyone",
        "nobody",
        "owner",
        "agent",
        "member",
        "known",
        "insider",
        "admin",
        "group",
        "visible",
        "author",
        "recipient",
        "trusted",
        "target",
    }


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("no folder nsec1qqqsyqc is there", "no folder nsec1… is there"),
        ("NSEC1QQQ", "NSEC1…"),
        ("--relay: 'ws://ada:let@me/in@127.0.0.1:1/'", "--relay: 'ws://ada:…@127.0.0.1:1/'"),
        ("postgresql://ada:secret@host/db", "postgresql://ada:…@host/db"),
        ("wss://relay.example:7777/path", "wss://relay.example:7777/path"),
        (f"not a public key: '{'ab' * 32}c'", "not a public key: 'abab…'"),
        (f"not a public key: '{'ab' * 31}c'", "not a public key: 'abab…'"),
        (f"{'ab' * 32} and a signature {'cd' * 64}", f"{'ab' * 32} and a signature {'cd' * 64}"),
    ],
)
def test_what_is_shown_has_no_secret(text: str, shown: str) -> None:
    assert masked(text) == shown
    assert str(UserError(text)) == shown
