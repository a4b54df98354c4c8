"""What somebody meets who tries the relay for the first time, by its commands alone."""

from __future__ import annotations

import os
import time
from typing import TYPE_CHECKING

import pytest

from relay.client.settings import Actor, find_settings
from tests import cast
from tests.harness.relay_program import Rookery, command, connected
from tests.harness.screen import on_screen

if TYPE_CHECKING:
    from pathlib import Path


async def test_client_commands_find_the_relay_of_the_folder_on_any_port(tmp_path: Path) -> None:
    async with Rookery(tmp_path / "data") as relay:
        await relay.start()  # makes the folder and its keys, as `make run PORT=…` does
        code, text = await command("group", "create", "tea", cwd=tmp_path)
        assert (code, text) == (0, "created tea (private, restricted, closed)\n")
        code, text = await command("session", "list", cwd=tmp_path)
        assert code == 0, text
        assert relay_found(tmp_path) == relay.url  # so do programs
        settings = relay.folder / "rookery.toml"
        public = '[relay]\nurl = "wss://relay.example.org"'
        settings.write_text(settings.read_text().replace("[relay]", public))
        assert relay_found(tmp_path) == "wss://relay.example.org", "a login names it"
    assert relay_found(tmp_path) == "ws://127.0.0.1:7777"


def relay_found(folder: Path) -> str:
    return find_settings(
        Actor.AGENT, relay=None, key_file=None, environ={}, home=folder, here=folder
    ).relay


async def test_top_is_drawn_again_until_q(tmp_path: Path) -> None:
    async with Rookery(tmp_path / "data") as relay:
        await relay.init("--owner", cast.owner.npub)
        await relay.start()
        async with on_screen("top", "--data", str(relay.folder)) as screen:
            await screen.until("connections 0 (0 logged in)")
            async with connected(relay.url) as wire:
                refused = cast.stranger.sign(1, [], "no", int(time.time()))
                assert (await wire.publish(refused))[0] is False
                await screen.until("connections 1 (0 logged in)")
                await screen.until("known people write")
            screen.type("q")
            assert await screen.exit_code() == 0
            await screen.until("\x1b[?1049l")  # the screen of before


@pytest.mark.parametrize("no_color", ["", "1"])
async def test_colour_only_where_it_is_wanted(tmp_path: Path, no_color: str) -> None:
    relay = Rookery(tmp_path / "data")
    await relay.init("--owner", cast.owner.npub)
    check = ("policy", "check", "--data", str(relay.folder))
    env = {**os.environ, "TERM": "xterm", "NO_COLOR": no_color}
    async with on_screen(*check, env=env) as screen:
        await screen.until("rules in")
        assert await screen.exit_code() == 0
        await screen.until("\n")
        assert ("\x1b[32mok:" in screen.text) is not bool(no_color)
        assert ("\x1b" in screen.text) is not bool(no_color)
    (relay.folder / "policies" / "20-mine.toml").write_text("[nothing]\n")
    async with on_screen(*check, env=env) as screen:
        await screen.until("nothing")
        assert await screen.exit_code() == 1
        assert ("\x1b[31m" in screen.text) is not bool(no_color)
    assert "\x1b" not in (await command(*check))[1]


async def test_backup_and_restore_take_relative_paths(tmp_path: Path) -> None:
    async with Rookery(tmp_path / "data") as relay:
        await relay.start()
        (tmp_path / "backups").mkdir()
        for destination in ("backups/", "one.tar.gz"):
            code, text = await command("backup", destination, cwd=tmp_path)
            assert code == 0, text
        found = find_settings(
            Actor.AGENT, relay=None, key_file=None, environ={}, home=tmp_path, here=tmp_path
        )
        assert found.relay == relay.url  # so do programs
        settings = relay.folder / "rookery.toml"
        public = 'url = "wss://relay.example.org"'
        settings.write_text(settings.read_text().replace("[relay]", f"[relay]\n{public}"))
        found = find_settings(
            Actor.AGENT, relay=None, key_file=None, environ={}, home=tmp_path, here=tmp_path
        )
        assert found.relay == "wss://relay.example.org"
        assert await relay.stop() == 0
    code, text = await command("restore", "one.tar.gz", "--check", cwd=tmp_path)
    assert code == 0, text
    code, text = await command("restore", "one.tar.gz", "new/folder", cwd=tmp_path)
    assert code == 0, text
    code, text = await command("verify", "--data", "new/folder", cwd=tmp_path)
    assert code == 0
    assert "nothing is wrong" in text


@pytest.mark.parametrize(
    "words",
    ["status", "stats", "doctor", "policy show", "policy log", "verify", "backup x.tar.gz", "log"],
)
async def test_a_command_in_the_wrong_folder_says_how_to_name_the_right_one(
    tmp_path: Path, words: str
) -> None:
    code, text = await command(*words.split(), cwd=tmp_path)
    assert code == 1
    assert text == (
        "rookery: data is no data folder: name the relay's with --data DIR, or make one with"
        " `rookery init data --owner KEY`\n"
    )
    assert os.listdir(tmp_path) == []
