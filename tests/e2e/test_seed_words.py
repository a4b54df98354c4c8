"""What the documents of the systems promise, in their own words, at the terminal of their user."""

from __future__ import annotations

import json
import sqlite3
from contextlib import closing
from typing import TYPE_CHECKING

import pytest

from relay.client import Client
from tests import cast
from tests.e2e.machines import Machine, machine
from tests.e2e.test_session_forms import HOME, SESSION, lines_of_a_session, publish, written
from tests.harness.relay_program import Rookery

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

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
async def rookery(tmp_path: Path) -> AsyncIterator[Rookery]:
    async with Rookery(tmp_path / "data") as relay:
        await relay.init("--owner", cast.owner.pubkey, "--agent", cast.robot.pubkey)
        await relay.start()
        yield relay


@pytest.fixture
async def robot(rookery: Rookery) -> AsyncIterator[Machine]:
    async with machine(cast.robot, rookery.url) as robot:
        yield robot


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
