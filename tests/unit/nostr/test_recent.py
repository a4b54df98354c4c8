"""relay/nostr/recent.py."""

from __future__ import annotations

from relay.nostr.recent import Recent


def test_what_came_is_known_until_as_many_others_came() -> None:
    recent = Recent(100)
    assert all(map(recent.is_new, range(-50, 50)))
    assert not any(map(recent.is_new, range(-50, 50)))
    assert recent.is_new(1000)
    assert not recent.is_new(1000)
    assert recent.is_new(1)
