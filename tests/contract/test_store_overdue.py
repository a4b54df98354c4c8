"""Rows that are due by a rule: a store finds what `relay.lifecycle.retention` computes from all."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from relay.access.read_rules import Match
from relay.lifecycle.retention import (
    DAY_S,
    LastScan,
    MaxAge,
    MaxAmount,
    Scope,
    SweepRule,
    SweepRules,
)
from relay.lifecycle.rows import RetentionDependency, UpTo
from relay.memory.systems import MEMORY_SYSTEMS
from relay.nostr import kinds
from relay.nostr.kinds import KindSet
from tests import cast
from tests.contract.writing import NOTHING_WANTED, look_up, unsigned, write

if TYPE_CHECKING:
    from relay.lifecycle.rows import Stored
    from relay.nostr.event import Event
    from relay.nostr.keys import SecretKey
    from relay.storage import Store

NOW = 100 * DAY_S
NOTES = Match(KindSet.of(1))
TOOLS = Match(KindSet.of(kinds.TOOL_HISTORY))


def rule(match: Match, cause: MaxAge | MaxAmount) -> SweepRule:
    return SweepRule("a rule", "a.toml:1", match, cause)


def note(content: str = "", *, day: int, who: SecretKey = cast.alice) -> Event:
    return unsigned(who, 1, [], content, at=day * DAY_S)


def tool(hk: str, ts: int, *, who: SecretKey = cast.alice, at: int = 1000) -> Event:
    tags = [["d", f"{hk}:{ts}"], ["hk", hk], ["ts", str(ts)]]
    return unsigned(who, kinds.TOOL_HISTORY, tags, at=at)


async def found(
    store: Store,
    asked: SweepRule,
    *,
    seen: LastScan | None = None,
    limit: int = 1000,
    after: tuple[int, str] | None = None,
    exempt: tuple[Match, ...] = (),
) -> list[Stored]:
    seqs = await store.due_rows(asked, exempt, now=NOW, last_scan=seen, after=after, limit=limit)
    return list(await store.stored(seqs))


async def ids(store: Store, asked: SweepRule, exempt: tuple[Match, ...] = ()) -> list[str]:
    return [row.event.id for row in await found(store, asked, exempt=exempt)]


def named(*events: Event) -> list[str]:
    return [event.id for event in events]


async def test_rows_older_than_the_days_of_a_rule_are_due(store: Store) -> None:
    old, older = note(day=89), note(day=3)
    await write(store, old, note(day=90), older, unsigned(cast.alice, 2, at=5))
    assert await ids(store, rule(NOTES, MaxAge(10))) == named(older, old)


async def test_exempt_rows_are_not_due(store: Store) -> None:
    mine, theirs = note(day=1), note(day=2, who=cast.bob)
    await write(store, mine, theirs)
    exempt = (Match(authors=frozenset({cast.alice.pubkey})),)
    assert await ids(store, rule(NOTES, MaxAge(10)), exempt) == named(theirs)


@pytest.mark.parametrize("has_tag", [True, False])
async def test_the_value_of_a_tag_without_a_name_is_no_name(store: Store, *, has_tag: bool) -> None:
    """On PostgreSQL `["", "h"]` was a tag `h`: outsiders' reactions were no more exempt."""
    nameless = unsigned(cast.bob, 1, [["", "h"]], at=DAY_S)
    other = unsigned(cast.bob, 1, [["h", ""]], at=DAY_S)
    await write(store, nameless, other)
    exempt = (Match(tags=(("h", has_tag),)),)
    due = nameless if has_tag else other
    assert await ids(store, rule(NOTES, MaxAge(10)), exempt) == named(due)


@pytest.mark.parametrize("cause", [MaxAge(10), MaxAmount(None, 0), MaxAmount(Scope.AUTHOR, 0)])
async def test_a_rule_for_authors_applies_to_no_others(
    store: Store, cause: MaxAge | MaxAmount
) -> None:
    actors = [cast.person(f"agent {number}") for number in range(20)]
    notes = [note(day=number, who=who) for number, who in enumerate([*actors, cast.bob], 1)]
    await write(store, *notes)
    seen = LastScan(await store.head(), NOW - DAY_S)
    late = note(day=50, who=actors[0])
    await write(store, late)
    for number in (1, 3, 20):
        authors = frozenset(who.pubkey for who in actors[:number])
        asked = rule(Match(NOTES.kinds, authors=authors), cause)
        assert await ids(store, asked) == named(*notes[:number], late)
        since = [row.event.id for row in await found(store, asked, seen=seen)]
        assert set(since) >= {late.id}
        assert set(since) <= {*named(*notes[:number], late)}
    nobody = rule(Match(NOTES.kinds, authors=frozenset()), cause)
    assert await ids(store, nobody) == []
    assert await found(store, nobody, seen=seen) == []


async def test_the_oldest_rows_of_an_author_over_a_number_are_due(store: Store) -> None:
    mine = [note(day=day) for day in (4, 2, 3, 1)]
    await write(store, *mine, note(day=1, who=cast.bob))
    asked = rule(NOTES, MaxAmount(Scope.AUTHOR, 2))
    assert await ids(store, asked) == named(mine[3], mine[1])


@pytest.mark.proves("A-19")
async def test_rows_are_ordered_by_ts_then_by_lowest_id(store: Store) -> None:
    """A-19: created_at is in the opposite order here."""
    tools = [tool("a", 10, at=9000), tool("a", 20, at=8000), tool("a", 30, at=7000)]
    same = sorted(
        [
            tool("b", 5),
            unsigned(cast.alice, kinds.TOOL_HISTORY, [["d", "b:x"], ["hk", "b"], ["ts", "5"]]),
        ],
        key=lambda event: event.id,
    )
    await write(store, *tools, *same)
    asked = rule(TOOLS, MaxAmount(Scope.HK, 1))
    assert await ids(store, asked) == named(same[0], tools[0], tools[1])


async def test_history_keys_are_counted_for_each_author(store: Store) -> None:
    first, second = tool("a", 1), tool("a", 2)
    await write(store, first, second, tool("a", 1, who=cast.bob), tool("b", 1))
    no_key = unsigned(cast.alice, kinds.TOOL_HISTORY, [["d", "x"], ["ts", "1"]])
    await write(store, no_key)
    assert await ids(store, rule(TOOLS, MaxAmount(Scope.HK, 1))) == named(first)


async def test_history_keys_differ_after_a_nul_too(store: Store) -> None:
    tools = [tool(hk, ts) for hk in ("a", "a\0b", "a\0c") for ts in (1, 2)]
    await write(store, *tools)
    assert set(await ids(store, rule(TOOLS, MaxAmount(Scope.HK, 1)))) == set(named(*tools[::2]))


async def test_rows_are_counted_per_group_and_ungrouped_rows_not_at_all(store: Store) -> None:
    den = [unsigned(cast.alice, 9, [["h", "den"]], at=at) for at in (1, 2)]
    tea = unsigned(cast.bob, 9, [["h", "tea"]], at=1)
    await write(store, *den, tea, unsigned(cast.bob, 9, at=1), unsigned(cast.bob, 9, at=2))
    asked = rule(Match(KindSet.of(9)), MaxAmount(Scope.GROUP, 1))
    assert await ids(store, asked) == named(den[0])


async def test_rows_of_a_group_without_its_h_are_not_counted_for_it(store: Store) -> None:
    den = [unsigned(cast.alice, 9, [["h", "den"]], at=at) for at in (1, 2, 3)]
    about = [unsigned(cast.bob, 7, [["e", den[0].id]], at=at) for at in (1, 4)]
    await write(store, *den)
    await write(store, *about, group="den")
    asked = rule(Match(h=True), MaxAmount(Scope.GROUP, 2))
    exempt = SweepRules().exempt_from(asked)
    assert await ids(store, asked, exempt) == named(den[0])
    for h in (True, frozenset({"den"})):
        asked = rule(Match(h=h), MaxAmount(None, 2))
        assert await ids(store, asked, SweepRules().exempt_from(asked)) == named(den[0])
    assert set(await ids(store, rule(Match(h=True), MaxAge(93)))) >= {*named(*den, *about)}


async def test_rows_are_counted_for_each_prefix_whoever_wrote_them(store: Store) -> None:
    def record(d: str, at: int, who: SecretKey = cast.alice) -> Event:
        return unsigned(who, kinds.APP_DATA, [["d", d]], at=at)

    rows = [record("a:1", 1), record("a:2", 2, cast.bob), record("b:1", 1), record("c:1", 0)]
    await write(store, *rows)
    match = Match(KindSet.of(kinds.APP_DATA), d_prefixes=("a:", "b:"))
    assert await ids(store, rule(match, MaxAmount(Scope.D_PREFIX, 1))) == named(rows[0])


@pytest.mark.parametrize("prefix", ["sno\U0010ffff", "sno\U0010ffff\U0010ffff", "\U0010ffff"])
async def test_no_character_follows_the_last_one_of_a_prefix(store: Store, prefix: str) -> None:
    begins = [prefix, f"{prefix}\U0010ffff", f"{prefix}a"]
    others = ["sno", "snp", "sno\uffff", "t", "\U0010fffe"]
    rows = [unsigned(cast.alice, kinds.APP_DATA, [["d", d]], at=1) for d in (*others, *begins)]
    await write(store, *rows)
    match = Match(KindSet.of(kinds.APP_DATA), d_prefixes=(prefix,))
    found = await ids(store, rule(match, MaxAge(93)))
    assert set(found) == set(named(*rows[len(others) :]))


@pytest.mark.parametrize("per", [None, Scope.AUTHOR])
async def test_the_oldest_rows_over_a_number_of_bytes_are_due(
    store: Store, per: Scope | None
) -> None:
    rows = [note("x" * 500, day=1), note("x" * 5, day=2), note("y" * 5, day=3)]
    await write(store, *rows)
    room = len(rows[1].raw) + len(rows[2].raw)
    assert await ids(store, rule(NOTES, MaxAmount(per, bytes=room))) == named(rows[0])
    assert await ids(store, rule(NOTES, MaxAmount(per, bytes=room - 1))) == named(rows[0], rows[1])


async def test_rows_are_given_in_pages(store: Store) -> None:
    rows = [note(day=day) for day in range(1, 8)]
    await write(store, *rows)
    for cause in (MaxAge(93), MaxAmount(Scope.AUTHOR, 1)):
        got: list[Stored] = []
        while page := await found(
            store,
            rule(NOTES, cause),
            limit=2,
            after=(got[-1].version, got[-1].event.id) if got else None,
        ):
            got += page
        assert [row.event.id for row in got] == named(*rows[:6])


@pytest.mark.parametrize(
    "cause",
    [
        MaxAge(10),
        *(MaxAmount(per, 1) for per in (None, Scope.AUTHOR)),
        MaxAmount(Scope.AUTHOR, bytes=1200),
    ],
)
async def test_rows_that_became_due_since_the_last_scan_are_found(
    store: Store, cause: MaxAge | MaxAmount
) -> None:
    """By age, or because rows were added."""
    due = note(day=85)
    await write(store, due, note("x" * 700, day=95))
    seen = LastScan(await store.head(), NOW - 8 * DAY_S)
    late = note(day=2)
    await write(store, late)
    again = await found(store, rule(NOTES, cause), seen=seen)
    assert [row.event.id for row in again] == named(late, due)


async def test_rows_that_were_deleted_since_are_not_given(store: Store) -> None:
    rows = [note(day=day) for day in (2, 1)]
    await write(store, *rows)
    assert [row.event.id for row in await store.stored([2, 9, 1])] == named(*reversed(rows))


async def test_group_records_are_due_only_by_rules_that_name_them(store: Store) -> None:
    config = unsigned(cast.owner, kinds.APP_DATA, [["d", "snowclaw:config:x"]], at=1)
    made = unsigned(cast.alice, 9007, [["h", "den"]], at=1)
    deletion = unsigned(cast.alice, 5, [["e", "0" * 64]], at=1)
    preference = unsigned(cast.alice, kinds.PREFERENCE, [["d", "a"]], at=1)
    await write(store, config, made, deletion, preference)
    rules = SweepRules(systems=MEMORY_SYSTEMS)

    async def taken(match: Match) -> list[str]:
        asked = rule(match, MaxAge(1))
        return await ids(store, asked, rules.exempt_from(asked))

    assert await taken(Match()) == []
    assert await taken(Match(KindSet.of((0, 65_535)))) == named(deletion)
    assert await taken(Match(KindSet.of(5, 9007, kinds.PREFERENCE))) == named(deletion)
    assert await taken(Match(d_prefixes=("snowclaw:config:",))) == named(config)


async def test_the_oldest_dependency_is_looked_up(store: Store) -> None:
    match = Match(
        KindSet.of(kinds.SUMMARY, kinds.TOOL_HISTORY),
        authors=frozenset({cast.alice.pubkey}),
        tags=(("hk", frozenset({"a"})),),
    )
    none = RetentionDependency(Match(match.kinds, tags=(("hk", frozenset({"z"})),)), UpTo.TS)
    both = RetentionDependency(match, UpTo.TS), RetentionDependency(match, UpTo.CREATED_AT)
    await write(
        store,
        tool("a", 70, at=900),
        tool("a", 80, at=800),
        tool("b", 1),
        tool("a", 2, who=cast.bob),
    )
    found = await look_up(store, dependencies=[*both, none])
    assert found.oldest_dependencies == {both[0]: 70, both[1]: 800}
    assert (await look_up(store)).oldest_dependencies == {}
    assert not NOTHING_WANTED.dependencies
