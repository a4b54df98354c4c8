"""Negentropy set reconciliation with a relay (NIP-77), initiator side.

The relay's claims are not trusted: ids we need are fetched and verified like any other event. A
relay might never finish, so rounds and ids are bounded.
"""

from __future__ import annotations

import asyncio
import binascii
from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from relay.client.connection import Notifier
from relay.client.errors import MAX_SAID, ClientError, ConnectionLost, Incomparable
from relay.client.responses import closed_by
from relay.errors import Invalid
from relay.nostr.nip77 import Initiator

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from relay.client.connection import Connection
    from relay.nostr.filters import Filter
    from relay.nostr.nip77 import Items

NEGENTROPY: Final = 77
"""Listed in NIP-11 `supported_nips` by a relay with negentropy."""
_FRAME_BYTES: Final = 60_000
"""Bytes of our messages. Hex doubles them, and many relays accept no frame over 128 KiB."""
_MAX_ROUNDS: Final = 20_000
MAX_NEED: Final = 5_000_000
"""Ids that the relay has and we need, about 0.5 GB."""


@dataclass(frozen=True, slots=True)
class Difference:
    """Result of a reconciliation. Ids are 32 bytes each."""

    have: frozenset[bytes]
    """Present here, missing at the relay."""
    need: frozenset[bytes]
    """Present at the relay, missing here."""
    rounds: int
    """Messages sent, including those on lost connections."""
    sent_bytes: int
    """Hex characters sent."""
    received_bytes: int


class NegentropyReplies:
    """The replies to one NEG-OPEN. A Sink."""

    def __init__(self) -> None:
        self.is_closed = False
        self.was_answered = False
        """A NEG-MSG was received."""
        self.notice: str | None = None
        """The last NOTICE. A relay without NIP-77 answers NEG-OPEN with one, which names no
        subscription."""
        self._messages: deque[str] = deque()
        self._failure: ClientError | None = None
        self._changed = Notifier()

    def receive(self, verb: str, frame: list[object]) -> None:
        match verb, frame[2:]:
            case "NEG-MSG", [str(text), *_]:
                self.was_answered = True
                if self._messages:
                    self._set_failure(Incomparable("the relay answers more than it was asked"))
                else:
                    self._messages.append(text)
            case "NEG-ERR" | "CLOSED", _:
                self.is_closed = True
                self._set_failure(closed_by(frame))
            case "NOTICE", _:
                self.notice = str(frame[1])[:MAX_SAID]
            case _:
                return
        self._changed.notify_all()

    def connection_lost(self) -> None:
        self._set_failure(ConnectionLost("the connection ended before the answer"))

    async def on_notice(self) -> bool:
        """Whether a NOTICE came before any definite reply; waits for either."""
        await self._changed.wait_for(lambda: self._has_reply() or self.notice is not None)
        return not self._has_reply()

    async def next(self) -> str:
        """The next message, in hex. Raises QueryClosed, ConnectionLost."""
        await self._changed.wait_for(self._has_reply)
        if self._messages:
            return self._messages.popleft()
        assert self._failure is not None
        try:
            raise self._failure
        finally:
            # Its traceback leads here: only a garbage collection would free the caller's sets.
            self._failure = None

    def _has_reply(self) -> bool:
        return bool(self._messages) or self._failure is not None

    def _set_failure(self, failure: ClientError) -> None:
        self._failure = self._failure or failure
        self._changed.notify_all()


class Reconciliation:
    """One set and one filter, across reconnects."""

    def __init__(
        self,
        filter_: Filter,
        items: Items,
        *,
        on_notice: Callable[[str], Awaitable[None]],
        on_message: Callable[[], None],
        most_needed: int,
    ) -> None:
        """`on_notice` is called with a NOTICE that came before any reply, and raises if the relay
        does not support NIP-77. `on_message` is called after each message of the relay."""
        self._filter = filter_
        self._items = items
        self._on_notice = on_notice
        self._on_message = on_message
        self._most_needed = most_needed
        self._rounds = self._sent_bytes = self._received_bytes = 0

    async def run(self, connection: Connection) -> Difference:
        """Run from the start on this connection. Raises Incomparable, QueryClosed and
        ConnectionLost."""
        initiator = Initiator(self._items, _FRAME_BYTES)
        replies = NegentropyReplies()
        message = self._outgoing(initiator.first())
        async with connection.negentropy(self._filter, message, replies) as send:
            if await replies.on_notice():
                await self._on_notice(replies.notice or "")
            while (reply := await self._reply(initiator, await replies.next())) is not None:
                await send(self._outgoing(reply))
        return Difference(
            frozenset(initiator.have),
            frozenset(initiator.need),
            self._rounds,
            self._sent_bytes,
            self._received_bytes,
        )

    async def _reply(self, initiator: Initiator, text: str) -> bytes | None:
        self._received_bytes += len(text)
        self._on_message()
        try:
            # A million items take a second; the socket is read meanwhile.
            reply = await asyncio.to_thread(initiator.reply, binascii.unhexlify(text))
        except ValueError:
            raise Incomparable("the relay's reply to NEG-OPEN is not hex") from None
        except Invalid as invalid:
            raise Incomparable(invalid.text) from None
        if len(initiator.need) > self._most_needed:
            raise Incomparable(
                f"more than {self._most_needed:,} events are missing here; use a narrower filter"
            )
        return reply

    def _outgoing(self, message: bytes) -> str:
        self._rounds += 1
        if self._rounds > _MAX_ROUNDS:
            raise Incomparable(f"the relay does not agree after {_MAX_ROUNDS:,} messages")
        text = message.hex()
        self._sent_bytes += len(text)
        return text
