"""A user's key as typed, for Snowclaw records kept under it (S-01)."""

from __future__ import annotations

from typing import Final

from relay.cli.names import own_key
from relay.errors import Invalid
from relay.memory.snowclaw.keys import hex_of
from relay.nostr.keys import public_key

NOT_PUBLIC: Final = "that is a secret key; give the public one (npub or 64 hex)"


def user_in(text: str) -> str:
    """The hex characters of an npub, or of 64, 32 or 16 hex; the key of a name of `[names]`.

    Raises Invalid with a text about the key, not about `d` tags. A secret key is not quoted.
    """
    lowered = text.strip().lower()
    if lowered.startswith("nsec1"):
        raise Invalid(NOT_PUBLIC)
    if lowered.startswith("npub1"):
        return public_key(lowered)
    try:
        return hex_of(lowered)
    except Invalid:
        if (key := own_key(text)) is not None:
            return key
        raise Invalid(
            f"not a user's key: {text[:80]!r} (an npub, or 64, 32 or 16 hex characters, or"
            " a name under [names] in ~/.config/rookery/client.toml)"
        ) from None
