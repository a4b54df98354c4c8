"""Memory that clients share: one address has a quarter, known keys keep a quarter."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

import pytest
from hypothesis import given
from hypothesis import strategies as st

from relay.access.shares import HeldSets, Shares

MOST = 80


@dataclass(frozen=True)
class Client:
    counted_as: str | None = None
    is_known: bool = False


@dataclass(frozen=True)
class Rights:
    is_known: bool = False
    is_owner: bool = False


ONE, OTHER, THIRD = Client("10.0.0.1"), Client("10.0.0.2"), Client("10.0.0.3")
KNOWN = Client("10.0.0.1", is_known=True)


def room(shares: Shares) -> list[bool]:
    return [shares.has_room_for(each, MOST) for each in (ONE, OTHER, THIRD, KNOWN)]


def test_one_address_has_a_quarter_and_all_unknown_ones_three() -> None:
    shares = Shares()
    assert room(shares) == [True] * 4
    shares.add(ONE.counted_as, 20)
    assert room(shares) == [False, True, True, True]
    shares.add(OTHER.counted_as, 20)
    shares.add(THIRD.counted_as, 19)
    assert room(shares) == [False, False, True, True]
    shares.add(THIRD.counted_as, 1)
    assert room(shares) == [False, False, False, True]
    shares.add(KNOWN.counted_as, 20)
    assert room(shares) == [False] * 4


def test_two_addresses_of_a_member_leave_room_to_other_members() -> None:
    shares = Shares()
    mine, too = (Client(f"192.0.2.{number}", is_known=True) for number in (1, 2))
    while shares.has_room_for(mine, MOST):
        shares.add(mine.counted_as, 1)
    while shares.has_room_for(too, MOST):
        shares.add(too.counted_as, 1)
    assert not shares.has_room_for(mine, MOST)
    assert shares.has_room_for(Client("192.0.2.3", is_known=True), MOST)
    assert shares.has_room_for(Client(None, is_known=True), MOST)


def test_what_is_gone_counts_no_more() -> None:
    shares = Shares()
    shares.add(None, 80)
    shares.add(None, -80)
    assert room(shares) == [True] * 4


def test_of_places_too_who_has_little_has_some_while_a_few_addresses_have_all() -> None:
    shares = Shares()
    for number in range(4):
        taken = shares.room_for(Rights(is_known=True), f"{number}", MOST)
        shares.add(f"{number}", max(taken, 0))
    assert shares.used == MOST
    known, unknown = Rights(is_known=True), Rights()
    assert [shares.room_for(each, "late", MOST, 2) for each in (known, unknown)] == [2, 2]
    assert shares.room_for(known, "0", MOST, 2) <= 0
    shares.add("others", MOST // 2)
    assert [shares.room_for(each, "late", MOST, 2) for each in (known, unknown)] == [2, 0]
    shares.add("others", MOST // 2)
    assert shares.room_for(known, "late", MOST, 2) == 0
    owners = Rights(is_known=True, is_owner=True)
    assert shares.room_for(owners, "late", MOST, 2) == MOST // 4


@pytest.mark.parametrize("network", ["2001:db8:7:{}::/64", "192.0.2.{}"])
@pytest.mark.parametrize("is_known", [True, False])
def test_one_network_with_many_addresses_leaves_what_is_ordinary_to_others(
    network: str, *, is_known: bool
) -> None:
    """One known key at 261 addresses of an IPv6 /48 had all that is for others."""
    shares, most = Shares(), 3200
    rights = Rights(is_known=is_known)
    for number in range(250):
        address = network.format(number)
        while shares.room_for(rights, address, most, 20) > 0:
            shares.add(address, 5)
    for late in ("198.51.100.1", "2001:db8:8::/64"):
        assert shares.room_for(rights, late, most, 20) == 20
    for held in [*shares._of.values()]:
        for each, size in [*held.items()]:
            shares.add(each, -size)
    assert (shares.used, shares._of, shares._of_network) == (0, {}, {})


@pytest.mark.parametrize("number", [1, 3, 9])
def test_a_few_addresses_with_much_leave_what_is_ordinary_to_others_of_their_network(
    number: int,
) -> None:
    """An office may be one network."""
    shares, rights = Shares(), Rights(is_known=True)
    for each in range(number):
        shares.add(f"192.0.2.{each}", 3200 // number)
    assert shares.room_for(rights, "192.0.2.99", 3200, 10) == 10


def test_known_keys_in_sixteen_networks_leave_some_to_unknown_ones() -> None:
    """They kept all memory for waiting events, and each write of an unknown key was refused."""
    shares, most, ordinary, known = Shares(), 256 << 20, 256 << 10, Rights(is_known=True)
    for part in (1 << 20, 99_000, 4_096):
        for network in range(16):
            for host in range(254):
                address = f"10.0.{network}.{host}"
                while shares.room_for(known, address, most, ordinary) >= part:
                    shares.add(address, part)
    assert shares.room_for(Rights(), "10.0.99.1", most, ordinary) == ordinary
    assert shares.room_for(known, "10.0.99.1", most, ordinary) == ordinary


def sets_of(**held: int) -> HeldSets[str]:
    """By name, `address_set`; used in this order."""
    sets = HeldSets[str]()
    for name, size in held.items():
        sets.add(name, name.split("_")[0], size, is_known=True)
    return sets


def closed(sets: HeldSets[str], size: int, short: int, *, own: int = 0) -> list[str] | None:
    return sets.to_close(own, size, short, is_known=True)


def test_the_address_that_holds_most_gives_up_the_set_it_used_longest_ago() -> None:
    sets = sets_of(a_1=4, a_2=4, b_1=4)
    assert closed(sets, 4, 4) == ["a_1"]
    assert closed(sets, 4, 5) is None, "then each holds as much"
    sets.begin_use("a_1")
    assert closed(sets, 4, 4) == ["a_2"]
    assert closed(sets, 2, 8) == ["a_2", "b_1"]
    sets.end_use("a_1")
    assert closed(sets, 4, 4) == ["a_2"]
    sets.remove("a_2")
    sets.remove("a_2")
    assert closed(sets, 4, 1) is None


def test_nobody_gives_up_a_set_for_who_would_hold_about_as_much() -> None:
    sets = sets_of(a_1=5, a_2=4)
    assert closed(sets, 6, 1) == ["a_1"]
    assert closed(sets, 7, 1) is None
    assert closed(sets, 3, 1, own=4) is None
    assert sets.most_for(0, is_known=True) == 6
    assert sets.most_for(4, is_known=True) == 2
    assert closed(sets_of(a_1=1), 1, 1) is None


def test_as_many_addresses_give_up_sets_as_are_needed() -> None:
    sets = sets_of(a_1=3, a_2=3, a_3=3, b_1=3, b_2=3, c_1=3)
    assert closed(sets, 4, 7) == ["a_1", "a_2", "b_1"]
    assert closed(sets, 4, 10) is None


def test_a_set_far_below_the_others_of_its_address_is_not_closed() -> None:
    """Else thousands of small ones would be closed for a large one."""
    sets = sets_of(a_1=1, a_2=1, a_3=1, a_4=30, a_5=0, a_6=20)
    assert closed(sets, 10, 30) == ["a_4"]
    assert closed(sets, 10, 31) == ["a_4", "a_6"]
    assert closed(sets, 10, 52) is None


def test_sets_of_unknown_keys_are_closed_first_and_for_known_ones_alone_others() -> None:
    sets = sets_of(a_1=8)
    sets.add("u_1", "u", 4, is_known=False)
    sets.add("u_2", "u", 2, is_known=False)
    assert sets.to_close(0, 2, 1, is_known=True) == ["u_1"]
    assert sets.to_close(0, 2, 6, is_known=True) == ["u_1", "a_1"]
    assert sets.to_close(0, 5, 1, is_known=True) == ["a_1"]
    assert sets.to_close(0, 2, 4, is_known=False) == ["u_1"]
    assert sets.to_close(0, 2, 5, is_known=False) is None
    assert [sets.most_for(0, is_known=known) for known in (True, False)] == [5, 4]
    assert HeldSets[str]().most_for(0, is_known=True) == 0


@given(st.lists(st.tuples(st.sampled_from("abcd"), st.integers(1, 12)), max_size=60))
def test_who_was_closed_cannot_close_in_return(asked: list[tuple[str, int]]) -> None:
    """With each set that is closed, what the addresses hold becomes more even."""
    most = 30
    sets, holds, kept = HeldSets[int](), Counter[str](), dict[int, tuple[str, int]]()
    for number, (address, size) in enumerate(asked):
        short = holds.total() + size - most
        before = sorted(holds.values(), reverse=True)
        victims = sets.to_close(holds[address], size, short, is_known=True) if short > 0 else []
        if victims is None:
            continue
        for each in victims:
            of, gone = kept.pop(each)
            assert of != address
            sets.remove(each)
            holds[of] -= gone
        sets.add(number, address, size, is_known=True)
        kept[number] = address, size
        holds[address] += size
        assert holds.total() <= most
        if victims:
            assert sorted(holds.values(), reverse=True) < before
