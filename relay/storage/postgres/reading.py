"""Reads of clients: pages, counts, sets and searches, each under a Visibility."""

from __future__ import annotations

from abc import ABC, abstractmethod
from array import array
from contextlib import suppress
from time import monotonic
from typing import TYPE_CHECKING, Any, Final, TypeVar

import orjson

from relay.errors import TooSlow, TooWide
from relay.nostr.event import parsing_weight
from relay.nostr.nip50 import Needs
from relay.nostr.nip77 import Items, ItemsBuilder
from relay.storage import ITEMS_S, PAGE_BYTES, Page, PageQuery, Place
from relay.storage.hashes import id_key
from relay.storage.page_cache import PageCache
from relay.storage.postgres.rows import stored
from relay.storage.postgres.sql.filters import Compiler
from relay.storage.postgres.sql.named import READ_QUERIES as QUERIES
from relay.storage.postgres.sql.parameters import Query
from relay.storage.postgres.sql.recall import Asking
from relay.storage.postgres.sql.words import Words
from relay.storage.read_turns import ReadTurns
from relay.storage.recall import best
from relay.storage.rows import EVERYTHING, event_in, is_full, place_of

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
    from contextlib import AbstractAsyncContextManager

    from relay.access.visibility import Visibility
    from relay.lifecycle.rows import Slot, Stored
    from relay.nostr.filters import Filter
    from relay.storage import Listed, Verb
    from relay.storage.postgres.connections import Connections, On
    from relay.storage.postgres.hashes import KeyedHashes
    from relay.storage.tokens import Tokenizer

    Ask = Callable[[Any], Awaitable["T"]]
    """A query on a connection."""
    Held = AbstractAsyncContextManager[None]

T = TypeVar("T")

_MAX_ROW: Final = 2 << 20
"""Bytes of the largest event (`relay.write.world.MAX_EVENT`)."""
_SEARCH_S: Final = 2.0
_READ_S: Final = 10.0
"""Limit for one page of a query."""
_COUNT_S: Final = {True: 10.0, False: 3.0}
"""Limit for a count, by whether the client has a known key; others wait for it."""
_SHORT_S: Final = 0.1
"""A page that takes longer is read again, in a queue for long reads, so that short ones do not
wait."""
_AT_ONCE: Final = 2
"""Reads that run at once, separately for: short pages of unknown keys; searches of known ones;
counts, and long pages, of known keys and of unknown ones. So some connections are left for other
reads."""
_SHORT_AT_ONCE: Final = 3
"""Short pages of known keys that run at once."""
_CHUNK_ROWS: Final = 5_000
_MAX_EXPLAINED: Final = 4
_MAX_STEPS: Final = 64
_MAX_INT: Final = 2**63 - 1
_PAGE_COLUMNS: Final = ("raw", "seq")
_PLACE_COLUMNS: Final = ("raw", "created_at", "id_key", "seq")
_STORED_COLUMNS: Final = ("seq", "raw", "grp", "quiet", "slot", "version", "expires_at")


class Turns:
    """Of reads that may take long, by whether the client has a known key."""

    def __init__(self, clock: Callable[[], float] = monotonic) -> None:
        """`clock`: as of `ReadTurns`."""
        self._short_pages = {
            known: ReadTurns(_SHORT_AT_ONCE if known else _AT_ONCE, clock)
            for known in (False, True)
        }
        self._long_pages, self._counts = (
            {known: ReadTurns(_AT_ONCE, clock) for known in (False, True)} for _ in range(2)
        )
        self._searches = {False: ReadTurns(1, clock), True: ReadTurns(_AT_ONCE, clock)}

    def short_page(self, visibility: Visibility, address: str | None) -> Held:
        return _turn(self._short_pages, visibility, address)

    def long_page(self, visibility: Visibility, address: str | None) -> Held:
        return _turn(self._long_pages, visibility, address)

    def count(self, visibility: Visibility, address: str | None) -> Held:
        return _turn(self._counts, visibility, address)

    def search(self, visibility: Visibility, address: str | None, verb: Verb) -> Held:
        return _turn(self._searches, visibility, address, verb)


def _turn(
    turns: Mapping[bool, ReadTurns],
    visibility: Visibility,
    address: str | None,
    verb: Verb = "REQ",
) -> Held:
    address, key = visibility.share_of(address)
    return turns[visibility.is_known].of(address, verb, key, is_owner=visibility.is_owner)


class Reader(ABC):
    """`relay.storage.EventReader` without the log."""

    def __init__(
        self, connections: Connections, hashes: KeyedHashes, turns: Turns, tokenizer: Tokenizer
    ) -> None:
        self._connections = connections
        self._hashes = hashes
        self._tokenizer = tokenizer
        self._words = Words(self._tokenizer)
        self._compiler = Compiler(hashes, self._words)
        self._turns = turns
        self._page_cache = PageCache()

    def page_now(self, query: PageQuery) -> Page | None:
        self._connections.check()
        if min(query.size, query.limit) <= 0 or query.filter.impossible:
            return Page((), None)
        state = self._known_state()
        return None if state is None else self._page_cache.page(state, query)

    async def page(self, query: PageQuery, *, is_long: bool = False) -> Page:
        page = self.page_now(query)
        if page is not None:
            return page
        state = self._known_state()
        page = await self._page_read(query)
        if state is not None:
            self._page_cache.add(state, query, page)
        return page

    async def page_for_relay(self, query: PageQuery) -> Page:
        page = self.page_now(query)
        if page is not None:
            return page
        return _page_of(await self._for_relay(self._compiler.page(query, _PAGE_COLUMNS)), query)

    async def _page_read(self, query: PageQuery) -> Page:
        compiled = self._compiler.page(query, _PAGE_COLUMNS)
        return _page_of(await self._paged(compiled, query.visibility, query.address), query)

    async def places(self, query: PageQuery) -> tuple[Sequence[tuple[Place, bytes]], Listed | None]:
        if min(query.size, query.limit) <= 0 or query.filter.impossible:
            return [], None
        rows = await self._paged(
            self._compiler.page(query, _PLACE_COLUMNS), query.visibility, query.address
        )
        return [(Place(*place), raw) for raw, *place in rows], None

    async def count(
        self,
        filters: Sequence[Filter],
        visibility: Visibility,
        *,
        now: int,
        address: str | None = None,
    ) -> int:
        possible = [filter_ for filter_ in filters if not filter_.impossible]
        if not possible:
            return 0
        query = self._compiler.count(possible, visibility, upto=self.committed(), now=now)
        rows = await self._counted(possible, query, visibility, address)
        number: int = rows[0][0]
        return number

    async def authors(
        self,
        filter_: Filter,
        visibility: Visibility,
        *,
        now: int,
        at_most: int,
        address: str | None = None,
    ) -> Sequence[bytes] | None:
        if filter_.impossible:
            return []
        query = self._compiler.authors(
            filter_, visibility, upto=self.committed(), now=now, at_most=at_most + 1
        )
        keys = [key for (key,) in await self._counted([filter_], query, visibility, address)]
        return keys if len(keys) <= at_most else None

    async def _counted(
        self, filters: Sequence[Filter], query: Query, visibility: Visibility, address: str | None
    ) -> Sequence[Any]:
        """Rows of a query by a client. Raises TooSlow, or TooWide."""
        if any(filter_.search is not None for filter_ in filters):
            async with self._turns.search(visibility, address, "COUNT"):
                return await self._searched(query)
        async with self._turns.count(visibility, address):
            return await self._rows(query, _COUNT_S[visibility.is_known])

    async def items(
        self,
        filter_: Filter,
        visibility: Visibility,
        *,
        limit: int | None,
        upto: int,
        now: int,
        at_most: int,
    ) -> Items | None:
        if limit == 0 or filter_.impossible:
            return Items(array("Q"), b"")
        query = self._compiler.items(
            filter_, visibility, limit=limit, upto=upto, now=now, at_most=at_most + 1
        )

        async def ask(db: Any) -> ItemsBuilder:
            found = ItemsBuilder()
            cursor = await db.cursor(query.sql, *query.values)
            while rows := await cursor.fetch(_CHUNK_ROWS):
                found.add(rows)
            return found

        found = await self._ask(ask, ITEMS_S[visibility.is_owner], on="snapshot")
        return None if len(found) > at_most else found.items()

    async def search(
        self,
        filter_: Filter,
        visibility: Visibility,
        *,
        limit: int,
        upto: int,
        now: int,
        address: str | None = None,
    ) -> Sequence[int]:
        search = filter_.sought
        if limit <= 0 or filter_.impossible or search is None or not search.required:
            return ()
        if search.needs is Needs.ALL:
            query = self._compiler.search(
                search, filter_, visibility, limit=limit, upto=upto, now=now
            )
            async with self._turns.search(visibility, address, "REQ"):
                return [seq for (seq,) in await self._searched(query)]

        async def ask(db: Any) -> Sequence[int]:
            asking = Asking(
                db, self._compiler, self._words, filter_, visibility, upto=upto, now=now
            )
            return [seq for seq, _ in await best(asking, search, limit)]

        async with self._turns.search(visibility, address, "REQ"):
            return await self._within_search(ask)

    async def _searched(self, query: Query) -> Sequence[Any]:
        return await self._within_search(_rows_of(query))

    async def _within_search(self, ask: Ask[T]) -> T:
        try:
            return await self._ask(ask, _SEARCH_S, searches=True)
        except TooSlow:
            raise TooWide from None

    async def rows(
        self,
        seqs: Sequence[int],
        filter_: Filter,
        visibility: Visibility,
        *,
        now: int,
        address: str | None = None,
    ) -> tuple[Sequence[bytes], int]:
        query = self._compiler.rows(seqs, filter_, visibility, now=now)
        rows = await self._paged(query, visibility, address)
        raws = [raw for raw, _ in rows]
        return raws, rows[-1][1] if is_full(raws) else len(seqs)

    async def plan(
        self, filters: Sequence[Filter], visibility: Visibility, verb: Verb, *, now: int
    ) -> Sequence[str]:
        possible = [filter_ for filter_ in filters if not filter_.impossible][:_MAX_EXPLAINED]
        steps: list[str] = []
        if verb == "COUNT" and possible:
            query = self._compiler.count(possible, visibility, upto=self.committed(), now=now)
            steps += await self._plan(query)
        elif verb == "REQ":
            for filter_ in possible:
                query = self._first_page(filter_, visibility, now)
                is_kept = filter_.search is None
                steps += await (self._generic_plan(query) if is_kept else self._plan(query))
        return steps[:_MAX_STEPS]

    async def _plan(self, query: Query) -> list[str]:
        explained = Query(f"{QUERIES['explain']} {query.sql}", query.values)
        ((plan,),) = await self._rows(explained, _READ_S)
        return list(_steps(orjson.loads(plan)[0]["Plan"]))

    async def _generic_plan(self, query: Query) -> list[str]:
        """The plan of a page; the same for all values."""
        values = ", ".join(["NULL"] * len(query.values))
        async with self._connections.paging(_READ_S) as db:
            await db.execute(f"PREPARE explained AS {query.sql}")
            try:
                run = f"EXECUTE explained({values})" if values else "EXECUTE explained"
                plan = await db.fetchval(f"{QUERIES['explain']} {run}")
            finally:
                await db.execute("DEALLOCATE explained")
        return list(_steps(orjson.loads(plan)[0]["Plan"]))

    def _first_page(self, filter_: Filter, visibility: Visibility, now: int) -> Query:
        """A query for a plan; its page size does not affect the plan."""
        upto = self.committed()
        search = filter_.sought
        if search is not None and search.required:
            return self._compiler.search(search, filter_, visibility, limit=1, upto=upto, now=now)
        query = PageQuery(filter_, visibility, 1, upto, now, size=1)
        return self._compiler.page(query, _PAGE_COLUMNS)

    async def versions(
        self, slot: Slot, *, before: int | None, limit: int, now: int
    ) -> Sequence[Stored]:
        upto = _MAX_INT if before is None else before
        # With the largest row of the slot there is an old one, too.
        values = (self._hashes.slot(*slot), upto, limit - 1, PAGE_BYTES + _MAX_ROW)
        holders: list[Stored] = []
        old: list[Stored] = []
        weight = 0
        asked = Query(QUERIES["versions_of_slot"], values)
        for *columns, is_holder in await self._for_relay(asked):
            if old and weight >= PAGE_BYTES:
                break
            row = stored(columns)
            weight += parsing_weight(row.event.raw)
            if row.slot == slot and (row.expires_at is None or row.expires_at > now):
                (holders if is_holder else old).append(row)
        return [*holders, *old] if holders else []

    async def old_version(self, slot: Slot, event_id: str) -> Stored | None:
        asked = (bytes.fromhex(event_id), self._hashes.slot(*slot))
        rows = await self._for_relay(Query(QUERIES["old_one"], asked))
        found = [stored(row) for row in rows]
        return next((row for row in found if row.slot == slot), None)

    async def matching(
        self, filter_: Filter, *, limit: int, now: int, after: Stored | None = None
    ) -> Sequence[Stored]:
        if filter_.impossible:
            return []
        behind = None if after is None else place_of(after)
        query = PageQuery(filter_, EVERYTHING, limit, self.committed(), now, limit, behind)
        found: list[Stored] = []
        weight = 0
        for columns in await self._for_relay(self._compiler.page(query, _STORED_COLUMNS)):
            if weight >= PAGE_BYTES:
                break
            row = stored(columns)
            weight += parsing_weight(row.event.raw)
            found.append(row)
        return found

    async def _paged(
        self, query: Query, visibility: Visibility, address: str | None
    ) -> Sequence[Any]:
        """The first rows of a query by a client. Raises TooSlow."""
        ask = _rows_of(query)
        with suppress(TooSlow):
            async with self._turns.short_page(visibility, address):
                return await self._ask(ask, _SHORT_S, on="paging")
        async with self._turns.long_page(visibility, address):
            return await self._ask(ask, _READ_S, on="paging")

    async def _rows(self, query: Query, within_s: float) -> Sequence[Any]:
        return await self._ask(_rows_of(query), within_s)

    async def _for_relay(self, query: Query) -> Sequence[Any]:
        return await self._ask(_rows_of(query), on="for_relay")

    async def _ask(
        self,
        ask: Ask[T],
        within_s: float | None = None,
        on: On = "reading",
        *,
        searches: bool = False,
    ) -> T:
        """The result of `ask` on a connection for `on`. `searches`: it also reads the text
        index."""
        await self._current()
        async with self._connections.holder(on)(within_s) as db:
            return await ask(db)

    @abstractmethod
    def committed(self) -> int:
        """Of the Store port."""

    @abstractmethod
    def _known_state(self) -> int | None:
        """The state that cached pages belong to; None: not known, because a change may have been
        missed."""

    @abstractmethod
    async def _current(self) -> None:
        """Await before a read with the current rights. Raises StoreFault."""


def _page_of(rows: Sequence[Any], query: PageQuery) -> Page:
    raws = [raw for raw, _ in rows]
    is_short = len(raws) < min(query.size, query.limit)
    if not raws or len(raws) == query.limit or (is_short and not is_full(raws)):
        return Page(raws, None)
    event = event_in(raws[-1])
    return Page(raws, Place(event.created_at, id_key(event.id), rows[-1][1]))


def _rows_of(query: Query) -> Ask[Sequence[Any]]:
    async def ask(db: Any) -> Sequence[Any]:
        rows: Sequence[Any] = await db.fetch(query.sql, *query.values)
        return rows

    return ask


def _steps(node: Mapping[str, Any]) -> Iterator[str]:
    """The steps of a plan with table and index; without conditions, which contain values."""
    step: str = node["Node Type"]
    if "Relation Name" in node:
        step += f" on {node['Relation Name']}"
    if "Index Name" in node:
        step += f" using {node['Index Name']}"
    yield step
    for each in node.get("Plans", ()):
        yield from _steps(each)
