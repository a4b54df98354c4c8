"""`rookery hook install` and `uninstall`: only their own entries change."""

from __future__ import annotations

import io
import json
import os
import stat
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

from relay.cli import run
from relay.cli.hook import hook_faults
from relay.hook import HookInput
from relay.memory.nmem.capture import HookEvent

if TYPE_CHECKING:
    from collections.abc import Callable

    Ask = Callable[..., dict[str, Any]]

THEIRS = {
    "model": "large",
    "hooks": {
        "PostToolUse": [
            {"matcher": "Edit", "hooks": [{"type": "command", "command": "make lint"}]},
        ],
        "Notification": [{"hooks": [{"type": "command", "command": "say 'rookery hook Stop'!"}]}],
        "PreCompact": [],
    },
    "permissions": {"allow": ["Bash(ls)"], "é": None},
}


@pytest.fixture
def ask(capsys: pytest.CaptureFixture[str]) -> Ask:
    def ask(*args: str) -> dict[str, Any]:
        assert run(["hook", *args, "--json"]) == 0
        out, err = capsys.readouterr()
        assert err == ""
        answer = json.loads(out)
        assert isinstance(answer, dict)
        return answer

    return ask


def settings_in(folder: Path, text: str | None = None) -> Path:
    path = folder / "settings.json"
    if text is not None:
        path.write_text(text)
    return path


def commands(path: Path) -> dict[str, list[str]]:
    hooks = json.loads(path.read_text())["hooks"]
    return {
        name: [each["command"] for entry in entries for each in entry["hooks"]]
        for name, entries in hooks.items()
    }


@pytest.mark.proves("M-22")
def test_install_adds_all_hooks(tmp_path: Path, ask: Ask) -> None:
    path = settings_in(tmp_path / "made")
    told = ask("install", "--settings", str(path))
    assert told == {"settings": str(path), "changed": True, "backup": None}
    program = Path(sys.executable).with_name("rookery")
    assert commands(path) == {name: [f"{program} hook {name}"] for name in HookEvent}
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


@pytest.mark.proves("M-22")
def test_existing_hooks_survive_install_and_uninstall(tmp_path: Path, ask: Ask) -> None:
    path = settings_in(tmp_path, json.dumps(THEIRS, indent=4))
    path.chmod(0o640)
    text = path.read_bytes()
    backup = Path(ask("install", "--settings", str(path))["backup"])
    assert backup.read_bytes() == text
    assert stat.S_IMODE(backup.stat().st_mode) == stat.S_IMODE(path.stat().st_mode) == 0o640
    both = commands(path)
    assert both["PostToolUse"][0] == "make lint"
    assert both["PostToolUse"][1].endswith(" hook PostToolUse")
    assert both["Notification"] == ["say 'rookery hook Stop'!"]
    assert json.loads(path.read_text())["permissions"] == THEIRS["permissions"]
    ask("uninstall", "--settings", str(path))
    assert json.loads(path.read_text()) == THEIRS
    assert list(json.loads(path.read_text())) == list(THEIRS)
    backup.replace(path)
    assert path.read_bytes() == text


@pytest.mark.proves("M-22")
def test_install_is_idempotent(tmp_path: Path, ask: Ask) -> None:
    path = settings_in(tmp_path, "{}")
    ask("install", "--settings", str(path))
    before = path.read_bytes()
    assert ask("install", "--settings", str(path)) == {
        "settings": str(path),
        "changed": False,
        "backup": None,
    }
    assert path.read_bytes() == before
    ask("uninstall", "--settings", str(path))
    assert json.loads(path.read_text()) == {}
    assert ask("uninstall", "--settings", str(path))["changed"] is False


@pytest.mark.proves("M-22")
def test_the_hooks_of_an_older_installation_are_replaced(tmp_path: Path, ask: Ask) -> None:
    old = [
        "/old place/bin/rookery hook Stop",
        "'/old place/bin/rookery' hook Stop",
        "/old/python -m relay hook Stop",
        "rookery hook Stop ",
    ]
    hooks = [{"hooks": [{"type": "command", "command": each}]} for each in old]
    shared = {"hooks": [{"type": "command", "command": each} for each in ("bell", old[0])]}
    path = settings_in(tmp_path, json.dumps({"hooks": {"Stop": [*hooks, shared]}}))
    ask("install", "--settings", str(path))
    program = Path(sys.executable).with_name("rookery")
    assert commands(path)["Stop"] == ["bell", f"{program} hook Stop"]


def test_the_installed_command_runs_no_package_of_a_project(
    tmp_path: Path, ask: Ask, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "executable", "/opt/some python/python3")
    path = settings_in(tmp_path, "{}")
    ask("install", "--settings", str(path))
    assert commands(path)["Stop"] == ["'/opt/some python/python3' -P -m relay hook Stop"]
    ask("uninstall", "--settings", str(path))
    assert json.loads(path.read_text()) == {}


def test_a_symbolic_link_is_kept(tmp_path: Path, ask: Ask) -> None:
    path = settings_in(tmp_path, "{}")
    link = tmp_path / "link.json"
    link.symlink_to(path)
    ask("install", "--settings", str(link))
    assert link.is_symlink()
    assert "SessionStart" in commands(path)


@pytest.mark.parametrize("make", [os.mkfifo, lambda path: path.symlink_to(path)])
@pytest.mark.parametrize("verb", ["install", "uninstall"])
def test_settings_that_are_no_file_are_not_changed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], verb: str, make: Callable[[Path], None]
) -> None:
    path = tmp_path / "settings.json"
    make(path)
    mode = path.lstat().st_mode
    assert run(["hook", verb, "--settings", str(path)]) == 1
    assert f"{path} is no file" in capsys.readouterr().err
    assert path.lstat().st_mode == mode
    assert list(tmp_path.iterdir()) == [path]


def test_settings_in_a_pipe_without_a_name_are_refused(capsys: pytest.CaptureFixture[str]) -> None:
    reader, writer = os.pipe()
    try:
        path = f"/dev/fd/{writer}"
        assert run(["hook", "install", "--settings", path]) == 1
        assert f"{path} is no file" in capsys.readouterr().err
    finally:
        os.close(reader)
        os.close(writer)


@pytest.mark.parametrize("make", [os.mkfifo, Path.mkdir, lambda path: path.symlink_to(path)])
def test_settings_that_are_no_file_have_no_faulty_hooks(
    tmp_path: Path, make: Callable[[Path], None]
) -> None:
    (tmp_path / ".claude").mkdir()
    make(tmp_path / ".claude" / "settings.json")
    assert hook_faults(tmp_path) == []


@pytest.mark.parametrize(
    "text",
    ["{", "[]", "5", '{"hooks": []}', '{"hooks": {"Stop": {}}}', "// a comment\n{}"],
)
@pytest.mark.parametrize("verb", ["install", "uninstall"])
def test_unreadable_settings_are_not_changed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], text: str, verb: str
) -> None:
    path = settings_in(tmp_path, text)
    assert run(["hook", verb, "--settings", str(path)]) == 1
    assert "not changed" in capsys.readouterr().err
    assert path.read_text() == text
    assert [each.name for each in tmp_path.iterdir()] == ["settings.json"]


def test_odd_entries_of_others_are_kept(tmp_path: Path, ask: Ask) -> None:
    odd = {"hooks": {"Stop": ["text", {"hooks": "none"}, {"hooks": [5, {"command": 5}]}, {}]}}
    path = settings_in(tmp_path, json.dumps(odd))
    ask("install", "--settings", str(path))
    assert json.loads(path.read_text())["hooks"]["Stop"][:4] == odd["hooks"]["Stop"]
    ask("uninstall", "--settings", str(path))
    assert json.loads(path.read_text()) == odd


def test_install_prints_what_it_did(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = settings_in(tmp_path, "{}")
    for verb, words in (
        ("install", "installed in"),
        ("install", "nothing to change"),
        ("uninstall", "removed from"),
    ):
        assert run(["hook", verb, "--settings", str(path)]) == 0
        assert words in capsys.readouterr().out


@pytest.mark.parametrize(
    "home", [".", "/proc/self/cwd", "//proc/self/cwd", "/usr/../proc/self/cwd", "/dev/fd/../cwd"]
)
def test_the_folder_of_the_project_is_no_home(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, home: str
) -> None:
    """It would be the project's folder, which may have settings of somebody else."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", home)
    monkeypatch.setattr(sys, "stdin", SimpleNamespace(buffer=HookInput(b"{}", 0)))
    assert run(["hook", "UserPromptSubmit"]) == 0
    assert [*tmp_path.iterdir()] == []


@pytest.mark.parametrize("place", [".config/rookery", ".local", ".local/share/rookery"])
def test_a_hook_does_nothing_where_another_user_has_made_its_folders(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    give_away: Callable[[Path], None],
    place: str,
) -> None:
    """As with `sudo -E`: prompts went to the relay that the other user named."""
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / place).mkdir(parents=True)
    monkeypatch.setattr("relay.hook._start_keeper", lambda _: None)
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"{}")))
    before = set(tmp_path.rglob("*"))
    give_away(tmp_path / place)
    assert run(["hook", "Stop"]) == 0
    said = capsys.readouterr()
    assert said.out == ""
    assert said.err.startswith("rookery hook does nothing: ")
    assert said.err.count("\n") == 1
    made = {path.name for path in set(tmp_path.rglob("*")) - before}
    assert made <= {".local", "share", "rookery", "hook.lock"}
    assert made == set() or place == ".config/rookery"


def test_install_changes_no_settings_of_another_user(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    give_away: Callable[[Path], None],
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    link = tmp_path / ".claude/settings.json"
    link.parent.mkdir()
    link.symlink_to(tmp_path / "daemon.json")
    give_away(link)
    assert run(["hook", "install"]) == 1
    assert "belongs to another user" in capsys.readouterr().err
    assert not (tmp_path / "daemon.json").exists()


def test_install_warns_if_hooks_find_no_key(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("ROOKERY_KEY", raising=False)
    monkeypatch.chdir(tmp_path)
    key = tmp_path / "data/keys/agent.nsec"
    key.parent.mkdir(parents=True)
    key.write_text("")
    assert run(["hook", "install"]) == 0
    told = capsys.readouterr().err
    assert f'agent_key_file = "{key}"' in told
    file = tmp_path / ".config/rookery/client.toml"
    file.parent.mkdir(parents=True)
    file.write_text("\n".join(told.splitlines()[1:]))
    assert run(["hook", "install"]) == 0
    assert capsys.readouterr().err == ""
    assert run(["hook", "uninstall"]) == 0
