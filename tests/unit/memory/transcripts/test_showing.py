"""A conversation for display (D-25, D-26); golden cases: extra.json."""

from __future__ import annotations

from typing import Any

import pytest

from relay.memory.transcripts.display import (
    Decision,
    Message,
    Note,
    Permission,
    Role,
    ToolUse,
    decision_of,
    entries,
    mode_of,
    note_of,
    notes_in_order,
    output_of,
)
from relay.memory.transcripts.order import order_of
from relay.memory.transcripts.view import blocks
from relay.nostr.event import Event
from tests.cast import robot, rover
from tests.golden import document
from tests.unit.memory.transcripts.telling import call_block, line, result_block, text_block, told

EXTRA = document("memory/conversation/expected/extra.json")


def event(role: str, content: str = "", at: int = 1, **tags: str) -> Event:
    named = [[name.replace("_", "-"), value] for name, value in tags.items()]
    return robot.sign(1988, [["d", "s"], ["role", role], *named], content, at)


def note(role: str, content: str = "", **tags: str) -> Note:
    return note_of(event(role, content, 1, **tags))


def golden_event(fields: dict[str, Any]) -> Event:
    return Event(**{"pubkey": "", "kind": 1988, "content": "", "sig": "", **fields}, raw=b"")


@pytest.mark.proves("D-25")
def test_notes_are_ordered_by_millisecond_number_and_id() -> None:
    order = EXTRA["order"]
    found = sorted(map(golden_event, order["events"]), key=order_of)
    assert [each.id for each in found] == order["sorted_ids"]
    assert [each.id for each in notes_in_order(map(golden_event, order["events"]))] == (
        order["sorted_ids"]
    )


@pytest.mark.proves("D-25")
def test_a_note_without_time_goes_by_its_second_and_an_odd_number_is_last() -> None:
    assert order_of(event("user", at=7))[:2] == (7000, 4_294_967_295)
    assert order_of(event("user", at=7, ms="-1", seq="x"))[:2] == (7000, 4_294_967_295)
    assert order_of(event("user", at=7, ms="12", seq="3"))[:2] == (12, 3)


def test_a_note_is_shown_once_and_nothing_else_is() -> None:
    once = event("user", "hi")
    other = robot.sign(1989, [["d", "s"], ["source-data", "x"]], "", 1)
    assert [each.id for each in notes_in_order([once, other, once])] == [once.id]


@pytest.mark.proves("D-26")
@pytest.mark.parametrize(
    "role",
    [
        "user",
        "assistant",
        "tool_call",
        "tool_result",
        "system",
        "progress",
        "queue-operation",
        "file-history-snapshot",
        "compaction_complete",
        "permission_request",
        "permission_response",
        "set_permission_mode",
        "interrupt",
        "unknown",
    ],
)
def test_each_role_is_read(role: str) -> None:
    assert note(role).role.value == role


def test_a_role_that_nobody_knows_is_unknown() -> None:
    assert note("boss").role is Role.UNKNOWN
    assert note_of(robot.sign(1988, [["d", "s"]], "hi", 1)).role is Role.UNKNOWN


@pytest.mark.proves("D-09")
def test_notedecks_empty_note_of_one_tool_is_a_call() -> None:
    assert note("assistant", tool_name="Read", tool_id="t").role is Role.TOOL_CALL
    assert note("assistant", "text", tool_name="Read").role is Role.ASSISTANT
    assert note("assistant").role is Role.ASSISTANT


def test_a_tool_is_folded_with_what_came_of_it() -> None:
    data = (
        line(message="go")
        + line("assistant", message=[call_block("t1", "Read"), call_block("t2", "Glob")])
        + line(message=[result_block("t2", "two"), result_block("t1", "one"), text_block("stop")])
    )
    go, read, glob, stop = entries(notes_in_order(told(data)))
    assert isinstance(go, Message)
    assert isinstance(stop, Message)
    assert go.note.content == "go"
    assert stop.note.content == "stop"
    for entry, name, text in ((read, "Read", "one"), (glob, "Glob", "two")):
        assert isinstance(entry, ToolUse)
        assert entry.call is not None
        assert entry.output is not None
        assert (entry.name, entry.output.text) == (name, text)


def test_an_output_without_call_and_a_call_without_output_stand_alone() -> None:
    lost, call, twice, again = entries(
        [
            note("tool_result", "lost", tool_id="t0", tool_name="Bash"),
            note("tool_call", "Read: {}", tool_id="t1", tool_name="Read"),
            note("tool_call", "x"),
            note("tool_result", "y", tool_id="t2"),
        ]
    )
    assert isinstance(lost, ToolUse)
    assert (lost.call, lost.name) == (None, "Bash")
    assert isinstance(call, ToolUse)
    assert (call.output, call.name) == (None, "Read")
    assert isinstance(twice, ToolUse)
    assert twice.name == ""
    assert isinstance(again, ToolUse)
    assert again.call is None


def test_without_ids_an_output_is_that_of_the_first_open_call() -> None:
    roles = ("tool_call", "tool_call", "tool_result", "tool_result", "tool_result")
    first, second, lost = entries([note(role, str(at)) for at, role in enumerate(roles)])
    assert isinstance(first, ToolUse)
    assert isinstance(second, ToolUse)
    assert isinstance(lost, ToolUse)
    found = [entry.output.text for entry in (first, second, lost) if entry.output is not None]
    assert (found, lost.call) == (["2", "3", "4"], None)


def test_a_second_output_of_one_call_is_not_lost() -> None:
    call = note("tool_call", "x", tool_id="t")
    first, second = note("tool_result", "1", tool_id="t"), note("tool_result", "2", tool_id="t")
    folded = entries([call, first, second])
    outputs = [entry.output for entry in folded if isinstance(entry, ToolUse)]
    assert [output and output.text for output in outputs] == ["1", "2"]


@pytest.mark.proves("D-26")
def test_an_output_may_have_a_summary() -> None:
    both = output_of(note("tool_result", '{"summary":"3 files","output":"a b c"}'))
    assert (both.summary, both.text) == ("3 files", "a b c")
    for plain in ("text", '{"other":1}', "[1]", ""):
        output = output_of(note("tool_result", plain))
        assert (output.summary, output.text) == ("", plain)


@pytest.mark.proves("D-26")
def test_an_answer_is_folded_with_what_was_asked() -> None:
    asked, answered = map(golden_event, EXTRA["permission"])
    (entry,) = entries(notes_in_order([answered, asked]))
    assert isinstance(entry, Permission)
    assert (entry.tool_name, entry.tool_input) == ("Bash", {"command": "make"})
    assert entry.decision == Decision(note_of(answered), is_allowed=True)
    (open_,) = entries(notes_in_order([asked]))
    assert isinstance(open_, Permission)
    assert open_.decision is None


@pytest.mark.proves("D-26")
def test_an_answer_may_stand_in_a_thread() -> None:
    ask = event("permission_request")
    tags = [
        ["d", "s"],
        ["role", "permission_response"],
        [],
        ["p", robot.pubkey],
        ["e", "0" * 64, "", "root"],
        ["e", "1" * 64, "", "reply"],
        ["e", ask.id],
    ]
    answer = note_of(robot.sign(1988, tags, '{"decision":"allow"}', 1))
    assert answer.answers == ask.id
    (entry,) = entries([note_of(ask), answer])
    assert isinstance(entry, Permission)
    assert entry.decision is not None


@pytest.mark.proves("D-26")
def test_an_answer_belongs_to_its_request_by_perm_id_too_and_the_first_counts() -> None:
    folded = entries(
        [
            note("permission_request", "odd", perm_id="p", tool_name="Bash"),
            note("permission_response", '{"decision":"allow"}', perm_id="p"),
            note("permission_response", '{"decision":"deny"}', perm_id="p"),
            note("permission_response", '{"decision":"allow"}', perm_id="other"),
        ]
    )
    assert [type(entry) for entry in folded] == [Permission, Message, Message]
    first = folded[0]
    assert isinstance(first, Permission)
    assert (first.tool_name, first.tool_input) == ("Bash", {})
    assert first.decision is not None
    assert first.decision.is_allowed


def test_an_answer_of_another_key_names_that_key_and_is_found_by_the_request_alone() -> None:
    asked = note("permission_request", "odd", perm_id="p", tool_name="Bash")
    tags = [["d", "s"], ["role", "permission_response"], ["perm-id", "p"]]
    loose = note_of(rover.sign(1988, tags, '{"decision":"allow"}', 1))
    assert [type(entry) for entry in entries([asked, loose])] == [Permission, Message]
    answer = note_of(rover.sign(1988, [*tags, ["e", asked.id]], '{"decision":"allow"}', 1))
    (block,) = blocks([asked, answer])
    assert block.lines[-1].text == f"→ allowed by {rover.npub}"


@pytest.mark.proves("D-26")
@pytest.mark.parametrize(
    "content",
    ["", "allow", "[]", "{}", '{"decision":true}', '{"decision":"ALLOW"}', '{"decision":'],
)
def test_an_answer_that_cannot_be_read_is_a_no(content: str) -> None:
    assert not decision_of(note("permission_response", content)).is_allowed


@pytest.mark.proves("D-26")
def test_an_answer_says_more_than_yes_or_no() -> None:
    text = '{"decision":"deny","message":"no","interrupt":true,"auto":true}'
    found = decision_of(note("permission_response", text))
    assert (found.message, found.is_interrupt, found.is_automatic) == ("no", True, True)


@pytest.mark.proves("D-26")
def test_the_mode_of_permission_is_read() -> None:
    assert mode_of(note("set_permission_mode", '{"mode":"plan"}')) == "plan"
    assert mode_of(note("set_permission_mode", "plan")) is None


def test_what_a_reader_does_not_miss_is_quiet() -> None:
    assert all(note(role, "x").is_quiet for role in ("progress", "queue-operation"))
    assert note("assistant", "").is_quiet
    assert not any(note(role, "x").is_quiet for role in ("user", "assistant", "system"))


def test_a_note_that_was_cut_says_so() -> None:
    assert note("user", "x", truncated="50000").is_cut
    assert not note("user", "x").is_cut
