"""Stripping of usage, request ids and secrets."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from relay.memory.transcripts.assembly import assembled
from relay.memory.transcripts.lines import line_of
from relay.memory.transcripts.plan import Plan
from relay.memory.transcripts.stripping import ONLY_SECRETS, Part, Stripping, strip
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
SECRETS = Plan(stripping=Stripping(frozenset({Part.SECRETS})))
SECRET = "sk-" + "a1B2" * 8

SPENT = line(
    "assistant",
    requestId="req_1",
    message={
        "content": [text_block("hi"), call_block("t", "X", usage="mine", requestId="mine")],
        "usage": {"input_tokens": 12},
    },
)

WORDS = st.sampled_from(["tea", "cup"])
JSON = st.recursive(
    WORDS | st.integers(),
    # Pairs, of which several may have one name.
    lambda inner: st.lists(inner) | st.lists(st.tuples(WORDS, inner)).map(tuple),
)


def text_of(value: object) -> str:
    if isinstance(value, tuple):
        return f"{{{','.join(f'{text_of(name)}:{text_of(each)}' for name, each in value)}}}"
    if isinstance(value, list):
        return f"[{','.join(map(text_of, value))}]"
    return json.dumps(value)


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
    json_lines = line(message=f"the {SECRET} word", toolUseResult=[SECRET, {"x": SECRET}, 7, None])
    cut = rf'{{"x":"\ud800 {SECRET}"}}'
    other = f"{SECRET} is no json".encode(), b"\xff " + SECRET.encode(), cut.encode()
    events = told(json_lines + b"\n".join(other), SECRETS)
    assert not any(SECRET in event.raw.decode() for event in events)
    assert notes(events)[0].content == "the [REDACTED] word"
    assert assembled(events).stripped == {"secrets": 4}
    assert b'"the [REDACTED] word"' in file_of(assembled(events))
    assert b'"? [REDACTED]"' in file_of(assembled(events))


def test_what_its_name_calls_a_secret_is_in_no_note_and_no_line() -> None:
    given = {"host": "db", "password": "hunter2", "api_key": 1234567, "token": ["t0p", {"x": "s3"}]}
    given |= {"secret": {"value": "kettle"}, "uses_password": True, "no_token": None}
    data = line("assistant", message={"content": [call_block("t", "connect", **given)]})
    events = told(data, SECRETS)
    for word in ("hunter2", "1234567", "t0p", "s3", "kettle"):
        assert not any(word in event.raw.decode() for event in events)
    (left,) = lines_of(data, SECRETS)
    hidden = dict.fromkeys(("password", "api_key", "token", "secret"), "[REDACTED]")
    assert left == json.loads(
        line("assistant", message={"content": [call_block("t", "connect", **{**given, **hidden})]})
    )


@given(JSON, st.integers(0, 9))
def test_no_name_and_no_hidden_field_is_a_place_for_a_secret(value: object, place: int) -> None:
    before, *words = f'{{"x":{text_of(value)}}}'.split("tea")
    words[place : place + 1] = [f" {SECRET}{word}" for word in words[place : place + 1]]
    text = "tea".join((before, *words))
    has_secret = place < len(words)
    stripped = strip(line_of(1, text.replace("a", r"\u0061").encode()), ONLY_SECRETS)
    assert stripped.text is not None
    assert SECRET not in str(json.loads(stripped.text, object_pairs_hook=list))
    assert stripped.stripped == ((Part.SECRETS,) if has_secret else ())
    assert (stripped.text == text.replace("a", r"\u0061")) is not has_secret


def test_a_field_that_a_later_one_of_its_name_hides_is_no_place_for_a_secret() -> None:
    first, last = rb'{"type":"user","content":"DUP ', rb'","content":"harmless"}'
    for secret in (SECRET, SECRET.replace("s", r"\u0073", 1)):
        (source,) = archive(told(first + secret.encode() + last, SECRETS))
        assert source.tag("source-data") == '{"type":"user","content":"harmless"}'
        assert assembled([source]).stripped == {"secrets": 1}


@pytest.mark.parametrize("number", ["1" * 5000, "-1e999", "0.10"])
def test_a_line_with_an_odd_number_stays_to_the_byte(number: str) -> None:
    data = f'{{"n":{number},"n":{number}}}\n'.encode()
    assert file_of(assembled(told(data, SECRETS))) == data


def test_what_is_nested_too_deep_to_be_looked_into_does_not_leave() -> None:
    deep = b'{"x":' + b"[" * 1000 + b"]" * 1000 + b"}\n"
    (source,) = told(deep, SECRETS)
    assert source.tag("source-data") == ""
    assert assembled([source]).stripped == {"secrets": 1}
