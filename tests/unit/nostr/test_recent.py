"""relay/nostr/recent.py."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from relay.nostr.recent import Recent


@given(st.lists(st.integers(-(2**63), 2**63 - 1), max_size=40))
def test_what_is_not_new_came_before(hashes: list[int]) -> None:
    """Except 0, which an empty place looks like."""
    recent = Recent(8)
    came = {0}
    for each in hashes:
        assert recent.is_new(each) or each in came
        assert not recent.is_new(each)
        came.add(each)


def test_as_many_are_known_as_there_is_room_for() -> None:
    recent = Recent(100)
    assert all(map(recent.is_new, range(1, 101)))
    assert not any(map(recent.is_new, range(1, 101)))
    assert recent.is_new(101)
    assert recent.is_new(1)
