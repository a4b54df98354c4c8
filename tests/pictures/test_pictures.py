"""The terminal pictures show what the commands print now."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.pictures import FOLDER, PICTURES, demo, lines_in, masked, shown

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = [pytest.mark.slow, pytest.mark.process]


async def test_the_pictures_show_what_the_commands_print(tmp_path: Path) -> None:
    assert {path.stem for path in FOLDER.glob("*.svg")} == {*PICTURES, "what-it-is"}
    async with demo(tmp_path) as env:
        for name, lines in PICTURES.items():
            parts = await shown(tmp_path, env, lines)
            now = [text for part in parts for text in (part.command, part.output)]
            drawn = lines_in((FOLDER / f"{name}.svg").read_text("utf-8"))
            assert masked(drawn) == masked(now), f"{name}: run `make pictures`"


def test_a_picture_loads_nothing() -> None:
    for path in FOLDER.glob("*.svg"):
        text = path.read_text("utf-8")
        assert "@import" not in text
        assert "url(http" not in text
        assert "<script" not in text
