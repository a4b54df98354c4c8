"""A relay of one page that the runner is tested with: NIP-01 in memory, login, no rules at all."""

from __future__ import annotations

import json
import time
from contextlib import asynccontextmanager
from http import HTTPStatus
from typing import TYPE_CHECKING, Any

from websockets.asyncio.server import ServerConnection, serve

from relay.errors import Invalid, Prefix, Refused
from relay.nostr import messages as m
from relay.nostr.filters import Filter, FilterTerms
from relay.nostr.keys import is_signed
from relay.nostr.kinds import KindClass, class_of
from relay.nostr.nip42 import check_login, relay_address

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from websockets.http11 import Request, Response

    from relay.nostr.event import Event
    from relay.nostr.keys import SecretKey

CHALLENGE = "a challenge that never changes"


class FakeRelay:
    def __init__(self) -> None:
        self.url = ""
        self.roles: dict[str, SecretKey] = {}
        self.restarts = 0
        self.document: dict[str, Any] = {}
        """What it says of itself by NIP-11."""
        self._events: list[Event] = []
        self._subs: dict[ServerConnection, dict[str, tuple[Filter, ...]]] = {}

    @property
    def addresses(self) -> list[str]:
        return [self.url]

    async def settle(self) -> None:
        """It is one process, as far as anybody knows."""

    async def restart(self) -> None:
        self.restarts += 1

    def about(self, connection: ServerConnection, request: Request) -> Response | None:
        if request.headers.get("Accept") != "application/nostr+json":
            return None
        return connection.respond(HTTPStatus.OK, json.dumps(self.document))

    async def client(self, socket: ServerConnection) -> None:
        self._subs[socket] = {}
        await socket.send(m.auth_challenge(CHALLENGE), text=True)
        async for text in socket:
            await self._answer(socket, m.parse(text, FilterTerms(), 20))
        del self._subs[socket]

    async def _answer(self, socket: ServerConnection, message: m.ClientMessage) -> None:
        match message:
            case m.Publish(event):
                frame = self._verdict(event)
                await socket.send(frame, text=True)
                if b'true,""' in frame:
                    await self._send_live(event)
            case m.Login(event):
                here = relay_address(self.url)
                assert here is not None
                try:
                    check_login(event, CHALLENGE, frozenset({here}), int(time.time()))
                except Invalid as refused:
                    await socket.send(m.ok(event.id, refused), text=True)
                else:
                    await socket.send(m.ok(event.id, None), text=True)
            case m.Subscribe(sub, filters):
                head = m.event_head(sub)
                for event in self._found(filters):
                    await socket.send(m.event_frame(head, event.raw), text=True)
                await socket.send(m.eose(sub), text=True)
                self._subs[socket][sub] = filters
            case m.Count(sub, filters):
                await socket.send(m.count(sub, len(self._found(filters))), text=True)
            case m.Close(sub):
                self._subs[socket].pop(sub, None)
            case m.BadEvent(id_, refused):
                await socket.send(m.ok(id_, refused), text=True)
            case m.BadQuery(sub, refused):
                await socket.send(m.closed(sub, refused), text=True)
            case m.BadFrame(refused):
                await socket.send(m.notice(refused), text=True)
                if "goodbye" in refused.text:
                    await socket.close(1008)

    def _verdict(self, event: Event) -> bytes:
        if not is_signed(event):
            return m.ok(event.id, Invalid("sig: is not this author's"))
        if event in self._events:
            return m.ok_text(event.id, "duplicate: already have this event", accepted=True)
        its_class = class_of(event.kind)
        if its_class in (KindClass.REPLACEABLE, KindClass.ADDRESSABLE):
            d = event.d if its_class is KindClass.ADDRESSABLE else ""
            for old in self._events:
                same = (old.kind, old.pubkey) == (event.kind, event.pubkey) and d in ("", old.d)
                if same and (-old.created_at, old.id) < (-event.created_at, event.id):
                    return m.ok(event.id, Refused(Prefix.DUPLICATE, "a newer version is stored"))
                if same:
                    self._events.remove(old)
        if its_class is not KindClass.EPHEMERAL:
            self._events.append(event)
        return m.ok(event.id, None)

    def _found(self, filters: tuple[Filter, ...]) -> list[Event]:
        found: dict[str, Event] = {}
        ordered = sorted(self._events, key=lambda event: (-event.created_at, event.id))
        for filter_ in filters:
            some = [event for event in ordered if filter_.matches(event)]
            found |= {event.id: event for event in some[: filter_.limit]}
        return [event for event in ordered if event.id in found]

    async def _send_live(self, event: Event) -> None:
        for socket, subs in self._subs.items():
            for sub, filters in subs.items():
                if any(filter_.matches(event) for filter_ in filters):
                    await socket.send(m.event_frame(m.event_head(sub), event.raw), text=True)


@asynccontextmanager
async def fake_relay() -> AsyncIterator[FakeRelay]:
    relay = FakeRelay()
    async with serve(
        relay.client, "127.0.0.1", 0, compression=None, process_request=relay.about
    ) as server:
        relay.url = f"ws://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        yield relay
