"""A machine of a user who works with coding agents: a home folder, a key, `rookery` commands."""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import json
import os
import shutil
import signal
import sys
import tempfile
from pathlib import Path
from subprocess import PIPE
from typing import TYPE_CHECKING, Any

from relay.hook import LOCK, SOCKET
from tests.harness.patience import PROGRAM_S
from tests.harness.programs import start_rookery
from tests.harness.relay_program import until

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from relay.nostr.keys import SecretKey
    from tests.harness.programs import Process

# The way of an installed `rookery`: the launcher, beside the packages.
LAUNCH = "from relay.launcher import main; main()"


class Machine:
    """One home folder."""

    def __init__(self, home: Path, key: SecretKey | None, url: str) -> None:
        self.home = home
        self.work = home / "rook"
        (self.work / ".git").mkdir(parents=True)
        self.environ = {
            **os.environ,
            "HOME": str(home),
            "ROOKERY_RELAY": url,
            "NMEM_KEY": "",
            "ROOKERY_KEY": "" if key is None else key.nsec,
        }

    @property
    def data(self) -> Path:
        return (self.home / SOCKET).parent

    def set_up(self, text: str) -> None:
        """client.toml."""
        path = self.home / ".config/rookery/client.toml"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)

    async def begin(self, *args: str, program: str = LAUNCH) -> Process:
        """`rookery …`, under way."""
        if program == LAUNCH:
            return await start_rookery(
                *args, stdin=PIPE, stderr=PIPE, env=self.environ, cwd=self.work
            )
        return await asyncio.create_subprocess_exec(
            sys.executable,
            "-c",
            program,
            *args,
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            env=self.environ,
            cwd=self.work,
        )

    async def run(
        self, *args: str, stdin: bytes = b"", program: str = LAUNCH
    ) -> tuple[int, bytes, str]:
        """One finished `rookery …`: its exit code, its stdout, its stderr."""
        process = await self.begin(*args, program=program)
        out, err = await asyncio.wait_for(process.communicate(stdin), PROGRAM_S)
        assert process.returncode is not None
        return process.returncode, out, err.decode()

    async def hook(self, event: str, *, program: str = LAUNCH, **said: object) -> str:
        """One hook, as an agent tells it; what the agent is told. It never fails."""
        hook = {"session_id": "s-1", "cwd": str(self.work), "hook_event_name": event, **said}
        text = json.dumps(hook).encode()
        code, out, err = await self.run("hook", event, stdin=text, program=program)
        assert (code, err) == (0, "")
        return out.decode()

    async def told(self, *args: str) -> Any:
        """What a command prints as JSON."""
        code, out, err = await self.run("nmem", *args, "--json")
        assert code == 0, (out, err)
        return json.loads(out)

    async def keeper_there(self) -> None:
        """Until the first hook's keeper answers."""
        async with until("the keeper listens") as tries:
            async for _ in tries:
                if (self.home / SOCKET).exists():
                    return

    async def all_sent(self) -> None:
        """Until nothing waits for the relay."""
        async with until("all is at the relay") as tries:
            async for _ in tries:
                if (await self.told("status"))["waiting"] == 0:
                    return

    def log(self) -> str:
        path = self.data / "hook.log"
        return path.read_text() if path.exists() else ""

    def is_kept(self) -> bool:
        """Whether there is a keeper, or one that is about to listen."""
        try:
            file = (self.data / LOCK).open("rb")
        except FileNotFoundError:
            return False
        with file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                return True
        return False

    async def keeper_ended(self) -> None:
        """By a signal, as at the end of the user's day; also one that is only being started."""
        async with until("no keeper is left") as tries:
            async for _ in tries:
                if not self.is_kept():
                    break
                with contextlib.suppress(FileNotFoundError, ValueError, ProcessLookupError):
                    os.kill(int((self.data / LOCK).read_text()), signal.SIGKILL)
        (self.home / SOCKET).unlink(missing_ok=True)
        (self.data / LOCK).unlink(missing_ok=True)


@contextlib.asynccontextmanager
async def machine(key: SecretKey | None, url: str, home: str = "home") -> AsyncIterator[Machine]:
    """A machine without anything but a home folder of this name; its keeper ends with it."""
    folder = Path(tempfile.mkdtemp(prefix="rk"))
    made = Machine(folder / home, key, url)
    try:
        yield made
    finally:
        await made.keeper_ended()
        shutil.rmtree(folder, ignore_errors=True)
