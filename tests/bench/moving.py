"""How long `rookery move` takes, and how long a writer waits for an answer at its end.

`python -m tests.bench.moving [EVENTS]` fills a folder, starts its relay and a writer, moves to
PostgreSQL and back, and compares what is exported. The server keeps what it has committed (fsync).
"""

import argparse
import asyncio
import hashlib
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import orjson
import websockets

from relay.lifecycle.rows import Found, Lookups, Stored, WritePlan
from relay.nostr.event import Event
from relay.nostr.filters import FilterTerms
from relay.storage.sqlite.store import SqliteStore
from tests import cast
from tests.bench.searching import AUTHORS, FIRST, words
from tests.harness.postgres import MISSING, PostgresServer, programs
from tests.harness.relay_program import OwnProcess

_BATCH = 2_000
_TOPICS = 500
KINDS = (1, 1, 1, 1, 1, 1, 7, 7, 9, 1111)
_PAUSE_S = 0.01  # of the writer
SETTINGS = {"fsync": "on", "full_page_writes": "on", "autovacuum": "on", "shared_buffers": "512MB"}


def events(count: int) -> Iterator[Event]:
    known = words()
    for number in range(count):
        tags = [
            ["t", f"topic{number % _TOPICS}"],
            ["p", AUTHORS[number % 97]],
            ["e", hashlib.sha256(b"moved %d" % (number // 2)).hexdigest()],
        ]
        fields: dict[str, Any] = {
            "id": hashlib.sha256(b"moved %d" % number).hexdigest(),
            "pubkey": AUTHORS[number % len(AUTHORS)],
            "created_at": FIRST + number,
            "kind": KINDS[number % len(KINDS)],
            "tags": tags,
            "content": " ".join(known[number % 1000 : number % 1000 + 15]),
            "sig": "0" * 128,
        }
        yield Event(**fields, raw=orjson.dumps(fields))


async def fill(file: Path, count: int) -> None:
    store = await SqliteStore.open(file, FilterTerms(search=True))
    batch: list[Event] = []

    def decide(found: Found) -> WritePlan:
        plan = WritePlan()
        for event in batch:
            found.last_seq += 1
            plan.adds[event.id] = Stored(found.last_seq, event, version=event.created_at)
        return plan

    nothing = Lookups(frozenset(), frozenset(), frozenset())
    for event in events(count):
        batch.append(event)
        if len(batch) == _BATCH:
            await store.append(nothing, decide)
            batch.clear()
    await store.append(nothing, decide)
    await store.close()


class Waits:
    """Of one writer, that sends an event, waits for its OK, and sends it again if that is lost."""

    def __init__(self) -> None:
        self.accepted = 0
        self.refused = 0
        self.longest_s = 0.0

    async def go_on(self, url: str) -> None:
        number = 0
        began = time.monotonic()
        while True:
            try:
                async with websockets.connect(url, open_timeout=None) as wire:
                    while True:
                        event = cast.robot.sign(1, [], f"{number}", int(time.time()))
                        await wire.send(f'["EVENT",{event.raw.decode()}]')
                        while not (frame := str(await wire.recv())).startswith('["OK"'):
                            pass
                        self.longest_s = max(self.longest_s, time.monotonic() - began)
                        self.accepted += "true" in frame
                        self.refused += "true" not in frame
                        number += 1
                        await asyncio.sleep(_PAUSE_S)
                        began = time.monotonic()
            except (OSError, websockets.WebSocketException):
                await asyncio.sleep(_PAUSE_S)


@asynccontextmanager
async def written(url: str) -> AsyncIterator[Waits]:
    waits = Waits()
    writing = asyncio.create_task(waits.go_on(url))
    yield waits
    writing.cancel()
    await asyncio.gather(writing, return_exceptions=True)


async def rookery(*args: object) -> bytes:
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "relay", *map(str, args), stdout=asyncio.subprocess.PIPE
    )
    out, _ = await process.communicate()
    if process.returncode:
        raise RuntimeError(f"rookery {args[0]} failed")
    return out


async def moved(folder: Path, url: str, source: object, target: object) -> None:
    async with written(url) as waits:
        out = await rookery("move", "--from", source, "--to", target, "--json")
        await asyncio.sleep(1)
    said = orjson.loads(out)
    print(
        f"{said['events']:,} events: {said['seconds']:.0f} s, no answers for"
        f" {said['pause_seconds']:.2f} s; the writer waited {waits.longest_s:.2f} s at most,"
        f" {waits.accepted:,} accepted, {waits.refused} refused"
    )


def digest(file: Path, size: int) -> str:
    """Of the first bytes."""
    found = hashlib.sha256()
    with file.open("rb") as opened:
        while size and (block := opened.read(min(size, 1 << 20))):
            found.update(block)
            size -= len(block)
    return found.hexdigest()


@asynccontextmanager
async def told_if_it_fails(relay: OwnProcess) -> AsyncIterator[None]:
    try:
        yield
    except RuntimeError:
        print(*relay.lines[-20:], sep="\n")
        raise


async def main(count: int) -> None:
    bin_ = programs()
    if bin_ is None:
        raise SystemExit(MISSING)
    server = PostgresServer(bin_, SETTINGS)
    try:
        with tempfile.TemporaryDirectory() as made:
            folder = Path(made) / "data"
            relay = OwnProcess(folder)
            await relay.init("--owner", cast.owner.pubkey, "--preset", "open")
            await fill(folder / "rookery.db", count)
            before = (folder / "rookery.db").stat().st_size
            async with relay, told_if_it_fails(relay):
                await relay.start()
                url = await server.new_schema()
                await moved(folder, relay.url, folder, url)
                there, back = Path(made) / "there.jsonl", Path(made) / "back.jsonl"
                await rookery("export", "--data", folder, "-o", there)
                await moved(folder, relay.url, url, folder)
                await rookery("export", "--data", folder, "-o", back)
                size = there.stat().st_size
                assert digest(there, size) == digest(back, size), "the exports differ"
                after = (folder / "rookery.db").stat().st_size
                print(f"exports are equal; the file had {before:,} bytes, then {after:,}")
                await relay.stop()
    finally:
        server.stop()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(prog="python -m tests.bench.moving")
    parser.add_argument("events", type=int, nargs="?", default=1_000_000)
    asyncio.run(main(parser.parse_args().events))
