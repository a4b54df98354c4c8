"""The order in which a sync stores events of groups: that of their writing, as far as dates tell.

A group is private before anything is written into it, and its authors are members, if its records
come in order. Clocks differ: what is dated a little before the group, before it became private or
before its author became a member, comes after that. An event that names others comes after them
whatever its date is: a running relay would show it to everybody (N29-106).
"""

from __future__ import annotations

from bisect import bisect_right
from itertools import islice
from sys import getsizeof
from typing import TYPE_CHECKING, Final

from relay.client.errors import Incomparable
from relay.client.paging import MAX_ALL_BYTES
from relay.nostr.event import address_of, is_hex64
from relay.nostr.kinds import (
    CREATE_GROUP,
    CREATE_INVITE,
    DELETE_GROUP,
    EDIT_METADATA,
    GROUP_RECORDS,
    JOIN_REQUEST,
    LEAVE_REQUEST,
    PUT_USER,
    REMOVE_USER,
    KindClass,
    class_of,
)
from relay.nostr.nip29 import made_by

if TYPE_CHECKING:
    from collections.abc import Iterable

    from relay.nostr.event import Event

_MAX_CHAIN: Final = 8
"""Events that name each other, each dated before the one that it names."""
_NAMING: Final = ("e", "E", "a", "A")
_MAX_NAMED: Final = 16
"""Rookery looks no further for the group of an event that names others."""
_CLOCK_SKEW_S: Final = 900
"""How far the clocks of those who write into a group may differ: relays refuse later dates."""
_RANKS: Final = {
    CREATE_GROUP: -8,
    PUT_USER: -4,
    CREATE_INVITE: -4,
    REMOVE_USER: -1,
    LEAVE_REQUEST: -1,
    DELETE_GROUP: -1,
}

Place = tuple[int, int, int]
"""Time, rank among events of one second, created_at."""
Making = tuple[str | None, str, int]
"""Group, author and created_at of a 9007."""


def only_names(event: Event) -> bool:
    """Whether it has no group of its own but may have that of an event that it names."""
    return not event.has_tag("h") and any(map(event.has_tag, _NAMING))


def _names(event: Event) -> dict[str, None]:
    """The ids and addresses in its tags, each once."""
    return dict.fromkeys(
        tag[1]
        for tag in event.tags
        if len(tag) > 1
        and tag[0] in _NAMING
        and (is_hex64(tag[1]) if tag[0] in ("e", "E") else address_of(tag[1]))
    )


def in_order(events: Iterable[Event]) -> list[Event]:
    """By time, and place among the events of one second."""
    events = [*events]
    made = {_making(event) for event in events if event.kind == CREATE_GROUP}

    def place(event: Event) -> tuple[int, int, str]:
        is_first = event.kind == EDIT_METADATA and _making(event) in made
        return event.created_at, _first(event) if is_first else _rank(event), event.id

    return sorted(events, key=place)


def _making(event: Event) -> Making:
    return _group_of(event), event.pubkey, event.created_at


def _group_of(event: Event) -> str | None:
    return made_by(event) if event.kind == CREATE_GROUP else event.tag("h")


def _first(edit: Event) -> int:
    """Rank of a 9002 of the second in which its author made the group: what it drops without a
    confirmation, it may drop only before there are members (Z-03)."""
    return -6 if _hides(edit) else -7


def _rank(event: Event) -> int:
    """Place among the events of one second: a group, who gets rights, what makes it private, who
    loses them, what is in it."""
    if _hides(event):
        return -2
    if event.kind == PUT_USER and any(len(tag) > 2 for tag in event.tags if tag[:1] == ["p"]):
        return -5  # a 9000 without roles may take them away
    found = _RANKS.get(event.kind)
    if found is not None:
        return found
    return -3 if event.kind in GROUP_RECORDS else int(only_names(event))


def _hides(event: Event) -> bool:
    """Whether it is a 9002 that makes its group one of which only members read."""
    return event.kind == EDIT_METADATA and any(map(event.has_tag, ("private", "hidden")))


class Order:
    """`add` all events, then ask for their `places`. Kept are ids, dates and what is named."""

    def __init__(self) -> None:
        self._places: dict[bytes, Place] = {}
        self._ids: dict[str, bytes] = {}
        """By address."""
        self._named: dict[bytes, tuple[str, ...]] = {}
        """id → ids and addresses in its tags."""
        self._written: list[tuple[bytes, str, str]] = []
        """(id, group, author) of what is no record."""
        self._made: set[Making] = set()
        self._edits: list[tuple[bytes, Making, int]] = []
        """Each 9002, and its rank if its author made the group in that second."""
        self._described: dict[str, list[tuple[int, int, bool]]] = {}
        """Group → (created_at, rank, whether it hides) of its 9007 and 9002."""
        self._joined: dict[tuple[str, str], list[int]] = {}
        """(group, key) → created_at of each 9000 and 9021 that may have made it a member."""
        self._bytes = 0
        """Of texts that are kept."""

    def add(self, event: Event) -> None:
        """Raises Incomparable when the events name more than fits in memory."""
        id_, h, at = bytes.fromhex(event.id), _group_of(event), event.created_at
        self._places[id_] = at, _rank(event), at
        if event.kind == CREATE_GROUP:
            self._made.add(_making(event))
        elif event.kind == EDIT_METADATA:
            self._edits.append((id_, _making(event), _first(event)))
        if class_of(event.kind) is KindClass.ADDRESSABLE:
            address = f"{event.kind}:{event.pubkey}:{event.d}"
            self._ids[address] = id_
            self._keep(address)
        if h is not None:
            self._keep(h)
        if h is None:
            if only_names(event):
                named = self._named[id_] = tuple(islice(_names(event), _MAX_NAMED))
                self._keep(*named)
        elif event.kind in (CREATE_GROUP, EDIT_METADATA):
            self._described.setdefault(h, []).append((at, _rank(event), _hides(event)))
        elif event.kind in (PUT_USER, JOIN_REQUEST):
            joined = event.tag_values("p") if event.kind == PUT_USER else (event.pubkey,)
            self._keep(*joined)
            for pubkey in joined:
                self._joined.setdefault((h, pubkey), []).append(at)
        elif event.kind not in GROUP_RECORDS:
            self._written.append((id_, h, event.pubkey))

    def _keep(self, *texts: str) -> None:
        self._bytes += sum(map(getsizeof, texts))
        if self._bytes > MAX_ALL_BYTES:
            raise Incomparable("the relay's events name too much; use a narrower filter")

    def places(self) -> dict[bytes, Place]:
        """By id."""
        places = self._places
        for id_, making, first in self._edits:
            if making in self._made:
                places[id_] = places[id_][0], first, places[id_][2]
        changes = {h: _changes(records) for h, records in self._described.items()}
        joined = {key: sorted(times) for key, times in self._joined.items()}
        for id_, h, author in self._written:
            latest, order, at = places[id_]
            for times in (changes.get(h), joined.get((h, author))):
                if times and (last := bisect_right(times, at + _CLOCK_SKEW_S)):
                    latest = max(latest, times[last - 1])
            places[id_] = latest, order, at
        for _ in range(_MAX_CHAIN):
            for id_, values in self._named.items():
                at = places[id_][2]
                for time, order, _ in filter(None, map(places.get, map(self._target, values))):
                    places[id_] = max(places[id_], (time, order + 1, at))
        return places

    def _target(self, value: str) -> bytes:
        """The id, or that of the event with this address; empty: none of these events."""
        return bytes.fromhex(value) if is_hex64(value) else self._ids.get(value, b"")


def _changes(records: list[tuple[int, int, bool]]) -> list[int]:
    """When the group was made, or became one that only members read."""
    times, is_hidden = [], False
    for time, order, hides in sorted(records):
        if order == _RANKS[CREATE_GROUP] or (hides and not is_hidden):
            times.append(time)
        is_hidden = hides
    return times
