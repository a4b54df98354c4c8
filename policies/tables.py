"""The tables of policy files beside rules: their keys, readers and values.

SETTINGS lists all of them; the defaults are in `policies/defaults`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Final

from policies.conditions import WRITERS, who_words
from policies.key_files import key_files_from
from policies.patterns import patterns_from
from policies.retention import days_by_type
from policies.settings import (
    SERVER_LIMITS,
    AnonymousRead,
    AuthWrites,
    Limits,
    Memory,
    SchemaMode,
    TsRule,
    Vouchers,
)
from relay.access.actors import Actors, Attestations, Household
from relay.access.management import MAX_ENTRIES, BannedAuthorRows
from relay.access.membership import Entry, MemberSettings
from relay.errors import Fault
from relay.groups.actions import Flag
from relay.groups.context import GroupSettings, Joins
from relay.groups.notices import Compat
from relay.lifecycle.rows import Tie
from relay.nostr.kinds import (
    ALL_KINDS,
    GROUP_RECORDS,
    GROUP_STATE,
    KindClass,
    KindSet,
    class_of,
)
from relay.toml.fields import Table, nearest

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from policies.key_files import ListedKey
    from relay.facts import Who
    from relay.memory.registry import MemorySystems

    Settings = Mapping[tuple[str, str], Any]

Reader = Callable[[Table, str], object]


def _later(reader: Reader, *accepted: object) -> Reader:
    """A setting of a later version: checked, and accepted if its value asks for nothing new."""

    def read(table: Table, key: str) -> object:
        before = len(table.source.faults)
        value = reader(table, key)
        if len(table.source.faults) == before and value not in (None, *accepted):
            table.not_offered(key)
        return None

    return read


def _households(table: Table, key: str) -> tuple[Household, ...] | None:
    if not table.has(key):
        return None
    found: list[Household] = []
    for home in table.tables(key):
        home.refuse_unknown(("name", "owner", "agents"))
        for needed in ("name", "owner"):
            if not home.has(needed):
                home.wrong(needed, f"a household needs {needed}")
        name, owners, agents = home.text("name"), home.keys("owner"), home.keys("agents")
        if name in [other.name for other in found]:
            home.wrong("name", f'there are two households "{name}"')
        if name is not None and owners is not None:
            found.append(Household(name, owners, agents or frozenset()))
    return tuple(found)


def _writers(table: Table, key: str) -> frozenset[Who] | None:
    return who_words(table, key, WRITERS, "for writing")


def _searchable(table: Table, key: str) -> KindSet | None:
    value = table.values.get(key)
    if isinstance(value, str) and value != "all":
        table.wrong(key, f'{key} must be "all" or a list of numbers and ranges like "9000-9022"')
        return None
    return ALL_KINDS if value == "all" else table.kinds(key)


def _kinds_outside_groups(table: Table, key: str) -> frozenset[int] | None:
    found = table.kinds(key)
    if found is None:
        return None
    listed = frozenset(kind for low, high in found.ranges for kind in range(low, high + 1))
    own = sorted(listed & {*GROUP_RECORDS, *GROUP_STATE})
    if own:
        table.wrong(key, f"{key}: the h or d of kind {own[0]} names a group of NIP-29")
        return None
    return listed


def _text(table: Table, key: str) -> object:
    return table.text(key)


def _boolean(table: Table, key: str) -> object:
    return table.boolean(key)


def _regular_kinds(table: Table, key: str) -> frozenset[int] | None:
    """Kinds that are not replaceable, because an address must stay in its group."""
    found = table.kinds(key)
    if found is None:
        return None
    listed = frozenset(kind for low, high in found.ranges for kind in range(low, high + 1))
    for kind in sorted(listed):
        if class_of(kind) in (KindClass.REPLACEABLE, KindClass.ADDRESSABLE):
            table.wrong(key, f"{key} must name kinds that are not replaceable, {kind} is")
            return None
    return listed


def _count(table: Table, key: str) -> object:
    return table.integer(key)


def _bits(table: Table, key: str) -> object:
    bits = table.integer(key)
    if bits is not None and bits > 256:
        table.wrong(key, f"{key} must be a whole number of bits from 0 to 256")
    return bits


def _at_least_one(table: Table, key: str) -> object:
    return table.integer(key, 1)


def _keys(table: Table, key: str) -> object:
    return table.keys(key)


def _networks(table: Table, key: str) -> object:
    return table.networks(key)


def _flags(table: Table, key: str) -> object:
    return table.list_of(key, Flag)


def _schema(table: Table, key: str) -> object:
    return table.choice(key, SchemaMode)


SETTINGS: Final[Mapping[str, Mapping[str, Reader]]] = {
    "actors": {
        "owners": _keys,
        "agents": _keys,
        "agent_role": _text,
        "trusted_readers": _networks,
        "household": _households,
    },
    "groups": {
        "always": _flags,
        "new": _flags,
        "create": _writers,
        "joins": lambda table, key: table.choice(key, Joins),
        "invite_uses": _at_least_one,
        "derived": _regular_kinds,
        "late": _count,
        "previous": _count,
        "foreign_h": _kinds_outside_groups,
        "compat": lambda table, key: table.list_of(key, Compat),
    },
    "members": {
        "join": lambda table, key: table.choice(key, Entry),
        "invite": _writers,
        "claim_uses": _at_least_one,
        "claim_days": _count,
        "attestations": lambda table, key: table.choice(key, Attestations),
    },
    "auth": {"writes": lambda table, key: table.choice(key, AuthWrites)},
    "limits": {
        "created_at_upper": _count,
        "created_at_lower": _count,
        "max_content_length": _count,
        "max_event_tags": _count,
        "min_pow_difficulty": _bits,
    },
    "search": {"kinds": _searchable},
    "bans": {
        "files": key_files_from,
        "stored": lambda table, key: table.choice(key, BannedAuthorRows),
    },
    "allow": {"files": key_files_from},
    "memory": {
        "owner_annotations": _boolean,
        "schema": _schema,
        "versions": _later(_count, 0, 20),
        "reject_patterns": patterns_from,
    },
    "memory.aman": {
        "tie": lambda table, key: table.choice(key, Tie),
        "ts_rule": lambda table, key: table.choice(key, TsRule),
        "verify_hash": _boolean,
        "anonymous_read": lambda table, key: table.choice(key, AnonymousRead),
    },
    "memory.anamnesis": {
        "max_chars": _at_least_one,
        "max_bytes": _count,
        "vouchers": lambda table, key: table.choice(key, Vouchers),
    },
    "memory.envelopes": {"keys": _keys},
}
"""Settings beside rules: table → key → its reader. `settings_with` adds those that every memory
system has."""

AllSettings = Mapping[str, Mapping[str, Reader]]


def settings_with(systems: MemorySystems) -> AllSettings:
    """SETTINGS, and `[memory.<system>]` of each system: `schema`; also `sweep` and
    `retention_days` where records are removed by age."""
    found: dict[str, Mapping[str, Reader]] = dict(SETTINGS)
    for system in systems.systems:
        table = f"memory.{system.name}"
        own: dict[str, Reader] = {"schema": _schema}
        if system.aged is not None:
            own |= {"sweep": _boolean, "retention_days": days_by_type}
        found[table] = {**own, **found.get(table, {})}
    return found


def read_settings(
    top: Table, name: str, settings: AllSettings, into: dict[tuple[str, str], object]
) -> None:
    """One table of a file."""
    *outer, last = name.split(".")
    home: Table | None = top
    for part in outer:
        # A wrong type of [memory] is reported once, at [memory] itself.
        home = home.table(part) if home and isinstance(home.values.get(part), dict) else None
    table = None if home is None else home.table(last)
    if table is None:
        return
    inner = [other.rpartition(".")[2] for other in settings if other.startswith(f"{name}.")]
    readers = settings[name]
    for key in table.values:
        if name == "limits" and key in SERVER_LIMITS:
            table.wrong(key, f"{key} belongs in [limits] of rookery.toml")
        elif key not in readers and key not in inner:
            table.wrong(key, f'unknown key "{key}" in [{name}]{nearest(key, [*readers, *inner])}')
        elif key in readers:
            value = readers[key](table, key)
            if value is not None:
                into[name, key] = value


def people_of(
    settings: Settings,
    relay: str,
    banned: Sequence[ListedKey],
    allowed: Sequence[ListedKey],
    faults: list[Fault],
) -> Actors:
    """`banned`, `allowed`: the keys of the files that the settings name."""
    owners = settings.get(("actors", "owners"), frozenset())
    for listed in banned:
        if listed.pubkey in owners or listed.pubkey == relay:
            whose = "the relay's own" if listed.pubkey == relay else "an owner's"
            faults.append(Fault(listed.file, listed.line, f"this key is {whose}: no ban on it"))
    for listed in banned[MAX_ENTRIES:][:1]:
        text = f"{len(banned)} keys are banned in files, at most {MAX_ENTRIES} may be"
        faults.append(Fault(listed.file, listed.line, text))
    return Actors(
        owners=owners,
        allowed=frozenset([listed.pubkey for listed in allowed]),
        banned=frozenset([listed.pubkey for listed in banned]),
        agents=settings.get(("actors", "agents"), frozenset()),
        agent_role=settings["actors", "agent_role"],
        households=settings.get(("actors", "household"), ()),
        relay=relay,
        attestations=settings["members", "attestations"],
    )


def paths_of(settings: Settings, home: Path) -> tuple[str, ...]:
    """The files of keys that the settings name."""
    return tuple(
        [
            str(home / file.path)
            for table in ("bans", "allow")
            for file in settings.get((table, "files"), ())
        ]
    )


def limits_of(settings: Settings) -> Limits:
    return Limits(**{key: settings["limits", key] for key in SETTINGS["limits"]})


def searched_of(settings: Settings) -> KindSet:
    """Kinds that a search may find; absent: all."""
    found: KindSet = settings.get(("search", "kinds"), ALL_KINDS)
    return found


def groups_of(settings: Settings) -> GroupSettings:
    return GroupSettings(
        always=settings["groups", "always"],
        new=settings["groups", "new"],
        create=settings["groups", "create"],
        joins=settings["groups", "joins"],
        invite_uses=settings["groups", "invite_uses"],
        derived=settings["groups", "derived"],
        late_s=settings["groups", "late"],
        previous=settings["groups", "previous"],
        foreign_h=settings["groups", "foreign_h"],
        compat=settings["groups", "compat"],
    )


def members_of(settings: Settings) -> MemberSettings:
    own = SETTINGS["members"].keys() - {"attestations"}
    return MemberSettings(**{key: settings["members", key] for key in own})


def memory_of(settings: Settings, systems: MemorySystems) -> Memory:
    general = settings["memory", "schema"]
    return Memory(
        schemas={
            name: settings.get((f"memory.{name}", "schema"), general) for name in systems.by_name
        },
        owner_annotations=settings["memory", "owner_annotations"],
        tie=settings["memory.aman", "tie"],
        ts_rule=settings["memory.aman", "ts_rule"],
        verify_hash=settings["memory.aman", "verify_hash"],
        anonymous_read=settings["memory.aman", "anonymous_read"],
        envelope_keys=settings["memory.envelopes", "keys"],
        vouchers=settings["memory.anamnesis", "vouchers"],
        max_chars=settings["memory.anamnesis", "max_chars"],
        max_bytes=settings["memory.anamnesis", "max_bytes"],
        created_at_upper=settings["limits", "created_at_upper"],
        reject_patterns=settings.get(("memory", "reject_patterns")),
    )
