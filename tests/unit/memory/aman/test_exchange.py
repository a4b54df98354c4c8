"""A rolling summary of the last exchanges. A-27."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from relay.memory.aman.exchange import append_exchange, cut, tool_content
from relay.memory.aman.records import Summary

EMPTY = Summary("hk", "", 0, 5)


def after(*exchanges: tuple[str, str], start: Summary = EMPTY) -> Summary:
    for user, assistant in exchanges:
        start = append_exchange(start, user, assistant)
    return start


@pytest.mark.proves("A-27")
def test_an_exchange_is_two_lines_and_counts_once() -> None:
    found = after(("hello", "hi"), ("tea?", "yes"))
    assert found == Summary("hk", "U: hello\nA: hi\nU: tea?\nA: yes", 2, 5)


@pytest.mark.proves("A-27")
def test_a_text_becomes_one_line() -> None:
    found = after(("  a \n\n\t b\r\nc\u2028d  ", "\n \n"))
    assert found.summary == "U: a b c d\nA: "


@pytest.mark.proves("A-27")
def test_a_text_is_cut_at_160_characters_with_the_dots_counted_in() -> None:
    user, assistant = after(("ü" * 160, "ü" * 161)).summary.splitlines()
    assert user == "U: " + "ü" * 160
    assert assistant == "A: " + "ü" * 157 + "..."


@pytest.mark.proves("A-27")
def test_of_nine_exchanges_the_oldest_goes() -> None:
    found = after(*((f"u{number}", f"a{number}") for number in range(9)))
    assert found.summary.splitlines()[:2] == ["U: u1", "A: a1"]
    assert len(found.summary.splitlines()) == 16
    assert found.message_count == 9


@pytest.mark.proves("A-27")
def test_over_1200_characters_the_oldest_pairs_go() -> None:
    # Each pair has 2 * 147 + 1 = 295 characters; four are 1183 with the lines between, five more.
    found = after(*((f"{number}" * 144, f"{number}" * 144) for number in range(6)))
    assert [line[3] for line in found.summary.splitlines()] == list("22334455")
    assert len(found.summary) == 1183


@pytest.mark.proves("A-27")
def test_exactly_1200_characters_are_kept() -> None:
    start = Summary("hk", "U: " + "x" * 1183 + "\nA: ", 1, 5)
    assert len(append_exchange(start, "b", "c").summary) == 1200
    assert append_exchange(start, "bb", "c").summary == "U: bb\nA: c"


def test_a_summary_that_somebody_wrote_is_the_oldest_exchange() -> None:
    start = Summary("hk", "likes tea\nhas a cat", 40, 5)
    assert after(("a", "b"), start=start) == Summary(
        "hk", "likes tea\nhas a cat\nU: a\nA: b", 41, 5
    )
    found = after(*((f"u{number}", "a") for number in range(8)), start=start)
    assert found.summary.startswith("U: u0\n")
    assert found.message_count == 48


@pytest.mark.proves("A-27")
@given(st.text(max_size=3000), st.lists(st.tuples(st.text(), st.text()), min_size=1, max_size=12))
def test_whatever_is_said_the_summary_stays_small(start: str, said: list[tuple[str, str]]) -> None:
    found = after(*said, start=Summary("hk", start, 0, 5))
    assert len(found.summary) <= 1200
    assert sum(line.startswith("U: ") for line in found.summary.splitlines()) <= 8
    assert found.message_count == len(said)


@pytest.mark.proves("A-27")
def test_what_a_tool_said_is_cut_at_2000_characters() -> None:
    assert tool_content("x" * 2000) == "x" * 2000
    assert tool_content("x" * 2001) == "x" * 1997 + "..."


@pytest.mark.parametrize("most", range(6))
def test_a_cut_text_is_never_longer_than_asked_for(most: int) -> None:
    assert len(cut("abcdefgh", most)) == most
