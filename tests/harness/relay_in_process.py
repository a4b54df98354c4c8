"""A relay without sockets and processes: the write pipeline on a real store, time at hand."""

from __future__ import annotations

import asyncio
from concurrent.futures import Future
from contextlib import asynccontextmanager
from ipaddress import ip_address
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any, Self

import policies
from relay.access.management import changes_of
from relay.errors import ok_reply
from relay.facts import Origin
from relay.memory.systems import MEMORY_SYSTEMS
from relay.nostr.event import event_from_raw
from relay.observe import Metrics
from relay.read.fanout import Fanout
from relay.read.linked_rows import NO_LINKS, LinkedRows
from relay.state import RelayState
from relay.storage import PageQuery
from relay.storage.sqlite.store import SqliteStore
from relay.write.commands import ManagementChange
from relay.write.ingest import Ingest
from relay.write.key_rotation import signed_again
from relay.write.replay import rebuilt_groups
from relay.write.sweeper import Sweeper
from tests import cast
from tests.contract.writing import EVERYTHING, MAX, TERMS, asked
from tests.harness.reference_store import ReferenceStore

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Sequence
    from concurrent.futures import Executor
    from ipaddress import IPv4Address, IPv6Address

    from policies import PolicySet
    from relay.errors import Reject, Result
    from relay.groups.group import Groups
    from relay.lifecycle.rows import Stored
    from relay.nostr.agents import Attestation
    from relay.nostr.event import Event
    from relay.nostr.keys import SecretKey
    from relay.read.linked_rows import Links
    from relay.storage import Store
    from relay.write.asking import Plugins
    from relay.write.batch import Batch
    from relay.write.commands import LaneItem

NOON = 1_772_000_000
RELAY = cast.person("relay")
URL = "wss://rookery.example"
STORED = (True, "")
DUPLICATE = (True, "duplicate: already have this event")
DELETED = (False, "blocked: deleted")
_ACTORS = f'[actors]\nowners = ["{cast.owner.npub}"]\nagents = ["{cast.robot.npub}"]\n'
_PRESETS = Path(policies.__file__).parent / "presets"


def policy_of(preset: str, *more: str, actors: str = _ACTORS) -> PolicySet:
    """What `rookery init --preset` makes, and more text of an admin's own."""
    with TemporaryDirectory() as folder:
        home = Path(folder)
        (home / "00-actors.toml").write_text(actors)
        (home / "10-preset.toml").write_text((_PRESETS / f"{preset}.toml").read_text())
        (home / "20-own.toml").write_text("\n".join(more))
        return policies.load(home, MEMORY_SYSTEMS, RELAY.pubkey)


class AtOnce:
    """An Executor that does the work where it is asked to."""

    def submit(self, work: Callable[..., Any], *args: Any) -> Future[Any]:
        done: Future[Any] = Future()
        done.set_result(work(*args))
        return done


class Letter:
    """The author of one event, not logged in, who waits for its answer."""

    authenticated: frozenset[str] = frozenset()
    attested: frozenset[Attestation] = frozenset()
    address: IPv4Address | IPv6Address | None = None
    connection: int | None = None
    message: int | None = None
    counted_as: str | None = None
    is_owner = False
    is_known = False
    is_over = False

    def __init__(self) -> None:
        self.answer: asyncio.Future[tuple[bool, str]] = asyncio.get_running_loop().create_future()
        self.answers: list[tuple[bool, str]] = []
        """There must be one."""

    @property
    def is_local(self) -> bool:
        return self.address is None

    def answered(self, _event: Event, _weight: int, result: Result) -> None:
        self.answers.append(ok_reply(result))
        if not self.answer.done():
            self.answer.set_result(self.answers[0])


class Loudspeaker(Fanout):
    """Remembers what was to be delivered."""

    def __init__(self, state: RelayState, linked_rows: LinkedRows) -> None:
        super().__init__(state, linked_rows=linked_rows)
        self.said: list[Event] = []

    def deliver(self, rows: Sequence[Stored], links: Links = NO_LINKS) -> Iterator[tuple[int, int]]:
        self.said += [row.event for row in rows]
        yield from super().deliver(rows, links)
        yield 0, len(rows)


class Batches:
    """Items of the batches that an Ingest tries from now on, and of those that it commits."""

    def __init__(self, ingest: Ingest) -> None:
        self.tried: list[Sequence[LaneItem]] = []
        self.committed: list[Sequence[LaneItem]] = []
        stored = ingest._stored

        async def noted(items: Sequence[LaneItem]) -> Batch:
            self.tried.append(items)
            batch = await stored(items)
            self.committed.append(items[: batch.number])
            return batch

        ingest._stored = noted  # type: ignore[method-assign]


class Home:
    """`async with` it; `restart` it."""

    relay = RELAY
    """Its key."""
    speaker = Loudspeaker
    plugins: Plugins | None = None
    """Asked from the next start on."""

    def __init__(self, store: Store, policy: PolicySet, verifiers: Executor | None = None) -> None:
        self.store = store
        self.policy = policy
        self.now = NOON
        self.metrics = Metrics()
        executor: Any = AtOnce()
        self._verifiers: Executor = executor if verifiers is None else verifiers
        self._numbers = 0
        self._connections = 0

    async def __aenter__(self) -> Self:
        groups = await rebuilt_groups(self.store, self.relay.pubkey)
        policy = self.policy
        groups = await signed_again(
            self.store,
            groups,
            self.relay,
            policy.keep,
            policy.groups.compat,
            self.now,
            check=self.store.check_groups if isinstance(self.store, SqliteStore) else None,
        )
        self.state = RelayState(self.policy, groups, await self.store.management())
        self.live = self.speaker(self.state, LinkedRows(self.store, self.state, lambda: self.now))
        self.ingest = Ingest(
            self.store,
            self.state,
            self.relay,
            self.live,
            clock=lambda: self.now,
            verifiers=self._verifiers,
            metrics=self.metrics,
            is_here=lambda url: url == URL,
            plugins=self.plugins,
        )
        await self.ingest.__aenter__()
        self.sweep = Sweeper(
            self.store, self.state, self.ingest, clock=lambda: self.now, metrics=self.metrics
        )
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.ingest.__aexit__()

    async def restart(self) -> None:
        await self.__aexit__()
        await self.__aenter__()

    # what people do

    def made(
        self,
        who: SecretKey,
        kind: int,
        *tags: Sequence[str],
        h: str | None = None,
        at: int | None = None,
        content: str = "",
    ) -> Event:
        """Another event each time, as if its author had waited a moment."""
        self._numbers += 1
        place = [] if h is None else [["h", h]]
        every = [*place, *(list(tag) for tag in tags), ["nonce", str(self._numbers)]]
        return who.sign(kind, every, content, self.now if at is None else at)

    def request(self, who: SecretKey, *urls: str, at: int | None = None) -> Event:
        """To vanish."""
        return self.made(who, 62, *(["relay", url] for url in urls or ("ALL_RELAYS",)), at=at)

    async def take(
        self, *events: Event, origin: Origin = Origin.WIRE, logins: Iterable[str] = ()
    ) -> list[tuple[bool, str]]:
        """Send these together: they come into one batch. Each is answered exactly once.

        `logins`: keys that logged in on the connection.
        """
        keys = tuple(logins)
        letters = [self.post(event, origin, keys) for event in events]
        answers = [await letter.answer for letter in letters]
        assert [len(letter.answers) for letter in letters] == [1] * len(events)
        return answers

    def post(
        self,
        event: Event,
        origin: Origin = Origin.WIRE,
        logins: Iterable[str] = (),
        connection: int | None = None,
    ) -> Letter:
        letter = Letter()
        letter.connection = connection
        letter.authenticated = frozenset(logins)
        self.ingest.submit(event, letter, origin)
        return letter

    def letter_from(self, address: str) -> Letter:
        """Of a client with this address, on a connection of its own."""
        letter = Letter()
        self._connections += 1
        letter.address, letter.connection = ip_address(address), self._connections
        return letter

    async def call(self, method: str, *params: object) -> tuple[bool, str]:
        """One call of NIP-86 by somebody who may."""
        (answer,) = self.calls((method, *params))
        return await answer

    def calls(self, *calls: Sequence[object]) -> list[asyncio.Future[tuple[bool, str]]]:
        """Several, which come into the same batch as what is sent before them and after."""
        answers = []
        for method, *params in calls:
            answer: asyncio.Future[tuple[bool, str]] = asyncio.get_running_loop().create_future()

            def answered(
                refused: Reject | None, answer: asyncio.Future[tuple[bool, str]] = answer
            ) -> None:
                text = "" if refused is None else f"{refused.prefix}: {refused.text}"
                answer.set_result((refused is None, text))

            self.ingest.manage(ManagementChange(changes_of(str(method), params), answered))
            answers.append(answer)
        return answers

    async def do(
        self,
        who: SecretKey,
        kind: int,
        *tags: Sequence[str],
        h: str | None = None,
        at: int | None = None,
        content: str = "",
    ) -> Event:
        """Send an event that nothing is wrong with."""
        event = self.made(who, kind, *tags, h=h, at=at, content=content)
        assert await self.take(event) == [STORED], event
        return event

    async def vanish(self, who: SecretKey, at: int | None = None) -> Event:
        request = self.request(who, at=at)
        assert await self.take(request) == [STORED]
        return request

    # what a test looks at

    @property
    def groups(self) -> Groups:
        return self.state.groups

    async def rebuilt(self) -> Groups:
        """The groups as a restart would find them."""
        return await rebuilt_groups(self.store, self.relay.pubkey)

    async def log(self) -> list[Event]:
        log: list[Event] = []
        seq = 0
        while rows := await self.store.since(seq, 1000):
            log += [row.event for row in rows]
            seq = rows[-1].seq
        return log

    async def found(self, **conditions: object) -> list[Event]:
        query = PageQuery(asked(**conditions), EVERYTHING, 10_000, MAX, self.now, 10_000)
        page = await self.store.page(query)
        return [event_from_raw(raw) for raw in page.raws]


@asynccontextmanager
async def store_of(kind: str) -> AsyncIterator[Store]:
    """ "reference" or "sqlite"."""
    if kind == "reference":
        yield ReferenceStore()
        return
    with TemporaryDirectory() as folder:
        store = await SqliteStore.open(Path(folder) / "rookery.db", TERMS, synchronous="NORMAL")
        try:
            yield store
        finally:
            await store.close()
