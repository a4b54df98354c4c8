"""A store of each kind that needs no server, and a relay on it."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest

from tests.harness.relay_in_process import Home, policy_of, store_of

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable
    from pathlib import Path

    from relay.storage import Store


@pytest.fixture(params=["reference", "sqlite"])
async def store(request: pytest.FixtureRequest) -> AsyncIterator[Store]:
    async with store_of(request.param) as store:
        yield store


@pytest.fixture
async def home(store: Store) -> AsyncIterator[Home]:
    """Preset `open`: anyone writes."""
    async with Home(store, policy_of("open")) as home:
        yield home


@pytest.fixture(autouse=True)
def _on_no_container(monkeypatch: pytest.MonkeyPatch) -> None:
    """The tests may run in one, where the owners of folders tell less."""
    monkeypatch.setattr("relay.files.CONTAINER_FILES", ())
    monkeypatch.setattr("relay.hook._CONTAINER_FILES", ())


@pytest.fixture
def give_away(monkeypatch: pytest.MonkeyPatch) -> Callable[[Path], None]:
    """As if another user had made the file."""

    def give(path: Path) -> None:
        if os.geteuid() == 0:
            os.chown(path, 4711, -1, follow_symlinks=False)
        else:
            monkeypatch.setattr(os, "geteuid", lambda: path.lstat().st_uid + 1)

    return give
