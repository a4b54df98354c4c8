"""What sweeps remove of memory records: by default nothing."""

from __future__ import annotations

import logging
from itertools import count
from typing import TYPE_CHECKING

import pytest

from relay.lifecycle.retention import DAY_S
from tests.cast import robot, rover
from tests.harness.relay_in_process import NOON, STORED, Home, policy_of

if TYPE_CHECKING:
    from relay.nostr.event import Event
    from relay.nostr.keys import SecretKey
    from relay.storage import Store

LOOSE = '[memory]\nschema = "off"\n'
APP = 'include = ["aman-app"]'
NEWEST_TWO = """
[[retention]]
name  = "two of each"
match = { kinds = [30095] }
count = { per = "hk", max = 2 }
"""
LONG_AGO = NOON - 3000 * DAY_S

TAGS = {
    **{kind: [["k", "x"], ["hk", "a"], ["v", "1"], ["ts", "1"]] for kind in range(30090, 30098)},
    1988: [],
    1989: [["source-data", ""]],
    31988: [],
    31989: [["command", "x"]],
    31991: [],
}
DS = {
    30078: ("snowclaw:memory:npub:x", "snowclaw:core:x", "snow:memory:x", "nmem:session:x"),
    78: ("nmem:obs:s:x", "nmem:prompt:s:x", "anamnesis:memory:x"),
}
COLLECTIVE = [
    [f"snow:{name}", "x"] for name in ("tier", "model", "confidence", "source", "version")
]

_numbers = count()


def tool(ts: int, at: int = NOON, hk: str = "a", by: SecretKey = robot) -> Event:
    tags = [
        ["d", f"{hk}:{next(_numbers)}"],
        ["k", "aman_tool_history"],
        ["hk", hk],
        ["v", "1"],
        ["ts", str(ts)],
    ]
    return by.sign(30095, tags, "{}", at)


def records() -> list[Event]:
    """One of each kind and prefix, as old as can be."""
    by_kind = [robot.sign(kind, [["d", "a:x"], *tags], "", LONG_AGO) for kind, tags in TAGS.items()]
    by_prefix = [
        robot.sign(kind, [["d", d], ["x", "x"], *COLLECTIVE], "{}", LONG_AGO)
        for kind, prefixes in DS.items()
        for d in prefixes
    ]
    return [*by_kind, *by_prefix]


@pytest.mark.proves("G-15")
async def test_memory_is_kept_for_ever_by_default(store: Store) -> None:
    """Observations too: theirs is a session without a summary."""
    async with Home(store, policy_of("open", LOOSE)) as home:
        events = records()
        assert set(await home.take(*events)) == {STORED}
        assert await home.sweep.once() == 0
        assert {event.id for event in await home.log()} == {event.id for event in events}


@pytest.mark.proves("G-15")
async def test_a_write_takes_nothing_along_and_a_sweep_tells_what_it_took(
    store: Store, caplog: pytest.LogCaptureFixture
) -> None:
    old = NOON - 20 * DAY_S
    async with Home(store, policy_of("open", APP, LOOSE)) as home:
        due_rows = [tool(old, at=old) for _ in range(3)]
        summary = robot.sign(30094, [["d", "a:summary"], *TAGS[30094]], "", NOON - 40 * DAY_S)
        assert set(await home.take(*due_rows, summary)) == {STORED}
        assert await home.take(tool(NOON)) == [STORED]
        assert len(await home.log()) == 5
        with caplog.at_level(logging.INFO, logger="relay.write.sweeper"):
            assert await home.sweep.once() == 4
        assert caplog.messages == ["swept 1 events of kind 30094", "swept 3 events of kind 30095"]


@pytest.mark.proves("G-01", "M-24")
async def test_how_long_observations_stay_is_asked_anew_at_each_reload(store: Store) -> None:
    old = NOON - 10 * DAY_S
    tags = [["d", f"nmem:obs:s:{'0' * 64}"], ["t", "type:marker"]]
    observation = robot.sign(78, tags, "{}", old)
    session = robot.sign(30078, [["d", "nmem:session:s"]], '{"summary":{"intent":"x"}}', old)
    days = "[memory.nmem]\nretention_days = { marker = 5 }\n"
    async with Home(store, policy_of("open", LOOSE)) as home:
        assert await home.take(observation, session) == [STORED] * 2
        assert await home.sweep.once() == 0
        home.state.enforce(policy_of("open", LOOSE, days + "sweep = false\n"))
        assert await home.sweep.once() == 0
        home.state.enforce(policy_of("open", LOOSE, days))
        assert await home.sweep.once() == 1
        assert [event.kind for event in await home.log()] == [30078]


@pytest.mark.proves("A-19")
async def test_the_oldest_by_ts_go_and_of_one_ts_the_lowest_id(store: Store) -> None:
    agents = f'[actors]\nagents = ["{robot.pubkey}", "{rover.pubkey}"]\n'
    async with Home(store, policy_of("open", LOOSE, agents, NEWEST_TWO)) as home:
        late, early = tool(9, at=NOON - 9), tool(1, at=NOON)
        twins = sorted((tool(5), tool(5)), key=lambda event: event.id)
        another_key, another_author = tool(1, hk="b"), tool(1, by=rover)
        assert set(
            await home.take(twins[0], late, early, another_key, twins[1], another_author)
        ) == {STORED}
        assert await home.sweep.once() == 2
        left = {event.id for event in await home.log()}
        assert left == {event.id for event in (late, twins[1], another_key, another_author)}


@pytest.mark.proves("A-19", "A-18")
async def test_of_the_apps_own_numbers_none_is_about_preferences(store: Store) -> None:
    async with Home(store, policy_of("open", APP, LOOSE)) as home:
        for kind in (30093, 30097, 30090):
            preference = robot.sign(kind, [["d", "a:x"], *TAGS[kind]], "", LONG_AGO)
            assert await home.take(preference) == [STORED]
        assert await home.sweep.once() == 0


@pytest.mark.proves("G-14")
@pytest.mark.parametrize(
    ("kind", "d"),
    [(30095, "a:x"), (30096, "a:x"), (1988, "s"), (78, "nmem:obs:s:x"), (30078, "snowclaw:core:x")],
)
async def test_memory_that_expires_is_gone_when_it_has(store: Store, kind: int, d: str) -> None:
    async with Home(store, policy_of("open", LOOSE)) as home:
        tags = [["d", d], *TAGS.get(kind, []), ["expiration", str(NOON + 10)]]
        record = robot.sign(kind, tags, "{}", NOON)
        assert await home.take(record) == [STORED]
        assert await home.found(kinds=[kind]) == [record]
        home.now = NOON + 10
        assert await home.found(kinds=[kind]) == []
        assert await home.sweep.once() == 1
        assert await home.log() == []
        assert await home.take(record) == [(False, "invalid: event expired")]
