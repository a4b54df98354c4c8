"""`rookery backup` and `rookery restore` on a stopped folder, and what both refuse."""

from __future__ import annotations

import errno
import grp
import gzip
import io
import json
import os
import pwd
import resource
import shutil
import signal
import sqlite3
import struct
import subprocess
import sys
import tarfile
import tempfile
import time
import zlib
from contextlib import closing, contextmanager
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from relay.cli import archive, backup
from relay.errors import UserError
from relay.files import sync
from relay.storage.sqlite import copying
from relay.storage.sqlite.opening import SCHEMA_VERSION
from tests import cast
from tests.faults.contents import contents
from tests.harness.former_schema import put_back_to_schema_14
from tests.harness.stocked_folder import as_json, exported, findings, indexed, rookery, stocked

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    Files = dict[str, bytes]

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """`data`, and `good.tar.gz`, a backup of it."""
    home = tmp_path_factory.mktemp("made")
    stocked(home / "data")
    (home / "data" / "policies" / "own").mkdir()
    (home / "data" / "policies" / "own" / "plugin").write_text("#!/bin/sh\n")
    (home / "data" / "policies" / "own" / "plugin").chmod(0o755)
    printed, code = rookery("backup", home / "good.tar.gz", "--data", home / "data")
    assert code == 0, printed
    return home


@pytest.fixture
def home(made: Path, tmp_path: Path) -> Path:
    return shutil.copytree(made, tmp_path / "home")


def names(folder: Path) -> set[str]:
    return {path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()}


# what it is for ----------------------------------------------------------------------------------


def test_what_was_backed_up_is_restored(home: Path) -> None:
    data, new = home / "data", home / "new"
    printed, code = rookery("restore", home / "good.tar.gz", new)
    assert code == 0, printed
    assert f"rookery serve --data {new}" in printed
    assert "events deleted after the backup are present again" in printed
    assert names(new) == {
        "rookery.db",
        "relay.key",
        "rookery.toml",
        "policies/00-actors.toml",
        "policies/10-preset.toml",
        "policies/own/plugin",
    }
    for name in names(new) - {"rookery.db"}:
        assert (new / name).read_bytes() == (data / name).read_bytes()
    assert (new / "policies/own/plugin").stat().st_mode & 0o777 == 0o755
    for name in ("relay.key", "rookery.db"):
        assert (new / name).stat().st_mode & 0o777 == 0o600
    assert new.stat().st_mode & 0o777 == 0o700
    assert contents(new / "rookery.db") == contents(data / "rookery.db")
    assert findings(new) == []
    assert exported(new) == exported(data)


def test_the_file_is_private_and_opens_without_rookery(home: Path) -> None:
    file = home / "good.tar.gz"
    assert file.stat().st_mode & 0o777 == 0o600
    with tarfile.open(file) as tar:
        assert tar.getnames()[0] == "manifest.json"
        listed = json.load(tar.extractfile("manifest.json") or io.BytesIO())
        key = tar.extractfile("relay.key")
        assert key is not None
        assert key.read() == (home / "data" / "relay.key").read_bytes()
    assert set(listed["files"]) == names(home / "data") - {
        "search.db",
        "rookery.lock",
        "last-backup.json",
        "day.jsonl",
    }
    assert listed["schema"] == SCHEMA_VERSION


def test_a_folder_gets_files_by_date_and_keeps_so_many(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    backups, others = home / "backups", home / "others"
    backups.mkdir()
    stocked(others, notes=1)
    at = 1_750_000_000
    monkeypatch.setattr("relay.cli.backup.unix_now", lambda: at)
    assert rookery("backup", backups, "--data", others)[1] == 0
    (backups / "rookery-20200101-000000.tar.gz").write_text("not ours")
    (backups / "notes.txt").write_text("not ours")
    kept = {path.name for path in backups.iterdir()}
    for number in range(1, 5):
        at = 1_750_000_000 + number
        printed, code = rookery("backup", backups, "--data", home / "data", "--keep", 2)
        assert code == 0, printed
        assert printed.count("removed ") == (number > 2)
    assert names(backups) - kept == {
        "rookery-20250615-150643.tar.gz",
        "rookery-20250615-150644.tar.gz",
    }
    assert names(backups) >= kept


def test_backups_that_another_user_made_count_for_nothing(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In a shared folder: files with later dates made the relay remove its own, all of them."""
    backups = home / "backups"
    backups.mkdir()
    monkeypatch.setattr("relay.cli.backup.unix_now", lambda: 1_750_000_000)
    assert rookery("backup", backups, "--data", home / "data")[1] == 0
    own = backups / "rookery-20250615-150640.tar.gz"
    planted, link = (backups / f"rookery-2099010{day}-000000.tar.gz" for day in (1, 2))
    shutil.copy(own, planted)
    link.symlink_to(shutil.copy(own, home))
    lstat = Path.lstat

    def of_their_user(path: Path) -> os.stat_result:
        there = lstat(path)
        user = there.st_uid + (path == planted)
        return os.stat_result((*there[:4], user, *there[5:]))

    monkeypatch.setattr(Path, "lstat", of_their_user)
    monkeypatch.setattr("relay.cli.backup.unix_now", lambda: 1_750_000_001)
    printed, code = rookery("backup", backups, "--data", home / "data", "--keep", 2)
    assert (code, "removed" in printed) == (0, False), printed
    assert own.exists()


@pytest.mark.parametrize("keep", [1, 2])
def test_the_new_one_stays_beside_those_of_a_clock_that_was_ahead(
    home: Path, monkeypatch: pytest.MonkeyPatch, keep: int
) -> None:
    backups = home / "backups"
    backups.mkdir()
    at = 2_000_000_000
    monkeypatch.setattr("relay.cli.backup.unix_now", lambda: at)
    for at in (2_000_000_000, 2_000_000_001, 1_750_000_000):  # noqa: B007 - the clock reads it
        printed, code = rookery("backup", backups, "--data", home / "data", "--keep", keep)
        assert code == 0, printed
    ahead = ["rookery-20330518-033321.tar.gz"] if keep == 2 else []
    assert names(backups) == {"rookery-20250615-150640.tar.gz", *ahead}


def test_a_clock_past_the_dates_of_the_file_is_said(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """gzip's last date is in 2106; it was a traceback."""
    monkeypatch.setattr("relay.cli.backup.unix_now", lambda: 2**32)
    printed, code = rookery("backup", home / "b.tar.gz", "--data", home / "data")
    assert (code, "set the clock" in printed) == (1, True), printed
    assert not (home / "b.tar.gz").exists()


def test_an_older_one_stays_when_the_new_one_fails(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    backups = home / "backups"
    backups.mkdir()
    assert rookery("backup", backups, "--data", home / "data")[1] == 0
    before = names(backups)
    flip = archive.write_archive

    def torn(path: Path, *rest: Any) -> None:
        flip(path, *rest)
        content = bytearray(path.read_bytes())
        content[len(content) // 2] ^= 1
        path.write_bytes(content)

    monkeypatch.setattr(archive, "write_archive", torn)
    monkeypatch.setattr("relay.cli.backup.unix_now", lambda: 2_000_000_000)
    printed, code = rookery("backup", backups, "--data", home / "data", "--keep", 1)
    assert code == 1, printed
    assert names(backups) == before


def test_what_a_killed_backup_left_is_removed_by_the_next(home: Path) -> None:
    left = home / ".rookery-unfinished-abc"
    left.mkdir()
    (left / "rookery.db").write_text("half")
    assert rookery("backup", home / "next.tar.gz", "--data", home / "data")[1] == 0
    assert not list(home.glob(".rookery-*"))


@pytest.mark.parametrize("there", [False, True])
def test_what_a_killed_restore_left_is_removed_by_the_next(home: Path, there: bool) -> None:  # noqa: FBT001
    """It has the relay's key. In an empty folder, as of a new disk, it is in the way."""
    file, folder = home / "b.tar.gz", home / "new"
    assert rookery("backup", file, "--data", home / "data")[1] == 0
    if there:
        folder.mkdir()
    left = (folder if there else home) / ".rookery-restoring-abc"
    left.mkdir()
    (left / "relay.key").write_text("nsec1secret")
    printed, code = rookery("restore", file, folder)
    assert code == 0, printed
    assert not left.exists()


def test_the_owners_keys_are_in_no_backup_and_that_is_said(home: Path) -> None:
    (home / "data" / "keys").mkdir()
    (home / "data" / "keys" / "owner.nsec").write_text("nsec1secret")
    printed, code = rookery("backup", home / "b.tar.gz", "--data", home / "data")
    assert code == 0
    assert "keys/owner.nsec" in printed
    with tarfile.open(home / "b.tar.gz") as tar:
        assert "keys/owner.nsec" not in tar.getnames()


def test_no_name_of_a_file_controls_the_terminal(home: Path) -> None:
    """Git keeps any name, and the folder may be of a clone."""
    (home / "data" / "keys").mkdir()
    (home / "data" / "keys" / "a\x1b]0;t\x07\nb\u202e.nsec").write_text("nsec1secret")
    dest = home / "b\x1b[2J"
    dest.mkdir()
    (home / "good.tar.gz").rename(dest / "rookery-20200101-000000.tar.gz")
    printed, code = rookery("backup", dest, "--keep", 1, "--data", home / "data")
    assert code == 0, printed
    assert "keys/a�]0;t��b�.nsec" in printed
    assert printed.count("b�[2J/rookery-") == 2, printed
    assert printed.endswith("try it with: rookery restore PATH --check\n")
    assert all(line.isprintable() for line in printed.splitlines()), printed


def test_the_last_backup_is_noted(home: Path) -> None:
    noted = json.loads((home / "data" / "last-backup.json").read_bytes())
    assert noted["file"].endswith("good.tar.gz")


def test_root_makes_no_backup_of_the_folder_of_another_user(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By a link in `policies/` a file of root's came into the backup, and by it to that user."""
    shadow, data = home / "shadow", home / "data"
    shadow.write_text("root's")
    (data / "policies" / "notes").symlink_to(shadow)
    if os.geteuid() == 0:
        for path in (data, *data.iterdir()):
            os.chown(path, 4711, 4711)
    else:
        monkeypatch.setattr(os, "geteuid", lambda: 0)
    noted = (data / "last-backup.json").read_bytes()
    printed, code = rookery("backup", home / "b.tar.gz", "--data", data)
    assert (code, "run this as that user" in printed) == (1, True), printed
    assert not (home / "b.tar.gz").exists()
    assert (data / "last-backup.json").read_bytes() == noted


@pytest.fixture
def shared(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder; groups have no members, and none is of a user alone."""
    for name, found in (("getgrgid", grp.struct_group(("team", "x", 1, []))), ("getpwall", [])):
        monkeypatch.setattr(backup, name, lambda *_, found=found: found)
    (tmp_path / "shared").mkdir()
    return tmp_path / "shared"


def test_no_backup_is_made_where_other_users_rename_files(home: Path, shared: Path) -> None:
    """They had the copy of the store written into a file that they could read."""
    inner = shared / "inner"
    inner.mkdir()
    for mode in (0o777, 0o775, 0o770, 0o2770, 0o773):
        for place in (shared, inner):
            shared.chmod(mode)
            printed, code = rookery("backup", place / "b.tar.gz", "--data", home / "data")
            assert (code, f"`chmod go-w {shared}`" in printed) == (1, True), (oct(mode), printed)
            assert "keeps no modes with `umask=022`" in printed  # where chmod changes nothing
    for mode in (0o1777, 0o3770, 0o755):
        shared.chmod(mode)
        for place in (shared, inner):
            file = place / f"{mode:o}.tar.gz"
            printed, code = rookery("backup", file, "--data", home / "data")
            assert code == 0, printed


def test_no_backup_is_made_in_or_below_a_folder_of_another_user(
    home: Path, shared: Path, give_away: Callable[[Path], None]
) -> None:
    """Nor through a link of another user, or into a folder of theirs on a disk of theirs."""
    (shared / "inner").mkdir()
    (home / "link").symlink_to(home)
    give_away(home / "link")
    give_away(shared)
    for place in (shared, shared / "inner", home / "link"):
        printed, code = rookery("backup", place / "b.tar.gz", "--data", home / "data")
        assert (code, "choose a folder of your own" in printed) == (1, True), printed
        assert not (place / "b.tar.gz").exists()


@pytest.mark.parametrize(
    ("group", "members", "others", "is_made"),
    [
        ("{me}", [], [], True),
        ("{me}", ["{me}"], [], True),
        ("{me}", ["{me}", "mallory"], [], False),
        ("{me}", [], ["mallory"], False),
        ("team", ["{me}"], [], False),
    ],
)
def test_the_group_of_a_user_alone_is_that_user(
    home: Path,
    shared: Path,
    monkeypatch: pytest.MonkeyPatch,
    group: str,
    members: list[str],
    others: list[str],
    is_made: bool,  # noqa: FBT001
) -> None:
    """Debian makes one for each user, and its umask may let the group write."""
    me, gid = pwd.getpwuid(os.geteuid()).pw_name, shared.stat().st_gid
    named = [name.format(me=me) for name in (group, *members)]
    found = grp.struct_group((named[0], "x", gid, named[1:]))
    users = [pwd.struct_passwd((name, "x", 4711, gid, "", "/", "/bin/sh")) for name in others]
    monkeypatch.setattr(backup, "getgrgid", lambda _: found)
    monkeypatch.setattr(backup, "getpwall", lambda: users)
    shared.chmod(0o2775)
    printed, code = rookery("backup", shared / "b.tar.gz", "--data", home / "data")
    assert (code == 0) == is_made, printed


@pytest.mark.skipif(sys.platform != "linux", reason="ACLs of Linux")
def test_an_acl_names_others_where_the_group_is_of_a_user_alone(
    home: Path, shared: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    me = pwd.getpwuid(os.geteuid()).pw_name
    found = grp.struct_group((me, "x", shared.stat().st_gid, []))
    monkeypatch.setattr(backup, "getgrgid", lambda _: found)
    shared.chmod(0o770)
    # u::rwx, u:4711:rwx, g::r-x, m::rwx, o::---: as linux/posix_acl_xattr.h
    entries = ((1, 7, -1), (2, 7, 4711), (4, 5, -1), (16, 7, -1), (32, 0, -1))
    acl = struct.pack("<I", 2) + b"".join(struct.pack("<HHi", *entry) for entry in entries)
    try:
        os.setxattr(shared, "system.posix_acl_access", acl)
    except OSError as none:
        pytest.skip(f"no ACLs here: {none.strerror}")
    printed, code = rookery("backup", shared / "b.tar.gz", "--data", home / "data")
    assert (code, "chmod go-w" in printed) == (1, True), printed


def test_a_drill_verifies_and_leaves_nothing(home: Path) -> None:
    drill = home / "drill"
    drill.mkdir()
    printed, code = rookery("restore", home / "good.tar.gz", drill, "--check")
    assert code == 0, printed
    assert "nothing is wrong" in printed
    assert "search.db" not in printed  # built, and checked too
    assert names(drill) == set()
    assert as_json("restore", home / "good.tar.gz", drill, "--check")["findings"] == []


@pytest.mark.process
def test_what_a_killed_drill_left_is_removed_by_the_next(home: Path) -> None:
    """Its copy has texts that are deleted later, and the relay's key."""
    half = home / "drill" / ".rookery-restoring-abc"  # of a restore, for `refuse_half_restored`
    half.mkdir(parents=True)
    (half / "rookery.toml").touch()
    code = (
        "import os, signal\n"
        "from pathlib import Path\n"
        "from relay.cli import restore\n"
        "restore._opened = lambda _: os.kill(os.getpid(), signal.SIGKILL)\n"
        f"restore._drill(Path({str(home / 'good.tar.gz')!r}), Path({str(half.parent)!r}),"
        " as_json=False)\n"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == -signal.SIGKILL
    assert len([*half.parent.glob("*/relay.key")]) == 1
    assert rookery("restore", home / "good.tar.gz", half.parent, "--check")[1] == 0
    assert names(half.parent) == {f"{half.name}/rookery.toml"}


@pytest.mark.skipif(os.geteuid() != 0, reason="only root has folders of root")
def test_root_restores_nothing_where_another_user_may_swap_folders(
    home: Path, give_away: Callable[[Path], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    """That user had root write the files of the backup where a link leads. The TMPDIR of another
    user is what `su` leaves."""
    (home / "var" / "tmp").mkdir(parents=True)
    theirs = home / "theirs"
    theirs.mkdir()
    (theirs / "scratch").symlink_to(home / "var")
    give_away(theirs)
    monkeypatch.setattr(tempfile, "tempdir", str(theirs))
    asked = [
        ("--check",),
        ("--check", theirs),
        ("--check", theirs / "scratch" / "tmp"),
        (theirs / "new",),
        (theirs / "scratch" / "tmp" / "new",),
        (theirs / "scratch" / "tmp",),
    ]
    for args in asked:
        printed, code = rookery("restore", home / "good.tar.gz", *args)
        assert (code, f"{theirs} belongs to " in printed) == (1, True), (args, printed)
    assert names(theirs) | names(home / "var") == set()
    monkeypatch.setattr(tempfile, "tempdir", str(home / "var" / "tmp"))
    printed, code = rookery("restore", home / "good.tar.gz", "--check")
    assert code == 0, printed


def test_a_drill_finds_what_is_wrong_in_a_backup(home: Path) -> None:
    with closing(sqlite3.connect(home / "data" / "rookery.db", isolation_level=None)) as db:
        db.execute("UPDATE events SET grp = NULL WHERE kind = 9")
    assert rookery("backup", home / "bad.tar.gz", "--data", home / "data")[1] == 0
    printed, code = rookery("restore", home / "bad.tar.gz", home, "--check")
    assert code == 1
    assert "of 'tea'" in printed
    assert not list(home.glob(".rookery-*"))


def test_deletions_of_later_are_carried_over(home: Path) -> None:
    """As docs/operations.md tells."""
    data, new = home / "data", home / "new"
    target = next(line for line in exported(data).splitlines() if "oolong" in line)
    deletion = cast.alice.sign(5, [["e", json.loads(target)["id"]]], "", int(time.time()))
    lines, out = home / "one.jsonl", home / "deletions.jsonl"
    lines.write_bytes(deletion.raw)
    assert rookery("import", lines, "--data", data)[1] == 0
    assert "oolong" not in exported(data)
    assert rookery("restore", home / "good.tar.gz", new)[1] == 0
    assert "oolong" in exported(new)
    chosen = ("--filter", '{"kinds":[5,9005]}')
    assert rookery("export", "--data", data, *chosen, "-o", out)[1] == 0
    assert rookery("import", out, "--data", new, "--trust")[1] == 0
    assert "oolong" not in exported(new)
    assert findings(new) == []


def test_an_empty_folder_is_filled(home: Path) -> None:
    (home / "empty").mkdir()
    assert rookery("restore", home / "good.tar.gz", home / "empty")[1] == 0
    assert findings(home / "empty") == []
    assert not list((home / "empty").glob(".rookery-*"))


@pytest.mark.parametrize("there", [False, True])
@pytest.mark.parametrize("last", ["the first", "the second", "the third", "the fourth", "a sync"])
def test_an_interrupted_restore_leaves_nothing(
    home: Path,
    monkeypatch: pytest.MonkeyPatch,
    last: str,
    there: bool,  # noqa: FBT001
) -> None:
    """A signal came between a file's move and the note of it: that file stayed, and without its
    store the folder was served empty."""
    new, moves = home / "new", ["the first", "the second", "the third", "the fourth"]
    if there:
        new.mkdir()
    rename = Path.rename

    def interrupted(path: Path, target: Path) -> None:
        rename(path, target)
        if new in (target, target.parent) and moves.pop(0) == last:
            raise KeyboardInterrupt

    def faulty(path: Path) -> None:
        sync(path)
        if (path, last) == (new, "a sync"):
            raise OSError(errno.EIO, os.strerror(errno.EIO))

    with monkeypatch.context() as patched:
        patched.setattr(Path, "rename", interrupted)
        patched.setattr("relay.cli.restore.sync", faulty)
        code = rookery("restore", home / "good.tar.gz", new)[1]
    assert code or moves  # one move is enough where the folder is new
    if code:
        assert new.exists() == there
        assert not list(home.glob("**/.rookery-*"))
        assert not there or not list(new.iterdir())
        assert rookery("restore", home / "good.tar.gz", new)[1] == 0
    assert findings(new) == []


def test_a_restore_that_is_killed_at_any_moment_is_not_served_without_its_store(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of a failed restore the store was taken away first, and the rest was a new relay."""
    new, moments = home / "new", list[Path]()
    new.mkdir()
    rename = Path.rename

    def seen(path: Path, target: Path) -> None:
        rename(path, target)
        moments.append(shutil.copytree(new, home / f"moment {len(moments)}"))

    def faulty(path: Path) -> None:
        sync(path)
        if path == new:
            raise OSError(errno.EIO, os.strerror(errno.EIO))

    with monkeypatch.context() as patched:
        patched.setattr(Path, "rename", seen)
        patched.setattr("relay.cli.restore.sync", faulty)
        printed, code = rookery("restore", home / "good.tar.gz", new)
    assert (code, "was not restored" in printed) == (1, True), printed
    assert len(moments) == 8  # four there, four back
    for moment in moments:
        printed, code = rookery("serve", "--check", "--port", "0", "--data", moment)
        if code == 0:
            assert findings(moment) == []
            assert exported(moment) == exported(home / "data")
        else:
            assert f"a restore into {moment} has not finished" in printed


@pytest.mark.parametrize("second", ["restore", "init"])
def test_a_folder_is_filled_by_one_command_at_a_time(
    home: Path, monkeypatch: pytest.MonkeyPatch, second: str
) -> None:
    """Two that had both found it empty: one replaced the other's store, and took it away when it
    failed at the policies."""
    new = home / "new"
    new.mkdir()
    given = {
        "restore": (home / "good.tar.gz", new),
        "init": (new, "--owner", cast.owner.pubkey),
    }[second]
    seconds = [lambda: rookery(second, *given)]
    said = []

    @contextmanager
    def meanwhile(parent: Path, prefix: str) -> Iterator[Path]:
        if seconds:
            said.append(seconds.pop()())
        with backup.staging_folder(parent, prefix) as staging:
            yield staging

    monkeypatch.setattr("relay.cli.restore.staging_folder", meanwhile)
    assert rookery("restore", home / "good.tar.gz", new)[1] == 0
    [(text, code)] = said
    assert (code, f"{new} is being filled" in text) == (1, True), text
    assert exported(new) == exported(home / "data")
    assert findings(new) == []


@pytest.mark.parametrize("there", [False, True])
def test_what_others_put_there_during_a_restore_is_not_replaced(
    home: Path,
    monkeypatch: pytest.MonkeyPatch,
    there: bool,  # noqa: FBT001
) -> None:
    new = home / "new"
    if there:
        new.mkdir()
    read = archive.read_archive

    def meanwhile(*args: Any) -> object:
        new.mkdir(exist_ok=True)
        (new / "relay.key").write_text("another's")
        return read(*args)

    monkeypatch.setattr(archive, "read_archive", meanwhile)
    printed, code = rookery("restore", home / "good.tar.gz", new)
    assert (code, "is not overwritten" in printed) == (1, True), printed
    assert names(new) == {"relay.key"}
    assert (new / "relay.key").read_text() == "another's"


@pytest.mark.parametrize("moved", ["", "rookery.db", "rookery.db policies", "rookery.db relay.key"])
def test_a_folder_that_a_killed_restore_filled_in_part_is_named(home: Path, moved: str) -> None:
    """`serve` told to put rookery.toml back."""
    new = home / "new"
    assert rookery("restore", home / "good.tar.gz", new)[1] == 0
    left = new / ".rookery-restoring-abc"
    rest = [path for path in new.iterdir() if path.name not in moved.split()]
    left.mkdir()
    for path in rest:
        path.rename(left / path.name)
    commands: list[tuple[str | Path, ...]] = [
        ("serve", "--check", "--port", "0", "--data", new),
        ("doctor", "--data", new),
        ("verify", "--data", new),
        ("export", "--data", new),
        ("init", new, "--owner", cast.owner.pubkey),
    ]
    if moved:  # else there is nothing in its way
        commands.append(("restore", home / "good.tar.gz", new))
    for command in commands:
        printed, code = rookery(*command)
        assert code == 1, printed
        assert f"a restore into {new} has not finished" in printed
    if moved:
        for path in new.iterdir():
            (shutil.rmtree if path.is_dir() else os.unlink)(path)
    assert rookery("restore", home / "good.tar.gz", new)[1] == 0
    assert findings(new) == []


@pytest.mark.parametrize("left", ["", "relay.key"])
def test_a_whole_folder_is_served_beside_what_a_killed_restore_left(home: Path, left: str) -> None:
    """It was killed before it removed its empty folder, or its target was a folder in this one."""
    data = home / "data"
    (data / ".rookery-restoring-abc").mkdir()
    if left:
        (data / ".rookery-restoring-abc" / left).touch()
    printed, code = rookery("serve", "--check", "--port", 0, "--data", data)
    assert code == 0, printed


# what is refused ---------------------------------------------------------------------------------


def repacked(home: Path, change: Callable[[dict[str, Any], Files], None]) -> Path:
    """The good backup with another manifest or other files; sums as they were."""
    with tarfile.open(home / "good.tar.gz") as tar:
        files = {info.name: tar.extractfile(info).read() for info in tar}  # type: ignore[union-attr]
    manifest = json.loads(files.pop("manifest.json"))
    change(manifest, files)
    file = home / "changed.tar.gz"
    with tarfile.open(file, "w:gz") as tar:
        for name, content in {"manifest.json": json.dumps(manifest).encode(), **files}.items():
            info = tarfile.TarInfo(name)
            info.size = len(content)
            tar.addfile(info, io.BytesIO(content))
    return file


def rewritten(home: Path, change: Callable[[bytes], bytes]) -> Path:
    file = home / "changed.tar.gz"
    file.write_bytes(change((home / "good.tar.gz").read_bytes()))
    return file


def going_deep(_: bytes) -> bytes:
    info, text = tarfile.TarInfo("manifest.json"), b'{"x":' + b"[" * 100_000
    info.size = len(text)
    return gzip.compress(info.tobuf() + text + bytes(-len(text) % 512))


def with_file(name: str) -> Callable[[dict[str, Any], Files], None]:
    def change(manifest: dict[str, Any], files: Files) -> None:
        files[name] = b"evil"
        manifest["files"][name] = {"size": 4, "sha256": sha256(b"evil").hexdigest()}

    return change


def with_manifest(**fields: object) -> Callable[[dict[str, Any], Files], None]:
    return lambda manifest, _: manifest.update(fields)


POSTGRES = b'[storage]\nurl = "postgresql://there/x"\npassword_file = "relay.key"\n'


def with_store(
    change: Callable[[bytes], bytes], name: str = "rookery.db"
) -> Callable[[dict[str, Any], Files], None]:
    """Another store, or other file, with the sum that it has."""

    def changed(manifest: dict[str, Any], files: Files) -> None:
        content = files[name] = change(files[name])
        manifest["files"][name] |= {
            "size": len(content),
            "sha256": sha256(content).hexdigest(),
        }

    return changed


def changed_key(_: dict[str, Any], files: Files) -> None:
    files["relay.key"] = b"0" * len(files["relay.key"])


def without_store(_: dict[str, Any], files: Files) -> None:
    del files["rookery.db"]


def added(_: dict[str, Any], files: Files) -> None:
    files["policies/99-added.toml"] = b""


def link(home: Path) -> Path:
    file = home / "changed.tar.gz"
    with tarfile.open(home / "good.tar.gz") as good, tarfile.open(file, "w:gz") as tar:
        for info in good:
            content = good.extractfile(info)
            if info.name == "relay.key":
                info.type, info.linkname, info.size = tarfile.SYMTYPE, "/etc/passwd", 0
                content = None
            tar.addfile(info, content)
    return file


def twice(home: Path) -> Path:
    def again(packed: bytes) -> bytes:
        tar = gzip.decompress(packed).rstrip(b"\0")
        key = io.BytesIO()
        with tarfile.open(fileobj=key, mode="w") as extra:
            extra.addfile(tarfile.TarInfo("relay.key"))
        return gzip.compress(tar + bytes(-len(tar) % 512) + key.getvalue())

    return rewritten(home, again)


def below_zero(packed: bytes) -> bytes:
    """With a manifest of a size below zero: what is read of a bomb must have an end."""
    info = tarfile.TarInfo("manifest.json")
    info.size = -1
    return gzip.compress(info.tobuf(tarfile.GNU_FORMAT) + gzip.decompress(packed)[512:])


def flipped(packed: bytes) -> bytes:
    """`packed` with one bit of its deflate stream inverted, so that other bytes come out.

    Not every bit does that: the distance of a copy within a run of zeros may change and yield the
    same zeros. Such a file still holds all that was backed up, and is rightly restored.
    """
    for place in range(5000, len(packed)):
        changed = packed[:place] + bytes([packed[place] ^ 1]) + packed[place + 1 :]
        try:
            gzip.decompress(changed)
        except (OSError, EOFError, zlib.error):
            return changed
    raise AssertionError("no bit of the stream changes what comes out")


BAD_FILES: dict[str, tuple[Callable[[Path], Path], str]] = {
    "missing": (lambda home: home / "none.tar.gz", "is not a file"),
    "empty": (lambda home: rewritten(home, lambda _: b""), "is cut off"),
    "cut off in the middle": (lambda home: rewritten(home, lambda b: b[: len(b) // 2]), "cut off"),
    "cut off at its end": (lambda home: rewritten(home, lambda b: b[:-4]), "cut off"),
    "a picture": (lambda home: rewritten(home, lambda _: b"\x89PNG" * 999), "is not a backup"),
    "another tar": (
        lambda home: rewritten(home, lambda _: gzip.compress(b"hello" * 999)),
        "is not a backup",
    ),
    "a flipped bit": (lambda home: rewritten(home, flipped), "good"),
    "something behind it": (
        lambda home: rewritten(home, lambda b: gzip.compress(gzip.decompress(b) + b"x" * 999_999)),
        "data after its end",
    ),
    "a newer format": (
        lambda home: repacked(home, with_manifest(format=2, rookery="9.0", files=7)),
        "was made by Rookery 9.0 (format 2",
    ),
    "a newer schema": (
        lambda home: repacked(home, with_manifest(schema=SCHEMA_VERSION + 1)),
        f"schema {SCHEMA_VERSION + 1}); this version knows up to",
    ),
    "a version without end": (
        lambda home: repacked(home, with_manifest(rookery="://a:" * 100_000)),
        "its manifest is damaged",
    ),
    "a name without end": (
        lambda home: repacked(home, with_manifest(files={"://a:" * 100_000: {}})),
        "its manifest is damaged",
    ),
    "no manifest to speak of": (
        lambda home: repacked(home, with_manifest(files=["rookery.db"])),
        "its manifest is damaged",
    ),
    "a manifest of no time": (
        lambda home: repacked(home, with_manifest(created_at=10**17)),
        "its manifest is damaged",
    ),
    "a manifest that goes deep": (
        lambda home: rewritten(home, going_deep),
        "its manifest is damaged",
    ),
    "a manifest of a size below zero": (
        lambda home: rewritten(home, below_zero),
        "does not begin with a manifest",
    ),
    "a manifest that is no text": (
        lambda home: rewritten(
            home,
            lambda b: gzip.compress(gzip.decompress(b).replace(b'"rookery"', b'"rooker\xa5"')),
        ),
        "its manifest is damaged",
    ),
    "another key": (lambda home: repacked(home, changed_key), "relay.key was changed"),
    "a file that is missing": (lambda home: repacked(home, without_store), "rookery.db is missing"),
    "a file too many": (
        lambda home: repacked(home, added),
        "does not list 'policies/99-added.toml'",
    ),
    "a file twice": (twice, "does not list 'relay.key'"),
    "a link": (link, "does not list 'relay.key'"),
    "a path above": (
        lambda home: repacked(home, with_file("../evil")),
        "named '../evil'",
    ),
    "a path above, further in": (
        lambda home: repacked(home, with_file("policies/../../evil")),
        "named 'policies/../../evil'",
    ),
    "an absolute path": (lambda home: repacked(home, with_file("/tmp/evil")), "named '/tmp/evil'"),
    "a name of ours": (
        lambda home: repacked(home, with_file("control.sock")),
        "named 'control.sock'",
    ),
    "another number of events": (
        lambda home: repacked(home, with_manifest(events=5)),
        "does not match its manifest",
    ),
    "a damaged store": (
        lambda home: repacked(home, with_store(lambda b: b[:8192] + bytes(4096) + b[12288:])),
        "the store in it cannot be used",
    ),
    "settings of PostgreSQL": (
        lambda home: repacked(home, with_store(lambda _: POSTGRES, "rookery.toml")),
        "name a database, [storage] url",
    ),
    "another database": (
        lambda home: repacked(home, with_store(lambda b: b[:68] + bytes(4) + b[72:])),
        "another program",
    ),
}


@pytest.mark.parametrize("fault", BAD_FILES)
def test_a_bad_file_is_refused_and_leaves_nothing(home: Path, fault: str) -> None:
    make, text = BAD_FILES[fault]
    file = make(home)
    before = names(home.parent)
    for args in ((home / "new",), (home, "--check")):
        printed, code = rookery("restore", file, *args)
        assert code == 1, printed
        assert printed.count("\n") == 1
        if text != "good":  # a flipped bit shows in several ways
            assert text in printed
    assert names(home.parent) == before
    assert not (home / "new").exists()


def test_a_folder_that_is_not_empty_is_not_overwritten(home: Path) -> None:
    before = {name: (home / "data" / name).read_bytes() for name in names(home / "data")}
    printed, code = rookery("restore", home / "good.tar.gz", home / "data")
    assert code == 1
    assert "is not empty and is not overwritten" in printed
    assert {name: (home / "data" / name).read_bytes() for name in names(home / "data")} == before


def test_restore_without_a_folder_is_a_wrong_use(home: Path) -> None:
    printed, code = rookery("restore", home / "good.tar.gz")
    assert code == 2
    assert "DIR is missing" in printed


BAD_DESTINATIONS = {
    "an existing file": ("good.tar.gz", (), 1, "exists and is not overwritten"),
    "the data folder": ("data", (), 1, "is in the data folder"),
    "a file in it": ("data/policies/b.tar.gz", (), 1, "is in the data folder"),
    "a link into it": ("link/b.tar.gz", (), 1, "is in the data folder"),
    "no folder": ("nowhere/b.tar.gz", (), 1, "is not a folder"),
    "a file to keep in": ("b.tar.gz", ("--keep", 3), 2, "--keep is for a folder"),
    "none to keep": (".", ("--keep", 0), 2, "--keep"),
}


def test_a_destination_that_ends_with_a_slash_is_a_folder(home: Path) -> None:
    printed, code = rookery("backup", f"{home}/away/", "--data", home / "data")
    assert code == 2, printed
    assert f"{home}/away is no folder: make it with `mkdir" in printed
    assert not (home / "away").exists()


@pytest.mark.parametrize("fault", BAD_DESTINATIONS)
def test_a_bad_destination_is_refused(home: Path, fault: str) -> None:
    destination, more, expected, text = BAD_DESTINATIONS[fault]
    (home / "link").symlink_to(home / "data")
    before = names(home)
    printed, code = rookery("backup", home / destination, "--data", home / "data", *more)
    assert code == expected, printed
    assert text in printed
    assert names(home) == before


@pytest.mark.parametrize(
    ("gone", "text"),
    [
        (("rookery.db", "search.db", "day.jsonl"), "holds nothing yet"),
        (("relay.key",), "cannot be read"),
    ],
)
def test_a_folder_that_is_none_of_a_relay_is_refused(
    home: Path, gone: tuple[str, ...], text: str
) -> None:
    for name in gone:
        (home / "data" / name).unlink()
    printed, code = rookery("backup", home / "b.tar.gz", "--data", home / "data")
    assert code == 1
    assert text in printed
    assert not (home / "b.tar.gz").exists()


@contextmanager
def full_disk(at: int) -> Iterator[None]:
    """No file may be larger; the same errors as of a full disk, but for their number."""
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    before = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (at, limits[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
        signal.signal(signal.SIGXFSZ, before)


def test_a_disk_without_room_leaves_no_backup(home: Path) -> None:
    before = names(home)
    with full_disk(40_000):
        printed, code = rookery("backup", home / "b.tar.gz", "--data", home / "data")
    assert code == 1, printed
    assert "was not written: no space left on the disk" in printed
    assert names(home) == before
    assert not list(home.glob(".rookery-*"))


def test_a_disk_without_room_for_the_packed_file_leaves_no_backup(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write = archive.write_archive

    def limited(*args: Any) -> None:
        with full_disk(8_000):
            write(*args)

    monkeypatch.setattr(archive, "write_archive", limited)
    before = names(home)
    printed, code = rookery("backup", home / "b.tar.gz", "--data", home / "data")
    assert code == 1, printed
    assert "no space left on the disk" in printed
    assert names(home) == before
    assert not list(home.glob(".rookery-*"))


def test_a_disk_without_room_gets_no_folder(home: Path) -> None:
    before = names(home)
    with full_disk(20_000):
        printed, code = rookery("restore", home / "good.tar.gz", home / "new")
    assert code == 1
    assert "was not restored" in printed
    assert names(home) == before
    assert not (home / "new").exists()


def test_room_is_asked_for_before_anything_is_written(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    there = os.statvfs(home)
    full = os.statvfs_result([*there[:4], 3, *there[5:]][:10])
    monkeypatch.setattr(os, "statvfs", lambda _: full)
    printed, code = rookery("restore", home / "good.tar.gz", home / "new")
    assert code == 1
    assert "are free: nothing restored" in printed


# before an upgrade -------------------------------------------------------------------------------


def aged(folder: Path) -> None:
    """The store as the schema before this one had it."""
    with closing(sqlite3.connect(folder / "rookery.db", isolation_level=None)) as db:
        put_back_to_schema_14(db)


async def test_an_older_store_is_backed_up_before_it_is_upgraded(home: Path) -> None:
    data = home / "data"
    aged(data)
    await indexed(data)
    copy = data / "before-upgrade.tar.gz"
    assert archive.manifest_of(copy).schema == SCHEMA_VERSION - 1
    with closing(sqlite3.connect(data / "rookery.db")) as db:
        assert db.execute("PRAGMA user_version").fetchone() == (SCHEMA_VERSION,)
    assert copy.stat().st_mode & 0o777 == 0o600
    # Opened again it is upgraded again.
    await opened_again(home, copy)


async def opened_again(home: Path, copy: Path) -> None:
    printed, code = rookery("restore", copy, home / "old")
    assert code == 0, printed
    await indexed(home / "old")
    assert exported_rows(home / "old") == exported_rows(home / "data")


def exported_rows(folder: Path) -> object:
    return contents(folder / "rookery.db")


async def test_without_a_backup_there_is_no_upgrade(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    aged(home / "data")

    def full(*_: object, **__: object) -> None:
        raise UserError("no space left on the disk")

    monkeypatch.setattr(backup, "make_backup", full)
    with pytest.raises(UserError, match="is not upgraded to"):
        await indexed(home / "data")
    assert copying.schema_of(home / "data" / "rookery.db") == SCHEMA_VERSION - 1


async def test_a_copy_from_before_is_removed_after_a_week(home: Path) -> None:
    """It holds what was deleted since."""
    data = home / "data"
    aged(data)
    await indexed(data)
    copy = data / "before-upgrade.tar.gz"
    await indexed(data)
    assert copy.exists()
    a_week_ago = copy.stat().st_mtime - 8 * 86_400
    os.utime(copy, (a_week_ago, a_week_ago))
    await indexed(data)
    assert not copy.exists()
