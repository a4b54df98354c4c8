"""A file encoded line by line (D-14…D-17), with bad lines of every sort."""

from __future__ import annotations

from base64 import b64decode

import pytest
from hypothesis import given
from hypothesis import strategies as st

from relay.errors import Invalid
from relay.memory.check_options import CheckOptions
from relay.memory.transcripts.archive import pieces
from relay.memory.transcripts.assembly import assembled
from relay.memory.transcripts.checks import check
from relay.memory.transcripts.plan import Plan
from tests.effort import tries
from tests.unit.memory.transcripts.telling import (
    HOME,
    archive,
    file_of,
    line,
    notes,
    text_block,
    there_and_back,
    told,
    transcript,
)

bad_lines = st.sampled_from(
    [
        line(),
        line("assistant", message=[text_block("a"), text_block("b")]),
        b"\n",
        b"\r\n",
        b" \n",
        b"\x00\n",
        b"\xff\xfe\n",
        b"\xef\xbb\xbf{}\n",
        b"not json {\n",
        b'{"type":"us',
        b"[1,2]\r\n",
        b'{"a":1,"a":2.0}\n',
        b'{"cwd":"/w/rook/${CWD}"}\n',
        rb'{"x":"\ud800 \/w\/rook"}' + b"\n",
        '{"x":"\u2028 \u0085 /w/rook"}\n'.encode(),
        b"\r",
        b'{"cwd":"."}\n',
    ]
)


@pytest.mark.proves("D-16", "D-18", "D-21")
@given(st.lists(st.one_of(bad_lines, st.binary(max_size=20))).map(b"".join))
def test_every_file_comes_back_to_the_byte(data: bytes) -> None:
    assert there_and_back(data) == data
    assert there_and_back(data, Plan(chunk=5, session="x", group="g")) == data


@given(st.lists(bad_lines).map(b"".join))
def test_our_own_relay_takes_every_event_of_it(data: bytes) -> None:
    assert [check(event, CheckOptions()) for event in told(data, Plan(chunk=7))].count(None) == len(
        told(data, Plan(chunk=7))
    )


@pytest.mark.proves("D-15")
def test_each_line_is_archived_after_its_notes() -> None:
    data = line() + b"\r\n" + line("assistant", message=[text_block("a"), text_block("b")])
    events = told(data + b"{")
    assert [event.kind for event in events] == [1988, 1989, 1989, 1988, 1988, 1989, 1989]
    first, ok_reply, blank, second, _, split, cut_off = events
    common = [["d", "s-1"], ["seq", "0"]]
    assert ok_reply.tags[:-1] == [
        ["e", first.id],
        *common,
        ["line", "1"],
        ["eol", "lf"],
        ["paths", "cwd-token-v1"],
    ]
    assert blank.tags == [
        *common,
        ["line", "2"],
        ["eol", "crlf"],
        ["parse", "blank"],
        ["paths", "cwd-token-v1"],
        ["source-data", ""],
    ]
    assert (split.tag("e"), split.tag("seq"), split.tag("line")) == (second.id, "2", "3")
    assert cut_off.tags == [
        ["d", "s-1"],
        ["seq", "2"],
        ["line", "4"],
        ["eol", "none"],
        ["parse", "invalid"],
        ["paths", "cwd-token-v1"],
        ["source-data", "{"],
    ]
    assert {event.content for event in archive(events)} == {""}


@pytest.mark.proves("D-15")
def test_what_is_no_utf_8_is_archived_as_base64() -> None:
    (source,) = told(b"\xff " + HOME.encode() + b"\n")
    assert source.tags[-2:][0] == ["encoding", "base64"]
    assert b64decode(source.tag("source-data") or "") == b"\xff /w/rook"
    assert not source.has_tag("paths")


@pytest.mark.proves("D-16")
def test_a_line_is_not_written_anew() -> None:
    raw = rb'{ "z":1.0, "a" : [1e5,-0,12345678901234567890,0.1000], "a":"\u00e9\/", "t":"\ud83d" }'
    assert archive(told(raw))[0].tag("source-data") == raw.decode()


@pytest.mark.proves("D-17")
def test_a_long_line_goes_in_pieces_cut_between_letters() -> None:
    data = line(message="é" * 50_000)
    note, *sources = told(data)
    texts = [source.tag("source-data") or "" for source in sources]
    assert "".join(texts).encode() == data[:-1].replace(HOME.encode(), b"${CWD}")
    sizes = [len(text.encode()) for text in texts]
    assert max(sizes) <= 48_000
    assert min(sizes[:-1]) > 47_996
    assert [source.tag("chunk") for source in sources] == ["0/3", "1/3", "2/3"]
    for source in sources:
        assert source.tags[:5] == [
            ["e", note.id],
            ["d", "s-1"],
            ["seq", "0"],
            ["line", "1"],
            ["eol", "lf"],
        ]


@pytest.mark.proves("D-17")
def test_a_smaller_limit_makes_smaller_pieces() -> None:
    sources = archive(told(line(message="x" * 100), Plan(chunk=50)))
    assert all(len(source.tag("source-data") or "") <= 50 for source in sources)
    assert len(sources) == 5
    assert there_and_back(line(message="😀é"), Plan(chunk=4)) == line(message="😀é")
    with pytest.raises(Invalid, match="chunk: must be 4 bytes or more"):
        Plan(chunk=3)


@pytest.mark.proves("D-17")
def test_pieces_are_as_large_as_they_may_be() -> None:
    assert pieces("", 4) == [""]
    assert pieces("a" * 9, 4) == ["aaaa", "aaaa", "a"]
    assert pieces("aaa😀é", 4) == ["aaa", "😀", "é"]
    assert pieces("a" * 400, 400, 402) == ["a" * 400]
    assert pieces("a" * 400, 500, 401) == ["a" * 399, "a"]


@pytest.mark.proves("D-30")
@given(
    st.lists(st.sampled_from(['"' * 999, "\\n" * 999, "é" * 999, "\x01" * 999]), max_size=8),
    st.integers(1200, 5000),
)
def test_no_event_is_longer_than_one_may_be(parts: list[str], most: int) -> None:
    text = "".join(parts)
    data = line(message=text) + text.encode() + b"\n" + text.encode() + b"\xff\n"
    plan = Plan(max_event=most, group="a-group")
    assert max(len(event.raw) for event in told(data, plan)) <= most
    assert there_and_back(data, plan) == data


def test_tags_that_leave_no_room_for_text_are_said() -> None:
    with pytest.raises(Invalid, match="event: of 1200 bytes its tags leave no room for text"):
        told(line(slug="x" * 1000), Plan(max_event=1200))
    with pytest.raises(Invalid, match="leave no room for text"):
        told(line(slug="x" * 400), Plan(max_event=1200))


@pytest.mark.proves("D-14")
def test_the_same_file_gives_the_same_ids() -> None:
    data = line() + b"\n" + line("assistant", message="hi")
    assert [event.id for event in told(data)] == [event.id for event in told(data)]
    assert not {e.id for e in told(data)} & {e.id for e in told(data, Plan(session="other"))}


@pytest.mark.proves("D-14")
def test_a_file_that_grew_adds_only_its_tail() -> None:
    data = line() + line("assistant", message="hi")
    grown = told(data + line(message="more") + b"\n")
    assert [event.id for event in grown[:4]] == [event.id for event in told(data)]
    assert len(grown) == 7


def test_what_was_told_is_counted() -> None:
    script = transcript(line())
    script.drafts(line("assistant", message=[text_block("a"), text_block("b")]))
    script.drafts(b"\n")
    assert (script.lines, script.notes, script.session) == (2, 2, "s-1")


@pytest.mark.proves("D-15")
def test_the_archive_of_a_file_is_under_one_session_whatever_its_lines_say() -> None:
    events = told(line(sessionId="a") + line(sessionId="b") + b"\n")
    assert [note.tag("d") for note in notes(events)] == ["a", "b"]
    assert [source.tag("d") for source in archive(events)] == ["a", "a", "a"]


def test_a_session_and_a_group_can_be_chosen() -> None:
    events = told(line(sessionId="a") + line(sessionId="b"), Plan(session="mine", group="tea"))
    assert {event.tag("d") for event in events} == {"mine"}
    assert all(event.tags[-1] == ["h", "tea"] for event in events)


@pytest.mark.slow
def test_a_very_long_line_comes_back_to_the_byte() -> None:
    data = line() + line(message="é\n/w/rook" * tries(5 * 2**20, 5 * 2**20, 2**19)) + line()[:40]
    assert len(data) > 5_000_000
    events = told(data)
    assert max(len(event.raw) for event in events) < 131_072
    assert file_of(assembled(events)) == data
