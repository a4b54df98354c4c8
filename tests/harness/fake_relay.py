"""A minimal in-process relay for client tests: no rules, no disk, no signature checks.

Tests replace the reaction to a verb by an entry of `on`; `until` waits for what the client makes it
see, so that no test sleeps.
"""

from __future__ import annotations

from array import array
from typing import TYPE_CHECKING, Any

import aiohttp
import orjson
from aiohttp import web

from relay.client.connection import Notifier
from relay.client.sync import items_of
from relay.nostr import messages
from relay.nostr.event import event_from
from relay.nostr.filters import FilterTerms, filter_from
from relay.nostr.nip77 import reply_to

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence
    from typing import Self

    from relay.nostr.event import Event
    from relay.nostr.filters import Filter
    from relay.nostr.nip77 import Items

    Answer = Callable[["Visitor", list[Any]], Awaitable[None]]

_TERMS = FilterTerms()


def items(events: Sequence[Event]) -> Items:
    timestamps = array("Q", (event.created_at for event in events))
    return items_of(timestamps, b"".join(bytes.fromhex(event.id) for event in events))


class Visitor:
    """One connection of a client."""

    def __init__(self, socket: web.WebSocketResponse, request: web.Request) -> None:
        self.subs: dict[str, tuple[Filter, ...]] = {}
        self.sets: dict[str, Items] = {}
        self.keys: set[str] = set()
        self.challenge = f"challenge-{id(self)}"
        self._socket = socket
        self._request = request

    async def say(self, *frame: object) -> None:
        await self._socket.send_str(orjson.dumps(frame).decode())

    async def say_ok(self, event_id: str, text: str = "") -> None:
        await self.say(*orjson.loads(messages.ok_text(event_id, text, accepted=True)))

    async def say_no(self, event_id: str, text: str) -> None:
        await self.say(*orjson.loads(messages.ok_text(event_id, text, accepted=False)))

    async def show(self, sub: str, event: Event) -> None:
        await self.say("EVENT", sub, orjson.loads(event.raw))

    async def hang_up(self, code: int = aiohttp.WSCloseCode.GOING_AWAY) -> None:
        await self._socket.close(code=code)

    def drop_connection(self) -> None:
        """The connection ends without a word, as when a cable is pulled."""
        if self._request.transport is not None:
            self._request.transport.abort()


async def ignoring(visitor: Visitor, frame: list[Any]) -> None:
    """It came, and nobody answers."""


def refusing(text: str) -> Answer:
    """To each event, or login: OK false."""

    async def answer(visitor: Visitor, frame: list[Any]) -> None:
        await visitor.say_no(frame[1]["id"], text)

    return answer


def closing(text: str) -> Answer:
    """To each query: CLOSED."""

    async def answer(visitor: Visitor, frame: list[Any]) -> None:
        await visitor.say("CLOSED", frame[1], text)

    return answer


class FakeRelay:
    """`async with FakeRelay() as relay:` listens on `relay.url`."""

    def __init__(self) -> None:
        self.events: list[Event] = []
        self.seen: list[list[Any]] = []
        """Every frame that came, in order, over all connections."""
        self.visitors: list[Visitor] = []
        self.visits = 0
        self.information: object = {"name": "a fake"}
        self.challenges_at_once = False
        self.most_rows = 500
        self.most_records = 1_000_000
        """Of a negentropy set."""
        self.frame_bytes = 500_000
        """Of a negentropy message."""
        self.on: dict[str, Answer] = {
            "EVENT": self.take,
            "REQ": self.answer,
            "COUNT": self.count,
            "CLOSE": self.close,
            "AUTH": self.log_in,
            "NEG-OPEN": self.negotiate,
            "NEG-MSG": self.negotiate,
            "NEG-CLOSE": self.end_negotiation,
        }
        self.port = 0
        self._changed = Notifier()

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.stop()

    @property
    def url(self) -> str:
        return f"ws://127.0.0.1:{self.port}"

    async def start(self) -> None:
        """On the port it had before, if it had one."""
        app = web.Application()
        app.router.add_get("/", self._visit)
        self._runner = web.AppRunner(app, shutdown_timeout=0.1)
        await self._runner.setup()
        await web.TCPSite(self._runner, "127.0.0.1", self.port).start()
        self.port = self._runner.addresses[0][1]

    async def stop(self) -> None:
        for visitor in list(self.visitors):
            visitor.drop_connection()
        await self._runner.cleanup()

    async def until(self, condition: Callable[[], bool]) -> None:
        """Asks again with each frame, connection and departure."""
        await self._changed.wait_for(condition)

    def verbs(self, verb: str) -> list[list[Any]]:
        return [frame for frame in self.seen if frame[0] == verb]

    def drop_connection(self) -> None:
        for visitor in list(self.visitors):
            visitor.drop_connection()

    async def publish(self, event: Event) -> None:
        """Store an event and deliver it, as if somebody else had sent it."""
        self.events.append(event)
        for visitor in list(self.visitors):
            for sub, filters in visitor.subs.items():
                if any(filter_.matches(event) for filter_ in filters):
                    await visitor.show(sub, event)

    async def take(self, visitor: Visitor, frame: list[Any]) -> None:
        event = event_from(frame[1])
        if any(stored.id == event.id for stored in self.events):
            await visitor.say_ok(event.id, "duplicate: already have this event")
        else:
            await self.publish(event)
            await visitor.say_ok(event.id)

    async def answer(self, visitor: Visitor, frame: list[Any]) -> None:
        sub, filters = frame[1], self.filters_in(frame)
        visitor.subs[sub] = filters
        for event in self.rows(filters):
            await visitor.show(sub, event)
        await visitor.say("EOSE", sub)

    async def count(self, visitor: Visitor, frame: list[Any]) -> None:
        filters = self.filters_in(frame)
        number = sum(any(filter_.matches(event) for filter_ in filters) for event in self.events)
        await visitor.say("COUNT", frame[1], {"count": number})

    async def close(self, visitor: Visitor, frame: list[Any]) -> None:
        visitor.subs.pop(frame[1], None)

    async def negotiate(self, visitor: Visitor, frame: list[Any]) -> None:
        """NEG-OPEN and NEG-MSG."""
        sub = frame[1]
        if frame[0] == "NEG-OPEN":
            filter_ = filter_from(frame[2], _TERMS)
            rows = [event for event in self.events if filter_.matches(event)]
            if len(rows) > self.most_records:
                await visitor.say("NEG-ERR", sub, "blocked: too many records", self.most_records)
                return
            visitor.sets[sub] = items(rows)
        reply = reply_to(bytes.fromhex(frame[-1]), visitor.sets[sub], self.frame_bytes)
        await visitor.say("NEG-MSG", sub, reply.hex())

    async def end_negotiation(self, visitor: Visitor, frame: list[Any]) -> None:
        visitor.sets.pop(frame[1], None)

    async def log_in(self, visitor: Visitor, frame: list[Any]) -> None:
        event = event_from(frame[1])
        if event.tag("challenge") == visitor.challenge and event.tag("relay") == self.url:
            visitor.keys.add(event.pubkey)
            await visitor.say_ok(event.id)
        else:
            await visitor.say_no(event.id, "invalid: not this challenge")

    def filters_in(self, frame: list[Any]) -> tuple[Filter, ...]:
        return tuple(filter_from(value, _TERMS) for value in frame[2:])

    def rows(self, filters: tuple[Filter, ...]) -> list[Event]:
        newest_first = sorted(self.events, key=lambda event: (-event.created_at, event.id))
        rows: dict[str, Event] = {}
        for filter_ in filters:
            most = self.most_rows if filter_.limit is None else min(filter_.limit, self.most_rows)
            for event in [event for event in newest_first if filter_.matches(event)][:most]:
                rows[event.id] = event
        return sorted(rows.values(), key=lambda event: (-event.created_at, event.id))

    async def _visit(self, request: web.Request) -> web.StreamResponse:
        if "application/nostr+json" in request.headers.get("Accept", ""):
            return web.Response(
                body=orjson.dumps(self.information), content_type="application/nostr+json"
            )
        socket = web.WebSocketResponse(max_msg_size=2**20, compress=False)
        await socket.prepare(request)
        visitor = Visitor(socket, request)
        self.visitors.append(visitor)
        self.visits += 1
        self._changed.notify_all()
        try:
            if self.challenges_at_once:
                await visitor.say("AUTH", visitor.challenge)
            async for message in socket:
                if message.type is aiohttp.WSMsgType.TEXT:
                    frame = orjson.loads(message.data)
                    self.seen.append(frame)
                    await self.on[frame[0]](visitor, frame)
                    self._changed.notify_all()
        except ConnectionError:
            pass  # the client went while we spoke
        finally:
            self.visitors.remove(visitor)
            self._changed.notify_all()
        return socket
