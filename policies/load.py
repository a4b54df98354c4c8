"""TOML files → PolicySet. All faults at once, each with its line and the nearest word.

Order: packaged defaults, then the folder's files by name, each after what it includes. A later rule
of the same name takes the earlier one's place, tables are merged key by key, lists are replaced.
"""

from __future__ import annotations

import re
import tomllib
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from policies.conditions import (
    EVERYTHING,
    READERS,
    WRITERS,
    condition_from,
    match_of_readable,
    match_of_rows,
)
from policies.engine import Place, PolicySet, WriteRule
from policies.fields import Source, Table, nearest
from policies.lines import lines_of
from policies.rules.memory import tuned_read, tuned_write
from policies.rules.people import CODED
from policies.settings import (
    SERVER_LIMITS,
    SERVER_TABLES,
    AnonymousRead,
    AuthWrites,
    Limits,
    Memory,
    SchemaMode,
    System,
    Tie,
    TsRule,
    Vouchers,
)
from relay.errors import ConfigFaults, Fault
from relay.groups.group import Flag
from relay.groups.ruling import GroupSettings, Joins
from relay.nostr.event import is_hex64
from relay.retention import Keep, KeepRule, KeepRules
from relay.verdict import Who
from relay.visibility import Household, Match, People, ReadRule

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    Reader = Callable[[Table, str], object]

HOME: Final = Path(__file__).parent
DEFAULTS: Final = HOME / "defaults"
INCLUDED: Final = HOME / "included"
PRESETS: Final = HOME / "presets"
KNOWN_WRITE: Final = "known people write"
"""The rule that makes a preset: on in "group", off in "open"."""


# -- settings -----------------------------------------------------------------------------------


def _later(reader: Reader, *accepted: object) -> Reader:
    """A setting of a later version: checked, and taken as long as it asks for nothing new."""

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
    found = []
    for home in table.tables(key):
        home.refuse_unknown(("name", "owner", "agents"))
        for needed in ("name", "owner"):
            if not home.has(needed):
                home.wrong(needed, f"a household needs {needed}")
        name, owners, agents = home.text("name"), home.keys("owner"), home.keys("agents")
        if name is not None and owners is not None:
            found.append(Household(name, owners, agents or frozenset()))
    return tuple(found)


def _creators(table: Table, key: str) -> frozenset[Who] | None:
    return _who_words(table, key, WRITERS, "for writing")


def _joins(table: Table, key: str) -> Joins | None:
    value = table.text(key)
    words = {word.name.lower(): word for word in Joins}
    if value is not None and value not in words:
        table.wrong(key, f"{key} cannot be {value!r}{nearest(value, words)}")
    return words.get(value or "")


def _pair(table: Table, key: str) -> object:
    """A table of a later version."""
    return None if table.table(key) is None else table.values[key]


def _any_list(table: Table, key: str) -> object:
    values = table.strings(key)
    return None if values is None else list(values)


def _searchable(table: Table, key: str) -> object:
    return "all" if table.values.get(key) == "all" else table.kinds(key)


def _text(table: Table, key: str) -> object:
    return table.text(key)


def _boolean(table: Table, key: str) -> object:
    return table.boolean(key)


def _count(table: Table, key: str) -> object:
    return table.integer(key)


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
        "create": _creators,
        "joins": _joins,
        "invite_uses": _at_least_one,
        "late": _count,
        "previous": _count,
    },
    "auth": {"writes": lambda table, key: table.choice(key, AuthWrites)},
    "limits": {
        "created_at_upper": _count,
        "created_at_lower": _count,
        "max_content_length": _count,
        "max_event_tags": _count,
        "min_pow_difficulty": _count,
    },
    "search": {"kinds": _later(_searchable, "all")},
    "bans": {"files": _later(_any_list, []), "stored": _later(_text, "hide")},
    "allow": {"files": _later(_any_list, [])},
    "memory": {
        "owner_annotations": _boolean,
        "schema": _schema,
        "versions": _later(_count, 0, 20),
        "reject_patterns": _later(_any_list, []),
    },
    "memory.aman": {
        "schema": _schema,
        "tie": lambda table, key: table.choice(key, Tie),
        "ts_rule": lambda table, key: table.choice(key, TsRule),
        "verify_hash": _boolean,
        "anonymous_read": lambda table, key: table.choice(key, AnonymousRead),
    },
    "memory.transcripts": {"schema": _schema},
    "memory.snowclaw": {"schema": _schema},
    "memory.nmem": {
        "schema": _schema,
        "sweep": _later(_boolean, True, False),  # noqa: FBT003
        "retention_days": _later(_pair, {}),
    },
    "memory.anamnesis": {
        "schema": _schema,
        "max_chars": _later(_count, 10_000),
        "max_bytes": _later(_count, 0),
        "vouchers": lambda table, key: table.choice(key, Vouchers),
    },
    "memory.envelopes": {"keys": _keys},
}
"""Every setting of DESIGN §10 "P" beside rules: table → key → how it is read."""

RULE_KEYS: Final = (
    "name", "enabled", "match", "except", "write", "read", "only_by", "target", "require",
    "schema", "content", "rate", "quota", "pow", "reject",
)  # fmt: skip
RETENTION_KEYS: Final = (
    "name", "enabled", "match", "keep", "days", "count", "bytes", "never", "never_before",
)  # fmt: skip
PLUGIN_KEYS: Final = ("name", "run", "entry", "deadline_ms")
_PACKAGED_RULE_KEYS: Final = ("fixed", "needs")
_TOP: Final = ("include", "rule", "retention", "plugin", *(
    table for table in SETTINGS if "." not in table
))  # fmt: skip


# -- one file -----------------------------------------------------------------------------------


@dataclass(slots=True)
class _Rule:
    place: Place
    packaged: bool
    fixed: bool = False
    enabled: bool = True
    write: WriteRule | None = None
    read: ReadRule | None = None
    is_switch: bool = False
    """Only a name and `enabled`: switches an earlier rule."""


@dataclass(slots=True)
class _Keep:
    place: Place
    packaged: bool
    enabled: bool = True
    rule: KeepRule | None = None
    is_switch: bool = False


@dataclass(slots=True)
class _File:
    source: Source
    settings: dict[tuple[str, str], object] = field(default_factory=dict)
    rules: list[_Rule] = field(default_factory=list)
    keeps: list[_Keep] = field(default_factory=list)
    includes: list[tuple[str, int]] = field(default_factory=list)
    """(name, line)."""


_AT_LINE: Final = re.compile(r"\s*\(at line (\d+), column \d+\)")


def _values_of(path: Path, name: str, faults: list[Fault]) -> tuple[str, dict[str, Any]] | None:
    try:
        raw = path.read_bytes()
    except OSError as wrong:
        faults.append(Fault(name, 0, f"cannot be read: {wrong.strerror or wrong}"))
        return None
    try:
        text = raw.decode()
        return text, tomllib.loads(text)
    except UnicodeDecodeError as wrong:
        faults.append(Fault(name, raw[: wrong.start].count(b"\n") + 1, "is not UTF-8 text"))
    except tomllib.TOMLDecodeError as wrong:
        found = _AT_LINE.search(str(wrong))
        line = int(found[1]) if found else text.count("\n") + 1
        faults.append(Fault(name, line, f"is not TOML: {_AT_LINE.sub('', str(wrong))}"))
    except RecursionError:
        faults.append(Fault(name, 0, "is not TOML: nested too deep"))
    return None


def _file(path: Path, name: str, faults: list[Fault], *, packaged: bool) -> _File | None:
    read = _values_of(path, name, faults)
    if read is None:
        return None
    text, values = read
    source = Source(name, lines_of(text), faults, packaged)
    top = Table(source, (), values)
    file = _File(source)
    for key in values:
        if key in SERVER_TABLES:
            top.wrong(key, f"[{key}] belongs in rookery.toml")
        elif key not in _TOP:
            top.wrong(key, f'unknown key "{key}" in this file{nearest(key, _TOP)}')
    for table_name in SETTINGS:
        _read_settings(top, table_name, file)
    for number, include in enumerate(top.strings("include") or ()):
        file.includes.append((include, source.line(("include", number))))
    file.rules = _named(_tables_of(top, "rule"), _rule)
    file.keeps = _named(_tables_of(top, "retention"), _retention)
    for plugin in _tables_of(top, "plugin"):
        plugin.refuse_unknown(PLUGIN_KEYS)
        source.fault(plugin.path, "[[plugin]] is not offered by this version")
    return file


def _read_settings(top: Table, name: str, file: _File) -> None:
    table: Table | None = top
    for part in name.split("."):
        # A wrong type of [memory] is told once, at [memory] itself.
        known_wrong = table is not None and not isinstance(table.values.get(part), dict)
        if table is None or (known_wrong and part != name):
            return
        table = table.table(part)
    if table is None:
        return
    inner = [other.rpartition(".")[2] for other in SETTINGS if other.startswith(f"{name}.")]
    readers = SETTINGS[name]
    for key in table.values:
        if name == "limits" and key in SERVER_LIMITS:
            table.wrong(key, f"{key} belongs in [limits] of rookery.toml")
        elif key not in readers and key not in inner:
            table.wrong(key, f'unknown key "{key}" in [{name}]{nearest(key, [*readers, *inner])}')
        elif key in readers:
            value = readers[key](table, key)
            if value is not None:
                file.settings[name, key] = value


def _tables_of(top: Table, key: str) -> Sequence[Table]:
    if isinstance(top.values.get(key), dict):
        top.wrong(key, f"write [[{key}]] with two brackets: there can be several")
        return ()
    return top.tables(key)


def _named(tables: Sequence[Table], read: Callable[[Table, str], Any]) -> list[Any]:
    """Each table read under its name; a name twice in one file is a fault."""
    seen: dict[str, int] = {}
    found = []
    for table in tables:
        name = table.text("name")
        if name is None:
            if not table.has("name"):
                table.wrong("name", f"{table.label} needs a name")
            name = ""
        elif name in seen:
            table.wrong("name", f'"{name}" stands twice in this file, first in line {seen[name]}')
        seen.setdefault(name, table.line)
        found.append(read(table, name))
    return found


def _place(table: Table, name: str) -> Place:
    return Place(name, table.source.name, table.line)


def _rule(table: Table, name: str) -> _Rule:
    packaged = table.source.packaged
    known = (*RULE_KEYS, *_PACKAGED_RULE_KEYS) if packaged else RULE_KEYS
    table.refuse_unknown(known)
    _rule_parts_of_later_versions(table)
    enabled = table.boolean("enabled")
    rule = _Rule(_place(table, name), packaged, enabled=enabled is not False)
    rule.fixed = packaged and bool(table.boolean("fixed"))
    if not set(table.values) - {"name", "enabled"}:
        rule.is_switch = True
        if enabled is None:
            table.source.fault(table.path, "a rule without enabled, write, read, require, schema "
                                           "or pow does nothing")  # fmt: skip
        return rule
    about_writing = any(table.has(key) for key in ("write", "require", "schema", "pow"))
    if about_writing or (packaged and name in CODED):
        rule.write = _write_rule(table, rule.place)
    if table.has("read"):
        rule.read = _read_rule(table, name)
    elif table.has("only_by"):
        table.wrong("only_by", "only_by is about reading and needs read")
    if rule.write is None and rule.read is None:
        table.source.fault(table.path, "a rule without write, read, require, schema or pow does "
                                       "nothing")  # fmt: skip
    if table.has("reject") and not any(table.has(key) for key in ("write", "require")):
        table.wrong("reject", "reject is what a writer is told; it needs write or require")
    return rule


def _rule_parts_of_later_versions(table: Table) -> None:
    parts = {
        "target": ("kinds", "tag"),
        "content": ("json", "refuse"),
        "rate": ("per", "burst", "per_minute"),
        "quota": ("per", "events", "bytes"),
    }
    for key, known in parts.items():
        part = table.table(key)
        if part is not None:
            part.refuse_unknown(known)
            table.not_offered(key)


def _write_rule(table: Table, place: Place) -> WriteRule:
    match = table.table("match")
    schema = table.text("schema")
    systems = {system.value: system for system in System}
    if schema is not None and schema not in (*systems, "off"):
        table.wrong(
            "schema", f'unknown memory system "{schema}" in schema'
                      f'{nearest(schema, [*systems, "off"])}'
        )  # fmt: skip
    bits = table.integer("pow", 1)
    if bits is not None and bits > 256:
        table.wrong("pow", "pow must be a whole number of bits from 1 to 256")
    return WriteRule(
        place,
        EVERYTHING if match is None else condition_from(match),
        tuple([condition_from(other) for other in table.tables("except")]),
        _who_words(table, "write", WRITERS, "for writing"),
        tuple(table.strings("require") or ()),
        systems.get(schema or ""),
        bits or 0,
        table.text("reject"),
    )


def _read_rule(table: Table, name: str) -> ReadRule:
    match = table.table("match")
    words = list(table.strings("read") or ())
    tags = tuple([word.removeprefix("tag:") for word in words if word.startswith("tag:")])
    for tag in tags:
        letter = len(tag) == 1 and tag.isascii() and tag.isalpha()
        if not letter and tag != "scope":
            table.wrong("read", f'the readers "tag:{tag}" are not offered by this version; '
                                "offered: tag: and a single letter, tag:scope")  # fmt: skip
    rule = ReadRule(
        name,
        Match() if match is None else match_of_readable(match),
        _who_words(table, "read", READERS, "for reading") or frozenset(),
        tuple([match_of_readable(other) for other in table.tables("except")]),
        tags,
        _only_by(table),
    )
    needs = table.text("needs") if table.source.packaged else None
    return rule if needs is None else replace(rule, needs=needs)


def _only_by(table: Table) -> frozenset[str] | None:
    keys = table.strings("only_by")
    if keys is None:
        return None
    for number, key in enumerate(keys):
        tag = key[:1] == "#" and len(key) == 2 and key[1].isascii() and key[1].isalpha()
        if key not in ("authors", "ids") and not tag:
            table.wrong_item(
                "only_by", number,
                f'only_by cannot name "{key}"{nearest(key, ("authors", "ids", "#p", "#e"))}',
            )  # fmt: skip
    return frozenset(keys)


def _who_words(
    table: Table, key: str, offered: Sequence[Who], what_for: str
) -> frozenset[Who] | None:
    values = table.strings(key)
    if values is None:
        return None
    if not values:
        table.wrong(key, f'{key} is empty; say ["nobody"] if nobody is meant')
    words = {word.value: word for word in offered}
    every = {word.value for word in Who}
    found = set()
    for number, value in enumerate(values):
        if value in words:
            found.add(words[value])
        elif value == Who.TARGET.value:
            table.wrong_item(key, number, '"target" is not offered by this version')
        elif value.startswith("tag:") and offered is READERS:
            continue
        elif value in every or value.startswith("tag:"):
            table.wrong_item(
                key, number,
                f'"{value}" is no word {what_for}; {key} takes {", ".join(words)}',
            )  # fmt: skip
        elif value[:5] in ("npub1", "nsec1") or is_hex64(value):
            table.wrong_item(key, number, f"{key} takes who-words, not keys: {', '.join(words)}")
        else:
            table.wrong_item(
                key, number, f'unknown who-word "{value}" in {key}{nearest(value, words)}'
            )
    return frozenset(found)


def _retention(table: Table, name: str) -> _Keep:
    table.refuse_unknown(RETENTION_KEYS)
    enabled = table.boolean("enabled")
    keep = _Keep(_place(table, name), table.source.packaged, enabled=enabled is not False)
    for key in ("days", "bytes"):
        if table.integer(key, 1) is not None:
            table.not_offered(key)
    count = table.table("count")
    if count is not None:
        count.refuse_unknown(("per", "max"))
        table.not_offered("count")
    table.boolean("never")
    held = table.table("never_before")
    if held is not None:
        held.refuse_unknown(("kinds", "same", "up_to"))
        held.kinds("kinds")
        held.strings("same")
        held.text("up_to")
    if not set(table.values) - {"name", "enabled"}:
        keep.is_switch = True
        if enabled is None:
            table.source.fault(table.path, "a retention rule without enabled, keep, days, count, "
                                           "bytes or never does nothing")  # fmt: skip
        return keep
    match = table.table("match")
    rows = Match() if match is None else match_of_rows(match)
    how = table.choice("keep", Keep)
    keep.rule = None if how is None else KeepRule(name, rows, how)
    return keep


# -- all files ----------------------------------------------------------------------------------


@dataclass(slots=True)
class _Reading:
    """The files of one load, in the order in which they count."""

    faults: list[Fault] = field(default_factory=list)
    files: list[_File] = field(default_factory=list)
    done: set[Path] = field(default_factory=set)
    open: list[Path] = field(default_factory=list)

    def read(self, path: Path, name: str, *, packaged: bool, folder: Path) -> None:
        """The file after all that it includes; each file once."""
        if path in self.done:
            return
        self.done.add(path)
        self.open.append(path)
        file = _file(path, name, self.faults, packaged=packaged)
        if file is not None:
            for include, line in file.includes:
                self.include(include, Fault(name, line, ""), folder)
            self.files.append(file)
        self.open.pop()

    def include(self, include: str, at: Fault, folder: Path) -> None:
        found = _included(include, folder)
        if found is None:
            known = [path.stem for path in [*_files_of(INCLUDED), *_files_of(folder)]]
            text = f'include "{include}": no such file{nearest(include, known)}'
            if include in _LATER_INCLUDES:
                text = f'include "{include}" is not offered by this version'
            self.faults.append(replace(at, text=text))
        elif found in self.open:
            chain = " includes ".join([path.name for path in [*self.open, found]])
            self.faults.append(replace(at, text=f"files include each other: {chain}"))
        else:
            self.read(found, str(found), packaged=False, folder=folder)


_LATER_INCLUDES: Final = ("aman-app",)


def _included(name: str, folder: Path) -> Path | None:
    """A packaged file or one beside the including files; by name, never out of the folder."""
    wanted = Path(name if name.endswith(".toml") else f"{name}.toml")
    if wanted.is_absolute() or ".." in wanted.parts:
        return None
    for home in (INCLUDED, folder):
        if (home / wanted).is_file():
            return home / wanted
    return None


def _files_of(folder: Path) -> list[Path]:
    """Policy files in name order; an editor's leftovers begin with a dot."""
    return sorted(path for path in folder.glob("*.toml") if not path.name.startswith("."))


def load(folder: str | Path, relay: str = "") -> PolicySet:
    """The packaged defaults and the folder's files as one set. Raises ConfigFaults with all faults.

    `relay`: the relay's own key, which reads as an owner.
    """
    home = Path(folder)
    reading = _Reading()
    for path in _files_of(DEFAULTS):
        reading.read(path, f"policies/defaults/{path.name}", packaged=True, folder=home)
    if home.is_dir():
        for path in _files_of(home):
            reading.read(path, str(path), packaged=False, folder=home)
    else:
        reading.faults.append(Fault(str(home), 0, "no such folder"))
    found = _merged(reading.files, reading.faults, relay)
    if reading.faults or found is None:
        raise ConfigFaults(_sorted(reading.faults))
    return found


def _sorted(faults: Sequence[Fault]) -> list[Fault]:
    """Each fault once, file by file as they were read, in each by line."""
    unique = list(dict.fromkeys(faults))
    order = {name: number for number, name in enumerate(dict.fromkeys(f.file for f in unique))}
    return sorted(unique, key=lambda fault: (order[fault.file], fault.line))


def _in_place(
    files: Sequence[_File], kind: str, faults: list[Fault], notes: list[str]
) -> Iterator[Any]:
    """The rules in force: a later one stands where the earlier one of its name stood."""
    found: dict[str, Any] = {}
    for file in files:
        for rule in file.rules if kind == "rule" else file.keeps:
            name, before = rule.place.name, found.get(rule.place.name)
            where = f"{rule.place.file}:{rule.place.line}"
            if before is not None and getattr(before, "fixed", False):
                faults.append(Fault(
                    rule.place.file, rule.place.line,
                    f'"{name}" is fixed: how groups, gift wraps, encrypted messages and remote '
                    "signing are read is no setting",
                ))  # fmt: skip
            elif rule.is_switch:
                if before is None:
                    faults.append(Fault(
                        rule.place.file, rule.place.line,
                        f'there is no earlier {kind} "{name}" to switch{nearest(name, found)}',
                    ))  # fmt: skip
                    continue
                if _is_news(before) and before.enabled and not rule.enabled:
                    notes.append(f'packaged {kind} "{name}" is switched off in {where}')
                found[name] = replace(before, enabled=rule.enabled)
            else:
                if before is not None and _is_news(before) and not rule.packaged:
                    notes.append(f'packaged {kind} "{name}" is replaced in {where}')
                found[name] = rule
    return iter([rule for rule in found.values() if rule.enabled])


def _is_news(before: _Rule | _Keep) -> bool:
    """Whether an admin should hear that their file changes this; presets are there to do it."""
    return before.packaged and before.place.name != KNOWN_WRITE


def _merged(files: Sequence[_File], faults: list[Fault], relay: str) -> PolicySet | None:
    settings: dict[tuple[str, str], Any] = {}
    for file in files:
        settings.update(file.settings)
    notes: list[str] = []
    rules = list(_in_place(files, "rule", faults, notes))
    keeps = list(_in_place(files, "retention", faults, notes))
    if faults:
        return None
    memory = _memory(settings)
    write_rules = [
        tuned_write(rule.write, memory) if rule.packaged else rule.write
        for rule in rules
        if rule.write is not None
    ]
    read_rules: list[ReadRule] = []
    read_places: list[Place] = []
    for rule in rules:
        if rule.read is not None:
            tuned = tuned_read(rule.read, memory) if rule.packaged else (rule.read,)
            read_rules.extend(tuned)
            read_places.extend([rule.place] * len(tuned))
    return PolicySet(
        people=_people(settings, relay),
        keep=KeepRules(
            [keep.rule for keep in keeps if keep.rule is not None],
            high_tie=memory.tie is Tie.HIGH,
        ),
        read_rules=tuple(read_rules),
        write_rules=tuple(write_rules),
        groups=_groups(settings),
        limits=_limits(settings),
        memory=memory,
        auth_writes=settings["auth", "writes"],
        trusted_readers=settings.get(("actors", "trusted_readers"), ()),
        read_places=tuple(read_places),
        files=tuple([file.source.name for file in files]),
        notes=tuple(notes),
    )


def _people(settings: Mapping[tuple[str, str], Any], relay: str) -> People:
    return People(
        owners=settings.get(("actors", "owners"), frozenset()),
        agents=settings.get(("actors", "agents"), frozenset()),
        agent_role=settings["actors", "agent_role"],
        households=settings.get(("actors", "household"), ()),
        relay=relay,
    )


def _limits(settings: Mapping[tuple[str, str], Any]) -> Limits:
    return Limits(**{key: settings["limits", key] for key in SETTINGS["limits"]})


def _groups(settings: Mapping[tuple[str, str], Any]) -> GroupSettings:
    return GroupSettings(
        always=settings["groups", "always"],
        new=settings["groups", "new"],
        create=settings["groups", "create"],
        joins=settings["groups", "joins"],
        invite_uses=settings["groups", "invite_uses"],
        late_s=settings["groups", "late"],
        previous=settings["groups", "previous"],
    )


def _memory(settings: Mapping[tuple[str, str], Any]) -> Memory:
    general = settings["memory", "schema"]
    return Memory(
        schemas={system: settings.get((f"memory.{system}", "schema"), general)
                 for system in System},
        owner_annotations=settings["memory", "owner_annotations"],
        tie=settings["memory.aman", "tie"],
        ts_rule=settings["memory.aman", "ts_rule"],
        verify_hash=settings["memory.aman", "verify_hash"],
        anonymous_read=settings["memory.aman", "anonymous_read"],
        envelope_keys=settings["memory.envelopes", "keys"],
        vouchers=settings["memory.anamnesis", "vouchers"],
        created_at_upper=settings["limits", "created_at_upper"],
    )  # fmt: skip
