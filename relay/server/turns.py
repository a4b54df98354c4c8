"""Turns: who has much work for the event loop waits for its turn behind who has little.

A task that reads input never gives up the loop while more is buffered: it must do so itself, after
`SLICE_S` of work, or `BUSY_SLICE_S` while others wait.

Invariants: in each iteration of the loop tasks with a key that an owner has admitted
(`Visibility.admitted_as`) get as many turns as take twice as long as all else: they have two thirds
of the loop, however long and of whatever kind the work of others is. Other known keys have half of
it where no admitted key waits, and else a fourth of what is not theirs: in preset `open` everybody
may make keys known. Of the tasks without a known key as many go on as have an eighth of the loop,
and one at least; several, of different networks, while deliveries make the iterations long, as far
as the work of these tasks takes no longer than the deliveries. So an iteration takes a few slices
longer, however many tasks wait.

With a known key, as without one, the next turn is for the `Account` that has used least, of the
`Network` that has used least: one network may have thousands of addresses. An admitted key is a
network of its own: all members may be in one office. One that has used nothing for long counts as
`CREDIT_S` behind the others (start-time fair queuing): it goes first for that much work, then they
share. Of many that begin at once few have such a credit. Every fourth turn is for the one that has
waited longest, while such turns take no more than a fourth of the time, so none waits for ever
behind those that always come anew. Work while nobody else waits counts for nothing.

What arrives (handshakes of websockets and of TLS, other HTTP requests, input that is not parsed
yet) has every second turn of those without a known key, and parts of the loop besides. These four
take turns, in each of them networks, and in a network addresses. So an arrival waits for as many
turns as there are networks, and addresses of its own network, that arrive, however many accounts
wait. Networks where admitted keys have logged in have half of the turns of each of the four: all
members may be in one network, and come back at once when it was cut. There the first messages of a
websocket, with which they log in, are what arrives, too.
"""

from __future__ import annotations

import asyncio
from collections import deque
from heapq import heapify, heappop, heappush
from itertools import chain, count, islice
from time import perf_counter, thread_time
from typing import TYPE_CHECKING, Final, Generic, NamedTuple, Protocol, TypeVar
from weakref import WeakValueDictionary

from relay.access.shares import RoundRobin, Standing, network_of

if TYPE_CHECKING:
    from collections.abc import Callable

    _Turn = asyncio.Future[None]

SLICE_S: Final = 0.005
"""Work without a pause, in seconds."""
BUSY_SLICE_S: Final = 0.0005
"""The same while somebody waits for a turn: when many begin at once, none has a whole slice."""

ITERATION_S: Final = 0.008
"""Work in one iteration of the loop after which reads wait for their turns: each connection may do
a slice of it, and there may be thousands."""
LIGHT_ITERATION_S: Final = 0.016
"""The same for those that have used little."""

_SHORT_S: Final = 0.001
"""Work up to which `Turns.spent` goes on counting in the next iteration: to schedule the callback
that begins anew takes 2 us."""

_OTHER_S: Final = 0.002
"""For each so many seconds by which all else in an iteration took longer than the work of
connections, one more turn is given: a delivery to many takes 20 to 60 ms, and there would be 20
turns a second."""
_FEW_TURNS: Final = 4
"""Turns without a known key in one iteration at most …"""
_MAX_TURNS: Final = 16
"""… but twice as many as in the one before, up to this, while the mean turn takes less than …"""
_MOST_OF_PART: Final = 64
"""Turns in a `_Part` at most."""
_BRIEF_TURN_S: Final = 0.004
"""… this: else members had 45 turns a second beside a delivery to a thousand clients."""

CREDIT_S: Final = 0.05
"""Seconds of work by which an account, or network, counts as behind the others at most."""
_BEGIN_S: Final = 0.01
"""So much less credit each gets that begins than the one before, while the others use no more."""

_COSTLY_S: Final = 0.002
"""Work after which `CostlyWork` rests."""
_REST_RATIO: Final = 9
"""Length of that rest, as a multiple of the work: costly work takes a tenth of the loop."""
_MAX_REST_S: Final = 1.0
_LOOKED_AT: Final = 32
"""`CostlyWork` compares so many accounts of a network that have waited longest, and as many that
came last: to compare 4,000 takes 5 ms. An account that had a turn goes to the end."""
_OLDEST_EVERY: Final = 4
"""Of so many turns one is for who has waited longest: others that always come anew, with little or
no known work, could go before it for as long as they like."""
_HANDSHAKES_SHARE: Final = 1 / 8
"""Of the loop, for handshakes, beside their turns: with one turn in an iteration of 50 ms a socket
waited for those of sixteen networks, 3 s for each part of its handshake."""
_HANDSHAKE_S: Final = 0.002
"""What a part of a handshake takes."""
_INPUTS_SHARE: Final = 1 / 16
"""Of the loop, for input that is not parsed yet: behind a proxy its sockets are all of one address,
and 2,000 of others would be in front of each."""
_INPUT_S: Final = 0.0003
"""What it takes to parse a request. A first message may take 2 ms."""
_REQUESTS_SHARE: Final = 1 / 16
"""Of the loop, for other HTTP requests: health checks of a proxy waited 4 s."""
_REQUEST_S: Final = 0.003
"""What such a request takes: 1 ms for the NIP-11 document, 7 ms for a page."""
_MOST_ARRIVING_S: Final = 0.008
"""Seconds of each that they may have later, if they do not use their part at once. Not of all in
one iteration: when these took 0.1 s, 24 to 44 handshakes a second were left."""
_MOST_NETWORKS_OF_MEMBERS: Final = 1024
"""One where a member is connected is noted again at each `Connection.check`, and so stays."""
_LEAST_MEAN_S: Final = 0.0001
"""A turn counts as taking so long at least: some take nearly nothing."""
_FIRST_MEAN_S: Final = 0.001
"""What the first turn of an account is expected to take."""
_MEAN_OF: Final = 4
"""Of `Account.mean_s`, the last turn is so large a part (1/4)."""
_FEW_GONE: Final = 64
"""Entries of a heap that may stay though they do not wait any more, beside as many as wait."""


class _HasUsed(Protocol):
    @property
    def used(self) -> float: ...


Waiting = TypeVar("Waiting", bound=_HasUsed)
Queued = TypeVar("Queued")


class Account:
    """The work that several connections have done together; they compete for turns as one."""

    __slots__ = (
        "__weakref__",
        "costly_from",
        "mean_s",
        "name",
        "network",
        "standing",
        "subscriptions",
        "used",
    )

    def __init__(
        self, network: Network, name: str | None = None, standing: Standing = Standing.UNKNOWN
    ) -> None:
        self.name = name
        self.standing = standing
        self.network = network
        self.used = network.begin()
        """Seconds of work."""
        self.mean_s = _FIRST_MEAN_S
        """Measured work of a turn, in seconds: a mean of the last ones."""
        self.subscriptions = 0
        """Open on these connections: an event of somebody else may have to be sent to each."""
        self.costly_from = 0.0
        """Where its next piece of costly work begins, see `CostlyWork._reached`."""

    @property
    def is_known(self) -> bool:
        return self.standing is not Standing.UNKNOWN


class FairQueue(Generic[Waiting]):
    """The accounts of a network, or the networks, that wait for turns."""

    __slots__ = (
        "__weakref__",
        "_begun",
        "_given",
        "_heap",
        "_numbers",
        "_oldest",
        "_oldest_left_s",
        "_waiting",
        "reached",
    )

    def __init__(self) -> None:
        self._waiting: dict[Waiting, int] = {}
        """Each with its number, in the order in which they came."""
        self._heap: list[tuple[float, int, Waiting]] = []
        """(what it had used, number, waiting), also of those that do not wait any more."""
        self._numbers = count()
        self._given = 0
        """Number of turns."""
        self._oldest: Waiting | None = None
        """Who had a turn last because it came first."""
        self._oldest_left_s = 0.0
        """Seconds by which the work of such turns is behind its part, `1 / _OLDEST_EVERY`."""
        self._begun = 0.0
        """What `begin` gave last."""
        self.reached = 0.0
        """The most that one had used, in seconds, when it got a turn that others waited for too."""

    def __len__(self) -> int:
        return len(self._waiting)

    def begin(self) -> float:
        """Seconds that one counts as having used when it begins: those that always come anew get no
        credit."""
        credited = max(self._begun + _BEGIN_S, self.reached - CREDIT_S)
        self._begun = min(credited, self.reached)
        return self._begun

    def push(self, waiting: Waiting) -> None:
        number = self._waiting[waiting] = next(self._numbers)
        heappush(self._heap, (waiting.used, number, waiting))

    def pop(self) -> tuple[float, Waiting]:
        """Take out who goes next, and what it had used; 0 if it goes because it came first."""
        self._given += 1
        if self._given % _OLDEST_EVERY == 0 and self._oldest_left_s >= 0:
            self._oldest = waiting = next(iter(self._waiting))
            del self._waiting[waiting]
            if len(self._heap) > 2 * len(self._waiting) + _FEW_GONE:
                self._heap = [each for each in self._heap if self._is_waiting(each)]
                heapify(self._heap)
            return 0.0, waiting
        while True:
            entry = heappop(self._heap)
            if self._is_waiting(entry):
                used, _, waiting = entry
                del self._waiting[waiting]
                return used, waiting

    def _is_waiting(self, entry: tuple[float, int, Waiting]) -> bool:
        _, number, waiting = entry
        return self._waiting.get(waiting) == number

    def note(self, worked: Waiting, seconds: float) -> None:
        """Count work of one of these, for the part of those who came first."""
        if worked is self._oldest:
            self._oldest_left_s -= seconds
        else:
            more = max(seconds, _LEAST_MEAN_S) / (_OLDEST_EVERY - 1)
            self._oldest_left_s = min(self._oldest_left_s + more, CREDIT_S)

    def credited(self, used: float) -> float:
        """What one that has used so much counts as having used: no more than `CREDIT_S` behind."""
        return max(used, self.reached - CREDIT_S)


class _Part(NamedTuple):
    """Of the loop's time in each iteration, for accounts with one kind of key."""

    ratio: float
    """Of their work to all else."""
    least_s: float
    """Work that is left for them in one iteration at least; below zero they may be ahead."""
    most_s: float
    """So much longer an iteration takes at most."""


class Networks(FairQueue["Network"]):
    """The networks of all accounts with one kind of key."""

    __slots__ = ("_owed_s", "worked_s")

    def __init__(self) -> None:
        super().__init__()
        self._owed_s = 0.0
        self.worked_s = 0.0
        """Seconds of their work since `left`."""

    def left(self, part: _Part, took_s: float) -> float:
        """Seconds by which their work is behind. `took_s`: of the loop since the last call."""
        due_s = (took_s - self.worked_s) * part.ratio - self.worked_s
        self._owed_s = min(max(self._owed_s + due_s, part.least_s), part.most_s)
        self.worked_s = 0.0
        return self._owed_s


_OF_ADMITTED: Final = _Part(2.0, _LEAST_MEAN_S, 0.048)
_OF_KNOWN: Final = _Part(1.0, _LEAST_MEAN_S, 0.016)
_OF_KNOWN_BESIDE: Final = _Part(1 / 3, -CREDIT_S, 0.008)
"""The same while admitted keys wait."""
_OF_UNKNOWN: Final = _Part(1 / 7, -CREDIT_S, 0.008)
"""Of few turns in an iteration of 50 ms an office without a login had a sixtieth of the loop."""


class Network(FairQueue[Account]):
    """The accounts of its addresses, which compete with other networks as one; those with a known
    key apart from those without."""

    __slots__ = (
        "costly_from",
        "costly_given",
        "costly_next",
        "costly_reached",
        "queue",
        "used",
    )

    def __init__(self, queue: Networks) -> None:
        super().__init__()
        self.queue = queue
        self.used = queue.begin()
        """Seconds of work."""
        self.costly_from = 0.0
        self.costly_reached = 0.0
        self.costly_given = 0
        """As `Account.costly_from`, `CostlyWork._reached` and `_given`, the latter two of its
        accounts."""
        self.costly_next: tuple[Account, float] | None = None
        """See `CostlyWork._next_of`; None: to be found out."""

    def charge(self, account: Account, seconds: float) -> None:
        account.used = self.credited(account.used) + seconds
        self.used = self.queue.credited(self.used) + seconds
        self.note(account, seconds)
        self.queue.note(self, seconds)

    def forgive(self, account: Account) -> None:
        """Forget work that kept nobody else waiting."""
        account.used = min(account.used, self.reached)
        self.used = min(self.used, self.queue.reached)


class Arrivals(Generic[Queued]):
    """What arrives of one kind: networks take turns, and in each its addresses. Networks of members
    have every second turn, if any waits."""

    __slots__ = ("_is_next_for_members", "_is_of_members", "_of_members", "_of_others")

    def __init__(
        self,
        is_of_members: Callable[[str], bool],
        make: Callable[[], RoundRobin[Queued]] = RoundRobin,
    ) -> None:
        """`is_of_members`: whether an address is in a network of members. `make`: makes an
        empty queue, one for these and one for others."""
        self._is_of_members = is_of_members
        self._of_members, self._of_others = make(), make()
        self._is_next_for_members = True

    def __bool__(self) -> bool:
        return bool(self._of_members or self._of_others)

    def add(self, address: str, waiting: Queued) -> None:
        queue = self._of_members if self._is_of_members(address) else self._of_others
        queue.add(address, waiting)

    def discard(self, address: str, waiting: Queued) -> None:
        self._of_members.discard(address, waiting)
        self._of_others.discard(address, waiting)

    def pop(self) -> Queued:
        """Take out what goes on; something must be waiting."""
        is_for_members = bool(self._of_members) and (
            self._is_next_for_members or not self._of_others
        )
        self._is_next_for_members = not is_for_members
        return (self._of_members if is_for_members else self._of_others).pop()


class Turns:
    """The turns of the tasks of one event loop."""

    def __init__(self, clock: Callable[[], float] = thread_time) -> None:
        """`clock`: seconds that the loop has worked, from any point in time: waiting for the
        processor gives no more turns."""
        self._clock = clock
        self._unknown, self._known, self._admitted = Networks(), Networks(), Networks()
        """The networks of the accounts in `_turns`, by their standing."""
        self._queues = {
            Standing.UNKNOWN: self._unknown,
            Standing.KNOWN: self._known,
            Standing.ADMITTED: self._admitted,
        }
        self._turns: dict[Account, list[_Turn]] = {}
        """Account → the turns of its tasks that wait."""
        self._handshakes: Arrivals[_Turn] = Arrivals(self.is_of_members)
        """By client address."""
        self._requests: Arrivals[_Turn] = Arrivals(self.is_of_members)
        """The same of other HTTP requests."""
        self._inputs: Arrivals[_Turn] = Arrivals(self.is_of_members)
        """The same of sockets with input before their request is parsed, and of first messages of
        websockets: thousands that connect at once keep no open connection waiting."""
        self._tls: Arrivals[_Turn] = Arrivals(self.is_of_members)
        """The same of TLS handshakes, under no address: `Handshakes` has an order of its own."""
        self._networks_of_members: dict[str, None] = {}
        """Networks where admitted keys have logged in, the latest last."""
        self._arriving = deque((self._handshakes, self._requests, self._inputs, self._tls))
        """In the order in which they have every second turn."""
        self._shares = (
            _Share(deque((self._handshakes, self._tls)), _HANDSHAKES_SHARE, _HANDSHAKE_S),
            _Share(deque((self._inputs,)), _INPUTS_SHARE, _INPUT_S),
            _Share(deque((self._requests,)), _REQUESTS_SHARE, _REQUEST_S),
        )
        self._is_arriving_next = True
        self._given_at = 0.0
        """When turns were given, or could first have been."""
        self._worked = 0.0
        """Seconds of work of connections since then."""
        self._overworked_s = 0.0
        """Seconds by which turns have worked longer than all else: for so much time of others no
        further turn is given. At most `CREDIT_S`."""
        self._most_turns = _FEW_TURNS
        """Turns without a known key in the next iteration at most."""
        self._served = 0
        """Number of turns that were given last."""
        self._networks: WeakValueDictionary[tuple[str, Networks], Network] = WeakValueDictionary()
        """(network, where it waits) → `Network`."""
        self._accounts: WeakValueDictionary[tuple[str, Standing], Account] = WeakValueDictionary()
        """(name, standing) → its account."""
        self.spent = 0.0
        """Seconds of work in this iteration of the loop, and of up to `_SHORT_S` before it."""
        self._is_reset_due = False
        """`_begin_iteration` is scheduled."""
        self.costly = CostlyWork()
        """The costly work of all clients without a known key."""

    def has_time(self, account: Account, more: float) -> bool:
        """Whether the account may begin more work in this iteration of the loop: one that has used
        little may when others may not. `more`: seconds of work not charged to it yet."""
        network = account.network
        is_light = network.used + more < network.queue.reached - CREDIT_S / 2
        return self.spent < (LIGHT_ITERATION_S if is_light else ITERATION_S)

    def spend(self, seconds: float) -> bool:
        """Work was done in this iteration; whether somebody waits for a turn."""
        self._worked += seconds
        self.spent += seconds
        if self.spent > _SHORT_S and not self._is_reset_due:
            self._is_reset_due = True
            asyncio.get_running_loop().call_soon(self._begin_iteration)
        return self._is_anybody_waiting()

    def charge(self, account: Account, seconds: float, measured_s: float) -> None:
        """Count work for the account: `measured_s` of it is done, the rest is expected."""
        account.network.charge(account, seconds)
        worked_s = measured_s if account.is_known else seconds
        account.network.queue.worked_s += worked_s
        account.mean_s += (worked_s - account.mean_s) / _MEAN_OF

    def expect(self, seconds: float) -> None:
        """A turn has about so much work that is not measured."""
        self._worked += seconds

    def _begin_iteration(self) -> None:
        self.spent = 0.0
        self._is_reset_due = False

    def account(self, name: str | None = None, standing: Standing = Standing.UNKNOWN) -> Account:
        """The account of all connections of this name and standing: to open more gives no more
        turns. `name`: an address, or an admitted key, which is a network of its own; None: a new
        account."""
        account = None if name is None else self._accounts.get((name, standing))
        if account is None:
            queue = self._queues[standing]
            network = Network(queue) if name is None else self._network(name, queue)
            account = Account(network, name, standing)
            if name is not None:
                self._accounts[name, standing] = account
        return account

    def _network(self, name: str, queue: Networks) -> Network:
        of = network_of(name), queue
        network = self._networks.get(of)
        if network is None:
            network = self._networks[of] = Network(queue)
        return network

    async def wait(self, account: Account) -> None:
        """Let every task that is ready run, and those who have used less, or came before."""
        turn = self._new_turn()
        queued = self._turns.get(account)
        if queued is None:
            queued = self._turns[account] = []
            account.network.push(account)
            if len(account.network) == 1:
                account.network.queue.push(account.network)
        queued.append(turn)
        await turn

    async def wait_for_handshake(self, address: str) -> None:
        """As `wait`; networks go on one after the other, and in each its addresses."""
        await self._wait_among(self._handshakes, address)

    async def wait_for_request(self, address: str, seconds: float) -> None:
        """As `wait_for_handshake`. `seconds`: about how long its work takes."""
        await self._wait_among(self._requests, address)
        self.expect(seconds)

    async def wait_for_input(self, address: str) -> None:
        """As `wait_for_handshake`: before a request is parsed, and before one of the first messages
        of a websocket is parsed or handled."""
        await self._wait_among(self._inputs, address)

    async def wait_for_tls(self) -> None:
        """As `wait_for_handshake`, before a part of a TLS handshake."""
        await self._wait_among(self._tls, "")

    def note_admitted(self, address: str) -> None:
        """An admitted key is logged in there: its network is one of members until the relay is
        restarted, or members were in `_MOST_NETWORKS_OF_MEMBERS` others since."""
        network, networks = network_of(address), self._networks_of_members
        networks.pop(network, None)
        networks[network] = None
        if len(networks) > _MOST_NETWORKS_OF_MEMBERS:
            del networks[next(iter(networks))]

    def is_of_members(self, address: str) -> bool:
        """Whether what arrives from this address has turns apart from others."""
        return network_of(address) in self._networks_of_members

    async def _wait_among(self, arriving: Arrivals[_Turn], address: str) -> None:
        turn = self._new_turn()
        arriving.add(address, turn)
        try:
            await turn
        finally:
            arriving.discard(address, turn)  # if the task was cancelled

    def _new_turn(self) -> _Turn:
        if not self._is_anybody_waiting():
            self._served = 0
            self._schedule()
        return asyncio.get_running_loop().create_future()

    def _is_anybody_waiting(self) -> bool:
        return bool(self._admitted or self._known or self._unknown or any(self._arriving))

    def _schedule(self) -> None:
        self._given_at, self._worked = self._clock(), 0.0
        asyncio.get_running_loop().call_soon(self._give)

    def _give(self) -> None:
        took_s = self._clock() - self._given_at
        others_s = took_s - self._worked
        left = others_s - self._worked - self._overworked_s
        self._overworked_s = min(max(-left, 0.0), CREDIT_S)
        is_brief = self._served and self._worked <= self._served * _BRIEF_TURN_S
        self._most_turns = min(2 * self._most_turns, _MAX_TURNS) if is_brief else _FEW_TURNS
        number = min(max(1 + int(left / _OTHER_S), 1), self._most_turns)
        served: list[Account] = []
        of_known = _OF_KNOWN_BESIDE if self._admitted else _OF_KNOWN
        self._served = self._give_part(self._admitted, _OF_ADMITTED, took_s, served)
        self._served += self._give_part(self._known, of_known, took_s, served)
        given = self._give_part(self._unknown, _OF_UNKNOWN, took_s, served)
        self._put_back(served)
        for share in self._shares:
            share.give(took_s)
        for _ in range(number):
            if not (self._unknown or any(self._arriving)):
                self._put_back(served)  # of one network there may be more
            arriving = None
            if self._is_arriving_next or not self._unknown:
                arriving = _next_of(self._arriving)
                if arriving is not None:
                    arriving.set_result(None)
            if arriving is None and given:
                given -= 1
            elif arriving is None and self._give_next(self._unknown, served) is None:
                break
            self._is_arriving_next = arriving is None
            self._served += 1
        self._put_back(served)
        if self._is_anybody_waiting():
            self._schedule()

    def _put_back(self, served: list[Account]) -> None:
        """Those of which more tasks wait."""
        for account in served:
            if self._turns[account]:
                account.network.push(account)
            else:
                del self._turns[account]
            if account.network:
                account.network.queue.push(account.network)
        served.clear()

    def _give_part(self, queue: Networks, part: _Part, took_s: float, served: list[Account]) -> int:
        """Give so many turns that their work takes what is left; the number of turns. How long a
        turn will take is told by the last ones of its own account: long turns of one do not make
        fewer of another's. A network has its next turn when each other one has had one: all members
        may be in the same."""
        left, number = queue.left(part, took_s), 0
        while left > 0 and number < _MOST_OF_PART:
            account = self._give_next(queue, served)
            if account is None:
                self._put_back(served)
                account = self._give_next(queue, served)
            if account is None:
                break
            left -= max(account.mean_s, _LEAST_MEAN_S)
            number += 1
        return number

    def _give_next(self, queue: Networks, served: list[Account]) -> Account | None:
        """Give a turn to the account that goes next in this queue; None: none waits."""
        while queue:
            used_there, network = queue.pop()
            used, account = network.pop()
            turn = _take(self._turns[account])
            if turn is None:
                del self._turns[account]
                if network:
                    queue.push(network)
                continue
            if served or network or self._is_anybody_waiting():
                queue.reached = max(queue.reached, used_there)
                network.reached = max(network.reached, used)
            else:
                network.forgive(account)
            turn.set_result(None)
            served.append(account)
            return account
        return None


class _Share:
    """A part of the loop's time for what arrives, beside its turns."""

    __slots__ = ("_arriving", "_cost_s", "_owed_s", "_part")

    def __init__(self, arriving: deque[Arrivals[_Turn]], part: float, cost_s: float) -> None:
        """`cost_s`: of one."""
        self._arriving = arriving
        self._part = part
        self._cost_s = cost_s
        self._owed_s = 0.0
        """Seconds of it that they have not had yet."""

    def give(self, took_s: float) -> None:
        """`took_s`: seconds of the loop since this was called last."""
        self._owed_s = min(self._owed_s, _MOST_ARRIVING_S) + min(took_s * self._part, CREDIT_S)
        while self._owed_s >= self._cost_s:
            turn = _next_of(self._arriving)
            if turn is None:
                return
            turn.set_result(None)
            self._owed_s -= self._cost_s


def _next_of(arriving: deque[Arrivals[_Turn]]) -> _Turn | None:
    """The next of what arrives; None: nothing does."""
    for _ in range(len(arriving)):
        first = arriving[0]
        arriving.rotate()
        while first:
            turn = first.pop()
            if not turn.done():  # else its task was cancelled
                return turn
    return None


def _take(turns: list[_Turn]) -> _Turn | None:
    """Take out the first that still waits."""
    while turns:
        turn = turns.pop(0)
        if not turn.done():  # else its task was cancelled
            return turn
    return None


class CostlyWork:
    """Pieces of work that cannot be cut, one at a time. After each that took over `_COSTLY_S` none
    begins for `_REST_RATIO` times as long: others have the loop, however many wait here.

    Networks share it by the time that their pieces take (fair queuing), and in each its accounts:
    the next piece is the one that would end first if all went on at once. So a piece waits for
    about as much work of each other network as it is itself. Whatever its size and whoever comes
    later, the first piece of a network waits for at most `_OLDEST_EVERY` pieces for each network
    that came before. In the turns of a network the same holds for its accounts.
    """

    __slots__ = ("_given", "_is_free", "_reached", "_waiting")

    def __init__(self) -> None:
        self._is_free = True
        self._waiting: dict[Network, dict[Account, dict[asyncio.Future[None], float]]] = {}
        """The turns that each account waits for, by network, and how many seconds each piece will
        take. First the network, and the account, that came, or had a turn, the longest time ago."""
        self._reached = 0.0
        """Seconds of work that each network would have done, if all went on at once: where those
        begin that have used nothing."""
        self._given = 0
        """Number of turns."""

    async def begin(self, account: Account, seconds: float) -> None:
        """Wait until a piece of this account may begin; `end` must follow. `seconds`: how long it
        will take, estimated."""
        network = account.network
        if network not in self._waiting:
            network.costly_from = max(self._reached, network.costly_from)
        if account not in self._waiting.get(network, ()):
            account.costly_from = max(network.costly_reached, account.costly_from)
        if self._is_free:
            self._is_free = False
            return
        turn = asyncio.get_running_loop().create_future()
        turns = self._waiting.setdefault(network, {}).setdefault(account, {})
        turns[turn] = seconds
        network.costly_next = None
        try:
            await turn
        except asyncio.CancelledError:
            if turn.cancelled():
                turns.pop(turn, None)
                network.costly_next = None
                accounts = self._waiting.get(network, {})
                if not accounts.get(account, True):
                    del accounts[account]
                    if not accounts:
                        del self._waiting[network]
            else:  # it had just been given
                self._give()
            raise

    def end(self, account: Account, seconds: float) -> None:
        """The piece has ended, and took so long."""
        network, waiting = account.network, self._waiting
        if waiting:  # what kept nobody waiting counts for nothing
            network.costly_from += seconds
            self._reached += seconds / (len(waiting) + (network not in waiting))
        accounts = waiting.get(network)
        if accounts:
            account.costly_from += seconds
            network.costly_next = None
            network.costly_reached += seconds / (len(accounts) + (account not in accounts))
        if seconds < _COSTLY_S:
            self._give()
        else:
            rest = min(_REST_RATIO * seconds, _MAX_REST_S)
            asyncio.get_running_loop().call_later(rest, self._give)

    def _give(self) -> None:
        while self._waiting:
            network = self._next()
            account, _ = self._next_of(network)
            network.costly_next = None
            accounts = self._waiting.pop(network)
            turns = accounts.pop(account)
            turn = next(iter(turns))
            del turns[turn]
            if turns:
                accounts[account] = turns
            if accounts:
                self._waiting[network] = accounts
            if not turn.done():  # else its task was cancelled
                self._given += 1
                network.costly_given += 1
                turn.set_result(None)
                return
        self._is_free = True

    def _next(self) -> Network:
        if self._given % _OLDEST_EVERY == _OLDEST_EVERY - 1:
            return next(iter(self._waiting))
        return min(self._waiting, key=self._would_end)

    def _would_end(self, network: Network) -> float:
        _, size = network.costly_next or self._next_of(network)
        return network.costly_from + size

    def _next_of(self, network: Network) -> tuple[Account, float]:
        """Which account goes next when the network does, and the size of its piece."""
        if network.costly_next is None:
            items = self._waiting[network].items()
            looked_at = chain(islice(items, _LOOKED_AT), islice(reversed(items), _LOOKED_AT))
            sizes = {account: next(iter(turns.values())) for account, turns in looked_at}
            account = next(iter(sizes))
            if network.costly_given % _OLDEST_EVERY != _OLDEST_EVERY - 1:
                account = min(sizes, key=lambda each: each.costly_from + sizes[each])
            network.costly_next = account, sizes[account]
        return network.costly_next


class Slice:
    """The work of one task since its last turn."""

    __slots__ = ("_began", "_clock", "_turns", "_worked", "account")

    def __init__(
        self, turns: Turns, clock: Callable[[], float], account: Account | None = None
    ) -> None:
        """`clock`: seconds, from any point in time. `account`: None: the task gets its own."""
        self._turns = turns
        self._clock = clock
        self._began = 0.0
        self._worked = 0.0
        self.account = account or turns.account()

    @property
    def has_time(self) -> bool:
        """See `Turns.has_time`."""
        turns = self._turns
        # First what needs no call: this is asked three times per message.
        return turns.spent < ITERATION_S or turns.has_time(self.account, self._worked)

    def begin(self) -> None:
        """A piece of work begins."""
        self._began = self._clock()

    @property
    def so_far(self) -> float:
        """Seconds since `begin`; until `end`."""
        return self._clock() - self._began

    def end(self, more: float = 0.0) -> bool:
        """The piece ended; whether `rest` is due. `more`: seconds of it that were not measured."""
        took = self._clock() - self._began + more
        self._began = 0.0  # a float of its own would take 32 bytes of each idle connection
        # As `add`, without the call: this is done for every message.
        self._worked = worked = self._worked + took
        return worked >= (BUSY_SLICE_S if self._turns.spend(took) else SLICE_S)

    def add(self, seconds: float) -> bool:
        """Work that was measured elsewhere; whether `rest` is due."""
        self._worked = worked = self._worked + seconds
        most = BUSY_SLICE_S if self._turns.spend(seconds) else SLICE_S
        return worked >= most

    async def take(self, seconds: float) -> None:
        """Wait for the turn of work that is expected to take about as long."""
        self.charge(seconds)
        await self._turns.wait(self.account)
        self._turns.expect(seconds)

    async def rest(self) -> None:
        self.charge()
        await self._turns.wait(self.account)

    async def rest_as_arriving(self, address: str) -> None:
        """As `rest`, among what arrives: before a request is parsed, and for the first messages of
        a websocket from a network of members."""
        self.charge()
        await self._turns.wait_for_input(address)

    def charge(self, expected_s: float = 0.0) -> None:
        """Count the work for the account, and `expected_s` that follows. Before a turn, and when
        the task ends."""
        worked, self._worked = self._worked, 0.0
        self._turns.charge(self.account, worked + expected_s, worked)


class Pauses:
    """The work of a task that no connection asked for, such as a command's, since its last pause.

    For a loop that never waits by itself: it calls `rest` after each piece of work.
    """

    def __init__(self) -> None:
        self._began = perf_counter()

    async def rest(self) -> None:
        """Let every task that is ready run, if the work took `SLICE_S`."""
        if perf_counter() - self._began >= SLICE_S:
            await asyncio.sleep(0)
            self.resume()

    def resume(self) -> None:
        """The task has waited for something."""
        self._began = perf_counter()
