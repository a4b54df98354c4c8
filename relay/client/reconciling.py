"""What differs between a set of ours and what a relay finds, told by a few messages. NIP-77.

The relay is believed in nothing but what it says it has: the ids that we need are asked for
and checked like all others. It may not end (a relay that never agrees): rounds and ids are bounded.
"""

from __future__ import annotations

import asyncio
import binascii
from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from relay.client.answers import closed_by
from relay.client.errors import ClientError, ConnectionLost, Incomparable
from relay.client.link import Bell
from relay.errors import Invalid
from relay.nostr.nip77 import Initiator

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from relay.client.link import Link
    from relay.nostr.filters import Filter
    from relay.nostr.nip77 import Items

NEGENTROPY: Final = 77
"""What NIP-11 lists when a relay offers this."""
_FRAME_BYTES: Final = 60_000
"""Of our messages. In hex they are twice as long, and many relays take no frame over 128 KiB."""
_MAX_ROUNDS: Final = 20_000
_MAX_NEED: Final = 5_000_000
"""Ids; 0.5 GB."""


@dataclass(frozen=True, slots=True)
class Difference:
    """What came of a comparison. Ids are 32 bytes each."""

    have: frozenset[bytes]
    """Ours, and the relay lacks them."""
    need: frozenset[bytes]
    """The relay's, and we lack them."""
    rounds: int
    """Messages that were sent, those of a connection that was lost included."""
    sent_bytes: int
    """Of the messages as they are sent: in hex."""
    received_bytes: int


class NegotiationReplies:
    """What a relay says to one NEG-OPEN. A Sink."""

    def __init__(self) -> None:
        self.is_over = False
        self.was_answered = False
        """By a NEG-MSG."""
        self.notice: str | None = None
        """The last NOTICE. Who knows no NEG-OPEN answers with one, which names no subscription."""
        self._messages: deque[str] = deque()
        self._failure: ClientError | None = None
        self._bell = Bell()

    def take(self, verb: str, frame: list[object]) -> None:
        match verb, frame[2:]:
            case "NEG-MSG", [str(text), *_]:
                self.was_answered = True
                self._messages.append(text)
            case "NEG-ERR" | "CLOSED", _:
                self.is_over = True
                self._fail(closed_by(frame))
            case "NOTICE", _:
                self.notice = str(frame[1])
            case _:
                return
        self._bell.ring()

    def lose(self) -> None:
        self._fail(ConnectionLost("the connection ended before the answer"))

    async def noticed(self) -> bool:
        """Whether a NOTICE came before anything that is surely an answer; waits for either."""
        await self._bell.until(lambda: self._has_come() or self.notice is not None)
        return not self._has_come()

    async def next(self) -> str:
        """The next message, in hex. Raises QueryClosed, ConnectionLost."""
        await self._bell.until(self._has_come)
        if self._messages:
            return self._messages.popleft()
        assert self._failure is not None
        raise self._failure

    def _has_come(self) -> bool:
        return bool(self._messages) or self._failure is not None

    def _fail(self, failure: ClientError) -> None:
        self._failure = self._failure or failure
        self._bell.ring()


class Comparison:
    """One set and one filter, over as many connections as it takes."""

    def __init__(
        self,
        filter_: Filter,
        items: Items,
        *,
        noticed: Callable[[str], Awaitable[None]],
        answered: Callable[[], None],
    ) -> None:
        """`noticed` hears the NOTICE that came instead of an answer, and raises when that is what
        it was. `answered`: after each message of the relay."""
        self._filter = filter_
        self._items = items
        self._noticed = noticed
        self._answered = answered
        self._rounds = self._sent_bytes = self._received_bytes = 0

    async def over(self, link: Link) -> Difference:
        """From the beginning on this link. Raises Incomparable, QueryClosed, ConnectionLost."""
        initiator = Initiator(self._items, _FRAME_BYTES)
        replies = NegotiationReplies()
        message = self._outgoing(initiator.first())
        async with link.negotiating(self._filter, message, replies) as send:
            if await replies.noticed():
                await self._noticed(replies.notice or "")
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
        self._answered()
        try:
            # A million items are added up in a second; the socket is read on meanwhile.
            reply = await asyncio.to_thread(initiator.reply, binascii.unhexlify(text))
        except ValueError:
            raise Incomparable("the relay answered NEG-OPEN with what is not hex") from None
        except Invalid as invalid:
            raise Incomparable(invalid.text) from None
        if len(initiator.need) > _MAX_NEED:
            raise Incomparable(f"the relay has more than {_MAX_NEED:,} others; narrow the filter")
        return reply

    def _outgoing(self, message: bytes) -> str:
        self._rounds += 1
        if self._rounds > _MAX_ROUNDS:
            raise Incomparable(f"the relay does not agree after {_MAX_ROUNDS:,} messages")
        text = message.hex()
        self._sent_bytes += len(text)
        return text
