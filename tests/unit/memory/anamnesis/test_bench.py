"""The recall benchmark: deterministic for a seed, correct scores."""

from __future__ import annotations

import json

import pytest

from relay.memory.anamnesis.bench import (
    SESSIONS,
    Answer,
    NoMemory,
    PlainFile,
    f1,
    pearson,
    report_of,
)
from relay.memory.anamnesis.bench_data import EACH, Category, filler_of, scenario_of


class Perfect:
    """Knows the scenario by heart."""

    def __init__(self) -> None:
        self.known = {each.question.text: each.sentence for each in scenario_of(7).planted}

    def add(self, text: str, session: int) -> None:
        pass

    def ask(self, question: str, session: int) -> Answer | None:
        told = self.known.get(question)
        return None if told is None else Answer(told, 1.0)


class Babbler:
    """Answers everything, and is surer the less it knows."""

    def __init__(self) -> None:
        self.said: list[str] = []

    def add(self, text: str, session: int) -> None:
        self.said.append(text)

    def ask(self, question: str, session: int) -> Answer | None:
        told = Perfect().known.get(question)
        if told is None or told == self.said[0]:
            return Answer("no idea", 1.0)
        return Answer(told, 0.5)


@pytest.mark.slow
@pytest.mark.proves("X-21")
def test_the_same_seed_gives_the_same_report_and_another_one_another() -> None:
    report, again = report_of(7), report_of(7)
    assert report == again
    assert json.dumps(report.fields()) == json.dumps(again.fields())
    assert scenario_of(7) != scenario_of(8)
    assert filler_of(7, 1) != filler_of(7, 2)
    assert filler_of(7, 1) == filler_of(7, 1)


@pytest.mark.proves("X-21")
def test_every_kind_of_memory_is_planted_once_a_person_and_some_never() -> None:
    scenario = scenario_of(3)
    assert len(scenario.planted) == EACH * len(Category)
    asked = [each.question for each in scenario.planted] + list(scenario.never_told)
    assert len({question.text for question in asked}) == len(asked)
    assert {question.category for question in scenario.never_told} == set(Category)
    for planted in scenario.planted:
        assert planted.answer in planted.sentence


@pytest.mark.proves("X-21")
def test_marks_are_full_for_who_knows_all_and_none_for_who_knows_nothing() -> None:
    report = report_of(7, {"all": Perfect, "nothing": NoMemory, "babbler": Babbler})
    everything, nothing, babbler = report.columns
    assert [scores.sessions for scores in everything.scores] == list(SESSIONS)
    assert {(m.exact, m.semantic, m.calibration, m.false_memories) for m in everything.scores} == {
        (1.0, 1.0, None, 0)
    }
    assert {(m.exact, m.semantic, m.calibration, m.false_memories) for m in nothing.scores} == {
        (0.0, 0.0, None, 0)
    }
    assert everything.decay == nothing.decay == (0, 0, 0, 0)
    first = babbler.scores[0]
    assert (first.exact, first.calibration, first.false_memories) == (0.95, -1.0, len(Category))


@pytest.mark.slow
@pytest.mark.proves("X-21")
def test_it_is_measured_against_no_memory_and_a_plain_file() -> None:
    report = report_of(7)
    names = {column.system: column for column in report.columns}
    assert list(names) == ["anamnesis", "plain file", "no memory"]
    own, file = names["anamnesis"].scores[-1], names["plain file"].scores[-1]
    assert own.exact > 0.5
    assert own.false_memories < file.false_memories
    fields = report.fields()
    assert list(fields) == ["seed", "planted", "never_told", "systems"]


def test_a_plain_file_gives_the_newest_line_of_those_that_fit_best() -> None:
    file = PlainFile()
    assert file.ask("Who likes tea?", 1) is None
    for line in ("Mira likes tea", "Ivo likes tea", "tea"):
        file.add(line, 0)
    assert file.ask("Who likes tea?", 1) == Answer("Ivo likes tea", 0.667)


def test_f1_and_pearson() -> None:
    assert f1(["a", "b"], ["a", "b"]) == 1
    assert f1(["a", "a", "c"], ["a", "b", "c"]) == pytest.approx(2 / 3)
    assert f1([], ["a"]) == 0
    assert pearson([1, 2, 3], [2, 4, 6]) == 1
    assert pearson([1, 2, 3], [6, 4, 2]) == -1
    assert pearson([1, 1], [0, 1]) is None
