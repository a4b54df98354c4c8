"""relay/server/app.py: one port, four kinds of request; started and stopped in order.

`serving` is a whole relay in this process, on a free port and the reference store; the tests of
`http` and `connection` use it too.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import gc
import os
import resource
import socket
import sys
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import partial
from ipaddress import ip_address
from pathlib import Path
from tempfile import TemporaryDirectory
from time import perf_counter
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import orjson
import pytest
from aiohttp import ClientSession, TCPConnector, WSMsgType, WSServerHandshakeError, web
from blockbuster import blockbuster_ctx

from policies import load
from relay.access.management import ListChange, ListName
from relay.config import config_from
from relay.errors import UserError
from relay.groups.group import Groups
from relay.memory.systems import MEMORY_SYSTEMS
from relay.nostr.nip42 import relay_address
from relay.observe import Metrics, Readiness
from relay.read.fanout import Fanout
from relay.read.linked_rows import LinkedRows
from relay.read.negentropy import Negentropy
from relay.read.outbox import FlushQueue
from relay.read.query import QueryRunner
from relay.read.query_queue import QueryQueue
from relay.read.stored import StoredRows
from relay.read.versions import VersionReader
from relay.server import app, eviction
from relay.server.app import Server
from relay.server.connection import Stop
from relay.server.eviction import HttpSockets, places_of
from relay.server.history import HistoryRequests
from relay.server.listening import bound_sockets, has_ipv6_loopback
from relay.server.nip86 import UsedAuthorizations
from relay.server.receipts import Receipts
from relay.server.socket_input import SocketInput
from relay.server.turns import Slice, Turns
from relay.server.websocket import RelaySocket
from relay.state import RelayState
from relay.write.ingest import Ingest
from relay.write.invitations import Invitations
from tests.cast import alice, owner, person, robot
from tests.harness.controlled_store import ControlledStore
from tests.harness.folders import loaded, written
from tests.harness.patience import ANSWER_S
from tests.harness.relay_program import eventually

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Sequence

    from aiohttp import ClientResponse, ClientWebSocketResponse

    from relay.config import Config
    from relay.nostr.event import Event
    from relay.nostr.filters import FilterTerms
    from relay.nostr.keys import SecretKey
    from relay.server.app import Pages
    from relay.server.connection import Connection

RELAY = person("relay")
NOW = 1_772_000_000
OPEN = '[[rule]]\nname = "known people write"\nenabled = false\n'


@dataclass
class Relay:
    server: Server
    disk: ControlledStore
    state: RelayState
    fanout: Fanout
    ingest: Ingest
    metrics: Metrics
    readiness: Readiness
    browser: ClientSession

    @property
    def at(self) -> str:
        """Its URL but for the scheme."""
        return f"127.0.0.1:{self.server.port}"

    async def get(self, path: str = "/", **headers: str) -> ClientResponse:
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        response = await self.browser.get(f"http://{self.at}{path}", headers=named)
        await response.read()
        return response

    async def visit(self, path: str = "/", host: str = "127.0.0.1", **headers: str) -> Visit:
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        url = f"ws://{host}:{self.server.port}{path}"
        visit = Visit(await self.browser.ws_connect(url, headers=named, max_msg_size=0))
        (_, visit.challenge) = await visit.hears()
        return visit

    async def counts(self, name: str, **headers: str) -> float:
        """What /metrics says of a number."""
        page = await (await self.get("/metrics", **headers)).text()
        return next(
            float(line.split()[-1]) for line in page.splitlines() if line.startswith(f"{name} ")
        )

    async def is_left(self) -> None:
        """Until no connection is open: the relay notices a close after the client does."""
        while await self.counts("rookery_connections"):
            pass


class Visit:
    """One connection of a client."""

    def __init__(self, socket: ClientWebSocketResponse) -> None:
        self.socket = socket
        self.challenge = ""

    async def says(self, *frame: object) -> None:
        await self.socket.send_str(orjson.dumps(frame).decode())

    async def hears(self) -> list[Any]:
        """The next frame; `["closed", code]` at the end."""
        message = await self.socket.receive(timeout=ANSWER_S)
        if message.type is not WSMsgType.TEXT:
            return ["closed", self.socket.close_code]
        frame: list[Any] = orjson.loads(message.data)
        return frame

    async def hears_all(self) -> list[list[Any]]:
        """Every frame to the end."""
        frames = [await self.hears()]
        while frames[-1][0] != "closed":
            frames.append(await self.hears())
        return frames

    async def publishes(self, event: Event) -> tuple[bool, str]:
        await self.says("EVENT", orjson.loads(event.raw))
        verb, event_id, accepted, text = await self.hears()
        assert (verb, event_id) == ("OK", event.id)
        return accepted, text

    async def asks(self, *filters: dict[str, object], sub: str = "s") -> list[list[Any]]:
        """The frames of a REQ up to EOSE or CLOSED."""
        await self.says("REQ", sub, *filters)
        frames = [await self.hears()]
        while frames[-1][0] == "EVENT":
            frames.append(await self.hears())
        return frames

    async def logs_in(self, who: SecretKey, relay: str) -> tuple[bool, str]:
        tags = [["relay", relay], ["challenge", self.challenge]]
        login = who.sign(22242, tags, "", NOW)
        await self.says("AUTH", orjson.loads(login.raw))
        verb, event_id, accepted, text = await self.hears()
        assert (verb, event_id) == ("OK", login.id)
        return accepted, text


@dataclass(frozen=True)
class Services:
    """`ServerServices` on the reference store."""

    config: Config
    relay_pubkey: str
    clock: Callable[[], int]
    terms: FilterTerms
    metrics: Metrics
    readiness: Readiness
    store: ControlledStore
    state: RelayState
    ingest: Ingest
    invitations: Invitations
    fanout: Fanout
    queries: QueryRunner
    stored: StoredRows
    negentropy: Negentropy
    flush_queue: FlushQueue
    history: HistoryRequests
    receipts: Receipts
    used_calls: UsedAuthorizations


@asynccontextmanager
async def serving(
    config: str = "",
    policy: str = OPEN,
    host: str = "127.0.0.1",
    port: int = 0,
    pages: Callable[[Services, Server], Pages] | None = None,
) -> AsyncIterator[Relay]:
    """A relay with these settings (rookery.toml) and policies, at work; its clock stands.

    `pages` makes its web console.
    """
    with TemporaryDirectory() as folder, ThreadPoolExecutor(2) as verifiers:
        settings = config_from(config, Path(folder) / "rookery.toml")
        actors = f'owners = ["{owner.npub}"]\nagents = ["{robot.npub}"]\n'
        files = written(Path(folder), a=f"[actors]\n{actors}", b=policy)
        state = RelayState(load(files, MEMORY_SYSTEMS, RELAY.pubkey), Groups())
        disk, fanout, metrics, readiness = ControlledStore(), Fanout(state), Metrics(), Readiness()
        ingest = Ingest(
            disk,
            state,
            RELAY,
            fanout,
            clock=lambda: NOW,
            verifiers=verifiers,
            metrics=metrics,
            is_here=lambda _: False,
        )
        invitations = Invitations.of(state, ingest, RELAY, lambda: NOW)
        queries = QueryRunner(
            disk,
            state,
            fanout,
            settings.limits,
            clock=lambda: NOW,
            metrics=metrics,
            invites=invitations,
        )
        negentropy = Negentropy(disk, state, settings.limits, clock=lambda: NOW, workers=verifiers)
        flush_queue = FlushQueue(asyncio.get_running_loop().call_soon, metrics.traffic)
        used_calls = UsedAuthorizations(0)
        services = Services(
            config=settings,
            relay_pubkey=RELAY.pubkey,
            clock=lambda: NOW,
            terms=settings.storage.terms,
            metrics=metrics,
            readiness=readiness,
            store=disk,
            state=state,
            ingest=ingest,
            invitations=invitations,
            fanout=fanout,
            queries=queries,
            stored=StoredRows(queries),
            negentropy=negentropy,
            flush_queue=flush_queue,
            history=HistoryRequests(
                state,
                VersionReader(disk, state, LinkedRows(disk, state, lambda: NOW), lambda: NOW),
                lambda: NOW,
                used_calls,
            ),
            receipts=Receipts(state, disk, RELAY, lambda: NOW, used_calls),
            used_calls=used_calls,
        )
        server = Server(services, bound_sockets(host, port), host)
        if pages is not None:
            server.show(pages(services, server))
        with blockbuster_ctx("relay") as blockbuster:
            # What /proc tells of this process is on no disk.
            for read in blockbuster.functions.values():
                read.can_block_in("prometheus_client/process_collector.py", "collect")
            async with ClientSession() as browser, ingest, server:
                try:
                    yield Relay(server, disk, state, fanout, ingest, metrics, readiness, browser)
                finally:
                    disk.may_commit.set()  # the relay commits what it has before it stops


NOTE = alice.sign(1, [], "tea is ready", NOW)


# four kinds of request ---------------------------------------------------------------------------


@pytest.mark.proves("N11-01", "N11-02", "N11-25")
async def test_one_address_serves_websocket_nip11_page_and_preflight() -> None:
    """N11-25: a relay, its document, a page, and what browsers ask before."""
    async with serving('[relay]\nname = "Tea & <b>cakes</b>"\n') as relay:
        visit = await relay.visit()
        assert await visit.publishes(NOTE) == (True, "")
        document = await relay.get(Accept="text/html, application/nostr+json;v=1")
        assert document.content_type == "application/nostr+json"
        assert (await document.json(content_type=None))["name"] == "Tea & <b>cakes</b>"
        page = await relay.get(Accept="text/html")
        assert page.content_type == "text/html"
        assert "Tea &amp; &lt;b&gt;cakes&lt;/b&gt;" in await page.text()
        preflight = await relay.browser.options(f"http://{relay.at}/")
        assert preflight.status == 204
        for response in (document, page, preflight):  # N11-02
            allowed = {key: value for key, value in response.headers.items() if "Allow" in key}
            assert allowed["Access-Control-Allow-Origin"] == "*"
            assert allowed["Access-Control-Allow-Headers"] == "*"
            assert "GET, POST, OPTIONS" in allowed["Access-Control-Allow-Methods"]


@pytest.mark.proves("N11-07", "N11-24")
async def test_nip11_names_the_relay_key_and_no_group() -> None:
    """N11-07, N11-24: `self` is the author of all that the relay says of its groups."""
    async with serving() as relay:
        visit = await relay.visit()
        made = robot.sign(9007, [["h", "secret-den"]], "", NOW)
        named = robot.sign(9002, [["h", "secret-den"], ["name", "The den"]], "", NOW)
        for event in (made, named):
            assert await visit.publishes(event) == (True, "")
        *states, eose = await visit.asks({"kinds": [9000, *range(39000, 39006)]})
        assert eose == ["EOSE", "s"]
        text = await (await relay.get(Accept="application/nostr+json")).text()
        assert {state[2]["pubkey"] for state in states} == {orjson.loads(text)["self"]}
        for private in ("secret-den", "The den", robot.pubkey):
            assert private not in text


@pytest.mark.proves("N01-57")
async def test_the_path_of_the_url_is_the_endpoint() -> None:
    """N01-57: other paths are not found; health is asked where it always is."""
    async with serving('[relay]\nurl = "wss://relay.example/tea/"\n') as relay:
        visit = await relay.visit("/tea")
        assert await visit.asks({}) == [["EOSE", "s"]]
        assert (await relay.get("/tea", Accept="application/nostr+json")).status == 200
        assert (await relay.get("/tea/", Accept="application/nostr+json")).status == 200
        assert await (await relay.visit("/tea/")).asks({}) == [["EOSE", "s"]]
        assert [(await relay.get(path)).status for path in ("/", "/coffee")] == [404, 404]
        assert (await relay.get("/healthz")).status == 200


async def test_health_and_readiness_are_separate(monkeypatch: pytest.MonkeyPatch) -> None:
    """The process; the store; and a policy file that failed to load."""
    monkeypatch.setattr("relay.server.app._CHECK_EVERY_S", -1.0)  # ask the store each time
    async with serving() as relay:
        ready = await relay.get("/readyz")
        assert (ready.status, await ready.text()) == (200, "ok\n")
        relay.readiness.note("policies", "20-mine.toml:3: unknown key")
        ready = await relay.get("/readyz")
        assert ready.status == 200
        assert await ready.text() == "policies: 20-mine.toml:3: unknown key\n"
        # Others are told whether, not why.
        ready = await relay.get("/readyz", X_Forwarded_For="203.0.113.9")
        assert (ready.status, await ready.text()) == (200, "ok\n")
    async with serving() as relay:
        relay.disk.is_full = True
        ready = await relay.get("/readyz")
        assert ready.status == 503
        assert "store: cannot write" in await ready.text()
        ready = await relay.get("/readyz", X_Forwarded_For="203.0.113.9")
        assert (ready.status, await ready.text()) == (503, "not ready\n")
        assert (await relay.get("/healthz")).status == 200
        relay.disk.is_full, relay.disk.has_little_space = False, True
        ready = await relay.get("/readyz")
        assert ready.status == 503
        assert await ready.text() == "store: the disk is nearly full: only owners can write\n"


@pytest.mark.parametrize(
    ("config", "forwarded", "status"),
    [
        ("", {}, 200),
        ("", {"X_Forwarded_For": "127.0.0.1"}, 403),
        ("", {"Forwarded": "for=127.0.0.1"}, 403),
        ("", {"X_Real_IP": "127.0.0.1"}, 403),
        ('trusted_proxies = ["127.0.0.1/32"]', {"X_Forwarded_For": "10.1.2.3"}, 403),
        (
            'trusted_proxies = ["127.0.0.1/32"]\nmetrics_from = ["10.1.2.3/32"]',
            {"X_Forwarded_For": "10.1.2.3"},
            200,
        ),
        ('metrics_from = ["10.0.0.0/8"]', {}, 403),
        ("metrics_from = []", {}, 403),
    ],
)
async def test_metrics_are_shown_to_metrics_from_only(
    config: str, forwarded: dict[str, str], status: int
) -> None:
    """A proxy on the same machine does not open them."""
    async with serving(f"[server]\n{config}\n") as relay:
        shown = await relay.get("/metrics", **forwarded)
        assert shown.status == status
        assert ("rookery_connections" in await shown.text()) is (status == 200)


async def test_metrics_count_open_connections_and_subscriptions() -> None:
    async with serving() as relay:
        visit = await relay.visit()
        await visit.asks({})
        await visit.asks({}, sub="t")
        await visit.publishes(NOTE)
        assert await relay.counts("rookery_connections") == 1
        assert await relay.counts("rookery_subscriptions") == 2
        assert await relay.counts("rookery_live_deliveries_total") == 2
        await visit.socket.close()
        await relay.is_left()
        assert await relay.counts("rookery_subscriptions") == 0


# who comes in ------------------------------------------------------------------------------------

_ASKS_FOR_WEBSOCKET = {
    "Connection": "Upgrade",
    "Upgrade": "websocket",
    "Sec_WebSocket_Version": "13",
    "Sec_WebSocket_Key": "dGhlIHNhbXBsZSBub25jZQ==",
}


async def test_max_connections_is_enforced_and_freed_on_close() -> None:
    """`[limits] max_connections`."""
    async with serving("[limits]\nmax_connections = 2\n") as relay:
        one, _two = await relay.visit(), await relay.visit()
        refused = await relay.get(**_ASKS_FOR_WEBSOCKET)
        assert refused.status == 503
        assert refused.headers["Retry-After"] == "30"
        await one.socket.close()
        while await relay.counts("rookery_connections") > 1:
            pass
        assert await (await relay.visit()).asks({}) == [["EOSE", "s"]]
        assert await relay.counts("rookery_connections_refused_total") == 1


@pytest.mark.proves("N01-58")
async def test_connections_per_address_is_enforced() -> None:
    """N01-58: counted by where a trusted proxy says that they come from."""
    proxied = 'connections_per_address = 1\n[server]\ntrusted_proxies = ["127.0.0.1/32"]\n'
    async with serving(f"[limits]\n{proxied}") as relay:
        visit = await relay.visit(X_Forwarded_For="10.0.0.1")
        await relay.visit(X_Forwarded_For="10.0.0.2")
        own = await relay.visit()  # of the proxy itself, which is not loopback here
        for address in ({"X_Forwarded_For": "10.0.0.1"}, {}):
            again = {**_ASKS_FOR_WEBSOCKET, **address}
            assert (await relay.get(**again)).status == 429
        await visit.socket.close()
        assert not own.socket.closed
        while await relay.counts("rookery_connections", X_Forwarded_For="127.0.0.1, 127.0.0.2") > 2:
            pass
        await relay.visit(X_Forwarded_For="10.0.0.1")


async def test_an_ipv6_network_counts_as_one_address() -> None:
    proxied = 'connections_per_address = 1\n[server]\ntrusted_proxies = ["127.0.0.1/32"]\n'
    async with serving(f"[limits]\n{proxied}") as relay:
        one = await relay.visit(X_Forwarded_For="2001:db8::1")
        other = await relay.visit(X_Forwarded_For="2001:db8:0:1::1")
        again = {**_ASKS_FOR_WEBSOCKET, "X_Forwarded_For": "2001:db8::ffff"}
        assert (await relay.get(**again)).status == 429
        for visit in (one, other):
            assert await visit.asks({}) == [["EOSE", "s"]]


async def test_programs_of_this_machine_are_not_counted() -> None:
    """Also behind a proxy that `trusted_proxies` does not name: all would count as one."""
    async with serving("[limits]\nconnections_per_address = 1\n") as relay:
        proxied = {"X_Forwarded_For": "10.0.0.1"}
        asked: tuple[dict[str, str], ...] = ({}, {}, proxied, proxied)
        visits = [await relay.visit(**headers) for headers in asked]
        assert await relay.counts("rookery_connections") == len(visits)


PROXIED = '[relay]\nurl = "ws://relay.example"\n[server]\ntrusted_proxies = ["127.0.0.1/32"]\n'


async def test_one_address_cannot_keep_all_others_out() -> None:
    """When all places are taken, those lose one who have most that nobody known is logged in on."""
    async with serving(PROXIED + "[limits]\nmax_connections = 4\n") as relay:
        known = await relay.visit(X_Forwarded_For="10.0.0.1")
        assert await known.logs_in(owner, "ws://relay.example") == (True, "")
        crowd = [await relay.visit(X_Forwarded_For="10.0.0.1") for _ in range(3)]
        first = await relay.visit(X_Forwarded_For="10.0.0.2")
        assert await crowd[0].hears() == ["closed", 1013]
        second = await relay.visit(X_Forwarded_For="10.0.0.3")
        assert await crowd[1].hears() == ["closed", 1013]
        # Two of one address, one of each of two others: a third other one would have as many.
        again = {**_ASKS_FOR_WEBSOCKET, "X_Forwarded_For": "10.0.0.2"}
        assert (await relay.get(**again)).status == 503
        for visit in (known, crowd[2], first, second):
            assert await visit.asks({}) == [["EOSE", "s"]]


async def test_a_network_opens_no_further_connections_while_many_are_still_being_closed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Clients that left at once and came again had 8,000 connections that waited for turns to end:
    they had no place, and took 2 MB more each second."""
    monkeypatch.setattr(app, "_MOST_ENDING", 2)
    may_end, leave = asyncio.Event(), QueryQueue.aclose

    async def waits(self: QueryQueue) -> None:
        await may_end.wait()
        await leave(self)

    monkeypatch.setattr(QueryQueue, "aclose", waits)
    async with serving(PROXIED) as relay:
        visits = [await relay.visit(X_Forwarded_For=f"10.0.0.{number}") for number in range(3)]
        again = {**_ASKS_FOR_WEBSOCKET, "X_Forwarded_For": "10.0.0.9"}
        for visit in visits[:2]:
            await visit.socket.close()
        over = relay.server.connections
        await eventually("two are over", lambda: sum(each.is_over for each in over) == 2)
        assert (await relay.get(**again)).status == 503
        assert await visits[2].asks({}) == [["EOSE", "s"]]
        others = await relay.visit(X_Forwarded_For="10.0.1.1")
        assert await others.asks({}) == [["EOSE", "s"]]
        may_end.set()
        await eventually("they are gone", lambda: len(over) == 2)
        later = await relay.visit(X_Forwarded_For="10.0.0.9")
        assert await later.asks({}) == [["EOSE", "s"]]
    assert not relay.server._of_network


@pytest.mark.parametrize(
    "wrong",
    [{"Sec_WebSocket_Key": "short"}, {"Sec_WebSocket_Version": "99"}, {"Connection": "keep-alive"}],
)
async def test_a_handshake_that_is_refused_closes_no_other_connection(
    wrong: dict[str, str],
) -> None:
    """It takes no place, so one address could have closed one connection after the other."""
    async with serving("[limits]\nmax_connections = 5\n") as relay:
        visits = [await relay.visit() for _ in range(5)]
        assert (await relay.get(**{**_ASKS_FOR_WEBSOCKET, **wrong})).status == 400
        for visit in visits:
            assert await visit.asks({}) == [["EOSE", "s"]]


@pytest.mark.proves("N01-58")
@pytest.mark.parametrize("made_up", [False, True])
async def test_a_member_is_not_kept_out_by_others_of_the_same_host(*, made_up: bool) -> None:
    """40 connections without a login, or with keys that nobody knows, got the owner a 503."""
    async with serving(PROXIED + "[limits]\nconnections_per_address = 10\n") as relay:
        at = {"X_Forwarded_For": "10.0.0.1"}
        flood = [await relay.visit(**at) for _ in range(40)]
        if made_up:
            for number, visit in enumerate([*flood[:8], *flood[38:]]):
                key = person(f"made up {number}")
                assert await visit.logs_in(key, "ws://relay.example") == (True, "")
        known = await relay.visit(**at)
        assert await known.logs_in(owner, "ws://relay.example") == (True, "")
        flood += [await relay.visit(**at) for _ in range(40)]
        assert await known.asks({}) == [["EOSE", "s"]]
        assert await flood[0].asks({}) == [["EOSE", "s"]], "who came before the flood stays"
        assert (await flood[10].hears())[0] == "closed"


async def test_sockets_that_say_nothing_leave_descriptors_to_others(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """They stay for 30 s, and no limit of connections counts them."""
    monkeypatch.setattr("relay.server.eviction._MAX_SILENT", 3)
    monkeypatch.setattr("relay.server.eviction._CHECK_EVERY_S", 0.01)
    async with serving() as relay, contextlib.AsyncExitStack() as stack:
        visit = await relay.visit()
        sockets = []
        for half in (b"", b"GET / HTTP/1.1\r\nHost: ") * 5:
            each = stack.enter_context(socket.create_connection(("127.0.0.1", relay.server.port)))
            each.settimeout(0)
            each.sendall(half)
            sockets.append(each)
            await asyncio.sleep(0)
        loop = asyncio.get_running_loop()
        for each in sockets[:7]:
            async with asyncio.timeout(ANSWER_S):
                with contextlib.suppress(ConnectionError):
                    assert await loop.sock_recv(each, 1) == b""
        for each in sockets[7:]:
            with pytest.raises(BlockingIOError):
                each.recv(1)
        assert await visit.asks({}) == [["EOSE", "s"]]


async def test_a_request_that_is_being_answered_goes_after_silent_sockets(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("relay.server.eviction._MAX_SILENT", 3)
    monkeypatch.setattr("relay.server.eviction._CHECK_EVERY_S", 0.01)
    is_asked, may_answer = asyncio.Event(), asyncio.Event()

    async def is_writable(_: Server) -> bool:
        is_asked.set()
        return await may_answer.wait()

    monkeypatch.setattr(Server, "_is_writable", is_writable)
    loop = asyncio.get_running_loop()
    async with (
        serving() as relay,
        contextlib.AsyncExitStack() as stack,
        asyncio.timeout(ANSWER_S),
    ):
        address = ("127.0.0.1", relay.server.port)

        def connection() -> socket.socket:
            made = stack.enter_context(socket.create_connection(address))
            made.settimeout(0)
            return made

        asking = connection()
        await loop.sock_sendall(asking, b"GET /readyz HTTP/1.1\r\nHost: relay\r\n\r\n")
        await is_asked.wait()  # until then it is as silent as the others
        silent = [connection() for _ in range(6)]
        for each in silent[:4]:
            with contextlib.suppress(ConnectionError):
                assert await loop.sock_recv(each, 1) == b""
        may_answer.set()
        assert await loop.sock_recv(asking, 15) == b"HTTP/1.1 200 OK"


HANDSHAKE = (
    b"GET / HTTP/1.1\r\nHost: x\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n"
    b"Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n"
)

_REQ = b'\x81\x99\0\0\0\0["REQ","s",{"kinds":[1]}]'
"""As a frame, masked with zeros."""


async def _first_bytes(reader: asyncio.StreamReader) -> bytes:
    try:
        return await reader.readexactly(12)
    except (asyncio.IncompleteReadError, ConnectionError):
        return b""


async def test_clients_that_do_not_read_why_they_are_closed_keep_no_member_out(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Each takes up to 6 s to close: while 64 did, members got a 503."""
    monkeypatch.setattr("relay.server.slots._MAX_LEAVING", 2)
    loop = asyncio.get_running_loop()
    async with (
        serving("[limits]\nmax_connections = 5\n") as relay,
        contextlib.AsyncExitStack() as stack,
    ):
        # As over a network: between two sockets of one machine are 2.5 MB.
        relay.server._listening[0].setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)
        visit = await relay.visit()
        large = alice.sign(1, [], "x" * 200_000, NOW)
        assert await visit.publishes(large) == (True, "")
        for _ in range(12):
            each = stack.enter_context(_slow_socket())
            await loop.sock_connect(each, ("127.0.0.1", relay.server.port))
            await loop.sock_sendall(each, HANDSHAKE + b"\r\n" + _REQ)
            assert await loop.sock_recv(each, 12) == b"HTTP/1.1 101"
            newest = list(relay.server.connections)[-1]
            await eventually("it leaves bytes unread", partial(_has_unread, newest))
        member = await relay.visit()
        assert await member.logs_in(owner, f"ws://{relay.at}") == (True, "")
        await eventually(
            "only two that were displaced are left", lambda: len(relay.server.connections) <= 5 + 2
        )


def _has_unread(connection: Connection) -> bool:
    return connection.outbox.buffered_bytes > 100_000


async def test_a_handshake_of_a_socket_that_closes_closes_no_other_connection(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The relay closes it, or its client does, while it waits for its turn."""
    async with serving("[limits]\nmax_connections = 5\n") as relay, asyncio.timeout(ANSWER_S):
        visits = [await relay.visit() for _ in range(5)]

        async def close(_turns: Turns, _of: object) -> None:
            server = relay.server._runner.server
            assert server is not None
            transport = server.connections[-1].transport
            assert transport is not None
            transport.close()

        monkeypatch.setattr(Turns, "wait_for_handshake", close)
        reader, writer = await asyncio.open_connection("127.0.0.1", relay.server.port)
        writer.write(HANDSHAKE + b"\r\n")
        assert await _first_bytes(reader) == b""
        writer.close()
        for visit in visits:
            assert await visit.asks({}) == [["EOSE", "s"]]
    assert [each for each in caplog.records if each.levelname == "ERROR"] == []


async def test_what_a_websocket_leaves_unread_is_no_unread_answer_of_its_socket(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A client that reads the NIP-11 document first was closed with its rows, without a reason."""
    monkeypatch.setattr("relay.server.eviction._MAX_UNREAD", 0)
    loop = asyncio.get_running_loop()
    async with (
        serving() as relay,
        contextlib.AsyncExitStack() as stack,
        asyncio.timeout(ANSWER_S),
    ):
        relay.server._listening[0].setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)
        visit = await relay.visit()
        assert await visit.publishes(alice.sign(1, [], "x" * 200_000, NOW)) == (True, "")
        await visit.socket.close()
        await relay.is_left()
        slow = stack.enter_context(_slow_socket())
        await loop.sock_connect(slow, ("127.0.0.1", relay.server.port))
        await loop.sock_sendall(slow, b"GET /healthz HTTP/1.1\r\nHost: relay\r\n\r\n")
        assert (await loop.sock_recv(slow, 1000)).endswith(b"\r\n\r\nok\n")
        await loop.sock_sendall(slow, HANDSHAKE + b"\r\n" + _REQ)
        assert await loop.sock_recv(slow, 12) == b"HTTP/1.1 101"
        (connection,) = relay.server.connections
        await eventually("it leaves bytes unread", lambda: _has_unread(connection))
        relay.server._http_sockets.drop_unread()
        heard = b""
        while not heard.endswith(b'["EOSE","s"]'):
            some = await loop.sock_recv(slow, 1 << 20)
            assert some, "it was closed"
            heard += some


async def test_a_connection_has_its_place_while_its_handshake_is_answered(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The answer may wait until the client reads: others came meanwhile, for one free place."""
    prepare, waits, may_go_on = RelaySocket.prepare, asyncio.Event(), asyncio.Event()

    async def prepare_late(socket: RelaySocket, request: web.BaseRequest) -> object:
        writer = await prepare(socket, request)
        waits.set()
        await may_go_on.wait()
        return writer

    async with serving("[limits]\nmax_connections = 2\n") as relay:
        first = await relay.visit()
        monkeypatch.setattr(RelaySocket, "prepare", prepare_late)
        late = asyncio.ensure_future(relay.visit())
        await waits.wait()
        # What it sends meanwhile counts as input of a websocket.
        assert all(each._input.is_websocket for each in relay.server.connections)
        assert (await relay.get(**_ASKS_FOR_WEBSOCKET)).status == 503
        may_go_on.set()
        for visit in (first, await late):
            assert await visit.asks({}) == [["EOSE", "s"]]


def _slow_socket() -> socket.socket:
    """Of a client that reads little."""
    made = socket.socket()
    made.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    made.settimeout(0)
    return made


@pytest.mark.parametrize(
    ("held", "config", "more", "answered"),
    [
        ("wait_for_handshake", "", b"", 10),
        ("wait_for_handshake", "[limits]\nmax_connections = 0\n", b"", 10),
        ("wait_for_handshake", "[limits]\nmax_connections = 4\n", b"", 4 + 3),
        ("wait_for_handshake", "", b"X-Large: " + b"x" * 5000 + b"\r\n", 3),
        ("wait_for_input", "", b"", 10),
        ("wait_for_input", "", b"X-Large: " + b"x" * 5000 + b"\r\n", 0),
    ],
    ids=["small", "no limit", "more than may connect", "large", "not parsed", "large, not parsed"],
)
async def test_handshakes_that_wait_for_their_turn_are_not_closed_as_silent(
    monkeypatch: pytest.MonkeyPatch, held: str, config: str, more: bytes, answered: int
) -> None:
    """Of 2,000 clients that connected at once after a restart, 900 were closed."""
    monkeypatch.setattr("relay.server.eviction._CHECK_EVERY_S", 0.01)
    are_all_here, may_answer, number = asyncio.Event(), asyncio.Event(), 0

    async def late(_turns: Turns, _of: object) -> None:
        nonlocal number
        number += 1
        if number == 10:
            are_all_here.set()
        await may_answer.wait()

    monkeypatch.setattr(Turns, held, late)
    if held == "wait_for_input":
        monkeypatch.setattr(Slice, "has_time", property(lambda _: False))
    async with serving(config) as relay, asyncio.timeout(ANSWER_S):
        sockets = [await asyncio.open_connection("127.0.0.1", relay.server.port) for _ in range(10)]
        for _, writer in sockets:
            writer.write(HANDSHAKE + more + b"\r\n")
        await are_all_here.wait()
        monkeypatch.setattr("relay.server.eviction._MAX_SILENT", 3)
        silent = [await asyncio.open_connection("127.0.0.1", relay.server.port) for _ in range(6)]
        for reader, _ in silent[:3]:
            with contextlib.suppress(ConnectionError):
                assert await reader.read() == b""
        may_answer.set()
        heard = [await _first_bytes(reader) for reader, _ in sockets]
        for _, writer in [*sockets, *silent]:
            writer.close()
    assert sum(each.startswith(b"HTTP/1.1 ") for each in heard) == answered


@pytest.mark.parametrize(
    ("held", "request_"),
    [("wait_for_handshake", HANDSHAKE), ("wait_for_request", b"GET / HTTP/1.1\r\nHost: relay\r\n")],
)
async def test_requests_of_closed_sockets_do_not_wait_for_their_turn(
    monkeypatch: pytest.MonkeyPatch, held: str, request_: bytes
) -> None:
    """1,750 clients a second that left at once took 670 MB in a minute, and kept them."""
    may_answer, waiting = asyncio.Event(), set[object]()

    async def late(_turns: Turns, *_: object) -> None:
        task = asyncio.current_task()
        waiting.add(task)
        try:
            await may_answer.wait()
        finally:
            waiting.discard(task)

    monkeypatch.setattr(Turns, held, late)
    async with serving() as relay, asyncio.timeout(ANSWER_S):
        sockets = [await asyncio.open_connection("127.0.0.1", relay.server.port) for _ in range(10)]
        for _, writer in sockets:
            writer.write(request_ + b"\r\n")
        await eventually("all wait", lambda: len(waiting) == 10)
        for _, writer in sockets[:7]:
            writer.close()
        await eventually("few wait", lambda: len(waiting) == 3)
        may_answer.set()
        for reader, writer in sockets[7:]:
            assert (await _first_bytes(reader)).startswith(b"HTTP/1.1 ")
            writer.close()


def _bound_silent_sockets(relay: Relay, most: int, monkeypatch: pytest.MonkeyPatch) -> web.Server:
    """As when no websocket has a free place any more; `most` sockets may stay."""
    monkeypatch.setattr("relay.server.eviction._MAX_SILENT", most)
    monkeypatch.setattr(relay.server._http_sockets, "_free_places", lambda: 0)
    assert relay.server._dropping is not None
    relay.server._dropping.cancel()  # they are closed only when a test does it
    assert relay.server._runner.server is not None
    return relay.server._runner.server


async def _connected(
    stack: contextlib.AsyncExitStack, relay: Relay, said: bytes, address: str = "127.0.0.1"
) -> int:
    """Connect from there, and say that. The own port."""
    _, writer = await asyncio.open_connection(
        "127.0.0.1", relay.server.port, local_addr=(address, 0)
    )
    stack.callback(writer.close)
    writer.write(said)
    return int(writer.get_extra_info("sockname")[1])


def _open_ports(server: web.Server) -> set[int]:
    transports = [each.transport for each in server.connections]
    return {each.get_extra_info("peername")[1] for each in transports if each is not None}


@pytest.mark.parametrize(
    ("addresses", "closed"),
    [
        # One network with many addresses, then an older socket of each of two others.
        (["127.1.0.1", "127.2.0.1", *[f"127.3.0.{number}" for number in range(1, 7)]], "cdef"),
        # Of one network, the address with most; then the oldest of all.
        (["127.1.0.1", "127.1.0.2", *["127.1.0.3"] * 4, "127.1.0.4", "127.1.0.5"], "acde"),
        (["127.1.0.1"] * 8, "abcd"),
    ],
    ids=["networks", "addresses", "one address"],
)
async def test_of_too_many_silent_sockets_the_oldest_of_the_network_with_most_are_closed(
    monkeypatch: pytest.MonkeyPatch, addresses: list[str], closed: str
) -> None:
    """The oldest of all were: who came from elsewhere, and waited for the others, was next."""
    async with serving() as relay, contextlib.AsyncExitStack() as stack:
        server = _bound_silent_sockets(relay, 4, monkeypatch)
        half = b"GET / HTTP/1.1\r\nHost: "
        ports = {await _connected(stack, relay, half, each): each for each in addresses}
        await eventually("all are here", lambda: len(server.connections) == len(ports))
        await relay.server._http_sockets._close_silent(server)
        left = _open_ports(server)
        names = zip("abcdefgh", ports, strict=True)
        assert "".join([name for name, port in names if port not in left]) == closed


async def test_of_waiting_handshakes_behind_a_proxy_those_of_the_network_with_most_are_closed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """6,600 from one IPv6 /48, each of another address: who came from elsewhere had waited for
    longest when it was next, and was closed first. So was what had not sent its request yet."""
    may_answer, waiting = asyncio.Event(), list[str]()

    async def late(_turns: Turns, address: str) -> None:
        waiting.append(address)
        await may_answer.wait()

    monkeypatch.setattr(Turns, "wait_for_handshake", late)
    proxied = '[relay]\nurl = "ws://relay"\n[server]\ntrusted_proxies = ["127.0.0.1/32"]\n'
    async with serving(proxied) as relay, contextlib.AsyncExitStack() as stack:
        server = _bound_silent_sockets(relay, 5, monkeypatch)
        others, many = list[int](), list[int]()
        for number in range(10):
            address = f"198.51.{number}.1" if number < 2 else f"2001:db8:0:{number:x}::1"
            head = HANDSHAKE + f"X-Forwarded-For: {address}\r\n\r\n".encode()
            (others if number < 2 else many).append(await _connected(stack, relay, head))
        others.append(await _connected(stack, relay, b"GET / HTTP/1.1\r\n"))
        await eventually("all wait", lambda: len(waiting) == 10 and len(server.connections) == 11)
        await relay.server._http_sockets._close_silent(server)
        assert _open_ports(server) == {*others, *many[-2:]}
        may_answer.set()


async def test_many_silent_sockets_are_counted_and_closed_with_pauses(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Each second thousands were, in one piece: 40 to 80 ms."""
    monkeypatch.setattr("relay.server.eviction._SILENT_AT_ONCE", 5)
    origin, force_close = SocketInput.origin, SocketInput.force_close
    iteration, counted, closed_in = 0, Counter[int](), dict[SocketInput, int]()

    async def iterate() -> None:
        nonlocal iteration
        while True:
            iteration += 1
            await asyncio.sleep(0)

    def counting(each: SocketInput) -> str:
        counted[iteration] += 1
        return origin(each)

    def closing(each: SocketInput) -> None:
        closed_in.setdefault(each, iteration)  # aiohttp closes it again
        force_close(each)

    async with serving() as relay, contextlib.AsyncExitStack() as stack:
        server = _bound_silent_sockets(relay, 10, monkeypatch)
        for _ in range(40):
            await _connected(stack, relay, b"GET / HTTP/1.1\r\n")
        await eventually("all are here", lambda: len(server.connections) == 40)
        monkeypatch.setattr(SocketInput, "origin", counting)
        monkeypatch.setattr(SocketInput, "force_close", closing)
        iterating = asyncio.create_task(iterate())
        await relay.server._http_sockets._close_silent(server)
        iterating.cancel()
        closed = Counter(closed_in.values())
        assert (counted.total(), closed.total()) == (40, 30)
        assert max((counted + closed).values()) <= 5


async def test_a_socket_that_becomes_a_websocket_is_not_closed_as_silent(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    may_answer, waiting = asyncio.Event(), list[str]()

    async def late(_turns: Turns, address: str) -> None:
        waiting.append(address)
        await may_answer.wait()

    monkeypatch.setattr(Turns, "wait_for_handshake", late)
    monkeypatch.setattr("relay.server.eviction._SILENT_AT_ONCE", 1)
    async with serving() as relay, contextlib.AsyncExitStack() as stack:
        server = _bound_silent_sockets(relay, 1, monkeypatch)
        for _ in range(3):
            await _connected(stack, relay, HANDSHAKE + b"\r\n")
        await eventually("all wait", lambda: len(waiting) == 3)
        closing = relay.server._http_sockets._close_silent(server)
        closing.send(None)  # until the first pause
        may_answer.set()
        await eventually("all are answered", lambda: len(relay.server.connections) == 3)
        with contextlib.suppress(StopIteration):
            while True:
                closing.send(None)
        assert len(_open_ports(server)) == 3


async def test_sockets_that_have_sent_nothing_yet_have_time_to(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("relay.server.eviction._MAX_SILENT", 1)
    monkeypatch.setattr("relay.server.eviction._CHECK_EVERY_S", 0.01)
    monkeypatch.setattr("relay.server.eviction._NEW_CHECKS", sys.maxsize)
    half = b"GET / HTTP/1.1\r\nHost: "
    async with serving() as relay, asyncio.timeout(ANSWER_S):
        address = ("127.0.0.1", relay.server.port)
        silent = [await asyncio.open_connection(*address) for _ in range(4)]
        halves = [await asyncio.open_connection(*address) for _ in range(3)]
        for _, writer in halves:
            writer.write(half)
        for reader, _ in halves[:2]:
            with contextlib.suppress(ConnectionError):
                assert await reader.read() == b""
        for _, writer in silent:
            writer.write(HANDSHAKE + b"\r\n")
        assert [await _first_bytes(reader) for reader, _ in silent] == [b"HTTP/1.1 101"] * 4
        for _, writer in [*silent, *halves]:
            writer.close()


def _stop_clocks_of_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a slow machine more turns are given at once, and connections wait within a message."""
    monkeypatch.setattr("relay.server.socket_input.thread_time", lambda: 0.0)
    monkeypatch.setattr("relay.server.app.Turns", lambda: Turns(lambda: 0.0))


async def test_the_requests_of_an_address_wait_for_those_of_no_other(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """900 sockets of one address delayed new connections and the owner's calls by seconds."""
    config = '[server]\ntrusted_proxies = ["127.0.0.1/32"]\n'
    answered: list[str] = []

    async def asked(
        socket: tuple[asyncio.StreamReader, asyncio.StreamWriter], address: str
    ) -> None:
        reader, writer = socket
        head = f"GET /healthz HTTP/1.1\r\nHost: x\r\nX-Forwarded-For: {address}\r\n\r\n"
        writer.write(head.encode())
        await reader.readuntil(b"ok\n")
        answered.append(address)

    _stop_clocks_of_turns(monkeypatch)
    async with serving(config) as relay:
        sockets = [
            await asyncio.open_connection("127.0.0.1", relay.server.port) for _ in range(101)
        ]
        many, one = sockets[:-1], sockets[-1]
        for each in sockets:  # until then the relay may not have accepted it
            await asked(each, "192.0.2.1")
        answered.clear()
        await asyncio.gather(
            *[asked(each, "203.0.113.5") for each in many], asked(one, "198.51.100.7")
        )
        for _, writer in sockets:
            writer.close()
    assert answered.index("198.51.100.7") < 10


@pytest.mark.parametrize(
    ("line", "status"),
    [
        ("GET http://xn--a/healthz", 200),
        ("GET http://xn--a/?a=b", 200),
        ("GET http://xn--a", 200),
        ("GET http://user:password@relay.test:7777/nothing", 404),
        ("GET ws://xn--a/healthz", 200),
        ("OPTIONS http://xn--a/", 204),
        ("CONNECT xn--a:80", 400),
        ("CONNECT relay.test:443", 400),
        ("CONNECT \r\nno-target:", 400),
        ("GET http://%00[]a@", 400),
    ],
)
async def test_the_host_of_a_request_target_is_not_decoded(
    caplog: pytest.LogCaptureFixture, line: str, status: int
) -> None:
    """One of 8 kB stopped the loop for a second, and one that is invalid left an error in the log
    and a socket without an answer."""
    async with serving() as relay, asyncio.timeout(ANSWER_S):
        reader, writer = await asyncio.open_connection("127.0.0.1", relay.server.port)
        writer.write(f"{line} HTTP/1.1\r\nHost: relay\r\nConnection: close\r\n\r\n".encode())
        assert (await reader.read()).split()[1] == str(status).encode()
        writer.close()
    assert caplog.records == []


HANDSHAKE_HEADERS = {
    "Upgrade": "websocket",
    "Connection": "Upgrade",
    "Sec-WebSocket-Version": "13",
    "Sec-WebSocket-Key": "dGhlIHNhbXBsZSBub25jZQ==",
}


@pytest.mark.parametrize(
    ("name", "value", "status"),
    [
        ("Connection", "\xff", 400),
        ("Sec-WebSocket-Version", "\xff", 400),
        ("Sec-WebSocket-Key", "\xff", 400),
        ("Sec-WebSocket-Key", "\xc3\xa9", 400),
        (
            "Sec-WebSocket-Extensions",
            f"permessage-deflate; server_max_window_bits={'1' * 5000}",
            400,
        ),
        ("Sec-WebSocket-Extensions", "\xff", 101),
        ("Sec-WebSocket-Protocol", "\xff", 101),
        ("Origin", "\xff", 101),
        ("User-Agent", "\xff", 101),
        ("Expect", "\xff", 101),
    ],
)
async def test_a_handshake_with_bytes_that_are_not_utf_8_leaves_no_error_in_the_log(
    caplog: pytest.LogCaptureFixture, name: str, value: str, status: int
) -> None:
    """Those refused with 400 left two kilobytes in the log each."""
    async with (
        serving(config="[server]\ncompression = true\n") as relay,
        asyncio.timeout(ANSWER_S),
    ):
        reader, writer = await asyncio.open_connection("127.0.0.1", relay.server.port)
        headers = "".join(f"{a}: {b}\r\n" for a, b in {**HANDSHAKE_HEADERS, name: value}.items())
        writer.write(f"GET / HTTP/1.1\r\nHost: relay\r\n{headers}\r\n".encode("latin-1"))
        assert (await reader.readline()).startswith(f"HTTP/1.1 {status} ".encode())
        writer.close()
    # aiohttp warns of any subprotocol.
    assert [each for each in caplog.records if each.name != "aiohttp.websocket"] == []


@pytest.mark.parametrize(
    ("value", "status"),
    [("100-continue", 417), ("tea", 417), ("th\xc3\xa9", 417), ("\xff", 417), ("", 200)],
)
async def test_nobody_is_told_to_continue_who_waits_before_a_body(
    caplog: pytest.LogCaptureFixture, value: str, status: int
) -> None:
    """Caddy 2.6 crashed within a minute when one client sent such requests, each without its body.
    The value need not be UTF-8."""
    async with serving() as relay, asyncio.timeout(ANSWER_S):
        reader, writer = await asyncio.open_connection("127.0.0.1", relay.server.port)
        head = f"GET /healthz HTTP/1.1\r\nHost: relay\r\nExpect: {value}\r\n\r\n"
        writer.write(head.encode("latin-1"))
        assert (await reader.readline()).startswith(f"HTTP/1.1 {status} ".encode())
        writer.close()
    assert caplog.records == []


async def test_what_cannot_be_parsed_behind_a_declined_upgrade_is_not_answered(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with serving() as relay, asyncio.timeout(ANSWER_S):
        reader, writer = await asyncio.open_connection("127.0.0.1", relay.server.port)
        headers = "Host: relay\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n"
        behind = "GET http://%00[]a@ HTTP/1.1\r\nHost: relay\r\n\r\n"
        writer.write(f"GET /healthz HTTP/1.1\r\n{headers}\r\n{behind}".encode())
        answer = await reader.read()
        assert answer.startswith(b"HTTP/1.1 200 ")
        assert answer.endswith(b"ok\n")
        writer.close()
    assert caplog.records == []


@pytest.mark.parametrize(
    ("method", "body", "status"),
    [("POST", "a", 400), ("POST", "", 400), ("GET", "a", 400), ("GET", None, 200)],
)
async def test_a_socket_whose_upgrade_was_declined_is_closed(
    method: str, body: str | None, status: int
) -> None:
    """aiohttp parses nothing that comes behind the end of such a body: proxies sent the handshakes
    of others to sockets that never answered."""
    async with serving() as relay, asyncio.timeout(ANSWER_S):
        reader, writer = await asyncio.open_connection("127.0.0.1", relay.server.port)
        length = "" if body is None else "Content-Length: 2\r\n"
        upgrade = "Connection: Upgrade\r\nUpgrade: websocket\r\n"
        head = f"{method} /healthz HTTP/1.1\r\nHost: relay\r\n{upgrade}{length}\r\n{body or ''}"
        writer.write(head.encode())
        assert (await reader.read()).split()[1] == b"%d" % status
        writer.close()


@pytest.mark.parametrize(
    ("wanted", "files", "places"),
    [
        (5000, 65_536, 5000),
        (5000, 4096, 4096 - 1024 - 192),
        (5000, 1024, 1024 - 256 - 192),
        (100, 1024, 100),
        (0, 4096, 4096 - 1024 - 192),
        (0, resource.RLIM_INFINITY, 0),
    ],
)
def test_there_are_no_more_places_than_files_may_be_open(
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    wanted: int,
    files: int,
    places: int,
) -> None:
    """4,800 connections opened all of 4,096 files, and owners could not even ask for `status`;
    where 1,024 may be open, other sockets could take all of them."""
    monkeypatch.setattr("relay.server.eviction.resource.getrlimit", lambda _: (files, files))
    assert places_of(wanted) == places
    if files != resource.RLIM_INFINITY:
        assert places + eviction._most_silent() < files
    assert len(caplog.records) == (0 < places < wanted)


def test_of_unread_answers_those_of_the_address_with_most_are_dropped(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Who asked again and again, and read nothing, cut off everybody who read slowly."""
    monkeypatch.setattr("relay.server.eviction._MAX_UNREAD", 10_000)
    sockets = HttpSockets(lambda: 0)
    slow, *others = [_Unread(2000) for _ in range(6)]
    sockets.answered[slow] = "192.0.2.1"
    sockets.answered |= dict.fromkeys(others, "203.0.113.1")
    sockets.drop_unread()
    assert [each.is_closing() for each in (slow, *others)] == [False, True, *[False] * 4]
    assert list(sockets.answered) == [slow, *others[1:]]


def test_unread_answers_are_sorted_by_address_only_when_they_are_too_many(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It took 2 ms of 1,000 sockets, before each answer of more than 64 KiB."""
    monkeypatch.setattr("relay.server.eviction.ByNetwork", lambda: pytest.fail("sorted"))
    sockets = HttpSockets(lambda: 0)
    sockets.answered |= {_Unread(size): "192.0.2.1" for size in (2000, 0)}
    sockets.drop_unread()
    assert [each.is_closing() for each in sockets.answered] == [False]


class _Unread(asyncio.Transport):
    def __init__(self, size: int) -> None:
        super().__init__()
        self._size = size

    def get_write_buffer_size(self) -> int:
        return self._size

    def abort(self) -> None:
        self._size = 0

    def is_closing(self) -> bool:
        return not self._size


async def test_a_request_that_offers_another_upgrade_is_answered() -> None:
    """Some clients offer HTTP/2 with every request."""
    upgrade = "Connection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: AAMAAABk\r\n"
    head = f"POST / HTTP/1.1\r\nHost: relay\r\n{upgrade}Content-Length: 2\r\n\r\n"
    async with serving() as relay, asyncio.timeout(ANSWER_S):
        reader, writer = await asyncio.open_connection("127.0.0.1", relay.server.port)
        writer.write(f"{head}{{".encode())
        await writer.drain()
        writer.write(b"}")
        answer = await reader.read()
        assert answer.startswith(b"HTTP/1.1 4")
        assert not answer.startswith(b"HTTP/1.1 400")
        assert b"Connection: close" in answer
        writer.close()


@pytest.mark.parametrize("head", ["POST /" + "a" * 3000, "POST /"])
async def test_no_answer_to_a_request_with_an_upgrade_leaves_its_socket_open(head: str) -> None:
    """Of what came with the end of its body aiohttp dropped the rest: the request of another client
    of a proxy."""
    upgrade = "Connection: Upgrade\r\nUpgrade: h2c\r\nExpect: \xff\r\n"
    async with serving() as relay, asyncio.timeout(ANSWER_S):
        reader, writer = await asyncio.open_connection("127.0.0.1", relay.server.port)
        start = f"{head} HTTP/1.1\r\nHost: relay\r\n{upgrade}Content-Length: 2\r\n\r\na"
        writer.write(start.encode("latin-1"))
        answer = await reader.read()
        assert answer.startswith(b"HTTP/1.1 4")
        assert b"Connection: close" in answer
        writer.close()


async def test_nothing_behind_a_connect_is_a_request() -> None:
    """Caddy passes it on with its body. Where that is answered, each client behind Caddy gets the
    answer to the request of another from then on."""
    hidden = "GET /healthz HTTP/1.1\r\nHost: relay\r\n\r\n"
    head = f"CONNECT relay:443 HTTP/1.1\r\nHost: relay\r\nContent-Length: {len(hidden)}\r\n\r\n"
    async with serving() as relay, asyncio.timeout(ANSWER_S):
        for parts in ([head + hidden], [head, hidden], [head, hidden, hidden]):
            reader, writer = await asyncio.open_connection("127.0.0.1", relay.server.port)
            for part in parts:
                writer.write(part.encode())
                await writer.drain()
            answer = await reader.read()
            assert answer.startswith(b"HTTP/1.0 400 ")
            assert answer.count(b"HTTP/1") == 1
            writer.close()


async def test_connections_wait_for_the_requests_of_many_addresses_as_for_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """900 subnets of one network delayed open connections by seconds."""
    config = '[server]\ntrusted_proxies = ["127.0.0.1/32"]\n'
    answered = 0

    async def asked(number: int) -> None:
        nonlocal answered
        reader, writer = await asyncio.open_connection("127.0.0.1", relay.server.port)
        head = f"GET /healthz HTTP/1.1\r\nHost: x\r\nX-Forwarded-For: 2001:db8:7:{number:x}::1\r\n"
        writer.write(f"{head}\r\n".encode())
        await reader.readuntil(b"ok\n")
        answered += 1
        writer.close()

    _stop_clocks_of_turns(monkeypatch)
    async with serving(config) as relay:
        turns = relay.server._turns
        waiting = [asyncio.create_task(asked(number)) for number in range(100)]
        while not answered:  # noqa: ASYNC110 -- each is an iteration of the loop
            await asyncio.sleep(0)
        before = answered
        await turns.wait(turns.account())
        assert answered - before < 10
        await asyncio.gather(*waiting)


async def test_who_connects_waits_for_other_addresses_once_however_many_connections_wait() -> None:
    """Beside 50 addresses that flooded the relay and connected again and again, a login took 5 s:
    each of their handshakes waited for every flood."""
    config = '[server]\ntrusted_proxies = ["127.0.0.1/32"]\n'
    addresses, given = 20, 0

    async def busy(work: Slice) -> None:
        nonlocal given
        while True:
            await work.take(0.0005)
            given += 1

    async with serving(config) as relay:
        turns = relay.server._turns
        floods = [asyncio.create_task(busy(Slice(turns, perf_counter))) for _ in range(30)]
        while given < 30:  # noqa: ASYNC110 -- each is an iteration of the loop
            await asyncio.sleep(0)
        before = given
        visits = [relay.visit(X_Forwarded_For=f"198.51.100.{at}") for at in range(addresses)]
        await asyncio.gather(*visits)
        given -= before
        for flood in floods:
            flood.cancel()
    assert given < 10 * addresses


async def test_answers_that_are_not_read_are_dropped_oldest_first(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Each held its page, up to 4 MB, for as long as the client liked."""
    monkeypatch.setattr("relay.server.eviction._MAX_UNREAD", 3 << 20)
    monkeypatch.setattr("relay.server.http.page", lambda *_: "x" * (8 << 20))
    loop = asyncio.get_running_loop()
    async with serving() as relay, contextlib.AsyncExitStack() as stack:
        visit = await relay.visit()
        sockets = []
        for number in range(6):
            each = stack.enter_context(socket.socket())
            each.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            each.connect(("127.0.0.1", relay.server.port))
            each.settimeout(0)
            await loop.sock_sendall(each, b"GET / HTTP/1.1\r\nHost: relay\r\n\r\n")
            assert await loop.sock_recv(each, 15) == b"HTTP/1.1 200 OK"
            sockets.append(each)
            held = [one.get_write_buffer_size() for one in relay.server._http_sockets.answered]
            assert sum(held) <= (3 << 20) + (8 << 20), number
        assert await visit.asks({}) == [["EOSE", "s"]]
        for each in sockets[:4]:
            got = 0
            with contextlib.suppress(ConnectionResetError):
                while some := await loop.sock_recv(each, 1 << 20):
                    got += len(some)
            assert got < 8 << 20, "it was cut off"


@pytest.mark.parametrize(("size", "stays_open"), [(1000, True), (100_000, False)])
async def test_no_socket_keeps_a_large_answer_that_was_read(
    monkeypatch: pytest.MonkeyPatch, size: int, *, stays_open: bool
) -> None:
    """aiohttp frees an answer at the next request of its socket, or 30 s later."""
    monkeypatch.setattr("relay.server.http.page", lambda *_: "x" * size)
    async with serving() as relay:
        answer = await relay.get()
        assert await answer.text() == "x" * size
        assert (answer.headers.get("Connection") != "close") is stays_open


async def test_who_takes_a_kept_place_logs_in_or_goes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("relay.server.app.TRIAL_S", 0.0)
    proxied = 'connections_per_address = 5\n[server]\ntrusted_proxies = ["127.0.0.1/32"]\n'
    async with serving(f"[limits]\n{proxied}") as relay:
        at = {"X_Forwarded_For": "10.0.0.1"}
        others = [await relay.visit(**at) for _ in range(4)]
        assert await (await relay.visit(**at)).hears() == ["closed", 1013]
        for visit in others:
            assert await visit.asks({}) == [["EOSE", "s"]]


async def test_a_limit_of_0_is_no_limit() -> None:
    """0: none."""
    limits = "max_connections = 0\nconnections_per_address = 0\n"
    async with serving(f"[limits]\n{limits}") as relay:
        visits = [await relay.visit() for _ in range(3)]
        assert await relay.counts("rookery_connections") == len(visits)


@pytest.mark.proves("N42-06")
@pytest.mark.parametrize(
    ("config", "url", "is_ours"),
    [
        ("", "ws://127.0.0.1:{port}", True),
        ("", "ws://localhost:{port}/", True),
        ("", "wss://[::1]:{port}", True),
        ("", "ws://127.0.0.2:{port}", False),
        ("", "ws://relay.example:{port}", False),
        ("", "ws://127.0.0.1", False),
        ('url = "wss://relay.example"', "wss://relay.example/", True),
        ('url = "wss://relay.example"', "WSS://Relay.Example:443", True),
        ('url = "wss://relay.example"', "ws://127.0.0.1:{port}", False),
    ],
)
async def test_a_login_must_name_the_url_of_the_relay(
    config: str, url: str, *, is_ours: bool
) -> None:
    """N42-06: the configured URL, else where it listens; never the Host header."""
    async with serving(f"[relay]\n{config}\n") as relay:
        visit = await relay.visit(Host="relay.example")
        accepted, text = await visit.logs_in(alice, url.format(port=relay.server.port))
        assert accepted is is_ours
        assert text == ("" if is_ours else "invalid: relay: is not this relay's URL")


@pytest.mark.skipif(not has_ipv6_loopback(), reason="this machine has no IPv6")
async def test_a_login_at_another_program_on_the_port_of_localhost_does_not_count(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """It could pass the login on: many programs look for localhost on [::1] first."""
    with socket.create_server(("::1", 0), family=socket.AF_INET6) as other:
        port = other.getsockname()[1]
        async with serving(port=port) as relay:
            assert f"a login that names localhost:{port} is refused" in caplog.text
            assert "[relay] url" in caplog.text
            for host, accepted in (("localhost", False), ("[::1]", False), ("127.0.0.1", True)):
                visit = await relay.visit()
                assert (await visit.logs_in(alice, f"ws://{host}:{port}"))[0] is accepted


async def test_where_nobody_can_listen_on_ipv6_a_login_may_name_localhost(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    bind = socket.socket.bind

    def bind_ipv4(self: socket.socket, address: Any) -> None:
        if self.family is socket.AF_INET6:
            raise OSError(errno.EADDRNOTAVAIL, os.strerror(errno.EADDRNOTAVAIL))
        bind(self, address)

    monkeypatch.setattr(socket.socket, "bind", bind_ipv4)
    async with serving() as relay:
        visit = await relay.visit()
        assert (await visit.logs_in(alice, f"ws://localhost:{relay.server.port}"))[0]
        assert "localhost" not in caplog.text


@pytest.mark.skipif(not has_ipv6_loopback(), reason="this machine has no IPv6")
@pytest.mark.parametrize(
    ("host", "known"),
    [
        ("127.0.0.1", {"127.0.0.1", "::1", "localhost"}),
        ("0.0.0.0", {"127.0.0.1", "::1", "localhost"}),
        ("localhost", {"127.0.0.1", "::1", "localhost"}),
        ("127.0.0.2", {"127.0.0.2"}),
        ("::1", {"::1"}),
        ("::", {"::1"}),
    ],
)
async def test_a_login_may_name_what_the_relay_listens_on(host: str, known: set[str]) -> None:
    async with serving(host=host) as relay:
        assert {each.host for each in relay.server.addresses} == known


async def test_a_login_from_the_network_names_no_loopback_address(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Whoever got one for localhost on another machine could pass it on."""
    async with serving(host="0.0.0.0") as relay:
        port = relay.server.port
        hosts = {"localhost", "127.0.0.1", "[::1]"} if has_ipv6_loopback() else {"127.0.0.1"}
        for host in hosts:
            assert (await (await relay.visit()).logs_in(alice, f"ws://{host}:{port}"))[0]
        monkeypatch.setattr("relay.server.app._came_in_on", lambda _: ("192.0.2.7", port))
        for host in hosts:
            assert not (await (await relay.visit()).logs_in(alice, f"ws://{host}:{port}"))[0]
        assert (await (await relay.visit()).logs_in(alice, f"ws://192.0.2.7:{port}"))[0]


@pytest.mark.parametrize(
    ("proxies", "client", "accepted"),
    [
        ("127.0.0.1/32", "203.0.113.9", False),
        ("127.0.0.1/32", "nobody", False),
        ("127.0.0.1/32", "127.0.0.2", True),
        ("127.0.0.1/32", None, True),
        ("10.0.0.1/32", "203.0.113.9", False),
        ("10.0.0.1/32", "127.0.0.1", False),
    ],
)
async def test_a_login_that_a_proxy_passes_on_names_no_loopback_address(
    proxies: str, client: str | None, *, accepted: bool
) -> None:
    """The proxy is on this machine, its clients are not."""
    said = {"X_Forwarded_For": client} if client else {}
    async with serving(f'[server]\ntrusted_proxies = ["{proxies}"]\n') as relay:
        hosts = {"localhost", "127.0.0.1", "[::1]"} if has_ipv6_loopback() else {"127.0.0.1"}
        for host in hosts:
            visit = await relay.visit(**said)
            assert (await visit.logs_in(alice, f"ws://{host}:{relay.server.port}"))[0] is accepted


@pytest.mark.parametrize("came_in", ["10.0.0.5", "fd00::5", "8.8.8.8", "2001:4860:4860::8888"])
@pytest.mark.parametrize(
    ("config", "client"),
    [
        ('[server]\ntrusted_proxies = ["127.0.0.1/32"]\n', {"X_Forwarded_For": "192.168.1.9"}),
        ('[server]\ntrusted_proxies = ["127.0.0.1/32"]\n', {"X_Forwarded_For": "9.9.9.9"}),
        ("", {}),
    ],
)
async def test_a_login_from_another_network_names_public_addresses_only(
    monkeypatch: pytest.MonkeyPatch, config: str, client: dict[str, str], came_in: str
) -> None:
    """Another relay may have the same one there: whoever got a login for it could pass it on."""
    if not config:  # through a port that is forwarded
        remote = ip_address("9.9.9.9")
        monkeypatch.setattr("relay.server.app.http.client_address", lambda *_: remote)
    async with serving(config, host="0.0.0.0") as relay:
        port = relay.server.port
        monkeypatch.setattr("relay.server.app._came_in_on", lambda _: (came_in, port))
        name = f"[{came_in}]" if ":" in came_in else came_in
        visit = await relay.visit(**client)
        is_accepted, _ = await visit.logs_in(alice, f"ws://{name}:{port}")
        assert is_accepted is ip_address(came_in).is_global


def test_a_login_may_name_the_ipv4_address_of_a_socket_for_both_families() -> None:
    class Transport:
        def get_extra_info(self, name: str) -> tuple[str, int] | None:
            return ("::ffff:192.168.1.5", 7777) if name == "sockname" else None

    request: Any = SimpleNamespace(transport=Transport())
    assert app._came_in_on(request) == ("192.168.1.5", 7777)


async def test_a_management_call_that_is_no_owners_is_refused_before_its_body_comes() -> None:
    async with serving() as relay:
        host, port = relay.at.split(":")
        reader, writer = await asyncio.open_connection(host, int(port))
        writer.write(
            f"POST / HTTP/1.1\r\nHost: {relay.at}\r\nContent-Length: 60000\r\n"
            "Content-Type: application/nostr+json+rpc\r\n\r\n[".encode()
        )
        async with asyncio.timeout(ANSWER_S):
            assert (await reader.readline()).split()[1] == b"401"
        writer.close()


async def test_no_cache_keeps_what_is_for_the_signer_of_a_request() -> None:
    async with serving() as relay, ClientSession() as http:
        for query in ("?history=30078:00:d", "?receipt=00"):
            async with http.get(f"http://{relay.at}/{query}") as answer:
                assert answer.headers["Cache-Control"] == "no-store", query
        async with http.get(f"http://{relay.at}/") as answer:
            assert answer.headers["Vary"] == "Accept"


@pytest.mark.proves("N62-03")
@pytest.mark.parametrize(
    ("host", "config", "known"),
    [
        ("127.0.0.1", "", {"127.0.0.1", "::1", "localhost"}),
        ("127.0.0.1", '[server]\ntrusted_proxies = ["127.0.0.1/32"]\n', set[str]()),
        ("0.0.0.0", "", set[str]()),
        ("0.0.0.0", '[relay]\nurl = "ws://localhost:7777"\n', {"localhost"}),
    ],
)
async def test_a_request_to_vanish_names_localhost_only_where_nobody_else_connects(
    host: str, config: str, known: set[str]
) -> None:
    """Anybody may pass on one that was meant for a relay on another machine."""
    async with serving(config, host=host) as relay:
        found = {each.host for each in relay.server.addresses_from_anywhere}
        assert found == (known if has_ipv6_loopback() else known - {"::1"})


async def test_a_request_to_vanish_names_no_private_address_of_the_relay(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    own = {relay_address(f"ws://{host}:7777") for host in ("10.0.0.5", "relay.example")}
    monkeypatch.setattr(Server, "_own_addresses", lambda _: frozenset(own))
    async with serving(host="0.0.0.0") as relay:
        found = {each.host for each in relay.server.addresses_from_anywhere}
        assert found == {"relay.example"}


@pytest.mark.proves("N42-02", "N42-06")
async def test_a_login_may_name_the_address_that_the_connection_came_in_on() -> None:
    """N42-02: each connection has a challenge of its own."""
    async with serving(host="0.0.0.0") as relay:
        there, here = await relay.visit(host="127.0.0.2"), await relay.visit()
        url = f"ws://127.0.0.2:{relay.server.port}"
        assert (await there.logs_in(alice, url))[0]
        assert not (await here.logs_in(alice, url))[0]
        assert there.challenge != here.challenge


async def test_a_trusted_reader_is_known_by_its_address() -> None:
    """A-20: not by what a header says."""
    trusted = OPEN + '[actors]\ntrusted_readers = ["127.0.0.1/32"]\n'
    async with serving(policy=trusted) as relay:
        filter_: dict[str, object] = {"kinds": [30093]}
        assert await (await relay.visit()).asks(filter_) == [["EOSE", "s"]]
        forged = await relay.visit(X_Forwarded_For="127.0.0.1")
        assert (await forged.asks(filter_))[0][0] == "CLOSED"


@pytest.mark.skipif(not has_ipv6_loopback(), reason="this machine has no IPv6")
async def test_who_is_trusted_at_127_0_0_1_may_connect_to_localhost() -> None:
    """Which is [::1] for many programs: the relay listens there too."""
    trusted = OPEN + '[actors]\ntrusted_readers = ["127.0.0.1/32"]\n'
    async with (
        serving(policy=trusted) as relay,
        relay.browser.ws_connect(f"ws://[::1]:{relay.server.port}/"),
    ):
        (connection,) = relay.server.connections
        assert connection.reader.viewer.trusted


@pytest.mark.skipif(not has_ipv6_loopback(), reason="this machine has no IPv6")
async def test_a_proxy_trusted_at_127_0_0_1_may_connect_to_localhost() -> None:
    """Its clients keep their addresses, so their connections are counted and blocked."""
    proxied = (
        '[relay]\nurl = "wss://relay.example.org"\n[server]\ntrusted_proxies = ["127.0.0.1/32"]\n'
        "[limits]\nconnections_per_address = 2\n"
    )
    async with serving(proxied) as relay:
        url, client = f"ws://[::1]:{relay.server.port}/", {"X-Forwarded-For": "203.0.113.9"}
        open_ = [await relay.browser.ws_connect(url, headers=client) for _ in range(2)]
        assert [each.counted_as for each in relay.server.connections] == ["203.0.113.9"] * 2
        with pytest.raises(WSServerHandshakeError) as refused:
            await relay.browser.ws_connect(url, headers=client)
        assert refused.value.status == 429
        assert not any(each.closed for each in open_)
        change = ListChange(ListName.BLOCKED_ADDRESSES, "203.0.113.10", "")
        relay.state.manage(relay.state.management.after(change))
        with pytest.raises(WSServerHandshakeError) as refused:
            await relay.browser.ws_connect(url, headers={"X-Forwarded-For": "203.0.113.10"})
        assert refused.value.status == 403
        for each in open_:
            await each.close()


@pytest.mark.parametrize("asked", ["receipt", "history"])
async def test_a_blocked_address_gets_no_receipt_and_no_old_version(asked: str) -> None:
    """Not even the answer that the call is not signed."""
    proxied = (
        '[relay]\nurl = "wss://relay.example.org"\n[server]\ntrusted_proxies = ["127.0.0.1/32"]\n'
    )
    async with serving(proxied) as relay:
        change = ListChange(ListName.BLOCKED_ADDRESSES, "203.0.113.10", "")
        relay.state.manage(relay.state.management.after(change))
        statuses = [
            (await relay.get(f"/?{asked}={'0' * 64}", X_Forwarded_For=address)).status
            for address in ("203.0.113.9", "203.0.113.10")
        ]
        assert statuses[0] != 403
        assert statuses[1] == 403


async def test_headers_are_read_again_only_when_rights_of_addresses_change(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each call of NIP-86 did for 5,000 connections: a quarter of a second of the loop."""
    async with serving() as relay:
        visits = [await relay.visit() for _ in range(3)]
        looked = list[object]()
        may_connect = relay.server.may_connect

        def noted(request: web.Request) -> bool:
            looked.append(request)
            return may_connect(request)

        monkeypatch.setattr(relay.server, "may_connect", noted)
        relay.server.rights_changed()
        assert looked == []
        trusted = OPEN + '[actors]\ntrusted_readers = ["127.0.0.1/32"]\n'
        relay.state.enforce(await asyncio.to_thread(loaded, tmp_path, b=trusted))
        relay.server.rights_changed()
        relay.server.rights_changed()
        assert len(looked) == len(visits)


_OTHER_ORIGINS = ("https://evil.example", "null", "http://127.0.0.1:1")


async def test_a_page_of_another_origin_is_no_trusted_reader() -> None:
    """A browser where a trusted program runs opens what any page asks for."""
    trusted = OPEN + '[actors]\ntrusted_readers = ["127.0.0.1/32"]\n'
    async with serving(policy=trusted) as relay:
        filter_: dict[str, object] = {"kinds": [30093]}
        own = await relay.visit(Origin=f"http://{relay.at}")
        assert await own.asks(filter_) == [["EOSE", "s"]]
        for origin in _OTHER_ORIGINS:
            page = await relay.visit(Origin=origin, Host=origin.rpartition("/")[2])
            assert (await page.asks(filter_))[0][0] == "CLOSED"
            relay.server.rights_changed()
            assert (await page.asks(filter_))[0][0] == "CLOSED"


async def test_a_page_of_another_origin_is_no_program_of_the_machine() -> None:
    """It takes turns and a share of what is bounded, and has the limits of rules."""
    async with serving() as relay:
        own = f"http://{relay.at}"
        origins = [{}, {"Origin": own}, *({"Origin": each} for each in _OTHER_ORIGINS)]
        visits = [await relay.visit(**each) for each in origins]
        assert len(visits) == len(relay.server.connections)
        found = [(each.is_local, each.counted_as) for each in relay.server.connections]
        assert found == [(True, None)] * 2 + [(False, "127.0.0.1")] * len(_OTHER_ORIGINS)


async def test_a_forwarding_header_of_an_untrusted_peer_changes_no_count() -> None:
    """Rates and tried codes of an address are those of the peer, whatever the header says."""
    async with serving() as relay:
        await relay.visit(X_Forwarded_For="203.0.113.9")
        await relay.visit()
        (peers,) = {str(each.address) for each in relay.server.connections}
        assert peers == "127.0.0.1"


async def test_no_answer_names_a_version_of_the_software_below() -> None:
    async with serving() as relay:
        for path in ("/", "/readyz", "/nowhere"):
            assert (await relay.get(path)).headers["Server"] == "rookery"
        visit = await relay.visit()
        response = visit.socket._response  # what a client sees of the handshake
        assert response.headers["Server"] == "rookery"
        reader, writer = await asyncio.open_connection("127.0.0.1", relay.server.port)
        writer.write(b"NONSENSE\r\n\r\n")
        answer = await reader.read()
        writer.close()
        assert b"Python" not in answer
        assert b"aiohttp/" not in answer


@pytest.mark.proves("N42-16")
async def test_a_reload_revokes_trusted_readers(tmp_path: Path) -> None:
    """N42-16, G-01: on a connection that is open already."""
    trusted = OPEN + '[actors]\ntrusted_readers = ["127.0.0.1/32"]\n'
    async with serving(policy=trusted) as relay:
        visit = await relay.visit()
        assert await visit.asks({"kinds": [30093]}) == [["EOSE", "s"]]
        relay.state.enforce(await asyncio.to_thread(loaded, tmp_path, b=OPEN))
        relay.server.rights_changed()
        assert (await visit.asks({"kinds": [30093]}))[0][0] == "CLOSED"


# start and stop ----------------------------------------------------------------------------------


@pytest.mark.proves("N01-99")
async def test_a_stop_closes_subscriptions_and_connections_with_a_reason() -> None:
    """N01-99: CLOSED to every subscription, then a close frame; no new connection is accepted."""
    async with serving() as relay:
        visit = await relay.visit()
        await visit.asks({})
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(relay.server.__aexit__())
            assert await visit.hears_all() == [
                ["CLOSED", "s", "error: the relay is stopping"],
                ["closed", 1001],
            ]
        with pytest.raises(OSError, match="onnect"):
            await relay.visit()


async def test_a_stop_answers_an_event_that_rests_for_the_many_tags_of_its_client(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A stop took twelve seconds, and what was committed at its end was told to nobody."""
    async with serving() as relay:
        lane = relay.ingest._lane
        monkeypatch.setattr(lane, "_turn_of", lambda _: "the client")
        lane.rest("the client", 3600)
        visit = await relay.visit()
        event = alice.sign(1, [["t", f"{n}"] for n in range(2000)], "", NOW)
        await visit.says("EVENT", orjson.loads(event.raw))
        await eventually("it waits", lambda: relay.ingest.waiting["commit"])
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(relay.server.__aexit__())
            assert await visit.hears() == ["OK", event.id, True, ""]


async def test_a_port_in_use_is_reported_with_advice() -> None:
    """Errors say what to do next."""
    async with serving() as relay:
        with pytest.raises(UserError, match=r"cannot listen on 127.0.0.1 port \d+: .*--port"):
            bound_sockets("127.0.0.1", relay.server.port)


def test_several_who_connect_are_accepted_in_one_iteration() -> None:
    """600 sockets of one address that came again and again kept all who connected waiting for 6 s:
    uvloop accepts one for each of its handles."""
    uvloop = pytest.importorskip("uvloop", reason="the relay runs without it, too")

    async def iterations(clients: Sequence[socket.socket]) -> int:
        async with serving() as relay:
            for each in clients:
                each.settimeout(0)
                with contextlib.suppress(BlockingIOError):
                    each.connect(("127.0.0.1", relay.server.port))
            server, needed = relay.server._runner.server, 0
            assert server is not None
            while len(server.connections) < len(clients):
                needed += 1
                await asyncio.sleep(0)
            return needed

    with contextlib.ExitStack() as stack, asyncio.Runner(loop_factory=uvloop.new_event_loop) as run:
        assert run.run(iterations([stack.enter_context(socket.socket()) for _ in range(64)])) < 32


async def test_a_port_that_two_have_bound_is_reported_by_the_second_that_listens() -> None:
    with socket.socket() as first:
        first.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        first.bind(("127.0.0.1", 0))
        async with serving() as relay:
            port = first.getsockname()[1]
            bound = bound_sockets("127.0.0.1", port)
            first.listen()
            second = Server(relay.server._services, bound, "127.0.0.1")
            with pytest.raises(UserError, match=f"cannot listen on 127.0.0.1 port {port}: .*"):
                await second.__aenter__()


async def test_who_connects_while_the_relay_stops_is_told_that_it_starts_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Accepted before the stop, its request comes during it."""
    monkeypatch.setattr(app, "_REQUEST_S", 60.0)
    async with serving() as relay:
        early = socket.create_connection(("127.0.0.1", relay.server.port))
        async with relay.browser.get(f"http://{relay.at}/healthz") as answer:
            assert answer.status == 200  # the other one is accepted too
        relay.server.stop = Stop.RESTART
        stopping = asyncio.create_task(relay.server.__aexit__())
        await asyncio.sleep(0.2)  # it has closed the listening socket; the client is slow
        reader, writer = await asyncio.open_connection(sock=early)
        writer.write(
            b"GET / HTTP/1.1\r\nHost: x\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
            b"Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n"
        )
        told = await reader.read()
        writer.close()
        await stopping
    assert told.startswith(b"HTTP/1.1 101 ")
    assert b'["AUTH",' in told
    assert told.endswith((1012).to_bytes(2) + b"the relay is restarting")


async def test_missing_tls_files_are_named() -> None:
    tls = '[server]\ntls_cert = "no.crt"\ntls_key = "no.key"\n'
    with pytest.raises(UserError, match=r"tls_cert .*no.crt with tls_key .*no.key cannot be used"):
        async with serving(tls):
            pass


async def test_a_refused_request_leaves_nothing_for_the_garbage_collector() -> None:
    """It may hold 500 kB, and the collector looks for few large things as rarely as for small."""

    def requests() -> int:
        return sum(1 for each in gc.get_objects() if type(each) is web.Request)

    async with (
        serving() as relay,
        ClientSession(connector=TCPConnector(force_close=True)) as client,
    ):
        gc.collect()
        before = requests()
        gc.disable()
        try:
            for _ in range(5):
                async with client.get(f"http://{relay.at}/nowhere") as answer:
                    assert (answer.status, await answer.text()) == (404, "404: Not Found")
                    assert answer.headers["X-Content-Type-Options"] == "nosniff"
                async with client.put(f"http://{relay.at}/", data="x") as answer:
                    assert answer.status == 405
                    assert answer.headers["Allow"] == "GET,OPTIONS,POST"
            await eventually("the last one is over", lambda: requests() <= before + 1, 20)
        finally:
            gc.enable()


@pytest.mark.parametrize(
    ("head", "status"),
    [
        # Of chunks of one byte, 4 kB took the loop 5 ms.
        (b"POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n", 411),
        (b"GET /healthz HTTP/1.1\r\nTransfer-Encoding: chunked\r\n", 411),
        # aiohttp's parser of this header takes 0.6 s for 8 kB of quotes, and fails for these.
        (b"POST / HTTP/1.1\r\nContent-Type: a/b;%b\r\n" % (b"(" * 7900), 415),
        # Its router tries each part of a path: 9 ms.
        (b"GET %b HTTP/1.1\r\n" % (b"/" * 7900), 414),
    ],
    ids=["chunked body", "chunked body of a GET", "long Content-Type", "long path"],
)
async def test_what_takes_long_to_parse_is_refused(head: bytes, status: int) -> None:
    async with serving() as relay:
        reader, writer = await asyncio.open_connection("127.0.0.1", relay.server.port)
        writer.write(head + b"Host: x\r\n\r\n")
        line = await reader.readline()
        writer.close()
        assert line.split()[1] == b"%d" % status


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        (b"X: a\x01b\r\n\r\n", 400),
        (b"Transfer-Encoding: chunked\r\n\r\n1\r\nx\r\n0\r\n\r\n", 411),
        (b"Upgrade: tcp\r\nConnection: upgrade\r\nContent-Length: 1\r\n\r\nx", 400),
        ((b"X: " + b"x" * 4000 + b"\r\n") * 6, 431),
    ],
    ids=["header", "chunked", "upgrade with a body", "too large"],
)
async def test_a_request_that_is_refused_waits_for_a_turn_of_its_client(
    monkeypatch: pytest.MonkeyPatch, headers: bytes, status: int
) -> None:
    """Refused at once, 2,300 sockets came again as fast as the relay accepted them, and a member
    who connected waited behind all of them."""
    may_go, waiting = asyncio.Event(), asyncio.Queue[str]()

    async def wait(self: Turns, address: str) -> None:
        waiting.put_nowait(address)
        await may_go.wait()

    monkeypatch.setattr(Turns, "wait_for_input", wait)
    async with serving(PROXIED) as relay, asyncio.timeout(ANSWER_S):
        reader, writer = await asyncio.open_connection("127.0.0.1", relay.server.port)
        forwarded = b"X-Forwarded-For: 10.9.9.9, 203.0.113.7\r\n"
        writer.write(b"GET / HTTP/1.1\r\nHost: x\r\n" + forwarded + headers)
        assert await waiting.get() == "203.0.113.7"
        async with relay.browser.get(f"http://{relay.at}/healthz") as answered:
            assert answered.status == 200
        assert not reader._buffer  # type: ignore[attr-defined]
        may_go.set()
        answer = await reader.read()
        writer.close()
    assert answer.split()[1] == b"%d" % status
    assert answer.count(b"HTTP/1") == 1


@pytest.fixture
def waited(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The addresses in whose turns input has waited before its request was parsed."""
    addresses, wait = list[str](), Turns.wait_for_input

    async def noted(self: Turns, address: str) -> None:
        addresses.append(address)
        await wait(self, address)

    monkeypatch.setattr(Turns, "wait_for_input", noted)
    return addresses


async def test_the_rest_of_a_long_head_names_no_client(waited: list[str]) -> None:
    """Where the first 4,096 bytes ended within its last line, its body was taken for another."""
    async with serving(PROXIED) as relay, asyncio.timeout(ANSWER_S):
        reader, writer = await asyncio.open_connection("127.0.0.1", relay.server.port)
        head = b"POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\nX: "
        body = b"\r\nX-Forwarded-For: 192.0.2.1\r\n\r\n"
        writer.write(head.ljust(4097 - 4, b"x") + b"\r\n\r\n" + body)
        assert (await reader.readline()).split()[1] == b"400"
        writer.close()
    assert waited == ["127.0.0.1"]


@pytest.mark.parametrize("ends", ["\r\n", "\r\nTransfer-Encoding: bad\r\n"])
async def test_a_long_head_is_of_who_the_proxy_names_behind_it(
    monkeypatch: pytest.MonkeyPatch, waited: list[str], ends: str
) -> None:
    """HAProxy adds its line at the end: heads of over 4,096 bytes were those of the proxy."""
    monkeypatch.setattr(Slice, "has_time", property(lambda _: False))
    async with serving(PROXIED) as relay, asyncio.timeout(ANSWER_S):
        reader, writer = await asyncio.open_connection("127.0.0.1", relay.server.port)
        cookies = "Cookie: " + "x" * 5000
        head = f"GET / HTTP/1.1\r\nHost: x\r\n{cookies}\r\nX-Forwarded-For: 203.0.113.7{ends}\r\n"
        writer.write(head.encode())
        assert (await reader.readline()).startswith(b"HTTP/1.")
        writer.close()
    assert set(waited) == {"203.0.113.7"}


async def test_a_body_waits_for_turns_of_its_client(
    monkeypatch: pytest.MonkeyPatch, waited: list[str]
) -> None:
    """1,024 bodies that came byte by byte stood in the line of the proxy, before the first bytes of
    others: who connected waited 4 s."""
    monkeypatch.setattr(Slice, "has_time", property(lambda _: False))
    async with serving(PROXIED) as relay, asyncio.timeout(ANSWER_S):
        reader, writer = await asyncio.open_connection("127.0.0.1", relay.server.port)
        head = b"POST / HTTP/1.1\r\nHost: x\r\nContent-Type: application/nostr+json+rpc\r\n"
        writer.write(head + b"X-Forwarded-For: 203.0.113.7\r\nContent-Length: 99\r\n\r\n")
        assert (await reader.readline()).startswith(b"HTTP/1.1 4")
        writer.write(b"\r\nX-Forwarded-For: 192.0.2.1\r\n")
        await eventually("it has come", lambda: len(waited) > 1)
        writer.close()
    assert waited == ["203.0.113.7"] * 2


async def test_a_request_waits_for_its_turn_before_its_path_is_looked_up(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with serving() as relay, ClientSession() as client:
        resolved = asyncio.Event()
        resolve = web.UrlDispatcher.resolve

        async def noted(self: web.UrlDispatcher, request: web.Request) -> web.UrlMappingMatchInfo:
            resolved.set()
            return await resolve(self, request)

        monkeypatch.setattr(web.UrlDispatcher, "resolve", noted)
        may_go, waits = asyncio.Event(), asyncio.Event()

        async def wait(self: Turns, address: str, seconds: float) -> None:
            waits.set()
            await may_go.wait()

        monkeypatch.setattr(Turns, "wait_for_request", wait)
        asked = asyncio.create_task(client.get(f"http://{relay.at}/healthz"))
        await waits.wait()
        assert not resolved.is_set()
        may_go.set()
        assert (await asked).status == 200
