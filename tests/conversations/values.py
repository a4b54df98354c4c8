"""What the values of a script mean: made for what is said, compared with what is heard."""

from __future__ import annotations

import json
import re
from typing import Any

from tests.conversations.script import (
    REFERENCE,
    Either,
    Having,
    JsonText,
    Key,
    Name,
    Rest,
    Times,
)

MISSING = object()


class Unknown(Exception):
    """A name that has no value here."""


class Names:
    """What `$name` and `@person` stand for while one line is read."""

    def __init__(self, bound: dict[str, Any], local: dict[str, Any], keys: dict[str, str]) -> None:
        """`bound` is written to by what is heard; `local` ($id, $challenge) comes first."""
        self._bound, self._local, self._keys = bound, local, keys

    def get(self, name: str) -> Any:
        """Its value or MISSING."""
        return self._local.get(name, self._bound.get(name, MISSING))

    def bind(self, name: str, value: Any) -> None:
        self._bound[name] = value

    def value(self, name: str, plus: int = 0) -> Any:
        value = self.get(name)
        if value is MISSING:
            raise Unknown(f"${name} has no value yet")
        return value + plus if plus else value

    def key(self, person: str) -> str:
        try:
            return self._keys[person]
        except KeyError:
            raise Unknown(f"@{person} is not among the people") from None

    def text(self, text: str) -> str:
        """The text with its references replaced."""

        def replaced(found: re.Match[str]) -> str:
            sign, name, plus = found.groups()
            if name is None:
                return sign
            return self.key(name) if sign == "@" else str(self.value(name, int(plus or 0)))

        return REFERENCE.sub(replaced, text)


def made(value: Any, names: Names) -> Any:
    """The JSON value of what is said."""
    match value:
        case str():
            return names.text(value)
        case list():
            return [made(item, names) for item in value]
        case dict():
            return {key: made(item, names) for key, item in value.items()}
        case Name(name, plus):
            return names.value(name, plus)
        case Key(person):
            return names.key(person)
        case Times(inner, count):
            return made(inner, names) * count
        case JsonText(inner):
            return json.dumps(made(inner, names), ensure_ascii=False, separators=(",", ":"))
        case Rest() | Having() | Either():
            raise Unknown("… ⊇ ∌ | belong to what is heard")
        case _:
            return value


def alike(pattern: Any, value: Any, names: Names) -> bool:
    """Whether what was heard is what the pattern says; binds names that have no value yet."""
    match pattern:
        case Rest():
            return True
        case Name(name, plus):
            if names.get(name) is MISSING:
                names.bind(name, value)
                return True
            return _same(names.value(name, plus), value)
        case str():
            return isinstance(value, str) and _text_alike(names.text(pattern), value)
        case list():
            return isinstance(value, list) and _list_alike(pattern, value, names)
        case dict():
            return isinstance(value, dict) and all(
                key in value and alike(item, value[key], names) for key, item in pattern.items()
            )
        case Having(items, none_of):
            return (
                isinstance(value, list)
                and all(any(alike(item, part, names) for part in value) for item in items)
                and not any(alike(item, part, names) for part in value for item in none_of)
            )
        case Either(choices):
            return any(alike(choice, value, names) for choice in choices)
        case _:
            return _same(made(pattern, names), value)


def _list_alike(pattern: list[Any], value: list[Any], names: Names) -> bool:
    open_end = bool(pattern) and isinstance(pattern[-1], Rest)
    wanted = pattern[:-1] if open_end else pattern
    if len(value) < len(wanted) or (len(value) > len(wanted) and not open_end):
        return False
    return all(alike(item, part, names) for item, part in zip(wanted, value, strict=False))


def _text_alike(pattern: str, text: str) -> bool:
    parts = [re.escape(part) for part in pattern.split("…")]
    return re.fullmatch(".*".join(parts), text, re.DOTALL) is not None


def _same(wanted: Any, value: Any) -> bool:
    # 1 is not true and not 1.0 in JSON, but they are equal in Python.
    return type(wanted) is type(value) and wanted == value
