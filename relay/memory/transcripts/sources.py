"""Decoding of source data: a line of a session file, or a chunk of one (D-15…D-18)."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from msgspec import structs

from relay.memory.fields import whole_number
from relay.memory.transcripts.lines import Eol
from relay.memory.transcripts.order import NO_SEQ
from relay.memory.transcripts.paths import RELATIVE, VERSION, with_tokens
from relay.memory.transcripts.stripping import TAG as STRIPPED
from relay.memory.unreadable import UnreadableRecord

if TYPE_CHECKING:
    from relay.nostr.event import Event

_PIECE: Final = re.compile(r"(\d{1,9})/(\d{1,9})", re.ASCII)
_READ: Final = {
    name: name
    for name in ("source-data", "line", "seq", "chunk", "eol", "paths", "encoding", STRIPPED)
}
"""Names of the tags that are read, each one text for all events."""
_READ_OF_CHUNKS: Final = {**_READ, "e": "e"}
_EOLS: Final = {eol.value: eol for eol in Eol}


@dataclass(frozen=True, slots=True)
class Source:
    event: Event
    data: str
    line: int | None
    """From 1; None: an older format that is ordered by its events."""
    seq: int
    eol: Eol
    index: int
    """From 0, of `count` chunks of the line."""
    count: int
    is_base64: bool
    has_tokens: bool
    stripped: tuple[str, ...]
    """Parts stripped from the line before it was sent."""


def bare(event: Event) -> Event:
    """The event of a line with nothing but what a file is assembled from: whole it takes many times
    the size of its line."""
    names = _READ_OF_CHUNKS if event.has_tag("chunk") else _READ
    found: dict[str, list[str]] = {}
    for tag in event.tags:
        if tag and tag[0] in names:
            found.setdefault(tag[0], [names[tag[0]], *tag[1:]])
    return structs.replace(event, tags=list(found.values()), content="", sig="", raw=b"")


def piece_in(text: str) -> tuple[int, int] | None:
    """`i/n` with 0 ≤ i < n; None for anything else."""
    found = _PIECE.fullmatch(text)
    if found is None:
        return None
    index, count = int(found[1]), int(found[2])
    return (index, count) if index < count else None


def source_of(event: Event) -> Source | UnreadableRecord:
    """Decode a 1989, or a note of the specification's format with source data."""
    found: dict[str, list[str]] = {}
    for tag in event.tags:
        if tag:
            found.setdefault(tag[0], tag)
    data = _value(found, "source-data")
    if data is None:
        return UnreadableRecord(event, "no tag source-data")
    line, seq = _value(found, "line"), _value(found, "seq")
    number = None if line is None else whole_number(line)
    if line is not None and not number:
        return UnreadableRecord(event, "tag line is no number from 1")
    chunk, eol = _value(found, "chunk"), _value(found, "eol")
    piece = (0, 1) if chunk is None else piece_in(chunk)
    if piece is None:
        return UnreadableRecord(event, "tag chunk is not i/n")
    if eol is not None and eol not in _EOLS:
        return UnreadableRecord(event, "tag eol is not lf, crlf or none")
    has_tokens = "paths" in found
    if has_tokens and _value(found, "paths") == RELATIVE:
        restored = with_tokens(data, "".join(found["paths"][2:3]))
        if restored is None:
            return UnreadableRecord(event, "tag paths does not fit the text")
        data = restored
    elif has_tokens and _value(found, "paths") != VERSION:
        return UnreadableRecord(event, f"tag paths is not {VERSION}")
    at = None if seq is None else whole_number(seq)
    return Source(
        event,
        data,
        number,
        NO_SEQ if at is None else at,
        Eol.LF if eol is None else _EOLS[eol],
        *piece,
        _value(found, "encoding") == "base64",
        has_tokens,
        tuple(found.get(STRIPPED, ())[1:]),
    )


def _value(found: dict[str, list[str]], name: str) -> str | None:
    tag = found.get(name)
    return None if tag is None else tag[1] if len(tag) > 1 else ""
