"""relay/write/sweeper.py: expired events are removed within minutes. N40-04,
N40-08."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest

from relay.errors import StoreFault
from relay.lifecycle.retention import DAY_S
from relay.observe import Metrics
from relay.write.commands import ExpireRows, Purpose, SweepRows
from relay.write.sweeper import _LOOK_S as LOOK_S
from relay.write.sweeper import Sweeper
from tests.cast import admin, alice, owner, robot
from tests.harness.patience import ANSWER_S
from tests.harness.relay_in_process import DUPLICATE, NOON, STORED, Batches, Home, policy_of

if TYPE_CHECKING:
    from relay.nostr.event import Event
    from relay.storage import Store


def until(seconds: int) -> list[str]:
    return ["expiration", str(NOON + seconds)]


async def swept(home: Home) -> int:
    return await home.sweep.once()


async def stored(home: Home) -> list[str]:
    return [event.content for event in await home.log()]


@pytest.mark.proves("N40-04")
async def test_what_has_expired_leaves_the_store_and_what_has_not_stays(home: Home) -> None:
    for after in (10, 20):
        await home.do(alice, 1, until(after), content=f"until {after}")
    await home.do(alice, 1, content="for ever")
    assert await swept(home) == 0
    home.now = NOON + 10
    assert await swept(home) == 1
    assert await stored(home) == ["until 20", "for ever"]


async def test_a_sweep_by_command_fails_where_expired_rows_cannot_be_removed(
    home: Home, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`rookery compact` said that nothing was to be removed."""
    await home.do(alice, 1, until(10))
    home.now = NOON + 10

    async def broken(*_: object) -> None:
        raise StoreFault("disk I/O error")

    monkeypatch.setattr(home.store, "append", broken)
    with pytest.raises(StoreFault, match="no changes are accepted"):
        [lines async for lines in home.sweep.run_now(Purpose.SWEEP)]


@pytest.mark.proves("N40-04")
async def test_however_many_have_expired_all_of_them_go(home: Home) -> None:
    events = [home.made(alice, 1, until(10)) for _ in range(600)]
    assert set(await home.take(*events)) == {STORED}
    home.now = NOON + 10
    assert await swept(home) == 600
    assert await stored(home) == []


async def test_rules_have_turns_while_more_expires_than_is_deleted(
    home: Home, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Somebody whose events expired again and again kept every other sweep from running."""
    elapsed = 0.0
    expire = home.ingest.expire

    def and_more(expiry: ExpireRows) -> None:
        nonlocal elapsed
        elapsed += 10.0
        for number in range(2):
            home.post(home.made(alice, 1, until(100), content=f"{elapsed} {number}"))
        home.now += 100
        expire(expiry)

    monkeypatch.setattr(home.ingest, "expire", and_more)
    monkeypatch.setattr("relay.write.sweeper.monotonic", lambda: elapsed)
    monkeypatch.setattr("relay.write.sweeper._BATCH_ROWS", 1)
    for number in range(100):
        await home.do(alice, 1, until(10), content=f"{number}")
    home.now = NOON + 10
    async with asyncio.timeout(ANSWER_S):
        assert 0 < await swept(home) < 20
    assert len(await stored(home)) > 80


@pytest.mark.parametrize("purpose", [*Purpose])
async def test_large_rows_expire_few_at_a_time(home: Home, purpose: Purpose) -> None:
    """96 events of 5,000 tags that expired together kept writes waiting for seconds: a row of this
    size has up to 5,000."""
    size = 50_000
    for number in range(10):
        await home.do(alice, 1, until(10), content=f"{number}".rjust(size))
    home.now = NOON + 10
    together = [line.bytes async for lines in home.sweep.run_now(purpose) for line in lines]
    assert sum(together) > 10 * size
    assert max(together) < 2 * size


async def test_pinned_rows_of_many_groups_expire_few_groups_at_a_time(
    home: Home, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The relay signs a 39005 for each: 200 of 64 pins took 0.3 s."""
    monkeypatch.setattr("relay.write.sweeper.UNPINNED_AT_ONCE", 3)
    for group in map(str, range(10)):
        await home.do(alice, 9007, h=group)
        note = await home.do(alice, 9, until(10), h=group)
        record = await home.do(alice, 30023, ["d", group], until(10), h=group)
        address = ["a", f"30023:{alice.pubkey}:{group}"]
        await home.do(alice, 9010, ["e", note.id], address, h=group)
    unpinned = await home.do(alice, 1, until(10))
    home.now = NOON + 10
    watched = Batches(home.ingest)
    assert await swept(home) == 21
    expired = [item.rows for (item,) in watched.committed if isinstance(item, ExpireRows)]
    assert [len(rows) for rows in expired] == [6, 6, 6, 3]
    assert {row.id for row in expired[-1]} == {note.id, record.id, unpinned.id}
    assert not home.groups.pinned
    assert await home.rebuilt() == home.groups


@pytest.mark.proves("N40-09")
async def test_what_was_swept_is_refused_as_expired(home: Home) -> None:
    note = await home.do(alice, 1, until(10))
    home.now = NOON + 10
    await swept(home)
    assert await home.take(note) == [(False, "invalid: event expired")]


@pytest.mark.proves("N40-08")
@pytest.mark.parametrize(("kind", "d"), [(10002, []), (30023, [["d", "essay"]])])
async def test_versions_before_an_expired_one_do_not_come_back(
    home: Home, kind: int, d: list[list[str]]
) -> None:
    old = await home.do(alice, kind, *d, at=NOON - 20)
    await home.do(alice, kind, *d, until(10), at=NOON - 10)
    home.now = NOON + 10
    await swept(home)
    ((accepted, text),) = await home.take(old)
    assert (accepted, text) == (False, "blocked: deleted")
    newer = await home.do(alice, kind, *d, at=NOON - 9)
    assert [event.id for event in await home.log()] == [newer.id]


@pytest.mark.proves("N40-08", "G-14")
async def test_versions_by_ts_do_not_come_back_either(home: Home) -> None:
    """A preference of an agent: the newest is told by `ts`, whatever their dates say."""

    def preference(ts: int, at: int, *more: list[str]) -> Event:
        tags = [["d", "hk:preference"], ["k", "aman_preference"], ["hk", "hk"], ["v", "1"]]
        said = f'{{"history_key": "hk", "preference": "tea", "updated_at": {ts}}}'
        return home.made(robot, 30093, *tags, ["ts", str(ts)], *more, at=at, content=said)

    old, late = preference(NOON - 20, NOON - 20), preference(NOON - 15, NOON - 1)
    newest = preference(NOON - 10, NOON - 5, until(10))
    assert await home.take(old, late, newest) == [STORED] * 3
    home.now = NOON + 10
    assert await swept(home) == 1
    refused = [(False, "blocked: deleted")] * 2
    assert await home.take(old, late, logins=[robot.pubkey]) == refused
    newer = preference(NOON - 9, NOON - 6)
    assert await home.take(newer, logins=[robot.pubkey]) == [STORED]


@pytest.mark.proves("N29-172")
async def test_a_pin_is_removed_with_the_event_that_it_names(home: Home) -> None:
    await home.do(admin, 9007, h="tea")
    note = await home.do(admin, 9, until(10), h="tea")
    await home.do(admin, 9010, ["e", note.id], h="tea")
    home.now = NOON + 10
    await swept(home)
    assert home.groups.by_id["tea"].pins == ()
    assert await home.rebuilt() == home.groups
    assert [event.tags for event in await home.log() if event.kind == 39005] == [[["d", "tea"]]]


async def test_an_invite_ends_for_the_group_when_it_is_swept(home: Home) -> None:
    await home.do(admin, 9007, h="tea")
    await home.do(admin, 9009, ["code", "long enough"], until(10), h="tea")
    home.now = NOON + 10
    assert await swept(home) == 1
    assert await home.rebuilt() == home.groups


async def test_a_row_that_went_meanwhile_is_no_harm(home: Home) -> None:
    note = await home.do(alice, 1, until(10))
    home.now = NOON + 10
    deletion = home.made(alice, 5, ["e", note.id])
    (answer,), count = await asyncio.gather(home.take(deletion), swept(home))
    assert answer == STORED
    assert count in (0, 1)
    assert [event.kind for event in await home.log()] == [5]


async def test_it_sweeps_by_itself_soon_and_again(home: Home) -> None:
    first = await home.do(owner, 1, until(10))
    home.now = NOON + 10
    async with (
        asyncio.timeout(ANSWER_S),
        Sweeper(
            home.store,
            home.state,
            home.ingest,
            clock=lambda: home.now,
            metrics=Metrics(),
            first_s=0,
            every_s=0.01,
        ),
    ):
        await _until_gone(home, first)
        second = home.made(owner, 1, until(20))
        assert await home.take(second) == [STORED]
        assert await home.take(second) == [DUPLICATE]
        home.now = NOON + 20
        await _until_gone(home, second)


async def test_while_more_has_expired_than_is_deleted_it_does_not_rest(
    home: Home, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Half of the time it did, and texts of others that expired later stayed for hours."""
    elapsed, rests, sleep = 0.0, list[float](), asyncio.sleep
    expire = home.ingest.expire

    def slowly(expiry: ExpireRows) -> None:
        nonlocal elapsed
        elapsed += 100.0
        expire(expiry)

    async def rest(seconds: float) -> None:
        rests.append(seconds)
        await sleep(0)

    for _ in range(9):
        await home.do(owner, 1, until(10))
    home.now = NOON + 10
    monkeypatch.setattr(home.ingest, "expire", slowly)
    monkeypatch.setattr("relay.write.sweeper.monotonic", lambda: elapsed)
    monkeypatch.setattr("relay.write.sweeper._BATCH_ROWS", 1)
    monkeypatch.setattr(asyncio, "sleep", rest)
    sweeper = Sweeper(
        home.store, home.state, home.ingest, clock=lambda: home.now, metrics=Metrics(), first_s=0.0
    )
    async with sweeper:
        while LOOK_S not in rests:
            await sleep(0)
    assert await stored(home) == []


@pytest.mark.parametrize(
    ("is_busy", "took_s", "times"), [(False, 1.0, 1), (True, 1.0, 8), (True, 0.02, 2)]
)
async def test_expired_rows_are_swept_faster_while_no_writer_waits(
    home: Home,
    monkeypatch: pytest.MonkeyPatch,
    is_busy: bool,  # noqa: FBT001
    took_s: float,
    times: int,
) -> None:
    """900,000 took half an hour, in which every reader passed over them."""
    rests = list[float]()
    expire = home.ingest.expire

    def for_so_long(expiry: ExpireRows) -> None:
        expiry.done.add_done_callback(lambda _: setattr(expiry, "took_s", took_s))
        expire(expiry)

    async def rest(seconds: float) -> None:
        rests.append(seconds)

    await home.do(alice, 1, until(10))
    home.now = NOON + 10
    monkeypatch.setattr(home.ingest, "expire", for_so_long)
    monkeypatch.setattr(type(home.ingest), "is_busy", is_busy)
    monkeypatch.setattr(asyncio, "sleep", rest)
    assert await swept(home) == 1
    assert rests == [took_s] * times


async def test_rows_of_many_tags_are_swept_after_many_others(
    home: Home, monkeypatch: pytest.MonkeyPatch
) -> None:
    """300 of 4,990 tags each that expired a second earlier kept 300,000 others for minutes."""
    swept_ids = list[str]()
    expire = home.ingest.expire

    def noted(expiry: ExpireRows) -> None:
        swept_ids.extend(row.id for row in expiry.rows)
        expire(expiry)

    large = [
        await home.do(alice, 1, until(9), *[["t", f"{n} {tag}"] for tag in range(100)])
        for n in range(3)
    ]
    small = [await home.do(alice, 1, until(10)) for _ in range(9)]
    home.now = NOON + 10
    monkeypatch.setattr("relay.write.sweeper._EXPIRED_ROWS", 8)
    monkeypatch.setattr("relay.write.sweeper._BATCH_ROWS", 1)
    monkeypatch.setattr(home.ingest, "expire", noted)
    assert await swept(home) == 12
    assert {event.id for event in small}.issuperset(swept_ids[:6])
    assert {event.id for event in large}.issubset(swept_ids[6:])


@pytest.mark.parametrize(("number", "intervals"), [(3, 0), (2, 1)])
async def test_many_that_expire_wait_for_no_interval(
    home: Home, monkeypatch: pytest.MonkeyPatch, number: int, intervals: int
) -> None:
    elapsed, sleep = 0.0, asyncio.sleep

    async def rest(seconds: float) -> None:
        nonlocal elapsed
        if await stored(home):  # else all is done, and it waits for the next interval
            elapsed += seconds
            home.now = NOON + int(elapsed)
        await sleep(0)

    for _ in range(number):
        await home.do(alice, 1, until(7))
    monkeypatch.setattr("relay.write.sweeper._BATCH_ROWS", 3)
    monkeypatch.setattr(asyncio, "sleep", rest)
    sweeper = Sweeper(
        home.store,
        home.state,
        home.ingest,
        clock=lambda: home.now,
        metrics=Metrics(),
        first_s=0.0,
        every_s=3600.0,
    )
    async with sweeper:
        while await stored(home):
            await sleep(0)
    assert elapsed // 3600.0 == intervals


async def _until_gone(home: Home, event: Event) -> None:
    while True:
        if event not in await home.log():
            return
        await asyncio.sleep(0)


@pytest.mark.parametrize("by", ["expiration", "a rule"])
async def test_few_rows_with_large_old_versions_are_swept_at_a_time(store: Store, by: str) -> None:
    """100 small rows took 160 MB of old versions with them in one transaction: 3.4 s."""
    rule = '[[retention]]\nname = "{}"\nmatch = {{ kinds = [30023] }}\n{}\n'
    rules = [rule.format("history", "history = { count = 9 }")]
    if by == "a rule":
        rules.append(rule.format("old", "days = 1"))
    async with Home(store, policy_of("open", *rules)) as home:
        for name in "abcdef":
            for at in (NOON - 9, NOON):
                tags = [until(10)] if by == "expiration" and at == NOON else []
                content = "x" * (30_000 if at < NOON else 0)
                await home.do(alice, 30023, ["d", name], *tags, content=content, at=at)
        home.now = NOON + 3 * DAY_S
        watched = Batches(home.ingest)
        assert await swept(home) == 6
        items = [item for (item,) in watched.committed]
        assert [len(i.removed) for i in items if isinstance(i, ExpireRows | SweepRows)] == [2] * 3
        assert await store.old_versions(0, 9) == []


async def test_after_a_read_a_sweep_rests_for_a_second_at_most(
    home: Home, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A look for damage that waited 8 s for reads of others was followed by a rest of a minute, 20
    times, in which nothing was swept."""
    elapsed, rests, sleep = 0.0, list[float](), asyncio.sleep

    async def read(*_: object) -> tuple[int, list[str]]:
        nonlocal elapsed
        elapsed += 8.0
        return 1, []

    async def rest(seconds: float) -> None:
        rests.append(seconds)
        await sleep(0)

    monkeypatch.setattr("relay.write.sweeper.monotonic", lambda: elapsed)
    monkeypatch.setattr(home.store, "check", read)
    monkeypatch.setattr(asyncio, "sleep", rest)
    await home.sweep.check()
    assert rests == [1.0] * 20
