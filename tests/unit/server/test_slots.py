"""relay/server/slots.py: who stays when more come than there is room for."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from relay.server.slots import _MAX_LEAVING, Full, Slots

if TYPE_CHECKING:
    from collections.abc import Sequence

MOST, PER_ADDRESS = 40, 10
KEPT = 2
"""Of ten places of an address, for those who log in."""
KNOWN = frozenset({"known", "owner"})


@dataclass(eq=False)
class Guest:
    keys: set[str] = field(default_factory=set)
    is_closed: bool = False
    asked: int = 0

    @property
    def is_known(self) -> bool:
        self.asked += 1
        return not self.keys.isdisjoint(KNOWN)

    @property
    def is_owner(self) -> bool:
        return "owner" in self.keys


class Door:
    """Closes whom the slots name, as the server does."""

    def __init__(
        self, most: int = MOST, per_address: int = PER_ADDRESS, *, are_slow: bool = False
    ) -> None:
        """`are_slow`: who is displaced leaves only when cut off."""
        self.slots: Slots[Guest] = Slots(most, per_address)
        self.most = most
        self.inside: list[Guest] = []
        self.leaving: list[Guest] = []
        self.trials: list[Guest] = []
        self.are_slow = are_slow

    def comes(self, address: str = "10.0.0.1", *, is_limited: bool = True) -> Guest | Full:
        room = self.slots.make_room(address, is_limited=is_limited)
        if isinstance(room, Full):
            return room
        if room is not None:
            known = sum(not each.keys.isdisjoint(KNOWN) for each in self.inside)
            assert not room.is_known or known > self.most - self.most // 5
            assert not room.is_owner
            assert not room.is_closed
            self.displaces(room)
        guest = Guest()
        if self.slots.add(guest, address, is_limited=is_limited):
            self.trials.append(guest)
        self.inside.append(guest)
        return guest

    def displaces(self, guest: Guest) -> None:
        if not self.are_slow:
            self.closes(guest)
            return
        guest.is_closed = True
        self.inside.remove(guest)
        self.leaving.append(guest)
        cut_off = self.slots.cut_off()
        if cut_off is not None:
            self.leaving.remove(cut_off)
            self.slots.logged_in(cut_off)  # a login that had come is still handled
            assert self.slots.end_trial(cut_off) is None
            self.slots.remove(cut_off)

    def closes(self, guest: Guest) -> None:
        guest.is_closed = True
        self.inside.remove(guest)
        self.slots.remove(guest)

    def time_passes(self) -> None:
        trials, self.trials = self.trials, []
        for guest in trials:
            if not guest.is_closed and (displaced := self.slots.end_trial(guest)) is not None:
                self.displaces(displaced)


def came(answer: Guest | Full) -> Guest:
    assert isinstance(answer, Guest)
    return answer


def logged_in(door: Door, answer: Guest | Full, key: str = "known") -> Guest:
    guest = came(answer)
    guest.keys.add(key)
    assert door.slots.logged_in(guest) is (key != "made up")
    return guest


def test_a_login_is_never_kept_out_by_connections_of_the_same_host() -> None:
    door = Door()
    members = []
    for _ in range(PER_ADDRESS):
        for _ in range(100):  # anonymous ones never stop to come
            door.comes()
        members.append(logged_in(door, door.comes()))
        door.time_passes()
    for _ in range(100):
        door.comes()
    assert not any(member.is_closed for member in members)
    assert door.comes() is Full.ADDRESS, "all places of the host are members'"


def test_the_same_when_the_whole_relay_is_full() -> None:
    door = Door(per_address=0)
    members = []
    for _ in range(MOST):
        for _ in range(100):
            door.comes("127.0.0.1", is_limited=False)
        members.append(logged_in(door, door.comes("127.0.0.1", is_limited=False)))
        door.time_passes()
    assert not any(member.is_closed for member in members)
    assert door.comes("127.0.0.1", is_limited=False) is Full.RELAY


def filled(door: Door, network: str = "10.0.{}.1") -> list[Guest]:
    """With known keys: eight connections of each of five addresses."""
    return [
        logged_in(door, door.comes(network.format(number // 8 + 1))) for number in range(door.most)
    ]


@pytest.mark.parametrize("network", ["2001:db8:7:{}::/64", "192.0.2.{}"])
def test_known_keys_of_one_network_keep_nobody_out(network: str) -> None:
    """One key, from 100 addresses, took all places: also owners got a 503."""
    door = Door()
    many = filled(door, network)
    others = [
        logged_in(door, door.comes(f"10.0.{number}.1"), key)
        for number, key in enumerate(["known", "known", "owner", "made up"])
    ]
    assert sum(guest.is_closed for guest in many) == 4
    more = [door.comes(f"10.1.{number}.1") for number in range(100)]
    assert sum(guest.is_closed for guest in many) == 4 + MOST // 5 - 1, "a fifth is for logins"
    assert sum(came(each).is_closed for each in more) > 80
    assert not any(each.is_closed for each in others[:3])


@pytest.mark.parametrize("network", ["2001:db8:7:{}::/64", "192.0.2.{}", "10.7.{}.1"])
@pytest.mark.parametrize("same_network", [True, False])
def test_who_comes_from_a_network_that_has_more_ends_no_trial_of_others(
    network: str, *, same_network: bool
) -> None:
    """50 handshakes a second from there closed each newcomer before it could log in."""
    door = Door()
    filled(door, network)
    late = [came(door.comes("10.0.1.1" if same_network else f"10.0.{n}.1")) for n in range(3)]
    for number in range(100):
        door.comes(network.format(1 + number % 5))
    assert not any(each.is_closed for each in late)


def test_members_take_places_of_others_when_most_have_known_keys() -> None:
    door = Door(per_address=0)
    others = [came(door.comes(f"10.1.{number}.1")) for number in range(5)]
    for number in range(MOST - 5):
        logged_in(door, door.comes(f"10.0.{number}.1"))
    for number in range(5):
        logged_in(door, door.comes(f"10.2.{number}.1"))
    assert all(guest.is_closed for guest in others)
    assert door.comes("10.3.0.1") is Full.RELAY


def test_one_address_of_a_network_keeps_out_no_other() -> None:
    """All of an office may be one network."""
    door = Door(per_address=0)
    many = [logged_in(door, door.comes("192.0.2.1")) for _ in range(MOST)]
    other = logged_in(door, door.comes("192.0.2.2"))
    assert many[0].is_closed
    assert not other.is_closed


@pytest.mark.parametrize("network", ["10.0.{}.1", "10.0.0.{}"])
def test_known_keys_of_many_addresses_stay(network: str) -> None:
    door = Door()
    for number in range(MOST):
        logged_in(door, door.comes(network.format(number)))
    assert door.comes(network.format(MOST)) is Full.RELAY


def test_owners_are_displaced_by_nobody() -> None:
    door = Door()
    for number in range(MOST):
        logged_in(door, door.comes(f"10.0.0.{number // 8}"), "owner")
    assert door.comes("10.1.0.1") is Full.RELAY


def test_who_has_become_an_owner_stays() -> None:
    """The slots are told of logins, not of new policies."""
    door = Door()
    many = filled(door)
    for guest in many:
        guest.keys.add("owner")
    assert door.comes("10.1.0.1") is Full.RELAY


@pytest.mark.parametrize("key", ["known", "owner"])
def test_a_key_that_is_known_no_more_loses_its_place_to_others(key: str) -> None:
    door = Door(per_address=0)
    for number in range(MOST):
        logged_in(door, door.comes(f"10.0.{number}.1"), key)
    first = door.inside[0]
    first.keys.clear()
    assert not door.slots.logged_in(first)
    assert not came(door.comes("10.1.0.1")).is_closed
    assert first.is_closed
    assert not any(guest.is_closed for guest in door.inside)


def test_who_comes_has_time_to_log_in() -> None:
    """As many others may come meanwhile as there are places kept."""
    door = Door()
    for _ in range(100):
        door.comes()
    slow = came(door.comes())
    for _ in range(KEPT - 1):
        door.comes()
    assert not slow.is_closed
    door.comes()
    assert slow.is_closed


def test_connections_that_came_first_stay_while_others_are_on_trial() -> None:
    door = Door()
    first = [came(door.comes()) for _ in range(PER_ADDRESS - KEPT)]
    for _ in range(100):
        door.comes()
    assert not any(guest.is_closed for guest in first)
    door.time_passes()
    assert door.inside == first, "whose trial ends without a login goes"
    door.closes(first.pop())
    late = came(door.comes())
    door.time_passes()
    assert not late.is_closed, "a place is free that is not kept"


@pytest.mark.parametrize("network", ["2001:db8:7:{}::/64", "192.0.2.{}", "10.0.0.1"])
def test_who_has_few_stays_when_the_trial_ends(network: str) -> None:
    """Those of others were closed after 10 s, while one had four fifths of all places."""
    door = Door(per_address=0)
    many = [came(door.comes(network.format(number))) for number in range(MOST)]
    door.time_passes()
    few = [came(door.comes(f"10.1.{number}.1")) for number in range(3)]
    door.time_passes()
    assert not any(guest.is_closed for guest in few)
    assert sum(not guest.is_closed for guest in many) == MOST - MOST // 5 - len(few)


@pytest.mark.parametrize("network", ["2001:db8:7:{}::/64", "192.0.2.{}", "10.0.0.1"])
def test_who_has_few_stays_beside_known_keys_of_one_network(network: str) -> None:
    """While these had all places but the fifth for logins, everybody else was closed after 10 s."""
    door = Door(per_address=0)
    many = [logged_in(door, door.comes(network.format(number))) for number in range(MOST * 4 // 5)]
    few = [came(door.comes(f"10.1.{number}.1")) for number in range(MOST // 5)]
    door.time_passes()
    assert not any(guest.is_closed for guest in few)
    assert sum(guest.is_closed for guest in many) == 1, "with that, there is a place"
    more = came(door.comes("10.2.0.1"))
    door.time_passes()
    assert sum(guest.is_closed for guest in (*few, more)) == 1, "a fifth of all places"
    assert sum(guest.is_closed for guest in many) == 1


def test_who_has_few_stays_beside_known_keys_of_many_networks() -> None:
    """Each that came anew from there displaced a client without a login after its trial."""
    door = Door(per_address=0)
    networks = MOST // 4
    for number in range(MOST):
        logged_in(door, door.comes(f"10.0.{number % networks}.1"))
    few = [came(door.comes(f"10.1.{number}.1")) for number in range(2)]
    door.time_passes()
    for number in range(4 * networks):
        guest = door.comes(f"10.0.{number % networks}.1")
        if isinstance(guest, Guest):
            logged_in(door, guest)
        door.time_passes()
    assert not any(guest.is_closed for guest in few)


@pytest.mark.parametrize("known", [MOST // 2, MOST * 3 // 4])
def test_who_has_few_stays_while_many_of_sixteen_networks_come_at_once(known: int) -> None:
    """Where over a fifth had no known key, they closed each client without one that came later."""
    door = Door(most=40 * MOST, per_address=0)
    for number in range(door.most):
        guest = came(door.comes(f"10.0.{number % 16}.1"))
        if number >= door.most - 40 * known:
            logged_in(door, guest)
    few = [came(door.comes(f"10.1.{number}.1")) for number in range(8)]
    door.time_passes()
    for number in range(door.most):
        door.comes(f"10.0.{number % 16}.1")
    assert not any(guest.is_closed for guest in few)


def test_who_has_few_stays_also_when_a_newer_one_has_become_known() -> None:
    """A key became known on an open connection: the next one was closed, whoever's it was."""
    door = Door(per_address=0)
    for number in range(1, MOST - 4):
        logged_in(door, door.comes(f"10.0.{number % 4}.1"))
    few = [came(door.comes(f"10.1.{number}.1")) for number in range(4)]
    newest = came(door.comes("10.0.0.1"))
    door.time_passes()
    for number in range(1, 4):
        if len(door.inside) < MOST:
            logged_in(door, door.comes(f"10.0.{number}.1"))
    newest.keys.add("known")
    for number in range(1, 4):
        door.comes(f"10.0.{number}.1")
    assert not any(guest.is_closed for guest in few)


def test_who_stays_where_places_are_free_takes_none_of_a_network_with_many() -> None:
    """Four fifths of all had known keys: an office without a login was closed one by one."""
    door = Door(per_address=0)
    for number in range(MOST * 4 // 5):
        logged_in(door, door.comes(f"10.0.{number}.1"))
    office = [came(door.comes("192.0.2.1")) for _ in range(MOST // 10)]
    door.time_passes()
    for number in range(2):
        door.comes(f"10.1.{number}.1")
        door.time_passes()
    assert not any(guest.is_closed for guest in office)


def test_who_stays_where_places_are_free_takes_none_of_others() -> None:
    """While four fifths of the places that were taken had known keys, each trial ended one."""
    door = Door(per_address=0)
    many = [logged_in(door, door.comes("192.0.2.1")) for _ in range(MOST * 4 // 5)]
    few = [came(door.comes(f"10.1.{number}.1")) for number in range(3)]
    door.time_passes()
    assert not any(guest.is_closed for guest in (*many, *few))


@pytest.mark.parametrize("known", [0, 20, 32, 40])
def test_handshakes_of_one_network_end_no_trials_of_others(known: int) -> None:
    """Where it had four fifths of the places by known keys, and the others without, ten handshakes
    a second left nobody the time to log in."""
    door = Door()
    addresses = [f"203.0.113.{number % 20}" for number in range(4 * MOST)]
    for address in addresses:
        guest = door.comes(address)
        if isinstance(guest, Guest) and sum(each.is_known for each in door.inside) < known:
            logged_in(door, guest)
    door.time_passes()
    for number in range(10):
        member = came(door.comes(f"10.0.{number}.1"))
        for address in addresses:
            door.comes(address)
        assert not member.is_closed
        logged_in(door, member)


def test_a_trial_that_ends_takes_no_place_reserved_in_its_address() -> None:
    door = Door()
    for _ in range(MOST):
        door.comes("127.0.0.1", is_limited=False)
    late = [came(door.comes("10.1.0.1")) for _ in range(PER_ADDRESS)]
    door.time_passes()
    assert sum(not guest.is_closed for guest in late) == PER_ADDRESS - KEPT


def test_a_full_host_takes_no_place_of_another() -> None:
    door = Door()
    other = came(door.comes("10.0.0.2"))
    for _ in range(1000):
        door.comes()
    assert not other.is_closed
    assert len(door.inside) <= PER_ADDRESS + 1


def test_few_places_are_kept_for_nobody() -> None:
    door = Door(per_address=4)
    for _ in range(4):
        came(door.comes())
    assert door.comes() is Full.ADDRESS


def test_keys_that_one_makes_up_keep_nobody_out() -> None:
    door = Door()
    for _ in range(3 * PER_ADDRESS):
        logged_in(door, door.comes(), "made up")
    member = logged_in(door, door.comes())
    for _ in range(100):
        logged_in(door, door.comes(), "made up")
        door.time_passes()
    assert not member.is_closed
    assert len(door.inside) <= PER_ADDRESS - KEPT + 1


@pytest.mark.parametrize("per_address", [PER_ADDRESS, 0])
def test_those_that_leave_slowly_keep_nobody_out(per_address: int) -> None:
    """While 64 were being closed nobody else was displaced, and members were refused."""
    door = Door(per_address=per_address, are_slow=True)
    for _ in range(MOST + 2 * _MAX_LEAVING):
        came(door.comes())
    member = logged_in(door, door.comes())
    for _ in range(2 * _MAX_LEAVING):
        came(door.comes())
        door.time_passes()
    assert not member.is_closed
    assert len(door.leaving) == _MAX_LEAVING
    assert len(door.slots) == len(door.inside) + _MAX_LEAVING


def test_who_has_been_leaving_for_longest_is_cut_off_first() -> None:
    door = Door(are_slow=True)
    guests = [came(door.comes()) for _ in range(PER_ADDRESS + _MAX_LEAVING + 1)]
    assert guests[PER_ADDRESS - KEPT] not in door.leaving
    assert door.leaving == guests[PER_ADDRESS - KEPT + 1 :][:_MAX_LEAVING]


def test_a_full_relay_asks_few_connections_who_they_are() -> None:
    """It asked each of 5,000 for every one that came."""
    door = Door(most=1000, per_address=0)
    for number in range(1000):
        door.comes(f"10.0.{number % 200}.1")
    for number in range(100):
        door.comes(f"10.1.{number}.1")
    assert sum(guest.asked for guest in door.inside) <= 100
    assert len(door.inside) == 1000


@given(
    st.lists(
        st.one_of(
            st.sampled_from(["1", "1", "2", "3", "10.0.0.1", "10.0.0.2", "local"]).map(
                lambda each: ("comes", each)
            ),
            st.integers(0, 50).map(lambda each: ("logs in", each)),
            st.integers(0, 50).map(lambda each: ("is told", each)),
            st.integers(0, 50).map(lambda each: ("is known no more", each)),
            st.integers(0, 50).map(lambda each: ("goes", each)),
            st.just(("waits", 0)),
        ),
        max_size=120,
    )
)
def test_the_limits_hold_whoever_comes_and_goes(steps: Sequence[tuple[str, str | int]]) -> None:
    door = Door(12, 5)
    for what, which in steps:
        if what == "comes":
            before = list(door.inside)
            answer = door.comes(str(which), is_limited=which != "local")
            if isinstance(answer, Full):
                here = [each for each in before if not each.is_known]
                assert answer is Full.ADDRESS or not here
        elif what == "waits":
            door.time_passes()
        elif door.inside:
            guest = door.inside[int(which) % len(door.inside)]
            match what:
                case "goes":
                    door.closes(guest)
                case "is told":
                    door.slots.logged_in(guest)
                case "is known no more":
                    guest.keys.clear()
                case _:
                    guest.keys.add("known")  # by an event of somebody else: the slots are not told
        assert len(door.inside) == len(door.slots) <= 12
