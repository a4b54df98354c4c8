"""The keeper: the one process behind the hooks of a user's coding agents. MEMORY.md M-11, M-13.

It records what `relay.hook` tells it, and brings it to the relay while nobody waits: sends the
outbox, fetches what other machines wrote when a session begins, asks for summaries, sweeps. A lock
file makes it the only one; without work it ends itself. All it knows is in the cache, so it may be
ended at any time.
"""

from __future__ import annotations

import asyncio
import fcntl
import os
from contextlib import asynccontextmanager, contextmanager, suppress
from threading import Lock
from typing import TYPE_CHECKING, Final

from relay.client.client import Client, unix_now
from relay.client.nmem import sync
from relay.client.nmem.forgetting import sweep
from relay.client.nmem.reading import counts
from relay.client.nmem.recording import Hooks, log
from relay.client.nmem.summaries import sum_up
from relay.client.nmem.taking import bind
from relay.client.settings import FILE, Actor, find_settings
from relay.hook import ANSWER_S, LOCK, SOCKET, words
from relay.memory.nmem.capture import HookEvent

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Iterator
    from pathlib import Path

    from relay.client.nmem.database import Database
    from relay.client.nmem.hooks import Told

IDLE_S: Final = 900.0
"""Without a hook for so long the keeper ends."""
_GATHERED_S: Final = 0.2
"""What is recorded within so much time is sent together."""
_HEARD_S: Final = 5.0
"""Within so much time a hook has said what it says, and is answered; it waits for less."""
_ROUND_S: Final = 60.0
"""How often it looks for what has become due."""
_FIRST_WAIT_S, _LONGEST_WAIT_S = 2.0, 120.0
"""Between two tries to reach the relay."""
_DAY: Final = 86_400


async def keep(home: Path, idle_s: float = IDLE_S, lock: int | None = None) -> None:
    """Until it has been idle for so long, or other settings hold. Ends at once when there is
    another keeper. `lock`: the file descriptor of the lock, which the hook that started it has
    handed on and which is closed here. Raises OSError."""
    socket = home / SOCKET
    socket.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    with _lock(socket.with_name(LOCK), lock) as is_ours:
        if not is_ours:
            return
        await _Keeper(home, idle_s).run(socket)


@contextmanager
def _lock(path: Path, inherited: int | None) -> Iterator[bool]:
    """Whether the lock is ours inside. It dies with its process, whose number is in the file."""
    if inherited is None:
        file = os.open(path, os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600)
    else:
        file = inherited
        os.set_inheritable(file, False)  # noqa: FBT003
    try:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            yield False
            return
        os.ftruncate(file, 0)
        os.pwrite(file, f"{os.getpid()}\n".encode(), 0)
        yield True
    finally:
        os.close(file)


def _stamp(home: Path) -> tuple[int, int] | None:
    """Changes with client.toml."""
    try:
        found = (home / FILE).stat()
    except OSError:
        return None
    return found.st_mtime_ns, found.st_size


class _Keeper:
    def __init__(self, home: Path, idle_s: float) -> None:
        self._home = home
        self._hooks: Hooks | None = None
        self._opening = Lock()
        self._idle_s = idle_s
        self._stamp = _stamp(home)
        self._over = asyncio.Event()
        self._taking: set[asyncio.Task[Told]] = set()
        self._busy_at = asyncio.get_running_loop().time()
        self._work = asyncio.Event()
        self._work.set()  # what an earlier one has left
        self._is_to_fetch = True
        self._swept_at = 0
        self._asked: set[tuple[str, int]] = set()

    async def run(self, socket: Path) -> None:
        try:
            async with self._listening(socket):
                background = asyncio.create_task(self._in_background())
                try:
                    await self._until_idle()
                finally:
                    background.cancel()
                    await asyncio.wait([background])
        finally:
            await self._close()

    def _opened(self) -> Hooks:
        """In a thread. As long as settings or cache cannot be used, every hook says so in the log:
        to end would have each of them start another keeper. Raises what `Hooks` does."""
        with self._opening:
            if self._hooks is None:
                self._hooks = Hooks(self._home)
            return self._hooks

    async def _close(self) -> None:
        """What has been begun is recorded before."""
        self._over.set()
        if self._taking:
            await asyncio.wait(self._taking)
        with self._opening:
            if self._hooks is not None:
                self._hooks.database.close()

    @asynccontextmanager
    async def _listening(self, socket: Path) -> AsyncIterator[None]:
        # One that was killed has left it: the lock is ours.
        await asyncio.to_thread(socket.unlink, missing_ok=True)
        before = os.umask(0o177)
        try:
            server = await asyncio.start_unix_server(self._answer, socket)
        finally:
            os.umask(before)
        try:
            yield
        finally:
            server.close()
            await asyncio.to_thread(socket.unlink, missing_ok=True)
            await server.wait_closed()

    async def _until_idle(self) -> None:
        clock = asyncio.get_running_loop().time
        while not self._over.is_set() and (left := self._busy_at + self._idle_s - clock()) > 0:
            with suppress(TimeoutError):
                async with asyncio.timeout(left):
                    await self._over.wait()

    # -- hooks ------------------------------------------------------------------------------------

    async def _answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            async with asyncio.timeout(_HEARD_S):
                said = await reader.read()
            writer.write(await self._done(said))
            async with asyncio.timeout(_HEARD_S):
                await writer.drain()
        except OSError:
            writer.transport.abort()  # the hook was ended, or hangs
        finally:
            writer.close()

    async def _done(self, asked: bytes) -> bytes:
        """`+` and what the agent is told, or `-`: that is not for us to do."""
        if not asked or self._over.is_set():
            return b"-"  # a hook that was ended before it said anything; or we are
        *agreed, _, _ = words("", 0)
        said = asked.split(b"\0", len(agreed) + 2)
        if said[:-3] != agreed or not said[-2].isdigit() or self._stamp != _stamp(self._home):
            self._over.set()  # one with the settings that hold now takes its place
            return b"-"
        self._busy_at = asyncio.get_running_loop().time()
        named, at = os.fsdecode(said[-3]), int(said[-2])
        if unix_now() - at > ANSWER_S:
            return b"-"  # we were stopped for a while: the hook no longer waits, and has done it
        taking = asyncio.create_task(asyncio.to_thread(self._taken, said[-1], named, at))
        self._taking.add(taking)
        taking.add_done_callback(self._taking.discard)
        try:
            told = await taking
        except Exception as error:  # noqa: BLE001  an agent is never stopped by its hooks
            log(self._home, named, error, at)
            return b"+"
        self._is_to_fetch |= told.event is HookEvent.SESSION_START
        self._work.set()
        return b"+" + told.answer.encode(errors="replace")

    def _taken(self, said: bytes, named: str, at: int) -> Told:
        return self._opened().take(said, named, at)

    # -- in the background ------------------------------------------------------------------------

    async def _in_background(self) -> None:
        wait_s = _FIRST_WAIT_S
        while True:
            with suppress(TimeoutError):
                async with asyncio.timeout(_ROUND_S):
                    await self._work.wait()
            await asyncio.sleep(_GATHERED_S)
            self._work.clear()
            is_brought = await self._tried(self._brought())
            if self._hooks is not None and await self._tried(self._tidied(self._hooks)):
                self._work.set()
            if is_brought:
                wait_s = _FIRST_WAIT_S
            else:
                await asyncio.sleep(wait_s)
                wait_s = min(2 * wait_s, _LONGEST_WAIT_S)
                self._work.set()

    async def _tried(self, work: Awaitable[bool]) -> bool:
        """What it comes to; False when it fails, which is a line in the log."""
        try:
            return await work
        except Exception as error:  # noqa: BLE001  the hooks go on
            log(self._home, "keep", error, unix_now())
            return False

    async def _brought(self) -> bool:
        """Whether all is at the relay, or refused there. Raises Unreachable, UserError, …"""
        database = (await asyncio.to_thread(self._opened)).database
        if not (self._is_to_fetch or await asyncio.to_thread(_is_waiting, database)):
            return True
        settings = await asyncio.to_thread(
            find_settings,
            Actor.AGENT,
            relay=None,
            key_file=None,
            environ=os.environ,
            home=self._home,
            here=None,
        )
        await asyncio.to_thread(bind, database, settings.key.pubkey)
        async with Client(settings.relay, settings.key) as client:
            sent = await sync.send(client, settings.key, database)
            if self._is_to_fetch:
                await sync.fetch(client, settings.key, database)
                self._is_to_fetch = False
        return sent.waiting == 0

    async def _tidied(self, hooks: Hooks) -> bool:
        """Old rows go once a day; sessions that are over are summed up, one at a time: what is
        recorded meanwhile does not wait for a model. Whether there may be more to do."""
        now = unix_now()
        if now - self._swept_at > _DAY:
            self._swept_at = now
            await asyncio.to_thread(sweep, hooks.database, now)
        return await sum_up(hooks.database, hooks.settings, now, self._asked) > 0


def _is_waiting(database: Database) -> bool:
    with database.reading() as db:
        return counts(db).waiting > 0
