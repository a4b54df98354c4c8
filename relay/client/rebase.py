"""Rebase: applies the edits of a waiting version to the version that another machine stored
meanwhile.

An agent has one record per user or group for all its machines; a version made offline would replace
the edits of the others, or be refused as older (S-02, S-21, S-31).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from relay.client.clocks import deletes_waiting, is_ahead
from relay.client.errors import QueryClosed
from relay.errors import Invalid
from relay.memory.draft import Draft
from relay.memory.snowclaw.keys import memory_scope
from relay.memory.snowclaw.records import newest
from relay.memory.snowclaw.working_copy import is_private
from relay.memory.unreadable import next_created_at
from relay.nostr import kinds
from relay.nostr.event import MADE_FROM, Address, address_of, made_from

if TYPE_CHECKING:
    from collections.abc import Callable

    from relay.client.client import Client
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
    ) -> None:
        """`take`: called with each stored version. `sign`: signs a draft, encrypted or not."""
        self._client = client
        self._working_copy = working_copy
        self.take = take
        self._sign = sign

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

    async def made_of_deleted(self, deletion: Event) -> list[Event]:
        """Versions that another machine stored before this deletion came to the relay: made of what
        it deletes, they hold that, and are younger. None of a record that was deleted again since:
        they begin anew. Raises ClientError."""
        author = self._working_copy.agent
        found: list[Event] = []
        for address in map(address_of, deletion.tag_values("a")):
            if address is None or not self.holds_edits(address.kind, address.d):
                continue
            names = self._working_copy.addresses(address.d)
            versions = {"kinds": [kinds.APP_DATA], "authors": [author], "#d": names}
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
            if all(each.kind == kinds.APP_DATA or each.id == deletion.id for each in answer):
                found += [each for each in answer if each.kind == kinds.APP_DATA]
        named = set(deletion.tag_values("e"))
        return [
            each
            for each in found
            if each.tag(MADE_FROM) != ""
            # Others a relay that does not delete them would give for ever.
            and each.created_at > deletion.created_at
            and each.id not in named
        ]

    def note_deletion(self, deletion: Event) -> None:
        """One's own: it drops no edit that is made from now on."""
        self._working_copy.note_deletion(deletion)

    def drop(self, version: Event) -> None:
        """Forget a version that is deleted: the next one holds nothing of it."""
        self._working_copy.drop([version])

    async def rebased(
        self, event: Event, base: Event | None, *, is_deleted: bool = False
    ) -> Event | None:
        """The version to send instead of one based on `base`; None: its edits are already stored,
        or a kind 5 names it. `is_deleted`: the relay said so of what it was made from. Raises
        Invalid if they do not apply to the stored version; ClientError."""
        author = self._working_copy.agent
        addresses = self._working_copy.addresses(event.d)
        versions = [event] if base is None else [event, base]
        by_author: dict[str, object] = {"kinds": [kinds.DELETION], "authors": [author]}
        since = min(each.created_at for each in versions)
        filters: list[dict[str, object]] = [
            {"kinds": [kinds.APP_DATA], "authors": [author], "#d": addresses},
            by_author | {"#e": [each.id for each in versions]},
            by_author | {"#a": sorted(self.addresses(event)), "since": since},
        ]
        try:
            found = await self._client.query(*filters)
        except QueryClosed:
            return self._made_from(event, base)  # the relay will give the reason
        stored = newest(each for each in found if each.kind == kinds.APP_DATA)
        here = newest(each for each in found if each.d == event.d)  # a kind 5 has no `d`
        deletions = [each for each in found if each.kind == kinds.DELETION]
        now = self._client.now()
        if any(deletes_waiting(deletion, event, now) for deletion in deletions):
            for other in found:
                self.take(other)
            self._working_copy.withdraw(event)
            return None
        is_deleted = is_deleted or bool(deletions)
        # A deletion by address refuses what is not younger.
        before = [stored, *(each for each in deletions if each.has_tag("a"))]
        dates = [each.created_at for each in before if each is not None]
        at = next_created_at(now, max(dates, default=None))
        # A version that is further ahead is dated anew: a relay would refuse it for good.
        is_far_ahead = is_ahead(event.created_at, at)
        if not is_far_ahead:
            if stored is None and not is_deleted:
                return self._made_from(event, base)
            is_base = stored is not None and base is not None and stored.id == base.id
            if is_base and stored is not None and event.created_at > stored.created_at:
                return self._made_from(event, here)  # else the clock of who stored it was ahead
            at = max(at, event.created_at + 1)
        try:
            draft, is_encrypted = self._working_copy.rebased(event, base, stored, at)
        except Invalid:
            self._working_copy.withdraw(event)
            raise
        finally:
            if stored is not None:
                self.take(stored)
        version = None
        if draft is not None:
            named = draft._replace(tags=[*draft.tags, made_from(here)])
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
        named = None if version is None or version.d != event.d else version
        tags = [*(tag for tag in event.tags if tag[:1] != [MADE_FROM]), made_from(named)]
        if tags == event.tags:
            return event
        encrypts = False  # its content is encrypted already, if it is to be
        return self._sign(Draft(event.kind, tags, event.content, event.created_at), encrypts)

    def replace(self, event: Event, version: Event) -> None:
        """Take the version that was sent instead of this one."""
        if version.id != event.id:
            self._working_copy.withdraw(event)
        self.take(version)
