"""relay/nostr/nip50.py: parsing of queries and ranking of texts."""

from __future__ import annotations

import re
import unicodedata
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from relay.memory.interop.records import Fault, Form, note
from relay.memory.junk import core_of
from relay.nostr.filters import FilterTerms, filter_from
from relay.nostr.nip50 import (
    MAX_MARKS,
    MAX_PHRASED,
    MAX_PIECES,
    MAX_QUERY,
    MAX_TERMS,
    MAX_TEXT,
    Needs,
    Search,
    normalized,
    search_from,
    searchable,
    words_of,
)
from relay.storage.sqlite.minilm import words

if TYPE_CHECKING:
    from collections.abc import Callable

    from relay.nostr.nip50 import NormalForm

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


FORMS = st.sampled_from(("NFC", "NFD", "NFKC", "NFKD"))
LETTERS = st.sampled_from(
    "a\u00e9\u1ea4\u0438\ud55c\u1112\u1161\u11ab\u0915\u4e2d\ufb03\ufdfa \ud800"
)
MARKS = st.sampled_from("\u0301\u0316\u0344\u0327\u093c\u3099\uff9e\u0f73\u302e\u1100")
"""Of several combining classes; some only once they are decomposed, and a letter."""
SOME_MARKS = st.text(MARKS, max_size=MAX_MARKS)
MANY_MARKS = st.builds(lambda text, times: text * times, st.text(MARKS), st.integers(1, 60))


def texts(marks: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    parts = st.one_of(
        st.text(), st.builds(str.__add__, LETTERS, marks).map(lambda part: f"{part}a")
    )
    return st.lists(parts, max_size=6).map("".join)


@given(FORMS, texts(SOME_MARKS))
def test_a_text_without_many_marks_in_a_row_is_normalized_as_python_does(
    form: NormalForm, text: str
) -> None:
    assert normalized(form, text) == unicodedata.normalize(form, text)


@given(FORMS, texts(MANY_MARKS))
def test_a_text_with_many_marks_stays_the_same_text(form: NormalForm, text: str) -> None:
    assert unicodedata.normalize(form, normalized(form, text)) == unicodedata.normalize(form, text)


def note_of(key: str) -> object:
    return note(Form.NOMEN, key, "tea", None, "a.json:1")


@pytest.mark.parametrize("use", [words, core_of, note_of])
@pytest.mark.parametrize("row", ["\u0301\u0316", "\uff9e\u3099", "\u0344\u0f73"])
def test_few_marks_are_sorted_together(
    use: Callable[[str], object], row: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Python sorts them by insertion: one note with 100,000 stopped the relay for 40 s."""
    normalize, rows = unicodedata.normalize, [0]

    def noted(form: NormalForm, text: str) -> str:
        found = normalize(form, text)
        rows.extend(map(len, re.findall("[^a-z]+", normalize("NFKD", text))))
        return found

    monkeypatch.setattr(unicodedata, "normalize", noted)
    found = use(f"tea{row * 5000} a{row * 5000}")
    _ = found if isinstance(found, Fault) else list(found)  # type: ignore[call-overload]
    assert 0 < max(rows) <= 2 * MAX_MARKS + 1
