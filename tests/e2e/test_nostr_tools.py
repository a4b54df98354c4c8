"""The same story through `nostr-tools` in Node: Relay, SimplePool, nip29, nip42 (`node/*.mjs`).

The packages are installed once into the user's cache, never into the checkout.
"""

from __future__ import annotations

import asyncio
import fcntl
import json
import os
import shutil
import subprocess
from hashlib import sha256
from pathlib import Path

import pytest

from tests import cast
from tests.e2e.rookery import Rookery

pytestmark = [pytest.mark.slow, pytest.mark.timeout(240)]

HERE = Path(__file__).parent / "node"
INSTALL_S = 180
CHAPTER_S = 60


@pytest.fixture(scope="session")
def node_modules() -> Path:
    """nostr-tools and what it needs; installed by the first who asks, the others wait."""
    for program in ("node", "npm"):
        if shutil.which(program) is None:
            pytest.skip(f"{program} is not installed: nostr-tools cannot be tried")
    wanted = (HERE / "package.json").read_bytes()
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    home = cache / "rookery-tests" / f"node-{sha256(wanted).hexdigest()[:12]}"
    home.mkdir(parents=True, exist_ok=True)
    with (home / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (home / "done").exists():
            (home / "package.json").write_bytes(wanted)
            done = subprocess.run(
                ["npm", "install", "--no-audit", "--no-fund", "--ignore-scripts"], cwd=home,
                stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=INSTALL_S, check=False,
            )  # fmt: skip
            assert done.returncode == 0, done.stdout.decode()
            (home / "done").touch()
    return home / "node_modules"


@pytest.mark.parametrize(
    "chapter", ["slots", "member", "outsiders", "removed", "config", "pool"]
)
async def test_the_story_by_nostr_tools(node_modules: Path, tmp_path: Path, chapter: str) -> None:
    stage = tmp_path / "node"
    shutil.copytree(HERE, stage)
    (stage / "node_modules").symlink_to(node_modules)
    async with Rookery(tmp_path / "data") as rookery:
        await rookery.init("--owner", cast.owner.pubkey, "--agent", cast.robot.pubkey)
        await rookery.start()
        people = [("owner", cast.owner), ("robot", cast.robot), ("alice", cast.alice),
                  ("stranger", cast.stranger)]  # fmt: skip
        told = {"url": rookery.url, "keys": {name: key.hex for name, key in people}}
        code, text = await _node(stage / "story.mjs", chapter, json.dumps(told))
        assert (code, text.splitlines()[-1:]) == (0, [f"done: {chapter}"]), text
        assert await rookery.stop() == 0
        assert not any("Traceback" in line for line in rookery.lines), rookery.lines


async def _node(script: Path, chapter: str, told: str) -> tuple[int, str]:
    process = await asyncio.create_subprocess_exec(
        "node", script, chapter, stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT,
    )  # fmt: skip
    try:
        out, _ = await asyncio.wait_for(process.communicate(told.encode()), CHAPTER_S)
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    assert process.returncode is not None
    return process.returncode, out.decode()
