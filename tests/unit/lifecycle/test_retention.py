"""relay/lifecycle/retention.py: due rows, holds, tombstones. A-18, A-19, M-23."""

from __future__ import annotations

import asyncio
from hashlib import sha256
from typing import TYPE_CHECKING

import orjson
import pytest

from relay.access.actors import Actors
from relay.access.read_rules import Match
from relay.facts import Origin
from relay.groups.group import Group, Groups
from relay.lifecycle.retention import (
    DAY_S,
    NEVER,
    NOT_FIRST,
    PINNED,
    TOO_LARGE,
    MaxAge,
    MaxAmount,
    NeverBefore,
    Scope,
    SweepRule,
    SweepRules,
    due_rows,
    hold_reason,
    tombstone_for,
)
from relay.lifecycle.rows import (
    Found,
    Keep,
    RetentionDependency,
    Slot,
    Stored,
    Tombstone,
    UpTo,
    WritePlan,
)
from relay.lifecycle.versions import History
from relay.memory.systems import MEMORY_SYSTEMS
from relay.nostr.event import weight_of
from relay.nostr.kinds import KindSet
from relay.write.commands import Purpose, SweepRows, WriteEvent
from tests.cast import admin, alice, bob, owner, robot
from tests.contract.writing import unsigned
from tests.harness.relay_in_process import NOON, STORED, Batches, Home, Letter, policy_of, store_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from relay.nostr.event import Event
    from relay.nostr.keys import SecretKey
    from relay.storage import Store

OLD = NOON - 1000 * DAY_S
APP = 'include = ["aman-app"]'
SOME_BYTES = "count = { per = 'group', max = 99 }\nbytes = 1200"
NOTES = '[[retention]]\nname = "notes"\nmatch = { kinds = [1] }\ndays = 10'


@pytest.fixture
def relay_with(store: Store) -> Callable[..., Home]:
    """Makes a relay with these policy rules."""
    return lambda *rules: Home(store, policy_of("open", *rules))


async def contents(home: Home) -> list[str]:
    return [event.content for event in await home.log()]


async def contents_of(home: Home, *kinds: int) -> list[str]:
    return [event.content for event in await home.log() if event.kind in kinds]


async def aman(home: Home, kind: int, hk: str, ts: int, content: str) -> Event:
    d = hk if kind == 30094 else f"{hk}:{ts:064x}"
    names = {30094: "aman_summary", 30095: "aman_tool_history", 30096: "aman_clear_context"}
    tags = [["d", d], ["k", names[kind]], ["hk", hk], ["v", "1"], ["ts", str(ts)]]
    event = robot.sign(kind, tags, content, ts)
    assert await home.take(event) == [STORED]
    return event


LOOSE = '[memory]\nschema = "off"\n'


async def test_rows_older_than_their_days_are_removed(relay_with: Callable[..., Home]) -> None:
    async with relay_with(NOTES) as home:
        await home.do(alice, 1, content="old", at=NOON - 11 * DAY_S)
        await home.do(alice, 1, content="young", at=NOON - 9 * DAY_S)
        await home.do(alice, 7, content="of another kind", at=OLD)
        assert await home.sweep.once() == 1
        assert await contents(home) == ["young", "of another kind"]
        home.now += 2 * DAY_S
        assert await home.sweep.once() == 1
        assert await contents(home) == ["of another kind"]


async def test_no_row_is_kept_because_of_the_brackets_in_it() -> None:
    """A note of 27 kB counted as 2 MiB of rows that may hold it."""
    async with store_of("sqlite") as store, Home(store, policy_of("open", NOTES)) as home:
        await home.do(alice, 1, content="[" * 27_000, at=OLD)
        await home.do(alice, 1, *[["t", "[", "["]] * 1800, ["t", "x" * 400_000], at=OLD)
        assert await home.sweep.once() == 2
        assert await home.log() == []


async def test_a_second_sweep_finds_nothing(relay_with: Callable[..., Home]) -> None:
    async with relay_with(APP, NOTES, LOOSE) as home:
        for ts in range(5):
            await home.do(alice, 1, at=OLD + ts)
            await aman(home, 30095, "a", OLD + ts, "{}")
        assert await home.sweep.once() == 10
        assert await home.sweep.once() == 0


@pytest.mark.proves("G-15")
async def test_rows_that_no_rule_matches_are_kept(relay_with: Callable[..., Home]) -> None:
    async with relay_with(LOOSE) as home:
        await home.do(alice, 1, at=OLD)
        for kind in (30094, 30095, 30096):
            await aman(home, kind, "a", OLD, "{}")
        assert await home.sweep.once() == 0


async def test_never_holds_rows_that_another_rule_matches(relay_with: Callable[..., Home]) -> None:
    kept = '[[retention]]\nname = "t"\nmatch = { kinds = [1], tags = { t = "law" } }\nnever = true'
    async with relay_with(NOTES, kept) as home:
        await home.do(alice, 1, ["t", "law"], content="kept", at=OLD)
        await home.do(alice, 1, content="gone", at=OLD)
        assert await home.sweep.once() == 1
        assert await contents(home) == ["kept"]


@pytest.mark.parametrize("most", ["count = { per = 'group', max = 3 }", SOME_BYTES])
async def test_what_others_write_about_messages_pushes_none_of_them_out_of_the_group(
    relay_with: Callable[..., Home], most: str
) -> None:
    """Reactions without `h` by made-up keys had the messages of a closed group deleted."""
    rule = f'[[retention]]\nname = "few"\nmatch = {{ h = true }}\ndays = 10\n{most}'
    async with relay_with(rule) as home:
        await home.do(owner, 9007, ["restricted"], ["closed"], h="tea")
        await home.do(owner, 9000, ["p", alice.pubkey], h="tea")
        for number in range(4):
            said = await home.do(alice, 9, content=f"{number}", h="tea", at=NOON + number)
        for number in range(9):
            await home.do(bob, 7, ["e", said.id], content=f"like {number}", at=NOON + 9 + number)
        likes = [f"like {number}" for number in range(9)]
        assert await home.sweep.once() == 1
        assert await contents_of(home, 7, 9) == ["1", "2", "3", *likes]
        home.now += 11 * DAY_S
        assert await home.sweep.once() == 12
        assert await contents_of(home, 7, 9) == []


@pytest.mark.proves("A-18")
async def test_a_clear_is_not_removed_before_what_it_clears(
    relay_with: Callable[..., Home],
) -> None:
    """A summary written again under an old `ts`: its created_at is recent."""
    clears = '[[retention]]\nname = "c"\nmatch = { kinds = [30096] }\ndays = 1'
    async with relay_with(LOOSE, clears) as home:
        await aman(home, 30096, "a", OLD, "clear a")
        await aman(home, 30095, "a", OLD, "cleared")
        await aman(home, 30096, "b", OLD, "clear b")
        await aman(home, 30095, "b", OLD + 1, "newer than the clear")
        await aman(home, 30095, "c", OLD - 1, "of another key")
        assert await home.sweep.once() == 1
        assert "clear a" in await contents(home)
        assert "clear b" not in await contents(home)


@pytest.mark.proves("A-18")
async def test_a_row_added_in_the_same_batch_holds_a_clear(relay_with: Callable[..., Home]) -> None:
    clears = '[[retention]]\nname = "c"\nmatch = { kinds = [30096] }\ndays = 1'
    async with relay_with(LOOSE, clears) as home:
        clear = await aman(home, 30096, "a", OLD + 5, "clear")
        tags = [["d", "a:late"], ["k", "x"], ["hk", "a"], ["v", "1"], ["ts", str(OLD)]]
        late, letter = robot.sign(30095, tags, "late", OLD), Letter()
        loop = asyncio.get_running_loop()
        rows = await home.store.since(0, 10)
        sweeping = SweepRows(rows, home.policy.sweeps, Purpose.SWEEP, loop.create_future())
        home.ingest._lane.put(WriteEvent(late, weight_of(late), 0, letter, Origin.WIRE))
        home.ingest.sweep(sweeping)
        assert await letter.answer == STORED
        assert await sweeping.done
        assert sweeping.held == {NOT_FIRST: 1}
        assert clear.id in [event.id for event in await home.log()]


@pytest.mark.proves("A-18")
async def test_the_rules_of_the_app_are_an_included_file(relay_with: Callable[..., Home]) -> None:
    async with relay_with(APP, LOOSE) as home:
        for days, kind, hk in [
            (31, 30094, "old"),
            (29, 30094, "new"),
            (15, 30095, "old"),
            (13, 30095, "new"),
            (31, 30096, "old"),
            (29, 30096, "new"),
        ]:
            await aman(home, kind, hk, NOON - days * DAY_S, f"{kind} {hk}")
        assert await home.sweep.once() == 3
        assert sorted(await contents(home)) == ["30094 new", "30095 new", "30096 new"]
        for number in range(210):
            await aman(home, 30095, "many", NOON - 1000 + number, str(number))
        assert await home.sweep.once() == 10
        left = await contents(home)
        assert "9" not in left
        assert "10" in left


async def test_a_dependent_row_is_removed_later_in_the_same_round(
    relay_with: Callable[..., Home],
) -> None:
    async with relay_with(APP, LOOSE) as home:
        for kind in (30096, 30094, 30095):
            await aman(home, kind, "a", OLD, "{}")
        kinds = [
            row.event.kind
            async for swept in home.sweep.by_rules(Purpose.SWEEP)
            for row in swept.removed
        ]
        assert kinds[-1] == 30096
        assert sorted(kinds) == [30094, 30095, 30096]


async def test_a_row_goes_in_the_sweep_that_removes_what_holds_it(
    relay_with: Callable[..., Home],
) -> None:
    """A-18: also when one rule removes both, and when a later rule removes what holds it."""
    sizes = '[[retention]]\nname = "sizes"\nmatch = { kinds = [30095, 30096] }\nbytes = 1'
    days = '[[retention]]\nname = "days"\nmatch = { kinds = [30094] }\ndays = 3'
    async with relay_with("\n".join([sizes, days]), LOOSE) as home:
        await aman(home, 30094, "a", OLD, "summary")
        await aman(home, 30096, "a", OLD + 1, "clear")
        for number in range(8):  # of equal age: the lower id is due first
            await aman(home, 30096, f"b{number}", OLD + 2, "clear")
            await aman(home, 30095, f"b{number}", OLD + 2, "tool call")
        assert await home.sweep.once() == 18


async def test_a_trial_removes_nothing(relay_with: Callable[..., Home]) -> None:
    async with relay_with(NOTES) as home:
        note = await home.do(alice, 1, at=OLD)
        swept = [one async for one in home.sweep.by_rules(Purpose.DRY_RUN)]
        assert [row.event.id for one in swept for row in one.removed] == [note.id]
        assert await home.sweep.once() == 1


async def told(home: Home, purpose: Purpose) -> list[tuple[str, int | None, int]]:
    """Rule, kind and number of rows of each line of a requested sweep."""
    return [
        (line.rule, line.kind, line.events)
        async for lines in home.sweep.run_now(purpose)
        for line in lines
    ]


async def test_a_row_due_by_two_rules_is_reported_once(relay_with: Callable[..., Home]) -> None:
    few = NOTES.replace("notes", "few").replace("days = 10", 'count = { per = "author", max = 1 }')
    async with relay_with(f"{NOTES}\n{few}") as home:
        for _ in range(3):
            await home.do(alice, 1, at=OLD)
        assert sum(events for _, _, events in await told(home, Purpose.DRY_RUN)) == 3
        assert sum(events for _, _, events in await told(home, Purpose.SWEEP)) == 3


@pytest.mark.proves("N40-04")
async def test_a_sweep_reports_and_removes_expired_rows(relay_with: Callable[..., Home]) -> None:
    async with relay_with(NOTES) as home:
        await home.do(alice, 7, ["expiration", str(home.now + 5)])
        await home.do(alice, 1, ["expiration", str(home.now + 5)], at=OLD)
        home.now += 5
        assert await told(home, Purpose.DRY_RUN) == [("expiration", 1, 1), ("expiration", 7, 1)]
        assert await told(home, Purpose.SWEEP) == [("expiration", 1, 1), ("expiration", 7, 1)]
        assert await told(home, Purpose.DRY_RUN) == []


@pytest.mark.proves("G-15")
async def test_a_requested_sweep_is_logged_and_counted(
    relay_with: Callable[..., Home], caplog: pytest.LogCaptureFixture
) -> None:
    async with relay_with(NOTES) as home:
        await home.do(alice, 1, at=OLD)
        with caplog.at_level("INFO", "relay.write.sweeper"):
            await told(home, Purpose.DRY_RUN)
            assert caplog.messages == []
            await told(home, Purpose.SWEEP)
            assert caplog.messages == ["swept 1 events of kind 1"]


async def test_a_row_pinned_in_a_group_is_held(relay_with: Callable[..., Home]) -> None:
    chats = '[[retention]]\nname = "chats"\nmatch = { kinds = [9] }\ndays = 1'
    async with relay_with(chats) as home:
        await home.do(admin, 9007, h="tea")
        note = await home.do(admin, 9, content="pinned", h="tea")
        await home.do(admin, 9010, ["e", note.id], h="tea")
        home.now += 3 * DAY_S
        (swept,) = [one async for one in home.sweep.by_rules(Purpose.DRY_RUN)]
        assert swept.held == {PINNED: 1}
        assert await home.sweep.once() == 0
        await home.do(admin, 9010, h="tea")
        home.now += 3600
        assert await home.sweep.once() == 1
        assert await home.rebuilt() == home.groups


def observation(kind_of: str, session: str = "s:1", at: int = OLD) -> Event:
    content = {
        "session_id": session,
        "prompt": None,
        "timestamp": at,
        "obs_type": kind_of,
        "source_event": "x",
        "tool_name": None,
        "file_path": None,
        "content": "x",
        "metadata": None,
    }
    text = orjson.dumps(content).decode()
    d = f"nmem:obs:{session}:{sha256(text.encode()).hexdigest()}"
    tags = [["d", d], ["s", session], ["t", "nmem"], ["t", f"type:{kind_of}"], ["t", "project:p"]]
    return robot.sign(78, tags, text, at)


def session(summary: object, name: str = "s:1", at: int = OLD) -> Event:
    content = {
        "id": name,
        "project": "p",
        "started_at": OLD,
        "ended_at": OLD,
        "signature": None,
        "summary": summary,
    }
    tags = [["d", f"nmem:session:{name}"], ["s", name], ["t", "nmem"], ["t", "project:p"]]
    return robot.sign(30078, tags, orjson.dumps(content).decode(), at)


def pin(event: Event, by: SecretKey = robot, *, pinned: bool = True, at: int = OLD) -> Event:
    content = orjson.dumps({"pinned": pinned, "at": at}).decode()
    tags = [["d", f"nmem:pin:{event.id}"], ["e", event.id]]
    return by.sign(30078, tags, content, at)


@pytest.mark.proves("M-23")
async def test_an_observation_is_held_by_a_pin_or_a_missing_summary(
    relay_with: Callable[..., Home],
) -> None:
    async with relay_with(LOOSE) as home:
        read, pinned = observation("file_read"), observation("search")
        assert await home.take(read, pinned, session(None), pin(pinned, owner)) == [STORED] * 4
        assert await home.sweep.once() == 0
        assert await home.take(session({"intent": "x"}, at=OLD + 1)) == [STORED]
        home.now += 3600
        assert await home.sweep.once() == 1
        assert [event.id for event in await home.log() if event.kind == 78] == [pinned.id]
        assert await home.take(pin(pinned, owner, pinned=False, at=OLD + 9)) == [STORED]
        home.now += 3600
        assert await home.sweep.once() == 1


@pytest.mark.proves("M-23")
async def test_few_rows_with_large_records_that_hold_them_are_swept_at_a_time(
    relay_with: Callable[..., Home], monkeypatch: pytest.MonkeyPatch
) -> None:
    """90 rows of 640 bytes with sessions of 380 kB took the writer 0.8 s, again and again."""
    monkeypatch.setattr("relay.write.batch._MOST_READ", 100_000)
    async with relay_with(LOOSE) as home:
        held, left = [], observation("file_read", "left")
        for number in range(9):
            name = f"s:{number}"
            held.append(observation("file_read", name))
            large = {"intent": "x" * (150_000 if number == 4 else 30_000)}
            assert await home.take(session(large, name), held[-1]) == [STORED] * 2
        assert await home.take(session({"intent": "x"}, "left"), left) == [STORED] * 2
        watched = Batches(home.ingest)
        lines = [line async for lines in home.sweep.run_now(Purpose.SWEEP) for line in lines]
        assert sum(line.events for line in lines if line.held is None) == 9
        assert [line.events for line in lines if line.held == TOO_LARGE] == [1]
        observed = [event for event in await home.log() if event.kind == 78]
        assert observed == [held[4]]
        sweeps = [item for (item,) in watched.committed if isinstance(item, SweepRows)]
        assert max(len(item.removed) for item in sweeps) == 4  # three large ones
        assert all(item.took_s > 0 for item in sweeps)


@pytest.mark.proves("M-24")
@pytest.mark.parametrize(
    ("kind_of", "days"),
    [
        ("git_commit", 730),
        ("file_edit", 365),
        ("session_clear", 365),
        ("github", 180),
        ("task_spawn", 90),
        ("marker", None),
        ("something_else", None),
    ],
)
async def test_each_type_of_observation_has_its_own_days(
    relay_with: Callable[..., Home], kind_of: str, days: int | None
) -> None:
    async with relay_with(LOOSE) as home:
        age = 3000 if days is None else days
        old = observation(kind_of, at=NOON - age * DAY_S - 1)
        edge = observation(kind_of, at=NOON - age * DAY_S + 60)
        assert await home.take(old, edge, session({"intent": "x"})) == [STORED] * 3
        assert await home.sweep.once() == (0 if days is None else 1)


@pytest.mark.proves("M-24")
async def test_the_days_of_observations_are_a_setting(relay_with: Callable[..., Home]) -> None:
    days = "[memory.nmem]\nretention_days = { marker = 5, file_read = 0 }\n"
    async with relay_with(LOOSE, days) as home:
        gone, kept = observation("marker"), observation("file_read")
        assert await home.take(gone, kept, session({"intent": "x"})) == [STORED] * 3
        assert await home.sweep.once() == 1
        assert kept.id in [event.id for event in await home.log()]


async def test_the_sweep_of_observations_can_be_switched_off(
    relay_with: Callable[..., Home],
) -> None:
    async with relay_with(LOOSE, "[memory.nmem]\nsweep = false\n") as home:
        assert await home.take(observation("search"), session({"intent": "x"})) == [STORED] * 2
        assert await home.sweep.once() == 0


async def test_older_versions_of_a_swept_row_are_refused(relay_with: Callable[..., Home]) -> None:
    essays = '[[retention]]\nname = "e"\nmatch = { kinds = [30023] }\ndays = 10'
    async with relay_with(essays) as home:
        before = await home.do(alice, 30023, ["d", "x"], at=OLD)
        await home.do(alice, 30023, ["d", "x"], at=OLD + 1)
        assert await home.sweep.once() == 1
        assert await home.take(before) == [(False, "blocked: deleted")]
        await home.do(alice, 30023, ["d", "x"], at=NOON)


async def test_a_swept_row_of_keep_all_may_be_sent_again_and_is_swept_again(
    relay_with: Callable[..., Home],
) -> None:
    async with relay_with(NOTES) as home:
        note = await home.do(alice, 1, at=OLD)
        assert await home.sweep.once() == 1
        assert await home.take(note) == [STORED]
        assert await home.sweep.once() == 1


async def test_reloaded_rules_apply_at_once(relay_with: Callable[..., Home]) -> None:
    async with relay_with() as home:
        await home.do(alice, 1, at=OLD)
        assert await home.sweep.once() == 0
        home.state.enforce(policy_of("open", NOTES))
        assert await home.sweep.once() == 1


async def test_a_sweep_of_other_rules_removes_nothing(relay_with: Callable[..., Home]) -> None:
    async with relay_with(NOTES) as home:
        await home.do(alice, 1, at=OLD)
        due_rows = home.store.due_rows

        async def overdue_and_reloaded(*args: object, **more: object) -> object:
            rows = await due_rows(*args, **more)  # type: ignore[arg-type]
            home.state.enforce(policy_of("open"))
            return rows

        home.store.due_rows = overdue_and_reloaded  # type: ignore[method-assign, assignment]
        assert await home.sweep.once() == 0
        assert len(await home.log()) == 1


async def test_group_records_and_state_are_never_swept(
    relay_with: Callable[..., Home],
) -> None:
    everything = '[[retention]]\nname = "all"\nmatch = { kinds = ["0-65535"] }\ndays = 1'
    async with relay_with(everything) as home:
        await home.do(admin, 9007, h="tea")
        await home.do(admin, 9, h="tea")
        await home.do(admin, 9000, ["p", alice.pubkey], h="tea")
        home.now += 3 * DAY_S
        assert await home.sweep.once() == 3, "the message, and two notices of membership"
        assert {row.kind for row in await home.log()} == {9000, 9007, 39000, 39001, 39002, 39003}
        assert await home.rebuilt() == home.groups


# -- pure: without a store ------------------------------------------------------------------------


def row(seq: int, event: Event, *, version: int | None = None) -> Stored:
    at = event.created_at if version is None else version
    return Stored(seq, event, event.tag("h"), version=at)


def dated(at: int, *tags: list[str], by: SecretKey = alice, content: str = "") -> Event:
    return unsigned(by, 1, tags, content, at)


NOTES_ONLY = Match(KindSet.of(1))


def limited(limit: MaxAge | MaxAmount, match: Match = NOTES_ONLY, name: str = "r") -> SweepRule:
    return SweepRule(name, "policy.toml:1", match, limit)


def due(limit: MaxAge | MaxAmount, *rows: Stored, match: Match = NOTES_ONLY) -> list[int]:
    return [found.seq for found in due_rows(rows, limited(limit, match), (), Groups(), NOON)]


def test_a_row_is_due_when_it_is_more_than_the_days_old() -> None:
    edge = NOON - 10 * DAY_S
    ages = [row(seq, dated(edge + by)) for seq, by in enumerate((-2, -1, 0, 1))]
    assert due(MaxAge(10), *reversed(ages)) == [0, 1]
    assert MaxAge(10).before(5) == 0
    assert MaxAge(2).before(200_000) == 200_000 - 2 * 24 * 60 * 60


def test_rows_above_a_number_of_events_are_due_oldest_version_first() -> None:
    rows = [row(seq, dated(NOON), version=NOON + seq) for seq in (3, 1, 4, 2)]
    assert due(MaxAmount(None, events=2), *rows) == [1, 2]
    assert due(MaxAmount(None, events=4), *rows) == []
    assert due(MaxAmount(None, events=0), *rows) == [1, 2, 3, 4]


def test_of_equal_versions_the_lowest_id_is_due_first() -> None:
    rows = [row(seq, dated(NOON, content=str(seq))) for seq in range(5)]
    lowest = sorted(rows, key=lambda found: found.event.id)[:2]
    assert due(MaxAmount(None, events=3), *rows) == [found.seq for found in lowest]


def test_rows_above_a_number_of_bytes_are_due() -> None:
    rows = [row(seq, dated(NOON + seq)) for seq in range(3)]
    size = len(rows[0].event.raw)
    assert due(MaxAmount(None, bytes=2 * size), *rows) == [0]
    assert due(MaxAmount(None, bytes=2 * size - 1), *rows) == [0, 1]
    assert due(MaxAmount(None, events=3, bytes=2 * size), *rows) == [0]
    assert due(MaxAmount(None, events=1, bytes=3 * size), *rows) == [0, 1]


def test_rows_are_counted_per_scope() -> None:
    """A row that lacks the tag or the prefix is not counted."""
    a, b = ["hk", "a"], ["hk", "b"]
    rows = [
        row(1, dated(NOON, a, ["h", "tea"], ["d", "x:1"])),
        row(2, dated(NOON + 1, a, ["h", "den"], ["d", "x:2"], by=robot)),
        row(3, dated(NOON + 2, b, ["h", "tea"], ["d", "y:3"])),
        row(4, dated(NOON + 3, a, ["d", "z"], by=robot)),
        row(5, dated(NOON + 4, ["d", "y"])),
        row(6, dated(NOON + 5)),
    ]
    prefixed = Match(KindSet.of(1), d_prefixes=("x:", "y"))

    def left(per: Scope | None, match: Match = NOTES_ONLY) -> list[int]:
        return due(MaxAmount(per, events=1), *rows, match=match)

    assert left(None) == [1, 2, 3, 4, 5]
    assert left(Scope.AUTHOR) == [1, 2, 3, 5]
    assert left(Scope.GROUP) == [1]
    assert left(Scope.HK) == [2]
    assert left(Scope.D_PREFIX, prefixed) == [1, 3]
    assert left(Scope.D_PREFIX) == []


def test_exempt_rows_are_not_counted() -> None:
    rows = [row(seq, dated(NOON + seq, by=alice if seq < 2 else robot)) for seq in range(3)]
    exempt = [Match(authors=frozenset({alice.pubkey}))]
    rule = limited(MaxAmount(None, events=0))
    assert [found.seq for found in due_rows(rows, rule, exempt, Groups(), NOON)] == [2]


def test_a_limit_is_described() -> None:
    assert str(MaxAge(3)) == "older than 3 days"
    assert str(MaxAmount(None, events=3)) == "more than 3 events"
    assert str(MaxAmount(Scope.AUTHOR, bytes=9)) == "more than 9 bytes per author"
    assert str(MaxAmount(Scope.HK, 3, 9)) == "more than 3 events or 9 bytes per hk"


def test_what_a_row_waits_for_shares_author_group_and_tags() -> None:
    """A-18."""
    in_tea, outside = row(1, dated(9, ["h", "tea"], ["s", "1"])), row(2, dated(9, ["s", "1"]))
    older, ts = KindSet.of(7), UpTo.TS

    def match_of(found: Stored, *same: str) -> Match | None:
        dependency = NeverBefore(older, same, ts).dependency_of(found)
        return None if dependency is None else dependency.match

    assert match_of(in_tea) == Match(older)
    assert match_of(in_tea, "author") == Match(older, authors=frozenset({alice.pubkey}))
    assert match_of(in_tea, "group") == Match(older, h=frozenset({"tea"}))
    assert match_of(outside, "group") == Match(older, h=False)
    tagged = (("s", frozenset({"1"})), ("h", frozenset({"tea"})))
    assert match_of(in_tea, "s", "h") == Match(older, tags=tagged)
    assert match_of(outside, "s", "h") is None
    assert NeverBefore(older, (), ts).dependency_of(in_tea) == RetentionDependency(Match(older), ts)


def test_only_rows_of_a_rule_that_have_its_tags_wait() -> None:
    before = NeverBefore(KindSet.of(7), ("s",), UpTo.TS)
    rules = SweepRules(waiting=((Match(KindSet.of(9)), before), (NOTES_ONLY, before)))
    (dependency,) = rules.dependencies_of(row(1, dated(9, ["s", "1"])))
    assert dependency.match == Match(KindSet.of(7), tags=(("s", frozenset({"1"})),))
    assert list(rules.dependencies_of(row(1, dated(9)))) == []
    assert list(rules.dependencies_of(row(1, unsigned(alice, 7, [["s", "1"]])))) == []


def test_rows_that_others_wait_for_are_swept_first() -> None:
    """A-18: the order of the file otherwise. A rule that matches both has a step for each."""

    def steps(*kinds: tuple[int, ...], waits: dict[int, int]) -> list[tuple[int, list[int]]]:
        """For each step: the index of its rule, and the kinds that it removes."""
        rules = tuple([limited(MaxAge(1), Match(KindSet.of(*of))) for of in kinds])
        waiting = tuple(
            [
                (Match(KindSet.of(late)), NeverBefore(KindSet.of(early), (), UpTo.TS))
                for late, early in waits.items()
            ]
        )
        rows = [row(1, unsigned(alice, kind)) for kind in (1, 2, 3)]
        return [
            (
                rules.index(step.rule),
                [
                    one.event.kind
                    for one in rows
                    if step.rule.match.matches(one, Groups()) and step.removes(one)
                ],
            )
            for step in SweepRules(rules, waiting=waiting).in_sweep_order()
        ]

    apart = ((3,), (1,), (2,))
    assert steps(*apart, waits={}) == [(0, [3]), (1, [1]), (2, [2])]
    assert steps(*apart, waits={3: 1}) == [(1, [1]), (2, [2]), (0, [3])]
    assert steps(*apart, waits={3: 2, 2: 1}) == [(1, [1]), (2, [2]), (0, [3])]
    assert steps((1, 3), (2,), waits={3: 2}) == [(0, [1]), (1, [2]), (0, [3])]
    assert steps((1, 2, 3), waits={3: 2, 2: 1}) == [(0, [1]), (0, [2]), (0, [3])]
    in_a_circle = steps(*apart, waits={1: 2, 2: 1})
    assert in_a_circle == [(0, [3]), (1, [1]), (2, [2])]


def test_some_rows_are_only_removed_by_a_rule_that_names_their_kind() -> None:
    """Deletions, requests to join and to leave; records of groups never."""
    named, unnamed = limited(MaxAge(1), Match(KindSet.of((0, 65_535)))), limited(MaxAge(1), Match())
    for kind, by_unnamed, by_named in [
        (1, True, True),
        (5, False, True),
        (62, False, True),
        (9021, False, True),
        (9022, False, True),
        (9023, True, True),
        (8999, True, True),
        (9000, False, False),
        (9020, False, False),
        (38_999, True, True),
        (39_000, False, False),
        (39_005, False, False),
        (39_006, True, True),
    ]:
        found = row(1, unsigned(alice, kind, at=OLD))
        for rule, removed in ((unnamed, by_unnamed), (named, by_named)):
            exempt = SweepRules().exempt_from(rule)
            assert bool(due_rows([found], rule, exempt, Groups(), NOON)) is removed, kind


@pytest.mark.parametrize(
    ("match", "removed"),
    [
        (Match(), False),
        (Match(KindSet.of(30078)), False),
        (Match(KindSet.of(30078), d_prefixes=("snowclaw:",)), False),
        (Match(KindSet.of(30078), d_prefixes=("nmem:", "snowclaw:config:")), True),
        (Match(KindSet.of(30078), d_prefixes=("snowclaw:config:x",)), True),
        (Match(d=frozenset({"snowclaw:config:x"})), True),
        (Match(d=frozenset({"snowclaw:config:x"}), d_prefixes=("snowclaw:",)), True),
    ],
)
def test_some_memory_records_are_only_removed_by_a_rule_that_names_their_prefix(
    match: Match, *, removed: bool
) -> None:
    config = row(1, unsigned(owner, 30078, [["d", "snowclaw:config:x"]], at=OLD))
    rule = limited(MaxAge(1), match)
    exempt = SweepRules(systems=MEMORY_SYSTEMS).exempt_from(rule)
    assert bool(due_rows([config], rule, exempt, Groups(), NOON)) is removed


@pytest.mark.parametrize("up_to", UpTo)
@pytest.mark.parametrize("is_added", [False, True])
def test_a_row_is_held_while_a_row_that_is_not_newer_is_there(
    up_to: UpTo, *, is_added: bool
) -> None:
    """A-18: stored before, or added by an earlier event of the batch."""
    clear = row(1, dated(100), version=50)
    before = NeverBefore(KindSet.of(7), ("author",), up_to)
    rules = SweepRules(waiting=((NOTES_ONLY, before),))
    time = 50 if up_to is UpTo.TS else 100
    for at, by, held in [
        (time - 1, alice, True),
        (time, alice, True),
        (time + 1, alice, False),
        (time, robot, not is_added),
    ]:
        found, plan = Found(9), WritePlan()
        (dependency,) = rules.dependencies_of(clear)
        if is_added:
            event = unsigned(by, 7, at=at)
            plan.adds[event.id] = row(2, event)
        else:
            found.oldest_dependencies[dependency] = at
        reason = hold_reason(clear, rules, Actors(), Groups(), found, plan)
        assert reason == (NOT_FIRST if held else None)


def test_a_row_is_held_by_never_and_by_pins_of_either_form() -> None:
    article = unsigned(alice, 30023, [["d", "x"]], at=OLD)
    slotted = Stored(1, article, slot=Slot(alice.pubkey, 30023, "x"))
    note = row(2, dated(OLD))
    by_id, by_address = ("e", note.event.id), ("a", f"30023:{alice.pubkey}:x")
    pinned = Groups().with_group(Group("tea", pins=(by_id, by_address)))

    def reason(found: Stored, groups: Groups, *never: Match) -> str | None:
        rules = SweepRules(never=never)
        return hold_reason(found, rules, Actors(), groups, Found(9), WritePlan())

    for held in (slotted, note):
        assert reason(held, pinned) == PINNED
        assert reason(held, Groups()) is None
        assert reason(held, pinned, Match(KindSet.of(7)), Match()) == NEVER
    assert reason(row(3, dated(OLD + 1)), pinned) is None
    assert reason(Stored(4, article), pinned) is None


def test_a_tombstone_is_only_needed_where_one_version_is_kept() -> None:
    """N40-08."""
    article = unsigned(alice, 30023, [["d", "x"]], at=OLD)
    slotted = Stored(1, article, slot=Slot(alice.pubkey, 30023, "x"), version=OLD)
    expected = Tombstone(f"a:30023:{alice.pubkey}:x", "", OLD, "swept")
    for keep in (Keep.LATEST, Keep.LATEST_TS):
        assert tombstone_for(slotted, keep, "swept") == expected
        assert tombstone_for(row(2, dated(OLD)), keep, "swept") is None
    for keep in (Keep.ALL, Keep.FIRST):
        assert tombstone_for(slotted, keep, "swept") is None


@pytest.mark.parametrize(
    ("limit", "text"),
    [
        (MaxAge(1), "older than 1 day"),
        (MaxAge(7), "older than 7 days"),
        (MaxAmount(Scope.GROUP, events=1), "more than 1 event per group"),
        (MaxAmount(None, events=2, bytes=9), "more than 2 events or 9 bytes"),
        (History(1, 1), "1 old version for 1 day"),
        (History(20), "20 old versions"),
    ],
)
def test_a_limit_is_told_in_the_right_number(limit: object, text: str) -> None:
    assert str(limit) == text
