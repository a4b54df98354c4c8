"""relay/cli/data_folder.py: which events of a folder a command gets."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

from relay.cli import data_folder
from relay.cli.data_folder import LocalFolder
from relay.cli.importing import groups_here
from relay.errors import StoreFault
from relay.nostr.event import event_from_raw
from relay.nostr.filters import Filter
from relay.read.linked_rows import LinkedRows
from relay.server.control import Rows
from tests.cast import alice, bob, owner
from tests.harness.relay_in_process import Home, policy_of, store_of

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterable, Sequence

    from relay.lifecycle.rows import Stored
    from relay.nostr.event import Event


@asynccontextmanager
async def folder_of(store: str) -> AsyncIterator[tuple[Home, LocalFolder]]:
    async with store_of(store) as opened, Home(opened, policy_of("open")) as home:
        services: Any = SimpleNamespace(
            store=opened,
            state=home.state,
            linked_rows=LinkedRows(opened, home.state, lambda: home.now),
            clock=lambda: home.now,
        )
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


@pytest.mark.parametrize("store", ["reference", "sqlite"])
async def test_rows_of_a_commit_are_no_public_ones_before_its_groups_are_known(
    monkeypatch: pytest.MonkeyPatch, store: str
) -> None:
    """A message that came with the 9002 of its group was taken for one of a public group."""
    async with folder_of(store) as (home, folder):
        await home.do(alice, 9007, h="den")
        before, head = home.groups, await home.store.head()
        await home.take(home.made(alice, 9002, ["private"], h="den"), home.made(alice, 9, h="den"))
        after, since = home.groups, home.store.since

        def adopted() -> None:
            home.state.adopt(after)
            home.state.end_commit()

        async def meanwhile(seq: int, limit: int) -> Sequence[Stored]:
            rows = await since(seq, limit)
            asyncio.get_running_loop().call_soon(adopted)
            return rows

        home.state.adopt(before)
        home.state.begin_commit(head)
        monkeypatch.setattr(home.store, "since", meanwhile)
        asked = Filter(kinds=frozenset({9}))
        assert parsed([page async for page in folder.events(asked, Rows.PUBLIC)]) == []


@pytest.mark.parametrize("store", ["reference", "sqlite"])
async def test_what_an_index_finds_is_found_without_reading_all_rows(
    monkeypatch: pytest.MonkeyPatch, store: str
) -> None:
    async with folder_of(store) as (home, folder):
        note = await home.do(alice, 1)
        made = {f"g{n}": await home.do(alice, 9007, h=f"g{n}") for n in range(20)}
        older = await home.do(alice, 1, at=home.now - 50)

        async def since(seq: int, limit: int) -> Sequence[Stored]:
            raise AssertionError("rows are read one after the other")

        monkeypatch.setattr(home.store, "since", since)
        found = await groups_here(folder, [*made, "none"])
        assert found == {group: {event.id} for group, event in made.items()}
        by_id = Filter(ids=frozenset({older.id, note.id, alice.pubkey}))
        assert parsed([page async for page in folder.events(by_id)]) == [note, older]


@pytest.mark.parametrize("size", [1, 400_000])
@pytest.mark.parametrize("store", ["reference", "sqlite"])
async def test_matches_of_an_index_that_are_many_or_large_are_all_given_in_their_order(
    monkeypatch: pytest.MonkeyPatch, store: str, size: int
) -> None:
    if size == 1:
        monkeypatch.setattr(data_folder, "_EXPORT_PAGE", 2)
    async with folder_of(store) as (home, folder):
        await home.do(bob, 1)
        made = [
            await home.do(alice, 1, ["t", "tea"], at=home.now - n, content="x" * size)
            for n in range(4)
        ]
        filter_ = Filter(kinds=frozenset({1}), tags=(("t", frozenset({"tea"})),))
        assert parsed([page async for page in folder.events(filter_)]) == made
        by_ids = Filter(ids=frozenset(event.id for event in made))
        assert parsed([page async for page in folder.events(by_ids)]) == made


@pytest.mark.parametrize("store", ["reference", "sqlite"])
async def test_large_matches_of_an_index_are_found_without_reading_all_rows(
    monkeypatch: pytest.MonkeyPatch, store: str
) -> None:
    """16 groups whose 9007 have 34 kB made an import read the whole store again and again."""
    async with folder_of(store) as (home, folder):
        await home.do(alice, 1)
        made: dict[str, Event] = {}
        for n in range(40):
            home.now += 2
            made[f"g{n}"] = await home.do(owner, 9007, h=f"g{n}", content="x" * 34_000)
        follows = await home.do(alice, 3, *[["p", f"{n:064x}"] for n in range(4500)])

        async def since(seq: int, limit: int) -> Sequence[Stored]:
            raise AssertionError("rows are read one after the other")

        monkeypatch.setattr(home.store, "since", since)
        found = await groups_here(folder, made)
        assert found == {group: {event.id} for group, event in made.items()}
        by_id = Filter(ids=frozenset({follows.id}))
        assert parsed([page async for page in folder.events(by_id)]) == [follows]


@pytest.mark.parametrize("store", ["reference", "sqlite"])
async def test_what_replaces_a_match_that_an_index_has_not_given_yet_is_found(
    monkeypatch: pytest.MonkeyPatch, store: str
) -> None:
    async with folder_of(store) as (home, folder):
        large = "x" * 300_000
        lists = [
            await home.do(alice, 30000, ["d", f"{n}"], content=large, at=home.now - 9 + n)
            for n in range(4)
        ]
        matching = home.store.matching
        newer: list[Event] = []

        async def replaced_meanwhile(*args: Any, **more: Any) -> Sequence[Stored]:
            page = await matching(*args, **more)
            if not newer:
                newer.append(await home.do(alice, 30000, ["d", "0"], content=large))
            return page

        monkeypatch.setattr(home.store, "matching", replaced_meanwhile)
        filter_ = Filter(kinds=frozenset({30000}), tags=(("d", frozenset("0123")),))
        given = parsed([page async for page in folder.events(filter_)])
        assert given[-4:] == [*lists[1:], *newer]
