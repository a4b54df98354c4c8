"""Sessions in the form of the original's document: notes threaded by `e`, the line in the note.

The writer and the reader here are built from the document alone and share no code with the product.
"""

from __future__ import annotations

import json
import random
import re
from typing import TYPE_CHECKING, Any

import pytest

from relay.client import Client
from tests import cast
from tests.golden import HERE

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from relay.nostr.event import Event
    from tests.e2e.machines import Machine
    from tests.harness.relay_program import Rookery

pytestmark = pytest.mark.slow

SESSION = "5b0f6a1e-0001-4c55-9f2e-8a1d0000c1a5"
HOME = "/home/ann/rook"
AT = 1_770_669_815
GOLDEN = HERE / "memory" / "conversation"


def lines_of_a_session(number: int) -> list[str]:
    """A question, an answer with a tool call, its result, over and over; all in one second."""
    told: list[str] = []
    for at in range(number):
        role = ("user", "assistant", "user")[at % 3]
        content: Any = (
            f"question {at}",
            [
                {"type": "text", "text": f"I look {at}"},
                {"type": "tool_use", "id": f"t{at}", "name": "Read", "input": {"n": at}},
            ],
            [{"type": "tool_result", "tool_use_id": f"t{at - 1}", "content": f"found {at}"}],
        )[at % 3]
        fields = {
            "parentUuid": f"u{at - 1}" if at else None,
            "cwd": HOME,
            "sessionId": SESSION,
            "version": "2.1.42",
            "gitBranch": "main",
            "type": role,
            "message": {"role": role, "content": content},
            "uuid": f"u{at}",
            "timestamp": "2026-02-09T20:43:35.000Z",
        }
        told.append(json.dumps(fields, separators=(",", ":")))
    return told


# -- a writer from the document ------------------------------------------------------------------


def blocks_in(line: str) -> list[tuple[str, str]]:
    """Role and text of each note of a line, by the document's table."""
    fields = json.loads(line)
    content = fields.get("message", {}).get("content", "")
    if isinstance(content, str):
        return [(fields["type"], content)]
    role_of = {"text": fields["type"], "tool_use": "tool_call", "tool_result": "tool_result"}
    return [
        (
            role_of[block["type"]],
            block.get("text") or block.get("content") or f"{block['name']}: {block['input']}",
        )
        for block in content
    ]


def written(lines: Iterable[str]) -> list[Event]:
    """One note per block, each with the line in it, all of one second."""
    notes: list[Event] = []
    for line in lines:
        for role, content in blocks_in(line):
            thread = []
            if notes:
                thread = [["e", notes[0].id, "", "root"], ["e", notes[-1].id, "", "reply"]]
            tags = [
                ["d", SESSION],
                ["session-slug", "quiet-rook"],
                *thread,
                ["source", "claude-code"],
                ["role", role],
                ["turn-type", json.loads(line)["type"]],
                ["t", "ai-conversation"],
                ["source-data", line],
            ]
            notes.append(cast.robot.sign(1988, tags, content, AT))
    return notes


async def publish(url: str, events: Sequence[Event]) -> None:
    shuffled = list(events)
    random.Random(7).shuffle(shuffled)
    async with Client(url, cast.robot) as client:
        report = await client.publish_many(shuffled)
    assert not report.refused


@pytest.mark.proves("D-18", "D-25")
async def test_notes_of_one_second_are_shown_and_exported_in_the_order_of_their_replies(
    rookery: Rookery, robot: Machine
) -> None:
    lines = lines_of_a_session(60)
    notes = written(lines)
    await publish(rookery.url, notes)
    code, out, err = await robot.run("session", "show", SESSION, "--json")
    assert (code, err) == (0, "")
    assert [note["id"] for note in json.loads(out)] == [note.id for note in notes]
    code, out, err = await robot.run("session", "export", SESSION)
    assert code == 0, err
    assert out.decode() == "".join(f"{line}\n" for line in lines)
    assert "placed by time" not in err


@pytest.mark.proves("D-25")
async def test_where_the_chain_is_broken_time_decides_and_that_is_said(
    rookery: Rookery, robot: Machine
) -> None:
    lines = lines_of_a_session(30)
    notes = written(lines)
    left = notes[:10] + notes[11:]
    await publish(rookery.url, left)
    code, out, err = await robot.run("session", "show", SESSION, "--json")
    said = "the reply chain is broken: 1 note is placed by time\n"
    assert (code, err) == (0, said)
    assert [note["id"] for note in json.loads(out)] == [note.id for note in left]
    code, _, err = await robot.run("session", "export", SESSION)
    assert code == 0
    assert err.startswith(said)


# -- a reader from the document ------------------------------------------------------------------


def chained(notes: Iterable[Event]) -> list[Event]:
    """By NIP-10: the first note has no `e`, each other one names the root and the one before."""
    after: dict[str | None, Event] = {}
    for note in notes:
        marks = {tag[3]: tag[1] for tag in note.tags if tag[0] == "e"}
        assert set(marks) in (set(), {"root", "reply"})
        assert marks.get("reply") not in after, "one note before each"
        after[marks.get("reply")] = note
    chain: list[Event] = []
    while (following := after.get(chain[-1].id if chain else None)) is not None:
        roots = {tag[1] for tag in following.tags if tag[3:] == ["root"]}
        assert roots == {first.id for first in chain[:1]}
        chain.append(following)
    assert len(chain) == len(after)
    return chain


def expanded(value: Any, cwd: str) -> Any:
    """With its relative paths made absolute."""
    if isinstance(value, str):
        return re.sub(r"(?<![\w./-])\.(?=/|$)", cwd, value)
    if isinstance(value, list):
        return [expanded(item, cwd) for item in value]
    if isinstance(value, dict):
        return {name: expanded(item, cwd) for name, item in value.items()}
    return value


def rebuilt(notes: Iterable[Event], cwd: str) -> list[dict[str, Any]]:
    """The lines of the file, for this directory."""
    texts = [tag[1] for note in chained(notes) for tag in note.tags if tag[0] == "source-data"]
    return [expanded(json.loads(text), cwd) for text in texts]


async def stored(url: str, *kinds: int) -> list[Event]:
    async with Client(url, cast.robot) as client:
        return await client.query({"kinds": list(kinds), "limit": 5000})


@pytest.mark.proves("D-18", "D-23")
async def test_a_reader_of_the_document_rebuilds_a_classic_session(
    rookery: Rookery, robot: Machine
) -> None:
    lines = [line.replace("question 3", f"read {HOME}/a.md") for line in lines_of_a_session(30)]
    path = robot.home / f"{SESSION}.jsonl"
    path.write_text("".join(f"{line}\n" for line in lines))
    code, out, err = await robot.run("session", "import", "--classic", str(path))
    assert (code, err) == (0, "")
    assert out.decode() == (
        f"{SESSION}: 30 lines, 40 notes, 0 source events, 40 stored, 0 duplicates\n"
    )
    assert await stored(rookery.url, 1989) == []
    notes = await stored(rookery.url, 1988)
    assert HOME not in "".join(note.tag("source-data") or "" for note in notes)
    allowed = {"d", "session-slug", "e", "source", "source-version", "role", "model", "turn-type"}
    for note in notes:
        assert {tag[0] for tag in note.tags} <= {*allowed, "t", "source-data", "paths"}
    assert rebuilt(notes, HOME) == [json.loads(line) for line in lines]
    assert rebuilt(notes, "/elsewhere") == [
        json.loads(line.replace(HOME, "/elsewhere")) for line in lines
    ]


@pytest.mark.proves("D-18", "D-21")
@pytest.mark.parametrize("name", sorted(path.stem for path in GOLDEN.glob("*.jsonl")))
async def test_a_classic_session_comes_out_byte_for_byte(
    rookery: Rookery, robot: Machine, name: str
) -> None:
    path = GOLDEN / f"{name}.jsonl"
    code, out, err = await robot.run("session", "import", "--classic", "--session", "c", str(path))
    assert (code, err) == (0, "")
    assert (await robot.run("session", "verify", "c", str(path)))[:2] == (0, b"identical\n")
    code, out, err = await robot.run("session", "export", "c")
    assert (code, out) == (0, path.read_bytes())
    assert "cannot be restored" not in err
    assert await stored(rookery.url, 1989) == []
