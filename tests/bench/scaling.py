"""What several relays on one database cost, and a model of many.

`python -m tests.bench.scaling` measures one, two and four relays on one database (`[storage]
shared`): CPU seconds of relays and server for an event, which other programs disturb little, and
how long a batch holds the lock under which all batches follow each other. `--model` only computes,
by the COSTS here.
"""

import argparse
import asyncio
import heapq
import os
import shutil
import tempfile
import time
from collections import deque
from collections.abc import Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path
from statistics import median, quantiles
from typing import NamedTuple

import websockets

from relay.lifecycle.rows import Found, Lookups, Stored, WritePlan
from relay.nostr.event import Event
from relay.nostr.filters import FilterTerms
from relay.nostr.keys import SecretKey
from relay.storage.postgres.store import PostgresStore
from tests import cast
from tests.bench.moving import SETTINGS
from tests.harness.postgres import MISSING, PostgresServer, programs
from tests.harness.relay_program import OwnProcess

BATCH = 512  # events that a batch has at most
CONNECTIONS = 4
WINDOW = 64


@dataclass(frozen=True)
class Costs:
    """Seconds."""

    own: float
    """CPU of a relay for an event that is published at it."""
    follow: float
    """CPU of a relay for an event that is published at another."""
    batch: float
    """For which the lock is held by a batch, whatever is in it."""
    row: float
    """And for each of its events."""


COSTS = Costs(own=190e-6, follow=30e-6, batch=3.7e-3, row=125e-6)
"""Measured on 2026-11-22 on two cores that other programs shared."""


# measured ----------------------------------------------------------------------------------------


async def lock_held(url: str) -> tuple[float, float]:
    """`batch` and `row`, by batches of 1 and of 256 events; the fastest quarter of each."""
    store = await PostgresStore.open(url, FilterTerms(search=True))
    key = SecretKey(b"\x07" * 32)
    number = 0

    async def appended(size: int) -> float:
        nonlocal number
        events = []
        for _ in range(size):
            number += 1
            tags = [["t", f"topic{number % 50}"], ["p", f"{number % 97:064x}"]]
            events.append(key.sign(1, tags, f"{number} steeped leaves in a pot", 1_700_000_000))

        def decide(found: Found) -> WritePlan:
            plan = WritePlan()
            for event in events:
                found.last_seq += 1
                plan.adds[event.id] = Stored(found.last_seq, event, version=event.created_at)
            return plan

        ids = frozenset([event.id for event in events])
        began = time.perf_counter()
        await store.append(Lookups(ids, frozenset(), frozenset()), decide)
        return time.perf_counter() - began

    await appended(256)
    took = {size: sorted([await appended(size) for _ in range(40)])[:10] for size in (1, 256)}
    await store.close()
    one, many = median(took[1]), median(took[256])
    row = (many - one) / 255
    return one - row, row


class Run(NamedTuple):
    events: int
    seconds: float
    relays: float
    """CPU seconds of all relays."""
    server: float
    """CPU seconds of PostgreSQL."""


def cpu_of(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def cpu_of_server(pid: int) -> float:
    """With its processes, also those that have ended."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2].split()
    ended = (int(fields[13]) + int(fields[14])) / os.sysconf("SC_CLK_TCK")
    children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    return cpu_of(pid) + ended + sum([cpu_of(int(child)) for child in children])


async def publish(url: str, events: Sequence[Event]) -> None:
    """With WINDOW of them unanswered."""
    async with websockets.connect(url, max_size=None, ping_interval=None) as wire:
        await wire.recv()
        sent = answered = 0
        while answered < len(events):
            while sent < len(events) and sent - answered < WINDOW:
                await wire.send(f'["EVENT",{events[sent].raw.decode()}]')
                sent += 1
            frame = str(await wire.recv())
            if frame.startswith('["OK"'):
                assert "true" in frame, frame
                answered += 1


async def shared_run(server: PostgresServer, number: int, count: int) -> Run:
    """`number` relays on one database, `count` events published at all of them together."""
    now = int(time.time())
    keys = [SecretKey(bytes([each + 1]) * 32) for each in range(number * CONNECTIONS)]
    batches = [
        [
            key.sign(1, [["t", f"topic{each % 50}"]], f"{each} in the pot", now)
            for each in range(part)
        ]
        for key, part in zip(keys, [count // len(keys)] * len(keys), strict=True)
    ]
    url = await server.new_schema()
    with tempfile.TemporaryDirectory() as made:
        async with AsyncExitStack() as running:
            relays: list[OwnProcess] = []
            for each in range(number):
                relay = OwnProcess(Path(made) / f"data{each}")
                if relays:
                    shutil.copytree(relays[0].folder, relay.folder, ignore=_LIVE)
                else:
                    await relay.init("--owner", cast.owner.pubkey, "--preset", "open")
                    relay.set_up("storage", f'url = "{url}"\nshared = true')
                await running.enter_async_context(relay)
                await relay.start()
                relays.append(relay)
            pids = [relay.pid for relay in relays]
            before = sum(map(cpu_of, pids)), cpu_of_server(server.pid)
            began = time.monotonic()
            urls = [relay.url for relay in relays for _ in range(CONNECTIONS)]
            await asyncio.gather(*map(publish, urls, batches))
            seconds = time.monotonic() - began
            await asyncio.sleep(2)  # until the last have followed
            relays_s = sum(map(cpu_of, pids)) - before[0]
            server_s = cpu_of_server(server.pid) - before[1]
    return Run(sum(map(len, batches)), seconds, relays_s, server_s)


_LIVE = shutil.ignore_patterns("*.sock", "*.lock", "*.log", "*.json", "*.jsonl")


# the model ---------------------------------------------------------------------------------------


class Outcome(NamedTuple):
    accepted: float
    """Events a second."""
    p50: float
    p99: float
    """Seconds from the arrival of an event to the commit."""
    busy: float
    """Of the core of a relay."""
    locked: float
    """Of the time the lock is held."""


def simulate(processes: int, offered: float, costs: Costs, seconds: float = 10.0) -> Outcome:
    """Each relay has a core: events wait for it, then together for the lock. What is committed at
    one costs all others `follow`."""
    step = 1 / offered
    free = [0.0] * processes  # when the core of each is free
    work = [0.0] * processes
    lanes: list[deque[tuple[float, float]]] = [deque() for _ in range(processes)]
    turns: list[tuple[float, int]] = []  # when a relay asks for the lock
    asking = [False] * processes
    now = held = 0.0
    latencies: list[float] = []
    late = 0  # committed in the second half
    arrivals = 0
    while now < seconds:
        # Everything that arrived until now, spread over the relays.
        while arrivals * step <= now:
            at, relay = arrivals * step, arrivals % processes
            free[relay] = max(free[relay], at) + costs.own
            work[relay] += costs.own
            lanes[relay].append((free[relay], at))
            if not asking[relay]:
                asking[relay] = True
                heapq.heappush(turns, (free[relay], relay))
            arrivals += 1
        if not turns or turns[0][0] > now:
            coming = arrivals * step
            now = min(coming, turns[0][0]) if turns else coming
            continue
        _, relay = heapq.heappop(turns)
        lane = lanes[relay]
        batch: list[float] = []
        while lane and lane[0][0] <= now and len(batch) < BATCH:
            batch.append(lane.popleft()[1])
        took = costs.batch + costs.row * len(batch)
        now += took
        held += took
        latencies += [now - at for at in batch]
        late += len(batch) if now > seconds / 2 else 0
        for other in range(processes):
            if other != relay:
                free[other] = max(free[other], now) + costs.follow * len(batch)
                work[other] += costs.follow * len(batch)
        asking[relay] = bool(lane)
        if lane:
            heapq.heappush(turns, (max(now, lane[0][0]), relay))
    cuts = quantiles(latencies, n=100)
    busy = max(work) / now
    return Outcome(late / (now - seconds / 2), cuts[49], cuts[98], busy, held / now)


def most(processes: int, costs: Costs) -> float:
    """Events a second at which 95 % are still accepted."""
    low, high = 10.0, 100_000.0
    while high / low > 1.05:
        middle = (low * high) ** 0.5
        keeps_up = simulate(processes, middle, costs).accepted > 0.95 * middle
        low, high = (middle, high) if keeps_up else (low, middle)
    return low


def print_model(costs: Costs) -> None:
    print("relays  at most ev/s   at half of it: p50 ms  p99 ms  core  lock")
    for processes in (1, 2, 4, 10, 30, 100):
        top = most(processes, costs)
        half = simulate(processes, top / 2, costs)
        print(
            f"{processes:6}  {top:12,.0f}   {half.p50 * 1e3:21.0f}  {half.p99 * 1e3:6.0f}"
            f"  {half.busy:4.0%}  {half.locked:4.0%}"
        )


async def measure(count: int) -> Costs:
    bin_ = programs()
    if bin_ is None:
        raise SystemExit(MISSING)
    server = PostgresServer(bin_, SETTINGS)
    try:
        batch, row = await lock_held(await server.new_schema())
        print(f"lock: {batch * 1e3:.2f} ms for a batch, {row * 1e6:.0f} us for an event")
        spent = {}
        for number in (1, 2, 4):
            run = await shared_run(server, number, count)
            spent[number] = run.relays / run.events
            print(
                f"{number} relays: {run.events / run.seconds:,.0f} ev/s on {os.cpu_count()} cores;"
                f" CPU us for an event: relays {run.relays / run.events * 1e6:.0f},"
                f" PostgreSQL {run.server / run.events * 1e6:.0f}"
            )
    finally:
        server.stop()
    follow = max((spent[4] - spent[1]) / 3, 1e-6)
    for number in (2, 4):
        expected = spent[1] + (number - 1) * follow
        print(
            f"{number} relays by the model: {expected * 1e6:.0f} us for an event,"
            f" measured {spent[number] * 1e6:.0f}"
        )
    return Costs(spent[1], follow, batch, row)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(prog="python -m tests.bench.scaling")
    parser.add_argument("--events", type=int, default=8_000)
    parser.add_argument("--model", action="store_true", help="only compute")
    asked = parser.parse_args()
    print_model(COSTS if asked.model else asyncio.run(measure(asked.events)))
