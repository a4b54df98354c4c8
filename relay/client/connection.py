"""Client: a signing Nostr client on one relay, for as long as its `async with` lasts.

It logs in by itself, comes back by itself, and never waits without a deadline. Requests outlive a
connection: what was under way is asked again on the next one, which is safe because publishing an
event twice is publishing it once (`duplicate:`) and reading changes nothing.
"""

from __future__ import annotations

import asyncio
import time
from contextlib import aclosing
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, TypeVar

from relay.client.answers import CountAnswer, StoredAnswer, filters_of
from relay.client.checking import Checking
from relay.client.dialer import Dialer
from relay.client.errors import (
    ConnectionLost,
    Incomparable,
    NoKey,
    PublishRefused,
    QueryClosed,
    Unanswered,
)
from relay.client.information import document_at, lists_nip
from relay.client.link import Pace, Reply
from relay.client.paging import Paging
from relay.client.publishing import Publishing, each
from relay.client.reconciling import NEGENTROPY, Comparison
from relay.client.subscription import Subscription
from relay.errors import Prefix

if TYPE_CHECKING:
    from collections.abc import (
        AsyncGenerator,
        AsyncIterable,
        AsyncIterator,
        Awaitable,
        Callable,
        Collection,
        Iterable,
        Mapping,
        Sequence,
    )
    from types import TracebackType
    from typing import Self

    from relay.client.link import Link
    from relay.client.reconciling import Difference
    from relay.nostr.event import Event
    from relay.nostr.filters import Filter
    from relay.nostr.keys import SecretKey
    from relay.nostr.nip77 import Items

    Asked = TypeVar("Asked")
    Question = Filter | Mapping[str, object]
    """A filter, or what NIP-01 writes for one: `{"kinds": [9], "#h": ["tea"]}`."""

_DEFAULT_PACE: Final = Pace()


def unix_now() -> int:
    """Seconds since 1970 by this machine's clock."""
    return int(time.time())  # noqa: TID251  a client has a clock of its own; tests pass another


@dataclass(frozen=True, slots=True)
class PublishReport:
    """What became of many events."""

    stored: int
    duplicates: int
    """Stored already: published before, or by somebody else."""
    refused: tuple[PublishRefused, ...]
    """In the order of the answers; each names its event."""


class Client:
    """`async with Client("ws://127.0.0.1:7777", key) as relay: …`

    Safe to use from many tasks of one loop at once. Every method raises Unanswered when its
    deadline passes (`deadline_s`, or `pace.deadline_s`), and ClientClosed outside the `async with`.
    """

    def __init__(
        self,
        url: str,
        *keys: SecretKey,
        pace: Pace = _DEFAULT_PACE,
        now: Callable[[], int] = unix_now,
        may_be_away: bool = False,
    ) -> None:
        """The first key signs; all of them log in. `now`: seconds since 1970. Raises UserError.

        `may_be_away`: the block begins whether the relay is there or not; it is tried all the time.
        """
        self._keys = keys
        self._may_be_away = may_be_away
        self._dialer = Dialer(url, keys, pace, now)
        self._checking = Checking()

    @property
    def url(self) -> str:
        return self._dialer.url

    @property
    def pubkey(self) -> str:
        """Who signs, 64 hex. Raises NoKey."""
        return self._signer(None).pubkey

    @property
    def is_connected(self) -> bool:
        return self._dialer.link is not None

    async def connected(self, *, deadline_s: float | None = None) -> None:
        """Until there is a connection. Raises Unanswered."""
        async with self._dialer.deadline(deadline_s, "a connection"):
            await self._dialer.link_up()

    def now(self) -> int:
        """Seconds since 1970, by the clock that this client was given."""
        return self._dialer.now()

    @property
    def logged_in(self) -> frozenset[str]:
        """The public keys that the relay took on this connection."""
        link = self._dialer.link
        return link.logged_in if link is not None else frozenset()

    @property
    def login_refusal(self) -> str:
        """Why the relay did not take a key's AUTH on this connection; empty when it did."""
        link = self._dialer.link
        return link.login_refusal if link is not None else ""

    @property
    def notices(self) -> Collection[str]:
        """The last NOTICE texts of the relay, at most 32."""
        return self._dialer.notices

    async def __aenter__(self) -> Self:
        """Connect and log in. Raises Unreachable."""
        if self._may_be_away:
            self._dialer.open_anyway()
        else:
            await self._dialer.open()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self._dialer.close()
        await self._checking.close()

    def sign(
        self,
        kind: int,
        content: str = "",
        tags: Iterable[Iterable[str]] = (),
        *,
        created_at: int | None = None,
        key: SecretKey | None = None,
    ) -> Event:
        """An event of the first key, or of `key`, dated now. Raises NoKey."""
        at = self._dialer.now() if created_at is None else created_at
        return self._signer(key).sign(kind, [list(tag) for tag in tags], content, at)

    async def send(self, kind: int, content: str = "", tags: Iterable[Iterable[str]] = ()) -> Event:
        """Sign and publish; the event, once the relay has it. Raises NoKey, PublishRefused."""
        event = self.sign(kind, content, tags)
        await self.publish(event)
        return event

    async def publish(self, event: Event, *, deadline_s: float | None = None) -> Reply:
        """Until the relay has the event. Raises PublishRefused.

        On a lost connection it is sent again on the next one, until the deadline; `OK true
        "duplicate: …"` is success.
        """
        return await self._accepted(event, deadline_s)

    async def publish_many(
        self,
        events: Iterable[Event] | AsyncIterable[Event],
        *,
        window: int = 256,
        deadline_s: float | None = None,
        patience_s: float = 120.0,
    ) -> PublishReport:
        """Publish in order, at most `window` events on their way at a time; refusals stop nothing.

        The deadline is that of each event. What is `rate-limited:` is sent again at the relay's
        pace, and refused when for `patience_s` nothing was taken. Raises Unanswered; it is safe to
        begin again.
        """
        most_s = self._dialer.pace.deadline_s if deadline_s is None else deadline_s
        publishing = Publishing(
            lambda: self._dialer.link,
            lambda event: self._accepted(event, most_s),
            window,
            most_s,
            patience_s,
        )
        done = await publishing.all_of(each(events))
        return PublishReport(done.stored, done.duplicates, tuple(done.refused))

    async def query(self, *filters: Question, deadline_s: float | None = None) -> list[Event]:
        """The stored events that match any of the filters, in the relay's order, each once.

        A relay may cut a long answer at its limits: see `query_all`. Raises QueryClosed,
        AnswerTooLong.
        """
        wanted = filters_of(filters)
        async with self._dialer.deadline(deadline_s, "EOSE"):
            answer = await self._asked(lambda link: _stored(link, wanted, self._checking))
            return await answer.events()

    async def query_all(
        self, *filters: Question, page: int = 5_000, deadline_s: float | None = None
    ) -> AsyncIterator[Event]:
        """Every stored event that matches, newest first, asked for page by page with `until`.

        Filter by filter; an event that matches several comes with the first. `deadline_s` is that
        of a page. A relay that serves less than `page` events at a time is asked more often; only
        more events in one second than it serves at a time cannot be had. A `search` is one page.
        """
        async with aclosing(self.query_pages(*filters, page=page, deadline_s=deadline_s)) as pages:
            async for events in pages:
                for event in events:
                    yield event

    async def query_pages(
        self,
        *filters: Question,
        page: int = 5_000,
        served: int = 0,
        deadline_s: float | None = None,
    ) -> AsyncGenerator[list[Event], None]:
        """`query_all`, page by page. `served`: events that the relay is known to send at a time if
        it has them; an answer with less is then the last and is not asked after."""
        wanted = filters_of(filters)
        given: set[str] = set()
        for position, filter_ in enumerate(wanted):
            earlier = [other for other in wanted[:position] if _is_whole(other)]
            async with aclosing(self._pages(filter_, page, served, deadline_s)) as pages:
                async for events in pages:
                    fresh = (
                        events
                        if position == 0
                        else [
                            event
                            for event in events
                            if event.id not in given
                            and not any(other.matches(event) for other in earlier)
                        ]
                    )
                    if len(wanted) > 1 and not _is_whole(filter_):
                        # Bounded by the filter's limit, or by one answer to a search.
                        given.update(event.id for event in fresh)
                    yield fresh

    async def count(self, *filters: Question, deadline_s: float | None = None) -> int:
        """How many events match (NIP-45). Raises QueryClosed."""
        wanted = filters_of(filters)
        async with self._dialer.deadline(deadline_s, "the COUNT"):
            return (await self._asked(lambda link: _counted(link, wanted))).number

    async def reconcile(
        self,
        filter_: Question,
        items: Items,
        *,
        deadline_s: float | None = None,
        answered: Callable[[], None] = lambda: None,
    ) -> Difference:
        """How `items` differ from what the relay finds by the filter (NIP-77); no event travels.

        The deadline is that of each of its messages, after which `answered` is called. Raises
        QueryClosed (its prefix is `blocked` when the relay finds too many), Incomparable.
        """
        (wanted,) = filters_of((filter_,))
        messages = 0

        async def noticed(text: str) -> None:
            if not await self._offers(NEGENTROPY):
                raise Incomparable(f"the relay offers no negentropy (NIP-77); it said: {text}")

        try:
            async with self._dialer.deadline(deadline_s, "NEG-MSG") as begin_anew:

                def heard() -> None:
                    nonlocal messages
                    messages += 1
                    begin_anew()
                    answered()

                comparison = Comparison(wanted, items, noticed=noticed, answered=heard)
                return await self._asked(comparison.over)
        except Unanswered as late:
            if not messages and not await self._offers(NEGENTROPY):
                raise Incomparable(f"the relay offers no negentropy (NIP-77): {late}") from None
            raise

    def subscribe(self, *filters: Question, queue: int = 10_000) -> Subscription:
        """Stored events, then live ones, across reconnects: see Subscription.

        `async with relay.subscribe({"kinds": [9], "#h": ["tea"]}) as events: …`
        """
        return Subscription(self._dialer, filters_of(filters), queue)

    async def information(self, *, deadline_s: float | None = None) -> dict[str, object]:
        """The relay's information document (NIP-11). Raises Unreachable, NotARelay."""
        async with self._dialer.deadline(deadline_s, "the relay information document"):
            return await self._dialer.information()

    def _signer(self, key: SecretKey | None) -> SecretKey:
        if key is not None:
            return key
        if not self._keys:
            raise NoKey
        return self._keys[0]

    async def _accepted(self, event: Event, deadline_s: float | None) -> Reply:
        async with self._dialer.deadline(deadline_s, f"the OK for event {event.id[:12]}…"):
            frame, login_tried = b'["EVENT",' + event.raw + b"]", False
            while True:
                link = await self._dialer.link_up()
                rounds = link.login_rounds
                try:
                    reply = await link.publish(event.id, frame)
                    if reply.accepted:
                        return reply
                    if reply.prefix != Prefix.AUTH_REQUIRED:
                        raise PublishRefused(reply.prefix, reply.text, event)
                    if login_tried or not await link.login_after(rounds):
                        raise PublishRefused(reply.prefix, reply.text, event, link.login_refusal)
                    login_tried = True
                except ConnectionLost:
                    login_tried = False

    async def _asked(self, ask: Callable[[Link], Awaitable[Asked]]) -> Asked:
        """What `ask` gives, logged in when the relay wants that, on as many links as it takes."""
        login_tried = False
        while True:
            link = await self._dialer.link_up()
            rounds = link.login_rounds
            try:
                try:
                    return await ask(link)
                except QueryClosed as closed:
                    if closed.prefix != Prefix.AUTH_REQUIRED:
                        raise
                    if login_tried or not await link.login_after(rounds):
                        refusal = link.login_refusal
                        raise QueryClosed(closed.prefix, closed.text, refusal) from None
                    login_tried = True
            except ConnectionLost:
                login_tried = False

    async def _offers(self, nip: int) -> bool:
        return lists_nip(await document_at(self), nip)

    async def _pages(
        self, filter_: Filter, page: int, served: int, deadline_s: float | None
    ) -> AsyncGenerator[list[Event], None]:
        paging = Paging(filter_, page, served)
        asked = self._asked_ahead(paging, deadline_s)
        try:
            while asked is not None:
                fresh = paging.take(await asked)
                # While who reads works on this page, the relay does on the next.
                asked = self._asked_ahead(paging, deadline_s)
                await asyncio.sleep(0)
                yield fresh
        finally:
            if asked is not None:
                asked.cancel()
                await asyncio.wait([asked])
                if not asked.cancelled():
                    asked.exception()  # nobody waits for it any more

    def _asked_ahead(
        self, paging: Paging, deadline_s: float | None
    ) -> asyncio.Task[list[Event]] | None:
        wanted = paging.wanted
        if wanted is None:
            return None
        return asyncio.create_task(self.query(wanted, deadline_s=deadline_s))


async def _stored(link: Link, wanted: Sequence[Filter], checking: Checking) -> StoredAnswer:
    answer = StoredAnswer(wanted, checking)
    async with link.asking("REQ", wanted, answer, answer.take_text):
        await answer.wait()
    return answer


async def _counted(link: Link, wanted: Sequence[Filter]) -> CountAnswer:
    answer = CountAnswer()
    async with link.asking("COUNT", wanted, answer):
        await answer.wait()
    return answer


def _is_whole(filter_: Filter) -> bool:
    """Whether `query_all` gives everything that the filter matches."""
    return filter_.limit is None and filter_.search is None
