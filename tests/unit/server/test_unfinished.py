"""Unfinished messages of all websockets: sockets of the address that has most are closed first."""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

import pytest

from relay.server.socket_input import Unfinished

if TYPE_CHECKING:
    from relay.server.socket_input import SocketInput


class Address(str):
    """It counts how often one is looked up."""

    __slots__ = ()
    lookups = 0

    def __hash__(self) -> int:
        Address.lookups += 1
        return super().__hash__()

    def __eq__(self, other: object) -> bool:
        return super().__eq__(other)


class Socket:
    def __init__(self, address: str = "10.0.0.1", *, is_known: bool = False) -> None:
        self.address = address
        self.is_known = is_known
        self.is_dropped = False
        self.held = 0

    def unfinished(self) -> int:
        return self.held

    def drop(self) -> None:
        self.is_dropped = True


def note(unfinished: Unfinished, socket: Socket, size: int) -> None:
    socket.held = size
    unfinished.note(cast("SocketInput", socket), size)


@pytest.fixture(autouse=True)
def few_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("relay.server.socket_input.MAX_UNFINISHED", 300_000)


def test_the_socket_that_was_silent_for_longest_is_closed() -> None:
    unfinished, sockets = Unfinished(), [Socket() for _ in range(5)]
    for socket in sockets:
        note(unfinished, socket, 90_000)
    assert [socket.is_dropped for socket in sockets] == [True, True, False, False, False]


def test_the_address_that_has_most_is_closed_first_and_others_are_not() -> None:
    """A client whose message came slowly was closed for what sockets of another address held."""
    unfinished, slow = Unfinished(), Socket("10.0.0.2")
    flood = [Socket() for _ in range(5)]
    for socket in (slow, *flood):
        note(unfinished, socket, 90_000)
    assert not slow.is_dropped
    assert [socket.is_dropped for socket in flood] == [True, True, True, False, False]


@pytest.mark.parametrize("network", ["2001:db8:7:{}::/64", "192.0.2.{}"])
def test_a_network_with_many_addresses_closes_no_larger_ones_of_others(network: str) -> None:
    """One known key at 3,850 addresses had every message over 17 kB of others cut."""
    unfinished = Unfinished()
    many = [Socket(network.format(number), is_known=True) for number in range(30)]
    late = [Socket(f"10.0.{number}.1", is_known=True) for number in range(3)]
    for socket in many:
        note(unfinished, socket, 17_500)
    for socket in late:
        note(unfinished, socket, 60_000)
    assert not any(socket.is_dropped for socket in late)
    assert 10 <= sum(socket.is_dropped for socket in many) <= 30


@pytest.mark.parametrize("network", ["2001:db8:7:{:x}::/64", "2001:db8:{:x}::/64"])
def test_the_work_of_a_message_does_not_grow_with_the_number_of_sockets(
    monkeypatch: pytest.MonkeyPatch, network: str
) -> None:
    """Each that made room added up the bytes of all addresses: 3 ms with 3,900."""
    monkeypatch.setattr("relay.server.socket_input.MAX_UNFINISHED", 1000 * 17_000)
    unfinished = Unfinished()
    sockets = [Socket(Address(network.format(number))) for number in range(2000)]
    for socket in sockets[:1000]:
        note(unfinished, socket, 17_000)
    Address.lookups = 0
    for socket in sockets[1000:]:
        note(unfinished, socket, 17_000)
    assert [socket.is_dropped for socket in sockets] == [True] * 1000 + [False] * 1000
    assert Address.lookups < 50 * 1000


def test_what_an_address_had_before_takes_little_memory() -> None:
    unfinished, sockets = Unfinished(), [Socket(f"10.0.0.{number}") for number in range(10)]
    for number in range(1000):
        note(unfinished, sockets[number % 10], 17_000 + number // 10 % 2)
    (addresses,) = unfinished._held[False]._addresses.values()
    assert len(addresses._heap) <= 20
    for socket in sockets:
        note(unfinished, socket, 0)
    assert not unfinished._held[False]._networks._heap
    assert not unfinished._held[False]._addresses


def test_little_of_many_counts_now_and_then() -> None:
    """16 KiB of each of 5,000 connections were in no sum."""
    unfinished, sockets = Unfinished(), [Socket() for _ in range(40)]
    for socket in sockets:
        note(unfinished, socket, 10_000)
    assert not any(socket.is_dropped for socket in sockets)
    for socket in sockets:
        unfinished.note_any(cast("SocketInput", socket), socket.held)
    assert [socket.is_dropped for socket in sockets] == [True] * 10 + [False] * 30


def test_known_keys_are_closed_last_also_when_they_became_known_later() -> None:
    unfinished, sockets = Unfinished(), [Socket() for _ in range(3)]
    early, late, _ = sockets
    early.is_known = True
    for socket in sockets:
        note(unfinished, socket, 90_000)
    late.is_known = True
    note(unfinished, Socket("10.0.0.2"), 90_000)
    assert [socket.is_dropped for socket in sockets] == [False, False, True]
    for address in ("10.0.0.3", "10.0.0.4"):
        note(unfinished, Socket(address, is_known=True), 90_000)
    assert [socket.is_dropped for socket in sockets] == [True, False, True]


def test_those_without_a_known_key_keep_a_quarter_beside_known_ones() -> None:
    """67 MB of one key, on connections of three addresses, closed most others' larger messages."""
    unfinished = Unfinished()
    flood = [Socket(f"192.0.2.{number % 3}", is_known=True) for number in range(6)]
    others = [Socket(f"10.0.0.{number}") for number in range(4)]
    for socket in flood:
        note(unfinished, socket, 50_000)
    for socket in others:
        note(unfinished, socket, 18_000)
    assert not any(socket.is_dropped for socket in others)
    assert [socket.is_dropped for socket in flood] == [True] * 2 + [False] * 4
    note(unfinished, Socket("10.0.0.4"), 30_000)
    assert [socket.is_dropped for socket in others] == [False] * 4
    note(unfinished, Socket("10.0.0.0"), 30_000)
    assert [socket.is_dropped for socket in others] == [True, False, False, False]


def test_the_known_address_that_has_most_is_closed_first() -> None:
    unfinished, member = Unfinished(), Socket("10.0.0.1", is_known=True)
    flood = [Socket("192.0.2.1", is_known=True) for _ in range(5)]
    for socket in (member, *flood):
        note(unfinished, socket, 60_000)
    assert not member.is_dropped
    assert [socket.is_dropped for socket in flood] == [True] + [False] * 4


def test_a_key_that_is_known_no_longer_counts_with_the_others() -> None:
    unfinished, sockets = Unfinished(), [Socket(is_known=True) for _ in range(3)]
    for socket, size in zip(sockets, (60_000, 90_000, 90_000), strict=True):
        note(unfinished, socket, size)
    sockets[0].is_known = False
    note(unfinished, Socket("10.0.0.2", is_known=True), 90_000)
    assert [socket.is_dropped for socket in sockets] == [False, True, False]


def test_who_has_less_than_was_counted_keeps_its_place() -> None:
    """Its input was counted before it was parsed, and ended with another message."""
    unfinished, sockets = Unfinished(), [Socket() for _ in range(5)]
    for socket in sockets[:3]:
        note(unfinished, socket, 90_000)
    sockets[0].held = 80_000
    for socket in sockets[3:]:
        note(unfinished, socket, 90_000)
    assert [socket.is_dropped for socket in sockets] == [True, True, False, False, False]


def test_a_socket_that_is_gone_counts_no_more() -> None:
    unfinished, gone, there = Unfinished(), Socket(), Socket()
    note(unfinished, gone, 200_000)
    note(unfinished, there, 200_000)
    assert not there.is_dropped
