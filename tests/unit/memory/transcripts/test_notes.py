"""The notes of a session: tags in order, one thread. D-07, D-10, D-12, D-13."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from relay.memory.transcripts.plan import Paths, Plan
from tests.unit.memory.transcripts.telling import (
    HOME,
    NOW_MS,
    call_block,
    line,
    notes,
    result_block,
    text_block,
    told,
)

if TYPE_CHECKING:
    from relay.nostr.event import Event


def marked(event: Event, mark: str) -> str | None:
    return next((tag[1] for tag in event.tags if tag[0] == "e" and tag[3] == mark), None)


@pytest.mark.proves("D-07")
def test_a_note_has_its_tags_in_order() -> None:
    data = line() + line(
        "assistant",
        slug="quiet-rook",
        version="2.1.42",
        cwd=HOME + "/sub",
        message={
            "model": "claude-opus-4-6",
            "content": [text_block("x"), call_block("t1", "Read", path="a")],
        },
    )
    first, _, second = notes(told(data, Plan(group="tea")))
    assert second.tags == [
        ["d", "s-1"],
        ["session-slug", "quiet-rook"],
        ["e", first.id, "", "root"],
        ["e", notes(told(data, Plan(group="tea")))[1].id, "", "reply"],
        ["ms", "1770669815675"],
        ["seq", "2"],
        ["source", "claude-code"],
        ["source-version", "2.1.42"],
        ["role", "tool_call"],
        ["model", "claude-opus-4-6"],
        ["turn-type", "assistant"],
        ["cwd", "sub"],
        ["split", "1/2"],
        ["tool-id", "t1"],
        ["tool-name", "Read"],
        ["t", "ai-conversation"],
        ["h", "tea"],
    ]
    assert (second.kind, second.created_at) == (1988, 1_770_669_815)


@pytest.mark.proves("D-07")
def test_what_is_not_known_has_no_tag() -> None:
    (note,) = notes(told(b"{}\n"))
    assert [tag[0] for tag in note.tags] == ["d", "ms", "seq", "source", "role", "t"]
    assert note.tag("d") == "the-stem"
    odd = b'{"slug":7,"version":"","type":[],"cwd":null,"message":{"model":{}}}\n'
    assert [tag[0] for tag in notes(told(odd))[0].tags] == ["d", "ms", "seq", "source", "role", "t"]


@pytest.mark.proves("D-10")
def test_a_result_has_the_name_of_the_tool_that_was_called() -> None:
    data = line("assistant", message=[call_block("t1", "Read"), call_block("t2", "Glob")]) + line(
        message=[result_block("t2", "x"), result_block("t1", "y"), result_block("t9", "z")]
    )
    results = [note for note in notes(told(data)) if note.tag("role") == "tool_result"]
    assert [note.tag("tool-name") for note in results] == ["Glob", "Read", None]


@pytest.mark.proves("D-12")
def test_the_root_is_the_first_note_that_somebody_said() -> None:
    data = (
        line("queue-operation", operation="enqueue")
        + line("system", content="start")
        + line("user")
        + line("summary")
        + line("assistant", message="hi")
    )
    queue, system, user, summary, reply = notes(told(data))
    assert [marked(note, "root") for note in (queue, system, user)] == [None, None, None]
    assert [marked(note, "root") for note in (summary, reply)] == [user.id, user.id]
    assert [marked(note, "reply") for note in (queue, system, user, summary, reply)] == [
        None,
        queue.id,
        system.id,
        user.id,
        summary.id,
    ]
    assert [note.tag("seq") for note in (queue, reply)] == ["0", "4"]


@pytest.mark.proves("D-12")
@pytest.mark.parametrize(
    "first",
    [
        line("assistant", message="hi"),
        line("assistant", message=[call_block("t", "X")]),
        line(message=[result_block("t", "x")]),
    ],
)
def test_tools_and_assistants_can_be_the_root(first: bytes) -> None:
    root, reply = notes(told(first + line()))
    assert marked(reply, "root") == root.id


@pytest.mark.proves("D-11")
def test_a_line_without_time_or_session_has_those_of_the_last_that_had() -> None:
    early = b'{"type":"summary"}\n'
    data = early + line(sessionId="a") + early + line(sessionId="b", timestamp="odd") + early
    said = notes(told(data))
    assert [note.tag("d") for note in said] == ["a", "a", "a", "b", "b"]
    assert {note.tag("ms") for note in said} == {"1770669815675"}
    (alone,) = notes(told(early, now_ms=NOW_MS))
    assert (alone.tag("d"), alone.tag("ms")) == ("the-stem", str(NOW_MS))


@pytest.mark.proves("D-11")
def test_a_snapshot_has_its_time_inside() -> None:
    data = (
        line()
        + b'{"type":"file-history-snapshot","snapshot":{"timestamp":"2026-02-09T21:00:00Z"}}\n'
    )
    assert notes(told(data))[1].created_at == 1_770_670_800


@pytest.mark.proves("D-13")
def test_halves_of_surrogate_pairs_are_in_no_event() -> None:
    raw = (
        rb'{"type":"user","cwd":"/\udc00","slug":"\ud800","message":{"content":"a \ud800 b"}}'
        + b"\n"
    )
    note, source = told(raw)
    assert note.content == "a \ufffd b"
    assert (note.tag("session-slug"), note.tag("cwd")) == ("\ufffd", ".")
    assert source.tag("source-data") == raw.decode()[:-1].replace("/" + r"\udc00", r"/\udc00")


@pytest.mark.proves("D-13")
def test_a_long_content_is_cut_between_letters_and_says_how_long_it_was() -> None:
    (exact,) = notes(told(line(message="x" * 48_000)))
    assert (exact.content, exact.tag("truncated")) == ("x" * 48_000, None)
    (over,) = notes(told(line(message="x" + "é" * 24_000)))
    assert over.content == "x" + "é" * 23_999 + "..."
    assert over.tag("truncated") == "48001"
    assert over.tags[-1][0] == "truncated"


@pytest.mark.proves("D-22")
def test_raw_paths_are_left_as_they_are() -> None:
    note, source = told(line(cwd=HOME + "/sub"), Plan(paths=Paths.RAW))
    assert note.tag("cwd") == HOME + "/sub"
    assert not source.has_tag("paths")
    assert source.tag("source-data") == line(cwd=HOME + "/sub").decode()[:-1]


@pytest.mark.proves("D-22")
def test_what_people_read_keeps_its_paths() -> None:
    (note,) = notes(told(line(message=f"see {HOME}/a")))
    assert note.content == f"see {HOME}/a"
