"""Claims: what a relay has about memories of Anamnesis, read by their hashes."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from math import inf
from typing import TYPE_CHECKING, Final

from msgspec import structs

from relay.client.information import keeps_memory, owners_in, reads_prefixes
from relay.errors import Invalid
from relay.memory.anamnesis.archive import Archive, archive_of
from relay.memory.anamnesis.records import Memory, Supersession, record_in
from relay.memory.anamnesis.references import ENTRY, PATCH, SUPERSEDED, VOUCH
from relay.memory.unreadable import UnreadableRecord
from relay.nostr import kinds
from relay.nostr.event import is_hex64, weight_of
from relay.nostr.filters import Filter

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence

    from relay.memory.anamnesis.records import Record
    from relay.nostr.event import Event

_PREFIX: Final = "anamnesis:"
_NAMED: Final = (ENTRY, VOUCH, SUPERSEDED, PATCH)
_BATCH: Final = 250
"""Hashes per filter, each in four names: 88 kB of a frame."""
MAX_OLD: Final = 50
"""Any agent may let thousands of its memories be superseded by one of somebody else's."""
_MAX_UNREAD: Final = 1_000


@dataclass(frozen=True, slots=True)
class Provenance:
    """Vouches and supersessions of a memory."""

    vouchers: Sequence[Mapping[str, object]]
    """As in its document (X-13)."""
    supersedes: tuple[str, ...]
    """Hashes of memories it supersedes: of over `MAX_OLD` those that its author and owners say
    first, and some by others."""
    superseded_by: str | None


class ClaimReader:
    """Reads records by the hashes of the memories that they refer to. Hashes are 64 lowercase hex;
    others raise Invalid."""

    def __init__(
        self,
        read: Callable[[Filter], Awaitable[Iterable[Event]]],
        information: Callable[[], Awaitable[Mapping[str, object]]],
        pubkey: str,
        owners: frozenset[str] = frozenset(),
    ) -> None:
        """`read`: the events that match. `information`: the relay's document (NIP-11), whose owner
        may correct any memory, as `owners` may. `pubkey`: of the reader."""
        self._read = read
        self._information = information
        self._pubkey = pubkey
        self._owners = owners
        self.unread: dict[str, UnreadableRecord] = {}
        """By event id; the last thousand."""

    async def provenance_of(self, hashes: Iterable[str]) -> dict[str, Provenance]:
        """By hash; queried together."""
        wanted = frozenset(hashes)
        for each in wanted:
            check_hash(each)
        if not wanted:
            return {}
        records = await self.about(wanted)
        olds = await self._superseded_by(wanted, await self.archive(records)) - wanted
        archive = await self.archive([*records, *await self.about(olds)])
        after = {old: archive.successor(old) for old in wanted | olds}
        return {
            hashed: Provenance(
                archive.vouchers(hashed),
                tuple(sorted(old for old, by in after.items() if by and by.new == hashed)),
                None if (by := after[hashed]) is None else by.new,
            )
            for hashed in wanted
        }

    async def _superseded_by(self, hashes: frozenset[str], archive: Archive) -> set[str]:
        """Hashes of memories that these supersede by what somebody says: a bounded number."""
        of = await self.naming(hashes, kinds.APP_DATA, SUPERSEDED)
        of = structs.replace(of, limit=MAX_OLD)
        found = list(await self._read(of))
        if len(found) < MAX_OLD:
            return _olds(await self._records(found))
        olds: set[str] = set()
        for hashed in hashes:
            of_it = structs.replace(of, tags=(("X", frozenset({hashed})), *of.tags[1:]))
            memory = archive.original(hashed)
            relied_on = archive.owners | ({self._pubkey, memory.author} if memory else set())
            by_them = structs.replace(of_it, authors=frozenset(relied_on))
            told = _olds(await self._records(await self._read(by_them)))
            if len(told) < MAX_OLD:
                told |= _olds(await self._records(await self._read(of_it)))
            olds |= told
        return olds

    async def naming(self, hashes: Iterable[str], kind: int, prefix: str) -> Filter:
        """Records of this kind that name these hashes in `X`; only those called so, where the relay
        can tell: anybody in a group may store others with these tags."""
        wanted = Filter(kinds=frozenset({kind}), tags=(("X", frozenset(hashes)),))
        if not reads_prefixes(await self._information(), kind):
            return wanted
        tags = (*wanted.tags, ("d", frozenset({prefix})))
        return structs.replace(wanted, tags=tags, d_prefixes=(prefix,))

    async def archive_about(self, hashed: str) -> Archive:
        check_hash(hashed)
        return await self.archive(await self.about([hashed]))

    async def about(self, hashes: Iterable[str], most_bytes: float = inf) -> list[Record]:
        """The entries of these hashes, and all records about them, by name: other app data with
        these hashes in `x`, which anybody in a group may store, is not fetched. After `most_bytes`,
        as `weight_of` estimates them, no more are asked for: the last hashes may be left out."""
        records: list[Record] = []
        ordered = list(hashes)
        for start in range(0, len(ordered), _BATCH):
            batch = ordered[start : start + _BATCH]
            names = frozenset(prefix + hashed for hashed in batch for prefix in _NAMED)
            wanted = Filter(
                kinds=frozenset({kinds.APP_RECORD, kinds.APP_DATA}), tags=(("d", names),)
            )
            events = list(await self._read(wanted))
            records += await self._records(events)
            most_bytes -= sum(map(weight_of, events))
            if most_bytes < 0:
                break
        return records

    async def archive(self, records: Iterable[Record]) -> Archive:
        """An archive of these records, with corrections that the reader may rely on. A relay that
        keeps memory checks them, and keeps one entry per author and hash (X-05, X-16)."""
        document = await self._information()
        return await asyncio.to_thread(
            archive_of,
            records,
            self._owners | owners_in(document),
            reader=self._pubkey,
            is_authoritative=keeps_memory(document),
        )

    async def memories(self, events: Iterable[Event]) -> list[Memory]:
        """The memories among these events that can be read."""
        return [record for record in await self._records(events) if isinstance(record, Memory)]

    async def _records(self, events: Iterable[Event]) -> list[Record]:
        named = [event for event in events if event.d.startswith(_PREFIX)]
        # In a thread: hundreds of entries with thousands of parents take a second.
        found = await asyncio.to_thread(lambda: [record_in(event) for event in named])
        records: list[Record] = []
        for record in found:
            if isinstance(record, UnreadableRecord):
                self.unread[record.event.id] = record
                if len(self.unread) > _MAX_UNREAD:
                    del self.unread[next(iter(self.unread))]
            else:
                records.append(record)
        return records


def _olds(records: Iterable[Record]) -> set[str]:
    return {record.old for record in records if isinstance(record, Supersession)}


def check_hash(hashed: str) -> None:
    if not is_hex64(hashed):
        raise Invalid("a memory is named by 64 lowercase hex characters")
