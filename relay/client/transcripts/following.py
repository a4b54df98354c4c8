"""Follower: session files on their way to a relay while somebody goes on writing them."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from dataclasses import dataclass, replace
from hashlib import sha256
from typing import TYPE_CHECKING, Final

from relay.client.errors import PublishRefused
from relay.client.transcripts.files import files_in, session_file, session_ids
from relay.client.transcripts.tailing import UNSETTLED, Tail, Turn
from relay.errors import UserError
from relay.memory.transcripts.records import Status

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable, Mapping
    from pathlib import Path

    from relay.client.transcripts.files import SessionFile
    from relay.client.transcripts.results import Delivered
    from relay.client.transcripts.writing import Transcripts
    from relay.memory.transcripts.plan import Plan

POLL_S: Final = 0.5
"""Between two looks at the files."""
_INTRODUCED_S: Final = 5.0
"""After that the relay is away: it is tried again with the next lines."""


@dataclass(frozen=True, slots=True)
class Step:
    """What happened to one file."""

    path: Path
    session: str
    turn: Turn
    """GREW, REWRITTEN or GONE."""
    lines: int = 0
    sent: Delivered | None = None
    """Of GREW."""


class Follower:
    """A file, or all session files below a folder, those to come included."""

    def __init__(
        self,
        transcripts: Transcripts,
        path: Path,
        plan: Plan,
        places: Path,
        tell: Callable[[Step], None],
    ) -> None:
        """`plan`: one that fits the relay. `places`: the folder of the bookmarks. `tell` hears of
        each step."""
        self._transcripts = transcripts
        self._path = path
        self._plan = plan
        self._places = places
        self._tell = tell
        self._tails: dict[Path, Tail] = {}
        self._taken: set[str] = set()
        self._gone: set[Path] = set()
        self._introduced: set[str] = set()

    async def run(self, looked: Callable[[], Awaitable[None]]) -> None:
        """Until it is cancelled; `looked` is called after each look. Raises PublishRefused when the
        relay takes nothing from this key; SpoolFull, SpoolDamaged, OSError."""
        while True:
            await self.look()
            await looked()
            await asyncio.sleep(POLL_S)

    async def look(self) -> None:
        """Send what is new in each file. Raises as `run` does."""
        paths = await asyncio.to_thread(files_in, self._path)
        new = [path for path in paths if path not in self._tails]
        if new:
            for path, session in (await asyncio.to_thread(self._sessions, new)).items():
                await self._take_up(path, session)
        for tail in await asyncio.to_thread(self._changed):
            await self._send_more(tail)

    def _changed(self) -> list[Tail]:
        return [tail for tail in self._tails.values() if tail.has_changed()]

    def _sessions(self, paths: Iterable[Path]) -> Mapping[Path, str | None]:
        """Under which id each is kept; None: under the one that it names."""
        if not self._path.is_dir():
            return dict.fromkeys(paths)
        files = [file for path in paths if (file := _settled(path)) is not None]
        ids = session_ids(files, self._taken)
        self._taken |= set(ids.values())
        named = {file.path: file.session for file in files}
        return {path: None if named[path] == id_ else id_ for path, id_ in ids.items()}

    async def _take_up(self, path: Path, session: str | None) -> None:
        plan = self._plan if session is None else replace(self._plan, session=session)
        tail = Tail(path, self._transcripts.pubkey, plan, self._place_of(path))
        turn = await asyncio.to_thread(tail.resume)
        self._tails[path] = tail
        if turn is Turn.REWRITTEN:
            self._tell(Step(path, tail.session or path.stem, turn))

    async def _send_more(self, tail: Tail) -> None:
        while True:
            news = await asyncio.to_thread(tail.more)
            if news.turn is Turn.GONE:
                if tail.path not in self._gone:
                    self._gone.add(tail.path)
                    self._tell(Step(tail.path, tail.session or tail.path.stem, news.turn))
                return
            self._gone.discard(tail.path)
            if news.turn is Turn.NOTHING:
                return
            session = tail.session or tail.path.stem
            if news.turn is Turn.REWRITTEN:
                self._tell(Step(tail.path, session, news.turn))
                continue
            sent = await self._transcripts.deliver(news.drafts)
            await asyncio.to_thread(tail.sent)
            self._tell(Step(tail.path, session, news.turn, news.lines, sent))
            await self._introduce(tail, session)

    async def _introduce(self, tail: Tail, session: str) -> None:
        """Once it has a title. Not while the relay is away: it may know the session already."""
        title = tail.tally.title
        if title and session not in self._introduced and self._transcripts.is_online:
            with suppress(TimeoutError, PublishRefused):
                async with asyncio.timeout(_INTRODUCED_S):
                    await self._transcripts.introduce(
                        session, title, tail.base, self._plan.group, Status.IDLE
                    )
                self._introduced.add(session)

    def _place_of(self, path: Path) -> Path:
        whose = f"{self._transcripts.url} {self._transcripts.pubkey} {path.resolve()}"
        return self._places / f"{sha256(whose.encode()).hexdigest()[:32]}.place"


def _settled(path: Path) -> SessionFile | None:
    """A file that has said which session it is; None: not yet."""
    try:
        file = session_file(path)
    except UserError:
        return None  # empty, or gone again
    return file if file.opening.session is not None or file.size > UNSETTLED else None
