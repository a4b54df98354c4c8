"""Read rules, and what they are about: which rows, by which of their fields.

A rule is data; whom it lets read is `relay.access.visibility`'s question.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from relay.nostr.filters import Filter
from relay.verdict import Who

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from relay.groups.group import Groups
    from relay.nostr.event import Event
    from relay.nostr.kinds import KindSet


class Row(Protocol):
    """What a read rule looks at: an event, and what the relay noted about it when it came."""

    @property
    def event(self) -> Event: ...
    @property
    def group(self) -> str | None:
        """The group it belongs to: its `h`, the `d` of 39000–39005, the group a kind 5 acted in."""

    @property
    def quiet(self) -> bool:
        """A kind 5 that names what not everyone may read (N29-104)."""


@dataclass(frozen=True, slots=True)
class Match:
    """Which rows a rule is about; every condition that is not None must hold."""

    kinds: KindSet | None = None
    d: frozenset[str] | None = None
    d_prefixes: tuple[str, ...] | None = None
    h: bool | frozenset[str] | None = None
    """True: rows of a group; False: rows of none; ids: rows of these groups."""
    authors: frozenset[str] | None = None
    """Public keys, hex."""
    tags: tuple[tuple[str, bool | frozenset[str]], ...] = ()
    """(name, present/absent/one of these values)."""
    quiet: bool | None = None
    ended: bool | None = None
    """Rows of a group that was deleted."""
    classes: tuple[tuple[Who, frozenset[str]], ...] = ()
    """Words that the policy file has for authors, with their keys, which are among `authors`."""

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
    return any(value in wanted for value in event.tag_values(name))


@dataclass(frozen=True, slots=True)
class Target:
    """`target` of a read rule: the stored rows of these kinds that share the value of this tag."""

    kinds: frozenset[int]
    tag: str
    """A single letter: such tags can be looked up."""
    d_prefix: str | None = None
    """The `d` of the other row must be this and the value, whatever tags it has. Where many may
    put the tag on rows of these kinds, it would let in whoever knows the value."""

    def value_of(self, event: Event) -> str | None:
        """What the event shares with its targets: the first value that it has; None: none."""
        return next(iter(event.tag_values(self.tag)), None)

    @property
    def lookup_tag(self) -> str:
        """The tag by which the rows are found."""
        return self.tag if self.d_prefix is None else "d"

    def filter_for(self, *values: str) -> Filter:
        """The filter that finds the rows; by it they are asked for, also of `only_by`.

        With `d_prefix` it finds more than them: rows may have several tags `d`. See `values_in`.
        """
        found = frozenset([f"{self.d_prefix or ''}{value}" for value in values])
        return Filter(kinds=self.kinds, tags=((self.lookup_tag, found),))

    def values_in(self, event: Event) -> Sequence[str]:
        """The values by which an event is one of the rows."""
        if event.kind not in self.kinds:
            return ()
        if self.d_prefix is None:
            return event.tag_values(self.tag)
        is_under = event.d.startswith(self.d_prefix)
        return [event.d.removeprefix(self.d_prefix)] if is_under else ()


@dataclass(frozen=True, slots=True)
class ReadRule:
    """Rows that `match`, and that no `excepts` names, are read by `readers` only."""

    name: str
    match: Match
    readers: frozenset[Who]
    excepts: tuple[Match, ...] = ()
    tag_readers: tuple[str, ...] = ()
    """`tag:NAME`: a key in a tag of that name reads too."""
    only_by: frozenset[str] | None = None
    """Filter keys (`authors`, `ids`, `#p`); the row is given only to a filter that names one."""
    needs: str = "authentication is needed to read this"
    """What a REQ is told that could only match such rows, before AUTH."""
    target: Target | None = None
    """With the word `target`: who may read one of these rows reads too."""

    @property
    def effective_target(self) -> Target | None:
        """The rows whose readers this rule lets in."""
        return self.target if Who.TARGET in self.readers else None

    def applies_to(self, row: Row, groups: Groups) -> bool:
        return self.match.matches(row, groups) and not any(
            match.matches(row, groups) for match in self.excepts
        )


def targets_of(rules: Iterable[ReadRule], row: Row, groups: Groups) -> Sequence[tuple[Target, str]]:
    """What the row points to by these rules, each once: (target, the value that it shares)."""
    found: dict[Target, str] = {}
    for rule in rules:
        target = rule.effective_target
        if target is not None and target not in found and rule.applies_to(row, groups):
            value = target.value_of(row.event)
            if value is not None:
                found[target] = value
    return list(found.items())
