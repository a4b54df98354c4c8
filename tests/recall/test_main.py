"""The recall benchmark as a whole: a relay of its own is filled and asked."""

from __future__ import annotations

import json
import re
import sys
from typing import TYPE_CHECKING, Any

import pytest

from tests.recall import __main__ as program
from tests.recall.dataset import Conversation, Question, Session, Turn
from tests.recall.measures import Quality

if TYPE_CHECKING:
    from pathlib import Path

AT = 1_683_554_160
TALK = Conversation(
    "two people",
    (
        Session(1, (Turn("Ada", "I painted the harbour.", AT), Turn("Bo", "Nice!", AT + 30))),
        Session(2, (Turn("Bo", "The harbour was crowded.", AT + 86_400),)),
        Session(3, (Turn("Ada", "My violin needs new strings.", AT + 172_800),)),
    ),
    (
        Question("When did Ada paint the harbour?", 2, frozenset({1})),
        Question("strings violin", 4, frozenset({3})),
        Question("What is the answer to nothing?", 3, frozenset()),
    ),
)


def close(number: float) -> Any:
    """What is equal to any number close to this one."""
    return pytest.approx(number)


@pytest.mark.process
@pytest.mark.slow
async def test_a_sentence_is_answered_by_the_methods_that_take_any_word() -> None:
    asked: list[str] = []
    answers = await program.ask_all([TALK], re.compile(""), asked.append)
    assert asked == ["two people"] * 2
    found = {(answer.method, answer.category): answer.quality for answer in answers}
    everything, nothing = Quality(1, 1, 1, 1), Quality(0, 0, 0, 0)
    assert found["relay, all words", 4] == everything
    assert found["relay, all words", 2] == nothing
    for method in ("recall", "nmem, any word", "BM25 alone (FTS5)", "grep, most words"):
        assert found[method, 4] == everything
        assert found[method, 2] == everything
    assert found["nmem, any word, blended", 2] == everything
    assert found["anamnesis recall", 2] == everything
    assert found[program.ANY_ORDER, 2] == Quality(
        close(1 / 3), 1, 1, close((1 + 1 / 2 + 1 / 3) / 3)
    )


def test_rows_have_all_questions_of_a_road_first_and_then_each_category() -> None:
    answers = [
        program.Answer("b", 4, Quality(1, 1, 1, 1), 0.003, 9),
        program.Answer("a", 4, Quality(1, 1, 1, 1), None),
        program.Answer("b", 1, Quality(0, 0, 0.5, 0.25), 0.001),
        program.Answer("b", 9, Quality(0, 0, 0, 0), 0.002),
    ]
    rows = program.rows_of(answers)
    assert [(row.method, row.category, row.questions) for row in rows] == [
        ("b", "all", 3),
        ("b", "multi-hop", 1),
        ("b", "single-hop", 1),
        ("b", "9", 1),
        ("a", "all", 1),
        ("a", "single-hop", 1),
    ]
    assert rows[0].quality == Quality(close(1 / 3), close(1 / 3), 0.5, close(1.25 / 3))
    assert rows[0].ms == pytest.approx((2, 3))
    assert rows[0].tokens == 3
    assert rows[4].ms is None


def test_a_file_of_another_checksum_ends_with_2_before_anything_is_started(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "other.json"
    path.write_text(json.dumps([]))
    monkeypatch.setattr(sys, "argv", ["recall", "--data", str(path)])
    assert program.main() == 2
    assert "--sha256" in capsys.readouterr().err
