"""How many changes are committed together: fewer of a client whose changes read much in one
transaction, or took longer than they cost; one at a time of clients whose transactions are long. A
deletion that reads too much even alone is carried out in pieces."""

from __future__ import annotations

from collections import Counter
from itertools import accumulate, chain
from math import inf
from typing import TYPE_CHECKING, Final

from relay.access.shares import network_of_client
from relay.facts import Origin
from relay.nostr import kinds
from relay.nostr.kinds import is_ephemeral
from relay.write.commands import (
    ManagementChange,
    WriteEvent,
    client_or_type,
    connection_or_type,
)
from relay.write.costs import CHANGES_GROUP, COST_S, MAX_BATCH
from relay.write.pieces import pieces_for

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from relay.write.commands import LaneItem

_MAY_GIVE_RIGHTS: Final = CHANGES_GROUP | {kinds.RELAY_JOIN}
_MAX_LIMITS: Final = 1024
"""Clients, or networks, that are remembered for each purpose; the last ones are kept."""
_LARGE: Final = 1 / 16
"""A client that reads more than this part of what a batch may read has a limit from then on."""
_CALM: Final = 8
"""After so many commits a client with a limit may commit twice as many changes at once."""

_SLOW: Final = 5.0
"""A batch, or what one client sent, was slow if it took so many times as long as estimated …"""
_SLOW_S: Final = 0.02
"""… a batch only if it also took longer than this."""
_LEAST_BATCH: Final = 16
"""Cost of the smallest batches."""

LONG_S: Final = 0.25
"""A transaction that takes longer makes the batches smaller, or its client slow."""
_PAUSE: Final = 4.0
"""After a long transaction, or one of a slow client, none of these is served for so many times as
long."""
_MAX_PAUSE_S: Final = 600.0
"""Pauses after several long transactions add up to no more."""
_QUICK: Final = 3
"""After so many quick transactions of its own a client is no longer slow."""
_UNKNOWN_EVERY: Final = 4
"""Of so many turns of slow clients, or of those with a limit, one is for a client without a known
key: where anybody may make a group, anybody can have a known key."""
_MAX_SLOW: Final = 16_384
"""Clients that are known to be slow or quick."""
_WITH_EFFECTS: Final = CHANGES_GROUP | {kinds.DELETION, kinds.VANISH, *kinds.MEMBERSHIP_REQUESTS}
"""Kinds whose events may wait because such events of others took long. Not what people and agents
say."""
_SLOW_KIND_S: Final = 60.0
"""So long after the pause events of such a kind still wait."""


class Limit:
    """How many changes of a client may be committed together."""

    __slots__ = ("_calm", "_until", "number")

    def __init__(self, number: int, until: float | None = None) -> None:
        """`until`: time of the loop; the limit ends with the first commit after it. None: it ends
        when `number` has grown to `MAX_BATCH`."""
        self.number = number
        self._until = until
        self._calm = 0

    def succeeded(self, now: float) -> None:
        if self._until is not None:
            self.number = MAX_BATCH if now >= self._until else self.number
            return
        self._calm += 1
        if self._calm >= _CALM:
            self.number, self._calm = 2 * self.number, 0


class ClientLimits:
    """Limits of clients whose changes read much, or may take long: at most `_MAX_LIMITS`."""

    def __init__(self) -> None:
        self._limits: dict[object, Limit] = {}
        """The one that was served last is the last."""
        self._turns = 0
        """How many turns they had."""
        self._turn_of: dict[object, int] = {}
        """Network → the number of its last turn; the latest is the last. At most `_MAX_LIMITS`."""

    def apart(
        self, batch: Sequence[LaneItem]
    ) -> tuple[Sequence[LaneItem], dict[object, Sequence[LaneItem]]]:
        """What can be committed together, and what each client with a limit has."""
        limits = self._limits
        if not limits:
            return batch, {}
        parts: dict[object, list[LaneItem]] = {}
        together: list[LaneItem] = []
        for item in batch:
            client = client_or_type(item)
            (parts.setdefault(client, []) if client in limits else together).append(item)
        return together, {**parts}

    def next_of(self, parts: Mapping[object, Sequence[LaneItem]]) -> object:
        """Which of these clients is served: in three of four turns one of known keys; of the
        network that was served longest ago, and in it the client that was."""
        self._turns += 1
        known = {client for client, items in parts.items() if _is_known(items[0])}
        others = parts.keys() - known
        clients = others if others and self._turns % _UNKNOWN_EVERY == 0 else known or others
        longest_ago = [client for client in self._limits if client in clients]
        client = min(longest_ago or clients, key=self._turn_of_network)
        network = network_of_client(client)
        self._turn_of.pop(network, None)
        self._turn_of[network] = self._turns
        if len(self._turn_of) > _MAX_LIMITS:
            del self._turn_of[next(iter(self._turn_of))]
        return client

    def _turn_of_network(self, client: object) -> int:
        return self._turn_of.get(network_of_client(client), 0)

    def split(
        self, part: Sequence[LaneItem], shares: Mapping[object, float], budget: float
    ) -> tuple[Sequence[LaneItem], Sequence[LaneItem]]:
        """For several clients that read too much together: what is tried next, and what waits.

        `shares`: client → its part of what may be read. Changes by owners come first, then those
        that waited most often, then those that read little, as many as `budget` has room for; those
        that read much are served apart from now on. Without shares half of the clients are tried.
        """
        clients = Counter(map(client_or_type, part))
        waited: dict[object, float] = {}
        for item in part:
            client = client_or_type(item)
            waited[client] = max(_times_left(item), waited.get(client, 0))
        ordered = sorted(clients, key=lambda client: (-waited[client], shares.get(client, 0.0)))
        number = len(ordered) // 2
        if shares:
            for client, items in clients.items():
                if shares.get(client, 0.0) > _LARGE:
                    self.set(client, Limit(items))
            sums = accumulate(shares.get(client, 0.0) for client in ordered[:-1])
            number = max(1, sum(1 for each in sums if each <= budget))
        first = set(ordered[:number])
        now = [item for item in part if client_or_type(item) in first]
        left = [item for item in part if client_or_type(item) not in first]
        for item in left:
            if isinstance(item, WriteEvent):
                item.times_left += 1
        return now, left

    def take(self, client: object) -> Limit:
        """Take out the client's limit: it has none until `set` is called."""
        return self._limits.pop(client, None) or Limit(MAX_BATCH)

    def note(self, large_readers: Iterable[LaneItem]) -> None:
        """The clients of these items are served apart from now on."""
        for client, number in Counter(map(client_or_type, large_readers)).items():
            self.set(client, Limit(number))

    def time_apart(self, clients: Iterable[object], until: float) -> None:
        """Commit what each client sends apart until then, not only the next time: else slow events
        would be committed with those of others again once quick ones came in between."""
        for client in clients:
            if client not in self._limits:
                self.set(client, Limit(MAX_BATCH - 1, until))

    def set(self, client: object, limit: Limit) -> None:
        """After the client was served."""
        if limit.number >= MAX_BATCH:
            return
        self._limits[client] = limit
        if len(self._limits) > _MAX_LIMITS:  # most are of clients that are gone
            del self._limits[next(iter(self._limits))]


def _is_known(item: LaneItem) -> bool:
    return not isinstance(item, WriteEvent) or item.author.is_known


_Line = tuple[object, object]
"""A client and one of its connections, as the lane has it."""


class _Waiting:
    """Waiting events: the one that is next on each connection. In three of four turns those of
    known keys come first; then the network that waits longest, and in it the client."""

    def __init__(self) -> None:
        self._networks: tuple[dict[object, dict[_Line, WriteEvent]], ...] = {}, {}
        """Of keys that were known when the event began to wait, and of others: network → line → the
        event; what waits longest comes first. A line is in one of the two only."""
        self._turns = 0
        """How many events `next` has given."""

    def __bool__(self) -> bool:
        return any(self._networks)

    def of(self, network: object) -> Iterator[_Line]:
        """The lines of the network that wait."""
        return chain.from_iterable(networks.get(network, ()) for networks in self._networks)

    def add(self, line: _Line, item: WriteEvent) -> None:
        networks = self._networks[0 if item.author.is_known else 1]
        networks.setdefault(network_of_client(line[0]), {})[line] = item

    def remove(self, line: _Line) -> WriteEvent | None:
        network = network_of_client(line[0])
        for networks in self._networks:
            lines = networks.get(network, {})
            item = lines.pop(line, None)
            if item is not None:
                if not lines:
                    del networks[network]
                return item
        return None

    def remove_all(self, client: object) -> Sequence[WriteEvent]:
        """The events of the client."""
        lines = [line for line in self.of(network_of_client(client)) if line[0] == client]
        return [item for item in map(self.remove, lines) if item is not None]

    def next(self) -> WriteEvent:
        """Take out the event that comes first."""
        known, unknown = self._networks
        comes_first = unknown if self._turns % _UNKNOWN_EVERY == _UNKNOWN_EVERY - 1 else known
        networks = comes_first or known or unknown
        network = next(iter(networks))
        lines = networks.pop(network)
        client, connection = next(iter(lines))
        item = lines.pop((client, connection))
        for line in [line for line in lines if line[0] == client]:
            lines[line] = lines.pop(line)  # other clients come first
        if lines:
            networks[network] = lines
        self._turns += 1
        return item


class SlowClients:
    """Clients whose transactions are long. They are served one event at a time, each in a
    transaction of its own, and after it none for four times as long as that took. So all together
    have at most a quarter of the writer's time, however many they are.

    A client whose transaction was long is slow until some of its own were quick. A client that
    comes for the first time is not known to be slow: so after a long transaction events of its
    kinds, by all clients, wait here for a while if the kinds have effects, except those of known
    keys whose last transaction was quick. A request to vanish that is known to be long,
    `needs_turn`, waits too, but makes no other request wait; such requests have every second turn.
    Owners who are logged in wait for nobody; a client that only sends what an owner signed does.
    `now`: of a clock that never goes back.
    """

    def __init__(self) -> None:
        self._quick_left: dict[object, int] = {}
        """Client → how many quick transactions are left until it is not slow. The one that was slow
        last is the last. At most `_MAX_SLOW`."""
        self._slow_kinds: dict[int, float] = {}
        """Kind → until when its events wait."""
        self._events = _Waiting()
        """Events that wait, without those in `_requests`."""
        self._requests = _Waiting()
        """Requests to vanish that `needs_turn`. A connection waits in one of the two only."""
        self._was_request = False
        """Whether a request had the last turn."""
        self._freed: list[WriteEvent] = []
        """Events that have waited, of clients that are not slow any more."""
        self.served: WriteEvent | None = None
        """The event whose turn it is."""
        self.pause_ends = 0.0
        """When the next event may be served."""

    @property
    def due_at(self) -> float | None:
        """When `next` will give something; None: not before something else happens."""
        if self._freed:
            return 0.0
        is_due = self.served is None and (self._events or self._requests)
        return self.pause_ends if is_due else None

    def has_turn(self, item: WriteEvent) -> bool:
        """Whether it is the turn of its connection: it is committed alone."""
        return self.served is not None and _line_of(item) == _line_of(self.served)

    def holds(self, item: LaneItem, now: float) -> bool:
        """Whether the item, which is next on its connection, waits until `next` gives it."""
        if not isinstance(item, WriteEvent) or item.origin is not Origin.WIRE:
            return False
        if not (self._quick_left or self._slow_kinds or item.needs_turn):
            return False
        if self.has_turn(item):
            self.served = item  # it may have been put back before the one that was given
            return False
        client, _ = line = _line_of(item)
        self._events.remove(line)
        self._requests.remove(line)
        left = self._quick_left.get(client)
        if not (left or item.needs_turn):
            if now >= self._slow_kinds.get(item.event.kind, -inf):
                return False
            if left == 0 and item.author.is_known:
                return False
        if item.author.is_owner:
            return False
        (self._requests if item.needs_turn else self._events).add(line, item)
        return True

    def has_request(self, client: object, *, is_known: bool = False) -> bool:
        """Whether an event of the client that `needs_turn` waits; of one without a known key, also
        of its network."""
        waiting = self._requests.of(network_of_client(client))
        return any(not is_known or of == client for of, _ in waiting)

    def next(self, now: float) -> Sequence[WriteEvent]:
        """Events that wait no longer: freed ones, and the next one if it may be served."""
        given, self._freed = self._freed, []
        if self.served is None and now >= self.pause_ends and (self._events or self._requests):
            self._was_request = bool(self._requests) and not (self._was_request and self._events)
            self.served = (self._requests if self._was_request else self._events).next()
            given.append(self.served)
        return given

    def ended(self, batch: Sequence[LaneItem]) -> None:
        """A batch was committed, or put back."""
        if any(item is self.served for item in batch):
            self.served = None

    def note(
        self,
        batch: Sequence[LaneItem],
        took_s: float,
        disk_s: float,
        held_s: float,
        now: float,
    ) -> Sequence[object]:
        """After each transaction. If it was long and had several clients, returns those that may
        have made it long: it is not known which of them did.

        `took_s`: its work, with look-ups and what is stored and deleted. `disk_s`: how much of that
        was waiting for a disk: a slow disk is no fault of clients whose events are in one
        transaction. `held_s`: for how long others waited.
        """
        served = self.served
        if took_s <= LONG_S:
            if served is not None and any(item is served for item in batch):
                self.pause_ends = max(self.pause_ends, now + _PAUSE * held_s)
                self._note_quick(served)
            return ()
        events = [item for item in batch if isinstance(item, WriteEvent)]
        if len(events) < len(batch):
            return ()  # a change by owners or by the relay itself
        clients = {client_or_type(item) for item in events}
        if len(clients) > 1 and took_s - disk_s <= LONG_S:
            return ()
        slow = clients - {
            client_or_type(item)
            for item in events
            if item.origin is not Origin.WIRE or item.author.is_owner
        }
        if not slow:
            return ()
        pause = _PAUSE * held_s
        self.pause_ends = max(now + pause, min(self.pause_ends + pause, now + _MAX_PAUSE_S))
        for item in events:
            has_effects = item.event.kind in _WITH_EFFECTS and not item.needs_turn
            if has_effects and client_or_type(item) in slow:
                self._slow_kinds[item.event.kind] = self.pause_ends + _SLOW_KIND_S
        if len(clients) > 1:
            return [client for client in slow if not isinstance(client, type)]
        self._set(slow.pop(), _QUICK)
        return ()

    def _note_quick(self, item: WriteEvent) -> None:
        client = client_or_type(item)
        left = self._quick_left.get(client)
        if left:
            self._quick_left[client] = left - 1
        elif item.author.is_known:
            self._set(client, 0)
        if self._quick_left.get(client) == 0:
            self._freed += self._events.remove_all(client)

    def _set(self, client: object, left: int) -> None:
        self._quick_left.pop(client, None)
        self._quick_left[client] = left
        if len(self._quick_left) > _MAX_SLOW:
            del self._quick_left[next(iter(self._quick_left))]


class Overruns:
    """Batches whose judgement took much longer than their cost says, and clients that sent them.

    What an event costs is estimated: what makes it slow may not be known. Once a batch was slow,
    batches are smaller, and each event is measured: a client's next events cost as many times more
    as its last ones took, until all are as fast as estimated for a while.
    """

    def __init__(self) -> None:
        self._worst = 1.0
        """The largest ratio of time to cost, a little less after each `begin`."""
        self._ratios: dict[object, float] = {}
        """Client → that of its last events, if they were slow. At most `_MAX_LIMITS`."""
        self._may_ease = True
        """Whether `_worst` may become a little less with the next note."""

    def begin(self) -> None:
        """Before a batch of the lane is committed, in one transaction or several: batches become
        larger once for all of these."""
        self._may_ease = True

    @property
    def is_measuring(self) -> bool:
        return self._worst > 1

    @property
    def max_batch(self) -> int:
        """The cost of the next batch."""
        return max(_LEAST_BATCH, int(MAX_BATCH / self._worst))

    def cost_of(self, item: WriteEvent) -> int:
        """The cost of the event, if it is as slow as the last ones of its client."""
        ratios = self._ratios
        return item.cost if not ratios else int(item.cost * ratios.get(client_or_type(item), 1.0))

    def shared(self, batch: Sequence[LaneItem], took_s: float) -> None:
        """A transaction of several clients was long: the next batch is as small as would be fast.

        `took_s`: as in `SlowClients.note`.
        """
        cost = sum([item.cost for item in batch if isinstance(item, WriteEvent)])
        fits = MAX_BATCH * took_s / (LONG_S * max(cost, 1))
        self._worst = max(self._worst, min(fits, MAX_BATCH / _LEAST_BATCH))

    def note(self, batch: Sequence[LaneItem], took_s: float) -> bool:
        """After each judgement; whether `max_batch` may have changed. `took_s`: its processor
        time."""
        if took_s <= _SLOW_S and not self.is_measuring:
            return False
        events = [item for item in batch if isinstance(item, WriteEvent)]
        if len(events) < len(batch):
            return False  # a change by owners or by the relay itself
        ratio = took_s / _seconds(events)
        is_slow = took_s > _SLOW_S and ratio > _SLOW
        if not (is_slow or self.is_measuring):
            return False
        calmer = 0.9 * self._worst if self._may_ease else self._worst
        self._may_ease = False
        self._worst = max(calmer, ratio if is_slow else 1.0)
        by_client: dict[object, list[WriteEvent]] = {}
        for item in events:
            by_client.setdefault(client_or_type(item), []).append(item)
        for client, own in by_client.items():
            self._ratios.pop(client, None)
            ratio = sum([item.took_s for item in own]) / _seconds(own)
            if ratio > _SLOW:
                self._ratios[client] = ratio
        while self._ratios and (len(self._ratios) > _MAX_LIMITS or not self.is_measuring):
            del self._ratios[next(iter(self._ratios))]
        return True


def _line_of(item: WriteEvent) -> _Line:
    """Its queue and line in the lane."""
    return client_or_type(item), connection_or_type(item)


def _seconds(events: Iterable[WriteEvent]) -> float:
    """Seconds that these events take by their cost."""
    return COST_S * sum([item.cost for item in events])


def _times_left(item: LaneItem) -> float:
    if isinstance(item, ManagementChange):
        return inf
    return item.times_left if isinstance(item, WriteEvent) else 0


def rights_first(batch: Sequence[LaneItem]) -> Sequence[LaneItem]:
    """The batch, with changes that may give rights before events that are only passed on, as far as
    the order of each connection allows: so neither waits for the other, however many events others
    send."""
    if not any(map(_is_passed_on, batch)):
        return batch
    parts: tuple[list[LaneItem], ...] = [], [], []
    reached: dict[object, int] = {}
    """Connection → the part of its last item: after one that is passed on, and after a change that
    follows that."""
    for item in batch:
        line = connection_or_type(item)
        part = reached.get(line, 0)
        if part == 0 and _is_passed_on(item):
            part = reached[line] = 1
        elif part == 1 and _may_give_rights(item):
            part = reached[line] = 2
        parts[part].append(item)
    return [item for part in parts for item in part]


def number_together(batch: Sequence[LaneItem]) -> int:
    """How many may be committed together.

    A deletion that goes in pieces is alone. An event that is only passed on comes before nothing
    that may give rights: it is delivered to all who may read it after the commit.
    """
    is_passed_on = False
    for place, item in enumerate(batch):
        if isinstance(item, WriteEvent) and item.pieces is not None:
            return max(place, 1)
        if is_passed_on and _may_give_rights(item):
            return place
        is_passed_on = is_passed_on or _is_passed_on(item)
    return len(batch)


def _is_passed_on(item: LaneItem) -> bool:
    if not isinstance(item, WriteEvent):
        return False
    kind = item.event.kind
    return is_ephemeral(kind) and kind not in _MAY_GIVE_RIGHTS


def _may_give_rights(item: LaneItem) -> bool:
    if isinstance(item, WriteEvent):
        return item.event.kind in _MAY_GIVE_RIGHTS
    return isinstance(item, ManagementChange)


def shrink(item: LaneItem) -> None:
    assert isinstance(item, WriteEvent)
    if item.pieces is None:
        item.pieces = pieces_for(item.event)
    else:
        item.pieces.shrink()
