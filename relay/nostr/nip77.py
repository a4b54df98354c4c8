"""NIP-77: negentropy protocol version 1, range-based set reconciliation.

Invariants: only (timestamp, id) is compared; sessions and limits belong to `relay.read.negentropy`.
A set is one array of timestamps and one byte string of ids, without an object per item: a million
items take 40 MB. Lower bounds are inclusive, upper bounds exclusive (N77-23).
"""

from __future__ import annotations

import sys
from array import array
from bisect import bisect_left, bisect_right
from enum import IntEnum
from hashlib import sha256
from itertools import accumulate, compress, islice
from operator import eq, gt, itemgetter, le
from typing import TYPE_CHECKING, Final, NamedTuple, assert_never

from relay.errors import Invalid

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

VERSION: Final = 0x61
FRAME_BYTES: Final = 500_000  # strfry's limit for one message (N77-10, N77-32)

_ID: Final = 32
_FINGERPRINT: Final = 16
_INFINITY: Final = 2**64 - 1
_BUCKETS: Final = 16
_RESERVE: Final = (
    200  # bytes of a frame kept free for the end of the current range and the closing one
)
_BLOCK: Final = 256  # items per precomputed sum
_MAX_GROUPS: Final = 4096
"""Of a set; with more they count as unknown: the loop hashes and sorts these in 2 ms."""


class Mode(IntEnum):
    """Mode of a range (N77-26)."""

    SKIP = 0
    FINGERPRINT = 1
    ID_LIST = 2


class Bound(NamedTuple):
    """A range bound; missing bytes of the id prefix count as zero (N77-24)."""

    timestamp: int
    prefix: bytes = b""


_END: Final = Bound(_INFINITY)
_OF_NOTHING: Final = sha256(bytes(_ID + 1)).digest()[:_FINGERPRINT]


class Items:
    """A set of (timestamp, id), ascending by timestamp, then by the bytes of the id."""

    __slots__ = ("_groups", "_ids", "_sums", "_timestamps", "_words")

    def __init__(
        self,
        timestamps: array[int],
        ids: bytes | bytearray,
        sums: list[int] | None = None,
        groups: Iterable[str] | None = None,
    ) -> None:
        """`timestamps`: array("Q"), ascending, below 2^64 - 1; `ids`: 32 bytes each, concatenated,
        without duplicates, in any order within a second. `sums`: of an `ItemsBuilder`. `groups`:
        all that an item is of; None: not known.

        Does not copy them: they must not be modified. Raises ValueError when lengths or order
        are wrong. A million items take 0.2 s and 40 MB including the two arguments.
        """
        # By their hashes: 8 bytes each, and what is equal by chance only counts as one of them.
        self._groups = None if groups is None else array("q", sorted(set(map(hash, groups))))
        if sums is not None:
            self._timestamps, self._ids, self._sums = timestamps, ids, sums
            self._words = _little_endian_words(ids)
            return
        if len(ids) != _ID * len(timestamps) or timestamps.typecode != "Q":
            raise ValueError("items: 64-bit timestamps and 32 bytes of id for each are needed")
        if any(map(gt, timestamps, islice(timestamps, 1, None))):
            raise ValueError("items: timestamps must ascend")
        self._timestamps = timestamps
        self._ids = _sorted_within_seconds(timestamps, ids)
        self._words = _little_endian_words(self._ids)
        starts = range(0, len(self) - _BLOCK + 1, _BLOCK)
        blocks = (_sum_of(self._words[4 * at : 4 * (at + _BLOCK)]) for at in starts)
        self._sums = list(accumulate(blocks, initial=0))

    def __len__(self) -> int:
        return len(self._timestamps)

    def may_be_of(self, groups: Iterable[str]) -> bool:
        """Whether an item may be of one of these groups."""
        own = self._groups
        return own is None or any(
            own[place : place + 1] == array("q", [hash(each)])
            for each in groups
            for place in [bisect_left(own, hash(each))]
        )

    def id(self, index: int) -> bytes:
        return bytes(self._ids[_ID * index : _ID * (index + 1)])

    def ids(self, first: int, last: int) -> bytes:
        """The ids of [first, last), 32 bytes each."""
        return bytes(self._ids[_ID * first : _ID * last])

    def place(self, bound: Bound, lowest: int) -> int:
        """Index of the first item at or above the bound; the search starts at `lowest`."""
        start = bisect_left(self._timestamps, bound.timestamp, lowest)
        if not bound.prefix:
            return start
        end = bisect_right(self._timestamps, bound.timestamp, start)
        return bisect_left(range(end), bound.prefix, start, end, key=self.id)

    def bound_before(self, index: int) -> Bound:
        """The shortest bound between the previous item and this one (N77-31)."""
        timestamp, id_ = self._timestamps[index], self.id(index)
        if self._timestamps[index - 1] != timestamp:
            return Bound(timestamp)
        pairs = zip(self.id(index - 1), id_, strict=True)
        differing = (at for at, (before, here) in enumerate(pairs) if before != here)
        # An id that is there twice has none: there may be such rows.
        return Bound(timestamp, id_[: next(differing, _ID) + 1])

    def bound_at(self, index: int) -> Bound:
        """The item itself as a bound."""
        return Bound(self._timestamps[index], self.id(index))

    def fingerprint(self, first: int, last: int) -> bytes:
        """16 bytes for the ids of [first, last) (N77-28)."""
        total = self._sum(first, last) % 2**256
        return sha256(total.to_bytes(_ID, "little") + varint(last - first)).digest()[:_FINGERPRINT]

    def _sum(self, first: int, last: int) -> int:
        # Ranges of one message do not overlap, so all of them together cost at most one pass over
        # the set.
        from_block, to_block = -(-first // _BLOCK), last // _BLOCK
        if from_block >= to_block:
            return self._sum_items(first, last)
        edges = self._sum_items(first, from_block * _BLOCK) + self._sum_items(
            to_block * _BLOCK, last
        )
        return edges + self._sums[to_block] - self._sums[from_block]

    def _sum_items(self, first: int, last: int) -> int:
        return _sum_of(self._words[4 * first : 4 * last])


class ItemsBuilder:
    """Makes Items of rows that come in pieces, with an equal part of the work for each piece."""

    def __init__(self) -> None:
        self._timestamps = array("Q")
        self._ids = bytearray()
        self._sums = [0]
        self._groups: set[str | bytes] | None = set()
        self._last: tuple[int, bytes, str | bytes] = -1, b"", ""
        self._is_sorted = True

    def __len__(self) -> int:
        return len(self._timestamps)

    def add(self, rows: Sequence[tuple[int, bytes, str | bytes]]) -> None:
        """The next rows, of timestamp and id, as in Items, and group, empty for none."""
        if not rows:
            return
        self._is_sorted &= self._last <= rows[0] and all(map(le, rows, islice(rows, 1, None)))
        self._last = rows[-1]
        self._timestamps.extend(map(itemgetter(0), rows))
        self._ids += b"".join(map(itemgetter(1), rows))
        if self._groups is not None:
            self._groups.update(map(itemgetter(2), rows))
            if len(self._groups) > _MAX_GROUPS:
                self._groups = None
        start = (len(self._sums) - 1) * _BLOCK
        words = _little_endian_words(bytes(memoryview(self._ids)[_ID * start :]))
        for at in range(0, len(self) - start - _BLOCK + 1, _BLOCK):
            block = words[4 * at : 4 * (at + _BLOCK)]
            self._sums.append(self._sums[-1] + _sum_of(block))

    def items(self) -> Items:
        """The last step: nearly nothing if they came sorted by id within each second. Nothing may
        be added after it."""
        sums = self._sums if self._is_sorted else None
        groups = self._groups
        if groups is None:
            return Items(self._timestamps, self._ids, sums)
        named = [each if isinstance(each, str) else each.decode() for each in groups]
        return Items(self._timestamps, self._ids, sums, named)


def _sum_of(words: memoryview[int]) -> int:
    # 64-bit words: 90 ns per item, half of what one big integer per id takes.
    return sum(sum(words[lane::4]) << 64 * lane for lane in range(4))


def _sorted_within_seconds(timestamps: array[int], ids: bytes | bytearray) -> bytes | bytearray:
    # Nearly always sorted already: the store orders by a prefix of the id.
    ties = compress(range(1, len(timestamps)), map(eq, timestamps, islice(timestamps, 1, None)))
    unsorted = dict.fromkeys(
        timestamps[tie]
        for tie in ties
        if ids[_ID * (tie - 1) : _ID * tie] > ids[_ID * tie : _ID * (tie + 1)]
    )
    if not unsorted:
        return ids
    pieces: list[bytes | bytearray | memoryview] = []
    done = 0
    for second in unsorted:
        first = _ID * bisect_left(timestamps, second)
        last = _ID * bisect_right(timestamps, second)
        pieces.append(memoryview(ids)[done:first])
        pieces += sorted(ids[at : at + _ID] for at in range(first, last, _ID))
        done = last
    return b"".join((*pieces, memoryview(ids)[done:]))


def _little_endian_words(ids: bytes | bytearray) -> memoryview[int]:
    if sys.byteorder == "little":
        return memoryview(ids).cast("Q")
    swapped = array("Q", ids)
    swapped.byteswap()
    return memoryview(swapped)


def reply_to(message: bytes, items: Items, frame_bytes: int = FRAME_BYTES) -> bytes:
    """The relay's reply, at most `frame_bytes` long (N77-22…32).

    Stateless. Raises Invalid naming what is malformed. Time: linear in the message, plus at most
    two passes over the items.
    """
    ranges = _Reader(message)
    if ranges.version != VERSION:
        return bytes((VERSION,))
    out = _Writer(frame_bytes)
    upper = 0
    while ranges.more() and not out.closed:
        bound, mode = ranges.head()
        lower, upper = upper, items.place(bound, upper)
        match mode:
            case Mode.SKIP:
                out.skip(bound)
            case Mode.FINGERPRINT:
                _compare(ranges.take(_FINGERPRINT), items, lower, upper, bound, out)
            case Mode.ID_LIST:
                ranges.take(_ID * ranges.varint())  # the client compares; the reply lists our ids
                end = min(upper, lower + out.ids_that_fit())
                out.ids(bound if end == upper else items.bound_at(end), items.ids(lower, end))
                if out.is_full():
                    out.close(items, end)
            case _:
                assert_never(mode)
    return out.message()


class Initiator:
    """The client side.

    `have`: ids that only we have. `need`: ids that only the relay has. Both are final for the
    ranges compared so far; the caller may empty them between messages.
    """

    def __init__(self, items: Items, frame_bytes: int = FRAME_BYTES) -> None:
        self.have: set[bytes] = set()
        self.need: set[bytes] = set()
        self._items = items
        self._frame_bytes = frame_bytes

    def first(self) -> bytes:
        """The first message (N77-33)."""
        out = _Writer(self._frame_bytes)
        _write_split(self._items, 0, len(self._items), _END, out)
        return out.message()

    def reply(self, message: bytes) -> bytes | None:
        """The next message, or None when the comparison is complete. Raises Invalid.

        Does not end with a relay that never agrees: the caller must limit rounds or time.
        """
        ranges = _Reader(message)
        if ranges.version != VERSION:
            raise Invalid("negentropy: the relay does not support version 1")
        out = _Writer(self._frame_bytes)
        upper = 0
        while ranges.more() and not out.closed:
            bound, mode = ranges.head()
            lower, upper = upper, self._items.place(bound, upper)
            match mode:
                case Mode.SKIP:
                    out.skip(bound)
                case Mode.FINGERPRINT:
                    theirs = ranges.take(_FINGERPRINT)
                    _compare(theirs, self._items, lower, upper, bound, out)
                case Mode.ID_LIST:
                    theirs = ranges.take(_ID * ranges.varint())
                    self._add_differences(
                        _separate(self._items.ids(lower, upper)), _separate(theirs)
                    )
                    out.skip(bound)
                case _:
                    assert_never(mode)
        reply = out.message()
        return None if len(reply) == 1 else reply

    def _add_differences(self, ours: set[bytes], theirs: set[bytes]) -> None:
        self.have |= ours - theirs
        self.need |= theirs - ours


def _separate(ids: bytes) -> set[bytes]:
    return {ids[at : at + _ID] for at in range(0, len(ids), _ID)}


def _compare(
    theirs: bytes, items: Items, lower: int, upper: int, bound: Bound, out: _Writer
) -> None:
    """Write the reply to their fingerprint of a range; nothing when `out` is full."""
    if items.fingerprint(lower, upper) == theirs:
        out.skip(bound)
        return
    start = out.flush_skip()
    _write_split(items, lower, upper, bound, out)
    if out.is_full():
        out.cut(start)
        # As in the reference implementation the closing fingerprint does not cover the cut range:
        # their items there make it differ. When they have none there, it must cover the range.
        out.close(items, lower if theirs == _OF_NOTHING else upper)


def _write_split(items: Items, lower: int, upper: int, bound: Bound, out: _Writer) -> None:
    """N77-30."""
    count = upper - lower
    if count < 2 * _BUCKETS:
        out.ids(bound, items.ids(lower, upper))
        return
    size, larger = divmod(count, _BUCKETS)
    for bucket in range(_BUCKETS):
        end = lower + size + (1 if bucket < larger else 0)
        upto = bound if end == upper else items.bound_before(end)
        out.fingerprint(upto, items.fingerprint(lower, end))
        lower = end


def varint(number: int) -> bytes:
    """Base 128, most significant digit first, in the shortest form (N77-21)."""
    digits = [number & 0x7F]
    while number := number >> 7:
        digits.append(number & 0x7F | 0x80)
    return bytes(reversed(digits))


class _Reader:
    """Parses a message front to back. Every method raises Invalid on malformed bytes."""

    def __init__(self, message: bytes) -> None:
        self._message = message
        self._place = 0
        self._timestamp = 0
        self.version = self._byte("version")
        if not 0x60 <= self.version <= 0x6F:
            raise Invalid(f"negentropy: first byte 0x{self.version:02x} is not a protocol version")

    def more(self) -> bool:
        return self._place < len(self._message)

    def head(self) -> tuple[Bound, Mode]:
        """Upper bound and mode of the next range."""
        timestamp = self._next_timestamp()
        length = self.varint()
        if length > _ID:
            raise Invalid(f"negentropy: id prefix of {length} bytes, at most {_ID} are allowed")
        bound = Bound(timestamp, self.take(length))
        mode = self.varint()
        try:
            return bound, Mode(mode)
        except ValueError:
            raise Invalid(f"negentropy: mode {mode} is unknown") from None

    def take(self, count: int) -> bytes:
        left = len(self._message) - self._place
        if count > left:
            raise Invalid(f"negentropy: message is truncated: {count} bytes expected, {left} left")
        self._place += count
        return self._message[self._place - count : self._place]

    def varint(self) -> int:
        byte = self._byte("number")
        if byte == 0x80:
            raise Invalid("negentropy: number is not in the shortest form")
        number = byte & 0x7F
        while byte & 0x80:
            byte = self._byte("number")
            number = number << 7 | byte & 0x7F
            if number > _INFINITY:
                raise Invalid("negentropy: number has more than 64 bits")
        return number

    def _next_timestamp(self) -> int:
        """N77-25."""
        step = self.varint()
        if step == 0 or self._timestamp == _INFINITY:
            self._timestamp = _INFINITY
        else:
            self._timestamp += step - 1
        if self._timestamp > _INFINITY:
            raise Invalid("negentropy: timestamp has more than 64 bits")
        return self._timestamp

    def _byte(self, what: str) -> int:
        if not self.more():
            raise Invalid(f"negentropy: message ends where a {what} is due")
        byte = self._message[self._place]
        self._place += 1
        return byte


class _Writer:
    """Puts a message together, range after range, by ascending bounds.

    Neighbouring skips become one, and the last is left out (N77-29). `_full` keeps a reserve that
    any one answer and the closing range fit in, so what is written never passes the frame.
    """

    def __init__(self, frame_bytes: int) -> None:
        self._out = bytearray((VERSION,))
        self._full = frame_bytes - _RESERVE
        self._timestamp = 0
        self._skipped: Bound | None = None
        self.closed = False

    def skip(self, upto: Bound) -> None:
        self._skipped = upto

    def fingerprint(self, upto: Bound, fingerprint: bytes) -> None:
        self.flush_skip()
        self._head(upto, Mode.FINGERPRINT)
        self._out += fingerprint

    def ids(self, upto: Bound, ids: bytes) -> None:
        self.flush_skip()
        self._head(upto, Mode.ID_LIST)
        self._out += varint(len(ids) // _ID)
        self._out += ids

    def flush_skip(self) -> int:
        """Write a pending skip; returns the length so far."""
        if self._skipped is not None:
            upto, self._skipped = self._skipped, None
            self._head(upto, Mode.SKIP)
        return len(self._out)

    def ids_that_fit(self) -> int:
        """Number of ids until the message is full; the last may use the reserve."""
        return max(0, self._full - len(self._out)) // _ID + 1

    def is_full(self) -> bool:
        return len(self._out) > self._full

    def cut(self, length: int) -> None:
        """Remove what was written after `length`. Only `close` may follow: its bound is not encoded
        relative to a previous timestamp."""
        del self._out[length:]

    def close(self, items: Items, first: int) -> None:
        """End with one fingerprint of the items from `first` on (N77-32)."""
        self.fingerprint(_END, items.fingerprint(first, len(items)))
        self.closed = True

    def message(self) -> bytes:
        return bytes(self._out)

    def _head(self, upto: Bound, mode: Mode) -> None:
        if upto.timestamp == _INFINITY:
            self._out.append(0)
        else:
            self._out += varint(upto.timestamp - self._timestamp + 1)
        self._timestamp = upto.timestamp
        self._out += varint(len(upto.prefix))
        self._out += upto.prefix
        self._out.append(mode)
