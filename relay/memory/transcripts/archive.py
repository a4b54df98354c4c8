"""The archive of a session: kind 1989, a file line by line (D-15…D-17)."""

from __future__ import annotations

from base64 import b64encode
from typing import TYPE_CHECKING, Final

import orjson

from relay.errors import Invalid
from relay.memory.draft import Draft
from relay.memory.transcripts import paths, stripping
from relay.memory.transcripts.paths import HidingTokens
from relay.nostr import kinds

if TYPE_CHECKING:
    from relay.memory.transcripts.lines import Line
    from relay.memory.transcripts.paths import PathTokens
    from relay.memory.transcripts.plan import Plan
    from relay.memory.transcripts.stripping import StrippedLine

_FRAME: Final = 440
"""Bytes of an event's JSON without content and most tags: id, key, signature, names, numbers, and
the tags of chunks."""
_MIN_TEXT_SIZE: Final = 256
_MAX_ESCAPED: Final = 6
"""Maximum JSON bytes per character, as in `\\u0000`."""


class Archive:
    """Drafts the events of lines."""

    def __init__(
        self, session: str, tokens: PathTokens | None, plan: Plan, tail: list[list[str]]
    ) -> None:
        """`tokens`: None keeps paths. `tail`: last tags of each event."""
        self._session = session
        self._tokens = tokens
        self._plan = plan
        self._tail = tail

    def drafts(
        self, line: Line, stripped: StrippedLine, first: str | None, seq: int, created_at: int
    ) -> list[Draft]:
        """The events of one line. `first`: id of its first note; `seq`: of its last one (D-15)."""
        tags = [] if first is None else [["e", first]]
        tags += [["d", self._session], ["seq", str(seq)]]
        tags += [["line", str(line.number)], ["eol", line.eol.value]]
        if line.is_blank:
            tags.append(["parse", "blank"])
        elif line.fields is None:
            tags.append(["parse", "invalid"])
        text, removed = stripped.text, stripped.stripped
        if text is None:
            tags.append(["encoding", "base64"])
            text = b64encode(line.data).decode()
        elif self._tokens is not None:
            tags.append(["paths", paths.VERSION])
            hides = isinstance(self._tokens, HidingTokens) and self._tokens.hides(text)
            removed += (stripping.Part.MACHINE,) if hides else ()
            text = self._tokens.tokenised(text)
        if removed:
            tags.append([stripping.TAG, *removed])
        max_size = max_text_size([*tags, *self._tail], self._plan.max_event)
        parts = pieces(text, self._plan.chunk, max_size)
        count = len(parts)
        return [
            Draft(
                kinds.SOURCE_DATA,
                [
                    *tags,
                    *([["chunk", f"{index}/{count}"]] if count > 1 else ()),
                    ["source-data", part],
                    *self._tail,
                ],
                "",
                created_at,
            )
            for index, part in enumerate(parts)
        ]


def max_text_size(tags: list[list[str]], max_event: int | None) -> int | None:
    """Maximum JSON bytes of a text in an event with these tags; None: no limit."""
    if max_event is None:
        return None
    used = _FRAME + len(orjson.dumps(tags))
    if max_event < used + _MIN_TEXT_SIZE:
        raise Invalid(f"event: of {max_event} bytes its tags leave no room for text")
    return max_event - used


def pieces(text: str, limit: int, max_size: int | None = None) -> list[str]:
    """Chunks of at most `limit` UTF-8 bytes and `max_size` JSON bytes; at least one."""
    if len(text) * _MAX_ESCAPED <= (limit if max_size is None else min(limit, max_size)):
        return [text]
    data = text.encode()
    parts = []
    start = 0
    while start < len(data):
        part = prefix_of(data, start, limit, max_size)
        start += len(part)
        parts.append(part.decode())
    return parts or [text]


def prefix_of(data: bytes, start: int, limit: int, max_size: int | None = None) -> bytes:
    """The longest fitting UTF-8 text from `start`, cut between code points."""
    while True:
        end = start + limit
        while end < len(data) and data[end] & 0xC0 == 0x80:
            end -= 1
        part = data[start:end]
        if max_size is None:
            return part
        size = len(orjson.dumps(part.decode()))
        if size <= max_size:
            return part
        limit = len(part) * max_size // size
