"""The secretbox key shared by a family of agents: an argument, or in the environment (A-24)."""

from __future__ import annotations

import os
from typing import Final

from relay.errors import Invalid, UserError
from relay.memory.aman.records import SharedKey
from relay.nostr import secretbox

KEY_VARIABLE: Final = "NOSTR_SECRETBOX_KEY"


def shared_key(given: str | bytes | None) -> SharedKey | None:
    """`given`: 32 bytes or an encoding of them; None: read the environment.

    Raises UserError, which names the source of an invalid key but not the key.
    """
    source = "the argument secretbox_key"
    if given is None:
        given, source = os.environ.get(KEY_VARIABLE, ""), KEY_VARIABLE
        if not given:
            return None
    try:
        if isinstance(given, str):
            return SharedKey(secretbox.key_from(given), source)
        if len(given) != secretbox.KEY_BYTES:
            raise Invalid("key must be 32 bytes")
    except Invalid as invalid:
        raise UserError(f"{source}: {invalid.text}") from None
    return SharedKey(given, source)
