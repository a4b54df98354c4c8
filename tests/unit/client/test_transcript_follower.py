"""A session file that somebody goes on writing: sent line by line, taken up again, written anew."""

from __future__ import annotations

import errno
import os
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from relay.client import Client, PublishRefused, Transcripts
from relay.client.transcripts import follower as follower_module
from relay.client.transcripts.files import NoFile, session_file
from relay.client.transcripts.follower import Follower
from relay.client.transcripts.tail import FileChange, Tail, Update
from relay.memory.transcripts.plan import Plan
from tests.cast import robot
from tests.harness.fake_relay import refusing
from tests.unit.client.conftest import TIMEOUTS
from tests.unit.memory.transcripts.telling import SESSION, line, told

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from relay.client.transcripts.files import SessionFile
    from relay.client.transcripts.follower import Step
    from relay.memory.draft import Draft
    from tests.harness.fake_relay import FakeRelay, Visitor

NOW = 1_800_000_000
LINES = [line(message=f"line {number}") for number in range(8)]
HEADLESS = b'{"type":"summary","summary":"tea"}\n'


def put(path: Path, data: bytes) -> None:
    path.write_bytes(data)


def remove(path: Path) -> None:
    path.unlink()


def link(path: Path, target: str) -> None:
    path.symlink_to(target)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "live" / "session.jsonl"


def write(path: Path, *lines: bytes) -> None:
    path.parent.mkdir(exist_ok=True)
    with path.open("ab") as file:
        file.write(b"".join(lines))


class Begun(Tail):
    """Converted as soon as it names its session."""

    def more(self) -> Update:
        update = super().more()
        if update.change is FileChange.IDENTIFIED:
            self.begin(None)
            return super().more()
        return update


def tail(path: Path, plan: Plan | None = None) -> Tail:
    """One run of a program."""
    return Begun(path, robot.pubkey, plan or Plan(), path.parent.parent / "places" / "a.place")


def texts(drafts: list[Draft]) -> list[str]:
    return [draft.content for draft in drafts if draft.kind == 1988]


def test_a_line_is_converted_once_complete(path: Path) -> None:
    write(path, LINES[0], LINES[1][:20])
    tailed = tail(path)
    assert texts(tailed.more().drafts) == ["line 0"]
    assert tailed.more().change is FileChange.NOTHING
    write(path, LINES[1][20:-1])
    assert tailed.more().change is FileChange.NOTHING
    write(path, b"\n", LINES[2])
    update = tailed.more()
    assert (update.change, update.lines, texts(update.drafts)) == (
        FileChange.GREW,
        2,
        ["line 1", "line 2"],
    )


def test_line_by_line_gives_the_events_of_the_whole_file(path: Path) -> None:
    tailed = tail(path)
    drafts = []
    for raw in LINES:
        write(path, raw)
        drafts += tailed.more().drafts
    assert [robot.sign(*draft).id for draft in drafts] == [e.id for e in told(b"".join(LINES))]


async def test_a_file_that_names_no_session_is_read_again_once_it_has_changed(
    fake: FakeRelay, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    read: list[Path] = []

    def noted(path: Path, root: Path | None) -> SessionFile:
        read.append(path)
        return session_file(path, root)

    monkeypatch.setattr(follower_module, "session_file", noted)
    write(path, HEADLESS)
    (path.parent / "empty.jsonl").touch()
    steps: list[Step] = []
    async with follower(fake, path.parent, steps) as following:
        for _ in range(5):
            await following.poll()
        assert sorted(read) == [path.parent / "empty.jsonl", path]
        write(path, LINES[0])
        await following.poll()
        await following.poll()
        assert read[2:] == [path]
    assert ids(fake) == {event.id for event in told(HEADLESS + LINES[0])}


@pytest.mark.parametrize(
    "error", [OSError(errno.EMFILE, "too many open files"), NoFile("there is no file")]
)
async def test_a_file_that_could_not_be_opened_for_a_time_is_read_later(
    fake: FakeRelay, path: Path, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    def fails(path: Path, root: Path | None) -> SessionFile:
        raise error

    write(path, LINES[0])
    async with follower(fake, path.parent, []) as following:
        with monkeypatch.context() as failing:
            failing.setattr(follower_module, "session_file", fails)
            await following.poll()
        assert ids(fake) == set()
        await following.poll()
    assert ids(fake) == {event.id for event in told(LINES[0])}


def test_nothing_is_converted_before_the_directory_is_known(path: Path) -> None:
    write(path, HEADLESS)
    tailed = tail(path)
    assert (tailed.more().change, tailed.session) == (FileChange.NOTHING, None)
    write(path, LINES[0])
    drafts = tailed.more().drafts
    assert [robot.sign(*draft).id for draft in drafts] == [e.id for e in told(HEADLESS + LINES[0])]
    assert (tailed.session, tailed.base) == (SESSION, "/w/rook")


def test_a_file_without_a_directory_is_converted_anyway(path: Path) -> None:
    write(path, b'{"sessionId":"s-9","text":"%s"}\n' % (b"x" * (1 << 20)))
    tailed = tail(path)
    assert len(tailed.more().drafts) > 20
    assert tailed.session == "s-9"


def test_sent_lines_are_not_returned_after_a_restart(path: Path) -> None:
    write(path, *LINES[:3])
    first = tail(path)
    first.more()
    first.sent()
    write(path, *LINES[3:5])
    again = tail(path)
    assert again.resume() is FileChange.NOTHING
    drafts = again.more().drafts
    assert texts(drafts) == ["line 3", "line 4"]
    assert {robot.sign(*d).id for d in drafts} < {e.id for e in told(b"".join(LINES[:5]))}


def test_unsent_lines_are_returned_again(path: Path) -> None:
    write(path, *LINES[:3])
    tail(path).more()
    again = tail(path)
    assert again.resume() is FileChange.NOTHING
    assert texts(again.more().drafts) == ["line 0", "line 1", "line 2"]


def test_another_plan_begins_at_the_start(path: Path) -> None:
    write(path, *LINES[:3])
    first = tail(path)
    first.more()
    first.sent()
    again = tail(path, Plan(group="tea"))
    assert again.resume() is FileChange.NOTHING
    assert len(again.more().drafts) == 6


@pytest.mark.parametrize("content", [b"", b"{}", b"no json", b"[1]"])
def test_an_unreadable_offset_file_is_ignored(path: Path, content: bytes) -> None:
    write(path, *LINES[:2])
    place = path.parent.parent / "places" / "a.place"
    place.parent.mkdir()
    place.write_bytes(content)
    tailed = tail(path)
    assert tailed.resume() is FileChange.NOTHING
    assert len(tailed.more().drafts) == 4


def test_two_programs_that_follow_one_file_save_their_offsets_at_the_same_time(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One of them ended: the other had renamed the new file of both."""
    write(path, *LINES[:2])
    ours, theirs = tail(path), tail(path)
    for tailed in (ours, theirs):
        tailed.more()
    replace, between = Path.replace, [theirs.sent]

    def replace_after_theirs(self: Path, target: Path) -> Path:
        while between:
            between.pop()()
        return replace(self, target)

    monkeypatch.setattr(Path, "replace", replace_after_theirs)
    ours.sent()
    assert [file.name for file in (path.parent.parent / "places").iterdir()] == ["a.place"]
    again = tail(path)
    again.resume()
    assert again.more().drafts == []


def changed(path: Path, how: str) -> list[bytes]:
    """The file written anew, in one of the ways that programs have; its lines."""
    match how:
        case "cut":
            new = LINES[:1]
            os.truncate(path, len(LINES[0]))
        case "in place":
            new = [LINES[5], *LINES[1:4]]
            path.write_bytes(b"".join(new))
        case "in place, longer":
            new = [LINES[0], LINES[6], *LINES[:3]]
            path.write_bytes(b"".join(new))
        case _:
            new = [line(message="other"), *LINES[1:6]]
            other = path.with_suffix(".new")
            other.write_bytes(b"".join(new))
            other.replace(path)
    return new


HOW = ["cut", "in place", "in place, longer", "another file"]


@pytest.mark.parametrize("how", HOW)
def test_a_rewritten_file_is_converted_from_its_start(path: Path, how: str) -> None:
    write(path, *LINES[:3])
    tailed = tail(path)
    tailed.more()
    new = changed(path, how)
    assert tailed.more().change is FileChange.REWRITTEN
    assert tailed.session == SESSION
    drafts = tailed.more().drafts
    assert [robot.sign(*draft).id for draft in drafts] == [e.id for e in told(b"".join(new))]
    assert tailed.more().change is FileChange.NOTHING


@pytest.mark.parametrize("how", HOW)
def test_a_file_rewritten_between_runs_is_detected(path: Path, how: str) -> None:
    write(path, *LINES[:3])
    first = tail(path)
    first.more()
    first.sent()
    new = changed(path, how)
    again = tail(path)
    assert again.resume() is FileChange.REWRITTEN
    assert again.more().lines == len(new)


def test_a_file_that_is_removed_and_restored(path: Path) -> None:
    write(path, *LINES[:2])
    tailed = tail(path)
    tailed.more()
    tailed.sent()
    away = path.rename(path.with_suffix(".away"))
    assert tailed.more().change is FileChange.GONE
    assert tail(path).resume() is FileChange.GONE
    away.rename(path)
    assert tailed.more().change is FileChange.NOTHING
    write(path, LINES[2])
    assert texts(tailed.more().drafts) == ["line 2"]


def test_an_unchanged_file_is_not_opened(path: Path) -> None:
    write(path, LINES[0])
    tailed = tail(path)
    assert tailed.has_changed()
    assert tailed.more().change is FileChange.GREW
    assert tailed.has_changed()  # there may be more
    assert tailed.more().change is FileChange.NOTHING
    assert not tailed.has_changed()
    write(path, LINES[1])
    assert tailed.has_changed()
    assert tailed.more().change is FileChange.GREW
    remove(path)
    assert tailed.more().change is FileChange.GONE
    assert not tailed.has_changed()
    write(path, *LINES[:2])
    assert tailed.has_changed()


# -- on a relay -----------------------------------------------------------------------------------


@asynccontextmanager
async def follower(
    fake: FakeRelay,
    path: Path,
    steps: list[Step],
    folder: Path | None = None,
    plan: Plan | None = None,
) -> AsyncIterator[Follower]:
    """One run of a program."""
    client = Client(
        fake.url, robot, timeouts=TIMEOUTS, now=lambda: NOW, start_offline=folder is not None
    )
    places = path.parent.parent / "places" if path.suffix else path.parent / "places"
    async with client, Transcripts(client, robot, folder=folder) as memory:
        yield Follower(memory, path, plan or Plan(), places, steps.append)


def ids(fake: FakeRelay) -> set[str]:
    return {event.id for event in fake.events if event.kind != 31988}


async def test_a_session_is_sent_as_it_grows_and_each_line_once(
    fake: FakeRelay, path: Path
) -> None:
    steps: list[Step] = []
    write(path, *LINES[:2])
    async with follower(fake, path, steps) as following:
        await following.poll()
        write(path, LINES[2])
        await following.poll()
        await following.poll()
    async with follower(fake, path, steps) as following:
        write(path, LINES[3])
        await following.poll()
    assert [(step.session, step.change, step.lines) for step in steps] == [
        (SESSION, FileChange.GREW, 2),
        (SESSION, FileChange.GREW, 1),
        (SESSION, FileChange.GREW, 1),
    ]
    assert ids(fake) == {event.id for event in told(b"".join(LINES[:4]))}
    assert len(fake.verbs("EVENT")) == 8 + 1  # and what the session is, once


async def test_a_long_existing_part_is_sent_in_bulk(fake: FakeRelay, path: Path) -> None:
    steps: list[Step] = []
    lines = [line(message=str(number)) for number in range(100)]
    write(path, *lines)
    async with follower(fake, path, steps) as following:
        await following.poll()
    assert ids(fake) == {event.id for event in told(b"".join(lines))}
    assert [step.sent.stored for step in steps if step.sent is not None] == [200]


async def test_lines_that_a_relay_cannot_store_for_now_are_sent_later(
    fake: FakeRelay, path: Path, tmp_path: Path
) -> None:
    steps: list[Step] = []
    lines = [line(message=str(number)) for number in range(40)]
    write(path, *lines)
    fake.on["EVENT"] = refusing("error: could not be stored")
    async with follower(fake, path, steps, tmp_path / "data") as following:
        await following.poll()
    sent = [step.sent for step in steps if step.sent is not None]
    assert [(each.queued, each.refused) for each in sent] == [(80, [])]
    fake.on["EVENT"] = fake.take
    async with follower(fake, path, steps, tmp_path / "data") as following:
        await following.poll()
        await fake.until(lambda: len(ids(fake)) == 80)
    assert ids(fake) == {event.id for event in told(b"".join(lines))}


async def test_new_files_of_a_folder_are_followed(fake: FakeRelay, path: Path) -> None:
    steps: list[Step] = []
    folder = path.parent
    write(folder / "agent-1.jsonl", LINES[0])
    write(folder / f"{SESSION}.jsonl", LINES[1])
    write(folder / "empty.jsonl")
    async with follower(fake, folder, steps) as following:
        await following.poll()
        write(folder / "s-2.jsonl", line(sessionId="s-2"))
        await following.poll()
    assert [(step.path.name, step.session) for step in steps] == [
        (f"{SESSION}.jsonl", SESSION),
        ("agent-1.jsonl", "agent-1"),
        ("s-2.jsonl", "s-2"),
    ]


async def test_a_file_that_cannot_be_read_does_not_stop_the_others(
    fake: FakeRelay, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("relay.client.transcripts.files._MAX_LINE", 2000)
    steps: list[Step] = []
    write(path, LINES[0])
    for _ in range(2):  # by a program that starts again, too
        async with follower(fake, path.parent, steps) as following:
            await following.poll()
            write(path, line(message="x" * 3000))
            write(path.parent / "s-2.jsonl", line(sessionId="s-2"))
            await following.poll()
            await following.poll()
    found = [(step.session, step.change) for step in steps]
    assert found == [
        (SESSION, FileChange.GREW),
        (SESSION, FileChange.UNREADABLE),
        ("s-2", FileChange.GREW),
        (SESSION, FileChange.UNREADABLE),
        ("s-2", FileChange.GREW),
    ]


async def test_a_link_that_takes_the_place_of_a_session_is_not_followed(
    fake: FakeRelay, path: Path, tmp_path: Path
) -> None:
    write(path, LINES[0])
    put(tmp_path / "key.json", LINES[1] + LINES[2])
    steps: list[Step] = []
    async with follower(fake, path.parent, steps) as following:
        await following.poll()
        remove(path)
        link(path, "../key.json")
        await following.poll()
    assert [step.change for step in steps] == [FileChange.GREW, FileChange.GONE]


async def test_lines_are_queued_on_disk_offline(
    fake: FakeRelay, path: Path, tmp_path: Path
) -> None:
    steps: list[Step] = []
    write(path, *LINES[:2])
    await fake.stop()
    async with follower(fake, path, steps, tmp_path / "data") as following:
        await following.poll()
        assert [step.sent.queued for step in steps if step.sent is not None] == [4]
    remove(path)  # what waits does not need the file any more
    await fake.start()
    async with follower(fake, path, steps, tmp_path / "data"):
        await fake.until(lambda: len(fake.events) == 4)
    assert ids(fake) == {event.id for event in told(b"".join(LINES[:2]))}


async def test_lines_queued_before_their_session_was_forgotten_are_not_sent(
    fake: FakeRelay, path: Path, tmp_path: Path
) -> None:
    await fake.stop()
    write(path, *LINES[:2])
    async with follower(fake, path, [], tmp_path / "data") as following:
        await following.poll()
        write(path, line(message="later", timestamp="2027-02-09T20:43:35.675Z"))
        await following.poll()
    until = max(event.created_at for event in told(LINES[0]))
    forgotten = robot.sign(5, [["a", f"31988:{robot.pubkey}:{SESSION}"]], "", until)
    fake.events.append(forgotten)
    await fake.start()
    async with follower(fake, path, [], tmp_path / "data") as following:
        await fake.until(lambda: any(event.kind == 1989 for event in fake.events))
        await following.poll()
        assert await following._transcripts.waiting() == 0
    assert {event.content for event in fake.events if event.kind == 1988} == {"later"}
    assert not any(b"line 0" in event.raw for event in fake.events)


@pytest.mark.parametrize("lines", [1, 100])
async def test_what_a_followed_fork_copied_from_a_forgotten_session_is_not_sent(
    fake: FakeRelay, path: Path, lines: int
) -> None:
    """A hundred lines go another way."""
    steps: list[Step] = []
    until = max(event.created_at for event in told(LINES[0]))
    fake.events.append(robot.sign(5, [["a", f"31988:{robot.pubkey}:tea"]], "", until))
    for each in range(lines):
        write(path, line(message=f"copy {each}", sessionId="fork", forkedFrom={"sessionId": "tea"}))
    later = "2026-12-09T20:43:35.675Z"
    async with follower(fake, path, steps) as following:
        await following.poll()
        write(path, line(message="own", sessionId="fork", timestamp=later))
        await following.poll()
    write(path, line(message="later", sessionId="fork", timestamp=later))
    async with follower(fake, path, steps) as following:
        await following.poll()
    found = [step.sent for step in steps if step.sent is not None]
    assert [(each.forgotten, each.stored) for each in found] == [(2 * lines, 0), (0, 2), (0, 2)]
    notes = [event.content for event in fake.events if event.kind == 1988]
    assert notes == ["own", "later"]
    assert not any(b"copy 0" in event.raw for event in fake.events)


async def test_a_fork_is_followed_whole_under_another_id(fake: FakeRelay, path: Path) -> None:
    until = max(event.created_at for event in told(LINES[0]))
    fake.events.append(robot.sign(5, [["a", f"31988:{robot.pubkey}:tea"]], "", until))
    write(path, line(message="copy", sessionId="fork", forkedFrom={"sessionId": "tea"}))
    async with follower(fake, path, [], plan=Plan("again")) as following:
        await following.poll()
    assert {event.d for event in fake.events if event.kind == 1988} == {"again"}


@pytest.mark.parametrize("named", ["folder", "file"])
async def test_a_sub_agents_file_alone_is_not_followed_as_its_session(
    fake: FakeRelay, path: Path, named: str
) -> None:
    agents = path.with_name("agent-1a2b.jsonl")
    write(agents, line(message="look", isSidechain=True))
    followed = agents if named == "file" else agents.parent
    steps: list[Step] = []
    async with follower(fake, followed, steps) as following:
        await following.poll()
        write(agents, line(message="found", isSidechain=True))
        await following.poll()
    assert [step.session for step in steps] == ["agent-1a2b"] * 2
    assert {event.d for event in fake.events if event.kind == 1989} == {"agent-1a2b"}
    states = [event for event in fake.events if event.kind == 31988]
    assert [(each.d, each.tag("cli_session")) for each in states] == [("agent-1a2b", SESSION)]


async def test_a_rewritten_file_is_reported_and_sent(fake: FakeRelay, path: Path) -> None:
    steps: list[Step] = []
    write(path, *LINES[:2])
    async with follower(fake, path, steps) as following:
        await following.poll()
        put(path, LINES[7])
        await following.poll()
        remove(path)
        await following.poll()
        await following.poll()
    assert [step.change for step in steps] == [
        FileChange.GREW,
        FileChange.REWRITTEN,
        FileChange.GREW,
        FileChange.GONE,
    ]
    assert {event.id for event in told(LINES[7])} <= ids(fake)


async def test_a_key_without_permission_ends_it_and_keeps_the_offset(
    fake: FakeRelay, path: Path
) -> None:
    steps: list[Step] = []
    write(path, LINES[0])
    fake.on["EVENT"] = refusing("restricted: only agents may write memory")
    async with follower(fake, path, steps) as following:
        with pytest.raises(PublishRefused):
            await following.poll()
    fake.on["EVENT"] = fake.take
    async with follower(fake, path, steps) as following:
        await following.poll()
    assert len(ids(fake)) == 2


async def test_a_refused_line_does_not_block_others(fake: FakeRelay, path: Path) -> None:
    events = told(LINES[0])

    async def refuse_one(visitor: Visitor, frame: list[Any]) -> None:
        if frame[1]["id"] == events[0].id:
            await visitor.say_no(events[0].id, "invalid: not this one")
        else:
            await fake.take(visitor, frame)

    steps: list[Step] = []
    write(path, *LINES[:2])
    fake.on["EVENT"] = refuse_one
    async with follower(fake, path, steps) as following:
        await following.poll()
    assert [len(step.sent.refused) for step in steps if step.sent is not None] == [1]
    assert len(ids(fake)) == 3


async def test_lines_that_a_clock_dated_ahead_are_sent_by_a_later_run(
    fake: FakeRelay, path: Path
) -> None:
    """They were missing in the session for ever: the offset behind them was saved."""
    early = {event.id for event in told(b"".join(LINES))} - {event.id for event in told(LINES[0])}

    async def refuse_early(visitor: Visitor, frame: list[Any]) -> None:
        if frame[1]["id"] in early:
            text = "invalid: created_at: 923 s in the future, at most 900 s allowed"
            await visitor.say_no(frame[1]["id"], text)
        else:
            await fake.take(visitor, frame)

    steps: list[Step] = []
    fake.on["EVENT"] = refuse_early
    async with follower(fake, path, steps) as following:
        write(path, LINES[0])
        await following.poll()
        write(path, *LINES[1:3])
        await following.poll()
        assert steps[-1].sent is not None
        assert steps[-1].sent.refused
        early = set()
        write(path, *LINES[3:])
        await following.poll()
    async with follower(fake, path, steps) as following:
        await following.poll()
    assert ids(fake) == {event.id for event in told(b"".join(LINES))}
