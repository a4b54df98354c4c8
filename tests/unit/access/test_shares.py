"""Memory that clients share: one address has a quarter, known keys keep a quarter."""

from __future__ import annotations

from dataclasses import dataclass

from relay.access.shares import Shares

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


def test_what_is_ordinary_has_room_while_a_few_addresses_have_all() -> None:
    shares = Shares()
    for number in range(3):
        shares.add(f"{number}", 25)
    late = Client("late", is_known=False)
    assert not shares.has_room_for(late, 100)
    assert shares.has_room_for(late, 100, 1)
    shares.add("late", 2)
    assert not shares.has_room_for(late, 100, 1)
    shares.add("late", -1)
    shares.add("0", 124)
    assert not shares.has_room_for(late, 100, 1)


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
