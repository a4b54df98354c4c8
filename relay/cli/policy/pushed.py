"""What `rookery policy push`, `pull` and `versions` share: the versions in the database."""

from __future__ import annotations

from contextlib import asynccontextmanager
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from relay.cli.database import check_driver, password_in
from relay.cli.options import printable
from relay.config import load_config
from relay.errors import UserError

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    from relay.storage.policy_versions import PolicyVersion
    from relay.storage.postgres.policies import PolicyVersions


@asynccontextmanager
async def versions_of(folder: Path) -> AsyncIterator[PolicyVersions]:
    """The policy versions in the database of a data folder; its relay may run. Raises UserError,
    StoreFault."""
    storage = load_config(folder / "rookery.toml").storage
    if storage.url is None:
        raise UserError(
            f"the events of {folder} are in a file (SQLite), and its policies in {folder}/policies:"
            " versions are kept in PostgreSQL, for several relays"
        )
    check_driver()
    from relay.storage.postgres.policies import opened_policies

    async with opened_policies(storage.url, password_in(storage.password_file)) as versions:
        yield versions


async def files_in(
    versions: PolicyVersions, number: int | None
) -> tuple[PolicyVersion, dict[str, bytes]]:
    """Raises UserError, ConfigFaults, StoreFault."""
    found = await versions.read(number)
    if found is None and number is None:
        raise UserError("no policies were pushed to this database yet: `rookery policy push`")
    if found is None:
        raise UserError(f"there is no version {number}: see `rookery policy versions`")
    return found


def described(version: PolicyVersion) -> str:
    """`version 8 (2026-11-22 08:01 UTC, by anna: more kinds)`."""
    at = datetime.fromtimestamp(version.at, UTC)
    said = f": {version.message}" if version.message else ""
    return printable(f"version {version.number} ({at:%Y-%m-%d %H:%M} UTC, by {version.by}{said})")
