"""The class of a kind in the table of tags, in place of the kind.

A kind of KNOWN_KINDS has a class of its own, which is its number, so that rows of other kinds are
never passed over by a read of it. All other kinds share few classes: a read by a tag without kinds
looks up each class that the tag has, however many kinds others store.

The table holds classes: they may change only with a migration.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Set

_KNOWN: Final = (
    *((0, 64), 78),
    # Regular ones: those of the NIPs, then of apps of agents and teams
    *((443, 445), 818, 1018, 1021, 1022, 1040, 1059, 1063, 1068, 1111, 1222, 1234, 1244, 1311),
    *(1312, 1337, (1617, 1619), 1621, 1622, (1630, 1637), 1971, (1984, 1989), 2003, 2004, 2022),
    *(4550, 7000, (7374, 7376), 7516, 7517, 8000, 8001, (9000, 9030), 9041, 9321, 9467),
    *(9734, 9735, 9802),
    *((1080, 1082), 1121, 4129, 40002, 40003, 40100, 43001, 44100, 44101, 44200, 45001, 46020),
    # Replaceable ones
    *((10000, 10009), (10011, 10013), 10015, 10019, 10020, 10030, 10050, 10051, 10054, 10063),
    *(10064, 10096, 10101, 10102, 10154, 10166, 10312, 10317, 13194, 13534, 14199, 15128, 17375),
    *(19004,),
    # Addressable ones
    *(30000, (30002, 30009), 30015, (30017, 30020), 30023, 30024, 30030, 30040, 30041, 30063),
    *(30078, (30090, 30097), 30100, 30101, 30166, 30174, 30175, 30179, 30267, 30300),
    *((30311, 30313), 30315, 30350, (30382, 30385), 30388, 30402, 30403, 30443, 30617, 30618),
    *(30818, 30819, 31121, 31122, 31234, 31388, 31890, (31922, 31925), (31988, 31991), 32267),
    *(33534, 34235, 34236, 34550, 35128, 37516, 38172, 38173, 38383, (39000, 39009), 39041),
    *(39089, 39092, 39701),
)
"""Kinds and inclusive ranges."""
KNOWN_KINDS: Final = frozenset(
    kind
    for part in _KNOWN
    for low, high in [part if isinstance(part, tuple) else (part, part)]
    for kind in range(low, high + 1)
)
"""Stored kinds that clients ask for or that the relay looks up."""
SHARED: Final = range(256, 288)
"""Classes of all other kinds; no known kind has such a number."""


def kind_class(kind: int) -> int:
    return kind if kind in KNOWN_KINDS else shared_class(kind)


def shared_class(kind: int) -> int:
    """The class of a kind that is not known; the same in SQL is SHARED_CLASS."""
    return kind & 31 | 256


SHARED_CLASS: Final = "e.kind & 31 | 256"


def classes_of(kinds: Set[int]) -> Set[int]:
    """Classes that rows of these kinds have."""
    known = KNOWN_KINDS & kinds
    return known if len(known) == len(kinds) else known | set(map(shared_class, kinds - known))


def share_classes(kinds: Set[int]) -> bool:
    """Whether a row of the class of one of these kinds may have another kind."""
    return not kinds <= KNOWN_KINDS
