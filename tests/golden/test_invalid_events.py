"""invalid_events.jsonl: events that must be refused, each with the statement that refuses it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from relay.errors import Prefix
from relay.nostr.filters import FilterTerms
from relay.nostr.keys import is_signed
from relay.nostr.messages import BadEvent, BadFrame, Publish, parse
from tests.golden import lines

RULES_OF_THE_RELAY = {
    "N70-01": "a protected event needs its author's AUTH",
    "N40-03": "an event may have expired before it arrives",
    "N42-10": "a login is no event to store",
    "N62-02": "a vanish request names relays",
    "N29-60": "group state is the relay's own",
    "N70-05": "a repost may carry a protected event",
}
"""Well-formed events that a relay refuses: tests/conversations has a script for each."""

ALL = lines("invalid_events.jsonl")
FORM = [case for case in ALL if case["statement"] not in RULES_OF_THE_RELAY]
RULE = [case for case in ALL if case["statement"] in RULES_OF_THE_RELAY]


def named(case: dict[str, Any]) -> str:
    return f"{case['n']}: {case['reason']}"


@pytest.mark.parametrize(
    "case",
    [
        pytest.param(case, id=named(case), marks=pytest.mark.proves(case["statement"]))
        for case in FORM
    ],
)
def test_an_event_of_wrong_form_is_refused_before_any_rule_is_asked(case: dict[str, Any]) -> None:
    message = parse(f'["EVENT",{case["raw"]}]', FilterTerms(), 1)
    if isinstance(message, BadEvent | BadFrame):
        assert message.refused.prefix is Prefix.INVALID
    else:
        assert isinstance(message, Publish)
        assert not is_signed(message.event)


@pytest.mark.parametrize("case", RULE, ids=named)
def test_an_event_that_only_a_rule_refuses_is_of_right_form(case: dict[str, Any]) -> None:
    message = parse(f'["EVENT",{case["raw"]}]', FilterTerms(), 1)
    assert isinstance(message, Publish)
    assert is_signed(message.event)


@pytest.mark.parametrize("statement", RULES_OF_THE_RELAY)
def test_a_conversation_holds_the_relay_to_each_such_rule(statement: str) -> None:
    scripts = Path(__file__).parent.parent.joinpath("conversations").rglob("*.nostr")
    titles = [script.read_text(encoding="utf-8").partition("\n")[0] for script in scripts]
    assert any(statement in title for title in titles)
