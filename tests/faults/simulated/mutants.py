"""Faults of the lane, the versions and the fan-out, by name: each must be found.

A mutant is put in place of the real code while its context lasts.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import relay.lifecycle.deletion
import relay.lifecycle.versions
import relay.read.query
import relay.write.batch
from relay.nostr import messages
from relay.read.fanout import Fanout, Subscription
from relay.read.query import QueryRunner
from relay.state import RelayState
from relay.write.batch import Batch
from relay.write.ingest import Ingest
from relay.write.lane import Lane

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from relay.access.visibility import Visibility
    from tests.harness.mutation import Patch


def _ok_before_the_commit() -> Sequence[Patch]:
    answer = Ingest._answer
    return [(Ingest, "_answer", lambda self, items, _: answer(self, items, None))]


def _loses_the_last_of_a_batch() -> Sequence[Patch]:
    commit = Ingest._commit

    async def without_the_last(self: Ingest, batch: Sequence[Any]) -> None:
        await commit(self, batch[:-1] if len(batch) > 2 else batch)

    return [(Ingest, "_commit", without_the_last)]


def _commits_the_newest_first() -> Sequence[Patch]:
    put = Lane.put

    def at_the_front(self: Lane[Any], item: Any) -> bool:
        is_taken = put(self, item)
        if is_taken:
            self._queues[self._turn_of(item)]._lines[self._line_of(item)].rotate(1)
        return is_taken

    return [(Lane, "put", at_the_front)]


def _adopts_what_was_not_committed() -> Sequence[Patch]:
    begin, decide = Batch.__init__, Batch.decide
    states: list[Any] = []

    def noting(self: Batch, items: Any, state: Any, *args: Any, **named: Any) -> None:
        begin(self, items, state, *args, **named)
        states[:] = [state]

    def adopting(self: Batch, found: Any) -> Any:
        plan = decide(self, found)
        states[0].adopt(self.groups)
        return plan

    return [(Batch, "__init__", noting), (Batch, "decide", adopting)]


def _tries_a_failed_batch_again() -> Sequence[Patch]:
    answer = Ingest._answer

    def and_again(self: Ingest, items: Sequence[Any], fault: Any) -> None:
        answer(self, items, fault)
        if fault is not None:
            for item in items:
                self._lane.put(item)

    return [(Ingest, "_answer", and_again)]


def _forgets_a_version_of_the_same_batch() -> Sequence[Patch]:
    add = relay.lifecycle.versions.add_row

    def add_row(
        event: Any, slot: Any, keep: Any, group: Any, found: Any, *more: Any, **kw: Any
    ) -> Any:
        before = None if slot is None else found.slots.get(slot)
        row = add(event, slot, keep, group, found, *more, **kw)
        if slot is not None:
            found.slots.pop(slot)
            if before is not None:
                found.slots[slot] = before
        return row

    return [(relay.write.batch, "add_row", add_row)]


def _keeps_the_higher_id() -> Sequence[Patch]:
    is_older = relay.lifecycle.versions.is_older

    def reversed_(event: Any, version: int, keep: Any, holder: Any, tie: Any) -> bool:
        if version == holder.version:
            return bool(event.id < holder.event.id)
        return is_older(event, version, keep, holder, tie)

    return [(relay.lifecycle.versions, "is_older", reversed_)]


def _keeps_old_versions() -> Sequence[Patch]:
    return [(relay.lifecycle.versions, "take_out", lambda *_: None)]


def _forgets_deletions() -> Sequence[Patch]:
    return [(relay.lifecycle.deletion, "add_tombstone", lambda *_: None)]


def _deletes_newer_versions_too() -> Sequence[Patch]:
    deleted_rows = relay.lifecycle.deletion.deleted_rows

    def all_of_the_address(event: Any, targets: Any, found: Any) -> list[Any]:
        rows = deleted_rows(event, targets, found)
        more = [found.slots[slot] for slot in targets.slots if slot in found.slots]
        return list({row.seq: row for row in (*rows, *more)}.values())

    return [(relay.lifecycle.deletion, "deleted_rows", all_of_the_address)]


def _sends_to_whoever_asks() -> Sequence[Patch]:
    return [(RelayState, "is_public", lambda *_: True)]


def _sends_what_the_batch_removed() -> Sequence[Patch]:
    return [(Batch, "_left", lambda self: self.rows)]


def _asks_for_rights_once() -> Sequence[Patch]:
    reading = Fanout._reading
    known: dict[Any, Any] = {}

    def once(self: Fanout, viewer: Any, row: Any, links: Any) -> Any:
        key = id(self), viewer, row.group
        if row.group is None:
            return reading(self, viewer, row, links)
        if key not in known:
            known[key] = reading(self, viewer, row, links)
        return known[key]

    return [(Fanout, "_reading", once)]


def _registers_after_the_scan() -> Sequence[Patch]:
    finish = QueryRunner._finish
    registered: set[int] = set()

    def late(
        self: QueryRunner, peer: Any, subscription: Subscription, visibility: Visibility
    ) -> bool:
        registered.add(id(subscription))
        self._fanout._live.add(subscription, subscription.filters)
        return finish(self, peer, subscription, visibility)

    def close(self: Fanout, subscription: Subscription) -> None:
        if id(subscription) in registered:
            registered.remove(id(subscription))
            self._live.remove(subscription, subscription.filters)
        subscription.is_closed = True
        subscription.end_backlog()

    return [
        (Fanout, "open", lambda *_: None),
        (QueryRunner, "_finish", late),
        (Fanout, "close", close),
    ]


def _reads_what_comes_live_too() -> Sequence[Patch]:
    class Endless(Subscription):
        __slots__ = ()

        def __init__(self, *args: Any, **kw: Any) -> None:
            super().__init__(*args, **kw)
            self.cursor = 1 << 60

    return [(relay.read.query, "Subscription", Endless)]


def _sends_once_per_condition() -> Sequence[Patch]:
    number = property(lambda _: 0, lambda _self, _number: None)
    seq = property(lambda self: self.cursor, lambda _self, _seq: None)
    return [(Subscription, "last_delivery", number), (Subscription, "last_seq", seq)]


def _says_eose_first() -> Sequence[Patch]:
    async def eose_first(self: QueryRunner, subscription: Any, peer: Any, is_open: Any) -> bool:
        visibility = self._state.visibility(peer.reader.viewer)
        is_finished = self._finish(peer, subscription, visibility)
        async for raws, _ in self._pages(subscription, peer):
            if is_open(subscription):
                peer.outbox.put_each(subscription.head, raws, messages.EVENT_END)
                await peer.drained()
        return is_finished

    return [(QueryRunner, "catch_up", eose_first)]


def _reads_by_rights_of_before() -> Sequence[Patch]:
    return [(RelayState, "knows", lambda *_: True)]


def _does_not_close() -> Sequence[Patch]:
    return [(Fanout, "close", lambda *_: None)]


MUTANTS: Final[dict[str, Callable[[], Sequence[Patch]]]] = {
    "lane: OK although the commit failed": _ok_before_the_commit,
    "lane: loses the last of a batch": _loses_the_last_of_a_batch,
    "lane: commits the newest first": _commits_the_newest_first,
    "lane: adopts what was not committed": _adopts_what_was_not_committed,
    "lane: tries a failed batch again": _tries_a_failed_batch_again,
    "versions: forgets those of the same batch": _forgets_a_version_of_the_same_batch,
    "versions: keeps the higher id": _keeps_the_higher_id,
    "versions: keeps old ones": _keeps_old_versions,
    "versions: forgets deletions": _forgets_deletions,
    "versions: deletes newer ones too": _deletes_newer_versions_too,
    "fan-out: sends to whoever asks": _sends_to_whoever_asks,
    "fan-out: asks for rights once": _asks_for_rights_once,
    "fan-out: registers after the scan": _registers_after_the_scan,
    "fan-out: reads what comes live too": _reads_what_comes_live_too,
    "fan-out: sends once per condition": _sends_once_per_condition,
    "fan-out: says EOSE first": _says_eose_first,
    "reads: by rights of before the rows": _reads_by_rights_of_before,
    "fan-out: does not close": _does_not_close,
    "fan-out: sends what the batch removed": _sends_what_the_batch_removed,
}
