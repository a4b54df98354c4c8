"""`event_in_frame` and `submitted_event` accept and refuse the same events as `event_from`."""

from __future__ import annotations

import json
from pathlib import Path

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from relay.errors import Invalid
from relay.nostr.event import Event, event_from, event_in_frame, submitted_event
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
    assert submitted(text) in (None, slow)
    return slow, quick


def submitted(text: str | bytes) -> Event | None:
    """The same in the frame of a client; None too when there is more in it than an event."""
    sent = text if isinstance(text, bytes) else text.encode("utf-8", "surrogatepass")
    return submitted_event(b'["EVENT",' + sent + b"]")


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
    sent = submitted(event.raw)
    assert sent == event
    assert sent.raw == event.raw


ODD: list[bytes] = [
    GOOD.raw[:-1] + b',"seen":1}',
    GOOD.raw[:-1] + b',"seen":"\xff"}',
    GOOD.raw[:-1] + b',"seen":' + b"[" * 5000 + b"]" * 5000 + b"}",
    GOOD.raw + b",1",
    GOOD.raw + b",",
    GOOD.raw.replace(b'"t"', b'"\\ud800"'),
    GOOD.raw.replace(b'"t"', b'"\xed\xa0\x80"'),
    GOOD.raw.replace(b"\\n", b"\n"),
]


@pytest.mark.parametrize("text", ODD, ids=range(len(ODD)))
def test_a_frame_with_more_or_less_than_an_event_is_left_to_who_says_what_is_wrong(
    text: bytes,
) -> None:
    assert submitted(text) is None
