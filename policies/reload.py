"""Reloading of policy files while the relay runs: change detection and the new set.

Invariants: a set of files takes effect whole or not at all. No clock and no task here; the command
line polls.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Final

from policies.load import load
from relay.errors import ConfigFaults, Fault

if TYPE_CHECKING:
    from collections.abc import Iterable

    from policies.engine import PolicySet

_NO_KEYS: Final = ", with a comment (`#`) if it is to list no key"
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


def read_files(files: Fingerprint, key_files: Iterable[str]) -> Fingerprint:
    """The policy files and these files of keys; without the files of plug-ins, which a program may
    always have open."""
    keys = {str(Path(path)) for path in key_files}
    return tuple([file for file in files if file[0].endswith(".toml") or file[0] in keys])


def emptied(in_force: Fingerprint, files: Fingerprint) -> list[Fault]:
    """The files, as of `read_files`, without content that had some: a copy onto a full disk leaves
    such ones, without its rules a file makes public what they protect, and an empty list lifts
    bans."""
    with_content = {path for path, _, size, _ in in_force if size}
    return [
        Fault(
            path,
            0,
            "is empty, and had content before: write it again"
            + (", or remove it if its rules are to go" if path.endswith(".toml") else _NO_KEYS),
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
