"""The specification's own form of a session: kind 1988 only, `source-data` in the notes.

The first note has no `e`; each other one has `root` (the first note) and `reply` (the one before).
A line of several blocks is several notes; the first of them has the line. What the specification
has no place for gets a tag that its readers may ignore: `eol` for another line end than LF,
`encoding` for a line that is not UTF-8, `paths` for the places of paths that were made relative.
"""

from __future__ import annotations

from base64 import b64encode
from hashlib import sha256
from typing import TYPE_CHECKING

import orjson

from relay.errors import Invalid
from relay.memory.draft import Draft
from relay.memory.fields import readable_object, repaired
from relay.memory.transcripts import paths, stripping
from relay.memory.transcripts.archive import max_text_size, prefix_of
from relay.memory.transcripts.blocks import NoteText, note_texts
from relay.memory.transcripts.lines import Eol, inner, name_in
from relay.memory.transcripts.notes import SOURCE, TOPIC, optional_tag
from relay.memory.transcripts.order import ordered
from relay.memory.transcripts.paths import HidingTokens, with_field
from relay.memory.transcripts.plan import CHUNK, StoredThread
from relay.nostr import kinds
from relay.nostr.event import id_bytes

if TYPE_CHECKING:
    from collections.abc import Iterable

    from relay.memory.transcripts.lines import Line
    from relay.memory.transcripts.paths import PathTokens
    from relay.memory.transcripts.plan import Plan
    from relay.memory.transcripts.stripping import StrippedLine
    from relay.nostr.event import Event


def stored_thread(notes: Iterable[Event]) -> StoredThread | None:
    """The thread of these notes; None: there are none, or they are not of this form."""
    chain = ordered(notes).events
    lines: dict[bytes, str] = {}
    key = None
    for note in chain:
        text = note.tag("source-data")
        if text is not None:
            key = _line_key(text)
        if key is not None:
            lines[key] = note.id
    return StoredThread(chain[0].id, lines, len(chain)) if lines else None


def _line_key(text: str) -> bytes:
    """Key of a line, equal for its copies in other directories and branches, and with relative
    paths (D-22…D-24)."""
    fields = readable_object(text)
    if fields is not None:
        here = {name: value for name, value in fields.items() if name not in ("cwd", "gitBranch")}
        text = orjson.dumps(here, option=orjson.OPT_SORT_KEYS).decode()
    return sha256(text.encode("utf-8", "surrogatepass")).digest()


class ClassicThread:
    """Drafts the notes of a session."""

    def __init__(
        self,
        author: str,
        session: str,
        base: str,
        tokens: PathTokens | None,
        plan: Plan,
        tail: list[list[str]],
    ) -> None:
        """`author`: public key of the signer. `base`: the session's directory, empty if unknown.
        `tokens`: None keeps paths. `tail`: last tags of each note."""
        self._author = author
        self._session = session
        self._base = base
        self._tokens = tokens
        self._max_event = plan.max_event
        self._tail = tail
        self._stored = {} if plan.stored is None else plan.stored.lines
        self._root = None if plan.stored is None else plan.stored.root
        self._last = self._root or ""
        self.count = 0

    def drafts(self, line: Line, stripped: StrippedLine, created_at: int) -> list[Draft]:
        """The notes of one line; none if it is stored. Raises Invalid if it is too long for one."""
        fields = stripped.fields
        blocks = [NoteText("unknown", "")] if fields is None else note_texts(fields)
        source = self._source(line, stripped)
        if self._stored and (last := self._stored.get(_line_key(source[-1][1]))) is not None:
            self._last = last
            self.count += len(blocks)
            return []
        source += self._tail
        drafts = []
        for index, block in enumerate(blocks):
            tags = self._tags(block, stripped)
            tags += source if index == 0 else self._tail
            content = self._fitting(repaired(block.content), tags, line.number)
            draft = Draft(kinds.CONVERSATION_NOTE, tags, content, created_at)
            data = id_bytes(self._author, created_at, draft.kind, tags, content)
            self._last = sha256(data).hexdigest()
            self._root = self._root or self._last
            self.count += 1
            drafts.append(draft)
        return drafts

    def _tags(self, block: NoteText, stripped: StrippedLine) -> list[list[str]]:
        fields = stripped.fields or {}
        thread = []
        if self._root is not None:
            thread = [["e", self._root, "", "root"], ["e", self._last, "", "reply"]]
        return [
            ["d", self._session],
            *optional_tag("session-slug", name_in(fields, "slug")),
            *thread,
            ["source", SOURCE],
            *optional_tag("source-version", name_in(fields, "version")),
            ["role", block.role],
            *optional_tag("model", name_in(inner(fields, "message"), "model")),
            *optional_tag("turn-type", name_in(fields, "type")),
            ["t", TOPIC],
        ]

    def _source(self, line: Line, stripped: StrippedLine) -> list[list[str]]:
        tags = [] if line.eol is Eol.LF else [["eol", line.eol.value]]
        text, removed = stripped.text, stripped.stripped
        if text is not None and isinstance(self._tokens, HidingTokens) and self._tokens.hides(text):
            removed += (stripping.Part.MACHINE,)
        if removed:
            tags.append([stripping.TAG, *removed])
        if text is None:
            tags.append(["encoding", "base64"])
            text = b64encode(line.data).decode()
        else:
            whole, places = text, ""
            if self._tokens is not None:
                text, places = paths.relative(self._tokens.tokenised(text))
            # A `cwd` of `.` is restored without a tag (D-23).
            is_plain = "/" not in text and with_field(text, "cwd", self._base) == whole
            if not is_plain if places else '"."' in text:
                tags.append(["paths", paths.RELATIVE, places])
        return [*tags, ["source-data", text]]

    def _fitting(self, content: str, tags: list[list[str]], number: int) -> str:
        try:
            room = max_text_size(tags, self._max_event)
        except Invalid:
            raise Invalid(
                f"line {number}: too long for one event of {self._max_event} bytes; the classic"
                " layout does not split lines"
            ) from None
        if len(content) <= CHUNK // 4 and (room is None or len(orjson.dumps(content)) <= room):
            return content
        data = content.encode()
        kept = prefix_of(data, 0, CHUNK, room)
        return content if len(kept) == len(data) else kept.decode() + "..."
