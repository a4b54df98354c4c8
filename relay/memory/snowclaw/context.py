"""ContextAssembler: what a model is given, within a budget of tokens. MEMORY.md 4.7.

Invariants: every piece of text has its cost before anything is chosen; the fixed pieces are
always in; then each row of pieces is taken in its order up to the first that does not fit. What
people wrote cannot pass for a heading or for the header of a message.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from datetime import UTC, datetime
from enum import StrEnum
from typing import TYPE_CHECKING, Final, NamedTuple, assert_never

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from relay.memory.snowclaw.groups import GroupMemory
    from relay.memory.snowclaw.history import HistoryMessage
    from relay.memory.snowclaw.users import UserMemory


class Section(StrEnum):
    """The headings, in the order of the text (S-37)."""

    SYSTEM = "SYSTEM PROMPT"
    GROUP = "GROUP MEMORY SUMMARY"
    SENDER = "SENDER CONTEXT"
    HISTORY = "CONVERSATION HISTORY"
    CURRENT = "CURRENT MESSAGE"


class Part(StrEnum):
    """What is trimmed, and counted when it is."""

    HISTORY = "history"
    GROUP = "group"
    NOTES = "notes"


class HistoryStyle(StrEnum):
    """How a message of the history is written (S-38)."""

    HEADER = "header"
    """`[nostr:group=#tea from=alice kind=9 id=abc12345]`, and the text on the next line."""
    PLAIN = "plain"
    """`[alice]: text`"""


class TrimOrder(StrEnum):
    """What is dropped first when not all fits (S-39)."""

    NOTES_FIRST = "notes_first"
    """Messages are taken first, then memory of the group, then notes."""
    HISTORY_FIRST = "history_first"
    """Memory of the group and notes are taken first: history is dropped before they are."""


class Why(StrEnum):
    """Why a piece is in, or is not."""

    FIXED = "always in"
    FITS = "fits"
    TOO_LARGE = "does not fit what is left of the budget"
    AFTER = "comes after one that does not fit"


class Piece(NamedTuple):
    """One thing that is kept or trimmed as a whole."""

    section: Section
    part: Part | None
    """None: fixed."""
    text: str
    """As it stands in the context, without a heading."""
    tokens: int
    """Its cost, with that of the heading when it is the first under it."""
    why: Why

    @property
    def is_kept(self) -> bool:
        return self.why in (Why.FIXED, Why.FITS)


@dataclass(frozen=True, slots=True)
class Sender:
    """Who wrote the current message."""

    name: str
    npub: str
    is_owner: bool = False
    preferences: Mapping[str, str] = field(default_factory=dict)
    notes: Sequence[str] = ()
    """Oldest first."""

    @classmethod
    def of(cls, memory: UserMemory, name: str, npub: str) -> Sender:
        """With what is known of them. Notes of the owner come last, and so are kept longest."""
        owner_notes = (f"owner: {note}" for note in memory.owner_notes)
        return cls(name, npub, memory.is_owner, memory.preferences, (*memory.notes, *owner_notes))


@dataclass(frozen=True, slots=True)
class Context:
    """S-40."""

    text: str
    sections: Mapping[Section, str]
    """The sections that are not empty, each without its heading, in the order of the text."""
    tokens_used: int
    budget: int
    dropped: Mapping[Part, int]
    """Pieces that were trimmed."""
    over_budget: bool
    """The fixed part alone is over the budget."""
    pieces: tuple[Piece, ...]
    """Every piece in the order in which it was asked for, fixed ones first."""


@dataclass(frozen=True, slots=True)
class ContextAssembler:
    """Assembles the contexts of one group."""

    group_id: str
    history_style: HistoryStyle = HistoryStyle.HEADER
    trim_order: TrimOrder = TrimOrder.NOTES_FIRST

    def assemble(
        self,
        *,
        system: str,
        sender: Sender,
        current: HistoryMessage,
        history: Iterable[HistoryMessage],
        memory: GroupMemory | None,
        budget: int,
    ) -> Context:
        """`history`: oldest first; may have the current message, which is not repeated.
        `memory`: of this group, None when there is none. `budget`: tokens."""
        choice = _Choice(budget)
        if system != "":
            choice.fix(Section.SYSTEM, system)
        choice.fix(Section.CURRENT, self._with_header(current))
        choice.fix(Section.SENDER, _head(sender))
        is_over = choice.left < 0

        newest_first = [
            self._message(message) for message in history if message.event_id != current.event_id
        ][::-1]
        of_group = [] if memory is None else _group_lines(memory)
        notes = [f"- {_one_line(note)}" for note in reversed(sender.notes)]
        rows = [
            (Section.HISTORY, Part.HISTORY, newest_first),
            (Section.GROUP, Part.GROUP, of_group),
            (Section.SENDER, Part.NOTES, notes),
        ]
        match self.trim_order:
            case TrimOrder.NOTES_FIRST:
                pass
            case TrimOrder.HISTORY_FIRST:
                rows = [*rows[1:], rows[0]]
            case _:
                assert_never(self.trim_order)
        for section, part, texts in rows:
            choice.take(section, part, texts)

        sections = _sections(choice.pieces)
        return Context(
            text="\n\n".join(f"# {section}\n{text}" for section, text in sections.items()),
            sections=sections,
            tokens_used=budget - choice.left,
            budget=budget,
            dropped={
                part: sum(piece.part is part and not piece.is_kept for piece in choice.pieces)
                for part in Part
            },
            over_budget=is_over,
            pieces=tuple(choice.pieces),
        )

    def _message(self, message: HistoryMessage) -> str:
        match self.history_style:
            case HistoryStyle.HEADER:
                return self._with_header(message)
            case HistoryStyle.PLAIN:
                return f"[{_name(message.sender)}]: {_harmless(message.content)}"
            case _:
                assert_never(self.history_style)

    def _with_header(self, message: HistoryMessage) -> str:
        return f"{header(self.group_id, message)}\n{_harmless(message.content)}"


def header(group_id: str, message: HistoryMessage) -> str:
    """The line above a message (S-38)."""
    owner = " owner=true" if message.is_owner else ""
    return (
        f"[nostr:group=#{_name(group_id)} from={_name(message.sender)} kind={message.kind} "
        f"id={message.event_id[:8]}{owner}]"
    )


def tokens(text: str) -> int:
    """The cost of a piece: its code points and the line ends around it, four to a token (S-39)."""
    return (len(text) + 5) // 4


class _Choice:
    """What is left of a budget, and what became of each piece."""

    def __init__(self, budget: int) -> None:
        self.left = budget
        self.pieces: list[Piece] = []

    def fix(self, section: Section, text: str) -> None:
        cost = tokens(f"# {section}\n{text}")
        self.left -= cost
        self.pieces.append(Piece(section, None, text, cost, Why.FIXED))

    def take(self, section: Section, part: Part, texts: Sequence[str]) -> None:
        """Texts in order, up to the first that does not fit."""
        heading = "Notes:" if part is Part.NOTES else f"# {section}"
        why = Why.FITS
        for index, text in enumerate(texts):
            cost = tokens(f"{heading}\n{text}" if index == 0 else text)
            if why is not Why.FITS:
                why = Why.AFTER
            elif cost > self.left:
                why = Why.TOO_LARGE
            else:
                self.left -= cost
            self.pieces.append(Piece(section, part, text, cost, why))


def _sections(pieces: Sequence[Piece]) -> dict[Section, str]:
    """The kept pieces put together; history and notes were taken from the newest back."""
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


def _head(sender: Sender) -> str:
    lines = [
        f"Sender: {_name(sender.name)} ({sender.npub})",
        f"Owner: {'yes' if sender.is_owner else 'no'}",
    ]
    if len(sender.preferences) > 0:
        pairs = (f"{name}={value}" for name, value in sorted(sender.preferences.items()))
        lines.append(f"Preferences: {_one_line(', '.join(pairs))}")
    return "\n".join(lines)


def _group_lines(memory: GroupMemory) -> list[str]:
    lines = []
    if memory.purpose not in (None, ""):
        lines.append(f"Purpose: {_one_line(memory.purpose)}")
    if len(memory.themes) > 0:
        lines.append(f"Themes: {_one_line(', '.join(memory.themes))}")
    newest_first = sorted(memory.decisions, key=lambda decision: decision[1])[::-1]
    lines += (f"Decision: {_one_line(text)} ({_day(at)})" for text, at in newest_first)
    return lines


def _day(at: int) -> str:
    try:
        return datetime.fromtimestamp(at, UTC).date().isoformat()
    except (OverflowError, ValueError, OSError):
        return str(at)  # no time that a calendar knows


# -- what people wrote is data (G-23) ----------------------------------------------------------

_BREAK: Final = r"\r\n\v\f\x1c-\x1e\x85\u2028\u2029"
_BREAKS: Final = re.compile(f"[{_BREAK}]+")
_NOT_IN_A_NAME: Final = re.compile(r"[\[\]=\x00-\x1f\x7f\x85\u2028\u2029]+")
_IN_WHAT_LOOKS_LIKE_OURS: Final = ("[nostr:", "]:", *Section)
_LOOKS_LIKE_OURS: Final = re.compile(
    # No part goes over the end of a line: else a message of many lines would take minutes.
    rf"(^|[{_BREAK}])([ \t]*(?:\[nostr:|\[[^\]{_BREAK}]*\]:|#+[ \t]*(?:{'|'.join(Section)})))"
)


def _one_line(text: str) -> str:
    """Of a memory, so that it cannot add a line such as `Owner: yes`."""
    return _BREAKS.sub(" ", text)


def _name(text: str) -> str:
    """A name that cannot end its header or add to it."""
    return _NOT_IN_A_NAME.sub(" ", text)


def _harmless(text: str) -> str:
    """A message with lines that look like a heading or a header quoted by `> `."""
    # The search is over ten times as slow as asking whether it can find anything.
    if not any(mark in text for mark in _IN_WHAT_LOOKS_LIKE_OURS):
        return text
    return _LOOKS_LIKE_OURS.sub(r"\1> \2", text)
