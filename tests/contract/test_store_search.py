"""The promises of `relay.storage` about search, quoted, on every store."""

from __future__ import annotations

from itertools import product
from typing import TYPE_CHECKING, Any, Final

import pytest
import pytest_asyncio

from relay.access.read_rules import Match, Target
from relay.access.visibility import ANONYMOUS, Viewer
from relay.facts import Who
from relay.groups.group import Group, Groups
from relay.nostr.event import event_from_raw
from relay.nostr.filters import FilterTerms, filter_from
from relay.nostr.kinds import KindSet
from relay.nostr.nip50 import search_from, searchable
from relay.storage import PAGE_BYTES, recall
from tests import cast
from tests.contract.crowd import ALICE, on_module_loop, rule, seen_by
from tests.contract.writing import EVERYTHING, MAX, change, stored, unsigned, write
from tests.harness.fts_reading import FtsReading

if TYPE_CHECKING:
    from collections.abc import Sequence

    from relay.access.visibility import Visibility
    from relay.nostr.event import Event
    from relay.nostr.filters import Filter
    from relay.storage import EventReader, Store
    from tests.contract.conftest import Reopenable

TERMS = FilterTerms(search=True)
TEA: Final = [f"tea {number}" for number in range(4)]


def content_of(event: Event) -> str | None:
    return event.content or None


def sought(query: str, **conditions: Any) -> Filter:
    named = {key.replace("tag_", "#"): value for key, value in conditions.items()}
    return filter_from({"search": query, **named}, TERMS)


async def indexed(store: Store, rules: str = "content") -> None:
    """Bring the index up to the head."""
    while await store.index(content_of, rules, 7) < await store.head():
        pass


async def found(
    store: EventReader,
    query: str,
    visibility: Visibility = EVERYTHING,
    *,
    limit: int = 100,
    upto: int = MAX,
    now: int = 0,
    **conditions: Any,
) -> list[str]:
    """What the rows of an answer say, best first."""
    filter_ = sought(query, **conditions)
    seqs = await store.search(filter_, visibility, limit=limit, upto=upto, now=now)
    texts: list[str] = []
    while seqs:
        raws, looked_at = await store.rows(seqs, filter_, visibility, now=now)
        texts += [event_from_raw(raw).content for raw in raws]
        seqs = seqs[looked_at:]
    return texts


async def says(store: Store, *texts: str, **more: Any) -> None:
    """Written one behind the other, each a second later, and indexed."""
    for at, text in enumerate(texts):
        await write(store, unsigned(**{"who": cast.alice, "content": text, "at": at, **more}))
    await indexed(store)


# what matches ------------------------------------------------------------------------------------

TEXTS = (
    "Running the kettle",
    "the café runs on green tea",
    "tea that is green",
    "tea-time, naïve kettles",
    "no\0thing but OR and NOT",
)

MATCHES: dict[str, set[int]] = {
    "kettle": {0, 3},
    "KETTLES": {0, 3},
    "run": {0, 1},
    "runs kettle": {0},
    "cafe": {1},
    "naive": {3},
    "green tea": {1, 2},
    '"green tea"': {1},
    '"tea green"': set(),
    "tea -green": {3},
    'tea -"green tea"': {2, 3},
    "tea -green -time": set(),
    "tea-time": {3},
    "tea !!!": {1, 2, 3},
    "!!!": set(),
    "-tea": set(),
    "tea language:en": {1, 2, 3},
    "OR": {4},
    "kettle OR tea": set(),
    "NOT nothing": set(),
    "thing no": {4},
    "te*": set(),
    "text:tea": {0, 1, 2, 3, 4},
    '"unclosed tea': set(),
    'te"a': set(),
    "(tea)": {1, 2, 3},
    "NEAR(tea green)": set(),
    "{text} : tea ^tea": set(),
    "tea\0 green": {1, 2},
    "'); DROP TABLE words; --": set(),
    "☕": set(),
    "tea ☕": {1, 2, 3},
    "wombat": set(),
}


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def texts(module_store: Store) -> EventReader:
    """What is in it: `TEXTS`, indexed."""
    await says(module_store, *TEXTS)
    return module_store


@on_module_loop
@pytest.mark.proves("N50-01", "N50-02", "N50-04", "N50-10")
async def test_a_search_finds_texts_with_every_word_and_none_that_is_excluded(
    texts: EventReader,
) -> None:
    """Rows that contain what the filter's `search` requires."""
    for query, numbers in MATCHES.items():
        wanted = {TEXTS[number] for number in numbers}
        filter_ = sought(query)
        assert await texts.count([filter_], EVERYTHING, now=0) == len(wanted), query
        if filter_.search is not None:  # else it asks nothing: not a search at all
            assert set(await found(texts, query)) == wanted, query


@pytest.mark.proves("N50-01")
async def test_the_rest_of_the_filter_still_holds(store: Store) -> None:
    """And match the rest of the filter."""
    await write(
        store,
        unsigned(cast.alice, 1, [["t", "x"]], "tea a", 0),
        unsigned(cast.bob, 1, [["t", "y"]], "tea b", 1),
        unsigned(cast.bob, 7, [["t", "y"]], "tea b7", 2),
        unsigned(cast.carol, 30078, [["d", "snow:x"]], "tea d", 0),
    )
    await indexed(store)
    cases: list[tuple[dict[str, Any], list[str]]] = [
        ({"kinds": [7]}, ["tea b7"]),
        ({"authors": [ALICE]}, ["tea a"]),
        ({"tag_t": ["x"]}, ["tea a"]),
        ({"since": 2}, ["tea b7"]),
        ({"until": 1, "kinds": [1]}, ["tea b", "tea a"]),
        ({"since": 1, "until": 1, "kinds": [1]}, ["tea b"]),
        ({"kinds": []}, []),
        ({"tag_d": ["snow:"], "kinds": [30078]}, ["tea d"]),
    ]
    for conditions, wanted in cases:
        assert await found(store, "tea", **conditions) == wanted, conditions


async def test_a_search_may_name_ids(store: Store) -> None:
    one, other = unsigned(cast.alice, content="tea 1"), unsigned(cast.alice, content="tea 2")
    await write(store, one, other, unsigned(cast.alice, content="coffee"))
    await indexed(store)
    assert await found(store, "tea", ids=[other.id, "0" * 64]) == ["tea 2"]


# order -------------------------------------------------------------------------------------------


@pytest.mark.proves("N50-03")
async def test_the_best_result_comes_first(store: Store) -> None:
    """Ordered by the sum of `Searchable.scores` over the terms."""
    many = "tea tea tea tea"
    await says(store, many, "tea tea and milk", "tea", "tea " + "and so on " * 30, "tea in a cup")
    answer = await found(store, "tea")
    assert answer == [many, "tea tea and milk", "tea", "tea in a cup", "tea " + "and so on " * 30]


@pytest.mark.proves("N50-03")
async def test_a_phrase_counts_as_often_as_the_rarest_of_its_words(store: Store) -> None:
    await says(store, "tea-time, tea-time", "tea-time and time again", "again it is tea-time")
    assert (await found(store, "tea-time"))[0] == "tea-time, tea-time"
    assert len(await found(store, '"tea time"')) == 3


@pytest.mark.proves("N50-03")
async def test_equal_scores_are_ordered_newest_first_then_by_id(store: Store) -> None:
    """Then newest first, then lowest id."""
    events = [unsigned(cast.alice, content=f"tea {n:02}", at=n % 3) for n in range(20)]
    await write(store, *events)
    await indexed(store)
    ordered = sorted(events, key=lambda event: (-event.created_at, event.id))
    assert await found(store, "tea") == [event.content for event in ordered]


async def test_long_texts_are_indexed_few_at_a_time(store: Store) -> None:
    """250 of a hundred thousand letters, every word another one, took a gigabyte and a minute."""
    taken: list[str] = []

    def text_of(event: Event) -> str | None:
        taken.append(event.content)
        return event.content

    texts = [f"{'tea ' * 24_000}{number}" for number in range(8)]
    for at, text in enumerate(texts):
        await write(store, unsigned(cast.alice, content=text, at=at))
    head, upto, most = await store.head(), 0, 0
    while upto < head:
        taken.clear()
        upto = await store.index(text_of, "content", 250)
        most = max(most, len(taken))
    assert most == 3
    assert len(await found(store, "tea")) == len(texts)


@pytest.mark.proves("N50-03")
async def test_the_limit_applies_after_ordering(store: Store) -> None:
    """seq of the best `limit` indexed rows."""
    await says(store, "tea tea", *["tea once"] * 2, "tea among many other words")
    whole = await found(store, "tea")
    for limit in (0, 1, 2, 3, 4, 5):
        assert await found(store, "tea", limit=limit) == whole[:limit]


@pytest.mark.proves("N50-03")
async def test_scores_are_those_of_fts5(store: Store) -> None:
    """Ordered by the sum of `Searchable.scores` over the terms."""
    texts = [
        f"{'tea ' * teas}{'milk ' * milks}{'and ' * others}"
        for teas, milks, others in product((1, 2, 4), (1, 3, 5), (0, 9))
    ]
    await says(store, *texts, at=5)
    reading, search = FtsReading(), search_from('tea milks "tea milk"')
    assert search is not None
    scores = [
        reading.score(searchable(text), search)
        for text in await found(store, 'tea milks "tea milk"')
    ]
    reading.close()
    assert len(scores) == len(texts)
    assert scores == sorted(scores, reverse=True)
    assert len(set(scores)) > 5


# any word ----------------------------------------------------------------------------------------

DAY = 86_400


async def test_with_match_any_one_word_suffices(store: Store) -> None:
    await says(store, *TEXTS)
    assert set(await found(store, "match:any kettle coffee -naive")) == {TEXTS[0]}
    assert await store.count([sought("match:any kettle coffee -naive")], EVERYTHING, now=0) == 1
    assert await found(store, "match:any !!!") == []


async def test_with_match_any_the_word_of_fewer_threads_counts_more(store: Store) -> None:
    for day in range(5):
        await says(store, "tea here", at=day * DAY)
    await says(store, *[f"kettle {n}" for n in range(20)], at=9 * DAY)
    best = (await found(store, "match:any tea kettle"))[:20]
    assert all(text.startswith("kettle") for text in best)


async def test_with_match_any_a_row_gains_by_what_its_author_said_there_that_day(
    store: Store,
) -> None:
    """A thread: one author, kind, day and `d` without the hash at its end."""
    of_one = [["d", "obs:one:" + "0" * 64]]
    await says(store, "tea first", kind=78, tags=of_one, at=0)
    await says(store, "a kettle", kind=78, tags=[["d", "obs:one:" + "1" * 64]], at=9)
    await says(store, "tea later", kind=78, tags=[["d", "obs:two:" + "2" * 64]], at=10)
    await says(store, "tea tomorrow", kind=78, tags=of_one, at=DAY)
    order = await found(store, "match:any tea kettle")
    assert order[:2] == ["a kettle", "tea first"]


async def test_with_match_any_times_near_a_period_come_first(store: Store) -> None:
    for day in (0, 9, 10, 11, 30):
        await says(store, f"tea of day {day}", at=day * DAY)
    asked = f"match:any near:{10 * DAY}-{11 * DAY - 1} tea"
    assert await found(store, asked) == [f"tea of day {day}" for day in (10, 11, 30, 9, 0)]


async def test_with_match_any_a_word_of_many_rows_counts_where_a_rarer_one_is(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In the oldest rows too."""
    monkeypatch.setattr(recall, "MAX_ROWS", 3)
    await says(store, "a kettle for tea", "the kettle", *[f"tea {n}" for n in range(20)])
    assert await found(store, "match:any tea kettle") == ["a kettle for tea", "the kettle"]


async def test_with_match_any_rows_with_two_words_are_found_when_each_is_of_many(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(recall, "MAX_ROWS", 3)
    await says(store, "tea and milk", *["tea", "milk"] * 5)
    assert await found(store, "match:any milk tea") == ["tea and milk"]
    assert await found(store, "match:any milk sugar") == ["milk"] * 3, "the newest"


async def test_with_match_any_hidden_rows_change_no_rank(store: Store) -> None:
    """Rows that the viewer may not read have no influence: not on rarity, nor on threads."""
    await says(store, "tea now", "kettle now", "tea and so on", at=5)
    outside = seen_by(ANONYMOUS, IN_DEN, groups=Groups().with_group(DEN))
    before = await found(store, "match:any tea kettle", outside)
    await a_den_with(store, *["kettle kettle"] * 20)
    await indexed(store)
    assert await found(store, "match:any tea kettle", outside) == before
    assert len(await found(store, "match:any tea kettle")) == len(before) + 20


async def test_with_match_any_a_row_that_was_found_is_found_as_long_as_it_may_be_read(
    store: Store,
) -> None:
    """By one who asks again with the same rights: rows go, move, expire and lose their target."""
    here = [["d", "here"], ["x", "aa"]]
    await says(store, "tea of a target", kind=78, tags=here)
    await says(store, "tea by it", kind=30078, tags=here)
    await says(store, "tea that goes", "tea that moves", "tea for ever", at=5)
    await says(store, "tea for a while", tags=[["expiration", "9"]])
    target = Target(frozenset({78}), "x")
    by_it = rule(Match(KindSet.of(30078)), Who.TARGET, target=target)
    outside = seen_by(ANONYMOUS, IN_DEN, by_it)
    rest = {"tea that goes", "tea that moves", "tea for ever"}
    everything = {"tea of a target", "tea by it", *rest, "tea for a while"}
    assert set(await sought_twice(store, outside, now=0)) == everything
    assert set(await sought_twice(store, outside, now=9)) == everything - {"tea for a while"}
    await change(store, lambda plan: plan.removes.update({1, 3}))
    await change(store, lambda plan: plan.moves.update({4: "den"}))
    assert await sought_twice(store, outside, now=9) == ["tea for ever"]


async def sought_twice(store: Store, visibility: Visibility, now: int) -> list[str]:
    """What the index finds, before rows are checked again."""
    filter_ = sought("match:any tea")
    found = [await store.search(filter_, visibility, limit=9, upto=MAX, now=now) for _ in range(2)]
    assert found[0] == found[1]
    raws, _ = await store.rows(found[0], filter_, EVERYTHING, now=0)
    return [event_from_raw(raw).content for raw in raws]


async def test_with_match_any_words_of_many_hidden_rows_find_the_readable_ones(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(recall, "MAX_ROWS", 3)
    await says(store, *[f"tea {n}" for n in range(5)], "kettle")
    await a_den_with(store, *["tea kettle"] * 9)
    await indexed(store)
    outside = seen_by(ANONYMOUS, IN_DEN, groups=Groups().with_group(DEN))
    assert await found(store, "match:any tea kettle", outside) == ["kettle"]
    assert await found(store, "match:any tea", outside) == ["tea 4", "tea 3", "tea 2"]


# who may read ------------------------------------------------------------------------------------

DEN = Group("den", flags=frozenset())
IN_DEN = rule(Match(h=True), Who.INSIDER)


async def a_den_with(store: Store, *texts: str) -> None:
    await change(store, lambda plan: plan.groups.update({"den": DEN.with_users({ALICE: ()})}))
    for at, text in enumerate(texts):
        await stored(store, unsigned(cast.alice, 9, [["h", "den"]], text, at), group="den")


@pytest.mark.proves("N50-09")
async def test_hidden_rows_do_not_count_towards_the_limit(store: Store) -> None:
    """Visibility is checked before `limit`."""
    await a_den_with(store, "tea tea tea tea", "tea tea", "tea")
    await says(store, "tea that everybody may read, at length", "tea for all")
    groups = Groups().with_group(DEN.with_users({ALICE: ()}))
    outside = seen_by(ANONYMOUS, IN_DEN, groups=groups)
    inside = seen_by(Viewer(frozenset({ALICE})), IN_DEN, groups=groups)
    public = ["tea for all", "tea that everybody may read, at length"]
    assert await found(store, "tea", outside, limit=2) == public
    assert await found(store, "tea", outside, limit=1) == public[:1]
    assert await store.count([sought("tea")], outside, now=0) == 2
    assert await found(store, "tea", inside, limit=2) == ["tea tea tea tea", "tea tea"]
    assert await store.count([sought("tea")], inside, now=0) == 5


@pytest.mark.proves("N50-09")
async def test_rows_are_checked_again_for_visibility(store: Store) -> None:
    """Those of `seqs` that may be read."""
    await a_den_with(store, "tea of the den")
    await says(store, "tea of all")
    seqs = await store.search(sought("tea"), EVERYTHING, limit=9, upto=MAX, now=0)
    groups = Groups().with_group(DEN)
    raws, _ = await store.rows(
        seqs, sought("tea"), seen_by(ANONYMOUS, IN_DEN, groups=groups), now=0
    )
    assert [event_from_raw(raw).content for raw in raws] == ["tea of all"]


# what is found when ------------------------------------------------------------------------------


async def test_a_row_is_found_once_it_is_indexed(store: Store) -> None:
    """Gives the seq up to which all are indexed."""
    await write(store, *[unsigned(cast.alice, content=f"tea {n}") for n in range(5)])
    assert await found(store, "tea") == []
    assert await store.index(content_of, "content", 2) == 2
    assert len(await found(store, "tea")) == 2
    assert await store.index(content_of, "content", 100) == await store.head() == 5
    assert len(await found(store, "tea")) == 5


async def agents_tea(store: Store) -> None:
    """Two rows of kind 1988 behind and among notes."""
    notes = [unsigned(cast.bob, content=text, at=1) for text in TEA]
    mine = [
        unsigned(cast.alice, 1988, content=f"my tea {number}", at=9 + number) for number in (0, 1)
    ]
    await write(store, *notes[:3], mine[0], notes[3], mine[1])


async def test_rows_of_some_kinds_are_indexed_ahead_of_others(store: Store) -> None:
    """The next rows of these kinds, and the seq up to which all of them are indexed."""
    await agents_tea(store)
    assert await store.index(content_of, "content", 1, {1988}) == 4
    assert await found(store, "tea") == ["my tea 0"]
    assert await store.index(content_of, "content", 1) == 1
    assert await store.index(content_of, "content", 9, {1988}) == await store.head() == 6
    assert await found(store, "tea") == ["tea 0", "my tea 1", "my tea 0"]
    assert await store.index(content_of, "content", 9) == 6
    assert sorted(await found(store, "tea")) == ["my tea 0", "my tea 1", *TEA]
    assert await store.count([sought("tea")], EVERYTHING, now=0) == 6
    assert await store.index(content_of, "content", 9, {1988}) == 6


@pytest.mark.proves("N09-13", "N62-04")
async def test_of_rows_that_were_ahead_deleted_ones_are_not_found(store: Store) -> None:
    await agents_tea(store)
    await store.index(content_of, "content", 9, {1988})
    await change(store, lambda plan: plan.removes.add(4))
    assert await found(store, "tea") == ["my tea 1"]
    await indexed(store)
    await store.tidy_index()
    assert sorted(await found(store, "tea")) == ["my tea 1", *TEA]


async def test_under_other_rules_rows_that_were_ahead_are_indexed_again(store: Store) -> None:
    await agents_tea(store)
    await store.index(content_of, "content", 9, {1988})
    assert await store.index(content_of, "other", 1) == 1
    assert await found(store, "tea") == ["tea 0"]
    assert await store.index(content_of, "other", 1, {1988}) == 4
    await indexed(store, "other")
    assert len(await found(store, "tea")) == 6


@pytest.mark.parametrize("end", ["restart", "crash"])
async def test_rows_that_were_ahead_are_in_the_index_once_after_a_restart(
    reopenable: Reopenable, end: str
) -> None:
    store = await reopenable.open()
    await agents_tea(store)
    await store.index(content_of, "content", 2)
    await store.index(content_of, "content", 1, {1988})
    store = await (reopenable.restart() if end == "restart" else reopenable.crash())
    assert await store.index(content_of, "content", 9, {1988}) == 6
    assert await found(store, "tea", kinds=[1988]) == ["my tea 1", "my tea 0"]
    await indexed(store)
    assert sorted(await found(store, "tea")) == ["my tea 0", "my tea 1", *TEA]
    assert await store.count([sought("tea")], EVERYTHING, now=0) == 6


async def test_a_word_that_ends_within_a_letter_is_indexed_too(store: Store) -> None:
    """FTS5 cuts it after 32 KiB."""
    await says(store, "tea " + "茶" * 20_000 + " milk", "tea")
    assert len(await found(store, "tea")) == 2
    assert len(await found(store, '"tea milk"')) == 0
    assert len(await found(store, "milk")) == 1


async def test_later_rows_are_left_out(store: Store) -> None:
    """Rows up to `upto`."""
    await says(store, "tea 1", "tea 2", "tea 3")
    assert await found(store, "tea", upto=2) == ["tea 2", "tea 1"]


async def test_rows_without_text_are_never_found(store: Store) -> None:
    await says(store, "", "tea")
    assert await found(store, "tea") == ["tea"]


@pytest.mark.proves("N09-13", "N62-04")
async def test_deleted_rows_are_not_found(store: Store) -> None:
    """Such rows are never found, whether their texts were removed or not."""
    tea = unsigned(cast.alice, content="tea", at=1)
    await write(store, tea, unsigned(cast.alice, content="tea that stays"))
    await indexed(store)
    await write(store, unsigned(cast.alice, 5, [["e", tea.id]], "", 2))
    assert await found(store, "tea") == ["tea that stays"]
    assert await store.count([sought("tea")], EVERYTHING, now=0) == 1
    await indexed(store)
    await store.tidy_index()
    assert await found(store, "tea") == ["tea that stays"]


@pytest.mark.proves("N09-13")
async def test_the_index_reaches_the_head_when_its_newest_row_was_deleted(store: Store) -> None:
    """Gives the seq up to which all are indexed: a deleted row is no gap."""
    tea = await stored(store, unsigned(cast.alice, content="tea"))
    await change(store, lambda plan: plan.removes.add(tea.seq))
    assert await store.index(content_of, "content", 9) == await store.head() == tea.seq


async def test_a_version_that_was_superseded_is_not_found(store: Store) -> None:
    await says(store, "old tea", "new tea", kind=30078, tags=[["d", "x"]])
    assert await found(store, "tea") == ["new tea"]


@pytest.mark.proves("N40-02")
async def test_expired_rows_are_not_found(store: Store) -> None:
    await says(store, "tea for now", tags=[["expiration", "100"]])
    assert await found(store, "tea", now=99) == ["tea for now"]
    assert await found(store, "tea", now=100) == []
    assert await store.count([sought("tea")], EVERYTHING, now=100) == 0


@pytest.mark.proves("N40-02")
async def test_a_clock_that_was_ahead_takes_no_row_from_the_index(store: Store) -> None:
    """Texts of deleted rows are removed; whether a row has expired is asked by each search."""
    await says(store, "tea for now", tags=[["expiration", "100"]])
    assert await found(store, "tea", now=100) == []
    await store.tidy_index()
    assert await found(store, "tea", now=99) == ["tea for now"]


async def test_under_other_rules_the_index_is_rebuilt(store: Store) -> None:
    """`rules` is the version of `text_of`: under another one the index is rebuilt."""
    await says(store, "tea", "coffee")

    def shouted(event: Event) -> str | None:
        return f"{event.content} shouted"

    assert await store.index(shouted, "shouted", 1) == 1
    assert await found(store, "shouted") == ["tea"]
    assert await found(store, "coffee") == []
    assert await store.index(shouted, "shouted", 100) == 2
    assert await found(store, "shouted") == ["coffee", "tea"]


async def test_the_index_survives_a_restart(reopenable: Reopenable) -> None:
    """The index survives a restart."""
    store = await reopenable.open()
    await says(store, "tea", "coffee")
    store = await reopenable.restart()
    assert await found(store, "tea") == ["tea"]
    assert await store.index(content_of, "content", 100) == 2


async def test_after_a_crash_indexing_continues(reopenable: Reopenable) -> None:
    """… at least up to some earlier row."""
    store = await reopenable.open()
    await says(store, "tea", "coffee")
    await write(store, unsigned(cast.alice, content="more tea", at=9))
    store = await reopenable.crash()
    await indexed(store)
    assert await found(store, "tea") == ["tea", "more tea"]


# counting and pages ------------------------------------------------------------------------------


async def test_a_row_that_several_filters_find_counts_once(store: Store) -> None:
    await says(store, "green tea", "black tea", "coffee")
    filters: Sequence[Filter] = [sought("tea"), sought("green"), filter_from({"kinds": [7]}, TERMS)]
    assert await store.count(filters, EVERYTHING, now=0) == 2
    plain = [*filters, filter_from({"kinds": [1]}, TERMS)]
    assert await store.count(plain, EVERYTHING, now=0) == 3


async def test_rows_are_given_in_the_order_of_their_seqs(store: Store) -> None:
    """In the order given; what is not stored is left out."""
    await says(store, "a", "b", "c")
    raws, looked_at = await store.rows([3, 99, 1, 2], sought("x"), EVERYTHING, now=0)
    assert [event_from_raw(raw).content for raw in raws] == ["c", "a", "b"]
    assert looked_at == 4
    assert await store.rows([], sought("x"), EVERYTHING, now=0) == ([], 0)


@pytest.mark.slow
async def test_large_rows_are_given_in_parts(store: Store) -> None:
    """How many of `seqs` were looked at: fewer than all once the rows have PAGE_BYTES."""
    texts = [f"tea {number} " + "x" * 300_000 for number in range(9)]
    await says(store, *texts)
    left = list(range(9, 0, -1))
    given: list[str] = []
    parts = 0
    while left:
        raws, looked_at = await store.rows(left, sought("tea"), EVERYTHING, now=0)
        assert looked_at > 0
        assert sum(map(len, raws)) < PAGE_BYTES + 400_000
        given += [event_from_raw(raw).content for raw in raws]
        left = left[looked_at:]
        parts += 1
    assert given == texts[::-1]
    assert parts > 1
