"""Rows that a tombstone refuses: they were deleted, and are stored."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, NamedTuple

from relay.lifecycle.deletion import (
    address_target,
    event_target,
    is_deleted,
    key_target,
    refusals_of,
    slot_target,
)
from relay.lifecycle.rows import Found, Keep, references_of, version_of
from relay.nostr import kinds
from relay.nostr.event import event_from_raw
from relay.storage.sqlite.lookups import find_tombstones
from relay.storage.sqlite.sql.named import VERIFY_QUERIES as VERIFY

if TYPE_CHECKING:
    import sqlite3
    from collections.abc import Iterator, Sequence

    from relay.lifecycle.rows import Reference, Slot
    from relay.nostr.event import Event
    from relay.storage.hashes import Hashes
    from relay.storage.sqlite.row_check import Row


class DeletionCheck:
    """Finds these rows. Whether some rows in groups were deleted is known only when all rows are
    read: see `_Suspect`."""

    def __init__(self, db: sqlite3.Connection, hashes: Hashes) -> None:
        self._db = db
        self._hashes = hashes
        self._suspects: list[tuple[Row, _Suspect]] = []
        self._deleting_in: dict[tuple[str, str, str], dict[str, int]] = {}
        """(author, reference) → the `h` of kind 5s that have one, and `created_at` of the newest.
        Read from the rows: the index of tags may be wrong, and a repair deletes suspects."""

    def note(self, deletion: Event) -> None:
        """A stored kind 5."""
        h = deletion.tag("h")
        if h is not None:
            for name in references_of(deletion):
                groups = self._deleting_in.setdefault((deletion.pubkey, *name), {})
                groups[h] = max(groups.get(h, 0), deletion.created_at)

    def deleted(
        self, known: Sequence[tuple[Row, Event]], slots: Sequence[Slot | None]
    ) -> Iterator[Row]:
        """The rows of a page that were deleted, as far as that is known yet."""
        targets = []
        for (_, event), slot in zip(known, slots, strict=True):
            targets += [event_target(event.id), key_target(event.pubkey)]
            if slot is not None:
                targets += [address_target(slot), slot_target(slot)]
            if event.kind == kinds.GIFT_WRAP:
                targets += map(key_target, event.tag_values("p"))
        found = Found(0)
        find_tombstones(self._db, targets, partial(_refusals_of, known), found)
        if not found.tombstones:
            return
        certain = _without_kind_5(found)
        for (row, event), slot in zip(known, slots, strict=True):
            version = _highest_version(event)
            if is_deleted(event, slot, version, found if row.grp is None else certain, row.grp):
                yield row
            elif is_deleted(event, slot, version, found, row.grp):
                self._suspects.append((row._replace(raw=b""), _suspect_of(event, slot, row.grp)))

    def deleted_suspects(self) -> Iterator[Row]:
        """The others, when all rows are read; without `raw`."""
        for row, suspect in self._suspects:
            if self._is_named(suspect):
                yield row

    def is_deleted_version(self, event: Event, slot: Slot, group: str | None) -> bool:
        """Whether an old version was deleted, when all rows are read."""
        found, targets = Found(0), [event_target(event.id), key_target(event.pubkey)]
        targets += [address_target(slot), slot_target(slot)]
        find_tombstones(self._db, targets, partial(refusals_of, event), found)
        version, certain = _highest_version(event), found
        if group is not None:
            certain = _without_kind_5(found)
        return is_deleted(event, slot, version, certain, group) or (
            is_deleted(event, slot, version, found, group)
            and self._is_named(_suspect_of(event, slot, group))
        )

    def _is_named(self, suspect: _Suspect) -> bool:
        """Whether a stored kind 5 deletes it."""
        return self._is_named_in_group(suspect) or self._is_named_in_none(suspect)

    def _is_named_in_group(self, suspect: _Suspect) -> bool:
        """Whether a kind 5 of its author with the `h` of its group names it."""
        return any(
            at is not None and suspect.is_reached(name, at)
            for name in suspect.names
            for at in [self._deleting_in.get((suspect.author, *name), {}).get(suspect.group)]
        )

    def _is_named_in_none(self, suspect: _Suspect) -> bool:
        """Whether a kind 5 of its author, without `h`, names it; the newest may not be indexed
        yet."""
        author = bytes.fromhex(suspect.author)
        return any(
            not event.has_tag("h") and suspect.is_reached(name, event.created_at)
            for name in suspect.names
            for partition in (0, self._hashes.partition(suspect.group))
            for (raw,) in self._db.execute(
                VERIFY["deletions_naming"], (self._hashes.tag(*name) ^ partition, author)
            )
            for event in [event_from_raw(raw)]
        )


class _Suspect(NamedTuple):
    """An event in a group that the tombstone of a kind 5 refuses. One with the `h` of another group
    leaves a tombstone but deletes nothing here (N09-14), and it may be gone since."""

    author: str
    created_at: int
    group: str
    names: tuple[Reference, ...]
    """Names by which a kind 5 may refer to it."""

    def is_reached(self, name: Reference, deleted_at: int) -> bool:
        """A deletion by address reaches only what is not newer than itself (N09-04)."""
        return name[0] == "e" or self.created_at <= deleted_at


def _suspect_of(event: Event, slot: Slot | None, group: str | None) -> _Suspect:
    address = () if slot is None else (("a", address_target(slot)[2:]),)
    return _Suspect(event.pubkey, event.created_at, group or "", (("e", event.id), *address))


def _refusals_of(known: Sequence[tuple[Row, Event]]) -> Iterator[tuple[str, str]]:
    for _, event in known:
        yield from refusals_of(event)


def _highest_version(event: Event) -> int:
    """The highest that a policy may have stored: a repair deletes what a tombstone refuses."""
    return max(version_of(event, keep) for keep in (Keep.LATEST, Keep.LATEST_TS))


def _without_kind_5(found: Found) -> Found:
    """The tombstones that hold in every group."""
    certain = Found(0)
    for target, stones in found.tombstones.items():
        certain.tombstones[target] = [stone for stone in stones if stone.why != "kind 5"]
    return certain
