"""Quotas (rows and bytes that may be stored), rates (events per minute), invite code guesses.

Invariants: pure; `now` is an argument. Checks (`wait_s`, `allows`, `check_usage_limits`) change
nothing; counting is a separate call, made only for accepted events. Counters live as long as the
process and have bounded memory.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass, field
from enum import Enum
from ipaddress import IPv4Address, IPv6Address, IPv6Network
from typing import TYPE_CHECKING, Final, NamedTuple, assert_never

import msgspec

from relay.access.read_rules import Row
from relay.access.shares import network_of
from relay.errors import Prefix, Reject
from relay.nostr import kinds
from relay.nostr.event import Event, is_hex64

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from relay.nostr.kinds import KindSet

# -- usage: what is stored ------------------------------------------------------------------------


class Size(NamedTuple):
    """A number of rows, and the bytes of their JSON."""

    events: int = 0
    bytes: int = 0

    def plus(self, other: Size) -> Size:
        return Size(self.events + other.events, self.bytes + other.bytes)

    def minus(self, other: Size) -> Size:
        return Size(self.events - other.events, self.bytes - other.bytes)


_NO_KEYS: Final = frozenset[str]()


class Account(NamedTuple):
    """The rows that a quota adds up: those of an author, of groups, or of both, optionally of some
    kinds; or the gift wraps for a recipient."""

    pubkey: str | None
    """None: any author."""
    kinds: KindSet | None = None
    h: bool | frozenset[str] | None = None
    """As in a match: rows of any group, of no group, of these groups."""
    recipient: str | None = None
    """Only gift wraps to this key, by any author; the other conditions do not apply."""

    def has(
        self,
        pubkey: str,
        kind: int,
        group: str | None,
        recipients: frozenset[str] = _NO_KEYS,
    ) -> bool:
        """Whether a row of this author, kind and group, for these recipients, counts."""
        if self.recipient is not None:
            return self.recipient in recipients
        if self.pubkey is not None and pubkey != self.pubkey:
            return False
        if self.kinds is not None and kind not in self.kinds:
            return False
        if isinstance(self.h, bool):
            return (group is not None) is self.h
        return self.h is None or group in self.h


MAX_RECIPIENTS: Final = 16
"""A gift wrap with more recipients counts for none of them. NIP-59 has one recipient."""


def recipients_of(event: Event) -> frozenset[str]:
    """The recipients that a gift wrap counts for. Empty when it has more than MAX_RECIPIENTS: where
    recipients have a quota, `check_usage_limits` refuses it."""
    if event.kind != kinds.GIFT_WRAP:
        return _NO_KEYS
    named = frozenset(event.tag_values("p"))
    return _NO_KEYS if len(named) > MAX_RECIPIENTS else frozenset(filter(is_hex64, named))


def accounts_of_recipients(event: Event) -> list[Account]:
    return [Account(None, recipient=key) for key in sorted(recipients_of(event))]


class SizedBy(Enum):
    """What the lines of a table of sizes are grouped by."""

    KIND = "kind"
    AUTHOR = "author"
    GROUP = "group"
    """Rows of no group have a line, too: None."""


class Sized(NamedTuple):
    """One line of such a table."""

    of: int | str | None
    size: Size


@dataclass(slots=True)
class UsageCounter:
    """Sizes per account, updated as the events of a batch add and remove rows.

    The store keeps the numbers in the transaction that changes its rows.
    """

    _sizes: dict[Account, Size] = field(default_factory=dict)
    _by_author: dict[str | None, list[Account]] = field(default_factory=dict)

    def __contains__(self, account: Account) -> bool:
        return account in self._sizes

    def open(self, account: Account, size: Size) -> None:
        """Set what the store holds of an account."""
        if account not in self._sizes and account.recipient is None:
            self._by_author.setdefault(account.pubkey, []).append(account)
        self._sizes[account] = size

    def size_of(self, account: Account) -> Size:
        """Raises KeyError for an account that was not opened."""
        return self._sizes[account]

    def add(self, event: Event, group: str | None) -> None:
        """Count a new row."""
        if not self._sizes:
            return
        size = Size(1, len(event.raw))
        for account in self._with(event, group):
            self._sizes[account] = self._sizes[account].plus(size)

    def remove(self, event: Event, group: str | None) -> None:
        """Count off a removed row."""
        size = Size(1, len(event.raw))
        for account in self._with(event, group):
            self._sizes[account] = self._sizes[account].minus(size)

    def _with(self, event: Event, group: str | None) -> list[Account]:
        if not self._sizes:
            return []
        # A batch may have thousands of recipients: each is looked up, not gone through.
        of_recipients = filter(self._sizes.__contains__, accounts_of_recipients(event))
        of_authors = [
            account
            for owner in (event.pubkey, None)
            for account in self._by_author.get(owner, ())
            if account.has(event.pubkey, event.kind, group)
        ]
        return [*of_authors, *of_recipients]


# -- guesses --------------------------------------------------------------------------------------

WINDOW_S: Final = 60
GUESSES_PER_KEY: Final = 30
GUESSES_PER_ADDRESS: Final = 300
VANISHED_PER_ADDRESS: Final = 30
"""Requests to vanish per minute, by keys without stored rows: each request is kept for ever."""
_MAX_NAMES: Final = 10_000


class MinuteCounter:
    """At most `limit` per name and minute. Keeps at most `max_names` names; the one whose minute
    began first is dropped."""

    def __init__(self, limit: int, *, max_names: int = _MAX_NAMES) -> None:
        self._limit = limit
        self._max_names = max_names
        self._counted: dict[str, tuple[int, int]] = {}
        """name → (Unix seconds of the first in its minute, number), in order of the first."""

    def allows(self, name: str, now: int) -> bool:
        return self._window(name, now)[1] < self._limit

    def count(self, name: str, now: int) -> bool:
        """Count one if `allows` permits it. True: it was counted."""
        began, count = self._window(name, now)
        if count >= self._limit:
            return False
        if not count:
            self._counted.pop(name, None)
            if len(self._counted) >= self._max_names:
                del self._counted[next(iter(self._counted))]
        self._counted[name] = began, count + 1
        return True

    def _window(self, name: str, now: int) -> tuple[int, int]:
        began, count = self._counted.get(name, (now, 0))
        return (began, count) if 0 <= now - began < WINDOW_S else (now, 0)


class Guesses:
    """Invite codes tried (N29-39), and wraps refused because their recipient is not known here: 30
    a minute by each guesser, 300 per address.

    All clients without a known address count as one address.
    """

    def __init__(self) -> None:
        self._by_key = MinuteCounter(GUESSES_PER_KEY)
        self._by_address = MinuteCounter(GUESSES_PER_ADDRESS)

    def allows(self, guesser: str, address: IPv4Address | IPv6Address | None, now: int) -> bool:
        """`guesser`: a key, or a key and the address that it is used from without a login."""
        return self._by_address.allows(subnet_of(address), now) and self._by_key.allows(
            guesser, now
        )

    def count(self, guesser: str, address: IPv4Address | IPv6Address | None, now: int) -> None:
        # The address first: one client with many keys must not fill the counters of keys.
        if self._by_address.count(subnet_of(address), now):
            self._by_key.count(guesser, now)


def subnet_of(address: IPv4Address | IPv6Address | None) -> str:
    """The address; for IPv6 its /64 without a zone, which is usually one household."""
    if isinstance(address, IPv6Address):
        if address.ipv4_mapped is None:
            return str(IPv6Network((int(address), 64), strict=False))
        address = address.ipv4_mapped
    return str(address)


# -- `rate` and `quota` of policy rules -----------------------------------------------------------


class Per(Enum):
    """What a rate or quota counts separately."""

    AUTHOR = "author"
    CONNECTION = "connection"
    ADDRESS = "address"
    """The client's; of IPv6 its /64."""
    NETWORK = "network"
    """That of the client's address: /24, of IPv6 /48."""
    GROUP = "group"
    KIND = "kind"
    RECIPIENT = "recipient"
    """Recipient of a gift wrap; for quotas only."""
    RELAY = "relay"
    """All clients together."""


class Unit(Enum):
    """What a token pays for."""

    EVENTS = "events"
    BYTES = "bytes"
    SIGNED = "signed"
    """Bytes of the descriptions and lists of groups that the relay signs because of the event; for
    rates only."""


_STAY: Final = frozenset(kinds.GROUP_RECORDS) - {
    kinds.DELETE_EVENT,
    kinds.DELETE_GROUP,
    kinds.LEAVE_REQUEST,
}
"""Kinds whose tags stay in memory as part of a group."""
_VALUE_BYTES: Final = 64
"""What a value of a tag takes in memory beside its bytes, about."""


@dataclass(frozen=True, slots=True)
class Rate:
    """`rate` of a rule: a token bucket of `burst` tokens, refilled with `refill` a minute."""

    name: str
    """The rule with all its keys: an edited rule starts with full buckets."""
    per: Per
    burst: int
    refill: int
    """Tokens for every `period_s`."""
    period_s: int = 60
    counts: Unit = Unit.EVENTS

    def cost_of(self, event: Event, signed: int = 0) -> int:
        """Tokens that the event takes; `signed`: see `Unit.SIGNED`. What a change of a group names
        stays in memory, where short values take many times their bytes."""
        if self.counts is Unit.EVENTS:
            return 1
        if self.counts is Unit.SIGNED:
            return min(signed, self.burst)
        if event.kind not in _STAY:
            return len(event.raw)
        return len(event.raw) + _VALUE_BYTES * sum(map(len, event.tags))


@dataclass(frozen=True, slots=True)
class Quota:
    """`quota` of a rule: the most that may be stored per author, group or recipient; or in a day,
    per address, network or of all clients together."""

    per: Per
    """AUTHOR, GROUP, RECIPIENT, ADDRESS, NETWORK or RELAY."""
    events: int | None = None
    bytes: int | None = None
    kinds: KindSet | None = None
    h: bool | frozenset[str] | None = None
    """Which rows count, as in a match."""
    allowances: tuple[Rate, ...] = ()
    """Only for ADDRESS, NETWORK and RELAY: a bucket for the events of a day, and one for their
    bytes. Addresses are not stored, so the buckets are full after a restart."""

    @property
    def is_of_a_day(self) -> bool:
        """What is stored is not added up: only `allowances` count."""
        return self.per in (Per.ADDRESS, Per.NETWORK, Per.RELAY)

    def counts(self, kind: int) -> bool:
        return self.kinds is None or kind in self.kinds

    def accounts_of(self, event: Event, group: str | None) -> Sequence[Account]:
        """The accounts that the event adds to in this group."""
        if self.per is Per.RECIPIENT:
            return accounts_of_recipients(event)
        account = None if self.is_of_a_day else self.account_of(event.pubkey, group)
        return () if account is None else (account,)

    def account_of(self, pubkey: str, group: str | None) -> Account | None:
        """The account that an event by this author in this group counts for, with AUTHOR or GROUP;
        None: none."""
        if self.per is Per.GROUP:
            counts = isinstance(self.h, bool) or self.h is None or group in self.h
            if group is None or self.h is False or not counts:
                return None
            return Account(None, self.kinds, frozenset({group}))
        return Account(pubkey, self.kinds, self.h)

    @property
    def text(self) -> str:
        """`10 events, 500 bytes`"""
        parts = ((self.events, "events"), (self.bytes, "bytes"))
        return ", ".join(f"{number} {what}" for number, what in parts if number is not None)

    def refusal(self, before: Size, after: Size) -> str | None:
        """Why the change of the account from `before` to `after` exceeds the quota, or None. An
        event that adds nothing never exceeds it."""
        if self.events is not None and before.events < after.events > self.events:
            return f"full: at most {self.events} events may be stored"
        if self.bytes is not None and before.bytes < after.bytes > self.bytes:
            return f"full: at most {self.bytes} bytes may be stored, {before.bytes} are"
        return None


@dataclass(frozen=True, slots=True)
class UsageLimit:
    """`rate` and `quota` of one rule."""

    rule: str
    rate: Rate | None = None
    quota: Quota | None = None
    reject: str | None = None
    """The admin's own text for the author."""

    @property
    def adds_up_groups(self) -> bool:
        """Whether the quota adds up what is stored of a group."""
        return self.quota is not None and self.quota.per is Per.GROUP

    def too_fast(self, wait_s: int) -> Reject:
        text = self.reject or f"too many events; try again in {wait_s} s"
        return Reject(Prefix.RATE_LIMITED, text, self.rule)

    def too_much_today(self) -> Reject:
        assert self.quota is not None
        per = self.quota.per
        whose = "all clients together" if per is Per.RELAY else f"one {per.value}"
        text = self.reject or f"full: at most {self.quota.text} a day from {whose}"
        return Reject(Prefix.RATE_LIMITED, text, self.rule)

    def over_quota(self, before: Size, after: Size) -> Reject | None:
        text = None if self.quota is None else self.quota.refusal(before, after)
        return None if text is None else Reject(Prefix.RATE_LIMITED, self.reject or text, self.rule)


_MAX_BUCKETS: Final = 50_000
"""Of each `Per`: some 15 MB when all are in use."""


class TokenBuckets:
    """One token bucket for each (rate, name).

    Of each `Per` at most `max_buckets` are kept; the least recently used is dropped, which is full
    by then unless that many names are active. One address may have any number of keys and
    connections: their buckets take no place of those of addresses, which may be of a day.
    """

    def __init__(self, max_buckets: int = _MAX_BUCKETS) -> None:
        self._max_buckets = max_buckets
        self._levels: dict[Per, OrderedDict[tuple[str, str], tuple[int, int]]] = {
            per: OrderedDict() for per in Per
        }
        """(level, Unix seconds of that level); least recently used first. A level counts fractions
        of a token, `period_s` to one: a bucket gains `refill` of them each second."""

    def __len__(self) -> int:
        return sum(map(len, self._levels.values()))

    def wait_s(self, rate: Rate, name: str, now: int, cost: int = 1) -> int:
        """Seconds until there are `cost` tokens; 0: there are."""
        lacking = cost * rate.period_s - self._level(rate, name, now)
        return max(0, -(-lacking // rate.refill))

    def take(self, rate: Rate, name: str, now: int, cost: int = 1) -> None:
        """Take tokens, after `wait_s` has returned 0 for them."""
        key, levels = (rate.name, name), self._levels[rate.per]
        levels[key] = self._level(rate, name, now) - cost * rate.period_s, now
        levels.move_to_end(key)
        if len(levels) > self._max_buckets:
            levels.popitem(last=False)

    def _level(self, rate: Rate, name: str, now: int) -> int:
        full = rate.burst * rate.period_s
        level, since = self._levels[rate.per].get((rate.name, name), (full, now))
        if now < since:
            return full  # the clock was set back: one burst too many is better than a long lockout
        return min(full, level + (now - since) * rate.refill)


Token = tuple[Rate, str, int]
"""(rate, name, number of tokens to take from the bucket)."""


class CountedEvent(msgspec.Struct, frozen=True, gc=False):
    """An event that would be stored or passed on, as rates and quotas see it."""

    event: Event
    group: str | None
    """The group of its row, whose size quotas limit."""
    h: str | None
    """The group that it names itself, whose pace rates limit: what names a row of a group without
    `h` may be by anybody who reads it, and takes nothing of the pace of those who write there."""
    connection: int | None
    """None: it came over none, and counts for its address instead."""
    is_rated: bool
    """False: rates do not apply (imports)."""
    is_stored: bool
    """False: ephemeral; quotas do not apply."""
    replaces: Row | None
    address: IPv4Address | IPv6Address | None = None
    is_own: bool = True
    """Its author is logged in on the connection. False: it has no part in the author's bucket, or
    anybody could use that up by sending what the author signed for other relays."""
    is_told: bool = True
    """False: its buckets are not those on which other answers depend."""
    signed: int = 0
    """See `Unit.SIGNED`."""
    is_sent: bool = True
    """By a client. False: rates and quotas per connection, address or network, or of all clients,
    do not apply (imports)."""

    def bucket(self, per: Per) -> str | None:
        """The name of the event's bucket; None: it has none."""
        name = self._name(per)
        return name if name is None or self.is_told else f"untold {name}"

    def _name(self, per: Per) -> str | None:
        match per:
            case Per.AUTHOR:
                pubkey = self.event.pubkey
                if self.is_own or not self.is_sent:
                    return pubkey
                return f"{pubkey} from {subnet_of(self.address)}"
            case Per.CONNECTION | Per.ADDRESS | Per.NETWORK | Per.RELAY if not self.is_sent:
                return None
            case Per.CONNECTION if self.connection is not None:
                return str(self.connection)
            case Per.CONNECTION | Per.ADDRESS:
                # All clients without a known address share a bucket.
                return subnet_of(self.address)
            case Per.NETWORK:
                return network_of(subnet_of(self.address))
            case Per.GROUP:
                return self.h
            case Per.KIND:
                return str(self.event.kind)
            case Per.RELAY:
                return "all"
            case Per.RECIPIENT:
                return None
            case _:
                assert_never(per)

    def over_quota(self, limit: UsageLimit, usage: UsageCounter) -> Reject | None:
        event, quota = self.event, limit.quota
        if quota is None or not self.is_stored:
            return None
        if quota.per is Per.RECIPIENT and len(set(event.tag_values("p"))) > MAX_RECIPIENTS:
            text = f"p: a gift wrap for more than {MAX_RECIPIENTS} recipients"
            return Reject(Prefix.INVALID, text, limit.rule)
        for account in quota.accounts_of(event, self.group):
            before = usage.size_of(account)
            after = before.plus(Size(1, len(event.raw)))
            replaced = self.replaces
            if replaced is not None and account.has(event.pubkey, event.kind, replaced.group):
                after = after.minus(Size(1, len(replaced.event.raw)))
            refusal = limit.over_quota(before, after)
            if refusal is not None:
                return refusal
        return None


def check_usage_limits(
    limits: Iterable[UsageLimit],
    counted: CountedEvent,
    usage: UsageCounter,
    buckets: TokenBuckets,
    now: int,
) -> Reject | Sequence[Token]:
    """The refusal of the first limit that is exceeded, else the tokens to take for all rates."""
    tokens: list[Token] = []
    for limit in limits:
        refusal = counted.over_quota(limit, usage)
        if refusal is not None:
            return refusal
        if not counted.is_rated:
            continue
        rate, quota = limit.rate, limit.quota
        name = None if rate is None else counted.bucket(rate.per)
        if rate is not None and name is not None:
            cost = rate.cost_of(counted.event, counted.signed)
            wait_s = buckets.wait_s(rate, name, now, cost)
            if wait_s > 0:
                return limit.too_fast(wait_s)
            tokens.append((rate, name, cost))
        if quota is None or not quota.is_of_a_day or not counted.is_stored:
            continue
        name = counted.bucket(quota.per)
        if name is None:
            continue
        for allowance in quota.allowances:
            cost = allowance.cost_of(counted.event)
            if buckets.wait_s(allowance, name, now, cost) > 0:
                return limit.too_much_today()
            tokens.append((allowance, name, cost))
    return tokens
