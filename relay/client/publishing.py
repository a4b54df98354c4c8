"""Many events on their way to a relay at once, for `Client.publish_many`.

An event goes out on the connection that there is, and its OK is noted when it comes: no task and no
timer for each. What gets no plain answer that way (the connection ended, a login is asked for) is
published again by itself, with the patience of `Client.publish`.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterable
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING

from relay.client.errors import ConnectionLost, PublishRefused, Unanswered
from relay.errors import Prefix

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Iterable

    from relay.client.link import Link, Reply
    from relay.nostr.event import Event


@dataclass(slots=True)
class Published:
    """What became of them so far."""

    stored: int = 0
    duplicates: int = 0
    refused: list[PublishRefused] = field(default_factory=list)

    def note(self, reply: Reply) -> None:
        """One that was accepted."""
        if reply.is_duplicate:
            self.duplicates += 1
        else:
            self.stored += 1


class Publishing:
    """One call of `publish_many`."""

    def __init__(
        self,
        link: Callable[[], Link | None],
        patiently: Callable[[Event], Awaitable[Reply]],
        window: int,
        deadline_s: float,
    ) -> None:
        """`link`: the connection of the moment. `patiently`: publishes one event, whatever happens.
        `window`: events that may be on their way. `deadline_s`: for the answer to each."""
        self.done = Published()
        self._link = link
        self._patiently = patiently
        self._window = window
        self._slots = asyncio.Semaphore(window)
        self._deadline_s = deadline_s
        self._begun: dict[asyncio.Future[Reply | None], float] = {}
        """When it was sent, for each answer that is awaited here; oldest first."""
        self._tasks = asyncio.TaskGroup()
        self._is_over = False

    async def all_of(self, events: AsyncIterator[Event]) -> Published:
        """In their order; refusals stop nothing. Raises Unanswered, and as `patiently` does."""
        try:
            async with self._tasks:
                watch = self._tasks.create_task(self._watch())
                try:
                    async for event in events:
                        await self._slots.acquire()
                        await self._send(event)
                    for _ in range(self._window):
                        await self._slots.acquire()
                finally:
                    self._is_over = True
                    watch.cancel()
        except ExceptionGroup as group:
            raise group.exceptions[0] from None
        return self.done

    async def _send(self, event: Event) -> None:
        link = self._link()
        if link is None:
            self._again(event)
            return
        try:
            reply = await link.begin(event.id, b'["EVENT",' + event.raw + b"]")
        except ConnectionLost:
            self._again(event)
            return
        self._begun[reply] = asyncio.get_running_loop().time()
        reply.add_done_callback(partial(self._settled, event))

    def _settled(self, event: Event, reply: asyncio.Future[Reply | None]) -> None:
        del self._begun[reply]
        answer = None if reply.cancelled() else reply.result()
        if answer is None or (not answer.accepted and answer.prefix == Prefix.AUTH_REQUIRED):
            self._again(event)
            return
        if answer.accepted:
            self.done.note(answer)
        else:
            self.done.refused.append(PublishRefused(answer.prefix, answer.text, event))
        self._slots.release()

    def _again(self, event: Event) -> None:
        if not self._is_over:
            self._tasks.create_task(self._one(event))

    async def _one(self, event: Event) -> None:
        try:
            self.done.note(await self._patiently(event))
        except PublishRefused as refusal:
            self.done.refused.append(refusal)
        except BaseException:
            self._is_over = True  # the group takes no more tasks
            raise
        self._slots.release()

    async def _watch(self) -> None:
        """Raises Unanswered when the oldest has waited for too long."""
        loop = asyncio.get_running_loop()
        while True:
            await asyncio.sleep(self._deadline_s / 8)
            oldest = next(iter(self._begun.values()), None)
            if oldest is not None and loop.time() - oldest > self._deadline_s:
                self._is_over = True
                raise Unanswered(
                    f"no answer within {self._deadline_s:g} s: waited for the OK for an event"
                )


async def each(events: Iterable[Event] | AsyncIterable[Event]) -> AsyncIterator[Event]:
    """The same, from either."""
    if isinstance(events, AsyncIterable):
        async for event in events:
            yield event
    else:
        for event in events:
            yield event
