"""grep over the whole data folder: of a deleted text no byte is left, whatever deleted it.

The relay's SQLite behaves as one that is built without SECURE_DELETE.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
import time
from typing import TYPE_CHECKING, Any

import pytest

from tests import cast
from tests.e2e.test_management import called
from tests.harness import programs
from tests.harness.erasure import SQLITE_DEFAULT, erased, left_of, planted
from tests.harness.patience import here
from tests.harness.relay_program import Rookery, command, connected

if TYPE_CHECKING:
    from pathlib import Path

    from relay.nostr.event import Event
    from tests.harness.relay_program import Wire

STORED = (True, "")
SOON_S = 6
"""An event that expires then is still stored on a busy machine."""


@pytest.fixture(autouse=True)
def _built_without_secure_delete(monkeypatch: pytest.MonkeyPatch) -> None:
    paths = [str(SQLITE_DEFAULT), *filter(None, [os.environ.get("PYTHONPATH"), os.getcwd()])]
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(paths))
    # A forked program would have imported sqlite3 before.
    monkeypatch.setattr(programs, "FORKS", False)
    asked = "import sqlite3; print(*sqlite3.connect('').execute('PRAGMA secure_delete').fetchone())"
    told = subprocess.run([sys.executable, "-c", asked], capture_output=True, check=True)
    assert told.stdout.strip() == b"0"


async def published(wire: Wire, *events: Event) -> None:
    for event in events:
        assert await wire.publish(event) == STORED, event.kind


async def said(
    wire: Wire, number: int, kind: int = 1, h: str = "", at: int | None = None, who: Any = None
) -> tuple[list[str], list[Event]]:
    """Ten texts, stored and found by a search."""
    texts, author = planted(number), who or cast.robot
    now = int(time.time()) if at is None else at
    tags = [["h", h]] if h else []
    events = [author.sign(kind, tags, f"{text} " * 60, now) for text in texts]
    await published(wire, *events)
    return texts, events


@pytest.mark.slow
@pytest.mark.proves("N09-13", "N62-04")
async def test_nothing_is_left_after_any_deletion(tmp_path: Path) -> None:
    owner, robot, now = cast.owner, cast.robot, int(time.time())
    async with Rookery(tmp_path / "data") as rookery:
        await rookery.init("--owner", owner.pubkey, "--agent", robot.pubkey, "--preset", "open")
        await rookery.start()
        async with connected(rookery.url) as wire, connected(rookery.url) as idle:
            await wire.log_in(robot, rookery.url, now)
            await idle.send("REQ", "live", {"kinds": [1], "limit": 0})
            # A reader that asks for much and reads nothing of it.
            async with connected(rookery.url, max_queue=1) as slow:
                await published(wire, owner.sign(9007, [["h", "tea"]], "", now))
                await published(
                    wire, owner.sign(9000, [["h", "tea"], ["p", robot.pubkey]], "", now)
                )
                others = [robot.sign(1, [], f"{n} " * 500, now - 9) for n in range(1000)]
                await published(wire, *others)
                await slow.send("REQ", "all", {"kinds": [1]})

                first, events = await said(wire, 0)
                await published(wire, robot.sign(5, [["e", e.id] for e in events], "", now))
                await erased(first, rookery.folder, seconds=here(5))

                async def kind_5(_: list[str], events: list[Event]) -> None:
                    await published(wire, robot.sign(5, [["e", e.id] for e in events], "", now))

                async def kind_9005(_: list[str], events: list[Event]) -> None:
                    for event in events:
                        tags = [["h", "tea"], ["e", event.id]]
                        await published(wire, owner.sign(9005, tags, "", now))

                async def banned(_: list[str], events: list[Event]) -> None:
                    for event in events:
                        assert await called(rookery.url, "banevent", event.id, "")

                async def replaced(_: list[str], events: list[Event]) -> None:
                    await published(wire, robot.sign(0, [], "{}", now + 2))

                async def vanished(_: list[str], events: list[Event]) -> None:
                    tags = [["relay", "ALL_RELAYS"]]
                    await published(wire, cast.alice.sign(62, tags, "", int(time.time())))

                for number, delete, options in (
                    (2, kind_5, {}),
                    (3, kind_9005, {"kind": 9, "h": "tea"}),
                    (4, banned, {}),
                    (5, vanished, {"who": cast.alice}),
                ):
                    texts, events = await said(wire, number, **options)
                    assert left_of(texts, rookery.folder)
                    await delete(texts, events)
                    await erased(texts, rookery.folder, seconds=here(5))
                texts = planted(6)
                await published(
                    wire, robot.sign(0, [], json.dumps({"about": " ".join(texts)}), now)
                )
                assert left_of(texts, rookery.folder)
                await replaced(texts, [])
                await erased(texts, rookery.folder, seconds=here(5))
        assert await rookery.stop() == 0


@pytest.mark.slow
@pytest.mark.parametrize("moment", ["at once", "after the truncation"])
async def test_nothing_is_left_after_a_kill_and_a_restart(tmp_path: Path, moment: str) -> None:
    robot, now = cast.robot, int(time.time())
    async with Rookery(tmp_path / "data") as rookery:
        await rookery.init("--owner", cast.owner.pubkey, "--agent", robot.pubkey)
        await rookery.start()
        async with connected(rookery.url) as wire:
            texts, events = await said(wire, 0)
            await published(wire, robot.sign(5, [["e", e.id] for e in events], "", now))
            await erased(texts, rookery.folder, seconds=here(5))
            texts, events = await said(wire, 2)
            await wire.query({"search": texts[-1]})
            await published(wire, robot.sign(5, [["e", e.id] for e in events], "", now))
            if moment != "at once":
                await erased(texts, rookery.folder, seconds=here(5))
            await rookery.stop(signal.SIGKILL)
        if moment == "at once":
            assert left_of(texts, rookery.folder)
        await rookery.start()
        await erased(texts, rookery.folder, seconds=here(5))
        assert await rookery.stop() == 0
        assert left_of(texts, rookery.folder) == {}


@pytest.mark.slow
async def test_nothing_is_left_after_a_sweep(tmp_path: Path) -> None:
    """Of a running relay by itself, of a stopped one by a command; what expired too."""
    robot, now = cast.robot, int(time.time())
    folder = tmp_path / "data"
    async with Rookery(folder) as rookery:
        await rookery.init("--owner", cast.owner.pubkey, "--agent", robot.pubkey)
        await rookery.start()
        async with connected(rookery.url) as wire:
            texts, events = await said(wire, 0)
            await published(wire, robot.sign(5, [["e", e.id] for e in events], "", now))
            await erased(texts, folder, seconds=here(5))
            texts = planted(2)
            soon = [["expiration", str(int(time.time()) + SOON_S)]]
            await published(wire, *[robot.sign(1, soon, text, now) for text in texts])
            assert left_of(texts, folder)
            await asyncio.sleep(SOON_S)  # expiry is by the clock
            code, out = await command("policy", "sweep", "--data", str(folder))
            assert code == 0, out
            await erased(texts, folder, seconds=here(5))

            texts = planted(3)
            soon = [["expiration", str(int(time.time()) + SOON_S)]]
            await published(wire, *[robot.sign(1, soon, text, now) for text in texts])
            await wire.query({"search": texts[-1]})
        assert await rookery.stop() == 0
        assert left_of(texts, folder)
        await asyncio.sleep(SOON_S)
        code, out = await command("policy", "sweep", "--data", str(folder))
        assert code == 0, out
        assert left_of(texts, folder) == {}
