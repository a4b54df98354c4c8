"""Session: the protocol state of one client. Pure: a message goes in, effects come out.

An effect is the message itself where the read or the write pipeline takes it from here:
  EVENT → Publish      from anyone, the policies decide; kind 24133 is rate-limited here
  REQ   → Subscribe    while all open ones are within their limits, else CLOSED rate-limited
  CLOSE → Close        when the subscription is open, else nothing
  COUNT → Count        NEG-* → NegOpen, NegMessage, NegClose
  AUTH  → VerifyLogin  when challenge, relay and time are right; several keys may log in (N42-07)
A bad frame gets a NOTICE; `MAX_BAD_FRAMES` without a Nostr message between them close the
connection (1008). PING and PONG get no answer and count for nothing.
"""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING, Final, assert_never

import msgspec
from msgspec.structs import replace

from relay.access.visibility import Viewer
from relay.errors import Invalid, Prefix, Refused
from relay.nostr import kinds, messages
from relay.nostr.event import Event
from relay.nostr.filters import text_bytes
from relay.nostr.messages import (
    BadCount,
    BadEvent,
    BadFrame,
    BadNeg,
    BadQuery,
    Close,
    Count,
    KeepAlive,
    Login,
    NegClose,
    NegMessage,
    NegOpen,
    Publish,
    Subscribe,
)
from relay.nostr.nip42 import check_login

if TYPE_CHECKING:
    from collections.abc import Sequence

    from relay.nostr.agents import Attestation
    from relay.nostr.filters import Filter
    from relay.nostr.messages import ClientMessage
    from relay.nostr.nip42 import RelayAddress

MAX_BAD_FRAMES: Final = 20
MAX_OPEN_BYTES: Final = 1 << 20
"""Bytes of the REQ frames of all open subscriptions, or of their texts in memory."""
MAX_OPEN_VALUES: Final = 32_768
"""Ids, authors, kinds and tag values in open subscriptions."""
_VALUE_WEIGHT: Final = 256
"""A value takes some 100 bytes beside its text, and at most 700."""
_FILTER_WEIGHT: Final = 2048
"""An event may have to be compared with all filters that name its group: 0.14 us each."""
_WIDE_WEIGHT: Final = 6144
"""More for a filter that every event of its kinds is compared with."""
_HEAVY_VALUES: Final = 4096
"""Values in open subscriptions above which closing these takes milliseconds of the loop."""
MAX_WIDE: Final = 256
"""Filters of open subscriptions that name no id, author or tag: each costs the loop up to 1 us per
event."""
MAX_SEARCHES: Final = 100
"""Filters of open subscriptions with `search`: each costs the loop 65 us per event with a text."""
MAX_KEYS: Final = 64
"""Per connection."""
MAX_CALLS: Final = 120
"""Burst of NIP-46 events (kind 24133) of one connection: anyone may send them (N46-02)."""
CALLS_PER_S: Final = 2
POLICY_VIOLATION: Final = 1008

_TOO_MANY_CALLS: Final = Refused(
    Prefix.RATE_LIMITED, f"at most {MAX_CALLS} NIP-46 events at once, then {CALLS_PER_S} per second"
)


class Reply(msgspec.Struct, frozen=True):
    payload: bytes


class VerifyLogin(msgspec.Struct, frozen=True):
    """Check the signature, then call `logged_in` or `login_refused`."""

    event: Event


class Hangup(msgspec.Struct, frozen=True):
    code: int
    reason: str


Effect = (
    Reply
    | Publish
    | Subscribe
    | Count
    | Close
    | NegOpen
    | NegMessage
    | NegClose
    | VerifyLogin
    | Hangup
)


class _Held(msgspec.Struct, frozen=True, gc=False):
    """Sums over open subscriptions, for the limits above."""

    bytes: int = 0
    """Those of the frames that opened them, or of their texts in memory, if these take more."""
    filters: int = 0
    values: int = 0
    wide: int = 0
    searches: int = 0

    def plus(self, other: _Held, sign: int = 1) -> _Held:
        return _Held(
            self.bytes + sign * other.bytes,
            self.filters + sign * other.filters,
            self.values + sign * other.values,
            self.wide + sign * other.wide,
            self.searches + sign * other.searches,
        )


_NOTHING: Final = _Held()


class _Open(msgspec.Struct, frozen=True, gc=False):
    """An open subscription."""

    sub: str
    held: _Held


def _held_by(filters: Sequence[Filter], size: int) -> _Held:
    values = wide = searches = 0
    for each in filters:
        values += each.values
        wide += each.is_wide
        searches += each.search is not None
    return _one_of(size, len(filters), values, wide, searches)


@lru_cache(maxsize=256)
def _one_of(size: int, filters: int, values: int, wide: int, searches: int) -> _Held:
    """One object for equal sums: each open subscription keeps one."""
    return _Held(size, filters, values, wide, searches)


class Session:
    """Challenge, logged-in keys, open subscriptions and rate limit of one client."""

    __slots__ = (
        "_addresses",
        "_bad_frames",
        "_called_at",
        "_calls",
        "_challenge",
        "_held",
        "_max_live_filters",
        "_max_subscriptions",
        "_open",
        "is_heavy",
        "viewer",
    )

    def __init__(
        self,
        challenge: str,
        addresses: frozenset[RelayAddress],
        *,
        max_subscriptions: int,
        max_live_filters: int,
        trusted: bool,
    ) -> None:
        self._challenge = challenge
        self._addresses = addresses
        self._max_subscriptions = max_subscriptions
        self._max_live_filters = max_live_filters
        self._bad_frames = 0
        self._calls = MAX_CALLS
        """Tokens in the bucket of kind 24133 at `_called_at`."""
        self._called_at = 0
        self.viewer = Viewer(trusted=trusted)
        self._open: list[_Open] = []
        """At most `max_subscriptions`. Not a dict: with one entry it would take 120 bytes more of
        each connection, and looking through 200 takes 4 us."""
        self._held = _NOTHING
        """Sums over all open subscriptions."""
        self.is_heavy = False
        """Whether closing the subscriptions takes milliseconds of the loop."""

    @property
    def open(self) -> Sequence[str]:
        """Ids of open subscriptions, in the order of their REQs."""
        return [each.sub for each in self._open]

    @property
    def number_open(self) -> int:
        return len(self._open)

    @property
    def open_weight(self) -> int:
        """What the open subscriptions cost all others: their bytes of memory, estimated, and as
        many bytes for each comparison with an event."""
        held = self._held
        return (
            held.bytes
            + _VALUE_WEIGHT * held.values
            + _FILTER_WEIGHT * held.filters
            + _WIDE_WEIGHT * held.wide
        )

    def greeting(self) -> bytes:
        """Sent on connect (N42-02)."""
        return messages.auth_challenge(self._challenge)

    def receive(self, message: ClientMessage, now: int, size: int) -> Sequence[Effect]:
        """`size`: bytes of the frame. `now`: Unix seconds."""
        if isinstance(message, Publish):  # first: most are
            self._bad_frames = 0
            return self._publish(message, now)
        if isinstance(message, BadFrame):
            return self._bad(message.refused)
        if isinstance(message, KeepAlive):
            return ()
        self._bad_frames = 0
        match message:
            case Subscribe():
                return self._subscribe(message, size)
            case Close(sub):
                return (message,) if self._remove(sub) else ()
            case Login(event):
                return self._login(event, now)
            case Count() | NegOpen() | NegMessage() | NegClose():
                return (message,)
            case BadNeg(sub, refused):
                # NEG-ERR ends the id for the client, so it must end here too (N77-04).
                return (NegClose(sub), Reply(messages.neg_error(sub, refused)))
            case BadEvent(event_id, refused):
                return (Reply(messages.ok(event_id, refused)),)
            case BadCount(sub, refused):
                return (Reply(messages.closed(sub, refused)),)
            case BadQuery(sub, refused):
                return self._refuse_query(sub, refused)
            case _:
                assert_never(message)

    def _bad(self, refused: Refused) -> Sequence[Effect]:
        self._bad_frames += 1
        reply = Reply(messages.notice(refused))
        if self._bad_frames >= MAX_BAD_FRAMES:
            return reply, Hangup(POLICY_VIOLATION, "too many invalid messages")
        return (reply,)

    def _publish(self, message: Publish, now: int) -> Sequence[Effect]:
        event = message.event
        if event.kind == kinds.NOSTR_CONNECT:
            since = max(0, now - self._called_at)
            self._calls = min(MAX_CALLS, self._calls + since * CALLS_PER_S)
            self._called_at = now
            if self._calls == 0:
                return (Reply(messages.ok(event.id, _TOO_MANY_CALLS)),)
            self._calls -= 1
        return (message,)

    def _subscribe(self, message: Subscribe, size: int) -> Sequence[Effect]:
        sub = message.sub
        # The old subscription ends even when the new one is refused (N01-54).
        replaced = (Close(sub),) if self._remove(sub) else ()
        adds = _held_by(message.filters, max(size, text_bytes(message.filters)))
        held = self._held.plus(adds) if self._open else adds
        text = self._exceeded_by(held)
        if text is None:
            self._open.append(_Open(sub, adds))
            self._held = held
            self.is_heavy = held.values > _HEAVY_VALUES
            return *replaced, message
        refused = Refused(Prefix.RATE_LIMITED, text)
        return *replaced, Reply(messages.closed(sub, refused))

    def _exceeded_by(self, held: _Held) -> str | None:
        """The limit that one more subscription would exceed; None: no limit. `held`: the sums with
        it."""
        if len(self._open) >= self._max_subscriptions:
            return f"at most {self._max_subscriptions} open subscriptions"
        if held.bytes > MAX_OPEN_BYTES:
            over = f"{MAX_OPEN_BYTES} bytes of filters"
        elif held.filters > self._max_live_filters:
            over = f"{self._max_live_filters} filters"
        elif held.values > MAX_OPEN_VALUES:
            over = f"{MAX_OPEN_VALUES} values"
        elif held.wide > MAX_WIDE:
            over = f"{MAX_WIDE} filters without ids, authors and tags"
        elif held.searches > MAX_SEARCHES:
            over = f"{MAX_SEARCHES} searches"
        else:
            return None
        return f"at most {over} in open subscriptions"

    def _remove(self, sub: str) -> bool:
        """True: it was open."""
        for index, each in enumerate(self._open):
            if each.sub == sub:
                del self._open[index]
                self._held = self._held.plus(each.held, -1) if self._open else _NOTHING
                self.is_heavy = self._held.values > _HEAVY_VALUES
                return True
        return False

    def _refuse_query(self, sub: str, refused: Refused) -> Sequence[Effect]:
        reply = Reply(messages.closed(sub, refused))
        # CLOSED ends the id for the client, so it must end here too (N01-93).
        return (Close(sub), reply) if self._remove(sub) else (reply,)

    def closed_by_relay(self, sub: str) -> None:
        """The relay sent CLOSED for this subscription."""
        self._remove(sub)

    def trust(self, *, trusted: bool) -> None:
        """Whether the policies in force list the client's address in `trusted_readers`."""
        self.viewer = replace(self.viewer, trusted=trusted)

    def _login(self, event: Event, now: int) -> Sequence[Effect]:
        try:
            check_login(event, self._challenge, self._addresses, now)
        except Invalid as refused:
            return (Reply(messages.ok(event.id, refused)),)
        if len(self.viewer.keys) >= MAX_KEYS and event.pubkey not in self.viewer.keys:
            full = Refused(Prefix.RATE_LIMITED, f"at most {MAX_KEYS} keys on one connection")
            return (Reply(messages.ok(event.id, full)),)
        return (VerifyLogin(event),)

    def logged_in(self, event: Event, attestation: Attestation | None = None) -> Reply:
        """The signature is valid: add the key. Its attestation replaces an earlier one."""
        attested = self.viewer.attested
        if attestation is not None:
            attested = frozenset(each for each in attested if each.agent != event.pubkey)
            attested |= {attestation}
        keys = self.viewer.keys | {event.pubkey}
        self.viewer = replace(self.viewer, keys=keys, attested=attested)
        return Reply(messages.ok(event.id, None))

    def end_attestations(self, now: int) -> int | None:
        """Drop attestations that have ended; returns when the next one ends, in Unix seconds."""
        held = frozenset(
            each for each in self.viewer.attested if each.until is None or now < each.until
        )
        if held != self.viewer.attested:
            self.viewer = replace(self.viewer, attested=held)
        return min((each.until for each in held if each.until is not None), default=None)

    def login_refused(self, event: Event, refused: Refused) -> Reply:
        return Reply(messages.ok(event.id, refused))
