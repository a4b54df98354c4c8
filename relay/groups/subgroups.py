"""Subgroups: the tree that `parent` and `child` tags make of groups (N29-130…143).

Invariants: `Group.parent` and `Group.children` always agree; nothing else is inherited. Because all
readers get the same signed 39000, a group and its parent are either both hidden or neither is
(N29-142).
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Final

from relay.errors import Prefix, Reject
from relay.groups.context import RULE, rejected

if TYPE_CHECKING:
    from collections.abc import Iterator

    from relay.groups.group import EndedGroup, Group, Groups

MAX_DEPTH: Final = 8
"""Groups from a root down to its deepest subgroup, both counted."""
MAX_CHILDREN: Final = 256
_MAX_MOVED: Final = 1024
"""Groups of a tree that gets another parent: all are visited."""

_NO_SUCH_PARENT: Final = Reject(
    Prefix.RESTRICTED, "parent: names no group that you are an admin of", RULE
)
"""Also for a group that does not exist or is hidden from the author (N29-135)."""


def check_placement(
    before: Group, after: Group, parent: Group | None, groups: Groups
) -> Reject | None:
    """Why a group may not have the parent and children of `after`.

    `before` is the group as it is, or a new one without relatives; `parent` the one that `after`
    names, if its author is an admin of it. Being its admin is required only when the parent changes
    (Z-04).
    """
    if sorted(after.children) != sorted(before.children):
        return rejected(
            Prefix.INVALID,
            f"child: must name each of the {len(before.children)} subgroups once, and no other",
        )
    if after.parent is not None and after.parent != before.parent:
        if parent is None:
            return _NO_SUCH_PARENT
        refusal = _check_parent(before, parent, groups)
        if refusal is not None:
            return refusal
    relatives = (groups.get(group_id) for group_id in (after.parent, *after.children))
    if any(other is not None and other.is_hidden is not after.is_hidden for other in relatives):
        return rejected(
            Prefix.INVALID, "hidden: a group and its parent are both hidden, or neither is"
        )
    return None


def _check_parent(group: Group, parent: Group, groups: Groups) -> Reject | None:
    ancestors = [other.id for other in _with_ancestors(parent, groups)]
    if group.id in ancestors:
        return rejected(Prefix.INVALID, "parent: a group cannot be its own ancestor")
    height = _height(group, groups)
    if height is None:
        text = f"parent: a group with over {_MAX_MOVED} groups below it stays where it is"
        return rejected(Prefix.INVALID, text)
    if len(ancestors) + height > MAX_DEPTH:
        return rejected(Prefix.INVALID, f"parent: groups can be nested at most {MAX_DEPTH} deep")
    if len(parent.children) >= MAX_CHILDREN:
        return rejected(Prefix.INVALID, f"parent: has {MAX_CHILDREN} subgroups, the most allowed")
    return None


def _with_ancestors(group: Group, groups: Groups) -> Iterator[Group]:
    """The group, its parent, and so on up to the root."""
    current: Group | None = group
    while current is not None:
        yield current
        current = groups.get(current.parent)


def _height(group: Group, groups: Groups) -> int | None:
    """Levels of the group and the groups below it; None: they are over `_MAX_MOVED`."""
    height, seen, level = 0, 0, [group]
    while level:
        height += 1
        seen += len(level)
        if seen > _MAX_MOVED:
            return None
        level = [groups.by_id[child] for each in level for child in each.children]
    return height


def place_group(groups: Groups, after: Group) -> tuple[Groups, tuple[str, ...]]:
    """These groups with `after` new, or in place of the one of its id, and its parents updated.

    Second: ids of its old and its new parent, if they differ (N29-137).
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


def detach_subgroups(
    groups: Groups, group: Group, left: EndedGroup
) -> tuple[Groups, tuple[str, ...]]:
    """These groups after one is deleted: its subgroups become roots (N29-139).

    Second: ids of the other groups that change.
    """
    groups = groups.without_group(group.id, left)
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
