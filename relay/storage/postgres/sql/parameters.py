"""Values of a statement and their places in its text."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Sequence

    from asyncpg import Range

    Value = int | str | bytes | bool | None | list[int] | list[bytes] | list[str] | list[Range[int]]


_COMPARED: Final = 64
"""Items of a list: a connection may log in with so many keys, and each read rule may name them."""
_NUMBER: Final = re.compile(r"\$(\d+)")


class Late(NamedTuple):
    """Bound when a statement runs, so that queries of a shape share one text."""

    name: str
    number: int = 0


if TYPE_CHECKING:
    Bound = Value | Late


class Query(NamedTuple):
    sql: str
    values: Sequence[Value]


class Parameters:
    """Numbers values in the order in which the text of a statement is composed."""

    def __init__(self) -> None:
        self.values: list[Bound] = []
        self._numbers: dict[object, int] = {}
        """By late value; or by type and value, of a long list its `id`: it is in `values`, so no
        other gets it."""

    def add(self, value: Bound, type_: str) -> str:
        """The placeholder of the value in the text, `$1::bigint`; equal values share one."""
        key: object
        if isinstance(value, Late):
            key = value
        elif isinstance(value, list):
            key = type_, tuple(value) if len(value) <= _COMPARED else id(value)
        else:
            key = type_, value
        number = self._numbers.get(key)
        if number is None:
            self.values.append(value)
            number = self._numbers[key] = len(self.values)
        return f"${number}::{type_}"

    def used_in(self, sql: str) -> tuple[str, list[Bound]]:
        """The text and its values, without values that it does not use."""
        numbers = sorted({int(number) for number in _NUMBER.findall(sql)})
        if len(numbers) == len(self.values):
            return sql, self.values
        at = {str(number): f"${new}" for new, number in enumerate(numbers, 1)}
        values = [self.values[number - 1] for number in numbers]
        return _NUMBER.sub(lambda found: at[found[1]], sql), values

    def query(self, sql: str) -> Query:
        """The query, when all its values are known."""
        return Query(*self.used_in(sql))  # type: ignore[arg-type]  # nothing late is among them
