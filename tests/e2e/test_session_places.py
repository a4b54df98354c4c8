"""One session, several places: resumed elsewhere, imported again, shared with a group."""

from __future__ import annotations

import json
import re
import socket
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

import pytest

from relay.client import Client
from relay.client.errors import PublishRefused
from tests import cast
from tests.e2e.machines import Machine, machine
from tests.harness.screen import on_screen

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    from relay.nostr.event import Event
    from tests.harness.relay_program import Rookery

pytestmark = pytest.mark.slow

SESSION = "5b0f6a1e-0002-4c55-9f2e-8a1d0000beef"


@pytest.fixture
async def first(rookery: Rookery) -> AsyncIterator[Machine]:
    async with machine(cast.robot, rookery.url) as first:
        yield first


@pytest.fixture
async def second(rookery: Rookery) -> AsyncIterator[Machine]:
    async with machine(cast.robot, rookery.url) as second:
        yield second


def on_branch(place: Machine, branch: str) -> None:
    (place.work / ".git" / "HEAD").write_text(f"ref: refs/heads/{branch}\n")


def line(cwd: object, number: int, content: Any, branch: str = "main", **more: object) -> bytes:
    role = "assistant" if isinstance(content, list) else "user"
    fields = {
        "cwd": str(cwd),
        "sessionId": SESSION,
        "gitBranch": branch,
        "type": role,
        "message": {"role": role, "content": content},
        "uuid": f"u{number}",
        "timestamp": f"2026-02-09T20:43:{number:02}.000Z",
        **more,
    }
    return json.dumps(fields, separators=(",", ":")).encode() + b"\n"


def a_session(cwd: object) -> bytes:
    """The second line was written on another branch."""
    call = {"type": "tool_use", "id": "t1", "name": "Read", "input": {"file": f"{cwd}/a.md"}}
    return b"".join(
        (
            line(cwd, 1, f"read {cwd}/a.md, please"),
            line(cwd, 2, [{"type": "text", "text": "I look"}, call], "fix"),
            line(cwd, 3, f"it is {cwd}/b.md"),
        )
    )


def projects(place: Machine, folder: Path | None = None) -> Path:
    """Where the agent's program keeps the sessions of a folder."""
    name = "".join(c if c.isalnum() else "-" for c in str((folder or place.work).resolve()))
    path = place.home / ".claude" / "projects" / name
    path.mkdir(parents=True, exist_ok=True)
    return path / f"{SESSION}.jsonl"


def in_a_minute() -> str:
    return (datetime.now(UTC) + timedelta(minutes=1)).isoformat().replace("+00:00", "Z")


async def rook(place: Machine, *args: str) -> tuple[str, str]:
    code, out, err = await place.run("session", *args)
    assert code == 0, (out, err)
    return out.decode(), err


async def stored(rookery: Rookery, **wanted: object) -> list[Event]:
    async with Client(rookery.url, cast.robot) as client:
        return await client.query({"limit": 5000, **wanted})


async def begun(first: Machine) -> Path:
    path = projects(first)
    path.write_bytes(a_session(first.work))
    out, _ = await rook(first, "import", str(path))
    assert out.endswith("7 stored, 0 duplicates\n")
    return path


@pytest.mark.proves("D-14", "D-29")
async def test_in_envelopes_too_a_resumed_session_is_there_once(
    rookery: Rookery, first: Machine, second: Machine
) -> None:
    path = projects(first)
    path.write_bytes(a_session(first.work))
    await rook(first, "import", "--pns", str(path))
    on_branch(second, "elsewhere")
    await rook(second, "resume", SESSION)
    with projects(second).open("ab") as file:
        file.write(line(second.work, 4, f"and {second.work}/c.md", "elsewhere"))
    out, _ = await rook(second, "import", "--pns", str(projects(second)))
    assert out.endswith("2 stored, 7 duplicates\n")


async def test_a_name_that_the_user_gave_is_the_title(rookery: Rookery, first: Machine) -> None:
    path = await begun(first)
    with path.open("ab") as file:
        file.write(b'{"type":"custom-title","customTitle":"Tea time"}\n')
    await rook(first, "import", str(path))
    (row,) = json.loads((await rook(first, "list", "--json"))[0])
    assert row["title"] == "Tea time"
    assert "custom-title\n  Tea time" in (await rook(first, "show", SESSION))[0]


@pytest.mark.parametrize("layout", [(), ("--classic",)])
async def test_the_name_that_a_group_is_told_has_no_secret_and_no_home_folder(
    rookery: Rookery, first: Machine, layout: tuple[str, ...]
) -> None:
    await first.run("group", "create", "tea")
    path = projects(first)
    name = {"type": "custom-title", "customTitle": f"{cast.alice.nsec} of {first.home}/tea"}
    path.write_bytes(a_session(first.work) + json.dumps(name).encode() + b"\n")
    await rook(first, "import", "--group", "tea", "--strip", "secrets", *layout, str(path))
    (state,) = await stored(rookery, kinds=[31988])
    assert state.tag("custom_title") == "[REDACTED] of ~/tea"


@pytest.mark.proves("D-14", "D-21", "D-24")
async def test_a_session_goes_on_elsewhere_and_no_turn_is_there_twice(
    rookery: Rookery, first: Machine, second: Machine
) -> None:
    path = await begun(first)
    on_branch(second, "elsewhere")
    out, _ = await rook(second, "resume", SESSION)
    assert out == f"claude --resume {SESSION}\n"
    there = projects(second)
    lines = [json.loads(raw) for raw in there.read_bytes().splitlines()]
    assert {each["gitBranch"] for each in lines} == {"elsewhere"}
    assert {each["cwd"] for each in lines} == {str(second.work)}
    assert str(first.home).encode() not in there.read_bytes()
    with there.open("ab") as file:
        file.write(line(second.work, 4, f"and {second.work}/c.md", "elsewhere"))

    out, err = await rook(second, "import", str(there))
    assert (out.split(", ", 3)[3], err) == ("2 stored, 7 duplicates\n", "")
    assert (await rook(second, "import", str(there)))[0].endswith("0 stored, 9 duplicates\n")
    notes = json.loads((await rook(second, "show", SESSION, "--json"))[0])
    assert [note["content"].split(" ")[0] for note in notes] == ["read", "I", "Read:", "it", "and"]
    (row,) = json.loads((await rook(second, "list", "--json"))[0])
    assert (row["session"], row["notes"]) == (SESSION, 5)

    # Back on the first machine, whose file is what it was.
    on_branch(first, "main")
    out, err = await rook(first, "resume", SESSION)
    assert err.startswith(f"added 1 line to {path}; in {first.work.resolve()} run:")
    went_on = path.read_bytes()
    assert went_on.startswith(a_session(first.work))
    assert json.loads(went_on.splitlines()[-1])["message"]["content"] == f"and {first.work}/c.md"
    assert (await rook(first, "import", str(path)))[0].endswith("0 stored, 9 duplicates\n")
    out, _ = await rook(first, "export", SESSION)
    assert out.encode().startswith(a_session(first.work))


@pytest.mark.proves("D-14")
async def test_a_resumed_session_is_followed_without_sending_a_turn_twice(
    rookery: Rookery, first: Machine, second: Machine
) -> None:
    await begun(first)
    on_branch(second, "elsewhere")
    await rook(second, "resume", SESSION)
    with projects(second).open("ab") as file:
        file.write(line(second.work, 4, f"and {second.work}/c.md", "elsewhere"))
    out, _ = await rook(second, "follow", "--once", str(second.home / ".claude" / "projects"))
    assert out == f"{SESSION}: 4 lines, 2 stored, 7 duplicates\n"
    with projects(second).open("ab") as file:
        file.write(line(second.work, 5, f"at last {second.work}/d.md", "elsewhere"))
    out, _ = await rook(second, "follow", "--once", str(second.home / ".claude" / "projects"))
    assert out == f"{SESSION}: 1 line, 2 stored, 0 duplicates\n"
    assert len(await stored(rookery, kinds=[1988])) == 6
    texts = {note.content for note in await stored(rookery, kinds=[1988])}
    assert f"at last {first.work}/d.md" in texts, "paths are those of the first import"


@pytest.mark.parametrize("layout", [(), ("--classic",)])
@pytest.mark.parametrize("command", ["import", "follow --once"])
async def test_a_forgotten_session_comes_back_from_no_folder_and_in_no_layout(
    rookery: Rookery, first: Machine, second: Machine, command: str, layout: tuple[str, ...]
) -> None:
    await begun(first)
    await rook(second, "resume", SESSION)
    await rook(first, "forget", SESSION, "--yes")
    args = [*command.split(), *layout, str(projects(second))]
    out, err = await rook(second, *args)
    assert "0 stored" in out
    assert "session forget" in err
    assert "--session" in err
    assert not await stored(rookery, kinds=[1988, 1989, 31988])

    # What is said later is not forgotten, and tells nothing of what was.
    with projects(second).open("ab") as file:
        file.write(b'{"type":"custom-title","customTitle":"read a.md"}\n')
        file.write(line(second.work, 4, "later", timestamp=in_a_minute()))
    await rook(second, *args)
    notes = await stored(rookery, kinds=[1988])
    assert [note.content for note in notes if not note.content.startswith("{")] == ["later"]
    (row,) = json.loads((await rook(first, "list", "--json"))[0])
    assert row["title"] == "later"
    everything = await stored(rookery, kinds=[1988, 1989, 31988])
    assert not any(b"a.md" in event.raw for event in everything)


@pytest.mark.parametrize("layout", [(), ("--classic",)])
@pytest.mark.parametrize("command", ["import", "follow --once"])
async def test_no_other_file_of_a_forgotten_session_brings_it_back_under_its_own_name(
    rookery: Rookery, first: Machine, command: str, layout: tuple[str, ...]
) -> None:
    path = await begun(first)
    other = first.home / "other"
    other.mkdir()
    projects(first, other).write_bytes(a_session(other) + line(other, 4, "went on here"))
    path.write_bytes(a_session(first.work) + line(first.work, 5, "and on here"))
    backup = path.with_name("backup.jsonl")
    backup.write_bytes(a_session(first.work).replace(b"I look", b"I looked"))
    await rook(first, "forget", SESSION, "--yes")

    args = [*command.split(), *layout, str(first.home / ".claude" / "projects")]
    _, err = await rook(first, *args)
    assert err.count("session forget") == 3
    assert not await stored(rookery, kinds=[1988, 1989, 31988])

    with backup.open("ab") as file:
        file.write(line(first.work, 6, "later", timestamp=in_a_minute()))
    await rook(first, *args)
    notes = await stored(rookery, kinds=[1988])
    assert {(note.d, note.content) for note in notes} == {("backup", "later")}
    states = await stored(rookery, kinds=[31988])
    assert not any(b"a.md" in event.raw for event in states)


@pytest.mark.parametrize("layout", [(), ("--classic",)])
@pytest.mark.parametrize("command", ["import", "follow --once"])
async def test_no_fork_of_a_forgotten_session_brings_it_back(
    rookery: Rookery, first: Machine, command: str, layout: tuple[str, ...]
) -> None:
    path = await begun(first)
    copies = [json.loads(raw) for raw in a_session(first.work).splitlines()]
    for fields in copies:
        marked = {"sessionId": SESSION, "messageUuid": fields["uuid"]}
        fields.update(sessionId="fork", forkedFrom=marked)
    own = line(first.work, 4, "later", sessionId="fork", timestamp=in_a_minute())
    fork = path.with_name("fork.jsonl")
    args = [*command.split(), *layout, str(path.parent)]
    await rook(first, "forget", SESSION, "--yes")
    fork.write_bytes(b"".join(json.dumps(fields).encode() + b"\n" for fields in copies) + own)
    _, err = await rook(first, *args)
    assert err.count("session forget") == 2
    notes = await stored(rookery, kinds=[1988])
    assert {(note.d, note.content) for note in notes} == {("fork", "later")}
    everything = await stored(rookery, kinds=[1988, 1989, 31988])
    assert not any(b"a.md" in event.raw for event in everything)


@pytest.mark.parametrize("layout", [(), ("--classic",)])
async def test_a_fork_that_is_stored_already_is_named(
    rookery: Rookery, first: Machine, layout: tuple[str, ...]
) -> None:
    path = await begun(first)
    fork = path.with_name("fork.jsonl")
    fork.write_bytes(a_session(first.work).replace(SESSION.encode(), b"fork"))
    await rook(first, "import", *layout, str(fork))
    _, err = await rook(first, "forget", SESSION, "--yes")
    assert err == (
        "fork holds lines of this session and of another, and stays: `rookery session forget --"
        " fork` deletes it\n"
    )


async def test_a_forgotten_session_can_be_stored_under_another_id(
    rookery: Rookery, first: Machine
) -> None:
    path = await begun(first)
    await rook(first, "forget", SESSION, "--yes")
    out, err = await rook(first, "import", "--session", "again", str(path))
    assert (out.endswith("7 stored, 0 duplicates\n"), err) == (True, "")


async def test_what_its_sub_agents_wrote_is_forgotten_with_a_session(
    rookery: Rookery, first: Machine
) -> None:
    path = await begun(first)
    beside = path.with_name("agent-abc.jsonl")
    below = path.with_suffix("") / "subagents" / "agent-def.jsonl"
    below.parent.mkdir(parents=True)
    for number, file in enumerate((beside, below)):
        file.write_bytes(line(first.work, 10 + number, f"look into {file.stem}", isSidechain=True))
    of_another = path.with_name("agent-eee.jsonl")
    of_another.write_bytes(line(first.work, 12, "and here", sessionId="another"))
    path.with_name("another.jsonl").write_bytes(line(first.work, 13, "hi", sessionId="another"))
    # As earlier versions stored it: its state does not name the session.
    await rook(first, "import", str(below), "--session", below.stem)
    await rook(first, "import", str(path.parent))
    out, err = await rook(first, "forget", SESSION, "--yes")
    assert (out, err) == (
        f"deleted 8 events of session {SESSION}\n"
        f"deleted 3 events of session agent-abc, whose lines name session {SESSION}\n"
        f"deleted 3 events of session agent-def, whose lines name session {SESSION}\n",
        "",
    )
    left = {event.d for event in await stored(rookery, kinds=[1988, 1989, 31988])}
    assert left == {"another", "agent-eee"}
    await rook(first, "import", str(path.parent))
    left = {event.d for event in await stored(rookery, kinds=[1988, 1989, 31988])}
    assert left == {"another", "agent-eee"}


async def test_a_forgotten_session_leaves_what_other_sessions_wrote_too_and_says_so(
    rookery: Rookery, first: Machine
) -> None:
    path = await begun(first)
    for number, session in enumerate((SESSION, "another")):
        file = first.home / f"{number}.jsonl"
        file.write_bytes(line(first.work, 10 + number, "look", sessionId=session))
        await rook(first, "import", str(file), "--session", "agent-abc")
    out, err = await rook(first, "forget", SESSION, "--yes")
    assert out == f"deleted 8 events of session {SESSION}\n"
    assert err == (
        "agent-abc holds lines of this session and of another, and stays: `rookery session forget"
        " -- agent-abc` deletes it\n"
    )
    assert {event.d for event in await stored(rookery, kinds=[1988, 1989])} == {"agent-abc"}
    assert path.exists()


async def test_a_session_of_a_group_and_of_nobody_else_is_forgotten_whole(
    rookery: Rookery, first: Machine, second: Machine
) -> None:
    """A request to delete names no address if its events are not all of one group."""
    await first.run("group", "create", "tea")
    path = await begun(first)
    await rook(first, "import", "--group", "tea", str(path))
    await rook(second, "resume", SESSION)
    await rook(first, "forget", SESSION, "--yes")
    await rook(second, "import", str(projects(second)))
    await rook(second, "import", "--group", "tea", str(projects(second)))
    assert not await stored(rookery, kinds=[1988, 1989, 31988])


@pytest.mark.parametrize("command", ["import", "follow --once"])
@pytest.mark.parametrize("end", ["group deleted", "key removed", "key left", "request deleted"])
async def test_a_session_that_was_forgotten_in_a_group_does_not_come_back_without_it(
    rookery: Rookery, first: Machine, end: str, command: str
) -> None:
    in_tea = ["h", "tea"]
    async with Client(rookery.url, cast.owner) as owner, Client(rookery.url, cast.robot) as robot:
        await owner.send(9007, "", [in_tea])
        await owner.send(9002, "", [in_tea, ["private"]])
        await owner.send(9000, "", [in_tea, ["p", cast.alice.pubkey]])
        await owner.send(9000, "", [in_tea, ["p", cast.robot.pubkey]])
        path = projects(first)
        path.write_bytes(a_session(first.work))
        await rook(first, "import", "--group", "tea", str(path))
        await rook(first, "forget", SESSION, "--yes")
        async with Client(rookery.url, cast.alice) as alice:
            seen = [await client.query({"kinds": [5]}) for client in (alice, robot)]
        assert len(seen[0]) == len(seen[1]) - 1, "what outlives the group is the author's"

        if end == "group deleted":
            await owner.send(9008, "", [in_tea])
        elif end == "key removed":
            await owner.send(9001, "", [in_tea, ["p", cast.robot.pubkey]])
        elif end == "key left":
            await robot.send(9022, "", [in_tea])
        else:
            requests = await owner.query({"kinds": [5], "authors": [cast.robot.pubkey]})
            for each in requests:
                with suppress(PublishRefused):
                    await owner.send(9005, "", [in_tea, ["e", each.id]])
    _, err = await rook(first, *command.split(), str(path))
    assert "session forget" in err
    assert not await stored(rookery, kinds=[1988, 1989, 31988])


@pytest.mark.parametrize("command", ["import", "follow --once"])
async def test_a_session_whose_file_is_gone_stays_as_it_was_though_its_sub_agents_file_is_there(
    rookery: Rookery, first: Machine, command: str
) -> None:
    path = await begun(first)
    agents = path.with_suffix("") / "subagents" / "agent-abc.jsonl"
    agents.parent.mkdir(parents=True)
    agents.write_bytes(line(first.work, 10, "look", isSidechain=True, agentId="abc"))
    path.unlink()
    await rook(first, *command.split(), str(path.parent))
    rows = json.loads((await rook(first, "list", "--json"))[0])
    assert {(row["session"], row["notes"]) for row in rows} == {(SESSION, 4), ("agent-abc", 1)}
    await rook(first, "export", SESSION, "-o", str(path))
    assert path.read_bytes() == a_session(first.work)
    await rook(first, "forget", SESSION, "--yes")
    assert not await stored(rookery, kinds=[1988, 1989, 31988])


@pytest.mark.proves("D-14")
async def test_two_folders_of_one_machine_hold_one_session(
    rookery: Rookery, first: Machine
) -> None:
    await begun(first)
    other = first.home / "other"
    other.mkdir()
    await rook(first, "resume", SESSION, "--cwd", str(other))
    with projects(first, other).open("ab") as file:
        file.write(line(other, 4, "and on"))
    for command in ("import", "follow"):
        args = [command, str(first.home / ".claude" / "projects")]
        out, _ = await rook(first, *args, *(["--once"] if command == "follow" else []))
        assert {each.split(":")[0] for each in out.splitlines()} == {SESSION}
        (row,) = json.loads((await rook(first, "list", "--json"))[0])
        assert (row["session"], row["notes"]) == (SESSION, 5)


async def test_a_group_is_not_told_what_the_machine_is(rookery: Rookery, first: Machine) -> None:
    assert (await first.run("group", "create", "tea"))[0] == 0
    path = projects(first)
    outside = line("/opt/elsewhere", 4, f"see {first.home}/.ssh/config")
    path.write_bytes(a_session(first.work) + outside)
    await rook(first, "import", "--group", "tea", str(path))
    shared = await stored(rookery, **{"#h": ["tea"], "kinds": [1988, 1989, 31988]})
    assert {event.kind for event in shared} == {1988, 1989, 31988}
    seen = " ".join(event.raw.decode() for event in shared)
    for secret in (str(first.home), str(first.work), "/opt/elsewhere"):
        assert secret not in seen
    (state,) = [event for event in shared if event.kind == 31988]
    assert [state.tag(name) for name in ("hostname", "home_dir", "cwd")] == ["", "", ""]
    assert {"read ./a.md, please", "see ~/.ssh/config"} <= {event.content for event in shared}
    out, err = await rook(first, "export", SESSION, "--cwd", str(first.work))
    assert out.encode().startswith(a_session(first.work))
    assert "1 lines were stripped of machine" in err
    # The notes do not depend on the place: nothing is sent again from another one.
    moved = first.home / "moved.jsonl"
    moved.write_bytes(path.read_bytes().replace(str(first.work).encode(), b"/new/place"))
    out, _ = await rook(first, "import", "--group", "tea", str(moved))
    assert out.endswith(" 0 stored, 9 duplicates\n")


async def test_a_group_is_told_what_the_machine_is_when_asked(
    rookery: Rookery, first: Machine
) -> None:
    await first.run("group", "create", "tea")
    path = projects(first)
    path.write_bytes(a_session(first.work))
    await rook(first, "import", "--group", "tea", "--with-machine", str(path))
    (state,) = await stored(rookery, kinds=[31988])
    found = [state.tag(name) for name in ("hostname", "home_dir", "cwd")]
    assert found == [socket.gethostname(), str(first.home), str(first.work)]


async def test_the_permission_mode_is_left_out_when_asked(rookery: Rookery, first: Machine) -> None:
    path = projects(first)
    path.write_bytes(line(first.work, 1, "hi", permissionMode="bypassPermissions"))
    await rook(first, "import", "--strip", "permission-mode", str(path))
    seen = await stored(rookery, kinds=[1988, 1989, 31988])
    assert not any(b"bypassPermissions" in event.raw for event in seen)
    _, err = await rook(first, "export", SESSION)
    assert "1 lines were stripped of permission-mode" in err


async def test_a_session_is_read_on_a_terminal(rookery: Rookery, first: Machine) -> None:
    await begun(first)
    for name, plain in (
        ("xterm-256color", ""),
        ("xterm-256color", "1"),
        ("vt100", ""),
        ("vt220", ""),
    ):
        environ = {**first.environ, "TERM": name, "NO_COLOR": plain}
        async with on_screen("session", "view", SESSION, env=environ, cwd=first.work) as terminal:
            await terminal.until("I look")
            await terminal.until("? for keys")
            terminal.type("/milk\r")
            await terminal.until("not found")
            terminal.type("?")
            await terminal.until("next, previous match")
            terminal.type("qq")
            assert await terminal.exit_code() == 0
            has_colours = re.search("\x1b\\[3[1-7]m", terminal.text) is not None
            assert has_colours == (name == "xterm-256color" and not plain)


@pytest.mark.parametrize("name", ["dumb", "no-such-terminal"])
async def test_a_terminal_that_cannot_be_drawn_on_gets_the_whole_session(
    rookery: Rookery, first: Machine, name: str
) -> None:
    await begun(first)
    environ = {**first.environ, "TERM": name}
    async with on_screen("session", "view", SESSION, env=environ, cwd=first.work) as terminal:
        await terminal.ended()
        assert await terminal.exit_code() == 0
        assert "I look" in terminal.text
        assert "? for keys" not in terminal.text
