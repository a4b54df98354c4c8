"""Lines by their bytes, and the facts of a session file (D-11, D-15)."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from relay.memory.fields import repaired
from relay.memory.transcripts.lines import (
    ENDS,
    Eol,
    SessionFacts,
    line_of,
    raw_lines,
    session_facts,
)
from tests.unit.memory.transcripts.telling import HOME, SESSION, line


@given(st.lists(st.sampled_from([b"a", b"\r", b"\n", b"\r\n", b"\xff", b""])))
def test_lines_with_their_ends_are_the_file(parts: list[bytes]) -> None:
    data = b"".join(parts)
    lines = list(raw_lines(data))
    assert b"".join(lines) == data
    assert all(raw.endswith(b"\n") for raw in lines[:-1])
    assert all(raw.count(b"\n") <= 1 for raw in lines)
    parsed = [line_of(number, raw) for number, raw in enumerate(lines, 1)]
    assert b"".join(each.data + ENDS[each.eol] for each in parsed) == data


@pytest.mark.parametrize(
    ("raw", "data", "eol"),
    [
        (b"x\n", b"x", Eol.LF),
        (b"x\r\n", b"x", Eol.CRLF),
        (b"x", b"x", Eol.NONE),
        (b"x\r", b"x\r", Eol.NONE),
        (b"x\r\r\n", b"x\r", Eol.CRLF),
        (b"\n", b"", Eol.LF),
    ],
)
def test_a_line_knows_its_end(raw: bytes, data: bytes, eol: Eol) -> None:
    found = line_of(1, raw)
    assert (found.data, found.eol) == (data, eol)


def test_a_line_that_is_no_json_object_has_no_fields() -> None:
    for raw in (
        b"\n",
        b"   \t\n",
        b"[1]\n",
        b'{"a":\n',
        b'{"a":NaN}',
        b"\xff{}\n",
        b"\xef\xbb\xbf{}",
    ):
        assert line_of(1, raw).fields is None
    assert line_of(1, b' {"a":1} \n').fields == {"a": 1}


def test_blank_is_what_has_only_spaces_and_tabs() -> None:
    assert all(line_of(1, raw).is_blank for raw in (b"\n", b"\r\n", b" \t\n", b"", b"\r\r\n"))
    assert not any(line_of(1, raw).is_blank for raw in (b"x\n", b"\xff\n", b"{}", b"\xc2\xa0\n"))


@pytest.mark.proves("D-11")
def test_the_first_that_says_it_settles_session_time_and_directory() -> None:
    lines = [
        b"no json\n",
        b'{"type":"summary"}\n',
        b'{"snapshot":{"timestamp":"1970-01-01T00:00:01Z"}}\n',
        b'{"sessionId":"first","cwd":"/w/rook/"}\n',
        line(),
    ]
    assert session_facts(lines[:2]) == SessionFacts()
    assert not session_facts(lines[:3]).is_complete
    assert session_facts(lines) == SessionFacts("/w/rook", 1000, "first")
    assert session_facts([line()]).is_complete


def test_no_line_is_read_beyond_what_settles_the_file() -> None:
    lines = iter([line(), line(sessionId="later")])
    assert session_facts(lines) == SessionFacts(HOME, 1_770_669_815_675, SESSION)
    assert next(lines) == line(sessionId="later")


def test_what_is_no_text_settles_nothing() -> None:
    odd = b'{"cwd":7,"sessionId":"","timestamp":12,"snapshot":[]}\n'
    assert session_facts([odd]) == SessionFacts()


def test_the_root_directory_is_known_and_has_no_name() -> None:
    assert session_facts([b'{"cwd":"/"}\n', b'{"cwd":"/w"}\n']).base == ""


@pytest.mark.proves("D-13")
def test_halves_of_surrogate_pairs_are_made_whole() -> None:
    assert repaired("caf\u00e9 \U0001f600") == "caf\u00e9 \U0001f600"
    assert repaired("a\ud800b\udc00") == "a\ufffdb\ufffd"
    assert repaired("plain") == "plain"
