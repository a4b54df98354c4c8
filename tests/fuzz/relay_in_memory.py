"""The whole relay in this process, without sockets: each connection is a queue and a list."""

from __future__ import annotations

import asyncio
import logging
import shutil
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import mkdtemp
from typing import TYPE_CHECKING, Any

from aiohttp import WSMsgType

from relay.cli.init import init_folder
from relay.cli.services import run_services
from relay.config import load_config
from relay.nostr.nip42 import relay_address
from relay.server.connection import Connection
from relay.server.turns import Turns
from tests import cast
from tests.fuzz.ledger import Ledger, Marker, message_of
from tests.fuzz.thrown import Frame, Thrown, now, ok_reply, setting
from tests.harness.patience import ANSWER_S

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Sequence

    from relay.cli.services import Services
    from relay.nostr.keys import SecretKey
    from relay.server.services import ServerServices

URL = "ws://rookery.example"
SETTINGS = f"""
[relay]
url = "{URL}"
[limits]
default_limit = 20
max_limit = 40
max_filters = 3
[storage]
synchronous = "NORMAL"
"""
"""An answer that takes longer counts as a hang."""


@dataclass
class _Message:
    """A frame as aiohttp gives it."""

    type: WSMsgType
    data: bytes


class Memory:
    """Socket, request and transport of one connection; its other end is `said` and `heard`."""

    def __init__(self) -> None:
        self._frames: asyncio.Queue[_Message] = asyncio.Queue()
        self.heard: list[list[Any]] = []
        self.came = asyncio.Event()
        self.close_code: int | None = None
        self.transport = self.protocol = self.writer = self
        self.silent_s = 0.0
        self.compress = self.taken = self.taken_bytes = 0

    def unfinished(self) -> int:
        return 0

    @asynccontextmanager
    async def while_open(self) -> AsyncIterator[None]:
        """Its client leaves only when everything is answered."""
        yield

    @asynccontextmanager
    async def waiting(self, _size: int, **_: object) -> AsyncIterator[None]:
        yield

    # the client's end

    def says(self, frame: Frame) -> None:
        kind = WSMsgType.TEXT if frame.is_text else WSMsgType.BINARY
        self._frames.put_nowait(_Message(kind, frame.data))

    def goes(self) -> None:
        self._frames.put_nowait(_Message(WSMsgType.CLOSED, b""))

    # the relay's end

    async def prepare(self, request: object) -> None:
        pass

    def carries(self, messages: object) -> None:
        pass

    async def next(self) -> _Message:
        return await self._frames.get()

    def write(self, data: bytes) -> None:
        """Websocket frames as an outbox makes them: whole, unmasked, RFC 6455 §5.2."""
        while data:
            size, head = data[1], 2
            if size > 125:
                head = 4 if size == 126 else 10
                size = int.from_bytes(data[2:head])
            self.heard.append(message_of(data[head : head + size]))
            data = data[head + size :]
        self.came.set()

    async def close(self, *, code: int, message: bytes, drain: bool) -> bool:
        self.close_code = code
        self.goes()
        return True

    async def drain(self) -> None:
        await asyncio.sleep(0)

    def get_write_buffer_size(self) -> int:
        return 0

    def is_closing(self) -> bool:
        return self.close_code is not None

    def abort(self) -> None:
        self.close_code = self.close_code or 1006


class Visit:
    """A client of the relay in this process."""

    def __init__(self, services: ServerServices) -> None:
        self._memory = Memory()
        address = relay_address(URL)
        assert address is not None
        connection = Connection(
            services,
            self._memory,  # type: ignore[arg-type]
            self._memory,  # type: ignore[arg-type]
            frozenset({address}),
            Turns(),
            address=None,
            trusted=False,
            logged_in=lambda _: None,
        )
        self._serving = asyncio.create_task(connection.serve())
        self._serving.add_done_callback(lambda _: self._memory.came.set())
        self._challenge = ""
        self._rounds = 0

    async def arrive(self, who: SecretKey | None) -> None:
        [[_, self._challenge]] = await self._until(lambda heard: bool(heard))
        if who is not None:
            tags = [["relay", URL], ["challenge", self._challenge]]
            login = who.sign(22242, tags, "", now())
            self._memory.says(Frame(b'["AUTH",' + login.raw + b"]"))
            [answer] = await self._until(lambda heard: bool(heard))
            assert answer == ["OK", login.id, True, ""]

    async def say(self, things: Sequence[Thrown]) -> Ledger:
        """Throw these; everything that came of it, until an ordinary client's wish is answered."""
        ledger = Ledger()
        frames = [ok_reply(thing, self._challenge, URL) for thing in things]
        for frame in frames:
            self._memory.says(frame)
            ledger.sent(frame)
        self._rounds += 1
        marker = Marker(self._rounds)
        for data in marker.frames:
            self._memory.says(Frame(data))
        heard = await self._until(marker.is_answered)
        for data in ledger.closing():
            self._memory.says(Frame(data))
        heard += await self._until(marker.is_closed)
        ledger.heard = [message for message in heard if not marker.is_about(message)]
        return ledger

    async def _until(self, is_enough: Any) -> list[list[Any]]:
        heard = self._memory.heard
        try:
            async with asyncio.timeout(ANSWER_S):
                while not is_enough(heard):
                    assert not self._serving.done(), self._serving
                    self._memory.came.clear()
                    await self._memory.came.wait()
        except TimeoutError:
            raise AssertionError(f"the rest does not come: {heard}") from None
        self._memory.heard = []
        return heard

    async def leave(self) -> None:
        self._memory.goes()
        await self._serving


class Faults(logging.Handler):
    """What a relay must not log: errors, and anything with a traceback."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.lines: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        if record.levelno >= logging.ERROR or record.exc_info:
            self.lines.append(self.format(record))


@dataclass
class RelayInMemory:
    """`async with` it. Its world is made anew now and then, for it grows and people leave it."""

    visits: dict[SecretKey | None, Visit] = field(default_factory=dict)
    faults: Faults = field(default_factory=Faults)

    async def __aenter__(self) -> RelayInMemory:
        self._folder = Path(mkdtemp(prefix="rookery-fuzz-"))
        self._stack = AsyncExitStack()
        data = self._folder / "data"
        init_folder(data, [cast.owner.pubkey], [cast.robot.pubkey], "open", None, None)
        (data / "rookery.toml").write_text(SETTINGS)
        self.services: Services = await self._stack.enter_async_context(
            run_services(data, load_config(data / "rookery.toml"))
        )
        await self._stack.enter_async_context(self.services.indexer)
        logging.getLogger().addHandler(self.faults)
        asyncio.get_running_loop().set_exception_handler(self._note)
        for who in (None, cast.owner, cast.alice, cast.bob):
            self.visits[who] = Visit(self.services)
            await self.visits[who].arrive(who)
        told = await self.visits[cast.owner].say(
            [Frame(b'["EVENT",' + event.raw + b"]") for event in setting()]
        )
        assert all(message[2] for message in told.heard), told.heard
        return self

    async def again(self) -> RelayInMemory:
        """Another one in its place."""
        await self.__aexit__()
        return await RelayInMemory().__aenter__()

    def _note(self, _: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        self.faults.lines.append(str(context))

    async def __aexit__(self, *_: object) -> None:
        left = [visit.leave() for visit in self.visits.values()]
        await asyncio.gather(*left, return_exceptions=True)
        await self._stack.aclose()
        logging.getLogger().removeHandler(self.faults)
        shutil.rmtree(self._folder)
