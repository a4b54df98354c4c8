"""The leak table: every way to read, every kind of guard, every viewer.

One row of it: this viewer, asking in this way, gets this or does not. Who may not read a thing gets
for it, frame by frame, what is said of one that never was. The things stand in `guards.py`, the
viewers in `people.py`, the ways in `read_paths.py`.
"""

from __future__ import annotations

from collections import defaultdict
from functools import partial
from itertools import product
from typing import TYPE_CHECKING, Final

import pytest

from relay.nostr import kinds
from tests import cast
from tests.effort import tries
from tests.harness.patience import slowdown
from tests.harness.postgres import postgres
from tests.leaks import read_paths
from tests.leaks.guards import OF_THE_RELAY, signed_row, statements
from tests.leaks.people import FLAGS, VIEWERS
from tests.leaks.relay import Asker, LeakRelay, event_of, leak_relay

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterable, Sequence
    from pathlib import Path

    from relay.nostr.event import Event
    from tests.harness.relay_program import Wire
    from tests.leaks.guards import Row
    from tests.leaks.read_paths import Question
    from tests.leaks.relay import Frames

__all__ = ["postgres"]

pytestmark = pytest.mark.slow

VERBS: Final = ("REQ", "COUNT", "NEG-OPEN")
NAMES: Final = sorted(VIEWERS)
PART: Final = tries(1, 1, len(NAMES))
"""A viewer asks so many times fewer questions; each question is asked by that part of them."""
SHARES: Final = tries(2, 2, 1)
DATABASE_PART: Final = 10
"""There a question takes ten times as long."""


STORES: Final = ("a file", "two relays on a database")[: tries(2, full=2, part=1)]


@pytest.fixture(params=STORES)
async def relay(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[LeakRelay]:
    if request.param == "a file":
        async with leak_relay(tmp_path) as relay:
            yield relay
        return
    server = request.getfixturevalue("postgres")
    database = await server.new_schema()
    async with leak_relay(tmp_path, database=database) as relay:
        schema = server.schema_of(database)
        tables = ", ".join(f"{schema}.{table}" for table in ("events", "tags", "members", "groups"))
        relay.analyze = partial(server.execute, f"ANALYZE {tables}")
        yield relay


# -- what is stored --------------------------------------------------------------------------------


async def told(relay: LeakRelay) -> list[Row]:
    """Publish all of it, and let go what goes; the rows, also those that the relay signed."""
    await relay.ban_those_who_are_here()
    await relay.publish(relay.write(3 + round(3 * slowdown())))
    for method in ("allowpubkey", "unallowpubkey"):
        await relay.call(method, cast.person("a neighbour").pubkey)
    await relay.end()
    if relay.analyze is not None:  # as autovacuum does within a minute; before, COUNT is slow
        await relay.analyze()
    signed = await relay.signed_rows()
    shown = {(row.event.kind, row.group) for row in signed}
    assert {row.event.kind for row in signed} >= set(kinds.GROUP_MEMBER_NOTICES)
    assert {row.event.kind for row in signed} >= OF_THE_RELAY
    for kind in (39000, 39001, 39002, 39003, 39005):
        assert {(kind, group) for group in FLAGS} <= shown
    return [*relay.table.rows, *signed]


class QueryRunner:
    """What one viewer was answered, held against the table."""

    def __init__(self, viewer: str, rows: Sequence[Row], asker: Asker) -> None:
        self._viewer = viewer
        self._asker = asker
        self._published = {row.event.id for row in rows}
        self._groups = {row.group for row in rows if row.is_for(viewer, stored=True)} - {None}

    def faults(self, question: Question, verb: str) -> Iterable[str]:
        """What is wrong with the answer to one question."""
        row = question.row
        frames = self._asker.answers[verb, question.text]
        is_theirs = row.is_for(self._viewer, stored=True) and row.is_given_to(question.filters)
        if verb == "COUNT":
            yield from self._miscounted(frames, self._asker.answers["REQ", question.text])
        else:
            got = self._asker.given[verb, question.text]
            yield from self._misgiven(got, question, is_theirs=is_theirs)
        if question.ghost is not None and not is_theirs and row.group not in self._groups:
            ghost = self._asker.answers[verb, question.ghost]
            if frames != ghost:
                yield f"answered {frames}, and {ghost} of what never was"

    def _misgiven(self, got: set[str], question: Question, *, is_theirs: bool) -> Iterable[str]:
        if "limit" in question.filters[0]:
            if len(got) != (0 if VIEWERS[self._viewer].is_banned else 1):
                yield "what may not be read takes a place"
        elif is_theirs and question.finds and question.row.event.id not in got:
            yield "not given"
        if not is_theirs and question.row.event.id in got:
            yield "GIVEN"
        if got - self._published:
            yield "given what nobody published"

    def _miscounted(self, frames: Frames, rows: Frames) -> Iterable[str]:
        """A count is of what a REQ gives (N45-04), and refused when that is."""
        if rows[-1][0] == "CLOSED" or frames[-1][0] == "CLOSED":
            if frames != rows:
                yield f"counted {frames}, but asked {rows[-1]}"
        elif frames[-1][1]["count"] != len(rows) - 1:
            yield f"counted {frames}, and was given {len(rows) - 1}"


@pytest.mark.proves(
    *statements(),
    "N29-91",
    "N29-93",
    "N29-99",
    "N29-102",
    "N29-105",
    "N42-16",
    "N45-04",
    "N45-16",
    "N50-09",
    "N50-11",
    "N77-07",
    "G-16",
    "G-17",
    "G-19",
)
@pytest.mark.parametrize("first", range(SHARES))
async def test_what_is_stored_is_given_to_its_readers_alone(relay: LeakRelay, first: int) -> None:
    """One table, its viewers in shares."""
    rows = await told(relay)
    questions = {verb: read_paths.questions_for(rows, verb) for verb in VERBS}
    part = DATABASE_PART if relay.is_two else PART
    faults, number = [], 0
    for turn, viewer in enumerate(NAMES[first::SHARES]):
        asker = Asker(await relay.enter(viewer))
        answers = QueryRunner(viewer, rows, asker)
        for verb in VERBS:
            asked = [each for each in questions[verb] if (each.number + turn) % part == 0]
            await asker.ask(verb, (question.text for question in asked))
            await asker.ask(verb, filter(None, (question.ghost for question in asked)))
            for question in asked:
                number += 1
                faults += [
                    f"{viewer}, {verb} by {question.way}, {question.row.says}: {fault}"
                    for fault in answers.faults(question, verb)
                ]
    print(f"the leak table, what is stored: {number} rows")
    assert not faults, f"{len(faults)} faults:\n" + "\n".join(faults[:60])


# -- what is live ----------------------------------------------------------------------------------


async def subscribe(wire: Wire, rows: Sequence[Row], when: str) -> None:
    """One REQ of each way, for all rows at once."""
    for way, filter_ in subscriptions(rows).items():
        await wire.send("REQ", f"{when} {way}", {**filter_, "limit": 0})
        assert await wire.receive() == ["EOSE", f"{when} {way}"]


def subscriptions(rows: Sequence[Row]) -> dict[str, dict[str, object]]:
    """Way → its filter: what all rows have of it."""
    return {way: merged(way, rows) for way in read_paths.LIVE}


def merged(way: str, rows: Sequence[Row]) -> dict[str, object]:
    asked = [filter_ for row in rows for filter_ in read_paths.LIVE[way](row) or ()]
    if "search" in asked[0]:
        return asked[0]
    keys = {key for filter_ in asked for key in filter_}
    return {
        key: sorted({value for filter_ in asked for value in filter_.get(key, ())}) for key in keys
    }


async def received(wire: Wire) -> dict[str, dict[str, Event]]:
    """Subscription → what it has got. Delivery is over when the relay answers again."""
    got: dict[str, dict[str, Event]] = defaultdict(dict)
    await wire.send("REQ", "end", {"ids": [read_paths.GHOST_ID]})
    while (frame := await wire.receive())[1] != "end":
        if frame == ["CLOSED", frame[1], "restricted: this key is banned here"]:
            continue
        assert frame[0] == "EVENT", frame
        event = event_of(frame[2])
        got[frame[1]][event.id] = event
    return got


@pytest.mark.proves(
    "N29-17",
    "N29-38",
    "N29-70",
    "N29-90",
    "N29-91",
    "N29-94",
    "N29-96",
    "N29-97",
    "N29-98",
    "N29-100",
    "N29-102",
    "N29-104",
    "N42-13",
    "N42-16",
    "N46-03",
    "N50-08",
    "N59-03",
    "N59-11",
    "N59-12",
    "N62-08",
    "N70-06",
    "N78-03",
    "N86-11",
    "G-16",
    "G-20",
)
async def test_what_comes_live_is_sent_to_its_readers_alone(relay: LeakRelay) -> None:
    """Subscriptions are older than the removals, the ban, and half of them than the login."""
    rows = relay.write()
    live = {}
    for viewer in VIEWERS:
        wire = live[viewer] = await relay.connect(viewer)
        await subscribe(wire, rows, "before")
        await relay.log_in(wire, viewer)
        await subscribe(wire, rows, "after")
    await relay.ban()
    await relay.publish(rows)
    await relay.call("allowpubkey", cast.person("a neighbour").pubkey)
    await relay.settle()
    got = {viewer: await received(wire) for viewer, wire in live.items()}
    signed = {
        event.id: signed_row(event)
        for viewer in VIEWERS
        for event in got[viewer]["after everything"].values()
        if event.pubkey == relay.relay_key
        and (viewer == "the owner" or event.kind in kinds.GROUP_MEMBER_NOTICES)
    }
    shown = {row.event.kind for row in signed.values()}
    assert shown >= {kinds.GROUP_MEMBER_REMOVED, kinds.MEMBER_ADDED, kinds.RELAY_MEMBERS}
    assert {(kind, group) for kind in (39000, 39002, 39005) for group in FLAGS} <= {
        (row.event.kind, row.group) for row in signed.values()
    }
    published = {row.event.id: row for row in rows} | signed
    faults, number = [], 0
    for viewer, when, way in product(VIEWERS, ("before", "after"), read_paths.LIVE):
        where = f"{viewer}, live by {way}, subscribed {when} the login"
        seen = got[viewer][f"{when} {way}"]
        for row in published.values():
            asked = read_paths.LIVE[way](row)
            if asked is None or (row.event.id in signed and way != "everything"):
                continue
            number += 1
            is_theirs = row.is_for(viewer, stored=False) and row.is_given_to(asked)
            if "search" in asked[0] and is_theirs and not row.is_searched:
                continue  # it may be found
            if not row.is_for(viewer, stored=True) and row.event.id not in seen:
                continue  # gone before it was delivered: by another relay, or on a busy machine
            if (row.event.id in seen) is not is_theirs:
                faults.append(f"{where}, {row.says}: {'not given' if is_theirs else 'GIVEN'}")
        if seen.keys() - published.keys():
            faults.append(f"{where}: given what nobody published")
    print(f"the leak table, what is live: {number} rows")
    assert not faults, f"{len(faults)} faults:\n" + "\n".join(faults[:60])
