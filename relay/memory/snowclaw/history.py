"""Ring buffer for the last messages of a group (S-34)."""

from __future__ import annotations

from collections import defaultdict, deque
from dataclasses import dataclass
from heapq import heapify, heappop, heappush, heapreplace
from itertools import groupby
from typing import TYPE_CHECKING, Final, Generic, TypeVar

from relay.nostr import kinds
from relay.nostr.event import is_hex64

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping

    from relay.nostr.event import Event

_T = TypeVar("_T")
_PREFIX_CHARS: Final = 8
"""Characters of an id in `previous` (NIP-29)."""
_OWN_WEIGHT: Final = 1_000


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
    expires_at: int | None = None
    """Unix seconds (NIP-40)."""

    @property
    def weight(self) -> int:
        """Estimated bytes in memory."""
        return _OWN_WEIGHT + len(self.content) * (1 if self.content.isascii() else 4)


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

    def drop(self, is_gone: Callable[[_T], bool]) -> bool:
        """Whether there were any."""
        left = [item for item in self._items if not is_gone(item)]
        is_changed = len(left) < len(self._items)
        if is_changed:
            self._items = deque(left, maxlen=self._capacity)
        return is_changed

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


def beyond(messages: Iterable[HistoryMessage], most: int) -> tuple[frozenset[str], int]:
    """The ids of messages without which the others take `most` bytes or less, and what those take:
    the oldest of whoever has most, so that who writes long messages drops their own."""
    by_sender: defaultdict[str, list[HistoryMessage]] = defaultdict(list)
    for message in messages:
        by_sender[message.npub].append(message)
    senders = [(-sum(m.weight for m in theirs), npub) for npub, theirs in by_sender.items()]
    left, ids = -sum(weight for weight, _ in senders), set()
    if left > most:
        heapify(senders)
        for theirs in by_sender.values():
            theirs.sort(key=lambda message: -message.timestamp)
    while left > most:
        weight, npub = senders[0]
        oldest = by_sender[npub].pop()
        ids.add(oldest.event_id)
        left -= oldest.weight
        heapreplace(senders, (weight + oldest.weight, npub))
    return frozenset(ids), left


def oldest_first(events: Iterable[Event]) -> list[Event]:
    """By time; of one second by id, but none before one that it answers or names as `previous`.

    What a relay sends does not tell in which order events of one second arrived.
    """
    found: list[Event] = []
    in_time = sorted({event.id: event for event in events}.values(), key=lambda e: e.created_at)
    for _, same in groupby(in_time, key=lambda event: event.created_at):
        found += _of_one_second(sorted(same, key=lambda event: event.id))
    return found


def _of_one_second(events: list[Event]) -> list[Event]:
    if len(events) == 1:
        return events
    by_prefix = {event.id[:_PREFIX_CHARS]: event.id for event in events}
    by_id = {event.id: event for event in events}
    waits: dict[str, int] = {}
    """id → how many are to be placed before it."""
    followers: defaultdict[str, list[str]] = defaultdict(list)
    for event in events:
        earlier = _earlier(event, by_prefix)
        waits[event.id] = len(earlier)
        for id_ in earlier:
            followers[id_].append(event.id)
    free = [id_ for id_, number in waits.items() if not number]  # sorted: a heap
    lowest = iter(by_id)
    placed: dict[str, Event] = {}
    while len(placed) < len(events):
        # Of a circle the lowest id is first.
        first = heappop(free) if free else next(lowest)
        if first in placed:
            continue
        placed[first] = by_id[first]
        for id_ in followers[first]:
            waits[id_] -= 1
            if not waits[id_]:
                heappush(free, id_)
    return list(placed.values())


def _earlier(event: Event, by_prefix: Mapping[str, str]) -> set[str]:
    """The ids that it answers or names as `previous`, of those with these prefixes."""
    previous = [value for tag in event.tags if tag and tag[0] == "previous" for value in tag[1:]]
    named = (*previous, replied_to(event) or "")
    return {by_prefix.get(value[:_PREFIX_CHARS], "") for value in named} - {"", event.id}


def replied_to(event: Event) -> str | None:
    """The id of the message that one answers: NIP-C7 (`q`), NIP-10 (`e`)."""
    for name in ("q", "e"):
        for value in event.tag_values(name):
            if is_hex64(value):
                return value
    return None
