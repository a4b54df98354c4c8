"""Index of live filters: from an event to the subscriptions that might match it.

Each filter is indexed under the values of its most selective condition (ids, a tag, authors,
kinds); an event is looked up under each value it has. `Filter.matches` confirms a candidate unless
the indexed condition is the whole filter.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final, Generic, TypeVar

from relay.nostr.filters import BROAD_TAGS
from relay.nostr.nip50 import search_from

if TYPE_CHECKING:
    from collections.abc import Hashable, Iterator, Sequence

    from relay.nostr.event import Event
    from relay.nostr.filters import Filter
    from relay.nostr.nip50 import Search

S = TypeVar("S")
_ANY_EVENT: Final = ("*", "")


@dataclass(frozen=True, slots=True)
class Entry(Generic[S]):
    """One filter of one subscription."""

    subscription: S
    filter: Filter
    is_exact: bool
    """The indexed condition is the whole filter, `search` aside."""
    search: Search | None = None
    """The event's text must contain it too (N50-08)."""


class Subscriptions(Generic[S]):
    """The live filters of all connections. `S` is compared by identity."""

    def __init__(self) -> None:
        self._by_key: dict[Hashable, tuple[Entry[S]] | dict[int, list[Entry[S]]]] = {}
        """A tuple while a key has one filter: most of many values have no more."""
        self._keys: dict[int, set[Hashable]] = {}

    def __len__(self) -> int:
        return len(self._keys)

    def add(self, subscription: S, filters: Sequence[Filter]) -> None:
        owner = id(subscription)
        keys = self._keys.setdefault(owner, set())
        for filter_ in filters:
            if filter_.impossible:
                continue
            filter_keys, is_exact = _keys_of_filter(filter_)
            search = None if filter_.search is None else search_from(filter_.search)
            entry = Entry(subscription, filter_, is_exact, search)
            for key in filter_keys:
                self._put(key, owner, entry)
                keys.add(key)

    def _put(self, key: Hashable, owner: int, entry: Entry[S]) -> None:
        entries = self._by_key.get(key)
        if entries is None:
            self._by_key[key] = (entry,)
            return
        if isinstance(entries, tuple):
            entries = self._by_key[key] = {id(entries[0].subscription): [*entries]}
        entries.setdefault(owner, []).append(entry)

    def remove(self, subscription: S) -> None:
        owner = id(subscription)
        for key in self._keys.pop(owner, ()):
            entries = self._by_key[key]
            if isinstance(entries, dict):
                del entries[owner]
            if not entries or isinstance(entries, tuple):
                del self._by_key[key]

    def candidates(self, event: Event) -> Iterator[Sequence[Entry[S]]]:
        """Entries that may match, each time of one subscription; it may come several times."""
        by_key = self._by_key
        if not by_key:
            return
        for key in _keys_of_event(event):
            entries = by_key.get(key)
            if isinstance(entries, tuple):
                yield entries
            elif entries:
                # A copy: delivery may close a connection, which removes its subscriptions.
                yield from list(entries.values())


def _keys_of_filter(filter_: Filter) -> tuple[list[Hashable], bool]:
    """Index keys of a filter, and `Entry.is_exact`."""
    if filter_.ids is not None:
        return [("i", value) for value in filter_.ids], _is_whole(filter_, ids=None)
    narrow = [(n, v) for n, v in filter_.tags if n not in BROAD_TAGS]
    if filter_.d_prefixes:
        narrow = [(n, v) for n, v in narrow if n != "d"]  # an event cannot be looked up by prefix
    broad = (
        [] if filter_.authors is not None else [(n, v) for n, v in filter_.tags if n in BROAD_TAGS]
    )
    if narrow or broad:
        name, values = min(narrow or broad, key=lambda tag: len(tag[1]))
        left = tuple(tag for tag in filter_.tags if tag[0] != name)
        return [("#", name, value) for value in values], _is_whole(filter_, tags=left)
    if filter_.authors is not None:
        return [("a", value) for value in filter_.authors], _is_whole(filter_, authors=None)
    if filter_.kinds is not None:
        return [("k", value) for value in filter_.kinds], _is_whole(filter_, kinds=None)
    return [_ANY_EVENT], _is_whole(filter_)


def _is_whole(filter_: Filter, **indexed: object) -> bool:
    """No condition is left without the `indexed` one."""
    left = replace(filter_, limit=None, search=None, **indexed)  # type: ignore[arg-type]
    return (
        left.ids is None
        and left.authors is None
        and left.kinds is None
        and left.since is None
        and left.until is None
        and not left.tags
        and not left.d_prefixes
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
