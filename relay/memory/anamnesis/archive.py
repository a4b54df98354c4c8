"""Archive: a reader's Anamnesis records, indexed by the hash of the memory they refer to.

Invariants: results do not depend on the order of the input. Each signer's newest vouch,
supersession and patch counts, as on a relay. Who may supersede or patch is checked again here,
unless the records come from a relay that checks it.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, TypeVar

from relay.memory.anamnesis.records import Memory, Patch, Supersession, Vouch, fields_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence, Set

    from relay.memory.anamnesis.records import Record

_Referring = TypeVar("_Referring", Vouch, Supersession, Patch)


@dataclass(frozen=True, slots=True)
class Archive:
    """Made by `archive_of`."""

    owners: Set[str] = frozenset()
    """Public keys that take precedence over authors."""
    memories: Mapping[str, Sequence[Memory]] = field(default_factory=dict)
    """Hash → rows, in the order of their dates and ids: the original first."""
    vouches: Mapping[str, Sequence[Vouch]] = field(default_factory=dict)
    """One per voucher, in the order in which they first vouched."""
    supersessions: Mapping[str, Sequence[Supersession]] = field(default_factory=dict)
    patches: Mapping[str, Sequence[Patch]] = field(default_factory=dict)
    reader: str = ""
    """Public key. Where it has written an entry, other authors of the same entry cannot correct it,
    whatever their dates (X-05)."""
    is_authoritative: bool = False
    """The records are from one relay that checks permissions (X-16): it knows all owners, and rows
    that are not in here. So a key that superseded another author's memory there is an owner's."""

    def original(self, hashed: str) -> Memory | None:
        """The original author's row: the earliest, then the lowest id (X-05)."""
        rows = self.memories.get(hashed)
        return rows[0] if rows else None

    def successor(self, hashed: str) -> Supersession | None:
        """The effective supersession: an owner's before the author's, then the newest."""
        found = self.successors(hashed)
        return found[0] if found else None

    def successors(self, hashed: str) -> Sequence[Supersession]:
        """All permitted supersessions, the effective one first (X-16, X-17)."""
        allowed = self._permitted(self.supersessions.get(hashed, ()), hashed)
        author = self._original_author(hashed)

        def rank(each: Supersession) -> tuple[bool, int, str]:
            signer = each.event.pubkey
            is_owners = signer in self.owners or (self.is_authoritative and signer != author)
            return (not is_owners, *_newest_first(each))

        return sorted(allowed, key=rank)

    def metadata(self, hashed: str) -> Mapping[str, object]:
        """The fields of the newest permitted patch (X-07)."""
        allowed = self._permitted(self.patches.get(hashed, ()), hashed)
        return min(allowed, key=_newest_first).fields if allowed else {}

    def vouchers(self, hashed: str) -> list[dict[str, object]]:
        """The confirming vouchers as JSON fields, without the author (X-13)."""
        original = self.original(hashed)
        return [
            _voucher(vouch)
            for vouch in self.vouches.get(hashed, ())
            if vouch.attestation == "confirm"
            and (original is None or vouch.voucher != original.author)
        ]

    def document(self, hashed: str) -> dict[str, object] | None:
        """The JSON fields of a memory, with later patches, vouches and supersessions.

        `claimed` contains the entry's own, unsigned claims about these.
        """
        memory = self.original(hashed)
        if memory is None:
            return None
        entry = memory.entry
        own = replace(entry, claimed_vouchers=(), claimed_successor=None)
        fields = {**fields_of(own), **self.metadata(hashed), "vouchers": self.vouchers(hashed)}
        successor = self.successor(hashed)
        if successor is not None:
            fields["superseded_by"] = successor.new
        claimed: dict[str, object] = {}
        if entry.claimed_vouchers:
            claimed["vouchers"] = list(entry.claimed_vouchers)
        if entry.claimed_successor is not None:
            claimed["superseded_by"] = entry.claimed_successor
        return fields | {"claimed": claimed} if claimed else fields

    def _permitted(self, records: Sequence[_Referring], hashed: str) -> list[_Referring]:
        author = self._original_author(hashed)
        tellers = {memory.author for memory in self.memories.get(hashed, ())}
        copiers = tellers - {self.reader} - self.owners if self.reader in tellers else set()
        return [
            each
            for each in records
            if each.event.pubkey not in copiers
            and (
                self.is_authoritative
                or each.event.pubkey in self.owners
                or each.event.pubkey in (author, self.reader if copiers else author)
            )
        ]

    def _original_author(self, hashed: str) -> str | None:
        original = self.original(hashed)
        return None if original is None else original.author


def archive_of(
    records: Iterable[Record],
    owners: Set[str] = frozenset(),
    *,
    reader: str = "",
    is_authoritative: bool = False,
) -> Archive:
    unique = {record.event.id: record for record in records}
    memories: dict[str, list[Memory]] = {}
    vouches: dict[str, list[Vouch]] = {}
    supersessions: dict[str, list[Supersession]] = {}
    patches: dict[str, list[Patch]] = {}
    for record in sorted(unique.values(), key=lambda each: (each.event.created_at, each.event.id)):
        match record:
            case Memory():
                memories.setdefault(record.hash, []).append(record)
            case Vouch():
                vouches.setdefault(record.of, []).append(record)
            case Supersession():
                supersessions.setdefault(record.old, []).append(record)
            case Patch():
                patches.setdefault(record.of, []).append(record)
    return Archive(
        owners=owners,
        reader=reader,
        memories=memories,
        vouches={hashed: _newest_of_each(found) for hashed, found in vouches.items()},
        supersessions={hashed: _newest_of_each(found) for hashed, found in supersessions.items()},
        patches={hashed: _newest_of_each(found) for hashed, found in patches.items()},
        is_authoritative=is_authoritative,
    )


def _newest_of_each(records: Sequence[_Referring]) -> list[_Referring]:
    """The newest record of each signer, in the order of their first records."""
    found: dict[str, _Referring] = {}
    for record in records:
        held = found.get(record.event.pubkey)
        if held is None or _newest_first(record) < _newest_first(held):
            found[record.event.pubkey] = record
    return list(found.values())


def _newest_first(record: Vouch | Supersession | Patch) -> tuple[int, str]:
    return -record.event.created_at, record.event.id


def _voucher(vouch: Vouch) -> dict[str, object]:
    """`id` is the signer's key; a different claimed one is `claimed_id` (X-11)."""
    listed: dict[str, object] = {"id": vouch.voucher}
    if vouch.claimed_id != vouch.voucher:
        listed["claimed_id"] = vouch.claimed_id
    if vouch.name is not None:
        listed["name"] = vouch.name
    listed["timestamp"] = vouch.timestamp
    if vouch.confidence is not None:
        listed["confidence"] = vouch.confidence
    return listed
