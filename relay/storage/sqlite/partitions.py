"""Partitions: each row has one, which comes first in the keys of the indices.

It is 0, or, of a row of a guarded group, `Hashes.partition` of the group: a read looks into 0 and
into those of groups that its viewer may read, and passes over no row of the others. The tags of a
row are in the table under their hashes XOR its partition.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from relay.nostr import kinds
from relay.storage.visibility_cache import CACHED_PLANS, VisibilityCache, weight_of_plan

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from relay.access.visibility import Visibility
    from relay.nostr.filters import Filter
    from relay.storage.sqlite.sql.conditions import Condition

UNPARTITIONED: Final = frozenset(
    {
        *kinds.GROUP_RECORDS,
        *kinds.GROUP_STATE,
        kinds.GIFT_WRAP,
        *kinds.GROUP_MEMBER_NOTICES,
        30078,
        78,
    }
)
"""Kinds of which all rows are in partition 0: others than the members of the group may read them,
or they are looked up by a tag."""

FIRST_ROW: Final = (-1, 0)
"""kind and seq before those of all rows of a group."""

NO_GROUPS: Final = "[]"
"""As JSON."""

MOST_KINDS: Final = 64
"""For a filter of more kinds the partitions with rows of any kind are looked up."""
MOST_PARTITIONS: Final = 4_096
"""If a viewer may read rows in more partitions, its queries find the partitions themselves."""
_NONE: Final[frozenset[int]] = frozenset()


class ReadablePartitions:
    """The partitions besides 0 with rows that a viewer may read, as the tables of groups are now.

    For the event loop. Exact for a read if the partitions are the same after it (or fewer): then no
    commit meanwhile has let the viewer read in another one.
    """

    def __init__(
        self,
        query: Callable[[Visibility, frozenset[int] | None], Condition],
        read: Callable[[Condition, str | None], list[Any] | None],
        changes: Callable[[], int],
    ) -> None:
        """`query`: of `ReadConditions`. `read`: its rows, for a known key; None: it takes long.
        `changes`: as `Writer.group_changes`."""
        self._query = query
        self._read = read
        self._changes = changes
        self._kept = VisibilityCache[tuple[int, frozenset[int] | None]](
            CACHED_PLANS, lambda kept: weight_of_plan(*kept)
        )

    def suffice(
        self, those: frozenset[int] | None, filters: Sequence[Filter], visibility: Visibility
    ) -> bool:
        """Whether the viewer may now read in no partitions but those. None: all, which suffice."""
        if those is None:
            return True
        now = self.of(filters, visibility)
        return now is those or (now is not None and now <= those)

    def of(self, filters: Sequence[Filter], visibility: Visibility) -> frozenset[int] | None:
        """The partitions for these filters; None: they are too many, or not known."""
        asked = filters[0].kinds if filters else _NONE
        for filter_ in filters[1:]:
            asked = None if asked is None or filter_.kinds is None else asked | filter_.kinds
        if asked is not None:
            if asked <= UNPARTITIONED:
                return _NONE
            if len(asked) > MOST_KINDS:
                asked = None
        changes, kept = self._changes(), self._kept.get(visibility, asked)
        if kept is not None and kept[0] == changes:
            return kept[1]
        query = self._query(visibility, asked)
        limited = query._replace(sql=f"{query.sql} LIMIT {MOST_PARTITIONS + 1}")
        rows = self._read(limited, visibility.known_as)
        found = None
        if rows is not None and len(rows) <= MOST_PARTITIONS:
            found = frozenset([partition for (partition,) in rows])
        self._kept.keep(visibility, asked, (changes, found))
        return found
