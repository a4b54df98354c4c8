"""What a record of nmem must look like. MEMORY.md 5.7."""

from __future__ import annotations

import re
from hashlib import sha256
from typing import TYPE_CHECKING, Final

from relay.memory.fields import NOT_AN_OBJECT, object_in
from relay.nostr import kinds
from relay.nostr.event import is_hex64

if TYPE_CHECKING:
    from relay.memory.terms import Terms
    from relay.nostr.event import Event

_HASHED: Final = re.compile(r".+:[0-9a-f]{64}", re.DOTALL)


def check(event: Event, terms: Terms) -> str | None:
    d = event.d
    if event.kind == kinds.APP_RECORD:
        for what in ("obs", "prompt"):
            start = f"nmem:{what}:"
            if d.startswith(start):
                shape = f"d must be nmem:{what}:<session>:<sha256 of content>"
                if _HASHED.fullmatch(d[len(start) :]) is None:
                    return shape
                if object_in(event.content) is None:
                    return NOT_AN_OBJECT
                return None if sha256(event.content.encode()).hexdigest() == d[-64:] else shape
        return (
            "d must be nmem:obs:<session>:<sha256 of content> or "
            "nmem:prompt:<session>:<sha256 of content>"
        )
    if d.startswith("nmem:pin:"):
        if not is_hex64(d.removeprefix("nmem:pin:")):
            return "d must be nmem:pin:<event id>"
    elif not (d.startswith("nmem:session:") and len(d) > len("nmem:session:")):
        return "d must be nmem:session:<id> or nmem:pin:<event id>"
    return None if object_in(event.content) is not None else NOT_AN_OBJECT
