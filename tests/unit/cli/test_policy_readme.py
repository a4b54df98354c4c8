"""The section "Tools" of policies/README.md: its commands print what stands there."""

from __future__ import annotations

import asyncio
import json
import re
import shlex
import shutil
from typing import TYPE_CHECKING

import pytest

from relay.cli import run
from relay.cli.data_folder import open_folder
from relay.cli.log import text_of
from relay.cli.names import Names
from relay.facts import Origin
from relay.observe import Refusal
from tests.cast import alice, bob, owner, robot
from tests.harness.clock import now
from tests.unit.policies import readme

if TYPE_CHECKING:
    from pathlib import Path

    from relay.nostr.event import Event

TOOLS = readme.section("Tools")
_BLOCK = re.compile(r"^    \$ (rookery policy .+)\n((?:(?:    .*)?\n)*)", re.MULTILINE)
EXAMPLES: list[tuple[str, str]] = _BLOCK.findall(TOOLS)
DAY = 86_400

FILES = {
    "data/policies/20-mine.toml": (
        '[[rule]]\nname   = "articles"\nmatch  = { kinds = [30023] }\n'
        'write  = ["owner", "agent"]\nreject = "articles are written by the team"\n'
    ),
    "data/policies/30-open.toml": (
        '[[rule]]\nname  = "notes for all"\nmatch = { kinds = [1] }\nwrite = ["anyone"]\n'
    ),
    "broken/20-mine.toml": (
        '[[rule]]\nname  = "articles"\nwrite = ["onwer"]\n'
        '[[rule]]\nname  = "profiles"\nmtach = { kinds = [0] }\nread  = ["member"]\n'
    ),
    "cases.toml": (
        '[[case]]\nsays  = "agents write articles"\n'
        'event = { kind = 30023, by = "agent", tags = [["d", "x"]] }\nwant  = "accept"\n\n'
        '[[case]]\nsays  = "agents may write notes to nobody"\n'
        'event = { kind = 1, by = "agent" }\nwant  = "restricted"\n'
    ),
}
NEW = (
    '[[rule]]\nname = "short notes"\nmatch = { kinds = [1], content_chars = 20 }\n'
    'write = ["owner"]\nreject = "be brief"\n\n'
    '[[rule]]\nname = "profiles stay here"\nmatch = { kinds = [0] }\n'
    'read = ["owner", "agent", "member", "author"]\n\n'
    '[[retention]]\nname = "chats of a month"\nmatch = { kinds = [9] }\ndays = 30\n'
)


def prepared(folder: Path) -> None:
    data = folder / "data"
    assert run(["init", str(data), "--owner", owner.npub, "--agent", robot.npub]) == 0
    at = now()
    chat = alice.sign(9, [["h", "tea"]], "long ago", at - 40 * DAY)
    history = [
        owner.sign(9007, [["h", "tea"]], "", at - 60 * DAY),
        owner.sign(9000, [["h", "tea"], ["p", alice.pubkey]], "", at - 60 * DAY),
        chat,
        alice.sign(9, [["h", "tea"]], "longer ago", at - 41 * DAY),
        alice.sign(1, [], "a note that is rather long", at),
        alice.sign(0, [], "{}", at),
    ]
    asyncio.run(_store(data, history))
    for name, text in FILES.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    shutil.copytree(data / "policies", folder / "new")
    (folder / "new" / "40-new.toml").write_text(NEW)
    article = alice.sign(30023, [["d", "x"]], "by a member", at)
    for name, event in (("article.json", article), ("chat.json", chat)):
        (folder / name).write_bytes(event.raw)


async def _store(data: Path, history: list[Event]) -> None:
    async with open_folder(data) as opened:
        answers = await opened.submit(history, Origin.TRUSTED_IMPORT)
        assert answers == [(True, "")] * len(history)


def pattern(text: str) -> str:
    """An example as a regular expression: `…` is anything, alone in a line any number of lines."""
    lines = [line.removeprefix("    ") for line in text.rstrip("\n").split("\n")]
    parts = []
    for line in lines:
        if line.strip() == "…":
            parts.append(r"(?:.*\n)*?")
        else:
            parts.append(".*".join(map(re.escape, line.split("…"))) + "\n")
    return "".join(parts)


def test_each_tool_has_its_example() -> None:
    tools = {command.split()[2] for command, _ in EXAMPLES}
    assert tools == {"check", "show", "explain", "test", "diff", "log"}


@pytest.mark.parametrize(
    ("command", "output"),
    [each for each in EXAMPLES if " log" not in each[0]],
    ids=[command for command, _ in EXAMPLES if " log" not in command],
)
def test_a_tool_prints_what_stands_on_the_page(
    tmp_path: Path,
    command: str,
    output: str,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    prepared(tmp_path)
    monkeypatch.chdir(tmp_path)
    capsys.readouterr()
    run(shlex.split(command)[1:])
    said = capsys.readouterr()
    assert re.fullmatch(pattern(output), said.err + said.out), said.err + said.out


def test_the_log_prints_what_stands_on_the_page() -> None:
    [(_, output)] = [each for each in EXAMPLES if " log" in each[0]]
    refusal = Refusal(
        number=1,
        at=0,
        rule="articles",
        prefix="restricted",
        kind=30023,
        author=bob.pubkey,
        event_id="0" * 64,
        connection=7,
        address="10.1.2.3",
        text="only an owner publishes here",
    )
    told = text_of(refusal, Names({"Bob": bob.pubkey}))
    line = "2026-05-04 12:34:56+0200" + told[len("1970-01-01 00:00:00+0000") :] + "\n"
    assert re.fullmatch(pattern(output), line)


@pytest.mark.parametrize("fields", [{"kind": 1, "pubkey": owner.npub}])
def test_the_draft_of_the_page_is_one(
    tmp_path: Path, fields: dict[str, object], capsys: pytest.CaptureFixture[str]
) -> None:
    assert '{"kind": 1, "pubkey": "npub1…"}' in TOOLS
    (tmp_path / "draft.json").write_text(json.dumps(fields))
    people = f'[actors]\nowners = ["{owner.npub}"]\n'
    (tmp_path / "policies").mkdir()
    (tmp_path / "policies" / "a.toml").write_text(people)
    path = str(tmp_path / "draft.json")
    assert run(["policy", "explain", path, "--data", str(tmp_path)]) == 0
    assert "OK true" in capsys.readouterr().out
