"""RecordIndex: the newest version of each record by author and `d`, for any order of arrival.

Users are found under every form of their key (S-02).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from relay.errors import Invalid
from relay.memory.snowclaw.agent_memory import AgentMemory, agent_memory_in
from relay.memory.snowclaw.keys import MEMORY, OfUser, hex_of, is_same_user, memory_scope
from relay.memory.snowclaw.records import newest, record_in
from relay.memory.unreadable import UnreadableRecord
from relay.nostr.nip09 import named_by

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator

    from relay.memory.snowclaw.encryption import OwnKey
    from relay.memory.snowclaw.records import GroupRecord, UserRecord
    from relay.nostr.event import Event

    Address = tuple[str, str]
    """Author and `d`."""


class RecordIndex:
    """Records of the authors that the reader trusts; the reader filters them."""

    def __init__(self, key: OwnKey | None) -> None:
        """`key`: of the reader."""
        self._key = key
        self.hash_key = b"" if key is None else key.conversation_key
        """See `edit_dates`."""
        self._events: dict[Address, Event] = {}
        self._users: dict[str, set[Address]] = {}
        """First 16 hex characters of a user's key → addresses of their records."""
        self._read: dict[str, UserRecord | GroupRecord | AgentMemory | UnreadableRecord] = {}
        """Decoded records by event id."""

    def add(self, event: Event) -> bool:
        """Store it if it is newer than the known version (tie: the lower id). Whether it was
        stored."""
        address = (event.pubkey, event.d)
        known = self._events.get(address)
        if known is not None:
            if newest((known, event)) is known:
                return False
            self._read.pop(known.id, None)
        self._events[address] = event
        key = user_key(event.d)
        if key is not None:
            self._users.setdefault(key[:16], set()).add(address)
        return True

    def delete(self, deletion: Event) -> list[Event]:
        """Apply a kind 5: the records of its author that it removed, by id and by address."""
        removed = named_by(deletion, self._events.values())
        for event in removed:
            self.remove(event)
        return removed

    def remove(self, event: Event) -> None:
        """Remove this version, if it is the known one of its address."""
        address = (event.pubkey, event.d)
        known = self._events.get(address)
        if known is not None and known.id == event.id:
            del self._events[address]
            self._read.pop(event.id, None)
            key = (user_key(event.d) or "")[:16]
            left = self._users.get(key, set())
            left.discard(address)
            if not left:
                self._users.pop(key, None)

    def events(self) -> list[Event]:
        return list(self._events.values())

    def at(self, author: str, d: str) -> Event | None:
        return self._events.get((author, d))

    @property
    def users(self) -> int:
        """Number of users with a record."""
        return len(self._users)

    def has_user(self, key: str) -> bool:
        """Whether there is a record of a user, by any author. `key`: see `hex_of`."""
        return key[:16] in self._users

    def of_user(self, key: str, authors: Collection[str]) -> Iterator[Event]:
        """Records of these authors about a user. `key`: see `hex_of`."""
        for author, d in self._users.get(key[:16], ()):
            other = user_key(d)
            if author in authors and other is not None and is_same_user(key, other):
                yield self._events[author, d]

    def user_keys(self) -> Iterator[str]:
        """The key in each user record: 64, 32 or 16 hex characters."""
        for addresses in self._users.values():
            for _, d in addresses:
                key = user_key(d)
                if key is not None:
                    yield key

    def read(self, event: Event) -> UserRecord | GroupRecord | AgentMemory | UnreadableRecord:
        """Decode (and decrypt) one record."""
        found = self._read.get(event.id)
        if found is None:
            is_memory = event.d.startswith(MEMORY)
            found = (record_in if is_memory else agent_memory_in)(event, self._key)
            stored = self._events.get((event.pubkey, event.d))
            if stored is not None and stored.id == event.id:  # others would never be evicted
                self._read[event.id] = found
        return found

    def record(self, event: Event | None) -> UserRecord | GroupRecord | None:
        """Of a user or group. Raises Invalid if it cannot be read."""
        found = None if event is None else self.read(event)
        if isinstance(found, UnreadableRecord):
            raise _overwritten(found)
        assert not isinstance(found, AgentMemory)
        return found

    def notes(self, event: Event | None) -> tuple[str, ...]:
        """Private notes about a user. Raises Invalid if they cannot be read."""
        found = None if event is None else self.read(event)
        if isinstance(found, UnreadableRecord):
            raise _overwritten(found)
        return found.lines if isinstance(found, AgentMemory) else ()


def _overwritten(found: UnreadableRecord) -> Invalid:
    return Invalid(f"event {found.event.id[:12]}… would be overwritten: {found.why}")


def user_key(d: str) -> str | None:
    """The part of the public key in the `d` of a user record; None for other records."""
    if not d.startswith(f"{MEMORY}npub:"):
        return None
    try:
        scope = memory_scope(d)
    except Invalid:
        return None
    return hex_of(scope.key) if isinstance(scope, OfUser) else None
