"""What clients were promised: a model of the relay that is small enough to be obviously right.

It hears of each batch at its commit and of each frame when it is sent, and raises `Broken`:

- an OK true that stores is sent after the commit, once for each time that the event was sent, in
  the order of sending; an `error:` is sent only when the disk has failed, or while the group of the
  event is being deleted;
- an event is sent once per subscription, matches it, and was committed; its reader may read it now;
- all that was stored when a REQ was sent comes before EOSE, newest first, what is stored later
  comes after it in the order of the log; nothing is missing, nothing comes after CLOSE; with
  `limit` older rows need not take the places of those that are deleted meanwhile;
- what was deleted is neither given to whoever asks later nor stored again;
- of several versions the newest is kept, of two of one second the one with the lower id;
- the groups are what a replay of the log says, and what is counted here.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from relay.errors import WriteOutcome
from relay.write.commands import WriteEvent
from tests import cast

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from relay.lifecycle.rows import Stored, WritePlan
    from relay.nostr.event import Event

NOTE: Final = 1
PROFILE: Final = 0
DELETION: Final = 5
CHAT: Final = 9
LIST: Final = 10002
WRAP: Final = 1059
PASSING: Final = 20001
ARTICLE: Final = 30023
VANISH: Final = 62
PUT, REMOVE, EDIT, DELETE, CREATE, END = 9000, 9001, 9002, 9005, 9007, 9008
WATCHED: Final = frozenset({NOTE, PROFILE, CHAT, LIST, WRAP, PASSING, ARTICLE})
"""Kinds whose readers are known here; what comes of others is only compared with its filter."""
REPLACEABLE: Final = frozenset({PROFILE, LIST})
MEMBERS: Final = 39002
_LATELY: Final = 3
"""Iterations of the loop between a decision to send and the frame."""


class Broken(AssertionError):
    """A promise was not kept."""


@dataclass(slots=True)
class Row:
    event: Event
    number: int
    """Its place in the order of commits; of one that is not stored too."""
    seq: int
    """0: not stored."""
    group: str | None = None
    times: int = 1
    """How often it was stored: a version may come back when the newer one was deleted."""
    gone: int | None = None
    """Its place in the order of commits from which on it is not stored."""


@dataclass(frozen=True, slots=True)
class Circle:
    """A group from some commit on."""

    since: int
    members: frozenset[str]
    is_private: bool
    is_there: bool = True


@dataclass(slots=True)
class Asked:
    """One REQ."""

    filters: Sequence[Mapping[str, Any]]
    keys: frozenset[str]
    sent: int
    """How many commits the relay knew of when it was sent."""
    got: dict[str, int] = field(default_factory=dict)
    """Id → number of the row."""
    last: Row | None = None
    is_complete: bool = False
    """EOSE came."""
    complete_at: int = 0
    is_closed: bool = False
    """By the relay, or CLOSE was sent and something later answered."""


def tag(event: Event, name: str) -> str | None:
    return next((each[1] for each in event.tags if each[0] == name and len(each) > 1), None)


def tags(event: Event, name: str) -> list[str]:
    return [each[1] for each in event.tags if each[0] == name and len(each) > 1]


def matches(filter_: Mapping[str, Any], event: Event) -> bool:
    if any(
        value not in filter_[name]
        for name, value in (("ids", event.id), ("authors", event.pubkey), ("kinds", event.kind))
        if name in filter_
    ):
        return False
    if not filter_.get("since", 0) <= event.created_at <= filter_.get("until", 1 << 60):
        return False
    return all(
        set(values) & set(tags(event, name[1:]))
        for name, values in filter_.items()
        if name.startswith("#")
    )


def slot_of(event: Event) -> tuple[int, str, str] | None:
    if event.kind in REPLACEABLE:
        return event.kind, event.pubkey, ""
    if event.kind == ARTICLE:
        return event.kind, event.pubkey, tag(event, "d") or ""
    return None


class Promises:
    def __init__(self, relay: str) -> None:
        self._relay = relay
        self.first: Broken | None = None
        """The first that was not kept: the relay catches what is raised in its calls."""
        self.commits = 0
        self.faults = 0
        """Of the disk and of the process, so far."""
        self.groups_to_end: set[str | None] = set()
        """Of the 9008 that were sent so far."""
        self.rows: dict[str, Row] = {}
        """All that were ever committed, by id."""
        self._slots: dict[tuple[int, str, str], Row] = {}
        self._deleted: set[tuple[str, str]] = set()
        """(author, id)"""
        self._deleted_by_all: set[str] = set()
        self._deleted_addresses: dict[tuple[int, str, str], int] = {}
        self._vanished: dict[str, int] = {}
        self.circles: dict[str, list[Circle]] = {}
        self._adopted: list[tuple[int, int]] = [(0, 0)]
        """(iteration, commits): which groups the relay judges by, from that iteration on."""

    def broken(self, text: str) -> Broken:
        """To be raised."""
        self.first = self.first or Broken(text)
        return self.first

    # -- commits ----------------------------------------------------------------------------------

    def committed(self, batch: Any) -> None:
        """At the moment of the commit."""
        if batch is None:
            return
        if batch.is_piece:
            self._take_out(batch.plan)
            return
        accepted = [
            item.event
            for item in batch._items[: batch.number]
            if isinstance(item, WriteEvent)
            and item.result in (WriteOutcome.STORED, WriteOutcome.PASSED_ON)
        ]
        stored = {event.id for event in accepted if event.kind != VANISH}
        rows = [row for row in batch.rows if row.event.pubkey != self._relay]
        if stored != {row.event.id for row in rows}:
            raise self.broken("the results of a batch and its rows differ")
        for row in batch.rows:
            self._take(row)
        for event in accepted:
            if event.kind == VANISH:
                self._vanish(event)

    def _take_out(self, plan: WritePlan) -> None:
        """A piece of a deletion: its event comes later."""
        self.commits += 1
        seqs = plan.removes.union(*plan.leaving.values())
        for row in self.rows.values():
            if row.seq in seqs:
                self._remove(row)

    def _take(self, stored: Stored) -> None:
        event = stored.event
        self.commits += 1
        row = Row(event, self.commits, stored.seq, stored.group)
        known = self.rows.get(event.id)
        if known is not None and known.seq and known.gone is None:
            raise self.broken(f"{_name(event)} was stored twice")
        if self._is_deleted(event):
            raise self.broken(f"{_name(event)} was deleted, and is stored again")
        if known is not None and row.seq:
            row.times = known.times + 1
        self.rows[event.id] = row
        if not stored.seq:
            row.gone = self.commits
            return
        slot = slot_of(event)
        if slot is not None:
            holder = self._slots.get(slot)
            if holder is not None and holder.gone is None:
                if _rank(holder.event) > _rank(event):
                    raise self.broken(f"{_name(event)} replaced a newer version")
                self._remove(holder)
            self._slots[slot] = row
        if event.kind == DELETION:
            self._delete(event)
        elif event.kind in (PUT, REMOVE, EDIT, DELETE, CREATE, END):
            self._moderate(event)

    def _remove(self, row: Row | None) -> None:
        if row is not None and row.gone is None:
            row.gone = self.commits

    def _is_deleted(self, event: Event) -> bool:
        slot = slot_of(event)
        return (
            (event.pubkey, event.id) in self._deleted
            or event.id in self._deleted_by_all
            or (slot is not None and event.created_at <= self._deleted_addresses.get(slot, -1))
            or event.created_at <= self._vanished.get(event.pubkey, -1)
            or (
                event.kind == WRAP
                and any(
                    event.created_at <= self._vanished.get(key, -1)
                    or (key, event.id) in self._deleted
                    for key in tags(event, "p")
                )
            )
        )

    def _delete(self, request: Event) -> None:
        for event_id in tags(request, "e"):
            self._deleted.add((request.pubkey, event_id))
        for address in tags(request, "a"):
            kind, pubkey, d = address.split(":", 2)
            if pubkey == request.pubkey:
                slot = int(kind), pubkey, d
                until = max(request.created_at, self._deleted_addresses.get(slot, -1))
                self._deleted_addresses[slot] = until
        for row in self.rows.values():
            if row.gone is None and row.event.kind in WATCHED and self._is_deleted(row.event):
                self._remove(row)

    def _vanish(self, request: Event) -> None:
        self.commits += 1
        until = max(request.created_at, self._vanished.get(request.pubkey, -1))
        self._vanished[request.pubkey] = until
        for row in self.rows.values():
            if row.gone is None and (
                self._is_deleted(row.event)
                or (row.event.pubkey == request.pubkey and row.event.created_at <= until)
            ):
                self._remove(row)

    def _moderate(self, event: Event) -> None:
        name = tag(event, "h") or ""
        history = self.circles.setdefault(name, [])
        now = history[-1] if history else Circle(0, frozenset(), is_private=False, is_there=False)
        members, is_private, is_there = now.members, now.is_private, now.is_there
        match event.kind:
            case 9007:
                members, is_private, is_there = frozenset({event.pubkey}), False, True
            case 9000:
                members |= set(tags(event, "p"))
            case 9001:
                members -= set(tags(event, "p"))
            case 9002:
                is_private = any(each[0] == "private" for each in event.tags)
            case 9005:
                for event_id in tags(event, "e"):
                    self._deleted_by_all.add(event_id)
                    self._remove(self.rows.get(event_id))
            case 9008:
                members, is_there = frozenset(), False
                for row in self.rows.values():
                    if row.group == name and row.event.kind not in (CREATE, END):
                        self._remove(row)
        history.append(Circle(self.commits, members, is_private, is_there))

    # -- who may read -----------------------------------------------------------------------------

    def adopted(self, iteration: int) -> None:
        """The relay may judge by what is committed now, from this iteration of the loop on."""
        if self._adopted[-1][1] != self.commits:
            self._adopted.append((iteration, self.commits))

    @property
    def known(self) -> int:
        """How many commits the relay knows of: it has not confirmed more."""
        return self._adopted[-1][1]

    def _lately(self, iteration: int) -> Iterable[int]:
        """By how many commits the relay may have judged what it sends in this iteration."""
        for since, commits in reversed(self._adopted):
            yield commits
            if since < iteration - _LATELY:
                return

    def _permits(self, circle: Circle, keys: frozenset[str]) -> bool:
        if cast.owner.pubkey in keys:
            return True
        return circle.is_there and (not circle.is_private or not keys.isdisjoint(circle.members))

    def may_read(self, keys: frozenset[str], event: Event, at: int) -> bool:
        """After so many commits."""
        if event.kind == WRAP:
            return not keys.isdisjoint(tags(event, "p"))
        history = self.circles.get(tag(event, "h") or "")
        if not history or event.kind not in WATCHED:
            return True
        circle = next((each for each in reversed(history) if each.since <= at), history[0])
        return self._permits(circle, keys)

    def _could_read(self, keys: frozenset[str], row: Row) -> bool:
        """At some time before it was gone."""
        history = self.circles.get(tag(row.event, "h") or "", [])
        changes = [each.since for each in history if row.number < each.since < (row.gone or 0)]
        return any(self.may_read(keys, row.event, at) for at in (row.number, *changes))

    def could_always_read(self, keys: frozenset[str], event: Event, since: int) -> bool:
        """From then until now."""
        if event.kind == WRAP:
            return self.may_read(keys, event, 0)
        history = self.circles.get(tag(event, "h") or "", [])
        return self.may_read(keys, event, since) and all(
            self._permits(circle, keys) for circle in history if circle.since > since
        )

    def _could_always_read_group(self, keys: frozenset[str], event: Event, since: int) -> bool:
        """The messages of the event's group; True without a group."""
        history = self.circles.get(tag(event, "h") or "", [])
        before = [circle for circle in history if circle.since <= since][-1:] or history[:1]
        after = [circle for circle in history if circle.since > since]
        return all(self._permits(circle, keys) for circle in [*before, *after])

    # -- frames -----------------------------------------------------------------------------------

    def sent_event(self, asked: Asked, event_id: str, keys: frozenset[str], iteration: int) -> None:
        row = self.rows.get(event_id)
        if row is None:
            raise self.broken(f"event {event_id[:8]} was sent before it was committed")
        event = row.event
        if asked.is_closed:
            raise self.broken(f"{_name(event)} was sent after CLOSE")
        if row.times == 1 and event_id in asked.got:
            raise self.broken(f"{_name(event)} was sent twice")
        if not any(matches(each, event) for each in asked.filters):
            raise self.broken(f"{_name(event)} does not match")
        if event.kind in WATCHED:
            # Never by rights of before the event: what made the group private may be in its batch.
            known = [max(at, row.number) for at in self._lately(iteration)]
            if not any(self.may_read(keys, event, at) for at in known):
                raise self.broken(f"{_name(event)} was sent to somebody who may not read it")
            if row.gone is not None and not self._could_read(keys, row):
                raise self.broken(f"{_name(event)} was gone before its reader could read it")
            if row.seq and row.gone is not None and row.gone <= asked.sent:
                raise self.broken(f"{_name(event)} was deleted or replaced before the REQ was sent")
        self._check_order(asked, row)
        asked.got[event_id] = row.number

    def _check_order(self, asked: Asked, row: Row) -> None:
        if row.times > 1:
            return
        last, asked.last = asked.last, row
        if last is None:
            return
        if asked.is_complete:
            if last.number > row.number:
                raise self.broken(f"{_name(row.event)} was sent after a later one")
        # Rows that may be read since the scan began are found by those filters that are still read.
        elif _rank(last.event) < _rank(row.event) and self.could_always_read(
            asked.keys, row.event, min(asked.sent, row.number)
        ):
            raise self.broken(f"{_name(row.event)} was sent after an older one")

    def sent_eose(self, asked: Asked) -> None:
        self._check_missing(asked, upto=asked.sent)
        asked.is_complete = True
        asked.complete_at = self.commits
        asked.last = None

    def _check_missing(self, asked: Asked, upto: int) -> None:
        """Every row committed by then that was there, and readable, since the REQ was sent."""
        missing = []
        for row in self.rows.values():
            event = row.event
            if (
                row.gone is None
                and row.number <= upto
                and event.kind in WATCHED
                and event.id not in asked.got
                and any(matches(each, event) for each in asked.filters)
                and self.could_always_read(asked.keys, event, min(asked.sent, row.number))
            ):
                missing.append(row)
        if not missing:
            return
        limit = asked.filters[0].get("limit")
        if limit is None:
            raise self.broken(f"{_name(missing[0].event)} is missing, and {len(missing) - 1} more")
        stored = [self.rows[event_id] for event_id in asked.got]
        if not asked.is_complete:
            oldest = min((_rank(each.event) for each in stored), default=(0, 0))
            newest = max(_rank(row.event) for row in missing)
            if len(stored) > limit or (len(stored) == limit and limit and newest > oldest):
                raise self.broken(f"not the newest {limit} were sent")
            if len(stored) + self._lost(asked) < limit:
                raise self.broken(f"{_name(missing[0].event)} is missing within the limit")

    def _lost(self, asked: Asked) -> int:
        """How many rows may have been listed for it, and were removed before they were sent: no
        others take their places."""
        return sum(
            row.gone is not None
            and row.gone > asked.sent
            and row.event.kind in WATCHED
            and row.event.id not in asked.got
            and any(matches(each, row.event) for each in asked.filters)
            and self._could_read(asked.keys, row)
            for row in self.rows.values()
        )

    def check_live(self, asked: Asked) -> None:
        """When nothing is on its way: what was committed since the REQ was sent has come."""
        if not asked.is_complete or asked.is_closed:
            return
        if "limit" not in asked.filters[0]:
            self._check_missing(asked, upto=self.commits)
        for row in self.rows.values():
            if (
                row.number > asked.complete_at
                and (row.gone is None or not row.seq)
                and row.event.kind in WATCHED
                and row.event.id not in asked.got
                and any(matches(each, row.event) for each in asked.filters)
                and self.could_always_read(asked.keys, row.event, asked.sent)
            ):
                raise self.broken(f"{_name(row.event)} did not come live")

    def answered(
        self, event: Event, text: str, faults: int, *, accepted: bool, keys: frozenset[str], at: int
    ) -> None:
        """`faults`: how many there had been when it was sent; `at`: how many commits the client
        knew of then, and `keys` had logged in."""
        if accepted and not text:
            if event.kind == VANISH:
                if self._vanished.get(event.pubkey, -1) < event.created_at:
                    raise self.broken("a request to vanish is confirmed and not carried out")
            # Who may not read what became of an event is told no more than that.
            elif not (self._is_known(event) or self._is_deleted(event)) and (
                event.pubkey in keys or self._could_always_read_group(keys, event, at)
            ):
                raise self.broken(f"{_name(event)} is confirmed and not committed")
            return
        if text.startswith("duplicate:") and event.kind in WATCHED:
            if not self._is_known(event):
                raise self.broken(f"{_name(event)} is no duplicate: {text}")
            return
        if text.startswith("error: this group is being deleted"):
            if tag(event, "h") not in self.groups_to_end:
                raise self.broken(f"{_name(event)}: {text}, and nobody deletes it")
        elif text.startswith("error:"):
            if faults == self.faults:
                raise self.broken(f"{_name(event)}: {text}, and the disk is well")
        elif text == "blocked: deleted":
            if not self._is_deleted(event):
                raise self.broken(f"{_name(event)} was not deleted")
        elif event.kind in WATCHED and tag(event, "h") is None:
            raise self.broken(f"{_name(event)} was refused: {accepted} {text}")

    def _is_known(self, event: Event) -> bool:
        """Whether it, or a newer version of it, was ever stored."""
        slot = slot_of(event)
        return event.id in self.rows or (
            slot is not None
            and any(
                slot_of(row.event) == slot and _rank(row.event) > _rank(event)
                for row in self.rows.values()
            )
        )

    # -- everything -------------------------------------------------------------------------------

    def readable(self, keys: frozenset[str]) -> set[str]:
        """Ids of the watched rows that these keys may read now."""
        return {
            row.event.id
            for row in self.rows.values()
            if row.gone is None
            and row.event.kind in WATCHED
            and self.may_read(keys, row.event, self.commits)
        }

    def check_groups(self, members: Mapping[str, frozenset[str]]) -> None:
        """`members`: of each group that exists."""
        expected = {
            name: history[-1].members
            for name, history in self.circles.items()
            if history[-1].is_there
        }
        if expected != members:
            raise self.broken("the members of the groups are not those that were put in")

    def is_there(self, event: Event) -> bool:
        row = self.rows.get(event.id)
        return row is not None and row.gone is None


def _rank(event: Event) -> tuple[int, int]:
    """Newer is greater."""
    return event.created_at, -int(event.id, 16)


def _name(event: Event) -> str:
    return f"event {event.id[:8]} of kind {event.kind}"
