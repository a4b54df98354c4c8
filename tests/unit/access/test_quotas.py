"""relay/access/quotas.py: counters of a minute (N29-39), and what rules allow."""

from __future__ import annotations

from ipaddress import IPv4Address, IPv6Address, ip_address
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from relay.access.quotas import (
    GUESSES_PER_ADDRESS,
    GUESSES_PER_KEY,
    Account,
    CountedEvent,
    Guesses,
    MinuteCounter,
    Per,
    Quota,
    Rate,
    Size,
    TokenBuckets,
    UsageCounter,
)
from relay.nostr.kinds import KindSet
from tests.cast import alice, bob
from tests.contract.writing import unsigned

HERE = ip_address("192.0.2.7")


def test_so_many_in_a_minute_and_no_more() -> None:
    counter = MinuteCounter(3)
    assert [counter.count("x", now) for now in (0, 30, 59, 59)] == [True, True, True, False]
    assert counter.count("y", 59)
    assert [counter.count("x", now) for now in (60, 61, 62, 63)] == [True, True, True, False]


def test_a_clock_set_back_locks_nobody_out() -> None:
    counter = MinuteCounter(1)
    assert counter.count("x", 1000)
    assert not counter.count("x", 1001)
    assert counter.count("x", 10)


def test_memory_is_bounded_and_the_oldest_minute_is_forgotten() -> None:
    counter = MinuteCounter(1, max_names=2)
    assert counter.count("a", 0)
    assert counter.count("b", 1)
    assert counter.count("c", 2)
    assert not counter.count("b", 3)
    assert not counter.count("c", 3)
    assert counter.count("a", 3)
    assert counter.count("b", 4)


def tried(
    guesses: Guesses, pubkey: str, address: IPv4Address | IPv6Address | None, now: int
) -> bool:
    """Whether one more code may be tried; it is counted either way."""
    allowed = guesses.allows(pubkey, address, now)
    guesses.count(pubkey, address, now)
    return allowed


@pytest.mark.proves("N29-39")
def test_codes_are_counted_by_key_and_by_address() -> None:
    guesses = Guesses()
    assert all(tried(guesses, alice.pubkey, HERE, 0) for _ in range(GUESSES_PER_KEY))
    assert not tried(guesses, alice.pubkey, HERE, 1)
    assert not tried(guesses, alice.pubkey, ip_address("192.0.2.8"), 1)
    assert tried(guesses, bob.pubkey, HERE, 1)
    # Two of alice's tries counted for the address before it was her turn to be refused.
    left = GUESSES_PER_ADDRESS - GUESSES_PER_KEY - 2
    assert all(tried(guesses, f"{number:064x}", HERE, 2) for number in range(left))
    assert not tried(guesses, "f" * 64, HERE, 3)
    assert tried(guesses, "f" * 64, ip_address("192.0.2.9"), 3)
    assert tried(guesses, "f" * 64, HERE, 60)


@pytest.mark.proves("N29-39")
@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("2001:db8:1:2::1", "2001:db8:1:2:ffff::9"),
        ("::ffff:192.0.2.7", "192.0.2.7"),
        ("fe80::%1", "fe80::%2"),
        (None, None),
    ],
)
def test_addresses_of_one_home_are_one(one: str | None, other: str | None) -> None:
    guesses = Guesses()
    here, there = (None if text is None else ip_address(text) for text in (one, other))
    assert all(tried(guesses, f"{n:064x}", here, 0) for n in range(GUESSES_PER_ADDRESS))
    assert not tried(guesses, "f" * 64, there, 0)
    assert tried(guesses, "f" * 64, ip_address("2001:db8:1:3::1"), 0)


# what rules allow --------------------------------------------------------------------------------


def rate(burst: int, per_minute: int, name: str = "slowly") -> Rate:
    return Rate(name, Per.AUTHOR, burst, per_minute)


def admits(buckets: TokenBuckets, rate: Rate, name: str, now: int) -> bool:
    if buckets.wait_s(rate, name, now) > 0:
        return False
    buckets.take(rate, name, now)
    return True


def test_a_burst_is_allowed_at_once_and_then_the_rate_per_minute() -> None:
    buckets, slowly = TokenBuckets(), rate(burst=3, per_minute=2)
    assert [admits(buckets, slowly, "alice", 0) for _ in range(4)] == [True, True, True, False]
    assert buckets.wait_s(slowly, "alice", 0) == 30
    assert buckets.wait_s(slowly, "alice", 29) == 1
    assert [admits(buckets, slowly, "alice", now) for now in (29, 30, 30)] == [False, True, False]
    assert admits(buckets, slowly, "bob", 0)


def test_a_bucket_holds_no_more_than_a_burst() -> None:
    buckets, slowly = TokenBuckets(), rate(burst=2, per_minute=60)
    assert admits(buckets, slowly, "alice", 0)
    assert [admits(buckets, slowly, "alice", 10**6) for _ in range(3)] == [True, True, False]


def test_a_clock_that_is_set_back_empties_no_bucket() -> None:
    buckets, slowly = TokenBuckets(), rate(burst=1, per_minute=1)
    assert admits(buckets, slowly, "alice", 10**6)
    assert not admits(buckets, slowly, "alice", 10**6)
    assert [admits(buckets, slowly, "alice", now) for now in (10, 69, 70)] == [True, False, True]


def test_the_wait_is_in_whole_seconds_and_suffices() -> None:
    buckets, slowly = TokenBuckets(), rate(burst=1, per_minute=7)
    assert admits(buckets, slowly, "alice", 0)
    wait = buckets.wait_s(slowly, "alice", 0)
    assert wait == 9
    assert buckets.wait_s(slowly, "alice", wait - 1) > 0
    assert buckets.wait_s(slowly, "alice", wait) == 0


def test_each_rule_has_buckets_of_its_own() -> None:
    buckets = TokenBuckets()
    one, other = rate(1, 1, "one"), rate(1, 1, "other")
    assert admits(buckets, one, "alice", 0)
    assert admits(buckets, other, "alice", 0)
    assert not admits(buckets, one, "alice", 0)


def test_of_too_many_buckets_the_longest_unused_is_forgotten() -> None:
    buckets, slowly = TokenBuckets(max_buckets=2), rate(burst=2, per_minute=1)
    for name in ("a", "b", "a", "c"):
        assert admits(buckets, slowly, name, 0)
    assert len(buckets) == 2
    assert not admits(buckets, slowly, "a", 0)
    assert admits(buckets, slowly, "c", 0)
    assert [admits(buckets, slowly, "b", 0) for _ in range(3)] == [True, True, False]


def test_buckets_of_many_keys_fill_no_bucket_of_an_address() -> None:
    """One address may send what any number of made-up keys signed, and has its quota of a day."""
    buckets, slowly = TokenBuckets(max_buckets=2), rate(burst=2, per_minute=1)
    of_a_day = Rate("quota", Per.ADDRESS, 1, 1, period_s=86_400)
    assert admits(buckets, of_a_day, "192.0.2.1", 0)
    for key in ("a", "b", "c"):
        assert admits(buckets, slowly, f"{key} from 192.0.2.1", 0)
    assert not admits(buckets, of_a_day, "192.0.2.1", 0)


@given(
    burst=st.integers(1, 20),
    per_minute=st.integers(1, 600),
    pauses=st.lists(st.integers(0, 30), max_size=100),
)
def test_never_more_than_the_burst_and_what_time_adds(
    burst: int, per_minute: int, pauses: list[int]
) -> None:
    buckets, slowly = TokenBuckets(), rate(burst, per_minute)
    now = taken = 0
    for pause in pauses:
        now += pause
        wait = buckets.wait_s(slowly, "alice", now)
        if admits(buckets, slowly, "alice", now):
            taken += 1
            assert wait == 0
        assert taken <= burst + now * per_minute / 60


def test_a_quota_counts_what_its_match_names() -> None:
    some = KindSet.of(1, 7)
    of_author = Quota(Per.AUTHOR, events=1, kinds=some, h=False)
    assert of_author.account_of("alice", "tea") == Account("alice", some, False)  # noqa: FBT003
    of_group = Quota(Per.GROUP, events=1, kinds=some)
    assert of_group.account_of("alice", "tea") == Account(None, some, frozenset({"tea"}))
    assert of_group.account_of("alice", None) is None
    of_groups = Quota(Per.GROUP, events=1, h=frozenset({"tea"}))
    assert of_groups.account_of("alice", "tea") == Account(None, None, frozenset({"tea"}))
    assert of_groups.account_of("alice", "den") is None


@pytest.mark.parametrize(
    ("before", "after", "objected"),
    [
        (Size(1, 10), Size(2, 20), None),
        (Size(2, 20), Size(3, 30), "full: at most 2 events may be stored"),
        (Size(1, 80), Size(2, 101), "full: at most 100 bytes may be stored, 80 are"),
        (Size(1, 100), Size(1, 100), None),
        (Size(9, 900), Size(9, 800), None),
        (Size(9, 900), Size(9, 901), "full: at most 100 bytes may be stored, 900 are"),
    ],
)
def test_a_quota_is_full_when_something_is_added(
    before: Size, after: Size, objected: str | None
) -> None:
    assert Quota(Per.AUTHOR, events=2, bytes=100).refusal(before, after) == objected


def test_a_quota_of_nothing_takes_nothing() -> None:
    quota = Quota(Per.AUTHOR, events=0)
    assert quota.refusal(Size(), Size(1, 10)) == "full: at most 0 events may be stored"


def test_a_row_is_compared_with_no_account_of_other_recipients(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Gift wraps for 16 recipients each made all events of a batch six times as dear."""
    usage, asked = UsageCounter(), list[Account]()
    has = Account.has

    def noted(account: Account, *about: Any) -> bool:
        asked.append(account)
        return has(account, *about)

    monkeypatch.setattr(Account, "has", noted)
    own, recipients = Account(alice.pubkey), [f"{number:064x}" for number in range(100)]
    for account in (own, *(Account(None, recipient=key) for key in recipients)):
        usage.open(account, Size(1, 10))
    wrap = unsigned(alice, 1059, [["p", key] for key in recipients[:2]])
    more = Size(2, 10 + len(wrap.raw))
    usage.add(wrap, None)
    sizes = [usage.size_of(Account(None, recipient=key)) for key in recipients[:3]]
    assert sizes == [more, more, Size(1, 10)]
    assert usage.size_of(own) == more
    usage.remove(wrap, None)
    assert usage.size_of(Account(None, recipient=recipients[0])) == Size(1, 10)
    assert {*asked} == {own}


def test_addresses_of_one_network_have_one_bucket_of_their_network() -> None:
    def bucket(address: str | None) -> str | None:
        at = None if address is None else ip_address(address)
        counted = CountedEvent(
            unsigned(alice, 1),
            None,
            None,
            1,
            is_rated=True,
            is_stored=True,
            replaces=None,
            address=at,
        )
        return counted.bucket(Per.NETWORK)

    assert bucket("192.0.2.1") == bucket("192.0.2.255") != bucket("192.0.3.1")
    assert bucket("2001:db8:1:2::1") == bucket("2001:db8:1:ffff::1") != bucket("2001:db8:2:2::1")
    assert bucket(None) == bucket(None)
