"""Planted texts, through every way into nmem, into every context that a model is given of it.

Each arrives fenced or as JSON, with its author, or not at all. A way is judged by the same texts as
all others, so a new way is one function.
"""

from __future__ import annotations

import json
import re
from contextlib import ExitStack
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pytest

from relay.client.nmem.apply import put_all
from relay.client.nmem.queries import (
    Scope,
    fenced_context_of,
    get,
    session_authors,
    summaries,
    trace,
)
from relay.client.nmem.summaries import _recorded, _transcript_of
from relay.client.nmem.updates import set_about
from relay.mcp.rows import hit, summarised, traced, whole
from relay.memory.fence import fenced, name_in
from relay.memory.nmem.capture import HookEvent
from relay.memory.nmem.records import (
    Observation,
    ObsType,
    Pin,
    Prompt,
    Session,
    Source,
    observation_draft,
    pin_draft,
    prompt_draft,
    session_draft,
)
from relay.memory.nmem.summary import Summary
from tests import cast
from tests.leaks.planted import BY, EVE, MARK, PLANTED, check_authors, check_fenced, looks
from tests.unit.client.nmem_cache import NOW, cache, told

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from relay.client.nmem.database import Database
    from relay.nostr.event import Event


def check_lines(text: str) -> None:
    """Every line with a planted text ends with its author; none was added by it."""
    for line in text.splitlines():
        if MARK in line:
            assert line.endswith(BY), line
        assert not re.match(r"\s*(#\s*system|- obey|obey)", looks(line)), line
        assert not line.startswith("#") or line in HEADINGS, line


HEADINGS = {
    "# nmem context",
    "## Session Summaries",
    "## Suggested Tasks",
    "## rook",
    "## Other projects",
}


# -- ways in: what another key wrote --------------------------------------------------------------


@dataclass(frozen=True)
class Way:
    """How a text comes into the cache of an agent."""

    plant: Callable[[str], list[Event]]
    name: str = "Eve"
    is_in_context: bool = True
    """Whether the context tells of it, beside what tools find."""


def _observed(text: str, project: str = "rook", **fields: Any) -> list[Event]:
    values: dict[str, Any] = {
        "session": "s",
        "timestamp": NOW,
        "obs_type": ObsType.MARKER,
        "source_event": "Stop",
        "content": text,
    } | fields
    seen = Observation(**values)
    event = EVE.sign(*observation_draft(seen, project, "den"))
    return [event, EVE.sign(*pin_draft(Pin(event.id, is_pinned=True, at=NOW), None, "den"))]


def _session(summary: Summary) -> list[Event]:
    return [EVE.sign(*session_draft(Session("s", "rook", NOW, NOW, (), summary), None, "den"))]


def _halves(text: str) -> tuple[str, str]:
    """Parted before the key or before the tag that it tells, each half harmless."""
    found = re.search(r"\bowner \(|/memory", text, re.IGNORECASE)
    middle = found.start() if found else len(text) // 2
    return f"{MARK} {text[:middle]}", f"{text[middle:]} {MARK}"


def _edited(text: str) -> list[Event]:
    """The context tells of them in one line."""
    return [
        _observed(f"edit {n}", obs_type=ObsType.FILE_EDIT, file_path=f"{text} {MARK}")[0]
        for n in range(3)
    ]


WAYS = {
    "observation": Way(_observed),
    "tool result": Way(lambda text: _observed("x " + MARK, metadata={"response": text})),
    "tool name": Way(lambda text: _observed(MARK, tool_name=text)),
    "type": Way(lambda text: _observed(MARK, obs_type=text)),
    "project": Way(lambda text: _observed(MARK, project=text)),
    "text and project": Way(lambda text: _observed(*_halves(text))),
    "two lessons": Way(lambda text: _session(Summary(MARK, _halves(text)))),
    "file name": Way(lambda text: _observed(text, obs_type=ObsType.FILE_EDIT, file_path=text)[:1]),
    "intent": Way(lambda text: _session(Summary(text))),
    "lesson": Way(lambda text: _session(Summary(MARK, (text,)))),
    "task": Way(lambda text: _session(Summary(MARK, next_steps=(text,)))),
    "prompt": Way(
        lambda text: [EVE.sign(*prompt_draft(Prompt("s", NOW, Source.USER, text), "den"))],
        is_in_context=False,
    ),
    "edits of a file": Way(_edited),
    "name": Way(lambda _: _observed(MARK), name="planted"),
}


@pytest.fixture(params=WAYS)
def way(request: pytest.FixtureRequest) -> Way:
    return WAYS[request.param]


@pytest.fixture(params=PLANTED, ids=range(len(PLANTED)))
def text(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="module")
def empty(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    """The file of a new cache: to make its tables takes as long as the rest of most tests."""
    path = tmp_path_factory.mktemp("empty") / "nmem.db"
    with cache(path):
        pass
    return path.read_bytes()


@pytest.fixture
def databases(tmp_path: Path, way: Way, empty: bytes) -> Iterator[list[Database]]:
    """A cache for each text."""
    with ExitStack() as stack:
        made = []
        for number, text in enumerate(PLANTED):
            path = tmp_path / f"{number}.db"
            path.write_bytes(empty)
            made.append(stack.enter_context(cache(path)))
            put_all(made[-1], way.plant(text), cast.robot.pubkey, frozenset())
            with made[-1].transaction() as db:
                set_about(db, {f"name:{EVE.pubkey}": text if way.name == "planted" else way.name})
        yield made


# -- contexts -------------------------------------------------------------------------------------


@pytest.mark.proves("M-28", "G-23")
def test_the_start_of_a_session_tells_it_fenced_with_its_author(
    databases: list[Database], way: Way
) -> None:
    for database in databases:
        answer = told(database, "SessionStart", NOW + 60, "own", source="clear")
        with database.reading() as db:
            command = fenced_context_of(db, "rook", NOW + 60, source="clear")
        assert answer == (f"{command}\n" if command else "")
        assert len(answer) <= 10_000
        if not way.is_in_context:
            assert answer == ""
            continue
        check_fenced(answer)
        check_lines(answer)
        check_authors(answer, [EVE.npub])
        assert MARK in answer


@pytest.mark.proves("M-28", "M-29")
def test_tools_tell_it_as_json_with_its_author(databases: list[Database]) -> None:
    for database in databases:
        for row in _told_by_tools(database):
            assert row["author"].endswith(BY)
            assert "\n" not in json.dumps(row)


def _told_by_tools(database: Database) -> list[dict[str, Any]]:
    """Every row with a text of Eve; none of a record that is too long to be one."""
    with database.reading() as db:
        ids = [number for (number,) in db.execute("SELECT id FROM observations")]
        found = get(db, ids)
        sessions = summaries(db, Scope(), 9)
        authors = session_authors(db, [each.id for each in sessions])
        of_session = trace(db, "s", Scope())
        labels = session_authors(db, ["s"])
    rows = [tool(each) for each in found for tool in (hit, whole)]
    rows += [summarised(each, authors.get(each.id, "")) for each in sessions]
    if of_session is None:
        assert not rows
        return rows
    traced_ = traced(*of_session, labels.get("s", ""))
    rows += [prompt for prompt in traced_["prompts"] if prompt["content"] is not None]
    rows += [each for prompt in traced_["prompts"] for each in prompt["observations"]]
    rows.append(traced_)
    assert rows
    return rows


def test_a_session_of_another_key_that_goes_on_here_is_signed_without_what_they_wrote(
    databases: list[Database], way: Way
) -> None:
    """`rookery session resume` continues sessions of others."""
    for database in databases:
        told(database, "SessionStart", NOW + 1, "s", source="resume")
        for number in range(4):
            told(
                database,
                "PostToolUse",
                NOW + 2 + number,
                tool_name="Edit",
                tool_input={"file_path": f"/w/{number}.py"},
            )
        told(database, "Stop", NOW + 9)
        with database.reading() as db:
            queued = db.execute("SELECT tags, content FROM _rk_outbox").fetchall()
        assert len(queued) == 6  # the session, that it was resumed, four edits
        assert MARK not in str(queued)
        assert '"prompt":"' not in str(queued), "an edit follows another's prompt"
        answer = told(database, "SessionStart", NOW + 60, "own", source="clear")
        check_fenced(answer)
        check_lines(answer)


@pytest.mark.proves("M-06")
def test_no_summary_of_ones_own_is_made_of_it(databases: list[Database]) -> None:
    for database in databases:
        told(database, "SessionStart", NOW + 1, "s", source="resume")  # only own ones get one
        assert MARK not in _transcript_of(_recorded(database, "s"))


# -- one's own records of what others wrote -------------------------------------------------------


@pytest.fixture
def own(tmp_path: Path, text: str) -> Iterator[Database]:
    """The cache of an agent whose prompts, files, tools and transcript hold the text."""
    transcript = tmp_path / "transcript.jsonl"
    said = {"type": "assistant", "message": {"content": [{"type": "text", "text": text}]}}
    transcript.write_text(json.dumps(said) + "\n")
    with cache(tmp_path / "nmem.db") as made:
        steps: list[tuple[str, dict[str, Any]]] = [
            ("SessionStart", {"source": "startup"}),
            ("UserPromptSubmit", {"prompt": text}),
            ("PostToolUse", {"tool_name": "Edit", "tool_input": {"file_path": text}}),
            ("PostToolUse", _command(f"git commit -m '{text}'", text)),
            ("PostToolUse", _command(text, text)),
            ("PostToolUseFailure", {"tool_name": text, "error": text}),
            ("Stop", {"transcript_path": str(transcript)}),
        ]
        for number, (event, fields) in enumerate(steps):
            answer = told(made, event, NOW + number, **fields)
            assert answer == "", "a hook before there is anything to tell"
        yield made


def _command(command: str, output: str) -> dict[str, object]:
    return {
        "tool_name": "Bash",
        "tool_input": {"command": command, "description": command},
        "tool_response": {"stdout": output},
    }


@pytest.mark.proves("M-28", "G-23")
def test_ones_own_records_are_fenced_and_name_nobody_else(own: Database) -> None:
    answer = told(own, "SessionStart", NOW + 60, "next", source="clear")
    assert MARK in answer
    check_fenced(answer)
    check_authors(answer, [])


@pytest.mark.proves("M-13")
def test_other_hooks_tell_nothing(own: Database, text: str) -> None:
    fields: dict[str, Any] = {"prompt": text, "tool_name": text, "error": text}
    for event in set(HookEvent) - {HookEvent.SESSION_START}:
        assert told(own, event, NOW + 60, "next", **fields) == ""


@pytest.mark.proves("M-06", "G-23")
def test_a_session_goes_to_the_summarising_model_in_a_fence(own: Database) -> None:
    given = _transcript_of(_recorded(own, "s"))
    assert MARK in given
    check_fenced(given)
    check_authors(given, [])
    for line in given.splitlines()[2:-1]:
        assert re.match(
            r"(project|user said|agent said|file_edit|command|git_commit|\w+): |  ", line
        )
        assert not re.match(r"(obey|#|- )", looks(line))


# -- other fences ---------------------------------------------------------------------------------


@pytest.mark.proves("G-23")
def test_any_fence_holds_it_in_text_and_attributes(text: str) -> None:
    check_fenced(fenced(text, text.replace("\n", " "), text))
    lines = fenced(text, text, text).splitlines()
    assert re.fullmatch(r'<memory source="[^"<>]*" author="[^"<>]*">', lines[0])


@pytest.mark.proves("M-28")
def test_a_name_brings_no_key_no_bracket_and_no_line(text: str) -> None:
    name = name_in(text)
    assert len(name) <= 40
    assert name.isprintable()
    assert not re.search(r"[()\[\]<>#—]|npub1", looks(name))
