"""relay/server/control.py: a folder's events through DIR/control.sock."""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
import stat
from itertools import count
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import orjson
import pytest

from relay.cli import data_folder
from relay.errors import (
    FolderBusy,
    Invalid,
    Prefix,
    Refused,
    StoreFault,
    UserError,
    WriteOutcome,
)
from relay.facts import Facts, Origin, RecordFacts, Who
from relay.nostr.filters import Filter, FilterTerms, filter_from
from relay.observe import LogLine, Metrics, Refusal, Status
from relay.server.control import (
    ALLOWED,
    BANNED,
    MAX_ROWS,
    ControlServer,
    DryRunReply,
    RemoteFolder,
    Rows,
    socket_file,
)
from tests.cast import alice, bob
from tests.harness.patience import ANSWER_S

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Sequence
    from pathlib import Path

    from relay.access.quotas import Sized, SizedBy
    from relay.nostr.event import Event
    from relay.write.commands import Purpose, Series, Unconnected
    from relay.write.sweeper import SweepLine

NOTES = [alice.sign(1, [], f"note {number}", 1_700_000_000 + number) for number in range(5)]
DELETED = NOTES[1]


FACTS = Facts(
    1_700_000_000,
    Origin.WIRE,
    frozenset({alice.pubkey}),
    frozenset({Who.MEMBER, Who.KNOWN}),
    frozenset(),
    wraps_for_known=False,
    deletes_own=True,
    replaces=False,
    has_group=True,
    records=(RecordFacts("anamnesis:memory:x", alice.pubkey, 1_700_000_000, NOTES[0].id),),
)
REFUSED = [
    Refusal(number, 1_700_000_000, "a rule", "restricted", 1, alice.pubkey, NOTES[0].id, 7, "::1")
    for number in (1, 2, 3)
]


class FakeFolder:
    """Remembers what it was asked; has the NOTES, three to a page."""

    def __init__(self) -> None:
        self.submitted: list[tuple[Sequence[Event], Origin]] = []
        self.asked: list[Filter] = []
        self.asked_for: list[Rows] = []
        self.pages: list[Sequence[bytes]] = [
            [note.raw for note in NOTES[:3]],
            [],
            [note.raw for note in NOTES[3:]],
        ]
        self.given = 0
        """Pages that were asked for."""
        self.is_left = asyncio.Event()
        """Nobody reads on."""
        self.dry_runs: list[tuple[Event, frozenset[str]]] = []
        self.fault: Exception | None = None
        self.not_taken: set[str] = set()
        """Ids of events that could not be stored."""
        self.reached = asyncio.Event()
        self.may_commit = asyncio.Event()
        self.may_commit.set()

    async def submit(self, events: Sequence[Event], origin: Origin) -> Sequence[tuple[bool, str]]:
        self.submitted.append((events, origin))
        self.reached.set()
        await self.may_commit.wait()
        if self.fault is not None:
            raise self.fault
        return [self._reply(event) for event in events]

    def _reply(self, event: Event) -> tuple[bool, str]:
        if event.id in self.not_taken:
            return False, "error: disk full"
        return (False, "blocked: deleted") if event.id == DELETED.id else (True, "")

    async def events(
        self, filter_: Filter, rows: Rows = Rows.ALL
    ) -> AsyncIterator[Sequence[bytes]]:
        self.asked.append(filter_)
        self.asked_for.append(rows)
        try:
            for page in self.pages:
                self.given += 1
                yield page
            if self.fault is not None:
                raise self.fault
        finally:
            self.is_left.set()

    async def head(self) -> int:
        if self.fault is not None:
            raise self.fault
        return 80

    async def dry_run(self, event: Event, logins: frozenset[str]) -> DryRunReply:
        self.dry_runs.append((event, logins))
        return DryRunReply(False, "restricted: no", "a rule", FACTS)  # noqa: FBT003

    async def managed_keys(self) -> Sequence[tuple[str, str]]:
        return [(ALLOWED, alice.pubkey), (BANNED, bob.pubkey)]

    async def refusals(self, after: int) -> Sequence[Refusal]:
        return [refusal for refusal in REFUSED if refusal.number > after]

    async def restart(self) -> None:
        self.reached.set()
        if self.fault is not None:
            raise self.fault

    async def log_lines(self, after: int) -> Sequence[LogLine]:
        return [LogLine(number, 1_700_000_000, "info", "relay", "hello") for number in (1, 2)][
            after:
        ]

    async def status(self) -> Status:
        return Metrics().status()

    async def sizes(self, by: SizedBy, limit: int) -> Sequence[Sized]:
        raise NotImplementedError

    def sweep(self, purpose: Purpose, ahead_s: int = 0) -> AsyncIterator[Sequence[SweepLine]]:
        raise NotImplementedError


@pytest.fixture
async def folder() -> FakeFolder:
    return FakeFolder()


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "control.sock"


@contextlib.asynccontextmanager
async def talking(path: Path) -> AsyncIterator[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
    """One that speaks the protocol by hand."""
    reader, writer = await asyncio.open_unix_connection(path)
    try:
        yield reader, writer
    finally:
        writer.close()
        with contextlib.suppress(ConnectionError):
            await writer.wait_closed()


def kind_of(path: Path) -> str | None:
    """Type and mode as `ls -l` writes them; None when nothing is there."""
    return stat.filemode(path.lstat().st_mode) if path.exists() else None


async def line(reader: asyncio.StreamReader) -> Any:
    return orjson.loads(await reader.readline())


async def all_of(remote: RemoteFolder, filter_: Filter) -> list[bytes]:
    return [raw async for page in remote.events(filter_) for raw in page]


# -- what a command gets --------------------------------------------------------------------------


async def test_a_command_reads_all_pages_in_order(folder: FakeFolder, path: Path) -> None:
    async with ControlServer(path, folder), RemoteFolder(path) as remote:
        assert await all_of(remote, Filter()) == [note.raw for note in NOTES]
        assert await remote.head() == 80


async def test_a_command_is_told_of_each_page_without_a_match(
    folder: FakeFolder, path: Path
) -> None:
    """It waits for each line, and not for the next match, which may be minutes away."""
    folder.pages = [[], [], [NOTES[0].raw]]
    async with ControlServer(path, folder), talking(path) as (reader, writer):
        writer.write(b'{"do":"events","filter":{}}\n')
        assert [await reader.readline() for _ in range(2)] == [b"\n", b"\n"]
        assert await line(reader) == {"is": "page", "sizes": [len(NOTES[0].raw)]}
        assert await all_of(RemoteFolder(path), Filter()) == [NOTES[0].raw]


async def test_the_filter_is_transferred_unchanged(folder: FakeFolder, path: Path) -> None:
    filter_ = filter_from(
        {
            "kinds": [30078],
            "authors": [alice.pubkey],
            "#d": ["a:", "b"],
            "#hk": ["x"],
            "since": 0,
            "until": 5,
        },
        FilterTerms(),
    )
    nothing = filter_from({"ids": []}, FilterTerms())
    async with ControlServer(path, folder), RemoteFolder(path) as remote:
        await all_of(remote, filter_)
        await all_of(remote, nothing)
    assert folder.asked == [filter_, nothing]
    assert folder.asked[0].d_prefixes == ("a:",)
    assert folder.asked[1].impossible


async def test_each_event_has_its_answer_in_order(folder: FakeFolder, path: Path) -> None:
    async with ControlServer(path, folder), RemoteFolder(path) as remote:
        answers = await remote.submit(NOTES, Origin.TRUSTED_IMPORT)
    assert answers == [
        (note.id != DELETED.id, "blocked: deleted" * (note.id == DELETED.id)) for note in NOTES
    ]
    assert folder.submitted == [(NOTES, Origin.TRUSTED_IMPORT)]


async def test_more_events_than_max_rows_use_several_requests(
    folder: FakeFolder, path: Path
) -> None:
    events = [NOTES[0]] * (MAX_ROWS + 1)
    async with ControlServer(path, folder), RemoteFolder(path) as remote:
        assert await remote.submit(events, Origin.IMPORT) == [(True, "")] * len(events)
    assert [len(given) for given, _ in folder.submitted] == [MAX_ROWS, 1]


async def test_no_request_follows_one_with_an_event_that_was_not_stored(
    folder: FakeFolder, path: Path
) -> None:
    """Also when the last of its events has another answer: it may be refused in any case."""
    events = [*[NOTES[0]] * (MAX_ROWS - 2), NOTES[2], DELETED, NOTES[3]]
    folder.not_taken = {NOTES[2].id}
    async with ControlServer(path, folder), RemoteFolder(path) as remote:
        answers = await remote.submit(events, Origin.IMPORT)
    fault = (False, "error: disk full")
    assert answers[-3:] == [fault, (False, "blocked: deleted"), fault]
    assert [len(given) for given, _ in folder.submitted] == [MAX_ROWS]


async def test_public_rows_have_a_request_of_their_own(folder: FakeFolder, path: Path) -> None:
    async with ControlServer(path, folder), RemoteFolder(path) as remote:
        for rows in Rows:
            pages = [raw async for page in remote.events(Filter(), rows) for raw in page]
            assert pages == [note.raw for note in NOTES]
    assert folder.asked_for == list(Rows)


async def test_a_dry_run_is_answered_by_the_relay(folder: FakeFolder, path: Path) -> None:
    logins = frozenset({alice.pubkey, bob.pubkey})
    async with ControlServer(path, folder), RemoteFolder(path) as remote:
        seen = await remote.dry_run(NOTES[0], logins)
    assert folder.dry_runs == [(NOTES[0], logins)]
    assert seen == DryRunReply(False, "restricted: no", "a rule", FACTS)  # noqa: FBT003


async def test_a_dry_run_needs_a_valid_event(folder: FakeFolder, path: Path) -> None:
    async with ControlServer(path, folder):
        for size, row, fault in ((2, b"{}", "id: missing"), (2, b"{]", "not JSON")):
            async with talking(path) as (reader, writer):
                asked = b'{"do":"dry_run","logins":[],"size":%d}\n%s\n' % (size, row)
                writer.write(asked)
                assert await line(reader) == {"is": "failed", "prefix": "invalid", "text": fault}
        async with talking(path) as (reader, writer):
            writer.write(b'{"do":"dry_run","logins":[],"size":-1}\n')
            assert (await line(reader))["prefix"] == "invalid"
    assert folder.dry_runs == []


async def test_managed_keys_and_refusals_are_transferred(folder: FakeFolder, path: Path) -> None:
    async with ControlServer(path, folder), RemoteFolder(path) as remote:
        assert await remote.managed_keys() == [(ALLOWED, alice.pubkey), (BANNED, bob.pubkey)]
        assert await remote.refusals(0) == REFUSED
        assert await remote.refusals(2) == REFUSED[2:]
        assert await remote.refusals(3) == []
        assert [line.number for line in await remote.log_lines(1)] == [2]


async def test_no_events_make_no_request(folder: FakeFolder, path: Path) -> None:
    async with ControlServer(path, folder), RemoteFolder(path) as remote:
        assert await remote.submit([], Origin.IMPORT) == []
    assert folder.submitted == []


async def test_a_row_of_several_megabytes_passes(folder: FakeFolder, path: Path) -> None:
    large = alice.sign(1, [], "x" * 9_000_000, 1)
    folder.pages = [[NOTES[0].raw, large.raw, NOTES[1].raw]]
    async with ControlServer(path, folder), RemoteFolder(path) as remote:
        assert await all_of(remote, Filter()) == folder.pages[0]
        below = alice.sign(1, [], "x" * 4_000_000, 1)
        assert await remote.submit([below, below], Origin.IMPORT) == [(True, "")] * 2


async def test_several_commands_are_served_at_the_same_time(folder: FakeFolder, path: Path) -> None:
    async with ControlServer(path, folder), RemoteFolder(path) as remote:
        folder.may_commit.clear()
        async with asyncio.TaskGroup() as group:
            waiting = group.create_task(remote.submit(NOTES[:1], Origin.IMPORT))
            await folder.reached.wait()
            assert len(await all_of(remote, Filter())) == 5
            folder.may_commit.set()
        assert waiting.result() == [(True, "")]


async def test_a_connection_serves_requests_in_order(folder: FakeFolder, path: Path) -> None:
    async with ControlServer(path, folder), talking(path) as (reader, writer):
        writer.write(b'{"do":"head"}\n{"do":"head"}\n')
        assert await line(reader) == {"is": "head", "head": 80}
        assert await line(reader) == {"is": "head", "head": 80}


# -- what goes wrong ------------------------------------------------------------------------------


async def test_without_a_relay_a_command_fails_with_a_reason(path: Path) -> None:
    with pytest.raises(UserError, match="no relay listens on"):
        async with RemoteFolder(path):
            pass


@pytest.mark.parametrize("fault", [StoreFault("disk full"), Refused(Prefix.RESTRICTED, "not you")])
async def test_errors_of_the_folder_are_raised_in_the_command(
    folder: FakeFolder, path: Path, fault: Exception
) -> None:
    async with ControlServer(path, folder), RemoteFolder(path) as remote:
        folder.fault = fault
        for request in (remote.head(), remote.submit(NOTES, Origin.IMPORT)):
            with pytest.raises(type(fault), match=f"^{fault}$"):
                await request


async def test_a_fault_after_some_pages_is_not_read_as_the_end(
    folder: FakeFolder, path: Path
) -> None:
    async with ControlServer(path, folder), RemoteFolder(path) as remote:
        folder.fault = StoreFault("file damaged")
        with pytest.raises(StoreFault, match="file damaged"):
            await all_of(remote, Filter())


async def test_an_unexpected_exception_is_logged_and_the_server_continues(
    folder: FakeFolder, path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with ControlServer(path, folder), RemoteFolder(path) as remote:
        folder.fault = ZeroDivisionError("never seen")
        with pytest.raises(StoreFault, match="internal error"):
            await remote.head()
        folder.fault = None
        assert await remote.head() == 80
    assert "never seen" in caplog.text


async def test_an_invalid_row_does_not_stop_the_others(folder: FakeFolder, path: Path) -> None:
    rows = [b"{bad", NOTES[0].raw, NOTES[1].raw.replace(b"note", b"nota"), NOTES[2].raw]
    request = orjson.dumps({"do": "submit", "origin": "IMPORT", "sizes": [len(r) for r in rows]})
    async with ControlServer(path, folder), talking(path) as (reader, writer):
        writer.write(b"\n".join((request, *rows, b"")))
        assert await line(reader) == {
            "is": "results",
            "results": [
                [False, "invalid: not JSON"],
                [True, ""],
                [False, "invalid: id: is not the hash of this event"],
                [True, ""],
            ],
        }
    assert folder.submitted == [([NOTES[0], NOTES[2]], Origin.IMPORT)]


async def submitted(path: Path, rows: Sequence[bytes]) -> Any:
    request = orjson.dumps({"do": "submit", "origin": "IMPORT", "sizes": [len(r) for r in rows]})
    async with talking(path) as (reader, writer):
        writer.write(b"\n".join((request, *rows, b"")))
        return (await line(reader))["results"]


def bomb_of(element: bytes, count: int) -> bytes:
    return NOTES[0].raw.replace(b'"tags":[]', b'"tags":[' + b",".join([element] * count) + b"]")


async def test_large_and_exploding_rows_are_refused_and_the_rest_accepted(
    folder: FakeFolder, path: Path
) -> None:
    rows = [
        NOTES[0].raw,
        alice.sign(1, [], "x" * 2**22, 1).raw,
        DELETED.raw,
        bomb_of(b"[]", 340_000),
        b"{bad",
        bomb_of(b'""', 300_000),
        NOTES[2].raw,
    ]
    exploding = [False, "invalid: event has too many tags or values"]
    async with ControlServer(path, folder):
        assert await submitted(path, rows) == [
            [True, ""],
            [False, "invalid: event is over 4194304 bytes"],
            [False, "blocked: deleted"],
            exploding,
            [False, "invalid: not JSON"],
            exploding,
            [True, ""],
        ]
    assert folder.submitted == [([NOTES[0], DELETED, NOTES[2]], Origin.IMPORT)]


async def test_a_dry_run_has_the_bounds_of_a_row(folder: FakeFolder, path: Path) -> None:
    bomb = bomb_of(b"[]", 340_000)
    async with ControlServer(path, folder):
        async with talking(path) as (reader, writer):
            writer.write(b'{"do":"dry_run","logins":[],"size":%d}\n%s\n' % (len(bomb), bomb))
            assert (await line(reader))["text"] == "event has too many tags or values"
        async with talking(path) as (reader, writer):
            writer.write(b'{"do":"dry_run","logins":[],"size":4194305}\n')
            assert (await line(reader))["text"] == "size: an event has at most 4194304 bytes"
    assert folder.dry_runs == []


async def test_large_events_are_submitted_in_parts_in_order(folder: FakeFolder, path: Path) -> None:
    events = [alice.sign(1, [], "x" * 2**20, number) for number in range(5)]
    async with ControlServer(path, folder):
        rows = [*(event.raw for event in events), b"{bad"]
        results = await submitted(path, rows)
    assert results == [*[[True, ""]] * 5, [False, "invalid: not JSON"]]
    assert [event for part, _ in folder.submitted for event in part] == events
    assert [len(part) for part, _ in folder.submitted] == [2, 2, 1]


async def test_no_part_follows_one_with_an_event_that_was_not_stored(
    folder: FakeFolder, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A removed member was one again: the last event of the part was a list of another relay."""
    monkeypatch.setattr("relay.server.control.server._PART_BYTES", len(NOTES[2].raw) + 1)
    folder.not_taken = {NOTES[2].id}
    async with ControlServer(path, folder):
        results = await submitted(path, [NOTES[2].raw, DELETED.raw, NOTES[3].raw, b"{bad"])
    fault = [False, "error: disk full"]
    assert results == [fault, [False, "blocked: deleted"], fault, fault]
    assert folder.submitted == [([NOTES[2], DELETED], Origin.IMPORT)]


async def test_other_tasks_have_turns_between_rows(
    folder: FakeFolder, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    turns = 0
    is_over = False

    async def tick() -> None:
        nonlocal turns
        while not is_over:
            turns += 1
            await asyncio.sleep(0)

    # Each look at the clock is a slice later.
    monkeypatch.setattr("relay.server.turns.perf_counter", count(0.0, 1.0).__next__)
    ticking = asyncio.create_task(tick())
    await asyncio.sleep(0)
    before = turns
    server = ControlServer(path, folder)
    await server._results([b"{bad"] * 100, Origin.IMPORT)
    assert turns - before >= 100

    def submit(_event: Event, author: Unconnected, _origin: Origin, _series: Series) -> None:
        assert author.told is not None
        author.told(WriteOutcome.STORED)

    services: Any = SimpleNamespace(ingest=SimpleNamespace(submit=submit))
    before = turns
    replies = await data_folder.LocalFolder(services).submit([NOTES[0]] * 100, Origin.IMPORT)
    assert replies == [(True, "")] * 100
    assert turns - before >= 100
    is_over = True
    await ticking


@pytest.mark.parametrize(
    "request_",
    [
        b"hello",
        b"[]",
        b'{"do":"stop"}',
        b'{"do":"events","filter":{"kinds":["x"]}}',
        b'{"do":"submit","origin":"NOWHERE","sizes":[]}',
        b'{"do":"submit","origin":"WIRE","sizes":[-1]}',
        b'{"do":"submit","origin":"WIRE","sizes":[70000000]}',
        b'{"do":"submit","origin":"WIRE","sizes":[' + b"1," * MAX_ROWS + b"1]}",
        b'{"do":"' + b"x" * 2**21 + b'"}',
    ],
)
async def test_a_malformed_request_is_refused_and_ends_the_connection(
    folder: FakeFolder, path: Path, request_: bytes
) -> None:
    async with ControlServer(path, folder), talking(path) as (reader, writer):
        writer.write(request_ + b"\n")
        answer = await line(reader)
        assert (answer["is"], answer["prefix"]) == ("failed", "invalid")
        assert await reader.read() == b""
    assert folder.submitted == []


async def test_a_command_may_disconnect_in_the_middle_of_a_request(
    folder: FakeFolder, path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with ControlServer(path, folder), RemoteFolder(path) as remote:
        async with talking(path) as (_, writer):
            writer.write(b'{"do":"submit","origin":"IMPORT","sizes":[400]}\nhalf a row')
        assert await remote.head() == 80
    assert folder.submitted == []
    assert caplog.text == ""


async def test_a_truncated_reply_is_a_fault(path: Path) -> None:
    async def half(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b'{"is":"page","sizes":[400]}\nhalf a row')
        writer.close()
        await writer.wait_closed()

    async with await asyncio.start_unix_server(half, path):
        with pytest.raises(StoreFault, match="closed the connection"):
            await all_of(RemoteFolder(path), Filter())


@pytest.mark.parametrize("answer", [b"hello", b'{"is":"new"}', b'{"is":"page","sizes":[]}'])
async def test_a_reply_of_another_version_is_a_fault(path: Path, answer: bytes) -> None:
    async def other(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(answer + b"\n")
        writer.close()
        await writer.wait_closed()

    async with await asyncio.start_unix_server(other, path):
        with pytest.raises(StoreFault, match="the relay sent"):
            await RemoteFolder(path).head()


async def test_more_connections_than_the_maximum_are_refused(
    folder: FakeFolder, path: Path
) -> None:
    async with ControlServer(path, folder), contextlib.AsyncExitStack() as stack:
        for _ in range(16):
            reader, writer = await stack.enter_async_context(talking(path))
            writer.write(b'{"do":"head"}\n')
            await line(reader)
        with pytest.raises(Refused, match="too many"):
            await RemoteFolder(path).submit(NOTES, Origin.IMPORT)
    assert folder.submitted == []


# -- back-pressure --------------------------------------------------------------------------------


async def test_pages_are_read_from_the_store_under_back_pressure(
    folder: FakeFolder, path: Path
) -> None:
    large = alice.sign(1, [], "x" * 1_000_000, 1).raw
    folder.pages = [[large]] * 50
    async with ControlServer(path, folder), talking(path) as (reader, writer):
        writer.write(b'{"do":"events","filter":{}}\n')
        for _ in range(500):  # turns of the loop, in which a relay without bounds would read all
            await asyncio.sleep(0)
        assert folder.given < 10
        pages = 0
        while (head := await line(reader))["sizes"]:
            await reader.readexactly(sum(head["sizes"]) + len(head["sizes"]))
            pages += 1
        assert pages == folder.given == 50


async def test_a_command_that_disconnects_ends_its_scan(folder: FakeFolder, path: Path) -> None:
    folder.pages = [[alice.sign(1, [], "x" * 1_000_000, 1).raw]] * 50
    async with ControlServer(path, folder):
        async with talking(path) as (reader, writer):
            writer.write(b'{"do":"events","filter":{}}\n')
            await line(reader)
        async with asyncio.timeout(ANSWER_S):
            await folder.is_left.wait()
    assert folder.given < 50


# -- the socket -----------------------------------------------------------------------------------


async def test_the_socket_has_mode_0600_and_is_removed_at_stop(
    folder: FakeFolder, path: Path
) -> None:
    mask = os.umask(0)
    try:
        async with ControlServer(path, folder):
            assert kind_of(path) == "srw-------"
            assert os.umask(0) == 0
    finally:
        os.umask(mask)
    assert kind_of(path) is None


async def test_another_user_is_refused(
    folder: FakeFolder, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    own = os.geteuid()
    async with ControlServer(path, folder):
        monkeypatch.setattr(socket_file, "_peer", lambda _: (1, own + 1))
        with pytest.raises(Refused, match=f"runs as user {own}; run the command as that user"):
            await RemoteFolder(path).submit(NOTES, Origin.IMPORT)
    assert folder.submitted == []


async def test_root_is_answered(
    folder: FakeFolder, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Root can become the relay's user anyway, and what a relay writes for it belongs to that."""
    monkeypatch.setattr(os, "geteuid", lambda: 995)
    monkeypatch.setattr(socket_file, "_peer", lambda _: (1, 0))
    async with ControlServer(path, folder), RemoteFolder(path) as remote:
        assert await remote.head() == 80


async def test_the_socket_of_a_dead_relay_is_replaced(folder: FakeFolder, path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as dead:
        dead.bind(str(path))
    async with ControlServer(path, folder), RemoteFolder(path) as remote:
        assert await remote.head() == 80


async def test_the_socket_of_a_running_relay_is_not_replaced(
    folder: FakeFolder, path: Path
) -> None:
    async with ControlServer(path, folder), RemoteFolder(path) as remote:
        with pytest.raises(FolderBusy) as busy:
            await ControlServer(path, FakeFolder()).__aenter__()
        assert busy.value.pid == os.getpid()
        assert await remote.head() == 80


async def test_what_is_not_a_socket_is_not_removed(folder: FakeFolder, path: Path) -> None:
    os.mkdir(path)
    with pytest.raises(UserError, match="is not a socket"):
        await ControlServer(path, folder).__aenter__()
    assert (kind_of(path) or "").startswith("d")


async def test_a_path_may_be_longer_than_a_socket_address(
    folder: FakeFolder, tmp_path: Path
) -> None:
    deep = tmp_path.joinpath(*["a folder in a folder"] * 10)
    deep.mkdir(parents=True)
    path = deep / "control.sock"
    async with ControlServer(path, folder), RemoteFolder(path) as remote:
        assert await remote.head() == 80
    assert kind_of(path) is None


# -- restart ---------------------------------------------------------------------------------------


async def test_a_restart_is_asked_for_and_may_be_refused(folder: FakeFolder, path: Path) -> None:
    async with ControlServer(path, folder), RemoteFolder(path) as remote:
        await remote.restart()
        assert folder.reached.is_set()
        folder.fault = Refused(Prefix.ERROR, "not restarted: rookery.toml:3: no such key")
        with pytest.raises(StoreFault, match=r"^not restarted: rookery\.toml:3: no such key$"):
            await remote.restart()


# -- stopping -------------------------------------------------------------------------------------


async def test_a_batch_being_committed_gets_its_reply_before_the_stop(
    folder: FakeFolder, path: Path
) -> None:
    folder.may_commit.clear()
    async with asyncio.TaskGroup() as group, ControlServer(path, folder):
        waiting = group.create_task(RemoteFolder(path).submit(NOTES[:1], Origin.IMPORT))
        await folder.reached.wait()
        asyncio.get_running_loop().call_soon(folder.may_commit.set)
    assert waiting.result() == [(True, "")]


async def test_an_idle_connection_does_not_delay_the_stop(folder: FakeFolder, path: Path) -> None:
    async with asyncio.timeout(ANSWER_S), contextlib.AsyncExitStack() as stack:
        async with ControlServer(path, folder):
            reader, writer = await stack.enter_async_context(talking(path))
            writer.write(b'{"do":"head"}\n')
            await line(reader)
        assert await reader.read() == b""


async def test_a_refusal_keeps_its_prefix(folder: FakeFolder, path: Path) -> None:
    async with ControlServer(path, folder), RemoteFolder(path) as remote:
        folder.fault = Invalid("seq: too old")
        with pytest.raises(Refused) as refused:
            await remote.head()
    assert (refused.value.prefix, refused.value.text) == (Prefix.INVALID, "seq: too old")
