"""Files of a data folder that a relay did not write: long ones, pipes and links."""

from __future__ import annotations

import os
import shutil
import tracemalloc
from typing import TYPE_CHECKING

import pytest

from relay.cli.folder_lock import locked
from relay.cli.import_lines import ImportProgress, Place
from relay.cli.policy_files import note_of
from relay.errors import UserError
from relay.facts import Origin
from relay.observe import read_log
from tests import cast
from tests.harness.stocked_folder import rookery

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

LONG = 256 << 20
MOST = 64 << 20
LINE = b'{"time":"2026-05-04T12:00:00+00:00","level":"info","logger":"rookery","text":"it ran"}\n'


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("made") / "data"
    for args in (("init", folder, "--owner", cast.owner.pubkey), ("import", "/dev/null")):
        printed, code = rookery(*args, *(() if args[0] == "init" else ("--data", folder)))
        assert code == 0, printed
    return folder


@pytest.fixture
def data(made: Path, tmp_path: Path) -> Path:
    return shutil.copytree(made, tmp_path / "data")


def long(path: Path) -> None:
    """Of zeros: an archive has it in a few bytes."""
    with path.open("wb") as file:
        file.truncate(LONG)


@pytest.mark.slow
@pytest.mark.parametrize("make", [long, os.mkfifo])
@pytest.mark.parametrize(
    ("name", "command"),
    [
        ("last-backup.json", "status"),
        ("last-backup.json", "doctor"),
        ("rookery.log", "log"),
        ("rookery.log.1", "log"),
        ("refusals.json", "policy log"),
        ("refusals.json", "stats"),
        ("day.jsonl", "stats"),
        ("used_calls.json", "export"),
        ("rookery.lock", "doctor"),
        ("rookery.lock", "stats"),
        ("policies/notes", "backup {beside}"),
    ],
)
def test_a_command_reads_no_long_file_into_memory_and_waits_for_no_pipe(
    name: str, command: str, make: Callable[[Path], None], data: Path, tmp_path: Path
) -> None:
    (data / name).unlink(missing_ok=True)
    make(data / name)
    tracemalloc.start()
    try:
        rookery(*command.format(beside=tmp_path / "b.tgz").split(), "--data", data)
        assert tracemalloc.get_traced_memory()[1] < MOST
    finally:
        tracemalloc.stop()


def test_a_backup_names_the_file_that_is_too_large(data: Path, tmp_path: Path) -> None:
    long(data / "policies" / "notes")
    printed, code = rookery("backup", tmp_path / "b.tgz", "--data", data)
    assert code == 1
    assert f"{data}/policies/notes is too large" in printed
    assert "256.0 MB together" in printed


def test_of_a_long_log_the_end_is_shown(data: Path) -> None:
    long(data / "rookery.log")
    with (data / "rookery.log").open("ab") as file:
        file.write(b"\n" + LINE)
    assert [line.text for line in read_log(data / "rookery.log")] == ["it ran"]


def test_a_lock_that_is_a_pipe_is_refused(data: Path) -> None:
    (data / "rookery.lock").unlink()
    os.mkfifo(data / "rookery.lock")
    with pytest.raises(UserError, match=r"rookery.lock cannot be opened"), locked(data):
        pass


def test_a_note_of_policies_that_is_a_pipe_is_refused(data: Path) -> None:
    os.mkfifo(data / "policies" / ".version.json")
    with pytest.raises(UserError, match=r"\.version\.json cannot be read, delete it"):
        note_of(data / "policies")


def test_the_place_of_an_import_is_written_through_no_link(data: Path, tmp_path: Path) -> None:
    source, letter = tmp_path / "events.jsonl", tmp_path / "letter"
    source.write_bytes(b"{}\n")
    letter.write_text("mine")
    with source.open("rb") as file:
        progress = ImportProgress.of(data, file, source, Origin.IMPORT)
    assert progress is not None
    progress.write(Place(1, 1))
    (resume,) = data.glob("import-*.resume")
    resume.with_suffix(".part").symlink_to(letter)
    progress.write(Place(2, 1))
    assert (letter.read_text(), progress.read().offset) == ("mine", 2)
    resume.unlink()
    os.mkfifo(resume)
    assert progress.read() == Place()
