"""`rookery move`: what it makes of rookery.toml, and a move that is given up."""

from __future__ import annotations

import asyncio
import os
import sqlite3
from contextlib import closing
from errno import ENOSPC
from typing import TYPE_CHECKING

import pytest

from relay.cli import move_switch, run
from relay.cli.database import second_store
from relay.cli.folder_lock import locked
from relay.cli.init import fresh_folder
from relay.cli.move_switch import UNFINISHED, Switch, is_asked, settings_with
from relay.config import config_from, load_config
from relay.errors import StoreFault
from relay.storage.sqlite.moving import SqliteSide
from tests.harness.stocked_folder import rookery, stocked

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

URL = "postgresql://rookery@/rookery"


def test_a_move_without_the_package_for_postgresql_says_how_to_install_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was a traceback."""
    data = tmp_path / "data"
    fresh_folder(data)
    monkeypatch.setattr("relay.cli.database.find_spec", lambda _: None)
    printed, code = rookery("move", "--from", data, "--to", URL)
    assert code == 1
    assert "PostgreSQL needs a package that is not installed: " in printed
    assert "pip install" in printed


@pytest.mark.parametrize("content", [b"", b"\0" * 99, b"{}", b'{"to": null, "a": ' + b"[" * 9999])
def test_a_damaged_request_to_switch_is_named(tmp_path: Path, content: bytes) -> None:
    """It was a traceback of `serve`, of which `serve --check` and `doctor` knew nothing."""
    data = tmp_path / "data"
    fresh_folder(data)
    settings = data / "rookery.toml"  # doctor looks at the port, which another relay may have
    settings.write_text(settings.read_text().replace("# port = 7777", "port = 0"))
    (data / "move.json").write_bytes(content)
    for command in (("serve", "--port", 0), ("serve", "--check", "--port", 0), ("doctor",)):
        printed, code = rookery(*command, "--data", data)
        assert code == 1
        assert f"{data}/move.json is damaged: remove it" in printed
    with pytest.raises(StoreFault, match="is damaged"):
        is_asked(data)


@pytest.mark.parametrize(
    ("before", "switch", "after"),
    [
        (
            "# mine\n[limits]\n",
            Switch(URL),
            ["# mine", "[limits]", "", "[storage]", f'url = "{URL}"'],
        ),
        (
            '[storage]\n# why\nsynchronous = "FULL"\nindex_tags = []\n[log]\n',
            Switch(URL, "/etc/password"),
            [
                "[storage]",
                f'url = "{URL}"',
                'password_file = "/etc/password"',
                "# why",
                "index_tags = []",
                "[log]",
            ],
        ),
        (
            f'[storage]\nurl = "{URL}"  # x\nshared = true\nindex_tags = []\npassword_file = "p"\n',
            Switch(None),
            ["[storage]", "index_tags = []"],
        ),
    ],
)
def test_only_where_the_events_are_changes_in_the_settings(
    tmp_path: Path, before: str, switch: Switch, after: Sequence[str]
) -> None:
    file = tmp_path / "rookery.toml"
    file.write_text(before)
    changed = settings_with(tmp_path, switch)
    assert changed.rstrip("\n").split("\n") == after
    assert config_from(changed, file).storage.url == switch.to


def test_a_move_that_is_given_up_leaves_nothing_in_the_store(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    stocked(tmp_path / "data", 1)
    file = tmp_path / "data" / "rookery.db"

    async def begin() -> None:
        side = SqliteSide(file)
        await side.begin_log()
        await side.close()

    asyncio.run(begin())
    assert left_in(file) != set()
    assert run(["move", "--from", str(file.parent), "--cancel"]) == 0
    assert "the move is forgotten" in capsys.readouterr().out
    assert left_in(file) == set()


def left_in(file: Path) -> set[str]:
    with closing(sqlite3.connect(file)) as db:
        rows = db.execute("SELECT name FROM sqlite_master WHERE name GLOB 'moving*'")
        return {name for (name,) in rows}


def test_a_move_back_whose_settings_cannot_be_written_leaves_the_relay_as_it_was(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The disk is full: the relay goes on with the database, so no file may be beside it."""
    folder = tmp_path / "data"
    fresh_folder(folder)
    settings = folder / "rookery.toml"
    url = "postgresql:///rookery"
    text = settings.read_text()
    settings.write_text(text.replace("[storage]\n", f'[storage]\nurl = "{url}"\n', 1))
    kept = folder / "rookery.db.moved"
    kept.write_bytes(b"of an earlier move")

    class Source:
        async def close(self) -> None:
            pass

    async def source_of(*_: object) -> Source:
        return Source()

    async def copied(*_: object) -> None:
        (folder / UNFINISHED).mkdir()
        for name in ("rookery.db", "search.db"):
            (folder / UNFINISHED / name).write_bytes(b"a store")

    def full(file: Path, _text: str) -> None:
        raise OSError(ENOSPC, os.strerror(ENOSPC), str(file))

    monkeypatch.setattr(move_switch, "source_of", source_of)
    monkeypatch.setattr(move_switch, "_copy_rest", copied)
    monkeypatch.setattr(move_switch, "_write_settings", full)
    move_switch.note(folder, Switch(None))
    after = move_switch.switched(folder, load_config(settings), own_file=True)
    assert after.storage.url == url
    assert second_store(folder) is None
    assert {file.name for file in (folder / UNFINISHED).iterdir()} == {"rookery.db", "search.db"}
    assert kept.exists()


def test_a_value_of_a_wrong_type_is_named_before_anything_is_moved(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The folder may be of a backup that somebody else made."""
    stocked(tmp_path / "data", 1)
    with closing(sqlite3.connect(tmp_path / "data" / "rookery.db", isolation_level=None)) as db:
        db.execute("INSERT INTO tombstones VALUES (x'ff', '', 0, '', NULL)")
    assert run(["move", "--from", str(tmp_path / "data"), "--to", URL]) == 1
    assert "table tombstones, row b'" in capsys.readouterr().err


def test_two_moves_of_a_folder_are_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    stocked(tmp_path / "data", 1)
    with locked(tmp_path / "data", "move.lock"):
        assert run(["move", "--from", str(tmp_path / "data"), "--to", URL]) == 1
    assert "another move of" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "code", "says"),
    [
        (("--from", "{}"), 2, "--to is missing"),
        (("--from", URL, "--to", URL), 2, "name the data folder"),
        (("--from", "{}/none", "--to", URL), 1, "is no data folder"),
        (("--from", URL, "--to", "{}"), 1, "[storage] url is not postgresql://"),
        (("--from", "{}", "--to", "{}"), 1, "are there already"),
    ],
)
def test_what_makes_no_sense_is_said(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], words: tuple[str, ...], code: int, says: str
) -> None:
    stocked(tmp_path / "data", 1)
    assert run(["move", *(word.format(tmp_path / "data") for word in words)]) == code
    assert says in capsys.readouterr().err


def test_policies_of_the_database_are_put_into_the_folder_before_a_move(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "data"
    stocked(folder, 1)
    (folder / "rookery.toml").write_text(f'[storage]\nurl = "{URL}"\npolicies = "database"\n')
    assert run(["move", "--from", URL, "--to", str(folder)]) == 1
    assert (
        "the relay reads its policies from the database: run `rookery policy pull`"
        in capsys.readouterr().err
    )
