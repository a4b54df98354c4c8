"""TOML files → PolicySet. All faults at once, each with its line and the nearest word.

Order: packaged defaults, then the folder's files by name, each after what it includes. A later rule
of the same name takes the earlier one's place, tables are merged key by key, lists are replaced.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import lru_cache, partial
from os.path import isfile
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final

from policies.definitions import (
    RetentionDefinition,
    RuleDefinition,
    named,
    retention_from,
    rule_from,
)
from policies.engine import PolicySet
from policies.key_files import listed_keys
from policies.plugins.definition import PluginDefinition, plugin_from
from policies.retention import RetentionEffect, sweep_rules
from policies.rules.memory import tuned_read, tuned_write
from policies.settings import SERVER_TABLES
from policies.tables import (
    groups_of,
    limits_of,
    members_of,
    memory_of,
    paths_of,
    people_of,
    read_settings,
    searched_of,
    settings_with,
)
from relay.errors import ConfigFaults, Fault
from relay.files import content_of
from relay.lifecycle.versions import HistoryRules, KeepRules
from relay.toml.fields import Source, Table, nearest
from relay.toml.lines import lines_of
from relay.toml.parsing import no_text, values_in

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from policies.write_rule import Place
    from relay.access.read_rules import ReadRule
    from relay.memory.registry import MemorySystems

HOME: Final = Path(__file__).parent
DEFAULTS: Final = HOME / "defaults"
INCLUDED: Final = HOME / "included"
PRESETS: Final = HOME / "presets"
KNOWN_WRITE: Final = "known people write"
"""The rule that distinguishes the presets: on in "group", off in "open"."""

_MAX_DEPTH: Final = 32
"""Of files that include others."""
_ARRAYS: Final = ("include", "rule", "retention", "plugin")

_Definition = RuleDefinition | RetentionDefinition | PluginDefinition


@dataclass(slots=True)
class _File:
    source: Source
    settings: dict[tuple[str, str], object] = field(default_factory=dict)
    rules: list[RuleDefinition] = field(default_factory=list)
    keeps: list[RetentionDefinition] = field(default_factory=list)
    plugins: list[PluginDefinition] = field(default_factory=list)
    includes: list[tuple[str, int]] = field(default_factory=list)
    """(name, line)."""
    is_empty: bool = False

    def of_kind(self, kind: str) -> Sequence[_Definition]:
        by_kind: dict[str, Sequence[_Definition]] = {
            "rule": self.rules,
            "retention": self.keeps,
            "plugin": self.plugins,
        }
        return by_kind[kind]


def values_of(
    path: Path, name: str, faults: list[Fault], raw: bytes | None = None
) -> tuple[str, dict[str, Any]] | None:
    """Text and values of a TOML file; None if it has faults, which are recorded. `raw`: its
    content, if given."""
    try:
        raw = content_of(path) if raw is None else raw
    except OSError as wrong:
        faults.append(Fault(name, 0, f"cannot be read: {wrong.strerror or wrong}"))
        return None
    try:
        text = raw.decode("utf-8-sig")
        return text, values_in(text, name)
    except UnicodeDecodeError as wrong:
        faults.append(no_text(wrong, name))
    except ConfigFaults as wrong:
        faults += wrong.faults
    return None


def _file(
    path: Path,
    name: str,
    faults: list[Fault],
    systems: MemorySystems,
    raw: bytes | None = None,
    *,
    packaged: bool,
) -> _File | None:
    read = values_of(path, name, faults, raw)
    if read is None:
        return None
    text, values = read
    source = Source(name, lines_of(text), faults, packaged)
    top = Table(source, (), values)
    file = _File(source, is_empty=not text)
    settings = settings_with(systems)
    known = (*_ARRAYS, *(table for table in settings if "." not in table))
    for key in values:
        if key in SERVER_TABLES:
            top.wrong(key, f"[{key}] belongs in rookery.toml")
        elif key not in known:
            top.wrong(key, f'unknown key "{key}" in this file{nearest(key, known)}')
    for table_name in settings:
        read_settings(top, table_name, settings, file.settings)
    for number, include in enumerate(top.strings("include") or ()):
        file.includes.append((include, source.line(("include", number))))
    file.rules = named(_tables_of(top, "rule"), partial(rule_from, systems=systems))
    file.keeps = named(_tables_of(top, "retention"), partial(retention_from, systems=systems))
    file.plugins = named(_tables_of(top, "plugin"), plugin_from)
    return file


def _packaged_file(
    path: Path, name: str, faults: list[Fault], systems: MemorySystems
) -> _File | None:
    try:
        raw = path.read_bytes()
    except OSError:
        return _file(path, name, faults, systems, packaged=True)
    file, wrong = _parsed(path, name, systems, raw)
    faults += wrong
    return file


@lru_cache(maxsize=32)
def _parsed(
    path: Path, name: str, systems: MemorySystems, raw: bytes
) -> tuple[_File | None, tuple[Fault, ...]]:
    """A packaged file and its faults. Cached: a `_File` never changes, and packaged files are most
    of a load."""
    faults: list[Fault] = []
    file = _file(path, name, faults, systems, raw, packaged=True)
    return file, tuple(faults)


def _tables_of(top: Table, key: str) -> Sequence[Table]:
    if isinstance(top.values.get(key), dict):
        top.wrong(key, f"write [[{key}]] with two brackets: there can be several")
        return ()
    return top.tables(key)


# -- all files ----------------------------------------------------------------------------------


@dataclass(slots=True)
class _Reading:
    """The files of one load, in the order in which they count."""

    systems: MemorySystems
    edited: Mapping[Path, bytes]
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
        if packaged:
            file = _packaged_file(path, name, self.faults, self.systems)
        else:
            raw = self.edited.get(path)
            file = _file(path, name, self.faults, self.systems, raw, packaged=False)
        if file is not None:
            for include, line in file.includes:
                self.include(include, Fault(name, line, ""), folder)
            self.files.append(file)
        self.open.pop()

    def include(self, include: str, at: Fault, folder: Path) -> None:
        found = _included(include, folder)
        if found is None:
            known = [path.stem for path in [*_files_of(INCLUDED), *_files_of(folder)]]
            text = f'include "{include}": no such file here or packaged{nearest(include, known)}'
            self.faults.append(replace(at, text=text))
        elif len(self.open) > _MAX_DEPTH:
            text = f'include "{include}": more than {_MAX_DEPTH} files include each other in a row'
            self.faults.append(replace(at, text=text))
        elif found in self.open:
            chain = " includes ".join([path.name for path in [*self.open, found]])
            self.faults.append(replace(at, text=f"files include each other: {chain}"))
        else:
            self.read(found, str(found), packaged=False, folder=folder)


def _included(name: str, folder: Path) -> Path | None:
    """A packaged file or one beside the including files; by name, never out of the folder."""
    wanted = Path(name if name.endswith(".toml") else f"{name}.toml")
    if wanted.is_absolute() or ".." in wanted.parts:
        return None
    for home in (INCLUDED, folder):
        if isfile(home / wanted):  # Path.is_file raises for a name that no file can have
            return home / wanted
    return None


def _files_of(folder: Path) -> list[Path]:
    """Policy files in name order; an editor's leftovers begin with a dot."""
    return sorted(path for path in folder.glob("*.toml") if not path.name.startswith("."))


def load(
    folder: str | Path,
    systems: MemorySystems,
    relay: str = "",
    edited: Mapping[Path, bytes] = MappingProxyType({}),
) -> PolicySet:
    """The packaged defaults and the folder's files as one set. Raises ConfigFaults with all faults.

    `systems`: the memory systems that a `schema` may name. `relay`: the relay's own key, which
    reads as an owner. `edited`: contents that replace those of files in the folder.
    """
    home = Path(folder)
    reading = _Reading(systems, edited)
    for path in _files_of(DEFAULTS):
        reading.read(path, f"packaged/{path.name}", packaged=True, folder=home)
    if home.is_dir():
        new = (path for path in edited if path.parent == home and path.suffix == ".toml")
        for path in sorted({*_files_of(home), *new}):
            reading.read(path, str(path), packaged=False, folder=home)
    else:
        reading.faults.append(Fault(str(home), 0, "no such folder"))
    found = _merged(reading, relay, home)
    if reading.faults or found is None:
        raise ConfigFaults(_sorted(reading.faults))
    return found


def _sorted(faults: Sequence[Fault]) -> list[Fault]:
    """Each fault once, file by file as they were read, in each by line."""
    unique = list(dict.fromkeys(faults))
    order = {name: number for number, name in enumerate(dict.fromkeys(f.file for f in unique))}
    return sorted(unique, key=lambda fault: (order[fault.file], fault.line))


def _in_place(
    files: Sequence[_File], kind: str, faults: list[Fault], notes: list[Fault]
) -> Iterator[Any]:
    """The rules in force: a later one takes the place of the earlier one of its name."""
    found: dict[str, Any] = {}
    for file in files:
        for rule in file.of_kind(kind):
            name, before = rule.place.name, found.get(rule.place.name)
            if before is not None and getattr(before, "fixed", False):
                faults.append(
                    Fault(
                        rule.place.file,
                        rule.place.line,
                        f'"{name}" is fixed: how groups, gift wraps, encrypted messages and remote '
                        "signing are read is no setting",
                    )
                )
            elif rule.is_switch:
                if before is None:
                    faults.append(
                        Fault(
                            rule.place.file,
                            rule.place.line,
                            f'there is no earlier {kind} "{name}" to switch{nearest(name, found)}',
                        )
                    )
                    continue
                if _is_news(before) and before.enabled and not rule.enabled:
                    notes.append(_note(rule, f'switches off the packaged {kind} "{name}"'))
                found[name] = replace(before, enabled=rule.enabled)
            else:
                if before is not None and _is_news(before) and not rule.packaged:
                    notes.append(_note(rule, f'replaces the packaged {kind} "{name}"'))
                found[name] = rule
    return iter([rule for rule in found.values() if rule.enabled])


def _second_steps(rules: Sequence[RuleDefinition]) -> Iterator[Fault]:
    """Targets whose rows have targets themselves: readers of a row would depend on a chain of
    rows."""
    for rule in rules:
        target = None if rule.read is None else rule.read.effective_target
        if target is None:
            continue
        for other in rules:
            if other.read is None or other.read.effective_target is None:
                continue
            kinds = other.read.match.kinds
            met = sorted(kind for kind in target.kinds if kinds is None or kind in kinds)
            if met:
                at = (other if rule.packaged else rule).place
                yield Fault(
                    at.file,
                    at.line,
                    f'the target of "{rule.place.name}" leads to kind {met[0]}, and '
                    f'"{other.place.name}", which is about that kind, has a target too: one step '
                    "is all there is",
                )


def _note(rule: _Definition, text: str) -> Fault:
    return Fault(rule.place.file, rule.place.line, text)


def _is_news(before: _Definition) -> bool:
    """Whether the admin should be told that a file changes this; not of presets, which are meant
    to."""
    return before.packaged and before.place.name != KNOWN_WRITE


def _merged(reading: _Reading, relay: str, home: Path) -> PolicySet | None:
    files, faults, systems = reading.files, reading.faults, reading.systems
    settings: dict[tuple[str, str], Any] = {}
    for file in files:
        settings.update(file.settings)
    notes = [Fault(file.source.name, 0, "is empty") for file in files if file.is_empty]
    rules = list(_in_place(files, "rule", faults, notes))
    keeps = list(_in_place(files, "retention", faults, notes))
    plugins = list(_in_place(files, "plugin", faults, notes))
    faults.extend(_second_steps(rules))
    banned = listed_keys(settings.get(("bans", "files"), ()), home, faults)
    allowed = listed_keys(settings.get(("allow", "files"), ()), home, faults)
    actors = people_of(settings, relay, banned, allowed, faults)
    if faults:
        return None
    keeps = [keep.among(actors) for keep in keeps]
    memory = memory_of(settings, systems)
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
        actors=actors,
        keep=KeepRules(
            [keep.rule for keep in keeps if keep.rule is not None],
            tie=memory.tie,
            history=HistoryRules(
                tuple([keep.history for keep in keeps if keep.history is not None])
            ),
        ),
        read_rules=tuple(read_rules),
        write_rules=tuple(write_rules),
        groups=groups_of(settings),
        members=members_of(settings),
        limits=limits_of(settings),
        memory=memory,
        systems=systems,
        auth_writes=settings["auth", "writes"],
        banned_rows=settings["bans", "stored"],
        searched=searched_of(settings),
        trusted_readers=settings.get(("actors", "trusted_readers"), ()),
        plugins=tuple([each.plugin for each in plugins if each.plugin is not None]),
        read_places=tuple(read_places),
        retention_effects=tuple(
            [(keep.place, keep.effect) for keep in keeps if keep.effect != RetentionEffect()]
        ),
        sweeps=sweep_rules([keep.effect for keep in keeps], settings, systems),
        keep_places=tuple([keep.place for keep in keeps if keep.rule is not None]),
        files=tuple([file.source.name for file in files]),
        key_files=paths_of(settings, home),
        notes=tuple(notes),
    )
