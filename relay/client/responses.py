"""Collectors for the response to one REQ or COUNT.

An event is kept if its shape, id and signature are valid and it matches a filter. Others are
dropped silently: a relay cannot inject events that nobody signed.
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
from relay.nostr.event import Event, event_from, event_in_frame, weight_of
from relay.nostr.filters import Filter, FilterTerms, filter_from
from relay.nostr.keys import are_signed
from relay.nostr.messages import RESTARTING, STOPPING

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from relay.client.verifier import SignatureVerifier

    FilterLike = Filter | Mapping[str, object]
    """A filter, or what NIP-01 writes for one: `{"kinds": [9], "#h": ["tea"]}`."""

MAX_ANSWER: Final = 250_000
"""Events in one response: five times Rookery's limit for one filter."""
MAX_ANSWER_BYTES: Final = 2**29
"""… and what they take in memory, as `weight_of` estimates it."""
_ENDING: Final = frozenset(f"{said.prefix}: {said.text}" for said in (STOPPING, RESTARTING))
_VERIFY_BATCH: Final = 128
_THREAD_MIN: Final = 8
"""Signatures from which a thread verifies them: one takes 25 µs; the thread switch costs 65 µs, but
keeps the loop free."""


def filters_of(given: Sequence[FilterLike]) -> tuple[Filter, ...]:
    """Filters given as Filter or as NIP-01 JSON. Raises Invalid, Unsupported."""
    if not given:
        raise Invalid("a query needs at least one filter")
    return tuple(value if isinstance(value, Filter) else _filter_of(value) for value in given)


def _filter_of(value: Mapping[str, object]) -> Filter:
    fields = {
        key: list(given) if isinstance(given, (set, frozenset, tuple)) else given
        for key, given in value.items()
    }
    kinds = fields.get("kinds")
    # Whether search, tag indexes and `#d` prefixes are supported is for the relay to decide.
    terms = FilterTerms(
        search=True,
        index_tags=frozenset(key[1:] for key in fields if key.startswith("#") and len(key) > 1),
        prefix_d_kinds=frozenset(
            kind for kind in (kinds if isinstance(kinds, list) else ()) if isinstance(kind, int)
        ),
    )
    return filter_from(fields, terms)


def event_in(frame: list[object], filters: Sequence[Filter]) -> Event | None:
    """The event of an EVENT frame, signature not verified; None if malformed or not matching."""
    try:
        event = event_from(frame[2] if len(frame) > 2 else None)
    except Invalid:
        return None
    return event if _is_wanted(event, filters) else None


def _is_wanted(event: Event, filters: Sequence[Filter]) -> bool:
    return any(filter_.matches(event) for filter_ in filters)


async def signed_among(events: list[Event]) -> list[Event]:
    """The events with a valid signature, in order; verified in a thread if there are many."""
    if len(events) <= _THREAD_MIN:
        verdicts = are_signed(events)
    else:
        verdicts = await asyncio.to_thread(are_signed, events)
    return [event for event, is_valid in zip(events, verdicts, strict=True) if is_valid]


class _Response:
    """How a response ends: complete, CLOSED, or by losing the connection."""

    def __init__(self) -> None:
        self.is_closed = False
        self._done = asyncio.Event()
        self._failure: ClientError | None = None

    async def wait(self) -> None:
        """Wait until it is complete; once. Raises QueryClosed, ConnectionLost, AnswerTooLong."""
        await self._done.wait()
        if self._failure is not None:
            try:
                raise self._failure
            finally:
                # Its traceback leads here: only a garbage collection would free what callers hold.
                self._failure = None

    def connection_lost(self) -> None:
        self._set_failure(ConnectionLost("the connection ended before the answer"))

    def _set_failure(self, failure: ClientError) -> None:
        if not self._done.is_set():
            self._failure = failure
            self._done.set()

    def _on_closed(self, frame: list[object]) -> None:
        self.is_closed = True
        self._set_failure(closed_by(frame))


def closed_by(frame: list[object]) -> QueryClosed | ConnectionLost:
    """ConnectionLost when the relay stops: it closes the connection next, and the request is sent
    again on another."""
    reason = frame[2] if len(frame) > 2 and isinstance(frame[2], str) else ""
    if reason in _ENDING:
        return ConnectionLost(reason)
    return QueryClosed(*split_reason(reason))


class StoredAnswer(_Response):
    """The events that answer one REQ, until EOSE, without duplicates. A Sink."""

    def __init__(
        self,
        filters: Sequence[Filter],
        verifier: SignatureVerifier,
        most_bytes: int,
        on_event: Callable[[], None],
        most: int = MAX_ANSWER,
    ) -> None:
        """`on_event`: called with each event that counts."""
        super().__init__()
        self._filters = filters
        self._verifier = verifier
        self._most = most
        self._most_bytes = most_bytes
        self._on_event = on_event
        self._ids: set[str] = set()
        self._bytes = 0
        self._unchecked: list[Event] = []
        self._verifications: list[asyncio.Future[list[bool]]] = []
        self._chunks: list[list[Event]] = []

    def receive(self, verb: str, frame: list[object]) -> None:
        if verb == "EVENT":
            self._add(event_in(frame, self._filters))
        elif verb == "EOSE":
            self._done.set()
        elif verb == "CLOSED":
            self._on_closed(frame)

    def receive_raw(self, text: str) -> None:
        """An EVENT frame encoded without spaces."""
        try:
            event = event_in_frame(text)
        except Invalid:
            return
        self._add(event if _is_wanted(event, self._filters) else None)

    async def events(self) -> list[Event]:
        """In the relay's order; call after `wait`."""
        if len(self._unchecked) > _THREAD_MIN:
            self._start_verification()
        signed = [
            event
            for chunk, check in zip(self._chunks, self._verifications, strict=True)
            for event, is_valid in zip(chunk, await check, strict=True)
            if is_valid
        ]
        return signed + await signed_among(self._unchecked)

    def drop(self) -> None:
        """Free the events. Whoever keeps the error of a failed answer keeps this object too."""
        for verification in self._verifications:
            verification.cancel()
        self._ids, self._unchecked, self._chunks, self._verifications = set(), [], [], []

    def _start_verification(self) -> None:
        self._chunks.append(self._unchecked)
        self._verifications.append(self._verifier.begin(self._unchecked))
        self._unchecked = []

    def _add(self, event: Event | None) -> None:
        if event is None or self._done.is_set() or event.id in self._ids:
            return
        if len(self._ids) >= self._most:
            self._set_failure(AnswerTooLong(self._most))
            return
        self._bytes += weight_of(event)
        if self._bytes > self._most_bytes:
            self._set_failure(AnswerTooLong(self._most_bytes, "bytes"))
            return
        self._ids.add(event.id)
        self._on_event()
        self._unchecked.append(event)
        if len(self._unchecked) == _VERIFY_BATCH:
            # Verified while more events arrive: 50,000 signatures take more than a second.
            self._start_verification()


class CountAnswer(_Response):
    """The number that answers one COUNT (NIP-45). A Sink."""

    number = 0
    is_exact = True

    def receive(self, verb: str, frame: list[object]) -> None:
        if verb == "COUNT":
            match frame[2:]:
                case [{"count": int(number), **more}, *_]:
                    self.number = number
                    self.is_exact = not more.get("approximate")
                    self.is_closed = True
                    self._done.set()
        elif verb == "CLOSED":
            self._on_closed(frame)
