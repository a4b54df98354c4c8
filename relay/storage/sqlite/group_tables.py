"""The tables `groups` and `members` compared with the groups that a replay gives.

Who may read stored rows is told by the tables, live rows by the replay: where these differ, one of
them is damaged.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any

from relay.nostr import kinds

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from relay.groups.group import Groups

    MemberRow = tuple[bytes, str, bool]
    """pubkey, group, admin"""


def tables_of(groups: Groups) -> tuple[dict[str, tuple[Any, ...]], set[MemberRow]]:
    """id → guarded, hidden; and the members: what the tables say of these groups."""
    flags = {key: (each.only_members_read, each.is_hidden) for key, each in groups.by_id.items()}
    members = {
        (bytes.fromhex(key), group.id, group.is_moderated_by(key))
        for group in groups.by_id.values()
        for key in group.members
    }
    return flags, members


class Comparison:
    """Adds up `wrong`, ids of groups of which the tables say something else."""

    def __init__(self, groups: Groups) -> None:
        self.wrong: set[str] = set()
        self._groups = groups
        self._members: Counter[str] = Counter()

    def flags(self, rows: Iterable[Sequence[Any]]) -> None:
        """All rows of `groups`: id, guarded, hidden, ended."""
        by_id, rows = self._groups.by_id, [*rows]
        # After a change of the relay's key none is signed by it: the flags are told afterwards.
        is_signed = any(kinds.GROUP_METADATA in each.notice_times for each in by_id.values())
        there = {id_: (guarded, hidden) for id_, guarded, hidden, ended in rows if not ended}
        self.wrong |= there.keys() ^ by_id.keys()
        self.wrong |= self._groups.ended.keys() - {row[0] for row in rows if row[3]}
        for id_, noted in there.items():
            group = by_id.get(id_) if is_signed else None
            if group is not None and noted != (group.only_members_read, group.is_hidden):
                self.wrong.add(id_)

    def members(self, rows: Iterable[Sequence[Any]]) -> None:
        """Some rows of `members`: pubkey, group, admin. Each once."""
        rows, by_id = [*rows], self._groups.by_id
        self._members.update([row[1] for row in rows])
        groups = {id_: by_id.get(id_) for id_ in {row[1] for row in rows}}
        for pubkey, id_, is_admin in rows:
            group = groups[id_]
            key = pubkey.hex() if type(pubkey) is bytes else ""
            roles = None if group is None else group.members.get(key)
            if group is None or roles is None:
                self.wrong.add(id_)
                continue
            is_moderator = bool(roles) and group.is_moderated_by(key)  # most have no role
            if is_moderator != is_admin:
                self.wrong.add(id_)

    def finish(self) -> None:
        """After all rows."""
        for id_, group in self._groups.by_id.items():
            if self._members[id_] != len(group.members):
                self.wrong.add(id_)
