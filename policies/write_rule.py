"""One `[[rule]]` of a policy file, as far as it is about writing."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from policies.conditions import EVERYTHING
from policies.rules.people import CODED

if TYPE_CHECKING:
    from policies.conditions import Condition
    from policies.settings import System
    from relay.verdict import Who


@dataclass(frozen=True, slots=True)
class Place:
    """Where a rule stands."""

    name: str
    file: str
    line: int


@dataclass(frozen=True, slots=True)
class WriteRule:
    place: Place
    match: Condition = EVERYTHING
    excepts: tuple[Condition, ...] = ()
    writers: frozenset[Who] | None = None
    """None: whoever the author is."""
    require: tuple[str, ...] = ()
    schema: System | None = None
    """The memory system whose check is asked; its mode `off` lifts `require` too (G-05)."""
    pow_bits: int = 0
    reject: str | None = None

    @property
    def asks_who(self) -> bool:
        return self.writers is not None or self.place.name in CODED

    @property
    def asks_form(self) -> bool:
        return bool(self.require or self.schema or self.pow_bits)
