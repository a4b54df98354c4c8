"""From a committed row to the outboxes of those who ask for it and may read it, at this moment."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from relay.memory.search_text import search_text
from relay.nostr import messages
from relay.nostr.nip50 import searchable
from relay.outbox import framed
from relay.subscriptions import Subscriptions

if TYPE_CHECKING:
    from collections.abc import Sequence

    from relay.nostr.event import Event
    from relay.nostr.filters import Filter
    from relay.nostr.nip50 import Search, Searchable
    from relay.outbox import Outbox
    from relay.projections import Realm
    from relay.retention import Stored
    from relay.visibility import Viewer


class Reader(Protocol):
    """Who reads on a connection; the keys may change while a subscription is open (N42-13)."""

    @property
    def viewer(self) -> Viewer: ...


class Words(Protocol):
    """Reads a text as the index of texts does."""

    def contains(self, text: Searchable, search: Search) -> bool: ...


class Subscription:
    """One open REQ of one connection.

    Catching up until `caught_up`: live rows wait in it, at most `max_waiting`. Rows up to `cursor`
    belong to the stored answer, later ones to the live one: nothing is missed, nothing comes twice.
    """

    __slots__ = ("cursor", "filters", "head", "last", "max_waiting", "missed", "outbox", "reader",
                 "sub", "waiting")  # fmt: skip

    def __init__(
        self, sub: str, filters: tuple[Filter, ...], reader: Reader, outbox: Outbox, cursor: int,
        *, max_waiting: int,
    ) -> None:  # fmt: skip
        self.sub = sub
        self.filters = filters
        self.reader = reader
        self.outbox = outbox
        self.cursor = cursor
        self.head = messages.event_head(sub)
        self.max_waiting = max_waiting
        self.waiting: list[tuple[Stored, Filter]] | None = []
        self.missed = False
        """More came than may wait: the subscription must be CLOSED, not go on with a gap."""
        self.last: Stored | None = None

    def hold(self, row: Stored, filter_: Filter) -> None:
        if self.waiting is not None and len(self.waiting) < self.max_waiting:
            self.waiting.append((row, filter_))
        else:
            self.missed = True


class Fanout:
    """All open subscriptions of this process."""

    def __init__(self, realm: Realm, words: Words | None = None) -> None:
        """`words`: None where search is not offered."""
        self._realm = realm
        self._words = words
        self._live: Subscriptions[Subscription] = Subscriptions()

    def __len__(self) -> int:
        return len(self._live)

    def open(self, subscription: Subscription) -> None:
        self._live.add(subscription, subscription.filters)

    def close(self, subscription: Subscription) -> None:
        self._live.remove(subscription)

    def caught_up(self, subscription: Subscription) -> None:
        """Release what came while the stored rows were sent; from now on rows go straight out."""
        waiting, subscription.waiting = subscription.waiting, None
        for row, filter_ in waiting or ():
            # Asked again: a member may have been removed while the row waited (N29-94).
            if self._may_read(subscription, row, filter_):
                self._send(subscription, row)

    def _may_read(self, subscription: Subscription, row: Stored, filter_: Filter) -> bool:
        realm = self._realm
        viewer = subscription.reader.viewer
        return realm.is_public(row) or realm.visibility(viewer).may_read(row, filter_)

    def _send(self, subscription: Subscription, row: Stored) -> None:
        subscription.outbox.put(messages.event_frame(subscription.head, row.event.raw))

    def _contains(self, text: Searchable | None, search: Search) -> bool:
        return (
            self._words is not None and text is not None and self._words.contains(text, search)
        )

    def _text_of(self, event: Event) -> Searchable | None:
        """What searches may find of it."""
        text = search_text(event) if event.kind in self._realm.policy.searched else None
        return None if text is None else searchable(text)

    def deliver(self, rows: Sequence[Stored]) -> int:
        """Rows of one commit, in order of seq (0: ephemeral). How many frames went to outboxes."""
        if not len(self._live):
            return 0
        realm = self._realm
        candidates = self._live.candidates
        delivered = 0
        for row in rows:
            event, seq, raw = row.event, row.seq, row.event.raw
            public = realm.is_public(row)
            frames: dict[bytes, bytes] = {}
            text: Searchable | None = None
            was_read = False
            for entry in candidates(event):
                subscription = entry.subscription
                if subscription.last is row or 0 < seq <= subscription.cursor:
                    continue
                if not entry.sure and not entry.filter.matches(event):
                    continue
                if not public and not realm.visibility(subscription.reader.viewer).may_read(
                    row, entry.filter
                ):
                    continue
                if entry.search is not None:
                    if not was_read:
                        text, was_read = self._text_of(event), True
                    if not self._contains(text, entry.search):
                        continue
                subscription.last = row
                if subscription.waiting is not None:
                    subscription.hold(row, entry.filter)
                    continue
                head = subscription.head
                frame = frames.get(head)
                if frame is None:
                    frame = frames[head] = framed(messages.event_frame(head, raw))
                subscription.outbox.put_frame(frame)
                delivered += 1
        return delivered
