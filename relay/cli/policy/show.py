"""`rookery policy show`: all policies in force, as one readable page."""

from __future__ import annotations

from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, assert_never

import click

from policies import load
from policies.describe import (
    amounts_text,
    form_text,
    held_text,
    keep_text,
    kinds_text,
    match_text,
    plugin_text,
    readers_text,
    seconds_text,
    where_text,
    who_text,
    writers_text,
)
from policies.lint import warnings_of
from policies.load import DEFAULTS
from relay.access.actors import Attestations
from relay.access.membership import Entry
from relay.cli.humanize import counted
from relay.cli.names import Names, names_in_folder
from relay.cli.options import json_option, print_json, printable
from relay.cli.policy.check import left_open, rules_in
from relay.cli.policy.folder import data_option, policy_folder
from relay.memory.systems import MEMORY_SYSTEMS
from relay.nostr.kinds import KindSet

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from policies import PolicySet
    from policies.settings import Memory
    from policies.write_rule import Place

    Line = tuple[str, str, str]
    """A line of text, the name of its rule, and its file and line."""


@click.command("show", epilog="Example: rookery policy show --data ./data")
@click.argument("folder", type=click.Path(path_type=Path), required=False, metavar="[DIR]")
@data_option
@click.option("--mine", is_flag=True, help="Only the rules of this folder's own files.")
@json_option
def show_command(folder: Path | None, data: Path | None, *, mine: bool, as_json: bool) -> None:
    """Print the policies in force, packaged ones included, in the order in which they apply."""
    home = policy_folder(folder or data)
    found = load(home, MEMORY_SYSTEMS)
    if as_json:
        shown = _as_json(found)
        print_json(_own_in(shown) if mine else shown)
        return
    for line in _own_page(found, home) if mine else _page(found, home):
        click.echo(printable(line))


def _page(found: PolicySet, home: Path) -> Iterator[str]:
    yield f"{home}: {counted(rules_in(found), 'rule')} in {counted(len(found.files), 'file')}"
    yield f"packaged/ is {DEFAULTS}"
    yield from _section("People", _actors(found, _names(found, home)))
    yield from _section(
        "Who may write: every rule that matches an event must accept its author; the first that "
        "refuses decides",
        _rules(_writers(found)),
    )
    yield from _section("Required form of events", _rules(_forms(found)))
    yield from _section("Rates and quotas", _rules(_amounts(found)))
    yield from _section("Plug-ins, asked last, in this order", _rules(_plugins(found)))
    yield from _section(
        "Who may read: every rule that matches an event must accept its reader; an event that no "
        "rule matches is public",
        _rules(_readers(found)),
    )
    yield from _section(
        "Which version is kept: the last matching rule decides; all other events follow NIP-01",
        _rules(_kept(found)),
    )
    if found.keep.history.rules:
        yield from _section(
            "How many old versions are also kept: the last matching rule decides",
            _rules(_history(found)),
        )
    yield from _section(
        "What is removed over time: one matching rule is enough", _rules(_swept(found))
    )
    yield from _section(
        "Exceptions from removal (pinned events are never removed)", _rules(_held(found))
    )
    yield from _section("Groups", _groups(found))
    yield from _section("Members of the relay", _members(found))
    yield from _section("Limits and settings", _settings(found))
    notes = [str(warning) for warning in warnings_of(found)] + left_open(found)
    yield from _section("Notes", notes)


def _own_page(found: PolicySet, home: Path) -> Iterator[str]:
    sections = {
        "Who may write": _writers(found),
        "Required form of events": _forms(found),
        "Rates and quotas": _amounts(found),
        "Plug-ins": _plugins(found),
        "Who may read": _readers(found),
        "Which version is kept": _kept(found),
        "How many old versions are also kept": _history(found),
        "What is removed over time": _swept(found),
        "Exceptions from removal": _held(found),
    }
    yield f"{home}: rules of its own files; those of packaged files apply beside them"
    rules = [
        line
        for title, lines in sections.items()
        for line in _section(title, _rules(line for line in lines if not _is_packaged(line[2])))
    ]
    yield from rules or [
        "They add no rules. Settings, and the packaged rules that are left: `rookery policy show`"
    ]


def _is_packaged(where: str) -> bool:
    """`where`: file and line; empty or a `[setting]` for a rule that is in no file."""
    return not where or where.startswith(("packaged/", "["))


def _own_in(shown: dict[str, object]) -> dict[str, object]:
    """The lists of rules in the JSON form, without those of packaged files."""
    return {
        name: [rule for rule in rules if not _is_packaged(str(rule.get("file", rule.get("place"))))]
        for name in ("write_rules", "read_rules", "retention", "sweeps", "held", "plugins")
        if isinstance(rules := shown[name], list)
    }


def sections_of(found: PolicySet) -> Iterator[tuple[str, Sequence[Line]]]:
    """(title, rules) of everything in force, in the order in which it applies; settings have no
    name."""
    yield "Who may write (every matching rule must accept)", [*_writers(found)]
    yield "Required form of events", [*_forms(found)]
    yield "Rates and quotas", [*_amounts(found)]
    yield "Plug-ins, asked last", [*_plugins(found)]
    yield "Who may read (every matching rule must accept)", [*_readers(found)]
    yield "Which version is kept (the last matching rule decides)", [*_kept(found)]
    if found.keep.history.rules:
        yield (
            "How many old versions are also kept (the last matching rule decides)",
            [*_history(found)],
        )
    yield "What is removed over time (one matching rule is enough)", [*_swept(found)]
    yield "Exceptions from removal", [*_held(found)]
    settings = [*_groups(found), *_members(found), *_settings(found)]
    yield "Groups, members, limits", [(line, "", "") for line in settings]


def _section(title: str, lines: Iterable[str]) -> Iterator[str]:
    listed = list(lines)
    if listed:
        yield ""
        yield title
        yield from (f"  {line}" for line in listed)


def _rules(lines: Iterable[Line]) -> Iterator[str]:
    for said, name, where in lines:
        yield said
        yield f"    {name} · {where}" if where else f"    {name}"


def _names(found: PolicySet, home: Path) -> Names:
    actors = found.actors
    households = (keys for each in actors.households for keys in (each.owners, each.agents))
    # A folder of policies is in a data folder, or alone.
    return names_in_folder(home.parent, chain(actors.owners, actors.agents, *households))


def _actors(found: PolicySet, names: Names) -> Iterator[str]:
    actors = found.actors
    yield from _named("owners", actors.owners, names)
    yield from _named("agents", actors.agents, names)
    for home in actors.households:
        yield from _named(f"household {home.name}: owner", home.owners, names)
        yield from _named(f"household {home.name}: agents", home.agents, names)
    yield (
        "agents within a group that an owner or agent made: members with the role"
        f" {actors.agent_role!r} there"
    )
    if actors.allowed:
        yield f"known by a file of [allow]: {counted(len(actors.allowed), 'key')}"
    if actors.banned:
        yield f"banned by a file of [bans]: {counted(len(actors.banned), 'key')}"
    if found.trusted_readers:
        yield "trusted readers: " + ", ".join(map(str, found.trusted_readers))


def _named(title: str, keys: Iterable[str], names: Names) -> Iterator[str]:
    shown = sorted(map(names.shown, keys))
    if len(shown) < 2:
        yield f"{title}: {shown[0] if shown else 'nobody'}"
        return
    yield f"{title}:"
    yield from (f"    {key}" for key in shown)


def _writers(found: PolicySet) -> Iterator[Line]:
    for rule in found.write_rules:
        if rule.asks_who:
            who = writers_text(rule) or "authors with a permitted login"
            yield _line(f"{who}: {match_text(rule.match, rule.excepts)}", rule.place)


def _forms(found: PolicySet) -> Iterator[Line]:
    for rule in found.write_rules:
        asks = form_text(rule)
        if asks:
            yield _line(f"{match_text(rule.match, rule.excepts)}: {asks}", rule.place)


def _amounts(found: PolicySet) -> Iterator[Line]:
    for rule in found.write_rules:
        much = amounts_text(rule)
        if much:
            yield _line(f"{match_text(rule.match, rule.excepts)}: {much}", rule.place)


def _plugins(found: PolicySet) -> Iterator[Line]:
    for plugin in found.plugins:
        yield _line(plugin_text(plugin), plugin.place)


def _readers(found: PolicySet) -> Iterator[Line]:
    for rule, place in zip(found.read_rules, found.read_places, strict=True):
        yield _line(f"{readers_text(rule)}: {match_text(rule.match, rule.excepts)}", place)


def _kept(found: PolicySet) -> Iterator[Line]:
    for rule, place in zip(found.keep.rules, found.keep_places, strict=True):
        yield _line(f"{match_text(rule.match)}: {keep_text(rule.keep)}", place)


def _history(found: PolicySet) -> Iterator[Line]:
    for rule in found.keep.history.rules:
        kept = "none" if rule.history is None else str(rule.history)
        yield f"{match_text(rule.match)}: {kept}", rule.name, rule.place


def _swept(found: PolicySet) -> Iterator[Line]:
    for rule in found.sweeps.rules:
        yield f"{match_text(rule.match)}: {rule.limit}", rule.name, rule.place


def _held(found: PolicySet) -> Iterator[Line]:
    for place, effect in found.retention_effects:
        told = held_text(effect)
        if told:
            yield _line(told, place)


def _line(said: str, place: Place) -> Line:
    return said, place.name, where_text(place)


def _groups(found: PolicySet) -> Iterator[str]:
    groups = found.groups
    yield f"created by: {who_text(groups.create)}"
    yield f"a new group is: {_flags(groups.new)}"
    yield f"always: {_flags(groups.always)}"
    derived = ", ".join(map(str, sorted(found.groups.derived))) or "none"
    yield f"without h, belonging to the group of the event they refer to: kinds {derived}"
    yield f"requests to join: {groups.joins.value}; uses of an invite code: {groups.invite_uses}"
    yield (
        f"messages may be dated up to {seconds_text(groups.late_s)} back; "
        f"references to earlier messages required: {groups.previous}"
    )
    yield f"compatibility with older clients: {_flags(groups.compat)}"
    yield f"`h` is no NIP-29 group in: {kinds_text(KindSet.of(*groups.foreign_h))}"


def _members(found: PolicySet) -> Iterator[str]:
    members = found.members
    match members.join:
        case Entry.CLAIM:
            yield "joining: with an invite code"
        case Entry.ANYONE:
            yield "joining: everybody who asks"
        case _:
            assert_never(members.join)
    days = (
        f"is valid for {counted(members.claim_days, 'day')}"
        if members.claim_days
        else "never expires"
    )
    yield f"invited by: {who_text(members.invite)}"
    yield f"an invite code admits {counted(members.claim_uses, 'key')} and {days}"
    match found.actors.attestations:
        case Attestations.OFF:
            yield "an owner's attestation gives an agent nothing"
        case Attestations.RELAY:
            yield "an agent with its owner's attestation is known while its owner is"
        case Attestations.GROUPS:
            yield "an agent with its owner's attestation is known, and in its owner's groups"
        case _:
            assert_never(found.actors.attestations)


def _flags(flags: Iterable[object]) -> str:
    return ", ".join(sorted(str(getattr(flag, "value", flag)) for flag in flags)) or "none"


def _settings(found: PolicySet) -> Iterator[str]:
    limits = found.limits
    back = limits.created_at_lower
    yield f"created_at at most {seconds_text(limits.created_at_upper)} in the future, " + (
        f"{seconds_text(back)} in the past" if back else "any time in the past"
    )
    yield f"at most {limits.max_content_length} characters and {limits.max_event_tags} tags"
    if limits.min_pow_difficulty:
        yield f"{limits.min_pow_difficulty} bits of work on every event"
    yield f"logins before writing: {found.auth_writes.value}"
    yield f"stored events of a banned key: {found.banned_rows.value}"
    yield f"searched: {kinds_text(found.searched)}"
    for system, mode in found.memory.schemas.items():
        yield f"schema of {system}: {mode.value}"
    yield from _memory(found.memory)


def _memory(memory: Memory) -> Iterator[str]:
    if memory.owner_annotations:
        yield "owners may annotate what agents remember of people and groups"
    if memory.reject_patterns is not None and memory.reject_patterns.texts:
        patterns = counted(len(memory.reject_patterns.texts), "pattern")
        yield f"no unencrypted memory may match: {patterns}"
    yield (
        f"aman: with equal ts the {memory.tie.value}est id is kept; ts and created_at: "
        f"{memory.ts_rule.value}; hashes are {'' if memory.verify_hash else 'not '}verified; "
        f"read without a login: {memory.anonymous_read.value}"
    )
    if memory.envelope_keys:
        keys = counted(len(memory.envelope_keys), "key")
        yield f"sealed envelopes without a login: {keys}"
    yield (
        f"a memory of anamnesis has at most {memory.max_chars} characters"
        + (f" and {memory.max_bytes} bytes" if memory.max_bytes else "")
        + f"; owners and {memory.vouchers.value} vouch"
    )


def _as_json(found: PolicySet) -> dict[str, object]:
    actors = found.actors
    return {
        "owners": sorted(actors.owners),
        "agents": sorted(actors.agents),
        "households": [
            {"name": home.name, "owners": sorted(home.owners), "agents": sorted(home.agents)}
            for home in actors.households
        ],
        "trusted_readers": list(map(str, found.trusted_readers)),
        "limits": {name: getattr(found.limits, name) for name in found.limits.__slots__},
        "auth_writes": found.auth_writes.value,
        "groups": {
            "create": sorted(word.value for word in found.groups.create),
            "new": sorted(flag.value for flag in found.groups.new),
            "always": sorted(flag.value for flag in found.groups.always),
            "joins": found.groups.joins.value,
            "invite_uses": found.groups.invite_uses,
            "derived": sorted(found.groups.derived),
            "late": found.groups.late_s,
            "previous": found.groups.previous,
            "compat": sorted(client.value for client in found.groups.compat),
            "foreign_h": sorted(found.groups.foreign_h),
        },
        "members": {
            "join": found.members.join.value,
            "invite": sorted(word.value for word in found.members.invite),
            "claim_uses": found.members.claim_uses,
            "claim_days": found.members.claim_days,
            "attestations": found.actors.attestations.value,
        },
        "bans": {"stored": found.banned_rows.value},
        "search": kinds_text(found.searched),
        "schemas": {system: mode.value for system, mode in found.memory.schemas.items()},
        "owner_annotations": found.memory.owner_annotations,
        "reject_patterns": []
        if found.memory.reject_patterns is None
        else found.memory.reject_patterns.texts,
        "aman": {
            "tie": found.memory.tie.value,
            "ts_rule": found.memory.ts_rule.value,
            "verify_hash": found.memory.verify_hash,
            "anonymous_read": found.memory.anonymous_read.value,
        },
        "envelope_keys": sorted(found.memory.envelope_keys),
        "anamnesis": {
            "max_chars": found.memory.max_chars,
            "max_bytes": found.memory.max_bytes,
            "vouchers": found.memory.vouchers.value,
        },
        "write_rules": [
            {
                **_place(rule.place),
                "about": match_text(rule.match, rule.excepts),
                "write": sorted(word.value for word in rule.writers or ()),
                "asks": form_text(rule),
                "much": amounts_text(rule),
                "reject": rule.reject,
            }
            for rule in found.write_rules
        ],
        "read_rules": [
            {
                **_place(place),
                "about": match_text(rule.match, rule.excepts),
                "read": _reading_words(
                    sorted(word.value for word in rule.readers), rule.tag_readers
                ),
                "only_by": sorted(rule.only_by or ()),
                "target": None
                if rule.target is None
                else {
                    "kinds": sorted(rule.target.kinds),
                    "tag": rule.target.tag,
                    "d_prefix": rule.target.d_prefix,
                },
            }
            for rule, place in zip(found.read_rules, found.read_places, strict=True)
        ],
        "retention": [
            {**_place(place), "about": match_text(rule.match), "keep": rule.keep.value}
            for rule, place in zip(found.keep.rules, found.keep_places, strict=True)
        ],
        "history": [
            {
                "name": rule.name,
                "place": rule.place,
                "about": match_text(rule.match),
                "count": 0 if rule.history is None else rule.history.most,
                "days": None if rule.history is None else rule.history.days,
            }
            for rule in found.keep.history.rules
        ],
        "sweeps": [
            {
                "name": rule.name,
                "place": rule.place,
                "about": match_text(rule.match),
                "cause": str(rule.limit),
            }
            for rule in found.sweeps.rules
        ],
        "held": [
            {**_place(place), "is": held_text(effect)}
            for place, effect in found.retention_effects
            if held_text(effect)
        ],
        "plugins": [
            {**_place(plugin.place), "is": plugin_text(plugin)} for plugin in found.plugins
        ],
        "files": found.files,
        "notes": [*map(str, warnings_of(found)), *left_open(found)],
    }


def _reading_words(words: Sequence[str], tags: Sequence[str]) -> list[str]:
    return [*words, *[f"tag:{name}" for name in tags]]


def _place(place: Place) -> dict[str, object]:
    return {"name": place.name, "file": place.file, "line": place.line}
