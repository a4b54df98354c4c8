"""Junk is kept out of all five systems when it is written, and the writer is told what and why.

Secrets, echoes of what was recalled, near-duplicates; `--anyway` where a person decides. Lines of
sessions are archives: there is a warning.
"""

from __future__ import annotations

import json
import time
from typing import TYPE_CHECKING

import pytest

from relay.client import Aman, Anamnesis, Client, Nmem, Snowclaw
from relay.client.writer import Outcome
from relay.errors import Invalid
from relay.memory.anamnesis.checks import content_hash
from relay.memory.fence import fenced
from relay.memory.junk import Why
from relay.memory.systems import MEMORY_SYSTEMS
from tests import cast
from tests.harness.relay_program import Rookery, eventually, outputs

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    from relay.nostr.event import Event

pytestmark = pytest.mark.slow

SECRET = "sk-ant-" + "a1" * 20
TOLD = "kept out: what looks like a secret: [REDACTED] stands in its place; --anyway writes it\n"
FACT = "The green kettle is for oolong only, since the third of May."
SAME = "the green kettle is for oolong only; since third of may"
ECHO = fenced(FACT, "snowclaw x", cast.alice.npub)
OTHER_FACT = "The red kettle is for nothing but black tea, since the fourth of May."


@pytest.fixture
async def rookery(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Rookery]:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("NMEM_KEY", raising=False)
    monkeypatch.delenv("NOSTR_SECRETBOX_KEY", raising=False)
    async with Rookery(tmp_path / "relay") as relay:
        agents = [arg for who in (cast.robot, cast.rover) for arg in ("--agent", who.pubkey)]
        await relay.init("--owner", cast.owner.pubkey, *agents)
        await relay.start()
        monkeypatch.setenv("ROOKERY_RELAY", relay.url)
        monkeypatch.setenv("ROOKERY_KEY", cast.robot.nsec)
        yield relay


async def run(*args: str) -> tuple[str, str]:
    code, out, err = await outputs(*args)
    assert code == 0, err
    return out.decode(), err


async def stored(rookery: Rookery) -> list[Event]:
    async with Client(rookery.url, cast.robot) as client:
        return await client.query({"authors": [cast.robot.pubkey]})


@pytest.mark.proves("M-30")
async def test_no_secret_reaches_the_relay_unless_a_person_says_so(
    rookery: Rookery, tmp_path: Path
) -> None:
    text = f"the key is {SECRET} today"
    commands = {
        "aman": ("aman", "set-preference", "hk", text),
        "aman tool": ("aman", "add-tool", "hk", "curl", "--ok", "--content", text),
        "snowclaw": ("memory", "set", cast.alice.npub, "--note", text),
        "anamnesis": ("anamnesis", "remember", text),
        "nmem": ("nmem", "mark", text),
    }
    for name, command in commands.items():
        _, err = await run(*command)
        assert err.endswith(TOLD) or TOLD in err, name
        assert SECRET not in err, name
    await run("nmem", "sync")
    everything = [event.content for event in await stored(rookery)]
    assert sum("[REDACTED]" in content for content in everything) == len(commands)
    assert not [content for content in everything if SECRET in content]

    line = json.dumps({"type": "user", "uuid": "u", "message": {"role": "user", "content": text}})
    session = tmp_path / "s.jsonl"
    session.write_text(f"{line}\n{line.replace(SECRET, 'none')}\n")
    _, err = await run("session", "import", str(session))
    assert "1 line with what looks like a secret, sent as they are; --strip secrets takes" in err
    assert SECRET not in err
    out, _ = await run("session", "export", "s")
    assert out == session.read_text()

    call = {"type": "tool_use", "id": "t", "name": "x", "input": {"password": "hunter2", "pin": 1}}
    named = {"type": "assistant", "uuid": "v", "message": {"content": [call]}}
    other = {"type": "user", "uuid": "w", "message": {"content": "an empty password="}}
    session.write_text(f"{json.dumps(named)}\n{json.dumps(other)}\n")
    out, err = await run("session", "import", str(session), "--session", "x", "--strip", "secrets")
    assert "looks like a secret" not in err
    out, _ = await run("session", "export", "x")
    assert [("hunter2" in line, line.count("[REDACTED]")) for line in out.splitlines()] == [
        (False, 1),
        (False, 0),
    ]
    _, err = await run("session", "import", str(session), "--session", "named")
    assert "1 line with what looks like a secret" in err

    for name, command in commands.items():
        _, err = await run(*command, "--anyway")
        assert "kept out" not in err, name
    await run("nmem", "sync")
    kinds = {event.kind for event in await stored(rookery) if SECRET in event.content}
    assert kinds >= {30093, 30095, 30078, 78}


async def test_what_was_recalled_is_not_written_again(rookery: Rookery, tmp_path: Path) -> None:
    async with Aman(rookery.url, cast.robot) as aman:
        assert (await aman.set_preference("hk", ECHO)).outcome is Outcome.KEPT_OUT
        assert (
            await aman.add_tool("hk", "t", success=True, content=f"so: {ECHO}")
        ).outcome is Outcome.STORED
        assert [each.why for each in aman.kept_out] == [Why.ECHO, Why.ECHO]
        assert [call.content for call in await aman.tools("hk")] == ["so:"]
    async with Snowclaw(rookery.url, cast.robot, cast.owner.npub) as claw:
        await claw.start()
        assert (await claw.store("kettle", FACT)).outcome is Outcome.STORED
        assert [hit.text for hit in await claw.recall("oolong")] == [FACT]
        claw.note_user(cast.alice.npub, SAME)  # what it was just told
        claw.note_user(cast.alice.npub, ECHO)
        assert (await claw.store("again", SAME)).outcome is Outcome.KEPT_OUT
        assert [each.why for each in claw.kept_out] == [Why.ECHO] * 3
        assert claw.unsaved == 0
    async with Nmem(rookery.url, cast.robot, tmp_path / "nmem.db") as nmem:
        hook = {"session_id": "s", "cwd": "/w/rook", "hook_event_name": "UserPromptSubmit"}
        await nmem.hook({**hook, "prompt": f"{ECHO}\nmake tea"})
        await nmem.hook({**hook, "prompt": ECHO})
        _, prompts, _ = await nmem.trace("s")
        assert [prompt.content for prompt in prompts] == ["make tea"]
        assert (await nmem.counts()).echoes == 2
        assert FACT in next(iter((await nmem.recall("oolong kettle")).hits)).text
        with pytest.raises(Invalid, match="all of it was recalled"):
            await nmem.mark(SAME, "rook")
    async with Anamnesis(rookery.url, cast.robot) as anamnesis:
        hashed = await anamnesis.remember(f"{ECHO} {OTHER_FACT}")
        assert hashed == content_hash(OTHER_FACT)
    texts = [MEMORY_SYSTEMS.search_text(event) or "" for event in await stored(rookery)]
    assert len([text for text in texts if FACT in text]) == 1


async def test_what_is_known_is_written_once(rookery: Rookery) -> None:
    out, _ = await run("anamnesis", "remember", FACT)
    async with Anamnesis(rookery.url, cast.robot) as robot:
        await eventually("it can be searched for", lambda: robot.recall("oolong"))
        assert await robot.remember(SAME) == out.strip()
        assert robot.kept_out[-1].why is Why.COPY
        # With another word it is a correction.
        assert await robot.remember(SAME.replace("third", "fifth")) != out.strip()
    # Who wrote a memory may supersede it: nobody relies on another's.
    async with Anamnesis(rookery.url, cast.rover) as rover:
        assert await rover.remember(SAME) == content_hash(SAME)
        written = int(time.time())
    await eventually(
        "the next second: a copy of the same one may be the earlier",
        lambda: time.time() >= written + 1,
    )
    again, err = await run("anamnesis", "remember", SAME)
    assert (again, err) == (
        out,
        f"kept out: what is known already: {FACT}; --anyway writes it\n",
    )
    again, _ = await run("anamnesis", "remember", SAME, "--anyway")
    assert again.strip() == content_hash(SAME)

    for text in (FACT, SAME):
        _, err = await run("memory", "set", cast.alice.npub, "--note", text)
    assert "kept out: what is known already: The green kettle" in err
    notes = json.loads((await run("memory", "get", cast.alice.npub, "--json"))[0])
    assert json.dumps(notes).count("green kettle") == 1

    numbers = {(await run("nmem", "mark", text, "--project", "rook"))[0] for text in (FACT, SAME)}
    assert len(numbers) == 1
    more, _ = await run("nmem", "mark", SAME, "--project", "rook", "--anyway")
    assert more not in numbers

    now = 1_700_000_000
    async with (
        Client(rookery.url, cast.robot, now=lambda: now) as client,
        Aman(client, cast.robot) as aman,
    ):
        outcomes = []
        for at in (0, 10, 20, 90):
            now = 1_700_000_000 + at
            outcomes.append(
                (await aman.add_tool("hk", "weather", success=True, content="Sunny.")).outcome
            )
    stored_, kept = Outcome.STORED, Outcome.KEPT_OUT
    assert outcomes == [stored_, kept, kept, stored_]
