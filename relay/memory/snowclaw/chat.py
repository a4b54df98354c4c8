"""Chat: the last messages of each group, their senders, and the context for a model.

S-30, S-33…S-38. Not persistent: after a restart the agent queries the relay (S-34).
"""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache
from typing import TYPE_CHECKING, Final

from relay.errors import Invalid
from relay.memory.bounded import BoundedDict
from relay.memory.fence import attribution
from relay.memory.fields import object_in, repaired
from relay.memory.snowclaw.context import ContextAssembler, HistoryStyle, Sender, TrimOrder
from relay.memory.snowclaw.history import HistoryMessage, RingBuffer, missing_from, oldest_first
from relay.memory.snowclaw.key_filter import KeyFilter
from relay.memory.snowclaw.keys import OfGroup
from relay.memory.snowclaw.respond import should_respond
from relay.memory.snowclaw.users import UserMemory
from relay.nostr import keys, kinds

if TYPE_CHECKING:
    from collections.abc import Iterable

    from relay.memory.snowclaw.context import Context
    from relay.memory.snowclaw.respond import Agent
    from relay.memory.snowclaw.working_copy import WorkingCopy
    from relay.nostr.event import Event

KINDS: Final = (kinds.CHAT, kinds.THREAD, kinds.THREAD_COMMENT)
"""Kinds of group messages (S-28)."""
_MAX_OWN_IDS: Final = 10_000
_npub_of: Final = lru_cache(maxsize=1_000)(keys.npub)
_MAX_USERS: Final = 50_000
"""Users whose names and keys are remembered: in an open group anybody may join."""


class Chat:
    """The messages that one agent receives."""

    def __init__(
        self,
        agent: Agent,
        working_copy: WorkingCopy,
        trim_order: TrimOrder = TrimOrder.NOTES_FIRST,
        history_style: HistoryStyle = HistoryStyle.HEADER,
    ) -> None:
        self._agent = agent
        self._npub = _npub_of(agent.pubkey)
        self._working_copy = working_copy
        self._trim_order = trim_order
        self._history_style = history_style
        self._pubkeys: BoundedDict[str, None] = BoundedDict(_MAX_USERS)
        for author in working_copy.authors:
            self._pubkeys[author] = None
        self.key_filter = KeyFilter(self._pubkeys.keys())
        self._rings: dict[str, RingBuffer[HistoryMessage]] = {}
        self._own_ids: BoundedDict[str, None] = BoundedDict(_MAX_OWN_IDS)
        """Events of the agent itself: a reply to one addresses the agent."""
        self._names: BoundedDict[str, str | None] = BoundedDict(_MAX_USERS)
        """By public key; None: looked up, without a name."""

    # -- events ------------------------------------------------------------------------------------

    def see(self, event: Event) -> bool:
        """Add a message; of a profile the name. Whether it is a new message."""
        if event.kind == kinds.PROFILE:
            self._names[event.pubkey] = _name_in(event)
            return False
        group = event.tag("h")
        if event.kind not in KINDS or not group:
            return False
        ring = self._ring(group)
        if any(message.event_id == event.id for message in ring):
            return False
        self._remember(event)
        if event.pubkey != self._agent.pubkey:
            self._note_sender(event, group)
        # Messages may arrive late from other relays or with other clocks.
        ring.insert(self._message(event), lambda other: other.timestamp > event.created_at)
        return True

    def fill(self, group: str, events: Iterable[Event]) -> None:
        """Add earlier messages, in any order."""
        ring = self._ring(group)
        found = oldest_first(events)
        for event in found:
            self._remember(event)
        ring.fill(missing_from(ring, map(self._message, found)))

    def resize(self) -> None:
        """Apply the configured history lengths (S-18)."""
        for group, ring in self._rings.items():
            ring.resize(self._working_copy.config.effective(group).context_history)

    def no_name(self, pubkey: str) -> None:
        """Note that the profile was looked up without a result."""
        self._names.setdefault(pubkey, None)

    def _remember(self, event: Event) -> None:
        self._pubkeys[event.pubkey] = None
        self._working_copy.remember_key(event.pubkey)
        if event.pubkey == self._agent.pubkey:
            self._own_ids[event.id] = None

    def _note_sender(self, event: Event, group: str) -> None:
        working_copy, of_group = self._working_copy, OfGroup(group)
        subject, name = working_copy.subject_of(event.pubkey), self._names.get(event.pubkey)
        if working_copy.unwritable(subject) is None:
            working_copy.see_user(subject, event.created_at, name, group)
        if working_copy.unwritable(of_group) is None:
            working_copy.see_group(of_group, event.created_at)
            memory, whose = working_copy.group(group), _npub_of(event.pubkey)
            if name is not None and memory and dict(memory.members).get(whose) != name:
                working_copy.edit_group(of_group, lambda old: old.with_member(whose, name))

    # -- reading -----------------------------------------------------------------------------------

    def knows_name(self, pubkey: str) -> bool:
        """Whether the profile was looked up."""
        return pubkey in self._names

    def history(self, group: str) -> list[HistoryMessage]:
        """Oldest first."""
        return list(self._rings.get(group, ()))

    def capacity(self, group: str) -> int:
        return self._ring(group).capacity

    def should_respond(self, event: Event) -> bool:
        mode = self._working_copy.config.effective(event.tag("h"), event.pubkey).respond_mode
        return should_respond(event, mode, self._agent, self._own_ids.keys())

    def assemble(self, event: Event, system: str, budget: int) -> Context:
        """The context for answering a message. Raises Invalid for an event without `h`."""
        group = event.tag("h")
        if not group:
            raise Invalid("missing tag h")
        memory, author, _ = self._working_copy.shown_group(group)
        if memory is not None:
            memory = replace(
                memory,
                purpose=None if memory.purpose is None else self._filtered(memory.purpose),
                themes=tuple(map(self._filtered, memory.themes)),
                decisions=tuple((self._filtered(text), at) for text, at in memory.decisions),
            )
        assembler = ContextAssembler(group, self._history_style, self._trim_order, self._npub)
        return assembler.assemble(
            system=self._filtered(system),
            sender=self._sender(event, group),
            current=self._message(event),
            history=self._rings.get(group, ()),
            memory=memory,
            memory_by=self._by(author, group),
            budget=budget,
        )

    def _sender(self, event: Event, group: str) -> Sender:
        known, author, signed = self._working_copy.shown_user(event.pubkey, group)
        memory = UserMemory() if known is None else known
        filtered = replace(
            memory,
            # The field in the record is only a claim.
            is_owner=event.pubkey in self._agent.owners,
            notes=tuple(map(self._filtered, memory.notes)),
            owner_notes=tuple(map(self._filtered, memory.owner_notes)),
            preferences={
                self._filtered(name): self._filtered(value)
                for name, value in memory.preferences.items()
            },
        )
        return Sender.of(
            filtered,
            self.name_of(event.pubkey, group),
            _npub_of(event.pubkey),
            self._by(author, group),
            {self._filtered(note): self._by(owner, group) for note, owner in signed.items()},
        )

    def _by(self, author: str | None, group: str) -> str:
        return "" if author is None else attribution(author, self.name_of(author, group))

    def _message(self, event: Event) -> HistoryMessage:
        return HistoryMessage(
            sender=self.name_of(event.pubkey, event.tag("h")),
            npub=_npub_of(event.pubkey),
            content=self._filtered(event.content),
            timestamp=event.created_at,
            event_id=event.id,
            is_owner=event.pubkey in self._agent.owners,
            kind=event.kind,
        )

    def name_of(self, pubkey: str, group: str | None) -> str:
        """As its profile, or what is remembered of it in the group, tells it; else a short npub."""
        name = self._names.get(pubkey)
        if name is None:
            memory = self._working_copy.user(pubkey, group)
            name = None if memory is None else memory.name
        return _npub_of(pubkey)[:12] if name is None else self._filtered(name)

    def _filtered(self, text: str) -> str:
        return self.key_filter.filtered(text).text

    def _ring(self, group: str) -> RingBuffer[HistoryMessage]:
        if group not in self._rings:
            capacity = self._working_copy.config.effective(group).context_history
            self._rings[group] = RingBuffer(capacity)
        return self._rings[group]


def _name_in(profile: Event) -> str | None:
    fields = object_in(profile.content) or {}
    for field in ("display_name", "name"):
        name = fields.get(field)
        if isinstance(name, str) and name.strip():
            return repaired(name.strip())
    return None
