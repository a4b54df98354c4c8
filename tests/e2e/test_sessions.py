"""Sessions of coding agents through processes: in, read, followed and out again to the byte."""

from __future__ import annotations

import asyncio
import os
import re
import signal
from contextlib import asynccontextmanager
from subprocess import DEVNULL
from typing import TYPE_CHECKING

import pytest

from relay.client import Client
from tests import cast
from tests.effort import tries
from tests.golden import HERE
from tests.harness.patience import ANSWER_S
from tests.harness.programs import start_rookery
from tests.harness.relay_program import Rookery, outputs
from tests.unit.memory.transcripts.telling import SESSION, line

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    from relay.nostr.keys import SecretKey

pytestmark = pytest.mark.slow

GOLDEN = HERE / "memory" / "conversation"
FILES = sorted(GOLDEN.glob("*.jsonl"))
LONG = tries(50, 50, 5) * 1_000_000
"""Bytes of a line."""
LINES = tries(5_000, 5_000, 2_000)
"""Of a session whose import is killed: two events for each."""


class Person:
    """The command line of one person, with a home of their own."""

    def __init__(self, key: SecretKey, home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        home.mkdir()
        self._key = key
        self._home = home
        self._monkeypatch = monkeypatch

    def dress(self, url: str) -> None:
        for name, value in (
            ("HOME", str(self._home)),
            ("ROOKERY_RELAY", url),
            ("ROOKERY_KEY", self._key.nsec),
        ):
            self._monkeypatch.setenv(name, value)

    async def says(self, url: str, *args: str) -> tuple[int, bytes, str]:
        self.dress(url)
        return await outputs("session", *args)


@pytest.fixture
def robot(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Person:
    return Person(cast.robot, tmp_path / "robot", monkeypatch)


def put(path: Path, *lines: bytes) -> Path:
    with path.open("ab") as file:
        file.write(b"".join(lines))
    return path


@pytest.mark.proves("D-06", "D-18")
async def test_golden_files_go_in_and_come_out_for_their_author_and_the_owner_alone(
    rookery: Rookery, robot: Person, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    code, out, err = await robot.says(rookery.url, "import", str(GOLDEN))
    assert (code, err) == (0, "")
    sessions = [said.split(":")[0] for said in out.decode().splitlines()]
    assert len(sessions) == len(FILES)
    owner = Person(cast.owner, tmp_path / "owner", monkeypatch)
    outsider = Person(cast.stranger, tmp_path / "outsider", monkeypatch)
    for session, path in zip(sessions, FILES, strict=True):
        code, out, err = await robot.says(rookery.url, "export", session)
        assert (code, out) == (0, path.read_bytes()), err
        code, out, err = await owner.says(rookery.url, "export", session)
        assert (code, out) == (0, path.read_bytes()), err
        code, out, err = await outsider.says(rookery.url, "export", session)
        assert (code, out) == (1, b"")
        assert "restricted: you may not read this" in err
    assert (await outsider.says(rookery.url, "search", "please"))[:2] == (1, b"")
    code, out, _ = await robot.says(rookery.url, "search", "please", "--session", sessions[0])
    assert code == 0
    assert b"and please stop there" in out


@pytest.mark.proves("D-29", "D-31", "D-32")
async def test_in_envelopes_a_session_is_its_authors_alone(
    rookery: Rookery, robot: Person, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = FILES[-1]
    code, out, err = await robot.says(rookery.url, "import", "--pns", str(path), "--session", "s")
    assert (code, err) == (0, "")
    assert out.startswith(b"s: ")
    assert (await robot.says(rookery.url, "export", "s"))[:2] == (0, path.read_bytes())
    owner = Person(cast.owner, tmp_path / "owner", monkeypatch)
    assert (await owner.says(rookery.url, "export", "s"))[0] == 1


@pytest.mark.proves("D-15", "D-17")
async def test_lines_that_are_no_json_and_a_very_long_one_are_kept_to_the_byte(
    rookery: Rookery, robot: Person, tmp_path: Path
) -> None:
    path = put(
        tmp_path / "odd.jsonl",
        line(),
        b"no json\r\n",
        b'{"cut off": "in the mid\n',
        b"\xff\xfe\n",
        b" \t\n",
        line(message="x" * LONG),
        line(message="the last, without an end").removesuffix(b"\n"),
    )
    code, out, err = await robot.says(rookery.url, "import", str(path))
    assert (code, err) == (0, "")
    assert out.decode().startswith(f"{SESSION}: 7 lines, 3 notes, ")
    assert (await robot.says(rookery.url, "verify", SESSION, str(path)))[:2] == (
        0,
        b"identical\n",
    )


@asynccontextmanager
async def followed(path: Path) -> AsyncIterator[asyncio.StreamReader]:
    """`rookery session follow`, for as long as the block; what it prints."""
    process = await start_rookery(
        "session",
        "follow",
        str(path),
        env={**os.environ, "PYTHONUNBUFFERED": "1"},
    )
    assert process.stdout is not None
    try:
        yield process.stdout
    finally:
        process.send_signal(signal.SIGINT)
        assert await asyncio.wait_for(process.wait(), ANSWER_S) == 130


async def next_line(said: asyncio.StreamReader) -> str:
    return (await asyncio.wait_for(said.readline(), ANSWER_S)).decode().rstrip()


async def test_a_running_session_is_followed_through_restarts_and_a_relay_that_is_away(
    rookery: Rookery, robot: Person, tmp_path: Path
) -> None:
    port = rookery.url.rpartition(":")[2]
    path = put(tmp_path / "live.jsonl", line(message="one"), line(message="two"))
    robot.dress(rookery.url)
    async with followed(path) as said:
        assert await next_line(said) == f"{SESSION}: 2 lines, 4 stored, 0 duplicates"
        put(path, line(message="three"))
        assert await next_line(said) == f"{SESSION}: 1 line, 2 stored, 0 duplicates"
    put(path, line(message="while nobody looked"))
    async with followed(path) as said:
        assert await next_line(said) == f"{SESSION}: 1 line, 2 stored, 0 duplicates"
        assert await rookery.stop() == 0
        queued = f"{rookery.url} is unreachable: lines are queued in "
        assert (await next_line(said)).startswith(queued)
        put(path, line(message="while the relay is away"))
        assert (await next_line(said)).endswith("1 line, 0 stored, 0 duplicates, 2 waiting")
        await rookery.start("--port", port)
        back = await next_line(said)  # what the session is called may have come too late as well
        assert re.fullmatch(f"{rookery.url} is reachable again: [23] events queued", back)
        put(path, line(message="and goes on"))
        assert await next_line(said) == f"{SESSION}: 1 line, 2 stored, 0 duplicates"
    code, out, err = await robot.says(rookery.url, "follow", str(path), "--once")
    assert (code, out, err) == (0, b"", "")
    assert (await robot.says(rookery.url, "verify", SESSION, str(path)))[:2] == (
        0,
        b"identical\n",
    )


@pytest.mark.proves("D-03", "D-14")
async def test_an_import_that_is_killed_is_begun_again(
    rookery: Rookery, robot: Person, tmp_path: Path
) -> None:
    path = put(
        tmp_path / "long.jsonl",
        *(line(message=f"{number} {'x' * 500}") for number in range(LINES)),
    )
    robot.dress(rookery.url)
    async with Client(rookery.url, cast.robot) as client:
        process = await start_rookery(
            "session",
            "import",
            str(path),
            stdout=DEVNULL,
            stderr=DEVNULL,
        )
        while await client.count({"kinds": [1988]}) < 100:
            assert process.returncode is None
        process.kill()
        await process.wait()
    code, out, err = await robot.says(rookery.url, "import", str(path))
    assert code == 0, err
    stored, duplicates = (int(out.split()[at].replace(b",", b"")) for at in (-4, -2))
    assert (stored + duplicates, min(stored, duplicates) > 0) == (2 * LINES, True)
    async with Client(rookery.url, cast.robot) as client:
        wanted = {"kinds": [1988, 1989], "#d": [SESSION], "limit": 2 * LINES}
        assert len(await client.query(wanted)) == 2 * LINES, "in one answer"
    assert (await robot.says(rookery.url, "verify", SESSION, str(path)))[:2] == (
        0,
        b"identical\n",
    )
