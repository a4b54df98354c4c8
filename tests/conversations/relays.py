"""The relays that scripts ask for: started as a user would, ended when nobody needs them."""

from __future__ import annotations

import tempfile
from contextlib import AsyncExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Self

from relay.cli.init import init_folder
from tests import cast
from tests.harness.relay_program import Rookery

if TYPE_CHECKING:
    from relay.nostr.keys import SecretKey
    from tests.conversations.script import Script
    from tests.harness.postgres import PostgresServer


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

    async def restart(self) -> None:
        await self.stop_in_order()
        await self.start()

    async def stop_in_order(self) -> None:
        """SIGTERM; AssertionError unless it ends with 0."""
        code = await self.stop()
        assert code == 0, "\n".join([f"the relay ended with {code}; it printed:", *self.lines])


class Relays:
    """One relay for all scripts that ask for the same preset and policy."""

    def __init__(self, postgres: PostgresServer | None = None) -> None:
        """`postgres`: where their events are; None: in files of SQLite."""
        self._postgres = postgres
        self._stack = AsyncExitStack()
        self._running: dict[tuple[str, str], RunningRelay | AssertionError] = {}

    async def __aenter__(self) -> Self:
        folder = tempfile.TemporaryDirectory(prefix="rookery-conversations-")
        self._folder = Path(self._stack.enter_context(folder))
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._stack.aclose()

    async def relay_for(self, script: Script) -> RunningRelay:
        """Raises AssertionError, again and again for a relay that could not be started."""
        asked = (script.preset, script.policy)
        if asked not in self._running:
            try:
                self._running[asked] = await self._started(*asked)
            except AssertionError as died:
                self._running[asked] = died
        relay = self._running[asked]
        if isinstance(relay, AssertionError):
            raise relay
        return relay

    async def _started(self, preset: str, policy: str) -> RunningRelay:
        database = None if self._postgres is None else await self._postgres.new_schema()
        relay = RunningRelay(self._folder / str(len(self._running)), preset, policy, database)
        await self._stack.enter_async_context(relay)
        await relay.start()
        self._stack.push_async_callback(relay.stop_in_order)
        return relay
