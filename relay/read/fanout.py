"""Live delivery: committed rows to the outboxes of subscriptions that match and may read them."""

from __future__ import annotations

import asyncio
import logging
from itertools import islice, takewhile
from time import perf_counter
from typing import TYPE_CHECKING, Final, NamedTuple, Protocol

from msgspec import structs

from relay.access.shares import Shares, Standing, network_of
from relay.access.visibility import Reading
from relay.errors import StoreFault
from relay.lifecycle.rows import Stored
from relay.nostr import kinds, messages
from relay.nostr.event import event_from_raw, indexed
from relay.nostr.nip50 import indexed_part, parted
from relay.read.linked_rows import NO_LINKS
from relay.read.outbox import LARGE_ROW, framed
from relay.read.subscriptions import Subscriptions

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Hashable, Iterable, Iterator, Sequence

    from relay.access.shares import Work
    from relay.access.visibility import RowReaders, Viewer
    from relay.nostr.event import Event
    from relay.nostr.filters import Filter
    from relay.nostr.nip50 import Search
    from relay.read.linked_rows import LinkedRows, Links
    from relay.read.outbox import FlushQueue, Outbox
    from relay.read.peer import Reader
    from relay.read.subscriptions import Entry, Key
    from relay.state import RelayState

_log = logging.getLogger(__name__)


class TextMatcher(Protocol):
    """Matches one text as the full-text index would."""

    def prepare(self, searches: Iterable[Search]) -> None:
        """Called before a subscription with these searches is opened: at the next event all
        subscribers would wait for that work."""

    def forget(self, searches: Iterable[Search]) -> None:
        """The subscription is closed."""

    def contains(self, text: str, search: Search) -> bool: ...


class Follower(Protocol):
    """Sends the backlog of a subscription whose client reads slowly."""

    def fell_behind(self, subscription: Subscription) -> None:
        """The client has left much unread: from now on live rows wait in a backlog."""


class Subscription:
    """One open REQ of one connection.

    Rows up to seq `cursor` are sent as stored rows, later ones live: none is missed, none is sent
    twice. Live rows wait in `backlog` until the stored rows are sent, unless one short read gave
    all of these, and while the client leaves much unread.
    """

    __slots__ = (
        "address",
        "backlog",
        "cursor",
        "filters",
        "follower",
        "is_closed",
        "last_delivery",
        "last_seq",
        "outbox",
        "part",
        "reader",
        "shared_by",
        "sub",
        "weight",
    )

    def __init__(
        self,
        sub: str,
        filters: tuple[Filter, ...],
        reader: Reader,
        outbox: Outbox,
        cursor: int,
        address: str | None = None,
    ) -> None:
        """`address`: see `Sharer.counted_as`."""
        self.sub = sub
        self.filters = filters
        self.reader = reader
        self.outbox = outbox
        self.cursor = cursor
        self.address = address
        self.backlog: Backlog | None = None
        """None: live rows are sent at once."""
        self.follower: Follower | None = None
        """None: a client that reads slowly gets its live rows all the same."""
        self.is_closed = False
        """Nothing is delivered any more."""
        self.part: Part | None = None
        """The part that delivers rows to it; None: it gets none."""
        self.shared_by = address
        """The address or admitted key that its filters count for while it is open."""
        self.weight = 0
        """As so many filters it counts there."""
        self.last_seq = cursor
        """Stored rows up to this seq are not delivered any more: they come in order of seq, and
        some are read again because their delivery was broken off."""
        self.last_delivery = 0
        """Number of the last row delivered, so that an event without a seq that matches two filters
        is sent once. The number and not the row: thousands of subscriptions would each keep a row
        in memory."""

    @property
    def head(self) -> bytes:
        """How its frames begin. Made anew each time: most subscriptions wait for their events, and
        would keep it in memory."""
        return messages.event_head(self.sub)

    @property
    def is_indexed(self) -> bool:
        """Whether rows are delivered to it."""
        return self.part is not None

    @property
    def has_overflowed(self) -> bool:
        """Rows were dropped from the backlog: CLOSED must follow, not a gap."""
        return self.backlog is not None and self.backlog.has_overflowed

    @property
    def delays(self) -> bool:
        """Whether the next live row waits in the backlog, which is begun if the client is
        behind."""
        if self.backlog is None and self.outbox.is_behind and self.follower is not None:
            self.follower.fell_behind(self)
        return self.backlog is not None

    def begin_backlog(self, max_rows: int) -> Backlog:
        """From now on live rows wait: at most so many, and as many bytes in all subscriptions of a
        connection as its outbox takes."""
        self.backlog = Backlog(self.outbox, max_rows)
        return self.backlog

    def end_backlog(self) -> None:
        """From now on live rows do not wait; those that did are dropped."""
        backlog, self.backlog = self.backlog, None
        if backlog is not None:
            backlog.drop(len(backlog.rows))


class Backlog:
    """Live rows that wait until the stored rows of a subscription are sent."""

    __slots__ = ("has_overflowed", "is_long", "max_rows", "outbox", "rows")

    def __init__(self, outbox: Outbox, max_rows: int) -> None:
        self.outbox = outbox
        self.max_rows = max_rows
        self.rows: list[tuple[int | Stored, Filter]] = []
        """seq of stored rows, which are read again, and events that are not stored, with the filter
        that matched."""
        self.has_overflowed = False
        self.is_long = False
        """The first page of stored rows takes more than a short read."""

    def add(self, row: Stored, filter_: Filter) -> None:
        if len(self.rows) >= self.max_rows or not self.outbox.may_hold:
            self.has_overflowed = True
            self.drop(len(self.rows))
        elif row.seq:
            self.rows.append((row.seq, filter_))
            self.outbox.hold(_HELD_SEQ)
        else:
            # Only its bytes: parsed tags can take twenty times as much memory.
            bare = structs.replace(row.event, tags=[], content="")
            self.rows.append((structs.replace(row, event=bare), filter_))
            self.outbox.hold(len(bare.raw))

    def next(self) -> tuple[Sequence[int] | Stored, Filter] | None:
        """What comes first: seqs of rows that match one filter, or an event that is not stored."""
        if not self.rows:
            return None
        first, filter_ = self.rows[0]
        if isinstance(first, Stored):
            return _whole(first), filter_
        run = takewhile(
            lambda entry: entry[1] is filter_ and isinstance(entry[0], int),
            self.rows[:_BACKLOG_ROWS],
        )
        return [seq for seq, _ in run if isinstance(seq, int)], filter_

    def drop(self, number: int) -> None:
        """The first rows were sent, or may not be read."""
        self.outbox.held_bytes -= sum(
            [
                _HELD_SEQ if isinstance(row, int) else len(row.event.raw)
                for row, _ in self.rows[:number]
            ]
        )
        del self.rows[:number]


def _whole(row: Stored) -> Stored:
    return structs.replace(row, event=event_from_raw(row.event.raw))


def _indexed(row: Stored) -> Stored:
    """The row with its tags indexed, for filters and readers. Not kept: it takes twice the
    memory."""
    event = indexed(row.event)
    return row if event is row.event else structs.replace(row, event=event)


class _Compared:
    """A row to be delivered, with the values that filters compare, each computed once."""

    __slots__ = (
        *("_readers", "_reads_by", "_rights", "_text"),
        *("compared", "frames", "is_public", "readings", "readings_alike", "stored"),
    )

    def __init__(self, row: Stored) -> None:
        self.stored = row
        self.compared = _indexed(row)
        self.frames: dict[str, bytes] = {}
        """Subscription id → the whole frame."""
        self._text: tuple[str | None] | None = None
        self._rights: int | None = None
        """`RelayState.rights` at the last `update_rights`."""
        self.is_public = False
        self.readings: dict[int, tuple[Viewer, Reading]] = {}
        """id() of a viewer that was looked at before → the viewer, and its `Reading` of the row;
        cleared when rights change. By id(): to compare two equal viewers of 64 keys takes 4 to 40
        us."""
        self.readings_alike: dict[Hashable, Reading] = {}
        """`alike` of viewers → their `Reading` of the row."""
        self._readers: RowReaders | None = None
        self._reads_by: dict[int, tuple[Filter, bool]] = {}
        """`may_read_by` by id() of the filter: equal ones are often one object."""

    def update_rights(self, state: RelayState) -> None:
        """Find out who may read the row, if rights have changed."""
        if self._rights != state.rights:
            self._rights = state.rights
            self.readings.clear()
            self.readings_alike.clear()
            self._reads_by.clear()
            self.is_public = state.is_public(self.stored)
            self._readers = None if self.is_public else state.row_readers(self.compared)

    def alike(self, viewer: Viewer) -> Hashable:
        """Equal for viewers who may read the row alike."""
        return viewer if self._readers is None else self._readers.alike(viewer)

    def may_read_by(self, filter_: Filter) -> bool | None:
        """As `RowReaders.may_read_by`; None: that also depends on other rows."""
        if self._readers is None:
            return None
        found = self._reads_by.get(id(filter_))
        if found is None:
            if len(self._reads_by) > _WORK_AT_ONCE:
                self._reads_by.clear()
            found = self._reads_by[id(filter_)] = filter_, self._readers.may_read_by(filter_)
        return found[1]

    def text(self, text_of: Callable[[Event], str | None]) -> str | None:
        if self._text is None:
            self._text = (text_of(self.stored.event),)
        return self._text[0]


class _Costs(NamedTuple):
    """Costs of the filters of a live subscription, in the units of `_MOST`."""

    unindexed: int = 0
    """Filters without an indexed condition: each is compared with every event."""
    searches: int = 0
    tags: int = 0
    """Tag conditions above `_FREE_TAGS` of a filter: each takes up to 0.3 us per event."""


def _costs_of(filters: Sequence[Filter]) -> _Costs | None:
    """The costs of a subscription's filters; None if it has none."""
    unindexed = searches = tags = 0
    for each in filters:
        tags += max(0, len(each.tags) - _FREE_TAGS)
        unindexed += each.is_wide and each.kinds is None
        if each.sought is not None:
            searches += _searches_in(each.sought)
    return _Costs(unindexed, searches, tags) if unindexed or searches or tags else None


def _searches_of(subscription: Subscription) -> list[Search]:
    return [each.sought for each in subscription.filters if each.sought is not None]


def _searches_in(search: Search) -> int:
    """Searches that a filter's `search` counts for: one, and one for each phrase. A phrase takes up
    to 15 us of the longest text, a word 1 us."""
    _, phrases = parted(search.required + search.excluded)
    return 1 + len(phrases)


_LINKS_S: Final = 1.0
"""Limit for looking up the links of rows to be delivered: all writes wait meanwhile."""
_MAX_LIVE_TEXT: Final = 16_384
"""Characters of an event that are compared with live searches: its tokens take 3 ms of the loop."""
_FREE_TAGS: Final = 3
"""Tag conditions per filter that cost nothing."""
_MOST: Final = _Costs(unindexed=2000, searches=512, tags=16_000)
"""Limits for all connections together, see `Shares`. At these limits an event takes 2 ms of the
loop for unindexed filters, 2 ms for searches (8 ms with phrases and the longest text) and 5 ms for
tags; twice as much when known keys of dozens of networks have what is ordinary, too."""
_ORDINARY: Final = 128
"""This fraction (1/128) of each limit is `ordinary` for an address with a known key: 15, 4 and 125.
With a larger one fewer networks could use up everything, see `Shares.room_for`. Addresses without a
known key have none, or they would leave known keys no more than that."""
_LARGE: Final = 16 << 10
"""Bytes. Above this no frame of a row is cached per subscription id: a client may use thousands of
ids."""
_BACKLOG_ROWS: Final = 100
"""Rows of a backlog that are read together."""
_HELD_SEQ: Final = 200
"""Bytes that a seq takes in a backlog."""
_TOGETHER: Final = 16
"""Most rows joined into one write, for subscriptions that get all of them."""
_WORK_AT_ONCE: Final = 500
"""Filters compared or frames made in one piece of work on the loop: up to 2 ms."""
_WORK_OF_VIEW: Final = 30
"""Work units of finding out what a viewer may read, after each change of a group: 60 us for one
key."""
_LOOKED_S: Final = 0.02
"""Work on the viewers of linked rows after which other tasks run."""
_MOST_OF_NETWORK: Final = 64
"""Filters of one network (IPv4 /24, IPv6 /48) that an event is compared with before the next events
are committed. Each takes up to 25 us, and the connections of sixteen networks may have 140,000."""
_KEYS_OF_ONE: Final = 8
"""So many keys and attestations of the reader count as one filter more: after each change of a
group its rights are found out anew, 0.3 ms for 64 of each, and 1,024 such readers kept commits
waiting for 10 s."""
_VALUES_OF_ONE: Final = 32
"""So many tag values in a filter count as one more: with an event of 5,000 tags one of 5,000 values
takes 0.3 ms, and 64 of these made each delivery take 28 ms."""
_ASKED_AT_ONCE: Final = 64
"""Subscriptions compared, each with any number of filters, before the work is counted again."""
_READ_AT_ONCE: Final = 16
"""The same for a row that not everyone may read: what each viewer may read is found out first if
the rights have changed, 0.1 ms for one with 64 keys."""
_WORK_OF_SEARCH: Final = 4
"""Work units of comparing one filter, while any live filter has a search."""
_TAGS_PER_WORK: Final = 8
"""Tags of an event that count as one comparison when its subscriptions are looked up."""
_BYTES_PER_WORK: Final = 32 << 10
"""Bytes of a frame that count as one comparison: it is written later, 1 ms for each megabyte."""
_CHARACTERS_PER_WORK: Final = 20
"""Characters of a text for searches that count as one comparison: the longest text takes 3 ms."""
_JSON_PER_WORK: Final = 200
"""Bytes of JSON, in which a text is looked for, that count as one comparison: 330,000 take up to
10 ms."""


class Part:
    """Open subscriptions that rows are delivered to together."""

    def __init__(
        self,
        state: RelayState,
        matcher: TextMatcher | None,
        linked_rows: LinkedRows | None,
        flush_queue: FlushQueue | None,
        held_searches: Shares,
        leave: Callable[[Subscription], None],
        work: Work | None = None,
    ) -> None:
        """`held_searches`: number of searches in all live filters. `leave`: takes a subscription
        out of all parts; it calls `remove`. `work`: see there. The others: see `Fanout`."""
        self._state = state
        self._matcher = matcher
        self._linked_rows = linked_rows
        self._flush_queue = flush_queue
        self._held_searches = held_searches
        self._leave = leave
        self.work = work
        """What a delivery counts for; None: the next commit waits for it."""
        self._live: Subscriptions[Subscription] = Subscriptions()
        self._delivered = 0
        """Rows delivered so far; the number of the next one is higher."""
        self._unfinished: Stored | None = None
        """A row that was delivered to only some of its subscriptions so far."""

    def __len__(self) -> int:
        return len(self._live)

    def add(self, subscription: Subscription) -> None:
        self._live.add(subscription, subscription.filters)
        subscription.part, subscription.last_delivery = self, 0

    def remove(self, subscription: Subscription) -> None:
        self._live.remove(subscription, subscription.filters)
        subscription.part = None

    def _delay(self, subscription: Subscription, row: Stored, filter_: Filter) -> None:
        backlog = subscription.backlog
        if backlog is None or backlog.has_overflowed:
            return
        backlog.add(row, filter_)
        if backlog.has_overflowed:  # it gets no further rows: CLOSED follows
            self._leave(subscription)

    @property
    def is_behind(self) -> bool:
        """As in `Subscribers`."""
        return self._flush_queue is not None and self._flush_queue.is_behind

    def number_for(self, event: Event) -> int:
        """As in `FilterNumbers`."""
        number, searches = self._live.numbers_for(event)
        if not searches:
            return number
        return number + (_WORK_OF_SEARCH - 1) * searches + self._work_of_text(event)

    def receivers_for(self, event: Event) -> int:
        """As in `FilterNumbers`."""
        number, _ = self._live.numbers_for(event)
        return number

    async def may_send(self, subscription: Subscription, row: Stored, filter_: Filter) -> bool:
        """Whether its reader may read a row that matched this filter. Raises StoreFault."""
        links = NO_LINKS
        if self._linked_rows is not None and self._state.targets_of(row):
            links = await self._linked_rows.links_of([(row, {subscription.reader.viewer})])
        return self._is_readable(subscription, row, filter_, links)

    def _is_readable(
        self, subscription: Subscription, row: Stored, filter_: Filter, links: Links
    ) -> bool:
        return self._state.is_public(row) or self._may_read(subscription, row, filter_, links)

    def _may_read(
        self, subscription: Subscription, row: Stored, filter_: Filter, links: Links
    ) -> bool:
        visibility = self._state.visibility(subscription.reader.viewer)
        return visibility.may_read(row, filter_, links.readable(row, visibility))

    def _send(self, subscription: Subscription, row: Stored) -> None:
        subscription.outbox.put_live(subscription.head, row.event.raw, messages.EVENT_END)

    def _contains(self, text: str | None, search: Search) -> bool:
        if self._matcher is None or text is None:
            return False
        return self._matcher.contains(text, search)

    def _text_of(self, event: Event) -> str | None:
        policy = self._state.policy
        text = policy.systems.search_text(event) if event.kind in policy.searched else None
        return None if text is None else indexed_part(text[:_MAX_LIVE_TEXT])

    def _work_of_text(self, event: Event) -> int:
        """Work units of making the tokens of its text, if a search may be compared with them."""
        if not self._held_searches.used or event.kind not in self._state.policy.searched:
            return 0
        size = len(event.raw)
        work = min(size, _MAX_LIVE_TEXT) // _CHARACTERS_PER_WORK
        # Memory and profiles: the text is made of all of the JSON, however little is compared.
        is_json = event.kind == kinds.PROFILE or event.kind in self._state.policy.systems.kinds
        return work + size // _JSON_PER_WORK if is_json else work

    def awaits(self, event: Event) -> bool:
        """As in `Subscribers`."""
        return self._live.awaits(event)

    async def links_of(self, rows: Sequence[Stored]) -> Links:
        """For `deliver`: the links of rows that some subscriber may read only through a link. Empty
        when the store fails or takes long: then no link permits a read."""
        if self._linked_rows is None or not len(self._live):
            return NO_LINKS
        targets_of = self._state.targets_of
        needed = [
            (row, viewers)
            for row in rows
            if targets_of(row) and (viewers := await self._viewers_through_links(row))
        ]
        if not needed:
            return NO_LINKS
        try:
            async with asyncio.timeout(_LINKS_S):
                return await self._linked_rows.links_of(needed)
        except StoreFault as fault:
            _log.error("linked rows could not be read: %s", fault)
        except TimeoutError:
            _log.error("linked rows were not read in %g s", _LINKS_S)
        return NO_LINKS

    async def _viewers_through_links(self, row: Stored) -> set[Viewer]:
        """Subscribers who may read the row only if they may read a row that it links to."""
        state = self._state
        targets = frozenset([target for target, _ in state.targets_of(row)])
        found = set()
        seen: dict[Viewer, bool] = {}
        row = _indexed(row)
        keys = self._live.keys_of(row.event)
        rest_at = perf_counter() + _LOOKED_S
        for number, entries in enumerate(self._live.candidates(keys), 1):
            if number % _ASKED_AT_ONCE == 0 and perf_counter() > rest_at:
                await asyncio.sleep(0)  # rights that change meanwhile hold when it is delivered
                rest_at = perf_counter() + _LOOKED_S
            viewer = entries[0].subscription.reader.viewer
            if viewer in found:
                continue
            visibility = state.visibility(viewer)
            depends = seen.get(viewer)
            if depends is None:
                depends = seen[viewer] = (
                    visibility.reading(row, targets) is not Reading.NEVER
                    and visibility.reading(row) is Reading.NEVER
                )
            if depends and any(
                (entry.is_exact or entry.filter.matches(row.event))
                and visibility.may_read(row, entry.filter, targets)
                for entry in entries
            ):
                found.add(viewer)
        return found

    def deliver(self, rows: Sequence[Stored], links: Links = NO_LINKS) -> Iterator[tuple[int, int]]:
        """Deliver rows of one commit, in order of seq (0: ephemeral), in pieces of bounded work.
        Between two pieces other tasks may run, and rights may change.

        Yields after each piece the number of frames put into outboxes, and of rows that are done. A
        caller that stops calls it again with the rows that are not done, or with those of them that
        are stored, which it may have read again; no subscription gets a row twice.
        """
        if not rows or not len(self._live):
            return
        if rows[0] is not self._unfinished:  # that delivery will not be continued
            self._delivered += _TOGETHER
        done = frames = 0
        left = _WORK_AT_ONCE
        while done < len(rows):
            self._unfinished = row = rows[done]
            keys, end = self._alike(rows, done)
            left -= 1 + len(row.event.tags) // _TAGS_PER_WORK + self._work_of_text(row.event)
            try:
                for sent, work in (
                    self._pieces_of_one(row, keys, links)
                    if end == done
                    else self._pieces_of_alike(rows[done:end], keys[0], links)
                ):
                    frames += sent
                    left -= work
                    if left <= 0:
                        yield frames, done
                        frames, left = 0, _WORK_AT_ONCE
            except Exception:  # the other rows must be delivered  # noqa: BLE001
                _log.exception("an event was not compared with all subscriptions")
            number = max(1, end - done)
            self._delivered += number
            done += number
        self._unfinished = None
        yield frames, done

    def _alike(self, rows: Sequence[Stored], start: int) -> tuple[Sequence[Key], int]:
        """Index keys of the row at `start`, and the end of the run of rows from there that can be
        delivered together: public rows with the same single key, whose subscriptions match all of
        them. The end is `start` if there is no such run."""
        live, is_public = self._live, self._state.is_public
        keys, end = live.keys_of(indexed(rows[start].event)), start
        if len(keys) == 1 and live.are_sure(keys[0]) and is_public(rows[start]):
            end, most = start + 1, min(len(rows), start + _TOGETHER)
            size = len(rows[start].event.raw)
            while end < most and live.keys_of(rows[end].event) == keys and is_public(rows[end]):
                size += len(rows[end].event.raw)
                if size > _LARGE:  # else an outbox might overflow before anything is written
                    break
                end += 1
        return keys, end

    def _pieces_of_alike(
        self, rows: Sequence[Stored], key: Key, links: Links
    ) -> Iterator[tuple[int, int]]:
        """Yields (frames, work) for each piece."""
        entries = self._live.under(key)
        work_of_one = 1 + sum([len(row.event.raw) for row in rows]) // _BYTES_PER_WORK
        number = max(1, _WORK_AT_ONCE // work_of_one)
        done = 0
        while done < len(entries):
            piece = entries[done : done + self._at_once(number, rows)]
            done += len(piece)
            made = self._state.views_made
            delivered = self._deliver_together(piece, rows, links)
            work = len(piece) * work_of_one
            yield delivered, work + (self._state.views_made - made) * _WORK_OF_VIEW

    def _pieces_of_one(
        self, row: Stored, keys: Sequence[Key], links: Links
    ) -> Iterator[tuple[int, int]]:
        """Yields (frames, work) for each piece."""
        if not keys:
            return
        compared, candidates = _Compared(row), self._live.candidates(keys)
        work_of_one = _WORK_OF_SEARCH if self._held_searches.used else 1
        while True:
            compared.update_rights(self._state)
            at_once = _ASKED_AT_ONCE // work_of_one if compared.is_public else _READ_AT_ONCE
            piece, made = list(islice(candidates, at_once)), self._state.views_made
            if not piece:
                return
            delivered = self._deliver_row(compared, piece, links)
            work = sum(map(len, piece)) * work_of_one
            work += delivered * (len(row.event.raw) // _BYTES_PER_WORK)
            yield delivered, work + (self._state.views_made - made) * _WORK_OF_VIEW

    def _at_once(self, number: int, rows: Sequence[Stored]) -> int:
        """How many subscriptions these rows are delivered to in one piece: `number` if they are
        public."""
        if not all(map(self._state.is_public, rows)):
            number = min(number, _READ_AT_ONCE)
        return max(1, number)

    def _deliver_together(
        self,
        entries: Sequence[Entry[Subscription]],
        rows: Sequence[Stored],
        links: Links,
    ) -> int:
        """Deliver rows that match all these entries: one write to each outbox, if all rows are
        public."""
        seqs = [row.seq for row in rows if row.seq]
        number = len(rows)
        before = self._delivered
        are_public = all(map(self._state.is_public, rows))
        size = sum([len(row.event.raw) for row in rows])
        is_large, is_small = size > _LARGE, size <= LARGE_ROW
        joined: dict[str, bytes] = {}
        delivered = 0
        for entry in entries:
            subscription = entry.subscription
            if subscription.is_closed:
                continue
            if not is_small:
                subscription.outbox.wait_for_others()
            if (
                subscription.backlog is not None
                or subscription.outbox.is_behind
                or not are_public
                or subscription.last_delivery > before
                or (seqs and seqs[0] <= subscription.last_seq)
            ):
                delivered += self._deliver_one_by_one(subscription, entry.filter, rows, links)
                continue
            subscription.last_delivery = before + number
            if seqs:
                subscription.last_seq = seqs[-1]
            delivered += number
            if is_large:
                for row in rows:
                    self._send(subscription, row)
                continue
            sub = subscription.sub
            frames = joined.get(sub)
            if frames is None:
                head = subscription.head
                frames = joined[sub] = b"".join(
                    [framed(messages.event_frame(head, row.event.raw)) for row in rows]
                )
            subscription.outbox.put_framed(frames, number, is_live=True)
        return delivered

    def _deliver_one_by_one(
        self, subscription: Subscription, filter_: Filter, rows: Sequence[Stored], links: Links
    ) -> int:
        """As `_deliver_together`, for a subscription that is catching up, has some of these rows
        already, or may not read all of them."""
        delivered = 0
        for number, row in enumerate(rows, self._delivered + 1):
            if (
                row.seq <= subscription.last_seq
                if row.seq
                else number <= subscription.last_delivery
            ) or subscription.is_closed:
                continue
            if not self._is_readable(subscription, row, filter_, links):
                continue
            if row.seq:
                subscription.last_seq = row.seq
            else:
                subscription.last_delivery = number
            if subscription.delays:
                self._delay(subscription, row, filter_)
                continue
            self._send(subscription, row)
            delivered += 1
        return delivered

    def _deliver_row(
        self,
        row: _Compared,
        candidates: Sequence[Sequence[Entry[Subscription]]],
        links: Links,
    ) -> int:
        """Deliver one row to the candidates whose filters match and whose reader may read it."""
        # An attribute of an Enum class costs as much as half a delivery.
        never, by_filter = Reading.NEVER, Reading.BY_FILTER
        stored, compared = row.stored, row.compared
        seq, raw = stored.seq, stored.event.raw
        number = self._delivered + 1
        is_large, is_small = len(raw) > _LARGE, len(raw) <= LARGE_ROW
        delivered = 0
        frames = row.frames
        if len(frames) > _ASKED_AT_ONCE:  # a client may use a new id for each subscription
            frames.clear()
        public, readings, readings_alike = row.is_public, row.readings, row.readings_alike
        filter_: Filter | None = None  # the last one compared: equal ones are often one object
        matches = False
        for entries in candidates:
            subscription = entries[0].subscription
            if (
                seq <= subscription.last_seq if seq else number <= subscription.last_delivery
            ) or subscription.is_closed:
                continue
            reading = None
            if not public:
                # Before the filters: a subscription may have thousands that do not match.
                viewer = subscription.reader.viewer
                known = readings.get(id(viewer))
                if known is not None:
                    reading = known[1]
                else:
                    alike = row.alike(viewer)
                    reading = readings_alike.get(alike)
                    if reading is None:
                        reading = readings_alike[alike] = self._reading(viewer, compared, links)
                    readings[id(viewer)] = viewer, reading
                if reading is never:
                    continue
            for entry in entries:
                if not entry.is_exact:
                    if entry.filter is not filter_:
                        filter_ = entry.filter
                        matches = filter_.matches(compared.event)
                    if not matches:
                        continue
                if reading is by_filter:
                    may_read = row.may_read_by(entry.filter)
                    if may_read is None:
                        may_read = self._may_read(subscription, compared, entry.filter, links)
                    if not may_read:
                        continue
                sought = entry.filter.sought
                if sought is not None and not self._contains(row.text(self._text_of), sought):
                    continue
                if seq:
                    subscription.last_seq = seq
                else:
                    subscription.last_delivery = number
                if not is_small:
                    subscription.outbox.wait_for_others()
                # `delays` alone would be a call for each frame.
                if subscription.backlog is not None or (
                    subscription.outbox.is_behind and subscription.delays
                ):
                    self._delay(subscription, stored, entry.filter)
                    break
                delivered += 1
                if is_large:
                    self._send(subscription, stored)
                    break
                sub = subscription.sub
                frame = frames.get(sub)
                if frame is None:
                    frame = frames[sub] = framed(messages.event_frame(subscription.head, raw))
                subscription.outbox.put_framed(frame, is_live=True)
                break
        return delivered

    def _reading(self, viewer: Viewer, row: Stored, links: Links) -> Reading:
        visibility = self._state.visibility(viewer)
        return visibility.reading(row, links.readable(row, visibility))


class Fanout(Part):
    """All open subscriptions of this process: rows are delivered to most of them here, and to those
    beyond `_MOST_OF_NETWORK` filters of a network, or then of an admitted key in it, apart."""

    def __init__(
        self,
        state: RelayState,
        matcher: TextMatcher | None = None,
        linked_rows: LinkedRows | None = None,
        flush_queue: FlushQueue | None = None,
    ) -> None:
        """`matcher`: None without search. `linked_rows`: None when read rules follow no links.
        `flush_queue`: that of all outboxes."""
        self._held = (Shares(), Shares(), Shares())
        """The costs of open subscriptions, by field of `_Costs`."""
        searches = self._held[1]
        super().__init__(state, matcher, linked_rows, flush_queue, searches, self._forget)
        self.work_of: Callable[[str, Standing], Work] = lambda _name, _standing: _UncountedWork()
        """What deliveries to the part of `_apart` with this key count for."""
        self._apart: dict[tuple[str, Standing], Part] = {}
        """(network, or admitted key, standing) → its subscriptions apart. So known keys do not wait
        until the filters of others in their network are compared."""
        self._costs: dict[int, _Costs] = {}
        """id() of an open subscription → its costs."""
        self._filters = Shares()
        """`_weight` of the filters that are not apart, of each address."""

    def __len__(self) -> int:
        return len(self._live) + sum(map(len, self._apart.values()))

    @property
    def apart(self) -> Collection[Part]:
        """As in `AllSubscribers`."""
        return self._apart.values()

    def open(self, subscription: Subscription) -> bool:
        """False: all subscriptions together, or those of its client's address, would cost too much.
        Then nothing is delivered."""
        address = subscription.address
        costs = _costs_of(subscription.filters)
        if costs is not None:
            rights = self._state.visibility(subscription.reader.viewer)
            for cost, held, most in zip(costs, self._held, _MOST, strict=True):
                ordinary = most // _ORDINARY if rights.is_known else 0
                if cost and cost > held.room_for(rights, address, most, ordinary):
                    return False
            if costs.searches and self._matcher is not None:
                self._matcher.prepare(_searches_of(subscription))
            for cost, held in zip(costs, self._held, strict=True):
                held.add(address, cost)
            self._costs[id(subscription)] = costs
        self._part_for(subscription).add(subscription)
        return True

    def _part_for(self, subscription: Subscription) -> Part:
        subscription.weight = weight = _weight(subscription)
        subscription.shared_by = share = subscription.address
        if share is None or self._has_room(share, weight):
            self._filters.add(share, weight)
            return self
        rights = self._state.visibility(subscription.reader.viewer)
        if rights.admitted_as is not None:
            subscription.shared_by = share = rights.admitted_as
            if self._has_room(share, weight):
                self._filters.add(share, weight)
                return self
        apart = network_of(share), rights.standing
        if apart not in self._apart:
            self._apart[apart] = Part(
                self._state,
                self._matcher,
                self._linked_rows,
                self._flush_queue,
                self._held_searches,
                self._forget,
                self.work_of(*apart),
            )
        return self._apart[apart]

    def reweigh(self, subscription: Subscription) -> bool:
        """Count more keys that have logged in. False: its network would have more than
        `_MOST_OF_NETWORK`, so the subscription must be opened again."""
        share = subscription.shared_by
        if subscription.part is not self or share is None:
            return True
        more = _weight(subscription) - subscription.weight
        if more and not self._has_room(share, more):
            return False
        self._filters.add(share, more)
        subscription.weight += more
        return True

    def _has_room(self, share: str, weight: int) -> bool:
        return self._filters.of_network(share) + weight <= _MOST_OF_NETWORK

    def end(self, subscription: Subscription) -> None:
        """From now on nothing is delivered to it; `close` follows, which takes time for each value
        of its filters."""
        subscription.is_closed = True
        subscription.end_backlog()

    def postpone(self, subscription: Subscription) -> None:
        """Until it is opened again, nothing is delivered to it."""
        subscription.end_backlog()
        self._forget(subscription)

    def close(self, subscription: Subscription) -> None:
        self.end(subscription)
        self._forget(subscription)

    def _forget(self, subscription: Subscription) -> None:
        part, share = subscription.part, subscription.shared_by
        if part is None:  # it left when its backlog overflowed, or was too costly
            return
        part.remove(subscription)
        if part is self:
            self._filters.add(share, -subscription.weight)
        elif not len(part) and share is not None:
            name = network_of(share)
            standing = next(each for each in Standing if self._apart.get((name, each)) is part)
            del self._apart[name, standing]
        costs = self._costs.pop(id(subscription), None)
        if costs is not None:
            for cost, held in zip(costs, self._held, strict=True):
                held.add(subscription.address, -cost)
            if costs.searches and self._matcher is not None:
                self._matcher.forget(_searches_of(subscription))


def _weight(subscription: Subscription) -> int:
    """As so many filters it counts towards `_MOST_OF_NETWORK`."""
    filters, viewer = subscription.filters, subscription.reader.viewer
    values = sum([len(values) for each in filters for _, values in each.tags])
    keys = len(viewer.keys) + len(viewer.attested)
    return len(filters) + values // _VALUES_OF_ONE + keys // _KEYS_OF_ONE


class _UncountedWork:
    """`Work` that counts for nobody. Other tasks of the loop go on after each piece."""

    def begin(self) -> None: ...
    def end(self) -> bool:
        return True

    async def rest(self) -> None:
        await asyncio.sleep(0)
