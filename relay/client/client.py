"""Client: a signing Nostr client for one relay, usable inside its `async with`.

It authenticates (NIP-42), reconnects, and never waits without a deadline. A request outlives a
connection: it is sent again after a reconnect, which is safe because publishing is idempotent
(`duplicate:`) and reading has no side effect.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
from array import array
from contextlib import aclosing, suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from typing import TYPE_CHECKING, Final, TypeVar

import orjson

from relay.client.bulk_publish import BulkPublish, async_iter
from relay.client.connection import Reply, Timeouts
from relay.client.errors import (
    AnswerTooLong,
    CallRefused,
    ClientError,
    ConnectionLost,
    Incomparable,
    NoKey,
    NotARelay,
    PublishRefused,
    QueryClosed,
    Unanswered,
    Unreachable,
    split_reason,
)
from relay.client.information import COUNT, LOGIN, lists_nip
from relay.client.negentropy import MAX_NEED, NEGENTROPY, Reconciliation
from relay.client.paging import MAX_ALL_BYTES, PageBudget, Paging
from relay.client.reconnect import Reconnector
from relay.client.responses import (
    MAX_ANSWER,
    MAX_ANSWER_BYTES,
    CountAnswer,
    StoredAnswer,
    filters_of,
)
from relay.client.subscription import Subscription
from relay.client.verifier import SignatureVerifier
from relay.clock import unix_now
from relay.errors import Prefix
from relay.nostr import kinds
from relay.nostr.nip77 import Items
from relay.nostr.nip98 import header_for

if TYPE_CHECKING:
    from collections.abc import (
        AsyncGenerator,
        AsyncIterable,
        AsyncIterator,
        Awaitable,
        Callable,
        Collection,
        Coroutine,
        Iterable,
        Mapping,
        Sequence,
    )
    from typing import Self

    from relay.client.connection import Connection
    from relay.client.negentropy import Difference
    from relay.client.recall import Recall
    from relay.client.responses import FilterLike
    from relay.nostr.event import Event
    from relay.nostr.filters import Filter
    from relay.nostr.keys import SecretKey

    Result = TypeVar("Result")
    Query = Callable[[Filter], Coroutine[object, object, list[Event]]]

_log: Final = logging.getLogger(__name__)
MESSAGES: Final = (
    kinds.CHAT,
    kinds.THREAD,
    kinds.THREAD_REPLY,
    kinds.THREAD_COMMENT,
    kinds.COMMENT,
)
"""Kinds that are read as messages of a group; `say` writes CHAT."""
_PREVIOUS: Final = 3
"""Number of references to earlier messages (`previous`), chosen among the newest `_LOOKED_AT`."""
_LOOKED_AT: Final = 10
_MOST_LOOKED_AT: Final = 2**20
"""Bytes of these messages in memory; of larger ones none is named."""
_LOOK_S: Final = 5.0
"""How long a message waits for them."""
_DEFAULT_TIMEOUTS: Final = Timeouts()
_COMPARISON_S: Final = 3600.0
"""Deadline of a whole comparison: a relay that answers slowly would hold the lock of a data folder
for days."""


@dataclass(frozen=True, slots=True)
class PublishReport:
    """The result of `publish_many`."""

    stored: int
    duplicates: int
    """Already stored: published before, or by somebody else."""
    refused: tuple[PublishRefused, ...]
    """In the order of the replies; each names its event."""


class Client:
    """`async with Client("ws://127.0.0.1:7777", key) as relay: …`

    Safe to use from many tasks of one loop. Every method raises Unanswered when its deadline passes
    (`deadline_s`, default `timeouts.deadline_s`), and ClientClosed outside the `async with`.
    """

    def __init__(
        self,
        url: str,
        *keys: SecretKey,
        timeouts: Timeouts = _DEFAULT_TIMEOUTS,
        now: Callable[[], int] = unix_now,
        start_offline: bool = False,
    ) -> None:
        """The first key signs; all of them authenticate. `now`: seconds since 1970. Raises
        UserError.

        `start_offline`: enter the `async with` without a connection and connect in the background.
        """
        self.on_wait: Callable[[int, int], None] | None = None
        """Called while `publish_many` waits for the relay's rate: events accepted, events not."""
        self._keys = keys
        self._start_offline = start_offline
        self._reconnector = Reconnector(url, keys, timeouts, now)
        self._verifier = SignatureVerifier()
        self._document: Mapping[str, object] = {}
        """The relay's document, as far as it was fetched."""

    @property
    def url(self) -> str:
        return self._reconnector.url

    @property
    def pubkey(self) -> str:
        """Public key of the first key, 64 hex. Raises NoKey."""
        return self._signer(None).pubkey

    @property
    def is_connected(self) -> bool:
        return self._reconnector.connection is not None

    async def wait_connected(self, *, deadline_s: float | None = None) -> None:
        """Wait until there is a connection. Raises Unanswered."""
        async with self._reconnector.deadline(deadline_s, "a connection"):
            await self._reconnector.wait_connected()

    @property
    def next_connection(self) -> asyncio.Event:
        """Set when there is another connection than now."""
        return self._reconnector.next_connection

    def now(self) -> int:
        """Seconds since 1970, by the clock given to the constructor."""
        return self._reconnector.now()

    @property
    def logged_in(self) -> frozenset[str]:
        """The public keys authenticated on this connection."""
        connection = self._reconnector.connection
        return connection.logged_in if connection is not None else frozenset()

    @property
    def login_refusal(self) -> str:
        """The reason of the last refused AUTH on this connection; empty if none was refused."""
        connection = self._reconnector.connection
        return connection.login_refusal if connection is not None else ""

    def is_known_as(self, pubkey: str, document: Mapping[str, object]) -> bool:
        """Whether the relay with this document answers this key on this connection, and not
        somebody who may read less: only then is an event gone that it does not give."""
        is_known = pubkey in self.logged_in or not lists_nip(document, LOGIN)
        return bool(document) and is_known and not self.login_refusal

    @property
    def notices(self) -> Collection[str]:
        """The last NOTICE texts of the relay, at most 32."""
        return self._reconnector.notices

    async def __aenter__(self) -> Self:
        """Connect and authenticate. Raises Unreachable."""
        if self._start_offline:
            self._reconnector.open_in_background()
        else:
            await self._reconnector.open()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._reconnector.close()
        await self._verifier.close()

    def sign(
        self,
        kind: int,
        content: str = "",
        tags: Iterable[Iterable[str]] = (),
        *,
        created_at: int | None = None,
        key: SecretKey | None = None,
    ) -> Event:
        """A signed event; `key` defaults to the first key, `created_at` to now. Raises NoKey."""
        at = self._reconnector.now() if created_at is None else created_at
        return self._signer(key).sign(kind, [list(tag) for tag in tags], content, at)

    async def send(self, kind: int, content: str = "", tags: Iterable[Iterable[str]] = ()) -> Event:
        """Sign and publish; returns the accepted event. Raises NoKey, PublishRefused."""
        event = self.sign(kind, content, tags)
        await self.publish(event)
        return event

    async def say(self, group: str, text: str, reply_to: Event | None = None) -> Event:
        """Send a message to a group (kind 9), in answer to another if given; returns it.

        It names the newest messages (`previous`, NIP-29), which orders those of one second; none if
        they are large or the relay does not give them at once. Raises NoKey, PublishRefused.
        """
        from relay.memory.snowclaw.history import oldest_first

        newest: list[Event] = []
        with suppress(ClientError):  # who may not read is told so by the answer to the message
            wanted = {"kinds": list(MESSAGES), "#h": [group], "limit": _LOOKED_AT}
            looked_at = await self.query(wanted, most_bytes=_MOST_LOOKED_AT, deadline_s=_LOOK_S)
            newest = oldest_first(looked_at)[-_PREVIOUS:]
        tags = [["h", group]]
        if newest:
            tags.append(["previous", *(event.id[:8] for event in newest)])
        if reply_to is not None:
            tags += [["q", reply_to.id, self.url, reply_to.pubkey], ["p", reply_to.pubkey]]
        return await self.send(kinds.CHAT, text, tags)

    async def publish(self, event: Event, *, deadline_s: float | None = None) -> Reply:
        """Publish and wait for OK true; `duplicate:` counts as success. Raises PublishRefused.

        After a lost connection it is sent again on the next one, until the deadline.
        """
        return await self._publish_until_accepted(event, deadline_s)

    async def publish_many(
        self,
        events: Iterable[Event] | AsyncIterable[Event],
        *,
        window: int = 256,
        deadline_s: float | None = None,
        patience_s: float = 120.0,
    ) -> PublishReport:
        """Publish in order, at most `window` events without an OK; a refusal does not stop the
        rest.

        `deadline_s` applies to each event. An event refused with `rate-limited:` is retried, and
        counted as refused once no event was accepted for `patience_s`. Raises Unanswered; it is
        safe to call again with the same events.
        """
        timeout_s = self._reconnector.timeouts.deadline_s if deadline_s is None else deadline_s
        publishing = BulkPublish(
            lambda: self._reconnector.connection,
            lambda event: self._publish_until_accepted(event, timeout_s),
            window,
            timeout_s,
            patience_s,
            self.on_wait,
        )
        done = await publishing.publish(async_iter(events))
        return PublishReport(done.stored, done.duplicates, tuple(done.refused))

    async def query(
        self,
        *filters: FilterLike,
        most_bytes: int = MAX_ANSWER_BYTES,
        deadline_s: float | None = None,
        is_of_each: bool = False,
    ) -> list[Event]:
        """The stored events that match any of the filters, in the relay's order, without
        duplicates. `is_of_each`: the deadline begins again with each event.

        A relay may truncate a long answer at its limits: see `query_all`. Raises QueryClosed;
        AnswerTooLong, also for events that take more than `most_bytes` in memory together.
        """
        wanted = filters_of(filters)
        came = 0
        try:
            async with self._reconnector.deadline(deadline_s, "EOSE") as restart:

                def on_event() -> None:
                    nonlocal came
                    came += 1
                    if is_of_each:
                        restart()

                return await self._request(
                    lambda connection: _stored(
                        connection, wanted, self._verifier, most_bytes, on_event
                    )
                )
        except (AnswerTooLong, Unanswered) as error:
            error.events = came
            raise

    async def query_all(
        self,
        *filters: FilterLike,
        page: int = 5_000,
        most_bytes: int = MAX_ALL_BYTES,
        deadline_s: float | None = None,
    ) -> AsyncIterator[Event]:
        """Every matching stored event, newest first, paginated with `until`.

        Filters are queried one after the other; an event that matches several is yielded once, with
        the first. `deadline_s` applies to each page. Works with relays that return fewer than
        `page` events at a time. If one second holds more events than the relay returns at a time,
        or than a page may take, the rest is read by ids, which negentropy tells (NIP-77); of a
        relay without it some may be left out, and the log says so unless their number (NIP-45)
        shows that none are. A `search` filter is one page. A page that is too long for one answer
        is asked for in halves; of a search the best half is given. After one of which only some
        events came within the deadline, pages are smaller, and the deadline begins again with each
        event. Raises as `query`; AnswerTooLong for more than 20,000 pages, or events that take more
        than `most_bytes` in memory together: a caller that does not hold them gives MAX_READ_BYTES.
        """
        async with aclosing(
            self.query_pages(*filters, page=page, most_bytes=most_bytes, deadline_s=deadline_s)
        ) as pages:
            async for events in pages:
                for event in events:
                    yield event

    async def query_pages(
        self,
        *filters: FilterLike,
        page: int = 5_000,
        served: int = 0,
        most_bytes: int = MAX_ALL_BYTES,
        page_bytes: int = MAX_ANSWER_BYTES,
        deadline_s: float | None = None,
        is_of_each: bool = False,
    ) -> AsyncGenerator[list[Event], None]:
        """`query_all` in pages. `served`: number of events the relay is known to return if it has
        them; a shorter answer is then the last page, and no further REQ is sent. `page_bytes`: what
        the events of a page may take in memory; the next page is fetched meanwhile. `is_of_each`:
        see `query`; a page holds all events of a second that came before it."""
        wanted = filters_of(filters)
        patient = partial(self.query, most_bytes=page_bytes, deadline_s=deadline_s, is_of_each=True)
        query = patient if is_of_each else partial(patient, is_of_each=False)
        seen: set[str] = set()
        budget = PageBudget(most_bytes, page)
        for position, filter_ in enumerate(wanted):
            earlier = [other for other in wanted[:position] if _is_whole(other)]
            paging = Paging(filter_, page, served)
            async with aclosing(self._pages(paging, budget, query, patient)) as pages:
                async for events in pages:
                    fresh = (
                        events
                        if position == 0
                        else [
                            event
                            for event in events
                            if event.id not in seen
                            and not any(other.matches(event) for other in earlier)
                        ]
                    )
                    if len(wanted) > 1 and not _is_whole(filter_):
                        # Bounded by the filter's limit, or by one answer to a search.
                        seen.update(event.id for event in fresh)
                    yield fresh

    async def recall(
        self,
        question: str,
        *,
        systems: Collection[str] = (),
        kind: int | None = None,
        group: str | None = None,
        limit: int = 20,
    ) -> Recall:
        """What the five memory systems know of it, best first, each text once.

        `systems`: letters of `relay.client.recall.SYSTEMS`; none: all. `group`: records with its
        `h`. Claims say who vouched for them and what supersedes them: `Hit.provenance`. Raises
        QueryClosed.
        """
        # With it come all memory systems.
        from relay.client.recall import recall, with_provenance

        found = await recall(self, question, systems=systems, kind=kind, group=group, limit=limit)
        return await with_provenance(self, found, self.pubkey) if self._keys else found

    async def count(self, *filters: FilterLike, deadline_s: float | None = None) -> int:
        """Number of matching events (NIP-45), which a relay may only estimate. Raises
        QueryClosed."""
        return (await self._counted(filters, deadline_s)).number

    async def exact_count(
        self, *filters: FilterLike, deadline_s: float | None = None
    ) -> int | None:
        """As `count`; None: the relay says that it is an estimate."""
        answer = await self._counted(filters, deadline_s)
        return answer.number if answer.is_exact else None

    async def _counted(
        self, filters: Sequence[FilterLike], deadline_s: float | None
    ) -> CountAnswer:
        wanted = filters_of(filters)
        async with self._reconnector.deadline(deadline_s, "the COUNT"):
            return await self._request(lambda connection: _counted(connection, wanted))

    async def reconcile(
        self,
        filter_: FilterLike,
        items: Items,
        *,
        deadline_s: float | None = None,
        answered: Callable[[], None] = lambda: None,
        most_needed: int = MAX_NEED,
    ) -> Difference:
        """The difference between `items` and the relay's matches (NIP-77); no events are
        transferred.

        The deadline applies to each message of the relay, an hour to all of them; `answered` is
        called after each. Raises QueryClosed (prefix `blocked` if the relay's set is too large),
        Incomparable, also for more than `most_needed` ids that are missing here.
        """
        (wanted,) = filters_of((filter_,))
        messages = 0

        async def on_notice(text: str) -> None:
            if not await self._supports_negentropy():
                raise Incomparable(f"the relay offers no negentropy (NIP-77); it answered: {text}")

        try:
            async with (
                asyncio.timeout(_COMPARISON_S),
                self._reconnector.deadline(deadline_s, "NEG-MSG") as restart_deadline,
            ):

                def on_message() -> None:
                    nonlocal messages
                    messages += 1
                    restart_deadline()
                    answered()

                reconciliation = Reconciliation(
                    wanted,
                    items,
                    on_notice=on_notice,
                    on_message=on_message,
                    most_needed=most_needed,
                )
                return await self._request(reconciliation.run)
        except TimeoutError:
            raise Unanswered(f"the comparison took over {_COMPARISON_S:.0f} s") from None
        except Unanswered as error:
            if not messages and not await self._supports_negentropy():
                raise Incomparable(f"the relay offers no negentropy (NIP-77): {error}") from None
            raise

    def subscribe(
        self,
        *filters: FilterLike,
        queue: int = 10_000,
        most_bytes: int = MAX_ANSWER_BYTES,
        on_resumed: Callable[[], None] = lambda: None,
        keeps_newest: bool = True,
    ) -> Subscription:
        """Stored events, then live ones, across reconnects: see Subscription. After a
        reconnect a filter for gift wraps, also one with `limit` 0, may give some that were stored
        before the subscription: their dates are up to two days too early.

        `most_bytes`: what events that wait for the reader may take in memory; live ones a quarter
        of it. `on_resumed` is called when it is live again: what was deleted meanwhile is not told.
        If more is stored, or was missed without a connection or by a slow reader, than can be held,
        the oldest are dropped, counted in `dropped` and logged: in an open group anybody may write
        that much. With `keeps_newest=False` that raises AnswerTooLong.

        `async with relay.subscribe({"kinds": [9], "#h": ["tea"], "limit": 0}) as events: …` gives
        what is written from now on; without `limit` what is stored comes first, newest first.
        """
        return Subscription(
            self._reconnector,
            filters_of(filters),
            queue,
            most_bytes,
            on_resumed,
            keeps_newest=keeps_newest,
        )

    async def information(self, *, deadline_s: float | None = None) -> dict[str, object]:
        """The relay information document (NIP-11). Raises Unreachable, NotARelay."""
        async with self._reconnector.deadline(deadline_s, "the relay information document"):
            return await self._reconnector.information()

    async def call(self, method: str, *params: object, deadline_s: float | None = None) -> object:
        """The result of a NIP-86 call, signed with the first key. Raises CallRefused, Unreachable,
        NoKey."""
        body = orjson.dumps({"method": method, "params": params})
        url, now = "http" + self.url[2:], self._reconnector.now()
        header = header_for(self._signer(None), url, body, now, secrets.token_hex(8))
        async with self._reconnector.deadline(deadline_s, f"the result of {method}"):
            reply = await self._reconnector.post(body, header)
        if not isinstance(reply, dict):
            raise CallRefused("", "this relay offers no management (NIP-86)")
        if error := reply.get("error"):
            raise CallRefused(*split_reason(error if isinstance(error, str) else "error"))
        return reply.get("result")

    def _signer(self, key: SecretKey | None) -> SecretKey:
        if key is not None:
            return key
        if not self._keys:
            raise NoKey
        return self._keys[0]

    async def _publish_until_accepted(self, event: Event, deadline_s: float | None) -> Reply:
        async with self._reconnector.deadline(deadline_s, f"the OK for event {event.id[:12]}…"):
            frame, login_tried = b'["EVENT",' + event.raw + b"]", False
            while True:
                connection = await self._reconnector.wait_connected()
                rounds = connection.login_rounds
                try:
                    reply = await connection.publish(event.id, frame)
                    if reply.accepted:
                        return reply
                    if reply.prefix != Prefix.AUTH_REQUIRED:
                        raise PublishRefused(reply.prefix, reply.text, event)
                    if login_tried or not await connection.login_after(rounds):
                        raise PublishRefused(
                            reply.prefix, reply.text, event, connection.login_refusal
                        )
                    login_tried = True
                except ConnectionLost:
                    login_tried = False

    async def _request(self, ask: Callable[[Connection], Awaitable[Result]]) -> Result:
        """The result of `ask`, retried after a lost connection, and once after NIP-42
        authentication."""
        login_tried = False
        while True:
            connection = await self._reconnector.wait_connected()
            rounds = connection.login_rounds
            try:
                try:
                    return await ask(connection)
                except QueryClosed as closed:
                    if closed.prefix != Prefix.AUTH_REQUIRED:
                        raise
                    if login_tried or not await connection.login_after(rounds):
                        refusal = connection.login_refusal
                        raise QueryClosed(closed.prefix, closed.text, refusal) from None
                    login_tried = True
            except ConnectionLost:
                login_tried = False
                await connection.wait_lost()

    async def information_or_empty(self) -> Mapping[str, object]:
        """The relay information document; empty if there is none or the relay is unreachable."""
        try:
            return await self.information()
        except (Unreachable, Unanswered, NotARelay):
            return {}

    async def known_information(self) -> Mapping[str, object]:
        """As `information_or_empty`; fetched once."""
        if not self._document:
            self._document = await self.information_or_empty()
        return self._document

    async def _supports_negentropy(self) -> bool:
        return lists_nip(await self.information_or_empty(), NEGENTROPY)

    async def _pages(
        self, paging: Paging, budget: PageBudget, query: Query, patient: Query
    ) -> AsyncGenerator[list[Event], None]:
        """`patient`: the query whose deadline begins again with each event, from the first page on
        that was not complete within its deadline."""
        pending = _prefetch(paging, query)
        try:
            while pending is not None:
                fresh: list[Event] | None = None
                try:
                    answer = await pending
                except (AnswerTooLong, Unanswered) as error:
                    pending = None
                    if isinstance(error, Unanswered):
                        if query is patient or not error.events:
                            raise
                        # A smaller page has all events of its first second that came before it.
                        query = patient
                        paging.narrow_to(error.events)
                    elif not paging.narrow(error.events):
                        raise
                else:
                    pending = None
                    fresh = paging.add(answer)
                    del answer
                    budget.spend(fresh)
                if (crowded := paging.take_crowded()) is not None:
                    paging.add_ids(await self._unread_of(*crowded))
                # Prefetch the next page while the caller works on this one.
                pending = _prefetch(paging, query)
                if fresh is not None:
                    await asyncio.sleep(0)
                    yield fresh
        finally:
            if pending is not None:
                pending.cancel()
                await asyncio.wait([pending])
                if not pending.cancelled():
                    pending.exception()  # nobody awaits it any more

    async def _unread_of(self, second: Filter, known: Collection[str]) -> Collection[str]:
        """The ids of the events of this second that are not known; none if the relay does not tell
        all of them within the deadline."""
        try:
            document = await self.known_information()
            if not lists_nip(document, NEGENTROPY):
                if lists_nip(document, COUNT):
                    number = await self.exact_count(second)
                    if number is not None and number <= len(known):
                        return ()
                raise Incomparable("the relay offers no negentropy (NIP-77)")
            async with self._reconnector.deadline(None, "all ids of a second"):
                found = await self.reconcile(second, Items(array("Q"), b""), most_needed=MAX_ANSWER)
        except (Incomparable, QueryClosed, Unanswered) as error:
            at = datetime.fromtimestamp(second.since or 0, UTC)
            _log.warning("events of %s UTC may be left out: %s", f"{at:%F %T}", error)
            return ()
        return {id_.hex() for id_ in found.need}.difference(known)


def _prefetch(paging: Paging, query: Query) -> asyncio.Task[list[Event]] | None:
    wanted = paging.wanted
    return None if wanted is None else asyncio.create_task(query(wanted))


async def _stored(
    connection: Connection,
    wanted: Sequence[Filter],
    verifier: SignatureVerifier,
    most_bytes: int,
    on_event: Callable[[], None],
) -> list[Event]:
    answer = StoredAnswer(wanted, verifier, most_bytes, on_event)
    try:
        async with connection.request("REQ", wanted, answer, answer.receive_raw):
            await answer.wait()
        return await answer.events()
    finally:
        answer.drop()


async def _counted(connection: Connection, wanted: Sequence[Filter]) -> CountAnswer:
    answer = CountAnswer()
    async with connection.request("COUNT", wanted, answer):
        await answer.wait()
    return answer


def _is_whole(filter_: Filter) -> bool:
    """Whether `query_all` yields everything that the filter matches."""
    return filter_.limit is None and filter_.search is None
