"""Tables of test cases: an event, the state it is judged in, and the expected outcome.

    [[case]]
    says  = "an unknown author may not post in a group"
    event = { kind = 9, by = "stranger", tags = [["h", "tea"]] }
    given = { group = "tea", members = ["alice"] }
    want  = "restricted"

`want`: "accept", a prefix, or the whole text of the OK; `rule`: the rule that refuses. With
`reads = "bob"` the question is whether he may read the event, and `want` is "shown" or "hidden".
Actors are names: "owner" and "agent" are those of the policies under test, all others are what
`given` says. A file may name a `preset` and add a `policy`, which come after the folder's files.

Here tables are read; `relay.cli.policy.case_runner` runs them.
"""

from __future__ import annotations

import tempfile
from dataclasses import dataclass, replace
from hashlib import sha256
from ipaddress import IPv4Address, IPv6Address, ip_address
from pathlib import Path
from typing import TYPE_CHECKING, Final

from policies.load import PRESETS, load, values_of
from relay.access.quotas import Size
from relay.errors import ConfigFaults, Fault, Prefix
from relay.facts import Origin
from relay.files import content_of
from relay.groups.actions import Flag
from relay.groups.group import Group, Groups, Role
from relay.groups.key_map import OrderedMap
from relay.nostr.event import Event, is_hex64, signed
from relay.toml.fields import Source, Table, nearest
from relay.toml.lines import lines_of

if TYPE_CHECKING:
    from collections.abc import Iterable

    from policies.engine import PolicySet
    from relay.access.actors import Actors
    from relay.memory.registry import MemorySystems

NOW: Final = 1_772_000_000
"""The time of every case, unix seconds."""

ACCEPT: Final = "accept"
SHOWN: Final = "shown"
HIDDEN: Final = "hidden"
NO_LOGIN: Final = "no login"

CASE_KEYS: Final = ("says", "event", "given", "reads", "want", "rule")
EVENT_KEYS: Final = ("kind", "by", "tags", "content", "content_chars", "age")
GIVEN_KEYS: Final = (
    "group",
    "flags",
    "members",
    "admins",
    "agents",
    "founder",
    "kinds",
    "logged_in",
    "known",
    "replaces",
    "deletes_own",
    "quiet",
    "origin",
    "address",
    "local",
    "sent",
    "stored",
    "beside",
)
_FILE_KEYS: Final = ("case", "preset", "policy")
_ORIGINS: Final = {
    "wire": Origin.WIRE,
    "import": Origin.IMPORT,
    "trusted import": Origin.TRUSTED_IMPORT,
}


@dataclass(frozen=True, slots=True)
class CaseEvent:
    """An event of a case, with names in place of keys."""

    kind: int
    by: str
    tags: tuple[tuple[str, ...], ...]
    content: str
    age: int
    """Seconds before NOW."""

    def of(self, cast: Cast) -> Event:
        """The event, with a signature of zeros."""
        tags = [[cast.value(value) for value in tag] for tag in self.tags]
        pubkey = cast.key(self.by)
        return signed(pubkey, NOW - self.age, self.kind, tags, self.content, lambda _: "0" * 128)


@dataclass(frozen=True, slots=True)
class Given:
    """The state in which a case takes place."""

    group: str | None = None
    flags: tuple[str, ...] = ()
    members: tuple[str, ...] = ()
    admins: tuple[str, ...] = ()
    agents: tuple[str, ...] = ()
    """Members of the group with the role `[actors] agent_role`."""
    founder: str = "owner"
    """Who made the group."""
    kinds: frozenset[int] | None = None
    logged_in: tuple[str, ...] = ()
    known: tuple[str, ...] = ()
    """Allowed by NIP-86."""
    replaces: bool = False
    deletes_own: bool = False
    quiet: bool = False
    origin: Origin = Origin.WIRE
    address: IPv4Address | IPv6Address | None = None
    """The client's; None: unknown."""
    local: bool = False
    sent: int = 0
    """Events sent in this second that the same rates count."""
    stored: Size = Size()  # noqa: RUF009
    """Stored size that the same quotas count."""
    beside: tuple[CaseEvent, ...] = ()
    """Other stored events, that the event may refer to."""

    def groups(self, cast: Cast, actors: Actors) -> Groups:
        if self.group is None:
            return Groups()
        members: dict[str, tuple[str, ...]] = dict.fromkeys(cast.keys(self.members), ())
        members |= dict.fromkeys(cast.keys(self.agents), (actors.agent_role,))
        members |= dict.fromkeys(cast.keys(self.admins), (Role.ADMIN.value,))
        flags = frozenset(Flag(flag) for flag in self.flags)
        group = Group(
            self.group,
            flags=flags,
            members=OrderedMap(members),
            supported_kinds=self.kinds,
            founder=cast.key(self.founder),
        )
        return Groups().with_group(group)


@dataclass(frozen=True, slots=True)
class Case:
    """One `[[case]]`."""

    says: str
    line: int
    event: CaseEvent
    want: str
    rule: str | None
    reads: str | None
    given: Given


@dataclass(frozen=True, slots=True)
class CaseTable:
    """One file of cases, with its own policies."""

    file: str
    cases: tuple[Case, ...]
    preset: str | None = None
    policy: str = ""
    policy_line: int = 0
    """The line of `policy`."""


def case_table(path: Path) -> CaseTable:
    """Read one file. Raises ConfigFaults with every fault."""
    name = str(path)
    faults: list[Fault] = []
    read = values_of(path, name, faults)
    if read is None:
        raise ConfigFaults(faults)
    text, values = read
    top = Table(Source(name, lines_of(text), faults), (), values)
    top.refuse_unknown(_FILE_KEYS)
    preset = top.text("preset") if top.has("preset") else None
    if preset is not None and not (PRESETS / f"{preset}.toml").is_file():
        known = [each.stem for each in PRESETS.glob("*.toml")]
        top.wrong("preset", f'there is no preset "{preset}"{nearest(preset, known)}')
    cases = [_case(table) for table in top.tables("case")]
    if not cases and not faults:
        faults.append(Fault(name, 0, "has no [[case]]"))
    policy = (top.text("policy") or "") if top.has("policy") else ""
    if faults:
        raise ConfigFaults(faults)
    return CaseTable(name, tuple(cases), preset, policy, top.source.line(("policy",)))


def _case(table: Table) -> Case:
    table.refuse_unknown(CASE_KEYS)
    for needed in ("says", "event", "want"):
        if not table.has(needed):
            table.wrong(needed, f"a case needs {needed}")
    want, reads = table.text("want") or "", table.text("reads")
    if want:
        _check_want(table, want, reads)
    return Case(
        table.text("says") or "",
        table.line,
        _case_event(table.table("event")),
        want,
        table.text("rule"),
        reads,
        _given(table.table("given")),
    )


def _case_event(event: Table | None) -> CaseEvent:
    if event is None:
        return CaseEvent(0, "stranger", (), "", 0)
    event.refuse_unknown(EVENT_KEYS)
    kind = event.integer("kind")
    if not event.has("kind"):
        event.wrong("kind", "an event needs a kind")
    age = event.integer("age", -(2**31)) or 0
    if event.has("content") and not isinstance(event.values["content"], str):
        event.wrong("content", "content must be a text")
    content = event.values.get("content", "x" * (event.integer("content_chars") or 0))
    return CaseEvent(
        kind or 0,
        event.text("by") or "stranger",
        _tags(event),
        content if isinstance(content, str) else "",
        age,
    )


def _check_want(table: Table, want: str, reads: str | None) -> None:
    """An impossible `want` would always fail, as if the rules were wrong."""
    words = (SHOWN, HIDDEN) if reads is not None else (ACCEPT, *(word.value for word in Prefix))
    if want.partition(":")[0] not in words:
        about = "of a case with reads" if reads is not None else "of a case about writing"
        table.wrong("want", f'want {about} cannot be "{want}"{nearest(want, words)}')


def _tags(event: Table) -> tuple[tuple[str, ...], ...]:
    tags = event.values.get("tags", [])
    if isinstance(tags, list) and all(
        isinstance(tag, list) and all(isinstance(value, str) for value in tag) for tag in tags
    ):
        return tuple([tuple(tag) for tag in tags])
    event.wrong("tags", "tags must be a list of lists of texts")
    return ()


def _given(table: Table | None) -> Given:
    if table is None:
        return Given()
    table.refuse_unknown(GIVEN_KEYS)
    names = {
        key: tuple(table.strings(key) or ())
        for key in ("members", "admins", "agents", "logged_in", "known")
    }
    listed = table.values.get("kinds")
    if table.has("kinds") and not (
        isinstance(listed, list) and all(type(kind) is int for kind in listed)
    ):
        table.wrong("kinds", "kinds must be a list of numbers")
        listed = None
    origin = table.text("origin") or "wire"
    if origin not in _ORIGINS:
        table.wrong("origin", f"origin must be one of {', '.join(_ORIGINS)}")
    flags = table.list_of("flags", Flag) or frozenset()
    return Given(
        table.text("group"),
        tuple(sorted(flags)),
        **names,
        founder=table.text("founder") or "owner",
        kinds=frozenset(listed) if isinstance(listed, list) else None,
        replaces=table.boolean("replaces") or False,
        deletes_own=table.boolean("deletes_own") or False,
        quiet=table.boolean("quiet") or False,
        origin=_ORIGINS.get(origin, Origin.WIRE),
        address=_address(table),
        local=table.boolean("local") or False,
        sent=table.integer("sent") or 0,
        stored=_stored(table.table("stored")),
        beside=tuple([_case_event(other) for other in table.tables("beside")]),
    )


def _address(given: Table) -> IPv4Address | IPv6Address | None:
    text = given.text("address")
    try:
        return None if text is None else ip_address(text)
    except ValueError:
        given.wrong("address", f'"{text}" is no IP address')
        return None


def _stored(table: Table | None) -> Size:
    if table is None:
        return Size()
    table.refuse_unknown(("events", "bytes"))
    return Size(table.integer("events") or 0, table.integer("bytes") or 0)


def policy_for(table: CaseTable, folder: Path | None, systems: MemorySystems) -> PolicySet:
    """The policies of a folder (None: the packaged ones) with those of the table after them."""
    with tempfile.TemporaryDirectory(prefix="rookery-cases-") as made:
        home = Path(made)
        if folder is not None:
            for path in folder.glob("**/*"):
                if path.is_file():
                    copy = home / path.relative_to(folder)
                    copy.parent.mkdir(parents=True, exist_ok=True)
                    if path.suffix == ".toml":
                        copy.write_bytes(content_of(path))
                    else:  # keys and programs that the policies name
                        copy.symlink_to(path.resolve())
        if table.preset is not None:
            preset = (PRESETS / f"{table.preset}.toml").read_bytes()
            (home / "10-preset.toml").write_bytes(preset)
        (home / _OWN).write_text(table.policy)
        try:
            return load(home, systems)
        except ConfigFaults as wrong:
            raise ConfigFaults(
                [_in_own_file(fault, home, folder, table) for fault in wrong.faults]
            ) from None


_OWN: Final = "99-cases.toml"


def _in_own_file(fault: Fault, made: Path, folder: Path | None, table: CaseTable) -> Fault:
    """The fault at the admin's own file, not in the temporary folder."""
    try:
        name = Path(fault.file).relative_to(made)
    except ValueError:
        return fault
    if str(name) == _OWN:
        line = table.policy_line + fault.line if "\n" in table.policy else table.policy_line
        return replace(fault, file=table.file, line=line)
    if folder is None or not (folder / name).exists():
        return replace(fault, file=str(PRESETS / f"{table.preset}.toml"))
    return replace(fault, file=str(folder / name))


class Cast:
    """Names → keys: the policies' own owner and agent if they have some, else made-up keys."""

    def __init__(self, actors: Actors) -> None:
        owner = min(actors.owners, default=_made_up("owner"))
        agent = min(actors.agents, default=_made_up("agent"))
        self._keys = {"owner": owner, "agent": agent}
        self.actors = replace(
            actors, owners=actors.owners | {owner}, agents=actors.agents | {agent}
        )

    def key(self, name: str) -> str:
        if is_hex64(name):
            return name
        return self._keys.get(name) or _made_up(name)

    def keys(self, names: Iterable[str]) -> list[str]:
        return [self.key(name) for name in names]

    def value(self, value: str) -> str:
        """The value of a tag: `@alice` is her key, anything else is itself."""
        return self.key(value[1:]) if value[:1] == "@" else value


def _made_up(name: str) -> str:
    return sha256(f"rookery policy case: {name}".encode()).hexdigest()
