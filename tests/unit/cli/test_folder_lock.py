"""relay/cli/folder_lock.py: one process writes in a folder."""

from __future__ import annotations

import errno
import fcntl
import os
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from relay.cli.backup import remove_left, staging_folder
from relay.cli.folder_lock import locked
from relay.errors import FolderBusy, UserError
from tests.harness.stocked_folder import rookery, stocked

if TYPE_CHECKING:
    from collections.abc import Callable

HOLD = """
import sys
from pathlib import Path
from relay.cli.folder_lock import locked
with locked(Path(sys.argv[1])):
    print("held", flush=True)
    sys.stdin.read()
"""


def test_a_second_taker_is_told_who_has_the_folder(tmp_path: Path) -> None:
    with locked(tmp_path):
        with pytest.raises(FolderBusy) as busy, locked(tmp_path):
            pass
        assert busy.value.pid == os.getpid()
        assert str(tmp_path) in str(busy.value)


def test_a_folder_that_was_left_can_be_taken_again(tmp_path: Path) -> None:
    for _ in range(2):
        with locked(tmp_path):
            pass
    assert (tmp_path / "rookery.lock").read_bytes() == b""


def test_a_folder_that_was_left_by_an_error_can_be_taken_again(tmp_path: Path) -> None:
    with pytest.raises(ZeroDivisionError), locked(tmp_path):
        raise ZeroDivisionError
    with locked(tmp_path):
        pass


def test_a_link_in_place_of_the_lock_empties_no_file(tmp_path: Path) -> None:
    """A cloned repository may have it."""
    letter = tmp_path / "letter"
    letter.write_text("mine")
    (tmp_path / "rookery.lock").symlink_to(letter)
    with (
        pytest.raises(UserError, match=r"rookery.lock is a symbolic link: remove it"),
        locked(tmp_path),
    ):
        pass
    assert letter.read_text() == "mine"


def test_an_unreadable_pid_does_not_hide_that_the_folder_is_busy(tmp_path: Path) -> None:
    with locked(tmp_path):
        (tmp_path / "rookery.lock").write_bytes(b"?")
        with pytest.raises(FolderBusy, match="another process"), locked(tmp_path):
            pass


def test_a_folder_on_a_full_disk_can_be_taken(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nobody is told who has it."""

    def full(*_: object) -> int:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "pwrite", full)
    with locked(tmp_path), pytest.raises(FolderBusy, match="another process"), locked(tmp_path):
        pass


@pytest.mark.parametrize("number", [errno.ENOLCK, errno.EOPNOTSUPP, errno.EACCES])
def test_a_file_system_without_locks_is_a_users_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    """As NFS without a lock daemon. It was a traceback."""

    def refused(*_: object) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(fcntl, "flock", refused)
    with pytest.raises(UserError, match=r"cannot be locked: .* on a local disk"), locked(tmp_path):
        pass


def test_a_staging_folder_without_locks_is_said_and_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / ".left").mkdir()

    def refused(*_: object) -> None:
        raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

    monkeypatch.setattr(fcntl, "flock", refused)
    remove_left(tmp_path, ".left")
    with (
        pytest.raises(OSError, match=r"cannot be locked: .* local disk"),
        staging_folder(tmp_path, ".new"),
    ):
        pass
    assert [each.name for each in tmp_path.iterdir()] == [".left"]


def test_a_folder_that_is_not_there_is_a_users_error(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="is not a folder"), locked(tmp_path / "nowhere"):
        pass


def owned(folder: Path) -> dict[Path, tuple[int, int, int]]:
    """What a command that opens files to read leaves as it is."""
    found = {path: path.stat() for path in folder.rglob("*")}
    return {path: (stat.st_uid, stat.st_ino, stat.st_mtime_ns) for path, stat in found.items()}


@pytest.mark.slow
@pytest.mark.parametrize(
    "command",
    [
        ("compact", "--data"),
        ("key", "rotate", "--yes", "--data"),
        ("move", "--to", "postgresql://127.0.0.1:1/none", "--from"),
        ("verify", "--repair", "--data"),
        ("export", "--data"),
        ("serve", "--check", "--port", "0", "--data"),
    ],
    ids=" ".join,
)
def test_root_leaves_no_files_in_the_folder_of_another_user(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, command: tuple[str, ...]
) -> None:
    """The relay could not open them: after `sudo rookery compact` it did not start."""
    folder = tmp_path / "data"
    stocked(folder, notes=1)
    if os.geteuid() == 0:
        for path in (folder, *folder.iterdir()):
            os.chown(path, 4711, 4711)
    else:
        monkeypatch.setattr(os, "geteuid", lambda: 0)
    (folder / "rookery.lock").unlink()
    before = owned(folder)
    printed, code = rookery(*command, folder)
    assert code == 1, printed
    assert "belongs to user " in printed
    assert "run this as that user" in printed
    assert owned(folder) == before


def test_the_store_tells_too_whose_folder_it_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The key may be a secret that is mounted, and belong to root."""
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    (tmp_path / "relay.key").touch()
    (tmp_path / "rookery.db").touch()
    if os.getuid() == 0:
        os.chown(tmp_path / "rookery.db", 4711, 4711)
    with pytest.raises(UserError, match="belongs to user"), locked(tmp_path):
        pass


def test_a_folder_of_another_user_is_never_root_s(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Who hid the key and the store while root's command looked for their owner had a plug-in run
    by root; `init` and `restore` made root's relay in a folder in which others rename files."""
    folder, archive = tmp_path / "data", tmp_path / "backup.tar.gz"
    stocked(folder, notes=1)
    assert rookery("backup", archive, "--data", folder)[1] == 0
    empty, fresh = tmp_path / "empty", tmp_path / "fresh"
    empty.mkdir()
    (fresh / "policies").mkdir(parents=True)
    own = tmp_path / "own"
    (own / "policies").mkdir(parents=True)
    (folder / "relay.key").rename(folder / "hidden.key")
    (folder / "rookery.db").rename(folder / "hidden.db")
    if os.geteuid() == 0:
        for path in (folder, empty, fresh):
            os.chown(path, 4711, 4711)
    else:
        monkeypatch.setattr(os, "geteuid", lambda: 0)
    with pytest.raises(UserError, match="belongs to user"), locked(folder):
        pass
    for command in (
        ("serve", "--port", "0", "--data", fresh),
        ("init", empty, "--owner", "ab" * 32),
        ("restore", archive, empty),
        ("restore", archive, empty / "new"),
        ("restore", archive, "--check", empty),
        ("init", empty / "new", "--owner", "ab" * 32),
        ("demo", empty / "new"),
        ("serve", "--port", "0", "--data", empty / "new"),
        ("policy", "show", fresh),
        ("policy", "check", own, "--against", fresh),
        ("policy", "pull", fresh / "policies", "--data", own),
        ("policy", "pull", empty / "new", "--data", own),
        ("policy", "push", fresh / "policies", "--data", own),
    ):
        printed, code = rookery(*command)
        assert code == 1, printed
        assert "belongs to user " in printed
    assert not [*empty.iterdir()]


def test_links_to_files_of_root_make_no_folder_root_s(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    for name in ("relay.key", "rookery.db"):
        (tmp_path / name).symlink_to("/etc/passwd")
        if os.getuid() == 0:
            os.chown(tmp_path / name, 4711, 4711, follow_symlinks=False)
    with pytest.raises(UserError, match="belongs to user"), locked(tmp_path):
        pass


@pytest.mark.skipif(os.geteuid() != 0, reason="only root has folders of root")
def test_root_may_work_on_a_folder_of_its_own(tmp_path: Path) -> None:
    """As in a container."""
    (tmp_path / "relay.key").touch()
    (tmp_path / "link").symlink_to(tmp_path / "link" / ".." / tmp_path.name)
    (tmp_path / "here").symlink_to(Path("..", tmp_path.name))
    with locked(tmp_path / "here" / ".." / tmp_path.name):
        pass
    with (
        pytest.raises(OSError, match="Too many levels of symbolic links"),
        locked(tmp_path / "link"),
    ):
        pass


@pytest.mark.skipif(os.geteuid() != 0, reason="only root has folders of root")
@pytest.mark.parametrize(
    "way", ["theirs/data", "theirs/link/data", "theirs/../root/data", "in/data"]
)
def test_root_does_not_work_below_a_folder_of_another_user(
    tmp_path: Path, give_away: Callable[[Path], None], way: str
) -> None:
    """While root's command looked for the owner, that user put a folder of root's there."""
    for folder in ("root/data", "theirs/data"):
        (tmp_path / folder).mkdir(parents=True)
    (tmp_path / "theirs" / "link").symlink_to("../root")
    (tmp_path / "in").symlink_to("theirs/../theirs/link/../root")
    give_away(tmp_path / "theirs")
    with (
        pytest.raises(UserError, match=f"{tmp_path / 'theirs'} belongs to "),
        locked(tmp_path / way),
    ):
        pass
    with locked(tmp_path / "root" / "data"):
        pass


@pytest.mark.skipif(os.geteuid() != 0, reason="only root has folders of root")
def test_in_a_container_the_key_and_the_store_tell_whose_folder_it_is(
    tmp_path: Path, give_away: Callable[[Path], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A folder of the host may belong to a user whom the container does not know."""
    (tmp_path / "mark").touch()
    monkeypatch.setattr("relay.files.CONTAINER_FILES", (tmp_path / "mark",))
    folder, archive = tmp_path / "theirs" / "data", tmp_path / "theirs" / "backup.tar.gz"
    stocked(folder, notes=1)
    for path in (tmp_path / "theirs", folder):
        give_away(path)
    assert rookery("backup", archive, "--data", folder)[1] == 0
    give_away(folder / "rookery.db")
    printed, code = rookery("backup", archive, "--data", folder)
    assert code == 1
    assert "rookery.db belongs to user 4711" in printed


def test_a_folder_that_root_does_not_find_is_not_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another user could put theirs there after the look."""
    monkeypatch.setattr("relay.cli.folder_lock.trusted_users", lambda: {0, os.getuid()})
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    monkeypatch.setattr("relay.cli.folder_lock.regular_file", pytest.fail)
    with pytest.raises(UserError, match="is not a folder"), locked(tmp_path / "data"):
        pass


@pytest.mark.process
@pytest.mark.slow
def test_the_lock_of_a_killed_process_is_gone_with_it(tmp_path: Path) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", HOLD, str(tmp_path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as child:
        assert child.stdout is not None
        assert child.stdout.readline() == b"held\n"
        with pytest.raises(FolderBusy) as busy, locked(tmp_path):
            pass
        assert busy.value.pid == child.pid
        child.kill()
    with locked(tmp_path):
        pass
