"""Tables of pages: sorted, searched, paged, and as CSV, in one place.

Other tasks run between pieces of a long table.
"""

from __future__ import annotations

import asyncio
import csv
import io
from dataclasses import dataclass, field
from enum import StrEnum
from time import perf_counter
from typing import TYPE_CHECKING, Final, TypeVar

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping, Sequence

_T = TypeVar("_T")

PAGE_ROWS: Final = 50
_PIECE: Final = 200
"""Rows that are made, searched or written without a pause: 1 to 2 ms."""
_PIECE_S: Final = 0.002
"""The same where rows take longer. By the clock, which is read for each: some pauses more, on a
busy machine, do no harm."""
_MAX_FIND: Final = 200
_FORMULA: Final = ("=", "+", "-", "@", "\t", "\r", *"\uff1d\uff0b\uff0d\uff20")
"""Spreadsheets take a cell that begins so for a formula; some also the full-width signs."""


class Holds(StrEnum):
    TEXT = "text"
    NUMBER = "number"
    KIND = "kind"
    TIME = "time"
    PERSON = "person"
    GROUP = "group"
    EVENT = "event"
    CODE = "code"
    WORDS = "words"
    BYTES = "bytes"
    LINK = "link"
    """A row's `link` leads on."""


@dataclass(frozen=True, slots=True)
class Column:
    key: str
    title: str
    holds: Holds = Holds.TEXT


Row = dict[str, object]


@dataclass(frozen=True, slots=True)
class Rows:
    """A whole table."""

    columns: Sequence[Column]
    rows: Sequence[Row]
    people: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    """Names that `find` also searches."""
    fill: Callable[[Sequence[Row]], Awaitable[None]] | None = None
    """Gives rows their values of the columns `filled`, which are None before. It is called with the
    rows that are shown, or with all where one of these columns sorts them; `find` does not search
    these columns."""
    filled: frozenset[str] = frozenset()


async def in_pieces(items: Iterable[_T]) -> AsyncIterator[_T]:
    """The items, with a pause after each piece in which other tasks run."""
    began = perf_counter()
    for number, item in enumerate(items, 1):
        yield item
        if number % _PIECE == 0 or perf_counter() - began >= _PIECE_S:
            await asyncio.sleep(0)
            began = perf_counter()


async def table(whole: Rows, query: Mapping[str, str]) -> dict[str, object]:
    """The page of the table that `sort` (`-` in front: descending), `find` and `page` ask for.

    Invalid values in the query are ignored.
    """
    chosen = await arranged(whole, query)
    pages = max(1, -(-len(chosen) // PAGE_ROWS))
    wanted = query.get("page", "1")
    is_number = wanted.isascii() and wanted.isdecimal() and len(wanted) < 9
    page = min(max(1, int(wanted)), pages) if is_number else 1
    sort = query.get("sort", "")
    rows = chosen[(page - 1) * PAGE_ROWS : page * PAGE_ROWS]
    await _fill(whole, rows)
    return {
        "columns": [
            {"key": each.key, "title": each.title, "holds": each.holds.value}
            for each in whole.columns
        ],
        "rows": rows,
        "total": len(chosen),
        "page": page,
        "pages": pages,
        "sort": sort if sort.removeprefix("-") in {each.key for each in whole.columns} else "",
        "find": query.get("find", "")[:_MAX_FIND],
    }


async def _fill(whole: Rows, rows: Sequence[Row]) -> None:
    if whole.fill is not None:
        await whole.fill(rows)


async def arranged(whole: Rows, query: Mapping[str, str]) -> list[Row]:
    """All rows that `find` matches, in the order of `sort`."""
    find = query.get("find", "")[:_MAX_FIND].casefold()
    chosen = [*whole.rows]
    if find:
        rows = in_pieces(whole.rows)
        chosen = [row async for row in rows if find in _text(whole, row).casefold()]
    sort = query.get("sort", "")
    key = sort.removeprefix("-")
    if key in {column.key for column in whole.columns}:
        if key in whole.filled:
            await _fill(whole, chosen)
        # Empty cells stay at the end in both directions.
        given = [row for row in chosen if row.get(key) not in (None, "")]
        empty = [row for row in chosen if row.get(key) in (None, "")]
        given.sort(key=lambda row: _order(row[key]), reverse=sort.startswith("-"))
        chosen = [*given, *empty]
    return chosen


def _order(value: object) -> tuple[int, float, str]:
    if isinstance(value, (int, float)):
        return (0, float(value), "")
    return (1, 0.0, _cell(value).casefold())


def _text(whole: Rows, row: Row) -> str:
    parts = []
    for column in whole.columns:
        value = row.get(column.key)
        parts.append(_cell(value))
        if isinstance(value, str) and value in whole.people:
            parts += whole.people[value].values()
    return "\n".join(parts)


async def as_csv(whole: Rows, query: Mapping[str, str]) -> str:
    """RFC 4180, every row that `find` matches. No cell is a formula."""
    file = io.StringIO()
    writer = csv.writer(file, quoting=csv.QUOTE_ALL)  # a list separator may be `;`
    writer.writerow([column.key for column in whole.columns])
    chosen = await arranged(whole, query)
    await _fill(whole, chosen)
    async for row in in_pieces(chosen):
        writer.writerow([_harmless(row.get(column.key)) for column in whole.columns])
    return file.getvalue()


def _harmless(value: object) -> str:
    text = _cell(value)
    if isinstance(value, (int, float)):
        return text
    return f"'{text}" if text.startswith(_FORMULA) else text


def _cell(value: object) -> str:
    match value:
        case None:
            return ""
        case str():
            return value
        case list() | tuple():
            return " ".join(map(_cell, value))
        case _:
            return str(value)
