"""`event_in_frame` accepts and refuses the same events as `event_from`."""

from __future__ import annotations

import json
from pathlib import Path

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from relay.errors import Invalid
from relay.nostr.event import Event, event_from, event_in_frame
from tests.cast import alice

GOLDEN = Path(__file__).parents[2] / "golden"
GOOD = alice.sign(1, [["t", "tea"], []], "zażółć \n \u2028", 1_700_000_000)


def framed(event: bytes | str) -> str:
    text = event.decode() if isinstance(event, bytes) else event
    return f'["EVENT","s1",{text}]'


def both(text: str) -> tuple[Event | None, Event | None]:
    """What each way makes of one event."""
    try:
        slow = event_from(orjson.loads(text))
    except (Invalid, orjson.JSONDecodeError):
        slow = None
    try:
        quick = event_in_frame(framed(text))
    except Invalid:
        quick = None
    return slow, quick


@pytest.mark.parametrize("name", ["events.jsonl", "events_generated.jsonl"])
def test_the_golden_events_are_read(name: str) -> None:
    for line in (GOLDEN / name).read_text("utf-8").rstrip("\n").split("\n"):
        fields = json.loads(line)
        text = json.dumps(fields.get("event", fields))
        slow, quick = both(text)
        assert quick == slow
        assert quick is None or quick.raw == slow.raw  # type: ignore[union-attr]


CHANGES: list[dict[str, object]] = [
    {"id": "0" * 64},
    {"id": GOOD.id.upper()},
    {"id": 7},
    {"pubkey": GOOD.pubkey.upper()},
    {"pubkey": "ab"},
    {"sig": GOOD.sig.upper()},
    {"sig": GOOD.sig[:-1]},
    {"kind": -1},
    {"kind": 65_536},
    {"kind": True},
    {"kind": "1"},
    {"kind": None},
    {"kind": 1.5},
    {"kind": 1.0},
    {"created_at": -1},
    {"created_at": 2**63},
    {"created_at": 2**70},
    {"created_at": 1_700_000_000.0},
    {"created_at": "1700000000"},
    {"tags": [["a", 1]]},
    {"tags": [None]},
    {"tags": {}},
    {"tags": "t"},
    {"content": None},
    {"content": 1},
    {"content": "another"},
]


@pytest.mark.parametrize("change", CHANGES, ids=range(len(CHANGES)))
def test_an_event_with_a_wrong_field_is_refused_by_both(change: dict[str, object]) -> None:
    assert both(json.dumps({**json.loads(GOOD.raw), **change})) == (None, None)


@pytest.mark.parametrize("name", ["id", "pubkey", "created_at", "kind", "tags", "content", "sig"])
def test_an_event_without_a_field_is_refused_by_both(name: str) -> None:
    fields = json.loads(GOOD.raw)
    del fields[name]
    assert both(json.dumps(fields)) == (None, None)


@pytest.mark.parametrize("text", ["null", "[]", "7", '"x"', "{", "{}", '{"id":"\\ud800"}'])
def test_what_is_no_event_is_refused_by_both(text: str) -> None:
    assert both(text) == (None, None)


def test_unknown_fields_and_spaces_change_nothing() -> None:
    text = json.dumps({**json.loads(GOOD.raw), "seen": [1, {"a": None}]}, indent=2)
    assert both(text) == (GOOD, GOOD)


@pytest.mark.parametrize("frame", ['["EVENT","s1"]', '["EVENT"]', "[]", "{}", "", '["EVENT",1,{}]'])
def test_what_is_no_frame_is_refused(frame: str) -> None:
    with pytest.raises(Invalid):
        event_in_frame(frame)


@given(st.text(), st.lists(st.lists(st.text(), max_size=3), max_size=3), st.integers(0, 2**63 - 1))
def test_every_event_is_read_back_to_the_byte(
    content: str, tags: list[list[str]], created_at: int
) -> None:
    event = alice.sign(1, tags, content, created_at)
    assert both(event.raw.decode()) == (event, event)
    assert event_in_frame(framed(event.raw)).raw == event.raw
