"""`rookery anamnesis resolve|children|credit|amend`, against a fake relay."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from relay.memory.anamnesis.checks import content_hash
from tests.cast import owner, robot, rover
from tests.harness.fake_relay import FakeRelay
from tests.unit.cli.terminal import Rookery, command_line
from tests.unit.memory.anamnesis.making import NOON, superseded, told

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    Capture = pytest.CaptureFixture[str]

A, B, C = (content_hash(text) for text in ("a", "b", "c"))


@pytest.fixture
async def relay() -> AsyncIterator[FakeRelay]:
    """a, which b rests on; b, which c took the place of."""
    async with FakeRelay() as relay:
        relay.challenges_at_once = True
        await relay.publish(told(rover, "a"))
        await relay.publish(told(robot, "b", parents=[A], at=NOON + 1))
        await relay.publish(told(robot, "c", parents=[B], at=NOON + 2))
        await relay.publish(superseded(robot, B, C, at=NOON + 3))
        yield relay


@pytest.fixture
def rookery(relay: FakeRelay, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Rookery:
    return command_line("anamnesis", relay, robot, tmp_path, monkeypatch)


@pytest.mark.proves("X-17")
async def test_resolve_prints_the_chain(rookery: Rookery, capsys: Capture) -> None:
    assert await rookery("resolve", B[:8]) == 0
    assert capsys.readouterr().out == f"{B}\n{C}\n"
    assert await rookery("resolve", C, "--json") == 0
    assert json.loads(capsys.readouterr().out) == {
        "current": C,
        "chain": [C],
        "forks": [],
        "circle": False,
    }


async def test_resolve_reports_forks(relay: FakeRelay, rookery: Rookery, capsys: Capture) -> None:
    relay.information = {"pubkey": owner.pubkey}
    other = content_hash("d")
    await relay.publish(told(rover, "d"))
    await relay.publish(superseded(rover, A, B, at=NOON + 5))
    await relay.publish(superseded(owner, A, other, at=NOON + 4))
    assert await rookery("resolve", A) == 0
    out, err = capsys.readouterr()
    assert out == f"{A}\n{other}\n"
    assert f"{B[:12]} also supersedes {A[:12]}, and is ignored" in err


@pytest.mark.proves("X-09")
async def test_children_are_listed(rookery: Rookery, capsys: Capture) -> None:
    assert await rookery("children", A) == 0
    assert capsys.readouterr().out == f"{B[:12]}  b\n"
    assert await rookery("children", A, "--json") == 0
    (child,) = json.loads(capsys.readouterr().out)
    assert (child["hash"], child["author"], child["content"]) == (B, robot.pubkey, "b")
    assert await rookery("children", C) == 0
    assert capsys.readouterr() == ("", "nothing found\n")


@pytest.mark.proves("X-10")
async def test_credit_prints_full_keys(rookery: Rookery, capsys: Capture) -> None:
    assert await rookery("credit", C) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines == [f"2  {robot.npub}  Robot", f"1  {rover.npub}  Robot"]
    assert await rookery("credit", C, "--json") == 0
    assert {(each["author"], each["entries"]) for each in json.loads(capsys.readouterr().out)} == {
        (robot.pubkey, 2),
        (rover.pubkey, 1),
    }


async def test_a_name_equal_to_the_key_is_not_repeated(
    relay: FakeRelay, rookery: Rookery, capsys: Capture
) -> None:
    await relay.publish(told(rover, "d", name=rover.pubkey))
    assert await rookery("credit", content_hash("d")) == 0
    assert capsys.readouterr().out == f"1  {rover.npub}\n"


@pytest.mark.parametrize("command", ["resolve", "credit"])
async def test_an_unknown_memory_is_an_error(
    rookery: Rookery, capsys: Capture, command: str
) -> None:
    assert await rookery(command, "0" * 64) == 1
    out, err = capsys.readouterr()
    assert out == ""
    assert "000000000000" in err


@pytest.mark.proves("X-07")
async def test_an_amendment_can_be_undone(
    relay: FakeRelay, rookery: Rookery, capsys: Capture
) -> None:
    assert await rookery("amend", C[:12], "--confidence", "0.9", "--tag", "x", "--tag", "y") == 0
    assert capsys.readouterr().out == f"amended {C[:12]}\n"
    assert relay.events[-1].d == f"anamnesis:meta:{C}"
    assert json.loads(relay.events[-1].content) == {"confidence": 0.9, "tags": ["x", "y"]}
    assert await rookery("amend", C, "--undo", "--json") == 0
    told_ = json.loads(capsys.readouterr().out)
    assert (told_["hash"], told_["amended"], told_["id"]) == (C, {}, relay.events[-1].id)
    assert json.loads(relay.events[-1].content) == {}


@pytest.mark.parametrize("args", [(), ("--undo", "--confidence", "0")])
async def test_an_empty_amendment_is_a_usage_error(
    relay: FakeRelay, rookery: Rookery, capsys: Capture, args: tuple[str, ...]
) -> None:
    before = len(relay.events)
    assert await rookery("amend", C, *args) == 2
    assert "--undo" in capsys.readouterr().err
    assert len(relay.events) == before
