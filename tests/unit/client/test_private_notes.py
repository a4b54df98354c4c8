"""The owner's private notes about a user, from several machines of an agent."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest

from relay.client.writer import Outcome
from relay.errors import Invalid
from tests.cast import alice
from tests.unit.client.test_rebase import (
    NOW,
    Machine,
    apart,
    forget_on,
    machines,
    sent,
)
from tests.unit.client.test_snowclaw import until

if TYPE_CHECKING:
    from tests.harness.fake_relay import FakeRelay

__all__ = ["machines"]

RECORD = f"snowclaw:private:npub:{alice.pubkey[:32]}"


async def annotate(machine: Machine, text: str, at: int) -> None:
    """In a run of its own."""
    machine.now = at
    async with machine as claw:
        await claw._client.wait_connected()
        await claw.load()
        written = await claw.annotate_privately(alice.npub, text)
        assert written is not None
        assert written.outcome is Outcome.STORED


def notes(fake: FakeRelay) -> list[str]:
    return [
        line for event in fake.events if event.d == RECORD for line in event.content.split("\n")
    ]


@pytest.mark.proves("S-31")
@pytest.mark.parametrize("at", [NOW + 4, NOW + 9], ids=["older", "newer"])
async def test_what_two_machines_noted_is_kept(
    fake: FakeRelay, machines: tuple[Machine, Machine], at: int
) -> None:
    """One of the two was lost, though both were answered with `stored` or `queued`."""
    one, other = machines
    await one.note("of tea", NOW, group="tea")
    await annotate(one, "first", NOW + 1)
    async with apart(one) as claw:
        one.now = at
        with pytest.raises(Invalid, match="at most 2000"):
            await claw.annotate_privately(alice.npub, "x" * 2_001)
        written = await claw.annotate_privately(alice.npub, "offline")
        assert written is not None
        assert written.outcome is Outcome.QUEUED
        await fake.start()
        await annotate(other, "online", NOW + 6)
        one.now = NOW + 20
        await sent(claw)
    assert sorted(notes(fake)) == ["first", "offline", "online"]


@pytest.mark.proves("S-31")
async def test_what_two_machines_note_at_once_is_kept(
    fake: FakeRelay, machines: tuple[Machine, Machine]
) -> None:
    one, other = machines
    await one.note("of tea", NOW, group="tea")
    one.now = other.now = NOW + 1
    async with one as mine, other as theirs:
        for claw in (mine, theirs):
            await claw._client.wait_connected()
            await claw.load()
        await asyncio.gather(
            mine.annotate_privately(alice.npub, "one"),
            theirs.annotate_privately(alice.npub, "another"),
        )
    assert sorted(notes(fake)) == ["another", "one"]


@pytest.mark.proves("S-25")
async def test_no_forgotten_private_note_comes_back(
    fake: FakeRelay, machines: tuple[Machine, Machine]
) -> None:
    one, other = machines
    await one.note("of tea", NOW, group="tea")
    await annotate(one, "looks for another job", NOW + 1)
    async with apart(one) as claw:
        await fake.start()
        other.now = NOW + 2
        await forget_on(other, d=RECORD)
        await fake.stop()
        await until(lambda: not claw.is_online)
        one.now = NOW + 9
        await claw.annotate_privately(alice.npub, "prefers mornings")
        await fake.start()
        await sent(claw)
    assert notes(fake) == ["prefers mornings"]
