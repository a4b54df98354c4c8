"""The relays that scripts ask for: started as a user would, ended when nobody needs them."""

from __future__ import annotations

import asyncio
import queue
import re
import subprocess
import sys
import tempfile
import threading
from collections import deque
from pathlib import Path
from typing import IO, TYPE_CHECKING

from relay.cli.init import init_folder
from tests import cast
from tests.harness.patience import PROGRAM_S

if TYPE_CHECKING:
    from relay.nostr.keys import SecretKey
    from tests.conversations.script import Script

REPOSITORY = Path(__file__).parents[2]
_LISTENING = re.compile(r"listening on (ws://\S+)")


class RelayDied(Exception):
    """The program did not do what a relay does; with what it printed."""


class RunningRelay:
    """`rookery serve` on a folder of its own and a port that it picks."""

    def __init__(self, folder: Path, preset: str, policy: str) -> None:
        self.roles: dict[str, SecretKey] = {**cast.OWNERS, **cast.AGENTS}
        self._data = folder / "data"
        self._process: subprocess.Popen[str] | None = None
        self._printed: deque[str] = deque(maxlen=60)
        owners = [key.pubkey for key in cast.OWNERS.values()]
        agents = [key.pubkey for key in cast.AGENTS.values()]
        init_folder(self._data, owners, agents, preset, None, None)
        if policy:
            (self._data / "policies" / "90-script.toml").write_text(policy, encoding="utf-8")
        self.url = self._start()

    async def restart(self) -> None:
        await asyncio.to_thread(self.stop)
        self.url = await asyncio.to_thread(self._start)

    def stop(self) -> None:
        """SIGTERM; RelayDied unless it ends with 0 in time."""
        process, self._process = self._process, None
        if process is None:
            return
        process.terminate()
        try:
            code = process.wait(PROGRAM_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
            raise self._died(f"did not end within {PROGRAM_S} s of SIGTERM") from None
        if code != 0:
            raise self._died(f"ended with {code} after SIGTERM")

    def _start(self) -> str:
        self._process = subprocess.Popen(
            self._command("serve", "--data", str(self._data), "--port", "0"),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            encoding="utf-8",
            errors="replace",
            cwd=REPOSITORY,
        )
        found: queue.SimpleQueue[str | None] = queue.SimpleQueue()
        output = self._process.stdout
        # A full pipe would stop the relay: somebody reads on as long as it runs.
        threading.Thread(target=self._read, args=(output, found), daemon=True).start()
        try:
            url = found.get(timeout=PROGRAM_S)
        except queue.Empty:
            url = None
        if url is None:
            self._process.kill()
            self._process.wait()
            self._process = None
            raise self._died("did not say `listening on ws://…`")
        return url

    def _read(self, output: IO[str], found: queue.SimpleQueue[str | None]) -> None:
        with output:
            for line in output:
                self._printed.append(line.rstrip())
                listening = _LISTENING.search(line)
                if listening:
                    found.put(listening[1])
        found.put(None)

    @staticmethod
    def _command(*args: str) -> list[str]:
        return [sys.executable, "-m", "relay", *args]

    def _died(self, what: str) -> RelayDied:
        return RelayDied("\n".join([f"the relay {what}; it printed:", *self._printed]))


class Relays:
    """One relay for all scripts that ask for the same preset and policy."""

    def __init__(self) -> None:
        self._folder = tempfile.TemporaryDirectory(prefix="rookery-conversations-")
        self._running: dict[tuple[str, str], RunningRelay | RelayDied] = {}

    def __enter__(self) -> Relays:
        return self

    def __exit__(self, *_: object) -> None:
        faults = []
        for relay in self._running.values():
            if isinstance(relay, RunningRelay):
                try:
                    relay.stop()
                except RelayDied as died:
                    faults.append(died)
        self._folder.cleanup()
        if faults:
            raise faults[0]

    def relay_for(self, script: Script) -> RunningRelay:
        """Raises RelayDied, again and again for a relay that could not be started."""
        asked = (script.preset, script.policy)
        if asked not in self._running:
            folder = Path(self._folder.name) / str(len(self._running))
            folder.mkdir()
            try:
                self._running[asked] = RunningRelay(folder, *asked)
            except RelayDied as died:
                self._running[asked] = died
        relay = self._running[asked]
        if isinstance(relay, RelayDied):
            raise relay
        return relay
