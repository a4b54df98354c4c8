"""The keeper: one process for all hooks, and how it ends."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import shutil
import stat
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from relay.client.nmem.keeper import keep
from relay.client.nmem.recording import log, log_of
from relay.client.settings import FILE
from relay.errors import UserError
from relay.hook import SOCKET, words
from tests.cast import robot
from tests.unit.client.nmem_cache import NOW

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator

PROMPT = json.dumps(
    {"hook_event_name": "UserPromptSubmit", "session_id": "s", "cwd": "/w/rook", "prompt": "tea"}
).encode()


@pytest.fixture
def home(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    made = Path(tempfile.mkdtemp(prefix="rk"))  # short, as the path of a socket must be
    monkeypatch.setenv("HOME", str(made))
    monkeypatch.setenv("ROOKERY_KEY", robot.nsec)
    monkeypatch.setenv("ROOKERY_RELAY", "ws://127.0.0.1:1")
    monkeypatch.delenv("NMEM_KEY", raising=False)
    yield made
    shutil.rmtree(made)


@contextlib.asynccontextmanager
async def kept(home: Path, idle_s: float = 60.0) -> AsyncIterator[asyncio.Task[None]]:
    """A keeper that listens."""
    task = asyncio.create_task(keep(home, idle_s))
    socket = home / SOCKET
    while not await asyncio.to_thread(socket.is_socket):
        assert not task.done(), task.exception()
        await asyncio.sleep(0.01)
    try:
        yield task
    finally:
        task.cancel()
        await asyncio.wait([task])


async def asked(home: Path, *said: bytes) -> bytes:
    reader, writer = await asyncio.open_unix_connection(home / SOCKET)
    writer.write(b"\0".join(said))
    writer.write_eof()
    answer = await reader.read()
    writer.close()
    await writer.wait_closed()
    return answer


async def test_it_records_what_it_is_told(home: Path) -> None:
    async with kept(home):
        assert await asked(home, *words("UserPromptSubmit"), PROMPT) == b"+"
        assert await asked(home, *words(""), PROMPT) == b"+"
        start = PROMPT.replace(b"UserPromptSubmit", b"SessionStart")
        assert await asked(home, *words("SessionStart"), start) == b"+"


async def test_a_hook_that_says_nothing_does_not_end_it(home: Path) -> None:
    async with kept(home) as task:
        assert await asked(home) == b"-"
        assert await asked(home, *words("UserPromptSubmit"), PROMPT) == b"+"
        assert not task.done()


async def test_garbage_is_a_line_in_the_log(home: Path) -> None:
    async with kept(home):
        assert await asked(home, *words("Stop"), b"gar\0bage") == b"+"
    assert "Stop Invalid: invalid: the hook is not a JSON object" in log_of(home).read_text()


@pytest.mark.parametrize(
    "said", [[b"garbage"], [b"0.0", *words("Stop")[1:], PROMPT], [*words("Stop")[:2], b"x"]]
)
async def test_who_has_other_settings_is_told_so_and_it_ends(
    home: Path, said: list[bytes]
) -> None:
    async with kept(home) as task:
        assert await asked(home, *said) == b"-"
        await asyncio.wait_for(task, 20)
    assert not (home / SOCKET).exists()


async def test_who_never_ends_what_it_says_is_not_waited_for(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("relay.client.nmem.keeper._HEARD_S", 0.05)
    async with kept(home):
        reader, writer = await asyncio.open_unix_connection(home / SOCKET)
        writer.write(b"half of")
        with contextlib.suppress(ConnectionResetError):
            assert await asyncio.wait_for(reader.read(), 20) == b""
        writer.close()
        assert await asked(home, *words("Stop"), PROMPT) == b"+"


async def test_it_ends_when_client_toml_changes(home: Path) -> None:
    async with kept(home) as task:
        (home / FILE).parent.mkdir(parents=True)
        (home / FILE).write_text("[nmem]\n")
        assert await asked(home, *words("Stop"), PROMPT) == b"-"
        await asyncio.wait_for(task, 20)


async def test_there_is_only_one_and_its_socket_is_its_owners(home: Path) -> None:
    async with kept(home):
        await asyncio.wait_for(keep(home), 20)
        assert stat.S_IMODE((home / SOCKET).stat().st_mode) == 0o600
        assert (home / SOCKET).with_name("hook.lock").read_text() == f"{os.getpid()}\n"
        assert await asked(home, *words("Stop"), PROMPT) == b"+"


async def test_without_work_it_ends(home: Path) -> None:
    async with kept(home, idle_s=0.2) as task:
        await asyncio.wait_for(task, 20)
    assert not (home / SOCKET).exists()


async def test_what_one_that_was_killed_left_behind_is_no_hindrance(home: Path) -> None:
    (home / SOCKET).parent.mkdir(parents=True)
    (home / SOCKET).touch()
    async with kept(home):
        assert await asked(home, *words("UserPromptSubmit"), PROMPT) == b"+"


@pytest.mark.parametrize("size", [10, 1_000_001])
def test_the_log_says_what_went_wrong_in_a_line_and_stays_small(home: Path, size: int) -> None:
    log_of(home).parent.mkdir(parents=True)
    log_of(home).write_text("x" * (size - 1) + "\n")
    log(home, "Stop", UserError("one\ntwo"), NOW)
    log(home, "", KeyError("of what was said"), NOW)
    *old, first, second = log_of(home).read_text().splitlines()
    assert (first, second) == (f"{NOW} Stop UserError: one two", f"{NOW} - KeyError: ")
    assert len(old) == (1 if size == 10 else 0)
