"""Versions: the order of arrival does not change which one is kept."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from relay.lifecycle.deletion import delete_by_author, deletion_targets
from relay.lifecycle.rows import Found, Keep, Stored, Tie, WritePlan, version_of
from relay.lifecycle.versions import plan_for
from relay.nostr import kinds
from relay.nostr.event import event_from_raw
from tests import cast
from tests.contract.writing import lookups_for, read, unsigned
from tests.effort import examples
from tests.harness.reference_store import ReferenceStore

if TYPE_CHECKING:
    from relay.nostr.event import Event
    from relay.storage import Store

versions = st.lists(
    st.builds(
        lambda at, ts, text: unsigned(
            cast.alice, kinds.PREFERENCE, [["d", "x"], ["ts", ts]], text, at
        ),
        st.integers(0, 3),
        st.sampled_from(["0", "1", "2", "none"]),
        st.sampled_from(["a", "b", "c"]),
    ),
    min_size=1,
    max_size=5,
    unique_by=lambda event: event.id,
)
address = f"{kinds.PREFERENCE}:{cast.alice.pubkey}:x"
deletions = st.lists(
    st.integers(0, 3).map(lambda at: unsigned(cast.alice, kinds.DELETION, [["a", address]], at=at)),
    max_size=2,
)


async def arrived(
    events: list[Event], cuts: set[int], keep: Keep, tie: Tie = Tie.HIGH
) -> list[bytes]:
    """Ids kept of these versions, in this order and in batches cut there."""
    store = ReferenceStore()
    starts = sorted({0, *(cut for cut in cuts if cut < len(events))})
    for start, end in zip(starts, [*starts[1:], len(events)], strict=True):
        await _write(store, events[start:end], keep, tie)
    return [raw for raw in await read(store) if event_from_raw(raw).kind == kinds.PREFERENCE]


async def _write(store: Store, events: list[Event], keep: Keep, tie: Tie) -> None:
    def decide(found: Found) -> WritePlan:
        plan = WritePlan()
        for event in events:
            of = Keep.ALL if event.kind == kinds.DELETION else keep
            result = plan_for(event, None, of, found, plan, now=0, tie=tie)
            if isinstance(result, Stored) and event.kind == kinds.DELETION:
                delete_by_author(event, deletion_targets(event), found, plan)
        return plan

    wanted = lookups_for(
        [(event, Keep.ALL if event.kind == kinds.DELETION else keep) for event in events]
    )
    await store.append(wanted, decide)


@pytest.mark.proves("N01-41", "N01-43", "N01-45", "G-06", "S-24")
@settings(max_examples=examples(200))
@given(versions, deletions, st.data())
def test_the_latest_is_kept_in_every_order(
    versions: list[Event], deletions: list[Event], data: st.DataObject
) -> None:
    shuffled = data.draw(st.permutations([*versions, *deletions]))
    cuts = data.draw(st.sets(st.integers(1, 6)))
    until = max((event.created_at for event in deletions), default=-1)
    alive = [event for event in versions if event.created_at > until]
    best = sorted(alive, key=lambda event: (-event.created_at, event.id))[:1]
    assert asyncio.run(arrived(shuffled, cuts, Keep.LATEST)) == [event.raw for event in best]


@pytest.mark.proves("A-07", "A-09", "G-06")
@settings(max_examples=examples(200))
@given(versions, st.sampled_from(Tie), st.data())
def test_the_latest_by_ts_is_kept_in_every_order(
    versions: list[Event],
    tie: Tie,
    data: st.DataObject,
) -> None:
    shuffled = data.draw(st.permutations(versions))
    cuts = data.draw(st.sets(st.integers(1, 6)))
    newest = max(version_of(event, Keep.LATEST_TS) for event in versions)
    tied = [event for event in versions if version_of(event, Keep.LATEST_TS) == newest]
    best = sorted(tied, key=lambda event: event.id)[-1 if tie is Tie.HIGH else 0]
    left = asyncio.run(arrived(shuffled, cuts, Keep.LATEST_TS, tie=tie))
    assert left == [best.raw]


@pytest.mark.proves("A-07")
@settings(max_examples=examples(100))
@given(versions, st.sets(st.integers(1, 6)))
def test_the_first_is_kept(versions: list[Event], cuts: set[int]) -> None:
    assert asyncio.run(arrived(versions, cuts, Keep.FIRST)) == [versions[0].raw]


@pytest.mark.proves("G-06")
@settings(max_examples=examples(100))
@given(versions, st.sets(st.integers(1, 6)), st.sets(st.integers(1, 6)))
def test_splitting_into_batches_changes_nothing(
    versions: list[Event], one: set[int], other: set[int]
) -> None:
    for keep in Keep:
        assert asyncio.run(arrived(versions, one, keep)) == asyncio.run(
            arrived(versions, other, keep)
        )
