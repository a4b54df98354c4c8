"""Clients that do things at random, on a relay whose disk and process fail, and what must hold."""

from __future__ import annotations

import asyncio
import hashlib
import sys
import time
from contextlib import contextmanager
from pathlib import Path
from random import Random
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, Final
from typing import cast as typed

from relay.config import config_from
from relay.nostr.nip42 import relay_address
from relay.observe import Metrics
from relay.read.fanout import Fanout
from relay.read.linked_rows import LinkedRows
from relay.read.negentropy import Negentropy
from relay.read.outbox import FlushQueue
from relay.read.query import QueryRunner
from relay.server.connection import Connection
from relay.server.turns import Turns
from relay.state import RelayState
from relay.write.ingest import Ingest
from relay.write.replay import rebuilt_groups
from tests import cast
from tests.faults.simulated.client import Client
from tests.faults.simulated.disk import Disk
from tests.faults.simulated.loop import SimulatedLoop
from tests.faults.simulated.promises import (
    ARTICLE,
    CHAT,
    CREATE,
    DELETE,
    DELETION,
    EDIT,
    END,
    LIST,
    MEMBERS,
    NOTE,
    PASSING,
    PROFILE,
    PUT,
    REMOVE,
    VANISH,
    WATCHED,
    WRAP,
    Promises,
)
from tests.harness.relay_in_process import RELAY, URL

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from policies import PolicySet
    from relay.groups.group import Groups
    from relay.nostr.event import Event
    from relay.nostr.keys import SecretKey
    from relay.storage import Store

NOON: Final = 1_772_000_000
CONFIG: Final = """
[limits]
max_subscriptions = 20
outbox_bytes = 100000
"""
PEOPLE: Final = {
    "owner": cast.owner,
    "alice": cast.alice,
    "bob": cast.bob,
    "carol": cast.carol,
    "dave": cast.dave,
    "nobody": None,
}
IN_GROUPS: Final = ("alice", "bob", "carol")
"""dave vanishes now and then, and so is in no group."""
GROUPS: Final = ("tea", "den", "nook")
CLIENTS: Final = 8
CHECK_EVERY: Final = 120
"""Steps between two moments at which everything is compared."""
QUIET_S: Final = 60.0
_CLOCKS: Final = (time.perf_counter, time.thread_time, time.monotonic)
_OF_PRODUCT: Final = ("relay", "policies")


class World:
    """`run` it; raises `Broken`. The same seed and policy: the same run."""

    def __init__(self, seed: int, policy: PolicySet) -> None:
        self.seed = seed
        self._policy = policy
        self._script = Random(f"{seed}:script")
        self._loop = SimulatedLoop(Random(f"{seed}:order"))
        self.promises = Promises(RELAY.pubkey)
        self.disk = Disk(Random(f"{seed}:disk"), self.promises)
        self._config = config_from(CONFIG, Path("rookery.toml"))
        self._clients: list[Client] = []
        self._serving: set[asyncio.Task[None]] = set()
        self._names = 0
        self._skew = 0
        self._events: list[Event] = []
        self._trace = hashlib.sha256()
        self.steps = 0
        weights = Random(f"{seed}:weights")
        # Each world has its own habits: what is rare in one is frequent in another.
        self._weights = [weights.choice((0.2, 1.0, 1.0, 4.0)) * w for _, w in self._actions()]
        self._fault_rate = weights.choice((0.0, 0.01, 0.1))
        self._slowness_s = weights.choice((0.0005, 0.01, 0.05))
        self._haste_s = weights.choice((0.0005, 0.001, 0.01))

    @property
    def trace(self) -> str:
        """Of all frames, in the order of sending."""
        return self._trace.hexdigest()

    def now(self) -> int:
        return NOON + self._skew + int(self._loop.time())

    def run(self, steps: int) -> None:
        self._loop.set_exception_handler(self._note)
        with asyncio.Runner(loop_factory=lambda: self._loop) as runner, self._virtual_work():
            runner.run(self._run(steps))

    @contextmanager
    def _virtual_work(self) -> Iterator[None]:
        """Work for the loop takes as long as the dice say, so that turns are taken."""
        dice, worked = Random(f"{self.seed}:work"), 0.0

        def clock() -> float:
            nonlocal worked
            worked += dice.random() * 0.004
            return worked

        self._work_clock = clock
        before = [
            (module, name, value)
            for module_name, module in sorted(sys.modules.items())
            if module_name.partition(".")[0] in _OF_PRODUCT
            for name, value in vars(module).items()
            if any(value is each for each in _CLOCKS)
        ]
        for module, name, _ in before:
            setattr(module, name, clock)
        try:
            yield
        finally:
            for module, name, value in before:
                setattr(module, name, value)

    def _note(self, _: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        if context.get("exception") is not None:
            self.promises.broken(f"{context['message']}: {context['exception']!r}")

    async def _run(self, steps: int) -> None:
        await self._start()
        for self.steps in range(1, steps + 1):
            ((act, _),) = self._script.choices(self._actions(), self._weights)
            act()
            if self._script.random() < 0.6:
                await asyncio.sleep(self._script.expovariate(1 / self._haste_s))
            if self._script.random() < 0.002:
                await self._crash()
            self._raise_if_broken()
            if self.steps % CHECK_EVERY == 0:
                await self._check()
        await self._check()
        await self._stop()

    def _raise_if_broken(self) -> None:
        if self.promises.first is not None:
            raise self.promises.first

    # -- the relay --------------------------------------------------------------------------------

    async def _start(self) -> None:
        self.disk.is_dead = False
        self._heal()
        store = typed("Store", self.disk)
        groups = await rebuilt_groups(store, RELAY.pubkey)
        state = RelayState(self._policy, groups, await self.disk.management())
        self.state = state
        adopt, promises, loop = state.adopt, self.promises, self._loop
        self._adopt_as_known: Callable[[Groups], None] = adopt

        def adopted(groups: Groups) -> None:
            adopt(groups)
            promises.adopted(loop.iteration)

        state.adopt = adopted  # type: ignore[method-assign]
        promises.adopted(loop.iteration)
        metrics = Metrics()
        linked = LinkedRows(store, state, self.now)
        flush_queue = FlushQueue(loop.call_soon)
        fanout = Fanout(state, linked_rows=linked, flush_queue=flush_queue)
        unused: Any = None
        self._ingest = Ingest(
            store,
            state,
            RELAY,
            fanout,
            clock=self.now,
            verifiers=unused,
            metrics=metrics,
            is_here=lambda url: url == URL,
        )
        limits = self._config.limits
        queries = QueryRunner(store, state, fanout, limits, clock=self.now, metrics=metrics)
        self._services = SimpleNamespace(
            config=self._config,
            terms=self._config.storage.terms,
            clock=self.now,
            metrics=metrics,
            state=state,
            ingest=self._ingest,
            queries=queries,
            negentropy=Negentropy(store, state, limits, clock=self.now, workers=unused),
            flush_queue=flush_queue,
        )
        self._turns = Turns(self._work_clock)
        await self._ingest.__aenter__()
        self._fail_again()

    def _heal(self) -> None:
        self.disk.fault_rate, self.disk.slowness_s = 0.0, 0.001

    def _fail_again(self) -> None:
        self.disk.fault_rate, self.disk.slowness_s = self._fault_rate, self._slowness_s

    def _open(self, who: str) -> Client:
        self._names += 1
        client = Client(f"{who}{self._names}", PEOPLE[who], self.promises)
        client.trace = lambda line: self._trace.update(line.encode())
        socket: Any = client.socket
        address = relay_address(URL)
        assert address is not None
        connection = Connection(
            self._services,
            socket,
            socket,
            frozenset({address}),
            self._turns,
            address=None,
            trusted=False,
            logged_in=lambda _: None,
        )
        task = asyncio.create_task(connection.serve(), name=client.name)
        self._serving.add(task)
        task.add_done_callback(self._served)
        return client

    def _served(self, task: asyncio.Task[None]) -> None:
        self._serving.discard(task)
        if not task.cancelled() and task.exception() is not None:
            self.promises.broken(f"{task.get_name()}: {task.exception()!r}")

    async def _crash(self) -> None:
        """The process is killed; what was not committed is lost, and so are all answers."""
        self.disk.is_dead = True
        self.promises.faults += 1
        for client in self._clients:
            client.socket.is_cut = True
        self._clients = []
        mine = asyncio.current_task()
        others = [task for task in self._loop.tasks() if task is not mine]
        for task in others:
            task.cancel()
        await asyncio.gather(*others, return_exceptions=True)
        await self._start()

    async def _stop(self) -> None:
        self._heal()
        for client in self._clients:
            client.socket.cut()
        await asyncio.gather(*self._serving, return_exceptions=True)
        await self._ingest.__aexit__()
        self._raise_if_broken()

    # -- what clients do --------------------------------------------------------------------------

    def _actions(self) -> Sequence[tuple[Callable[[], None], float]]:
        return (
            (self._someone_connects, 3),
            (self._someone_logs_in, 3),
            (self._someone_writes, 20),
            (self._someone_chats, 12),
            (self._someone_writes_a_version, 12),
            (self._someone_repeats, 5),
            (self._someone_deletes, 4),
            (self._someone_moderates, 14),
            (self._someone_vanishes, 0.3),
            (self._someone_asks, 10),
            (self._someone_closes, 4),
            (self._someone_is_cut, 1),
            (self._someone_stops_reading, 1),
            (self._someone_reads_on, 2),
            (self._time_jumps, 0.3),
        )

    def _anyone(self) -> Client | None:
        self._clients = [client for client in self._clients if not client.socket.is_cut]
        return self._script.choice(self._clients) if self._clients else None

    def _someone_connects(self) -> None:
        if len(self._clients) < CLIENTS:
            self._clients.append(self._open(self._script.choice(list(PEOPLE))))

    def _someone_logs_in(self) -> None:
        client = self._anyone()
        if client is not None:
            client.logs_in(URL, self.now())

    def _author(self, among: Sequence[str] = tuple(PEOPLE)) -> SecretKey:
        return PEOPLE[self._script.choice([each for each in among if each != "nobody"])] or RELAY

    def _publish(
        self,
        author: SecretKey,
        kind: int,
        tags: Sequence[Sequence[str]] = (),
        at: int | None = None,
    ) -> None:
        client = self._anyone()
        if client is None:
            return
        self._names += 1
        text = f"{self._names}"
        event = author.sign(
            kind, [list(tag) for tag in tags], text, self.now() if at is None else at
        )
        if kind != PASSING:
            self._events.append(event)
        client.publishes(event)

    def _someone_writes(self) -> None:
        kind = self._script.choice((NOTE, NOTE, NOTE, WRAP, PASSING))
        tags = [["t", self._script.choice("xyz")]]
        if kind == WRAP:
            tags.append(["p", self._author().pubkey])
        self._publish(self._author(), kind, tags, self.now() - self._script.randrange(5))

    def _someone_chats(self) -> None:
        group = self._script.choice(GROUPS)
        self._publish(self._author(IN_GROUPS), CHAT, [["h", group]])

    def _someone_writes_a_version(self) -> None:
        kind = self._script.choice((PROFILE, LIST, ARTICLE, ARTICLE))
        tags = [["d", self._script.choice("ab")]] if kind == ARTICLE else []
        for _ in range(self._script.randrange(1, 4)):
            at = self.now() - self._script.randrange(4)
            self._publish(self._author(("alice", "dave")), kind, tags, at)

    def _someone_repeats(self) -> None:
        client = self._anyone()
        if client is not None and self._events:
            client.publishes(self._script.choice(self._events[-60:]))

    def _someone_deletes(self) -> None:
        if not self._events:
            return
        event = self._script.choice(self._events[-60:])
        author = next(
            (key for key in PEOPLE.values() if key is not None and key.pubkey == event.pubkey), None
        )
        if author is None or event.kind not in WATCHED:
            return
        tags = [["e", event.id]]
        if event.kind in (PROFILE, LIST, ARTICLE) and self._script.random() < 0.5:
            d = next((tag[1] for tag in event.tags if tag[0] == "d"), "")
            tags = [["a", f"{event.kind}:{event.pubkey}:{d}"]]
        at = self.now() - self._script.randrange(4)
        self._publish(author, DELETION, tags, at)

    def _someone_moderates(self) -> None:
        script = self._script
        group = script.choice(GROUPS)
        h = ["h", group]
        someone = self._author(IN_GROUPS).pubkey
        match script.choice("cccppprrrffffffffde"):
            case "c":
                self._publish(cast.alice, CREATE, [h])
            case "p":
                self._publish(cast.alice, PUT, [h, ["p", someone]])
            case "r":
                if someone != cast.alice.pubkey:
                    self._publish(cast.alice, REMOVE, [h, ["p", someone]])
            case "f":
                flag = script.choice((["private"], ["public"]))
                self._publish(cast.alice, EDIT, [h, flag])
                if script.random() < 0.7:
                    self._publish(cast.alice, CHAT, [h])
                    for client in self._clients[:4]:  # while it is being committed
                        at = script.random() * 4 * self._slowness_s
                        self._loop.call_later(at, self._ask, client, {"kinds": [CHAT]})
            case "d":
                chats = [each for each in self._events[-60:] if ["h", group] in each.tags]
                named = [each for each in chats if each.kind == CHAT]
                if named:
                    self._publish(cast.alice, DELETE, [h, ["e", script.choice(named).id]])
            case _:
                if script.random() < 0.3:
                    self._publish(cast.alice, END, [h])

    def _someone_vanishes(self) -> None:
        at = self.now() - self._script.randrange(4)
        self._publish(cast.dave, VANISH, [["relay", "ALL_RELAYS"]], at)

    def _someone_asks(self) -> None:
        client = self._anyone()
        if client is None:
            return
        filters = [self._filter() for _ in range(self._script.choice((1, 1, 1, 2, 3)))]
        if len(filters) == 1 and self._script.random() < 0.2:
            filters[0]["limit"] = self._script.randrange(12)
        self._ask(client, *filters)

    def _ask(self, client: Client, *filters: dict[str, Any]) -> None:
        self._names += 1
        client.asks(f"s{self._names}", *filters)

    def _filter(self) -> dict[str, Any]:
        script = self._script
        filter_: dict[str, Any] = {}
        match script.randrange(8):
            case 7:
                filter_["kinds"] = [CHAT]
            case 0:
                filter_["kinds"] = script.sample(sorted(WATCHED - {WRAP}), 2)
            case 1:
                filter_["authors"] = [self._author().pubkey for _ in range(2)]
            case 2:
                filter_["#h"] = script.sample(GROUPS, 2)
            case 3:
                filter_["#t"] = [script.choice("xyz")]
            case 4:
                filter_["kinds"] = [CHAT]
            case 5:
                recent = self._events[-40:]
                if recent:
                    filter_["ids"] = [each.id for each in script.choices(recent, k=5)]
            case _:
                pass
        if script.random() < 0.2:
            filter_["since"] = self.now() - script.randrange(60)
        return filter_

    def _someone_closes(self) -> None:
        client = self._anyone()
        if client is None:
            return
        subs = [sub for sub, asked in client.asked.items() if not asked.is_closed]
        if subs:
            sub = self._script.choice(subs)
            client.says("CLOSE", sub)
            client.closing.append(sub)

    def _someone_is_cut(self) -> None:
        client = self._anyone()
        if client is not None:
            client.socket.cut()

    def _someone_stops_reading(self) -> None:
        client = self._anyone()
        if client is not None:
            client.socket.stop_reading()

    def _someone_reads_on(self) -> None:
        for client in self._clients:
            client.socket.read_on()

    def _time_jumps(self) -> None:
        self._skew += self._script.choice((-30, -5, 5, 30))

    # -- what must hold ---------------------------------------------------------------------------

    async def _check(self) -> None:
        """Let everything come to an end, and compare all."""
        self._heal()
        self._someone_reads_on()
        await asyncio.sleep(QUIET_S)
        self._raise_if_broken()
        for client in self._clients:
            if client.socket.is_cut:
                continue
            if client.due:
                raise self.promises.broken(
                    f"{client.name} got no answer to {len(client.due)} events"
                )
            for sub in client.closing:
                client.asked[sub].is_closed = True
            client.closing.clear()
            for asked in client.asked.values():
                if not asked.is_closed and not asked.is_complete:
                    raise self.promises.broken(f"{client.name} got neither EOSE nor CLOSED")
                self.promises.check_live(asked)
        await self._check_groups()
        for who in PEOPLE:
            await self._check_all_that(who)
        self._raise_if_broken()
        self._fail_again()

    async def _check_groups(self) -> None:
        store = typed("Store", self.disk)
        if await rebuilt_groups(store, RELAY.pubkey) != self.state.groups:
            raise self.promises.broken("the groups are not what a replay of the log says")
        by_id = self.state.groups.by_id
        self.promises.check_groups({name: frozenset(by_id[name].members) for name in by_id})

    async def _check_all_that(self, who: str) -> None:
        """Somebody who comes now finds what they may read, and nothing else."""
        client = self._open(who)
        await asyncio.sleep(1)
        client.logs_in(URL, self.now())
        await asyncio.sleep(1)
        client.asks("all", {"limit": 5000})
        client.says("COUNT", "number", {"kinds": [NOTE]})
        note = cast.alice.sign(NOTE, [], f"is it well? {self._names}", self.now())
        self._names += 1
        await asyncio.sleep(QUIET_S)
        self._raise_if_broken()
        asked, readable = client.asked["all"], self.promises.readable(client.keys)
        found = {
            event_id for event_id in asked.got if self.promises.rows[event_id].event.kind in WATCHED
        }
        if found != readable:
            missing, more = readable - found, found - readable
            raise self.promises.broken(
                f"{who} misses {len(missing)} events, and has {len(more)} too many"
            )
        notes = [each for each in readable if self.promises.rows[each].event.kind == NOTE]
        if client.numbers.get("number") != len(notes):
            raise self.promises.broken(
                f"{who} counts {client.numbers.get('number')} notes of {len(notes)}"
            )
        members = [
            self.promises.rows[event_id].event
            for event_id in asked.got
            if self.promises.rows[event_id].event.kind == MEMBERS
        ]
        for event in members:
            group = self.state.groups.by_id[event.d]
            if set(event.tag_values("p")) != set(group.members):
                raise self.promises.broken(
                    f"what the relay says of the members of {event.d} is out of date"
                )
        client.publishes(note)
        await asyncio.sleep(QUIET_S)
        if not self.promises.is_there(note) or note.id not in asked.got:
            raise self.promises.broken("a note is not stored, or does not come live")
        client.socket.cut()
        await asyncio.sleep(1)
