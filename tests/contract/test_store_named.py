"""Records that others reference: all rows of a kind and `d`, and what they reference in turn."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from typing import TYPE_CHECKING

import pytest

from relay.lifecycle.rows import MOST_NAMED, TAG_BYTES, Found, WritePlan
from relay.memory.anamnesis.references import entries_of, supersessions_of
from relay.memory.registry import MAX_REFERENCE_STEPS, RecordName
from relay.memory.systems import MEMORY_SYSTEMS
from relay.nostr import kinds
from relay.nostr.keys import SecretKey
from tests import cast
from tests.contract.writing import NOTHING_WANTED, Batch, unsigned, write

if TYPE_CHECKING:
    from relay.nostr.event import Event
    from relay.storage import Store

A, B, C, D = (letter * 64 for letter in "abcd")


def entry(hashed: str, who: SecretKey = cast.robot, at: int = 1000) -> Event:
    return unsigned(who, kinds.APP_RECORD, [["d", f"anamnesis:memory:{hashed}"]], at=at)


def superseding(old: str, new: str, who: SecretKey = cast.robot) -> Event:
    tags = [["d", f"anamnesis:superseded:{old}"], ["x", old]]
    return unsigned(who, kinds.APP_DATA, tags, f'{{"superseded_by":"{new}"}}')


async def found_by(store: Store, *named: RecordName) -> Found:
    answers: list[Found] = []

    def decide(found: Found) -> WritePlan:
        answers.append(found)
        return WritePlan()

    await store.append(
        replace(NOTHING_WANTED, named=frozenset(named), names_in=MEMORY_SYSTEMS.names_in), decide
    )
    return answers[0]


def ids(found: Found, named: RecordName) -> set[str]:
    return {row.event.id for row in found.rows_named(named)}


async def test_rows_are_found_by_their_kind_and_d_whoever_wrote_them(store: Store) -> None:
    mine, theirs = entry(A), entry(A, cast.rover)
    other = unsigned(cast.robot, kinds.APP_DATA, [["d", f"anamnesis:memory:{A}"]])
    await write(store, mine, theirs, other, entry(B))
    found = await found_by(store, entries_of(A), entries_of(C))
    assert ids(found, entries_of(A)) == {mine.id, theirs.id} == found.rows.keys()
    assert found.rows_named(entries_of(C)) == []
    assert found.rows_named(entries_of(B)) == []


async def test_a_name_is_no_longer_name_cut_at_a_nul(store: Store) -> None:
    """A session's id may be any text."""
    short, long = (RecordName(kinds.APP_DATA, f"nmem:session:{id_}") for id_ in ("a", "a\0b"))
    events = [unsigned(cast.robot, name.kind, [["d", name.d]]) for name in (short, long)]
    await write(store, *events)
    for name, event in zip((short, long), events, strict=True):
        assert ids(await found_by(store, name), name) == {event.id}


async def test_references_are_followed(store: Store) -> None:
    first, second, back = superseding(A, B), superseding(B, C), superseding(C, A)
    entries = [entry(B), entry(C)]
    await write(store, first, second, *entries, superseding(D, A), entry(D))
    found = await found_by(store, supersessions_of(A))
    assert found.rows.keys() == {first.id, second.id, *(each.id for each in entries)}
    await write(store, back)
    found = await found_by(store, supersessions_of(A))
    assert ids(found, supersessions_of(C)) == {back.id}


async def test_a_chain_is_followed_for_a_thousand_steps(store: Store) -> None:
    hashes = [f"{number:064x}" for number in range(MAX_REFERENCE_STEPS + 2)]
    await write(store, *(superseding(*pair) for pair in pairwise(hashes)))
    found = await found_by(store, supersessions_of(hashes[0]))
    assert len(found.rows) == MAX_REFERENCE_STEPS
    assert supersessions_of(hashes[-2]) not in found.named


@pytest.mark.parametrize(("tags", "text"), [(1, "x" * (500 << 10)), (5000, "a")])
async def test_what_is_read_by_name_is_bounded(store: Store, tags: int, text: str) -> None:
    """Of one name, and along a chain."""
    more = [["zz", text]] * tags
    number = 2 + MOST_NAMED // (len(text) + TAG_BYTES * tags)
    hashes = [f"{each:064x}" for each in range(number + 1)]
    for old, new in pairwise(hashes):
        content = f'{{"superseded_by":"{new}","reason":""}}'
        about = [["d", supersessions_of(old).d], ["x", old], *more]
        await write(store, unsigned(cast.robot, kinds.APP_DATA, about, content))
    for each in range(number):
        author = SecretKey((each + 1).to_bytes(32, "big"))
        about = [["d", entries_of(A).d], *more]
        await write(store, unsigned(author, kinds.APP_RECORD, about))
    for named in (supersessions_of(hashes[0]), entries_of(A)):
        found = await found_by(store, named)
        assert found.named_too_large
        assert sum(found.sizes().values()) <= MOST_NAMED
    assert not (await found_by(store, supersessions_of(hashes[3]))).named_too_large


async def test_the_next_batch_sees_added_and_deleted_rows(store: Store) -> None:
    old, mine = entry(A), entry(B)
    await write(store, old)
    batch = Batch(mine, unsigned(cast.robot, 5, [["e", old.id]], at=2000))
    batch.wanted = replace(batch.wanted, named=frozenset({entries_of(A), entries_of(B)}))
    await store.append(batch.wanted, batch.decide)
    assert batch.found is not None
    assert ids(batch.found, entries_of(A)) == set()
    assert ids(batch.found, entries_of(B)) == {mine.id}


@pytest.mark.parametrize("d", ["anamnesis:superseded:", "anamnesis:superseded:A", "nmem:pin:"])
def test_a_d_without_a_hash_references_nothing(d: str) -> None:
    assert (
        MEMORY_SYSTEMS.names_in(unsigned(cast.robot, kinds.APP_DATA, [["d", d]], "{}"))
        == frozenset()
    )
