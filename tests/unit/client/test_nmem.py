"""Nmem on a connection: what it records, finds, sends and fetches."""

from __future__ import annotations

import asyncio
import json
import sqlite3
from contextlib import asynccontextmanager, closing
from typing import TYPE_CHECKING, Any

import orjson
import pytest
from aiohttp import web

from relay.client import Client
from relay.client.errors import ClientError, QueryClosed, Unanswered
from relay.client.nmem import Nmem, NotFound, Order, import_db, retries, summaries
from relay.client.nmem import memory as memory_module
from relay.client.nmem.apply import bind, drop_deleted, put_all
from relay.client.nmem.database import CacheUnusable
from relay.client.nmem.import_db import Imported
from relay.client.nmem.removal import Purge, purge, sweep
from relay.client.nmem.settings import find_nmem_settings
from relay.client.nmem.summaries import endpoint_of, summarise_all, summarise_next
from relay.client.nmem.sync import fetch
from relay.client.nmem.updates import summarise
from relay.client.settings import FILE
from relay.errors import ConfigFaults, Invalid, UserError
from relay.memory.fence import attributed, fenced
from relay.memory.nmem.records import Observation, Source, observation_draft
from relay.memory.nmem.summary import Summary
from relay.memory.secrets import SecretFilter, Sensitivity
from relay.nostr.event import event_from, weight_of
from relay.nostr.filters import FilterTerms
from relay.nostr.nip09 import named_by
from tests.cast import alice, owner, robot, rover, stranger
from tests.harness import fake_relay
from tests.harness.fake_relay import FakeRelay, refusing
from tests.harness.web_server import answering
from tests.unit.client.conftest import TIMEOUTS
from tests.unit.client.nmem_cache import (
    DAY,
    NOW,
    a_session,
    cache,
    fetch_all,
    query,
    rows,
    sent,
    summary_of,
    told,
)
from tests.unit.client.test_writer import latest

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable
    from pathlib import Path

    from relay.nostr.event import Event
    from relay.nostr.keys import SecretKey
    from tests.harness.fake_relay import Visitor


@asynccontextmanager
async def nmem(
    fake: FakeRelay | str,
    path: Path,
    signer: SecretKey = robot,
    now: int = NOW,
    **options: Any,
) -> AsyncIterator[Nmem]:
    """Robot and rover trust each other."""
    options = {"agents": [robot.pubkey, rover.npub], **options}
    url = fake if isinstance(fake, str) else fake.url
    client = Client(url, signer, timeouts=TIMEOUTS, now=lambda: now, start_offline=True)
    async with client, Nmem(client, signer, path / f"{signer.pubkey[:8]}.db", **options) as memory:
        yield memory


@asynccontextmanager
async def two_with_a_summary(fake: FakeRelay, path: Path) -> AsyncIterator[tuple[Nmem, Nmem]]:
    """Two machines of robot's that have the session "s" with the summary "launch"."""
    async with (
        nmem(fake, path / "a", now=NOW + 500) as here,
        nmem(fake, path / "b", now=NOW + 900) as there,
    ):
        a_session(here.database)
        with here.database.transaction() as db:
            summarise(db, "s", Summary("launch"), None)
        await here.sync()
        await there.sync()
        yield here, there


# -- recorded and found ---------------------------------------------------------------------------


async def test_string_names_are_accepted_for_enums(fake: FakeRelay, tmp_path: Path) -> None:
    async with Nmem(fake.url, robot, f"{tmp_path}/plain.db", "hush") as memory:
        assert memory.database.is_encrypted
        hook = {"hook_event_name": "SessionStart", "session_id": "s", "cwd": str(tmp_path)}
        assert await memory.hook(hook) == ""
        prompt = await memory.prompt("s", "do it", "agent")
        await memory.observe("s", "command", "make tea")
        (found,) = await memory.search("tea", order_by="blended")
        assert found.prompt_id == prompt
        ended = await memory.end_session("s", {"intent": "tea", "learned": "boil first"})
        assert ended.summary == Summary("tea", learned=("boil first",))
    async with nmem(fake, tmp_path, rover) as other:
        with pytest.raises(CacheUnusable):
            await other.import_file(f"{tmp_path}/plain.db", "another")


async def test_words_that_mean_nothing_are_refused(fake: FakeRelay, tmp_path: Path) -> None:
    async with nmem(fake, tmp_path) as memory:
        await memory.session("s")
        with pytest.raises(Invalid, match="source must be user or agent"):
            await memory.prompt("s", "do it", "tool")
        with pytest.raises(Invalid, match="order_by must be relevance or blended"):
            await memory.search("tea", order_by="newest")
        with pytest.raises(Invalid, match="learned must be a string or an array of strings"):
            await memory.end_session("s", {"learned": 1})
        with pytest.raises(Invalid, match="must have an id"):
            await memory.session("")
        assert (await memory.counts()).sessions == 1


async def test_recorded_observations_are_found(fake: FakeRelay, tmp_path: Path) -> None:
    async with nmem(fake, tmp_path) as memory:
        await memory.session("s", "rook")
        prompt = await memory.prompt("s", "do it", Source.USER)
        first = await memory.observe("s", "file_edit", "/w/a.py", file_path="/w/a.py")
        second = await memory.observe("s", "git_commit", "git commit", tool_name="Bash")
        assert first is not None
        assert second is not None
        (edit, commit) = await memory.get([first, 99, second])
        assert (edit.prompt_id, edit.file_path, edit.project) == (prompt, "/w/a.py", "rook")
        assert [each.id for each in await memory.search("a.py", order_by=Order.BLENDED)] == [first]
        assert [each.id for each in await memory.file_history("/w/a.py")] == [first]
        assert [each.id for each in await memory.commits_of("/w/a.py")] == [second]
        assert {each.id for each in await memory.recent("rook")} == {first, second}
        assert [each.id for each in await memory.timeline(second, 1, 1)] == [first, second]
        ended = await memory.end_session("s", Summary("tea", next_steps=("cake",)))
        assert ended.summary is not None
        assert await memory.summaries("rook") == [ended]
        session, prompts, observations = await memory.trace("s")
        assert session == ended
        assert [each.content for each in prompts] == ["do it"]
        assert observations == [edit, commit]
        assert "- cake" in await memory.context("rook")
        assert await memory.context("rook", before=NOW) == ""
        assert await memory.last_session() == ended


async def test_missing_rows_raise_the_specified_texts(fake: FakeRelay, tmp_path: Path) -> None:
    async with nmem(fake, tmp_path) as memory:
        with pytest.raises(NotFound, match=r"^anchor observation not found$"):
            await memory.timeline(7)
        with pytest.raises(NotFound, match=r"^session not found: x$"):
            await memory.trace("x")
        for missing in (
            memory.end_session("x"),
            memory.prompt("x", "t"),
            memory.observe("x", "marker", "t"),
        ):
            with pytest.raises(NotFound, match=r"^session not found: x$"):
                await missing
        with pytest.raises(NotFound, match=r"^observation 7 not found$"):
            await memory.pin(7)
        with pytest.raises(UserError, match="a purge needs at least one condition"):
            await memory.purge(confirm=True)


@pytest.mark.proves("M-30")
async def test_secrets_leave_before_anything_is_stored(fake: FakeRelay, tmp_path: Path) -> None:
    secret = "password=hunter2"
    async with nmem(fake, tmp_path, secrets=SecretFilter(Sensitivity.STRICT, ["plum"])) as memory:
        await memory.session("s")
        await memory.prompt("s", f"use {secret}", Source.USER)
        number = await memory.observe("s", "command", f"curl {secret}")
        told = await memory.observe(
            "s",
            "edit",
            "tea",
            file_path=f"/w/{secret}",
            metadata={"response": [f"is {secret}"], "lines": 3},
        )
        marker = await memory.mark("plum", "rook")
        await memory.queue_task(f"use {secret}")
        assert number is not None
        assert told is not None
        first, edit, second = await memory.get([number, told, marker])
        assert (first.content, first.metadata) == ("curl [REDACTED]", {"redacted": True})
        assert edit.file_path == "/w/[REDACTED]"
        assert edit.metadata == {"response": ["is [REDACTED]"], "lines": 3}
        assert (second.content, second.metadata) == ("[REDACTED]", {"redacted": True})
        ended = await memory.end_session("s", {"intent": secret, "learned": ["plum", "tea"]})
        assert ended.summary == Summary("[REDACTED]", learned=("[REDACTED]", "tea"))
        assert query(memory.database, "SELECT prompt FROM _rk_tasks") == [("use [REDACTED]",)]
        await memory.sync()
    assert fake.events
    assert not [event for event in fake.events if "hunter2" in event.content]
    assert b"hunter2" not in (tmp_path / f"{robot.pubkey[:8]}.db").read_bytes()


async def test_a_marker_belongs_to_the_newest_session_of_its_project(
    fake: FakeRelay, tmp_path: Path
) -> None:
    async with nmem(fake, tmp_path) as memory:
        a_session(memory.database, "old", NOW - 9)
        a_session(memory.database, "new", NOW - 5)
        (here, alone) = await memory.get(
            [await memory.mark("tea", "rook"), await memory.mark("tea", "other")]
        )
        assert (here.session_id, here.obs_type, here.source_event) == (
            "new",
            "marker",
            "AgentMarker",
        )
        assert (alone.project, alone.content) == ("other", "tea")
        assert await memory.mark("tea", "other") == alone.id


@pytest.mark.proves("M-13")
async def test_a_hook_is_taken_by_the_class_too(fake: FakeRelay, tmp_path: Path) -> None:
    async with nmem(fake, tmp_path) as memory:
        start = {"hook_event_name": "SessionStart", "session_id": "s", "cwd": "/w/rook"}
        assert await memory.hook(json.dumps(start)) == ""
        assert await memory.last_session() is not None
        with pytest.raises(Invalid, match="not a JSON object"):
            await memory.hook("garbage")


# -- sent and fetched -----------------------------------------------------------------------------


@pytest.mark.proves("M-10", "M-11")
@pytest.mark.parametrize("relay", ["of ours", "of ours, too much to compare", "of others"])
async def test_two_machines_converge(
    fake: FakeRelay, tmp_path: Path, relay: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if relay != "of others":
        fake.information = {"memory": {"prefix_d_kinds": [30078, 78]}, "supported_nips": [77]}
        prefixes = FilterTerms(prefix_d_kinds=frozenset({30078, 78}))
        monkeypatch.setattr(fake_relay, "_TERMS", prefixes)
    if relay == "of ours, too much to compare":
        fake.most_records = 1
    later = NOW + 500
    async with (
        nmem(fake, tmp_path, now=later) as here,
        nmem(fake, tmp_path, rover, now=later) as there,
    ):
        a_session(here.database, "a")
        a_session(there.database, "b", NOW + 100)
        sent = await here.sync()
        assert (sent.sent, sent.refused, sent.waiting, sent.fetched) == (5, 0, 0, 0)
        assert (await there.sync()).fetched == 5
        assert (await here.sync()).fetched == 5
        await here.pin(await here.mark("tea", "rook"))
        assert (await here.sync()).sent == 2
        assert (await there.sync()).fetched == 2
        assert (await here.sync()).fetched == (await there.sync()).fetched == 0
        assert await here.counts() == await there.counts()
        assert (await here.counts()).pinned == 1
        found = [await each.search("tea OR py") for each in (here, there)]
        here_texts, there_texts = (sorted(hit.content for hit in hits) for hits in found)
        assert here_texts == there_texts
        assert len(here_texts) == 7
        before = fetch_all(here.database)
        assert await here.rebuild() == 12
        assert fetch_all(here.database) == before


@pytest.mark.proves("M-11")
async def test_a_refused_record_is_kept_with_its_reason_and_blocks_nothing(
    fake: FakeRelay, tmp_path: Path
) -> None:
    async def take(visitor: Visitor, frame: list[Any]) -> None:
        event = frame[1]
        if event["kind"] == 78 and "0.py" in event["content"]:
            await visitor.say_no(event["id"], "blocked: content matches a reject pattern")
        elif event["kind"] == 78 and "1.py" in event["content"]:
            await visitor.say_no(event["id"], "rate-limited: too fast")
        else:
            await fake.take(visitor, frame)

    fake.on["EVENT"] = take
    async with nmem(fake, tmp_path) as memory:
        a_session(memory.database)
        synced = await memory.sync()
        assert (synced.sent, synced.refused, synced.waiting) == (3, 1, 1)
        ((d, reason),) = await memory.refused()
        assert d.startswith("nmem:obs:s:")
        assert reason == "blocked: content matches a reject pattern"
        fake.on["EVENT"] = fake.take
        assert (await memory.sync()).sent == 1
        await memory.rebuild()
        assert await memory.refused() == [(d, reason)]
        assert (await memory.counts()).observations == 3


@pytest.mark.proves("M-11")
@pytest.mark.parametrize(
    ("reason", "left"),
    [
        ("restricted: only agents may write memory", 0),
        ("blocked: banned", 0),
        ("blocked: this event is banned here", 5),
        ("invalid: too large", 5),
    ],
)
async def test_what_was_refused_for_its_author_or_a_policy_is_sent_again_if_wanted(
    fake: FakeRelay, tmp_path: Path, reason: str, left: int
) -> None:
    """What was recorded before the operator listed the agent stayed on this machine for ever."""
    fake.on["EVENT"] = refusing(reason)
    async with nmem(fake, tmp_path) as memory:
        a_session(memory.database)
        assert (await memory.sync()).refused == 5
        again = await memory.sync(retries=True)
        assert (again.sent, again.refused, again.waiting) == (0, 5 - left, 0)
        fake.on["EVENT"] = fake.take
        assert (await memory.sync()).sent == 0
        assert (await memory.sync(retries=True)).sent == 5 - left
        assert len(await memory.refused()) == left


async def test_what_a_clock_that_was_ahead_dated_is_sent_when_its_date_has_passed(
    fake: FakeRelay, tmp_path: Path
) -> None:
    """It stayed on this machine for ever, though the agent was told that it was recorded."""
    fake.on["EVENT"] = refusing("invalid: created_at: 920 s in the future, at most 900 s allowed")
    async with nmem(fake, tmp_path) as memory:
        a_session(memory.database)
        assert (await memory.sync()).refused == 5
    fake.on["EVENT"] = fake.take
    async with nmem(fake, tmp_path, now=0) as memory:
        assert ((await memory.sync()).sent, len(await memory.refused())) == (0, 5)
    async with nmem(fake, tmp_path, now=2 * NOW) as memory:
        assert ((await memory.sync()).sent, await memory.refused()) == (5, [])


async def test_the_keeper_sends_refused_records_again_daily_and_after_a_change(
    fake: FakeRelay, tmp_path: Path
) -> None:
    day, hour = 86_400, 3_600
    async with nmem(fake, tmp_path) as memory, Client(fake.url, robot) as client:

        async def are_due(after: int, settings: str = "") -> bool:
            return await retries.are_due(client, memory.database, settings, NOW + after)

        a_session(memory.database)
        assert not await are_due(0), "nothing was refused"
        fake.on["EVENT"] = refusing("restricted: only agents may write memory")
        await memory.sync()
        assert not await are_due(0), "it has just been refused"
        assert not await are_due(day - 1)
        assert await are_due(day)
        assert not await are_due(day)
        fake.information = {"name": "another"}
        assert not await are_due(day + hour - 1), "a document may change with each request"
        assert await are_due(day + hour)
        assert await are_due(day + 2 * hour, "changed")
        assert not await are_due(day + 3 * hour, "changed")
        assert await are_due(0, "changed"), "the clock was set back"


@pytest.mark.proves("M-11")
async def test_an_unreachable_relay_raises_and_loses_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with FakeRelay() as gone:
        url = gone.url
    async with nmem(url, tmp_path) as memory:
        a_session(memory.database)
        monkeypatch.setattr(memory_module, "_RELAY_S", 0.1)
        for attempt in (memory.sync, memory.rebuild, memory.send):
            with pytest.raises(UserError, match="does not answer; records are queued"):
                await attempt()
        assert (await memory.counts()).waiting == 5


async def test_a_purge_deletes_at_the_relay(fake: FakeRelay, tmp_path: Path) -> None:
    async with nmem(fake, tmp_path) as here, nmem(fake, tmp_path, rover) as there:
        a_session(here.database)
        await here.sync()
        await there.sync()
        assert (await here.purge(session="s")).total == 5
        assert (await here.counts()).observations == 3  # not confirmed
        await here.purge(session="s", confirm=True)
        await here.sync()
        deletions = [event for event in fake.events if event.kind == 5]
        named = {id_ for event in deletions for id_ in event.tag_values("e")}
        assert [event.tag_values("k") for event in deletions] == [["30078"], ["78"]]
        fake.events = [event for event in fake.events if event.id not in named]
        assert (await there.sync()).deleted == 5
        assert rows(there.database, "sessions") == []


@pytest.mark.parametrize(
    "answer", ["rate-limited: slow down", "blocked: no deletions here", "blocked: deleted"]
)
@pytest.mark.parametrize("has_negentropy", [True, False])
async def test_what_was_purged_is_not_fetched_while_the_relay_has_it(
    fake: FakeRelay, tmp_path: Path, answer: str, *, has_negentropy: bool
) -> None:
    """It was told to the model at the next start of a session; after a refusal for ever."""
    if not has_negentropy:
        fake.most_records = 0

    async def put_off(visitor: Visitor, frame: list[Any]) -> None:
        if frame[1]["kind"] != 5:
            await fake.take(visitor, frame)
        else:
            await visitor.say_no(frame[1]["id"], answer)

    fake.on["EVENT"] = put_off
    async with nmem(fake, tmp_path) as memory:
        a_session(memory.database)
        await memory.pin(1)
        await memory.sync()
        await memory.purge(session="s", confirm=True)
        await memory.sync()
        for again in (False, True):
            if again:
                await memory.rebuild()
            synced = await fetch(memory._client, robot, memory.database, memory._sources)
            assert synced.fetched == 0
            assert rows(memory.database, "observations") == rows(memory.database, "sessions") == []
        fake.on["EVENT"] = fake.take
        await memory.sync()
        assert len(fake.events) == 6 + (2 if answer == "rate-limited: slow down" else 0)


def erase_what_is_deleted(fake: FakeRelay) -> None:
    """Let it do as a kind 5 says."""

    async def take(visitor: Visitor, frame: list[Any]) -> None:
        event = event_from(frame[1])
        if any(named_by(each, [event]) for each in fake.events if each.kind == 5):
            await visitor.say_no(event.id, "blocked: deleted")
            return
        await fake.take(visitor, frame)
        if event.kind == 5:
            gone = {each.id for each in named_by(event, fake.events)}
            fake.events = [each for each in fake.events if each.id not in gone]

    fake.on["EVENT"] = take


@pytest.mark.parametrize("left_by", ["this version", "an earlier version"])
async def test_a_purged_session_leaves_a_machine_that_ended_it_again(
    fake: FakeRelay, tmp_path: Path, left_by: str
) -> None:
    """Its summary was told at every start of a session there."""
    erase_what_is_deleted(fake)
    async with two_with_a_summary(fake, tmp_path) as (here, there):
        told(there.database, "Stop", NOW + 10)
        assert "launch" in await there.context("rook")
        await here.purge(session="s", confirm=True)
        await here.sync()
        if left_by == "an earlier version":
            query(there.database, "UPDATE _rk_outbox SET refusal = 'blocked: deleted'")
        synced = await there.sync()
        assert (synced.refused, synced.waiting, synced.deleted) == (0, 0, 5)
        assert "launch" not in await there.context("rook")
        assert rows(there.database, "sessions") == rows(there.database, "_rk_outbox") == []
        told(there.database, "SessionStart", NOW + 501, source="resume")
        await there.sync()
        await here.sync()
        recorded = [[row[0] for row in rows(each.database, "sessions")] for each in (here, there)]
        assert recorded == [["s"], ["s"]], "what is recorded after a purge stays"


async def test_a_session_without_its_purged_summary_stays_on_another_machine(
    fake: FakeRelay, tmp_path: Path
) -> None:
    erase_what_is_deleted(fake)
    async with two_with_a_summary(fake, tmp_path) as (here, there):
        told(there.database, "Stop", NOW + 10)
        await here.purge(search="launch", confirm=True)
        await here.sync()
        await there.sync()
        assert rows(there.database, "sessions") == rows(here.database, "sessions")
        assert len(rows(there.database, "observations")) == 3


@pytest.mark.parametrize("by", ["session", "search"])
@pytest.mark.parametrize("number", [1, 2])
@pytest.mark.parametrize("order", ["purged first", "ended first"])
async def test_a_purged_summary_does_not_come_back_from_a_machine_that_had_not_heard_of_it(
    fake: FakeRelay, tmp_path: Path, order: str, number: int, by: str
) -> None:
    """It ended the session again, in a version that is younger than the deletion."""
    conditions: dict[str, Any] = {"session": "s"} if by == "session" else {"search": "launch"}
    latest(fake)
    async with two_with_a_summary(fake, tmp_path) as (here, there):
        await here.purge(**conditions, confirm=True)
        if order == "purged first":
            await here.sync()
        for count in range(number):
            told(there.database, "Stop", NOW + 600 + count)
            if order == "ended first":
                await there.sync()
        assert "launch" in await there.context("rook")
        for each in (here, there, here):
            synced = await each.sync()
            assert (synced.refused, synced.waiting) == (0, 0)
        for each in (here, there):
            assert "launch" not in await each.context("rook")
            assert "launch" not in str(rows(each.database, "sessions"))
            assert rows(each.database, "_rk_outbox") == []
        assert rows(here.database, "sessions") == rows(there.database, "sessions")
        assert len(rows(here.database, "sessions")) == (0 if by == "session" else 1)
        assert "launch" not in str(fake.events)
        told(there.database, "SessionStart", NOW + 901, source="resume")
        for count in range(2):  # it begins anew, and goes on
            told(there.database, "Stop", NOW + 902 + count)
            assert (await there.sync()).deleted == 0
        await here.sync()
        assert rows(here.database, "sessions") == rows(there.database, "sessions")
        assert len(rows(here.database, "sessions")) == 1


async def test_a_late_purge_deletes_what_two_machines_ended_without_each_other(
    fake: FakeRelay, tmp_path: Path
) -> None:
    """The second version was refused for the first, and sent again without the one it was made
    from."""
    latest(fake)
    async with two_with_a_summary(fake, tmp_path) as (here, there):
        told(here.database, "Stop", NOW + 400)
        await here.sync()
        await here.purge(session="s", confirm=True)
        told(there.database, "Stop", NOW + 600)
        for each in (there, here, there):
            await each.sync()
        for each in (here, there):
            assert "launch" not in await each.context("rook")
        assert "launch" not in str(fake.events)


@pytest.mark.parametrize(
    "anew", ["after a purge there", "there alone", "here, while the relay puts the purge off"]
)
async def test_a_purge_that_comes_late_spares_what_was_made_of_nothing_that_it_deletes(
    fake: FakeRelay, tmp_path: Path, anew: str
) -> None:
    latest(fake)
    take = fake.on["EVENT"]

    async def put_off(visitor: Visitor, frame: list[Any]) -> None:
        if frame[1]["kind"] == 5:
            await visitor.say_no(frame[1]["id"], "rate-limited: slow down")
        else:
            await take(visitor, frame)

    async with (
        nmem(fake, tmp_path / "a", now=NOW + 500) as here,
        nmem(fake, tmp_path / "b", now=NOW + 900) as there,
    ):
        for each in (here, there):
            await each.sync()
        a_session(here.database)
        if anew != "there alone":
            await here.sync()
            await there.sync()
        await here.purge(session="s", confirm=True)
        if anew == "after a purge there":
            await there.purge(session="s", confirm=True)
            await there.sync()
        fake.on["EVENT"] = put_off
        goes_on = here if anew.startswith("here") else there
        for at in (NOW + 1_000,) if anew == "there alone" else (NOW + 901, NOW + 1_000):
            a_session(goes_on.database, at=at)
            await goes_on.sync()
        fake.on["EVENT"] = take
        for each in (here, there, here):
            await each.sync()
        for each in (here, there):
            assert rows(each.database, "_rk_outbox") == []
            assert [row[3] for row in rows(each.database, "sessions")] == [NOW + 1_005]


async def test_of_two_machines_that_end_a_session_the_later_version_is_kept(
    fake: FakeRelay, tmp_path: Path
) -> None:
    """Whichever is sent first, and though neither was made from the other."""
    latest(fake)
    async with (
        nmem(fake, tmp_path / "a", now=NOW + 500) as here,
        nmem(fake, tmp_path / "b", now=NOW + 500) as there,
    ):
        a_session(here.database, "s")
        a_session(here.database, "t", NOW + 100)
        await here.sync()
        await there.sync()
        for session, first, then in (("s", here, there), ("t", there, here)):
            told(first.database, "Stop", NOW + 300, session_id=session)
            told(then.database, "Stop", NOW + 310, session_id=session)
        for each in (here, there, here):
            synced = await each.sync()
            assert (synced.refused, synced.waiting, synced.deleted) == (0, 0, 0)
        assert rows(here.database, "sessions") == rows(there.database, "sessions")
        assert [row[3] for row in rows(here.database, "sessions")] == [NOW + 310, NOW + 310]


@pytest.mark.parametrize("deleted", ["obs", "prompt", "pin", "session"])
async def test_only_the_row_is_dropped_whose_record_is_refused_as_deleted(
    fake: FakeRelay, tmp_path: Path, deleted: str
) -> None:
    async def take(visitor: Visitor, frame: list[Any]) -> None:
        d = event_from(frame[1]).d
        if d.startswith(f"nmem:{deleted}:") and d not in refused:
            refused.append(d)
        if d in refused[:1]:
            await visitor.say_no(frame[1]["id"], "blocked: deleted")
        else:
            await fake.take(visitor, frame)

    refused: list[str] = []
    fake.on["EVENT"] = take
    tables = {name: f"_rk_{name}" for name in ("observations", "prompts", "pins", "sessions")}
    async with nmem(fake, tmp_path) as memory:
        a_session(memory.database, "s")
        a_session(memory.database, "t", NOW + 100)
        await memory.pin(2)
        before = {name: len(rows(memory.database, table)) for name, table in tables.items()}
        assert (await memory.sync()).deleted == 1
        after = {name: len(rows(memory.database, table)) for name, table in tables.items()}
        assert rows(memory.database, "_rk_outbox") == []
        assert sum(before.values()) - sum(after.values()) == 1
        assert [row[-1] for row in rows(memory.database, "observations")].count(1) == (
            0 if deleted == "pin" else 1
        )


async def test_what_is_purged_while_a_rebuild_fetches_does_not_come_back(
    fake: FakeRelay, tmp_path: Path
) -> None:
    erase_what_is_deleted(fake)

    async def purge_first(visitor: Visitor, frame: list[Any]) -> None:
        await fake.answer(visitor, frame)  # as it was before the purge
        if "authors" in frame[2] and not purged:
            purged.append(await memory.purge(session="s", confirm=True))
            await memory.send()

    purged: list[object] = []
    async with nmem(fake, tmp_path) as memory:
        a_session(memory.database)
        await memory.sync()
        fake.on["REQ"] = purge_first
        await memory.rebuild()
        assert purged
        assert rows(memory.database, "observations") == rows(memory.database, "sessions") == []


async def test_what_another_program_deletes_by_address_leaves_the_cache(
    fake: FakeRelay, tmp_path: Path
) -> None:
    """Only versions up to the date of the deletion, and none of another key's."""
    async with nmem(fake, tmp_path) as memory:
        a_session(memory.database)
        await memory.pin(1)
        await memory.sync()
        sent = [event for event in fake.events if event.pubkey == robot.pubkey]
        fake.events.clear()

        def delete(at: int, by: SecretKey = robot) -> None:
            where = [["a", f"{each.kind}:{robot.pubkey}:{each.d}"] for each in sent]
            fake.events.append(by.sign(5, where, "", at))

        delete(max(event.created_at for event in sent), rover)
        delete(min(event.created_at for event in sent) - 1)
        assert (await memory.sync()).deleted == 0
        delete(max(event.created_at for event in sent))
        assert (await memory.sync()).deleted == len(sent)
        assert rows(memory.database, "observations") == rows(memory.database, "sessions") == []


@pytest.mark.proves("M-28")
@pytest.mark.parametrize("has_negentropy", [True, False])
async def test_a_cache_takes_in_the_records_of_its_sources_only(
    fake: FakeRelay, tmp_path: Path, *, has_negentropy: bool
) -> None:
    if not has_negentropy:
        fake.most_records = 0
    for number, (key, group) in enumerate(
        [(stranger, None), (stranger, "trap"), (rover, None), (rover, "trap"), (alice, "den")]
    ):
        async with nmem(fake, tmp_path / str(number), key, group=group) as other:
            await other.pin(await other.mark(f"tea of {key.pubkey[:8]} in {group}", "rook"))
            await other.sync()

    async def recalled(**options: Any) -> list[str]:
        async with nmem(fake, tmp_path / "own", **options) as memory:
            await memory.sync()
            found = sorted(hit.content for hit in await memory.search("tea", limit=100))
            if options != {"agents": [], "group": "trap"}:
                assert await memory.rebuild() >= len(found)
                again = await memory.search("tea", limit=100)
                assert sorted(hit.content for hit in again) == found
            context = await memory.context("rook")
            assert [text for text in found if text not in context] == []
            return found

    theirs, of_rover = stranger.pubkey[:8], rover.pubkey[:8]
    assert await recalled(agents=[]) == []
    by_rover = [f"tea of {of_rover} in None", f"tea of {of_rover} in trap"]
    assert await recalled(agents=[rover.pubkey]) == by_rover
    in_den = f"tea of {alice.pubkey[:8]} in den"
    assert await recalled(agents=[], group="den") == [in_den]
    assert await recalled(agents=[rover.pubkey], group="den") == sorted([in_den, *by_rover])
    in_trap = [f"tea of {who} in trap" for who in (theirs, of_rover)]
    assert await recalled(agents=[], group="trap") == sorted(in_trap)
    assert await recalled(agents=[]) == []  # what came in before goes


async def test_what_the_settings_name_no_more_is_not_told_while_the_relay_is_away(
    fake: FakeRelay, tmp_path: Path
) -> None:
    for key in (rover, stranger):
        async with nmem(fake, tmp_path / key.pubkey[:8], key, group="den") as other:
            await other.mark(f"tea of {key.pubkey[:8]}", "rook")
            await other.sync()
    async with nmem(fake, tmp_path / "own", group="den") as memory:
        await memory.mark("tea of mine", "rook")
        await memory.sync()
        assert len(await memory.search("tea")) == 3
    await fake.stop()
    async with nmem(fake, tmp_path / "own", group="den") as memory:
        assert len(await memory.search("tea")) == 3
    for agents, number in (([rover.pubkey], 2), ([], 1)):
        async with nmem(fake, tmp_path / "own", agents=agents) as memory:
            assert len(await memory.search("tea")) == number
    await fake.start()
    async with nmem(fake, tmp_path / "own", agents=[], group="den") as memory:
        await memory.sync()
        assert len(await memory.search("tea")) == 3, "named again"


@pytest.mark.parametrize("has_negentropy", [True, False])
async def test_heavy_records_of_one_author_keep_away_none_of_others(
    fake: FakeRelay, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, has_negentropy: bool
) -> None:
    """They are more than one answer holds, and more together than was held: nothing came in, not
    even deletions, at this and each later synchronisation."""
    if not has_negentropy:
        fake.most_records = 0
    monkeypatch.setattr("relay.client.responses.MAX_ANSWER_BYTES", 200_000)
    monkeypatch.setattr("relay.client.nmem.sync._MAX_HELD", 400_000)
    for number in range(10):
        key, more = (rover, []) if number == 5 else (alice, [["x"]] * 400)
        seen = Observation("s", 1000 + number, "marker", "AgentMarker", f"tea {number}")
        draft = observation_draft(seen, "rook", "den")
        fake.events.append(key.sign(*draft._replace(tags=[*draft.tags, *more])))
    assert sum(map(weight_of, fake.events)) > 400_000
    async with nmem(fake, tmp_path, group="den") as memory:
        assert (await memory.sync()).fetched == 10
        assert len(await memory.search("tea", limit=100)) == 10
        assert (await memory.sync()).fetched == 0


async def test_app_data_of_others_is_not_fetched_as_records_of_nmem(
    fake: FakeRelay, tmp_path: Path
) -> None:
    """In an open group anybody may store it, with the tag of nmem's records."""
    fake.information = {"memory": {"prefix_d_kinds": [30078, 78]}}
    large = [
        alice.sign(30078, [["h", "den"], ["d", f"foo{n}"], ["t", "nmem"]], "x", 1) for n in "ab"
    ]
    draft = observation_draft(Observation("s", 1000, "marker", "AgentMarker", "tea"), "rook", "den")
    fake.events = [*large, alice.sign(*draft)]
    async with nmem(fake, tmp_path, group="den") as memory:
        assert (await memory.sync()).fetched == 1
    asked = [fake.filters_in(frame) for frame in fake.verbs("REQ")]
    assert not [row for filters in asked for row in fake.rows(filters) if row in large]


async def test_records_that_come_too_slowly_are_fetched_in_parts(
    fake: FakeRelay, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each synchronisation ended with the deadline, at the same place."""
    for number in range(20):
        seen = Observation("s", 1000 + number, "marker", "AgentMarker", f"tea {number}")
        fake.events.append(rover.sign(*observation_draft(seen, "rook")))
    asked: list[int] = []
    query_relay = Client.query

    async def query_slowly(client: Client, *filters: Any, **more: Any) -> list[Event]:
        ids = filters[0].get("ids", ()) if isinstance(filters[0], dict) else ()
        if ids:
            asked.append(len(ids))
        if len(ids) > 6:
            error = Unanswered("no answer within 30 s")
            error.events = 6
            raise error
        return await query_relay(client, *filters, **more)

    monkeypatch.setattr(Client, "query", query_slowly)
    async with nmem(fake, tmp_path) as memory:
        assert (await memory.sync()).fetched == 20
    assert asked == [20, 3, 3, 3, 3, 6, 2]


async def test_deletions_do_not_wait_for_records_of_others(fake: FakeRelay, tmp_path: Path) -> None:
    """What one author wrote could keep them away, however much it was."""

    async def refuse_records(visitor: Visitor, frame: list[Any]) -> None:
        if "ids" in frame[2]:
            await visitor.say("CLOSED", frame[1], "error: too busy")
        else:
            await fake.answer(visitor, frame)

    drafts = [
        observation_draft(Observation("s", at, "marker", "AgentMarker", f"tea {at}"), "rook")
        for at in (1000, 2000)
    ]
    first, second = (rover.sign(*draft) for draft in drafts)
    fake.events = [first]
    async with nmem(fake, tmp_path) as memory:
        assert (await memory.sync()).fetched == 1
        fake.events = [second, rover.sign(5, [["e", first.id]], "", 3000)]
        fake.on["REQ"] = refuse_records
        with pytest.raises(QueryClosed, match="too busy"):
            await memory.sync()
        assert rows(memory.database, "observations") == []


@pytest.mark.parametrize("held", [0, 2**28])
async def test_a_first_synchronisation_in_pages_gives_what_was_recorded(
    fake: FakeRelay, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, held: int
) -> None:
    """An observation that came before its prompt was linked to none, and the prompt then swept."""
    monkeypatch.setattr("relay.client.nmem.sync._FETCH_BATCH", 7)
    monkeypatch.setattr("relay.client.nmem.sync._MAX_COLLECTED", held)
    monkeypatch.setattr("relay.client.nmem.sync._PUT_S", 1_000.0, raising=False)
    async with (
        nmem(fake, tmp_path / "a", now=NOW + 2000) as here,
        nmem(fake, tmp_path / "b", now=NOW + 2001) as there,
    ):
        for number in range(10):
            a_session(here.database, f"s{number}", NOW + 100 * number)
        await here.sync()
        await there.sync()
        links = (
            "SELECT o.content, p.content FROM observations o"
            " LEFT JOIN prompts p ON p.id = o.prompt_id ORDER BY o.timestamp"
        )
        assert query(there.database, links) == query(here.database, links)
        assert sweep(there.database, NOW + 2 * DAY) == sweep(here.database, NOW + 2 * DAY)
        assert len(rows(there.database, "prompts")) == 10
        if held:  # in the order of their dates
            assert rows(there.database, "prompts") == rows(here.database, "prompts")


async def test_a_synchronisation_that_is_interrupted_keeps_what_it_fetched_before(
    fake: FakeRelay, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    is_fetched = asyncio.Event()

    async def hang(*_: Any) -> list[Event]:
        is_fetched.set()
        await asyncio.Event().wait()
        return []

    monkeypatch.setattr("relay.client.nmem.sync._FETCH_BATCH", 7)
    monkeypatch.setattr("relay.client.nmem.sync._PUT_S", 0.0, raising=False)
    async with (
        nmem(fake, tmp_path / "a", now=NOW + 2000) as here,
        nmem(fake, tmp_path / "b", now=NOW + 2001) as there,
    ):
        for number in range(10):
            a_session(here.database, f"s{number}", NOW + 100 * number)
        await here.sync()
        monkeypatch.setattr("relay.client.nmem.sync._missing_pins", hang)
        sync = asyncio.create_task(there.sync())
        await is_fetched.wait()
        sync.cancel()
        await asyncio.wait([sync])
        for table in ("prompts", "observations"):
            assert len(rows(there.database, table)) == len(rows(here.database, table)) > 0


@pytest.mark.proves("M-28")
async def test_a_cache_that_took_in_everything_is_cleaned_by_the_next_synchronisation(
    fake: FakeRelay, tmp_path: Path
) -> None:
    async with nmem(fake, tmp_path, stranger, group="trap") as other:
        await other.mark("tea", "rook")
        await other.sync()
    async with nmem(fake, tmp_path) as memory:
        own, owners = memory.pubkey, frozenset[str]()
        put_all(memory.database, fake.events, own, owners)
        assert len(await memory.search("tea")) == 1
        fake.events.clear()  # also what this key may no longer read
        await memory.sync()
        assert await memory.search("tea") == []


@pytest.mark.proves("M-28")
async def test_the_name_beside_an_npub_is_that_of_the_profile(
    fake: FakeRelay, tmp_path: Path
) -> None:
    async with nmem(fake, tmp_path, rover) as there, nmem(fake, tmp_path) as here:
        await there.pin(await there.mark("tea", "rook"))
        await there.sync()
        await here.sync()
        short = f"({rover.npub[:20]}…)"
        (found,) = await here.search("tea")
        assert found.author == f"unnamed {short}"
        fake.events.append(rover.sign(0, [], '{"name": "Rover\\n# (npub1owner)"}', NOW))
        await here.sync()
        (found,) = await here.search("tea")
        assert found.author == f"Rover {short}"
        assert f"tea (pinned) — by Rover {short}\n" in await here.context("rook")
        assert " — by " not in await there.context("rook")


async def test_ones_own_rows_missing_at_the_relay_stay_in_the_cache(
    fake: FakeRelay, tmp_path: Path
) -> None:
    async with nmem(fake, tmp_path) as memory:
        a_session(memory.database)
        await memory.pin(1)
        await memory.sync()
        a_session(memory.database, "unsent")
        fake.events.clear()
        synced = await memory.sync()
        assert (synced.deleted, synced.removed) == (0, 0)
        assert (await memory.counts()).observations == 6
        assert [each.is_pinned for each in await memory.get([1])] == [True]


@pytest.mark.parametrize(
    ("nips", "group", "left"),
    [([1, 29], "tea", 2), ([1], "tea", 3), ([1, 29], "theirs", 3)],
    ids=["with groups", "another relay", "in a group of somebody else"],
)
async def test_ones_own_row_that_an_admin_deleted_leaves_the_cache(
    fake: FakeRelay, tmp_path: Path, nips: list[int], group: str, left: int
) -> None:
    """A relay without groups does not check who may send a 9005; one with groups takes it, in a
    group that anybody may make, with ids that it no longer has."""
    fake.information = {"supported_nips": nips, "name": "a fake"}
    async with nmem(fake, tmp_path, group="tea") as memory:
        a_session(memory.database)
        await memory.sync()
        removed = next(event for event in fake.events if event.d.startswith("nmem:obs:"))
        fake.events.remove(removed)
        fake.events.append(owner.sign(9005, [["h", group], ["e", removed.id]], "", NOW))
        assert (await memory.sync()).deleted == 3 - left
        assert (await memory.counts()).observations == left


@pytest.mark.parametrize("has_negentropy", [True, False])
async def test_records_of_others_that_the_relay_no_longer_gives_leave_the_cache(
    fake: FakeRelay, tmp_path: Path, *, has_negentropy: bool
) -> None:
    """As after a 9005, a ban, a request to vanish or the end of their group: no kind 5 tells."""
    if not has_negentropy:
        fake.most_records = 0
    async with nmem(fake, tmp_path) as here, nmem(fake, tmp_path, rover) as there:
        a_session(here.database)
        await here.sync()
        a_session(there.database, "theirs")
        await there.end_session("theirs", Summary("poison"))
        await there.pin(await there.mark("poison", "rook"))
        await there.sync()
        await here.sync()
        assert "poison" in await here.context("rook")
        left = [event for event in fake.events if event.pubkey != rover.pubkey]
        fake.events, removed = left, len(fake.events) - len(left)
        synced = await here.sync()
        assert (synced.deleted, synced.removed) == (0, removed)
        assert "poison" not in await here.context("rook")
        assert await here.search("poison") == []
        assert [row[0] for row in rows(here.database, "sessions")] == ["s"]
        assert len(rows(here.database, "_rk_pins")) == 0
        assert (await here.counts()).observations == 3
        assert (await here.sync()).removed == 0


async def _not_found_in_listings(visitor: Visitor, frame: list[Any]) -> None:
    """As of a second with more events than the relay returns."""
    await visitor.say("EOSE", frame[1])


async def _refused(visitor: Visitor, frame: list[Any]) -> None:
    await visitor.say("CLOSED", frame[1], "error: could not read")


@pytest.mark.parametrize("why", ["listing", "refused", "no document", "no login", "refused login"])
async def test_an_answer_that_may_lack_records_removes_none(
    fake: FakeRelay, tmp_path: Path, why: str
) -> None:
    async with nmem(fake, tmp_path, rover) as there:
        await there.mark("tea", "rook")
        await there.sync()
    async with nmem(fake, tmp_path) as here:
        await here.sync()
    stored, answer = list(fake.events), fake.on["REQ"]

    async def by_id_only(visitor: Visitor, frame: list[Any]) -> None:
        await (answer if "ids" in frame[2] else _not_found_in_listings)(visitor, frame)

    async def all_but_by_id(visitor: Visitor, frame: list[Any]) -> None:
        await (_refused if "ids" in frame[2] else answer)(visitor, frame)

    match why:
        case "listing":
            fake.most_records = 0
            fake.on["REQ"] = by_id_only
        case "refused":
            fake.events.clear()
            fake.on["REQ"] = all_but_by_id
        case "no document":
            fake.events.clear()
            fake.information = []
        case "no login":
            fake.events.clear()
            fake.information = {"supported_nips": [1, 42]}
        case "refused login":
            fake.events.clear()
            fake.challenges_at_once = True
            fake.on["AUTH"] = refusing("error: try again")
    async with nmem(fake, tmp_path) as here:
        if why == "refused":
            with pytest.raises(QueryClosed):
                await here.sync()
        elif why == "refused login":
            with pytest.raises(ClientError, match="refused the login"):
                await here.sync()
            synced = await fetch(here._client, robot, here.database, here._sources)
            assert synced.removed == 0
        else:
            assert (await here.sync()).removed == 0
        assert len(await here.search("tea")) == 1
    fake.events, fake.most_records, fake.challenges_at_once = stored, 1_000, True
    fake.information = {"supported_nips": [1, 42]}
    fake.on["REQ"], fake.on["AUTH"] = answer, fake.log_in
    async with nmem(fake, tmp_path) as here:
        assert (await here.sync()).removed == 0
        fake.events.clear()
        assert (await here.sync()).removed == 2


@pytest.mark.proves("M-07")
async def test_the_relay_owner_can_pin_agents_observations(fake: FakeRelay, tmp_path: Path) -> None:
    fake.information = {"pubkey": owner.pubkey}
    async with nmem(fake, tmp_path) as agent, nmem(fake, tmp_path, owner) as user:
        a_session(agent.database)
        await agent.sync()
        await user.sync()
        await user.pin(2)
        await user.sync()
        await agent.sync()
        assert [each.is_pinned for each in await agent.get([1, 2])] == [False, True]
        await user.unpin(2)
        await user.sync()
        await agent.sync()
        assert [each.is_pinned for each in await agent.get([1, 2])] == [False, False]


@pytest.mark.parametrize("named", ["", "somebody", None, 7])
async def test_an_invalid_relay_owner_is_ignored(
    fake: FakeRelay, tmp_path: Path, named: object
) -> None:
    fake.information = {"pubkey": named}
    async with nmem(fake, tmp_path) as memory:
        a_session(memory.database)
        assert (await memory.sync()).sent > 0
        assert await memory.rebuild() > 0


async def test_of_pins_those_by_keys_that_count_are_read_only(
    fake: FakeRelay, tmp_path: Path
) -> None:
    """Each synchronisation read those of everybody: thousands of one member were megabytes."""
    fake.information = {"memory": {"prefix_d_kinds": [30078]}}
    async with nmem(fake, tmp_path) as memory:
        a_session(memory.database)
        await memory.sync()
    wanted = [frame[2] for frame in fake.verbs("NEG-OPEN")]
    pins = [each for each in wanted if each.get("#d") == ["nmem:pin:"]]
    assert pins
    assert all({robot.pubkey, rover.pubkey} <= {*each["authors"]} for each in pins)


async def test_pins_that_are_known_are_not_read_again(fake: FakeRelay, tmp_path: Path) -> None:
    """Another agent may pin any number of its records."""
    fake.information = {"memory": {"prefix_d_kinds": [30078]}}
    async with nmem(fake, tmp_path / "a") as here, nmem(fake, tmp_path / "b", rover) as other:
        await other.pin(await other.mark("tea", "rook"))
        await other.sync()
        await here.sync()
        assert len(rows(here.database, "_rk_pins")) == 1
        fake.seen.clear()
        await here.sync()
        assert len(rows(here.database, "_rk_pins")) == 1
    wanted = [each for _, _, *filters in fake.verbs("REQ") for each in filters]
    assert not [each for each in wanted if "ids" in each or each.get("#d") == ["nmem:pin:"]]


@pytest.mark.proves("M-07")
async def test_a_pin_deleted_at_the_relay_has_no_effect(fake: FakeRelay, tmp_path: Path) -> None:
    async with nmem(fake, tmp_path) as here, nmem(fake, tmp_path, rover) as there:
        a_session(here.database)
        await here.pin(1)
        await here.sync()
        await there.sync()
        assert [each.is_pinned for each in await there.get([1])] == [True]
        (pin,) = [event for event in fake.events if event.d.startswith("nmem:pin:")]
        fake.events.remove(pin)
        fake.events.append(robot.sign(5, [["e", pin.id]], "", NOW))
        assert (await there.sync()).deleted == 1
        assert [each.is_pinned for each in await there.get([1])] == [False]


async def test_a_cache_belongs_to_one_key(fake: FakeRelay, tmp_path: Path) -> None:
    path = tmp_path / "nmem.db"
    async with Client(fake.url, robot, timeouts=TIMEOUTS) as client, Nmem(client, robot, path):
        pass
    async with Client(fake.url, rover, timeouts=TIMEOUTS) as client:
        with pytest.raises(CacheUnusable, match=r"set another file as \[nmem\] db"):
            async with Nmem(client, rover, path):
                pass


async def test_records_shared_with_a_group_have_its_h_tag(fake: FakeRelay, tmp_path: Path) -> None:
    async with nmem(fake, tmp_path, group="den") as memory:
        a_session(memory.database)
        await memory.mark("tea", "rook")
        await memory.session("t", "rook")
        await memory.observe("t", "marker", "cake")
        await memory.prompt("t", "do it", Source.USER)
        await memory.pin(1)
        await memory.sync()
    named = {event.d: event.tag_values("h") for event in fake.events}
    # What a hook was told is recorded by the keeper, which names no group.
    assert [h for d, h in named.items() if d.startswith(("nmem:session:t", "nmem:pin:"))] == [
        ["den"],
        ["den"],
    ]
    assert sum(h == ["den"] for h in named.values()) == 5


# -- another program's file -----------------------------------------------------------------------

GROWN = """
CREATE TABLE sessions (id TEXT PRIMARY KEY, project TEXT NOT NULL, started_at INTEGER NOT NULL,
    ended_at INTEGER, signature TEXT, summary TEXT, mood TEXT);
CREATE TABLE prompts (id INTEGER PRIMARY KEY, session_id TEXT, timestamp INTEGER, source TEXT,
    content TEXT, tokens INTEGER);
CREATE TABLE observations (id INTEGER PRIMARY KEY, session_id TEXT, prompt_id INTEGER,
    timestamp INTEGER, obs_type TEXT, source_event TEXT, tool_name TEXT, file_path TEXT,
    content TEXT, metadata TEXT, is_pinned INTEGER DEFAULT 0, work_unit INTEGER);
CREATE TABLE tasks (id INTEGER PRIMARY KEY, prompt TEXT);
INSERT INTO sessions VALUES ('s', 'rook', 100, 200, '{"command": 1, "marker": 2}',
    '{"intent": "tea", "learned": "first wins", "mood": 3}', 'calm');
INSERT INTO sessions VALUES ('odd', 'rook', 100, 50, 'not JSON', '{"learned": 5}', NULL);
INSERT INTO sessions VALUES ('bad', 'rook', 'yesterday', NULL, NULL, NULL, NULL);
INSERT INTO prompts VALUES (7, 's', 110, 'user', 'password=hunter2 please', 9);
INSERT INTO prompts VALUES (8, 's', 111, 'nobody', 'x', 9);
INSERT INTO observations VALUES (41, 's', 7, 120, 'command', 'PostToolUse', 'Bash', NULL,
    'make token=abc', '{"failed": true, "response": "token=abc"}', 1, 3);
INSERT INTO observations VALUES (42, 'unknown', NULL, 130, 'brand_new', '', NULL, '/w/a', 'x',
    'not JSON', 0, 3);
INSERT INTO observations VALUES (43, 's', NULL, -5, 'command', '', NULL, NULL, 'x', NULL, 0, 3);
PRAGMA user_version = 12;
"""


@pytest.mark.proves("M-12")
async def test_a_database_of_twelve_migrations_is_read_as_the_document_names_it(
    fake: FakeRelay, tmp_path: Path
) -> None:
    path = tmp_path / "theirs.db"
    with sqlite3.connect(path) as theirs:
        theirs.executescript(GROWN)
    theirs.close()
    before = path.read_bytes()
    async with nmem(fake, tmp_path) as memory:
        done: list[int] = []
        assert await memory.import_file(path, progress=done.append) == Imported(
            sessions=2, prompts=1, observations=2, pins=1, skipped=3
        )
        assert sum(done) == 8
        again = await memory.import_file(path)
        assert again == Imported(skipped=3)
        session, prompts, (made,) = await memory.trace("s")
        assert session.signature == (("marker", 2), ("command", 1))
        assert session.summary == Summary("tea", ("first wins",))
        assert [prompt.content for prompt in prompts] == ["[REDACTED] please"]
        facts = {"failed": True, "response": "[REDACTED]"}
        assert (made.prompt_id, made.metadata, made.is_pinned) == (1, facts, True)
        assert made.content == "make [REDACTED]"
        odd, _, _ = await memory.trace("odd")
        assert (odd.ended_at, odd.signature, odd.summary) == (100, None, None)
        await memory.sync()
        before_rebuild = fetch_all(memory.database)
        await memory.rebuild()
        rebuilt = fetch_all(memory.database)
        assert rebuilt["sessions"] == before_rebuild["sessions"]
        assert len(rebuilt["observations"]) == 2
        assert [row[-1] for row in rebuilt["observations"]] == [1, 0]
    assert path.read_bytes() == before


@pytest.mark.proves("M-12")
@pytest.mark.parametrize("content", [b"", b"tea and biscuits" * 99, None])
async def test_an_invalid_nmem_database_is_reported(
    fake: FakeRelay, tmp_path: Path, content: bytes | None
) -> None:
    path = tmp_path / "theirs.db"
    if content is not None:
        path.write_bytes(content)
    async with nmem(fake, tmp_path) as memory:
        with pytest.raises(CacheUnusable, match=r"theirs\.db"):
            await memory.import_file(path)
    assert (path.read_bytes() if path.exists() else None) == content


async def test_a_view_in_the_database_of_somebody_else_is_not_read(
    fake: FakeRelay, tmp_path: Path
) -> None:
    """It may have rows without end."""
    path = tmp_path / "theirs.db"
    endless = "WITH RECURSIVE c(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM c)"
    with closing(sqlite3.connect(path)) as theirs:
        theirs.executescript(GROWN)
        theirs.execute("ALTER TABLE prompts RENAME TO others")
        theirs.execute(
            f"CREATE VIEW prompts AS {endless} SELECT n AS id, 's' AS session_id, 1 AS timestamp,"
            " 'user' AS source, 'x' AS content FROM c"
        )
    async with nmem(fake, tmp_path) as memory:
        with pytest.raises(CacheUnusable, match="prompts is no table"):
            await memory.import_file(path)


async def test_a_view_is_not_read_whatever_the_case_of_its_name(
    fake: FakeRelay, tmp_path: Path
) -> None:
    path = tmp_path / "theirs.db"
    with closing(sqlite3.connect(path)) as theirs:
        theirs.executescript(GROWN)
        theirs.execute("ALTER TABLE prompts RENAME TO others")
        theirs.execute("CREATE VIEW PROMPTS AS SELECT * FROM others")
    async with nmem(fake, tmp_path) as memory:
        with pytest.raises(CacheUnusable, match="prompts is no table"):
            await memory.import_file(path)


@pytest.mark.parametrize("encrypted", [False, True], ids=["plain", "SQLCipher"])
@pytest.mark.parametrize("table", ["sessions", "prompts", "observations"])
def test_generated_columns_in_the_database_of_somebody_else_are_not_read(
    tmp_path: Path, table: str, *, encrypted: bool
) -> None:
    """Reading one may take for ever. Nor may a table of the file answer for SQLite."""
    connect = pytest.importorskip("sqlcipher3").dbapi2.connect if encrypted else sqlite3.connect
    path = tmp_path / "theirs.db"
    with closing(connect(str(path))) as theirs:
        if encrypted:
            theirs.execute("PRAGMA key = 'tea'")
        theirs.executescript(GROWN)
        theirs.execute(f"ALTER TABLE {table} ADD COLUMN more AS (hex(zeroblob(9)))")
        theirs.execute("CREATE VIRTUAL TABLE pragma_table_xinfo USING fts5(hidden)")
        with pytest.raises(CacheUnusable, match=f"{table} has generated columns"):
            list(import_db._rows_of(theirs, table, path))


async def test_the_rows_of_a_database_hold_no_more_than_its_file(
    fake: FakeRelay, tmp_path: Path
) -> None:
    """The default of a column that was added later is in no row."""
    path = tmp_path / "theirs.db"
    with closing(sqlite3.connect(path)) as theirs:
        theirs.executescript(GROWN)
        theirs.execute("ALTER TABLE prompts DROP COLUMN content")
        rows = [(number, f"s{number}") for number in range(100, 140)]
        theirs.executemany(
            "INSERT INTO prompts (id, session_id, timestamp, source) VALUES (?, ?, 1, 'user')", rows
        )
        theirs.execute(f"ALTER TABLE prompts ADD COLUMN content DEFAULT '{'x' * 1_000_000}'")
        theirs.commit()
    async with nmem(fake, tmp_path) as memory:
        with pytest.raises(CacheUnusable, match="rows of prompts hold more than the file"):
            await memory.import_file(path)


async def test_few_large_rows_of_a_database_are_held_at_a_time(
    fake: FakeRelay, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(import_db, "_MAX_PART", 10)
    path = tmp_path / "theirs.db"
    with closing(sqlite3.connect(path)) as theirs:
        theirs.executescript(GROWN)
    parts: list[int] = []
    async with nmem(fake, tmp_path) as memory:
        await memory.import_file(path, progress=parts.append)
    assert sum(parts) == 8
    assert max(parts) < 4


# -- settings and summaries -----------------------------------------------------------------------


def client_file(home: Path, text: str) -> None:
    (home / FILE).parent.mkdir(parents=True, exist_ok=True)
    (home / FILE).write_text(text)


@pytest.mark.proves("M-26")
async def test_a_sentence_falls_back_to_any_of_its_words(fake: FakeRelay, tmp_path: Path) -> None:
    async with nmem(fake, tmp_path) as memory:
        await memory.session("s", "rook")
        kettle = await memory.observe("s", "command", "boil the kettle slowly")
        kettles = await memory.observe("s", "command", "descale both kettles")
        lamp = await memory.observe("s", "command", "mend the lamp")

        async def found(text: str, **page: Any) -> list[int]:
            return [each.id for each in await memory.search(text, **page)]

        assert await found("boil kettle") == [kettle]
        assert await found("how did we boil the kettles yesterday?") == [kettle, kettles]
        assert await found("how did we boil the kettles yesterday?", offset=1) == [kettles]
        assert await found("the lamp", offset=1) == []
        for exact in ('"boil the lamp"', "boil AND lamp", "boil lam*"):
            assert await found(exact) == []
        assert lamp is not None


def test_settings_are_found_below_the_home_folder(tmp_path: Path) -> None:
    _, settings = find_nmem_settings(tmp_path)
    assert settings.db == tmp_path / ".local/share/rookery/nmem.db"
    client_file(tmp_path, 'data = "~/d"\n[nmem]\nsensitivity = "strict"\nkey_file = "k"\n')
    _, settings = find_nmem_settings(tmp_path)
    assert settings.db == tmp_path / "d/nmem.db"
    assert settings.key_file == tmp_path / ".config/rookery/k"
    assert settings.sensitivity is Sensitivity.STRICT


@pytest.mark.proves("M-30")
@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ('sensitivty = "strict"', "did you mean sensitivity?"),
        ('colour = "red"', "known are db"),
        ("db = 5", "db: must be a string"),
        ('sensitivity = "loose"', "must be normal, strict, relaxed"),
        ('patterns = "x"', "patterns: must be a list of strings"),
        ('patterns = ["ok", "("]', "pattern '(' cannot be used"),
        ('summary_url = "ftp://x"\nsummary_model = "m"', "must begin with http://"),
        ('summary_model = "m"', "must be set together"),
    ],
)
def test_settings_that_cannot_be_used_are_named(tmp_path: Path, text: str, fault: str) -> None:
    client_file(tmp_path, f"[nmem]\n{text}\n")
    with pytest.raises(ConfigFaults) as faults:
        find_nmem_settings(tmp_path)
    assert fault in str(faults.value)
    assert "client.toml" in str(faults.value)


@asynccontextmanager
async def model(
    answer: object, asked: list[Any], meanwhile: Callable[[], object] = lambda: None
) -> AsyncIterator[str]:
    """An endpoint that always says the same. `meanwhile`: what happens before it answers."""

    async def complete(request: web.Request) -> web.Response:
        if request.path != "/v1/chat/completions":
            raise web.HTTPNotFound
        asked.append((request.headers.get("Authorization"), await request.json()))
        meanwhile()
        return web.Response(body=orjson.dumps(answer), content_type="application/json")

    async with answering(complete) as at:
        yield f"http://{at}/v1"


def said(text: object) -> object:
    return {"choices": [{"message": {"content": text}}]}


@pytest.mark.proves("M-06")
@pytest.mark.parametrize(
    ("answer", "intent"),
    [
        (said('```json\n{"intent": "tea", "learned": "password=hunter2"}\n```'), "tea"),
        (said("I cannot do that"), None),
        (said('{"intent": 5}'), None),
        ({"error": "busy"}, None),
        (said(None), None),
        ("nonsense", None),
        (
            said(
                [
                    {"type": "text", "text": '{"intent": "tea",'},
                    {"text": '"learned": "token=abcd"}'},
                ]
            ),
            "tea",
        ),
        (
            said('<think>{"intent": "no"}</think>\n{"intent": "tea", "learned": ["token=abcd"]}'),
            "tea",
        ),
    ],
)
async def test_a_session_is_summarised_by_the_configured_model(
    tmp_path: Path, answer: object, intent: str | None
) -> None:
    asked: list[Any] = []
    (tmp_path / "key").write_text("letmein\n")
    async with model(answer, asked) as url:
        client_file(
            tmp_path,
            f'[nmem]\nsummary_url = "{url}"\nsummary_model = "small"\n'
            f'summary_key_file = "{tmp_path}/key"\n',
        )
        _, settings = find_nmem_settings(tmp_path)
        with cache(tmp_path / "nmem.db") as database:
            a_session(database, "s")
            a_session(database, "empty", edits=1)
            once: set[tuple[str, int]] = set()
            assert await summarise_next(database, settings, NOW + 10, once) == 0  # it may go on
            assert asked == []
            for _ in range(2):
                await summarise_next(database, settings, NOW + 9999, once)
            found = dict(query(database, "SELECT id, summary FROM sessions"))
    ((key, question),) = asked
    assert key == "Bearer letmein"
    assert question["model"] == "small"
    assert "file_edit: /w/s/0.py" in question["messages"][1]["content"]
    if intent is None:
        assert found["s"] is None
    else:
        summary = json.loads(found["s"])
        assert (summary["intent"], summary["learned"]) == (intent, ["[REDACTED]"])


async def test_sessions_are_summarised_one_at_a_time(
    tmp_path: Path,
) -> None:
    asked: list[Any] = []
    async with model(said('{"intent": "tea"}'), asked) as url:
        client_file(tmp_path, f'[nmem]\nsummary_url = "{url}"\nsummary_model = "small"\n')
        _, settings = find_nmem_settings(tmp_path)
        with cache(tmp_path / "nmem.db") as database:
            a_session(database, "s")
            a_session(database, "t")
            once: set[tuple[str, int]] = set()
            written = [await summarise_next(database, settings, NOW + 9999, once) for _ in range(3)]
    assert written == [1, 1, 0]
    assert len(asked) == 2


@pytest.mark.parametrize(
    ("event", "is_summarised"), [("purge", False), ("deletion", False), ("Stop", True)]
)
async def test_a_summary_of_what_was_deleted_meanwhile_is_not_stored(
    tmp_path: Path, event: str, *, is_summarised: bool
) -> None:
    """It has the deleted text, and would be sent, and told at the next start of a session."""

    def meanwhile() -> None:
        if event == "purge":
            with database.transaction() as db:
                purge(db, Purge(id=2), NOW, is_confirmed=True)
        elif event == "deletion":
            drop_deleted(database, [(events[2].id, robot.pubkey)])
        else:
            told(database, "PostToolUse", NOW + 60, tool_name="Read", tool_input={"file_path": "x"})
            told(database, "Stop", NOW + 61)

    with cache(tmp_path / "nmem.db") as database:
        bind(database, robot.pubkey)
        a_session(database)
        events = sent(database)
        async with model(said('{"intent": "tea"}'), [], meanwhile) as url:
            client_file(tmp_path, f'[nmem]\nsummary_url = "{url}"\nsummary_model = "small"\n')
            _, settings = find_nmem_settings(tmp_path)
            assert await summarise_next(database, settings, NOW + 9999, set()) == is_summarised
        ((*_, summary),) = rows(database, "sessions")
        assert summary_of(summary) is None or is_summarised


def test_of_a_long_session_only_what_a_model_is_given_is_looked_through(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    looked_at: list[int] = []

    def noted(text: str, by: str) -> str:
        looked_at.append(len(text))
        return attributed(text, by)

    monkeypatch.setattr(summaries, "attributed", noted)
    recorded = [f"said: {number} Räuber\nzählen\n" * 20 for number in range(1_000)]
    recorded[40] = "ä" * 100_000
    whole = "\n".join("\n  ".join(text.splitlines()) for text in recorded)
    fence = fenced(whole[:40_000], "nmem session", "this machine")
    assert summaries._transcript_of(recorded) == fence
    assert max(looked_at) < 50_000
    assert summaries._transcript_of([]) == ""


@pytest.mark.proves("M-06")
@pytest.mark.parametrize(
    ("url", "endpoint"),
    [
        ("http://127.0.0.1:11434", "http://127.0.0.1:11434/v1/chat/completions"),
        ("http://h/v1/", "http://h/v1/chat/completions"),
        ("https://h/api/v1/chat/completions", "https://h/api/v1/chat/completions"),
        ("https://h/x/y?version=3", "https://h/x/y/chat/completions?version=3"),
    ],
)
def test_an_endpoint_is_named_by_its_server_its_api_or_itself(url: str, endpoint: str) -> None:
    assert endpoint_of(url) == endpoint


@pytest.mark.proves("M-06")
async def test_when_asked_sessions_are_summarised_at_once(tmp_path: Path) -> None:
    asked: list[Any] = []
    async with model(said('{"intent": "tea"}'), asked) as url:
        server = url.removesuffix("/v1")
        client_file(tmp_path, f'[nmem]\nsummary_url = "{server}"\nsummary_model = "small"\n')
        _, settings = find_nmem_settings(tmp_path)
        with cache(tmp_path / "nmem.db") as database:
            a_session(database, "s")
            a_session(database, "t")
            assert await summarise_all(database, settings, NOW + 5) == (2, 0)
            assert await summarise_all(database, settings, NOW + 5) == (0, 0)
            found = query(database, "SELECT summary FROM sessions")
    assert [json.loads(summary)["intent"] for (summary,) in found] == ["tea", "tea"]


async def test_the_refusal_of_an_endpoint_is_told(tmp_path: Path) -> None:
    async with model({}, []) as url:
        client_file(tmp_path, f'[nmem]\nsummary_url = "{url}/x"\nsummary_model = "m"\n')
        _, settings = find_nmem_settings(tmp_path)
        with cache(tmp_path / "nmem.db") as database:
            a_session(database)
            with pytest.raises(OSError, match="/v1/x/chat/completions: 404 Not Found: 404: Not F"):
                await summarise_all(database, settings, NOW + 5)


async def test_an_unreachable_endpoint_raises_oserror(tmp_path: Path) -> None:
    async with FakeRelay() as gone:
        url = gone.url.replace("ws://", "http://")
    client_file(tmp_path, f'[nmem]\nsummary_url = "{url}"\nsummary_model = "m"\n')
    _, settings = find_nmem_settings(tmp_path)
    with cache(tmp_path / "nmem.db") as database:
        a_session(database)
        with pytest.raises(OSError, match="chat/completions"):
            await summarise_next(database, settings, NOW + 9999, set())
