"""Compares who may read a row under two policy sets.

For classes of readers (anonymous, members, owners …), for the author of each row, and for keys that
have a role in one set only. Of the rows that another may refer to the newest one before it is used;
a bounded number of rows is kept.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import replace
from enum import Enum, auto
from functools import lru_cache
from typing import TYPE_CHECKING, Final

from relay.access.visibility import Viewer, Visibility, names_restricted, visibility_for
from relay.facts import Who
from relay.lifecycle.rows import Stored
from relay.nostr import kinds
from relay.nostr.event import is_hex64

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence, Set

    from policies.engine import PolicySet
    from policies.write_rule import Place
    from relay.access.actors import Actors
    from relay.access.read_rules import ReadRule, Target
    from relay.groups.group import Groups
    from relay.nostr.event import Event

_MAX_VIEWERS: Final = 4096
_NO_KNOWN_KEY: Final = frozenset({"0" * 64})
_MAX_ROWS: Final = 65_536
"""Rows kept that later ones may refer to."""
_KEYS: Final = 3
"""Keys with another role in the new set that are compared one by one."""


class Turn(Enum):
    """How a row changes for a reader."""

    HIDDEN = auto()
    SHOWN = auto()


Deciding = tuple[str, "Place | None"]
"""A rule's name, with its file and line."""


class _Side:
    """The read rules of one set, by kind."""

    def __init__(self, policy: PolicySet) -> None:
        self.policy = policy
        self._by_kind: dict[int, list[tuple[ReadRule, Place]]] = {}

    def about(self, row: Stored, groups: Groups) -> list[tuple[ReadRule, Place]]:
        kind = row.event.kind
        rules = self._by_kind.get(kind)
        if rules is None:
            rules = self._by_kind[kind] = [
                # Depends on a filter; here every row is requested by name.
                (replace(rule, only_by=None), place)
                for rule, place in zip(self.policy.read_rules, self.policy.read_places, strict=True)
                if rule.match.kinds is None or kind in rule.match.kinds
            ]
        return [(rule, place) for rule, place in rules if rule.applies_to(row, groups)]


class ReaderClasses:
    """Classes of readers, under the old set and the new."""

    def __init__(self, old: PolicySet, new: PolicySet, groups: Groups) -> None:
        self._groups = groups
        self._old, self._new = _Side(old), _Side(new)
        self._actors_differ = old.actors != new.actors
        self._is_same = not self._actors_differ and old.read_rules == new.read_rules
        self._reader_classes = _reader_classes(old.actors, new.actors, groups)
        self._view = lru_cache(_MAX_VIEWERS)(self._view_of)
        rules = (*old.read_rules, *new.read_rules)
        self._targets = {
            rule.effective_target for rule in rules if rule.effective_target is not None
        }
        self._rows: OrderedDict[tuple[Target, str], Stored] = OrderedDict()

    def _view_of(self, key: str) -> tuple[Visibility, Visibility]:
        viewer, groups = Viewer(frozenset({key})), self._groups
        return (
            visibility_for(viewer, (), self._old.policy.actors, groups),
            visibility_for(viewer, (), self._new.policy.actors, groups),
        )

    def changes(
        self, event: Event, group_id: str | None
    ) -> Mapping[Turn, Mapping[Deciding, list[str]]]:
        """Turn → rule → readers."""
        if self._is_same:
            return {}
        # The rows that it deleted are not stored.
        quiet = event.kind == kinds.DELETION and names_restricted(
            event, self._old.policy.read_rules
        )
        row = Stored(1, event, group_id, quiet)
        self._remember(row)
        before = self._old.about(row, self._groups)
        after = self._new.about(row, self._groups)
        if not self._actors_differ and [rule for rule, _ in before] == [rule for rule, _ in after]:
            return {}
        found: dict[Turn, dict[Deciding, list[str]]] = {}
        for name, (old, new) in self._readers_of(event, group_id):
            refused_by = _first(before, old, row, self._readable(self._old, before, old, row))
            now_refused_by = _first(after, new, row, self._readable(self._new, after, new, row))
            if (refused_by is None) is (now_refused_by is None):
                continue
            turn = Turn.HIDDEN if refused_by is None else Turn.SHOWN
            decides = now_refused_by or refused_by
            assert decides is not None
            found.setdefault(turn, {}).setdefault(decides, []).append(name)
        return found

    def _remember(self, row: Stored) -> None:
        for target in self._targets:
            for value in target.values_in(row.event):
                self._rows[target, value] = row
                self._rows.move_to_end((target, value))
        while len(self._rows) > _MAX_ROWS:
            self._rows.popitem(last=False)

    def _readable(
        self,
        side: _Side,
        rules: Sequence[tuple[ReadRule, Place]],
        visibility: Visibility,
        row: Stored,
    ) -> frozenset[Target]:
        """The row's targets, by these rules, of which the viewer may read a row."""
        found = set()
        for rule, _ in rules:
            target = rule.effective_target
            value = None if target is None else target.value_of(row.event)
            if target is None or value is None:
                continue
            other = self._rows.get((target, value))
            if other is not None and (
                _first(side.about(other, self._groups), visibility, other) is None
            ):
                found.add(target)
        return frozenset(found)

    def _readers_of(
        self, event: Event, group_id: str | None
    ) -> Iterator[tuple[str, tuple[Visibility, Visibility]]]:
        for name, views, is_of_a_group in self._reader_classes:
            if not is_of_a_group or group_id is not None:
                yield name, views
        yield "its author", self._view(event.pubkey)
        recipient = next((key for key in event.tag_values("p") if is_hex64(key)), None)
        if recipient is not None:
            yield "the keys in its p tags", self._view(recipient)


def _first(
    rules: Sequence[tuple[ReadRule, Place]],
    visibility: Visibility,
    row: Stored,
    readable: Set[Target] = frozenset(),
) -> Deciding | None:
    """The first rule that does not allow the viewer to read the row."""
    banned = visibility.actors.banned
    if banned and (row.event.pubkey in banned or not visibility.viewer.keys.isdisjoint(banned)):
        return "bans", None
    for rule, place in rules:
        if not visibility.allows(rule, row, None, readable):
            return rule.name, place
    return None


def _reader_classes(
    old: Actors, new: Actors, groups: Groups
) -> Sequence[tuple[str, tuple[Visibility, Visibility], bool]]:
    """(class of readers, visibility under each set, whether it depends on the row's group)."""
    inside = frozenset(groups.by_id)
    none = frozenset[str]()
    known = frozenset({Who.ANYONE, Who.KNOWN})
    member = known | {Who.MEMBER}

    def views(
        who_words: frozenset[Who],
        insider_of: frozenset[str],
        admin_of: frozenset[str],
    ) -> tuple[Visibility, Visibility]:
        keys = _NO_KNOWN_KEY if len(who_words) > 1 else none
        before, after = [
            Visibility(Viewer(keys), (), who_words, actors, groups, insider_of, admin_of)
            for actors in (old, new)
        ]
        return before, after

    classes = [
        ("anonymous readers", views(frozenset({Who.ANYONE}), none, none), False),
        ("members of other groups", views(member, none, none), False),
        ("members of its group", views(member, inside, none), True),
        ("admins of its group", views(member, inside, inside), True),
        ("agents", views(known | {Who.AGENT}, none, none), False),
        ("owners", views(known | {Who.OWNER}, none, none), False),
    ]
    if old != new:
        for key in sorted(_named_keys(old) ^ _named_keys(new))[:_KEYS]:
            viewer = Viewer(frozenset({key}))
            pair = (
                visibility_for(viewer, (), old, groups),
                visibility_for(viewer, (), new, groups),
            )
            classes.append((f"the key {key[:12]}…", pair, False))
    return classes


def _named_keys(actors: Actors) -> frozenset[str]:
    keys = actors.owners | actors.agents
    for home in actors.households:
        keys |= home.owners | home.agents
    return keys
