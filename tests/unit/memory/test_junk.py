"""relay/memory/junk.py: what is kept out of memory when it is written, and what is told of it."""

from __future__ import annotations

from unicodedata import normalize

import pytest
from hypothesis import given
from hypothesis import strategies as st

from relay.memory.fence import fenced, recalled
from relay.memory.junk import KeptOut, Sieve, Why, core_of, without_echo
from tests.cast import alice, robot

KNOWN = "The kettle leaks since Monday, says Ada."
NOTHING: tuple[str, ...] = ()


def sifted(text: str, *known: str, gave: tuple[str, ...] = NOTHING) -> tuple[str | None, list[Why]]:
    sieve = Sieve()
    sieve.recalled(gave)
    found = sieve.sifted(text, known)
    return found.text, [each.why for each in found.kept_out]


@pytest.mark.parametrize(
    "text",
    ["", "tea at noon", f"{robot.npub} and {robot.pubkey}", "half \ud83d of a pair", "  spaces  "],
)
def test_what_is_no_junk_stays_as_it_is(text: str) -> None:
    assert sifted(text, KNOWN, gave=(KNOWN,)) == (text, [])


@pytest.mark.parametrize(
    "secret",
    [
        robot.nsec,
        "sk-ant-" + "a1" * 20,
        "password: hunter2",
        "ghp_" + "a1" * 18,
        "postgres://me:pw@host/db",
    ],
)
def test_a_secret_is_replaced_and_never_told(secret: str) -> None:
    found = Sieve().sifted(f"use {secret} there")
    assert found.text is not None
    assert secret not in found.text
    assert "[REDACTED]" in found.text
    told = "; ".join(map(str, found.kept_out))
    assert told == "what looks like a secret: [REDACTED] stands in its place"


@pytest.mark.parametrize(
    "text",
    [
        KNOWN,
        "the kettle leaks, since monday - says ADA",
        "Also, kettle leaks since Monday says Ada",
        "(the 'kettle' leaks, since `Monday`…) – says “Ada”!",
        "- a kettle leaks, since Monday: says Ada;",
    ],
)
def test_the_same_words_are_a_copy_whatever_their_case_and_punctuation(text: str) -> None:
    assert sifted(text, "other", KNOWN) == (None, [Why.COPY])
    told = Sieve().sifted(text, [KNOWN]).kept_out
    assert str(told[0]) == f"what is known already: {KNOWN}"


@pytest.mark.parametrize(
    "text",
    [
        "The kettle leaks since Tuesday, says Ada.",
        "The kettle leaks no more since Monday, says Ada.",
        "Ada leaks since Monday, says the kettle.",
        "The kettle leaked since Monday, says Ada.",
        "The kettle leaks since Monday, says Ada. It is green.",
    ],
)
def test_another_word_number_or_order_is_news(text: str) -> None:
    assert sifted(text, KNOWN, gave=(KNOWN,)) == (text, [])


@pytest.mark.parametrize(
    "forms",
    [
        ("prefers C", "prefers C++", "prefers C#"),
        ("a balance of 20 EUR", "a balance of -20 EUR", "a balance of ~20 EUR"),
        ("a balance of 20 EUR", "a balance of - 20 EUR", "a balance of −20 EUR"),
        ("the shirt costs $5", "the shirt costs €5", "the shirt costs 5"),
        ("the plan got 👍", "the plan got 👎", "the plan got ❤", "the plan got :)", "the plan got"),
        ("it must be < 100", "it must be > 100", "it must be <= 100", "it must be 100"),
        ("if x == 1", "if x != 1", "if x = 1", "if x", "if !x", "if x²", "if x2"),
        ("ratio 3:2", "ratio 3/2", "ratio 3.2", "ratio 3,2", "ratio 3 2", "ratio 32", "ratio 3-2"),
        ("costs .5", "costs 5", "costs 5%", "costs 1½", "costs 11⁄2", 'costs 5"', "costs 5'"),
        ("chose plan A", "chose plan"),
        ("is of group A-", "is of group A+", "is of group A"),
        ("run it with --force", "run it with force", "run it with /force", "run it with .force"),
        ("[x] buy tea", "[ ] buy tea", "buy tea"),
        ("the server is down?", "the server is down."),
        ("AT&T", "AT T"),
        ("कि", "की"),
    ],
)
def test_another_sign_or_symbol_is_news(forms: tuple[str, ...]) -> None:
    for text in forms:
        others = [each for each in forms if each != text]
        assert sifted(text, *others) == (text, [])
        assert sifted(text, text) == (None, [Why.COPY])


SYMBOLS = st.characters(categories=["Sm", "Sc", "So"], include_characters="%#&@/").filter(
    lambda symbol: normalize("NFKC", symbol) == symbol
)


@given(
    st.lists(st.from_regex(r"[a-z]{3,9}|[0-9]{1,3}|C", fullmatch=True), min_size=1, max_size=9),
    st.lists(st.tuples(SYMBOLS, st.sampled_from(["{w}{s}", "{s}{w}", "{w}|{s}"])), max_size=2),
    st.data(),
)
def test_texts_with_other_words_or_symbols_are_never_copies(
    words: list[str], symbols: list[tuple[str, str]], data: st.DataObject
) -> None:
    """Wherever it stands: before a word, after it or alone."""
    place = data.draw(st.integers(0, len(words) - 1))

    def told(symbol: str, form: str) -> str:
        word = form.replace("|", " ").format(w=words[place], s=symbol)
        return " ".join([*words[:place], word, *words[place + 1 :]])

    texts = {"": " ".join(words)} | {symbol: told(symbol, form) for symbol, form in symbols}
    for symbol, text in texts.items():
        for other, known in texts.items():
            assert sifted(text, known)[1] == ([Why.COPY] if symbol == other else [])


@given(st.text(), st.text(alphabet="(\"'.,:;!-– [{a5\n", max_size=200))
def test_any_text_is_a_copy_of_itself_or_has_nothing_to_compare(text: str, marks: str) -> None:
    for each in (text, marks, text + marks, marks + text):
        known = core_of(each)
        assert sifted(each, each)[0] == (None if known else each) or "<memory" in each


def test_many_marks_take_no_long_time() -> None:
    for mark in ".,!-([\"' \n":
        for text in (mark * 100_000, f"{mark}" * 100_000 + "x", f"x{mark}" * 50_000):
            assert len(core_of(text)) <= 100_001


def test_what_was_recalled_is_no_news() -> None:
    assert sifted("the kettle leaks since monday says ada", gave=(KNOWN,)) == (None, [Why.ECHO])
    assert sifted(KNOWN, gave=(f"kettle\n{KNOWN}",)) == (None, [Why.ECHO])
    assert sifted("yes", gave=("Yes.",)) == ("yes", [])
    assert sifted("x == +1", gave=("x == +1",)) == ("x == +1", []), "two words"


def test_what_was_recalled_about_one_is_news_about_another() -> None:
    sieve = Sieve()
    sieve.recalled([KNOWN], about="ada")
    assert sieve.sifted(KNOWN, about="bob").text == KNOWN
    assert sieve.sifted(KNOWN, about="ada").text is None
    assert sieve.sifted(KNOWN).text is None
    sieve.recalled([KNOWN])
    assert sieve.sifted(KNOWN, about="bob").text is None


def test_what_stands_in_a_fence_is_left_out_and_the_rest_written() -> None:
    fence = fenced(KNOWN, "nmem", alice.npub)
    assert sifted(f"see:\n{fence}\nand tea") == ("see:\n\nand tea", [Why.ECHO])
    assert sifted(fence) == (None, [Why.ECHO])
    cut = recalled(KNOWN, ("snowclaw", "x"), alice.pubkey, robot.pubkey, "Ada")[:-9]
    assert sifted(f"so {cut}") == ("so", [Why.ECHO])
    assert without_echo("a <memory> of </memory> tea") == "a <memory> of </memory> tea"


def test_a_secret_is_looked_for_in_what_is_left() -> None:
    fence = fenced("token=abcdef", "nmem", alice.npub)
    assert sifted(f"tea {fence}") == ("tea", [Why.ECHO])
    assert sifted(f"token=abcdef {fence}") == ("[REDACTED]", [Why.ECHO, Why.SECRET])


def test_what_is_told_of_a_copy_is_one_short_line() -> None:
    known = "password=hunter2 " + "word\n" * 30
    told = str(KeptOut(Why.COPY, known))
    assert len(told) < 90
    assert "\n" not in told
    assert "hunter2" not in told
