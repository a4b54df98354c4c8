"""relay/verdict.py: how yes and no are said."""

from __future__ import annotations

from dataclasses import FrozenInstanceError

import pytest

from relay.errors import Prefix
from relay.verdict import Reject, Who, WriteOutcome, ok_reply
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
"""Of NIP-01 and NIP-42 (N01-92): use no other."""


@pytest.mark.parametrize(
    ("outcome", "accepted", "text"),
    [
        (WriteOutcome.STORED, True, ""),
        (WriteOutcome.PASSED_ON, True, ""),
        (WriteOutcome.DUPLICATE, True, "duplicate: already have this event"),
        (WriteOutcome.TAKEN, True, "duplicate: already stored under this d"),
        (WriteOutcome.SUPERSEDED, False, "duplicate: a newer version is stored"),
        (WriteOutcome.DELETED, False, "blocked: deleted"),
        (WriteOutcome.EXPIRED, False, "invalid: event expired"),
    ],
)
def test_an_author_reads_how_a_write_ended(
    outcome: WriteOutcome, text: str, *, accepted: bool
) -> None:
    """Word for word; clients compare these texts."""
    assert ok_reply(outcome) == (accepted, text)


@pytest.mark.parametrize("outcome", list(WriteOutcome))
def test_every_ending_has_words_that_clients_know(outcome: WriteOutcome) -> None:
    """N01-91: the text may be empty only with true; else it is `<word>: <text>`."""
    accepted, text = ok_reply(outcome)
    word, colon, rest = text.partition(": ")
    if text:
        assert word in MACHINE_WORDS
        assert colon
        assert rest
    else:
        assert accepted


@pytest.mark.parametrize("prefix", list(Prefix))
def test_an_objection_is_told_with_its_word_and_without_its_rule(prefix: Prefix) -> None:
    """The texts come from the rule; its name is for logs and metrics."""
    reject = Reject(prefix, "not here", "a rule of the admin's")
    assert ok_reply(reject) == (False, f"{prefix.value}: not here")
    assert prefix.value in MACHINE_WORDS


def test_a_closed_says_the_same_as_an_ok() -> None:
    """N01-93: `<word>: …` on both."""
    reject = Reject(Prefix.AUTH_REQUIRED, "log in to write here", "logins")
    refused = reject.refused()
    assert (refused.prefix, refused.text) == (reject.prefix, reject.text)
    assert str(refused) == ok_reply(reject)[1]


def test_a_verdict_cannot_be_changed_on_its_way() -> None:
    with pytest.raises(FrozenInstanceError):
        Reject(Prefix.BLOCKED, "no", "a rule").text = "yes"  # type: ignore[misc]
    with pytest.raises(FrozenInstanceError):
        NOBODY.has_group = True  # type: ignore[misc]
    assert being(Who.OWNER).who > NOBODY.who


def test_who_words_are_what_policy_files_say() -> None:
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
