"""The specification's own form (`--classic`): every file comes back to the byte."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from relay.errors import Invalid
from relay.memory.check_options import CheckOptions
from relay.memory.transcripts.assembly import Form, assembled
from relay.memory.transcripts.checks import check
from relay.memory.transcripts.paths import PathTokens, relative, with_tokens
from relay.memory.transcripts.plan import Layout, Paths, Plan
from tests.cast import robot
from tests.unit.memory.transcripts.telling import (
    HOME,
    call_block,
    file_of,
    line,
    text_block,
    there_and_back,
    told,
)
from tests.unit.memory.transcripts.test_transcript import bad_lines

CLASSIC = Plan(layout=Layout.CLASSIC)
texts = st.lists(
    st.sampled_from(["/w/rook", r"\/w\/rook", "/a", "${", "${CWD}", "}", ".", '"', " ", "é", "x"])
).map("".join)


@pytest.mark.proves("D-18", "D-21", "D-23")
@given(st.lists(st.one_of(bad_lines, st.binary(max_size=20))).map(b"".join))
def test_every_file_comes_back_to_the_byte(data: bytes) -> None:
    assert there_and_back(data, CLASSIC) == data
    raw = Plan(layout=Layout.CLASSIC, paths=Paths.RAW, session="x", group="g")
    assert there_and_back(data, raw) == data
    assert {check(event, CheckOptions()) for event in told(data, CLASSIC)} <= {None}


@pytest.mark.proves("D-18")
def test_another_directory_is_put_where_the_first_was() -> None:
    data = line(message=f"{HOME}/a and ./b") + line(message="no path") + line(cwd=f"{HOME}/sub")
    events = told(data, CLASSIC)
    assert HOME not in "".join(event.tag("source-data") or "" for event in events)
    assert file_of(assembled(events), "/new") == data.replace(b"/w/rook", b"/new")
    assert assembled(events).relative == 0


def test_the_line_is_in_the_first_of_its_notes() -> None:
    data = line("assistant", message=[text_block("a"), call_block("t1", "Read")]) * 2
    events = told(data, CLASSIC)
    assert [event.has_tag("source-data") for event in events] == [True, False, True, False]
    assert assembled(events).form is Form.NOTES
    assert file_of(assembled(events)) == data
    repeated = [
        robot.sign(1988, [*tags, ["source-data", "{}"]] if at % 2 else event.tags, "", 1)
        for at, event in enumerate(events)
        for tags in [event.tags]
    ]
    assert len(assembled(repeated).lines) == 2


def test_equal_lines_are_not_one_line() -> None:
    data = b'{"type":"queue-operation"}\n' * 3 + b"\n\n"
    assert file_of(assembled(told(data, CLASSIC))) == data


def test_a_line_that_is_too_long_for_one_event_is_named() -> None:
    plan = Plan(layout=Layout.CLASSIC, max_event=3000)
    with pytest.raises(Invalid, match="line 2: too long for one event of 3000 bytes"):
        told(line() + line(message="x" * 4000), plan)
    long = line(message="x" * 1500)
    (note,) = told(long, plan)
    assert len(note.raw) <= 3000
    assert there_and_back(long, plan) == long


@given(texts)
def test_relative_paths_are_reversible(text: str) -> None:
    tokenised = PathTokens("/w/rook").tokenised(text)
    short, places = relative(tokenised)
    assert with_tokens(short, places) == tokenised


@pytest.mark.parametrize("places", ["9", "1", "x", "0,0", "2,0", "0e2", "-1"])
def test_places_that_do_not_fit_are_no_text(places: str) -> None:
    assert with_tokens(".a.", places) is None
    event = robot.sign(1988, [["paths", "cwd-relative-v1", places], ["source-data", ".a."]], "", 1)
    assert assembled([event]).unread[0].why == "tag paths does not fit the text"
