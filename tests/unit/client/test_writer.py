"""Writer: distinct times, spooling, order and retries of a memory client's writes."""

from __future__ import annotations

import asyncio
import errno
from contextlib import AsyncExitStack, closing
from typing import TYPE_CHECKING, Any

import pytest

from relay.client import Client, ClientClosed, ClientError, PublishRefused, Timeouts, Unanswered
from relay.client import writer as writer_room
from relay.client.spool import Spool, SpoolDamaged
from relay.client.writer import Outcome, Writer
from relay.memory.draft import Draft
from relay.nostr.event import base_of, event_from
from relay.nostr.kinds import DELETION
from relay.nostr.nip09 import named_by
from tests.cast import robot, rover
from tests.harness.fake_relay import ignoring, refusing
from tests.unit.client.conftest import TIMEOUTS
from tests.unit.client.test_snowclaw import until

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable
    from pathlib import Path

    from relay.client.writer import Make
    from relay.nostr.event import Event
    from tests.harness.fake_relay import FakeRelay, Visitor

NOW = 1_700_000_000
KIND = 30078
RESTRICTED = "restricted: only agents may write memory"
OLDER = "duplicate: a newer version is stored"
ANOTHER = "duplicate: another version is stored"
BASE_DELETED = "duplicate: the version that it was made from is deleted"


class Program:
    """One run of a program that writes: `async with Program(relay, path) as program`."""

    def __init__(self, fake: FakeRelay, path: Path | None, timeouts: Timeouts = TIMEOUTS) -> None:
        self.client = Client(
            fake.url, robot, timeouts=timeouts, now=lambda: NOW, start_offline=True
        )
        self.path = path
        self._open = AsyncExitStack()

    async def __aenter__(self) -> Program:
        await self._open.enter_async_context(self.client)
        self.spool = Spool(self.path) if self.path is not None else None
        if self.spool is not None:
            self._open.callback(self.spool.close)
        self.writer = Writer(self.client, robot, self.spool)
        await self.writer.start()
        self._open.push_async_callback(self.writer.stop)
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._open.aclose()

    async def write(self, text: str, d: str = "a") -> Outcome:
        return (await self.writer.write(KIND, d, version(text, d))).outcome

    async def publish(self, text: str) -> Outcome:
        return (await self.writer.publish(Draft(1, [], text, NOW))).outcome


def version(text: str, d: str = "a") -> Make:
    return lambda at: Draft(KIND, [["d", d]], text, at)


def refuse(text: str) -> Callable[[Visitor, list[Any]], Awaitable[None]]:
    return refusing(text)


def latest(fake: FakeRelay) -> None:
    """The fake keeps one version of each address, as a relay does that knows `made-from`."""
    deleted: set[str] = set()
    until: dict[str, int] = {}

    async def take(visitor: Visitor, frame: list[Any]) -> None:
        event = event_from(frame[1])
        if event.kind == DELETION:
            gone = named_by(event, fake.events)
            deleted.update(each.id for each in gone)
            for address in event.tag_values("a"):
                until[address] = max(until.get(address, 0), event.created_at)
            fake.events[:] = [each for each in fake.events if each not in gone]
            await fake.take(visitor, frame)
            return
        if event.created_at <= until.get(f"{event.kind}:{event.pubkey}:{event.d}", 0):
            await visitor.say_no(event.id, "blocked: deleted")
            return
        base = base_of(event)
        if base is not None and base.id in deleted:
            await visitor.say_no(event.id, BASE_DELETED)
            return
        for stored in fake.events:
            if stored.id == event.id:
                await visitor.say_ok(event.id, "duplicate: already have this event")
                return
            if (stored.kind, stored.d) == (event.kind, event.d):
                if (-event.created_at, event.id) > (-stored.created_at, stored.id):
                    await visitor.say_no(event.id, OLDER)
                    return
                if base is not None and base.id != stored.id and base.at <= stored.created_at:
                    await visitor.say_no(event.id, ANOTHER)
                    return
                fake.events.remove(stored)
                break
        await fake.publish(event)
        await visitor.say_ok(event.id)

    fake.on["EVENT"] = take


def contents(fake: FakeRelay) -> list[str]:
    return [event.content for event in fake.events]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "aman.spool"


@pytest.fixture(params=["with a spool", "without"])
def maybe_path(request: pytest.FixtureRequest, path: Path) -> Path | None:
    return path if request.param == "with a spool" else None


async def test_a_write_is_stored_at_the_relay_when_it_returns(
    fake: FakeRelay, maybe_path: Path | None
) -> None:
    async with Program(fake, maybe_path) as program:
        await program.client.wait_connected()
        assert await program.write("one") is Outcome.STORED
        assert contents(fake) == ["one"]
        assert not program.spool
    assert len(fake.verbs("EVENT")) == 1


@pytest.mark.proves("A-10", "S-24")
async def test_two_writes_in_one_second_get_different_times(
    fake: FakeRelay, maybe_path: Path | None
) -> None:
    async with Program(fake, maybe_path) as program:
        await program.client.wait_connected()
        await asyncio.gather(program.write("one"), program.write("two"), program.write("b", "b"))
    assert {(e.content, e.created_at) for e in fake.events} == {
        ("one", NOW),
        ("two", NOW + 1),
        ("b", NOW),
    }


async def test_a_version_is_newer_than_the_ts_of_the_last_one(fake: FakeRelay) -> None:
    async with Program(fake, None) as program:
        await program.client.wait_connected()
        program.writer.note_stored(
            robot.sign(KIND, [["d", "a"], ["ts", str(NOW + 50)]], "", NOW - 5)
        )
        await program.write("one")
    assert fake.events[0].created_at == NOW + 51


@pytest.mark.parametrize("is_known", [False, True])
async def test_a_version_is_newer_than_a_deletion_of_its_address(
    fake: FakeRelay, maybe_path: Path | None, *, is_known: bool
) -> None:
    """By another program, whose clock may be ahead: what is not newer is refused for good."""
    latest(fake)
    async with Program(fake, maybe_path) as program:
        await program.client.wait_connected()
        tags = [["a", f"{KIND}:{robot.pubkey}:a"], ["a", f"{KIND}:{rover.pubkey}:b"]]
        deletion = robot.sign(5, tags, "", NOW + 20)
        await program.client.publish(deletion)
        if is_known:
            program.writer.note_stored(deletion)
        assert await program.write("one") is Outcome.STORED
        assert await program.write("two", "b") is Outcome.STORED
    assert [event.created_at for event in fake.events[-2:]] == [NOW + 21, NOW]


async def test_an_event_the_relay_already_has_is_a_duplicate(
    fake: FakeRelay, maybe_path: Path | None
) -> None:
    async with Program(fake, maybe_path) as program:
        await program.client.wait_connected()
        assert await program.publish("one") is Outcome.STORED
        assert await program.publish("one") is Outcome.DUPLICATE
        assert not program.spool


async def test_one_event_written_twice_at_once_is_answered_twice(
    fake: FakeRelay, maybe_path: Path | None
) -> None:
    async with Program(fake, maybe_path) as program:
        await program.client.wait_connected()
        outcomes = await asyncio.gather(program.publish("one"), program.publish("one"))
        assert Outcome.QUEUED not in outcomes
        assert not program.spool
    assert contents(fake) == ["one"]


async def test_a_refusal_raises_and_leaves_nothing_in_the_spool(
    fake: FakeRelay, maybe_path: Path | None
) -> None:
    fake.on["EVENT"] = refuse(RESTRICTED)
    async with Program(fake, maybe_path) as program:
        await program.client.wait_connected()
        with pytest.raises(PublishRefused, match=RESTRICTED):
            await program.write("one")
        if program.spool is not None:
            assert (len(program.spool), program.spool.refused()) == (0, [])


@pytest.mark.proves("S-24")
async def test_a_superseded_version_is_rewritten_one_second_after_the_stored_one(
    fake: FakeRelay, maybe_path: Path | None
) -> None:
    latest(fake)
    fake.events.append(robot.sign(KIND, [["d", "a"]], "of another program", NOW + 60))
    async with Program(fake, maybe_path) as program:
        await program.client.wait_connected()
        assert await program.write("mine") is Outcome.STORED
    assert [(e.content, e.created_at) for e in fake.events] == [("mine", NOW + 61)]


async def test_a_repeatedly_superseded_version_is_refused(
    fake: FakeRelay, maybe_path: Path | None
) -> None:
    fake.on["EVENT"] = refuse(OLDER)
    async with Program(fake, maybe_path) as program:
        await program.client.wait_connected()
        with pytest.raises(PublishRefused, match="a newer version is stored"):
            await program.write("mine")
        assert not program.spool
    assert [frame[1]["created_at"] for frame in fake.verbs("EVENT")] == [
        NOW,
        NOW + 1,
        NOW + 2,
        NOW + 3,
    ]


async def test_without_a_spool_an_unreachable_relay_raises(fake: FakeRelay) -> None:
    await fake.stop()
    async with Program(fake, None, Timeouts(deadline_s=0.1)) as program:
        with pytest.raises(Unanswered):
            await program.write("one")
    await fake.start()


async def test_offline_writes_are_sent_in_order_after_the_reconnect(
    fake: FakeRelay, path: Path
) -> None:
    await fake.stop()
    written = [f"{number}" for number in range(600)]
    async with Program(fake, path) as program:
        for text in written:
            assert await program.write(text, d=text) is Outcome.QUEUED
        assert program.spool is not None
        assert len(program.spool) == 600
        await fake.start()
        await fake.until(lambda: len(fake.events) == 600)
        assert await program.write("last") is Outcome.STORED
        assert len(program.spool) == 0
    assert contents(fake) == [*written, "last"]


async def test_spooled_writes_are_sent_by_the_next_program(fake: FakeRelay, path: Path) -> None:
    await fake.stop()
    async with Program(fake, path) as program:
        await program.write("one")
        await program.write("two")
    await fake.start()
    async with Program(fake, path):
        await fake.until(lambda: len(fake.events) == 2)
    assert [(e.content, e.created_at) for e in fake.events] == [("one", NOW), ("two", NOW + 1)]


async def test_the_next_program_dates_versions_after_spooled_ones(
    fake: FakeRelay, path: Path
) -> None:
    await fake.stop()
    async with Program(fake, path) as program:
        await program.write("one")
    async with Program(fake, path) as program:
        await program.write("two")
        assert program.spool is not None
        assert [e.created_at for e in program.spool.waiting()] == [NOW, NOW + 1]
    await fake.start()


async def test_two_programs_may_share_one_spool(fake: FakeRelay, path: Path) -> None:
    await fake.stop()
    async with Program(fake, path) as one, Program(fake, path) as two:
        for number in range(20):
            assert await one.write("one", d=f"one {number}") is Outcome.QUEUED
            assert await two.write("two", d=f"two {number}") is Outcome.QUEUED
        await fake.start()
        await fake.until(lambda: len(fake.events) == 40)
        await wait_until_sent(one)
    assert contents(fake).count("one") == contents(fake).count("two") == 20


async def test_what_another_program_left_is_sent_at_the_next_connection(
    fake: FakeRelay, path: Path
) -> None:
    """It waited, as a deletion did, until this program wrote something."""
    async with Program(fake, path) as program:
        await wait_until_sent(program)
        await fake.stop()
        async with Program(fake, path) as other:
            assert await other.write("one") is Outcome.QUEUED
        await fake.start()
        await fake.until(lambda: contents(fake) == ["last", "one"])


@pytest.mark.parametrize("method", ["to_send", "deletions", "done"])
async def test_an_error_of_the_disk_delays_what_waits_and_stops_no_later_write(
    fake: FakeRelay, path: Path, monkeypatch: pytest.MonkeyPatch, method: str
) -> None:
    monkeypatch.setattr(writer_room, "_PAUSE_S", 0.01)
    await fake.stop()
    async with Program(fake, path) as program:
        assert await program.write("one", "a") is Outcome.QUEUED
        assert program.spool is not None
        works = getattr(program.spool, method)
        errors = [OSError(errno.EIO, "database is locked"), OSError(errno.ENOSPC, "disk full")]

        def fails_twice(*given: Any) -> Any:
            if errors:
                raise errors.pop()
            return works(*given)

        monkeypatch.setattr(program.spool, method, fails_twice)
        await fake.start()
        await until(lambda: not errors and not program.spool)
        assert await program.write("two", "b") is Outcome.STORED
    assert sorted({event.content for event in fake.events}) == ["one", "two"]


async def test_what_another_program_left_is_sent_after_a_while(
    fake: FakeRelay, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(writer_room, "_LOOK_S", 0.01)
    async with Program(fake, path) as program:
        await wait_until_sent(program)
        with closing(Spool(path)) as spool:
            spool.put(robot.sign(1, [], "one", NOW))
        await fake.until(lambda: contents(fake) == ["last", "one"])


async def test_an_event_whose_ok_was_lost_is_resent_and_stored_once(
    fake: FakeRelay, path: Path
) -> None:
    async def store_and_go(visitor: Visitor, frame: list[Any]) -> None:
        fake.on["EVENT"] = fake.take
        await fake.publish(event_from(frame[1]))
        visitor.drop_connection()

    fake.on["EVENT"] = store_and_go
    async with Program(fake, path) as program:
        await program.client.wait_connected()
        assert await program.write("one") is Outcome.STORED
        assert not program.spool
    assert contents(fake) == ["one"]


async def test_a_write_without_an_answer_is_queued_after_a_while(
    fake: FakeRelay, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(writer_room, "_ANSWER_S", 0.05)
    fake.on["EVENT"] = ignoring
    async with Program(fake, path) as program:
        await program.client.wait_connected()
        assert await program.write("one") is Outcome.QUEUED
        assert program.spool is not None
        assert len(program.spool) == 1


async def test_a_refused_spooled_write_is_kept_with_its_reason(fake: FakeRelay, path: Path) -> None:
    await fake.stop()
    async with Program(fake, path) as program:
        await program.write("one")
        await program.write("two", d="b")
        fake.on["EVENT"] = refuse(RESTRICTED)
        await fake.start()
        await fake.until(lambda: len(fake.verbs("EVENT")) == 2)
        fake.on["EVENT"] = fake.take
        assert await program.write("three", d="c") is Outcome.STORED  # it waits for the backlog
        assert program.spool is not None
        kept = [(event.content, reason) for event, reason in program.spool.refused()]
        assert kept == [("one", RESTRICTED), ("two", RESTRICTED)]
        assert len(program.spool) == 0


async def test_of_a_spooled_write_that_the_relay_has_deleted_nothing_is_kept(
    fake: FakeRelay, path: Path
) -> None:
    await fake.stop()
    async with Program(fake, path) as program:
        await program.write("one")
        fake.on["EVENT"] = refuse("blocked: deleted")
        await fake.start()
        await fake.until(lambda: bool(fake.verbs("EVENT")))
        fake.on["EVENT"] = fake.take
        assert await program.write("two", d="b") is Outcome.STORED  # it waits for the backlog
        assert program.spool is not None
        assert (len(program.spool), program.spool.refused()) == (0, [])


@pytest.mark.parametrize("ahead", [60, 61])
async def test_a_deletion_of_a_clock_that_is_ahead_loses_no_spooled_version(
    fake: FakeRelay, path: Path, ahead: int
) -> None:
    """By its date nobody can tell whether it came before or after the version was written. Of a
    clock that is right it came after."""
    latest(fake)
    address = f"{KIND}:{robot.pubkey}:a"
    await fake.stop()
    async with Program(fake, path) as program:
        await program.write("one")
    await fake.start()
    async with Client(fake.url, robot, timeouts=TIMEOUTS, now=lambda: NOW) as other:
        await other.publish(robot.sign(DELETION, [["a", address]], "", NOW + ahead))
    async with Program(fake, path) as program:
        await program.client.wait_connected()
        assert await program.write("two", d="b") is Outcome.STORED  # it waits for the backlog
        assert program.spool is not None
        assert (len(program.spool), program.spool.refused()) == (0, [])
    versions = [(event.content, event.created_at) for event in fake.events if event.kind == KIND]
    kept = [("one", NOW + 62)] if ahead == 61 else []
    assert versions == [*kept, ("two", NOW)]


async def test_what_was_stored_since_is_not_replaced_by_a_version_that_is_dated_after_a_deletion(
    fake: FakeRelay, path: Path
) -> None:
    latest(fake)
    await fake.stop()
    async with Program(fake, path) as program:
        await program.write("one")
    await fake.start()
    async with Client(fake.url, robot, timeouts=TIMEOUTS, now=lambda: NOW) as other:
        await other.publish(robot.sign(DELETION, [["a", f"{KIND}:{robot.pubkey}:a"]], "", NOW + 61))
        # Of two versions of one second the lower id would win.
        since = [robot.sign(KIND, [["d", "a"]], f"of the other {n}", NOW + 62) for n in range(20)]
        await other.publish(max(since, key=lambda event: event.id))
    take = fake.on["EVENT"]

    async def refuse_the_first(visitor: Visitor, frame: list[Any]) -> None:
        if frame[1]["created_at"] == NOW:  # before it looks at versions
            await visitor.say_no(frame[1]["id"], "blocked: deleted")
        else:
            await take(visitor, frame)

    fake.on["EVENT"] = refuse_the_first
    async with Program(fake, path) as program:
        await program.client.wait_connected()
        assert program.spool is not None
        spool = program.spool
        await until(lambda: len(spool) == 0)
        assert program.spool.refused() == []
    versions = [event.content for event in fake.events if event.kind == KIND]
    assert [text[:12] for text in versions] == ["of the other"]


async def test_a_version_that_cannot_be_dated_after_a_deletion_is_kept_as_refused(
    fake: FakeRelay, path: Path
) -> None:
    latest(fake)
    take = fake.on["EVENT"]

    async def refuse_ahead(visitor: Visitor, frame: list[Any]) -> None:
        if frame[1]["created_at"] > NOW + 900:
            await visitor.say_no(frame[1]["id"], "invalid: created_at: in the future")
        else:
            await take(visitor, frame)

    fake.on["EVENT"] = refuse_ahead
    await fake.stop()
    async with Program(fake, path) as program:
        await program.write("one")
    await fake.start()
    async with Client(fake.url, robot, timeouts=TIMEOUTS, now=lambda: NOW) as other:
        tags = [["a", f"{KIND}:{robot.pubkey}:a"]]
        await other.publish(robot.sign(DELETION, tags, "", NOW + 900))
    async with Program(fake, path) as program:
        await program.client.wait_connected()
        assert await program.write("two", d="b") is Outcome.STORED
        assert program.spool is not None
        (refused,) = program.spool.refused()
        assert (refused.event.content, refused.reason) == (
            "one",
            "invalid: created_at: in the future",
        )


async def test_a_spooled_version_made_from_another_than_the_stored_one_is_kept_as_refused(
    fake: FakeRelay, path: Path
) -> None:
    """What it changes would be lost in silence."""
    latest(fake)
    await fake.stop()
    async with Program(fake, path) as program:
        written = await program.writer.write(KIND, "a", version("mine"), lambda: None)
        assert written.outcome is Outcome.QUEUED
        fake.events.append(robot.sign(KIND, [["d", "a"]], "theirs", NOW - 1))
        await fake.start()
        await program.client.wait_connected()
        assert await program.write("last", d="last") is Outcome.STORED  # it waits for the backlog
        assert program.spool is not None
        assert [(event.content, why) for event, why in program.spool.refused()] == [
            ("mine", ANOTHER)
        ]
    assert contents(fake) == ["theirs", "last"]


async def test_a_version_is_made_again_as_long_as_others_write_and_not_dated_ahead(
    fake: FakeRelay, maybe_path: Path | None
) -> None:
    known: list[Event] = []

    async def another_was_faster(visitor: Visitor, frame: list[Any]) -> None:
        if len(known) == 9:
            fake.on["EVENT"] = fake.take
        known.append(robot.sign(KIND, [["d", "a"]], f"theirs {len(known)}", NOW - 60 + len(known)))
        await visitor.say_no(frame[1]["id"], ANOTHER)

    fake.on["EVENT"] = another_was_faster
    async with Program(fake, maybe_path) as program:
        await program.client.wait_connected()
        newest = lambda: known[-1] if known else None  # noqa: E731
        written = await program.writer.write(KIND, "a", version("mine"), newest)
        assert not program.spool
    assert written.outcome is Outcome.STORED
    assert written.event.tags == [["d", "a"], ["made-from", known[9].id, str(NOW - 51)]]
    assert {frame[1]["created_at"] for frame in fake.verbs("EVENT")} == {NOW}


async def test_a_version_that_is_refused_without_another_one_to_be_seen_is_given_up(
    fake: FakeRelay, maybe_path: Path | None
) -> None:
    fake.on["EVENT"] = refuse(ANOTHER)
    async with Program(fake, maybe_path) as program:
        await program.client.wait_connected()
        with pytest.raises(PublishRefused, match="another version is stored"):
            await program.writer.write(KIND, "a", version("mine"), lambda: None)
        assert not program.spool
    assert len(fake.verbs("EVENT")) == 4


async def test_a_spooled_version_older_than_the_stored_one_is_dropped(
    fake: FakeRelay, path: Path
) -> None:
    latest(fake)
    await fake.stop()
    async with Program(fake, path) as program:
        await program.write("of this morning")
        fake.events.append(robot.sign(KIND, [["d", "a"]], "newer", NOW + 60))
        await fake.start()
        await wait_until_sent(program)
    assert contents(fake) == ["newer", "last"]


@pytest.mark.parametrize("passing", ["rate-limited: slow down", "error: the store is busy"])
async def test_a_temporarily_refused_write_is_retried_without_blocking_others(
    fake: FakeRelay, path: Path, monkeypatch: pytest.MonkeyPatch, passing: str
) -> None:
    monkeypatch.setattr(writer_room, "_PAUSE_S", 0.01)
    let_in = asyncio.Event()

    async def put_off(visitor: Visitor, frame: list[Any]) -> None:
        if frame[1]["content"] == "one" and not let_in.is_set():
            await visitor.say_no(frame[1]["id"], passing)
        else:
            await fake.take(visitor, frame)

    fake.on["EVENT"] = put_off
    async with Program(fake, path) as program:
        await program.client.wait_connected()
        assert await program.write("one") is Outcome.QUEUED
        assert await program.write("two", d="b") is Outcome.STORED
        let_in.set()
        await fake.until(lambda: len(fake.events) == 2)
    assert contents(fake) == ["two", "one"]


async def test_what_waits_behind_many_refused_writes_is_sent(
    fake: FakeRelay, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A co-member who filled the quota of a group kept an agent's deletions from the relay."""
    monkeypatch.setattr(writer_room, "_PAUSE_S", 0.01)
    monkeypatch.setattr(writer_room, "_SEND_BATCH", 3)
    is_full = True

    async def answer(visitor: Visitor, frame: list[Any]) -> None:
        if is_full and frame[1]["content"] == "refused":
            await visitor.say_no(frame[1]["id"], "rate-limited: full: the group is full")
        else:
            await fake.take(visitor, frame)

    fake.on["EVENT"] = answer
    await fake.stop()
    async with Program(fake, path) as program:
        for number in range(8):
            await program.write("refused", d=f"{number}")
        await program.publish("sent")
        await fake.start()
        await fake.until(lambda: contents(fake) == ["sent"])
        is_full = False
        await fake.until(lambda: len(fake.events) == 9)
    assert contents(fake) == ["sent", *["refused"] * 8]


async def test_a_write_in_progress_is_not_sent_with_the_backlog(
    fake: FakeRelay, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(writer_room, "_PAUSE_S", 0.01)
    tries: list[list[Any]] = []
    two: list[list[Any]] = []

    async def answer(visitor: Visitor, frame: list[Any]) -> None:
        if frame[1]["content"] == "one":
            await visitor.say_no(frame[1]["id"], "rate-limited: slow down")
            tries.append(frame)
            if two and len(tries) > 5 and not fake.events:
                await fake.take(visitor, two[0])
        else:
            two.append(frame)
            tries.clear()

    fake.on["EVENT"] = answer
    async with Program(fake, path) as program:
        await program.client.wait_connected()
        assert await program.publish("one") is Outcome.QUEUED
        assert await program.publish("two") is Outcome.STORED
    assert len(two) == 1


async def test_a_write_waiting_for_login_is_kept_and_later_writes_report_it(
    fake: FakeRelay, path: Path
) -> None:
    await fake.stop()
    async with Program(fake, path) as program:
        await program.write("one")
        fake.on["EVENT"] = refuse("auth-required: writes need a login")
        await fake.start()
        await fake.until(lambda: bool(fake.verbs("EVENT")))
        with pytest.raises(PublishRefused, match="auth-required"):
            await program.write("two", d="b")
        assert program.spool is not None
        assert [event.content for event in program.spool.waiting()] == ["one"]


async def test_a_damaged_spool_stops_writes_with_instructions(fake: FakeRelay, path: Path) -> None:
    async with Program(fake, path) as program:
        await program.client.wait_connected()
        await program.write("one")
        for file in path.parent.iterdir():
            file.write_bytes(b"\xa5" * file.stat().st_size)
        with pytest.raises(SpoolDamaged, match="move the file away"):
            await program.write("two")
        with pytest.raises(ClientError, match="move the file away"):
            await program.write("three")


async def test_writing_outside_the_async_with_raises(fake: FakeRelay, path: Path) -> None:
    async with Program(fake, path) as program:
        pass
    with pytest.raises(ClientClosed):
        await program.write("one")


async def test_a_cancelled_write_is_still_sent(fake: FakeRelay, path: Path) -> None:
    asked = asyncio.Event()

    async def think(visitor: Visitor, frame: list[Any]) -> None:
        asked.set()

    fake.on["EVENT"] = think
    async with Program(fake, path) as program:
        await program.client.wait_connected()
        task = asyncio.create_task(program.write("one"))
        await asked.wait()
        task.cancel()
        await asyncio.wait([task])
        fake.on["EVENT"] = fake.take
        await fake.until(lambda: bool(fake.events))
        await wait_until_sent(program)
    assert contents(fake) == ["one", "last"]


async def wait_until_sent(program: Program) -> None:
    """Until nothing waits any more: a write comes after what was written before it."""
    await program.client.wait_connected()
    assert await program.write("last", d="last") is Outcome.STORED
    assert program.spool is not None
    assert (len(program.spool), program.spool.refused()) == (0, [])
