"""A relay with the whole table. It is published once for a module; each test runs a copy."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
import pytest_asyncio

from tests.leaks.relay import LeakRelay, leak_relay

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def published(tmp_path_factory: pytest.TempPathFactory) -> LeakRelay:
    """Has stopped."""
    async with leak_relay(tmp_path_factory.mktemp("published")) as relay:
        await relay.publish(relay.write())
    return relay


@pytest.fixture
async def relay(tmp_path: Path, published: LeakRelay) -> AsyncIterator[LeakRelay]:
    """All is published; nothing has expired yet."""
    async with leak_relay(tmp_path / "data", copy_of=published) as relay:
        yield relay
