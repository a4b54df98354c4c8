"""`python -m tests.conversations URL`: what is played to a relay of others, and what is told."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest

from relay.server.http import SOFTWARE
from tests import cast
from tests.conversations.__main__ import main
from tests.conversations.fake import FakeRelay, fake_relay
from tests.conversations.other import OtherRelay, document_at, nips_of
from tests.conversations.script import script_from

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

HEAD = "preset open\npeople alice\n"
GOOD = f'# A note is taken.  N01-91\n{HEAD}alice → ["EVENT", {{"content": "tea"}}]\n'
BAD = (
    f'# A note is refused.  N01-91\n{HEAD}alice → ["EVENT", {{}}]\nalice ← ["OK", $id, false, …]\n'
)
GROUPS = f'# A group.  N29-120\n{HEAD}alice → ["EVENT", {{"kind": 9007, "tags": [["h", "x"]]}}]\n'


@pytest.fixture
async def fake() -> AsyncIterator[FakeRelay]:
    async with fake_relay() as relay:
        yield relay


async def outcome(*given: object) -> int:
    """The exit code; beside it the relay of this test goes on."""
    return await asyncio.to_thread(main, [str(arg) for arg in given])


@pytest.fixture
def scripts(tmp_path: Path) -> list[Path]:
    paths = []
    for name, text in (("bad", BAD), ("good", GOOD), ("groups", GROUPS)):
        paths.append(tmp_path / f"{name}.nostr")
        paths[-1].write_text(text, encoding="utf-8")
    return paths


def why_not(head: str, **document: Any) -> str | None:
    script = script_from(f"# A title.  N01-91\n{head}\n", "nip50/search")
    roles = {"owner": cast.owner}
    return OtherRelay("ws://x", "open", roles, document).why_not(script)


# what is told ------------------------------------------------------------------------------------


async def test_each_script_has_its_line_and_each_folder_its_row(
    fake: FakeRelay, scripts: list[Path], capsys: pytest.CaptureFixture[str]
) -> None:
    fake.document = {"supported_nips": [1, 11]}
    assert await outcome(fake.url, *scripts) == 1
    told = capsys.readouterr().out
    assert f"[1/3] failed  {scripts[0].with_suffix('')}: A note is refused." in told
    assert 'came instead: ["OK"' in told
    assert f"[2/3] ok      {scripts[1].with_suffix('')}: A note is taken." in told
    assert f"[3/3] skipped {scripts[2].with_suffix('')}: A group." in told
    assert "NIP-29 is not announced there" in told
    assert told.splitlines()[-1].split() == ["all", "1", "1", "1"]


async def test_only_what_is_asked_for_is_played_and_all_well_is_0(
    fake: FakeRelay, scripts: list[Path], capsys: pytest.CaptureFixture[str]
) -> None:
    assert await outcome(fake.url, *scripts, "--only", "TAKEN|good$") == 2
    assert "no script" in capsys.readouterr().err
    assert await outcome(fake.url, *scripts, "--only", "is taken") == 0
    assert capsys.readouterr().out.splitlines()[-1].split() == ["all", "1", "0", "0"]


async def test_where_nobody_answers_nothing_is_played(
    scripts: list[Path], capsys: pytest.CaptureFixture[str]
) -> None:
    async with fake_relay() as gone:
        url = gone.url
    assert await outcome(url, *scripts) == 2
    told = capsys.readouterr()
    assert told.out == ""
    assert told.err.startswith(f"cannot connect to {url}: ")


async def test_a_script_that_cannot_be_read_is_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    wrong = tmp_path / "wrong.nostr"
    wrong.write_text("no title", encoding="utf-8")
    assert await outcome(wrong) == 2
    assert "wrong:1: the first line must be the title" in capsys.readouterr().err


# what makes sense there --------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("head", "why"),
    [
        ("preset open\npeople owner alice", None),
        ("people alice", "is for a relay of the preset group"),
        ("preset open\npolicy\n    [groups]", "brings rules of its own"),
        ("preset open\npeople alice\nrestart", "restarts the relay"),
        ("preset open\npeople owner robot rover", "needs the key of robot and rover"),
        ("preset open\nlimit max_event_tags 7", "is for a max_event_tags of 7, there it is None"),
    ],
)
def test_a_script_that_asks_for_what_is_ours_is_left_out(head: str, why: str | None) -> None:
    assert why_not(head) == why


def test_a_relay_is_held_to_what_it_announces() -> None:
    open_ = "preset open\npeople alice"
    assert why_not(open_, supported_nips=[1, 50]) is None
    assert why_not(open_, supported_nips=[1, "50"]) == "NIP-50 is not announced there"
    limited = f"{open_}\nlimit max_event_tags 7"
    assert why_not(limited, limitation={"max_event_tags": 7}) is None
    assert why_not(limited, limitation={"max_event_tags": 8}) == (
        "is for a max_event_tags of 7, there it is 8"
    )


def test_what_a_script_says_tells_what_it_needs() -> None:
    text = GROUPS + 'alice → ["COUNT", "c", {}]\nalice → ["NEG-OPEN", "n", {}, ""]\n'
    assert nips_of(script_from(text, "reads/groups")) == {29, 45, 77}
    assert nips_of(script_from(GOOD, "nip01/good")) == set()


def test_what_no_nip_asks_for_is_asked_of_rookery_alone() -> None:
    ours = script_from(f"# A title.  docs/interop.md\n{HEAD}", "verdicts/ours")
    other = OtherRelay("ws://x", "open")
    assert other.why_not(ours) == "is about Rookery, not about Nostr"
    other.document = {"software": SOFTWARE}
    assert other.why_not(ours) is None


async def test_the_document_is_read_where_there_is_one(fake: FakeRelay) -> None:
    fake.document = {"supported_nips": [1]}
    assert await asyncio.to_thread(document_at, fake.url) == {"supported_nips": [1]}
    async with fake_relay() as gone:
        url = gone.url
    assert await asyncio.to_thread(document_at, url) == {}
