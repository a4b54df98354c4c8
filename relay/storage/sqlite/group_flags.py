"""What a store's file says of the flags of groups; the relay may run."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from typing import TYPE_CHECKING

from relay.groups.actions import FLAGS
from relay.nostr.event import event_from_raw
from relay.storage.sqlite.connections import connection, fault_of
from relay.storage.sqlite.sql.named import QUERIES
from relay.storage.sqlite.wal import check_log

if TYPE_CHECKING:
    from collections.abc import Set
    from pathlib import Path

    from relay.groups.actions import Flag


def groups_without(path: Path, flags: Set[Flag]) -> dict[str, Set[Flag]]:
    """id of a group that lacks some of these → which. Raises StoreFault."""
    if not path.exists():
        return {}
    check_log(path)
    found: dict[str, Set[Flag]] = {}
    try:
        with closing(connection(path)) as db:
            db.execute("PRAGMA query_only = ON")
            for (raw,) in db.execute(QUERIES["group_metadata"]):
                event = event_from_raw(raw)
                has = {FLAGS[tag[0]] for tag in event.tags if tag and tag[0] in FLAGS}
                if lacks := flags - has:
                    found[event.d] = lacks
    except sqlite3.Error as error:
        raise fault_of(error, path) from error
    return found
