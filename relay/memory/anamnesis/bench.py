"""Recall benchmark v1: are planted sentences found again after K sessions of filler? (X-21)

Offline; the report depends on the seed only. Each system gets the planted sentences, then K
sessions of filler, then the questions. It answers with a stored sentence or not at all.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import sqrt
from typing import TYPE_CHECKING, Final, Protocol

from relay.memory.anamnesis.archive import archive_of
from relay.memory.anamnesis.bench_data import Category, Scenario, filler_of, scenario_of
from relay.memory.anamnesis.bm25 import ranks, words
from relay.memory.anamnesis.checks import content_hash
from relay.memory.anamnesis.recall import RecallQuery, recalled
from relay.memory.anamnesis.records import Entry, Memory, entry_draft, timestamp_of
from relay.nostr.event import signed

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from relay.memory.anamnesis.bench_data import Planted

SESSIONS: Final = (1, 5, 10, 50)
"""K: sessions of filler between the planted sentences and the questions."""
_BEGIN: Final = 1_767_225_600
_DAY_S: Final = 86_400
_AUTHOR: Final = "0" * 64
_MIN_SHARE: Final = 0.35
"""Share of the question's words that an answer must contain."""
_DIGITS: Final = 3
_STOP_WORDS: Final = frozenset(
    {
        "a",
        "an",
        "and",
        "at",
        "be",
        "by",
        "did",
        "do",
        "for",
        "i",
        "in",
        "is",
        "it",
        "of",
        "on",
        "or",
        "that",
        "the",
        "there",
        "to",
        "was",
        "we",
        "what",
        "when",
        "where",
        "which",
        "who",
        "with",
    }
)
"""Stop words."""


@dataclass(frozen=True, slots=True)
class Answer:
    text: str
    confidence: float
    """0 to 1, as the system states it."""


class System(Protocol):
    """A memory system under test."""

    def add(self, text: str, session: int) -> None: ...

    def ask(self, question: str, session: int) -> Answer | None:
        """None: no answer."""


@dataclass(frozen=True, slots=True)
class Scores:
    """Scores of one system after K sessions; means are over the planted sentences."""

    sessions: int
    exact: float
    """1 for the whole answer, 0.5 for half of its words."""
    semantic: float
    """F1 of the words against the planted sentence."""
    calibration: float | None
    """Pearson correlation of confidence and `exact`; None if one of them is constant."""
    false_memories: int
    """Number of answers to questions without an answer."""
    by_category: dict[str, float]
    """`exact` by category."""


@dataclass(frozen=True, slots=True)
class SystemScores:
    system: str
    scores: tuple[Scores, ...]

    @property
    def decay(self) -> tuple[float, ...]:
        """Loss of `exact` since the first K."""
        return tuple(round(self.scores[0].exact - each.exact, _DIGITS) for each in self.scores)


@dataclass(frozen=True, slots=True)
class Report:
    seed: int
    planted: int
    never_told: int
    columns: tuple[SystemScores, ...]

    def fields(self) -> dict[str, object]:
        """For JSON."""
        return {
            "seed": self.seed,
            "planted": self.planted,
            "never_told": self.never_told,
            "systems": {
                column.system: {
                    "sessions": [
                        {
                            "k": scores.sessions,
                            "exact": scores.exact,
                            "semantic": scores.semantic,
                            "calibration": scores.calibration,
                            "false_memories": scores.false_memories,
                            "by_category": scores.by_category,
                        }
                        for scores in column.scores
                    ],
                    "decay": list(column.decay),
                }
                for column in self.columns
            },
        }


class NoMemory:
    """Baseline without any memory."""

    def add(self, text: str, session: int) -> None:
        pass

    def ask(self, question: str, session: int) -> Answer | None:
        return None


class PlainFile:
    """Baseline: a list of lines; answers with the newest line that shares most words."""

    def __init__(self) -> None:
        self._lines: list[str] = []

    def add(self, text: str, session: int) -> None:
        self._lines.append(text)

    def ask(self, question: str, session: int) -> Answer | None:
        question_words = set(words(question))
        shared, best = 0, ""
        for line in reversed(self._lines):
            count = len(question_words & set(words(line)))
            if count > shared:
                shared, best = count, line
        return Answer(best, round(shared / len(question_words), _DIGITS)) if shared else None


class Anamnesis:
    """Entries ranked by `recall`; no answer if the best one shares too few words."""

    def __init__(self) -> None:
        self._memories: dict[str, Memory] = {}

    def add(self, text: str, session: int) -> None:
        at = _BEGIN + session * _DAY_S
        entry = Entry(text, "bench", "Bench", timestamp_of(at))
        draft = entry_draft(entry)
        event = signed(
            _AUTHOR, draft.created_at, draft.kind, draft.tags, draft.content, lambda _: "0" * 128
        )
        self._memories.setdefault(content_hash(text), Memory(event, entry))

    def ask(self, question: str, session: int) -> Answer | None:
        question_words = set(words(question)) - _STOP_WORDS
        texts = {hashed: memory.entry.content for hashed, memory in self._memories.items()}
        found = ranks(question, texts)
        archive = archive_of(self._memories[hashed] for hashed in found)
        now = _BEGIN + session * _DAY_S
        for hit in recalled(found, archive, RecallQuery(limit=1), now):
            text = hit.memory.entry.content
            held = len(question_words & set(words(text))) / len(question_words)
            if held >= _MIN_SHARE:
                return Answer(text, round(held, _DIGITS))
        return None


SYSTEMS: Final[dict[str, Callable[[], System]]] = {
    "anamnesis": Anamnesis,
    "plain file": PlainFile,
    "no memory": NoMemory,
}


def report_of(seed: int, systems: dict[str, Callable[[], System]] | None = None) -> Report:
    """Run everything. `systems`: name → factory; default SYSTEMS."""
    scenario = scenario_of(seed)
    columns = tuple(
        [
            SystemScores(name, tuple([_scores(make(), scenario, seed, k) for k in SESSIONS]))
            for name, make in (SYSTEMS if systems is None else systems).items()
        ]
    )
    return Report(seed, len(scenario.planted), len(scenario.never_told), columns)


def _scores(system: System, scenario: Scenario, seed: int, sessions: int) -> Scores:
    for planted in scenario.planted:
        system.add(planted.sentence, 0)
    for session in range(1, sessions + 1):
        for line in filler_of(seed, session):
            system.add(line, session)
    now = sessions + 1
    answers = [system.ask(planted.question.text, now) for planted in scenario.planted]
    exact = [_exact(*pair) for pair in zip(answers, scenario.planted, strict=True)]
    semantic = [_semantic(*pair) for pair in zip(answers, scenario.planted, strict=True)]
    stated = [0.0 if answer is None else answer.confidence for answer in answers]
    return Scores(
        sessions=sessions,
        exact=_mean(exact),
        semantic=_mean(semantic),
        calibration=pearson(stated, exact),
        false_memories=sum(system.ask(each.text, now) is not None for each in scenario.never_told),
        by_category={
            category.value: _mean(
                mark
                for mark, planted in zip(exact, scenario.planted, strict=True)
                if planted.question.category is category
            )
            for category in Category
        },
    )


def _exact(answer: Answer | None, planted: Planted) -> float:
    if answer is None:
        return 0.0
    given, expected = words(answer.text), words(planted.answer)
    if any(given[at : at + len(expected)] == expected for at in range(len(given))):
        return 1.0
    return 0.5 if sum(word in given for word in expected) * 2 >= len(expected) else 0.0


def _semantic(answer: Answer | None, planted: Planted) -> float:
    return 0.0 if answer is None else f1(words(answer.text), words(planted.sentence))


def f1(given: Sequence[str], expected: Sequence[str]) -> float:
    """F1 over words, with multiplicity."""
    shared = sum(min(given.count(word), expected.count(word)) for word in set(given))
    if not shared:
        return 0.0
    precision, recall = shared / len(given), shared / len(expected)
    return 2 * precision * recall / (precision + recall)


def pearson(xs: Sequence[float], ys: Sequence[float]) -> float | None:
    """Pearson correlation; None if one of them is constant."""
    if len(set(xs)) < 2 or len(set(ys)) < 2:
        return None
    x_mean, y_mean = sum(xs) / len(xs), sum(ys) / len(ys)
    covariance = sum((x - x_mean) * (y - y_mean) for x, y in zip(xs, ys, strict=True))
    deviations = sqrt(sum((x - x_mean) ** 2 for x in xs) * sum((y - y_mean) ** 2 for y in ys))
    return round(covariance / deviations, _DIGITS)


def _mean(values: Iterable[float]) -> float:
    found = list(values)
    return round(sum(found) / len(found), _DIGITS) if found else 0.0
