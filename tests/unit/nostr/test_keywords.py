"""Questions as keyword searches, and the ranking of their results."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from relay.memory.nmem.ranking import safe_query
from relay.nostr.keywords import MAX_KEYWORDS, any_of, keywords, merged
from relay.nostr.nip50 import Search, search_from


@pytest.mark.parametrize(
    ("question", "words"),
    [
        ("When did Caroline go to the support group?", ("caroline", "go", "support", "group")),
        (
            "What is Melanie\u2019s hand-painted bowl a reminder of?",
            ("melanie", "hand", "painted", "bowl", "reminder"),
        ),
        ("What didn't they like about tea, and why don't they?", ("like", "tea")),
        ("tea TEA Tea", ("tea",)),
        ("Was trinkt Jürgen gern?", ("trinkt", "jürgen", "gern")),
    ],
)
def test_what_is_asked_for_is_each_word_that_tells_something_once(
    question: str, words: tuple[str, ...]
) -> None:
    assert keywords(question) == words


def test_a_question_of_nothing_but_small_words_keeps_them() -> None:
    assert keywords("Who were they?") == ("who", "were", "they")


@pytest.mark.parametrize("question", ["", "  ", "?!", "__"])
def test_a_question_without_a_word_asks_for_nothing(question: str) -> None:
    assert keywords(question) == ()
    assert any_of(question) == ""
    assert merged([]) == []


def test_of_a_long_question_the_first_words_are_asked_for() -> None:
    words = [f"word{number}" for number in range(50)]
    assert list(keywords(" ".join(words))) == words[:MAX_KEYWORDS]


@given(st.text())
def test_a_keyword_is_no_syntax_of_the_relays_search_nor_of_the_caches(question: str) -> None:
    words = keywords(question)
    for word in words:
        assert search_from(word) == Search((word,))
    assert safe_query(any_of(question)) == (" OR ".join(words) or None)


def test_what_has_more_of_the_words_comes_first() -> None:
    assert merged([["one", "both"], ["both", "two"]])[0] == "both"


def test_a_word_that_few_texts_have_counts_more_than_one_that_many_have() -> None:
    many = [f"common {number}" for number in range(50)]
    assert merged([many, ["rare"]])[0] == "rare"


def test_two_common_words_do_not_outweigh_a_rare_one() -> None:
    common = ["usual", *(f"common {number}" for number in range(90))]
    assert merged([common, common, ["rare"]])[:2] == ["rare", "usual"]


def test_of_texts_with_the_same_words_the_better_answer_comes_first() -> None:
    assert merged([["best", "good", "last"]]) == ["best", "good", "last"]
    # Met later, and yet before: it answers the rarer word best.
    assert merged([["other", "second", "first"], ["first", "second"]])[:2] == ["first", "second"]


def test_of_equals_the_one_met_first_comes_first() -> None:
    assert merged([["b"], ["a"], []]) == ["b", "a"]
