"""Chat: the last messages of each group, who wrote them, and what a model is given of it all.

MEMORY.md S-30, S-33…S-38. Only in memory: an agent that starts again asks the relay (S-34).
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Final

from relay.errors import Invalid
from relay.memory.bounded import BoundedDict
from relay.memory.fields import object_in, repaired
from relay.memory.snowclaw.context import ContextAssembler, HistoryStyle, Sender, TrimOrder
from relay.memory.snowclaw.history import HistoryMessage, RingBuffer, missing_from
from relay.memory.snowclaw.key_filter import KeyFilter
from relay.memory.snowclaw.keys import OfGroup
from relay.memory.snowclaw.respond import should_respond
from relay.memory.snowclaw.users import UserMemory
from relay.nostr import kinds
from relay.nostr.keys import npub

if TYPE_CHECKING:
    from collections.abc import Iterable

    from relay.memory.snowclaw.context import Context
    from relay.memory.snowclaw.notebook import Notebook
    from relay.memory.snowclaw.respond import Agent
    from relay.nostr.event import Event

KINDS: Final = (kinds.CHAT, kinds.THREAD, kinds.THREAD_COMMENT)
"""What is a message of a group (S-28)."""
_MOST_OWN_IDS: Final = 10_000
_MOST_PEOPLE: Final = 50_000
"""Whose names and keys are remembered: in an open group strangers decide how many there are."""


class Chat:
    """What one agent hears, beside its notebook."""

    def __init__(
        self,
        agent: Agent,
        notebook: Notebook,
        trim_order: TrimOrder = TrimOrder.NOTES_FIRST,
        history_style: HistoryStyle = HistoryStyle.HEADER,
    ) -> None:
        self._agent = agent
        self._notebook = notebook
        self._trim_order = trim_order
        self._history_style = history_style
        self._pubkeys: BoundedDict[str, None] = BoundedDict(_MOST_PEOPLE)
        for author in notebook.authors:
            self._pubkeys[author] = None
        self.key_filter = KeyFilter(self._pubkeys.keys())
        self._rings: dict[str, RingBuffer[HistoryMessage]] = {}
        self._own_ids: BoundedDict[str, None] = BoundedDict(_MOST_OWN_IDS)
        """Of what the agent wrote itself: who replies to it means the agent."""
        self._names: BoundedDict[str, str | None] = BoundedDict(_MOST_PEOPLE)
        """By public key; None: asked for, and has none."""

    # -- what comes in ----------------------------------------------------------------------------

    def see(self, event: Event) -> bool:
        """Whether it is a message that is new here; a profile is taken for its name."""
        if event.kind == kinds.PROFILE:
            self._names[event.pubkey] = _name_in(event)
            return False
        group = event.tag("h")
        if event.kind not in KINDS or not group:
            return False
        ring = self._ring(group)
        if any(message.event_id == event.id for message in ring):
            return False
        self._meet(event)
        if event.pubkey != self._agent.pubkey:
            self._note_sender(event, group)
        # Of several relays, or clocks, some come late.
        ring.insert(self._message(event), lambda other: other.timestamp > event.created_at)
        return True

    def fill(self, group: str, events: Iterable[Event]) -> None:
        """What was said before, in any order."""
        ring = self._ring(group)
        found = list(events)
        for event in found:
            self._meet(event)
        ring.fill(missing_from(ring, map(self._message, found)))

    def resize(self) -> None:
        """As the configuration says now (S-18)."""
        for group, ring in self._rings.items():
            ring.resize(self._notebook.config.effective(group).context_history)

    def no_name(self, pubkey: str) -> None:
        """Whoever it is has been asked for."""
        self._names.setdefault(pubkey, None)

    def _meet(self, event: Event) -> None:
        self._pubkeys[event.pubkey] = None
        self._notebook.meet(event.pubkey)
        if event.pubkey == self._agent.pubkey:
            self._own_ids[event.id] = None

    def _note_sender(self, event: Event, group: str) -> None:
        notebook, of_group = self._notebook, OfGroup(group)
        subject, name = notebook.subject_of(event.pubkey), self._names.get(event.pubkey)
        if notebook.cannot_write(subject) is None:
            notebook.see_user(subject, event.created_at, name, group)
        if notebook.cannot_write(of_group) is None:
            notebook.see_group(of_group, event.created_at)
            memory, whose = notebook.group(group), npub(event.pubkey)
            if name is not None and memory and dict(memory.members).get(whose) != name:
                notebook.edit_group(of_group, lambda old: old.with_member(whose, name))

    # -- what is known ----------------------------------------------------------------------------

    def knows_name(self, pubkey: str) -> bool:
        """Whether it was asked for."""
        return pubkey in self._names

    def history(self, group: str) -> list[HistoryMessage]:
        """Oldest first."""
        return list(self._rings.get(group, ()))

    def capacity(self, group: str) -> int:
        return self._ring(group).capacity

    def should_respond(self, event: Event) -> bool:
        mode = self._notebook.config.effective(event.tag("h"), event.pubkey).respond_mode
        return should_respond(event, mode, self._agent, self._own_ids.keys())

    def assemble(self, event: Event, system: str, budget: int) -> Context:
        """What answers one message. Raises Invalid for an event of no group."""
        group = event.tag("h")
        if not group:
            raise Invalid("missing tag h")
        memory = self._notebook.group(group)
        if memory is not None:
            memory = replace(
                memory,
                purpose=None if memory.purpose is None else self._filtered(memory.purpose),
                themes=tuple(map(self._filtered, memory.themes)),
                decisions=tuple((self._filtered(text), at) for text, at in memory.decisions),
            )
        assembler = ContextAssembler(group, self._history_style, self._trim_order)
        return assembler.assemble(
            system=self._filtered(system),
            sender=self._sender(event, group),
            current=self._message(event),
            history=self._rings.get(group, ()),
            memory=memory,
            budget=budget,
        )

    def _sender(self, event: Event, group: str) -> Sender:
        known = self._notebook.user(event.pubkey, group)
        memory = UserMemory() if known is None else known
        filtered = replace(
            memory,
            # What a record says of it is not what it is.
            is_owner=event.pubkey in self._agent.owners,
            notes=tuple(map(self._filtered, memory.notes)),
            owner_notes=tuple(map(self._filtered, memory.owner_notes)),
            preferences={
                self._filtered(name): self._filtered(value)
                for name, value in memory.preferences.items()
            },
        )
        return Sender.of(filtered, self._name_of(event.pubkey, group), npub(event.pubkey))

    def _message(self, event: Event) -> HistoryMessage:
        return HistoryMessage(
            sender=self._name_of(event.pubkey, event.tag("h")),
            npub=npub(event.pubkey),
            content=self._filtered(event.content),
            timestamp=event.created_at,
            event_id=event.id,
            is_owner=event.pubkey in self._agent.owners,
            kind=event.kind,
        )

    def _name_of(self, pubkey: str, group: str | None) -> str:
        name = self._names.get(pubkey)
        if name is None:
            memory = self._notebook.user(pubkey, group)
            name = None if memory is None else memory.name
        return npub(pubkey)[:12] if name is None else self._filtered(name)

    def _filtered(self, text: str) -> str:
        return self.key_filter.filtered(text).text

    def _ring(self, group: str) -> RingBuffer[HistoryMessage]:
        if group not in self._rings:
            capacity = self._notebook.config.effective(group).context_history
            self._rings[group] = RingBuffer(capacity)
        return self._rings[group]


def _name_in(profile: Event) -> str | None:
    fields = object_in(profile.content) or {}
    for field in ("display_name", "name"):
        name = fields.get(field)
        if isinstance(name, str) and name.strip():
            return repaired(name.strip())
    return None
