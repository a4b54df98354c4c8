"""Stripping of usage, request ids and secrets."""

from __future__ import annotations

import json

import pytest

from relay.memory.transcripts.assembly import assembled
from relay.memory.transcripts.plan import Plan
from relay.memory.transcripts.stripping import Part, Stripping
from tests.unit.memory.transcripts.telling import (
    archive,
    call_block,
    file_of,
    line,
    notes,
    text_block,
    told,
)

USAGE = Plan(stripping=Stripping(frozenset({Part.USAGE})))
REQUESTS = Plan(stripping=Stripping(frozenset({Part.REQUEST_IDS})))


def hidden(text: str) -> str:
    return text.replace("s3cret", "[REDACTED]")


SECRETS = Plan(stripping=Stripping(frozenset({Part.SECRETS}), hidden))

SPENT = line(
    "assistant",
    requestId="req_1",
    message={
        "content": [text_block("hi"), call_block("t", "X", usage="mine", requestId="mine")],
        "usage": {"input_tokens": 12},
    },
)


def lines_of(data: bytes, plan: Plan) -> list[dict[str, object]]:
    return [json.loads(raw) for raw in file_of(assembled(told(data, plan))).splitlines()]


def test_usage_is_left_out_and_a_tools_input_is_not() -> None:
    (left,) = lines_of(SPENT, USAGE)
    all_of_it = json.loads(SPENT)
    del all_of_it["message"]["usage"]
    assert left == all_of_it
    assert left["requestId"] == "req_1"


def test_request_ids_are_left_out() -> None:
    (left,) = lines_of(SPENT, REQUESTS)
    all_of_it = json.loads(SPENT)
    del all_of_it["requestId"]
    assert left == all_of_it


def test_a_line_says_what_it_lost_and_the_session_how_much() -> None:
    data = SPENT + line() + SPENT
    plan = Plan(stripping=Stripping(frozenset({Part.USAGE, Part.REQUEST_IDS})))
    events = told(data, plan)
    sources = archive(events)
    assert [source.tags[-2] for source in sources] == [
        ["stripped", "usage", "request-ids"],
        ["paths", "cwd-token-v1"],
        ["stripped", "usage", "request-ids"],
    ]
    assert assembled(events).stripped == {"usage": 2, "request-ids": 2}
    assert assembled(told(data)).stripped == {}


def test_a_line_that_loses_nothing_stays_to_the_byte() -> None:
    odd = b'{ "n" : 1.0 }\n' + line() + b"\xff\n" + b"no json\n"
    for plan in (USAGE, REQUESTS, SECRETS):
        assert file_of(assembled(told(odd, plan))) == odd


def test_secrets_are_in_no_note_and_no_line() -> None:
    data = (
        line(message="the s3cret word", toolUseResult=["s3cret", {"x": "s3cret"}, 7, None])
        + b"s3cret is no json\n"
        + b"\xff s3cret\n"
        + rb'{"x":"\ud800 s3cret"}'
        + b"\n"
    )
    events = told(data, SECRETS)
    assert not any(b"s3cret" in event.raw for event in events)
    assert notes(events)[0].content == "the [REDACTED] word"
    assert assembled(events).stripped == {"secrets": 4}
    assert b'"the [REDACTED] word"' in file_of(assembled(events))
    assert rb'"\ud800 [REDACTED]"' in file_of(assembled(events))


def test_what_is_nested_too_deep_to_be_looked_into_does_not_leave() -> None:
    deep = b'{"x":' + b"[" * 1000 + b'"s3cret"' + b"]" * 1000 + b"}\n"
    (source,) = told(deep, SECRETS)
    assert source.tag("source-data") == ""
    assert assembled([source]).stripped == {"secrets": 1}


def test_who_takes_secrets_out_says_how() -> None:
    with pytest.raises(ValueError, match="go together"):
        Stripping(frozenset({Part.SECRETS}))
    with pytest.raises(ValueError, match="go together"):
        Stripping(frozenset({Part.USAGE}), hidden)
