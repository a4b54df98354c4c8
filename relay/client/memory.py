"""MemoryClient: base of the memory systems' clients except nmem: relay, signer, optional folder.

    async with Aman("ws://127.0.0.1:7777", key, folder=Path("~/agent").expanduser()) as aman: …

With a folder it works offline: writes wait in a spool until the relay is reachable, and reads come
from a cache. Without one nothing is stored locally, and an unreachable relay is an error.
"""

from __future__ import annotations

import asyncio
import logging
from contextlib import aclosing, closing, suppress
from hashlib import sha256
from typing import TYPE_CHECKING, ClassVar, Final

from relay.client.base import BaseClient
from relay.client.cache import Cache, newest_first, origin_of
from relay.client.clocks import is_ahead
from relay.client.errors import ClientError, NotARelay, QueryClosed, Unanswered, Unreachable
from relay.client.information import can_search, limit_in, offers_memory
from relay.client.paging import MAX_ALL_BYTES, MAX_READ_BYTES
from relay.client.responses import filters_of
from relay.client.spool import Spool, SpoolDamaged
from relay.client.withdrawn import withdrawn
from relay.client.writer import Outcome, Writer, address_filter
from relay.errors import Prefix
from relay.memory.draft import Draft
from relay.memory.snowclaw.edit_dates import NOTED_UNTIL, noted_until
from relay.nostr import kinds
from relay.nostr.event import Address
from relay.nostr.nip09 import EVER, named_by, request, target_name, targets_of, version_target
from relay.nostr.nip42 import relay_address

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
    from contextlib import AsyncExitStack
    from pathlib import Path

    from relay.client.client import Client
    from relay.client.rebase import Rebase
    from relay.client.responses import FilterLike
    from relay.client.spool import Refused
    from relay.client.writer import Known, Make, Written
    from relay.nostr.event import Event
    from relay.nostr.filters import Filter
    from relay.nostr.keys import SecretKey

_log: Final = logging.getLogger(__name__)
_MAX_RETRIED: Final = 50_000
"""Refused writes, less than a spool holds, so that new ones fit."""
_RETRIED_S: Final = 7 * 86_400
"""How long after its first refusal, and after its date, a write is sent again at each start."""
_CONNECT_S: Final = 3.0
"""With a folder: how long `async with` waits for the relay before it continues offline."""
_IDS_AT_ONCE: Final = 100
"""Of a query for deletions."""
_RETRY_S: Final = 10.0
"""Interval at which what a full disk kept in the cache is tried again."""
_RECONNECT_S: Final = 1.0
"""With a folder: how long a query waits for a lost connection before the cache is used."""


class LeftInCache(ClientError):
    """The deletion was sent, or waits in the spool, and the cache could not be changed; it tries
    again as long as the client runs."""

    def __init__(self, written: Written, path: Path, why: OSError, *, is_waiting: bool) -> None:
        done = "the deletion waits for the relay" if is_waiting else "the relay has deleted it"
        left = f"{path} still holds the text: {why.strerror}"
        super().__init__(f"{done}, but {left}; delete this file and its -wal")
        self.written = written
        """The deletion."""
        self.path = path


class MemoryClient(BaseClient):
    """Base of `Aman`, `Snowclaw`, …"""

    NAME: ClassVar[str]
    """Name of the memory system: prefix of its file names."""

    def __init__(
        self, relay: Client | str, signer: SecretKey, *, folder: Path | None = None
    ) -> None:
        """`relay`: a URL, or an open client that outlives this object. `folder`: for cache and
        spool; may be shared by several clients."""
        super().__init__(relay, signer, start_offline=folder is not None)
        self._folder = folder
        self._cache: Cache | None = None
        self._spool: Spool | None = None
        self._rebase: Rebase | None = None
        self._writer = Writer(self._client, signer, None)
        self._document: Mapping[str, object] | None = None

    async def _open(self, opening: AsyncExitStack) -> None:
        """Raises Unreachable (without a folder), SpoolDamaged."""
        await super()._open(opening)
        if self._folder is not None:
            await self._open_files(self._folder, opening)
            if self._owns_client:
                with suppress(Unanswered):
                    await self._client.wait_connected(deadline_s=_CONNECT_S)
            if self._cache is not None and self._spool is not None:
                check = asyncio.create_task(self._check_files(self._cache, self._spool))
                opening.push_async_callback(_ended, check)
        self._writer = Writer(
            self._client,
            self._signer,
            self._spool,
            self._rebase,
            self._cache,
            self._unsendable,
            self._before_edits,
        )
        opening.push_async_callback(self._writer.stop)
        await self._writer.start()

    async def waiting(self) -> int:
        """Number of writes that wait for the relay."""
        return 0 if self._spool is None else await asyncio.to_thread(self._spool.__len__)

    async def refused(self) -> list[Refused]:
        """Queued writes that the relay later refused, changes that it refused at the end of a
        program, and those that their record's readers must not read; see `drop_refused`."""
        return [] if self._spool is None else await asyncio.to_thread(self._spool.refused)

    async def drop_refused(self) -> None:
        """Discard the refused writes."""
        await self._discard([refused.event for refused in await self.refused()])

    async def _discard(self, dropped: Sequence[Event]) -> None:
        if self._spool is None or self._cache is None:
            return
        deletions = [event for event in dropped if event.kind == kinds.DELETION]
        targets = [target for deletion in deletions for target in targets_of(deletion)]
        await asyncio.to_thread(self._cache.undelete, targets)
        await asyncio.to_thread(self._spool.done, [event.id for event in dropped])

    async def retry_refused(self) -> tuple[list[Refused], list[Refused]]:
        """Send those refused writes again whose refusal may have ended, for a week, the oldest ones
        if there are very many; discard the others. Returns both."""
        if self._spool is None:
            return [], []
        refused = await self.refused()
        long_refused = await asyncio.to_thread(self._spool.long_refused, _RETRIED_S)
        since = self._client.now() - _RETRIED_S
        again = [
            each
            for each in refused
            if each.may_end and (each.event.id not in long_refused or each.event.created_at > since)
        ][:_MAX_RETRIED]
        retried = {each.event.id for each in again}
        dropped = [each for each in refused if each.event.id not in retried]
        await self._discard([each.event for each in dropped])
        await asyncio.to_thread(self._spool.send_again, retried)
        self._writer.look_again()
        return again, dropped

    async def read(self, *filters: FilterLike) -> list[Event]:
        """Matching events, newest first; offline (with a folder) from the cache, merged with the
        writes that wait. Raises QueryClosed, Unanswered."""
        wanted = filters_of(filters)
        if self._cache is None or self._spool is None:
            return await self._query(wanted)
        # Read first: a write sent during the query is then in one of the two.
        waiting = await asyncio.to_thread(self._spool.waiting)
        if self._client.is_connected:
            try:
                found = await self._query_while_connected(wanted)
            except (Unanswered, Unreachable):
                pass
            except QueryClosed as closed:
                if closed.prefix == Prefix.RESTRICTED and len(wanted) == 1:
                    # This key may not read any of it any more.
                    await asyncio.to_thread(_update_cache, self._cache, wanted, ())
                raise
            else:
                await asyncio.to_thread(_update_cache, self._cache, wanted, found)
                found = await self._undeleted(found)
                return _with_waiting(found, waiting, wanted)
        found = await asyncio.to_thread(self._cache.matching, *wanted)
        return _with_waiting(found, waiting, wanted)

    async def read_pages(self, *filters: FilterLike) -> AsyncIterator[list[Event]]:
        """As `read`; page by page if there is no cache, which is given a whole answer."""
        wanted = filters_of(filters)
        if self._cache is not None:
            yield await self.read(*wanted)
            return
        async for events in self._answered(wanted, MAX_READ_BYTES):
            yield events

    async def _undeleted(self, events: Sequence[Event]) -> list[Event]:
        """Without those that this client, or one that shares its folder, knows as deleted: an
        answer may be of before, and the deletion may wait for the relay."""
        cache, spool = self._cache, self._spool
        if cache is None or spool is None:
            return list(events)

        def left() -> list[Event]:
            # The cache may lack one that waits: see `LeftInCache`.
            return _without_deleted(cache.undeleted(events), spool.deletions())

        return await asyncio.to_thread(left)

    async def queued(self, *filters: FilterLike) -> list[Event]:
        """The waiting writes that match, in the order of writing."""
        if self._spool is None:
            return []
        wanted = filters_of(filters)
        waiting = await asyncio.to_thread(self._spool.waiting)
        return [event for event in waiting if any(filter_.matches(event) for filter_ in wanted)]

    async def offers(self, extra: str, value: object) -> bool:
        """Whether the relay lists an extension: `"index_tags", "hk"` (G-25, G-30). False while
        offline."""
        return offers_memory(await self._information(), extra, value)

    async def searches(self) -> bool:
        """Whether the relay supports search (NIP-50, G-30). False while offline."""
        return can_search(await self._information())

    async def all_of(
        self, *filters: FilterLike, most_bytes: int = MAX_ALL_BYTES
    ) -> AsyncIterator[list[Event]]:
        """The relay's matches page by page, never from the cache. `most_bytes`: see `PageBudget`.
        Raises as Client.query does; Unanswered if no event comes within its deadline."""
        served = limit_in(await self._information(), "max_limit") or 0
        found = self._client.query_pages(
            *filters, served=served, most_bytes=most_bytes, is_of_each=True
        )
        async with aclosing(found) as pages:
            async for events in pages:
                yield await self._undeleted(events)

    async def _information(self) -> Mapping[str, object]:
        """The relay information document, fetched once; empty if there is none."""
        if self._document is None:
            if self._folder is not None and not self.is_online:
                return {}  # the caller falls back to the cache
            try:
                self._document = await self._client.information()
            except NotARelay:
                self._document = {}
            except (Unreachable, Unanswered):
                return {}
        return self._document

    async def write(self, kind: int, d: str, make: Make, base: Known | None = None) -> Written:
        """Write one record as the newest version of its address. `base`: see `Writer.write`.

        Raises PublishRefused; Unanswered (without a folder); SpoolFull, SpoolDamaged, OSError.
        """
        if self._cache is not None and not self._writer.knows(kind, d):
            # The clock may stand still or go back: the version must still be newer than the stored
            # one, and than what was deleted.
            name = target_name(Address(self.pubkey, kind, d))
            until = await asyncio.to_thread(self._cache.deleted_until, self.pubkey, name)
            if until is not None:
                self._writer.note_time(kind, d, until)
            address = address_filter(kind, self.pubkey, d)
            known = () if self.is_online else await asyncio.to_thread(self._cache.matching, address)
            for event in known:
                self._writer.note_stored(event)
        return await self._writer.write(kind, d, make, base)

    async def publish(self, draft: Draft) -> Written:
        """Publish an append-only record. Raises as `write` does."""
        return await self._writer.publish(draft)

    def signed(self, draft: Draft) -> Event:
        """A signed event, not sent."""
        return self._writer.signed(draft)

    async def delete(self, events: Iterable[Event]) -> Written:
        """Request deletion of one's own events by id, and of records also of the versions before
        (NIP-09). Raises as `write` does; LeftInCache if it was requested, and the cache still holds
        the events."""
        named = list(events)
        if self._spool is not None:
            # The relay may have the version that one which waits is based on, and never get this.
            bases = await asyncio.to_thread(self._spool.bases, [event.id for event in named])
            named += [base for base in bases if base not in named]
        tags, at = request(named, self._client.now())
        deletion = self.signed(Draft(kinds.DELETION, tags, "", at))
        for event in (*named, deletion):
            self._writer.note_stored(event)  # the next version must be newer than what is deleted
        written = await self._writer.send(deletion)
        try:
            await self._drop_deleted(written.event)
        except OSError as error:
            assert self._cache is not None
            is_waiting = written.outcome is Outcome.QUEUED
            raise LeftInCache(written, self._cache.path, error, is_waiting=is_waiting) from error
        return written

    async def _drop_deleted(self, deletion: Event, gone: Iterable[Event] = ()) -> None:
        """Drop from the files what a kind 5 deletes: a start without the relay must not read it,
        and nothing sends it any more. `gone`: what it was seen to delete, whose older versions go
        too. Raises OSError, SpoolDamaged."""
        targets = [*targets_of(deletion), *map(version_target, gone)]
        try:
            if self._spool is not None:
                # What waits may have been noted after that, or after a deletion by a clock that is
                # ahead.
                ids, now = set(deletion.tag_values("e")), self._client.now()
                until = noted_until(deletion) if deletion.has_tag(NOTED_UNTIL) else EVER
                of_waiting = [
                    each if each.name in ids else each._replace(until=min(each.until, until))
                    for each in targets
                ]
                sure = [
                    each for each in of_waiting if each.name in ids or not is_ahead(each.until, now)
                ]
                await asyncio.to_thread(self._spool.drop, sure)
        finally:
            if self._cache is not None:  # it tries again what it cannot write
                await asyncio.to_thread(self._cache.delete, targets)

    async def _unsendable(self, waiting: Sequence[Event]) -> set[str]:
        """Ids of writes of a backlog that are dropped, and not sent. Raises QueryClosed,
        Unanswered."""
        return set()

    async def _before_edits(self) -> None:
        """See `Writer`. Raises ClientError."""

    async def _check_files(self, cache: Cache, spool: Spool) -> None:
        """At each connection, drop what was deleted since it was read, or refused: this run may
        read something else, and the next one may not reach the relay."""
        while True:
            await self._wait_online()
            reconnected = self._client.next_connection
            with suppress(ClientError, OSError):
                async for page in _pages(cache):
                    await self._drop_deleted_of(page)
                refused = [each.event for each in await asyncio.to_thread(spool.refused)]
                for start in range(0, len(refused), _IDS_AT_ONCE):
                    await self._drop_deleted_of(refused[start : start + _IDS_AT_ONCE])
                await self._drop_withdrawn(cache)
            while not reconnected.is_set():
                with suppress(TimeoutError):
                    async with asyncio.timeout(_RETRY_S):
                        await reconnected.wait()
                with suppress(OSError):
                    await asyncio.to_thread(cache.retry)

    async def _drop_withdrawn(self, cache: Cache) -> None:
        """Drop from the cache what the relay no longer gives: an admin's deletion, or a ban, leaves
        no kind 5. Raises QueryClosed, Unanswered, OSError."""
        document = await self._information()
        async for page in _pages(cache):
            events = {event.id: event for event in page}
            gone = await withdrawn(self._client, self.pubkey, document, list(events))
            if gone:
                await asyncio.to_thread(cache.change, (), [events[id_] for id_ in gone])

    async def _drop_deleted_of(self, events: Sequence[Event]) -> None:
        """Drop those that the relay has a kind 5 for."""
        by_author = {
            "kinds": [kinds.DELETION],
            "authors": sorted({event.pubkey for event in events}),
        }
        named = by_author | {"#e": [each.id for each in events]}
        addressed = by_author | {"#a": [f"{each.kind}:{each.pubkey}:{each.d}" for each in events]}
        async for deletion in self._client.query_all(named, addressed):
            await self._drop_deleted(deletion)

    async def _wait_online(self) -> None:
        """Waits without a deadline."""
        while not self._client.is_connected:
            with suppress(Unanswered):
                await self._client.wait_connected()

    async def _open_files(self, folder: Path, opening: AsyncExitStack) -> None:
        whose = f"{_address_of(self._client.url)} {self.pubkey}"
        stem = f"{self.NAME}-{sha256(whose.encode()).hexdigest()[:16]}"
        spool = folder / f"{stem}.spool"
        self._spool = await asyncio.to_thread(Spool, spool)
        opening.callback(self._spool.close)
        self._cache = await asyncio.to_thread(Cache, folder / f"{stem}.cache", whose)
        opening.callback(self._cache.close)
        # Of a run that ended between the two files.
        deletions = await asyncio.to_thread(self._spool.deletions)
        targets = [target for deletion in deletions for target in targets_of(deletion)]
        await asyncio.to_thread(self._cache.delete, targets)
        for what in await asyncio.to_thread(_waiting_beside, spool, self.NAME, self.pubkey):
            _log.warning(
                "%s, not for %s: if the relay has moved, let this program send what waits, stop"
                " it, and rename that file to %s",
                what,
                self._client.url,
                spool.name,
            )

    async def _query(self, wanted: Sequence[Filter]) -> list[Event]:
        pages = self._answered(wanted, MAX_ALL_BYTES)
        found = [event async for events in pages for event in events]
        return found if len(wanted) == 1 else sorted(found, key=newest_first)

    async def _answered(
        self, wanted: Sequence[Filter], most_bytes: int
    ) -> AsyncIterator[list[Event]]:
        if self._client.login_refusal:
            raise ClientError(f"{self._client.url} refused the login: {self._client.login_refusal}")
        async for events in self.all_of(*wanted, most_bytes=most_bytes):
            for event in events:
                self._writer.note_stored(event)
            yield events

    async def _query_while_connected(self, wanted: Sequence[Filter]) -> list[Event]:
        """`_query`, aborted when the connection is lost. Raises Unanswered."""
        query = asyncio.create_task(self._query(wanted))
        try:
            while not (await asyncio.wait([query], timeout=_RECONNECT_S))[0]:
                if not self._client.is_connected:
                    raise Unanswered("the connection was lost")
            return query.result()
        finally:
            query.cancel()


async def _pages(cache: Cache) -> AsyncIterator[list[Event]]:
    after = ""
    while page := await asyncio.to_thread(cache.page, after, _IDS_AT_ONCE):
        after = page[-1].id
        yield page


async def _ended(task: asyncio.Task[None]) -> None:
    task.cancel()
    await asyncio.wait([task])


def _address_of(url: str) -> str:
    """Equal for all spellings of one URL."""
    address = relay_address(url)
    assert address is not None  # the Client checked it
    return f"{address.host}:{address.port}{address.path}"


def _waiting_beside(own: Path, system: str, pubkey: str) -> list[str]:
    """How many writes of this key wait in other spools of the folder, and for which relay."""
    found = []
    for path in sorted(own.parent.glob(f"{system}-*.spool")):
        if path == own:
            continue
        try:
            with closing(Spool(path)) as spool:
                number, first = len(spool), spool.waiting(1)
        except (SpoolDamaged, OSError):
            continue  # of somebody else, or to be reported by the program that uses it
        if not first:
            continue
        # Without the cache beside it, only the author is known.
        origin = origin_of(path.with_suffix(".cache")) or f"? {first[0].pubkey}"
        address, _, key = origin.rpartition(" ")
        if key == pubkey:
            writes = "1 write waits" if number == 1 else f"{number:,} writes wait"
            relay = "another relay" if address == "?" else f"the relay at {address}"
            found.append(f"{writes} in {path} for {relay}")
    return found


def _update_cache(cache: Cache, wanted: Sequence[Filter], found: Sequence[Event]) -> None:
    """Update the cache with the relay's answer to these filters."""
    if any(filter_.search is not None for filter_ in wanted):
        return
    current = {event.id for event in found}
    whole = [filter_ for filter_ in wanted if filter_.limit is None]
    removed = [event for event in cache.matching(*whole) if event.id not in current]
    cache.change(found, removed)


def _with_waiting(
    found: list[Event], waiting: Sequence[Event], wanted: Sequence[Filter]
) -> list[Event]:
    """Merge the waiting writes, and apply waiting deletions."""
    if not waiting:
        return found
    events = {event.id: event for event in found}
    for event in waiting:
        if any(filter_.matches(event) for filter_ in wanted):
            events[event.id] = event
    deletions = [event for event in waiting if event.kind == kinds.DELETION]
    return sorted(_without_deleted([*events.values()], deletions), key=newest_first)


def _without_deleted(events: list[Event], deletions: Sequence[Event]) -> list[Event]:
    deleted = {event.id for each in deletions for event in named_by(each, events)}
    return [event for event in events if event.id not in deleted]
