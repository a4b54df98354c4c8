"""The aiohttp application: websocket, NIP-11, NIP-86, NIP-05 and NIP-AD documents, health and
metrics on one port."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import sys
from dataclasses import replace
from http import HTTPStatus
from ipaddress import IPv6Address, ip_address
from time import thread_time
from typing import TYPE_CHECKING, Final, Protocol, cast

from aiohttp import hdrs, web, web_protocol, web_response, web_ws
from aiohttp.http_exceptions import HttpProcessingError
from prometheus_client import CONTENT_TYPE_LATEST

from relay.access.quotas import subnet_of
from relay.access.shares import Shares, network_of
from relay.errors import UserError
from relay.nostr.nip42 import RelayAddress, relay_address
from relay.nostr.nip98 import HttpRequest
from relay.server import http
from relay.server.connection import Connection, Stop, check_all
from relay.server.eviction import HttpSockets, UnreadRows, close_heaviest, places_of
from relay.server.history import BEFORE, HISTORY
from relay.server.listening import (
    BACKLOG,
    cannot_listen,
    has_ipv6_loopback,
    held_addresses,
)
from relay.server.nip86 import MAX_BODY, Calls, refusal
from relay.server.receipts import PARAMETER
from relay.server.slots import TRIAL_S, Full, Slots
from relay.server.socket_input import SocketInput, Unfinished, without_host
from relay.server.tls import Certificate, Handshakes
from relay.server.turns import Slice, Turns
from relay.server.websocket import RelaySocket

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Sequence
    from ipaddress import IPv4Address
    from socket import socket
    from ssl import SSLContext

    from aiohttp.typedefs import Handler
    from aiohttp.web_protocol import _RequestHandler

    from relay.access.management import Blocklist
    from relay.access.shares import Standing
    from relay.server.nip86 import Reply
    from relay.server.services import ServerServices

_log = logging.getLogger(__name__)

_ACCEPTED: Final = 32
"""Connections that each listening socket accepts in an iteration of the loop: uvloop accepts one
for each of its handles, and who connects waits behind all that did before."""
_MOST_ENDING: Final = 128
"""Websockets of one network whose clients have left, and that wait for turns to end; with more it
opens no further ones. They have no place, and would fill the memory."""
_STOP_TIMEOUT_S: Final = 5.0
_SHUTDOWN_S: Final = 2.0
_KEEPALIVE_S: Final = 30.0
_REQUEST_S: Final = 1.0
"""How long a stop waits for the first request of a connection that was just accepted."""
_POLL_S: Final = 0.01
_REQUEST_COST_S: Final = 0.0005
"""Seconds of the loop that a request counts for in `Turns`: about what a small one takes."""
_BYTE_COST_S: Final = 1e-6
"""The same for each byte of its head: cookies and paths with special characters take as long."""
_MAX_PATH: Final = 2048
"""Bytes. Of so many slashes, aiohttp takes 0.6 ms to find no handler; of 8,000 it takes 9 ms."""
_CHECK_EVERY_S: Final = 1.0
_BODY_TIMEOUT_S: Final = 10.0
_BODY_BUFFER: Final = 65_536
"""Bytes of an unread request body that are buffered; up to twice as many may arrive."""

_WAITING: Final = 16 << 10
"""Bytes of a websocket's messages that wait to be handled; with more, its input is not parsed. Each
counts for 128 bytes more than it has; an empty one takes 190."""

_LARGE_ANSWER: Final = 65_536
"""Bytes. The unread bytes are counted before each larger answer, otherwise every second; the socket
of a larger answer is closed after it."""


class _ClientErrors(logging.Filter):
    """Drops malformed requests and early disconnects: any client could fill the log."""

    def filter(self, record: logging.LogRecord) -> bool:
        error = record.exc_info[1] if record.exc_info else None
        return not isinstance(
            error, (HttpProcessingError, web.RequestPayloadError, ConnectionError)
        )


class Pages(Protocol):
    """The web console, as the server sees it."""

    def add_routes(self, router: web.UrlDispatcher, base: str) -> None:
        """`base`: path of the relay, without a slash at the end."""

    async def front(self, request: web.Request) -> web.Response:
        """The page at the relay's own address."""

    def rights_changed(self) -> None:
        """Policies or NIP-86 state changed."""


class Server:
    """`async with` it: listens inside; on exit all connections get their OKs and are closed."""

    def __init__(self, services: ServerServices, listening: Sequence[socket], host: str) -> None:
        """`listening`: bound sockets, closed at exit. `host`: shown in `url`."""
        self._services = services
        self._config = services.config
        self._host = host
        self._listening = listening
        self._connections: dict[Connection, web.Request] = {}
        self._of_network: dict[str, set[Connection]] = {}
        """The same by network, without those on this machine."""
        self._addresses_checked = self._of_addresses()
        """`_of_addresses` when all connections were checked last."""
        self._checking = asyncio.Lock()
        self._checked_at = float("-inf")
        self._writable = True
        limits = services.config.limits
        self._places = places_of(limits.max_connections)
        self._slots: Slots[Connection] = Slots(self._places, limits.connections_per_address)
        self._turns = Turns()
        services.fanout.work_of = self._delivery_apart
        self._unfinished = Unfinished()
        self._unread = UnreadRows(self._connections)
        self._open_filters = Shares()
        self._http_sockets = HttpSockets(lambda: (self._places or sys.maxsize) - len(self._slots))
        services.metrics.watch(
            "connections_logged_in",
            "Open connections with a login.",
            lambda: sum(1 for each in self._connections if each.authenticated),
        )
        services.metrics.watch(
            "subscriptions", "Open subscriptions.", lambda: services.queries.open_subscriptions
        )
        services.metrics.watch(
            "queries_waiting",
            "REQs and COUNTs behind others of their connection.",
            lambda: sum(each.queries_waiting for each in self._connections),
        )
        self._pages: Pages | None = None
        self._calls = Calls(
            services.state,
            services.store,
            services.ingest,
            services.invitations,
            clock=services.clock,
            rights_changed=self.rights_changed,
            used=services.used_calls,
        )
        url = services.config.relay.url
        self._path = (
            "/" + (relay_address(url) or RelayAddress("", None, "")).path.strip("/") if url else "/"
        )
        # By default aiohttp names its version and Python's in every answer.
        web_response.SERVER_SOFTWARE = "rookery"  # type: ignore[attr-defined]
        # Requests of one socket that are parsed ahead: no browser sends another before the answer.
        web_protocol.MAX_MSG_QUEUE_SIZE = 2
        web_ws.DEFAULT_CHUNK_SIZE = _WAITING // 2  # type: ignore[attr-defined]
        app = web.Application(
            client_max_size=services.config.limits.max_message_length, middlewares=[self._answer]
        )
        # Clients add a slash to a URL, or take it away.
        for path in dict.fromkeys((self._path, self._path.rstrip("/") + "/")):
            app.router.add_route("GET", path, self._get)
            app.router.add_route("POST", path, self._post)
            app.router.add_route("OPTIONS", path, self._options)
        app.router.add_get("/.well-known/nostr.json", self._nostr_json)
        app.router.add_route("OPTIONS", "/.well-known/nostr.json", self._options)
        app.router.add_get("/healthz", self._healthz)
        app.router.add_get("/readyz", self._readyz)
        app.router.add_get("/metrics", self._metrics)
        self._router = app.router
        logger = logging.getLogger("relay.http")
        logger.addFilter(_ClientErrors())
        self._runner = web.AppRunner(
            app,
            access_log=None,
            logger=logger,
            handle_signals=False,
            shutdown_timeout=_SHUTDOWN_S,
            keepalive_timeout=_KEEPALIVE_S,
            read_bufsize=_BODY_BUFFER,
            auto_decompress=False,  # a small body could keep the loop busy for seconds
        )
        self._handle: Handler | None = None
        """aiohttp's own: finds the route, and calls its handler."""
        self._servers: list[asyncio.Server] = []
        self._watching: asyncio.Task[None] | None = None
        self._dropping: asyncio.Task[None] | None = None
        self._heartbeat: asyncio.Task[None] | None = None
        self._handshakes: Handshakes | None = None
        self._is_stopping = False
        self.stop = Stop.FOR_GOOD
        """The reason that connections are given at exit."""
        self.port: int = listening[0].getsockname()[1]
        self.addresses = self._own_addresses()
        self._elsewhere = frozenset(each for each in self.addresses if not _is_loopback(each.host))
        self._public = frozenset(
            each for each in self._elsewhere if not _is_address(each.host) or _is_global(each.host)
        )
        """The addresses that do not name another relay on another machine."""
        is_local = not services.config.server.trusted_proxies and all(
            _is_loopback(each.getsockname()[0]) for each in listening
        )
        self.addresses_from_anywhere = (
            self.addresses if services.config.relay.url or is_local else self._public
        )
        """The addresses that a request to vanish may name: any connection may send it (NIP-62)."""

    def show(self, pages: Pages) -> None:
        """Serve the web console too; before the server listens."""
        self._pages = pages
        pages.add_routes(self._router, self._path.rstrip("/"))

    async def close_heaviest(self, needed: int) -> str:
        """Close what holds most memory: the process needs so many bytes. Returns what was closed,
        for the log."""
        ended = 0 if self._handshakes is None else self._handshakes.end_for(needed)
        handshakes = f"unfinished TLS handshakes, {ended >> 20} MiB" if ended else ""
        if ended >= needed:
            return handshakes
        closed = await close_heaviest(self._connections, needed - ended)
        return " and ".join(each for each in (handshakes, closed) if each)

    @property
    def connections(self) -> Collection[Connection]:
        return self._connections.keys()

    @property
    def url(self) -> str:
        return f"{self._scheme}://{_in_url(self._host)}:{self.port}"

    @property
    def _scheme(self) -> str:
        return "wss" if self._config.server.tls_cert else "ws"

    async def __aenter__(self) -> Server:
        await self._runner.setup()
        server = self._runner.server
        assert server is not None
        self._handle = cast("Handler", server.request_handler)
        server.request_handler = cast("_RequestHandler", self._in_turn)
        server.request_factory = without_host(server.request_factory)
        try:
            tls = await self._watched_certificate()
            loop = asyncio.get_running_loop()
            make: Callable[[], asyncio.BaseProtocol] = self._socket_input
            limits = self._config.limits
            if tls is not None:
                # An address may reconnect all its connections at once, also after a restart.
                one = 2 * limits.connections_per_address
                self._handshakes = make = Handshakes(tls, make, self._places, one, self._turns)
            for each in [*self._listening] * _ACCEPTED:
                own = each.dup()
                try:
                    accepting = await loop.create_server(make, sock=own, backlog=BACKLOG)
                except OSError:
                    own.close()
                    raise
                self._servers.append(accepting)
        except OSError as error:  # two processes can bind one port; the second cannot listen
            await self.__aexit__()
            raise cannot_listen(self._host, self.port, error) from error
        except UserError:
            await self.__aexit__()
            raise
        self._dropping = asyncio.create_task(
            self._http_sockets.watch(server), name="drop silent sockets"
        )
        self._heartbeat = asyncio.create_task(check_all(self._connections), name="heartbeat")
        return self

    def _delivery_apart(self, name: str, standing: Standing) -> Slice:
        """`name`: a network, or an admitted key."""
        return Slice(self._turns, thread_time, self._turns.account(name, standing))

    def _socket_input(self) -> SocketInput:
        server = self._runner.server
        assert server is not None
        trusted = self._config.server.trusted_proxies
        return SocketInput(server, self._turns, self._unfinished, trusted, **server._kwargs)

    async def _watched_certificate(self) -> Callable[[], SSLContext] | None:
        server = self._config.server
        if server.tls_cert is None or server.tls_key is None:
            return None
        certificate = await asyncio.to_thread(
            Certificate, server.tls_cert, server.tls_key, self._services.readiness
        )
        self._watching = asyncio.create_task(certificate.watch(), name="certificate")
        return certificate.current

    async def __aexit__(self, *_: object) -> None:
        for server in self._servers:
            server.close()
        for each in self._listening:
            each.close()
        self._is_stopping = True
        self._services.ingest.hurry()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_STOP_TIMEOUT_S):
                await asyncio.gather(self._stop_connections(), self._first_requests())
        for task in (self._watching, self._dropping, self._heartbeat):
            if task is not None:
                task.cancel()
        await self._runner.cleanup()

    async def _first_requests(self) -> None:
        """Wait for the first requests of connections that were just accepted; aiohttp would close
        them."""
        now = asyncio.get_running_loop().time
        until = now() + _REQUEST_S
        while self._is_expecting(now(), until):  # noqa: ASYNC110 -- aiohttp gives no event
            await asyncio.sleep(_POLL_S)

    def _is_expecting(self, now: float, until: float) -> bool:
        if self._handshakes and now < until:
            return True
        server = self._runner.server
        return server is not None and any(_is_new(each, now) for each in server.connections)

    async def _stop_connections(self) -> None:
        stops = [connection.stop(self.stop) for connection in self._connections]
        await asyncio.gather(*stops, return_exceptions=True)

    def _own_addresses(self) -> frozenset[RelayAddress]:
        """The URLs that AUTH and vanish events may name; never taken from a Host header."""
        url = self._config.relay.url
        if url:
            known = relay_address(url)
            return frozenset({known} if known else ())
        held = held_addresses(self._listening)
        # Of the host, only a name: an address counts where a socket is bound to it.
        hosts = {each for each in (self._host, self._config.server.host) if not _is_address(each)}
        local = {each for each in hosts if _is_local(each)}
        urls = {(name, port) for name in hosts - local for _, port in held} | set(held)
        for name, port in held:
            if name != "127.0.0.1":
                continue
            if ("::1", port) in held or not has_ipv6_loopback():
                urls |= {(each, port) for each in ("localhost", *local)}
            else:
                _log.warning(
                    "a login that names localhost:%d is refused: the relay does not listen on"
                    " [::1]:%d, where programs look for localhost first and another program may"
                    " listen; name 127.0.0.1, or set [relay] url",
                    port,
                    port,
                )
        found = [relay_address(f"{self._scheme}://{_in_url(name)}:{port}") for name, port in urls]
        return frozenset(address for address in found if address is not None)

    def addresses_for(self, request: web.Request) -> frozenset[RelayAddress]:
        """The URLs that a login on this connection may name. Who comes from the network may have
        got a login for localhost from a relay there, and who comes from another network, or through
        a proxy, one for a private address."""
        came_in_on = _came_in_on(request)
        if self._config.relay.url or came_in_on is None:
            return self.addresses
        name, port = came_in_on
        proxies = self._config.server.trusted_proxies
        client = http.client_address(request, proxies)
        is_remote = client is not None and _is_global(str(client)) and not _is_global(name)
        came_in = relay_address(f"{self._scheme}://{_in_url(name)}:{port}")
        if is_remote or http.is_from_elsewhere(request, proxies):
            return self._public | {came_in} if came_in and _is_global(name) else self._public
        known = self.addresses if _is_loopback(name) else self._elsewhere
        return known | {came_in} if came_in and came_in not in known else known

    # -- requests -------------------------------------------------------------------------------

    async def _in_turn(self, request: web.Request) -> web.StreamResponse:
        """One request in each turn, so that many that arrive at once do not block the loop.
        Before a handler is looked for: aiohttp tries every part of the path."""
        path = request.raw_path.partition("?")[0]
        address = subnet_of(self.address_of(request))
        socket = cast("SocketInput", request.protocol)
        socket.client_address = address
        async with socket.while_open():  # closed ones would wait in memory without a bound
            if _is_handshake(request):
                await self._turns.wait_for_handshake(address)
            else:
                headers = sum([len(a) + len(b) for a, b in request.raw_headers])
                cost = _REQUEST_COST_S + (len(request.raw_path) + headers) * _BYTE_COST_S
                await self._turns.wait_for_request(address, cost)
        if request.transport is None:
            raise ConnectionResetError("the client has gone")
        if len(path) > _MAX_PATH:
            return web.Response(status=HTTPStatus.REQUEST_URI_TOO_LONG)
        # aiohttp would write "100 Continue" also where no body is read. Caddy 2.6 then goes on to
        # read the body of a request that has ended, and crashes. Clients send such a request again
        # without `Expect` (RFC 9110, 10.1.1).
        if request.headers.get(hdrs.EXPECT):
            return web.Response(status=HTTPStatus.EXPECTATION_FAILED)
        assert self._handle is not None
        return await self._handle(request)

    @web.middleware
    async def _answer(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        response: web.StreamResponse
        try:
            response = await handler(request)
        except web.HTTPException as refused:
            headers = {**refused.headers, "X-Content-Type-Options": "nosniff"}
            response = web.Response(status=refused.status, text=refused.text, headers=headers)
            # aiohttp keeps the exception; its frames form a cycle that holds the request and its
            # body.
            refused.__traceback__ = None
        finally:
            if request.transport is not None:
                address = cast("SocketInput", request.protocol).client_address
                self._http_sockets.answered[request.transport] = address
        if (response.content_length or 0) > _LARGE_ANSWER:
            self._http_sockets.drop_unread()
            response.force_close()  # aiohttp keeps an answer until the next request of its socket
        return response

    async def _get(self, request: web.Request) -> web.StreamResponse:
        if _is_handshake(request):
            return await self._websocket(request)
        if PARAMETER in request.query:
            return _response(await self._receipt(request))
        if HISTORY in request.query:
            return _response(await self._history(request))
        # A cache must not give one answer for the other.
        headers = {**http.CORS, hdrs.VARY: hdrs.ACCEPT}
        if http.wants_information(request.headers):
            return web.Response(
                body=self.information(), content_type=http.NOSTR_JSON, headers=headers
            )
        if self._pages is not None:
            return await self._pages.front(request)
        return web.Response(
            text=http.page(self._config, self._services.state.management),
            content_type="text/html",
            headers=headers,
        )

    def information(self) -> bytes:
        """The NIP-11 document."""
        services = self._services
        return http.information(
            self._config, services.state, services.relay_pubkey, services.store.features
        )

    async def _receipt(self, request: web.Request) -> Reply:
        if not self.may_connect(request):
            return refusal(403, "blocked: your address is blocked")
        return await self._services.receipts.reply(
            request.query[PARAMETER],
            request.headers.get(hdrs.AUTHORIZATION),
            HttpRequest(request.method, request.query_string, b""),
            self.addresses_for(request),
            self.counted_as(request),
        )

    async def _history(self, request: web.Request) -> Reply:
        if not self.may_connect(request):
            return refusal(403, "blocked: your address is blocked")
        return await self._services.history.reply(
            request.query[HISTORY],
            request.query.get(BEFORE),
            request.headers.get(hdrs.AUTHORIZATION),
            HttpRequest(request.method, request.rel_url.raw_query_string, b""),
            self.addresses_for(request),
            self.counted_as(request),
        )

    async def _nostr_json(self, request: web.Request) -> web.Response:
        """NIP-05, and NIP-AD with `path` (its text says `ad`, nak and nostr-tools ask `path`)."""
        services = self._services
        key = "path" if "path" in request.query else "ad"
        asked = request.query.get(key)
        if asked is None:
            name = request.query.get("name")
            body = http.names(self.url_for(request), services.relay_pubkey, name)
        else:
            # nostr-tools does not decode the path it was given and looks for that spelling.
            parts = request.rel_url.raw_query_string.split("&")
            raw = [part[len(key) + 1 :] for part in parts if part.startswith(f"{key}=")]
            body = http.web_address(
                dict.fromkeys((asked, *raw[:1])),
                self._path,
                self.url_for(request),
                services.state,
                services.relay_pubkey,
            )
        return web.Response(body=body, content_type="application/json", headers=http.CORS)

    @property
    def is_secure(self) -> bool:
        """Whether clients come over TLS, to the relay itself or to a proxy before it."""
        return (self._config.relay.url or f"{self._scheme}:").lower().startswith("wss:")

    def url_for(self, request: web.Request) -> str:
        """The relay's public URL, else the address that the request came in on."""
        came_in_on = _came_in_on(request)
        if self._config.relay.url or came_in_on is None:
            return self._config.relay.url or self.url
        name, port = came_in_on
        return f"{self._scheme}://{_in_url(name)}:{port}"

    async def _post(self, request: web.Request) -> web.Response:
        """NIP-86 (N86-01)."""
        return _response(await self._management_reply(request), http.RPC_JSON)

    async def _management_reply(self, request: web.Request) -> Reply:
        # Not `content_type`: aiohttp parses all of the header, and 8 kB of quotes take 0.6 s.
        media_type = request.headers.get(hdrs.CONTENT_TYPE, "").partition(";")[0].strip().lower()
        if media_type != http.RPC_JSON:
            return refusal(415, f"Content-Type must be {http.RPC_JSON}")
        header = request.headers.get(hdrs.AUTHORIZATION)
        call = HttpRequest(request.method, request.query_string, None)
        refused = self._calls.caller_refused(header, call, self.addresses_for(request))
        if refused is not None:
            return refused
        try:
            async with asyncio.timeout(_BODY_TIMEOUT_S):
                await request.content.readexactly(MAX_BODY + 1)
            return refusal(413, f"the body has more than {MAX_BODY} bytes")
        except TimeoutError:
            return refusal(408, "the body did not arrive in time")
        except asyncio.IncompleteReadError as end:
            body = end.partial
        return await self._calls.reply(
            header,
            replace(call, body=body),
            self.addresses_for(request),
            lambda blocked: self._may_connect(request, blocked),
        )

    async def _options(self, request: web.Request) -> web.Response:
        headers = dict(http.CORS)
        if "authorization" in request.headers.get("Access-Control-Request-Headers", "").lower():
            # Browsers do not accept `*` for this header, which NIP-86 needs.
            headers["Access-Control-Allow-Headers"] = "*, Authorization"
        return web.Response(status=204, headers=headers)

    async def _websocket(self, request: web.Request) -> web.StreamResponse:
        services, config = self._services, self._config
        if not self.may_connect(request):
            services.metrics.connection_refused()
            return web.Response(status=403, text="your address is blocked")
        transport = request.transport
        if transport is None or transport.is_closing():
            raise ConnectionResetError("the client has gone")
        socket = RelaySocket(
            max_message_length=config.limits.max_message_length,
            compression=config.server.compression,
        )
        if not socket.can_prepare(request):  # before another connection is closed for it
            return web.Response(status=400, text="this is no handshake of a websocket (RFC 6455)")
        counted = self.address_of(request)
        name = subnet_of(counted)
        is_local = self._is_local(request)
        network = None if is_local else network_of(name)
        if network is not None and self._number_ending(network) >= _MOST_ENDING:
            services.metrics.connection_refused()
            text = "many connections of your network are still being closed"
            return web.Response(status=503, text=text, headers={"Retry-After": "1"})
        match self._slots.make_room(name, is_limited=not is_local):
            case None:
                pass
            case Full.RELAY:
                services.metrics.connection_refused()
                return web.Response(
                    status=503, text="too many connections", headers={"Retry-After": "30"}
                )
            case Full.ADDRESS:
                services.metrics.connection_refused()
                return web.Response(status=429, text="too many connections from your address")
            case Connection() as displaced:
                self._close_displaced(displaced)
        # Nothing is awaited until it has its place: or more could come than there is room for.
        connection = Connection(
            services,
            request,
            socket,
            self.addresses_for(request),
            self._turns,
            address=counted,
            trusted=self._is_trusted(request),
            logged_in=self._slots.logged_in,
            counted_as=None if is_local else name,
            # A proxy that is not configured may still say for whom it passes this on.
            is_local=is_local
            and not http.is_from_elsewhere(request, config.server.trusted_proxies),
            unsent=self._unread.unsent,
            make_room=self._unread.make_room_soon,
            open_filters=self._open_filters,
        )
        self._connections[connection] = request
        if network is not None:
            self._of_network.setdefault(network, set()).add(connection)
        self._http_sockets.answered.pop(transport, None)  # what is unread counts as its rows
        if self._slots.add(connection, name, is_limited=not is_local):
            loop = asyncio.get_running_loop()
            trial = loop.call_later(TRIAL_S, self._end_trial, connection)
        else:
            trial = None
        services.metrics.connections(len(self._connections))
        stopping = asyncio.create_task(connection.stop(self.stop)) if self._is_stopping else None
        try:
            await connection.serve()
            if stopping is not None:
                await stopping
        finally:
            if trial is not None:
                trial.cancel()
            del self._connections[connection]
            if network is not None:
                self._of_network[network].discard(connection)
                if not self._of_network[network]:
                    del self._of_network[network]
            self._slots.remove(connection)
            connection.release()
            services.metrics.connections(len(self._connections))
        return socket

    def _number_ending(self, network: str) -> int:
        """How many connections of the network have lost their client."""
        own = self._of_network.get(network, ())
        return 0 if len(own) < _MOST_ENDING else sum([each.is_over for each in own])

    def _end_trial(self, connection: Connection) -> None:
        displaced = self._slots.end_trial(connection)
        if displaced is not None:
            self._close_displaced(displaced)

    def _close_displaced(self, connection: Connection) -> None:
        connection.close_displaced()
        late = self._slots.cut_off()
        if late is not None:
            late.cut_off()

    def may_connect(self, request: web.Request) -> bool:
        return self._may_connect(request, self._services.state.blocked)

    def address_of(self, request: web.Request) -> IPv4Address | IPv6Address | None:
        """The client address by which connections and rates are counted."""
        return http.counted_address(request, self._config.server.trusted_proxies)

    def counted_as(self, request: web.Request) -> str | None:
        """See `Sharer.counted_as`."""
        if self._is_local(request):
            return None
        return subnet_of(self.address_of(request))

    def _is_local(self, request: web.Request) -> bool:
        """Whether a program on this machine is connected. Its browser opens what any page asks
        for."""
        is_local = http.is_local(request, self._config.server.trusted_proxies)
        return is_local and not self.is_of_page(request)

    def is_of_page(self, request: web.Request) -> bool:
        """Whether a page of another origin sent the request."""
        # First without the addresses: programs send no `Origin`, and each handshake asks.
        return hdrs.ORIGIN in request.headers and http.is_of_page(
            request, self.addresses_for(request)
        )

    def _may_connect(self, request: web.Request, blocked: Blocklist) -> bool:
        return http.may_connect(request, self._config.server.trusted_proxies, blocked)

    def _is_trusted(self, request: web.Request) -> bool:
        """Whether the client is in `[actors] trusted_readers`. A page in a browser on a trusted
        machine is not."""
        address = http.client_address(request, self._config.server.trusted_proxies)
        readers = self._services.state.policy.trusted_readers
        return http.is_within(address, readers) and not self.is_of_page(request)

    async def _healthz(self, _: web.Request) -> web.Response:
        return web.Response(text="ok\n")

    async def _readyz(self, request: web.Request) -> web.Response:
        """200 while the store accepts writes, else 503. Only clients in `metrics_from` get the
        problems: they name files and rules."""
        problems = dict(self._services.readiness.problems)
        writable = await self._is_writable()
        if not writable:
            problems["store"] = "cannot write: is the disk full?"
        elif self._services.store.is_nearly_full():
            writable = False
            problems["store"] = "the disk is nearly full: only owners can write"
        lines = [f"{name}: {text}" for name, text in problems.items()] or ["ok"]
        if not self._may_see_metrics(request):
            lines = ["ok" if writable else "not ready"]
        return web.Response(text="\n".join(lines) + "\n", status=200 if writable else 503)

    async def _is_writable(self) -> bool:
        """Whether the store accepts writes. The check writes to the store, so it runs at most once
        a second."""
        async with self._checking:
            now = asyncio.get_running_loop().time()
            if now - self._checked_at > _CHECK_EVERY_S:
                self._writable = await self._services.store.is_writable()
                self._checked_at = now
            return self._writable

    def rights_changed(self) -> None:
        """Policies or NIP-86 state changed: check every connection again (N42-16)."""
        state = self._services.state
        before, self._addresses_checked = self._addresses_checked, self._of_addresses()
        # Addresses are read from headers again: 50 us for each connection.
        is_of_addresses = before != self._addresses_checked
        for connection, request in self._connections.items():
            if is_of_addresses:
                connection.trust(trusted=self._is_trusted(request))
            if is_of_addresses and not self.may_connect(request):
                connection.close_blocked()
            elif not connection.authenticated.isdisjoint(state.actors.banned):
                connection.close_subscriptions()
        if self._pages is not None:
            self._pages.rights_changed()

    def _of_addresses(self) -> tuple[object, ...]:
        """The part of the state that rights of addresses depend on."""
        state = self._services.state
        return state.blocked, state.policy.trusted_readers

    def _may_see_metrics(self, request: web.Request) -> bool:
        address = http.client_address(request, self._config.server.trusted_proxies)
        return http.is_within(address, self._config.server.metrics_from)

    async def _metrics(self, request: web.Request) -> web.Response:
        if not self._may_see_metrics(request):
            return web.Response(status=403, text="not allowed by [server] metrics_from\n")
        metrics = self._services.metrics
        return web.Response(body=metrics.page(), headers={"Content-Type": CONTENT_TYPE_LATEST})


def _is_handshake(request: web.Request) -> bool:
    return request.headers.get(hdrs.UPGRADE, "").lower() == "websocket"


def _is_new(protocol: web.RequestHandler, now: float) -> bool:
    """Whether the socket was accepted less than _REQUEST_S ago and has sent no request."""
    # aiohttp does not tell when; before the first request its keepalive time starts at the accept.
    accepted_at = protocol._next_keepalive_close_time - _KEEPALIVE_S
    return protocol._request_count == 0 and now - accepted_at < _REQUEST_S


def _response(reply: Reply, content_type: str = "application/json") -> web.Response:
    headers = {**http.CORS, hdrs.CACHE_CONTROL: "no-store"}  # some are for the signer alone
    if reply.status == 401:
        headers[hdrs.WWW_AUTHENTICATE] = "Nostr"
    return web.Response(
        status=reply.status, body=reply.body, content_type=content_type, headers=headers
    )


def _is_address(host: str) -> bool:
    try:
        ip_address(host)
    except ValueError:
        return False
    return True


def _came_in_on(request: web.Request) -> tuple[str, int] | None:
    """The relay's own end of the connection."""
    name = request.transport and request.transport.get_extra_info("sockname")
    # A socket for both families has `::ffff:192.0.2.7` where its clients say `192.0.2.7`.
    return (str(_unmapped(name[0])) if _is_address(name[0]) else name[0], name[1]) if name else None


def _is_loopback(host: str) -> bool:
    if not _is_address(host):
        return _is_local(host)
    return _unmapped(host).is_loopback


def _is_global(host: str) -> bool:
    return _unmapped(host).is_global


def _unmapped(host: str) -> IPv4Address | IPv6Address:
    address = ip_address(host)
    mapped = address.ipv4_mapped if isinstance(address, IPv6Address) else None
    return mapped or address


def _is_local(host: str) -> bool:
    """Whether programs look for it on [::1] and 127.0.0.1 (RFC 6761)."""
    return f".{host.lower().rstrip('.')}".endswith(".localhost")


def _in_url(host: str) -> str:
    return f"[{host}]" if ":" in host else host
