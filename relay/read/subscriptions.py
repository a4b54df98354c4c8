"""Index of live filters: from an event to the subscriptions that might match it.

Each filter is indexed under the values of its most selective condition (ids, a tag, authors,
kinds); an event is looked up under each value it has. `Filter.matches` confirms a candidate unless
the indexed condition is the whole filter.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Final, Generic, TypeVar

import msgspec

from relay.nostr.filters import BROAD_TAGS, Filter
from relay.nostr.nip50 import Search, search_from

if TYPE_CHECKING:
    from collections.abc import Hashable, Iterable, Iterator, Sequence

    from relay.nostr.event import Event

S = TypeVar("S")
_ANY_EVENT: Final = ("*", "")
_MAX_NEW: Final = 64
_MAX_NEW_VALUES: Final = 64
"""Subscriptions that wait to be indexed, and filter values of each: at most 3 ms of the loop."""

_MANY: Final = 1000


class Entry(msgspec.Struct, Generic[S], frozen=True):
    """One filter of one subscription."""

    subscription: S
    filter: Filter
    is_exact: bool
    """The indexed condition is the whole filter, `search` aside."""
    search: Search | None = None
    """The event's text must contain it too (N50-08)."""

    @property
    def is_sure(self) -> bool:
        """Whether every event found under the entry's key matches."""
        return self.is_exact and self.search is None


class Subscriptions(Generic[S]):
    """The live filters of all connections. `S` is compared by identity.

    A subscription is indexed when the next event is looked up: most are closed right after their
    stored events, and then cost nothing here.
    """

    def __init__(self) -> None:
        self._new: dict[int, tuple[S, Sequence[Filter]]] = {}
        """Not indexed yet."""
        self._by_key: dict[Hashable, Entry[S] | dict[int, list[Entry[S]]]] = {}
        """The entry itself while a key has one, as most keys have."""
        self._keys: dict[int, tuple[Hashable, ...]] = {}
        self._unsure: Counter[Hashable] = Counter()
        """Key → number of entries that an event with this key may not match."""
        self._unsure_in_all = 0

    def __len__(self) -> int:
        return len(self._keys) + len(self._new)

    def add(self, subscription: S, filters: Sequence[Filter]) -> None:
        """Call once for each subscription."""
        self._new[id(subscription)] = subscription, filters
        if len(self._new) > _MAX_NEW or sum([each.values for each in filters]) > _MAX_NEW_VALUES:
            self._index_new()

    def _index_new(self) -> None:
        for subscription, filters in self._new.values():
            self._index(subscription, filters)
        self._new.clear()

    def _index(self, subscription: S, filters: Sequence[Filter]) -> None:
        owner = id(subscription)
        keys: dict[Hashable, None] = {}
        for filter_ in filters:
            if filter_.impossible:
                continue
            filter_keys, is_exact = _keys_of_filter(filter_)
            search = None if filter_.search is None else search_from(filter_.search)
            entry = Entry(subscription, filter_, is_exact, search)
            for key in filter_keys:
                self._put(key, owner, entry)
                keys[key] = None
                if not entry.is_sure:
                    self._unsure[key] += 1
                    self._unsure_in_all += 1
        self._keys[owner] = tuple(keys)

    def _put(self, key: Hashable, owner: int, entry: Entry[S]) -> None:
        entries = self._by_key.get(key)
        if entries is None:
            self._by_key[key] = entry
            return
        if isinstance(entries, Entry):
            entries = self._by_key[key] = {id(entries.subscription): [entries]}
        entries.setdefault(owner, []).append(entry)

    def remove(self, subscription: S) -> None:
        owner = id(subscription)
        if self._new.pop(owner, None) is not None:
            return
        for key in self._keys.pop(owner, ()):
            entries = self._by_key[key]
            if isinstance(entries, Entry):
                removed = [entries]
                del self._by_key[key]
            else:
                removed = entries.pop(owner)
                if not entries:
                    del self._by_key[key]
            if key in self._unsure:
                number = sum(not each.is_sure for each in removed)
                self._unsure[key] -= number
                self._unsure_in_all -= number
                if not self._unsure[key]:
                    del self._unsure[key]

    def keys_of(self, event: Event) -> list[Hashable]:
        """The index keys of the event under which there are entries."""
        if self._new:
            self._index_new()
        by_key = self._by_key
        return [key for key in _keys_of_event(event) if key in by_key] if by_key else []

    def unsure_about(self, event: Event) -> int:
        """How many filters are compared with the event; 0 when there are few in all."""
        if self._unsure_in_all < _MANY:
            return 0
        return sum([self._unsure[key] for key in _keys_of_event(event) if key in self._unsure])

    def are_sure(self, key: Hashable) -> bool:
        """Whether every event with this key matches all entries under it."""
        return key not in self._unsure

    def under(self, key: Hashable) -> list[Entry[S]]:
        """For each subscription with entries under the key, one of these entries."""
        entries = self._by_key.get(key)
        if isinstance(entries, Entry):
            return [entries]
        return [each[0] for each in entries.values()] if entries else []

    def candidates(self, keys: Iterable[Hashable]) -> Iterator[Sequence[Entry[S]]]:
        """Entries under these keys, which may match: a list per subscription, which may be yielded
        repeatedly."""
        for key in keys:
            entries = self._by_key.get(key)
            if isinstance(entries, Entry):
                yield (entries,)
            elif entries:
                # A copy: delivery may close a connection, which removes its subscriptions.
                yield from list(entries.values())


def _keys_of_filter(filter_: Filter) -> tuple[list[Hashable], bool]:
    """Index keys of a filter, and `Entry.is_exact`."""
    conditions = _conditions(filter_)
    if filter_.ids is not None:
        return [("i", value) for value in filter_.ids], conditions == 1
    narrow = [(n, v) for n, v in filter_.tags if n not in BROAD_TAGS]
    if filter_.d_prefixes:
        narrow = [(n, v) for n, v in narrow if n != "d"]  # an event cannot be looked up by prefix
    broad = (
        [] if filter_.authors is not None else [(n, v) for n, v in filter_.tags if n in BROAD_TAGS]
    )
    if narrow or broad:
        name, values = min(narrow or broad, key=lambda tag: len(tag[1]))
        return [("#", name, value) for value in values], conditions == 1
    if filter_.authors is not None:
        return [("a", value) for value in filter_.authors], conditions == 1
    if filter_.kinds is not None:
        return [("k", value) for value in filter_.kinds], conditions == 1
    return [_ANY_EVENT], conditions == 0


def _conditions(filter_: Filter) -> int:
    """How many conditions `Filter.matches` checks."""
    return (
        (filter_.ids is not None)
        + (filter_.authors is not None)
        + (filter_.kinds is not None)
        + (filter_.since is not None)
        + (filter_.until is not None)
        + len(filter_.tags)
        + len(filter_.d_prefixes)
    )


def _keys_of_event(event: Event) -> set[Hashable]:
    keys: set[Hashable] = {
        ("i", event.id),
        ("a", event.pubkey),
        ("k", event.kind),
        _ANY_EVENT,
    }
    for tag in event.tags:
        if len(tag) > 1:
            keys.add(("#", tag[0], tag[1]))
    return keys
