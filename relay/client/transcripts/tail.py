"""Tail: one growing session file, and how far it was sent.

Invariants: the sent offset is saved on disk. After a restart the file is converted from its start,
which is fast and gives the same event ids (D-14); only events after the offset are sent. A line
counts once its end is written. If previously read bytes changed, the file was rewritten and is
converted again. Blocks; call it in a thread.
"""

from __future__ import annotations

import os
from dataclasses import asdict, dataclass, replace
from enum import Enum
from hashlib import sha256
from typing import TYPE_CHECKING, Final, NamedTuple

import orjson

from relay.client.transcripts.files import lines_of, opened
from relay.client.transcripts.session_events import Tally
from relay.errors import UserError
from relay.files import atomic_file, make_private
from relay.memory.transcripts.lines import SessionFacts, session_facts
from relay.memory.transcripts.plan import Layout
from relay.memory.transcripts.transcript import Transcript
from relay.nostr import kinds

if TYPE_CHECKING:
    from pathlib import Path
    from typing import BinaryIO

    from relay.memory.draft import Draft
    from relay.memory.transcripts.plan import Plan, StoredThread

UNIDENTIFIED: Final = 1 << 20
"""Bytes in which a session names its folder and time; otherwise it is converted without."""
_BATCH: Final = 4 << 20
"""Bytes of lines per batch, plus one line."""
_COMPARED: Final = 1 << 10
"""Bytes at the start and end of the read part that are compared again."""


class FileChange(Enum):
    """What happened to a file since the last poll."""

    NOTHING = "nothing new"
    IDENTIFIED = "it names its session: call `begin`"
    GREW = "more lines"
    REWRITTEN = "what was read is no longer there"
    GONE = "the file is not there"
    UNREADABLE = "the file cannot be read, or has too long a line"


_AT_REST: Final = frozenset({FileChange.NOTHING, FileChange.GONE, FileChange.UNREADABLE})
"""The file is looked at again when it has changed."""


class Update(NamedTuple):
    change: FileChange
    drafts: list[Draft]
    lines: int
    known: int = 0
    """Notes of these lines that are stored and need no draft."""


@dataclass(frozen=True, slots=True)
class SavedOffset:
    """The saved offset: how much of the file was sent, with which plan."""

    plan: str
    size: int
    """Bytes."""
    lines: int
    hash: str
    """SHA-256 of those bytes, hex."""
    base: str | None
    ms: int
    session: str | None
    origin: str | None = None
    follows_stored: bool = False
    """See `Plan.stored`: what is stored is asked for again."""


Stamp = tuple[int, ...]
"""Changes with the content of a file; empty: no file."""


def stamp_of(path: Path) -> Stamp:
    try:
        about = path.stat()
    except FileNotFoundError:
        return ()
    return about.st_ino, about.st_size, about.st_mtime_ns, about.st_ctime_ns


class Tail:
    """One followed file."""

    def __init__(
        self, path: Path, author: str, plan: Plan, offset_file: Path, root: Path | None = None
    ) -> None:
        """`author`: who will sign, 64 hex. `offset_file`: where the offset is saved. `root`: see
        `opened`."""
        self.path = path
        self._root = root
        self.tally = Tally()
        self._author = author
        self._plan = plan
        self._offset_file = offset_file
        self._converter: Transcript | None = None
        self._opening = SessionFacts()
        self.origin: str | None = None
        """See `Plan.origin`."""
        self.follows_stored = False
        """Whether new notes follow stored ones (`Plan.stored`)."""
        self._stamp: Stamp | None = None
        """Stamp of the file when it had nothing new; None: there may be new lines."""
        self._size = self._polled_size = 0
        """Bytes converted; file size when nothing could be converted."""
        self._hash = sha256()
        self._reset()

    @property
    def session(self) -> str | None:
        """None: not named in the file yet."""
        if self._converter is None:
            # The previous id, if the file was rewritten.
            return self._plan.session or self._opening.session
        return self._converter.session

    @property
    def named(self) -> str:
        """The session that its lines name, else its file name."""
        return self._opening.session or self.path.stem

    @property
    def base(self) -> str:
        """Working folder; empty while unknown."""
        return self._opening.base or ""

    def resume(self) -> FileChange:
        """Continue at the saved offset; NOTHING without one."""
        saved = self._saved_offset()
        if saved is None:
            return FileChange.NOTHING
        self.follows_stored = saved.follows_stored
        if self.follows_stored:  # converted again, without the lines that are stored by then
            return FileChange.NOTHING
        self._opening = SessionFacts(saved.base, saved.ms, saved.session)
        self.begin(saved.origin)
        try:
            with opened(self.path, self._root) as file:
                while self._size < saved.size and self._convert(file, saved.size - self._size):
                    pass
        except FileNotFoundError:
            return FileChange.GONE
        except (OSError, UserError):
            self._reset()
            return FileChange.UNREADABLE
        if (self._size, self._hash.hexdigest()) == (saved.size, saved.hash):
            self.is_catching_up = False
            return FileChange.NOTHING
        self._reset()
        return FileChange.REWRITTEN

    def has_changed(self) -> bool:
        """Whether `more` may return lines: a folder may contain thousands of old files, which
        should not be opened twice a second."""
        return self._stamp is None or stamp_of(self.path) != self._stamp

    def more(self) -> Update:
        """The events of new lines, in batches. Call `sent` afterwards."""
        stamp = stamp_of(self.path)
        update = self._read_update()
        self.is_catching_up = self.is_catching_up and update.change is not FileChange.NOTHING
        self._stamp = stamp if update.change in _AT_REST else None
        return update

    def _read_update(self) -> Update:
        try:
            with opened(self.path, self._root) as file:
                size = os.fstat(file.fileno()).st_size
                if not self._is_same(file, size):
                    self._reset()
                    return Update(FileChange.REWRITTEN, [], 0)
                if size == self._polled_size:
                    return Update(FileChange.NOTHING, [], 0)
                if self._converter is None:
                    if self._is_identified(file, size):
                        return Update(FileChange.IDENTIFIED, [], 0)
                    self._polled_size = size
                    return Update(FileChange.NOTHING, [], 0)
                return self._converted(file, size)
        except FileNotFoundError:
            return Update(FileChange.GONE, [], 0)
        except (OSError, UserError):
            return Update(FileChange.UNREADABLE, [], 0)

    def _converted(self, file: BinaryIO, size: int) -> Update:
        """`size`: of the file."""
        assert self._converter is not None
        start, lines, notes = self._size, self.tally.lines, self._converter.notes
        drafts = self._convert(file, size - start)
        if self._size == start:
            self._polled_size = size
            return Update(FileChange.NOTHING, [], 0)
        self._polled_size = self._size
        known = self._converter.notes - notes
        known -= sum(draft.kind == kinds.CONVERSATION_NOTE for draft in drafts)
        return Update(FileChange.GREW, drafts, self.tally.lines - lines, known)

    def sent(self) -> None:
        """The events of `more` are at the relay or in the spool. Durable when it returns."""
        opening_ = self._opening
        saved = SavedOffset(
            self._plan_name,
            self._size,
            self.tally.lines,
            self._hash.hexdigest(),
            opening_.base,
            opening_.ms or 0,
            opening_.session,
            self.origin,
            self.follows_stored,
        )
        make_private(self._offset_file.parent)
        with atomic_file(self._offset_file) as file:  # other programs may follow the same one
            file.write(orjson.dumps(asdict(saved)))

    @property
    def _plan_name(self) -> str:
        """Equal for plans that produce the same events."""
        plan, parts = self._plan, sorted(self._plan.stripping.parts)
        parameters = (
            plan.session,
            plan.group,
            plan.paths.value,
            plan.chunk,
            plan.max_event,
            plan.layout.value,
            *parts,
        )
        return sha256(orjson.dumps([self._author, *parameters])).hexdigest()

    def _reset(self) -> None:
        """Reset: nothing of the file was read."""
        self._converter = None
        self.is_catching_up = True
        """Whether the relay may have the next lines from another place."""
        self._size = 0
        self._polled_size = 0
        self._hash = sha256()
        self._head = self._end = b""
        self.tally = Tally()

    def _saved_offset(self) -> SavedOffset | None:
        try:
            saved = SavedOffset(**orjson.loads(self._offset_file.read_bytes()))
        except (FileNotFoundError, ValueError, TypeError):
            return None  # harmless: the relay knows what it has
        return saved if saved.plan == self._plan_name else None

    def _is_same(self, file: BinaryIO, size: int) -> bool:
        """Whether the read part still starts and ends with the same bytes."""
        if size < self._size:
            return False
        file.seek(0)
        if file.read(len(self._head)) != self._head:
            return False
        file.seek(self._size - len(self._end))
        return file.read(len(self._end)) == self._end

    def _is_identified(self, file: BinaryIO, size: int) -> bool:
        """Whether the file contains what its first events depend on; if so, conversion starts."""
        file.seek(0)
        complete = (raw for raw in lines_of(file, size) if raw.endswith(b"\n"))
        found = session_facts(complete)
        if not found.is_complete and size < UNIDENTIFIED:
            return False
        changed_ms = os.fstat(file.fileno()).st_mtime_ns // 1_000_000
        ms = changed_ms if found.ms is None else found.ms
        self._opening = SessionFacts(found.base, ms, found.session)
        return True

    def begin(self, origin: str | None, stored: StoredThread | None = None) -> None:
        """Convert from now on. `origin`, `stored`: see `Plan`; stored notes are in the classic
        layout, and so are those that follow them."""
        self.origin = origin
        self.follows_stored = stored is not None
        found, plan = self._opening, replace(self._plan, origin=origin)
        if stored is not None:
            plan = replace(plan, layout=Layout.CLASSIC, stored=stored)
        self._converter = Transcript(
            self._author, found, stem=self.path.stem, now_ms=found.ms or 0, plan=plan
        )

    def _convert(self, file: BinaryIO, size: int) -> list[Draft]:
        """The events of complete lines in the next `size` bytes."""
        assert self._converter is not None
        drafts: list[Draft] = []
        file.seek(self._size)
        start = self._size
        for raw in lines_of(file, size):
            if not raw.endswith(b"\n") or self._size - start > _BATCH:
                break
            line_drafts = self._converter.drafts(raw)
            self.tally.add(raw, line_drafts)
            drafts += line_drafts
            self._size += len(raw)
            self._hash.update(raw)
            self._head += raw[: _COMPARED - len(self._head)]
            self._end = (self._end + raw)[-_COMPARED:]
        return drafts
