"""Ingest: takes an EVENT from submission to its OK and its delivery to subscribers.

screen → verify the signature → ask plug-ins → judge and commit in the lane → OK → deliver.
NIP-86 changes and rows to expire or sweep go through the same lane.

Invariants: orchestration only; what it calls returns values. Events are judged in the lane, each
after the one before, so a removed member's later message is refused. Events of one connection are
judged in the order in which they came; but except in an import, events that a plug-in is asked
about and other events do not wait for each other. State changes after the commit.
"""

from __future__ import annotations

import asyncio
import logging
import sys
from collections import Counter
from contextlib import contextmanager, suppress
from secrets import token_bytes
from time import perf_counter, thread_time
from typing import TYPE_CHECKING, Any, Final, assert_never

from relay.access.management import ListName
from relay.access.membership import JOINED_PER_MINUTE
from relay.access.quotas import VANISHED_PER_ADDRESS, Guesses, MinuteCounter, TokenBuckets
from relay.access.shares import Shares
from relay.access.visibility import Viewer
from relay.errors import Prefix, Reject, StoreFault, TookTooLong, TooMuchToRead, ok_reply
from relay.facts import Origin
from relay.lifecycle.deletion import tombstone_while_vanishing
from relay.lifecycle.rows import WritePlan
from relay.nostr import kinds
from relay.nostr.event import weight_of
from relay.nostr.kinds import is_ephemeral
from relay.write.asking import Asking
from relay.write.batch import Batch
from relay.write.batch_log import log_changes, name_of, request_of, trace
from relay.write.candidate import candidate_of
from relay.write.commands import (
    DryRun,
    ExpireRows,
    LaneItem,
    ManagementChange,
    SignLists,
    SweepRows,
    SweepVersions,
    Unconnected,
    WriteEvent,
    client_or_type,
    connection_or_type,
    sender_of,
    share_of,
)
from relay.write.commit_limits import (
    LONG_S,
    ClientLimits,
    Limit,
    Overruns,
    SlowClients,
    number_together,
    rights_first,
    shrink,
)
from relay.write.costs import MAX_BATCH, charge_of, cost_of
from relay.write.delivery import Delivery
from relay.write.judge import BAD_SIGNATURE, TOO_MANY_VANISH, screen, screen_and_judge
from relay.write.lane import Lane
from relay.write.list_signing import ListSigning
from relay.write.lookups import lookups_for
from relay.write.signatures import SignatureChecks
from relay.write.world import MAX_EVENT, World, facts_of

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence, Set
    from concurrent.futures import Executor
    from ipaddress import IPv4Address, IPv6Address

    from relay.access.management import ListChange
    from relay.errors import Result
    from relay.lifecycle.rows import Found, Lookups, Stored, Tombstone
    from relay.nostr.event import Event
    from relay.nostr.keys import SecretKey
    from relay.observe import Metrics
    from relay.state import RelayState
    from relay.storage import Appender
    from relay.write.asking import Plugins
    from relay.write.commands import Author, Series
    from relay.write.delivery import AllSubscribers

_log = logging.getLogger(__name__)

_SLOW_END_S: Final = 0.1
"""After the end of a group that took longer, no other large group ends for nine times as long."""
_SMALL_BATCH: Final = 32
"""Changes in a batch whose OKs are to come soon even while the loop is busy."""
_SMALL_SWITCH_S: Final = 0.00005
"""How soon the store's thread gets the GIL from the loop for a small batch, at each of some 30
statements."""
SWITCH_S: Final = 0.0005
"""The same for a larger one, where each hand-over costs more than the wait."""
_MAX_WEIGHT: Final = 256 << 20
"""Bytes of all waiting events of clients, as `weight_of` estimates them; see `Shares`."""
_ORDINARY: Final = 256 << 10
"""Bytes that the waiting events of one address may have beyond that."""
_LEAST_SHARE: Final = 4 << 10
"""Bytes that an event counts for at least, so that the number of events is shared, too."""
_OF_CONNECTION: Final = 8 << 10
"""Further bytes for the only waiting event of a connection: if the client closes that, the event
keeps it in memory."""
_MAX_WAITING: Final = 9 * _MAX_WEIGHT // 4 // _LEAST_SHARE
"""Items of a lane: as many as the shares of all clients and owners allow, which are the bound."""
_PLUGIN_SHUTDOWN_S: Final = 1.0
"""So long plug-ins may still answer when the relay stops: all connections are closed by then."""

_SHUTDOWN_S: Final = 5.0
"""So long what was accepted may still be checked and committed when the relay stops."""
_STOPPING_S: Final = 0.05
"""Between two looks at what a lane that ends has put back."""

QUEUE_FULL: Final = Reject(Prefix.RATE_LIMITED, "too many events are waiting, slow down", "queue")
_FULL_FOR_SERIES: Final = Reject(Prefix.ERROR, "too many events are waiting", "queue")
_TOO_MANY_END: Final = Reject(
    Prefix.RATE_LIMITED, "too many large groups end, wait a minute", "ends of groups"
)
_IS_GONE: Final = Reject(Prefix.ERROR, "the connection was closed", "queue")
STOPPING: Final = Reject(Prefix.ERROR, "the relay is stopping, try again later", "stop")
TOOK_TOO_LONG: Final = Reject(
    Prefix.ERROR, "storing the event would keep others waiting for too long", "store"
)
_NEARLY_FULL: Final = Reject(
    Prefix.ERROR, "the disk of this relay is nearly full, its owner has to free space", "store"
)
STORE_FAILED: Final = Reject(
    Prefix.ERROR, "the event could not be stored, try again later", "store"
)


class Ingest:
    """A context manager: its lanes run inside; leaving it commits what is queued. If a lane fails,
    the task that entered it is cancelled, and leaving raises an ExceptionGroup; else all writes
    would wait for ever."""

    def __init__(
        self,
        store: Appender,
        state: RelayState,
        relay_key: SecretKey,
        fanout: AllSubscribers[Any],
        *,
        clock: Callable[[], int],
        verifiers: Executor,
        metrics: Metrics,
        is_here: Callable[[str], bool],
        plugins: Plugins | None = None,
        max_event: int = MAX_EVENT,
    ) -> None:
        """`is_here`: whether a URL is this relay's; the caller starts and stops `plugins`.
        `max_event`: bytes of an event, wherever it comes from."""
        self._store = store
        self._state = state
        self._relay_key = relay_key
        self._fanout = fanout
        self._delivery = Delivery(store, state, fanout, metrics, clock, lambda: fanout.apart)
        self._clock = clock
        self._metrics = metrics
        self._is_here = is_here
        self._max_event = max_event
        self._guesses = Guesses()
        self._buckets = TokenBuckets()
        self._vanished = MinuteCounter(VANISHED_PER_ADDRESS)
        self._joined = MinuteCounter(JOINED_PER_MINUTE)
        self._salt = token_bytes(16)
        self._end_from = 0.0
        """Time of the loop from which on a large group may end."""
        self._vanishing: dict[str, Tombstone] = {}
        """Requests to vanish that are carried out in pieces, by id: what they delete is refused."""
        self._ending: dict[str, str] = {}
        """id of a 9008 that is carried out in pieces → its group: nothing more is stored there."""
        self._weights = Shares()
        """Bytes that waiting events count for."""
        self._limits = ClientLimits()
        self._overruns = Overruns()
        self._slow = SlowClients()
        self._slow_timer: asyncio.TimerHandle | None = None
        """Until the next slow client is served."""
        self._changing = asyncio.Lock()
        """Held from the look-ups of a batch until its state is in force."""
        self._dry_runs: set[asyncio.Task[None]] = set()
        self._batch: Batch | None = None
        """The batch that the store has now."""
        self._signatures = SignatureChecks(
            store, self._verified, max_waiting=_MAX_WAITING, threads=verifiers, metrics=metrics
        )
        self._asking = Asking(
            plugins, self._queue, max_waiting=_MAX_WAITING, clock=clock, metrics=metrics
        )
        self._lane: Lane[LaneItem] = Lane(
            self._taken,
            max_batch=MAX_BATCH,
            max_waiting=_MAX_WAITING,
            turn_of=client_or_type,
            line_of=connection_or_type,
            cost_of=self._cost_of,
            charge_of=charge_of,
            share_of=share_of,
            is_held=self._is_held,
            waited=metrics.write.commit_queue.add,
        )
        self._lists = ListSigning(self._lane.put, lambda: self._state.groups)
        self._tasks = asyncio.TaskGroup()
        self._running: list[asyncio.Task[None]] = []

    async def __aenter__(self) -> Ingest:
        tasks = await self._tasks.__aenter__()
        self._running = [
            tasks.create_task(_run(self._signatures.lane), name="verify"),
            tasks.create_task(_run(self._asking.lane), name="ask plug-ins"),
            tasks.create_task(_run(self._lane), name="lane"),
        ]
        return self

    async def __aexit__(self, *_: object) -> None:
        try:
            await self._end()
        finally:
            for task in self._running:
                task.cancel()  # it is done, unless something was raised
            self._delivery.stop()
            await self._tasks.__aexit__(None, None, None)  # raises what one of them has raised

    async def _end(self) -> None:
        verifying, asking, committing = self._running
        deadline = asyncio.get_running_loop().time() + _SHUTDOWN_S
        await self._finished(self._signatures.lane, verifying, deadline)
        self._asking.lane.close()
        await asyncio.wait([asking], timeout=_PLUGIN_SHUTDOWN_S)
        if not asking.done():
            await self._asking.stop()
        await asyncio.wait([asking])
        self._lists.hurry()
        await self._finished(self._lane, committing, deadline)
        await self.delivered()

    def hurry(self) -> None:
        """The relay will stop: what rests is committed while its clients can be told."""
        self._lane.hurry()

    async def _finished(
        self, lane: Lane[WriteEvent] | Lane[LaneItem], task: asyncio.Task[None], deadline: float
    ) -> None:
        """Let a lane end. What still waits at the deadline is not done."""
        left = max(0.0, deadline - asyncio.get_running_loop().time())
        if not task.done():
            with suppress(TimeoutError):
                await asyncio.wait_for(lane.drained(), left)
        lane.close()
        while not task.done():  # what reads much, or goes in pieces, is put back again
            self._answer(lane.drop(), STOPPING)
            await asyncio.wait([task], timeout=_STOPPING_S)
        self._answer(lane.drop(), STOPPING)

    def submit(
        self,
        event: Event,
        author: Author,
        origin: Origin,
        series: Series | None = None,
        *,
        is_only: bool = False,
    ) -> int:
        """Queue an event; `author.answered` is called when it is committed or refused. Returns what
        it weighs, as `weight_of` estimates it. `is_only`: no other of its connection waits."""
        weight = weight_of(event)
        refusal = self._screened(event, origin)
        if refusal is None and origin is Origin.WIRE and self._store.is_nearly_full():
            is_of_owner = author.is_owner or event.pubkey in self._state.actors.owners
            refusal = None if is_of_owner or is_ephemeral(event.kind) else _NEARLY_FULL
        if refusal is None:
            share = max(weight, _LEAST_SHARE) + (_OF_CONNECTION if is_only else 0)
            item = WriteEvent(
                event,
                weight,
                share,
                author,
                origin,
                message=author.message,
                screened_by=self._state.policy,
                series=series,
            )
            if origin is Origin.WIRE and not self._has_room_for(author, share):
                refusal = _full_for(series)
            elif is_only and self._signatures.may_pass(event):
                self._weights.add(author.counted_as, share)
                self._verified([item], self._signatures.signed([event]))
            elif self._signatures.lane.put(item):
                self._weights.add(author.counted_as, share)
            else:
                refusal = _full_for(series)
        if refusal is not None:
            if series is not None:
                series.note(refusal)
            self._metrics.answered([refusal])
            self._record_refusal(refusal, event, author, author.message)
            author.answered(event, weight, refusal)
        return weight

    def _has_room_for(self, author: Author, share: int) -> bool:
        weights, address = self._weights, author.counted_as
        return (
            weights.has_room_for(author, _MAX_WEIGHT)
            or weights.room_for(author, address, _MAX_WEIGHT, _ORDINARY) >= share
        )

    async def published(
        self,
        event: Event,
        keys: frozenset[str],
        address: IPv4Address | IPv6Address | None,
        counted_as: str,
    ) -> tuple[bool, str]:
        """Third and fourth element of the OK, as to a connection on which these keys logged in.

        `counted_as`: the address or key with which it shares turns and memory.
        """
        results: asyncio.Queue[Result] = asyncio.Queue()
        rights = self._state.visibility(Viewer(keys))
        author = Unconnected(
            keys,
            address,
            results.put_nowait,
            counted_as=counted_as,
            is_known=rights.is_known,
            is_owner=rights.is_owner,
        )
        self.submit(event, author, Origin.WIRE)
        return ok_reply(await results.get())

    @property
    def waiting(self) -> Mapping[str, int]:
        """Events and changes that wait for a signature check, a plug-in or a commit."""
        return {
            "verify": len(self._signatures.lane),
            "plugins": len(self._asking.lane),
            "commit": len(self._lane),
        }

    @property
    def is_busy(self) -> bool:
        """Whether something is committed, or could be."""
        return self._lane.is_busy

    @property
    def waiting_weight(self) -> int:
        """Estimated bytes of the events that wait."""
        return self._weights.used

    @property
    def vanishing(self) -> Set[str]:
        """Keys whose requests to vanish are carried out in pieces."""
        return {stone.by for stone in self._vanishing.values()}

    @property
    def undelivered(self) -> int:
        """Batches of rows, committed or taken over, that live subscriptions do not have yet."""
        return len(self._delivery)

    def _screened(self, event: Event, origin: Origin) -> Reject | None:
        state = self._state
        relay, most = self._relay_key.pubkey, self._max_event
        return screen(event, origin, self._clock(), state.policy, state.management, relay, most)

    def _record_refusal(
        self, reject: Reject, event: Event, author: Author, message: int | None
    ) -> None:
        self._metrics.refusals.note(
            reject, event, self._clock(), author.connection, author.address, message
        )

    async def dry_run(self, event: Event, author: Author) -> DryRun:
        """The outcome that an event would have now; nothing is stored or counted.

        Its signature is not verified, rates count as unused, plug-ins are not asked. Raises
        StoreFault.
        """
        state, relay = self._state, self._relay_key.pubkey
        sender = sender_of(author, Origin.WIRE)
        policy = state.policy
        candidate = candidate_of(
            event,
            policy.keep.keep_of(event),
            policy.systems,
            sender,
            self._is_here,
            foreign_h=policy.groups.foreign_h,
            derived=policy.groups.derived,
        )
        now = self._clock()
        wanted = lookups_for(
            [candidate],
            (),
            groups=state.groups,
            actors=state.actors,
            policy=policy,
            relay=relay,
            now=now,
        )
        seen = list[DryRun]()

        def decide(found: Found) -> WritePlan:
            world = World(
                policy,
                state.groups,
                state.actors,
                found,
                relay,
                now,
                state.management,
                max_event=self._max_event,
            )
            facts = facts_of(candidate, world) if candidate.malformed is None else None
            seen.append(DryRun(screen_and_judge(candidate, world).result, facts))
            return WritePlan()

        async def append() -> None:
            async with self._changing:  # the store may hand over what others wrote
                await self._store.append(wanted, decide)

        # Also when the caller is cancelled: the store goes on.
        task = asyncio.create_task(append(), name="dry run")
        self._dry_runs.add(task)
        task.add_done_callback(self._dry_runs.discard)
        await asyncio.shield(task)
        return seen[0]

    def manage(self, command: ManagementChange) -> None:
        """Queue a change; `command.answered` is called when it is committed or refused."""
        if not self._lane.put(command):
            command.answered(QUEUE_FULL)

    async def changed(
        self, *changes: ListChange, then: Callable[[], None] = lambda: None
    ) -> Reject | None:
        """Commit what a NIP-86 call changes; `then` is called before its events are delivered."""
        results: asyncio.Queue[Reject | None] = asyncio.Queue()

        def answered(refused: Reject | None) -> None:
            then()
            results.put_nowait(refused)

        self.manage(ManagementChange(changes, answered))
        return await results.get()

    def expire(self, expiry: ExpireRows) -> None:
        """Queue the removal of expired rows; sets `expiry.done`."""
        if not self._lane.put(expiry):
            _set_done(expiry, is_done=False)

    def sweep(self, sweeping: SweepRows | SweepVersions) -> None:
        """Queue the removal of rows that nothing holds, or of old versions; sets
        `sweeping.done`."""
        if not self._lane.put(sweeping):
            _set_done(sweeping, is_done=False)

    # -- before the lane ------------------------------------------------------------------------

    def _verified(self, batch: Sequence[WriteEvent], good: Sequence[bool]) -> None:
        for item, signed in zip(batch, good, strict=True):
            if not signed:
                self._refuse(item, BAD_SIGNATURE)
            elif not self._asking.is_due(item):
                self._queue(item)
            elif not self._asking.lane.put(item):
                self._refuse(item, _full_for(item.series))

    def _queue(self, item: WriteEvent) -> None:
        """Queue the event for the commit, also if a plug-in refused it: policy rules come first."""
        if not self._lane.put(item):
            self._refuse(item, _full_for(item.series))

    def _refuse(self, item: WriteEvent, refusal: Reject) -> None:
        self._weights.add(item.author.counted_as, -item.share)
        if item.series is not None:
            item.series.note(refusal)
        self._metrics.answered([refusal])
        self._record_refusal(refusal, item.event, item.author, item.message)
        item.author.answered(item.event, item.weight, refusal)

    # -- the lane -------------------------------------------------------------------------------

    def _cost_of(self, item: LaneItem) -> int:
        """The cost of the item in the next batch."""
        relay = self._relay_key.pubkey
        groups, owners = self._state.groups, self._state.actors.owners
        cost = cost_of(item, groups, self._fanout, relay, self._members, owners)
        if not isinstance(item, WriteEvent):
            return cost
        item.cost = cost
        return MAX_BATCH if self._slow.has_turn(item) else self._overruns.cost_of(item)

    def _is_held(self, item: LaneItem) -> bool:
        is_held = self._slow.holds(item, asyncio.get_running_loop().time())
        if is_held:
            self._schedule_slow()
        return is_held

    def _schedule_slow(self) -> None:
        """Schedule the next turn of a slow client."""
        due_at = self._slow.due_at
        if self._slow_timer is None and due_at is not None:
            self._slow_timer = asyncio.get_running_loop().call_at(due_at, self._serve_slow)

    def _serve_slow(self) -> None:
        self._slow_timer = None
        for item in self._slow.next(asyncio.get_running_loop().time()):
            self._lane.release(item)
        self._schedule_slow()

    def _members(self) -> int:
        return len(self._state.management.of(ListName.ALLOWED_KEYS))

    async def change_state(self, change: Callable[[], Awaitable[None]]) -> None:
        """Call `change` between two batches, then begin to deliver what other relays wrote. Raises
        what `change` raises."""
        async with self._changing:
            await change()
        self._delivery.begin()

    async def delivered(self) -> None:
        """Wait until what is due is delivered, as far as it may be."""
        await self._delivery.ended()

    def overtaken(
        self, seqs: range, passed_on: Mapping[int, Sequence[Stored]]
    ) -> Callable[[], Lookups] | None:
        """Other relays wrote the rows with these seqs, and the state after them is in force.
        Returns a function that gives the look-ups that the batch must make now, or raises
        TooMuchToRead; None: the store has no batch.

        `passed_on`: as of `Delivery.add_others`.
        """
        self._delivery.add_others(seqs, passed_on)
        batch = self._batch
        if batch is None:
            return None
        self._state.begin_commit(seqs.stop - 1)
        batch.begin(self._state)
        return lambda: batch.lookups

    async def _taken(self, batch: Sequence[LaneItem]) -> None:
        """Commit what the lane gives. An event that has waited for the turn of a slow client is
        refused if its client has left: it would keep clients waiting that are still there."""
        served = self._slow.served
        if served is not None and served.author.is_over and served.pieces is None:
            gone = [item for item in batch if item is served]
            self._answer(gone, _IS_GONE)
            self._slow.ended(gone)
            batch = [item for item in batch if item is not served]
        if batch:
            await self._commit(batch)
        self._slow.ended(batch)
        self._schedule_slow()

    async def _commit(self, batch: Sequence[LaneItem]) -> None:
        """Commit first what all clients without a limit sent, or as many of them as do not read too
        much together; then changes by owners (NIP-86), which wait for no client; then some changes
        of a client with a limit, and of further ones until that has taken as long as all before.
        What is left waits in the lane for another turn."""
        began = perf_counter()
        self._overruns.begin()
        due = rights_first(await self._with_room(self._without_early_ends(batch)))
        part, alone = self._limits.apart(due)
        budget = 1.0
        while part:
            tried = part[: number_together(part)]
            try:
                answered = await self._committed(tried)
            except TooMuchToRead as fault:
                client = client_or_type(part[0])
                if all(client_or_type(item) == client for item in part):
                    took_long = isinstance(fault, TookTooLong)
                    self._limits.set(client, Limit(1 if took_long else max(len(tried) // 2, 1)))
                    alone[client] = part
                    break
                if isinstance(fault, TookTooLong):
                    part, suspected = self._limits.apart(part)
                    alone |= suspected
                    if suspected:
                        continue
                part, left = self._limits.split(part, fault.shares, budget)
                self._lane.put_back(left)
                if isinstance(fault, TookTooLong):  # on a slow disk a half takes as long
                    self._lane.put_back(part[self._lane.max_batch :])
                    part = part[: self._lane.max_batch]
                budget /= 4  # tags count too, and are not known
            else:
                self._put_back(part, answered)
                break
        changes = alone.pop(ManagementChange, None)
        if changes is not None:
            self._put_back(changes, await self._limited(changes))
        until = 2 * perf_counter() - began
        try:
            while alone:
                own = alone.pop(self._limits.next_of(alone))
                self._put_back(own, await self._limited(own))
                if perf_counter() >= until:
                    break
        finally:
            for others in alone.values():
                self._lane.put_back(others)

    def _without_early_ends(self, batch: Sequence[LaneItem]) -> Sequence[LaneItem]:
        """The batch without events that end a large group too soon after an end that took long."""
        now = asyncio.get_running_loop().time()
        if self._lane.is_ending or now >= self._end_from:
            return batch
        left: list[LaneItem] = []
        for item in batch:
            if (
                not isinstance(item, WriteEvent)
                or item.origin is not Origin.WIRE
                or not self._ends_large_group(item)
            ):
                left.append(item)
            elif item.pieces is not None:
                self._lane.put_back([item])
                self._lane.rest(client_or_type(item), self._end_from - now)
            else:
                self._answer([item], _TOO_MANY_END)
        return left

    def _has_turn(self, item: WriteEvent) -> bool:
        """Whether others may wait for the event for as long as it takes."""
        is_free = item.origin is not Origin.WIRE or item.author.is_owner or self._lane.is_ending
        return is_free or (item.needs_turn and item is self._slow.served)

    def _ends_large_group(self, item: LaneItem) -> bool:
        return (
            isinstance(item, WriteEvent)
            and item.event.kind == kinds.DELETE_GROUP
            and item.event.pubkey not in self._state.actors.owners
            and item.cost > MAX_BATCH
        )

    async def _with_room(self, batch: Sequence[LaneItem]) -> Sequence[LaneItem]:
        """What can be committed now. If the store had to make room for tags, the events of the
        clients with most tags are queued again, as many as there is no room for, so that others are
        committed first; these clients rest for as long as that took. An event is committed once the
        room that was made while it waited is enough for it."""
        tags, began, room = sum(map(_tags_of, batch)), perf_counter(), 0
        with suppress(StoreFault):  # nothing can be stored either
            room = await self._store.make_room(tags) if tags else 0
        if not room:
            return batch
        by_client: Counter[object] = Counter()
        for item in batch:
            by_client[client_or_type(item)] += _tags_of(item)
        waiting: dict[object, int] = {}
        """Client with most tags → how many of its tags were looked at."""
        for client, number in by_client.most_common():
            if tags > room or not waiting:
                waiting[client] = 0
                tags -= number
        due, later = list[LaneItem](), list[WriteEvent]()
        is_over = set[object]()
        for item in batch:
            client = client_or_type(item)
            if isinstance(item, WriteEvent) and client in waiting:
                waiting[client] += _tags_of(item)
                if client in is_over or waiting[client] > item.room:
                    is_over.add(client)
                    item.room += max(1, room // len(waiting))
                    later.append(item)
                    continue
            due.append(item)
        if later:
            self._lane.put_back(later)
            for client in is_over:
                if not isinstance(client, type):
                    self._lane.rest(client, perf_counter() - began)
        return due

    async def _limited(self, part: Sequence[LaneItem]) -> int:
        """Commit as many changes of one client as its limit allows; how many were answered."""
        client = client_or_type(part[0])
        limit = self._limits.take(client)
        while True:
            tried = part[: min(number_together(part), limit.number)]
            try:
                answered = await self._committed(tried)
                break
            except TookTooLong:
                if len(tried) == 1:
                    _log.error(
                        "%s: refused, its transaction takes too long",
                        name_of(tried[0]),
                        extra=request_of(tried[0]),
                    )
                    self._answer(tried, TOOK_TOO_LONG)
                    answered = 1
                    break
                limit = Limit(1)
            except TooMuchToRead:
                if isinstance(tried[0], SweepRows) and len(tried) == 1:
                    tried[0].reads_too_much = True
                    self._answer(tried, None)
                    answered = 1
                    break
                if len(tried) == 1:
                    shrink(tried[0])
                limit = Limit(max(len(tried) // 2, 1))
        limit.succeeded(asyncio.get_running_loop().time())
        self._limits.set(client, limit)
        return answered

    def _put_back(self, part: Sequence[LaneItem], answered: int) -> None:
        """Queue again what was not answered: all of it when only a piece of the first was done."""
        self._lane.put_back(part[answered:], 0 if answered else self._cost_of(part[0]))

    async def _committed(self, batch: Sequence[LaneItem]) -> int:
        """Commit and deliver. Returns how many of the items were answered: as many as there was
        time for, or none after a piece of a deletion. Raises TooMuchToRead as `_stored`."""
        try:
            async with self._changing:
                with _switching_soon(is_small=len(batch) <= _SMALL_BATCH):
                    committed = await self._stored(batch)
            # Not inside: what other relays on the store commit is taken over meanwhile.
            await self._store.replicated()
        except TooMuchToRead:
            raise
        except StoreFault as fault:
            _log.error("a batch of %d changes was not stored: %s", len(batch), fault)
            self._answer(batch, STORE_FAILED)
        except Exception:  # outermost frame: the lane must go on  # noqa: BLE001
            if len(batch) == 1:
                _log.exception("%s: internal error", name_of(batch[0]), extra=request_of(batch[0]))
                self._answer(batch, STORE_FAILED)
                return 1
            # Only the event that raises must fail: try each alone.
            _log.exception("a batch of %d changes raised, each is tried alone", len(batch))
            for place, item in enumerate(batch):
                if not await self._limited([item]):
                    return place
        else:
            batch = batch[: committed.number]
            self._limits.note(committed.large_readers())
            if committed.needs_turn and self._is_one_too_many(batch[0]):
                self._answer(batch, TOO_MANY_VANISH)
                return 1
            if not committed.is_piece:
                self._answer(batch, None)
            await self._delivery.run()
            for item in batch:
                if isinstance(item, SignLists):
                    self._lists.signed(committed.listed, perf_counter() - committed.taken_at)
            self._lists.begin()
            if self._metrics.traces is not None:
                trace(self._metrics.traces, batch, committed)
            if committed.is_piece:
                return 0
        return len(batch)

    def _is_one_too_many(self, request: LaneItem) -> bool:
        """Whether this request to vanish has done nothing yet, and another one of its client waits
        for a turn; without a known key, also another one of its network."""
        assert isinstance(request, WriteEvent)
        if request.pieces is not None and request.pieces.taken is not None:
            return False
        client, is_known = client_or_type(request), request.author.is_known
        return self._slow.has_request(client, is_known=is_known)

    def _answer(self, batch: Sequence[LaneItem], fault: Reject | None) -> None:
        """Report each item's own result, or the fault for all."""
        self._metrics.answered([fault or each.result for each in _events_in(batch)])
        for item in batch:
            match item:
                case WriteEvent():
                    if item.pieces is not None:
                        self._vanishing.pop(item.event.id, None)
                        self._ending.pop(item.event.id, None)
                    self._weights.add(item.author.counted_as, -item.share)
                    result = fault or item.result
                    if item.series is not None:
                        item.series.note(result)
                    if isinstance(result, Reject):
                        self._record_refusal(result, item.event, item.author, item.message)
                    item.author.answered(item.event, item.weight, result)
                case ManagementChange():
                    item.answered(fault or item.result)
                case ExpireRows() | SweepRows() | SweepVersions():
                    _set_done(item, is_done=fault is None)
                case SignLists():
                    self._lists.answered()
                case _:
                    assert_never(item)

    async def _stored(self, items: Sequence[LaneItem]) -> Batch:
        """Judge and commit. Raises StoreFault, and TooMuchToRead with the clients' shares."""
        began = thread_time()
        first = items[0]
        if isinstance(first, WriteEvent) and first.pieces is not None:
            first.pieces.has_turn = self._has_turn(first)
        batch = Batch(
            items,
            self._state,
            self._relay_key,
            now=self._clock(),
            is_here=self._is_here,
            guesses=self._guesses,
            buckets=self._buckets,
            vanished=self._vanished,
            joined=self._joined,
            salt=self._salt,
            vanishing=[*self._vanishing.values()],
            ending={*self._ending.values()},
            unlisted=self._lists.due,
            list_room=self._lists.room,
            measures_each=self._overruns.is_measuring,
        )
        ends_large_group = any(map(self._ends_large_group, items))
        self._state.begin_commit(self._store.committed())
        batch.taken_at = perf_counter()
        self._batch = batch
        try:
            wanted = batch.lookups
            loop_s = thread_time() - began
            await self._store.append(wanted, batch.decide)
            resumed = thread_time()
            # The batch is on disk: from here on nothing may raise or take it back.
            if batch.is_piece:
                self._note_piece(items[0])
                self._ending.update(batch.plan.ending)
            log_changes(self._state.groups, batch.plan.groups)
            self._state.adopt(batch.groups)
            self._state.manage(batch.management)
            self._delivery.add(batch.delivered)
            took = perf_counter() - batch.taken_at
            has_ended = batch.plan.ending or batch.plan.deleted_groups
            if has_ended and ends_large_group and took > _SLOW_END_S:
                self._end_from = asyncio.get_running_loop().time() + 9 * took
            self._lists.add(batch.unlisted, batch.listed_bytes)
            done = items[: batch.number]
            now = asyncio.get_running_loop().time()
            # Delivery not: it costs as much as others have subscribed to.
            took_s = self._store.append_s + loop_s + thread_time() - resumed
            self._note_time(done, took_s, max(took, took_s), now)
            if isinstance(first, WriteEvent):
                first.needs_turn = batch.needs_turn
            if self._overruns.note(done, batch.took_s):
                self._lane.max_batch = self._overruns.max_batch
        except TookTooLong:
            took_s = self._store.append_s + loop_s
            self._note_time(items, took_s, took_s, asyncio.get_running_loop().time())
            raise
        except TooMuchToRead as fault:
            shares: dict[object, float] = {}
            for item, share in batch.shares(fault.shares):
                if share:
                    client = client_or_type(item)
                    shares[client] = shares.get(client, 0.0) + share
            raise TooMuchToRead(shares) from None
        finally:
            self._batch = None
            self._state.end_commit()
            self._measure(batch)
            for item in items:
                if isinstance(item, ExpireRows | SweepRows | SweepVersions):
                    item.took_s += batch.stored_at - batch.taken_at
        return batch

    def _note_time(
        self, items: Sequence[LaneItem], took_s: float, held_s: float, now: float
    ) -> None:
        """Note how long a transaction took, see `SlowClients.note`."""
        disk_s = self._store.disk_s
        suspects = self._slow.note(items, took_s, disk_s, held_s, now)
        self._limits.time_apart(suspects, self._slow.pause_ends)
        if suspects or (disk_s > LONG_S and len(items) > 1):
            self._overruns.shared(items, took_s)
            self._lane.max_batch = self._overruns.max_batch

    def _note_piece(self, item: LaneItem) -> None:
        assert isinstance(item, WriteEvent)
        if item.event.kind == kinds.VANISH:
            self._vanishing[item.event.id] = tombstone_while_vanishing(item.event)

    def _measure(self, batch: Batch) -> None:
        batch.stored_at, stages = perf_counter(), self._metrics.write
        self._metrics.committed(batch.number, batch.stored_at - batch.taken_at)
        if not batch.decided_at:  # nothing was decided
            return
        stages.lookup.add(batch.began_at - batch.taken_at)
        stages.decide.add(batch.decided_at - batch.began_at)
        stages.commit.add(batch.stored_at - batch.decided_at)
        if batch.judged_s:
            stages.policies.add(batch.judged_s)


async def _run(lane: Lane[Any]) -> None:
    """Raises RuntimeError if something that the lane waits for is cancelled, and not the lane: the
    TaskGroup would take a CancelledError for the lane's own end."""
    try:
        await lane.run()
    except asyncio.CancelledError as error:
        task = asyncio.current_task()
        if task is not None and task.cancelling():
            raise
        raise RuntimeError("what a lane of writes waited for was cancelled") from error


@contextmanager
def _switching_soon(*, is_small: bool) -> Iterator[None]:
    """Inside, the store's thread gets the GIL soon: it works on a batch."""
    sys.setswitchinterval(_SMALL_SWITCH_S if is_small else SWITCH_S)
    try:
        yield
    finally:
        sys.setswitchinterval(SWITCH_S)


def _full_for(series: Series | None) -> Reject:
    return QUEUE_FULL if series is None else _FULL_FOR_SERIES


def _tags_of(item: LaneItem) -> int:
    """How many tags the store will index."""
    if isinstance(item, WriteEvent) and not is_ephemeral(item.event.kind):
        return len(item.event.tags)
    return 0


def _events_in(batch: Sequence[LaneItem]) -> list[WriteEvent]:
    return [item for item in batch if isinstance(item, WriteEvent)]


def _set_done(item: ExpireRows | SweepRows | SweepVersions, *, is_done: bool) -> None:
    if not item.done.done():  # the waiting task may have been cancelled
        item.done.set_result(is_done)
