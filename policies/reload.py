"""Policies while a relay runs: has the folder changed, and what does it say now?

A set of files counts whole or not at all. No clock and no task here: who polls, and how often, is
the server's business.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from policies.load import load
from relay.errors import ConfigFaults

if TYPE_CHECKING:
    from collections.abc import Iterable

    from policies.engine import PolicySet

Fingerprint = tuple[tuple[str, int, int, int], ...]
"""(path, time of change, size, inode) of each file: another value means, read again."""


def fingerprint(folder: str | Path, watched: Iterable[str] = ()) -> Fingerprint:
    """What the policy files of a folder, and files that they name, look like from outside.

    One that vanishes is left out.
    """
    found = []
    for path in [*sorted(Path(folder).rglob("*.toml")), *map(Path, watched)]:
        try:
            seen = path.stat()
        except OSError:
            continue
        found.append((str(path), seen.st_mtime_ns, seen.st_size, seen.st_ino))
    return tuple(found)


def reloaded(current: PolicySet, folder: str | Path) -> PolicySet | ConfigFaults:
    """The folder's policies, or why they cannot be used; `current` stays in force then.

    What no file says is carried over: the relay's own key.
    """
    try:
        return load(folder, current.people.relay)
    except ConfigFaults as faults:
        return faults
