"""MemoryClient: what all memory systems but nmem share: a relay, a signer, a folder.

    async with Aman("ws://127.0.0.1:7777", key, folder=Path("~/agent").expanduser()) as aman: …

With a folder it works while the relay is away: writes wait there and are sent when it is back, and
what was read before can be read again. The cache in it is only a cache: delete it, and everything
comes back from the relay. Without one nothing is on disk, and a relay that is away is an error.
"""

from __future__ import annotations

import asyncio
from contextlib import aclosing, suppress
from hashlib import sha256
from typing import TYPE_CHECKING, ClassVar, Final

from relay.client.answers import filters_of
from relay.client.at_relay import AtRelay
from relay.client.cache import Cache, newest_first
from relay.client.errors import ClientError, NotARelay, Unanswered, Unreachable
from relay.client.information import can_search, limit_in, offers_memory
from relay.client.spool import Spool
from relay.client.writer import Writer
from relay.memory.draft import Draft
from relay.nostr import kinds
from relay.nostr.filters import Filter
from relay.nostr.nip42 import relay_address

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
    from contextlib import AsyncExitStack
    from pathlib import Path

    from relay.client.connection import Client, Question
    from relay.client.spool import Refused
    from relay.client.writer import Make, Written
    from relay.nostr.event import Event
    from relay.nostr.keys import SecretKey

_FIRST_S: Final = 3.0
"""With a folder: how long `async with` waits for the relay before it goes on without."""
_AWAY_S: Final = 1.0
"""With a folder: how long a question waits for a connection that ended under it to come back."""


class MemoryClient(AtRelay):
    """Base of `Aman`, `Snowclaw`, …"""

    NAME: ClassVar[str]
    """Of the system: begins the names of its files."""

    def __init__(
        self, relay: Client | str, signer: SecretKey, *, folder: Path | None = None
    ) -> None:
        """`relay`: a URL, or a client that is open for at least as long. `folder`: for the cache
        and the writes that wait; one for each relay and key, or shared by several."""
        super().__init__(relay, signer, may_be_away=folder is not None)
        self._folder = folder
        self._cache: Cache | None = None
        self._spool: Spool | None = None
        self._writer = Writer(self._client, signer, None)
        self._document: Mapping[str, object] | None = None

    async def _open(self, opening: AsyncExitStack) -> None:
        """Raises Unreachable (without a folder), SpoolDamaged."""
        await super()._open(opening)
        if self._folder is not None:
            await self._open_files(self._folder, opening)
            if self._owns_client:
                with suppress(Unanswered):
                    await self._client.connected(deadline_s=_FIRST_S)
        self._writer = Writer(self._client, self._signer, self._spool)
        opening.push_async_callback(self._writer.stop)
        await self._writer.start()

    async def waiting(self) -> int:
        """Writes that the relay has not taken yet."""
        return 0 if self._spool is None else await asyncio.to_thread(self._spool.__len__)

    async def refused(self) -> list[Refused]:
        """Writes of an earlier time that the relay refused when it was back; see `drop_refused`."""
        return [] if self._spool is None else await asyncio.to_thread(self._spool.refused)

    async def drop_refused(self) -> None:
        """Forget them: they were seen."""
        if self._spool is not None:
            ids = [refused.event.id for refused in await self.refused()]
            await asyncio.to_thread(self._spool.done, ids)

    async def read(self, *filters: Question) -> list[Event]:
        """What the relay has, newest first; while it is away (and there is a folder), what it gave
        when it was last asked, with one's own writes that wait. Raises QueryClosed, Unanswered."""
        wanted = filters_of(filters)
        if self._cache is None or self._spool is None:
            return await self._asked(wanted)
        # Asked first: what is sent meanwhile is in one of the two.
        waiting = await asyncio.to_thread(self._spool.waiting)
        if self._client.is_connected:
            try:
                found = await self._asked_while_there(wanted)
            except (Unanswered, Unreachable):
                pass
            else:
                await asyncio.to_thread(_keep, self._cache, wanted, found)
                return _with_waiting(found, waiting, wanted)
        found = await asyncio.to_thread(self._cache.matching, *wanted)
        return _with_waiting(found, waiting, wanted)

    async def queued(self, *filters: Question) -> list[Event]:
        """Those of the writes that wait which match, in the order of their writing."""
        if self._spool is None:
            return []
        wanted = filters_of(filters)
        waiting = await asyncio.to_thread(self._spool.waiting)
        return [event for event in waiting if any(filter_.matches(event) for filter_ in wanted)]

    async def offers(self, extra: str, value: object) -> bool:
        """Whether the relay says that it does what NIP-01 does not ask: `"index_tags", "hk"`.

        G-25, G-30. False while it is away.
        """
        return offers_memory(await self._information(), extra, value)

    async def searches(self) -> bool:
        """Whether the relay offers NIP-50 (G-30). False while it is away."""
        return can_search(await self._information())

    async def all_of(self, *filters: Question) -> AsyncIterator[list[Event]]:
        """What the relay has, page by page; not from the cache. Raises as Client.query does."""
        served = limit_in(await self._information(), "max_limit") or 0
        async with aclosing(self._client.query_pages(*filters, served=served)) as pages:
            async for events in pages:
                yield events

    async def _information(self) -> Mapping[str, object]:
        """The relay's information document, asked for until it was told; empty without one."""
        if self._document is None:
            if self._folder is not None and not self.is_online:
                return {}  # not waited for: there is the copy
            try:
                self._document = await self._client.information()
            except NotARelay:
                self._document = {}
            except (Unreachable, Unanswered):
                return {}
        return self._document

    async def write(self, kind: int, d: str, make: Make) -> Written:
        """One record, as the newest version of its address.

        Raises PublishRefused; Unanswered (without a folder); SpoolFull, SpoolDamaged, OSError.
        """
        if self._cache is not None and not (self.is_online or self._writer.knows(kind, d)):
            # With a clock that stands still or goes back it would be older than what is stored.
            address = Filter(
                kinds=frozenset({kind}),
                authors=frozenset({self.pubkey}),
                tags=(("d", frozenset({d})),),
            )
            for event in await asyncio.to_thread(self._cache.matching, address):
                self._writer.saw(event)
        return await self._writer.write(kind, d, make)

    async def publish(self, draft: Draft) -> Written:
        """What has no versions: an append-only record. Raises as `write` does."""
        return await self._writer.publish(draft)

    def signed(self, draft: Draft) -> Event:
        """An event of this key, which is not sent."""
        return self._writer.signed(draft)

    async def delete(self, events: Iterable[Event]) -> Written:
        """Ask for their removal by id (NIP-09). Raises as `write` does."""
        named = list(events)
        tags = [["e", event.id] for event in named]
        tags += [["k", str(kind)] for kind in sorted({event.kind for event in named})]
        for event in named:
            self._writer.saw(event)  # what is written next must be newer than what was deleted
        return await self.publish(Draft(kinds.DELETION, tags, "", self._client.now()))

    async def _until_online(self) -> None:
        """Waits as long as it takes."""
        while not self._client.is_connected:
            with suppress(Unanswered):
                await self._client.connected()

    async def _open_files(self, folder: Path, opening: AsyncExitStack) -> None:
        whose = f"{_address_of(self._client.url)} {self.pubkey}"
        stem = f"{self.NAME}-{sha256(whose.encode()).hexdigest()[:16]}"
        self._spool = await asyncio.to_thread(Spool, folder / f"{stem}.spool")
        opening.callback(self._spool.close)
        self._cache = await asyncio.to_thread(Cache, folder / f"{stem}.cache", whose)
        opening.callback(self._cache.close)

    async def _asked(self, wanted: Sequence[Filter]) -> list[Event]:
        if self._client.login_refusal:
            raise ClientError(f"{self._client.url} refused the login: {self._client.login_refusal}")
        found = [event async for events in self.all_of(*wanted) for event in events]
        for event in found:
            self._writer.saw(event)
        return found if len(wanted) == 1 else sorted(found, key=newest_first)

    async def _asked_while_there(self, wanted: Sequence[Filter]) -> list[Event]:
        """… and a relay that went away is not waited for: there is the copy. Raises Unanswered."""
        asking = asyncio.create_task(self._asked(wanted))
        try:
            while not (await asyncio.wait([asking], timeout=_AWAY_S))[0]:
                if not self._client.is_connected:
                    raise Unanswered("the relay went away")
            return asking.result()
        finally:
            asking.cancel()


def _address_of(url: str) -> str:
    """The same for all spellings of one URL."""
    address = relay_address(url)
    assert address is not None  # or there would be no client
    return f"{address.host}:{address.port}{address.path}"


def _keep(cache: Cache, wanted: Sequence[Filter], found: Sequence[Event]) -> None:
    """The copy becomes what the relay said, as far as was asked."""
    if any(filter_.search is not None for filter_ in wanted):
        return
    still = {event.id for event in found}
    whole = [filter_ for filter_ in wanted if filter_.limit is None]
    gone = [event.id for event in cache.matching(*whole) if event.id not in still]
    cache.change(found, gone)


def _with_waiting(
    found: list[Event], waiting: Sequence[Event], wanted: Sequence[Filter]
) -> list[Event]:
    """… and without what a deletion that waits will take."""
    if not waiting:
        return found
    events = {event.id: event for event in found}
    for event in waiting:
        if any(filter_.matches(event) for filter_ in wanted):
            events[event.id] = event
    for event in waiting:
        if event.kind == kinds.DELETION:
            for event_id in event.tag_values("e"):
                events.pop(event_id, None)
    return sorted(events.values(), key=newest_first)
