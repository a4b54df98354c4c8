"""relay/client/inbox.py: whose messages wait, and in what order they are read."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from relay.client import inbox as module
from relay.client.inbox import Inbox, MessageQueue, Rank
from relay.nostr.event import weight_of
from tests.cast import alice
from tests.harness.patience import ANSWER_S

if TYPE_CHECKING:
    import pytest

    from relay.nostr.event import Event


def message(text: str) -> Event:
    return alice.sign(9, [["h", "tea"]], text, 1_700_000_000)


async def test_the_oldest_of_the_highest_rank_is_read_first() -> None:
    inbox = Inbox()
    for text, rank in (
        ("5", Rank.OTHERS),
        ("3", Rank.KNOWN),
        ("1", Rank.OURS),
        ("4", Rank.KNOWN),
        ("2", Rank.OURS),
    ):
        await inbox.put(message(text), rank)
    assert [(await inbox.get()).content for _ in range(5)] == ["1", "2", "3", "4", "5"]
    assert inbox.qsize() == 0


async def test_a_full_rank_lets_the_others_in(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_MOST", 2)
    inbox = Inbox()
    for text in ("2", "3"):
        await inbox.put(message(text), Rank.OTHERS)
    waiting = asyncio.create_task(inbox.put(message("4"), Rank.OTHERS))
    await asyncio.sleep(0)
    await inbox.put(message("1"), Rank.OURS)
    assert not waiting.done()
    async with asyncio.timeout(ANSWER_S):
        assert [(await inbox.get()).content for _ in range(4)] == ["1", "2", "3", "4"]
        await waiting


async def test_who_waits_is_let_in_when_nobody_reads_any_more(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, "_MOST", 1)
    inbox = Inbox()
    await inbox.put(message("1"), Rank.KNOWN)
    waiting = asyncio.create_task(inbox.put(message("2"), Rank.KNOWN))
    await asyncio.sleep(0)
    inbox.clear()
    async with asyncio.timeout(ANSWER_S):
        await waiting


def test_of_a_full_queue_the_oldest_are_dropped(monkeypatch: pytest.MonkeyPatch) -> None:
    large = message("x" * 1_000)
    monkeypatch.setattr(module, "_MOST", 3)
    monkeypatch.setattr(module, "_MOST_BYTES", weight_of(large))
    queue = MessageQueue()
    small = [message(str(number)) for number in range(2)]
    assert [queue.put_newest(each) for each in small] == [0, 0]
    assert queue.put_newest(large) == 0, "full with it"
    assert queue.put_newest(small[0]) == 3
    assert queue.put_newest(small[1]) == 0
    assert [queue.get_nowait(), queue.get_nowait()] == small
    assert queue.empty()


async def test_what_waits_is_taken_together() -> None:
    queue = MessageQueue()
    messages = [message(str(number)) for number in range(5)]
    for each in messages:
        queue.put_nowait(each)
    assert await queue.get_some(3) == messages[:3]
    assert await queue.get_some(3) == messages[3:]
