"""Vanish: all rows of the key are deleted, no other membership changes."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from relay.lifecycle.rows import Vanish
from relay.nostr import kinds
from tests.cast import admin, alice, bob, carol, owner
from tests.effort import examples
from tests.harness.reference_store import ReferenceStore
from tests.harness.relay_in_process import DELETED, STORED, Home, policy_of, store_of
from tests.property.world import run

if TYPE_CHECKING:
    from relay.nostr.event import Event
    from relay.nostr.keys import SecretKey

ACTORS = [owner, admin, alice, bob, carol]
POLICIES = [policy_of("open"), policy_of("open", '[groups]\njoins = "review"')]
actors = st.sampled_from(ACTORS)
some_p = actors.map(lambda key: ["p", key.pubkey])
codes = st.sampled_from([["code", "sesame-1"], ["code", "sesame-2"]])
tags = {
    1: st.just(["t", "x"]),
    9: st.just(["t", "x"]),
    5: st.just(["e", "@"]),
    1059: some_p,
    9000: st.tuples(some_p, st.sampled_from([[], ["admin"], ["moderator"], ["poet"]])).map(
        lambda parts: parts[0] + parts[1]
    ),
    9001: some_p,
    9002: st.sampled_from(
        [["closed"], ["hidden"], ["name", "Tea"], ["public"], ["parent", "tea"], ["parent", "den"]]
    ),
    9005: st.just(["e", "@"]),
    9007: st.sampled_from([["name", "Tea"], ["closed"]]),
    9008: st.just(["reason", "x"]),
    9010: st.just(["e", "@"]),
    9009: st.tuples(codes, st.booleans()).map(lambda parts: parts[0]),
    9021: codes | st.just(["reason", "x"]),
    9022: st.just(["reason", "x"]),
    30078: st.just(["d", "x"]),
    62: st.just(["relay", "ALL_RELAYS"]),
}
common = [*[9000] * 3, 9001, *[9021] * 3, 9009, 9009, 9022, 9, 9, 9010, 9010, 62, 62, *tags]


@dataclass(frozen=True, slots=True)
class Step:
    kind: int
    who: SecretKey
    group: str | None
    tag: list[str]
    later: int
    """created_at minus now, in seconds."""
    names: int
    """Which event, counted from the newest, an `e` names."""


@st.composite
def steps(draw: st.DrawFn) -> Step:
    kind = draw(st.sampled_from(common))
    group = draw(st.sampled_from(["tea", "tea", "tea", "den"]))
    placed = kind in kinds.GROUP_RECORDS or (kind == 9 and draw(st.booleans()))
    later = draw(st.sampled_from([0, 0, 0, 0, -1, 1, -2000 if kind == 62 else -500]))
    tag, who = draw(tags[kind]), draw(actors)
    return Step(kind, who, group if placed else None, tag, later, draw(st.integers(0, 8)))


histories = st.lists(
    st.tuples(st.lists(steps(), min_size=1, max_size=6), st.integers(0, 1)),
    min_size=2,
    max_size=10,
)


class Life:
    """A relay, the events sent to it, and who vanished until when."""

    def __init__(self, home: Home) -> None:
        self.home = home
        self.sent: list[Event] = []
        self.gone: dict[str, Vanish] = {}

    def event(self, step: Step) -> Event:
        tag = step.tag
        if tag[-1] == "@":
            named = self.sent[-1 - step.names] if step.names < len(self.sent) else None
            tag = ["e", named.id if named is not None else "0" * 64]
        event = self.home.made(
            step.who, step.kind, tag, h=step.group, at=self.home.now + step.later
        )
        self.sent.append(event)
        return event

    async def take(self, *events: Event) -> list[tuple[bool, str]]:
        answers = await self.home.take(*events)
        for event, (accepted, _) in zip(events, answers, strict=True):
            assert accepted or event.kind != kinds.VANISH
            if event.kind == kinds.VANISH:
                if event not in self.sent:
                    self.sent.append(event)
                if event.created_at > self.until(event.pubkey):
                    self.gone[event.pubkey] = Vanish(event.pubkey, event.created_at, event.id)
        return answers

    def until(self, pubkey: str) -> int:
        return self.gone[pubkey].until if pubkey in self.gone else -1

    def is_left(self, row: Event, gone: Vanish) -> bool:
        """A notice may tell that the key was put in again since: its `e` names what did it."""
        if row.kind in kinds.GROUP_MEMBER_NOTICES and self.place(row.tag("e")) > self.place(
            gone.request
        ):
            return False
        return gone.covers(row)

    def place(self, event_id: str | None) -> int:
        ids = [event.id for event in self.sent]
        return ids.index(event_id) if event_id in ids else -1

    async def is_sound(self) -> None:
        home = self.home
        log = await home.log()
        assert not [
            row for row in log if any(self.is_left(row, gone) for gone in self.gone.values())
        ]
        groups = home.groups
        assert await home.rebuilt() == groups
        if isinstance(home.store, ReferenceStore):
            assert home.store.groups == {**groups.by_id, **groups.ended}
        said = Counter((row.kind, row.d) for row in log if row.kind in kinds.GROUP_STATE)
        assert set(said.values()) <= {1}
        for group in groups.by_id.values():
            (shown,) = [row for row in log if (row.kind, row.d) == (39002, group.id)]
            assert set(shown.tag_values("p")) == group.members.keys()
            (led,) = [row for row in log if (row.kind, row.d) == (39001, group.id)]
            assert {tag[1]: tuple(tag[2:]) for tag in led.tags[1:]} == group.admins()
            (described,) = [row for row in log if (row.kind, row.d) == (39000, group.id)]
            assert described.tag("parent") == group.parent
            assert described.tag_values("child") == list(group.children)
            assert all(groups.by_id[child].parent == group.id for child in group.children)
            pins = [row for row in log if (row.kind, row.d) == (39005, group.id)]
            assert [tag[1] for row in pins for tag in row.tags[1:]] == [
                tag[1] for tag in group.pins
            ]
            # A kind 5 without `h` belongs to the group of the rows that it removed.
            ids = {
                row.id
                for row in log
                if row.tag("h") == group.id or (row.kind == 5 and row.tag("h") is None)
            }
            assert {tag[1] for tag in group.pins} <= ids

    async def vanishes(self, who: SecretKey) -> None:
        """Alone in a batch: nobody else's membership changes."""
        before = self.home.groups
        latest = max(self.home.now, self.until(who.pubkey) + 1)
        await self.take(self.home.request(who, at=latest))
        after = self.home.groups
        assert after.ended == {
            group_id: replace(ended, members=ended.members - {who.pubkey})
            for group_id, ended in before.ended.items()
        }
        assert after.by_id.keys() == before.by_id.keys()
        for group in before.by_id.values():
            left = after.by_id[group.id]
            assert left.members == {
                key: roles for key, roles in group.members.items() if key != who.pubkey
            }
            assert (left.flags, left.metadata) == (group.flags, group.metadata)
            assert left.removed.keys() | {who.pubkey} >= group.removed.keys()
            # Members that the key had removed are removed by the relay; their requests are gone.
            again = {who.pubkey, *group.removed}
            assert left.requests.keys() - again == group.requests.keys() - again
        old = [event for event in self.sent if self.gone[who.pubkey].covers(event)]
        answers = await self.home.take(*[event for event in old if event.kind in (1, 9, 1059)])
        # STORED is what who may not read the event is told, whatever became of it.
        assert set(answers) <= {DELETED, STORED, (False, "restricted: not a member")}
        assert {event.id for event in old}.isdisjoint([row.id for row in await self.home.log()])


@pytest.mark.slow
@pytest.mark.parametrize("store", ["reference", "sqlite"])
def test_a_vanish_deletes_the_keys_rows_and_changes_no_other_membership(store: str) -> None:
    """N62-01, N62-05…07, N29-55, N29-58: after every batch."""

    @settings(max_examples=examples(150 if store == "reference" else 60))
    @given(histories, st.sampled_from(POLICIES), actors)
    def law(history: list[tuple[list[Step], int]], policy: object, last: SecretKey) -> None:
        async def live() -> None:
            async with store_of(store) as opened, Home(opened, policy) as home:  # type: ignore[arg-type]
                life = Life(home)
                for group, who in (("tea", admin), ("den", alice)):
                    assert await life.take(home.made(who, 9007, h=group)) == [STORED]
                for batch, seconds in history:
                    home.now += seconds
                    await life.take(*[life.event(step) for step in batch])
                    await life.is_sound()
                home.now += 1
                await life.vanishes(last)
                await life.is_sound()

        run(live())

    law()
