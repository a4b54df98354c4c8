"""Receipts of erasure over HTTP: `GET URL?receipt=<id of the request>`, authorized by NIP-98.

Invariants: only the author of the request and owners of the relay get one; everybody else gets the
answer for a request that does not exist. It is signed only after the events have left the files.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import orjson

from relay.access.visibility import Viewer
from relay.errors import Invalid, Refused, StoreFault
from relay.nostr.erasure import receipt
from relay.nostr.event import is_hex64
from relay.nostr.nip98 import authorization
from relay.server.nip86 import ALREADY_USED, MAX_RECEIPTS, NO_STORE, Reply, refusal

if TYPE_CHECKING:
    from collections.abc import Callable

    from relay.nostr.keys import SecretKey
    from relay.nostr.nip42 import RelayAddress
    from relay.nostr.nip98 import HttpRequest
    from relay.server.nip86 import UsedAuthorizations
    from relay.state import RelayState
    from relay.storage import Inspector

PARAMETER: Final = "receipt"
NOTHING: Final = "invalid: no deletion by this request is known here"
NOT_YET: Final = "error: not erased from all files yet, ask again"


class Receipts:
    def __init__(
        self,
        state: RelayState,
        store: Inspector,
        relay_key: SecretKey,
        clock: Callable[[], int],
        used: UsedAuthorizations,
    ) -> None:
        self._state = state
        self._store = store
        self._relay_key = relay_key
        self._clock = clock
        self._used = used

    async def reply(
        self,
        wanted: str,
        header: str | None,
        request: HttpRequest,
        here: frozenset[RelayAddress],
        address: str | None = None,
    ) -> Reply:
        """`address`: see `Sharer.counted_as`.

        200 with the signed event; 202: not erased yet; else 400, 401, 404, 429 or 503."""
        now = self._clock()
        try:
            signed = authorization(header, request, here, now)
        except Invalid as refused:
            return refusal(401, str(refused))
        if not is_hex64(wanted):
            return refusal(400, f"invalid: {PARAMETER}: must be an event id, 64 hex")
        try:
            erasure = await self._store.erasure(wanted)
        except StoreFault:
            return NO_STORE
        owners = self._state.policy.actors.owners
        if erasure is None or (signed.pubkey != erasure.by and signed.pubkey not in owners):
            return refusal(404, NOTHING)
        try:
            most = None if signed.pubkey in owners else self._share_of(signed.pubkey)
            if await self._used.was_used(signed, now, most, address):
                return ALREADY_USED
        except Invalid as refused:
            return refusal(401, str(refused))
        except Refused as refused:
            return refusal(429, str(refused))
        if not self._store.is_erased(wanted):
            return refusal(202, NOT_YET)
        event = receipt(erasure, self._store.features.erased_from, self._relay_key, now)
        return Reply(200, orjson.dumps(orjson.Fragment(event.raw)))

    def _share_of(self, pubkey: str) -> int:
        """Value of `most` for `was_used`."""
        is_known = self._state.visibility(Viewer(frozenset({pubkey}))).is_known
        return 2 * MAX_RECEIPTS if is_known else MAX_RECEIPTS
