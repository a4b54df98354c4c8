"""Generated data of the recall benchmark, the same for the same seed (X-21).

Each planted sentence answers one question that shares few of its words. Filler mentions the same
people, places and things. Questions without an answer have the same form, about people whom no
planted sentence mentions.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from hashlib import sha256
from typing import TYPE_CHECKING, Final, TypeVar

if TYPE_CHECKING:
    from collections.abc import Sequence

_Item = TypeVar("_Item")

EACH: Final = 4
"""Planted sentences per category."""
FILLER_LINES: Final = 8
"""Per session."""


class Category(StrEnum):
    FACTS = "facts"
    CONTEXT = "context"
    REASONING = "reasoning"
    PREFERENCES = "preferences"
    COMMITMENTS = "commitments"


@dataclass(frozen=True, slots=True)
class Question:
    category: Category
    text: str


@dataclass(frozen=True, slots=True)
class Planted:
    sentence: str
    question: Question
    answer: str


@dataclass(frozen=True, slots=True)
class Scenario:
    planted: tuple[Planted, ...]
    never_told: tuple[Question, ...]


class SeededRandom:
    """Pseudo-random numbers that depend on the seed only, on every machine."""

    def __init__(self, seed: int) -> None:
        self._seed = seed
        self._drawn = 0

    def below(self, bound: int) -> int:
        self._drawn += 1
        digest = sha256(f"{self._seed}:{self._drawn}".encode()).digest()
        return int.from_bytes(digest[:8]) % bound

    def choice(self, items: Sequence[_Item]) -> _Item:
        return items[self.below(len(items))]

    def shuffled(self, items: Sequence[_Item]) -> list[_Item]:
        left, found = list(items), []
        while left:
            found.append(left.pop(self.below(len(left))))
        return found


_PEOPLE: Final = (
    "Mira",
    "Tomas",
    "Ines",
    "Jonas",
    "Aiko",
    "Bela",
    "Carlos",
    "Dunja",
    "Emre",
    "Farah",
    "Goran",
    "Hanna",
    "Ivo",
    "Jelena",
    "Kofi",
    "Lena",
    "Marek",
    "Nadia",
    "Oskar",
    "Petra",
    "Quentin",
    "Rosa",
    "Samir",
    "Tilda",
    "Umar",
    "Vera",
    "Wanda",
    "Xenia",
    "Yusuf",
    "Zora",
)
_PLACES: Final = (
    "Lisbon",
    "Porto",
    "Ghent",
    "Tartu",
    "Graz",
    "Split",
    "Bergen",
    "Turin",
    "Leeds",
    "Brno",
)
_THINGS: Final = (
    "audit",
    "relay",
    "backup",
    "roadmap",
    "invoice",
    "manual",
    "prototype",
    "survey",
    "contract",
    "dashboard",
    "archive",
    "newsletter",
)
_CAUSES: Final = (
    "the office flooded",
    "the lease ended",
    "the train line opened",
    "the rent doubled",
    "the archive burned",
    "the partner closed",
)
_DRINKS: Final = (
    "green tea",
    "black coffee",
    "ginger beer",
    "plum juice",
    "oat milk",
    "mint water",
)
_DAYS: Final = ("Monday", "Tuesday", "Wednesday", "Thursday", "Friday")

_SENTENCES: Final = {
    Category.FACTS: "{who} keeps the {thing} in {place}, on shelf {number}.",
    Category.CONTEXT: "We were in {place} on {day} when {who} showed us the {thing}.",
    Category.REASONING: "{who} moved to {place} because {cause}.",
    Category.PREFERENCES: "{who} prefers {drink} to anything else at meetings.",
    Category.COMMITMENTS: "I promised {who} to send the {thing} by {day}.",
}
_QUESTIONS: Final = {
    Category.FACTS: "Where would I find the {thing} that {who} keeps?",
    Category.CONTEXT: "In which place did {who} first show the {thing}?",
    Category.REASONING: "What made {who} leave for {place}?",
    Category.PREFERENCES: "What should there be to drink when {who} comes to meetings?",
    Category.COMMITMENTS: "What do I still owe {who}, and by which day?",
}
"""Questions, in other words than the planted sentences."""
_ANSWER: Final = {
    Category.FACTS: "shelf {number}",
    Category.CONTEXT: "in {place} on {day}",
    Category.REASONING: "{cause}",
    Category.PREFERENCES: "{drink}",
    Category.COMMITMENTS: "send the {thing} by {day}",
}
_FILLER: Final = (
    "{who} asked about the {thing} and nobody knew.",
    "The meeting in {place} was put off to {day}.",
    "{who} and {other} looked at the {thing} together.",
    "There was a note about {place}, and {who} read it out.",
    "{who} will be away on {day}.",
    "Somebody left the {thing} open, {other} closed it.",
    "{who} said that {place} is far from {place2}.",
    "It rained when {who} came back with the {thing}.",
)


def scenario_of(seed: int) -> Scenario:
    random = SeededRandom(seed)
    people = random.shuffled(_PEOPLE)
    planted = []
    for category in list(Category) * EACH:
        words = _words(random, people.pop())
        question = Question(category, _QUESTIONS[category].format_map(words))
        sentence, answer = _SENTENCES[category], _ANSWER[category]
        planted.append(Planted(sentence.format_map(words), question, answer.format_map(words)))
    never_told = [
        Question(category, _QUESTIONS[category].format_map(_words(random, people.pop())))
        for category in Category
    ]
    return Scenario(tuple(planted), tuple(never_told))


def filler_of(seed: int, session: int) -> list[str]:
    """The filler sentences of one session."""
    random = SeededRandom(seed * 1_000_003 + session + 1)
    return [
        random.choice(_FILLER).format_map(_words(random, random.choice(_PEOPLE)))
        for _ in range(FILLER_LINES)
    ]


def _words(random: SeededRandom, who: str) -> dict[str, str]:
    return {
        "who": who,
        "other": random.choice(_PEOPLE),
        "place": random.choice(_PLACES),
        "place2": random.choice(_PLACES),
        "thing": random.choice(_THINGS),
        "cause": random.choice(_CAUSES),
        "drink": random.choice(_DRINKS),
        "day": random.choice(_DAYS),
        "number": str(random.below(90) + 10),
    }
