"""Many clients at once, and for long: who behaves is served, and nothing grows without bound.

`make faults` runs the whole numbers and bounds times; `make test` a part, and bounds work and
memory alone. `SOAK_S=600 make faults` soaks for ten minutes, by default for one.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import time
from statistics import linear_regression, quantiles
from typing import TYPE_CHECKING

import pytest

from tests import cast
from tests.bench.wire import frame
from tests.e2e.test_attacks import is_well, no_fault_is_logged, raw
from tests.e2e.test_slow_reader import MIB, memory, metrics, publish_all
from tests.effort import IS_ALL, tries
from tests.harness.patience import ANSWER_S, here
from tests.harness.relay_program import Rookery, Wire, connected, eventually

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Sequence
    from pathlib import Path

    from relay.nostr.event import Event

pytestmark = [pytest.mark.slow, pytest.mark.process]

OUTBOX = 1 << 20
AT_ONCE = 100
"""REQs that are sent together: as clients do when they connect."""
SOAK_S = float(os.environ.get("SOAK_S", tries(60, 3)))


@pytest.fixture
async def rookery(tmp_path: Path) -> AsyncIterator[Rookery]:
    async with Rookery(tmp_path / "data") as rookery:
        await rookery.init("--owner", cast.owner.pubkey, "--preset", "open")
        settings = rookery.folder / "rookery.toml"
        settings.write_text(f"[limits]\noutbox_bytes = {OUTBOX}\nmax_connections = 2000\n")
        await rookery.start()
        yield rookery
        await is_well(rookery)
        no_fault_is_logged(rookery)
        assert await rookery.stop() == 0


async def test_clients_that_never_read(rookery: Rookery) -> None:
    """What they are not sent is bounded for each; an ordinary client misses nothing."""
    deaf, notes = tries(500, 40), tries(600, 120)
    async with contextlib.AsyncExitStack() as stack:
        before = memory(rookery)
        for _ in range(deaf):
            _, writer = await stack.enter_async_context(raw(rookery))
            writer.transport.pause_reading()  # type: ignore[attr-defined]
            writer.write(frame(b'["REQ","all",{"kinds":[1]}]'))
        wire = await stack.enter_async_context(connected(rookery.url))
        reader = await stack.enter_async_context(connected(rookery.url))
        await reader.send("REQ", "live", {"kinds": [1], "limit": 0})
        assert await reader.receive() == ["EOSE", "live"]
        now = int(time.time())
        sent = [cast.alice.sign(1, [], f"{n} " + "x" * 8000, now) for n in range(notes)]
        for start in range(0, notes, 20):
            some = sent[start : start + 20]
            await publish_all(wire, some)
            assert [(await reader.receive())[2]["id"] for _ in some] == [note.id for note in some]
        grown = memory(rookery) - before
        print(f"{deaf} clients that do not read, {notes} notes of 8 kB: +{grown / MIB:.0f} MiB")
        assert grown < deaf * OUTBOX * 1.5 + 64 * MIB


async def test_connections_that_come_and_go(rookery: Rookery) -> None:
    """Half of them without a word; nothing of them is left."""
    number, at_once = tries(5000, 400), 50
    before, files = memory(rookery), _files(rookery)

    async def comes_and_goes(each: int) -> None:
        async with raw(rookery) as (reader, writer):
            writer.write(frame(b'["REQ","a",{"kinds":[1],"limit":5}]'))
            if each % 2:
                await reader.readuntil(b"EOSE")

    began = time.monotonic()
    for start in range(0, number, at_once):
        await asyncio.gather(*map(comes_and_goes, range(start, start + at_once)))
    took = time.monotonic() - began
    await eventually("their files are closed", lambda: _files(rookery) <= files + 5)
    # Of the refused ones none were: there was room for all.
    counted = await metrics(rookery)
    assert counted["rookery_connections_opened_total"] >= number
    grown = memory(rookery) - before
    print(f"{number} connections in {took:.1f} s: +{grown / MIB:.0f} MiB")
    assert grown < 32 * MIB


def _files(rookery: Rookery) -> int:
    return len(os.listdir(f"/proc/{rookery.pid}/fd"))


@pytest.mark.timeout(900)
async def test_a_flood_of_requests_beside_small_ones(rookery: Rookery) -> None:
    """20,000 REQs of one host on four connections that send all at once."""
    number, floods = tries(20_000, 2_000), 4
    now = int(time.time())
    async with contextlib.AsyncExitStack() as stack:
        wire = await stack.enter_async_context(connected(rookery.url))
        notes = [cast.alice.sign(1, [["t", f"{n % 7}"]], f"{n}", now - n) for n in range(500)]
        await publish_all(wire, notes)
        others = [await stack.enter_async_context(connected(rookery.url)) for _ in range(5)]
        flooding = [asyncio.create_task(_flood(rookery, number // floods)) for _ in range(floods)]
        waits: list[float] = []
        is_over = asyncio.Event()
        asking = [
            asyncio.create_task(_ask(each, notes[n].id, waits, is_over))
            for n, each in enumerate(others)
        ]
        try:
            answered = sum(await asyncio.gather(*flooding))
        finally:
            is_over.set()
        await asyncio.gather(*asking)
    assert answered == number, "each REQ of the flood is answered too"
    p95 = quantiles(waits, n=20)[-1] if len(waits) > 1 else 0.0
    print(f"{number} REQs at once; {len(waits)} small ones beside: p95 {p95 * 1000:.0f} ms")
    if IS_ALL:
        assert p95 < here(0.2)


async def _flood(rookery: Rookery, number: int) -> int:
    """How many were answered."""
    asked = b"".join(
        frame(b'["REQ","%d",{"kinds":[1],"#t":["%d"],"limit":20}]' % (n, n % 7))
        for n in range(AT_ONCE)
    )
    async with raw(rookery) as (reader, writer):
        for _ in range(number // AT_ONCE):
            writer.write(asked)
            for _ in range(AT_ONCE):
                async with asyncio.timeout(ANSWER_S):
                    await reader.readuntil(b'["EOSE"')
    return number


async def _ask(wire: Wire, event_id: str, waits: list[float], is_over: asyncio.Event) -> None:
    while not is_over.is_set():
        began = time.monotonic()
        assert len(await wire.query({"ids": [event_id]})) == 1
        waits.append(time.monotonic() - began)
        await asyncio.sleep(0.01)


async def test_a_soak_at_half_load(rookery: Rookery) -> None:
    """Prints how memory and the write-ahead log grow."""
    async with connected(rookery.url) as wire, connected(rookery.url) as reader:
        await reader.send("REQ", "live", {"kinds": [1], "limit": 0})
        await reader.receive()
        listening = asyncio.create_task(_listen(reader))
        began = time.monotonic()
        await publish_all(wire, _notes(300, began))
        pause_s = 2 * (time.monotonic() - began) / 300
        points: list[tuple[float, int, int]] = []
        began, sent = time.monotonic(), 300
        while (passed := time.monotonic() - began) < SOAK_S:
            await publish_all(wire, _notes(100, passed))
            sent += 100
            log = rookery.folder / "rookery.db-wal"
            points.append((passed, memory(rookery), log.stat().st_size if log.exists() else 0))
            await asyncio.sleep(max(0.0, sent * pause_s - passed))
        listening.cancel()
        await asyncio.gather(listening, return_exceptions=True)
    half = points[len(points) // 2 :]
    slopes = [_per_minute(half, column) / MIB for column in (1, 2)]
    print(
        f"{SOAK_S:.0f} s, {sent} events: memory {points[-1][1] / MIB:.0f} MiB"
        f" ({slopes[0]:+.1f} MiB a minute), log {points[-1][2] / MIB:.1f} MiB"
        f" ({slopes[1]:+.1f} MiB a minute)"
    )
    assert max(size for _, _, size in points) < 160 * MIB
    assert max(size for _, size, _ in points) < 640 * MIB, "caches of SQLite included"


def _notes(number: int, salt: float) -> list[Event]:
    now = int(time.time())
    return [
        cast.alice.sign(1, [["t", "x"]], f"{salt} {n} " + "x" * 300, now) for n in range(number)
    ]


async def _listen(wire: Wire) -> None:
    while True:
        await wire.receive()


def _per_minute(points: Sequence[tuple[float, int, int]], column: int) -> float:
    if len(points) < 2:
        return 0.0
    xs = [point[0] for point in points]
    return 60 * linear_regression(xs, [point[column] for point in points]).slope
