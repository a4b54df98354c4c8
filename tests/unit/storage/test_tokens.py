"""Tokens of texts, as FTS5 makes them."""

from __future__ import annotations

import sqlite3
from concurrent.futures import ThreadPoolExecutor

import pytest
from hypothesis import given
from hypothesis import strategies as st

from relay.nostr.nip50 import search_from, searchable
from relay.storage.postgres.sql.parameters import Parameters
from relay.storage.postgres.sql.words import Words
from relay.storage.tokens import Tokenizer, TokenMatcher
from tests.harness.fts_reading import FtsReading

WORDS = [
    "tea",
    "teas",
    "Tee",
    "tée",
    "milk",
    "milks",
    "a",
    "b",
    "a-b",
    "don't",
    "茶",
    "𝄞",
    "!!",
    "x_y",
]
TEXTS = st.lists(st.sampled_from(WORDS), max_size=12).map(" ".join)
TERMS = st.one_of(
    st.sampled_from(WORDS),
    st.lists(st.sampled_from(WORDS), min_size=1, max_size=3).map(
        lambda words: f'"{" ".join(words)}"'
    ),
)
QUERIES = st.lists(
    st.tuples(st.sampled_from(["", "", "", "-"]), TERMS).map("".join), min_size=1, max_size=4
)


@pytest.mark.parametrize("letter", ["é", "茶", "𝄞", "x"])
def test_of_a_word_that_is_cut_the_beginning_is_a_token(letter: str) -> None:
    """FTS5 cuts it after 32 KiB, perhaps within a letter."""
    tokenizer = Tokenizer()
    text = f"a{letter * 40_000} tea"
    (tokens,) = tokenizer.tokens([text])
    assert tokens == tokenizer.tokens([text])[0]
    assert tokens[-1] == "tea"
    assert tokenizer.listed(text).endswith(" tea ")
    tokenizer.close()


@pytest.mark.slow
def test_it_may_be_closed_while_a_thread_uses_it() -> None:
    """A task that ends leaves its thread behind. SQLite would crash the process."""
    texts = [f"word{number} " * 50 for number in range(400)]
    with ThreadPoolExecutor(1) as pool:
        for _ in range(20):
            tokenizer = Tokenizer()
            working = pool.submit(tokenizer.tokens, texts)
            while not working.running() and not working.done():
                pass
            tokenizer.close()
            error = working.exception()
            assert error is None or isinstance(error, sqlite3.ProgrammingError)
            with pytest.raises(sqlite3.ProgrammingError):
                tokenizer.tokens(texts)


@given(TEXTS, QUERIES, st.booleans())
def test_a_live_text_has_what_fts5_finds_in_it(text: str, terms: list[str], is_any: bool) -> None:  # noqa: FBT001
    search = search_from(" ".join(["match:any"] * is_any + terms))
    if search is None:
        return
    found = searchable(text)
    matcher, reading = TokenMatcher(), FtsReading()
    assert matcher.contains(found.text, search) == reading.contains(found, search)
    matcher.close()
    reading.close()


@given(
    st.text("ab", max_size=40),
    st.lists(st.text("ab", min_size=1, max_size=12), min_size=1, max_size=3),
)
def test_a_phrase_that_repeats_its_words_is_found_as_fts5_finds_it(
    text: str, phrases: list[str]
) -> None:
    search = search_from(" ".join(f'"{" ".join(phrase)}"' for phrase in phrases))
    assert search is not None
    found = searchable(" ".join(text))
    matcher, reading = TokenMatcher(), FtsReading()
    assert matcher.contains(found.text, search) == reading.contains(found, search)
    matcher.close()
    reading.close()


class _Scanned(str):
    """Counts how often it is looked through."""

    __slots__ = ()
    times = 0

    def __contains__(self, other: object) -> bool:
        _Scanned.times += 1
        return super().__contains__(str(other))


def test_a_text_is_not_looked_through_for_each_phrase(monkeypatch: pytest.MonkeyPatch) -> None:
    """128 phrases of which the text nearly has each took 20 ms of a text of 16,000 characters."""
    listed = Tokenizer.listed
    monkeypatch.setattr(Tokenizer, "listed", lambda *given: _Scanned(listed(*given)))
    matcher, text = TokenMatcher(), "a " * 100 + "b c"
    found = []
    for number in range(1, 31):
        search = search_from(f'"{"a " * number}b {"c" if number % 2 else "a"}"')
        assert search is not None
        found.append(matcher.contains(text, search))
    assert found == [True, False] * 15
    assert _Scanned.times == 0
    matcher.close()


@given(st.lists(TEXTS, max_size=6))
def test_the_tokens_of_many_texts_are_those_of_each(texts: list[str]) -> None:
    tokenizer = Tokenizer()
    if texts:
        assert tokenizer.listed_each(texts) == list(map(tokenizer.listed, texts))
        assert tokenizer.tokens_of_terms(texts) == tokenizer.tokens(texts)
    tokenizer.close()


def test_the_terms_of_a_request_are_made_tokens_together(monkeypatch: pytest.MonkeyPatch) -> None:
    """1,600 new words took the event loop 0.1 s."""
    made = 0
    listed = Tokenizer.listed

    def counted(tokenizer: Tokenizer, text: str) -> str:
        nonlocal made
        made += 1
        return listed(tokenizer, text)

    matcher = TokenMatcher()
    monkeypatch.setattr(Tokenizer, "listed", counted)
    searches = [search_from(f'word{n} "some tea{n}" -not{n}') for n in range(50)]
    matcher.prepare(filter(None, searches))
    assert made == 1
    for number, search in enumerate(searches):
        assert search is not None
        assert matcher.contains(f"word{number} some tea{number}", search)
    assert made == 1 + len(searches), "the texts alone"
    matcher.close()


def test_the_terms_of_a_search_are_kept_until_the_last_one_with_them_is_closed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Long terms of others emptied the cache: the next event had 8,192 terms made anew, one by
    one, in 2.3 s of the loop."""
    matcher = TokenMatcher()
    made: list[str] = []
    listed = Tokenizer.listed

    def counted(tokenizer: Tokenizer, text: str) -> str:
        made.append(text)
        return listed(tokenizer, text)

    open_, other = search_from("green tea -green"), search_from("green tea")
    assert open_ is not None
    assert other is not None
    matcher.prepare([open_])
    for number in range(500):
        long = search_from(f"{number}{'x' * 2000}{'y' * 20_000}")
        assert long is not None
        matcher.prepare([long, other])
        matcher.forget([long, other])
    monkeypatch.setattr(Tokenizer, "listed", counted)
    assert matcher.contains("tea", open_) is False
    assert made == ["tea"], "the text alone"
    matcher.forget([open_])
    assert matcher.contains("green tea", other) is True
    assert sorted(made[1:]) == ["green", "green tea", "tea"]
    matcher.close()


class CountingTokenizer(Tokenizer):
    """Counts how often it is asked."""

    asked = 0

    def listed(self, text: str) -> str:
        self.asked += 1
        return super().listed(text)


def test_the_terms_of_a_search_become_tokens_together() -> None:
    """Those of a COUNT of 44 searches took 0.17 s of the event loop one by one."""
    tokenizer = CountingTokenizer()
    words = Words(tokenizer)
    for number in range(100):
        terms = " ".join(f"w{number}x{term}" for term in range(30))
        search = search_from(f"{terms} -not{number}")
        assert search is not None
        words.contains(search, Parameters())
        words.score(search, Parameters())
    assert tokenizer.asked < 250
    assert len(words._known) <= 1024
