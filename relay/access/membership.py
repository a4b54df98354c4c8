"""NIP-43: who is a member of the relay, requests to join and leave, and invite claims.

Invariants: pure. The register of members is the NIP-86 list of allowed keys; everything else that
belongs to a member (time, roles) and the open claims are lists beside it, changed in the same
transaction. A claim is compared in constant time and is in no text made here (Z-14).
"""

from __future__ import annotations

import hmac
from dataclasses import dataclass
from enum import Enum
from hashlib import sha256
from typing import TYPE_CHECKING, Final

import msgspec

from relay.access.actors import author_words, is_known
from relay.access.management import MAX_ENTRIES, ListChange, ListName
from relay.errors import Prefix, Reject, WriteOutcome
from relay.facts import Who
from relay.nostr import kinds
from relay.nostr.event import is_hex64

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from relay.access.actors import Actors
    from relay.access.management import Management
    from relay.groups.group import Groups
    from relay.nostr.event import Event

RULE: Final = "relay membership"
"""The rule that all refusals here name."""
REQUEST_WINDOW_S: Final = 600
"""A request to join or leave is valid for this time before and after its created_at."""
MAX_WITHOUT_CODE: Final = MAX_ENTRIES - 1000
"""Members up to which a key joins without a code: made-up keys must leave room for those that an
owner allows or invites."""
JOINED_PER_MINUTE: Final = 300
"""Keys that join without a code, from all addresses. The list of members is signed again, and sent
to who reads it, for each batch with one of them."""
_INVITED: Final = "invited by "
"""Start of the note of a member that joined by a claim; the key that made the claim follows."""
_MAX_CODE: Final = 256
"""Characters; a longer code is not valid."""
_MAX_TAGS_BYTES: Final = 480_000
"""Bytes of the tags of a 13534, about 6,000 members: its frame stays below the default
`max_message_length`."""


class Entry(Enum):
    """`[members] join`: what a request to join needs."""

    CLAIM = "claim"
    ANYONE = "anyone"
    """Nothing: every key that asks becomes a member."""


@dataclass(frozen=True, slots=True)
class MemberSettings:
    """`[members]` of the policy files."""

    join: Entry = Entry.CLAIM
    invite: frozenset[Who] = frozenset({Who.OWNER})
    """Who gets a claim for a REQ of kind 28935."""
    claim_uses: int = 1
    claim_days: int = 7
    """0: such a claim does not expire."""


class Claim(msgspec.Struct, frozen=True):
    """A claim without its code; stored as JSON in the note of its entry."""

    by: str
    """64 hex: who invited. While this key may not invite, the claim is not valid."""
    made_at: int
    until: int | None = None
    """First Unix second at which it is no longer valid; None: it does not expire."""
    left: int | None = 1
    """How many keys it still admits; None: any number."""
    asked: bool = False
    """Made for a REQ: the same key gets the same claim again."""

    def is_open(self, now: int) -> bool:
        return (self.until is None or now < self.until) and self.left != 0


_decode: Final = msgspec.json.Decoder(Claim).decode


def claims_of(management: Management) -> Iterator[tuple[str, Claim]]:
    """(code, claim) of all entries, expired ones too."""
    for code, note in management.of(ListName.CLAIMS).items():
        yield code, _decode(note)


def claim_id(code: str) -> str:
    """Names a code where the code itself must not appear: 16 hex."""
    return sha256(code.encode()).hexdigest()[:16]


def claim_change(code: str, claim: Claim) -> ListChange:
    return ListChange(ListName.CLAIMS, code, msgspec.json.encode(claim).decode())


@dataclass(frozen=True, slots=True)
class Members:
    """The state that decides about membership at one time."""

    management: Management
    actors: Actors
    """The actors of the policy files, with the keys that calls allowed and banned."""
    groups: Groups
    settings: MemberSettings

    def may_invite(self, pubkey: str) -> bool:
        """Whether a REQ by this key for kind 28935 is answered."""
        if pubkey in self.actors.banned:
            return False
        words = author_words(pubkey, self.actors, self.groups, None)
        return not self.settings.invite.isdisjoint(words)

    def asked_claim(self, pubkey: str, now: int) -> str | None:
        """The code that an earlier REQ of this key got, as long as it is valid."""
        for code, claim in claims_of(self.management):
            if claim.asked and claim.by == pubkey and claim.is_open(now):
                return code
        return None

    def _open_claim(self, code: str, now: int) -> Claim | None:
        """The valid claim with this code. All are compared, each in constant time (N29-39)."""
        if not code or len(code) > _MAX_CODE:
            return None
        wanted, found = code.encode(), None
        for known, claim in claims_of(self.management):
            if hmac.compare_digest(known.encode(), wanted):
                found = claim
        if found is None or not found.is_open(now):
            return None
        is_valid = found.by == self.actors.relay or self.may_invite(found.by)
        return found if is_valid else None


@dataclass(frozen=True, slots=True)
class Admission:
    """The OK of an accepted request, and what it changes."""

    outcome: WriteOutcome
    changes: tuple[ListChange, ...] = ()
    without_code: bool = False
    """The key becomes a member without a code, which counts for JOINED_PER_MINUTE."""


_NEEDS_CLAIM: Final = Reject(Prefix.RESTRICTED, "an invite code is needed to join this relay", RULE)
_FULL: Final = Reject(
    Prefix.RESTRICTED, "this relay has no more room for members without an invite code", RULE
)
TOO_MANY_JOIN: Final = Reject(
    Prefix.RATE_LIMITED, "too many keys join this relay, wait a minute", RULE
)
_BAD_CLAIM: Final = Reject(Prefix.RESTRICTED, "this invite code is not valid", RULE)
"""Unknown, expired, used up, withdrawn or older than the key's removal: the same text."""
_OTHERWISE_MEMBER: Final = Reject(
    Prefix.RESTRICTED,
    "your access comes from a group or from the policy files; leave the groups with kind 9022",
    RULE,
)


def untimely(request: Event, now: int) -> Reject | None:
    """Why the date of a 28934 or 28936 is refused."""
    off = request.created_at - now
    if abs(off) <= REQUEST_WINDOW_S:
        return None
    text = f"created_at: {abs(off)} s in the {'future' if off > 0 else 'past'}"
    return Reject(Prefix.INVALID, f"{text}, at most {REQUEST_WINDOW_S} s allowed", RULE)


def is_counted(request: Event, members: Members) -> bool:
    """Whether a request counts as a tried invite code: it has a code, or anyone may join. So no
    client can fill the register with keys."""
    if request.kind != kinds.RELAY_JOIN:
        return False
    if is_known(request.pubkey, members.actors, members.groups):
        return False  # the answer does not depend on its code
    return members.settings.join is Entry.ANYONE or bool(request.tag("claim"))


def ruling_on_request(
    request: Event, members: Members, now: int, *, anyone_writes: bool
) -> Admission | Reject:
    """The ruling on a 28934 or 28936 (N43-03, N43-05). `anyone_writes`: also without joining."""
    pubkey = request.pubkey
    known = is_known(pubkey, members.actors, members.groups)
    if request.kind == kinds.RELAY_LEAVE:
        if pubkey in members.management.of(ListName.ALLOWED_KEYS):
            ended = ListChange(ListName.ALLOWED_KEYS, pubkey, None, by_member=True)
            return Admission(WriteOutcome.LEFT, (ended,))
        return _OTHERWISE_MEMBER if known else Admission(WriteOutcome.NO_MEMBER)
    if known:
        return Admission(WriteOutcome.MEMBER)
    code = request.tag("claim")
    if members.settings.join is Entry.ANYONE:
        if len(members.management.of(ListName.ALLOWED_KEYS)) < MAX_WITHOUT_CODE:
            return Admission(WriteOutcome.JOINED, (_allowed(pubkey, "joined"),), without_code=True)
        if not code:
            return _FULL
    elif not code:
        return Admission(WriteOutcome.JOINED) if anyone_writes else _NEEDS_CLAIM
    claim = members._open_claim(code, now)
    removed = removed_at(pubkey, members.management)
    if claim is None or (removed is not None and claim.made_at <= removed):
        return _BAD_CLAIM
    left = None if claim.left is None else claim.left - 1
    used = ListChange(ListName.CLAIMS, code, None)
    if left != 0:
        used = claim_change(code, msgspec.structs.replace(claim, left=left))
    return Admission(WriteOutcome.JOINED, (_allowed(pubkey, f"{_INVITED}{claim.by}"), used))


def _allowed(pubkey: str, reason: str) -> ListChange:
    return ListChange(ListName.ALLOWED_KEYS, pubkey, reason)


# -- what follows from a change -------------------------------------------------------------------


def follows_from(change: ListChange, management: Management, now: int) -> Sequence[ListChange]:
    """Further changes in the same transaction; `management`: after the change."""
    match change.list_name, change.note:
        case ListName.BANNED_KEYS, str():
            claims = withdrawn(change.item, management)
            if change.item not in management.of(ListName.ALLOWED_KEYS):
                return [*_without_roles(change.item, management), *claims]
            allowed = ListChange(ListName.ALLOWED_KEYS, change.item, None)
            return [allowed, *_after_removal(change.item, management, now), *claims]
        case ListName.ALLOWED_KEYS, None if change.by_member:
            ended = ListChange(ListName.MEMBERS_SINCE, change.item, None)
            return [ended, *_without_roles(change.item, management)]
        case ListName.ALLOWED_KEYS, None:
            return _after_removal(change.item, management, now)
        case ListName.ROLES, None:
            return [
                ListChange(ListName.ROLE_HOLDERS, item, None)
                for item in management.of(ListName.ROLE_HOLDERS)
                if item.partition(" ")[2] == change.item
            ]
        case ListName.ALLOWED_KEYS, str():
            if joined_at(change.item, management) is not None:
                return ()
            return [ListChange(ListName.MEMBERS_SINCE, change.item, str(now))]
        case _:
            return ()


def withdrawn(pubkey: str, management: Management) -> Sequence[ListChange]:
    """Changes that remove all codes that the key made."""
    return [
        ListChange(ListName.CLAIMS, code, None)
        for code, claim in claims_of(management)
        if claim.by == pubkey
    ]


def _after_removal(pubkey: str, management: Management, now: int) -> Sequence[ListChange]:
    """Codes made before admit the key no more: none is younger than `now`, though the clock may
    have been ahead when it was made. Of more than MAX_ENTRIES removals the oldest is forgotten."""
    times = management.of(ListName.MEMBERS_SINCE)
    changes = [
        ListChange(ListName.MEMBERS_SINCE, pubkey, f"-{now}"),
        *_without_roles(pubkey, management),
        *[
            claim_change(code, msgspec.structs.replace(claim, made_at=now))
            for code, claim in claims_of(management)
            if claim.made_at > now
        ],
    ]
    if len(times) - len(management.of(ListName.ALLOWED_KEYS)) > MAX_ENTRIES:
        removals = [(int(time), key) for key, time in times.items() if time.startswith("-")]
        if removals:
            changes.append(ListChange(ListName.MEMBERS_SINCE, max(removals)[1], None))
    return changes


def _without_roles(pubkey: str, management: Management) -> Sequence[ListChange]:
    return [
        ListChange(ListName.ROLE_HOLDERS, item, None)
        for item in management.of(ListName.ROLE_HOLDERS)
        if item.partition(" ")[0] == pubkey
    ]


def invited_by(management: Management) -> dict[str, str]:
    """Member of the register → the key whose invite it joined with; others are missing."""
    allowed = management.of(ListName.ALLOWED_KEYS)
    found = {key: note.removeprefix(_INVITED) for key, note in allowed.items()}
    return {key: by for key, by in found.items() if is_hex64(by)}


def joined_at(pubkey: str, management: Management) -> int | None:
    """Unix seconds; None: not in the register, or added by a version that stored no time."""
    note = management.of(ListName.MEMBERS_SINCE).get(pubkey)
    return None if note is None or note.startswith("-") else int(note)


def removed_at(pubkey: str, management: Management) -> int | None:
    """Unix seconds of the last removal by a call; None: not removed, or a member since."""
    note = management.of(ListName.MEMBERS_SINCE).get(pubkey, "")
    return int(note[1:]) if note.startswith("-") else None


# -- 13534 and 33534 ------------------------------------------------------------------------------


def is_listed(pubkey: str, management: Management, actors: Actors) -> bool:
    """Whether 13534 names the key: the register, and the owners and agents of `[actors]`.

    Keys of `[allow] files`, of households and members of groups are known, but not listed: the list
    need not be exhaustive (N43-01), and these keys must not be published.
    """
    in_lists = (
        pubkey in actors.owners
        or pubkey in actors.agents
        or pubkey in management.of(ListName.ALLOWED_KEYS)
    )
    return in_lists and pubkey not in actors.banned


def member_tags(management: Management, actors: Actors) -> tuple[tuple[str, ...], ...]:
    """Tags of 13534: as many members as fit, owners and agents first, each with their roles."""
    tags: list[tuple[str, ...]] = [("-",)]
    remaining = _MAX_TAGS_BYTES
    for pubkey, roles in listed_members(management, actors).items():
        tag = ("member", pubkey, *roles)
        remaining -= 2 + sum(3 + len(part) for part in tag)
        if remaining < 0:
            break
        tags.append(tag)
    return tuple(tags)


def listed_members(management: Management, actors: Actors) -> dict[str, list[str]]:
    """All that `is_listed`, owners and agents first; key → ids of its roles."""
    listed = dict.fromkeys([*sorted(actors.owners), *sorted(actors.agents)])
    listed |= dict.fromkeys(sorted(management.of(ListName.ALLOWED_KEYS)))
    roles = roles_of(management)
    return {key: roles.get(key, []) for key in listed if key not in actors.banned}


def roles_of(management: Management) -> dict[str, list[str]]:
    """Key → ids of its roles, sorted."""
    found: dict[str, list[str]] = {}
    for item in sorted(management.of(ListName.ROLE_HOLDERS)):
        pubkey, _, role = item.partition(" ")
        found.setdefault(pubkey, []).append(role)
    return found


def role_tags(role: str, note: str) -> tuple[tuple[str, ...], ...]:
    """Tags of 33534; `note`: of the role's entry in ROLES."""
    return (("-",), ("d", role), *[tuple(tag) for tag in msgspec.json.decode(note)])
