"""One stored row against its event: what `relay.storage.sqlite.verifying` finds wrong in it, and
`relay.storage.sqlite.repairing` sets right."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Final, NamedTuple

import orjson

from relay.errors import Invalid
from relay.lifecycle.rows import LONG_EXPIRED, Keep, keep_by_kind, slot_of, version_of
from relay.nostr.event import event_from
from relay.nostr.nip40 import expiry_of
from relay.storage.hashes import Hashes, id_key
from relay.storage.sqlite.partitions import UNPARTITIONED
from relay.storage.sqlite.sql.named import QUERIES
from relay.storage.sqlite.sql.named import VERIFY_QUERIES as VERIFY

if TYPE_CHECKING:
    import sqlite3
    from collections.abc import Callable, Iterable, Iterator, Set

    from relay.lifecycle.rows import Slot
    from relay.lifecycle.versions import KeepRules
    from relay.nostr.event import Event

_PAGE: Final = 500


@dataclass(frozen=True, slots=True)
class Rules:
    """Policies that the check needs."""

    relay_pubkey: str
    keep: KeepRules
    group_of: Callable[[Event], str | None]
    """The group of an event's row, as far as the event tells."""
    text_of: Callable[[Event], str | None]
    search_rules: str


class Row(NamedTuple):
    """A row with the columns of `rows_after`."""

    seq: int
    id: bytes
    id_key: int
    pubkey: bytes
    author_key: int
    kind: int
    created_at: int
    grp: str | None
    d: str
    slot: int | None
    version: int
    expires_at: int | None
    partition: int
    raw: bytes


class RowCheck:
    """One row against its event."""

    def __init__(self, db: sqlite3.Connection, rules: Rules) -> None:
        self._db = db
        self._hashes = hashes_of(db)
        self._rules = rules
        self._partitions: dict[str, int] = {}

    @cached_property
    def _stored_as_all(self) -> Set[int]:
        """seqs of rows that have no slot and need none: they were stored while all versions were
        kept."""
        return {seq for (seq,) in self._db.execute(VERIFY["stored_as_all"])}

    def event_in(self, raw: bytes) -> Event | str:
        """The event, or what is wrong with it. The signature is not checked."""
        try:
            event = event_from(orjson.loads(raw))
        except orjson.JSONDecodeError:
            return "what is stored is not JSON"
        except Invalid as invalid:
            return f"what is stored is not this event: {invalid.text}"
        if event.raw != raw:
            return "what is stored is not in the form in which events are sent"
        return event

    def slot_of(self, row: Row, event: Event) -> tuple[Slot | None, Keep]:
        """The slot that the row belongs into."""
        keep = self._rules.keep.keep_of(event)
        if keep is Keep.ALL and row.slot is not None:
            keep = Keep.LATEST  # stored under another policy
        elif (
            keep is not Keep.ALL
            and row.slot is None
            and (keep_by_kind(event.kind) is Keep.ALL or row.seq in self._stored_as_all)
        ):
            keep = Keep.ALL  # likewise
        return slot_of(event, keep), keep

    def partition_of(self, event: Event, group: str | None) -> int:
        """The partition of a row of this group while it is guarded."""
        if group is None or event.kind in UNPARTITIONED:
            return 0
        partition = self._partitions.get(group)
        if partition is None:
            partition = self._partitions[group] = self._hashes.partition(group)
        return partition

    def corrected(self, row: Row, event: Event) -> tuple[Row, Slot | None]:
        """The row with the columns that its event gives, and its slot."""
        slot, keep = self.slot_of(row, event)
        versions = {version_of(event, each) for each in (keep, Keep.LATEST, Keep.LATEST_TS)}
        group = self._rules.group_of(event)
        group = row.grp if group is None else group
        try:
            expires_at = row.expires_at if row.expires_at == LONG_EXPIRED else expiry_of(event)
        except Invalid:
            expires_at = row.expires_at
        return Row(
            row.seq,
            bytes.fromhex(event.id),
            id_key(event.id),
            bytes.fromhex(event.pubkey),
            id_key(event.pubkey),
            event.kind,
            event.created_at,
            group,
            event.d,
            None if slot is None else self._hashes.slot(*slot),
            row.version if row.version in versions else version_of(event, keep),
            expires_at,
            row.partition if row.partition == self.partition_of(event, group) else 0,
            row.raw,
        ), slot


def hashes_of(db: sqlite3.Connection) -> Hashes:
    return Hashes(bytes.fromhex(db.execute(QUERIES["get_meta"], ("hash_key",)).fetchone()[0]))


def index_tags_of(db: sqlite3.Connection) -> frozenset[str]:
    """The names that the file's index has now."""
    kept = db.execute(QUERIES["get_meta"], ("index_tags",)).fetchone()
    return frozenset(orjson.loads(kept[0])) if kept else frozenset()


def pages(db: sqlite3.Connection) -> Iterator[list[Row]]:
    """All rows, in order of seq."""
    seq = 0
    while page := [Row(*row) for row in db.execute(VERIFY["rows_after"], (seq, _PAGE))]:
        seq = page[-1].seq
        yield page


def rows_of(db: sqlite3.Connection, seqs: Iterable[int]) -> list[Row]:
    listed = orjson.dumps(list(seqs)).decode()
    return [Row(*row) for row in db.execute(VERIFY["rows_of"], (listed,))]


def name_of(row: Row) -> str:
    return f"event {row.id.hex()} (row {row.seq})"
