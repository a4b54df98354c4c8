"""Places and turns of requests to the console."""

from __future__ import annotations

import asyncio
from contextlib import ExitStack
from dataclasses import dataclass

import pytest

from relay.console.app import _FEW_PAGES, _MAX_WAITING
from relay.console.places import Places
from relay.console.sessions import Standing
from relay.errors import Refused


@dataclass(frozen=True)
class Anybody:
    is_known: bool = False
    is_owner: bool = False


def pages() -> Places:
    return Places(_MAX_WAITING, _FEW_PAGES, 4, "too many")


@pytest.mark.parametrize("rights", [Anybody(), Anybody(is_known=True)], ids=["unknown", "known"])
def test_requests_of_sixteen_networks_leave_places_to_others(rights: Anybody) -> None:
    """Six networks had all of them, and nobody else got the front page."""
    making = pages()
    with ExitStack() as held:
        for network in range(16):
            for number in range(1000):
                try:
                    held.enter_context(making.place(rights, f"192.0.{network}.{number % 250}"))
                except Refused:
                    continue
        for network in range(50):
            held.enter_context(making.place(rights, f"198.51.{network}.1"))


async def test_turns_go_round_by_network_and_in_it_by_address() -> None:
    making, order, ends = pages(), list[str](), asyncio.Event()

    async def ask(address: str) -> None:
        async with making.turn(Standing.OTHER, address):
            order.append(address)
            await ends.wait()

    first = [asyncio.create_task(ask(f"203.0.113.{number}")) for number in range(4)]
    await asyncio.sleep(0)
    waiting = ["192.0.2.1", "192.0.2.1", "192.0.2.2", "192.0.2.3", "198.51.100.1"]
    others = [asyncio.create_task(ask(address)) for address in waiting]
    await asyncio.sleep(0)
    del order[:]
    ends.set()
    await asyncio.gather(*first, *others)
    assert order == ["192.0.2.1", "198.51.100.1", "192.0.2.2", "192.0.2.3", "192.0.2.1"]


async def test_a_request_that_is_cancelled_passes_its_turn_on() -> None:
    making, ends, served = pages(), asyncio.Event(), list[int]()

    async def ask(number: int) -> None:
        async with making.turn(Standing.OTHER, f"192.0.{number}.1"):
            served.append(number)
            await ends.wait()

    asked = [asyncio.create_task(ask(number)) for number in range(8)]
    await asyncio.sleep(0)
    assert served == [0, 1, 2, 3]
    asked[4].cancel()  # while it waits
    ends.set()
    await asked[0]
    asked[5].cancel()  # just when it has been given its turn, or before
    asked[6].cancel()
    await asyncio.gather(*asked, return_exceptions=True)
    assert 7 in served
    again = [asyncio.create_task(ask(number)) for number in range(10, 14)]
    await asyncio.gather(*again)
    assert served[-4:] == [10, 11, 12, 13]
