"""policies/plugins/entry.py: Python functions that answer, and that do anything else."""

from __future__ import annotations

import asyncio
import sys
import threading
import time
from typing import TYPE_CHECKING

import pytest

from policies.plugins import Chain, objection
from relay.errors import Prefix, Reject
from relay.facts import Arrival, Origin
from tests.harness.patience import ANSWER_S
from tests.unit.policies.plugins.stage import ARRIVAL, SILENT, function, note, said

if TYPE_CHECKING:
    from policies.plugins import Rule
    from relay.nostr.event import Event


def plain(event: Event, _: Arrival) -> Reject | None:
    return objection(f"restricted: not {event.content}") if event.content == "bad" else None


async def slow(event: Event, arrival: Arrival) -> Reject | None:
    await asyncio.sleep(0)
    return plain(event, arrival)


class WithState:
    """An object is a function too."""

    def __init__(self) -> None:
        self.seen = 0

    async def __call__(self, _event: Event, _arrival: Arrival) -> Reject | None:
        self.seen += 1
        return None if self.seen < 3 else Reject(Prefix.RATE_LIMITED, "enough", "my own name")


@pytest.mark.parametrize("rule", [plain, slow])
async def test_a_function_has_nothing_against_an_event_or_says_what(rule: Rule) -> None:
    async with Chain([function(rule)]) as chain:
        assert await said(chain, "a", "bad", "b") == ["", "restricted: not bad", ""]
        assert await said(chain, "bad") == ["restricted: not bad"]


async def test_an_object_may_remember_and_its_refusals_count_under_the_plug_ins_name() -> None:
    async with Chain([function(WithState(), name="mine")]) as chain:
        assert await said(chain, "a", "b") == ["", ""]
        [refused] = await chain.objections([(note(), ARRIVAL)])
        assert refused == Reject(Prefix.RATE_LIMITED, "enough", 'plug-in "mine"')


async def test_a_function_is_told_how_the_event_came() -> None:
    seen: list[Arrival] = []
    there = Arrival(5, Origin.IMPORT, frozenset({"a"}), None)

    def rule(_: Event, arrival: Arrival) -> None:
        seen.append(arrival)

    async with Chain([function(rule)]) as chain:
        assert await said(chain, "a", arrival=there) == [""]
    assert seen == [there]


async def test_a_plain_function_computes_on_a_thread_of_its_own() -> None:
    threads: set[str] = set()
    async with Chain([function(lambda *_: threads.add(threading.current_thread().name))]) as chain:
        assert await said(chain, "a", "b") == ["", ""]
    assert threads == {"plug-in rule"}


def raising(event: Event, _: Arrival) -> Reject | None:
    raise ValueError(event.content)


async def raising_late(event: Event, _: Arrival) -> Reject | None:
    await asyncio.sleep(0)
    raise ValueError(event.content)


def leaving(*_: object) -> None:
    sys.exit(1)


async def leaving_late(*_: object) -> None:
    sys.exit(1)


async def interrupting(*_: object) -> None:
    raise KeyboardInterrupt


class Own(BaseException):
    pass


async def raising_its_own(*_: object) -> None:
    raise Own


async def refusing_without_a_text(*_: object) -> Reject:
    return Reject(Prefix.BLOCKED, None, "")  # type: ignore[arg-type]


async def cancelling(*_: object) -> None:
    raise asyncio.CancelledError


def accepting(*_: object) -> bool:
    return True


@pytest.mark.parametrize(
    ("rule", "why"),
    [
        (raising, "raised ValueError at "),
        (raising_late, "raised ValueError at "),
        (leaving, "raised SystemExit at "),
        (leaving_late, "raised SystemExit at "),
        (interrupting, "raised KeyboardInterrupt at "),
        (raising_its_own, "raised Own at "),
        (refusing_without_a_text, "returned a Reject of other than"),
        (cancelling, "did not answer in time"),
        (accepting, "returned bool, not Reject or None"),
    ],
)
async def test_what_is_no_answer_lets_nothing_in(
    rule: Rule, why: str, caplog: pytest.LogCaptureFixture
) -> None:
    async with Chain([function(rule)]) as chain:
        assert await said(chain, "quiet words", "more") == [SILENT, SILENT]
        assert chain.problems[0].startswith(f"rule: {why}")
    assert why in caplog.text
    assert "quiet words" not in caplog.text


async def test_a_function_that_recovers_is_well_again() -> None:
    async def rule(event: Event, _: Arrival) -> Reject | None:
        return None if event.content == "a" else raising(event, ARRIVAL)

    async with Chain([function(rule)]) as chain:
        assert await said(chain, "bad") == [SILENT]
        assert chain.problems
        assert await said(chain, "a") == [""]
        assert chain.problems == []


async def test_an_async_function_that_is_late_is_given_up_and_the_others_are_not() -> None:
    given_up = asyncio.Event()

    async def rule(event: Event, _: Arrival) -> Reject | None:
        try:
            await asyncio.sleep(60 if event.content == "bad" else 0)
        except asyncio.CancelledError:
            given_up.set()
            raise
        return None

    async with Chain([function(rule, 500)]) as chain:
        assert await said(chain, "a", "bad", "b") == ["", SILENT, ""]
        await asyncio.wait_for(given_up.wait(), ANSWER_S)


async def test_calls_that_never_end_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("policies.plugins.entry._MAX_LATE", 3)
    may_end, begun = asyncio.Event(), 0

    async def rule(*_: object) -> None:
        nonlocal begun
        begun += 1
        while not may_end.is_set():
            try:
                await may_end.wait()
            except asyncio.CancelledError:
                continue

    async with Chain([function(rule, 20)]) as chain:
        for _ in range(5):
            assert await said(chain, "a") == [SILENT]
        assert begun == 3
        may_end.set()


async def test_a_plain_function_that_is_late_is_not_asked_again_until_it_is_through() -> None:
    may_end, asked = threading.Event(), []

    def rule(event: Event, _: Arrival) -> None:
        asked.append(event.content)
        if event.content == "bad":
            may_end.wait()

    async with Chain([function(rule, 500)]) as chain:
        assert await said(chain, "a", "bad", "b") == ["", SILENT, SILENT]
        assert await said(chain, "c") == [SILENT]
        assert asked == ["a", "bad"]
        may_end.set()
        async with asyncio.timeout(ANSWER_S):
            while await said(chain, "d") == [SILENT]:  # noqa: ASYNC110 — a thread is waited for
                await asyncio.sleep(0)
    assert set(asked) == {"a", "bad", "d"}


async def test_the_deadline_is_for_one_event_and_not_for_the_batch() -> None:
    async with Chain([function(lambda *_: time.sleep(0.15), 700)]) as chain:
        assert await said(chain, *"abcdef") == [""] * 6


async def test_stopping_does_not_wait_for_a_function_that_does_not_end() -> None:
    may_end, is_asked = threading.Event(), asyncio.Event()
    loop = asyncio.get_running_loop()

    def rule(*_: object) -> None:
        loop.call_soon_threadsafe(is_asked.set)
        may_end.wait()

    chain = Chain([function(rule, 60_000)])
    telling = asyncio.create_task(said(chain, "a"))
    await is_asked.wait()
    await chain.stop()
    assert await telling == [SILENT]
    assert await said(chain, "b") == [SILENT]
    may_end.set()
