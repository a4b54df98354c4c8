"""Every recipe of the README loads."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import policies
from policies import load

README = Path(policies.__file__).parent / "README.md"
RECIPES = re.findall(r"^```toml\n(.*?)^```", README.read_text("utf-8"), re.MULTILINE | re.DOTALL)
KEY = "00" * 31 + "01"


def test_there_are_recipes() -> None:
    assert len(RECIPES) > 5


@pytest.mark.parametrize("recipe", RECIPES)
def test_a_recipe_loads(tmp_path: Path, recipe: str) -> None:
    (tmp_path / "20-recipe.toml").write_text(recipe.replace("npub1…", KEY))
    load(tmp_path)
