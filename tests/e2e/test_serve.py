"""`rookery serve` as a process: how it starts, what it refuses, how it reloads and how it goes."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import socket
import ssl
import stat
import subprocess
import sys
import time
import zipfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import aiohttp
import pytest
import websockets

from tests import cast
from tests.effort import tries
from tests.harness.certificate import certificate
from tests.harness.patience import ANSWER_S, PROGRAM_S, here
from tests.harness.programs import start_rookery
from tests.harness.relay_program import Rookery, command, connected, until

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

pytestmark = pytest.mark.slow

CHECKOUT = Path(__file__).resolve().parents[2]
RELOAD_S = 2.0
STOP_S = 10.0


@pytest.fixture
async def rookery(tmp_path: Path) -> AsyncIterator[Rookery]:
    """A folder with cast's owner and robot; not running yet. No log may hold a traceback."""
    async with Rookery(tmp_path / "data") as rookery:
        await rookery.init("--owner", cast.owner.pubkey, "--agent", cast.robot.pubkey)
        yield rookery
    assert "Traceback" not in "\n".join(rookery.lines)


def now() -> int:
    return int(time.time())


async def get(url: str, **options: Any) -> tuple[int, str]:
    async with aiohttp.ClientSession() as session, session.get(url, **options) as response:
        return response.status, await response.text()


def http(rookery: Rookery, path: str = "/") -> str:
    return rookery.url.replace("ws", "http", 1) + path


# -- stopping --------------------------------------------------------------------------------------


@pytest.mark.proves("N01-99")
async def test_sigterm_says_goodbye_to_open_connections(rookery: Rookery) -> None:
    await rookery.start()
    async with contextlib.AsyncExitStack() as stack:
        wires = [await stack.enter_async_context(connected(rookery.url)) for _ in range(5)]
        for wire in wires:
            for sub in ("one", "two"):
                await wire.send("REQ", sub, {"kinds": [1]})
                assert await wire.receive() == ["EOSE", sub]
        began = time.monotonic()
        endings = [asyncio.create_task(wire.to_the_end()) for wire in wires]
        assert await rookery.stop() == 0
        assert time.monotonic() - began < here(STOP_S)
        for frames, closed in await asyncio.gather(*endings):
            assert sorted(frame[1] for frame in frames) == ["one", "two"]
            for frame in frames:
                assert frame[0] == "CLOSED"
                assert frame[2].startswith("error: ")
            assert closed.rcvd is not None, "no close frame"
            assert closed.rcvd.code == 1001


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT], ids=["SIGTERM", "SIGINT"])
async def test_clients_that_do_not_answer_cannot_hold_the_relay_up(
    rookery: Rookery, number: signal.Signals
) -> None:
    """Half a request, a websocket that reads nothing with a long answer under way, a silent one."""
    await rookery.start()
    async with connected(rookery.url) as wire:
        for count in range(60):
            assert await wire.publish(cast.robot.sign(1, [], "x" * 100_000, now() - count))
    host, port = "127.0.0.1", int(rookery.url.rsplit(":", 1)[1])
    sockets = [socket.create_connection((host, port)) for _ in range(4)]
    try:
        sockets[0].sendall(b"GET / HTTP/1.1\r\nHost: x\r\nX-Slow: ")
        sockets[1].sendall(b"")
        for deaf in sockets[2:]:
            deaf.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            deaf.sendall(
                b"GET / HTTP/1.1\r\nHost: x\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
                b"Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n"
            )
            frame = json.dumps(["REQ", "all", {"kinds": [1]}]).encode()
            # A masked text frame of under 126 bytes, the mask being four zeros.
            deaf.sendall(bytes((0x81, 0x80 | len(frame))) + bytes(4) + frame)
        async with connected(rookery.url) as wire:  # what was sent before is being looked at
            await wire.query({"kinds": [1], "limit": 1})
        began = time.monotonic()
        assert await rookery.stop(number) == 0
        assert time.monotonic() - began < here(STOP_S)
    finally:
        for each in sockets:
            each.close()


async def test_what_was_sent_before_sigterm_is_answered_and_kept(rookery: Rookery) -> None:
    await rookery.start()
    notes = [cast.robot.sign(1, [], f"{n}", now()) for n in range(500)]
    async with connected(rookery.url) as wire:
        for note in notes:
            await wire.send_event(note)
        first = await wire.receive()
        stopping = asyncio.create_task(rookery.stop())
        frames, _ = await wire.to_the_end()
        assert await stopping == 0
    accepted = {frame[1] for frame in (first, *frames) if frame[0] == "OK" and frame[2]}
    assert first[1] in accepted
    await rookery.start()
    async with connected(rookery.url) as wire:
        found = await wire.query_ids([note.id for note in notes])
    assert accepted <= found, "acknowledged, but gone"
    assert await rookery.stop() == 0


# -- reloading -------------------------------------------------------------------------------------

NO_NOTES = """
[[rule]]
name   = "no notes"
match  = { kinds = [1] }
write  = ["owner"]
reject = "no notes today"
"""


@pytest.mark.proves("G-01")
@pytest.mark.parametrize("by", ["file", "SIGHUP"])
async def test_policies_are_reloaded_within_two_seconds(rookery: Rookery, by: str) -> None:
    await rookery.start()
    file = rookery.folder / "policies" / "50-notes.toml"
    async with connected(rookery.url) as wire:
        assert await wire.publish(cast.robot.sign(1, [], "before", now())) == (True, "")
        file.write_text(NO_NOTES)
        if by == "SIGHUP":
            rookery.send_signal(signal.SIGHUP)
        async with until("the rule is in force", here(RELOAD_S)) as tries:
            async for number in tries:
                answer = await wire.publish(cast.robot.sign(1, [], f"now? {number}", now()))
                if answer == (False, "restricted: no notes today"):
                    break
        file.unlink()
        if by == "SIGHUP":
            rookery.send_signal(signal.SIGHUP)
        async with until("the rule is gone", here(RELOAD_S)) as tries:
            async for number in tries:
                answer = await wire.publish(cast.robot.sign(1, [], f"again? {number}", now()))
                if answer == (True, ""):
                    break
    assert await rookery.stop() == 0


async def test_sighup_reloads_what_a_look_at_the_files_would_not_find(rookery: Rookery) -> None:
    """The file has the same size, inode and time of change as before."""
    file = rookery.folder / "policies" / "50-notes.toml"
    file.write_text(NO_NOTES.replace("today", "0"))
    before = file.stat()
    await rookery.start()
    async with connected(rookery.url) as wire:
        for round_ in range(1, 4):
            file.write_text(NO_NOTES.replace("today", f"{round_}"))
            os.utime(file, ns=(before.st_atime_ns, before.st_mtime_ns))
            rookery.send_signal(signal.SIGHUP)
            async with until("the file is read") as tries:
                async for number in tries:
                    note = cast.robot.sign(1, [], f"{round_} {number}", now())
                    if await wire.publish(note) == (False, f"restricted: no notes {round_}"):
                        break
    assert await rookery.stop() == 0


BROKEN = {
    "syntax": b"[[rule]\nname = ",
    "unknown key": NO_NOTES.encode() + b'colour = "red"\n',
    "no such word": NO_NOTES.replace('"owner"', '"everyone"').encode(),
    "not UTF-8": b'[[rule]]\nname = "\xff\xfe"\n',
    "empty name": b'[[rule]]\nname = ""\n',
    "pattern": b"[[rule]]\nname = 'x'\ncontent = { refuse = ['(a+'] }\n",
    "circle": b'include = ["60-bad"]\n',
    "name twice": b'[[rule]]\nname = "x"\npow = 1\n[[rule]]\nname = "x"\npow = 2\n',
}


@pytest.mark.proves("G-01")
@pytest.mark.parametrize("fault", BROKEN)
async def test_a_broken_policy_file_keeps_the_old_set_whole(rookery: Rookery, fault: str) -> None:
    await rookery.start()
    policies = rookery.folder / "policies"
    ready = http(rookery, "/readyz")
    assert await get(ready) == (200, "ok\n")
    # A good file comes with the bad one: neither may count.
    (policies / "50-good.toml").write_text(NO_NOTES)
    (policies / "60-bad.toml").write_bytes(BROKEN[fault])
    rookery.send_signal(signal.SIGHUP)
    async with until("/readyz names the file") as tries:
        async for _ in tries:
            status, text = await get(ready)
            if "60-bad.toml" in text:
                break
    assert status == 200  # it serves, by what was in force
    _, metrics = await get(http(rookery, "/metrics"))
    async with connected(rookery.url) as wire:
        assert await wire.publish(cast.robot.sign(1, [], "still", now())) == (True, "")
        (policies / "60-bad.toml").unlink()
        rookery.send_signal(signal.SIGHUP)
        async with until("/readyz is content") as tries:
            async for _ in tries:
                if await get(ready) == (200, "ok\n"):
                    break
        answer = await wire.publish(cast.robot.sign(1, [], "and now?", now()))
        assert answer == (False, "restricted: no notes today")
    _, after = await get(http(rookery, "/metrics"))
    assert metrics.count("policies") > 0
    assert _policy_metrics(metrics) != _policy_metrics(after), "no metric tells of it"
    assert any("60-bad.toml" in line for line in rookery.lines), "the log does not name the file"
    assert await rookery.stop() == 0


def _policy_metrics(text: str) -> list[str]:
    return [line for line in text.splitlines() if "polic" in line and not line.startswith("#")]


@pytest.mark.parametrize("thing", ["a folder", "a link to nothing"])
async def test_odd_things_among_the_policies_do_not_end_the_reloading(
    rookery: Rookery, thing: str
) -> None:
    await rookery.start()
    policies = rookery.folder / "policies"
    odd = policies / "60-odd.toml"
    if thing == "a folder":
        odd.mkdir()
    else:
        odd.symlink_to(policies / "nothing")
    rookery.send_signal(signal.SIGHUP)
    await _seen_by_the_reload(rookery)
    (odd.rmdir if thing == "a folder" else odd.unlink)()
    (policies / "50-notes.toml").write_text(NO_NOTES)
    rookery.send_signal(signal.SIGHUP)
    async with connected(rookery.url) as wire, until("the rule is in force") as tries:
        async for number in tries:
            note = cast.robot.sign(1, [], f"now? {number}", now())
            if await wire.publish(note) == (False, "restricted: no notes today"):
                break
    assert await rookery.stop() == 0


async def _seen_by_the_reload(rookery: Rookery) -> None:
    """The relay has looked at the files since the SIGHUP: its log says how that ended."""
    async with until("the log tells of a reload") as tries:
        async for _ in tries:
            if any("polic" in line or "reload" in line for line in rookery.lines):
                return


@pytest.mark.proves("G-01")
async def test_a_relay_with_broken_policies_does_not_start(rookery: Rookery) -> None:
    (rookery.folder / "policies" / "60-bad.toml").write_text("[[rule]]\nnmae = 'x'\n")
    code, text = await command("serve", "--data", str(rookery.folder), "--port", "0")
    assert code == 1
    assert "60-bad.toml:2" in text
    assert "Traceback" not in text


# -- refusing to start -----------------------------------------------------------------------------


async def test_a_second_relay_on_the_folder_is_told_who_has_it(rookery: Rookery) -> None:
    await rookery.start()
    code, text = await command("serve", "--data", str(rookery.folder), "--port", "0")
    assert code == 1
    assert str(rookery.pid) in text
    assert len(text.strip().splitlines()) == 1, text
    async with connected(rookery.url) as wire:  # the first one is unhurt
        assert await wire.publish(cast.robot.sign(1, [], "here", now())) == (True, "")
    assert await rookery.stop() == 0
    await rookery.start()
    assert await rookery.stop() == 0


async def test_a_lock_dies_with_its_process(rookery: Rookery) -> None:
    await rookery.start()
    await rookery.stop(signal.SIGKILL)
    await rookery.start()
    async with connected(rookery.url) as wire:
        assert await wire.publish(cast.robot.sign(1, [], "here", now())) == (True, "")
    assert await rookery.stop() == 0


@pytest.mark.parametrize("left", ["relay.key", "rookery.db"])
async def test_a_folder_that_lost_its_settings_is_not_served_with_others(
    tmp_path: Path, rookery: Rookery, left: str
) -> None:
    folder = rookery.folder
    if left == "rookery.db":
        await rookery.start()
        assert await rookery.stop() == 0
        (folder / "relay.key").rename(tmp_path / "relay.key")
    settings = (folder / "rookery.toml").rename(tmp_path / "rookery.toml")
    for more in ((), ("--check",)):
        code, text = await command("serve", "--data", str(folder), "--port", "0", *more)
        assert code == 1
        [line] = text.strip().splitlines()
        assert f"{folder / 'rookery.toml'} is missing" in line
        assert "put it back" in line
    if left == "relay.key":
        given = ("--config", str(settings), "--check")
        code, text = await command("serve", "--data", str(folder), "--port", "0", *given)
        assert (code, text[:3]) == (0, "ok:")


async def test_a_taken_port_is_one_line(rookery: Rookery) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = str(taken.getsockname()[1])
        code, text = await command("serve", "--data", str(rookery.folder), "--port", port)
    assert code == 1
    [line] = text.strip().splitlines()
    assert port in line
    assert "--port" in line


@pytest.mark.parametrize("where", ["a file", "below a file", "not to be made"])
async def test_a_folder_that_cannot_be_written_is_one_line(tmp_path: Path, where: str) -> None:
    file = tmp_path / "file"
    file.write_text("no folder")
    folder = {"a file": file, "below a file": file / "data", "not to be made": "/proc/data"}[where]
    code, text = await command("serve", "--data", str(folder), "--port", "0")
    assert code in (1, 2)  # 2: click knows a file where it wants a folder
    assert "Traceback" not in text
    [line] = text.strip().splitlines()
    assert str(folder) in line or str(file) in line


async def test_something_else_in_place_of_the_database_is_one_line(rookery: Rookery) -> None:
    (rookery.folder / "rookery.db").write_bytes(b"this is no database" * 100)
    code, text = await command("serve", "--data", str(rookery.folder), "--port", "0")
    assert code == 1
    assert "Traceback" not in text
    [line] = text.strip().splitlines()
    assert "rookery.db" in line


async def test_a_folder_in_place_of_the_database_is_one_line(rookery: Rookery) -> None:
    (rookery.folder / "rookery.db").mkdir()
    code, text = await command("serve", "--data", str(rookery.folder), "--port", "0")
    assert code == 1
    assert "Traceback" not in text
    assert len(text.strip().splitlines()) == 1, text


@pytest.mark.parametrize("name", ["relay", "policies"])
async def test_a_foreign_package_of_our_name_is_named(tmp_path: Path, name: str) -> None:
    """Another distribution, of which pip knows, has the import name and lies before ours."""
    site = tmp_path / "site"
    (site / name).mkdir(parents=True)
    (site / name / "__init__.py").write_text("")
    info = site / "strange_relay-2.1.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: strange-relay\nVersion: 2.1\n")
    (info / "RECORD").write_text(f"{name}/__init__.py,,\nstrange_relay-2.1.dist-info/METADATA,,\n")
    if name == "policies":
        # `python -m relay` takes relay from the checkout, policies from the foreign place.
        ours = tmp_path / "ours"
        ours.mkdir()
        (ours / "relay").symlink_to(CHECKOUT / "relay")
        module = [sys.executable, "-S", "-m", "relay", "serve"]
        code, text = await _run(module, tmp_path, ours, site)
    else:
        main = str(CHECKOUT / "relay" / "__main__.py")
        code, text = await _run([sys.executable, "-S", main, "serve"], tmp_path, site)
    assert code == 1, text
    [line] = text.strip().splitlines()
    assert "strange_relay" in line
    assert repr(name) in line


INSTALLED = [
    ("relay", "before it"),
    ("policies", "over it"),
    ("relay", "over it"),
    ("policies", "before it"),
]


@pytest.mark.parametrize(("name", "order"), INSTALLED[: tries(4, 4, 2)])
async def test_an_installed_rookery_names_the_distribution(
    tmp_path: Path, wheel: Path, name: str, order: str
) -> None:
    """As pip does it: both are unpacked into one site-packages, one after the other."""
    site = tmp_path / "site"
    site.mkdir()
    with zipfile.ZipFile(wheel) as packed:
        packed.extractall(site)
    path = [sys.executable, "-m", "relay", "--version"]
    code, text = await _run(path, tmp_path, site)
    assert code == 0, text
    if order == "over it":
        (site / name / "__init__.py").write_text("FOREIGN = True\n")
    (site / name / "foreign.py").write_text("")
    info = site / "insurance-9.dist-info"
    info.mkdir()
    (info / "RECORD").write_text(
        f"{name}/__init__.py,,\n{name}/foreign.py,,\ninsurance-9.dist-info/RECORD,,\n"
    )
    code, text = await _run([sys.executable, "-m", "relay", "serve", "--port", "0"], tmp_path, site)
    assert code == 1, text
    [line] = text.strip().splitlines()
    assert "insurance" in line
    assert repr(name) in line


async def _run(command_: list[str], cwd: Path, *path: Path) -> tuple[int, str]:
    """With these folders before everything else that Python imports from."""
    done = await asyncio.to_thread(
        subprocess.run,
        command_,
        cwd=cwd,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(map(str, path))},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        timeout=PROGRAM_S,
        check=False,
    )
    return done.returncode, done.stdout.decode()


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return _wheel(tmp_path_factory.mktemp("wheel"))


def _wheel(folder: Path) -> Path:
    done = subprocess.run(
        [
            sys.executable,
            "-m",
            "pip",
            "wheel",
            "--no-deps",
            "--quiet",
            "--wheel-dir",
            str(folder),
            str(CHECKOUT),
        ],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        timeout=PROGRAM_S,
        check=False,
    )
    assert done.returncode == 0, done.stdout.decode()
    [wheel] = folder.glob("*.whl")
    return wheel


# -- a fresh folder --------------------------------------------------------------------------------


async def test_a_fresh_folder_gets_keys_and_says_so_once(tmp_path: Path) -> None:
    folder = tmp_path / "new" / "data"
    async with Rookery(folder) as rookery:
        await rookery.start()
        said = [line for line in rookery.lines if "owner" in line or "agent" in line]
        assert any(str(folder / "keys" / "owner.nsec") in line for line in said)
        assert any(str(folder / "keys" / "agent.nsec") in line for line in said)
        assert not any("nsec1" in line for line in rookery.lines), "a secret was printed"
        for name in ("keys/owner.nsec", "keys/agent.nsec", "relay.key"):
            path = folder / name
            assert stat.S_IMODE(path.stat().st_mode) == 0o600, name
            assert path.read_text().startswith("nsec1")
        assert stat.S_IMODE(folder.stat().st_mode) & 0o077 == 0
        assert stat.S_IMODE((folder / "control.sock").stat().st_mode) == 0o600
        before = {path: path.read_text() for path in (folder / "keys").iterdir()}
        owner = await command(
            "group",
            "create",
            "tea",
            "--relay",
            rookery.url,
            "--key-file",
            str(folder / "keys" / "owner.nsec"),
        )
        assert owner[0] == 0, owner[1]
        assert await rookery.stop() == 0
        rookery.lines.clear()
        await rookery.start()
        assert not any("secret key" in line or "made " in line for line in rookery.lines)
        assert before == {path: path.read_text() for path in (folder / "keys").iterdir()}
        assert await rookery.stop() == 0
        assert "Traceback" not in "\n".join(rookery.lines)


async def test_port_0_picks_a_free_port_each(tmp_path: Path) -> None:
    async with Rookery(tmp_path / "one") as one, Rookery(tmp_path / "two") as two:
        await one.start()
        await two.start()
        assert one.url != two.url
        for rookery in (one, two):
            assert not rookery.url.endswith(":0")
            assert await get(http(rookery, "/healthz")) == (200, "ok\n")
            assert await rookery.stop() == 0


async def test_the_port_and_host_of_the_settings_are_used(rookery: Rookery) -> None:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    rookery.set_up("server", f'host = "127.0.0.1"\nport = {port}')
    process = await start_rookery("serve", "--data", str(rookery.folder))
    try:
        assert process.stdout is not None
        line = (await asyncio.wait_for(process.stdout.readline(), ANSWER_S)).decode()
        assert line == f"listening on ws://127.0.0.1:{port}\n"
        line = (await asyncio.wait_for(process.stdout.readline(), ANSWER_S)).decode()
        assert line == (
            f"web console: http://127.0.0.1:{port}/ (to sign in: rookery console"
            f" --relay ws://127.0.0.1:{port})\n"
        )
    finally:
        process.terminate()
        assert await asyncio.wait_for(process.wait(), PROGRAM_S) == 0


# -- TLS -------------------------------------------------------------------------------------------


@pytest.fixture
async def secure(rookery: Rookery) -> tuple[Rookery, ssl.SSLContext]:
    trusting = certificate(rookery.folder)
    rookery.set_up("server", 'tls_cert = "cert.pem"\ntls_key = "key.pem"')
    await rookery.start()
    return rookery, trusting


async def test_wss_works_and_auth_names_the_wss_url(secure: tuple[Rookery, ssl.SSLContext]) -> None:
    rookery, trusting = secure
    assert rookery.url.startswith("wss://")
    async with connected(rookery.url, ssl=trusting) as wire:
        await wire.log_in(cast.owner, rookery.url, now())
        assert await wire.publish(cast.owner.sign(9007, [["h", "tea"]], "", now())) == (True, "")
        post = cast.owner.sign(9, [["h", "tea"]], "hello", now())
        assert await wire.publish(post) == (True, "")
        assert [event["id"] for event in await wire.query({"kinds": [9]})] == [post.id]
    async with connected(rookery.url, ssl=trusting) as wire:
        login = cast.owner.sign(
            22242, [["relay", "wss://elsewhere.example"], ["challenge", wire.challenge]], "", now()
        )
        await wire.send_event(login, "AUTH")
        frame = await wire.receive()
        assert frame[:3] == ["OK", login.id, False]
    assert await rookery.stop() == 0


async def test_nip11_and_the_rest_come_over_https(secure: tuple[Rookery, ssl.SSLContext]) -> None:
    rookery, trusting = secure
    root = rookery.url.replace("wss://", "https://")
    accept = {"Accept": "application/nostr+json"}
    status, text = await get(f"{root}/", headers=accept, ssl=trusting)
    assert status == 200
    assert 29 in json.loads(text)["supported_nips"]
    assert await get(f"{root}/healthz", ssl=trusting) == (200, "ok\n")
    assert await get(f"{root}/readyz", ssl=trusting) == (200, "ok\n")
    with pytest.raises(aiohttp.ClientError):  # no plain HTTP on that port
        await get(root.replace("https", "http"))
    port = int(rookery.url.rsplit(":", 1)[1])
    with socket.create_connection(("127.0.0.1", port)) as half:  # a handshake that never ends
        half.sendall(b"\x16\x03\x01")
        assert await get(f"{root}/healthz", ssl=trusting) == (200, "ok\n")
        began = time.monotonic()
        assert await rookery.stop() == 0
        assert time.monotonic() - began < here(STOP_S)


async def test_handshakes_that_are_not_finished_are_bounded(rookery: Rookery) -> None:
    """28,000 of one host, without a word, took 1.5 GB for a minute, and file descriptors."""
    trusting = certificate(rookery.folder)
    rookery.set_up("server", 'tls_cert = "cert.pem"\ntls_key = "key.pem"')
    rookery.set_up("limits", "connections_per_address = 5")
    await rookery.start()
    port = int(rookery.url.rsplit(":", 1)[1])
    begun = [await asyncio.open_connection("127.0.0.1", port) for _ in range(25)]
    for reader, _ in begun[:15]:
        assert await asyncio.wait_for(reader.read(), here(STOP_S)) == b""
    async with connected(rookery.url, ssl=trusting) as wire:
        assert await wire.query({"kinds": [1]}) == []
    assert [at for at, (reader, _) in enumerate(begun) if reader.at_eof()] == [*range(16)]
    for _, writer in begun:
        writer.close()
    assert await rookery.stop() == 0


TLS_FAULTS = ["no such file", "not a certificate", "another key", "a pipe"]


@pytest.mark.parametrize("fault", TLS_FAULTS)
async def test_tls_files_that_cannot_be_used_are_one_line(rookery: Rookery, fault: str) -> None:
    certificate(rookery.folder)
    if fault == "no such file":
        (rookery.folder / "key.pem").unlink()
    elif fault == "not a certificate":
        (rookery.folder / "cert.pem").write_text("hello")
    elif fault == "a pipe":
        (rookery.folder / "cert.pem").unlink()
        os.mkfifo(rookery.folder / "cert.pem")
    else:
        other = rookery.folder / "other"
        other.mkdir()
        certificate(other)
        (other / "key.pem").replace(rookery.folder / "key.pem")
    rookery.set_up("server", 'tls_cert = "cert.pem"\ntls_key = "key.pem"')
    code, text = await command("serve", "--data", str(rookery.folder), "--port", "0")
    assert code == 1
    [line] = text.strip().splitlines()
    assert "cert.pem" in line
    words = {
        "no such file": "No such file or directory",
        "not a certificate": "one of them is no PEM file",
        "another key": "the key does not belong to the certificate",
        "a pipe": "cert.pem: it is a pipe, not a file",
    }
    assert words[fault] in line


async def test_a_renewed_certificate_is_shown_to_who_connects_next(
    secure: tuple[Rookery, ssl.SSLContext],
) -> None:
    rookery, trusting = secure
    async with connected(rookery.url, ssl=trusting) as wire:
        renewed = certificate(rookery.folder)
        await _trusted(rookery, renewed)
        note = cast.robot.sign(1, [], "still here", now())
        assert await wire.publish(note) == (True, "")
    with pytest.raises(ssl.SSLCertVerificationError):
        await websockets.connect(rookery.url, ssl=trusting)
    assert await rookery.stop() == 0


async def _trusted(rookery: Rookery, renewed: ssl.SSLContext) -> None:
    async with until("the certificate is the new one") as tries:
        async for _ in tries:
            with contextlib.suppress(ssl.SSLCertVerificationError):
                async with connected(rookery.url, ssl=renewed):
                    return


@pytest.mark.parametrize("fault", TLS_FAULTS[:: tries(1, 1, 2)])
async def test_a_renewal_that_cannot_be_used_keeps_the_old_certificate(
    secure: tuple[Rookery, ssl.SSLContext], fault: str
) -> None:
    rookery, trusting = secure
    ready = http(rookery, "/readyz")
    (other := rookery.folder / "other").mkdir()
    renewed = certificate(other)
    cert, key = rookery.folder / "cert.pem", rookery.folder / "key.pem"
    if fault == "no such file":
        key.unlink()
    elif fault == "not a certificate":
        cert.write_text("hello")
    else:
        (other / "key.pem").rename(key)
    async with until("/readyz names the file") as tries:
        async for _ in tries:
            status, text = await get(ready, ssl=trusting)
            if "cert.pem" in text:
                break
    assert (status, "stays in use" in text) == (200, True)
    assert any("cert.pem" in line for line in rookery.lines)
    async with connected(rookery.url, ssl=trusting):
        pass
    if not key.exists() or fault == "not a certificate":
        (other / "key.pem").rename(key)
    (other / "cert.pem").rename(cert)
    await _trusted(rookery, renewed)
    async with until("/readyz is content") as tries:
        async for _ in tries:
            if await get(ready, ssl=renewed) == (200, "ok\n"):
                break
    assert await rookery.stop() == 0
