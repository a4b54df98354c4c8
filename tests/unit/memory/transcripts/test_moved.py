"""A session that went on in another place, and a machine that is not named."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from relay.memory.transcripts.assembly import assembled
from relay.memory.transcripts.moved import Move, comparable
from relay.memory.transcripts.paths import Directory, HidingTokens, PathTokens
from relay.memory.transcripts.plan import Layout, Plan
from relay.memory.transcripts.stripping import HIDE_MACHINE
from tests.unit.memory.transcripts.telling import HOME, call_block, file_of, line, notes, told

THERE = "/other place/rook"
parts = st.lists(
    st.sampled_from([HOME, HOME + "/a", "/w/rook2", "${CWD}", "$", "{", " ", '"', "\\", "é", "\n"])
).map("".join)


@pytest.mark.proves("D-14")
@pytest.mark.parametrize("layout", Layout)
@given(texts=st.lists(parts, max_size=3))
def test_a_moved_file_has_the_events_of_the_first_one(layout: Layout, texts: list[str]) -> None:
    data = line() + b"".join(line(message=text) for text in texts) + b"no json\n\xff\n"
    first = told(data, Plan(layout=layout))
    moved = file_of(assembled(first), THERE)
    again = told(moved, Plan(layout=layout, origin=HOME))
    assert [event.id for event in again] == [event.id for event in first]
    assert [e.id for e in told(data, Plan(layout=layout, origin=HOME))] == [e.id for e in first]


def test_a_line_is_comparable_whatever_its_place_and_branch() -> None:
    here, there = PathTokens(HOME), PathTokens(THERE)
    raw = line(message=f"{HOME}/a", gitBranch="main")
    other = raw.replace(HOME.encode(), THERE.encode()).replace(b'"main"', b'"fix"')
    assert comparable(raw, here) == comparable(other, there)
    assert comparable(raw, here) != comparable(raw.replace(b"/a", b"/b"), here)
    assert comparable(b"\xff", here) == b"\xff"
    assert Move(THERE, HOME).line(b"\xff") == b"\xff"


HIDING = Plan(stripping=HIDE_MACHINE, homes=("/srv/ann/", "/", ""))
BASE = "/home/ann/rook"


@pytest.mark.proves("D-22")
@pytest.mark.parametrize("layout", Layout)
def test_what_names_the_machine_is_in_no_event(layout: Layout) -> None:
    long = "x" * (200 - len('Read: {"file": "') - 8)
    data = (
        line(cwd=BASE, message=f"{BASE}/a {BASE}2 /home/ann/.ssh /srv/ann/x file://{BASE}/y")
        + line(
            "assistant",
            cwd=f"{BASE}/sub",
            message=[call_block("t", "Read", file=f"{long}/home/ann/rook/b")],
        )
        + line(cwd="/opt/else", message="there")
        + line(cwd="/home/ann/two", message="there")
    )
    plan = Plan(stripping=HIDE_MACHINE, homes=HIDING.homes, layout=layout)
    events = told(data, plan)
    seen = b" ".join(event.raw for event in events)
    for secret in (b"/home/ann", b"/srv/ann", b"/opt/else"):
        assert secret not in seen
    assert notes(events)[0].content == "./a ~/rook2 ~/.ssh ~/x file://~/y"
    assembly = assembled(events)
    assert assembly.stripped == {"machine": 4}
    back = b"".join(assembly.file(Directory("/n"))).splitlines()
    assert [json.loads(raw)["cwd"] for raw in back] == ["/n", "/n/sub", "/n", "~/two"]
    elsewhere = data.replace(b"/home/ann", b"/Users/bob")
    assert [e.id for e in told(elsewhere, plan)] == [e.id for e in events], "whatever it is called"


def test_a_line_without_secrets_is_not_called_stripped() -> None:
    tokens = HidingTokens(BASE)
    assert not tokens.hides(f'{{"cwd":"{BASE}","x":"{BASE}/a /etc"}}')
    assert tokens.hides('{"x":"/home/ann/b"}')


@pytest.mark.parametrize(
    ("text", "hidden"),
    [
        ("~/.claude/projects/-home-ann-rook/memory/a.md", "~/.claude/projects/-/memory/a.md"),
        (r"/tmp/x\/-home-ann-rook\/tasks", r"/tmp/x\/-\/tasks"),
        (r"a\n-home-ann-rook2\n-home-ann", r"a\n~-rook2\n~"),
        ("-home-anna x-home-ann --home-ann", "-home-anna x-home-ann --home-ann"),
    ],
)
def test_the_names_that_claude_code_makes_of_directories_are_hidden(text: str, hidden: str) -> None:
    tokens = HidingTokens("/home/ann/rook")
    assert tokens.tokenised(f'{{"x":"{text}"}}') == f'{{"x":"{hidden}"}}'
    assert HidingTokens("/root").tokenised("x -root") == "x -root"
    assert HidingTokens(r"C:\Users\ann").tokenised('"/C--Users-ann-x"') == '"/~-x"'
