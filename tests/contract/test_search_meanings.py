"""Searches by meaning: what is compared, who reads it, and what is removed with its text."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from typing import TYPE_CHECKING, Any

import pytest

from relay.access.visibility import ANONYMOUS
from relay.groups.group import Groups
from relay.storage.sqlite.store import SqliteStore
from tests import cast
from tests.contract.crowd import seen_by
from tests.contract.test_store_search import (
    DEN,
    IN_DEN,
    a_den_with,
    content_of,
    found,
    indexed,
    says,
)
from tests.contract.writing import TERMS, unsigned, write

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Sequence
    from pathlib import Path

np = pytest.importorskip("numpy")
SUBJECTS = ("tea coffee drink", "kettle pot stove", "boat sea harbour", "moon")


class Thesaurus:
    """Texts mean the subjects of their words; 64 numbers each."""

    def embed(self, texts: Sequence[str]) -> Any:
        rows = np.full((len(texts), 64), -0.01, "f4")
        for row, text in zip(rows, texts, strict=True):
            for word in text.casefold().split():
                for number, subject in enumerate(SUBJECTS):
                    row[16 * number : 16 * (number + 1)] += word in subject.split()
        return rows / np.linalg.norm(rows, axis=1, keepdims=True)


async def opened(folder: Path) -> SqliteStore:
    return await SqliteStore.open(folder / "rookery.db", TERMS, embedder=Thesaurus())


async def compared(store: SqliteStore) -> None:
    await indexed(store)
    while await store.embed_texts(3):
        pass


@pytest.fixture
async def store(tmp_path: Path) -> AsyncIterator[SqliteStore]:
    store = await opened(tmp_path)
    yield store
    await store.close()


async def test_a_text_without_the_words_is_found_by_what_it_means(store: SqliteStore) -> None:
    await says(store, "coffee at noon", "the boat left", "moon", "tea now")
    assert await found(store, "match:any tea") == ["tea now"]
    await compared(store)
    assert (await found(store, "match:any tea"))[:2] == ["tea now", "coffee at noon"]
    assert await found(store, "tea") == ["tea now"], "all words: only what has them"
    assert await found(store, "match:any tea -moon") == ["tea now"]
    assert await found(store, "match:any zebra") == [], "nothing is near enough"


async def test_the_rest_of_the_filter_holds_for_it(store: SqliteStore) -> None:
    await write(
        store,
        unsigned(cast.alice, 1, [], "coffee one", 5),
        unsigned(cast.bob, 1, [["expiration", "9"]], "coffee two", 6),
        unsigned(cast.bob, 7, [["t", "x"]], "coffee three", 7),
    )
    await compared(store)
    assert set(await found(store, "match:any tea", kinds=[1])) == {"coffee one", "coffee two"}
    assert await found(store, "match:any tea", kinds=[1], now=9) == ["coffee one"]
    assert await found(store, "match:any tea", tag_t=["x"]) == ["coffee three"]
    assert await found(store, "match:any tea", since=6, kinds=[1]) == ["coffee two"]
    assert await found(store, "match:any tea", until=5) == ["coffee one"]
    assert await found(store, "match:any tea", upto=1) == ["coffee one"]
    assert len(await found(store, "match:any tea", limit=2)) == 2


async def test_hidden_rows_change_no_rank_by_meaning(store: SqliteStore) -> None:
    """However many of them are nearer."""
    await says(store, "coffee and a boat", "the boat", "moon")
    outside = seen_by(ANONYMOUS, IN_DEN, groups=Groups().with_group(DEN))
    await compared(store)
    before = await found(store, "match:any drink", outside)
    assert before[0] == "coffee and a boat"
    await a_den_with(store, *(f"tea {number}" for number in range(1200)))
    await compared(store)
    assert await found(store, "match:any drink", outside) == before
    assert (await found(store, "match:any drink"))[0].startswith("tea")


async def test_names_are_no_part_of_the_meaning(store: SqliteStore) -> None:
    await says(store, "coffee", "moon")
    await compared(store)
    assert (await found(store, "match:any what did Moon drink"))[0] == "moon"  # has the word
    assert (await found(store, "match:any where is a drink by Kettle"))[0] == "coffee"


def stored(folder: Path) -> int:
    with closing(sqlite3.connect(folder / "search.db")) as db:
        return int(db.execute("SELECT count(*) FROM vectors").fetchone()[0])


async def test_a_vector_goes_with_its_row_and_outlives_a_restart(tmp_path: Path) -> None:
    store = await opened(tmp_path)
    tea = unsigned(cast.alice, content="tea", at=1)
    await write(store, tea, unsigned(cast.alice, content="coffee", at=2))
    await compared(store)
    assert (store.vectors, stored(tmp_path)) == (2, 2)
    await write(store, unsigned(cast.alice, 5, [["e", tea.id]], "", 3))
    assert await found(store, "match:any drink") == ["coffee"]
    while await store.tidy_index():
        pass
    assert (store.vectors, stored(tmp_path)) == (1, 1)
    await store.close()
    store = await opened(tmp_path)
    assert store.vectors == 1
    assert await found(store, "match:any drink") == ["coffee"]
    await store.close()


async def test_rows_that_come_after_others_were_ahead_get_vectors(store: SqliteStore) -> None:
    await write(
        store, unsigned(cast.alice, content="coffee"), unsigned(cast.alice, 78, content="x")
    )
    await store.index(content_of, "content", 9, {78})
    await store.embed_texts(3)
    await compared(store)
    assert await found(store, "match:any tea") == ["coffee"]


async def test_vectors_are_made_anew_with_the_index(store: SqliteStore) -> None:
    await says(store, "tea", "coffee")
    await compared(store)
    while await store.index(content_of, "other rules", 7) < await store.head():
        pass
    assert store.vectors == 0
    while await store.embed_texts(3):
        pass
    assert store.vectors == 2


async def test_many_texts_are_looked_at_in_parts(store: SqliteStore) -> None:
    """More than the first look, with deletions in between."""
    texts = [f"boat {n}" for n in range(1500)]
    await says(store, *texts, "coffee")
    await compared(store)
    everything = await found(store, "match:any coffee", limit=2000)
    assert everything[0] == "coffee"
    assert len(everything) == 1501
