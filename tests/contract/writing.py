"""How tests write to a store: small batches, decided by `relay.lifecycle.versions` as the relay
does it."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Final

import msgspec

from policies.settings import Limits
from relay.access.actors import Actors
from relay.access.management import BannedAuthorRows
from relay.access.read_rules import Match
from relay.access.visibility import everything_visible
from relay.errors import WriteOutcome
from relay.groups.context import GroupSettings
from relay.groups.group import Groups
from relay.lifecycle.deletion import (
    delete_by_author,
    deletion_targets,
    vanish,
    vanish_outcome,
)
from relay.lifecycle.rows import Found, Keep, Lookups, Stored, Tie, WritePlan, keep_by_kind
from relay.lifecycle.versions import HistoryRule, HistoryRules, plan_for
from relay.memory.systems import MEMORY_SYSTEMS
from relay.nostr import kinds
from relay.nostr.erasure import Erasure
from relay.nostr.event import signed
from relay.nostr.filters import FilterTerms, filter_from
from relay.nostr.kinds import ALL_KINDS, NO_KINDS
from relay.storage import PageQuery
from relay.write import lookups
from relay.write.candidate import Sender, candidate_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence, Set

    from relay.access.quotas import Account, Quota
    from relay.access.visibility import Visibility
    from relay.facts import Who
    from relay.groups.group import EndedGroup, Group
    from relay.lifecycle.rows import Leaving, OwnRow, RetentionDependency, Slot, Tombstone
    from relay.lifecycle.versions import History
    from relay.nostr.event import Event
    from relay.nostr.filters import Filter
    from relay.nostr.keys import SecretKey
    from relay.nostr.kinds import KindSet
    from relay.storage import ClientReads, Others, Place, Store

TERMS: Final = FilterTerms()
EVERYTHING: Final = everything_visible(Actors(), Groups())
NOTHING_WANTED: Final = Lookups(frozenset(), frozenset(), frozenset())
MAX: Final = 2**63 - 1


async def takes_over(_others: Others) -> None:
    """As a relay that has no state."""


def unsigned(
    who: SecretKey,
    kind: int = 1,
    tags: Sequence[Sequence[str]] = (),
    content: str = "",
    at: int = 1000,
) -> Event:
    """An event with an invalid signature: stores do not check it."""
    return signed(who.pubkey, at, kind, [list(tag) for tag in tags], content, lambda _: "0" * 128)


def with_id(event: Event, id_: str) -> Event:
    """As if this was its hash."""
    raw = event.raw.replace(event.id.encode(), id_.encode())
    return msgspec.structs.replace(event, id=id_, raw=raw)


def asked(**conditions: object) -> Filter:
    """A filter from the keys of its JSON; `tag_X` is `#X`."""
    return filter_from(
        {key.replace("tag_", "#"): value for key, value in conditions.items()}, TERMS
    )


def group_of(event: Event) -> str | None:
    """No group has an empty id: nobody can make one (N29-02)."""
    return (event.d if event.kind in kinds.GROUP_STATE else event.tag("h")) or None


def kept_as(event: Event) -> Keep:
    """NIP-01's slots, and some kinds of the memory systems that compete in another way."""
    return _KEPT.get(event.kind) or keep_by_kind(event.kind)


_KEPT: Final = {
    kinds.APP_RECORD: Keep.FIRST,
    kinds.PREFERENCE: Keep.LATEST_TS,
    kinds.TOOL_HISTORY: Keep.FIRST,
}


class _Policy:
    systems = MEMORY_SYSTEMS
    groups = GroupSettings()
    limits = Limits()
    judged_by_text = NO_KINDS
    banned_rows = BannedAuthorRows.HIDE

    def wants_login(self, _event: Event) -> bool:
        return False

    def may_write(self, _event: Event, _who: Set[Who]) -> bool:
        return True

    def quotas_of(self, _kind: int) -> Sequence[Quota]:
        return ()


def lookups_for(events: Sequence[tuple[Event, Keep]]) -> Lookups:
    """What the relay looks up for these events when there are no groups and no quotas."""
    sender = Sender()
    # Stores take events that the relay would refuse as malformed.
    candidates = [
        msgspec.structs.replace(
            candidate_of(event, keep, MEMORY_SYSTEMS, sender, lambda _: False),
            malformed=None,
        )
        for event, keep in events
    ]
    return lookups.lookups_for(
        candidates, (), groups=Groups(), actors=Actors(), policy=_Policy(), relay="f" * 64, now=0
    )


class Batch:
    """Lookups and decision for `Store.append`, of several events."""

    def __init__(
        self,
        *events: Event,
        now: int = 0,
        quiet: bool = False,
        group: str | None = None,
        history: History | None = None,
    ) -> None:
        """`group`: stored with every row instead of the one that the event names. `history`: of
        all records.

        A kind 62 is one that acts.
        """
        self.wanted = replace(
            lookups_for([(event, kept_as(event)) for event in events]),
            vanishing_keys={
                event.pubkey: event.created_at for event in events if event.kind == kinds.VANISH
            },
        )
        self.results: list[Stored | WriteOutcome] = []
        self.found: Found | None = None
        self.plan = WritePlan()
        self._events = events
        self._now = now
        self._quiet = quiet
        self._group = group
        self._history = HistoryRules((HistoryRule("history", "", Match(), history),))

    def decide(self, found: Found) -> WritePlan:
        self.found = found
        for event in self._events:
            if event.kind == kinds.VANISH:
                self.results.append(
                    vanish_outcome(event, found) or _vanished(event, found, self.plan)
                )
                continue
            result = plan_for(
                event,
                self._group or group_of(event),
                kept_as(event),
                found,
                self.plan,
                now=self._now,
                tie=Tie.HIGH,
                quiet=self._quiet,
                history=self._history,
            )
            if isinstance(result, Stored) and event.kind == kinds.DELETION:
                rows = delete_by_author(event, deletion_targets(event), found, self.plan)
                erasure = Erasure(event.id, event.pubkey, event.kind, self._now)
                for row in rows:
                    erasure.add(row.event.id, row.event.kind)
                self.plan.erasures[event.id] = erasure
            self.results.append(result)
        return self.plan


def _vanished(request: Event, found: Found, plan: WritePlan) -> WriteOutcome:
    vanish(request, found, plan)
    return WriteOutcome.STORED


async def write(
    store: Store,
    *events: Event,
    now: int = 0,
    quiet: bool = False,
    group: str | None = None,
    history: History | None = None,
) -> list[Stored | WriteOutcome]:
    """One batch; gives the outcome of each event."""
    batch = Batch(*events, now=now, quiet=quiet, group=group, history=history)
    await store.append(batch.wanted, batch.decide)
    await store.replicated()
    return batch.results


async def stored(
    store: Store, event: Event, *, quiet: bool = False, group: str | None = None
) -> Stored:
    """Write one event, which must be stored."""
    (row,) = await write(store, event, quiet=quiet, group=group)
    assert isinstance(row, Stored), row
    return row


async def change(store: Store, plan: Callable[[WritePlan], None]) -> int:
    """Append a plan of the test's own."""

    def decide(_found: Found) -> WritePlan:
        out = WritePlan()
        plan(out)
        return out

    return await store.append(NOTHING_WANTED, decide)


async def set_groups(store: Store, **groups: Group | EndedGroup) -> None:
    await change(store, lambda plan: plan.groups.update(groups))


async def add_tombstone(store: Store, *stones: Tombstone) -> None:
    await change(store, lambda plan: plan.tombstones.extend(stones))


async def look_up(
    store: Store,
    *,
    ids: Sequence[str] = (),
    slots: Sequence[Slot | None] = (),
    tombstones: Sequence[str] = (),
    prefixes: Sequence[tuple[str, str]] = (),
    whole_kinds: KindSet = ALL_KINDS,
    groups_with_content: Sequence[str] = (),
    counted_groups: Sequence[str] = (),
    vanishing: Sequence[str] = (),
    vanishing_at: int = 1000,
    recorded: Sequence[str] = (),
    usage: Sequence[Account] = (),
    dependencies: Sequence[RetentionDependency] = (),
    own_rows: Set[OwnRow] = frozenset(),
    present: Set[str | Slot] = frozenset(),
    most: int | None = None,
    most_moderated: int | None = None,
    most_records: int | None = None,
    leaving: Leaving | None = None,
    refusals: Iterable[tuple[str, str]] = (),
    expiry_windows: Iterable[int] = (),
) -> Found:
    """What the store looks up; nothing is written."""
    answers: list[Found] = []

    def decide(found: Found) -> WritePlan:
        answers.append(found)
        return WritePlan()

    wanted = Lookups(
        frozenset(ids),
        frozenset(slot for slot in slots if slot is not None),
        frozenset(tombstones),
        frozenset(prefixes),
        frozenset(groups_with_content),
        dict.fromkeys(vanishing, vanishing_at),
        frozenset(recorded),
        frozenset(usage),
        frozenset(dependencies),
        frozenset(own_rows),
        present=frozenset(present),
        most=most,
        most_moderated=most_moderated,
        most_records=most_records,
        leaving=leaving,
        counted_groups=frozenset(counted_groups),
        whole_kinds=whole_kinds,
        refusals=lambda: refusals,
        expiry_windows=frozenset(expiry_windows),
    )
    await store.append(wanted, decide)
    return answers[0]


async def read(
    store: ClientReads,
    filter_: Filter | None = None,
    visibility: Visibility = EVERYTHING,
    *,
    limit: int = 10_000,
    upto: int = MAX,
    now: int = 0,
    after: Place | None = None,
    size: int = 10_000,
) -> list[bytes]:
    """`size` rows, of several pages when the rows are large."""
    found: list[bytes] = []
    filter_ = asked() if filter_ is None else filter_
    query = PageQuery(filter_, visibility, limit, upto, now, size, after)
    while len(found) < min(size, limit):
        page = await store.page(query)
        found += page.raws
        if page.next is None:
            break
        query = query.following(page)._replace(size=size - len(found))
    return found


async def read_in_pages(
    store: ClientReads,
    filter_: Filter,
    visibility: Visibility = EVERYTHING,
    *,
    limit: int = 10_000,
    upto: int = MAX,
    now: int = 0,
    size: int,
) -> list[list[bytes]]:
    """All pages of a result."""
    pages: list[list[bytes]] = []
    query = PageQuery(filter_, visibility, limit, upto, now, size)
    while True:
        page = await store.page(query)
        pages.append(list(page.raws))
        if page.next is None:
            return pages
        assert page.next != query.after, "the pages do not get on"
        query = query.following(page)


def raws(*events: Event) -> list[bytes]:
    return [event.raw for event in events]


def in_order(*events: Event) -> list[bytes]:
    """As N01-76 has it: newest first, then lowest id."""
    return raws(*sorted(events, key=lambda event: (-event.created_at, event.id)))
