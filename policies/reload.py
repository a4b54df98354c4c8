"""Reloading of policy files while the relay runs: change detection and the new set.

Invariants: a set of files takes effect whole or not at all. No clock and no task here; the command
line polls.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from policies.load import load
from relay.errors import ConfigFaults, Fault

if TYPE_CHECKING:
    from collections.abc import Iterable

    from policies.engine import PolicySet

Fingerprint = tuple[tuple[str, int, int, int], ...]
"""(path, time of change, size, inode) of each file: a different value means the files changed."""


def fingerprint(folder: str | Path, watched: Iterable[str] = ()) -> Fingerprint:
    """The fingerprint of the policy files of a folder and of the files that they name.

    A file that disappears during the scan is left out.
    """
    found = []
    for path in [*sorted(Path(folder).rglob("*.toml")), *map(Path, watched)]:
        try:
            seen = path.stat()
        except OSError:
            continue
        found.append((str(path), seen.st_mtime_ns, seen.st_size, seen.st_ino))
    return tuple(found)


def policy_files(files: Fingerprint) -> Fingerprint:
    """Without the files that they name."""
    return tuple([file for file in files if file[0].endswith(".toml")])


def emptied(in_force: Fingerprint, files: Fingerprint) -> list[Fault]:
    """The policy files without content that had some: a copy onto a full disk leaves such ones, and
    without its rules a file makes public what they protect."""
    with_content = {path for path, _, size, _ in policy_files(in_force) if size}
    return [
        Fault(
            path,
            0,
            "is empty, and had content before: write it again, or remove it if its rules are to go",
        )
        for path, _, size, _ in files
        if not size and path in with_content
    ]


def reloaded(current: PolicySet, folder: str | Path) -> PolicySet | ConfigFaults:
    """The folder's policies, or their faults; then `current` stays in force.

    The memory systems and the relay's own key, which are in no file, are kept.
    """
    try:
        return load(folder, current.systems, current.actors.relay)
    except ConfigFaults as faults:
        return faults
