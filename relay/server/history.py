"""Old versions over HTTP: `GET URL?history=KIND:PUBKEY:D`, authorized by NIP-98.

Invariants: the viewer is the key that signed the request, and `relay.read.versions` decides what it
gets. The answer for a record that it may not read is that for one that never existed.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import orjson

from relay.access.visibility import Viewer
from relay.errors import Invalid, Refused, StoreFault
from relay.nostr.event import address_of, is_hex64
from relay.nostr.nip98 import authorization
from relay.server.nip86 import ALREADY_USED, MAX_RECEIPTS, NO_STORE, Reply, refusal

if TYPE_CHECKING:
    from collections.abc import Callable

    from relay.nostr.nip42 import RelayAddress
    from relay.nostr.nip98 import HttpRequest
    from relay.read.versions import VersionReader
    from relay.server.nip86 import UsedAuthorizations
    from relay.state import RelayState

HISTORY: Final = "history"
BEFORE: Final = "before"
MAX_UNKNOWN: Final = MAX_RECEIPTS // 2
"""Remembered requests above which keys that are not known must wait."""
MAX_KNOWN: Final = 2 * MAX_RECEIPTS
NOTHING: Final = "invalid: nothing is stored under this address"


class HistoryRequests:
    def __init__(
        self,
        state: RelayState,
        versions: VersionReader,
        clock: Callable[[], int],
        used: UsedAuthorizations,
    ) -> None:
        self._state = state
        self._versions = versions
        self._clock = clock
        self._used = used

    async def reply(
        self,
        wanted: str,
        before: str | None,
        header: str | None,
        request: HttpRequest,
        here: frozenset[RelayAddress],
        address: str | None = None,
    ) -> Reply:
        """`address`: see `Sharer.counted_as`.

        200: `{"versions": […], "next": id or null}`, newest first; else 400, 401, 404, 429 or
        503."""
        now = self._clock()
        try:
            signed = authorization(header, request, here, now)
        except Invalid as refused:
            return refusal(401, str(refused))
        slot = address_of(wanted)
        if slot is None:
            return refusal(400, f"invalid: {HISTORY}: must be KIND:PUBKEY:D")
        if before is not None and not is_hex64(before):
            return refusal(400, f"invalid: {BEFORE}: must be an event id, 64 hex")
        try:
            viewer = Viewer(frozenset({signed.pubkey}))
            if await self._used.was_used(signed, now, self._share_of(viewer), address):
                return ALREADY_USED
            events, more = await self._versions.versions(viewer, slot, before, address)
        except Invalid as refused:
            return refusal(401, str(refused))
        except Refused as refused:
            return refusal(429, str(refused))
        except StoreFault:
            return NO_STORE
        if not events and before is None:
            return refusal(404, NOTHING)
        answer = {
            "versions": [orjson.Fragment(event.raw) for event in events],
            "next": events[-1].id if more else None,
        }
        return Reply(200, orjson.dumps(answer))

    def _share_of(self, viewer: Viewer) -> int | None:
        """Value of `most` for `was_used`; None: the limit of owners."""
        if viewer.keys & self._state.policy.actors.owners:
            return None
        return MAX_KNOWN if self._state.visibility(viewer).is_known else MAX_UNKNOWN
