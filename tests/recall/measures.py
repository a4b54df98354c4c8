"""How good a ranking is: of the sessions that answer a question, which come early."""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from math import comb
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence, Set


@dataclass(frozen=True, slots=True)
class Quality:
    """Each from 0 to 1; of many questions: the mean."""

    recall_1: float
    """Part of the sessions sought that is the first; `recall_5`: that is among the first five."""
    recall_5: float
    recall_10: float
    reciprocal: float
    """1 / place of the first session sought; 0 when none is found."""


def quality(ranking: Sequence[int], sought: Set[int]) -> Quality:
    """`sought` has at least one."""
    first = next((place for place, each in enumerate(ranking, 1) if each in sought), None)
    return Quality(
        len(sought & set(ranking[:1])) / len(sought),
        len(sought & set(ranking[:5])) / len(sought),
        len(sought & set(ranking[:10])) / len(sought),
        0.0 if first is None else 1 / first,
    )


def chance(sessions: int, sought: int) -> Quality:
    """What to expect of all sessions in any order."""
    orders = comb(sessions, sought)
    # The first one sought stands at `place` when all others are behind it.
    reciprocal = sum(
        Fraction(comb(sessions - place, sought - 1), orders * place)
        for place in range(1, sessions + 1)
    )
    one, five, ten = (min(first, sessions) / sessions for first in (1, 5, 10))
    return Quality(one, five, ten, float(reciprocal))


def mean(qualities: Iterable[Quality]) -> Quality:
    """Of at least one."""
    each = list(qualities)
    return Quality(
        sum(one.recall_1 for one in each) / len(each),
        sum(one.recall_5 for one in each) / len(each),
        sum(one.recall_10 for one in each) / len(each),
        sum(one.reciprocal for one in each) / len(each),
    )


def sessions_of(hits: Iterable[int]) -> list[int]:
    """Sessions, each at the place of its best hit. `hits`: the session of each hit, best first."""
    return list(dict.fromkeys(hits))
