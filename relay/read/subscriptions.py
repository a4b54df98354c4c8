"""From an event's traits to the live filters that might match it.

Each filter hangs under one kind of trait, the narrowest that it names; an event looks its own
traits up. What comes back is confirmed by `Filter.matches`, except where the trait was the whole
filter.
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
_EVERY: Final = ("*", "")


@dataclass(frozen=True, slots=True)
class Entry(Generic[S]):
    """One filter of one subscription."""

    subscription: S
    filter: Filter
    sure: bool
    """Its trait is all that it asks: an event that has the trait matches."""
    search: Search | None = None
    """What the event's text must contain besides (N50-08)."""


class Subscriptions(Generic[S]):
    """The live filters of all connections. `S` is compared by identity."""

    def __init__(self) -> None:
        self._by_trait: dict[Hashable, dict[int, list[Entry[S]]]] = {}
        self._traits: dict[int, set[Hashable]] = {}

    def __len__(self) -> int:
        return len(self._traits)

    def add(self, subscription: S, filters: Sequence[Filter]) -> None:
        key = id(subscription)
        mine = self._traits.setdefault(key, set())
        for filter_ in filters:
            if filter_.impossible:
                continue
            traits, sure = _traits_of(filter_)
            search = None if filter_.search is None else search_from(filter_.search)
            entry = Entry(subscription, filter_, sure, search)
            for trait in traits:
                self._by_trait.setdefault(trait, {}).setdefault(key, []).append(entry)
                mine.add(trait)

    def remove(self, subscription: S) -> None:
        key = id(subscription)
        for trait in self._traits.pop(key, ()):
            entries = self._by_trait[trait]
            del entries[key]
            if not entries:
                del self._by_trait[trait]

    def candidates(self, event: Event) -> Iterator[Entry[S]]:
        """Entries that may match; one subscription may come several times."""
        by_trait = self._by_trait
        if not by_trait:
            return
        for trait in _traits_of_event(event):
            entries = by_trait.get(trait)
            if entries:
                # A copy: a reader that is sent away meanwhile takes its subscriptions with it.
                for several in list(entries.values()):
                    yield from several


def _traits_of(filter_: Filter) -> tuple[list[Hashable], bool]:
    """Where a filter hangs, and whether that alone decides."""
    if filter_.ids is not None:
        return [("i", value) for value in filter_.ids], _asks_only(filter_, ids=None)
    narrow = [(n, v) for n, v in filter_.tags if n not in BROAD_TAGS]
    if filter_.d_prefixes:
        narrow = [(n, v) for n, v in narrow if n != "d"]  # a prefix is no trait of an event
    broad = (
        [] if filter_.authors is not None else [(n, v) for n, v in filter_.tags if n in BROAD_TAGS]
    )
    if narrow or broad:
        name, values = min(narrow or broad, key=lambda tag: len(tag[1]))
        left = tuple(tag for tag in filter_.tags if tag[0] != name)
        return [("#", name, value) for value in values], _asks_only(filter_, tags=left)
    if filter_.authors is not None:
        return [("a", value) for value in filter_.authors], _asks_only(filter_, authors=None)
    if filter_.kinds is not None:
        return [("k", value) for value in filter_.kinds], _asks_only(filter_, kinds=None)
    return [_EVERY], _asks_only(filter_)


def _asks_only(filter_: Filter, **trait: object) -> bool:
    left = replace(filter_, limit=None, search=None, **trait)  # type: ignore[arg-type]
    return (
        left.ids is None
        and left.authors is None
        and left.kinds is None
        and left.since is None
        and left.until is None
        and not left.tags
        and not left.d_prefixes
    )


def _traits_of_event(event: Event) -> set[Hashable]:
    traits: set[Hashable] = {
        ("i", event.id),
        ("a", event.pubkey),
        ("k", event.kind),
        _EVERY,
    }
    for tag in event.tags:
        if len(tag) > 1:
            traits.add(("#", tag[0], tag[1]))
    return traits
