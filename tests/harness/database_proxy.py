"""A way from a relay to the database that can be cut, stalled, or cut at a commit."""

from __future__ import annotations

import asyncio
import shutil
import tempfile
from contextlib import suppress
from enum import Enum, auto
from pathlib import Path
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable
    from typing import Self

_LISTENS: Final = b"LISTEN "
_WRITES: Final = b"pg_advisory_xact_lock"
_COMMITS: Final = b"COMMIT\0"
_TERMINATE: Final = b"X\0\0\0\4"


class AtCommit(Enum):
    """What becomes of the next commit."""

    LOSE_ANSWER = auto()
    """It is carried out, and the relay does not hear of it."""
    LOSE_REQUEST = auto()
    """The database does not hear of it."""
    CRASH = auto()
    """The database does not hear of it, and crashes: `crash` is called, and `mend` must be."""


class Proxy:
    """Stands where the server's socket would be: `host` is the folder. Use as a context."""

    def __init__(self, server: Path) -> None:
        self._server = server
        self.host = Path(tempfile.mkdtemp(prefix="px"))  # the path of a socket has 107 bytes
        self.is_cut = False
        self.keeps_open = False
        """The database does not hear that the relay closes a connection."""
        self.at_commit: AtCommit | None = None
        self.crash: Callable[[], Awaitable[None]]
        self.cut_commits = 0
        self._stalls = self._reads_go_on = False
        self._links: set[_Link] = set()
        self._carried: set[asyncio.Task[None]] = set()

    async def __aenter__(self) -> Self:
        path = self.host / self._server.name
        self._listening = await asyncio.start_unix_server(self._came, path)
        return self

    async def __aexit__(self, *_: object) -> None:
        self._listening.close()
        self.cut()
        await asyncio.gather(*self._carried, return_exceptions=True)
        shutil.rmtree(self.host)

    def cut(self) -> None:
        """Every connection is lost, and no other is made, until `mend`."""
        self.is_cut = True
        for link in self._links:
            link.abort()

    def stall(self, *, reads_go_on: bool = False) -> None:
        """Nothing goes through and nothing is lost, until `mend`. `reads_go_on`: only what the
        relay writes and what it hears of others is stalled."""
        self._stalls, self._reads_go_on = True, reads_go_on
        for link in self._links:
            self._hold(link)

    def _hold(self, link: _Link) -> None:
        if self._stalls and (link.is_of_writes or not self._reads_go_on):
            link.flows.clear()

    def mend(self) -> None:
        self.is_cut, self.at_commit, self._stalls = False, None, False
        for link in self._links:
            link.flows.set()

    def _came(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.create_task(self._carry(reader, writer))
        self._carried.add(task)
        task.add_done_callback(self._carried.discard)

    async def _carry(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        link = _Link(writer)
        self._links.add(link)
        try:
            with suppress(OSError):
                if self.is_cut:
                    return
                answers, link.server = await asyncio.open_unix_connection(self._server)
                await asyncio.gather(self._forth(link, reader), link.back(answers))
        finally:
            self._links.discard(link)
            link.abort()

    async def _forth(self, link: _Link, reader: asyncio.StreamReader) -> None:
        assert link.server is not None
        while data := await reader.read(1 << 16):
            link.is_of_writes |= _LISTENS in data or _WRITES in data
            self._hold(link)
            await link.flows.wait()
            if self.keeps_open and data.endswith(_TERMINATE):
                continue
            if self.at_commit is not None and _COMMITS in data:
                what, self.at_commit = self.at_commit, None
                self.cut_commits += 1
                if what is AtCommit.LOSE_ANSWER:
                    link.loses_answer = True
                elif what is AtCommit.CRASH:
                    for each in self._links:  # do not hear of it before it is over
                        if each.is_of_writes:
                            each.flows.clear()
                    await self.crash()
                if what is not AtCommit.LOSE_ANSWER:
                    break
            link.server.write(data)
            await link.server.drain()
        link.abort()


class _Link:
    """One connection."""

    def __init__(self, relay: asyncio.StreamWriter) -> None:
        self._relay = relay
        self.server: asyncio.StreamWriter | None = None
        self.flows = asyncio.Event()
        self.flows.set()
        self.is_of_writes = False
        self.loses_answer = False

    async def back(self, answers: asyncio.StreamReader) -> None:
        while (data := await answers.read(1 << 16)) and not self.loses_answer:
            await self.flows.wait()
            self._relay.write(data)
            await self._relay.drain()
        await self.flows.wait()
        self.abort()

    def abort(self) -> None:
        self.flows.set()
        for end in (self._relay, self.server):
            if end is not None:
                end.transport.abort()
