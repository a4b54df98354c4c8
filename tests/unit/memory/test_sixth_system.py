"""A sixth memory system, defined in this file alone: a relay checks, indexes, finds and sweeps it.

Birders write sightings on trips. A sighting needs its trip; only its author may correct it; it is
removed by age, but not before its trip is closed, and not if it has a correction.
"""

from __future__ import annotations

from copy import copy
from typing import TYPE_CHECKING, Final

import orjson
import pytest

import policies
from relay.config import Config
from relay.errors import ConfigFaults, Prefix
from relay.lifecycle.retention import DAY_S
from relay.memory.fields import Need, Shape, first_fault
from relay.memory.registry import (
    AgedRecords,
    Authors,
    Hold,
    MemorySystem,
    MemorySystems,
    RecordName,
    RecordType,
    References,
    Sweeping,
)
from relay.memory.search_text import fields
from relay.memory.systems import MEMORY_SYSTEMS
from relay.nostr import kinds
from relay.nostr.event import object_in
from relay.nostr.filters import FilterTerms, filter_from
from relay.read.search_indexer import rules_for, text_by
from relay.server.http import information
from tests.cast import owner, robot, rover
from tests.contract.writing import EVERYTHING
from tests.harness.reference_store import ReferenceStore
from tests.harness.relay_in_process import NOON, RELAY, STORED, Home

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Sequence
    from pathlib import Path

    from policies import PolicySet
    from relay.facts import RecordFacts
    from relay.memory.check_options import CheckOptions
    from relay.memory.registry import Objection, Owns
    from relay.nostr.event import Event
    from relay.nostr.keys import SecretKey
    from relay.storage import Store

# -- the system: this is all there is of it --------------------------------------------------------

SIGHTING: Final = 30555
TRIP: Final = "birds:trip:"
CORRECTION: Final = "birds:correction:"


def check(event: Event, options: CheckOptions) -> str | None:
    if event.kind != SIGHTING:
        return None
    contents = object_in(event.content) or {}
    fault = first_fault(contents, [("count", Shape.COUNT, Need.REQUIRED)])
    if fault is None and options.latest is not None and event.created_at > options.latest:
        return "a sighting cannot be in the future"
    return fault


def trip_of(event: Event) -> RecordName:
    return RecordName(kinds.APP_DATA, f"{TRIP}{event.tag('trip')}")


def trip_objection(event: Event, records: Sequence[RecordFacts], _owns: Owns) -> Objection | None:
    return None if records else (Prefix.INVALID, f"unknown trip {event.tag('trip')}")


def correction_objection(
    event: Event, records: Sequence[RecordFacts], owns: Owns
) -> Objection | None:
    if any(record.pubkey == event.pubkey or owns(record.pubkey) for record in records):
        return None
    return Prefix.RESTRICTED, "only the author may correct a sighting"


def holds(event: Event) -> Sequence[Hold]:
    correction = RecordName(kinds.APP_DATA, f"{CORRECTION}{event.id}")
    return (
        Hold("corrected", correction, Authors.AUTHOR_OR_OWNERS, lambda record: record is not None),
        Hold("its trip goes on", trip_of(event), Authors.AUTHOR, is_open),
    )


def is_open(trip: Event | None) -> bool:
    return trip is None or '"closed":true' not in trip.content


BIRDS: Final = MemorySystem(
    "birds",
    records=(
        RecordType(
            SIGHTING,
            required_tags=("d", "trip"),
            search_text=fields("species", "notes"),
            references=lambda event: References(names=frozenset({trip_of(event)})),
            holds=holds,
        ),
        RecordType(kinds.APP_DATA, TRIP, sweeping=Sweeping.NAMED, h_is_label=True),
        RecordType(
            kinds.APP_DATA,
            CORRECTION,
            references=lambda event: References(ids=frozenset({event.d.removeprefix(CORRECTION)})),
        ),
    ),
    check=check,
    record_rules={
        "agents write sightings": trip_objection,
        "agents correct sightings": correction_objection,
    },
    aged=AgedRecords("sightings", SIGHTING, "", {"common": 30}),
)

SYSTEMS: Final = MemorySystems((*MEMORY_SYSTEMS.systems, BIRDS))

POLICY: Final = """
[[rule]]
name = "agents write sightings"
match = { kinds = [30555] }
write = ["agent"]
schema = "birds"

[[rule]]
name = "agents correct sightings"
match = { kinds = [30078], d_prefix = "birds:correction:" }
write = ["agent", "owner"]
schema = "birds"
"""

# -- what a relay makes of it ----------------------------------------------------------------------

OLD: Final = NOON - 40 * DAY_S


def loaded(folder: Path, *more: str) -> PolicySet:
    agents = f'[actors]\nowners = ["{owner.npub}"]\nagents = ["{robot.npub}", "{rover.npub}"]\n'
    for number, text in enumerate((agents, POLICY, *more)):
        (folder / f"{number}.toml").write_text(text)
    return policies.load(folder, SYSTEMS, RELAY.pubkey)


@pytest.fixture
async def home(store: Store, tmp_path: Path) -> AsyncIterator[Home]:
    async with Home(store, loaded(tmp_path)) as home:
        yield home


def sighting(species: str, *, trip: str = "marsh", at: int = OLD, **more: object) -> Event:
    tags = [["d", species], ["trip", trip], ["t", "type:common"]]
    return robot.sign(SIGHTING, tags, contents(species=species, count=1, **more), at)


def trip(*, closed: bool = False, at: int = OLD) -> Event:
    return robot.sign(kinds.APP_DATA, [["d", f"{TRIP}marsh"]], contents(closed=closed), at)


def correction(of: Event, by: SecretKey) -> Event:
    return by.sign(kinds.APP_DATA, [["d", f"{CORRECTION}{of.id}"]], "{}", NOON)


def contents(**values: object) -> str:
    return orjson.dumps(values).decode()


async def test_records_are_checked_after_their_writer_and_tags(home: Home) -> None:
    untagged = robot.sign(SIGHTING, [["d", "heron"]], "{}", NOON)
    uncounted = robot.sign(SIGHTING, [["d", "heron"], ["trip", "marsh"]], "{}", NOON)
    answers = await home.take(
        home.made(owner, SIGHTING), untagged, trip(), uncounted, sighting("heron")
    )
    assert answers == [
        (False, "restricted: not allowed by the rule 'agents write sightings'"),
        (False, "invalid: missing tag trip"),
        STORED,
        (False, "invalid: content.count must be an integer"),
        STORED,
    ]


async def test_how_strictly_it_is_checked_is_a_setting(store: Store, tmp_path: Path) -> None:
    lenient = loaded(tmp_path, '[memory.birds]\nschema = "lenient"\n')
    uncounted = robot.sign(SIGHTING, [["d", "heron"], ["trip", "marsh"]], "{}", NOON)
    async with Home(store, lenient) as home:
        assert await home.take(trip(), uncounted) == [STORED] * 2


async def test_what_records_refer_to_is_looked_up(home: Home) -> None:
    heron = sighting("heron")
    assert await home.take(heron) == [(False, "invalid: unknown trip marsh")]
    assert await home.take(trip(), heron) == [STORED] * 2
    assert await home.take(correction(heron, rover), correction(heron, robot)) == [
        (False, "restricted: only the author may correct a sighting"),
        STORED,
    ]


async def test_records_are_found_by_their_text(home: Home, store: Store) -> None:
    assert await home.take(trip(), sighting("heron", notes="in the reeds", place="dyke"))
    policy = home.policy
    text_of, rules = text_by(policy), rules_for(policy)
    without = copy(policy)
    without.systems = MEMORY_SYSTEMS
    assert rules != rules_for(without)
    await store.index(text_of, rules, 100)

    async def found(words: str) -> int:
        search = filter_from({"search": words}, FilterTerms(search=True))
        return await store.count([search], EVERYTHING, now=NOON)

    assert [await found(words) for words in ("heron reeds", "dyke", "marsh")] == [1, 0, 0]


async def test_a_sweep_waits_for_what_holds_a_record(home: Home) -> None:
    heron, teal, young = sighting("heron"), sighting("teal"), sighting("coot", at=NOON)
    assert await home.take(trip(), heron, teal, young, correction(heron, owner)) == [STORED] * 5
    assert await home.sweep.once() == 0
    assert await home.take(trip(closed=True, at=NOON)) == [STORED]
    home.now += 3600
    assert await home.sweep.once() == 1
    left = [event.d for event in await home.log() if event.kind == SIGHTING]
    assert left == ["heron", "coot"]


async def test_days_are_a_setting(store: Store, tmp_path: Path) -> None:
    longer = loaded(tmp_path, "[memory.birds]\nretention_days = { common = 50 }\n")
    async with Home(store, longer) as home:
        assert await home.take(trip(closed=True), sighting("teal")) == [STORED] * 2
        assert await home.sweep.once() == 0


async def test_only_a_rule_that_names_them_removes_trips(store: Store, tmp_path: Path) -> None:
    rule = '[[retention]]\nname = "data"\nmatch = {{ kinds = [30078]{} }}\ndays = 9\n'
    async with Home(store, loaded(tmp_path, rule.format(""))) as home:
        assert await home.take(trip()) == [STORED]
        assert await home.sweep.once() == 0
        (tmp_path / "9.toml").write_text(rule.format(', d_prefix = "birds:trip:"'))
        home.state.enforce(policies.load(tmp_path, SYSTEMS, RELAY.pubkey))
        assert await home.sweep.once() == 1


async def test_h_of_a_trip_is_a_label(home: Home) -> None:
    labelled = owner.sign(kinds.APP_DATA, [["d", f"{TRIP}x"], ["h", "no group"]], "{}", NOON)
    other = owner.sign(kinds.APP_DATA, [["d", "birds:x"], ["h", "no group"]], "{}", NOON)
    accepted, refused = await home.take(labelled, other)
    assert accepted == STORED
    assert refused == (False, "restricted: not a member")


async def test_nip11_lists_its_kind(home: Home) -> None:
    document = information(Config(), home.state, RELAY.pubkey, ReferenceStore.features)
    assert any(kinds_has(each, SIGHTING) for each in orjson.loads(document)["memory"]["kinds"])


def kinds_has(entry: int | list[int], kind: int) -> bool:
    low, high = (entry, entry) if isinstance(entry, int) else entry
    return low <= kind <= high


def test_without_it_a_policy_cannot_name_it(tmp_path: Path) -> None:
    loaded(tmp_path)
    with pytest.raises(ConfigFaults, match='unknown memory system "birds"'):
        policies.load(tmp_path, MEMORY_SYSTEMS)


def test_two_systems_cannot_have_the_same_records() -> None:
    with pytest.raises(ValueError, match="two memory systems have"):
        MemorySystems((*SYSTEMS.systems, MemorySystem("more birds", (RecordType(SIGHTING),))))


def test_a_prefix_ends_with_a_colon() -> None:
    with pytest.raises(ValueError, match="does not end with a colon"):
        MemorySystems((MemorySystem("more birds", (RecordType(kinds.APP_DATA, "birds"),)),))
