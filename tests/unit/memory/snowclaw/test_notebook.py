"""relay/memory/snowclaw/working_copy.py: records and unpublished edits."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from relay.errors import Invalid
from relay.memory.draft import Draft
from relay.memory.snowclaw.agent_memory import AgentMemory, agent_memory_draft
from relay.memory.snowclaw.edit_dates import began_after
from relay.memory.snowclaw.encryption import OwnKey, encrypted
from relay.memory.snowclaw.groups import GroupMemory
from relay.memory.snowclaw.keys import KeyStyle, OfGroup
from relay.memory.snowclaw.rebasing import rebased
from relay.memory.snowclaw.record_index import user_key
from relay.memory.snowclaw.users import UserMemory
from relay.memory.snowclaw.working_copy import WorkingCopy
from relay.nostr import kinds
from relay.nostr.event import made_from
from tests.cast import alice, bob, owner, robot, rover, stranger
from tests.unit.memory.snowclaw.making import AT, config, record, signed

if TYPE_CHECKING:
    from relay.nostr.event import Event
    from relay.nostr.keys import SecretKey

ALICE = f"snowclaw:memory:npub:{alice.pubkey[:32]}"
TEA = "snowclaw:memory:group:tea"
KEY = OwnKey.of(robot)


def working_copy(*events: Any, **more: Any) -> WorkingCopy:
    given: dict[str, Any] = {"agents": [rover.pubkey], "key": KEY}
    made = WorkingCopy(robot.pubkey, [owner.pubkey], **(given | more))
    for event in events:
        made.apply(event)
    return made


def draft_of(content: str) -> Draft:
    return Draft(30078, [["d", ALICE]], content, AT)


def noted(text: str) -> Any:
    return lambda memory: memory.noted(text)


def published(book: WorkingCopy, at: int = AT + 100) -> list[Any]:
    """The next versions, which the relay takes."""
    events = []
    for subject in book.changed():
        event = signed(book.next_version(subject, at))
        book.saved(subject, event)
        events.append(event)
    return events


def notes(book: WorkingCopy, key: str = alice.npub) -> tuple[str, ...] | None:
    memory = book.user(key)
    return None if memory is None else memory.notes


@pytest.mark.proves("S-02")
def test_a_user_is_known_under_every_form_of_the_key_and_the_newest_counts() -> None:
    forms = [alice.pubkey[:16], alice.npub, alice.pubkey, alice.pubkey[:32]]
    for newest in forms:
        book = working_copy(
            *(
                record(f"snowclaw:memory:npub:{form}", {"notes": [form]}, at=AT + (form == newest))
                for form in forms
            )
        )
        for asked in (*forms, alice.pubkey.upper(), f" {alice.npub} "):
            assert notes(book, asked) == (newest,)
        assert list(book.users()) == [alice.pubkey[:32]]


def test_a_user_of_whom_only_the_shortest_key_is_known_is_found_by_all_of_it() -> None:
    book = working_copy(record(f"snowclaw:memory:npub:{alice.pubkey[:16]}", {"notes": ["x"]}))
    assert list(book.users()) == [alice.pubkey[:16]]
    assert notes(book) == ("x",)
    book = working_copy(record(ALICE, {"notes": ["x"]}))
    assert notes(book, alice.pubkey[:16]) == ("x",)
    assert notes(book, bob.npub) is None


def test_the_work_for_the_users_grows_with_the_records_of_other_agents_and_not_with_its_square(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    keys = [f"{number:016x}" for number in range(40)]
    keys += [f"{alice.pubkey[:16]}{number:016x}" for number in range(40)]
    book = working_copy(
        *(record(f"snowclaw:memory:npub:{key}", {"notes": ["x"]}, by=rover) for key in keys)
    )
    parsed: list[str] = []

    def counting(d: str) -> str | None:
        parsed.append(d)
        return user_key(d)

    monkeypatch.setattr("relay.memory.snowclaw.record_index.user_key", counting)
    monkeypatch.setattr("relay.memory.snowclaw.working_copy.MAX_SEEN", 41)
    assert book.users().keys() == {*keys}
    assert notes(book) is None
    for number in range(100, 140):  # too many of whom nothing is noted
        assert not book.apply(record(f"snowclaw:memory:npub:{number:016x}", {}, by=rover))
    assert len(parsed) <= 2 * (len(keys) + 40)


@pytest.mark.parametrize("key", ["", "alice", alice.pubkey[:31], alice.npub[:-1] + "q"])
def test_what_is_no_key_is_no_user(key: str) -> None:
    with pytest.raises(Invalid, match="d must end with an npub or 16, 32 or 64"):
        working_copy().user(key)


@given(st.permutations(range(4)))
def test_the_order_of_arrival_says_nothing(order: list[int]) -> None:
    events = [
        record(ALICE, {"notes": ["old"]}),
        record(ALICE, {"notes": ["new"]}, at=AT + 1),
        config("global", {"respond_mode": "all"}),
        config("global", {"respond_mode": "none"}, at=AT + 1),
    ]
    book = working_copy(*(events[index] for index in order))
    assert notes(book) == ("new",)
    assert book.config.effective().respond_mode.value == "none"


def test_of_one_second_the_lowest_id_counts() -> None:
    twins = [record(ALICE, {"notes": [text]}) for text in ("one", "other")]
    lowest = min(twins, key=lambda event: event.id)
    for order in (twins, twins[::-1]):
        book = working_copy(*order)
        assert book.own(ALICE) is lowest


def test_nothing_of_anybody_else_counts() -> None:
    by_stranger = record(ALICE, {"notes": ["x"]}, by=stranger)
    of_another_kind = robot.sign(78, [["d", ALICE]], '{"notes":["x"]}', AT)
    of_another_system = record("nmem:session:x")
    book = working_copy(by_stranger, of_another_kind, of_another_system)
    assert (book.users(), book.groups(), book.events()) == ({}, {}, [])
    assert not book.apply(by_stranger)


@pytest.mark.proves("S-21")
def test_another_agent_s_record_is_read_where_there_is_none_of_one_s_own() -> None:
    theirs = [
        record(ALICE, {"notes": ["theirs"]}, by=rover),
        record(TEA, {"purpose": "theirs"}, ["h", "tea"], by=rover),
    ]
    book = working_copy(*theirs)
    assert notes(book) == ("theirs",)
    assert book.group("tea") == GroupMemory(purpose="theirs")
    book.apply(record(ALICE, {"notes": ["mine"]}, at=AT - 5))
    book.apply(record(TEA, {"purpose": "mine"}, at=AT - 5))
    assert notes(book) == ("mine",)
    assert book.group("tea") == GroupMemory(purpose="mine")


@pytest.mark.proves("S-22")
def test_an_owner_s_record_is_merged_when_read_and_never_written_as_one_s_own() -> None:
    book = working_copy(
        record(ALICE, {"notes": ["likes tea"], "owner_notes": ["in mine"]}),
        record(f"snowclaw:memory:npub:{alice.npub}", {"notes": ["VIP"]}, by=owner),
        record("snowclaw:memory:group:tea", {"notes": ["quiet"]}, by=owner),
    )
    memory = book.user(alice.npub)
    assert memory is not None
    assert (memory.notes, memory.owner_notes) == (("likes tea",), ("in mine", "VIP"))
    assert book.group("tea") == GroupMemory(owner_notes=("quiet",))
    assert set(book.groups()) == {"tea"}
    book.edit_user(book.subject_of(alice.npub), noted("more"), at=AT)
    (event,) = published(book)
    assert '"owner_notes":["in mine"]' in event.content
    assert "VIP" not in event.content


def test_an_owner_s_own_notebook_has_their_notes_as_notes() -> None:
    book = WorkingCopy(owner.pubkey, [owner.pubkey])
    book.apply(record(ALICE, {"notes": ["VIP"]}, by=owner))
    assert book.user(alice.npub) == UserMemory(notes=("VIP",))


@pytest.mark.proves("S-33")
def test_a_note_with_the_h_of_another_group_does_not_enter() -> None:
    book = working_copy(
        record(ALICE, {"notes": ["of coffee"]}, ["h", "coffee"]),
        record(ALICE, {"notes": ["everywhere"]}, by=owner),
    )
    assert book.user(alice.npub, "coffee") == UserMemory(
        notes=("of coffee",), owner_notes=("everywhere",)
    )
    assert book.user(alice.npub, "tea") == UserMemory(owner_notes=("everywhere",))
    book.edit_user(book.subject_of(alice.npub), noted("learnt in coffee"), at=AT)
    assert book.user(alice.npub, "tea") == UserMemory(owner_notes=("everywhere",))
    assert (
        working_copy(record(ALICE, {}, ["h", "coffee"], by=rover)).user(alice.npub, "tea") is None
    )


@pytest.mark.proves("S-33")
def test_a_note_for_one_group_enters_no_other_before_it_is_published_either() -> None:
    book = working_copy()
    book.edit_user(book.subject_of(alice.npub), noted("of coffee"), "coffee", at=AT)
    book.edit_user(book.subject_of(alice.npub), noted("and more"), at=AT)  # the same record
    assert book.user(alice.npub, "tea") is None
    assert book.user(alice.npub, "coffee") == book.user(alice.npub)
    assert notes(book) == ("of coffee", "and more")


# -- deletions ---------------------------------------------------------------------------------


def test_what_its_author_deletes_is_known_no_more() -> None:
    stored = record(ALICE, {"notes": ["x"]})
    book = working_copy(stored)
    assert not book.apply(stranger.sign(kinds.DELETION, [["e", stored.id]], "", AT))
    assert not book.apply(owner.sign(kinds.DELETION, [["e", stored.id]], "", AT))
    assert notes(book) == ("x",)
    assert book.apply(robot.sign(kinds.DELETION, [["e", stored.id]], "", AT))
    assert (notes(book), book.users()) == (None, {})


def test_an_owner_may_ask_for_records_of_the_agent_and_nobody_else_may() -> None:
    at_tea, at_alice = record(TEA), record(ALICE)
    kept = config("global", {}), record("snowclaw:core:pin"), record(TEA, by=rover)
    book = working_copy(at_tea, at_alice, *kept)
    asked = owner.sign(5, [["e", each.id] for each in (at_tea, at_alice, kept[2])], "", AT)
    drafts = book.asked_to_forget(asked)
    named = [draft.tags for draft in drafts]
    assert named == [[["e", each.id], ["k", "30078"]] for each in (at_tea, at_alice)]
    assert not book.apply(asked)  # the agent deletes them itself
    assert book.asked_to_forget(owner.sign(1, asked.tags, "", AT)) == []
    for other in (robot, rover, stranger):
        assert book.asked_to_forget(other.sign(5, asked.tags, "", AT)) == []
    assert all(book.apply(robot.sign(*draft)) for draft in drafts)
    assert {event.id for event in book.events()} == {each.id for each in kept}
    assert book.asked_to_forget(asked) == []


def test_an_owner_s_request_by_address_is_for_the_versions_up_to_its_date() -> None:
    """One that the owner has not seen is among them; what is noted afterwards is not."""
    named = [["a", f"30078:{by.pubkey}:{TEA}"] for by in (robot, rover)]
    asked = owner.sign(5, named, "", AT)
    (draft,) = working_copy().asked_to_forget(asked)  # it may have one that waits
    assert draft == (5, [named[0], ["k", "30078"]], "", AT)
    later, other = record(TEA, at=AT + 1), record(ALICE)
    assert not working_copy(later, other).apply(robot.sign(*draft))
    assert working_copy(record(TEA), record(TEA, by=rover)).apply(robot.sign(*draft))


def test_no_deletion_that_an_owner_asks_for_names_two_records() -> None:
    """Who reads one of them, as a member of its group, would learn of the other. It is the same on
    each machine, and at each start, whatever is known there."""
    stored = [record(TEA), record(f"snowclaw:private:npub:{alice.pubkey[:32]}"), record(ALICE)]
    addresses = [["a", f"30078:{robot.pubkey}:{each.d}"] for each in stored]
    asked = owner.sign(5, [*(["e", each.id] for each in stored), *addresses], "", AT)
    book, nothing_known = working_copy(*stored), working_copy()
    drafts = book.asked_to_forget(asked)
    assert [len(draft.tags) for draft in drafts] == [2] * 6  # a name and its kind
    assert drafts == nothing_known.asked_to_forget(asked)
    for draft in drafts:
        book.apply(robot.sign(*draft))
    assert list(book.events()) == []


@pytest.mark.parametrize(("later", "stays"), [(0, False), (-1, True)])
def test_a_deletion_by_address_takes_what_is_as_old_as_itself(later: int, stays: bool) -> None:  # noqa: FBT001
    book = working_copy(record(ALICE, {"notes": ["x"]}))
    address = f"30078:{robot.pubkey}:{ALICE}"
    book.apply(robot.sign(kinds.DELETION, [["a", address]], "", AT + later))
    assert (notes(book) is not None) == stays


def test_under_a_deleted_configuration_the_other_owner_s_holds_again() -> None:
    book = WorkingCopy(robot.pubkey, [owner.pubkey, bob.pubkey])
    book.apply(config("global", {"respond_mode": "all"}, by=bob))
    newer = config("global", {"respond_mode": "none"}, at=AT + 1)
    book.apply(newer)
    book.apply(owner.sign(kinds.DELETION, [["e", newer.id]], "", AT + 2))
    assert book.config.effective().respond_mode.value == "all"


@pytest.mark.parametrize(
    ("named", "kept"),
    [
        (str(AT + 2), ("of 3", "of 5")),
        ("soon", ()),
        (str(AT + 99), ()),
        (None, ()),
    ],
)
def test_a_deletion_is_for_what_was_noted_until_then_if_it_says_so(
    named: str | None, kept: tuple[str, ...]
) -> None:
    """And for each stored version up to its own date."""
    tag = [] if named is None else [["noted-until", named]]
    address = ["a", f"30078:{robot.pubkey}:{ALICE}"]
    book = working_copy(record(ALICE, {"notes": ["stored"]}, at=AT + 5))
    for at in (1, 3, 5):
        book.edit_user(book.subject_of(alice.npub), noted(f"of {at}"), at=AT + at)
    book.apply(robot.sign(kinds.DELETION, [address, *tag], "", AT + 5))
    assert (notes(book) or ()) == kept
    # An edit that it spared is no younger for it.
    book.apply(robot.sign(kinds.DELETION, [address], "", AT + 4))
    assert (notes(book) or ()) == kept[1:]


@pytest.mark.parametrize(
    ("since", "is_after"), [(AT + 3, True), (AT + 2, False), ("", False), (None, False)]
)
def test_a_record_that_was_begun_after_a_deletion_is_not_made_of_what_it_deletes(
    since: object, *, is_after: bool
) -> None:
    base = record(ALICE, {}, at=AT + 9)
    tag = [] if since is None else [["noted-since", str(since)]]
    version = robot.sign(30078, [["d", ALICE], made_from(base), *tag], "{}", AT + 10)
    deletion = robot.sign(kinds.DELETION, [["noted-until", str(AT + 2)]], "", AT + 5)
    assert began_after(version, deletion) == is_after
    by_id = robot.sign(kinds.DELETION, [["e", base.id]], "", AT + 2)
    assert not began_after(version, by_id)  # by a clock that is behind


def test_a_version_says_when_the_oldest_text_of_the_first_one_was_noted() -> None:
    """Not of when a message or a list of members is that the agent has only seen."""
    book = working_copy()
    book.set_members(OfGroup("tea"), ((alice.npub, "alice"),))
    book.see_group(OfGroup("tea"), AT - 99)
    book.see_user(book.subject_of(alice.npub), AT - 99, (), None)
    assert [event.tag("noted-since") for event in published(book, AT)] == [str(AT)] * 2
    book = working_copy()
    for at in (AT - 5, AT - 4):
        book.edit_user(book.subject_of(alice.npub), noted(f"of {at}"), at=at)
        assert [event.tag("noted-since") for event in published(book, at + 90)] == [str(AT - 5)]


# -- edits -------------------------------------------------------------------------------------


@pytest.mark.proves("S-31")
def test_a_change_is_there_at_once_and_one_event_is_due_for_each_record() -> None:
    book = working_copy()
    for text in ("one", "two"):
        book.edit_user(book.subject_of(alice.npub), noted(text), at=AT)
    book.edit_group(OfGroup("tea"), lambda memory: replace(memory, purpose="to drink"), at=AT)
    assert (notes(book), book.unsaved) == (("one", "two"), 3)
    events = published(book)
    assert [event.d for event in events] == [ALICE, TEA]
    assert [event.tag("h") for event in events] == [None, "tea"]
    assert (book.unsaved, book.changed(), notes(book)) == (0, [], ("one", "two"))


@pytest.mark.proves("S-31")
def test_what_changes_nothing_is_not_written() -> None:
    book = working_copy(record(ALICE, {"preferences": {"language": "en"}}))
    book.edit_user(
        book.subject_of(alice.npub), lambda memory: memory.preferring("language", "en"), at=AT
    )
    assert book.changed() == []
    assert book.unsaved == 0


def test_an_edit_is_made_on_the_version_that_another_program_wrote_meanwhile() -> None:
    book = working_copy(record(ALICE, {"notes": ["old"]}))
    book.edit_user(book.subject_of(alice.npub), noted("mine"), at=AT)
    book.apply(record(ALICE, {"notes": ["old", "theirs"]}, at=AT + 1))
    assert notes(book) == ("old", "theirs", "mine")
    (event,) = published(book)
    assert '"notes":["old","theirs","mine"]' in event.content


def test_what_is_noted_while_a_version_is_on_its_way_stays_for_the_next() -> None:
    book = working_copy()
    alice_ = book.subject_of(alice.npub)
    book.see_user(alice_, AT, (("alice", AT),), "tea")
    on_its_way = signed(book.next_version(alice_, AT + 10))
    book.see_user(alice_, AT + 5, (("alice", AT),), "tea")
    book.edit_user(alice_, noted("x"), at=AT)
    book.saved(alice_, on_its_way)
    memory = book.user(alice.npub)
    assert memory is not None
    assert (memory.last_interaction, memory.notes) == (AT + 5, ("x",))
    assert book.changed() == [alice_]
    published(book, AT + 20)
    assert (book.user(alice.npub), book.unsaved) == (memory, 0)


def seen(who: SecretKey, **more: object) -> Event:
    return record(f"snowclaw:memory:npub:{who.pubkey[:32]}", {"first_seen": AT, **more})


@pytest.fixture
def two_users(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("relay.memory.snowclaw.working_copy.MAX_SEEN", 2)


@pytest.mark.usefixtures("two_users")
def test_of_too_many_records_those_are_left_out_that_tell_only_who_was_seen() -> None:
    book = working_copy(seen(alice), seen(bob, display_names=[["bob", AT]]))
    assert not book.apply(seen(rover, display_names=[["rover", AT]]))
    assert book.apply(seen(stranger, notes=["likes tea"]))
    assert book.apply(record(ALICE, {"first_seen": AT}, at=AT + 1))  # a newer version
    assert {*book.users()} == {key.pubkey[:32] for key in (alice, bob, stranger)}
    book.apply(signed(Draft(5, [["a", f"30078:{robot.pubkey}:{ALICE}"]], "", AT + 2)))
    assert not book.apply(seen(rover))
    for each in (bob, stranger):
        d = f"snowclaw:memory:npub:{each.pubkey[:32]}"
        book.apply(signed(Draft(5, [["a", f"30078:{robot.pubkey}:{d}"]], "", AT + 2)))
    assert book.apply(seen(rover))


@pytest.mark.usefixtures("two_users")
def test_beyond_the_most_users_a_message_makes_no_record_and_a_note_does() -> None:
    book = working_copy(seen(alice))
    book.see_user(book.subject_of(bob.npub), AT + 1, (), "tea")
    for known in (alice, bob):
        book.see_user(book.subject_of(known.npub), AT + 2, (), "tea")
    book.see_user(book.subject_of(rover.npub), AT + 2, (), "tea")
    assert {*book.users()} == {key.pubkey[:32] for key in (alice, bob)}
    assert {each.last_interaction for each in book.users().values()} == {AT + 2}
    book.edit_user(book.subject_of(rover.npub), noted("likes tea"), at=AT + 3)
    # The relay has one that was left out: the note is made on it.
    assert book.apply(seen(rover, last_interaction=AT))
    memory = book.user(rover.npub)
    assert memory is not None
    assert (memory.first_seen, memory.notes) == (AT, ("likes tea",))


@pytest.mark.proves("S-30")
def test_names_that_two_programs_learned_are_kept_and_written_once_by_each() -> None:
    one, other = working_copy(), working_copy()
    alice_ = one.subject_of(alice.npub)
    one.see_user(alice_, AT, (("al", AT - 9), ("alice", AT + 5)), "tea")
    other.see_user(alice_, AT, (("alice", AT + 5), ("Alice", AT + 7)), "tea")
    # Of one second: the relay keeps one of the two versions.
    (first,) = published(one, AT + 100)
    (second,) = published(other, AT + 100)
    one.see_user(alice_, AT + 2, (("al", AT - 9), ("alice", AT + 5)), "tea")
    other.see_user(alice_, AT + 2, (("alice", AT + 5), ("Alice", AT + 7)), "tea")
    for book, stored in ((one, second), (other, first)):
        book.apply(stored)
    for at, (book, reader) in enumerate(((one, other), (other, one)) * 2, AT + 101):
        for event in published(book, at):
            reader.apply(event)
    assert one.changed() == other.changed() == []
    (theirs,) = other.users().values()
    assert one.users() == {alice.pubkey[:32]: theirs}
    assert [name for name, _ in theirs.display_names] == ["al", "alice", "Alice"]


def again(book: WorkingCopy, version: Any, base: Any, stored: Any) -> Any:
    """The version that waited, made on the stored one; None: nothing of it is missing there."""
    draft, is_encrypted = rebased(book.index, version, base, stored, AT + 90)
    assert not is_encrypted
    return None if draft is None else signed(draft)


def test_all_that_a_version_adds_to_its_base_is_made_on_another_one_and_only_once() -> None:
    before = {"first_seen": AT, "notes": ["a"], "preferences": {"x": "1", "y": "1"}, "more": 1}
    base = record(ALICE, {**before, "display_names": [["al", AT]], "last_interaction": AT + 9})
    book, other = working_copy(base), working_copy(base)
    alice_ = book.subject_of(alice.npub)
    book.see_user(alice_, AT + 20, (("alice", AT + 15),), "tea")
    book.edit_user(alice_, noted("mine"), at=AT)
    book.edit_user(alice_, lambda old: old.preferring("x", "mine").annotated("of the owner"), at=AT)
    other.see_user(alice_, AT + 30, (("Alice", AT + 25),), "tea")
    other.edit_user(alice_, noted("theirs"), at=AT)
    other.edit_user(
        alice_, lambda old: old.preferring("x", "theirs").preferring("z", "theirs"), at=AT
    )
    (version,), (stored,) = published(book, AT + 40), published(other, AT + 50)
    both = again(book, version, base, stored)
    assert both.created_at == AT + 90
    assert orjson.loads(both.content) == {
        "display_names": [["al", AT], ["alice", AT + 15], ["Alice", AT + 25]],
        "first_seen": AT,
        "notes": ["a", "theirs", "mine"],
        "preferences": {"x": "theirs", "y": "1", "z": "theirs"},
        "is_owner": False,
        "owner_notes": ["of the owner"],
        "last_interaction": AT + 30,
        "more": 1,
    }
    assert again(book, version, base, both) is None
    newer = orjson.loads(again(book, stored, base, version).content)
    assert newer["preferences"] == {"x": "theirs", "y": "1", "z": "theirs"}


def test_of_a_group_the_members_of_the_stored_version_stay() -> None:
    base = record(TEA, {"purpose": "tea", "members": [["a", "al"]], "themes": ["green"]})
    book, other = working_copy(base), working_copy(base)
    tea = OfGroup("tea")
    book.set_members(tea, (("b", "bo"),))
    book.edit_group(tea, lambda old: old.with_theme("black").with_decision("cups", AT), at=AT)
    book.edit_group(tea, noted("mine"), at=AT)
    other.set_members(tea, (("c", "cy"),))
    other.edit_group(tea, lambda old: replace(old.with_theme("black"), purpose="much tea"), at=AT)
    (version,), (stored,) = published(book, AT + 50), published(other, AT + 40)
    assert orjson.loads(again(book, version, base, stored).content) == {
        "purpose": "much tea",
        "members": [["c", "cy"]],
        "themes": ["green", "black"],
        "decisions": [["cups", AT]],
        "notes": ["mine"],
    }


def test_of_a_deleted_record_only_what_is_new_is_written_again() -> None:
    base = record(ALICE, {"first_seen": AT, "notes": ["forgotten"]})
    book = working_copy(base)
    book.edit_user(book.subject_of(alice.npub), noted("new"), at=AT)
    (version,) = published(book)
    written = orjson.loads(again(book, version, base, None).content)
    assert (written["notes"], written["first_seen"]) == (["new"], version.created_at)


def test_a_record_made_after_a_deletion_has_neither_readers_nor_encryption_of_the_deleted() -> None:
    book = working_copy()
    alice_ = book.subject_of(alice.npub)
    book.edit_user(alice_, noted("x"), "tea", at=AT)
    book.encrypt(alice_, at=AT)
    (event,) = published(book)
    assert event.tag("h") == "tea"
    book.forget(event.d)
    book.apply(signed(Draft(5, [["e", event.id], ["k", "30078"]], "", AT + 200)))
    assert notes(book) is None
    book.edit_user(alice_, noted("y"), at=AT)
    assert not book.is_encrypted(alice_)
    (event,) = published(book, AT + 300)
    assert event.tag("h") is None


def kind_5(*tags: list[str], at: int, author: SecretKey = robot) -> Event:
    return author.sign(5, [*tags, ["k", "30078"]], "", at)


@pytest.mark.proves("S-25")
@pytest.mark.parametrize("by", ["id", "address", "another form of the key"])
def test_what_another_machine_forgets_goes_with_the_edits_up_to_then(by: str) -> None:
    book = working_copy()
    alice_, bob_ = book.subject_of(alice.npub), book.subject_of(bob.npub)
    book.edit_user(alice_, noted("stored"), at=AT)
    (event,) = published(book)
    book.see_user(alice_, AT + 102, (("alice", AT),), "coffee")
    for at in (103, 105, 106):
        book.edit_user(alice_, noted(f"{at}"), "tea" if at > 105 else "coffee", at=AT + at)
    book.see_user(alice_, AT + 101, (("alice", AT),), None)
    book.see_user(alice_, AT + 109, (("alice", AT),), None)
    book.edit_user(bob_, noted("of another"), at=AT)
    address = f"30078:{robot.pubkey}:{event.d}"
    full = f"30078:{robot.pubkey}:snowclaw:memory:npub:{alice.pubkey}"
    tag = {"id": ["e", event.id], "address": ["a", address], "another form of the key": ["a", full]}
    if by == "another form of the key":
        book.drop([event])
    assert not book.apply(kind_5(["a", address], at=AT + 105, author=rover))
    assert book.apply(kind_5(tag[by], at=AT + 105))
    memory = book.user(alice.npub)
    assert memory is not None
    assert (memory.notes, memory.first_seen, memory.last_interaction) == (
        ("106",),
        AT + 109,
        AT + 109,
    )
    assert notes(book, bob.npub) == ("of another",)
    version, _ = published(book, AT + 200)
    assert version.tag("h") == "tea"  # nothing of before has a say in who reads it


@pytest.mark.proves("S-25")
def test_a_group_that_another_machine_forgets_has_no_edits_of_before() -> None:
    book = working_copy()
    tea = OfGroup("tea")
    book.edit_group(tea, noted("before"), at=AT)
    book.see_group(tea, AT + 5)
    book.set_members(tea, (("b", "bo"),))
    assert book.apply(kind_5(["a", f"30078:{robot.pubkey}:{TEA}"], at=AT + 5))
    assert (book.group("tea"), book.unsaved) == (None, 0)
    book.edit_group(tea, noted("after"), at=AT + 6)
    memory = book.group("tea")
    assert memory is not None
    assert (memory.notes, memory.members) == (("after",), ())


@pytest.mark.proves("S-25")
@pytest.mark.parametrize("is_own", [True, False], ids=["made here", "applied before"])
def test_a_deletion_that_comes_again_drops_no_edit_made_since(is_own: bool) -> None:  # noqa: FBT001
    """In its second, or with another clock."""
    book = working_copy()
    deletion = kind_5(["a", f"30078:{robot.pubkey}:{ALICE}"], at=AT + 60)
    if is_own:
        book.note_deletion(deletion)
    else:
        book.apply(deletion)
    book.edit_user(book.subject_of(alice.npub), noted("since"), at=AT)
    assert not book.apply(deletion)
    assert notes(book) == ("since",)


@pytest.mark.proves("S-25")
def test_edits_that_are_forgotten_while_they_are_published_are_not_made_again() -> None:
    book = working_copy()
    alice_ = book.subject_of(alice.npub)
    book.edit_user(alice_, noted("before"), at=AT)
    book.next_version(alice_, AT + 1)
    book.edit_user(alice_, noted("after"), at=AT + 9)
    book.apply(kind_5(["a", f"30078:{robot.pubkey}:{ALICE}"], at=AT + 2))
    assert (notes(book), book.has_edits(alice_)) == (("after",), True)
    (version,) = published(book)
    assert orjson.loads(version.content)["notes"] == ["after"]


def test_on_what_cannot_be_read_nothing_is_made() -> None:
    book = working_copy()
    book.edit_user(book.subject_of(alice.npub), noted("new"), at=AT)
    (version,) = published(book)
    with pytest.raises(Invalid, match="would be overwritten"):
        rebased(book.index, version, None, record(ALICE, {"notes": 5}, at=AT + 200), AT + 300)


@pytest.mark.proves("S-30")
def test_many_messages_are_one_change() -> None:
    book = working_copy()
    alice_ = book.subject_of(alice.npub)
    for at in (AT + 5, AT, AT + 9):
        book.see_user(alice_, at, (("alice", AT - 9),), "tea")
        book.see_group(OfGroup("tea"), at)
    assert book.unsaved == 2
    assert book.user(alice.npub) == UserMemory(
        display_names=(("alice", AT - 9),),
        first_seen=AT,
        last_interaction=AT + 9,
        first_seen_group="tea",
    )
    assert book.group("tea") == GroupMemory(last_activity=AT + 9)


def test_who_is_an_owner_is_noted_as_one() -> None:
    book = working_copy()
    book.see_user(book.subject_of(owner.pubkey), AT, (), "tea")
    memory = book.user(owner.npub)
    assert memory is not None
    assert memory.is_owner


@pytest.mark.proves("S-10")
def test_unknown_fields_and_the_h_of_the_stored_version_are_kept() -> None:
    book = working_copy(record(ALICE, {"notes": [], "mood": {"a": [1]}}, ["h", "tea"]))
    book.edit_user(book.subject_of(alice.npub), noted("x"), at=AT)
    (event,) = published(book)
    assert '"mood":{"a":[1]}' in event.content
    assert event.tag("h") == "tea"


def test_a_first_version_is_for_whom_it_was_said_to_be_and_a_later_one_stays_so() -> None:
    book = working_copy()
    book.edit_user(book.subject_of(alice.npub), noted("x"), "tea", at=AT)
    (event,) = published(book)
    assert event.tag("h") == "tea"
    book.edit_user(book.subject_of(alice.npub), noted("y"), at=AT)
    (event,) = published(book)
    assert event.tag("h") == "tea"


def of_tea() -> Event:
    """A record that the group reads."""
    content = orjson.dumps({"notes": ["likes tea"], "first_seen": AT, "last_interaction": AT})
    return robot.sign(30078, [["d", ALICE], ["h", "tea"]], content.decode(), AT)


@pytest.mark.proves("S-33")
def test_what_a_group_may_not_read_keeps_nothing_else_from_being_published() -> None:
    """One note for the owner kept all later ones from being stored, until they were lost."""
    book = working_copy()
    user = book.subject_of(alice.npub)
    book.edit_user(user, noted("looks for another job"), at=AT)
    book.apply(of_tea())
    book.edit_user(user, noted("green"), "tea", at=AT)
    book.edit_user(user, noted("from the board"), "board", at=AT)
    (event,) = published(book)
    assert orjson.loads(event.content)["notes"] == ["likes tea", "green"]
    assert (event.tag("h"), book.unsaved) == ("tea", 2)
    assert notes(book) == ("likes tea", "green", "looks for another job", "from the board")
    assert book.changed() == [user]
    with pytest.raises(Invalid, match="group:tea reads the stored version"):
        book.next_version(user, AT + 200)


@pytest.mark.proves("S-33")
@pytest.mark.parametrize("is_secret", [False, True])
def test_what_a_group_may_not_read_is_kept_for_whom_it_was_noted(*, is_secret: bool) -> None:
    book = working_copy()
    user = book.subject_of(alice.npub)
    if is_secret:
        book.encrypt(user, at=AT)
    book.edit_user(user, noted("from the board"), "board", at=AT + 1)
    book.edit_user(user, noted("looks for another job"), at=AT + 2)
    assert list(book.kept_back()) == []
    book.apply(of_tea())
    book.edit_user(user, noted("green"), "tea", at=AT + 3)
    book.see_user(user, AT + 5, (), "tea")
    book.edit_group(OfGroup("tea"), lambda memory: memory.noted("x"), at=AT)
    first, second = book.kept_back()
    assert [draft.tags for draft, _, _ in (first, second)] == [
        [["d", ALICE], ["h", "board"]],
        [["d", ALICE]],
    ]
    assert [orjson.loads(draft.content)["notes"] for draft, _, _ in (first, second)] == [
        ["from the board"],
        ["looks for another job"],
    ]
    for (draft, is_encrypted, why), at in ((first, AT + 1), (second, AT + 2)):
        assert (draft.created_at, is_encrypted) == (at, is_secret)
        assert str(why) == (
            f"invalid: {ALICE}: group:tea reads the stored version, and must not read what was not"
            " noted for it"
        )


@pytest.mark.proves("S-33")
@pytest.mark.parametrize("where", ["den", None], ids=["a hidden group", "a direct message"])
def test_a_group_is_not_told_when_its_user_was_elsewhere(where: str | None) -> None:
    book = working_copy(of_tea())
    user = book.subject_of(alice.npub)
    book.see_user(user, AT + 50, (), where)
    assert published(book) == []
    book.see_user(user, AT + 60, (), where)
    book.see_user(user, AT + 55, (), "tea")
    (event,) = published(book)
    assert orjson.loads(event.content)["last_interaction"] == AT + 55
    assert book.unsaved == 0


@pytest.mark.proves("S-02")
def test_it_writes_32_hex_newer_than_what_is_under_another_form() -> None:
    book = working_copy(
        record(f"snowclaw:memory:npub:{alice.npub}", {"notes": ["old"]}, at=AT + 900)
    )
    book.edit_user(book.subject_of(alice.npub), noted("new"), at=AT)
    (event,) = published(book, AT)
    assert (event.d, event.created_at) == (ALICE, AT + 901)
    assert notes(book) == ("old", "new")


@pytest.mark.proves("S-02")
def test_for_an_agent_of_the_original_it_writes_npubs() -> None:
    book = working_copy(style=KeyStyle.NPUB)
    book.edit_user(book.subject_of(alice.pubkey), noted("x"), at=AT)
    book.edit_user(book.subject_of(bob.pubkey[:32]), noted("whose npub nobody knows"), at=AT)
    assert [event.d for event in published(book)] == [
        f"snowclaw:memory:npub:{alice.npub}",
        f"snowclaw:memory:npub:{bob.pubkey[:32]}",
    ]


def test_what_was_encrypted_is_to_be_so_again() -> None:
    draft = encrypted(draft_of('{"notes":["x"]}'), KEY, bytes(32))
    book = working_copy(signed(draft))
    alice_ = book.subject_of(alice.npub)
    assert notes(book) == ("x",)
    assert book.is_encrypted(alice_)
    assert not book.is_encrypted(OfGroup("tea"))


@pytest.mark.proves("S-13")
def test_a_locked_record_is_told_and_not_written_over() -> None:
    of_bob = OwnKey.of(bob)
    draft = encrypted(draft_of('{"notes":["x"]}'), of_bob, bytes(32))
    book = working_copy(signed(draft))
    locked = book.unwritable(book.subject_of(alice.npub))
    assert locked is not None
    assert locked.is_locked
    assert (notes(book), [unread.event.d for unread in book.unread()]) == (None, [ALICE])


def test_edits_wait_while_what_is_stored_cannot_be_read() -> None:
    book = working_copy()
    book.edit_user(book.subject_of(alice.npub), noted("x"), at=AT)
    book.apply(record(ALICE, {"notes": "no list"}))
    assert (book.changed(), book.unsaved) == ([], 1)
    book.apply(record(ALICE, {"notes": ["whole again"]}, at=AT + 1))
    (event,) = published(book)
    assert '"notes":["whole again","x"]' in event.content


def test_one_s_own_memory_is_found_by_key_and_by_category() -> None:
    events = [
        signed(agent_memory_draft(AgentMemory(key, key, category), AT + number))
        for number, (category, key) in enumerate(
            [("core", "city"), ("core", "tea:green"), ("daily", "city")]
        )
    ]
    book = working_copy(*events, record(ALICE), record("snowclaw:core:theirs", by=rover))
    assert [memory.key for _, memory in book.memories()] == ["city", "tea:green", "city"]
    assert [memory.category for _, memory in book.memories("city")] == ["daily", "core"]
    assert [memory.key for _, memory in book.memories("core:")] == ["tea:green", "city"]
