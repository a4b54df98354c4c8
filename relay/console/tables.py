"""Tables of pages: sorted, searched, paged, and as CSV, in one place. Pure."""

from __future__ import annotations

import csv
import io
from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

PAGE_ROWS: Final = 50
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


def table(whole: Rows, query: Mapping[str, str]) -> dict[str, object]:
    """The page of the table that `sort` (`-` in front: descending), `find` and `page` ask for.

    Invalid values in the query are ignored.
    """
    chosen = arranged(whole, query)
    pages = max(1, -(-len(chosen) // PAGE_ROWS))
    wanted = query.get("page", "1")
    is_number = wanted.isascii() and wanted.isdecimal() and len(wanted) < 9
    page = min(max(1, int(wanted)), pages) if is_number else 1
    sort = query.get("sort", "")
    return {
        "columns": [
            {"key": each.key, "title": each.title, "holds": each.holds.value}
            for each in whole.columns
        ],
        "rows": chosen[(page - 1) * PAGE_ROWS : page * PAGE_ROWS],
        "total": len(chosen),
        "page": page,
        "pages": pages,
        "sort": sort if sort.removeprefix("-") in {each.key for each in whole.columns} else "",
        "find": query.get("find", "")[:_MAX_FIND],
    }


def arranged(whole: Rows, query: Mapping[str, str]) -> list[Row]:
    """All rows that `find` matches, in the order of `sort`."""
    find = query.get("find", "")[:_MAX_FIND].casefold()
    chosen = [row for row in whole.rows if not find or find in _text(whole, row).casefold()]
    sort = query.get("sort", "")
    key = sort.removeprefix("-")
    if key in {column.key for column in whole.columns}:
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


def as_csv(whole: Rows, query: Mapping[str, str]) -> str:
    """RFC 4180, every row that `find` matches. No cell is a formula."""
    file = io.StringIO()
    writer = csv.writer(file, quoting=csv.QUOTE_ALL)  # a list separator may be `;`
    writer.writerow([column.key for column in whole.columns])
    for row in arranged(whole, query):
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
