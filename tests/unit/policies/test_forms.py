"""policies/rules/forms.py: refusals before the signature is checked."""

from __future__ import annotations

import pytest

from policies.rules import forms
from policies.rules.forms import FORMS
from relay.facts import Origin
from relay.nostr import kinds
from relay.nostr.event import json_in
from tests.cast import alice

MANY = "[]," * 16_384


@pytest.mark.parametrize(
    ("content", "is_parsed"),
    [
        (f'{{"a":[{"0," * 100_000}0],"tags":[]}}', False),
        ('{"tags":[["t","-x"]],"content":"-"}', True),
        (r'{"tags":[["\u002d"]]}', True),
        (f'{{"tags":[["-"]],"a":[{MANY}0]}}', False),
    ],
)
def test_a_repost_is_parsed_only_if_it_may_be_of_a_protected_event(
    monkeypatch: pytest.MonkeyPatch, content: str, *, is_parsed: bool
) -> None:
    """400,000 characters took 37 ms of the loop, of anybody, with any signature."""
    parsed: list[str] = []

    def noting(text: str) -> object:
        parsed.append(text)
        return json_in(text)

    monkeypatch.setattr(forms, "json_in", noting)
    found = FORMS[kinds.REPOST](alice.sign(6, [], content, 1), Origin.WIRE)
    assert bool(parsed) is is_parsed
    assert (found is not None) is ('["-"]' in content or "002d" in content)


@pytest.mark.parametrize("field", ['"x":"\\ud800"', '"x":1e400', f'"x":{"[" * 1100}{"]" * 1100}'])
def test_a_protected_event_is_not_hidden_by_what_only_clients_parse(field: str) -> None:
    """They take half of a surrogate pair, and look at the fields that they need."""
    inner = alice.sign(1, [["-"]], "secret", 1).raw.decode()
    content = f"{inner[:-1]},{field}}}"
    assert FORMS[kinds.REPOST](alice.sign(6, [], content, 1), Origin.WIRE) is not None
