"""Policies of the database (`[storage] policies`), as files in the data folder of each relay.

Each version has its own folder, which is read like a folder of policies; the one in force stays.
"""

from __future__ import annotations

import asyncio
import shutil
from typing import TYPE_CHECKING, Final

from relay.cli.policy_files import write_folder
from relay.config import PolicySource, load_config
from relay.errors import ConfigFaults, Fault, UserError

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from relay.storage.postgres.policies import PolicyVersions

_HOME: Final = "policy-versions"
NONE_YET: Final = (
    '[storage] policies is "database", and none were pushed there yet: `rookery policy push --data'
    " DIR` stores those of DIR/policies"
)


class PushedPolicies:
    """Pushed policies of one relay; one call at a time."""

    def __init__(self, folder: Path, versions: PolicyVersions) -> None:
        """`folder`: of the relay."""
        self._home = folder / _HOME
        self._versions = versions
        self._damaged: tuple[int, ConfigFaults] | None = None
        self.in_force = 0
        """Number of the version; 0 before the first."""

    @property
    def folder(self) -> Path:
        """Folder of the version in force."""
        return self._home / str(self.in_force)

    async def first(self) -> Path:
        """`newest`, for a start. Raises UserError when there is none."""
        newest = await self._versions.versions(1)
        if not newest:
            raise UserError(NONE_YET)
        self._versions.heard(newest[0].number)
        # Perhaps of another database.
        await asyncio.to_thread(shutil.rmtree, self._home, ignore_errors=True)
        if self._home.is_symlink():  # to a folder of somebody's, which is left alone
            self._home.unlink()
        return await self.newest()

    async def newest(self) -> Path:
        """The folder of the newest version. Raises StoreFault, ConfigFaults."""
        number = self._versions.newest or self.in_force
        folder = self._home / str(number)
        if self._damaged is not None and self._damaged[0] == number:
            raise self._damaged[1]
        if folder.is_dir():
            return folder
        try:
            found = await self._versions.read(number)
            if found is None:  # a newer one will be announced
                return self.folder
            await asyncio.to_thread(write_folder, folder, found[1])
        except ConfigFaults as faults:
            self._damaged = number, faults
            raise
        except OSError as error:
            why = f"cannot be written: {error.strerror or error}"
            raise ConfigFaults([Fault(str(folder), 0, why)]) from None
        return folder

    def call_when_pushed(self, call: Callable[[], None]) -> None:
        self._versions.changed = call

    def took(self, folder: Path) -> None:
        """`newest` is in force now: remove the folders of other versions."""
        self.in_force = int(folder.name)
        for other in self._home.iterdir():
            if other != folder:
                shutil.rmtree(other, ignore_errors=True)


def has_pushed_policies(folder: Path) -> bool:
    """Whether the relay of a data folder uses pushed policies. False if its settings have
    faults."""
    try:
        source = load_config(folder / "rookery.toml").storage.policies
    except ConfigFaults:
        return False
    return source is PolicySource.DATABASE


def policies_of(folder: Path) -> Path:
    """The policy files of a data folder, as its relay reads them: of the folder, or those that it
    had last from the database."""
    if not has_pushed_policies(folder):
        return folder / "policies"
    home = folder / _HOME
    numbers = [int(path.name) for path in home.glob("*") if path.name.isdecimal()]
    return home / str(max(numbers, default=0))
