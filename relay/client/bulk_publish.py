"""Pipelined publishing for `Client.publish_many`: many events sent before the first OK.

Each event is sent on the current connection and its OK handled by a callback: no task and no timer
per event. An event whose OK did not settle it (connection lost, auth-required) is published again
by a task of its own, as `Client.publish` does. Events refused with `rate-limited:` are retried one
after the other at the relay's rate.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterable
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Final, TypeVar

from relay.client.errors import ConnectionLost, PublishRefused, Unanswered
from relay.errors import Prefix

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Iterable

    from relay.client.connection import Connection, Reply
    from relay.nostr.event import Event

    Item = TypeVar("Item")

_RETRY_AFTER: Final = re.compile(r"try again in (\d{1,4}) s")
_RETRY_S: Final = 2.0
"""Retry delay after `rate-limited:` if the relay names none."""


@dataclass(slots=True)
class Published:
    """Counts so far."""

    stored: int = 0
    duplicates: int = 0
    refused: list[PublishRefused] = field(default_factory=list)

    def count(self, reply: Reply) -> None:
        """Count an accepted event."""
        if reply.is_duplicate:
            self.duplicates += 1
        else:
            self.stored += 1


class BulkPublish:
    """One call of `publish_many`."""

    def __init__(
        self,
        connection: Callable[[], Connection | None],
        publish_one: Callable[[Event], Awaitable[Reply]],
        window: int,
        deadline_s: float,
        patience_s: float,
        on_wait: Callable[[int, int], None] | None = None,
    ) -> None:
        """`connection`: returns the current connection, if any. `publish_one`: publishes one event
        across reconnects. `window`: most events without an OK. `deadline_s`: for the OK of each
        event. `patience_s`: once no event was accepted for so long, rate-limited events count as
        refused. `on_wait`: called before each pause for `rate-limited:`, with the number of events
        accepted so far and of those sent and not accepted.
        """
        self.done = Published()
        self._connection = connection
        self._publish_one = publish_one
        self._window = window
        self._slots = asyncio.Semaphore(window)
        self._deadline_s = deadline_s
        self._patience_s = patience_s
        self._on_wait = on_wait
        self._begun = 0
        self._rate_lock = asyncio.Lock()
        """Held by the one rate-limited event that is being retried."""
        self._accepted_at = 0.0
        self._sent_at: dict[asyncio.Future[Reply | None], float] = {}
        """Send time of each awaited reply; oldest first."""
        self._tasks = asyncio.TaskGroup()
        self._is_closing = False

    async def publish(self, events: AsyncIterator[Event]) -> Published:
        """Publish in order; refusals do not stop it. Raises Unanswered, and what `publish_one`
        raises."""
        self._accepted_at = asyncio.get_running_loop().time()
        try:
            async with self._tasks:
                watch = self._tasks.create_task(self._watch())
                try:
                    async for event in events:
                        await self._slots.acquire()
                        self._begun += 1
                        await self._send(event)
                    for _ in range(self._window):
                        await self._slots.acquire()
                finally:
                    self._is_closing = True
                    watch.cancel()
        except ExceptionGroup as group:
            raise group.exceptions[0] from None
        return self.done

    async def _send(self, event: Event) -> None:
        connection = self._connection()
        if connection is None:
            self._retry_soon(event)
            return
        try:
            reply = await connection.begin(event.id, b'["EVENT",' + event.raw + b"]")
        except ConnectionLost:
            self._retry_soon(event)
            return
        self._sent_at[reply] = asyncio.get_running_loop().time()
        reply.add_done_callback(partial(self._on_reply, event))

    def _on_reply(self, event: Event, reply: asyncio.Future[Reply | None]) -> None:
        del self._sent_at[reply]
        answer = None if reply.cancelled() else reply.result()
        if answer is None or (not answer.accepted and answer.prefix == Prefix.AUTH_REQUIRED):
            self._retry_soon(event)
            return
        if answer.accepted:
            self._count(answer)
            self._slots.release()
        else:
            self._on_refusal(PublishRefused(answer.prefix, answer.text, event))

    def _on_refusal(self, refusal: PublishRefused) -> None:
        if refusal.prefix != Prefix.RATE_LIMITED:
            self.done.refused.append(refusal)
            self._slots.release()
        elif not self._is_closing:
            self._tasks.create_task(self._retry_at_rate(refusal))

    def _count(self, reply: Reply) -> None:
        self._accepted_at = asyncio.get_running_loop().time()
        self.done.count(reply)

    def _retry_soon(self, event: Event) -> None:
        if not self._is_closing:
            self._tasks.create_task(self._retry(event))

    async def _retry_at_rate(self, refusal: PublishRefused) -> None:
        """Retry until accepted, or until nothing was accepted for `patience_s`."""
        refused: PublishRefused | None = refusal
        async with self._rate_lock:
            while refused is not None and refused.prefix == Prefix.RATE_LIMITED:
                if asyncio.get_running_loop().time() >= self._accepted_at + self._patience_s:
                    break
                # First without a delay: another event may have waited long enough.
                refused = await self._retry_now(refused.event)
                if refused is not None and refused.prefix == Prefix.RATE_LIMITED:
                    delay = _RETRY_AFTER.search(refused.text)
                    pause = int(delay[1]) if delay else _RETRY_S
                    self._note_wait()
                    await asyncio.sleep(min(pause, self._patience_s))
        if refused is not None:
            self.done.refused.append(refused)
        self._slots.release()

    def _note_wait(self) -> None:
        if self._on_wait is not None:
            accepted = self.done.stored + self.done.duplicates
            self._on_wait(accepted, self._begun - accepted - len(self.done.refused))

    async def _retry(self, event: Event) -> None:
        refusal = await self._retry_now(event)
        if refusal is None:
            self._slots.release()
        else:
            self._on_refusal(refusal)

    async def _retry_now(self, event: Event) -> PublishRefused | None:
        """The refusal; None: accepted."""
        try:
            self._count(await self._publish_one(event))
        except PublishRefused as refusal:
            return refusal
        except BaseException:
            self._is_closing = True  # the task group accepts no more tasks
            raise
        return None

    async def _watch(self) -> None:
        """Raises Unanswered when the oldest reply is overdue."""
        loop = asyncio.get_running_loop()
        while True:
            await asyncio.sleep(self._deadline_s / 8)
            oldest = next(iter(self._sent_at.values()), None)
            if oldest is not None and loop.time() - oldest > self._deadline_s:
                self._is_closing = True
                raise Unanswered(
                    f"no answer within {self._deadline_s:g} s: waited for the OK for an event"
                )


async def async_iter(items: Iterable[Item] | AsyncIterable[Item]) -> AsyncIterator[Item]:
    """Async iteration over either kind of iterable."""
    if isinstance(items, AsyncIterable):
        async for item in items:
            yield item
    else:
        for item in items:
            yield item
