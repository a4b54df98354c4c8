"""relay/nostr/nip50.py: parsing of queries and ranking of texts."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from relay.nostr.filters import FilterTerms, filter_from
from relay.nostr.nip50 import (
    MAX_PHRASED,
    MAX_PIECES,
    MAX_QUERY,
    MAX_TERMS,
    MAX_TEXT,
    Needs,
    Search,
    search_from,
    searchable,
    words_of,
)

QUERIES = {
    "green tea": Search(("green", "tea")),
    "  green\t\ntea ": Search(("green", "tea")),
    "tea tea": Search(("tea",)),
    '"green tea" cup': Search(("green tea", "cup")),
    '"green tea"cup': Search(("green tea", "cup")),
    "tea -milk": Search(("tea",), ("milk",)),
    'tea -"cold milk" -sugar': Search(("tea",), ("cold milk", "sugar")),
    "-milk": Search((), ("milk",)),
    "tea language:en include:spam": Search(("tea",)),
    "nsfw:false tea -domain:example.com": Search(("tea",)),
    "tea future-thing.v2:[1,2]": Search(("tea",)),
    "see https://example.com/tea": Search(("see", "https://example.com/tea")),
    "note: tea": Search(("note:", "tea")),
    "10:30": Search(("10:30",)),
    '"language:en"': Search(("language:en",)),
}


@pytest.mark.proves("N50-04", "N50-07")
@pytest.mark.parametrize("query", QUERIES, ids=repr)
def test_a_query_is_words_phrases_and_exclusions(query: str) -> None:
    """G-22: quotes make a phrase, `-word` excludes, `key:value` is ignored."""
    assert search_from(query) == QUERIES[query]


@pytest.mark.proves("N50-04", "N50-07")
@pytest.mark.parametrize("query", ["", "  ", "\0\n", "language:en", "a:b c:d -e:f", '-"" "  "'])
def test_an_empty_query_is_none(query: str) -> None:
    assert search_from(query) is None
    filter_ = filter_from({"kinds": [1], "search": query}, FilterTerms(search=True))
    assert filter_ == filter_from({"kinds": [1]}, FilterTerms())


@pytest.mark.proves("N50-10")
@pytest.mark.parametrize(
    ("query", "words"),
    [
        ('"green tea', ('"green', "tea")),
        ("tea OR NOT (milk)", ("tea", "OR", "NOT", "(milk)")),
        ("te*a ^x {text}", ("te*a", "^x", "{text}")),
        ("text\0: AND\x01", ("text", ":", "AND")),
        ("- --", ("-",)),
        ("!!!", ("!!!",)),
    ],
)
def test_unparsable_text_counts_as_words(query: str, words: tuple[str, ...]) -> None:
    search = search_from(query)
    assert search is not None
    assert search.required == words


@given(st.text())
def test_any_text_is_parsed(query: str) -> None:
    search = search_from(query)
    terms = () if search is None else search.required + search.excluded
    assert len(terms) <= MAX_TERMS
    assert all(term.strip() and not any(ord(c) < 32 for c in term) for term in terms)


def test_a_long_query_is_cut_at_its_limits() -> None:
    search = search_from(" ".join(f"w{number}" for number in range(2 * MAX_TERMS)))
    assert search is not None
    assert search.required == tuple(f"w{number}" for number in range(MAX_TERMS))
    assert search_from("a" * (2 * MAX_QUERY)) == Search(("a" * MAX_QUERY,))
    question = search_from("match:any" + "".join(f" w{number}" for number in range(2 * MAX_TERMS)))
    assert question is not None
    assert len(question.asked.split()) == MAX_TERMS
    assert search_from("tea " * MAX_PIECES + "cup") == Search(("tea",))


@pytest.mark.parametrize(
    ("phrase", "kept"),
    [
        ("a " * 300, "a " * 31 + "a"),
        ("a-" * 300, "a-" * 31 + "a"),
        ("\U0001f600 " * 300, "\U0001f600 " * 31 + "\U0001f600"),
        ("a\u19b0" * 300, "a\u19b0" * 16),
    ],
    ids=["words", "signs", "letters to an index", "signs to an index"],
)
def test_a_long_phrase_is_cut(phrase: str, kept: str) -> None:
    assert search_from(f'"{phrase}" tea') == Search((kept, "tea"))
    assert search_from(f'"{phrase}" "{phrase} x" tea -"{phrase}"') == Search((kept, "tea"), (kept,))
    asked = search_from(f'match:any tea "{phrase}"')
    assert asked is not None
    assert all(len(words_of(term)) <= MAX_PHRASED for term in asked.required)


def test_repeated_and_frequent_words_are_found() -> None:
    found = searchable("Tea, tea! And TEA and tea-cups\0")
    assert found.text == "Tea, tea! And TEA and tea-cups "
    assert set(found.repeated.split()) == {"tea", "and"}
    assert found.frequent == "tea"


def test_a_word_scores_more_in_shorter_texts_and_when_repeated() -> None:
    short, long = searchable("tea"), searchable("tea " + "word " * 200)
    for text in (short, long):
        once, repeated, frequent = text.scores
        assert 0 < once < repeated < frequent
    assert short.scores > long.scores


def test_a_text_is_indexed_up_to_its_limit() -> None:
    assert searchable("x" * (MAX_TEXT + 1)).text == "x" * MAX_TEXT


def test_a_term_is_counted_by_its_words() -> None:
    assert words_of("Æther9") == ("Æther9",)
    assert words_of("green tea-time a_b") == ("green", "tea", "time", "a", "b")
    assert words_of("!") == ()


@pytest.mark.parametrize(
    ("query", "search"),
    [
        (
            "What leaks in Ada's kitchen? match:any",
            Search(("leaks", "ada", "kitchen"), (), Needs.ANY, "What leaks in Ada's kitchen?"),
        ),
        (
            'who read "Nothing is Impossible" -film match:any near:5-9 near:x',
            Search(
                ("read", "nothing", "impossible", "Nothing is Impossible"),
                ("film",),
                Needs.ANY,
                "who read Nothing is Impossible",
                ((5, 9),),
            ),
        ),
        ("match:any near:5-9", None),
        ("tea match:all near:5-9", Search(("tea",))),
    ],
)
def test_with_match_any_the_query_is_a_question(query: str, search: Search | None) -> None:
    assert search_from(query) == search
