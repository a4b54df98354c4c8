"""The road of an EVENT: screen, verify, decide in the lane, commit, answer, deliver.

The only conductor: all that it calls are rooms that return values and call nobody back. Rules about
membership are judged inside the lane, against the world as the event before left it, so that nobody
slips a message in behind their own removal. State changes only after the commit.
"""

from __future__ import annotations

import asyncio
import logging
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final, Protocol

from relay.errors import Invalid, Prefix, Refused, StoreFault
from relay.groups.actions import action_of, group_of
from relay.groups.circumstances import Circumstances, NotStored, Target
from relay.groups.notices import notices_for
from relay.groups.ruling import ruling_on
from relay.groups.writing import objection
from relay.lane import Lane
from relay.memory import is_memory
from relay.nostr import kinds
from relay.nostr.keys import are_signed
from relay.retention import (
    Slot,
    Stored,
    Tombstone,
    WritePlan,
    bury,
    delete_by_author,
    deleted_rows,
    event_target,
    plan_for,
    remove,
    slot_of,
    wanted_for,
)
from relay.verdict import Facts, Origin, Reject, Who, WriteOutcome
from relay.visibility import STRANGER, is_known, kind_is_guarded, visibility_for, who_writes

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from concurrent.futures import Executor

    from relay.fanout import Fanout
    from relay.groups.actions import Action
    from relay.groups.circumstances import Ruling
    from relay.groups.group import Groups
    from relay.groups.notices import Draft
    from relay.nostr.event import Event
    from relay.nostr.keys import SecretKey
    from relay.observe import Metrics
    from relay.projections import Policy, Realm
    from relay.retention import Found, Keep, Wanted
    from relay.storage import Store

_log = logging.getLogger(__name__)

_MAX_BATCH: Final = 512
_MAX_VERIFIED: Final = 128
"""Events of one batch of signature checks: 16 to 64 a thread (DESIGN §7)."""
_MAX_WAITING: Final = 32_768
_BOTH_THREADS: Final = 32
_NOBODY: Final = frozenset({Who.ANYONE})
_WRAPS: Final = frozenset({kinds.GIFT_WRAP, kinds.EPHEMERAL_GIFT_WRAP, kinds.NOSTR_CONNECT})

Result = WriteOutcome | Reject

QUEUE_FULL: Final = Reject(Prefix.RATE_LIMITED, "too many events are waiting, slow down", "queue")
BAD_SIGNATURE: Final = Reject(Prefix.INVALID, "sig: is not a signature of id by pubkey", "sig")
OUR_FAULT: Final = Reject(Prefix.ERROR, "the event could not be stored, try again later", "store")
ONLY_RELAY: Final = Reject(
    Prefix.RESTRICTED, "kinds 39000 to 39005 are signed by the relay alone", "group state"
)


class Author(Protocol):
    """Where an event came from, and whom its OK goes to."""

    @property
    def authenticated(self) -> frozenset[str]: ...

    def answered(self, event: Event, result: Result) -> None:
        """Called once per event, after the commit; must not block or raise."""


@dataclass(slots=True)
class Submission:
    """An event on its road."""

    event: Event
    author: Author
    origin: Origin
    result: Result = WriteOutcome.STORED


class Ingest:
    """`async with` it: its lanes run inside; leaving it commits what waits."""

    def __init__(
        self, store: Store, realm: Realm, relay_key: SecretKey, fanout: Fanout, *,
        clock: Callable[[], int], verifiers: Executor, metrics: Metrics,
        committed: Callable[[int], None],
    ) -> None:  # fmt: skip
        """`committed` is told the new head after each commit (the bus)."""
        self._store = store
        self._realm = realm
        self._relay_key = relay_key
        self._fanout = fanout
        self._clock = clock
        self._verifiers = verifiers
        self._metrics = metrics
        self._committed = committed
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
            good = await loop.run_in_executor(self._verifiers, are_signed, events)
        else:
            middle = len(events) // 2
            halves = await asyncio.gather(
                loop.run_in_executor(self._verifiers, are_signed, events[:middle]),
                loop.run_in_executor(self._verifiers, are_signed, events[middle:]),
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

    # -- the lane -------------------------------------------------------------------------------

    async def _commit(self, batch: Sequence[Submission]) -> None:
        try:
            await self._commit_whole(batch)
        except StoreFault as fault:
            _log.error("a batch of %d events was not stored: %s", len(batch), fault)
            self._fail(batch)
        except Exception:  # the last frame of the lane: it must live on  # noqa: BLE001
            if len(batch) == 1:
                _log.exception("an event of kind %d could not be decided", batch[0].event.kind)
                self._fail(batch)
                return
            # One event that nobody foresaw must not take its neighbours with it.
            for submission in batch:
                await self._commit([submission])

    def _fail(self, batch: Sequence[Submission]) -> None:
        self._metrics.answered([OUR_FAULT] * len(batch))
        for submission in batch:
            submission.author.answered(submission.event, OUR_FAULT)

    async def _commit_whole(self, batch: Sequence[Submission]) -> None:
        now = self._clock()
        policy = self._realm.policy
        keeps = [policy.keep.keep_of(submission.event) for submission in batch]
        events = [submission.event for submission in batch]
        wanted = wanted_for(list(zip(events, keeps, strict=True)))
        wanted = with_state(wanted, events, self._realm.groups, self._relay_key.pubkey)
        decision = Decision(policy, self._realm.groups, self._relay_key, now)

        def decide(found: Found) -> WritePlan:
            for submission, keep in zip(batch, keeps, strict=True):
                submission.result = decision.take(submission, keep, found)
            return decision.plan

        with self._metrics.commit(len(batch)):
            head = await self._store.append(wanted, decide)
        self._realm.adopt(decision.groups)
        self._metrics.answered([submission.result for submission in batch])
        for submission in batch:
            submission.author.answered(submission.event, submission.result)
        if decision.rows:
            self._committed(head)
            self._metrics.delivered(self._fanout.deliver(decision.rows))


def with_state(
    wanted: Wanted, events: Sequence[Event], groups: Groups, relay_pubkey: str
) -> Wanted:
    """Also the rows that the relay itself will replace: its 39000–39003, and pending requests."""
    slots: set[Slot] = set()
    ids: set[str] = set()
    for event in events:
        group_id = event.tag("h") if event.kind in kinds.GROUP_RECORDS else None
        if group_id is None:
            continue
        slots.update(Slot(relay_pubkey, kind, group_id) for kind in kinds.GROUP_STATE)
        group = groups.get(group_id)
        if group is not None and group.requests:
            for pubkey in (event.pubkey, *event.tag_values("p")):
                if pubkey in group.requests:
                    ids.add(group.requests[pubkey])
    if not slots:
        return wanted
    return replace(wanted, slots=wanted.slots | slots, ids=wanted.ids | ids)


class Decision:
    """One batch: each event in order against the world as the events before it leave it."""

    def __init__(self, policy: Policy, groups: Groups, relay_key: SecretKey, now: int) -> None:
        self.groups = groups
        self.plan = WritePlan()
        self.rows: list[Stored] = []
        """Everything accepted, in order: for live delivery."""
        self._policy = policy
        self._people = policy.people
        self._relay_key = relay_key
        self._now = now
        self._who: dict[tuple[str, str | None], frozenset[Who]] = {}

    def take(self, submission: Submission, keep: Keep, found: Found) -> Result:
        """Decide one event; what it changes is noted in `plan`, `groups`, `rows` and `found`."""
        event = submission.event
        try:
            group_id = group_of(event)
            action = action_of(event)
            return self._take(submission, keep, found, group_id, action)
        except Invalid as refused:
            return Reject(refused.prefix, refused.text, "form")
        except Refused as refused:
            return Reject(refused.prefix, refused.text, "rule")

    def _take(
        self, submission: Submission, keep: Keep, found: Found, group_id: str | None,
        action: Action | None,
    ) -> Result:  # fmt: skip
        event, kind = submission.event, submission.event.kind
        facts = self._facts(submission, keep, found, group_id)
        objected = self._policy.judge(event, facts)
        if objected is not None:
            return objected
        if kind in kinds.GROUP_STATE:
            return WriteOutcome.DUPLICATE if event.id in found.rows else ONLY_RELAY
        ruling: Ruling | None = None
        slot = slot_of(event, keep)
        holder = None if slot is None else found.slots.get(slot)
        if group_id is not None or (holder is not None and holder.group is not None):
            circumstances = self._circumstances(submission, found, group_id, holder, facts)
            if action is not None:
                if self._is_known_record(event, found, facts):
                    return WriteOutcome.DUPLICATE
                ruled = ruling_on(event, action, self.groups, self._policy.groups, circumstances)
                if isinstance(ruled, Reject):
                    return ruled
                ruling = ruled
            else:
                objected = objection(
                    event, group_id, self.groups, self._policy.groups, circumstances
                )
                if objected is not None:
                    return objected
        quiet = False
        if kind == kinds.DELETION:
            group_id, quiet = self._reach_of(event, group_id, found)
        outcome = self._store_one(event, group_id, keep, found, quiet=quiet)
        if outcome is not WriteOutcome.STORED:
            return outcome
        if kind == kinds.DELETION:
            delete_by_author(event, found, self.plan)
        if ruling is not None and group_id is not None:
            self._carry_out(ruling, group_id, found)
            if ruling.reply is not None:
                return ruling.reply
        return WriteOutcome.STORED

    def _is_known_record(self, event: Event, found: Found, facts: Facts) -> bool:
        """A record sent again; told only to those who may know that the group exists."""
        return event.id in found.rows and bool(
            facts.who & {Who.INSIDER, Who.OWNER, Who.ADMIN} or not facts.has_group
        )

    def _store_one(
        self, event: Event, group_id: str | None, keep: Keep, found: Found, *, quiet: bool
    ) -> WriteOutcome:
        kept = plan_for(
            event, group_id, keep, found, self.plan,
            now=self._now, high_tie=self._policy.keep.high_tie, quiet=quiet,
        )  # fmt: skip
        if isinstance(kept, WriteOutcome):
            if kept is WriteOutcome.PASSED_ON:
                self.rows.append(Stored(0, event, group_id))  # ephemeral: of no place in the log
            return kept
        self.rows.append(kept)
        return WriteOutcome.STORED

    # -- what is known about the author --------------------------------------------------------

    def _who_is(self, pubkey: str, group_id: str | None) -> frozenset[Who]:
        key = (pubkey, group_id)
        who = self._who.get(key)
        if who is None:
            group = self.groups.get(group_id)
            who = self._who[key] = who_writes(pubkey, self._people, self.groups, group)
        return who

    def _facts(
        self, submission: Submission, keep: Keep, found: Found, group_id: str | None
    ) -> Facts:
        event = submission.event
        authenticated = submission.author.authenticated
        readers = _NOBODY
        for key in authenticated:
            readers |= self._who_is(key, group_id)
        slot = slot_of(event, keep)
        return Facts(
            now=self._now,
            origin=submission.origin,
            authenticated=authenticated,
            who=self._who_is(event.pubkey, group_id),
            readers_who=readers,
            wraps_for_known=event.kind in _WRAPS and any(
                is_known(pubkey, self._people, self.groups) for pubkey in event.tag_values("p")
            ),
            deletes_own=event.kind == kinds.DELETION and bool(deleted_rows(event, found)),
            replaces=slot is not None and slot in found.slots,
            has_group=self.groups.get(group_id) is not None,
        )  # fmt: skip

    def _circumstances(
        self, submission: Submission, found: Found, group_id: str | None,
        holder: Stored | None, facts: Facts,
    ) -> Circumstances:  # fmt: skip
        event = submission.event
        gid = group_id or ""
        previous = frozenset(
            prefix
            for tag in event.tags
            if tag and tag[0] == "previous"
            for prefix in tag[1:]
            if (gid, prefix) in found.prefixes or self._added(gid, prefix)
        )
        targets: dict[str, Target] = {}
        if event.kind == kinds.DELETE_EVENT:
            for value in event.tag_values("e"):
                row = found.rows.get(value)
                if row is not None:
                    targets[value] = Target(row.group, row.event.kind, row.event.pubkey)
        return Circumstances(
            now=self._now, origin=submission.origin, who=facts.who,
            has_content=gid in found.used_groups, previous_found=previous, targets=targets,
            moved_from=NotStored.NOT_STORED if holder is None else holder.group,
            is_memory=is_memory(event), relay=self._relay_key.pubkey,
        )  # fmt: skip

    def _added(self, group_id: str, prefix: str) -> bool:
        return len(prefix) >= 8 and any(
            row.group == group_id and event_id.startswith(prefix)
            for event_id, row in self.plan.adds.items()
        )

    def _reach_of(
        self, event: Event, group_id: str | None, found: Found
    ) -> tuple[str | None, bool]:
        """The group that a kind 5 belongs to, and whether not everyone may read it (N29-104)."""
        rules = self._policy.read_rules
        removed = deleted_rows(event, found)
        stranger = visibility_for(STRANGER, rules, self._people, self.groups)
        quiet = any(not stranger.may_read(row, None) for row in removed)
        for value in event.tag_values("k"):
            quiet = quiet or (value.isdigit() and kind_is_guarded(rules, int(value), None))
        for value in event.tag_values("a"):
            kind, _, rest = value.partition(":")
            d = rest.partition(":")[2]
            quiet = quiet or (kind.isdigit() and kind_is_guarded(rules, int(kind), d))
        if group_id is None:
            reached = {row.group for row in removed if row.group is not None}
            if len(reached) == 1:
                return reached.pop(), quiet
        return group_id, quiet

    # -- what a moderation event does ------------------------------------------------------------

    def _carry_out(self, ruling: Ruling, group_id: str, found: Found) -> None:
        before = self.groups.get(group_id)
        self.groups = ruling.groups
        self._who.clear()
        for draft in ruling.automatic:
            self._sign(draft, group_id, found)
        for event_id in ruling.removes:
            row = found.rows.get(event_id)
            if row is not None:
                remove(row, found, self.plan)
            bury(Tombstone(event_target(event_id), "", None, "9005"), found, self.plan)
        for event_id in ruling.superseded:
            row = found.rows.get(event_id)
            if row is not None:
                remove(row, found, self.plan)
        if ruling.ended is not None:
            self._end(ruling.ended, found)
            return
        after = self.groups.get(group_id)
        if after is not None:
            noted, drafts = notices_for(before, after, self._now)
            self.groups = self.groups.with_group(noted)
            for draft in drafts:
                self._sign(draft, group_id, found)
            self.plan.groups[group_id] = noted

    def _end(self, group_id: str, found: Found) -> None:
        self.plan.groups[group_id] = None
        self.plan.ends.add(group_id)
        kept = (kinds.CREATE_GROUP, kinds.DELETE_GROUP)
        for row in list(found.rows.values()):
            if row.group == group_id and row.event.kind not in kept:
                remove(row, found, self.plan)

    def _sign(self, draft: Draft, group_id: str, found: Found) -> None:
        tags = [list(tag) for tag in draft.tags]
        event = self._relay_key.sign(draft.kind, tags, draft.content, draft.created_at)
        keep = self._policy.keep.keep_of(event)
        self._store_one(event, group_id, keep, found, quiet=False)

