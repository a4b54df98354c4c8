"""Snowclaw: an agent in groups: what it knows of people, how it is to behave, what was said.

    async with Snowclaw("ws://127.0.0.1:7777", key, owner, names=["robot"]) as claw:
        await claw.start()
        async for message in claw.messages():
            if claw.should_respond(message):
                answer = model(claw.assemble(message, "You are robot.", 4_000).text)
                claw.note_user(message.pubkey, "asks about tea")

MEMORY.md §4. Reading is from memory; what is noted is there at once and published soon after, one
event for each record that changed (S-31). `relay.client.snowclaw_records` has the half of it that
is about records.
"""

from __future__ import annotations

import asyncio
import secrets
from contextlib import suppress
from typing import TYPE_CHECKING, Final, NamedTuple

from relay.client.client import Client
from relay.client.errors import ClientError
from relay.client.resume import OVERLAP_S
from relay.client.snowclaw_records import SnowclawRecords
from relay.memory.snowclaw.agent_memory import AgentMemory
from relay.memory.snowclaw.chat import KINDS, Chat
from relay.memory.snowclaw.context import HistoryStyle, TrimOrder
from relay.memory.snowclaw.isolation import enters, leaks
from relay.memory.snowclaw.keys import KeyStyle
from relay.memory.snowclaw.records import GroupRecord, UserRecord
from relay.memory.snowclaw.respond import Agent
from relay.memory.systems import MEMORY_SYSTEMS
from relay.nostr import kinds
from relay.nostr.keys import SecretKey

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Iterable, Mapping
    from pathlib import Path
    from types import TracebackType

    from relay.client.debounce import Later
    from relay.memory.snowclaw.config import GroupConfig
    from relay.memory.snowclaw.context import Context
    from relay.memory.snowclaw.history import HistoryMessage
    from relay.memory.snowclaw.key_filter import KeyFilter
    from relay.nostr.event import Event

_INBOX: Final = 1_000
"""Messages that wait for their reader before the next ones are taken from the subscription."""


class Recalled(NamedTuple):
    """One record that a search found."""

    event: Event
    text: str
    """What it holds, in plain text, keys taken out. Data, whoever wrote it: `relay.memory.fence`
    marks it as such (G-23)."""


class Leak(NamedTuple):
    """A record that a relay gave to somebody whom it should not have."""

    reader: str
    """Public key; empty for somebody who did not log in."""
    event: Event


class Snowclaw(SnowclawRecords):
    """What is not awaited is read from memory, or noted there."""

    def __init__(
        self,
        relay: Client | str,
        signer: SecretKey,
        owner: str | Iterable[str],
        file_config: GroupConfig | Mapping[str, object] | None = None,
        *,
        folder: Path | None = None,
        agents: Iterable[str] = (),
        names: Iterable[str] = (),
        groups: Iterable[str] | None = None,
        key_style: KeyStyle = KeyStyle.HEX,
        trim_order: TrimOrder = TrimOrder.NOTES_FIRST,
        history_style: HistoryStyle = HistoryStyle.HEADER,
        later: Later | None = None,
    ) -> None:
        """See `SnowclawRecords`. `names`: what people call this agent. `groups`: which to listen
        to, by id; None: all that the relay delivers. Raises Invalid.
        """
        super().__init__(
            relay,
            signer,
            owner,
            file_config,
            folder=folder,
            agents=agents,
            key_style=key_style,
            later=later,
        )
        agent = Agent(signer.pubkey, tuple(names), self._working_copy.owners)
        self._chat = Chat(agent, self._working_copy, trim_order, history_style)
        self._groups = None if groups is None else sorted(groups)
        self._following: asyncio.Task[None] | None = None
        self._listening: asyncio.Task[None] | None = None
        self._inbox: asyncio.Queue[Event] | None = None

    @property
    def key_filter(self) -> KeyFilter:
        """Counts what it took out (S-36)."""
        return self._chat.key_filter

    @property
    def failure(self) -> BaseException | None:
        """Why nothing more is heard, for who does not read `messages`; None: all is well."""
        for task in (self._following, self._listening):
            if task is not None and task.done() and not task.cancelled():
                return task.exception()
        return None

    async def start(self) -> None:
        """Load what is known, then follow it, and the chat of the groups from now on (S-28).

        While the relay is away (and there is a folder) it goes on with what it gave last. Raises
        QueryClosed, Unanswered.
        """
        await self.load()
        follows, listens = asyncio.Event(), asyncio.Event()
        self._following = asyncio.create_task(self._follow(follows))
        self._listening = asyncio.create_task(self._listen(listens))
        if self.is_online:
            await _begun(follows, self._following)
            await _begun(listens, self._listening)

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Flushes first: raises what `flush` raises, unless the block ends with an error."""
        tasks = [task for task in (self._following, self._listening) if task is not None]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await super().__aexit__(kind, error, trace)

    async def _follow(self, begun: asyncio.Event) -> None:
        """Records as they change, also while the relay comes and goes."""
        await self._wait_online()
        deletions = {
            "kinds": [kinds.DELETION],
            "authors": sorted(self._working_copy.authors),
            "since": self._client.now() - OVERLAP_S,
        }
        async with self._client.subscribe(await self._wanted(), deletions) as events:
            async for event in events.stored():
                self._take(event)
            begun.set()
            async for event in events:
                self._take(event)

    async def _listen(self, begun: asyncio.Event) -> None:
        await self._wait_online()
        wanted: dict[str, object] = {"kinds": list(KINDS), "since": self._client.now()}
        if self._groups is not None:
            wanted["#h"] = self._groups
        async with self._client.subscribe(wanted) as events:
            begun.set()
            async for event in events:
                await self.learn_name(event.pubkey)
                self.see(event)
                if self._inbox is not None:
                    await self._inbox.put(event)

    def messages(self) -> AsyncGenerator[Event, None]:
        """What is said in the groups from this call on, one's own messages too; for one reader.

        A message comes when `see` has taken it. Raises QueryClosed when the relay ends it.
        """
        inbox = self._inbox = asyncio.Queue(_INBOX)
        return self._out_of(inbox)

    async def _out_of(self, inbox: asyncio.Queue[Event]) -> AsyncGenerator[Event, None]:
        tasks = [task for task in (self._following, self._listening) if task is not None]
        try:
            while tasks:
                reading = asyncio.create_task(inbox.get())
                try:
                    await asyncio.wait([reading, *tasks], return_when=asyncio.FIRST_COMPLETED)
                finally:
                    reading.cancel()
                if not reading.done():
                    ended = next(task for task in tasks if task.done())
                    if not ended.cancelled():
                        await ended
                    return
                yield reading.result()
        finally:
            if self._inbox is inbox:
                self._inbox = None
            while not inbox.empty():  # or a full one would hold up who listens
                inbox.get_nowait()

    def _take(self, event: Event) -> bool:
        is_new = super()._take(event)
        if is_new:
            self._chat.resize()
        return is_new

    async def learn_name(self, pubkey: str) -> None:
        """The name in a profile, asked for when somebody is seen first."""
        if self._chat.knows_name(pubkey):
            return
        self._chat.no_name(pubkey)
        with suppress(ClientError):
            profile = {"kinds": [kinds.PROFILE], "authors": [pubkey], "limit": 1}
            for event in await self._client.query(profile):
                self.see(event)

    # -- messages ---------------------------------------------------------------------------------

    def see(self, event: Event) -> None:
        """A message: into the ring of its group, and who wrote it is known from now on (S-30,
        S-34). Also a profile, for the name. `start` does this with everything that comes."""
        if self._chat.see(event):
            self._noted()

    async def backfill(self) -> None:
        """Fill the rings from the relay, with what came before (S-34). Raises QueryClosed,
        Unanswered."""
        groups = self._groups
        if groups is None:
            mine = {"kinds": [kinds.GROUP_MEMBERS], "#p": [self.pubkey]}
            joined = {event.d for event in await self._client.query(mine)}
            groups = sorted(joined | set(self.groups()))
        for group in groups:
            room = self._chat.capacity(group)
            if room == 0:
                continue
            wanted = {"kinds": list(KINDS), "#h": [group], "limit": room}
            events = await self._client.query(wanted)
            for event in events:
                await self.learn_name(event.pubkey)
            self._chat.fill(group, events)

    def history(self, group: str) -> list[HistoryMessage]:
        """The last messages, oldest first."""
        return self._chat.history(group)

    def should_respond(self, event: Event) -> bool:
        """Whether this agent answers a message (S-35)."""
        return self._chat.should_respond(event)

    def assemble(self, event: Event, system: str, budget: int) -> Context:
        """What a model is given to answer a message, within so many tokens (S-37). Raises Invalid
        for an event of no group."""
        return self._chat.assemble(event, system, budget)

    # -- searching, and who is given what ---------------------------------------------------------

    async def recall(
        self, query: str, limit: int = 10, *, group: str | None = None
    ) -> list[Recalled]:
        """Records that match, best first: by the relay's search, or word by word on a relay that
        has none. `group`: only what may enter its context (S-33). Raises QueryClosed, Unanswered.
        """
        recalled = []
        for event in await self._searched(query, limit if group is None else limit * 4):
            if event.pubkey not in self._working_copy.authors:
                continue
            record = self._working_copy.read(event)
            is_of_others = (
                group is not None
                and isinstance(record, (UserRecord, GroupRecord))
                and not enters(record, group)
            )
            text = (
                record.text
                if isinstance(record, AgentMemory)
                else MEMORY_SYSTEMS.search_text(event)
            )
            if text and not is_of_others:
                recalled.append(Recalled(event, self.key_filter.filtered(text).text))
        return recalled[:limit]

    async def _searched(self, query: str, limit: int) -> list[Event]:
        if self.is_online and await self.searches():
            wanted = await self._wanted()
            return await self._client.query({**wanted, "search": query, "limit": limit})
        self.shortfall = f"{self.url} does not support search: known records are scanned"
        words = query.casefold().split()
        newest_first = sorted(self._working_copy.events(), key=lambda e: (-e.created_at, e.id))
        return [
            event
            for event in newest_first
            if (text := MEMORY_SYSTEMS.search_text(event))
            and all(word in text.casefold() for word in words)
        ]

    async def verify_isolation(self, readers: Iterable[SecretKey] = ()) -> list[Leak]:
        """Ask the relay for all memory as somebody who has no business with it: without a login, as
        a stranger, and as each of `readers`: members that are neither owner nor agent. What it gave
        and should not have; empty when all is well. Raises ClientError.
        """
        stranger = SecretKey(secrets.token_bytes(32))
        found: list[Leak] = []
        for reader in (None, stranger, *readers):
            found += await self._leaks_to(reader)
        return found

    async def _leaks_to(self, reader: SecretKey | None) -> list[Leak]:
        keys, whose = ((), "") if reader is None else ((reader,), reader.pubkey)
        async with Client(self.url, *keys) as client:
            member_of: set[str] = set()
            if reader is not None:
                theirs = {"kinds": [kinds.GROUP_MEMBERS], "#p": [whose]}
                member_of = {event.d for event in await client.query(theirs)}
            given: list[Event] = []
            with suppress(ClientError):  # CLOSED is as good as nothing
                given = [event async for event in client.query_all(await self._wanted())]
            return [Leak(whose, event) for event in leaks(given, member_of, whose)]


async def _begun(event: asyncio.Event, task: asyncio.Task[None]) -> None:
    """Until a task says so. Raises what it failed with."""
    waiting = asyncio.create_task(event.wait())
    await asyncio.wait([waiting, task], return_when=asyncio.FIRST_COMPLETED)
    waiting.cancel()
    if not event.is_set():
        await task
