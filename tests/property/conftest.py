"""The stores that the laws about stores hold for."""

from __future__ import annotations

from contextlib import asynccontextmanager
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import pytest
from hypothesis import settings

from relay.storage.postgres.store import PostgresStore
from tests.contract.writing import TERMS
from tests.harness.postgres import postgres
from tests.property import world

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator

    from relay.storage import Store
    from tests.harness.postgres import PostgresServer

__all__ = ["postgres"]

_FEWER: Final = 5
"""A store of a server takes so much longer to open that it gets a fifth of the examples."""


@pytest.fixture(
    scope="session", params=["sqlite", pytest.param("postgres", marks=pytest.mark.process)]
)
def new_store(request: pytest.FixtureRequest) -> world.NewStore:
    """Opens an empty store."""
    if request.param == "sqlite":
        return world.sqlite_store
    return partial(_postgres_store, request.getfixturevalue("postgres"))


@asynccontextmanager
async def _postgres_store(server: PostgresServer) -> AsyncIterator[Store]:
    url = await server.new_schema()
    store = await PostgresStore.open(url, TERMS)
    try:
        yield store
    finally:
        await store.close()
        await server.empty(url)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Function) -> Iterator[None]:
    test: Any = getattr(item, "obj", None)
    params = item.callspec.params if hasattr(item, "callspec") else {}
    if params.get("new_store") != "postgres":
        return (yield)
    # Hypothesis has no other way to say it of one parameter of a test.
    kept = test._hypothesis_internal_use_settings
    fewer = settings(kept, max_examples=max(4, kept.max_examples // _FEWER))
    test._hypothesis_internal_use_settings = fewer
    try:
        return (yield)
    finally:
        test._hypothesis_internal_use_settings = kept
