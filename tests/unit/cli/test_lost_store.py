"""A data folder whose `rookery.db` was lost or is a link: an empty store is not taken for it."""

from __future__ import annotations

import shutil
from typing import TYPE_CHECKING

import pytest

from relay.cli.services import run_services
from relay.config import load_config
from relay.errors import UserError
from tests import cast
from tests.harness.stocked_folder import as_json, rookery, stocked

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("made") / "data"
    stocked(folder, 1)
    return folder


@pytest.fixture
def folder(made: Path, tmp_path: Path) -> Path:
    return shutil.copytree(made, tmp_path / "data")


def deleted(folder: Path) -> None:
    (folder / "rookery.db").unlink()


def emptied(folder: Path) -> None:
    (folder / "rookery.db").write_bytes(b"")


def overwritten_by_a_newline(folder: Path) -> None:
    (folder / "rookery.db").write_bytes(b"\n")


def deleted_with_its_index(folder: Path) -> None:
    for path in folder.glob("*.db"):
        path.unlink()


def link_to_an_unmounted_disk(folder: Path) -> None:
    (folder / "rookery.db").unlink()
    (folder / "rookery.db").symlink_to(folder / "disk" / "rookery.db")


EMPTY = (emptied, overwritten_by_a_newline)
LOSSES = (deleted, *EMPTY, deleted_with_its_index, link_to_an_unmounted_disk)
COMMANDS: tuple[tuple[str, ...], ...] = (
    ("serve", "--check", "--port", "0"),
    ("verify",),
    ("verify", "--repair"),
    ("export",),
    ("compact",),
    ("backup", "../b.tar.gz"),
)


@pytest.mark.parametrize("command", COMMANDS, ids="-".join)
def test_a_command_refuses_the_folder_and_says_what_to_do(
    folder: Path, monkeypatch: pytest.MonkeyPatch, command: tuple[str, ...]
) -> None:
    monkeypatch.chdir(folder)
    deleted(folder)
    before = sorted(path.name for path in folder.iterdir())
    printed, code = rookery(*command, "--data", folder)
    assert code == 1, printed
    assert f"{folder}/rookery.db is missing" in printed
    assert "search.db and day.jsonl were made beside it: put it back, or" in printed
    assert sorted(path.name for path in folder.iterdir()) == before


@pytest.mark.parametrize("lose", LOSSES)
async def test_a_relay_does_not_start(folder: Path, lose: Callable[[Path], None]) -> None:
    """It answered everybody with nothing, took deleted events again, and gave groups away."""
    lose(folder)
    with pytest.raises(UserError, match="is empty" if lose in EMPTY else "is missing"):
        async with run_services(folder, load_config(folder / "rookery.toml")):
            pass


@pytest.mark.parametrize("lose", LOSSES)
def test_doctor_finds_it(folder: Path, lose: Callable[[Path], None]) -> None:
    lose(folder)
    (found,) = as_json("doctor", "--data", folder, code=1)["findings"]
    assert found["severity"] == "error"
    assert "day.jsonl" in found["text"]
    assert "rookery restore FILE DIR" in found["cure"]


def test_a_new_store_is_made_once_the_files_of_the_old_one_are_gone(folder: Path) -> None:
    deleted(folder)
    printed, _ = rookery("export", "--data", folder)
    assert "for a new, empty store remove search.db and day.jsonl" in printed
    for name in ("search.db", "day.jsonl"):
        (folder / name).unlink()
    assert rookery("export", "--data", folder) == ("0 events, 0 bytes\n", 0)


def test_the_index_of_a_lost_store_makes_no_new_relay(folder: Path) -> None:
    """Everything else was deleted."""
    for path in folder.iterdir():
        if path.name == "policies":
            shutil.rmtree(path)
        elif path.name != "search.db":
            path.unlink()
    for command in (
        ("serve", "--check", "--port", 0, "--data", folder),
        ("init", folder, "--owner", cast.owner.pubkey),
    ):
        printed, code = rookery(*command)
        assert (code, "for a new, empty store remove search.db" in printed) == (1, True), printed
    assert [path.name for path in folder.iterdir()] == ["search.db"]


@pytest.mark.parametrize("name", ["rookery.db", "search.db"])
@pytest.mark.parametrize(
    "command", [*COMMANDS, ("move", "--to", "postgresql://127.0.0.1:1/none")], ids="-".join
)
def test_a_store_behind_a_link_is_refused_and_stays(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, command: tuple[str]
) -> None:
    """`compact` left the file on the other disk as it was, with what had been deleted, and wrote a
    new one over the link. A relay looked for the log beside the link, and saw no damage in it."""
    monkeypatch.chdir(folder)
    disk = tmp_path / "disk"
    disk.mkdir()
    (folder / name).rename(disk / "moved.db")
    (folder / name).symlink_to(disk / "moved.db")
    before = (disk / "moved.db").read_bytes()
    printed, code = rookery(*command, "--from" if command[0] == "move" else "--data", folder)
    assert code == 1, printed
    assert f"{folder}/{name} is a symbolic link" in printed
    assert "move the whole folder there" in printed
    assert (folder / name).is_symlink()
    assert (disk / "moved.db").read_bytes() == before
    assert [path.name for path in disk.iterdir()] == ["moved.db"]


def test_doctor_tells_how_to_put_a_linked_store_in_its_place(folder: Path, tmp_path: Path) -> None:
    target = tmp_path / "moved.db"
    (folder / "rookery.db").rename(target)
    (folder / "rookery.db").symlink_to(target)
    (found,) = as_json("doctor", "--data", folder, code=1)["findings"]
    assert f"move {target} over the link" in found["cure"]
    assert f"{target}-wal" in found["cure"]


def test_the_folder_itself_may_be_a_link(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(folder)
    assert rookery("compact", "--data", tmp_path / "link")[1] == 0
