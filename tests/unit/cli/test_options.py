"""relay/cli/options.py: output without control characters."""

from __future__ import annotations

import io
import json
import os
import socket
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
import pytest

from relay.cli import run
from relay.cli.names import PublicKey
from relay.cli.options import (
    Number,
    WholeNumber,
    confirm,
    folder_option,
    new_folder_option,
    print_json,
    printable,
)
from relay.cli.policy.folder import data_option
from relay.errors import UserError
from relay.files import socket_address
from tests.cast import alice

if TYPE_CHECKING:
    from collections.abc import Callable

OBEYED = "\x1b[2J\x07\x7f\x9b31m\x85\u2028\u202e\u2066\u200f"


def test_text_has_no_control_characters() -> None:
    assert printable(f"a{OBEYED}b") == "a�[2J���31m�����b"


def test_a_letter_that_is_not_seen_is_shown() -> None:
    """A stranger's group `tea` with such a letter looked like the owner's."""
    assert printable("tea\u3164 te\uffa0a tea\ufe0f \u2800") == "tea� te�a tea� �"
    assert printable("чай 茶 ❤\ufe0f é") == "чай 茶 ❤\ufe0f é"


def test_json_is_complete_and_has_no_control_characters(
    capsys: pytest.CaptureFixture[str],
) -> None:
    value = {"naïve 🍵": [f"\\u009b {OBEYED} \\", "\\\x9b"]}
    print_json(value)
    text = capsys.readouterr().out
    assert json.loads(text) == value
    assert text.removesuffix("\n").isprintable()
    assert "naïve 🍵" in text


@pytest.mark.parametrize(
    ("kind", "value", "says"),
    [
        (WholeNumber(0), "x", "'x' is not a whole number, 0 or more"),
        (WholeNumber(0), "-1", "-1 is not a whole number, 0 or more"),
        (WholeNumber(1, 65_535), "65536", "65536 is not a whole number from 1 to 65535"),
        (WholeNumber(), "1.5", "'1.5' is not a whole number"),
        (Number(min=0, min_open=True), "0", "'0' is not a number above 0"),
        (Number(min=0, min_open=True), "abc", "'abc' is not a number above 0"),
        (Number(0, 1), "1.2", "'1.2' is not a number from 0 to 1"),
        (
            PublicKey(),
            "bob",
            "not a public key: 'bob' (an npub or 64 hex characters), nor a name of",
        ),
        (PublicKey(), "npub1bob", "not a valid npub: check that it was copied whole"),
    ],
)
def test_a_wrong_value_is_told_what_is_wanted(
    kind: WholeNumber | Number | PublicKey,
    value: str,
    says: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    with pytest.raises(click.BadParameter) as wrong:
        kind.convert(value, None, None)
    assert says in wrong.value.message


def test_a_number_in_its_range_is_taken() -> None:
    assert [WholeNumber(1, 9).convert(each, None, None) for each in ("1", "9")] == [1, 9]
    assert WholeNumber().convert("-3", None, None) == -3


@pytest.mark.parametrize(
    ("kind", "says"), [(WholeNumber(), ""), (WholeNumber(1), "x>=1"), (Number(0, 1), "0<=x<=1")]
)
def test_help_says_the_range_of_a_number_if_it_has_one(
    kind: WholeNumber | Number, says: str
) -> None:
    option = click.Option(["-n"], type=kind, help="How many.")
    (_, told) = option.get_help_record(click.Context(click.Command("x"))) or ("", "")
    assert told == (f"How many.  [{says}]" if says else "How many.")


@pytest.mark.parametrize(
    ("answer", "says"),
    [(b"n\n", "changed"), (b"", "no answer was given; use --yes"), (b"\xff\n", "changed")],
)
def test_without_a_yes_nothing_is_changed(
    answer: bytes, says: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(answer), "utf-8"))
    with pytest.raises(UserError, match="nothing was changed") as refused:
        confirm("Delete it?")
    assert says in str(refused.value)
    assert refused.value.code == 1


def test_ctrl_c_at_a_question_is_no_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(_: str) -> str:
        raise KeyboardInterrupt

    monkeypatch.setattr("click.termui.visible_prompt_func", interrupted)
    with pytest.raises(click.Abort):
        confirm("Delete it?")


@pytest.mark.parametrize("option", [new_folder_option, folder_option, data_option])
def test_the_environment_names_a_data_folder_unless_the_command_does(
    option: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "team").mkdir()
    (tmp_path / "other").mkdir()
    monkeypatch.setenv("ROOKERY_DATA", str(tmp_path / "team"))
    named: list[Path] = []

    command = click.command("named")(option(lambda **folder: named.extend(folder.values())))

    command.main([], standalone_mode=False)
    command.main(["--data", str(tmp_path / "other")], standalone_mode=False)
    assert named == [tmp_path / "team", tmp_path / "other"]


@pytest.mark.parametrize("option", [new_folder_option, folder_option])
def test_a_secret_key_is_no_data_folder(option: Any, tmp_path: Path) -> None:
    """`serve` made the folder, and printed its name."""

    made = click.command("made")(option(lambda folder: folder.mkdir()))

    with pytest.raises(UserError, match="--data: this is a secret; ") as error:
        made.main(["--data", str(tmp_path / alice.nsec)], standalone_mode=False)
    assert "nsec" not in str(error.value)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("option", [new_folder_option, folder_option])
@pytest.mark.parametrize(
    "storage",
    [
        'url = "postgresql://x@their.host/x"\npassword_file = "../robot.nsec"',
        'url = "postgresql://x@their.host/x"\npassword_file = "{outside}"',
        'url = "postgresql://x@their.host/x"\npassword_file = "keys/a.link"',
        'url = "postgresql://x@their.host/x?%70assfile=/home/me/notes"',
        'url = "postgresql:///x?host=their.host&service=mine"',
        'url = "postgresql://x@db/x"\nreplica = "postgresql://x@their.host/x?servicefile=f"',
    ],
)
def test_a_folder_that_nobody_named_sends_no_file_from_elsewhere_as_a_password(
    option: Any, storage: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A cloned repository may have it."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("ROOKERY_DATA", raising=False)
    data, outside = tmp_path / "data", tmp_path / "robot.nsec"
    outside.write_text(alice.nsec)
    (data / "keys").mkdir(parents=True)
    (data / "keys" / "a.link").symlink_to("../../robot.nsec")
    (data / "rookery.toml").write_text(f"[storage]\n{storage.format(outside=outside)}\n")
    opened: list[Path] = []
    command = click.command("named")(option(lambda folder: opened.append(folder)))

    with pytest.raises(UserError, match="if it is yours, name it with --data data"):
        command.main([], standalone_mode=False)
    assert opened == []
    command.main(["--data", "data"], standalone_mode=False)
    monkeypatch.setenv("ROOKERY_DATA", "data")
    command.main([], standalone_mode=False)
    assert opened == [Path("data"), Path("data")]


@pytest.mark.parametrize("option", [new_folder_option, folder_option])
@pytest.mark.parametrize(
    "link",
    ["policies", "policy-versions", "rookery.toml", "policies/x.toml", "policies/a/b/x", "keys/x"],
)
def test_a_folder_that_nobody_named_is_not_used_through_links(
    option: Any, link: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A cloned repository may have them, to a folder in which a command would write or delete."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("ROOKERY_DATA", raising=False)
    (tmp_path / "data" / link).parent.mkdir(parents=True)
    (tmp_path / "data" / link).symlink_to("../thesis")
    opened: list[Path] = []
    command = click.command("named")(option(lambda folder: opened.append(folder)))

    with pytest.raises(UserError, match=f"data/{link} is a symbolic link: .* --data data"):
        command.main([], standalone_mode=False)
    assert opened == []
    command.main(["--data", "data"], standalone_mode=False)
    assert opened == [Path("data")]


def test_a_link_that_nobody_named_is_not_followed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In a clone, `data -> ../../relay` was the relay of who had cloned it."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("ROOKERY_DATA", raising=False)
    (tmp_path / "relay").mkdir()
    (tmp_path / "data").symlink_to("relay")
    command = click.command("named")(folder_option(lambda folder: folder))

    with pytest.raises(UserError, match=r"data is a symbolic link: .* --data data"):
        command.main([], standalone_mode=False)
    assert command.main(["--data", "data"], standalone_mode=False) == Path("data")


def _socket(path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as left, socket_address(path) as address:
        left.bind(address)


def _unlisted(path: Path) -> None:
    """A path that is too long to be opened."""
    here = os.open(path.parent, os.O_RDONLY)
    try:
        for _ in range(20):
            os.mkdir("a" * 250, dir_fd=here)
            above, here = here, os.open("a" * 250, os.O_RDONLY, dir_fd=here)
            os.close(above)
    finally:
        os.close(here)


@pytest.mark.parametrize("option", [new_folder_option, folder_option])
@pytest.mark.parametrize(
    ("make", "name", "fault"),
    [
        (os.mkfifo, "refusals.json", "refusals.json is neither a file nor a folder"),
        (os.mkfifo, "policies/x", "policies/x is neither a file nor a folder"),
        (_socket, "policies/control.sock", "control.sock is neither a file nor a folder"),
        (_unlisted, "policies/x", "cannot be looked through: File name too long"),
        (Path.mkdir, "policies/fourth", "data has more than 3 files and folders"),
    ],
)
def test_a_folder_that_nobody_named_is_looked_through_to_its_end(
    option: Any,
    make: Callable[[Path], None],
    name: str,
    fault: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("ROOKERY_DATA", raising=False)
    for folder in ("data", "data/keys", "data/policies"):
        (tmp_path / folder).mkdir()
    _socket(tmp_path / "data" / "control.sock")
    opened: list[Path] = []
    command = click.command("named")(option(lambda folder: opened.append(folder)))

    if "more than" in fault:
        monkeypatch.setattr("relay.cli.options._MAX_UNNAMED", 3)
    command.main([], standalone_mode=False)
    make(tmp_path / "data" / name)
    with pytest.raises(UserError, match=f"{fault}: if data is yours, name it with --data data"):
        command.main([], standalone_mode=False)
    command.main(["--data", "data"], standalone_mode=False)
    assert opened == [Path("data"), Path("data")]


@pytest.mark.parametrize(
    "command",
    [
        "sync ws://127.0.0.1:1",
        "policy check",
        "policy show",
        "policy diff policies",
        "policy explain event.json",
        "policy test cases.toml",
    ],
)
def test_no_command_uses_such_a_folder(
    command: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Also those with an option of their own for it."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("ROOKERY_DATA", raising=False)
    monkeypatch.delenv("ROOKERY_RELAY", raising=False)
    (tmp_path / "policies").mkdir()
    (tmp_path / "data" / "policies").mkdir(parents=True)
    (tmp_path / "data" / "relay.key").symlink_to("../thesis")
    (tmp_path / "event.json").write_text("{}")
    (tmp_path / "cases.toml").write_text("")

    assert run(command.split()) == 1
    assert "data/relay.key is a symbolic link" in capsys.readouterr().err


@pytest.mark.parametrize("option", [new_folder_option, folder_option])
@pytest.mark.parametrize(
    "settings",
    [
        '[storage]\nurl = "postgresql://x@db/x?sslmode=verify-full"\npassword_file = "a.password"',
        '[relay]\nname = "x"',
        "of somebody else",
    ],
)
def test_another_folder_needs_no_name(
    option: Any, settings: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("ROOKERY_DATA", raising=False)
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "rookery.toml").write_text(settings)
    opened: list[Path] = []
    click.command("named")(option(lambda folder: opened.append(folder))).main(
        [], standalone_mode=False
    )
    assert opened == [Path("data")]
