"""Hypothesis strategies for events, filters and JSON."""

from __future__ import annotations

import string

from hypothesis import strategies as st

from relay.nostr.filters import FilterTerms, as_json, filter_from
from relay.nostr.kinds import MAX_KIND
from tests import cast

TERMS = FilterTerms(search=True)

hex64 = st.binary(min_size=32, max_size=32).map(bytes.hex)
texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=12)
kinds = st.integers(0, MAX_KIND)
tags = st.lists(st.lists(texts, max_size=4), max_size=5)
people = st.sampled_from([cast.alice, cast.bob, cast.carol])

json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | texts,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(texts, inner, max_size=4),
    max_leaves=12,
)

events = st.builds(
    lambda key, kind, tags, content, created_at: key.sign(kind, tags, content, created_at),
    people,
    kinds,
    tags,
    texts,
    st.integers(0, 2**63 - 1),
)

# A world so small that filters and events meet in it often.
SMALL = ["x", "y", "snow:", "snow:a"]
small_kinds = st.sampled_from([1, 7, 78, 30078])
small_times = st.integers(0, 4)
small_events = st.builds(
    lambda key, kind, tags, created_at: key.sign(kind, tags, "", created_at),
    people,
    small_kinds,
    st.lists(st.lists(st.sampled_from(["t", "d", "hk", *SMALL]), max_size=3), max_size=3),
    small_times,
)
small_conditions = st.fixed_dictionaries(
    {},
    optional={
        "authors": st.lists(people.map(lambda key: key.pubkey), max_size=2),
        "kinds": st.lists(small_kinds, max_size=2),
        "since": small_times,
        "until": small_times,
        "limit": st.integers(0, 3),
        **{f"#{name}": st.lists(st.sampled_from(SMALL), max_size=2) for name in ("t", "d", "hk")},
    },
)

conditions = st.fixed_dictionaries(
    {},
    optional={
        "ids": st.lists(hex64, max_size=3),
        "authors": st.lists(hex64, max_size=3),
        "kinds": st.lists(st.integers(-(2**65), 2**65) | kinds, max_size=3),
        "since": st.integers(-(2**70), 2**70),
        "until": st.integers(-(2**70), 2**70),
        "limit": st.integers(0, 2**70),
        "search": texts.filter(bool),
        "#e": st.lists(hex64, max_size=2),
        "#hk": st.lists(texts, max_size=2),
        **{f"#{name}": st.lists(texts, max_size=2) for name in string.ascii_letters[5:8]},
    },
)
# As JSON has it: the values sorted.
filters = conditions.map(lambda value: filter_from(as_json(filter_from(value, TERMS)), TERMS))
