"""The relay under test, its people, and questions put to it many at a time."""

from __future__ import annotations

import base64
import contextlib
import json
import shutil
import time
from hashlib import sha256
from typing import TYPE_CHECKING, Any, Final

import aiohttp

from relay.nostr.event import event_from_raw
from relay.nostr.keys import SecretKey
from relay.nostr.kinds import GROUP_MEMBER_NOTICES
from tests import cast
from tests.harness.relay_program import Rookery, Wire, connected, level, until
from tests.leaks.guards import Table, found, happen, signed_row
from tests.leaks.people import KEYS, RELAY, TRUSTED_ADDRESS, VIEWERS

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Sequence
    from pathlib import Path

    from relay.nostr.event import Event
    from tests.leaks.guards import Row

AT_ONCE: Final = {"REQ": 100, "COUNT": 16, "NEG-OPEN": 16}
"""Questions on their way on one connection: so many counts may wait, and sets be open."""
ALL_IDS: Final = "6100000200"
"""A negentropy message: from the beginning to infinity we have no id; so say yours."""
A_WHILE_S: Final = 400
"""The table is as long as that, and no post of a group may be older than 600 s."""
LONG_S: Final = 3600

DERIVED: Final = "[groups]\nderived = [5, 6, 7, 16, 1111, 1984, 9735, 9802, 20007, 40003]\n"
"""As packaged, and a kind that passes."""

Frames = list[list[Any]]


class LeakRelay:
    """A relay, and the table that is published on it.

    Of two processes on one database, `rookery` takes what is written and `other` is asked.
    """

    expires = 0

    def __init__(
        self, rookery: Rookery, stack: contextlib.AsyncExitStack, other: Rookery | None = None
    ) -> None:
        self.rookery = rookery
        self._other = other
        self.stack = stack
        self.table = Table(int(time.time()) - A_WHILE_S)
        relay_key = SecretKey.parse((rookery.folder / "relay.key").read_text().strip())
        self._keys = {**KEYS, RELAY: relay_key}
        self.relay_key = relay_key.pubkey
        self._from_before: dict[str, Wire] = {}
        self.analyze: Callable[[], Awaitable[None]] | None = None
        """Makes the statistics of the tables of a database."""

    async def enter(self, viewer: str) -> Wire:
        """A connection with the viewer's keys; of a banned viewer one that was there before."""
        if VIEWERS[viewer].is_banned:
            return self._from_before[viewer]
        wire = await self.connect(viewer)
        await self.log_in(wire, viewer)
        return wire

    async def connect(self, viewer: str) -> Wire:
        """A connection on which nobody has logged in."""
        options = {"local_addr": (TRUSTED_ADDRESS, 0)} if VIEWERS[viewer].is_trusted else {}
        asked = self._other or self.rookery
        await self.settle()
        return await self.stack.enter_async_context(connected(asked.url, **options))

    @property
    def is_two(self) -> bool:
        return self._other is not None

    async def settle(self) -> None:
        """Wait until what was written is known where it is asked for."""
        if self._other is not None:
            await level([self.rookery, self._other])

    async def log_in(self, wire: Wire, viewer: str) -> None:
        for name in VIEWERS[viewer].keys:
            await self.log_in_as(wire, name)

    async def log_in_as(self, wire: Wire, name: str) -> None:
        await wire.log_in(self._keys[name], wire.url, int(time.time()))

    async def ban_those_who_are_here(self) -> None:
        """Connections of who is banned are older than the ban: a later one does not log in."""
        for viewer in [name for name, viewer in VIEWERS.items() if viewer.is_banned]:
            self._from_before[viewer] = await self.connect(viewer)
            await self.log_in(self._from_before[viewer], viewer)
        await self.ban()

    async def ban(self) -> None:
        await self.call("banpubkey", KEYS["hex"].pubkey)

    async def open_to_write(self) -> None:
        """Who signs something protected is logged in where it is sent."""
        self.publisher = await self.stack.enter_async_context(connected(self.rookery.url))
        for name in ("alice", "owner"):
            await self.log_in_as(self.publisher, name)

    async def begin(self) -> None:
        found(self.table)
        await self.publish(self.table.foundation)

    def go_on(self, before: LeakRelay) -> None:
        """On a copy of its folder."""
        self.table, self.expires = before.table, before.expires

    async def publish(self, rows: Iterable[Row]) -> None:
        for row in rows:
            answer = await self.publisher.publish(row.event)
            assert answer == row.answer, (row.says, answer)

    def sign(self, by: str, kind: int, tags: Sequence[Sequence[str]], content: str = "") -> Event:
        """An event of now, by the key of this name."""
        key = self._keys.get(by) or cast.person(by)
        return key.sign(kind, [list(tag) for tag in tags], content, int(time.time()))

    async def say(self, by: str, kind: int, *tags: Sequence[str], content: str = "") -> Event:
        event = self.sign(by, kind, tags, content)
        assert await self.publisher.publish(event) == (True, ""), event
        return event

    async def call(self, method: str, *params: str) -> None:
        """One NIP-86 call by the owner."""
        url = self.rookery.url.replace("ws", "http", 1)
        body = json.dumps({"method": method, "params": list(params)}).encode()
        tags = [["u", url], ["method", "POST"], ["payload", sha256(body).hexdigest()]]
        signed = cast.owner.sign(27235, tags, "", int(time.time()))
        headers = {
            "Content-Type": "application/nostr+json+rpc",
            "Authorization": f"Nostr {base64.b64encode(signed.raw).decode()}",
        }
        async with (
            aiohttp.ClientSession() as session,
            session.post(url, data=body, headers=headers) as response,
        ):
            assert await response.json(content_type=None) == {"result": True}

    def write(self, expires_in_s: int = LONG_S) -> list[Row]:
        """What is to be published now."""
        self.expires = int(time.time()) + expires_in_s
        happen(self.table, self.expires)
        return self.table.happenings

    def key_of(self, name: str) -> SecretKey:
        return self._keys[name]

    async def end(self) -> None:
        """What the table says of the end: one key is banned, and time passes."""
        await self.call("banpubkey", cast.person("banned").pubkey)
        async with until("what expires has expired") as tries:
            async for _ in tries:
                if time.time() > self.expires:
                    await self.settle()
                    return

    async def signed_rows(self) -> list[Row]:
        """What the relay itself signed, as its owner finds it; notices of membership as each of
        their readers does, so that a viewer can be given one of another's."""
        wire = await self.enter("the owner")
        events = await wire.query({"authors": [self.relay_key]})
        for viewer in VIEWERS:
            if viewer != "the owner":
                wire = await self.enter(viewer)
                asked = {"authors": [self.relay_key], "kinds": list(GROUP_MEMBER_NOTICES)}
                events += await wire.query(asked)
        return list({event["id"]: signed_row(event_of(event)) for event in events}.values())


@contextlib.asynccontextmanager
async def leak_relay(
    folder: Path,
    policy: str = "",
    database: str | None = None,
    copy_of: LeakRelay | None = None,
) -> AsyncIterator[LeakRelay]:
    """A relay with the foundation of the table; at the end it must stop in order. `policy`: more
    of it. `database`: of two processes. `copy_of`: one that has stopped; with all that it had."""
    names = ["one"] if database is None else ["one", "other"]
    async with contextlib.AsyncExitStack() as running:
        processes = [await running.enter_async_context(Rookery(folder / name)) for name in names]
        for each in processes:
            if copy_of is None:
                await set_up(each, policy, database)
            else:
                shutil.copytree(copy_of.rookery.folder, each.folder)
            if each is not processes[0]:
                shutil.copy(processes[0].folder / "relay.key", each.folder)
            await each.start()
        async with contextlib.AsyncExitStack() as stack:
            relay = LeakRelay(processes[0], stack, *processes[1:])
            await relay.open_to_write()
            if copy_of is None:
                await relay.begin()
            else:
                relay.go_on(copy_of)
            yield relay
        for each in processes:
            assert await each.stop() == 0
    for each in processes:
        print(*each.lines, sep="\n")
        assert "Traceback" not in "\n".join(each.lines)


async def set_up(rookery: Rookery, policy: str, database: str | None) -> None:
    owner, agents = cast.owner.pubkey, (cast.robot.pubkey, cast.rover.pubkey)
    named = [word for agent in agents for word in ("--agent", agent)]
    await rookery.init("--owner", owner, *named, "--preset", "open")
    trust = f'[actors]\ntrusted_readers = ["{TRUSTED_ADDRESS}/32"]\n'
    (rookery.folder / "policies" / "50-trust.toml").write_text(trust + DERIVED + policy)
    if database is not None:
        rookery.set_up("storage", f'url = "{database}"\nshared = true')


def event_of(fields: dict[str, Any]) -> Event:
    """An event as a frame gives it."""
    return event_from_raw(json.dumps(fields, ensure_ascii=False).encode())


# -- questions -------------------------------------------------------------------------------------


class Asker:
    """Puts questions, each once, some `AT_ONCE`; an answer is all frames, without the id."""

    def __init__(self, wire: Wire) -> None:
        self._wire = wire
        self.answers: dict[tuple[str, str], Frames] = {}
        self.given: dict[tuple[str, str], set[str]] = {}
        """The ids in each answer."""

    async def ask(self, verb: str, texts: Iterable[str]) -> None:
        """`verb`: REQ, COUNT or NEG-OPEN. `texts`: filters in JSON."""
        left = [text for text in dict.fromkeys(texts) if (verb, text) not in self.answers]
        for start in range(0, len(left), AT_ONCE[verb]):
            await self._ask_some(verb, left[start : start + AT_ONCE[verb]])

    async def _ask_some(self, verb: str, texts: list[str]) -> None:
        got: list[Frames] = [[] for _ in texts]
        for number, text in enumerate(texts):
            more = [ALL_IDS] if verb == "NEG-OPEN" else []
            await self._wire.send(verb, f"{number}", *json.loads(text), *more)
        waiting = len(texts)
        while waiting:
            frame = await self._wire.receive()
            got[int(frame[1])].append([frame[0], *frame[2:]])
            waiting -= frame[0] != "EVENT"
        if verb == "REQ":  # few searches may be open for one address
            for number in range(len(texts)):
                await self._wire.send("CLOSE", f"{number}")
        for text, frames in zip(texts, got, strict=True):
            self.answers[verb, text] = frames
            self.given[verb, text] = ids_in(frames)


def ids_in(frames: Frames) -> set[str]:
    """The events that an answer gives, by REQ or by NEG-OPEN."""
    found = {frame[1]["id"] for frame in frames if frame[0] == "EVENT"}
    for frame in frames:
        if frame[0] == "NEG-MSG":
            found |= ids_of(bytes.fromhex(frame[1]))
    return found


def ids_of(message: bytes) -> set[str]:
    """Of the IdLists of a negentropy message that holds nothing else. NIP-77, read by hand."""
    assert message[0] == 0x61
    at, found = 1, set()

    def varint() -> int:
        nonlocal at
        value = 0
        while True:
            byte = message[at]
            at += 1
            value = value << 7 | byte & 0x7F
            if byte < 0x80:
                return value

    while at < len(message):
        varint()
        prefix = varint()
        at += prefix
        mode = varint()
        assert mode in (0, 2), mode
        if mode == 2:
            for _ in range(varint()):
                found.add(message[at : at + 32].hex())
                at += 32
    return found
