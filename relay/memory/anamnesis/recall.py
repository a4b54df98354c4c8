"""Recall: filtering and ranking memories that match a query (X-18)."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Final, TypeVar

from relay.memory.anamnesis.bm25 import normalised
from relay.memory.anamnesis.records import Memory, Patch, Supersession, Vouch
from relay.memory.anamnesis.trust import Reputations, trust_in_each

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from relay.memory.anamnesis.archive import Archive
    from relay.memory.anamnesis.checks import MemoryType
    from relay.memory.anamnesis.trust import Trust

_Held = TypeVar("_Held", Memory, Vouch, Supersession, Patch)

_DAY_S: Final = 86_400
_HALF_LIFE_DAYS: Final = 30
_DIGITS: Final = 6
_TEXT, _TRUST, _RECENCY = 0.6, 0.25, 0.15


@dataclass(frozen=True, slots=True)
class RecallQuery:
    """The conditions of a recall beside its text."""

    topics: tuple[str, ...] = ()
    """Any of these tags."""
    memory_type: MemoryType | None = None
    min_trust: float = 0.0
    min_confidence: float = 0.0
    authors: frozenset[str] | None = None
    """Public keys; None: any."""
    include_superseded: bool = False
    as_of: int | None = None
    """Unix seconds: later records are ignored."""
    limit: int = 10
    reputations: Reputations = field(default_factory=Reputations)


@dataclass(frozen=True, slots=True)
class Hit:
    hash: str
    memory: Memory
    """The original author's row: copies are no hits."""
    document: Mapping[str, object]
    """As `Archive.document`: with vouchers and `superseded_by`."""
    trust: Trust
    text: float
    recency: float
    score: float

    @property
    def why(self) -> str:
        """The parts of the score."""
        return (
            f"text {self.text:.2f}, trust {self.trust.score:.2f} ({self.trust.level}), "
            f"recency {self.recency:.2f}"
        )


def recency_of(created_at: int, now: int) -> float:
    """1 for now and the future, halved every 30 days."""
    days = max(0, now - created_at) / _DAY_S
    return float(2 ** (-days / _HALF_LIFE_DAYS))


def score_of(text: float, trust: float, recency: float) -> float:
    return round(_TEXT * text + _TRUST * trust + _RECENCY * recency, _DIGITS)


def recalled(
    ranked: Mapping[str, float], archive: Archive, query: RecallQuery, now: int
) -> Sequence[Hit]:
    """The hits, best first. `ranked`: hash → rank of the matching texts (see `bm25`).

    Text scores are normalised over the hits only, so that filtered memories do not influence them.
    Ties: the newer, then the lower id. Recency is relative to `as_of` if given.
    """
    moment = now
    if query.as_of is not None:
        archive, moment = as_of(archive, query.as_of), min(now, query.as_of)
    matching = {}
    trusts = trust_in_each(archive, query.reputations)
    for hashed in ranked:
        memory, trust = archive.original(hashed), trusts.get(hashed)
        document = archive.document(hashed)
        if memory is None or trust is None or document is None:
            continue
        if _matches(document, memory, trust, query):
            matching[hashed] = memory, document, trust
    texts = normalised({hashed: ranked[hashed] for hashed in matching})
    hits = []
    for hashed, (memory, document, trust) in matching.items():
        recency = recency_of(memory.event.created_at, moment)
        score = score_of(texts[hashed], trust.score, recency)
        hits.append(Hit(hashed, memory, document, trust, texts[hashed], recency, score))
    hits.sort(key=lambda hit: (-hit.score, -hit.memory.event.created_at, hit.memory.event.id))
    return hits[: query.limit]


def _matches(
    document: Mapping[str, object], memory: Memory, trust: Trust, query: RecallQuery
) -> bool:
    """Whether a memory meets the conditions, by the metadata of its newest patch."""
    tags, confidence = document.get("tags"), document.get("confidence")
    return (
        (query.include_superseded or "superseded_by" not in document)
        and (query.authors is None or memory.author in query.authors)
        and (query.memory_type is None or document.get("memory_type") == query.memory_type)
        and trust.score >= query.min_trust
        and isinstance(confidence, int | float)
        and confidence >= query.min_confidence
        and (
            not query.topics or (isinstance(tags, list) and not set(query.topics).isdisjoint(tags))
        )
    )


def as_of(archive: Archive, moment: int) -> Archive:
    """The archive as of a time. Of a replaced record only the newest version is stored: if that one
    is later, the record is missing."""
    return replace(
        archive,
        memories=_until(archive.memories, moment),
        vouches=_until(archive.vouches, moment),
        supersessions=_until(archive.supersessions, moment),
        patches=_until(archive.patches, moment),
    )


def _until(found: Mapping[str, Sequence[_Held]], moment: int) -> Mapping[str, Sequence[_Held]]:
    kept = {
        hashed: [each for each in records if each.event.created_at <= moment]
        for hashed, records in found.items()
    }
    return {hashed: records for hashed, records in kept.items() if records}
