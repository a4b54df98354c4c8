"""The fold over Aman's events."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from relay.memory.aman.fold import Fold, Row, Snapshot
from relay.memory.aman.records import (
    Clear,
    Preference,
    SharedKey,
    Subscriptions,
    Summary,
    ToolCall,
    draft_of,
    encrypted_draft_of,
)
from tests.cast import robot, rover
from tests.unit.memory.aman.making import event_of, written

if TYPE_CHECKING:
    from collections.abc import Iterable

    from relay.memory.aman.records import Record
    from relay.nostr.event import Event

KEY = SharedKey(bytes(range(32)), "NOSTR_SECRETBOX_KEY")
OTHER_KEY = bytes(32)


def tool(time: int, content: str = "hot", hk: str = "hk") -> ToolCall:
    return ToolCall(
        hk, "kettle", success=True, content=content, sender_id=None, group_id=None, created_at=time
    )


def sealed(record: Record, key: bytes = KEY.key) -> Event:
    return robot.sign(*encrypted_draft_of(record, key, bytes(24)))


def folded(events: Iterable[Event], key: SharedKey | None = None) -> Fold:
    fold = Fold(key)
    for event in events:
        fold.apply(event)
    return fold


def snapshot(*events: Event, key: SharedKey | None = None) -> Snapshot:
    return folded(events, key).snapshot("hk", robot.pubkey)


def contents(found: Snapshot) -> list[str]:
    return [row.record.content for row in found.tools]


def test_of_nothing_there_is_an_empty_snapshot() -> None:
    found = snapshot()
    assert found == Fold().snapshot("hk", robot.pubkey)
    assert found.is_empty
    assert found.cleared_at is None
    assert not snapshot(written(tool(1))).is_empty


def test_a_row_tells_record_and_event() -> None:
    event = event_of(30093, at=7, ts="9")
    assert snapshot(event).preference == Row(
        Preference("hk", "tea", 7), event.id, robot.pubkey, created_at=7, time=9
    )


@pytest.mark.proves("A-07")
def test_the_latest_of_each_replaceable_kind_counts() -> None:
    found = snapshot(
        *(written(Preference("hk", text, time)) for text, time in [("b", 2), ("c", 3), ("a", 1)]),
        *(written(Summary("hk", text, 0, time)) for text, time in [("y", 5), ("x", 4)]),
        *(written(Subscriptions("hk", (text,), time)) for text, time in [("t", 8), ("s", 9)]),
    )
    assert found.preference is not None
    assert found.preference.record.preference == "c"
    assert found.summary is not None
    assert found.summary.record.summary == "y"
    assert found.subscriptions is not None
    assert found.subscriptions.record.topics == ("s",)


@pytest.mark.proves("A-08")
def test_ts_decides_and_created_at_where_there_is_none() -> None:
    by_ts, newer = event_of(30093, at=10, ts="30"), event_of(30093, at=20, ts="15")
    without = event_of(30093, at=25, ts=None)
    assert (found := snapshot(by_ts, newer, without).preference) is not None
    assert found.id == by_ts.id
    assert (found := snapshot(newer, without).preference) is not None
    assert found.id == without.id


@pytest.mark.proves("A-07", "A-09", "G-06")
@given(st.permutations([("a", 1), ("b", 2), ("c", 2), ("d", 2), ("e", 1)]))
def test_the_order_of_arrival_never_matters(order: list[tuple[str, int]]) -> None:
    events = [written(Preference("hk", text, time)) for text, time in order]
    found = folded([*events, *events]).snapshot("hk", robot.pubkey)
    newest = [event.id for event in events if event.created_at == 2]
    assert found.preference is not None
    assert found.preference.id == max(newest)


@pytest.mark.proves("A-07")
def test_tools_are_kept_once_for_each_d_and_listed_newest_first() -> None:
    first, second, third = (written(tool(time)) for time in (1, 2, 3))
    fold = folded([second, first, third])
    assert fold.apply(second) is None
    assert fold.apply(sealed(tool(2))) is None
    found = fold.snapshot("hk", robot.pubkey)
    assert [row.id for row in found.tools] == [third.id, second.id, first.id]


@pytest.mark.proves("A-15")
@given(st.permutations(range(6)))
def test_a_row_is_hidden_by_each_clear_of_its_second_that_it_does_not_name(
    order: list[int],
) -> None:
    first, second = (written(Clear("hk", sender, 5)) for sender in ("a", "b"))
    rows = [
        robot.sign(*draft_of(tool(5, "after both"), [first.id, second.id])),
        robot.sign(*draft_of(tool(5, "after one"), [first.id])),
        written(tool(5, "after none")),
        robot.sign(*draft_of(Summary("hk", "after both", 1, 5), [second.id, first.id, "0" * 64])),
    ]
    events = [first, second, *rows]
    found = snapshot(*(events[at] for at in order))
    assert [row.record.content for row in found.tools] == ["after both"]
    assert found.summary is not None
    assert found.cleared_at == 5
    later = snapshot(*events, written(Clear("hk", None, 6)))
    assert (later.tools, later.summary) == ((), None)
    earlier = snapshot(written(Clear("hk", None, 4)), *rows)
    assert len(earlier.tools) == 3, "a clear that is not there hides nothing"


def test_in_one_second_the_lowest_id_is_the_oldest() -> None:
    events = [written(tool(1, content)) for content in "abc"]
    want = sorted((event.id for event in events), reverse=True)
    assert [row.id for row in snapshot(*events).tools] == want


@pytest.mark.proves("A-15")
def test_the_clears_of_a_second_are_added_to_one_set() -> None:
    """A set made of all before, for each, is quadratic in what another agent may write."""
    fold = folded([written(Clear("hk", "0", 10))])
    clears = fold._scopes["hk"][robot.pubkey].clears
    ids = clears.ids
    for number in range(1, 5):
        fold.apply(written(Clear("hk", str(number), 10)))
    assert fold._scopes["hk"][robot.pubkey].clears is clears
    assert clears.ids is ids
    assert len(ids) == 5
    before = fold.snapshot("hk")
    fold.apply(written(Clear("hk", "5", 11)))
    assert (before.cleared_at, fold.snapshot("hk").cleared_at) == (10, 11)
    assert len(clears.ids) == 1


@pytest.mark.proves("A-15")
def test_a_clear_cuts_what_is_as_old_as_itself() -> None:
    found = snapshot(
        written(tool(9, "older")),
        written(tool(10, "equal")),
        written(tool(11, "newer")),
        written(Clear("hk", "u", 10)),
        written(Clear("hk", "u", 4)),
    )
    assert contents(found) == ["newer"]
    assert [row.time for row in found.clears] == [10, 4]
    assert found.cleared_at == 10


@pytest.mark.proves("A-15")
@pytest.mark.parametrize(("time", "is_kept"), [(9, False), (10, False), (11, True)])
def test_a_clear_cuts_the_summary(time: int, is_kept: bool) -> None:  # noqa: FBT001
    events = [written(Summary("hk", "all", 1, time)), written(Clear("hk", None, 10))]
    for order in (events, events[::-1]):
        assert (snapshot(*order).summary is not None) is is_kept


@pytest.mark.proves("A-15")
def test_a_clear_at_time_0_cuts_what_is_of_time_0() -> None:
    found = snapshot(written(tool(0)), written(tool(1)), written(Clear("hk", None, 0)))
    assert [row.time for row in found.tools] == [1]
    assert found.cleared_at == 0


@pytest.mark.proves("A-15")
def test_preference_and_subscriptions_survive_every_clear() -> None:
    found = snapshot(
        written(Preference("hk", "tea", 1)),
        written(Subscriptions("hk", ("t",), 1)),
        written(Clear("hk", None, 99)),
    )
    assert found.preference is not None
    assert found.subscriptions is not None


@pytest.mark.proves("A-15")
def test_the_time_is_ts_else_that_of_the_payload_else_created_at() -> None:
    payload = {"history_key": "hk", "sender_id": None, "created_at": 50}
    by_tag = event_of(30096, payload, at=70, d="hk:1", ts="60")
    by_payload = event_of(30096, payload, at=70, d="hk:2", ts=None)
    by_event = event_of(30096, "no JSON", at=70, d="hk:3", ts=None)
    assert snapshot(by_tag).cleared_at == 60
    assert snapshot(by_payload).cleared_at == 50
    assert snapshot(by_event).cleared_at == 70
    assert snapshot(by_event, by_tag, by_payload).cleared_at == 70


@pytest.mark.proves("A-16", "A-26")
@pytest.mark.parametrize("key", [None, SharedKey(OTHER_KEY, "a file")])
def test_a_clear_that_cannot_be_opened_still_cuts(key: SharedKey | None) -> None:
    clear = sealed(Clear("hk", None, 10))
    found = snapshot(written(tool(10)), written(tool(11)), clear, key=key)
    assert [row.time for row in found.tools] == [11]
    assert found.cleared_at == 10
    assert found.clears == ()
    [unread] = found.unread
    assert unread.event is clear
    assert unread.is_locked


@pytest.mark.proves("A-22")
def test_one_bad_row_stands_in_nobodys_way() -> None:
    bad = [event_of(30095, "psst", d=f"hk:{number}") for number in range(3)]
    fold = folded([bad[0], written(tool(1)), bad[1], written(Preference("hk", "tea", 1)), bad[2]])
    found = fold.snapshot("hk", robot.pubkey)
    assert contents(found) == ["hot"]
    assert found.preference is not None
    assert [row.event for row in found.unread] == bad
    assert fold.unread() == list(found.unread)


def test_a_row_that_can_be_read_takes_the_place_of_one_that_cannot() -> None:
    locked, plain = sealed(tool(1), OTHER_KEY), written(tool(1))
    assert locked.d == plain.d
    for order in ((locked, plain), (plain, locked)):
        found = snapshot(*order, key=KEY)
        assert [row.id for row in found.tools] == [plain.id]
        assert found.unread == ()
    fold = folded([locked])
    assert fold.apply(locked) is None
    assert len(fold.unread()) == 1


def test_a_latest_version_that_cannot_be_read_hides_the_older_as_on_the_relay() -> None:
    old, new = written(Preference("hk", "tea", 1)), sealed(Preference("hk", "coffee", 2))
    for order in ((old, new), (new, old)):
        found = snapshot(*order)
        assert found.preference is None
        assert [row.event.id for row in found.unread] == [new.id]
    assert snapshot(old, new, written(Preference("hk", "water", 3))).unread == ()


@pytest.mark.proves("A-13")
def test_authors_are_apart_unless_all_are_asked_for() -> None:
    fold = folded(
        [
            written(Preference("hk", "tea", 5)),
            written(Preference("hk", "coffee", 6), rover),
            written(tool(1, "mine")),
            written(tool(2, "hers"), rover),
            written(tool(3, "mine too")),
            written(Clear("hk", None, 2), rover),
        ]
    )
    mine, hers, all_ = (fold.snapshot("hk", who) for who in (robot.pubkey, rover.pubkey, None))
    assert contents(mine) == ["mine too", "mine"]
    assert mine.cleared_at is None
    assert contents(hers) == []
    assert contents(all_) == ["mine too"]
    assert all_.preference is not None
    assert all_.preference.author == rover.pubkey
    assert (mine.author, all_.author) == (robot.pubkey, None)
    assert fold.authors("hk") == sorted([robot.pubkey, rover.pubkey])


@pytest.mark.proves("A-13")
def test_of_all_authors_a_d_is_one_row_whoever_comes_first() -> None:
    early, late = written(tool(1)), rover.sign(*draft_of(tool(1))._replace(created_at=2))
    assert early.d == late.d
    for order in ((early, late), (late, early)):
        assert [row.id for row in folded(order).snapshot("hk").tools] == [early.id]


@pytest.mark.proves("A-13", "A-22")
def test_of_all_authors_the_newest_that_can_be_read_counts() -> None:
    fold = folded([written(Preference("hk", "tea", 1)), event_of(30093, "bad", by=rover, at=9)])
    found = fold.snapshot("hk")
    assert found.preference is not None
    assert found.preference.record.preference == "tea"
    assert len(found.unread) == 1


@pytest.mark.proves("A-03")
def test_history_keys_do_not_touch_each_other() -> None:
    fold = folded(
        [written(tool(1, hk="a")), written(Clear("a:b", None, 9)), written(tool(2, hk="a:b"))]
    )
    assert len(fold.snapshot("a", robot.pubkey).tools) == 1
    assert fold.snapshot("a:b", robot.pubkey).tools == ()
    assert fold.history_keys() == ["a", "a:b"]


def test_taking_tells_which_history_key_changed() -> None:
    fold, newer = Fold(), written(Preference("hk", "tea", 2))
    assert fold.apply(newer) == "hk"
    assert fold.apply(newer) is None
    assert fold.apply(written(Preference("hk", "old", 1))) is None
    assert fold.apply(written(Preference("other", "old", 1))) == "other"


@pytest.mark.parametrize("kind", [1, 5, 30090, 30091, 30092, 30098])
def test_what_is_no_record_is_no_matter_of_a_fold(kind: int) -> None:
    fold = Fold()
    assert fold.apply(robot.sign(kind, [["d", "hk:1"], ["hk", "hk"]], "x", 7)) is None
    assert fold.history_keys() == []
    assert fold.unread() == []
