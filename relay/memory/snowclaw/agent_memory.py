"""AgentMemory: an agent's own text under a category and a key (S-05, S-06)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from relay.errors import Invalid
from relay.memory.draft import Draft
from relay.memory.fields import repaired
from relay.memory.snowclaw.encryption import content_of
from relay.memory.snowclaw.keys import agent_d, category_and_key
from relay.memory.unreadable import UnreadableRecord
from relay.nostr import kinds

if TYPE_CHECKING:
    from relay.memory.snowclaw.encryption import OwnKey
    from relay.nostr.event import Event


@dataclass(frozen=True, slots=True)
class AgentMemory:
    """One text. The original's categories are `core`, `daily` and `conversation`."""

    key: str
    """May contain `:`."""
    text: str
    category: str = "core"
    session: str | None = None

    @property
    def lines(self) -> tuple[str, ...]:
        return tuple(self.text.splitlines())


def agent_memory_draft(memory: AgentMemory, created_at: int) -> Draft:
    """Encrypt it with `encryption.encrypted`. Raises Invalid for an invalid category."""
    tags = [
        ["d", agent_d(memory.category, memory.key)],
        ["app", "snowclaw"],
        ["category", memory.category],
        ["agent", "snowclaw"],
    ]
    if memory.session is not None:
        tags.append(["session", memory.session])
    return Draft(kinds.APP_DATA, tags, repaired(memory.text), created_at)


def agent_memory_in(event: Event, key: OwnKey | None = None) -> AgentMemory | UnreadableRecord:
    """`key`: of the reader. Category and key are taken from `d`."""
    try:
        category, name = category_and_key(event.d)
    except Invalid as fault:
        return UnreadableRecord(event, fault.text)
    text = content_of(event, key)
    if isinstance(text, UnreadableRecord):
        return text
    return AgentMemory(name, text, category, event.tag("session"))
