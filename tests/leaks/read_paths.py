"""How one may ask for a row: the right side of the leak table.

A question is the filters of a REQ, a COUNT or a NEG-OPEN. *Exact* questions are those that only
this row could answer: who may not read it must get, to the last frame, what is said of a row that
never was.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from relay.nostr.kinds import GROUP_MEMBER_NOTICES
from tests.leaks.people import HIDDEN, NOWHERE

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from tests.leaks.guards import Row

Filters = list[dict[str, Any]]

GHOST_ID: Final = "f" * 64
GHOST: Final = "ghost"


@dataclass(frozen=True, slots=True)
class Shape:
    """One way to ask."""

    filters: Callable[[Row], Filters | None]
    """None: the row has nothing that could be asked for so."""
    is_exact: bool = False
    verbs: frozenset[str] = frozenset({"REQ", "COUNT", "NEG-OPEN"})


@dataclass(frozen=True, slots=True)
class Question:
    """One row of the table, but for the viewer; filters as JSON."""

    row: Row
    way: str
    filters: Filters
    text: str
    ghost: str | None
    """The same about a row that never was, if the question is exact."""
    number: int
    """Of the row and of the way, together: any few in turn are of different ways."""

    @property
    def finds(self) -> bool:
        """Whether the row is found: a search finds what has text, and maybe more."""
        return "search" not in self.filters[0] or self.row.is_searched


def questions_for(rows: Sequence[Row], verb: str) -> list[Question]:
    """Every row with every way of this verb that it could be asked for by."""
    return [
        Question(
            row,
            way,
            filters,
            text_of(filters),
            text_of(of_a_ghost(filters, row)) if shape.is_exact else None,
            of_row + of_way,
        )
        for of_row, row in enumerate(rows)
        for of_way, (way, shape) in enumerate(SHAPES.items())
        if verb in shape.verbs and (filters := shape.filters(row)) is not None
    ]


def text_of(filters: Filters) -> str:
    return json.dumps(filters, sort_keys=True)


def by_tag(name: str, *, with_kind: bool = False) -> Callable[[Row], Filters | None]:
    def filters(row: Row) -> Filters | None:
        values = sorted({value for value in row.event.tag_values(name) if value})
        if not values:
            return None
        kinds = {"kinds": [row.event.kind]} if with_kind else {}
        return [{**kinds, f"#{name}": values}]

    return filters


def by_hidden_group(row: Row) -> Filters | None:
    """By an `h` that nobody may know of."""
    if row.group not in HIDDEN:
        return None
    return by_tag("h", with_kind=True)(row)


def by_word(row: Row) -> Filters | None:
    return [{"#t": [row.word]}] if row.word else None


def by_word_among_kinds(row: Row) -> Filters | None:
    return [{"kinds": [1, row.event.kind], "#t": [row.word]}] if row.word else None


def by_search(row: Row) -> Filters | None:
    return [{"search": row.word}] if row.word else None


def by_d_prefix(row: Row) -> Filters | None:
    """What begins alike is found by it (`prefix_d_kinds`)."""
    start, colon, _ = row.event.d.rpartition(":")
    if row.event.kind not in (78, 30078) or not colon:
        return None
    return [{"kinds": [78, 30078], "#d": [f"{start}:"]}]


def newest(row: Row) -> Filters:
    """What a hidden row must take no place in."""
    return [{"until": row.event.created_at, "limit": 1}]


STORED: Final = frozenset({"REQ"})
COUNTED: Final = frozenset({"REQ", "COUNT"})


def by_group(row: Row) -> Filters | None:
    """A notice of membership by its kind too: all else of its group may be hidden."""
    return by_tag("h", with_kind=row.event.kind in GROUP_MEMBER_NOTICES)(row)


SHAPES: Final[dict[str, Shape]] = {
    "ids": Shape(lambda row: [{"ids": [row.event.id]}], is_exact=True),
    "#t": Shape(by_word, is_exact=True, verbs=COUNTED),
    "kinds and #t": Shape(by_word_among_kinds, is_exact=True),
    "kinds and #d": Shape(by_tag("d", with_kind=True), is_exact=True),
    "kinds and hidden #h": Shape(by_hidden_group, is_exact=True),
    "everything": Shape(lambda row: [{}]),
    "kinds": Shape(lambda row: [{"kinds": [row.event.kind]}]),
    "authors": Shape(lambda row: [{"authors": [row.event.pubkey]}]),
    "kinds and authors": Shape(
        lambda row: [{"kinds": [row.event.kind], "authors": [row.event.pubkey]}]
    ),
    "its second": Shape(
        lambda row: [{"since": row.event.created_at, "until": row.event.created_at}], verbs=STORED
    ),
    "#h": Shape(by_group),
    "#p": Shape(by_tag("p")),
    "#e": Shape(by_tag("e")),
    "#a": Shape(by_tag("a")),
    "#d": Shape(by_tag("d")),
    "#k": Shape(by_tag("k")),
    "#hk": Shape(by_tag("hk")),
    "#d prefix": Shape(by_d_prefix),
    "search": Shape(by_search, is_exact=True, verbs=COUNTED),
    "search and kinds": Shape(
        lambda row: [{"search": "psst", "kinds": [row.event.kind]}], verbs=COUNTED
    ),
    "two filters": Shape(lambda row: [{"kinds": [0]}, {"kinds": [row.event.kind]}], verbs=COUNTED),
    "the newest one": Shape(newest, verbs=STORED),
}
"""The ways of what is stored."""

LIVE: Final[dict[str, Callable[[Row], Filters | None]]] = {
    **{way: SHAPES[way].filters for way in ("everything", "ids", "kinds", "authors", "#t", "#p")},
    "#h": by_tag("h"),
    "search": lambda row: [{"search": "psst"}],
}
"""The ways of a subscription; each is one REQ for all rows."""


def of_a_ghost(filters: Filters, row: Row) -> Filters:
    """The same question about a row that never was; in a hidden group, about no group at all."""
    text = json.dumps(filters, sort_keys=True)
    text = text.replace(row.event.id, GHOST_ID)
    if row.word:
        text = text.replace(f'"{row.word}"', f'"{GHOST}"')
    if row.group in HIDDEN:
        text = text.replace(row.group, NOWHERE)
    asked: Filters = json.loads(text)
    for filter_ in asked:
        if "#d" in filter_ and row.group not in HIDDEN:
            filter_["#d"] = [f"{value}-{GHOST}" for value in filter_["#d"]]
    return asked
