"""`rookery policy explain`: the OK of an event, and the rule, file and line that decide it."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, replace
from enum import Enum, auto
from typing import TYPE_CHECKING, BinaryIO, Final, assert_never

import click
import orjson

from policies import load
from policies.describe import where_text
from policies.engine import Stage
from relay.access.read_rules import targets_of
from relay.access.visibility import Viewer
from relay.cli.names import PublicKey
from relay.cli.options import Colour, coloured, json_option, print_json, printable
from relay.cli.policy.folder import (
    data_option,
    groups_of,
    people_here,
    policy_folder,
    relay_key_of,
    store_folder,
)
from relay.cli.policy.worlds import candidate_in, supposed_world
from relay.clock import unix_now
from relay.errors import Invalid, Refused, Reject, UserError, ok_reply
from relay.facts import Origin, Who
from relay.groups.group import Groups
from relay.lifecycle.rows import Stored
from relay.memory.systems import MEMORY_SYSTEMS
from relay.nostr import kinds
from relay.nostr.event import Event, event_from, event_from_raw, is_hex64, signed
from relay.nostr.keys import is_signed, npub
from relay.server.control import DryRunReply
from relay.write.candidate import Sender
from relay.write.judge import BAD_SIGNATURE, screen_and_judge
from relay.write.world import facts_of

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from policies import PolicySet
    from policies.engine import Explanation, ReadStep, Step
    from policies.write_rule import Place
    from relay.access.actors import Actors
    from relay.server.control.folder import Judgements

_WORDS: Final = tuple(
    word.value for word in (Who.AGENT, Who.MEMBER, Who.KNOWN, Who.INSIDER, Who.ADMIN, Who.OWNER)
)
_NOBODY: Final = "nobody"
_MAX_BYTES: Final = 16 << 20
_DRAFT_SIGNATURE: Final = "0" * 128
_ONE_KEY: Final = "1" * 64
"""Placeholder key for a who-word given to --read."""


@click.command(
    "explain",
    epilog="Examples: rookery policy explain event.json; "
    'echo \'{"kind":1,"content":"hi","pubkey":"npub1…"}\' | '
    "rookery policy explain -",
)
@click.argument("event", type=click.File("rb"), metavar="EVENT.json|-")
@data_option
@click.option(
    "--read",
    "reader",
    metavar="VIEWER",
    default=None,
    help="Whether this reader may read it: an npub, 64 hex, or a word: nobody (no login), owner,"
    " agent, author.",
)
@click.option(
    "--as",
    "logins",
    multiple=True,
    metavar="KEY",
    help='Keys that the connection logged in with, or "nobody".  [default: the author]',
)
@click.option(
    "--author-is",
    "words",
    multiple=True,
    type=click.Choice(_WORDS),
    help="Assume that the author is this, too: member of any group, insider or admin of the event's"
    " group; repeatable.",
)
@json_option
def explain_command(
    event: BinaryIO,
    data: Path | None,
    reader: str | None,
    logins: tuple[str, ...],
    words: tuple[str, ...],
    *,
    as_json: bool,
) -> int:
    """Show the relay's answer to an event, and the rule that decides.

    EVENT is one event as JSON, or a draft of one, such as
    {"kind":9,"pubkey":"npub1…","tags":[["h","tea"]],"content":"hi"}: without id and sig; without
    "pubkey" the author counts as unknown. Exit code 0: accepted, or readable; 1: not.

    A refused event is not stored: `rookery policy log` has the rule that refused it. A stored one:
    rookery export --filter '{"ids":["ID"]}' | rookery policy explain -
    """
    found = load(policy_folder(data), MEMORY_SYSTEMS)
    store = store_folder(data)
    now = unix_now()
    try:
        asked = asked_in(_fields(event), now)
    except Refused as refused:
        return _print_malformed(refused, as_json=as_json)
    if reader is not None:
        answer = asyncio.run(_reading(found, store, asked.event, reader))
        return _print_reading(asked, answer, as_json=as_json)
    keys = frozenset(_key(login) for login in logins if login != _NOBODY)
    if not logins:
        keys = frozenset({asked.event.pubkey})
    verdict = asyncio.run(_verdict(found, store, asked, keys, frozenset(map(Who, words)), now))
    return _print_verdict(asked, verdict, as_json=as_json)


# -- the event --------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Asked:
    """The event that is asked about."""

    event: Event
    is_draft: bool
    """It has no id and no signature yet."""


def _fields(file: BinaryIO) -> object:
    text = file.read(_MAX_BYTES + 1)
    if len(text) > _MAX_BYTES:
        raise UserError(f"{file.name}: too large, over {_MAX_BYTES >> 20} MiB; give one event")
    try:
        return orjson.loads(text)
    except orjson.JSONDecodeError as wrong:
        raise UserError(
            f"{file.name} is not JSON: {wrong}; give one event as JSON, or a draft of one"
        ) from None


def asked_in(fields: object, now: int) -> Asked:
    """Raises Invalid, naming the field."""
    if not isinstance(fields, dict) or "id" in fields or "sig" in fields:
        return Asked(event_from(fields), is_draft=False)
    unknown = fields.keys() - {"kind", "tags", "content", "pubkey", "created_at"}
    if unknown:
        raise Invalid(f"{min(map(str, unknown))}: is no field of an event")
    author = fields.get("pubkey", _ONE_KEY)
    if isinstance(author, str) and not is_hex64(author):
        author = _key(author)
    given = {
        "kind": fields.get("kind", 1),
        "tags": fields.get("tags", []),
        "content": fields.get("content", ""),
        "pubkey": author,
        "created_at": fields.get("created_at", now),
    }
    # The id of what is ill-typed is made of nothing; event_from names the field before it asks.
    blank = event_from_draft(given)
    return Asked(blank, is_draft=True)


def event_from_draft(given: dict[str, object]) -> Event:
    """A draft as an event whose signature is blank. Raises Invalid, naming the field."""
    kind, tags, content = given["kind"], given["tags"], given["content"]
    pubkey, created_at = given["pubkey"], given["created_at"]
    if (
        isinstance(pubkey, str)
        and isinstance(content, str)
        and isinstance(kind, int)
        and isinstance(created_at, int)
        and isinstance(tags, list)
        and all(isinstance(tag, list) and all(isinstance(v, str) for v in tag) for tag in tags)
    ):
        draft = signed(pubkey, created_at, kind, tags, content, lambda _: _DRAFT_SIGNATURE)
        return event_from(orjson.loads(draft.raw))
    return event_from({**given, "id": "0" * 64, "sig": _DRAFT_SIGNATURE})


def _key(text: str) -> str:
    return PublicKey().convert(text, None, None)


# -- writing ------------------------------------------------------------------------------------


class _Basis(Enum):
    """What the answer is based on."""

    RELAY = auto()
    """The relay of this folder, or its store."""
    NO_STORE = auto()
    """Policy files alone."""
    SUPPOSED = auto()
    """The author is assumed to have certain who-words: groups as in the store, nothing else
    stored."""


@dataclass(frozen=True, slots=True)
class _Verdict:
    explanation: Explanation
    reply: DryRunReply
    basis: _Basis
    has_store: bool


async def _verdict(
    found: PolicySet,
    store: Path | None,
    asked: Asked,
    keys: frozenset[str],
    supposed: frozenset[Who],
    now: int,
) -> _Verdict:
    event, groups, actors = asked.event, Groups(), found.actors
    basis = _Basis.NO_STORE if store is None else _Basis.SUPPOSED
    if store is not None:
        from relay.cli.data_folder import open_folder

        async with open_folder(store) as folder:
            if not supposed:
                reply = await folder.dry_run(event, keys)
                basis = _Basis.RELAY
            else:
                relay_key = relay_key_of(store)
                groups = await groups_of(folder, relay_key)
                actors = await people_here(folder, replace(actors, relay=relay_key))
    candidate = candidate_in(event, found, Sender(Origin.WIRE, keys))
    world = supposed_world(event, candidate.group, found, actors, groups, supposed, now)
    facts = facts_of(candidate, world)
    if basis is not _Basis.RELAY:
        result = screen_and_judge(candidate, world).result
        rule = result.rule if isinstance(result, Reject) else None
        is_malformed = candidate.malformed is not None
        reply = DryRunReply(*ok_reply(result), rule, None if is_malformed else facts)
    explanation = found.explain(event, reply.facts or facts)
    return _Verdict(explanation, reply, basis, store is not None)


@dataclass(frozen=True, slots=True)
class _Decided:
    """The OK, and the rule that decides it."""

    ok: bool
    message: str
    rule: str | None
    place: Place | None
    by: str
    """For people: `config is the owner's (packaged/20-memory.toml:12)`."""


def _decided(asked: Asked, verdict: _Verdict) -> _Decided:
    step = verdict.explanation.decided
    unsigned = not asked.is_draft and not is_signed(asked.event)
    if unsigned and (step is None or step.stage is not Stage.SCREEN):
        return _Decided(*ok_reply(BAD_SIGNATURE), "sig", None, "the signature")
    reply = verdict.reply
    # The form is wrong before anybody asks who the author is.
    is_early = reply.facts is None
    if step is not None and (step.stage is Stage.SCREEN or not is_early):
        assert step.verdict is not None
        where = where_text(step.place)
        name = step.verdict.rule
        by = f"{name} ({where})" if where else name
        return _Decided(*ok_reply(step.verdict), name, step.place, by)
    by = reply.rule or ""
    if is_early:
        by = "the form of the event"
    elif reply.ok:
        by = "no rule refuses it"
    elif verdict.basis is _Basis.RELAY:
        by = f"{by}, because of stored data" if by else "stored data"
    return _Decided(reply.ok, reply.message, reply.rule, None, by)


def _print_malformed(refused: Refused, *, as_json: bool) -> int:
    if as_json:
        print_json(
            {
                "ok": False,
                "message": str(refused),
                "rule": None,
                "file": None,
                "line": None,
                "steps": [],
            }
        )
    else:
        click.echo(f"{coloured('OK false', Colour.REFUSED)} {printable(str(refused))}")
        click.echo("decided by: the form of the event, before any rule")
    return 1


def _print_verdict(asked: Asked, verdict: _Verdict, *, as_json: bool) -> int:
    decided = _decided(asked, verdict)
    steps = verdict.explanation.steps
    if as_json:
        print_json(_verdict_as_json(asked, verdict))
        return 0 if decided.ok else 1
    for step in steps:
        click.echo(printable(_step_text(step)))
    click.echo("")
    said = printable(decided.message) or '""'
    ok = coloured("OK true", Colour.OK) if decided.ok else coloured("OK false", Colour.REFUSED)
    click.echo(f"{ok} {said}")
    click.echo(printable(f"decided by: {decided.by}"))
    for note in _notes(asked, verdict):
        click.echo(f"note: {note}")
    return 0 if decided.ok else 1


def _verdict_as_json(asked: Asked, verdict: _Verdict) -> dict[str, object]:
    decided = _decided(asked, verdict)
    place = decided.place
    return {
        "ok": decided.ok,
        "message": decided.message,
        "rule": decided.rule,
        "file": place.file if place is not None and place.file else None,
        "line": place.line if place is not None and place.file else None,
        "draft": asked.is_draft,
        "store": verdict.has_store,
        "steps": [
            {
                "rule": step.place.name,
                "file": step.place.file,
                "line": step.place.line,
                "stage": step.stage.value,
                "matched": step.matched,
                "says": None if step.verdict is None else ok_reply(step.verdict)[1],
            }
            for step in verdict.explanation.steps
        ],
    }


async def explained_here(
    found: PolicySet,
    asked: Asked,
    keys: frozenset[str],
    folder: Judgements,
    groups: Groups,
    actors: Actors,
    now: int,
) -> dict[str, object]:
    """The explanation in the form of `--json`, for a relay in this process. `actors`: including the
    changes by NIP-86 calls."""
    reply = await folder.dry_run(asked.event, keys)
    facts = reply.facts
    if facts is None:
        candidate = candidate_in(asked.event, found, Sender(Origin.WIRE, keys))
        words = frozenset[Who]()
        world = supposed_world(asked.event, candidate.group, found, actors, groups, words, now)
        facts = facts_of(candidate, world)
    verdict = _Verdict(found.explain(asked.event, facts), reply, _Basis.RELAY, has_store=True)
    return _verdict_as_json(asked, verdict)


def _step_text(step: Step) -> str:
    if step.verdict is not None:
        says = f"refuses: {ok_reply(step.verdict)[1]}"
    elif not step.matched:
        says = "does not match"
    elif step.stage in (Stage.PLUGIN, Stage.QUOTA):
        says = "is applied when the event is submitted"
    else:
        says = "accepts"
    where = where_text(step.place)
    return f"{step.stage.value}: {step.place.name}{f' ({where})' if where else ''}: {says}"


def _notes(asked: Asked, verdict: _Verdict) -> list[str]:
    notes = []
    if asked.is_draft:
        author = asked.event.pubkey
        whose = "nobody known" if author == _ONE_KEY else npub(author)
        notes.append(f"a draft, judged as if {whose} had signed it; signatures are not checked")
    match verdict.basis:
        case _Basis.NO_STORE:
            notes.append("no store here: judged as by a relay without groups, bans and events")
        case _Basis.SUPPOSED:
            notes.append(
                "the author has an assumed role; of the store only groups and bans are used"
            )
        case _Basis.RELAY:
            notes.append("rates count as unused; plug-ins are not run")
        case _:
            assert_never(verdict.basis)
    return notes


# -- reading ------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Reading:
    steps: Sequence[ReadStep]
    group: str | None
    has_store: bool
    is_banned: bool
    """The reader, or the author: nobody reads what banned keys wrote."""


async def _reading(found: PolicySet, store: Path | None, event: Event, reader: str) -> _Reading:
    groups, actors = Groups(), found.actors
    row = Stored(1, event, found.row_group(event))
    beside: list[Stored] = []
    if store is not None:
        from relay.cli.data_folder import open_folder

        async with open_folder(store) as folder:
            relay_key = relay_key_of(store)
            groups = await groups_of(folder, relay_key)
            actors = await people_here(folder, replace(actors, relay=relay_key))
            for target, value in targets_of(found.read_rules, row, groups):
                async for raws in folder.events(target.filter_for(value)):
                    others = [event_from_raw(raw) for raw in raws]
                    beside += [Stored(1, other, found.row_group(other)) for other in others]
    viewer = _viewer(reader, event, found)
    steps = found.with_actors(actors).explain_read(row, viewer, groups, beside)
    banned = bool((viewer.keys | {event.pubkey}) & actors.banned)
    return _Reading(steps, row.group, store is not None, banned)


def _viewer(reader: str, event: Event, found: PolicySet) -> Viewer:
    actors = found.actors
    # Of a household's event the words mean its own owner and agents; of a record of a group its
    # owner is none.
    homes = [home for home in actors.households if home.has(event.pubkey)]
    owners = [home.owners for home in homes if event.kind not in kinds.GROUP_RECORDS]
    named = {
        _NOBODY: frozenset[str](),
        "author": frozenset({event.pubkey}),
        "owner": frozenset[str]().union(*owners) or actors.owners,
        "agent": frozenset[str]().union(*[home.agents for home in homes]) or actors.agents,
    }
    if reader not in named:
        return Viewer(frozenset({_key(reader)}))
    keys = named[reader]
    if not keys and reader != _NOBODY:
        raise UserError(f"[actors] {reader}s is empty: give a key")
    return Viewer(frozenset({min(keys)}) if keys else keys)


def _print_reading(asked: Asked, reading: _Reading, *, as_json: bool) -> int:
    steps = reading.steps
    readable = all(step.allowed for step in steps) and not reading.is_banned
    if as_json:
        print_json(
            {
                "readable": readable,
                "banned": reading.is_banned,
                "draft": asked.is_draft,
                "store": reading.has_store,
                "steps": [
                    {
                        "rule": step.place.name,
                        "file": step.place.file,
                        "line": step.place.line,
                        "readers": step.readers,
                        "allowed": step.allowed,
                    }
                    for step in steps
                ],
            }
        )
        return 0 if readable else 1
    for step in steps:
        says = "permits reading" if step.allowed else "hides it"
        click.echo(
            printable(
                f"{step.place.name} ({where_text(step.place)}): {says}; readers: {step.readers}"
            )
        )
    if steps:
        click.echo("")
    if readable:
        click.echo(
            "readable: every rule that matches permits it"
            if steps
            else "readable: no rule matches, so anyone may read it"
        )
    elif reading.is_banned:
        click.echo("not readable: its author or this reader is banned")
    else:
        first = next(step for step in steps if not step.allowed)
        click.echo(printable(f"not readable, by {first.place.name} ({where_text(first.place)})"))
    if not reading.has_store:
        click.echo(
            "note: this folder has no store: groups, bans and referenced events are unknown; "
            "no key is in a group"
        )
    return 0 if readable else 1
