"""relay/lifecycle/versions.py: which version is kept.

N01-40…49, N09, N40, N59-08, G-06…12.

Each test runs with its events in one batch and one by one.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import permutations
from typing import TYPE_CHECKING

import pytest

from relay.access.read_rules import Match
from relay.errors import Invalid, WriteOutcome
from relay.lifecycle.deletion import is_deleted, key_target
from relay.lifecycle.rows import (
    Found,
    Keep,
    Slot,
    Stored,
    Tie,
    Tombstone,
    WritePlan,
    slot_of,
    version_of,
)
from relay.lifecycle.versions import KeepRule, KeepRules, add_row, plan_for
from relay.memory.registry import RecordName
from relay.nostr import kinds
from relay.nostr.event import Event, address_of, event_from_raw
from relay.nostr.kinds import KindSet
from relay.nostr.nip40 import expiry_of
from tests.cast import admin, alice, bob
from tests.contract.writing import kept_as, read, unsigned, write
from tests.harness.reference_store import ReferenceStore

if TYPE_CHECKING:
    from relay.nostr.keys import SecretKey

STORED, DUPLICATE, DELETED = WriteOutcome.STORED, WriteOutcome.DUPLICATE, WriteOutcome.DELETED
SUPERSEDED, TAKEN = WriteOutcome.SUPERSEDED, WriteOutcome.TAKEN


@dataclass
class BatchedStore:
    """A store that gets events in one batch, or each in its own."""

    together: bool
    store: ReferenceStore = field(default_factory=ReferenceStore)

    async def takes(self, *events: Event, now: int = 0) -> list[WriteOutcome]:
        results: list[Stored | WriteOutcome] = []
        for batch in [events] if self.together else [[event] for event in events]:
            results += await write(self.store, *batch, now=now)
        return [STORED if isinstance(result, Stored) else result for result in results]

    async def holds(self) -> set[str]:
        return {event_from_raw(raw).id for raw in await read(self.store)}

    async def left_of(self, *events: Event) -> list[Event]:
        held = await self.holds()
        return [event for event in events if event.id in held]


@pytest.fixture(params=["in one batch", "one by one"])
def batched(request: pytest.FixtureRequest) -> BatchedStore:
    return BatchedStore(together=request.param == "in one batch")


def article(at: int, content: str = "", d: str = "x", **more: object) -> Event:
    return unsigned(alice, 30023, [["d", d]], content, at, **more)


def deletion(*targets: Event | str, at: int = 1000, by: SecretKey = alice, h: str = "") -> Event:
    """Kind 5: events by id, addresses as they are."""
    tags = [["a", t] if isinstance(t, str) else ["e", t.id] for t in targets]
    return unsigned(by, kinds.DELETION, [*([["h", h]] if h else []), *tags], at=at)


def address(event: Event) -> str:
    return f"{event.kind}:{event.pubkey}:{event.d}"


# -- versions -------------------------------------------------------------------------------------


@pytest.mark.proves("N01-45", "N01-48")
async def test_the_newest_version_is_kept_in_any_order(batched: BatchedStore) -> None:
    """N01-45, N01-48, G-06: of equal times the lowest id."""
    versions = [article(5), article(7, "a"), article(7, "b"), article(6)]
    best = min(versions[1:3], key=lambda event: event.id)
    for order in permutations(versions):
        batched.store = ReferenceStore()
        outcomes = await batched.takes(*order)
        assert await batched.holds() == {best.id}
        assert set(outcomes) <= {STORED, SUPERSEDED}
        assert outcomes[order.index(best)] is STORED
        assert set(outcomes[order.index(best) + 1 :]) <= {SUPERSEDED}


@pytest.mark.proves("A-07", "A-08", "A-09", "G-06")
async def test_latest_ts_keeps_the_greatest_ts_then_the_highest_id(
    batched: BatchedStore,
) -> None:
    """LATEST-ts, A-08, A-09: created_at does not count."""
    versions = [
        unsigned(alice, kinds.PREFERENCE, [["d", "x"], ["ts", ts]], text, at)
        for ts, text, at in [("9", "a", 1), ("9", "b", 2), ("8", "c", 900)]
    ]
    best = max(versions[:2], key=lambda event: event.id)
    for order in permutations(versions):
        batched.store = ReferenceStore()
        await batched.takes(*order)
        assert await batched.holds() == {best.id}


@pytest.mark.proves("A-06", "A-07", "G-07")
async def test_first_keeps_the_first_version(batched: BatchedStore) -> None:
    """FIRST, G-07: the same `d` of another author is another slot."""
    first, later, other = (
        unsigned(who, kinds.TOOL_HISTORY, [["d", "x"]], at=at)
        for who, at in [(alice, 5), (alice, 9), (bob, 5)]
    )
    assert await batched.takes(first, later, first, other) == [STORED, TAKEN, DUPLICATE, STORED]
    assert await batched.holds() == {first.id, other.id}


@pytest.mark.proves("N01-49")
async def test_a_replaceable_has_one_address_whatever_its_d(batched: BatchedStore) -> None:
    """N01-49."""
    old, new = unsigned(alice, 10002, at=1), unsigned(alice, 10002, [["d", "x"]], at=2)
    assert await batched.takes(old, new) == [STORED, STORED]
    assert await batched.holds() == {new.id}


async def test_no_d_an_empty_d_and_a_d_without_value_are_one_address(batched: BatchedStore) -> None:
    """N01-43: and of several `d` the first counts."""
    spellings: list[list[list[str]]] = [[], [["d"]], [["d", ""]], [["d", ""], ["d", "x"]]]
    versions = [unsigned(alice, 30023, tags, at=at) for at, tags in enumerate(spellings)]
    assert await batched.takes(*versions) == [STORED] * 4
    assert await batched.holds() == {versions[-1].id}


@pytest.mark.proves("N01-40")
async def test_regular_events_are_all_kept_whatever_their_d(batched: BatchedStore) -> None:
    """N01-40, N01-44, N78-02."""
    notes = [unsigned(alice, kind, [["d", "x"]], str(n)) for kind in (1, 9, 50000) for n in (1, 2)]
    assert set(await batched.takes(*notes)) == {STORED}
    assert len(await batched.holds()) == 6


async def test_ephemeral_events_are_passed_on_and_not_stored(batched: BatchedStore) -> None:
    """N01-42: sent again it is no duplicate."""
    call = unsigned(alice, 20001, [["d", "x"]])
    assert await batched.takes(call, call) == [WriteOutcome.PASSED_ON] * 2
    assert await batched.holds() == set()


@pytest.mark.proves("N01-95", "N01-98")
async def test_the_same_event_again_is_a_duplicate(batched: BatchedStore) -> None:
    """N01-95, N01-98."""
    note, version = unsigned(alice), article(5)
    assert await batched.takes(note, version, note, version) == [
        STORED,
        STORED,
        DUPLICATE,
        DUPLICATE,
    ]


# -- deletions ------------------------------------------------------------------------------------


@pytest.mark.proves("N09-02", "N09-07")
async def test_a_deletion_removes_its_authors_events_whatever_their_dates(
    batched: BatchedStore,
) -> None:
    """N09-02, N09-03, N09-07, N09-08: others' events stay, so does the kind 5."""
    mine, future, theirs = unsigned(alice), unsigned(alice, at=9000), unsigned(bob)
    request = deletion(mine, future, theirs, at=5)
    assert await batched.takes(mine, future, theirs, request) == [STORED] * 4
    assert await batched.holds() == {theirs.id, request.id}
    assert await batched.takes(mine, future, theirs) == [DELETED, DELETED, DUPLICATE]


@pytest.mark.proves("N09-10", "G-12")
async def test_a_deletion_may_come_before_what_it_deletes(batched: BatchedStore) -> None:
    """N09-10, G-12; events of others are not prevented by it."""
    mine, theirs = unsigned(alice), unsigned(bob)
    assert await batched.takes(deletion(mine, theirs), mine, theirs) == [STORED, DELETED, STORED]


@pytest.mark.proves("N09-04", "N09-11", "G-11", "G-12")
@pytest.mark.parametrize("kind", [30023, 10002, 78, 30093])
async def test_an_address_is_deleted_up_to_a_time(batched: BatchedStore, kind: int) -> None:
    """N09-04, N09-06, N09-11, G-12: that second included; later versions are accepted."""
    tags = [["d", ""], ["ts", "5"]]
    same, late = (unsigned(alice, kind, tags, at=at) for at in (1000, 1001))
    early = unsigned(alice, kind, tags, "again", at=999)
    request = deletion(f"{kind}:{alice.pubkey}:", at=1000)
    assert await batched.takes(same, request, early, late) == [STORED, STORED, DELETED, STORED]
    assert await batched.holds() == {request.id, late.id}


@pytest.mark.proves("G-12")
async def test_a_newer_version_is_not_deleted_with_its_address(batched: BatchedStore) -> None:
    """N09-04, G-11."""
    version = article(1001)
    assert await batched.takes(version, deletion(address(version), at=1000)) == [STORED, STORED]
    assert await batched.left_of(version) == [version]


@pytest.mark.proves("G-11")
async def test_older_versions_of_a_deleted_event_are_refused(batched: BatchedStore) -> None:
    """N09-12, G-11."""
    old, new = article(5), article(6)
    await batched.takes(old, new, deletion(new, address(new)))
    assert await batched.left_of(old, new) == []
    assert await batched.takes(old) == [DELETED]


@pytest.mark.proves("N09-05")
async def test_a_deleted_address_must_match_exactly_and_be_the_authors(
    batched: BatchedStore,
) -> None:
    """N09-05: kind, pubkey, and `d` is all after the second colon."""
    others = [
        article(5, d="snow:a:b"),
        article(5, d="snow"),
        article(5, d="snow:a:"),
        unsigned(bob, 30023, [["d", "snow:a"]]),
        unsigned(alice, 30024, [["d", "snow:a"]]),
    ]
    meant = article(5, d="snow:a")
    await batched.takes(meant, *others)
    later = unsigned(bob, 30023, [["d", "later"]], at=5)
    await batched.takes(deletion(address(meant), address(others[3]), address(later)))
    assert await batched.left_of(meant, *others) == others
    assert await batched.takes(later) == [STORED]


@pytest.mark.proves("N09-15", "N09-16")
async def test_malformed_targets_are_skipped(batched: BatchedStore) -> None:
    """N09-15, N09-16."""
    mine = unsigned(alice)
    nonsense = ["", "::", "x:y:z", f"30023:{alice.pubkey}", f"-1:{alice.pubkey}:", "9" * 5000]
    request = unsigned(
        alice, 5, [["e"], ["e", "x"], *(["a", text] for text in nonsense), ["a"], ["e", mine.id]]
    )
    empty = unsigned(alice, 5, content="never mind")
    assert await batched.takes(mine, request, empty) == [STORED] * 3
    assert await batched.holds() == {request.id, empty.id}


@pytest.mark.proves("N09-09")
async def test_deletions_and_group_records_cannot_be_deleted(batched: BatchedStore) -> None:
    """N09-09, N29-58."""
    kept = [
        deletion(unsigned(alice, content="gone")),
        *(unsigned(alice, kind, [["h", "tea"]]) for kind in (9000, 9007, 9021, 9022)),
        unsigned(alice, 39000, [["d", "tea"]]),
    ]
    await batched.takes(*kept, deletion(*kept, f"39000:{alice.pubkey}:tea"))
    assert await batched.left_of(*kept) == kept
    assert set(await batched.takes(*kept)) == {DUPLICATE}


@pytest.mark.parametrize("kind", [kinds.DELETION, kinds.VANISH, kinds.LEAVE_REQUEST])
async def test_a_deletion_does_not_prevent_undeletable_events(
    batched: BatchedStore, kind: int
) -> None:
    """N09-09, N29-58, N62-09: it has no effect when it comes first either."""
    later = unsigned(alice, kind, [["h", "tea"]])
    assert await batched.takes(deletion(later), later) == [STORED, STORED]


@pytest.mark.proves("N09-14")
async def test_a_deletion_with_h_removes_rows_of_that_group_or_none(batched: BatchedStore) -> None:
    """N09-14; without `h` of any group."""
    there, nowhere, elsewhere = (
        unsigned(alice, 9, [["h", h]] if h else [], h) for h in ("tea", "", "coffee")
    )
    await batched.takes(there, nowhere, elsewhere, deletion(there, nowhere, elsewhere, h="tea"))
    assert await batched.left_of(there, nowhere, elsewhere) == [elsewhere]
    await batched.takes(deletion(elsewhere))
    assert await batched.left_of(elsewhere) == []


@pytest.mark.proves("N59-08")
async def test_a_gift_wrap_is_deleted_by_its_recipient(batched: BatchedStore) -> None:
    """N59-08: its signer is random. Sent again it is refused; nobody else can delete it."""
    wrap = unsigned(admin, kinds.GIFT_WRAP, [["p", alice.pubkey]])
    assert await batched.takes(wrap, deletion(wrap, by=bob), deletion(wrap)) == [STORED] * 3
    assert await batched.left_of(wrap) == []
    assert await batched.takes(wrap) == [DELETED]


@pytest.mark.parametrize(("at", "outcome"), [(10, True), (11, False)])
def test_events_of_a_vanished_key_up_to_then_are_refused(at: int, outcome: bool) -> None:  # noqa: FBT001
    """N62-06: gift wraps for it too."""
    stone = Tombstone(key_target(alice.pubkey), alice.pubkey, 10, "vanish")
    found = Found(0, tombstones={stone.target: [stone]})
    for event in (
        unsigned(alice, at=at),
        unsigned(bob, kinds.GIFT_WRAP, [["p", alice.pubkey]], at=at),
    ):
        assert is_deleted(event, None, at, found, None) is outcome
    assert not is_deleted(unsigned(bob, 1, [["p", alice.pubkey]], at=at), None, at, found, None)


# -- expiry ---------------------------------------------------------------------------------------


@pytest.mark.proves("N40-03")
@pytest.mark.parametrize("kind", [1, 20001, 30023])
async def test_expired_events_are_refused(batched: BatchedStore, kind: int) -> None:
    """N40-03, N40-04, N40-05: expired means expiration <= now."""
    event = unsigned(alice, kind, [["expiration", "100"]])
    assert await batched.takes(event, now=100) == [WriteOutcome.EXPIRED]
    assert await batched.takes(event, now=99) != [WriteOutcome.EXPIRED]


@pytest.mark.proves("N40-03", "N40-09")
async def test_an_expired_event_is_refused_while_it_is_still_stored(
    batched: BatchedStore,
) -> None:
    """N40-09: it is no duplicate."""
    event = unsigned(alice, 1, [["expiration", "100"]])
    assert await batched.takes(event, now=99) == [STORED]
    assert await batched.takes(event, now=100) == [WriteOutcome.EXPIRED]


@pytest.mark.proves("A-07", "N40-03")
async def test_a_first_version_that_has_expired_is_replaced(batched: BatchedStore) -> None:
    """Also while its row is still stored, by any version: what is acknowledged is found."""
    first = unsigned(alice, kinds.TOOL_HISTORY, [["d", "x"], ["expiration", "100"]], at=9)
    others = [unsigned(alice, kinds.TOOL_HISTORY, [["d", "x"]], at=at) for at in (5, 20)]
    assert await batched.takes(first, others[0], now=99) == [STORED, TAKEN]
    assert await batched.takes(*others, first, now=100) == [STORED, TAKEN, WriteOutcome.EXPIRED]
    assert await batched.holds() == {others[0].id}


@pytest.mark.proves("N40-06")
@pytest.mark.parametrize("value", ["", "soon", "-5", "1.5", "1e9", "²", "1" * 19, " 5"])
def test_a_malformed_expiration_is_refused(value: str) -> None:
    """N40-06; the first tag counts."""
    with pytest.raises(Invalid, match="bad expiration"):
        expiry_of(unsigned(alice, 1, [["expiration", value], ["expiration", "5"]]))


@pytest.mark.parametrize(
    ("kind", "group", "groups"),
    [
        (9, "tea", {"tea"}),
        (9, None, set()),
        (8999, "tea", {"tea"}),
        (9000, "tea", set()),
        (9022, "tea", set()),
        (38_999, "tea", {"tea"}),
        (39_000, "tea", set()),
        (39_005, "tea", set()),
    ],
)
def test_a_row_of_a_group_is_content_but_for_records_and_state(
    kind: int, group: str | None, groups: set[str]
) -> None:
    found = Found(0)
    plan_for(unsigned(alice, kind), group, Keep.ALL, found, WritePlan(), now=0, tie=Tie.HIGH)
    assert found.groups_with_content == groups


def test_a_new_row_is_found_by_the_names_that_were_looked_up() -> None:
    looked_up, other = RecordName(30078, "x"), RecordName(30078, "y")
    found = Found(0, named={looked_up: set()})
    rows = [
        add_row(
            unsigned(alice, name.kind, [["d", name.d]]),
            None,
            Keep.ALL,
            None,
            found,
            WritePlan(),
            quiet=False,
            now=0,
        )
        for name in (looked_up, other)
    ]
    assert found.named == {looked_up: {rows[0].event.id}}
    assert found.rows_named(looked_up) == rows[:1]


# -- keep rules -----------------------------------------------------------------------------------


def test_of_several_keep_rules_the_last_decides() -> None:
    """`[[retention]]` with `keep`; by NIP-01 without one."""
    of_the_den = Match(kinds=KindSet.of((1, 30023)), h=frozenset({"den"}))
    rules = KeepRules(
        [
            KeepRule("all articles", Match(kinds=KindSet.of(30023)), Keep.ALL),
            KeepRule("drafts", Match(d_prefixes=("draft:",)), Keep.FIRST),
            KeepRule("what is in the den", of_the_den, Keep.LATEST),
        ]
    )
    in_den = unsigned(alice, 30023, [["d", "draft:x"], ["h", "den"]])
    assert rules.keep_of(article(1)) is Keep.ALL
    assert rules.keep_of(article(1, d="draft:x")) is Keep.FIRST
    assert rules.keep_of(in_den) is Keep.LATEST
    assert rules.keep_of(unsigned(alice)) is Keep.ALL
    assert rules.keep_of(unsigned(alice, 10002)) is Keep.LATEST


@pytest.mark.proves("A-08")
def test_slot_and_version_depend_on_keep() -> None:
    event = unsigned(alice, 30093, [["d", "x"], ["ts", "77"]], at=5)
    assert slot_of(event, Keep.ALL) is None
    assert slot_of(event, Keep.FIRST) == Slot(alice.pubkey, 30093, "x")
    lists = unsigned(alice, 10002, [["d", "x"]])
    assert slot_of(lists, Keep.LATEST) == Slot(alice.pubkey, 10002, "")
    assert [version_of(event, keep) for keep in (Keep.LATEST, Keep.LATEST_TS)] == [5, 77]
    odd = [unsigned(alice, 30093, [["ts", ts]], at=5) for ts in ("", "x", "-1", "²", "9" * 19)]
    assert {version_of(event, Keep.LATEST_TS) for event in odd} == {5}
    assert address_of(f"10002:{alice.pubkey}:x") == Slot(alice.pubkey, 10002, "")


@pytest.mark.proves("A-09")
def test_the_policy_may_keep_the_lowest_id_of_equal_ts() -> None:
    """A-09: `[memory.aman] tie = "low"`."""
    one, other = sorted(
        (unsigned(alice, 30093, [["d", "x"], ["ts", "9"]], text) for text in "ab"),
        key=lambda event: event.id,
    )
    for order in ((one, other), (other, one)):
        slot = slot_of(one, kept_as(one))
        assert slot is not None
        found, plan = Found(0, looked_up={slot}), WritePlan()
        for event in order:
            plan_for(event, None, kept_as(event), found, plan, now=0, tie=Tie.LOW)
        assert list(plan.adds) == [one.id]
