"""Time words of a question, as periods."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from relay.memory.time_words import periods

NOW = int(datetime(2026, 11, 18, 15, 30, tzinfo=UTC).timestamp())  # a Wednesday


def days(question: str) -> list[str]:
    """First and last day of each period."""
    return [
        "/".join(datetime.fromtimestamp(second, UTC).strftime("%Y-%m-%d") for second in period)
        for period in periods(question, NOW)
    ]


@pytest.mark.parametrize(
    ("question", "period"),
    [
        ("What did Ada say on 7 May 2023?", "2023-05-07/2023-05-07"),
        ("on May 7th, 2023", "2023-05-07/2023-05-07"),
        ("on the 7th of May 2023", "2023-05-07/2023-05-07"),
        ("2023-05-07", "2023-05-07/2023-05-07"),
        ("in 2023-05", "2023-05-01/2023-05-31"),
        ("May 2023, what did Ada say?", "2023-05-01/2023-05-31"),
        ("2023-05: what did Ada say?", "2023-05-01/2023-05-31"),
        ("in Feb. 2024", "2024-02-01/2024-02-29"),
        ("in 2023", "2023-01-01/2023-12-31"),
        ("yesterday", "2026-11-17/2026-11-17"),
        ("Today?", "2026-11-18/2026-11-18"),
        ("last Monday", "2026-11-16/2026-11-16"),
        ("last Wednesday", "2026-11-11/2026-11-11"),
        ("last week", "2026-11-09/2026-11-15"),
        ("this month", "2026-11-01/2026-11-30"),
        ("last month", "2026-10-01/2026-10-31"),
        ("last year", "2025-01-01/2025-12-31"),
        ("three days ago", "2026-11-15/2026-11-15"),
        ("2 weeks ago", "2026-11-01/2026-11-07"),
    ],
)
def test_a_time_is_a_period(question: str, period: str) -> None:
    assert days(question) == [period]


def test_a_month_without_a_year_is_that_of_the_last_years_but_none_to_come() -> None:
    assert days("in December") == [f"{year}-12-01/{year}-12-31" for year in range(2025, 2020, -1)]
    assert len(days("in March")) == 6


@pytest.mark.parametrize(
    "question",
    ["", "May I?", "we may march", "version 1234", "30 February 2024", "in 2099", "99999 days ago"],
)
def test_what_is_no_time_gives_no_period(question: str) -> None:
    assert days(question) == []


def test_several_times_give_several_periods() -> None:
    assert days("in May 2023 or on 3 June 2024") == [
        "2024-06-03/2024-06-03",
        "2023-05-01/2023-05-31",
    ]


@given(st.text(alphabet="lastweek 0123456789-agoMydtJun,."), st.integers(0, 2**33))
def test_any_text_is_read_and_no_period_begins_in_the_future(question: str, now: int) -> None:
    for first, last in periods(question, now):
        assert first <= now
        assert first <= last
