"""relay/memory/snowclaw/history.py: a ring buffer that is resized and filled."""

from __future__ import annotations

from hashlib import sha256
from itertools import pairwise

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from relay.memory.snowclaw.history import HistoryMessage, RingBuffer, missing_from, oldest_first
from tests.cast import alice, bob
from tests.contract.writing import unsigned


def ring_of(capacity: int, *items: int) -> RingBuffer[int]:
    ring = RingBuffer[int](capacity)
    for item in items:
        ring.push(item)
    return ring


@pytest.mark.proves("S-34")
def test_the_oldest_goes_when_it_is_full() -> None:
    ring = ring_of(3, 1, 2, 3, 4)
    assert (list(ring), len(ring), ring.capacity) == ([2, 3, 4], 3, 3)
    assert list(ring_of(0, 1)) == []


@pytest.mark.proves("S-18")
def test_shrinking_keeps_the_newest_and_growing_keeps_all() -> None:
    ring = ring_of(3, 1, 2, 3)
    ring.resize(2)
    assert list(ring) == [2, 3]
    ring.resize(4)
    assert list(ring) == [2, 3]
    for item in (4, 5, 6):
        ring.push(item)
    assert list(ring) == [3, 4, 5, 6]
    ring.resize(4)
    assert list(ring) == [3, 4, 5, 6]


@pytest.mark.proves("S-34")
def test_what_came_before_goes_in_front_as_far_as_there_is_room() -> None:
    ring = ring_of(5, 8, 9)
    ring.fill([1, 2, 3, 4])
    assert list(ring) == [2, 3, 4, 8, 9]
    ring.fill([0])
    assert list(ring) == [2, 3, 4, 8, 9]
    empty = ring_of(5)
    empty.fill([1, 2])
    empty.fill([])
    assert list(empty) == [1, 2]


@given(
    capacity=st.integers(0, 6),
    pushed=st.lists(st.integers(), max_size=9),
    older=st.lists(st.integers(), max_size=9),
    then=st.integers(0, 6),
)
def test_a_ring_is_the_end_of_everything(
    capacity: int, pushed: list[int], older: list[int], then: int
) -> None:
    ring = ring_of(capacity, *pushed)
    held = pushed[len(pushed) - min(capacity, len(pushed)) :]
    assert list(ring) == held
    ring.fill(older)
    held = [*older, *held]
    held = held[len(held) - min(capacity, len(held)) :]
    assert list(ring) == held
    ring.resize(then)
    assert list(ring) == held[len(held) - min(then, len(held)) :]


def test_only_messages_that_are_not_there_are_missing_oldest_first() -> None:
    def message(at: int) -> HistoryMessage:
        return HistoryMessage("k0", "npub1", "hi", at, f"{at:064x}")

    ring = RingBuffer[HistoryMessage](5)
    ring.push(message(7))
    found = [message(9), message(7), message(3), message(9), message(5)]
    assert [m.timestamp for m in missing_from(ring, found)] == [3, 5, 9]


def test_of_one_second_an_answer_comes_after_what_it_answers() -> None:
    first = alice.sign(9, [["h", "tea"]], "first", 5)
    chain, before = [first], first
    for number in range(6):
        before = bob.sign(9, [["h", "tea"], ["q", before.id]], f"answer {number}", 5)
        chain.append(before)
    late = alice.sign(9, [["h", "tea"], ["q", "0" * 64]], "to what is not here", 5)
    older = alice.sign(9, [["h", "tea"], ["e", chain[-1].id]], "an answer dated before", 4)
    for events in ([*chain, late, older], [late, older, *reversed(chain)]):
        ordered = oldest_first(events)
        assert sorted(ordered, key=id) == sorted(events, key=id)
        assert ordered[0] == older
        assert [event for event in ordered if event in chain] == chain


def test_of_one_second_a_message_comes_after_its_previous_ones() -> None:
    said = [alice.sign(9, [["h", "tea"]], "0", 5)]
    for number in range(1, 8):
        previous = ["previous", *(event.id[:8] for event in said[-3:])]
        said.append(bob.sign(9, [["h", "tea"], previous], str(number), 5))
    for events in (said, said[::-1], sorted(said, key=lambda event: event.id)):
        assert [event.content for event in oldest_first(events)] == [str(n) for n in range(8)]


def test_two_messages_that_name_each_other_are_both_shown() -> None:
    first = alice.sign(9, [["h", "tea"], ["previous", "ff" * 4]], "a", 5)
    other = bob.sign(9, [["h", "tea"], ["previous", first.id[:8], "zz", ""]], "b", 5)
    itself = bob.sign(9, [["h", "tea"], ["previous"], []], "c", 5)
    assert {event.content for event in oldest_first([other, itself, first])} == {"a", "b", "c"}


@given(st.lists(st.sets(st.integers(0, 9), max_size=3), max_size=10))
def test_of_one_second_the_lowest_id_whose_earlier_ones_are_placed_is_next(
    named: list[set[int]],
) -> None:
    ids = [f"{number}" * 64 for number in range(len(named))]
    events = [
        msgspec.structs.replace(
            unsigned(alice, 9, [["previous", *[f"{each}" * 8 for each in earlier]]]), id=ids[number]
        )
        for number, earlier in enumerate(named)
    ]
    left, expected = dict(zip(ids, named, strict=True)), list[str]()
    while left:
        waiting = {int(id_[0]) for id_ in left}
        free = [id_ for id_, earlier in left.items() if not earlier & waiting - {int(id_[0])}]
        expected.append((free or [*left])[0])
        del left[expected[-1]]
    assert [event.id for event in oldest_first(reversed(events))] == expected


def test_a_long_chain_of_one_second_is_ordered_in_steps_by_its_length() -> None:
    """A relay may send any number: 20,000 took 64 s."""
    ids = [sha256(b"%d" % number).hexdigest() for number in range(50_000)]
    plain = unsigned(alice, 9)
    chain = [
        msgspec.structs.replace(plain, id=id_, tags=[["previous", before[:8]]])
        for before, id_ in pairwise(ids)
    ]
    assert [event.id for event in oldest_first(reversed(chain))] == ids[1:]
