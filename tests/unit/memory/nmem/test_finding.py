"""relay/memory/nmem/ranking.py: safe queries and ranking."""

from __future__ import annotations

import sqlite3
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from relay.memory.nmem.ranking import Row, blended, recency, recent, safe_query, scores, weight
from tests.unit.memory.nmem.making import DAY, NOW

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture(scope="module")
def index() -> Iterator[sqlite3.Connection]:
    """One text, indexed as the cache does it."""
    db = sqlite3.connect(":memory:")
    db.execute("CREATE VIRTUAL TABLE texts USING fts5(text, tokenize='porter unicode61')")
    db.execute("INSERT INTO texts VALUES ('see src/main.rs and the near AND far café')")
    yield db
    db.close()


def found(index: sqlite3.Connection, query: str) -> bool:
    safe = safe_query(query)
    assert safe is not None
    rows = index.execute("SELECT count(*) FROM texts WHERE texts MATCH ?", (safe,))
    return bool(next(rows)[0])


@pytest.mark.proves("M-26")
@pytest.mark.parametrize(
    ("query", "finds"),
    [
        ("main.rs", True),
        ("src/main.rs café", True),
        ("CAFE", True),
        ('"the near"', True),
        ('"near the"', False),
        ("mai*", True),
        ("see AND far", True),
        ("see NOT far", False),
        ("nothing OR far", True),
        ('see "the near" far', True),
        ("AND", True),
        ("and far", True),
        ("text:see", False),
        ("near far", True),
        ("see NEAR far", True),
    ],
)
def test_words_find_what_they_mean(index: sqlite3.Connection, query: str, *, finds: bool) -> None:
    assert found(index, query) is finds


ODD = [
    "AND see",
    "see AND",
    "see AND OR far",
    "NOT",
    "NOT see",
    "NEAR(see far)",
    "AND*",
    "NEAR*",
    '"',
    '""',
    '"see',
    'see"',
    'a"b',
    "*",
    "see*far",
    "^see",
    "see + far",
    "{text}: see",
    "-see",
    "see\0far",
    "\ud800",
    "(",
    "'",
    "see,far",
    "AND AND AND",
    '"a" AND',
    "see AND NOT far",
]


@pytest.mark.proves("M-26")
@pytest.mark.parametrize("query", ODD, ids=ascii)
def test_no_query_is_a_fault_of_syntax(index: sqlite3.Connection, query: str) -> None:
    found(index, query)


@given(st.lists(st.sampled_from([*"ab*\"'()-+^:.,{}\0", " ", "AND", "OR", "NOT", "NEAR", "é"])))
def test_no_mixture_is_a_fault_of_syntax(pieces: list[str]) -> None:
    with_spaces = ["".join(pieces), " ".join(pieces)]
    db = sqlite3.connect(":memory:")
    try:
        db.execute("CREATE VIRTUAL TABLE texts USING fts5(text)")
        for text in with_spaces:
            safe = safe_query(text)
            if safe is not None:
                db.execute("SELECT * FROM texts WHERE texts MATCH ?", (safe,)).fetchall()
    finally:
        db.close()


@pytest.mark.timeout(30)  # each way to divide the words would take hours
@pytest.mark.parametrize("letter", ["a", "я", "怎", "\u200b", "\U0001f426"], ids=ascii)
def test_a_long_word_with_a_mark_behind_it_is_quoted_at_once(letter: str) -> None:
    word = letter * 100_000
    assert safe_query(f"{word}!") == f'"{word}!"'
    assert safe_query(f"{word}*") == f"{word}*"


@pytest.mark.proves("M-26")
@pytest.mark.parametrize("query", ["", " ", "\n\t", "\0"])
def test_a_blank_query_asks_nothing(query: str) -> None:
    assert safe_query(query) is None


@pytest.mark.proves("M-26")
def test_operators_stay_between_words_only() -> None:
    assert safe_query("a AND b OR c NOT d") == "a AND b OR c NOT d"
    assert safe_query("AND b") == '"AND" b'
    assert safe_query("a AND") == 'a "AND"'
    assert safe_query("a AND OR b") == 'a "AND" OR b'
    assert safe_query('a "b c" d-e') == 'a "b c" "d-e"'


# -- order ----------------------------------------------------------------------------------------


def row(number: int, days: float = 0, obs_type: str = "command", **more: str) -> Row:
    return Row(
        number, NOW - int(days * DAY), obs_type, "x", more.get("project", "rook"), more.get("path")
    )


@pytest.mark.proves("M-26")
def test_matches_that_are_equally_good_all_match_fully() -> None:
    assert [each.match for each in scores([(row(1), -2.0), (row(2), -2.0)], NOW)] == [1.0, 1.0]
    assert [each.match for each in scores([(row(1), -2.0)], NOW)] == [1.0]
    assert scores([], NOW) == []
    assert blended([], NOW) == []


@pytest.mark.proves("M-26")
def test_a_week_halves_and_the_future_is_now() -> None:
    assert recency(NOW - 7 * DAY, NOW) == 0.5
    assert recency(NOW + DAY, NOW) == 1.0
    assert recency(0, NOW) == pytest.approx(0)
    assert [weight(name) for name in ("file_edit", "command", "session_compact", "mcp_call")] == [
        1.0,
        0.67,
        0.5,
        0.33,
    ]
    assert weight("marker") == weight("anything") == 0.17


@pytest.mark.proves("M-26")
def test_of_equals_the_newer_then_the_lower_number_comes_first() -> None:
    same = [(row(3), -1.0), (row(1), -1.0), (row(2), -1.0)]
    assert [each.id for each in blended(same, NOW)] == [1, 2, 3]
    future = [(row(1), -1.0), (row(2, days=-1), -1.0)]
    assert [each.id for each in blended(future, NOW)] == [2, 1]


@pytest.mark.proves("M-27")
def test_of_one_file_only_the_best_row_is_recent() -> None:
    rows = [
        row(1, path="/a"),
        row(2, obs_type="file_edit", path="/a"),
        row(3),
        row(4),
        row(5, obs_type="file_edit", project="other", path="/b"),
    ]
    assert [each.id for each in recent(rows, NOW, "rook")] == [2, 3, 4, 5]
    assert [each.id for each in recent(rows, NOW)] == [2, 5, 3, 4]
