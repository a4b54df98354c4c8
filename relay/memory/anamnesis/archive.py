"""Archive: the records of Anamnesis that a reader has at hand, by the hash that they are about.

Invariants: what comes out depends on what went in, never on its order. Of a vouch, a supersession
or a patch the newest of each signer stands, as a relay keeps it; who may correct or patch is asked
here again, unless the relay that they come from is known to ask it.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, TypeVar

from relay.memory.anamnesis.records import Memory, Patch, Supersession, Vouch, fields_of
from relay.memory.anamnesis.standing import original_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence, Set

    from relay.memory.anamnesis.records import Record

    ByHash = Mapping[str, Sequence["_About"]]

_About = TypeVar("_About", Vouch, Supersession, Patch)


@dataclass(frozen=True, slots=True)
class Archive:
    """Made by `archive_of`."""

    owners: Set[str] = frozenset()
    """Public keys of those whose word stands above an author's."""
    memories: Mapping[str, Sequence[Memory]] = field(default_factory=dict)
    vouches: Mapping[str, Sequence[Vouch]] = field(default_factory=dict)
    """One per voucher, in the order in which they first vouched."""
    supersessions: Mapping[str, Sequence[Supersession]] = field(default_factory=dict)
    patches: Mapping[str, Sequence[Patch]] = field(default_factory=dict)
    is_guarded: bool = False
    """It is from one relay that asks who may (X-16): it knows all owners, and rows unseen here.
    Whoever corrected another's memory there is an owner."""

    def original(self, hashed: str) -> Memory | None:
        """The row of the original author: the earliest, of several the lowest id (X-05)."""
        rows = {memory.event.id: memory for memory in self.memories.get(hashed, ())}
        first = original_of(memory.event for memory in rows.values())
        return None if first is None else rows[first.id]

    def successor(self, hashed: str) -> Supersession | None:
        """The supersession that counts: an owner's before the author's, of several the newest."""
        found = self.successors(hashed)
        return found[0] if found else None

    def successors(self, hashed: str) -> Sequence[Supersession]:
        """All of those who may, the one that counts first (X-16, X-17)."""
        allowed = self._of_those_who_may(self.supersessions.get(hashed, ()), hashed)
        author = self._original_author(hashed)

        def rank(each: Supersession) -> tuple[bool, int, str]:
            signer = each.event.pubkey
            is_owners = signer in self.owners or (self.is_guarded and signer != author)
            return (not is_owners, *_newest_first(each))

        return sorted(allowed, key=rank)

    def metadata(self, hashed: str) -> Mapping[str, object]:
        """What the newest patch of those who may puts in place of the entry's (X-07)."""
        allowed = self._of_those_who_may(self.patches.get(hashed, ()), hashed)
        return min(allowed, key=_newest_first).fields if allowed else {}

    def vouchers(self, hashed: str) -> list[dict[str, object]]:
        """Who confirms a memory, as its document lists them; its own author not (X-13)."""
        original = self.original(hashed)
        return [
            _voucher(vouch)
            for vouch in self.vouches.get(hashed, ())
            if vouch.attestation == "confirm"
            and (original is None or vouch.voucher != original.author)
        ]

    def document(self, hashed: str) -> dict[str, object] | None:
        """A memory in the form of the document, with all that was said of it since.

        `claimed` holds what the entry says of itself and nobody has signed.
        """
        memory = self.original(hashed)
        if memory is None:
            return None
        fields = {**fields_of(memory.entry), **self.metadata(hashed)}
        fields["vouchers"] = self.vouchers(hashed)
        successor = self.successor(hashed)
        if successor is not None:
            fields["superseded_by"] = successor.new
        claimed: dict[str, object] = {}
        if memory.claimed_vouchers:
            claimed["vouchers"] = list(memory.claimed_vouchers)
        if memory.claimed_successor is not None:
            claimed["superseded_by"] = memory.claimed_successor
        return fields | {"claimed": claimed} if claimed else fields

    def _of_those_who_may(self, records: Sequence[_About], hashed: str) -> list[_About]:
        author = self._original_author(hashed)
        return [
            each
            for each in records
            if self.is_guarded or each.event.pubkey in self.owners or each.event.pubkey == author
        ]

    def _original_author(self, hashed: str) -> str | None:
        original = self.original(hashed)
        return None if original is None else original.author


def archive_of(
    records: Iterable[Record], owners: Set[str] = frozenset(), *, is_guarded: bool = False
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
        memories=memories,
        vouches={hashed: _newest_of_each(found) for hashed, found in vouches.items()},
        supersessions={hashed: _newest_of_each(found) for hashed, found in supersessions.items()},
        patches={hashed: _newest_of_each(found) for hashed, found in patches.items()},
        is_guarded=is_guarded,
    )


def _newest_of_each(records: Sequence[_About]) -> list[_About]:
    """Of each signer, in the order in which they first spoke."""
    found: dict[str, _About] = {}
    for record in records:
        held = found.get(record.event.pubkey)
        if held is None or _newest_first(record) < _newest_first(held):
            found[record.event.pubkey] = record
    return list(found.values())


def _newest_first(record: Vouch | Supersession | Patch) -> tuple[int, str]:
    return -record.event.created_at, record.event.id


def _voucher(vouch: Vouch) -> dict[str, object]:
    """`id` is the signer's key; another that they claim stands beside it (X-11)."""
    listed: dict[str, object] = {"id": vouch.voucher}
    if vouch.claimed_id != vouch.voucher:
        listed["claimed_id"] = vouch.claimed_id
    if vouch.name is not None:
        listed["name"] = vouch.name
    listed["timestamp"] = vouch.timestamp
    if vouch.confidence is not None:
        listed["confidence"] = vouch.confidence
    return listed
