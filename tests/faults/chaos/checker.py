"""Whether a history keeps what several relays on one database promise. No I/O.

The log gives the order of all writes, so nothing is searched for: it is compared with the times at
which writes were sent and acknowledged, with their verdicts, and with what readers got.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import Counter
from functools import cached_property
from itertools import accumulate, pairwise
from math import inf
from typing import TYPE_CHECKING, Final, NamedTuple

from tests.faults.chaos.history import CHAT, MODERATE, PUT, REMOVE

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from tests.faults.chaos.history import Attempt, History, Stream, Write

STALE_S: Final = 2.0
"""So long a relay that does not reach the database gives what it read by the rights of before."""
_WAY_S: Final = 0.5
"""From the relay to the client, on a busy machine."""


class Stay(NamedTuple):
    """Of a key in a group: from a 9000 to a 9001."""

    begin: int
    """seq"""
    end: float
    since: float
    """When the 9000 was sent."""
    until: float
    """When it was known that the 9001 is committed."""


def faults(history: History) -> list[str]:
    """One line for each promise that was not kept; the names of its parts say which."""
    check = Check(history)
    return [
        f"{part.__name__}: {text}"
        for part in (
            check.lost,
            check.order,
            check.verdicts,
            check.twice,
            check.late,
            check.missed,
            check.stale,
            check.ends,
        )
        for text in part()
    ]


class Check:
    def __init__(self, history: History) -> None:
        self._history = history
        self._seq = {id_: seq for seq, id_ in history.log}
        self._logged = [
            (seq, history.writes[id_]) for seq, id_ in history.log if id_ in history.writes
        ]
        """Without what the relays signed."""

    # -- each promise -----------------------------------------------------------------------------

    def lost(self) -> Iterator[str]:
        """What got OK is in the log, once; what was refused each time is not."""
        for id_, times in Counter(id_ for _, id_ in self._history.log).items():
            if times > 1:
                yield f"{id_} was stored {times} times"
        for id_, write in self._history.writes.items():
            if write.acknowledged < inf and id_ not in self._seq:
                yield f"{_name(write)} got OK and was never stored"
            if id_ in self._seq and all(each.is_refused for each in write.attempts):
                yield f"{_name(write)} was refused and is stored"

    def order(self) -> Iterator[str]:
        """What was acknowledged before another write was sent comes before it."""
        if any(seq >= following for (seq, _), (following, _) in pairwise(self._history.log)):
            yield "the log is not in the order of seq"
        earliest = inf
        for _, write in reversed(self._logged):
            if earliest < write.invoked:
                yield f"{_name(write)} was sent after a later row was acknowledged"
            earliest = min(earliest, write.acknowledged)

    def verdicts(self) -> Iterator[str]:
        """Messages of members are accepted, others refused: by the order of the log, or, for what
        was refused, at some moment between its being sent and its answer."""
        for seq, write in self._logged:
            if write.event.kind == CHAT and not self._is_member(write, seq):
                yield f"{_name(write)} is stored, and its author was no member"
        for write in self._history.writes.values():
            for attempt in write.attempts:
                if attempt.is_refused and not self._may_refuse(write, attempt):
                    yield f"{_name(write)} was refused: {attempt.text}"

    def twice(self) -> Iterator[str]:
        for stream in self._history.streams:
            times = Counter(id_ for _, id_ in stream.got)
            if times and max(times.values()) > 1:
                id_, number = times.most_common(1)[0]
                yield f"relay {stream.relay} sent {id_} {number} times for one REQ"

    def late(self) -> Iterator[str]:
        """Messages of groups reach members: by the rights after the message at least, and not long
        after a removal was acknowledged."""
        within = STALE_S + _WAY_S + max(self._history.lags, default=0.0)
        for stream in self._history.streams:
            if stream.is_member:
                continue
            for at, id_ in stream.got:
                write = self._history.writes[id_]
                stays = self._stays.get((write.group, stream.reader), [])
                seq = self._seq.get(id_, inf)
                current = [stay for stay in stays if stay.end > seq and stay.since <= at]
                if not any(at <= stay.until + within for stay in current):
                    after = at - max((stay.until for stay in stays if stay.until < at), default=inf)
                    how = "of later" if not current else "of before"
                    yield (
                        f"relay {stream.relay} sent {_name(write)}, {how}, to {stream.reader[:8]},"
                        f" {after:.2f} s after its removal"
                    )

    def missed(self) -> Iterator[str]:
        """Live rows come in the order of the log; who may read all gets all that remains."""
        for stream in self._history.streams:
            live = [] if stream.stored is None else stream.got[stream.stored :]
            seqs = [self._seq.get(id_, 0) for _, id_ in live]
            if sorted(seqs) != seqs:
                yield f"relay {stream.relay} sent rows out of order"
            if stream.is_member and seqs:
                yield from self._gaps(stream, set(seqs))

    def stale(self) -> Iterator[str]:
        """A REQ gets the messages that were acknowledged not long before it was sent."""
        writes = self._history.writes
        messages = sorted(
            (writes[id_].acknowledged, id_)
            for id_ in self._remaining
            if id_ in writes and writes[id_].event.kind == CHAT
        )
        way = _WAY_S + max(self._history.lags, default=0.0)
        for stream in self._history.streams:
            until = stream.ended + way  # what came while it was answered follows EOSE
            if not stream.is_member or not until < stream.closed:
                continue
            given = {id_ for at, id_ in stream.got if at <= until}
            for acknowledged, id_ in messages:
                after, write = stream.asked - acknowledged, writes[id_]
                if after < STALE_S + way:
                    break
                if id_ not in given and write.event.created_at >= stream.since:
                    yield f"relay {stream.relay} had not {_name(write)} after {after:.2f} s"

    def ends(self) -> Iterator[str]:
        """Every relay has the same in the end, and it is what the log comes to."""
        for (relay, reader), found in self._history.found.items():
            wanted = self._remaining
            if reader:
                writes = self._history.writes
                wanted = frozenset(
                    id_
                    for id_ in wanted
                    if writes[id_].event.kind == CHAT and self._is_in(writes[id_].group, reader)
                )
            for id_ in sorted(wanted - found):
                yield f"relay {relay} does not give {id_} to {reader[:8] or 'all'}"
            for id_ in sorted(found - wanted):
                yield f"relay {relay} gives {id_} to {reader[:8] or 'all'}"
        for (relay, group), members in self._history.members.items():
            here = {key for of, key in self._stays if of == group and self._is_in(group, key)}
            if not here <= members:
                yield f"relay {relay} has not all members of {group}"
            if any(key in members for of, key in self._stays if of == group and key not in here):
                yield f"relay {relay} has members of {group} that were removed"

    # -- what follows from the log ----------------------------------------------------------------

    @cached_property
    def _stays(self) -> dict[tuple[str, str], list[Stay]]:
        """By group and key."""
        known = self._known_at()
        found: dict[tuple[str, str], list[Stay]] = {}
        for seq, write in self._logged:
            for key in write.event.tag_values("p") if write.event.kind in (PUT, REMOVE) else ():
                stays = found.setdefault((write.group, key), [])
                is_in = bool(stays) and stays[-1].end == inf
                if write.event.kind == PUT and not is_in:
                    stays.append(Stay(seq, inf, write.invoked, inf))
                elif write.event.kind == REMOVE and is_in:
                    stays[-1] = stays[-1]._replace(end=seq, until=known[seq])
        return found

    def _known_at(self) -> dict[int, float]:
        """When each row was known to be committed: by an OK for it, or for a later one."""
        earliest, known = inf, {}
        for seq, write in reversed(self._logged):
            earliest = known[seq] = min(earliest, write.acknowledged)
        return known

    @cached_property
    def _remaining(self) -> frozenset[str]:
        """What is there in the end: neither deleted nor replaced."""
        there: dict[str, Write] = {}
        newest: dict[tuple[str, int, str], Write] = {}
        for _, write in self._logged:
            there[write.event.id] = write
            for target in write.targets:
                there.pop(target, None)
            slot = write.slot
            if slot is not None:
                before = newest.get(slot)
                if before is not None:
                    there.pop(before.event.id, None)
                newest[slot] = write
        return frozenset(there)

    @cached_property
    def _deletions(self) -> dict[str, float]:
        """Id of what is deleted → when that was sent first."""
        found: dict[str, float] = {}
        for _, write in self._logged:
            for target in write.targets:
                found[target] = min(found.get(target, inf), write.invoked)
        return found

    def _is_in(self, group: str, key: str) -> bool:
        stays = self._stays.get((group, key), [])
        return bool(stays) and stays[-1].end == inf

    def _is_member(self, write: Write, seq: int) -> bool:
        stays = self._stays.get((write.group, write.event.pubkey), [])
        return any(stay.begin < seq < stay.end for stay in stays)

    def _may_refuse(self, write: Write, attempt: Attempt) -> bool:
        """Whether somebody who has to be a member was none at some moment of it, or what it
        deletes may have been deleted before."""
        event = write.event
        if event.kind == MODERATE:
            return any(self._deletions.get(id_, inf) < attempt.answered for id_ in write.targets)
        keys: Iterable[str] = event.tag_values("p") if event.kind == REMOVE else (event.pubkey,)
        if event.kind not in (CHAT, REMOVE):
            return False
        first, last = self._moments(attempt)
        return not all(
            any(
                stay.begin <= first and stay.end >= last
                for stay in self._stays.get((write.group, key), [])
            )
            for key in keys
        )

    def _moments(self, attempt: Attempt) -> tuple[float, float]:
        """seq after which it was judged at the earliest, and before which at the latest."""
        times, seqs = self._acknowledged
        place = bisect_right(times, attempt.invoked)
        first = seqs[place - 1] if place else 0
        times, seqs = self._sent
        place = bisect_left(times, attempt.answered)
        return first, seqs[place] if place < len(seqs) else inf

    @cached_property
    def _acknowledged(self) -> tuple[list[float], list[int]]:
        """When, and the highest seq that was acknowledged by then."""
        found = sorted((write.acknowledged, seq) for seq, write in self._logged)
        return [at for at, _ in found], list(accumulate((seq for _, seq in found), max))

    @cached_property
    def _sent(self) -> tuple[list[float], list[int]]:
        """When, and the lowest seq of what was sent from then on."""
        found = sorted((write.invoked, seq) for seq, write in self._logged)
        lowest = list(accumulate((seq for _, seq in reversed(found)), min))
        return [at for at, _ in found], lowest[::-1]

    def _gaps(self, stream: Stream, live: set[int]) -> Iterator[str]:
        first, last = min(live), max(live)
        got = {id_ for _, id_ in stream.got}
        kinds = {write.event.kind for id_, write in self._history.writes.items() if id_ in got}
        for seq, write in self._logged:
            id_ = write.event.id
            is_wanted = first < seq < last and id_ in self._remaining and write.event.kind in kinds
            if is_wanted and id_ not in got:
                yield f"relay {stream.relay} did not send {_name(write)} live"


def _name(write: Write) -> str:
    return f"{write.event.id[:8]} of kind {write.event.kind}"
