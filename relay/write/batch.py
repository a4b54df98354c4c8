"""Decision: what becomes of each event of one batch, inside the store's transaction.

Invariants: each event is judged against the world as the events before it in the batch leave it.
Nothing here waits or acts: a batch comes to a plan for the store, the groups as they are then, and
the rows to deliver. It may run on another thread than the loop's.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Final

from relay.access.actors import is_known, who_is_author
from relay.access.management import (
    BannedAuthorRows,
    check_author_not_banned,
    check_change,
    check_event_not_banned,
)
from relay.access.quotas import Coming, excess
from relay.access.visibility import ANONYMOUS, Viewer, kind_is_restricted, visibility_for
from relay.errors import Invalid, Prefix, Refused
from relay.groups.actions import JoinRequest, action_of, group_of
from relay.groups.context import GroupContext, NotStored, Target
from relay.groups.departures import (
    Cause,
    groups_without_rows,
    removals_from_groups,
    repair_drafts,
)
from relay.groups.group import Groups, rebuilt, replayed
from relay.groups.notices import notices_for
from relay.groups.rules import ruling_on
from relay.groups.writing import objection
from relay.lifecycle.deletion import (
    add_tombstone,
    delete_banned_author,
    delete_by_author,
    deleted_rows,
    event_target,
    is_record,
    remaining_records,
    remove,
    vanish,
    vanish_outcome,
)
from relay.lifecycle.retention import hold_reason, tombstone_for
from relay.lifecycle.rows import Stored, Tombstone, WritePlan, slot_of
from relay.lifecycle.versions import plan_for, unstored_outcome
from relay.nostr import kinds
from relay.nostr.kinds import is_kind
from relay.verdict import Facts, Origin, Reject, Who, WriteOutcome
from relay.write.commands import DryRun, Purpose
from relay.write.pins import all_pinning, pinnable, pins_left, unsettled_pins
from relay.write.record_lookups import has_references, referenced

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Set

    from relay.access.management import ListChange
    from relay.access.quotas import Buckets, Guesses
    from relay.groups.actions import Action
    from relay.groups.context import Ruling
    from relay.groups.group import Group
    from relay.groups.notices import Draft
    from relay.lifecycle.rows import Found, Keep, Slot
    from relay.nostr.event import Event
    from relay.nostr.keys import SecretKey
    from relay.state import RelayState
    from relay.verdict import RecordFacts, Result
    from relay.write.commands import ExpireRows, ManagementChange, SweepRows, WriteEvent

_ANYONE: Final = frozenset({Who.ANYONE})
_WRAPS: Final = frozenset({kinds.GIFT_WRAP, kinds.EPHEMERAL_GIFT_WRAP, kinds.NOSTR_CONNECT})
_ALL_RELAYS: Final = "ALL_RELAYS"
_CLOCKS_APART_S: Final = 900
"""By so much an author's clock may be behind those of the others."""

ONLY_RELAY: Final = Reject(
    Prefix.RESTRICTED, "kinds 39000 to 39005 are signed by the relay alone", "group state"
)
_ELSEWHERE: Final = Reject(
    Prefix.RESTRICTED, "this request to vanish is for other relays", "requests to vanish"
)
_OWN_KEY: Final = Reject(
    Prefix.RESTRICTED, "the key of this relay cannot vanish from it", "requests to vanish"
)
_GUESSING: Final = Reject(
    Prefix.RATE_LIMITED, "too many invite codes tried, wait a minute", "invite codes"
)
"""Whether the code was right, and whether there is such a group, is not looked at (N29-39)."""
_A_RECORD: Final = Reject(
    Prefix.RESTRICTED, "what a group follows from cannot be banned: act in the group", "NIP-86"
)


def acts_here(request: Event, is_here: Callable[[str], bool]) -> bool:
    """Whether a kind 62 is for this relay; else it is an event like any other (N62-03, Z-13)."""
    return any(url == _ALL_RELAYS or is_here(url) for url in request.tag_values("relay"))


class Decision:
    """One batch: each event in order against the world as the events before it leave it."""

    def __init__(
        self,
        state: RelayState,
        relay_key: SecretKey,
        now: int,
        is_here: Callable[[str], bool],
        guesses: Guesses,
        buckets: Buckets,
    ) -> None:
        self.groups = state.groups
        self.management = state.management
        self.plan = WritePlan()
        self.rows: list[Stored] = []
        """Everything accepted, in order: for live delivery."""
        self._policy = state.policy
        self._actors = state.actors
        self._relay_key = relay_key
        self._now = now
        self._is_here = is_here
        self._guesses = guesses
        self._buckets = buckets
        self._who: dict[tuple[str, str | None], frozenset[Who]] = {}

    def dry_run(self, submission: WriteEvent, keep: Keep, found: Found) -> DryRun:
        """What `take` says of an event, and what the rules look at when they are asked of it."""
        try:
            facts = self._facts(submission, keep, found, group_of(submission.event))
        except Refused:
            facts = None
        return DryRun(self.take(submission, keep, found), facts)

    def take(self, submission: WriteEvent, keep: Keep, found: Found) -> Result:
        """Decide one event; what it changes is noted in `plan`, `groups`, `rows` and `found`."""
        event = submission.event
        if event.kind == kinds.VANISH and acts_here(event, self._is_here):
            return self._vanish(event, found)
        try:
            group_id = group_of(event)
            action = action_of(event)
            return self._take(submission, keep, found, group_id, action)
        except Invalid as refused:
            return Reject(refused.prefix, refused.text, "form")
        except Refused as refused:
            return Reject(refused.prefix, refused.text, "rule")

    def _take(
        self,
        submission: WriteEvent,
        keep: Keep,
        found: Found,
        group_id: str | None,
        action: Action | None,
    ) -> Result:
        event, kind = submission.event, submission.event.kind
        if submission.origin is not Origin.WIRE:
            # Whoever reads files into the folder knows what is in it: no rule need keep it secret.
            if event.id in found.rows:
                return WriteOutcome.DUPLICATE
            if kind in kinds.GROUP_STATE:
                return WriteOutcome.REGENERATED
        if event.pubkey == self._relay_key.pubkey and event.id in found.rows:
            return WriteOutcome.DUPLICATE
        banned = check_event_not_banned(event, self.management)
        if banned is None and submission.origin is not Origin.TRUSTED_IMPORT:
            banned = check_author_not_banned(event, self._actors)
        if banned is not None:
            return banned
        facts = self._facts(submission, keep, found, group_id)
        objected = self._policy.judge(event, facts)
        if objected is not None:
            return objected
        if kind in kinds.GROUP_STATE:
            return ONLY_RELAY
        if event.id in found.rows and self._may_know(group_id, facts):
            return self._store_one(event, group_id, keep, found, quiet=False)
        if submission.objection is not None:
            return submission.objection
        if kind == kinds.VANISH and self._author_is_unknown(submission, facts):
            return _ELSEWHERE
        ruling: Ruling | None = None
        if isinstance(action, JoinRequest) and self._is_guessing(action, submission):
            return _GUESSING
        slot = slot_of(event, keep)
        holder = None if slot is None else found.slots.get(slot)
        unsettled = unsettled_pins(event, slot, self.groups)
        if group_id is not None or (holder is not None and holder.group is not None):
            context = self._circumstances(submission, found, group_id, holder, facts)
            if action is not None:
                ruled = ruling_on(event, action, self.groups, self._policy.groups, context)
                if isinstance(ruled, Reject):
                    return ruled
                ruling = ruled
            else:
                objected = objection(event, group_id, self.groups, self._policy.groups, context)
                if objected is not None:
                    return objected
        refused = self._too_much(submission, group_id, slot, keep, found, facts)
        if refused is not None:
            return refused
        quiet = False
        if kind == kinds.DELETION:
            group_id, quiet = self._reach_of(submission, group_id, found)
        outcome = self._store_one(event, group_id, keep, found, quiet=quiet)
        if outcome is not WriteOutcome.STORED:
            return outcome
        if kind == kinds.DELETION:
            delete_by_author(event, found, self.plan)
        if ruling is not None and group_id is not None:
            self._carry_out(ruling, group_id, found)
        if submission.origin is Origin.WIRE:
            # An import may yet bring what a pin names.
            self._unpin(unsettled, found)
        if ruling is not None and ruling.reply is not None:
            return ruling.reply
        return WriteOutcome.STORED

    def _is_guessing(self, request: JoinRequest, submission: WriteEvent) -> bool:
        """Whether this is one code too many."""
        if request.code is None or submission.origin is not Origin.WIRE:
            return False
        pubkey, address = submission.event.pubkey, submission.author.address
        return not self._guesses.admits(pubkey, address, self._now)

    def _too_much(
        self,
        submission: WriteEvent,
        group_id: str | None,
        slot: Slot | None,
        keep: Keep,
        found: Found,
        facts: Facts,
    ) -> Reject | None:
        """What the rules say about how much, of an event that would be stored or passed on.

        Asked last, so that only what is taken counts: of several rules all count, or none.
        """
        event, high_tie = submission.event, self._policy.keep.high_tie
        meters = self._policy.meters(event, facts)
        if not meters:
            return None
        outcome = unstored_outcome(event, slot, keep, found, now=self._now, high_tie=high_tie)
        if outcome is not None and outcome is not WriteOutcome.PASSED_ON:
            return None
        coming = Coming(
            event,
            group_id,
            submission.origin,
            submission.author.connection,
            is_stored=outcome is None,
            replaced=None if slot is None else found.slots.get(slot),
        )
        return excess(meters, coming, found.usage, self._buckets, self._now)

    def _author_is_unknown(self, submission: WriteEvent, facts: Facts) -> bool:
        """Whether a request to vanish elsewhere is by nobody known here (Z-13)."""
        return (
            self._policy.restricted_writes
            and Who.KNOWN not in facts.who
            and submission.origin is not Origin.TRUSTED_IMPORT
        )

    def _may_know(self, group_id: str | None, facts: Facts) -> bool:
        """Whether the author may be told that what they send again is stored (N01-96)."""
        group = self.groups.get(group_id)
        return (
            group is None
            or not group.only_members_write
            or bool(facts.who & {Who.INSIDER, Who.OWNER, Who.ADMIN})
        )

    def _store_one(
        self, event: Event, group_id: str | None, keep: Keep, found: Found, *, quiet: bool
    ) -> WriteOutcome:
        kept = plan_for(
            event,
            group_id,
            keep,
            found,
            self.plan,
            now=self._now,
            high_tie=self._policy.keep.high_tie,
            quiet=quiet,
        )
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
            who = self._who[key] = who_is_author(pubkey, self._actors, self.groups, group)
        return who

    def _facts(
        self, submission: WriteEvent, keep: Keep, found: Found, group_id: str | None
    ) -> Facts:
        event = submission.event
        authenticated = submission.author.authenticated
        readers = _ANYONE
        for key in authenticated:
            readers |= self._who_is(key, group_id)
        slot = slot_of(event, keep)
        return Facts(
            now=self._now,
            origin=submission.origin,
            authenticated=authenticated,
            who=self._who_is(event.pubkey, group_id),
            authenticated_who=readers,
            wraps_for_known=event.kind in _WRAPS
            and any(
                is_known(pubkey, self._actors, self.groups) for pubkey in event.tag_values("p")
            ),
            deletes_own=event.kind == kinds.DELETION and bool(deleted_rows(event, found)),
            replaces=slot is not None and slot in found.slots,
            has_group=self.groups.get(group_id) is not None,
            records=self._records(event, group_id, found),
        )

    def _records(self, event: Event, group_id: str | None, found: Found) -> tuple[RecordFacts, ...]:
        systems = self._policy.systems
        if not has_references(event, systems):
            return ()
        who = self._who_is(event.pubkey, group_id)
        author, rules = Viewer(frozenset({event.pubkey})), self._policy.read_rules
        seen = visibility_for(author, rules, self._actors, self.groups)
        along_chains = bool(who & {Who.AGENT, Who.OWNER})
        return referenced(event, seen, found, self._now, systems, along_chains=along_chains)

    def _circumstances(
        self,
        submission: WriteEvent,
        found: Found,
        group_id: str | None,
        holder: Stored | None,
        facts: Facts,
    ) -> GroupContext:
        event = submission.event
        gid = group_id or ""
        previous = frozenset(
            prefix
            for tag in event.tags
            if tag and tag[0] == "previous"
            for prefix in tag[1:]
            if (gid, prefix) in found.id_prefixes or self._added(gid, prefix)
        )
        targets: dict[str, Target] = {}
        if event.kind == kinds.DELETE_EVENT:
            for value in event.tag_values("e"):
                row = found.rows.get(value)
                if row is not None:
                    targets[value] = Target(row.group, row.event.kind, row.event.pubkey)
        return GroupContext(
            now=self._now,
            origin=submission.origin,
            who=facts.who,
            has_content=gid in found.groups_with_content,
            previous_found=previous,
            targets=targets,
            pinnable=pinnable(event, gid, found, self._now, submission.origin),
            moved_from=NotStored.NOT_STORED if holder is None else holder.group,
            is_memory=self._policy.systems.is_memory(event),
            h_is_label=self._policy.systems.h_is_label(event),
            relay=self._relay_key.pubkey,
            operators=self._actors.owners,
        )

    def _added(self, group_id: str, prefix: str) -> bool:
        return len(prefix) >= 8 and any(
            row.group == group_id and event_id.startswith(prefix)
            for event_id, row in self.plan.adds.items()
        )

    def _reach_of(
        self, submission: WriteEvent, group_id: str | None, found: Found
    ) -> tuple[str | None, bool]:
        """The group that a kind 5 belongs to, and whether not everyone may read it (N29-104)."""
        event, rules = submission.event, self._policy.read_rules
        removed = deleted_rows(event, found)
        stranger = visibility_for(ANONYMOUS, rules, self._actors, self.groups)
        quiet = any(not stranger.may_read(row, None) for row in removed)
        named: list[tuple[str, str | None]] = [(value, None) for value in event.tag_values("k")]
        for value in event.tag_values("a"):
            kind, _, rest = value.partition(":")
            named.append((kind, rest.partition(":")[2]))
        quiet = quiet or any(
            is_kind(kind) and kind_is_restricted(rules, int(kind), d) for kind, d in named
        )
        if submission.origin is Origin.TRUSTED_IMPORT:
            # One's own export no longer has what was deleted, and that may have been private.
            quiet = quiet or any(value not in found.rows for value in event.tag_values("e"))
        if group_id is None:
            reached = {row.group for row in removed if row.group is not None}
            if len(reached) == 1:
                return reached.pop(), quiet
        return group_id, quiet

    # -- what a moderation event does ------------------------------------------------------------

    def _carry_out(self, ruling: Ruling, group_id: str, found: Found) -> None:
        before = self.groups
        self.groups = ruling.groups
        self._who.clear()
        for draft in ruling.automatic:
            self._sign(draft, group_id, found)
        for event_id in ruling.removes:
            row = found.rows.get(event_id)
            if row is not None:
                remove(row, found, self.plan)
            add_tombstone(Tombstone(event_target(event_id), "", None, "9005"), found, self.plan)
        for event_id in ruling.superseded:
            row = found.rows.get(event_id)
            if row is not None:
                remove(row, found, self.plan)
        if ruling.ended is not None:
            self._end(ruling.ended, found)
        for changed in (group_id, *ruling.relatives):
            after = self.groups.get(changed)
            if after is not None:
                self._announce(before.get(changed), after, found)

    def _unpin(self, group_ids: Iterable[str], found: Found) -> None:
        """Take from the pins of these groups what has gone or expired (N29-172)."""
        for group_id in sorted(group_ids):
            group = self.groups.get(group_id)
            if group is None:
                continue
            left = pins_left(group, found, self._now)
            if len(left) < len(group.pins):
                self._announce(group, replace(group, pins=left), found)

    def _announce(self, before: Group | None, after: Group, found: Found) -> None:
        """Say what a group has become."""
        noted, drafts = notices_for(before, after, self._now)
        self.groups = self.groups.with_group(noted)
        for draft in drafts:
            self._sign(draft, noted.id, found)
        self.plan.groups[noted.id] = noted

    def _end(self, group_id: str, found: Found) -> None:
        self.plan.groups[group_id] = None
        self.plan.deleted_groups.add(group_id)
        kept = (kinds.CREATE_GROUP, kinds.DELETE_GROUP)
        rows = {row.seq: row for row in (*found.rows.values(), *found.slots.values())}
        for row in rows.values():
            if row.group == group_id and row.event.kind not in kept:
                remove(row, found, self.plan)

    def _sign(self, draft: Draft, group_id: str, found: Found) -> Event:
        tags = [list(tag) for tag in draft.tags]
        event = self._relay_key.sign(draft.kind, tags, draft.content, draft.created_at)
        keep = self._policy.keep.keep_of(event)
        self._store_one(event, group_id, keep, found, quiet=False)
        return event

    # -- what time takes -------------------------------------------------------------------------

    def expire(self, expiry: ExpireRows, found: Found) -> None:
        """Remove what has expired (N40-04), and from groups what came of it."""
        expiry.gone.clear()
        for event_id in expiry.ids:
            row = found.rows.get(event_id)
            if row is None or row.expires_at is None or row.expires_at > self._now:
                continue
            expiry.gone.append(row)
            if expiry.purpose is Purpose.SWEEP:
                self._let_go(row, found, "expired")
        if expiry.purpose is Purpose.TRIAL:
            return
        self._unpin(all_pinning(self.groups), found)
        self.groups = groups_without_rows(self.groups, [row.event for row in expiry.gone])
        self._who.clear()

    def sweep(self, sweeping: SweepRows, found: Found) -> None:
        """Remove what is still there and not held; nothing when other rules are in force now."""
        sweeping.gone.clear()
        sweeping.held.clear()
        rules = self._policy.sweeps
        if sweeping.rules != rules:
            return
        for row in sweeping.rows:
            stored = found.rows.get(row.event.id)
            if stored is None:
                continue
            reason = hold_reason(stored, rules, self._actors, self.groups, found, self.plan)
            if reason is not None:
                sweeping.held[reason] = sweeping.held.get(reason, 0) + 1
                continue
            sweeping.gone.append(stored)
            if sweeping.purpose is Purpose.TRIAL:
                continue
            self._let_go(stored, found, "sweep")
        if sweeping.purpose is Purpose.SWEEP:
            self.groups = groups_without_rows(self.groups, [row.event for row in sweeping.gone])
            self._who.clear()

    def _let_go(self, row: Stored, found: Found, why: str) -> None:
        remove(row, found, self.plan)
        stone = tombstone_for(row, self._policy.keep.keep_of(row.event), why)
        if stone is not None:
            add_tombstone(stone, found, self.plan)

    # -- a call of NIP-86 ------------------------------------------------------------------------

    def manage(self, order: ManagementChange, found: Found) -> Reject | None:
        """Carry out what a call changes, all of it or nothing."""
        for change in order.changes:
            objected = check_change(change, self.management, self._actors)
            if objected is not None:
                return objected
            row = found.rows.get(change.item)
            if change.bans_event and row is not None and is_record(row.event):
                return _A_RECORD
        for change in order.changes:
            self._change(change, found)
        for pubkey in sorted(order.deleted_authors):
            delete_banned_author(pubkey, found, self.plan)
        if order.deleted_authors:
            self._unpin(all_pinning(self.groups), found)
        return None

    def _change(self, change: ListChange, found: Found) -> None:
        changed = self.management.after(change)
        if changed is self.management:
            return
        self.management = changed
        self.plan.list_changes.append(change)
        self._actors = changed.applied_to(self._policy.actors)
        self._who.clear()
        if change.bans_event:
            row = found.rows.get(change.item)
            if row is not None:
                remove(row, found, self.plan)
        elif change.is_ban and self._policy.banned_rows is BannedAuthorRows.DELETE:
            delete_banned_author(change.item, found, self.plan)
        if change.is_ban:
            self._unpin(all_pinning(self.groups), found)

    # -- a key that vanishes ---------------------------------------------------------------------

    def _vanish(self, request: Event, found: Found) -> Result:
        """All of the author's goes, whoever they are and whatever rules there are (N62-11)."""
        ahead, most = request.created_at - self._now, self._policy.limits.created_at_upper
        if ahead > most:  # an import's too: it would shut the author out until then (N62-10)
            text = f"created_at: {ahead} s in the future, at most {most} s allowed"
            return Reject(Prefix.INVALID, text, "[limits] created_at_upper")
        if request.pubkey == self._relay_key.pubkey:
            return _OWN_KEY
        done = vanish_outcome(request, found)
        if done is not None:
            return done
        before = self.groups
        later = _joined_after(request, found.rows.values())
        taken = vanish(request, found, self.plan)
        self.groups = groups_without_rows(before, [row.event for row in taken])
        self.groups, drafts = removals_from_groups(
            self.groups, request.pubkey, self._now, Cause.VANISHED, but=later
        )
        for draft in drafts:
            self._sign_for(request, draft, found)
        unsaid = {
            row.group
            for row in taken
            if row.group is not None and row.event.kind in kinds.MODERATION
        }
        if unsaid:
            self._say_again(unsaid, request, found)
        self._who.clear()
        for group in list(self.groups.by_id.values()):
            if group is not before.get(group.id):
                self._announce(before.get(group.id), group, found)
        return WriteOutcome.STORED

    def _say_again(self, unsaid: Set[str], request: Event, found: Found) -> None:
        """Say with the relay's key what the author's records had said of these groups (N29-58).

        They are then what the log tells of them: only codes that the author made are gone.
        """
        groups, relay = self.groups, self._relay_key.pubkey
        meant = Groups(
            {key: group for key, group in groups.by_id.items() if key in unsaid},
            groups.ended & unsaid,
        )
        left = rebuilt(Groups(), remaining_records(unsaid, found, self.plan), relay)
        for draft in repair_drafts(meant, left, self._now):
            left = replayed(left, self._sign_for(request, draft, found), relay)
        for group in left.by_id.values():
            before = groups.by_id.get(group.id)
            # What went with the author is pinned no more, whatever the stored 39005 says.
            pins = group.pins if before is None else before.pins
            groups = groups.with_group(replace(group, pins=pins))
        self.groups = groups

    def _sign_for(self, request: Event, draft: Draft, found: Found) -> Event:
        """Sign what follows from a request. It is named, or two of one second could be the same."""
        (_, group_id), *_ = draft.tags
        return self._sign(replace(draft, tags=(*draft.tags, ("e", request.id))), group_id, found)


def _joined_after(request: Event, rows: Iterable[Stored]) -> Set[str]:
    """Groups that the author was put into long after the request to vanish.

    Anyone can send an old request again, also one that never came here: what its author began
    since is not theirs to end.
    """
    return {
        row.group
        for row in rows
        if row.group is not None
        and row.event.kind == kinds.PUT_USER
        and row.event.created_at > request.created_at + _CLOCKS_APART_S
        and request.pubkey in row.event.tag_values("p")
    }
