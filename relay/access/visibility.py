"""Visibility: what one viewer may read now.

Invariants: `Visibility.may_read` decides every read. The store compiles the same fields to SQL; a
property test compares the two. A row is readable when *every* read rule that applies to it allows
the viewer. Readers are never stored with a row, because policies and membership change. The
who-word `target` depends on other rows: the caller looks up which targets the viewer may read; a
target that was not looked up allows nothing.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from enum import Enum, auto
from itertools import chain, product
from typing import TYPE_CHECKING, Final

import msgspec

from relay.access.actors import Attestations, admitted_among, known_among, vouching
from relay.access.read_rules import Match, ReadRule, targets_of
from relay.access.shares import Standing
from relay.errors import Prefix, Reject
from relay.facts import OF_A_GROUP, Who
from relay.nostr import kinds
from relay.nostr.agents import Attestation
from relay.nostr.filters import Filter
from relay.nostr.kinds import DELETE_GROUP, GROUP_MEMBER_NOTICES, is_kind

if TYPE_CHECKING:
    from collections.abc import (
        Callable,
        Collection,
        Container,
        Hashable,
        Iterable,
        Iterator,
        Mapping,
        Sequence,
        Set,
    )

    from relay.access.actors import Actors, Household
    from relay.access.read_rules import Row, Target
    from relay.groups.group import Group, Groups
    from relay.nostr.event import Event
    from relay.nostr.kinds import KindSet

_FOR_MEMBERS: Final = "this group is for its members"
_GROUP_STATE: Final = frozenset(kinds.GROUP_STATE)
_GROUP_LISTS: Final = _GROUP_STATE - {kinds.GROUP_METADATA, kinds.GROUP_ROLES}
"""The lists of a private group that only members may read."""
_NO_KINDS: Final[frozenset[int]] = frozenset()
_NO_GROUPS: Final[frozenset[str]] = frozenset()
_NO_KEYS: Final[frozenset[str]] = frozenset()
_KNOWN: Final = frozenset({Who.KNOWN, Who.OWNER, Who.AGENT, Who.MEMBER})
_NOT_OF_HOUSEHOLDS: Final = frozenset({Who.AGENT, Who.MEMBER})
"""Words that alone do not hold for rows of a household."""
_NO_TARGETS: Final[frozenset[Target]] = frozenset()
_ANY_ROW: Final = Match()
_CACHED_KINDS: Final = 32
_MAX_COMBINATIONS: Final = 512
"""With more (kind, d, h) combinations in the filters of a query `gate` skips the rules, because
each takes 4 us of the loop; rows are still checked. With more (kind, d) in a REQ `lists_for_login`
returns None."""
_MAX_GROUPS_AND_KEYS: Final = 4096
"""With more groups in the filters of a query, times keys of the viewer, `gate` looks at no further
group: these take some 8 ms of the loop. Rows are still checked."""


class Viewer(msgspec.Struct, frozen=True, cache_hash=True):
    """Who reads."""

    keys: frozenset[str] = frozenset()
    """Keys that authenticated on the connection; none: anonymous."""
    trusted: bool = False
    """The connection comes from `[actors] trusted_readers`."""
    attested: frozenset[Attestation] = frozenset()
    """Attestations by which authenticated keys were verified to be agents of an owner (NIP-AA)."""


ANONYMOUS: Final = Viewer()
BANNED: Final = Reject(Prefix.RESTRICTED, "this key is banned here", "bans")
"""The answer to a banned key that authenticates or queries."""


class Reading(Enum):
    """Whether a viewer may read a row."""

    NEVER = auto()
    BY_FILTER = auto()
    """Only as a match of a filter that has what the `only_by` of the rules requires."""
    ALWAYS = auto()


@dataclass(frozen=True, slots=True)
class LastingRights:
    """What a Visibility has apart from the groups of its time: all that the conditions of a store
    depend on, which looks up groups in its tables."""

    viewer: Viewer
    rules: tuple[ReadRule, ...]
    global_words: frozenset[Who]
    actors: Actors
    members: frozenset[str]
    was_insider: bool


@dataclass(frozen=True, slots=True, weakref_slot=True)
class Visibility:
    """Made by `visibility_for`."""

    viewer: Viewer
    rules: tuple[ReadRule, ...]
    """The rules that may hide rows from this viewer."""
    global_words: frozenset[Who]
    """Who-words that hold for this viewer and any row."""
    actors: Actors
    groups: Groups
    insider_of: Container[str]
    """Its groups; false if there are none. A union of sets would take long to make: a viewer may
    have 64 keys, each in thousands of groups, and all change with any group."""
    admin_of: Container[str]
    """Those in which a key of its own has a role with rights."""
    was_insider_of: Container[str] = frozenset()
    """Deleted groups with a key of the viewer among their last members."""
    foreign_h: frozenset[int] = frozenset()
    """Kinds whose `h` names no group. Only `gate` needs them: their rows have no group."""
    members: frozenset[str] = frozenset()
    """Keys whose memberships are in `insider_of`: the viewer's, and those of owners that lend
    theirs."""
    known_as: str | None = None
    """The least of its known keys; if it has none, agents that one owner vouches for are known
    together. None: it has neither."""
    admitted_as: str | None = None
    """The least of its `admitted_among`."""
    lasting: LastingRights = field(default=None, compare=False, repr=False)  # type: ignore[assignment]
    """Of this Visibility; the object that was given, if it is equal. Stores keep what they have
    made of it by its `id`."""
    _of_kind: dict[int, tuple[ReadRule, ...]] = field(
        default_factory=dict, init=False, compare=False, repr=False
    )
    """The rules that may cover all rows of a kind."""
    _applying: dict[int, tuple[ReadRule, ...]] = field(
        default_factory=dict, init=False, compare=False, repr=False
    )
    """The rules that may apply to rows of a kind: a few of some 40."""

    def __post_init__(self) -> None:
        lasting = LastingRights(
            self.viewer,
            self.rules,
            self.global_words,
            self.actors,
            self.members,
            bool(self.was_insider_of),
        )
        if self.lasting != lasting:
            object.__setattr__(self, "lasting", lasting)

    @property
    def is_known(self) -> bool:
        """Whether a key of the viewer is an owner's, an agent's, a member's or allowed here."""
        return not self.global_words.isdisjoint(_KNOWN)

    @property
    def is_owner(self) -> bool:
        """Whether a key of the viewer is one of `[actors] owners`."""
        return Who.OWNER in self.global_words

    @property
    def standing(self) -> Standing:
        """Of its keys: the best that one has."""
        if self.admitted_as is not None:
            return Standing.ADMITTED
        return Standing.KNOWN if self.is_known else Standing.UNKNOWN

    def client_at(self, address: str | None) -> str | None:
        """The name that its work counts for, among those of its standing: the address, see
        `Sharer.counted_as`, or its admitted key: all members may be in one network."""
        return self.admitted_as or address

    def counted_as(self, address: str | None) -> tuple[str | None, Standing]:
        """`client_at`, and its standing."""
        return self.client_at(address), self.standing

    def share_of(self, address: str | None) -> tuple[str | None, str | None]:
        """The address and the key whose share of turns its work has, as of `ReadTurns.of`: that of
        its network is for keys that anybody may have made. All members may be in one network, and
        who is not one has sixteen."""
        if self.admitted_as is not None:
            return None, self.admitted_as
        return address, self.known_as

    def sees_group(self, group_id: str) -> bool:
        """Whether the group exists, as far as the viewer may know; owners are not told apart."""
        group = self.groups.by_id.get(group_id)
        return group is not None and (not group.is_hidden or group_id in self.insider_of)

    def reads_group(self, group_id: str) -> bool:
        """Whether the viewer may read the messages of this group, by the packaged rules."""
        return self.is_owner or self._may_read_group(group_id)

    def may_read(
        self, row: Row, filter_: Filter | None, readable_targets: Set[Target] = _NO_TARGETS
    ) -> bool:
        """Whether this viewer may receive this row as a match of this filter (None: no filter).

        `readable_targets`: the targets of the row for which `may_read_one_of` holds.
        """
        return all(
            self.allows(rule, row, filter_, readable_targets)
            for rule in self._rules_for(row.event.kind)
            if rule.applies_to(row, self.groups)
        )

    def reading(self, row: Row, readable_targets: Set[Target] = _NO_TARGETS) -> Reading:
        """The result of `may_read` for any filter, or BY_FILTER if it depends on the filter."""
        by_filter = False
        for rule in self._rules_for(row.event.kind):
            if rule.applies_to(row, self.groups):
                if not self._lets(rule, row, readable_targets):
                    return Reading.NEVER
                by_filter = by_filter or rule.only_by is not None
        return Reading.BY_FILTER if by_filter else Reading.ALWAYS

    def _rules_for(self, kind: int) -> tuple[ReadRule, ...]:
        rules = self._applying.get(kind)
        if rules is None:
            rules = tuple(
                [
                    rule
                    for rule in self.rules
                    if rule.match.kinds is None or kind in rule.match.kinds
                ]
            )
            if len(self._applying) >= _CACHED_KINDS:
                self._applying.clear()
            self._applying[kind] = rules
        return rules

    def targets_of(self, row: Row) -> Sequence[tuple[Target, str]]:
        """The look-ups that `may_read` needs: (target, value)."""
        return targets_of(self._rules_for(row.event.kind), row, self.groups)

    def may_read_one_of(self, rows: Iterable[Row], target: Target, value: str) -> bool:
        """Whether the viewer may read one of the target's rows, without further targets."""
        filter_ = target.filter_for(value)
        return any(
            value in target.values_in(row.event) and self.may_read(row, filter_) for row in rows
        )

    def without_targets(self) -> Visibility:
        """The Visibility for reading target rows: they have no targets themselves."""
        return replace(self, rules=tuple([replace(rule, target=None) for rule in self.rules]))

    def without_groups(self, group_ids: frozenset[str] | None) -> Visibility:
        """The Visibility for reading no rows of these groups, None: of all that the viewer is not
        in, and no rows that are readable like other rows."""
        if group_ids is None:
            rule = ReadRule("groups", Match(h=True), frozenset({Who.INSIDER}))
        else:
            rule = ReadRule("groups", Match(h=group_ids), frozenset({Who.NOBODY}))
        return replace(self, rules=(*self.rules, rule)).without_targets()

    @property
    def _depends_on_groups(self) -> bool:
        """Whether the viewer may read rows, or may not, because of what their group is now: not so
        of owners."""
        return any(
            not rule.readers.isdisjoint(OF_A_GROUP)
            or any(match.ended is not None for match in (rule.match, *rule.excepts))
            for rule in self.rules
        )

    def reads_targets(self, asked: frozenset[int] | None) -> bool:
        """Whether the rights to rows of these kinds (None: of any) may depend on other rows."""
        own = None if asked is None else sorted(asked)
        return any(
            rule.effective_target is not None
            and (own is None or rule.match.kinds is None or rule.match.kinds.has_one_of(own))
            for rule in self.rules
        )

    def covers(self, before: Visibility) -> bool:
        """Whether every row readable under `before` still is.

        For non-members a change in a hidden group makes no difference, because it would reveal the
        group (N29-93).
        """
        return self.lost_since(before) == frozenset()

    def lost_since(self, before: Visibility) -> frozenset[str] | None:
        """Groups of which rows may have been readable under `before` and are no more; None: also
        others."""
        if self is before:
            return frozenset()
        keeps_rest = (
            self.viewer.keys >= before.viewer.keys
            and self.viewer.trusted >= before.viewer.trusted
            and self.global_words >= before.global_words
            # Mostly the same objects; to look for each among all takes 0.1 ms.
            and (self.rules == before.rules or all(rule in before.rules for rule in self.rules))
            and self.actors.households == before.actors.households
            and self.members >= before.members
        )
        return self._groups_lost_since(before) if keeps_rest else None

    def _groups_lost_since(self, before: Visibility) -> frozenset[str]:
        groups, earlier = self.groups, before.groups
        if groups is earlier or not before._depends_on_groups:
            return frozenset()
        changed = groups.by_id.differing(earlier.by_id)
        ended = groups.ended.differing(earlier.ended)
        was, is_now = before.was_insider_of, self.was_insider_of
        return frozenset(
            [each for each in changed if not self._covers_group(each, before)]
            + [each for each in ended if each in was and each not in is_now]
        )

    def _covers_group(self, group_id: str, before: Visibility) -> bool:
        """Whether the viewer has the same part in the group, if any; and it has not become hidden
        or ended, nor private, if it was not."""
        if group_id in before.insider_of and group_id not in self.insider_of:
            return False
        if group_id in before.admin_of and group_id not in self.admin_of:
            return False
        group, after = before.groups.get(group_id), self.groups.get(group_id)
        if group is None or group.is_hidden:
            return True
        return (
            after is not None
            and not after.is_hidden
            and (group.only_members_read or not after.only_members_read)
        )

    def allows(
        self,
        rule: ReadRule,
        row: Row,
        filter_: Filter | None,
        readable_targets: Set[Target] = _NO_TARGETS,
    ) -> bool:
        """Whether a rule that applies to this row lets this viewer read it."""
        if rule.only_by is not None and not names_one_of(filter_, rule.only_by):
            return False
        return self._lets(rule, row, readable_targets)

    def _lets(self, rule: ReadRule, row: Row, readable_targets: Set[Target]) -> bool:
        """`allows`, for a filter that satisfies `only_by`."""
        readers = rule.readers
        keys = self.viewer.keys
        if readers & self.global_words and (
            self.allows_every_row(readers) or not self.actors.in_household(row.event.pubkey)
        ):
            return True
        if Who.AUTHOR in readers and row.event.pubkey in keys:
            return True
        if Who.GROUP in readers and row.group is not None and self._may_read_group(row.group):
            return True
        if Who.VISIBLE in readers and row.group is not None and self.sees_group(row.group):
            return True
        if Who.INSIDER in readers and row.group in self.insider_of:
            return True
        if Who.ADMIN in readers and row.group in self.admin_of:
            return True
        if readable_targets and rule.effective_target in readable_targets:
            return True
        if keys:
            if Who.RECIPIENT in readers and row.event.has_value("p", keys):
                return True
            for name in rule.tag_readers:
                if row.event.has_value(name, keys):
                    return True
            if row.event.kind in kinds.GROUP_RECORDS:
                readers -= {Who.OWNER}  # an agent's group is not its owner's
            for household in self.actors.households:
                if household.has(row.event.pubkey) and self.allows_household(readers, household):
                    return True
        return False

    def allows_every_row(self, readers: frozenset[Who]) -> bool:
        """Whether one of the words allows this viewer every row, whoever the author is."""
        return _hold_for_every_row(readers & self.global_words, self.actors)

    def _may_read_group(self, group_id: str) -> bool:
        group = self.groups.by_id.get(group_id)
        if group is not None:
            return not group.only_members_read or group_id in self.insider_of
        ended = self.groups.ended.get(group_id)
        return ended is not None and (ended.is_public or group_id in self.was_insider_of)

    def allows_household(self, readers: frozenset[Who], household: Household) -> bool:
        """Whether one of the words allows this viewer the household's rows, as one of its keys. For
        records of groups (`GROUP_RECORDS`) the caller leaves OWNER out."""
        keys = self.viewer.keys
        return (
            (Who.OWNER in readers and not keys.isdisjoint(household.owners))
            or (Who.AGENT in readers and not keys.isdisjoint(household.agents))
            or (Who.MEMBER in readers & self.global_words and any(map(household.has, keys)))
        )

    def gate(self, filters: Sequence[Filter]) -> Reject | None:
        """Why these filters can only match rows that this viewer may not read, or None.

        NIP-29 "private", G-18, G-19. The same for a hidden group as for one that does not exist
        (N29-93).
        """
        if not filters:
            return None
        if not self.viewer.keys.isdisjoint(self.actors.banned):
            return BANNED
        needs, combinations = "", 0
        hidden = set[tuple[str, bool]]()
        for filter_ in filters:
            if filter_.kinds is None and not filter_.tags:
                return None  # it can match rows that anyone may read
            combinations += _number_of_combinations(filter_)
            reason = self._unreadable(filter_, combinations, hidden)
            if reason is None:
                return None
            needs = needs or reason
        if not self.viewer.keys:
            return Reject(Prefix.AUTH_REQUIRED, needs, "read")
        return Reject(Prefix.RESTRICTED, "you may not read this", "read")

    def lists_for_login(self, filters: Sequence[Filter]) -> Reject | None:
        """The CLOSED for a REQ of an anonymous viewer after its rows, or None.

        For a REQ that asks by `#d` for the state of groups, when of each the viewer may not read a
        list that members may (39001, 39002 …). The same for a group that is hidden or does not
        exist (N29-108).
        """
        if self.viewer.keys or not filters or not all(map(_names_group_state, filters)):
            return None
        if sum(map(_lists_in, filters)) > _MAX_COMBINATIONS:
            return None
        if not all(map(self._misses_lists, filters)):
            return None
        return Reject(Prefix.AUTH_REQUIRED, _FOR_MEMBERS, "read")

    def _misses_lists(self, filter_: Filter) -> bool:
        asked = sorted((filter_.kinds or _NO_KINDS) & _GROUP_LISTS)
        group_ids = filter_.tag_values("d")
        if not asked or not group_ids:
            return False
        return all(
            any(self._is_list_hidden(kind, group_id) for kind in asked) for group_id in group_ids
        )

    def _is_list_hidden(self, kind: int, group_id: str) -> bool:
        """Whether a rule hides this group's 39001–39005 from an anonymous viewer."""
        readable = {Who.GROUP} if self._may_read_group(group_id) else set()
        return any(
            _covers(rule, kind, group_id, in_group=True)
            and rule.readers.isdisjoint(self.global_words | readable)
            for rule in self.rules
        )

    def _unreadable(
        self, filter_: Filter, combinations: int, hidden: set[tuple[str, bool]]
    ) -> str | None:
        """The CLOSED text if the viewer may read no row that the filter could match, else None.

        `combinations`: of this filter and those before it; with too many only its groups are
        checked. `hidden`: groups of these filters for which `_may_read_of` does not hold.
        """
        if filter_.impossible:
            return None
        needs = None if combinations > _MAX_COMBINATIONS else self._hidden_by_rules(filter_)
        group_ids = filter_.tag_values("h")
        names_foreign = filter_.kinds is not None and not filter_.kinds.isdisjoint(self.foreign_h)
        if (
            needs is None
            and group_ids
            and not names_foreign
            and self._hidden_by_groups(group_ids, filter_.kinds, hidden)
        ):
            return _FOR_MEMBERS
        return needs

    def _hidden_by_rules(self, filter_: Filter) -> str | None:
        """`needs` of a rule that hides rows, if rules hide every row that the filter could match;
        else None."""
        needs, kinds = "", filter_.kinds
        if kinds is None or not all(map(self._covering, kinds)):
            return None
        for kind, d, in_group in _combinations(filter_, kinds, self.foreign_h):
            rule = self._blocking_rule(filter_, kind, d, in_group=in_group)
            if rule is None:
                return None
            needs = needs or rule.needs
        return needs

    def _hidden_by_groups(
        self,
        group_ids: Iterable[str],
        kinds: frozenset[int] | None,
        hidden: set[tuple[str, bool]],
    ) -> bool:
        if self.global_words & {Who.OWNER, Who.AGENT}:
            return False  # records whose `h` is a label (G-31) are hidden by no group
        keys = self.viewer.keys
        if any(household.has(key) for household in self.actors.households for key in keys):
            return False  # nor are rows of a household, from its own keys
        if kinds is not None and not kinds.isdisjoint(GROUP_MEMBER_NOTICES):
            return False  # nor is the notice that its reader has left the group
        may_end = kinds is None or DELETE_GROUP in kinds
        most = _MAX_GROUPS_AND_KEYS // max(1, len(keys))
        for group_id in group_ids:
            asked = group_id, may_end
            if asked not in hidden:
                if len(hidden) >= most or self._may_read_of(*asked):
                    return False
                hidden.add(asked)
        return True

    def _may_read_of(self, group_id: str, may_end: bool) -> bool:  # noqa: FBT001
        """Whether the viewer may read rows of the group. `may_end`: also its 9008, the only one of
        a deleted group that can be read."""
        group = self.groups.by_id.get(group_id)
        if self._may_read_group(group_id) and (may_end or group is not None):
            return True
        return group is not None and any(map(group.involved.__contains__, self.viewer.keys))

    def _blocking_rule(
        self, filter_: Filter, kind: int, d: str | None, *, in_group: bool
    ) -> ReadRule | None:
        for rule in self._covering(kind):
            if _covers(rule, kind, d, in_group=in_group) and not self._might_allow(
                rule, filter_, in_group=in_group
            ):
                return rule
        return None

    def _covering(self, kind: int) -> tuple[ReadRule, ...]:
        rules = self._of_kind.get(kind)
        if rules is None:
            rules = tuple(
                [
                    rule
                    for rule in self.rules
                    if rule.match.kinds is not None and kind in rule.match.kinds
                ]
            )
            if len(self._of_kind) >= _CACHED_KINDS:
                self._of_kind.clear()
            self._of_kind[kind] = rules
        return rules

    def _might_allow(self, rule: ReadRule, filter_: Filter, *, in_group: bool) -> bool:
        readers, keys = rule.readers, self.viewer.keys
        if readers & self.global_words or self.actors.households:
            return True
        if readers & {Who.VISIBLE, Who.GROUP} and in_group:
            return True
        if Who.AUTHOR in readers and _overlap(filter_.authors, keys):
            return True
        if readers & {Who.INSIDER, Who.ADMIN} and in_group and self.insider_of:
            return True
        if Who.RECIPIENT in readers and _overlap(filter_.tag_values("p"), keys):
            return True
        if any(_overlap(filter_.tag_values(name), keys) for name in rule.tag_readers):
            return True
        if rule.effective_target is None:
            return False
        targets = Filter(kinds=rule.effective_target.kinds)
        return self.without_targets()._unreadable(targets, 0, set()) is None


def everything_visible(actors: Actors, groups: Groups) -> Visibility:
    """No rule applies: for the relay itself (replay, export by the owner of the data folder)."""
    owner = frozenset({Who.OWNER})
    return Visibility(ANONYMOUS, (), owner, actors, groups, frozenset(), frozenset())


def visibility_for(
    viewer: Viewer,
    rules: Sequence[ReadRule],
    actors: Actors,
    groups: Groups,
    foreign_h: frozenset[int] = frozenset(),
    *,
    shows_banned: bool = False,
    vouchers: dict[str, bool] | None = None,
    lasting: LastingRights | None = None,
) -> Visibility:
    """What `viewer` may read, with the actors and memberships of now.

    `lasting`: of an earlier Visibility of the viewer.
    `vouchers`: the `owners` of `vouching`, for many viewers.
    `shows_banned`: rows by banned authors too, unless the viewer is banned itself. Nobody is known
    through a banned key either way.
    """
    if actors.banned and not (shows_banned and viewer.keys.isdisjoint(actors.banned)):
        rules = (*rules, _ban_rule(viewer, actors))
    words = {Who.ANYONE}
    keys = viewer.keys - actors.banned
    if not keys.isdisjoint(actors.owners) or actors.relay in keys:
        words.add(Who.OWNER)
    if not keys.isdisjoint(actors.agents):
        words.add(Who.AGENT)
    known = known_among(keys, actors, groups)
    known_as = min(known) if known else None
    admitted = admitted_among(known, actors, groups) if known else None
    lenders = _NO_KEYS
    if viewer.attested:
        lenders = _lenders(viewer, keys, actors, groups, {} if vouchers is None else vouchers)
        if lenders and known_as is None:
            known_as = f"agents of {min(lenders)}"
    if known_as is not None:
        words.add(Who.KNOWN)
    if actors.attestations is not Attestations.GROUPS:
        lenders = _NO_KEYS
    members = keys | lenders if lenders else keys
    insider = _one_of([groups.groups_of(key) for key in members])
    if insider:
        words.add(Who.MEMBER)
    if viewer.trusted:
        words.add(Who.TRUSTED)
    restricting = tuple(
        rule
        for rule in rules
        if rule.only_by is not None or not _hold_for_every_row(rule.readers & words, actors)
    )
    return Visibility(
        viewer,
        restricting,
        frozenset(words),
        actors,
        groups,
        insider,
        _Moderated(groups, viewer.keys) if insider else _NO_GROUPS,
        _one_of([groups.ended_with(key) for key in viewer.keys]),
        foreign_h,
        members,
        known_as,
        min(admitted) if admitted else None,
        lasting,  # type: ignore[arg-type]
    )


class RowReaders:
    """Which viewers read a row alike: those of whom the same who-words hold that its rules name,
    and who have the same ones of the keys that the row or the policy names. To find that out takes
    a twentieth of a Visibility, which then is made for one of them only."""

    __slots__ = ("_named", "_only_by", "_tests")

    def __init__(
        self,
        named: frozenset[str],
        tests: Sequence[Callable[[Set[str]], bool]],
        only_by: Set[frozenset[str]],
    ) -> None:
        """`tests`: for each word, whether it holds of one of these keys."""
        self._named = named
        self._tests = tests
        self._only_by = only_by

    def may_read_by(self, filter_: Filter) -> bool:
        """Whether a viewer whose `Visibility.reading` of the row is BY_FILTER may read it as a
        match of this filter."""
        return all(names_one_of(filter_, only_by) for only_by in self._only_by)

    def alike(self, viewer: Viewer) -> Hashable:
        """Equal for viewers who read the row alike: what words hold, as bits, and the named keys,
        or the viewer."""
        if viewer.trusted:
            return viewer
        if viewer.attested:
            owners = {attestation.owner for attestation in viewer.attested}
            # They may lend what they are.
            if not owners.isdisjoint(self._named) or self._words_of(owners):
                return viewer
        named, words = viewer.keys & self._named, self._words_of(viewer.keys)
        return (named, words) if named else words

    def _words_of(self, keys: Set[str]) -> int:
        words = 0
        for number, test in enumerate(self._tests):
            if test(keys):
                words |= 1 << number
        return words


def row_readers(
    row: Row, rules: Iterable[ReadRule], actors: Actors, groups: Groups
) -> RowReaders | None:
    """None: it also depends on other rows."""
    readers = set[Who]()
    names = set[str]()
    only_by = set[frozenset[str]]()
    for rule in rules:
        if rule.applies_to(row, groups):
            if rule.effective_target is not None:
                return None
            readers |= rule.readers
            names.update(rule.tag_readers)
            if rule.only_by is not None:
                only_by.add(rule.only_by)
    if Who.RECIPIENT in readers:
        names.add("p")
    event = row.event
    named = [tag[1] for tag in event.tags if len(tag) > 1 and tag[0] in names]
    of_households = chain.from_iterable([home.keys for home in actors.households])
    special = (actors.agents, actors.banned, (actors.relay, event.pubkey), of_households, named)
    tests = _tests_of(readers, row.group, actors, groups)
    return RowReaders(actors.owners.union(*special), tests, only_by)


class _MembersAsked:
    """Whether one of some keys is a member of a group, or moderates it. Keys are looked up, 1 us
    each, until that has taken about as long as to list all members, 0.1 us each."""

    __slots__ = ("_admins", "_group", "_left", "_members")

    def __init__(self, group: Group) -> None:
        self._group = group
        self._left = len(group.members) // 10
        """Keys to look up until members are listed."""
        self._members: frozenset[str] | None = None
        self._admins = frozenset[str]()

    def is_among(self, keys: Set[str]) -> bool:
        self._count(keys)
        if self._members is not None:
            return not self._members.isdisjoint(keys)
        return any(map(self._group.members.__contains__, keys))

    def is_moderated_by(self, keys: Set[str]) -> bool:
        self._count(keys)
        if self._members is not None:
            return not self._admins.isdisjoint(keys)
        return any(map(self._group.is_moderated_by, keys))

    def _count(self, keys: Set[str]) -> None:
        self._left -= len(keys)
        if self._left < 0 and self._members is None:
            members = self._group.members
            self._members = frozenset(members)
            with_roles = [key for key, roles in members.items() if roles]
            self._admins = frozenset(filter(self._group.is_moderated_by, with_roles))


def _tests_of(
    readers: Set[Who], group_id: str | None, actors: Actors, groups: Groups
) -> list[Callable[[Set[str]], bool]]:
    """Of the words that may hold of keys that nobody names."""
    tests: list[Callable[[Set[str]], bool]] = []
    if Who.KNOWN in readers:
        tests.append(lambda keys: bool(known_among(keys, actors, groups)))
    if Who.MEMBER in readers:
        tests.append(lambda keys: bool(groups.memberships.among(keys)))
    if group_id is None or readers.isdisjoint(OF_A_GROUP):
        return tests
    group = groups.get(group_id)
    if group is None:
        return [*tests, lambda keys: any(group_id in groups.ended_with(key) for key in keys)]
    asked = _MembersAsked(group)
    return [*tests, asked.is_among, asked.is_moderated_by]


def _lenders(
    viewer: Viewer, keys: Set[str], actors: Actors, groups: Groups, vouchers: dict[str, bool]
) -> frozenset[str]:
    """The owners that vouch for one of these keys."""
    about = [attestation for attestation in viewer.attested if attestation.agent in keys]
    return frozenset([each.owner for each in vouching(about, actors, groups, vouchers)])


class _OneOf:
    """What is in one of several sets, at least one of which is not empty."""

    __slots__ = ("_sets",)

    def __init__(self, sets: Sequence[Set[str]]) -> None:
        self._sets = sets

    def __contains__(self, group_id: object) -> bool:
        return any(group_id in each for each in self._sets)


class _Moderated:
    """The groups in which one of the keys has a role with rights."""

    __slots__ = ("_groups", "_keys")

    def __init__(self, groups: Groups, keys: Set[str]) -> None:
        self._groups = groups
        self._keys = keys

    def __contains__(self, group_id: object) -> bool:
        group = self._groups.get(group_id) if isinstance(group_id, str) else None
        return group is not None and any(map(group.is_moderated_by, self._keys))


def _one_of(sets: Iterable[Set[str]]) -> Container[str]:
    filled = [each for each in sets if each]
    if not filled:
        return _NO_GROUPS
    return filled[0] if len(filled) == 1 else _OneOf(filled)


def _hold_for_every_row(words: Set[Who], actors: Actors) -> bool:
    """Whether these words hold for every row, whoever the author is."""
    return bool(words) and not (words <= _NOT_OF_HOUSEHOLDS and actors.households)


def _ban_rule(viewer: Viewer, actors: Actors) -> ReadRule:
    """Hides rows by banned authors; from a banned viewer it hides all rows."""
    authors = None if not viewer.keys.isdisjoint(actors.banned) else actors.banned
    return ReadRule("bans", Match(authors=authors), frozenset({Who.NOBODY}))


def names_restricted(deletion: Event, rules: Sequence[ReadRule]) -> bool:
    """Whether a kind 5 names a kind that not everyone may read (N29-104)."""
    named: dict[int, set[str | None]] = {}
    for value in deletion.tag_values("k"):
        if is_kind(value):
            named.setdefault(int(value), set()).add(None)
    for value in deletion.tag_values("a"):
        kind, _, rest = value.partition(":")
        if is_kind(kind):
            named.setdefault(int(kind), set()).add(rest.partition(":")[2])
    return one_is_restricted(rules, named)


def one_is_restricted(rules: Sequence[ReadRule], named: Mapping[int, Set[str | None]]) -> bool:
    """Whether a rule hides events of one of these kinds from somebody, whatever the group
    (N29-104); `named`: kind → values of `d`, None: any.

    The rules are gone through once for all: there may be 5,000 kinds and values.
    """
    ascending = sorted(named)
    return any(
        match.d_prefixes is None
        or any(d is None or d.startswith(match.d_prefixes) for d in named[kind])
        for rule in rules
        for match in [rule.match]
        if match.kinds is not None
        and Who.ANYONE not in rule.readers
        and match.quiet is None
        and match.ended is None
        and match.h is not True
        for kind in match.kinds.among(ascending)
    )


def names_one_of(filter_: Filter | None, only_by: frozenset[str]) -> bool:
    if filter_ is None:
        return False
    return (
        ("authors" in only_by and filter_.authors is not None)
        or ("ids" in only_by and filter_.ids is not None)
        or any("#" + name in only_by for name, _ in filter_.tags)
    )


def _names_group_state(filter_: Filter) -> bool:
    return filter_.kinds is not None and filter_.kinds <= _GROUP_STATE and not filter_.impossible


def _lists_in(filter_: Filter) -> int:
    """How many lists of groups (39001, 39002 …) the filter names."""
    return len((filter_.kinds or _NO_KINDS) & _GROUP_LISTS) * len(filter_.tag_values("d") or ())


def _overlap(values: Collection[str] | None, keys: frozenset[str]) -> bool:
    """Whether the condition (None: no condition) admits one of these keys."""
    return bool(keys) if values is None else not keys.isdisjoint(values)


def _number_of_combinations(filter_: Filter) -> int:
    """Upper bound of the number of items of `_combinations`."""
    return 2 * len(filter_.kinds or ()) * len(filter_.tag_values("d") or (None,))


def _combinations(
    filter_: Filter, kinds: frozenset[int], foreign_h: frozenset[int]
) -> Iterator[tuple[int, str | None, bool]]:
    """(kind, d or None for any, whether in a group) of the rows of these kinds that the filter can
    match."""
    ds: list[str | None] = [*(filter_.tag_values("d") or (None,))]
    names_groups = filter_.tag_values("h") and kinds.isdisjoint(foreign_h)
    in_group = [True] if names_groups else [False, True]
    return product(sorted(kinds), ds, in_group)


def _covers(rule: ReadRule, kind: int, d: str | None, *, in_group: bool) -> bool:
    """Whether the rule applies to every row of this kind and d, inside or outside of groups."""
    match = rule.match
    if match.quiet is not None or match.ended is not None or match.tags or match.d is not None:
        return False
    if match.authors is not None or isinstance(match.h, frozenset):
        return False
    if match.kinds is None or kind not in match.kinds:
        return False
    if match.h is not None and match.h is not in_group:
        return False
    if match.d_prefixes is not None and not (d is not None and d.startswith(match.d_prefixes)):
        return False
    return not any(_might_match(other, kind, d, in_group=in_group) for other in rule.excepts)


def covers_groups(rule: ReadRule, kinds: KindSet) -> bool:
    """Whether the rule applies to every row of these kinds in groups."""
    match = rule.match
    return (
        replace(match, kinds=None, h=None, classes=()) == _ANY_ROW
        and (match.kinds is None or match.kinds.covers(kinds))
        and (match.h is None or match.h is True)
        and not any(
            other.h is not False and (other.kinds is None or other.kinds.overlaps(kinds))
            for other in rule.excepts
        )
    )


def _might_match(match: Match, kind: int, d: str | None, *, in_group: bool) -> bool:
    """Whether some row of this kind and d, inside or outside of groups, could match."""
    if match.kinds is not None and kind not in match.kinds:
        return False
    if isinstance(match.h, bool) and match.h is not in_group:
        return False
    return not (
        match.d_prefixes is not None
        and d is not None
        and not d.endswith(":")
        and not d.startswith(match.d_prefixes)
    )
