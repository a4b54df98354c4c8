"""What is taken from a running relay: room on the disk, its folder, file descriptors; and signals
while it starts."""

from __future__ import annotations

import asyncio
import os
import resource
import shutil
import signal
import subprocess
import time
from contextlib import contextmanager, suppress
from random import Random
from typing import TYPE_CHECKING, Final

import pytest
import websockets
from aiohttp import ClientSession

from relay.write.ingest import STORE_FAILED
from tests import cast
from tests.effort import tries
from tests.faults.test_kill import is_told_by, log_of
from tests.harness.relay_program import Mutant, Rookery, command, connected, eventually, until

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator
    from pathlib import Path

    from tests.harness.relay_program import Wire

pytestmark = pytest.mark.slow

ERROR: Final = f"error: {STORE_FAILED.text}"
NEARLY_FULL: Final = "error: the disk of this relay is nearly full, its owner has to free space"
_TEXT: Final = "x" * 20_000


@pytest.fixture
async def rookery(tmp_path: Path) -> AsyncIterator[Rookery]:
    async with Rookery(tmp_path / "data") as rookery:
        await begun(rookery)
        yield rookery


async def begun(rookery: Rookery) -> None:
    await rookery.init("--owner", cast.owner.pubkey, "--agent", cast.robot.pubkey)
    await rookery.start()


class Writing:
    """Notes one by one, and which of them got OK."""

    def __init__(self) -> None:
        self.stored: list[str] = []
        self._number = 0

    async def until_refused(self, wire: Wire) -> str:
        while True:
            stored, text = await self.one(wire)
            if not stored:
                return text

    async def one(self, wire: Wire) -> tuple[bool, str]:
        self._number += 1
        note = cast.robot.sign(1, [], f"{self._number} {_TEXT}", int(time.time()))
        stored, text = await wire.publish(note)
        if stored:
            self.stored.append(note.id)
        return stored, text


async def status(rookery: Rookery, path: str) -> int:
    url = rookery.url.replace("ws://", "http://") + path
    async with ClientSession() as http, http.get(url) as answer:
        return answer.status


async def goes_on(rookery: Rookery, writing: Writing) -> None:
    """It stores again; everything that was answered is there, and after a kill as well."""
    async with until("it stores again") as attempts, connected(rookery.url) as wire:
        async for _ in attempts:
            if (await writing.one(wire))[0]:
                break
    await holds(rookery, writing)


async def holds(rookery: Rookery, writing: Writing) -> None:
    await rookery.stop(signal.SIGKILL)
    await rookery.start()
    async with connected(rookery.url) as wire:
        assert await wire.query_ids(writing.stored) == set(writing.stored)


# -- room ------------------------------------------------------------------------------------------


async def test_no_file_may_grow_and_then_they_may(rookery: Rookery) -> None:
    writing = Writing()
    async with connected(rookery.url) as wire:
        assert (await writing.one(wire))[0]
        unlimited = resource.prlimit(rookery.pid, resource.RLIMIT_FSIZE)
        resource.prlimit(rookery.pid, resource.RLIMIT_FSIZE, (600_000, unlimited[1]))
        assert await writing.until_refused(wire) == ERROR
        # What was refused left room in the log for something small.
        resource.prlimit(rookery.pid, resource.RLIMIT_FSIZE, (4096, unlimited[1]))
        assert await status(rookery, "/readyz") == 503
        assert await wire.query_ids(writing.stored) == set(writing.stored), "reads go on"
        resource.prlimit(rookery.pid, resource.RLIMIT_FSIZE, unlimited)
    await goes_on(rookery, writing)


@contextmanager
def small_disk(folder: Path) -> Iterator[None]:
    folder.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=3m", "none", folder], check=False, capture_output=True
    )
    if mounted.returncode:
        pytest.skip("nobody but root may mount")
    try:
        yield
    finally:
        subprocess.run(["umount", "-l", folder], check=True)


async def test_a_full_disk_refuses_and_recovers(tmp_path: Path) -> None:
    writing = Writing()
    with small_disk(tmp_path / "disk"):
        async with Rookery(tmp_path / "disk" / "data") as rookery:
            await begun(rookery)
            ballast = tmp_path / "disk" / "ballast"
            ballast.write_bytes(bytes(1_000_000))
            async with connected(rookery.url) as wire:
                assert await writing.until_refused(wire) == ERROR
                fill(ballast)
                # As soon as it is known that the disk is full, nothing is tried any more.
                assert await writing.until_refused(wire) in (ERROR, NEARLY_FULL)
                assert await wire.query_ids(writing.stored) == set(writing.stored)
            ballast.unlink()
            await goes_on(rookery, writing)


async def test_a_relay_that_starts_on_a_full_disk_names_the_file(tmp_path: Path) -> None:
    writing = Writing()
    with small_disk(tmp_path / "disk"):
        async with Rookery(tmp_path / "disk" / "data") as rookery:
            await begun(rookery)
            async with connected(rookery.url) as wire:
                await writing.one(wire)
            await rookery.stop(signal.SIGKILL)
            ballast = tmp_path / "disk" / "ballast"
            fill(ballast)
            refusal = await refused(rookery)
            ballast.unlink()
            if refusal is None:  # what SQLite needed was there
                await rookery.stop(signal.SIGKILL)
            else:
                assert str(rookery.folder) in refusal
                assert "Traceback" not in refusal
            await rookery.start()
            await goes_on(rookery, writing)


def fill(file: Path) -> None:
    with file.open("ab", buffering=0) as ballast, suppress(OSError):
        while True:
            ballast.write(bytes(4096))


async def refused(rookery: Rookery) -> str | None:
    try:
        await rookery.start()
    except AssertionError as ended:
        await rookery.stop(signal.SIGKILL)
        return str(ended)
    return None


# -- the folder ------------------------------------------------------------------------------------


async def test_a_folder_that_vanishes_takes_no_more_events(rookery: Rookery) -> None:
    """They would go into files that have no name any more."""
    writing = Writing()
    async with connected(rookery.url) as wire:
        assert (await writing.one(wire))[0]
        away = rookery.folder.with_name("away")
        rookery.folder.rename(away)
        assert await writing.until_refused(wire) == ERROR
        assert await status(rookery, "/readyz") == 503
        away.rename(rookery.folder)
    await goes_on(rookery, writing)


@pytest.mark.parametrize("name", ["rookery.db", "rookery.db-wal"])
async def test_a_file_that_is_removed_takes_no_more_events(rookery: Rookery, name: str) -> None:
    writing = Writing()
    async with connected(rookery.url) as wire:
        assert (await writing.one(wire))[0]
        file, away = rookery.folder / name, rookery.folder.with_name("away")
        file.rename(away)
        assert await writing.one(wire) == (False, ERROR)
        # Now that this was answered the log is not brought into the file that went away either.
        shutil.copy(away, file)
        assert await writing.one(wire) == (False, ERROR)
    await holds(rookery, writing)


@pytest.mark.mutant
async def test_a_relay_that_writes_to_nowhere_is_found(tmp_path: Path) -> None:
    async with Mutant(tmp_path / "data", "any_file") as rookery:
        await begun(rookery)
        async with connected(rookery.url) as wire:
            rookery.folder.rename(rookery.folder.with_name("away"))
            stored, _ = await Writing().one(wire)
    assert stored


# -- file descriptors ------------------------------------------------------------------------------


async def test_without_file_descriptors_those_who_are_here_go_on(rookery: Rookery) -> None:
    writing = Writing()
    async with connected(rookery.url) as wire:
        assert (await writing.one(wire))[0]
        before = resource.prlimit(rookery.pid, resource.RLIMIT_NOFILE)
        used = len(os.listdir(f"/proc/{rookery.pid}/fd"))
        resource.prlimit(rookery.pid, resource.RLIMIT_NOFILE, (used, before[1]))
        others = [asyncio.create_task(_visit(rookery.url)) for _ in range(20)]
        for _ in range(20):
            assert await writing.one(wire) == (True, "")
        assert await wire.query_ids(writing.stored) == set(writing.stored)
        resource.prlimit(rookery.pid, resource.RLIMIT_NOFILE, before)
        await asyncio.gather(*others)
    await goes_on(rookery, writing)
    assert len(rookery.lines) < 100


async def _visit(url: str) -> None:
    """Perhaps turned away."""
    with suppress(OSError, websockets.WebSocketException):
        async with websockets.connect(url) as socket:
            await socket.recv()


# -- two processes, and signals --------------------------------------------------------------------


async def test_a_second_process_changes_nothing(rookery: Rookery) -> None:
    writing = Writing()
    async with connected(rookery.url) as wire:
        assert (await writing.one(wire))[0]
        for args in (("serve", "--port", "0"), ("compact",)):
            code, text = await command(*args, "--data", str(rookery.folder))
            assert code != 0
            assert f"process {rookery.pid}" in text, text
        assert (await writing.one(wire))[0]
    await holds(rookery, writing)


@pytest.mark.mutant
async def test_a_relay_without_a_lock_is_found(tmp_path: Path) -> None:
    async with Mutant(tmp_path / "data", "no_lock") as first:
        await begun(first)
        async with Mutant(first.folder, "no_lock") as second:
            await second.start()
            assert second.url != first.url


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
async def test_a_start_that_is_ended_anywhere_leaves_a_folder_that_starts(
    tmp_path: Path, number: signal.Signals
) -> None:
    """With another key each time, so that all groups are signed again."""
    chance, writing = Random(number), Writing()
    async with Rookery(tmp_path / "data") as rookery:
        await begun(rookery)
        async with connected(rookery.url) as wire:
            for group in ("tea", "food"):
                event = cast.owner.sign(9007, [["h", group]], "", int(time.time()))
                assert (await wire.publish(event))[0]
            await writing.one(wire)
        await rookery.stop(signal.SIGKILL)
        for turn in range(tries(40, 8, 4)):
            key = cast.person(f"relay {turn}")
            (rookery.folder / "relay.key").write_text(key.nsec + "\n")
            starting = asyncio.create_task(rookery.start())
            await asyncio.sleep(chance.random() / 3)
            code = await ended(rookery, number)
            await asyncio.gather(starting, return_exceptions=True)
            assert code in (0, -number)
            assert not any("Traceback" in line for line in rookery.lines), rookery.lines
        await rookery.start()
        await holds(rookery, writing)
        await rookery.stop()
        assert is_told_by(await log_of(rookery), rookery).by_id.keys() == {"tea", "food"}


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
async def test_a_restart_that_is_ended_anywhere_loses_nothing(
    tmp_path: Path, number: signal.Signals
) -> None:
    chance, writing = Random(number), Writing()
    async with Rookery(tmp_path / "data") as rookery:
        await begun(rookery)
        for _ in range(tries(20, 3, 1)):
            async with connected(rookery.url) as wire:
                await writing.one(wire)
            asked = asyncio.create_task(command("restart", "--data", str(rookery.folder)))
            await asyncio.sleep(chance.random() * 1.5)
            assert await rookery.stop(number) in (0, -number)
            asked.cancel()
            await asyncio.gather(asked, return_exceptions=True)
            await rookery.start()
        assert not any("Traceback" in line for line in rookery.lines), rookery.lines
        await holds(rookery, writing)


async def ended(rookery: Rookery, number: int) -> int:
    await eventually("the process is there", lambda: rookery._process is not None)
    return await rookery.stop(number)
