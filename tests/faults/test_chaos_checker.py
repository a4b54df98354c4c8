"""The checker of `test_chaos` passes histories that keep every promise, and finds each that breaks
one."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from math import inf
from random import Random
from typing import TYPE_CHECKING, Final

import pytest

from tests import cast
from tests.faults.chaos.checker import STALE_S, faults
from tests.faults.chaos.clients import GROUPS, PEOPLE, made
from tests.faults.chaos.history import CHAT, PUT, REMOVE, Attempt, History, Stream

if TYPE_CHECKING:
    from relay.nostr.event import Event
    from relay.nostr.keys import SecretKey

WRITES: Final = 150


class Perfect:
    """One relay that carries out each write at one moment, and tells everybody at once."""

    def __init__(self, seed: int) -> None:
        self.chance = Random(seed)
        self.now = 0.0
        self.history = History()
        self.members: dict[str, set[str]] = {group: set() for group in GROUPS}
        self.there: dict[str, Event] = {}
        self.versions: dict[tuple[str, int, str], str] = {}
        self.watcher = Stream(0, cast.admin.pubkey, is_member=True, stored=0)
        self.readers = {key.pubkey: Stream(0, key.pubkey, is_member=False) for key in PEOPLE}
        self.history.streams = [self.watcher, *self.readers.values()]
        for _ in range(WRITES):
            self._step()
        self.history.found[0, ""] = frozenset(self.there)
        for key in PEOPLE:
            self.history.found[0, key.pubkey] = frozenset(
                id_
                for id_, event in self.there.items()
                if event.kind == CHAT and key.pubkey in self.members[event.tag("h") or ""]
            )
        messages = [id_ for id_, event in self.there.items() if event.kind == CHAT]
        got = [(self.now + 10, id_) for id_ in messages]
        asking = Stream(0, cast.admin.pubkey, is_member=True, got=got, stored=len(got))
        asking.asked, asking.ended = self.now + 10, self.now + 11
        self.history.streams.append(asking)
        for group, members in self.members.items():
            self.history.members[0, group] = frozenset(members)

    def _step(self) -> None:
        self.now += self.chance.random()
        who, group = self.chance.choice(PEOPLE), self.chance.choice(GROUPS)
        h, p = ["h", group], ["p", who.pubkey]
        members = self.members[group]
        match self.chance.randrange(8):
            case 0 if who.pubkey in members:
                self._write(cast.admin, REMOVE, h, p)
                members.discard(who.pubkey)
            case 1 | 2:
                members.add(who.pubkey)
                self._write(cast.admin, PUT, h, p)
            case 3 if self.there:
                gone = self.chance.choice([*self.there])
                self._write(who, 5, ["e", gone])
                self.there.pop(gone)
            case 4:
                d = f"{self.chance.randrange(3)}"
                event = self._write(who, 30_023, ["d", d])
                before = self.versions.get((who.pubkey, 30_023, d), "")
                self.there.pop(before, None)
                self.versions[who.pubkey, 30_023, d] = event.id
            case _ if who.pubkey in members:
                self._write(who, CHAT, h)
            case _:
                self._attempt(made(who, CHAT, h), is_stored=False, text="restricted: no member")

    def _write(self, who: SecretKey, kind: int, *tags: list[str]) -> Event:
        event, history = made(who, kind, *tags), self.history
        if self.chance.random() < 0.2:
            self._attempt(event, is_stored=False, text="error: try again")
        self._attempt(event, is_stored=None if self.chance.random() < 0.1 else True)
        history.log.append((2 * len(history.log) + 1, event.id))
        self.there[event.id] = event
        at = self.now + 0.01
        self.watcher.got.append((at, event.id))
        for key, stream in self.readers.items():
            if kind == CHAT and key in self.members[event.tag("h") or ""]:
                stream.got.append((at, event.id))
        return event

    def _attempt(self, event: Event, *, is_stored: bool | None, text: str = "") -> Attempt:
        """It takes effect now."""
        attempt = self.history.attempt(event, 0, self.now - 2 * self.chance.random())
        if is_stored is not None:
            attempt.answered = self.now + 2 * self.chance.random()
            attempt.is_stored, attempt.text = is_stored, text
        return attempt


@pytest.mark.parametrize("seed", range(5))
def test_what_keeps_every_promise_passes(seed: int) -> None:
    perfect = Perfect(seed)
    assert faults(perfect.history) == []
    assert len(perfect.history.log) > WRITES / 2


# -- each promise, broken --------------------------------------------------------------------------


def an_acknowledged_row_is_lost(history: History, chance: Random) -> None:
    place = chance.choice([n for n, (_, id_) in enumerate(history.log) if _is_known(history, id_)])
    del history.log[place]


def a_row_is_stored_twice(history: History, chance: Random) -> None:
    history.log.append((history.log[-1][0] + 1, chance.choice(history.log)[1]))


def what_was_refused_is_stored(history: History, chance: Random) -> None:
    refused = [id_ for id_, write in history.writes.items() if _refusals(history, id_)]
    history.log.append((history.log[-1][0] + 1, chance.choice(refused)))


def two_commits_change_places(history: History, chance: Random) -> None:
    apart = [
        place
        for place, ((_, one), (_, other)) in enumerate(pairwise(history.log))
        if history.writes[one].acknowledged < history.writes[other].invoked
    ]
    place = chance.choice(apart)
    (seq, one), (following, other) = history.log[place : place + 2]
    history.log[place : place + 2] = (seq, other), (following, one)


def a_message_comes_after_the_removal(history: History, chance: Random) -> None:
    _, _, key, group = chance.choice(_removals(history))
    key_of = {each.pubkey: each for each in PEOPLE}
    event = made(key_of[key], CHAT, ["h", group])
    end = max(write.acknowledged for write in history.writes.values() if write.acknowledged < inf)
    attempt = history.attempt(event, 0, end + 1)
    attempt.answered, attempt.is_stored = end + 2, True
    history.log.append((history.log[-1][0] + 1, event.id))


def a_member_is_refused(history: History, chance: Random) -> None:
    (relay, group), members = chance.choice([x for x in history.members.items() if x[1]])
    key = next(each for each in PEOPLE if each.pubkey in members)
    attempt = history.attempt(made(key, CHAT, ["h", group]), relay, 10_000.0)
    attempt.answered, attempt.is_stored, attempt.text = 10_001.0, False, "restricted: no member"


def a_row_is_delivered_twice(history: History, chance: Random) -> None:
    got = history.streams[0].got
    got.append(chance.choice(got))


def a_later_row_reaches_who_was_removed(history: History, chance: Random) -> None:
    seq, at, key, group = chance.choice(_removals(history))
    later = next(
        id_
        for row, id_ in history.log
        if row > seq
        and history.writes[id_].event.kind == CHAT
        and history.writes[id_].group == group
    )
    _stream(history, key).got.append((at, later))


def a_row_of_before_comes_long_after_the_removal(history: History, chance: Random) -> None:
    _, at, key, group = chance.choice(_removals(history))
    for _, id_ in _stream(history, key).got:
        if history.writes[id_].group == group:
            got = [(at + 60 * STALE_S, id_)]
            history.streams.append(Stream(1, key, is_member=False, got=got))
            return


def a_row_is_left_out(history: History, chance: Random) -> None:
    got = history.streams[0].got
    places = [n for n, (_, id_) in enumerate(got) if id_ in history.found[0, ""]]
    del got[chance.choice(places[1:-1])]


def two_rows_change_places(history: History, chance: Random) -> None:
    got = history.streams[0].got
    place = chance.randrange(len(got) - 1)
    got[place : place + 2] = reversed(got[place : place + 2])


def an_old_row_is_not_given(history: History, chance: Random) -> None:
    got = history.streams[-1].got
    got.remove(chance.choice([row for row in got if _is_known(history, row[1])]))


def a_row_is_missing_in_the_end(history: History, chance: Random) -> None:
    history.found[0, ""] -= {chance.choice(sorted(history.found[0, ""]))}


def a_deleted_row_is_back(history: History, chance: Random) -> None:
    gone = {id_ for _, id_ in history.log} - history.found[0, ""]
    history.found[0, ""] |= {chance.choice(sorted(gone))}


def a_member_is_forgotten(history: History, _: Random) -> None:
    for name, members in history.members.items():
        history.members[name] = frozenset(sorted(members)[1:])


def a_removed_member_is_still_one(history: History, chance: Random) -> None:
    for name in history.members:
        history.members[name] = frozenset(key.pubkey for key in PEOPLE)


Fault = Callable[[History, Random], None]
BROKEN: Final[dict[Fault, str]] = {
    an_acknowledged_row_is_lost: "lost",
    a_row_is_stored_twice: "lost",
    what_was_refused_is_stored: "lost",
    two_commits_change_places: "order",
    a_message_comes_after_the_removal: "verdicts",
    a_member_is_refused: "verdicts",
    a_row_is_delivered_twice: "twice",
    a_later_row_reaches_who_was_removed: "late",
    a_row_of_before_comes_long_after_the_removal: "late",
    a_row_is_left_out: "missed",
    two_rows_change_places: "missed",
    an_old_row_is_not_given: "stale",
    a_row_is_missing_in_the_end: "ends",
    a_deleted_row_is_back: "ends",
    a_member_is_forgotten: "ends",
    a_removed_member_is_still_one: "ends",
}


@pytest.mark.parametrize("fault", BROKEN, ids=lambda fault: fault.__name__)
@pytest.mark.parametrize("seed", range(3))
def test_what_breaks_one_is_found(fault: Fault, seed: int) -> None:
    history = Perfect(seed).history
    fault(history, Random(seed))
    assert any(line.startswith(BROKEN[fault]) for line in faults(history)), faults(history)


def _is_known(history: History, id_: str) -> bool:
    return history.writes[id_].acknowledged < inf


def _refusals(history: History, id_: str) -> bool:
    return all(each.is_refused for each in history.writes[id_].attempts)


def _stream(history: History, key: str) -> Stream:
    return next(stream for stream in history.streams if stream.reader == key)


def _removals(history: History) -> list[tuple[int, float, str, str]]:
    """seq, acknowledged when, whom and of which group, of those that last to the end."""
    found: dict[tuple[str, str], tuple[int, float, str, str]] = {}
    for seq, id_ in history.log:
        write = history.writes[id_]
        if write.event.kind in (PUT, REMOVE):
            ((key,), group) = write.event.tag_values("p"), write.group
            found.pop((key, group), None)
            if write.event.kind == REMOVE and write.acknowledged < inf:
                found[key, group] = seq, write.acknowledged, key, group
    return [
        each
        for each in found.values()
        if any(
            seq > each[0] and history.writes[id_].event.kind == CHAT
            for seq, id_ in history.log
            if history.writes[id_].group == each[3]
        )
    ]
