"""Withdrawn: which events a relay does not give any more.

A deletion by an admin, a ban of their author or a request to vanish leaves no kind 5.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from relay.client.errors import QueryClosed
from relay.client.information import lists_nip

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from relay.client.client import Client

ABSENCE_S: Final = 900.0
"""Between two looks for what the relay no longer gives, in a client that follows records; what an
admin deletes, or a banned or vanished key wrote, is not told."""
_ASKED_AT_ONCE: Final = 100
"""Ids of one query: fewer than any relay returns."""
_COUNT: Final = 45


async def withdrawn(
    client: Client, reader: str, document: Mapping[str, object], ids: Sequence[str]
) -> list[str]:
    """Those that the relay does not give when asked by id; none if it may take this client for
    somebody else. `document`: the relay information document. Counted first, if the relay counts:
    no event is sent while none is missing.

    A listing may lack events of a second that has more than the relay returns. Raises QueryClosed,
    Unanswered: what is refused or unanswered is not gone.
    """
    absent: list[str] = []
    for start in range(0, len(ids), _ASKED_AT_ONCE):
        part = ids[start : start + _ASKED_AT_ONCE]
        if not client.is_known_as(reader, document):
            return []
        has_all = lists_nip(document, _COUNT) and await _has_all(client, part)
        found = part if has_all else [event.id for event in await client.query({"ids": part})]
        if not client.is_known_as(reader, document):
            return []
        absent += sorted({*part}.difference(found))
    return absent


async def _has_all(client: Client, ids: Sequence[str]) -> bool:
    try:
        return await client.exact_count({"ids": ids}) == len({*ids})
    except QueryClosed:
        return False
