"""Shelf: the newest version of each record, by author and `d`, in whatever order they come.

Users are found under every form of their key (S-02).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from relay.errors import Invalid
from relay.memory.snowclaw.agent_memory import AgentMemory, agent_memory_in
from relay.memory.snowclaw.keys import MEMORY, OfUser, hex_of, is_same_user, memory_scope
from relay.memory.snowclaw.records import newest, record_in
from relay.nostr import kinds

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator

    from relay.memory.snowclaw.records import GroupRecord, UserRecord
    from relay.memory.unreadable import UnreadableRecord
    from relay.nostr.event import Event

    Where = tuple[str, str]
    """Author and `d`."""


class Shelf:
    """Of records that count to one reader; whose do is the reader's to say."""

    def __init__(self, key: bytes | None) -> None:
        """`key`: see `encryption`."""
        self._key = key
        self._events: dict[Where, Event] = {}
        self._users: dict[str, set[Where]] = {}
        """The first 16 hex of a key → where records of such users are."""
        self._read: dict[str, UserRecord | GroupRecord | AgentMemory | UnreadableRecord] = {}
        """By id of the event, of those that are here."""

    def take(self, event: Event) -> bool:
        """Whether it is newer than what is here; of one second the lowest id is."""
        where = (event.pubkey, event.d)
        known = self._events.get(where)
        if known is not None:
            if newest((known, event)) is known:
                return False
            self._read.pop(known.id, None)
        self._events[where] = event
        key = user_key(event.d)
        if key is not None:
            self._users.setdefault(key[:16], set()).add(where)
        return True

    def delete(self, deletion: Event) -> list[Event]:
        """What a kind 5 takes away here: records of its author, by id and by address."""
        named, addresses = set(deletion.tag_values("e")), set(deletion.tag_values("a"))
        gone = [
            event
            for (author, d), event in self._events.items()
            if author == deletion.pubkey
            and (
                event.id in named
                or (
                    f"{kinds.APP_DATA}:{author}:{d}" in addresses
                    and event.created_at <= deletion.created_at
                )
            )
        ]
        for event in gone:
            where = (event.pubkey, event.d)
            del self._events[where]
            self._read.pop(event.id, None)
            self._users.get((user_key(event.d) or "")[:16], set()).discard(where)
        return gone

    def events(self) -> list[Event]:
        return list(self._events.values())

    def at(self, author: str, d: str) -> Event | None:
        return self._events.get((author, d))

    def of_user(self, key: str, authors: Collection[str]) -> Iterator[Event]:
        """What these authors have about a user. `key`: see `hex_of`."""
        for author, d in self._users.get(key[:16], ()):
            other = user_key(d)
            if author in authors and other is not None and is_same_user(key, other):
                yield self._events[author, d]

    def user_keys(self) -> Iterator[str]:
        """Of whom there are records, as far as each record tells."""
        for wheres in self._users.values():
            for _, d in wheres:
                key = user_key(d)
                if key is not None:
                    yield key

    def read(self, event: Event) -> UserRecord | GroupRecord | AgentMemory | UnreadableRecord:
        """One record in plain text, or why not."""
        found = self._read.get(event.id)
        if found is None:
            is_memory = event.d.startswith(MEMORY)
            found = (record_in if is_memory else agent_memory_in)(event, self._key)
            stored = self._events.get((event.pubkey, event.d))
            if stored is not None and stored.id == event.id:  # another one nobody would drop
                self._read[event.id] = found
        return found


def user_key(d: str) -> str | None:
    """What the `d` of a user's record holds of their public key."""
    if not d.startswith(f"{MEMORY}npub:"):
        return None
    try:
        scope = memory_scope(d)
    except Invalid:
        return None
    return hex_of(scope.key) if isinstance(scope, OfUser) else None
