"""relay/memory/nmem/retention.py: which observations a sweep removes."""

from __future__ import annotations

from dataclasses import replace

import pytest

from relay.memory.nmem.retention import Aged, due_before, is_swept
from tests.unit.memory.nmem.making import DAY, NOW

OLD = Aged("file_read", NOW - 90 * DAY - 1, has_summary=True, is_pinned=False)


@pytest.mark.proves("M-25")
def test_a_row_goes_only_when_it_is_older_than_its_days() -> None:
    assert is_swept(OLD, NOW)
    assert not is_swept(replace(OLD, timestamp=NOW - 90 * DAY), NOW)


@pytest.mark.proves("M-25")
def test_a_pin_or_a_session_without_a_summary_holds_it() -> None:
    assert not is_swept(replace(OLD, is_pinned=True), NOW)
    assert not is_swept(replace(OLD, has_summary=False), NOW)


def test_days_can_be_set_and_none_are_for_ever() -> None:
    assert not is_swept(OLD, NOW, {"file_read": 0})
    assert not is_swept(OLD, NOW, {})
    assert is_swept(replace(OLD, obs_type="marker"), NOW, {"marker": 1})
    assert due_before(NOW, {"a": 1, "b": 0}) == {"a": NOW - DAY}
