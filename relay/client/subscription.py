"""Subscription: stored events, then live ones, across reconnects.

Order: the events stored when it started, newest first; then `is_live`, and events in order of
arrival; after a reconnect the missed events, oldest first. No event is lost or yielded twice
(`relay.client.resume`). The queue is bounded: live events that do not fit are dropped and queried
again when there is room. So a slow reader falls behind without missing anything, and the socket is
still read while it publishes. Of more stored or missed events than can be held the oldest are
dropped, counted and logged: others may write any number of them. After a reconnect missed events
are queried when at most half of what can be held waits for the reader.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from heapq import heappop, heappush
from typing import TYPE_CHECKING, Final

from relay.client.connection import Notifier
from relay.client.errors import (
    TEMPORARY,
    AnswerTooLong,
    ClientClosed,
    ClientError,
    ConnectionLost,
    QueryClosed,
    Unanswered,
)
from relay.client.responses import (
    MAX_ANSWER,
    MAX_ANSWER_BYTES,
    closed_by,
    event_in,
    signed_among,
)
from relay.client.resume import ResumeState
from relay.errors import Prefix
from relay.nostr.event import weight_of

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Generator, Sequence
    from typing import Self

    from relay.client.reconnect import Reconnector
    from relay.nostr.event import Event
    from relay.nostr.filters import Filter

_log: Final = logging.getLogger(__name__)
_VERIFY_BATCH: Final = 256
_DEADLINES: Final = 20
"""Deadlines for all stored events."""


class _Stored:
    """Queue marker: all stored events come before it."""


class Eose:
    """`await subscription.eose`: wait for EOSE.

    Raises QueryClosed, ClientClosed, or Unanswered after the default deadline.
    """

    def __init__(self, wait: Callable[[], Awaitable[None]]) -> None:
        self._wait = wait

    def __await__(self) -> Generator[object, None, None]:
        return self._wait().__await__()


class Subscription:
    """`async with relay.subscribe(…) as events: async for event in events: …`

    For one reader. Iteration raises QueryClosed when the relay ends it permanently, ClientClosed
    after its or the client's `async with`; AnswerTooLong only without `keeps_newest`.
    """

    def __init__(
        self,
        dialer: Reconnector,
        filters: Sequence[Filter],
        queue: int,
        most_bytes: int,
        on_resumed: Callable[[], None],
        *,
        keeps_newest: bool,
    ) -> None:
        """`queue`: most live events waiting for the reader. `most_bytes`: what waiting events may
        take in memory, as `weight_of` estimates it; live ones a quarter of it. `on_resumed`: called
        at each EOSE but the first. `keeps_newest`: of more stored or missed events than can be
        held, the oldest are dropped; else it ends with AnswerTooLong."""
        self.is_live = False
        """All stored events have been read."""
        self.dropped = 0
        """Stored or missed events that were dropped: see `keeps_newest`."""
        self._logged = 0
        """How many of these."""
        self._reconnector = dialer
        self._filters = tuple(filters)
        self._queue_size = queue
        self._queue_bytes = most_bytes // 4
        self._most_bytes = most_bytes
        self._on_resumed = on_resumed
        self._keeps_newest = keeps_newest
        self._changed = Notifier()
        self._resume = ResumeState(filters, dialer.now())
        self._unchecked: deque[Event | _Stored | ClientError] = deque()
        self._ready: deque[Event | _Stored | ClientError] = deque()
        self._missed: list[tuple[int, str, int, Event]] = []
        """Events received after a reconnect, until EOSE: a heap, by time, id and `_received`, as
        events are not ordered."""
        self._received = 0
        """Events that were queued so far."""
        self._pending = 0
        """Events between socket and reader, including those being verified."""
        self._pending_bytes = 0
        """Bytes of memory of these events, as `weight_of` estimates it."""
        self._overflowed = False
        """No further event is accepted; the missing ones are queried again when there is room."""
        self._awaited_by = 0
        """Tasks that wait in `until_read`."""
        self._request: _Request | None = None
        self._has_eose = False
        self._failure: ClientError | None = None
        self._task: asyncio.Task[None] | None = None

    async def __aenter__(self) -> Self:
        """Returns when the REQ is sent, so events that this client publishes afterwards are
        received."""
        self._task = asyncio.create_task(self._run())
        self._task.add_done_callback(self._on_task_end)
        try:
            await self._within_deadline(
                lambda: self._request is not None, "a connection to subscribe on"
            )
        except BaseException:
            await self._stop()
            raise
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._stop()

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Event:
        """The next event; waits without a deadline."""
        while True:
            await self._changed.wait_for(lambda: bool(self._ready))
            if (event := self._next()) is not None:
                return event

    @property
    def is_caught_up(self) -> bool:
        """Whether what was stored or missed has been received, over the current connection."""
        is_running = self._request is not None and not self._request.is_done
        return is_running and self._resume.is_caught_up and not self._overflowed

    async def until_read(self) -> None:
        """Wait until the reader has taken what has been received so far; for other tasks."""
        received = self._received
        self._awaited_by += 1
        try:
            await self._changed.wait_for(lambda: self._received - self._pending >= received)
        finally:
            self._awaited_by -= 1

    async def stored(self, most_bytes: int = MAX_ANSWER_BYTES) -> AsyncIterator[Event]:
        """Only the stored events; iterate the subscription itself for the live ones.

        `most_bytes`: what all of them may take in memory, for a caller that keeps them. Raises
        AnswerTooLong when they take more, Unanswered when no event arrives within the default
        deadline, or not all within 20 of them.
        """
        now = asyncio.get_running_loop().time
        longest_s = _DEADLINES * self._reconnector.timeouts.deadline_s
        ends_at, size = now() + longest_s, 0
        while not self.is_live:
            if now() >= ends_at:
                raise Unanswered(f"no end of the stored events within {longest_s:g} s")
            await self._within_deadline(lambda: bool(self._ready), "the stored events")
            if (event := self._next()) is not None:
                size += weight_of(event)
                if size > most_bytes:
                    raise AnswerTooLong(most_bytes, "bytes")
                yield event

    @property
    def has_more(self) -> bool:
        """Whether the next event has arrived."""
        return bool(self._ready) and not isinstance(self._ready[0], (_Stored, ClientError))

    @property
    def eose(self) -> Eose:
        """Awaitable: all stored events are in the queue, or have been read."""
        return Eose(lambda: self._within_deadline(lambda: self._has_eose, "EOSE"))

    def _next(self) -> Event | None:
        item = self._ready[0]
        if isinstance(item, ClientError):
            raise item  # not removed: further reads raise it again
        self._ready.popleft()
        if isinstance(item, _Stored):
            self.is_live = True
            return None
        self._release([item])
        return item

    async def _within_deadline(self, condition: Callable[[], bool], what: str) -> None:
        seconds = self._reconnector.timeouts.deadline_s
        try:
            async with asyncio.timeout(seconds):
                await self._changed.wait_for(lambda: condition() or self._failure is not None)
        except TimeoutError:
            raise Unanswered(f"no answer within {seconds:g} s: waited for {what}") from None
        if not condition() and self._failure is not None:
            raise self._failure

    async def _stop(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])
            # What was not read, and an error whose traceback leads here, would be kept until
            # garbage is collected.
            self._request = None
            self._unchecked.clear()
            self._missed.clear()
            self._failure = ClientClosed("the subscription has ended")
            self._ready = deque([self._failure])
            self._changed.notify_all()

    async def _run(self) -> None:
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._verify())
            self._failure = await self._run_requests()
            self._flush_missed()
            self._unchecked.append(self._failure)
            self._changed.notify_all()

    def _on_task_end(self, task: asyncio.Task[None]) -> None:
        error = None if task.cancelled() else task.exception()
        if error is not None or self._failure is None:
            what = f"has failed: {error!r}" if error is not None else "has ended"
            self._failure = ClientClosed(f"the subscription {what}")
            self._failure.__cause__ = error
            self._ready.append(self._failure)
        self._changed.notify_all()

    async def _run_requests(self) -> ClientError:
        """Send a REQ for each connection until a permanent failure; returns the failure."""
        filters, attempt, login_tried = self._filters, 0, False
        while True:
            await self._until_room()
            try:
                connection = await self._reconnector.wait_connected()
            except ClientError as closed_client:
                return closed_client
            rounds, request = connection.login_rounds, _Request(self)
            self._overflowed = False
            try:
                async with connection.request("REQ", filters, request):
                    self._request = request
                    self._changed.notify_all()
                    await self._until_done(request)
                if request.was_answered:
                    login_tried = False
                    # A relay with no place for it may answer each time, and each time end it.
                    if not _is_rate_limited(request.failure):
                        attempt = 0
                match request.failure:
                    case None:
                        pass  # the queue overflowed and has room again
                    case ConnectionLost() as lost:
                        raise lost
                    case QueryClosed(prefix=Prefix.AUTH_REQUIRED) as closed:
                        if login_tried or not await connection.login_after(rounds):
                            return QueryClosed(closed.prefix, closed.text, connection.login_refusal)
                        login_tried = True
                    case QueryClosed(prefix=prefix) if self._resume.is_live and prefix in TEMPORARY:
                        await asyncio.sleep(self._reconnector.backoff_s(attempt))
                        attempt += 1
                    case failure:
                        return failure
            except ConnectionLost:
                login_tried = False
                await connection.wait_lost()
            filters = self._resume.filters_from(self._reconnector.now())

    async def _until_room(self) -> None:
        """Wait until at most half of what can be held waits for the reader, else what comes now,
        also the newest, would be dropped for it. Events missed earlier do not count: they are
        dropped first."""
        most = MAX_ANSWER // 2 + len(self._missed)
        most_bytes = self._most_bytes // 2 + sum(weight_of(event) for *_, event in self._missed)
        self._overflowed = True
        await self._changed.wait_for(
            lambda: self._pending <= most and self._pending_bytes <= most_bytes
        )

    async def _until_done(self, request: _Request) -> None:
        """Wait until the request ended, or an overflowed queue has room again."""
        await self._changed.wait_for(
            lambda: (
                request.is_done
                or (
                    self._overflowed
                    and self._pending <= self._queue_size // 2
                    and self._pending_bytes <= self._queue_bytes // 2
                )
            )
        )

    async def _verify(self) -> None:
        """Verify signatures, in a thread if there are many; ends with the failure in the queue."""
        while not isinstance(await self._verify_batch(), ClientError):
            pass

    async def _verify_batch(self) -> _Stored | ClientError | None:
        """Returns what ended the batch. A method, so that while it waits for the next no event is
        kept."""
        await self._changed.wait_for(lambda: bool(self._unchecked))
        batch: list[Event] = []
        after: _Stored | ClientError | None = None
        while self._unchecked and len(batch) < _VERIFY_BATCH and after is None:
            item = self._unchecked.popleft()
            if isinstance(item, (_Stored, ClientError)):
                after = item
            else:
                batch.append(item)
        signed = await signed_among(batch)
        self._ready.extend(signed)
        kept = set(map(id, signed))
        self._release([event for event in batch if id(event) not in kept])
        if after is not None:
            self._ready.append(after)
        self._changed.notify_all()
        return after

    def _release(self, events: Sequence[Event]) -> None:
        self._pending -= len(events)
        self._pending_bytes -= sum(map(weight_of, events))
        if self._overflowed or self._awaited_by:
            self._changed.notify_all()

    def on_event(self, frame: list[object]) -> ClientError | None:
        """Queue the event of an EVENT frame; returns the failure if the subscription must end."""
        if self._overflowed or self._resume.has_seen(frame[2] if len(frame) > 2 else None):
            return None
        if self._resume.is_caught_up and (
            self._pending >= self._queue_size or self._pending_bytes >= self._queue_bytes
        ):
            self._overflowed = True
            return None
        too_long = self._too_long()
        if too_long is not None and not self._keeps_newest:
            return too_long
        event = event_in(frame, self._filters)
        if event is not None and self._resume.is_new(event):
            self._queue(event, is_full=too_long is not None)
        return None

    def _queue(self, event: Event, *, is_full: bool) -> None:
        is_missed = self._resume.is_live and not self._resume.is_caught_up
        if is_full and not is_missed:
            self.dropped += 1  # older than those that wait: stored events come newest first
            return
        self._received += 1
        self._pending += 1
        self._pending_bytes += weight_of(event)
        if is_missed:
            heappush(self._missed, (event.created_at, event.id, self._received, event))
            if is_full:
                self._drop_oldest_missed()
        else:
            self._unchecked.append(event)
            self._changed.notify_all()

    def _too_long(self, *without: Event) -> AnswerTooLong | None:
        """The failure if those that wait, without these, are all that can be held."""
        if self._pending - len(without) >= MAX_ANSWER:
            return AnswerTooLong(MAX_ANSWER)
        if self._pending_bytes - sum(map(weight_of, without)) >= self._most_bytes:
            return AnswerTooLong(self._most_bytes, "bytes")
        return None

    def _drop_oldest_missed(self) -> None:
        # Full is left full: what comes next is older, if the relay sends the newest first.
        while self._missed and self._too_long(self._missed[0][-1]) is not None:
            self._release([heappop(self._missed)[-1]])
            self.dropped += 1

    def on_eose(self) -> None:
        if self._resume.is_live:
            self._on_resumed()
        else:
            self._unchecked.append(_Stored())
        self._flush_missed()
        self._has_eose = True
        if self.dropped > self._logged and not self._resume.is_caught_up:
            _log.warning(
                "%d events were dropped: more were stored or missed than can be held",
                self.dropped - self._logged,
            )
            self._logged = self.dropped
        self._resume.catch_up()
        self._changed.notify_all()

    def _flush_missed(self) -> None:
        self._unchecked.extend(event for *_, event in sorted(self._missed))
        self._missed.clear()

    def wake(self) -> None:
        self._changed.notify_all()


def _is_rate_limited(failure: ClientError | None) -> bool:
    return isinstance(failure, QueryClosed) and failure.prefix == Prefix.RATE_LIMITED


class _Request:
    """One REQ of a subscription. A Sink."""

    def __init__(self, subscription: Subscription) -> None:
        self.is_done = False
        self.is_closed = False
        self.was_answered = False
        self.failure: ClientError | None = None
        self._subscription = subscription

    def receive(self, verb: str, frame: list[object]) -> None:
        if self.is_done:
            return
        if verb == "EVENT":
            if (failure := self._subscription.on_event(frame)) is not None:
                self._end(failure)
        elif verb == "EOSE":
            self.was_answered = True
            self._subscription.on_eose()
        elif verb == "CLOSED":
            self.is_closed = True
            self._end(closed_by(frame))

    def connection_lost(self) -> None:
        self._end(ConnectionLost("the connection ended"))

    def _end(self, failure: ClientError) -> None:
        if not self.is_done:
            self.is_done, self.failure = True, failure
        self._subscription.wake()
