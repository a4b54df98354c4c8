"""What the documents of the systems promise, in their own words, at the terminal of their user."""

from __future__ import annotations

import hashlib
import json
import sqlite3
from contextlib import asynccontextmanager, closing
from typing import TYPE_CHECKING, Any

import pytest
from aiohttp import web

from relay.client import Client
from relay.client.nmem.cipher import cipher_module
from tests import cast
from tests.e2e.machines import Machine, machine
from tests.e2e.test_session_forms import HOME, SESSION, lines_of_a_session, publish, written
from tests.harness.web_server import answering

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from tests.harness.relay_program import Rookery

pytestmark = pytest.mark.slow

# Tables, types and indexes as nmem's document lists them.
NMEM_SCHEMA = """
CREATE TABLE sessions (
    id TEXT PRIMARY KEY, project TEXT NOT NULL, started_at INTEGER NOT NULL, ended_at INTEGER,
    signature TEXT, summary TEXT
);
CREATE TABLE prompts (
    id INTEGER PRIMARY KEY, session_id TEXT NOT NULL REFERENCES sessions(id),
    timestamp INTEGER NOT NULL, source TEXT NOT NULL, content TEXT NOT NULL
);
CREATE TABLE observations (
    id INTEGER PRIMARY KEY, session_id TEXT NOT NULL REFERENCES sessions(id),
    prompt_id INTEGER REFERENCES prompts(id), timestamp INTEGER NOT NULL, obs_type TEXT NOT NULL,
    source_event TEXT NOT NULL, tool_name TEXT, file_path TEXT, content TEXT NOT NULL,
    metadata TEXT, is_pinned INTEGER NOT NULL DEFAULT 0
);
CREATE TABLE _cursor (session_id TEXT PRIMARY KEY, line_number INTEGER NOT NULL DEFAULT 0);
CREATE VIRTUAL TABLE observations_fts USING fts5(
    content, content='observations', content_rowid='id', tokenize='porter unicode61'
);
CREATE VIRTUAL TABLE prompts_fts USING fts5(
    content, content='prompts', content_rowid='id', tokenize='porter unicode61'
);
CREATE TRIGGER observations_fts_insert AFTER INSERT ON observations BEGIN
    INSERT INTO observations_fts(rowid, content) VALUES (new.id, new.content);
END;
CREATE TRIGGER observations_fts_delete AFTER DELETE ON observations BEGIN
    INSERT INTO observations_fts(observations_fts, rowid, content)
    VALUES ('delete', old.id, old.content);
END;
CREATE TRIGGER observations_fts_update AFTER UPDATE ON observations BEGIN
    INSERT INTO observations_fts(observations_fts, rowid, content)
    VALUES ('delete', old.id, old.content);
    INSERT INTO observations_fts(rowid, content) VALUES (new.id, new.content);
END;
CREATE TRIGGER prompts_fts_insert AFTER INSERT ON prompts BEGIN
    INSERT INTO prompts_fts(rowid, content) VALUES (new.id, new.content);
END;
CREATE TRIGGER prompts_fts_delete AFTER DELETE ON prompts BEGIN
    INSERT INTO prompts_fts(prompts_fts, rowid, content) VALUES ('delete', old.id, old.content);
END;
CREATE INDEX idx_obs_dedup ON observations(session_id, obs_type, file_path, timestamp);
CREATE INDEX idx_obs_session ON observations(session_id, timestamp);
CREATE INDEX idx_obs_prompt ON observations(prompt_id);
CREATE INDEX idx_obs_type ON observations(obs_type);
CREATE INDEX idx_obs_file ON observations(file_path) WHERE file_path IS NOT NULL;
CREATE INDEX idx_prompts_session ON prompts(session_id, id);
PRAGMA user_version = 2;
INSERT INTO sessions VALUES ('s-1', 'rook', 1770669815, NULL, NULL, NULL);
INSERT INTO prompts VALUES (1, 's-1', 1770669816, 'user', 'why does the kettle whistle?');
INSERT INTO observations VALUES
    (1, 's-1', 1, 1770669817, 'file_edit', 'PostToolUse', 'Edit', '/w/spout.py', 'a lid', NULL, 1);
"""


@pytest.fixture
async def owner(rookery: Rookery) -> AsyncIterator[Machine]:
    async with machine(cast.owner, rookery.url) as owner:
        yield owner


async def said(place: Machine, *args: str) -> str:
    """Both streams, unless JSON is asked for."""
    code, out, err = await place.run(*args)
    assert code == 0, (args, out, err)
    return out.decode() + ("" if "search" in args else err)


@pytest.mark.proves("D-18", "D-23", "D-24")
async def test_a_session_in_the_documents_form_is_rebuilt_for_claude_resume(
    rookery: Rookery, robot: Machine
) -> None:
    """ "Determine local working directory. Re-expand all relative paths to absolute using local
    `cwd`. Update `cwd`, `gitBranch`. Write as JSONL file. Resume via `claude --resume`."""
    (robot.work / ".git" / "HEAD").write_text("ref: refs/heads/elsewhere\n")
    lines = [line.replace(HOME, ".") for line in lines_of_a_session(12)]
    lines[0] = lines[0].replace("question 0", "read ./src/a.rs")
    await publish(rookery.url, written(lines))
    told = await said(robot, "session", "resume", SESSION)
    assert f"claude --resume {SESSION}" in told
    (path,) = (robot.home / ".claude" / "projects").rglob(f"{SESSION}.jsonl")
    work = str(robot.work.resolve())
    assert [json.loads(line) for line in path.read_text().splitlines()] == [
        {**json.loads(line), "cwd": work, "gitBranch": "elsewhere"} for line in lines
    ]
    # In running text nobody knows what was a path.
    assert "lines have relative paths, which cannot be restored" in told
    assert f"{path} exists" in await said(robot, "session", "resume", SESSION)


@pytest.mark.proves("D-14", "D-18")
async def test_a_session_in_the_documents_form_goes_on_in_that_form(
    rookery: Rookery, robot: Machine
) -> None:
    """Stored by any program, resumed elsewhere, imported again: no turn twice, and new turns are
    replies to the old ones."""
    (robot.work / ".git" / "HEAD").write_text("ref: refs/heads/elsewhere\n")
    lines = [line.replace(HOME, ".") for line in lines_of_a_session(12)]
    notes = written(lines)
    await publish(rookery.url, notes)
    await said(robot, "session", "resume", SESSION)
    (path,) = (robot.home / ".claude" / "projects").rglob(f"{SESSION}.jsonl")

    told = await said(robot, "session", "import", str(path))
    assert told == (f"{SESSION}: 12 lines, 16 notes, 0 source events, 0 stored, 16 duplicates\n")
    last = json.loads(path.read_text().splitlines()[-1])
    turn = {**last, "uuid": "u12", "parentUuid": "u11", "type": "user"}
    turn["message"] = {"role": "user", "content": f"and {robot.work.resolve()}/b.rs?"}
    with path.open("a") as file:
        file.write(json.dumps(turn, separators=(",", ":")) + "\n")
    for stored in ("1 stored, 16 duplicates", "0 stored, 17 duplicates"):
        told = await said(robot, "session", "import", str(path))
        assert told == f"{SESSION}: 13 lines, 17 notes, 0 source events, {stored}\n"

    async with Client(rookery.url, cast.robot) as client:
        events = await client.query({"kinds": [1988, 1989], "limit": 100})
    (added,) = [each for each in events if each.id not in {note.id for note in notes}]
    assert [tag for tag in added.tags if tag[0] == "e"] == [
        ["e", notes[0].id, "", "root"],
        ["e", notes[-1].id, "", "reply"],
    ]
    assert json.loads(added.tag("source-data") or "")["message"]["content"] == "and ./b.rs?"
    async with machine(cast.robot, rookery.url) as second:
        await said(second, "session", "resume", SESSION)
        (path,) = (second.home / ".claude" / "projects").rglob(f"{SESSION}.jsonl")
        assert len(path.read_text().splitlines()) == 13
        told = await said(second, "session", "import", str(path))
        assert told.endswith(" 0 stored, 17 duplicates\n")


@pytest.mark.proves("D-14", "D-18")
async def test_a_session_in_the_documents_form_is_followed_in_that_form(
    rookery: Rookery, robot: Machine
) -> None:
    """Stored by any program, resumed elsewhere and followed: new turns are replies to the old."""
    lines = [line.replace(HOME, ".") for line in lines_of_a_session(12)]
    notes = written(lines)
    await publish(rookery.url, notes)
    await said(robot, "session", "resume", SESSION)
    (path,) = (robot.home / ".claude" / "projects").rglob(f"{SESSION}.jsonl")

    told = await said(robot, "session", "follow", str(path), "--once")
    assert told == f"{SESSION}: 12 lines, 0 stored, 16 duplicates\n"
    last = json.loads(path.read_text().splitlines()[-1])
    for number in (12, 13):
        turn = {**last, "uuid": f"u{number}", "parentUuid": f"u{number - 1}", "type": "user"}
        turn["message"] = {"role": "user", "content": f"turn {number}"}
        with path.open("a") as file:
            file.write(json.dumps(turn, separators=(",", ":")) + "\n")
        told = await said(robot, "session", "follow", str(path), "--once")
        assert told == f"{SESSION}: {number + 1} lines, 1 stored, {number + 4} duplicates\n"

    async with Client(rookery.url, cast.robot) as client:
        events = await client.query({"kinds": [1988, 1989], "limit": 100})
    added = [each for each in events if each.id not in {note.id for note in notes}]
    first, second = sorted(added, key=lambda event: event.content)
    for note, before in ((first, notes[-1]), (second, first)):
        assert [tag for tag in note.tags if tag[0] == "e"] == [
            ["e", notes[0].id, "", "root"],
            ["e", before.id, "", "reply"],
        ]
    code, out, _ = await robot.run("session", "export", SESSION)
    assert code == 0
    assert len(out.decode().splitlines()) == 14


@pytest.mark.proves("S-12", "S-13", "S-17")
async def test_sensitive_preferences_are_encrypted_and_configuration_has_a_source(
    rookery: Rookery, robot: Machine, owner: Machine
) -> None:
    """ "Content encrypted to agent's own pubkey. Use case: storing sensitive user preferences."
    "npub config, group config, global dynamic, file config, default."""
    alice, text = cast.alice.npub, "prefers oolong in secret"
    await said(robot, "memory", "set", alice, "--note", text, "--encrypted")
    async with Client(rookery.url, cast.owner) as client:
        events = await client.query({"kinds": [30078], "authors": [cast.robot.pubkey]})
    assert ["encrypted", "nip44"] in events[0].tags
    assert b"oolong" not in b"".join(event.raw for event in events)
    assert text in await said(robot, "memory", "get", alice)
    code, out, err = await owner.run("memory", "get", alice)
    assert text not in out.decode() + err, code

    await said(owner, "config", "set", "global", "respond_mode=all", "context_history=30")
    await said(owner, "config", "set", "group:techteam", "respond_mode=mention")
    await said(owner, "config", "set", f"npub:{alice}", "respond_mode=none")
    got = await said(owner, "config", "get", "group:techteam")
    assert got == "respond_mode=mention (group)\ncontext_history=30 (global)\n"
    listed = await said(owner, "config", "list")
    assert all(scope in listed for scope in ("global", "group:techteam", "npub:"))
    await said(owner, "config", "unset", "group:techteam", "respond_mode")
    got = await said(owner, "config", "get", "group:techteam")
    assert got.startswith("respond_mode=all (global)\n")
    await said(owner, "config", "unset", "global")
    got = await said(owner, "config", "get", "group:techteam")
    assert got == "respond_mode=mention (default)\ncontext_history=20 (default)\n"


@pytest.mark.proves("M-08", "M-12")
async def test_a_database_of_nmem_is_adopted_where_it_is(rookery: Rookery, robot: Machine) -> None:
    """Its prompts are found, its pins stay; the original file is kept beside it, byte for byte."""
    path = robot.data / "nmem.db"
    path.parent.mkdir(parents=True)
    with closing(sqlite3.connect(path)) as file:
        file.executescript(NMEM_SCHEMA)
    original = path.read_bytes()
    found = json.loads(await said(robot, "nmem", "search", "whistles"))
    assert [row["obs_type"] for row in found] == ["prompt"]
    (row,) = json.loads(await said(robot, "nmem", "search", "lid"))
    assert row["is_pinned"]
    (kept,) = path.parent.glob("nmem.db*.original")
    assert kept.read_bytes() == original
    await said(robot, "nmem", "sync")
    async with machine(cast.robot, rookery.url) as second:
        await said(second, "nmem", "sync")
        (row,) = json.loads(await said(second, "nmem", "search", "lid"))
        assert (row["is_pinned"], row["file_path"]) == (True, "/w/spout.py")
        assert json.loads(await said(second, "nmem", "search", "whistles"))
    told = await said(robot, "nmem", "status")
    assert "no model is configured" in told


@asynccontextmanager
async def model(answer: str, asked: list[Any]) -> AsyncIterator[str]:
    """An OpenAI-compatible endpoint that always says the same."""

    async def complete(request: web.Request) -> web.Response:
        if request.path != "/v1/chat/completions":
            raise web.HTTPNotFound
        asked.append(await request.json())
        return web.json_response({"choices": [{"message": {"content": answer}}]})

    async with answering(complete) as at:
        yield f"http://{at}/v1"


@pytest.mark.proves("M-06")
async def test_a_session_is_summarised_at_once_when_asked(rookery: Rookery, robot: Machine) -> None:
    """ "Generated via local LLM." "Fields use `string_or_vec` deserialization — accepts either a
    string or array (small model tolerance)." """
    summary = {
        "intent": "a quieter kettle",
        "learned": "the lid whistles",
        "completed": ["lid turned"],
        "next_steps": [],
        "files_read": [],
        "files_edited": "/w/lid.py",
        "notes": "tape melts",
    }
    asked: list[Any] = []
    async with model(json.dumps(summary), asked) as url:
        robot.set_up(f'[nmem]\nsummary_url = "{url}"\nsummary_model = "small"\n')
        assert await robot.hook("SessionStart", source="startup") == ""
        await robot.keeper_there()
        await robot.hook("UserPromptSubmit", prompt="why does the kettle whistle?")
        for name in ("lid", "spout", "handle"):
            edited = {"file_path": f"/w/{name}.py"}
            await robot.hook("PostToolUse", tool_name="Edit", tool_input=edited)
        await robot.hook("Stop")
        await robot.all_sent()
        assert asked == []  # the session may go on
        done = json.loads(await said(robot, "nmem", "maintain", "--session", "s-1", "--json"))
        assert done["summarised"] == 1
    ((question, *_),) = [each["messages"][1:] for each in asked]
    assert "why does the kettle whistle?" in question["content"]
    assert "/w/lid.py" in question["content"]
    assert "a quieter kettle" in await said(robot, "nmem", "context")
    await said(robot, "nmem", "sync")
    async with machine(cast.robot, rookery.url) as second:
        await said(second, "nmem", "sync")
        context = await said(second, "nmem", "context")
        assert "a quieter kettle" in context
        assert "the lid whistles" in context


@pytest.mark.proves("M-09")
@pytest.mark.skipif(
    cipher_module() is None, reason="there is no wheel of SQLCipher for this system"
)
async def test_the_cache_is_encrypted_with_sqlcipher(rookery: Rookery, robot: Machine) -> None:
    """ "SQLite with SQLCipher encryption": unreadable without the key, wherever that is given."""
    path = robot.data / "nmem.db"
    path.parent.mkdir(parents=True)
    robot.environ["NMEM_KEY"] = "a long passphrase"
    with closing(cipher_module().connect(str(path))) as file:
        file.execute("PRAGMA key = 'a long passphrase'")
        file.executescript(NMEM_SCHEMA)
    (row,) = json.loads(await said(robot, "nmem", "search", "whistles"))
    assert row["obs_type"] == "prompt"
    assert not path.read_bytes().startswith(b"SQLite format 3")
    assert b"kettle" not in b"".join(each.read_bytes() for each in path.parent.iterdir())
    robot.environ["NMEM_KEY"] = "another"
    code, _, err = await robot.run("nmem", "search", "whistles")
    assert code == 1
    assert "NMEM_KEY" in err
    assert "another" not in err


async def test_the_schema_of_a_memory_entry_ships(robot: Machine) -> None:
    """ "See `memory-entry-schema.json` for the full JSON Schema." "Required Fields"."""
    schema = json.loads(await said(robot, "anamnesis", "schema"))
    properties = schema["properties"]
    assert schema["required"] == ["content", "author", "timestamp", "content_hash"]
    assert properties["author"]["required"] == ["id", "name"]
    assert properties["memory_type"]["enum"] == ["episodic", "semantic", "procedural", "insight"]
    optional = {"parent_refs", "vouchers", "confidence", "tags", "context", "superseded_by"}
    assert optional <= properties.keys()
    text = "the kettle whistles"
    entry: dict[str, object] = {
        "content": text,
        "author": {"id": "agent-abc", "name": "Kettle"},
        "timestamp": "2026-02-02T16:00:00Z",
        "content_hash": hashlib.sha256(text.encode()).hexdigest(),
    }
    path = robot.work / "entry.json"
    path.write_text(json.dumps(entry))
    assert (await said(robot, "anamnesis", "validate", str(path))).startswith("valid\n")
    path.write_text(json.dumps({**entry, "confidence": 1.5}))
    code, out, _ = await robot.run("anamnesis", "validate", str(path))
    assert code == 1
    assert b"confidence" in out
