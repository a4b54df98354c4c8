"""Reading in a conversation, by keys."""

from __future__ import annotations

import pytest

from relay.cli.session.pager import HELP, Pager
from relay.memory.transcripts.display import notes_in_order
from relay.memory.transcripts.view import blocks
from tests.cast import robot, rover
from tests.unit.memory.transcripts.telling import call_block, line, notes, result_block, told


def at(minute: int) -> str:
    return f"2026-02-09T20:{minute:02}:00.000Z"


DATA = b"".join(
    line(message=f"question {number}", timestamp=at(number))
    + line(
        "assistant",
        message=[call_block(f"t{number}", "Bash", command=f"run {number}")],
        timestamp=at(number),
    )
    + line(message=[result_block(f"t{number}", f"ROW {number}\nsecond")], timestamp=at(number))
    + line("progress", message=None, data={"type": "hook"}, timestamp=at(number))
    for number in range(20)
)


def pager(data: bytes = DATA, height: int = 12) -> Pager:
    made = Pager(blocks(notes_in_order(notes(told(data)))), "s-1", {})
    made.resize(60, height)
    return made


def shown(reader: Pager) -> list[str]:
    return [row.text.strip() for row in reader.screen()]


def press(reader: Pager, keys: str, *more: str) -> list[str]:
    for key in (*keys, *more):
        reader.press(key)
    return shown(reader)


def test_a_screen_has_its_height_and_the_status_at_the_end() -> None:
    reader = pager()
    rows = shown(reader)
    assert len(rows) == 12
    assert rows[:2] == ["2026-02-09 20:00:00 user", "question 0"]
    assert rows[-1].startswith("s-1  1/40  2026-02-09 20:00:00")


def test_the_authors_of_a_session_of_several_keys_are_named() -> None:
    found = blocks(notes_in_order(notes([*told(line()), *told(line(), by=rover)])))
    reader = Pager(found, "s-1", {robot.pubkey: "robot", rover.pubkey: "a \x1b[2J rover"})
    heads = {row for row in shown(reader) if " user" in row}
    told_by = {head.partition(" by ")[2] for head in heads}
    assert told_by == {"robot: user", "a \ufffd[2J rover: user"}


def test_one_scrolls_by_line_and_page_to_either_end() -> None:
    reader = pager()
    assert press(reader, "j")[0] == "question 0"
    assert press(reader, "jk")[0] == "question 0"
    assert press(reader, "G")[-2:][0] == ""
    assert "100 %" in shown(reader)[-1]
    assert press(reader, "g")[0] == "2026-02-09 20:00:00 user"
    before = shown(reader)
    assert press(reader, " ", "b") == before
    assert press(reader, "k") == before, "not above the beginning"


def test_tools_are_folded_until_asked_for() -> None:
    reader = pager()
    rows = press(reader, "t")
    assert rows[:3] == [
        "2026-02-09 20:00:00 tool_call",
        'Bash: {"command": "run 0"}',
        "→ ROW 0 (+1 lines)",
    ]
    assert press(reader, "", "enter")[:4] == [*rows[:2], "ROW 0", "second"]
    assert press(reader, "", "tab")[:3] == rows[:3]
    assert "second" in press(reader, "a")
    assert "second" not in press(reader, "a")


def test_one_jumps_to_the_words_of_the_user_and_to_tools() -> None:
    reader = pager()
    assert press(reader, "uu")[1] == "question 2"
    assert press(reader, "U")[1] == "question 1"
    assert press(reader, "T")[1] == 'Bash: {"command": "run 0"}'
    assert press(reader, "[")[1] == "question 0"
    assert press(reader, "[")[-1] == "no more"
    assert press(reader, "]]")[1] == "question 1"


def test_one_jumps_to_a_time_or_a_number() -> None:
    reader = pager()
    assert press(reader, ":20:07", "enter")[1] == "question 7"
    assert press(reader, ":2026-02-09 20:03", "enter")[1] == "question 3"
    assert press(reader, ":11", "enter")[1] == "question 5"
    assert press(reader, ":23", "enter")[-1] == "s-1  23/40  2026-02-09 20:11:00  62 %  ? for keys"
    assert press(reader, ":23:59", "enter")[-1] == "nothing at 23:59"
    assert press(reader, ":0", "enter")[1] == "question 0"


def test_words_are_found_also_in_folded_tools() -> None:
    reader = pager()
    rows = press(reader, "/row 9", "enter")
    assert rows[1] == 'Bash: {"command": "run 9"}'
    assert "ROW 9" in rows, "it is unfolded"
    marked = [part for row in reader.screen()[:-1] for part in row.parts if "reverse" in part[1]]
    assert marked == [("ROW 9", "reverse")]
    assert press(reader, "/SECOND", "enter", "n")[1] == 'Bash: {"command": "run 10"}'
    assert press(reader, "NN")[1] == 'Bash: {"command": "run 8"}'
    assert press(reader, "/milk", "enter")[-1] == "not found: milk"


def test_what_is_typed_is_seen_and_can_be_taken_back() -> None:
    reader = pager()
    assert press(reader, "/tex", "backspace")[-1] == "/te"
    assert press(reader, "", "escape")[-1].startswith("s-1")
    assert press(reader, "/", "backspace")[-1].startswith("s-1")
    assert press(reader, "n")[-1].startswith("s-1"), "nothing was searched for"


def test_progress_is_hidden_until_asked_for() -> None:
    reader = pager()
    assert "/40" in shown(reader)[-1]
    assert "/60" in press(reader, ".")[-1]


def test_help_and_the_end() -> None:
    reader = pager(height=20)
    assert press(reader, "?")[: len(HELP.splitlines())] == [
        row.strip() for row in HELP.splitlines()
    ]
    assert press(reader, "x")[0] == "2026-02-09 20:00:00 user"
    press(reader, "q")
    assert reader.is_done


def test_long_and_wide_lines_are_continued_below() -> None:
    reader = pager(line(message="é" * 70 + "漢" * 40))
    rows = [row.text for row in reader.screen()]
    assert "".join(row.strip() for row in rows[1:5]) == "é" * 70 + "漢" * 40


def test_what_others_wrote_cannot_control_the_terminal() -> None:
    odd = "\x1b[2Jhello\x07\x9b31m‮"
    data = line(message=odd, timestamp=at(1)) + line(
        "assistant", message=[call_block("t", odd, command=odd)], timestamp=at(2)
    )
    reader = pager(data + b'{"type":"\\u001b[2J","summary":"\\u001b[3J"}\n')
    press(reader, "a")
    assert all(row.text.isprintable() for row in reader.screen())


@pytest.mark.parametrize("keys", ["jkGg ]u[tTaN.", "/x", ":1"])
def test_an_empty_session_can_be_looked_at(keys: str) -> None:
    reader = Pager([], "s-1", {})
    press(reader, keys, "enter", "tab")
    assert reader.screen()[-1].text in ("s-1: nothing to show", "no more", "not found: x")


def test_a_narrower_window_keeps_the_place() -> None:
    reader = pager()
    press(reader, ":20:07", "enter")
    reader.resize(30, 8)
    assert shown(reader)[0].startswith("2026-02-09 20:07:00")
    assert len(shown(reader)) == 8


@pytest.mark.parametrize("unknown", ["", "f1"])
def test_a_key_that_is_unknown_does_nothing(unknown: str) -> None:
    """As the one that curses gives when the terminal gets another size."""
    reader = pager()
    before = shown(reader)
    assert press(reader, "", unknown, "enter", "enter") == before
    assert press(reader, "j")[0] == "question 0"
