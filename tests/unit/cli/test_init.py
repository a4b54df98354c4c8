"""`rookery init`, `rookery keygen`, and the folder that `serve` creates."""

from __future__ import annotations

import dataclasses
import json
import os
import re
import stat
import tomllib
from importlib.resources import files
from pathlib import Path
from typing import Any

import pytest

from relay.cli import init as init_module
from relay.cli import run
from relay.cli.init import fresh_folder, init_folder, is_fresh
from relay.config import Config, load_config
from relay.errors import UserError
from relay.nostr.keys import SecretKey, npub
from tests.cast import alice, owner, robot, rover

ALL = ["relay.key", "policies/00-actors.toml", "policies/10-preset.toml", "rookery.toml"]


def toml(path: Path) -> dict[str, Any]:
    return tomllib.loads(path.read_text("utf-8"))


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def listing(folder: Path) -> set[str]:
    return {path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()}


def test_init_takes_a_port(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = tmp_path / "data"
    assert run(["init", str(folder), "--owner", owner.npub, "--port", "7000"]) == 0
    assert load_config(folder / "rookery.toml").server.port == 7000
    assert run(["init", str(tmp_path / "b"), "--owner", owner.npub, "--port", "70000"]) == 2
    assert "--port" in capsys.readouterr().err


def test_what_is_made_is_printed_as_json(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    key_file, data, demo = (str(tmp_path / name) for name in ("me.nsec", "data", "demo"))
    made = []
    for args in (
        ["keygen", "-o", key_file],
        ["init", data, "--owner", owner.npub],
        ["demo", demo],
    ):
        assert run([*args, "--json"]) == 0
        made.append(json.loads(capsys.readouterr().out))
    key, folder, team = made
    assert key.keys() == {"file", "npub", "public"}, "the secret is in the file alone"
    assert SecretKey.parse(Path(key_file).read_text().strip()).pubkey == key["public"]
    assert {Path(each).relative_to(data).as_posix() for each in folder["wrote"]} == listing(
        tmp_path / "data"
    )
    assert team["events"] > 50
    assert Path(team["owner_key_file"]).exists()


@pytest.mark.parametrize("link", ["policies/20-workshop.toml", "policies", "keys"])
def test_a_demo_is_made_in_no_folder_that_has_links(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], link: str
) -> None:
    """In a cloned repository: a file of the user's was overwritten."""
    folder, target = tmp_path / "team", tmp_path / "target"
    (folder / link).parent.mkdir(parents=True)
    (folder / link).symlink_to(target)
    if link.endswith(".toml"):
        target.write_text("mine")
    else:
        target.mkdir()
    assert run(["demo", str(folder)]) == 1
    assert f"{folder} is not empty" in capsys.readouterr().err
    assert not list(target.iterdir()) if target.is_dir() else target.read_text() == "mine"
    assert [path for path in folder.rglob("*") if path.is_file()] in ([], [folder / link])


def test_init_writes_settings_policies_and_a_key(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "new" / "data"
    code = run(
        [
            "init",
            str(folder),
            "--owner",
            owner.npub,
            "--owner",
            alice.pubkey,
            "--owner",
            owner.pubkey,
            "--agent",
            robot.npub,
            "--name",
            "The Nest",
            "--url",
            "wss://nest.example",
        ]
    )
    assert code == 0
    assert listing(folder) == set(ALL)
    assert toml(folder / "policies/00-actors.toml") == {
        "actors": {"owners": [owner.npub, alice.npub], "agents": [robot.npub]}
    }
    config = load_config(folder / "rookery.toml")
    assert (config.relay.name, config.relay.url) == ("The Nest", "wss://nest.example")
    out = capsys.readouterr().out
    assert f"start it with: rookery serve --data {folder}" in out
    assert (folder / "relay.key").read_text().strip() not in out


def test_the_relay_key_is_new_and_private(tmp_path: Path) -> None:
    keys = []
    for name in ("a", "b"):
        init_folder(tmp_path / name, [owner.pubkey], [], "group", None, None)
        path = tmp_path / name / "relay.key"
        assert mode(path) == 0o600
        keys.append(SecretKey.parse(path.read_text()).pubkey)
    assert keys[0] != keys[1]
    assert mode(tmp_path / "a") == 0o700


def test_a_folder_without_an_owner_is_not_made(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["init", str(tmp_path / "a")]) == 2
    assert "`rookery keygen -o FILE` makes a key pair" in capsys.readouterr().err
    assert not (tmp_path / "a").exists()


@pytest.mark.parametrize("preset", ["group", "open"])
def test_the_preset_is_the_packaged_text(tmp_path: Path, preset: str) -> None:
    assert run(["init", str(tmp_path), "--owner", owner.npub, "--preset", preset]) == 0
    packaged = files("policies").joinpath("presets", f"{preset}.toml").read_text("utf-8")
    assert (tmp_path / "policies/10-preset.toml").read_text("utf-8") == packaged


def test_group_is_the_preset_when_none_is_named(tmp_path: Path) -> None:
    assert run(["init", str(tmp_path), "--owner", owner.npub]) == 0
    packaged = files("policies").joinpath("presets", "group.toml").read_text("utf-8")
    assert (tmp_path / "policies/10-preset.toml").read_text("utf-8") == packaged


def test_settings_not_given_are_the_defaults(tmp_path: Path) -> None:
    init_folder(tmp_path, [owner.pubkey], [], "group", None, None)
    assert load_config(tmp_path / "rookery.toml") == Config()


def test_the_file_lists_every_setting_with_its_default(tmp_path: Path) -> None:
    init_folder(tmp_path, [owner.pubkey], [], "group", None, None)
    text = (tmp_path / "rookery.toml").read_text("utf-8")
    shown = tomllib.loads(re.sub(r"^# (?=[a-z_]+ = )", "", text, flags=re.MULTILINE))
    defaults = Config()
    assert set(shown) == {field.name for field in dataclasses.fields(Config)} - {"ignored"}
    for section in dataclasses.fields(Config):
        if section.name not in shown:
            continue
        table = getattr(defaults, section.name)
        assert set(shown[section.name]) == {key.name for key in dataclasses.fields(table)}
        for key in dataclasses.fields(table):
            default = getattr(table, key.name)
            if default is None:
                assert re.search(rf"^# {key.name} = .*# none", text, re.MULTILINE)
            elif isinstance(default, (tuple, frozenset)):
                assert [str(v) for v in shown[section.name][key.name]] == sorted(map(str, default))
            else:
                assert shown[section.name][key.name] == default


@pytest.mark.parametrize("name", ['say "hi" \\o/', "a\nb\tc", "\x7f\x01", "Nest 🪺", "{name}"])
def test_names_are_escaped_as_toml(tmp_path: Path, name: str) -> None:
    init_folder(tmp_path, [owner.pubkey], [], "group", name, None)
    assert toml(tmp_path / "rookery.toml")["relay"]["name"] == name


@pytest.mark.parametrize("file", ALL)
def test_existing_files_are_not_overwritten(
    tmp_path: Path, file: str, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "policies").mkdir()
    (tmp_path / file).write_text("mine")
    assert run(["init", str(tmp_path), "--owner", owner.npub]) == 1
    assert f"{tmp_path / file} exists and is not overwritten" in capsys.readouterr().err
    assert listing(tmp_path) == {file}
    assert (tmp_path / file).read_text() == "mine"


def test_other_policy_files_are_kept(tmp_path: Path) -> None:
    (tmp_path / "policies").mkdir()
    (tmp_path / "policies/20-mine.toml").write_text("# mine\n")
    assert run(["init", str(tmp_path), "--owner", owner.npub]) == 0
    assert listing(tmp_path) == {*ALL, "policies/20-mine.toml"}


def test_a_failure_leaves_no_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write = init_module.write_new

    def full_disk(path: Path, text: str, mode: int) -> None:
        if path.name == "rookery.toml":
            raise OSError(28, "No space left on device", str(path))
        write(path, text, mode)

    monkeypatch.setattr(init_module, "write_new", full_disk)
    with pytest.raises(OSError, match="No space left"):
        init_folder(tmp_path, [owner.pubkey], [], "group", None, None)
    assert listing(tmp_path) == set()


@pytest.mark.parametrize(
    ("option", "value", "says"),
    [
        ("--owner", "npub1nonsense", "not a valid npub"),
        ("--owner", "alice", "not a public key"),
        ("--agent", owner.pubkey[:-1], "not a public key"),
        ("--preset", "closed", "'closed' is not one of"),
        ("--url", "https://nest.example", "--url must be like wss://relay.example.org"),
        ("--url", "wss://nest.example/a?b=1", "--url must be like wss://relay.example.org"),
        ("--name", "a" * 31, "--name has 31 characters, at most 30 are allowed"),
        ("--name", "", "--name must not be empty"),
    ],
)
def test_an_invalid_value_is_a_usage_error_and_writes_nothing(
    tmp_path: Path, option: str, value: str, says: str, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "data"
    assert run(["init", str(folder), "--owner", owner.npub, option, value]) == 2
    assert says in capsys.readouterr().err
    assert not folder.exists()


@pytest.mark.parametrize("spelling", [alice.nsec, alice.nsec.upper(), alice.nsec[:-1]])
def test_a_secret_key_is_refused_and_not_quoted(
    tmp_path: Path, spelling: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["init", str(tmp_path), "--owner", spelling]) == 2
    err = capsys.readouterr().err
    assert "secret key" in err
    assert spelling[5:] not in err


def test_a_missing_preset_is_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(init_module, "files", lambda _: tmp_path)
    with pytest.raises(UserError, match=r"policies/presets/group\.toml is missing"):
        init_folder(tmp_path / "data", [owner.pubkey], [], "group", None, None)
    assert not (tmp_path / "data").exists()


def test_a_fresh_folder_has_a_new_owner_and_an_agent(tmp_path: Path) -> None:
    made = fresh_folder(tmp_path / "data")
    assert listing(made.folder) == {*ALL, "keys/owner.nsec", "keys/agent.nsec"}
    for path, pubkey in ((made.owner_key_file, made.owner), (made.agent_key_file, made.agent)):
        assert SecretKey.parse(path.read_text()).pubkey == pubkey
        assert mode(path) == 0o600
    assert toml(made.folder / "policies/00-actors.toml") == {
        "actors": {"owners": [npub(made.owner)], "agents": [npub(made.agent)]}
    }


def test_existing_keys_in_a_fresh_folder_are_used(tmp_path: Path) -> None:
    (tmp_path / "keys").mkdir()
    (tmp_path / "keys/owner.nsec").write_text(rover.nsec)
    assert fresh_folder(tmp_path).owner == rover.pubkey


def test_a_folder_is_fresh_until_initialised(tmp_path: Path) -> None:
    assert is_fresh(tmp_path / "not-there")
    (tmp_path / "lost+found").mkdir()
    assert is_fresh(tmp_path)
    fresh_folder(tmp_path)
    assert not is_fresh(tmp_path)
    with pytest.raises(UserError, match="exists and is not overwritten"):
        fresh_folder(tmp_path)


def test_keygen_without_room_leaves_no_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An empty one stayed, which the next keygen did not overwrite."""

    def full_disk(_: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full_disk)
    assert run(["keygen", "-o", str(tmp_path / "me.nsec")]) == 1
    assert listing(tmp_path) == set()


def test_keygen_prints_a_key_pair_in_every_encoding(capsys: pytest.CaptureFixture[str]) -> None:
    pairs = []
    for _ in range(2):
        assert run(["keygen", "--json"]) == 0
        pairs.append(json.loads(capsys.readouterr().out))
    assert pairs[0] != pairs[1]
    for pair in pairs:
        assert list(pair) == ["nsec", "npub", "secret", "public"]
        key = SecretKey.parse(pair["nsec"])
        assert (key.hex, key.pubkey, key.npub) == (pair["secret"], pair["public"], pair["npub"])


def test_keygen_marks_the_secret_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["keygen"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines] == ["nsec", "npub", "hex"]
    key = SecretKey.parse(lines[0].split()[1])
    assert [line.split()[1] for line in lines] == [key.nsec, key.npub, key.pubkey]
    assert "secret" in lines[0]
