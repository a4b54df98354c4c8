"""Which sockets are closed because all together hold too much: those that are not websockets, those
of clients that leave answers or rows unread, and those of the networks and addresses that hold most
memory when the process needs it."""

from __future__ import annotations

import asyncio
import logging
import resource
from collections import Counter
from math import inf
from time import perf_counter
from typing import TYPE_CHECKING, Final, NamedTuple

from relay.access.shares import ByNetwork, Shares, network_of, network_of_client
from relay.server.connection import MAX_UNREAD, Connection
from relay.server.socket_input import SocketInput

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from aiohttp import web

_log = logging.getLogger(__name__)

_CHECK_EVERY_S: Final = 1.0
_MAX_SILENT: Final = 1024
"""Most sockets that are not websockets. They do not count as connections, and stay open for 30 s
without a request. When there are more, some are closed, before file descriptors run out: the oldest
of the network that has most, and in it of the address that has most; of each address those whose
request is being answered last. New ones, and those that wait for the relay with a handshake, do not
count as long as there is room for so many websockets."""
_OTHER_FILES: Final = 192
"""Descriptors of files, of plug-ins and of listening sockets."""
_SILENT_AT_ONCE: Final = 100
"""So many sockets are counted, or closed, without a pause, 25 us each …"""
_PIECES: Final = 32
"""… or this fraction (1/32) of all, if that is more: in each pause some hundred others are
accepted."""
_NEW_CHECKS: Final = 5
"""A socket is new for so many checks, until its first bytes come."""
_MAX_UNREAD: Final = 32 << 20
"""Bytes of HTTP answers that clients have not read. When there are more, see `drop_unread`."""
_MAKE_ROOM_S: Final = 0.05
"""Delay until room is made for unread rows."""
_PATIENCE_S: Final = 2.0
"""How long a client may leave bytes unread while all leave too many."""


_LEAST_HELD: Final = 64 << 10
"""Bytes that connections of an address hold or have sent, if it is to help to close them."""
_LEAST_OF_NETWORK: Final = 256 * _LEAST_HELD
"""The same of a network whose addresses have less: more than those of an IPv4 /24 can have."""
_RIGHTS_AT_ONCE: Final = 50
"""Connections whose rights are looked up without a pause: 70 us each once a group has changed …"""
_RIGHTS_S: Final = 0.002
"""… or more of them, within this time: otherwise it is 1 us each."""
_CONNECTION_BYTES: Final = 15 << 10
"""Bytes that a connection takes beside what it holds."""
_NEW_S: Final = 60.0
"""Of what a connection has sent half counts when it is so old, and less later."""
_OF_UNKNOWN: Final = 4
"""What clients without a known key hold counts so many times."""


def places_of(max_connections: int) -> int:
    """`max_connections`, or fewer if this process may not open so many files: once it had opened
    all, nobody could connect, nor be displaced."""
    files, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if files == resource.RLIM_INFINITY:
        return max_connections
    most = max(files - _most_silent() - _OTHER_FILES, files // 4)
    if max_connections > most:
        text = "%d connections instead of %d: this process may open %d files, see `ulimit -n`"
        _log.warning(text, most, max_connections, files)
    return min(max_connections or most, most)


def _most_silent() -> int:
    """Sockets without a websocket that stay open: `_MAX_SILENT`, or a quarter of all files."""
    files, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return _MAX_SILENT if files == resource.RLIM_INFINITY else min(_MAX_SILENT, files // 4)


async def close_heaviest(connections: Iterable[Connection], needed: int) -> str:
    """Close all connections of the addresses that hold most memory, in the networks that hold most:
    of as many addresses as hold the `needed` bytes, at least of one. An address holds what is
    counted for its open connections, and what these have sent in each minute: memory that is not
    counted comes from that. Owners' connections are not closed; a client without an address counts
    as an address of its own. Returns what was closed, for the log."""
    now = perf_counter()
    weights, network_weights = Counter[object](), Counter[object]()
    sizes, network_sizes = Counter[object](), Counter[object]()
    at: dict[object, list[Connection]] = {}
    networks: dict[object, object] = {}
    """Address → its network."""
    rest_at = now + _RIGHTS_S
    for number, each in enumerate(tuple(connections), 1):
        if number % _RIGHTS_AT_ONCE == 0 and perf_counter() > rest_at:
            await asyncio.sleep(0)
            rest_at = perf_counter() + _RIGHTS_S
        if each.is_owner or each.is_closing:
            continue
        address = each if each.counted_as is None else each.counted_as
        held, sent = _CONNECTION_BYTES + each.held_bytes, each.taken_bytes
        size = held + int(sent * _NEW_S / (now - each.opened_at + _NEW_S))
        weight = size * (1 if each.is_known else _OF_UNKNOWN)
        network = network_of_client(address)
        networks[address] = network
        weights[address] += weight
        network_weights[network] += weight
        sizes[address] += size
        network_sizes[network] += size
        at.setdefault(address, []).append(each)
    closed = list[Connection]()
    places = list[str]()

    def rank(place: object) -> tuple[int, int]:
        return network_weights[networks[place]], weights[place]

    for place in sorted(weights, key=rank, reverse=True):
        if needed <= 0 and closed:
            break
        network = networks[place]
        if sizes[place] >= _LEAST_HELD or network_sizes[network] >= _LEAST_OF_NETWORK:
            needed -= sizes[place]
            network_sizes[network] -= sizes[place]
            closed += [each for each in at[place] if not (each.is_over or each.is_closing)]
            places.append(f"{at[place][0].counted_as}")
    for each in closed:
        each.close_displaced("the relay needs the memory, try again later")
    if not closed:
        return ""
    more = f" and {len(places) - 5} more" if len(places) > 5 else ""
    return f"{len(closed)} connections of {', '.join(places[:5])}{more}, which held or sent most"


class HttpSockets:
    """Sockets that are not websockets."""

    def __init__(self, free_places: Callable[[], int]) -> None:
        """`free_places`: how many websockets more there is room for."""
        self._free_places = free_places
        self.answered: dict[asyncio.Transport, str] = {}
        """Open sockets that an HTTP answer was sent to, oldest first, with their addresses; also
        those that were a websocket, but none that is one."""

    async def watch(self, server: web.Server) -> None:
        """Close those above the bounds, again and again."""
        while True:
            await asyncio.sleep(_CHECK_EVERY_S)
            try:
                self.drop_unread()
                await self._close_silent(server)
            except Exception:  # or no bound would hold until a restart  # noqa: BLE001
                _log.exception("the sockets without a websocket could not be checked")

    def drop_unread(self) -> None:
        """Close sockets while all unread answers together are above `_MAX_UNREAD`: the oldest of
        the network, and in it of the address, that leaves most unread. Without this, a client that
        does not read would keep its answer in memory indefinitely."""
        unread = {each: each.get_write_buffer_size() for each in self.answered}
        if sum(unread.values()) > _MAX_UNREAD:  # it is called before each large answer
            self._drop(unread)
        for each in [*self.answered]:
            if each.is_closing() and not each.get_write_buffer_size():
                del self.answered[each]

    def _drop(self, unread: dict[asyncio.Transport, int]) -> None:
        by_network: ByNetwork[asyncio.Transport] = ByNetwork()
        for each, size in unread.items():
            if size:
                by_network.add(each, self.answered[each], size)
        while by_network.total > _MAX_UNREAD:
            first = by_network.oldest()
            assert first is not None
            by_network.discard(first, self.answered[first])
            first.abort()  # `close` would wait until the client has read it

    async def _close_silent(self, server: web.Server) -> None:
        left, silent = self._free_places(), list[SocketInput]()
        # `connections` is ordered by age. aiohttp offers no event for this.
        for each in server.connections:
            if not isinstance(each, SocketInput) or each.is_websocket:
                continue
            # After a restart thousands connect at once: they are accepted faster than answered.
            is_new = each.is_unheard and each.checks < _NEW_CHECKS
            each.checks += 1
            if left > 0 and (is_new or each.waits_for_turn):
                left -= 1
            else:
                silent.append(each)
        over = len(silent) - _most_silent()
        if over <= 0:
            return
        silent.sort(key=lambda each: each.is_answered)
        piece = max(_SILENT_AT_ONCE, len(silent) // _PIECES)
        origins = dict[SocketInput, str]()
        by_network: ByNetwork[SocketInput] = ByNetwork()
        for number, each in enumerate(silent, 1):
            origins[each] = each.origin()
            by_network.add(each, origins[each])
            if number % piece == 0:
                await asyncio.sleep(0)
        for number in range(1, over + 1):
            first = by_network.oldest()
            assert first is not None
            by_network.discard(first, origins[first])
            if not first.is_websocket:  # it may have become one meanwhile
                first.force_close()
            if number % piece == 0:
                await asyncio.sleep(0)


class _Client(NamedTuple):
    """Address and rights of a connection, when it was looked at."""

    counted_as: str | None
    is_known: bool
    is_owner: bool
    network: str


def _client(connection: Connection) -> _Client:
    address = connection.counted_as
    network = network_of(address or "")
    return _Client(address, connection.is_known, connection.is_owner, network)


class UnreadRows:
    """What the clients of all websockets leave unread."""

    def __init__(self, connections: Iterable[Connection]) -> None:
        """`connections`: all that are open, whenever it is iterated."""
        self._connections = connections
        self.unsent = Shares()
        """Unread bytes, by `Connection.counted_as`."""
        self._due: asyncio.Handle | None = None
        self._due_at = inf
        """Loop time; `-inf` while connections are looked at."""

    def make_room_soon(self, seconds: float = _MAKE_ROOM_S) -> None:
        """Make room after `seconds`. Not at once: this may be called while a row is delivered, and
        looks at all connections."""
        loop = asyncio.get_running_loop()
        at = loop.time() + seconds
        if at < self._due_at:
            if self._due is not None:
                self._due.cancel()
            self._due_at, self._due = at, loop.call_later(seconds, self._look)

    def _look(self) -> None:
        self._look_at(iter([*self._connections]), {})

    def _look_at(self, left: Iterator[Connection], clients: dict[Connection, _Client]) -> None:
        """Find out who is known, then make room. `left`: those not yet looked at."""
        self._due_at = inf  # also if this fails
        rest_at = perf_counter() + _RIGHTS_S
        for number, each in enumerate(left, 1):
            if each.outbox.waiting_bytes:
                clients[each] = _client(each)
            if number % _RIGHTS_AT_ONCE == 0 and perf_counter() > rest_at:
                self._due_at = -inf
                self._due = asyncio.get_running_loop().call_soon(self._look_at, left, clients)
                return
        self._make_room(clients)

    def _make_room(self, clients: dict[Connection, _Client]) -> None:
        """Close connections until what all have left unread is within the bounds.

        The bound of connections that have had unread bytes for longer than `_PATIENCE_S` is
        `MAX_UNREAD`, that of all is twice as much. Connections without a known key are closed
        first, while they have more than a quarter (of fresh bytes, too), owners' last: each time
        the one with most, of the address with most, in the network with most unread bytes.
        `clients`: of the connections that were looked at."""
        unsent, now = self.unsent, perf_counter()
        fresh, late = list[Connection](), list[Connection]()
        of_address, of_network = Counter[str | None](), Counter[str]()
        for each in self._connections:
            each.count_unsent(few=0)  # some have read it since
            if each.unsent:
                is_late = now - each.unsent_since > _PATIENCE_S
                (late if is_late else fresh).append(each)
                of_address[each.counted_as] += each.unsent
                if each not in clients:
                    clients[each] = _client(each)
                of_network[clients[each].network] += each.unsent

        def rank(each: Connection) -> tuple[bool, bool, int, int, float]:
            address, is_known, is_owner, network = clients[each]
            sums = of_network[network], of_address[address]
            return not is_known, not is_owner, *sums, each.unsent

        # A row for very many waits for those too who read it in a moment, and who reads slowly is
        # not closed for what others have just got.
        for each in fresh:
            unsent.add(each.counted_as, -each.unsent)
        late.sort(key=rank, reverse=True)
        unknown = [each for each in late if not clients[each].is_known]
        of_unknown = sum([each.unsent for each in unknown])
        for each in unknown:
            if of_unknown <= MAX_UNREAD // 4:
                break
            if not unsent.has_room_for(clients[each], MAX_UNREAD):
                of_unknown -= each.unsent
                each.close_unread()
        for each in late[len(unknown) :]:
            if not unsent.has_room_for(clients[each], MAX_UNREAD):
                each.close_unread()
        of_unknown = 0  # a quarter of their own: others' late bytes stay
        for each in sorted(fresh, key=rank):
            client, unread = clients[each], each.unsent
            has_room = unsent.has_room_for(client, 2 * MAX_UNREAD)
            unsent.add(each.counted_as, unread)
            if not client.is_known and of_unknown + unread <= MAX_UNREAD // 4:
                of_unknown += unread
            elif not has_room:
                each.close_unread()
        if not all(unsent.has_room_for(clients[each], MAX_UNREAD) for each in fresh):
            self.make_room_soon(_PATIENCE_S)
