"""relay/files.py: files and folders that other users of the machine cannot use."""

from __future__ import annotations

import errno
import os
import socket
import stat
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from relay import hook
from relay.client.anamnesis.files import write_lines
from relay.files import (
    MAX_KEY_FILE,
    atomic_file,
    content_of,
    given_content,
    is_open_for_writing,
    make_private,
    own_database,
    place_of_others,
    private_database,
    replace_own_file,
    socket_address,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


@pytest.fixture(params=[0o000, 0o022, 0o077], autouse=True)
def umask(request: pytest.FixtureRequest) -> Iterator[None]:
    before = os.umask(request.param)
    yield
    os.umask(before)


def test_a_socket_has_its_place_in_its_folder_however_long_the_path(tmp_path: Path) -> None:
    path = tmp_path / ("a-long-name-" * 10) / "s.sock"
    path.parent.mkdir()
    with socket.socket(socket.AF_UNIX) as listening, socket_address(path) as address:
        listening.bind(address)
    assert path.is_socket()


def test_where_a_path_has_no_short_alias_its_socket_is_refused_by_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / ("a-long-name-" * 10)
    monkeypatch.setattr("os.path.isdir", lambda _: False)
    with pytest.raises(OSError, match="shorter path") as refused, socket_address(path):
        pass
    assert refused.value.filename == str(path)


@pytest.mark.parametrize("make", [make_private, lambda path: hook._make_private(str(path))])
def test_folders_are_private_with_all_that_are_made_above_them(
    tmp_path: Path, make: Callable[[Path], None]
) -> None:
    tmp_path.chmod(0o755)
    for _ in range(2):
        make(tmp_path / "a" / "b" / "c")
    made = [tmp_path / "a", tmp_path / "a/b", tmp_path / "a/b/c"]
    assert [path.stat().st_mode & 0o777 for path in (tmp_path, *made)] == [0o755, *[0o700] * 3]


def test_a_file_of_another_user_is_not_written_to(tmp_path: Path) -> None:
    victim = tmp_path / "victim"
    victim.write_text("mine")
    waiting, link = tmp_path / ".one.jsonl.part", tmp_path / ".two.jsonl.part"
    waiting.write_text("")
    waiting.chmod(0o666)
    link.symlink_to(victim)
    with waiting.open() as spy:
        for name in ("one", "two"):
            replace_own_file(tmp_path / f"{name}.jsonl", b"private")
            assert (tmp_path / f"{name}.jsonl").read_bytes() == b"private"
            assert (tmp_path / f"{name}.jsonl").lstat().st_mode & 0o7777 == 0o600
        assert spy.read() == ""
    assert victim.read_text() == "mine"


@pytest.mark.parametrize("made", ["file", "pipe"])
@pytest.mark.parametrize("end", ["", "-journal", "-wal", "-shm"])
def test_a_database_that_another_user_made_or_may_read_the_log_of_is_not_written_to(
    tmp_path: Path, give_away: Callable[[Path], None], made: str, end: str
) -> None:
    path = tmp_path / "a.db"
    planted = tmp_path / f"a.db{end}"
    os.mkfifo(planted) if made == "pipe" else planted.touch()
    give_away(planted)
    with pytest.raises(OSError, match=r"belongs to another user|is a pipe"):
        own_database(path)


def test_a_link_of_another_user_to_a_database_is_not_followed(
    tmp_path: Path, give_away: Callable[[Path], None]
) -> None:
    """The file that it named, of whatever kind, became private or was made."""
    mine, link = tmp_path / "mine", tmp_path / "a.db"
    for is_there in (False, True):
        if is_there:
            mine.touch()
            mine.chmod(0o644)
        link.unlink(missing_ok=True)
        link.symlink_to(mine)
        give_away(link)
        with pytest.raises(PermissionError, match=r"another user.*a\.db"):
            private_database(link)
        assert mine.exists() == is_there
    assert stat.S_IMODE(mine.stat().st_mode) == 0o644


@pytest.mark.parametrize("place", [".config", ".config/rookery", ".config/rookery/client.toml"])
@pytest.mark.parametrize("how", ["given", "link", "open"])
def test_what_others_may_have_made_below_a_home_folder_is_told(
    tmp_path: Path, give_away: Callable[[Path], None], place: str, how: str
) -> None:
    file, there = tmp_path / "home/.config/rookery/client.toml", tmp_path / "home" / place
    make_private(file.parent)
    file.touch(0o600)
    file.chmod(0o600)
    (tmp_path / "home").chmod(0o1777)
    assert place_of_others(file, tmp_path / "home") == ""
    assert place_of_others(file.with_name("missing"), tmp_path / "home") == ""
    if how == "open":
        there.chmod(0o777)
    else:
        if how == "link":
            there.rename(tmp_path / "aside")
            there.symlink_to(tmp_path / "aside")
        give_away(there)
    told = place_of_others(file, tmp_path / "home")
    if how == "open":
        assert told == f"everybody may write to {there}"
    else:
        assert "belongs to another user" in told
    assert place_of_others(file, tmp_path / "elsewhere") == ""


def test_a_pipe_or_link_of_another_user_is_not_written_to(
    tmp_path: Path, give_away: Callable[[Path], None]
) -> None:
    mine, pipe, link = tmp_path / "mine", tmp_path / "pipe", tmp_path / "link"
    mine.write_text("mine")
    link.symlink_to(mine)
    os.mkfifo(pipe)
    (tmp_path / "to pipe").symlink_to(pipe)
    reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    for planted, outputs in ((pipe, (pipe, tmp_path / "to pipe")), (link, (link,))):
        give_away(planted)
        for output in outputs:
            with pytest.raises(PermissionError, match="belongs to another user"):
                atomically(output, b"private")
    assert os.read(reader, 99) == b""
    os.close(reader)
    assert mine.read_text() == "mine"


def test_a_link_in_place_of_a_file_of_ours_is_replaced_and_not_what_it_names(
    tmp_path: Path,
) -> None:
    letter, file = tmp_path / "letter", tmp_path / "day.jsonl"
    letter.write_text("mine")
    for target in (letter, tmp_path / "nothing"):
        file.symlink_to(target)
        replace_own_file(file, b"ours")
        assert not file.is_symlink()
        assert file.read_bytes() == b"ours"
        file.unlink()
    assert [each.name for each in tmp_path.iterdir()] == ["letter"]
    assert letter.read_text() == "mine"


def test_a_link_that_appears_while_a_file_of_ours_is_written_is_not_followed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Root's `backup` overwrote a file of root's for the user whose folder it was."""
    letter, file = tmp_path / "letter", tmp_path / "last-backup.json"
    letter.write_text("mine")
    file.symlink_to(letter)
    unlink, fsync = Path.unlink, os.fsync

    def planted() -> None:
        if not os.path.lexists(file):
            file.symlink_to(letter)

    def unlinked(path: Path, missing_ok: bool = False) -> None:  # noqa: FBT001, FBT002 - as pathlib
        unlink(path, missing_ok=missing_ok)
        planted()

    def synced(fd: int) -> None:
        fsync(fd)
        planted()

    monkeypatch.setattr(Path, "unlink", unlinked)
    monkeypatch.setattr(os, "fsync", synced)
    for _ in range(2):
        replace_own_file(file, b"ours")
        assert not file.is_symlink()
        assert file.read_bytes() == b"ours"
        unlink(file)
    assert letter.read_text() == "mine"


def test_a_link_or_pipe_that_appears_in_place_of_an_output_is_not_followed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In a folder of several users another one could replace a file of their own meanwhile."""
    letter, output = tmp_path / "letter", tmp_path / "out.jsonl"
    letter.write_text("mine")
    lstat = Path.lstat

    def planting(path: Path) -> os.stat_result:
        found = lstat(path)
        if path == output:
            path.unlink()
            plant(path)
        return found

    def pipe(path: Path) -> None:
        os.mkfifo(path)
        readers.append(os.open(path, os.O_RDONLY | os.O_NONBLOCK))

    readers: list[int] = []
    monkeypatch.setattr(Path, "lstat", planting)
    for plant in (pipe, lambda path: path.symlink_to(letter)):  # noqa: B007 - `planting` uses it
        output.touch()
        atomically(output, b"private")
        assert stat.S_ISREG(lstat(output).st_mode)
        assert output.read_bytes() == b"private"
    assert letter.read_text() == "mine"
    for reader in readers:
        os.close(reader)


def test_a_file_that_is_replaced_keeps_its_mode_under_any_umask(tmp_path: Path) -> None:
    file = tmp_path / "settings"
    for mode in (0o600, 0o644, 0o660):
        replace_own_file(file, b"ours", mode)
        assert file.stat().st_mode & 0o7777 == mode


def test_a_file_of_a_name_that_is_alike_stays(tmp_path: Path) -> None:
    mine = tmp_path / "notes.part"
    mine.write_text("mine")
    replace_own_file(tmp_path / "notes.jsonl", b"exported")
    assert mine.read_text() == "mine"
    assert sorted(each.name for each in tmp_path.iterdir()) == ["notes.jsonl", "notes.part"]


def test_what_is_no_file_is_said_and_not_waited_for(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)  # whoever opens it waits until somebody writes
    with pytest.raises(OSError, match="it is a pipe, not a file"):
        content_of(pipe)
    with pytest.raises(OSError, match="it is a device, not a file"):
        content_of(Path("/dev/zero"))
    with pytest.raises(IsADirectoryError):
        content_of(tmp_path)
    (tmp_path / "link").symlink_to(tmp_path / "file")
    (tmp_path / "file").write_text("text")
    assert content_of(tmp_path / "link") == b"text"


def test_what_is_given_to_a_command_may_be_a_pipe_and_is_read_up_to_the_limit() -> None:
    with pytest.raises(OSError, match="too large, over 64 KiB: '/dev/zero'"):
        given_content(Path("/dev/zero"), MAX_KEY_FILE)
    reader, writer = os.pipe()
    os.write(writer, b"nsec1")
    os.close(writer)
    assert given_content(Path(f"/dev/fd/{reader}"), MAX_KEY_FILE) == b"nsec1"
    os.close(reader)


def atomically(path: Path, data: bytes) -> None:
    with atomic_file(path) as file:
        file.write(data)


def as_lines(path: Path, data: bytes) -> None:
    write_lines(path, [data.decode().removesuffix("\n")])


writers = pytest.mark.parametrize("write", [atomically, as_lines])


@writers
def test_a_symbolic_link_stays_one(tmp_path: Path, write: Callable[[Path, bytes], None]) -> None:
    for name in ("there", "new"):
        target, link = tmp_path / name, tmp_path / f"link to {name}"
        link.symlink_to(name)
        if name == "there":
            target.write_text("before")
            target.chmod(0o644)
        write(link, b"text\n")
        assert link.is_symlink()
        assert target.read_bytes() == b"text\n"
        assert target.stat().st_mode & 0o777 == 0o600
    assert len(list(tmp_path.iterdir())) == 4


@writers
def test_a_pipe_is_written_to_and_not_replaced(
    tmp_path: Path, write: Callable[[Path, bytes], None]
) -> None:
    named, link = tmp_path / "fifo", tmp_path / "link"
    os.mkfifo(named)
    link.symlink_to(named)
    readers = [os.open(named, os.O_RDONLY | os.O_NONBLOCK)]
    unnamed, writer = os.pipe()
    paths = {named: readers[0], link: readers[0], Path(f"/dev/fd/{writer}"): unnamed}
    try:
        for path, reader in paths.items():
            write(path, b"text\n")
            assert os.read(reader, 99) == b"text\n"
    finally:
        for fd in (*readers, unnamed, writer):
            os.close(fd)
    assert named.is_fifo()
    assert link.is_symlink()


@writers
def test_a_link_to_itself_is_not_written(
    tmp_path: Path, write: Callable[[Path, bytes], None]
) -> None:
    link = tmp_path / "link"
    link.symlink_to(link)
    with pytest.raises(OSError, match="symbolic links"):
        write(link, b"text\n")
    assert link.is_symlink()


@writers
def test_a_folder_that_is_missing_is_told_of_by_the_name_given(
    tmp_path: Path, write: Callable[[Path, bytes], None]
) -> None:
    with pytest.raises(FileNotFoundError, match=r"/nowhere/out'$"):
        write(tmp_path / "nowhere" / "out", b"text\n")


@writers
def test_what_was_begun_is_removed_when_writing_ends_early(
    tmp_path: Path, write: Callable[[Path, bytes], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(_: int) -> None:
        raise KeyboardInterrupt

    (tmp_path / "out").write_text("before")
    monkeypatch.setattr(os, "fsync", interrupted)
    with pytest.raises(KeyboardInterrupt):
        write(tmp_path / "out", b"text\n")
    assert [each.name for each in tmp_path.iterdir()] == ["out"]
    assert (tmp_path / "out").read_text() == "before"


# whether a file is being written ------------------------------------------------------------------


@pytest.mark.skipif(sys.platform != "linux", reason="other systems do not tell")
def test_a_file_is_open_for_writing_until_it_is_closed(tmp_path: Path) -> None:
    path = tmp_path / "a"
    assert is_open_for_writing(path) is False, "there is none"
    with path.open("w"):
        assert is_open_for_writing(path)
    with path.open():
        assert is_open_for_writing(path) is False
    with path.open("a"), path.open():
        assert is_open_for_writing(path)
    assert is_open_for_writing(path) is False


@pytest.mark.parametrize("code", [errno.EACCES, errno.EINVAL, errno.ENOLCK])
def test_where_the_system_does_not_tell_nothing_is_claimed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: int
) -> None:
    def refused(*_: object) -> None:
        raise OSError(code, os.strerror(code))

    (tmp_path / "a").write_text("")
    monkeypatch.setattr("fcntl.fcntl", refused)
    assert is_open_for_writing(tmp_path / "a") is None
