"""What the checks of `rookery doctor` are given."""

from __future__ import annotations

import stat
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

    from relay.cli.status import Disk
    from relay.config import Config
    from relay.observe import Status


@dataclass(frozen=True, slots=True)
class Machine:
    """Facts about the machine for the checks."""

    now: int
    disk: Disk | None
    """None: the store cannot be read."""
    max_files: int
    """RLIMIT_NOFILE; of the relay's process if it runs."""
    sqlite_version: tuple[int, ...]
    compile_options: frozenset[str]
    keeps_secure_delete: bool
    file_system: str
    home: Path


@dataclass(frozen=True, slots=True)
class Examined:
    """The input of the checks."""

    folder: Path
    config: Config
    running: Status | None
    machine: Machine
    is_held: bool
    """Another process has the lock of the folder."""


def mode_of(path: Path) -> int:
    """The permission bits of a file; 0: there is none."""
    try:
        return stat.S_IMODE(path.stat().st_mode)
    except OSError:
        return 0
