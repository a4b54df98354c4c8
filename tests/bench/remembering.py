"""What an Aman agent's memory costs: until all of it is read from a relay, decoded and folded."""

import asyncio
import random
import shutil
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from relay.client import Aman, Client
from relay.memory.aman.records import KINDS, Clear, Preference, Record, Summary, ToolCall, draft_of
from relay.nostr.keys import SecretKey
from tests.bench import corpus, wire
from tests.bench.loads import LoadFault, Measure
from tests.bench.relays import Preset, Rookery, Target

if TYPE_CHECKING:
    from tests.bench.rows import Bench

AGENT = SecretKey(corpus.secret(0))
MADE_BY = 1  # counted up when `records` changes
FIRST = 1_700_000_000
HISTORY_KEYS = 1000


def records(count: int) -> Iterator[Record]:
    """A preference and a summary under each history key, a clear now and then, the rest tools."""
    chance, text = random.Random(MADE_BY), corpus.prose()
    for number in range(count):
        hk, at = f"user-{number % HISTORY_KEYS}", FIRST + number // 3
        said = chance.randrange(len(text) - 400)
        if number < HISTORY_KEYS:
            yield Preference(hk, "prefer_speed", at)
        elif number < 2 * HISTORY_KEYS:
            yield Summary(hk, text[said : said + 400], 12, at)
        elif number % 200 == 0:
            yield Clear(hk, hk, at - 5000)
        else:
            shown = text[said : said + 150]
            yield ToolCall(hk, "search", True, shown, hk, None, at)  # noqa: FBT003


def rehydration(bench: "Bench", target: Target) -> Measure:
    """Seconds; beside it, in times of what only reading and verifying the same events takes."""
    if not isinstance(target, Rookery):
        raise LoadFault("only a folder of this checkout can be filled by import")
    count = bench.scale.archive
    events = _signed(bench, count)
    with bench.folder() as folder:
        target.made(folder, Preset.GROUP)
        shutil.copy(events, folder / "events.jsonl")
        target.run(folder, "import", "events.jsonl", "--data", str(folder / "data"))
        with target.start(folder, Preset.GROUP) as relay:
            url = f"ws://{wire.HOST}:{relay.port}"
            read, folded = asyncio.run(_both(url, count))
    return Measure(rate=folded, beside=folded / read)


async def _both(url: str, count: int) -> tuple[float, float]:
    async with Client(url, AGENT) as client, Aman(client, AGENT) as aman:
        began, number = time.perf_counter(), 0
        wanted = {"kinds": sorted(KINDS), "authors": [AGENT.pubkey]}
        async for events in client.query_pages(wanted):
            number += len(events)
        read = time.perf_counter() - began
        if number != count:
            raise LoadFault(f"read {number} events of {count}")
        began = time.perf_counter()
        fold = await aman.fold()
        folded = time.perf_counter() - began
    if len(fold.history_keys()) != HISTORY_KEYS or fold.unread():
        raise LoadFault(f"{len(fold.history_keys())} history keys, {len(fold.unread())} unread")
    return read, folded


def _signed(bench: "Bench", count: int) -> Path:
    path = bench.cache / f"aman-{MADE_BY}-{count}.jsonl"
    if not path.exists():
        drafts = map(draft_of, records(count))
        fresh = path.with_suffix(".part")
        with fresh.open("wb") as file:
            for number, draft in enumerate(drafts):
                event = AGENT.sign(draft.kind, draft.tags, draft.content, draft.created_at)
                file.write(event.raw + b"\n")
                if number % 1000 == 0:
                    bench.progress("signing", number, count)
        fresh.rename(path)
    return path
