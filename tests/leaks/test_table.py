"""The leak table is whole: every kind of guard, viewer and way is in it, and each can fail."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import pytest

from tests.leaks import read_paths
from tests.leaks.guards import Life, Row, whole_table
from tests.leaks.people import ENDS, FLAGS, HIDDEN, PUBLIC, VIEWERS

if TYPE_CHECKING:
    from collections.abc import Callable

ROWS: Final = whole_table().rows


def is_of(*kinds: int) -> Callable[[Row], bool]:
    return lambda row: row.event.kind in kinds


def begins(d: str) -> Callable[[Row], bool]:
    return lambda row: row.event.kind in (78, 30078) and row.event.d.startswith(d)


GUARDS: Final[dict[str, Callable[[Row], bool]]] = {
    "a public group": lambda row: row.group in PUBLIC,
    "a private group": lambda row: row.group in ("tea", "yard"),
    "a hidden group": lambda row: row.group == "attic",
    "a private and hidden group": lambda row: row.group == "cave",
    "a group that ended": lambda row: row.group in ENDS,
    "configuration": begins("snowclaw:config:global"),
    "configuration labelled with a group": begins("snowclaw:config:group:"),
    "memory of a group": begins("snowclaw:memory:group:"),
    "memory of a person": begins("snowclaw:memory:npub:"),
    "memory for all": begins("anamnesis:memory:"),
    "vouches": begins("anamnesis:vouch:"),
    "aman memory": is_of(*range(30090, 30098)),
    "transcripts": is_of(1988, 1989, 31988),
    "nomen memory": is_of(31234),
    "envelopes": is_of(1080, 1081),
    "app data": lambda row: row.event.kind == 30078 and row.group is None,
    "app records": lambda row: row.event.kind == 78 and row.group is None,
    "gift wraps": is_of(1059),
    "passing wraps": is_of(21059),
    "letters": is_of(4),
    "records of agents": is_of(24200, 30174, 30300, 44200),
    "personas": is_of(30175),
    "signing calls": is_of(24133),
    "protected": lambda row: ["-"] in map(list, row.event.tags),
    "what expires": lambda row: row.event.tag("expiration") is not None,
    "what goes": lambda row: row.life is Life.GOES,
    "what passes": lambda row: row.life is Life.PASSES,
    "deletions": is_of(5),
    "records of deletion": is_of(9005),
    "what names a group's event": lambda row: "without h" in row.says,
    "reports": is_of(1984),
    "invites": is_of(9009),
    "requests to join": is_of(9021),
    "requests to leave": is_of(9022),
    "who is in and out": is_of(9000, 9001),
    "pins": is_of(9010),
    "requests to vanish": is_of(62),
}


@pytest.mark.parametrize("guard", GUARDS)
def test_each_guard_lets_somebody_in_and_keeps_somebody_out(guard: str) -> None:
    rows = [row for row in ROWS if GUARDS[guard](row)]
    readers = [row.readers for row in rows]
    assert rows
    assert guard == "requests to vanish" or any(readers)
    assert any(set(VIEWERS) - each for each in readers)


@pytest.mark.parametrize("viewer", VIEWERS)
def test_each_viewer_is_given_some_and_kept_from_some(viewer: str) -> None:
    given = [row for row in ROWS if row.is_for(viewer, stored=True)]
    assert bool(given) is not VIEWERS[viewer].is_banned
    assert len(given) < len(ROWS)


def test_no_two_viewers_read_the_same() -> None:
    """Else one of them shows nothing; but for nobody and an outsider, the banned, who leads."""
    read = {
        viewer: frozenset(row.event.id for row in ROWS if viewer in row.readers)
        for viewer in VIEWERS
    }
    assert read["nobody"] == read["an outsider"]
    assert read["a moderator"] <= read["an admin"]
    assert len(set(read.values())) >= len(VIEWERS) - 4


@pytest.mark.parametrize("verb", ["REQ", "COUNT", "NEG-OPEN"])
def test_each_row_is_asked_for_in_each_way_that_fits_it(verb: str) -> None:
    questions = read_paths.questions_for(ROWS, verb)
    asked = {(question.row.event.id, question.way) for question in questions}
    ways = {way for way, shape in read_paths.SHAPES.items() if verb in shape.verbs}
    assert {way for _, way in asked} == ways
    for row in ROWS:
        fits = {way for way in ways if read_paths.SHAPES[way].filters(row) is not None}
        assert {way for id_, way in asked if id_ == row.event.id} == fits
        assert {"ids", "everything", "kinds", "authors"} <= fits
        assert (row.word == "") or "kinds and #t" in fits
    print(f"the leak table, {verb}: {len(questions)} questions to {len(VIEWERS)} viewers")


@pytest.mark.parametrize("group", FLAGS)
def test_each_group_has_the_same_secrets(group: str) -> None:
    """But for the requests to join, which those that are closed do not keep."""
    kinds = {row.event.kind for row in ROWS if row.group == group} - {9021}
    assert kinds == {row.event.kind for row in ROWS if row.group == "tea"}
    assert group not in HIDDEN or all(
        "nobody" not in row.readers for row in ROWS if row.group == group
    )
