"""The archive of a session: kind 1989, a file line by line. MEMORY.md D-15…D-17."""

from __future__ import annotations

from base64 import b64encode
from typing import TYPE_CHECKING, Final

import orjson

from relay.errors import Invalid
from relay.memory.draft import Draft
from relay.memory.transcripts import paths, stripping
from relay.nostr import kinds

if TYPE_CHECKING:
    from relay.memory.transcripts.lines import Line
    from relay.memory.transcripts.paths import PathTokens
    from relay.memory.transcripts.plan import Plan
    from relay.memory.transcripts.stripping import Left

_FRAME: Final = 440
"""Bytes of an event's JSON beside content and most tags: id, key, signature, names, numbers, and
the tags that only come with a long text."""
_LEAST_ROOM: Final = 256
_LONGEST: Final = 6
"""Bytes of JSON that one letter may take, as `\\u0000` does."""


class Archive:
    """The lines of one file, each told by itself."""

    def __init__(
        self, session: str, tokens: PathTokens | None, plan: Plan, tail: list[list[str]]
    ) -> None:
        """tokens: None leaves paths as they are. tail: tags that end each event."""
        self._session = session
        self._tokens = tokens
        self._plan = plan
        self._tail = tail

    def drafts(
        self, line: Line, left: Left, first: str | None, seq: int, created_at: int
    ) -> list[Draft]:
        """The events of one line. first: the id of its first note; seq: of its last (D-15)."""
        tags = [] if first is None else [["e", first]]
        tags += [["d", self._session], ["seq", str(seq)]]
        tags += [["line", str(line.number)], ["eol", line.eol.value]]
        if line.is_blank:
            tags.append(["parse", "blank"])
        elif line.fields is None:
            tags.append(["parse", "invalid"])
        text = left.text
        if text is None:
            tags.append(["encoding", "base64"])
            text = b64encode(line.data).decode()
        elif self._tokens is not None:
            tags.append(["paths", paths.VERSION])
            text = self._tokens.tokenised(text)
        if left.lost:
            tags.append([stripping.TAG, *left.lost])
        room = room_in([*tags, *self._tail], self._plan.max_event)
        parts = pieces(text, self._plan.chunk, room)
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


def room_in(tags: list[list[str]], max_event: int | None) -> int | None:
    """Bytes of JSON that a text may take in an event of such tags; None: as many as it likes."""
    if max_event is None:
        return None
    taken = _FRAME + len(orjson.dumps(tags))
    if max_event < taken + _LEAST_ROOM:
        raise Invalid(f"event: of {max_event} bytes its tags leave no room for text")
    return max_event - taken


def pieces(text: str, limit: int, room: int | None = None) -> list[str]:
    """A text in pieces of at most `limit` UTF-8 bytes and `room` bytes as JSON; at least one."""
    if len(text) * _LONGEST <= (limit if room is None else min(limit, room)):
        return [text]
    data = text.encode()
    parts = []
    start = 0
    while start < len(data):
        part = head_of(data, start, limit, room)
        start += len(part)
        parts.append(part.decode())
    return parts or [text]


def head_of(data: bytes, start: int, limit: int, room: int | None = None) -> bytes:
    """As much of UTF-8 text from `start` on as fits, cut between code points."""
    while True:
        end = start + limit
        while end < len(data) and data[end] & 0xC0 == 0x80:
            end -= 1
        part = data[start:end]
        if room is None:
            return part
        size = len(orjson.dumps(part.decode()))
        if size <= room:
            return part
        limit = len(part) * room // size
