"""`rookery policy`: are the files right, what do they say, why is an event refused, do cases hold.

Works on a folder; no relay need run. Groups come from whoever has a store: without one nobody is
in a group, and the answer says so.
"""

from __future__ import annotations

import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO, Final

import click
import orjson

from policies import load
from policies.cases import Given, case_table, facts_for, results
from policies.engine import Explanation, PolicySet, ReadStep, Stage, Step
from relay.cli.options import PublicKey, console, json_option, print_json, printable
from relay.errors import ConfigFaults, Prefix, Refused, UserError
from relay.groups.group import Groups
from relay.nostr import kinds
from relay.nostr.event import Event, event_from
from relay.nostr.keys import is_signed, npub
from relay.retention import Stored
from relay.verdict import Reject, Who, spoken
from relay.visibility import KindSet, Viewer

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from policies.conditions import Condition
    from policies.write_rule import Place
    from relay.visibility import Match, ReadRule

data_option = click.option(
    "--data", type=click.Path(path_type=Path), default=None, metavar="DIR",
    help="Data folder, or a folder of policy files.  [default: ./data]",
)  # fmt: skip

_WORDS: Final = tuple(
    word.value for word in (Who.AGENT, Who.MEMBER, Who.KNOWN, Who.INSIDER, Who.ADMIN, Who.OWNER)
)


@click.group("policy", epilog="Example: rookery policy check ./data/policies")
def policy() -> None:
    """Check, show, explain and test who may do what."""


# -- check and show -----------------------------------------------------------------------------


@policy.command("check", epilog="Example: rookery policy check --data ./data")
@click.argument("folder", type=click.Path(path_type=Path), required=False, metavar="[DIR]")
@data_option
@json_option
def check(folder: Path | None, data: Path | None, *, as_json: bool) -> int:
    """Read the policy files and name every fault, each with file and line."""
    home = policy_folder(folder or data)
    try:
        found = load(home)
    except ConfigFaults as wrong:
        if as_json:
            print_json({"ok": False, "faults": [
                {"file": fault.file, "line": fault.line, "text": fault.text}
                for fault in wrong.faults
            ]})  # fmt: skip
        for fault in wrong.faults:
            click.echo(printable(str(fault)), file=sys.stderr)
        return 1
    notes = [*found.notes, *_left_open(found)]
    if as_json:
        print_json({"ok": True, "rules": _rules_in(found), "files": found.files, "notes": notes})
        return 0
    for note in notes:
        click.echo(f"note: {printable(note)}")
    click.echo(f"ok: {_rules_in(found)} rules in {len(found.files)} files, {home}")
    return 0


@policy.command("show", epilog="Example: rookery policy show --data ./data")
@click.argument("folder", type=click.Path(path_type=Path), required=False, metavar="[DIR]")
@data_option
@json_option
def show(folder: Path | None, data: Path | None, *, as_json: bool) -> None:
    """Print the policies in force, packaged ones included, in the order in which they are asked."""
    found = load(policy_folder(folder or data))
    if as_json:
        print_json(_shown(found))
        return
    _show(found)


def policy_folder(given: Path | None) -> Path:
    """The folder of policy files that the user means. Raises UserError."""
    home = given or Path("data")
    if (home / "policies").is_dir():
        return home / "policies"
    if not home.is_dir():
        raise UserError(f"{home} is no folder; make one with `rookery init {home} --owner KEY`")
    if (home / "rookery.toml").exists():
        raise UserError(f"{home} has no folder policies; `rookery init` makes one")
    return home


def _rules_in(found: PolicySet) -> int:
    named = {rule.place.name for rule in found.write_rules}
    named |= {place.name for place in found.read_places}
    return len(named) + len(found.keep.rules)


def _left_open(found: PolicySet) -> list[str]:
    notes = []
    if not found.people.owners:
        notes.append("[actors] owners is empty: nobody may write configuration or govern groups")
    if not found.people.agents:
        notes.append("[actors] agents is empty: nobody may write memory outside groups")
    return notes


def _show(found: PolicySet) -> None:
    from rich.table import Table

    out = console()
    people = Table(title="People", title_justify="left", show_header=False)
    for name, keys in (("owners", found.people.owners), ("agents", found.people.agents)):
        people.add_row(name, "\n".join(npub(key) for key in sorted(keys)) or "nobody")
    for home in found.people.households:
        people.add_row(f"household {home.name}", "\n".join(map(npub, sorted(home.owners))))
    out.print(people)

    writing = Table(title="Writing", title_justify="left")
    for column in ("rule", "about", "writers", "asks", "file"):
        writing.add_column(column)
    for rule in found.write_rules:
        writing.add_row(
            rule.place.name, told(rule.match, rule.excepts), _words(rule.writers),
            _asks(rule.require, rule.schema, rule.pow_bits), _where(rule.place),
        )  # fmt: skip
    out.print(writing)

    reading = Table(title="Reading: every rule about an event must allow it", title_justify="left")
    for column in ("rule", "about", "readers", "only by", "file"):
        reading.add_column(column)
    for read, place in zip(found.read_rules, found.read_places, strict=True):
        reading.add_row(
            read.name, told(read.match, read.excepts), _readers(read),
            ", ".join(sorted(read.only_by or ())), _where(place),
        )  # fmt: skip
    out.print(reading)

    keeping = Table(title="Keeping: the last rule about an event counts", title_justify="left")
    for column in ("rule", "about", "keep"):
        keeping.add_column(column)
    for keep in found.keep.rules:
        keeping.add_row(keep.name, told(keep.match, ()), keep.keep.value)
    out.print(keeping)
    for note in [*found.notes, *_left_open(found)]:
        click.echo(f"note: {printable(note)}")


def _shown(found: PolicySet) -> dict[str, object]:
    return {
        "owners": sorted(found.people.owners),
        "agents": sorted(found.people.agents),
        "limits": {name: getattr(found.limits, name) for name in found.limits.__slots__},
        "auth_writes": found.auth_writes.value,
        "write_rules": [
            {
                "name": rule.place.name, "file": rule.place.file, "line": rule.place.line,
                "about": told(rule.match, rule.excepts),
                "write": sorted(word.value for word in rule.writers or ()),
                "require": rule.require, "schema": rule.schema, "pow": rule.pow_bits,
            }
            for rule in found.write_rules
        ],
        "read_rules": [
            {
                "name": rule.name, "file": place.file, "line": place.line,
                "about": told(rule.match, rule.excepts), "read": _readers(rule).split(", "),
                "only_by": sorted(rule.only_by or ()),
            }
            for rule, place in zip(found.read_rules, found.read_places, strict=True)
        ],
        "retention": [
            {"name": rule.name, "about": told(rule.match, ()), "keep": rule.keep.value}
            for rule in found.keep.rules
        ],
        "files": found.files,
        "notes": found.notes,
    }  # fmt: skip


# -- explain ------------------------------------------------------------------------------------


@policy.command("explain", epilog="Example: rookery policy explain event.json --as member")
@click.argument("event", type=click.File("rb"), metavar="EVENT.json")
@data_option
@click.option(
    "--read", "reader", metavar="VIEWER", default=None,
    help='Who may read it: an npub or 64 hex, or "nobody" for a connection without login.',
)  # fmt: skip
@click.option(
    "--as", "words", multiple=True, type=click.Choice(_WORDS),
    help="Take the author for this too; may be given several times.",
)  # fmt: skip
@click.option(
    "--login", "logins", multiple=True, metavar="KEY",
    help='Keys that the connection logged in with, or "nobody".  [default: the author]',
)  # fmt: skip
@json_option
def explain(
    event: BinaryIO, data: Path | None, reader: str | None, words: tuple[str, ...],
    logins: tuple[str, ...], *, as_json: bool,
) -> None:  # fmt: skip
    """Say what the relay would answer to an event, and which rule decides.

    Who is an owner or an agent is known from the policy files; who is in a group is not looked up.
    """
    found = load(policy_folder(data))
    try:
        fields = orjson.loads(event.read())
    except ValueError as wrong:
        raise UserError(f"{event.name} is not JSON: {wrong}") from None
    try:
        told_event = event_from(fields)
    except Refused as refused:
        _print_malformed(refused, as_json=as_json)
        return
    if reader is not None:
        viewer = Viewer(frozenset() if reader == "nobody" else frozenset({_key(reader)}))
        _print_reading(found, told_event, viewer, Groups(), as_json=as_json)
        return
    if not logins:
        keys = frozenset({told_event.pubkey})
    else:
        keys = frozenset(_key(login) for login in logins if login != "nobody")
    also = frozenset(Who(word) for word in words)
    now = int(time.time())  # noqa: TID251 — a shell reads the clock
    steps = explained(found, told_event, keys, now, also=also)
    _print_explanation(told_event, steps, as_json=as_json)


def explained(
    found: PolicySet, event: Event, logged_in: frozenset[str], now: int, *,
    groups: Groups | None = None, given: Given | None = None, also: frozenset[Who] = frozenset(),
) -> Explanation:  # fmt: skip
    """Every rule consulted, for an event that comes over the wire now; no groups: nobody is in one.

    `also`: words to take the author for beside those that the policy files and the groups say.
    """
    facts = facts_for(
        event, found.people, groups or Groups(), logged_in, now, given=given or Given()
    )
    who = facts.who | also
    if also & {Who.OWNER, Who.AGENT, Who.MEMBER, Who.INSIDER}:
        who |= {Who.KNOWN}
    return found.explain(event, replace(facts, who=who))


def _key(text: str) -> str:
    return PublicKey().convert(text, None, None)


def _print_malformed(refused: Refused, *, as_json: bool) -> None:
    if as_json:
        print_json({"ok": False, "message": f"{refused.prefix}: {refused.text}", "rule": None})
    else:
        click.echo(f"OK false {printable(str(refused))}")
        click.echo("decided by the form of an event, before any rule")


def _print_explanation(event: Event, found: Explanation, *, as_json: bool) -> None:
    decided = found.decided
    verdict = None if decided is None else decided.verdict
    if not is_signed(event) and (decided is None or decided.stage is not Stage.SCREEN):
        decided, verdict = None, Reject(Prefix.INVALID, "sig: is not a signature of this event", "")
    message = "" if verdict is None else spoken(verdict)[1]
    if as_json:
        place = None if decided is None else decided.place
        print_json({
            "ok": verdict is None, "message": message,
            "rule": None if place is None else place.name,
            "file": None if place is None else place.file,
            "line": None if place is None else place.line,
            "steps": [
                {
                    "rule": step.place.name, "file": step.place.file, "line": step.place.line,
                    "stage": step.stage.value, "matched": step.matched,
                    "says": None if step.verdict is None else spoken(step.verdict)[1],
                }
                for step in found.steps
            ],
        })  # fmt: skip
        return
    _print_steps(found.steps)
    if verdict is None:
        click.echo('OK true ""')
        click.echo("no rule objects; groups, what is stored, and bans are not looked up here")
    else:
        click.echo(f"OK false {printable(message)}")
        if decided is None:
            click.echo("decided by the signature")
        else:
            where = _where(decided.place)
            click.echo(f"decided by {decided.place.name}{f' ({where})' if where else ''}")


def _print_steps(steps: Sequence[Step]) -> None:
    from rich.table import Table

    table = Table()
    for column in ("asked", "rule", "about it", "says", "file"):
        table.add_column(column)
    for step in steps:
        says = "–" if step.verdict is None else printable(spoken(step.verdict)[1])
        table.add_row(
            step.stage.value, step.place.name, "yes" if step.matched else "no", says,
            _where(step.place),
        )  # fmt: skip
    console().print(table)


def _print_reading(
    found: PolicySet, event: Event, viewer: Viewer, groups: Groups, *, as_json: bool
) -> None:
    group = event.d if event.kind in kinds.GROUP_STATE else event.tag("h")
    steps: Sequence[ReadStep] = found.explain_read(Stored(1, event, group), viewer, groups)
    readable = all(step.allowed for step in steps)
    if as_json:
        print_json({"readable": readable, "steps": [
            {
                "rule": step.place.name, "file": step.place.file, "line": step.place.line,
                "readers": step.readers, "allowed": step.allowed,
            }
            for step in steps
        ]})  # fmt: skip
        return
    from rich.table import Table

    table = Table()
    for column in ("rule", "readers", "allows", "file"):
        table.add_column(column)
    for step in steps:
        allows = "yes" if step.allowed else "no"
        table.add_row(step.place.name, step.readers, allows, _where(step.place))
    console().print(table)
    if not steps:
        click.echo("readable: no rule is about it, so anyone may read it")
    elif readable:
        click.echo("readable: every rule about it allows it")
    else:
        first = next(step for step in steps if not step.allowed)
        click.echo(f"not readable, by {first.place.name} ({_where(first.place)})")
    if group is not None:
        click.echo("who is in its group is not looked up here")


# -- test ---------------------------------------------------------------------------------------


@policy.command("test", epilog="Example: rookery policy test cases.toml --data ./data")
@click.argument(
    "files", nargs=-1, required=True, metavar="CASES.toml…", type=click.Path(path_type=Path)
)
@data_option
@json_option
def test(files: tuple[Path, ...], data: Path | None, *, as_json: bool) -> int:
    """Run tables of cases; without --data, against the packaged policies and the file's own."""
    folder = None if data is None else policy_folder(data)
    ran = [
        (table.file, result)
        for table in map(case_table, files)
        for result in results(table, folder)
    ]
    failed = [(file, result) for file, result in ran if not result.passed]
    if as_json:
        print_json({"cases": len(ran), "failed": [
            {
                "file": file, "line": result.case.line, "says": result.case.says,
                "want": result.case.want, "got": result.got, "rule": result.rule,
            }
            for file, result in failed
        ]})  # fmt: skip
        return 1 if failed else 0
    for file, result in failed:
        case = result.case
        rule = f" by {result.rule}" if result.rule else ""
        wanted = case.want if case.rule is None else f"{case.want} by {case.rule}"
        click.echo(
            printable(f"{file}:{case.line}: {case.says}: want {wanted}, got {result.got}{rule}"),
            file=sys.stderr,
        )
    click.echo(f"{len(ran)} cases, {len(ran) - len(failed)} passed, {len(failed)} failed")
    return 1 if failed else 0


# -- words --------------------------------------------------------------------------------------


def told(match: Match | Condition, excepts: Iterable[Match | Condition]) -> str:
    """A match in words: `kinds 30078, d snowclaw:config:…; not kinds 5`."""
    left = [_one(other) for other in excepts]
    return "; not ".join([_one(match) or "everything", *left])


def _one(match: Match | Condition) -> str:
    parts = []
    if match.kinds is not None:
        parts.append(f"kinds {_kinds(match.kinds)}")
    if match.d is not None:
        parts.append("d " + " or ".join(sorted(match.d)))
    if match.d_prefixes is not None:
        parts.append("d " + " or ".join(f"{prefix}…" for prefix in match.d_prefixes))
    if isinstance(match.h, bool):
        parts.append("in a group" if match.h else "in no group")
    elif match.h is not None:
        parts.append("in " + " or ".join(sorted(match.h)))
    authors = [word.value for word in getattr(match, "who", None) or ()]
    authors += [f"{key[:12]}…" for key in sorted(match.authors or ())]
    if authors:
        parts.append("by " + " or ".join(authors))
    for name, wanted in match.tags:
        if isinstance(wanted, bool):
            parts.append(f"{'with' if wanted else 'without'} tag {name}")
        else:
            parts.append(f"tag {name} {' or '.join(sorted(wanted))}")
    for name in ("content_chars", "age", "replaces", "wraps_for_known", "quiet", "ended"):
        value = getattr(match, name, None)
        if value is not None:
            parts.append(f"{name.replace('_', ' ')} {str(value).lower()}")
    return ", ".join(parts)


def _kinds(kinds_: KindSet) -> str:
    return " ".join(str(low) if low == high else f"{low}-{high}" for low, high in kinds_.ranges)


def _words(words: frozenset[Who] | None) -> str:
    return "–" if words is None else ", ".join(sorted(word.value for word in words))


def _readers(rule: ReadRule) -> str:
    words = sorted(word.value for word in rule.readers)
    return ", ".join([*words, *[f"tag:{name}" for name in rule.tag_readers]])


def _asks(require: Sequence[str], schema: str | None, bits: int) -> str:
    parts = [f"tags {' '.join(require)}"] if require else []
    if schema is not None:
        parts.append(f"schema {schema}")
    if bits:
        parts.append(f"{bits} bits of work")
    return ", ".join(parts)


def _where(place: Place) -> str:
    return f"{place.file}:{place.line}" if place.file else ""
