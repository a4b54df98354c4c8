"""Whether an agent answers a message. MEMORY.md S-35."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, assert_never

from relay.memory.snowclaw.config import RespondMode
from relay.nostr.keys import npub

if TYPE_CHECKING:
    from collections.abc import Set

    from relay.nostr.event import Event

_ALL: Final = re.compile(r"@all(?!\w)", re.IGNORECASE)
_REPLY_TAGS: Final = ("e", "q")
"""A reply names what it answers: NIP-10 by `e`, a chat message (NIP-C7) by `q`."""


@dataclass(frozen=True, slots=True)
class Agent:
    """Who would answer."""

    pubkey: str
    names: tuple[str, ...] = ()
    """What people call it, in any case."""
    owners: frozenset[str] = frozenset()


def should_respond(event: Event, mode: RespondMode, agent: Agent, own_ids: Set[str]) -> bool:
    """Never to itself. `own_ids`: ids of events that the agent wrote."""
    if event.pubkey == agent.pubkey:
        return False
    match mode:
        case RespondMode.ALL:
            return True
        case RespondMode.MENTION:
            return is_mentioned(event, agent, own_ids)
        case RespondMode.OWNER:
            return event.pubkey in agent.owners
        case RespondMode.NONE:
            return False
        case _:
            assert_never(mode)


def is_mentioned(event: Event, agent: Agent, own_ids: Set[str]) -> bool:
    """Whether a message is for the agent: by its tags, or by what its text holds."""
    if agent.pubkey in event.tag_values("p"):
        return True
    if any(id_ in own_ids for name in _REPLY_TAGS for id_ in event.tag_values(name)):
        return True
    text = event.content.casefold()
    words = (agent.pubkey, npub(agent.pubkey), *(name.casefold() for name in agent.names))
    # An agent without a name yet may have an empty one: every text holds that.
    return any(word in text for word in words if word != "") or _ALL.search(text) is not None
