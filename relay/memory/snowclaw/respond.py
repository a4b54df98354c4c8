"""Whether an agent answers a message (S-35)."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Final, assert_never

from relay.memory.snowclaw.config import RespondMode
from relay.nostr.keys import npub

if TYPE_CHECKING:
    from collections.abc import Set

    from relay.nostr.event import Event

_REPLY_TAGS: Final = ("e", "q")
"""Tags of replies: `e` in NIP-10, `q` in chat messages (NIP-C7)."""


@dataclass(frozen=True, slots=True)
class Agent:
    pubkey: str
    names: tuple[str, ...] = ()
    """Names in messages, case-insensitive."""
    owners: frozenset[str] = frozenset()


def should_respond(event: Event, mode: RespondMode, agent: Agent, own_ids: Set[str]) -> bool:
    """Never to its own messages. `own_ids`: ids of the agent's events."""
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
    """Whether a message addresses the agent, by its tags or its text."""
    if agent.pubkey in event.tag_values("p"):
        return True
    if any(id_ in own_ids for name in _REPLY_TAGS for id_ in event.tag_values(name)):
        return True
    return _addresses(agent).search(event.content.casefold()) is not None


@lru_cache(maxsize=16)
def _addresses(agent: Agent) -> re.Pattern[str]:
    """Finds in a casefolded text, as whole words, what addresses the agent."""
    names = ("@all", agent.pubkey, npub(agent.pubkey), *agent.names)
    # An empty name would match every text.
    words = "|".join(re.escape(word) for name in names if (word := name.casefold().strip()))
    return re.compile(rf"(?<!\w)(?:{words})(?!\w)")
