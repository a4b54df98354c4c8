"""Follower: sends session files to a relay while they are being written."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from dataclasses import dataclass, replace
from hashlib import sha256
from typing import TYPE_CHECKING, Final

from relay.client.errors import ClientError, PublishRefused
from relay.client.transcripts.files import NoFile, files_in, root_of, session_file, session_ids
from relay.client.transcripts.tail import UNIDENTIFIED, FileChange, Tail, stamp_of
from relay.errors import UserError
from relay.memory.transcripts.records import Status

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable, Mapping
    from pathlib import Path

    from relay.client.transcripts.files import SessionFile
    from relay.client.transcripts.results import Delivered
    from relay.client.transcripts.session_events import Copied
    from relay.client.transcripts.tail import Stamp
    from relay.client.transcripts.transcripts import Transcripts
    from relay.memory.transcripts.plan import Plan

POLL_S: Final = 0.5
"""Poll interval."""
_INTRODUCE_S: Final = 5.0
"""After that the relay counts as unreachable; retried with the next lines."""


@dataclass(frozen=True, slots=True)
class Step:
    """What happened to one file."""

    path: Path
    session: str
    change: FileChange
    """GREW, REWRITTEN or GONE."""
    lines: int = 0
    sent: Delivered | None = None
    """Only for GREW."""


class Follower:
    """A file, or all session files below a folder, including new ones."""

    def __init__(
        self,
        transcripts: Transcripts,
        path: Path,
        plan: Plan,
        places: Path,
        report: Callable[[Step], None],
    ) -> None:
        """`plan`: one that fits the relay. `places`: folder of the saved offsets. `report` is
        called with each step."""
        self._transcripts = transcripts
        self._path = path
        self._plan = plan
        self._places = places
        self._report = report
        self._tails: dict[Path, Tail] = {}
        self._unidentified: dict[Path, Stamp] = {}
        """Those that name no session: looked at again when they have changed."""
        self._used_ids: dict[str, Path] = {}
        self._missing: set[Path] = set()
        self._introduced: set[str] = set()
        self._early: set[Path] = set()
        """Those with lines that were refused as dated ahead: the next run sends them again."""

    async def run(self, after_poll: Callable[[], Awaitable[None]]) -> None:
        """Run until cancelled; `after_poll` is called after each poll. Raises PublishRefused if the
        relay accepts nothing from this key; SpoolFull, SpoolDamaged, OSError."""
        while True:
            await self.poll()
            await after_poll()
            await asyncio.sleep(POLL_S)

    async def poll(self) -> None:
        """Send the new lines of each file. Raises as `run` does."""
        paths = await asyncio.to_thread(files_in, self._path)
        new = [path for path in paths if path not in self._tails]
        if new:
            for path, session in (await asyncio.to_thread(self._sessions, new)).items():
                await self._add(path, session)
        for tail in await asyncio.to_thread(self._changed):
            await self._send_more(tail)

    def _changed(self) -> list[Tail]:
        return [tail for tail in self._tails.values() if tail.has_changed()]

    def _sessions(self, paths: Iterable[Path]) -> Mapping[Path, str | None]:
        """Session id of each file; None: the id named in the file."""
        if self._plan.session is not None:
            return dict.fromkeys(paths)
        root = root_of(self._path)
        files = [file for path in paths if (file := self._identified(path, root)) is not None]
        if root is None and not files:
            return dict.fromkeys(paths)
        ids = session_ids(files, self._used_ids)
        self._used_ids |= {id_: path for path, id_ in ids.items() if id_ not in self._used_ids}
        named = {file.path: file.session for file in files}
        renamed = {path: id_ for path, id_ in ids.items() if id_ != named[path]}
        for path, id_ in renamed.items():
            self._transcripts.note_renamed(id_, named[path])
        return {path: renamed.get(path) for path in ids}

    def _identified(self, path: Path, root: Path | None) -> SessionFile | None:
        """The file, once it names its session; None: not yet."""
        try:
            stamp = stamp_of(path)
            if self._unidentified.get(path) == stamp:
                return None
            file = session_file(path, root)
        except (OSError, NoFile):
            return None  # removed again, or not to be opened: perhaps at the next poll
        except UserError:  # empty, or with a line that is too long
            file = None
        if file is None or (file.opening.session is None and file.size <= UNIDENTIFIED):
            self._unidentified[path] = stamp  # as it was before it was read
            return None
        self._unidentified.pop(path, None)
        return file

    async def _add(self, path: Path, session: str | None) -> None:
        plan = self._plan if session is None else replace(self._plan, session=session)
        place, root = self._place_of(path), root_of(self._path)
        tail = Tail(path, self._transcripts.pubkey, plan, place, root)
        change = await asyncio.to_thread(tail.resume)
        self._tails[path] = tail
        if change is FileChange.REWRITTEN:
            self._report(Step(path, tail.session or path.stem, change))

    async def _send_more(self, tail: Tail) -> None:
        while True:
            update = await asyncio.to_thread(tail.more)
            if update.change in (FileChange.GONE, FileChange.UNREADABLE):
                if tail.path not in self._missing:
                    self._missing.add(tail.path)
                    self._report(Step(tail.path, tail.session or tail.path.stem, update.change))
                return
            self._missing.discard(tail.path)
            if update.change is FileChange.NOTHING:
                return
            session = tail.session or tail.path.stem
            if update.change is FileChange.REWRITTEN:
                self._report(Step(tail.path, session, update.change))
                continue
            if update.change is FileChange.IDENTIFIED:
                if not await self._begin(tail, session):
                    return
                continue
            drafts = update.drafts
            if tail.origin is not None and tail.is_catching_up:
                drafts = await self._transcripts.without_moved(drafts)
            sent = await self._transcripts.deliver(drafts, self._copied(tail))
            sent.duplicates += len(update.drafts) - len(drafts) + update.known
            if any(refusal.is_too_early for refusal in sent.refused):
                self._early.add(tail.path)
            if tail.path not in self._early:
                await asyncio.to_thread(tail.sent)
            self._report(Step(tail.path, session, update.change, update.lines, sent))
            if sent.stored or sent.queued or sent.duplicates:
                await self._introduce(tail, session)

    def _copied(self, tail: Tail) -> Mapping[str, Copied]:
        """See `Tally`. Empty if the user gave it another id."""
        return tail.tally.copied if self._plan.session in (None, tail.named) else {}

    async def _introduce(self, tail: Tail, session: str) -> None:
        """Publish the session state once there is a title. Not while offline: the relay may know
        it."""
        title = tail.tally.title
        if title and session not in self._introduced and self._transcripts.is_online:
            with suppress(TimeoutError, PublishRefused):
                async with asyncio.timeout(_INTRODUCE_S):
                    await self._transcripts.introduce(
                        session, title, tail.base, self._plan, Status.IDLE, self._copied(tail)
                    )
                self._introduced.add(session)

    async def _begin(self, tail: Tail, session: str) -> bool:
        """False: what is stored of a session must be known, and the relay is away."""
        origin = stored = None
        try:
            async with asyncio.timeout(_INTRODUCE_S):
                origin = await self._transcripts.origin_of(session)
                stored = await self._transcripts.thread_of(session, self._plan.group)
        except (TimeoutError, ClientError):
            if tail.follows_stored:
                return False
        tail.begin(origin, stored)
        return True

    def _place_of(self, path: Path) -> Path:
        whose = f"{self._transcripts.url} {self._transcripts.pubkey} {path.resolve()}"
        return self._places / f"{sha256(whose.encode()).hexdigest()[:32]}.place"
