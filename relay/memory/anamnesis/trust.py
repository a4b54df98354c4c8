"""Trust scores of memories (X-14).

The weight of a vote is its confidence times the reputation of its owner, scaled so that full
confidence and default reputation give 1. A memory is trusted at most as much as the least trusted
of its known sources.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from enum import StrEnum
from itertools import groupby
from typing import TYPE_CHECKING, Final

from relay.memory.anamnesis.checks import Attestation

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from relay.memory.anamnesis.archive import Archive
    from relay.memory.anamnesis.records import Memory, Vouch

REPUTATION: Final = 0.5
"""Default reputation of authors and vouchers."""
_PER_AGENT: Final = 0.8
_DIGITS: Final = 3


class Level(StrEnum):
    UNVERIFIED = "unverified"
    ATTESTED = "attested"
    ANCHORED = "anchored"
    CONSENSUS = "consensus"


_LEVELS: Final = ((0.3, Level.UNVERIFIED), (0.6, Level.ATTESTED), (0.8, Level.ANCHORED))
"""Upper bound of the score of each level."""


@dataclass(frozen=True, slots=True)
class Reputations:
    """A reader's settings about authors and vouchers."""

    of: Mapping[str, float] = field(default_factory=dict)
    """Public key → 0 to 1."""
    households: Sequence[frozenset[str]] = ()
    """Sets of keys with one owner: together they count as one voucher."""

    def owner_of(self, pubkey: str) -> frozenset[str]:
        """All keys of the owner of this one."""
        return next((home for home in self.households if pubkey in home), frozenset({pubkey}))

    def at(self, pubkey: str) -> float:
        """The lowest configured for a key of its owner."""
        owner = self.owner_of(pubkey)
        return min((self.of[key] for key in owner if key in self.of), default=REPUTATION)


@dataclass(frozen=True, slots=True)
class Trust:
    confirm: int
    """Number of owners who confirm."""
    disputes: int
    """Number of owners who dispute."""
    anchors: int
    score: float
    weakest_source: str | None = None
    """Hash of the source whose lower score it has; None: the score is its own."""
    confirm_weight: float = 0
    """Sum of the weights of confirming votes, as given to `trust_score`."""
    dispute_weight: float = 0
    """Sum of the weights of disputing votes."""
    reputation: float = REPUTATION
    """The author's reputation, as given to `trust_score`."""

    @property
    def level(self) -> Level:
        return level_of(self.score)

    def __str__(self) -> str:
        counts = f"confirm {self.confirm}, disputes {self.disputes}, anchors {self.anchors}"
        weakest = f", weakest source {self.weakest_source[:12]}" if self.weakest_source else ""
        return f"{self.score:g} {self.level} ({counts}{weakest})"


def trust_score(
    confirm: float, anchors: int = 0, disputes: float = 0, reputation: float = REPUTATION
) -> float:
    """0 to 1, three decimals. `confirm`, `disputes`: sums of the weights of votes."""
    score = 0.2 + 0.2 * reputation - 0.15 * disputes
    score += 0.2 * min(confirm, 1) + 0.1 * min(max(confirm - 2, 0), 1)
    score += 0.2 * (anchors >= 1) + 0.1 * (anchors >= 2)
    return round(min(1.0, max(0.0, score)), _DIGITS)


def level_of(score: float) -> Level:
    return next((level for most, level in _LEVELS if score <= most), Level.CONSENSUS)


def passed_on(score: float, agents: int) -> float:
    """The score after `agents` agents have passed the memory on."""
    return round(score * _PER_AGENT**agents, _DIGITS)


def trust_in(hashed: str, archive: Archive, reputations: Reputations) -> Trust | None:
    """None for an unknown memory."""
    return trust_in_each(archive, reputations).get(hashed)


def trust_in_each(archive: Archive, reputations: Reputations) -> Mapping[str, Trust]:
    """Hash → trust, of all memories in the archive; sources are those in it.

    The weakest source is the nearest of those with the lowest score. Each parent of a memory is
    looked at a fixed number of times, however many memories are built on it: any agent may write
    memories with thousands of parents. The lowest scores are passed on first, so that each memory
    gets its final score at once.
    """
    memories = {h: memory for h in archive.memories if (memory := archive.original(h)) is not None}
    own = {hashed: _own_trust(memory, archive, reputations) for hashed, memory in memories.items()}
    sources = _sources(memories, archive)
    built_on: dict[str, list[str]] = {}
    for hashed, parents in sources.items():
        for parent in parents:
            built_on.setdefault(parent, []).append(hashed)
    found: dict[str, Trust] = {}

    def score_of(hashed: str) -> float:
        return own[hashed].score

    for score, hashes in groupby(sorted(own, key=score_of), score_of):
        weakest = {hashed: hashed for hashed in hashes if hashed not in found}
        found |= {hashed: own[hashed] for hashed in weakest}
        while weakest:
            above = {child for source in weakest for child in built_on.get(source, ())}
            weakest = {
                child: next(weakest[source] for source in sources[child] if source in weakest)
                for child in above - found.keys()
            }
            for child, source in weakest.items():
                found[child] = replace(own[child], score=score, weakest_source=source)
    return found


def _own_trust(memory: Memory, archive: Archive, reputations: Reputations) -> Trust:
    votes = _votes(archive.vouches.get(memory.hash, ()), memory.author, reputations)
    anchors = len(set(memory.entry.anchors))
    confirm, disputes = votes["confirm"], votes["dispute"]
    reputation = reputations.at(memory.author)
    score = trust_score(sum(confirm), anchors, sum(disputes), reputation)
    return Trust(
        len(confirm),
        len(disputes),
        anchors,
        score,
        confirm_weight=sum(confirm),
        dispute_weight=sum(disputes),
        reputation=reputation,
    )


def _sources(memories: Mapping[str, Memory], archive: Archive) -> Mapping[str, Sequence[str]]:
    """Hash → its known parents. A parent that its child supersedes is no source."""
    replaced_by = {h: {by.new for by in archive.successors(h)} for h in archive.supersessions}
    return {
        hashed: [
            parent
            for parent in dict.fromkeys(memory.entry.parents)
            if parent in memories and hashed not in replaced_by.get(parent, ())
        ]
        for hashed, memory in memories.items()
    }


def _votes(
    vouches: Iterable[Vouch], author: str, reputations: Reputations
) -> Mapping[str, list[float]]:
    """Attestation → weights of its votes. Each owner has one vote, the newest of all their keys;
    the author's owner has none."""
    newest: dict[frozenset[str], Vouch] = {}
    own = reputations.owner_of(author)
    for vouch in vouches:
        owner = reputations.owner_of(vouch.voucher)
        held = newest.get(owner)
        if owner != own and (held is None or _newest_first(vouch) < _newest_first(held)):
            newest[owner] = vouch
    votes: dict[str, list[float]] = {each.value: [] for each in Attestation}
    for vouch in newest.values():
        confidence = 1.0 if vouch.confidence is None else vouch.confidence
        weight = confidence * reputations.at(vouch.voucher) / REPUTATION
        votes[vouch.attestation].append(weight)
    return votes


def _newest_first(vouch: Vouch) -> tuple[int, str]:
    return -vouch.event.created_at, vouch.event.id
