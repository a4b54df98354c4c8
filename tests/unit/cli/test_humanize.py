"""Human-readable counts, sizes and ages."""

from __future__ import annotations

import pytest

from relay.cli.humanize import age_of, counted, size_of

NOW = 1_700_000_000


@pytest.mark.parametrize(
    ("number", "words"), [(0, "0 events"), (1, "1 event"), (1_200, "1,200 events")]
)
def test_counts_have_singular_and_plural(number: int, words: str) -> None:
    assert counted(number, "event") == words


@pytest.mark.parametrize(
    ("seconds", "words"),
    [
        (0, "just now"),
        (59, "just now"),
        (60, "1 minute ago"),
        (3_599, "59 minutes ago"),
        (3_600, "1 hour ago"),
        (86_399, "23 hours ago"),
        (2 * 86_400, "2 days ago"),
        (5_000 * 86_400, "5,000 days ago"),
        (-1, "in the future"),
    ],
)
def test_an_age_uses_its_largest_unit(seconds: int, words: str) -> None:
    assert age_of(NOW - seconds, NOW) == words


def test_a_size_has_its_unit() -> None:
    assert (size_of(512), size_of(1_234_567)) == ("512 bytes", "1.2 MB")
