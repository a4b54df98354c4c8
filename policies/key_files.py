"""`[bans] files` and `[allow] files`: files of keys beside the policy files.

One key a line, npub or hex; what follows a `#` is a comment, without control characters. They are
read with the policies, so one invalid line keeps the whole old set in force.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from os.path import isfile
from pathlib import Path
from typing import TYPE_CHECKING, Final

from relay.errors import Fault, Invalid
from relay.nostr.keys import public_key
from relay.toml.parsing import no_text

if TYPE_CHECKING:
    from collections.abc import Iterable

    from relay.toml.fields import Table

_MAX_BYTES: Final = 16 << 20
_TOLD: Final = 20
"""Invalid lines of one file that are reported one by one."""
_CONTROL: Final = re.compile(
    "\r(?!\n)|[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\N{LINE SEPARATOR}\N{PARAGRAPH SEPARATOR}]"
)
"""Some of them end a line for other programs and not here, or hide text on a terminal."""
_NO_KEY: Final = "not a public key: an npub or 64 hex characters are needed"


@dataclass(frozen=True, slots=True)
class KeyFile:
    """A file of keys, and the line of the policy file that names it."""

    path: str
    named_in: str
    line: int


@dataclass(frozen=True, slots=True)
class ListedKey:
    """A key with its file and line."""

    pubkey: str
    file: str
    line: int


def key_files_from(table: Table, key: str) -> tuple[KeyFile, ...] | None:
    """The files of a list; read later, when all policy files are merged."""
    names = table.strings(key)
    if names is None:
        return None
    return tuple(
        [
            KeyFile(name, table.source.name, table.source.line((*table.path, key, number)))
            for number, name in enumerate(names)
        ]
    )


def listed_keys(
    files: Iterable[KeyFile], folder: Path, faults: list[Fault]
) -> tuple[ListedKey, ...]:
    """All keys of the files, each once; errors are added to `faults`."""
    found: dict[str, ListedKey] = {}
    for file in files:
        for listed in _read(file, folder, faults):
            found.setdefault(listed.pubkey, listed)
    return tuple(found.values())


def _read(file: KeyFile, folder: Path, faults: list[Fault]) -> list[ListedKey]:
    wanted = Path(file.path)
    path = folder / wanted
    if wanted.is_absolute() or ".." in wanted.parts:
        faults.append(_at(file, "is outside the folder of the policies; copy or link it there"))
        return []
    try:
        if not isfile(path):  # a pipe too: reading it might never end
            faults.append(_at(file, "there is no such file in the folder of the policies"))
            return []
        with path.open("rb") as stream:
            raw = stream.read(_MAX_BYTES + 1)
    except OSError as wrong:
        faults.append(_at(file, f"cannot be read: {wrong.strerror or wrong}"))
        return []
    if len(raw) > _MAX_BYTES:
        faults.append(_at(file, f"has more than {_MAX_BYTES >> 20} MiB"))
        return []
    return _keys(raw, str(path), faults)


def _at(file: KeyFile, text: str) -> Fault:
    return Fault(file.named_in, file.line, f'files: "{file.path}" {text}')


def _keys(raw: bytes, name: str, faults: list[Fault]) -> list[ListedKey]:
    try:
        text = raw.decode("utf-8-sig")
    except UnicodeDecodeError as wrong:
        faults.append(no_text(wrong, name))
        return []
    control = _CONTROL.search(text)
    if control is not None:
        where = text.count("\n", 0, control.start()) + 1
        why = f"has the control character U+{ord(control[0]):04X}: only LF and CR LF end a line"
        faults.append(Fault(name, where, why))
        return []
    found = []
    wrongs: list[Fault] = []
    for number, content in enumerate(text.split("\n"), 1):
        value = content.partition("#")[0].strip()
        if not value:
            continue
        if value.lower().startswith("nsec"):
            # The key is never repeated: the fault goes to logs and screens.
            wrongs.append(
                Fault(
                    name,
                    number,
                    "this is a secret key (nsec); remove it from this "
                    "file and use the public key (npub)",
                )
            )
            continue
        try:
            found.append(ListedKey(public_key(value), name, number))
        except Invalid:
            # The value is not repeated either: the file may be none of keys.
            wrongs.append(Fault(name, number, _NO_KEY))
    faults.extend(wrongs[:_TOLD])
    if len(wrongs) > _TOLD:
        faults.append(Fault(name, wrongs[_TOLD].line, f"{len(wrongs) - _TOLD} more invalid lines"))
    return found
