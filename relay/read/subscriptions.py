"""Index of live filters: from an event to the subscriptions that might match it.

Each filter is indexed under the values of its most selective condition (ids, a tag, authors,
kinds); an event is looked up under each value it has. `Filter.matches` confirms a candidate unless
the indexed condition is the whole filter.
"""

from __future__ import annotations

from collections.abc import Collection, Set
from typing import TYPE_CHECKING, Final, Generic, TypeAlias, TypeVar

import msgspec

from relay.nostr.event import IndexedEvent
from relay.nostr.filters import BROAD_TAGS, Filter

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from relay.nostr.event import Event

S = TypeVar("S")
Key: TypeAlias = tuple[str, str | int]
"""A condition and its value. The condition is `_IDS`, `_AUTHORS`, `_KINDS`, `_ALL`, or a tag's name
behind `_TAG`."""

_IDS: Final = "ids"
_AUTHORS: Final = "authors"
_KINDS: Final = "kinds"
_ALL: Final = "all"
"""The condition of filters without an indexed one; the value is ""."""
_TAG: Final = "#"
_MAX_NEW: Final = 64
_MAX_NEW_VALUES: Final = 64
"""Subscriptions that wait to be indexed, and filter values of each: at most 3 ms of the loop."""

_MAX_KINDS: Final = 64
"""A filter of more kinds counts as one of any kind."""
_VALUES_PER_ENTRY: Final = 8
"""Values compared in the time in which an entry is found by one of them."""
_FEW: Final = 16
"""With fewer entries in all, `numbers_for` need not look an event up."""


class Entry(msgspec.Struct, Generic[S], frozen=True, gc=False):
    """One filter of one subscription."""

    subscription: S
    filter: Filter
    values: Collection[str] | Collection[int]
    """Values of the indexed condition."""
    is_exact: bool
    """The indexed condition is the whole filter, `search` aside."""

    @property
    def is_sure(self) -> bool:
        """Whether every event found under the entry's key matches."""
        return self.is_exact and self.filter.sought is None


class _Shared(msgspec.Struct, Generic[S], gc=False):
    """The entries of a key that has several.

    The garbage collector looks at none of its objects, while nobody has several entries: there may
    be a million, and the loop waits for it.
    """

    by_owner: dict[int, Entry[S] | tuple[Entry[S], ...]] = {}
    """id() of the subscription → its entry, or its entries."""
    number: int = 0
    """Number of entries."""
    unsure: int = 0
    """Number of those that an event with this key may not match."""
    searches: int = 0
    """Number of those that have a search."""
    values: int = 0
    """Number of their values."""
    kinds: dict[int | None, int] | None = None
    """How many entries name each kind, None: name none; only for all entries of a tag name."""

    def put(self, entry: Entry[S]) -> None:
        owner = id(entry.subscription)
        before = self.by_owner.get(owner)
        self.by_owner[owner] = entry if before is None else (*_several(before), entry)
        self.number += 1
        self.unsure += not entry.is_sure
        self.searches += entry.filter.search is not None
        self.values += len(entry.values)
        if self.kinds is not None:
            for kind in _kinds_of(entry):
                self.kinds[kind] = self.kinds.get(kind, 0) + 1

    def take(self, subscription: S) -> int:
        """Remove the entries of a subscription; their number."""
        own = self.by_owner.pop(id(subscription), None)
        removed = () if own is None else _several(own)
        self.number -= len(removed)
        for each in removed:
            self.unsure -= not each.is_sure
            self.searches -= each.filter.search is not None
            self.values -= len(each.values)
            if self.kinds is not None:
                for kind in _kinds_of(each):
                    self.kinds[kind] -= 1
                    if not self.kinds[kind]:
                        del self.kinds[kind]
        return len(removed)

    def may_match(self, kind: int) -> bool:
        """Whether some entry names this kind, or none."""
        kinds = self.kinds
        return kinds is None or kind in kinds or None in kinds

    @property
    def cost(self) -> int:
        """The cost of `under_any`, as a number of entries that are found one by one."""
        return self.number + self.values // _VALUES_PER_ENTRY

    def under_any(self, values: frozenset[str | int]) -> Iterator[Sequence[Entry[S]]]:
        """The entries with one of these values."""
        for own in [*self.by_owner.values()]:
            found = [each for each in _several(own) if not values.isdisjoint(each.values)]
            if found:
                yield found


def _kinds_of(entry: Entry[S]) -> Iterable[int | None]:
    kinds = entry.filter.kinds
    return (None,) if kinds is None or len(kinds) > _MAX_KINDS else kinds


def _number(entries: Entry[S] | _Shared[S] | None) -> int:
    return entries.number if isinstance(entries, _Shared) else entries is not None


def _searches(entries: Entry[S] | _Shared[S] | None) -> int:
    if isinstance(entries, Entry):
        return entries.filter.search is not None
    return 0 if entries is None else entries.searches


def _by_owner(entries: Entry[S] | _Shared[S] | None) -> Iterator[Sequence[Entry[S]]]:
    """The entries of each subscription. Of a copy: delivery may close a connection, which removes
    its subscriptions."""
    if isinstance(entries, _Shared):
        return map(_several, [*entries.by_owner.values()])
    return iter(() if entries is None else ((entries,),))


def _several(entries: Entry[S] | tuple[Entry[S], ...]) -> tuple[Entry[S], ...]:
    return (entries,) if isinstance(entries, Entry) else entries


class Subscriptions(Generic[S]):
    """The live filters of all connections. `S` is compared by identity.

    A subscription is indexed when the next event is looked up: most are closed right after their
    stored events, and then cost nothing here.
    """

    def __init__(self) -> None:
        self._new: dict[int, tuple[S, Sequence[Filter]]] = {}
        """Subscriptions that are not indexed yet."""
        self._by_condition: dict[str, dict[str | int, Entry[S] | _Shared[S]]] = {}
        """The entry itself while a key has one, as most keys have. A dict for each condition: a key
        of its own would take 56 bytes of each subscription."""
        self._of_condition: dict[str, _Shared[S]] = {}
        """The entries of each tag name, once each: of other conditions an event has one value."""
        self._indexed = 0
        """Subscriptions in the index."""
        self._number = 0
        """Number of entries, for each of their keys."""
        self._searches = 0
        """Number of filters that have a search."""

    def __len__(self) -> int:
        return self._indexed + len(self._new)

    def add(self, subscription: S, filters: Sequence[Filter]) -> None:
        """Call once for each subscription."""
        self._new[id(subscription)] = subscription, filters
        values = 0
        for each in filters:
            values += each.values
            self._searches += each.search is not None
        if len(self._new) > _MAX_NEW or values > _MAX_NEW_VALUES:
            self._index_new()

    def _index_new(self) -> None:
        for subscription, filters in self._new.values():
            self._index(subscription, filters)
        self._new.clear()

    def _index(self, subscription: S, filters: Sequence[Filter]) -> None:
        for filter_ in filters:
            if filter_.impossible:
                continue
            condition, values, is_exact = _indexed_condition(filter_)
            entry = Entry(subscription, filter_, values, is_exact)
            self._number += len(values)
            if condition.startswith(_TAG):
                self._of_condition.setdefault(condition, _Shared(kinds={})).put(entry)
            by_value = self._by_condition.setdefault(condition, {})
            for value in values:
                found = by_value.get(value)
                if found is None:
                    by_value[value] = entry
                    continue
                if isinstance(found, Entry):
                    before, found = found, _Shared()
                    by_value[value] = found
                    found.put(before)
                found.put(entry)
        self._indexed += 1

    def remove(self, subscription: S, filters: Sequence[Filter]) -> None:
        """Call once for each subscription that was added, with the same filters."""
        for each in filters:
            self._searches -= each.search is not None
        if self._new.pop(id(subscription), None) is not None:
            return
        for filter_ in filters:
            if not filter_.impossible:
                condition, values, _ = _indexed_condition(filter_)
                self._remove(subscription, condition, values)
        self._indexed -= 1

    def _remove(self, subscription: S, condition: str, values: Iterable[str | int]) -> None:
        by_value = self._by_condition.get(condition)
        if by_value is None:
            return  # two filters with the same condition: it went with the first
        if condition.startswith(_TAG):
            self._of_condition[condition].take(subscription)
        for value in values:
            found = by_value.get(value)
            if isinstance(found, _Shared):
                number = found.take(subscription)
                if not number:
                    continue
                is_last = not found.by_owner
            elif found is not None and found.subscription is subscription:
                number, is_last = 1, True
            else:
                continue
            self._number -= number
            if is_last:
                del by_value[value]
        if not by_value:
            del self._by_condition[condition]
            self._of_condition.pop(condition, None)

    def keys_of(self, event: Event) -> list[Key]:
        """The index keys of the event under which there are entries."""
        if self._new:
            self._index_new()
        conditions = self._by_condition
        if not conditions:
            return []
        keys = dict.fromkeys(self._keys_without_tags(event))
        if isinstance(event, IndexedEvent):
            for condition, values in self._tags_of(event):
                for value in values:
                    keys[condition, value] = None
            return list(keys)
        for tag in event.tags:
            if len(tag) > 1:
                condition = _TAG + tag[0]
                of_tag = conditions.get(condition)
                if (
                    of_tag is not None
                    and tag[1] in of_tag
                    and self._of_condition[condition].may_match(event.kind)
                ):
                    keys[condition, tag[1]] = None
        return list(keys)

    def _tags_of(self, event: IndexedEvent) -> Iterator[tuple[str, Set[str | int]]]:
        """Tag conditions under which there are entries, and the values. Thousands of tags are
        looked up in a twentieth of the time that one after the other takes."""
        for name, values in event.values.items():
            condition = _TAG + name
            of_tag = self._by_condition.get(condition)
            if of_tag is not None and self._of_condition[condition].may_match(event.kind):
                found = of_tag.keys() & values
                if found:
                    yield condition, found

    def _keys_without_tags(self, event: Event) -> list[Key]:
        conditions = self._by_condition
        return [
            key
            for key in (
                (_IDS, event.id),
                (_AUTHORS, event.pubkey),
                (_KINDS, event.kind),
                (_ALL, ""),
            )
            if key[0] in conditions and key[1] in conditions[key[0]]
        ]

    def awaits(self, event: Event) -> bool:
        """Whether there are entries under a key of the event."""
        if self._new:
            self._index_new()
        if isinstance(event, IndexedEvent):
            return bool(self._keys_without_tags(event)) or any(True for _ in self._tags_of(event))
        return bool(self.keys_of(event))

    def numbers_for(self, event: Event) -> tuple[int, int]:
        """How many entries are under the event's keys (they match it, or are compared with it), and
        how many of these have a search. 0 if there are few entries in all, and no search."""
        if not self._searches and self._number + len(self._new) < _FEW:
            return 0, 0
        by_condition: dict[str, list[str | int]] = {}
        for condition, value in self.keys_of(event):
            by_condition.setdefault(condition, []).append(value)
        number = searches = 0
        for condition, values in by_condition.items():
            all_ = self._of_condition.get(condition)
            of_values = [self._entries((condition, value)) for value in values]
            found = sum(map(_number, of_values))
            if all_ is not None and found > all_.number:  # each is compared once
                number, searches = number + all_.number, searches + all_.searches
                continue
            number += found
            if self._searches:
                searches += sum(map(_searches, of_values))
        return number, searches

    def are_sure(self, key: Key) -> bool:
        """Whether every event with this key matches all entries under it."""
        entries = self._entries(key)
        if isinstance(entries, Entry):
            return entries.is_sure
        return entries is None or not entries.unsure

    def under(self, key: Key) -> list[Entry[S]]:
        """For each subscription with entries under the key, one of these entries."""
        entries = self._entries(key)
        if isinstance(entries, Entry):
            return [entries]
        if entries is None:
            return []
        return [each if isinstance(each, Entry) else each[0] for each in entries.by_owner.values()]

    def candidates(self, keys: Iterable[Key]) -> Iterator[Sequence[Entry[S]]]:
        """Entries under these keys, which may match, each once: a list per subscription, which may
        be yielded repeatedly."""
        by_condition: dict[str, list[str | int]] = {}
        for condition, value in keys:
            by_condition.setdefault(condition, []).append(value)
        for condition, values in by_condition.items():
            several = [self._entries((condition, value)) for value in values]
            all_ = self._of_condition.get(condition)
            if len(values) == 1:
                yield from _by_owner(several[0])
            elif all_ is not None and sum(map(_number, several)) > all_.cost:
                # A filter may name all members of a group, and be under each in its list.
                yield from all_.under_any(frozenset(values))
            else:
                seen = set[int]()
                for entries in several:
                    for own in _by_owner(entries):
                        fresh = [each for each in own if id(each) not in seen]
                        if fresh:
                            seen.update(map(id, fresh))
                            yield fresh

    def _entries(self, key: Key) -> Entry[S] | _Shared[S] | None:
        condition, value = key
        by_value = self._by_condition.get(condition)
        return None if by_value is None else by_value.get(value)


def _indexed_condition(filter_: Filter) -> tuple[str, Collection[str] | Collection[int], bool]:
    """Condition under which a filter is indexed, its values, and `Entry.is_exact`."""
    conditions = _conditions(filter_)
    if filter_.ids is not None:
        return _IDS, filter_.ids, conditions == 1
    narrow = [(n, v) for n, v in filter_.tags if n not in BROAD_TAGS]
    if filter_.d_prefixes:
        narrow = [(n, v) for n, v in narrow if n != "d"]  # an event cannot be looked up by prefix
    broad = (
        [] if filter_.authors is not None else [(n, v) for n, v in filter_.tags if n in BROAD_TAGS]
    )
    if narrow or broad:
        name, values = min(narrow or broad, key=lambda tag: len(tag[1]))
        return _TAG + name, values, conditions == 1
    if filter_.authors is not None:
        return _AUTHORS, filter_.authors, conditions == 1
    if filter_.kinds is not None:
        return _KINDS, filter_.kinds, conditions == 1
    return _ALL, ("",), conditions == 0


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
