"""What the filters of a query have to do with which rows a viewer may read."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from relay.access.visibility import names_one_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from relay.access.visibility import Visibility
    from relay.nostr.filters import Filter

OnlyBy = frozenset[str]
"""As in a read rule: keys of a filter, of which it must have one."""


class Asked(NamedTuple):
    """Besides the viewer, all that a condition of visibility depends on."""

    kinds: frozenset[int] | None
    """Of the rows, if all filters name kinds."""
    always: frozenset[OnlyBy]
    """What each filter fulfils."""
    sometimes: tuple[OnlyBy, ...] = ()
    """What some filters fulfil and others do not."""


def asked_by(filters: Sequence[Filter], visibility: Visibility) -> Asked:
    required = _required(visibility)
    fulfilled = [_fulfilled(filter_, required) for filter_ in filters]
    always = frozenset.intersection(*fulfilled)
    sometimes = frozenset.union(*fulfilled) - always
    named = [filter_.kinds for filter_ in filters if filter_.kinds is not None]
    kinds = frozenset[int]().union(*named) if len(named) == len(filters) else None
    return Asked(kinds, always, tuple(sorted(sometimes, key=sorted)))


def asked_by_tag(name: str, kinds: frozenset[int], visibility: Visibility) -> Asked:
    """Of rows that are looked up by this tag."""
    required = _required(visibility)
    return Asked(kinds, frozenset([only_by for only_by in required if f"#{name}" in only_by]))


def fulfils(filter_: Filter, asked: Asked) -> Sequence[bool]:
    """Which of `asked.sometimes`."""
    return [names_one_of(filter_, only_by) for only_by in asked.sometimes]


def _required(visibility: Visibility) -> set[OnlyBy]:
    return {rule.only_by for rule in visibility.rules if rule.only_by is not None}


def _fulfilled(filter_: Filter, required: set[OnlyBy]) -> frozenset[OnlyBy]:
    return frozenset([only_by for only_by in required if names_one_of(filter_, only_by)])
