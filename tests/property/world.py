"""Strategies for rows, rules, groups and viewers from few values, so that they often interact."""

from __future__ import annotations

import asyncio
import tempfile
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

from hypothesis import strategies as st

from relay.access.actors import Actors, Attestations, Household
from relay.access.read_rules import Match, ReadRule, Target
from relay.access.visibility import Viewer
from relay.facts import OF_A_GROUP, Who
from relay.groups.actions import Flag
from relay.groups.group import EndedGroup, Group, Groups
from relay.groups.key_map import OrderedMap
from relay.nostr.agents import Attestation
from relay.nostr.event import event_from_raw
from relay.nostr.filters import filter_from
from relay.nostr.kinds import GROUP_STATE, KindSet
from relay.storage import PageQuery
from relay.storage.sqlite.sql.conditions import MAX_PARAMETERS
from relay.storage.sqlite.store import SqliteStore
from tests import cast
from tests.contract.writing import MAX, TERMS, change, unsigned

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
    from contextlib import AbstractAsyncContextManager
    from typing import Any

    from relay.access.visibility import Visibility
    from relay.nostr.event import Event
    from relay.nostr.filters import Filter
    from relay.nostr.keys import SecretKey
    from relay.storage import Store

    NewStore = Callable[[], AbstractAsyncContextManager[Store]]

ACTORS: Final = [cast.alice, cast.bob, cast.carol]
GROUPS: Final = ["tea", "den"]
OF_ONE_CLASS: Final = [5000, 5032]
"""In the table of tags of SQLite."""
KINDS: Final = [0, 1, 5, 9, 78, 1059, 9000, 9007, 30078, 30093, 30095, 39000, *OF_ONE_CLASS]
DS: Final = ["", "x", "snow:", "snow:a"]
WORDS: Final = ["a", "b", "snow:a"]
MADE_UP: Final = [f"{number:064x}" for number in range(MAX_PARAMETERS)]
"""No event has such a tag. With these a list of values is long."""
RULE_TAGS: Final = ["enc", "snow:tier", "visibility", "scope"]

actors = st.sampled_from(ACTORS)
pubkeys = actors.map(lambda key: key.pubkey)
some_pubkeys = st.frozensets(pubkeys, max_size=2)
groups_or_none = st.sampled_from([None, *GROUPS, "gone", "never"])
times = st.sampled_from([0, 1, 2, 3, 4, 5, MAX])
nows = st.integers(0, 6)


# rows -------------------------------------------------------------------------------------------

plain_tags = st.one_of(
    st.tuples(st.sampled_from(["t", "hk", "r"]), st.sampled_from(WORDS)),
    st.tuples(st.just("d"), st.sampled_from(DS)),
    st.tuples(st.sampled_from(["p", "scope", "t"]), pubkeys),
    st.tuples(st.sampled_from([*RULE_TAGS, "t", "d"]), st.sampled_from(WORDS)),
    st.tuples(st.sampled_from([*RULE_TAGS, "t", "p", "d", "team"])),
    st.tuples(st.just("team"), st.sampled_from(["a", "a\0b", "", "a "])),
    st.tuples(st.just("expiration"), st.sampled_from(["2", "4", "900"])),
    st.tuples(st.just("ts"), st.sampled_from(["0", "1", "7", "x"])),
)


@dataclass(frozen=True, slots=True)
class Draft:
    """An event to write; its references to earlier events are resolved then."""

    who: SecretKey
    kind: int
    tags: tuple[tuple[str, ...], ...]
    h: str | None
    at: int
    content: str
    named: tuple[int, ...]
    """Earlier events, counted from the newest, that `e` and `a` tags name."""

    def event(self, before: list[Event]) -> Event:
        tags: list[tuple[str, ...]] = []
        if self.h is not None:  # what the relay signs names its group by `d`
            tags.append(("d" if self.kind in GROUP_STATE else "h", self.h))
        for number in self.named:
            if number < len(before):
                target = before[-1 - number]
                tags.append(("e", target.id))
                tags.append(("a", f"{target.kind}:{target.pubkey}:{target.d}"))
        return unsigned(self.who, self.kind, [*tags, *self.tags], self.content, self.at)


def drafts_of(
    kinds: list[int], tags: st.SearchStrategy[tuple[str, ...]]
) -> st.SearchStrategy[Draft]:
    return st.builds(
        Draft,
        actors,
        st.sampled_from(kinds),
        st.lists(tags, max_size=4).map(tuple),
        st.sampled_from([None, *GROUPS, *GROUPS, "gone"]),
        times,
        st.sampled_from(["", "x"]),
        st.lists(st.integers(0, 12), max_size=2).map(tuple),
    )


drafts = drafts_of(KINDS, plain_tags)
pointing_drafts = drafts_of(
    [1, 9, 78, 30078, *OF_ONE_CLASS],
    st.tuples(st.sampled_from(["t", "t", "p"]), st.sampled_from(WORDS)) | plain_tags,
)
"""Events that often share tags."""


def kinds_in(rules: Sequence[ReadRule]) -> list[int]:
    """Kinds at the edges of the ranges in the rules, and one that no rule has."""
    matches = [match for rule in rules for match in (rule.match, *rule.excepts)]
    spans = [span for match in matches if match.kinds for span in match.kinds.ranges]
    return sorted({1, *(kind for span in spans for kind in span if kind < 20000 or kind >= 30000)})


def ds_in(rules: Sequence[ReadRule]) -> list[str]:
    """Values of `d` in the rules, and values that begin with them."""
    matches = [match for rule in rules for match in (rule.match, *rule.excepts)]
    named = {d for match in matches for d in (*(match.d or ()), *(match.d_prefixes or ()))}
    return sorted({"", *named, *(f"{d}x" for d in named)})


def drafts_about(rules: Sequence[ReadRule]) -> st.SearchStrategy[Draft]:
    """Events that different rules apply to."""
    matches = [match for rule in rules for match in (rule.match, *rule.excepts)]
    tags = {
        (name, value)
        for match in matches
        for name, wanted in match.tags
        for value in (["a"] if isinstance(wanted, bool) else wanted)
    }
    telling = st.sampled_from(sorted([*(("d", d) for d in ds_in(rules)), *tags, ("t", "a")]))
    to_people = st.tuples(st.sampled_from(["p", "scope"]), pubkeys)
    return drafts_of(kinds_in(rules), telling | to_people | plain_tags)


# filters ----------------------------------------------------------------------------------------


def _list(values: st.SearchStrategy[Any]) -> st.SearchStrategy[list[Any]]:
    return st.lists(values, min_size=1, max_size=3)


CONDITIONS: Final[dict[str, st.SearchStrategy[Any]]] = {
    "authors": _list(pubkeys),
    "kinds": _list(st.sampled_from(KINDS)) | st.just([78, 30078]),
    "since": times,
    "until": times,
    "#t": _list(st.sampled_from(WORDS) | pubkeys),
    "#d": _list(st.sampled_from(DS)),
    "#hk": _list(st.sampled_from(WORDS)),
    "#p": _list(pubkeys),
    "#h": _list(st.sampled_from([*GROUPS, "gone"])),
}


@st.composite
def filters(draw: st.DrawFn, kinds: list[int] | None = None) -> Filter:
    # Mostly few conditions: many match nothing.
    size = draw(st.sampled_from([0, 0, 1, 1, 1, 2, 2, 3]))
    names = draw(st.permutations(sorted(CONDITIONS)))[:size]
    asked = {name: draw(CONDITIONS[name]) for name in names}
    if draw(st.booleans()):
        asked |= {name: [*asked[name], *MADE_UP] for name in names if name.startswith("#")}
    if kinds is not None and "kinds" in asked:
        asked["kinds"] = draw(st.lists(st.sampled_from(kinds), min_size=1, max_size=3))
    return filter_from(asked, TERMS)


# readers and rules ------------------------------------------------------------------------------

viewers = st.builds(
    Viewer,
    some_pubkeys,
    st.booleans(),
    st.just(frozenset()) | st.frozensets(st.builds(Attestation, pubkeys, pubkeys), max_size=2),
)

kind_sets = st.lists(
    st.sampled_from(KINDS) | st.sampled_from([(0, 1), (1000, 9999), (30000, 39999), (0, 65535)]),
    max_size=3,
).map(lambda parts: KindSet.of(*parts))

matched_tags = st.lists(
    st.tuples(
        st.sampled_from([*RULE_TAGS, "t", "p", "hk", "d", "team"]),
        st.booleans() | st.frozensets(st.sampled_from(WORDS) | pubkeys, max_size=2),
    ),
    max_size=2,
).map(tuple)


def _maybe(values: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    return st.none() | st.none() | values


matches = st.builds(
    Match,
    kinds=st.none() | kind_sets,
    d=_maybe(st.frozensets(st.sampled_from(DS), max_size=2)),
    d_prefixes=_maybe(st.lists(st.sampled_from(["", "snow", "snow:", "y"]), max_size=2).map(tuple)),
    h=_maybe(st.booleans() | st.frozensets(st.sampled_from([*GROUPS, "gone"]), max_size=2)),
    authors=_maybe(some_pubkeys),
    tags=st.just(()) | matched_tags,
    quiet=_maybe(st.booleans()),
    ended=_maybe(st.booleans()),
)

targets = st.builds(
    Target,
    st.frozensets(st.sampled_from(KINDS), min_size=1, max_size=3),
    st.sampled_from(["t", "r", "p", "d", "h"]),
    _maybe(st.sampled_from(["", "snow", "snow:"])),
)

read_rules = st.builds(
    ReadRule,
    name=st.just("a rule"),
    match=matches,
    readers=st.frozensets(st.sampled_from(list(Who)), max_size=3),
    excepts=st.just(()) | st.lists(matches, max_size=2).map(tuple),
    tag_readers=st.just(())
    | st.lists(st.sampled_from(["p", "t", "scope", "hk"]), max_size=2).map(tuple),
    only_by=_maybe(st.frozensets(st.sampled_from(["authors", "ids", "#p", "#t"]), max_size=2)),
    target=_maybe(targets),
)
rule_sets = st.lists(read_rules, max_size=3)

GROUP_KINDS: Final = [1, 9, 9000]
_some_group_kinds = st.none() | st.sampled_from([KindSet.of(1), KindSet.of((1, 9))])
_words_of_groups = [word for word in Who if word in OF_A_GROUP]
_other_words = [Who.AUTHOR, Who.RECIPIENT, Who.TARGET, Who.MEMBER, Who.OWNER, Who.ANYONE]

group_rules = st.builds(
    ReadRule,
    name=st.just("a rule of groups"),
    match=st.builds(Match, kinds=_some_group_kinds, h=st.sampled_from([True, None]))
    | st.builds(
        Match, kinds=_some_group_kinds, authors=_maybe(some_pubkeys), ended=_maybe(st.booleans())
    ),
    readers=st.builds(
        frozenset.union,
        st.frozensets(st.sampled_from(_words_of_groups), max_size=2),
        st.sampled_from([frozenset(), *(frozenset({word}) for word in _other_words)]),
    ),
    excepts=st.just(())
    | st.tuples(
        st.builds(Match, kinds=_some_group_kinds, h=_maybe(st.booleans()), tags=matched_tags)
    ),
    tag_readers=st.sampled_from([(), (), ("p",)]),
    only_by=st.sampled_from([None, None, frozenset({"ids"})]),
    target=st.just(Target(frozenset({9}), "t")),
)
"""Most say of what groups alone a viewer may read rows of GROUP_KINDS."""
group_rule_sets = st.lists(group_rules, min_size=1, max_size=2)
group_drafts = drafts_of(GROUP_KINDS, plain_tags)

pointing_rules = st.builds(
    ReadRule,
    name=st.just("a rule that points"),
    match=st.builds(Match, kinds=st.sampled_from([KindSet.of(30078), KindSet.of(9, 30078)])),
    readers=st.frozensets(st.sampled_from([Who.AUTHOR, Who.OWNER, Who.INSIDER]), max_size=1).map(
        lambda words: words | {Who.TARGET}
    ),
    target=st.builds(
        Target,
        st.sampled_from([frozenset({78}), frozenset({1, 78})]),
        st.just("t"),
        _maybe(st.just("")),
    ),
)
guarding_rules = st.builds(
    ReadRule,
    name=st.just("a rule about what is pointed to"),
    match=st.builds(
        Match,
        kinds=st.just(KindSet.of(1, 78)),
        h=_maybe(st.booleans()),
        authors=_maybe(some_pubkeys),
    ),
    readers=st.frozensets(
        st.sampled_from([Who.AUTHOR, Who.OWNER, Who.INSIDER, Who.GROUP, Who.MEMBER]), max_size=2
    ),
    only_by=_maybe(st.sampled_from([frozenset({"#t"}), frozenset({"authors"})])),
)
pointing_rule_sets = st.builds(
    lambda pointing, guarding, more: [pointing, *guarding, *more],
    pointing_rules,
    st.lists(guarding_rules, min_size=1, max_size=2),
    st.lists(pointing_rules, max_size=1),
)

peoples = st.builds(
    Actors,
    owners=some_pubkeys,
    agents=some_pubkeys,
    households=st.lists(
        st.builds(Household, st.just("home"), some_pubkeys, some_pubkeys), max_size=2
    ).map(tuple),
    allowed=some_pubkeys,
    relay=pubkeys | st.just(""),
    banned=st.just(frozenset()) | st.frozensets(pubkeys, min_size=1, max_size=2),
    attestations=st.sampled_from(Attestations),
)

roles = st.lists(st.sampled_from(["admin", "moderator", "label", "agent"]), max_size=2).map(tuple)
flags = st.frozensets(st.sampled_from([Flag.PRIVATE, Flag.HIDDEN, Flag.CLOSED]), max_size=2)
members = st.dictionaries(pubkeys, roles, max_size=3).map(OrderedMap[str, tuple[str, ...]])


@st.composite
def groups_of_the_world(draw: st.DrawFn) -> Groups:
    groups = Groups()
    for group_id in [*GROUPS, "gone"]:
        if draw(st.integers(0, 3)):
            groups = groups.with_group(Group(group_id, flags=draw(flags), members=draw(members)))
    return groups.without_group("gone", EndedGroup(draw(some_pubkeys), draw(st.booleans())))


# stores -----------------------------------------------------------------------------------------


@asynccontextmanager
async def sqlite_store() -> AsyncIterator[Store]:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "rookery.db"
        store = await SqliteStore.open(path, TERMS, synchronous="NORMAL", tag_buffer_rows=6)
        try:
            yield store
        finally:
            await store.close()


async def put_groups(store: Store, groups: Groups) -> None:
    """Store all of `groups`, deleted ones too."""
    await change(store, lambda plan: plan.groups.update({**groups.ended, **groups.by_id}))


async def ids_seen(
    store: Store, filter_: Filter, visibility: Visibility, *, now: int = 0
) -> list[str]:
    page = await store.page(
        PageQuery(filter_, visibility, limit=10_000, upto=MAX, now=now, size=10_000)
    )
    return [event_from_raw(raw).id for raw in page.raws]


def run(law: Coroutine[Any, Any, None]) -> None:
    """Run one example in an event loop of its own."""
    asyncio.run(law)
