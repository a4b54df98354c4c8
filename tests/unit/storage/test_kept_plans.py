"""Plans and read conditions of queries are kept for the next query of their shape, within bounds:
an unauthenticated client chooses the filters."""

from __future__ import annotations

import weakref
from dataclasses import replace
from string import ascii_letters
from sys import getsizeof
from typing import TYPE_CHECKING, Any

import pytest

from relay.access.actors import Actors, Attestations, Household
from relay.access.read_rules import Match, ReadRule
from relay.access.visibility import ANONYMOUS, Viewer, visibility_for
from relay.facts import Who
from relay.groups.group import Group, Groups
from relay.groups.key_map import OrderedMap
from relay.nostr.agents import Attestation
from relay.nostr.filters import FilterTerms, filter_from
from relay.nostr.kinds import KindSet
from relay.state import RelayState
from relay.storage import PageQuery
from relay.storage.hashes import Hashes
from relay.storage.postgres.hashes import KeyedHashes
from relay.storage.postgres.sql import filters as postgres_filters
from relay.storage.postgres.sql.filters import Compiler as PostgresCompiler
from relay.storage.postgres.sql.words import Words
from relay.storage.sqlite.partitions import ReadablePartitions
from relay.storage.sqlite.sql import filters, visibility
from relay.storage.sqlite.sql.filters import Compiler
from relay.storage.sqlite.tag_buffer import TagBuffer
from relay.storage.tokens import Tokenizer
from relay.storage.visibility_cache import VisibilityCache
from tests import cast
from tests.harness.relay_in_process import policy_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from relay.access.visibility import Visibility
    from relay.nostr.keys import SecretKey

RULES = (ReadRule("a rule", Match(KindSet.of(4, 1059)), frozenset({Who.AUTHOR})),)
TERMS = FilterTerms()
NAMES = [letter for letter in ascii_letters if letter not in "ehpEP"]


def seen_in(groups: Groups) -> Visibility:
    return visibility_for(ANONYMOUS, RULES, Actors(), groups)


def with_members(group_id: str, *people: SecretKey) -> Groups:
    members = OrderedMap[str, tuple[str, ...]]({each.pubkey: () for each in people})
    return Groups().with_group(Group(group_id, members=members))


def sqlite() -> Compiler:
    return Compiler(Hashes(bytes(32)), TERMS.index_tags, TagBuffer(10), lambda *_: [], lambda: "[]")


def postgres() -> PostgresCompiler:
    return PostgresCompiler(KeyedHashes(bytes(32)), Words(Tokenizer()))


def memory_of(kept: Any, counted: set[int] | None = None) -> int:
    """With all that it refers to, each once."""
    counted = set() if counted is None else counted
    if id(kept) in counted:
        return 0
    counted.add(id(kept))
    parts = [getattr(kept, name) for name in getattr(kept, "__slots__", ())]
    if isinstance(kept, (list, tuple, frozenset)):
        parts += kept
    return getsizeof(kept) + sum([memory_of(part, counted) for part in parts])


class Kept:
    """A compiler that is asked for pages and counts; how much it keeps."""

    def __init__(self) -> None:
        self._compiler = Compiler(
            Hashes(bytes(32)), TERMS.index_tags, TagBuffer(10), lambda *_: [], lambda: "[]"
        )
        self._seen = seen_in(Groups())

    def ask(self, asked: dict[str, Any], seen: Visibility | None = None) -> None:
        seen = seen or self._seen
        filter_ = filter_from(asked, TERMS)
        query = PageQuery(filter_, seen, 5, upto=9, now=1, size=5)
        self._compiler.page(query, "e.raw", frozenset())
        self._compiler.count([filter_], seen, frozenset(), now=1)

    def __len__(self) -> int:
        return self._compiler.kept


def test_an_ordinary_filter_is_kept_once() -> None:
    kept = Kept()
    kept.ask({"kinds": [1, 4]})
    before = len(kept)
    kept.ask({"kinds": [4, 1]})
    assert len(kept) == before > 0


@pytest.mark.parametrize(
    "asked",
    [
        {"kinds": list(range(1000))},
        {"kinds": [30078], "#d": ["x" * 5000 + ":"]},
        {"kinds": [30078], "#d": [f"{number}:" for number in range(100)]},
    ],
    ids=["many kinds", "a long prefix", "many prefixes"],
)
def test_no_plan_holds_what_a_filter_lists_without_end(asked: dict[str, Any]) -> None:
    kept = Kept()
    kept.ask({"kinds": [30078], "#d": ["y"]})  # the condition of these kinds is kept
    before = len(kept)
    kept.ask(asked)
    assert len(kept) == before


def test_a_search_is_not_parsed_again_for_each_of_its_kinds(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    terms = FilterTerms(search=True)
    filter_ = filter_from({"search": "tea", "kinds": list(range(32))}, terms)
    monkeypatch.setattr("relay.nostr.filters.search_from", None)
    assert sqlite().readable([1], filter_, seen_in(Groups()), now=1, upto=9, limit=5).sql


@pytest.mark.parametrize("compiler", [sqlite, postgres])
def test_the_plans_are_bounded_with_their_values(
    monkeypatch: pytest.MonkeyPatch, compiler: Callable[[], Any]
) -> None:
    """There may be a thousand, of any length, for viewers of up to 64 keys."""
    for module in (filters, postgres_filters):
        monkeypatch.setattr(module, "CACHED_PLANS", 1_000_000)
    plans = compiler()
    groups, everywhere = Groups(), ReadRule("tags", Match(), frozenset({Who.AUTHOR, Who.RECIPIENT}))
    values = [str(number) for number in range(16)]
    asked: dict[str, Any] = {f"#{letter}": values for letter in NAMES}
    for number in range(60):
        keys = frozenset(f"{number * 64 + key:064x}" for key in range(64))
        rules = tuple(replace(everywhere, name=f"rule {rule}") for rule in range(5))
        seen = visibility_for(Viewer(keys), rules, Actors(), groups)
        page = PageQuery(filter_from(asked, TERMS), seen, 5, upto=9, now=1, size=5)
        plans.page(page, *([("raw",)] if compiler is postgres else ["e.raw", frozenset()]))
    kept = [*plans._plans]
    assert 5 < len(kept) < 60
    assert sum(map(memory_of, kept)) <= 1_010_000


def test_the_conditions_are_bounded_with_their_values(monkeypatch: pytest.MonkeyPatch) -> None:
    """512 of viewers with 64 keys took 12 MB."""
    monkeypatch.setattr(visibility, "CACHED_PLANS", 400_000)
    plans, groups = sqlite(), Groups()
    rules = tuple(replace(RULES[0], name=f"rule {number}") for number in range(5))
    for number in range(60):
        keys = frozenset(f"{number * 64 + key:064x}" for key in range(64))
        seen = visibility_for(Viewer(keys), rules, Actors(), groups)
        plans.count([filter_from({}, TERMS)], seen, now=1)
    kept = [*plans._reading._conditions]
    assert 5 < len(kept) < 60
    assert sum(map(memory_of, kept)) <= 420_000


@pytest.mark.parametrize("compiler", [sqlite, postgres])
def test_a_change_of_groups_makes_no_plan_anew(compiler: Callable[[], Any]) -> None:
    """Thirty in a second, of empty groups, made each read of a member 1 to 3 ms longer."""
    plans, state = compiler(), RelayState(policy_of("group"), Groups())
    member = Viewer(frozenset({cast.alice.pubkey}))
    filter_ = filter_from({"kinds": [4, 9]}, TERMS)
    made = set[int]()
    for number in range(20):
        state.adopt(state.groups.with_group(Group(f"g{number}")))
        page = PageQuery(filter_, state.visibility(member), 5, upto=9, now=1, size=5)
        plans.page(page, *([("raw",)] if compiler is postgres else ["e.raw", frozenset()]))
        if compiler is sqlite:
            plans.partitions(page.visibility, filter_.kinds)
        made |= set(map(id, plans._plans))
    assert len(made) == 1
    state.adopt(state.groups.with_group(with_members("own", cast.alice).by_id["own"]))
    page = page._replace(visibility=state.visibility(member))
    plans.page(page, *([("raw",)] if compiler is postgres else ["e.raw", frozenset()]))
    assert len(plans._plans) == 2, "she is a member of the relay now"


def test_who_becomes_a_member_reads_by_another_plan_where_there_are_households() -> None:
    home = Household("home", frozenset({cast.bob.pubkey}), frozenset())
    rule = ReadRule("members", Match(), frozenset({Who.MEMBER}))
    before, after = [
        visibility_for(
            Viewer(frozenset({cast.alice.pubkey})), [rule], Actors(households=(home,)), each
        )
        for each in (Groups(), with_members("g", cast.alice))
    ]
    assert before.rules == after.rules
    assert before.lasting != after.lasting


def test_an_agent_whose_owner_becomes_a_member_reads_by_another_plan() -> None:
    """It reads in the groups of its owners."""
    agent, owners = cast.carol.pubkey, (cast.alice, cast.bob)
    attested = frozenset(Attestation(agent, each.pubkey) for each in owners)
    viewer, actors = (
        Viewer(frozenset({agent}), attested=attested),
        Actors(attestations=Attestations.GROUPS),
    )
    earlier = with_members("g", cast.alice)
    before, after = [
        visibility_for(viewer, RULES, actors, each)
        for each in (earlier, earlier.with_group(with_members("h", cast.bob).by_id["h"]))
    ]
    assert before.global_words == after.global_words
    assert before.lasting != after.lasting


def test_what_is_kept_holds_no_groups() -> None:
    """Each kept plan would hold them as they were."""
    kept, groups = Kept(), Groups().with_group(Group("g"))
    seen = seen_in(groups)
    kept.ask({"kinds": [1, 4]}, seen)
    seen, gone = seen_in(Groups()), weakref.ref(seen)
    assert len(kept) == 2
    assert gone() is None


@pytest.mark.parametrize("compiler", [sqlite, postgres])
def test_the_plan_of_many_keys_has_their_list_once(compiler: Callable[[], Any]) -> None:
    """A connection may log in with 64 keys that it makes up, and 1,024 plans are kept."""
    keys = frozenset(f"{number:064x}" for number in range(64))
    rules = tuple(replace(RULES[0], name=f"rule {number}") for number in range(50))
    seen = visibility_for(Viewer(keys), rules, Actors(), Groups())
    asked = PageQuery(filter_from({}, TERMS), seen, 5, upto=9, now=1, size=5)
    query = compiler().page(asked, ("raw",) if compiler is postgres else "e.raw")
    lists = [value for value in query.values if isinstance(value, (str, list)) and len(value) > 60]
    assert len(lists) == 1


def test_visibilities_without_rules_do_not_displace_others() -> None:
    kept = Kept()
    kept.ask({"kinds": [1, 4]})
    before = len(kept)
    kept.ask({"kinds": [1]}, replace(seen_in(Groups()), rules=()))
    kept.ask({"kinds": [1, 4]})
    assert len(kept) == before + 1


@pytest.mark.parametrize("set_", [KindSet.of(4, (10, 20)), KindSet(())], ids=["some", "none"])
@pytest.mark.parametrize("asked", [[], [3], [4], [5, 9], [5, 20], [21], [1, 2, 15, 90]])
def test_a_set_has_one_of_some_kinds(set_: KindSet, asked: list[int]) -> None:
    assert set_.has_one_of(asked) is any(kind in set_ for kind in asked)


class CountingHashes(Hashes):
    """Counts what is hashed."""

    def __init__(self) -> None:
        self.hashed = 0
        super().__init__(bytes(32))

    def _hash(self, text: str) -> int:
        self.hashed += 1
        return super()._hash(text)


def test_the_values_of_a_filter_are_hashed_once_for_all_its_queries() -> None:
    """A COUNT has two queries, and a page that took too long on the loop is compiled again."""
    hashes, seen = CountingHashes(), seen_in(Groups())
    compiler = Compiler(hashes, TERMS.index_tags, TagBuffer(10), lambda *_: [], lambda: "[]")
    filter_ = filter_from({"#t": [str(number) for number in range(70_000)]}, TERMS)
    before = hashes.hashed
    compiler.count([filter_], seen, now=1)
    compiler.authors(filter_, seen, now=1, at_most=9)
    compiler.page(PageQuery(filter_, seen, 5, upto=9, now=1, size=5), "e.raw")
    assert hashes.hashed - before == 70_000


def test_a_filter_of_many_values_leaves_the_hashes_of_others_cached() -> None:
    hashes, seen = CountingHashes(), seen_in(Groups())
    compiler = Compiler(hashes, TERMS.index_tags, TagBuffer(10), lambda *_: [], lambda: "[]")
    small = filter_from({"#t": ["tea"]}, TERMS)
    compiler.count([small], seen, now=1)
    for first in range(0, 70_000, 1000):
        many = {"#t": [str(number) for number in range(first, first + 1000)]}
        compiler.count([filter_from(many, TERMS)], seen, now=1)
    before = hashes.hashed
    compiler.count([small], seen, now=1)
    assert hashes.hashed == before


def test_what_is_kept_again_counts_once() -> None:
    """Else each was thrown out at once when the groups had changed a thousand times."""
    cache = VisibilityCache[int](100, lambda _: 40)
    viewer = visibility_for(ANONYMOUS, (), Actors(), Groups())
    for number in range(9):
        cache.keep(viewer, "one", number)
    cache.keep(viewer, "another", 9)
    assert [*cache] == [8, 9]
    assert cache.get(viewer, "one") == 8
    cache.keep(viewer, "a third", 10)
    assert cache.get(viewer, "another") is None, "not asked for the longest time"


def test_plans_of_others_displace_none_of_who_is_admitted() -> None:
    """Known keys asked for 100 new shapes of filters a second: members' were made each time."""
    cache, owner = VisibilityCache[int](100, lambda _: 40), Actors(frozenset({cast.owner.pubkey}))
    admitted = visibility_for(Viewer(frozenset({cast.owner.pubkey})), (), owner, Groups())
    other = visibility_for(Viewer(frozenset({cast.bob.pubkey})), (), owner, Groups())
    cache.keep(admitted, "one", 1)
    for number in range(9):
        cache.keep(other, number, number)
    assert cache.get(admitted, "one") == 1
    assert len(cache) == 3


def test_partitions_are_looked_up_for_the_key_of_the_viewer() -> None:
    """After one look-up that took long, those of all others were not tried on the loop."""
    asked_for = list[str | None]()

    def read(_query: object, key: str | None) -> None:
        asked_for.append(key)

    partitions = ReadablePartitions(sqlite().partitions, read, lambda: 1)
    groups = with_members("den", cast.alice, cast.bob)
    for who in (cast.alice, cast.bob):
        seen = visibility_for(Viewer(frozenset({who.pubkey})), RULES, Actors(), groups)
        assert partitions.of([filter_from({"kinds": [9]}, TERMS)], seen) is None
    assert asked_for == [cast.alice.pubkey, cast.bob.pubkey]
