"""Recall benchmark v1: is what was told found again, sessions later? MEMORY.md X-21.

Offline, and the same report for the same seed. Every system is told the same sentences, then K
sessions of filler, then it is asked. It answers with what it was told, or not at all.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import sqrt
from typing import TYPE_CHECKING, Final, Protocol

from relay.memory.anamnesis.archive import archive_of
from relay.memory.anamnesis.checks import content_hash
from relay.memory.anamnesis.plots import Category, Plot, filler_of, plot_of
from relay.memory.anamnesis.recall import Wish, recalled
from relay.memory.anamnesis.records import Entry, Memory, entry_draft, timestamp_of
from relay.memory.anamnesis.relevance import ranks, words
from relay.nostr.event import signed

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from relay.memory.anamnesis.plots import Planted

SESSIONS: Final = (1, 5, 10, 50)
"""K: how many sessions of filler lie between the telling and the asking."""
_BEGIN: Final = 1_767_225_600
_DAY_S: Final = 86_400
_AUTHOR: Final = "0" * 64
_ENOUGH: Final = 0.35
"""So much of a question's words must be in what answers it."""
_DIGITS: Final = 3
_SMALL: Final = frozenset(
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
"""Words that say nothing of what is asked for."""


@dataclass(frozen=True, slots=True)
class Answer:
    text: str
    confidence: float
    """0 to 1, as the system states it."""


class System(Protocol):
    """What is measured."""

    def tell(self, text: str, session: int) -> None: ...

    def ask(self, question: str, session: int) -> Answer | None:
        """None: it says that it does not know."""


@dataclass(frozen=True, slots=True)
class Marks:
    """Of one system after K sessions; each mean is over the planted sentences."""

    sessions: int
    exact: float
    """The whole answer 1, half of its words 0.5."""
    semantic: float
    """F1 of words with the sentence that was told."""
    calibration: float | None
    """Pearson of stated confidence and exactness; None: one of them is always the same."""
    false_memories: int
    """Answers to what was never told."""
    by_category: dict[str, float]
    """Exactness."""


@dataclass(frozen=True, slots=True)
class Column:
    system: str
    marks: tuple[Marks, ...]

    @property
    def decay(self) -> tuple[float, ...]:
        """How much exactness has gone since the first K."""
        return tuple(round(self.marks[0].exact - each.exact, _DIGITS) for each in self.marks)


@dataclass(frozen=True, slots=True)
class Report:
    seed: int
    planted: int
    never_told: int
    columns: tuple[Column, ...]

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
                            "k": marks.sessions,
                            "exact": marks.exact,
                            "semantic": marks.semantic,
                            "calibration": marks.calibration,
                            "false_memories": marks.false_memories,
                            "by_category": marks.by_category,
                        }
                        for marks in column.marks
                    ],
                    "decay": list(column.decay),
                }
                for column in self.columns
            },
        }


class NoMemory:
    """Baseline: whoever was told nothing."""

    def tell(self, text: str, session: int) -> None:
        pass

    def ask(self, question: str, session: int) -> Answer | None:
        return None


class PlainFile:
    """Baseline: a file of lines; the newest of those that share most words with the question."""

    def __init__(self) -> None:
        self._lines: list[str] = []

    def tell(self, text: str, session: int) -> None:
        self._lines.append(text)

    def ask(self, question: str, session: int) -> Answer | None:
        asked = set(words(question))
        shared, best = 0, ""
        for line in reversed(self._lines):
            in_it = len(asked & set(words(line)))
            if in_it > shared:
                shared, best = in_it, line
        return Answer(best, round(shared / len(asked), _DIGITS)) if shared else None


class Anamnesis:
    """Entries, recalled as `recall` does it; silent when the best holds too little of a
    question."""

    def __init__(self) -> None:
        self._memories: dict[str, Memory] = {}

    def tell(self, text: str, session: int) -> None:
        at = _BEGIN + session * _DAY_S
        entry = Entry(text, "bench", "Bench", timestamp_of(at))
        draft = entry_draft(entry)
        event = signed(
            _AUTHOR, draft.created_at, draft.kind, draft.tags, draft.content, lambda _: "0" * 128
        )
        self._memories.setdefault(content_hash(text), Memory(event, entry))

    def ask(self, question: str, session: int) -> Answer | None:
        asked = set(words(question)) - _SMALL
        texts = {hashed: memory.entry.content for hashed, memory in self._memories.items()}
        found = ranks(question, texts)
        archive = archive_of(self._memories[hashed] for hashed in found)
        now = _BEGIN + session * _DAY_S
        for hit in recalled(found, archive, Wish(limit=1), now):
            text = hit.memory.entry.content
            held = len(asked & set(words(text))) / len(asked)
            if held >= _ENOUGH:
                return Answer(text, round(held, _DIGITS))
        return None


SYSTEMS: Final[dict[str, Callable[[], System]]] = {
    "anamnesis": Anamnesis,
    "plain file": PlainFile,
    "no memory": NoMemory,
}


def report_of(seed: int, systems: dict[str, Callable[[], System]] | None = None) -> Report:
    """Everything; `systems`: name → maker of an empty one, else SYSTEMS."""
    plot = plot_of(seed)
    columns = tuple(
        [
            Column(name, tuple([_marks(make(), plot, seed, k) for k in SESSIONS]))
            for name, make in (SYSTEMS if systems is None else systems).items()
        ]
    )
    return Report(seed, len(plot.planted), len(plot.never_told), columns)


def _marks(system: System, plot: Plot, seed: int, sessions: int) -> Marks:
    for planted in plot.planted:
        system.tell(planted.told, 0)
    for session in range(1, sessions + 1):
        for line in filler_of(seed, session):
            system.tell(line, session)
    now = sessions + 1
    answers = [system.ask(planted.question.text, now) for planted in plot.planted]
    exact = [_exact(*pair) for pair in zip(answers, plot.planted, strict=True)]
    semantic = [_semantic(*pair) for pair in zip(answers, plot.planted, strict=True)]
    stated = [0.0 if answer is None else answer.confidence for answer in answers]
    return Marks(
        sessions=sessions,
        exact=_mean(exact),
        semantic=_mean(semantic),
        calibration=pearson(stated, exact),
        false_memories=sum(system.ask(each.text, now) is not None for each in plot.never_told),
        by_category={
            category.value: _mean(
                mark
                for mark, planted in zip(exact, plot.planted, strict=True)
                if planted.question.category is category
            )
            for category in Category
        },
    )


def _exact(answer: Answer | None, planted: Planted) -> float:
    if answer is None:
        return 0.0
    said, wanted = words(answer.text), words(planted.answer)
    if any(said[at : at + len(wanted)] == wanted for at in range(len(said))):
        return 1.0
    return 0.5 if sum(word in said for word in wanted) * 2 >= len(wanted) else 0.0


def _semantic(answer: Answer | None, planted: Planted) -> float:
    return 0.0 if answer is None else f1(words(answer.text), words(planted.told))


def f1(said: Sequence[str], wanted: Sequence[str]) -> float:
    """Of words, each as often as it stands there."""
    shared = sum(min(said.count(word), wanted.count(word)) for word in set(said))
    if not shared:
        return 0.0
    precision, recall = shared / len(said), shared / len(wanted)
    return 2 * precision * recall / (precision + recall)


def pearson(xs: Sequence[float], ys: Sequence[float]) -> float | None:
    """None when one of them is constant."""
    if len(set(xs)) < 2 or len(set(ys)) < 2:
        return None
    x_mean, y_mean = sum(xs) / len(xs), sum(ys) / len(ys)
    together = sum((x - x_mean) * (y - y_mean) for x, y in zip(xs, ys, strict=True))
    apart = sqrt(sum((x - x_mean) ** 2 for x in xs) * sum((y - y_mean) ** 2 for y in ys))
    return round(together / apart, _DIGITS)


def _mean(values: Iterable[float]) -> float:
    found = list(values)
    return round(sum(found) / len(found), _DIGITS) if found else 0.0
