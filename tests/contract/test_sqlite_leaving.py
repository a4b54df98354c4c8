"""What vanishes from SqliteStore, or ends there, costs as much as it has rows."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

from relay.errors import TookTooLong, TooMuchToRead
from relay.groups.group import EndedGroup
from relay.lifecycle.rows import MOST_DELETED, Leaving, Vanish, WritePlan
from relay.lifecycle.versions import History
from relay.memory.anamnesis.references import entries_of
from relay.nostr import kinds
from relay.nostr.event import MAX_CREATED_AT
from relay.storage.sqlite import work_thread
from relay.storage.sqlite import writer as writers
from relay.storage.sqlite.checkpoints import Checkpoints
from relay.storage.sqlite.store import SqliteStore
from tests import cast
from tests.contract.writing import (
    NOTHING_WANTED,
    TERMS,
    asked,
    change,
    raws,
    read,
    stored,
    unsigned,
    write,
)

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    from relay.lifecycle.rows import Found, Lookups
    from relay.nostr.event import Event

MANY = 2000
HERE = [["h", "tea"]]


@pytest.fixture
async def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[SqliteStore]:
    """The tags of its rows are in memory only: no upkeep writes them to the table."""
    monkeypatch.setattr(Checkpoints, "_start", lambda _: None)
    store = await SqliteStore.open(tmp_path / "rookery.db", TERMS)
    tags = [["t", str(number)] for number in range(MANY)]
    await write(store, unsigned(cast.bob, tags=tags))
    yield store
    await store.close()


def changes(store: SqliteStore) -> int:
    return store._writer._db.total_changes


async def test_a_key_that_vanishes_has_no_tags_of_others_written(store: SqliteStore) -> None:
    """One note and its request a second let each commit write 32,768 rows of the index."""
    own = unsigned(cast.alice, tags=[["t", "tea"]])
    wrap = unsigned(cast.carol, kind=kinds.GIFT_WRAP, tags=[["p", cast.alice.pubkey]])
    await write(store, own, wrap)
    before = changes(store)
    await write(store, unsigned(cast.alice, kind=kinds.VANISH, at=2000))
    assert changes(store) - before < 50
    assert raws(own)[0] not in await read(store)
    assert not await read(store, asked(kinds=[kinds.GIFT_WRAP]))
    assert len(await read(store)) == 1


async def test_a_group_that_ends_has_no_tags_of_others_written(store: SqliteStore) -> None:
    await write(store, unsigned(cast.alice, kind=9, tags=[["h", "tea"]]))

    def ends(plan: WritePlan) -> None:
        plan.groups["tea"] = EndedGroup(is_public=True)
        plan.deleted_groups.add("tea")

    before = changes(store)
    await change(store, ends)
    assert changes(store) - before < 50
    assert not await read(store, asked(kinds=[9]))


async def test_what_vanishes_with_the_batch_that_brought_it_leaves_no_tags(
    store: SqliteStore,
) -> None:
    wrap = unsigned(cast.carol, kind=kinds.GIFT_WRAP, tags=[["p", cast.alice.pubkey]])
    await write(store, unsigned(cast.alice))
    await write(store, wrap, unsigned(cast.alice, kind=kinds.VANISH, at=2000))
    hash_ = store._hashes.tag("p", cast.alice.pubkey)
    assert not await read(store, asked(kinds=[kinds.GIFT_WRAP]))
    assert store._writer.buffered_seqs([hash_]) == []


# many authors and kinds ---------------------------------------------------------------------------


async def steps(store: SqliteStore, wanted: Lookups, plan: WritePlan | None = None) -> int:
    """Of SQLite, until it has looked that up, and has carried out the plan."""
    db, done = store._writer._db, 0

    def step() -> int:
        nonlocal done
        done += 1
        return 0

    db.set_progress_handler(step, 1)
    with suppress(TooMuchToRead):
        await store.append(wanted, lambda _: plan or WritePlan())
    db.set_progress_handler(None, 0)
    return done


@pytest.mark.parametrize(
    "wanted",
    [
        replace(NOTHING_WANTED, ending_groups=frozenset({"tea"}), most_own=MOST_DELETED),
        replace(NOTHING_WANTED, vanishing_keys={cast.alice.pubkey: 2000}, most_own=MOST_DELETED),
        replace(NOTHING_WANTED, groups_with_content=frozenset({"tea"})),
        replace(NOTHING_WANTED, leaving=Leaving(None, 0, "tea", (), MOST_DELETED)),
    ],
    ids=["a group that ends", "a key that vanishes", "a group in use", "a piece of a group"],
)
async def test_what_is_asked_of_a_key_or_group_does_not_read_all_its_totals(
    tmp_path: Path, wanted: Lookups
) -> None:
    """600,000 notes, each of another author or kind, were two seconds for a refused 9008."""
    path, taken = tmp_path / "rookery.db", list[int]()
    for some in (range(2000, 2500), range(2500, 4500)):
        store = await SqliteStore.open(path, TERMS)
        await write(store, *[unsigned(cast.alice, kind, HERE) for kind in some])
        await store.close()  # its tags are on disk from now on
        store = await SqliteStore.open(path, TERMS)
        taken.append(await steps(store, wanted))
        await store.close()
    assert taken[1] < taken[0] + 1000


async def test_requests_to_join_are_not_read_to_find_what_a_group_holds(
    store: SqliteStore,
) -> None:
    """Anybody may ask to join: each of them is another author."""
    asking = [cast.person(f"k{number}") for number in range(200)]
    in_use = replace(NOTHING_WANTED, groups_with_content=frozenset({"tea"}))
    await write(store, *[unsigned(who, 9021, HERE) for who in asking[:2]])
    before = await steps(store, in_use)
    await write(store, *[unsigned(who, 9021, HERE) for who in asking[2:]])
    assert await steps(store, in_use) < before + 20


async def test_old_versions_are_not_read_to_find_what_a_group_holds(store: SqliteStore) -> None:
    """Of 100,000 in one group each 9002 took 65 ms."""
    in_use = replace(NOTHING_WANTED, groups_with_content=frozenset({"tea"}))
    taken = []
    for some in (range(2), range(2, 200)):
        for at in some:
            record = unsigned(cast.alice, kinds.APP_DATA, [["d", "x"], *HERE], at=1000 + at)
            await write(store, record, history=History(1000))
        taken.append(await steps(store, in_use))
    assert taken[1] < taken[0] + 20


async def test_the_end_of_a_group_does_not_read_what_else_its_authors_wrote(
    store: SqliteStore,
) -> None:
    """A key with 600,000 notes and 13 kinds of answers in a group was two seconds for its 9008."""
    plan = WritePlan(groups={"tea": EndedGroup(is_public=True)}, deleted_groups={"tea"})
    piece = replace(NOTHING_WANTED, leaving=Leaving(None, 0, "tea", (), MOST_DELETED))
    taken: list[list[int]] = []
    for round_ in "ab":
        for kind in (6, 7, 1111):
            await stored(store, unsigned(cast.alice, kind, [], round_), group="tea")
        taken.append([await steps(store, piece), await steps(store, NOTHING_WANTED, plan)])
        assert not [row for row in await store.since(0, 10_000) if row.group == "tea"]
        await write(store, *[unsigned(cast.alice, 1, [], str(n)) for n in range(MANY)])
    assert taken[1][0] < taken[0][0] + 100
    assert taken[1][1] < taken[0][1] + 100


async def test_the_records_of_a_group_are_read_beside_neither_others_nor_its_messages(
    store: SqliteStore,
) -> None:
    """A million records of other groups were half a second for each request to vanish."""
    wanted = replace(NOTHING_WANTED, record_groups=frozenset({"tea"}))
    await write(store, unsigned(cast.alice, 9007, HERE))
    before = await steps(store, wanted)
    den = [["h", "den"], ["p", cast.bob.pubkey]]
    await write(store, *[unsigned(cast.alice, 9000, den, str(n)) for n in range(MANY)])
    await write(store, *[unsigned(cast.alice, 9, HERE, str(n)) for n in range(MANY)])
    assert await steps(store, wanted) < before + 20


# what mentions a key or a name --------------------------------------------------------------------

_ALICE = cast.alice.pubkey
_NAME = entries_of("a" * 64)


def mentions(numbers: range) -> list[Event]:
    """Of alice, and of the name."""
    tags = [["p", _ALICE], ["d", _NAME.d]]
    return [unsigned(cast.bob, 1, tags, str(n)) for n in numbers]


@pytest.mark.parametrize("place", ["in memory", "on disk"])
@pytest.mark.parametrize(
    ("wanted", "plan"),
    [
        (
            replace(NOTHING_WANTED, vanishing_keys={_ALICE: MAX_CREATED_AT}, most_own=MOST_DELETED),
            None,
        ),
        (replace(NOTHING_WANTED, vanishing_keys={_ALICE: 1000}), None),
        (replace(NOTHING_WANTED, deleted_keys=frozenset({_ALICE})), None),
        (
            replace(
                NOTHING_WANTED, leaving=Leaving(_ALICE, MAX_CREATED_AT, None, (), MOST_DELETED)
            ),
            None,
        ),
        (NOTHING_WANTED, WritePlan(vanishes=[Vanish(_ALICE, MAX_CREATED_AT)])),
        (replace(NOTHING_WANTED, named_near=frozenset({_NAME})), None),
    ],
    ids=["vanishes", "vanished before", "is banned", "a piece", "is deleted", "a record"],
)
async def test_what_mentions_a_key_or_name_is_not_read_for_its_kind(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    place: str,
    wanted: Lookups,
    plan: WritePlan | None,
) -> None:
    """A note may have any `p` and `d`: 10 million that mention a key were 4 s of the writer for
    each request of the key to vanish, 250,000 with a `d` half a second for each record."""
    monkeypatch.setattr(Checkpoints, "_start", lambda _: None)
    path, taken = tmp_path / "rookery.db", list[int]()
    for numbers in (range(20), range(20, MANY)):
        store = await SqliteStore.open(path, TERMS)
        sent_to = [(kinds.GIFT_WRAP, []), (kinds.PUT_USER, HERE), (kinds.GROUP_MEMBER_ADDED, [])]
        for kind, tags in sent_to:
            await write(store, unsigned(cast.carol, kind, [*tags, ["p", _ALICE]], f"{numbers}"))
        await write(store, *mentions(numbers))
        if place == "on disk":
            await store.close()
            store = await SqliteStore.open(path, TERMS)
        taken.append(await steps(store, wanted, plan))
        await store.close()
    assert taken[1] < taken[0] + 200


@pytest.mark.parametrize("place", ["in memory", "on disk"])
async def test_of_what_was_sent_to_a_key_no_more_is_read_than_fits_into_a_piece(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, place: str
) -> None:
    """Anybody may send any number of gift wraps to a key."""
    monkeypatch.setattr(Checkpoints, "_start", lambda _: None)
    wanted = replace(NOTHING_WANTED, vanishing_keys={_ALICE: 1000}, most_own=MOST_DELETED)
    path, taken = tmp_path / "rookery.db", list[int]()
    for numbers in (range(MOST_DELETED // 256 + 1), range(1000, 1000 + MANY)):
        store = await SqliteStore.open(path, TERMS)
        to_alice = [["p", _ALICE]]
        await write(store, *[unsigned(cast.bob, 1059, to_alice, f"{n}") for n in numbers])
        if place == "on disk":
            await store.close()
            store = await SqliteStore.open(path, TERMS)
        taken.append(await steps(store, wanted))
        await store.close()
    assert taken[1] < 2 * taken[0] + 400  # those on disk and in memory; looked up one by one


async def test_a_key_that_vanishes_does_not_read_what_it_wrote_later(store: SqliteStore) -> None:
    """Anybody can repeat an old request of a key that has a million notes by now."""
    wanted = replace(NOTHING_WANTED, vanishing_keys={_ALICE: 1000})
    await write(store, unsigned(cast.alice, tags=HERE, at=2000))
    before = await steps(store, wanted)
    await write(store, *[unsigned(cast.alice, 1, HERE, str(n), at=2000) for n in range(MANY)])
    assert await steps(store, wanted) < before + 20


async def test_whether_a_key_has_rows_is_asked_of_no_key_that_begins_alike(
    store: SqliteStore,
) -> None:
    """A pair of such keys is made in minutes: each request of one read all rows of the other, 1 s
    for 300,000."""
    alike = _ALICE[:16] + cast.bob.pubkey[16:]
    wanted = replace(NOTHING_WANTED, vanishing_keys={alike: 1000})
    await write(store, unsigned(cast.alice))
    before = await steps(store, wanted)
    await write(store, *[unsigned(cast.alice, content=str(number)) for number in range(MANY)])
    assert await steps(store, wanted) < before + 20


@pytest.mark.parametrize("late", ["look-ups", "deletion", "chunks"])
async def test_a_transaction_that_takes_too_long_changes_nothing(
    store: SqliteStore, monkeypatch: pytest.MonkeyPatch, late: str
) -> None:
    """Whatever nobody has thought of, others do not wait longer for it."""
    await write(store, *[unsigned(cast.bob, content=str(number)) for number in range(9)])
    before, writer, now = await read(store), store._writer, 0.0
    plan = WritePlan(vanishes=[Vanish(cast.bob.pubkey, MAX_CREATED_AT)])
    wanted = replace(NOTHING_WANTED, longest_s=100.0)
    if late == "look-ups":
        wanted = replace(wanted, vanishing_keys={cast.bob.pubkey: 2000}, longest_s=1.0)

    def step() -> bool:
        nonlocal now
        now += 1.0
        return writer._is_over()

    def deleted(*args: Any, **options: Any) -> None:
        nonlocal now
        delete(*args, **options)
        now += 1000.0

    delete = writer._delete
    if late == "chunks":
        monkeypatch.setattr(writers, "_DELETE_CHUNK", 4)
        monkeypatch.setattr(writer, "_delete", deleted)
    else:
        writer._db.set_progress_handler(step, 1)
    monkeypatch.setattr(work_thread.WorkClock, "seconds", property(lambda _: now))
    with pytest.raises(TookTooLong):
        await store.append(wanted, lambda _: plan)
    monkeypatch.undo()
    assert await read(store) == before
    await write(store, unsigned(cast.bob, content="later"))
    assert len(await read(store)) == len(before) + 1


async def test_only_statements_count_for_how_long_a_transaction_takes(
    store: SqliteStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The judgement of a batch has a limit of its own."""
    now = 0.0
    monkeypatch.setattr(work_thread.WorkClock, "seconds", property(lambda _: now))
    store._writer._db.set_progress_handler(store._writer._is_over, 1)

    def decide(_: Found) -> WritePlan:
        nonlocal now
        now += 2.0
        return WritePlan(vanishes=[Vanish(cast.bob.pubkey, MAX_CREATED_AT)])

    await store.append(replace(NOTHING_WANTED, longest_s=1.0), decide)
    assert await read(store) == []
