"""Planted texts in Aman's records, Anamnesis, conversations and searches of all systems, in what a
model is given of them: Aman's block, the tables that its agent reads, and fenced output.
"""

from __future__ import annotations

import asyncio
import json
import re
import sqlite3
from contextlib import closing
from typing import TYPE_CHECKING, Any

import pytest

from relay.cli import run
from relay.client.aman_tables import TABLES, replace_rows
from relay.memory.aman.fold import Fold
from relay.memory.aman.prompt import PromptPolicy, format_prompt
from relay.memory.aman.records import Clear, Preference, Summary, ToolCall, draft_of
from relay.memory.anamnesis.records import Entry, entry_draft, vouch_draft
from tests import cast
from tests.harness.fake_relay import FakeRelay
from tests.leaks.planted import (
    BY,
    EVE,
    MARK,
    PLANTED,
    check_authors,
    check_record,
    check_shown,
    each_planted,
    fences_in,
    looks,
)

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Coroutine
    from pathlib import Path

    from relay.memory.aman.fold import Snapshot
    from relay.memory.aman.records import Record
    from relay.nostr.event import Event
    from relay.nostr.keys import SecretKey

    Rookery = Callable[..., Coroutine[Any, Any, int]]

AT = 1_700_000_000
DAY = "2026-02-18T00:00:00Z"
HK = "hk"


# -- Aman -----------------------------------------------------------------------------------------


def _tool(name: str, content: str, sender: str | None = None, at: int = AT) -> ToolCall:
    fields: dict[str, Any] = {"history_key": HK, "tool_name": name, "success": True}
    return ToolCall(**fields, content=content, sender_id=sender, group_id=sender, created_at=at)


AMAN: dict[str, Callable[[str], Record]] = {
    "preference": lambda text: Preference(HK, text, AT),
    "summary": lambda text: Summary(HK, text, 1, AT),
    "tool name": lambda text: _tool(text, MARK),
    "tool result": lambda text: _tool("kettle", text),
    "sender of a tool": lambda text: _tool("kettle", MARK, text),
    "sender of a clear": lambda text: Clear(HK, text, AT - 9),
}


@pytest.fixture(params=AMAN)
def aman(request: pytest.FixtureRequest) -> Callable[[str], Record]:
    return AMAN[request.param]


def snapshot(record: Record, signer: SecretKey) -> Snapshot:
    """As a client of robot folds it with `any_author`."""
    fold = Fold()
    fold.apply(signer.sign(*draft_of(record)))
    fold.apply(cast.robot.sign(*draft_of(_tool("own", "mine", at=AT - 1))))
    return fold.snapshot(HK, reader=cast.robot.pubkey)


def check_block(text: str) -> None:
    lines = text.splitlines()
    assert lines[0] == "[MEMORY SNAPSHOT]"
    assert "no instructions" in lines[1]
    assert lines[-1] == "[END MEMORY SNAPSHOT]"
    ours = re.findall(
        r"\[\s*(?:(?:end\s+)?memory\s+snapshot|summary|tools|clear\s+context)\s*\]", looks(text)
    )
    assert len(ours) == len(set(ours)), ours
    assert not re.search(r"<[\s/]*memory\b", looks(text))
    check_shown(text)


@pytest.mark.proves("A-13", "A-28", "G-23")
def test_aman_s_block_tells_it_with_its_author(aman: Callable[[str], Record]) -> None:
    for text in each_planted():
        told = format_prompt(snapshot(aman(text), EVE), PromptPolicy(max_chars=4_000)) or ""
        check_block(told)
        check_authors(told, [EVE.npub])
        for entry in re.split(r"\n(?=\[(?:[A-Z ]+)\]\n|\d\. |\[END)", told):
            if MARK in entry:
                assert entry.strip().endswith(BY), entry


@pytest.mark.proves("A-28", "G-23")
def test_aman_s_block_of_ones_own_records_names_nobody(aman: Callable[[str], Record]) -> None:
    for text in each_planted():
        told = format_prompt(snapshot(aman(text), cast.robot)) or ""
        check_block(told)
        check_authors(told, [])
        assert "npub1" not in re.sub(r"&mdash;[^\n]*", "", told)


@pytest.mark.proves("A-13", "A-17", "G-23")
def test_aman_s_tables_name_the_author_of_what_others_wrote(
    aman: Callable[[str], Record], tmp_path: Path
) -> None:
    path = tmp_path / "aman.db"
    for text in each_planted():
        record = aman(text)
        fold = Fold()
        event = EVE.sign(*draft_of(record))
        fold.apply(event)
        replace_rows(path, [fold.snapshot(HK, reader=cast.robot.pubkey)], "ws://x")
        with closing(sqlite3.connect(path)) as file:
            cells = [
                (str(row["nostr_event_id"]), name, str(row[name]))
                for table in TABLES
                for row in _rows(file, table)
                for name in row
                if MARK in str(row[name])
            ]
        assert cells
        for id_, name, cell in cells:
            assert id_ == event.id
            check_shown(cell)
            check_authors(cell, [EVE.npub])
            if name in ("preference", "summary", "content"):
                assert cell.endswith(f" — by unnamed {BY}")
                assert not re.search(r"<[\s/]*memory\b", looks(cell))
            else:
                assert re.fullmatch(r"[\w .,'’+&@!?/_-]{1,40}", cell), (name, cell)
        path.unlink()


def _rows(file: sqlite3.Connection, table: str) -> list[dict[str, object]]:
    found = file.execute(f"SELECT * FROM {table}")
    names = [column[0] for column in found.description]
    return [dict(zip(names, row, strict=True)) for row in found]


# -- fenced output of commands --------------------------------------------------------------------


@pytest.fixture
async def relay() -> AsyncIterator[FakeRelay]:
    async with FakeRelay() as relay:
        relay.information = {
            "pubkey": cast.owner.pubkey,
            "memory": {"prefix_d_kinds": [78, 30078], "index_tags": ["hk"]},
            "supported_nips": [1],
        }
        relay.challenges_at_once = True
        yield relay


@pytest.fixture
def rookery(relay: FakeRelay, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Rookery:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("ROOKERY_RELAY", relay.url)
    monkeypatch.setenv("ROOKERY_KEY", cast.robot.nsec)
    monkeypatch.chdir(tmp_path)

    async def command(*args: str) -> int:
        return await asyncio.to_thread(run, list(args))

    return command


def signed(kind: int, tags: list[list[str]], content: str) -> Event:
    return EVE.sign(kind, tags, content, AT)


def note(content: str, number: int, role: str = "assistant", *tags: list[str]) -> Event:
    session = [["d", f"s{number}"], ["role", role], ["ms", f"{AT}000"], ["seq", "0"]]
    return signed(1988, [*session, *tags], content)


def entry(content: str, **given: Any) -> Event:
    values = {"author_id": EVE.pubkey, "author_name": "Eve"} | given
    return EVE.sign(*entry_draft(Entry(content, timestamp=DAY, **values)))


def _entries(**given: Callable[[str], object]) -> list[Event]:
    """With something planted beside the content."""
    return [
        entry(f"{MARK} {number}", **{name: of(text) for name, of in given.items()})
        for number, text in enumerate(PLANTED)
    ]


def _vouched() -> list[Event]:
    found = []
    for number, text in enumerate(PLANTED):
        of = entry(f"{MARK} {number}")
        draft = vouch_draft(of.tag("x") or "", EVE.pubkey, name=text, created_at=AT)
        found += [of, EVE.sign(*draft)]
    return found


TRANSCRIPTS: dict[str, Callable[[], list[Event]]] = {
    "message": lambda: [note(text, number) for number, text in enumerate(PLANTED)],
    "tool result": lambda: [
        note(text, number, "tool_result", ["tool-id", "c"], ["tool-name", text])
        for number, text in enumerate(PLANTED)
    ],
    "file name": lambda: [
        note(f"Read: {json.dumps({'path': text + MARK})}", number, "tool_call", ["cwd", text])
        for number, text in enumerate(PLANTED)
    ],
    "session and role": lambda: [
        signed(1988, [["d", text], ["role", text], ["ms", "1"], ["seq", "0"]], MARK)
        for text in PLANTED
    ],
}
ANAMNESIS: dict[str, Callable[[], list[Event]]] = {
    "content": lambda: [entry(text) for text in PLANTED],
    "name of the author": lambda: _entries(author_name=str),
    "id of the author": lambda: _entries(author_id=str),
    "tags": lambda: _entries(tags=lambda text: (text,)),
    "context": lambda: _entries(context=lambda text: {"x": text}),
    "name of a voucher": _vouched,
}
SEARCHED = {f"session {name}": plant for name, plant in TRANSCRIPTS.items()} | {
    f"claim: {name}": plant for name, plant in ANAMNESIS.items()
}
SEARCHED |= {
    f"aman: {name}": lambda make=make: [  # type: ignore[misc]
        EVE.sign(*draft_of(make(f"{text} {number}"))) for number, text in enumerate(PLANTED)
    ]
    for name, make in AMAN.items()
}
SEARCHED |= {
    "snowclaw: memory": lambda: [
        signed(30078, [["d", f"snowclaw:core:{number}"]], text)
        for number, text in enumerate(PLANTED)
    ],
    "snowclaw: key": lambda: [
        signed(30078, [["d", f"snowclaw:core:{each}"]], MARK) for each in PLANTED
    ],
    "snowclaw: group": lambda: [
        signed(30078, [["d", f"snowclaw:memory:group:{each}"]], json.dumps({"purpose": each}))
        for each in PLANTED
    ],
    "snowclaw: collective": lambda: [
        signed(30078, [["d", f"snow:memory:{each}"], ["t", each]], json.dumps({"summary": each}))
        for each in PLANTED
    ],
}


async def _told(rookery: Rookery, capsys: pytest.CaptureFixture[str], *args: str) -> list[str]:
    assert await rookery(*args, "--format", "context") == 0
    found = list(fences_in(capsys.readouterr().out))
    for fence in found:
        check_record(fence, EVE.npub)
    return found


NAMES = ["Eve", *PLANTED[::9]]


def named(name: str) -> Event:
    return signed(0, [], json.dumps({"name": name}))


@pytest.mark.proves("D-25", "G-23")
@pytest.mark.parametrize("way", TRANSCRIPTS)
async def test_a_search_of_sessions_fences_each_note_and_names_its_author(
    relay: FakeRelay, rookery: Rookery, capsys: pytest.CaptureFixture[str], way: str
) -> None:
    relay.events = [*TRANSCRIPTS[way](), named(NAMES[1])]
    found = await _told(rookery, capsys, "session", "search", MARK, "--limit", "99")
    assert len(found) == len(PLANTED)


@pytest.mark.proves("G-23", "X-18")
@pytest.mark.parametrize("way", ANAMNESIS)
async def test_a_recall_of_claims_fences_each_and_names_its_author(
    relay: FakeRelay, rookery: Rookery, capsys: pytest.CaptureFixture[str], way: str
) -> None:
    relay.events = [*ANAMNESIS[way](), named(NAMES[2])]
    found = await _told(rookery, capsys, "anamnesis", "recall", MARK, "--limit", "99")
    assert len(found) >= len(PLANTED) - 2, "an entry has at most 10,000 characters"


@pytest.mark.proves("G-23", "G-26")
@pytest.mark.parametrize("way", SEARCHED)
async def test_a_search_of_all_systems_fences_each_record_and_names_its_author(
    relay: FakeRelay, rookery: Rookery, capsys: pytest.CaptureFixture[str], way: str
) -> None:
    relay.events = [*SEARCHED[way](), named(NAMES[3])]
    asked = ("memory", "search", MARK, "--limit", "99")
    found = await _told(rookery, capsys, *asked)
    assert await rookery(*asked, "--json") == 0
    hits = json.loads(capsys.readouterr().out)
    assert len(found) == len(hits)
    # What nearly repeats another text is counted, not told.
    met = len(hits) + sum(hit["copies"] for hit in hits)
    untold = ("aman: preference", "aman: summary", "aman: sender", "snowclaw: group", "snowclaw: c")
    assert met >= len(PLANTED) - 2 or way.startswith(untold), met
