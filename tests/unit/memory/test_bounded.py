"""relay/memory/bounded.py."""

from __future__ import annotations

from relay.memory.bounded import BoundedDict


def test_what_was_set_longest_ago_goes_first_and_setting_again_is_new() -> None:
    held: BoundedDict[str, int] = BoundedDict(2)
    held["a"], held["b"], held["a"] = 1, 2, 3
    held["c"] = 4
    assert dict(held) == {"a": 3, "c": 4}
    held.setdefault("d", 5)
    assert list(held) == ["c", "d"]
