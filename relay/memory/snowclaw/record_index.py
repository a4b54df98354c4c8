"""RecordIndex: the newest version of each record by author and `d`, for any order of arrival.

Users are found under every form of their key (S-02).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar

from relay.errors import Invalid
from relay.memory.snowclaw.agent_memory import AgentMemory, agent_memory_in
from relay.memory.snowclaw.keys import MEMORY, OfUser, hex_of, memory_scope
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

_Item = TypeVar("_Item")


class RecordIndex:
    """Records of the authors that the reader trusts; the reader filters them."""

    def __init__(self, key: OwnKey | None) -> None:
        """`key`: of the reader."""
        self._key = key
        self.hash_key = b"" if key is None else key.conversation_key
        """See `edit_dates`."""
        self._events: dict[Address, Event] = {}
        self._by_key: dict[str, set[Address]] = {}
        """A user's key, as records name it → their addresses."""
        self._by_16: dict[str, set[str]] = {}
        """First 16 hex characters → such keys: any agent may write about keys that begin so."""
        self._by_32: dict[str, set[str]] = {}
        """First 32 → likewise."""
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
            self._by_key.setdefault(key, set()).add(address)
            self._by_16.setdefault(key[:16], set()).add(key)
            self._by_32.setdefault(key[:32], set()).add(key)
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
            key = user_key(event.d) or ""
            if _drop(self._by_key, key, address):
                _drop(self._by_16, key[:16], key)
                _drop(self._by_32, key[:32], key)

    def events(self) -> list[Event]:
        return list(self._events.values())

    def at(self, author: str, d: str) -> Event | None:
        return self._events.get((author, d))

    @property
    def users(self) -> int:
        """Number of users with a record."""
        return len(self._by_16)

    def has_user(self, key: str) -> bool:
        """Whether there is a record of a user, by any author. `key`: see `hex_of`."""
        return key[:16] in self._by_16

    def of_user(self, key: str, authors: Collection[str]) -> Iterator[Event]:
        """Records of these authors about a user. `key`: see `hex_of`."""
        for other in {key, key[:16], key[:32], *self.keys_beginning(key)}:
            for author, d in self._by_key.get(other, ()):
                if author in authors:
                    yield self._events[author, d]

    def keys_beginning(self, key: str) -> Collection[str]:
        """The keys in user records that begin with this one of 16 or 32 characters."""
        return (self._by_16 if len(key) == 16 else self._by_32).get(key, ())

    def user_keys(self) -> Collection[str]:
        """The key in each user record: 64, 32 or 16 hex characters."""
        return self._by_key.keys()

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


def _drop(sets: dict[str, set[_Item]], name: str, item: _Item) -> bool:
    """Whether the set, which had this, is empty now, and no longer there."""
    left = sets.get(name, set())
    left.discard(item)
    if not left:
        sets.pop(name, None)
    return not left


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
