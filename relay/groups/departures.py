"""What groups come to when rows go without a moderation event: expiry, ban, vanish (NIP-62).

Invariants: the state stays what the log tells. Where a vanish takes 9000–9022 out of the log, the
relay says with its own key what they had said (N29-58), and the state is folded from that.
"""

from __future__ import annotations

from enum import Enum, auto
from itertools import islice
from typing import TYPE_CHECKING, Final

from relay.groups.group import Group, pins_of
from relay.groups.notices import Draft
from relay.nostr import kinds

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Set

    from relay.groups.group import Groups
    from relay.nostr.event import Event

_USERS_PER_DRAFT: Final = 500


class Cause(Enum):
    """Why a key loses its memberships."""

    VANISHED = auto()
    """Its own will: it may come back as anybody may."""
    BANNED = auto()
    """An admin's: as if each group had removed it (N29-40)."""


def groups_without_rows(groups: Groups, rows: Iterable[Event]) -> Groups:
    """These groups when rows are gone that expired or were swept: codes, requests and pins too."""
    for event in rows:
        for pin in pins_of(event):
            for group_id in groups.pinned.get(pin, ()):
                groups = groups.with_group(groups.by_id[group_id].without_pin(pin))
        if event.kind in (kinds.CREATE_INVITE, kinds.JOIN_REQUEST):
            group = groups.get(event.tag("h"))
            if group is not None:
                groups = groups.with_group(group.without_rows({event.id}))
    return groups


def removals_from_groups(
    groups: Groups, pubkey: str, now: int, cause: Cause, *, but: Set[str] = frozenset()
) -> tuple[Groups, tuple[Draft, ...]]:
    """A key leaves every group (N62-07, N29-84) `but` these, last admin or not: the groups after,
    and a 9001 by the relay for each."""
    drafts = []
    for group_id in sorted(groups.groups_of(pubkey) - but):
        group = groups.by_id[group_id]
        by_itself = cause is Cause.VANISHED
        after = group.without_users({pubkey}, removed_at=None if by_itself else now)
        groups = groups.with_group(after)
        drafts.append(_removal(group_id, [pubkey], now, cause))
    return groups, tuple(drafts)


def repair_drafts(before: Groups, left: Groups, now: int) -> tuple[Draft, ...]:
    """What the relay must sign so that members, roles and removals become again as in `before`.

    `before` is the state after `removals_from_groups`, `left` the fold of what the vanish left in
    the log, those removals included. The state is then `rebuilt(left, <these, signed>)`;
    codes that the vanished key made are gone.
    """
    drafts = [
        Draft(kinds.DELETE_GROUP, (("h", group_id),), "", now)
        for group_id in sorted(before.ended - left.ended)
    ]
    for group in before.by_id.values():
        drafts += _mending(group, left.get(group.id) or Group(group.id), now)
    return tuple(drafts)


def _mending(before: Group, left: Group, now: int) -> Iterator[Draft]:
    removed = before.removed.keys() - left.removed.keys()
    yield from _removals(before.id, removed, now, Cause.BANNED)
    gone = left.members.keys() - before.members.keys() - before.removed.keys()
    yield from _removals(before.id, gone, now, Cause.VANISHED)
    missing = (
        ("p", pubkey, *roles)
        for pubkey, roles in before.members.items()
        if left.members.get(pubkey) != roles
    )
    while part := tuple(islice(missing, _USERS_PER_DRAFT)):
        yield Draft(kinds.PUT_USER, (("h", before.id), *part), "", now)


def _removals(group_id: str, pubkeys: Iterable[str], now: int, cause: Cause) -> Iterator[Draft]:
    ordered = iter(sorted(pubkeys))
    while part := list(islice(ordered, _USERS_PER_DRAFT)):
        yield _removal(group_id, part, now, cause)


def _removal(group_id: str, pubkeys: list[str], now: int, cause: Cause) -> Draft:
    own = (("self-removal",),) if cause is Cause.VANISHED else ()
    tags = (("h", group_id), *(("p", pubkey) for pubkey in pubkeys), *own)
    return Draft(kinds.REMOVE_USER, tags, "", now)
