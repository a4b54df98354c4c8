"""The relay's own lists in a batch: what NIP-86 calls, members and keys that vanish change in them,
and what the relay signs about its members and roles (NIP-43)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from relay.access.management import BannedAuthorRows, ListName, check_change
from relay.access.membership import follows_from, is_listed, member_tags, role_tags
from relay.errors import Prefix, Reject
from relay.groups.notices import Draft
from relay.lifecycle.deletion import (
    delete_banned_author,
    is_group_record,
    placed_tombstone,
    remove,
    tombstones_of_banned,
)
from relay.lifecycle.rows import Forgotten, Slot
from relay.nostr import kinds
from relay.write.pins import names_of

if TYPE_CHECKING:
    from relay.access.management import ListChange
    from relay.lifecycle.rows import Stored
    from relay.write.changes import Changes
    from relay.write.commands import ManagementChange
    from relay.write.world import World

_GROUP_RECORD: Final = Reject(
    Prefix.RESTRICTED,
    "events that define a group cannot be banned; use its moderation events",
    "NIP-86",
)
_MEMBERSHIP_STATE: Final = Reject(
    Prefix.RESTRICTED, "the relay's lists of members and roles cannot be banned", "NIP-86"
)


class RelayLists:
    """Part of the `Changes` of a batch; `sign_members` comes after its items."""

    def __init__(self, changes: Changes) -> None:
        self._changes = changes
        self._announced: set[str] = set()
        """Keys that joined or left the relay in this batch."""
        self._was_managed = False
        listed = self._listed
        self._signed_at = (
            # Each list is newer than the one before (as N29-68).
            changes.now if listed is None else max(changes.now, listed.event.created_at + 1)
        )
        """created_at of what is signed about members of the relay."""

    @property
    def _listed(self) -> Stored | None:
        """The 13534."""
        relay = self._changes.world.relay
        return self._changes.found.slots.get(Slot(relay, kinds.RELAY_MEMBERS, ""))

    def manage(self, command: ManagementChange) -> Reject | None:
        """Make all changes of a call, or none."""
        changes = self._changes
        world, found = changes.world, changes.found
        self._was_managed = True
        for change in command.changes:
            objected = check_change(change, world.management, world.actors)
            if objected is not None:
                return objected
            row = found.rows.get(change.item)
            if change.bans_event and row is not None:
                if is_group_record(row.event):
                    return _GROUP_RECORD
                if row.event.kind in kinds.MEMBERSHIP_STATE:
                    return _MEMBERSHIP_STATE
        for change in command.changes:
            self.change(change)
        for pubkey in sorted(command.deleted_authors):
            self._delete_rows_of(pubkey)
        return None

    def change(self, change: ListChange) -> None:
        changes = self._changes
        before, found = changes.world, changes.found
        if not self._set_entry(change):
            return
        for further in follows_from(change, changes.world.management, changes.now):
            self._set_entry(further)
        if change.list_name in (ListName.ALLOWED_KEYS, ListName.BANNED_KEYS):
            self._announce(change.item, before)
        elif change.list_name is ListName.ROLES:
            self._state_role(change)
        if change.bans_event:
            row = found.rows.get(change.item)
            if row is not None:
                self._keep_in(row)
                for stone in tombstones_of_banned(row):
                    changes.keep_out(stone)
                remove(row, found, changes.plan)
                changes.unpin_rows(names_of([row]))
            changes.plan.forgotten.append(Forgotten(found.last_seq, id=change.item))
        elif change.bans_key and changes.world.policy.banned_rows is BannedAuthorRows.DELETE:
            self._delete_rows_of(change.item)

    def _delete_rows_of(self, pubkey: str) -> None:
        found = self._changes.found
        before = found.present.keys() | names_of(found.rows.values())
        delete_banned_author(pubkey, found, self._changes.plan)
        left = found.present.keys() | names_of(found.rows.values())
        self._changes.unpin_rows(before - left)

    def _keep_in(self, row: Stored) -> None:
        """A banned event of a group that only members read: once allowed, it must not be public."""
        group = self._changes.world.groups.get(row.group)
        if group is None or group.only_members_read:
            self._changes.keep_out(placed_tombstone(row.event, row.group, "banevent"))

    def _set_entry(self, change: ListChange) -> bool:
        """Make the change; whether it has an effect."""
        changes, world = self._changes, self._changes.world
        changed = world.management.after(change)
        if changed is world.management:
            return False
        changes.world = world.with_management(changed)
        changes.plan.list_changes.append(change)
        return True

    # -- members of the relay (NIP-43) --------------------------------------------------------

    def _announce(self, pubkey: str, before: World) -> None:
        """Sign 8000 or 8001 when the key became, or is no longer, a listed member."""
        after = self._changes.world
        was_listed = is_listed(pubkey, before.management, before.actors)
        if was_listed is is_listed(pubkey, after.management, after.actors):
            return
        if pubkey in self._announced:
            # Of two events about a key in one second clients could not tell the later one.
            self._signed_at += 1
        self._announced.add(pubkey)
        kind = kinds.MEMBER_REMOVED if was_listed else kinds.MEMBER_ADDED
        self._changes.sign(Draft(kind, (("-",), ("p", pubkey)), "", self._signed_at), None)

    def _state_role(self, change: ListChange) -> None:
        """Sign the 33534 of a role, or remove it."""
        changes = self._changes
        row = changes.found.slots.get(Slot(changes.world.relay, kinds.RELAY_ROLE, change.item))
        if change.note is not None:
            at = changes.now if row is None else max(changes.now, row.event.created_at + 1)
            tags = role_tags(change.item, change.note)
            changes.sign(Draft(kinds.RELAY_ROLE, tags, "", at), None)
        elif row is not None:
            remove(row, changes.found, changes.plan)

    def sign_members(self) -> None:
        """Sign 13534 when what it says has changed; the first time when the register is used."""
        if not (self._announced or self._was_managed):
            return
        world, listed = self._changes.world, self._listed
        tags = member_tags(world.management, world.actors)
        if listed is None:
            used = (ListName.ALLOWED_KEYS, ListName.ROLE_HOLDERS)
            is_due = bool(self._announced) or any(map(world.management.of, used))
        else:
            is_due = listed.event.tags != [list(tag) for tag in tags]
        if is_due:
            self._changes.sign(Draft(kinds.RELAY_MEMBERS, tags, "", self._signed_at), None)
