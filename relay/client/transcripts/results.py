"""Results and errors of Transcripts."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum
from typing import TYPE_CHECKING

from relay.client.errors import ClientError, quoted_id
from relay.client.transcripts.session_events import title_of
from relay.memory.transcripts.order import order_of
from relay.memory.transcripts.records import SessionState, Status, state_of
from relay.memory.transcripts.view import blocks
from relay.nostr import kinds

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from relay.client.errors import PublishRefused
    from relay.memory.transcripts.assembly import Assembly
    from relay.memory.transcripts.display import Note
    from relay.memory.transcripts.lines import Fields
    from relay.memory.transcripts.view import Block
    from relay.nostr.event import Event


class Detail(Enum):
    """Which lines are read beside the notes of a conversation."""

    NOTES = "none"
    TYPES = "those that are no message"
    LINES = "all"


class NoSession(ClientError):
    """Nothing of this session is readable."""

    def __init__(self, session: str, what: str = "session") -> None:
        super().__init__(f"no {what} {quoted_id(session)} is readable with this key")


class Incomplete(ClientError):
    """Parts of a session's file are missing or duplicate."""

    def __init__(self, session: str, assembly: Assembly) -> None:
        super().__init__(
            f"session {quoted_id(session)} is incomplete: {'; '.join(assembly.faults)}"
        )
        self.assembly = assembly


class SeveralAuthors(ClientError):
    """Several keys wrote lines of this session, none of them one's own."""

    def __init__(self, session: str, authors: Collection[str]) -> None:
        named = ", ".join(sorted(authors))
        super().__init__(f"session {session} was written by several keys; choose one: {named}")
        self.authors = frozenset(authors)


@dataclass(frozen=True, slots=True)
class ImportResult:
    """Result of a file import."""

    session: str
    lines: int
    notes: int
    archive: int
    """Events of kind 1989: one per line, several for a long line."""
    stored: int
    duplicates: int
    """Already at the relay; mostly not sent again."""
    refused: tuple[PublishRefused, ...] = ()
    others: int = 0
    """Events of this session and key that are not in the file: it was rewritten, or another file
    has the same session id. 0 if the relay had none of the session."""
    secrets: int = 0
    """Lines that hold what looks like a secret, and were read to be sent as they are."""
    forgotten: int = 0
    """Events not sent: see `Transcripts.forget`."""


@dataclass(frozen=True, slots=True)
class Conversation:
    """The notes of a session."""

    notes: list[Note]
    """In order."""
    notice: str | None
    """What is uncertain about their order."""
    lines: Mapping[str, Fields]
    """Lines of the session's file, by the id of their first note: those that were asked for."""

    def blocks(self) -> list[Block]:
        """For people."""
        return blocks(self.notes, self.lines)


@dataclass(slots=True)
class Delivered:
    """Counts of sent events."""

    stored: int = 0
    duplicates: int = 0
    queued: int = 0
    """Queued on disk."""
    forgotten: int = 0
    """Not sent: see `Transcripts.forget`."""
    refused: list[PublishRefused] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Listed:
    """One session in a list."""

    session: str
    author: str
    """64 hex."""
    title: str
    status: Status | None
    """None: unknown."""
    notes: int
    last_ms: int
    """Time of the newest note, else of the session state; since 1970."""
    cwd: str
    """Working folder; empty if unknown."""


class Row:
    """Builds a Listed from events in any order."""

    __slots__ = ("_first", "_last_ms", "_notes", "_state", "_state_at")

    def __init__(self) -> None:
        self._notes = 0
        self._last_ms = 0
        self._first: tuple[tuple[int, int, bool, str], str] | None = None
        """The first words of a user, and their position: time, seq, whether they are a reply, id.
        """
        self._state: SessionState | None = None
        self._state_at = -1

    def add(self, event: Event) -> None:
        if event.kind == kinds.CONVERSATION_NOTE:
            order = order_of(event)
            self._notes += 1
            self._last_ms = max(self._last_ms, order[0])
            place = (*order[:2], event.has_tag("e"), event.id)
            is_first = self._first is None or place < self._first[0]
            if is_first and event.tag("role") == "user" and (title := title_of(event.content)):
                self._first = (place, title)
        elif event.created_at > self._state_at:
            state = state_of(event)
            if isinstance(state, SessionState):
                self._state, self._state_at = state, event.created_at

    def listed(self, session: str, author: str) -> Listed:
        state = self._state
        state_title = "" if state is None else state.custom_title or state.title
        return Listed(
            session,
            author,
            state_title or ("" if self._first is None else self._first[1]),
            None if state is None else state.status,
            self._notes,
            self._last_ms if self._notes else self._state_at * 1000,
            "" if state is None else state.cwd,
        )


def is_listed(row: Listed) -> bool:
    """Whether it is listed by default."""
    return row.status is not Status.DELETED
