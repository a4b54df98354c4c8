"""Pages that read contents of memory records: however much these cost, other tasks run."""

from __future__ import annotations

import asyncio
from collections import Counter
from functools import partial
from itertools import count
from typing import TYPE_CHECKING

import pytest

from relay.console import ask
from relay.console.pages import context, memory
from relay.memory.aman.fold import Fold
from relay.memory.aman.records import ToolCall, draft_of
from relay.memory.anamnesis.checks import content_hash
from relay.memory.anamnesis.records import Entry, entry_draft, timestamp_of
from relay.memory.nmem.records import Observation, observation_draft
from tests.cast import robot
from tests.unit.console.browsing import site
from tests.unit.server.test_app import NOW

if TYPE_CHECKING:
    from collections.abc import Callable

    from relay.memory.draft import Draft

NUMBER = 60
ROOT = "tea"


def tool(number: int) -> Draft:
    return draft_of(ToolCall("hk", "t", True, f"{number}", None, None, NOW))  # noqa: FBT003


def observation(number: int) -> Draft:
    return observation_draft(Observation("s", NOW, "file_edit", "hook", f"{number}"), "p")


def claim(number: int) -> Draft:
    parents = (content_hash(ROOT),) if number else ()
    text = f"{number}" if number else ROOT
    at = timestamp_of(NOW)
    return entry_draft(Entry(text, robot.pubkey, "rob", at, parents=parents))


def turns_of(monkeypatch: pytest.MonkeyPatch, place: object, name: str) -> Counter[int]:
    """How often this function runs in each turn of the loop, from now on."""
    turn, ran, run = 0, Counter[int](), getattr(place, name)

    def next_turn() -> None:
        nonlocal turn
        turn += 1
        asyncio.get_running_loop().call_soon(next_turn)

    def noting(*args: object) -> object:
        ran[turn] += 1
        return run(*args)

    monkeypatch.setattr(place, name, noting)
    next_turn()
    return ran


@pytest.mark.parametrize(
    ("path", "draft", "place", "name"),
    [
        ("memory.json?system=aman", tool, memory, "_link"),
        ("aman.json?hk=hk", tool, Fold, "apply"),
        ("nmem.json?session=s", observation, memory, "nmem_in"),
        (f"claim.json?hash={content_hash(ROOT)}", claim, memory, "claim_in"),
        (f"context.json?agent={robot.pubkey}&system=aman&of=hk", tool, Fold, "apply"),
        (f"context.json?agent={robot.pubkey}&system=nmem&of=p", observation, context, "nmem_in"),
    ],
)
async def test_records_are_read_one_by_one_until_a_page_has_taken_its_share_of_the_loop(
    monkeypatch: pytest.MonkeyPatch,
    path: str,
    draft: Callable[[int], Draft],
    place: object,
    name: str,
) -> None:
    """100 records of nested lists, 330 kB each, took the loop for ten seconds."""
    async with site() as here:
        await here.publish(*(robot.sign(*draft(number)) for number in range(NUMBER)))
        browser = await here.browser_of(robot)
        ran = turns_of(monkeypatch, place, name)
        monkeypatch.setattr(ask, "thread_time", partial(next, count(0, 0.01)))
        found = await browser.json(f"/console/{path}")
    assert max(ran.values()) == 1
    assert 50 <= ran.total() < NUMBER
    assert found["notes"] == ["not everything is shown: there is too much for one page"]


async def test_a_usual_page_of_memory_has_all_records() -> None:
    async with site() as here:
        await here.publish(*(robot.sign(*tool(number)) for number in range(NUMBER)))
        found = await (await here.browser_of(robot)).json("/console/aman.json?hk=hk")
    assert len(found["tools"]) == NUMBER
    assert found["notes"] == []
