"""What a record of Anamnesis must look like. MEMORY.md 6.6."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from relay.memory.fields import NOT_AN_OBJECT, object_in
from relay.nostr import kinds
from relay.nostr.event import is_hex64

if TYPE_CHECKING:
    from relay.memory.terms import Terms
    from relay.nostr.event import Event

_BAD_RECORD: Final = "d must be anamnesis:memory, vouch, superseded or meta and a hash"


def check(event: Event, terms: Terms) -> str | None:
    _, what, hashed = (*event.d.split(":", 2), "", "")[:3]
    if event.kind == kinds.APP_RECORD:
        if what != "memory":
            return _BAD_RECORD
        return None if object_in(event.content) is not None else NOT_AN_OBJECT
    if what not in ("vouch", "superseded", "meta"):
        return _BAD_RECORD
    if not is_hex64(hashed) or event.tag("x") != hashed:
        return "d must be anamnesis:vouch:<64 lowercase hex>" if what == "vouch" else _BAD_RECORD
    return None if object_in(event.content) is not None else NOT_AN_OBJECT
