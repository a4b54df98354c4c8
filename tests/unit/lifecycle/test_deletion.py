"""Which events a tombstone refuses, and what that takes."""

from __future__ import annotations

from typing import TYPE_CHECKING

from relay.lifecycle.deletion import is_deleted
from relay.lifecycle.rows import Found, Tombstone
from relay.nostr import kinds
from relay.nostr.event import Event
from tests import cast

if TYPE_CHECKING:
    import pytest

KEYS = [f"{number:064x}" for number in range(1, 1001)]


def found_with(event: Event, *deleters: str) -> Found:
    target = f"e:{event.id}"
    stones = [Tombstone(target, by, None, "kind 5") for by in deleters]
    return Found(0, tombstones={target: stones})


def test_the_recipients_of_a_gift_wrap_are_looked_through_once_for_all_its_tombstones(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Anybody may leave one for any id, and a wrap may name thousands of recipients."""
    wrap = cast.alice.sign(kinds.GIFT_WRAP, [["p", key] for key in KEYS], "", 1)
    looks = 0

    def counted(name: str) -> object:
        method = getattr(Event, name)

        def look(event: Event, *of: object) -> object:
            nonlocal looks
            looks += 1
            return method(event, *of)

        return look

    for name in ("tag_values", "has_value"):
        monkeypatch.setattr(Event, name, counted(name))
    others = [cast.bob.pubkey, *(f"{number:064x}" for number in range(2000, 3000))]
    assert not is_deleted(wrap, None, 0, found_with(wrap, *others), None)
    assert looks <= 3
    assert is_deleted(wrap, None, 0, found_with(wrap, *others, KEYS[-1]), None)
