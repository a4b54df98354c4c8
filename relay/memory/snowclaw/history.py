"""Ring buffer for the last messages of a group (S-34)."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING, Generic, TypeVar

from relay.nostr import kinds
from relay.nostr.event import is_hex64

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from relay.nostr.event import Event

_T = TypeVar("_T")


@dataclass(frozen=True, slots=True)
class HistoryMessage:
    """A message for a model; the text has passed KeyFilter."""

    sender: str
    """Display name."""
    npub: str
    content: str
    timestamp: int
    """Unix seconds."""
    event_id: str
    is_owner: bool = False
    kind: int = kinds.CHAT


class RingBuffer(Generic[_T]):
    """The newest `capacity` items, oldest first. A full buffer drops the oldest; 0 keeps none."""

    def __init__(self, capacity: int) -> None:
        self._capacity = capacity
        self._items: deque[_T] = deque(maxlen=capacity)

    @property
    def capacity(self) -> int:
        return self._capacity

    def push(self, item: _T) -> None:
        self._items.append(item)

    def insert(self, item: _T, is_later: Callable[[_T], bool]) -> None:
        """Insert a late item before the later items at the end."""
        later: list[_T] = []
        while self._items and is_later(self._items[-1]):
            later.append(self._items.pop())
        self._items.append(item)
        self._items.extend(reversed(later))

    def fill(self, older: Iterable[_T]) -> None:
        """Prepend the newest of the older items (given oldest first) up to the capacity.

        Drops no present item.
        """
        before = list(older)
        free = self._capacity - len(self._items)
        self._items.extendleft(reversed(before[len(before) - min(free, len(before)) :]))

    def resize(self, capacity: int) -> None:
        """Change the capacity; a smaller one keeps the newest (S-18)."""
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
    """The found messages that the ring lacks, oldest first; of one second as they come (S-34)."""
    there = {message.event_id for message in ring}
    missing = {m.event_id: m for m in found if m.event_id not in there}
    return sorted(missing.values(), key=lambda message: message.timestamp)


def oldest_first(events: Iterable[Event]) -> list[Event]:
    """By time; of one second by id, but no answer before what it answers.

    What a relay sends does not tell in which order events of one second arrived.
    """
    in_time = sorted(events, key=lambda event: (event.created_at, event.id))
    at = {event.id: event.created_at for event in in_time}
    placed: dict[str, Event] = {}
    waiting: dict[str, list[Event]] = {}
    for event in in_time:
        target = replied_to(event)
        if target is not None and target not in placed and at.get(target) == event.created_at:
            waiting.setdefault(target, []).append(event)
            continue
        following = [event]
        for each in following:
            placed[each.id] = each
            following += waiting.pop(each.id, ())
    return list(placed.values())


def replied_to(event: Event) -> str | None:
    """The id of the message that one answers: NIP-C7 (`q`), NIP-10 (`e`)."""
    for name in ("q", "e"):
        for value in event.tag_values(name):
            if is_hex64(value):
                return value
    return None
