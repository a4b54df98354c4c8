"""While a relay runs: a change is seen, and taken over whole or not at all."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from policies import PolicySet, load
from policies.reload import fingerprint, reloaded
from relay.errors import ConfigFaults
from relay.memory.systems import MEMORY_SYSTEMS
from tests.cast import owner
from tests.harness.folders import written

if TYPE_CHECKING:
    from pathlib import Path


def test_a_change_is_seen_and_rest_is_not_taken_for_one(tmp_path: Path) -> None:
    written(tmp_path, a="[limits]\nmax_event_tags = 1")
    before = fingerprint(tmp_path)
    assert fingerprint(tmp_path) == before
    (tmp_path / "notes.txt").write_text("nothing")
    assert fingerprint(tmp_path) == before
    new = tmp_path / "a.new"
    new.write_text("[limits]\nmax_event_tags = 2")
    os.replace(new, tmp_path / "a.toml")
    changed = fingerprint(tmp_path)
    assert changed != before
    (tmp_path / "shared").mkdir()
    written(tmp_path / "shared", b="")
    added = fingerprint(tmp_path)
    assert added != changed
    (tmp_path / "a.toml").unlink()
    assert fingerprint(tmp_path) not in (before, changed, added)


def test_a_folder_that_is_gone_has_a_fingerprint_too(tmp_path: Path) -> None:
    assert fingerprint(tmp_path / "nowhere") == ()


def test_a_right_folder_gives_a_new_set(tmp_path: Path) -> None:
    current = load(tmp_path, MEMORY_SYSTEMS)
    found = reloaded(current, written(tmp_path, a="[limits]\nmax_event_tags = 1"))
    assert isinstance(found, PolicySet)
    assert found.limits.max_event_tags == 1
    assert current.limits.max_event_tags == 5000


def test_one_fault_keeps_the_whole_old_set(tmp_path: Path) -> None:
    current = load(tmp_path, MEMORY_SYSTEMS)
    faults = reloaded(
        current,
        written(tmp_path, a="[limits]\nmax_event_tags = 1", b="[limits]\nmax_event_tag = 1"),
    )
    assert isinstance(faults, ConfigFaults)
    assert [fault.line for fault in faults.faults] == [2]


def test_what_no_file_says_is_carried_over(tmp_path: Path) -> None:
    current = load(tmp_path, MEMORY_SYSTEMS, relay=owner.pubkey)
    found = reloaded(current, tmp_path)
    assert isinstance(found, PolicySet)
    assert found.actors.relay == owner.pubkey
