"""A session file on its way into events: its notes and its archive. MEMORY.md 3.2, 3.3."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from relay.memory.transcripts.archive import Archive
from relay.memory.transcripts.blocks import said
from relay.memory.transcripts.lines import line_of, session_of, time_of
from relay.memory.transcripts.notes import Thread
from relay.memory.transcripts.paths import PathTokens
from relay.memory.transcripts.plan import Paths, Plan
from relay.memory.transcripts.stripping import left_of

if TYPE_CHECKING:
    from relay.memory.draft import Draft
    from relay.memory.transcripts.lines import Fields, Opening


class Transcript:
    """One file, told line by line.

    A file that grew is told again from its start: that is fast, needs nothing kept, and gives the
    same ids for what was there (D-14).
    """

    def __init__(
        self, author: str, opening: Opening, *, stem: str, now_ms: int, plan: Plan | None = None
    ) -> None:
        """author: who will sign, 64 hex. stem: of the file's name, the session id when no line
        has one. now_ms: the time when no line has one; the file's own keeps the ids the same."""
        self._plan = plan = Plan() if plan is None else plan
        self._spoken = opening.session or stem
        self._ms = now_ms if opening.ms is None else opening.ms
        self.session: Final = plan.session or self._spoken
        """Under which the archive of the whole file is found, also where a line names another."""
        self.lines = 0
        tokens = PathTokens(opening.base or "") if plan.paths is Paths.TOKENS else None
        tail = [] if plan.group is None else [["h", plan.group]]
        self._thread = Thread(author, tokens, plan, tail)
        self._archive = Archive(self.session, tokens, plan, tail)

    @property
    def notes(self) -> int:
        """How many there are so far."""
        return self._thread.count

    def drafts(self, raw: bytes) -> list[Draft]:
        """The events of the next line: its notes, then its archive. `raw` has its end."""
        self.lines += 1
        line = line_of(self.lines, raw)
        left = left_of(line, self._plan.stripping)
        notes: list[Draft] = []
        first = None
        if left.fields is not None:
            notes, first = self._notes(left.fields)
        seq = max(self.notes - 1, 0)
        return notes + self._archive.drafts(line, left, first, seq, self._ms // 1000)

    def _notes(self, fields: Fields) -> tuple[list[Draft], str]:
        ms, session = time_of(fields), session_of(fields)
        self._ms = self._ms if ms is None else ms
        self._spoken = self._spoken if session is None else session
        return self._thread.drafts(
            fields, said(fields), self._plan.session or self._spoken, self._ms
        )
