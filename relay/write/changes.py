"""Changes: what the items of a batch have changed so far, and what the relay signs about it.

Invariants: the next item is judged against `world`; the rows in `found` are kept as they will be;
what is signed becomes a row of the plan.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Final

from relay.groups.actions import size_of_tags
from relay.groups.membership import groups_without_rows
from relay.groups.notices import (
    LISTS,
    NOTICES,
    bytes_of_changed_lists,
    bytes_of_lists,
    is_listed_apart,
    is_outdated,
    notices_again,
    notices_for,
)
from relay.lifecycle.deletion import add_tombstone
from relay.lifecycle.rows import Slot, Stored
from relay.lifecycle.versions import plan_for
from relay.write.pins import pins_left, without_pins

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Set

    from relay.groups.group import Group, Groups
    from relay.groups.notices import Draft
    from relay.lifecycle.rows import Tombstone, WritePlan
    from relay.nostr.event import Event
    from relay.nostr.keys import SecretKey
    from relay.write.commands import SignLists
    from relay.write.world import World

BYTES_AT_ONCE: Final = 1_000_000
"""Bytes of lists that a `SignLists` signs in a transaction, unless they are of one group."""
_LARGE_GROUP: Final = 50
"""Members. Its lists are signed once for all changes of a batch: one takes up to 15 ms and 700 kB,
and so many changes would keep all other events waiting for seconds."""
_LARGE_STATE: Final = 8192
"""Bytes of what it is and pins: that is signed once then, too."""


class Changes:
    """Of one batch. The items change it in turn; `sign_last` comes after them."""

    def __init__(
        self,
        world: World,
        plan: WritePlan,
        rows: list[Stored],
        relay_key: SecretKey,
        unsigned: dict[str, Group],
        unlisted: Set[str],
        list_room: int,
        signed_before: Mapping[tuple[int, str], int],
    ) -> None:
        """`unsigned`: of `world`, empty. `unlisted`: groups whose lists are due since an earlier
        batch. `list_room`: bytes of lists that may be signed with their changes. `signed_before`:
        as `Pieces.signed`."""
        self.world = world
        self.found = world.found
        self.now = world.now
        self.plan = plan
        self.rows = rows
        """Everything accepted, in order."""
        self.signed_before = signed_before
        self.signed: set[tuple[int, str]] = set()
        """(kind, group) of what this batch signs for a request to vanish."""
        self.unlisted: dict[str, None] = {}
        """Groups whose lists another batch will sign, in order."""
        self.listed: set[str] = set()
        """Groups of a `SignLists` whose lists are signed."""
        self.listed_bytes = 0
        """Bytes of all lists that were signed."""
        self._list_room = list_room
        self._relay_key = relay_key
        self._unsigned = unsigned
        """Groups as they were before the batch: what is signed about these comes last."""
        self._unlisted_before = unlisted

    def set_groups(self, groups: Groups) -> None:
        self.world = self.world.with_groups(groups)

    def notify(self, before: Group | None, after: Group) -> None:
        """Set the group, and sign the 39000–39005 that differ: now, or in `sign_last`."""
        is_put_off = after.id in self._unsigned or _is_large(after)
        if before is None or not (is_put_off or self._is_apart(before, after)):
            self._sign_notices(before, after)
            return
        self._unsigned.setdefault(after.id, before)
        self.set_groups(self.world.groups.with_group(after))
        self.plan.groups[after.id] = after

    def notify_since(self, before: Groups) -> None:
        """`notify` for each group that is another than before."""
        after = self.world.groups
        for group_id in sorted(after.by_id.differing(before.by_id)):
            group = after.get(group_id)
            if group is not None:
                self.notify(before.get(group_id), group)

    def _is_apart(self, before: Group, after: Group) -> bool:
        """Whether the lists are left to another batch. This one did not look up the old ones of
        large groups."""
        if after.id in self._unlisted_before or any(map(is_listed_apart, (before, after))):
            return True
        size = bytes_of_changed_lists(before, after)
        return size > 0 and size > self._list_room - self.listed_bytes

    def sign_last(self) -> None:
        """What is signed once for all changes of the batch."""
        for before in self._unsigned.values():
            after = self.world.groups.get(before.id)
            if after is None:
                continue  # it ended
            if not self._is_apart(before, after):
                self._sign_notices(before, after)
                continue
            if bytes_of_changed_lists(before, after):
                self.unlisted[before.id] = None
            self._sign_notices(before, after, NOTICES - LISTS)
        self.listed -= self.unlisted.keys()

    def sign_lists(self, signing: SignLists) -> None:
        """Sign the lists that differ from what is stored: another relay on the database may have
        signed some. The first group's, and others' while there is room."""
        compat = self.world.policy.groups.compat
        for group_id in signing.groups:
            group = self.world.groups.get(group_id)
            if group is not None:  # it did not end
                if self.listed and bytes_of_lists(group) + self.listed_bytes > BYTES_AT_ONCE:
                    break
                which = {kind for kind in LISTS if self._is_outdated(kind, group)}
                self._publish(*notices_again(group, which, self.now, compat))
            self.listed.add(group_id)

    def _is_outdated(self, kind: int, group: Group) -> bool:
        stored = self.found.slots.get(Slot(self._relay_key.pubkey, kind, group.id))
        return stored is None or is_outdated(stored.event, group, self.world.policy.groups.compat)

    def _sign_notices(self, before: Group | None, after: Group, which: Set[int] = NOTICES) -> None:
        compat = self.world.policy.groups.compat
        self._publish(*notices_for(before, after, self.now, compat, which))

    def _publish(self, noted: Group, drafts: Iterable[Draft]) -> None:
        self.set_groups(self.world.groups.with_group(noted))
        for draft in drafts:
            self.sign(draft, noted.id)
        self.plan.groups[noted.id] = noted

    def sign(self, draft: Draft, group_id: str | None) -> Event:
        tags = [list(tag) for tag in draft.tags]
        event = self._relay_key.sign(draft.kind, tags, draft.content, draft.created_at)
        if draft.kind in LISTS:
            self.listed_bytes += len(event.raw)
        keep = self.world.policy.keep
        kept = plan_for(
            event,
            group_id,
            keep.keep_of(event),
            self.found,
            self.plan,
            now=self.now,
            tie=keep.tie,
        )
        if isinstance(kept, Stored):
            self.rows.append(kept)
        return event

    def unpin(self, group_ids: Iterable[str]) -> None:
        """Drop pins of these groups whose event is removed or expired (N29-172)."""
        for group_id in sorted(group_ids):
            group = self.world.groups.get(group_id)
            if group is None:
                continue
            left = pins_left(group, self.found, self.now)
            if len(left) < len(group.pins):
                self.notify(group, replace(group, pins=left))

    def unpin_rows(self, rows: Set[str | Slot]) -> None:
        """Drop the pins of rows that leave, in every group."""
        before = self.world.groups
        self.set_groups(without_pins(rows, before))
        self.notify_since(before)

    def forget(self, rows: Iterable[Stored], *, keeps_pins: bool = False) -> None:
        """Remove the codes, requests and pins that these removed rows gave to groups."""
        events = [row.event for row in rows]
        self.set_groups(groups_without_rows(self.world.groups, events, keeps_pins=keeps_pins))

    def keep_out(self, stone: Tombstone | None) -> None:
        add_tombstone(stone, self.found, self.plan)


def _is_large(group: Group) -> bool:
    return (
        len(group.members) > _LARGE_GROUP
        or len(group.supported_kinds or ()) > _LARGE_STATE // 8
        or size_of_tags((*group.metadata, *group.pins)) > _LARGE_STATE
    )
