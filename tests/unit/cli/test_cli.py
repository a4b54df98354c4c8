"""The command line: help, exit codes and error output."""

from __future__ import annotations

import errno
import os
import re
import subprocess
import sys
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING

import click
import pytest

from relay import __version__, cli
from relay.cli import COMMANDS, SECTIONS, rookery, run
from relay.errors import ConfigFaults, Fault, Invalid, UserError
from tests.cast import alice
from tests.harness.patience import PROGRAM_S

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


@pytest.fixture
def command(monkeypatch: pytest.MonkeyPatch) -> Callable[[BaseException | int], None]:
    """Makes `rookery keygen` raise, or return."""

    def made(outcome: BaseException | int) -> None:
        @click.command("keygen")
        def keygen() -> int:
            if isinstance(outcome, BaseException):
                raise outcome
            return outcome

        monkeypatch.setattr(import_module("relay.cli.init"), "keygen", keygen)

    return made


def complaint(capsys: pytest.CaptureFixture[str]) -> str:
    """What stands on stderr: one line."""
    out, err = capsys.readouterr()
    assert out == ""
    assert err.endswith("\n")
    assert "Traceback" not in err
    return err.removesuffix("\n")


@pytest.mark.process
def test_help_names_every_command_and_imports_none_of_them() -> None:
    loaded = subprocess.run(
        [
            sys.executable,
            "-c",
            "import sys; from relay.cli import run; run(['--help']);"
            "print([name for name in sys.modules if name.startswith('relay.')])",
        ],
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    for name in COMMANDS:
        assert f"\n  {name} " in loaded
    assert loaded.splitlines()[-1] == "['relay.errors', 'relay.cli']"


CLOSED = """
import os, sys
for number in (0, 1, 2):
    os.close(number)
os.execv(sys.executable, [sys.executable, "-m", "tests.unit.cli.test_cli", *sys.argv[1:]])
"""


def report_on_streams(to: str, *args: str) -> None:
    """Runs a command and writes down its exit code and what the standard streams are."""
    code = run(args)
    Path(to).write_text(
        " ".join([str(code), *(os.path.realpath(f"/dev/fd/{n}") for n in range(3))])
    )


@pytest.mark.process
@pytest.mark.skipif(sys.platform != "linux", reason="/dev/fd has no links")
@pytest.mark.parametrize("command", ["export", "log"])
def test_closed_streams_are_no_fault_and_no_file_takes_their_place(
    tmp_path: Path, command: str
) -> None:
    data, report = tmp_path / "data", tmp_path / "report"
    assert run(["init", str(data), "--owner", alice.npub]) == 0
    args = [sys.executable, "-c", CLOSED, str(report), command, "--data", str(data)]
    subprocess.run(args, timeout=PROGRAM_S, check=True)
    assert report.read_text() == "0 /dev/null /dev/null /dev/null"


def test_the_help_lists_each_command_under_one_heading(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert run(["--help"]) == 0
    out = capsys.readouterr().out
    for heading, commands in SECTIONS.items():
        _, _, rest = out.partition(f"\n{heading}:\n")
        lines = rest.partition("\n\n")[0].splitlines()
        assert [line.split()[0] for line in lines] == list(commands)
    assert sum(map(len, SECTIONS.values())) == len(COMMANDS)


@pytest.mark.parametrize(
    ("words", "offered"),
    [
        ("rookery sta", {"stats", "status"}),
        ("rookery group sh", {"show"}),
        ("rookery stats --js", {"--json"}),
    ],
)
def test_a_shell_completes_commands_and_options(
    words: str,
    offered: set[str],
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("_ROOKERY_COMPLETE", "bash_complete")
    monkeypatch.setenv("COMP_WORDS", words)
    monkeypatch.setenv("COMP_CWORD", str(len(words.split()) - 1))
    with pytest.raises(SystemExit) as end:
        run([])
    assert end.value.code == 0
    found = {line.removeprefix("plain,") for line in capsys.readouterr().out.split()}
    assert found <= offered
    assert found


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_the_completion_script_asks_rookery(shell: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["completion", shell]) == 0
    script = capsys.readouterr().out
    assert f"_ROOKERY_COMPLETE={shell}_complete" in script
    assert "_rookery_completion" in script


def test_the_manual_is_written_through_no_link(tmp_path: Path) -> None:
    """Somebody else may have made it, so that root's command emptied a file of root."""
    target, page = tmp_path / "target", tmp_path / "rookery.1"
    target.write_text("kept")
    page.symlink_to(target)
    assert run(["man", str(tmp_path)]) == 0
    assert target.read_text() == "kept"
    assert not page.is_symlink()
    assert page.stat().st_mode & 0o777 == 0o644


def test_the_manual_has_every_command_with_its_options(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["man", str(tmp_path / "man1")]) == 0
    pages = {path.name: path.read_text() for path in (tmp_path / "man1").iterdir()}
    assert set(pages) == {"rookery.1", *(f"rookery-{name}.1" for name in COMMANDS)}
    assert all(f"rookery\\-{name}" in pages["rookery.1"] for name in COMMANDS)
    assert r".SH ROOKERY SESSION PNS WRAP" in pages["rookery-session.1"]
    assert r"\fB\-\-port N\fP" in pages["rookery-serve.1"]
    for name, text in pages.items():
        # What begins a line is a known request or text.
        wrong = [
            line for line in text.splitlines() if not re.match(r"\.(TH|SH|TP|PP)\b|[^.']", line)
        ]
        assert wrong == [], name


def test_version_is_printed(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["--version"]) == 0
    assert capsys.readouterr().out == f"rookery {__version__}\n"


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_has_help_with_an_example(
    name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run([name, "--help"]) == 0
    out = capsys.readouterr().out
    assert f"Usage: rookery {name}" in out
    assert "Example" in out


def every_command() -> Iterator[tuple[list[str], click.Command]]:
    """(words, command), those within groups too, but for what nobody types."""
    waiting = [([name], rookery.get_command(click.Context(rookery), name)) for name in COMMANDS]
    while waiting:
        words, found = waiting.pop(0)
        assert found is not None
        if isinstance(found, click.Group):
            waiting += [([*words, name], found.commands[name]) for name in found.commands]
        if not found.hidden:
            yield words, found


_NEEDED = {"policy explain": "event.json", "policy test": "cases.toml", "sync": "ws://127.0.0.1:1"}
"""Arguments that click asks for before the folder is looked at."""


@pytest.mark.slow
def test_root_runs_no_command_on_the_folder_of_another_user(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    give_away: Callable[[Path], None],
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Through links, that user had root write, read and run files."""
    monkeypatch.chdir(tmp_path)
    folder = tmp_path / "data"
    (folder / "policies").mkdir(parents=True)
    (folder / "rookery.toml").touch()
    Path("event.json").write_text("{}")
    Path("cases.toml").touch()
    give_away(folder)
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    ran = []
    for words, found in every_command():
        if any("--data" in option.opts for option in found.params):
            name = " ".join(words)
            needed = [_NEEDED[name]] if name in _NEEDED else []
            assert run([*words, "--data", "data", *needed]) == 1, words
            assert "belongs to user " in capsys.readouterr().err, words
            ran.append(name)
    assert {"serve", "doctor", "policy pull", "policy check", "sync", "top"} <= {*ran}
    assert sorted(os.listdir(folder)) == ["policies", "rookery.toml"]


def test_every_command_within_another_has_help_with_an_example(
    capsys: pytest.CaptureFixture[str],
) -> None:
    for words, _ in every_command():
        assert run([*words, "--help"]) == 0
        out = " ".join(capsys.readouterr().out.split())
        assert re.search(f"Examples?: .*(rookery {' '.join(words)}|mcp)", out), words
        assert not re.search(r"[a-z,;]\.\.\.", out), f"{words}: a sentence is cut"


def test_every_option_has_help_and_shared_options_have_the_same() -> None:
    said: dict[str, set[str]] = {}
    for words, found in every_command():
        for option in found.params:
            if isinstance(option, click.Option):
                assert option.help or option.show_default, (words, option.name)
                assert "RANGE" not in option.make_metavar(click.Context(found)), words
                said.setdefault(option.opts[-1], set()).add(option.help or "")
    assert len(said["--json"]) == 1
    # `sync` has two relays and needs no key, an envelope is opened by a device's.
    assert (len(said["--relay"]), len(said["--key-file"])) == (2, 3)


@pytest.mark.parametrize(
    ("args", "says"),
    [
        (["xyz"], "rookery: No such command 'xyz'"),
        (["ini"], "rookery: No such command 'ini'. Did you mean 'init'?"),
        (["sesion", "list"], "rookery: No such command 'sesion'. Did you mean 'session'?"),
        (["keygen", "--jsn"], "rookery keygen: No such option"),
        (["init"], "rookery init: Missing argument 'DIR'"),
        (["init", "x"], "rookery init: Missing option '--owner'"),
        (["group", "show"], "rookery group show: Missing argument 'ID'"),
        (["group", "add", "tea", "--role"], "rookery group add: Option '--role' requires"),
        (["--key-file", "x"], "rookery: No such option '--key-file'. Options are given after"),
    ],
)
def test_usage_errors_are_one_line_and_exit_2(
    args: list[str], says: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(args) == 2
    line = complaint(capsys)
    assert line.startswith(says)
    assert line.endswith("--help`)")
    assert "\n" not in line


@pytest.mark.parametrize(
    ("args", "kib"),
    [
        (["key", "show"], 64),
        (["group", "list", "--relay", "ws://127.0.0.1:1", "--key-file"], 64),
        (["session", "pns", "unwrap", "--key-file"], 64),
        (["hook", "install", "--settings"], 16 << 10),
        (["forget", "--verify"], 16 << 10),
        (["policy", "explain"], 16 << 10),
        (["policy", "test"], 16 << 10),
        (["serve", "--check", "--data", "data", "--config"], 16 << 10),
    ],
)
def test_a_file_that_may_have_no_end_is_not_read_whole(
    args: list[str],
    kib: int,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "data" / "policies").mkdir(parents=True)
    (tmp_path / "data" / "rookery.toml").touch()
    named = tmp_path / "named.toml"
    with named.open("wb") as file:
        file.write(f"{alice.nsec}\n".encode())
        file.truncate((kib << 10) + 1)
    assert run([*args, str(named)]) == 1
    text = complaint(capsys)
    assert f"{named}: " in text
    assert "too large, over " in text
    assert "\n" not in text


def test_control_characters_are_not_printed(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(*args: object, **more: object) -> None:
        raise UserError("restricted: \x1b]0;mine\x07 \x9b2J \u202etxt\nsecond line")

    monkeypatch.setattr("relay.cli.rookery.main", refused)
    assert run(["group", "list"]) == 1
    told = capsys.readouterr().err
    assert told == "rookery: restricted: \ufffd]0;mine\ufffd \ufffd2J \ufffdtxt\nsecond line\n"


def test_an_argument_that_is_not_utf_8_must_be_a_file_name(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    bad = os.fsdecode(b"\xff")
    assert run(["memory", "set", "tea", bad]) == 2
    assert complaint(capsys) == "rookery: argument 4 is not UTF-8"
    file = tmp_path / f"{bad}.db"
    file.write_text("no database")
    assert run(["keygen", "--help", str(file)]) == 0


@pytest.mark.parametrize(("args", "heading"), [([], "Operation:"), (["group"], "Commands:")])
def test_without_a_command_the_help_is_printed_with_exit_2(
    args: list[str], heading: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(args) == 2
    assert f"\n{heading}\n" in complaint(capsys)


@pytest.mark.parametrize(
    ("error", "code", "says"),
    [
        (UserError("do this next"), 1, "rookery: do this next"),
        (UserError("that is no URL", code=2), 2, "rookery: that is no URL"),
        (Invalid("kind: wrong"), 1, "rookery: invalid: kind: wrong"),
        (PermissionError(13, "Permission denied", "/x"), 1, "rookery: /x: Permission denied"),
    ],
)
def test_user_errors_are_one_line(
    error: Exception,
    code: int,
    says: str,
    command: Callable[[BaseException | int], None],
    capsys: pytest.CaptureFixture[str],
) -> None:
    command(error)
    assert run(["keygen"]) == code
    assert complaint(capsys) == says


def test_faults_of_a_file_are_one_line_each(
    command: Callable[[BaseException | int], None], capsys: pytest.CaptureFixture[str]
) -> None:
    command(ConfigFaults([Fault("a.toml", 3, "one"), Fault("a.toml", 9, "two")]))
    assert run(["keygen"]) == 1
    assert complaint(capsys) == "rookery: a.toml:3: one\na.toml:9: two"


def test_a_disk_that_is_full_is_told_though_the_error_names_no_file(
    command: Callable[[BaseException | int], None], capsys: pytest.CaptureFixture[str]
) -> None:
    command(OSError(errno.ENOSPC, os.strerror(errno.ENOSPC)))
    assert run(["keygen"]) == 1
    assert complaint(capsys) == "rookery: No space left on device"


@pytest.mark.parametrize(
    ("fault", "says"),
    [
        (OSError(errno.EMFILE, os.strerror(errno.EMFILE)), "Too many open files: raise `ulimit"),
        (OSError(errno.ENFILE, os.strerror(errno.ENFILE)), "Too many open files in system"),
        (OSError(errno.ENOMEM, os.strerror(errno.ENOMEM)), "Cannot allocate memory"),
        (MemoryError(), "out of memory"),
    ],
)
def test_what_the_machine_does_not_give_is_told(
    command: Callable[[BaseException | int], None],
    capsys: pytest.CaptureFixture[str],
    fault: BaseException,
    says: str,
) -> None:
    """It was a traceback."""
    command(fault)
    assert run(["keygen"]) == 1
    assert complaint(capsys).startswith(f"rookery: {says}")


@pytest.mark.parametrize("error", [KeyboardInterrupt(), click.Abort()])
def test_ctrl_c_is_130_and_no_traceback(
    error: BaseException,
    command: Callable[[BaseException | int], None],
    capsys: pytest.CaptureFixture[str],
) -> None:
    command(error)
    assert run(["keygen"]) == 130
    assert capsys.readouterr().err.strip() == ""


def test_a_bug_is_raised_unchanged(command: Callable[[BaseException | int], None]) -> None:
    command(ZeroDivisionError())
    with pytest.raises(ZeroDivisionError):
        run(["keygen"])


def test_a_command_may_return_its_exit_code(
    command: Callable[[BaseException | int], None],
) -> None:
    command(1)
    assert run(["keygen"]) == 1


def test_a_module_without_its_command_raises(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(cli, "COMMANDS", {"nothing": ("init", "is not there")})
    with pytest.raises(LookupError, match=r"relay\.cli\.init has no click command named 'nothing'"):
        run(["nothing"])


@pytest.mark.parametrize(
    "words",
    [
        ["profile", "set", "--name", alice.nsec],
        ["profile", "set", f"--name={alice.nsec}"],
        ["group", "create", alice.nsec],
        ["group", "invite", "tea", "--code", alice.nsec.upper()],
        ["aman", "set-preference", f" {alice.nsec}", "x"],
    ],
)
def test_a_secret_key_given_by_mistake_is_not_published(
    words: list[str], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ROOKERY_KEY", alice.hex)
    monkeypatch.setenv("ROOKERY_RELAY", "ws://127.0.0.1:1")
    assert run(words) == 2
    assert "that is a secret key" in complaint(capsys)


@pytest.mark.parametrize("words", [["forget"], ["key", "show"], ["memory", "get"], []])
def test_a_secret_key_among_the_arguments_is_not_repeated(
    words: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert run([*words, alice.nsec]) != 0
    assert alice.nsec not in complaint(capsys)


if __name__ == "__main__":
    report_on_streams(*sys.argv[1:])
