"""What a relay answers to one query, gathered while it comes; and what of it may be believed.

An event counts when its shape and id are right, it matches what was asked and its signature is
good. The rest is dropped without a word: a relay cannot make a client see what nobody signed.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final

from relay.client.errors import (
    AnswerTooLong,
    ClientError,
    ConnectionLost,
    QueryClosed,
    split_reason,
)
from relay.errors import Invalid
from relay.nostr.event import Event, event_from, event_in_frame
from relay.nostr.filters import Filter, FilterTerms, filter_from
from relay.nostr.keys import are_signed

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from relay.client.checking import Checking

MAX_ANSWER: Final = 250_000
"""Events in one answer: five times what Rookery sends for one filter."""
MAX_ANSWER_BYTES: Final = 2**28
"""… and what they take as JSON: whoever asks holds all of it."""
_CHECKED_AT_ONCE: Final = 128
_WORTH_A_THREAD: Final = 8
"""Signatures: 25 µs each; a trip to a thread costs 65 µs and lets the loop go on (DESIGN §7)."""


def filters_of(given: Sequence[Filter | Mapping[str, object]]) -> tuple[Filter, ...]:
    """Filters as an author writes them: Filter, or NIP-01's JSON. Raises Invalid, Unsupported."""
    if not given:
        raise Invalid("a query needs at least one filter")
    return tuple(value if isinstance(value, Filter) else _filter_of(value) for value in given)


def _filter_of(value: Mapping[str, object]) -> Filter:
    fields = {
        key: list(given) if isinstance(given, (set, frozenset, tuple)) else given
        for key, given in value.items()
    }
    kinds = fields.get("kinds")
    # Whether it searches, indexes a tag, reads a `#d` ending in `:` as a prefix is the relay's say.
    terms = FilterTerms(
        search=True,
        index_tags=frozenset(key[1:] for key in fields if key.startswith("#") and len(key) > 1),
        prefix_d_kinds=frozenset(
            kind for kind in (kinds if isinstance(kinds, list) else ()) if isinstance(kind, int)
        ),
    )
    return filter_from(fields, terms)


def event_in(frame: list[object], filters: Sequence[Filter]) -> Event | None:
    """The event of an EVENT frame, signature unchecked; None when it is not what was asked."""
    try:
        event = event_from(frame[2] if len(frame) > 2 else None)
    except Invalid:
        return None
    return event if _is_wanted(event, filters) else None


def _is_wanted(event: Event, filters: Sequence[Filter]) -> bool:
    return any(filter_.matches(event) for filter_ in filters)


async def signed_among(events: list[Event]) -> list[Event]:
    """Those with a good signature, in order; many are checked in a thread."""
    if len(events) <= _WORTH_A_THREAD:
        verdicts = are_signed(events)
    else:
        verdicts = await asyncio.to_thread(are_signed, events)
    return [event for event, is_good in zip(events, verdicts, strict=True) if is_good]


class _Ending:
    """How an answer ends: whole, closed by the relay, or with the connection."""

    def __init__(self) -> None:
        self.is_over = False
        self._done = asyncio.Event()
        self._failure: ClientError | None = None

    async def wait(self) -> None:
        """Until the answer is whole. Raises QueryClosed, ConnectionLost, AnswerTooLong."""
        await self._done.wait()
        if self._failure is not None:
            raise self._failure

    def lose(self) -> None:
        self._fail(ConnectionLost("the connection ended before the answer"))

    def _fail(self, failure: ClientError) -> None:
        if not self._done.is_set():
            self._failure = failure
            self._done.set()

    def _take_closed(self, frame: list[object]) -> None:
        self.is_over = True
        self._fail(closed_by(frame))


def closed_by(frame: list[object]) -> QueryClosed:
    reason = frame[2] if len(frame) > 2 and isinstance(frame[2], str) else ""
    return QueryClosed(*split_reason(reason))


class StoredAnswer(_Ending):
    """The events that answer one REQ, until EOSE, each once. A Sink."""

    def __init__(
        self, filters: Sequence[Filter], checking: Checking, most: int = MAX_ANSWER
    ) -> None:
        super().__init__()
        self._filters = filters
        self._checking = checking
        self._most = most
        self._ids: set[str] = set()
        self._bytes = 0
        self._unchecked: list[Event] = []
        self._checks: list[asyncio.Future[list[bool]]] = []
        self._chunks: list[list[Event]] = []

    def take(self, verb: str, frame: list[object]) -> None:
        if verb == "EVENT":
            self._add(event_in(frame, self._filters))
        elif verb == "EOSE":
            self._done.set()
        elif verb == "CLOSED":
            self._take_closed(frame)

    def take_text(self, text: str) -> None:
        """An EVENT frame in the usual spelling."""
        try:
            event = event_in_frame(text)
        except Invalid:
            return
        self._add(event if _is_wanted(event, self._filters) else None)

    async def events(self) -> list[Event]:
        """In the order of the relay, once `wait` has returned."""
        if len(self._unchecked) > _WORTH_A_THREAD:
            self._begin_check()
        signed = [
            event
            for chunk, check in zip(self._chunks, self._checks, strict=True)
            for event, is_good in zip(chunk, await check, strict=True)
            if is_good
        ]
        return signed + await signed_among(self._unchecked)

    def _begin_check(self) -> None:
        self._chunks.append(self._unchecked)
        self._checks.append(self._checking.begin(self._unchecked))
        self._unchecked = []

    def _add(self, event: Event | None) -> None:
        if event is None or event.id in self._ids:
            return
        if len(self._ids) >= self._most:
            self._fail(AnswerTooLong(self._most))
            return
        self._bytes += len(event.raw)
        if self._bytes > MAX_ANSWER_BYTES:
            self._fail(AnswerTooLong(MAX_ANSWER_BYTES, "bytes"))
            return
        self._ids.add(event.id)
        self._unchecked.append(event)
        if len(self._unchecked) == _CHECKED_AT_ONCE:
            # While the rest comes in: the signatures of 50,000 events take more than a second.
            self._begin_check()


class CountAnswer(_Ending):
    """The number that answers one COUNT (NIP-45). A Sink."""

    number = 0

    def take(self, verb: str, frame: list[object]) -> None:
        if verb == "COUNT":
            match frame[2:]:
                case [{"count": int(number)}, *_]:
                    self.number = number
                    self.is_over = True
                    self._done.set()
        elif verb == "CLOSED":
            self._take_closed(frame)
