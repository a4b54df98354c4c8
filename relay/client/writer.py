"""Writer: how a memory system's records reach the relay: dated, signed, kept until they are there.

One key, one relay. Two versions of one record never have the same time (A-10, S-24). With a spool a
write outlives a relay that is away and the program itself; without one it is refused at once.

Invariants, with a spool: a write is on disk before it is sent, and who wrote it sends it and hears
the answer. What is still on disk after that, from earlier runs too, is the backlog: a task sends it
in its order whenever the relay is there, and no later write overtakes it.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from contextlib import suppress
from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING, Final

from relay.client.errors import ClientClosed, ClientError, PublishRefused, Unanswered
from relay.errors import Prefix
from relay.memory.fields import whole_number
from relay.memory.reading import next_time
from relay.nostr.filters import Filter
from relay.nostr.kinds import KindClass, class_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from relay.client.connection import Client
    from relay.client.spool import Spool
    from relay.memory.draft import Draft
    from relay.nostr.event import Event
    from relay.nostr.keys import SecretKey

    Make = Callable[[int], Draft]
    """A version of a record, made for its time in Unix seconds."""

_SENT_AT_ONCE: Final = 256
_MOST_KNOWN: Final = 10_000
"""Addresses."""
_TRIES: Final = 4
"""For a version that loses to one that another program wrote meanwhile."""
_PASSING: Final = frozenset({Prefix.ERROR, Prefix.RATE_LIMITED})
"""Refusals that say nothing about the event: it is sent again."""
_ANSWER_S: Final = 5.0
"""How long a write that is on disk waits for the relay's answer."""
_PAUSE_S: Final = 2.0
_A_DAY_S: Final = 86_400.0


class Outcome(Enum):
    STORED = "stored"
    DUPLICATE = "duplicate"
    """The relay had it, or another with its append-only address."""
    QUEUED = "queued"
    """It waits on disk until the relay is there."""


@dataclass(frozen=True, slots=True)
class Written:
    event: Event
    outcome: Outcome


class Writer:
    """Started and stopped by its MemoryClient."""

    def __init__(self, client: Client, signer: SecretKey, spool: Spool | None) -> None:
        self._client = client
        self._signer = signer
        self._spool = spool
        self._last: OrderedDict[tuple[int, str], int] = OrderedDict()
        """(kind, d) → the time of its newest version, as far as this writer knows."""
        self._under_way: set[str] = set()
        """Ids on disk that a `write` sends itself."""
        self._queued = asyncio.Event()
        """There may be a backlog that the task has not looked at."""
        self._caught_up = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    async def start(self) -> None:
        if self._spool is not None:
            for event in (await asyncio.to_thread(self._spool.waiting))[-_MOST_KNOWN:]:
                self.saw(event)
            self._task = asyncio.create_task(self._send_backlog(self._spool))

    async def stop(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])

    def knows(self, kind: int, d: str) -> bool:
        """Whether a version of this address was seen."""
        return (kind, d) in self._last

    def saw(self, event: Event) -> None:
        """A version that is stored: the next one will be newer."""
        if event.pubkey == self._signer.pubkey and class_of(event.kind) is not KindClass.REGULAR:
            key = (event.kind, event.d)
            # A relay may order by `ts`, whatever `created_at` says.
            at = max(event.created_at, whole_number(event.tag("ts")) or 0)
            self._last[key] = max(at, self._last.pop(key, 0))
            if len(self._last) > _MOST_KNOWN:
                # What is forgotten is asked of the relay when it matters.
                self._last.popitem(last=False)

    async def write(self, kind: int, d: str, make: Make) -> Written:
        """Sign and publish one record, as the newest version of its address.

        Raises PublishRefused; Unanswered (without a spool); SpoolFull, SpoolDamaged, OSError.
        """
        tries = 0
        while True:
            tries += 1
            event = self.signed(make(next_time(self._client.now(), self._last.get((kind, d)))))
            self.saw(event)
            try:
                outcome = await self._sent(event)
                if outcome is Outcome.DUPLICATE:
                    # Made a moment ago: it was brought there by ourselves, with the answer lost, or
                    # by a program that shares the spool.
                    outcome = Outcome.STORED
                return Written(event, outcome)
            except PublishRefused as refusal:
                if tries == _TRIES or not _is_older(refusal):
                    raise
            with suppress(ClientError):  # the next try will tell
                await self._look_at_stored(kind, d)

    async def publish(self, draft: Draft) -> Written:
        """Sign and publish what has no versions: an append-only record, a deletion. Raises as
        `write` does."""
        return await self.send(self.signed(draft))

    async def send(self, event: Event) -> Written:
        """Publish what is signed already, by whatever key. Raises as `write` does."""
        return Written(event, await self._sent(event))

    def signed(self, draft: Draft) -> Event:
        return self._signer.sign(draft.kind, draft.tags, draft.content, draft.created_at)

    async def _look_at_stored(self, kind: int, d: str) -> None:
        wanted = Filter(
            kinds=frozenset({kind}),
            authors=frozenset({self._signer.pubkey}),
            tags=(("d", frozenset({d})),),
        )
        for event in await self._client.query(wanted):
            self.saw(event)

    async def _sent(self, event: Event) -> Outcome:
        if self._spool is None:
            return await self._published(event)
        if self._task is None or self._task.done():
            raise self._why_stopped()
        self._under_way.add(event.id)
        outcome = Outcome.QUEUED
        try:
            await asyncio.to_thread(self._spool.put, event)
            if self._client.is_connected:
                outcome = await self._answered(event, self._spool)
        finally:
            self._under_way.discard(event.id)
            if outcome is Outcome.QUEUED:
                self._caught_up.clear()
                self._queued.set()
        return outcome

    async def _answered(self, event: Event, spool: Spool) -> Outcome:
        """… of an event on disk, which is taken away when the answer is final."""
        try:
            async with asyncio.timeout(_ANSWER_S):
                await self._caught_up.wait()
                outcome = await self._published(event)
        except (TimeoutError, Unanswered):
            return Outcome.QUEUED
        except PublishRefused as refusal:
            if refusal.prefix in _PASSING:
                return Outcome.QUEUED
            await asyncio.to_thread(spool.done, [event.id])
            raise
        await asyncio.to_thread(spool.done, [event.id])
        return outcome

    async def _published(self, event: Event) -> Outcome:
        reply = await self._client.publish(event)
        return Outcome.DUPLICATE if reply.is_duplicate else Outcome.STORED

    async def _send_backlog(self, spool: Spool) -> None:
        with suppress(ClientClosed):
            while True:
                await self._send_some(spool)

    async def _send_some(self, spool: Spool) -> None:
        self._queued.clear()
        waiting = [
            event
            for event in await asyncio.to_thread(spool.waiting, _SENT_AT_ONCE)
            if event.id not in self._under_way
        ]
        if not waiting:
            if not self._queued.is_set():
                self._caught_up.set()
            await self._queued.wait()
        elif not self._client.is_connected:
            with suppress(Unanswered):
                await self._client.connected(deadline_s=_A_DAY_S)
        elif not await self._settled(waiting, spool):
            if self._client.is_connected:
                self._caught_up.set()  # what the relay puts off holds up nothing else
            await asyncio.sleep(_PAUSE_S)

    async def _settled(self, backlog: list[Event], spool: Spool) -> bool:
        """Send some; whether every one had an answer that is final."""
        answers = await asyncio.gather(*map(self._published, backlog), return_exceptions=True)
        done: list[str] = []
        all_final = True
        for event, answer in zip(backlog, answers, strict=True):
            match answer:
                case Outcome():
                    done.append(event.id)
                case PublishRefused() if _is_older(answer):
                    done.append(event.id)  # lost, as the system says
                case PublishRefused() if answer.prefix not in {*_PASSING, Prefix.AUTH_REQUIRED}:
                    await asyncio.to_thread(spool.refuse, event.id, str(answer))
                case ClientError():
                    all_final = False
                case _:
                    raise answer
        await asyncio.to_thread(spool.done, done)
        return all_final

    def _why_stopped(self) -> ClientError:
        error = None
        if self._task is not None and not self._task.cancelled():
            error = self._task.exception()
        if error is None:
            return ClientClosed("use it inside its `async with`")
        stopped = ClientError(f"nothing more is sent to the relay: {error}")
        stopped.__cause__ = error
        return stopped


def _is_older(refusal: PublishRefused) -> bool:
    """Whether another version, as new or newer, is stored (CONTRACT §6)."""
    return refusal.prefix == Prefix.DUPLICATE
