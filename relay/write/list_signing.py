"""Lists of groups (39001, 39002) that are signed apart from the changes to them.

Those of large groups always, those of others while more were signed lately than their readers can
take: a request to vanish of 400 bytes changes the lists of many groups. In one transaction as many
lists are signed as take some 50 ms, and then none for a while: the lists of all groups of ten
thousand, one after another, would keep every writer waiting.
"""

from __future__ import annotations

import asyncio
from itertools import islice
from typing import TYPE_CHECKING, Final

from relay.groups.notices import bytes_of_lists
from relay.write.changes import BYTES_AT_ONCE
from relay.write.commands import SignLists

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Set

    from relay.groups.group import Groups

_MEMBERS_AT_ONCE: Final = 5000
"""Members of groups whose lists are signed in one transaction, unless it is one group."""
_PAUSE: Final = 20
"""After lists none are signed for so many times as long as they took: 19 of 20 events meet none."""
_BYTES_PER_S: Final = 500_000
"""Bytes of lists, which each of their readers gets: some have no more than 20 Mbit/s."""
_BURST: Final = 1_000_000
"""Bytes of lists before that pace applies."""
_GROUPS_AT_ONCE: Final = 50
"""Whose lists are signed in one transaction: two signatures and rows, 1 ms for each."""


class ListSigning:
    """Which lists are due, and when. At most one `SignLists` is in the lane."""

    def __init__(self, put: Callable[[SignLists], bool], groups: Callable[[], Groups]) -> None:
        """`put` queues it; False: the lane is full. `groups`: as they are."""
        self._put = put
        self._groups = groups
        self._due: dict[str, None] = {}
        """Their ids, in order."""
        self._is_queued = False
        self._next_at = 0.0
        """Time of the loop from which on the next may be signed."""
        self._paid_at = 0.0
        """Time of the loop at which, at `_BYTES_PER_S`, all is sent that was signed."""
        self._is_ending = False
        self._timer: asyncio.TimerHandle | None = None

    @property
    def due(self) -> Set[str]:
        """Groups whose lists are still to be signed."""
        return self._due.keys()

    @property
    def room(self) -> int:
        """Bytes of lists that may be signed now, with the changes to them; 0 while other lists are
        due, which come first."""
        if self._due:
            return 0
        owed = (self._paid_at - asyncio.get_running_loop().time()) * _BYTES_PER_S
        return int(_BURST - max(0.0, owed))

    def add(self, groups: Iterable[str], signed: int) -> None:
        """After a commit that signed so many bytes of lists, and left out those of `groups`."""
        self._due.update(dict.fromkeys(groups))
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
        chosen: list[str] = []
        members = size = 0
        for group_id in islice(self._due, _GROUPS_AT_ONCE):
            group = self._groups().get(group_id)
            if group is not None:
                members += len(group.members)
                size += bytes_of_lists(group)
            if chosen and (members > _MEMBERS_AT_ONCE or size > BYTES_AT_ONCE):
                break
            chosen.append(group_id)
        self._is_queued = self._put(SignLists(chosen))

    def signed(self, groups: Iterable[str], seconds: float) -> None:
        """Their lists are committed and delivered; `seconds`: how long both took. The list of a
        large group that many look at is hundreds of megabytes."""
        if not self._is_ending:
            self._next_at = asyncio.get_running_loop().time() + _PAUSE * seconds
        for group_id in groups:
            self._due.pop(group_id, None)

    def answered(self) -> None:
        """The queued `SignLists` was committed, or has failed."""
        self._is_queued = False

    def hurry(self) -> None:
        """The relay stops: no more pauses."""
        self._is_ending = True
        self._next_at = 0.0
        self.begin()
