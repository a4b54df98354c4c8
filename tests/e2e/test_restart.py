"""A relay that starts again: by `rookery restart`, and on a socket that systemd keeps open."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import time
from contextlib import asynccontextmanager, contextmanager, suppress
from typing import TYPE_CHECKING

import orjson
import pytest
import websockets
from aiohttp import ClientSession

from relay.cli.folder_lock import locked
from relay.client import Client
from relay.nostr.nip98 import header_for
from relay.server.listening import has_ipv6_loopback
from tests import cast
from tests.effort import tries
from tests.harness.patience import ANSWER_S
from tests.harness.relay_program import OwnProcess, Rookery, command, connected, until

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator
    from pathlib import Path

    from relay.nostr.event import Event

pytestmark = pytest.mark.slow

RESTARTS = tries(3, 3, 1)


@pytest.fixture
async def rookery(tmp_path: Path) -> AsyncIterator[Rookery]:
    async with Rookery(tmp_path / "data") as rookery:
        await rookery.init("--owner", cast.owner.pubkey, "--agent", cast.robot.pubkey)
        yield rookery
    assert "Traceback" not in "\n".join(rookery.lines)


@pytest.fixture
async def own_process(rookery: Rookery) -> AsyncIterator[OwnProcess]:
    """On the same folder, started as a user or systemd starts it."""
    own_process = OwnProcess(rookery.folder)
    async with own_process:
        yield own_process
    rookery.lines += own_process.lines


def note(text: str, kind: int = 1) -> Event:
    return cast.robot.sign(kind, [], text, int(time.time()))


async def restarted(rookery: Rookery) -> None:
    code, text = await command("restart", "--data", str(rookery.folder))
    assert code == 0, text
    assert text.startswith("restarted: ")


class Visits:
    """Connections one after the other, each with a question."""

    def __init__(self, url: str) -> None:
        self.answered = 0
        self.refused: list[str] = []
        self.told: set[int | None] = set()
        """Codes of close frames."""
        self._url = url

    async def go_on(self) -> None:
        while True:
            try:
                async with websockets.connect(self._url, open_timeout=None) as wire:
                    assert (await wire.recv())[:7] == '["AUTH"'
            except (OSError, websockets.InvalidHandshake) as error:
                self.refused.append(repr(error))
            except websockets.ConnectionClosed as closed:
                # Accepted just before the stop; it is told that the relay stops.
                self.told.add(None if closed.rcvd is None else closed.rcvd.code)
            else:
                self.answered += 1
            await asyncio.sleep(0.005)


@asynccontextmanager
async def load(rookery: Rookery, kind: int = 1) -> AsyncIterator[Visits]:
    """A writer, a reader of its events and visitors; nothing may be lost, refused or come twice.

    `kind`: one of which the robot has written nothing yet."""
    mine = {"kinds": [kind], "authors": [cast.robot.pubkey]}
    stop = asyncio.Event()
    written: list[Event] = []
    visits = Visits(rookery.url)

    async def events() -> AsyncIterator[Event]:
        while not stop.is_set():
            written.append(note(f"{len(written)}", kind))
            yield written[-1]
            await asyncio.sleep(0.004)  # enough to be always in the middle of something

    async with Client(rookery.url, cast.robot) as writer, Client(rookery.url) as reader:
        async with reader.subscribe(mine) as seen:
            visiting = [asyncio.create_task(visits.go_on()) for _ in range(4)]
            writing = asyncio.create_task(writer.publish_many(events(), window=64))
            try:
                yield visits
            finally:
                stop.set()
                for task in visiting:
                    task.cancel()
                ended = await asyncio.gather(*visiting, return_exceptions=True)
            report = await writing
            assert report.refused == ()
            assert report.stored + report.duplicates == len(written)
            came = [await anext(seen) for _ in written]
        ids = {event.id for event in written}
        assert {event.id for event in came} == ids
        stored = [event async for event in reader.query_all(mine)]
        assert sorted(event.id for event in stored) == sorted(ids)
    assert visits.refused == []
    assert visits.told <= {1001, 1012}
    assert all(isinstance(each, asyncio.CancelledError) for each in ended), ended


async def test_under_load_nothing_is_lost_and_nobody_refused(own_process: OwnProcess) -> None:
    await own_process.start()
    pid, url = own_process.pid, own_process.url
    async with load(own_process) as visits:
        for _ in range(RESTARTS):
            before = visits.answered
            await restarted(own_process)
            async with until("visitors are answered again") as tries:
                async for _ in tries:
                    if visits.answered > before + 8:
                        break
    assert own_process.starts == 1 + RESTARTS
    assert (
        own_process.pid,
        {line for line in own_process.lines if line.startswith("listening")},
    ) == (
        pid,
        {f"listening on {url}"},
    )
    assert await own_process.stop() == 0


async def test_on_the_socket_of_systemd_nobody_is_refused_between_two_processes(
    own_process: OwnProcess,
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as kept:
        own_process.listening = kept
        await own_process.start()
        assert own_process.url == f"ws://127.0.0.1:{kept.getsockname()[1]}"
        async with load(own_process) as visits:
            assert await own_process.stop() == 0
            await own_process.start()
            await restarted(own_process)  # and in the same process
            before = visits.answered
            async with until("visitors are answered again") as tries:
                async for _ in tries:
                    if visits.answered > before + 8:
                        break
        assert await own_process.stop() == 0


async def test_who_is_connected_is_told_and_what_was_sent_is_answered(rookery: Rookery) -> None:
    await rookery.start()
    notes = [note(f"{number}") for number in range(300)]
    async with connected(rookery.url) as wire:
        await wire.send("REQ", "mine", {"kinds": [1], "limit": 0})
        assert await wire.receive() == ["EOSE", "mine"]
        for each in notes:
            await wire.send_event(each)
        await wire.receive()
        restarting = asyncio.create_task(restarted(rookery))
        frames, closed = await wire.to_the_end()
        await restarting
    assert closed.rcvd is not None
    assert (closed.rcvd.code, closed.rcvd.reason) == (1012, "the relay is restarting")
    assert ["CLOSED", "mine", "error: the relay is restarting"] in frames
    accepted = {frame[1] for frame in frames if frame[0] == "OK" and frame[2]}
    async with connected(rookery.url) as wire:
        assert accepted <= await wire.query_ids([each.id for each in notes])
    assert await rookery.stop() == 0


async def test_a_relay_that_would_not_start_goes_on(rookery: Rookery) -> None:
    settings = (rookery.folder / "rookery.toml").read_text()
    server = settings.partition("[server]\n")[0] + "[server]\n"
    faults = [
        ("policies/60-bad.toml", "[[rule]]\nnmae = 'x'\n", "60-bad.toml:2"),
        ("relay.key", None, "relay.key is missing"),
        ("rookery.toml", f"{server}nmae = 1\n", "rookery.toml:"),
        ("rookery.toml", f'{server}tls_cert = "no.pem"\ntls_key = "no.key"\n', "no.pem"),
    ]
    await rookery.start()
    async with connected(rookery.url) as wire:
        for name, content, named in faults[:: tries(1, 1, 2)]:
            with replaced(rookery.folder / name, content):
                code, text = await command("restart", "--data", str(rookery.folder))
            assert code == 1
            assert "not restarted, the relay would not start: " in text
            assert named in text
            assert await wire.publish(note(f"still here: {named}")) == (True, "")
            assert any(named in line for line in rookery.lines), "the log does not say so"
    assert rookery.starts == 1
    assert await rookery.stop() == 0


@contextmanager
def replaced(path: Path, content: str | None) -> Iterator[None]:
    """The file has other content, or is not there."""
    before = path.read_bytes() if path.exists() else None
    path.unlink(missing_ok=True) if content is None else path.write_text(content)
    yield
    path.unlink(missing_ok=True) if before is None else path.write_bytes(before)


async def test_sigterm_during_a_restart_ends_the_relay(rookery: Rookery) -> None:
    await rookery.start()
    async with connected(rookery.url) as wire:
        asking = asyncio.create_task(command("restart", "--data", str(rookery.folder)))
        await wire.to_the_end()
        # It stops in order to start again, or is just starting.
        code = await rookery.stop()
        assert code in (0, -signal.SIGTERM)
        asking.cancel()
        with suppress(asyncio.CancelledError):
            await asking
    await rookery.start()
    assert await rookery.stop() == 0


async def test_a_call_that_was_signed_before_a_restart_is_answered_after_it(
    rookery: Rookery,
) -> None:
    await rookery.start()
    body = b'{"method":"listallowedpubkeys","params":[]}'
    headers = {"Content-Type": "application/nostr+json+rpc"}

    async def call(at: int) -> int:
        url = rookery.url.replace("ws://", "http://")
        headers["Authorization"] = header_for(cast.owner, url, body, at, "once")
        async with ClientSession() as http, http.post(url, data=body, headers=headers) as answer:
            return answer.status

    at = int(time.time())
    used = [at + 1]  # a call dated before the first start is refused
    assert await call(at + 1) == 200
    for turn in range(1, RESTARTS + 1):
        await restarted(rookery)
        assert await call(at - turn) == 200
        used.append(at - turn)
        assert [await call(each) for each in used] == [401] * len(used)
    await rookery.stop(signal.SIGKILL)
    await rookery.start()
    assert await call(at - RESTARTS - 2) == 401
    assert await rookery.stop() == 0


async def test_a_reload_during_a_restart_ends_no_relay(own_process: OwnProcess) -> None:
    """`systemctl reload` sends SIGHUP; systemd takes the end by it for a clean one."""
    await own_process.start()
    restarting = asyncio.create_task(restarted(own_process))
    while not restarting.done():
        own_process.send_signal(signal.SIGHUP)
        await asyncio.sleep(0.01)
    await restarting
    assert await own_process.stop() == 0


async def test_a_folder_without_a_relay_cannot_be_restarted(rookery: Rookery) -> None:
    code, text = await command("restart", "--data", str(rookery.folder))
    assert code == 1
    assert "no relay runs on" in text
    assert "rookery serve --data" in text


@pytest.mark.skipif(not has_ipv6_loopback(), reason="this machine has no IPv6")
async def test_beside_127_0_0_1_a_relay_listens_on_the_ipv6_loopback_across_restarts(
    own_process: OwnProcess,
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as kept:
        own_process.listening = kept
        await own_process.start()
        port = kept.getsockname()[1]
        for _ in range(2):
            async with connected(f"ws://[::1]:{port}") as wire:
                tags = [["relay", f"ws://localhost:{port}"], ["challenge", wire.challenge]]
                login = cast.robot.sign(22242, tags, "", int(time.time()))
                await wire.send("AUTH", orjson.loads(login.raw))
                assert (await wire.receive())[:3] == ["OK", login.id, True]
            await restarted(own_process)
        assert await own_process.stop() == 0


async def test_a_socket_unit_that_is_no_tcp_socket_is_named(own_process: OwnProcess) -> None:
    with socket.socket(socket.AF_UNIX) as kept:
        kept.bind(str(own_process.folder / "other.sock"))
        kept.listen()
        own_process.listening = kept
        with pytest.raises(AssertionError, match="no listening TCP socket"):
            await own_process.start()


async def test_check_says_whether_the_relay_would_start(rookery: Rookery) -> None:
    check = ("serve", "--check", "--data", str(rookery.folder), "--port")
    code, text = await command(*check, "0")
    assert code == 0
    assert text == f"ok: a relay would start on {rookery.folder}, on 127.0.0.1 port 0\n"
    with socket.create_server(("127.0.0.1", 0)) as other:
        taken = str(other.getsockname()[1])
        code, text = await command(*check, taken)
        assert code == 1
        assert f"cannot listen on 127.0.0.1 port {taken}" in text
        await rookery.start()
        code, text = await command(*check, taken)
        assert code == 0
        assert text.startswith(f"ok: a relay runs on {rookery.folder} (process ")
        await rookery.stop()
    with locked(rookery.folder):
        code, text = await command(*check, "0")
        assert code == 1
        assert f"is in use by process {os.getpid()}" in text
    (rookery.folder / "relay.key").unlink()
    code, text = await command(*check, "0")
    assert code == 1
    assert "relay.key is missing" in text


async def test_check_says_that_a_new_folder_would_be_made(rookery: Rookery) -> None:
    fresh = rookery.folder / "fresh"
    check = ("serve", "--check", "--data", str(fresh), "--port")
    assert await command(*check, "0") == (0, f"ok: `serve` would create a new relay in {fresh}\n")
    with socket.create_server(("127.0.0.1", 0)) as other:
        code, text = await command(*check, str(other.getsockname()[1]))
        assert code == 1
        assert "cannot listen on" in text
    assert not fresh.exists()


@pytest.mark.parametrize("name", ["@{}", "{}"][: tries(2, 2, 1)])
async def test_systemd_is_told_when_the_relay_answers(
    rookery: Rookery, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    name = name.format(tmp_path / "notify")
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as told:
        told.bind(f"\0{name[1:]}" if name.startswith("@") else name)
        told.settimeout(0)
        monkeypatch.setenv("NOTIFY_SOCKET", name)
        await rookery.start()
        loop = asyncio.get_running_loop()
        for starts in (1, 2):  # a restart tells it again
            assert await asyncio.wait_for(loop.sock_recv(told, 99), ANSWER_S) == b"READY=1"
            assert rookery.starts == starts
            async with connected(rookery.url):
                pass
            if starts == 1:
                await restarted(rookery)
