"""Commits of other relays on the database: rows from the log, everything else from `changes`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from relay.access.management import ListName
from relay.errors import Outdated
from relay.groups.group import EndedGroup
from relay.lifecycle.rows import Stored
from relay.nostr import kinds
from relay.nostr.event import event_from_raw
from relay.storage import Others
from relay.storage.postgres.rows import stored
from relay.storage.postgres.sql.named import QUERIES
from relay.storage.rows import ended_groups

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from relay.lifecycle.rows import WritePlan

_MOST_PASSED: Final = 16 << 20
"""Bytes of ephemeral events that are read at once, the newest: parsed they take twice as much."""
_MOST_GONE: Final = 4_096
"""Deletions of a group, each of 32 bytes; with more its records are read again."""
_FOLDED_BACK: Final = frozenset({kinds.CREATE_INVITE, kinds.JOIN_REQUEST})
"""Kinds whose deletion is applied by their ids."""
_WITHOUT_EFFECT: Final = frozenset(
    {kinds.EDIT_METADATA, kinds.DELETE_EVENT, kinds.UPDATE_PINS, kinds.LEAVE_REQUEST}
)
"""Kinds without which a replay gives the same: what follows from them the relay says in others, and
the rows that a 9005 names were deleted with it."""
_OF_RIGHTS: Final = frozenset({"record", "list", "group", "gone"})
"""Changes after which others may read; `record`: of a group."""

Change = tuple[str, bytes, bytes | None]
"""what, item, group: `list` and its name; `group` whose records are to be read again; `gone`, a
9009 or 9021 by its id; `passed`, an ephemeral event; `erased`, by the request or empty. A `batch`,
by its name, is for the relay that wrote it."""


class Changes:
    """Changes by a batch beside added rows; collected while it is applied."""

    def __init__(self) -> None:
        self._gone: dict[bytes, set[bytes] | None] = {}
        """Group → ids of deleted rows of the kinds `_FOLDED_BACK`; None: all its records are read
        again."""

    def deleted(self, id_: bytes, kind: int, group: bytes) -> None:
        """Note a deleted row; `group`: empty for none."""
        if not group or kind not in kinds.GROUP_RECORDS or kind in _WITHOUT_EFFECT:
            return
        ids = self._gone.setdefault(group, set())
        if kind not in _FOLDED_BACK or ids is None or len(ids) == _MOST_GONE:
            self._gone[group] = None
        else:
            ids.add(id_)

    def of(self, plan: WritePlan, *, erases: bool) -> list[Change]:
        lists = {each.list_name for each in plan.list_changes}
        found: list[Change] = [("list", name.encode(), None) for name in sorted(lists)]
        for group_id, now in plan.groups.items():
            if isinstance(now, EndedGroup):
                self._gone[group_id.encode()] = None
        for group_ids in plan.left_ended.values():
            self._gone.update((group_id.encode(), None) for group_id in group_ids)
        for group, ids in self._gone.items():
            if ids is None:
                found.append(("group", b"", group))
            else:
                found += [("gone", id_, group) for id_ in sorted(ids)]
        for row in plan.passed_on:
            found.append(
                ("passed", row.event.raw, None if row.group is None else row.group.encode())
            )
        if erases:
            requests = map(bytes.fromhex, plan.erasures or [""])
            found += [("erased", request, None) for request in requests]
        return found


async def others_since(db: Any, after: int, upto: int) -> tuple[Others, list[str], str | None]:
    """The commits of others after `after`, the requests by which they erased something, and the
    name of the newest batch. Raises Outdated."""
    changes: dict[str, list[tuple[bytes, bytes | None]]] = {}
    passed_on: dict[int, list[Stored]] = {}
    rows: list[Stored] = []
    newest: str | None = None
    rights_at = 0
    for changes_after, seq, what, item, group in await db.fetch(
        QUERIES["changes_since"], after, _MOST_PASSED
    ):
        if changes_after > after:
            raise Outdated("changes of other relays are no longer in the database")
        if what in _OF_RIGHTS:
            rights_at = seq
        if what == "record":
            rows.append(_row(seq, item, group))
        elif what == "batch":
            newest = item.hex()
        elif what == "passed":
            passed_on.setdefault(seq, []).append(_row(0, item, group))
        else:
            changes.setdefault(what, []).append((item, group))
    groups = sorted({group for _, group in changes.get("group", ()) if group is not None})
    gone: dict[str, set[str]] = {}
    for item, group in changes.get("gone", ()):
        if group is not None and group not in groups:
            gone.setdefault(group.decode(), set()).add(item.hex())
    rebuilt: dict[str, list[Stored]] = {group.decode(): [] for group in groups}
    ended: Mapping[str, EndedGroup] = {}
    if groups:
        for row in await db.fetch(QUERIES["records_of_groups"], groups):
            record = stored(row)
            rebuilt[record.group or ""].append(record)
        ended = ended_in(await db.fetch(QUERIES["ended_groups"], groups))
    lists: dict[ListName, dict[str, str]] = {
        ListName(item.decode()): {} for item, _ in changes.get("list", ())
    }
    if lists:
        for name, item, note in await db.fetch(QUERIES["management"], list(lists)):
            lists[ListName(name)][item.decode()] = note.decode()
    others = Others(after, upto, rows, gone, rebuilt, ended, lists, passed_on, rights_at)
    return others, [item.hex() for item, _ in changes.get("erased", ())], newest


def _row(seq: int, raw: bytes, group: bytes | None) -> Stored:
    return Stored(seq, event_from_raw(raw), None if group is None else group.decode())


def ended_in(rows: Iterable[Sequence[Any]]) -> dict[str, EndedGroup]:
    """id → group, from rows of the query `ended_groups`."""
    return ended_groups((group.decode(), guarded, key) for group, guarded, key in rows)
