"""One of several relays, broken on purpose: `python -m tests.faults.chaos.mutants NAME serve …`.

Each is found by what a disturbance brings about.
"""

from __future__ import annotations

import asyncio
import sys
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

from relay.errors import StoreFault
from relay.launcher import main
from relay.nostr.kinds import GROUP_MEMBERS, REMOVE_USER
from relay.read import query
from relay.read.fanout import Subscription
from relay.storage.postgres import connections
from relay.storage.postgres.listening import Touch
from relay.storage.postgres.sql.named import QUERIES
from relay.storage.postgres.store import PostgresStore
from relay.storage.postgres.writer import Writer
from relay.write import following, replay
from relay.write.batch import Batch
from relay.write.commands import WriteEvent
from relay.write.delivery import Delivery
from relay.write.ingest import Ingest
from tests.faults import mutants as of_one_relay

if TYPE_CHECKING:
    from collections.abc import Sequence

    from relay.errors import Reject
    from relay.groups.group import Groups
    from relay.storage import Others
    from relay.write.commands import LaneItem


def answers_first() -> None:
    of_one_relay.answers_first(PostgresStore)


def answers_ok_to_all() -> None:
    """Also when the batch was not committed."""
    answer = Ingest._answer

    def believing(self: Ingest, batch: Sequence[LaneItem], fault: Reject | None) -> None:
        is_judged = all(each.result is not None for each in batch if isinstance(each, WriteEvent))
        answer(self, batch, None if is_judged else fault)

    Ingest._answer = believing  # type: ignore[method-assign]


def sends_again_what_a_req_found() -> None:
    """Live again: a REQ also finds rows of others that were committed since it began."""

    class WithCursorAtEnd(Subscription):
        __slots__ = ()

        def __init__(self, *given: Any, **named: Any) -> None:
            super().__init__(*given, **named)
            self.cursor = sys.maxsize  # and not `last_seq`

    query.Subscription = WithCursorAtEnd  # type: ignore[attr-defined]


def skips_a_batch() -> None:
    """Of others, now and then: it is not sent live."""
    add_others = Delivery.add_others
    calls = 0

    def skipping(self: Delivery, seqs: range, passed_on: Any) -> None:
        nonlocal calls
        calls += 1
        if calls % 10 or passed_on:
            add_others(self, seqs, passed_on)

    Delivery.add_others = skipping  # type: ignore[method-assign]


def follows_no_removals() -> None:
    """Members whom others removed stay until it reads the groups again."""
    groups_after, told = replay.groups_after, (REMOVE_USER, GROUP_MEMBERS)

    def without_removals(groups: Groups, others: Others, relay_pubkey: str) -> Groups:
        kept = [row for row in others.records if row.event.kind not in told]
        return groups_after(groups, replace(others, records=kept), relay_pubkey)

    following.groups_after = without_removals  # type: ignore[attr-defined]


def judges_by_what_it_knew() -> None:
    """Before the batch waited for those of others."""
    begin = Batch.begin

    def once(self: Batch, state: Any) -> None:
        if not hasattr(self, "groups"):
            begin(self, state)

    Batch.begin = once  # type: ignore[method-assign]


def does_not_wait_for_the_disk() -> None:
    """The database answers a commit before it is written."""
    connections._WRITE_SETTINGS["synchronous_commit"] = "off"


def takes_anothers_batch_for_its_own() -> None:
    """After a commit whose answer was lost: it was one if its seq is there."""

    async def by_seq(self: Writer, last_seq: int, batch: str) -> bool:
        while True:
            await asyncio.sleep(1.5)
            with suppress(StoreFault):
                async with self._connections.reading() as db:
                    return bool(await db.fetchval(QUERIES["head"]) >= last_seq)

    Writer._has_committed = by_seq  # type: ignore[method-assign]


def trusts_what_it_knew() -> None:
    """However long ago it heard of the others."""

    async def at_once(self: Touch) -> None:
        pass

    Touch.current = at_once  # type: ignore[method-assign]
    Touch.is_current = lambda self: True  # type: ignore[method-assign]


# What breaks it, the disturbance that shows it, and what the checker says.
MUTANTS: Final = (
    (follows_no_removals, "stop_relay", "late"),
    (answers_first, "kill_relay", "lost"),
    (answers_first, "stall", "lost"),
    (answers_first, "unplug", "lost"),
    (answers_ok_to_all, "lose_commit", "lost"),
    (sends_again_what_a_req_found, "stop_relay", "twice"),
    (skips_a_batch, "cut", "missed"),
    (judges_by_what_it_knew, "lose_answer", "verdicts"),
    (does_not_wait_for_the_disk, "crash_database", "lost"),
    (takes_anothers_batch_for_its_own, "crash_in_commit", "lost"),
    (trusts_what_it_knew, "stall_writes", "stale"),
)

if __name__ == "__main__":
    globals()[sys.argv.pop(1)]()
    sys.argv[0] = "rookery"
    main()
