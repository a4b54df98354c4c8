"""A program on a terminal of its own: what it writes there, what is typed."""

from __future__ import annotations

import asyncio
import fcntl
import os
import pty
import struct
import termios
from codecs import getincrementaldecoder
from contextlib import asynccontextmanager, suppress
from typing import TYPE_CHECKING

from tests.harness.patience import ANSWER_S, PROGRAM_S
from tests.harness.programs import start_rookery

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Mapping
    from pathlib import Path

    from tests.harness.programs import Process


class Screen:
    """What a program wrote to its terminal."""

    def __init__(self, terminal: int, process: Process) -> None:
        self.text = ""
        self._terminal = terminal
        self._process = process
        self._more = asyncio.Event()
        self._is_closed = False
        self._decoder = getincrementaldecoder("utf-8")()
        asyncio.get_running_loop().add_reader(terminal, self._read)

    def _read(self) -> None:
        try:
            data = os.read(self._terminal, 65_536)
        except OSError:
            data = b""
        if not data:
            self._is_closed = True
            asyncio.get_running_loop().remove_reader(self._terminal)
        self.text += self._decoder.decode(data)
        self._more.set()

    def type(self, text: str) -> None:
        os.write(self._terminal, text.encode())

    async def until(self, text: str) -> None:
        try:
            async with asyncio.timeout(ANSWER_S):
                while text not in self.text:
                    self._more.clear()
                    await self._more.wait()
        except TimeoutError:
            raise AssertionError(f"not on the screen: {text!r}\n{self.text!r}") from None

    async def ended(self) -> None:
        """Until the program has ended and everything that it wrote is in `text`."""
        await asyncio.wait_for(self._process.wait(), PROGRAM_S)
        async with asyncio.timeout(ANSWER_S):
            while not self._is_closed:
                self._more.clear()
                await self._more.wait()

    async def exit_code(self) -> int:
        return await asyncio.wait_for(self._process.wait(), ANSWER_S)


@asynccontextmanager
async def on_screen(
    *args: str,
    columns: int = 120,
    env: Mapping[str, str] | None = None,
    cwd: Path | None = None,
) -> AsyncIterator[Screen]:
    """`rookery ARGS` on a terminal of 40 lines; killed if it still runs at the end."""
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 40, columns, 0, 0))
    # These two would count more than the terminal's own size.
    environ = {
        name: value
        for name, value in (os.environ if env is None else env).items()
        if name not in ("COLUMNS", "LINES")
    }
    process = await start_rookery(
        *args, stdin=theirs, stdout=theirs, stderr=theirs, env=environ, cwd=cwd
    )
    os.close(theirs)
    screen = Screen(ours, process)
    try:
        yield screen
    finally:
        asyncio.get_running_loop().remove_reader(ours)
        os.close(ours)
        with suppress(ProcessLookupError):
            process.kill()
