"""relay/nostr/messages.py: frames of both directions. N01-13, 14, 50…55, 91…94."""

from __future__ import annotations

import gc
import json
import tracemalloc
from typing import TYPE_CHECKING, Any, get_args

import orjson
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from relay.errors import Invalid, Prefix, Refused, TooManyRecords
from relay.nostr import messages
from relay.nostr.filters import Filter, FilterTerms, as_json, filter_from
from relay.nostr.messages import (
    BadCount,
    BadEvent,
    BadFrame,
    BadNeg,
    BadQuery,
    ClientMessage,
    Close,
    Count,
    KeepAlive,
    Login,
    NegClose,
    NegMessage,
    NegOpen,
    Publish,
    Subscribe,
)
from relay.nostr.recent import Recent
from tests.cast import alice
from tests.unit.nostr import strategies
from tests.unit.nostr.strategies import TERMS

if TYPE_CHECKING:
    from relay.nostr.event import Event

NOTE = alice.sign(1, [], "hello", 1_700_000_000)
LONG = [f"{number}" for number in range(10_000)]
RAW = NOTE.raw.decode()


def parse(frame: object, max_filters: int = 10) -> ClientMessage:
    """`frame` as it is when it is text, else its JSON."""
    text = frame if isinstance(frame, str | bytes) else orjson.dumps(frame)
    return messages.parse(text, TERMS, max_filters)


def refusal_of(message: ClientMessage) -> str:
    assert isinstance(message, BadEvent | BadQuery | BadFrame), message
    return str(message.refused)


@pytest.mark.proves("N01-50", "N42-01", "N45-01")
def test_every_message_type_is_parsed() -> None:
    """N01-50, N42-01, N45-01."""
    fields = json.loads(RAW)
    assert parse(["EVENT", fields]) == Publish(NOTE)
    assert parse(["AUTH", fields]) == Login(NOTE)
    assert parse(["REQ", "s", {}, {"limit": 1}]) == Subscribe("s", (Filter(), Filter(limit=1)))
    assert parse(["COUNT", "s", {"kinds": [1]}]) == Count("s", (Filter(kinds=frozenset({1})),))
    assert parse(["CLOSE", "s"]) == Close("s")


@pytest.mark.proves("N01-51")
@pytest.mark.parametrize(
    "frame",
    [
        "",
        " ",
        "hello",
        "[",
        "[]",
        "{}",
        "null",
        "7",
        '"EVENT"',
        "[7]",
        "[null]",
        "[[]]",
        "[{}]",
        '["event"]',
        '["Req","s",{}]',
        '["PINGS"]',
        '["ping"]',
        '[""]',
        '["EVENT"]',
        '["AUTH"]',
        '["REQ"]',
        '["COUNT"]',
        '["CLOSE"]',
        '["CLOSE",7]',
        '["REQ",7,{}]',
        '["REQ",null,{}]',
        "\x00",
        '["EVENT",null]',
        '["EVENT","x"]',
        '["EVENT",{}]',
        '["AUTH","challenge"]',
        b"\xff",
        b"",
    ],
)
def test_a_frame_that_is_not_a_message_gets_a_notice(frame: str | bytes) -> None:
    """N01-51, N01-52, N01-05."""
    message = parse(frame)
    assert isinstance(message, BadFrame), message
    assert message.refused.prefix is Prefix.INVALID
    assert message.refused.text


@pytest.mark.proves("N01-12", "N01-13")
@pytest.mark.parametrize(
    "text",
    [
        pytest.param('["EVENT",%s,]', id="trailing comma"),
        pytest.param('["EVENT",%s]x', id="something after it"),
        pytest.param('["EVENT",%s]/**/', id="comment"),
        pytest.param('\ufeff["EVENT",%s]', id="byte order mark"),
        pytest.param('["EVENT",%s,NaN]', id="NaN"),
        pytest.param('["EVENT",%s,Infinity]', id="Infinity"),
        pytest.param('["EVENT",%s,01]', id="leading zero"),
        pytest.param('["EVENT",%s,"\n"]', id="raw control character"),
        pytest.param('["EVENT",%s,"\\ud83d"]', id="half a surrogate pair"),
        pytest.param("['EVENT',%s]", id="single quotes"),
    ],
)
def test_json_is_strict(text: str) -> None:
    """N01-12, N01-13."""
    assert refusal_of(parse(text.replace("%s", RAW))) == "invalid: message is not JSON"


@pytest.mark.proves("N01-13")
def test_lone_surrogates_are_not_json() -> None:
    """N01-13."""
    for frame in ('["CLOSE","\ud800"]', b'["CLOSE","\xed\xa0\x80"]', b'["CLOSE","\xc3"]'):
        assert refusal_of(parse(frame)) == "invalid: message is not JSON"


@pytest.mark.proves("N01-51")
@pytest.mark.parametrize(
    ("frame", "answered"),
    [
        pytest.param(
            '["EVENT",{"content":"half \\ud83d","id":"%s"}]', BadEvent, id="half a surrogate pair"
        ),
        pytest.param('["EVENT",{"tags":[],"id" : "%s",}]', BadEvent, id="trailing comma"),
        pytest.param(' [ "EVENT" , {"id":"%s"', BadEvent, id="cut short"),
        pytest.param('["REQ","%s",{"search":"\\ud83d"}]', BadQuery, id="a REQ"),
        pytest.param('["COUNT","%s",{,}]', BadCount, id="a COUNT"),
        pytest.param('["EVENT",{"content":"\\"id\\":\\"%s\\"",}]', BadFrame, id="id in a text"),
        pytest.param('["AUTH",{"id":"%s",}]', BadFrame, id="a login"),
        pytest.param('["REQ",{"id":"%s",}]', BadFrame, id="a REQ without an id"),
        pytest.param('["REQ","%s%s",{,}]', BadFrame, id="an id that is too long"),
    ],
)
def test_what_is_not_json_is_answered_by_the_id_in_it(frame: str, answered: type) -> None:
    """0xchat fails every pending request at a NOTICE (0xchat-core, lib/src/common/network/
    connect.dart), and a text cut in the middle of an emoji is not JSON. N01-51."""
    text = frame.replace("%s", NOTE.id)
    for message in (parse(text), parse(text.encode())):
        assert type(message) is answered
        assert refusal_of(message) == "invalid: message is not JSON"
        if isinstance(message, BadEvent):
            assert message.id == NOTE.id
        if isinstance(message, BadQuery):
            assert message.sub == NOTE.id


def test_an_id_in_a_frame_that_is_not_text_is_none() -> None:
    for frame in ('["REQ","\ud800",{}]', b'["REQ","\xed\xa0\x80",{}]', b'["COUNT","a\xc3",{}]'):
        assert isinstance(parse(frame), BadFrame)


@pytest.mark.proves("N01-59")
@pytest.mark.parametrize("frame", ['["PING"]', '["PONG"]', '["PING",7]'])
def test_ping_and_pong_need_no_answer(frame: str) -> None:
    """welshman (Flotilla, Coracle) sends PING when idle (packages/net/src/policy.ts)."""
    assert parse(frame) == KeepAlive()


@pytest.mark.proves("N01-14")
@pytest.mark.parametrize("bracket", ["[", '{"a":', '["EVENT",{"tags":['])
def test_deep_nesting_is_refused(bracket: str) -> None:
    """N01-14."""
    assert isinstance(parse(bracket * 100_000), BadFrame)


@pytest.mark.parametrize("empty", [b"[]", b"{}"])
def test_a_message_of_too_many_arrays_is_refused_before_it_is_parsed(
    monkeypatch: pytest.MonkeyPatch, empty: bytes
) -> None:
    """174,000 empty tags, in half a megabyte, took the loop 60 ms."""
    event = alice.sign(1, [["t", "x"]] * 16_000, "[" * 1_000 + '"],["{' * 20_000 + "\\", 0)
    assert parse(b'["EVENT",' + event.raw + b"]") == Publish(event)
    most = b'["EVENT",{"id":"%b","tags":[%b]}]' % (b"a" * 64, b",".join([empty] * 16_381))
    assert isinstance(parse(most), BadEvent)
    monkeypatch.setattr(orjson, "loads", None)
    over = parse(most.replace(empty + b"]", empty + b"," + empty + b"]"))
    assert refusal_of(over) == "invalid: message has over 16,384 arrays and objects"
    assert isinstance(over, BadEvent)
    assert over.id == "a" * 64
    kinds = b",".join([empty] * 16_384)
    assert isinstance(parse(b'["REQ","s",{"kinds":[%b]}]' % kinds), BadQuery)


@pytest.mark.proves("Z-11")
def test_the_last_of_two_equal_keys_counts_and_is_what_is_stored() -> None:
    """Z-11."""
    doubled = '["EVENT",{"content":"other",' + RAW[1:] + "]"
    message = parse(doubled)
    assert message == Publish(NOTE)
    assert message.event.raw == NOTE.raw
    assert isinstance(parse('["EVENT",' + RAW[:-1] + ',"content":"other"}]'), BadEvent)


@pytest.mark.proves("N01-05", "N01-10")
def test_an_event_whose_id_can_be_read_is_refused_by_that_id() -> None:
    """N01-05, N01-10."""
    fields: dict[str, Any] = json.loads(RAW)
    for wrong in ({"content": "other"}, {"kind": "1"}, {"sig": "x"}, {"pubkey": None}):
        message = parse(["EVENT", fields | wrong])
        assert isinstance(message, BadEvent)
        assert message.id == NOTE.id
        assert message.refused.prefix is Prefix.INVALID


@pytest.mark.proves("N01-05")
@pytest.mark.parametrize("id_", [None, 7, "", "x", NOTE.id.upper(), NOTE.id[:-1]], ids=repr)
def test_an_event_whose_id_cannot_be_read_gets_a_notice(id_: object) -> None:
    """N01-05."""
    message = parse(["EVENT", json.loads(RAW) | {"id": id_}])
    assert isinstance(message, BadFrame)
    assert message.refused.text.startswith("id:")


@pytest.mark.proves("N01-52")
@pytest.mark.parametrize("verb", ["REQ", "COUNT"])
@pytest.mark.parametrize("sub", ["", "x" * 65, "é" * 65])
def test_a_subscription_id_out_of_bounds_closes_it(verb: str, sub: str) -> None:
    """N01-52."""
    message = parse([verb, sub, {}])
    assert isinstance(message, BadQuery)
    assert message.sub == sub
    assert message.refused.prefix is Prefix.INVALID


@pytest.mark.proves("N01-52")
@pytest.mark.parametrize("sub", ["x", "x" * 64, "é" * 64, "😀" * 64, '"', "\\", "\x00", " "])
def test_a_subscription_id_is_counted_in_characters_and_may_hold_any(sub: str) -> None:
    """N01-52."""
    assert parse(["REQ", sub, {}]) == Subscribe(sub, (Filter(),))


def test_a_close_may_name_any_id() -> None:
    """N01-56."""
    assert parse(["CLOSE", ""]) == Close("")


def test_negentropy_messages_are_parsed() -> None:
    """N77-09, N77-11: hex of either case; further fields are ignored."""
    opened = NegOpen("n", Filter(kinds=frozenset({1})), b"\x61\xab")
    assert parse(["NEG-OPEN", "n", {"kinds": [1]}, "61aB"]) == opened
    assert parse(["NEG-OPEN", "n", {"kinds": [1]}, "61ab", 7]) == opened
    assert parse(["NEG-MSG", "x" * 64, "61AB"]) == NegMessage("x" * 64, b"\x61\xab")
    assert parse(["NEG-CLOSE", "n"]) == NegClose("n")
    assert parse(["NEG-CLOSE", ""]) == NegClose("")


@pytest.mark.parametrize(
    ("frame", "text"),
    [
        (["NEG-OPEN", "", {}, "61"], "subscription id: must have 1 to 64 characters"),
        (["NEG-MSG", "x" * 65, "61"], "subscription id: must have 1 to 64 characters"),
        (["NEG-OPEN", "n"], "NEG-OPEN: needs a filter"),
        (["NEG-OPEN", "n", {"kinds": 1}, "61"], "kinds: must be an array"),
        (["NEG-OPEN", "n", {}], "NEG-OPEN: needs a negentropy message in hex"),
        (["NEG-OPEN", "n", {}, ""], "NEG-OPEN: needs a negentropy message in hex"),
        (["NEG-OPEN", "n", {}, 61], "NEG-OPEN: needs a negentropy message in hex"),
        (["NEG-MSG", "n"], "NEG-MSG: needs a negentropy message in hex"),
        (["NEG-MSG", "n", "6"], "NEG-MSG: the negentropy message is not hex"),
        (["NEG-MSG", "n", "é1"], "NEG-MSG: the negentropy message is not hex"),
        (["NEG-OPEN", "n", {"search": "x"}, "61"], "search is not supported in negentropy"),
        (
            ["NEG-OPEN", "n", {"#t": LONG, "kinds": [1]}, "61"],
            "at most 10000 values in one NEG-OPEN",
        ),
        (["NEG-OPEN", "n", {"ids": [7] * 10_001}, "61"], "at most 10000 values in one NEG-OPEN"),
    ],
)
def test_a_malformed_negentropy_message_is_refused(frame: list[object], text: str) -> None:
    message = parse(frame)
    assert isinstance(message, BadNeg)
    assert message.sub == frame[1]
    assert message.refused.text == text


@pytest.mark.parametrize("verb", ["NEG-OPEN", "NEG-MSG", "NEG-CLOSE"])
@pytest.mark.parametrize("rest", [[], [7], [None]])
def test_a_negentropy_message_without_id_gets_a_notice(verb: str, rest: list[object]) -> None:
    message = parse([verb, *rest])
    assert isinstance(message, BadFrame)
    assert message.refused.text == f"{verb}: needs a subscription id"


@pytest.mark.parametrize(
    ("frame", "text"),
    [
        (["EVENT"], "EVENT: needs an event"),
        (["AUTH"], "AUTH: needs an event"),
        (["REQ"], "REQ: needs a subscription id"),
        (["COUNT", 7], "COUNT: needs a subscription id"),
        (["CLOSE"], "CLOSE: needs a subscription id"),
        (["CLOSE", 7], "CLOSE: needs a subscription id"),
        (["P" * 40], f"unknown message {'P' * 32!r}"),
        ([7], "message must be a JSON array that starts with a message type"),
        ([], "message must be a JSON array that starts with a message type"),
    ],
)
def test_a_notice_names_what_is_wrong_with_the_frame(frame: list[object], text: str) -> None:
    assert refusal_of(parse(frame)) == f"invalid: {text}"


MANY = [{"#t": [f"{n}" for n in range(5_000)]}, {"#e": [f"{n:064x}" for n in range(5_001)]}]


@pytest.mark.parametrize(
    ("frame", "text"),
    [
        (["REQ", "", {}], "invalid: subscription id: must have 1 to 64 characters"),
        (["REQ", "s"], "invalid: REQ: needs at least one filter"),
        (["COUNT", "s"], "invalid: COUNT: needs at least one filter"),
        (["REQ", "s", {}, {}, {}], "rate-limited: at most 2 filters in one REQ"),
        (["COUNT", "s", {}, {}, {}], "rate-limited: at most 2 filters in one COUNT"),
        (["REQ", "s", *MANY], "rate-limited: at most 10000 values in one REQ"),
        (["COUNT", "s", *MANY], "rate-limited: at most 10000 values in one COUNT"),
        # Before they are looked at: 260,000 equal kinds took the loop 50 ms.
        (["REQ", "s", {"kinds": [1] * 10_001}], "rate-limited: at most 10000 values in one REQ"),
        (["COUNT", "s", {"#t": [7] * 10_001}], "rate-limited: at most 10000 values in one COUNT"),
    ],
)
def test_a_query_is_closed_with_what_is_wrong_with_it(frame: list[object], text: str) -> None:
    """Only of a REQ the id is that of a subscription (N45-05)."""
    message = parse(frame, max_filters=2)
    assert type(message) is (BadQuery if frame[0] == "REQ" else BadCount)
    assert refusal_of(message) == text


@pytest.mark.proves("N01-55")
@pytest.mark.parametrize("verb", ["REQ", "COUNT"])
def test_a_query_needs_a_filter(verb: str) -> None:
    """N01-55."""
    message = parse([verb, "s"])
    assert isinstance(message, BadQuery)
    assert message.refused.prefix is Prefix.INVALID


@pytest.mark.proves("N01-65", "N01-68")
@pytest.mark.parametrize("verb", ["REQ", "COUNT"])
def test_one_bad_filter_refuses_the_whole_query(verb: str) -> None:
    bad = parse([verb, "s", {}, {"kinds": "1"}, {}])
    unknown = parse([verb, "s", {}, {"foo": 1}])
    assert isinstance(bad, BadQuery)
    assert bad.refused.prefix is Prefix.INVALID
    assert isinstance(unknown, BadQuery)
    assert unknown.refused.prefix is Prefix.UNSUPPORTED


def test_more_filters_than_max_filters_are_refused() -> None:
    """Too many."""
    assert isinstance(parse(["REQ", "s", {}, {}], max_filters=2), Subscribe)
    message = parse(["REQ", "s", {}, {}, {}], max_filters=2)
    assert isinstance(message, BadQuery)
    assert message.refused.prefix is Prefix.RATE_LIMITED


@given(strategies.events)
def test_an_event_that_was_framed_is_parsed_back(event: Event) -> None:
    assert parse(b'["EVENT",' + event.raw + b"]") == Publish(event)
    assert parse(b'["AUTH",' + event.raw + b"]") == Login(event)


@given(
    st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=64),
    st.lists(strategies.filters, min_size=1, max_size=3),
)
def test_a_query_that_was_framed_is_parsed_back(sub: str, filters: list[Filter]) -> None:
    """`parse(encode(x)) == x`."""
    given_ = [as_json(filter_) for filter_ in filters]
    assert parse(["REQ", sub, *given_]) == Subscribe(sub, tuple(filters))
    assert parse(["COUNT", sub, *given_]) == Count(sub, tuple(filters))
    assert tuple(filter_from(value, TERMS) for value in given_) == tuple(filters)


@given(st.text(max_size=200) | st.binary(max_size=200))
@example("\ud800")
@example(b"\xed\xa0\x80")
def test_no_text_makes_parse_raise(text: str | bytes) -> None:
    assert isinstance(parse(text), get_args(ClientMessage))


@given(st.sampled_from(["EVENT", "REQ", "CLOSE", "COUNT", "AUTH"]), st.data())
def test_no_json_makes_parse_raise(verb: str, data: st.DataObject) -> None:
    values = data.draw(st.lists(strategies.json_values | strategies.conditions, max_size=4))
    text = json.dumps([verb, *values])
    assert isinstance(parse(text), get_args(ClientMessage))


@given(st.sampled_from(["EVENT", "AUTH"]), strategies.events, st.data())
def test_no_malformed_event_makes_parse_raise(verb: str, event: Event, data: st.DataObject) -> None:
    fields = json.loads(event.raw)
    name = data.draw(st.sampled_from(sorted(fields)))
    fields[name] = data.draw(strategies.json_values)
    assert isinstance(parse(json.dumps([verb, fields])), get_args(ClientMessage))


@pytest.mark.proves("N01-91")
def test_an_ok_has_four_parts_and_an_empty_text_only_when_true() -> None:
    """N01-91."""
    assert json.loads(messages.ok(NOTE.id, None)) == ["OK", NOTE.id, True, ""]
    assert json.loads(messages.ok(NOTE.id, Invalid("kind: no"))) == [
        "OK",
        NOTE.id,
        False,
        "invalid: kind: no",
    ]
    assert json.loads(messages.ok_text(NOTE.id, "duplicate: already", accepted=True)) == [
        "OK",
        NOTE.id,
        True,
        "duplicate: already",
    ]


@pytest.mark.proves("N01-92")
def test_prefixes_are_those_of_the_nips() -> None:
    """N01-92."""
    assert {str(word) for word in Prefix} == {
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


def test_the_error_for_too_many_records_says_how_many_are_allowed() -> None:
    """N77-04."""
    frame = ["NEG-ERR", "n", "blocked: more than 500 records match", 500]
    assert json.loads(messages.neg_error("n", TooManyRecords(500))) == frame


@pytest.mark.proves("N01-93", "N01-94", "N45-01")
@given(st.text(st.characters(exclude_categories=["Cs"]), max_size=64), st.sampled_from(Prefix))
def test_frames_for_clients_are_json_whatever_the_subscription_is_called(
    sub: str, word: Prefix
) -> None:
    """N01-90, N01-93, N01-94, N45-01."""
    refused = Refused(word, 'because of "this"')
    ok_reply = f'{word}: because of "this"'
    assert json.loads(messages.closed(sub, refused)) == ["CLOSED", sub, ok_reply]
    assert json.loads(messages.notice(refused)) == ["NOTICE", ok_reply]
    assert json.loads(messages.eose(sub)) == ["EOSE", sub]
    assert json.loads(messages.count(sub, 3)) == ["COUNT", sub, {"count": 3}]
    assert json.loads(messages.auth_challenge(sub)) == ["AUTH", sub]
    hll = {"count": 3, "hll": "00" * 256}
    assert json.loads(messages.count(sub, 3, "00" * 256)) == ["COUNT", sub, hll]
    assert json.loads(messages.neg_message(sub, b"a\xff")) == ["NEG-MSG", sub, "61ff"]
    assert json.loads(messages.neg_error(sub, refused)) == ["NEG-ERR", sub, ok_reply]
    assert json.loads(messages.neg_ended(sub, "too old")) == ["NEG-ERR", sub, "closed: too old"]
    head = messages.event_head(sub)
    frame = messages.event_frame(head, NOTE.raw)
    assert json.loads(frame) == ["EVENT", sub, json.loads(RAW)]


@pytest.mark.parametrize(
    "frame",
    [
        ["EVENT", {"id": NOTE.id, "pubkey": "me", "sig": LONG}],
        ["EVENT", {**orjson.loads(NOTE.raw), "tags": [LONG, [7]]}],
        ["EVENT", {**orjson.loads(NOTE.raw), "id": "x", "tags": [LONG]}],
        ["REQ", "s", {"#t": [*LONG, 7]}],
        ["COUNT", "s", {"ids": LONG}],
        ["NEG-OPEN", "s", {"#t": [*LONG, 7]}, "61"],
    ],
    ids=lambda frame: frame[0],
)
def test_nothing_of_a_refused_message_is_left_once_it_was_answered(frame: list[Any]) -> None:
    """Without a collection of garbage: few objects with much text in them bring none about."""
    data = orjson.dumps(frame)

    def answered() -> str:
        message = messages.parse(data, TERMS, 50)
        assert isinstance(message, BadEvent | BadFrame | BadQuery | BadCount | BadNeg)
        return message.refused.text

    answered()
    gc.collect()
    gc.disable()
    tracemalloc.start()
    try:
        for _ in range(5):
            answered()
        assert tracemalloc.get_traced_memory()[0] < 2 * len(data)
    finally:
        tracemalloc.stop()
        gc.enable()


_IDS = ["s", "", "x" * 64, "x" * 65, 'a\\"b', "a\\u0041", "é", "a\tb", "a\x7fb"]
_TAILS = [
    '{"kinds":[1],"limit":5}]',
    '{"kinds":[1]},{"authors":["%s"]}]' % ("ab" * 32),
    "{}]",
    "]",
    "",
    '{"kinds":[1]}',
    '{"kinds":[1]}]]',
    '{"kinds":["1"]}]',
    '{"search":"tea"}]',
    '{"#t":["a","b","c","d","e","f","g","h","i"]}]',
    '{"kinds":[1]},' * 3 + '{"kinds":[1]}]',
    '{"limit":1,"limit":2}]',
]


@pytest.mark.parametrize("tail", _TAILS)
@pytest.mark.parametrize("sub", _IDS)
def test_a_filter_that_comes_again_is_the_same(sub: str, tail: str) -> None:
    """It is not parsed again. Also for other limits and terms, and behind another id."""
    data = f'["REQ","{sub}",{tail}'.encode()
    spaced = data.replace(b'"REQ"', b' "REQ"')
    for terms, most in ((TERMS, 3), (TERMS, 5), (FilterTerms(), 5)):
        wanted = messages.parse(spaced, terms, most)
        for _ in range(3):
            assert repr(messages.parse(data, terms, most)) == repr(wanted)
    once, again = (messages.parse(f'["REQ","{n}",{tail}'.encode(), TERMS, 5) for n in (1, 2))
    if isinstance(once, Subscribe) and len(tail) < 60:
        assert isinstance(again, Subscribe)
        assert (once.sub, again.sub) == ("1", "2")
        assert once.filters is again.filters or once.filters == again.filters


def test_few_filters_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of those that came at least twice, and of few values."""
    parsed: list[object] = []

    def counted(value: object, terms: FilterTerms) -> Filter:
        parsed.append(value)
        return filter_from(value, terms)

    monkeypatch.setattr(messages, "filter_from", counted)
    request = b'["REQ","s",{"kinds":[%d]}]'
    messages._filters_after.cache_clear()
    monkeypatch.setattr(messages, "_came_once", Recent(2048))
    for number in range(100):
        for _ in range(4):
            messages.parse(request % number, TERMS, 5)
    assert 190 <= len(parsed) <= 200  # two of them may share a place of `Recent`
    for number in range(100, 20_000):
        messages.parse(request % number, TERMS, 5)
    assert 100 <= messages._filters_after.cache_info().currsize < 1000  # few look as if they came
