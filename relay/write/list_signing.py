"""Lists of groups (39001, 39002) that are signed apart from the changes to them.

Those of large groups always, those of others while more were signed lately than their readers can
take: a request to vanish of 400 bytes changes the lists of many groups. As many in a transaction
as take some 50 ms, and then none for a while: the lists of all groups of ten thousand, one after
another, would keep every writer waiting.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final

from relay.groups.notices import bytes_of_lists
from relay.write.commands import SignLists

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from relay.groups.group import Group

_MEMBERS_AT_ONCE: Final = 5000
"""Of groups whose lists are signed in one transaction, unless it is one group."""
_PAUSE: Final = 20
"""Times as long as that took, until others are signed: 19 of 20 events meet none."""
_BYTES_PER_S: Final = 500_000
"""Of lists, which each of their readers gets: some have no more than 20 Mbit/s."""
_BYTES_AT_ONCE: Final = 1_000_000
"""Of lists, before that pace applies; and of those in one transaction, unless it is one group."""


class ListSigning:
    """Which lists are due, and when. At most one `SignLists` is in the lane."""

    def __init__(self, put: Callable[[SignLists], bool]) -> None:
        """`put` queues it; False: the lane is full."""
        self._put = put
        self._due: dict[str, Group] = {}
        self._is_queued = False
        self._next_at = 0.0
        """Time of the loop from which on the next may be signed."""
        self._paid_at = 0.0
        """Time of the loop at which, at `_BYTES_PER_S`, all is sent that was signed."""
        self._is_ending = False
        self._timer: asyncio.TimerHandle | None = None

    @property
    def due(self) -> Mapping[str, Group]:
        """Groups whose lists are still to be signed, as they were when the last ones were."""
        return self._due

    @property
    def room(self) -> int:
        """Bytes of lists that may be signed now, with the changes to them. None while others wait:
        these come first."""
        if self._due:
            return 0
        owed = (self._paid_at - asyncio.get_running_loop().time()) * _BYTES_PER_S
        return int(_BYTES_AT_ONCE - max(0.0, owed))

    def add(self, groups: Mapping[str, Group], signed: int = 0) -> None:
        """After a commit. `signed`: bytes of lists that were signed with the changes to them."""
        self._due.update(groups)
        now = asyncio.get_running_loop().time()
        self._paid_at = max(self._paid_at, now) + signed / _BYTES_PER_S

    def begin(self) -> None:
        """Queue the next ones, now or after the pause."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._is_queued or not self._due:
            return
        loop = asyncio.get_running_loop()
        next_at = self._next_at if self._is_ending else max(self._next_at, self._paid_at)
        if loop.time() < next_at:
            self._timer = loop.call_at(next_at, self.begin)
            return
        groups: dict[str, Group] = {}
        members = size = 0
        for group_id, before in self._due.items():
            members += len(before.members)
            size += bytes_of_lists(before)
            if groups and (members > _MEMBERS_AT_ONCE or size > _BYTES_AT_ONCE):
                break
            groups[group_id] = before
        self._is_queued = self._put(SignLists(groups))

    def signed(self, signing: SignLists, seconds: float) -> None:
        """It is committed and delivered; `seconds`: how long both took. The list of a large group
        that many look at is hundreds of megabytes."""
        if not self._is_ending:
            now = asyncio.get_running_loop().time()
            size = sum(map(bytes_of_lists, signing.groups.values()))
            self._next_at = now + _PAUSE * seconds
            self._paid_at = max(self._paid_at, now) + size / _BYTES_PER_S
        for group_id in signing.groups:
            self._due.pop(group_id, None)

    def answered(self) -> None:
        """What was queued is committed, or failed."""
        self._is_queued = False

    def hurry(self) -> None:
        """The relay stops: no more pauses."""
        self._is_ending = True
        self._next_at = 0.0
        self.begin()
