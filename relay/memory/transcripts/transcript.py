"""Transcript: encodes a session file as notes and archive events."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from relay.memory.transcripts.archive import Archive
from relay.memory.transcripts.blocks import note_texts
from relay.memory.transcripts.classic import ClassicThread
from relay.memory.transcripts.lines import line_of, name_in, session_of, time_of
from relay.memory.transcripts.moved import Move
from relay.memory.transcripts.notes import Thread
from relay.memory.transcripts.paths import HidingTokens, PathTokens
from relay.memory.transcripts.plan import Layout, Paths, Plan
from relay.memory.transcripts.stripping import Part, strip

if TYPE_CHECKING:
    from relay.memory.draft import Draft
    from relay.memory.transcripts.lines import Fields, SessionFacts


class Transcript:
    """Encodes one file line by line.

    A file that grew is encoded again from its start: that is fast, needs no state, and gives the
    same ids for the known lines (D-14).
    """

    def __init__(
        self, author: str, facts: SessionFacts, *, stem: str, now_ms: int, plan: Plan | None = None
    ) -> None:
        """`author`: public key of the signer. `stem`: of the file name, the session id if no line
        has one. `now_ms`: the time if no line has one; the file's own time keeps ids stable."""
        self._plan = plan = Plan() if plan is None else plan
        self._session = facts.session or stem
        self._ms = now_ms if facts.ms is None else facts.ms
        self.session: Final = plan.session or self._session
        """`d` of the whole archive, even if a line names another session."""
        self.lines = 0
        self.custom_title = ""
        """The last one that the user gave, stripped like its line; empty: none."""
        base = facts.base or ""
        self._move = None
        if plan.origin and base and plan.origin != base:
            self._move = Move(base, plan.origin)
            base = plan.origin
        self._tokens = tokens = None if plan.paths is Paths.RAW else _tokens(base, plan)
        tail = [] if plan.group is None else [["h", plan.group]]
        self._thread = Thread(author, tokens, plan, tail)
        self._archive = Archive(self.session, tokens, plan, tail)
        self._classic = None
        if plan.layout is Layout.CLASSIC:
            self._classic = ClassicThread(author, self.session, base, tokens, plan, tail)

    @property
    def notes(self) -> int:
        """Number of notes so far."""
        return (self._classic or self._thread).count

    def drafts(self, raw: bytes) -> list[Draft]:
        """The events of the next line: notes, then archive. `raw`: with its line end.

        Raises Invalid in the classic layout for a line that is too long for one note.
        """
        self.lines += 1
        line = line_of(self.lines, raw if self._move is None else self._move.line(raw))
        stripped = strip(line, self._plan.stripping)
        if isinstance(self._tokens, HidingTokens):
            stripped = self._tokens.shown(stripped)
        if stripped.fields is not None and stripped.fields.get("type") == "custom-title":
            self.custom_title = name_in(stripped.fields, "customTitle") or ""
        if self._classic is not None:
            ms = None if stripped.fields is None else time_of(stripped.fields)
            self._ms = self._ms if ms is None else ms
            return self._classic.drafts(line, stripped, self._ms // 1000)
        notes: list[Draft] = []
        first = None
        if stripped.fields is not None:
            notes, first = self._notes(stripped.fields)
        seq = max(self.notes - 1, 0)
        return notes + self._archive.drafts(line, stripped, first, seq, self._ms // 1000)

    def _notes(self, fields: Fields) -> tuple[list[Draft], str]:
        ms, session = time_of(fields), session_of(fields)
        self._ms = self._ms if ms is None else ms
        self._session = self._session if session is None else session
        return self._thread.drafts(
            fields, note_texts(fields), self._plan.session or self._session, self._ms
        )


def _tokens(base: str, plan: Plan) -> PathTokens:
    hides = Part.MACHINE in plan.stripping.parts
    return HidingTokens(base, plan.homes) if hides else PathTokens(base)
