"""relay/memory/nmem/retention.py: when an observation is old."""

from __future__ import annotations

from relay.memory.nmem.retention import due_before
from tests.unit.memory.nmem.making import DAY, NOW


def test_days_can_be_set_and_none_are_for_ever() -> None:
    assert due_before(NOW, {"a": 1, "b": 0}) == {"a": NOW - DAY}
