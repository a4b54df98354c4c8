"""Sweeps: an interrupted sweep breaks no rule, and a second one changes nothing."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncGenerator
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from relay.lifecycle.retention import DAY_S
from relay.write import sweeper as sweep
from relay.write.commands import Purpose
from tests.cast import robot, rover
from tests.effort import examples
from tests.harness.reference_store import ReferenceStore
from tests.harness.relay_in_process import NOON, Home, policy_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from relay.nostr.event import Event
    from relay.storage import Store
    from tests.property.world import NewStore

HKS = ("a", "b")
NUMBERS = 'include = ["aman-app"]\n[memory]\nschema = "off"\n'
RULES = (
    "match = { kinds = [30094, 30095] }\ndays = 3",
    "match = { kinds = [30096] }\ndays = 1",
    'match = { kinds = [30096] }\ncount = { per = "author", max = 1 }',
    'match = { kinds = [30095] }\ncount = { per = "hk", max = 2 }',
    "match = { kinds = [30095, 30096] }\nbytes = 1500",
    'match = { kinds = [30095], tags = { hk = "b" } }\nnever = true',
    'match = { kinds = ["0-65535"] }\ncount = { per = "hk", max = 3 }',
)


@dataclass(frozen=True, slots=True)
class Draft:
    who: int
    kind: int
    hk: str
    days: int
    """`ts` is old."""
    moved: int
    """created_at is so many days after `ts`."""

    def event(self) -> Event:
        ts = NOON - self.days * DAY_S
        at = min(NOON, ts + self.moved * DAY_S)
        tags = [
            ["d", self.hk if self.kind == 30094 else f"{self.hk}:{self.days}"],
            ["hk", self.hk],
            ["ts", str(ts)],
        ]
        key = robot if self.who == 0 else rover
        return key.sign(self.kind, tags, "", at)


drafts = st.lists(
    st.builds(
        Draft,
        st.integers(0, 1),
        st.sampled_from([30094, 30095, 30095, 30096]),
        st.sampled_from(HKS),
        st.integers(0, 40),
        st.sampled_from([0, 0, 0, 20]),
    ),
    max_size=24,
)
chosen = st.lists(st.sampled_from(RULES), min_size=1, unique=True)


def policy_text(rules: Sequence[str]) -> str:
    named = [
        f'[[retention]]\nname = "rule {number}"\n{rule}\n' for number, rule in enumerate(rules)
    ]
    agents = f'[actors]\nagents = ["{robot.npub}", "{rover.npub}"]\n'
    return "\n".join([NUMBERS, agents, *named])


def time_of(event: Event) -> int:
    return int(event.tag("ts") or 0)


def faults(before: Sequence[Event], left: Sequence[Event], rules: Sequence[str]) -> list[str]:
    """Rows that the sweep must not have removed, with the reason."""
    ids = {event.id for event in left}
    out = []
    for clear in before:
        if clear.kind != 30096 or clear.id in ids:
            continue
        out += [
            f"clear {clear.id} went before {other.id}"
            for other in left
            if other.kind in (30094, 30095)
            and (other.pubkey, other.tag("hk")) == (clear.pubkey, clear.tag("hk"))
            and time_of(other) <= time_of(clear)
        ]
    if RULES[5] in rules:
        kept = [e for e in before if e.kind == 30095 and e.tag("hk") == "b"]
        out += [f"{event.id} goes never" for event in kept if event.id not in ids]
    if not any("0-65535" in rule or "30095" in rule for rule in rules):
        young = [e for e in before if e.kind == 30095 and e.created_at > NOON - 3 * DAY_S]
        out += [f"{event.id} is young" for event in young if event.id not in ids]
    return out


async def law(store: Store, writes: list[Draft], rules: list[str], cuts: list[int]) -> None:
    async with Home(store, policy_of("open", policy_text(rules))) as home:
        await home.take(*[draft.event() for draft in writes])
        before = await home.log()
        for cut in cuts:
            transactions = home.sweep.by_rules(Purpose.SWEEP)
            assert isinstance(transactions, AsyncGenerator)
            for _ in range(cut):
                if await anext(transactions, None) is None:
                    break
            await transactions.aclose()
            assert faults(before, await home.log(), rules) == []
        await home.sweep.once()
        left = await home.log()
        assert faults(before, left, rules) == []
        per_key = Counter((e.pubkey, e.tag("hk")) for e in left if e.kind == 30095)
        if RULES[3] in rules and RULES[5] not in rules:
            assert max(per_key.values(), default=0) <= 2
        home.sweep._rules = None  # look at all again
        assert await home.sweep.once() == 0, "a second sweep found something"
        trial = [row async for one in home.sweep.by_rules(Purpose.DRY_RUN) for row in one.removed]
        assert trial == []


@pytest.fixture
def _small_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sweep, "_BATCH_ROWS", 2)
    monkeypatch.setattr(sweep, "_SCAN_ROWS", 5)
    monkeypatch.setattr(sweep, "_PAUSE_FACTOR", 0)


_LAW = settings(deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])


@pytest.mark.proves("A-18")
@pytest.mark.usefixtures("_small_steps")
@given(writes=drafts, rules=chosen, cuts=st.lists(st.integers(0, 6), max_size=4))
@_LAW
def test_an_interrupted_sweep_breaks_no_rule(
    writes: list[Draft], rules: list[str], cuts: list[int]
) -> None:
    asyncio.run(law(ReferenceStore(), writes, rules, cuts))


_HELD_BY_A_LATER_RULE = [
    Draft(0, 30094, "b", days=31, moved=20),
    Draft(0, 30096, "b", days=28, moved=0),
    *[Draft(0, 30095, "a", days, moved=0) for days in range(4)],
]
"""The clear is over the number of bytes, and held by a summary that the rule after it removes."""


@pytest.mark.usefixtures("_small_steps")
@example(writes=_HELD_BY_A_LATER_RULE, rules=[RULES[4], RULES[0]])
@given(writes=drafts, rules=chosen)
@settings(_LAW, max_examples=examples(40))
def test_an_interrupted_sweep_ends_the_same_in_every_store(
    new_store: NewStore, writes: list[Draft], rules: list[str]
) -> None:
    async def left(store: Store, cuts: list[int]) -> set[str]:
        await law(store, writes, rules, cuts)
        return {row.event.id for row in await store.since(0, 1000)}

    async def both() -> None:
        once = await left(ReferenceStore(), [])
        async with new_store() as store:
            assert await left(store, [1, 3]) == once

    asyncio.run(both())
