"""The lines of a session file: their bytes, and what they say. MEMORY.md D-11, D-15.

A line goes by its bytes: whatever it is (blank, no JSON, cut off, no UTF-8), it is kept.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Final

from relay.memory.fields import object_in, repaired
from relay.memory.transcripts.times import milliseconds

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    Fields = Mapping[str, object]


class Eol(StrEnum):
    """How a line ends, as the tag `eol` says it."""

    LF = "lf"
    CRLF = "crlf"
    NONE = "none"


ENDS: Final = {Eol.LF: b"\n", Eol.CRLF: b"\r\n", Eol.NONE: b""}


@dataclass(frozen=True, slots=True)
class Line:
    """One line of a file."""

    number: int
    """From 1."""
    data: bytes
    """Without its end."""
    eol: Eol
    text: str | None
    """None: the bytes are no UTF-8."""
    fields: Fields | None
    """None: no JSON object."""

    @property
    def is_blank(self) -> bool:
        return self.text is not None and not self.text.strip(" \t\r")


def line_of(number: int, raw: bytes) -> Line:
    """`raw`: the bytes with their end, as an open binary file gives them."""
    if raw.endswith(b"\r\n"):
        data, eol = raw[:-2], Eol.CRLF
    elif raw.endswith(b"\n"):
        data, eol = raw[:-1], Eol.LF
    else:
        data, eol = raw, Eol.NONE
    try:
        text = data.decode()
    except UnicodeDecodeError:
        return Line(number, data, eol, None, None)
    return Line(number, data, eol, text, object_in(text))


def raw_lines(data: bytes) -> Iterator[bytes]:
    """The lines of a whole file in memory, each with its end; ends are LF alone."""
    start = 0
    while start < len(data):
        end = data.find(b"\n", start) + 1 or len(data)
        yield data[start:end]
        start = end


@dataclass(frozen=True, slots=True)
class Opening:
    """What the first line that says it settles for the whole file (D-11, D-20)."""

    base: str | None = None
    """The first `cwd`, without its trailing `/`."""
    ms: int | None = None
    """The first time."""
    session: str | None = None

    @property
    def is_settled(self) -> bool:
        """Whether no later line can change it: what follows a growing file waits for that."""
        return self.base is not None and self.ms is not None and self.session is not None


def opening(lines: Iterable[bytes]) -> Opening:
    """Reads no further than it has to; `lines` as `line_of` takes them."""
    found = Opening()
    for raw in lines:
        fields = line_of(0, raw).fields
        if fields is None:
            continue
        cwd = name_in(fields, "cwd")
        found = Opening(
            cwd.rstrip("/") if found.base is None and cwd is not None else found.base,
            time_of(fields) if found.ms is None else found.ms,
            session_of(fields) if found.session is None else found.session,
        )
        if found.is_settled:
            break
    return found


def time_of(fields: Fields) -> int | None:
    """Milliseconds since 1970."""
    ms = milliseconds(fields.get("timestamp"))
    if ms is None:
        ms = milliseconds(inner(fields, "snapshot").get("timestamp"))
    return ms


def session_of(fields: Fields) -> str | None:
    return name_in(fields, "sessionId")


def inner(fields: Fields, name: str) -> Fields:
    """A field that is an object; empty when it is none."""
    value = fields.get(name)
    return value if isinstance(value, dict) else {}


def name_in(fields: Fields, name: str) -> str | None:
    """A field that is a text with something in it, halves of surrogate pairs made whole (D-13)."""
    value = fields.get(name)
    return repaired(value) if isinstance(value, str) and value else None
