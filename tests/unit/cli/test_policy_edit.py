"""relay/cli/policy/edit.py: what an edit in the console changes, and how it is saved."""

from __future__ import annotations

from typing import TYPE_CHECKING
from unittest.mock import MagicMock

import pytest

from policies import load
from relay.cli.console_owner_view import OwnersView
from relay.cli.policy.edit import checked, new_file, save
from relay.errors import Invalid
from relay.memory.systems import MEMORY_SYSTEMS
from tests.cast import owner

if TYPE_CHECKING:
    from pathlib import Path

    from relay.cli.policy.edit import Edit

ACTORS = f'[actors]\nowners = ["{owner.npub}"]\n'
OWN = "[limits]\nmax_event_tags = 100\n"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    made = tmp_path / "policies"
    made.mkdir()
    (made / "10-actors.toml").write_text(ACTORS)
    (made / "50-own.toml").write_text(OWN)
    return made


def edited(folder: Path, text: str, name: str = "50-own.toml") -> Edit:
    policy = load(folder, MEMORY_SYSTEMS)
    return checked(folder / name, text, folder, policy, owner.pubkey)


def test_an_edit_is_checked_with_the_other_files_and_nothing_is_saved(folder: Path) -> None:
    found = edited(folder, OWN.replace("100", "120"))
    assert (found.faults, found.access) == ([], [])
    assert found.diff[-2:] == ["-max_event_tags = 100", "+max_event_tags = 120"]
    found = edited(folder, "[limits]\nmax_event_tags = 'x'\nnonsense = 1\n")
    assert len(found.faults) == 2
    assert all(fault.startswith("50-own.toml:") for fault in found.faults)
    assert (folder / "50-own.toml").read_text() == OWN
    assert sorted(path.name for path in folder.iterdir()) == ["10-actors.toml", "50-own.toml"]


def test_it_tells_who_could_before_and_who_can_now(folder: Path) -> None:
    rule = '[[rule]]\nname = "known people write"\nenabled = false\n'
    (line,) = [each for each in edited(folder, OWN + rule).access if "may write" in each][:1]
    assert line.startswith("unknown authors may write now: ")
    assert "; before: " in line


def test_it_tells_the_owner_who_locks_themselves_out(folder: Path) -> None:
    found = edited(folder, "[actors]\nowners = []\n", "10-actors.toml")
    assert "your key is no owner of the relay any more" in found.access


def test_no_plug_in_comes_from_a_page(folder: Path) -> None:
    program = folder / "run.sh"
    program.write_text("#!/bin/sh\n")
    program.chmod(0o755)
    text = OWN + f'[[plugin]]\nname = "x"\nrun = ["{program}"]\n'
    assert any("runs programs" in fault for fault in edited(folder, text).faults)
    with pytest.raises(Invalid, match="runs programs"):
        save(edited(folder, text), folder / "50-own.toml", edited(folder, text).before)
    # One that the file has already may stay.
    (folder / "50-own.toml").write_text(text)
    assert edited(folder, f"# a comment\n{text}").faults == []


def test_it_is_saved_whole_with_the_mode_of_the_file(folder: Path) -> None:
    path = folder / "50-own.toml"
    path.chmod(0o640)
    found = edited(folder, OWN.replace("100", "120").replace("\n", "\r\n"))
    save(found, path, found.before)
    assert path.read_text() == OWN.replace("100", "120")
    assert path.stat().st_mode & 0o777 == 0o640
    assert edited(folder, found.text).diff == []


def test_a_file_that_was_changed_meanwhile_is_not_overwritten(folder: Path) -> None:
    path = folder / "50-own.toml"
    before = edited(folder, OWN).before
    path.write_text("# by hand\n")
    with pytest.raises(Invalid, match="changed meanwhile"):
        save(edited(folder, OWN), path, before)
    assert path.read_text() == "# by hand\n"


def test_a_link_and_a_file_elsewhere_are_not_edited(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "elsewhere.toml").write_text(OWN)
    (folder / "60-link.toml").symlink_to(tmp_path / "elsewhere.toml")
    for name in ("60-link.toml", "../elsewhere.toml"):
        with pytest.raises(Invalid, match="outside of the folder"):
            edited(folder, OWN, name)


def test_a_new_file_is_checked_in_its_place_and_saved_for_its_owner_alone(folder: Path) -> None:
    path = new_file(folder, "60-more.toml")
    text = "[limits]\nmax_event_tags = 50\n"
    assert edited(folder, "[limits]\nmax_tags = 1\n", path.name).faults[0].startswith(path.name)
    found = edited(folder, text, path.name)
    assert (found.faults, found.diff[-2:]) == ([], ["+[limits]", "+max_event_tags = 50"])
    assert not path.exists()
    save(found, path, found.before)
    assert path.read_text() == text
    assert path.stat().st_mode & 0o777 == 0o600
    assert load(folder, MEMORY_SYSTEMS).limits.max_event_tags == 50
    # Whoever began it too, before it was saved, does not overwrite it.
    again = edited(folder, OWN, path.name)
    with pytest.raises(Invalid, match="changed meanwhile"):
        save(again, path, found.before)


@pytest.mark.parametrize(
    "name", ["", ".toml", "x", "../x.toml", "a/b.toml", "x.toml/", "X.toml", "a b.toml", "x.toml\n"]
)
def test_a_new_file_has_a_plain_name(folder: Path, name: str) -> None:
    with pytest.raises(Invalid, match="name: must be such as"):
        new_file(folder, name)


def test_a_text_is_bounded(folder: Path) -> None:
    with pytest.raises(Invalid, match="characters"):
        edited(folder, "#" * 100_001)


async def test_policies_of_the_database_are_not_edited_here() -> None:
    services = MagicMock()  # `pushed` is not None
    view = OwnersView(services, MagicMock(), list, MagicMock())
    with pytest.raises(Invalid, match="reads its policies from the database"):
        await view.save_policy("50-own.toml", "", "", owner.pubkey)


def test_of_two_edits_of_one_state_the_second_is_not_saved(folder: Path) -> None:
    """It would undo the first one without a word."""
    path = folder / "50-own.toml"
    first, second = edited(folder, "# of one owner"), edited(folder, "# of another one")
    save(first, path, first.before)
    with pytest.raises(Invalid, match="changed meanwhile"):
        save(second, path, second.before)
    assert path.read_text() == "# of one owner\n"
