"""Three relays on one database, each behind a way of its own to it, and their clients."""

from __future__ import annotations

import asyncio
import shutil
import socket
import time
from contextlib import AsyncExitStack, asynccontextmanager
from random import Random
from typing import TYPE_CHECKING, Final

from tests import cast
from tests.faults.chaos.clients import (
    ADMINS,
    GROUPS,
    PEOPLE,
    Line,
    Reader,
    Writer,
    made,
    of_admin,
    of_agent,
    of_person,
)
from tests.faults.chaos.disturbances import Disturbances
from tests.faults.chaos.history import CHAT, PUT, History
from tests.harness.database_proxy import Proxy
from tests.harness.relay_program import OwnProcess, Rookery, eventually, level

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable
    from pathlib import Path
    from typing import Self

    from relay.nostr.event import Event
    from tests.harness.network import Cable
    from tests.harness.postgres import PostgresServer

RELAYS: Final = 3
_PAUSE_S: Final = 0.05
_TICK_S: Final = 0.02
_POLICY: Final = '[memory]\nschema = "off"\n'
# What is deleted or replaced since is in no table of the relays.
_LOG: Final = """
    DROP SCHEMA IF EXISTS watched CASCADE;
    CREATE SCHEMA watched;
    CREATE TABLE watched.log (place bigserial, seq bigint, id bytea);
    CREATE FUNCTION watched.note() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
        INSERT INTO watched.log (seq, id) VALUES (NEW.seq, NEW.id);
        RETURN NULL;
    END $$;
    CREATE TRIGGER watched AFTER INSERT ON {}.events FOR EACH ROW EXECUTE FUNCTION watched.note()
"""


class World:
    """Use as a context, then `run`. `relay` makes one of its folder. `cable`: of the last relay, to
    the server."""

    def __init__(
        self,
        folder: Path,
        server: PostgresServer,
        seed: int,
        relay: Callable[[Path], OwnProcess] | None = None,
        cable: Cable | None = None,
    ) -> None:
        self._stack = AsyncExitStack()
        self.chance = Random(seed)
        self.server = server
        self.history = History()
        folders = [folder / f"{number}" for number in range(RELAYS)]
        self.relays: list[Rookery] = [*map(relay or Rookery, folders)]
        self._cable = cable
        if cable is not None:
            self.relays[-1] = self._plugged_in((relay or OwnProcess)(folders[-1]), cable)
        self._said: list[Event] = []

    async def __aenter__(self) -> Self:
        enter = self._stack.enter_async_context
        schema = self.server.schema_of(await self.server.new_schema())
        number = RELAYS if self._cable is None else RELAYS - 1
        self.proxies = [await enter(Proxy(self.server.socket)) for _ in range(number)]
        hosts = [str(proxy.host) for proxy in self.proxies]
        if self._cable is not None:
            hosts.append(self._cable.address)
        for relay, host in zip(self.relays, hosts, strict=True):
            await enter(relay)
            await relay.init(
                *("--owner", cast.owner.pubkey, "--agent", cast.robot.pubkey, "--preset", "open")
            )
            here = self.server.url(schema, host)
            relay.set_up("storage", f'url = "{here}"\nshared = true')
            (relay.folder / "policies" / "20-chaos.toml").write_text(_POLICY)
            if relay is not self.relays[0]:
                shutil.copy(self.relays[0].folder / "relay.key", relay.folder)
        await self.relays[0].start()
        await asyncio.gather(*(relay.start() for relay in self.relays[1:]))
        await self.server.execute(_LOG.format(schema))
        self.disturbances = Disturbances(
            self.relays, self.proxies, self._cable, self.server, self.chance
        )
        return self

    def _plugged_in(self, relay: OwnProcess, cable: Cable) -> OwnProcess:
        """Clients are not behind the cable: the socket that it listens on is of this place."""
        relay.place = cable.place
        relay.listening = self._stack.enter_context(socket.create_server(("127.0.0.1", 0)))
        return relay

    async def __aexit__(self, *_: object) -> None:
        await self._stack.aclose()

    async def run(self, seconds: float) -> History:
        """Disturbed for so long, then until all are well again."""
        async with self._load() as (writers, watchers):
            await self.disturbances.go_on(seconds)
            await _ended(writers)
            await self._settle(watchers)
        await self._read_log()
        await self._look()
        return self.history

    async def disturb(self, seconds: float) -> History:
        """As `run`, without what they come to: a relay that is broken may never be well again."""
        async with self._load():
            await self.disturbances.go_on(seconds)
        await self._read_log()
        return self.history

    @asynccontextmanager
    async def _load(self) -> AsyncIterator[tuple[list[asyncio.Task[None]], list[Reader]]]:
        """Inside, clients write and read: the tasks of those who write, and who may read all."""
        writer = self._writer()
        for group in GROUPS:
            first, _ = ADMINS
            for event in (
                made(first, 9007, ["h", group]),
                made(first, 9002, ["h", group], ["private"], ["restricted"], ["name", group]),
                *(made(first, PUT, ["h", group], ["p", key.pubkey, "admin"]) for key in ADMINS),
            ):
                assert await writer.write(event), self.history.writes[event.id]
        await writer.end()
        watchers = [
            Reader(self.history, self.relays, self._fork(), ADMINS[0], at)
            for at in range(len(self.relays))
        ]
        readers = [Reader(self.history, self.relays, self._fork(), key) for key in PEOPLE * 2]
        reading = [
            *(watcher.read_on() for watcher in watchers),
            *(reader.read_on() for reader in readers[: len(PEOPLE)]),
            *(reader.ask_on() for reader in readers[len(PEOPLE) :]),
        ]
        writing = [
            *(of_person(key, self._said, self._fork()) for key in PEOPLE),
            *(of_admin(key, self._said, self._fork()) for key in ADMINS),
            of_agent(cast.robot, self._fork()),
        ]
        clients = [asyncio.create_task(each) for each in (*reading, self._watch_the_time())]
        writers = [
            asyncio.create_task(self._writer().write_on(events, self._said, _PAUSE_S))
            for events in writing
        ]
        try:
            yield writers, watchers
        finally:
            await _ended([*writers, *clients])
            for reader in (*watchers, *readers):
                await reader.end()

    def _writer(self, at: int | None = None) -> Writer:
        return Writer(self.history, self.relays, self._fork(), at)

    def _fork(self) -> Random:
        return Random(self.chance.random())

    async def _watch_the_time(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            before = loop.time()
            await asyncio.sleep(_TICK_S)
            self.history.lags.append(loop.time() - before - _TICK_S)

    async def _settle(self, watchers: list[Reader]) -> None:
        """Everybody writes in each group at each relay, and whoever may read all has read it."""
        await level(self.relays)
        for at in range(len(self.relays)):
            probing = self._writer(at)
            for group in GROUPS:
                for key in PEOPLE:
                    await probing.write(made(key, CHAT, ["h", group]))
            await probing.end()
        last, writer = made(ADMINS[0], CHAT, ["h", GROUPS[0]]), self._writer()
        assert await writer.write(last)
        await writer.end()
        await eventually(
            "all have read the last message",
            lambda: all(last.id in watcher.seen for watcher in watchers),
        )
        await level(self.relays)

    async def _read_log(self) -> None:
        rows = await self.server.rows("SELECT seq, id FROM watched.log ORDER BY place")
        self.history.log = [(seq, id_.hex()) for seq, id_ in rows]

    async def _look(self) -> None:
        """What is there in the end."""
        history = self.history
        chat = [id_ for id_, write in history.writes.items() if write.event.kind == CHAT]
        for at in range(len(self.relays)):
            line = Line(self.relays, self.chance, at)
            wire = await line.wire(ADMINS[0])
            for key in (cast.robot, cast.owner, ADMINS[1]):
                await wire.log_in(key, self.relays[at].url, int(time.time()))
            history.found[at, ""] = frozenset(await wire.query_ids([*history.writes]))
            for event in await wire.query({"kinds": [39002], "#d": list(GROUPS)}):
                d, *members = (tag[1] for tag in event["tags"] if tag[0] in "dp")
                history.members[at, d] = frozenset(members)
            await line.lose()
            for key in PEOPLE:
                found = await (await line.wire(key)).query_ids(chat)
                history.found[at, key.pubkey] = frozenset(found)
                await line.lose()


async def _ended(tasks: list[asyncio.Task[None]]) -> None:
    for task in tasks:
        task.cancel()
    for result in await asyncio.gather(*tasks, return_exceptions=True):
        if isinstance(result, Exception):
            raise result
