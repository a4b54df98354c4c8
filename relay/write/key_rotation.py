"""Signs the state of groups again when the relay has a new key (N29-73) or another `compat`.

All stored 39000–39005 are by this key or an earlier key of this relay: others are refused. At
start, those by an earlier key are replayed once more, signed with this key, and deleted, in one
transaction. In the same one, the relay's lists of members and roles (13534, 33534) are signed again
unchanged, and 39000 to 39002 that are outdated (`notices.is_outdated`) are made again.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Final

from relay.access.actors import Actors
from relay.access.visibility import everything_visible
from relay.groups.group import replayed
from relay.groups.notices import LISTS, is_outdated, notices_again
from relay.lifecycle.deletion import remove
from relay.lifecycle.rows import Lookups, Slot, WritePlan
from relay.lifecycle.versions import plan_for
from relay.nostr import kinds
from relay.nostr.event import event_from_raw
from relay.nostr.filters import Filter
from relay.storage import PageQuery

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Set

    from relay.groups.group import Groups
    from relay.groups.notices import Compat
    from relay.lifecycle.rows import Found
    from relay.lifecycle.versions import KeepRules
    from relay.nostr.event import Event
    from relay.nostr.keys import SecretKey
    from relay.storage import Store

_log = logging.getLogger(__name__)

_PAGE: Final = 2000


async def signed_again(
    store: Store,
    groups: Groups,
    relay_key: SecretKey,
    keep: KeepRules,
    compat: Set[Compat],
    now: int,
    check: Callable[[Groups], Awaitable[None]] | None = None,
    *,
    leaves_lists: bool = False,
) -> Groups:
    """Sign and store again what is by another key or outdated; returns the groups afterwards.

    `groups`: replayed from the log with this key. `check` gets them with what an earlier key says,
    before anything is stored. `leaves_lists`: outdated lists are not signed. Raises StoreFault.
    """
    left = LISTS if leaves_lists else frozenset[int]()
    inherited: list[Event] = []
    outdated: dict[str, set[int]] = {}
    async for event in _state_rows(store, groups, now):
        group = groups.get(event.d)
        if event.pubkey != relay_key.pubkey:
            inherited.append(event)
        elif group is not None and event.kind not in left and is_outdated(event, group, compat):
            outdated.setdefault(group.id, set()).add(event.kind)
    own = groups
    for event in inherited:
        group = own.get(event.d)
        if event.kind in kinds.GROUP_STATE and (
            group is None or event.kind not in group.notice_times
        ):
            groups = replayed(groups, (event,), event.pubkey)
    if check is not None:
        await check(groups)
    if not inherited and not outdated:
        return groups
    changed = {event.d for event in inherited if event.kind in kinds.GROUP_STATE}
    plan = WritePlan()

    def decide(found: Found) -> WritePlan:
        nonlocal groups
        for event in inherited:
            row = found.slots.get(Slot(event.pubkey, event.kind, event.d))
            if row is not None:
                remove(row, found, plan)
            if event.kind in kinds.MEMBERSHIP_STATE:
                again = relay_key.sign(event.kind, event.tags, event.content, event.created_at + 1)
                kept = keep.keep_of(again)
                plan_for(again, None, kept, found, plan, now=now, tie=keep.tie)
        renewed = {group_id: set(kinds.GROUP_STATE) for group_id in changed}
        for group_id, which in sorted({**outdated, **renewed}.items()):
            group = groups.get(group_id)
            if group is None:
                continue
            noted, drafts = notices_again(group, which, now, compat)
            groups = groups.with_group(noted)
            plan.groups[group_id] = noted
            for draft in drafts:
                tags = [list(tag) for tag in draft.tags]
                event = relay_key.sign(draft.kind, tags, draft.content, draft.created_at)
                plan_for(
                    event,
                    group_id,
                    keep.keep_of(event),
                    found,
                    plan,
                    now=now,
                    tie=keep.tie,
                )
        return plan

    slots = {
        Slot(pubkey, event.kind, event.d)
        for event in inherited
        for pubkey in (event.pubkey, relay_key.pubkey)
    }
    for group_id in changed | outdated.keys():
        slots.update(Slot(relay_key.pubkey, kind, group_id) for kind in kinds.GROUP_STATE)
    await store.append(Lookups(frozenset(), frozenset(slots), frozenset()), decide)
    if inherited:
        _log.warning("the relay has a new key: %d groups were signed again", len(plan.groups))
    else:
        _log.info(
            "[groups] compat has changed, or the relay was killed: %d groups were signed again",
            len(plan.groups),
        )
    return groups


async def _state_rows(store: Store, groups: Groups, now: int) -> AsyncIterator[Event]:
    """Every stored 39000 to 39005, 13534 and 33534; one page is in memory at a time."""
    filter_ = Filter(kinds=frozenset({*kinds.GROUP_STATE, *kinds.MEMBERSHIP_STATE}))
    seen, upto = everything_visible(Actors(), groups), await store.head()
    query = PageQuery(filter_, seen, upto + 1, upto, now, size=_PAGE)
    while True:
        page = await store.page(query)
        for raw in page.raws:
            yield event_from_raw(raw)
        if page.next is None:
            return
        query = query.following(page)
