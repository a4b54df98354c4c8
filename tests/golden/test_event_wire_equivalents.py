"""event_wire_equivalents.json: spellings of one event that mean the same (N01-03, N01-24)."""

from __future__ import annotations

import pytest

from relay.nostr.filters import FilterTerms
from relay.nostr.keys import is_signed
from relay.nostr.messages import Publish, parse
from tests.golden import document

SAME = document("event_wire_equivalents.json")


def taken(wire: str) -> Publish:
    message = parse(f'["EVENT",{wire}]', FilterTerms(), 1)
    assert isinstance(message, Publish), message
    return message


@pytest.mark.proves("N01-03", "N01-24")
@pytest.mark.parametrize("wire", SAME["wire"], ids=range(1, len(SAME["wire"]) + 1))
def test_each_spelling_is_taken_as_the_same_event(wire: str) -> None:
    event = taken(wire).event
    assert event.id == SAME["id"]
    assert is_signed(event)


def test_all_spellings_are_stored_as_the_same_bytes() -> None:
    assert len({taken(wire).event.raw for wire in SAME["wire"]}) == 1
