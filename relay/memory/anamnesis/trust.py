"""Trust scores of memories (X-14)."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from relay.memory.anamnesis.archive import Archive
    from relay.memory.anamnesis.records import Vouch

REPUTATION: Final = 0.5
"""Default reputation of an author."""
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
    """A reader's settings about authors."""

    of: Mapping[str, float] = field(default_factory=dict)
    """Public key → 0 to 1."""
    households: Sequence[frozenset[str]] = ()
    """Sets of keys with one owner: together they count as one voucher."""

    def owner_of(self, pubkey: str) -> frozenset[str]:
        """All keys of the owner of this one."""
        return next((home for home in self.households if pubkey in home), frozenset({pubkey}))


@dataclass(frozen=True, slots=True)
class Trust:
    confirm: int
    """Number of owners who confirm."""
    disputes: int
    """Number of owners who dispute."""
    anchors: int
    score: float
    level: Level

    def __str__(self) -> str:
        counts = f"confirm {self.confirm}, disputes {self.disputes}, anchors {self.anchors}"
        return f"{self.score:g} {self.level} ({counts})"


def trust_score(
    confirm: int, anchors: int = 0, disputes: int = 0, reputation: float = REPUTATION
) -> float:
    """0 to 1, three decimals."""
    score = 0.2 + 0.2 * reputation - 0.15 * disputes
    score += 0.2 * (confirm >= 1) + 0.1 * (confirm >= 3)
    score += 0.2 * (anchors >= 1) + 0.1 * (anchors >= 2)
    return round(min(1.0, max(0.0, score)), _DIGITS)


def level_of(score: float) -> Level:
    return next((level for most, level in _LEVELS if score <= most), Level.CONSENSUS)


def passed_on(score: float, agents: int) -> float:
    """The score after it was relayed by so many agents."""
    return round(score * _PER_AGENT**agents, _DIGITS)


def trust_in(hashed: str, archive: Archive, reputations: Reputations) -> Trust | None:
    """None for an unknown memory."""
    memory = archive.original(hashed)
    if memory is None:
        return None
    found = _attestations(archive.vouches.get(hashed, ()), memory.author, reputations)
    confirm, disputes = found.count("confirm"), found.count("dispute")
    anchors = len(set(memory.entry.anchors))
    reputation = reputations.of.get(memory.author, REPUTATION)
    score = trust_score(confirm, anchors, disputes, reputation)
    return Trust(confirm, disputes, anchors, score, level_of(score))


def _attestations(vouches: Iterable[Vouch], author: str, reputations: Reputations) -> list[str]:
    """One attestation per owner, the newest of all their keys; none of the author's owner."""
    newest: dict[frozenset[str], Vouch] = {}
    own = reputations.owner_of(author)
    for vouch in vouches:
        owner = reputations.owner_of(vouch.voucher)
        held = newest.get(owner)
        if owner != own and (held is None or _newest_first(vouch) < _newest_first(held)):
            newest[owner] = vouch
    return [vouch.attestation.value for vouch in newest.values()]


def _newest_first(vouch: Vouch) -> tuple[int, str]:
    return -vouch.event.created_at, vouch.event.id
