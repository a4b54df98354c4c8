"""events.jsonl, events_generated.jsonl: events that must be taken as they are, to the byte."""

from __future__ import annotations

import json

import orjson
import pytest

from relay.nostr.event import event_from, event_from_raw
from relay.nostr.filters import FilterTerms
from relay.nostr.keys import is_signed
from relay.nostr.messages import Publish, parse
from tests.golden import lines

NAMED = [
    (f"{name} {number}: {case.get('note') or case.get('origin')}", case["event"])
    for name in ("events.jsonl", "events_generated.jsonl")
    for number, case in enumerate(lines(name), 1)
]


@pytest.mark.proves("N01-10", "N01-11")
def test_an_event_of_the_field_has_its_id_and_its_signature() -> None:
    for name, fields in NAMED:
        event = event_from(fields)
        assert event.id == fields["id"], name
        assert is_signed(event), name


@pytest.mark.proves("N01-01", "N01-03", "N01-04")
def test_what_is_stored_and_sent_has_the_same_seven_values() -> None:
    """N01-02, N01-03, N01-04."""
    for name, fields in NAMED:
        event = event_from(fields)
        assert json.loads(event.raw) == fields, name
        assert event_from_raw(event.raw) == event, name


def test_it_comes_in_by_an_event_frame() -> None:
    for name, fields in NAMED:
        frame = orjson.dumps(["EVENT", fields])
        assert parse(frame, FilterTerms(), 1) == Publish(event_from(fields)), name
