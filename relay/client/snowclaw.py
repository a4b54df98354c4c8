"""Snowclaw: an agent in groups: memory of users and groups, configuration, chat history.

    async with Snowclaw("ws://127.0.0.1:7777", key, owner, names=["robot"]) as claw:
        await claw.start()
        async for message in claw.messages():
            if claw.should_respond(message):
                answer = model(claw.assemble(message, "You are robot.", 4_000).text)
                claw.note_user(message.pubkey, "asks about tea")

Reads are answered from memory; changes apply at once and are published later, one event per changed
record (S-31). `relay.client.snowclaw_records` is the half for records.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Awaitable, Callable, Sequence
from contextlib import aclosing, suppress
from typing import TYPE_CHECKING, Final, NamedTuple

from relay.client.client import Client
from relay.client.connection import Notifier
from relay.client.debounce import Debounce
from relay.client.errors import (
    TEMPORARY,
    AnswerTooLong,
    ClientError,
    PublishRefused,
    QueryClosed,
    Unanswered,
)
from relay.client.hearing import WAITING_BYTES, Hearing, until_one_ends
from relay.client.inbox import Inbox, Rank
from relay.client.information import limit_in
from relay.client.paging import MAX_READ_BYTES
from relay.client.responses import MAX_ANSWER_BYTES
from relay.client.resume import OVERLAP_S, SeenIds
from relay.client.snowclaw_records import SnowclawRecords
from relay.client.withdrawn import ABSENCE_S, withdrawn
from relay.errors import Invalid
from relay.memory.bounded import BoundedDict
from relay.memory.fence import recalled
from relay.memory.registry import MemorySystems
from relay.memory.snowclaw.agent_memory import AgentMemory
from relay.memory.snowclaw.chat import KINDS, Chat, correspondents
from relay.memory.snowclaw.consent import Consent
from relay.memory.snowclaw.context import HistoryStyle, Part, TrimOrder
from relay.memory.snowclaw.isolation import enters, leaks
from relay.memory.snowclaw.keys import KeyStyle
from relay.memory.snowclaw.records import GroupRecord, UserRecord
from relay.memory.snowclaw.respond import Agent
from relay.memory.snowclaw.system import SNOWCLAW
from relay.nostr import kinds
from relay.nostr.event import is_hex64, weight_of
from relay.nostr.keys import SecretKey, is_curve_point, public_key
from relay.nostr.nip59 import MAX_BACKDATED_S, opened, unsigned, wrapped

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Iterable, Mapping
    from pathlib import Path

    from relay.client.debounce import Later
    from relay.client.subscription import Subscription
    from relay.memory.snowclaw.config import GroupConfig
    from relay.memory.snowclaw.context import Context
    from relay.memory.snowclaw.edits import GroupEdit
    from relay.memory.snowclaw.history import HistoryMessage
    from relay.memory.snowclaw.key_filter import KeyFilter
    from relay.nostr.event import Event

_SYSTEMS: Final = MemorySystems((SNOWCLAW,))

Summarise = Callable[[Part, Sequence[str], int], Awaitable[str]]
"""(part of a context, its texts, tokens left for it) → a summary; empty: none. A token is four
characters."""
_OF_GROUPS: Final = (kinds.GROUP_METADATA, kinds.GROUP_MEMBERS)
_OF_PEOPLE: Final = (kinds.PROFILE, *_OF_GROUPS)
_EARLIER_S: Final = 5.0
"""How long a message waits for records that came before it; after a reconnect, how long messages
wait for the records that were missed."""
_AT_ONCE: Final = 250
"""Stored records that are taken together."""
_MAX_AUTHORS: Final = 250
"""Authors per query for profiles."""
_MAX_GROUPS: Final = 10_000
MAX_CORRESPONDENTS: Final = 10
"""Most other participants of a direct message: an answer needs a gift wrap for each."""
_MAX_WRAPS: Final = 50_000
"""Gift wraps whose ids are remembered."""
_WRAPS: Final = 1_000
"""Gift wraps in a page."""
_PAGE_BYTES: Final = 2**25
"""… and what they take in memory."""
_AGAIN_S: Final = 2.0
"""Before the relay is asked again, if it was too busy or gave too much."""
_OPENED_BYTES: Final = 2**23
"""What earlier messages may take in memory before they are put into the histories."""


class Recalled(NamedTuple):
    """A search result."""

    event: Event
    text: str
    """Plain text, without keys. Untrusted data: a model is given `fenced`."""
    fenced: str
    """The text in a fence, with its author if that is not this agent (G-23)."""


class Leak(NamedTuple):
    """A record that the relay returned to a reader without permission."""

    reader: str
    """Public key; empty without authentication."""
    event: Event


class Snowclaw(SnowclawRecords):
    """Methods that are not async work on memory only."""

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
        """See `SnowclawRecords`. `names`: names of this agent. `groups`: ids of those to listen to;
        None: those that an owner put it into, or that it asked to join. Raises Invalid."""
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
        self._consent = Consent(signer.pubkey, self._working_copy.owners, groups)
        self._hearing = Hearing(
            self._client,
            self._working_copy.authors,
            self._consent,
            self._chat,
            learn_group=self.learn_group,
            see=self.see,
            hear=self._hear,
        )
        self._learned: BoundedDict[str, None] = BoundedDict(_MAX_GROUPS)
        self._joined = set[str]()
        """Groups that the agent was put into, and that are not learned yet."""
        self._has_joined = asyncio.Event()
        self._absence = Debounce(
            self._drop_absent_quietly, ABSENCE_S, later, jitter_s=ABSENCE_S / 10
        )
        self._record_task: asyncio.Task[None] | None = None
        self._chat_task: asyncio.Task[None] | None = None
        self._direct_task: asyncio.Task[None] | None = None
        self._inbox: Inbox | None = None
        self._records: Subscription | None = None
        self._records_changed = Notifier()
        self._late_since: asyncio.Event | None = None
        """`Client.next_connection` when a message had waited in vain for records."""
        self._taking = asyncio.Lock()
        """Held while a record is taken."""

    @property
    def key_filter(self) -> KeyFilter:
        """Counts removed keys (S-36)."""
        return self._chat.key_filter

    @property
    def unheard(self) -> int:
        """Messages in groups that were dropped: of others than owners, agents and members because
        too many waited, of anybody because too much was missed while there was no connection."""
        return self._hearing.dropped

    @property
    def failure(self) -> BaseException | None:
        """Error that ended a subscription, if `messages` is not read; None: running."""
        for task in (self._record_task, self._chat_task):
            if task is not None and task.done() and not task.cancelled():
                return task.exception()
        return None

    async def start(self) -> None:
        """Load the records, then follow them, and from now on the chat of groups and the direct
        messages of people that it knows (S-28).

        While offline (with a folder) it continues with cached records. Raises QueryClosed,
        Unanswered.
        """
        await self.load()
        records_started, chat_started, direct_started = (asyncio.Event() for _ in range(3))
        self._record_task = asyncio.create_task(self._follow_records(records_started))
        self._absence.start()
        self._absence.soon()
        self._chat_task = asyncio.create_task(self._follow_chat(records_started, chat_started))
        # Members of the groups are known then: of others, direct messages are not read.
        follow_direct = self._follow_direct(chat_started, direct_started)
        self._direct_task = asyncio.create_task(follow_direct)
        if self.is_online:
            await _wait_started(records_started, self._record_task)
            await _wait_started(chat_started, self._chat_task)
            await _wait_started(direct_started, self._direct_task)

    async def __aexit__(self, kind: object, error: object, trace: object) -> None:
        """Flushes first: raises what `flush` raises, unless the block ended with an error."""
        await self._absence.stop()
        followed = (self._record_task, self._chat_task, self._direct_task)
        tasks = [task for task in followed if task is not None]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await super().__aexit__(kind, error, trace)

    async def _follow_records(self, started: asyncio.Event) -> None:
        """Follow record changes, and in which groups to listen, across reconnects."""
        is_from_cache = not self.is_online
        await self._wait_online()
        while True:
            try:
                await self._follow_records_anew(started, is_old=is_from_cache or started.is_set())
            except (AnswerTooLong, QueryClosed, Unanswered) as error:
                if not started.is_set() or not _may_be_tried_again(error):
                    raise
                await asyncio.sleep(_AGAIN_S)
            finally:
                self._records = None

    async def _follow_records_anew(self, started: asyncio.Event, *, is_old: bool) -> None:
        """`is_old`: what is known may have been deleted meanwhile."""
        since = self._client.now() - OVERLAP_S
        deletions = {
            "kinds": [kinds.DELETION],
            "authors": sorted(self._working_copy.authors),
            "since": since,
        }
        # Not of what anybody may write any number of: it would delay these.
        filters = (
            await self._wanted(),
            deletions,
            self._requests(),
            *self._consent.filters(since),
        )
        subscription = self._client.subscribe(
            *filters, on_resumed=self._on_resumed, keeps_newest=False
        )
        async with subscription as events:
            requests = await self._take_stored(events)
            self._records = events
            self._on_caught_up()
            await self._obey_quietly(requests)  # after the records that they name
            if is_old:
                self._absence.now()
            started.set()
            async for event in events:
                async with self._taking:
                    await self._take_all([event])
                await self._obey_quietly([event])

    async def _take_stored(self, events: Subscription) -> list[Event]:
        """Take what is stored; returns the deletions. Nothing else is kept here: a relay can tell
        of any number of groups that they have ended."""
        consent = self._consent.restarted()
        deletions: list[Event] = []
        some: list[Event] = []
        async for event in events.stored(most_bytes=MAX_READ_BYTES):
            if consent.apply(event):
                continue
            some.append(event)
            if event.kind == kinds.DELETION:
                deletions.append(event)
            if len(some) == _AT_ONCE:
                await self._take_all(some)
                some = []
        await self._take_all(some)
        self._consent.become(consent)
        return deletions

    def _on_resumed(self) -> None:
        self._on_caught_up()
        self._absence.now()

    def _on_caught_up(self) -> None:
        self._late_since = None
        self._records_changed.notify_all()

    def _are_records_current(self) -> bool:
        return self._records is not None and self._records.is_caught_up

    async def _follow_people(self, people: Subscription) -> None:
        """Follow profiles, and names and members of groups."""
        dropped = 0
        async for event in people:
            if people.dropped != dropped:
                dropped = people.dropped
                self._learned.clear()
            self._take(event)
            if event.kind == kinds.GROUP_MEMBERS:
                await self.learn_name(*self._chat.members(event.d))

    async def _of_people(self) -> list[dict[str, object]]:
        """From now on: what is stored of a person or group is queried when it is needed."""
        since = self._client.now() - OVERLAP_S
        groups = await self._of_groups() | {"since": since}
        if self._consent.named is not None:
            groups["#d"] = sorted(self._consent.named)
        return [groups, {"kinds": [kinds.PROFILE], "since": since}]

    async def _take_earlier(self) -> None:
        """Records that came before a message are known before it is: an owner who has told the
        agent to be silent, and then speaks, is not answered."""
        next_connection = self._client.next_connection
        if self._late_since is next_connection:
            return
        try:
            async with asyncio.timeout(_EARLIER_S):
                await self._records_changed.wait_for(self._are_records_current)
                if self._records is not None:
                    await self._records.until_read()
                async with self._taking:
                    pass
        except TimeoutError:
            if not self._are_records_current():
                self._late_since = next_connection

    async def _drop_absent_quietly(self) -> None:
        """After each reconnect, and every now and then, drop what is no longer there. A failure is
        that of the connection or a file: the next one begins anew."""
        with suppress(ClientError, OSError):
            await self._drop_absent_messages()
            if await self._drop_absent():
                self._chat.resize()
        self._absence.soon()

    async def _drop_absent_messages(self) -> None:
        ids = list(self._chat.ids_of_groups())
        if ids:
            document = await self._client.information_or_empty()
            self._chat.drop({*await withdrawn(self._client, self.pubkey, document, ids)})

    async def _follow_chat(self, is_consent_known: asyncio.Event, started: asyncio.Event) -> None:
        await is_consent_known.wait()
        people = self._client.subscribe(*await self._of_people(), most_bytes=WAITING_BYTES)
        async with people:
            await self._learn_agents()
            if not await self._learn_groups():
                await asyncio.sleep(_AGAIN_S)
                await self._learn_groups()
            following = self._follow_people(people), self._hearing.follow(started)
            await until_one_ends(*following, self._learn_joined())

    async def _learn_groups(self) -> bool:
        """Whether the relay answered for each."""
        return all([await self.learn_group(group) for group in sorted(self._consent.groups())])

    async def _learn_joined(self) -> None:
        """Apart from the records, which wait for nothing that others have stored."""
        while await self._has_joined.wait():
            self._has_joined.clear()
            while self._joined:
                group = self._joined.pop()
                if not await self.learn_group(group):  # the relay may be busy
                    await asyncio.sleep(_AGAIN_S)
                    await self.learn_group(group)

    async def _hear(self, messages: Sequence[Event], rank: Rank) -> None:
        await self.learn_name(*(message.pubkey for message in messages))
        await self._take_earlier()
        for message in messages:
            if not self._consent.listens_to(message.tag("h")):
                continue  # any more
            self.see(message)
            if self._inbox is not None:
                self._chat.wait_for(message)
                await self._inbox.put(message, rank)
            await asyncio.sleep(0)  # each may be long

    async def _follow_direct(
        self, are_members_known: asyncio.Event, started: asyncio.Event
    ) -> None:
        """Follow direct messages (NIP-17). A relay that refuses is no failure."""
        await are_members_known.wait()
        began, seen = self._client.now(), SeenIds(_MAX_WRAPS)
        while True:
            since = self._client.now() - MAX_BACKDATED_S
            wanted = {"kinds": [kinds.GIFT_WRAP], "#p": [self.pubkey], "since": since}
            live = self._client.subscribe(
                {**wanted, "limit": 0}, most_bytes=WAITING_BYTES, keeps_newest=False
            )
            try:
                async with live as wraps:
                    await self._read_direct(wanted, began, seen, started)
                    async for wrap in wraps:
                        await asyncio.sleep(0)  # to open a wrap takes up to 40 ms
                        if seen.add(wrap) and (message := self._opened(wrap)) is not None:
                            await self._hear_direct(message)
            except QueryClosed as closed:
                if not started.is_set() or closed.prefix not in TEMPORARY:
                    self.shortfall = f"{self.url} gives no direct messages: {closed}"
                    return
                await asyncio.sleep(_AGAIN_S)
            except AnswerTooLong:
                pass  # more was missed than can be held: read page by page
            except Unanswered:
                if not started.is_set():
                    raise
                await self._wait_online()

    async def _read_direct(
        self, wanted: dict[str, object], began: int, seen: SeenIds, started: asyncio.Event
    ) -> None:
        """Read the stored direct messages page by page: whoever the agent knows may have sent more
        of them than fit into memory. Those since `began` are heard."""
        earlier: list[Event] = []
        new: list[Event] = []
        held = 0
        served = limit_in(await self._information(), "max_limit") or 0
        found = self._client.query_pages(
            wanted, page=_WRAPS, served=served, most_bytes=MAX_ANSWER_BYTES, page_bytes=_PAGE_BYTES
        )
        try:
            async with aclosing(found) as pages:
                async for page in pages:
                    for wrap in page:
                        await asyncio.sleep(0)
                        message = self._opened(wrap) if seen.add(wrap) else None
                        if message is None:
                            continue
                        if message.created_at >= began and started.is_set():
                            await self._hear_direct(message)
                            continue
                        (earlier if message.created_at < began else new).append(message)
                        held += weight_of(message)
                        if held > _OPENED_BYTES:
                            self._chat.fill_direct([*earlier, *new])
                            earlier, new, held = [], [], 0
        except AnswerTooLong:
            self.shortfall = f"{self.url} has too many direct messages: not all were read"
        self._chat.fill_direct(earlier)
        started.set()
        for message in new:
            await self._hear_direct(message)

    def _opened(self, wrap: Event) -> Event | None:
        """The direct message in a gift wrap; None if it has none, or if one of its keys is unknown.

        The author of a message names its recipients, and an answer goes to all of them. So messages
        that do not name this agent, or that name unknown keys or too many, are not read.
        """
        try:
            message = opened(wrap, self._signer)
        except Invalid:
            return None
        is_direct = message.kind == kinds.PRIVATE_MESSAGE and not message.has_tag("h")
        since = self._client.now() - MAX_BACKDATED_S
        is_current = since <= message.created_at <= self._client.now() + OVERLAP_S
        if not (is_direct and is_current and self._knows(message.pubkey)):
            return None
        is_ours = message.pubkey == self.pubkey or self.pubkey in message.tag_values("p")
        others = correspondents(message, self.pubkey)
        is_answerable = len(others) <= MAX_CORRESPONDENTS and all(
            is_hex64(key) and is_curve_point(key) and self._knows(key) for key in others
        )
        return message if is_ours and is_answerable else None

    def _knows(self, pubkey: str) -> bool:
        return self._chat.knows(pubkey, self._consent.groups())

    async def _hear_direct(self, message: Event) -> None:
        """Process a direct message, unless it came before in another wrap."""
        await self.learn_name(message.pubkey)
        await self._take_earlier()
        if self._chat.see(message):
            self._schedule_save()
            if self._inbox is not None:
                is_ours = message.pubkey in self._working_copy.authors
                await self._inbox.put(message, Rank.OURS if is_ours else Rank.KNOWN)

    async def send_direct(self, text: str, to: str | Event) -> Event:
        """Send a direct message (NIP-17) by this relay: to a key (npub or hex), or as the answer to
        one, to all its correspondents. Returns it, unsigned. Raises Invalid, PublishRefused,
        Unanswered."""
        if isinstance(to, str):
            others, answered = frozenset({public_key(to)}), []
        else:
            others, answered = correspondents(to, self.pubkey), [["e", to.id]]
        if len(others) > MAX_CORRESPONDENTS:
            raise Invalid(f"p: at most {MAX_CORRESPONDENTS} recipients of a direct message")
        if not all(is_hex64(key) and is_curve_point(key) for key in others):
            raise Invalid("p: not a public key")
        tags = [*(["p", key] for key in sorted(others)), *answered]
        now = self._client.now()
        message = unsigned(self.pubkey, kinds.PRIVATE_MESSAGE, tags, text, now)
        for reader in (*sorted(others), self.pubkey):
            dates = [now - secrets.randbelow(MAX_BACKDATED_S) for _ in range(2)]
            one_time = SecretKey(secrets.token_bytes(32))
            wrap = wrapped(message, self._signer, reader, one_time, (dates[0], dates[1]))
            # Refused is one's own copy only to whom the relay does not know.
            with suppress(*((PublishRefused,) if reader == self.pubkey else ())):
                await self._client.publish(wrap)
        self._chat.see(message)
        return message

    def messages(self) -> AsyncGenerator[Event, None]:
        """Messages in the groups, and direct ones, which have no `h`, from this call on, including
        one's own; for one reader.

        A message is yielded after `see`, unless it was deleted or has expired while it waited: see
        `should_respond`. Raises QueryClosed when the relay ends the subscription.
        """
        inbox = self._inbox = Inbox()
        self._chat.wait_for_none()
        return self._read_inbox(inbox)

    async def _read_inbox(self, inbox: Inbox) -> AsyncGenerator[Event, None]:
        tasks = [task for task in (self._record_task, self._chat_task) if task is not None]
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
                message = reading.result()
                group = message.tag("h")  # which the agent may have left
                is_left = group is not None and not self._consent.listens_to(group)
                if not is_left and not self._is_withdrawn(message):
                    yield message
                self._chat.answered(message)
        finally:
            if self._inbox is inbox:
                self._inbox = None
                self._chat.wait_for_none()
            inbox.clear()  # a full one would block the subscription

    def _take(self, event: Event) -> bool:
        if self._consent.apply(event):
            return False
        if event.kind in _OF_PEOPLE:
            # Of everybody at the relay, and keys cost nothing: of others it is queried when needed.
            if event.kind != kinds.PROFILE or self._chat.follows_name(event.pubkey):
                self.see(event)
            return False
        is_new = super()._take(event)
        if is_new:
            self._chat.resize()
        return is_new

    def _edit_group(self, group: str, edit: GroupEdit) -> None:
        super()._edit_group(group, edit)
        self._chat.note_members(group)  # the 39002 may have come before there was a memory

    async def _take_all(self, events: Sequence[Event]) -> None:
        """`_take` each that is not deleted; what a kind 5 of them deletes leaves the cache too."""
        for event in await self._undeleted(events):
            if event.kind == kinds.DELETION:
                with suppress(OSError):
                    await self._take_deletion(event)
                continue
            group = event.tag("h")
            listened = self._consent.listens_to(group)
            self._take(event)
            if group and not listened and self._consent.listens_to(group):
                # Its name and members may have been told before, and were ignored.
                self._learned.pop(group, None)
                self._joined.add(group)
                self._has_joined.set()

    async def _obey_quietly(self, events: Sequence[Event]) -> None:
        """`_obey`; tried again with the next connection."""
        with suppress(ClientError):
            await self._obey(events)

    async def learn_name(self, *pubkeys: str) -> None:
        """Query profiles for their names, once per author; later changes are followed."""
        unknown = [key for key in dict.fromkeys(pubkeys) if not self._chat.knows_name(key)]
        for key in unknown:
            self._chat.no_name(key)
        for start in range(0, len(unknown), _MAX_AUTHORS):
            authors = unknown[start : start + _MAX_AUTHORS]
            await self._learn({"kinds": [kinds.PROFILE], "authors": authors})

    async def learn_group(self, group: str) -> bool:
        """Query a group's name and members, and their names, once; later changes are followed.
        Whether the relay answered."""
        if group in self._learned:
            return True
        self._learned[group] = None
        is_answered = await self._learn(await self._of_groups() | {"#d": [group]})
        if not is_answered:
            self._learned.pop(group, None)
        await self.learn_name(*self._chat.members(group))
        return is_answered

    async def _learn_agents(self) -> None:
        await self.learn_name(*sorted(self._working_copy.authors))

    async def _learn(self, wanted: dict[str, object]) -> bool:
        """Whether the relay answered."""
        try:
            async with aclosing(self._answer(wanted)) as pages:
                async for found in pages:
                    for event in found:
                        self.see(event)
        except ClientError:
            return False
        return True

    async def _answer(self, wanted: dict[str, object]) -> AsyncGenerator[list[Event], None]:
        """What matches; if others have stored too much of it for one page, in several."""
        try:
            found = await self._client.query(wanted, most_bytes=_PAGE_BYTES)
        except AnswerTooLong:
            all_ = self._client.query_pages(wanted, page_bytes=_PAGE_BYTES)
            async with aclosing(all_) as pages:
                async for page in pages:
                    yield page
        else:
            yield found

    async def _of_groups(self) -> dict[str, object]:
        """Filter for the names and members of groups, signed by the relay if its key is known."""
        wanted: dict[str, object] = {"kinds": list(_OF_GROUPS)}
        relay_key = (await self._information()).get("self")
        return wanted | {"authors": [relay_key]} if is_hex64(relay_key) else wanted

    # -- messages ---------------------------------------------------------------------------------

    def see(self, event: Event) -> None:
        """Process a message: adds it to the group's history, and its author to the known users
        (S-30, S-34), unless `groups` are named without its group. Also accepts profiles, names and
        members of groups that it listens to (S-18), and deletions of messages. `start` calls this
        for every event of those."""
        if self._consent.named is not None and event.tag("h") not in {None, *self._consent.named}:
            return
        if event.kind in _OF_GROUPS and not self._consent.listens_to(event.d):
            return
        if self._chat.see(event):
            self._schedule_save()

    async def backfill(self) -> None:
        """Fill the histories with earlier messages (S-34). Raises QueryClosed, Unanswered."""
        if filters := self._consent.filters(self._client.now()):
            for event in await self._client.query(*filters):
                self._consent.apply(event)
        await self._learn_agents()
        for group in sorted(self._consent.groups()):
            capacity = self._chat.capacity(group)
            if capacity == 0:
                continue
            wanted = {"kinds": list(KINDS), "#h": [group], "limit": capacity}
            events: list[Event] = []
            async with aclosing(self._answer(wanted)) as pages:
                async for page in pages:
                    events += page
                    if sum(map(weight_of, events)) > _PAGE_BYTES:
                        break  # the newest
            await self.learn_group(group)
            await self.learn_name(*(event.pubkey for event in events))
            self._chat.fill(events)

    def history(self, group: str) -> list[HistoryMessage]:
        """The last messages, oldest first."""
        self._chat.drop_expired(self._client.now())
        return self._chat.history(group)

    def direct_history(self, *keys: str) -> list[HistoryMessage]:
        """The last direct messages with these others (npub or hex). Raises Invalid."""
        self._chat.drop_expired(self._client.now())
        return self._chat.history(frozenset(map(public_key, keys)))

    def should_respond(self, event: Event) -> bool:
        """Whether this agent should answer a message (S-35): none that was deleted, that the relay
        gives no more, or that has expired."""
        return not self._is_withdrawn(event) and self._chat.should_respond(event)

    def _is_withdrawn(self, message: Event) -> bool:
        return self._chat.is_withdrawn(message, self._client.now())

    def assemble(self, event: Event, system: str, budget: int) -> Context:
        """The context for a model to answer a message, within a token budget (S-37). `system`:
        added to the system prompt. Without the text of a message that was deleted or has expired.
        Raises Invalid for what is no message."""
        return self._assembled(event, system, budget, {})

    def _assembled(
        self, event: Event, system: str, budget: int, summaries: Mapping[Part, str]
    ) -> Context:
        now = self._client.now()
        self._chat.drop_expired(now)
        return self._chat.assemble(event, system, budget, summaries, now)

    async def assemble_summarised(
        self, event: Event, system: str, budget: int, summarise: Summarise
    ) -> Context:
        """As `assemble`; group memory and notes that do not all fit are replaced by what
        `summarise` makes of them, if that fits, and if all that it was given is still known at the
        end. Also raises what `summarise` does."""
        made = self.assemble(event, system, budget)
        summaries: dict[Part, tuple[str, set[str]]] = {}
        for part in (Part.GROUP, Part.NOTES):
            if made.dropped[part] and (room := made.room_for(part)).tokens > 0:
                summary = await summarise(part, room.texts, room.tokens)
                summaries[part] = (summary, {*room.texts})
                left = self.assemble(event, system, budget)  # some may be forgotten meanwhile
                valid = {
                    each: text
                    for each, (text, of) in summaries.items()
                    if of <= {*left.room_for(each).texts}
                }
                made = self._assembled(event, system, budget, valid)
        return made

    # -- search, isolation ------------------------------------------------------------------------

    async def recall(
        self, query: str, limit: int = 10, *, group: str | None = None
    ) -> list[Recalled]:
        """Matching records, best first: by the relay's search, or by scanning known records.
        `group`: only records that may enter its context (S-33). Raises QueryClosed, Unanswered."""
        found = []
        for event in await self._search(query, limit if group is None else limit * 4):
            if event.pubkey not in self._working_copy.authors:
                continue
            record = self._working_copy.read(event)
            is_of_others = (
                group is not None
                and isinstance(record, (UserRecord, GroupRecord))
                and not enters(record, group)
            )
            text = record.text if isinstance(record, AgentMemory) else _SYSTEMS.search_text(event)
            if text and not is_of_others:
                found.append(self._recalled(event, text, group))
        for each in found[:limit]:
            self.note_recalled([each.text], self._working_copy.about(each.event.d))
        return found[:limit]

    def _recalled(self, event: Event, text: str, group: str | None) -> Recalled:
        text = self.key_filter.filtered(text).text
        name = self._chat.name_of(event.pubkey, group)
        shown = recalled(text, ("snowclaw", event.d), event.pubkey, self.pubkey, name)
        return Recalled(event, text, shown)

    async def _search(self, query: str, limit: int) -> list[Event]:
        if self.is_online and await self.searches():
            wanted = await self._wanted()
            found = await self._client.query({**wanted, "search": query, "limit": limit})
            return await self._undeleted(found)
        self.shortfall = f"{self.url} does not support search: known records are scanned"
        words = query.casefold().split()
        newest_first = sorted(self._working_copy.events(), key=lambda e: (-e.created_at, e.id))
        return [
            event
            for event in newest_first
            if (text := _SYSTEMS.search_text(event))
            and all(word in text.casefold() for word in words)
        ]

    async def verify_isolation(self, readers: Iterable[SecretKey] = ()) -> list[Leak]:
        """Query all memory as readers without permission: unauthenticated, with a random key, and
        with each of `readers` (members that are neither owner nor agent). Returns records that
        should not be readable; empty: none. Raises ClientError."""
        outsider = SecretKey(secrets.token_bytes(32))
        found: list[Leak] = []
        for reader in (None, outsider, *readers):
            found += await self._leaks_to(reader)
        return found

    async def _leaks_to(self, reader: SecretKey | None) -> list[Leak]:
        keys, reader_key = ((), "") if reader is None else ((reader,), reader.pubkey)
        async with Client(self.url, *keys) as client:
            member_of: set[str] = set()
            if reader is not None:
                theirs = {"kinds": [kinds.GROUP_MEMBERS], "#p": [reader_key]}
                member_of = {event.d for event in await client.query(theirs)}
            received: list[Event] = []
            with suppress(ClientError):  # CLOSED counts as no result
                received = [event async for event in client.query_all(await self._wanted())]
            return [Leak(reader_key, event) for event in leaks(received, member_of, reader_key)]


def _may_be_tried_again(error: AnswerTooLong | QueryClosed | Unanswered) -> bool:
    return not isinstance(error, QueryClosed) or error.prefix in TEMPORARY


async def _wait_started(event: asyncio.Event, task: asyncio.Task[None]) -> None:
    """Wait for the event. Raises the task's error if it ends first."""
    waiting = asyncio.create_task(event.wait())
    await asyncio.wait([waiting, task], return_when=asyncio.FIRST_COMPLETED)
    waiting.cancel()
    if not event.is_set():
        await task
