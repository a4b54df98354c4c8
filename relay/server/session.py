"""Session: the pure state of one client. A message goes in, effects come out; it acts on nothing.

greeted ── AUTH ok ──▶ logged in (several keys, N42-07)
  REQ  → Ask        while fewer than `max_subscriptions` are open, else CLOSED rate-limited
  CLOSE → Drop      when it is open, else nothing
  NEG-* → Negotiate their ids and limits are those of `relay.read.negentropy`
  EVENT → Submit    whoever sends it; the policies decide (of sign-in calls only so many)
  bad frame → NOTICE; `MAX_BAD_FRAMES` in a row close the connection (1008)
"""

from __future__ import annotations

from dataclasses import dataclass
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

    from relay.nostr.event import Event
    from relay.nostr.filters import Filter
    from relay.nostr.messages import ClientMessage
    from relay.nostr.nip42 import RelayAddress

MAX_BAD_FRAMES: Final = 20
MAX_OPEN_BYTES: Final = 1 << 20
"""Of the frames of all open subscriptions together; an index of them takes some 20 times that."""
MAX_KEYS: Final = 64
"""Keys that may log in on one connection."""
MAX_CALLS: Final = 120
"""Sign-in calls (24133) that a connection may send at once: anybody may call a signer (N46-02)."""
CALLS_PER_S: Final = 2
POLICY_VIOLATION: Final = 1008

_TOO_MANY_CALLS: Final = Refused(
    Prefix.RATE_LIMITED, f"at most {MAX_CALLS} sign-in calls at once, then {CALLS_PER_S} a second"
)


@dataclass(frozen=True, slots=True)
class Reply:
    payload: bytes


@dataclass(frozen=True, slots=True)
class Submit:
    event: Event


@dataclass(frozen=True, slots=True)
class Ask:
    sub: str
    filters: tuple[Filter, ...]


@dataclass(frozen=True, slots=True)
class CountRows:
    sub: str
    filters: tuple[Filter, ...]


@dataclass(frozen=True, slots=True)
class Drop:
    sub: str


@dataclass(frozen=True, slots=True)
class Negotiate:
    message: NegOpen | NegMessage | NegClose


@dataclass(frozen=True, slots=True)
class VerifyLogin:
    """Whether the signature holds is not for a pure room: answer with `logged_in` or `refuse`."""

    event: Event


@dataclass(frozen=True, slots=True)
class Hangup:
    code: int
    reason: str


Effect = Reply | Submit | Ask | CountRows | Drop | Negotiate | VerifyLogin | Hangup


class Session:
    """One client: its challenge, its keys, its open subscriptions, its patience."""

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
        trusted: bool = False,
    ) -> None:
        self._challenge = challenge
        self._addresses = addresses
        self._max_subscriptions = max_subscriptions
        self._bad_frames = 0
        self._calls = MAX_CALLS
        """Sign-in calls that may be sent, as of `_called_at`."""
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

    def receive(self, message: ClientMessage, now: int, size: int = 0) -> Sequence[Effect]:
        """What is to be done about one message of `size` bytes. `now`: Unix seconds."""
        if isinstance(message, BadFrame):
            return self._bad(message.refused)
        self._bad_frames = 0
        match message:
            case Publish(event):
                return self._publish(event, now)
            case Subscribe(sub, filters):
                return self._subscribe(sub, filters, size)
            case Count(sub, filters):
                return (CountRows(sub, filters),)
            case Close(sub):
                return (Drop(sub),) if self._forget(sub) else ()
            case Login(event):
                return self._login(event, now)
            case NegOpen() | NegMessage() | NegClose():
                return (Negotiate(message),)
            case BadNeg(sub, refused):
                # NEG-ERR ends the id for the client: what was open under it must end too (N77-04).
                return (Negotiate(NegClose(sub)), Reply(messages.neg_error(sub, refused)))
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

    def _publish(self, event: Event, now: int) -> Sequence[Effect]:
        if event.kind == kinds.NOSTR_CONNECT:
            since = max(0, now - self._called_at)
            self._calls = min(MAX_CALLS, self._calls + since * CALLS_PER_S)
            self._called_at = now
            if self._calls == 0:
                return (Reply(messages.ok(event.id, _TOO_MANY_CALLS)),)
            self._calls -= 1
        return (Submit(event),)

    def _subscribe(self, sub: str, filters: tuple[Filter, ...], size: int) -> Sequence[Effect]:
        # Replaced at once, whatever becomes of the new one (N01-54).
        replaced = (Drop(sub),) if self._forget(sub) else ()
        if len(self._sizes) >= self._max_subscriptions:
            text = f"at most {self._max_subscriptions} open subscriptions"
        elif self._open_bytes + size > MAX_OPEN_BYTES:
            text = f"the filters of open subscriptions have at most {MAX_OPEN_BYTES} bytes"
        else:
            self._sizes[sub] = size
            self._open_bytes += size
            return *replaced, Ask(sub, filters)
        refused = Refused(Prefix.RATE_LIMITED, text)
        return *replaced, Reply(messages.closed(sub, refused))

    def _forget(self, sub: str) -> bool:
        """Whether it was open."""
        size = self._sizes.pop(sub, None)
        if size is None:
            return False
        self._open_bytes -= size
        return True

    def _refuse_query(self, sub: str, refused: Refused) -> Sequence[Effect]:
        reply = Reply(messages.closed(sub, refused))
        # CLOSED ends the id for the client: what was open under it must end here too (N01-93).
        return (Drop(sub), reply) if self._forget(sub) else (reply,)

    def closed_by_relay(self, sub: str) -> None:
        """The relay said CLOSED to this subscription."""
        self._forget(sub)

    def trust(self, *, trusted: bool) -> None:
        """Whether the connection's address is among the trusted readers, by the newest policies."""
        self.viewer = Viewer(self.viewer.keys, trusted)

    def _login(self, event: Event, now: int) -> Sequence[Effect]:
        try:
            check_login(event, self._challenge, self._addresses, now)
        except Invalid as refused:
            return (Reply(messages.ok(event.id, refused)),)
        if len(self.viewer.keys) >= MAX_KEYS and event.pubkey not in self.viewer.keys:
            full = Refused(Prefix.RATE_LIMITED, f"at most {MAX_KEYS} keys on one connection")
            return (Reply(messages.ok(event.id, full)),)
        return (VerifyLogin(event),)

    def logged_in(self, event: Event) -> Reply:
        """The signature holds: this key counts from now on, beside those before it."""
        self.viewer = Viewer(self.viewer.keys | {event.pubkey}, self.viewer.trusted)
        return Reply(messages.ok(event.id, None))

    def login_refused(self, event: Event, refused: Refused) -> Reply:
        return Reply(messages.ok(event.id, refused))
