"""relay/nostr/filters.py: what a filter may say and what it matches. N01-60…72."""

from __future__ import annotations

from sys import getsizeof
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from msgspec.structs import replace

from relay.errors import Invalid, Unsupported
from relay.nostr.filters import MAX_PREFIXES, Filter, FilterTerms, as_json, filter_from, text_bytes
from relay.nostr.nip50 import MAX_QUERY, Search
from tests.cast import alice, bob
from tests.unit.nostr import strategies
from tests.unit.nostr.strategies import TERMS

if TYPE_CHECKING:
    from relay.nostr.event import Event

HEX = "0123456789abcdef" * 4
NOTE = alice.sign(1, [["t", "tea", "milk"], ["t", "cake"], ["T", "Upper"], ["t"], []], "x", 100)


def matches(condition: dict[str, Any], event: Event = NOTE) -> bool:
    return filter_from(condition, TERMS).matches(event)


@pytest.mark.proves("N01-60")
@pytest.mark.parametrize("value", [None, [], "x", 7, True])
def test_a_filter_is_an_object(value: object) -> None:
    """N01-60."""
    with pytest.raises(Invalid, match="filter"):
        filter_from(value, TERMS)


@pytest.mark.proves("N01-60", "N01-68")
@pytest.mark.parametrize("key", ["ids", "authors", "kinds", "#t", "#e", "#hk"])
@pytest.mark.parametrize("value", [None, True, 1, "1", {}, {"0": "x"}], ids=repr)
def test_a_condition_that_is_not_a_list_is_refused(key: str, value: object) -> None:
    """N01-60, N01-68."""
    with pytest.raises(Invalid, match=key):
        filter_from({key: value}, TERMS)


@pytest.mark.proves("N01-60", "N01-68", "Z-12")
@pytest.mark.parametrize("key", ["since", "until", "limit"])
@pytest.mark.parametrize("value", [None, True, False, "5", 1.5, 5.0, [5], {}], ids=repr)
def test_a_bound_that_is_not_an_integer_is_refused(key: str, value: object) -> None:
    """N01-60, N01-68, Z-12."""
    with pytest.raises(Invalid, match=key):
        filter_from({key: value}, TERMS)


@pytest.mark.proves("N01-68")
@pytest.mark.parametrize("value", [None, True, "1", 1.0, 1.5, [1]], ids=repr)
def test_a_kind_that_is_not_an_integer_is_refused(value: object) -> None:
    """N01-68."""
    with pytest.raises(Invalid, match="kinds"):
        filter_from({"kinds": [1, value]}, TERMS)


@pytest.mark.proves("N01-64", "N01-65")
@pytest.mark.parametrize("key", ["ids", "authors", "#e", "#p"])
@pytest.mark.parametrize(
    "value", [HEX.upper(), HEX[:-1], HEX + "0", HEX[:8], "", "g" * 64, 7, None], ids=repr
)
def test_an_id_or_key_that_is_not_64_lowercase_hex_is_refused(key: str, value: object) -> None:
    """N01-64, N01-65."""
    with pytest.raises(Invalid, match=key):
        filter_from({key: [HEX, value]}, TERMS)


@pytest.mark.proves("N01-68")
@pytest.mark.parametrize("value", [None, 1, True, ["tea"]], ids=repr)
def test_a_tag_value_is_a_string(value: object) -> None:
    """N01-68."""
    with pytest.raises(Invalid, match="#t"):
        filter_from({"#t": ["tea", value]}, TERMS)


def test_a_tag_value_that_looks_like_no_hex_is_fine_for_other_letters() -> None:
    """N01-65 names e and p only."""
    assert filter_from({"#E": ["x"], "#a": ["30023:x:y"]}, TERMS).tag_values("E") == ("x",)


@pytest.mark.proves("N01-69", "N01-32")
@pytest.mark.parametrize(
    "key",
    ["foo", "", "#", "#ab", "#-", "#1", "#é", "##t", "t", "IDS", "#t ", "#snow:tier", "tags"],
)
def test_an_unknown_key_is_unsupported(key: str) -> None:
    """N01-69, N01-32."""
    with pytest.raises(Unsupported) as refused:
        filter_from({key: []}, TERMS)
    assert str(refused.value) == "unsupported: filter contains unknown elements"


def test_the_tags_that_a_relay_indexes_may_be_named() -> None:
    """index_tags."""
    terms = FilterTerms(index_tags=frozenset({"lang"}))
    assert filter_from({"#lang": ["en"]}, terms).tag_values("lang") == ("en",)
    with pytest.raises(Unsupported):
        filter_from({"#hk": ["x"]}, terms)


@pytest.mark.proves("N01-68")
@pytest.mark.parametrize("bound", ["since", "until"])
@pytest.mark.parametrize("value", [-1, -(2**70), 2**63, 10**30])
def test_bounds_may_be_of_any_size(bound: str, value: int) -> None:
    """N01-68."""
    assert matches({bound: value}) is (value < 0 if bound == "since" else value > 0)


@pytest.mark.proves("N01-68")
def test_a_negative_limit_is_refused() -> None:
    """N01-68."""
    with pytest.raises(Invalid, match="limit"):
        filter_from({"limit": -1}, TERMS)


@pytest.mark.proves("N01-68")
@pytest.mark.parametrize("value", [-1, 65536, 2**63, 2**64, 1e30])
def test_a_kind_out_of_range_matches_nothing_and_breaks_nothing(value: object) -> None:
    """N01-68."""
    assert not matches({"kinds": [value]})
    assert matches({"kinds": [value, 1]})
    assert not filter_from({"kinds": [value]}, TERMS).impossible


@pytest.mark.proves("N01-70")
def test_an_empty_filter_matches_everything() -> None:
    """N01-70."""
    assert matches({})


@pytest.mark.proves("N01-67")
@pytest.mark.parametrize("key", ["ids", "authors", "kinds", "#t", "#hk", "#e"])
def test_an_empty_list_matches_nothing(key: str) -> None:
    """N01-67."""
    assert not matches({key: []})
    assert filter_from({key: []}, TERMS).impossible


@pytest.mark.proves("N01-61", "N01-62")
def test_one_value_of_a_list_is_enough_and_each_condition_must_hold() -> None:
    """N01-61, N01-62."""
    assert matches({"authors": [bob.pubkey, alice.pubkey], "#t": ["x", "cake"], "kinds": [7, 1]})
    assert not matches({"authors": [bob.pubkey], "#t": ["cake"], "kinds": [1]})
    assert not matches({"#t": ["tea"], "#T": ["tea"]})


@pytest.mark.proves("N01-71")
def test_repeated_values_change_nothing() -> None:
    """N01-71."""
    assert filter_from({"kinds": [1, 1], "#t": ["a", "a"]}, TERMS) == filter_from(
        {"#t": ["a"], "kinds": [1]}, TERMS
    )


@pytest.mark.proves("N01-66")
def test_since_and_until_are_inclusive() -> None:
    """N01-66."""
    assert matches({"since": 100, "until": 100})
    assert not matches({"since": 101})
    assert not matches({"until": 99})


def test_a_bound_of_zero_is_a_bound() -> None:
    assert not matches({"until": 0})
    assert matches({"until": 0}, alice.sign(1, [], "", 0))


@pytest.mark.proves("N01-30", "N01-31")
def test_only_element_one_of_a_tag_is_its_value() -> None:
    """N01-30, N01-31."""
    assert matches({"#t": ["tea"]})
    assert not matches({"#t": ["milk"]})
    assert not matches({"#t": [""]})


@pytest.mark.proves("N01-31")
def test_upper_and_lower_case_are_different_tags_and_values() -> None:
    """N01-31."""
    assert matches({"#T": ["Upper"]})
    assert not matches({"#t": ["Upper"]})
    assert not matches({"#T": ["upper"]})


@pytest.mark.proves("N01-78")
def test_limit_and_search_are_not_matched() -> None:
    """N01-78; the words of a search are the answer's business."""
    assert matches({"limit": 0, "search": "no such word"})


@pytest.mark.proves("N50-07", "N50-12")
def test_a_search_is_refused_where_it_is_not_supported() -> None:
    """N50-12, N50-07: an empty one is as if absent."""
    with pytest.raises(Unsupported):
        filter_from({"search": "tea"}, FilterTerms(search=False))
    assert filter_from({"search": "tea"}, FilterTerms(search=True)).search == "tea"
    assert filter_from({"search": ""}, FilterTerms(search=False)) == Filter()


def test_a_filter_has_its_search_parsed_and_only_the_part_that_counts() -> None:
    assert filter_from({"search": "tea -milk"}, TERMS).sought == Search(("tea",), ("milk",))
    assert filter_from({"search": "a" * (2 * MAX_QUERY)}, TERMS).search == "a" * MAX_QUERY
    assert filter_from({"search": "near:1-2"}, TERMS) == Filter()
    assert replace(Filter(search="tea"), search=None) == Filter()


@pytest.mark.parametrize(
    "query",
    [
        " ".join(f"{number}" for number in range(10, 42)),
        "ä ö ü é è ê",
        '"tea and milk" -cake match:any when was there',
        " ".join(["x match:any", *[f"near:{10**9 + n}-{10**10 + n}" for n in range(16)]]),
    ],
)
def test_a_search_counts_with_what_it_is_parsed_to(query: str) -> None:
    """32 words of two letters take 2 kB: 22 times as much as their characters."""
    filter_ = filter_from({"search": query}, TERMS)
    search = filter_.sought
    assert search is not None
    texts = [query, search.asked, *search.required, *search.excluded]
    texts_take = sum(map(getsizeof, texts)) + 8 * len(texts)
    periods_take = sum(getsizeof(each) + 8 + sum(map(getsizeof, each)) for each in search.near)
    taken = texts_take + periods_take
    assert 0.6 * taken < text_bytes([filter_]) < 1.6 * taken


@pytest.mark.proves("N50-01")
@pytest.mark.parametrize("value", [None, 1, ["tea"]], ids=repr)
def test_a_search_is_a_string(value: object) -> None:
    """N50-01."""
    with pytest.raises(Invalid, match="search"):
        filter_from({"search": value}, TERMS)


RECORD = bob.sign(30078, [["d", "snow:memory:a"]], "", 5)


@pytest.mark.parametrize(
    ("condition", "holds"),
    [
        ({"kinds": [30078], "#d": ["snow:memory:"]}, True),
        ({"kinds": [30078, 78], "#d": ["x", "snow:"]}, True),
        ({"kinds": [30078], "#d": ["snow:memory:a"]}, True),
        ({"kinds": [30078], "#d": ["snow:memory"]}, False),
        ({"kinds": [30078], "#d": ["memory:"]}, False),
        ({"kinds": [30078, 30023], "#d": ["snow:memory:"]}, False),
        ({"#d": ["snow:memory:"]}, False),
        ({"kinds": [30078], "#t": ["snow:memory:"]}, False),
    ],
    ids=str,
)
def test_a_d_that_ends_in_a_colon_is_a_prefix_for_app_records_only(
    condition: dict[str, Any], holds: object
) -> None:
    """G-09."""
    assert matches(condition, RECORD) is holds


def test_a_filter_has_so_many_prefixes() -> None:
    """Each is compared with every event of its kinds, stored or live."""
    prefixes = [f"{number}:" for number in range(MAX_PREFIXES)]
    condition = {"kinds": [30078], "#d": [*prefixes, "exact"]}
    assert len(filter_from(condition, TERMS).d_prefixes) == MAX_PREFIXES
    with pytest.raises(Invalid, match="#d: at most 256 values that end with a colon"):
        filter_from({"kinds": [30078], "#d": [*prefixes, "one more:"]}, TERMS)
    assert filter_from({"kinds": [30023], "#d": [*prefixes, "one more:"]}, TERMS).d_prefixes == ()


@given(strategies.filters)
def test_a_filter_that_was_written_reads_back_the_same(filter_: Filter) -> None:
    assert filter_from(as_json(filter_), TERMS) == filter_


def dumb_matches(condition: dict[str, Any], event: Event) -> bool:
    """The oracle: NIP-01 word for word, and G-09, with no thought of speed."""
    prefixes = bool(condition.get("kinds")) and set(condition["kinds"]) <= TERMS.prefix_d_kinds
    verdicts = [True]
    for key, wanted in condition.items():
        if key == "authors":
            verdicts.append(event.pubkey in wanted)
        elif key == "kinds":
            verdicts.append(event.kind in wanted)
        elif key == "since":
            verdicts.append(wanted <= event.created_at)
        elif key == "until":
            verdicts.append(event.created_at <= wanted)
        elif key.startswith("#"):
            values = [tag[1] for tag in event.tags if tag[:1] == [key[1:]] and len(tag) >= 2]
            hits = [value for value in values if value in wanted]
            if key == "#d" and prefixes:
                heads = [value for value in wanted if value[-1:] == ":"]
                hits += [head for head in heads if event.d[: len(head)] == head]
            verdicts.append(hits != [])
    return all(verdicts)


@pytest.mark.proves("N01-61", "N01-62", "N01-66", "N01-72")
@given(strategies.small_conditions, strategies.small_events)
def test_matching_agrees_with_a_plain_implementation_of_the_nip(
    condition: dict[str, Any], event: Event
) -> None:
    """N01-61…67, N01-72, G-09."""
    filter_ = filter_from(condition, TERMS)
    assert filter_.matches(event) is dumb_matches(condition, event)
    assert not (filter_.impossible and filter_.matches(event))
