"""The keeper: the one background process for the hooks of a user's coding agents (M-11, M-13).

It records what `relay.hook` sends it, and does what hooks cannot wait for: sends the outbox,
fetches records of other machines when a session starts, requests summaries, sweeps. A lock file
ensures that there is only one; it ends when idle. All state is in the cache, so it can be killed at
any time; only hooks that come while another program writes the cache for long wait in memory.
"""

from __future__ import annotations

import asyncio
import os
from collections import deque
from contextlib import asynccontextmanager, contextmanager, suppress
from socket import AF_UNIX
from socket import socket as Listening  # noqa: N812  `socket` is its path here
from threading import Lock
from typing import TYPE_CHECKING, Final, NamedTuple

from relay.client.client import Client
from relay.client.nmem import retries, sync
from relay.client.nmem.apply import bind
from relay.client.nmem.database import CacheBusy
from relay.client.nmem.hook_recording import Hooks, log, note, others_in
from relay.client.nmem.removal import sweep
from relay.client.nmem.summaries import summarise_next
from relay.client.settings import FILE, Actor, find_settings
from relay.clock import unix_now
from relay.files import make_private, own_file, socket_address, take_lock
from relay.hook import ANSWER_S, LOCK, SOCKET, words
from relay.memory.nmem.capture import HookEvent

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Iterator
    from pathlib import Path

    from relay.client.nmem.database import Database
    from relay.client.nmem.hooks import HookResult

IDLE_S: Final = 900.0
"""The keeper ends after so long without a hook."""
_BATCH_S: Final = 0.2
"""Records of this period are sent together."""
_REQUEST_S: Final = 5.0
"""Limit for reading a hook's request, and for writing the reply."""
_CHECK_S: Final = 2.0
"""Interval at which the keeper checks that its folders and settings still exist."""
_INTERVAL_S: Final = 60.0
"""Interval of background work."""
_FIRST_BACKOFF_S, _LONGEST_BACKOFF_S = 2.0, 120.0
"""Backoff for reaching the relay."""
_RETRY_S, _LONGEST_RETRY_S = 1.0, 30.0
"""Backoff for recording held hooks: a try may copy the whole database (`Adoption`)."""
_MAX_HELD: Final = 32 << 20
"""Bytes of held hooks."""
_HELD_SIZE: Final = 1_000
"""Bytes, at most, that a held hook needs beside its payload."""
_DAY: Final = 86_400


async def keep(home: Path, idle_s: float = IDLE_S, lock: int | None = None) -> None:
    """Run until idle for `idle_s`, until the settings change, or until a folder that it needs is
    removed, which it does not make again. Returns at once if there is another keeper, or the
    settings may be of others.

    `lock`: file descriptor of the lock inherited from the hook that started it; closed here. Raises
    OSError.
    """
    socket = home / SOCKET
    if lock is None:  # otherwise the hook made the folder
        make_private(socket.parent)
    with _lock(socket.with_name(LOCK), lock) as is_ours:
        if not is_ours or others_in(home):  # the hook says so
            return
        await _Keeper(home, idle_s).run(socket)


@contextmanager
def _lock(path: Path, inherited: int | None) -> Iterator[bool]:
    """Whether this process holds the lock, which ends with it; the file contains its process id."""
    if inherited is None:
        file = own_file(path, os.O_NOFOLLOW)
    else:
        file = inherited
        os.set_inheritable(file, False)  # noqa: FBT003
    try:
        try:
            take_lock(file, path)
        except BlockingIOError:
            yield False
            return
        with suppress(OSError):  # the disk may be full
            os.ftruncate(file, 0)
            os.pwrite(file, f"{os.getpid()}\n".encode(), 0)
        yield True
    finally:
        os.close(file)


def _stamp(home: Path) -> tuple[int, int] | None:
    """A value that changes when client.toml changes; None: there is no such file."""
    try:
        found = (home / FILE).stat()
    except OSError:
        return None
    return found.st_mtime_ns, found.st_size


def _inode(path: Path) -> int | None:
    try:
        return path.stat().st_ino
    except OSError:
        return None


class _HookCall(NamedTuple):
    payload: bytes
    named: str
    at: int
    """Unix seconds."""

    @property
    def size(self) -> int:
        return len(self.payload) + _HELD_SIZE


class _Keeper:
    def __init__(self, home: Path, idle_s: float) -> None:
        self._home = home
        self._hooks: Hooks | None = None
        self._opening = Lock()
        self._idle_s = idle_s
        self._stamp = _stamp(home)
        self._socket: int | None = None
        """Inode of the keeper's socket: a socket with another inode belongs to another keeper."""
        self._folder: int | None = None
        """Inode of its folder."""
        self._ending = asyncio.Event()
        self._recording: set[asyncio.Task[HookResult]] = set()
        self._held: deque[_HookCall] = deque()
        """Not recorded yet as the cache is busy or the disk full; in the order in which they came.
        Recording one twice stores it once."""
        self._held_size = 0
        self._busy_at = asyncio.get_running_loop().time()
        self._work = asyncio.Event()
        self._work.set()  # a previous keeper may have left work
        self._must_fetch = True
        self._swept_at = 0
        self._refusal = ""
        """The last reason in the log."""
        self._summarised: set[tuple[str, int]] = set()

    async def run(self, socket: Path) -> None:
        try:
            async with self._serve(socket):
                background = [
                    asyncio.create_task(self._run_background()),
                    asyncio.create_task(self._retry_held()),
                ]
                try:
                    await self._until_idle()
                finally:
                    for task in background:
                        task.cancel()
                    await asyncio.wait(background)
        finally:
            await self._close()

    def _open_hooks(self) -> Hooks:
        """Blocks. While settings or cache are unusable the keeper keeps running and every hook logs
        the error; if it ended, each hook would start another. Raises what `Hooks` raises."""
        with self._opening:
            if self._hooks is None:
                if not self._is_in_place():
                    raise FileNotFoundError("the folder of the hooks was removed")
                self._hooks = Hooks(self._home)
            return self._hooks

    async def _close(self) -> None:
        """Waits for hooks being recorded; tries held ones for the last time."""
        self._ending.set()
        if self._recording:
            await asyncio.wait(self._recording)
        hooks = self._hooks
        if self._held and (hooks is None or await asyncio.to_thread(hooks.is_in_place)):
            error = await self._record_held()
            if error is not None:
                for hook in self._held:
                    await asyncio.to_thread(log, self._home, hook.named, error, hook.at)
        with self._opening:
            if self._hooks is not None:
                self._hooks.database.close()

    @asynccontextmanager
    async def _serve(self, socket: Path) -> AsyncIterator[None]:
        listening = await asyncio.to_thread(self._listen, socket)
        server = await asyncio.start_unix_server(self._answer, sock=listening)
        try:
            yield
        finally:
            server.close()
            if await asyncio.to_thread(_inode, socket) == self._socket:
                await asyncio.to_thread(socket.unlink, missing_ok=True)
            await server.wait_closed()

    def _listen(self, path: Path) -> Listening:
        """Blocks. The socket gets its name only when hooks can be answered."""
        made, unnamed = Listening(AF_UNIX), path.with_suffix(".new")
        before = os.umask(0o177)
        try:
            unnamed.unlink(missing_ok=True)
            with socket_address(unnamed) as address:
                made.bind(address)
            made.listen()
            self._socket, self._folder = _inode(unnamed), _inode(path.parent)
            # A killed keeper leaves its socket; this process holds the lock.
            unnamed.replace(path)
        except BaseException:
            made.close()
            raise
        finally:
            os.umask(before)
        return made

    async def _until_idle(self) -> None:
        clock = asyncio.get_running_loop().time
        while (
            not self._ending.is_set() and (remaining := self._busy_at + self._idle_s - clock()) > 0
        ):
            if not await asyncio.to_thread(self._is_wanted):
                self._ending.set()
                return
            with suppress(TimeoutError):
                async with asyncio.timeout(min(remaining, _CHECK_S)):
                    await self._ending.wait()

    def _is_wanted(self) -> bool:
        """Whether socket, cache and settings are still in place."""
        return _inode(self._home / SOCKET) == self._socket and self._is_in_place()

    def _is_in_place(self) -> bool:
        """As `_is_wanted`, without the socket, which is removed before the last hooks are
        recorded."""
        hooks = self._hooks
        return (
            _inode((self._home / SOCKET).parent) == self._folder
            and self._stamp == _stamp(self._home)
            and (hooks is None or hooks.is_in_place())
        )

    # -- hooks ------------------------------------------------------------------------------------

    async def _answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            async with asyncio.timeout(_REQUEST_S):
                parts = await reader.read()
            writer.write(await self._reply_to(parts))
            async with asyncio.timeout(_REQUEST_S):
                await writer.drain()
        except OSError:
            writer.transport.abort()  # the hook was killed, or hangs
        finally:
            writer.close()

    async def _reply_to(self, request: bytes) -> bytes:
        """`+` and the text for the agent, or `-`: the hook must do the work itself."""
        if not request or self._ending.is_set():
            return b"-"  # the hook was killed before it sent anything, or this process is ending
        *expected, _, _ = words("", 0)
        parts = request.split(b"\0", len(expected) + 2)
        is_other = parts[:-3] != expected or not parts[-2].isdigit()
        if is_other or not self._is_wanted():
            self._ending.set()  # a keeper with the current settings replaces this one
            return b"-"
        self._busy_at = asyncio.get_running_loop().time()
        named, at = os.fsdecode(parts[-3]), int(parts[-2])
        if unix_now() - at > ANSWER_S:
            # This process was suspended: the hook stopped waiting and did the work itself.
            return b"-"
        hook = _HookCall(parts[-1], named, at)
        # After those of its session. An agent waits for what a starting session is told.
        if self._held and named != HookEvent.SESSION_START and self._hold(hook):
            return b"+"
        try:
            return b"+" + await self._recorded(hook)
        except CacheBusy as error:
            if not self._hold(hook):
                await asyncio.to_thread(self._log, error, named, at)
        except Exception as error:  # noqa: BLE001  hooks must never stop an agent
            await asyncio.to_thread(self._log, error, named, at)
        return b"+"

    async def _recorded(self, hook: _HookCall) -> bytes:
        """Record it; the text for the agent. Raises Invalid, CacheUnusable, OSError, …"""
        recording = asyncio.create_task(asyncio.to_thread(self._record, *hook))
        self._recording.add(recording)
        recording.add_done_callback(self._recording.discard)
        await asyncio.wait([recording])  # if this is cancelled, the thread goes on: see `_close`
        result = recording.result()
        self._must_fetch |= result.event is HookEvent.SESSION_START
        self._work.set()
        return result.answer.encode(errors="replace")

    def _record(self, payload: bytes, named: str, at: int) -> HookResult:
        return self._open_hooks().record(payload, named, at)

    def _hold(self, hook: _HookCall) -> bool:
        """Keep a hook to record it later; False: there are too many, or this process ends."""
        if self._ending.is_set() or self._held_size + hook.size > _MAX_HELD:
            return False
        self._held.append(hook)
        self._held_size += hook.size
        return True

    async def _retry_held(self) -> None:
        wait_s = _RETRY_S
        while True:
            await asyncio.sleep(wait_s)
            is_busy = await self._record_held() is not None
            wait_s = min(2 * wait_s, _LONGEST_RETRY_S) if is_busy else _RETRY_S

    async def _record_held(self) -> CacheBusy | None:
        """Record held hooks until one has to wait on; the error of that one."""
        while self._held:
            hook = self._held[0]
            try:
                await self._recorded(hook)
            except CacheBusy as error:
                return error
            except Exception as error:  # noqa: BLE001  those behind it must be recorded
                await asyncio.to_thread(self._log, error, hook.named, hook.at)
            self._held.popleft()
            self._held_size -= hook.size
        return None

    # -- background -------------------------------------------------------------------------------

    async def _run_background(self) -> None:
        wait_s = _FIRST_BACKOFF_S
        while True:
            with suppress(TimeoutError):
                async with asyncio.timeout(_INTERVAL_S):
                    await self._work.wait()
            await asyncio.sleep(_BATCH_S)
            self._work.clear()
            is_synchronised = await self._logged(self._synchronise())
            if self._hooks is not None and await self._logged(self._maintain(self._hooks)):
                self._work.set()
            if is_synchronised:
                wait_s = _FIRST_BACKOFF_S
            else:
                await asyncio.sleep(wait_s)
                wait_s = min(2 * wait_s, _LONGEST_BACKOFF_S)
                self._work.set()

    async def _logged(self, work: Awaitable[bool]) -> bool:
        """The result; False on failure, which is logged."""
        try:
            return await work
        except Exception as error:  # noqa: BLE001  hooks must still be recorded
            await asyncio.to_thread(self._log, error)
            return False

    def _log(self, error: BaseException, named: str = "keep", at: int | None = None) -> None:
        """Log an error, unless the keeper is about to end because something was removed."""
        if self._is_wanted():
            log(self._home, named, error, unix_now() if at is None else at)

    async def _synchronise(self) -> bool:
        """Whether everything is stored or refused at the relay. Raises Unreachable, UserError, …"""
        hooks = await asyncio.to_thread(self._open_hooks)
        database = hooks.database
        if not (self._must_fetch or await asyncio.to_thread(_is_waiting, database)):
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
            retries_due = await retries.are_due(client, database, str(self._stamp), unix_now())
            sent = await sync.send(client, settings.key, database, retries=retries_due)
            if sent.refused:
                await asyncio.to_thread(self._note_refusal, sent.refused, database)
            # What was deleted with it, or is newer, is fetched before an agent is told of it.
            self._must_fetch |= sent.deleted > 0
            if self._must_fetch:
                self._must_fetch = False  # a session that starts meanwhile fetches again
                try:
                    fetched = await sync.fetch(
                        client, settings.key, database, hooks.settings.sources
                    )
                except BaseException:
                    self._must_fetch = True
                    raise
                if fetched.removed and self._is_wanted():
                    text = f"removed {fetched.removed} records that {client.url} no longer gives"
                    await asyncio.to_thread(note, self._home, "keep", text, unix_now())
        return sent.waiting == 0

    def _note_refusal(self, number: int, database: Database) -> None:
        """Log a refusal; one for the same reason once, as each hook may bring a record."""
        reason = retries.last_refusal(database)
        if reason != self._refusal and self._is_wanted():
            self._refusal = reason
            text = f"the relay refused {number} records (rookery nmem status): {reason}"
            note(self._home, "keep", text, unix_now())

    async def _maintain(self, hooks: Hooks) -> bool:
        """Sweep once a day; summarise ended sessions, one per call, so that recorded hooks do not
        wait for a model. Returns whether there may be more to do."""
        now = unix_now()
        if now - self._swept_at > _DAY:
            self._swept_at = now
            await asyncio.to_thread(sweep, hooks.database, now)
        return await summarise_next(hooks.database, hooks.settings, now, self._summarised) > 0


def _is_waiting(database: Database) -> bool:
    with database.reading() as db:
        query = "SELECT 1 FROM _rk_outbox WHERE refusal IS NULL LIMIT 1"
        return db.execute(query).fetchone() is not None
