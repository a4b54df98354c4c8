"""How long the composed SQL is: it is prepared in one piece, on the event loop, and an
unauthenticated client chooses the filters."""

from __future__ import annotations

import string
from typing import TYPE_CHECKING, Any

import pytest

from relay.access.visibility import ANONYMOUS, Viewer, visibility_for
from relay.groups.group import Groups
from relay.nostr.filters import FilterTerms, filter_from
from relay.storage import PageQuery
from relay.storage.hashes import Hashes
from relay.storage.postgres.hashes import KeyedHashes
from relay.storage.postgres.sql.filters import Compiler as PostgresCompiler
from relay.storage.postgres.sql.words import Words
from relay.storage.sqlite.sql.filters import Compiler
from relay.storage.sqlite.tag_buffer import TagBuffer
from relay.storage.tokens import Tokenizer
from tests.harness.relay_in_process import policy_of

if TYPE_CHECKING:
    from relay.access.visibility import Visibility
    from relay.nostr.filters import Filter

TERMS = FilterTerms()
POLICY = policy_of("open")
SEEN = visibility_for(ANONYMOUS, POLICY.read_rules, POLICY.actors, Groups())
TEXT_OF_A_NAME = 350
"""At most: the condition of one tag name."""
TEXT_OF_A_SCAN = 220
TEXT_OF_FULFILLED = 80
"""For each filter: which of the keys that rules require it has."""


def naming(names: str, values: int) -> Filter:
    listed = [f"{number:064x}" for number in range(values)]
    return filter_from({f"#{name}": listed for name in names}, TERMS)


def sqlite_text(filter_: Filter) -> int:
    compiler = Compiler(
        Hashes(bytes(32)), TERMS.index_tags, TagBuffer(10), lambda *_: [], lambda: "[]"
    )
    query = PageQuery(filter_, SEEN, 5, upto=9, now=1, size=5)
    return len(compiler.page(query, None, frozenset()).sql)


def postgres_text(filter_: Filter) -> int:
    compiler = PostgresCompiler(KeyedHashes(bytes(32)), Words(Tokenizer()))
    return len(compiler.page(PageQuery(filter_, SEEN, 5, upto=9, now=1, size=5), ("raw",)).sql)


def sqlite_count(filters: list[Filter], seen: Visibility) -> int:
    compiler = Compiler(
        Hashes(bytes(32)), TERMS.index_tags, TagBuffer(10), lambda *_: [], lambda: "[]"
    )
    return len(compiler.count(filters, seen, frozenset(), now=1).sql)


def postgres_count(filters: list[Filter], seen: Visibility) -> int:
    compiler = PostgresCompiler(KeyedHashes(bytes(32)), Words(Tokenizer()))
    return len(compiler.count(filters, seen, upto=9, now=1).sql)


@pytest.mark.parametrize("preset", ["open", "group"])
@pytest.mark.parametrize("text", [sqlite_count, postgres_count])
def test_who_may_read_is_written_once_in_a_count_of_any_filters(text: object, preset: str) -> None:
    """It is 12 kB for a key that is logged in: 50 times it took 0.2 s of the loop."""
    assert callable(text)
    policy, viewer = policy_of(preset), Viewer(frozenset({"a1" * 32}))
    seen = visibility_for(viewer, policy.read_rules, policy.actors, Groups())
    everything = visibility_for(viewer, (), policy.actors, Groups())
    key = "b0" * 32
    each: tuple[dict[str, Any], ...] = (
        {"ids": [key]},
        {"authors": [key]},
        {"#p": [key], "kinds": [1059]},
        {"#t": ["x"], "since": 1},
        {"kinds": [30078, 9007, 39002], "#d": ["x"]},
    )
    filters = [filter_from(asked, TERMS) for asked in each]
    filters += [naming(name, 1) for name in string.ascii_letters if name not in "eh"]
    written = text(filters, seen) - text(filters, everything)
    assert written < text([naming("t", 1)], seen) + len(filters) * TEXT_OF_FULFILLED


@pytest.mark.parametrize("text", [sqlite_text, postgres_text])
@pytest.mark.parametrize("values", [2, 16, 17])
def test_each_condition_of_a_filter_is_written_about_once(text: object, values: int) -> None:
    """One of 52 names and 16 values each took 0.1 s of the loop, and 6 MB while it was kept."""
    assert callable(text)
    plain = text(naming("t", 1))
    for names in ("t", "tx", string.ascii_letters):
        most = plain + len(names) * TEXT_OF_A_NAME + values * TEXT_OF_A_SCAN
        assert text(naming(names, values)) < most + 12_288
