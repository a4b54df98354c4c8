"""Which memories answer a question, best first. MEMORY.md X-18."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Final, TypeVar

from relay.memory.anamnesis.records import Memory, Patch, Supersession, Vouch
from relay.memory.anamnesis.relevance import normalised
from relay.memory.anamnesis.trust import Reputations, trust_in

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
class Wish:
    """What is asked for beside the words."""

    topics: tuple[str, ...] = ()
    """Any of these tags."""
    memory_type: MemoryType | None = None
    min_trust: float = 0.0
    min_confidence: float = 0.0
    authors: frozenset[str] | None = None
    """Public keys; None: whoever."""
    include_superseded: bool = False
    as_of: int | None = None
    """Unix seconds: what was written later counts as not there."""
    limit: int = 10
    reputations: Reputations = field(default_factory=Reputations)


@dataclass(frozen=True, slots=True)
class Hit:
    hash: str
    memory: Memory
    """The row of the original author: copies are no hits of their own."""
    document: Mapping[str, object]
    """As `Archive.document`: vouchers merged, `superseded_by` shown."""
    trust: Trust
    text: float
    recency: float
    score: float

    @property
    def why(self) -> str:
        """What the score is made of."""
        return (
            f"text {self.text:.2f}, trust {self.trust.score:.2f} ({self.trust.level}), "
            f"recency {self.recency:.2f}"
        )


def recency_of(created_at: int, now: int) -> float:
    """1 for now and what is ahead of it, half of that every 30 days."""
    days = max(0, now - created_at) / _DAY_S
    return float(2 ** (-days / _HALF_LIFE_DAYS))


def score_of(text: float, trust: float, recency: float) -> float:
    return round(_TEXT * text + _TRUST * trust + _RECENCY * recency, _DIGITS)


def recalled(ranked: Mapping[str, float], archive: Archive, wish: Wish, now: int) -> Sequence[Hit]:
    """hash → rank (see `relevance`) of what matches, to hits in order.

    The text score is normalised over what is wished for: what stays unseen moves nothing. Ties: the
    newer first, then the lowest id. With `as_of` that is also the moment that recency is counted
    to.
    """
    moment = now
    if wish.as_of is not None:
        archive, moment = as_of(archive, wish.as_of), min(now, wish.as_of)
    wished = {}
    for hashed in ranked:
        memory, trust = archive.original(hashed), trust_in(hashed, archive, wish.reputations)
        document = archive.document(hashed)
        if memory is None or trust is None or document is None:
            continue
        if _is_wished(document, memory, trust, wish):
            wished[hashed] = memory, document, trust
    texts = normalised({hashed: ranked[hashed] for hashed in wished})
    hits = []
    for hashed, (memory, document, trust) in wished.items():
        recency = recency_of(memory.event.created_at, moment)
        score = score_of(texts[hashed], trust.score, recency)
        hits.append(Hit(hashed, memory, document, trust, texts[hashed], recency, score))
    hits.sort(key=lambda hit: (-hit.score, -hit.memory.event.created_at, hit.memory.event.id))
    return hits[: wish.limit]


def _is_wished(document: Mapping[str, object], memory: Memory, trust: Trust, wish: Wish) -> bool:
    """Metadata count as the newest patch has them."""
    tags, confidence = document.get("tags"), document.get("confidence")
    return (
        (wish.include_superseded or "superseded_by" not in document)
        and (wish.authors is None or memory.author in wish.authors)
        and (wish.memory_type is None or document.get("memory_type") == wish.memory_type)
        and trust.score >= wish.min_trust
        and isinstance(confidence, int | float)
        and confidence >= wish.min_confidence
        and (not wish.topics or (isinstance(tags, list) and not set(wish.topics).isdisjoint(tags)))
    )


def as_of(archive: Archive, moment: int) -> Archive:
    """What had been written by then. Of what was replaced since only the newest version is known:
    a later one hides it."""
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
