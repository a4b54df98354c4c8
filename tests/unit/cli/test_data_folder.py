"""relay/cli/data_folder.py: which events of a folder a command gets."""

from __future__ import annotations

from contextlib import asynccontextmanager
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

from relay.cli import data_folder
from relay.cli.data_folder import LocalFolder
from relay.errors import StoreFault
from relay.nostr.event import event_from_raw
from relay.nostr.filters import Filter
from relay.server.control import Rows
from tests.cast import alice, bob
from tests.harness.relay_in_process import Home, policy_of, store_of

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterable, Sequence

    from relay.nostr.event import Event


@asynccontextmanager
async def folder_of(store: str) -> AsyncIterator[tuple[Home, LocalFolder]]:
    async with store_of(store) as opened, Home(opened, policy_of("open")) as home:
        services: Any = SimpleNamespace(store=opened, clock=lambda: home.now)
        yield home, LocalFolder(services)


def parsed(pages: Iterable[Sequence[bytes]]) -> list[Event]:
    return [event_from_raw(raw) for page in pages for raw in page]


@pytest.mark.parametrize("rows", [Rows.ALL, Rows.WITH_OLD_VERSIONS])
@pytest.mark.parametrize("store", ["reference", "sqlite"])
async def test_a_record_that_is_replaced_before_it_is_read_is_in_the_export(
    monkeypatch: pytest.MonkeyPatch, store: str, rows: Rows
) -> None:
    monkeypatch.setattr(data_folder, "_EXPORT_PAGE", 2)
    async with folder_of(store) as (home, folder):
        before = [await home.do(alice, 1) for _ in range(4)]
        await home.do(bob, 0, content='{"name":"bob"}')
        pages = folder.events(Filter(), rows)
        found = parsed([await anext(pages)])
        home.now += 1
        newer = await home.do(bob, 0, content='{"name":"Bob"}')
        found += parsed([await anext(pages)])
        home.now += 1
        newest = await home.do(bob, 0, content='{"name":"Robert"}')
        found += parsed([page async for page in pages])
        assert newer != newest
        assert found == [*before, newest]


async def test_an_export_that_is_slower_than_the_writers_ends_and_says_so(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(data_folder, "_EXPORT_PAGE", 1)
    monkeypatch.setattr(data_folder, "_MOST_LATER", 10)
    async with folder_of("reference") as (home, folder):
        await home.do(alice, 1)
        read = 0

        async def export() -> None:
            nonlocal read
            async for page in folder.events(Filter()):
                read += len(page)
                await home.do(alice, 1)

        with pytest.raises(StoreFault, match="faster than they are read"):
            await export()
        assert read == 12
