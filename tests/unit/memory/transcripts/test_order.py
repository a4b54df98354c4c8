"""The order of notes: by reply chain, by time where it is broken (D-25)."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from relay.memory.transcripts.order import order_of, ordered
from relay.nostr.event import Event
from tests.cast import alice, robot
from tests.unit.memory.transcripts.telling import line, notes, told

if TYPE_CHECKING:
    import random

    from relay.nostr.keys import SecretKey


def chain(length: int, at: int = 1, *, author: SecretKey = robot) -> list[Event]:
    """Notes of one second, in the form of the document."""
    found: list[Event] = []
    for number in range(length):
        thread = []
        if found:
            thread = [["e", found[0].id, "", "root"], ["e", found[-1].id, "", "reply"]]
        tags = [["d", "s"], *thread, ["role", "user"]]
        found.append(author.sign(1988, tags, f"{at} {number}", at))
    return found


@pytest.mark.proves("D-25")
@given(st.randoms(use_true_random=False), st.integers(1, 60))
def test_a_chain_of_one_second_is_in_its_order(random_: random.Random, length: int) -> None:
    whole = chain(length)
    shuffled = whole * 2
    random_.shuffle(shuffled)
    found = ordered(shuffled)
    assert (list(found.events), found.is_chain, found.notice) == (whole, True, None)


@pytest.mark.proves("D-25")
def test_parts_of_a_broken_chain_stay_together_the_first_note_first() -> None:
    whole = chain(12)
    found = ordered(whole[:5] + whole[6:])
    assert list(found.events) == whole[:5] + whole[6:]
    assert found.notice == "the reply chain is broken: 1 note is placed by time"
    assert ordered(whole[1:5] + whole[6:]).by_time == 2


@pytest.mark.proves("D-25")
def test_parts_are_merged_by_time() -> None:
    def note(at: int, role: str, *tags: list[str]) -> Event:
        return robot.sign(1988, [["d", "s"], ["role", role], *tags], "", at)

    first = note(1, "user")
    second = note(9, "assistant", ["e", first.id, "", "root"], ["e", first.id, "", "reply"])
    mode = note(5, "set_permission_mode")
    asked = note(6, "permission_request")
    answer = note(3, "permission_response", ["e", asked.id])
    found = ordered([second, answer, mode, asked, first])
    assert list(found.events) == [first, mode, asked, answer, second]
    assert (found.notice, found.is_chain) == (None, False)


def test_a_note_follows_the_one_it_replies_to_whatever_its_time_says() -> None:
    data = b"".join(
        line(message=text, timestamp=f"2026-02-09T20:43:{second}.000Z")
        for text, second in (("one", 30), ("two", 10), ("three", 20))
    )
    said = notes(told(data))
    assert sorted(said, key=order_of) != said
    assert list(ordered(said[::-1]).events) == said


@pytest.mark.proves("D-25")
def test_notes_without_a_chain_are_placed_by_time_and_counted() -> None:
    loose = [robot.sign(1988, [["d", "s"], ["role", "user"]], str(at), at) for at in (3, 1, 2)]
    found = ordered(loose)
    assert [note.content for note in found.events] == ["1", "2", "3"]
    assert found.notice == "the reply chain is broken: 2 notes are placed by time"


def test_each_author_has_a_first_note() -> None:
    both = chain(3) + chain(3, author=alice)
    assert ordered(both).notice is None


def test_a_circle_of_replies_ends() -> None:
    def note(id_: str, target: str) -> Event:
        tags = [["e", target, "", "reply"]]
        return Event(
            id=id_, pubkey="", created_at=1, kind=1988, tags=tags, content="", sig="", raw=b""
        )

    circle = [note("a", "b"), note("b", "a"), note("c", "c")]
    assert {event.id for event in ordered(circle).events} == {"a", "b", "c"}
