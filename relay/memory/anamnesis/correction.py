"""From an old memory to the one that holds now. MEMORY.md X-17."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from relay.memory.anamnesis.archive import Archive

_MOST_STEPS: Final = 10_000


@dataclass(frozen=True, slots=True)
class Resolution:
    chain: tuple[str, ...]
    """Hashes from the one asked for to the one that holds."""
    forks: tuple[tuple[str, str], ...]
    """(old, new) that were said too and do not count."""
    is_circle: bool
    """It comes back to itself, or has no end: the last one before that is given."""

    @property
    def current(self) -> str:
        return self.chain[-1]


def resolve(hashed: str, archive: Archive) -> Resolution:
    """Follow the supersessions that count: an owner's beats the author's, then the newest."""
    chain = {hashed: None}
    forks: list[tuple[str, str]] = []
    at = hashed
    while found := archive.successors(at):
        counts = found[0].new
        others = dict.fromkeys(each.new for each in found if each.new != counts)
        forks.extend((at, other) for other in others)
        if counts in chain or len(chain) >= _MOST_STEPS:
            return Resolution(tuple(chain), tuple(forks), is_circle=True)
        chain[counts] = None
        at = counts
    return Resolution(tuple(chain), tuple(forks), is_circle=False)
