"""relay/write/asking.py: how many events plug-ins are asked about at once."""

from __future__ import annotations

from typing import TYPE_CHECKING

from relay.write.asking import BatchSize

if TYPE_CHECKING:
    from collections.abc import Callable


def asked(
    size: BatchSize, took: Callable[[int], float], batches: int = 200, waiting: int = 256
) -> list[int]:
    """The numbers of that many batches, while so many events wait."""
    numbers: list[int] = []
    for _ in range(batches):
        number = min(size.number, waiting)
        numbers.append(number)
        size.took(number, took(number))
    return numbers


def one_after_the_other(number: int) -> float:
    return 0.01 * number


def all_at_once(_: int) -> float:
    return 0.06


def test_a_plug_in_that_answers_one_after_the_other_is_asked_about_few() -> None:
    numbers = asked(BatchSize(), one_after_the_other)
    assert max(numbers) == 8
    assert sum(numbers) / len(numbers) <= 5


def test_a_plug_in_that_answers_many_in_the_time_of_one_is_asked_about_all() -> None:
    """It was asked about one at a time for ever, so 840 events took 50 s."""
    assert asked(BatchSize(), all_at_once, 10)[-1] == 256
    assert asked(BatchSize(), lambda number: 0.06 + 0.0001 * number, 10)[-1] == 256


def test_the_number_grows_again_after_slow_answers() -> None:
    size = BatchSize()
    asked(size, all_at_once)
    asked(size, one_after_the_other, 20)
    assert size.number <= 8
    asked(size, all_at_once, 100)
    assert size.number == 256
    size.took(2, 2.0)
    asked(size, all_at_once, 120)
    assert size.number == 256


def test_slow_answers_are_remembered_among_many_fast_ones() -> None:
    """After 200 fast ones, 200 of 10 ms were asked about at once."""
    size = BatchSize()
    for _ in range(20):
        asked(size, one_after_the_other, 50)
        assert max(asked(size, lambda number: 0.0001 * number, 50)) <= 8


def test_a_slow_plug_in_after_a_fast_one_is_asked_about_few_at_once() -> None:
    size = BatchSize()
    asked(size, lambda _: 0.0)
    assert size.number == 256
    numbers = asked(size, one_after_the_other)
    assert max(numbers[1:]) <= 16


def test_a_batch_that_was_not_full_says_nothing_about_larger_ones() -> None:
    size = BatchSize()
    asked(size, lambda _: 0.001, waiting=3)
    assert size.number == 4
