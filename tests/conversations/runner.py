"""Plays a script to a relay: connections, what is said, what is heard."""

from __future__ import annotations

import asyncio
import json
import time
from collections import defaultdict, deque
from dataclasses import dataclass, field
from hashlib import sha256
from typing import TYPE_CHECKING, Any, Protocol

from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed, WebSocketException

from relay.nostr.event import id_bytes
from tests import cast
from tests.conversations import script as s
from tests.conversations.values import MISSING, Names, Unknown, alike, made
from tests.harness.patience import ANSWER_S

if TYPE_CHECKING:
    from collections.abc import Sequence

    from relay.nostr.keys import SecretKey

Frame = list[Any]
NOBODY = "0" * 64
CREATED_BEFORE_NOW = 60
"""Seconds; there the events of a script begin, and each is a second younger than the one before."""


class Failed(AssertionError):
    """The relay did not answer as the script says."""


class NotThere(Exception):
    """Nobody answers at that URL."""


class Relay(Protocol):
    """Where a script is played."""

    url: str
    """What clients log in to."""
    roles: dict[str, SecretKey]
    """Who has a standing there: owner, robot, rover; scripts that need another role cannot play."""

    @property
    def addresses(self) -> Sequence[str]:
        """URLs that connections are made to in turn: one for each process of the relay."""

    async def settle(self) -> None:
        """Wait until what one process has acknowledged is in force in all."""

    async def restart(self) -> None: ...


@dataclass(slots=True)
class Manner:
    """How answers are compared and how long they are waited for."""

    texts: str = "whole"
    """`prefix`: of OK, CLOSED and NOTICE texts only the word before the colon counts."""
    patience_s: float = ANSWER_S
    salt: str = ""
    """Makes people and names of a script new again: another salt for each visit of a relay."""


class Connection:
    """One websocket of a person, and what came over it that no line has read yet."""

    def __init__(self, socket: ClientConnection, patience_s: float) -> None:
        self.socket = socket
        self.challenge: str | None = None
        self._patience_s = patience_s
        self._unread: defaultdict[str, deque[Frame]] = defaultdict(deque)
        self._markers = 0

    async def say(self, text: str) -> None:
        try:
            await self.socket.send(text)
        except ConnectionClosed as gone:
            raise Failed(f"the relay had ended the connection ({_code_of(gone)})") from None

    async def next(self, stream: str) -> Frame:
        """The next frame of a stream, or Failed with what came instead."""
        while not self._unread[stream]:
            arrived = await self._arrival()
            if arrived != stream and arrived == "NOTICE":
                raise Failed(f"came instead: {_short(self._unread['NOTICE'].popleft())}")
        return self._unread[stream].popleft()

    async def wait_for_challenge(self) -> str:
        while self.challenge is None:
            await self._arrival()
        return self.challenge

    async def catch_up(self) -> None:
        """All that the relay sent before it answers a question that comes now is unread then."""
        self._markers += 1
        marker = f"marker {self._markers}"
        await self.say(json.dumps(["REQ", marker, {"ids": [NOBODY], "limit": 1}]))
        await self.next(marker)
        await self.say(json.dumps(["CLOSE", marker]))

    async def code_of_end(self) -> int:
        """The code that the relay ends the connection with."""
        while True:
            try:
                self._file(await self._received())
            except ConnectionClosed as gone:
                return _code_of(gone)

    def unread(self, stream: str | None = None) -> list[Frame]:
        if stream is not None:
            return list(self._unread[stream])
        return [frame for frames in self._unread.values() for frame in frames]

    async def _arrival(self) -> str:
        try:
            return self._file(await self._received())
        except ConnectionClosed as gone:
            raise Failed(f"the relay ended the connection ({_code_of(gone)})") from None

    async def _received(self) -> str | bytes:
        try:
            async with asyncio.timeout(self._patience_s):
                return await self.socket.recv()
        except TimeoutError:
            raise Failed(f"nothing came in {self._patience_s:g} s") from None

    def _file(self, text: str | bytes) -> str:
        """Put a frame to the others of its stream, and name that."""
        frame = json.loads(text)
        if not isinstance(frame, list) or not frame or not isinstance(frame[0], str):
            raise Failed(f"came instead: {_short(frame)}, which is no message")
        stream = stream_of(frame)
        if frame[0] == "AUTH":
            self.challenge = frame[1]
        self._unread[stream].append(frame)
        return stream


def stream_of(frame: Frame) -> str:
    """What keeps an order of its own: the frames of one subscription; the OKs; the NOTICEs."""
    if frame[0] in ("OK", "NOTICE", "AUTH") or len(frame) < 2:
        return str(frame[0])
    return str(frame[1])


@dataclass(slots=True)
class Role:
    """A person in a script."""

    key: SecretKey
    last_id: str | None = None


@dataclass(slots=True)
class Run:
    """One run of one script."""

    relay: Relay
    script: s.Script
    manner: Manner
    now: int
    bound: dict[str, Any]
    roles: dict[str, Role]
    connections: dict[str, Connection] = field(default_factory=dict)
    events: dict[str, dict[str, Any]] = field(default_factory=dict)
    made: int = 0
    connects: int = 0

    async def play(self) -> None:
        steps = self.script.steps
        for index, step in enumerate(steps):
            upcoming = steps[index + 1] if index + 1 < len(steps) else None
            try:
                await self._do(step, upcoming)
            except (Failed, Unknown) as failed:
                raise Failed(self._report(step, failed)) from None
        for who, connection in self.connections.items():
            for frame in connection.unread("NOTICE"):
                raise Failed(f"{self.script.path}: at the end {who} has {_short(frame)} unread")

    async def _do(self, step: s.Step, upcoming: s.Step | None) -> None:
        if not isinstance(step.act, s.Hears):
            await self.relay.settle()
        match step.act:
            case s.Says(frame):
                await self._say(step.who, frame, upcoming)
            case s.LogsIn(whose):
                await self._log_in(step.who, whose, upcoming)
            case s.Shouts(text, count):
                connection = await self._connection(step.who)
                for _ in range(count):
                    await connection.say(text)
            case s.Signs(names, event):
                self._sign(step.who, names, event)
            case s.Hears(pattern, count):
                for _ in range(count):
                    await self._hear(step.who, pattern)
            case s.HearsNo(pattern):
                await self._hear_no(step.who, pattern)
            case s.IsCutOff(code):
                connection = await self._connection(step.who)
                came = await connection.code_of_end()
                if came != code:
                    raise Failed(f"the relay ended the connection with {came}")
                await self._leave(step.who)
            case s.Leaves():
                await self._leave(step.who)
            case s.Restart():
                for who in list(self.connections):
                    await self._leave(who)
                await self.relay.restart()
                self.bound["relay"] = self.relay.url

    async def _say(self, who: str, frame: list[Any], upcoming: s.Step | None) -> None:
        connection = await self._connection(who)
        if _mentions(frame, "challenge"):
            await connection.wait_for_challenge()
        said = made(frame, self._names(who))
        if said[:1] in (["EVENT"], ["AUTH"]) and len(said) > 1:
            said[1] = self._event(who, said[1])
        await connection.say(json.dumps(said, ensure_ascii=False, separators=(",", ":")))
        if said[:1] in (["EVENT"], ["AUTH"]):
            await self._expect_ok(who, upcoming)

    async def _log_in(self, who: str, whose: str, upcoming: s.Step | None) -> None:
        connection = await self._connection(who)
        challenge = await connection.wait_for_challenge()
        tags = [["relay", self.relay.url], ["challenge", challenge]]
        fields = {"kind": 22242, "tags": tags, "created_at": int(time.time())}
        event = self._event(who, fields, self._role(whose).key)
        await connection.say(json.dumps(["AUTH", event]))
        await self._expect_ok(who, upcoming)

    async def _expect_ok(self, who: str, upcoming: s.Step | None) -> None:
        """`OK true`, unless the next line is about another answer to it."""
        if upcoming and upcoming.who == who:
            if isinstance(upcoming.act, s.IsCutOff):
                return
            if isinstance(upcoming.act, s.Hears) and upcoming.act.pattern[0] in ("OK", "NOTICE"):
                return
        await self._hear(who, ["OK", s.Name("id"), True, s.Rest()])

    async def _hear(self, who: str, pattern: list[Any]) -> None:
        connection = await self._connection(who)
        names = self._names(who)
        by_verb = pattern[0] in ("OK", "NOTICE", "AUTH") or len(pattern) < 2
        frame = await connection.next(str(made(pattern[0 if by_verb else 1], names)))
        if not alike(self._as_compared(pattern), frame, names):
            raise Failed(f"came instead: {_short(frame)}")

    async def _hear_no(self, who: str, pattern: Any) -> None:
        connection = await self._connection(who)
        await connection.catch_up()
        for frame in connection.unread():
            # A look must not bind: what does not match would leave half a binding behind.
            if alike(self._as_compared(pattern), frame, self._names(who, looking=True)):
                raise Failed(f"came: {_short(frame)}")

    def _as_compared(self, pattern: Any) -> Any:
        """The pattern, or with `texts = prefix` one that asks only for the word of a refusal."""
        if self.manner.texts != "prefix" or not isinstance(pattern, list):
            return pattern
        place = {"OK": 3, "CLOSED": 2, "NOTICE": 1}.get(str(pattern[0]))
        if place is None or len(pattern) <= place:
            return pattern
        if pattern[0] == "NOTICE" or (pattern[0] == "OK" and pattern[2] is True):
            loose = s.Rest()
        else:
            loose = _only_the_word(pattern[place])
        return [*pattern[:place], loose, *pattern[place + 1 :]]

    def _sign(self, who: str, names: tuple[str, ...], template: dict[str, Any]) -> None:
        fields = made(template, self._names(who))
        # Two of one second need not share more than that; the tag tells them apart.
        tags = fields.get("tags", [])
        created_at = fields.get("created_at") or self._next_time()
        versions = [
            fields | {"created_at": created_at, "tags": [*tags, ["n", str(number)]]}
            for number in range(len(names))
        ]
        if len(names) == 1:
            versions = [fields]
        last = self._role(who).last_id
        events = sorted((self._event(who, version) for version in versions), key=lambda e: e["id"])
        self._role(who).last_id = last  # made, not sent
        for name, event in zip(names, events, strict=True):
            self.bound[name] = event["id"]

    def _event(self, who: str, given: Any, key: SecretKey | None = None) -> Any:
        """`given` with what an event needs, the event of this id, or what cannot be one."""
        role = self._role(who)
        if isinstance(given, str) and given in self.events:
            role.last_id = given
            return self.events[given]
        if not isinstance(given, dict):
            return given
        key = key or role.key
        event: dict[str, Any] = {"pubkey": key.pubkey, "kind": 1, "tags": [], "content": ""}
        event |= given
        if "created_at" not in event:
            event["created_at"] = self._next_time()
        hashed: list[Any] = [
            event[name] for name in ("pubkey", "created_at", "kind", "tags", "content")
        ]
        try:
            digest = sha256(id_bytes(*hashed))
        except TypeError:
            raise Unknown("an event that cannot be hashed: send it as text") from None
        event = {"id": digest.hexdigest()} | event
        event = {"sig": key.sign_digest(digest.digest())} | event
        role.last_id = event["id"]
        self.events[event["id"]] = event
        return event

    def _next_time(self) -> int:
        self.made += 1
        return self.now - CREATED_BEFORE_NOW + self.made

    def _role(self, who: str) -> Role:
        return self.roles[who.partition("/")[0]]

    def _names(self, who: str, *, looking: bool = False) -> Names:
        connection = self.connections.get(who)
        local = {
            "id": self._role(who).last_id,
            "challenge": connection.challenge if connection else None,
        }
        local = {name: value for name, value in local.items() if value is not None}
        keys = {name: role.key.pubkey for name, role in self.roles.items()}
        return Names(dict(self.bound) if looking else self.bound, local, keys)

    async def _connection(self, who: str) -> Connection:
        if who not in self.connections:
            addresses = self.relay.addresses
            socket = await _connected(addresses[self.connects % len(addresses)])
            self.connects += 1
            self.connections[who] = Connection(socket, self.manner.patience_s)
        return self.connections[who]

    async def _leave(self, who: str) -> None:
        if who in self.connections:
            await self.connections.pop(who).socket.close()

    async def leave_all(self) -> None:
        for who in list(self.connections):
            await self._leave(who)

    def _report(self, step: s.Step, failed: Exception) -> str:
        lines = [f"{self.script.path}.nostr:{step.line}: {step.text}", f"    {failed}"]
        if step.who in self.connections:
            unread = self.connections[step.who].unread()
            lines += [f"    {step.who} has unread: {_short(frame)}" for frame in unread[:5]]
            names = self._names(step.who)
            for name in dict.fromkeys(_names_in(step.act)):
                value = names.get(name)
                if value is not MISSING:
                    lines.append(f"    ${name} = {_short(value)}")
        return "\n".join(lines)


async def is_there(url: str) -> None:
    """Raises NotThere."""
    try:
        await (await _connected(url)).close()
    except Failed as failed:
        raise NotThere(str(failed)) from None


async def play(script: s.Script, relay: Relay, manner: Manner) -> None:
    """Raises Failed, with the line of the script and what came instead."""
    own = sha256(f"{manner.salt} {script.path}".encode()).hexdigest()[:8]
    now = int(time.time())
    run = Run(
        relay,
        script,
        manner,
        now,
        bound={name: f"{name}-{own}" for name in script.names} | {"now": now, "relay": relay.url},
        roles={
            name: Role(relay.roles.get(name) or cast.person(f"{name} of {own}"))
            for name in script.people
        },
    )
    try:
        await run.play()
    finally:
        await run.leave_all()


async def _connected(url: str) -> ClientConnection:
    """Raises Failed."""
    try:
        # Without `proxy` the library would ask the environment; compression hides sizes.
        return await connect(
            url, compression=None, max_size=None, max_queue=None, ping_interval=None, proxy=None
        )
    except (OSError, TimeoutError, WebSocketException) as failed:
        raise Failed(f"cannot connect to {url}: {failed}") from None


def _only_the_word(text: Any) -> Any:
    if isinstance(text, s.Either):
        return s.Either([_only_the_word(choice) for choice in text.choices])
    return f"{text.partition(':')[0]}:…" if isinstance(text, str) and ":" in text else text


def _mentions(value: Any, name: str) -> bool:
    return name in _names_in(value)


def _names_in(value: Any) -> list[str]:
    match value:
        case s.Name(name):
            return [name]
        case str():
            return [found[2] for found in s.REFERENCE.finditer(value) if found[1] == "$"]
        case list():
            return [name for item in value for name in _names_in(item)]
        case dict():
            return _names_in(list(value.values()))
        case s.Having(items, none_of):
            return _names_in([*items, *none_of])
        case s.Says(inner) | s.Hears(inner) | s.HearsNo(inner):
            return _names_in(inner)
        case s.Either(inner) | s.JsonText(inner) | s.Times(inner):
            return _names_in(inner)
        case _:
            return []


def _code_of(gone: ConnectionClosed) -> int:
    return gone.rcvd.code if gone.rcvd else 1006


def _short(value: Any) -> str:
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    return text if len(text) <= 400 else f"{text[:300]} … {text[-80:]}"
