"""relay/client/checking.py: which signatures are good, wherever they are checked."""

from __future__ import annotations

import asyncio
import os
import signal
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

import pytest

from relay.client.checking import Checking
from relay.nostr.event import Event
from relay.nostr.keys import are_signed
from tests.cast import alice, bob
from tests.harness.patience import ANSWER_S

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

pytestmark = pytest.mark.slow

GOOD = [alice.sign(1, [], f"note {number}", 1_700_000_000) for number in range(120)]
BATCHES = 9
"""Of GOOD: more than 1,000 events."""


def changed(event: Event, pubkey: str | None = None, sig: str | None = None) -> Event:
    return Event(
        event.id,
        pubkey or event.pubkey,
        event.created_at,
        event.kind,
        event.tags,
        event.content,
        sig or event.sig,
        event.raw,
    )


MIXED = [
    *GOOD[:3],
    changed(GOOD[3], sig=GOOD[4].sig),
    changed(GOOD[5], sig="0" * 128),
    changed(GOOD[6], sig="f" * 128),
    changed(GOOD[7], pubkey=bob.pubkey),
    changed(GOOD[8], pubkey="f" * 64),
    *GOOD[9:],
]


@asynccontextmanager
async def checking_a_lot(*, pause_s: float = 60) -> AsyncIterator[Checking]:
    checking = Checking(pause_s)
    try:
        await until_processes(checking)
        yield checking
    finally:
        await checking.close()


async def until_processes(checking: Checking) -> None:
    async with asyncio.timeout(ANSWER_S):
        while not checking.pids:
            verdicts = await asyncio.gather(*(checking.begin(GOOD) for _ in range(BATCHES)))
            assert all(map(all, verdicts))


async def verdicts_of(checking: Checking, rounds: int = 4) -> list[list[bool]]:
    """Several, so that each process has its turn."""
    return await asyncio.gather(*(checking.begin(MIXED) for _ in range(rounds)))


async def test_a_few_events_start_no_process() -> None:
    checking = Checking()
    assert await checking.begin(MIXED) == are_signed(MIXED)
    assert checking.pids == []
    await checking.close()


async def test_many_events_over_a_long_time_start_no_process(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    started: list[object] = []

    def start(*args: object, **more: object) -> None:
        started.append(args)
        raise OSError

    monkeypatch.setattr("relay.client.checking.subprocess.Popen", start)
    checking = Checking(pause_s=0.01)
    for _ in range(BATCHES):
        assert all(await checking.begin(GOOD))
        await asyncio.sleep(0.02)  # the loop's own clock: the pause is over before
    assert started == []
    await checking.close()


async def test_processes_say_what_threads_would() -> None:
    expected = are_signed(MIXED)
    assert 0 < sum(expected) < len(expected)
    async with checking_a_lot() as checking:
        assert await verdicts_of(checking) == [expected] * 4
        assert checking.pids


async def test_a_process_that_is_killed_is_done_without() -> None:
    async with checking_a_lot() as checking:
        killed = checking.pids
        for pid in killed:
            os.kill(pid, signal.SIGKILL)
        assert await verdicts_of(checking) == [are_signed(MIXED)] * 4
        assert not set(killed) & set(checking.pids)


async def test_processes_end_with_the_client() -> None:
    async with checking_a_lot() as checking:
        pids = checking.pids
    assert not any(map(is_there, pids))


async def test_a_client_that_closes_gets_the_verdicts_it_asked_for() -> None:
    async with checking_a_lot() as checking:
        asked = [checking.begin(MIXED) for _ in range(20)]
        await checking.close()
        assert await asyncio.gather(*asked) == [are_signed(MIXED)] * 20


async def test_processes_end_when_nothing_came_for_a_while_and_start_again() -> None:
    async with checking_a_lot(pause_s=0.2) as checking:
        pids = checking.pids
        async with asyncio.timeout(ANSWER_S):
            while any(map(is_there, pids)):  # noqa: ASYNC110  processes ring no bell
                await asyncio.sleep(0.01)
        assert checking.pids == []
        await until_processes(checking)
        assert not set(pids) & set(checking.pids)


def is_there(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True
