"""The tree that groups make: where one may stand, and who else changes when it moves (N29-130…143).

Invariants: `Group.parent` and `Group.children` always say the same; nothing else is inherited. A
39000 is one signed event for all its readers, so groups that name each other are hidden together or
not at all (N29-142).
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Final

from relay.errors import Prefix
from relay.groups.context import RULE, rejected
from relay.verdict import Reject

if TYPE_CHECKING:
    from collections.abc import Iterator

    from relay.groups.group import Group, Groups

MAX_DEPTH: Final = 8
"""Groups on the way from a root to its deepest subgroup, both counted."""
MAX_CHILDREN: Final = 256

_NO_SUCH_PARENT: Final = Reject(
    Prefix.RESTRICTED, "parent: names no group that you are an admin of", RULE
)
"""Also of a group that does not exist, or that is hidden from the author (N29-135)."""


def check_placement(
    before: Group, after: Group, led: Group | None, groups: Groups
) -> Reject | None:
    """Why a group may not come to stand as `after` says.

    `before` is the group as it is, or a new one without relatives; `led` the parent that `after`
    names, if its author leads it. That is asked only when the parent changes (Z-04).
    """
    if sorted(after.children) != sorted(before.children):
        return rejected(
            Prefix.INVALID,
            f"child: must name each of the {len(before.children)} subgroups once, and no other",
        )
    if after.parent is not None and after.parent != before.parent:
        if led is None:
            return _NO_SUCH_PARENT
        refusal = _beyond_reach(before, led, groups)
        if refusal is not None:
            return refusal
    kin = (groups.get(group_id) for group_id in (after.parent, *after.children))
    if any(other is not None and other.is_hidden is not after.is_hidden for other in kin):
        return rejected(
            Prefix.INVALID, "hidden: a group and its parent are both hidden, or neither is"
        )
    return None


def _beyond_reach(group: Group, parent: Group, groups: Groups) -> Reject | None:
    line = [other.id for other in _line_of(parent, groups)]
    if group.id in line:
        return rejected(Prefix.INVALID, "parent: a group cannot stand below itself")
    if len(line) + _height(group, groups) > MAX_DEPTH:
        return rejected(Prefix.INVALID, f"parent: groups stand at most {MAX_DEPTH} deep")
    if len(parent.children) >= MAX_CHILDREN:
        return rejected(Prefix.INVALID, f"parent: has {MAX_CHILDREN} subgroups, the most allowed")
    return None


def _line_of(group: Group, groups: Groups) -> Iterator[Group]:
    """The group and all that it stands below, up to the root."""
    above: Group | None = group
    while above is not None:
        yield above
        above = groups.get(above.parent)


def _height(group: Group, groups: Groups) -> int:
    below = (groups.by_id[child] for child in group.children)
    return 1 + max((_height(child, groups) for child in below), default=0)


def place_group(groups: Groups, after: Group) -> tuple[Groups, tuple[str, ...]]:
    """These groups with `after` new or in place of the one of its id, where it says that it stands.

    Second: ids of its old and its new parent, if that is a change (N29-137).
    """
    before = groups.get(after.id)
    groups = groups.with_group(after)
    old = groups.get(None if before is None else before.parent)
    new = groups.get(after.parent)
    if old is new:
        return groups, ()
    if old is not None:
        groups = groups.with_group(_without_child(old, after.id))
    if new is not None:
        groups = groups.with_group(replace(new, children=(*new.children, after.id)))
    return groups, tuple(group.id for group in (old, new) if group is not None)


def detach_subgroups(groups: Groups, group: Group) -> tuple[Groups, tuple[str, ...]]:
    """These groups after the end of one: its subgroups are roots (N29-139). Second: whom it
    concerned."""
    groups = groups.without_group(group.id)
    parent = groups.get(group.parent)
    if parent is not None:
        groups = groups.with_group(_without_child(parent, group.id))
    for child in group.children:
        groups = groups.with_group(replace(groups.by_id[child], parent=None))
    above = () if parent is None else (parent.id,)
    return groups, (*above, *group.children)


def _without_child(parent: Group, group_id: str) -> Group:
    left = tuple(child for child in parent.children if child != group_id)
    return replace(parent, children=left)
