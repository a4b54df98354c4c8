"""Chat: the last messages of each group and conversation, their senders, and the context for a
model.

S-18, S-30, S-33…S-38. Not persistent: after a restart the agent queries the relay (S-34).
"""

from __future__ import annotations

from collections import Counter
from contextlib import suppress
from dataclasses import replace
from functools import lru_cache
from itertools import chain, islice
from types import MappingProxyType
from typing import TYPE_CHECKING, Final, NamedTuple

from relay.errors import Invalid
from relay.memory.bounded import BoundedDict
from relay.memory.fence import attribution
from relay.memory.fields import repaired
from relay.memory.snowclaw.context import ContextAssembler, HistoryStyle, Sender, TrimOrder
from relay.memory.snowclaw.deletions import Deletions
from relay.memory.snowclaw.history import (
    HistoryMessage,
    RingBuffer,
    beyond,
    missing_from,
    oldest_first,
)
from relay.memory.snowclaw.key_filter import KeyFilter
from relay.memory.snowclaw.keys import OfGroup
from relay.memory.snowclaw.respond import should_respond
from relay.memory.snowclaw.system_prompt import IN_DIRECT_MESSAGES, in_group, system_prompt
from relay.memory.snowclaw.users import MAX_NAME, UserMemory
from relay.nostr import keys, kinds
from relay.nostr.event import is_hex64, object_in
from relay.nostr.nip40 import expiry_of

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping

    from relay.memory.snowclaw.context import Context, Part
    from relay.memory.snowclaw.edits import Names
    from relay.memory.snowclaw.respond import Agent
    from relay.memory.snowclaw.working_copy import WorkingCopy
    from relay.nostr.event import Event

KINDS: Final = (kinds.CHAT, kinds.THREAD, kinds.THREAD_COMMENT)
"""Kinds of group messages (S-28)."""
_MAX_OWN_IDS: Final = 10_000
_MAX_ABSENT: Final = 10_000
_MAX_DIRECT: Final = 100
"""Conversations in direct messages whose history is kept."""
MAX_HISTORY_BYTES: Final = 2**26
"""What the messages of all histories take in memory together."""
_MAX_GROUPS: Final = 10_000
_MAX_MEMBERS: Final = 500
"""Members of a group in its memory."""
_MAX_LISTED: Final = 100_000
"""Members of all groups together, beyond so many of each."""

Correspondents = frozenset[str]
"""Public keys of a conversation in direct messages, without the agent's own."""


class _Profile(NamedTuple):
    """Content of a kind 0. `at` 0: it was looked up, and there is none."""

    at: int = 0
    name: str | None = None
    about: str = ""
    """Of the agent's own."""
    names: Names = ()
    """The current name and the previous one: a message may arrive after a newer profile."""


class _Listed(NamedTuple):
    """Content of a group's 39000 and 39002."""

    at: int
    title: str = ""
    members: Mapping[str, None] = MappingProxyType({})


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
        self._direct: dict[Correspondents, RingBuffer[HistoryMessage]] = {}
        self._begun_by: dict[Correspondents, str] = {}
        """Public key of who wrote the first message that was seen of a conversation."""
        self._history_bytes = 0
        """What the messages of all histories take at most: those that left are counted until
        `_shorten`."""
        self._own_ids: BoundedDict[str, None] = BoundedDict(_MAX_OWN_IDS)
        """Events of the agent itself: a reply to one addresses the agent."""
        self._deletions = Deletions()
        self._absent: BoundedDict[str, None] = BoundedDict(_MAX_ABSENT)
        """Ids of what the relay gives no more."""
        self._profiles: BoundedDict[str, _Profile] = BoundedDict(_MAX_USERS)
        """Public key → profile."""
        self._titles: BoundedDict[str, _Listed] = BoundedDict(_MAX_GROUPS)
        self._lists: BoundedDict[str, _Listed] = BoundedDict(_MAX_GROUPS)
        """Group id → content of its lists."""

    # -- events ------------------------------------------------------------------------------------

    def see(self, event: Event) -> bool:
        """Add a message, the name in a profile, or what a group's records tell; drop the messages
        that a kind 5 of their author names, or a 9005 of their group, which the relay takes only
        from who may send it. Whether it changed anything."""
        match event.kind:
            case kinds.PROFILE:
                return self._see_profile(event)
            case kinds.GROUP_METADATA | kinds.GROUP_MEMBERS:
                return self._see_group(event)
            case kinds.DELETION | kinds.DELETE_EVENT:
                return self._see_deletion(event)
        ring, group = self._ring_of(event), event.tag("h")
        if ring is None or self._is_known(event, ring):
            return False
        self._remember(event)
        if event.pubkey != self._agent.pubkey:
            self._note_sender(event, group)
        elif group:
            self._note_answered(event, ring, group)
        self._insert(event, ring)
        self._shorten()
        return True

    def fill_direct(self, messages: Iterable[Event]) -> None:
        """Add earlier direct messages, in any order; others, also later ones, may follow."""
        for event in oldest_first(messages):
            if (ring := self._ring_of(event)) is not None and not self._is_known(event, ring):
                self._remember(event)
                self._insert(event, ring)
        self._shorten()

    def _is_known(self, event: Event, ring: RingBuffer[HistoryMessage]) -> bool:
        """Whether a message is in its buffer, or was deleted."""
        return self._deletions.has(event) or any(message.event_id == event.id for message in ring)

    def _insert(self, event: Event, ring: RingBuffer[HistoryMessage]) -> None:
        # Messages may arrive late from other relays or with other clocks.
        message = self._message(event)
        ring.insert(message, lambda other: other.timestamp > event.created_at)
        self._history_bytes += message.weight

    def fill(self, events: Iterable[Event]) -> None:
        """Add earlier messages, in any order."""
        of_ring: dict[int, tuple[RingBuffer[HistoryMessage], list[Event]]] = {}
        for event in oldest_first(events):
            if (ring := self._ring_of(event)) is not None and not self._deletions.has(event):
                self._remember(event)
                of_ring.setdefault(id(ring), (ring, []))[1].append(event)
        for ring, found in of_ring.values():
            missing = missing_from(ring, map(self._message, found))
            ring.fill(missing)
            self._history_bytes += sum(message.weight for message in missing)
        self._shorten()

    def _shorten(self) -> None:
        """Drop messages if all together take too much memory."""
        if self._history_bytes <= MAX_HISTORY_BYTES:
            return
        rings = (*self._rings.values(), *self._direct.values())
        # An eighth is left: not for each message anew.
        gone, left = beyond(chain.from_iterable(rings), MAX_HISTORY_BYTES * 7 // 8)
        for ring in rings:
            ring.drop(lambda message: message.event_id in gone)
        self._history_bytes = left

    def drop(self, ids: Collection[str]) -> None:
        """Drop these messages of groups, which the relay gives no more."""
        for id_ in ids:
            self._absent[id_] = None
        for ring in self._rings.values():
            ring.drop(lambda message: message.event_id in ids)

    def drop_expired(self, now: int) -> None:
        """`now`: Unix seconds."""
        for ring in (*self._rings.values(), *self._direct.values()):
            ring.drop(lambda m: m.expires_at is not None and m.expires_at <= now)

    def resize(self) -> None:
        """Apply the configured history lengths (S-18)."""
        for group, ring in self._rings.items():
            ring.resize(self._capacity(group))
        for others, ring in self._direct.items():
            ring.resize(self._direct_capacity(others))

    def no_name(self, pubkey: str) -> None:
        """Note that the profile was looked up without a result."""
        self._profiles.setdefault(pubkey, _Profile())

    def _see_profile(self, event: Event) -> bool:
        known = self._profiles.get(event.pubkey, _Profile())
        if event.created_at < known.at:
            return False
        name, names = _text_in(event, "display_name", "name"), known.names
        name = None if name is None else name[:MAX_NAME]
        if name is None:
            names = ()
        elif name != known.name:
            names = (*names[-1:], (name, event.created_at))
        is_own = event.pubkey == self._agent.pubkey
        about = (_text_in(event, "about") or "") if is_own else ""
        self._profiles[event.pubkey] = _Profile(event.created_at, name, about, names)
        subject = self._working_copy.subject_of(event.pubkey)
        memory = self._working_copy.own_user(subject)
        if name is None or name == known.name:
            return False
        if memory is not None and memory.name != name:
            at = event.created_at
            self._working_copy.edit_user(subject, lambda old: old.named(name, at), at=at)
        for group in {*self._lists, *self._rings}:
            of_group = self._working_copy.own_group(OfGroup(group))
            if of_group is not None and _npub_of(event.pubkey) in dict(of_group.members):
                self.note_members(group, event.pubkey)
        return True

    def _see_group(self, event: Event) -> bool:
        of_kind = self._titles if event.kind == kinds.GROUP_METADATA else self._lists
        known = of_kind.get(event.d)
        if known is not None and event.created_at < known.at:
            return False
        of_kind.pop(event.d, None)
        left = _MAX_LISTED - sum([len(each.members) for each in of_kind.values()])
        members = filter(is_hex64, dict.fromkeys(event.tag_values("p")))
        of_kind[event.d] = _Listed(
            event.created_at,
            event.tag("name") or "",
            dict.fromkeys(islice(members, max(left, _MAX_MEMBERS))),
        )
        return self.note_members(event.d)

    def _see_deletion(self, event: Event) -> bool:
        ids = self._deletions.add(event)
        if event.kind == kinds.DELETE_EVENT:
            ring = self._rings.get(event.tag("h") or "")
            return ring is not None and ring.drop(lambda message: message.event_id in ids)
        author, is_changed = _npub_of(event.pubkey), False
        for ring in self._rings.values():
            is_changed |= ring.drop(lambda m: m.npub == author and m.event_id in ids)
        return is_changed

    def wait_for(self, message: Event) -> None:
        """The program has not answered the message yet: its deletion is remembered until
        `answered`."""
        self._deletions.wait_for(message)

    def answered(self, message: Event) -> None:
        self._deletions.answered(message)

    def wait_for_none(self) -> None:
        """Nobody answers any more."""
        self._deletions.wait_for_none()

    def is_withdrawn(self, message: Event, now: int) -> bool:
        """Whether a message was deleted, is given by the relay no more, or has expired. `now`: Unix
        seconds."""
        expires_at = _expiry_of(message)
        is_expired = expires_at is not None and expires_at <= now
        return is_expired or message.id in self._absent or self._deletions.has(message)

    def _remember(self, event: Event) -> None:
        self._absent.pop(event.id, None)  # the relay gives it again
        self._pubkeys[event.pubkey] = None
        self._working_copy.remember_key(event.pubkey)
        if event.pubkey == self._agent.pubkey:
            self._own_ids[event.id] = None

    def _note_sender(self, event: Event, group: str | None) -> None:
        working_copy = self._working_copy
        if self.is_known(event.pubkey, group):
            self._note_user(event.pubkey, event.created_at, group)
        if group and working_copy.unwritable(OfGroup(group)) is None:
            working_copy.see_group(OfGroup(group), event.created_at)
            memory = working_copy.own_group(OfGroup(group))
            is_named = memory is not None and _npub_of(event.pubkey) in dict(memory.members)
            if group not in self._lists or not is_named:
                self.note_members(group, event.pubkey)

    def _note_answered(self, answer: Event, ring: RingBuffer[HistoryMessage], group: str) -> None:
        """Whom the agent answers is known from the first message in the history on."""
        for pubkey in filter(is_hex64, dict.fromkeys(answer.tag_values("p"))):
            if pubkey != self._agent.pubkey and not self._working_copy.has_user(pubkey):
                for message in ring:
                    if message.npub == _npub_of(pubkey):
                        self._note_user(pubkey, message.timestamp, group)

    def _note_user(self, pubkey: str, at: int, group: str | None) -> None:
        subject = self._working_copy.subject_of(pubkey)
        if self._working_copy.unwritable(subject) is None:
            names = self._profile(pubkey).names
            self._working_copy.see_user(subject, at, names, group)

    def note_members(self, group: str, speaker: str | None = None) -> bool:
        """Name the members in the memory of a group, if there is one: those that its 39002 lists;
        until one is seen, whoever spoke. Whether that is a change."""
        of_group, listed = OfGroup(group), self._lists.get(group)
        memory = self._working_copy.own_group(of_group)
        if memory is None:
            return False
        known = dict(memory.members)
        if listed is not None:
            members = {_npub_of(key): self._member_name(key, known) for key in self.members(group)}
        elif (
            speaker is not None
            and self._profile(speaker).name is not None
            and (len(known) < _MAX_MEMBERS or _npub_of(speaker) in known)
        ):
            members = known | {_npub_of(speaker): self._member_name(speaker, known)}
        else:
            return False
        if tuple(members.items()) == memory.members:
            return False
        self._working_copy.set_members(of_group, tuple(members.items()))
        return True

    def _member_name(self, pubkey: str, known: Mapping[str, str]) -> str:
        name = self._profile(pubkey).name
        return (name or known.get(_npub_of(pubkey)) or known.get(pubkey) or "")[:MAX_NAME]

    def _profile(self, pubkey: str) -> _Profile:
        return self._profiles.get(pubkey, _Profile())

    # -- reading -----------------------------------------------------------------------------------

    def knows_name(self, pubkey: str) -> bool:
        """Whether the profile was looked up."""
        return pubkey in self._profiles

    def follows_name(self, pubkey: str) -> bool:
        """Whether a change of the profile matters: it was looked up, or there is a memory."""
        return self.knows_name(pubkey) or self._working_copy.has_user(pubkey)

    def is_known(self, pubkey: str, group: str | None) -> bool:
        """Whether the author of a message is a member of its group, or has a memory. In an open
        group anybody may send any number, each with another key."""
        listed = None if group is None else self._lists.get(group)
        copy = self._working_copy
        is_ours = listed is None or pubkey in listed.members or pubkey in copy.authors
        return is_ours or copy.has_user(pubkey)

    def knows(self, pubkey: str, groups: Iterable[str]) -> bool:
        """Whether direct messages of a key are read: those of owners, agents, members of `groups`,
        to which the agent listens now, and users for whom there is a memory or an owner's
        configuration."""
        copy = self._working_copy
        return (
            pubkey in copy.authors
            or any(self._is_member(pubkey, group) for group in groups)
            or copy.own_user(copy.subject_of(pubkey)) is not None
            or copy.config.of_user(pubkey) is not None
        )

    def members(self, group: str) -> tuple[str, ...]:
        """Public keys, the first of the group's 39002; none before it is seen."""
        listed = self._lists.get(group, _Listed(0))
        return tuple(islice(listed.members, _MAX_MEMBERS))

    def _is_member(self, pubkey: str, group: str) -> bool:
        listed = self._lists.get(group)
        return listed is not None and pubkey in listed.members

    def history(self, place: str | Correspondents) -> list[HistoryMessage]:
        """Oldest first. `place`: a group's id, or the others of a conversation."""
        if isinstance(place, str):
            return list(self._rings.get(place, ()))
        return list(self._direct.get(place, ()))

    def ids_of_groups(self) -> set[str]:
        """Of the messages of all groups, and of those that wait for an answer."""
        of_rings = {message.event_id for ring in self._rings.values() for message in ring}
        return of_rings.union(self._deletions.waiting())

    def capacity(self, group: str) -> int:
        return self._ring(group).capacity

    def should_respond(self, event: Event) -> bool:
        mode = self._working_copy.config.effective(event.tag("h"), event.pubkey).respond_mode
        return should_respond(event, mode, self._agent, self._own_ids.keys())

    def assemble(
        self,
        event: Event,
        system: str,
        budget: int,
        summaries: Mapping[Part, str] = MappingProxyType({}),
        now: int = 0,
    ) -> Context:
        """The context for answering a message, without its text if it is withdrawn. `system`: added
        to the system prompt. `summaries`: see `ContextAssembler`. `now`: Unix seconds. Raises
        Invalid for what is no direct message and has no `h`."""
        group, ring = event.tag("h") or "", self._ring_of(event)
        if ring is None:
            raise Invalid("missing tag h")
        current = self._message(event)
        if self.is_withdrawn(event, now):
            current = replace(current, content="")
        memory, author = None, None
        if group:
            memory, author, _ = self._working_copy.shown_group(group)
        if memory is not None:
            memory = replace(
                memory,
                purpose=None if memory.purpose is None else self._filtered(memory.purpose),
                themes=tuple(map(self._filtered, memory.themes)),
                decisions=tuple((self._filtered(text), at) for text, at in memory.decisions),
            )
        purpose = memory.purpose if memory is not None and author is None else None
        assembler = ContextAssembler(group, self._history_style, self._trim_order, self._npub)
        return assembler.assemble(
            system=self._filtered(self._system_prompt(group, purpose or "", system)),
            sender=self._sender(event, group),
            current=current,
            history=ring,
            memory=memory,
            memory_by=self._by(author, group),
            budget=budget,
            summaries={part: self._filtered(text) for part, text in summaries.items()},
        )

    def _system_prompt(self, group: str, purpose: str, added: str) -> str:
        """`purpose`: of the agent's own record, not another's."""
        of_agent = self._profile(self._agent.pubkey)
        names = (*self._agent.names, of_agent.name or "")
        place = IN_DIRECT_MESSAGES
        if group:
            title = self._titles.get(group)
            place = in_group(group, "" if title is None else title.title, purpose)
        owners = [(self.name_of(key, group), _npub_of(key)) for key in sorted(self._agent.owners)]
        name = next(filter(None, names), self._npub[:12])
        return system_prompt(name, self._npub, of_agent.about, owners, place, added)

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
            sender=self.name_of(event.pubkey, event.tag("h") or ""),
            npub=_npub_of(event.pubkey),
            content=self._filtered(event.content),
            timestamp=event.created_at,
            event_id=event.id,
            is_owner=event.pubkey in self._agent.owners,
            kind=event.kind,
            expires_at=_expiry_of(event),
        )

    def name_of(self, pubkey: str, group: str | None) -> str:
        """The name in the profile, else the one in the memory used in this group, else a short
        npub."""
        name = self._profile(pubkey).name
        if name is None:
            memory = self._working_copy.user(pubkey, group)
            name = None if memory is None else memory.name
        return _npub_of(pubkey)[:12] if name is None else self._filtered(name)

    def _filtered(self, text: str) -> str:
        return self.key_filter.filtered(text).text

    def _ring_of(self, message: Event) -> RingBuffer[HistoryMessage] | None:
        """The buffer that a message belongs to; None: the event is no message."""
        group = message.tag("h")
        if message.kind in KINDS and group:
            return self._ring(group)
        if message.kind != kinds.PRIVATE_MESSAGE or group is not None:
            return None
        others = correspondents(message, self._agent.pubkey)
        if others not in self._direct:
            if len(self._direct) >= _MAX_DIRECT:
                self._drop_conversation()
            is_own = message.pubkey == self._agent.pubkey
            self._begun_by[others] = min(others, default="") if is_own else message.pubkey
            self._direct[others] = RingBuffer(self._direct_capacity(others))
        return self._direct[others]

    def _drop_conversation(self) -> None:
        """The oldest of whoever began most: each set of other recipients makes one, so a member
        could begin enough to drop those of all others."""
        ((most, _),) = Counter(self._begun_by.values()).most_common(1)
        oldest = next(others for others, by in self._begun_by.items() if by == most)
        del self._direct[oldest], self._begun_by[oldest]

    def _ring(self, group: str) -> RingBuffer[HistoryMessage]:
        if group not in self._rings:
            self._rings[group] = RingBuffer(self._capacity(group))
        return self._rings[group]

    def _capacity(self, group: str) -> int:
        return self._working_copy.config.effective(group).context_history

    def _direct_capacity(self, others: Correspondents) -> int:
        one = next(iter(others)) if len(others) == 1 else None
        return self._working_copy.config.effective(npub=one).context_history


def correspondents(message: Event, agent: str) -> Correspondents:
    """The others of a direct message (NIP-17)."""
    return frozenset({message.pubkey, *message.tag_values("p")}) - {agent}


def _expiry_of(message: Event) -> int | None:
    with suppress(Invalid):
        return expiry_of(message)
    return None


def _text_in(profile: Event, *names: str) -> str | None:
    """The first of these fields that holds text."""
    fields = object_in(profile.content) or {}
    for name in names:
        text = fields.get(name)
        if isinstance(text, str) and text.strip():
            return repaired(text.strip())
    return None
