"""`[[plugin]]` of one file: a command or an entry point, checked when the file is read."""

from __future__ import annotations

import os
import shlex
import shutil
from dataclasses import dataclass, field
from importlib.metadata import entry_points
from pathlib import Path
from typing import TYPE_CHECKING, Final, cast

from policies.write_rule import Place
from relay.memory.fence import shell_word
from relay.toml.fields import nearest

if TYPE_CHECKING:
    from policies.plugins.protocol import Rule
    from relay.toml.fields import Table

ENTRY_GROUP: Final = "rookery.rules"
PLUGIN_KEYS: Final = ("name", "enabled", "run", "entry", "deadline_ms")
DEADLINE_MS: Final = 500
_MAX_DEADLINE_MS: Final = 60_000


@dataclass(frozen=True, slots=True)
class Command:
    """`run`: a process that speaks JSON lines."""

    words: tuple[str, ...]
    """The program as a path, then its arguments."""
    folder: str
    """Its working directory: the folder of its policy file."""
    files: tuple[tuple[str, int, int], ...]
    """(path, mtime, size) of the arguments that are files; a change makes it another command."""

    @property
    def paths(self) -> tuple[str, ...]:
        return tuple([path for path, _, _ in self.files])


@dataclass(frozen=True, slots=True)
class Entry:
    """`entry`: a function of an installed package."""

    words: str
    """`package.module:function`."""
    rule: Rule

    @property
    def paths(self) -> tuple[str, ...]:
        """Always empty: an imported function stays until the relay restarts."""
        return ()


@dataclass(frozen=True, slots=True)
class Plugin:
    """One plug-in in force. An equal one is not restarted on reload."""

    place: Place = field(compare=False)
    name: str
    way: Command | Entry
    deadline_ms: int = DEADLINE_MS
    """Deadline for one event."""


@dataclass(slots=True)
class PluginDefinition:
    place: Place
    packaged: bool
    enabled: bool = True
    plugin: Plugin | None = None
    is_switch: bool = False
    """Only a name and `enabled`: switches an earlier plug-in on or off."""


def plugin_from(table: Table, name: str) -> PluginDefinition:
    """The plug-in of the table; each fault is noted with its line."""
    table.refuse_unknown(PLUGIN_KEYS)
    place = Place(name, table.source.name, table.line)
    enabled = table.boolean("enabled") is not False
    found = PluginDefinition(place, table.source.packaged, enabled)
    deadline_ms = table.integer("deadline_ms", 1)
    if deadline_ms is not None and deadline_ms > _MAX_DEADLINE_MS:
        table.wrong("deadline_ms", f"deadline_ms must be at most {_MAX_DEADLINE_MS}")
    if not set(table.values) - {"name", "enabled"} and table.has("enabled"):
        found.is_switch = True
        return found
    if table.has("run") and table.has("entry"):
        table.wrong("entry", "a plug-in has run or entry, not both")
        return found
    way: Command | Entry | None
    if table.has("run"):
        way = _command(table)
    elif table.has("entry"):
        way = _entry(table)
    else:
        table.source.fault(table.path, "a plug-in needs run (a command) or entry (a function)")
        return found
    if way is not None:
        found.plugin = Plugin(place, name, way, deadline_ms or DEADLINE_MS)
    return found


# -- run ------------------------------------------------------------------------------------------


def _command(table: Table) -> Command | None:
    words = _words(table)
    if words is None:
        return None
    if not words or not words[0] or any("\0" in word for word in words):
        table.wrong("run", "run must begin with a program")
        return None
    folder = Path(table.source.name).absolute().parent
    program = _program(words[0], folder)
    if program is None:
        table.wrong("run", f'run: there is no program "{words[0]}" beside this file or in PATH')
        return None
    if not os.access(program, os.X_OK):
        table.wrong("run", f'run: "{words[0]}" is not executable: chmod +x {shell_word(words[0])}')
        return None
    line = (program, *words[1:])
    files = [seen for word in line if (seen := _seen(folder / word)) is not None]
    return Command(line, str(folder), tuple(files))


def _words(table: Table) -> list[str] | None:
    value = table.values["run"]
    if isinstance(value, str):
        try:
            return shlex.split(value)
        except ValueError as wrong:
            table.wrong("run", f"run: {str(wrong).lower()}")
            return None
    words = table.strings("run")
    return None if words is None else list(words)


def _program(word: str, folder: Path) -> str | None:
    """A file beside the policy file, or one found in PATH."""
    beside = folder / word
    if os.path.isfile(beside):  # Path.is_file raises for invalid names
        return str(beside)
    return None if os.sep in word else shutil.which(word)


def _seen(path: Path) -> tuple[str, int, int] | None:
    try:
        found = path.stat()
    except (OSError, ValueError):
        return None
    return (str(path), found.st_mtime_ns, found.st_size) if path.is_file() else None


# -- entry ----------------------------------------------------------------------------------------


def _entry(table: Table) -> Entry | None:
    wanted = table.text("entry")
    if wanted is None:
        return None
    installed = {point.name: point for point in entry_points(group=ENTRY_GROUP)}
    if wanted not in installed:
        hint = (
            nearest(wanted, installed)
            or f"; no installed package offers an entry point in {ENTRY_GROUP}"
        )
        table.wrong("entry", f'entry: there is no "{wanted}"{hint}')
        return None
    point = installed[wanted]
    try:
        rule: object = point.load()
    except (Exception, SystemExit) as wrong:  # foreign code  # noqa: BLE001
        error = f"{type(wrong).__name__}: {wrong}"
        table.wrong("entry", f'entry: "{wanted}" cannot be imported: {error}')
        return None
    if not callable(rule):
        table.wrong("entry", f'entry: "{wanted}" ({point.value}) is not a function')
        return None
    return Entry(point.value, cast("Rule", rule))
