"""The keeper: one process for all hooks, and how it ends."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import fcntl
import json
import os
import shutil
import socket
import stat
import tempfile
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from relay.client.nmem import hook_recording, keeper, sync
from relay.client.nmem.database import CacheBusy
from relay.client.nmem.hook_recording import Hooks, log, log_of, record_alone
from relay.client.nmem.keeper import keep
from relay.client.settings import FILE
from relay.clock import unix_now
from relay.errors import UserError
from relay.files import socket_address
from relay.hook import LOCK, SOCKET, words
from relay.memory.nmem.records import Observation, observation_draft
from tests.cast import robot, rover
from tests.harness.fake_relay import FakeRelay
from tests.harness.patience import ANSWER_S
from tests.harness.relay_program import eventually, until
from tests.unit.client.nmem_cache import NOW, an_original, rows

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterator

    from relay.client.nmem.hooks import HookResult
    from tests.harness.fake_relay import Visitor

PROMPT = json.dumps(
    {"hook_event_name": "UserPromptSubmit", "session_id": "s", "cwd": "/w/rook", "prompt": "tea"}
).encode()
SOON = 4_000_000_000
"""Unix seconds: whoever asked then still waits."""


@pytest.fixture
def home(monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> Iterator[Path]:
    folder = Path(tempfile.mkdtemp(prefix="rk"))
    made = folder / getattr(request, "param", "home")
    made.mkdir()
    monkeypatch.setenv("HOME", str(made))
    monkeypatch.setenv("ROOKERY_KEY", robot.nsec)
    monkeypatch.setenv("ROOKERY_RELAY", "ws://127.0.0.1:1")
    monkeypatch.delenv("NMEM_KEY", raising=False)
    yield made
    shutil.rmtree(folder)


@contextlib.asynccontextmanager
async def kept(
    home: Path, idle_s: float = 60.0, lock: int | None = None
) -> AsyncIterator[asyncio.Task[None]]:
    """A keeper that listens."""
    task = asyncio.create_task(keep(home, idle_s, lock))
    socket = home / SOCKET
    while not await asyncio.to_thread(socket.is_socket):
        assert not task.done(), task.exception()
        await asyncio.sleep(0.01)
    try:
        yield task
    finally:
        task.cancel()
        await asyncio.wait([task])


async def asked(home: Path, *said: bytes) -> bytes:
    with socket_address(home / SOCKET) as address:
        reader, writer = await asyncio.open_unix_connection(address)
    writer.write(b"\0".join(said))
    writer.write_eof()
    answer = await reader.read()
    writer.close()
    await writer.wait_closed()
    return answer


async def test_the_keeper_records_hooks(home: Path) -> None:
    async with kept(home):
        assert await asked(home, *words("UserPromptSubmit", SOON), PROMPT) == b"+"
        assert await asked(home, *words("", SOON), PROMPT) == b"+"
        start = PROMPT.replace(b"UserPromptSubmit", b"SessionStart")
        assert await asked(home, *words("SessionStart", SOON), start) == b"+"
    assert prompts(home) == [SOON], "what was told twice is there once"


async def test_an_empty_request_does_not_end_the_keeper(home: Path) -> None:
    async with kept(home) as task:
        assert await asked(home) == b"-"
        assert await asked(home, *words("UserPromptSubmit", SOON), PROMPT) == b"+"
        assert not task.done()


async def test_garbage_is_a_line_in_the_log(home: Path) -> None:
    async with kept(home):
        assert await asked(home, *words("Stop", SOON), b"gar\0bage") == b"+"
    assert "Stop Invalid: invalid: the hook is not a JSON object" in log_of(home).read_text()


@pytest.mark.parametrize(
    ("position", "word"),
    [(0, b"0.0"), (1, b"ws://127.0.0.1:2"), (2, b"nsec1"), (3, b"another"), (5, b"noon"), (5, b"")],
)
async def test_a_hook_with_other_settings_is_refused_and_ends_the_keeper(
    home: Path, position: int, word: bytes
) -> None:
    said = [*words("Stop", SOON), PROMPT]
    said[position] = word
    async with kept(home) as task:
        assert await asked(home, *said) == b"-"
        await asyncio.wait_for(task, ANSWER_S)
    assert not (home / SOCKET).exists()


@pytest.mark.proves("M-13")
async def test_settings_that_cannot_be_used_are_a_line_in_the_log_for_every_hook(
    home: Path,
) -> None:
    (home / FILE).parent.mkdir(parents=True)
    (home / FILE).write_text("[nmem]\npattern = 5\n")
    async with kept(home):
        assert await asked(home, *words("Stop", SOON), PROMPT) == b"+"
        assert await asked(home, *words("UserPromptSubmit", SOON), PROMPT) == b"+"
    lines = [line for line in log_of(home).read_text().splitlines() if " keep " not in line]
    assert [line.split(" ")[1:3] for line in lines] == [
        ["Stop", "ConfigFaults:"],
        ["UserPromptSubmit", "ConfigFaults:"],
    ]
    assert "did you mean patterns?" in lines[0]


async def test_a_cache_that_can_be_used_again_is_used_from_the_next_hook_on(home: Path) -> None:
    cache = (home / SOCKET).with_name("nmem.db")
    cache.mkdir(parents=True)
    async with kept(home):
        assert await asked(home, *words("UserPromptSubmit", SOON), PROMPT) == b"+"
        cache.rmdir()
        assert await asked(home, *words("UserPromptSubmit", SOON + 1), PROMPT) == b"+"
    assert "UserPromptSubmit" in log_of(home).read_text()
    assert prompts(home) == [SOON + 1]


@pytest.mark.parametrize("number", [1, 2, 4, 5, 6])
async def test_a_malformed_request_counts_as_another_version(home: Path, number: int) -> None:
    async with kept(home) as task:
        assert await asked(home, *[*words("Stop", SOON), PROMPT][:number]) == b"-"
        await asyncio.wait_for(task, ANSWER_S)


async def test_hooks_in_progress_are_recorded_before_the_keeper_ends(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    may_end = threading.Event()

    def slow(hooks: Hooks, data: bytes, named: str, now: int) -> HookResult:
        assert may_end.wait(ANSWER_S)
        return record(hooks, data, named, now)

    record = Hooks.record
    monkeypatch.setattr(Hooks, "record", slow)
    async with kept(home) as task:
        reader, writer = await asyncio.open_unix_connection(home / SOCKET)
        writer.write(b"\0".join([*words("UserPromptSubmit", SOON), PROMPT]))
        writer.write_eof()
        assert await asked(home) == b"-"  # by then what came before is read, too
        assert await asked(home, b"garbage") == b"-"
        while (home / SOCKET).exists():  # noqa: ASYNC110
            await asyncio.sleep(0.01)
        assert not task.done()
        may_end.set()
        assert await asyncio.wait_for(reader.read(), ANSWER_S) == b"+"
        writer.close()
        await asyncio.wait_for(task, ANSWER_S)
    assert prompts(home) == [SOON]


async def test_an_unfinished_request_times_out(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("relay.client.nmem.keeper._REQUEST_S", 0.05)
    async with kept(home):
        reader, writer = await asyncio.open_unix_connection(home / SOCKET)
        writer.write(b"half of")
        with contextlib.suppress(ConnectionResetError):
            assert await asyncio.wait_for(reader.read(), ANSWER_S) == b""
        writer.close()
        assert await asked(home, *words("Stop", SOON), PROMPT) == b"+"


async def test_it_ends_when_client_toml_changes(home: Path) -> None:
    async with kept(home) as task:
        (home / FILE).parent.mkdir(parents=True)
        (home / FILE).write_text("[nmem]\n")
        assert await asked(home, *words("Stop", SOON), PROMPT) == b"-"
        await asyncio.wait_for(task, ANSWER_S)


@pytest.mark.parametrize("home", ["home", "a-long-name-" * 10], indirect=True)
async def test_there_is_one_keeper_with_a_private_socket(home: Path) -> None:
    async with kept(home):
        await asyncio.wait_for(keep(home), ANSWER_S)
        assert stat.S_IMODE((home / SOCKET).stat().st_mode) == 0o600
        assert (home / SOCKET).with_name(LOCK).read_text() == f"{os.getpid()}\n"
        assert await asked(home, *words("Stop", SOON), PROMPT) == b"+"
    assert not (home / SOCKET).exists()


def locked(home: Path) -> int:
    """The lock, as a hook takes it."""
    (home / SOCKET).parent.mkdir(parents=True, exist_ok=True)
    lock = os.open((home / SOCKET).with_name(LOCK), os.O_CREAT | os.O_RDWR, 0o600)
    fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    return lock


async def test_the_keeper_inherits_the_lock_of_its_hook(home: Path) -> None:
    lock = locked(home)
    async with kept(home, lock=os.dup(lock)):
        os.close(lock)
        with pytest.raises(BlockingIOError):
            locked(home)
        assert (home / SOCKET).with_name(LOCK).read_text() == f"{os.getpid()}\n"
        assert await asked(home, *words("Stop", SOON), PROMPT) == b"+"
    os.close(locked(home))


async def test_the_keeper_starts_on_a_full_disk(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Hooks were not held until there was room, and lost."""
    write = os.pwrite

    def no_space(fd: int, data: bytes, at: int) -> int:
        if data == f"{os.getpid()}\n".encode():
            raise OSError(errno.ENOSPC, "No space left on device")
        return write(fd, data, at)

    monkeypatch.setattr(os, "pwrite", no_space)
    async with kept(home):
        assert await asked(home, *words("Stop", SOON), PROMPT) == b"+"


async def test_without_the_lock_the_keeper_ends_at_once(home: Path) -> None:
    lock = locked(home)
    another = os.open((home / SOCKET).with_name(LOCK), os.O_RDWR)
    await asyncio.wait_for(keep(home, lock=another), ANSWER_S)
    os.close(lock)


# -- when -----------------------------------------------------------------------------------------


def prompts(home: Path) -> list[int]:
    """When each of them was, in Unix seconds."""
    with contextlib.closing(Hooks(home).database) as database, database.reading() as db:
        return [at for (at,) in db.execute("SELECT timestamp FROM prompts ORDER BY id")]


@pytest.mark.proves("M-03", "M-13")
async def test_a_hook_recorded_by_both_hook_and_keeper_is_stored_once(home: Path) -> None:
    async with kept(home):
        assert await asked(home, *words("UserPromptSubmit", SOON), PROMPT) == b"+"
        await asyncio.to_thread(record_alone, home, PROMPT, "UserPromptSubmit", SOON)
        assert await asked(home, *words("UserPromptSubmit", SOON + 1), PROMPT) == b"+"
    assert prompts(home) == [SOON, SOON + 1]


@pytest.mark.proves("M-11", "M-13")
def test_a_hook_with_another_key_records_nothing_into_the_cache(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    start = PROMPT.replace(b"UserPromptSubmit", b"SessionStart")
    record_alone(home, PROMPT, "UserPromptSubmit", SOON)
    monkeypatch.setenv("ROOKERY_KEY", rover.nsec)
    record_alone(home, PROMPT.replace(b"tea", b"private"), "UserPromptSubmit", SOON + 1)
    assert record_alone(home, start, "SessionStart", SOON + 2) == ""
    monkeypatch.setenv("ROOKERY_KEY", robot.nsec)
    assert prompts(home) == [SOON]
    lines = log_of(home).read_text().splitlines()
    assert [line.split(" ")[1] for line in lines] == ["UserPromptSubmit", "SessionStart"]
    assert f"belongs to {robot.npub}, not to {rover.npub}: nothing is recorded" in lines[0]
    assert "private" not in lines[0]


async def test_a_keeper_with_another_key_records_nothing_into_the_cache(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    record_alone(home, PROMPT, "UserPromptSubmit", SOON)
    monkeypatch.setenv("ROOKERY_KEY", rover.nsec)
    async with kept(home):
        assert await asked(home, *words("UserPromptSubmit", SOON + 1), PROMPT) == b"+"
    assert f"not to {rover.npub}" in log_of(home).read_text()
    monkeypatch.setenv("ROOKERY_KEY", robot.nsec)
    assert prompts(home) == [SOON]


def test_a_hook_with_a_key_that_cannot_be_read_records_nothing(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ROOKERY_KEY", "nsec1typo")
    record_alone(home, PROMPT, "UserPromptSubmit", SOON)
    assert "ROOKERY_KEY holds no nsec" in log_of(home).read_text()
    monkeypatch.setenv("ROOKERY_KEY", robot.nsec)
    assert prompts(home) == []


def test_a_hook_without_a_key_records_for_the_key_that_comes(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("ROOKERY_KEY")
    record_alone(home, PROMPT, "UserPromptSubmit", SOON)
    monkeypatch.setenv("ROOKERY_KEY", robot.nsec)
    record_alone(home, PROMPT, "UserPromptSubmit", SOON + 1)
    assert prompts(home) == [SOON, SOON + 1]
    assert not log_of(home).exists()


def test_a_hook_with_another_relay_than_that_of_client_toml_records_nothing(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (home / FILE).parent.mkdir(parents=True)
    (home / FILE).write_text('relay = "ws://127.0.0.1:1/"\n')
    record_alone(home, PROMPT, "UserPromptSubmit", SOON)  # the same as in the environment
    monkeypatch.setenv("ROOKERY_RELAY", "ws://127.0.0.1:2")
    record_alone(home, PROMPT, "UserPromptSubmit", SOON + 1)
    assert "belongs to ws://127.0.0.1:1" in log_of(home).read_text()
    monkeypatch.delenv("ROOKERY_RELAY")
    assert prompts(home) == [SOON]


def test_a_hook_records_on_when_the_relay_gets_another_address(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    record_alone(home, PROMPT, "UserPromptSubmit", SOON)
    monkeypatch.setenv("ROOKERY_RELAY", "ws://127.0.0.1:2")
    record_alone(home, PROMPT, "UserPromptSubmit", SOON + 1)
    monkeypatch.delenv("ROOKERY_RELAY")
    (home / FILE).parent.mkdir(parents=True)
    for number in (3, 4):
        (home / FILE).write_text(f'relay = "ws://127.0.0.1:{number}"\n')
        record_alone(home, PROMPT, "UserPromptSubmit", SOON + number)
    assert prompts(home) == [SOON, SOON + 1, SOON + 3, SOON + 4]


def test_a_hook_makes_nmems_own_database_the_cache(home: Path) -> None:
    db = home / ".local/share/rookery/nmem.db"
    db.parent.mkdir(parents=True)
    an_original(db)
    record_alone(home, PROMPT, "UserPromptSubmit", SOON)
    assert not log_of(home).exists()
    with contextlib.closing(Hooks(home).database) as database:
        assert len(rows(database, "prompts")) == 2, "one was no record"
        assert len(rows(database, "observations")) == 2
    assert db.with_name("nmem.db.original").exists()


async def test_a_hook_that_stopped_waiting_is_not_recorded(home: Path) -> None:
    async with kept(home) as task:
        assert await asked(home, *words("UserPromptSubmit", NOW), PROMPT) == b"-"
        assert await asked(home, *words("UserPromptSubmit", SOON), PROMPT) == b"+"
        assert not task.done()
    assert prompts(home) == [SOON]


@contextlib.contextmanager
def written_by_another(home: Path) -> Iterator[None]:
    """Another program writes the cache."""
    with contextlib.closing(Hooks(home).database) as another, another.transaction():
        yield


async def test_hooks_are_recorded_once_another_program_has_written_the_cache(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hook_recording, "_BUSY_S", 0.01)
    monkeypatch.setattr(keeper, "_RETRY_S", 0.01, raising=False)
    record_alone(home, PROMPT, "UserPromptSubmit", SOON)
    async with kept(home), asyncio.timeout(ANSWER_S):
        with written_by_another(home):
            for number in range(1, 4):
                said = [*words("UserPromptSubmit", SOON + number), PROMPT]
                assert await asked(home, *said) == b"+"
            assert await asked(home, *words("Stop", SOON), b"garbage") == b"+"
        last = SOON + 4
        assert await asked(home, *words("UserPromptSubmit", last), PROMPT) == b"+"
        await eventually("all are recorded", lambda: len(prompts(home)) == 5)
    assert prompts(home) == list(range(SOON, SOON + 5))
    assert "locked" not in log_of(home).read_text()
    assert log_of(home).read_text().count("the hook is not a JSON object") == 1


async def test_a_keeper_that_ends_records_what_waits_or_logs_it(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hook_recording, "_BUSY_S", 0.01)
    monkeypatch.setattr(keeper, "_RETRY_S", 1_000.0, raising=False)
    record_alone(home, PROMPT, "UserPromptSubmit", SOON)
    async with kept(home), asyncio.timeout(ANSWER_S):
        with written_by_another(home):
            assert await asked(home, *words("UserPromptSubmit", SOON + 1), PROMPT) == b"+"
    assert prompts(home) == [SOON, SOON + 1]
    with written_by_another(home):
        async with kept(home), asyncio.timeout(ANSWER_S):
            assert await asked(home, *words("UserPromptSubmit", SOON + 2), PROMPT) == b"+"
    assert f"{SOON + 2} UserPromptSubmit CacheBusy: " in log_of(home).read_text()
    assert prompts(home) == [SOON, SOON + 1]


async def test_hooks_that_wait_are_tried_ever_less_often(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tries = iter([*[CacheBusy("busy")] * 6, None, CacheBusy("busy"), None])
    waits: list[float] = []

    async def sleep(seconds: float) -> None:
        waits.append(seconds)

    async def record_held(_: object) -> CacheBusy | None:
        return next(tries)

    monkeypatch.setattr(keeper._Keeper, "_record_held", record_held)
    keeping = keeper._Keeper(home, 1.0)
    with monkeypatch.context() as patched:
        patched.setattr(asyncio, "sleep", sleep)
        with pytest.raises(RuntimeError):  # no more tries
            await keeping._retry_held()
    assert waits == [1, 2, 4, 8, 16, 30, 30, 1, 2, 1]


async def test_hooks_that_wait_are_bounded_in_bytes(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hook_recording, "_BUSY_S", 0.01)
    monkeypatch.setattr(keeper, "_RETRY_S", 1_000.0, raising=False)
    monkeypatch.setattr(keeper, "_MAX_HELD", 3_000, raising=False)
    record_alone(home, PROMPT, "UserPromptSubmit", SOON)
    async with kept(home), asyncio.timeout(ANSWER_S):
        with written_by_another(home):
            for number in range(1, 5):
                said = [*words("UserPromptSubmit", SOON + number), PROMPT]
                assert await asked(home, *said) == b"+"
    assert prompts(home) == [SOON, SOON + 1, SOON + 2]
    lines = [line for line in log_of(home).read_text().splitlines() if " keep " not in line]
    assert [line.split(" ")[0] for line in lines] == [str(SOON + 3), str(SOON + 4)]


async def test_without_work_it_ends(home: Path) -> None:
    async with kept(home, idle_s=0.2) as task:
        await asyncio.wait_for(task, ANSWER_S)
    assert not (home / SOCKET).exists()


async def test_the_socket_of_a_killed_keeper_is_replaced(home: Path) -> None:
    (home / SOCKET).parent.mkdir(parents=True)
    (home / SOCKET).touch()
    async with kept(home):
        assert await asked(home, *words("UserPromptSubmit", SOON), PROMPT) == b"+"


async def test_the_first_hook_is_answered_as_soon_as_there_is_a_socket(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    inode_of, has_asked, answer = keeper._inode, False, b""

    def after_a_hook(path: Path) -> int | None:
        nonlocal has_asked, answer
        if (home / SOCKET).is_socket() and not has_asked:
            has_asked = True
            with socket.socket(socket.AF_UNIX) as hook:
                hook.connect(str(home / SOCKET))
                hook.sendall(b"\0".join((*words("UserPromptSubmit", SOON), PROMPT)))
                hook.shutdown(socket.SHUT_WR)
                answer = hook.recv(1)
        return inode_of(path)

    monkeypatch.setattr(keeper, "_inode", after_a_hook)
    async with kept(home) as task:
        while not answer:
            assert not task.done()
            await asyncio.sleep(0.01)
    assert answer == b"+"


async def test_the_log_counts_the_records_of_others_that_left_the_cache(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (home / FILE).parent.mkdir(parents=True)
    (home / FILE).write_text(f'[nmem]\nagents = ["{rover.npub}"]\n')
    start = PROMPT.replace(b"UserPromptSubmit", b"SessionStart")
    tea = Observation("t", NOW, "marker", "AgentMarker", "tea")

    def contents() -> list[str]:
        with contextlib.closing(Hooks(home).database) as database:
            return [row[8] for row in rows(database, "observations")]

    async with FakeRelay() as fake:
        monkeypatch.setenv("ROOKERY_RELAY", fake.url)
        fake.events.append(rover.sign(*observation_draft(tea, "rook")))
        async with kept(home):
            await asked(home, *words("SessionStart", SOON), start)
            async with until("the record of rover is in the cache") as tries:
                async for _ in tries:
                    if await asyncio.to_thread(contents) == ["tea"]:
                        break
            fake.events.clear()
            await asked(home, *words("SessionStart", SOON), start)
            await eventually("there is a log", lambda: log_of(home).exists())
        assert contents() == []
        text = f" keep removed 1 records that {fake.url} no longer gives\n"
        assert log_of(home).read_text().endswith(text)


async def test_a_session_that_starts_during_a_fetch_fetches_again(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun, may_end = asyncio.Queue[None](), asyncio.Event()
    fetch = sync.fetch

    async def slow(*given: Any) -> sync.Synced:
        fetched = await fetch(*given)
        begun.put_nowait(None)
        await may_end.wait()
        return fetched

    monkeypatch.setattr(sync, "fetch", slow)
    start = PROMPT.replace(b"UserPromptSubmit", b"SessionStart")
    async with FakeRelay() as fake, asyncio.timeout(ANSWER_S):
        monkeypatch.setenv("ROOKERY_RELAY", fake.url)
        async with kept(home):
            await begun.get()
            assert await asked(home, *words("SessionStart", SOON), start) == b"+"
            may_end.set()
            await begun.get()


async def test_the_keeper_fetches_when_a_record_is_refused_as_deleted(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else what was deleted with it was told at the next start of a session."""
    fetched = asyncio.Queue[None]()
    fetch = sync.fetch

    async def noted(*given: Any) -> sync.Synced:
        found = await fetch(*given)
        fetched.put_nowait(None)
        return found

    async def refuse(visitor: Visitor, frame: list[Any]) -> None:
        await visitor.say_no(frame[1]["id"], "blocked: deleted")

    monkeypatch.setattr(sync, "fetch", noted)
    async with FakeRelay() as fake, asyncio.timeout(ANSWER_S):
        fake.on["EVENT"] = refuse
        monkeypatch.setenv("ROOKERY_RELAY", fake.url)
        async with kept(home):
            await fetched.get()
            assert await asked(home, *words("UserPromptSubmit", SOON), PROMPT) == b"+"
            await fetched.get()
    assert prompts(home) == []


def waiting(home: Path) -> int:
    """Records that were neither sent nor refused."""
    with contextlib.closing(Hooks(home).database) as database, database.reading() as db:
        query = "SELECT count(*) FROM _rk_outbox WHERE refusal IS NULL"
        return int(db.execute(query).fetchone()[0])


async def test_the_log_names_a_refusal_once_and_what_is_refused_is_sent_when_that_ends(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with FakeRelay() as fake, asyncio.timeout(ANSWER_S):

        async def refuse(visitor: Visitor, frame: list[Any]) -> None:
            await visitor.say_no(frame[1]["id"], "restricted: only agents may write memory")

        fake.on["EVENT"] = refuse
        monkeypatch.setenv("ROOKERY_RELAY", fake.url)
        async with kept(home):
            for number in range(3):
                tea = PROMPT.replace(b"tea", b"tea %d" % number)
                assert await asked(home, *words("UserPromptSubmit", SOON), tea) == b"+"
                # Each before the next one is recorded: the second one's sync notes when the first
                # was refused.
                await eventually("it is refused", lambda: not waiting(home))
            (said_once,) = log_of(home).read_text().splitlines()
            assert said_once.endswith(": restricted: only agents may write memory")
            fake.on["EVENT"] = fake.take
            monkeypatch.setattr(keeper, "unix_now", lambda: unix_now() + 2 * 86_400)
            milk = PROMPT.replace(b"tea", b"milk")
            assert await asked(home, *words("UserPromptSubmit", SOON), milk) == b"+"
            said = {"tea 0", "tea 1", "tea 2", "milk"}

            def are_stored() -> bool:
                return said <= {json.loads(event.content).get("content") for event in fake.events}

            await eventually("all are at the relay", are_stored)


def test_the_log_has_no_characters_of_a_relay_that_a_terminal_obeys(home: Path) -> None:
    log_of(home).parent.mkdir(parents=True)
    said = "restricted: \x1b[31m\u202e\u200b\r\x9b\u2028no"
    log(home, "keep", UserError(said), 5)
    assert log_of(home).read_text() == "5 keep UserError: restricted: �[31m�����no\n"


@pytest.mark.parametrize("name", ["hook.log", "hook.lock"])
async def test_a_log_or_lock_that_is_a_link_is_not_followed(home: Path, name: str) -> None:
    """In a home folder that another user can write to."""
    there = log_of(home).with_name(name)
    there.parent.mkdir(parents=True)
    notes = home / "notes"
    notes.write_text("mine")
    there.symlink_to(notes)
    if name == "hook.log":
        log(home, "Stop", UserError("no"), NOW)
    else:
        with pytest.raises(OSError, match=name):
            await keep(home)
    assert notes.read_text() == "mine"


@pytest.mark.parametrize("size", [10, 1_000_001])
def test_errors_are_logged_on_one_line_and_the_log_is_rotated(home: Path, size: int) -> None:
    log_of(home).parent.mkdir(parents=True)
    log_of(home).write_text("x" * (size - 1) + "\n")
    log(home, "Stop", UserError("one\ntwo"), NOW)
    log(home, "", KeyError("of what was said"), NOW)
    *old, first, second = log_of(home).read_text().splitlines()
    assert (first, second) == (f"{NOW} Stop UserError: one two", f"{NOW} - KeyError: ")
    assert len(old) == (1 if size == 10 else 0)


def _remove(folder: Path) -> None:
    """At once: SQLite may make a file in it meanwhile."""
    shutil.rmtree(folder.rename(folder.with_name("removed")))


def _remove_home(home: Path) -> None:
    _remove(home)


def _remove_data(home: Path) -> None:
    _remove((home / SOCKET).parent)


def _remove_settings(home: Path) -> None:
    (home / FILE).unlink()


def _remove_cache(home: Path) -> None:
    _remove(home / "cache")


def _remove_key(home: Path) -> None:
    _remove(home / "relay")


@pytest.mark.parametrize(
    "remove", [_remove_home, _remove_data, _remove_settings, _remove_cache, _remove_key]
)
async def test_the_keeper_ends_when_what_it_serves_is_removed_and_makes_none_of_it_again(
    home: Path, monkeypatch: pytest.MonkeyPatch, remove: Callable[[Path], None]
) -> None:
    monkeypatch.setattr(keeper, "_CHECK_S", 0.02, raising=False)
    monkeypatch.setattr(keeper, "_BATCH_S", 0.0)
    monkeypatch.setattr(keeper, "_FIRST_BACKOFF_S", 0.01)
    (home / "relay").mkdir()
    (home / "relay/agent.nsec").write_text(robot.nsec)
    settings = home / FILE
    settings.parent.mkdir(parents=True)
    settings.write_text(
        f'agent_key_file = "{home}/relay/agent.nsec"\n[nmem]\ndb = "{home}/cache/nmem.db"\n'
    )
    async with kept(home) as task:
        assert await asked(home, *words("UserPromptSubmit", SOON), PROMPT) == b"+"
        await asyncio.to_thread(remove, home)
        left = await asyncio.to_thread(_files, home)
        async with asyncio.timeout(ANSWER_S):
            await task
        made = await asyncio.to_thread(_files, home) - left
        assert made <= {log_of(home)}
        assert not (made and remove in (_remove_home, _remove_data))
        await asyncio.to_thread(home.mkdir, exist_ok=True)  # for the fixture


def _files(home: Path) -> set[Path]:
    return set(home.rglob("*"))
