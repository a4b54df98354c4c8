"""Session: the protocol state of one client. Pure: a message goes in, effects come out.

An effect is the message itself where the read or the write pipeline takes it from here:
  EVENT → Publish      from anyone, the policies decide; kind 24133 is rate-limited here
  REQ   → Subscribe    while fewer than `max_subscriptions` are open, else CLOSED rate-limited
  CLOSE → Close        when the subscription is open, else nothing
  COUNT → Count        NEG-* → NegOpen, NegMessage, NegClose
  AUTH  → VerifyLogin  when challenge, relay and time are right; several keys may log in (N42-07)
A bad frame gets a NOTICE; `MAX_BAD_FRAMES` without a Nostr message between them close the
connection (1008). PING and PONG get no answer and count for nothing.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final, assert_never

from relay.access.visibility import Viewer
from relay.errors import Invalid, Prefix, Refused
from relay.nostr import kinds, messages
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
    from collections.abc import Sequence, Set

    from relay.nostr.agents import Attestation
    from relay.nostr.event import Event
    from relay.nostr.messages import ClientMessage
    from relay.nostr.nip42 import RelayAddress

MAX_BAD_FRAMES: Final = 20
MAX_OPEN_BYTES: Final = 1 << 20
"""Of the REQ frames of all open subscriptions; their index takes about 20 times as much memory."""
MAX_KEYS: Final = 64
"""Per connection."""
MAX_CALLS: Final = 120
"""Burst of NIP-46 events (kind 24133) of one connection: anyone may send them (N46-02)."""
CALLS_PER_S: Final = 2
POLICY_VIOLATION: Final = 1008

_TOO_MANY_CALLS: Final = Refused(
    Prefix.RATE_LIMITED, f"at most {MAX_CALLS} NIP-46 events at once, then {CALLS_PER_S} per second"
)


@dataclass(frozen=True, slots=True)
class Reply:
    payload: bytes


@dataclass(frozen=True, slots=True)
class VerifyLogin:
    """Check the signature, then call `logged_in` or `login_refused`."""

    event: Event


@dataclass(frozen=True, slots=True)
class Hangup:
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


class Session:
    """Challenge, logged-in keys, open subscriptions and rate limit of one client."""

    __slots__ = (
        "_addresses",
        "_bad_frames",
        "_called_at",
        "_calls",
        "_challenge",
        "_max_subscriptions",
        "_open_bytes",
        "_sizes",
        "viewer",
    )

    def __init__(
        self,
        challenge: str,
        addresses: frozenset[RelayAddress],
        *,
        max_subscriptions: int,
        trusted: bool,
    ) -> None:
        self._challenge = challenge
        self._addresses = addresses
        self._max_subscriptions = max_subscriptions
        self._bad_frames = 0
        self._calls = MAX_CALLS
        """Left in the bucket of kind 24133 at `_called_at`."""
        self._called_at = 0
        self.viewer = Viewer(trusted=trusted)
        self._sizes: dict[str, int] = {}
        """Open subscriptions: id → bytes of the frame that opened it."""
        self._open_bytes = 0

    @property
    def open(self) -> Set[str]:
        """Ids of open subscriptions."""
        return self._sizes.keys()

    def greeting(self) -> bytes:
        """Sent on connect (N42-02)."""
        return messages.auth_challenge(self._challenge)

    def receive(self, message: ClientMessage, now: int, size: int) -> Sequence[Effect]:
        """`size`: bytes of the frame. `now`: Unix seconds."""
        if isinstance(message, BadFrame):
            return self._bad(message.refused)
        if isinstance(message, KeepAlive):
            return ()
        self._bad_frames = 0
        match message:
            case Publish():
                return self._publish(message, now)
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
        if len(self._sizes) >= self._max_subscriptions:
            text = f"at most {self._max_subscriptions} open subscriptions"
        elif self._open_bytes + size > MAX_OPEN_BYTES:
            text = f"at most {MAX_OPEN_BYTES} bytes of filters in open subscriptions"
        else:
            self._sizes[sub] = size
            self._open_bytes += size
            return *replaced, message
        refused = Refused(Prefix.RATE_LIMITED, text)
        return *replaced, Reply(messages.closed(sub, refused))

    def _remove(self, sub: str) -> bool:
        """True: it was open."""
        size = self._sizes.pop(sub, None)
        if size is None:
            return False
        self._open_bytes -= size
        return True

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
        """Drop those that ended; returns when the next one ends, in Unix seconds."""
        held = frozenset(
            each for each in self.viewer.attested if each.until is None or now < each.until
        )
        if held != self.viewer.attested:
            self.viewer = replace(self.viewer, attested=held)
        return min((each.until for each in held if each.until is not None), default=None)

    def login_refused(self, event: Event, refused: Refused) -> Reply:
        return Reply(messages.ok(event.id, refused))
