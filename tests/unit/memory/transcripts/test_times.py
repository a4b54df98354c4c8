"""Timestamps of session files (D-11)."""

from __future__ import annotations

import pytest

from relay.memory.transcripts.times import milliseconds


@pytest.mark.proves("D-11")
@pytest.mark.parametrize(
    ("text", "ms"),
    [
        ("1970-01-01T00:00:00Z", 0),
        ("2026-02-09T20:43:35.675Z", 1_770_669_815_675),
        ("2026-02-09T20:43:35Z", 1_770_669_815_000),
        ("2026-02-09t20:43:35.6z", 1_770_669_815_600),
        ("2026-02-09 20:43:35.67Z", 1_770_669_815_670),
        ("2026-02-09T20:43:35.675999999Z", 1_770_669_815_675),
        ("2026-02-09T22:43:35.675+02:00", 1_770_669_815_675),
        ("2026-02-09T11:13:35.675-09:30", 1_770_669_815_675),
        ("2026-02-09T20:43:35-00:00", 1_770_669_815_000),
        ("2016-12-31T23:59:60Z", 1_483_228_800_000),
        ("9999-12-31T23:59:59.999Z", 253_402_300_799_999),
    ],
)
def test_a_time_is_read_to_the_millisecond_with_any_offset(text: str, ms: int) -> None:
    assert milliseconds(text) == ms


@pytest.mark.parametrize(
    "text",
    [
        "",
        "yesterday",
        "2026-02-09",
        "2026-02-09T20:43:35",
        "20260209T204335Z",
        "2026-02-30T00:00:00Z",
        "0000-01-01T00:00:00Z",
        "2026-02-09T24:00:00Z",
        "2026-02-09T20:60:00Z",
        "2026-02-09T20:43:61Z",
        "2026-02-09T20:43:35+24:00",
        "2026-02-09T20:43:35+00:60",
        "2026-02-09T20:43:35.Z",
        "1969-12-31T23:59:59Z",
        "２026-02-09T20:43:35Z",
        "2026-02-09T20:43:35Z\n",
        1_770_669_815,
        None,
        ["x"],
    ],
)
def test_what_is_no_time_is_none(text: object) -> None:
    assert milliseconds(text) is None
