"""Deletions: which messages were deleted, as kinds 5 and 9005 tell. S-34.

For messages that come after their deletion, and for those that have not been answered yet.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

from relay.nostr import kinds
from relay.nostr.event import is_hex64

if TYPE_CHECKING:
    from collections.abc import Iterable

    from relay.nostr.event import Event

_MAX_IDS: Final = 10_000
"""Of all kinds 5, and of all 9005s."""
_MAX_SOURCES: Final = 2_000
"""Authors or groups, once there are more than `_MAX_IDS` ids."""


class _Name(NamedTuple):
    """A message, and whose it must be: `of` is its author for a kind 5, its group for a 9005."""

    kind: int
    of: str
    event_id: str


class Deletions:
    """What was deleted. A message that waits for its answer is remembered as long as it waits;
    of others, nobody's deletions push out those of others."""

    def __init__(self) -> None:
        self._ids = {kinds.DELETION: _Ids(), kinds.DELETE_EVENT: _Ids()}
        self._waiting: dict[_Name, bool] = {}
        """Names of messages that wait for an answer → whether they were deleted."""

    def add(self, deletion: Event) -> frozenset[str]:
        """Note a kind 5 or 9005. Returns the ids that it names."""
        kind = deletion.kind
        of = deletion.pubkey if kind == kinds.DELETION else deletion.tag("h") or ""
        ids = frozenset(filter(is_hex64, deletion.tag_values("e")))
        for id_ in ids:
            name = _Name(kind, of, id_)
            if name in self._waiting:
                self._waiting[name] = True
        self._ids[kind].add(of, ids)
        return ids

    def has(self, message: Event) -> bool:
        return any(map(self._has, _names_of(message)))

    def _has(self, name: _Name) -> bool:
        return self._waiting.get(name, False) or self._ids[name.kind].has(name.of, name.event_id)

    def wait_for(self, message: Event) -> None:
        """The message waits for an answer."""
        for name in _names_of(message):
            self._waiting[name] = self._has(name)

    def answered(self, message: Event) -> None:
        for name in _names_of(message):
            self._waiting.pop(name, None)

    def wait_for_none(self) -> None:
        self._waiting.clear()

    def waiting(self) -> Iterable[str]:
        """Ids of the messages that wait; each may come twice."""
        return [name.event_id for name in self._waiting]


class _Ids:
    """Ids by source: when they are too many, each source keeps the newest of a fair share."""

    def __init__(self) -> None:
        self._by_source: dict[str, dict[str, None]] = {}
        """Sources and their ids, both in the order in which they came last."""
        self._number = 0

    def has(self, source: str, id_: str) -> bool:
        return id_ in self._by_source.get(source, ())

    def add(self, source: str, ids: Iterable[str]) -> None:
        own = self._by_source.pop(source, {})
        self._number -= len(own)
        for id_ in ids:
            own.pop(id_, None)
            own[id_] = None
        self._by_source[source] = own
        self._number += len(own)
        if self._number > _MAX_IDS:
            self._shorten()

    def _shorten(self) -> None:
        by_source = self._by_source
        for source in list(by_source)[:-_MAX_SOURCES]:
            del by_source[source]
        share = _MAX_IDS * 9 // 10 // len(by_source)  # a tenth is left: not for each id anew
        for own in by_source.values():
            for id_ in list(own)[:-share]:
                del own[id_]
        self._number = sum(map(len, by_source.values()))


def _names_of(message: Event) -> tuple[_Name, _Name]:
    return (
        _Name(kinds.DELETION, message.pubkey, message.id),
        _Name(kinds.DELETE_EVENT, message.tag("h") or "", message.id),
    )
