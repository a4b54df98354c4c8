"""Who writes to the relays, and who reads from them, whatever happens to these."""

from __future__ import annotations

import asyncio
import time
from contextlib import suppress
from itertools import count
from typing import TYPE_CHECKING, Any, Final

import websockets

from tests import cast
from tests.faults.chaos.history import CHAT, PUT, REMOVE, Stream
from tests.harness.relay_program import connected

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator, Sequence
    from contextlib import AbstractAsyncContextManager
    from random import Random

    from relay.nostr.event import Event
    from relay.nostr.keys import SecretKey
    from tests.faults.chaos.history import History
    from tests.harness.relay_program import Rookery, Wire

GROUPS: Final = ("tea", "food", "green")
ADMINS: Final = (cast.admin, cast.person("second admin"))
PEOPLE: Final = (cast.alice, cast.bob, cast.carol, cast.dave)
_LOST: Final = (OSError, TimeoutError, websockets.WebSocketException, AssertionError)
_ANSWER_S: Final = 4.0
"""A relay that is stopped gets no more patience."""
_GIVE_UP_S: Final = 60.0
_OVERLAP_S: Final = 90
"""An event may be stored so long after it was signed."""
_OLD_S: Final = 50_000
"""Versions begin so long ago, and each is a second newer than the one before."""
_STAYS_S: Final = 4.0
"""A reader stays on one connection so long on average."""


class Line:
    """A connection to one of the relays, made again elsewhere when it is lost."""

    def __init__(self, relays: Sequence[Rookery], chance: Random, at: int | None = None) -> None:
        """`at`: only to this relay."""
        self._relays, self._chance, self._at = relays, chance, at
        self.relay = chance.randrange(len(relays)) if at is None else at
        self._wire: Wire | None = None
        self._context: AbstractAsyncContextManager[Wire]

    async def wire(self, key: SecretKey | None = None) -> Wire:
        """Logged in with the key."""
        if self._wire is None:
            url = self._relays[self.relay].url
            async with asyncio.timeout(_ANSWER_S):
                self._context = connected(url)
                self._wire = await self._context.__aenter__()
                if key is not None:
                    await self._wire.log_in(key, url, int(time.time()))
        return self._wire

    async def lose(self) -> None:
        """Close it; the next is to another relay."""
        wire, self._wire = self._wire, None
        if wire is not None:
            wire.abort()
            await self._context.__aexit__(None, None, None)
        if self._at is None:
            self.relay = self._chance.randrange(len(self._relays))


class Writer:
    def __init__(
        self, history: History, relays: Sequence[Rookery], chance: Random, at: int | None = None
    ) -> None:
        self._history, self._chance = history, chance
        self._line = Line(relays, chance, at)

    async def write(self, event: Event) -> bool:
        """Until it is answered for good; True: it is stored."""
        loop = asyncio.get_running_loop()
        until = loop.time() + _GIVE_UP_S
        while loop.time() < until:
            try:
                # Who may not read a group is told OK for what it refuses too.
                wire = await self._line.wire(cast.owner)
                attempt = self._history.attempt(event, self._line.relay, loop.time())
                async with asyncio.timeout(_ANSWER_S):
                    attempt.is_stored, attempt.text = await wire.publish(event)
                attempt.answered = loop.time()
            except _LOST:
                await self._line.lose()
            else:
                if attempt.is_stored or attempt.is_refused:
                    return attempt.is_stored is True
                if self._chance.random() < 0.5:
                    await self._line.lose()
            await asyncio.sleep(self._chance.random() * 0.2)
        return False

    async def write_on(self, events: Iterator[Event], said: list[Event], pause_s: float) -> None:
        """`said` gets the messages that are stored."""
        try:
            for event in events:
                if await self.write(event) and event.kind == CHAT:
                    said.append(event)
                await asyncio.sleep(self._chance.expovariate(1 / pause_s))
        finally:
            await self._line.lose()

    async def end(self) -> None:
        await self._line.lose()


_number = count()


def made(who: SecretKey, kind: int, *tags: Sequence[str], at: int = 0) -> Event:
    return who.sign(kind, [*map(list, tags)], f"{next(_number)}", at or int(time.time()))


def of_person(who: SecretKey, said: Sequence[Event], chance: Random) -> Iterator[Event]:
    """Messages, deletions of them, and versions of lists and articles, without end."""
    versions = count(int(time.time()) - _OLD_S)
    while True:
        mine = [event for event in said[-50:] if event.pubkey == who.pubkey]
        match chance.randrange(10):
            case 0 if mine:
                yield made(who, 5, ["e", chance.choice(mine).id], ["k", "9"])
            case 1:
                yield made(who, 10_002, ["r", "wss://relay.test"], at=next(versions))
            case 2:
                yield made(who, 30_023, ["d", f"{chance.randrange(5)}"], at=next(versions))
            case _:
                yield made(who, CHAT, ["h", chance.choice(GROUPS)])


def of_admin(who: SecretKey, said: Sequence[Event], chance: Random) -> Iterator[Event]:
    """Who is a member changes all the time."""
    while True:
        h = ["h", chance.choice(GROUPS)]
        here = [event for event in said[-50:] if event.tag("h") == h[1]]
        match chance.randrange(10):
            case 0 if here:
                yield made(who, 9005, h, ["e", chance.choice(here).id])
            case 1 | 2:
                yield made(who, CHAT, h)
            case 3 | 4 | 5:
                yield made(who, REMOVE, h, ["p", chance.choice(PEOPLE).pubkey])
            case _:
                yield made(who, PUT, h, ["p", chance.choice(PEOPLE).pubkey])


def of_agent(who: SecretKey, chance: Random) -> Iterator[Event]:
    """Records of memory."""
    for at in count(int(time.time()) - _OLD_S):
        yield made(who, 30_078, ["d", f"snow:memory:{chance.randrange(20)}"], at=at)


class Reader:
    """Somebody who may read in all groups, always at one relay, or a member, at any."""

    def __init__(
        self,
        history: History,
        relays: Sequence[Rookery],
        chance: Random,
        key: SecretKey,
        at: int | None = None,
    ) -> None:
        self._history, self._chance, self._key, self._at = history, chance, key, at
        self._line = Line(relays, chance, at)
        self._subs = count()
        self.seen: set[str] = set()
        """Ids."""

    async def read_on(self) -> None:
        """Live; after a connection was lost, or left, from where it was."""
        cursor = int(time.time())
        kinds = [CHAT] if self._at is None else [5, CHAT, PUT, REMOVE]
        versions = [] if self._at is None else [{"kinds": [10_002, 30_023]}]
        while True:
            asked = {"kinds": kinds, "since": cursor - _OVERLAP_S}
            with suppress(*_LOST):
                wire = await self._line.wire(self._key)
                async with asyncio.timeout(self._chance.expovariate(1 / _STAYS_S)):
                    async for event in self._got(wire, asked, *versions):
                        cursor = max(cursor, event["created_at"])
            await self._line.lose()
            await asyncio.sleep(0.1)

    async def ask_on(self) -> None:
        """The newest messages, again and again on one connection."""
        while True:
            try:
                asked = {"kinds": [CHAT], "#h": list(GROUPS), "limit": 50}
                wire = await self._line.wire(self._key)
                async with asyncio.timeout(_ANSWER_S):
                    async for _ in self._got(wire, asked, is_live=False):
                        pass
            except _LOST:
                await self._line.lose()
            await asyncio.sleep(0.2)

    async def _got(
        self, wire: Wire, *asked: dict[str, Any], is_live: bool = True
    ) -> AsyncIterator[dict[str, Any]]:
        """The events of a REQ until it is closed, or all that are stored."""
        sub = f"{next(self._subs)}"
        loop = asyncio.get_running_loop()
        stream = Stream(
            self._line.relay,
            self._key.pubkey,
            is_member=self._at is not None,
            asked=loop.time(),
            since=asked[0].get("since", 0),
        )
        self._history.streams.append(stream)
        await wire.send("REQ", sub, *asked)
        try:
            while True:
                match await wire.receive():
                    case ["EVENT", of, event] if of == sub:
                        stream.got.append((loop.time(), event["id"]))
                        self.seen.add(event["id"])
                        yield event
                    case ["EOSE", of] if of == sub:
                        stream.stored, stream.ended = len(stream.got), loop.time()
                        if not is_live:
                            await wire.send("CLOSE", sub)
                            return
                    case ["CLOSED", of, *_] if of == sub:
                        return
        finally:
            stream.closed = loop.time()

    async def end(self) -> None:
        await self._line.lose()
