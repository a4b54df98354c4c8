"""relay/nostr/nip77.py: any two sets, any frame size, hostile messages. NIP-77."""

from __future__ import annotations

import os
import sys
import tracemalloc
from array import array
from contextlib import suppress
from hashlib import sha256
from itertools import accumulate, pairwise
from operator import add
from typing import TYPE_CHECKING

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from relay.errors import Invalid
from relay.nostr import nip77
from relay.nostr.nip77 import (
    FRAME_BYTES,
    Bound,
    Initiator,
    Items,
    ItemsBuilder,
    reply_to,
    varint,
)
from tests.effort import examples

if TYPE_CHECKING:
    from collections.abc import Iterable

Pair = tuple[int, bytes]

SKIP = b"\0"
FINGERPRINT = b"\1"
ID_LIST = b"\2"
ALL = b"\0\0"  # the bound that is the end
WRONG = bytes(16)
MOST = b"\x81" + b"\xff" * 8 + b"\x7f"  # 2^64 - 1
SMALLEST_FRAME = 4096


def items(pairs: Iterable[Pair]) -> Items:
    pairs = sorted(pairs)
    return Items(array("Q", (time for time, _ in pairs)), b"".join(id_ for _, id_ in pairs))


def number(i: int) -> bytes:
    return sha256(b"negentropy %d" % i).digest()


def in_time(numbers: Iterable[int]) -> list[Pair]:
    return [(1_700_000_000 + i // 3, number(i)) for i in numbers]


def ask(*parts: bytes) -> bytes:
    return b"\x61" + b"".join(parts)


def differences(
    ours: list[Pair], relays: list[Pair], frame_bytes: int, client_frame: int | None = None
) -> tuple[set[bytes], set[bytes]]:
    """(have, need) of a whole dialogue; every reply of the relay fits its frame."""
    client = Initiator(items(ours), client_frame or frame_bytes)
    held = items(relays)
    message: bytes | None = client.first()
    for _ in range(10 + len(ours) + len(relays)):
        if message is None:
            return client.have, client.need
        reply = reply_to(message, held, frame_bytes)
        assert len(reply) <= frame_bytes
        message = client.reply(reply)
    raise AssertionError("they never agree")


# Few distinct timestamps and few distinct first bytes: many ties, and bounds deep within ids.
pairs = st.tuples(
    st.integers(0, 3) | st.integers(0, 2**64 - 2),
    st.binary(min_size=2, max_size=2).map(lambda tail: bytes(30) + tail)
    | st.binary(min_size=32, max_size=32),
)


@pytest.mark.proves("N77-06", "N77-20", "N77-29", "N77-30", "N77-31", "N77-33")
@given(st.lists(pairs, max_size=120), st.data())
@settings(max_examples=examples(150))
def test_two_sets_learn_exactly_where_they_differ(
    everything: list[Pair], data: st.DataObject
) -> None:
    by_id = {id_: time for time, id_ in everything}
    every = [(time, id_) for id_, time in by_id.items()]
    side = [data.draw(st.sampled_from(["ours", "theirs", "both", "both"])) for _ in every]
    ours = [pair for pair, where in zip(every, side, strict=True) if where != "theirs"]
    theirs = [pair for pair, where in zip(every, side, strict=True) if where != "ours"]
    have, need = differences(ours, theirs, sys.maxsize)
    assert have == {id_ for _, id_ in ours} - {id_ for _, id_ in theirs}
    assert need == {id_ for _, id_ in theirs} - {id_ for _, id_ in ours}


@given(st.sets(st.integers(0, 400), min_size=1), st.lists(st.integers(0, 150), max_size=20))
@settings(max_examples=examples(100))
def test_ids_that_come_twice_end_no_dialogue(numbers: set[int], missing: list[int]) -> None:
    """Their comparison never ended: no bound lies between two of them."""
    theirs = [(5, number(each)) for each in range(401)]
    ours = [pair for place, pair in enumerate(theirs) if place not in missing]
    twice = [theirs[each] for each in numbers]
    have, need = differences(ours, theirs + twice + twice, sys.maxsize)
    assert (have, need) == (set(), {id_ for _, id_ in theirs} - {id_ for _, id_ in ours})
    have, need = differences(theirs + twice, ours, sys.maxsize)
    assert (have, need) == ({id_ for _, id_ in theirs} - {id_ for _, id_ in ours}, set())


@pytest.mark.proves("N77-10", "N77-32")
@pytest.mark.parametrize("client_frame", [SMALLEST_FRAME, FRAME_BYTES])
@pytest.mark.parametrize(
    ("ours", "relays"),
    [
        pytest.param(range(0), range(3000), id="we hold nothing"),
        pytest.param(range(3000), range(0), id="the relay holds nothing"),
        pytest.param(range(0, 6000, 2), range(1, 6000, 2), id="nothing in common"),
        pytest.param(range(5900), range(100, 6000), id="both ends differ"),
        pytest.param(range(3000), range(3000), id="equal"),
    ],
)
def test_small_frames_only_need_more_rounds(ours: range, relays: range, client_frame: int) -> None:
    have, need = differences(in_time(ours), in_time(relays), SMALLEST_FRAME, client_frame)
    assert have == {number(i) for i in set(ours) - set(relays)}
    assert need == {number(i) for i in set(relays) - set(ours)}


@pytest.mark.proves("N77-32")
def test_a_full_frame_does_not_match_an_empty_rest() -> None:
    """The split of the last range is cut for want of room; the client's share of it is empty."""
    held = items(in_time(range(400)))
    last = Bound(1_700_000_000 + 100)
    room_for_one = ask(
        varint(last.timestamp + 1),
        b"\0",
        ID_LIST,
        b"\0",  # 300 ids of ours fill the frame
        ALL,
        FINGERPRINT,
        sha256(bytes(33)).digest()[:16],
    )
    frame = 300 * 32 + 300
    reply = reply_to(room_for_one, held, frame)
    assert reply.endswith(ALL + FINGERPRINT + held.fingerprint(300, 400))


@pytest.mark.proves("N77-32")
def test_what_was_agreed_before_a_full_frame_stays_agreed() -> None:
    held = items(in_time(range(700)))
    until = [varint(1_700_000_000 + 100 + 1) + b"\0", varint(101) + b"\0", varint(11) + b"\0"]
    message = ask(
        until[0],
        ID_LIST,
        b"\0",
        until[1],
        FINGERPRINT,
        held.fingerprint(300, 600),
        until[2],
        FINGERPRINT,
        WRONG,
        ALL,
        FINGERPRINT,
        WRONG,
    )
    listed = ask(until[0], ID_LIST, varint(300), held.ids(0, 300))
    reply = reply_to(message, held, len(listed) + 300)
    rest = ALL + FINGERPRINT + held.fingerprint(630, 700)
    assert reply == listed + until[1] + SKIP + rest


@pytest.mark.proves("N77-29")
def test_the_relay_lists_its_ids_and_ignores_those_of_the_client() -> None:
    held = items(in_time(range(5)))
    for theirs in ([], [number(3)], [number(99)] * 3):
        reply = reply_to(ask(ALL, ID_LIST, varint(len(theirs)), *theirs), held)
        assert reply == ask(ALL, ID_LIST, b"\5", held.ids(0, 5))


@pytest.mark.proves("N77-27", "N77-29")
def test_adjacent_skips_are_merged_and_the_last_is_left_out() -> None:
    held = items([(10, number(1)), (20, number(2)), (30, number(3))])
    first, rest = held.fingerprint(0, 1), held.fingerprint(1, 3)
    until_10, from_10_until_20 = varint(11) + b"\0", varint(11) + b"\0"
    until_20 = varint(21) + b"\0"
    two_skips = ask(until_10, SKIP, from_10_until_20, FINGERPRINT, first, ALL, ID_LIST, b"\0")
    assert reply_to(two_skips, held) == ask(until_20, SKIP, ALL, ID_LIST, b"\2", held.ids(1, 3))
    only_skips = ask(until_20, FINGERPRINT, first, ALL, FINGERPRINT, rest)
    assert reply_to(only_skips, held) == ask()


@pytest.mark.proves("N77-23")
def test_lower_bounds_are_inclusive_and_upper_bounds_exclusive() -> None:
    held = items([(10, number(1)), (20, number(2)), (30, number(3))])
    reply = reply_to(ask(varint(21), b"\0", b"\0", varint(11), b"\0", ID_LIST, b"\0"), held)
    assert reply == ask(varint(21), b"\0", b"\0", varint(11), b"\0", ID_LIST, b"\1", held.ids(1, 2))


@pytest.mark.proves("N77-24")
@pytest.mark.parametrize("length", [1, 2, 31, 32])
def test_missing_bytes_of_a_prefix_are_zero(length: int) -> None:
    below = b"\x4f" * 32
    at = b"\x50" * length + bytes(32 - length)
    above = b"\x50" * length + b"\1" * (32 - length) if length < 32 else b"\x51" * 32
    held = items([(7, below), (7, at), (7, above)])
    reply = reply_to(ask(varint(8), varint(length), b"\x50" * length, ID_LIST, b"\0"), held)
    assert reply.endswith(ID_LIST + b"\1" + below)


@pytest.mark.proves("N77-31")
def test_the_bound_between_neighbours_is_the_shortest() -> None:
    first, second = b"\1\2" + bytes(30), b"\1\3" + bytes(30)
    held = items([(5, first), (5, second), (6, bytes(32))])
    assert held.bound_before(1) == Bound(5, b"\1\3")
    assert held.bound_before(2) == Bound(6)


@pytest.mark.proves("N77-30")
def test_fewer_than_32_are_listed() -> None:
    held = items((i, number(i)) for i in range(31))
    assert Initiator(held).first() == ask(ALL, ID_LIST, varint(31), held.ids(0, 31))


@pytest.mark.proves("N77-30", "N77-25", "N77-33")
@pytest.mark.parametrize(
    ("count", "sizes"), [(32, [2] * 16), (33, [3] + [2] * 15), (47, [3] * 15 + [2])]
)
def test_32_and_more_are_16_buckets_the_larger_first(count: int, sizes: list[int]) -> None:
    held = items((i, number(i)) for i in range(count))
    bounds = [varint(size + 1) + b"\0" for size in sizes[:-1]] + [ALL]
    edges = pairwise(accumulate(sizes, initial=0))
    prints = [FINGERPRINT + held.fingerprint(first, last) for first, last in edges]
    assert Initiator(held).first() == ask(*map(add, bounds, prints))


@pytest.mark.proves("N77-25")
def test_after_the_end_every_bound_is_the_end() -> None:
    held = items(in_time(range(3)))
    reply = reply_to(ask(ALL, ID_LIST, b"\0", varint(5), b"\0", ID_LIST, b"\0"), held)
    assert reply == ask(ALL, ID_LIST, b"\3", held.ids(0, 3), ALL, ID_LIST, b"\0")


@pytest.mark.proves("N77-21", "N77-25")
@pytest.mark.parametrize(
    ("message", "fault"),
    [
        pytest.param(ask(b"\x80\x01"), "shortest form", id="leading zero"),
        pytest.param(ask(b"\x82" + b"\x80" * 8 + b"\0"), "64 bits", id="2^64"),
        pytest.param(ask(b"\xff" * 20), "64 bits", id="never ends"),
        pytest.param(
            ask(MOST, b"\0\0", varint(9), b"\0\0"),
            "64 bits",
            id="a sum of two",
        ),
        pytest.param(ask(ALL, ID_LIST, MOST), "truncated", id="2^64 ids"),
    ],
)
def test_numbers_have_at_most_64_bits(message: bytes, fault: str) -> None:
    with pytest.raises(Invalid, match=fault):
        reply_to(message, items([]))


@pytest.mark.proves("N77-35")
def test_the_latest_time_there_is_can_be_compared() -> None:
    latest = 2**63 - 1
    have, need = differences([(latest, number(1))], [(latest, number(2))], FRAME_BYTES)
    assert (have, need) == ({number(1)}, {number(2)})


@given(st.binary(max_size=200).map(lambda rest: b"\x61" + rest) | st.binary(max_size=40))
def test_any_bytes_get_a_reply_or_raise_invalid(message: bytes) -> None:
    held = items(in_time(range(40)))
    with suppress(Invalid):
        assert reply_to(message, held)[0] == 0x61
    with suppress(Invalid):
        Initiator(held).reply(message)


def test_a_relay_of_another_version_is_refused() -> None:
    with pytest.raises(Invalid, match="does not support version"):
        Initiator(items([])).reply(b"\x62")


@pytest.mark.proves("N77-20")
def test_ids_of_one_second_may_come_in_any_order() -> None:
    times = array("Q", [1, 2, 2, 2, 3, 4, 4])
    ids = [number(i) for i in range(7)]
    ids[5:] = sorted(ids[5:], reverse=True)
    shuffled = Items(times, b"".join(ids))
    straight = items(zip(times, ids, strict=True))
    assert shuffled.ids(0, 7) == straight.ids(0, 7)
    assert shuffled.fingerprint(0, 3) == straight.fingerprint(0, 3)


@pytest.mark.parametrize("piece", [1, 100, 256, 1000])
@pytest.mark.parametrize("is_sorted", [True, False])
def test_a_set_that_came_in_pieces_is_the_same_as_a_whole_one(
    piece: int, *, is_sorted: bool
) -> None:
    rows = sorted(in_time(range(1100)))
    if not is_sorted:
        rows = [row for at in range(0, 1100, 3) for row in reversed(rows[at : at + 3])]
    whole, builder = items(rows), ItemsBuilder()
    for at in range(0, len(rows), piece):
        builder.add([(*row, "") for row in rows[at : at + piece]])
    builder.add([])
    assert len(builder) == len(rows)
    made = builder.items()
    assert made.ids(0, len(rows)) == whole.ids(0, len(rows))
    for first, last in ((0, 1100), (0, 256), (5, 1024), (300, 301), (7, 7)):
        assert made.fingerprint(first, last) == whole.fingerprint(first, last)
    assert reply_to(ask(ALL, FINGERPRINT, WRONG), made) == reply_to(
        ask(ALL, FINGERPRINT, WRONG), whole
    )


def test_each_piece_of_a_set_is_summed_when_it_comes(monkeypatch: pytest.MonkeyPatch) -> None:
    """The event loop does other work between the pieces."""
    summed: list[int] = []

    def sum_of(words: memoryview[int]) -> int:
        summed.append(len(words) // 4)
        return sum(words)

    monkeypatch.setattr(nip77, "_sum_of", sum_of)
    builder, rows = ItemsBuilder(), sorted(in_time(range(10_000)))
    most = 0
    for at in range(0, 10_000, 1000):
        summed.clear()
        builder.add([(*row, "") for row in rows[at : at + 1000]])
        most = max(most, sum(summed))
    summed.clear()
    builder.items()
    assert (most, summed) == (1024, [])


def test_a_set_knows_the_groups_of_its_items(monkeypatch: pytest.MonkeyPatch) -> None:
    builder = ItemsBuilder()
    builder.add([(1, number(1), "den"), (2, number(2), "")])
    builder.add([(2, number(2), "tea"), (3, number(3), "caf\u00e9".encode())])
    made = builder.items()
    for group in ("den", "tea", "caf\u00e9"):
        assert made.may_be_of([group])
        assert made.may_be_of(["other", group])
    assert not made.may_be_of(["other", "DEN", "te", "caf"])
    assert not made.may_be_of([])
    assert items([(1, number(1))]).may_be_of(["other"]), "not known"
    monkeypatch.setattr(nip77, "_MAX_GROUPS", 2)
    many = ItemsBuilder()
    for at in range(4):
        many.add([(at, number(at), f"group {at}")])
    assert many.items().may_be_of(["other"])


@pytest.mark.parametrize("number_of_groups", [4096, 4097])
def test_the_groups_of_a_set_are_known_if_they_are_few(number_of_groups: int) -> None:
    """65,000 took the loop 49 ms without a pause, for each NEG-OPEN."""
    builder = ItemsBuilder()
    for start in range(0, number_of_groups, 1000):
        end = min(start + 1000, number_of_groups)
        builder.add([(at, number(at), f"group {at}") for at in range(start, end)])
    is_known = number_of_groups <= 4096
    assert builder.items().may_be_of(["other"]) is not is_known


def test_an_unsorted_set_is_an_error() -> None:
    with pytest.raises(ValueError, match="ascend"):
        Items(array("Q", [2, 1]), bytes(64))
    with pytest.raises(ValueError, match="32 bytes"):
        Items(array("Q", [1]), bytes(31))
    with pytest.raises(ValueError, match="64-bit"):
        Items(array("I", [1]), bytes(32))


@pytest.mark.proves("N77-28")
@pytest.mark.parametrize("held", [items(in_time(range(n))) for n in (1100, 1024)], ids=len)
@given(st.data())
def test_a_sum_over_blocks_is_the_sum_of_the_ids(held: Items, data: st.DataObject) -> None:
    places = st.integers(0, len(held)) | st.sampled_from([0, 256, 1024, len(held)])
    first, last = sorted((data.draw(places), data.draw(places)))
    total = sum(int.from_bytes(held.id(i), "little") for i in range(first, last)) % 2**256
    expected = sha256(total.to_bytes(32, "little") + varint(last - first)).digest()[:16]
    assert held.fingerprint(first, last) == expected


@pytest.mark.slow
@pytest.mark.proves("N77-10")
def test_a_hundred_thousand_items_take_their_bytes_and_little_more() -> None:
    times, ids = array("Q", range(100_000)), os.urandom(3_200_000)
    peaks = []
    for _ in range(3):  # what other threads of the process allocate is counted too
        tracemalloc.start()
        try:
            reply = reply_to(ask(ALL, FINGERPRINT, WRONG), Items(times, ids))
            peaks.append(tracemalloc.get_traced_memory()[1])
        finally:
            tracemalloc.stop()
    assert min(peaks) < 300_000
    assert len(reply) < 400
