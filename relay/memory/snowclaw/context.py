"""ContextAssembler: the context for a model, within a token budget.

Invariants: the cost of each piece of text is independent of the selection; fixed pieces are always
included; then each list of pieces is included in order up to the first that does not fit. User text
cannot imitate a heading, a message header, a tag of a fence or another author, in whatever
characters it is written.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from enum import StrEnum
from functools import lru_cache
from types import MappingProxyType
from typing import TYPE_CHECKING, Final, NamedTuple, assert_never

from relay.memory.fence import (
    FENCE_END,
    UNNAMED,
    attributed,
    defused,
    fence_head,
    harmless,
    name_in,
    named,
    plain,
    with_unseen_named,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from relay.memory.snowclaw.groups import GroupMemory
    from relay.memory.snowclaw.history import HistoryMessage
    from relay.memory.snowclaw.users import UserMemory


DIRECT: Final = "snowclaw direct messages"
"""Source of a fence."""


class Section(StrEnum):
    """The headings, in order (S-37)."""

    SYSTEM = "SYSTEM PROMPT"
    GROUP = "GROUP MEMORY SUMMARY"
    SENDER = "SENDER CONTEXT"
    HISTORY = "CONVERSATION HISTORY"
    CURRENT = "CURRENT MESSAGE"


class Part(StrEnum):
    """What may be trimmed; trimmed pieces are counted."""

    HISTORY = "history"
    GROUP = "group"
    NOTES = "notes"


class HistoryStyle(StrEnum):
    """Format of history messages (S-38)."""

    HEADER = "header"
    """`[nostr:group=#tea from=alice kind=9 id=abc12345]`, and the text on the next line."""
    PLAIN = "plain"
    """`[alice]: text`"""


class TrimOrder(StrEnum):
    """What is dropped first if not everything fits (S-39)."""

    NOTES_FIRST = "notes_first"
    """Messages are included first, then group memory, then notes."""
    HISTORY_FIRST = "history_first"
    """Group memory and notes are included first, so history is dropped before them."""


class Why(StrEnum):
    """Why a piece is included or not."""

    FIXED = "always in"
    FITS = "fits"
    SUMMARISED = "is in the summary"
    TOO_LARGE = "does not fit what is left of the budget"
    AFTER = "comes after one that does not fit"


class Piece(NamedTuple):
    """A text that is included or trimmed as a whole."""

    section: Section
    part: Part | None
    """None: a fixed piece."""
    text: str
    """As in the context, without a heading."""
    tokens: int
    """Its cost. The first piece under a heading includes the heading, the first in the fence the
    fence."""
    why: Why

    @property
    def is_kept(self) -> bool:
        return self.why in (Why.FIXED, Why.FITS)


@dataclass(frozen=True, slots=True)
class Sender:
    """The author of the current message."""

    name: str
    npub: str
    is_owner: bool = False
    preferences: Mapping[str, str] = field(default_factory=dict)
    notes: Sequence[str] = ()
    """Oldest first."""
    by: str = ""
    """Author of the preferences: see `attribution` of the fence; empty: the agent itself."""
    note_authors: Sequence[str] = ()
    """As `by`, for each note; none: the agent itself."""

    @classmethod
    def of(
        cls,
        memory: UserMemory,
        name: str,
        npub: str,
        by: str = "",
        signed: Mapping[str, str] = MappingProxyType({}),
    ) -> Sender:
        """From their memory. The owner's notes come last and so are trimmed last. `signed`: owner's
        note → its author, if it was signed by an owner."""
        notes = [defused(note, _AS_OWNER, "> ") for note in memory.notes]
        return cls(
            name,
            npub,
            memory.is_owner,
            memory.preferences,
            (*notes, *(f"owner: {note}" for note in memory.owner_notes)),
            by,
            (*(by for _ in notes), *(signed.get(note, by) for note in memory.owner_notes)),
        )


@dataclass(frozen=True, slots=True)
class Context:
    """S-40."""

    text: str
    sections: Mapping[Section, str]
    """The non-empty sections without headings, in order."""
    tokens_used: int
    budget: int
    dropped: Mapping[Part, int]
    """Number of trimmed pieces."""
    over_budget: bool
    """The fixed pieces alone exceed the budget."""
    pieces: tuple[Piece, ...]
    """All pieces in the order of selection, fixed ones first."""

    def room_for(self, part: Part) -> Room:
        """The texts that a summary of this part would replace, and the tokens left for it."""
        begins = next((number for number, piece in enumerate(self.pieces) if piece.part is part), 0)
        used = sum(piece.tokens for piece in self.pieces[:begins] if piece.is_kept)
        texts = tuple(piece.text for piece in self.pieces if piece.part is part)
        heading = _heading(self.pieces[begins].section, part)
        return Room(texts, self.budget - used - tokens(f"{heading}\n{_SUMMARY}"))


class Room(NamedTuple):
    texts: tuple[str, ...]
    """All pieces of the part, kept or not."""
    tokens: int
    """Tokens left for the part, without its heading; zero or less: no room."""


@dataclass(frozen=True, slots=True)
class ContextAssembler:
    """Assembles the contexts of one group, or of direct messages."""

    group_id: str
    """Empty: of direct messages."""
    history_style: HistoryStyle = HistoryStyle.HEADER
    trim_order: TrimOrder = TrimOrder.NOTES_FIRST
    agent: str = ""
    """Its npub, if a model gets the context: memory and history are then fenced, and names are
    followed by short npubs (G-23). Empty: the layout of Snowclaw's specification, without these."""

    def assemble(
        self,
        *,
        system: str,
        sender: Sender,
        current: HistoryMessage,
        history: Iterable[HistoryMessage],
        memory: GroupMemory | None,
        budget: int,
        memory_by: str = "",
        summaries: Mapping[Part, str] = MappingProxyType({}),
    ) -> Context:
        """`history`: oldest first; the current message in it is not repeated. `memory`: of this
        group, or None. `memory_by`: its author, as `Sender.by`. `budget`: tokens. `summaries`: what
        stands for the group memory or the notes if those do not all fit; data, like them."""
        source = f"snowclaw group {plain(self.group_id)}" if self.group_id else DIRECT
        fence = fence_head(source, self.agent) if self.agent else ""
        selection = _Selection(budget)
        if system != "":
            selection.fix(Section.SYSTEM, system)
        selection.fix(Section.CURRENT, self._with_header(current))
        for_fence = tokens(fence) + tokens(FENCE_END) if fence else 0
        selection.fix(Section.SENDER, self._head(sender), for_fence)
        is_over = selection.left < 0

        newest_first = [each for each in history if each.event_id != current.event_id][::-1]
        of_group = [] if memory is None else _group_lines(memory, memory_by)
        if self.trim_order is TrimOrder.NOTES_FIRST:
            selection.include_messages(newest_first, self._message)
        for section, part, texts in (
            (Section.GROUP, Part.GROUP, of_group),
            (Section.SENDER, Part.NOTES, _notes(sender)[::-1]),
        ):
            selection.include(section, part, texts, summaries.get(part, ""))
        if self.trim_order is TrimOrder.HISTORY_FIRST:
            selection.include_messages(newest_first, self._message)

        sections = _sections(selection.pieces)
        return Context(
            text=_text(sections, fence),
            sections=sections,
            tokens_used=budget - selection.left,
            budget=budget,
            dropped={
                part: sum(piece.part is part and not piece.is_kept for piece in selection.pieces)
                for part in Part
            },
            over_budget=is_over,
            pieces=tuple(selection.pieces),
        )

    def _message(self, message: HistoryMessage) -> str:
        match self.history_style:
            case HistoryStyle.HEADER:
                return self._with_header(message)
            case HistoryStyle.PLAIN:
                return f"[{_name(self._sender(message))}]: {_quoted(message.content)}"
            case _:
                assert_never(self.history_style)

    def _with_header(self, message: HistoryMessage) -> str:
        head = _header(self._group, message, self._sender(message))
        return f"{head}\n{_quoted(message.content)}"

    def _sender(self, message: HistoryMessage) -> str:
        return named(message.npub, message.sender) if self.agent else message.sender

    @property
    def _group(self) -> str:
        return group_name(self.group_id) if self.agent else self.group_id

    def _head(self, sender: Sender) -> str:
        name = name_in(sender.name) or UNNAMED if self.agent else _name(sender.name)
        lines = [
            f"Sender: {name} ({sender.npub})",
            f"Owner: {'yes' if sender.is_owner else 'no'}",
        ]
        if len(sender.preferences) > 0:
            pairs = (f"{name}={value}" for name, value in sorted(sender.preferences.items()))
            lines.append(attributed(f"Preferences: {one_line(', '.join(pairs))}", sender.by))
        return "\n".join(lines)


def group_name(group_id: str) -> str:
    """A group's id as a model is given it."""
    if _GROUP_ID.fullmatch(group_id) is not None:
        return group_id
    return name_in(with_unseen_named(group_id))


def header(group_id: str, message: HistoryMessage) -> str:
    """The header line of a message (S-38)."""
    return _header(group_id, message, message.sender)


def _header(group_id: str, message: HistoryMessage, sender: str) -> str:
    owner = " owner=true" if message.is_owner else ""
    place = f"group=#{_name(group_id)}" if group_id else "dm"
    return (
        f"[nostr:{place} from={_name(sender)} kind={message.kind} id={message.event_id[:8]}{owner}]"
    )


def tokens(text: str, more: int = 0) -> int:
    """The cost of a piece: code points and line ends, four per token (S-39). `more`: code points of
    it that are not in the text."""
    return (len(text) + more + 5) // 4


_SUMMARY: Final = "Summary: "
_BEGINNING: Final = 200
"""Code points of a message that are in its piece, whatever the budget."""


def _heading(section: Section, part: Part) -> str:
    return "Notes:" if part is Part.NOTES else f"# {section}"


class _Selection:
    """The remaining budget and the pieces so far."""

    def __init__(self, budget: int) -> None:
        self.left = budget
        self.pieces: list[Piece] = []

    def fix(self, section: Section, text: str, more: int = 0) -> None:
        cost = tokens(f"# {section}\n{text}") + more
        self.left -= cost
        self.pieces.append(Piece(section, None, text, cost, Why.FIXED))

    def include_messages(
        self, messages: Sequence[HistoryMessage], told: Callable[[HistoryMessage], str]
    ) -> None:
        """Include messages in order, up to the first that does not fit. Of one that is too long for
        the budget, or comes after it, the piece has the beginning: to quote it all takes long."""
        why = Why.FITS
        for index, message in enumerate(messages):
            # Quoting makes a text longer, if not half of it is characters that are not seen.
            most = max(_BEGINNING, 8 * self.left if why is Why.FITS else 0)
            more = max(0, len(message.content) - most)
            text = told(replace(message, content=message.content[:most]) if more else message)
            cost = tokens(f"# {Section.HISTORY}\n{text}" if index == 0 else text, more)
            if why is not Why.FITS:
                why = Why.AFTER
            elif more or cost > self.left:
                why = Why.TOO_LARGE
            else:
                self.left -= cost
            self.pieces.append(Piece(Section.HISTORY, Part.HISTORY, text, cost, why))

    def include(
        self, section: Section, part: Part, texts: Sequence[str], summary: str = ""
    ) -> None:
        """Include the texts if all fit, else the summary if it does, else the texts in order, up to
        the first that does not."""
        heading = _heading(section, part)
        costs = [
            tokens(f"{heading}\n{text}" if index == 0 else text) for index, text in enumerate(texts)
        ]
        why = Why.FITS
        if summary and sum(costs) > self.left:
            mark = "- " if part is Part.NOTES else ""
            line = attributed(f"{mark}{_SUMMARY}{one_line(summary)}", "")
            cost = tokens(f"{heading}\n{line}")
            if cost <= self.left:
                self.left -= cost
                self.pieces.append(Piece(section, part, line, cost, Why.FITS))
                why = Why.SUMMARISED
        for text, cost in zip(texts, costs, strict=True):
            if why is Why.SUMMARISED:
                pass
            elif why is not Why.FITS:
                why = Why.AFTER
            elif cost > self.left:
                why = Why.TOO_LARGE
            else:
                self.left -= cost
            self.pieces.append(Piece(section, part, text, cost, why))


def _sections(pieces: Sequence[Piece]) -> dict[Section, str]:
    """The included pieces joined; history and notes were selected newest first."""
    kept = [piece for piece in pieces if piece.is_kept]

    def texts(section: Section, part: Part | None = None) -> list[str]:
        return [piece.text for piece in kept if piece.section is section and piece.part is part]

    notes = texts(Section.SENDER, Part.NOTES)[::-1]
    sender = texts(Section.SENDER) + (["Notes:", *notes] if len(notes) > 0 else [])
    sections = {
        Section.SYSTEM: "\n".join(texts(Section.SYSTEM)),
        Section.GROUP: "\n".join(texts(Section.GROUP, Part.GROUP)),
        Section.SENDER: "\n".join(sender),
        Section.HISTORY: "\n\n".join(texts(Section.HISTORY, Part.HISTORY)[::-1]),
        Section.CURRENT: "\n".join(texts(Section.CURRENT)),
    }
    return {section: text for section, text in sections.items() if text != ""}


def _text(sections: Mapping[Section, str], fence: str) -> str:
    """The context. `fence`: its first lines; it begins before memory and history and ends before
    the current message."""
    texts = {section: f"# {section}\n{text}" for section, text in sections.items()}
    if not fence:
        return "\n\n".join(texts.values())
    system, current = texts.pop(Section.SYSTEM, ""), texts.pop(Section.CURRENT)
    inside = "\n".join((fence, "\n\n".join(texts.values()), FENCE_END))
    return "\n\n".join(filter(None, (system, inside, current)))


def _notes(sender: Sender) -> list[str]:
    authors = sender.note_authors or [""] * len(sender.notes)
    return [
        attributed(f"- {one_line(note)}", by)
        for note, by in zip(sender.notes, authors, strict=True)
    ]


def _group_lines(memory: GroupMemory, by: str) -> list[str]:
    lines = []
    if memory.purpose not in (None, ""):
        lines.append(f"Purpose: {one_line(memory.purpose)}")
    if len(memory.themes) > 0:
        lines.append(f"Themes: {one_line(', '.join(memory.themes))}")
    newest_first = sorted(memory.decisions, key=lambda decision: decision[1])[::-1]
    lines += (f"Decision: {one_line(text)} ({_day(at)})" for text, at in newest_first)
    return [attributed(line, by) for line in lines]


def _day(at: int) -> str:
    try:
        return datetime.fromtimestamp(at, UTC).date().isoformat()
    except (OverflowError, ValueError, OSError):
        return str(at)  # out of range for a date


# -- user text is data (G-23) ------------------------------------------------------------------

_BREAK: Final = r"\r\n\v\f\x1c-\x1e\x85\u2028\u2029"
_BREAKS: Final = re.compile(f"[{_BREAK}]+")
_NOT_IN_A_NAME: Final = re.compile(r"[\[\]=\x00-\x1f\x7f\x85\u2028\u2029]+")
_GROUP_ID: Final = re.compile(r"[A-Za-z0-9_.:'-]{1,128}")
_SPACE: Final = rf"(?:(?![{_BREAK}])\s)*"
_LABELS: Final = ("owner", "sender", "notes", "preferences")
_MARKUP_HINTS: Final = ("nostr", "]:", *_LABELS, *(each.split()[0].lower() for each in Section))
_HEADINGS: Final = "|".join(
    rf"(?:[\s_-](?<![{_BREAK}]))+".join(each.lower().split()) for each in Section
)
"""Any blanks or dashes between the words, which Markdown shows alike."""
_MARKUP: Final = re.compile(
    # No part crosses a line end: else a message of many lines takes minutes.
    rf"(?:^|(?<=[{_BREAK}]))(?={_SPACE}"
    rf"(?:\[{_SPACE}nostr{_SPACE}:|\[[^\]{_BREAK}]*\]:|#+{_SPACE}(?:{_HEADINGS})"
    rf"|(?:-{_SPACE})?(?:{'|'.join(_LABELS)}){_SPACE}:))"
)
"""On the folded form: the start of a line that looks like a heading, a message header or a sender
line."""
_AS_OWNER: Final = re.compile(r"^(?=\s*owner\s*:)")


def one_line(text: str) -> str:
    """The text on one line, so that it cannot add a line such as `Owner: yes`."""
    return harmless(_BREAKS.sub(" ", text))


def _name(text: str) -> str:
    """A name without characters that end or extend its header."""
    return _NOT_IN_A_NAME.sub(" ", text)


def _quoted(text: str) -> str:
    """The text with `> ` before lines that look like those of a context."""
    # A message is in the context of each that follows it.
    return _quoted_again(text) if len(text) <= _MAX_CACHED else _quoted_once(text)


def _quoted_once(text: str) -> str:
    text = attributed(harmless(text), "")
    # The test is over ten times as fast as the search.
    if text.isascii() and not any(mark in text.lower() for mark in _MARKUP_HINTS):
        return text
    return defused(text, _MARKUP, "> ")


_MAX_CACHED: Final = 4_000
"""Characters."""
_quoted_again: Final = lru_cache(maxsize=256)(_quoted_once)
