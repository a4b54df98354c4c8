"""Sessions on a relay: sent once, read whole, in both forms."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

from relay.client import Client, PublishRefused, Transcripts, paging
from relay.client.errors import AnswerTooLong, QueryClosed
from relay.client.paging import MAX_ALL_BYTES
from relay.client.transcripts import Detail, Incomplete, NoSession, SeveralAuthors, reader
from relay.client.transcripts.files import files_in, root_of, session_file, session_ids
from relay.errors import Invalid, UserError
from relay.memory.transcripts.plan import Layout, Plan
from relay.memory.transcripts.records import SessionState, Status, state_draft
from relay.memory.transcripts.sources import bare
from relay.memory.transcripts.stripping import Part, Stripping
from relay.nostr import pns
from relay.nostr.kinds import SOURCE_DATA
from tests.cast import alice, robot, rover
from tests.harness.fake_relay import refusing
from tests.unit.client.conftest import TIMEOUTS
from tests.unit.memory.transcripts.telling import (
    HOME,
    SESSION,
    call_block,
    line,
    result_block,
    text_block,
    told,
)

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    from relay.nostr.event import Event
    from relay.nostr.keys import SecretKey
    from relay.nostr.pns import Channel
    from tests.harness.fake_relay import FakeRelay, Visitor

NOW = 1_800_000_000
DATA = b"".join(
    [
        line(message=f"read {HOME}/a.txt, please"),
        line("assistant", message={"content": [text_block("I will"), call_block("c1", "Read")]}),
        b'{"cut off": \n',
        b"\n",
        line(message=[result_block("c1", "tea")], requestId="req-1"),
        line("result", usage={"input_tokens": 3, "output_tokens": 4}),
    ]
)
EVENTS = told(DATA)


def put(path: Path, data: bytes) -> None:
    path.write_bytes(data)


@asynccontextmanager
async def transcripts(
    fake: FakeRelay, signer: SecretKey = robot, channel: Channel | None = None
) -> AsyncIterator[Transcripts]:
    client = Client(fake.url, signer, timeouts=TIMEOUTS, now=lambda: NOW)
    async with client, Transcripts(client, signer, channel) as opened:
        yield opened


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "session.jsonl"
    path.write_bytes(DATA)
    return path


def of(fake: FakeRelay, *kinds: int) -> list[Event]:
    return [event for event in fake.events if event.kind in kinds]


def sent(fake: FakeRelay) -> int:
    return len(fake.verbs("EVENT"))


@pytest.mark.proves("D-14")
async def test_a_file_is_sent_once_and_exported_byte_for_byte(fake: FakeRelay, file: Path) -> None:
    async with transcripts(fake) as memory:
        first = await memory.import_file(file)
        assert (first.session, first.lines, first.notes, first.archive) == (SESSION, 6, 5, 6)
        assert (first.stored, first.duplicates, first.others) == (11, 0, 0)
        assert {event.id for event in of(fake, 1988, 1989)} == {event.id for event in EVENTS}
        before = sent(fake)
        again = await memory.import_file(str(file))
        assert again == replace(first, stored=0, duplicates=11)
        assert sent(fake) == before
        assert await memory.export(SESSION) == DATA


async def test_an_export_is_bounded_by_what_is_kept_of_the_lines(
    fake: FakeRelay, file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whole events take up to 17 times the size of the file."""

    def heavy(event: Event) -> int:
        return MAX_ALL_BYTES // 3 if event.kind == SOURCE_DATA else 1

    async with transcripts(fake) as memory:
        await memory.import_file(file)
        monkeypatch.setattr(paging, "weight_of", heavy)
        assert await memory.export(SESSION) == DATA
        assert await memory.export(SESSION, author=robot.pubkey) == DATA
        async with transcripts(fake, rover) as other:
            with pytest.raises(AnswerTooLong):  # of authors that were not asked for
                await other.export(SESSION)
        monkeypatch.setattr(reader, "_MAX_KEPT", 5_000, raising=False)
        with pytest.raises(AnswerTooLong, match="5000 bytes in pages"):
            await memory.export(SESSION)


def test_of_a_line_only_the_first_tags_that_are_read_are_kept() -> None:
    tags = [["d", SESSION], ["line", "1"], *[["line", "2"]] * 1_000, ["source-data", "tea"]]
    event = robot.sign(SOURCE_DATA, [*tags, ["e", "a" * 64]], "", NOW)
    kept = bare(event)
    assert kept.tags == [["line", "1"], ["source-data", "tea"]]
    assert (kept.raw, kept.id, kept.created_at) == (b"", event.id, NOW)
    chunk = bare(robot.sign(SOURCE_DATA, [["chunk", "0/2"], ["e", "a" * 64]], "", NOW))
    assert chunk.tags == [["chunk", "0/2"], ["e", "a" * 64]]


@pytest.mark.proves("D-14")
async def test_a_grown_file_sends_its_tail_alone(fake: FakeRelay, file: Path) -> None:
    async with transcripts(fake) as memory:
        await memory.import_file(file)
        before = sent(fake)
        more = line(message="and milk")
        put(file, DATA + more)
        result = await memory.import_file(file)
        assert (result.stored, result.duplicates) == (2, 11)
        assert sent(fake) == before + 2
        assert await memory.export(SESSION) == DATA + more


@pytest.mark.proves("D-14")
@pytest.mark.parametrize("eol", [b"\n", b"\r\n"])
async def test_a_last_line_without_its_end_gets_it_when_the_file_grows(
    fake: FakeRelay, file: Path, eol: bytes
) -> None:
    async with transcripts(fake) as memory:
        last = line(message="and tea").rstrip()
        put(file, DATA + last)
        await memory.import_file(file)
        more = eol + line(message="and milk")
        put(file, DATA + last + more)
        assert (await memory.import_file(file)).stored == 3
        assert await memory.export(SESSION) == DATA + last + more
        assert (await memory.import_file(file)).stored == 0
        put(file, DATA + last)
        assert (await memory.import_file(file)).stored == 0


async def test_an_interrupted_import_continues(fake: FakeRelay, file: Path) -> None:
    fake.events += EVENTS[:5]
    async with transcripts(fake) as memory:
        result = await memory.import_file(file)
        assert (result.stored, result.duplicates) == (6, 5)
        sent_ids = [frame[1]["id"] for frame in fake.verbs("EVENT")]
        assert set(sent_ids) & {event.id for event in EVENTS[:5]} == set()


@pytest.mark.proves("G-30")
async def test_a_relay_that_compares_no_sets_is_asked_for_its_ids(
    fake: FakeRelay, file: Path
) -> None:
    fake.events += EVENTS[:5]
    fake.most_records = 0
    async with transcripts(fake) as memory:
        result = await memory.import_file(file)
        assert (result.stored, result.duplicates) == (6, 5)


async def test_events_that_the_file_no_longer_gives_are_counted(
    fake: FakeRelay, file: Path
) -> None:
    async with transcripts(fake) as memory:
        await memory.import_file(file)
        put(file, line(message="all anew"))
        result = await memory.import_file(file)
        assert (result.stored, result.others) == (2, 11)
        with pytest.raises(Incomplete, match="line 1: is there twice, with different text"):
            await memory.export(SESSION)


async def test_a_key_without_permission_gets_one_refusal(fake: FakeRelay, file: Path) -> None:
    fake.on["EVENT"] = refusing("restricted: only agents may write memory")
    async with transcripts(fake) as memory:
        with pytest.raises(PublishRefused, match="only agents may write memory"):
            await memory.import_file(file)
        assert sent(fake) == 1


async def test_one_refused_event_does_not_keep_the_others(fake: FakeRelay, file: Path) -> None:
    async def refuse_one(visitor: Visitor, frame: list[Any]) -> None:
        if frame[1]["id"] == EVENTS[3].id:
            await visitor.say_no(EVENTS[3].id, "invalid: not this one")
        else:
            await fake.take(visitor, frame)

    fake.on["EVENT"] = refuse_one
    async with transcripts(fake) as memory:
        result = await memory.import_file(file)
        assert result.stored == 10
        assert [refusal.event.id for refusal in result.refused] == [EVENTS[3].id]


@pytest.mark.parametrize("content", [None, b""], ids=["not there", "no line"])
async def test_an_invalid_session_file_is_reported(
    fake: FakeRelay, tmp_path: Path, content: bytes | None
) -> None:
    path = tmp_path / "a.jsonl"
    if content is not None:
        put(path, content)
    async with transcripts(fake) as memory:
        with pytest.raises(UserError, match=r"a\.jsonl"):
            await memory.import_file(path)
        with pytest.raises(UserError, match="is a folder"):
            await memory.import_file(tmp_path)


@pytest.mark.proves("D-17")
async def test_a_relay_of_small_messages_gets_small_events(fake: FakeRelay, file: Path) -> None:
    fake.information = {"limitation": {"max_message_length": 4_000}}
    data = DATA + line(message="\x01" * 5_000)
    put(file, data)
    async with transcripts(fake) as memory:
        await memory.import_file(file)
        assert max(len(event.raw) for event in fake.events) + len('["EVENT",]') <= 4_000
        assert await memory.export(SESSION) == data


@pytest.mark.proves("D-29", "D-30")
async def test_envelopes_disclose_nothing_of_a_session(fake: FakeRelay, file: Path) -> None:
    channel = pns.derive(robot)
    data = DATA + line(message="x" * 200_000)
    put(file, data)
    async with transcripts(fake, robot, channel) as memory:
        result = await memory.import_file(file)
        assert (result.stored, result.duplicates) == (result.notes + result.archive, 0)
        assert {(event.kind, event.pubkey) for event in fake.events} == {(1080, channel.pubkey)}
        assert all(event.tags == [] for event in fake.events)
        inner = [pns.unwrap(channel, event) for event in fake.events]
        assert max(len(event.raw) for event in inner) <= 65_535
        again = await memory.import_file(file)
        assert (again.stored, again.duplicates) == (0, result.stored)
    async with transcripts(fake) as memory:  # reading looks in both places
        assert await memory.export(SESSION) == data
        assert [row.session for row in await memory.sessions()] == [SESSION]
        assert [note.content for note in await memory.search("TEA")] == ["tea"]
    async with transcripts(fake, rover) as other:
        with pytest.raises(NoSession):
            await other.export(SESSION)


async def test_max_inner_cuts_finer(fake: FakeRelay, file: Path) -> None:
    channel = pns.derive(robot)
    data = line(message="x" * 20_000)
    put(file, data)
    async with transcripts(fake, robot, channel) as memory:
        await memory.import_file(file, max_inner=5_000)
        inner = [pns.unwrap(channel, event) for event in fake.events]
        assert max(len(event.raw) for event in inner) <= 5_000
        assert await memory.export(SESSION) == data


@pytest.mark.proves("D-06")
async def test_a_session_shared_with_a_group_names_it_in_every_event(
    fake: FakeRelay, file: Path
) -> None:
    async with transcripts(fake) as memory:
        await memory.import_file(file, group="tea")
    assert {event.tag("h") for event in fake.events} == {"tea"}
    assert len(of(fake, 31988)) == 1


@pytest.mark.proves("D-18", "D-21")
async def test_an_export_contains_the_requested_directory(fake: FakeRelay, file: Path) -> None:
    async with transcripts(fake) as memory:
        await memory.import_file(file)
        assert await memory.export(SESSION, "/elsewhere") == DATA.replace(
            HOME.encode(), b"/elsewhere"
        )


async def test_an_export_without_a_known_directory_raises(fake: FakeRelay) -> None:
    fake.events += EVENTS
    async with transcripts(fake) as memory:
        with pytest.raises(UserError, match="--cwd"):
            await memory.export(SESSION)
        assert await memory.export(SESSION, HOME) == DATA


@pytest.mark.proves("D-19")
async def test_missing_lines_are_reported(fake: FakeRelay) -> None:
    fake.events += [event for event in EVENTS if event.tag("line") != "3"]
    async with transcripts(fake) as memory:
        with pytest.raises(Incomplete, match=f"session {SESSION} is incomplete: line 3 is missing"):
            await memory.export(SESSION, HOME)
        whole = DATA.splitlines(keepends=True)
        exported = await memory.export(SESSION, HOME, allow_gaps=True)
        assert exported == b"".join([*whole[:2], *whole[3:]])


async def test_an_unknown_session_raises(fake: FakeRelay) -> None:
    async with transcripts(fake) as memory:
        with pytest.raises(NoSession, match="no session nope is readable"):
            await memory.export("nope")
        with pytest.raises(NoSession, match="no session s�rookery��done is readable"):
            await memory.export("s\nrookery: done")  # another key may have chosen it
        fake.events += [event for event in EVENTS if event.kind == 1988]
        with pytest.raises(NoSession, match="no archive of session s-1 is readable"):
            await memory.export(SESSION)


async def test_of_two_keys_ones_own_lines_count_and_a_third_has_to_choose(
    fake: FakeRelay, file: Path
) -> None:
    async with transcripts(fake, rover) as memory:
        await memory.import_file(file)
    other = line(message="another file")
    fake.events += told(other)
    async with transcripts(fake, rover) as memory:
        assert await memory.export(SESSION) == DATA
        assert await memory.export(SESSION, HOME, author=robot.pubkey) == other
    fake.events = [event for event in fake.events if event.pubkey != rover.pubkey]
    async with transcripts(fake, rover) as memory:
        assert await memory.export(SESSION, HOME) == other
    fake.events += [by_alice(event) for event in told(other)]
    async with transcripts(fake, rover) as memory:
        with pytest.raises(SeveralAuthors, match=robot.pubkey):
            await memory.export(SESSION, HOME)


async def test_the_working_folder_that_another_key_names_is_in_no_line_of_ones_own(
    fake: FakeRelay, file: Path
) -> None:
    async with transcripts(fake) as memory:
        await memory.import_file(file)
        fake.events.append(alice.sign(*state_draft(SessionState(SESSION, cwd="/evil"), NOW + 9)))
        assert await memory.export(SESSION) == DATA


async def test_a_working_folder_that_is_longer_than_any_path_is_none(fake: FakeRelay) -> None:
    fake.events.append(alice.sign(*state_draft(SessionState(SESSION, cwd="/x" * 4_000), NOW)))
    async with transcripts(fake) as memory:
        assert await memory.directory_of(SESSION, alice.pubkey) is None
    fake.events[:] = [alice.sign(*state_draft(SessionState(SESSION, cwd="/x" * 2_000), NOW))]
    async with transcripts(fake) as memory:
        assert await memory.directory_of(SESSION, alice.pubkey) == "/x" * 2_000


async def test_what_another_key_says_under_the_id_of_an_own_session_is_not_shown_in_it(
    fake: FakeRelay, file: Path
) -> None:
    async with transcripts(fake) as memory:
        await memory.import_file(file)
        before = await memory.messages(SESSION)
        fake.events += [by_alice(event) for event in told(line(message="hers"))]
        fake.seen.clear()
        assert await memory.messages(SESSION) == before
        assert (await memory.conversation(SESSION, Detail.LINES)).notes == before
    # She may have stored more than can be read.
    asked = [filters for frame in fake.verbs("REQ") for filters in fake.filters_in(frame)]
    assert {row.pubkey for row in fake.rows(tuple(asked))} == {robot.pubkey}
    async with transcripts(fake, alice) as memory:
        assert [note.content for note in await memory.messages(SESSION)] == ["hers"]


async def test_notes_of_others_are_not_fetched_for_an_own_session_in_envelopes(
    fake: FakeRelay, file: Path
) -> None:
    async with transcripts(fake, robot, pns.derive(robot)) as memory:
        await memory.import_file(file)
        before = await memory.messages(SESSION)
        fake.events += [by_alice(event) for event in told(line(message="hers"))]
        fake.seen.clear()
        assert await memory.messages(SESSION) == before
    asked = [filters for frame in fake.verbs("REQ") for filters in fake.filters_in(frame)]
    assert not [row for row in fake.rows(tuple(asked)) if row.pubkey == alice.pubkey]


async def test_a_line_of_another_key_cuts_no_session_that_has_notes_only(
    fake: FakeRelay, tmp_path: Path
) -> None:
    path = tmp_path / f"{SESSION}.jsonl"
    put(path, b"".join(line(message=f"line {number}") for number in range(200)))
    async with transcripts(fake) as memory:
        await memory.import_file(path, layout=Layout.CLASSIC)
        whole = await memory.export(SESSION)
        fake.events += [by_alice(event) for event in told(line(message="hers"))]
        assert await memory.export(SESSION) == whole
    assert whole.count(b"\n") == 200


def by_alice(event: Event) -> Event:
    return alice.sign(event.kind, event.tags, event.content, event.created_at)


@pytest.mark.proves("D-27")
async def test_a_session_state_is_published_once_and_can_be_updated(
    fake: FakeRelay, file: Path
) -> None:
    async with transcripts(fake) as memory:
        await memory.import_file(file)
        (row,) = await memory.sessions()
        assert (row.title, row.status, row.notes) == (
            f"read {HOME}/a.txt, please",
            Status.DONE,
            5,
        )
        assert (row.session, row.author, row.cwd) == (SESSION, robot.pubkey, HOME)
        await memory.state(SESSION, custom_title="tea", status=Status.WORKING)
        await memory.import_file(file)
        (row,) = await memory.sessions()
        assert (row.title, row.status, row.cwd) == ("tea", Status.WORKING, HOME)
        times = [event.created_at for event in of(fake, 31988)]
        assert times == [NOW, NOW + 1]


@pytest.mark.proves("D-27")
async def test_a_status_can_be_given_by_name(fake: FakeRelay, file: Path) -> None:
    async with transcripts(fake) as memory:
        await memory.import_file(str(file))
        state = await memory.state(SESSION, status="deleted", indicator="waits", custom_title=None)
        assert (state.status, state.indicator) == (Status.DELETED, "waits")
        assert await memory.sessions() == []


@pytest.mark.parametrize(
    ("fields", "fault"),
    [
        ({"status": "asleep"}, "status: must be one of idle, working"),
        ({"mood": "good"}, "mood: the state of a session has no such field"),
        ({"title": 7}, "title: must be a text"),
        ({"cwd": None}, "cwd: must be a text"),
    ],
)
async def test_an_invalid_state_raises(
    fake: FakeRelay, fields: dict[str, object], fault: str
) -> None:
    async with transcripts(fake) as memory:
        with pytest.raises(Invalid, match=fault):
            await memory.state(SESSION, **fields)
        with pytest.raises(Invalid, match="paths: must be token or raw"):
            await memory.import_file("x.jsonl", paths="relative")
    assert fake.verbs("EVENT") == []


@pytest.mark.proves("D-27")
async def test_a_deleted_session_is_not_listed_and_its_notes_remain(
    fake: FakeRelay, file: Path
) -> None:
    async with transcripts(fake) as memory:
        await memory.import_file(file)
        await memory.state(SESSION, status=Status.DELETED)
        assert await memory.sessions() == []
        (row,) = await memory.sessions(include_deleted=True)
        assert (row.status, row.notes) == (Status.DELETED, 5)
        assert len(await memory.messages(SESSION)) == 5


async def test_a_session_without_state_is_listed_by_its_notes(
    fake: FakeRelay,
) -> None:
    fake.events += [event for event in EVENTS if event.kind == 1988]
    async with transcripts(fake) as memory:
        (row,) = await memory.sessions()
        assert (row.title, row.status) == (f"read {HOME}/a.txt, please", None)


@pytest.mark.proves("D-25")
async def test_messages_are_ordered_and_can_start_after_one(fake: FakeRelay) -> None:
    fake.events += EVENTS
    async with transcripts(fake) as memory:
        notes = await memory.messages(SESSION)
        assert [note.role for note in notes] == [
            "user",
            "assistant",
            "tool_call",
            "tool_result",
            "unknown",
        ]
        third = notes[2]
        behind = await memory.messages(SESSION, since_order=(third.ms, 2, third.id))
        assert behind == notes[3:]


FORGOTTEN_AT = 1_780_000_000
BEFORE, AFTER = "2026-02-09T20:43:35.675Z", "2026-06-09T20:43:35.675Z"


def forgotten(session: str) -> Event:
    return robot.sign(5, [["a", f"31988:{robot.pubkey}:{session}"]], "", FORGOTTEN_AT)


def said(number: int, at: str, **fields: Any) -> bytes:
    return line(message=f"turn {number}", uuid=f"u{number}", timestamp=at, **fields)


def copy(number: int, at: str) -> bytes:
    """As `claude --fork-session` and `/branch` begin the new session's file."""
    marked = {"sessionId": "tea", "messageUuid": f"u{number}"}
    return said(number, at, sessionId="fork", forkedFrom=marked)


OWN = said(9, "2026-07-09T20:43:35.675Z", sessionId="fork")
TITLED = b'{"type":"custom-title","customTitle":"turn 1 (Branch)","sessionId":"fork"}\n'


def turns(fake: FakeRelay) -> list[str]:
    """What was stored, in order: only lines with notes are dated."""
    return [event.content for event in of(fake, 1988) if not event.content.startswith("{")]


async def test_what_a_fork_copied_from_a_forgotten_session_is_not_sent(
    fake: FakeRelay, file: Path
) -> None:
    fake.events.append(forgotten("tea"))
    put(file, copy(1, BEFORE) + copy(2, BEFORE) + TITLED + OWN)
    async with transcripts(fake) as memory:
        result = await memory.import_file(file)
        assert (result.session, result.forgotten, result.stored) == ("fork", 6, 2)
        again = await memory.import_file(file)
        assert (again.forgotten, again.stored, again.duplicates) == (6, 0, 2)
    assert turns(fake) == ["turn 9"]
    everything = b"".join(event.raw for event in of(fake, 1988, 1989, 31988))
    assert b"turn 1" not in everything
    assert b"turn 2" not in everything


async def test_what_a_fork_copied_from_later_lines_is_sent(fake: FakeRelay, file: Path) -> None:
    fake.events.append(forgotten("tea"))
    put(file, copy(1, BEFORE) + copy(2, AFTER) + OWN)
    async with transcripts(fake) as memory:
        assert (await memory.import_file(file)).forgotten == 2
    assert turns(fake) == ["turn 2", "turn 9"]


async def test_what_a_fork_said_before_its_origin_was_forgotten_is_sent(
    fake: FakeRelay, file: Path
) -> None:
    fake.events.append(forgotten("tea"))
    own = said(3, "2026-03-09T20:43:35.675Z", sessionId="fork")
    put(file, copy(1, BEFORE) + own)
    async with transcripts(fake) as memory:
        assert (await memory.import_file(file)).forgotten == 2
    assert turns(fake) == ["turn 3"]


@pytest.mark.parametrize(
    ("dates", "left"),
    [
        ((BEFORE, BEFORE, AFTER), ["turn 9"]),
        ((AFTER,), ["turn 9"]),
        ((BEFORE, AFTER, AFTER), ["turn 1", "turn 2", "turn 9"]),
    ],
)
async def test_the_last_line_that_a_fork_of_the_sdk_copied_is_as_old_as_the_one_before(
    fake: FakeRelay, file: Path, dates: tuple[str, ...], left: list[str]
) -> None:
    """`fork_session` gives it the time of the fork, and each line another uuid."""
    fake.events.append(forgotten("tea"))
    copies = (copy(at, date) for at, date in enumerate(dates))
    put(file, b"".join(copies).replace(b'"uuid":"u', b'"uuid":"other-') + OWN)
    async with transcripts(fake) as memory:
        await memory.import_file(file)
    assert turns(fake) == left


async def test_a_fork_can_be_stored_whole_under_another_id(fake: FakeRelay, file: Path) -> None:
    fake.events.append(forgotten("tea"))
    put(file, copy(1, BEFORE) + OWN)
    async with transcripts(fake) as memory:
        result = await memory.import_file(file, "again")
    assert (result.forgotten, turns(fake)) == (0, ["turn 1", "turn 9"])


async def test_a_fork_that_takes_another_id_in_its_folder_is_a_fork(
    fake: FakeRelay, file: Path
) -> None:
    fake.events.append(forgotten("tea"))
    put(file, copy(1, BEFORE) + OWN)
    async with transcripts(fake) as memory:
        memory.note_renamed("folder/fork", "fork")
        result = await memory.import_file(file, "folder/fork")
    assert (result.forgotten, turns(fake)) == (2, ["turn 9"])


async def test_a_relay_is_asked_of_the_sessions_that_were_copied_alone(
    fake: FakeRelay, file: Path
) -> None:
    async def asked(data: bytes) -> set[str]:
        fake.events.clear()
        fake.seen.clear()
        put(file, data)
        async with transcripts(fake) as memory:
            assert (await memory.import_file(file)).forgotten == 0
        filters = [filter_ for frame in fake.verbs("REQ") for filter_ in frame[2:]]
        return {address for each in filters for address in each.get("#a", ())}

    def of_state(session: str) -> str:
        return f"31988:{robot.pubkey}:{session}"

    told = b'a line says {"forkedFrom": {"sessionId": "tea"}}, and is no copy'
    assert await asked(line(message=told.decode())) == {of_state(SESSION)}
    assert await asked(line(toolUseResult={"forkedFrom": "tea"})) == {of_state(SESSION)}
    assert await asked(copy(1, BEFORE) + OWN) == {of_state("fork"), of_state("tea")}
    several = [
        said(each, BEFORE, sessionId="fork", forkedFrom={"sessionId": f"tea-{each}"})
        for each in range(40)
    ]
    assert len(await asked(b"".join(several))) == 1 + 16, "a file cannot ask for any number"


@pytest.mark.proves("D-28")
async def test_usage_is_the_last_account(fake: FakeRelay) -> None:
    fake.events += EVENTS
    async with transcripts(fake) as memory:
        usage = await memory.usage(SESSION)
        assert usage is not None
        assert (usage.input_tokens, usage.output_tokens) == (3, 4)


@pytest.mark.proves("G-30")
async def test_a_relay_without_search_is_looked_through_word_by_word(fake: FakeRelay) -> None:
    fake.events += EVENTS
    async with transcripts(fake) as memory:
        assert not await memory.searches()
        assert [note.role for note in await memory.search("PLEASE read")] == ["user"]
        assert await memory.search("please milk") == []
        assert await memory.search("read", session="another") == []
        assert len(await memory.search("", limit=2)) == 2


async def test_a_relay_with_search_is_asked(fake: FakeRelay) -> None:
    fake.information = {"supported_nips": [1, 50]}

    async def search(visitor: Visitor, frame: list[Any]) -> None:
        if frame[2].get("search") == "tea" and frame[2]["#h"] == ["g"]:
            await visitor.show(frame[1], told(DATA, Plan(group="g"))[0])
        await visitor.say("EOSE", frame[1])

    fake.on["REQ"] = search
    async with transcripts(fake) as memory:
        assert [note.role for note in await memory.search("tea", group="g")] == ["user"]


async def test_a_session_is_followed_note_by_note(fake: FakeRelay) -> None:
    fake.events += EVENTS[:2]
    notes = [event for event in EVENTS if event.kind == 1988]
    async with transcripts(fake) as memory:
        seen = []
        async for note in memory.follow(SESSION):
            seen.append(note.id)
            if len(seen) == 1:
                await fake.publish(told(line(sessionId="another"))[0])
                theirs = [["d", SESSION], ["role", "user"]]
                await fake.publish(rover.sign(1988, theirs, "and run this", NOW))
                await fake.publish(notes[0])
                channel = pns.derive(robot)
                await fake.publish(pns.wrap(channel, notes[1], NOW, b"\1" * 32))
                await fake.publish(notes[1])
                await fake.publish(notes[2])
            if len(seen) == 3:
                break
        assert seen == [note.id for note in notes[:3]]


@pytest.mark.parametrize("planted_before", [0, 1])
async def test_a_session_followed_before_its_first_note_is_ones_own_from_that_note_on(
    fake: FakeRelay, planted_before: int
) -> None:
    """A note that somebody else stored before the first own one hides no own one."""
    notes = [event for event in EVENTS if event.kind == 1988]
    theirs = [["d", SESSION], ["role", "user"]]
    planted = [rover.sign(1988, theirs, f"and run this {number}", NOW) for number in range(3)]
    fake.events += planted[:planted_before]
    async with transcripts(fake) as memory:
        following = memory.follow(SESSION)
        first = asyncio.ensure_future(anext(following))
        if planted_before:
            assert (await first).id == planted[0].id
            first = asyncio.ensure_future(anext(following))
        else:
            # What is stored has been read: no note, plain or in envelopes.
            await fake.until(lambda: len(fake.verbs("CLOSE")) == 2)
        for event in (notes[0], planted[1], notes[1], planted[2]):
            await fake.publish(event)
        assert [(await first).id, (await anext(following)).id] == [each.id for each in notes[:2]]


async def test_stripped_parts_are_not_sent_and_reported(fake: FakeRelay, file: Path) -> None:
    put(file, DATA.replace(b"please", b"password=please"))
    stripping = Stripping(frozenset({Part.REQUEST_IDS, Part.SECRETS}))
    async with transcripts(fake) as memory:
        await memory.import_file(file, stripping=stripping)
        assert not any(b"req-1" in event.raw or b"please" in event.raw for event in fake.events)
        assembly = await memory.assembly(SESSION)
        assert assembly.stripped == {"request-ids": 1, "secrets": 1}


@pytest.mark.parametrize("cwd", [".", "", "rook", "/"])
async def test_a_state_without_a_whole_path_moves_no_file(
    fake: FakeRelay, file: Path, cwd: str
) -> None:
    async with transcripts(fake) as memory:
        await memory.state(SESSION, cwd=cwd, title="by another program")
        await memory.import_file(file)
        assert {event.id for event in EVENTS} <= {event.id for event in fake.events}


def test_convert_asks_no_relay() -> None:
    memory = Transcripts("ws://127.0.0.1:1", robot)
    drafts = memory.convert(DATA, "the-stem")
    assert [draft.content for draft in drafts] == [event.content for event in EVENTS]


def test_each_file_of_a_folder_has_its_own_session(tmp_path: Path) -> None:
    (tmp_path / "sub").mkdir()
    for name in ("agent-1", "s-1", "other", "sub/agent-1"):
        (tmp_path / f"{name}.jsonl").write_bytes(line())
    (tmp_path / "alone.jsonl").write_bytes(line(sessionId="s-2"))
    (tmp_path / "no.txt").write_bytes(line())
    files = [session_file(path) for path in files_in(tmp_path)]
    ids = session_ids(files)
    assert {str(path.relative_to(tmp_path)): id_ for path, id_ in ids.items()} == {
        "s-1.jsonl": "s-1",
        "agent-1.jsonl": "agent-1",
        "other.jsonl": "other",
        "sub/agent-1.jsonl": "sub/agent-1",
        "alone.jsonl": "s-2",
    }
    assert session_ids(files[:1], taken={"s-1": tmp_path / "x"})[files[0].path] == "agent-1"


@pytest.mark.parametrize(
    ("stem", "fields", "id_"),
    [
        ("agent-1a2b", {}, "agent-1a2b"),
        ("side", {"isSidechain": True}, "side"),
        ("side", {"agentId": "1a2b"}, "side"),
        ("copy", {"isSidechain": False}, SESSION),
        (SESSION, {"isSidechain": True}, SESSION),
    ],
)
async def test_a_sub_agents_file_alone_is_not_its_session(
    fake: FakeRelay, tmp_path: Path, stem: str, fields: dict[str, Any], id_: str
) -> None:
    """The session's file may be gone from the disk, and stored."""
    path = tmp_path / f"{stem}.jsonl"
    path.write_bytes(line(sessionId=SESSION, **fields))
    assert session_ids([session_file(path)]) == {path: id_}
    async with transcripts(fake) as memory:
        assert (await memory.import_file(path)).session == id_
        assert (await memory.import_file(path, "mine")).session == "mine"
    assert {event.d for event in of(fake, 1989)} == {id_, "mine"}


def test_no_link_below_a_folder_is_a_session(tmp_path: Path) -> None:
    """Whoever wrote the folder, as an unpacked archive, may mean another file of its reader."""
    folder = tmp_path / "theirs"
    (folder / "sub").mkdir(parents=True)
    (tmp_path / "key.json").write_bytes(line())
    (folder / "link.jsonl").symlink_to("../key.json")
    (folder / "sub" / "one.jsonl").write_bytes(line())
    (one,) = files_in(folder)
    found = session_file(one, root_of(folder))
    for name in ("link.jsonl", "linked/key.json"):
        (folder / "linked").unlink(missing_ok=True)
        (folder / "linked").symlink_to("..")
        with pytest.raises(UserError, match="there is no file"):
            session_file(folder / name, folder)
    one.unlink()
    one.symlink_to("../../key.json")
    with pytest.raises(FileNotFoundError):
        list(found.lines())
    assert session_file(folder / "link.jsonl", root_of(folder / "link.jsonl")).size


def test_a_file_that_takes_the_place_of_a_session_is_not_read(file: Path, tmp_path: Path) -> None:
    found = session_file(file)
    (tmp_path / "other").write_bytes(DATA)
    (tmp_path / "other").rename(file)
    with pytest.raises(UserError, match="was replaced while it was read"):
        list(found.lines())


def test_a_line_that_fills_the_memory_is_in_no_session(tmp_path: Path) -> None:
    with (tmp_path / "large.jsonl").open("wb") as large:
        large.truncate(2**40)
    with pytest.raises(UserError, match="a line of over 64 MiB is in no session"):
        session_file(tmp_path / "large.jsonl")


async def test_with_a_folder_sessions_are_listed_offline(
    fake: FakeRelay, file: Path, tmp_path: Path
) -> None:
    @asynccontextmanager
    async def kept() -> AsyncIterator[Transcripts]:
        client = Client(fake.url, robot, timeouts=TIMEOUTS, now=lambda: NOW, start_offline=True)
        async with client, Transcripts(client, robot, folder=tmp_path / "data") as opened:
            yield opened

    async with kept() as memory:
        await memory._client.wait_connected()
        await memory.import_file(file)
        there = await memory.sessions()
        assert [row.session for row in there] == [SESSION]
        assert len(await memory.messages(SESSION)) == 5
    await fake.stop()
    async with kept() as memory:
        assert await memory.sessions() == there
        assert len(await memory.messages(SESSION)) == 5
    await fake.start()


async def test_unreadable_envelopes_are_skipped(fake: FakeRelay, file: Path) -> None:
    channel = pns.derive(robot)
    fake.events.append(channel.key.sign(1080, [], "no payload", NOW))
    async with transcripts(fake, robot, channel) as memory:
        await memory.import_file(file)
        assert await memory.export(SESSION) == DATA


async def test_who_may_read_no_envelopes_reads_its_own_sessions(
    fake: FakeRelay, file: Path
) -> None:
    async def refuse(visitor: Visitor, frame: list[Any]) -> None:
        if 1080 in frame[2]["kinds"]:
            await visitor.say("CLOSED", frame[1], "restricted: you may not read this")
        else:
            await fake.answer(visitor, frame)

    async with transcripts(fake) as memory:
        await memory.import_file(file)
        fake.on["REQ"] = refuse
        assert [row.session for row in await memory.sessions()] == [SESSION]
        with pytest.raises(QueryClosed, match="you may not read this"):
            await memory.export("another")


async def test_envelopes_are_fetched_once_per_import(fake: FakeRelay, tmp_path: Path) -> None:
    paths = [tmp_path / f"{name}.jsonl" for name in "abc"]
    for path in paths:
        put(path, line(sessionId=path.stem))
    async with transcripts(fake, robot, pns.derive(robot)) as memory:
        for again in (False, True):
            for path in paths:
                result = await memory.import_file(path)
                assert (result.stored, result.duplicates) == ((0, 2) if again else (2, 0))
    assert len(fake.verbs("REQ")) == 1
    assert len(fake.events) == 3 * 3, "and what each session is, once"


async def test_a_state_in_an_envelope_is_newer_than_the_last(fake: FakeRelay) -> None:
    channel = pns.derive(robot)
    async with transcripts(fake, robot, channel) as memory:
        await memory.state(SESSION, title="tea")
        await memory.state(SESSION, status=Status.WORKING)
        (row,) = await memory.sessions()
        assert (row.title, row.status) == ("tea", Status.WORKING)
    inner = [pns.unwrap(channel, event) for event in fake.events]
    assert [event.created_at for event in inner] == [NOW, NOW + 1]
