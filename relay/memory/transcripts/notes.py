"""The notes of a session: kind 1988, one per block, in one thread (D-07, D-10…D-13)."""

from __future__ import annotations

from hashlib import sha256
from typing import TYPE_CHECKING, Final

from relay.memory.draft import Draft
from relay.memory.fields import repaired
from relay.memory.transcripts.archive import max_text_size, prefix_of
from relay.memory.transcripts.lines import inner, name_in
from relay.memory.transcripts.plan import CHUNK, Plan
from relay.nostr import kinds
from relay.nostr.event import id_bytes

if TYPE_CHECKING:
    from collections.abc import Sequence

    from relay.memory.transcripts.blocks import NoteText
    from relay.memory.transcripts.lines import Fields
    from relay.memory.transcripts.paths import PathTokens

SOURCE: Final = "claude-code"
TOPIC: Final = "ai-conversation"
_ROOTS: Final = frozenset({"user", "assistant", "tool_call", "tool_result"})
_CUT: Final = "..."


class Thread:
    """Drafts the notes of a thread, which refer to each other by id.

    Ids do not depend on signatures, so that the whole thread is drafted before it is signed.
    """

    def __init__(
        self, author: str, tokens: PathTokens | None, plan: Plan, tail: list[list[str]]
    ) -> None:
        """`author`: public key of the signer. `tokens`: None keeps paths. `tail`: last tags of each
        note."""
        self._author = author
        self._tokens = tokens
        self._max_event = plan.max_event
        self._tail = tail
        self._root: str | None = None
        self._last: str | None = None
        self._tool_names: dict[str, str] = {}
        self.count = 0

    def drafts(
        self, fields: Fields, blocks: Sequence[NoteText], session: str, ms: int
    ) -> tuple[list[Draft], str]:
        """The notes of one line, and the id of the first one."""
        drafts = []
        first = ""
        of_line = _LineTags(fields, self._tokens)
        for index, block in enumerate(blocks):
            tags = [["d", session]]
            tags += of_line.slug
            if self._root is not None:
                tags.append(["e", self._root, "", "root"])
            if self._last is not None:
                tags.append(["e", self._last, "", "reply"])
            tags += [["ms", str(ms)], ["seq", str(self.count)], ["source", SOURCE]]
            tags += of_line.version
            tags.append(["role", block.role])
            tags += of_line.model_type_and_cwd
            if len(blocks) > 1:
                tags.append(["split", f"{index}/{len(blocks)}"])
            if block.tool_id is not None:
                tags.append(["tool-id", block.tool_id])
            tool_name = self._tool_name(block)
            if tool_name is not None:
                tags.append(["tool-name", tool_name])
            tags.append(["t", TOPIC])
            content, full = _fitting(block.content, [*tags, *self._tail], self._max_event)
            if full is not None:
                tags.append(["truncated", str(full)])
            tags += self._tail
            draft = Draft(kinds.CONVERSATION_NOTE, tags, content, ms // 1000)
            id_ = self._id(draft)
            if self._root is None and block.role in _ROOTS:
                self._root = id_
            self._last = id_
            self.count += 1
            first = first or id_
            drafts.append(draft)
        return drafts, first

    def _tool_name(self, block: NoteText) -> str | None:
        """D-10."""
        if block.tool_id is None:
            return block.tool_name
        if block.tool_name is not None:
            self._tool_names[block.tool_id] = block.tool_name
            return block.tool_name
        return self._tool_names.get(block.tool_id)

    def _id(self, draft: Draft) -> str:
        data = id_bytes(self._author, draft.created_at, draft.kind, draft.tags, draft.content)
        return sha256(data).hexdigest()


class _LineTags:
    """The tags that all notes of a line share, by position."""

    __slots__ = ("model_type_and_cwd", "slug", "version")

    def __init__(self, fields: Fields, tokens: PathTokens | None) -> None:
        self.slug = optional_tag("session-slug", name_in(fields, "slug"))
        self.version = optional_tag("source-version", name_in(fields, "version"))
        cwd = name_in(fields, "cwd")
        if cwd is not None and tokens is not None:
            cwd = tokens.relative(cwd)
        self.model_type_and_cwd = [
            *optional_tag("model", name_in(inner(fields, "message"), "model")),
            *optional_tag("turn-type", name_in(fields, "type")),
            *optional_tag("cwd", cwd),
        ]


def optional_tag(name: str, value: str | None) -> list[list[str]]:
    return [] if value is None else [[name, value]]


def _fitting(content: str, tags: list[list[str]], max_event: int | None) -> tuple[str, int | None]:
    """The content of a note, and its full length in bytes if it was cut (D-13)."""
    content = repaired(content)
    if len(content) * 4 <= CHUNK and max_event is None:
        return content, None
    data = content.encode()
    kept = prefix_of(data, 0, CHUNK, max_text_size(tags, max_event))
    if len(kept) == len(data):
        return content, None
    return kept.decode() + _CUT, len(data)
