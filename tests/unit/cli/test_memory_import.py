"""`rookery memory import` and `export` against a fake relay: what is read from files and folders,
what is sent, what is said. What a real relay makes of it: tests/e2e/test_memory_files.py."""

from __future__ import annotations

import asyncio
import json
import os
import resource
import sqlite3
from contextlib import closing
from typing import TYPE_CHECKING, Any

import pytest

from relay.cli import memory_import, run
from relay.nostr.event import Event, event_from
from tests.cast import owner, robot, rover
from tests.harness.fake_relay import FakeRelay, refusing
from tests.unit.memory.interop.samples import (
    BASIC_MEMORY,
    BREWED,
    CLAUDE_MEM,
    MEM0,
    NOMEN,
    as_json,
    claude_mem_database,
)

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Coroutine
    from pathlib import Path

    from relay.nostr.keys import SecretKey

    Rookery = Callable[..., Coroutine[Any, Any, dict[str, Any]]]

SECRET = "sk-ant-" + "a1" * 20


@pytest.fixture
async def relay() -> AsyncIterator[FakeRelay]:
    async with FakeRelay() as relay:
        relay.information = {"pubkey": owner.pubkey, "supported_nips": [1]}
        relay.challenges_at_once = True
        yield relay


@pytest.fixture
def imported(
    relay: FakeRelay,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> Rookery:
    """`await imported("x.json")`: what `--json` prints, with the exit code as `code`."""
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("ROOKERY_RELAY", relay.url)
    monkeypatch.setenv("ROOKERY_KEY", robot.nsec)
    monkeypatch.chdir(tmp_path)

    async def command(*args: object, by: SecretKey = robot) -> dict[str, Any]:
        monkeypatch.setenv("ROOKERY_KEY", by.nsec)
        arguments = ["memory", "import", *map(str, args), "--json"]
        code = await asyncio.to_thread(run, arguments)
        out, err = capsys.readouterr()
        return {"code": code, "err": err, **(json.loads(out) if out else {})}

    return command


def sent(relay: FakeRelay) -> list[Event]:
    return [event_from(frame[1]) for frame in relay.verbs("EVENT")]


def folder(tmp_path: Path, **texts: str) -> Path:
    root = tmp_path / "notes"
    root.mkdir(exist_ok=True)
    for name, text in texts.items():
        (root / f"{name}.md").write_text(text)
    return root


# -- what is sent ---------------------------------------------------------------------------------


async def test_a_note_keeps_its_id_its_time_and_its_text(
    relay: FakeRelay, imported: Rookery, tmp_path: Path
) -> None:
    told = await imported(folder(tmp_path, coffee=BASIC_MEMORY))
    (event,) = sent(relay)
    assert (event.kind, event.d) == (30078, "snowclaw:basic-memory:coffee/brewing-methods")
    assert (event.created_at, event.content) == (BREWED, BASIC_MEMORY)
    assert (told["code"], told["from"], told["stored"]) == (0, {"basic-memory": 1}, 1)


async def test_importing_twice_and_from_another_folder_sends_nothing_new(
    relay: FakeRelay, imported: Rookery, tmp_path: Path
) -> None:
    root = folder(tmp_path, a=BASIC_MEMORY, plain="Just a text.\n", n=NOMEN)
    assert (await imported(root))["stored"] == 3
    os.utime(root / "plain.md", (1, 1))
    again = await imported(root.rename(tmp_path / "elsewhere"))
    assert (again["code"], again["unchanged"], again["stored"]) == (0, 3, 0)
    assert len(relay.events) == 3


async def test_what_changed_in_the_source_is_stored_and_what_is_newer_here_is_kept(
    relay: FakeRelay, imported: Rookery, tmp_path: Path
) -> None:
    await imported(folder(tmp_path, a=BASIC_MEMORY))
    await imported(folder(tmp_path, a=BASIC_MEMORY.replace("better", "") + "More.\n"))
    first, second = sent(relay)
    assert (second.d, second.created_at) == (first.d, first.created_at + 1)
    relay.events = [robot.sign(30078, [["d", first.d]], "changed here", BREWED + 60)]
    told = await imported(folder(tmp_path, a=BASIC_MEMORY))
    assert (told["code"], len(sent(relay))) == (0, 2)
    assert told["why_left_out"][0]["why"] == "a newer version is stored"


async def test_a_note_of_the_same_name_from_another_folder_is_told_to_replace_the_first(
    relay: FakeRelay, imported: Rookery, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    alpha = folder(tmp_path, README="Alpha.\n")
    os.utime(alpha / "README.md", (BREWED, BREWED))
    assert (await imported(alpha))["replaced"] == 0
    root = folder(tmp_path, README="Beta.\n", other="Beta, too.\n")
    os.utime(root / "README.md", (BREWED + 60, BREWED + 60))
    d = "snowclaw:markdown:README"
    for options, stored in ((["--dry-run"], 1), ([], 3)):
        told = await imported(root, *options)
        assert told["replaced"] == 1
        assert told["why_replaced"] == [{"where": "README.md:1", "d": d}]
        assert len(sent(relay)) == stored
    del relay.events[0]  # as a relay does with the older version
    again = await imported(root)
    assert (again["replaced"], again["unchanged"]) == (0, 2)
    folder(tmp_path, README="Gamma.\n")
    os.utime(root / "README.md", (BREWED + 120, BREWED + 120))
    assert await asyncio.to_thread(run, ["memory", "import", str(root), "--dry-run"]) == 0
    out, err = capsys.readouterr()
    assert f"would replace: {d} (README.md:1)\n" in err
    assert out.endswith("would store 1, unchanged 1, replaced 1, left out 0, errors 0\n")


async def test_a_plain_note_is_dated_by_its_file_and_never_ahead(
    relay: FakeRelay, imported: Rookery, tmp_path: Path
) -> None:
    root = folder(tmp_path, old="Old.", ahead="---\ndate: 2999-01-01\n---\nAhead.")
    os.utime(root / "old.md", (1_600_000_000, 1_600_000_000))
    assert (await imported(root))["code"] == 0
    times = {event.d: event.created_at for event in sent(relay)}
    assert times["snowclaw:markdown:old"] == 1_600_000_000
    assert 1_700_000_000 < times["snowclaw:markdown:ahead"] < 4_000_000_000


@pytest.mark.parametrize("form", ["JSON", "SQLite"])
async def test_both_forms_of_claude_mem_send_the_same_records(
    relay: FakeRelay, imported: Rookery, tmp_path: Path, form: str
) -> None:
    file = tmp_path / "claude-mem.db"
    if form == "JSON":
        file.write_bytes(as_json(CLAUDE_MEM))
    else:
        claude_mem_database(file)
        file.chmod(0o400)
    told = await imported(file)
    assert (told["code"], told["from"], told["stored"]) == (0, {"claude-mem": 6}, 6)
    prefixes = sorted(":".join(event.d.split(":")[:2]) for event in sent(relay))
    assert prefixes == ["nmem:obs"] * 3 + ["nmem:prompt"] + ["nmem:session"] * 2
    assert (await imported(file))["unchanged"] == 6


async def test_a_session_that_was_recorded_here_is_told_to_be_replaced(
    relay: FakeRelay, imported: Rookery, tmp_path: Path
) -> None:
    """Its summary was replaced by that of somebody's file, which was told to store a new one."""
    file = tmp_path / "claude-mem.json"
    file.write_bytes(as_json(CLAUDE_MEM))
    await imported(file)
    session = next(event for event in sent(relay) if event.d.startswith("nmem:session:"))
    at = session.created_at - 1
    relay.events = [robot.sign(session.kind, session.tags, '{"summary":{}}', at)]
    told = await imported(file, "--dry-run")
    assert [each["d"] for each in told["why_replaced"]] == [session.d]
    assert [each["d"] for each in (await imported(file))["why_replaced"]] == [session.d]
    del relay.events[0]  # as a relay does with the older version
    assert (await imported(file))["replaced"] == 0


async def test_a_database_in_use_is_read_and_left_as_it_is(
    relay: FakeRelay, imported: Rookery, tmp_path: Path
) -> None:
    file = claude_mem_database(tmp_path / "claude-mem.db")
    with closing(sqlite3.connect(file)) as db:
        db.execute("PRAGMA journal_mode = WAL")
        db.execute("UPDATE observations SET title = 'Only in the log' WHERE id = 11")
        db.commit()
        before = file.read_bytes()
        assert (await imported(file))["stored"] == 6
        assert any("Only in the log" in event.content for event in sent(relay))
        assert file.read_bytes() == before
    assert (await imported(file))["unchanged"] == 6


async def test_a_dry_run_names_what_would_be_stored_and_sends_nothing(
    relay: FakeRelay, imported: Rookery, tmp_path: Path
) -> None:
    (tmp_path / "mem0.json").write_bytes(as_json(MEM0))
    told = await imported("mem0.json", "--dry-run")
    assert told["from"] == {"mem0": 2}
    assert (told["code"], told["would_store"], sent(relay)) == (0, 2, [])
    assert told["records"][0] == {
        "where": "mem0.json: results[0]",
        "kind": 30078,
        "d": "snowclaw:mem0:892db2ae-06d9-49e5-8b3e-585ef9b85b8e",
        "created_at": 1_771_398_000,
    }
    await imported("mem0.json")
    assert (await imported("mem0.json", "--dry-run"))["would_store"] == 0


async def test_junk_is_kept_out_and_told_and_anyway_writes_it(
    relay: FakeRelay, imported: Rookery, tmp_path: Path
) -> None:
    root = folder(tmp_path, a=f"The key is {SECRET}.", b="It leaks a lot.", c="it leaks a lot")
    told = await imported(root)
    assert (told["code"], told["stored"], told["changed"]) == (0, 2, 1)
    assert told["why_changed"][0]["where"] == "a.md:1"
    assert told["why_left_out"] == [
        {"where": "c.md:1", "why": "what is known already: It leaks a lot."}
    ]
    assert SECRET not in str(told) + str(sent(relay))
    assert (await imported(root, "--anyway"))["stored"] == 2
    assert SECRET in str(sent(relay))


async def test_one_bad_record_does_not_stop_the_others_and_the_exit_status_says_so(
    relay: FakeRelay, imported: Rookery, tmp_path: Path
) -> None:
    rows = [*MEM0["results"], {"id": "x"}]
    (tmp_path / "mem0.json").write_bytes(as_json({"results": rows}))
    told = await imported("mem0.json")
    assert (told["code"], told["stored"]) == (1, 2)
    assert told["why_errors"] == [
        {"where": "mem0.json: results[2]", "why": "memory must be a string"}
    ]


async def test_what_the_relay_refuses_is_told_with_its_place(
    relay: FakeRelay, imported: Rookery, tmp_path: Path
) -> None:
    relay.on["EVENT"] = refusing("invalid: too many notes")
    told = await imported(folder(tmp_path, a="A note."))
    assert told["code"] == 1
    assert told["why_errors"] == [{"where": "a.md:1", "why": "invalid: too many notes"}]


async def test_a_note_over_the_relays_limit_is_not_sent(
    relay: FakeRelay, imported: Rookery, tmp_path: Path
) -> None:
    relay.information = {"supported_nips": [1], "limitation": {"max_message_length": 4_096}}
    told = await imported(folder(tmp_path, a="long " * 1_000, b="short"))
    assert (told["code"], told["stored"]) == (1, 1)
    assert "the relay takes 4096" in told["why_errors"][0]["why"]


async def test_a_dry_run_leaves_out_what_the_run_leaves_out(
    relay: FakeRelay, imported: Rookery, tmp_path: Path
) -> None:
    def noted(d: str, at: int, by: SecretKey = robot) -> Event:
        return by.sign(30078, [["d", f"snowclaw:core:{d}"]], f"{d} at {at}", at)

    records = [noted(d, BREWED, rover) for d in ("old", "gone", "cleared", "new")]
    entries = [rover.sign(78, [["d", "nmem:obs:1"]], text, BREWED) for text in "ab"]
    relay.events = [
        noted("old", BREWED + 1, rover),
        noted("new", BREWED - 1, rover),
        noted("new", BREWED + 1, robot),
        entries[1],
        rover.sign(5, [["e", records[1].id]], "", BREWED),
        rover.sign(5, [["a", f"30078:{rover.pubkey}:snowclaw:core:cleared"]], "", BREWED),
    ]
    lines = [event.raw for event in (*records, entries[0])]
    (tmp_path / "memory.jsonl").write_bytes(b"\n".join(lines))
    told = await imported("memory.jsonl", "--dry-run")
    assert [each["d"] for each in told["records"]] == ["snowclaw:core:new"]
    assert (told["would_store"], told["unchanged"], told["left_out"]) == (1, 1, 3)
    assert [each["why"] for each in told["why_left_out"]] == [
        "a newer version is stored",
        "it was deleted here",
        "it was deleted here",
    ]


async def test_what_was_read_is_the_sum_of_what_became_of_it(
    relay: FakeRelay, tmp_path: Path, imported: Rookery, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = [*MEM0["results"], {"id": "x"}, {"id": "y", "memory": f"The key is {SECRET}."}]
    rows.append({"id": "z", "memory": " "})
    (tmp_path / "mem0.json").write_bytes(as_json({"results": rows}))
    assert await asyncio.to_thread(run, ["memory", "import", "mem0.json"]) == 1
    out, err = capsys.readouterr()
    assert out == "stored 3, unchanged 0, left out 1, errors 1, 1 text not as in the file\n"
    assert err.startswith("read 5 (form: mem0)\n")


# -- files and folders ----------------------------------------------------------------------------


async def test_nothing_outside_of_the_folder_is_read(
    relay: FakeRelay, imported: Rookery, tmp_path: Path
) -> None:
    root = folder(tmp_path, a="Inside.")
    (tmp_path / "secret.md").write_text("Outside.")
    (tmp_path / "more").mkdir()
    (tmp_path / "more" / "b.md").write_text("Outside.")
    (root / "link.md").symlink_to("../secret.md")
    (root / "linked").symlink_to("../more")
    (root / ".hidden").mkdir()
    (root / ".hidden" / "c.md").write_text("Hidden.")
    os.mkfifo(root / "pipe.md")
    told = await imported(root)
    assert [event.content for event in sent(relay)] == ["Inside."]
    left_out = {each["where"]: each["why"] for each in told["why_left_out"]}
    assert left_out == dict.fromkeys(("link.md", "linked"), "a symbolic link, not followed")


async def test_a_link_that_takes_the_place_of_a_listed_folder_is_not_followed(
    relay: FakeRelay, imported: Rookery, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = folder(tmp_path, a="Inside.")
    for place, text in ((root / "sub", "Inside too."), (tmp_path / "more", "Outside.")):
        place.mkdir()
        (place / "b.md").write_text(text)
    listed = memory_import._files_below

    def replaced(*args: Any) -> list[str]:
        found = listed(*args)
        (root / "sub").rename(tmp_path / "was")
        (root / "sub").symlink_to("../more")
        return found

    monkeypatch.setattr(memory_import, "_files_below", replaced)
    told = await imported(root)
    assert [event.content for event in sent(relay)] == ["Inside."]
    assert [each["where"] for each in told["why_errors"]] == ["sub/b.md"]


async def test_a_file_that_is_no_text_or_too_large_does_not_stop_the_others(
    relay: FakeRelay, imported: Rookery, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(memory_import, "_MAX_NOTE", 1_000)
    root = folder(tmp_path, a="Fine.", large="x" * 1_001)
    (root / "broken.md").write_bytes(b"one\ntwo \xff")
    (root / "nul.md").write_bytes(b"one\0")
    told = await imported(root)
    assert (told["code"], told["stored"]) == (1, 1)
    why = {each["where"]: each["why"] for each in told["why_errors"]}
    assert why["broken.md:2"] == "byte 8 is not UTF-8"
    assert why["nul.md:1"] == "line 1: a NUL byte"
    assert why["large.md"].startswith("large.md: over")


@pytest.mark.parametrize(("limit", "value"), [("_MAX_FOLDER", 10), ("MAX_RECORDS", 1)])
async def test_a_folder_is_read_up_to_its_limits(
    relay: FakeRelay,
    imported: Rookery,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    limit: str,
    value: int,
) -> None:
    monkeypatch.setattr(memory_import, limit, value)
    told = await imported(folder(tmp_path, a="One note.", b="Another note."))
    assert (told["code"], sent(relay)) == (1, [])
    assert "import it in parts" in told["err"]


async def test_a_folder_is_followed_so_deep_and_no_deeper(
    relay: FakeRelay, imported: Rookery, tmp_path: Path
) -> None:
    deep = folder(tmp_path, a="Here.")
    for _ in range(40):
        deep = deep / "d"
    deep.mkdir(parents=True)
    (deep / "b.md").write_text("Deep.")
    told = await imported(tmp_path / "notes")
    assert (told["code"], len(sent(relay))) == (1, 1)
    assert told["why_errors"][0]["why"] == "over 32 folders deep"


@pytest.mark.parametrize(
    ("name", "data", "said"),
    [
        ("x.json", b"{", "x.json:1: is not JSON"),
        ("x.json", b"{}", "x.json: is no export of a known tool"),
        ("x.md", b"\xff", "x.md: byte 0 is not UTF-8"),
        ("x.db", b"SQLite format 3\0" + b"x" * 4_096, "x.db: file is not a database"),
    ],
)
async def test_a_file_of_no_known_form_is_an_error_that_names_it(
    relay: FakeRelay, imported: Rookery, tmp_path: Path, name: str, data: bytes, said: str
) -> None:
    (tmp_path / name).write_bytes(data)
    told = await imported(name)
    assert (told["code"], sent(relay)) == (1, [])
    assert said in told["err"]


@pytest.mark.parametrize(
    ("schema", "said"),
    [
        ("CREATE TABLE sessions (id); CREATE TABLE observations (id)", "rookery nmem import"),
        (
            "CREATE TABLE sdk_sessions (id); CREATE VIEW observations AS WITH RECURSIVE"
            " c(id) AS (SELECT 1 UNION ALL SELECT id FROM c) SELECT id FROM c",
            "is no database of claude-mem",
        ),
        (
            "CREATE TABLE sdk_sessions (id); CREATE VIRTUAL TABLE observations USING fts5(id)",
            "is no database of claude-mem",
        ),
        (
            "CREATE TABLE sdk_sessions (id, b AS (zeroblob(4000000)));"
            " CREATE TABLE observations (id); INSERT INTO sdk_sessions VALUES (1)",
            "is no database of claude-mem: its sdk_sessions has generated columns",
        ),
        (
            "CREATE TABLE sdk_sessions (id); CREATE TABLE observations (id, b AS (hex(id)) STORED);"
            " CREATE VIRTUAL TABLE pragma_table_xinfo USING fts5(hidden)",
            "is no database of claude-mem: its observations has generated columns",
        ),
        (
            "CREATE TABLE sdk_sessions (id); CREATE TABLE observations (id);"
            " WITH RECURSIVE c(id) AS (SELECT 1 UNION ALL SELECT id + 1 FROM c WHERE id < 200001)"
            " INSERT INTO sdk_sessions SELECT id FROM c",
            "sdk_sessions: over 200000 rows or 256 MiB",
        ),
    ],
    ids=["nmem", "endless view", "virtual table", "generated blobs", "own pragma", "rows"],
)
async def test_another_database_is_refused(
    imported: Rookery, tmp_path: Path, schema: str, said: str
) -> None:
    db = sqlite3.connect(tmp_path / "x.db")
    db.executescript(schema)
    db.close()
    told = await imported("x.db")
    assert told["code"] == 1
    assert said in told["err"]


async def test_what_a_file_says_cannot_steer_the_terminal(
    relay: FakeRelay, tmp_path: Path, imported: Rookery, capsys: pytest.CaptureFixture[str]
) -> None:
    root = folder(tmp_path)
    (root / "a\x1b[2J.md").write_text("One.")
    (root / "b\x1b]0;x\x07.md").write_text("Two.")
    assert await asyncio.to_thread(run, ["memory", "import", str(root), "--dry-run"]) == 1
    out, err = capsys.readouterr()
    assert "\x1b" not in out + err
    assert "its id must be 1 to 512 printable characters" in err


async def test_a_person_is_told_the_form_what_would_be_stored_and_what_not(
    relay: FakeRelay, tmp_path: Path, imported: Rookery, capsys: pytest.CaptureFixture[str]
) -> None:
    root = folder(tmp_path, a=BASIC_MEMORY, b="It leaks a lot.", c="it leaks a lot", d="")
    (root / "picture.png").touch()
    assert await asyncio.to_thread(run, ["memory", "import", str(root), "--dry-run"]) == 0
    out, err = capsys.readouterr()
    assert out.splitlines() == [
        "would store snowclaw:basic-memory:coffee/brewing-methods  (a.md:4)",
        "would store snowclaw:basic-memory:b  (b.md:1)",
        "would store 2, unchanged 0, left out 2, errors 0",
    ]
    assert err.splitlines() == [
        "read 4 (form: basic-memory)",
        "not read: 1 file of another type than .md and .markdown",
        "left out: d.md:1: it has no text",
        "left out: c.md:1: what is known already: It leaks a lot.",
    ]


# -- export ---------------------------------------------------------------------------------------


async def test_an_export_to_markdown_holds_ones_own_notes_as_they_were(
    relay: FakeRelay, imported: Rookery, tmp_path: Path
) -> None:
    await imported(folder(tmp_path, a=BASIC_MEMORY))
    other = rover.sign(30078, [["d", "snowclaw:core:x"]], "By another key.", BREWED)
    relay.events += [other, robot.sign(30078, [["d", "other-app"]], "not memory", BREWED)]
    assert await asyncio.to_thread(run, ["memory", "export", "--to", "markdown", "out"]) == 0
    files = {path.name[:-16]: path.read_text() for path in (tmp_path / "out").iterdir()}
    assert files.keys() == {"snowclaw-basic-memory-coffee-brewing-methods", "snowclaw-core-x"}
    assert files["snowclaw-basic-memory-coffee-brewing-methods"].endswith(
        BASIC_MEMORY.removeprefix("---\n")
    )
    assert f'rookery_author: "unnamed ({rover.npub[:20]}' in files["snowclaw-core-x"]
    assert {path.stat().st_mode & 0o777 for path in (tmp_path / "out").iterdir()} == {0o600}


async def test_notes_of_both_keys_of_client_toml_are_ones_own(
    relay: FakeRelay, tmp_path: Path, imported: Rookery, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / ".config/rookery/client.toml"
    file.parent.mkdir(parents=True)
    file.write_text('key_file = "me.nsec"\nagent_key_file = "robot.nsec"\n')
    for name, key in (("me", owner), ("robot", robot)):
        (file.parent / f"{name}.nsec").write_text(key.nsec)
    monkeypatch.delenv("ROOKERY_KEY")
    notes = {key: key.sign(30078, [["d", "snowclaw:core:x"]], "It leaks.", BREWED) for key in
             (owner, robot)}  # fmt: skip
    relay.events = [*notes.values()]
    assert await asyncio.to_thread(run, ["memory", "export", "--to", "markdown", "out"]) == 0
    for path in (tmp_path / "out").iterdir():
        path.write_text(path.read_text().replace("leaks", "held"))
    assert await asyncio.to_thread(run, ["memory", "import", "out"]) == 0
    edited = {event.pubkey: event.content for event in sent(relay)}
    assert edited == {owner.pubkey: "It held.", robot.pubkey: "It held."}


def test_what_an_export_needs_is_told_on_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["memory", "export", "m.jsonl"]) == 2
    assert "Missing option '--to'. Choose from: markdown, jsonl (see" in capsys.readouterr().err
    assert run(["memory", "export", "m.jsonl", "--to", "jsonl", "--system", "x y"]) == 2
    assert "'x y' is not one of 'aman', 'snowclaw'" in capsys.readouterr().err


async def test_an_export_writes_through_no_symbolic_link(
    relay: FakeRelay, imported: Rookery, tmp_path: Path
) -> None:
    await imported(folder(tmp_path, a="A note."))
    export = ["memory", "export", "--to", "markdown", "out"]
    assert await asyncio.to_thread(run, export) == 0
    (file,) = (tmp_path / "out").iterdir()
    file.unlink()
    file.symlink_to(tmp_path / "elsewhere")
    assert await asyncio.to_thread(run, export) == 1
    assert not (tmp_path / "elsewhere").exists()


async def test_an_export_to_a_full_disk_leaves_a_file_as_it_was(
    relay: FakeRelay, imported: Rookery, tmp_path: Path
) -> None:
    await imported(folder(tmp_path, a=4000 * "A note. "))
    export = ["memory", "export", "--to", "markdown", "out"]
    assert await asyncio.to_thread(run, export) == 0
    (file,) = (tmp_path / "out").iterdir()
    edited = f"{file.read_text()}\nNot imported yet."
    file.write_text(edited)
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (4096, limits[1]))
    try:
        with pytest.raises(OSError, match="File too large"):
            await asyncio.to_thread(run, export)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert [*(tmp_path / "out").iterdir()] == [file]
    assert file.read_text() == edited
    assert await asyncio.to_thread(run, export) == 0
    assert [*(tmp_path / "out").iterdir()] == [file]
    assert "Not imported yet." not in file.read_text()


async def test_an_export_writes_to_no_file_that_another_user_has_made_or_opened(
    relay: FakeRelay, imported: Rookery, tmp_path: Path, give_away: Callable[[Path], None]
) -> None:
    await imported(folder(tmp_path, a="A note."))
    export = ["memory", "export", "--to", "markdown", "out"]
    assert await asyncio.to_thread(run, export) == 0
    (file,) = (tmp_path / "out").iterdir()
    file.chmod(0o666)
    file.write_text("before")
    with file.open() as spy:
        assert await asyncio.to_thread(run, export) == 0
        assert spy.read() == "before"
    assert "A note." in file.read_text()
    assert file.stat().st_mode & 0o777 == 0o600
    file.write_text("before")
    give_away(file)
    assert await asyncio.to_thread(run, export) == 1
    assert file.read_text() == "before"


async def test_a_file_cannot_replace_a_record_that_it_was_not_exported_from(
    relay: FakeRelay, imported: Rookery, tmp_path: Path
) -> None:
    old, new = (robot.sign(30078, [["d", "snowclaw:core:me"]], text, BREWED) for text in "ab")
    relay.events = [new]
    for d, event in (("snowclaw:core:me", old), ("snowclaw:core:other", new)):
        fields = {"id": event.id, "pubkey": robot.pubkey, "tags": [["d", d]]}
        root = folder(tmp_path, a=f"---\nrookery: {json.dumps(fields)}\n---\nObey.")
        told = await imported(root)
        assert (told["code"], sent(relay)) == (1, [])
        assert told["why_errors"][0]["why"].startswith("the text was changed, and what is stored")
