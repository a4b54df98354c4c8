"""Judge: whether an event is accepted, and what changes with it.

Invariants: pure. This module alone knows in which order an event is judged: `screen` before its
signature is verified, `judge` in the lane. The batch, `rookery policy test`, `diff` and `explain`
call it with a World of their own. It counts nothing: tokens and tried invite codes are named in the
Judgement, and the caller counts them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

import msgspec

from relay.access.management import (
    ListChange,
    check_author_not_banned,
    check_change,
    check_event_not_banned,
    check_kind_allowed,
)
from relay.access.membership import RULE as MEMBERSHIP
from relay.access.membership import (
    TOO_MANY_JOIN,
    Members,
    is_counted,
    ruling_on_request,
    untimely,
)
from relay.access.quotas import (
    CountedEvent,
    Per,
    Token,
    Unit,
    check_usage_limits,
    subnet_of,
)
from relay.access.visibility import ANONYMOUS, names_restricted, visibility_for
from relay.errors import Invalid, Prefix, Refused, Reject, Result, WriteOutcome
from relay.facts import Origin, Who
from relay.groups.actions import JoinRequest, PutUsers
from relay.groups.context import Ruling
from relay.groups.notices import bytes_signed
from relay.groups.rules import (
    check_address,
    check_write,
    ruling_on,
    ruling_on_own_notice,
    ruling_on_withdrawal,
)
from relay.groups.timeline import check_number_of_previous
from relay.lifecycle.deletion import (
    END_OF_GROUP,
    check_number_of_targets,
    deleted_rows,
    is_base_deleted,
    is_group_record,
    is_old_request,
    placed_tombstone,
    vanish_outcome,
)
from relay.lifecycle.rows import Stored, Tombstone, address_slot
from relay.lifecycle.versions import is_rival, unstored_outcome
from relay.nostr import kinds
from relay.nostr.event import address_of
from relay.nostr.kinds import is_ephemeral
from relay.nostr.nip40 import check_expiry
from relay.write.candidate import refused_form
from relay.write.derived import derived_group
from relay.write.passed_over import (
    refusal_to_expire,
    tokens_of_change,
    tokens_of_deletion,
)
from relay.write.pins import outdated_pins
from relay.write.world import (
    facts_of,
    group_context,
    is_told_of,
    may_know_by_id,
    seen_by_sender,
    told_facts,
)

if TYPE_CHECKING:
    from collections.abc import Iterable

    from relay.access.management import Management
    from relay.facts import Facts
    from relay.groups.context import GroupContext
    from relay.groups.group import Groups
    from relay.lifecycle.deletion import DeletionTargets
    from relay.nostr.event import Base, Event
    from relay.state import Policy
    from relay.write.candidate import Candidate
    from relay.write.world import World

BAD_SIGNATURE: Final = Reject(Prefix.INVALID, "sig: invalid signature", "sig")
_RELAY_ONLY: Final = Reject(
    Prefix.RESTRICTED, "kinds 39000 to 39005 are signed by the relay alone", "group state"
)
_RIGHTS_CHANGED: Final = Reject(
    Prefix.ERROR, "the rights of the author have just changed, send it again", "records"
)
"""`lookups` could not foresee that the author may write this record."""
_DELETION_BYTES: Final = 4096
"""Bytes that a kind 5 may have beyond the rows that it deletes, while their group ends."""
_LEADS_TO_TOO_MUCH: Final = Reject(
    Prefix.BLOCKED, "the records that this one leads to are too large", "records"
)
_MEMBERS_RELAY_ONLY: Final = Reject(
    Prefix.RESTRICTED, "kind: only a relay says who its members are", MEMBERSHIP
)
_NOTICE_OF_RELAY: Final = Reject(
    Prefix.RESTRICTED, "kinds 44100 and 44101 are signed by the relay alone", "notices"
)
_ENDING: Final = Reject(
    Prefix.ERROR, "this group is being deleted, try again later", "ends of groups"
)
_VANISHING: Final = Reject(
    Prefix.ERROR,
    "p: a key that is put into the group is vanishing from this relay, try again later",
    "requests to vanish",
)
_OTHER_RELAYS: Final = Reject(
    Prefix.RESTRICTED, "this request to vanish is for other relays", "requests to vanish"
)
_OWN_KEY: Final = Reject(
    Prefix.RESTRICTED, "the key of this relay cannot vanish from it", "requests to vanish"
)
MAX_D_CHARS: Final = 2048
"""Characters of a tag `d`. It is a column of the events' table, which reads compare with prefixes;
of the other tags only hashes are."""
MAX_VANISH_BYTES: Final = 4096
"""Bytes of a request to vanish. It is kept as a tombstone, and only daily quotas apply to it."""
_TOO_LARGE: Final = Reject(
    Prefix.INVALID,
    f"a request to vanish has at most {MAX_VANISH_BYTES} bytes",
    "requests to vanish",
)
_MOST_LEFT: Final = 64
"""Groups that a key can leave by an old request: in one transaction, 3 ms each."""
_TOO_OLD: Final = Reject(
    Prefix.INVALID,
    f"created_at: a member of more than {_MOST_LEFT} groups needs a new request to vanish",
    "requests to vanish",
)
_TOO_MANY_WRAPS: Final = Reject(
    Prefix.RATE_LIMITED, "too many events to keys that are not known here, wait a minute", "wraps"
)
"""The same text whether or not the recipient is known."""
TOO_MANY_VANISH: Final = Reject(
    Prefix.RATE_LIMITED, "too many requests to vanish, wait a minute", "requests to vanish"
)
_TOO_MANY_CODES: Final = Reject(
    Prefix.RATE_LIMITED, "too many invite codes tried, wait a minute", "invite codes"
)
"""The same text whether or not the code was right or the group exists (N29-39)."""
EVERYBODY: Final = ""
"""The one name in `World.joined`."""
_OF_SENDER: Final = frozenset({Per.CONNECTION, Per.ADDRESS, Per.NETWORK, Per.RELAY})
"""Buckets of who sends an event, and that of all who send; AUTHOR too, unless it is the author."""
_ABOUT_ROWS: Final = frozenset(
    {
        WriteOutcome.DUPLICATE,
        WriteOutcome.TAKEN,
        WriteOutcome.SUPERSEDED,
        WriteOutcome.CHANGED,
        WriteOutcome.DELETED,
    }
)
"""Outcomes that reveal what is, or was, stored."""
_OF_AUTHOR: Final = frozenset({WriteOutcome.TAKEN, WriteOutcome.SUPERSEDED, WriteOutcome.DELETED})
"""Outcomes that say of a logged-in author's own events that the new one is not stored."""


class Judgement(msgspec.Struct, frozen=True, gc=False):
    """The outcome of one event and, if it is accepted, the changes that it makes."""

    outcome: Result
    """STORED and PASSED_ON: accepted. For any other outcome nothing changes, except that
    a guess is counted, the tokens are taken, and the event is kept out."""
    group: str | None = None
    """The group that the row belongs to."""
    quiet: bool = False
    """A kind 5 that not everyone may read."""
    ruling: Ruling | None = None
    """The changes to a group by a 9000–9022, by a kind 5 that withdraws an invite, or by a 39000 of
    one's own export, which is not stored."""
    outdated_pins: frozenset[str] = frozenset()
    """Ids of groups some of whose pins may have to be removed, beside those of what it deletes."""
    tokens: Sequence[Token] = ()
    """Tokens to take from the token buckets."""
    kept_out: Tombstone | None = None
    """So that the refused event is not taken later, where it would be public."""
    is_guess: bool = False
    """An invite code was tried, or whether a key is known here. Counted even if the event is
    refused."""
    list_changes: Sequence[ListChange] = ()
    """Changes of NIP-86 lists by an accepted 28934 or 28936."""
    joins_without_code: bool = False
    """The author becomes a member of the relay without a code; counted if it is accepted."""
    vanishes: bool = False
    """The author's key vanishes from this relay; False if this request, or a
    later one, was already carried out. The request itself is not stored as a row."""

    @property
    def result(self) -> Result:
        """The outcome that the author's OK reports."""
        if self.ruling is not None and self.ruling.reply is not None:
            return self.ruling.reply
        return self.outcome


def screen(
    event: Event,
    origin: Origin,
    now: int,
    policy: Policy,
    management: Management,
    relay: str,
    max_event: int,
) -> Reject | None:
    """The checks before the signature is verified: limits, form, refused kinds.

    `relay`: its public key; `max_event`: bytes.
    """
    if len(event.raw) > max_event:
        return Reject(
            Prefix.INVALID,
            f"event: has {len(event.raw)} bytes, at most {max_event} allowed",
            "[limits] max_message_length",
        )
    if len(event.raw) > MAX_D_CHARS and (chars := len(event.tag("d") or "")) > MAX_D_CHARS:
        return Reject(
            Prefix.INVALID, f"d: has {chars} characters, at most {MAX_D_CHARS} allowed", "form"
        )
    refusal = policy.screen(event, now, origin)
    if refusal is None and origin is Origin.WIRE:
        refusal = check_number_of_previous(event) or check_number_of_targets(event)
    if refusal is not None:
        return refusal
    if event.kind in kinds.GROUP_STATE and event.pubkey != relay:
        return _RELAY_ONLY
    if event.kind in kinds.MEMBERSHIP_RECORDS and event.pubkey != relay:
        return _MEMBERS_RELAY_ONLY
    is_notice = event.kind in kinds.GROUP_MEMBER_NOTICES and event.pubkey != relay
    if is_notice and not origin.is_trusted:
        return _NOTICE_OF_RELAY
    return check_kind_allowed(event.kind, management)


def screen_and_judge(candidate: Candidate, world: World) -> Judgement:
    """`screen`, then `judge`. For callers outside the lane: policy test, explain, dry run."""
    refusal = screen(
        candidate.event,
        candidate.sender.origin,
        world.now,
        world.policy,
        world.management,
        world.relay,
        world.max_event,
    )
    return judge(candidate, world) if refusal is None else Judgement(refusal)


def judge(candidate: Candidate, world: World) -> Judgement:
    """The judgement on the event in this world."""
    if candidate.vanishes:
        return _judge_vanish(candidate, world)
    if candidate.malformed is not None:
        return Judgement(candidate.malformed)
    try:
        return _judge(candidate, world)
    except Invalid as refused:
        return Judgement(refused_form(refused))
    except Refused as refused:
        return Judgement(Reject(refused.prefix, refused.text, "rule"))


def _judge(candidate: Candidate, world: World) -> Judgement:
    event, origin, policy = candidate.event, candidate.sender.origin, world.policy
    is_known_id = event.id in world.found.rows
    if origin is not Origin.WIRE:
        # An importer may learn what is stored: duplicates are reported before the rules.
        if is_known_id:
            return Judgement(WriteOutcome.DUPLICATE)
        if event.kind in kinds.GROUP_STATE or event.kind in kinds.MEMBERSHIP_RECORDS:
            is_own = origin is Origin.TRUSTED_IMPORT and event.pubkey == world.relay
            ruling = ruling_on_own_notice(event, world.groups, world.relay) if is_own else None
            return Judgement(WriteOutcome.REGENERATED, candidate.group, ruling=ruling)
        if event.kind in kinds.GROUP_MEMBER_NOTICES and event.pubkey != world.relay:
            # A notice of the group's former relay, which has sent it to the members.
            return Judgement(WriteOutcome.REGENERATED)
    if (
        event.pubkey == world.relay
        and is_known_id
        and _may_be_told(WriteOutcome.DUPLICATE, candidate, world)
    ):
        return Judgement(WriteOutcome.DUPLICATE)
    refusal = check_event_not_banned(event, world.management)
    if refusal is not None and _may_be_told(WriteOutcome.DELETED, candidate, world):
        return Judgement(refusal)
    refusal = check_kind_allowed(event.kind, world.management)
    if refusal is None and not origin.is_trusted:
        refusal = check_author_not_banned(event, world.actors)
    if refusal is not None:
        return Judgement(refusal)
    facts = facts_of(candidate, world)
    asks = _asks_who_is_known(candidate, facts, policy)
    if asks and not world.guesses.allows(guesser(candidate), candidate.sender.address, world.now):
        return Judgement(_TOO_MANY_WRAPS)
    told = told_facts(candidate, world, facts)
    refusal = policy.refusal(event, told)
    if refusal is not None:
        return Judgement(refusal, is_guess=asks and not facts.wraps_for_known)
    # After the rules: what is too large may be hidden, and then they say that it is unknown.
    if candidate.references.names and world.found.named_too_large:
        return Judgement(_LEADS_TO_TOO_MUCH)
    if not candidate.references.names <= world.found.named.keys():
        return Judgement(_RIGHTS_CHANGED)
    is_concealed = told is not facts and policy.refusal(event, facts) is not None
    if event.kind in kinds.GROUP_STATE:
        return Judgement(_RELAY_ONLY)
    if event.kind in kinds.MEMBERSHIP_RECORDS:
        return Judgement(_MEMBERS_RELAY_ONLY)
    if event.kind in kinds.GROUP_MEMBER_NOTICES and origin is Origin.WIRE:
        return Judgement(_NOTICE_OF_RELAY)
    if is_known_id and _may_be_told(WriteOutcome.DUPLICATE, candidate, world):
        return Judgement(_unstored(candidate, world) or WriteOutcome.DUPLICATE)
    # Whether or not it is stored: the answer must not tell that.
    if (crowded := refusal_to_expire(candidate, world, facts)) is not None:
        return Judgement(crowded)
    if candidate.objection is not None:
        return Judgement(candidate.objection)
    if event.kind == kinds.VANISH and _author_is_unknown(facts, policy):
        return Judgement(_OTHER_RELAYS)
    if event.kind in kinds.MEMBERSHIP_REQUESTS:
        return _judge_membership(candidate, world, facts)
    tries = _tries_code(candidate)
    if tries and not world.guesses.allows(guesser(candidate), candidate.sender.address, world.now):
        return Judgement(_TOO_MANY_CODES, is_guess=True)
    judged = _judge_after_rules(candidate, world, facts, told, is_concealed=is_concealed)
    return msgspec.structs.replace(judged, is_guess=True) if tries else judged


def _judge_after_rules(
    candidate: Candidate, world: World, facts: Facts, told: Facts, *, is_concealed: bool
) -> Judgement:
    """Group rules, if it is in a group; then versions; then rates and quotas.

    `is_concealed`: it is refused for what the connection may not know, and answered as if it were
    stored, unless it would be refused anyway.
    """
    event, named, slot, found = candidate.event, candidate.group, candidate.slot, world.found
    holder = None if slot is None else found.slots.get(slot)
    ruling: Ruling | None = None
    if named is not None or (holder is not None and holder.group is not None):
        context = group_context(candidate, world, facts)
        about = _message_in(named, event)
        ruled = _ruled(candidate, context)
        if ruled is None and holder is not None:
            about, ruled = holder, check_address(named, context)
        if isinstance(ruled, Reject):
            if not ruled.reveals or is_told_of(about, candidate, world):
                return Judgement(ruled)
            is_concealed = True
        else:
            ruling = ruled
    outcome = _unstored(candidate, world)
    if outcome in (WriteOutcome.EXPIRED, WriteOutcome.BASE_DELETED):
        return Judgement(outcome)  # the second is about what the author deleted
    if outcome in _ABOUT_ROWS and _may_be_told(outcome, candidate, world):
        if outcome is WriteOutcome.DELETED and event.kind == kinds.GIFT_WRAP:
            # Anybody may sign one, and learn by it whether a recipient has vanished: so it takes
            # what a stored one takes.
            tokens = _tokens(candidate, world, told, None, is_stored=True)
            if isinstance(tokens, Reject):
                return Judgement(tokens)
            return Judgement(outcome, tokens=tokens)
        return Judgement(outcome)
    is_concealed = is_concealed or outcome in _ABOUT_ROWS
    is_stored = not is_ephemeral(event.kind) if is_concealed else outcome is None
    if is_concealed:
        holder = None
    tokens = _tokens(candidate, world, told, holder, is_stored=is_stored)
    if isinstance(tokens, Reject):
        return Judgement(tokens)
    if told is not facts and not is_concealed:
        others = _tokens(candidate, world, facts, holder, is_stored=is_stored, told=told)
        is_concealed = isinstance(others, Reject)
        tokens = [*tokens, *([] if isinstance(others, Reject) else others)]
    if is_concealed:
        # Only those of the sender: anybody who sends it again could use up its author's or group's.
        is_own = event.pubkey in candidate.sender.authenticated
        of_sender = _OF_SENDER if is_own else _OF_SENDER | {Per.AUTHOR}
        own = [token for token in tokens if token[0].per in of_sender]
        # A request that needs a review is stored, and its author told that it is pending.
        pending = None if ruling is None else ruling.reply
        return Judgement(pending or WriteOutcome.UNTOLD, tokens=own)
    if ruling is not None and outcome is None:
        change = tokens_of_change(candidate, world, facts, ruling)
        if isinstance(change, Reject):
            return Judgement(_if_told(change, named, candidate, world), tokens=tokens)
        tokens = [*tokens, *change]
        if ruling.refusal is not None:
            return Judgement(_if_told(ruling.refusal, named, candidate, world), tokens=tokens)
    group_id, quiet = candidate.row_group, False
    if candidate.targets is not None:
        group_id, quiet = _deletion_reach(candidate, candidate.targets, world)
        if outcome is None:
            hidden = tokens_of_deletion(candidate, world, facts, group_id, quiet=quiet)
            if isinstance(hidden, Reject):
                return Judgement(hidden)
            tokens = [*tokens, *hidden]
    elif candidate.named is not None:
        group_id = derived_group(candidate, world)
    delay = _delay_of_an_end(group_id, candidate, world) if outcome is None else None
    if delay is not None:
        return Judgement(
            _if_told(delay, group_id, candidate, world),
            tokens=tokens,
            kept_out=placed_tombstone(event, group_id, END_OF_GROUP),
        )
    # A later line of an import may contain the pinned event.
    outdated = (
        outdated_pins(candidate, world.groups) if facts.origin is Origin.WIRE else frozenset()
    )
    return Judgement(
        WriteOutcome.STORED if outcome is None else outcome,
        group_id,
        quiet,
        ruling,
        outdated,
        tokens,
    )


def _message_in(group_id: str | None, event: Event) -> Stored:
    """Who may read it knows the rows and the state of the group."""
    return Stored(0, msgspec.structs.replace(event, kind=kinds.CHAT), group_id)


def _if_told(refusal: Reject, group_id: str | None, candidate: Candidate, world: World) -> Result:
    is_told = is_told_of(_message_in(group_id, candidate.event), candidate, world)
    return refusal if is_told else WriteOutcome.UNTOLD


def _delay_of_an_end(group_id: str | None, candidate: Candidate, world: World) -> Reject | None:
    """Why the event has to wait for what is carried out in pieces: who writes faster than these
    delete would keep a group from ending, or a key from vanishing.

    Of a group that ends, one more row is refused. Records leave with the last piece, and a deletion
    is taken if it takes away a row of the group and is not much larger than all that it deletes. Of
    a key that vanishes, one more group is refused."""
    if candidate.sender.origin is not Origin.WIRE:
        return None
    if group_id in world.ending and _adds_to_end(group_id, candidate, world):
        return _ENDING
    action = candidate.action
    if isinstance(action, PutUsers) and (group := world.groups.get(action.group)) is not None:
        put = world.vanishing & action.users.keys()
        return _VANISHING if any(key not in group.members for key in put) else None
    return None


def _adds_to_end(group_id: str | None, candidate: Candidate, world: World) -> bool:
    event = candidate.event
    if is_group_record(event):
        return False
    if candidate.targets is None:
        return True
    if any(row.group == group_id for row in world.removed.rows.values()):
        return False  # it goes in pieces itself
    deleted = deleted_rows(event, candidate.targets, world.found)
    takes_away = any(row.group == group_id for row in deleted)
    size = sum([len(row.event.raw) for row in deleted])
    return not takes_away or len(event.raw) > _DELETION_BYTES + size


def _ruled(candidate: Candidate, context: GroupContext) -> Ruling | Reject | None:
    """What the rules of groups say; None: nothing."""
    event = candidate.event
    if candidate.action is not None:
        return ruling_on(candidate.action, context)
    refusal = check_write(event, candidate.group, context)
    if refusal is not None or candidate.targets is None:
        return refusal
    return ruling_on_withdrawal(event, context)


def _tokens(
    candidate: Candidate,
    world: World,
    facts: Facts,
    holder: Stored | None,
    *,
    is_stored: bool,
    told: Facts | None = None,
) -> Sequence[Token] | Reject:
    """The tokens to take for an event that no other check refuses, or the refusal by a rate or
    quota. `told`: only of the limits that do not apply by these facts; they have buckets of their
    own, since the others' answers are told."""
    if world.taken is not None:
        return ()
    limits = world.policy.usage_limits(candidate.event, facts)
    if told is not None:
        known = world.policy.usage_limits(candidate.event, told)
        moves = facts.group != told.group  # the account of a group is another then
        limits = [
            limit for limit in limits if limit not in known or (moves and limit.adds_up_groups)
        ]
    if not limits:
        return ()
    if holder is not None and world.policy.keep.history.of(holder) is not None:
        holder = None  # it is kept as an old version
    counts_signed = any(each.rate and each.rate.counts is Unit.SIGNED for each in limits)
    counted = CountedEvent(
        candidate.event,
        facts.group,
        candidate.row_group,
        candidate.sender.connection,
        is_rated=facts.origin in world.rated_origins,
        is_stored=is_stored,
        replaces=holder,
        address=candidate.sender.address,
        is_own=candidate.event.pubkey in candidate.sender.authenticated,
        is_told=told is None,
        signed=bytes_signed(candidate.event, world.groups) if counts_signed else 0,
        is_sent=facts.origin is Origin.WIRE,
    )
    return check_usage_limits(limits, counted, world.found.usage, world.buckets, world.now)


def _judge_membership(candidate: Candidate, world: World, facts: Facts) -> Judgement:
    """A request to join or leave the relay: never stored or passed on, whatever the answer."""
    event, policy = candidate.event, world.policy
    refusal = untimely(event, world.now)
    if refusal is not None:
        return Judgement(refusal)
    outcome = _unstored(candidate, world)
    if outcome is not WriteOutcome.PASSED_ON:  # expired, or by a key that vanished since
        return Judgement(outcome or WriteOutcome.DELETED)
    members = Members(world.management, world.actors, world.groups, policy.members)
    tries = is_counted(event, members)
    if tries and not world.guesses.allows(guesser(candidate), candidate.sender.address, world.now):
        return Judgement(_TOO_MANY_CODES, is_guess=True)
    ruled = ruling_on_request(event, members, world.now, anyone_writes=not policy.restricted_writes)
    if isinstance(ruled, Reject):
        return Judgement(ruled, is_guess=tries)
    for change in ruled.changes:
        refusal = check_change(change, world.management, world.actors)
        if refusal is not None:
            return Judgement(refusal, is_guess=tries)
    tokens = _tokens(candidate, world, facts, None, is_stored=False)
    if isinstance(tokens, Reject):
        return Judgement(tokens, is_guess=tries)
    if ruled.without_code and not world.joined.allows(EVERYBODY, world.now):
        return Judgement(TOO_MANY_JOIN, is_guess=tries)
    return Judgement(
        ruled.outcome,
        tokens=tokens,
        is_guess=tries,
        list_changes=ruled.changes,
        joins_without_code=ruled.without_code,
    )


def _unstored(candidate: Candidate, world: World) -> WriteOutcome | None:
    """Why the event is not stored although no rule refuses it; None: it is stored. Raises
    Invalid."""
    if candidate.sender.origin is not Origin.TRUSTED_IMPORT:
        check_expiry(candidate.event, world.now)
    outcome = unstored_outcome(
        candidate.event,
        candidate.slot,
        candidate.keep,
        world.found,
        candidate.row_group,
        now=world.now,
        tie=world.policy.keep.tie,
    )
    if outcome is not None and outcome is not WriteOutcome.PASSED_ON:
        return outcome
    if check_event_not_banned(candidate.event, world.management) is not None:
        return WriteOutcome.DELETED
    return outcome if candidate.base is None else _conflict(candidate, candidate.base, world)


def _conflict(candidate: Candidate, base: Base, world: World) -> WriteOutcome | None:
    """Why an event that was made from `base` must be made again; None: it need not be."""
    event, slot, found = candidate.event, candidate.slot, world.found
    holder = None if slot is None else found.slots.get(slot)
    if holder is not None and holder.event.id == base.id:
        return None  # a kind 5 with the `h` of another group leaves a tombstone beside it (N09-14)
    if (address := slot or address_slot(event)) and is_base_deleted(event, base, address, found):
        return WriteOutcome.BASE_DELETED
    if (
        holder is not None
        and is_rival(holder, base, candidate.keep, world.policy.keep.tie, world.now)
        # Who may not read it cannot take it into account, and would be answered OK true.
        and _may_be_told(WriteOutcome.CHANGED, candidate, world)
    ):
        return WriteOutcome.CHANGED
    return None


def _may_be_told(outcome: WriteOutcome, candidate: Candidate, world: World) -> bool:
    """Whether the connection may learn that the event is stored, deleted or superseded (N01-96).

    Anybody may send an event that somebody else signed, so in a group the keys of the connection
    must be allowed to read it, not the author. Outside of groups everybody is told: a client takes
    OK true for stored. An importer may learn everything.
    """
    sender, found = candidate.sender, world.found
    if sender.origin is not Origin.WIRE:
        return True
    row: Stored | None
    match outcome:
        case WriteOutcome.DUPLICATE:
            row = found.rows.get(candidate.event.id)
        case WriteOutcome.SUPERSEDED | WriteOutcome.CHANGED | WriteOutcome.TAKEN:
            row = None if candidate.slot is None else found.slots.get(candidate.slot)
        case _:
            row = _row_if_stored(candidate, world)
    if row is None:
        return False
    if row.group is None and candidate.group is None:
        return True
    if outcome in _OF_AUTHOR and candidate.event.pubkey in sender.authenticated:
        return True  # also who has left the group, or whose 9007 of before a vanish made one
    return may_know_by_id(row, seen_by_sender(candidate, world), world)


def _row_if_stored(candidate: Candidate, world: World) -> Stored | None:
    """The row of a deleted event as it was; None if its group cannot be derived from the stored
    rows."""
    event, named, found = candidate.event, candidate.named, world.found
    group = candidate.row_group
    is_request = event.kind == kinds.DELETION
    is_own_request = is_request and event.pubkey in candidate.sender.authenticated
    if named is not None and not is_own_request:
        seen = seen_by_sender(candidate, world)
        rows = [*map(found.rows.get, named.ids), *map(found.slots.get, named.slots)]
        if not all(row is not None and may_know_by_id(row, seen, world) for row in rows):
            return None
        group = derived_group(candidate, world)
    return Stored(0, event, group, is_request)


def _author_is_unknown(facts: Facts, policy: Policy) -> bool:
    """Whether a request to vanish from other relays is refused because its author is unknown
    (Z-13)."""
    return policy.restricted_writes and Who.KNOWN not in facts.who and not facts.origin.is_trusted


def _asks_who_is_known(candidate: Candidate, facts: Facts, policy: Policy) -> bool:
    """Whether the answer to a wrap tells somebody unknown whether its recipient is known here."""
    return (
        policy.restricted_writes
        and candidate.event.kind in kinds.WRAPS
        and facts.origin is Origin.WIRE
        and Who.KNOWN not in facts.who | facts.authenticated_who
    )


def _tries_code(candidate: Candidate) -> bool:
    action = candidate.action
    return (
        isinstance(action, JoinRequest)
        and action.code is not None
        and candidate.sender.origin is Origin.WIRE
    )


def guesser(candidate: Candidate) -> str:
    """The key or, without its login, the key and the address, whose guesses are counted together
    (N29-39): a client that sends an old request of another key must not use up the
    tries of that key."""
    pubkey, sender = candidate.event.pubkey, candidate.sender
    is_own = pubkey in sender.authenticated
    return pubkey if is_own else f"{pubkey} from {subnet_of(sender.address)}"


def _deletion_reach(
    candidate: Candidate, targets: DeletionTargets, world: World
) -> tuple[str | None, bool]:
    """The group that a kind 5 belongs to, and whether not everyone may read it (N29-104)."""
    event, group_id, found, before = candidate.event, candidate.group, world.found, world.removed
    removed = deleted_rows(event, targets, found)
    # A code that the author tried to withdraw may still be valid, in this group or another.
    quiet = group_id is not None and event.has_tag("code")
    quiet = quiet or before.were_restricted or are_restricted(removed, world)
    # Rows that it deleted before a crash may have been hidden.
    quiet = quiet or (event.id in found.begun and not before.rows)
    quiet = quiet or names_restricted(event, world.policy.read_rules)
    if candidate.sender.origin.is_trusted:
        # The relay's own export does not contain the deleted rows, which may have been private.
        quiet = quiet or any(
            value not in found.rows and value not in before.rows for value in event.tag_values("e")
        )
        # A later version that is stored at an address does not tell where the deleted one was.
        slots = {row.slot for row in removed if row.slot is not None} | before.slots
        quiet = quiet or any(address_of(value) not in slots for value in event.tag_values("a"))
    if group_id is None:
        groups = {row.group for row in removed} | {row.group for row in before.rows.values()}
        if len(groups - {None}) == 1:
            group_id = (groups - {None}).pop()
        elif not groups:
            group_id = derived_group(candidate, world)
        is_over = group_id in world.ending or (groups and group_id in world.groups.ended)
        if candidate.sender.origin is Origin.WIRE and is_over:
            # Not one more row to delete with the group, or to be left in it. What it only names may
            # be hidden.
            return None, quiet or not groups
    return group_id, quiet


def are_restricted(rows: Iterable[Stored], world: World) -> bool:
    """Whether not everybody may read all of these."""
    anonymous = visibility_for(ANONYMOUS, world.policy.read_rules, world.actors, world.groups)
    return any(not anonymous.may_read(row, None) for row in rows)


def check_vanish(
    candidate: Candidate, groups: Groups, relay: str, now: int, most_ahead: int
) -> Reject | None:
    """The refusal of a kind 62 for which nothing needs to be looked up. `most_ahead`: seconds."""
    request = candidate.event
    is_trusted = candidate.sender.origin.is_trusted
    if len(request.raw) > MAX_VANISH_BYTES and not is_trusted:
        return _TOO_LARGE
    ahead = request.created_at - now
    if ahead > most_ahead:
        # Of an import too: its tombstone would refuse the author until then (N62-10).
        text = f"created_at: {ahead} s in the future, at most {most_ahead} s allowed"
        return Reject(Prefix.INVALID, text, "[limits] created_at_upper")
    if request.pubkey == relay:
        return _OWN_KEY
    if (
        candidate.sender.origin is Origin.WIRE
        and is_old_request(request, now)
        and len(groups.groups_of(request.pubkey)) > _MOST_LEFT
    ):
        return _TOO_OLD
    return None


def _judge_vanish(candidate: Candidate, world: World) -> Judgement:
    """A request to vanish. Only rates and daily quotas that name the kind apply (N62-11): its size,
    and how often, are limited here."""
    request = candidate.event
    refusal = check_vanish(
        candidate, world.groups, world.relay, world.now, world.policy.limits.created_at_upper
    )
    if refusal is not None:
        return Judgement(refusal)
    done = vanish_outcome(request, world.found)
    if done is not None:
        return Judgement(done)
    if is_paced(candidate, world):
        name = subnet_of(candidate.sender.address)
        if not world.vanished.allows(name, world.now):
            return Judgement(TOO_MANY_VANISH)
    # Only of rules that name the kind. As if it were kept whole: else the answer would tell whether
    # anything of the key is stored.
    tokens = _tokens(candidate, world, facts_of(candidate, world), None, is_stored=True)
    if isinstance(tokens, Reject):
        return Judgement(tokens)
    return Judgement(WriteOutcome.STORED, vanishes=True, tokens=tokens)


def is_paced(candidate: Candidate, world: World) -> bool:
    """Whether a request to vanish is counted in `World.vanished`."""
    return (
        candidate.sender.origin is Origin.WIRE
        and candidate.event.pubkey not in world.found.stored_keys
    )
