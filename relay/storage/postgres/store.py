"""PostgresStore: the Store port on one database, which several processes may share.

Reads of clients run on pools of connections, those of the relay itself on another, batches on one
of their own; PostgreSQL does locking, caching and durability.
"""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack, suppress
from dataclasses import replace
from time import monotonic
from typing import TYPE_CHECKING, Any, Final, TypeVar

from relay.access.management import ListChange, ListName, management_of
from relay.access.quotas import Size, Sized, SizedBy
from relay.errors import StoreFault
from relay.lifecycle.retention import MaxAmount
from relay.lifecycle.rows import OldVersion
from relay.storage import CLOSED, PARSED_BYTES, Features
from relay.storage.checking import faults_of
from relay.storage.hashes import id_key
from relay.storage.postgres.connections import Connections
from relay.storage.postgres.erasing import Erasing
from relay.storage.postgres.following import ended_in
from relay.storage.postgres.listening import HeadListener, Touch
from relay.storage.postgres.opening import opened, take_key
from relay.storage.postgres.policies import PolicyVersions
from relay.storage.postgres.reading import Reader, Turns
from relay.storage.postgres.replica import Replica, ReplicaReader
from relay.storage.postgres.rows import stored
from relay.storage.postgres.sql.named import QUERIES
from relay.storage.postgres.sql.sweep import SweepQueries
from relay.storage.postgres.sql.visibility import ReadConditions
from relay.storage.postgres.text_index import TextIndex
from relay.storage.postgres.writer import Writer
from relay.storage.rows import erasure_of, event_in, expired_row, rows_after
from relay.storage.tokens import Tokenizer

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Mapping, Sequence, Set

    from relay.access.management import Management
    from relay.access.read_rules import Match
    from relay.groups.group import EndedGroup
    from relay.lifecycle.retention import LastScan, SweepRule
    from relay.lifecycle.rows import ExpiredRow, Found, Lookups, Stored, WritePlan
    from relay.nostr.erasure import Erasure
    from relay.nostr.event import Event
    from relay.nostr.filters import FilterTerms
    from relay.storage import Others, TakeOver
    from relay.storage.checking import CheckedRow
    from relay.storage.postgres.hashes import KeyedHashes

T = TypeVar("T")

_HELD: Final = {
    False: "another relay has the database open: stop it first",
    True: "another relay has the database open for itself: set [storage] shared there too",
}
_FOLLOWED_S: Final = 5.0
"""In which a commit of another relay is taken over at the latest, if the database answers."""
_WRITABLE_S: Final = 60.0
"""A store whose batch takes longer than this is not writable."""
_BULK_S: Final = 3600
"""Reads of the whole store; others end after a minute."""


class PostgresStore(Reader):
    """The Store port on one PostgreSQL database."""

    features = Features(search=True, shared=False, erased_from="the rows of this relay's database")

    def __init__(
        self,
        connections: Connections,
        hashes: KeyedHashes,
        terms: FilterTerms,
        head: int,
        batch: str | None,
        read_at: float,
        *,
        is_shared: bool,
        replica: Replica | None = None,
    ) -> None:
        """Use `open`. `read_at`: `monotonic` time before `head` was read."""
        super().__init__(connections, hashes, Turns(), Tokenizer())
        self.features = replace(self.features, shared=is_shared)
        self._terms = terms
        self._head = head
        self._changes = 0
        """Number of commits of this process, failed ones included, and of take-overs."""
        self._committed = asyncio.Event()
        self._erasing = Erasing(connections)
        self._sweeps = SweepQueries(ReadConditions(hashes))
        self._touch = Touch()
        self._read_at = read_at
        self._writer = Writer(
            connections,
            hashes,
            terms.index_tags,
            self._sweeps,
            self._erasing,
            self._touch,
            head,
            batch,
            is_shared=is_shared,
            has_replica=replica is not None,
        )
        self._news = asyncio.Event()
        self._heard = head
        self._take_over: TakeOver | None = None
        self._index = TextIndex(connections, self.committed)
        self._replica = replica
        self.reader: ReplicaReader | None = None
        """For reads of clients; None: without a replica the store itself serves them."""
        if replica is not None:
            self.reader = ReplicaReader(
                replica, connections, hashes, self._turns, self._tokenizer, self
            )
        self.policies = PolicyVersions(connections)
        self._listener = HeadListener(
            connections,
            self._touch,
            self.committed,
            lambda: self._writer.position,
            self._told,
            self.policies.heard,
            is_shared=is_shared,
            replica=replica,
        )
        self._appends: set[asyncio.Task[Any]] = set()
        self._closed = False

    @classmethod
    async def open(
        cls,
        url: str,
        terms: FilterTerms,
        *,
        password: str | None = None,
        is_shared: bool = False,
        replica: str | None = None,
        relay: str | None = None,
    ) -> PostgresStore:
        """Open the database at a `postgresql://` address, and make its tables if it is empty.

        `relay`: the public key, which all relays that share it have; None: not a relay opens it.
        `replica`: the address of a server that follows it, for `reader`, with the same password.
        `is_shared`: other relays have it open too, the same way; the caller sets `take_over`, and
        calls `follow` after `news`. Otherwise no other relay may use it. Raises StoreFault when one
        does, StoreVersion for a database of another version or program.
        """
        connections = Connections(url, password)
        await connections.open()
        async with AsyncExitStack() as opened_so_far:
            opened_so_far.push_async_callback(connections.close)
            await connections.refuse_pooler()
            hashes = await opened(connections, terms)
            read_at = monotonic()
            async with connections.reading() as db:
                head, batch = await db.fetchrow(QUERIES["position"])
            follower = None if replica is None else Replica(replica, password, connections)
            if follower is not None:
                await follower.open()
            store = cls(
                connections,
                hashes,
                terms,
                head,
                batch,
                read_at,
                is_shared=is_shared,
                replica=follower,
            )
            opened_so_far.pop_all()
            opened_so_far.push_async_callback(store.close)
            if not await store._listener.start():
                raise StoreFault(_HELD[is_shared])
            if relay is not None:
                async with connections.writing() as db:
                    await take_key(db, relay, is_shared=is_shared)
            opened_so_far.pop_all()
        return store

    # -- writing --------------------------------------------------------------------------------

    @property
    def append_s(self) -> float:
        return self._writer.append_s

    @property
    def disk_s(self) -> float:
        return 0.0

    async def append(self, lookups: Lookups, decide: Callable[[Found], WritePlan]) -> int:
        self._check_open()
        return await self._completed(self._append(lookups, decide))

    async def replicated(self) -> None:
        self._check_open()
        if not self._writer.is_replicated:
            await self._completed(self._writer.replicate())

    async def _completed(self, begun: Coroutine[Any, Any, T]) -> T:
        """What has begun is completed even if its caller is cancelled."""
        task = asyncio.create_task(begun)
        self._appends.add(task)
        task.add_done_callback(self._appended)
        return await asyncio.shield(task)

    async def _append(self, lookups: Lookups, decide: Callable[[Found], WritePlan]) -> int:
        try:
            head = await self._writer.append(lookups, decide)
        finally:
            self._changes += 1
        self._advance(head)
        return head

    def _appended(self, task: asyncio.Task[Any]) -> None:
        self._appends.discard(task)
        if not task.cancelled():
            task.exception()  # the caller gets the error, or was cancelled

    def hurry(self) -> None:
        """The process ends: what waits for a replica fails within a minute, and may be committed
        later."""
        self._writer.hurry()

    # -- other relays on the database -----------------------------------------------------------

    @property
    def take_over(self) -> TakeOver | None:
        return self._take_over

    @take_over.setter
    def take_over(self, take_over: TakeOver | None) -> None:
        self._take_over = take_over
        self._writer.take_over = None if take_over is None else self._taken_over
        # Not now: the caller has loaded its state since.
        self._touch.begin(self._read_at)

    async def _taken_over(self, others: Others) -> Callable[[], Lookups] | None:
        assert self._take_over is not None
        changed = await self._take_over(others)
        self._advance(others.upto)
        return changed

    def _told(self, head: int, asked_at: float | None) -> None:
        if asked_at is not None:
            self._touch.answered(asked_at)
        if not self.features.shared:
            self._advance(head)
        elif head > self._writer.position[0]:
            self._heard = max(self._heard, head)
            self._news.set()
        elif asked_at is not None:
            self._touch.confirm(asked_at)

    async def news(self) -> None:
        await self._news.wait()

    async def follow(self) -> None:
        self._news.clear()
        heard, self._heard = self._heard, 0  # if this fails, the next poll reports it again
        if heard > self._writer.position[0]:  # else it was of this process
            await self._writer.follow()

    def follow_from(self, seq: int) -> None:
        self._writer.position = seq, None
        self._advance(seq)

    @property
    def set_back(self) -> asyncio.Event:
        """Set when the database has lost commits that this process knows, or has commits that it
        took for lost: then everything is refused, and the process must restart."""
        return self._connections.set_back

    async def use_call(self, call: str, until: int, now: int) -> bool:
        """Whether no relay has used this NIP-98 event. Raises StoreFault."""
        return bool(await self._named("use_call", bytes.fromhex(call), until, now))

    def is_current(self) -> bool:
        return self._touch.is_current()

    def lag_s(self) -> float:
        """As `Touch` has it."""
        return self._touch.lag_s()

    def is_first(self) -> bool:
        return self._listener.is_first

    async def current(self) -> None:
        """Await before a read with the current rights. Raises StoreFault."""
        await self._touch.current()

    _current = current

    def known_state(self) -> int | None:
        if self.features.shared:
            is_told = self._take_over is not None
        else:
            is_told = not self._writer.is_in_doubt
        return self._changes if is_told and self._touch.is_answered() else None

    _known_state = known_state

    def indexed(self) -> tuple[str, int, int]:
        """As `TextIndex.upto`."""
        return self._index.upto

    def _advance(self, head: int) -> None:
        if head > self._head:
            self._head = head
            self._changes += 1
            self._wake()

    def _wake(self) -> None:
        """Wake the tasks in `committed_after`."""
        self._committed.set()
        self._committed = asyncio.Event()

    async def make_room(self, tags: int) -> int:
        return 0

    def prepare(self, events: Sequence[Event]) -> None:
        self._writer.prepared.add(events)

    async def erasure(self, request: str) -> Erasure | None:
        rows = await self._named("erasure", bytes.fromhex(request))
        if not rows:
            return None
        # Before it has followed a commit of another relay, `is_erased` takes its rows for erased.
        head = await self.head()
        try:
            async with asyncio.timeout(_FOLLOWED_S):
                await self.committed_after(head - 1)
        except TimeoutError:
            raise StoreFault("database: commits of other relays cannot be followed") from None
        return erasure_of(request, rows[0])

    def is_erased(self, request: str) -> bool:
        return self._erasing.is_erased(request)

    def unerased_s(self) -> float:
        return self._erasing.pending_s

    def is_nearly_full(self) -> bool:
        return False  # the disk is the server's

    async def is_writable(self) -> bool:
        self._check_open()
        if self._touch.is_lost:
            return False
        try:
            async with asyncio.timeout(_WRITABLE_S):
                async with self._connections.writing():
                    pass  # no batch has it all the time
                # On another one: `follow` needs that while this waits for a replica.
                async with self._connections.for_relay() as db:
                    await db.execute(QUERIES["put_meta"], "checked", str(self._head))
        except (StoreFault, TimeoutError):
            return False
        return True

    # -- the log --------------------------------------------------------------------------------

    async def since(self, seq: int, limit: int) -> Sequence[Stored]:
        return [stored(row) for row in await self._rows_after("rows_since", seq, limit)]

    async def seqs_of_kinds(
        self, kinds: Set[int], after: int, upto: int, limit: int
    ) -> Sequence[int]:
        rows = await self._named("seqs_of_kinds", sorted(kinds), after, upto, limit)
        return [seq for (seq,) in rows]

    async def head(self) -> int:
        ((head,),) = await self._named("head")
        return int(head)

    def committed(self) -> int:
        return self._head

    async def committed_after(self, seq: int) -> int:
        self._check_open()
        while self._head <= seq:
            await self._committed.wait()
            self._check_open()
        return self._head

    async def ended_groups(self) -> Mapping[str, EndedGroup]:
        return ended_in(await self._named("ended_groups", None))

    # -- lists and totals -----------------------------------------------------------------------

    async def management(self) -> Management:
        return management_of(
            ListChange(ListName(name), item.decode(), note.decode())
            for name, item, note in await self._named("management", None)
        )

    async def sizes(self, by: SizedBy, limit: int) -> Sequence[Sized]:
        name_of = _NAMES[by]
        async with self._connections.reading() as db:
            rows = await db.fetch(QUERIES[f"sizes_by_{by.value}"], limit)
        return [Sized(name_of(of), Size(events, size)) for of, events, size in rows]

    # -- sweeps ---------------------------------------------------------------------------------

    async def expired(
        self, now: int, limit: int, vanishing: Set[str] = frozenset()
    ) -> Sequence[ExpiredRow]:
        keys = [bytes.fromhex(pubkey) for pubkey in vanishing]
        rows = await self._named("expired", now, keys, limit)
        return [expired_row(id_, size, kind, key, d.decode()) for id_, size, kind, key, d in rows]

    async def due_rows(
        self,
        rule: SweepRule,
        exempt: Sequence[Match],
        *,
        now: int,
        last_scan: LastScan | None,
        after: tuple[int, str] | None,
        limit: int,
    ) -> Sequence[int]:
        due = self._sweeps.due_rows(
            rule, exempt, now=now, last_scan=last_scan, after=after, limit=limit
        )
        async with self._connections.reading() as db:
            if last_scan is not None and isinstance(rule.limit, MaxAmount):
                # Without new rows no amount can be newly exceeded.
                new = self._sweeps.has_new_rows(rule, exempt, last_scan)
                if not await db.fetch(new.sql, *new.values, timeout=_BULK_S):
                    return []
            return [seq for (seq,) in await db.fetch(due.sql, *due.values, timeout=_BULK_S)]

    async def overdue_versions(self, now: int, limit: int) -> Sequence[OldVersion]:
        rows = await self._named("old_due", now, limit, PARSED_BYTES)
        return [_old_version(row) for row in rows]

    async def old_versions(self, after: int, limit: int) -> Sequence[OldVersion]:
        return [_old_version(row) for row in await self._rows_after("old_after", after, limit)]

    async def stored(self, seqs: Sequence[int], most: int = PARSED_BYTES) -> Sequence[Stored]:
        rows = await self._named("rows_by_seq", list(seqs), most)
        return [stored(row) for row in rows]

    async def check(self, after: int, limit: int) -> tuple[int, Sequence[str]]:
        rows = await self._named("rows_to_check", after, limit, PARSED_BYTES)
        faults = await asyncio.to_thread(self._faults_of, rows)
        if rows:
            return rows[-1][0], faults
        async with self._connections.reading() as db:  # reads the whole table
            there, noted = await db.fetchrow(QUERIES["number_of_rows"])
        if there != noted:
            faults.append(f"{there} rows are there, and the totals say {noted}")
        return 0, faults

    def _faults_of(self, rows: Sequence[Any]) -> list[str]:
        checked: list[CheckedRow] = []
        for seq, id_, key, kind, created_at, pubkey, d, tags, raw, found in rows:
            author = id_key(pubkey.hex())
            is_found = found == len(tags) and self._is_tagged(raw, tags)
            name = d.decode(errors="replace")
            checked.append((seq, id_, key, kind, created_at, pubkey, author, name, is_found, raw))
        return faults_of(checked)

    def _is_tagged(self, raw: bytes, tags: Sequence[int]) -> bool:
        """True also for what is not an event, which is another fault."""
        with suppress(StoreFault):
            return self._hashes.of_event(event_in(raw), self._terms.index_tags).issubset(tags)
        return True

    # -- search ---------------------------------------------------------------------------------

    async def index(
        self,
        text_of: Callable[[Event], str | None],
        rules: str,
        limit: int,
        kinds: Set[int] | None = None,
    ) -> int:
        return await self._index.index(text_of, rules, limit, kinds)

    async def embed_texts(self, limit: int) -> bool:
        return False

    async def tidy_index(self) -> bool:
        if await self._index.tidy_index():
            return True
        self._erasing.start_vacuum()
        return False

    # -- all ------------------------------------------------------------------------------------

    async def _rows_after(self, name: str, seq: int, limit: int) -> list[Any]:
        return await rows_after(lambda after, most: self._named(name, after, most), seq, limit)

    async def _named(self, name: str, *values: object) -> list[Any]:
        async with self._connections.for_relay() as db:
            rows: list[Any] = await db.fetch(QUERIES[name], *values)
            return rows

    def _check_open(self) -> None:
        if self._closed:
            raise StoreFault(CLOSED)

    async def close(self) -> None:
        if self._closed:
            return
        self._closed = True
        self.hurry()
        self._wake()
        async with AsyncExitStack() as last_first:  # each, also when one is cancelled
            last_first.callback(self._tokenizer.close)
            if self._replica is not None:
                last_first.push_async_callback(self._replica.close)
            last_first.callback(self._index.close)
            last_first.push_async_callback(self._connections.close)
            last_first.push_async_callback(self._listener.close)
            last_first.push_async_callback(self._erasing.close)
            if self._appends:
                await asyncio.wait(self._appends)
            self._connections.refuse(CLOSED)


def _old_version(row: Sequence[Any]) -> OldVersion:
    at, drop_at, newer = row[7:]
    return OldVersion(stored(row[:7]), at, drop_at, newer)


_NAMES: Final[dict[SizedBy, Callable[[Any], int | str | None]]] = {
    SizedBy.KIND: int,
    SizedBy.AUTHOR: bytes.hex,
    SizedBy.GROUP: lambda group: group.decode() or None,
}
"""Converts the column that rows are grouped by to the value in `Sized`."""
