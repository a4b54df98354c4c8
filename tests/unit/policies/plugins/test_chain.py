"""policies/plugins/chain.py: several in their order, and what a reload makes of them."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest

from policies.plugins import Chain, objection
from relay.facts import Origin
from tests.cast import alice
from tests.unit.policies.plugins.stage import NOON, SILENT, function, note, process, said, until

if TYPE_CHECKING:
    from policies.plugins import Arrival, Plugin, Reject
    from relay.nostr.event import Event


def against(word: str, asked: list[str] | None = None) -> Plugin:
    """Refuses what says this word."""

    async def rule(event: Event, _: Arrival) -> Reject | None:
        if asked is not None:
            asked.append(event.content)
        return objection(f"no {word}") if word in event.content else None

    return function(rule, name=word)


@pytest.mark.process
async def test_the_first_objection_wins_and_the_next_is_asked_only_about_the_rest() -> None:
    second: list[str] = []
    async with Chain([against("red"), against("blue", second), process("accept")]) as chain:
        told = await said(chain, "red", "blue", "red blue", "green")
    assert told == ["blocked: no red", "blocked: no blue", "blocked: no red", ""]
    assert second == ["blue", "green"]


async def test_nobody_is_asked_about_a_request_to_vanish_or_ones_own_history() -> None:
    async with Chain([against("red")]) as chain:
        assert chain.asks_about(note(), Origin.WIRE)
        assert chain.asks_about(note(), Origin.IMPORT)
        assert not chain.asks_about(note(), Origin.TRUSTED_IMPORT)
        vanish = alice.sign(62, [["relay", "ALL_RELAYS"]], "", NOON)
        assert not chain.asks_about(vanish, Origin.WIRE)
    assert not Chain().asks_about(note(), Origin.WIRE)


@pytest.mark.process
async def test_no_process_runs_before_somebody_asks() -> None:
    async with Chain([process("exit at once")]) as chain:
        await asyncio.sleep(0)
        assert chain.failures == 0
        await said(chain, "a")
        await until(lambda: chain.failures)


@pytest.mark.process
async def test_a_reload_keeps_what_is_the_same_and_starts_what_is_new() -> None:
    async with Chain([process("who")]) as chain:
        before = await said(chain, "a")
        chain.enforce([against("red"), process("who"), against("blue")])
        assert await said(chain, "b") == before
        chain.enforce([process("who", deadline_ms=50_000)])
        assert await said(chain, "c") not in (before, [SILENT])


@pytest.mark.process
async def test_what_a_reload_drops_still_answers_what_it_was_asked() -> None:
    async with Chain([process("slow", 5000)]) as chain:
        assert await said(chain, "a") == [""]
        telling = asyncio.create_task(said(chain, "b"))
        await asyncio.sleep(0)
        chain.enforce([against("c")])
        assert await telling == [""]
        assert await said(chain, "c") == ["blocked: no c"]


@pytest.mark.process
async def test_what_was_wrong_with_a_plug_in_is_forgotten_with_it() -> None:
    heard: list[list[str]] = []
    chain = Chain([process("exit at once")], changed=lambda lines: heard.append(list(lines)))
    async with chain:
        chain.start()
        await until(lambda: chain.problems)
        chain.enforce([])
        assert chain.problems == []
        assert await said(chain, "a") == [""]
    assert heard == [["sifter: exited with 4"], []]


@pytest.mark.parametrize("deadline_ms", [None, 60_000])
async def test_a_plug_in_that_is_taken_out_while_it_owes_an_answer_is_no_problem(
    deadline_ms: int | None,
) -> None:
    """It was one until a restart, also for alerts, and where another one took its place."""

    async def hangs(_: Event, __: Arrival) -> None:
        await asyncio.sleep(1000)

    async with Chain([function(hangs, name="sifter", deadline_ms=50)]) as chain:
        asked = asyncio.create_task(said(chain, "a"))
        await asyncio.sleep(0)
        after = [] if deadline_ms is None else [function(hangs, deadline_ms, "sifter")]
        chain.enforce(after)
        assert await asked == [SILENT]
        await until(lambda: not chain.problems)
        assert chain.failures == 1


async def test_what_objects_is_said_in_the_admins_log_by_name_only(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with Chain([against("secret")]) as chain:
        assert await said(chain, "a secret") == ["blocked: no secret"]
    assert caplog.text == ""
