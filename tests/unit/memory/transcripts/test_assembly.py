"""Assembly of files: any order, three formats, missing lines (D-18, D-19, D-23, D-24)."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from relay.errors import UserError
from relay.memory.transcripts.assembly import Assembly, Form, assembled
from relay.memory.transcripts.paths import Directory
from relay.memory.transcripts.plan import Paths, Plan
from tests.cast import alice, robot
from tests.unit.memory.transcripts.telling import HOME, file_of, line, told

if TYPE_CHECKING:
    from relay.nostr.event import Event

FILE = line() + b"\n" + line(message="x" * 300) + line("assistant", message="hi")
SMALL = Plan(chunk=100)


def source(text: str, created_at: int = 5, **tags: str) -> Event:
    """A 1989 with these tags, `_` for `-` in their names."""
    named = [[name.replace("_", "-"), value] for name, value in tags.items()]
    return robot.sign(1989, [["d", "s"], *named, ["source-data", text]], "", created_at)


def note_with(text: str, ms: int, seq: int) -> Event:
    tags = [["d", "s"], ["ms", str(ms)], ["seq", str(seq)], ["source-data", text]]
    return robot.sign(1988, tags, "shown", ms // 1000)


def without(events: list[Event], **tags: str) -> list[Event]:
    return [
        event
        for event in events
        if event.kind != 1989 or any(event.tag(name) != value for name, value in tags.items())
    ]


def contents(assembly: Assembly) -> bytes:
    return b"".join(assembly.file(None))


@pytest.mark.proves("D-18")
def test_events_in_any_order_and_twice_make_the_file() -> None:
    events = told(FILE, SMALL) * 2
    for seed in range(20):
        random.Random(seed).shuffle(events)
        assembly = assembled(events)
        assert (assembly.form, assembly.faults, assembly.unread) == (Form.LINES, (), ())
        assert file_of(assembly) == FILE


@pytest.mark.proves("D-21")
def test_another_directory_is_put_where_the_first_was() -> None:
    assert file_of(assembled(told(FILE)), "/new") == FILE.replace(b"/w/rook", b"/new")


def test_without_a_directory_no_token_leaves() -> None:
    with pytest.raises(UserError, match="name a directory"):
        assembled(told(FILE)).file(None)
    assert contents(assembled(told(FILE, Plan(paths=Paths.RAW)))) == FILE


def test_a_long_directory_is_not_put_where_it_makes_gigabytes_of_a_few_lines() -> None:
    events = told(line(cwd=HOME, message=f"{HOME} " * 10_000))
    with pytest.raises(UserError, match="the paths to fill in take over 256 MiB"):
        assembled(events).file(Directory("/" + "x" * 30_000))
    file_of(assembled(events), "/" + "x" * 100)


@pytest.mark.proves("D-24")
def test_a_branch_is_put_into_each_line_that_has_one() -> None:
    data = line(gitBranch="main") + b"no json gitBranch\n" + line()
    changed = b"".join(assembled(told(data)).file(Directory(HOME), "fix"))
    assert changed == data.replace(b'"main"', b'"fix"')


@pytest.mark.proves("D-19")
def test_a_missing_line_is_named_and_the_rest_is_there() -> None:
    assembly = assembled(without(told(FILE), line="3"))
    assert assembly.faults == ("line 3 is missing",)
    assert file_of(assembly) == line() + b"\n" + line("assistant", message="hi")
    several = assembled(without(without(told(FILE), line="1"), line="2"))
    assert several.faults == ("lines 1 to 2 are missing",)


@pytest.mark.proves("D-19")
def test_notes_tell_that_the_last_lines_are_missing() -> None:
    short = without(told(FILE), line="4")
    assert assembled(short).faults == ("the lines of the last notes are missing",)
    asked = robot.sign(1988, [["seq", "99"], ["source", "notedeck-dave"]], "", 1)
    odd = robot.sign(1988, [["seq", "x"], ["source", "claude-code"]], "", 1)
    assert assembled([*told(FILE), asked, odd]).faults == ()


@pytest.mark.proves("D-19")
@given(st.data())
def test_whatever_is_missing_is_told(data: st.DataObject) -> None:
    events = told(FILE, SMALL)
    left = [event for event in events if event.kind == 1988 or data.draw(st.booleans())]
    assembly = assembled(left)
    if any(event.kind == 1989 for event in left):
        assert (assembly.faults == ()) is (len(left) == len(events))
        assert (file_of(assembly) == FILE) is (len(left) == len(events))
    else:
        assert assembly.lines == ()


@pytest.mark.proves("D-19")
def test_a_missing_chunk_is_named() -> None:
    events = told(FILE, SMALL)
    count = max(int((event.tag("chunk") or "0/0").split("/")[1]) for event in events)
    one = assembled(without(events, line="3", chunk=f"1/{count}"))
    assert one.faults == (f"line 3: chunk 1/{count} is missing",)
    assert len(file_of(one)) < len(FILE)
    rest = [
        event for event in events if event.tag("line") != "3" or event.tag("chunk") == f"1/{count}"
    ]
    assert assembled(rest).faults == (
        f"line 3: chunk 0/{count} is missing",
        f"line 3: chunks 2/{count} to {count - 1}/{count} are missing",
    )


@pytest.mark.proves("D-19")
def test_numbers_that_nobody_could_count_to_are_named_at_once() -> None:
    far = assembled([source("x", line="100000000000000000", eol="lf")])
    assert far.faults == ("lines 1 to 99999999999999999 are missing",)
    many = assembled([source("x", line="1", eol="lf", chunk="5/900000000")])
    assert many.faults == (
        "line 1: chunks 0/900000000 to 4/900000000 are missing",
        "line 1: chunks 6/900000000 to 899999999/900000000 are missing",
    )


@pytest.mark.proves("D-18")
@pytest.mark.parametrize("end", [b"\n", b"\r\n"])
@pytest.mark.parametrize("cut", [1, 20, len(line()) - 1])
def test_of_a_file_that_grew_the_last_line_with_an_end_counts(cut: int, end: bytes) -> None:
    tail = line(message="the tail")[:-1] + end
    before = told(line() + tail[:cut])
    after = told(line() + tail + line())
    for events in (before + after, after + before):
        assembly = assembled(events)
        assert (file_of(assembly), assembly.faults) == (line() + tail + line(), ())


@pytest.mark.proves("D-18")
def test_of_a_last_line_that_never_ended_the_longest_counts() -> None:
    data = line() + line()
    events = [event for cut in (70, 99, 80) for event in told(data[: len(line()) + cut])]
    assembly = assembled(events)
    assert (file_of(assembly), assembly.faults) == (data[: len(line()) + 99], ())


@pytest.mark.proves("D-19")
def test_a_line_that_others_follow_has_an_end_or_is_told() -> None:
    tail = line(message="the tail")
    before, after = told(line() + tail[:-1]), told(line() + tail + line())
    assembly = assembled(before + without(after, line="2"))
    assert assembly.faults == ("line 2: its end is missing",)


@pytest.mark.proves("D-19")
def test_a_line_that_ended_but_lacks_a_chunk_is_not_made_up_for_by_its_beginning() -> None:
    tail = line(message="y" * 300)
    after = without(told(tail, SMALL), line="1", chunk="1/5")
    assert len(after) < len(told(tail, SMALL))
    assert assembled(told(tail[:50]) + after).faults == ("line 1: chunk 1/5 is missing",)


@pytest.mark.proves("D-19")
def test_a_file_that_was_written_anew_under_the_same_session_is_told() -> None:
    old, new = line(message="old"), line(message="new", timestamp="2027-01-01T00:00:00Z")
    assembly = assembled(told(line() + old) + told(line() + new))
    assert assembly.faults == ("line 2: is there twice, with different text",)
    assert file_of(assembly) == line() + new


def test_a_copy_by_another_key_or_in_other_pieces_is_no_fault() -> None:
    other = [alice.sign(e.kind, e.tags, e.content, e.created_at) for e in told(FILE)]
    assembly = assembled(other + told(FILE, SMALL) + told(FILE, Plan(paths=Paths.RAW)))
    assert (file_of(assembly), assembly.faults) == (FILE, ())


def test_of_two_copies_the_one_that_lost_nothing_counts() -> None:
    events = [source("{}", 9, line="1", eol="lf"), source('{"a":1}', 1, line="1", eol="lf")]
    lost = robot.sign(
        1989, [["line", "1"], ["eol", "lf"], ["stripped", "usage"], ["source-data", "{}"]], "", 9
    )
    assembly = assembled([lost, events[1]])
    assert (contents(assembly), assembly.faults, assembly.stripped) == (b'{"a":1}\n', (), {})


@pytest.mark.proves("D-18")
def test_lines_without_number_are_ordered_by_seq_time_and_id() -> None:
    events = [
        source('{"a":2}', 9, seq="0"),
        source('{"a":1}', 8, seq="0"),
        source('{"a":3}', 1, seq="1"),
        source('{"a":1}', 7, seq="4"),
        source('{"a":4}', 1),
    ]
    for seed in range(5):
        random.Random(seed).shuffle(events)
        assembly = assembled(events)
        assert assembly.form is Form.SEQUENCE
        assert contents(assembly) == b'{"a":1}\n{"a":2}\n{"a":3}\n{"a":4}\n'


@pytest.mark.proves("D-18")
def test_lines_inside_notes_are_read_when_there_is_no_archive() -> None:
    events = [
        note_with('{"b":1}', 1500, 1),
        note_with('{"a":1}', 1500, 0),
        note_with('{"b":1}', 1500, 2),
        robot.sign(1988, [["d", "s"]], "without", 1),
    ]
    assembly = assembled(events)
    assert (assembly.form, contents(assembly)) == (Form.NOTES, b'{"a":1}\n{"b":1}\n')
    assert contents(assembled([*events, source("{}")])) == b"{}\n"


@pytest.mark.proves("D-23")
def test_a_relative_directory_of_the_documents_form_becomes_the_chosen_one() -> None:
    raw = '{"type":"user","cwd":".","x":{"cwd":"."},"message":{"content":"./a"}}'
    assembly = assembled([note_with(raw, 1, 0), note_with('{"n":"."}', 2, 1)])
    assert assembly.relative == 1
    assert (
        file_of(assembly, "/new dir")
        == (raw.replace('"cwd":"."', '"cwd":"/new dir"', 1) + '\n{"n":"."}\n').encode()
    )
    assert contents(assembly) == (raw + '\n{"n":"."}\n').encode()
    assert assembled(told(FILE)).relative == 0


@pytest.mark.parametrize(
    ("tags", "why"),
    [
        ([["line", "0"]], "tag line is no number from 1"),
        ([["line", "-1"]], "tag line is no number from 1"),
        ([["line", "one"]], "tag line is no number from 1"),
        ([["line", "2"], ["chunk", "2/2"]], "tag chunk is not i/n"),
        ([["line", "2"], ["eol", "cr"]], "tag eol is not lf, crlf or none"),
        ([["line", "2"], ["paths", "v9"]], "tag paths is not cwd-token-v1"),
    ],
)
def test_an_event_that_cannot_be_read_is_in_nobodys_way(tags: list[list[str]], why: str) -> None:
    odd = robot.sign(1989, [*tags, ["source-data", "x"]], "", 1)
    nothing = robot.sign(1989, [["line", "1"], []], "", 1)
    assembly = assembled([odd, *told(FILE), nothing])
    assert [unread.why for unread in assembly.unread] == [why, "no tag source-data"]
    assert (file_of(assembly), assembly.faults) == (FILE, ())


def test_base64_that_is_none_is_a_fault() -> None:
    odd = source("???", line="1", eol="lf", encoding="base64")
    assembly = assembled([odd])
    assert (assembly.faults, contents(assembly)) == (("line 1: is no base64",), b"\n")


def test_a_tag_without_value_holds_an_empty_line() -> None:
    event = robot.sign(1989, [["line", "1"], ["eol", "lf"], ["source-data"]], "", 1)
    assert contents(assembled([event])) == b"\n"


def test_no_events_are_no_lines() -> None:
    assert assembled([]).lines == ()
    assert assembled([robot.sign(1, [], "hello", 1)]).lines == ()


def test_an_odd_number_of_seq_is_the_last() -> None:
    assembly = assembled([source("b", seq="x"), source("a", seq="7")])
    assert contents(assembly) == b"a\nb\n"
