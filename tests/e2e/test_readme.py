"""Every command and program of README.md runs as it stands there, in its order."""

from __future__ import annotations

import asyncio
import os
import re
import shlex
import sys
from pathlib import Path
from subprocess import PIPE, STDOUT
from typing import Final

import pytest

from tests.cast import alice
from tests.harness.patience import PROGRAM_S
from tests.harness.relay_program import Rookery, command

pytestmark = [pytest.mark.slow, pytest.mark.process]

ROOT: Final = Path(__file__).parents[2]
README: Final = (ROOT / "README.md").read_text("utf-8")
NOT_RUN: Final = {". .venv/bin/activate"}
"""The tests run in that environment already."""


def blocks(section: str, language: str) -> list[str]:
    _, _, rest = README.partition(f"\n## {section}\n")
    text = rest.split("\n## ", 1)[0]
    assert text, section
    return re.findall(rf"^```{language}\n(.*?)^```", text, re.MULTILINE | re.DOTALL)


def lines(section: str) -> list[str]:
    """The command lines of a section, without comments."""
    text = "\n".join(blocks(section, "sh"))
    found = [re.sub(r"\s+# .*", "", line).strip() for line in text.splitlines()]
    return [line for line in found if line and line not in NOT_RUN]


class Reader:
    """Somebody who types what stands in README.md; what they know stands for its placeholders."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.known: dict[str, str] = {"npub1ALICE…": alice.npub}

    async def types(self, line: str, *, exit_code: int = 0) -> str:
        for placeholder, value in self.known.items():
            line = re.sub(rf"(?<![\w./-]){re.escape(placeholder)}(?![\w/])", value, line)
        words = [word.replace("~", os.environ["HOME"]) for word in shlex.split(line)]
        assert words[0] == "rookery", line
        code, text = await command(*words[1:], cwd=self.folder)
        assert code == exit_code, f"{line}\n{text}"
        return text


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("HOME", str(tmp_path))
    for name in ("ROOKERY_RELAY", "ROOKERY_KEY", "CLAUDE_CONFIG_DIR"):
        monkeypatch.delenv(name, raising=False)
    return tmp_path


def test_no_command_stands_in_another_section() -> None:
    sections = [
        section.splitlines()[0]
        for section in README.split("\n## ")[1:]
        if re.search(r"^```(sh|python)$", section, re.MULTILINE)
    ]
    assert sections == [
        "The first message, in 60 seconds",
        "I run a relay",
        "I write an agent",
        "I use a client",
        "I work on the code",  # make alone
    ]
    assert all(line.startswith("make ") for line in lines("I work on the code"))


def test_every_target_of_make_exists() -> None:
    makefile = (ROOT / "Makefile").read_text()
    named = re.findall(r"^make ([a-z-]+)|`make ([a-z-]+)", README, re.MULTILINE)
    assert named
    for target in (one or other for one, other in named):
        assert re.search(rf"^{target}: .*## ", makefile, re.MULTILINE), target


async def test_the_first_message_and_the_agent(home: Path) -> None:
    make, *first = lines("The first message, in 60 seconds")
    assert make == "make run"
    async with Rookery(home / "data") as relay:
        await relay.start()  # what `make run` does, on another port
        reader = Reader(home)
        said = [await reader.types(line) for line in first]
        assert "The kettle is on." in said[2]
        (program,) = blocks("I write an agent", "python")
        assert "ws://127.0.0.1:7777" in program
        (home / "agent.py").write_text(program.replace("ws://127.0.0.1:7777", relay.url))
        agent = await asyncio.create_subprocess_exec(
            sys.executable,
            "agent.py",
            cwd=home,
            env={**os.environ, "PYTHONPATH": str(ROOT)},
            stdout=PIPE,
            stderr=STDOUT,
        )
        out, _ = await asyncio.wait_for(agent.communicate(), PROGRAM_S)
        assert (agent.returncode, out.decode()) == (0, "the build is green\n")
        assert await relay.stop() == 0


async def test_the_way_of_an_admin_an_agent_and_a_member(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = home / "rookery"
    folder.mkdir()
    reader = Reader(folder)
    keygen, agents, init, serve, *rest = lines("I run a relay")
    for line, placeholder in ((keygen, "npub1ME…"), (agents, "npub1ROBOT…")):
        text = await reader.types(line)
        reader.known[placeholder] = text.split()[1]
    await reader.types(init)
    assert serve == "rookery serve --data ./team"
    client_toml, policy = blocks("I run a relay", "toml")
    (folder / "team" / "policies" / "20-mine.toml").write_text(policy)
    async with Rookery(folder / "team") as relay:
        await relay.start()
        for placeholder, value in (reader.known | {"ws://127.0.0.1:7777": relay.url}).items():
            client_toml = client_toml.replace(placeholder, value)
        config = home / ".config" / "rookery"
        config.mkdir(parents=True)
        (config / "client.toml").write_text(client_toml)
        for line in rest:
            await reader.types(line)

        for line in lines("I write an agent"):
            if "session import" in line:
                project = home / ".claude" / "projects" / "rook"
                project.mkdir(parents=True)
                (project / "a.jsonl").write_text('{"type":"summary","summary":"tea"}\n')
            if "memory import" in line:
                (home / "notes").mkdir()
                (home / "notes" / "tea.md").write_text("Oolong is brewed at ninety degrees.\n")
            await reader.types(line)
        found = await reader.types('rookery memory search "who prefers short answers?"')
        assert "prefers short answers" in found

        invited = await reader.types("rookery group invite tea")
        reader.known["CODE"] = invited.split()[1]
        monkeypatch.setenv("ROOKERY_KEY", alice.nsec)
        for line in lines("I use a client"):
            await reader.types(line)
        monkeypatch.delenv("ROOKERY_KEY")

        await the_questions(reader)
        assert await relay.stop() == 0


async def the_questions(reader: Reader) -> None:
    """The table of questions."""
    said = await reader.types("rookery group say tea 'to be forgotten'")
    (reader.folder / "event.json").write_text('{"kind": 30023, "pubkey": "' + alice.npub + '"}')
    (reader.folder / "backups").mkdir()
    reader.known |= {
        "ID": "tea",
        "KEY": "alice",
        "EVENT.json": "event.json",
        "EVENT-ID": said.strip(),
        "DEST": "backups",
        "DIR": "restored",
    }
    table = re.findall(r"^\| [^|]+ \| (`rookery .*?) \|$", README, re.MULTILINE)
    questions = [span for row in table for span in re.findall(r"`(rookery [^`]+)`", row)]
    assert len(questions) == 15
    for line in questions:
        if "FILE" in line:
            (made,) = (reader.folder / "backups").iterdir()
            reader.known["FILE"] = str(made)
        text = await reader.types(line, exit_code=1 if "explain" in line else 0)
        if "explain" in line:
            assert "decided by: articles are the owner's" in text
