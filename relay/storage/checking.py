"""Checks that rows are as they were written: finds bits that a disk has flipped unnoticed.

SQLite has no page checksums, and a database may have them turned off. Id and signature of an event
serve as its checksum, and most columns follow from the event; `grp` and `expires_at` may be
compared with an index. `version` and `quiet` are not compared.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import orjson

from relay.errors import Invalid, StoreFault
from relay.nostr.event import event_from
from relay.nostr.keys import are_signed
from relay.storage.hashes import id_key
from relay.storage.rows import event_in

if TYPE_CHECKING:
    from collections.abc import Sequence

CheckedRow = tuple[int, bytes, int, int, int, bytes, int, str, int, bytes]
"""seq, id, id_key, kind, created_at, pubkey, author_key, d, whether every index has it, raw."""


def faults_of(rows: Sequence[CheckedRow]) -> list[str]:
    """One line for each row that is damaged."""
    found = []
    for row in rows:
        why = _fault_of(*row)
        if why is not None:
            # A damaged index gives a row without an id.
            named = row[1].hex() if isinstance(row[1], bytes) else "unknown"
            found.append(f"row {row[0]}, event {named}: {why}")
    return found


def _fault_of(
    _seq: int,
    id_: bytes,
    key: int,
    kind: int,
    created_at: int,
    pubkey: bytes,
    author_key: int,
    d: str,
    is_indexed: int,
    raw: bytes,
) -> str | None:
    try:
        if type(raw) is not bytes:
            return "its text is no event"
        event = event_in(raw)
        if not _is_as_written(raw) or not are_signed([event])[0]:
            return "it is not what its author signed"
        columns = (id_key(event.id), event.kind, event.created_at, id_key(event.pubkey), event.d)
        keys = bytes.fromhex(event.id), bytes.fromhex(event.pubkey)
    except (StoreFault, ValueError, TypeError):
        return "its text is no event"
    if (id_, pubkey) != keys:
        return "its id or key is not that of its text"
    if (key, kind, created_at, author_key, d) != columns:
        return "its columns are not those of its text"
    return None if is_indexed else "an index does not have it"


def _is_as_written(raw: bytes) -> bool:
    """Whether the event's id is right and its JSON is the canonical form that is stored. The
    signature would also fit other JSON of the event, with other escapes or uppercase hex."""
    try:
        return event_from(orjson.loads(raw)).raw == raw
    except Invalid:
        return False
