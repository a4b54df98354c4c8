"""MemoryClient: offline reads, the cache, and queued writes."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager, contextmanager
from typing import TYPE_CHECKING, Any, ClassVar

import pytest

from relay.client import Client, ClientError, LeftInCache, QueryClosed, Unreachable
from relay.client import memory as client_memory
from relay.client.memory import MemoryClient
from relay.client.writer import Outcome
from relay.memory.draft import Draft
from relay.nostr.filters import Filter
from tests.cast import robot, rover
from tests.harness.erasure import left_of
from tests.harness.fake_relay import closing, refusing
from tests.harness.patience import ANSWER_S
from tests.unit.client.conftest import TIMEOUTS
from tests.unit.client.test_snowclaw import until

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator
    from pathlib import Path

    from relay.client.writer import Make
    from relay.nostr.event import Event
    from relay.nostr.keys import SecretKey
    from tests.harness.fake_relay import FakeRelay, Visitor

NOW = 1_700_000_000
KIND = 30078
ALL = {"kinds": [KIND]}
OLD, NEW = "ws://127.0.0.1:1", "ws://127.0.0.1:2"
"""Of relays that do not answer."""


class Notes(MemoryClient):
    NAME: ClassVar[str] = "notes"


@asynccontextmanager
async def notes(
    fake: FakeRelay, folder: Path | None, signer: SecretKey = robot
) -> AsyncIterator[Notes]:
    """One run of a program."""
    client = Client(
        fake.url, signer, timeouts=TIMEOUTS, now=lambda: NOW, start_offline=folder is not None
    )
    async with client, Notes(client, signer, folder=folder) as memory:
        yield memory


@asynccontextmanager
async def online(fake: FakeRelay, folder: Path) -> AsyncIterator[Notes]:
    async with notes(fake, folder) as memory:
        await memory._client.wait_connected()
        yield memory


@asynccontextmanager
async def at(url: str, folder: Path, signer: SecretKey = robot) -> AsyncIterator[Notes]:
    """One run of a program whose settings name this URL."""
    client = Client(url, signer, timeouts=TIMEOUTS, now=lambda: NOW, start_offline=True)
    async with client, Notes(client, signer, folder=folder) as memory:
        yield memory


def version(text: str, d: str = "a") -> Make:
    return lambda at: Draft(KIND, [["d", d]], text, at)


def note(text: str, d: str, at: int = NOW, by: SecretKey = robot) -> Event:
    return by.sign(KIND, [["d", d]], text, at)


async def texts(memory: Notes, filter_: dict[str, Any] = ALL) -> list[str]:
    return [event.content for event in await memory.read(filter_)]


def cached(memory: Notes) -> list[str]:
    assert memory._cache is not None
    return [event.content for event in memory._cache.matching(Filter())]


@contextmanager
def unwritable(memory: MemoryClient) -> Iterator[None]:
    """Its cache is, as on a disk that is read-only."""
    assert memory._cache is not None
    connection = memory._cache._file._connection
    connection.execute("PRAGMA query_only = ON")
    yield
    connection.execute("PRAGMA query_only = OFF")


def number_of(folder: Path, pattern: str) -> int:
    return len(list(folder.glob(pattern)))


def spools(folder: Path) -> set[Path]:
    return set(folder.glob("*.spool"))


def delete(folder: Path, pattern: str) -> None:
    for file in folder.glob(pattern):
        file.unlink()


def cut_short(folder: Path, pattern: str) -> None:
    for file in folder.glob(pattern):
        file.write_bytes(file.read_bytes()[:5000])


async def test_without_a_folder_every_read_queries_the_relay(fake: FakeRelay) -> None:
    async with notes(fake, None) as memory:
        assert await texts(memory) == []
        await fake.publish(note("one", "a"))
        assert await texts(memory) == ["one"]
        assert (await memory.waiting(), await memory.refused()) == (0, [])


async def test_without_a_folder_an_unreachable_relay_raises(fake: FakeRelay) -> None:
    await fake.stop()
    with pytest.raises(Unreachable):
        async with Notes(fake.url, robot):
            pass
    await fake.start()


async def test_cached_events_can_be_read_offline(fake: FakeRelay, tmp_path: Path) -> None:
    for text in ("one", "two"):
        await fake.publish(note(text, text, NOW + len(fake.events)))
    async with online(fake, tmp_path) as memory:
        assert memory.is_online
        assert await texts(memory) == ["two", "one"]
    await fake.stop()
    async with notes(fake, tmp_path) as memory:
        assert not memory.is_online
        assert await texts(memory) == ["two", "one"]
        assert await texts(memory, {"#d": ["one"]}) == ["one"]
    await fake.start()


async def test_a_connection_lost_during_a_query_falls_back_to_the_cache(
    fake: FakeRelay, tmp_path: Path
) -> None:
    await fake.publish(note("one", "a"))
    async with online(fake, tmp_path) as memory:
        assert await texts(memory) == ["one"]
        stopping: list[asyncio.Task[None]] = []

        async def go(visitor: Visitor, frame: list[Any]) -> None:
            stopping.append(asyncio.create_task(fake.stop()))

        fake.on["REQ"] = go
        async with asyncio.timeout(TIMEOUTS.deadline_s / 2):
            assert await texts(memory) == ["one"]
        await asyncio.gather(*stopping)
    await fake.start()


async def test_the_information_document_is_not_requested_offline(tmp_path: Path) -> None:
    async def heard(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read()
        writer.close()

    silent = await asyncio.start_server(heard, "127.0.0.1", 0)
    url = f"ws://127.0.0.1:{silent.sockets[0].getsockname()[1]}"
    client = Client(url, robot, timeouts=TIMEOUTS, start_offline=True)
    async with silent, client, Notes(client, robot, folder=tmp_path) as memory:
        async with asyncio.timeout(TIMEOUTS.deadline_s / 2):
            assert not await memory.searches()
            assert not await memory.offers("index_tags", "hk")


async def test_waiting_writes_are_merged_into_cached_reads(fake: FakeRelay, tmp_path: Path) -> None:
    await fake.publish(note("stored", "b"))
    async with online(fake, tmp_path) as memory:
        await memory.read(ALL)
    await fake.stop()
    async with notes(fake, tmp_path) as memory:
        written = await memory.write(KIND, "a", version("waits"))
        assert written.outcome is Outcome.QUEUED
        assert sorted(await texts(memory)) == ["stored", "waits"]
        assert await texts(memory, {"#d": ["a"]}) == ["waits"]
        assert await memory.waiting() == 1
    await fake.start()


async def test_an_offline_deletion_hides_its_events(fake: FakeRelay, tmp_path: Path) -> None:
    await fake.publish(note("stored", "b"))
    await fake.publish(note("stays", "c"))
    async with online(fake, tmp_path) as memory:
        await memory.read(ALL)
    await fake.stop()
    async with notes(fake, tmp_path) as memory:
        await memory.delete(await memory.read({"#d": ["b"]}))
        assert await texts(memory) == ["stays"]
        await memory.write(KIND, "b", version("again", "b"))
        assert sorted(await texts(memory)) == ["again", "stays"]
        (again,) = await memory.read({"#d": ["b"]})
        assert again.created_at > NOW  # newer than what the deletion takes
    await fake.start()


async def test_a_start_without_the_relay_reads_what_was_stored_last(
    fake: FakeRelay, tmp_path: Path
) -> None:
    """Whether it was sent at once or waited."""
    async with online(fake, tmp_path) as memory:
        await memory.write(KIND, "a", version("one"))
        await memory.read(ALL)
        await memory.write(KIND, "a", version("two"))
    await fake.stop()
    async with notes(fake, tmp_path) as memory:
        assert await texts(memory) == ["two"]
        await memory.write(KIND, "b", version("three", "b"))
        await fake.start()
        await memory._client.wait_connected()
        await until(lambda: sorted(cached(memory)) == ["three", "two"])
    await fake.stop()
    async with notes(fake, tmp_path) as memory:
        assert sorted(await texts(memory)) == ["three", "two"]
    await fake.start()


async def test_of_a_deleted_record_no_earlier_version_is_left(
    fake: FakeRelay, tmp_path: Path
) -> None:
    """The file had the version of the last read; the one deleted was stored since, by another
    program."""
    earlier, last = note("forget me", "a", NOW - 9), note("forget me too", "a", NOW)
    fake.events.append(earlier)
    async with online(fake, tmp_path) as memory:
        await memory.read(ALL)
        written = await memory.delete([last])
        assert written.event.tags == [
            ["e", last.id],
            ["a", f"{KIND}:{robot.pubkey}:a"],
            ["k", str(KIND)],
        ]
        assert cached(memory) == []
    assert not left_of(["forget me"], tmp_path)


async def test_a_deletion_is_as_new_as_what_it_deletes(fake: FakeRelay) -> None:
    """Else its address would not name a version that a clock ahead has dated; and the next version
    is newer than both."""
    async with notes(fake, None) as memory:
        deleted = await memory.delete([note("ahead", "a", NOW + 30), note("one", "b", NOW - 30)])
        assert deleted.event.created_at == NOW + 30
        for d in ("a", "b"):
            written = await memory.write(KIND, d, version("next", d))
            assert written.event.created_at == NOW + 31


async def test_an_answer_from_before_a_deletion_does_not_bring_the_text_back(
    fake: FakeRelay, tmp_path: Path
) -> None:
    """A read was under way: it changed the cache after the deletion had."""
    asked: list[tuple[Visitor, str]] = []

    async def without_end(visitor: Visitor, frame: list[Any]) -> None:
        if frame[2]["kinds"] != [KIND]:
            await fake.answer(visitor, frame)
            return
        for event in fake.rows(fake.filters_in(frame)):
            await visitor.show(frame[1], event)
        asked.append((visitor, frame[1]))

    forgotten = note("forget me", "a")
    fake.events += [forgotten, note("stays", "b")]
    async with online(fake, tmp_path) as memory:
        await memory.read(ALL)
        fake.on["REQ"] = without_end
        reading = asyncio.create_task(texts(memory))
        await until(lambda: asked)
        fake.on["REQ"] = fake.answer
        await memory.delete([forgotten])
        for visitor, sub in asked:
            await visitor.say("EOSE", sub)
        assert await reading == ["stays"]
        assert cached(memory) == ["stays"]
    assert not left_of(["forget me"], tmp_path)


@pytest.mark.parametrize("shares", [False, True], ids=["the program", "another one"])
async def test_a_relay_that_still_gives_what_was_deleted_does_not_bring_it_back(
    fake: FakeRelay, tmp_path: Path, *, shares: bool
) -> None:
    """One restored from a backup, or slow. Also to another program with this folder."""
    forgotten = note("forget me", "a")
    fake.events += [forgotten, note("stays", "b")]
    async with online(fake, tmp_path) as memory, online(fake, tmp_path) as other:
        await memory.read(ALL)
        await memory.delete([forgotten])
        reader = other if shares else memory
        assert await texts(reader) == ["stays"]
        assert [event.content async for page in reader.all_of(ALL) for event in page] == ["stays"]
        assert cached(memory) == ["stays"]
        await memory.write(KIND, "a", version("new"))
        assert await texts(reader) == ["new", "stays"]


async def test_what_the_relay_will_not_delete_is_read_again_when_that_is_given_up(
    fake: FakeRelay, tmp_path: Path
) -> None:
    kept = note("kept", "a")
    fake.events.append(kept)
    fake.on["EVENT"] = refusing("blocked: nothing is deleted here")
    await fake.stop()
    async with notes(fake, tmp_path) as memory:
        await memory.delete([kept])
        await fake.start()
        await memory._client.wait_connected()
        while await memory.waiting() > 0:  # noqa: ASYNC110  nothing rings when it is empty
            await asyncio.sleep(0)
        assert len(await memory.refused()) == 1
        assert await texts(memory) == []
        await memory.drop_refused()
        assert await texts(memory) == ["kept"]


async def test_refused_writes_are_sent_again_if_the_refusal_may_have_ended(
    fake: FakeRelay, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(client_memory, "_MAX_RETRIED", 4, raising=False)
    reasons = [
        "restricted: only agents may write memory",
        "invalid: content: too long",
        "blocked: deleted",
        "blocked: this event is banned here",
        "blocked: you are banned",
        "invalid: created_at: 905 s in the future, at most 900 s allowed",
        "pow: too little",
        "restricted: you are not a member",
        "restricted: one more than are sent again",
    ]
    async with online(fake, tmp_path) as memory:
        assert memory._spool is not None
        for number, reason in enumerate(reasons):
            memory._spool.put_refused(note(reason, str(number)), reason)
        await memory.retry_refused()
        async with asyncio.timeout(ANSWER_S):
            while await memory.waiting() > 0:  # noqa: ASYNC110  nothing rings when it is empty
                await asyncio.sleep(0)
        assert await memory.refused() == []
    assert [event.d for event in fake.events] == ["0", "4", "5", "7"]


async def test_refused_writes_are_sent_again_for_a_week(
    fake: FakeRelay, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    reason = "blocked: content matches a reject pattern"
    old, ahead = note("old", "old"), note("ahead", "ahead", NOW + 9)
    async with online(fake, tmp_path) as memory:
        assert memory._spool is not None
        for event in (old, ahead):
            memory._spool.put_refused(event, reason)
        again, dropped = await memory.retry_refused()
        assert ([each.event for each in again], dropped) == ([old, ahead], [])
        async with asyncio.timeout(ANSWER_S):
            while await memory.waiting() > 0:  # noqa: ASYNC110  nothing rings when it is empty
                await asyncio.sleep(0)
        for event in (old, ahead):
            memory._spool.put_refused(event, reason)
        # As if it was that long ago.
        monkeypatch.setattr(client_memory, "_RETRIED_S", 0)
        again, dropped = await memory.retry_refused()
        assert ([each.event for each in again], [each.event for each in dropped]) == (
            [ahead],
            [old],
        )
        assert await memory.refused() == []


async def test_an_offline_deletion_drops_the_text_from_the_cache_at_once(
    fake: FakeRelay, tmp_path: Path
) -> None:
    """It waits for the relay, maybe for days."""
    await fake.publish(note("stored", "b"))
    await fake.publish(note("stays", "c"))
    async with online(fake, tmp_path) as memory:
        await memory.read(ALL)
    await fake.stop()
    async with notes(fake, tmp_path) as memory:
        written = await memory.delete(await memory.read({"#d": ["b"]}))
        assert written.outcome is Outcome.QUEUED
        assert cached(memory) == ["stays"]
    assert left_of(["stays"], tmp_path)
    assert not left_of(["stored"], tmp_path)
    await fake.start()


@pytest.mark.parametrize("is_there", [True, False], ids=["stored", "queued"])
async def test_a_deletion_that_the_cache_cannot_follow_says_what_is_left_and_where(
    fake: FakeRelay, tmp_path: Path, *, is_there: bool
) -> None:
    """It failed as if nothing had been done: a full disk, a folder that is read-only now."""
    await fake.publish(note("stored", "b"))
    async with online(fake, tmp_path) as memory:
        found = await memory.read(ALL)
        if not is_there:
            await fake.stop()
            await until(lambda: not memory.is_online)
        with unwritable(memory), pytest.raises(LeftInCache) as left:
            await memory.delete(found)
        outcome = Outcome.STORED if is_there else Outcome.QUEUED
        assert (left.value.written.outcome, left.value.path.exists()) == (outcome, True)
        assert cached(memory) == []  # tried again
        first = "the relay has deleted it" if is_there else "the deletion waits for the relay"
        assert str(left.value).startswith(f"{first}, but {left.value.path} still holds the text: ")
        assert str(left.value).endswith("; delete this file and its -wal")
    assert [event.kind for event in fake.events[1:]] == ([5] if is_there else [])
    if not is_there:
        await fake.start()
    async with online(fake, tmp_path) as memory:
        await until(lambda: cached(memory) == [])


@pytest.mark.parametrize("by", ["id", "address"])
@pytest.mark.parametrize("began", ["online", "offline"])
async def test_what_another_machine_deleted_leaves_the_cache_at_the_next_start(
    fake: FakeRelay, tmp_path: Path, by: str, began: str
) -> None:
    """Also if this run reads something else, before one that cannot reach the relay."""
    deleted = [note(f"forget me {n}", f"gone {n}", NOW - n) for n in range(150)]
    for event in (*deleted, note("stays", "c")):
        fake.events.append(event)
    async with online(fake, tmp_path) as memory:
        assert len(await memory.read(ALL)) == 151
    for event in deleted:
        fake.events.remove(event)
    where = [["e", e.id] if by == "id" else ["a", f"{KIND}:{e.pubkey}:{e.d}"] for e in deleted]
    fake.events.append(robot.sign(5, where, "", NOW))
    fake.events.append(rover.sign(5, [["a", f"{KIND}:{robot.pubkey}:c"]], "", NOW))
    if began == "offline":
        await fake.stop()
    async with notes(fake, tmp_path) as memory:
        if began == "offline":
            assert len(cached(memory)) == 151
            await fake.start()
        await until(lambda: cached(memory) == ["stays"])
    await fake.stop()
    async with notes(fake, tmp_path) as memory:
        assert await texts(memory) == ["stays"]
    await fake.start()


async def test_the_cache_drops_events_the_relay_no_longer_has(
    fake: FakeRelay, tmp_path: Path
) -> None:
    await fake.publish(note("old", "a", NOW - 5))
    await fake.publish(note("other", "b"))
    async with online(fake, tmp_path) as memory:
        await memory.read(ALL)
        fake.events[0] = note("new", "a")
        # What was not asked for stays as it was.
        assert await texts(memory, {"#d": ["a"]}) == ["new"]
    await fake.stop()
    async with notes(fake, tmp_path) as memory:
        assert sorted(await texts(memory)) == ["new", "other"]
    await fake.start()


async def test_a_query_with_limit_removes_nothing_from_the_cache(
    fake: FakeRelay, tmp_path: Path
) -> None:
    await fake.publish(note("one", "a"))
    async with online(fake, tmp_path) as memory:
        await memory.read(ALL)
        await fake.publish(note("two", "b", NOW + 1))
        assert await texts(memory, {**ALL, "limit": 1}) == ["two"]
    await fake.stop()
    async with notes(fake, tmp_path) as memory:
        assert await texts(memory) == ["two", "one"]
    await fake.start()


async def test_a_deleted_cache_is_refilled_from_the_relay(fake: FakeRelay, tmp_path: Path) -> None:
    await fake.publish(note("one", "a"))
    for _ in range(2):
        async with online(fake, tmp_path) as memory:
            assert await texts(memory) == ["one"]
        delete(tmp_path, "*.cache*")


async def test_a_damaged_cache_loses_no_waiting_write(fake: FakeRelay, tmp_path: Path) -> None:
    await fake.publish(note("stored", "b"))
    async with online(fake, tmp_path) as memory:
        await memory.read(ALL)
    await fake.stop()
    async with notes(fake, tmp_path) as memory:
        await memory.write(KIND, "a", version("waits"))
    cut_short(tmp_path, "*.cache")
    async with notes(fake, tmp_path) as memory:
        assert await texts(memory) == ["waits"]
    await fake.start()
    async with online(fake, tmp_path) as memory:
        await fake.until(lambda: len(fake.events) == 2)
        assert sorted(await texts(memory)) == ["stored", "waits"]


async def test_two_keys_in_one_folder_have_separate_files(fake: FakeRelay, tmp_path: Path) -> None:
    await fake.publish(note("one", "a"))
    async with online(fake, tmp_path) as memory:
        await memory.read(ALL)
    await fake.stop()
    async with notes(fake, tmp_path, rover) as memory:
        assert await texts(memory) == []
    assert number_of(tmp_path, "notes-*.cache") == 2
    await fake.start()


async def test_all_spellings_of_a_url_are_one_relay(fake: FakeRelay, tmp_path: Path) -> None:
    await fake.stop()
    for url in (fake.url, f"{fake.url}/", fake.url.replace("ws://", "WS://")):
        client = Client(url, robot, timeouts=TIMEOUTS, start_offline=True)
        async with client, Notes(client, robot, folder=tmp_path) as memory:
            await memory.write(KIND, "a", version("one"))
    assert number_of(tmp_path, "*.spool") == 1
    await fake.start()


async def test_writes_that_wait_for_another_address_are_named_and_sent_once_renamed(
    fake: FakeRelay, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with at(OLD, tmp_path) as memory:
        await memory.write(KIND, "a", version("one"))
        await memory.write(KIND, "b", version("two"))
    (old,) = spools(tmp_path)
    assert caplog.messages == []
    async with at(fake.url, tmp_path) as memory:
        assert await memory.waiting() == 0
    (said,) = caplog.messages
    (new,) = spools(tmp_path) - {old}
    address = OLD.removeprefix("ws://")
    assert said.startswith(f"2 writes wait in {old} for the relay at {address}, not for {fake.url}")
    assert said.endswith(f" rename that file to {new.name}")
    old.rename(new)
    async with at(fake.url, tmp_path):
        await fake.until(lambda: len(fake.events) == 2)
    assert len(caplog.messages) == 1


async def test_of_an_address_whose_cache_was_deleted_the_writes_are_named_too(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with at(OLD, tmp_path) as memory:
        await memory.write(KIND, "a", version("one"))
    delete(tmp_path, "*.cache*")
    async with at(NEW, tmp_path):
        pass
    (said,) = caplog.messages
    assert said.startswith("1 write waits in ")
    assert f" for another relay, not for {NEW}: " in said


async def test_of_other_keys_of_what_was_refused_and_of_damaged_files_nothing_is_said(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with at(OLD, tmp_path, rover) as memory:
        await memory.write(KIND, "a", version("one"))
    async with at(OLD, tmp_path) as memory:
        written = await memory.write(KIND, "a", version("one"))
        assert memory._spool is not None
        memory._spool.refuse(written.event.id, "blocked: no")
    (tmp_path / "notes-damaged.spool").write_text("no database")
    async with at(NEW, tmp_path):
        pass
    assert caplog.messages == []


async def test_an_offline_version_is_newer_than_the_cached_one(
    fake: FakeRelay, tmp_path: Path
) -> None:
    await fake.publish(note("stored", "a", NOW + 30))
    async with online(fake, tmp_path) as memory:
        await memory.read(ALL)
    await fake.stop()
    async with notes(fake, tmp_path) as memory:
        written = await memory.write(KIND, "a", version("newer"))
        assert written.event.created_at == NOW + 31
    await fake.start()


async def test_queued_refusals_are_kept_until_dropped(fake: FakeRelay, tmp_path: Path) -> None:
    await fake.stop()
    async with notes(fake, tmp_path) as memory:
        await memory.write(KIND, "a", version("one"))
    fake.on["EVENT"] = refusing("restricted: only agents may write memory")
    await fake.start()
    async with online(fake, tmp_path) as memory:
        await fake.until(lambda: bool(fake.verbs("EVENT")))
        fake.on["EVENT"] = fake.take
        await memory.write(KIND, "b", version("two", "b"))  # comes after what waited
        (refused,) = await memory.refused()
        assert refused.event.content == "one"
        assert refused.reason == "restricted: only agents may write memory"
        await memory.drop_refused()
        assert (await memory.refused(), await memory.waiting()) == ([], 0)


async def test_a_closed_query_does_not_fall_back_to_the_cache(
    fake: FakeRelay, tmp_path: Path
) -> None:
    await fake.publish(note("one", "a"))
    async with online(fake, tmp_path) as memory:
        await memory.read(ALL)
        fake.on["REQ"] = closing("restricted: not for you")
        with pytest.raises(QueryClosed, match="not for you"):
            await memory.read(ALL)


async def test_what_a_key_may_not_read_any_more_leaves_its_cache(
    fake: FakeRelay, tmp_path: Path
) -> None:
    await fake.publish(note("theirs", "a"))
    for why, left in (("error: not now", ["theirs"]), ("restricted: not now", [])):

        async def close(visitor: Visitor, frame: list[Any], why: str = why) -> None:
            await visitor.say("CLOSED", frame[1], why)

        async with online(fake, tmp_path) as memory:
            fake.on["REQ"] = fake.answer
            await memory.read(ALL)
            fake.on["REQ"] = close
            with pytest.raises(QueryClosed, match="not now"):
                await memory.read(ALL)
        await fake.stop()
        async with notes(fake, tmp_path) as memory:
            assert await texts(memory) == left
        await fake.start()


async def test_a_refused_login_raises_instead_of_returning_nothing(
    fake: FakeRelay, tmp_path: Path
) -> None:
    fake.challenges_at_once = True
    fake.on["AUTH"] = refusing("invalid: another relay")
    async with online(fake, tmp_path) as memory:
        with pytest.raises(ClientError, match="refused the login: invalid: another relay"):
            await memory.read(ALL)


async def test_results_of_several_filters_are_merged_newest_first(fake: FakeRelay) -> None:
    await fake.publish(note("one", "a"))
    await fake.publish(note("two", "b", NOW + 2))
    await fake.publish(note("three", "c", NOW + 1, rover))
    async with notes(fake, None) as memory:
        found = await memory.read({"authors": [robot.pubkey]}, {"authors": [rover.pubkey]})
        assert [event.content for event in found] == ["two", "three", "one"]
