"""What an edit of policies permits to everybody, or forbids to all, compared with before.

Invariants: computed by the judge and the read rules, for representative people, events and rows,
not from the text of the rules; by the settings themselves where they take kinds out of groups. Rows
that the read rules of either set match are among the rows. Plug-ins are not run.
"""

from __future__ import annotations

import shutil
from dataclasses import replace
from hashlib import sha256
from ipaddress import ip_address
from itertools import islice, pairwise, product
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Final, NamedTuple

from msgspec import structs

from policies.load import PRESETS, load
from relay.access.quotas import Size
from relay.access.visibility import Viewer, visibility_for
from relay.cli.policy.worlds import candidate_in
from relay.errors import Prefix, Reject
from relay.facts import Origin, Who
from relay.groups.actions import Flag
from relay.groups.group import Group, Groups, Role
from relay.groups.key_map import OrderedMap
from relay.lifecycle.rows import Found, Stored
from relay.nostr import kinds
from relay.nostr.event import signed
from relay.nostr.filters import Filter
from relay.write.candidate import Sender
from relay.write.judge import screen_and_judge
from relay.write.lookups import accounts_of
from relay.write.world import World

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence
    from pathlib import Path

    from policies import PolicySet
    from relay.access.actors import Actors
    from relay.access.read_rules import Match
    from relay.memory.registry import MemorySystems
    from relay.nostr.event import Event
    from relay.write.judge import Judgement

_NOW: Final = 1_800_000_000
_NO: Final = frozenset({Prefix.RESTRICTED, Prefix.BLOCKED, Prefix.AUTH_REQUIRED})
"""Refusals because of the author; others depend on the event."""
_INTERNET: Final = tuple(map(ip_address, ("1.1.1.1", "8.8.8.8", "2001:4860:4860::8888")))
"""Public addresses that no admin would trust: if `trusted_readers` contains one, it contains
everybody."""
_MAX_LISTED: Final = 6
_MAX_TRIES: Final = 256
"""Rows that are tried for one condition of a rule."""
_MAX_TRIED: Final = 2048
_MAX_ROWS: Final = 256
"""Rows made from rules, and those of them that are read; rules that differ come first."""
_NAMELESS_KIND: Final = 4321
_NAMELESS: Final = "kinds that no rule names"


def _key(name: str) -> str:
    return sha256(f"rookery access: {name}".encode()).hexdigest()


UNKNOWN: Final = "unknown authors"
_KNOWN: Final = "known keys"
_INSIDER: Final = "members of the group"
_ADMIN: Final = "admins of the group"
_AGENT: Final = "agents"
_OWNER: Final = "owners"
_WRITERS: Final = (UNKNOWN, _KNOWN, _INSIDER, _ADMIN, _AGENT, _OWNER)
ANYBODY: Final = "anybody, without a login"
ANY_KEY: Final = "any key that logs in"
_READERS: Final = (ANYBODY, ANY_KEY, *_WRITERS[1:])
_MANY: Final[Mapping[str, str]] = {
    ANYBODY: f"{ANYBODY}, may read",
    ANY_KEY: f"{ANY_KEY} may read",
    _KNOWN: "members of any group may read",
}
"""Readers whom an edit should not add unnoticed, most first."""

_OPEN: Final = "open"
_RESTRICTED: Final = "restricted"
_PRIVATE: Final = "private"
_HIDDEN: Final = "hidden"
_NOT_CLOSED: Final = "not closed"
_ELSEWHERE: Final = "elsewhere"
_NEW: Final = "new"
_FLAGS: Final[Mapping[str, frozenset[Flag]]] = {
    _OPEN: frozenset(),
    _RESTRICTED: frozenset({Flag.RESTRICTED}),
    _PRIVATE: frozenset({Flag.PRIVATE, Flag.CLOSED}),
    _HIDDEN: frozenset({Flag.PRIVATE, Flag.HIDDEN, Flag.CLOSED}),
}


class _Act(NamedTuple):
    """Something to be written."""

    words: str
    kind: int
    tags: tuple[tuple[str, ...], ...] = ()


class Access(NamedTuple):
    """Who may do what under one policy set; people in the order of `_WRITERS` and `_READERS`."""

    writers: Mapping[str, tuple[str, ...]]
    readers: Mapping[str, tuple[str, ...]]


def access_changes(before: PolicySet, after: PolicySet) -> list[str]:
    """Changes in what unknown authors may write, nobody may write, and everybody, or members of any
    group, may read; empty: no such changes."""
    rows = list(_rows_of_rules(before, after))
    old, new = access_under(before, rows), access_under(after, rows)
    told = []
    for what, now in new.writers.items():
        then = old.writers.get(what, now)
        if UNKNOWN in now and UNKNOWN not in then:
            told.append((f"{UNKNOWN} may write", what, then))
        elif then and not now:
            told.append(("nobody may write", what, then))
    for what, now in new.readers.items():
        then = old.readers.get(what, now)
        for who, change in _MANY.items():
            if who in now and who not in then:
                told.append((change, what, then))
                break
    alike: dict[tuple[str, tuple[str, ...]], list[str]] = {}
    for change, what, then in told:
        alike.setdefault((change, then), []).append(what)
    lines = [
        f"{change} now: {_listed(what)}; before: {', '.join(then) or 'nobody'}"
        for (change, then), what in alike.items()
    ]
    for gone, which in (
        (after.groups.foreign_h - before.groups.foreign_h, "with an `h`"),
        (before.groups.derived - after.groups.derived, "without `h` that name a group's event"),
    ):
        if gone:
            listed = _listed([f"{kind}" for kind in sorted(gone)])
            lines.append(
                f"events {which} are in no group now: kinds {listed}; whoever may read such events"
                " outside groups reads those about private groups too"
            )
    if _names_nobody(after.actors) and not _names_nobody(before.actors):
        lines.append(
            "the policies no longer name an owner, agent or allowed key: outside groups only"
            " unknown authors are left"
        )
    return lines


def _listed(what: Sequence[str]) -> str:
    more = len(what) - _MAX_LISTED
    return ", ".join([*what[:_MAX_LISTED], *([f"{more} more"] if more > 0 else [])])


def _names_nobody(actors: Actors) -> bool:
    return not (actors.owners or actors.agents or actors.households or actors.allowed)


def preset_policy(name: str, systems: MemorySystems) -> PolicySet:
    """The packaged preset of this name, without files of an admin."""
    with TemporaryDirectory(prefix="rookery-preset-") as made:
        shutil.copy(PRESETS / f"{name}.toml", made)
        return load(made, systems)


def preset_of(folder: Path) -> str:
    """The preset that `rookery init` wrote into a folder of policies, by its first line."""
    try:
        with (folder / "10-preset.toml").open(encoding="utf-8") as file:
            first = file.readline()
    except (OSError, UnicodeDecodeError):
        return "group"
    return "open" if first.startswith('# The preset "open"') else "group"


def access_under(policy: PolicySet, rows: Sequence[tuple[str, Stored]] = ()) -> Access:
    """`rows`: more rows to read, each with a name; those that are like a named one are left out."""
    actors = _people(policy.actors)
    groups = _groups(row.group for _, row in rows if row.group is not None)
    created, new_group = _new_group(policy, actors, groups)
    groups = groups if new_group is None else groups.with_group(new_group)
    opened = _opened(policy, actors, groups)
    joinable = {_NOT_CLOSED: "private groups that are not closed"}
    if new_group is not None and new_group.only_members_read:
        joinable[_NEW] = "groups made from now on"
    joins = [
        _Act(f"requests to join {words} (9021), granted at once", kinds.JOIN_REQUEST, (("h", h),))
        for h, words in joinable.items()
    ]
    writers = {
        act.words: tuple(
            who for who in _WRITERS if not _is_refused(_judged(policy, actors, groups, act, who))
        )
        for act in (*_acts(policy), *joins)
    }
    writers["new groups (9007)"] = created
    invited = (UNKNOWN, _OWNER) if Who.ANYONE in policy.members.invite else (_OWNER,)
    writers["requests for an invite code of the relay (28935)"] = invited
    named = list(_rows(policy))
    known = {_likeness(row) for _, row in named}
    more = [(words, row) for words, row in rows if _likeness(row) not in known]
    readers = dict(_readings(policy, actors, groups, [*named, *more]))
    if new_group is not None:
        new = [("messages (9) of groups made from now on", _row(kinds.CHAT, group=_NEW))]
        readers |= dict(_readings(policy, actors, groups, new))
    private = [("messages (9) of private groups that their admin opens", _row(9, group=_PRIVATE))]
    readers |= dict(_readings(policy, actors, opened, private))
    return Access(writers, readers)


def _people(actors: Actors) -> Actors:
    return replace(
        actors,
        owners=actors.owners | {_key(_OWNER)},
        agents=actors.agents | {_key(_AGENT)},
        relay=actors.relay or _key("relay"),
    )


def _groups(others: Iterable[str]) -> Groups:
    """`others`: more open groups."""
    admin, insider, known = (_key(name) for name in (_ADMIN, _INSIDER, _KNOWN))
    groups = Groups().with_group(Group(_ELSEWHERE, members=OrderedMap({known: ()})))
    private = {_NOT_CLOSED: frozenset({Flag.PRIVATE})}
    for name, flags in {**dict.fromkeys(others, _FLAGS[_OPEN]), **private, **_FLAGS}.items():
        members = {admin: (Role.ADMIN.value,), insider: ()}
        groups = groups.with_group(
            Group(name, flags=flags, members=OrderedMap(members), founder=admin)
        )
    return groups


# -- writing --------------------------------------------------------------------------------------


def _acts(policy: PolicySet) -> Iterator[_Act]:
    yield _Act("notes (1)", kinds.NOTE)
    yield _Act(_NAMELESS, _NAMELESS_KIND)
    yield _Act("messages (9) in open groups", kinds.CHAT, (("h", _OPEN),))
    yield _Act("messages (9) in restricted groups", kinds.CHAT, (("h", _RESTRICTED),))
    yield _Act("messages (9) in private groups", kinds.CHAT, (("h", _PRIVATE),))
    yield _Act("gift wraps (1059) for owners", kinds.GIFT_WRAP, (("p", _key(_OWNER)),))
    yield _Act("requests to join the relay (28934)", kinds.RELAY_JOIN, (("claim", ""),))
    for words, kind, d in _records(policy):
        yield _Act(words, kind, () if d is None else (("d", d),))


def _records(policy: PolicySet) -> Iterator[tuple[str, int, str | None]]:
    """(name, kind, `d`) of each record type of the memory systems."""
    for system in policy.systems.systems:
        for record in system.records:
            about = f" with d {record.prefix}…" if record.prefix else ""
            yield f"{system.name} records ({record.kind}){about}", record.kind, f"{record.prefix}x"


def _event(author: str, kind: int, tags: Sequence[Sequence[str]]) -> Event:
    return signed(author, _NOW, kind, [list(tag) for tag in tags], "", lambda _: "0" * 128)


def _judged(
    policy: PolicySet,
    actors: Actors,
    groups: Groups,
    act: _Act,
    who: str,
) -> Judgement:
    """The judgement on the act, on a connection where its author is logged in."""
    key = _key(who)
    sender = Sender(Origin.WIRE, frozenset({key}))
    candidate = candidate_in(_event(key, act.kind, act.tags), policy, sender)
    found = Found(0)
    for account in accounts_of(candidate, policy):
        found.usage.open(account, Size())
    return screen_and_judge(candidate, World(policy, groups, actors, found, actors.relay, _NOW))


def _is_refused(judged: Judgement) -> bool:
    return isinstance(judged.result, Reject) and judged.result.prefix in _NO


def _new_group(
    policy: PolicySet, actors: Actors, groups: Groups
) -> tuple[tuple[str, ...], Group | None]:
    """Who may create a group, and the created group; None: nobody may."""
    may: list[str] = []
    made = None
    for who in _WRITERS:
        judged = _judged(policy, actors, groups, _Act("", kinds.CREATE_GROUP, (("h", _NEW),)), who)
        if judged.ruling is not None:
            may.append(who)
            made = judged.ruling.groups.get(_NEW)
    return tuple(may), made


def _opened(policy: PolicySet, actors: Actors, groups: Groups) -> Groups:
    """The groups after the admin of the private group has asked to make it public."""
    tags = (("h", _PRIVATE), ("name", "x"), ("public",), ("open",), ("visible",))
    judged = _judged(policy, actors, groups, _Act("", kinds.EDIT_METADATA, tags), _ADMIN)
    return groups if judged.ruling is None else judged.ruling.groups


# -- reading --------------------------------------------------------------------------------------


def _row(
    kind: int,
    *tags: Sequence[str],
    author: str = _key(_INSIDER),
    group: str | None = None,
) -> Stored:
    h = [] if group is None else [["d" if kind in kinds.GROUP_STATE else "h", group]]
    return Stored(1, _event(author, kind, [*h, *tags]), group)


def _rows(policy: PolicySet) -> Iterator[tuple[str, Stored]]:
    yield "notes (1)", _row(kinds.NOTE)
    yield "gift wraps (1059)", _row(kinds.GIFT_WRAP, ["p", _key(_OWNER)])
    yield "encrypted messages (4)", _row(kinds.ENCRYPTED_MESSAGE, ["p", _key(_OWNER)])
    yield "members of the relay (13534)", _row(kinds.RELAY_MEMBERS)
    yield "app data (30078)", _row(kinds.APP_DATA, ["d", "x"])
    for name in _FLAGS:
        yield f"messages (9) of {name} groups", _row(kinds.CHAT, group=name)
        yield f"names of {name} groups (39000)", _row(kinds.GROUP_METADATA, group=name)
        yield f"members of {name} groups (39002)", _row(kinds.GROUP_MEMBERS, group=name)
        yield f"invites to {name} groups (9009)", _row(kinds.CREATE_INVITE, group=name)
    for words, kind, d in _records(policy):
        tags = [] if d is None else [["d", d]]
        yield words, _row(kind, *tags, author=_key(_AGENT))
        yield f"encrypted {words}", _row(kind, *tags, ["enc", "nip44"], author=_key(_AGENT))


def _likeness(row: Stored) -> tuple[object, ...]:
    """Equal for rows that no read rule of usual policies would tell apart."""
    tags = [tag for tag in row.event.tags if tag[0] != "p" and tag != ["d", "x"]]
    return row.event.kind, tuple(sorted(map(tuple, tags)))


def _rows_of_rules(before: PolicySet, after: PolicySet) -> Iterator[tuple[str, Stored]]:
    """Rows to which a read rule that one of the sets lacks applies: made from what each rule of
    both matches and excepts.

    Of kinds that all rules treat alike the first; those of `_rows` stand alone.
    """
    changed = frozenset(before.read_rules) ^ frozenset(after.read_rules)
    if not changed:
        return
    rules = dict.fromkeys((*before.read_rules, *after.read_rules))
    ends = {row.event.kind + n for one in (before, after) for _, row in _rows(one) for n in (0, 1)}
    for rule in rules:
        for match in (rule.match, *rule.excepts):
            if match.kinds is not None:
                ends.update(kind for low, high in match.kinds.ranges for kind in (low, high + 1))
    runs = {low: range(low, end) for low, end in pairwise(sorted(ends))}
    rows = (
        row
        for rule in sorted(rules, key=changed.__contains__, reverse=True)
        for matches, excepts in (
            ([rule.match], rule.excepts),
            *(([rule.match, each], ()) for each in rule.excepts),
        )
        for row in _examples(runs, matches, excepts)
    )
    groups = Groups()
    made = dict(islice(rows, _MAX_TRIED)).items()
    decided = (each for each in made if any(rule.applies_to(each[1], groups) for rule in changed))
    yield from islice(decided, _MAX_ROWS)


def _examples(
    runs: Mapping[int, range], matches: Sequence[Match], excepts: Sequence[Match]
) -> Iterator[tuple[str, Stored]]:
    """Rows that match all conditions of `matches` and none of `excepts`, each with a name."""
    groups = Groups()
    ranges = [match.kinds for match in matches if match.kinds is not None]
    own = [
        runs[kind]
        for kind in (ranges[-1].among([*runs]) if ranges else ())
        if all(kind in each for each in ranges)
    ]
    ds = {"x": ""}
    tags: dict[str, Mapping[str, str]] = {}
    place: bool | frozenset[str] | None = None
    author, by = _key(_AGENT), ""
    for match in matches:
        if match.d is not None or match.d_prefixes is not None:
            ds = {d: f"d {d}" for d in sorted(match.d or ())}
            ds |= {f"{prefix}x": f"d {prefix}…" for prefix in match.d_prefixes or ()}
        for name, wanted in match.tags:
            if not isinstance(wanted, bool):
                tags[name] = {value: f"{name} {value}" for value in sorted(wanted)}
            elif wanted:
                tags[name] = {"nip44" if name == "enc" else "x": name}
        place = place if match.h is None else match.h
        if match.authors:
            author = min(match.authors)
            by = f" by {author[:8]}…"
    nameless = range(_NAMELESS_KIND, _NAMELESS_KIND + 1)
    tagged = islice(product(*tags.values()), _MAX_TRIES)
    for run, d, values in islice(product(own or [nameless], ds, tagged), _MAX_TRIES):
        kind = run[0]
        words = f"kind {kind}" if len(run) == 1 else f"kinds {kind} to {run[-1]}"
        texts = [ds[d], *(tags[name][value] for name, value in zip(tags, values, strict=True))]
        with_ = " and ".join(filter(None, texts))
        words = (_NAMELESS if run is nameless else words) + (f" with {with_}" if with_ else "") + by
        about = [("d", d), *zip(tags, values, strict=True)]
        for group in _places(kind, place):
            row = _row(kind, *about, author=author, group=group)
            if all(match.matches(row, groups) for match in matches) and not any(
                match.matches(row, groups) for match in excepts
            ):
                at = {None: "", _OPEN: " in open groups"}.get(group, f" in the group {group}")
                yield words + at, row
                break


def _places(kind: int, h: bool | frozenset[str] | None) -> Sequence[str | None]:  # noqa: FBT001
    """Groups in which a row of the kind may match a condition on `h`, None: outside."""
    if isinstance(h, frozenset):
        return sorted(h)[:1]
    if h is None and kind not in kinds.GROUP_STATE and kind not in kinds.GROUP_RECORDS:
        return None, _OPEN
    return (None,) if h is False else (_OPEN,)


def _readings(
    policy: PolicySet, actors: Actors, groups: Groups, rows: Sequence[tuple[str, Stored]]
) -> Iterator[tuple[str, tuple[str, ...]]]:
    trusted = any(
        address in network
        for network in policy.trusted_readers
        for address in _INTERNET
        if address.version == network.version
    )
    keys = {ANYBODY: frozenset[str](), ANY_KEY: frozenset({_key(UNKNOWN)})}
    seen = {
        who: visibility_for(
            Viewer(keys.get(who, frozenset({_key(who)})), trusted=trusted),
            policy.read_rules,
            actors,
            groups,
            policy.groups.foreign_h,
        )
        for who in _READERS
    }
    for words, each in rows:
        event = each.event
        row = structs.replace(each, group=policy.row_group(event))
        named = frozenset(event.tag_values("p"))
        asked = Filter(
            frozenset({event.id}), frozenset({event.pubkey}), tags=(("p", named),) if named else ()
        )
        yield words, tuple(who for who in _READERS if seen[who].may_read(row, asked))
