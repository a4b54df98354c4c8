"""The numbered statements, and how their ids are written."""

from __future__ import annotations

import re
import tomllib
from dataclasses import dataclass
from enum import Enum
from functools import cache
from pathlib import Path

HERE = Path(__file__).parent
PROTOCOL = HERE / "statements.md"
MEMORY = HERE / "memory.md"
LEFT_OUT = HERE / "left_out.toml"

_FAMILY = r"(?:N\d\d|NK|NAD|[ABDGMSXZ])"
_LINE = re.compile(rf"- \*\*(?P<id>{_FAMILY}-\d+)\*\* (?P<text>(?P<level>[A-Za-z/]+)\b.*)")
_NAMED = re.compile(rf"\b(?P<family>{_FAMILY})-(?P<numbers>\d+(?:\s*(?:,|…|\.\.\.)\s*\d+\b)*)")
_NUMBER = re.compile(r"(?P<sign>,|…|\.\.\.)?\s*(?P<number>\d+)")


class Level(Enum):
    """Of the protocol: how binding a statement is. Of memory: whom it binds."""

    MUST = "MUST"
    SHOULD = "SHOULD"
    MAY = "MAY"
    POLICY = "POLICY"
    """What no NIP says and a correct relay needs; it binds like MUST."""
    PRACTICE = "Practice"
    """What others do. No duty."""
    RELAY = "RELAY"
    CLIENT = "CLIENT"
    """`relay.memory` and `relay.client`."""
    CLI = "CLI"
    RELAY_AND_CLIENT = "RELAY/CLIENT"
    CLIENT_AND_CLI = "CLIENT/CLI"

    @property
    def binds(self) -> bool:
        return self not in (Level.SHOULD, Level.MAY, Level.PRACTICE)


class Unknown(Exception):
    """An id that no statement has, or a table that cannot be read; the text says which."""


@dataclass(frozen=True, slots=True)
class Statement:
    id: str
    section: str
    """The heading that it stands under: `01. Basic protocol`."""
    level: Level
    text: str
    """One line of Markdown, without its level."""

    @property
    def family(self) -> str:
        """What the id begins with: `N01`, `Z`, `A`."""
        return self.id.partition("-")[0]


@dataclass(frozen=True, slots=True)
class LeftOut:
    """What no test proves: id → one line that says why."""

    no_duty: dict[str, str]
    """Of any level: what concerns no relay, or only one that builds an option left out."""
    not_built: dict[str, str]
    """Of a level that leaves the choice."""
    later: dict[str, str]
    """Duties of a later version, by id or by family. One that is proven all the same is proven."""

    def reason(self, statement: Statement) -> str | None:
        return self.without_proof(statement.id) or self.later.get(
            statement.id, self.later.get(statement.family)
        )

    def without_proof(self, id_: str) -> str | None:
        """Why no test may claim it."""
        return self.no_duty.get(id_) or self.not_built.get(id_)


def statements_in(text: str) -> dict[str, Statement]:
    """By id, in the order of the text. Raises Unknown for an id that comes twice."""
    found: dict[str, Statement] = {}
    section = ""
    for line in text.splitlines():
        if line.startswith("## "):
            section = line.removeprefix("## ")
        read = _LINE.match(line)
        if read is None:
            continue
        if read["id"] in found:
            raise Unknown(f"{read['id']} stands twice among the statements")
        level, words = Level(read["level"]), read["text"].removeprefix(read["level"])
        found[read["id"]] = Statement(read["id"], section, level, words.lstrip(": "))
    return found


@cache
def of_the_protocol() -> dict[str, Statement]:
    return statements_in(PROTOCOL.read_text(encoding="utf-8"))


@cache
def of_memory() -> dict[str, Statement]:
    return statements_in(MEMORY.read_text(encoding="utf-8"))


@cache
def all_statements() -> dict[str, Statement]:
    """Both; their families differ."""
    return of_the_protocol() | of_memory()


def all_left_out() -> LeftOut:
    """Raises Unknown for an id or family that no statement has, or a duty that is left out."""
    tables = tomllib.loads(LEFT_OUT.read_text(encoding="utf-8"))
    left_out = LeftOut(**tables)
    known = all_statements()
    families = {statement.family for statement in known.values()}
    later = tuple(id_ for id_ in left_out.later if id_ not in families)
    check_known((*left_out.no_duty, *left_out.not_built, *later), LEFT_OUT.name)
    duties = [id_ for id_ in left_out.not_built if known[id_].level.binds]
    if duties:
        raise Unknown(f"{LEFT_OUT.name}: a duty cannot be left out: {', '.join(duties)}")
    return left_out


def check_known(ids: tuple[str, ...], where: str) -> None:
    """Raises Unknown."""
    unknown = [id_ for id_ in ids if id_ not in all_statements()]
    if unknown:
        raise Unknown(f"{where}: no such statement: {', '.join(unknown)}")


def ids_named_in(text: str) -> tuple[str, ...]:
    """The ids that a line names: `N01-05…11, 14, Z-11` are N01-05 to N01-11, N01-14 and Z-11.

    Of a span only the ends have to exist.
    """
    found: dict[str, None] = {}
    for named in _NAMED.finditer(text):
        last = 0
        for read in _NUMBER.finditer(named["numbers"]):
            number = int(read["number"])
            if read["sign"] in ("…", "..."):
                between = (_id(named["family"], one) for one in range(last + 1, number))
                found |= dict.fromkeys(id_ for id_ in between if id_ in all_statements())
            found[_id(named["family"], number)] = None
            last = number
    return tuple(found)


def _id(family: str, number: int) -> str:
    return f"{family}-{number:02d}"
