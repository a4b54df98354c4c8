"""Aman: the memory of a messaging agent by history key: preference, summary, tools, clears.

    async with Aman("ws://127.0.0.1:7777", key, folder=Path("~/agent").expanduser()) as aman:
        await aman.set_preference("user-1", "prefer_speed")
        print(aman.format_prompt(await aman.snapshot("user-1")))

By default the memory consists of the records of one key; `any_author=True` includes all authors, as
Aman's own projection does (A-13). With a secretbox key every record is encrypted.
"""

from __future__ import annotations

import asyncio
import gc
import math
import secrets
from collections import Counter
from contextlib import aclosing, contextmanager, suppress
from dataclasses import replace
from typing import TYPE_CHECKING, Any, ClassVar, Final, NamedTuple, TypeVar
from weakref import WeakValueDictionary

from msgspec import structs

from relay.client.aman_order import ClearOrder
from relay.client.aman_tables import (
    TABLES,
    Replaced,
    Unusable,
    event_ids,
    ids_of,
    number_of_rows,
    replace_rows,
    rows_in,
)
from relay.client.errors import ClientError
from relay.client.memory import MemoryClient
from relay.client.resume import OVERLAP_S
from relay.client.shared_key import shared_key
from relay.client.withdrawn import ABSENCE_S, withdrawn
from relay.client.writer import Outcome, Written, address_filter
from relay.errors import Invalid, Prefix
from relay.memory.aman import prompt, records
from relay.memory.aman.checks import D_ENDS, LABELS
from relay.memory.aman.exchange import tool_content
from relay.memory.aman.fold import Fold
from relay.memory.aman.prompt import Privacy, PromptPolicy
from relay.memory.aman.records import (
    Clear,
    Preference,
    Subscriptions,
    Summary,
    ToolCall,
    draft_of,
    encrypted_draft_of,
)
from relay.memory.bounded import BoundedDict
from relay.memory.fields import compact
from relay.nostr import kinds, secretbox
from relay.nostr.event import object_in
from relay.nostr.filters import Filter

if TYPE_CHECKING:
    from collections.abc import (
        AsyncGenerator,
        AsyncIterator,
        Awaitable,
        Callable,
        Iterable,
        Iterator,
        Mapping,
        Sequence,
    )
    from pathlib import Path

    from relay.client.client import Client
    from relay.client.subscription import Subscription
    from relay.memory.aman.fold import Snapshot
    from relay.memory.aman.records import Record
    from relay.memory.draft import Draft
    from relay.memory.unreadable import UnreadableRecord
    from relay.nostr.event import Event
    from relay.nostr.keys import SecretKey

    Replaceable = Preference | Summary | Subscriptions
    R = TypeVar("R", bound=Replaceable)

_KINDS: Final = frozenset(LABELS)


_REPEATED_S: Final = 60
"""Seconds within which a call of the same tool with the same result counts as repeated."""
_RETRY_S: Final = 10.0
"""After a failure to read a memory that is followed."""
_JOIN_S: Final = 0.1
"""Deletions that come within it are followed by one read, changes by one snapshot if more of them
have arrived."""
_GC_PAUSE_S: Final = 10.0
"""100,000 records are read in 3 s."""
_LOOKED_AT: Final = 50
"""Newest records that a query for the latest time reads."""


class _Newest(NamedTuple):
    at: int
    """Newest time, Unix seconds; -1: there is no record."""
    ids: frozenset[str]


_NOTHING: Final = _Newest(-1, frozenset())


class Unreadable(ClientError):
    """The requested record is locked or invalid."""


class Rehydrated(NamedTuple):
    """Rows written by `rehydrate`, and unreadable records."""

    rows: Replaced
    skipped: tuple[UnreadableRecord, ...]


class Followed(NamedTuple):
    """Rows written by `follow_tables`."""

    history_key: str | None
    """None: all."""
    rows: Replaced
    skipped: tuple[UnreadableRecord, ...]


class Imported(NamedTuple):
    """Rows that are at the relay after `import_tables`."""

    rows: Replaced
    skipped: tuple[str, ...]
    """Reasons, one per row that could not be sent."""


class Aman(MemoryClient):
    """Writing methods return when the relay (or the spool, see `folder`) has the record, and raise
    PublishRefused; reading methods report unreadable records and continue (A-22)."""

    NAME: ClassVar[str] = "aman"

    def __init__(
        self,
        relay: Client | str,
        signer: SecretKey,
        secretbox_key: str | bytes | None = None,
        *,
        folder: Path | None = None,
    ) -> None:
        """`secretbox_key`: 32 bytes or an encoding of them; None: NOSTR_SECRETBOX_KEY.

        Raises UserError for an invalid key (A-24).
        """
        super().__init__(relay, signer, folder=folder)
        self._key = shared_key(secretbox_key)
        self._order = ClearOrder()
        self._last_calls: BoundedDict[tuple[str, str], tuple[int, str]] = BoundedDict(1_000)
        """(history key, tool) → time and content."""
        self._next_query: dict[str, asyncio.Task[_Newest]] = {}
        """History key → query for clears that has not begun."""
        self._query_locks: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()
        self.shortfall = ""
        """Missing relay features that are worked around; empty: none (G-30)."""

    # -- writing ----------------------------------------------------------------------------------

    async def set_preference(self, hk: str, text: str) -> Written:
        sifted = self.sift(text)
        if sifted is None:
            return self._unsent(Preference(hk, text, self._client.now()))
        return await self._replace(Preference(hk, sifted, 0))

    async def set_summary(self, hk: str, text: str, message_count: int) -> Written:
        sifted = self.sift(text)
        if sifted is None:
            return self._unsent(Summary(hk, text, message_count, self._client.now()))
        return await self._replace(Summary(hk, sifted, message_count, 0))

    async def set_subscriptions(self, hk: str, topics: Iterable[str]) -> Written:
        return await self._replace(Subscriptions(hk, tuple(topics), 0))

    async def add_tool(
        self,
        hk: str,
        tool_name: str,
        success: bool,  # noqa: FBT001  the order of the statement
        content: str,
        sender_id: str | None = None,
        group_id: str | None = None,
        created_at: int | None = None,
    ) -> Written:
        """Append a tool call; a repeated one is a duplicate, or kept out within a minute. Content
        is truncated to 2,000 characters.

        `created_at`: Unix seconds; None: now.
        """
        known = self._known_calls(hk, tool_name, created_at)
        sifted = self.sift(content, known)
        if sifted is None:
            now = self._client.now() if created_at is None else created_at
            call = ToolCall(hk, tool_name, success, tool_content(content), sender_id, group_id, now)
            return self._unsent(call)
        content = sifted
        if created_at is None:
            clears = await self._clears_now(hk)
            at = max(clears.at, self._order.after_clear(hk, self._client.now()))
            self._order.wrote(hk, at)
        else:
            clears = await self._clears(hk, since=created_at, until=created_at)
            at = created_at
        self._last_calls[hk, tool_name] = at, content
        call = ToolCall(hk, tool_name, success, tool_content(content), sender_id, group_id, at)
        return await self.publish(self._draft(call, clears.ids if at == clears.at else ()))

    async def clear(self, hk: str, sender_id: str | None = None) -> Written:
        """Exclude earlier summaries and tools from snapshots (A-15)."""
        at = self._order.clearing(hk, self._client.now())
        rows = await self._newest(hk, {Summary.kind, ToolCall.kind}, since=at)
        clears = await self._clears(hk, since=at)
        at = max(at, rows.at, clears.at)
        if at == clears.at == rows.at:
            at += 1  # rows of this second may be after the clear that there is
        self._order.cleared(hk, at)
        return await self.append(Clear(hk, sender_id, at))

    async def append(self, record: ToolCall | Clear) -> Written:
        """Publish an entry with its own time."""
        return await self.publish(self._draft(record))

    async def _replace(self, record: Replaceable) -> Written:
        """A new version; unknown fields of the stored one are kept."""
        hk = record.history_key
        with suppress(Unreadable):
            stored = await self._stored(type(record), hk)
            if stored is not None:
                record = replace(record, more=stored.more)

        before = _NOTHING
        if isinstance(record, Summary):
            before = await self._clears_now(hk)
        elif isinstance(record, Subscriptions):
            newest = await self._newest(hk, {Subscriptions.kind}, since=self._client.now())
            before = _Newest(newest.at + 1, frozenset())  # it may be under another `d`

        def draft_at(at: int) -> Draft:
            at = max(at, before.at)
            if isinstance(record, Summary):
                at = self._order.after_clear(hk, at)
            return self._draft(
                replace(record, updated_at=at), before.ids if at == before.at else ()
            )

        return await self.write(record.kind, f"{hk}:{D_ENDS[record.kind]}", draft_at)

    def _known_calls(self, hk: str, tool: str, at: int | None) -> Sequence[str]:
        """Result of the last call of the tool by this client, within the last minute: an equal one
        is a repeated call. Empty for a call with its own time, or in the same second: the relay
        decides on these."""
        now = self._client.now()
        then, content = self._last_calls.get((hk, tool), (now, ""))
        return [content] if at is None and now - _REPEATED_S < then < now else []

    def _unsent(self, record: ToolCall | Replaceable) -> Written:
        return Written(self.signed(self._draft(record)), Outcome.KEPT_OUT)

    async def _clears_now(self, hk: str) -> _Newest:
        """Result of a query that begins after this call. Simultaneous calls share one query."""
        query = self._next_query.get(hk)
        if query is None:
            query = self._next_query[hk] = asyncio.create_task(self._query_clears(hk))
        return await asyncio.shield(query)

    async def _query_clears(self, hk: str) -> _Newest:
        lock = self._query_locks.setdefault(hk, asyncio.Lock())
        async with lock:  # until the query before has its answer, calls join this one
            del self._next_query[hk]
            return await self._clears(hk, since=self._client.now())

    async def _clears(self, hk: str, since: int, until: int | None = None) -> _Newest:
        return await self._newest(hk, {Clear.kind}, since, until)

    async def _newest(self, hk: str, of: set[int], since: int, until: int | None = None) -> _Newest:
        """The newest records of these kinds, also by other processes of this agent; none if the
        relay is unreachable or does not index history keys."""
        if not self.is_online or not await self.offers("index_tags", "hk"):
            return _NOTHING
        wanted = Filter(
            kinds=frozenset(of),
            authors=frozenset({self.pubkey}),
            tags=(("hk", frozenset({hk})),),
            since=since,
            until=until,
            limit=_LOOKED_AT,
        )
        try:
            events = await self._client.query(wanted)
        except ClientError:  # the record is still worth writing
            return _NOTHING
        times = [(records.key_and_time(event).ts or 0, event.id) for event in events]
        at = max((ts for ts, _ in times), default=-1)
        return _Newest(at, frozenset(id_ for ts, id_ in times if ts == at))

    def _draft(self, record: Record, after: Iterable[str] = ()) -> Draft:
        after = sorted(after)
        if self._key is None:
            return draft_of(record, after)
        nonce = secrets.token_bytes(secretbox.NONCE_BYTES)
        return encrypted_draft_of(record, self._key.key, nonce, after)

    # -- reading ----------------------------------------------------------------------------------

    async def get_preference(self, hk: str) -> Preference | None:
        """Raises Unreadable."""
        return await self._stored(Preference, hk)

    async def get_subscriptions(self, hk: str) -> Subscriptions | None:
        """Raises Unreadable."""
        return await self._stored(Subscriptions, hk)

    async def get_summary(self, hk: str, *, any_author: bool = False) -> Summary | None:
        """None if there is none, or a later clear. Raises Unreadable."""
        snapshot = await self.snapshot(hk, any_author=any_author)
        if snapshot.summary is None:
            _raise_unread(unread for unread in snapshot.unread if unread.event.kind == Summary.kind)
            return None
        return snapshot.summary.record

    async def tools(
        self, hk: str, limit: int | None = None, *, any_author: bool = False
    ) -> list[ToolCall]:
        """Tool calls after the latest clear, newest first, at most `limit`."""
        snapshot = await self.snapshot(hk, any_author=any_author)
        return [row.record for row in snapshot.tools[:limit]]

    async def clears(self, hk: str, *, any_author: bool = False) -> list[Clear]:
        """Newest first."""
        snapshot = await self.snapshot(hk, any_author=any_author)
        return [row.record for row in snapshot.clears]

    async def snapshot(self, hk: str, *, any_author: bool = False) -> Snapshot:
        """The memory of one history key (A-15)."""
        events = await self.read(await self._filter(hk, any_author=any_author))
        author = self._author(any_author=any_author)
        return self._fold_of(events).snapshot(hk, author, reader=self.pubkey)

    async def watch(self, hk: str, *, any_author: bool = False) -> AsyncIterator[Snapshot]:
        """The snapshot, then a new one after each change, or after several that came together.

        Continues across reconnects. If the relay is unreachable at first, the cached snapshot comes
        first.
        """
        author = self._author(any_author=any_author)
        if self._cache is not None and not self.is_online:
            yield await self.snapshot(hk, any_author=any_author)
            await self._wait_online()
        wanted = await self._filter(hk, any_author=any_author)
        shown: Snapshot | None = None

        async def read() -> Fold:
            return self._fold_of(await self.read(wanted))

        async with aclosing(self._folds(wanted, read)) as folds:
            async for fold, _ in folds:
                snapshot = fold.snapshot(hk, author, reader=self.pubkey)
                if snapshot != shown:
                    yield snapshot
                shown = snapshot

    async def _folds(
        self, wanted: Filter, read: Callable[[], Awaitable[Fold]]
    ) -> AsyncGenerator[tuple[Fold, str | None], None]:
        """What `read` gives, then the fold after each change, with the history key that changed;
        None: any. Of changes that arrive faster than they are told, some are told together: a
        snapshot takes as long as there are records, of whoever may write them.

        It is read again after a deletion of one of its records, when a record expires, after a
        reconnection, and every ABSENCE_S: what an admin deleted, or a banned author wrote, is not
        told. While that is due or fails, nothing is yielded.
        """
        is_due, is_stale, clock = asyncio.Event(), False, asyncio.get_running_loop().time
        live = structs.replace(wanted, limit=0)
        async with self._client.subscribe(
            live, self._deletions(wanted), on_resumed=is_due.set
        ) as events:
            fold, read_at = await read(), clock() + ABSENCE_S
            yield fold, None
            changed, told_at = dict[str, None](), clock()
            while True:
                wait_s = read_at - clock()
                if not is_stale:
                    wait_s = min(wait_s, self._until_expiry(fold))
                event = await _next_within(wait_s, events, is_due)
                if is_due.is_set():
                    is_due.clear()
                    read_at = clock()
                if event is not None and event.kind == kinds.DELETION:
                    with suppress(OSError):
                        await self._drop_deleted(event)  # it may name another history key
                    if fold.is_named_by(event):
                        is_stale, read_at = True, min(read_at, clock() + _JOIN_S)
                elif event is not None and await self._undeleted([event]):
                    hk = fold.apply(event)
                    changed |= {} if hk is None else {hk: None}
                if clock() >= read_at or (not is_stale and self._until_expiry(fold) <= 0):
                    is_stale, read_at = True, clock() + _RETRY_S
                    with suppress(ClientError):
                        fold, read_at = await read(), clock() + ABSENCE_S
                        is_stale = False
                    if not is_stale:
                        yield fold, None
                        changed, told_at = {}, clock()
                elif not is_stale and (not events.has_more or clock() >= told_at + _JOIN_S):
                    for hk in changed:
                        yield fold, hk
                    changed, told_at = {}, clock()

    def _until_expiry(self, fold: Fold) -> float:
        """Seconds until the first of the records expires."""
        return math.inf if fold.expires_at is None else fold.expires_at - self._client.now()

    async def rehydrate(
        self,
        path: Path,
        *,
        any_author: bool = False,
        progress: Callable[[int], None] = lambda read: None,
    ) -> Rehydrated:
        """Write all memory into the tables of an SQLite file, which may exist (A-17).

        With `any_author` the texts of others name their author, since its agent reads the tables.
        `progress` is called with the number of events read. Rows that were written from an event
        which the relay no longer gives are removed. Raises TablesUnusable.
        """
        fold = await self.fold(any_author=any_author, progress=progress)
        author = self._author(any_author=any_author)
        snapshots = [fold.snapshot(hk, author, reader=self.pubkey) for hk in fold.history_keys()]
        gone = await self._gone(path, snapshots)
        rows = await asyncio.to_thread(replace_rows, path, snapshots, self.url, gone)
        return Rehydrated(rows, tuple(fold.unread()))

    async def _gone(self, path: Path, snapshots: Sequence[Snapshot]) -> list[str]:
        """Events that rows were written from, and the relay no longer gives: deleted, or of an
        author who was banned. Also those whose deletion waits for the relay."""
        written = await asyncio.to_thread(event_ids, path, self.url)
        queued = {event.id for event in await self.queued({"kinds": sorted(_KINDS)})}
        asked = written - queued - ids_of(snapshots)
        deletions = await self.queued({"kinds": [kinds.DELETION]})
        deleted = asked & {id_ for each in deletions for id_ in each.tag_values("e")}
        document, rest = await self._information(), sorted(asked - deleted)
        return [*deleted, *await withdrawn(self._client, self.pubkey, document, rest)]

    async def follow_tables(
        self, path: Path, *, any_author: bool = False
    ) -> AsyncIterator[Followed]:
        """`rehydrate`, then keep the tables current, through reconnects: yields what was written,
        first for all history keys, then for those that changed. Raises TablesUnusable."""
        author = self._author(any_author=any_author)
        wanted = Filter(kinds=_KINDS, authors=None if author is None else frozenset({author}))

        gone: Sequence[str] = ()
        skipped: tuple[UnreadableRecord, ...] | None = None

        async def read() -> Fold:
            nonlocal gone
            fold = await self.fold(any_author=any_author)
            gone = await self._gone(path, snapshots(fold, fold.history_keys()))
            return fold

        def snapshots(fold: Fold, keys: Iterable[str]) -> list[Snapshot]:
            return [fold.snapshot(hk, author, reader=self.pubkey) for hk in keys]

        async with aclosing(self._folds(wanted, read)) as folds:
            async for fold, hk in folds:
                current = snapshots(fold, fold.history_keys() if hk is None else [hk])
                removed = gone if hk is None else ()
                rows = await asyncio.to_thread(replace_rows, path, current, self.url, removed)
                skipped = tuple(fold.unread()) if skipped is None else ()
                yield Followed(hk, rows, skipped)

    def _deletions(self, wanted: Filter) -> Filter:
        since = self._client.now() - OVERLAP_S
        return Filter(kinds=frozenset({kinds.DELETION}), authors=wanted.authors, since=since)

    async def import_tables(
        self, path: Path, *, progress: Callable[[int, int], None] = lambda sent, total: None
    ) -> Imported:
        """Publish the rows of an agent's SQLite file with their own times.

        Idempotent. `progress` is called with the rows sent and their total. Raises TablesUnusable,
        and PublishRefused for a key that may not write.
        """
        total = await number_of_rows(path)
        stored = await self._replaceables()
        sent: Counter[int] = Counter()
        skipped: list[str] = []

        async def events() -> AsyncGenerator[Event, None]:
            number = 0
            async with aclosing(rows_in(path)) as rows:
                async for row in rows:
                    number += 1
                    progress(number, total)
                    if isinstance(row, Unusable):
                        skipped.append(f"{row.table}: {row.why}")
                        continue
                    sent[row.kind] += 1
                    if stored.get((row.kind, row.history_key)) != row:
                        yield self.signed(self._draft(row))

        async with aclosing(events()) as some:
            report = await self._client.publish_many(some)
        for refusal in report.refused:
            sent[refusal.event.kind] -= 1
            skipped.append(str(refusal))
        if not any(sent.values()):
            for refusal in report.refused:
                if refusal.prefix == Prefix.RESTRICTED:
                    raise refusal
        return Imported(Replaced(*(sent[r.kind] for r in TABLES.values())), tuple(skipped))

    async def _replaceables(self) -> dict[tuple[int, str], Record]:
        """Preferences and summaries at the relay. Encrypting them again would change their ids."""
        wanted = Filter(
            kinds=frozenset({kinds.PREFERENCE, kinds.SUMMARY}), authors=frozenset({self.pubkey})
        )
        fold = self._fold_of([event async for page in self.all_of(wanted) for event in page])
        snapshots = [fold.snapshot(hk, self.pubkey) for hk in fold.history_keys()]
        rows = [row for s in snapshots for row in (s.preference, s.summary) if row is not None]
        return {
            (row.record.kind, row.record.history_key): replace(row.record, more={}) for row in rows
        }

    async def fold(
        self,
        *,
        any_author: bool = False,
        progress: Callable[[int], None] = lambda read: None,
    ) -> Fold:
        """All records at the relay and in the spool, decoded and folded."""
        author = self._author(any_author=any_author)
        wanted = Filter(kinds=_KINDS, authors=None if author is None else frozenset({author}))
        fold = self._fold_of(await self.queued(wanted))
        number = 0
        with _gc_paused():
            async for events in self.all_of(wanted):
                for event in events:
                    fold.apply(event)
                number += len(events)
                progress(number)
        return fold

    async def _stored(self, kind: type[R], hk: str) -> R | None:
        """The stored version of this key's own record. Raises Unreadable."""
        if kind is Subscriptions:  # under any `d`
            wanted = structs.replace(
                await self._filter(hk, any_author=False), kinds=frozenset({kind.kind})
            )
        else:
            wanted = address_filter(kind.kind, self.pubkey, f"{hk}:{D_ENDS[kind.kind]}")
        snapshot = self._fold_of(await self.read(wanted)).snapshot(hk, self.pubkey)
        _raise_unread(snapshot.unread)
        rows = snapshot.preference, snapshot.summary, snapshot.subscriptions
        found = [row.record for row in rows if row is not None]
        return next((record for record in found if isinstance(record, kind)), None)

    async def _filter(self, hk: str, *, any_author: bool) -> Filter:
        author = self._author(any_author=any_author)
        tags: tuple[tuple[str, frozenset[str]], ...] = (("hk", frozenset({hk})),)
        if await self.offers("index_tags", "hk"):
            self.shortfall = ""
        else:
            tags = ()
            if self.is_online:
                self.shortfall = (
                    f"{self.url} does not index #hk: all Aman records are read each time"
                )
        authors = None if author is None else frozenset({author})
        return Filter(kinds=_KINDS, authors=authors, tags=tags)

    def _author(self, *, any_author: bool) -> str | None:
        return None if any_author else self.pubkey

    def _fold_of(self, events: Iterable[Event]) -> Fold:
        fold = Fold(self._key, self._client.now())
        for event in events:
            fold.apply(event)
        return fold

    # -- without a relay --------------------------------------------------------------------------

    @staticmethod
    def payload_hash(obj: Mapping[str, object]) -> str:
        """SHA-256 of the compact JSON, 64 hex (A-02)."""
        return records.payload_hash(obj)

    @staticmethod
    def seal(obj: Mapping[str, object], key: str | bytes, nonce: bytes | None = None) -> str:
        """Content of an encrypted record (A-23). Raises UserError, Invalid."""
        shared = shared_key(key)
        assert shared is not None
        if nonce is None:
            nonce = secrets.token_bytes(secretbox.NONCE_BYTES)
        return secretbox.seal(compact(obj), shared.key, nonce)

    @staticmethod
    def open_sealed(text: str, key: str | bytes) -> dict[str, object]:
        """Payload of an encrypted record's content. Raises UserError, Invalid."""
        shared = shared_key(key)
        assert shared is not None
        payload = object_in(secretbox.unseal(text, shared.key))
        if payload is None:
            raise Invalid("the decrypted content is not a JSON object")
        return payload

    @staticmethod
    def format_prompt(snapshot: Snapshot, **policy: Any) -> str | None:
        """The snapshot as a text block for a model; None if it is empty (A-28).

        `policy`: fields of PromptPolicy; `privacy` may be a name, and may be given as `policy`.
        """
        if "policy" in policy:
            policy["privacy"] = policy.pop("policy")
        if "privacy" in policy:
            policy["privacy"] = Privacy(policy["privacy"])
        return prompt.format_prompt(snapshot, PromptPolicy(**policy))


@contextmanager
def _gc_paused() -> Iterator[None]:
    """Pauses garbage collection while many long-lived objects are created: it would take a fifth of
    the time. For some seconds at most: the relay decides how long the whole takes."""
    if not gc.isenabled():
        yield
        return
    gc.disable()
    ending = asyncio.get_running_loop().call_later(_GC_PAUSE_S, gc.enable)
    try:
        yield
    finally:
        ending.cancel()
        gc.enable()


async def _next_within(seconds: float, events: Subscription, is_due: asyncio.Event) -> Event | None:
    """The next event; None: after so many seconds, or when `is_due` is set, there is none."""
    coming, due = asyncio.ensure_future(anext(events)), asyncio.ensure_future(is_due.wait())
    try:
        await asyncio.wait([coming, due], timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
        return coming.result() if coming.done() else None
    finally:
        coming.cancel()
        due.cancel()


def _raise_unread(unread: Iterable[UnreadableRecord]) -> None:
    for one in unread:
        raise Unreadable(f"event {one.event.id[:12]}…: {one.why}")
