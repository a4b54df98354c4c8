"""The readable texts of lines (D-08, D-09)."""

from __future__ import annotations

import pytest

from relay.memory.transcripts.blocks import NoteText, note_texts
from tests.unit.memory.transcripts.telling import call_block, result_block, text_block


def by(type_: str, content: object, **fields: object) -> list[NoteText]:
    return note_texts({"type": type_, "message": {"role": type_, "content": content}, **fields})


@pytest.mark.proves("D-08")
def test_what_a_user_says_is_one_note() -> None:
    assert by("user", "hello") == [NoteText("user", "hello")]
    assert by("user", "Human: Human: hello") == [NoteText("user", "Human: hello")]
    assert by("user", [text_block("one, "), {"type": "image"}, text_block("two")]) == [
        NoteText("user", "one, two")
    ]
    assert by("user", None) == by("user", [7, "x"]) == [NoteText("user", "")]
    assert (
        note_texts({"type": "user"})
        == note_texts({"type": "user", "message": "text"})
        == [NoteText("user", "")]
    )


@pytest.mark.proves("D-08", "D-09")
def test_each_tool_result_is_a_note_and_so_is_the_text_beside_it() -> None:
    content = [
        result_block("t1", "done"),
        {"type": "image"},
        text_block("and stop"),
        result_block("t2", [text_block("a"), {"type": "image"}, text_block("b"), {}]),
    ]
    assert by("user", content) == [
        NoteText("tool_result", "done", "t1"),
        NoteText("user", "and stop"),
        NoteText("tool_result", "a\n[image]\nb\n[]", "t2"),
    ]


@pytest.mark.proves("D-08")
def test_a_long_result_is_cut_at_500_characters() -> None:
    assert by("user", [result_block("t", "é" * 500)])[0].content == "é" * 500
    assert by("user", [result_block("t", "é" * 501)])[0].content == "é" * 500 + "..."
    assert by("user", [result_block("t", None)])[0].content == ""


@pytest.mark.proves("D-08", "D-09")
def test_an_assistant_has_a_note_for_each_block_it_is_known_by() -> None:
    content = [
        {"type": "thinking", "thinking": "hm"},
        text_block("I look."),
        call_block("t1", "Glob", pattern="**/*.rs", n=1.5),
        {"type": "server_tool_use"},
    ]
    assert by("assistant", content) == [
        NoteText("assistant", "I look."),
        NoteText("tool_call", 'Glob: {"pattern": "**/*.rs", "n": 1.5}', "t1", "Glob"),
    ]
    assert by("assistant", "plain") == [NoteText("assistant", "plain")]


@pytest.mark.proves("D-09")
def test_a_line_that_only_thinks_is_one_empty_note() -> None:
    assert by("assistant", [{"type": "thinking", "thinking": "x"}]) == [NoteText("assistant", "")]
    assert by("assistant", []) == by("assistant", None) == [NoteText("assistant", "")]


@pytest.mark.proves("D-08")
def test_what_a_tool_is_given_is_cut_at_200_characters() -> None:
    given = '{"command": "' + "é" * 300 + '"}'
    (call,) = by("assistant", [call_block("t", "Bash", command="é" * 300)])
    assert call.content == "Bash: " + given[:200] + "..."


@pytest.mark.proves("D-08")
@pytest.mark.parametrize(
    ("fields", "text"),
    [
        ({"message": "half way"}, "half way"),
        ({"message": {"content": [text_block("half")]}, "data": {"type": "x"}}, "half"),
        ({"data": {"type": "hook", "hookName": "Pre:Read"}}, "[progress: hook Pre:Read]"),
        ({"data": {"type": "hook", "hookEvent": "Pre"}}, "[progress: hook Pre]"),
        ({"data": {"type": "bash"}}, "[progress: bash]"),
        ({"data": {"type": 7}}, "[progress]"),
        ({}, "[progress]"),
    ],
)
def test_progress_says_of_what(fields: dict[str, object], text: str) -> None:
    assert note_texts({"type": "progress", **fields}) == [NoteText("progress", text)]


@pytest.mark.proves("D-08")
def test_other_lines_have_a_note_too() -> None:
    queue: dict[str, object] = {"type": "queue-operation", "operation": "enqueue"}
    assert note_texts(queue) == [NoteText("queue-operation", "[queue: enqueue]")]
    for odd in (None, "", 7):
        queue = {"type": "queue-operation", "operation": odd}
        assert note_texts(queue) == [NoteText("queue-operation", "[queue]")]
    snapshot = [NoteText("file-history-snapshot", "[file history snapshot]")]
    assert note_texts({"type": "file-history-snapshot"}) == snapshot
    assert note_texts({"type": "system", "content": "compacted"}) == [
        NoteText("system", "compacted")
    ]
    assert note_texts({"type": "system", "content": ["x"]}) == [NoteText("system", "")]
    others: list[dict[str, object]] = [{"type": "summary"}, {"type": None}, {"type": []}, {}]
    for other in others:
        assert note_texts(other) == [NoteText("unknown", "")]


def test_a_tool_without_name_or_id_is_shown_all_the_same() -> None:
    assert by("assistant", [{"type": "tool_use"}]) == [NoteText("tool_call", ": null")]


def test_input_nested_too_deep_to_be_written_is_left_out() -> None:
    deep: object = 0
    for _ in range(2000):
        deep = [deep]
    assert by("assistant", [call_block("t", "X", x=deep)])[0].content == "X: ..."
