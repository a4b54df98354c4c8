"""The class of a kind in the table of tags, in place of the kind.

A read by a tag without kinds looks up each class of the tag. There are at most 512, however many
kinds the rows of others have. Which kinds share one follows from the keyed hash of the tag: nobody
can choose a kind of the class of another kind; of made-up kinds one in 128 is, at most.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterable, Set

KINDS_APART: Final = 256
"""Lower kinds have a class each, of their own number."""
KIND_CLASSES: Final = 512
_SHARED: Final = frozenset(range(KINDS_APART, KIND_CLASSES))


def kind_class(hash_: int, kind: int) -> int:
    """As `kind_class` of `relay.storage.sqlite.sql.conditions`."""
    if kind < KINDS_APART:
        return kind
    return KINDS_APART + (((kind * ((hash_ & 65535) | 1)) & 65535) >> 8)


def classes_of(hash_: int, kinds: Set[int], most: int = KIND_CLASSES) -> Set[int]:
    """Classes that rows of these kinds have under a tag; perhaps more, of more than `most`
    kinds."""
    if len(kinds) <= most:
        return {kind_class(hash_, kind) for kind in kinds}
    if not share_classes(kinds):
        return kinds
    return _SHARED.union([kind for kind in range(KINDS_APART) if kind in kinds])


def share_classes(kinds: Iterable[int]) -> bool:
    """Whether a row of the class of one of these kinds may have another kind."""
    return any(kind >= KINDS_APART for kind in kinds)
