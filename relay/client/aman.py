"""Aman: the memory of a messaging agent, by history key: preference, summary, tools, clears.

    async with Aman("ws://127.0.0.1:7777", key, folder=Path("~/agent").expanduser()) as aman:
        await aman.set_preference("user-1", "prefer_speed")
        print(aman.format_prompt(await aman.snapshot("user-1")))

MEMORY.md §2. What one key wrote is one memory; `any_author=True` takes that of all together, as the
original's own projection does (A-13). With a secretbox key every write is encrypted.
"""

from __future__ import annotations

import asyncio
import gc
import secrets
from collections import Counter
from contextlib import contextmanager, suppress
from dataclasses import replace
from typing import TYPE_CHECKING, Any, ClassVar, Final, NamedTuple, TypeVar

from relay.client.aman_order import ClearOrder
from relay.client.aman_tables import (
    TABLES,
    Replaced,
    Unusable,
    number_of_rows,
    replace_rows,
    rows_in,
)
from relay.client.errors import ClientError
from relay.client.memory import MemoryClient
from relay.client.resume import OVERLAP_S
from relay.client.shared_key import shared_key
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
from relay.memory.fields import compact, object_in
from relay.nostr import kinds, secretbox
from relay.nostr.filters import Filter

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping
    from pathlib import Path

    from relay.client.client import Client
    from relay.client.writer import Written
    from relay.memory.aman.fold import Snapshot
    from relay.memory.aman.records import Record
    from relay.memory.draft import Draft
    from relay.memory.unreadable import UnreadableRecord
    from relay.nostr.event import Event
    from relay.nostr.keys import SecretKey

    Replaceable = Preference | Summary | Subscriptions
    R = TypeVar("R", bound=Replaceable)

_KINDS: Final = frozenset(LABELS)


class Unreadable(ClientError):
    """The record that was asked for is there and cannot be read: locked, or no record at all."""


class Rehydrated(NamedTuple):
    """What `rehydrate` wrote, and what it could not read."""

    rows: Replaced
    skipped: tuple[UnreadableRecord, ...]


class Imported(NamedTuple):
    """What `import_tables` brought to the relay, or found there."""

    rows: Replaced
    skipped: tuple[str, ...]
    """Why, for each row that could not be sent."""


class Aman(MemoryClient):
    """Every writing method returns when the relay has the record (or it is on disk: see `folder`)
    and raises PublishRefused; every reading one reports what it cannot read and goes on (A-22)."""

    NAME: ClassVar[str] = "aman"

    def __init__(
        self,
        relay: Client | str,
        signer: SecretKey,
        secretbox_key: str | bytes | None = None,
        *,
        folder: Path | None = None,
    ) -> None:
        """`secretbox_key`: 32 bytes or a spelling of them; None: what NOSTR_SECRETBOX_KEY says.

        Raises UserError for a key that is none (A-24).
        """
        super().__init__(relay, signer, folder=folder)
        self._key = shared_key(secretbox_key)
        self._order = ClearOrder()
        self.shortfall = ""
        """What this relay cannot do and is done without; empty when it does all (G-30)."""

    # -- writing ----------------------------------------------------------------------------------

    async def set_preference(self, hk: str, text: str) -> Written:
        return await self._replace(Preference(hk, text, 0))

    async def set_summary(self, hk: str, text: str, message_count: int) -> Written:
        return await self._replace(Summary(hk, text, message_count, 0))

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
        """Append one entry; the same one again is a duplicate. Content is cut at 2,000 characters.

        `created_at`: Unix seconds; None: now.
        """
        at = self._order.after_clear(hk, self._client.now()) if created_at is None else created_at
        call = ToolCall(hk, tool_name, success, tool_content(content), sender_id, group_id, at)
        return await self.append(call)

    async def clear(self, hk: str, sender_id: str | None = None) -> Written:
        """From here on the summary and the tools written so far are out of the snapshot (A-15)."""
        at = self._order.clearing(hk, self._client.now())
        return await self.append(Clear(hk, sender_id, at))

    async def append(self, record: ToolCall | Clear) -> Written:
        """One entry as it is, with its own time."""
        return await self.publish(self._draft(record))

    async def _replace(self, record: Replaceable) -> Written:
        """A new version, with the unknown fields of the stored one."""
        hk = record.history_key
        with suppress(Unreadable):
            stored = await self._stored(type(record), hk)
            if stored is not None:
                record = replace(record, more=stored.more)

        def dated(at: int) -> Draft:
            if isinstance(record, Summary):
                at = self._order.after_clear(hk, at)
            return self._draft(replace(record, updated_at=at))

        return await self.write(record.kind, f"{hk}:{D_ENDS[record.kind]}", dated)

    def _draft(self, record: Record) -> Draft:
        if self._key is None:
            return draft_of(record)
        return encrypted_draft_of(record, self._key.key, secrets.token_bytes(secretbox.NONCE_BYTES))

    # -- reading ----------------------------------------------------------------------------------

    async def get_preference(self, hk: str) -> Preference | None:
        """Raises Unreadable."""
        return await self._stored(Preference, hk)

    async def get_subscriptions(self, hk: str) -> Subscriptions | None:
        """Raises Unreadable."""
        return await self._stored(Subscriptions, hk)

    async def get_summary(self, hk: str, *, any_author: bool = False) -> Summary | None:
        """None when there is none, or a clear came after it. Raises Unreadable."""
        snapshot = await self.snapshot(hk, any_author=any_author)
        if snapshot.summary is None:
            _raise_unread(unread for unread in snapshot.unread if unread.event.kind == Summary.kind)
            return None
        return snapshot.summary.record

    async def tools(
        self, hk: str, limit: int | None = None, *, any_author: bool = False
    ) -> list[ToolCall]:
        """Those after the latest clear, newest first, at most `limit`."""
        snapshot = await self.snapshot(hk, any_author=any_author)
        return [row.record for row in snapshot.tools[:limit]]

    async def clears(self, hk: str, *, any_author: bool = False) -> list[Clear]:
        """Newest first."""
        snapshot = await self.snapshot(hk, any_author=any_author)
        return [row.record for row in snapshot.clears]

    async def snapshot(self, hk: str, *, any_author: bool = False) -> Snapshot:
        """The memory under one history key (A-15)."""
        events = await self.read(await self._filter(hk, any_author=any_author))
        return self._folded(events).snapshot(hk, self._whose(any_author=any_author))

    async def watch(self, hk: str, *, any_author: bool = False) -> AsyncIterator[Snapshot]:
        """The snapshot, and again each time it changes, for as long as it is iterated.

        It lives through reconnects. While the relay is away at first, what is known of it.
        """
        author = self._whose(any_author=any_author)
        if self._cache is not None and not self.is_online:
            yield await self.snapshot(hk, any_author=any_author)
            await self._wait_online()
        wanted = await self._filter(hk, any_author=any_author)
        deletions = Filter(
            kinds=frozenset({kinds.DELETION}),
            authors=wanted.authors,
            since=self._client.now() - OVERLAP_S,
        )
        async with self._client.subscribe(wanted, deletions) as events:
            fold = self._folded([event async for event in events.stored()])
            yield fold.snapshot(hk, author)
            async for event in events:
                if event.kind == kinds.DELETION:
                    fold = self._folded(await self.read(wanted))
                elif fold.apply(event) != hk:
                    continue
                yield fold.snapshot(hk, author)

    async def rehydrate(
        self,
        path: Path,
        *,
        any_author: bool = False,
        progress: Callable[[int], None] = lambda read: None,
    ) -> Rehydrated:
        """Replay the relay into the tables of an SQLite file, which may be there already (A-17).

        `progress` is called with the number of events read so far. Raises TablesUnusable.
        """
        fold = await self.fold(any_author=any_author, progress=progress)
        author = self._whose(any_author=any_author)
        snapshots = (fold.snapshot(hk, author) for hk in fold.history_keys())
        rows = await asyncio.to_thread(replace_rows, path, snapshots, self.url)
        return Rehydrated(rows, tuple(fold.unread()))

    async def import_tables(
        self, path: Path, *, progress: Callable[[int, int], None] = lambda sent, total: None
    ) -> Imported:
        """Send the rows of an agent's SQLite file as they are, each with its own time.

        Doing it twice is doing it once. `progress` is called with the rows sent and their number.
        Raises TablesUnusable, and PublishRefused for a key that may write none of it.
        """
        total = await asyncio.to_thread(number_of_rows, path)
        stored = await self._replaceables()
        sent: Counter[int] = Counter()
        skipped: list[str] = []

        def events() -> Iterator[Event]:
            for number, row in enumerate(rows_in(path), 1):
                progress(number, total)
                if isinstance(row, Unusable):
                    skipped.append(f"{row.table}: {row.why}")
                    continue
                sent[row.kind] += 1
                if stored.get((row.kind, row.history_key)) != row:
                    yield self.signed(self._draft(row))

        report = await self._client.publish_many(events())
        for refusal in report.refused:
            sent[refusal.event.kind] -= 1
            skipped.append(str(refusal))
        if not any(sent.values()):
            for refusal in report.refused:
                if refusal.prefix == Prefix.RESTRICTED:
                    raise refusal
        return Imported(Replaced(*(sent[r.kind] for r in TABLES.values())), tuple(skipped))

    async def _replaceables(self) -> dict[tuple[int, str], Record]:
        """Preferences and summaries at the relay. Encrypted anew they would be other events."""
        wanted = Filter(
            kinds=frozenset({kinds.PREFERENCE, kinds.SUMMARY}), authors=frozenset({self.pubkey})
        )
        fold = self._folded([event async for page in self.all_of(wanted) for event in page])
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
        """Everything at the relay, with the writes that wait for it, decoded and folded."""
        author = self._whose(any_author=any_author)
        wanted = Filter(kinds=_KINDS, authors=None if author is None else frozenset({author}))
        fold = self._folded(await self.queued(wanted))
        number = 0
        with _no_collection():
            async for events in self.all_of(wanted):
                for event in events:
                    fold.apply(event)
                number += len(events)
                progress(number)
        return fold

    async def _stored(self, kind: type[R], hk: str) -> R | None:
        """The version of this key's own record that is stored. Raises Unreadable."""
        wanted = Filter(
            kinds=frozenset({kind.kind}),
            authors=frozenset({self.pubkey}),
            tags=(("d", frozenset({f"{hk}:{D_ENDS[kind.kind]}"})),),
        )
        snapshot = self._folded(await self.read(wanted)).snapshot(hk, self.pubkey)
        _raise_unread(snapshot.unread)
        rows = snapshot.preference, snapshot.summary, snapshot.subscriptions
        found = [row.record for row in rows if row is not None]
        return next((record for record in found if isinstance(record, kind)), None)

    async def _filter(self, hk: str, *, any_author: bool) -> Filter:
        author = self._whose(any_author=any_author)
        tags: tuple[tuple[str, frozenset[str]], ...] = (("hk", frozenset({hk})),)
        if await self.offers("index_tags", "hk"):
            self.shortfall = ""
        else:
            tags = ()
            if self.is_online:
                self.shortfall = (
                    f"{self.url} does not filter by #hk: everything of Aman is read each time"
                )
        authors = None if author is None else frozenset({author})
        return Filter(kinds=_KINDS, authors=authors, tags=tags)

    def _whose(self, *, any_author: bool) -> str | None:
        return None if any_author else self.pubkey

    def _folded(self, events: Iterable[Event]) -> Fold:
        fold = Fold(self._key)
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
        """The content of an encrypted record (A-23). Raises UserError, Invalid."""
        shared = shared_key(key)
        assert shared is not None
        if nonce is None:
            nonce = secrets.token_bytes(secretbox.NONCE_BYTES)
        return secretbox.seal(compact(obj), shared.key, nonce)

    @staticmethod
    def open_sealed(text: str, key: str | bytes) -> dict[str, object]:
        """The payload in the content of an encrypted record. Raises UserError, Invalid."""
        shared = shared_key(key)
        assert shared is not None
        payload = object_in(secretbox.unseal(text, shared.key))
        if payload is None:
            raise Invalid("what was sealed is not a JSON object")
        return payload

    @staticmethod
    def format_prompt(snapshot: Snapshot, **policy: Any) -> str | None:
        """The snapshot as a block for a model; None when nothing is to be said (A-28).

        `policy`: the fields of PromptPolicy; `privacy` also by its name, and also as `policy`.
        """
        if "policy" in policy:
            policy["privacy"] = policy.pop("policy")
        if "privacy" in policy:
            policy["privacy"] = Privacy(policy["privacy"])
        return prompt.format_prompt(snapshot, PromptPolicy(**policy))


@contextmanager
def _no_collection() -> Iterator[None]:
    """Many objects are made and all of them stay: looking again and again for cycles among them
    would take a fifth of the time."""
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()


def _raise_unread(unread: Iterable[UnreadableRecord]) -> None:
    for one in unread:
        raise Unreadable(f"event {one.event.id[:12]}…: {one.why}")
