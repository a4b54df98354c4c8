"""Partitions: each row has one, which comes first in the keys of the indices.

It is 0, or, of a row of a guarded group, `Hashes.partition` of the group: a read looks into 0 and
into those of groups that its viewer may read, and passes over no row of the others. The tags of a
row are in the table under their hashes XOR its partition.
"""

from __future__ import annotations

from typing import Final

from relay.nostr import kinds

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
