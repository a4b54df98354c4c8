"""Plug-ins beside a running relay: programs made for strfry's write policies, unmodified.

`plugins/` holds two, written to the protocol's public description and to nothing of Rookery.
"""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import signal
import time
from pathlib import Path
from typing import TYPE_CHECKING

import aiohttp
import pytest

from tests import cast
from tests.harness.patience import here
from tests.harness.relay_program import Rookery, command, connected, until

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

pytestmark = pytest.mark.slow

HERE = Path(__file__).with_name("plugins")
SILENT = (False, "error: a plug-in of this relay does not answer, try again later")
STORED = (True, "")


@pytest.fixture
async def rookery(tmp_path: Path) -> AsyncIterator[Rookery]:
    async with Rookery(tmp_path / "data") as rookery:
        await rookery.init("--owner", cast.owner.pubkey, "--preset", "open")
        yield rookery
    assert "Traceback" not in "\n".join(rookery.lines)


def install(rookery: Rookery, script: str, **lists: object) -> Path:
    """Copies it to the policy folder, as its README would say."""
    home = rookery.folder / "policies"
    for name, value in lists.items():
        (home / f"{name}.json").write_text(json.dumps(value))
    (home / "20-plugins.toml").write_text(
        f'[[plugin]]\nname = "sifter"\nrun  = "{script}"\ndeadline_ms = 5000\n'
    )
    return Path(shutil.copy(HERE / script, home / script))


def a_script(rookery: Rookery, text: str, deadline_ms: int = 300) -> Path:
    home = rookery.folder / "policies"
    (home / "20-plugins.toml").write_text(
        f'[[plugin]]\nname = "sifter"\nrun  = "sift"\ndeadline_ms = {deadline_ms}\n'
    )
    path = home / "sift"
    path.write_text(text)
    path.chmod(0o755)
    return path


async def page(rookery: Rookery, path: str) -> str:
    url = rookery.url.replace("ws", "http", 1) + path
    async with aiohttp.ClientSession() as session, session.get(url) as response:
        return await response.text()


def now() -> int:
    return int(time.time())


def children(pid: int) -> list[int]:
    return [int(word) for word in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def are_there(*pids: int) -> bool:
    return any(Path(f"/proc/{pid}").exists() for pid in pids)


async def test_a_script_for_strfry_decides_what_is_stored(rookery: Rookery) -> None:
    install(rookery, "allowlist.py", allowlist=[cast.alice.pubkey])
    await rookery.start()
    async with connected(rookery.url) as wire:
        kept = cast.alice.sign(1, [], "hello", now())
        hidden = cast.alice.sign(1, [], "spam!", now())
        refused = cast.bob.sign(1, [], "hello", now())
        assert await wire.publish(kept) == STORED
        assert await wire.publish(hidden) == (False, "blocked: not accepted")
        assert await wire.publish(refused) == (False, "blocked: not on the list")
        assert await wire.query_ids([kept.id, hidden.id, refused.id]) == {kept.id}
        # Many at once, refused and kept in turn: each answer is for its own event.
        notes = [
            who.sign(1, [], str(number), now())
            for number in range(100)
            for who in (cast.alice, cast.bob)
        ]
        for note in notes:
            await wire.send_event(note)
        answers: dict[str, bool] = {}
        while len(answers) < len(notes):
            frame = await wire.receive()
            answers[frame[1]] = frame[2]
        assert answers == {note.id: note.pubkey == cast.alice.pubkey for note in notes}
    assert await page(rookery, "/readyz") == "ok\n"
    metrics = await page(rookery, "/metrics")
    assert 'rookery_refusals_total{rule="plug-in \\"sifter\\""} 102.0' in metrics
    assert "rookery_plugins_down 0.0" in metrics
    running = children(rookery.pid)
    assert len(running) == 1
    assert await rookery.stop() == 0
    assert not are_there(*running)


@pytest.mark.skipif(shutil.which("node") is None, reason="needs Node")
async def test_a_script_that_answers_in_its_own_time_and_order_decides_too(
    rookery: Rookery,
) -> None:
    install(rookery, "limit.mjs")
    await rookery.start()
    async with connected(rookery.url) as wire:
        notes = [cast.alice.sign(1, [], str(number), now()) for number in range(20)]
        for note in notes:
            await wire.send_event(note)
        answers = [(await wire.receive())[2:] for _ in notes]
    assert sum(1 for accepted, _ in answers if accepted) == 2
    texts = sorted(text for accepted, text in answers if not accepted)
    assert texts[-1] == "rate-limited: IP4 127.0.0.1 has posted 9 times"
    assert await rookery.stop() == 0


async def test_an_import_asks_the_script_and_a_trusted_one_does_not(
    rookery: Rookery, tmp_path: Path
) -> None:
    install(rookery, "allowlist.py", allowlist=[cast.alice.pubkey])
    file = tmp_path / "notes.jsonl"
    notes = [who.sign(1, [], "hello", now()) for who in (cast.alice, cast.bob)]
    file.write_bytes(b"".join(note.raw + b"\n" for note in notes))
    data = ("--data", str(rookery.folder))
    code, text = await command("import", str(file), *data)
    assert code == 1
    assert "2 read, 1 stored, 0 duplicates, 1 refused" in text
    assert "blocked: not on the list" in text
    code, text = await command("import", str(file), *data, "--trust")
    assert (code, text.strip()) == (0, "2 read, 1 stored, 1 duplicate, 0 refused")


@pytest.mark.parametrize(
    ("script", "why"),
    [
        ("#!/bin/sh\nexec yes", "printed too many lines that are not JSON"),
        ("#!/bin/sh\nexec sleep 60", "did not answer in time"),
        ("#!/bin/sh\nread line; exit 7", "exited with 7"),
        (
            '#!/bin/sh\nread line; echo \'{"id":"0","action":"accept"}\'; exec cat',
            "answered for an event that it was not asked about",
        ),
        ("#!/gone/interpreter\n", "cannot be started: No such file or directory"),
        ("exit 5", "exited with 5"),  # what is no program is read by sh
        ("#!/bin/sh\nexec yes >&2", "did not answer in time"),
    ],
)
async def test_a_script_that_fails_lets_nothing_in_and_takes_nothing_down(
    rookery: Rookery, script: str, why: str
) -> None:
    a_script(rookery, script)
    await rookery.start()
    async with connected(rookery.url) as wire:
        async with until("the admin hears of it") as tries:
            async for number in tries:
                # It is down until it is started again, and asked it fails again.
                kept_out = cast.alice.sign(1, [], f"quiet words {number}", now())
                assert await wire.publish(kept_out) == SILENT
                assert await wire.query_ids([kept_out.id]) == set()
                # Between two pages the process may have been started again.
                if await page(
                    rookery, "/readyz"
                ) == f"plug-ins: sifter: {why}\n" and "rookery_plugins_down 1.0" in await page(
                    rookery, "/metrics"
                ):
                    break
        # What is mended counts without a start of the relay, when the batch at it is given up.
        a_script(rookery, (HERE / "allowlist.py").read_text())
        (rookery.folder / "policies" / "allowlist.json").write_text(f'["{cast.alice.pubkey}"]')
        async with until("the new script decides") as tries:
            async for _ in tries:
                if await wire.publish(cast.alice.sign(1, [], "again", now())) == STORED:
                    break
        assert await page(rookery, "/readyz") == "ok\n"
    began = time.monotonic()
    assert await rookery.stop() == 0
    assert time.monotonic() - began < here(10)
    log = "\n".join(rookery.lines)
    assert why in log
    assert "quiet words" not in log


async def test_a_killed_script_is_started_again(rookery: Rookery) -> None:
    install(rookery, "allowlist.py", allowlist=[cast.alice.pubkey])
    await rookery.start()
    async with connected(rookery.url) as wire:
        assert await wire.publish(cast.alice.sign(1, [], "one", now())) == STORED
        [pid] = children(rookery.pid)
        os.kill(pid, signal.SIGKILL)
        async with until("another one runs") as tries:
            async for _ in tries:
                if await wire.publish(cast.alice.sign(1, [], "two", now())) == STORED:
                    break
        assert await wire.publish(cast.bob.sign(1, [], "three", now())) == (
            False,
            "blocked: not on the list",
        )
        [other] = children(rookery.pid)
        assert other != pid


async def test_the_relay_stops_in_time_with_events_at_a_script_that_hangs(
    rookery: Rookery,
) -> None:
    a_script(rookery, "#!/bin/sh\ntrap '' TERM\nwhile true; do sleep 1; done", 60_000)
    await rookery.start()
    async with connected(rookery.url) as wire:
        for number in range(200):
            await wire.send_event(cast.alice.sign(1, [], str(number), now()))
        await asyncio.sleep(0.5)
        [pid] = children(rookery.pid)
        began = time.monotonic()
        assert await rookery.stop() == 0
        assert time.monotonic() - began < here(10)
    assert not are_there(pid)
