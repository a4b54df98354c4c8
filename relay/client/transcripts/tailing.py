"""Tail: one session file that somebody goes on writing, and how far of it was sent.

Invariants: what was sent stands in a bookmark on disk. A file is told from its start by whoever
takes it up again, since that is fast and gives the same ids (D-14); what the bookmark says is only
not sent again. A line counts when its end is there. What was read once must still be there when
more is read, or the file was written anew, and is told anew. Blocks; call it in a thread.
"""

from __future__ import annotations

import os
from dataclasses import asdict, dataclass
from enum import Enum
from hashlib import sha256
from typing import TYPE_CHECKING, Final, NamedTuple

import orjson

from relay.client.transcripts.files import lines_of
from relay.client.transcripts.telling import Tally
from relay.memory.transcripts.lines import Opening, opening
from relay.memory.transcripts.transcript import Transcript

if TYPE_CHECKING:
    from pathlib import Path
    from typing import BinaryIO

    from relay.memory.draft import Draft
    from relay.memory.transcripts.plan import Plan

UNSETTLED: Final = 1 << 20
"""Bytes in which a session says where it runs and when; one that does not is told without."""
_AT_ONCE: Final = 4 << 20
"""Bytes of lines that are told in one go, and one line more."""
_SAME: Final = 1 << 10
"""Bytes, of the start and of the end of what was read, that are looked at again."""


class Turn(Enum):
    """What became of a file since it was looked at last."""

    NOTHING = "nothing new"
    GREW = "more lines"
    REWRITTEN = "what was read is no longer there"
    GONE = "the file is not there"


class News(NamedTuple):
    turn: Turn
    drafts: list[Draft]
    lines: int


@dataclass(frozen=True, slots=True)
class Mark:
    """What a bookmark says: so much of the file was sent, in this way."""

    plan: str
    size: int
    """Bytes."""
    lines: int
    hash: str
    """SHA-256 of those bytes, hex."""
    base: str | None
    ms: int
    session: str | None


_Stamp = tuple[int, ...]
"""Changes with what is in a file; empty: there is none."""


def _stamp_of(path: Path) -> _Stamp:
    try:
        about = path.stat()
    except FileNotFoundError:
        return ()
    return about.st_ino, about.st_size, about.st_mtime_ns, about.st_ctime_ns


class Tail:
    """One file, from the moment that it is followed."""

    def __init__(self, path: Path, author: str, plan: Plan, bookmark: Path) -> None:
        """author: who will sign, 64 hex. bookmark: the file to keep the place in."""
        self.path = path
        self.tally = Tally()
        self._author = author
        self._plan = plan
        self._bookmark = bookmark
        self._script: Transcript | None = None
        self._opening = Opening()
        self._stamp: _Stamp | None = None
        """Of the file when there was nothing new in it; None: there may be."""
        self._size = self._looked_at = 0
        """Bytes that were told; that there were when nothing of them could be."""
        self._begin()

    @property
    def session(self) -> str | None:
        """None: the file has not said it yet."""
        if self._script is None:
            return self._plan.session or self._opening.session  # as it was, if it was written anew
        return self._script.session

    @property
    def base(self) -> str:
        """Where the session runs; empty while that is not known."""
        return self._opening.base or ""

    def resume(self) -> Turn:
        """Take up what the bookmark says was sent; NOTHING without one."""
        mark = self._stored_mark()
        if mark is None:
            return Turn.NOTHING
        self._open_with(Opening(mark.base, mark.ms, mark.session))
        try:
            with self.path.open("rb") as file:
                while self._size < mark.size and self._told(file, mark.size - self._size):
                    pass
        except FileNotFoundError:
            return Turn.GONE
        if (self._size, self._hash.hexdigest()) == (mark.size, mark.hash):
            return Turn.NOTHING
        self._begin()
        return Turn.REWRITTEN

    def has_changed(self) -> bool:
        """Whether `more` may have anything to tell: a folder may hold thousands of old files, which
        are not opened twice a second."""
        return self._stamp is None or _stamp_of(self.path) != self._stamp

    def more(self) -> News:
        """The events of the lines that came since, some at a time. See `sent`."""
        stamp = _stamp_of(self.path)
        news = self._news()
        self._stamp = stamp if news.turn in (Turn.NOTHING, Turn.GONE) else None
        return news

    def _news(self) -> News:
        try:
            with self.path.open("rb") as file:
                size = os.fstat(file.fileno()).st_size
                if not self._is_same(file, size):
                    self._begin()
                    return News(Turn.REWRITTEN, [], 0)
                if size == self._looked_at:
                    return News(Turn.NOTHING, [], 0)
                if self._script is None and not self._is_settled(file, size):
                    self._looked_at = size
                    return News(Turn.NOTHING, [], 0)
                before = self.tally.lines
                drafts = self._told(file, size - self._size)
                self._looked_at = size if not drafts else self._size
                turn = Turn.GREW if drafts else Turn.NOTHING
                return News(turn, drafts, self.tally.lines - before)
        except FileNotFoundError:
            return News(Turn.GONE, [], 0)

    def sent(self) -> None:
        """What `more` gave is at the relay, or on its way for sure. On disk when it returns."""
        opening_ = self._opening
        mark = Mark(
            self._plan_name,
            self._size,
            self.tally.lines,
            self._hash.hexdigest(),
            opening_.base,
            opening_.ms or 0,
            opening_.session,
        )
        self._bookmark.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        new = self._bookmark.with_suffix(".new")
        new.write_bytes(orjson.dumps(asdict(mark)))
        new.replace(self._bookmark)

    @property
    def _plan_name(self) -> str:
        """The same for all plans that give the same events."""
        plan, parts = self._plan, sorted(self._plan.stripping.parts)
        said = (plan.session, plan.group, plan.paths.value, plan.chunk, plan.max_event, *parts)
        return sha256(orjson.dumps([self._author, *said])).hexdigest()

    def _begin(self) -> None:
        """As if nothing of the file had been read."""
        self._script = None
        self._size = 0
        self._looked_at = 0
        self._hash = sha256()
        self._head = self._end = b""
        self.tally = Tally()

    def _stored_mark(self) -> Mark | None:
        try:
            mark = Mark(**orjson.loads(self._bookmark.read_bytes()))
        except (FileNotFoundError, ValueError, TypeError):
            return None  # nothing is lost: the relay knows what it has
        return mark if mark.plan == self._plan_name else None

    def _is_same(self, file: BinaryIO, size: int) -> bool:
        """Whether what was read still begins and ends as it did."""
        if size < self._size:
            return False
        file.seek(0)
        if file.read(len(self._head)) != self._head:
            return False
        file.seek(self._size - len(self._end))
        return file.read(len(self._end)) == self._end

    def _is_settled(self, file: BinaryIO, size: int) -> bool:
        """Whether the file has said what its first events depend on; told from here on, if so."""
        file.seek(0)
        whole = (raw for raw in lines_of(file, size) if raw.endswith(b"\n"))
        found = opening(whole)
        if not found.is_settled and size < UNSETTLED:
            return False
        changed_ms = os.fstat(file.fileno()).st_mtime_ns // 1_000_000
        ms = changed_ms if found.ms is None else found.ms
        self._open_with(Opening(found.base, ms, found.session))
        return True

    def _open_with(self, found: Opening) -> None:
        self._opening = found
        self._script = Transcript(
            self._author, found, stem=self.path.stem, now_ms=found.ms or 0, plan=self._plan
        )

    def _told(self, file: BinaryIO, size: int) -> list[Draft]:
        """The events of whole lines among the next `size` bytes."""
        assert self._script is not None
        drafts: list[Draft] = []
        file.seek(self._size)
        begun = self._size
        for raw in lines_of(file, size):
            if not raw.endswith(b"\n") or self._size - begun > _AT_ONCE:
                break
            of_line = self._script.drafts(raw)
            self.tally.add(raw, of_line)
            drafts += of_line
            self._size += len(raw)
            self._hash.update(raw)
            self._head += raw[: _SAME - len(self._head)]
            self._end = (self._end + raw)[-_SAME:]
        return drafts
