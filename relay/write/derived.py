"""Derived groups: an event without `h` belongs to the group of the event that it names.

It is readable as a row of that group, and is deleted with the group. It is not written into the
group: flags and roles do not decide whether it is accepted.

Invariants: a target that the author may not read counts as not stored. So the result does not
reveal whether the target is missing, deleted, in another group, hidden, or of another relay. Who
may not read the messages of a group adds no row to it by what else of it may be read (N29-109).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, Protocol

from msgspec import structs

from relay.access.visibility import Reading, Viewer
from relay.groups.group import pins_of
from relay.nostr import kinds
from relay.nostr.nip57 import zap_request

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from relay.access.visibility import Visibility
    from relay.groups.group import Groups
    from relay.lifecycle.rows import Found, Stored
    from relay.nostr.event import Event
    from relay.write.candidate import Candidate

_ABOUT_GROUPS: Final = frozenset({*kinds.GROUP_RECORDS, *kinds.GROUP_STATE})


class _World(Protocol):
    """The part of a `relay.write.world.World` that is needed here."""

    @property
    def found(self) -> Found: ...
    @property
    def groups(self) -> Groups: ...
    def seen_by(self, viewer: Viewer, *, shows_banned: bool = False) -> Visibility: ...


def derived_group(
    candidate: Candidate, world: _World, is_told: Callable[[Stored], bool] = lambda _: True
) -> str | None:
    """The group of the first stored event of a group that the candidate names and its author may
    read, and `places`; if some are of groups that only members read, of the first of these. Of a
    group that has ended nothing is left but its records, which owners read: what names these is in
    no group, else anybody stored rows there that all others pass over.

    A comment names a root, which may be public, before what it answers (NIP-22). `is_told`: whether
    a row counts as stored.
    """
    named, found = candidate.named, world.found
    if named is None:
        return None
    by_id, by_address = map(found.rows.get, named.ids), map(found.slots.get, named.slots)
    rows = [row for row in (*by_id, *by_address) if row is not None and row.group is not None]
    if not rows:
        return None
    namer = _Namer(candidate, world)
    keeps_ended = candidate.sender.origin.is_trusted  # one's own export: nobody else read them
    first = None
    for row in rows:
        if row.group in world.groups.ended and not keeps_ended:
            continue
        if is_told(row) and namer.may_name(row):
            group = world.groups.get(row.group)
            if group is None or group.only_members_read:
                return row.group
            first = first or row.group
    return first


def places(row: Stored, seen: Visibility) -> bool:
    """Whether what names this row, by somebody who reads so much, may be in its group.

    Of a private group everybody may read the 39000 and 39003, and who was removed the 9001.
    """
    if row.group is None or row.event.kind not in _ABOUT_GROUPS:
        return True
    return seen.reads_group(row.group)


def followers(target: Stored, candidate: Candidate, world: _World) -> Iterator[Stored]:
    """Stored rows outside of groups that name this row of a group: an import stored them before it.
    If they name several such rows, the one imported first decides. Yields each with its group."""
    found = world.found
    for reference in pins_of(target.event):
        for event_id in found.referrers.get(reference, ()):
            row = found.rows.get(event_id)
            if row is not None and row.group is None:
                named = structs.replace(candidate, event=row.event)
                if _Namer(named, world).may_name(target):
                    yield structs.replace(row, group=target.group)


class _Namer:
    """Who names rows by an event: its author and, of a zap receipt, who asked for it."""

    def __init__(self, candidate: Candidate, world: _World) -> None:
        event, sender = candidate.event, candidate.sender
        # With its owner's rights too: outside of the group, an agent's reaction would be public.
        attested = frozenset([each for each in sender.attested if each.agent == event.pubkey])
        self._author = Viewer(frozenset({event.pubkey}), attested=attested)
        self._event = event
        self._is_trusted = sender.origin.is_trusted
        self._world = world
        self._zap: tuple[Viewer, frozenset[tuple[str, ...]]] | None = None
        """Who sent the zap, and the tags of the request; read at the first need, for all rows."""

    def may_name(self, target: Stored) -> bool:
        if self._is_trusted:
            return True  # one's own export: its author may have left the group since
        if _may_read(self._author, target, self._world):
            return True
        if self._event.kind != kinds.ZAP_RECEIPT:
            return False
        # A wallet service signs the receipt, on behalf of the key that asked for it.
        if self._zap is None:
            self._zap = _zap_of(self._event)
        sender, names = self._zap
        return not names.isdisjoint(pins_of(target.event)) and _may_read(
            sender, target, self._world
        )


def _zap_of(receipt: Event) -> tuple[Viewer, frozenset[tuple[str, ...]]]:
    """Who sent the zap, and what its request names; nothing if it is not valid."""
    request = zap_request(receipt)
    if request is None:
        return Viewer(), frozenset()
    return Viewer(frozenset({request.pubkey})), frozenset([tuple(t[:2]) for t in request.tags])


def _may_read(author: Viewer, row: Stored, world: _World) -> bool:
    """Whether the author may read the row by some filter, if every `target` may be read, and
    `places` something by it."""
    # A ban hides rows as long as it lasts; what is written about them stays in their group.
    seen = world.seen_by(author, shows_banned=True)
    if not places(row, seen):
        return False
    targets = frozenset([target for target, _ in seen.targets_of(row)])
    return seen.reading(row, targets) is not Reading.NEVER
