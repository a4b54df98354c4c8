"""relay/turns.py: much work for the event loop waits behind little."""

from __future__ import annotations

import asyncio

from relay.turns import SLICE_S, Slice, Turns


class Clock:
    """Seconds; moved by hand."""

    now = 100.0

    def __call__(self) -> float:
        return self.now


def worked(work: Slice, clock: Clock, seconds: float) -> bool:
    work.begin()
    clock.now += seconds
    return work.end()


async def test_a_turn_is_due_after_a_slice_of_work_however_it_is_cut() -> None:
    clock = Clock()
    work = Slice(Turns(), clock)
    assert not worked(work, clock, SLICE_S * 0.9)
    clock.now += 60  # nothing to read: this is no work
    assert not worked(work, clock, SLICE_S * 0.05)
    assert worked(work, clock, SLICE_S * 0.1)
    await work.rest()
    assert not worked(work, clock, SLICE_S * 0.9)


async def test_one_goes_on_per_iteration_in_the_order_of_coming() -> None:
    turns, seen = Turns(), list[str]()

    async def greedy(name: str) -> None:
        for _ in range(3):
            seen.append(name)
            await turns.wait()

    async def others() -> None:
        for _ in range(9):
            seen.append(".")
            await asyncio.sleep(0)

    await asyncio.gather(greedy("a"), greedy("b"), greedy("c"), others())
    # Between two turns of the greedy, who asks for little has had one too.
    text = "".join(seen)
    assert text.startswith("abc.")
    assert not any(f"{x}{y}" in text[3:] for x in "abc" for y in "abc")
    assert [each for each in text if each != "."] == [*"abcabcabc"]


async def test_a_cancelled_wait_takes_no_turn() -> None:
    turns = Turns()
    tasks = [asyncio.create_task(turns.wait()) for _ in range(3)]
    await asyncio.sleep(0)
    tasks[0].cancel()
    async with asyncio.timeout(5):
        await asyncio.gather(*tasks, return_exceptions=True)
    assert [task.cancelled() for task in tasks] == [True, False, False]
    async with asyncio.timeout(5):
        await turns.wait()
