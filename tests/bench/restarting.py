"""`python -m tests.bench.restarting`: how long clients wait while the relay restarts under load.

Publishers and readers use the client library, visitors connect one after the other. Printed: the
pause of each publisher in each restart (its longest time without an OK), and what was lost, refused
or came twice, which has to be nothing.
"""

import argparse
import asyncio
import os
import re
import sys
import tempfile
from asyncio.subprocess import PIPE, STDOUT, Process
from contextlib import AsyncExitStack, suppress
from itertools import pairwise
from pathlib import Path
from statistics import quantiles
from time import perf_counter, time

import websockets

from relay.client import Client, ClientError
from relay.nostr.keys import SecretKey

START_S = 60.0
BURST_S = 0.05
BETWEEN_S = 4.0


class Publisher:
    def __init__(self, client: Client, rate: float) -> None:
        self.answers: list[float] = []
        self.ids: set[str] = set()
        self.failed: list[str] = []
        self._client = client
        self._rate = rate
        self._tasks: set[asyncio.Task[None]] = set()

    async def run(self) -> None:
        """Until it is cancelled; then `settled` waits for what is on its way."""
        began, sent = perf_counter(), 0
        while True:
            while sent < (perf_counter() - began) * self._rate:
                sent += 1
                task = asyncio.create_task(self._publish(f"{sent}"))
                self._tasks.add(task)
                task.add_done_callback(self._tasks.discard)
            await asyncio.sleep(BURST_S)

    async def settled(self) -> None:
        await asyncio.gather(*self._tasks)

    async def _publish(self, text: str) -> None:
        event = self._client.sign(1, text, created_at=int(time()))
        try:
            await self._client.publish(event)
        except ClientError as error:
            self.failed.append(str(error))
        else:
            self.ids.add(event.id)
            self.answers.append(perf_counter())

    def pause(self, since: float, until: float) -> float:
        """The longest time without an OK that ended between the two."""
        times = [*(at for at in sorted(self.answers) if since - 1 < at < until), until]
        return max((b - a for a, b in pairwise(times) if b > since), default=until - since)


class Reader:
    def __init__(self) -> None:
        self.came: list[str] = []

    async def run(self, client: Client) -> None:
        async with client.subscribe({"kinds": [1]}) as events:
            async for event in events:
                self.came.append(event.id)


async def visit(url: str, refused: list[str], answered: list[float]) -> None:
    while True:
        began = perf_counter()
        try:
            async with websockets.connect(url, open_timeout=None) as wire:
                await wire.recv()
                answered.append(perf_counter() - began)
        except (OSError, websockets.InvalidHandshake) as error:
            refused.append(repr(error))
        except websockets.ConnectionClosed:
            pass  # accepted before the stop, and told so
        await asyncio.sleep(0.02)


async def program(*args: str) -> Process:
    # As an installed relay starts: from compiled files.
    env = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    return await asyncio.create_subprocess_exec(
        sys.executable, "-m", "relay", *args, stdout=PIPE, stderr=STDOUT, env=env
    )


async def finished(*args: str) -> str:
    process = await program(*args)
    out, _ = await process.communicate()
    if process.returncode:
        raise SystemExit(out.decode())
    return out.decode()


async def listening(process: Process) -> str:
    assert process.stdout is not None
    async for line in process.stdout:
        if found := re.search(rb"listening on (\S+)", line):
            return found[1].decode()
    raise SystemExit("the relay did not start")


async def drained(process: Process) -> None:
    assert process.stdout is not None
    async for _ in process.stdout:
        pass


async def main(options: argparse.Namespace, folder: Path) -> None:
    owner = SecretKey.parse("01" * 32)
    await finished("init", str(folder), "--owner", owner.npub, "--preset", "open")
    relay = await program("serve", "--data", str(folder), "--port", "0")
    try:
        await measured(options, folder, relay)
    finally:
        with suppress(ProcessLookupError):
            relay.terminate()
        await relay.wait()


async def measured(options: argparse.Namespace, folder: Path, relay: Process) -> None:
    url = await asyncio.wait_for(listening(relay), START_S)
    output = asyncio.create_task(drained(relay))
    refused: list[str] = []
    answered: list[float] = []
    pauses: list[float] = []
    async with AsyncExitStack() as stack:
        publishers = []
        for number in range(options.clients):
            key = SecretKey.parse(f"{number + 2:064x}")
            client = await stack.enter_async_context(Client(url, key))
            publishers.append(Publisher(client, options.rate / options.clients))
        readers = [Reader() for _ in range(options.readers)]
        reading = [
            asyncio.create_task(each.run(await stack.enter_async_context(Client(url))))
            for each in readers
        ]
        visits = [asyncio.create_task(visit(url, refused, answered)) for _ in range(4)]
        sending = [asyncio.create_task(each.run()) for each in publishers]
        began = perf_counter()
        await asyncio.sleep(BETWEEN_S)
        for _ in range(options.restarts):
            since = perf_counter()
            said = await finished("restart", "--data", str(folder))
            await asyncio.sleep(BETWEEN_S)
            here = [each.pause(since, perf_counter()) for each in publishers]
            pauses += here
            print(f"{said.strip()}; publishers paused for {min(here):.2f} to {max(here):.2f} s")
        for task in (*sending, *visits):
            task.cancel()
        lasted = perf_counter() - began
        await asyncio.gather(*(each.settled() for each in publishers))
        ids = set().union(*(each.ids for each in publishers))
        with suppress(TimeoutError):
            async with asyncio.timeout(START_S):
                while any(  # noqa: ASYNC110 -- a figure, not a test
                    len(each.came) < len(ids) for each in readers
                ):
                    await asyncio.sleep(0.1)
        for task in reading:
            task.cancel()
        kept = {event.id async for event in publishers[0]._client.query_all({"kinds": [1]})}
    output.cancel()
    failed = [text for each in publishers for text in each.failed]
    cuts = quantiles(pauses, n=100)
    print(f"{len(ids) / lasted:,.0f} events/s by {options.clients} publishers for {lasted:.0f} s")
    print(f"pause: p50 {cuts[49]:.2f} s, p99 {cuts[98]:.2f} s, longest {max(pauses):.2f} s")
    print(
        f"visitors: {len(answered)} answered, at most {max(answered):.2f} s;"
        f" {len(refused)} refused {refused[:3]}"
    )
    print(f"lost: {len(ids - kept)}; refused: {len(failed)} {failed[:3]}")
    missed = sum(len(ids - set(each.came)) for each in readers)
    twice = sum(len(each.came) - len(set(each.came)) for each in readers)
    print(f"readers: {missed} missed, {twice} twice")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(prog="python -m tests.bench.restarting")
    parser.add_argument("--rate", type=float, default=2000, help="events a second, together")
    parser.add_argument("--clients", type=int, default=20)
    parser.add_argument("--readers", type=int, default=2)
    parser.add_argument("--restarts", type=int, default=10)
    with tempfile.TemporaryDirectory() as name:
        asyncio.run(main(parser.parse_args(), Path(name) / "data"))
