"""Following supersessions to the current memory (X-17)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from relay.memory.anamnesis.archive import Archive

_MAX_STEPS: Final = 10_000


@dataclass(frozen=True, slots=True)
class Resolution:
    chain: tuple[str, ...]
    """Hashes from the given memory to the current one."""
    forks: tuple[tuple[str, str], ...]
    """(old, new) of valid supersessions that lost against another one."""
    is_cycle: bool
    """The chain has a cycle or is too long: it ends before the repetition."""

    @property
    def current(self) -> str:
        return self.chain[-1]


def resolve(hashed: str, archive: Archive) -> Resolution:
    """Follow the effective supersessions: an owner's before the author's, then the newest."""
    chain = {hashed: None}
    forks: list[tuple[str, str]] = []
    at = hashed
    while found := archive.successors(at):
        effective = found[0].new
        others = dict.fromkeys(each.new for each in found if each.new != effective)
        forks.extend((at, other) for other in others)
        if effective in chain or len(chain) >= _MAX_STEPS:
            return Resolution(tuple(chain), tuple(forks), is_cycle=True)
        chain[effective] = None
        at = effective
    return Resolution(tuple(chain), tuple(forks), is_cycle=False)
