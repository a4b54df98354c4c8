"""Anamnesis: shared memories, each named by the hash of its text, and vouches for them.

    async with Anamnesis("ws://127.0.0.1:7777", key, {"id": "babel-1", "name": "Babel"}) as memory:
        hashed = await memory.remember("The relay at noon had 12 groups.", tags=["relay"])
        for hit in await memory.recall("how many groups"):
            print(hit.score, hit.memory.entry.content)

An entry never changes: vouches, corrections and amendments are events of their own authors, which
reading merges. Hashes are 64 lowercase hex.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from msgspec import structs

from relay.client.anamnesis.files import BEFORE_1970, Unusable, entries_in, write_lines
from relay.client.anamnesis.reader import AnamnesisReader, UnknownMemory, member_of
from relay.client.claims import check_hash
from relay.client.errors import ClientError, PublishRefused
from relay.client.information import keeps_memory, limit_in
from relay.client.writer import Outcome, Written, address_filter
from relay.errors import Invalid
from relay.memory.anamnesis.checks import (
    Attestation,
    MemoryType,
    content_hash,
    entry_faults,
    patch_faults,
    vouch_faults,
)
from relay.memory.anamnesis.records import (
    Entry,
    entry_draft,
    fields_of,
    patch_draft,
    supersession_draft,
    timestamp_of,
    vouch_draft,
)
from relay.memory.anamnesis.references import ENTRY, PATCH, SUPERSEDED, VOUCH
from relay.memory.check_options import MAX_CHARS
from relay.memory.fields import compact
from relay.nostr import kinds
from relay.nostr.event import object_in
from relay.nostr.filters import Filter
from relay.nostr.keywords import keywords

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from relay.client.client import Client
    from relay.memory.anamnesis.records import Memory
    from relay.memory.anamnesis.trust import Reputations
    from relay.memory.draft import Draft
    from relay.nostr.event import Event
    from relay.nostr.keys import SecretKey


OUTSIDE: Final = ""
"""As `group`: no group."""
_ALIKE: Final = 10
"""Memories that a new one is compared with."""
_INHERITED: Final = ("memory_type", "confidence", "tags")
"""Fields that a successor inherits."""
_FRAME_BYTES: Final = len('["EVENT",]')
_DEFAULT_FRAME: Final = 1 << 19
"""Frame size assumed if the relay names no limit."""


class Imported(NamedTuple):
    """Result of an import."""

    stored: int
    duplicates: int
    refused: tuple[str, ...]
    """`line 3: …`, in file order."""
    claims: int
    """Entries with vouchers or a successor: kept as unsigned claims, never counted (X-06)."""


class Anamnesis(AnamnesisReader):
    """Writing methods return when the relay (or the spool, see `folder`) has the record; they raise
    PublishRefused, and Invalid for records no relay accepts. Unreadable records are collected in
    `unread`."""

    def __init__(
        self,
        relay: Client | str,
        signer: SecretKey,
        author: Mapping[str, object] | None = None,
        *,
        owners: Iterable[str] = (),
        reputations: Reputations | None = None,
        folder: Path | None = None,
    ) -> None:
        """`author`: `{"id", "name", "platform"?}` of new entries; None: the signer's key. `owners`:
        public keys that may correct any memory, beside the one of NIP-11.

        Raises Invalid for an invalid author.
        """
        super().__init__(relay, signer, owners=owners, reputations=reputations, folder=folder)
        self._is_named = author is not None
        self._author = {"id": self.pubkey, "name": self.pubkey} if author is None else dict(author)
        for name in ("id", "name"):
            if not isinstance(self._author.get(name), str):
                raise Invalid(f"author.{name} must be a string")

    async def remember(
        self,
        content: str,
        memory_type: str = MemoryType.EPISODIC,
        parents: Iterable[str] = (),
        confidence: float = 0.5,
        tags: Iterable[str] = (),
        context: Mapping[str, object] | None = None,
        anchors: Iterable[str] = (),
        group: str | None = None,
    ) -> str:
        """Store a memory; returns its hash, or that of a memory that says the same (`copy_of`).
        Repeating it changes nothing."""
        entry = self.entry(content, memory_type, parents, confidence, tags, context, anchors, group)
        if (copied := await self.copy_of(entry)) is not None:
            return copied
        await self.add(entry)
        return entry.hash

    async def copy_of(self, entry: Entry) -> str | None:
        """Hash of a memory of this owner with the same readers and nearly the same words, also
        noted in `kept_out`. None: there is none, or the relay cannot search for it.

        Memories of others do not count: their authors may supersede them.
        """
        if self.sieve is None or not (self.is_online and await self.offers("search", "match")):
            return None
        words = " ".join(keywords(entry.content))
        wanted = structs.replace(
            await self._entries_filter(),
            authors=self._reputations.owner_of(self.pubkey),
            search=f"match:any {words}",
            limit=_ALIKE,
        )
        texts = {
            memory.entry.content: memory.hash
            for memory in await self._claims.memories(await self.read(wanted))
            if memory.entry.group == entry.group
        }
        if entry.content in texts or self.sift(entry.content, texts) is not None:
            return None
        return texts[self.kept_out[-1].known]

    def entry(
        self,
        content: str,
        memory_type: str = MemoryType.EPISODIC,
        parents: Iterable[str] = (),
        confidence: float = 0.5,
        tags: Iterable[str] = (),
        context: Mapping[str, object] | None = None,
        anchors: Iterable[str] = (),
        group: str | None = None,
    ) -> Entry:
        """The entry `remember` would store, dated now, without junk. Raises Invalid."""
        more = {name: value for name, value in self._author.items() if name not in ("id", "name")}
        return Entry(
            content=self._sifted(content),
            author_id=str(self._author["id"]),
            author_name=str(self._author["name"]),
            timestamp=timestamp_of(self._client.now()),
            memory_type=member_of(MemoryType, memory_type, "memory_type"),
            parents=tuple(dict.fromkeys(parents)),
            confidence=confidence,
            tags=tuple(dict.fromkeys(tags)),
            context=context,
            more_of_author=more,
            anchors=tuple(dict.fromkeys(anchors)),
            group=group,
        )

    def _sifted(self, content: str) -> str:
        sifted = self.sift(content)
        if sifted is None:
            raise Invalid("nothing is left to remember: all of it was recalled")
        return sifted

    async def add(self, entry: Entry) -> Written:
        """Publish an entry with its own time and author; DUPLICATE if this key did so before."""
        draft = _valid_draft(entry)
        if not keeps_memory(await self._information()):
            for stored in await self.read(address_filter(kinds.APP_RECORD, self.pubkey, draft.d)):
                return Written(stored, Outcome.DUPLICATE)
        return await self.publish(draft)

    async def vouch(
        self,
        hashed: str,
        confidence: float = 1.0,
        attestation: str = Attestation.CONFIRM,
        name: str | None = None,
        group: str | None = None,
    ) -> Written:
        """Vouch for a memory, replacing this key's earlier vouch. The memory need not be stored
        yet. `group`: whose members may read it; by default as in `amend`."""
        check_hash(hashed)
        attested = member_of(Attestation, attestation, "attestation")
        if name is None and self._is_named:
            name = str(self._author["name"])
        if group is None:
            row = self._row_of(hashed, await self._rows_of(hashed))
            group = None if row is None else row.entry.group

        def draft_at(at: int) -> Draft:
            draft = vouch_draft(
                hashed,
                self.pubkey,
                name=name,
                created_at=at,
                confidence=confidence,
                attestation=attested,
                group=group or None,
            )
            _raise_first(vouch_faults(_fields(draft)))
            return draft

        return await self.write(kinds.APP_DATA, VOUCH + hashed, draft_at)

    async def withdraw(self, hashed: str) -> Written | None:
        """Delete this key's vouch (X-12); None if there is none."""
        check_hash(hashed)
        vouches = await self.read(address_filter(kinds.APP_DATA, self.pubkey, VOUCH + hashed))
        return await self.delete(vouches) if vouches else None

    async def supersede(self, old: str, content: str, **fields: Any) -> str:
        """Store a successor of a memory; returns its hash. The old one is unchanged.

        `fields`: see `remember`; by default group, type, confidence and tags are those of the old
        one (of this key's own row, if there is one), as amended; `group` as in `amend`. The
        successor may be an existing memory of another author; an owner, who writes no entries, can
        only use those. Raises UnknownMemory, and Invalid as `amend`; if the relay refuses the
        correction, the new memory is deleted again.
        """
        check_hash(old)
        content = self._sifted(content)
        new = _hash_of(content)
        if new == old:
            raise Invalid("a memory cannot supersede itself")
        archive = await self._claims.archive(await self._claims.about([old, new]))
        replaced = self._row_of(old, archive.memories.get(old, ()), fields.get("group"))
        if replaced is None:
            raise UnknownMemory(old)
        amended = {**fields_of(replaced.entry), **archive.metadata(old)}
        for name in _INHERITED:
            fields.setdefault(name, amended[name])
        fields["parents"] = (old, *fields.get("parents", ()))
        place = fields.get("group")
        fields["group"] = replaced.entry.group if place is None else place or None
        added: Written | None = None
        try:
            added = await self.add(self.entry(content, **fields))
        except PublishRefused:
            if archive.original(new) is None:
                raise

        def draft_at(at: int) -> Draft:
            return supersession_draft(old, new, created_at=at, group=replaced.entry.group)

        try:
            await self.write(kinds.APP_DATA, SUPERSEDED + old, draft_at)
        except PublishRefused:
            if added is not None and added.outcome is Outcome.STORED:
                with suppress(ClientError):
                    await self.delete([added.event])
            raise
        return new

    async def amend(self, hashed: str, *, group: str | None = None, **fields: Any) -> Written:
        """Replace the metadata: `memory_type`, `confidence`, `tags`, `context` (X-07).

        Replaces earlier amendments; without fields the entry's own values apply again. `group`:
        whose members may read it, or OUTSIDE; by default the memory's. Raises UnknownMemory without
        `group`, and Invalid if rows of the memory that are not this key's are in several places.
        """
        check_hash(hashed)
        written = object_in(compact(fields)) or {}
        _raise_first(patch_faults(written))
        if group is None:
            row = self._row_of(hashed, await self._rows_of(hashed))
            if row is None:
                raise UnknownMemory(hashed)
            group = row.entry.group

        def draft_at(at: int) -> Draft:
            return patch_draft(hashed, written, created_at=at, group=group or None)

        return await self.write(kinds.APP_DATA, PATCH + hashed, draft_at)

    async def _rows_of(self, hashed: str) -> list[Memory]:
        # By name: anybody in a group may store other records with this `x`.
        name = ENTRY + hashed
        wanted = Filter(kinds=frozenset({kinds.APP_RECORD}), tags=(("d", frozenset({name})),))
        found = await self._claims.memories(await self.read(wanted))
        return [memory for memory in found if memory.hash == hashed]

    def _row_of(
        self, hashed: str, rows: Sequence[Memory], group: str | None = None
    ) -> Memory | None:
        """The row that this key speaks of: its own, else one in `group`, else one in the only place
        that has rows. Raises Invalid if there are several places.

        Not the earliest one: whoever knows the text of a group's memory can store a copy outside of
        the group, and what is said of that is read by others than the group.
        """
        found = [row for row in rows if row.author == self.pubkey] or rows
        if group is not None:
            found = [row for row in found if (row.entry.group or OUTSIDE) == group] or found
        places = {row.entry.group for row in found}
        if len(places) > 1:
            named = ", ".join(sorted(place for place in places if place is not None))
            public = ", or say that it is public (--public)" if None in places else ""
            where = f"memory {hashed[:12]} is stored in several places"
            raise Invalid(f"{where}, name the group (--group): {named}{public}")
        return found[0] if found else None

    # -- files ------------------------------------------------------------------------------------

    async def export(self, path: Path | str, *, group: str | None = None) -> int:
        """Write a file of documents, one per line, oldest first; returns their number.

        Only those of `group`, or those outside of groups: an import stores them in one group.
        """
        archive = await self._all_records()
        originals = [memory for hashed in archive.memories if (memory := archive.original(hashed))]
        originals.sort(key=lambda memory: (memory.event.created_at, memory.event.id))
        lines = []
        for memory in originals:
            if memory.entry.group == group:
                document = archive.document(memory.hash)
                assert document is not None
                lines.append(compact(_with_claims(document)))
        await asyncio.to_thread(write_lines, Path(path), lines)
        return len(lines)

    async def import_entries(
        self,
        path: Path | str,
        *,
        group: str | None = None,
        progress: Callable[[int, int], None] = lambda read, total: None,
    ) -> Imported:
        """Publish the entries of a file, one per line, unchanged, signed by this key.

        Idempotent. `progress` is called with the bytes read and the file size. Raises OSError.
        """
        frame = limit_in(await self._information(), "max_message_length") or _DEFAULT_FRAME
        most = frame - _FRAME_BYTES
        refused: dict[int, str] = {}
        lines: dict[str, int] = {}
        claims = 0

        def events() -> Iterator[Event]:
            nonlocal claims
            for line in entries_in(Path(path), progress):
                if isinstance(line, Unusable):
                    refused[line.number] = line.why
                    continue
                claims += line.has_claims
                event = self.signed(entry_draft(replace(line.entry, group=group)))
                if len(event.raw) > most:  # a relay does not answer oversized frames
                    refused[line.number] = f"its event is over {most} bytes"
                    continue
                lines.setdefault(event.id, line.number)
                yield event

        report = await self._client.publish_many(events())
        refused |= {lines[refusal.event.id]: str(refusal) for refusal in report.refused}
        refusals = tuple(f"line {number}: {why}" for number, why in sorted(refused.items()))
        return Imported(report.stored, report.duplicates, refusals, claims)


def _with_claims(document: dict[str, Any]) -> dict[str, Any]:
    """A line of an exported file. Nothing in it is signed, so it includes what was claimed
    before."""
    claimed = document.pop("claimed", {})
    listed = {voucher["id"] for voucher in document["vouchers"]}
    before = [each for each in claimed.pop("vouchers", ()) if each["id"] not in listed]
    return {**claimed, **document, "vouchers": before + document["vouchers"]}


def _hash_of(content: str) -> str:
    try:
        return content_hash(content)
    except UnicodeEncodeError:
        raise Invalid("content contains a lone surrogate, which has no hash") from None


def _valid_draft(entry: Entry) -> Draft:
    """Raises Invalid. The length limit is checked by the relay."""
    _hash_of(entry.content)
    try:
        draft = entry_draft(entry)
    except ValueError as error:
        raise Invalid(str(error)) from None
    if draft.created_at < 0:
        raise Invalid(BEFORE_1970)
    _raise_first(entry_faults(fields_of(entry), max(MAX_CHARS, len(entry.content))))
    return draft


def _fields(draft: Draft) -> dict[str, object]:
    fields = object_in(draft.content)
    assert fields is not None
    return fields


def _raise_first(faults: Iterable[str]) -> None:
    for fault in faults:
        raise Invalid(fault)
