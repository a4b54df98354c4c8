"""Old versions of a record: who gets which, and what takes them away."""

from __future__ import annotations

import asyncio
from itertools import count
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, Final

import pytest

from relay.access.visibility import ANONYMOUS, Viewer
from relay.errors import StoreFault
from relay.groups.actions import Flag
from relay.groups.group import Group
from relay.lifecycle.retention import DAY_S
from relay.lifecycle.rows import Slot
from relay.read import versions as reading
from relay.read.linked_rows import LinkedRows
from relay.read.versions import VersionReader
from relay.storage.sqlite.store import SqliteStore
from relay.write.commands import Purpose
from tests.cast import admin, alice, bob, owner, robot
from tests.contract.writing import TERMS, asked
from tests.harness.relay_in_process import DELETED, NOON, STORED, Home, policy_of

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Sequence
    from pathlib import Path

    from relay.lifecycle.rows import Stored
    from relay.nostr.event import Event
    from relay.nostr.keys import SecretKey
    from relay.storage import Store

NOTES: Final = Slot(alice.pubkey, 30023, "notes")
HISTORY: Final = '[[retention]]\nname = "history"\nhistory = { count = 3, days = 2 }\n'


class Library(Home):
    """A relay that keeps three versions of everything for two days."""

    def __init__(self, store: Store, more: str = HISTORY) -> None:
        super().__init__(store, policy_of("open", more))

    def version(
        self, number: int, *tags: Sequence[str], slot: Slot = NOTES, who: SecretKey = alice
    ) -> Event:
        name = [["d", slot.d]] if slot.d else []
        return who.sign(
            slot.kind, [*name, *(list(tag) for tag in tags)], str(number), NOON + number
        )

    async def keep(self, *numbers: int, tags: Sequence[Sequence[str]] = ()) -> None:
        for number in numbers:
            assert await self.take(self.version(number, *tags)) == [STORED]

    async def seen_by(
        self, *who: SecretKey, slot: Slot = NOTES, before: str | None = None
    ) -> list[int]:
        viewer = Viewer(frozenset(key.pubkey for key in who)) if who else ANONYMOUS
        found = await self.reader().versions(viewer, slot, before)
        return [event.created_at - NOON for event in found.events]

    def reader(self) -> VersionReader:
        links = LinkedRows(self.store, self.state, lambda: self.now)
        return VersionReader(self.store, self.state, links, lambda: self.now)

    def set_policy(self, more: str) -> None:
        self.policy = policy_of("open", more)
        self.state.enforce(self.policy)


@pytest.fixture
async def store(tmp_path: Path) -> AsyncIterator[Store]:
    store = await SqliteStore.open(tmp_path / "rookery.db", TERMS, synchronous="NORMAL")
    yield store
    await store.close()


@pytest.fixture
async def home(store: Store) -> AsyncIterator[Library]:
    async with Library(store) as home:
        home.now = NOON + 100
        yield home


async def test_everybody_gets_the_versions_of_what_is_public(home: Library) -> None:
    await home.keep(1, 2, 3)
    for who in ((), (bob,), (alice,), (owner,)):
        assert await home.seen_by(*who) == [3, 2, 1]
    assert await home.seen_by(slot=NOTES._replace(d="other")) == []


async def test_no_query_finds_them(home: Library) -> None:
    await home.keep(1, 2)
    old = home.version(1)
    for filter_ in (asked(ids=[old.id]), asked(kinds=[30023], until=NOON + 1)):
        assert await home.store.matching(filter_, limit=9, now=home.now) == []


async def test_a_replaceable_kind_has_versions_too(home: Library) -> None:
    relays = Slot(alice.pubkey, 10002, "")
    for number in (1, 2):
        await home.take(home.version(number, slot=relays))
    assert await home.seen_by(slot=relays) == [2, 1]


async def test_a_page_ends_where_its_bytes_are_full(
    home: Library, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reading, "PAGE_BYTES", 1)
    await home.keep(1, 2, 3)
    first, second, third = (home.version(number).id for number in (3, 2, 1))
    assert await home.seen_by() == [3]
    assert await home.seen_by(before=first) == [2]
    assert await home.seen_by(before=second) == [1]
    assert await home.seen_by(before=third) == []


async def test_an_id_of_another_record_is_no_place_in_this_one(home: Library) -> None:
    """Else an answer would tell that the other record had a version with this id."""
    await home.keep(1, 2)
    mine = Slot(bob.pubkey, 30023, "mine")
    for number in (3, 4):
        await home.take(home.version(number, slot=mine, who=bob))
    for other in (home.version(1).id, "00" * 32):
        assert await home.seen_by(bob, slot=mine, before=other) == [3]


async def test_an_id_that_one_may_not_read_is_as_one_that_never_was(home: Library) -> None:
    """Who may read it no more has the id, and would learn that the version is kept."""
    draft = '[[rule]]\nname = "r"\nmatch = { kinds = [30023], tags = { t = ["draft"] } }\n'
    home.set_policy(f'{HISTORY}{draft}read = ["author"]\n')
    await home.keep(1)
    await home.keep(2, tags=[["t", "draft"]])
    await home.keep(3, 4)
    hidden = home.version(2, ["t", "draft"]).id
    assert await home.seen_by(alice, before=hidden) == [1]
    for before in (hidden, "00" * 32):
        assert await home.seen_by(bob, before=before) == [3, 1]


async def test_a_full_page_does_not_tell_of_versions_that_one_may_not_read(
    home: Library, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reading, "PAGE_BYTES", 1)
    draft = '[[rule]]\nname = "r"\nmatch = { kinds = [30023], tags = { t = ["draft"] } }\n'
    home.set_policy(f'{HISTORY}{draft}read = ["author"]\n')
    await home.keep(1, tags=[["t", "draft"]])
    await home.keep(2)
    for who, has_more in ((bob, False), (alice, True)):
        found = await home.reader().versions(Viewer(frozenset({who.pubkey})), NOTES, None)
        assert (len(found.events), found.more) == (1, has_more)


async def test_a_known_key_waits_for_at_most_one_page_of_unknown_ones(
    home: Library, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A page takes up to 20 MB in memory, and a request for it little."""
    await home.keep(1, 2)
    reads, versions = 0, home.store.versions
    may_end = asyncio.Event()

    async def waits(*asked: Any, **more: Any) -> Sequence[Stored]:
        nonlocal reads
        reads += 1
        await may_end.wait()
        return await versions(*asked, **more)

    monkeypatch.setattr(home.store, "versions", waits)
    reader = home.reader()
    viewers = [Viewer(frozenset({who.pubkey})) for who in (bob, alice, bob, owner, robot, bob)]
    pages = [asyncio.create_task(reader.versions(viewer, NOTES, None)) for viewer in viewers]
    for _ in range(20):
        await asyncio.sleep(0)
    assert reads == 2, "one of an unknown key, one of a known key"
    may_end.set()
    assert [len(found.events) for found in await asyncio.gather(*pages)] == [2] * 6


async def test_an_address_waits_for_one_page_of_another_with_many_requests(
    home: Library, monkeypatch: pytest.MonkeyPatch
) -> None:
    await home.keep(1, 2)
    may_end = asyncio.Event()
    versions, ended = home.store.versions, list[str]()

    async def waits(*asked: Any, **more: Any) -> Sequence[Stored]:
        await may_end.wait()
        return await versions(*asked, **more)

    monkeypatch.setattr(home.store, "versions", waits)
    reader = home.reader()

    async def read_from(address: str) -> None:
        await reader.versions(Viewer(frozenset({bob.pubkey})), NOTES, None, address)
        ended.append(address)

    addresses = ["192.0.2.1"] * 9 + ["192.0.2.2"]
    pages = [asyncio.create_task(read_from(address)) for address in addresses]
    await asyncio.sleep(0)
    may_end.set()
    await asyncio.gather(*pages)
    assert "192.0.2.2" in ended[:2]


# -- who may read them -----------------------------------------------------------------------------


async def group_tea(home: Library, *flags: str) -> None:
    await home.take(
        home.made(admin, 9007, h="tea"),
        home.made(admin, 9002, *([flag] for flag in flags), h="tea"),
        home.made(admin, 9000, ["p", bob.pubkey], h="tea"),
        home.made(admin, 9000, ["p", alice.pubkey], h="tea"),
    )


async def test_versions_of_a_group_are_for_its_members_of_now(home: Library) -> None:
    await group_tea(home)
    await home.keep(1, 2, tags=[["h", "tea"]])
    assert await home.seen_by() == [2, 1]
    await home.take(home.made(admin, 9002, ["private"], h="tea"))
    assert await home.seen_by() == []
    assert await home.seen_by(bob) == [2, 1]
    await home.take(home.made(admin, 9001, ["p", bob.pubkey], h="tea"))
    assert await home.seen_by(bob) == []


async def test_what_another_relay_committed_is_read_with_the_rights_of_then(
    home: Library, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With several relays on one database: a removed member read what was written afterwards."""
    await group_tea(home, "private")
    await home.keep(1, tags=[["h", "tea"]])
    reader, known = home.reader(), home.store.committed()

    async def taken_over(seq: int) -> int:
        monkeypatch.undo()
        await home.take(home.made(admin, 9001, ["p", bob.pubkey], h="tea"))
        return home.store.committed()

    await home.keep(2, tags=[["h", "tea"]])
    store = SimpleNamespace(
        versions=home.store.versions, committed=home.store.committed, committed_after=taken_over
    )
    monkeypatch.setattr(store, "committed", lambda: known)
    monkeypatch.setattr(reader, "_store", store)
    assert await reader.versions(Viewer(frozenset({bob.pubkey})), NOTES, None) == ([], False)


async def config(home: Library, number: int, *tags: Sequence[str]) -> None:
    event = home.version(number, *tags, slot=RECORD, who=robot)
    assert await home.take(event) == [STORED]


RECORD: Final = Slot(robot.pubkey, 30078, "snowclaw:memory:npub:0123456789abcdef")


@pytest.fixture
async def lenient(home: Library) -> Library:
    home.set_policy(HISTORY + '[memory]\nschema = "off"\n')
    await group_tea(home, "private")
    await home.take(home.made(admin, 9000, ["p", robot.pubkey], h="tea"))
    return home


async def test_what_was_private_stays_so_when_a_group_may_read_the_newest(
    lenient: Library,
) -> None:
    await config(lenient, 1)
    await config(lenient, 2, ["h", "tea"])
    assert await lenient.seen_by(robot, slot=RECORD) == [2, 1]
    assert await lenient.seen_by(owner, slot=RECORD) == [2, 1]
    assert await lenient.seen_by(bob, slot=RECORD) == [2]


@pytest.mark.proves("G-13", "Z-08")
async def test_when_the_newest_is_private_no_version_is_for_the_group(lenient: Library) -> None:
    await config(lenient, 1, ["h", "tea"])
    await config(lenient, 2)
    assert await lenient.seen_by(robot, slot=RECORD) == [2, 1]
    assert await lenient.seen_by(bob, slot=RECORD) == []


async def test_a_banned_key_gets_none(home: Library) -> None:
    await home.keep(1, 2)
    await home.call("banpubkey", bob.pubkey)
    assert await home.seen_by(bob) == []
    assert await home.seen_by() == [2, 1]


async def test_rights_that_change_all_the_time_end_the_read(
    home: Library, monkeypatch: pytest.MonkeyPatch
) -> None:
    await home.keep(1, 2)
    monkeypatch.setattr("relay.access.visibility.Visibility.lost_since", lambda *_: None)
    with pytest.raises(StoreFault, match="rights changed"):
        await home.seen_by(bob)


async def test_groups_of_others_that_turn_private_break_off_no_page_of_other_rows(
    home: Library, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Three groups that took turns kept everybody, owners too, from reading old versions."""
    await home.keep(1, 2)
    versions, turns = home.store.versions, count()

    async def while_groups_change(*asked: Any, **more: Any) -> Sequence[Stored]:
        number = next(turns)
        flags = {number: frozenset({Flag.PRIVATE}), number + 1: frozenset[Flag]()}
        for each, of in flags.items():
            group = Group(f"other {each % 3}", flags=of)
            home.state.adopt(home.state.groups.with_group(group))
        return await versions(*asked, **more)

    monkeypatch.setattr(home.store, "versions", while_groups_change)
    for who in (alice, bob, owner):
        assert await home.seen_by(who) == [2, 1]


# -- what takes them away --------------------------------------------------------------------------


@pytest.mark.proves("G-11", "G-12", "G-13", "N09-04", "N09-12")
async def test_a_deletion_by_address_takes_all_up_to_its_time(home: Library) -> None:
    await home.keep(1, 2, 3)
    address = ["a", f"30023:{alice.pubkey}:notes"]
    await home.take(home.made(alice, 5, address, at=NOON + 1))
    assert await home.seen_by() == [3, 2]
    await home.take(home.made(alice, 5, address))
    assert await home.seen_by() == []
    assert await home.take(home.version(2)) == [DELETED]


async def test_a_moderator_who_deletes_the_newest_deletes_all(home: Library) -> None:
    await group_tea(home)
    await home.keep(1, 2, 3, tags=[["h", "tea"]])
    newest = home.version(3, ["h", "tea"])
    request = home.made(admin, 9005, ["e", newest.id], h="tea")
    assert await home.take(request) == [STORED]
    assert await home.seen_by(owner) == []
    erasure = await home.store.erasure(request.id)
    assert erasure is not None
    assert erasure.total == 1  # older ones may be of groups that the admin may not read
    assert await home.take(home.version(1, ["h", "tea"])) == [DELETED]


async def test_a_group_that_ends_takes_them_with_it(home: Library) -> None:
    await group_tea(home)
    await home.keep(1, 2, tags=[["h", "tea"]])
    await home.take(home.made(admin, 9008, h="tea"))
    assert await home.store.old_versions(0, 9) == []


@pytest.mark.proves("G-13", "N62-01")
async def test_a_key_that_vanishes_takes_them_along(home: Library) -> None:
    await home.keep(1, 2)
    request = home.request(alice)
    await home.take(request)
    assert await home.store.old_versions(0, 9) == []
    erasure = await home.store.erasure(request.id)
    assert erasure is not None
    assert erasure.total == 2


@pytest.mark.parametrize("banned", [1, 2])
async def test_an_event_that_is_banned_is_gone_from_the_history(home: Library, banned: int) -> None:
    await home.keep(1, 2)
    await home.call("banevent", home.version(banned).id)
    assert await home.seen_by(owner) == ([2] if banned == 1 else [])


@pytest.mark.proves("G-13", "N40-08")
async def test_a_record_that_has_expired_has_none(home: Library) -> None:
    await home.keep(1)
    await home.take(home.version(2, ["expiration", str(NOON + 200)]))
    home.now = NOON + 200
    assert await home.seen_by(alice) == []
    await home.sweep.once()
    assert await home.store.old_versions(0, 9) == []


async def test_a_sweep_deletes_what_was_replaced_long_ago(home: Library) -> None:
    await home.keep(1, 2)
    home.now += DAY_S
    await home.keep(3)
    home.now += DAY_S
    dry = [line async for lines in home.sweep.run_now(Purpose.DRY_RUN) for line in lines]
    assert [(line.rule, line.kind, line.events) for line in dry] == [("history", 30023, 1)]
    assert await home.seen_by() == [3, 2, 1]
    assert await home.sweep.once() == 1
    assert await home.seen_by() == [3, 2]


@pytest.mark.parametrize(
    ("rules", "left"),
    [
        ("", []),
        ('[[retention]]\nname = "history"\nhistory = { count = 1 }\n', [2]),
        ('[[retention]]\nname = "history"\nhistory = { count = 3, days = 1 }\n', [2]),
        (HISTORY + '[[retention]]\nname = "none"\nhistory = false\n', []),
        (HISTORY, [2, 1]),
    ],
    ids=["none", "a smaller number", "fewer days", "switched off", "the same"],
)
async def test_a_sweep_applies_rules_that_have_changed(
    home: Library, rules: str, left: list[int]
) -> None:
    await home.keep(1, 2)
    await home.sweep.once()
    home.now += DAY_S - 10
    await home.keep(3)
    home.now += 20
    home.set_policy(rules)
    await home.sweep.once()
    assert await home.seen_by() == [3, *left]


async def test_without_a_rule_nothing_is_kept(store: Store) -> None:
    async with Library(store, "") as home:
        home.now = NOON + 100
        await home.keep(1, 2)
        assert await home.seen_by() == [2]
        assert home.ingest is not None


async def test_an_old_version_counts_in_a_quota(store: Store) -> None:
    quota = (
        '[[rule]]\nname = "room"\nmatch = { kinds = [30023] }\n'
        'quota = { per = "author", events = 2 }\n'
    )
    async with Library(store, HISTORY + quota) as home:
        home.now = NOON + 100
        await home.keep(1, 2)
        ((taken, why),) = await home.take(home.version(3))
        assert (taken, why.partition(":")[0]) == (False, "rate-limited")
