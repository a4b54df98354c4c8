"""Plug-ins of a test: how they are made, asked and watched."""

from __future__ import annotations

import asyncio
import sys
from ipaddress import ip_address
from pathlib import Path
from typing import TYPE_CHECKING

from policies.plugins import Chain, Plugin
from policies.plugins.definition import Command, Entry
from policies.write_rule import Place
from relay.errors import ok_reply
from relay.facts import Arrival, Origin
from tests.cast import alice

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from policies.plugins import Rule
    from relay.errors import Reject
    from relay.nostr.event import Event

SIFTER = Path(__file__).with_name("sifter.py")
NOON = 1_772_000_000
ARRIVAL = Arrival(NOON, Origin.WIRE, frozenset(), ip_address("10.1.2.3"))
SILENT = "error: a plug-in of this relay does not answer, try again later"


def process(behaviour: str, deadline_ms: int = 60_000, name: str = "sifter") -> Plugin:
    """A process that behaves so; see sifter.py."""
    command = Command((sys.executable, str(SIFTER), behaviour), str(SIFTER.parent), ())
    return Plugin(Place(name, "a.toml", 1), name, command, deadline_ms)


def function(rule: Rule, deadline_ms: int = 60_000, name: str = "rule") -> Plugin:
    return Plugin(Place(name, "a.toml", 1), name, Entry("a:b", rule), deadline_ms)


def note(content: str = "hello") -> Event:
    return alice.sign(1, [], content, NOON)


def words(objections: Sequence[Reject | None]) -> list[str]:
    """What each author is told; "" is yes."""
    return ["" if said is None else ok_reply(said)[1] for said in objections]


async def said(chain: Chain, *contents: str, arrival: Arrival = ARRIVAL) -> list[str]:
    """What is said of notes that come at once."""
    return words(await chain.objections([(note(text), arrival) for text in contents]))


async def until(holds: Callable[[], object]) -> None:
    """Until it holds; the time limit of the test ends what never does."""
    while not holds():  # noqa: ASYNC110 — other processes are waited for
        await asyncio.sleep(0.01)
