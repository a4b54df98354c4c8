"""Tables of cases against a folder of an admin: `rookery policy test`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from policies.cases import Cast, case_table
from relay.access.actors import Actors
from relay.cli.policy.case_runner import results
from relay.memory.systems import MEMORY_SYSTEMS
from tests.unit.policies.folders import written

if TYPE_CHECKING:
    from pathlib import Path

MALLORY = Cast(Actors()).key("mallory")
BANNED = """
[[case]]
says = "a banned key does not write"
event = { kind = 1, by = "mallory" }
want = "blocked"

[[case]]
says = "but comes back with a trusted import"
event = { kind = 1, by = "mallory" }
given = { origin = "trusted import" }
want = "accept"
"""


def test_a_table_runs_against_policies_that_name_files_of_keys(tmp_path: Path) -> None:
    folder = tmp_path / "policies"
    folder.mkdir()
    (folder / "banned.txt").write_text(f"{MALLORY}\n")
    written(folder, **{"20-mine": '[bans]\nfiles = ["banned.txt"]\n'})
    (tmp_path / "cases.toml").write_text(f'preset = "open"\n{BANNED}')
    ran = results(case_table(tmp_path / "cases.toml"), folder, MEMORY_SYSTEMS)
    assert [(result.got, result.passed) for result in ran] == [
        ("blocked: this key is banned here", True),
        ("accept", True),
    ]


def test_a_preset_of_a_table_leaves_the_folder_as_it_is(tmp_path: Path) -> None:
    folder = tmp_path / "policies"
    folder.mkdir()
    written(folder, **{"10-preset": "# mine\n"})
    (tmp_path / "cases.toml").write_text(
        'preset = "open"\n[[case]]\nsays = "a long one"\nwant = "invalid"\n'
        "event = { kind = 1, content_chars = 400_001 }\n"
    )
    (result,) = results(case_table(tmp_path / "cases.toml"), folder, MEMORY_SYSTEMS)
    assert result.passed
    assert (folder / "10-preset.toml").read_text() == "# mine\n"
