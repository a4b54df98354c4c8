"""relay/rates.py: counters of a minute. N29-39."""

from __future__ import annotations

from ipaddress import ip_address

import pytest

from relay.rates import GUESSES_OF_A_KEY, GUESSES_OF_AN_ADDRESS, Guesses, Rate
from tests.cast import alice, bob

HERE = ip_address("192.0.2.7")


def test_so_many_in_a_minute_and_no_more() -> None:
    rate = Rate(3)
    assert [rate.takes("x", now) for now in (0, 30, 59, 59)] == [True, True, True, False]
    assert rate.takes("y", 59)
    assert [rate.takes("x", now) for now in (60, 61, 62, 63)] == [True, True, True, False]


def test_a_clock_that_is_set_back_shuts_nobody_out() -> None:
    rate = Rate(1)
    assert rate.takes("x", 1000)
    assert not rate.takes("x", 1001)
    assert rate.takes("x", 10)


def test_memory_is_bounded_and_the_oldest_minute_is_forgotten() -> None:
    rate = Rate(1, names=2)
    assert rate.takes("a", 0)
    assert rate.takes("b", 1)
    assert rate.takes("c", 2)
    assert not rate.takes("b", 3)
    assert not rate.takes("c", 3)
    assert rate.takes("a", 3)
    assert rate.takes("b", 4)


@pytest.mark.proves("N29-39")
def test_codes_are_counted_by_key_and_by_address() -> None:
    guesses = Guesses()
    assert all(guesses.admits(alice.pubkey, HERE, 0) for _ in range(GUESSES_OF_A_KEY))
    assert not guesses.admits(alice.pubkey, HERE, 1)
    assert not guesses.admits(alice.pubkey, ip_address("192.0.2.8"), 1)
    assert guesses.admits(bob.pubkey, HERE, 1)
    # Two of alice's tries counted for the address before it was her turn to be refused.
    left = GUESSES_OF_AN_ADDRESS - GUESSES_OF_A_KEY - 2
    assert all(guesses.admits(f"{number:064x}", HERE, 2) for number in range(left))
    assert not guesses.admits("f" * 64, HERE, 3)
    assert guesses.admits("f" * 64, ip_address("192.0.2.9"), 3)
    assert guesses.admits("f" * 64, HERE, 60)


@pytest.mark.proves("N29-39")
@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("2001:db8:1:2::1", "2001:db8:1:2:ffff::9"),
        ("::ffff:192.0.2.7", "192.0.2.7"),
        (None, None),
    ],
)
def test_addresses_of_one_home_are_one(one: str | None, other: str | None) -> None:
    guesses = Guesses()
    here, there = (None if text is None else ip_address(text) for text in (one, other))
    assert all(guesses.admits(f"{n:064x}", here, 0) for n in range(GUESSES_OF_AN_ADDRESS))
    assert not guesses.admits("f" * 64, there, 0)
    assert guesses.admits("f" * 64, ip_address("2001:db8:1:3::1"), 0)
