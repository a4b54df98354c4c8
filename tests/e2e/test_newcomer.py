"""What somebody meets who tries the relay for the first time, by its commands alone."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.harness.relay_program import Rookery, command

if TYPE_CHECKING:
    from pathlib import Path


async def test_client_commands_find_the_relay_of_the_folder_on_any_port(tmp_path: Path) -> None:
    async with Rookery(tmp_path / "data") as relay:
        await relay.start()  # makes the folder and its keys, as `make run PORT=…` does
        code, text = await command("group", "create", "tea", cwd=tmp_path)
        assert (code, text) == (0, "created tea (private, restricted, closed)\n")
        code, text = await command("session", "list", cwd=tmp_path)
        assert code == 0, text
