"""Zaps (NIP-57): the request that a receipt repeats."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import orjson

from relay.errors import Invalid
from relay.nostr.event import event_from
from relay.nostr.keys import is_signed

if TYPE_CHECKING:
    from relay.nostr.event import Event

_ZAP_REQUEST: Final = 9734
_MAX_REQUEST: Final = 8192
"""Characters of a `description`. Wallets get it in the query of a URL; one of 480,000 with 60,000
tags takes up to 0.2 s."""
_MAX_TAGS: Final = 100
"""In 8,192 characters are 2,700 empty ones, whose check takes 0.6 ms. Wallets use six or so."""


def zap_request(receipt: Event) -> Event | None:
    """The 9734 in the `description` of a 9735, if it is valid and signed; its author sent the zap.

    Anybody can sign a receipt, and its tag `P` proves nothing.
    """
    description = receipt.tag("description") or ""
    if len(description) > _MAX_REQUEST:
        return None
    try:
        fields = orjson.loads(description)
        tags = fields.get("tags") if isinstance(fields, dict) else None
        if isinstance(tags, list) and len(tags) > _MAX_TAGS:
            return None
        request = event_from(fields)
    except (orjson.JSONDecodeError, Invalid):
        return None
    return request if request.kind == _ZAP_REQUEST and is_signed(request) else None
