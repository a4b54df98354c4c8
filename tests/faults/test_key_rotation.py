"""`rookery key rotate` that ends anywhere: the old key or a new one is there whole, and the next
start signs with it what is not signed yet."""

from __future__ import annotations

import asyncio
import shutil
import signal
import sys
from random import Random
from typing import TYPE_CHECKING, Any

import pytest

from relay.cli import init, key
from relay.nostr import kinds
from relay.nostr.event import event_from_raw
from relay.nostr.keys import SecretKey, read_key_file
from tests.effort import tries
from tests.harness.programs import start_rookery
from tests.harness.relay_program import Rookery
from tests.harness.stocked_folder import exported, findings, indexed, rookery, stocked

if TYPE_CHECKING:
    from pathlib import Path
    from types import FrameType

pytestmark = pytest.mark.slow

SOURCES = {init.__file__, key.__file__}


class Killed(BaseException):
    """Nothing catches it, and nothing that is left is tidied."""


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("made") / "data"
    stocked(folder)
    return folder


def key_of(folder: Path) -> SecretKey:
    return read_key_file((folder / "relay.key").read_text(), "relay.key")


def check(folder: Path, before: set[str]) -> None:
    """One key is there whole; opened, the folder is as that key says."""
    found = key_of(folder)
    kept = {
        read_key_file(path.read_text(), "kept").pubkey
        for path in folder.glob("relay-*.key")
        if path.stat().st_size
    }
    assert found.pubkey in before or before <= kept, "the old key is nowhere"
    asyncio.run(indexed(folder))
    events = [event_from_raw(line.encode()) for line in exported(folder).splitlines()]
    state = [event for event in events if event.kind in kinds.GROUP_STATE]
    assert len(state) == 8, "39000 to 39003 of two groups"
    assert {event.pubkey for event in state} == {found.pubkey}
    assert findings(folder) == []


def stopped_at(step: int, folder: Path) -> bool:
    """Replace the key, and be killed before the line of that number; whether it was."""
    left = step

    def watch(frame: FrameType, event: str, _: object) -> Any:
        nonlocal left
        if frame.f_code.co_filename not in SOURCES:
            return None
        if event == "line":
            left -= 1
            if left < 0:
                raise Killed
        return watch

    before = sys.gettrace()
    sys.settrace(watch)
    try:
        key.replace_relay_key(folder, key_of(folder))
    except Killed:
        return True
    finally:
        sys.settrace(before)
    return False


# A file that the killed one was writing stays open.
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_ended_before_any_of_its_steps_either_key_is_whole(made: Path, tmp_path: Path) -> None:
    before, seen, step = {key_of(made).pubkey}, set[bool](), 0
    while True:
        folder = shutil.copytree(made, tmp_path / f"{step}" / "data")
        is_killed = stopped_at(step, folder)
        check(folder, before)
        seen.add(key_of(folder).pubkey in before)
        if not is_killed:
            break
        step += 1
    assert step > 15
    assert seen == {True, False}


def test_what_a_killed_rotation_left_is_no_obstacle(made: Path, tmp_path: Path) -> None:
    folder = shutil.copytree(made, tmp_path / "data")
    (folder / "relay.key.new").write_text("half a")
    printed, code = rookery("key", "rotate", "--data", folder, "--yes")
    assert code == 0, printed
    check(folder, {key_of(made).pubkey})
    assert not (folder / "relay.key.new").exists()


@pytest.mark.process
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
async def test_a_rotation_that_is_ended_anywhere_leaves_a_folder_that_starts(
    made: Path, tmp_path: Path, number: signal.Signals
) -> None:
    folder, chance = shutil.copytree(made, tmp_path / "data"), Random(number)
    for _ in range(tries(30, 6, 3)):
        before = {key_of(folder).pubkey}
        process = await start_rookery("key", "rotate", "--data", str(folder), "--yes")
        await asyncio.sleep(chance.random() / 3)
        if process.returncode is None:
            process.send_signal(number)
        out, _ = await process.communicate()
        assert process.returncode in (0, -number), out
        await asyncio.to_thread(check, folder, before)
    async with Rookery(folder) as relay:
        await relay.start()
        assert await relay.stop() == 0
