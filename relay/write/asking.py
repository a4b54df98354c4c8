"""Asking: plug-ins are asked about events whose signature is valid, several at once."""

from __future__ import annotations

import logging
from itertools import pairwise, takewhile
from time import perf_counter
from typing import TYPE_CHECKING, Final, Protocol

from relay.errors import Prefix, Reject
from relay.facts import Arrival
from relay.write.commands import client_or_type, share_of
from relay.write.lane import Lane

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from relay.facts import Origin
    from relay.nostr.event import Event
    from relay.observe import Metrics
    from relay.write.commands import WriteEvent

_log = logging.getLogger(__name__)

_MAX_BATCH: Final = 256
"""Events per request to the plug-ins."""
_BATCH_S: Final = 0.05
"""Plug-ins are asked about as many events as they answer in so long: the next events wait."""
_NO_LONGER: Final = 1.5
"""… or about more, if twice as many take no more than so many times as long."""
_FORGET_S: Final = 1.0
"""After so many seconds of answers, a time that was long counts half."""

PLUGIN_FAILED: Final = Reject(
    Prefix.ERROR, "a plug-in of this relay failed, try again later", "plug-ins"
)


class Plugins(Protocol):
    """Programs of the admin that may refuse events."""

    def asks_about(self, event: Event, origin: Origin) -> bool: ...

    async def objections(self, events: Sequence[tuple[Event, Arrival]]) -> Sequence[Reject | None]:
        """One for each event, within the deadline: `error:` for a plug-in that failed."""

    async def stop(self) -> None:
        """All pending and later requests get `error:`."""


class BatchSize:
    """How many events are asked about at once.

    A plug-in may answer one after the other, or many in the time of one, as one does that asks a
    service. Which one it is, only larger batches tell. So a full one that was fast enough is
    followed by one of twice as many, until that takes too long. How long a number takes at worst is
    remembered for as many answers, however many fast ones there are among them.
    """

    def __init__(self) -> None:
        self.number = 1
        self._times = [0.0] * _MAX_BATCH.bit_length()
        """The longest of 1 event, of 2 or 3, of 4 to 7 …; it fades."""

    def took(self, number: int, seconds: float) -> None:
        """Note how long the answers about so many events took."""
        times, own = self._times, number.bit_length() - 1
        fading = 0.5 ** (seconds / _FORGET_S)
        times[own:] = [time * fading for time in times[own:]]
        times[own] = max(times[own], seconds)
        fast = [
            time <= max(_BATCH_S, _NO_LONGER * of_half)
            for of_half, time in pairwise((times[0], *times))
        ]
        most = _MAX_BATCH if fast[own] else max(1, int(number * _BATCH_S / times[own]))
        fast_upto = sum(1 for _ in takewhile(bool, fast)) - 1
        grown = 2 * number if number >= self.number else self.number
        self.number = min(most, 1 << fast_upto, grown)


class Asking:
    """Asks in the order of its lane, where clients take turns."""

    def __init__(
        self,
        plugins: Plugins | None,
        asked: Callable[[WriteEvent], None],
        *,
        max_waiting: int,
        clock: Callable[[], int],
        metrics: Metrics,
    ) -> None:
        """`asked` is called for each event, once its `objection` is known."""
        self._plugins = plugins
        self._asked = asked
        self._clock = clock
        self._metrics = metrics
        self._size = BatchSize()
        self.lane: Lane[WriteEvent] = Lane(
            self._ask,
            max_batch=self._size.number,
            max_waiting=max_waiting,
            turn_of=client_or_type,
            share_of=share_of,
            waited=metrics.write.plugin_queue.add,
        )

    def is_due(self, item: WriteEvent) -> bool:
        """Whether plug-ins are to be asked about it, or about others of its series: it may not
        overtake them."""
        plugins = self._plugins
        return plugins is not None and (
            item.series is not None or plugins.asks_about(item.event, item.origin)
        )

    async def _ask(self, batch: Sequence[WriteEvent]) -> None:
        """A plug-in's refusal goes on with the event: policy rules come before it."""
        plugins = self._plugins
        assert plugins is not None
        about = [item for item in batch if plugins.asks_about(item.event, item.origin)]
        if about:
            await self._ask_about(about, plugins)
        for item in batch:
            self._asked(item)

    async def _ask_about(self, batch: Sequence[WriteEvent], plugins: Plugins) -> None:
        now, began = self._clock(), perf_counter()
        questions = [
            (each.event, Arrival(now, each.origin, each.author.authenticated, each.author.address))
            for each in batch
        ]
        try:
            objections = await plugins.objections(questions)
        except Exception:  # outermost frame: the lane must go on  # noqa: BLE001
            _log.exception("plug-ins failed for %d events", len(batch))
            objections = [PLUGIN_FAILED] * len(batch)
        took = perf_counter() - began
        self._size.took(len(batch), took)
        self.lane.max_batch = self._size.number
        self._metrics.write.plugins.add(took)
        self._metrics.plugin_batches.add(len(batch))
        for item, objection in zip(batch, objections, strict=True):
            item.objection = objection

    async def stop(self) -> None:
        """Stop the plug-ins: events that wait for an answer get `error:`."""
        if self._plugins is not None:
            await self._plugins.stop()
