"""Rows for the pages of the console: bounded by the time that it takes to parse them."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest

from relay.access.visibility import ANONYMOUS
from relay.errors import Prefix, Refused
from relay.nostr.event import parsing_weight
from relay.observe import Metrics
from relay.read.query import QueryRunner
from relay.read.stored import StoredRows
from tests.cast import alice, bob
from tests.contract.writing import asked
from tests.harness.controlled_store import ControlledStore
from tests.harness.reference_store import ReferenceStore
from tests.harness.relay_in_process import Home, policy_of

if TYPE_CHECKING:
    from collections.abc import Iterator

    from relay.storage import Page, PageQuery


class Limits:
    max_limit = default_limit = 1000


@pytest.fixture
async def home() -> Home:
    return Home(ReferenceStore(), policy_of("open"))


def rows_of(home: Home) -> StoredRows:
    return StoredRows(
        QueryRunner(
            home.store, home.state, home.live, Limits(), clock=lambda: home.now, metrics=Metrics()
        )
    )


@pytest.fixture
async def notes(home: Home) -> list[bytes]:
    """Newest first, with 1,000 tags each."""
    async with home:
        tags = [["t", f"{number}"] for number in range(1000)]
        made = [home.made(alice, 1, *tags, content=f"{number}") for number in range(5)]
        await home.take(*made)
    return [each.raw for each in sorted(made, key=lambda each: (-each.created_at, each.id))]


def weights(notes: list[bytes]) -> Iterator[int]:
    return map(parsing_weight, notes)


async def test_rows_end_with_the_one_that_reaches_the_weight(
    home: Home, notes: list[bytes]
) -> None:
    rows = rows_of(home)
    first, second, *_ = weights(notes)
    for most, number in ((1, 1), (first, 1), (first + 1, 2), (first + second, 2), (1 << 30, 5)):
        found = await rows.of(ANONYMOUS, (asked(kinds=[1]),), most, None)
        assert list(found) == notes[:number]


async def test_the_store_is_told_whose_read_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each was taken for a read of another client, so its cost was never noted."""
    store, addresses = ReferenceStore(), []
    page_now = store.page_now

    def noted(query: PageQuery) -> Page | None:
        addresses.append(query.address)
        return page_now(query)

    async with Home(store, policy_of("open")) as home:
        monkeypatch.setattr(store, "page_now", noted)
        await rows_of(home).of(ANONYMOUS, (asked(kinds=[1]),), 1 << 20, "192.0.2.1")
    assert set(addresses) == {"192.0.2.1"}


async def test_events_that_are_stored_meanwhile_do_not_matter() -> None:
    """One of anybody, and a page of several filters, of many rows or of a long read was refused."""
    store = ControlledStore(page_size=2)
    async with Home(store, policy_of("open")) as home:
        made = [home.made(alice, 1, content=f"{number}") for number in range(5)]
        await home.take(*made)

        async def meanwhile() -> None:
            await home.take(home.made(bob, 1))

        store.before_page = meanwhile
        for filters in ((asked(kinds=[1]),), (asked(kinds=[1]), asked(kinds=[7]))):
            found = await rows_of(home).of(ANONYMOUS, filters, 1 << 30, None)
            assert {each.raw for each in made} <= set(found)


async def test_others_go_on_while_rows_of_many_filters_are_merged(
    home: Home, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A page of ten filters took the loop for 0.1 s."""
    work_s = turns = 0.0

    def worked() -> float:
        nonlocal work_s
        work_s += 0.001
        return work_s

    def next_turn() -> None:
        nonlocal turns
        turns += 1
        asyncio.get_running_loop().call_soon(next_turn)

    async with home:
        await home.take(*(home.made(alice, 1, content=f"{number}") for number in range(30)))
        monkeypatch.setattr("relay.read.pace.thread_time", worked)
        asyncio.get_running_loop().call_soon(next_turn)
        found = await rows_of(home).of(
            ANONYMOUS, tuple(asked(kinds=[1]) for _ in range(10)), 1 << 30, None
        )
    assert len(found) == 30
    assert turns >= 30


@pytest.mark.usefixtures("notes")
async def test_what_would_be_closed_is_refused(home: Home) -> None:
    with pytest.raises(Refused) as refusal:
        await rows_of(home).of(ANONYMOUS, (asked(kinds=[4]),), 1 << 20, None)
    assert refusal.value.prefix is Prefix.AUTH_REQUIRED


def test_a_tag_weighs_more_than_its_bytes() -> None:
    many = alice.sign(1, [["t"]] * 1000 + [[]] * 1000, "", 1).raw
    text = alice.sign(1, [], '[["t"]]' * 1000, 1).raw
    assert parsing_weight(many) > 10 * len(many)
    assert parsing_weight(text) < 2 * len(text)
