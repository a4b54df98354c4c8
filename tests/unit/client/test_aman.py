"""Aman on a connection: what it writes, what it makes of what it reads, and its tables."""

from __future__ import annotations

import asyncio
import gc
import json
import sqlite3
import threading
from contextlib import asynccontextmanager, closing
from typing import TYPE_CHECKING, Any

import aiosqlite
import pytest

from relay.client import Client, LeftInCache, PublishRefused
from relay.client import aman as aman_module
from relay.client.aman import Aman, Followed, Unreadable
from relay.client.aman_tables import Replaced, TablesUnusable, replace_rows, rows_in
from relay.client.writer import Outcome
from relay.errors import Invalid, UserError
from relay.memory.aman.records import Preference, Subscriptions, Summary, ToolCall, draft_of
from relay.nostr.event import event_from
from relay.nostr.filters import Filter
from tests.cast import robot, rover
from tests.golden import document
from tests.harness.erasure import left_of
from tests.harness.fake_relay import refusing
from tests.harness.patience import ANSWER_S
from tests.harness.super_journal import make_hot_journal
from tests.unit.client.conftest import TIMEOUTS
from tests.unit.client.test_memory_client import unwritable
from tests.unit.client.test_snowclaw import until

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    from relay.nostr.event import Event
    from relay.nostr.keys import SecretKey
    from tests.harness.fake_relay import FakeRelay, Visitor

GOLDEN: dict[str, Any] = document("memory/aman.json")
NOW = 1_700_000_000
KEY = "hex:" + bytes(range(32)).hex()
OTHER_KEY = "ff" * 32
ROOKERY = {"memory": {"index_tags": ["hk"]}, "limitation": {"max_limit": 500}}


@pytest.fixture
def fake(fake: FakeRelay) -> FakeRelay:
    fake.information = ROOKERY
    return fake


@pytest.fixture(autouse=True)
def no_key_around(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("NOSTR_SECRETBOX_KEY", raising=False)


@asynccontextmanager
async def aman(
    fake: FakeRelay,
    signer: SecretKey = robot,
    key: str | bytes | None = None,
    folder: Path | None = None,
) -> AsyncIterator[Aman]:
    client = Client(
        fake.url, signer, timeouts=TIMEOUTS, now=lambda: NOW, start_offline=folder is not None
    )
    async with client, Aman(client, signer, key, folder=folder) as memory:
        yield memory


async def everything(memory: Aman) -> None:
    """One record of each kind under `u`, and a second tool."""
    await memory.set_preference("u", "prefer_speed")
    await memory.set_summary("u", "U: hi\nA: hello", 1)
    await memory.add_tool("u", "weather", success=True, content="sunny", sender_id="user-1")
    await memory.add_tool("u", "search", success=False, content="nothing found", group_id="g")
    await memory.set_subscriptions("u", ["iran", "bitcoin"])


# -- writing --------------------------------------------------------------------------------------


@pytest.mark.proves("A-01", "A-02")
async def test_records_equal_those_of_aman(fake: FakeRelay) -> None:
    async with aman(fake) as memory:
        await memory.set_preference("user-1", "prefer_speed")
        await memory.add_tool(
            "hk",
            "weather",
            success=True,
            content="sunny",
            sender_id="user-1",
            created_at=1_700_000_002,
        )
    preference, tool = fake.events
    assert preference.tags == [
        ["d", "user-1:preference"],
        ["k", "aman_preference"],
        ["hk", "user-1"],
        ["v", "1"],
        ["ts", str(NOW)],
    ]
    assert preference.content == GOLDEN["plain"][0]["payload_json"]
    assert tool.d == "hk:74a3c70d8b877ec0452e1bb9b3ab0bfd683747757919ffbaef4e8bb4196ecd5c"
    assert (preference.created_at, tool.created_at) == (NOW, 1_700_000_002)


async def test_each_method_writes_its_kind_under_its_address(fake: FakeRelay) -> None:
    async with aman(fake) as memory:
        await everything(memory)
        await memory.clear("u", "user-1")
    assert [(event.kind, event.d.split(":")[1][:12]) for event in fake.events] == [
        (30093, "preference"),
        (30094, "summary"),
        (30095, fake.events[2].d[2:14]),
        (30095, fake.events[3].d[2:14]),
        (30097, "subscription"),
        (30096, fake.events[5].d[2:14]),
    ]


@pytest.mark.proves("A-10")
async def test_two_versions_in_one_second_have_two_times(fake: FakeRelay) -> None:
    async with aman(fake) as memory:
        await memory.set_preference("u", "one")
        await memory.set_preference("u", "two")
        assert await memory.get_preference("u") == Preference("u", "two", NOW + 1)
    assert [(event.created_at, event.tag("ts")) for event in fake.events] == [
        (NOW, str(NOW)),
        (NOW + 1, str(NOW + 1)),
    ]


async def test_unknown_fields_of_the_stored_version_are_kept(fake: FakeRelay) -> None:
    stored = Preference("u", "old", NOW - 9, {"mood": "calm"})
    draft = draft_of(stored)
    await fake.publish(robot.sign(draft.kind, draft.tags, draft.content, draft.created_at))
    async with aman(fake) as memory:
        await memory.set_preference("u", "new")
        found = await memory.get_preference("u")
    assert found == Preference("u", "new", NOW, {"mood": "calm"})


async def test_the_same_entry_again_is_a_duplicate(fake: FakeRelay) -> None:
    async with aman(fake) as memory:
        first = await memory.add_tool("u", "weather", success=True, content="sunny")
        again = await memory.add_tool("u", "weather", success=True, content="sunny")
    assert (first.outcome, again.outcome) == (Outcome.STORED, Outcome.DUPLICATE)


@pytest.mark.proves("A-27")
async def test_tool_content_is_truncated_to_two_thousand_characters(fake: FakeRelay) -> None:
    async with aman(fake) as memory:
        await memory.add_tool("u", "read", success=True, content="x" * 5000)
        (call,) = await memory.tools("u")
    assert call.content == "x" * 1997 + "..."


@pytest.mark.proves("A-15")
async def test_a_clear_applies_to_earlier_records_of_its_second_only(
    fake: FakeRelay,
) -> None:
    async with aman(fake) as memory:
        await memory.set_summary("u", "one", 1)
        await memory.set_summary("u", "two", 2)  # a second ahead of the clock
        await memory.add_tool("u", "before", success=True, content="")
        await memory.clear("u")
        snapshot = await memory.snapshot("u")
        assert (snapshot.summary, snapshot.tools) == (None, ())
        await memory.add_tool("u", "after", success=True, content="")
        await memory.set_summary("u", "three", 3)
        snapshot = await memory.snapshot("u")
    assert [row.record.tool_name for row in snapshot.tools] == ["after"]
    assert snapshot.summary is not None
    assert snapshot.summary.record.summary == "three"


# -- encryption -----------------------------------------------------------------------------------


@pytest.mark.proves("A-23", "A-24", "A-26")
@pytest.mark.parametrize("spelling", ["hex_prefixed", "hex", "base64"])
async def test_with_a_key_records_are_encrypted_and_readable(
    fake: FakeRelay, spelling: str
) -> None:
    async with aman(fake, key=GOLDEN["secretbox"]["key_forms"][spelling]) as memory:
        await everything(memory)
        snapshot = await memory.snapshot("u")
    assert all(event.tag("enc") == "secretbox-v1" for event in fake.events)
    assert not any("sunny" in event.content for event in fake.events)
    assert [row.record.content for row in snapshot.tools if row.record.success] == ["sunny"]
    assert snapshot.unread == ()


@pytest.mark.proves("A-24")
async def test_the_key_may_stand_in_the_environment(
    fake: FakeRelay, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NOSTR_SECRETBOX_KEY", f" {KEY}\n")
    async with aman(fake) as memory:
        await memory.set_preference("u", "secret")
    assert Aman.open_sealed(fake.events[0].content, KEY)["preference"] == "secret"


@pytest.mark.proves("A-24")
@pytest.mark.parametrize("bad", GOLDEN["secretbox"]["bad_keys"], ids=lambda bad: bad["key"][:6])
def test_an_invalid_key_raises_without_quoting_it(
    bad: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(UserError, match=bad["error"]) as caught:
        Aman("ws://127.0.0.1:1", robot, bad["key"])
    assert bad["key"] not in str(caught.value).replace("32 bytes", "")
    monkeypatch.setenv("NOSTR_SECRETBOX_KEY", bad["key"])
    with pytest.raises(UserError, match=f"NOSTR_SECRETBOX_KEY: {bad['error']}"):
        Aman("ws://127.0.0.1:1", robot)
    for short in (b"short", b"", ""):
        with pytest.raises(UserError, match="key must be 32 bytes"):
            Aman("ws://127.0.0.1:1", robot, short)


@pytest.mark.proves("A-22", "A-26")
async def test_a_wrong_key_names_the_event_and_where_the_key_is_from(fake: FakeRelay) -> None:
    async with aman(fake, key=KEY) as memory:
        written = await memory.set_preference("u", "secret")
    async with aman(fake) as memory:
        await memory.add_tool("u", "plain", success=True, content="for all")
    async with aman(fake, key=OTHER_KEY) as memory:
        snapshot = await memory.snapshot("u")
        assert [row.record.tool_name for row in snapshot.tools] == ["plain"]
        (unread,) = snapshot.unread
        assert unread.is_locked
        with pytest.raises(Unreadable, match="key from the argument secretbox_key") as caught:
            await memory.get_preference("u")
        assert written.event.id[:12] in str(caught.value)
    async with aman(fake) as memory:
        with pytest.raises(Unreadable, match="no key is configured"):
            await memory.get_preference("u")


@pytest.mark.proves("A-02", "A-23")
@pytest.mark.parametrize("case", GOLDEN["secretbox"]["cases"], ids=lambda case: case["name"])
def test_the_static_helpers_give_the_golden_bytes(case: dict[str, Any]) -> None:
    payload = json.loads(case["payload_json"])
    sealed = Aman.seal(payload, KEY, bytes.fromhex(case["nonce_hex"]))
    assert sealed == case["content"]
    assert Aman.open_sealed(sealed, KEY) == payload
    assert Aman.seal(payload, KEY) != Aman.seal(payload, KEY)


@pytest.mark.parametrize("case", GOLDEN["plain"], ids=lambda case: case["name"])
def test_the_payload_hash_is_the_golden_one(case: dict[str, Any]) -> None:
    assert Aman.payload_hash(case["payload"]) == case["sha256"]


def test_altered_or_invalid_payloads_are_not_decrypted() -> None:
    with pytest.raises(Invalid, match="cannot decrypt"):
        Aman.open_sealed(GOLDEN["secretbox"]["tampered"]["content"], KEY)
    with pytest.raises(Invalid, match="not a JSON object"):
        Aman.open_sealed(Aman.seal([], KEY), KEY)  # type: ignore[arg-type]


@pytest.mark.proves("A-15", "A-18")
async def test_calls_at_the_same_time_ask_once_for_clears_and_after_they_began(
    fake: FakeRelay,
) -> None:
    held: list[asyncio.Task[None]] = []
    release = asyncio.Event()

    async def hold(visitor: Visitor, frame: list[Any]) -> None:
        async def later() -> None:
            await release.wait()
            await fake.answer(visitor, frame)

        if frame[2]["kinds"] == [30096] and not held:
            held.append(asyncio.create_task(later()))
        else:
            await fake.answer(visitor, frame)

    fake.on["REQ"] = hold
    async with aman(fake) as memory, aman(fake) as other:
        first = asyncio.create_task(memory.add_tool("u", "first", success=True, content="x"))
        await fake.until(lambda: len(held) > 0)
        await other.clear("u")  # of the same second, and stored
        rest = [
            asyncio.create_task(memory.add_tool("u", f"tool-{n}", success=True, content=f"{n}"))
            for n in range(20)
        ]
        release.set()
        await asyncio.gather(first, *rest)
        asked = [frame for frame in fake.verbs("REQ") if frame[2]["kinds"] == [30096]]
        assert len(asked) == 3  # one is of the other
        names = {call.tool_name for call in await memory.tools("u")}
        assert names >= {f"tool-{n}" for n in range(20)}


# -- reading --------------------------------------------------------------------------------------


async def test_each_record_is_read_back(fake: FakeRelay) -> None:
    async with aman(fake) as memory:
        await everything(memory)
        assert await memory.get_preference("u") == Preference("u", "prefer_speed", NOW)
        assert await memory.get_summary("u") == Summary("u", "U: hi\nA: hello", 1, NOW)
        assert await memory.get_subscriptions("u") == Subscriptions("u", ("iran", "bitcoin"), NOW)
        assert {call.tool_name for call in await memory.tools("u")} == {"weather", "search"}
        assert len(await memory.tools("u", 1)) == 1
        assert await memory.clears("u") == []
        await memory.clear("u", "user-1")
        assert await memory.get_summary("u") is None
        assert [clear.sender_id for clear in await memory.clears("u")] == ["user-1"]
        assert await memory.get_preference("u") is not None


async def test_nothing_stored_is_none_and_empty(fake: FakeRelay) -> None:
    async with aman(fake) as memory:
        assert await memory.get_preference("u") is None
        assert await memory.get_summary("u") is None
        assert await memory.get_subscriptions("u") is None
        assert (await memory.tools("u"), await memory.clears("u")) == ([], [])
        assert (await memory.snapshot("u")).is_empty


async def test_a_snapshot_is_one_query_by_history_key(fake: FakeRelay) -> None:
    async with aman(fake) as memory:
        await everything(memory)
        fake.seen.clear()
        await memory.snapshot("u")
    (question,) = fake.verbs("REQ")
    assert {**question[2], "limit": 0} == {
        "kinds": [30093, 30094, 30095, 30096, 30097],
        "authors": [robot.pubkey],
        "#hk": ["u"],
        "limit": 0,
    }
    assert memory.shortfall == ""


@pytest.mark.proves("G-30")
async def test_without_hk_filters_everything_is_read_and_reported(fake: FakeRelay) -> None:
    fake.information = {"name": "another relay"}
    async with aman(fake) as memory:
        await everything(memory)
        await memory.set_preference("v", "other")
        fake.seen.clear()
        snapshot = await memory.snapshot("u")
        assert (len(snapshot.tools), snapshot.history_key) == (2, "u")
        assert "does not index #hk" in memory.shortfall
    assert not any("#hk" in frame[2] for frame in fake.verbs("REQ"))


async def test_more_than_the_relay_sends_at_a_time_is_asked_for_page_by_page(
    fake: FakeRelay,
) -> None:
    fake.most_rows = 7
    fake.information = {**ROOKERY, "limitation": {"max_limit": 7}}
    async with aman(fake) as memory:
        for number in range(20):
            await memory.add_tool(
                "u", f"{number}", success=True, content="", created_at=NOW - number // 3
            )
        assert len(await memory.tools("u")) == 20
        fold = await memory.fold()
        assert len(fold.snapshot("u").tools) == 20


async def test_a_slow_relay_does_not_stop_garbage_collection(
    fake: FakeRelay, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(aman_module, "_GC_PAUSE_S", 0.0)
    asked, answers = asyncio.Event(), asyncio.Event()

    async def slowly(visitor: Visitor, frame: list[Any]) -> None:
        asked.set()
        await answers.wait()
        await fake.answer(visitor, frame)

    fake.on["REQ"] = slowly
    async with aman(fake) as memory:
        reading = asyncio.create_task(memory.fold())
        await asked.wait()
        assert gc.isenabled()
        answers.set()
        await reading
    assert gc.isenabled()


@pytest.mark.proves("A-13")
async def test_memory_is_that_of_one_author_unless_all_are_asked_for(fake: FakeRelay) -> None:
    async with aman(fake) as memory:
        await memory.add_tool("u", "mine", success=True, content="")
    async with aman(fake, rover) as memory:
        await memory.add_tool("u", "yours", success=True, content="")
        await memory.clear("v")
        assert [call.tool_name for call in await memory.tools("u")] == ["yours"]
        both = await memory.tools("u", any_author=True)
        assert {call.tool_name for call in both} == {"mine", "yours"}


@pytest.mark.proves("A-15")
async def test_the_golden_projection_is_the_snapshot(fake: FakeRelay) -> None:
    golden = GOLDEN["projection"]
    for fields in golden["events"]:
        await fake.publish(event_from(fields))
    async with aman(fake) as memory:
        snapshot = await memory.snapshot("proj", any_author=True)
    wanted = golden["snapshot"]
    assert snapshot.preference is not None
    assert snapshot.preference.record.preference == wanted["preference"]
    assert snapshot.summary is None
    assert [row.record.tool_name for row in snapshot.tools] == ["c"]
    assert [row.time for row in snapshot.clears] == wanted["clears"]
    assert snapshot.cleared_at == golden["latest_clear"]


@pytest.mark.proves("A-28")
async def test_a_snapshot_becomes_a_block_for_a_model(fake: FakeRelay) -> None:
    async with aman(fake) as memory:
        await memory.add_tool("u", "mail", success=True, content="to bob@example.com")
        snapshot = await memory.snapshot("u")
    text = Aman.format_prompt(snapshot)
    assert text is not None
    assert text.startswith("[MEMORY SNAPSHOT]")
    assert "bob@example.com" in text
    redacted = Aman.format_prompt(snapshot, privacy="redact", max_chars=400)
    assert redacted is not None
    assert "[REDACTED_EMAIL]" in redacted
    assert Aman.format_prompt(snapshot, privacy="skip") is None
    assert Aman.format_prompt(snapshot, policy="skip") is None


# -- watching -------------------------------------------------------------------------------------


async def test_a_watcher_sees_each_change_and_lives_through_reconnects(fake: FakeRelay) -> None:
    async with aman(fake) as writer, aman(fake) as memory:
        await writer.add_tool("u", "one", success=True, content="")
        snapshots = memory.watch("u")
        assert len((await anext(snapshots)).tools) == 1
        await writer.add_tool("other", "not u", success=True, content="")
        await writer.add_tool("u", "two", success=True, content="")
        assert len((await anext(snapshots)).tools) == 2
        fake.drop_connection()
        await writer.clear("u")
        assert (await anext(snapshots)).tools == ()
        await snapshots.aclose()  # type: ignore[attr-defined]


async def test_changes_that_have_arrived_together_are_one_snapshot_for_a_watcher(
    fake: FakeRelay, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A snapshot takes as long as there are records, and another agent may write any number."""
    monkeypatch.setattr("relay.client.aman._JOIN_S", 60)
    async with aman(fake, rover) as other, aman(fake) as memory:
        snapshots = memory.watch("u", any_author=True)
        assert (await anext(snapshots)).tools == ()
        for number in range(40):
            await other.add_tool("u", f"tool {number}", success=True, content="")
        await memory.tools("u")  # its answer comes after the events
        told = 0
        async for snapshot in snapshots:
            told += 1
            if len(snapshot.tools) == 40:
                break
        assert told <= 10
        await snapshots.aclose()  # type: ignore[attr-defined]


async def test_a_watcher_sees_that_a_record_was_deleted(fake: FakeRelay) -> None:
    async with aman(fake) as memory:
        await memory.set_preference("u", "one")
        snapshots = memory.watch("u")
        assert (await anext(snapshots)).preference is not None
        (stored,) = fake.events
        fake.events.remove(stored)
        behind = NOW - 60  # the clock of who deletes
        await fake.publish(robot.sign(5, [["e", stored.id]], "", behind))
        assert (await anext(snapshots)).preference is None
        await snapshots.aclose()  # type: ignore[attr-defined]


@pytest.mark.parametrize("follows", ["watch", "tables"])
async def test_a_deletion_of_something_else_is_followed_by_no_read(
    fake: FakeRelay, tmp_path: Path, follows: str
) -> None:
    """Anybody may send any number of them, and each cost a read of all memory."""
    async with aman(fake, rover) as other, aman(fake) as memory:
        await memory.set_preference("u", "one")
        await other.add_tool("u", "t", success=True, content="")
        following = (
            memory.watch("u", any_author=True)
            if follows == "watch"
            else memory.follow_tables(tmp_path / "db", any_author=True)
        )
        await anext(following)
        preference, tool = fake.events
        before = len(fake.verbs("REQ"))
        for number in range(20):
            await fake.publish(rover.sign(5, [["e", f"{number:064x}"]], "", NOW + number))
            await fake.publish(rover.sign(5, [["e", preference.id]], "", NOW + number))
            address = f"{tool.kind}:{rover.pubkey}:{number}"
            await fake.publish(rover.sign(5, [["a", address]], "", NOW + number))
        last = robot.sign(*draft_of(Preference("u", "two", NOW + 9)))
        await fake.publish(last)
        fake.events.remove(last)  # told live only: no read shows it
        async for shown in following:
            if isinstance(shown, Followed):
                if shown.history_key == "u":
                    break
            elif shown.preference is not None and shown.preference.id == last.id:
                break
        assert len(fake.verbs("REQ")) == before
        await following.aclose()  # type: ignore[union-attr]


@pytest.mark.parametrize("by", ["id", "address"])
@pytest.mark.parametrize("follows", ["watch", "tables"])
async def test_what_another_machine_deletes_leaves_the_cache_live(
    fake: FakeRelay, tmp_path: Path, by: str, follows: str
) -> None:
    """Of any history key, also of one that is not watched."""
    async with aman(fake, folder=tmp_path) as memory:
        await memory._client.wait_connected()
        await memory.set_preference("u", "one")
        await memory.set_preference("other", "forget me")
        assert (await memory.snapshot("other")).preference is not None
        assert memory._cache is not None
        cache = memory._cache
        (stored,) = cache.matching(Filter(tags=(("hk", frozenset({"other"})),)))
        following = (
            memory.watch("u") if follows == "watch" else memory.follow_tables(tmp_path / "db")
        )
        await anext(following)
        fake.events.remove(stored)
        address = f"{stored.kind}:{robot.pubkey}:{stored.d}"
        where = ["e", stored.id] if by == "id" else ["a", address]
        await fake.publish(robot.sign(5, [where], "", stored.created_at))
        await memory.set_preference("u", "two")  # a watcher of "u" is told nothing of the other
        await anext(following)
        assert stored not in cache.matching(Filter())
        await following.aclose()  # type: ignore[union-attr]


@pytest.mark.proves("A-15")
@pytest.mark.parametrize("waits", [False, True])
async def test_what_was_cleared_is_not_in_the_prompt_of_an_offline_start(
    fake: FakeRelay, tmp_path: Path, *, waits: bool
) -> None:
    """It stood in the cache, the clear did not."""
    async with aman(fake, folder=tmp_path) as memory:
        await memory._client.wait_connected()
        await everything(memory)
        await memory.snapshot("u")
        if waits:
            await fake.stop()
            await until(lambda: not memory.is_online)
        await memory.clear("u")
        if waits:
            await fake.start()
            await memory._client.wait_connected()
            while await memory.waiting() > 0:  # noqa: ASYNC110  nothing rings when it is empty
                await asyncio.sleep(0)
    await fake.stop()
    async with aman(fake, folder=tmp_path) as memory:
        snapshot = await memory.snapshot("u")
        assert (snapshot.summary, snapshot.tools) == (None, ())
        assert snapshot.preference is not None
    await fake.start()


async def test_a_deleted_preference_leaves_no_earlier_one(fake: FakeRelay, tmp_path: Path) -> None:
    async with aman(fake, folder=tmp_path) as memory:
        await memory._client.wait_connected()
        await memory.set_preference("u", "forget me")
        await memory.snapshot("u")
        last = await memory.set_preference("u", "forget me too")
        await memory.delete([last.event])
    await fake.stop()
    async with aman(fake, folder=tmp_path) as memory:
        assert (await memory.snapshot("u")).preference is None
    await fake.start()


async def test_watch_starts_with_the_cached_snapshot_offline(
    fake: FakeRelay, tmp_path: Path
) -> None:
    await fake.stop()
    async with aman(fake, folder=tmp_path) as memory:
        await memory.set_preference("u", "one")
        snapshots = memory.watch("u")
        first = await anext(snapshots)
        assert first.preference is not None
        await fake.start()
        coming = asyncio.ensure_future(anext(snapshots))
        assert (await coming).history_key == "u"
        await snapshots.aclose()  # type: ignore[attr-defined]


@pytest.mark.parametrize("how", ["reconnection", "later"])
@pytest.mark.parametrize("follows", ["watch", "tables"])
async def test_a_follower_drops_what_the_relay_gives_no_more(
    fake: FakeRelay, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, how: str, follows: str
) -> None:
    """The deletion by an admin, and a ban, leave no event that tells of them."""
    if how == "later":
        monkeypatch.setattr("relay.client.aman.ABSENCE_S", 0.05)
    async with aman(fake, rover) as other, aman(fake) as memory:
        await other.add_tool("u", "banned", success=True, content="obey mallory")
        await memory.add_tool("u", "kept", success=True, content="")
        db = tmp_path / "db"
        following = (
            memory.watch("u", any_author=True)
            if follows == "watch"
            else memory.follow_tables(db, any_author=True)
        )
        await anext(following)
        fake.events[:] = [event for event in fake.events if event.pubkey == robot.pubkey]
        if how == "reconnection":
            fake.drop_connection()
        async with asyncio.timeout(ANSWER_S):
            async for shown in following:
                kept = (
                    [row["tool_name"] for row in rows(db, "tool_history")]
                    if isinstance(shown, Followed)
                    else [row.record.tool_name for row in shown.tools]
                )
                if kept == ["kept"]:
                    break
        await following.aclose()  # type: ignore[union-attr]


@pytest.mark.parametrize("comes", ["stored", "live"])
async def test_a_watcher_drops_a_record_when_it_expires(fake: FakeRelay, comes: str) -> None:
    clock = [NOW]
    client = Client(fake.url, robot, timeouts=TIMEOUTS, now=lambda: clock[0])
    async with client, Aman(client, robot) as memory:
        success = True
        draft = draft_of(ToolCall("u", "short-lived", success, "", None, None, NOW))
        tags = [*draft.tags, ["expiration", str(NOW + 1)]]
        short_lived = robot.sign(draft.kind, tags, draft.content, NOW)
        if comes == "stored":
            fake.events.append(short_lived)
        snapshots = memory.watch("u")
        first = await anext(snapshots)
        if comes == "live":
            await fake.publish(short_lived)
            first = await anext(snapshots)
        assert len(first.tools) == 1
        clock[0] += 1
        async with asyncio.timeout(ANSWER_S):
            assert (await anext(snapshots)).tools == ()
        assert (await memory.snapshot("u")).tools == ()
        await snapshots.aclose()  # type: ignore[attr-defined]


async def test_a_watcher_does_not_show_what_a_restored_relay_sends_again(
    fake: FakeRelay, tmp_path: Path
) -> None:
    async with aman(fake, folder=tmp_path) as memory:
        await memory._client.wait_connected()
        deleted = (await memory.add_tool("u", "deleted", success=True, content="")).event
        snapshots = memory.watch("u")
        assert len((await anext(snapshots)).tools) == 1
        await memory.delete([deleted])
        fake.events.remove(deleted)
        assert (await anext(snapshots)).tools == ()
        fake.events[:] = [deleted]
        fake.drop_connection()
        await fake.until(lambda: bool(fake.visitors))
        await memory.add_tool("u", "later", success=True, content="")
        async with asyncio.timeout(ANSWER_S):
            (tool,) = (await anext(snapshots)).tools
        assert tool.record.tool_name == "later"
        await snapshots.aclose()  # type: ignore[attr-defined]


# -- tables ---------------------------------------------------------------------------------------


def rows(path: Path, table: str) -> list[dict[str, Any]]:
    file = sqlite3.connect(path)
    file.row_factory = sqlite3.Row
    found = [dict(row) for row in file.execute(f"SELECT * FROM {table} ORDER BY rowid")]
    file.close()
    return found


@pytest.mark.proves("A-17")
async def test_the_relay_is_replayed_into_the_tables_of_the_original(
    fake: FakeRelay, tmp_path: Path
) -> None:
    path = tmp_path / "aman.db"
    async with aman(fake) as memory:
        await everything(memory)
        for _ in range(2):
            done = await memory.rehydrate(path)
            assert done.rows == Replaced(preferences=1, summaries=1, tools=2, clears=0)
            assert done.skipped == ()
            assert len(rows(path, "tool_history")) == 2
            assert path.stat().st_mode & 0o777 == 0o600
    (preference,) = rows(path, "preferences")
    assert preference == {
        "history_key": "u",
        "preference": "prefer_speed",
        "updated_at": "2023-11-14 22:13:20",
        "nostr_event_id": fake.events[0].id,
        "nostr_created_at": "2023-11-14 22:13:20",
        "nostr_relay": fake.url,
        "nostr_schema_version": 1,
    }
    weather = next(row for row in rows(path, "tool_history") if row["tool_name"] == "weather")
    assert (weather["success"], weather["sender_id"], weather["group_id"]) == (1, "user-1", None)


@pytest.mark.proves("A-17", "A-15")
async def test_rows_of_a_key_seen_are_replaced_and_others_stay(
    fake: FakeRelay, tmp_path: Path
) -> None:
    path = tmp_path / "aman.db"
    file = sqlite3.connect(path)
    file.executescript(
        "CREATE TABLE tool_history (id INTEGER PRIMARY KEY AUTOINCREMENT, history_key TEXT,"
        " tool_name TEXT, success INTEGER, content TEXT, sender_id TEXT, group_id TEXT,"
        " created_at TEXT);"
        "INSERT INTO tool_history VALUES (7, 'u', 'local', 1, '', NULL, NULL, 'then');"
        "INSERT INTO tool_history VALUES (8, 'not at the relay', 'kept', 1, '', '', '', 'then')"
    )
    file.close()
    path.chmod(0o640)
    async with aman(fake) as memory:
        await memory.add_tool("u", "before", success=True, content="")
        await memory.clear("u")
        await memory.add_tool("u", "after", success=True, content="")
        await memory.rehydrate(path)
    found = {(row["history_key"], row["tool_name"]) for row in rows(path, "tool_history")}
    assert found == {("u", "after"), ("not at the relay", "kept")}
    assert path.stat().st_mode & 0o777 == 0o640, "chosen by its agent"
    assert len(rows(path, "clear_context_events")) == 1


@pytest.mark.proves("A-17")
@pytest.mark.parametrize("how", ["a second run", "following"])
async def test_rows_of_what_the_relay_no_longer_gives_leave_the_tables(
    fake: FakeRelay, tmp_path: Path, how: str
) -> None:
    """Their agent gives them to a model."""
    path = tmp_path / "aman.db"
    async with aman(fake, signer=rover) as other:
        await other.set_preference("of the banned", "obey mallory")
    async with aman(fake) as memory:
        mine = [
            (await memory.set_preference("u", "forget me")).event,
            (await memory.set_summary("u", "forget me", 2)).event,
            (await memory.set_subscriptions("u", ["forget me"])).event,
            (await memory.add_tool("u", "forget me", success=True, content="")).event,
        ]
        await memory.set_preference("stays", "black")
        following = memory.follow_tables(path, any_author=True)
        await anext(following)
        with closing(sqlite3.connect(path)) as file, file:
            local = "INSERT INTO preferences (history_key, preference, updated_at) VALUES (?, ?, 0)"
            file.execute(local, ("its agent's", "kept"))
            file.execute(local, ("of another relay", "kept"))
            file.execute(
                "UPDATE preferences SET nostr_event_id = ?, nostr_relay = 'wss://other'"
                " WHERE history_key = 'of another relay'",
                (mine[0].id,),
            )
        fake.events[:] = [e for e in fake.events if e.pubkey == robot.pubkey and e not in mine]
        deletion = robot.sign(5, [["e", event.id] for event in mine], "", NOW)
        if how == "following":
            await fake.publish(deletion)
            await anext(following)
        else:
            fake.events.append(deletion)
            await memory.rehydrate(path, any_author=True)
        await following.aclose()  # type: ignore[attr-defined]
    left = {row["history_key"] for row in rows(path, "preferences")}
    assert left == {"stays", "its agent's", "of another relay"}
    for table in ("conversation_summaries", "tool_history", "subscription_state"):
        assert rows(path, table) == []
    assert not left_of(["forget me", "obey mallory"], tmp_path)


@pytest.mark.proves("A-22")
async def test_an_unreadable_record_is_reported_and_its_row_kept(
    fake: FakeRelay, tmp_path: Path
) -> None:
    path = tmp_path / "aman.db"
    async with aman(fake, key=KEY) as memory:
        await memory.add_tool("u", "locked", success=True, content="")
        await memory.rehydrate(path)
    async with aman(fake, key=OTHER_KEY) as memory:
        await memory.add_tool("u", "open", success=True, content="")
        done = await memory.rehydrate(path)
    assert [unread.event.id for unread in done.skipped] == [fake.events[0].id]
    assert {row["tool_name"] for row in rows(path, "tool_history")} == {"locked", "open"}


async def test_rehydrate_includes_queued_writes(fake: FakeRelay, tmp_path: Path) -> None:
    fake.on["EVENT"] = refusing("error: the store is busy")
    async with aman(fake, folder=tmp_path) as memory:
        await memory._client.wait_connected()
        written = await memory.add_tool("u", "waits", success=True, content="")
        assert written.outcome is Outcome.QUEUED
        done = await memory.rehydrate(tmp_path / "aman.db")
    assert done.rows.tools == 1


@pytest.mark.parametrize("is_left", [False, True], ids=["", "left in the cache"])
@pytest.mark.parametrize("is_written", [False, True], ids=["new tables", "tables of before"])
async def test_what_a_waiting_deletion_names_is_in_no_table(
    fake: FakeRelay, tmp_path: Path, *, is_written: bool, is_left: bool
) -> None:
    """The relay still gives it, and an agent gives its rows to a model."""
    tables = ("preferences", "conversation_summaries", "tool_history", "subscription_state")
    path = tmp_path / "aman.db"
    async with aman(fake, folder=tmp_path / "folder") as memory:
        await memory._client.wait_connected()
        mine = [
            (await memory.set_preference("u", "forget me")).event,
            (await memory.set_summary("u", "forget me", 2)).event,
            (await memory.set_subscriptions("u", ["forget me"])).event,
            (await memory.add_tool("u", "forget me", success=True, content="")).event,
        ]
        if is_written:
            await memory.rehydrate(path)
            assert [len(rows(path, table)) for table in tables] == [1, 1, 1, 1]
        fake.on["EVENT"] = refusing("rate-limited: slow down")
        if is_left:
            with unwritable(memory), pytest.raises(LeftInCache, match="waits for the relay"):
                await memory.delete(mine)
        else:
            await memory.delete(mine)
        assert await memory.waiting() == 1
        done = await memory.rehydrate(path)
        assert done.rows == Replaced(0, 0, 0, 0)
    assert [rows(path, table) for table in tables] == [[], [], [], []]


async def test_an_invalid_sqlite_file_is_reported(fake: FakeRelay, tmp_path: Path) -> None:
    path = tmp_path / "aman.db"
    path.write_text("not a database, but more than a few bytes of text" * 20)
    async with aman(fake) as memory:
        await memory.set_preference("u", "one")
        with pytest.raises(TablesUnusable, match=r"aman\.db: file is not a database"):
            await memory.rehydrate(path)
        with pytest.raises(TablesUnusable, match=r"aman\.db: file is not a database"):
            await memory.import_tables(path)
        with pytest.raises(TablesUnusable, match="there is no file"):
            await memory.import_tables(tmp_path / "missing.db")
        with pytest.raises(TablesUnusable, match=r"nowhere/aman\.db: No such file"):
            await memory.rehydrate(tmp_path / "nowhere" / "aman.db")
        empty = tmp_path / "empty.db"
        empty.touch()
        with pytest.raises(TablesUnusable, match="none of Aman's tables"):
            await memory.import_tables(empty)


MADE = (
    "CREATE TABLE preferences (history_key TEXT PRIMARY KEY, preference TEXT, updated_at TEXT,"
    " nostr_event_id TEXT, nostr_created_at TEXT, nostr_relay TEXT, nostr_schema_version INTEGER"
)


@pytest.mark.parametrize(
    ("made", "why"),
    [
        (
            "CREATE VIEW preferences AS WITH RECURSIVE c(n) AS (SELECT 1 UNION ALL SELECT n + 1"
            " FROM c) SELECT n AS rowid, 'u' AS history_key, 'p' AS preference, 1 AS updated_at"
            " FROM c WHERE n < 0",
            "preferences is no table",
        ),
        (
            "CREATE TABLE preferences (history_key TEXT, updated_at INTEGER,"
            " preference AS (hex(zeroblob(400000000))))",
            "preferences has generated columns",
        ),
        ("CREATE VIRTUAL TABLE tool_history USING fts5(content)", "tool_history is no table"),
        (
            "CREATE TABLE preferences (history_key TEXT, updated_at INTEGER);"
            "INSERT INTO preferences VALUES ('u', 1), ('v', 1), ('w', 1);"
            "ALTER TABLE preferences ADD COLUMN preference TEXT DEFAULT '" + "p" * 9_000_000 + "'",
            "too big",
        ),
        (
            "CREATE TABLE preferences (history_key TEXT, updated_at INTEGER);"
            "INSERT INTO preferences VALUES ('u', 1), ('v', 1), ('w', 1), ('x', 1), ('y', 1);"
            "ALTER TABLE preferences ADD COLUMN preference TEXT DEFAULT '" + "p" * 6_000_000 + "'",
            "rows of preferences hold more than the file",
        ),
    ],
    ids=["view", "generated column", "virtual table", "long value", "long default"],
)
async def test_a_database_of_somebody_else_is_imported_within_limits(
    fake: FakeRelay, tmp_path: Path, made: str, why: str
) -> None:
    path = tmp_path / "theirs.db"
    with closing(sqlite3.connect(path)) as file:
        file.executescript(made)
    async with aman(fake) as memory:
        with pytest.raises(TablesUnusable, match=why):
            await memory.import_tables(path)


async def test_a_refused_database_leaves_no_thread(
    fake: FakeRelay, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "theirs.db"
    with closing(sqlite3.connect(path)) as file:
        file.execute("CREATE VIEW preferences AS SELECT 1 AS history_key")
    refused = threading.Event()
    aiosqlite_ends = aiosqlite.Connection.stop

    def stop(db: aiosqlite.Connection) -> asyncio.Future[None] | None:
        db._tx.put_nowait((None, lambda: refused.wait(20)))
        return aiosqlite_ends(db)

    monkeypatch.setattr(aiosqlite.Connection, "stop", stop)
    before = set(threading.enumerate())
    async with aman(fake) as memory:
        with pytest.raises(TablesUnusable, match="is no table"):
            await memory.import_tables(path)
    left = set(threading.enumerate()) - before
    refused.set()
    assert not [each for each in left if "connection_worker" in each.name]


@pytest.mark.parametrize(
    ("made", "why"),
    [
        (
            "CREATE VIEW preferences AS WITH RECURSIVE c(n) AS (SELECT 1 UNION ALL SELECT n + 1"
            " FROM c) SELECT 'u' AS history_key, 'p' AS preference, 't' AS updated_at,"
            " 'i' AS nostr_event_id, 1 AS nostr_created_at, 'r' AS nostr_relay,"
            " 1 AS nostr_schema_version FROM c WHERE n < 0",
            "preferences is no table",
        ),
        (
            "CREATE TABLE Preferences (history_key TEXT PRIMARY KEY, preference TEXT,"
            " updated_at TEXT); CREATE TABLE rows (n); CREATE TRIGGER t AFTER INSERT ON Preferences"
            " BEGIN INSERT INTO rows VALUES (1); END",
            "preferences has a trigger",
        ),
        (
            f"{MADE}, CHECK (instr(hex(zeroblob(4000)), hex(zeroblob(1900)) || '1') = 0))",
            "preferences has a CHECK",
        ),
        (
            f"{MADE}, fill TEXT /* */ DEFAULT (hex(zeroblob(3900))))",
            "preferences has a default that is computed or long",
        ),
        (f"{MADE}, fill DEFAULT '{'x' * 99}')", "preferences has a default"),
        (f"{MADE}, fill DEFAULT (strftime(hex(zeroblob(99)))))", "preferences has a default"),
        (
            f'{MADE}); CREATE INDEX [a "b] ON Preferences (history_key, hex(preference))',
            "preferences has an index with an expression",
        ),
        (
            f"{MADE}); CREATE INDEX of ON preferences (history_key) WHERE preference > 'x'",
            "preferences has an index with an expression",
        ),
        (
            f"{MADE}, {', '.join(f'c{number} DEFAULT (date())' for number in range(99))})",
            "preferences has defaults of over 500 characters",
        ),
        (
            f"{MADE}); CREATE INDEX of ON preferences ({', '.join(['preference'] * 40)})",
            "preferences has indices of over 32 columns",
        ),
        (
            f"{MADE});"
            + ";".join(f"CREATE INDEX i{n} ON preferences (preference)" for n in range(20)),
            "preferences has indices of over 32 columns",
        ),
    ],
    ids=[
        *("view", "trigger", "check", "default", "long", "format", "index", "partial"),
        *("defaults", "wide index", "indices"),
    ],
)
async def test_a_database_of_somebody_else_runs_nothing_when_it_is_written(
    fake: FakeRelay, tmp_path: Path, made: str, why: str
) -> None:
    """A view without end, and a CHECK, could only be stopped by kill -9; a trigger, and a default,
    filled the disk."""
    path = tmp_path / "theirs.db"
    with closing(sqlite3.connect(path)) as file:
        file.executescript(made)
    before = path.read_bytes()
    async with aman(fake) as memory:
        await memory.set_preference("u", "one")
        with pytest.raises(TablesUnusable, match=why):
            await memory.rehydrate(path)
        with pytest.raises(TablesUnusable, match=why):
            replace_rows(path, [], fake.url)
    assert path.read_bytes() == before


async def test_a_journal_of_somebody_else_deletes_no_file(fake: FakeRelay, tmp_path: Path) -> None:
    path, victim = tmp_path / "theirs.db", tmp_path / "robot.nsec"
    victim.write_text("mine")
    with closing(sqlite3.connect(path)) as file:
        file.executescript(f"{MADE})")
    make_hot_journal(path, victim)
    said = "theirs.db: theirs.db-journal names another file"
    async with aman(fake) as memory:
        with pytest.raises(TablesUnusable, match=said):
            await memory.rehydrate(path)
    with pytest.raises(TablesUnusable, match=said):
        replace_rows(path, [], fake.url)
    assert victim.read_text() == "mine"


async def test_plain_defaults_and_indexes_of_an_agents_tables_are_written(
    fake: FakeRelay, tmp_path: Path
) -> None:
    path = tmp_path / "aman.db"
    with closing(sqlite3.connect(path)) as file:
        file.executescript(
            f"{MADE}, a DEFAULT 0, b DEFAULT -1.5, c TEXT DEFAULT 'it', d DEFAULT NULL,"
            " e DEFAULT CURRENT_TIMESTAMP, f DEFAULT (datetime('now')), checked DEFAULT true,"
            " g DEFAULT (strftime('%Y-%m-%d', 'now', 'localtime')));"
            "CREATE UNIQUE INDEX of ON preferences (history_key, updated_at DESC)"
        )
    async with aman(fake) as memory:
        await memory.set_preference("u", "one")
        await memory.rehydrate(path)
    with closing(sqlite3.connect(path)) as file:
        assert file.execute("SELECT preference, a, b, c FROM preferences").fetchall() == [
            ("one", 0, -1.5, "it")
        ]


def original(path: Path) -> None:
    """A database as the original has it, with some rows that are no records."""
    file = sqlite3.connect(path)
    file.executescript(
        """
        CREATE TABLE preferences (history_key TEXT PRIMARY KEY, preference TEXT, updated_at TEXT);
        CREATE TABLE conversation_summaries (
            history_key TEXT PRIMARY KEY, summary TEXT, message_count INTEGER, updated_at TEXT);
        CREATE TABLE tool_history (id INTEGER PRIMARY KEY, history_key TEXT, tool_name TEXT,
            success INTEGER, content TEXT, sender_id TEXT, group_id TEXT, created_at TEXT);
        CREATE TABLE clear_context_events (id INTEGER PRIMARY KEY, history_key TEXT,
            sender_id TEXT, created_at TEXT);
        INSERT INTO preferences VALUES ('u', 'prefer_speed', '2023-11-14 22:13:20');
        INSERT INTO preferences VALUES ('bad', NULL, '2023-11-14 22:13:20');
        INSERT INTO conversation_summaries VALUES ('u', 'hello', 3, '2023-11-14T22:13:21Z');
        INSERT INTO tool_history VALUES (1, 'u', 'a', 1, 'one', 's', NULL, '2023-11-14 22:13:22');
        INSERT INTO tool_history VALUES (2, 'u', 'b', 0, 'two', 's', NULL, 1700000003);
        INSERT INTO tool_history VALUES (3, 'u', 'b', 5, 'two', 's', NULL, 1700000003);
        INSERT INTO tool_history VALUES (4, 'u', 'b', 1, 'two', 's', NULL, 'yesterday');
        INSERT INTO clear_context_events VALUES (1, 'u', NULL, '2023-11-14 22:13:19');
        """
    )
    file.close()


async def test_an_import_does_not_lock_the_database(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("relay.client.aman_tables._BATCH", 2)
    path = tmp_path / "aman.db"
    original(path)
    rows = rows_in(path)
    read = [await anext(rows) for _ in range(4)]
    with closing(sqlite3.connect(path, timeout=0)) as agent, agent:
        agent.execute("INSERT INTO tool_history VALUES (9, 'u', 'c', 1, 'new', 's', NULL, 1)")
    read += [row async for row in rows]
    assert len(read) == 9
    assert [row.content for row in read if isinstance(row, ToolCall)] == ["one", "two", "new"]


async def test_a_database_that_its_agent_locks_stops_no_other_work(tmp_path: Path) -> None:
    path = tmp_path / "aman.db"
    original(path)
    with closing(sqlite3.connect(path, isolation_level=None)) as agent:
        agent.execute("BEGIN EXCLUSIVE")
        reading = asyncio.ensure_future(anext(rows_in(path)))
        for _ in range(10):
            await asyncio.sleep(0)
        assert not reading.done()
        agent.execute("COMMIT")
        assert await reading


@pytest.mark.parametrize("key", [None, KEY], ids=["plain", "encrypted"])
async def test_an_import_keeps_times_and_is_idempotent(
    fake: FakeRelay, tmp_path: Path, key: str | None
) -> None:
    path, seen = tmp_path / "aman.db", []
    original(path)
    async with aman(fake, key=key) as memory:
        done = await memory.import_tables(path, progress=lambda *at: seen.append(at))
        assert done.rows == Replaced(preferences=1, summaries=1, tools=2, clears=1)
        assert sorted(done.skipped) == [
            "preferences: preference must be a string",
            "tool_history: created_at must be an integer",
            "tool_history: success must be a boolean",
        ]
        assert seen[-1] == (8, 8)
        assert await memory.get_preference("u") == Preference("u", "prefer_speed", NOW)
        assert [call.created_at for call in await memory.tools("u")] == [NOW + 3, NOW + 2]
    assert {event.created_at - NOW for event in fake.events} == {0, 1, 2, 3, -1}
    if key is None:
        async with aman(fake) as memory:
            again = await memory.import_tables(path)
        assert again == done
        assert len(fake.events) == 5


async def test_an_unchanged_preference_is_not_sent_again(fake: FakeRelay, tmp_path: Path) -> None:
    path = tmp_path / "aman.db"
    original(path)
    async with aman(fake, key=KEY) as memory:
        await memory.import_tables(path)
        await memory.import_tables(path)
    assert [event.kind for event in fake.events].count(30093) == 1


async def test_refused_rows_are_skipped_with_the_reason(fake: FakeRelay, tmp_path: Path) -> None:
    async def refuse(visitor: Visitor, frame: list[Any]) -> None:
        if frame[1]["kind"] == 30095:
            await visitor.say_no(frame[1]["id"], "invalid: ts is in the future")
        else:
            await fake.take(visitor, frame)

    path = tmp_path / "aman.db"
    original(path)
    fake.on["EVENT"] = refuse
    async with aman(fake) as memory:
        done = await memory.import_tables(path)
    assert done.rows == Replaced(preferences=1, summaries=1, tools=0, clears=1)
    assert done.skipped.count("invalid: ts is in the future") == 2


async def test_an_import_by_a_key_that_may_not_write_is_refused(
    fake: FakeRelay, tmp_path: Path
) -> None:
    path = tmp_path / "aman.db"
    async with aman(fake) as memory:
        await everything(memory)
        await memory.rehydrate(path)
    fake.on["EVENT"] = refusing("restricted: only agents may write memory")
    async with aman(fake, rover) as memory:
        with pytest.raises(PublishRefused, match="only agents may write memory"):
            await memory.import_tables(path)


async def test_rehydrated_tables_can_be_imported(fake: FakeRelay, tmp_path: Path) -> None:
    path = tmp_path / "aman.db"
    async with aman(fake) as memory:
        await everything(memory)
        await memory.rehydrate(path)
        before: list[Event] = list(fake.events)
        done = await memory.import_tables(path)
    assert done.rows == Replaced(preferences=1, summaries=1, tools=2, clears=0)
    assert fake.events == before
