"""A `rookery serve` process for tests of processes: signals, kill -9, files, TLS."""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import io
import json
import re
import shutil
import signal
import sys
import time
from pathlib import Path
from subprocess import DEVNULL, PIPE, STDOUT
from typing import TYPE_CHECKING, Any, Final

import aiohttp
import websockets

from relay.cli import run
from tests import cast
from tests.harness.patience import ANSWER_S, PROGRAM_S
from tests.harness.programs import start_rookery

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Sequence
    from socket import socket

    from relay.nostr.event import Event
    from relay.nostr.keys import SecretKey
    from tests.harness.network import Place
    from tests.harness.programs import Process


class Rookery:
    """One data folder and the process that serves it, if any."""

    new_database: Callable[[], Awaitable[str]] | None = None
    """Gives the address of one for each folder; None: they have a file."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.url = ""
        self.lines: list[str] = []
        self._process: Process | None = None
        self._reading: asyncio.Task[None] | None = None

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    @property
    def starts(self) -> int:
        return sum("listening on" in line for line in self.lines)

    async def init(self, *args: str) -> None:
        """`rookery init` in this process: a start of Python for each test would cost minutes."""
        printed = io.StringIO()
        with contextlib.redirect_stdout(printed), contextlib.redirect_stderr(printed):
            code = run(["init", str(self.folder), *args])
        assert code == 0, printed.getvalue()
        if self.new_database is not None:
            self.set_up("storage", f'url = "{await self.new_database()}"')

    def set_up(self, table: str, text: str) -> None:
        """Put keys under a table of rookery.toml that `init` wrote."""
        file = self.folder / "rookery.toml"
        file.write_text(file.read_text().replace(f"[{table}]\n", f"[{table}]\n{text}\n", 1))

    async def start(self, *args: str) -> None:
        self._process = await self._started(
            "serve", "--data", str(self.folder), "--port", "0", *args
        )
        listening: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        self._reading = asyncio.create_task(self._read(self._process, listening))
        self.url = await asyncio.wait_for(listening, PROGRAM_S)

    async def start_again(self) -> None:
        """Where it was before: its programs are still looking for it."""
        await self.start("--port", self.url.rsplit(":", 1)[1].rstrip("/"))

    async def _started(self, *args: str) -> Process:
        return await start_rookery(*args)

    async def _read(self, process: Process, listening: asyncio.Future[str]) -> None:
        assert process.stdout is not None
        async for line in process.stdout:
            text = line.decode().rstrip()
            self.lines.append(text)
            found = re.search(r"listening on (wss?://\S+)", text)
            if found and not listening.done():
                listening.set_result(found[1])
        if not listening.done():
            listening.set_exception(AssertionError("\n".join(["did not listen:", *self.lines])))

    async def metric(self, name: str) -> float:
        """`name` without `rookery_`, with its label."""
        address = self.url.replace("ws", "http", 1) + "/metrics"
        async with aiohttp.ClientSession() as session, session.get(address) as answer:
            found = re.search(rf"^rookery_{name} (\S+)$", await answer.text(), re.MULTILINE)
        assert found is not None
        return float(found[1])

    def send_signal(self, number: int) -> None:
        assert self._process is not None
        self._process.send_signal(number)

    async def enforce(self, name: str, text: str) -> None:
        """Put a policy file in place that changes something; back when it is in force."""
        before = self._changes_of_policies()
        made = self.folder / f"{name}.new"
        made.write_text(text)
        made.replace(self.folder / "policies" / name)
        self.send_signal(signal.SIGHUP)
        await eventually("the policies are reloaded", lambda: self._changes_of_policies() > before)

    def _changes_of_policies(self) -> int:
        """Without reloads for a signal that came after the poll had found the change."""
        told = [line for line in self.lines if "policies reloaded" in line]
        return sum("no rule changed" not in line for line in told)

    async def store(self, *events: Event, by: SecretKey | None = None) -> None:
        """`by`: who is logged in."""
        async with connected(self.url) as wire:
            if by is not None:
                await wire.log_in(by, self.url, int(time.time()))
            for event in events:
                assert await wire.publish(event) == (True, ""), event.kind

    async def stop(self, number: int = signal.SIGTERM) -> int:
        """The exit code; the process that this test started, and no other, is ended."""
        process = self._process
        assert process is not None
        with contextlib.suppress(ProcessLookupError):
            process.send_signal(number)
        try:
            code = await asyncio.wait_for(process.wait(), PROGRAM_S)
        except TimeoutError:
            process.kill()
            code = await process.wait()
        if self._reading is not None:
            await self._reading
        self._process = None
        return code

    async def __aenter__(self) -> Rookery:
        return self

    async def __aexit__(self, *_: object) -> None:
        if self._process is not None:
            await self.stop(signal.SIGKILL)


REPOSITORY: Final = Path(__file__).parents[2]

# As systemd starts a service: with the socket of its socket unit as descriptor 3.
ACTIVATE: Final = """
import os, sys
os.dup2(int(sys.argv[1]), 3)
os.environ |= {"LISTEN_PID": str(os.getpid()), "LISTEN_FDS": "1"}
os.execv(sys.executable, [sys.executable, *sys.argv[2:]])
"""


class OwnProcess(Rookery):
    """Started by a new interpreter, not forked: on a socket, at a place, as another program."""

    listening: socket | None = None
    """What the next starts listen on."""
    place: Place | None = None
    """Where the next run."""
    program: tuple[str, ...] = ("-m", "relay")
    cwd: Path | None = None

    async def _started(self, *args: str) -> Process:
        given: tuple[str, ...] = ()
        kept: tuple[int, ...] = ()
        if self.listening is not None:
            kept = (self.listening.fileno(),)
            given = ("-c", ACTIVATE, str(kept[0]))
        there = () if self.place is None else self.place.words
        return await asyncio.create_subprocess_exec(
            *(*there, sys.executable, *given, *self.program, *args),
            stdin=DEVNULL,
            stdout=PIPE,
            stderr=STDOUT,
            cwd=self.cwd,
            pass_fds=kept,
        )


class Mutant(OwnProcess):
    """Broken on purpose: `python -m MODULE NAME serve …`."""

    cwd = REPOSITORY

    def __init__(self, folder: Path, name: str, module: str = "tests.faults.mutants") -> None:
        super().__init__(folder)
        self.program = "-m", module, name


@contextlib.asynccontextmanager
async def two_relays(
    folder: Path, database: str, storage: str = ""
) -> AsyncIterator[tuple[Rookery, Rookery]]:
    """Of preset `open` on one database; not started. `storage`: more lines of this table."""
    async with Rookery(folder / "one") as one, Rookery(folder / "other") as other:
        people = ("--owner", cast.owner.pubkey, "--agent", cast.robot.pubkey)
        for each in (one, other):
            await each.init(*people, "--preset", "open")
            each.set_up("storage", f'url = "{database}"\nshared = true\n{storage}')
        shutil.copy(one.folder / "relay.key", other.folder)
        yield one, other


async def level(relays: Sequence[Rookery]) -> None:
    """Wait until relays on one database have taken over the same rows, and sent what was live."""
    async with until("all have taken over the same rows and sent them") as tries:
        async for _ in tries:
            seqs = {await relay.metric("store_seq") for relay in relays}
            if len(seqs) == 1 and not any(
                [await relay.metric("undelivered_batches") for relay in relays]
            ):
                return


async def command(*args: str, stdin: bytes = b"", cwd: Path | None = None) -> tuple[int, str]:
    """One finished `rookery …`: its exit code, and what it printed on both streams."""
    process = await start_rookery(*args, stdin=PIPE, cwd=cwd)
    code, out, _ = await _finished(process, stdin)
    return code, out.decode()


async def outputs(*args: str, stdin: bytes = b"") -> tuple[int, bytes, str]:
    """One finished `rookery …`: its exit code, its stdout, its stderr."""
    process = await start_rookery(*args, stdin=PIPE, stderr=PIPE)
    code, out, err = await _finished(process, stdin)
    return code, out, err.decode()


async def _finished(process: Process, stdin: bytes) -> tuple[int, bytes, bytes]:
    try:
        out, err = await asyncio.wait_for(process.communicate(stdin), PROGRAM_S)
    except BaseException:  # nobody waits any more: leave no process and no open pipe
        with contextlib.suppress(ProcessLookupError):
            process.kill()
        await process.communicate()
        raise
    assert process.returncode is not None
    return process.returncode, out, err or b""


class Wire:
    """A bare client: frames as they are."""

    def __init__(self, socket: Any, url: str) -> None:
        self._socket = socket
        self.url = url
        self.challenge = ""

    async def send(self, *message: object) -> None:
        await self._socket.send(json.dumps(message, ensure_ascii=False))

    async def send_event(self, event: Event, verb: str = "EVENT") -> None:
        await self._socket.send(f'["{verb}",{event.raw.decode()}]')

    def send_close(self) -> None:
        """A close frame, and nothing is waited for."""
        self._socket.transport.write(b"\x88\x80" + bytes(4))

    def abort(self) -> None:
        """Gone without a word, as by a pulled cable; also what has stopped reading ends at once."""
        self._socket.transport.abort()

    async def receive(self) -> list[Any]:
        async with asyncio.timeout(ANSWER_S):
            frame = json.loads(await self._socket.recv())
        assert isinstance(frame, list)
        return frame

    async def to_the_end(self) -> tuple[list[list[Any]], websockets.ConnectionClosed]:
        """What is still received, and how the connection was closed."""
        frames: list[list[Any]] = []
        while True:
            try:
                frames.append(await self.receive())
            except websockets.ConnectionClosed as closed:
                return frames, closed

    async def publish(self, event: Event) -> tuple[bool, str]:
        await self.send_event(event)
        while True:
            frame = await self.receive()
            if frame[0] == "OK" and frame[1] == event.id:
                return frame[2], frame[3]

    async def log_in(self, key: SecretKey, url: str, now: int) -> None:
        event = key.sign(22242, [["relay", url], ["challenge", self.challenge]], "", now)
        await self.send_event(event, "AUTH")
        frame = await self.receive()
        assert frame == ["OK", event.id, True, ""], frame

    async def query(self, *filters: dict[str, object]) -> list[dict[str, Any]]:
        """Stored events; a CLOSED is an empty answer."""
        await self.send("REQ", "q", *filters)
        found = []
        while True:
            frame = await self.receive()
            if frame[0] == "EVENT" and frame[1] == "q":
                found.append(frame[2])
            elif frame[0] == "EOSE" and frame[1] == "q":
                await self.send("CLOSE", "q")
                return found
            elif frame[0] == "CLOSED" and frame[1] == "q":
                return found

    async def query_ids(self, ids: Sequence[str]) -> set[str]:
        found: set[str] = set()
        for start in range(0, len(ids), 500):
            page = await self.query({"ids": list(ids[start : start + 500])})
            found.update(event["id"] for event in page)
        return found


@contextlib.asynccontextmanager
async def until(what: str, seconds: float = ANSWER_S) -> AsyncIterator[AsyncGenerator[int, None]]:
    """Tries, numbered, for what can only be asked again and again; fails after `seconds`.

    `async with until("the rule is in force") as tries: async for number in tries: … break`
    """

    async def tries() -> AsyncGenerator[int, None]:
        number = 0
        while True:
            yield number
            number += 1
            await asyncio.sleep(0.02)

    turns = tries()
    try:
        async with asyncio.timeout(seconds):
            yield turns
    except TimeoutError:
        raise AssertionError(f"not within {seconds:.1f} s: {what}") from None
    finally:
        await turns.aclose()


async def eventually(what: str, is_so: Callable[[], object], seconds: float = ANSWER_S) -> None:
    """Returns when `is_so`, which may be a coroutine function, gives what is true; fails after
    `seconds`."""
    async with until(what, seconds) as tries:
        async for _ in tries:
            found = is_so()
            if await found if inspect.isawaitable(found) else found:
                return


@contextlib.asynccontextmanager
async def connected(url: str, **options: Any) -> AsyncIterator[Wire]:
    # No pings of its own: a test that is busy for a while answers none.
    options = {"ping_interval": None, **options}
    async with websockets.connect(url, max_size=None, **options) as socket:
        wire = Wire(socket, url)
        greeting = await wire.receive()
        assert greeting[0] == "AUTH"
        wire.challenge = greeting[1]
        yield wire
