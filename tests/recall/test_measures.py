"""The measures of the recall benchmark, by hand and by going through all orders."""

from __future__ import annotations

from itertools import permutations

import pytest

from tests.recall.measures import Quality, chance, mean, quality, sessions_of


@pytest.mark.parametrize(
    ("ranking", "sought", "expected"),
    [
        ([3, 1, 2], {3}, Quality(1, 1, 1, 1)),
        ([1, 2, 3], {3}, Quality(0, 1, 1, 1 / 3)),
        ([1, 2, 4, 5, 6, 3], {3}, Quality(0, 0, 1, 1 / 6)),
        ([*range(10), 33], {33}, Quality(0, 0, 0, 1 / 11)),
        ([1, 2, 3, 4, 5, 6, 7], {2, 6}, Quality(0, 0.5, 1, 1 / 2)),
        ([1, 2], {2, 9}, Quality(0, 0.5, 0.5, 1 / 2)),
        ([], {1}, Quality(0, 0, 0, 0)),
        ([1, 2], {3}, Quality(0, 0, 0, 0)),
    ],
)
def test_quality_counts_what_comes_early(
    ranking: list[int], sought: set[int], expected: Quality
) -> None:
    assert quality(ranking, sought) == expected


def test_a_session_stands_where_its_best_hit_does() -> None:
    assert sessions_of([7, 7, 2, 7, 2, 1]) == [7, 2, 1]


@pytest.mark.parametrize("sought", [{0}, {0, 1}, {0, 1, 2}, set(range(7))])
def test_chance_is_the_mean_of_all_orders(sought: set[int]) -> None:
    through_all = mean(quality(order, sought) for order in permutations(range(7)))
    expected = chance(7, len(sought))
    assert expected.recall_5 == pytest.approx(through_all.recall_5)
    assert expected.recall_10 == through_all.recall_10 == 1
    assert expected.reciprocal == pytest.approx(through_all.reciprocal)
