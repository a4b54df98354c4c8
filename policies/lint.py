"""Warnings about valid policy files: rules without effect, who-words that no key has.

Invariants: a warning is always right and names a line of the admin's files. A file with warnings is
still accepted.
"""

from __future__ import annotations

from dataclasses import fields
from typing import TYPE_CHECKING, Final

from policies.describe import match_text
from policies.load import INCLUDED, KNOWN_WRITE
from policies.write_rule import Place
from relay.errors import Fault
from relay.facts import OF_A_GROUP, Who
from relay.lifecycle.retention import MaxAge
from relay.lifecycle.rows import Keep, keep_by_kind
from relay.nostr.kinds import GROUP_STATE, KindSet, is_ephemeral

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from policies.conditions import Condition
    from policies.engine import PolicySet
    from policies.write_rule import WriteRule
    from relay.access.read_rules import Match, ReadRule
    from relay.lifecycle.retention import SweepRule, SweepRules

    Question = Condition | Match

PACKAGED: Final = "packaged/"
_BY_RELAY: Final = KindSet.of((GROUP_STATE.start, GROUP_STATE.stop - 1))
_WITH_ADDRESS: Final = KindSet.of((0, 0), (3, 3), (10_000, 19_999), (30_000, 39_999))


def warnings_of(found: PolicySet) -> Sequence[Fault]:
    """All warnings, by file and line."""
    warnings = [
        *found.notes,
        *_about_writing(found),
        *_about_reading(found),
        *_about_keeping(found),
        *_about_history(found),
        *_about_sweeping(found),
    ]
    order = {name: number for number, name in enumerate(found.files)}
    return sorted(dict.fromkeys(warnings), key=lambda each: (order.get(each.file, -1), each.line))


def is_packaged(place: Place) -> bool:
    return place.file.startswith(PACKAGED)


def _at(place: Place, text: str) -> Fault:
    return Fault(place.file, place.line, f'"{place.name}" {text}')


def _named(place: Place) -> str:
    return f'"{place.name}" ({place.file}:{place.line})'


# -- writing ------------------------------------------------------------------------------------


def _about_writing(found: PolicySet) -> Iterator[Fault]:
    for number, rule in enumerate(found.write_rules):
        if is_packaged(rule.place):
            continue
        never = _never(rule.match, rule.excepts, found)
        if never is None and _is_within(rule.match.kinds, _BY_RELAY):
            never = "these kinds are signed by the relay alone"
        if never is not None:
            yield _at(rule.place, f"can never match: {never}")
            continue
        if rule.writers is None:
            continue
        if Who.NOBODY not in rule.writers and not _somebody(rule.writers, rule.match, found):
            yield _at(rule.place, f"lets nobody write: {_why_nobody(rule.writers)}")
        elif Who.ANYONE in rule.writers:
            asks_more = rule.asks_form or rule.usage_limit is not None
            if not asks_more and rule.place.name != KNOWN_WRITE:
                yield _at(rule.place, _does_nothing(rule, found))
        else:
            barrier = _earlier_refusing_all(rule, found.write_rules[:number], found)
            if barrier is not None:
                yield _at(
                    rule.place,
                    "accepts nobody: the authors it allows are refused by the earlier rule "
                    f"{_named(barrier.place)}",
                )
                continue
            shadow = _earlier_refusing_same(rule, found.write_rules[:number], found)
            if shadow is not None:
                yield _at(
                    rule.place,
                    "has no effect: the authors it refuses are already refused by the earlier rule "
                    f"{_named(shadow.place)}",
                )


def _does_nothing(rule: WriteRule, found: PolicySet) -> str:
    """A rule can only refuse; an admin who writes "anyone" expects it to allow something."""
    text = 'does nothing: a rule can only refuse, and write = ["anyone"] refuses nobody'
    others = [
        other
        for other in found.write_rules
        if other.writers is not None
        and Who.ANYONE not in other.writers
        and _covers(other, rule.match)
    ]
    if not others:
        return text
    return f"{text}; {_named(others[-1].place)} decides who may write there: change that rule"


def _earlier_refusing_all(
    rule: WriteRule, earlier: Sequence[WriteRule], found: PolicySet
) -> WriteRule | None:
    """An earlier rule that matches all events of this one and refuses all authors it allows."""
    assert rule.writers is not None
    allowed = [who for who in _profiles(found) if not rule.writers.isdisjoint(who)]
    for other in earlier:
        if other.writers is None or not _covers(other, rule.match):
            continue
        if allowed and all(other.writers.isdisjoint(who) for who in allowed):
            return other
    return None


def _earlier_refusing_same(
    rule: WriteRule, earlier: Sequence[WriteRule], found: PolicySet
) -> WriteRule | None:
    """An earlier rule that matches all events of this one and refuses all authors it refuses.

    Except the preset's rule: repeating its writers is harmless.
    """
    assert rule.writers is not None
    refused = [who for who in _profiles(found) if rule.writers.isdisjoint(who)]
    for other in earlier:
        if other.place.name == KNOWN_WRITE:
            continue
        if other.writers is None or not _covers(other, rule.match):
            continue
        if all(other.writers.isdisjoint(who) for who in refused):
            return other
    return None


def _covers(other: WriteRule, match: Condition) -> bool:
    return covers(other.match, match) and not any(
        _may_meet(spared.kinds, match.kinds) for spared in other.excepts
    )


def _profiles(found: PolicySet) -> Sequence[frozenset[Who]]:
    """The who-words an author can have in a group, as `author_words` gives them."""
    outside = frozenset({Who.ANYONE, Who.AUTHOR})
    known = outside | {Who.KNOWN}
    member = known | {Who.MEMBER}
    insider = member | {Who.INSIDER}
    profiles = [outside, known, member, insider, insider | {Who.ADMIN}, insider | {Who.AGENT}]
    actors = found.actors
    if actors.agents or actors.households:
        profiles += [known | {Who.AGENT}, member | {Who.AGENT}]
    if actors.owners or actors.households:
        owner = known | {Who.OWNER, Who.ADMIN}
        profiles += [owner, owner | member, owner | insider]
        if actors.owners & actors.agents:
            profiles.append(owner | {Who.AGENT})
    return profiles


# -- reading ------------------------------------------------------------------------------------


def _about_reading(found: PolicySet) -> Iterator[Fault]:
    for rule, place in zip(found.read_rules, found.read_places, strict=True):
        if is_packaged(place):
            continue
        never = _never(rule.match, rule.excepts, found)
        if never is not None:
            yield _at(place, f"can never match: {never}")
        elif Who.ANYONE in rule.readers and rule.only_by is None:
            yield _at(place, _hides_nothing(rule, found))
        elif (
            Who.NOBODY not in rule.readers
            and not rule.tag_readers
            and not _somebody(rule.readers, rule.match, found)
        ):
            yield _at(place, f"lets nobody read: {_why_nobody(rule.readers)}")


def _hides_nothing(rule: ReadRule, found: PolicySet) -> str:
    text = 'does nothing: a rule can only hide, and read = ["anyone"] hides nothing'
    for other, place in zip(found.read_rules, found.read_places, strict=True):
        if (
            Who.ANYONE not in other.readers
            and covers(other.match, rule.match)
            and not any(covers(spared, rule.match) for spared in other.excepts)
        ):
            return f"{text}; {_named(place)} decides who may read that"
    return text


# -- keeping ------------------------------------------------------------------------------------


def _about_keeping(found: PolicySet) -> Iterator[Fault]:
    rules = found.keep.rules
    for number, (rule, place) in enumerate(zip(rules, found.keep_places, strict=True)):
        if is_packaged(place):
            continue
        never = _never(rule.match, (), found)
        if never is not None:
            yield _at(place, f"can never match: {never}")
        elif _is_never_stored(rule.match.kinds):
            yield _at(place, "has no effect: kinds 20000 to 29999 are never stored")
        else:
            later = zip(rules[number + 1 :], found.keep_places[number + 1 :], strict=True)
            over = [at for other, at in later if covers(other.match, rule.match)]
            if over:
                yield _at(
                    place,
                    f"keep has no effect: the later rule {_named(over[-1])} decides for "
                    "all rows that it matches",
                )
            elif rule.keep is Keep.ALL and _may_meet(rule.match.kinds, _WITH_ADDRESS):
                yield _at(
                    place,
                    "keeps versions that a deletion by address (kind 5 with `a`) does not delete; "
                    "with `history` instead of `keep` it does",
                )
            elif rule.keep is not Keep.ALL and _replaces_derived(rule.match, found):
                yield _at(
                    place,
                    "makes events of [groups] derived replaceable: without `h` they are of no "
                    "group then, and so public though they name what is private",
                )


def _replaces_derived(match: Match, found: PolicySet) -> bool:
    derived = found.groups.derived
    without_h = match.h is None or match.h is False
    return bool(derived) and without_h and _may_meet(match.kinds, KindSet.of(*derived))


def _about_history(found: PolicySet) -> Iterator[Fault]:
    for rule in found.keep.history.rules:
        file, _, line = rule.place.rpartition(":")
        if file.startswith((PACKAGED, str(INCLUDED))):
            continue
        place = Place(rule.name, file, int(line))
        never = _never(rule.match, (), found)
        if never is not None:
            yield _at(place, f"can never match: {never}")
        elif rule.history is not None and _are_never_replaced(rule.match.kinds, found):
            yield _at(place, "history has no effect: events of these kinds are never replaced")


def _are_never_replaced(kinds: KindSet | None, found: PolicySet) -> bool:
    if kinds is None:
        return False
    by_policy = [rule.match.kinds for rule in found.keep.rules if rule.keep in _REPLACING]
    return not any(
        keep_by_kind(kind) is Keep.LATEST or any(of is None or kind in of for of in by_policy)
        for low, high in kinds.ranges
        for kind in range(low, high + 1)
    )


_REPLACING: Final = (Keep.LATEST, Keep.LATEST_TS)


def _about_sweeping(found: PolicySet) -> Iterator[Fault]:
    for rule in found.sweeps.rules:
        file, _, line = rule.place.rpartition(":")
        if not line.isdigit() or file.startswith(PACKAGED):
            continue  # rules made from `[memory.nmem]` have no line
        place = Place(rule.name, file, int(line))
        never = _never(rule.match, (), found)
        if never is not None:
            yield _at(place, f"can never match: {never}")
        elif _is_never_stored(rule.match.kinds):
            yield _at(place, "has no effect: kinds 20000 to 29999 are never stored")
        elif any(covers(held, rule.match) for held in found.sweeps.never):
            yield _at(place, "removes nothing: a rule with never keeps every row it matches")
        elif not file.startswith(str(INCLUDED)):  # shortening an included rule is no mistake
            sooner = _sooner(rule, found.sweeps)
            if sooner is not None:
                yield _at(
                    place,
                    f'{rule.limit} has no effect: "{sooner.name}" ({sooner.place}) '
                    f"removes rows {sooner.limit}",
                )


def _sooner(rule: SweepRule, sweeps: SweepRules) -> SweepRule | None:
    """A rule that removes all rows of this one as early or earlier."""
    spared = sweeps.exempt_from(rule)
    is_behind = False
    for other in sweeps.rules:
        if other is rule:
            is_behind = True
        elif (
            isinstance(rule.limit, MaxAge)
            and isinstance(other.limit, MaxAge)
            and (other.limit < rule.limit or (other.limit == rule.limit and not is_behind))
            and covers(other.match, rule.match)
            and all(match in spared for match in sweeps.exempt_from(other))
        ):
            return other
    return None


def _is_never_stored(kinds: KindSet | None) -> bool:
    return kinds is not None and all(
        is_ephemeral(low) and is_ephemeral(high) for low, high in kinds.ranges
    )


# -- questions ----------------------------------------------------------------------------------


def _never(match: Question, excepts: Sequence[Question], found: PolicySet) -> str | None:
    """Why no event can ever match; None: some can."""
    for name, values in (
        ("kinds", None if match.kinds is None else match.kinds.ranges),
        ("d", match.d),
        ("d_prefix", match.d_prefixes),
        ("h", None if isinstance(match.h, bool) else match.h),
        *((f"tags {name}", wanted) for name, wanted in match.tags if wanted is not False),
    ):
        if values is not None and values is not True and not values:
            return f"{name} is empty"
    who: frozenset[Who] | None = getattr(match, "who", None)
    if match.authors is not None and not match.authors:
        listed = frozenset(word for word, _ in getattr(match, "classes", ()))
        if listed:
            return _why_nobody(listed)
        if not who:
            return "authors is empty"
        if not _somebody(who, match, found):
            return _why_nobody(who)
    if (
        match.d is not None
        and match.d_prefixes is not None
        and not any(value.startswith(match.d_prefixes) for value in match.d)
    ):
        return "no value of d begins with d_prefix"
    chars, most = getattr(match, "content_chars", None), found.limits.max_content_length
    if chars is not None and chars >= most:
        return f"no content has over {chars} characters, by [limits] max_content_length = {most}"
    for spared in excepts:
        if covers(spared, match):
            return f"except excludes all of it ({match_text(spared)})"
    return None


def _somebody(words: frozenset[Who], match: Question, found: PolicySet) -> bool:
    """Whether some key can have one of these who-words under these files."""
    actors = found.actors
    left = set(words) - {Who.NOBODY}
    if not (actors.owners or actors.households):
        left.discard(Who.OWNER)
    if not (actors.agents or actors.households) and match.h is False:
        left.discard(Who.AGENT)
    if not found.trusted_readers:
        left.discard(Who.TRUSTED)
    return bool(left - OF_A_GROUP if match.h is False else left)


def _why_nobody(words: frozenset[Who]) -> str:
    if words & OF_A_GROUP:
        return "outside groups nobody is " + " or ".join(
            sorted(word.value for word in words & OF_A_GROUP)
        )
    tables = {Who.OWNER: "owners", Who.AGENT: "agents", Who.TRUSTED: "trusted_readers"}
    empty = [key for word, key in tables.items() if word in words]
    return f"[actors] {' and '.join(empty)} {'is' if len(empty) == 1 else 'are'} empty"


def covers(wide: Question, narrow: Question) -> bool:
    """Whether everything that `narrow` matches is certainly matched by `wide`."""
    if not (
        (wide.kinds is None or _is_within(narrow.kinds, wide.kinds))
        and (wide.d is None or (narrow.d is not None and narrow.d <= wide.d))
        and _prefixes_cover(wide, narrow)
        and _h_covers(wide.h, narrow.h)
        and _authors_cover(wide, narrow)
    ):
        return False
    asked = dict(narrow.tags)
    for name, wanted in wide.tags:
        got = asked.get(name)
        if got is None or (got is False) is not (wanted is False):
            return False
        if not isinstance(wanted, bool) and (isinstance(got, bool) or not got <= wanted):
            return False
    return all(
        getattr(wide, each.name) in (None, getattr(narrow, each.name, None))
        for each in fields(wide)
        if each.name not in _COMPARED
    )


_COMPARED: Final = ("kinds", "d", "d_prefixes", "h", "who", "classes", "authors", "tags")


def _is_within(narrow: KindSet | None, wide: KindSet) -> bool:
    return narrow is not None and all(
        any(first <= low and high <= last for first, last in wide.ranges)
        for low, high in narrow.ranges
    )


def _prefixes_cover(wide: Question, narrow: Question) -> bool:
    if wide.d_prefixes is None:
        return True
    named = narrow.d if narrow.d is not None else narrow.d_prefixes
    return named is not None and all(value.startswith(wide.d_prefixes) for value in named)


def _h_covers(wide: bool | frozenset[str] | None, narrow: bool | frozenset[str] | None) -> bool:  # noqa: FBT001
    if wide is None or wide is narrow:
        return True
    if isinstance(wide, bool):
        return wide and isinstance(narrow, frozenset)
    return isinstance(narrow, frozenset) and narrow <= wide


def _authors_cover(wide: Question, narrow: Question) -> bool:
    if wide.authors is None:
        return True
    wide_who: frozenset[Who] = getattr(wide, "who", None) or frozenset()
    narrow_who: frozenset[Who] = getattr(narrow, "who", None) or frozenset()
    if Who.ANYONE in wide_who:
        return True
    return narrow.authors is not None and narrow.authors <= wide.authors and narrow_who <= wide_who


def _may_meet(one: KindSet | None, other: KindSet | None) -> bool:
    """Whether the two have a kind in common."""
    if one is None or other is None:
        return True
    return any(
        low <= last and first <= high for low, high in one.ranges for first, last in other.ranges
    )
