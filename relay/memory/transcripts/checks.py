"""The checks of transcript records, in the order of their refusals."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from relay.memory.fields import decoded, whole_number
from relay.memory.transcripts.sources import piece_in
from relay.nostr import kinds

if TYPE_CHECKING:
    from relay.memory.check_options import CheckOptions
    from relay.nostr.event import Event

_NIP44_MIN_BYTES: Final = 99


def check(event: Event, options: CheckOptions) -> str | None:
    kind = event.kind
    if kind in (kinds.ENVELOPE, kinds.SHARED_ENVELOPE):
        sealed = decoded(event.content)
        if sealed is None or len(sealed) < _NIP44_MIN_BYTES or sealed[0] != 2:
            return "content is not a NIP-44 payload"
        return None
    if kind == kinds.SOURCE_DATA and event.content:
        return "kind 1989 carries no content"
    if kind in (kinds.CONVERSATION_NOTE, kinds.SOURCE_DATA):
        for name in ("seq", "line", "ms"):
            value = event.tag(name)
            if value is not None and whole_number(value) is None:
                return f"tag {name} must be an integer"
        for name in ("chunk", "split"):
            value = event.tag(name)
            if value is not None and piece_in(value) is None:
                return f"tag {name} must be i/n"
    return None
