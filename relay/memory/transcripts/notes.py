"""The notes of a session: kind 1988, one a block, in one thread. MEMORY.md D-07, D-10…D-13."""

from __future__ import annotations

from hashlib import sha256
from typing import TYPE_CHECKING, Final

from relay.memory.draft import Draft
from relay.memory.fields import repaired
from relay.memory.transcripts.archive import head_of, room_in
from relay.memory.transcripts.lines import inner, name_in
from relay.memory.transcripts.plan import CHUNK, Plan
from relay.nostr import kinds
from relay.nostr.event import id_bytes

if TYPE_CHECKING:
    from collections.abc import Sequence

    from relay.memory.transcripts.blocks import Said
    from relay.memory.transcripts.lines import Fields
    from relay.memory.transcripts.paths import PathTokens

SOURCE: Final = "claude-code"
TOPIC: Final = "ai-conversation"
_ROOTS: Final = frozenset({"user", "assistant", "tool_call", "tool_result"})
_CUT: Final = "..."


class Thread:
    """The notes so far: who is answered, by which id.

    An id does not depend on the signature, so a whole thread is drafted before anything is
    signed, and whatever signs (a pool of threads, a remote signer) need not keep step.
    """

    def __init__(
        self, author: str, tokens: PathTokens | None, plan: Plan, tail: list[list[str]]
    ) -> None:
        """author: who will sign, 64 hex. tokens: None leaves paths as they are. tail: tags that
        end each note."""
        self._author = author
        self._tokens = tokens
        self._max_event = plan.max_event
        self._tail = tail
        self._root: str | None = None
        self._last: str | None = None
        self._tool_names: dict[str, str] = {}
        self.count = 0

    def drafts(
        self, fields: Fields, blocks: Sequence[Said], session: str, ms: int
    ) -> tuple[list[Draft], str]:
        """The notes of one line, and the id of the first."""
        drafts = []
        first = ""
        about = _About(fields, self._tokens)
        for index, block in enumerate(blocks):
            tags = [["d", session]]
            tags += about.slug
            if self._root is not None:
                tags.append(["e", self._root, "", "root"])
            if self._last is not None:
                tags.append(["e", self._last, "", "reply"])
            tags += [["ms", str(ms)], ["seq", str(self.count)], ["source", SOURCE]]
            tags += about.version
            tags.append(["role", block.role])
            tags += about.model_type_and_cwd
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

    def _tool_name(self, block: Said) -> str | None:
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


class _About:
    """What all notes of a line say alike, in the places where they say it."""

    __slots__ = ("model_type_and_cwd", "slug", "version")

    def __init__(self, fields: Fields, tokens: PathTokens | None) -> None:
        self.slug = _tag("session-slug", name_in(fields, "slug"))
        self.version = _tag("source-version", name_in(fields, "version"))
        cwd = name_in(fields, "cwd")
        if cwd is not None and tokens is not None:
            cwd = tokens.relative(cwd)
        self.model_type_and_cwd = [
            *_tag("model", name_in(inner(fields, "message"), "model")),
            *_tag("turn-type", name_in(fields, "type")),
            *_tag("cwd", cwd),
        ]


def _tag(name: str, value: str | None) -> list[list[str]]:
    return [] if value is None else [[name, value]]


def _fitting(content: str, tags: list[list[str]], max_event: int | None) -> tuple[str, int | None]:
    """The content of a note, and its full length in bytes when it was cut. D-13."""
    content = repaired(content)
    if len(content) * 4 <= CHUNK and max_event is None:
        return content, None
    data = content.encode()
    kept = head_of(data, 0, CHUNK, room_in(tags, max_event))
    if len(kept) == len(data):
        return content, None
    return kept.decode() + _CUT, len(data)
