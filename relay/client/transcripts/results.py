"""What Transcripts gives and raises: the result of an import, the row of a list, its errors."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from relay.client.errors import ClientError
from relay.client.transcripts.telling import title_of
from relay.memory.transcripts.order import order_of
from relay.memory.transcripts.records import SessionState, Status, state_of
from relay.nostr import kinds

if TYPE_CHECKING:
    from collections.abc import Collection

    from relay.client.errors import PublishRefused
    from relay.memory.transcripts.assembly import Assembly
    from relay.nostr.event import Event


class NoSession(ClientError):
    """Nothing of this session can be read here."""

    def __init__(self, session: str, what: str = "session") -> None:
        super().__init__(f"no {what} {session} is readable with this key")


class Incomplete(ClientError):
    """Parts of a session's file are not there, or there twice."""

    def __init__(self, session: str, assembly: Assembly) -> None:
        super().__init__(f"session {session} is not whole: {'; '.join(assembly.faults)}")
        self.assembly = assembly


class SeveralAuthors(ClientError):
    """More than one key wrote lines of this session, and none of them is one's own."""

    def __init__(self, session: str, authors: Collection[str]) -> None:
        named = ", ".join(sorted(authors))
        super().__init__(f"session {session} was written by several keys; say which: {named}")
        self.authors = frozenset(authors)


@dataclass(frozen=True, slots=True)
class ImportResult:
    """What became of a file."""

    session: str
    lines: int
    notes: int
    archive: int
    """Events of kind 1989: one a line, more for a long one."""
    stored: int
    duplicates: int
    """The relay had them; they were hardly ever sent again."""
    refused: tuple[PublishRefused, ...] = ()
    others: int = 0
    """Events of this session and key that the file does not give: it was written anew, or another
    file has the same session id. 0 when the relay had none of the session."""


@dataclass(slots=True)
class Delivered:
    """What became of events that were sent."""

    stored: int = 0
    duplicates: int = 0
    queued: int = 0
    """They wait on disk for the relay."""
    refused: list[PublishRefused] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Listed:
    """One session as a list shows it."""

    session: str
    author: str
    """64 hex."""
    title: str
    status: Status | None
    """None: nobody said."""
    notes: int
    last_ms: int
    """The time of its newest note, else of what was said about it; since 1970."""
    cwd: str
    """Where it ran; empty when nobody said."""


class Row:
    """A session, while its events come in any order."""

    __slots__ = ("_first", "_last_ms", "_notes", "_state", "_state_at")

    def __init__(self) -> None:
        self._notes = 0
        self._last_ms = 0
        self._first: tuple[tuple[int, int, str], str] | None = None
        """The first words of a user, and where they stand."""
        self._state: SessionState | None = None
        self._state_at = -1

    def add(self, event: Event) -> None:
        if event.kind == kinds.CONVERSATION_NOTE:
            order = order_of(event)
            self._notes += 1
            self._last_ms = max(self._last_ms, order[0])
            is_first = self._first is None or order < self._first[0]
            if is_first and event.tag("role") == "user" and (title := title_of(event.content)):
                self._first = (order, title)
        elif event.created_at > self._state_at:
            state = state_of(event)
            if isinstance(state, SessionState):
                self._state, self._state_at = state, event.created_at

    def listed(self, session: str, author: str) -> Listed:
        state = self._state
        said = "" if state is None else state.custom_title or state.title
        return Listed(
            session,
            author,
            said or ("" if self._first is None else self._first[1]),
            None if state is None else state.status,
            self._notes,
            self._last_ms if self._notes else self._state_at * 1000,
            "" if state is None else state.cwd,
        )


def is_listed(row: Listed) -> bool:
    """Whether a list shows it to who does not ask for all."""
    return row.status is not Status.DELETED
