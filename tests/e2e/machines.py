"""A machine of a user who works with coding agents: a home folder, a key, `rookery` commands."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import shutil
import signal
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

from relay.hook import SOCKET
from tests.e2e.rookery import until

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from relay.nostr.keys import SecretKey

# The way of an installed `rookery`: the launcher, beside the packages.
LAUNCH = "from relay.launcher import main; main()"


class Machine:
    """One home folder."""

    def __init__(self, home: Path, key: SecretKey | None, url: str) -> None:
        self.home = home
        self.work = home / "rook"
        (self.work / ".git").mkdir(parents=True)
        self.environ = {
            **os.environ, "HOME": str(home), "ROOKERY_RELAY": url, "NMEM_KEY": "",
            "ROOKERY_KEY": "" if key is None else key.nsec,
        }  # fmt: skip

    @property
    def data(self) -> Path:
        return (self.home / SOCKET).parent

    def set_up(self, text: str) -> None:
        """client.toml."""
        path = self.home / ".config/rookery/client.toml"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)

    async def run(self, *args: str, stdin: bytes = b"") -> tuple[int, bytes, str]:
        """One finished `rookery …`: its exit code, its stdout, its stderr."""
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-c", LAUNCH, *args, stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE, env=self.environ,
            cwd=self.work,
        )  # fmt: skip
        out, err = await asyncio.wait_for(process.communicate(stdin), 60)
        assert process.returncode is not None
        return process.returncode, out, err.decode()

    async def hook(self, event: str, **said: object) -> str:
        """One hook, as an agent tells it; what the agent is told. It never fails."""
        hook = {"session_id": "s-1", "cwd": str(self.work), "hook_event_name": event, **said}
        code, out, err = await self.run("hook", event, stdin=json.dumps(hook).encode())
        assert (code, err) == (0, "")
        return out.decode()

    async def told(self, *args: str) -> Any:
        """What a command prints as JSON."""
        code, out, err = await self.run("nmem", *args, "--json")
        assert code == 0, (out, err)
        return json.loads(out)

    async def keeper_there(self) -> None:
        """Until the first hook's keeper answers."""
        async with until(30, "the keeper listens") as tries:
            async for _ in tries:
                if (self.home / SOCKET).exists():
                    return

    async def all_sent(self) -> None:
        """Until nothing waits for the relay."""
        async with until(60, "all is at the relay") as tries:
            async for _ in tries:
                if (await self.told("status"))["waiting"] == 0:
                    return

    def log(self) -> str:
        path = self.data / "hook.log"
        return path.read_text() if path.exists() else ""

    async def keeper_ended(self) -> None:
        """By a signal, as at the end of the user's day."""
        with contextlib.suppress(FileNotFoundError, ValueError):
            pid = int((self.data / "hook.lock").read_text())
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        (self.home / SOCKET).unlink(missing_ok=True)
        (self.data / "hook.lock").unlink(missing_ok=True)


@contextlib.asynccontextmanager
async def machine(key: SecretKey | None, url: str) -> AsyncIterator[Machine]:
    """A machine without anything; its keeper ends with it."""
    # Short: the path of a socket may have no more than a hundred characters.
    made = Machine(Path(tempfile.mkdtemp(prefix="rk")), key, url)
    try:
        yield made
    finally:
        await made.keeper_ended()
        shutil.rmtree(made.home, ignore_errors=True)
