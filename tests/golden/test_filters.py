"""filters.json: which filter matches which event (N01-60…72)."""

from __future__ import annotations

from typing import Any

import pytest

from relay.errors import Invalid
from relay.nostr.event import event_from
from relay.nostr.filters import FilterTerms, filter_from
from tests.golden import document, lines

EVENTS = {case["event"]["id"]: case["event"] for case in lines("events_generated.jsonl")}
CASES = document("filters.json")["cases"]
PREFIX = [case for case in CASES if any(len(id_) != 64 for id_ in case["filter"].get("ids", ()))]


@pytest.mark.proves("N01-61", "N01-62", "N01-66")
@pytest.mark.parametrize(
    "case", [case for case in CASES if case not in PREFIX], ids=lambda case: case["note"]
)
def test_the_verdict_is_the_one_of_the_table(case: dict[str, Any]) -> None:
    event = event_from(EVENTS[case["event_id"]])
    assert filter_from(case["filter"], FilterTerms()).matches(event) is case["match"]


@pytest.mark.proves("N01-64", "N01-65")
@pytest.mark.parametrize("case", PREFIX, ids=lambda case: case["note"])
def test_a_prefix_of_an_id_matches_nothing_since_it_is_no_id(case: dict[str, Any]) -> None:
    """N01-64, N01-65."""
    assert case["match"] is False
    with pytest.raises(Invalid, match="ids"):
        filter_from(case["filter"], FilterTerms())
