"""How much somebody may do: so often in a minute, so much in the store.

Invariants: time is given in; counters live as long as the process, have bounded memory and are
nobody's state.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass
from enum import Enum
from ipaddress import IPv6Address, IPv6Network
from typing import TYPE_CHECKING, Final, assert_never

from relay.access.usage import Account, Size
from relay.errors import Prefix
from relay.verdict import Origin, Reject

if TYPE_CHECKING:
    from collections.abc import Iterable
    from ipaddress import IPv4Address

    from relay.access.read_rules import Row
    from relay.access.usage import UsageCounter
    from relay.nostr.event import Event
    from relay.nostr.kinds import KindSet

WINDOW_S: Final = 60
GUESSES_OF_A_KEY: Final = 30
GUESSES_OF_AN_ADDRESS: Final = 300
_NAMES: Final = 10_000
_BUCKETS: Final = 50_000
"""Some 15 MB when all are in use."""


class Rate:
    """So many times in a minute, each name for itself. Counts at most `names` at a time: of more
    the one whose minute began first is forgotten."""

    def __init__(self, most: int, *, names: int = _NAMES) -> None:
        self._most = most
        self._names = names
        self._counted: dict[str, tuple[int, int]] = {}
        """name → (unix seconds of the first in its minute, how many), in order of the first."""

    def takes(self, name: str, now: int) -> bool:
        """Whether this is not one too many; counts it if so."""
        began, count = self._counted.get(name, (now, 0))
        if not 0 <= now - began < WINDOW_S:
            began, count = now, 0
        if count >= self._most:
            return False
        if not count:
            self._counted.pop(name, None)
            if len(self._counted) >= self._names:
                del self._counted[next(iter(self._counted))]
        self._counted[name] = began, count + 1
        return True


class Guesses:
    """Invite codes that were tried: 30 a minute of one key, 300 from one address (N29-39)."""

    def __init__(self) -> None:
        self._of_key = Rate(GUESSES_OF_A_KEY)
        self._from_address = Rate(GUESSES_OF_AN_ADDRESS)

    def admits(self, pubkey: str, address: IPv4Address | IPv6Address | None, now: int) -> bool:
        """Whether one more may be tried; counts it if so. Addresses that nobody knows are one."""
        # First the address, or somebody with many keys would fill the counters of keys.
        return self._from_address.takes(_home_of(address), now) and self._of_key.takes(pubkey, now)


def _home_of(address: IPv4Address | IPv6Address | None) -> str:
    """An address, of IPv6 its /64: that many everybody has at home."""
    if isinstance(address, IPv6Address):
        if address.ipv4_mapped is None:
            return str(IPv6Network((address, 64), strict=False))
        address = address.ipv4_mapped
    return str(address)


# What rules of the policy files allow ------------------------------------------------------------


class Per(Enum):
    """Who or what has an allowance of its own."""

    AUTHOR = "author"
    CONNECTION = "connection"
    GROUP = "group"
    KIND = "kind"


@dataclass(frozen=True, slots=True)
class Pace:
    """`rate` of a rule: a bucket holds `burst` events and gains `per_minute` in a minute."""

    name: str
    """Of the rule, with all that it says: a rule that changes begins with full buckets."""
    per: Per
    burst: int
    per_minute: int


@dataclass(frozen=True, slots=True)
class Quota:
    """`quota` of a rule: the most that is stored of an author or in a group."""

    per: Per
    """AUTHOR or GROUP."""
    events: int | None = None
    bytes: int | None = None
    kinds: KindSet | None = None
    h: bool | frozenset[str] | None = None
    """Which rows count, as in a match."""

    def is_about(self, kind: int) -> bool:
        return self.kinds is None or kind in self.kinds

    def account_of(self, pubkey: str, group: str | None) -> Account | None:
        """What an event by this author, into this group, adds to; None: to nothing."""
        if self.per is Per.GROUP:
            counts = isinstance(self.h, bool) or self.h is None or group in self.h
            if group is None or self.h is False or not counts:
                return None
            return Account(None, self.kinds, frozenset({group}))
        return Account(pubkey, self.kinds, self.h)

    def objection(self, before: Size, after: Size) -> str | None:
        """What there is too much of after an event; None: nothing. Who is over the quota already
        may still do what adds nothing."""
        if self.events is not None and before.events < after.events > self.events:
            return f"full: at most {self.events} events may be stored"
        if self.bytes is not None and before.bytes < after.bytes > self.bytes:
            return f"full: at most {self.bytes} bytes may be stored, {before.bytes} are"
        return None


@dataclass(frozen=True, slots=True)
class Meter:
    """What a rule says about how much: asked when nothing else stands against an event."""

    rule: str
    pace: Pace | None = None
    quota: Quota | None = None
    reject: str | None = None
    """What the author is told, in the admin's words."""

    def too_fast(self, wait_s: int) -> Reject:
        text = self.reject or f"too many events; try again in {wait_s} s"
        return Reject(Prefix.RATE_LIMITED, text, self.rule)

    def too_much(self, before: Size, after: Size) -> Reject | None:
        """What the quota says to an event that makes one of the other; None: it has room."""
        text = None if self.quota is None else self.quota.objection(before, after)
        return None if text is None else Reject(Prefix.RATE_LIMITED, self.reject or text, self.rule)


_FULL_MINUTE: Final = 60
"""A bucket is counted in 60ths of an event: it gains `per_minute` of them each second."""


class Buckets:
    """How many events are left of each allowance, by pace and by name.

    Counts at most `most` at a time: of more the one that was used longest ago is forgotten, which
    is full by then unless somebody has that many names.
    """

    def __init__(self, most: int = _BUCKETS) -> None:
        self._most = most
        self._left: OrderedDict[tuple[str, str], tuple[int, int]] = OrderedDict()
        """(60ths of an event, unix seconds when that was so); the longest unused first."""

    def __len__(self) -> int:
        return len(self._left)

    def wait_s(self, pace: Pace, name: str, now: int) -> int:
        """In how many seconds one more may come; 0: now."""
        lacking = _FULL_MINUTE - self._filled(pace, name, now)
        return max(0, -(-lacking // pace.per_minute))

    def take(self, pace: Pace, name: str, now: int) -> None:
        """Count an event that `wait_s` lets come."""
        key = (pace.name, name)
        self._left[key] = self._filled(pace, name, now) - _FULL_MINUTE, now
        self._left.move_to_end(key)
        if len(self._left) > self._most:
            self._left.popitem(last=False)

    def _filled(self, pace: Pace, name: str, now: int) -> int:
        full = pace.burst * _FULL_MINUTE
        left, since = self._left.get((pace.name, name), (full, now))
        if now < since:
            return full  # the clock was set back: better too much once than shut out for long
        return min(full, left + (now - since) * pace.per_minute)


@dataclass(frozen=True, slots=True)
class Coming:
    """An event that nothing else stands against."""

    event: Event
    group: str | None
    origin: Origin
    connection: int | None
    is_stored: bool
    """False: passed on, and needs no room."""
    replaced: Row | None
    """Whose place it takes."""

    def counted_as(self, per: Per) -> str | None:
        """The name that a rate counts it under; None: it does not count."""
        match per:
            case Per.AUTHOR:
                return self.event.pubkey
            case Per.CONNECTION:
                return str(self.connection)
            case Per.GROUP:
                return self.group
            case Per.KIND:
                return str(self.event.kind)
            case _:
                assert_never(per)

    def beyond(self, meter: Meter, ledger: UsageCounter) -> Reject | None:
        """What a quota says."""
        event, quota = self.event, meter.quota
        account = None if quota is None else quota.account_of(event.pubkey, self.group)
        if account is None or not self.is_stored:
            return None
        before = ledger.size_of(account)
        after = before.plus(Size(1, len(event.raw)))
        held = self.replaced
        if held is not None and account.has(event.pubkey, event.kind, held.group):
            after = after.minus(Size(1, len(held.event.raw)))
        return meter.too_much(before, after)


def excess(
    meters: Iterable[Meter], coming: Coming, ledger: UsageCounter, buckets: Buckets, now: int
) -> Reject | None:
    """What the first meter objects to that has too much; None: all have counted the event.

    Of several all count, or none.
    """
    taken: list[tuple[Pace, str]] = []
    for meter in meters:
        full = coming.beyond(meter, ledger)
        if full is not None:
            return full
        pace = meter.pace
        name = None if pace is None else coming.counted_as(pace.per)
        if pace is None or name is None or coming.origin is not Origin.WIRE:
            continue
        wait = buckets.wait_s(pace, name, now)
        if wait > 0:
            return meter.too_fast(wait)
        taken.append((pace, name))
    for pace, name in taken:
        buckets.take(pace, name, now)
    return None
