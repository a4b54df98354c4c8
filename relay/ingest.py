"""The road of an EVENT: screen, verify, decide in the lane, commit, answer, deliver.

The only conductor: all that it calls are rooms that return values and call nobody back. Rules about
membership are judged inside the lane, against the world as the event before left it, so that nobody
slips a message in behind their own removal. State changes only after the commit.
"""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Final

from relay.decision import ONLY_RELAY, Decision, Submission, acts_here, with_departures, with_state
from relay.errors import Prefix, StoreFault
from relay.lane import Lane
from relay.nostr import kinds
from relay.nostr.keys import are_signed
from relay.retention import wanted_for
from relay.verdict import Reject

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from concurrent.futures import Executor

    from relay.decision import Author
    from relay.fanout import Fanout
    from relay.nostr.event import Event
    from relay.nostr.keys import SecretKey
    from relay.observe import Metrics
    from relay.projections import Realm
    from relay.retention import Found, Stored, Wanted, WritePlan
    from relay.storage import Store
    from relay.verdict import Origin

_log = logging.getLogger(__name__)

_MAX_BATCH: Final = 512
_MAX_VERIFIED: Final = 128
"""Events of one batch of signature checks: 16 to 64 a thread (DESIGN §7)."""
_MAX_WAITING: Final = 32_768
_BOTH_THREADS: Final = 32

QUEUE_FULL: Final = Reject(Prefix.RATE_LIMITED, "too many events are waiting, slow down", "queue")
BAD_SIGNATURE: Final = Reject(Prefix.INVALID, "sig: is not a signature of id by pubkey", "sig")
OUR_FAULT: Final = Reject(Prefix.ERROR, "the event could not be stored, try again later", "store")


class Ingest:
    """`async with` it: its lanes run inside; leaving it commits what waits."""

    def __init__(
        self, store: Store, realm: Realm, relay_key: SecretKey, fanout: Fanout, *,
        clock: Callable[[], int], verifiers: Executor, metrics: Metrics,
        committed: Callable[[int], None], is_here: Callable[[str], bool],
    ) -> None:  # fmt: skip
        """`committed` is told the new head after each commit (the bus); `is_here` says whether a
        URL is this relay's."""
        self._store = store
        self._realm = realm
        self._relay_key = relay_key
        self._fanout = fanout
        self._clock = clock
        self._verifiers = verifiers
        self._metrics = metrics
        self._committed = committed
        self._is_here = is_here
        self._verifying = Lane(
            self._verify, max_batch=_MAX_VERIFIED, max_waiting=_MAX_WAITING
        )
        self._lane = Lane(self._commit, max_batch=_MAX_BATCH, max_waiting=2 * _MAX_WAITING)
        self._tasks: list[asyncio.Task[None]] = []

    async def __aenter__(self) -> Ingest:
        self._tasks = [
            asyncio.create_task(self._verifying.run(), name="verify"),
            asyncio.create_task(self._lane.run(), name="lane"),
        ]
        return self

    async def __aexit__(self, *_: object) -> None:
        for lane, task in zip((self._verifying, self._lane), self._tasks, strict=True):
            lane.close()
            await task

    def submit(self, event: Event, author: Author, origin: Origin) -> None:
        """Start an event on its road; `author.answered` is called at its end, or at once."""
        objected = self._realm.policy.screen(event, self._clock(), origin)
        if (
            objected is None
            and event.kind in kinds.GROUP_STATE
            and event.pubkey != self._relay_key.pubkey
        ):
            objected = ONLY_RELAY
        if objected is None and not self._verifying.put(Submission(event, author, origin)):
            objected = QUEUE_FULL
        if objected is not None:
            self._metrics.answered([objected])
            author.answered(event, objected)

    # -- signatures -----------------------------------------------------------------------------

    async def _verify(self, batch: Sequence[Submission]) -> None:
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
                submission.result = BAD_SIGNATURE
            elif self._lane.put(submission):
                continue
            else:
                submission.result = QUEUE_FULL
            self._metrics.answered([submission.result])
            submission.author.answered(submission.event, submission.result)

    def _signed(self, events: Sequence[Event]) -> list[bool]:
        """Which of them are signed; on a worker thread, where there is time to look ahead too."""
        good = are_signed(events)
        self._store.foresee([event for event, is_good in zip(events, good, strict=True) if is_good])
        return good

    # -- the lane -------------------------------------------------------------------------------

    async def _commit(self, batch: Sequence[Submission]) -> None:
        try:
            decision, head = await self._stored(batch)
        except StoreFault as fault:
            _log.error("a batch of %d events was not stored: %s", len(batch), fault)
            self._answer(batch, OUR_FAULT)
        except Exception:  # the last frame of the lane: it must live on  # noqa: BLE001
            if len(batch) == 1:
                _log.exception("an event of kind %d could not be decided", batch[0].event.kind)
                self._answer(batch, OUR_FAULT)
                return
            # One event that nobody foresaw must not take its neighbours with it.
            for submission in batch:
                await self._commit([submission])
        else:
            # From here on it is on disk: whatever happens, nothing of it is taken back.
            self._realm.adopt(decision.groups)
            self._answer(batch, None)
            if decision.rows:
                self._announce(decision.rows, head)

    def _answer(self, batch: Sequence[Submission], fault: Reject | None) -> None:
        """Each its own result, or all of them our fault."""
        self._metrics.answered([fault or submission.result for submission in batch])
        for submission in batch:
            submission.author.answered(submission.event, fault or submission.result)

    def _announce(self, rows: Sequence[Stored], head: int) -> None:
        try:
            self._committed(head)
            self._metrics.delivered(self._fanout.deliver(rows))
        except Exception:  # the lane must live on  # noqa: BLE001
            _log.exception("%d stored events were not delivered live", len(rows))

    async def _stored(self, batch: Sequence[Submission]) -> tuple[Decision, int]:
        """Decide the batch and commit it: what was decided, and the new head."""
        now = self._clock()
        policy = self._realm.policy
        keeps = [policy.keep.keep_of(submission.event) for submission in batch]
        events = [submission.event for submission in batch]
        wanted = wanted_for(list(zip(events, keeps, strict=True)))
        wanted = self._with_the_relays_own(wanted, events)
        decision = Decision(policy, self._realm.groups, self._relay_key, now, self._is_here)

        def decide(found: Found) -> WritePlan:
            for submission, keep in zip(batch, keeps, strict=True):
                submission.result = decision.take(submission, keep, found)
            return decision.plan

        with self._metrics.commit(len(batch)):
            return decision, await self._store.append(wanted, decide)

    def _with_the_relays_own(self, wanted: Wanted, events: Sequence[Event]) -> Wanted:
        """Also what must be known to say what the relay itself will sign."""
        groups, relay = self._realm.groups, self._relay_key.pubkey
        wanted = with_state(wanted, events, groups, relay)
        requests = [event for event in events if event.kind == kinds.VANISH]
        leaving = {event.pubkey for event in requests if acts_here(event, self._is_here)}
        return with_departures(wanted, events, groups, leaving, relay) if leaving else wanted
