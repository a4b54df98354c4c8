"""Ask: one request for a page, and the only way in which pages read events."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from functools import lru_cache
from time import thread_time
from typing import TYPE_CHECKING, Any, Final, Protocol, TypeVar

import msgspec

from relay.errors import Invalid, Prefix, Refused
from relay.memory.fence import name_in
from relay.nostr import kinds
from relay.nostr.event import event_from_raw, object_in, parsing_weight
from relay.nostr.filters import Filter
from relay.nostr.keys import npub

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Coroutine, Iterable, Mapping

    from relay.access.visibility import Viewer
    from relay.console.parts import ConsoleServices, OwnerView
    from relay.nostr.event import Event

MAX_ROWS: Final = 500
"""Of one query, unless a page asks for fewer."""
_MAX_WEIGHT: Final = 8 << 20
"""A query ends with the row that reaches this, see `parsing_weight`."""
_MAX_WEIGHT_UNKNOWN: Final = 1 << 20
"""The same for who is unknown."""
_PIECE_WEIGHT: Final = 1 << 19
"""Of rows that are parsed without a pause: a millisecond, or one row."""
_READING_S: Final = 0.5
"""Processor time for reading the records of one list: hundreds of usual ones take a tenth."""
_READING_S_UNKNOWN: Final = 0.1
"""The same for who is unknown."""
_PIECE_S: Final = 0.001
"""Of records that are read without a pause, or one record."""
_FEW_NAMES: Final = 50
_MAX_NAMES: Final = 500
_MAX_PEOPLE: Final = 2000
"""Of one page: each npub takes 40 us of the loop."""
_MAX_PEOPLE_UNKNOWN: Final = 500
"""The same for who is unknown."""
_MAX_PROFILE: Final = 16_384
"""Characters; the name in a longer one is not looked for: parsing 400,000 can take 30 ms."""
_PROFILES_PIECE: Final = 32_768
"""Characters of profiles that are parsed without a pause: 2 ms."""
_NPUBS_PIECE: Final = 50
"""Keys that are encoded without a pause: 2 ms."""
_CUT_CHARS: Final = 4000
_TOO_MUCH: Final = "not everything is shown: there is too much for one page"
_npub: Final = lru_cache(8192)(npub)
"""Cached, because pages show the same people."""


T = TypeVar("T")


class InThread(Protocol):
    def __call__(self, work: Callable[[], T]) -> Coroutine[Any, Any, T]: ...


class NotFoundError(Exception):
    """Nothing with this name exists, or the reader may not see it."""


@dataclass(frozen=True, slots=True)
class Ask:
    """One request: who asks, and for what."""

    services: ConsoleServices
    viewer: Viewer
    """The signed-in key, or nobody."""
    query: Mapping[str, str]
    information: Mapping[str, object]
    """NIP-11."""
    in_thread: InThread
    """Runs work that would hold the loop."""
    url: str
    """The relay's, ws:// or wss://."""
    base: str
    """Path of the relay, without a slash at the end."""
    owner_view: OwnerView | None = None
    """None: the key is not an owner's."""
    now: int = 0
    counted_as: str | None = None
    """See `relay.access.shares.Sharer`."""
    notes: list[str] = field(default_factory=list)
    """Notes at the top of the page: missing parts, and why."""

    @property
    def pubkey(self) -> str | None:
        return next(iter(self.viewer.keys), None)

    @property
    def is_known(self) -> bool:
        """Whether the key is known here; others get smaller pages."""
        return self.services.state.visibility(self.viewer).is_known

    @property
    def for_owner(self) -> OwnerView:
        """Raises Refused if the key is not an owner's."""
        if self.owner_view is None:
            raise Refused(Prefix.RESTRICTED, "only an owner of the relay may see this page")
        return self.owner_view

    async def events(self, *filters: Filter) -> list[Event]:
        """What a REQ with these filters gives the viewer. Raises Refused, StoreFault."""
        asked = tuple(
            each if each.limit is not None else msgspec.structs.replace(each, limit=MAX_ROWS)
            for each in filters
            if not _is_impossible(each)
        )
        if not asked:
            return []
        found = []
        unreadable = 0
        most = _MAX_WEIGHT if self.is_known else _MAX_WEIGHT_UNKNOWN
        weight = 0
        read = 0
        for raw in await self.services.stored.of(self.viewer, asked, most, self.counted_as):
            weighs = parsing_weight(raw)
            weight += weighs
            read += weighs
            if weight > _PIECE_WEIGHT:
                await asyncio.sleep(0)
                weight = 0
            try:
                found.append(event_from_raw(raw))
            except (Invalid, UnicodeDecodeError, ValueError):
                unreadable += 1
        if read >= most:
            self.note_once(_TOO_MUCH)
        if unreadable:
            self.notes.append(f"{unreadable} stored rows cannot be read: see `rookery verify`")
        return found

    async def one_by_one(self, events: Iterable[Event]) -> AsyncIterator[Event]:
        """For reading their contents: other tasks run in between. Ends with a note when this has
        taken too much of the loop."""
        left = _READING_S if self.is_known else _READING_S_UNKNOWN
        piece = 0.0
        for event in events:
            if left <= 0:
                self.note_once(_TOO_MUCH)
                return
            began = thread_time()
            yield event
            took = thread_time() - began
            left -= took
            piece += took
            if piece >= _PIECE_S:
                await asyncio.sleep(0)
                piece = 0.0

    def note_once(self, text: str) -> None:
        if text not in self.notes:
            self.notes.append(text)

    async def events_or_none(self, *filters: Filter) -> list[Event]:
        """As `events`; none where a REQ would be closed."""
        try:
            return await self.events(*filters)
        except Refused as refused:
            if refused.prefix in (Prefix.AUTH_REQUIRED, Prefix.RESTRICTED):
                return []
            raise

    async def people(self, pubkeys: Iterable[str]) -> dict[str, dict[str, str]]:
        """pubkey → `npub`, and `name` as its profile gives it, fit for one line, or empty.

        Of the first ones; a note says so when there are more.
        """
        wanted = [*dict.fromkeys(pubkeys)]
        most = _MAX_PEOPLE if self.is_known else _MAX_PEOPLE_UNKNOWN
        if len(wanted) > most:
            self.notes.append(f"{len(wanted) - most} more people are not shown")
            del wanted[most:]
        names: dict[str, str] = {}
        asked = frozenset(wanted[:_MAX_NAMES])
        if asked:
            # One query per author is a look-up; one for several would scan all their rows.
            keys = [frozenset({key}) for key in asked] if len(asked) <= _FEW_NAMES else [asked]
            profile_of = frozenset({kinds.PROFILE})
            filters = [Filter(kinds=profile_of, authors=each, limit=len(each)) for each in keys]
            read = 0
            for event in await self.events_or_none(*filters):
                read += len(event.content)
                if read > _PROFILES_PIECE:
                    await asyncio.sleep(0)
                    read = 0
                is_long = len(event.content) > _MAX_PROFILE
                profile = {} if is_long else object_in(event.content) or {}
                given = (profile.get(key) for key in ("display_name", "name"))
                text = next((name_in(each) for each in given if isinstance(each, str)), "")
                names.setdefault(event.pubkey, text)
        if self.services.relay_pubkey in wanted:
            names[self.services.relay_pubkey] = "this relay"
        people: dict[str, dict[str, str]] = {}
        for key in wanted:
            if len(people) % _NPUBS_PIECE == _NPUBS_PIECE - 1:
                await asyncio.sleep(0)
            people[key] = {"npub": _npub(key), "name": names.get(key, "")}
        return people


def _is_impossible(filter_: Filter) -> bool:
    """A list is empty: nothing can match (N01-67)."""
    lists = (filter_.ids, filter_.authors, filter_.kinds, *(values for _, values in filter_.tags))
    return any(each is not None and not each for each in lists)


def cut(text: str, most: int = _CUT_CHARS) -> str:
    """A long text, shortened for a list; the page of the event has all of it."""
    return text if len(text) <= most else f"{text[:most]}…"


def shown(event: Event) -> dict[str, object]:
    """An event in a page."""
    return {
        "id": event.id,
        "kind": event.kind,
        "pubkey": event.pubkey,
        "created_at": event.created_at,
        "group": event.tag("h"),
        "content": cut(event.content),
        "is_cut": len(event.content) > _CUT_CHARS,
    }
