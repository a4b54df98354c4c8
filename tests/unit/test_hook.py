"""relay/hook.py: a hook asks the keeper, waits for one, or starts one."""

from __future__ import annotations

import contextlib
import fcntl
import io
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from relay.files import socket_address
from relay.hook import LOCK, SOCKET, HookInput, ask_keeper, words
from tests.harness.patience import ANSWER_S, PROGRAM_S

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

SAID = b'{"session_id": "s",\0 "prompt": "\xff"}'
ASK = """\
import sys
import relay.hook
sys.executable = sys.argv[1]
relay.hook.ANSWER_S = 0.3
sys.exit(relay.hook.ask_keeper(["Stop"]))
"""
"""A hook in its own process, with a given Python executable."""
KEEPER = """\
#!/bin/sh
echo "$@" >> "$HOME/started"
while [ -e "$HOME/hold" ]; do sleep 0.02; done
"""
"""It does nothing but to be there."""


@pytest.fixture
def home(monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> Iterator[Path]:
    folder = Path(tempfile.mkdtemp(prefix="rk"))
    made = folder / getattr(request, "param", "home")
    (made / SOCKET).parent.mkdir(parents=True)
    monkeypatch.setenv("HOME", str(made))
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(SAID)))
    yield made
    shutil.rmtree(folder)


@contextlib.contextmanager
def locked(home: Path) -> Iterator[None]:
    """As by a hook that is about to start a keeper."""
    with (home / SOCKET).with_name(LOCK).open("ab") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield


def is_locked(home: Path) -> bool:
    try:
        with locked(home):
            return False
    except BlockingIOError:
        return True


@contextlib.contextmanager
def keeper(home: Path, *answers: bytes) -> Iterator[list[bytes]]:
    """One that says this to one hook after another; what they asked."""
    asked: list[bytes] = []

    def answer() -> None:
        for each in answers:
            hook, _ = listener.accept()
            with hook:
                hook.settimeout(ANSWER_S)
                said = b""
                while part := hook.recv(65_536):
                    said += part
                asked.append(said)
                hook.sendall(each)

    with socket.socket(socket.AF_UNIX) as listener:
        listener.settimeout(ANSWER_S)
        with socket_address(home / SOCKET) as address:
            listener.bind(address)
        listener.listen()
        thread = threading.Thread(target=answer)
        thread.start()
        try:
            yield asked
        finally:
            thread.join()


def give_away(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """To another user."""
    if os.geteuid() == 0:
        os.chown(path, 4711, 4711)
    else:
        monkeypatch.setattr(os, "geteuid", lambda: 4711)


def wait_until(holds: Callable[[], bool]) -> None:
    ends = time.monotonic() + ANSWER_S
    while not holds():
        assert time.monotonic() < ends
        time.sleep(0.01)


@pytest.mark.parametrize("home", ["home", "a-long-name-" * 10], indirect=True)
def test_a_keeper_gets_the_input_and_its_reply_is_printed(
    home: Path, capsysbinary: pytest.CaptureFixture[bytes]
) -> None:
    began = int(time.time())
    with keeper(home, b"+known: tea") as asked:
        assert ask_keeper(["Stop"])
    assert capsysbinary.readouterr().out == b"known: tea"
    *agreed, at, first, second = asked[0].split(b"\0")
    assert [*agreed, b"0"] == words("Stop", 0)
    assert b"\0".join([first, second]) == SAID
    assert began <= int(at) <= began + 60
    assert not (home / SOCKET).with_name(LOCK).exists()


def test_a_keeper_of_another_user_is_told_nothing(
    home: Path, capsysbinary: pytest.CaptureFixture[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    """It would get the keys, and say what the model is told."""
    monkeypatch.setattr("relay.hook._start_keeper", lambda _: None)
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(home / SOCKET))
        if os.geteuid() == 0:
            os.seteuid(4711)
            try:
                listener.listen()
            finally:
                os.seteuid(0)
        else:
            listener.listen()
            monkeypatch.setattr(os, "geteuid", lambda: 4711)
        assert not ask_keeper(["Stop"])
        hook, _ = listener.accept()
        with hook:
            assert hook.recv(10) == b""
    assert sys.stdin.buffer.read() == SAID
    assert capsysbinary.readouterr().out == b""


@pytest.mark.parametrize("what", ["folder", "lock"])
def test_no_keeper_is_started_by_what_another_user_has_made(
    home: Path, monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    started: list[object] = []
    monkeypatch.setattr("relay.hook._start_keeper", started.append)
    lock = (home / SOCKET).with_name(LOCK)
    lock.write_text("1234567\n")
    give_away(lock if what == "lock" else lock.parent, monkeypatch)
    assert not ask_keeper(["Stop"])
    assert started == []
    assert lock.read_text() == "1234567\n"


@pytest.mark.skipif(os.geteuid() != 0, reason="who is not root gives no single folder away")
@pytest.mark.parametrize("is_container", [True, False])
def test_a_keeper_is_started_in_a_container_with_the_home_folder_of_the_host(
    home: Path, monkeypatch: pytest.MonkeyPatch, *, is_container: bool
) -> None:
    started: list[object] = []
    monkeypatch.setattr("relay.hook._start_keeper", started.append)
    monkeypatch.setattr("relay.hook._CONTAINER_FILES", (str(home),) if is_container else ())
    give_away((home / SOCKET).parent.parent, monkeypatch)
    assert not ask_keeper(["Stop"])
    assert bool(started) is is_container


def test_a_lock_that_is_a_link_is_not_followed(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The file that it named was emptied."""
    monkeypatch.setattr("relay.hook._start_keeper", lambda _: None)
    (home / "notes").write_text("mine")
    (home / SOCKET).with_name(LOCK).symlink_to(home / "notes")
    assert not ask_keeper(["Stop"])
    assert (home / "notes").read_text() == "mine"


def test_a_hook_waits_for_a_keeper_that_another_starts(
    home: Path, capsysbinary: pytest.CaptureFixture[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("relay.hook.ANSWER_S", ANSWER_S)
    with locked(home), keeper(home, b"", b"-", b"+done") as asked:
        assert ask_keeper(["Stop"])
    assert capsysbinary.readouterr().out == b"done"
    assert len(asked) == 3
    assert len(set(asked)) == 1


def test_waiting_for_a_keeper_times_out(
    home: Path, capsysbinary: pytest.CaptureFixture[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("relay.hook.ANSWER_S", 0.05)
    began = int(time.time())
    with locked(home):
        assert not ask_keeper(["Stop"])
        heard = sys.stdin.buffer
        assert isinstance(heard, HookInput)
        assert began <= heard.at <= began + 60
        assert not ask_keeper(["Stop"]), "it does not ask again"
    assert heard.read() == SAID
    assert capsysbinary.readouterr().out == b""


def test_waiting_for_a_reply_times_out(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("relay.hook.ANSWER_S", 0.05)
    with locked(home), socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(home / SOCKET))
        listener.listen()
        assert not ask_keeper(["Stop"])


@pytest.mark.process
@pytest.mark.slow
def test_one_of_many_hooks_starts_the_keeper_with_the_lock(home: Path) -> None:
    (home / "hold").touch()
    (home / "keeper").write_text(KEEPER)
    (home / "keeper").chmod(0o700)
    (home / SOCKET).with_name(LOCK).write_text("1234567\n")
    hooks = [
        subprocess.Popen([sys.executable, "-c", ASK, home / "keeper"], stdin=subprocess.PIPE)
        for _ in range(12)
    ]
    for hook in hooks:
        hook.communicate(SAID, timeout=PROGRAM_S)
    assert [hook.returncode for hook in hooks] == [0] * 12
    assert is_locked(home)
    assert (home / SOCKET).with_name(LOCK).read_text() == ""
    (home / "hold").unlink()
    wait_until(lambda: not is_locked(home))
    (line,) = (home / "started").read_text().splitlines()
    assert line.startswith("-P -m relay hook keep --lock ")


@pytest.mark.parametrize("nowhere", ["/dev/null", "/dev/null/home", "home", "/proc/self/cwd"])
def test_without_a_keeper_the_hook_does_the_work(
    home: Path, monkeypatch: pytest.MonkeyPatch, nowhere: str
) -> None:
    monkeypatch.setenv("HOME", nowhere)
    monkeypatch.setattr(sys, "executable", str(home / "nothing"))
    assert not ask_keeper(["Stop"])
    assert sys.stdin.buffer.read() == SAID


def test_a_closed_stdin_is_no_input(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdin", None)
    assert ask_keeper(["Stop"])


def test_a_closed_stdout_keeps_no_hook_from_being_recorded(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "stdout", None)
    with keeper(home, b"+known: tea") as asked:
        assert ask_keeper(["Stop"])
    assert len(asked) == 1


@pytest.mark.parametrize("command", ["install", "uninstall", "keep", "--help", "-h"])
def test_subcommands_do_not_read_stdin(home: Path, command: str) -> None:
    assert not ask_keeper([command])
    assert sys.stdin.buffer.read() == SAID
