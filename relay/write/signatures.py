"""Signatures of submitted events: many are checked at once, on threads; few on the loop."""

from __future__ import annotations

import asyncio
from time import perf_counter
from typing import TYPE_CHECKING, Final

from relay.nostr.keys import are_signed
from relay.write.commands import client_or_type, connection_or_type, share_of
from relay.write.costs import cost_of_check
from relay.write.lane import Lane

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from concurrent.futures import Executor

    from relay.nostr.event import Event
    from relay.observe import Metrics
    from relay.storage import Appender
    from relay.write.commands import WriteEvent

_MAX_BATCH: Final = 128
"""Cost of a batch of signature checks, 16 to 64 events per thread; 1: an event of few tags."""
_CHECKED_HERE: Final = 2
"""Up to so many events are checked on the loop: 25 us each, and a trip to a thread and back takes
twice as long."""
_TAGS_HERE: Final = 200
"""… if they have no more tags: the store prepares each, 5 us."""
_MIN_SPLIT: Final = 32
"""From so many events on, a batch is checked on two threads."""


class SignatureChecks:
    """Checks in the order of its lane, where clients take turns, and the connections of each."""

    def __init__(
        self,
        store: Appender,
        verified: Callable[[Sequence[WriteEvent], Sequence[bool]], None],
        *,
        max_waiting: int,
        threads: Executor,
        metrics: Metrics,
    ) -> None:
        """`verified` is called for each batch, with whether each signature is valid."""
        self._store = store
        self._verified = verified
        self._threads = threads
        self._metrics = metrics
        self.lane: Lane[WriteEvent] = Lane(
            self._check,
            max_batch=_MAX_BATCH,
            max_waiting=max_waiting,
            turn_of=client_or_type,
            line_of=connection_or_type,
            cost_of=cost_of_check,
            share_of=share_of,
            waited=metrics.write.verify_queue.add,
        )

    def may_pass(self, event: Event) -> bool:
        """Whether the event may be verified at once, before all that wait in the lane: a batch
        beside a busy loop takes up to 0.1 s, because each event waits for the GIL."""
        return len(self.lane) > _MAX_BATCH and len(event.tags) <= _TAGS_HERE

    def signed(self, events: Sequence[Event]) -> list[bool]:
        """Whether each signature is valid. On any thread; the store prepares there too."""
        good = are_signed(events)
        self._store.prepare([event for event, is_good in zip(events, good, strict=True) if is_good])
        return good

    async def _check(self, batch: Sequence[WriteEvent]) -> None:
        loop = asyncio.get_running_loop()
        began = perf_counter()
        events = [item.event for item in batch]
        if len(events) <= _CHECKED_HERE and sum([len(e.tags) for e in events]) <= _TAGS_HERE:
            good = self.signed(events)
        elif len(events) < _MIN_SPLIT:
            good = await loop.run_in_executor(self._threads, self.signed, events)
        else:
            middle = len(events) // 2
            halves = await asyncio.gather(
                loop.run_in_executor(self._threads, self.signed, events[:middle]),
                loop.run_in_executor(self._threads, self.signed, events[middle:]),
            )
            good = [*halves[0], *halves[1]]
        self._metrics.write.verify.add(perf_counter() - began)
        self._metrics.verify_batches.add(len(batch))
        self._verified(batch, good)
