"""relay/server/listening.py: sockets that are bound, and those that are handed over."""

from __future__ import annotations

import contextlib
import os
import socket
import subprocess
import sys
from typing import TYPE_CHECKING, Final

import pytest

from relay.errors import UserError
from relay.server.listening import (
    add_ipv6_loopback,
    bound_sockets,
    has_ipv6_loopback,
    held_addresses,
    inherited_sockets,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

# As systemd does: the sockets from descriptor 3 on, then the program in the same process.
HAND_OVER: Final = """
import os, sys
numbers = [int(each) for each in sys.argv[1].split(",")]
high = [os.dup2(number, 100 + place) for place, number in enumerate(numbers)]
for place, number in enumerate(high, 3):
    os.dup2(number, place)
os.environ |= {"LISTEN_PID": str(os.getpid() + int(sys.argv[2])), "LISTEN_FDS": str(len(high))}
os.execv(sys.executable, [sys.executable, "-c", sys.argv[3]])
"""
SHOW: Final = """
import os
from relay.server.listening import inherited_sockets
for each in inherited_sockets():
    print(*each.getsockname()[:2], os.get_inheritable(each.fileno()))
print(sorted(name for name in os.environ if name.startswith("LISTEN_")))
"""


def handed_over(sockets: Sequence[socket.socket], program: str, *, to_another: bool = False) -> str:
    numbers = [each.fileno() for each in sockets]
    names = ",".join(map(str, numbers))
    done = subprocess.run(
        [sys.executable, "-c", HAND_OVER, names, str(int(to_another)), program],
        pass_fds=numbers,
        capture_output=True,
        text=True,
        check=False,
    )
    return done.stdout + done.stderr


@pytest.mark.process
def test_sockets_that_are_handed_over_are_taken_and_given_to_no_child() -> None:
    with (
        socket.create_server(("127.0.0.1", 0)) as one,
        socket.create_server(("127.0.0.1", 0)) as other,
    ):
        shown = handed_over([one, other], SHOW)
        names = [" ".join(map(str, each.getsockname())) for each in (one, other)]
    assert shown.splitlines() == [f"{names[0]} False", f"{names[1]} False", "[]"]


@pytest.mark.process
def test_sockets_for_another_process_are_left_alone() -> None:
    with socket.create_server(("127.0.0.1", 0)) as one:
        assert handed_over([one], SHOW, to_another=True).splitlines() == ["[]"]


@pytest.mark.process
def test_what_is_no_listening_socket_is_refused() -> None:
    with (
        socket.socket() as idle,
        socket.socket(type=socket.SOCK_DGRAM) as other,
        open(os.devnull) as file,
    ):
        for each in (idle, other, file):
            shown = handed_over([each], SHOW)  # type: ignore[list-item]
            assert "descriptor 3 of LISTEN_FDS is no listening TCP socket" in shown


@pytest.mark.parametrize("number", ["", "many", "-1"])
def test_a_number_that_is_none_hands_nothing_over(
    monkeypatch: pytest.MonkeyPatch, number: str
) -> None:
    monkeypatch.setenv("LISTEN_PID", str(os.getpid()))
    monkeypatch.setenv("LISTEN_FDS", number)
    assert inherited_sockets() == []
    assert "LISTEN_FDS" not in os.environ


@pytest.mark.parametrize("host", ["no.invalid", "a" * 64, "a\0b"])
def test_a_host_that_is_none_is_reported_with_advice(host: str) -> None:
    with pytest.raises(UserError, match=rf"cannot listen on {host} port 7: .*--host"):
        bound_sockets(host, 7)


def names(sockets: Sequence[socket.socket]) -> list[str]:
    return [each.getsockname()[0] for each in sockets]


@pytest.mark.skipif(not has_ipv6_loopback(), reason="this machine has no IPv6")
@pytest.mark.parametrize("host", ["127.0.0.1", "0.0.0.0"])
def test_beside_127_0_0_1_the_ipv6_loopback_address_is_listened_on(host: str) -> None:
    with contextlib.ExitStack() as stack:
        bound = [stack.enter_context(each) for each in bound_sockets(host, 0)]
        assert names(bound) == [host, "::1"]
        port = bound[0].getsockname()[1]
        assert held_addresses(bound) == [("127.0.0.1", port), ("::1", port)]
        add_ipv6_loopback(bound)
        assert len(bound) == 2
        with socket.socket(socket.AF_INET6) as other:
            other.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            with pytest.raises(OSError, match="in use"):
                other.bind(("::1", port))


@pytest.mark.skipif(not has_ipv6_loopback(), reason="this machine has no IPv6")
def test_an_ipv6_loopback_address_of_another_program_is_left_to_it() -> None:
    with (
        socket.create_server(("::1", 0), family=socket.AF_INET6) as other,
        contextlib.ExitStack() as stack,
    ):
        bound = [
            stack.enter_context(each) for each in bound_sockets("127.0.0.1", other.getsockname()[1])
        ]
        assert names(bound) == ["127.0.0.1"]


@pytest.mark.skipif(not has_ipv6_loopback(), reason="this machine has no IPv6")
def test_a_socket_of_both_families_has_both_loopback_addresses() -> None:
    with socket.create_server(("::", 0), family=socket.AF_INET6, dualstack_ipv6=True) as both:
        port = both.getsockname()[1]
        assert held_addresses([both]) == [("::1", port), ("127.0.0.1", port)]


def test_beside_another_address_nothing_else_is_listened_on() -> None:
    with contextlib.ExitStack() as stack:
        bound = [stack.enter_context(each) for each in bound_sockets("127.0.0.2", 0)]
        assert names(bound) == ["127.0.0.2"]
