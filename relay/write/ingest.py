"""The road of an EVENT: screen, verify, decide in the lane, commit, answer, deliver.

What NIP-86 calls change goes through the same lane: no event is taken after the ban before it. So
does what has expired.

The only conductor: all that it calls are rooms that return values and call nobody back. Rules about
membership are judged inside the lane, against the world as the event before left it, so that nobody
slips a message in behind their own removal. State changes only after the commit.
"""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Final, Protocol, assert_never

from relay.access.quotas import InviteGuesses, TokenBuckets
from relay.errors import Prefix, StoreFault
from relay.lifecycle.rows import WritePlan
from relay.nostr.keys import are_signed
from relay.read.linked_rows import NO_LINKS
from relay.verdict import Arrival, Origin, Reject
from relay.write.batch import Batch
from relay.write.candidate import Sender, candidate_of
from relay.write.commands import (
    DryRun,
    ExpireRows,
    ManagementChange,
    SweepRows,
    Work,
    WriteEvent,
)
from relay.write.judge import screen, screen_and_judge
from relay.write.lane import Lane
from relay.write.lookups import lookups_for
from relay.write.world import World, facts_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence
    from concurrent.futures import Executor

    from relay.groups.group import Group, Groups
    from relay.lifecycle.rows import Found, Stored
    from relay.nostr.event import Event
    from relay.nostr.keys import SecretKey
    from relay.observe import Metrics
    from relay.read.fanout import Fanout
    from relay.read.linked_rows import Links
    from relay.state import RelayState
    from relay.storage import Appender
    from relay.write.commands import Author

_log = logging.getLogger(__name__)

_MAX_BATCH: Final = 512
_MAX_VERIFIED: Final = 128
"""Events of one batch of signature checks: 16 to 64 a thread."""
_MAX_WAITING: Final = 32_768
_BOTH_THREADS: Final = 32
_MAX_ASKED: Final = 256
"""Events that plug-ins are asked about at once."""
_LAST_ANSWERS_S: Final = 1.0
"""So long plug-ins may take for what is on its road when the relay stops: its connections, which
waited for these answers, are closed by then."""

QUEUE_FULL: Final = Reject(Prefix.RATE_LIMITED, "too many events are waiting, slow down", "queue")
BAD_SIGNATURE: Final = Reject(Prefix.INVALID, "sig: is not a signature of id by pubkey", "sig")
UNASKED: Final = Reject(Prefix.ERROR, "a plug-in of this relay failed, try again later", "plug-ins")
OUR_FAULT: Final = Reject(Prefix.ERROR, "the event could not be stored, try again later", "store")


class Plugins(Protocol):
    """Programs of the admin's own that may object to an event."""

    def asks_about(self, event: Event, origin: Origin) -> bool: ...

    async def objections(self, events: Sequence[tuple[Event, Arrival]]) -> Sequence[Reject | None]:
        """One for each event, in time: `error:` where an answer is owed."""

    async def stop(self) -> None:
        """Whoever waits for an answer, and who asks from now on, gets `error:`."""


class Ingest:
    """`async with` it: its lanes run inside; leaving it commits what waits."""

    def __init__(
        self,
        store: Appender,
        state: RelayState,
        relay_key: SecretKey,
        fanout: Fanout,
        *,
        clock: Callable[[], int],
        verifiers: Executor,
        metrics: Metrics,
        is_here: Callable[[str], bool],
        plugins: Plugins | None = None,
    ) -> None:
        """`is_here`: whether a URL is this relay's; the caller starts and stops `plugins`."""
        self._store = store
        self._state = state
        self._relay_key = relay_key
        self._fanout = fanout
        self._clock = clock
        self._verifiers = verifiers
        self._metrics = metrics
        self._is_here = is_here
        self._plugins = plugins
        self._guesses = InviteGuesses()
        self._buckets = TokenBuckets()
        self._verifying = Lane(self._verify, max_batch=_MAX_VERIFIED, max_waiting=_MAX_WAITING)
        self._asking = Lane(self._ask, max_batch=_MAX_ASKED, max_waiting=_MAX_WAITING)
        self._lane: Lane[Work] = Lane(
            self._commit, max_batch=_MAX_BATCH, max_waiting=2 * _MAX_WAITING
        )
        self._tasks: list[asyncio.Task[None]] = []

    async def __aenter__(self) -> Ingest:
        self._tasks = [
            asyncio.create_task(self._verifying.run(), name="verify"),
            asyncio.create_task(self._asking.run(), name="ask plug-ins"),
            asyncio.create_task(self._lane.run(), name="lane"),
        ]
        return self

    async def __aexit__(self, *_: object) -> None:
        verifying, asking, deciding = self._tasks
        self._verifying.close()
        await verifying
        self._asking.close()
        await asyncio.wait([asking], timeout=_LAST_ANSWERS_S)
        if self._plugins is not None and not asking.done():
            await self._plugins.stop()
        await asking
        self._lane.close()
        await deciding

    def submit(self, event: Event, author: Author, origin: Origin) -> None:
        """Start an event on its road; `author.answered` is called at its end, or at once."""
        objected = self._screened(event, origin)
        if objected is None and not self._verifying.put(WriteEvent(event, author, origin)):
            objected = QUEUE_FULL
        if objected is not None:
            self._metrics.answered([objected])
            self._note(objected, event, author)
            author.answered(event, objected)

    def _screened(self, event: Event, origin: Origin) -> Reject | None:
        state = self._state
        relay = self._relay_key.pubkey
        return screen(event, origin, self._clock(), state.policy, state.management, relay)

    def _note(self, reject: Reject, event: Event, author: Author) -> None:
        self._metrics.refusals.note(reject, event, self._clock(), author.connection, author.address)

    async def dry_run(self, event: Event, author: Author) -> DryRun:
        """What would become of an event that came now; nothing is stored or counted.

        Its signature is not looked at, rates are taken as unused, plug-ins are not asked. Raises
        StoreFault.
        """
        state, relay = self._state, self._relay_key.pubkey
        sender = Sender(Origin.WIRE, author.authenticated, author.address, author.connection)
        candidate = candidate_of(
            event, state.policy.keep.keep_of(event), state.policy.systems, sender, self._is_here
        )
        wanted = lookups_for(
            [candidate],
            (),
            groups=state.groups,
            actors=state.actors,
            policy=state.policy,
            relay=relay,
        )
        now, seen = self._clock(), list[DryRun]()

        def decide(found: Found) -> WritePlan:
            world = World(
                state.policy, state.groups, state.actors, found, relay, now, state.management
            )
            facts = facts_of(candidate, world) if candidate.malformed is None else None
            seen.append(DryRun(screen_and_judge(candidate, world).result, facts))
            return WritePlan()

        await self._store.append(wanted, decide)
        return seen[0]

    def order(self, order: ManagementChange) -> None:
        """Start what a NIP-86 call changes on its road; it is answered at its end, or at once."""
        if not self._lane.put(order):
            order.answered(QUEUE_FULL)

    def expire(self, expiry: ExpireRows) -> None:
        """Let rows that have expired go; `expiry.done` says whether they did."""
        if not self._lane.put(expiry):
            _settle(expiry, gone=False)

    def sweep(self, sweeping: SweepRows) -> None:
        """Let rows go that nothing holds; `sweeping.done` says whether that was decided."""
        if not self._lane.put(sweeping):
            _settle(sweeping, gone=False)

    # -- signatures -----------------------------------------------------------------------------

    async def _verify(self, batch: Sequence[WriteEvent]) -> None:
        loop = asyncio.get_running_loop()
        events = [submission.event for submission in batch]
        if len(events) < _BOTH_THREADS:
            good = await loop.run_in_executor(self._verifiers, self._signed, events)
        else:
            middle = len(events) // 2
            halves = await asyncio.gather(
                loop.run_in_executor(self._verifiers, self._signed, events[:middle]),
                loop.run_in_executor(self._verifiers, self._signed, events[middle:]),
            )
            good = [*halves[0], *halves[1]]
        for submission, signed in zip(batch, good, strict=True):
            if not signed:
                self._refuse(submission, BAD_SIGNATURE)
            elif not self._next(submission).put(submission):
                self._refuse(submission, QUEUE_FULL)

    def _next(self, submission: WriteEvent) -> Lane[WriteEvent] | Lane[Work]:
        """Where a signed event goes."""
        plugins = self._plugins
        if plugins is None or not plugins.asks_about(submission.event, submission.origin):
            return self._lane
        return self._asking

    def _refuse(self, submission: WriteEvent, refusal: Reject) -> None:
        self._metrics.answered([refusal])
        self._note(refusal, submission.event, submission.author)
        submission.author.answered(submission.event, refusal)

    def _signed(self, events: Sequence[Event]) -> list[bool]:
        """Which of them are signed; on a worker thread, where there is time to look ahead too."""
        good = are_signed(events)
        self._store.prepare([event for event, is_good in zip(events, good, strict=True) if is_good])
        return good

    # -- plug-ins -------------------------------------------------------------------------------

    async def _ask(self, batch: Sequence[WriteEvent]) -> None:
        """What plug-ins say goes into the lane with the event, where the rules speak first."""
        assert self._plugins is not None
        now = self._clock()
        asked = [
            (each.event, Arrival(now, each.origin, each.author.authenticated, each.author.address))
            for each in batch
        ]
        try:
            objections = await self._plugins.objections(asked)
        except Exception:  # the last frame of the lane: it must live on  # noqa: BLE001
            _log.exception("plug-ins could not be asked about %d events", len(batch))
            objections = [UNASKED] * len(batch)
        for submission, objection in zip(batch, objections, strict=True):
            submission.objection = objection
            if not self._lane.put(submission):
                self._refuse(submission, QUEUE_FULL)

    # -- the lane -------------------------------------------------------------------------------

    async def _commit(self, batch: Sequence[Work]) -> None:
        try:
            committed = await self._stored(batch)
        except StoreFault as fault:
            _log.error("a batch of %d changes was not stored: %s", len(batch), fault)
            self._answer(batch, OUR_FAULT)
        except Exception:  # the last frame of the lane: it must live on  # noqa: BLE001
            if len(batch) == 1:
                _log.exception("%s could not be decided", _named(batch[0]))
                self._answer(batch, OUR_FAULT)
                return
            # One event that nobody foresaw must not take its neighbours with it.
            for item in batch:
                await self._commit([item])
        else:
            # From here on it is on disk: whatever happens, nothing of it is taken back.
            _log_changes(self._state.groups, committed.plan.groups)
            self._state.adopt(committed.groups)
            self._state.manage(committed.management)
            self._answer(batch, None)
            if committed.rows:
                await self._announce(committed.rows)

    def _answer(self, batch: Sequence[Work], fault: Reject | None) -> None:
        """Each its own result, or all of them our fault."""
        self._metrics.answered([fault or each.result for each in _submissions(batch)])
        for item in batch:
            match item:
                case WriteEvent():
                    result = fault or item.result
                    if isinstance(result, Reject):
                        self._note(result, item.event, item.author)
                    item.author.answered(item.event, result)
                case ManagementChange():
                    item.answered(fault or item.result)
                case ExpireRows() | SweepRows():
                    _settle(item, gone=fault is None)
                case _:
                    assert_never(item)

    async def _announce(self, rows: Sequence[Stored]) -> None:
        try:
            links = await self._links_of(rows)
            self._metrics.delivered(self._fanout.deliver(rows, links))
        except Exception:  # the lane must live on  # noqa: BLE001
            _log.exception("%d stored events were not delivered live", len(rows))

    async def _links_of(self, rows: Sequence[Stored]) -> Links:
        """What the rows point to; nothing, and so for nobody, when it cannot be looked up."""
        try:
            return await self._fanout.links_of(rows)
        except StoreFault as fault:
            _log.error("what stored events point to was not found: %s", fault)
            return NO_LINKS

    async def _stored(self, items: Sequence[Work]) -> Batch:
        """Judge and commit."""
        batch = Batch(
            items,
            self._state,
            self._relay_key,
            now=self._clock(),
            is_here=self._is_here,
            guesses=self._guesses,
            buckets=self._buckets,
        )
        with self._metrics.commit(len(items)):
            await self._store.append(batch.lookups, batch.decide)
        return batch


def _submissions(batch: Sequence[Work]) -> list[WriteEvent]:
    return [item for item in batch if isinstance(item, WriteEvent)]


def _settle(item: ExpireRows | SweepRows, *, gone: bool) -> None:
    if not item.done.done():  # whoever waited may have been stopped
        item.done.set_result(gone)


def _named(item: Work) -> str:
    """What it is, for the log."""
    match item:
        case WriteEvent():
            return f"an event of kind {item.event.kind}"
        case ManagementChange():
            return "a NIP-86 call"
        case ExpireRows():
            return "what has expired"
        case SweepRows():
            return "what is swept"
        case _:
            assert_never(item)


def _log_changes(before: Groups, changed: Mapping[str, Group | None]) -> None:
    """What an operator wants to find when a group is suddenly another (N29-48, N29-101, Z-05)."""
    for group_id, group in changed.items():
        was = before.get(group_id)
        if was is None or group is None:
            continue
        if was.only_members_read and not group.only_members_read:
            _log.warning("group %r was opened: everyone may read all that was said there", group_id)
        if (was.flags, was.metadata) != (group.flags, group.metadata):
            _log.info(
                "group %r is now %s and says %s, before: %s and %s",
                group_id,
                *(_listed(group.flags), _listed({tag[0] for tag in group.metadata})),
                *(_listed(was.flags), _listed({tag[0] for tag in was.metadata})),
            )


def _listed(words: Iterable[str]) -> str:
    return ", ".join(sorted(words)) or "nothing"
