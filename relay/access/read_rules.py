"""Read rules as data: which rows a rule applies to, and who may read them.

`relay.access.visibility` evaluates them for a viewer.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Protocol

from relay.facts import Who
from relay.nostr.filters import Filter
from relay.nostr.kinds import ALL_KINDS, KindSet

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from relay.groups.group import Groups
    from relay.nostr.event import Event

RULE_TAGS: Final = frozenset({"enc", "snow:tier", "visibility", "scope"})
"""Tag names of more than a letter that packaged read rules use: a store indexes them, and no filter
may name them."""


class Row(Protocol):
    """A row as a read rule sees it: an event, and the columns that the relay stores with it."""

    @property
    def event(self) -> Event: ...
    @property
    def group(self) -> str | None:
        """The event's `h`, the `d` of 39000–39005, or the group of the event that it deletes or
        names."""

    @property
    def quiet(self) -> bool:
        """True for a kind 5 that names something that not everyone may read (N29-104)."""


@dataclass(frozen=True, slots=True)
class Match:
    """A condition on rows; every field that is not None must hold."""

    kinds: KindSet | None = None
    d: frozenset[str] | None = None
    d_prefixes: tuple[str, ...] | None = None
    h: bool | frozenset[str] | None = None
    """True: rows of any group; False: rows of none; ids: rows of these groups."""
    authors: frozenset[str] | None = None
    """Public keys, hex."""
    tags: tuple[tuple[str, bool | frozenset[str]], ...] = ()
    """(name, True: present, False: absent, or one of these values)."""
    quiet: bool | None = None
    ended: bool | None = None
    """True: only rows of deleted groups; False: only others."""
    classes: tuple[tuple[Who, frozenset[str]], ...] = ()
    """Who-words for authors in the policy file, with their keys; `authors` includes these."""

    @property
    def looks_at_text(self) -> bool:
        """Whether it depends on tags or `d` of the event."""
        return bool(self.tags) or self.d is not None or self.d_prefixes is not None

    def matches(self, row: Row, groups: Groups) -> bool:
        event = row.event
        if self.kinds is not None and event.kind not in self.kinds:
            return False
        if self.h is not None and not _h_holds(self.h, row.group):
            return False
        if self.quiet is not None and row.quiet is not self.quiet:
            return False
        if self.ended is not None and (row.group in groups.ended) is not self.ended:
            return False
        if self.authors is not None and event.pubkey not in self.authors:
            return False
        if self.d is not None and event.d not in self.d:
            return False
        if self.d_prefixes is not None and not event.d.startswith(self.d_prefixes):
            return False
        return all(_tag_holds(event, name, wanted) for name, wanted in self.tags)


def _h_holds(wanted: bool | frozenset[str], group: str | None) -> bool:  # noqa: FBT001
    if isinstance(wanted, bool):
        return (group is not None) is wanted
    return group in wanted


def _tag_holds(event: Event, name: str, wanted: bool | frozenset[str]) -> bool:  # noqa: FBT001
    if isinstance(wanted, bool):
        return any(len(tag) > 1 and tag[0] == name for tag in event.tags) is wanted
    return event.has_value(name, wanted)


@dataclass(frozen=True, slots=True)
class Target:
    """`target` of a read rule: the stored rows of these kinds that share the value of this tag."""

    kinds: frozenset[int]
    tag: str
    """A single letter: such tags can be looked up."""
    d_prefix: str | None = None
    """The `d` of the target row must be this prefix and the value; its tags are ignored. Needed
    where anybody may write a row with the tag: they could read whatever value they know."""

    def value_of(self, event: Event) -> str | None:
        """The event's first value of the tag; its target rows have the same."""
        return next(iter(event.tag_values(self.tag)), None)

    @property
    def lookup_tag(self) -> str:
        """The tag by which the target rows are looked up."""
        return self.tag if self.d_prefix is None else "d"

    def filter_for(self, *values: str) -> Filter:
        """The filter by which the target rows are looked up and, with `only_by`, may be read.

        With `d_prefix` it may match other rows, which have several `d` tags: see `values_in`.
        """
        found = frozenset([f"{self.d_prefix or ''}{value}" for value in values])
        return Filter(kinds=self.kinds, tags=((self.lookup_tag, found),))

    def values_in(self, event: Event) -> Sequence[str]:
        """The values for which this event is a target row."""
        if event.kind not in self.kinds:
            return ()
        if self.d_prefix is None:
            return event.tag_values(self.tag)
        is_under = event.d.startswith(self.d_prefix)
        return [event.d.removeprefix(self.d_prefix)] if is_under else ()


@dataclass(frozen=True, slots=True)
class ReadRule:
    """Only `readers` may read the rows that match and that no `excepts` matches."""

    name: str
    match: Match
    readers: frozenset[Who]
    excepts: tuple[Match, ...] = ()
    tag_readers: tuple[str, ...] = ()
    """`tag:NAME`: keys in tags of that name may read too."""
    only_by: frozenset[str] | None = None
    """Filter keys (`authors`, `ids`, `#p`): the row matches only filters with one of these keys."""
    needs: str = "authentication is needed to read this"
    """CLOSED text for an anonymous REQ that could only match such rows."""
    target: Target | None = None
    """For the who-word `target`: a viewer who may read one of these rows may read this row."""

    @property
    def effective_target(self) -> Target | None:
        """`target`, if `readers` has the who-word."""
        return self.target if Who.TARGET in self.readers else None

    def applies_to(self, row: Row, groups: Groups) -> bool:
        return self.match.matches(row, groups) and not any(
            match.matches(row, groups) for match in self.excepts
        )


def judged_by_text(rules: Iterable[ReadRule]) -> KindSet:
    """Kinds of rows of which some rule looks at tags or `d`."""
    found: list[tuple[int, int]] = []
    for rule in rules:
        own = rule.match.kinds or ALL_KINDS
        if rule.tag_readers or not rule.readers.isdisjoint((Who.RECIPIENT, Who.TARGET)):
            found += own.ranges
        for match in (rule.match, *rule.excepts):
            if match.looks_at_text:
                found += (match.kinds or own).ranges
    return KindSet.of(*found)


def targets_of(rules: Iterable[ReadRule], row: Row, groups: Groups) -> Sequence[tuple[Target, str]]:
    """(target, value) of each rule that applies to the row; each target once."""
    found: dict[Target, str] = {}
    for rule in rules:
        target = rule.effective_target
        if target is not None and target not in found and rule.applies_to(row, groups):
            value = target.value_of(row.event)
            if value is not None:
                found[target] = value
    return list(found.items())
