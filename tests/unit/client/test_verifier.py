"""relay/client/verifier.py: signature verification in threads and processes."""

from __future__ import annotations

import asyncio
import os
import signal
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

import pytest

from relay.client.verifier import SignatureVerifier
from relay.nostr.event import Event
from relay.nostr.keys import are_signed
from tests.cast import alice, bob
from tests.harness.patience import ANSWER_S

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

pytestmark = [pytest.mark.slow, pytest.mark.process]

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
async def enough_for_processes(*, pause_s: float = 60) -> AsyncIterator[SignatureVerifier]:
    verifier = SignatureVerifier(pause_s)
    try:
        await until_processes(verifier)
        yield verifier
    finally:
        await verifier.close()


async def until_processes(verifier: SignatureVerifier) -> None:
    async with asyncio.timeout(ANSWER_S):
        while not verifier.pids:
            verdicts = await asyncio.gather(*(verifier.begin(GOOD) for _ in range(BATCHES)))
            assert all(map(all, verdicts))


async def verdicts_of(verifier: SignatureVerifier, rounds: int = 4) -> list[list[bool]]:
    """Several, so that each process has its turn."""
    return await asyncio.gather(*(verifier.begin(MIXED) for _ in range(rounds)))


async def test_a_few_events_start_no_process() -> None:
    verifier = SignatureVerifier()
    assert await verifier.begin(MIXED) == are_signed(MIXED)
    assert verifier.pids == []
    await verifier.close()


async def test_many_events_over_a_long_time_start_no_process(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    started: list[object] = []

    def start(*args: object, **more: object) -> None:
        started.append(args)
        raise OSError

    monkeypatch.setattr("relay.client.verifier.subprocess.Popen", start)
    verifier = SignatureVerifier(pause_s=0.01)
    for _ in range(BATCHES):
        assert all(await verifier.begin(GOOD))
        await asyncio.sleep(0.02)  # the loop's own clock: the pause is over before
    assert started == []
    await verifier.close()


async def test_processes_and_threads_give_the_same_results() -> None:
    expected = are_signed(MIXED)
    assert 0 < sum(expected) < len(expected)
    async with enough_for_processes() as verifier:
        assert await verdicts_of(verifier) == [expected] * 4
        assert verifier.pids


async def test_a_killed_process_is_replaced_by_a_thread() -> None:
    async with enough_for_processes() as verifier:
        killed = verifier.pids
        for pid in killed:
            os.kill(pid, signal.SIGKILL)
        assert await verdicts_of(verifier) == [are_signed(MIXED)] * 4
        assert not set(killed) & set(verifier.pids)


async def test_processes_end_with_the_client() -> None:
    async with enough_for_processes() as verifier:
        pids = verifier.pids
    assert not any(map(is_there, pids))


async def test_closing_completes_pending_verifications() -> None:
    async with enough_for_processes() as verifier:
        asked = [verifier.begin(MIXED) for _ in range(20)]
        await verifier.close()
        assert await asyncio.gather(*asked) == [are_signed(MIXED)] * 20


async def test_idle_processes_end_and_start_again() -> None:
    async with enough_for_processes(pause_s=1) as verifier:
        pids = verifier.pids
        async with asyncio.timeout(ANSWER_S):
            while any(map(is_there, pids)):  # noqa: ASYNC110  processes ring no bell
                await asyncio.sleep(0.01)
        assert verifier.pids == []
        await until_processes(verifier)
        assert not set(pids) & set(verifier.pids)


def is_there(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True
