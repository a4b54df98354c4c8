"""The relay in this process, its clock, and two machines that can be cut off from it."""

from __future__ import annotations

import asyncio
import os
import sys
from contextlib import AsyncExitStack, contextmanager, suppress
from typing import TYPE_CHECKING, Final
from unittest.mock import patch

from relay.cli import services as composition
from relay.cli.init import init_folder
from relay.cli.policy_reload import PolicyReload
from relay.cli.services import run_services
from relay.client import Aman, Anamnesis, Client, Nmem, PublishRefused, Snowclaw, Transcripts
from relay.client.connection import Timeouts
from relay.config import load_config
from relay.nostr.nip42 import relay_address
from relay.server.app import Server
from relay.server.listening import bound_sockets
from tests import cast
from tests.harness.patience import ANSWER_S

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from relay.nostr.keys import SecretKey

BEGIN: Final = 1_772_000_000
DAY: Final = 86_400
KEYS: Final = {
    "robot": cast.robot,
    "rover": cast.rover,
    "scout": cast.person("scout"),
    "owner": cast.owner,
    "bob": cast.bob,
}
AGENTS: Final = ("robot", "rover", "scout")
GROUPS: Final = {
    "tea": ("robot", "rover", "scout", "owner", "bob"),
    "coffee": ("robot", "rover", "owner"),
}
NPUBS: Final = {name: key.npub for name, key in KEYS.items()}
NMEM_GROUP: Final = {
    "robot": "coffee",
    "rover": "tea",
    "scout": None,
    "owner": "coffee",
    "bob": "tea",
}
"""Whose members may read an agent's history; what people fetch."""
POLICY = ""
"""Rules of the admin's own."""
_TIMEOUTS: Final = Timeouts(
    deadline_s=ANSWER_S,
    connect_s=ANSWER_S,
    challenge_s=ANSWER_S,
    first_backoff_s=0.05,
    max_backoff_s=0.2,
)
_SETTINGS: Final = '[console]\nenabled = false\n[storage]\nsynchronous = "NORMAL"\n'


class Clock:
    """Unix seconds; stands still until it is set."""

    def __init__(self) -> None:
        self.now = BEGIN

    def __call__(self) -> int:
        return self.now


class Patience:
    """How long to wait for what is under way; a mutant is not waited for that long."""

    def __init__(self, seconds: float = ANSWER_S) -> None:
        self.seconds = seconds

    async def until(self, why: Callable[[], str]) -> None:
        """Until it says nothing any more."""
        loop = asyncio.get_running_loop()
        end, pause = loop.time() + self.seconds, 0.002
        while text := why():
            if loop.time() > end:
                raise AssertionError(text)
            await asyncio.sleep(pause)
            pause = min(2 * pause, 0.1)

    async def sent(self, desk: Desk) -> None:
        """Until nothing waits on its machine. It sends some of it all the time."""
        loop = asyncio.get_running_loop()
        fewest, end = sys.maxsize, 0.0
        while number := await desk.waiting():  # other tasks empty the files
            if number < fewest:
                fewest, end = number, loop.time() + self.seconds
            if loop.time() > end:
                raise AssertionError(f"{desk.name} does not send {number} events that wait")
            await asyncio.sleep(0.02)


class Cable:
    """A machine's way to the relay: another port."""

    def __init__(self) -> None:
        self.relay_port = 0
        self.is_cut = False
        self._ends: set[asyncio.StreamWriter] = set()
        self._carried: set[asyncio.Task[None]] = set()

    async def __aenter__(self) -> Cable:
        self._server = await asyncio.start_server(self._came, "127.0.0.1", 0)
        self.url = f"ws://127.0.0.1:{self._server.sockets[0].getsockname()[1]}"
        return self

    async def __aexit__(self, *_: object) -> None:
        self.cut()
        self._server.close()
        await asyncio.gather(*self._carried, return_exceptions=True)

    def cut(self) -> None:
        self.is_cut = True
        for end in list(self._ends):
            end.transport.abort()

    def mend(self) -> None:
        self.is_cut = False

    def _came(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.create_task(self._carry(reader, writer))
        self._carried.add(task)
        task.add_done_callback(self._carried.discard)

    async def _carry(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._ends.add(writer)
        ends = [writer]
        try:
            if self.is_cut:
                return
            with suppress(OSError):
                far, end = await asyncio.open_connection("127.0.0.1", self.relay_port)
                self._ends.add(end)
                ends.append(end)
                if not self.is_cut:
                    await asyncio.gather(_pumped(reader, end), _pumped(far, writer))
        finally:
            for each in ends:
                self._ends.discard(each)
                each.transport.abort()
                with suppress(OSError):
                    await each.wait_closed()


async def _pumped(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while data := await reader.read(1 << 16):
        writer.write(data)
        await writer.drain()
    raise ConnectionResetError  # the other half too


class Relay:
    """A served folder. `async with` it; `restart` it."""

    def __init__(self, folder: Path, clock: Clock, cables: list[Cable]) -> None:
        self.folder = folder
        self._clock = clock
        self._cables = cables
        agents = [KEYS[name].pubkey for name in AGENTS]
        init_folder(folder, [KEYS["owner"].pubkey], agents, "group", None, None)
        (folder / "rookery.toml").write_text(_SETTINGS)
        (folder / "policies" / "20-week.toml").write_text(POLICY)

    async def __aenter__(self) -> Relay:
        self._stack = AsyncExitStack()
        self._stack.enter_context(patch.object(composition, "unix_now", self._clock))
        config = load_config(self.folder / "rookery.toml")
        enter = self._stack.enter_async_context
        self.services = await enter(run_services(self.folder, config))
        server = Server(self.services, bound_sockets("127.0.0.1", 0), "127.0.0.1")
        here = {relay_address(cable.url) for cable in self._cables}
        server.addresses |= {address for address in here if address is not None}
        await enter(server)
        await enter(self.services.indexer)
        self.services.addresses.listens_on(server.addresses)
        self._reload = asyncio.Event()
        await enter(PolicyReload(self.services, self._reload, server.rights_changed))
        for cable in self._cables:
            cable.relay_port = server.port
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._stack.aclose()

    async def restart(self) -> None:
        await self.__aexit__()
        await self.__aenter__()

    async def revoke(self, name: str, patience: Patience) -> None:
        """It is no agent any more: the admin edits the policy file."""
        file = self.folder / "policies" / "00-actors.toml"
        lines = file.read_text().splitlines(keepends=True)
        left = [line for line in lines if KEYS[name].npub not in line]
        assert len(left) == len(lines) - 1
        file.write_text("".join(left))
        before = self.services.state.policy
        self._reload.set()
        await patience.until(
            lambda: "the policy is not reloaded" if self.services.state.policy is before else ""
        )


class Machine:
    """A home folder, and whoever works there."""

    def __init__(self, name: str, home: Path, cable: Cable) -> None:
        self.name = name
        self.home = home
        self.cable = cable
        self.work = home / "projects" / "rook"
        (self.work / ".git").mkdir(parents=True)
        (self.work / ".git" / "HEAD").write_text(f"ref: refs/heads/on-{name}\n")
        self.desks: dict[str, Desk] = {}

    @contextmanager
    def at_home(self) -> Iterator[None]:
        with patch.dict(os.environ, HOME=str(self.home)):
            yield

    @property
    def is_online(self) -> bool:
        return not self.cable.is_cut


class Desk:
    """One key on one machine: a client of each system, with files of their own."""

    def __init__(self, machine: Machine, name: str, clock: Clock) -> None:
        self.machine = machine
        self.name = name
        self.key: SecretKey = KEYS[name]
        self.folder = machine.home / ".local/share" / name
        self.tables = self.folder / "aman.db"
        self.is_agent = name in AGENTS
        self.heard: list[bytes] = []
        """Live events, as they are."""
        self.is_revoked = False
        """What it had not published yet is refused."""
        self._clock = clock

    async def __aenter__(self) -> Desk:
        self._stack = AsyncExitStack()
        enter = self._stack.enter_async_context
        url, key, folder = self.machine.cable.url, self.key, self.folder
        others = [KEYS[other].pubkey for other in AGENTS if other != self.name]
        self.client = await enter(
            Client(url, key, now=self._clock, timeouts=_TIMEOUTS, start_offline=True)
        )
        if self.machine.is_online:
            await self.client.wait_connected()
        self.aman = await enter(Aman(self.client, key, folder=folder))
        self.claw = await enter(
            Snowclaw(
                self.client,
                key,
                KEYS["owner"].pubkey,
                folder=folder,
                names=[self.name],
                agents=() if self.is_agent else others,
            )
        )
        self.nmem = await enter(
            Nmem(self.client, key, folder / "nmem.db", group=NMEM_GROUP[self.name], agents=others)
        )
        author = {"id": self.name, "name": self.name}
        self.anamnesis = await enter(Anamnesis(self.client, key, author, folder=folder))
        self.transcripts = await enter(Transcripts(self.client, key, folder=folder))
        if self.is_agent:
            await self.claw.start()
            if self.machine.is_online:
                await self.claw.backfill()
        self._tasks = [asyncio.create_task(self._listen())]
        if self.name == "robot":
            self._tasks.append(asyncio.create_task(self._follow()))
        return self

    async def _listen(self) -> None:
        """To everything that the relay sends."""
        kinds = [9, 78, 1988, 1989, 30078, 31988, *range(30093, 30098)]
        async with self.client.subscribe({"kinds": kinds, "limit": 0}) as events:
            async for event in events:
                self.heard.append(event.raw)

    async def _follow(self) -> None:
        async for _ in self.aman.follow_tables(self.tables):
            pass

    async def __aexit__(self, *_: object) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        with suppress(*((PublishRefused,) if self.is_revoked else ())):
            await self._stack.aclose()

    async def restart(self) -> None:
        """The programs end and are started again."""
        await self.__aexit__()
        await self.__aenter__()

    def lag(self) -> str:
        """What has not noticed yet whether the machine is online."""
        if self.client.is_connected != self.machine.is_online:
            return f"{self.name} on {self.machine.name}: connected {self.client.is_connected}"
        return ""

    async def waiting(self) -> int:
        systems = (self.aman, self.claw, self.anamnesis, self.transcripts)
        return sum([await system.waiting() for system in systems])

    def files(self) -> Iterator[Path]:
        """What this key has on this machine."""
        for folder in (self.folder, self.sessions):
            if folder.exists():
                yield from (path for path in folder.rglob("*") if path.is_file())

    @property
    def sessions(self) -> Path:
        """Where the agent's program keeps the sessions of a folder."""
        return self.machine.home / f".claude-{self.name}" / "projects"
