"""Writer: dates, signs, spools and publishes the records of a memory system.

One key, one relay. Two versions of a record never have the same time (A-10, S-24). With a spool a
write survives an unreachable relay and the end of the program; without one it fails at once.

Invariants, with a spool: a write is durable before it is sent, and the caller's own task sends it
and gets the answer. What remains on disk after that, also from earlier runs, is the backlog: a task
sends it in order while the relay is connected, and no later write overtakes it. An error of the
disk delays the task, and does not end it; a damaged file ends it. What the relay
refuses for a time is overtaken, but for a deletion by the versions with edits of what it deletes.

A version with edits (see `Rebase`) names the version that it was made of: a relay that knows the
tag `made-from` refuses it if another one was stored meanwhile. It is sent from the backlog only if
the relay still has that version; else the edits are made on the stored one, and this one is sent.
One that replaced others in the spool names the version that the first of them was made of.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from contextlib import suppress
from dataclasses import dataclass
from enum import Enum
from itertools import groupby
from typing import TYPE_CHECKING, Final

from relay.client.clocks import deletes_waiting
from relay.client.errors import (
    TEMPORARY,
    ClientClosed,
    ClientError,
    PublishRefused,
    QueryClosed,
    Unanswered,
)
from relay.errors import Invalid, Prefix
from relay.memory.draft import Draft
from relay.memory.fields import whole_number
from relay.memory.snowclaw.edit_dates import noted_until, request_of_made
from relay.memory.unreadable import next_created_at
from relay.nostr.event import Address, address_of, made_from
from relay.nostr.filters import Filter
from relay.nostr.kinds import DELETION, KindClass, class_of
from relay.nostr.nip09 import named_by, targets_of

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping, Sequence

    from relay.client.cache import Cache
    from relay.client.client import Client
    from relay.client.rebase import Rebase
    from relay.client.spool import Spool, Waiting
    from relay.nostr.event import Event
    from relay.nostr.keys import SecretKey

    Make = Callable[[int], Draft]
    """A version of a record, made for its time in Unix seconds."""
    Known = Callable[[], Event | None]
    """The stored version of a record, as far as known; None: there is none."""

_SEND_BATCH: Final = 256
_MAX_KNOWN: Final = 10_000
"""Addresses."""
_MAX_ATTEMPTS: Final = 4
"""Attempts to write a version while another program writes versions of the same record."""
_MAX_RACES: Final = 200
"""The same if each finds another version that a machine of the same agent has stored."""
_ANSWER_S: Final = 5.0
"""How long a spooled write waits for the relay's answer."""
_PAUSE_S: Final = 2.0
_LOOK_S: Final = 60.0
"""Interval at which the file is read for writes of another program."""
_A_DAY_S: Final = 86_400.0


class Outcome(Enum):
    STORED = "stored"
    DUPLICATE = "duplicate"
    """The relay had it, or another event with its append-only address."""
    QUEUED = "queued"
    """In the spool until the relay is reachable."""
    KEPT_OUT = "kept out"
    """Not sent: `kept_out` of the client says why."""


@dataclass(frozen=True, slots=True)
class Written:
    event: Event
    outcome: Outcome


class Writer:
    """Started and stopped by its MemoryClient."""

    def __init__(
        self,
        client: Client,
        signer: SecretKey,
        spool: Spool | None,
        rebase: Rebase | None = None,
        cache: Cache | None = None,
        unsendable: Callable[[Sequence[Event]], Awaitable[set[str]]] | None = None,
        before_edits: Callable[[], Awaitable[None]] | None = None,
    ) -> None:
        """`rebase`: for records that hold the edits of several machines. `cache`: gets the records
        that the relay took. `unsendable`: which of the events in a backlog are dropped, by id.
        `before_edits`: called once for each connection, before such records are sent over it."""
        self._client = client
        self._signer = signer
        self._spool = spool
        self._rebase = rebase
        self._cache = cache
        self._unsendable = unsendable
        self._before_edits = before_edits
        self._prepared: asyncio.Event | None = None
        """`next_connection` of the one for which `before_edits` was called."""
        self._last: OrderedDict[tuple[int, str], int] = OrderedDict()
        """(kind, d) → time of its newest known version."""
        self._in_progress: set[str] = set()
        """Ids in the spool that a running `write` sends itself."""
        self._queued = asyncio.Event()
        """There may be a backlog that the task has not read."""
        self._caught_up = asyncio.Event()
        self._sent_to = 0
        """Position in the spool: what waits before it was refused for a time, and is sent again
        when what is behind it was sent."""
        self._task: asyncio.Task[None] | None = None

    async def start(self) -> None:
        if self._spool is not None:
            for event in (await asyncio.to_thread(self._spool.waiting))[-_MAX_KNOWN:]:
                self.note_stored(event)
            self._task = asyncio.create_task(self._send_backlog(self._spool))

    async def stop(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])

    def look_again(self) -> None:
        """There is more in the spool."""
        self._caught_up.clear()
        self._queued.set()

    def knows(self, kind: int, d: str) -> bool:
        """Whether a version of this address is known."""
        return (kind, d) in self._last

    def note_stored(self, event: Event) -> None:
        """Record a stored version, or a deletion of versions: the next one will be newer."""
        if event.pubkey != self._signer.pubkey:
            return
        if event.kind == DELETION:
            for address in map(address_of, event.tag_values("a")):
                if address is not None and address.pubkey == event.pubkey:
                    self.note_time(address.kind, address.d, event.created_at)
        elif class_of(event.kind) is not KindClass.REGULAR:
            # A relay may order by `ts`, whatever `created_at` is.
            at = max(event.created_at, whole_number(event.tag("ts")) or 0)
            self.note_time(event.kind, event.d, at)

    def note_time(self, kind: int, d: str, at: int) -> None:
        self._last[kind, d] = max(at, self._last.pop((kind, d), 0))
        if len(self._last) > _MAX_KNOWN:
            # Evicted addresses are queried from the relay when needed.
            self._last.popitem(last=False)

    async def write(self, kind: int, d: str, make: Make, base: Known | None = None) -> Written:
        """Sign and publish one record, as the newest version of its address.

        `base`: gives the version that `make` edits; a relay that knows the tag `made-from` refuses
        the new one if another version is stored, or if that one is deleted, and it is made again
        from what is stored. None: what is stored does not matter.

        Raises PublishRefused; Unanswered (without a spool); SpoolFull, SpoolDamaged, OSError.
        """
        rebase = self._rebase
        if rebase is not None and not rebase.holds_edits(kind, d):
            rebase = None
        if rebase is not None and self._spool is not None and self._client.is_connected:
            # It is to be made of what the backlog makes of the last version.
            with suppress(TimeoutError):
                async with asyncio.timeout(_ANSWER_S):
                    await self._caught_up.wait()
        if rebase is not None and self._client.is_connected:
            with suppress(ClientError):
                await self._prepare()
        attempts, before, refused = 0, None, None
        for _ in range(_MAX_RACES):
            known = self._last.get((kind, d))
            draft = make(next_created_at(self._client.now(), known))
            if base is not None:
                version = base()
                draft = draft._replace(tags=[*draft.tags, made_from(version)])
                attempts = 0 if version != before else attempts  # others go on writing
                before = version
            attempts += 1
            event = self.signed(draft)
            edited = None if rebase is None else rebase.base_of(event)
            dates = None if rebase is None else rebase.dates(event, edited)
            self.note_stored(event)
            if rebase is not None:
                rebase.note_sent(event)
            try:
                outcome = await self._send_signed(
                    event, has_edits=rebase is not None, base=edited, dates=dates
                )
                if outcome is Outcome.DUPLICATE:
                    # Just created, so it was sent by us with the OK lost, or by a program that
                    # shares the spool.
                    outcome = Outcome.STORED
                return Written(event, outcome)
            except PublishRefused as refusal:
                if attempts == _MAX_ATTEMPTS or not (_is_older(refusal) or refusal.is_deleted):
                    raise
                refused = refusal
                if refusal.is_base_deleted and before is not None and self._rebase is not None:
                    self._rebase.drop(before)
            if _has_changed(refused) and self._last.get((kind, d)) == event.created_at:
                self._last[kind, d] = known or 0  # the next one may have this time
            with suppress(ClientError):  # the next attempt shows the result
                await self._query_stored(kind, d)
        assert refused is not None
        raise refused

    async def publish(self, draft: Draft) -> Written:
        """Sign and publish an append-only record or a deletion. Raises as `write` does."""
        return await self.send(self.signed(draft))

    async def send(self, event: Event) -> Written:
        """Publish a signed event, by any key. Raises as `write` does."""
        return Written(event, await self._send_signed(event))

    async def overtake(self, event: Event) -> None:
        """Publish a signed event before what waits. Raises PublishRefused, Unanswered."""
        await self._publish_event(event)

    async def _prepare(self) -> None:
        """Raises ClientError."""
        connection = self._client.next_connection
        if self._before_edits is None or self._prepared is connection:
            return
        with suppress(QueryClosed):  # this key may not read what it asks for
            await self._before_edits()
        self._prepared = connection

    def signed(self, draft: Draft) -> Event:
        event = self._signer.sign(draft.kind, draft.tags, draft.content, draft.created_at)
        if event.kind == DELETION and self._rebase is not None:
            self._rebase.note_deletion(event)  # the relay may send it back before it answers
        return event

    async def _query_stored(self, kind: int, d: str) -> None:
        stored = address_filter(kind, self._signer.pubkey, d)
        deletions = _deletions_of(kind, self._signer.pubkey, d)
        found = await self._client.query(stored, deletions)
        for event in found if self._rebase is None else await self._rebase.undeleted(found):
            self.note_stored(event)
            if self._rebase is not None:
                self._rebase.take(event)

    async def _send_signed(
        self,
        event: Event,
        *,
        has_edits: bool = False,
        base: Event | None = None,
        dates: Mapping[str, int] | None = None,
    ) -> Outcome:
        if self._spool is None:
            return await self._publish_event(event)
        if self._task is None or self._task.done():
            raise self._stop_error()
        self._in_progress.add(event.id)
        outcome = Outcome.QUEUED
        try:
            replaced = await asyncio.to_thread(
                self._spool.put, event, has_edits=has_edits, base=base, dates=dates
            )
            is_first = not replaced and not (
                has_edits and await self._waits_for_deletion(event, self._spool)
            )
            if self._client.is_connected and is_first:
                outcome = await self._publish_spooled(event, self._spool)
        finally:
            self._in_progress.discard(event.id)
            if outcome is Outcome.QUEUED:
                self.look_again()
        return outcome

    async def _publish_spooled(self, event: Event, spool: Spool) -> Outcome:
        """Publish a spooled event, and remove it from the spool when the answer is final."""
        try:
            async with asyncio.timeout(_ANSWER_S):
                await self._caught_up.wait()
                outcome = await self._publish_event(event)
        except (TimeoutError, Unanswered):
            return Outcome.QUEUED
        except PublishRefused as refusal:
            if refusal.prefix in TEMPORARY:
                return Outcome.QUEUED
            await asyncio.to_thread(spool.done, [event.id])
            raise
        await asyncio.to_thread(spool.done, [event.id])
        return outcome

    async def _publish_event(self, event: Event) -> Outcome:
        reply = await self._client.publish(event)
        if event.kind == DELETION and self._rebase is not None:
            # Without a spool nobody would try again, and the deletion is done.
            with suppress(*((ClientError,) if self._spool is None else ())):
                await self._delete_made_of(event, self._rebase)
        if self._cache is not None and class_of(event.kind) is KindClass.ADDRESSABLE:
            # Before it leaves the spool: a start without the relay reads it from one of the two.
            with suppress(OSError):
                await asyncio.to_thread(self._cache.change, [event], ())
        return Outcome.DUPLICATE if reply.is_duplicate else Outcome.STORED

    async def _delete_made_of(self, deletion: Event, rebase: Rebase) -> None:
        """Delete, too, what was made of the deleted versions before the relay had the deletion, and
        each version up to that: whoever has one could send it again. What was noted since then, and
        waits, is younger than the deletion, and is dated after these."""
        named, done = {*deletion.tag_values("e")}, set[str]()
        for _ in range(_MAX_ATTEMPTS):
            # Others a relay that does not delete them would give for ever.
            found = [e for e in await rebase.made_of_deleted(deletion, done) if e.id not in named]
            if not found:
                return
            for event in found:
                tags = request_of_made(event, noted_until(deletion))
                again = self.signed(Draft(DELETION, tags, "", event.created_at))
                await self._client.publish(again)
                named.add(event.id)
                done.add(again.id)
                rebase.take(again)
                if self._cache is not None:
                    with suppress(OSError):
                        await asyncio.to_thread(self._cache.delete, targets_of(again))

    async def _send_backlog(self, spool: Spool) -> None:
        with suppress(ClientClosed):
            while True:
                try:
                    await self._send_backlog_batch(spool)
                except OSError:
                    # The file is busy, or the disk full: what waits in it is sent later.
                    await asyncio.sleep(_PAUSE_S)

    async def _send_backlog_batch(self, spool: Spool) -> None:
        self._queued.clear()
        reconnected = self._client.next_connection
        number = _SEND_BATCH + len(self._in_progress)
        waiting = [
            each
            for each in await asyncio.to_thread(spool.to_send, number, self._sent_to)
            if each.event.id not in self._in_progress
        ]
        if not waiting and self._sent_to:
            self._sent_to = 0
        elif not waiting:
            if not self._queued.is_set():
                self._caught_up.set()
            # Only this program tells of its writes: another one may have left some in the file.
            await _wait_for_any(self._queued, reconnected, most_s=_LOOK_S)
        elif not self._client.is_connected:
            with suppress(Unanswered):
                await self._client.wait_connected(deadline_s=_A_DAY_S)
        elif not await self._send_batch(waiting, spool):
            if self._client.is_connected:
                self._caught_up.set()  # a temporary refusal does not block other writes
                self._sent_to = waiting[-1].position
            await asyncio.sleep(_PAUSE_S)

    async def _send_batch(self, backlog: list[Waiting], spool: Spool) -> bool:
        """Send a batch; True if every answer is final."""
        all_final = True
        # One that is queued later comes after these.
        are_deletions = bool(await asyncio.to_thread(spool.deletions))
        for has_edits, run in groupby(backlog, key=lambda each: each.has_edits):
            if has_edits:
                for each in run:  # one may be made of the one before
                    if are_deletions and await self._waits_for_deletion(each.event, spool):
                        all_final = False
                        continue
                    all_final &= await self._send_edits(each, spool)
                    if not self._client.is_connected:
                        return False
            else:
                all_final &= await self._send_events([each.event for each in run], spool)
        return all_final

    async def _send_events(self, events: list[Event], spool: Spool) -> bool:
        left = await asyncio.to_thread(spool.left_of, [event.id for event in events])
        events = [event for event in events if event.id in left]  # else deleted meanwhile
        if self._unsendable is not None:
            try:
                dropped = await self._unsendable(events)
            except ClientError:
                return False
            if dropped:
                await asyncio.to_thread(spool.done, dropped)
                events = [event for event in events if event.id not in dropped]
        answers = await asyncio.gather(*map(self._publish_event, events), return_exceptions=True)
        done: list[str] = []
        all_final = True
        for event, answer in zip(events, answers, strict=True):
            match answer:
                case Outcome():
                    done.append(event.id)
                case PublishRefused() if _is_older(answer) and not _has_changed(answer):
                    done.append(event.id)  # superseded by a newer version
                case PublishRefused() if answer.is_deleted:
                    all_final &= await self._settle_deleted(event, spool)
                case PublishRefused() if _is_final(answer):
                    await asyncio.to_thread(spool.refuse, event.id, str(answer))
                case ClientError():
                    all_final = False
                case _:
                    raise answer
        await asyncio.to_thread(spool.done, done)
        return all_final

    async def _settle_deleted(self, event: Event, spool: Spool) -> bool:
        """Drop what the relay says is deleted: its text is not to be kept. A version that was only
        dated before a deletion by a clock that is ahead is dated after it instead. False: the relay
        did not say which deletions there are, or the spool is full."""
        if event.pubkey == self._signer.pubkey and class_of(event.kind) is KindClass.ADDRESSABLE:
            try:
                await self._date_anew(event, spool)
            except ClientError:
                return False
        await asyncio.to_thread(spool.done, [event.id])
        return True

    async def _date_anew(self, event: Event, spool: Spool) -> None:
        now = self._client.now()
        found = await self._client.query(
            address_filter(event.kind, event.pubkey, event.d),
            _deletions_of(event.kind, event.pubkey, event.d),
        )
        deletions = [each for each in found if named_by(each, [event])]
        if not deletions or any(deletes_waiting(each, event, now) for each in deletions):
            return
        if any(each.kind == event.kind for each in found):
            return  # superseded by what another machine has stored since
        for each in deletions:
            self.note_stored(each)
        at = next_created_at(now, self._last.get((event.kind, event.d)))
        again = self.signed(Draft(event.kind, event.tags, event.content, at))
        self.note_stored(again)
        await asyncio.to_thread(spool.put, again)

    async def _waits_for_deletion(self, event: Event, spool: Spool) -> bool:
        """Whether a deletion of the record waits: sent before it, edits would be made again on what
        is deleted."""
        assert self._rebase is not None
        addresses = self._rebase.addresses(event)
        deletions = await asyncio.to_thread(spool.deletions)
        return any(addresses.intersection(each.tag_values("a")) for each in deletions)

    async def _send_edits(self, waiting: Waiting, spool: Spool) -> bool:
        try:
            await self._prepare()
            await self._publish_edits(waiting, spool)
        except (PublishRefused, Invalid) as refusal:
            if isinstance(refusal, PublishRefused):
                if not _is_final(refusal):
                    return False
                if refusal.is_deleted:
                    assert self._rebase is not None
                    self._rebase.drop(waiting.event)
                    await asyncio.to_thread(spool.done, [waiting.event.id])
                    return True
            await asyncio.to_thread(spool.refuse, waiting.event.id, str(refusal))
        except ClientError:
            return False
        else:
            await asyncio.to_thread(spool.done, [waiting.event.id])
        return True

    async def _publish_edits(self, waiting: Waiting, spool: Spool) -> None:
        """Publish a version, unless it is deleted; if another one was stored meanwhile, apply its
        edits to that and publish the result. Repeated, because another machine may do the same, as
        long as the stored version changes.

        Raises Invalid if the edits do not apply; else as `Client.publish`.
        """
        assert self._rebase is not None
        refused: PublishRefused | None = None
        attempts, stored, is_deleted = 0, None, False
        for _ in range(_MAX_RACES):
            version = await self._rebase.rebased(waiting, is_deleted=is_deleted)
            self._note_dated_anew(waiting.event, version or self._rebase.base_of(waiting.event))
            if version is None:
                return
            before, stored = stored, self._rebase.base_of(waiting.event)
            attempts = attempts + 1 if before == stored else 1
            if attempts > _MAX_ATTEMPTS:
                break
            self.note_stored(version)
            refused = None
            if not await asyncio.to_thread(spool.left_of, [waiting.event.id]):
                return  # deleted meanwhile
            try:
                await self._publish_event(version)
                self._rebase.replace(waiting.event, version)
            except PublishRefused as refusal:
                # If it is deleted, the deletion may be for a part of it.
                if not (_is_older(refusal) or refusal.is_deleted):
                    raise
                refused = refusal
                is_deleted = is_deleted or refusal.is_base_deleted
        if refused is not None:
            raise refused

    def _note_dated_anew(self, before: Event, version: Event | None) -> None:
        """`version` is sent instead of `before`: the next one must be newer than it, no more."""
        key = (before.kind, before.d)
        if version is not None and version.created_at < before.created_at == self._last.get(key):
            self._last[key] = version.created_at

    def _stop_error(self) -> ClientError:
        error = None
        if self._task is not None and not self._task.cancelled():
            error = self._task.exception()
        if error is None:
            return ClientClosed("use it inside its `async with`")
        stopped = ClientError(f"sending to the relay has stopped: {error}")
        stopped.__cause__ = error
        return stopped


async def _wait_for_any(*events: asyncio.Event, most_s: float) -> None:
    waits = [asyncio.create_task(event.wait()) for event in events]
    try:
        await asyncio.wait(waits, timeout=most_s, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for wait in waits:
            wait.cancel()


def address_filter(kind: int, pubkey: str, d: str) -> Filter:
    """The versions of one addressable record."""
    return Filter(
        kinds=frozenset({kind}), authors=frozenset({pubkey}), tags=(("d", frozenset({d})),)
    )


def _deletions_of(kind: int, pubkey: str, d: str) -> Filter:
    """The kind 5s of its author that name the address of a record."""
    address = str(Address(pubkey, kind, d))
    return Filter(
        kinds=frozenset({DELETION}),
        authors=frozenset({pubkey}),
        tags=(("a", frozenset({address})),),
    )


def _is_older(refusal: PublishRefused) -> bool:
    """Whether it must be made again: an equal or newer version is stored, or see `_has_changed`."""
    return refusal.prefix == Prefix.DUPLICATE


def _has_changed(refusal: PublishRefused) -> bool:
    """Whether another version is stored than it was made from, or that one is deleted."""
    return refusal.is_rival or refusal.is_base_deleted


def _is_final(refusal: PublishRefused) -> bool:
    return refusal.prefix not in {*TEMPORARY, Prefix.AUTH_REQUIRED}
