"""Pieces: a deletion of too much for one transaction takes several.

Invariants: a piece deletes some of the rows, if the event would be accepted then; it stores no
event and answers nothing. The last pass looks for all rows again: what it finds fits into one
transaction, and the event is judged and stored as any other.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from relay.groups.context import TargetRow
from relay.lifecycle.deletion import deletion_targets
from relay.lifecycle.rows import Slot
from relay.nostr import kinds
from relay.nostr.event import is_hex64

if TYPE_CHECKING:
    from collections.abc import Iterable, Set

    from relay.lifecycle.rows import Found, Stored
    from relay.nostr.event import Event

_WHOLE: Final = frozenset({kinds.VANISH, kinds.DELETE_GROUP})
Target = str | Slot
"""An id or an address."""


@dataclass(slots=True)
class Removed:
    """What earlier pieces deleted: the event is judged as if it were still there."""

    rows: dict[str, TargetRow] = field(default_factory=dict)
    """By id."""
    were_restricted: bool = False
    """Not everybody may read all of them."""


class Pieces:
    """How far the deletion by one event has come."""

    def __init__(self, event: Event) -> None:
        self.removed = Removed()
        self._targets = _named_by(event)
        self._size = max(1, len(self._targets) // 2)
        """How many targets the next piece has."""
        self._place = 0
        """Of its first target."""
        self._kept: set[Target] = set()
        """Found, and not to be deleted by this event."""

    @property
    def next(self) -> Set[Target] | None:
        """The targets of the next piece; None: all of them were looked at."""
        if self._place >= len(self._targets):
            return None
        return frozenset(self._targets[self._place : self._place + self._size])

    @property
    def is_single(self) -> bool:
        """Whether the next piece cannot be smaller."""
        return self._size == 1 and self.next is not None

    def wanted(self) -> Set[Target]:
        """What of its targets is looked up: in the last pass too what came since."""
        now = self.next
        return frozenset(self._targets) - self._kept if now is None else now

    def shrink(self) -> None:
        """What is wanted is too large."""
        if self.next is None:
            self._place, self._size = 0, len(self._targets)
        self._size = max(1, self._size // 2)

    def advance(self, removed: Iterable[Stored], found: Found) -> None:
        """The next piece has deleted these; `found`: afterwards."""
        for row in removed:
            self.removed.rows[row.event.id] = target_row(row)
        for target in self.next or ():
            if target in (found.rows if isinstance(target, str) else found.slots):
                self._kept.add(target)
        self._place += self._size
        self._size *= 2


@dataclass(slots=True)
class Emptying:
    """A key that vanishes, or a group that ends: rows that nothing else depends on leave first."""

    is_done: bool = False
    """What is left fits into one transaction."""

    def shrink(self) -> None:
        raise AssertionError("the last pass has no bound")


def pieces_for(event: Event) -> Pieces | Emptying:
    """Of an event that deletes too much."""
    return Emptying() if event.kind in _WHOLE else Pieces(event)


def target_row(row: Stored) -> TargetRow:
    return TargetRow(row.group, row.event.kind, row.event.pubkey)


def _named_by(event: Event) -> list[Target]:
    if event.kind == kinds.DELETION:
        ids, slots = deletion_targets(event)
        return list(dict.fromkeys([*ids, *slots]))
    return list(dict.fromkeys(filter(is_hex64, event.tag_values("e"))))
