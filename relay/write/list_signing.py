"""Lists of groups (39001, 39002) that are signed apart from the changes to them.

As many in a transaction as take some 50 ms, and then none for a while: the lists of all groups of
ten thousand, one after another, would keep every writer waiting.
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


class ListSigning:
    """Which lists are due, and when. At most one `SignLists` is in the lane."""

    def __init__(self, put: Callable[[SignLists], bool]) -> None:
        """`put` queues it; False: the lane is full."""
        self._put = put
        self._due: dict[str, Group] = {}
        self._is_queued = False
        self._next_at = 0.0
        """Time of the loop from which on the next may be signed."""
        self._is_ending = False
        self._timer: asyncio.TimerHandle | None = None

    @property
    def due(self) -> Mapping[str, Group]:
        """Groups whose lists are still to be signed, as they were when the last ones were."""
        return self._due

    def add(self, groups: Mapping[str, Group]) -> None:
        self._due.update(groups)

    def begin(self) -> None:
        """Queue the next ones, now or after the pause."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._is_queued or not self._due:
            return
        loop = asyncio.get_running_loop()
        if loop.time() < self._next_at:
            self._timer = loop.call_at(self._next_at, self.begin)
            return
        groups: dict[str, Group] = {}
        members = 0
        for group_id, before in self._due.items():
            members += len(before.members)
            if groups and members > _MEMBERS_AT_ONCE:
                break
            groups[group_id] = before
        self._is_queued = self._put(SignLists(groups))

    def signed(self, signing: SignLists, seconds: float) -> None:
        """It is committed and delivered; `seconds`: how long both took. The list of a large group
        that many look at is hundreds of megabytes."""
        if not self._is_ending:
            size = sum(map(bytes_of_lists, signing.groups.values()))
            pause = max(_PAUSE * seconds, size / _BYTES_PER_S)
            self._next_at = asyncio.get_running_loop().time() + pause
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
