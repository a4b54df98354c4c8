"""The last messages of a group, held in memory. MEMORY.md S-34; the document's section 3."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING, Generic, TypeVar

from relay.nostr import kinds

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

_T = TypeVar("_T")


@dataclass(frozen=True, slots=True)
class HistoryMessage:
    """One message as a model may see it: its text went through KeyFilter."""

    sender: str
    """Name to show."""
    npub: str
    content: str
    timestamp: int
    """Unix seconds."""
    event_id: str
    is_owner: bool = False
    kind: int = kinds.CHAT


class RingBuffer(Generic[_T]):
    """The newest `capacity` things, oldest first. A full one lets the oldest go; 0 keeps none."""

    def __init__(self, capacity: int) -> None:
        self._capacity = capacity
        self._items: deque[_T] = deque(maxlen=capacity)

    @property
    def capacity(self) -> int:
        return self._capacity

    def push(self, item: _T) -> None:
        self._items.append(item)

    def insert(self, item: _T, is_later: Callable[[_T], bool]) -> None:
        """Put one that comes late before the things at the end that are later than it."""
        later: list[_T] = []
        while self._items and is_later(self._items[-1]):
            later.append(self._items.pop())
        self._items.append(item)
        self._items.extend(reversed(later))

    def fill(self, older: Iterable[_T]) -> None:
        """Put what came before, oldest first, in front: the newest of it, as far as there is room.

        Nothing that is here goes.
        """
        before = list(older)
        room = self._capacity - len(self._items)
        self._items.extendleft(reversed(before[len(before) - min(room, len(before)) :]))

    def resize(self, capacity: int) -> None:
        """At once; a smaller one keeps the newest (S-18)."""
        if capacity != self._capacity:
            self._capacity = capacity
            self._items = deque(self._items, maxlen=capacity)

    def __iter__(self) -> Iterator[_T]:
        return iter(self._items)

    def __len__(self) -> int:
        return len(self._items)


def missing_from(
    ring: RingBuffer[HistoryMessage], found: Iterable[HistoryMessage]
) -> list[HistoryMessage]:
    """Of what a relay gave back the messages that the ring has not, oldest first (S-34)."""
    there = {message.event_id for message in ring}
    missing = {m.event_id: m for m in found if m.event_id not in there}
    return sorted(missing.values(), key=lambda message: (message.timestamp, message.event_id))
