"""Subscription: events as they come, stored ones first, over as many connections as it takes.

Order: what was stored when it began, newest first; then `is_live`, and everything in the order of
its arrival; what was missed while there was no connection, oldest first. Nothing is lost and
nothing comes twice (`relay.client.bookmark` says how). The queue is bounded: live events that do
not fit are let go and asked for again when there is room, so that a slow reader is late and misses
nothing, and can publish meanwhile: the socket is read on.
"""

from __future__ import annotations

import asyncio
from collections import deque
from typing import TYPE_CHECKING, Final

from relay.client.answers import MAX_ANSWER, closed_by, event_in, signed_among
from relay.client.bookmark import Bookmark
from relay.client.errors import (
    AnswerTooLong,
    ClientClosed,
    ClientError,
    ConnectionLost,
    QueryClosed,
    Unanswered,
)
from relay.client.link import Bell
from relay.errors import Prefix

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Generator, Sequence
    from types import TracebackType
    from typing import Self

    from relay.client.dialer import Dialer
    from relay.nostr.event import Event
    from relay.nostr.filters import Filter

_CHECKED_AT_ONCE: Final = 256
_PASSING: Final = frozenset({Prefix.ERROR, Prefix.RATE_LIMITED})
"""A live subscription CLOSED with one of these is asked for again: the relay stops, or is busy."""


class _Stored:
    """Stands in the queue behind the last stored event."""


class Eose:
    """`await subscription.eose`: until the relay has sent what it had stored.

    Raises QueryClosed, ClientClosed, or Unanswered after the client's deadline.
    """

    def __init__(self, wait: Callable[[], Awaitable[None]]) -> None:
        self._wait = wait

    def __await__(self) -> Generator[object, None, None]:
        return self._wait().__await__()


class Subscription:
    """`async with relay.subscribe(…) as events: async for event in events: …`

    For one reader. Iterating raises QueryClosed when the relay ends it for good, AnswerTooLong when
    it has more stored than can be held, ClientClosed after its `async with` or the client's.
    """

    def __init__(self, dialer: Dialer, filters: Sequence[Filter], queue: int) -> None:
        """`queue`: live events that wait for the reader, at most."""
        self.is_live = False
        """The stored events have all been read."""
        self._dialer = dialer
        self._filters = tuple(filters)
        self._most = queue
        self._bell = Bell()
        self._bookmark = Bookmark(filters, dialer.now())
        self._unchecked: deque[Event | _Stored | ClientError] = deque()
        self._ready: deque[Event | _Stored | ClientError] = deque()
        self._missed: list[Event] = []
        """What the relay gives after a reconnect, newest first, until it has given all."""
        self._held = 0
        """Events between the socket and the reader, those being checked included."""
        self._is_behind = False
        self._was_asked = False
        self._has_eose = False
        self._failure: ClientError | None = None
        self._task: asyncio.Task[None] | None = None

    async def __aenter__(self) -> Self:
        """Returns when the REQ is sent: what this client publishes after it comes back to it."""
        self._task = asyncio.create_task(self._run())
        self._task.add_done_callback(self._ended)
        try:
            await self._within_deadline(lambda: self._was_asked, "a connection to subscribe on")
        except BaseException:
            await self._stop()
            raise
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self._stop()

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Event:
        """The next event; waits as long as it takes."""
        while True:
            await self._bell.until(lambda: bool(self._ready))
            if (event := self._next()) is not None:
                return event

    async def stored(self) -> AsyncIterator[Event]:
        """Only the stored events; go on with the subscription itself for the live ones.

        Raises Unanswered when nothing comes for the client's deadline before the end of them.
        """
        while not self.is_live:
            await self._within_deadline(lambda: bool(self._ready), "the stored events")
            if (event := self._next()) is not None:
                yield event

    @property
    def eose(self) -> Eose:
        """Awaitable: the stored events are all in the queue, or have been read."""
        return Eose(lambda: self._within_deadline(lambda: self._has_eose, "EOSE"))

    def _next(self) -> Event | None:
        item = self._ready[0]
        if isinstance(item, ClientError):
            raise item  # and stays: who asks again is told again
        self._ready.popleft()
        if isinstance(item, _Stored):
            self.is_live = True
            return None
        self._let_go(1)
        return item

    async def _within_deadline(self, condition: Callable[[], bool], what: str) -> None:
        seconds = self._dialer.pace.deadline_s
        try:
            async with asyncio.timeout(seconds):
                await self._bell.until(lambda: condition() or self._failure is not None)
        except TimeoutError:
            raise Unanswered(f"no answer within {seconds:g} s: waited for {what}") from None
        if not condition() and self._failure is not None:
            raise self._failure

    async def _stop(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])

    async def _run(self) -> None:
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._check())
            self._failure = await self._keep_asking()
            self._give_missed()
            self._unchecked.append(self._failure)
            self._bell.ring()

    def _ended(self, task: asyncio.Task[None]) -> None:
        error = None if task.cancelled() else task.exception()
        if error is not None or self._failure is None:
            what = f"has failed: {error!r}" if error is not None else "has ended"
            self._failure = ClientClosed(f"the subscription {what}")
            self._failure.__cause__ = error
            self._ready.append(self._failure)
        self._bell.ring()

    async def _keep_asking(self) -> ClientError:
        """One REQ after the other until there is no sense in another; why."""
        filters, attempt, login_tried = self._filters, 0, False
        while True:
            try:
                link = await self._dialer.link_up()
            except ClientError as closed_client:
                return closed_client
            rounds, call = link.login_rounds, _Call(self)
            self._is_behind = False
            try:
                async with link.asking("REQ", filters, call):
                    self._was_asked = True
                    self._bell.ring()
                    await self._until_over(call)
                if call.was_answered:
                    attempt, login_tried = 0, False
                match call.failure:
                    case None:
                        pass  # behind, and with room again
                    case ConnectionLost() as lost:
                        raise lost
                    case QueryClosed(prefix=Prefix.AUTH_REQUIRED) as closed:
                        if login_tried or not await link.login_after(rounds):
                            return QueryClosed(closed.prefix, closed.text, link.login_refusal)
                        login_tried = True
                    case QueryClosed(prefix=word) if self._bookmark.is_live and word in _PASSING:
                        await asyncio.sleep(self._dialer.wait_before(attempt))
                        attempt += 1
                    case failure:
                        return failure
            except ConnectionLost:
                login_tried = False
            filters = self._bookmark.filters_from(self._dialer.now())

    async def _until_over(self, call: _Call) -> None:
        """… or until what was let go can be asked for again."""
        await self._bell.until(
            lambda: call.is_done or (self._is_behind and self._held <= self._most // 2)
        )

    async def _check(self) -> None:
        """Signatures, in a thread when many wait; until the failure at the end of the queue."""
        while True:
            await self._bell.until(lambda: bool(self._unchecked))
            batch: list[Event] = []
            after: _Stored | ClientError | None = None
            while self._unchecked and len(batch) < _CHECKED_AT_ONCE and after is None:
                item = self._unchecked.popleft()
                if isinstance(item, (_Stored, ClientError)):
                    after = item
                else:
                    batch.append(item)
            signed = await signed_among(batch)
            self._ready.extend(signed)
            self._let_go(len(batch) - len(signed))
            if after is not None:
                self._ready.append(after)
            self._bell.ring()
            if isinstance(after, ClientError):
                return

    def _let_go(self, events: int) -> None:
        self._held -= events
        if self._is_behind:
            self._bell.ring()

    def take_event(self, frame: list[object]) -> ClientError | None:
        """What one REQ of this subscription brought; the reason to give up, if it is one."""
        if self._is_behind:
            return None
        if self._bookmark.is_caught_up and self._held >= self._most:
            self._is_behind = True
            return None
        if self._held >= MAX_ANSWER:
            return AnswerTooLong(MAX_ANSWER)
        event = event_in(frame, self._filters)
        if event is not None and self._bookmark.is_new(event):
            self._held += 1
            if self._bookmark.is_live and not self._bookmark.is_caught_up:
                self._missed.append(event)
            else:
                self._unchecked.append(event)
                self._bell.ring()
        return None

    def take_eose(self) -> None:
        if not self._bookmark.is_live:
            self._unchecked.append(_Stored())
        self._give_missed()
        self._has_eose = True
        self._bookmark.catch_up()
        self._bell.ring()

    def _give_missed(self) -> None:
        self._missed.sort(key=lambda event: (event.created_at, event.id))
        self._unchecked.extend(self._missed)
        self._missed.clear()

    def wake(self) -> None:
        self._bell.ring()


class _Call:
    """One REQ of a subscription. A Sink."""

    def __init__(self, subscription: Subscription) -> None:
        self.is_done = False
        self.is_over = False
        self.was_answered = False
        self.failure: ClientError | None = None
        self._subscription = subscription

    def take(self, verb: str, frame: list[object]) -> None:
        if self.is_done:
            return
        if verb == "EVENT":
            if (failure := self._subscription.take_event(frame)) is not None:
                self._end(failure)
        elif verb == "EOSE":
            self.was_answered = True
            self._subscription.take_eose()
        elif verb == "CLOSED":
            self.is_over = True
            self._end(closed_by(frame))

    def lose(self) -> None:
        self._end(ConnectionLost("the connection ended"))

    def _end(self, failure: ClientError) -> None:
        if not self.is_done:
            self.is_done, self.failure = True, failure
        self._subscription.wake()
