"""The lines of a session file: bytes and parsed fields (D-11, D-15).

Every line is kept: blank, not JSON, truncated or not UTF-8.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Final

from relay.memory.fields import repaired
from relay.memory.transcripts.times import milliseconds
from relay.nostr.event import object_of_any_size

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    Fields = Mapping[str, object]


class Eol(StrEnum):
    """Line end: a value of tag `eol`."""

    LF = "lf"
    CRLF = "crlf"
    NONE = "none"


ENDS: Final = {Eol.LF: b"\n", Eol.CRLF: b"\r\n", Eol.NONE: b""}


@dataclass(frozen=True, slots=True)
class Line:
    number: int
    """From 1."""
    data: bytes
    """Without its line end."""
    eol: Eol
    text: str | None
    """None: not UTF-8."""
    fields: Fields | None
    """None: not a JSON object."""

    @property
    def is_blank(self) -> bool:
        return self.text is not None and not self.text.strip(" \t\r")


def line_of(number: int, raw: bytes) -> Line:
    """`raw`: the bytes with their line end, as a binary file yields them."""
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
    return Line(number, data, eol, text, object_of_any_size(text))


def raw_lines(data: bytes) -> Iterator[bytes]:
    """The lines of a file in memory, split at LF, each with its line end."""
    start = 0
    while start < len(data):
        end = data.find(b"\n", start) + 1 or len(data)
        yield data[start:end]
        start = end


@dataclass(frozen=True, slots=True)
class SessionFacts:
    """Facts about a file, each from the first line that has it (D-11, D-20)."""

    base: str | None = None
    """The first `cwd`, without trailing `/`."""
    ms: int | None = None
    """The first time, Unix milliseconds."""
    session: str | None = None
    is_side_chain: bool = False
    """Whether the line that names the session says that a sub-agent wrote it."""

    @property
    def is_complete(self) -> bool:
        """Whether later lines cannot change it. Followers of a growing file wait for that."""
        return self.base is not None and self.ms is not None and self.session is not None


def session_facts(lines: Iterable[bytes]) -> SessionFacts:
    """Reads as few lines as possible. `lines`: see `line_of`."""
    found = SessionFacts()
    for raw in lines:
        fields = line_of(0, raw).fields
        if fields is None:
            continue
        cwd = name_in(fields, "cwd")
        is_side_chain = found.is_side_chain
        if found.session is None and session_of(fields) is not None:
            is_side_chain = fields.get("isSidechain") is True or "agentId" in fields
        found = SessionFacts(
            cwd.rstrip("/") if found.base is None and cwd is not None else found.base,
            time_of(fields) if found.ms is None else found.ms,
            session_of(fields) if found.session is None else found.session,
            is_side_chain,
        )
        if found.is_complete:
            break
    return found


def time_of(fields: Fields) -> int | None:
    """Unix milliseconds."""
    ms = milliseconds(fields.get("timestamp"))
    if ms is None:
        ms = milliseconds(inner(fields, "snapshot").get("timestamp"))
    return ms


def session_of(fields: Fields) -> str | None:
    return name_in(fields, "sessionId")


def copied_from(fields: Fields) -> str | None:
    """The session that the line is a copy of: a fork's file begins with copies. None also for
    those of earlier versions of the coding agent, which do not say so."""
    return name_in(inner(fields, "forkedFrom"), "sessionId")


def inner(fields: Fields, name: str) -> Fields:
    """A field that is an object; empty for any other value."""
    value = fields.get(name)
    return value if isinstance(value, dict) else {}


def name_in(fields: Fields, name: str) -> str | None:
    """A field that is a non-empty string, with lone surrogates replaced (D-13)."""
    value = fields.get(name)
    return repaired(value) if isinstance(value, str) and value else None
