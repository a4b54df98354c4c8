"""ContextAssembler: the context for a model, within a token budget.

Invariants: the cost of each piece of text is independent of the selection; fixed pieces are always
included; then each list of pieces is included in order up to the first that does not fit. User text
cannot imitate a heading, a message header, a tag of a fence or another author, in whatever
characters and marks it is written: each line of a message begins with `> `.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from datetime import UTC, datetime
from enum import StrEnum
from functools import lru_cache, partial
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
from relay.memory.snowclaw.users import MAX_NOTE

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


class _Source(NamedTuple):
    """What a piece is made of. To look through a long text for what imitates others takes long: of
    one that does not fit only the beginning is."""

    text: str
    told: Callable[[str], str]
    """(the text or its beginning) → the piece."""


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
    """Author of preferences and notes: see `attribution` of the fence; empty: the agent itself."""
    owner_notes: Sequence[str] = ()
    """Marked as the owner's, and trimmed last."""
    signed: Mapping[str, str] = field(default_factory=dict)
    """Owner's note → its author, if that is not `by`."""

    @classmethod
    def of(
        cls,
        memory: UserMemory,
        name: str,
        npub: str,
        by: str = "",
        signed: Mapping[str, str] = MappingProxyType({}),
    ) -> Sender:
        """From their memory. `signed`: owner's note → its author, if it was signed by an owner."""
        return cls(
            name,
            npub,
            memory.is_owner,
            memory.preferences,
            memory.notes,
            by,
            memory.owner_notes,
            signed,
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
    """All pieces in the order of selection, fixed ones first. Of a text that is too long for the
    budget, or comes after one, the beginning."""
    sources: Mapping[Part, Sequence[_Source]] = field(compare=False, repr=False)

    def room_for(self, part: Part) -> Room:
        """The texts that a summary of this part would replace, and the tokens left for it."""
        begins = next((number for number, piece in enumerate(self.pieces) if piece.part is part), 0)
        used = sum(piece.tokens for piece in self.pieces[:begins] if piece.is_kept)
        texts = tuple(each.told(each.text) for each in self.sources[part])
        return Room(texts, self.budget - used - tokens(f"{_heading(part)}\n{_SUMMARY}"))


class Room(NamedTuple):
    texts: tuple[str, ...]
    """All pieces of the part, kept or not, in full."""
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
    """Its npub, if a model gets the context: memory and history are then fenced, names are followed
    by short npubs, and each line of a message is quoted (G-23). Empty: the layout of Snowclaw's
    specification, where a message of one line without marks stands as it is."""

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
        stands for the group memory or the notes if those do not all fit; data, like them. A
        current message of over `_MOST_WHOLE` that is longer than the budget is cut, and says so."""
        source = f"snowclaw group {plain(self.group_id)}" if self.group_id else DIRECT
        fence = fence_head(source, self.agent) if self.agent else ""
        selection = _Selection(budget)
        if system != "":
            selection.fix(Section.SYSTEM, system)
        for_fence = tokens(fence) + tokens(FENCE_END) if fence else 0
        selection.fix(Section.SENDER, self._head(sender), for_fence)
        selection.fix(Section.CURRENT, self._cut(current, selection.left))
        is_over = selection.left < 0

        newest_first = [each for each in history if each.event_id != current.event_id][::-1]
        sources = {
            Part.HISTORY: [_Source(m.content, partial(self._message, m)) for m in newest_first],
            Part.GROUP: [] if memory is None else _of_group(memory, memory_by),
            Part.NOTES: _of_notes(sender)[::-1],
        }
        order = [Part.HISTORY, Part.GROUP, Part.NOTES]
        if self.trim_order is TrimOrder.HISTORY_FIRST:
            order = [*order[1:], Part.HISTORY]
        for part in order:
            selection.include(part, sources[part], summaries.get(part, ""))

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
            sources=sources,
        )

    def _message(self, message: HistoryMessage, text: str) -> str:
        match self.history_style:
            case HistoryStyle.HEADER:
                return f"{self._header(message)}\n{self._quoted(text)}"
            case HistoryStyle.PLAIN:
                return f"[{_name(self._sender(message))}]: {self._quoted(text)}"
            case _:
                assert_never(self.history_style)

    def _cut(self, message: HistoryMessage, left: int) -> str:
        """The current message; a long one is cut to this number of tokens."""
        head, whole = self._header(message), message.content
        most = max(_MOST_WHOLE, 4 * left - len(f"# {Section.CURRENT}\n{head}\n") - 2)
        text = self._quoted(whole[:most])
        if len(whole) > most or (len(text) > most and len(whole) > _MOST_WHOLE):
            says_so = f"\n[cut: the message has {len(whole)} characters]"
            # Once more: the word at the end may be another one now.
            text = _harmless(text[: most - len(says_so) - len("&lt;")]) + says_so
        return f"{head}\n{text}"

    def _quoted(self, text: str) -> str:
        """The text with `> ` before each line. To tell which lines look like those of a context is
        not possible: programs that show Markdown hide letters in many ways."""
        text = _harmless(text)
        if not self.agent and _ONE_PLAIN_LINE.fullmatch(text) is not None:
            return text
        return "\n".join(f"> {line}" if line else ">" for line in text.splitlines())

    def _header(self, message: HistoryMessage) -> str:
        return _header(self._group, message, self._sender(message))

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
            pairs = ", ".join(
                f"{name}={value}" for name, value in sorted(sender.preferences.items())
            )
            if len(pairs) > MAX_NOTE:
                pairs = f"{pairs[:MAX_NOTE]}…"
            lines.append(attributed(f"Preferences: {one_line(pairs)}", sender.by))
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
"""Code points of a text that are in its piece, whatever the budget."""
_MOST_WHOLE: Final = 16_000
"""Code points of a current message that is whole, whatever the budget (S-39): to look through one
of 390,000 takes seconds."""
_SECTIONS: Final = {
    Part.HISTORY: Section.HISTORY,
    Part.GROUP: Section.GROUP,
    Part.NOTES: Section.SENDER,
}


def _heading(part: Part) -> str:
    return "Notes:" if part is Part.NOTES else f"# {_SECTIONS[part]}"


class _Selection:
    """The remaining budget and the pieces so far."""

    def __init__(self, budget: int) -> None:
        self.left = budget
        self.pieces: list[Piece] = []

    def fix(self, section: Section, text: str, more: int = 0) -> None:
        cost = tokens(f"# {section}\n{text}") + more
        self.left -= cost
        self.pieces.append(Piece(section, None, text, cost, Why.FIXED))

    def include(self, part: Part, sources: Sequence[_Source], summary: str) -> None:
        """Include the texts if all fit, else the summary if it does, else the texts in order, up to
        the first that does not."""
        section, heading, left, why = _SECTIONS[part], _heading(part), self.left, Why.FITS
        pieces: list[Piece] = []
        for source in sources:
            # Quoting makes a text longer, if not half of it is characters that are not seen.
            most = max(_BEGINNING, 8 * left if why is Why.FITS else 0)
            more = max(0, len(source.text) - most)
            text = source.told(source.text[:most])
            cost = tokens(text if pieces else f"{heading}\n{text}", more)
            if why is not Why.FITS:
                why = Why.AFTER
            elif more or cost > left:
                why = Why.TOO_LARGE
            else:
                left -= cost
            pieces.append(Piece(section, part, text, cost, why))
        if summary and why is not Why.FITS:
            mark = "- " if part is Part.NOTES else ""
            line = attributed(f"{mark}{_SUMMARY}{one_line(summary)}", "")
            cost = tokens(f"{heading}\n{line}")
            if cost <= self.left:
                left = self.left - cost
                pieces = [
                    Piece(section, part, line, cost, Why.FITS),
                    *(piece._replace(why=Why.SUMMARISED) for piece in pieces),
                ]
        self.left = left
        self.pieces += pieces


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


def _of_notes(sender: Sender) -> list[_Source]:
    return [
        *(_Source(note, partial(_note, sender.by)) for note in sender.notes),
        *(
            _Source(note, partial(_line, "- owner: ", sender.signed.get(note, sender.by)))
            for note in sender.owner_notes
        ),
    ]


def _of_group(memory: GroupMemory, by: str) -> list[_Source]:
    found = []
    if memory.purpose not in (None, ""):
        found.append(_Source(memory.purpose, partial(_line, "Purpose: ", by)))
    if len(memory.themes) > 0:
        found.append(_Source(", ".join(memory.themes), partial(_line, "Themes: ", by)))
    newest_first = sorted(memory.decisions, key=lambda decision: decision[1])[::-1]
    for text, at in newest_first:
        found.append(_Source(text, partial(_line, "Decision: ", by, after=f" ({_day(at)})")))
    return found


def _note(by: str, text: str) -> str:
    return _line("- ", by, defused(text, _AS_OWNER, "> "))


def _line(before: str, by: str, text: str, after: str = "") -> str:
    return attributed(f"{before}{one_line(text)}{after}", by)


def _day(at: int) -> str:
    try:
        return datetime.fromtimestamp(at, UTC).date().isoformat()
    except (OverflowError, ValueError, OSError):
        return str(at)  # out of range for a date


# -- user text is data (G-23) ------------------------------------------------------------------

_BREAKS: Final = re.compile(r"[\r\n\v\f\x1c-\x1e\x85\u2028\u2029]+")
_NOT_IN_A_NAME: Final = re.compile(r"[\[\]=\x00-\x1f\x7f\x85\u2028\u2029]+")
_GROUP_ID: Final = re.compile(r"[A-Za-z0-9_.:'-]{1,128}")
_ONE_PLAIN_LINE: Final = re.compile(r"(?:\w[\w .,;!?'’\"()-]*)?")
_AS_OWNER: Final = re.compile(r"^(?!(?!o(?:w(?:n(?:er?)?)?)?\b)[^\W_]+(?:[ ,]|$))")
"""A beginning that is not a plain word: shown as Markdown it may be the mark of an owner's note."""


def one_line(text: str) -> str:
    """The text on one line, so that it cannot add a line such as `Owner: yes`."""
    return harmless(_BREAKS.sub(" ", text))


def _name(text: str) -> str:
    """A name without characters that end or extend its header."""
    return _NOT_IN_A_NAME.sub(" ", text)


def _harmless(text: str) -> str:
    """A message without what looks like a tag of a fence or the end of another author's text."""
    # A message is in the context of each that follows it.
    return _harmless_again(text) if len(text) <= _MAX_CACHED else _harmless_once(text)


def _harmless_once(text: str) -> str:
    return attributed(harmless(text), "")


_MAX_CACHED: Final = 4_000
"""Characters."""
_harmless_again: Final = lru_cache(maxsize=256)(_harmless_once)
