"""`rookery aman`, against a fake relay: output and exit codes."""

from __future__ import annotations

import json
import sqlite3
from typing import TYPE_CHECKING, Any

import pytest

from relay.memory.aman.records import Clear, ToolCall, draft_of
from relay.nostr.event import event_from
from tests.cast import robot, rover
from tests.harness.fake_relay import FakeRelay, refusing
from tests.unit.cli.terminal import Rookery, command_line

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    from tests.harness.fake_relay import Visitor

KEY = "00" * 31 + "07"


@pytest.fixture
async def relay() -> AsyncIterator[FakeRelay]:
    async with FakeRelay() as relay:
        relay.information = {"memory": {"index_tags": ["hk"]}}
        relay.challenges_at_once = True
        yield relay


@pytest.fixture
def rookery(relay: FakeRelay, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Rookery:
    monkeypatch.delenv("NOSTR_SECRETBOX_KEY", raising=False)
    return command_line("aman", relay, robot, tmp_path, monkeypatch)


@pytest.mark.parametrize(
    ("args", "kind", "d"),
    [
        (("set-preference", "HK", "speed"), 30093, "HK:preference"),
        (("set-summary", "HK", "hello", "--count", "2"), 30094, "HK:summary"),
        (("subscribe", "HK", "iran", "bitcoin"), 30097, "HK:subscription_state"),
        (("add-tool", "HK", "weather", "--ok", "--content", "sunny"), 30095, None),
        (("clear", "HK", "--sender", "user-1"), 30096, None),
    ],
    ids=lambda value: value[0] if isinstance(value, tuple) else None,
)
async def test_a_write_prints_the_stored_record(
    rookery: Rookery,
    relay: FakeRelay,
    capsys: pytest.CaptureFixture[str],
    args: tuple[str, ...],
    kind: int,
    d: str | None,
) -> None:
    assert await rookery(*args) == 0
    (event,) = relay.events
    assert event.pubkey == robot.pubkey
    assert d in (None, event.d)
    assert capsys.readouterr() == (f"stored {event.id[:8]} {kind} {event.d}\n", "")


async def test_the_options_of_a_tool_are_in_its_record(rookery: Rookery, relay: FakeRelay) -> None:
    options = ("--failed", "--content", "no", "--sender", "s", "--group", "g")
    assert await rookery("add-tool", "HK", "weather", *options) == 0
    payload = json.loads(relay.events[0].content)
    del payload["created_at"]
    assert payload == {
        "history_key": "HK",
        "tool_name": "weather",
        "success": False,
        "content": "no",
        "sender_id": "s",
        "group_id": "g",
    }


async def test_a_repeat_is_a_duplicate_and_no_error(
    rookery: Rookery, relay: FakeRelay, capsys: pytest.CaptureFixture[str]
) -> None:
    async def taken(visitor: Visitor, frame: list[Any]) -> None:
        await visitor.say_ok(frame[1]["id"], "duplicate: already stored under this d")

    relay.on["EVENT"] = taken
    assert await rookery("clear", "HK") == 0
    d = event_from(relay.verbs("EVENT")[0][1]).d
    assert capsys.readouterr() == (f"duplicate {d}\n", "")
    assert await rookery("clear", "HK", "--json") == 0
    assert json.loads(capsys.readouterr().out)["outcome"] == "duplicate"


async def test_json_output_of_a_write(
    rookery: Rookery, relay: FakeRelay, capsys: pytest.CaptureFixture[str]
) -> None:
    assert await rookery("set-preference", "HK", "speed", "--json") == 0
    assert json.loads(capsys.readouterr().out) == {
        "outcome": "stored",
        "id": relay.events[0].id,
        "kind": 30093,
        "d": "HK:preference",
    }


async def test_a_refusal_names_the_key(
    rookery: Rookery, relay: FakeRelay, capsys: pytest.CaptureFixture[str]
) -> None:
    relay.on["EVENT"] = refusing("restricted: only agents may write memory")
    assert await rookery("set-preference", "HK", "speed") == 1
    err = capsys.readouterr().err
    assert "restricted: only agents may write memory" in err
    assert robot.npub in err


@pytest.mark.parametrize(
    "args",
    [
        ("add-tool", "HK", "weather", "--content", "x"),
        ("add-tool", "HK", "weather", "--ok"),
        ("set-summary", "HK", "text"),
        ("set-summary", "HK", "text", "--count", "-1"),
        ("subscribe", "HK"),
        ("rehydrate",),
        ("set-preference", "HK"),
    ],
)
async def test_usage_errors(
    rookery: Rookery, capsys: pytest.CaptureFixture[str], args: tuple[str, ...]
) -> None:
    assert await rookery(*args) == 2
    assert "--help" in capsys.readouterr().err


async def test_an_invalid_secretbox_key_is_reported_without_quoting_it(
    rookery: Rookery, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NOSTR_SECRETBOX_KEY", "hex:00ff")
    assert await rookery("set-preference", "HK", "speed") == 1
    err = capsys.readouterr().err
    assert err == "rookery: NOSTR_SECRETBOX_KEY: key must be 32 bytes\n"


async def fill(relay: FakeRelay, rookery: Rookery) -> None:
    old = ToolCall(
        "HK",
        "old",
        success=True,
        content="gone",
        sender_id=None,
        group_id=None,
        created_at=1_700_000_000,
    )
    for record in (old, Clear("HK", "user-1", 1_700_000_001)):
        draft = draft_of(record)
        await relay.publish(robot.sign(draft.kind, draft.tags, draft.content, draft.created_at))
    await rookery("set-preference", "HK", "speed")
    await rookery("add-tool", "HK", "weather", "--ok", "--content", "sunny\n\x1b[31mred")
    await rookery("set-summary", "HK", "U: hi\nA: hello", "--count", "2")
    await rookery("subscribe", "HK", "iran", "bitcoin")


async def test_show_prints_the_whole_memory(
    rookery: Rookery, relay: FakeRelay, capsys: pytest.CaptureFixture[str]
) -> None:
    await fill(relay, rookery)
    capsys.readouterr()
    assert await rookery("show", "HK") == 0
    out, err = capsys.readouterr()
    assert err == ""
    for text in (
        "speed",
        "summary of 2 messages",
        "  U: hi\n  A: hello",
        "iran, bitcoin",
        "weather",
        "sunny",
        "by user-1",
    ):
        assert text in out
    assert "old" not in out
    assert "\x1b" not in out
    assert await rookery("show", "HK", "--json") == 0
    shown = json.loads(capsys.readouterr().out)
    assert shown["preference"] == "speed"
    assert shown["summary"]["message_count"] == 2
    assert shown["topics"] == ["iran", "bitcoin"]
    assert [call["tool_name"] for call in shown["tool_history"]] == ["weather"]
    assert len(shown["clears"]) == 1
    assert shown["unread"] == []


async def test_nothing_stored_exits_with_1(
    rookery: Rookery, capsys: pytest.CaptureFixture[str]
) -> None:
    assert await rookery("show", "HK") == 1
    assert capsys.readouterr() == ("nothing stored for HK\n", "")


async def test_records_of_other_authors_are_shown_on_request(
    rookery: Rookery, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ROOKERY_KEY", rover.nsec)
    assert await rookery("set-preference", "HK", "speed") == 0
    monkeypatch.setenv("ROOKERY_KEY", robot.nsec)
    assert await rookery("show", "HK") == 1
    assert await rookery("show", "HK", "--any-author") == 0
    assert "speed" in capsys.readouterr().out


async def test_a_locked_record_is_reported_on_stderr(
    rookery: Rookery,
    relay: FakeRelay,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("NOSTR_SECRETBOX_KEY", KEY)
    await rookery("set-preference", "HK", "secret")
    monkeypatch.setenv("NOSTR_SECRETBOX_KEY", "11" * 32)
    await rookery("subscribe", "HK", "open")
    capsys.readouterr()
    assert await rookery("show", "HK") == 0
    out, err = capsys.readouterr()
    assert "open" in out
    assert "secret" not in out + err
    assert err.startswith(f"skipped {relay.events[0].id[:8]} 30093 'HK:preference'")
    assert "key from NOSTR_SECRETBOX_KEY" in err


async def test_rehydrate_counts_what_it_wrote(
    rookery: Rookery, relay: FakeRelay, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    await fill(relay, rookery)
    capsys.readouterr()
    assert await rookery("rehydrate", "--db", "aman.db") == 0
    assert capsys.readouterr() == ("preferences 1, summaries 1, tools 1, clears 1, skipped 0\n", "")
    file = sqlite3.connect(tmp_path / "aman.db")
    assert file.execute("SELECT preference FROM preferences").fetchall() == [("speed",)]
    file.close()


async def test_import_sqlite_counts_records_and_reports_skipped_rows(
    rookery: Rookery, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    file = sqlite3.connect(tmp_path / "old.db")
    file.executescript(
        "CREATE TABLE preferences (history_key TEXT, preference TEXT, updated_at TEXT);"
        "INSERT INTO preferences VALUES ('a', 'one', '2023-11-14 22:13:20');"
        "INSERT INTO preferences VALUES ('b', NULL, '2023-11-14 22:13:20');"
    )
    file.close()
    for _ in range(2):
        assert await rookery("import-sqlite", "old.db") == 0
        assert capsys.readouterr() == (
            "preferences 1, summaries 0, tools 0, clears 0, skipped 1\n",
            "skipped 1: preferences: preference must be a string\n",
        )
    assert await rookery("import-sqlite", "old.db", "--json") == 0
    assert json.loads(capsys.readouterr().out) == {
        "preferences": 1,
        "summaries": 0,
        "tools": 0,
        "clears": 0,
        "skipped": 1,
    }
    assert await rookery("import-sqlite", "missing.db") == 1
    assert capsys.readouterr().err == "rookery: there is no file missing.db\n"


async def test_a_relay_without_hk_filters_is_used_with_a_remark(
    rookery: Rookery, relay: FakeRelay, capsys: pytest.CaptureFixture[str]
) -> None:
    relay.information = {}
    await rookery("set-preference", "HK", "speed")
    assert await rookery("show", "HK") == 0
    out, err = capsys.readouterr()
    assert "speed" in out
    assert "does not index #hk" in err
