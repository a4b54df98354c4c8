"""Due rows: SQL finds those of `relay.lifecycle.retention.due_rows`, whatever the rule."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hypothesis import given, settings
from hypothesis import strategies as st

from relay.access.read_rules import Match
from relay.lifecycle.retention import LastScan, MaxAge, MaxAmount, Scope, SweepRule, SweepRules
from relay.lifecycle.rows import RetentionDependency, UpTo
from tests.contract.writing import look_up, write
from tests.effort import examples
from tests.harness.reference_store import ReferenceStore
from tests.property import world

if TYPE_CHECKING:
    from relay.nostr.event import Event

NOW = 3 + 86_400
"""One day after the middle of the times in `tests.property.world`."""

# Retention rules cannot match `quiet` and `ended`.
matches = world.matches.map(lambda m: Match(m.kinds, m.d, m.d_prefixes, m.h, m.authors, m.tags))
most = st.none() | st.integers(1, 3)
amounts = st.builds(
    MaxAmount, st.none() | st.sampled_from(list(Scope)), most, st.none() | st.integers(1, 2000)
).filter(lambda amount: amount.events is not None or amount.bytes is not None)
rules = st.builds(
    SweepRule, st.just("a rule"), st.just("a.toml:1"), matches, st.just(MaxAge(1)) | amounts
)


@given(
    drafts=st.lists(world.drafts, max_size=30),
    more=st.lists(world.drafts, max_size=6),
    rules=st.lists(rules, min_size=1, max_size=4),
    never=st.lists(matches, max_size=1).map(tuple),
)
@settings(deadline=None, max_examples=examples(100))
def test_both_stores_find_the_same_due_rows(
    new_store: world.NewStore,
    drafts: list[world.Draft],
    more: list[world.Draft],
    rules: list[SweepRule],
    never: tuple[Match, ...],
) -> None:
    async def law() -> None:
        reference = ReferenceStore()
        everything = SweepRules(tuple(rules), never)
        async with new_store() as durable:
            events: list[Event] = []
            for draft in drafts:
                events.append(draft.event(events))
            for store in (reference, durable):
                await write(store, *events)
            earlier = {}
            for rule in rules:
                earlier[rule] = await _same(reference, durable, rule, everything, None)
            seen = LastScan(await reference.head(), NOW)
            new = list(events)
            for draft in more:
                new.append(draft.event(new))
            for store in (reference, durable):
                await write(store, *new[len(events) :])
            for rule in rules:
                whole = await _same(reference, durable, rule, everything, None)
                exempt = everything.exempt_from(rule)
                some = list(
                    await durable.due_rows(
                        rule, exempt, now=NOW, last_scan=seen, after=None, limit=1000
                    )
                )
                assert set(whole) - set(earlier[rule]) <= set(some) <= set(whole)
            await _same_kin(reference, durable, [rule.match for rule in rules])

    world.run(law())


async def _same(
    reference: ReferenceStore,
    durable: object,
    rule: SweepRule,
    rules: SweepRules,
    seen: LastScan | None,
) -> list[int]:
    asked = {"now": NOW, "last_scan": seen, "after": None, "limit": 1000}
    exempt = rules.exempt_from(rule)
    expected = list(await reference.due_rows(rule, exempt, **asked))  # type: ignore[arg-type]
    found = list(await durable.due_rows(rule, exempt, **asked))  # type: ignore[attr-defined]
    assert found == expected, rule
    return expected


async def _same_kin(reference: ReferenceStore, durable: object, matches: list[Match]) -> None:
    dependencies = [RetentionDependency(match, up_to) for match in matches for up_to in UpTo]
    expected = (await look_up(reference, dependencies=dependencies)).oldest_dependencies
    assert (await look_up(durable, dependencies=dependencies)).oldest_dependencies == expected  # type: ignore[arg-type]
