"""`kill -9` in the middle of a sweep: no rule is broken, no row is half gone. A-18."""

from __future__ import annotations

import asyncio
import random
import signal
import sqlite3
import time
from contextlib import closing
from subprocess import DEVNULL
from typing import TYPE_CHECKING

import pytest

from relay.nostr.event import event_from_raw
from tests import cast
from tests.effort import tries
from tests.faults.contents import contradictions
from tests.harness.programs import start_rookery
from tests.harness.relay_program import Rookery, command, eventually, until

if TYPE_CHECKING:
    from pathlib import Path

    from relay.nostr.event import Event

ROUNDS = tries(10, 10, 1)
KEYS = 60
TOOLS = tries(250, 250, 40)
DAY_S = 86_400
POLICY = """
include = ["aman-app"]
[memory]
schema = "off"
"""


def record(kind: int, hk: str, ts: int, at: int | None = None) -> Event:
    tags = [["d", hk if kind == 30094 else f"{hk}:{ts}"], ["hk", hk], ["ts", str(ts)]]
    return cast.robot.sign(kind, tags, f"said under {hk}", ts if at is None else at)


def histories(now: int) -> tuple[list[Event], list[Event]]:
    """Records that go, and records that stay: young ones, and a clear that waits for one."""
    old = now - 40 * DAY_S
    gone, kept = [], []
    for number in range(KEYS):
        hk = f"old{number}"
        gone += [record(30095, hk, old + at) for at in range(TOOLS)]
        gone += [record(30094, hk, old), record(30096, hk, old + TOOLS)]
        kept += [record(30095, f"new{number}", now - DAY_S), record(30096, f"new{number}", now)]
        kept += [record(30096, f"held{number}", old + 9)]
        kept += [record(30095, f"held{number}", old, at=now - DAY_S)]
    return gone, kept


def faults_in(path: Path) -> list[str]:
    """What is half gone, or gone before its time."""
    faults = contradictions(path)
    with closing(sqlite3.connect(path)) as db:
        events = [event_from_raw(raw) for (raw,) in db.execute("SELECT raw FROM events")]
    clears = {event.tag("hk") for event in events if event.kind == 30096}
    for event in events:
        hk = event.tag("hk") or ""
        if event.kind in (30094, 30095) and not hk.startswith("new") and hk not in clears:
            faults.append(f"the clear of {hk} went before what it clears")
    return faults


def stored(path: Path) -> int:
    with closing(sqlite3.connect(path)) as db:
        number: int = db.execute("SELECT count(*) FROM events").fetchone()[0]
        return number


@pytest.mark.proves("A-18")
@pytest.mark.slow
async def test_a_sweep_that_is_killed_many_times_breaks_no_rule(tmp_path: Path) -> None:
    chance = random.Random(7)
    folder = tmp_path / "data"
    path = folder / "rookery.db"
    gone, kept = histories(int(time.time()))
    lines = tmp_path / "events.jsonl"
    everything = [*gone, *kept]
    chance.shuffle(everything)
    lines.write_bytes(b"\n".join(event.raw for event in everything))
    async with Rookery(folder) as rookery:
        await rookery.init("--owner", cast.owner.pubkey, "--agent", cast.robot.pubkey)
        (folder / "policies" / "20-own.toml").write_text(POLICY)
        code, text = await command("import", str(lines), "--data", str(folder))
        assert code == 0, text
        kills_in_a_sweep = 0
        for _ in range(ROUNDS):
            before = stored(path)
            await rookery.start()
            sweep = await start_rookery(
                "policy", "sweep", "--data", str(folder), stdout=DEVNULL, stderr=DEVNULL
            )
            async with until("the sweep takes something") as tries:
                async for _ in tries:
                    if stored(path) < before or before == len(kept):
                        break
            await asyncio.sleep(chance.random() / 5)
            await rookery.stop(signal.SIGKILL)
            await sweep.wait()
            assert faults_in(path) == []
            kills_in_a_sweep += len(kept) < stored(path) < before
        assert kills_in_a_sweep >= ROUNDS * 3 // 4
        await rookery.start()
        await eventually("all that is due has gone", lambda: stored(path) == len(kept))
        assert await rookery.stop() == 0
    assert faults_in(path) == []
    with closing(sqlite3.connect(path)) as db:
        left = {event_from_raw(raw).id for (raw,) in db.execute("SELECT raw FROM events")}
    assert left == {event.id for event in kept}
    with closing(sqlite3.connect(folder / "search.db")) as db:
        db.execute("ATTACH ? AS store", (str(path),))
        found = db.execute(
            "SELECT count(*) FROM ranks WHERE seq NOT IN (SELECT seq FROM store.events)"
        ).fetchone()[0]
    assert found == 0
