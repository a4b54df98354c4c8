"""relay/memory/nmem/records.py: drafts, decoding and closed sessions."""

from __future__ import annotations

import json
from dataclasses import replace
from hashlib import sha256
from typing import TYPE_CHECKING

import pytest

from relay.memory.nmem.records import (
    Observation,
    Pin,
    Prompt,
    Session,
    Source,
    closed,
    hash_in,
    observation_draft,
    pin_draft,
    pinned_ids,
    project_of,
    prompt_draft,
    record_in,
    session_draft,
    session_of,
)
from relay.memory.nmem.summary import EMPTY_SESSION, Summary
from relay.memory.unreadable import UnreadableRecord
from tests.cast import alice, owner, robot
from tests.contract.writing import unsigned
from tests.unit.memory.nmem import making
from tests.unit.memory.nmem.making import MADE, NOW

if TYPE_CHECKING:
    from relay.memory.draft import Draft
    from relay.nostr.event import Event

OPEN = Session("s", "rook", NOW)
HASH = "0" * 64


def sent(draft: Draft) -> Event:
    return unsigned(robot, draft.kind, draft.tags, draft.content, draft.created_at)


@pytest.mark.proves("M-01")
def test_d_ends_with_the_hash_of_what_is_published() -> None:
    draft = observation_draft(replace(MADE, content="größer"), "rook")
    assert draft.d == f"nmem:obs:s:{sha256(draft.content.encode()).hexdigest()}"
    assert hash_in(draft.d) == draft.d[-64:]
    said = prompt_draft(Prompt("s", NOW, Source.AGENT, "hm"))
    assert said.d == f"nmem:prompt:s:{sha256(said.content.encode()).hexdigest()}"
    assert said.tags[1:] == [["s", "s"], ["t", "nmem"], ["t", "source:agent"]]


@pytest.mark.proves("M-03")
def test_what_is_recorded_twice_is_stored_under_one_d() -> None:
    assert observation_draft(MADE, "rook") == observation_draft(MADE, "rook")
    assert observation_draft(MADE, "rook").d != observation_draft(replace(MADE, timestamp=1), "").d


@pytest.mark.proves("M-01")
def test_a_record_bears_its_own_time() -> None:
    assert observation_draft(MADE, "rook").created_at == NOW
    assert prompt_draft(Prompt("s", 5, Source.USER, "x")).created_at == 5


@pytest.mark.proves("M-01", "M-04")
def test_a_session_is_newer_with_each_version() -> None:
    ended = replace(OPEN, ended_at=NOW + 60)
    assert session_draft(OPEN).created_at == NOW
    assert session_draft(ended, last=NOW).created_at == NOW + 60
    assert session_draft(ended, last=NOW + 60).created_at == NOW + 61
    assert session_draft(ended, last=NOW + 90).created_at == NOW + 91
    assert pin_draft(Pin(HASH, is_pinned=False, at=7), last=7).created_at == 8
    opened = json.loads(session_draft(OPEN).content)
    assert (opened["ended_at"], opened["signature"], opened["summary"]) == (None, None, None)


def test_a_record_of_a_group_names_it_last() -> None:
    for draft in (
        session_draft(OPEN, group="tea"),
        observation_draft(MADE, "rook", "tea"),
        prompt_draft(Prompt("s", NOW, Source.USER, "x"), "tea"),
        pin_draft(Pin(HASH, is_pinned=True, at=1), group="tea"),
    ):
        assert draft.tags[-1] == ["h", "tea"]


@pytest.mark.parametrize(
    "record",
    [
        replace(MADE, session="a:b", prompt=HASH, file_path="/x", metadata={"failed": True}),
        Observation("s", NOW, "of_others", "Somewhere", ""),
    ],
)
def test_an_observation_is_read_as_it_was_written(record: Observation) -> None:
    event = sent(observation_draft(record, "rook"))
    assert record_in(event) == record
    assert (session_of(event), project_of(event)) == (record.session, "rook")


def test_other_records_are_read_as_they_were_written() -> None:
    summary = Summary("tea", ("a", "b"), next_steps=("c",), notes={"why": None})
    ended = Session("s:1", "rook", 1, 2, (("command", 2), ("marker", 1)), summary)
    for draft, record in (
        (session_draft(OPEN), OPEN),
        (session_draft(ended), ended),
        (prompt_draft(Prompt("s", 3, Source.AGENT, "x")), Prompt("s", 3, Source.AGENT, "x")),
        (pin_draft(Pin(HASH, is_pinned=False, at=4)), Pin(HASH, is_pinned=False, at=4)),
    ):
        assert record_in(sent(draft)) == record
    assert session_of(sent(session_draft(ended))) == "s:1"


def test_a_pin_without_words_is_a_pin() -> None:
    assert record_in(making.pin(HASH, "{}")) == Pin(HASH, is_pinned=True, at=NOW)


def test_a_time_that_a_file_can_hold_is_read() -> None:
    last = record_in(making.observation(timestamp=2**63 - 1))
    assert isinstance(last, Observation)
    assert last.timestamp == 2**63 - 1


def test_what_names_no_project_has_none() -> None:
    assert project_of(making.observation()) is None


@pytest.mark.parametrize(
    ("event", "why"),
    [
        (unsigned(robot, 1, [["d", "nmem:session:s"]], "{}"), "not a record of nmem"),
        (
            making.event(78, "anamnesis:memory:x", "{}"),
            "d must be nmem:obs:<session>:<sha256 of content> or "
            "nmem:prompt:<session>:<sha256 of content>",
        ),
        (making.observation(metadata=[]), "content.metadata must be an object or null"),
        (making.observation(timestamp=2**63), "content.timestamp is no time"),
        (making.session(started_at=-(2**64 - 1) // 2 - 5), "content.started_at must be an integer"),
        (making.session(ended_at=2**63), "content.ended_at is no time"),
        (making.observation(content="\ud800"), "content cannot be written again"),
        (
            making.hashed(
                "nmem:obs:",
                making.observation().content.replace(
                    '"metadata": null', '"metadata": {"a":' + "[" * 300 + "]" * 300 + "}"
                ),
            ),
            "content cannot be written again",
        ),
    ],
    ids=["kind", "system", "field", "time", "float", "end", "surrogate", "deep"],
)
def test_what_cannot_be_read_says_why_and_raises_nothing(event: Event, why: str) -> None:
    assert record_in(event) == UnreadableRecord(event, why)


# -- the end of a session -------------------------------------------------------------------------


@pytest.mark.proves("M-04")
def test_a_signature_counts_types_by_number_and_name() -> None:
    seen = ["search", "command", "marker", "command", "command", "marker", "github"]
    ended = closed(OPEN, NOW + 9, seen)
    assert ended.signature == (("command", 3), ("marker", 2), ("github", 1), ("search", 1))
    assert (ended.ended_at, ended.summary) == (NOW + 9, None)


@pytest.mark.proves("M-06")
def test_fewer_than_three_observations_are_no_session_to_speak_of() -> None:
    assert closed(OPEN, NOW, []).summary == EMPTY_SESSION
    assert closed(OPEN, NOW, []).signature == ()
    assert closed(OPEN, NOW, ["command"] * 2).summary == EMPTY_SESSION
    assert closed(OPEN, NOW, ["command"] * 3).summary is None


@pytest.mark.proves("M-06")
def test_a_session_that_goes_on_after_it_stopped_is_empty_no_more() -> None:
    first = closed(OPEN, NOW, ["command"])
    assert closed(first, NOW + 5, ["command"] * 4).summary is None
    told = replace(first, summary=Summary("tea"))
    assert closed(told, NOW + 5, ["command"] * 4).summary == Summary("tea")


def test_a_clock_that_was_set_back_ends_no_session_before_its_start() -> None:
    assert closed(OPEN, NOW - 100, []).ended_at == NOW


# -- pins -----------------------------------------------------------------------------------------


@pytest.mark.proves("M-07")
def test_pins_of_the_author_and_of_owners_count() -> None:
    yes, no = Pin(HASH, is_pinned=True, at=1), Pin(HASH, is_pinned=False, at=2)
    authors, owners = {HASH: robot.pubkey}, {owner.pubkey}

    def pinned(*pins: tuple[str, Pin]) -> frozenset[str]:
        return pinned_ids(pins, authors, owners)

    assert pinned((robot.pubkey, yes)) == pinned((owner.pubkey, yes)) == {HASH}
    assert pinned((robot.pubkey, no), (owner.pubkey, yes)) == {HASH}
    assert pinned() == pinned((alice.pubkey, yes)) == pinned((robot.pubkey, no)) == frozenset()
    assert pinned_ids([(robot.pubkey, yes)], {}, owners) == frozenset()
