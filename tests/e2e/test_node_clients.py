"""Libraries of clients in Node: nostr-tools, welshman (Flotilla), NDK (Chachi); `node/*.mjs`.

The packages are installed once into the user's cache, never into the checkout.
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import json
import os
import shutil
import subprocess
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests import cast
from tests.harness.patience import PROGRAM_S
from tests.harness.relay_program import Rookery

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Sequence

pytestmark = pytest.mark.slow

HERE = Path(__file__).parent / "node"
INSTALL_S = 180


@pytest.fixture(scope="session")
def node_modules() -> Path:
    """The packages of package.json; installed by the first who asks, the others wait."""
    for program in ("node", "npm"):
        if shutil.which(program) is None:
            pytest.skip(f"{program} is not installed: the packages of npm cannot be tried")
    wanted = (HERE / "package.json").read_bytes()
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    home = cache / "rookery-tests" / f"node-{sha256(wanted).hexdigest()[:12]}"
    home.mkdir(parents=True, exist_ok=True)
    with (home / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (home / "done").exists():
            (home / "package.json").write_bytes(wanted)
            done = subprocess.run(
                ["npm", "install", "--no-audit", "--no-fund", "--ignore-scripts"],
                cwd=home,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                timeout=INSTALL_S,
                check=False,
            )
            assert done.returncode == 0, done.stdout.decode()
            (home / "done").touch()
    return home / "node_modules"


@contextlib.asynccontextmanager
async def a_relay(folder: Path, preset: str, policy: str = "") -> AsyncIterator[Rookery]:
    """`policy`: what a file of its own adds to the preset."""
    async with Rookery(folder) as rookery:
        keys = ("--owner", cast.owner.pubkey, "--agent", cast.robot.pubkey)
        await rookery.init(*keys, "--preset", preset)
        (folder / "policies" / "20-mine.toml").write_text(policy)
        await rookery.start()
        yield rookery
        assert await rookery.stop() == 0
        assert not any("Traceback" in line for line in rookery.lines), rookery.lines


async def tells(
    script: str, chapter: str, relays: Sequence[Rookery], node_modules: Path, stage: Path
) -> None:
    """The chapter of the script comes to its end."""
    shutil.copytree(HERE, stage)
    (stage / "node_modules").symlink_to(node_modules)
    people = [
        ("owner", cast.owner),
        ("robot", cast.robot),
        ("alice", cast.alice),
        ("stranger", cast.stranger),
    ]
    told = {
        "urls": [rookery.url for rookery in relays],
        "keys": {name: key.hex for name, key in people},
    }
    code, text = await _node(stage / script, chapter, json.dumps(told))
    assert (code, text.splitlines()[-1:]) == (0, [f"done: {chapter}"]), text


@pytest.mark.parametrize("chapter", ["slots", "member", "outsiders", "removed", "config", "pool"])
async def test_the_story_by_nostr_tools(node_modules: Path, tmp_path: Path, chapter: str) -> None:
    async with a_relay(tmp_path / "data", "group") as rookery:
        await tells("story.mjs", chapter, [rookery], node_modules, tmp_path / "node")


@pytest.mark.parametrize("chapter", ["several", "group", "invite", "address", "login"])
async def test_nostr_tools_pool_groups_and_login(
    node_modules: Path, tmp_path: Path, chapter: str
) -> None:
    async with a_relay(tmp_path / "one", "open") as one, a_relay(tmp_path / "two", "open") as two:
        await tells("pool.mjs", chapter, [one, two], node_modules, tmp_path / "node")


SPACE = """
[groups]
create = ["known"]
new    = []
always = []
"""
"""For members of the relay who make rooms themselves."""


@pytest.mark.proves("N43-03", "N43-04", "N43-05")
@pytest.mark.parametrize("chapter", ["space", "room", "idle"])
async def test_a_space_by_welshman(node_modules: Path, tmp_path: Path, chapter: str) -> None:
    """The engine of Flotilla and Coracle, called in the order of Flotilla's own code."""
    async with a_relay(tmp_path / "data", "group", SPACE) as rookery:
        await tells("welshman.mjs", chapter, [rookery], node_modules, tmp_path / "node")


@pytest.mark.parametrize("chapter", ["group", "invites", "chat"])
async def test_groups_by_ndk(node_modules: Path, tmp_path: Path, chapter: str) -> None:
    """The library of Chachi, called in the order of Chachi's own code."""
    async with a_relay(tmp_path / "data", "open") as rookery:
        await tells("ndk.mjs", chapter, [rookery], node_modules, tmp_path / "node")


async def _node(script: Path, chapter: str, told: str) -> tuple[int, str]:
    process = await asyncio.create_subprocess_exec(
        "node",
        script,
        chapter,
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )
    try:
        out, _ = await asyncio.wait_for(process.communicate(told.encode()), PROGRAM_S)
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    assert process.returncode is not None
    return process.returncode, out.decode()
