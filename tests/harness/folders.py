"""Policy folders of a test: files by name, and what `load` says of them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from policies import PolicySet, load
from relay.errors import ConfigFaults
from relay.memory.systems import MEMORY_SYSTEMS

if TYPE_CHECKING:
    from pathlib import Path


def written(folder: Path, **files: str) -> Path:
    """The folder with one `NAME.toml` for each text."""
    for name, text in files.items():
        (folder / f"{name}.toml").write_text(text)
    return folder


def loaded(folder: Path, **files: str) -> PolicySet:
    return load(written(folder, **files), MEMORY_SYSTEMS)


def faults_of(folder: Path, **files: str) -> list[str]:
    """Every fault as `file:line: text`, the file without its folder."""
    with pytest.raises(ConfigFaults) as raised:
        load(written(folder, **files), MEMORY_SYSTEMS)
    return [str(fault).removeprefix(f"{folder}/") for fault in raised.value.faults]
