"""relay/memory/junk.py: what is kept out of memory when it is written, and what is told of it."""

from __future__ import annotations

import pytest

from relay.memory.fence import fenced, recalled
from relay.memory.junk import KeptOut, Sieve, Why, without_echo
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


def test_what_was_recalled_is_no_news() -> None:
    assert sifted("the kettle leaks since monday says ada", gave=(KNOWN,)) == (None, [Why.ECHO])
    assert sifted(KNOWN, gave=(f"kettle\n{KNOWN}",)) == (None, [Why.ECHO])
    assert sifted("yes", gave=("Yes.",)) == ("yes", [])


def test_what_stands_in_a_fence_is_left_out_and_the_rest_written() -> None:
    fence = fenced(KNOWN, "nmem", alice.npub)
    assert sifted(f"see:\n{fence}\nand tea") == ("see:\n\nand tea", [Why.ECHO])
    assert sifted(fence) == (None, [Why.ECHO])
    cut = recalled(KNOWN, "snowclaw x", alice.pubkey, robot.pubkey, "Ada")[:-9]
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
