"""Who reads slowly is waited for, or closed with a reason; nobody else notices it."""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import os
import shutil
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import aiohttp
import pytest

from tests import cast
from tests.effort import tries
from tests.harness.patience import here
from tests.harness.relay_program import Rookery, Wire, command, connected, until

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable

    from relay.nostr.event import Event

pytestmark = pytest.mark.slow

ROWS = 12_500
MIB = 1 << 20
OUTBOX = 4 * MIB
"""The default of `[limits] outbox_bytes`."""
DEAF: dict[str, Any] = {"max_queue": 1, "ping_interval": None}
"""A client that takes one message from its socket and then no more until it is asked to."""


def memory(rookery: Rookery) -> int:
    """Bytes that the relay holds; the pages of the database that are mapped are not its own."""
    for line in Path(f"/proc/{rookery.pid}/status").read_text().splitlines():
        if line.startswith("RssAnon:"):
            return int(line.split()[1]) * 1024
    raise AssertionError("no RssAnon")


async def metrics(rookery: Rookery) -> dict[str, float]:
    url = rookery.url.replace("ws", "http", 1) + "/metrics"
    async with aiohttp.ClientSession() as session, session.get(url) as response:
        lines = (await response.text()).splitlines()
    pairs = [line.rsplit(" ", 1) for line in lines if not line.startswith("#")]
    return {name: float(value) for name, value in pairs}


@pytest.fixture
async def rookery(tmp_path: Path) -> AsyncIterator[Rookery]:
    async with Rookery(tmp_path / "data") as rookery:
        await rookery.init("--owner", cast.owner.pubkey, "--agent", cast.robot.pubkey)
        await rookery.start()
        yield rookery
        assert await rookery.stop() == 0
    print(*rookery.lines, sep="\n")
    assert "Traceback" not in "\n".join(rookery.lines)


async def publish_all(wire: Wire, events: list[Event]) -> None:
    """With up to 500 on their way."""
    room = asyncio.Semaphore(500)

    async def answers() -> None:
        for _ in events:
            frame = await wire.receive()
            assert frame[0] == "OK"
            assert frame[2], frame
            room.release()

    reading = asyncio.create_task(answers())
    for event in events:
        await room.acquire()
        await wire.send_event(event)
    await reading


@pytest.mark.proves("N01-99")
async def test_clients_that_stop_reading_cost_little_and_others_lose_nothing(
    rookery: Rookery,
) -> None:
    """What they read later is all of it, or a beginning without a gap and CLOSED."""
    now = int(time.time())
    events = [cast.robot.sign(1, [], f"{n} " + "x" * 4000, now) for n in range(6000)]
    async with contextlib.AsyncExitStack() as stack:
        deaf = [await stack.enter_async_context(connected(rookery.url, **DEAF)) for _ in range(8)]
        good = [await stack.enter_async_context(connected(rookery.url)) for _ in range(2)]
        for wire in (*deaf, *good):
            await wire.send("REQ", "live", {"kinds": [1]})
            assert await wire.receive() == ["EOSE", "live"]
        before = memory(rookery)
        publisher = await stack.enter_async_context(connected(rookery.url))
        most = before

        async def listen(wire: Wire) -> list[str]:
            return [(await wire.receive())[2]["id"] for _ in events]

        listening = [asyncio.create_task(listen(wire)) for wire in good]
        for start in range(0, len(events), 1000):
            await publish_all(publisher, events[start : start + 1000])
            most = max(most, memory(rookery))
        for got in await asyncio.gather(*listening):
            assert got == [event.id for event in events]
        assert most - before < len(deaf) * OUTBOX + 64 * MIB
        for wire in deaf:
            got = []
            while (frame := await wire.receive())[0] == "EVENT":
                got.append(frame[2]["id"])
                if len(got) == len(events):
                    break
            assert got == [event.id for event in events[: len(got)]]
            assert frame[0] == "EVENT" or frame[:2] == ["CLOSED", "live"]
            assert len(await wire.query({"kinds": [1], "limit": 10})) == 10


# -- long answers ----------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def stocked(tmp_path_factory: pytest.TempPathFactory, worker_id: str) -> Path:
    """A folder with 12,500 notes of about 5 KB; made once, whichever worker asks first."""
    base = tmp_path_factory.getbasetemp()
    home = (base if worker_id == "master" else base.parent) / "stocked"
    home.mkdir(exist_ok=True)
    with (home / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (home / "done").exists():
            asyncio.run(_stock(home / "data", home / "notes.jsonl"))
            (home / "done").touch()
    return home / "data"


async def _stock(folder: Path, file: Path) -> None:
    now = int(time.time()) - ROWS
    with file.open("wb") as out:
        for n in range(ROWS):
            out.write(cast.robot.sign(1, [], f"{n} " + "x" * 5000, now + n).raw + b"\n")
    owner = ("--owner", cast.owner.pubkey, "--agent", cast.robot.pubkey)
    code, text = await command("init", str(folder), *owner)
    assert code == 0, text
    code, text = await command("import", str(file), "--data", str(folder))
    assert code == 0, text


@pytest.fixture
async def library(tmp_path: Path, stocked: Path) -> AsyncIterator[Rookery]:
    """A relay with 12,500 notes, the newest of them numbered ROWS - 1."""
    shutil.copytree(stocked, tmp_path / "data")
    async with Rookery(tmp_path / "data") as rookery:
        await rookery.start()
        yield rookery
        assert await rookery.stop() == 0
    print(*rookery.lines, sep="\n")
    assert "Traceback" not in "\n".join(rookery.lines)


def number_of(frame: list[Any]) -> int:
    return int(frame[2]["content"].split(" ")[0])


@pytest.mark.parametrize(
    "filters",
    [[{"kinds": [1]}, {"authors": [cast.robot.pubkey], "kinds": [1, 2]}], [{"kinds": [1]}]][
        : tries(2, 2, 1)
    ],
)
async def test_a_long_answer_waits_for_its_reader(
    library: Rookery, filters: list[dict[str, Any]]
) -> None:
    async with connected(library.url) as other, connected(library.url, **DEAF) as wire:
        await other.query({"kinds": [1], "limit": 100})
        before = memory(library)
        await wire.send("REQ", "all", *filters)
        # Others are served meanwhile, and what the paused one is not sent is not in memory.
        worst = 0.0
        for _ in range(40):
            began = time.monotonic()
            assert len(await other.query({"kinds": [1], "limit": 100})) == 100
            worst = max(worst, time.monotonic() - began)
        assert memory(library) - before < 32 * MIB
        assert worst < here(2)
        for wanted in range(ROWS - 1, -1, -1):
            frame = await wire.receive()
            assert frame[:2] == ["EVENT", "all"]
            assert number_of(frame) == wanted
        assert await wire.receive() == ["EOSE", "all"]
        assert memory(library) - before < 64 * MIB


async def _send_nonsense(wire: Wire) -> None:
    """Until the relay hangs up. The query, which waits for the client, is cancelled, and with it
    was the end of the hang-up."""
    for _ in range(20):
        await wire.send("bad")


async def _send_close(wire: Wire) -> None:
    wire.send_close()


@pytest.mark.parametrize("end", [_send_nonsense, _send_close], ids=["hung up on", "closes"])
async def test_who_reads_nothing_keeps_no_socket(
    library: Rookery, end: Callable[[Wire], Awaitable[None]]
) -> None:
    async with connected(library.url) as other, connected(library.url, **DEAF) as wire:
        before = sockets(library)
        await wire.send("REQ", "all", {"kinds": [1]})
        for _ in range(40):  # until the answer waits for its reader
            await other.query({"kinds": [1], "limit": 100})
        with contextlib.suppress(ConnectionError):
            await end(wire)
        async with until("its socket is closed") as tries:
            async for _ in tries:
                if sockets(library) == before - 1:
                    break


def sockets(rookery: Rookery) -> int:
    """That the relay has open."""
    number = 0
    for file in Path(f"/proc/{rookery.pid}/fd").iterdir():
        with contextlib.suppress(FileNotFoundError):  # it was closed meanwhile
            number += os.readlink(file).startswith("socket:")
    return number


async def test_what_comes_during_a_long_answer_follows_it(library: Rookery) -> None:
    fresh = [cast.robot.sign(1, [], f"{ROWS + n}", int(time.time()) + n) for n in range(300)]
    async with connected(library.url) as other, connected(library.url, **DEAF) as wire:
        await wire.send("REQ", "all", {"kinds": [1]})
        first = await wire.receive()
        await publish_all(other, fresh)
        numbers = [number_of(first)]
        while (frame := await wire.receive())[0] == "EVENT":
            numbers.append(number_of(frame))
        assert frame == ["EOSE", "all"]
        assert numbers == list(range(ROWS - 1, -1, -1))
        live = [number_of(await wire.receive()) for _ in fresh]
        assert live == [ROWS + n for n in range(len(fresh))]


@pytest.mark.proves("N01-99")
async def test_too_much_during_a_long_answer_closes_it_instead_of_leaving_a_gap(
    library: Rookery,
) -> None:
    fresh = [cast.robot.sign(1, [], f"{ROWS + n}", int(time.time())) for n in range(6000)]
    async with connected(library.url) as other, connected(library.url, **DEAF) as wire:
        await wire.send("REQ", "all", {"kinds": [1]})
        await wire.receive()
        await publish_all(other, fresh)
        while (frame := await wire.receive())[0] == "EVENT":
            assert number_of(frame) < ROWS
        assert frame[:2] == ["CLOSED", "all"]
        assert frame[2].startswith("error: ")
        assert len(await wire.query({"kinds": [1], "limit": 10})) == 10  # it may ask again


async def test_many_paused_readers_cost_little(library: Rookery) -> None:
    async with contextlib.AsyncExitStack() as stack:
        other = await stack.enter_async_context(connected(library.url))
        await other.query({"kinds": [1], "limit": 100})
        before = memory(library)
        paused = [
            await stack.enter_async_context(connected(library.url, **DEAF)) for _ in range(20)
        ]
        for wire in paused:
            for sub in range(10):
                await wire.send("REQ", f"{sub}", {"kinds": [1]})
        for _ in range(20):
            await other.query({"kinds": [1], "limit": 100})
        # At most a quarter of an outbox and a page for each, however much it asked for.
        assert memory(library) - before < len(paused) * 3 * MIB + 32 * MIB
        note = cast.robot.sign(1, [], f"{ROWS}", int(time.time()))
        assert await other.publish(note) == (True, "")
        for wire in paused:
            wire.abort()


async def test_large_events_do_not_close_a_client_that_reads(rookery: Rookery) -> None:
    now = int(time.time())
    notes = [cast.robot.sign(1, [], f"{n} " + "x" * 390_000, now - n) for n in range(64)]
    async with connected(rookery.url) as wire:
        await publish_all(wire, notes)
        found = await wire.query({"kinds": [1]})
    assert [event["id"] for event in found] == [note.id for note in notes]


async def test_being_sent_away_has_a_reason(rookery: Rookery) -> None:
    """Who reads on as soon as it was too slow finds out why it is closed."""
    async with connected(rookery.url, **DEAF) as wire:
        number = 0
        while not await sent_away(rookery):
            number += 1
            assert number < 10_000, "never closed"
            for each in range(100):
                await wire.send("COUNT", f"{number}-{each}".rjust(64), {"kinds": [1]})
        frames, closed = await wire.to_the_end()
    assert frames
    assert closed.rcvd is not None, "no close frame"
    assert (closed.rcvd.code, closed.rcvd.reason) == (1013, "error: you read too slowly")


async def sent_away(rookery: Rookery) -> bool:
    seen = await metrics(rookery)
    return seen["rookery_outbox_closes_total"] > 0
