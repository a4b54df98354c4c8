"""Files of Anamnesis entries: documents, one per line.

Blocks; imports read line by line, so files may be larger than memory.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from relay.files import atomic_file
from relay.memory.anamnesis.checks import entry_faults, time_in
from relay.memory.anamnesis.records import entry_in
from relay.memory.check_options import MAX_CHARS
from relay.memory.fields import storable_object

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator
    from pathlib import Path

    from relay.memory.anamnesis.records import Entry

BEFORE_1970: Final = "timestamp is before 1970, which events cannot represent"
_LONGEST: Final = 1 << 20
"""Bytes of a line; larger than any event our relay accepts."""


@dataclass(frozen=True, slots=True)
class Line:
    number: int
    entry: Entry

    @property
    def has_claims(self) -> bool:
        """Whether it contains vouchers or a successor."""
        return bool(self.entry.claimed_vouchers or self.entry.claimed_successor)


@dataclass(frozen=True, slots=True)
class Unusable:
    number: int
    why: str


def entries_in(path: Path, progress: Callable[[int, int], None]) -> Iterator[Line | Unusable]:
    """The lines of a file, numbered from 1, without empty ones. Raises OSError.

    `progress` is called with the bytes read and the file size.
    """
    with path.open("rb") as file:
        total, number = os.fstat(file.fileno()).st_size, 0
        while raw := file.readline(_LONGEST + 1):
            number += 1
            is_whole = len(raw) <= _LONGEST
            while not raw.endswith(b"\n") and (rest := file.readline(_LONGEST)):
                raw = rest
            progress(file.tell(), total)
            if not is_whole:
                yield Unusable(number, f"over {_LONGEST >> 20} MiB")
            elif raw.strip():
                yield _read(number, raw)


def _read(number: int, raw: bytes) -> Line | Unusable:
    try:
        fields = storable_object(raw.decode())
    except UnicodeDecodeError:
        fields = None
    if fields is None:
        return Unusable(number, "is not a JSON object")
    content = fields.get("content")
    length = len(content) if isinstance(content, str) else 0
    faults = list(entry_faults(fields, max(MAX_CHARS, length)))
    if faults:
        return Unusable(number, "; ".join(faults))
    entry = entry_in(fields)
    if (time_in(entry.timestamp) or 0) < 0:
        return Unusable(number, BEFORE_1970)
    return Line(number, entry)


def write_lines(path: Path, lines: Iterable[str]) -> None:
    """See `atomic_file`. Raises OSError."""
    with atomic_file(path) as file:
        file.writelines(f"{line}\n".encode() for line in lines)
