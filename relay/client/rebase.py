"""Rebase: applies the edits of a waiting version to the version that another machine stored
meanwhile.

An agent has one record per user or group for all its machines; a version made offline would replace
the edits of the others, or be refused as older (S-02, S-21, S-31).

What is deleted: an edit is dropped by a deletion of its record that is younger than the edit, and
by nothing else. An edit is as old as when it was made, not as the version that holds it, and is
younger than each deletion that this client knew of then, whatever its clock says. A deletion by a
clock that is ahead tells nothing (`clocks`). What the relay gives of a record that this client
knows as deleted counts as none, and is deleted again.
"""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING

from relay.client.clocks import is_ahead
from relay.client.errors import PublishRefused, QueryClosed
from relay.errors import Invalid
from relay.memory.draft import Draft
from relay.memory.snowclaw.edit_dates import Deleted, began_after, noted_since, noted_until
from relay.memory.snowclaw.keys import is_private, memory_scope
from relay.memory.snowclaw.rebasing import rebased
from relay.memory.snowclaw.record_index import user_key
from relay.memory.snowclaw.records import newest
from relay.memory.unreadable import next_created_at
from relay.nostr import kinds
from relay.nostr.event import MADE_FROM, Address, address_of, made_from
from relay.nostr.nip09 import request_by_id

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Collection, Sequence

    from relay.client.client import Client
    from relay.client.spool import Waiting
    from relay.memory.snowclaw.working_copy import WorkingCopy
    from relay.nostr.event import Event


class Rebase:
    """Rebases the records of one agent."""

    def __init__(
        self,
        client: Client,
        working_copy: WorkingCopy,
        take: Callable[[Event], object],
        sign: Callable[[Draft, bool], Event],
        undeleted: Callable[[Sequence[Event]], Awaitable[list[Event]]],
    ) -> None:
        """`take`: called with each stored version. `sign`: signs a draft, encrypted or not.
        `undeleted`: those of some events that this client does not know as deleted."""
        self._client = client
        self._working_copy = working_copy
        self.take = take
        self._sign = sign
        self._undeleted = undeleted

    def holds_edits(self, kind: int, d: str) -> bool:
        """Whether a record is of a user or group, or private notes about one."""
        if is_private(d):
            return kind == kinds.APP_DATA
        try:
            memory_scope(d)
        except Invalid:
            return False
        return kind == kinds.APP_DATA

    def base_of(self, event: Event) -> Event | None:
        """The version that a new one is based on; None: it is the first one."""
        return self._working_copy.current(event.d)

    def addresses(self, event: Event) -> set[str]:
        """Values of a tag `a` that names the record of this version, under any form of the key."""
        known = self._working_copy.addresses(event.d)
        return {str(Address(event.pubkey, event.kind, d)) for d in known}

    async def made_of_deleted(self, deletion: Event, done: Collection[str]) -> list[Event]:
        """Versions that another machine stored before this deletion came to the relay: made of what
        it deletes, they hold that, and are younger. None of a record that began anew since, or was
        deleted again, which is the same: a deletion may be sent again long after. `done`: deletions
        that do not count as that. Raises ClientError."""
        author = self._working_copy.agent
        found: list[Event] = []
        for address in map(address_of, deletion.tag_values("a")):
            if address is None or not self.holds_edits(address.kind, address.d):
                continue
            names = self._working_copy.addresses(address.d)
            versions: dict[str, object] = {"kinds": [kinds.APP_DATA], "authors": [author]}
            if self._working_copy.knows_addresses(address.d):
                versions["#d"] = names
            else:
                versions["since"] = deletion.created_at
            again = {
                "kinds": [kinds.DELETION],
                "authors": [author],
                "#a": [str(Address(author, address.kind, d)) for d in names],
                "since": deletion.created_at,
            }
            try:
                answer = await self._client.query(versions, again)
            except QueryClosed:
                continue  # this key may not read them
            is_again = any(
                each.kind == kinds.DELETION
                and each.id not in done
                and _order(each) > _order(deletion)
                for each in answer
            )
            if not is_again:
                key = user_key(address.d)
                found += [
                    each
                    for each in answer
                    if each.kind == kinds.APP_DATA
                    and (each.d in names or (key and (user_key(each.d) or "").startswith(key)))
                ]
        return [
            each
            for each in found
            if each.tag(MADE_FROM) != ""
            and each.created_at > deletion.created_at
            and not began_after(each, deletion)
        ]

    def note_deletion(self, deletion: Event) -> None:
        """One's own: it drops no edit that is made from now on."""
        self._working_copy.note_deletion(deletion)

    def drop(self, version: Event) -> None:
        """Forget a version that is deleted: the next one holds nothing of it."""
        self._working_copy.drop([version])

    def dates(self, event: Event, base: Event | None) -> dict[str, int]:
        """When the edits were made of a new version, which is based on this one."""
        try:
            return self._working_copy.edit_dates(event, base)
        except Invalid:
            return {}

    async def undeleted(self, found: Sequence[Event]) -> list[Event]:
        """Those that this client does not know as deleted. A relay that was restored may give
        others: they are deleted again. Raises ClientError."""
        left = await self._undeleted(found)
        ids, author = {each.id for each in left}, self._working_copy.agent
        gone = [
            e for e in found if e.id not in ids and (e.pubkey, e.kind) == (author, kinds.APP_DATA)
        ]
        if gone:
            # It drops no edit that the first deletion did not drop.
            at = max(each.created_at for each in gone)
            again = Draft(kinds.DELETION, request_by_id(gone), "", at)
            is_encrypted = False
            # A refusal is about the deletion, not about what waits.
            with suppress(PublishRefused):
                await self._client.publish(self._sign(again, is_encrypted))
        return left

    async def rebased(self, waiting: Waiting, *, is_deleted: bool = False) -> Event | None:
        """The version to send instead of one that waited; None: its edits are already stored, or
        deleted. `is_deleted`: the relay said so of what it was made from. Raises Invalid if they do
        not apply to the stored version; ClientError."""
        event, base, dates = waiting.event, waiting.base, waiting.dates
        author = self._working_copy.agent
        addresses = self._working_copy.addresses(event.d)
        versions = [event] if base is None else [event, base]
        ids = [each.id for each in versions]
        by_author: dict[str, object] = {"kinds": [kinds.DELETION], "authors": [author]}
        filters: list[dict[str, object]] = [
            {"kinds": [kinds.APP_DATA], "authors": [author], "#d": addresses},
            by_author | {"#e": ids},
            by_author | {"#a": sorted(self.addresses(event))},
        ]
        try:
            found = await self.undeleted(await self._client.query(*filters))
        except QueryClosed:
            return self._made_from(event, base)  # the relay will give the reason
        stored = newest(each for each in found if each.kind == kinds.APP_DATA)
        here = newest(each for each in found if each.d == event.d)  # a kind 5 has no `d`
        deletions = [each for each in found if each.kind == kinds.DELETION]
        now = self._client.now()
        for deletion in deletions:
            self.take(deletion)
        dates_of_deletions = [*map(noted_until, deletions)]
        until = max((at for at in dates_of_deletions if not is_ahead(at, now)), default=0)
        if event.created_at <= until or any(event.id in d.tag_values("e") for d in deletions):
            if stored is not None:
                self.take(stored)
            self._working_copy.withdraw(event)
            return None
        deleted = Deleted(until, dates) if any(0 < at <= until for at in dates.values()) else None
        since = min(each.created_at for each in versions)
        is_deleted = (
            is_deleted
            or deleted is not None
            or any(d.created_at >= since or {*ids} & {*d.tag_values("e")} for d in deletions)
        )
        # A deletion by address refuses what is not younger.
        before = [stored, *(each for each in deletions if each.has_tag("a"))]
        known_until = self._working_copy.deleted_until(event.d)
        last = max([known_until, *(each.created_at for each in before if each is not None)])
        at = next_created_at(now, last)
        # A version that is further ahead is dated anew: a relay would refuse it for good.
        is_far_ahead = is_ahead(event.created_at, at)
        if not is_far_ahead and deleted is None and event.created_at > known_until:
            if stored is None and not is_deleted:
                return self._made_from(event, base)
            is_base = stored is not None and base is not None and stored.id == base.id
            if is_base and stored is not None and event.created_at > stored.created_at:
                # Else the clock of who stored it was ahead.
                return self._made_from(event, here or stored)
            at = max(at, event.created_at + 1)
        try:
            draft, is_encrypted = rebased(
                self._working_copy.index, event, base, stored, at, deleted
            )
        except Invalid:
            self._working_copy.withdraw(event)
            raise
        finally:
            if stored is not None:
                self.take(stored)
        version = None
        if draft is not None:
            # What is kept counts as noted after every deletion, whatever the clocks say.
            oldest = min((each for each in dates.values() if each > until), default=at)
            oldest = min(at, max([oldest, *(each + 1 for each in dates_of_deletions)]))
            dated = noted_since(stored, oldest)
            named = draft._replace(tags=[*draft.tags, made_from(here or stored), *dated])
            version = self._sign(named, is_encrypted)
        # What is written next is based on what is stored or sent, though that may be older.
        if is_far_ahead or version is None:
            self._working_copy.withdraw(event)
            for each in (stored, version):
                if each is not None:
                    self._working_copy.apply(each)
        return version

    def _made_from(self, event: Event, version: Event | None) -> Event:
        """The event as one made from this version, which the relay has or had. Its own tag may
        name a version that it replaced in the spool: a relay takes that for one that it has missed,
        and the event for newer than whatever is stored."""
        tags = [*(tag for tag in event.tags if tag[:1] != [MADE_FROM]), made_from(version)]
        if tags == event.tags:
            return event
        encrypts = False  # its content is encrypted already, if it is to be
        return self._sign(Draft(event.kind, tags, event.content, event.created_at), encrypts)

    def note_sent(self, version: Event) -> None:
        """Before a version is sent or queued, whose answer may not come."""
        self._working_copy.note_sent(version)

    def replace(self, event: Event, version: Event) -> None:
        """Take the version that was sent instead of this one."""
        self._working_copy.drop_sent(event)
        if version.id != event.id:
            self._working_copy.withdraw(event)
        self.take(version)


def _order(deletion: Event) -> tuple[int, str]:
    """Of two deletions of the same second, one is the later one; one of what was made meanwhile
    (`noted_until`) is none."""
    is_own = noted_until(deletion) == deletion.created_at
    return noted_until(deletion), deletion.id if is_own else ""
