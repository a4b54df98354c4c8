"""From a committed row to the outboxes of those who ask for it and may read it, at this moment."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from relay.memory.search_text import search_text
from relay.nostr import messages
from relay.nostr.nip50 import searchable
from relay.read.linked_rows import NOTHING
from relay.read.outbox import framed
from relay.read.subscriptions import Subscriptions

if TYPE_CHECKING:
    from collections.abc import Sequence

    from relay.access.visibility import Viewer
    from relay.lifecycle.rows import Stored
    from relay.nostr.event import Event
    from relay.nostr.filters import Filter
    from relay.nostr.nip50 import Search, Searchable
    from relay.read.linked_rows import Pointed, Targets
    from relay.read.outbox import Outbox
    from relay.state import RelayState


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

    __slots__ = (
        "cursor",
        "filters",
        "head",
        "last",
        "max_waiting",
        "missed",
        "outbox",
        "reader",
        "sub",
        "waiting",
    )

    def __init__(
        self,
        sub: str,
        filters: tuple[Filter, ...],
        reader: Reader,
        outbox: Outbox,
        cursor: int,
        *,
        max_waiting: int,
    ) -> None:
        self.sub = sub
        self.filters = filters
        self.reader = reader
        self.outbox = outbox
        self.cursor = cursor
        self.head = messages.event_head(sub)
        self.max_waiting = max_waiting
        self.waiting: list[tuple[Stored, Filter, Pointed]] | None = []
        self.missed = False
        """More came than may wait: the subscription must be CLOSED, not go on with a gap."""
        self.last: Stored | None = None

    def hold(self, row: Stored, filter_: Filter, pointed: Pointed) -> None:
        if self.waiting is not None and len(self.waiting) < self.max_waiting:
            self.waiting.append((row, filter_, pointed))
        else:
            self.missed = True


class Fanout:
    """All open subscriptions of this process."""

    def __init__(
        self, state: RelayState, words: Words | None = None, targets: Targets | None = None
    ) -> None:
        """`words`: None where search is not offered. `targets`: None where no row is followed."""
        self._state = state
        self._words = words
        self._targets = targets
        self._live: Subscriptions[Subscription] = Subscriptions()

    def __len__(self) -> int:
        return len(self._live)

    def open(self, subscription: Subscription) -> None:
        self._live.add(subscription, subscription.filters)

    def close(self, subscription: Subscription) -> None:
        self._live.remove(subscription)

    async def look_again(self, subscription: Subscription) -> None:
        """Before `caught_up`: what waiting rows point to may have gone. May raise StoreFault."""
        waiting, viewer = subscription.waiting, subscription.reader.viewer
        pointing = [(row, {viewer}) for row, _, _ in waiting or () if self._state.points_to(row)]
        if waiting is None or not pointing or self._targets is None:
            return
        looked_at = len(waiting)
        again = await self._targets.pointed(pointing)
        # What came meanwhile was looked up when it came.
        waiting[:looked_at] = [(row, filter_, again) for row, filter_, _ in waiting[:looked_at]]

    def caught_up(self, subscription: Subscription) -> None:
        """Release what came while the stored rows were sent; from now on rows go straight out."""
        waiting, subscription.waiting = subscription.waiting, None
        for row, filter_, pointed in waiting or ():
            # Asked again: a member may have been removed while the row waited (N29-94).
            if self._state.is_public(row) or self._may_read(subscription, row, filter_, pointed):
                self._send(subscription, row)

    def _may_read(
        self, subscription: Subscription, row: Stored, filter_: Filter, pointed: Pointed
    ) -> bool:
        visibility = self._state.visibility(subscription.reader.viewer)
        return visibility.may_read(row, filter_, pointed.readable(row, visibility))

    def _send(self, subscription: Subscription, row: Stored) -> None:
        subscription.outbox.put(messages.event_frame(subscription.head, row.event.raw))

    def _contains(self, text: Searchable | None, search: Search) -> bool:
        return self._words is not None and text is not None and self._words.contains(text, search)

    def _text_of(self, event: Event) -> Searchable | None:
        """What searches may find of it."""
        text = search_text(event) if event.kind in self._state.policy.searched else None
        return None if text is None else searchable(text)

    async def pointed(self, rows: Sequence[Stored]) -> Pointed:
        """What rows point to that somebody asks for who could not read them otherwise.

        For `deliver`. May raise StoreFault.
        """
        if self._targets is None or not len(self._live):
            return NOTHING
        points_to = self._state.points_to
        wanted = [(row, who) for row in rows if points_to(row) and (who := self._in_need(row))]
        return await self._targets.pointed(wanted) if wanted else NOTHING

    def _in_need(self, row: Stored) -> set[Viewer]:
        """Who gets the row only if they may read one of its targets."""
        state = self._state
        targets = frozenset([target for target, _ in state.points_to(row)])
        found = set()
        for entry in self._live.candidates(row.event):
            viewer = entry.subscription.reader.viewer
            if viewer not in found and (entry.sure or entry.filter.matches(row.event)):
                visibility = state.visibility(viewer)
                if visibility.may_read(row, entry.filter, targets) and not visibility.may_read(
                    row, entry.filter
                ):
                    found.add(viewer)
        return found

    def deliver(self, rows: Sequence[Stored], pointed: Pointed = NOTHING) -> int:
        """Rows of one commit, in order of seq (0: ephemeral). How many frames went to outboxes.

        `pointed`: what was found of their targets.
        """
        if not len(self._live):
            return 0
        state = self._state
        candidates = self._live.candidates
        delivered = 0
        for row in rows:
            event, seq, raw = row.event, row.seq, row.event.raw
            public = state.is_public(row)
            frames: dict[bytes, bytes] = {}
            text: Searchable | None = None
            was_read = False
            for entry in candidates(event):
                subscription = entry.subscription
                if subscription.last is row or 0 < seq <= subscription.cursor:
                    continue
                if not entry.sure and not entry.filter.matches(event):
                    continue
                if not public and not self._may_read(subscription, row, entry.filter, pointed):
                    continue
                if entry.search is not None:
                    if not was_read:
                        text, was_read = self._text_of(event), True
                    if not self._contains(text, entry.search):
                        continue
                subscription.last = row
                if subscription.waiting is not None:
                    subscription.hold(row, entry.filter, pointed)
                    continue
                head = subscription.head
                frame = frames.get(head)
                if frame is None:
                    frame = frames[head] = framed(messages.event_frame(head, raw))
                subscription.outbox.put_frame(frame)
                delivered += 1
        return delivered
