"""Unfinished messages of all websockets: sockets of the address that has most are closed first."""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

import pytest

from relay.server.socket_input import Unfinished

if TYPE_CHECKING:
    from relay.server.socket_input import SocketInput


class Socket:
    """A socket, and its transport."""

    is_known = False

    def __init__(self, address: str = "10.0.0.1") -> None:
        self.address = address
        self.transport: Socket | None = self
        self.is_aborted = False
        self.held = 0

    def unfinished(self) -> int:
        return self.held

    def abort(self) -> None:
        self.is_aborted = True


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
    assert [socket.is_aborted for socket in sockets] == [True, True, False, False, False]


def test_the_address_that_has_most_is_closed_first_and_others_are_not() -> None:
    """A client whose message came slowly was closed for what sockets of another address held."""
    unfinished, slow = Unfinished(), Socket("10.0.0.2")
    flood = [Socket() for _ in range(5)]
    for socket in (slow, *flood):
        note(unfinished, socket, 90_000)
    assert not slow.is_aborted
    assert [socket.is_aborted for socket in flood] == [True, True, True, False, False]


def test_little_of_many_counts_now_and_then() -> None:
    """16 KiB of each of 5,000 connections were in no sum."""
    unfinished, sockets = Unfinished(), [Socket() for _ in range(40)]
    for socket in sockets:
        note(unfinished, socket, 10_000)
    assert not any(socket.is_aborted for socket in sockets)
    for socket in sockets:
        unfinished.note_any(cast("SocketInput", socket), socket.held)
    assert [socket.is_aborted for socket in sockets] == [True] * 10 + [False] * 30


def test_known_keys_are_closed_last_also_when_they_became_known_later() -> None:
    unfinished, sockets = Unfinished(), [Socket() for _ in range(3)]
    early, late, _ = sockets
    early.is_known = True
    for socket in sockets:
        note(unfinished, socket, 90_000)
    late.is_known = True
    note(unfinished, Socket("10.0.0.2"), 90_000)
    assert [socket.is_aborted for socket in sockets] == [False, False, True]
    for address in ("10.0.0.3", "10.0.0.4"):
        known = Socket(address)
        known.is_known = True
        note(unfinished, known, 90_000)
    assert [socket.is_aborted for socket in sockets] == [True, False, True]


def test_who_has_less_than_was_counted_keeps_its_place() -> None:
    """Its input was counted before it was parsed, and ended with another message."""
    unfinished, sockets = Unfinished(), [Socket() for _ in range(5)]
    for socket in sockets[:3]:
        note(unfinished, socket, 90_000)
    sockets[0].held = 80_000
    for socket in sockets[3:]:
        note(unfinished, socket, 90_000)
    assert [socket.is_aborted for socket in sockets] == [True, True, False, False, False]


def test_a_socket_that_is_gone_counts_no_more() -> None:
    unfinished, gone, there = Unfinished(), Socket(), Socket()
    note(unfinished, gone, 200_000)
    gone.transport = None
    note(unfinished, there, 200_000)
    assert not there.is_aborted
