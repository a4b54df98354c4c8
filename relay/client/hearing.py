"""Hearing: the messages of groups, as the relay delivers them.

In an open group anybody may write, with any number of keys. So what others than owners, agents and
members write waits apart, is dropped if too much of it waits, and delays nobody else.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final

from relay.client.errors import ClientError
from relay.client.inbox import MessageQueue, Rank
from relay.client.information import GROUPS, lists_nip
from relay.client.resume import OVERLAP_S
from relay.memory.snowclaw.chat import KINDS
from relay.nostr import kinds

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping, Sequence

    from relay.client.client import Client
    from relay.client.subscription import Subscription
    from relay.memory.snowclaw.chat import Chat
    from relay.memory.snowclaw.consent import Consent
    from relay.nostr.event import Event

    _Queues = Mapping[Rank, MessageQueue]

WAITING_BYTES: Final = 2**26
"""What waits in one subscription may take in memory, as `weight_of` estimates it; live events a
quarter of it."""
_AT_ONCE: Final = 250
"""Messages whose authors' names are queried together."""


class Hearing:
    """Follows messages and their deletions."""

    def __init__(
        self,
        client: Client,
        authors: Collection[str],
        consent: Consent,
        chat: Chat,
        *,
        learn_group: Callable[[str], Awaitable[bool]],
        see: Callable[[Event], None],
        hear: Callable[[Sequence[Event], Rank], Awaitable[None]],
    ) -> None:
        """`authors`: owners and agents. `see`: called with each deletion; `hear`: with messages of
        groups that `consent` tells to listen to, after `learn_group`."""
        self._client = client
        self._authors = frozenset(authors)
        self._consent = consent
        self._chat = chat
        self._learn_group = learn_group
        self._see = see
        self._hear = hear
        self._dropped = 0
        self._missed: tuple[Subscription, ...] = ()

    @property
    def dropped(self) -> int:
        """Messages that were not heard."""
        return self._dropped + sum(messages.dropped for messages in self._missed)

    async def follow(self, started: asyncio.Event) -> None:
        """Raises QueryClosed when the relay ends a subscription."""
        now = self._client.now()
        wanted: dict[str, object] = {"kinds": list(KINDS), "since": now}
        deletions: dict[str, object] = {"kinds": [kinds.DELETION], "since": now - OVERLAP_S}
        if lists_nip(await self._client.known_information(), GROUPS):
            # Of another relay anybody could send one, for the messages of others.
            deletions["kinds"] = [kinds.DELETION, kinds.DELETE_EVENT]
        if self._consent.named is not None:
            wanted["#h"] = deletions["#h"] = sorted(self._consent.named)
        # Each of its own: others may write more than can be read.
        async with (
            self._subscribe(deletions) as withdrawals,
            self._subscribe(wanted | {"authors": sorted(self._authors)}) as ours,
            self._subscribe(wanted) as messages,
        ):
            self._missed = (ours, messages)
            started.set()
            queues = {rank: MessageQueue() for rank in Rank}
            reading = until_one_ends(
                self._see_each(withdrawals),
                self._sort_ours(ours, queues),
                self._sort(messages, queues),
            )
            await until_one_ends(
                _until_heard(queues.values(), reading),
                *(self._hear_waiting(waiting, rank) for rank, waiting in queues.items()),
            )

    def _subscribe(self, wanted: Mapping[str, object]) -> Subscription:
        return self._client.subscribe(wanted, most_bytes=WAITING_BYTES)

    async def _see_each(self, withdrawals: Subscription) -> None:
        async for event in withdrawals:
            self._see(event)

    async def _sort_ours(self, messages: Subscription, queues: _Queues) -> None:
        async for message in messages:
            group = message.tag("h") or ""
            if self._consent.listens_to(group):
                await self._learn_group(group)
                await queues[Rank.OURS].put(message)

    async def _sort(self, messages: Subscription, queues: _Queues) -> None:
        """Waits while too many of known authors wait; of others the newest are kept."""
        async for message in messages:
            group = message.tag("h") or ""
            if message.pubkey in self._authors or not self._consent.listens_to(group):
                continue
            await self._learn_group(group)
            if self._chat.is_known(message.pubkey, group):
                await queues[Rank.KNOWN].put(message)
            else:
                self._dropped += queues[Rank.OTHERS].put_newest(message)

    async def _hear_waiting(self, waiting: MessageQueue, rank: Rank) -> None:
        while True:
            some = await waiting.get_some(_AT_ONCE)
            await self._hear(some, rank)
            for _ in some:
                waiting.task_done()


async def _until_heard(queues: Iterable[MessageQueue], reading: Awaitable[None]) -> None:
    """When a subscription has ended, wait until what came before that was heard."""
    try:
        await reading
    except ClientError:
        for waiting in queues:
            await waiting.join()
        raise


async def until_one_ends(*work: Awaitable[None]) -> None:
    """Raises its error; cancels the others."""
    tasks = [asyncio.ensure_future(each) for each in work]
    try:
        ended, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        for task in ended:
            await task
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
