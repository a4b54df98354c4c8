"""Groups as the event log has them: at a start, and after what other relays committed."""

from __future__ import annotations

from bisect import bisect_right
from typing import TYPE_CHECKING, Final

from relay.groups.group import Groups, Replay, replayed
from relay.lifecycle.rows import LONG_EXPIRED
from relay.nostr import kinds

if TYPE_CHECKING:
    from relay.storage import EventLog, Others

_SEQS_AT_ONCE: Final = 100_000
"""Seqs that are read together: each time the whole index of these kinds is read, 0.1 s per million
of records."""
_ROWS_AT_ONCE: Final = 250
_NEWEST: Final = 2**63 - 1
_GROUP_KINDS: Final = frozenset({*kinds.GROUP_RECORDS, *kinds.GROUP_STATE})
"""All that `logged_action` reads."""


async def rebuilt_groups(store: EventLog, relay_pubkey: str, upto: int = _NEWEST) -> Groups:
    """Fold the log of groups, to this seq (N29-55). The store knows who was in a deleted group."""
    replay = Replay(Groups(), relay_pubkey)
    seq = 0
    while seqs := await store.seqs_of_kinds(_GROUP_KINDS, seq, upto, _SEQS_AT_ONCE):
        seq = seqs[-1]
        at = 0
        while asked := seqs[at : at + _ROWS_AT_ONCE]:
            rows = await store.stored(asked)
            replay.add([row.event for row in rows if row.expires_at != LONG_EXPIRED])
            # Not all were given if they are large; none if all were deleted meanwhile.
            at = bisect_right(seqs, rows[-1].seq if rows else asked[-1])
    return replay.groups().with_last_members(await store.ended_groups())


def groups_after(groups: Groups, others: Others, relay_pubkey: str) -> Groups:
    """These groups after the commits of other relays on the store; equal to a replay."""
    for group_id, ids in others.gone.items():  # before the rest: a 9021 may have come again
        group = groups.get(group_id)
        if group is not None:
            groups = groups.with_group(group.without_rows(ids))
    rebuilt = others.rebuilt
    records = [row.event for row in others.records if row.group not in rebuilt]
    groups = replayed(groups, records, relay_pubkey)
    for group_id, rows in rebuilt.items():
        built = replayed(Groups(), [row.event for row in rows], relay_pubkey).get(group_id)
        if built is not None:
            groups = groups.with_group(built)
        else:
            groups = groups.without_group(group_id, others.ended.get(group_id))
    return groups
