"""Many events on their way to a relay at once, for `Client.publish_many`.

An event goes out on the connection that there is, and its OK is noted when it comes: no task and no
timer for each. What gets no plain answer that way (the connection ended, a login is asked for) is
published again by itself, with the patience of `Client.publish`. What comes too fast for the relay
is sent again at its pace, one after the other.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterable
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Final

from relay.client.errors import ConnectionLost, PublishRefused, Unanswered
from relay.errors import Prefix

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Iterable

    from relay.client.link import Link, Reply
    from relay.nostr.event import Event

_WAIT: Final = re.compile(r"try again in (\d{1,4}) s")
_PAUSE_S: Final = 2.0
"""Before what came too fast is sent again, where the relay does not say when."""


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
        patience_s: float,
    ) -> None:
        """`link`: the connection of the moment. `patiently`: publishes one event, whatever happens.
        `window`: events that may be on their way. `deadline_s`: for the answer to each.
        `patience_s`: without any taken for so long, what comes too fast is refused."""
        self.done = Published()
        self._link = link
        self._patiently = patiently
        self._window = window
        self._slots = asyncio.Semaphore(window)
        self._deadline_s = deadline_s
        self._patience_s = patience_s
        self._pace = asyncio.Lock()
        """Held by the one event that waits for the relay's pace."""
        self._taken_at = 0.0
        self._begun: dict[asyncio.Future[Reply | None], float] = {}
        """When it was sent, for each answer that is awaited here; oldest first."""
        self._tasks = asyncio.TaskGroup()
        self._is_over = False

    async def all_of(self, events: AsyncIterator[Event]) -> Published:
        """In their order; refusals stop nothing. Raises Unanswered, and as `patiently` does."""
        self._taken_at = asyncio.get_running_loop().time()
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
            self._note(answer)
            self._slots.release()
        else:
            self._refused(PublishRefused(answer.prefix, answer.text, event))

    def _refused(self, refusal: PublishRefused) -> None:
        if refusal.prefix != Prefix.RATE_LIMITED:
            self.done.refused.append(refusal)
            self._slots.release()
        elif not self._is_over:
            self._tasks.create_task(self._at_pace(refusal))

    def _note(self, reply: Reply) -> None:
        self._taken_at = asyncio.get_running_loop().time()
        self.done.note(reply)

    def _again(self, event: Event) -> None:
        if not self._is_over:
            self._tasks.create_task(self._one(event))

    async def _at_pace(self, refusal: PublishRefused) -> None:
        """Sent again until it is taken, or nothing has been for too long."""
        left: PublishRefused | None = refusal
        async with self._pace:
            while left is not None and left.prefix == Prefix.RATE_LIMITED:
                if asyncio.get_running_loop().time() >= self._taken_at + self._patience_s:
                    break
                left = await self._again_now(left.event)  # at once: another may have waited enough
                if left is not None and left.prefix == Prefix.RATE_LIMITED:
                    told = _WAIT.search(left.text)
                    pause = int(told[1]) if told else _PAUSE_S
                    await asyncio.sleep(min(pause, self._patience_s))
        if left is not None:
            self.done.refused.append(left)
        self._slots.release()

    async def _one(self, event: Event) -> None:
        refusal = await self._again_now(event)
        if refusal is None:
            self._slots.release()
        else:
            self._refused(refusal)

    async def _again_now(self, event: Event) -> PublishRefused | None:
        """The refusal; None: it is taken."""
        try:
            self._note(await self._patiently(event))
        except PublishRefused as refusal:
            return refusal
        except BaseException:
            self._is_over = True  # the group takes no more tasks
            raise
        return None

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
