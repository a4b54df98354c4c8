"""Tables of cases against a folder of an admin: `rookery policy test`."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from policies.cases import Cast, case_table
from relay.access.actors import Actors
from relay.cli import run
from relay.cli.policy.case_runner import results
from relay.memory.systems import MEMORY_SYSTEMS
from tests.harness.folders import written

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


CREATE = """
preset = "open"
policy = '''
[groups]
create = ["{}"]
'''

[[case]]
says = "who may make a group"
event = {{ kind = 9007, by = "alice", tags = [["h", "tea"]] }}
want = "restricted"
rule = "groups"
"""


@pytest.mark.parametrize(("create", "status"), [("owner", 0), ("anyone", 1)])
def test_the_command_sees_who_may_create_groups(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], create: str, status: int
) -> None:
    (tmp_path / "policies").mkdir()
    table = tmp_path / "cases.toml"
    table.write_text(CREATE.format(create))
    assert run(["policy", "test", str(table), "--data", str(tmp_path / "policies")]) == status
    told = capsys.readouterr()
    assert "1 case, " in told.out
    assert ("got  accept" in told.err) is (status == 1)
