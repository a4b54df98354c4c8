"""A conversation as blocks: folded tools, diffs, lines of other types."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import TYPE_CHECKING, Final

import orjson
import pytest

from relay.memory.transcripts import view
from relay.memory.transcripts.display import notes_in_order
from relay.memory.transcripts.view import (
    MAX_LINES,
    Block,
    Line,
    Speaker,
    Tone,
    blocks,
    lines_of_notes,
    text_of,
)
from tests.cast import robot, rover, stranger
from tests.unit.memory.transcripts.telling import (
    archive,
    call_block,
    line,
    notes,
    result_block,
    text_block,
    told,
)

if TYPE_CHECKING:
    from relay.memory.transcripts.lines import Fields
    from relay.nostr.event import Event
    from relay.nostr.keys import SecretKey

LONG = "\n".join(f"row {number}" for number in range(300))


def seen(data: bytes) -> list[Block]:
    """With the lines beside the notes, as a reader gets them."""
    events = told(data)
    lines: dict[str, Fields] = {
        event.tag("e") or "": json.loads(event.tag("source-data") or "")
        for event in archive(events)
    }
    return blocks(notes_in_order(notes(events)), lines)


def texts(block: Block, tone: Tone) -> list[str]:
    return [found.text for found in block.lines if found.tone is tone]


def test_who_speaks_is_told_apart() -> None:
    data = (
        line(message="go")
        + line("assistant", message=[text_block("I go"), call_block("t", "Bash", command="ls")])
        + line("system", content="compacted")
    )
    found = seen(data)
    assert [block.speaker for block in found] == [
        Speaker.USER,
        Speaker.AGENT,
        Speaker.TOOL,
        Speaker.OTHER,
    ]
    assert [block.folds for block in found] == [False, False, True, False]
    assert found[0].lines == (Line("go"),)
    assert {block.ms for block in found} == {1_770_669_815_675}


def test_a_tool_is_one_block_with_its_whole_input_and_output() -> None:
    data = line("assistant", message=[call_block("t", "Bash", command="c" * 230)]) + line(
        message=[result_block("t", LONG)]
    )
    (block,) = seen(data)
    assert block.head == ("Bash: " + "c" * 230, "→ row 0 (+299 lines)")
    assert texts(block, Tone.DIM) == ["command: " + "c" * 230]
    assert texts(block, Tone.PLAIN) == LONG.splitlines()
    assert not block.is_cut
    (short,) = blocks(notes_in_order(told(data)))
    assert short.head[0].startswith('Bash: {"command": "ccc')
    assert len(short.lines) < 100, "of the note alone"


def test_a_tool_call_is_shown_with_what_its_author_wrote_of_it_alone() -> None:
    """Another key's call under the same tool id was shown as what this agent had run."""

    def used(command: str, at: int, by: SecretKey) -> list[Event]:
        when = [f"2026-02-09T20:43:{at + seconds:02}.000Z" for seconds in range(2)]
        edit = call_block("t", "Edit", file_path=command)
        hunk = {
            "oldStart": 1,
            "oldLines": 1,
            "newStart": 1,
            "newLines": 1,
            "lines": [f"+{command}"],
        }
        return told(
            line("assistant", message=[edit], timestamp=when[0])
            + line(
                message=[result_block("t", f"result of {command}")],
                toolUseResult={"structuredPatch": [hunk]},
                timestamp=when[1],
            ),
            by=by,
        )

    for first, second in ((robot, rover), (rover, robot)):
        events = [*used("first", 0, first), *used("second", 1, second)]
        told_notes = notes_in_order(notes(events))
        assert {each.author for each in told_notes} == {robot.pubkey, rover.pubkey}
        lines = lines_of_notes(notes(events), archive(events), "/w")
        for found in (blocks(told_notes, lines), blocks(told_notes)):
            assert [(each.author, each.head[-1]) for each in found] == [
                (first.pubkey, "→ result of first"),
                (second.pubkey, "→ result of second"),
            ]
        assert [texts(each, Tone.ADDED) for each in blocks(told_notes, lines)] == [
            ["+first"],
            ["+second"],
        ]


def test_a_failed_tool_says_so() -> None:
    failed = {**result_block("t", "no such file"), "is_error": True}
    data = line("assistant", message=[call_block("t", "Read", file_path="a")])
    (block,) = seen(data + line(message=[failed]))
    assert block.head[1] == "→ failed: no such file"
    assert texts(block, Tone.FAULT) == ["no such file"]


def test_a_change_of_a_file_is_a_diff() -> None:
    change = {"old_string": "a\nb\nc", "new_string": "a\nB\nc"}
    edit = call_block("t", "Edit", file_path="x.py", **change)
    (block,) = seen(line("assistant", message=[edit]))
    assert block.head == ("Edit: x.py",)
    assert [each.text for each in block.lines] == ["@@ -1,3 +1,3 @@", " a", "-b", "+B", " c"]
    assert (texts(block, Tone.REMOVED), texts(block, Tone.ADDED)) == (["-b"], ["+B"])
    several = call_block("t", "MultiEdit", file_path="x.py", edits=[change, change])
    assert len(texts(seen(line("assistant", message=[several]))[0], Tone.ADDED)) == 2
    written = call_block("t", "Write", file_path="x.py", content="one\ntwo")
    assert texts(seen(line("assistant", message=[written]))[0], Tone.ADDED) == ["+one", "+two"]
    large = call_block("t", "Edit", file_path="x", old_string="a\n" * 11_000, new_string="b")
    assert len(seen(line("assistant", message=[large]))[0].lines) == MAX_LINES + 1


def test_only_the_lines_that_are_shown_are_made(monkeypatch: pytest.MonkeyPatch) -> None:
    """16 texts of 240,000 empty lines took a thread for 4 s."""
    made: list[Tone] = []

    def noting(text: str, tone: Tone = Tone.PLAIN) -> Line:
        made.append(tone)
        return Line(text, tone)

    monkeypatch.setattr(view, "Line", noting)
    monkeypatch.setattr(view, "MAX_LINES", 50)
    empty = "\n" * 1_000
    hunk = {"lines": [""] * 1_000}
    for data in (
        line(message=empty + "."),
        line("assistant", message=[call_block("t", "Bash", command=empty)]),
        line("assistant", message=[call_block("t", "Write", content=empty)]),
        line("assistant", message=[call_block("t", "Edit", old_string=empty, new_string=empty)]),
        line("assistant", message=[call_block("t", "Read", path="a")])
        + line(message=[result_block("t", empty)]),
        line("assistant", message=[call_block("t", "Edit", path="a")])
        + line(message=[result_block("t", empty)], toolUseResult={"structuredPatch": [hunk, hunk]}),
    ):
        made.clear()
        (block,) = seen(data)
        assert len(made) == len(block.lines) == 51
        assert int(block.lines[-1].text.strip("(+ lines)")) >= 950


def test_the_patch_that_was_made_counts_more_than_what_was_asked_for() -> None:
    edit = call_block("t", "Edit", file_path="x.py", old_string="b", new_string="B")
    hunk = {"oldStart": 7, "oldLines": 2, "newStart": 7, "newLines": 2, "lines": [" a", "-b", "+B"]}
    data = line("assistant", message=[edit]) + line(
        message=[result_block("t", "done")], toolUseResult={"structuredPatch": [hunk, 5]}
    )
    (block,) = seen(data)
    assert [each.text for each in block.lines][:4] == ["@@ -7,2 +7,2 @@", " a", "-b", "+B"]


def test_an_output_that_is_a_diff_has_its_tones() -> None:
    output = "- a list\ndiff --git a/x b/x\n--- a/x\n+++ b/x\n@@ -1 +1 @@\n-b\n+B\n c"
    data = line("assistant", message=[call_block("t", "Bash", command="git diff")])
    (block,) = seen(data + line(message=[result_block("t", output)]))
    assert "- a list" in texts(block, Tone.PLAIN)
    assert texts(block, Tone.REMOVED) == ["--- a/x", "-b"]
    assert texts(block, Tone.HUNK) == ["@@ -1 +1 @@"]


def test_lines_of_other_types_have_their_type_and_text() -> None:
    data = (
        line() + b'{"type":"summary","summary":"Tea"}\n{"type":"custom-title","customTitle":"T"}\n'
    )
    _, summary, title = seen(data)
    assert [(each.title, each.lines, each.is_quiet) for each in (summary, title)] == [
        ("summary", (Line("Tea"),), False),
        ("custom-title", (Line("T"),), False),
    ]
    assert text_of({"type": "mode", "uuid": "u"}) == ""
    assert text_of({"type": "mode", "uuid": "u", "mode": "plan"}) == '{"mode":"plan"}'


def test_thoughts_are_quiet() -> None:
    thought = {"type": "thinking", "thinking": "hm\nhm", "signature": "x"}
    (block,) = seen(line("assistant", message=[thought]))
    assert (block.is_quiet, texts(block, Tone.DIM)) == (True, ["hm", "hm"])


def test_words_are_found_in_head_and_lines() -> None:
    data = line("assistant", message=[call_block("t", "Bash", command="make TEA")])
    (block,) = seen(data + line(message=[result_block("t", "one\nGreen")]))
    assert block.contains("tea")
    assert block.contains("green")
    assert not block.contains("milk")


def test_odd_lines_are_shown_all_the_same() -> None:
    deep: object = "x"
    for _ in range(50):
        deep = [deep]
    odd = call_block("t", "Edit", old_string=1, new_string=None, edits=["x", 7], deep=deep)
    result = {"type": "tool_result", "tool_use_id": 5, "content": {"a": 1}}
    data = line("assistant", message=[odd]) + line(
        message=[result], toolUseResult={"structuredPatch": 7}
    )
    assert len(seen(data)) == 2


DEEP: Final = ("[" * 300 + "]" * 300, '{"a":' * 300 + "1" + "}" * 300)
HALVES: Final = r'{"summary": "\ud800", "output": "\ud800", "mode": "\ud800", "message": "\ud800"}'


@pytest.mark.parametrize(
    ("role", "content"),
    [
        ("permission_request", r'{"tool_name": "\ud800", "tool_input": {"\ud800": "\ud800"}}'),
        *(("permission_request", f'{{"tool_input": {{"a": {deep}}}}}') for deep in DEEP),
        ("permission_request", rf'{{"tool_input": {{"a": {9**30}, "b": "\ud800"}}}}'),
        ("permission_response", HALVES),
        ("tool_result", HALVES),
        ("set_permission_mode", HALVES),
        ("user", HALVES),
    ],
)
def test_no_note_of_anybody_ends_the_view_of_a_session(role: str, content: str) -> None:
    """One with half a surrogate pair, or nested deeply, did."""
    event = stranger.sign(1988, [["d", "s"], ["role", role]], content, 0)
    assert orjson.dumps([asdict(block) for block in blocks(notes_in_order([event]))])


@pytest.mark.parametrize("value", [r'"\ud800"', *DEEP])
@pytest.mark.parametrize(
    "source",
    [
        '{"type": "x", "b": VALUE}',
        '{"type": "x", "customTitle": VALUE}',
        '{"type": "user", "message": {"content": [{"type": "thinking", "thinking": VALUE}]}}',
        '{"message": {"content": [{"type": "tool_use", "id": "t", "name": VALUE}]}}',
        '{"message": {"content": [{"type": "tool_use", "id": "t", "input": {"a": VALUE}}]}}',
        '{"message": {"content": [{"type": "tool_use", "id": "t", "name": "Write",'
        ' "input": {"content": VALUE, "old_string": VALUE, "new_string": ""}}]}}',
        '{"message": {"content": [{"type": "tool_result", "tool_use_id": "t", "content": VALUE}]},'
        ' "toolUseResult": {"structuredPatch": [{"oldStart": VALUE, "lines": [VALUE]}]}}',
    ],
)
def test_no_line_of_anybody_ends_the_view_of_a_session(source: str, value: str) -> None:
    tags = [["d", "s"], ["role", "tool_call"], ["tool-id", "t"]]
    source = source.replace("VALUE", value)
    event = stranger.sign(1988, [*tags, ["source-data", source]], "", 0)
    quiet = stranger.sign(1988, [["d", "s"], ["source-data", source]], "", 1)
    lines = lines_of_notes([event, quiet], [], ".")
    assert len(lines) == 2
    seen = blocks(notes_in_order([event, quiet]), lines)
    texts = [text_of(fields) for fields in lines.values()]
    assert orjson.dumps([[asdict(block) for block in seen], texts])


def test_lines_that_a_long_directory_makes_too_long_are_shown_with_their_tokens() -> None:
    events = told(line(cwd="/w", message="see /w") + line(cwd="/w", message="/w " * 10_000))
    lines = lines_of_notes(notes(events), archive(events), "/" + "x" * 30_000)
    first, second = lines.values()
    assert str(first["cwd"]).endswith("x")
    assert second["cwd"] == "${CWD}"


def test_edits_are_compared_once_and_only_so_many_of_them(monkeypatch: pytest.MonkeyPatch) -> None:
    """One line with 800 edits took 0.8 s, and as long again for each note with its tool id."""
    compared: list[int] = []

    def noting(before: list[str], after: list[str], **_: object) -> list[str]:
        compared.append(len(before) * len(after))
        return []

    monkeypatch.setattr(view, "unified_diff", noting)
    text = "\n".join("ab" * 32)
    edits = [{"old_string": text, "new_string": text[::-1]}] * 100
    block = call_block("t", "Edit", edits=edits)
    data = b"".join(line("assistant", message=[call_block("t", "Edit")]) for _ in range(3))
    data += line("assistant", message=[block])
    found = seen(data)
    assert len(found) == 4
    assert 0 < sum(compared) <= 20_000 + 4 * 400
    assert max(len(each.lines) for each in found) == MAX_LINES + 1
