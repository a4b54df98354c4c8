"""The text of a script to its steps. The language is described in `tests.conversations`."""

from __future__ import annotations

import json
import re
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache, cached_property
from itertools import takewhile
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tests.conformance.statements import ids_named_in

if TYPE_CHECKING:
    from collections.abc import Iterator

HERE = Path(__file__).parent

WORD = r"[A-Za-z_][A-Za-z0-9_]*"
WHO = rf"{WORD}(?:/{WORD})?"
REFERENCE = re.compile(rf"([$@])(?:\1|({WORD})([+-]\d+)?)")
"""`$name`, `$now-60`, `@alice`, and the doubled sign that stands for itself."""


class BadScript(Exception):
    """A script that cannot be read; the text says where and why."""


@dataclass(frozen=True, slots=True)
class Name:
    """`$name`, with what is added to it."""

    name: str
    plus: int = 0


@dataclass(frozen=True, slots=True)
class Key:
    """`@alice`."""

    person: str


@dataclass(frozen=True, slots=True)
class Rest:
    """`…`."""


@dataclass(frozen=True, slots=True)
class Having:
    """`⊇ [...] ∌ [...]`."""

    items: list[Any]
    none_of: list[Any]


@dataclass(frozen=True, slots=True)
class Either:
    """`this | that`."""

    choices: list[Any]


@dataclass(frozen=True, slots=True)
class JsonText:
    """`json {...}`."""

    value: Any


@dataclass(frozen=True, slots=True)
class Times:
    """`value × n`."""

    value: Any
    count: int


@dataclass(frozen=True, slots=True)
class Says:
    frame: list[Any]


@dataclass(frozen=True, slots=True)
class Shouts:
    """Text as it is, `count` times."""

    text: str
    count: int


@dataclass(frozen=True, slots=True)
class LogsIn:
    whose: str


@dataclass(frozen=True, slots=True)
class Signs:
    """Events with the names of their ids; of two the lower id comes first."""

    names: tuple[str, ...]
    event: dict[str, Any]


@dataclass(frozen=True, slots=True)
class Hears:
    pattern: list[Any]
    count: int = 1


@dataclass(frozen=True, slots=True)
class HearsNo:
    pattern: Any


@dataclass(frozen=True, slots=True)
class IsCutOff:
    code: int


@dataclass(frozen=True, slots=True)
class Leaves:
    pass


@dataclass(frozen=True, slots=True)
class Restart:
    pass


Act = Says | Shouts | LogsIn | Signs | Hears | HearsNo | IsCutOff | Leaves | Restart


@dataclass(frozen=True, slots=True)
class Step:
    line: int
    text: str
    who: str
    """The connection: `alice`, `alice/phone`; empty for the relay's own steps."""
    act: Act


@dataclass(frozen=True)
class Script:
    path: str
    """Below this folder, without `.nostr`; or any name."""
    title: str
    proves: tuple[str, ...]
    """Ids of statements, as its first comment lines name them."""
    preset: str
    policy: str
    limits: dict[str, int]
    """What it takes for granted of `limitation` in the relay's document."""
    people: tuple[str, ...]
    names: tuple[str, ...]
    lines: tuple[tuple[int, str], ...]
    """Each step with the number of its first line."""

    @cached_property
    def steps(self) -> tuple[Step, ...]:
        """Raises BadScript."""
        return tuple(self._step(number, line) for number, line in self.lines)

    @property
    def restarts(self) -> bool:
        return any(line.split()[0] == "restart" for _, line in self.lines)

    def _step(self, number: int, line: str) -> Step:
        if line.split()[0] == "restart":
            return Step(number, line, "", Restart())
        with _at(self.path, number):
            return Step(number, line, *_speech(line, self.people))


def all_paths() -> list[Path]:
    return sorted(HERE.rglob("*.nostr"))


@cache
def script_file(path: Path) -> Script:
    """Its steps are read when they are asked for: every worker collects all scripts."""
    return _script(path.read_text(encoding="utf-8"), name_of(path))


def name_of(path: Path) -> str:
    inside = path.resolve().is_relative_to(HERE)
    return (path.resolve().relative_to(HERE) if inside else path).with_suffix("").as_posix()


def script_from(text: str, path: str) -> Script:
    """Raises BadScript."""
    script = _script(text, path)
    assert len(script.steps) == len(script.lines)
    return script


@contextmanager
def _at(path: str, number: int) -> Iterator[None]:
    """BadScript says where it was raised."""
    try:
        yield
    except BadScript as wrong:
        raise BadScript(f"{path}:{number}: {wrong}") from None


def _script(text: str, path: str) -> Script:
    title = text.partition("\n")[0]
    if not title.startswith("# "):
        raise BadScript(f"{path}:1: the first line must be the title: # What the relay does.")
    found: dict[str, Any] = {
        "preset": "group",
        "policy": "",
        "limits": {},
        "people": (),
        "names": (),
    }
    steps = [line for line in _logical_lines(text) if not _is_setting(line[1], found)]
    found |= {"title": " ".join(title[2:].split()), "proves": ids_named_in(_head(text))}
    return Script(path=path, lines=tuple(steps), **found)


def _head(text: str) -> str:
    """The comment lines that it begins with."""
    return "\n".join(takewhile(lambda line: line.startswith("#"), text.splitlines()))


def _logical_lines(text: str) -> list[tuple[int, str]]:
    """(number of its first line, text); indented lines belong to the one before."""
    lines: list[tuple[int, str]] = []
    for number, line in enumerate(text.split("\n"), 1):
        if not line.strip():
            continue
        if line[0].isspace() and lines:
            lines[-1] = (lines[-1][0], f"{lines[-1][1]}\n{line}")
        else:
            lines.append((number, line.rstrip()))
    return [(number, line) for number, line in lines if not line.startswith("#")]


def _is_setting(line: str, found: dict[str, Any]) -> bool:
    """Whether the line is no step; what it sets is put into `found`."""
    verb, _, rest = line.partition(" ")
    words = rest.partition("#")[0].split()
    if line.split("\n")[0].strip() == "policy":
        found["policy"] = "\n".join(part.strip() for part in line.split("\n")[1:]) + "\n"
    elif verb == "preset" and words[:1] in (["open"], ["group"]):
        found["preset"] = words[0]
    elif verb == "limit" and len(words) == 2 and words[1].isdecimal():
        found["limits"][words[0]] = int(words[1])
    elif verb in ("people", "names"):
        found[verb] += tuple(words)
    else:
        return False
    return True


def _speech(line: str, people: tuple[str, ...]) -> tuple[str, Act]:
    head = re.match(rf"({WHO})\s+(→|←|signs|leaves)\s*", line)
    if not head:
        raise BadScript(f"cannot read {line!r}")
    who, verb, rest = head[1], head[2], line[head.end() :]
    if who.partition("/")[0] not in people:
        raise BadScript(f"{who} is not among the people")
    if verb == "→":
        return who, _said(rest, who.partition("/")[0])
    if verb == "←":
        return who, _heard(rest)
    if verb == "leaves":
        return who, Leaves()
    named = re.match(rf"\$({WORD})\s*(?:<\s*\$({WORD})\s*)?", rest)
    if not named:
        raise BadScript("signs: needs a name for the event's id: alice signs $note {...}")
    event = read_value(rest[named.end() :])
    return who, Signs(tuple(name for name in named.groups() if name), event)


def _said(rest: str, person: str) -> Act:
    shout = re.match(r"(?:(\d+) × )?text (.*)", rest, re.DOTALL)
    if shout:
        return Shouts(shout[2], int(shout[1] or 1))
    login = re.fullmatch(rf"AUTH(?:\s+({WORD}))?\s*(?:#.*)?", rest)
    if login:
        return LogsIn(login[1] or person)
    frame = read_value(rest)
    if not isinstance(frame, list):
        raise BadScript("what is said must be a list, AUTH, or `text …`")
    return Says(frame)


def _heard(rest: str) -> Act:
    closed = re.fullmatch(r"closed (\d+)\s*(?:#.*)?", rest)
    if closed:
        return IsCutOff(int(closed[1]))
    if rest.startswith("no "):
        return HearsNo(read_value(rest[3:]))
    counted = re.match(r"(\d+) × ", rest)
    count, rest = (int(counted[1]), rest[counted.end() :]) if counted else (1, rest)
    pattern = read_value(rest)
    if (
        not isinstance(pattern, list)
        or not pattern
        or not isinstance(pattern[0], str | Either | Name)
    ):
        raise BadScript("what is heard is a list that begins with its verb")
    return Hears(pattern, count)


_TOKEN = re.compile(
    rf"""\s*(?:
        (?P<text>"(?:[^"\\]|\\.)*")
      | (?P<number>-?\d+(?:\.\d+)?(?:[eE][+-]?\d+)?)
      | (?P<word>true|false|null|json)
      | \$(?P<name>{WORD})(?P<plus>[+-]\d+)?
      | @(?P<person>{WORD})
      | (?P<sign>[\[\]{{}},:…⊇∌×|])
      | (?P<comment>\#.*)
    )""",
    re.VERBOSE,
)


def read_value(text: str) -> Any:
    """The one value that stands here; a comment may follow. Raises BadScript."""
    reader = _Reader(text)
    value = reader.value()
    reader.end()
    return value


class _Reader:
    def __init__(self, text: str) -> None:
        self.text = text
        self.at = 0
        self.token = self._next()

    def _next(self) -> re.Match[str] | None:
        while self.text[self.at :].strip():
            token = _TOKEN.match(self.text, self.at)
            if not token:
                raise BadScript(f"cannot read {self.text[self.at :].strip()[:40]!r}")
            self.at = token.end()
            if token["comment"] is None:
                return token
        return None

    def take(self) -> re.Match[str]:
        if self.token is None:
            raise BadScript("something is missing at the end")
        taken, self.token = self.token, self._next()
        return taken

    def is_next(self, sign: str) -> bool:
        return self.token is not None and self.token["sign"] == sign

    def expect(self, sign: str) -> None:
        token = self.take()
        if token["sign"] != sign:
            raise BadScript(f"{sign!r} expected instead of {token[0].strip()!r}")

    def _skip(self, sign: str) -> bool:
        skipped = self.is_next(sign)
        if skipped:
            self.take()
        return skipped

    def _bracketed(self) -> list[Any]:
        self.expect("[")
        return self._list()

    def end(self) -> None:
        if self.token is not None:
            raise BadScript(f"more than one value: {self.token[0].strip()!r}")

    def value(self) -> Any:
        value = self._plain()
        while self._skip("×"):
            value = Times(value, int(self.take()["number"] or 0))
        if self._skip("|"):
            other = self.value()
            return Either([value, *(other.choices if isinstance(other, Either) else [other])])
        return value

    def _plain(self) -> Any:
        token = self.take()
        if token["text"] is not None:
            return json.loads(token["text"])
        if token["word"] == "json":
            return JsonText(self._plain())
        if token["number"] is not None or token["word"] is not None:
            return json.loads(token["number"] or token["word"])
        if token["name"] is not None:
            return Name(token["name"], int(token["plus"] or 0))
        if token["person"] is not None:
            return Key(token["person"])
        match token["sign"]:
            case "[":
                return self._list()
            case "{":
                return self._object()
            case "…":
                return Rest()
            case "⊇":
                items = self._bracketed()
                return Having(items, self._bracketed() if self._skip("∌") else [])
            case "∌":
                return Having([], self._bracketed())
            case sign:
                raise BadScript(f"a value expected instead of {sign!r}")

    def _list(self) -> list[Any]:
        items: list[Any] = []
        while not self.is_next("]"):
            items.append(self.value())
            if not self.is_next("]"):
                self.expect(",")
        self.take()
        return items

    def _object(self) -> dict[str, Any]:
        pairs: dict[str, Any] = {}
        while not self.is_next("}"):
            key = self.take()["text"]
            if key is None:
                raise BadScript("a key of an object must be a text")
            self.expect(":")
            pairs[json.loads(key)] = self.value()
            if not self.is_next("}"):
                self.expect(",")
        self.take()
        return pairs
