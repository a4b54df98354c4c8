"""What is said while a relay's rate is waited for."""

from __future__ import annotations

import pytest

from relay.cli.progress import Amount, Pace, progress_bar

AT_30_A_MINUTE = [(2.0 * number, 30 + number) for number in range(10)]
"""Seconds, and events accepted by then."""


def waits(pace: Pace, clock: list[float], waiting: int) -> None:
    for seconds, accepted in AT_30_A_MINUTE:
        clock.append(seconds)
        pace(accepted, waiting)


def test_without_a_terminal_it_is_said_once(capsys: pytest.CaptureFixture[str]) -> None:
    clock: list[float] = []
    waits(Pace(lambda: clock[-1]), clock, waiting=256)
    # The first estimate is that of six seconds: 256 events at 30 a minute.
    assert capsys.readouterr().err == "waiting for the relay's pace, about 9 min\n"


def test_what_is_not_read_yet_counts(capsys: pytest.CaptureFixture[str]) -> None:
    clock: list[float] = []
    with progress_bar(Amount.BYTES, is_shown=False) as bar:
        task = bar.add_task("sending", total=100_000)
        pace = Pace(lambda: clock[-1])
        for seconds, accepted in AT_30_A_MINUTE:
            clock.append(seconds)
            bar.update(task, completed=10_000 + 100 * seconds)
            pace(accepted, 60)
    # 60 events at 30 a minute, and some 90,000 bytes at 100 a second.
    assert capsys.readouterr().err == "waiting for the relay's pace, about 17 min\n"


def test_a_bar_says_it_too() -> None:
    clock: list[float] = []
    with progress_bar(Amount.BYTES, is_shown=True) as bar:
        bar.add_task("sending", total=None)
        waits(Pace(lambda: clock[-1]), clock, waiting=60)
        assert bar.tasks[0].description == "waiting for the relay's pace, about 2 min"


@pytest.mark.parametrize("seconds", [0.0, 4.9])
def test_a_short_wait_is_not_told(capsys: pytest.CaptureFixture[str], seconds: float) -> None:
    clock = [0.0]
    pace = Pace(lambda: clock[-1])
    pace(30, 5)
    clock.append(seconds)
    pace(31, 4)
    assert capsys.readouterr().err == ""
