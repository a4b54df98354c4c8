"""relay/nostr/event.py: the shape of an event, its id, its bytes. NIP-01."""

from __future__ import annotations

import json
from hashlib import sha256
from typing import Any

import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from relay.errors import Invalid
from relay.nostr import event as event_module
from relay.nostr.event import (
    Event,
    IndexedEvent,
    event_from,
    event_from_raw,
    has_too_many_arrays,
    id_bytes,
    indexed,
    is_hex64,
)
from tests.cast import alice
from tests.unit.nostr import strategies

FIELDS = ["id", "pubkey", "created_at", "kind", "tags", "content", "sig"]
NOTE = alice.sign(1, [["t", "tea"]], "hello", 1_700_000_000)


def fields_of(event: Event) -> dict[str, Any]:
    return {name: getattr(event, name) for name in FIELDS}


def rehashed(**changes: Any) -> dict[str, Any]:
    """NOTE with changed fields and the id that these hash to, in any spelling of numbers."""
    fields = fields_of(NOTE) | changes
    hashed = [0, *(fields[name] for name in ("pubkey", "created_at", "kind", "tags", "content"))]
    text = json.dumps(hashed, ensure_ascii=False, separators=(",", ":"))
    return fields | {"id": sha256(text.encode()).hexdigest()}


def refusal_of(fields: object) -> str:
    with pytest.raises(Invalid) as refused:
        event_from(fields)
    return refused.value.text


@pytest.mark.proves("N01-01")
def test_an_event_has_its_seven_fields() -> None:
    """N01-01."""
    assert event_from(fields_of(NOTE)) == NOTE


@pytest.mark.parametrize("value", [None, [], "x", 7, True])
def test_an_event_must_be_an_object(value: object) -> None:
    """N01-05."""
    assert refusal_of(value).startswith("event:")


@pytest.mark.proves("N01-01", "N01-05")
@pytest.mark.parametrize("name", FIELDS)
def test_a_missing_field_is_named(name: str) -> None:
    """N01-05."""
    fields = fields_of(NOTE)
    del fields[name]
    assert refusal_of(fields) == f"{name}: missing"


@pytest.mark.proves("N01-05")
@pytest.mark.parametrize("name", FIELDS)
@pytest.mark.parametrize("value", [None, True, 1.5, {}, ["a"]], ids=repr)
def test_a_field_of_the_wrong_type_is_named(name: str, value: object) -> None:
    """N01-05."""
    assert refusal_of(fields_of(NOTE) | {name: value}).startswith(f"{name}:")


@pytest.mark.proves("N01-02")
def test_unknown_fields_are_neither_checked_nor_kept() -> None:
    """N01-02."""
    event = event_from({**fields_of(NOTE), "seen_on": ["wss://elsewhere"], "": None})
    assert event == NOTE
    assert list(json.loads(event.raw)) == FIELDS


@pytest.mark.proves("N01-03")
def test_the_order_of_fields_does_not_matter() -> None:
    """N01-03."""
    assert event_from(dict(reversed(fields_of(NOTE).items()))).raw == NOTE.raw


@pytest.mark.proves("N01-06")
@pytest.mark.parametrize("name", ["id", "pubkey", "sig"])
@pytest.mark.parametrize(
    "spoil",
    [
        pytest.param(str.upper, id="upper case"),
        pytest.param(lambda value: value[:-1], id="too short"),
        pytest.param(lambda value: value + "0", id="too long"),
        pytest.param(lambda value: value + "\n", id="a newline after it"),
        pytest.param(lambda value: " " + value[1:], id="a space before it"),
        pytest.param(lambda value: "0x" + value[2:], id="a mark before it"),
        pytest.param(lambda value: "٣" + value[1:], id="a digit of another script"),
        pytest.param(lambda value: "", id="empty"),
    ],
)
def test_hex_is_lowercase_and_of_one_length(name: str, spoil: Any) -> None:
    """N01-06."""
    fields = fields_of(NOTE)
    assert refusal_of(fields | {name: spoil(fields[name])}).startswith(f"{name}:")


@pytest.mark.proves("N01-07", "Z-12")
@pytest.mark.parametrize("kind", [-1, 65536, 2**32, 2**64, 1.0, 1.5, True, False, "1"], ids=repr)
def test_a_kind_is_a_plain_integer_up_to_65535(kind: object) -> None:
    """N01-07, Z-12."""
    assert refusal_of(rehashed(kind=kind)).startswith("kind:")


@pytest.mark.proves("N01-07")
@pytest.mark.parametrize("kind", [0, 1, 44, 45, 65535])
def test_every_kind_in_range_is_accepted(kind: int) -> None:
    """N01-07, N01-44."""
    assert event_from(rehashed(kind=kind)).kind == kind


@pytest.mark.proves("N01-08", "Z-12")
@pytest.mark.parametrize(
    "created_at", [-1, -200, 2**63, 2**64, 1e10, 1.5, True, "1700000000"], ids=repr
)
def test_a_time_is_a_plain_integer_from_0_to_63_bits(created_at: object) -> None:
    """N01-08."""
    assert refusal_of(rehashed(created_at=created_at)).startswith("created_at:")


@pytest.mark.proves("N01-08")
@pytest.mark.parametrize("created_at", [0, 2**31, 2**32, 2**63 - 1])
def test_a_created_at_beyond_32_bits_is_valid(created_at: int) -> None:
    """N01-08."""
    assert event_from(rehashed(created_at=created_at)).created_at == created_at


@pytest.mark.proves("N01-09")
@pytest.mark.parametrize(
    "tags",
    [["t"], [None], [["t", None]], [["t", 1]], [["t", True]], [["t", ["x"]]], [["t", {}]], [{}]],
    ids=repr,
)
def test_a_tag_is_an_array_of_strings(tags: object) -> None:
    """N01-09."""
    assert refusal_of(rehashed(tags=tags)).startswith("tags:")


@pytest.mark.proves("N01-09")
def test_an_empty_tag_is_accepted_and_hashed_unchanged() -> None:
    """N01-09."""
    event = event_from(rehashed(tags=[[], ["t"], []]))
    assert event.tags == [[], ["t"], []]
    assert event.tag("t") == ""
    assert event.tag_values("t") == []


@pytest.mark.proves("N01-10")
@pytest.mark.parametrize("name", ["pubkey", "created_at", "kind", "tags", "content"])
def test_a_changed_field_no_longer_hashes_to_the_id(name: str) -> None:
    """N01-10."""
    other = {"pubkey": "0" * 64, "created_at": 1, "kind": 2, "tags": [], "content": "hello "}
    assert refusal_of(fields_of(NOTE) | {name: other[name]}) == "id: is not the hash of this event"


def test_the_signature_is_not_checked_with_the_id() -> None:
    assert event_from(fields_of(NOTE) | {"sig": "0" * 128}).id == NOTE.id


@pytest.mark.proves("N01-12", "N01-22")
@pytest.mark.parametrize(
    "content", ["\x00", "\x1f", "\x7f", "\u0085", "\u2028", "\ufeff", "\ufdd1", "\U0010fff2", "/"]
)
def test_odd_characters_are_kept(content: str) -> None:
    """N01-12, N01-22, N01-23."""
    assert event_from(rehashed(content=content)).content == content


@pytest.mark.proves("N01-25")
def test_unicode_is_not_normalized() -> None:
    """N01-25."""
    composed, decomposed = rehashed(content="\u00e9"), rehashed(content="e\u0301")
    assert event_from(composed).id != event_from(decomposed).id


@pytest.mark.proves("N01-43")
def test_the_address_is_the_value_of_the_first_d_tag() -> None:
    """N01-43."""
    assert event_from(rehashed(tags=[["p", "x"], ["d", "a"], ["d", "b"]])).d == "a"


@pytest.mark.proves("N01-43")
@pytest.mark.parametrize("tags", [[], [["d"]], [["d", ""]], [["d"], ["d", "late"]]], ids=repr)
def test_no_d_tag_and_an_empty_one_are_the_same_address(tags: list[list[str]]) -> None:
    """N01-43."""
    assert event_from(rehashed(tags=tags)).d == ""


def test_a_tag_is_found_by_its_exact_name() -> None:
    event = event_from(rehashed(tags=[["T", "upper"], ["t", "1"], ["t", "2", "more"], ["-"]]))
    assert (event.tag("t"), event.tag("T"), event.tag("-"), event.tag("x")) == (
        "1",
        "upper",
        "",
        None,
    )
    assert event.tag_values("t") == ["1", "2"]
    assert event.has_tag("-")
    assert not event.has_tag("x")


@pytest.mark.parametrize("value", [NOTE.id.upper(), NOTE.id + "\n", NOTE.id[1:], None, 7])
def test_hex64_is_64_lowercase_hex_characters(value: object) -> None:
    """N01-06, N01-65."""
    assert is_hex64(NOTE.id)
    assert not is_hex64(value)


@given(strategies.events)
def test_an_event_that_was_written_reads_back_the_same(event: Event) -> None:
    assert event_from(orjson.loads(event.raw)) == event
    assert event_from_raw(event.raw) == event


@pytest.mark.proves("N01-20", "N01-21", "N01-22", "N01-23")
@given(strategies.events)
def test_the_hashed_bytes_equal_those_of_the_json_module(event: Event) -> None:
    """N01-20, N01-21, N01-22, N01-23: what `json.dumps` writes without spaces and escapes."""
    hashed: list[Any] = [0, event.pubkey, event.created_at, event.kind, event.tags, event.content]
    plain = json.dumps(hashed, ensure_ascii=False, separators=(",", ":")).encode()
    assert id_bytes(*hashed[1:]) == plain
    assert sha256(plain).hexdigest() == event.id


@given(strategies.json_values)
def test_any_json_value_is_an_event_or_raises_invalid(value: object) -> None:
    """N01-05."""
    with pytest.raises(Invalid):
        event_from(value)


@given(strategies.events, strategies.json_values)
def test_any_value_of_a_field_is_kept_or_refused(event: Event, value: object) -> None:
    for name in FIELDS:
        try:
            again = event_from(fields_of(event) | {name: value})
        except Invalid:
            continue
        assert again == event or name == "sig"


@given(st.lists(st.lists(st.sampled_from(["d", "e", "", "x"]), max_size=3), max_size=8))
def test_an_indexed_event_says_of_its_tags_what_the_event_does(tags: list[list[str]]) -> None:
    event = alice.sign(1, [*tags, *[["-"]] * 40], "", 1_700_000_000)
    index = indexed(event)
    assert isinstance(index, IndexedEvent)
    for name in ("d", "e", "", "x", "-", "p"):
        assert index.tag(name) == event.tag(name)
        assert index.has_tag(name) == event.has_tag(name)
        for values in (frozenset("de"), frozenset({"", "x"}), frozenset[str]()):
            wanted = any(value in values for value in event.tag_values(name))
            assert index.has_value(name, values) == event.has_value(name, values) == wanted
    assert index.d == event.d
    assert fields_of(index) == fields_of(event)
    assert indexed(NOTE) is NOTE


@settings(max_examples=200)
@given(
    st.recursive(
        st.integers() | st.text('"\\\\[{a', max_size=4),
        lambda inner: (
            st.lists(inner, max_size=4) | st.dictionaries(st.text('"\\\\[{', max_size=2), inner)
        ),
    ),
    st.integers(0, 8),
)
def test_arrays_and_objects_are_counted_and_brackets_in_texts_are_not(
    value: object, most: int
) -> None:
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(event_module, "MAX_ARRAYS", most)
        text = json.dumps(value)
        assert has_too_many_arrays(text) is (_arrays_in(value) > most)
        assert has_too_many_arrays(text.encode()) is (_arrays_in(value) > most)


def _arrays_in(value: object) -> int:
    if isinstance(value, dict):
        return 1 + sum(map(_arrays_in, value.values()))
    return 1 + sum(map(_arrays_in, value)) if isinstance(value, list) else 0
