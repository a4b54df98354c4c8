"""relay/files.py: files and folders that other users of the machine cannot use."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest

from relay import hook
from relay.files import make_private, replace_file

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path


@pytest.fixture(params=[0o000, 0o022, 0o077], autouse=True)
def umask(request: pytest.FixtureRequest) -> Iterator[None]:
    before = os.umask(request.param)
    yield
    os.umask(before)


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
            replace_file(tmp_path / f"{name}.jsonl", b"private")
            assert (tmp_path / f"{name}.jsonl").read_bytes() == b"private"
            assert (tmp_path / f"{name}.jsonl").lstat().st_mode & 0o7777 == 0o600
        assert spy.read() == ""
    assert victim.read_text() == "mine"


def test_a_file_of_a_name_that_is_alike_stays(tmp_path: Path) -> None:
    mine = tmp_path / "notes.part"
    mine.write_text("mine")
    replace_file(tmp_path / "notes.jsonl", b"exported")
    assert mine.read_text() == "mine"
    assert sorted(each.name for each in tmp_path.iterdir()) == ["notes.jsonl", "notes.part"]
