"""A store of each kind that needs no server, and a relay on it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.harness.relay_in_process import Home, policy_of, store_of

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

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
