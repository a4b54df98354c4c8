"""MemorySystem: what the relay must know of one memory system, as data and pure functions.

`MemorySystems` is the registry: a value that the policies in force carry. Which systems a relay has
is decided where it is started; the five that come with it are listed in `relay.memory.systems`.

Invariants: the relay's core and the policies use this module and name no system. A record type is
found by kind, then by the longest prefix of `d`; an event that matches none is no memory record.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum, auto
from typing import TYPE_CHECKING, Final, NamedTuple, TypeVar

from relay.facts import RecordFacts
from relay.memory.check_options import CheckOptions
from relay.memory.encrypted import may_be_encrypted
from relay.memory.fields import no_object
from relay.memory.search_text import general_text, no_text
from relay.nostr import kinds
from relay.nostr.event import Event, object_in
from relay.nostr.kinds import KindSet

if TYPE_CHECKING:
    from relay.errors import Prefix

_Key = TypeVar("_Key")
_Value = TypeVar("_Value")

MAX_REFERENCE_STEPS: Final = 1000
"""Longest chain of references that is followed: it occupies the writer for 0.2 s."""
NEAR_STEPS: Final = 2
"""Steps for authors who may not follow chains: to the named records, and to those that these
name."""

SEARCH_VERSION: Final = 3
"""Increase it when the search text of events outside memory, or of all systems at once, changes."""


class RecordName(NamedTuple):
    """Records of one kind and `d`, by any author."""

    kind: int
    d: str


@dataclass(frozen=True, slots=True)
class References:
    """Stored events that must be known before an event can be judged."""

    ids: frozenset[str] = frozenset()
    names: frozenset[RecordName] = frozenset()


NO_REFERENCES: Final = References()


def no_references(_: Event) -> References:
    return NO_REFERENCES


def no_fault(_event: Event, _options: CheckOptions) -> str | None:
    return None


def object_fault(event: Event, _options: CheckOptions) -> str | None:
    """The lenient check of systems whose content is always a JSON object."""
    return None if object_in(event.content) is not None else no_object(event.content)


class Sweeping(Enum):
    """Which `[[retention]]` rules may remove records of a type."""

    ANY = auto()
    NAMED = auto()
    """Only rules that name the prefix of `d`."""
    NEVER = auto()
    """None. Holds for the whole kind."""


class Authors(Enum):
    """The authors whose record may hold another one."""

    AUTHOR = auto()
    """Only the author of the held record."""
    AUTHOR_OR_OWNERS = auto()


@dataclass(frozen=True, slots=True)
class Hold:
    """A record that decides whether a sweep may remove another one."""

    reason: str
    """For admins: why the record is kept."""
    name: RecordName
    by: Authors
    holds: Callable[[Event | None], bool]
    """Given the stored record with this name (None: there is none): whether it holds the other
    record."""


def no_holds(_: Event) -> Sequence[Hold]:
    return ()


@dataclass(frozen=True, slots=True)
class AgedRecords:
    """Records that are removed by age, by the `t` tag `type:<name>`.

    `[memory.<system>]` gets the settings `sweep` and `retention_days`.
    """

    rule: str
    """Name of the rule, as an admin sees it."""
    kind: int
    prefix: str
    days: Mapping[str, int]
    """Type → days; types that are not here are kept."""


Check = Callable[[Event, CheckOptions], str | None]
"""What is wrong with a record's `d`, tags and content; None: nothing."""
Owns = Callable[[str | None], bool]
"""Whether the author of an event is an owner over what this key wrote; None: over any key."""
Objection = tuple["Prefix", str]
RecordRule = Callable[[Event, Sequence[RecordFacts], Owns], Objection | None]
"""(event, the stored events it refers to that its author may read, owns) → why it is refused."""


@dataclass(frozen=True, slots=True)
class RecordType:
    """Records of one kind, or of one kind under one prefix of `d`."""

    kind: int
    prefix: str = ""
    """Ends with `:`; empty: the whole kind."""
    required_tags: tuple[str, ...] = ()
    """In the order in which they are checked."""
    search_text: Callable[[Event], str] = no_text
    """The search text of an unencrypted record."""
    references: Callable[[Event], References] = no_references
    """Called also for each stored record that is found by name, until no new name comes up."""
    holds: Callable[[Event], Sequence[Hold]] = no_holds
    sweeping: Sweeping = Sweeping.ANY
    h_is_label: bool = False
    """Tag `h` does not place the record in a group (G-31, G-33)."""

    def missing_tag(self, event: Event) -> str | None:
        """The first required tag that is missing. `d` must not be empty, others may be."""
        for tag in self.required_tags:
            if not (event.d if tag == "d" else event.has_tag(tag)):
                return tag
        return None


@dataclass(frozen=True, slots=True)
class MemorySystem:
    """One memory system: its record types, the checks of its records and its rules."""

    name: str
    """Name used in `[memory.<name>]` and as the `schema` of a rule."""
    records: tuple[RecordType, ...]
    check: Check = no_fault
    """With `schema = "strict"`, after the required tags."""
    check_lenient: Check = no_fault
    """With `schema = "lenient"`, after the required tags."""
    record_rules: Mapping[str, RecordRule] = field(default_factory=dict)
    """Name of a policy rule → an additional check of the events that a record refers to."""
    aged: AgedRecords | None = None
    search_version: int = 1
    """Increase it when a search text changes: the search index is then rebuilt. 0: the texts are
    those of the first version of the index."""


class MemorySystems:
    """The registry: memory systems, indexed by kind and prefix of `d`. A value."""

    __slots__ = (
        "_by_kind",
        "_by_word",
        "by_name",
        "kinds",
        "never_swept",
        "record_rules",
        "systems",
    )

    def __init__(self, systems: Iterable[MemorySystem] = ()) -> None:
        """Raises ValueError when two systems have the same name, record type or rule, and for a
        prefix that does not end with `:`."""
        self.systems: Final = tuple(systems)
        self.by_name: Final = _unique((system.name, system) for system in self.systems)
        self.record_rules: Final = _unique(
            rule for system in self.systems for rule in system.record_rules.items()
        )
        records = [record for system in self.systems for record in system.records]
        _unique(((record.kind, record.prefix), record) for record in records)
        records.sort(key=lambda record: len(record.prefix), reverse=True)
        # By kind, then by the first word of `d`: asked several times for every event.
        self._by_kind: Final = {r.kind: r for r in records if not r.prefix}
        self._by_word: Final = dict[int, dict[str, tuple[RecordType, ...]]]()
        for record in records:
            word, colon, _ = record.prefix.partition(":")
            if record.prefix and not (colon and record.prefix.endswith(":")):
                raise ValueError(f"the prefix {record.prefix!r} does not end with a colon")
            of_kind = self._by_word.setdefault(record.kind, {})
            if record.prefix:
                of_kind[word] = (*of_kind.get(word, ()), record)
        self.kinds: Final = frozenset(self._by_word)
        """Every kind that a record may have, general kinds such as 30078 too."""
        self.never_swept: Final = KindSet.of(
            *(record.kind for record in records if record.sweeping is Sweeping.NEVER)
        )

    def __eq__(self, other: object) -> bool:
        return isinstance(other, MemorySystems) and self.systems == other.systems

    def __hash__(self) -> int:
        return hash(tuple(self.by_name))

    def is_memory(self, event: Event) -> bool:
        """Whether the rules for memory records apply to the event (G-14, G-31, G-33)."""
        return self.type_of(event) is not None

    def type_of(self, event: Event) -> RecordType | None:
        of_kind = self._by_word.get(event.kind)
        if of_kind is None:
            return None
        if of_kind:
            d = event.d
            for record in of_kind.get(d.partition(":")[0], ()):
                if d.startswith(record.prefix):
                    return record
        return self._by_kind.get(event.kind)

    def references(self, event: Event) -> References:
        record = self.type_of(event)
        return NO_REFERENCES if record is None else record.references(event)

    def names_in(self, event: Event) -> frozenset[RecordName]:
        """The names that an event refers to: followed by stores from record to record."""
        return self.references(event).names

    def facts_of(self, event: Event) -> RecordFacts:
        refers_to = tuple(sorted([name.d for name in self.names_in(event)]))
        return RecordFacts(event.d, event.pubkey, event.created_at, event.id, refers_to)

    def holds(self, event: Event) -> Sequence[Hold]:
        """What must be looked up before a sweep may remove the event."""
        record = self.type_of(event)
        return () if record is None else record.holds(event)

    def h_is_label(self, event: Event) -> bool:
        record = self.type_of(event)
        return record is not None and record.h_is_label

    def record_types(self, sweeping: Sweeping) -> Iterable[RecordType]:
        return (
            record
            for system in self.systems
            for record in system.records
            if record.sweeping is sweeping
        )

    def search_text(self, event: Event) -> str | None:
        """The text that NIP-50 searches match; None: no search finds the event.

        Encrypted content is never read (G-21).
        """
        record = self.type_of(event)
        text_of = general_text if record is None else record.search_text
        if text_of is no_text or kinds.is_ephemeral(event.kind) or may_be_encrypted(event):
            return None
        text = text_of(event)
        return text if text.strip() else None

    @property
    def search_version(self) -> str:
        """A change of this value means that search texts differ: the index is rebuilt."""
        own = [
            f"{system.name}:{system.search_version}"
            for system in self.systems
            if system.search_version
        ]
        return ",".join([str(SEARCH_VERSION), *own])


def _unique(pairs: Iterable[tuple[_Key, _Value]]) -> dict[_Key, _Value]:
    found: dict[_Key, _Value] = {}
    for key, value in pairs:
        if key in found:
            raise ValueError(f"two memory systems have {key}")
        found[key] = value
    return found


NO_SYSTEMS: Final = MemorySystems()
