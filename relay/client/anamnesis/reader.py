"""AnamnesisReader: memories merged with vouches, corrections and parents. The reading half of
Anamnesis."""

from __future__ import annotations

import asyncio
import re
from contextlib import suppress
from math import inf
from typing import TYPE_CHECKING, ClassVar, Final, TypeVar

from msgspec import structs

from relay.client.anamnesis.matching import Question, text_ranks
from relay.client.claims import ClaimReader, check_hash
from relay.client.errors import ClientError, QueryClosed
from relay.client.memory import MemoryClient
from relay.errors import Invalid
from relay.memory.anamnesis import correction, provenance, recall
from relay.memory.anamnesis.archive import Archive
from relay.memory.anamnesis.checks import Attestation, MemoryType
from relay.memory.anamnesis.records import Memory, Supersession
from relay.memory.anamnesis.references import ENTRY, PATCH
from relay.memory.anamnesis.trust import Reputations, trust_in
from relay.nostr import kinds
from relay.nostr.event import is_hex64, weight_of
from relay.nostr.filters import Filter

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Mapping, Sequence, Set
    from pathlib import Path

    from relay.client.claims import Provenance
    from relay.client.client import Client
    from relay.memory.anamnesis.correction import Resolution
    from relay.memory.anamnesis.provenance import Credit, Trace
    from relay.memory.anamnesis.recall import Hit
    from relay.memory.anamnesis.records import Record
    from relay.memory.anamnesis.trust import Trust
    from relay.nostr.event import Event
    from relay.nostr.keys import SecretKey

_Option = TypeVar("_Option", MemoryType, Attestation)

_PREFIXES: Final = {kinds.APP_RECORD: ENTRY, kinds.APP_DATA: PATCH}
_MAX_RESULTS: Final = 500
"""Results per search, best first."""
_MIN_RESULTS: Final = 50
"""Minimum if a query needs several searches."""
_SOURCE_STEPS: Final = 8
"""Steps from a hit to the sources whose trust limits its own, in a search."""
_MAX_SOURCE_BYTES: Final = 64 << 20
"""What those sources take in memory, as `weight_of` estimates it."""
_HASH_PREFIX: Final = re.compile(r"[0-9a-f]{8,63}")
_LINE_CHARS: Final = 60
_CHECK_AFTER_S: Final = 60


class UnknownMemory(ClientError):
    """No memory of this hash is readable."""

    def __init__(self, hashed: str) -> None:
        super().__init__(f"unknown memory {hashed[:12]}")


class Ambiguous(ClientError):
    """Several memories have a hash with this prefix."""

    def __init__(self, prefix: str, found: Mapping[str, str]) -> None:
        """`found`: hash → text."""
        lines = [f"  {hashed[:16]} {_line(text)}" for hashed, text in sorted(found.items())]
        super().__init__("\n".join([f"{prefix} is a prefix of {len(found)} hashes:", *lines]))
        self.hashes = tuple(sorted(found))


class AnamnesisReader(MemoryClient):
    """Base of Anamnesis. Hashes are 64 lowercase hex; others raise Invalid."""

    NAME: ClassVar[str] = "anamnesis"

    def __init__(
        self,
        relay: Client | str,
        signer: SecretKey,
        *,
        owners: Iterable[str] = (),
        reputations: Reputations | None = None,
        folder: Path | None = None,
    ) -> None:
        """`owners`: public keys that may correct any memory, beside the one of NIP-11."""
        super().__init__(relay, signer, folder=folder)
        self._reputations = Reputations() if reputations is None else reputations
        self.shortfall = ""
        """Missing relay features that are worked around; empty: none (G-30)."""
        self._checked: tuple[object, int] = (None, 0)
        """The connection on which the cache was compared with the relay, and when."""
        self._claims = ClaimReader(self.read, self._information, self.pubkey, frozenset(owners))
        self.unread = self._claims.unread
        """Unreadable records, by event id; the last thousand."""

    async def get(self, hashed: str) -> dict[str, object] | None:
        """A memory as a document: merged vouchers, `superseded_by`, unsigned claims under
        `claimed`. None: not readable."""
        return (await self._claims.archive_about(hashed)).document(hashed)

    async def provenance_of(self, hashes: Iterable[str]) -> dict[str, Provenance]:
        """By hash; queried together."""
        return await self._claims.provenance_of(hashes)

    async def trust(self, hashed: str) -> Trust | None:
        """None: unknown memory."""
        return trust_in(hashed, await self.ancestry(hashed), self._reputations)

    async def is_own(self, hashed: str) -> bool:
        """Whether this key or another of its household wrote a memory; its vouches do not count."""
        memory = (await self._claims.archive_about(hashed)).original(hashed)
        owner_of = self._reputations.owner_of
        return memory is not None and owner_of(memory.author) == owner_of(self.pubkey)

    async def resolve(self, hashed: str) -> Resolution:
        """The chain of successors up to the current memory."""

        def next_hashes(record: Record) -> Iterable[str]:
            return [record.new] if isinstance(record, Supersession) else []

        return correction.resolve(hashed, await self._reachable([hashed], next_hashes))

    async def trace(self, hashed: str) -> Trace:
        """The ancestors of a memory."""
        return provenance.trace(hashed, await self.ancestry(hashed))

    async def credit(self, hashed: str) -> Sequence[Credit]:
        """Authors of a memory and its ancestors."""
        return provenance.credit(hashed, await self.ancestry(hashed))

    async def ancestry(self, hashed: str) -> Archive:
        """A memory with all ancestors."""
        return await self._reachable([hashed], _parents)

    async def children(self, hashed: str) -> Sequence[Memory]:
        """Direct descendants, oldest first."""
        check_hash(hashed)
        naming = await self._claims.naming([hashed], kinds.APP_RECORD, ENTRY)
        found = await self._claims.memories(await self.read(naming))
        records = await self._claims.about({memory.hash for memory in found})
        return provenance.children(hashed, await self._claims.archive(records))

    async def recall(
        self,
        query: str,
        topics: Iterable[str] = (),
        memory_type: str | None = None,
        min_trust: float = 0.0,
        min_confidence: float = 0.0,
        authors: Iterable[str] | None = None,
        include_superseded: bool = False,  # noqa: FBT001, FBT002  the order of the statement
        as_of: int | None = None,
        limit: int = 10,
    ) -> Sequence[Hit]:
        """Memories with all words of the query, or with any if none has all, best first (X-18).

        `topics`: any of these tags. `authors`: public keys. `as_of`: Unix seconds.
        """
        recall_query = recall.RecallQuery(
            topics=tuple(topics),
            memory_type=None
            if memory_type is None
            else member_of(MemoryType, memory_type, "memory_type"),
            min_trust=min_trust,
            min_confidence=min_confidence,
            authors=None if authors is None else frozenset(authors),
            include_superseded=include_superseded,
            as_of=as_of,
            limit=limit,
            reputations=self._reputations,
        )
        asked = Question.of(query)
        is_searched = await self.searches() and self.is_online
        if is_searched:
            await self._check_now_and_then()
        archive = Archive()
        found: frozenset[str] | None = None
        if not is_searched:
            if self.is_online:
                self.shortfall = (
                    f"{self.url} does not support search: all memories are fetched and scanned"
                )
            archive = await self._all_records()
        for question in (asked, *asked.loosened()):
            if is_searched:
                archive, found = await self._search(question)
            now = self._client.now()
            hits = await asyncio.to_thread(_hits, question, archive, found, recall_query, now)
            if hits:
                return hits
        return []

    async def _check_now_and_then(self) -> None:
        """A search says nothing of what the cache has. At the first one of each connection, and
        again after a minute, what the relay no longer gives is dropped."""
        connection, now = self._client.next_connection, self._client.now()
        is_due = connection is not self._checked[0] or now >= self._checked[1] + _CHECK_AFTER_S
        if self._cache is not None and is_due:
            self._checked = connection, now
            with suppress(ClientError, OSError):
                await self._drop_withdrawn(self._cache)

    async def full_hash(self, beginning: str) -> str:
        """The hash with this prefix of at least 8 hex characters. A full hash need not be known.

        Raises Invalid, UnknownMemory, Ambiguous.
        """
        if is_hex64(beginning):
            return beginning
        if _HASH_PREFIX.fullmatch(beginning) is None:
            raise Invalid(
                f"{beginning[:80]!r} is not a hash: give 64 lowercase hex characters, or at"
                " least the first 8"
            )
        entries = await self.read(await self._entries_filter())
        with_prefix = [event for event in entries if event.d.startswith(ENTRY + beginning)]
        memories = await self._claims.memories(with_prefix)
        found = {memory.hash: memory.entry.content for memory in memories}
        if not found:
            raise UnknownMemory(beginning)
        if len(found) > 1:
            raise Ambiguous(beginning, found)
        return next(iter(found))

    # -- queries ----------------------------------------------------------------------------------

    async def _reachable(
        self,
        hashes: Iterable[str],
        next_hashes: Callable[[Record], Iterable[str]],
        most_steps: int = provenance.MAX_NODES,
        most_bytes: float = inf,
    ) -> Archive:
        """All records about memories and those reachable by `next_hashes`, breadth first: of more
        than are asked for, those that each record names first. `most_bytes`: of what is reached,
        see `ClaimReader.about`."""
        asked = set(hashes)
        for each in asked:
            check_hash(each)
        found = await self._claims.about(asked)
        records = list(found)
        for _ in range(most_steps):
            most = provenance.MAX_NODES - len(asked)
            ahead = await asyncio.to_thread(_unasked, map(next_hashes, found), asked, most)
            if not ahead or most_bytes <= 0:
                break
            asked.update(ahead)
            found = await self._claims.about(ahead, most_bytes)
            records += found
            most_bytes -= sum(weight_of(record.event) for record in found)
        return await self._claims.archive(records)

    async def _search(self, question: Question) -> tuple[Archive, frozenset[str]]:
        """Hashes found by the relay's search, by words of entries or tags of patches, and an
        archive of them and their sources."""
        every = await self._entries_filter(kinds.APP_RECORD, kinds.APP_DATA)
        queries = question.queries()
        found: list[Event] = []
        for query in queries:
            most = max(_MAX_RESULTS // len(queries), _MIN_RESULTS)
            try:
                found += await self.read(structs.replace(every, search=query, limit=most))
            except QueryClosed as closed:
                if not question.is_loose:
                    raise
                self.shortfall = f"{self.url} refused to search for {query!r}: {closed}"
        ends = {event.d[-64:] for event in found if event.d.startswith((ENTRY, PATCH))}
        hashes = frozenset(filter(is_hex64, ends))
        archive = await self._reachable(hashes, _parents, _SOURCE_STEPS, _MAX_SOURCE_BYTES)
        return archive, hashes

    async def _all_records(self) -> Archive:
        entries = await self._claims.memories(await self.read(await self._entries_filter()))
        return await self._claims.archive(
            await self._claims.about({memory.hash for memory in entries})
        )

    async def _entries_filter(self, *of_kinds: int) -> Filter:
        """Filter for all entries, and with kind 30078 their patches, by prefix if the relay
        supports it."""
        wanted = frozenset(of_kinds or (kinds.APP_RECORD,))
        if all([await self.offers("prefix_d_kinds", kind) for kind in sorted(wanted)]):
            prefixes = tuple([_PREFIXES[kind] for kind in sorted(wanted)])
            return Filter(kinds=wanted, tags=(("d", frozenset(prefixes)),), d_prefixes=prefixes)
        if wanted == {kinds.APP_RECORD}:
            return Filter(kinds=wanted, tags=(("t", frozenset({"anamnesis"})),))
        return Filter(kinds=wanted)


def member_of(options: type[_Option], value: str, field: str) -> _Option:
    try:
        return options(value)
    except ValueError:
        raise Invalid(f"{field} must be one of {', '.join(options)}") from None


def _parents(record: Record) -> Iterable[str]:
    return record.entry.parents if isinstance(record, Memory) else []


def _unasked(named: Iterable[Iterable[str]], asked: Set[str], most: int) -> list[str]:
    """The first hash that each names, then the second, …: those not asked for yet."""
    found: dict[str, None] = {}
    waiting = [iter(hashes) for hashes in named]
    while waiting and len(found) < most:
        taken = [next(hashes, None) for hashes in waiting]
        waiting = [hashes for hashes, each in zip(waiting, taken, strict=True) if each is not None]
        found |= dict.fromkeys(each for each in taken if each is not None and each not in asked)
    return list(found)[: max(most, 0)]


def _hits(
    question: Question,
    archive: Archive,
    found: Collection[str] | None,
    query: recall.RecallQuery,
    now: int,
) -> Sequence[Hit]:
    return recall.recalled(text_ranks(question, archive, found), archive, query, now)


def _line(text: str) -> str:
    """One printable line."""
    words = " ".join("".join(c if c.isprintable() else " " for c in text).split())
    return words if len(words) <= _LINE_CHARS else words[: _LINE_CHARS - 1] + "…"
