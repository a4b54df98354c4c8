"""A client, its socket, and what it noted of its subscriptions and of what it sent."""

from __future__ import annotations

import asyncio
from collections import deque
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import orjson
from aiohttp import WSMsgType

from tests.faults.simulated.promises import END, Asked, tag
from tests.harness.client_in_memory import payloads

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Mapping

    from relay.nostr.event import Event
    from relay.nostr.keys import SecretKey
    from tests.faults.simulated.loop import SimulatedLoop
    from tests.faults.simulated.promises import Promises


@dataclass(frozen=True, slots=True)
class _Frame:
    type: WSMsgType
    data: bytes


_CLOSED: Final = _Frame(WSMsgType.CLOSED, b"")


class Socket:
    """What `Connection` uses of aiohttp: the websocket, its request and its transport."""

    def __init__(self, heard: Callable[[Any], None]) -> None:
        self._heard = heard
        self._frames: asyncio.Queue[_Frame | None] = asyncio.Queue()
        self._unread = 0
        self._reads = asyncio.Event()
        self._reads.set()
        self.is_cut = False
        self._leave: asyncio.Timeout | None = None
        self.transport = self.protocol = self.writer = self
        self.silent_s = 0.0
        self.compress = self.taken = self.taken_bytes = 0

    def send(self, frame: bytes) -> None:
        self._frames.put_nowait(_Frame(WSMsgType.TEXT, frame))

    def cut(self) -> None:
        """Nothing arrives any more, on either side."""
        self.is_cut = True
        self._frames.put_nowait(None)
        self._reads.set()
        leave, self._leave = self._leave, None
        if leave is not None:
            leave.reschedule(0)

    def stop_reading(self) -> None:
        self._reads.clear()

    def read_on(self) -> None:
        self._unread = 0
        self._reads.set()

    # the relay's end

    async def prepare(self, request: object) -> None:
        pass

    def carries(self, messages: object) -> None:
        pass

    @asynccontextmanager
    async def while_open(self) -> AsyncIterator[None]:
        """As `SocketInput.while_open`."""
        if self.is_cut:
            raise ConnectionResetError
        try:
            async with asyncio.timeout(None) as self._leave:
                yield
        except TimeoutError:
            raise ConnectionResetError from None
        finally:
            self._leave = None

    @asynccontextmanager
    async def waiting(self, _size: int, *, is_kept: bool = False) -> AsyncIterator[None]:
        """As `SocketInput.waiting`."""
        if is_kept:
            yield
        else:
            async with self.while_open():
                yield

    async def next(self) -> _Frame:
        frame = await self._frames.get()
        return _CLOSED if frame is None or self.is_cut else frame

    def write(self, data: bytes) -> None:
        if self.is_cut:
            return
        if not self._reads.is_set():
            self._unread += len(data)
        for payload in payloads(data):
            self._heard(orjson.loads(payload))

    async def close(self, *, code: int, message: bytes, drain: bool) -> bool:
        self.cut()
        return True

    async def drain(self) -> None:
        await self._reads.wait()

    def get_write_buffer_size(self) -> int:
        return self._unread

    def is_closing(self) -> bool:
        return self.is_cut

    def abort(self) -> None:
        self.cut()


class Client:
    """One connection, logged in with at most one key."""

    def __init__(self, name: str, key: SecretKey | None, promises: Promises) -> None:
        self.name = name
        self.key = key
        self._promises = promises
        self.keys: frozenset[str] = frozenset()
        """Those that logged in."""
        self.asked: dict[str, Asked] = {}
        self.due: dict[str, deque[tuple[Event, int, int, int, frozenset[str]]]] = {}
        """By id: what was sent and not answered, its number, and the faults, known commits and keys
        until then: an event may be judged before a login that is answered sooner."""
        self.numbers: dict[str, int] = {}
        """COUNTs that were answered."""
        self.challenge = ""
        self.closing: list[str] = []
        """Subscriptions for which CLOSE was sent."""
        self._login = ""
        self._sent = 0
        self._confirmed = 0
        self.socket = Socket(self._hears)
        self.trace: Callable[[str], None] = lambda _: None

    @property
    def _loop(self) -> SimulatedLoop:
        loop: Any = asyncio.get_running_loop()
        return loop  # type: ignore[no-any-return]

    # what it does

    def says(self, *frame: object) -> None:
        self.socket.send(orjson.dumps(frame))

    def logs_in(self, url: str, now: int) -> None:
        if self.key is not None and self.challenge and not self._login:
            tags = [["relay", url], ["challenge", self.challenge]]
            login = self.key.sign(22242, tags, "", now)
            self._login = login.id
            self.socket.send(b'["AUTH",' + login.raw + b"]")

    def publishes(self, event: Event) -> None:
        self._sent += 1
        if event.kind == END:
            self._promises.groups_to_end.add(tag(event, "h"))
        waiting = self.due.setdefault(event.id, deque())
        known = self._promises.faults, self._promises.known, self.keys
        waiting.append((event, self._sent, *known))
        self.socket.send(b'["EVENT",' + event.raw + b"]")

    def asks(self, sub: str, *filters: Mapping[str, Any]) -> None:
        self.asked[sub] = Asked(filters, self.keys, self._promises.known)
        self.says("REQ", sub, *filters)

    # what it hears

    def _hears(self, frame: list[Any]) -> None:
        match frame:
            case ["AUTH", str(challenge)]:
                self.challenge = challenge
            case ["OK", str(event_id), bool(accepted), str(text)]:
                self._hears_ok(event_id, text, accepted=accepted)
            case ["EVENT", str(sub), dict(fields)]:
                self.trace(f"{self.name} {sub} {fields['id']}")
                asked = self.asked.get(sub)
                if asked is None:
                    raise self._promises.broken(
                        f"an event came for {sub}, which was never asked for"
                    )
                self._promises.sent_event(asked, fields["id"], self.keys, self._loop.iteration)
            case ["EOSE", str(sub)]:
                self.trace(f"{self.name} {sub} EOSE")
                self._promises.sent_eose(self.asked[sub])
            case ["CLOSED", str(sub), str(text)]:
                self.trace(f"{self.name} {sub} {text}")
                if sub in self.asked:
                    self.asked[sub].is_closed = True
                else:
                    self.numbers[sub] = -1
            case ["COUNT", str(sub), dict(answer)]:
                self.numbers[sub] = answer["count"]
            case _:
                raise self._promises.broken(f"nobody asked for {frame}")

    def _hears_ok(self, event_id: str, text: str, *, accepted: bool) -> None:
        if event_id == self._login:
            if not accepted or self.key is None:
                raise self._promises.broken(f"a login was refused: {text}")
            self.keys |= {self.key.pubkey}
            return
        self.trace(f"{self.name} {event_id} {accepted} {text}")
        waiting = self.due.get(event_id)
        if not waiting:
            raise self._promises.broken(f"event {event_id[:8]} was answered twice")
        event, number, faults, at, keys = waiting.popleft()
        if not waiting:
            del self.due[event_id]
        self._promises.answered(event, text, faults, accepted=accepted, keys=keys, at=at)
        if accepted and not text:
            if number < self._confirmed:
                raise self._promises.broken(f"event {event_id[:8]} was confirmed after a later one")
            self._confirmed = number
