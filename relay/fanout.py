"""From a committed row to the outboxes of those who ask for it and may read it, at this moment."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from relay.nostr import messages
from relay.outbox import framed
from relay.subscriptions import Subscriptions

if TYPE_CHECKING:
    from collections.abc import Sequence

    from relay.nostr.filters import Filter
    from relay.outbox import Outbox
    from relay.projections import Realm
    from relay.retention import Stored
    from relay.visibility import Viewer


class Reader(Protocol):
    """Who reads on a connection; the keys may change while a subscription is open (N42-13)."""

    @property
    def viewer(self) -> Viewer: ...


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

    def __init__(self, realm: Realm) -> None:
        self._realm = realm
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
