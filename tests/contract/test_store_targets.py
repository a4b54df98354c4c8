"""Who may read: a row whose rule has a target is read through the rows that share its tag.

On every store and every read of it: pages, counts, authors, sets, searches.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest
from msgspec import structs

from relay.access.actors import Actors
from relay.access.read_rules import Match, Target
from relay.access.visibility import ANONYMOUS
from relay.facts import Who
from relay.groups.actions import Flag
from relay.groups.group import Group, Groups
from relay.groups.key_map import OrderedMap
from relay.nostr.filters import FilterTerms, filter_from
from relay.nostr.kinds import KindSet
from relay.storage import PageQuery
from tests import cast
from tests.contract.crowd import ALICE, BOB, CAROL, keys, rule, seen_by
from tests.contract.writing import (
    EVERYTHING,
    MAX,
    asked,
    change,
    in_order,
    raws,
    read,
    read_in_pages,
    set_groups,
    stored,
    unsigned,
    write,
)

if TYPE_CHECKING:
    from relay.access.visibility import Visibility
    from relay.nostr.event import Event
    from relay.nostr.keys import SecretKey
    from relay.storage import Store
    from tests.contract.conftest import Reopenable

ENTRIES = Target(frozenset({78}), "x")
AT_THEIR_D = Target(frozenset({78}), "x", "entry:")
LIKE_THEIR_ENTRY = rule(Match(KindSet.of(30078)), Who.AUTHOR, Who.TARGET, target=ENTRIES)
OF_AUTHORS = rule(Match(KindSet.of(78)), Who.AUTHOR)
OF_GROUPS = rule(Match(KindSet.of(78), h=True), Who.GROUP)


def vouch(hashed: str = "aa", who: SecretKey = cast.bob, **more: Any) -> Event:
    return unsigned(who, 30078, [["d", f"vouch:{hashed}"], ["x", hashed]], "yes", **more)


def entry(hashed: str = "aa", who: SecretKey = cast.alice, *more: list[str]) -> Event:
    return unsigned(who, 78, [["d", f"entry:{hashed}"], ["x", hashed], *more])


def as_seen_by(*pubkeys: str, **more: Any) -> Visibility:
    return seen_by(keys(*pubkeys), LIKE_THEIR_ENTRY, OF_AUTHORS, **more)


async def vouches_read(store: Store, visibility: Visibility, now: int = 0) -> list[bytes]:
    return await read(store, asked(kinds=[30078]), visibility, now=now)


@pytest.mark.proves("X-22")
async def test_a_row_is_read_by_who_may_read_a_row_that_shares_its_tag(store: Store) -> None:
    await write(store, entry(), vouch())
    assert await vouches_read(store, as_seen_by(ALICE)) == raws(vouch())
    assert await vouches_read(store, as_seen_by(BOB)) == raws(vouch())
    assert await vouches_read(store, as_seen_by(CAROL)) == []
    assert await vouches_read(store, as_seen_by(CAROL, ALICE)) == raws(vouch())
    assert await vouches_read(store, seen_by(ANONYMOUS, LIKE_THEIR_ENTRY, OF_AUTHORS)) == []
    assert await vouches_read(store, EVERYTHING) == raws(vouch())


async def test_where_anyone_reads_the_target_anyone_reads_the_row(store: Store) -> None:
    await write(store, entry(), vouch())
    assert await vouches_read(store, seen_by(ANONYMOUS, LIKE_THEIR_ENTRY)) == raws(vouch())


@pytest.mark.proves("X-22")
async def test_a_tag_on_a_row_of_ones_own_opens_nothing_where_targets_are_named_by_d(
    store: Store,
) -> None:
    by_d = rule(Match(KindSet.of(30078)), Who.AUTHOR, Who.TARGET, target=AT_THEIR_D)
    of_carol = [
        [["d", "mine"], ["x", "aa"]],
        [["d", "mine"], ["x", "aa"], ["d", "entry:aa"]],
        [["x", "aa"], ["d"], ["d", "entry:aa"]],
        [["d", "entry:bb"], ["x", "aa"], ["d", "entry:aa"]],
        [["d", "entry:"], ["x", "aa"]],
    ]
    await write(store, entry(), vouch())
    await write(store, *[unsigned(cast.carol, 78, tags) for tags in of_carol])
    for pubkey, expected in ((ALICE, raws(vouch())), (CAROL, [])):
        visibility = seen_by(keys(pubkey), by_d, OF_AUTHORS)
        assert await vouches_read(store, visibility) == expected
        assert await store.count([asked(kinds=[30078])], visibility, now=0) == len(expected)
    await write(store, unsigned(cast.carol, 78, [["d", "entry:aa"]]))
    assert await vouches_read(store, seen_by(keys(CAROL), by_d, OF_AUTHORS)) == raws(vouch())


@pytest.mark.proves("X-22")
async def test_visibility_follows_the_target(reopenable: Reopenable) -> None:
    store = await reopenable.open()
    await write(store, vouch())
    assert await vouches_read(store, as_seen_by(ALICE)) == []
    row = await stored(store, entry())
    assert await vouches_read(store, as_seen_by(ALICE)) == raws(vouch())
    store = await reopenable.crash()
    assert await vouches_read(store, as_seen_by(ALICE)) == raws(vouch())
    await change(store, lambda plan: plan.removes.add(row.seq))
    assert await vouches_read(store, as_seen_by(ALICE)) == []
    assert await vouches_read(store, as_seen_by(BOB)) == raws(vouch())


async def test_an_expired_target_gives_no_access(store: Store) -> None:
    await write(store, entry("aa", cast.alice, ["expiration", "50"]), vouch())
    assert await vouches_read(store, as_seen_by(ALICE), now=49) == raws(vouch())
    assert await vouches_read(store, as_seen_by(ALICE), now=50) == []


async def test_one_target_of_many_is_enough(store: Store) -> None:
    await write(store, vouch(), *[entry("aa", cast.person(f"p{n}")) for n in range(20)])
    assert await vouches_read(store, as_seen_by(ALICE)) == []
    for number in (0, 19):
        visibility = as_seen_by(cast.person(f"p{number}").pubkey)
        assert await vouches_read(store, visibility) == raws(vouch())


async def test_the_first_value_of_a_row_finds_any_value_of_the_target(store: Store) -> None:
    second = unsigned(cast.bob, 30078, [["x"], ["x", "bb"], ["x", "aa"]])
    first = unsigned(cast.carol, 30078, [["y", "bb"], ["x", "aa"]])
    none = unsigned(cast.dave, 30078, [["x"], ["y", "aa"]])
    await write(store, first, second, none, entry("cc", cast.alice, ["x", "aa"]))
    assert await vouches_read(store, as_seen_by(ALICE)) == raws(first)


async def test_values_that_look_alike_are_others(store: Store) -> None:
    near = [vouch(value) for value in ("aa\0b", "a", "AA", " aa", "")]
    await write(store, *near, entry("aa"), unsigned(cast.alice, 78, [["d", ""], ["x", ""]]))
    assert await vouches_read(store, as_seen_by(ALICE)) == raws(near[-1])


async def test_other_kinds_and_other_tags_are_no_targets(store: Store) -> None:
    await write(store, vouch(), unsigned(cast.alice, 1, [["x", "aa"]]))
    await write(store, unsigned(cast.alice, 78, [["y", "aa"]]))
    assert await vouches_read(store, as_seen_by(ALICE)) == []


async def test_targets_of_targets_are_not_followed(store: Store) -> None:
    """One step only."""
    notes = rule(Match(KindSet.of(78)), Who.AUTHOR, Who.TARGET, target=Target(frozenset({1}), "x"))
    await write(store, vouch(), entry(), unsigned(cast.carol, 1, [["x", "aa"]]))
    visibility = seen_by(keys(CAROL), LIKE_THEIR_ENTRY, notes)
    assert await read(store, asked(kinds=[78]), visibility) == raws(entry())
    assert await vouches_read(store, visibility) == []


async def test_a_target_is_asked_for_by_its_tag(store: Store) -> None:
    """`only_by` of its own rules: the filter names the tag, and nothing else."""
    await write(store, vouch(), entry())
    for named, expected in (("#x", raws(vouch())), ("authors", []), ("ids", [])):
        about = rule(Match(KindSet.of(78)), Who.ANYONE, only_by=frozenset({named}))
        assert await vouches_read(store, seen_by(ANONYMOUS, LIKE_THEIR_ENTRY, about)) == expected


@pytest.mark.proves("X-22")
async def test_the_group_of_the_target_says_who_reads_what_points_to_it(store: Store) -> None:
    await write(store, vouch(), entry("aa", cast.alice, ["h", "den"]))
    den = Group("den", flags=frozenset({Flag.PRIVATE}), members=OrderedMap({ALICE: (), CAROL: ()}))
    for group in (
        den,
        replace(den, members=OrderedMap({CAROL: ()})),
        replace(den, flags=frozenset()),
    ):
        groups = Groups().with_group(group)
        await set_groups(store, den=group)
        for pubkey in (ALICE, CAROL, cast.dave.pubkey):
            visibility = seen_by(keys(pubkey), LIKE_THEIR_ENTRY, OF_GROUPS, groups=groups)
            is_open = pubkey in group.members or not group.flags
            assert await vouches_read(store, visibility) == raws(vouch()) * is_open, pubkey


async def test_bans_hide_targets_too(store: Store) -> None:
    await write(store, vouch(), entry())
    actors = Actors(owners=frozenset({CAROL}), banned=frozenset({ALICE}))
    owners = rule(Match(KindSet.of(78)), Who.OWNER)
    visibility = seen_by(keys(CAROL), LIKE_THEIR_ENTRY, owners, actors=actors)
    assert await vouches_read(store, visibility) == []


@pytest.mark.proves("G-17", "X-22")
async def test_all_read_methods_agree(store: Store) -> None:
    terms = FilterTerms(search=True)
    shown = [vouch(f"{n:02x}", at=n) for n in range(30) if n % 3]
    hidden = [vouch(f"{n:02x}", at=n) for n in range(30) if not n % 3]
    entries = [entry(f"{n:02x}", cast.alice if n % 3 else cast.carol) for n in range(30)]
    await write(store, *shown[:10], *entries, *hidden, *shown[10:])
    while await store.index(lambda event: event.content or None, "content", 7) < await store.head():
        pass
    visibility = as_seen_by(ALICE)
    pages = await read_in_pages(store, asked(kinds=[30078]), visibility, size=7)
    assert [raw for page in pages for raw in page] == in_order(*shown)
    for filter_ in (asked(kinds=[30078]), asked(authors=[BOB]), asked(tag_x=["01", "03"])):
        expected = [event for event in shown if filter_.matches(event)]
        places, _ = await store.places(
            PageQuery(filter_, visibility, limit=99, upto=MAX, now=0, size=99)
        )
        assert [raw for _, raw in places if b":30078," in raw] == in_order(*expected)
        own = [event for event in entries if event.pubkey == ALICE and filter_.matches(event)]
        assert await store.count([filter_], visibility, now=0) == len(expected) + len(own)
        items = await store.items(filter_, visibility, limit=None, upto=MAX, now=0, at_most=99)
        assert items is not None
        assert len(items) == len(expected) + len(own)
    authors = await store.authors(asked(kinds=[30078]), visibility, now=0, at_most=9)
    assert authors == [bytes.fromhex(BOB)]
    hidden_one = asked(tag_x=["03"], kinds=[30078])
    assert await store.authors(hidden_one, visibility, now=0, at_most=9) == []
    filter_ = filter_from({"search": "yes", "kinds": [30078]}, terms)
    seqs = await store.search(filter_, visibility, limit=99, upto=MAX, now=0)
    found, _ = await store.rows(seqs, filter_, visibility, now=0)
    assert sorted(found) == sorted(raws(*shown))
    assert await store.count([filter_], visibility, now=0) == len(shown)
    everything = await store.search(filter_, EVERYTHING, limit=99, upto=MAX, now=0)
    again, _ = await store.rows(everything, filter_, visibility, now=0)
    assert sorted(again) == sorted(raws(*shown))


async def test_targets_are_found_wherever_their_tags_are_kept(reopenable: Reopenable) -> None:
    """While the tag buffer is flushed, and after a restart."""
    store = await reopenable.open()
    for number in range(40):
        await write(store, vouch(f"{number:02x}", at=number), entry(f"{39 - number:02x}"))
        expected = [n for n in range(number + 1) if n >= 39 - number]
        assert await vouches_read(store, as_seen_by(ALICE)) == in_order(
            *[vouch(f"{n:02x}", at=n) for n in expected]
        )
    store = await reopenable.restart()
    assert len(await vouches_read(store, as_seen_by(ALICE))) == 40


async def test_matching_gives_the_newest_rows_whole(store: Store) -> None:
    """Whoever may read them, in order of Place, not expired; fewer when they are large."""
    quiet = await stored(store, unsigned(cast.alice, 5, [["x", "aa"]], at=3), quiet=True)
    grouped = await stored(store, entry("aa", cast.alice, ["h", "den"]), group="den")
    again = await stored(store, entry("aa", cast.bob, ["expiration", "50"]))
    await write(store, entry("bb"), unsigned(cast.carol, 1, [["x", "aa"]]))
    filter_ = structs.replace(asked(tag_x=["aa", "cc"]), kinds=frozenset({5, 78}))
    newest = sorted([grouped, again], key=lambda row: row.event.id)
    assert list(await store.matching(filter_, limit=9, now=0)) == [*newest, quiet]
    assert list(await store.matching(filter_, limit=9, now=50)) == [grouped, quiet]
    assert list(await store.matching(filter_, limit=1, now=0)) == newest[:1]
    assert list(await store.matching(asked(ids=[]), limit=9, now=0)) == []
    await write(store, *[unsigned(cast.alice, 7, [], "x" * 400_000, n) for n in range(9)])
    assert 1 < len(await store.matching(asked(kinds=[7]), limit=9, now=0)) <= 9
