"""The relays that scripts ask for: started as a user would, ended when nobody needs them."""

from __future__ import annotations

import shutil
import tempfile
from contextlib import AsyncExitStack
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Final, Self

from relay.cli.init import init_folder
from tests import cast
from tests.harness.relay_program import Rookery, level

if TYPE_CHECKING:
    from relay.nostr.keys import SecretKey
    from tests.conversations.script import Script
    from tests.harness.postgres import PostgresServer

AT_ONCE: Final = 3
"""Scripts come in the order of their relays; one that does nothing takes CPU all the same."""


class RunningRelay(Rookery):
    """`rookery serve` on a folder of its own and a port that it picks."""

    def __init__(self, folder: Path, preset: str, policy: str, database: str | None = None) -> None:
        """`database`: of its events; None: a file of SQLite."""
        super().__init__(folder / "data")
        self.roles: dict[str, SecretKey] = {**cast.OWNERS, **cast.AGENTS}
        owners = [key.pubkey for key in cast.OWNERS.values()]
        agents = [key.pubkey for key in cast.AGENTS.values()]
        init_folder(self.folder, owners, agents, preset, None, None)
        if policy:
            (self.folder / "policies" / "90-script.toml").write_text(policy, encoding="utf-8")
        if database is not None:
            self.set_up("storage", f'url = "{database}"')

    @property
    def addresses(self) -> list[str]:
        return [self.url]

    async def settle(self) -> None:
        """It is one process."""

    async def restart(self) -> None:
        await self.stop_in_order()
        await self.start()

    async def stop_in_order(self) -> None:
        """SIGTERM; AssertionError unless it ends with 0."""
        code = await self.stop()
        assert code == 0, "\n".join([f"the relay ended with {code}; it printed:", *self.lines])


class TwoRelays:
    """Two processes on one database, as behind a balancer."""

    url = "ws://relay.example/"

    def __init__(self, folder: Path, preset: str, policy: str, database: str) -> None:
        self._both = [RunningRelay(folder / name, preset, policy, database) for name in "ab"]
        for relay in self._both:
            relay.set_up("storage", "shared = true")
            relay.set_up("relay", f'url = "{self.url}"')
        first, second = self._both
        shutil.copy(first.folder / "relay.key", second.folder)
        self.roles = first.roles

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        for relay in self._both:
            await relay.__aexit__()

    @property
    def addresses(self) -> list[str]:
        return [relay.url for relay in self._both]

    async def settle(self) -> None:
        await level(self._both)

    async def start(self) -> None:
        for relay in self._both:
            await relay.start()

    async def restart(self) -> None:
        await self.stop_in_order()
        await self.start()

    async def stop_in_order(self) -> None:
        for relay in self._both:
            await relay.stop_in_order()


class Relays:
    """A relay for all scripts that ask for the same preset and policy; a few run at a time."""

    def __init__(self, postgres: PostgresServer | None = None, *, shared: bool = False) -> None:
        """`postgres`: where their events are; None: in files of SQLite.

        `shared`: each is two processes on one database.
        """
        self._postgres = postgres
        self._shared = shared
        self._stack = AsyncExitStack()
        self._numbers = count()
        self._running: dict[tuple[str, str], RunningRelay | TwoRelays] = {}
        """The oldest first."""
        self._died: dict[tuple[str, str], AssertionError] = {}

    async def __aenter__(self) -> Self:
        folder = tempfile.TemporaryDirectory(prefix="rookery-conversations-")
        self._folder = Path(self._stack.enter_context(folder))
        return self

    async def __aexit__(self, *_: object) -> None:
        async with self._stack:
            while self._running:
                await self._end_oldest()

    async def relay_for(self, script: Script) -> RunningRelay | TwoRelays:
        """Raises AssertionError, again and again for a relay that could not be started."""
        asked = (script.preset, script.policy)
        if asked in self._died:
            raise self._died[asked]
        if asked not in self._running:
            if len(self._running) == AT_ONCE:
                await self._end_oldest()
            try:
                self._running[asked] = await self._started(*asked)
            except AssertionError as died:
                self._died[asked] = died
                raise
        return self._running[asked]

    async def _started(self, preset: str, policy: str) -> RunningRelay | TwoRelays:
        database = None if self._postgres is None else await self._postgres.new_schema()
        folder = self._folder / str(next(self._numbers))
        relay: RunningRelay | TwoRelays
        if self._shared:
            assert database is not None
            relay = TwoRelays(folder, preset, policy, database)
        else:
            relay = RunningRelay(folder, preset, policy, database)
        async with AsyncExitStack() as begun:
            await begun.enter_async_context(relay)
            await relay.start()
            begun.pop_all()
        return relay

    async def _end_oldest(self) -> None:
        relay = self._running.pop(next(iter(self._running)))
        async with relay:
            await relay.stop_in_order()
