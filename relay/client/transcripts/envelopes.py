"""Envelopes (kind 1080): a device's events inside events of its derived key (D-29)."""

from __future__ import annotations

import asyncio
import secrets
from typing import TYPE_CHECKING, Final

from relay.errors import Invalid
from relay.memory.bounded import BoundedDict
from relay.nostr import kinds, pns
from relay.nostr.filters import Filter

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from relay.nostr.event import Event
    from relay.nostr.pns import Channel

MAX_INNER: Final = 65_535
"""Bytes of an event inside: the most that other NIP-44 implementations accept (D-30)."""
_NONCE_BYTES: Final = 32
_MOST_OPEN: Final = 5_000
"""Opened events kept: a session, or a day of a followed one."""


class Envelopes:
    """The envelopes of one channel, each opened once."""

    def __init__(self, channel: Channel) -> None:
        self._channel = channel
        self._inside: BoundedDict[str, Event | None] = BoundedDict(_MOST_OPEN)
        """Envelope id → the event inside; None: it cannot be opened."""

    @property
    def wanted(self) -> Filter:
        """All of them. A relay returns them only for filters with exactly this author (D-32)."""
        return Filter(kinds=frozenset({kinds.ENVELOPE}), authors=frozenset({self._channel.pubkey}))

    def sealed(self, inner: Event, now: int) -> Event:
        """An envelope with a random nonce."""
        return pns.wrap(self._channel, inner, now, secrets.token_bytes(_NONCE_BYTES))

    async def opened(self, envelopes: Sequence[Event]) -> list[Event]:
        """The events inside, unique, newest first; unreadable envelopes are skipped."""
        ids = {envelope.id for envelope in envelopes}
        inside = {id_: event for id_, event in self._inside.items() if id_ in ids}
        new = [envelope for envelope in envelopes if envelope.id not in inside]
        if new:
            inside |= await asyncio.to_thread(self._opened, new)
        for id_ in (envelope.id for envelope in new[:_MOST_OPEN]):
            self._inside[id_] = inside[id_]
        unique = {event.id: event for event in inside.values() if event is not None}
        return sorted(unique.values(), key=lambda event: (-event.created_at, event.id))

    def _opened(self, envelopes: Iterable[Event]) -> dict[str, Event | None]:
        return {envelope.id: self._inner(envelope) for envelope in envelopes}

    def _inner(self, envelope: Event) -> Event | None:
        try:
            return pns.unwrap(self._channel, envelope)
        except Invalid:
            return None


def room_inside(message_bytes: int) -> int:
    """Largest event whose envelope fits into a message of so many bytes.

    NIP-44 pads by up to an eighth; base64 turns three bytes into four.
    """
    return max((message_bytes - 600) * 3 // 4 * 8 // 9 - 100, 0)
