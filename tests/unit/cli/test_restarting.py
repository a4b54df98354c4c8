"""relay/cli/serve.py: what a running relay asks before it starts again."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from relay.cli import serve
from relay.cli.folder_lock import locked
from relay.cli.init import fresh_folder
from relay.cli.move_switch import Switch, note
from relay.config import Config, load_config
from relay.errors import Refused
from relay.server.connection import Stop

if TYPE_CHECKING:
    from asyncio.subprocess import Process

pytestmark = pytest.mark.process


def an_end() -> serve._End:
    return serve._End(Path("/nowhere"), Config)


def started_by(monkeypatch: pytest.MonkeyPatch, program: str) -> None:
    monkeypatch.setattr(sys, "orig_argv", ["python", "-c", program, "serve"])


async def test_a_program_that_would_start_is_started(monkeypatch: pytest.MonkeyPatch) -> None:
    started_by(monkeypatch, "import sys; assert sys.argv[1:] == ['serve', '--check']")
    end = an_end()
    await end.restart()
    assert end.has_come.is_set()
    seen = [end.why]
    end.stop()
    assert [*seen, end.why] == [Stop.RESTART, Stop.FOR_GOOD]


async def test_a_relay_that_stops_is_not_started_again(monkeypatch: pytest.MonkeyPatch) -> None:
    started_by(monkeypatch, "")
    end = an_end()
    end.stop()
    await end.restart()
    assert end.why is Stop.FOR_GOOD


@pytest.mark.parametrize(
    ("program", "text"),
    [
        ("raise SystemExit('rookery: relay.key is missing')", "rookery: relay.key is missing"),
        ("import no_such_module", "No module named 'no_such_module'"),
        ("input(); import time; time.sleep(999)", "EOF"),
    ],
)
async def test_what_the_program_says_against_it_is_told(
    monkeypatch: pytest.MonkeyPatch, program: str, text: str
) -> None:
    started_by(monkeypatch, program)
    end = an_end()
    with pytest.raises(Refused, match=f"not restarted, the relay would not start: (?s:.*){text}"):
        await end.restart()
    assert not end.has_come.is_set()


async def test_a_program_that_says_nothing_is_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    started_by(monkeypatch, "import time; time.sleep(999)")
    monkeypatch.setattr(serve, "_CHECK_S", 0.0)
    with pytest.raises(Refused, match="no answer of --check within 0 s"):
        await an_end().restart()


async def test_a_check_ends_with_the_relay_that_stops(monkeypatch: pytest.MonkeyPatch) -> None:
    started_by(monkeypatch, "import time; time.sleep(999)")
    start, started = asyncio.create_subprocess_exec, asyncio.Queue["Process"]()

    async def noted(*command: str, **given: Any) -> Process:
        check = await start(*command, **given)
        started.put_nowait(check)
        return check

    monkeypatch.setattr(asyncio, "create_subprocess_exec", noted)
    restarting = asyncio.ensure_future(an_end().restart())
    check = await started.get()
    restarting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await restarting
    assert check.returncode is not None


async def test_a_check_takes_no_lock(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It goes on when its relay is killed, and the next one was told that the folder is in use."""
    folder = tmp_path / "data"
    fresh_folder(folder)
    command = ["python", "-m", "relay", "serve", "--data", str(folder), "--port", "0"]
    monkeypatch.setattr(sys, "orig_argv", command)
    with locked(folder):  # no relay that answers
        await an_end().restart()


async def test_a_python_that_is_gone_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "executable", "/no/python")
    with pytest.raises(Refused, match="/no/python: No such file or directory"):
        await an_end().restart()


@pytest.mark.parametrize("fault", ["", "the database does not answer"])
async def test_for_a_move_this_program_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fault: str
) -> None:
    """Unless the move has failed already: then it is a restart as any other."""
    started_by(monkeypatch, "")
    folder = tmp_path / "data"
    fresh_folder(folder)
    note(folder, Switch("postgresql:///rookery", fault=fault))
    end = serve._End(folder, lambda: load_config(folder / "rookery.toml"))
    await end.restart()
    assert (end.why, end.in_place) == (Stop.RESTART, not fault)


async def test_a_move_that_could_not_start_again_is_refused(tmp_path: Path) -> None:
    folder = tmp_path / "data"
    fresh_folder(folder)
    note(folder, Switch("postgresql:///rookery"))
    (folder / "relay.key").unlink()
    end = serve._End(folder, lambda: load_config(folder / "rookery.toml"))
    with pytest.raises(Refused, match=r"relay\.key is missing"):
        await end.restart()
    assert not end.has_come.is_set()


async def test_a_store_with_another_history_is_read_again_as_soon_as_it_can_be(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "data"
    fresh_folder(folder)
    (folder / "relay.key").rename(folder / "away")
    tried = asyncio.Event()

    async def pause(_: float) -> None:
        tried.set()
        (folder / "away").rename(folder / "relay.key")

    monkeypatch.setattr(asyncio, "sleep", pause)
    end = serve._End(folder, lambda: load_config(folder / "rookery.toml"))
    set_back = asyncio.Event()
    set_back.set()
    await end.restart_when(set_back)
    assert tried.is_set()
    assert (end.why, end.in_place) == (Stop.RESTART, True)
