"""The memory systems: which events belong to one. MEMORY.md §1."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from relay.nostr import kinds

if TYPE_CHECKING:
    from relay.nostr.event import Event

OWN_KINDS: Final = frozenset(
    {
        *range(kinds.DOC_MANIFEST, kinds.SUBSCRIPTION_STATE + 1),
        kinds.CONVERSATION_NOTE,
        kinds.SOURCE_DATA,
        kinds.SESSION_STATE,
        kinds.SESSION_COMMAND,
        kinds.RUN_CONFIGURATION,
        kinds.ENVELOPE,
        kinds.SHARED_ENVELOPE,
    }
)
"""Kinds that only memory systems use."""

ADDRESSED: Final = {
    kinds.APP_DATA: ("snowclaw:", "snow:memory:", "nmem:", "anamnesis:"),
    kinds.APP_RECORD: ("nmem:", "anamnesis:"),
}
"""General kinds that are memory when `d` begins so."""


def is_memory(event: Event) -> bool:
    """Whether the rules of memory hold for this event (G-14, G-31, G-33)."""
    kind = event.kind
    if kind in OWN_KINDS:
        return True
    prefixes = ADDRESSED.get(kind)
    return prefixes is not None and event.d.startswith(prefixes)
