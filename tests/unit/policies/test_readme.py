"""What policies/README.md promises: every block loads, every recipe does what it says."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from policies import load
from policies.cases import Case, case_table
from policies.lint import warnings_of
from relay.cli.policy.case_runner import result_of, results
from relay.memory.systems import MEMORY_SYSTEMS
from tests import cast
from tests.harness.folders import faults_of
from tests.unit.policies import readme

if TYPE_CHECKING:
    from tests.unit.policies.readme import Recipe

CASES = Path(__file__).parents[2] / "policy_cases" / "recipes"
BLOCKS = readme.blocks()
RECIPES = {recipe.slug: recipe for recipe in readme.recipes()}


def _rows() -> list[object]:
    rows: list[object] = []
    for slug in RECIPES:
        path = CASES / f"{slug}.toml"
        if path.exists():
            table = case_table(path)
            rows += [
                pytest.param(RECIPES[slug], table.preset, case, id=f"{slug}:{case.says}")
                for case in table.cases
            ]
    return rows


@pytest.mark.parametrize("block", BLOCKS, ids=range(len(BLOCKS)))
def test_a_block_loads(tmp_path: Path, block: str) -> None:
    (tmp_path / "20-block.toml").write_text(block)
    for recipe in RECIPES.values():
        for name, text in recipe.files.items():
            (tmp_path / name).write_text(text)
    load(tmp_path, MEMORY_SYSTEMS)


def test_the_first_rule_and_its_fault_are_told_as_on_the_page(tmp_path: Path) -> None:
    first = BLOCKS[0]
    refused = 'preset = "open"\n[[case]]\nsays = "not by an agent"\n'
    refused += 'event = { kind = 30023, by = "agent" }\nwant = "restricted"\n'
    (tmp_path / "cases").write_text(refused)
    (result,) = results(replace(case_table(tmp_path / "cases"), policy=first), None, MEMORY_SYSTEMS)
    assert f'"{result.got}"]' in readme.TEXT
    (fault,) = faults_of(tmp_path, **{"20-mine": first.replace('"owner"', '"onwer"')})
    assert f"    DIR/policies/{fault}" in readme.TEXT


def test_what_the_front_page_shows_loads(tmp_path: Path) -> None:
    front = (Path(readme.__file__).parents[3] / "README.md").read_text("utf-8")
    blocks = re.findall(r"^```toml\n(.*?)^```", front, re.MULTILINE | re.DOTALL)
    (shown,) = [block for block in blocks if "[[rule]]" in block]
    (tmp_path / "20-mine.toml").write_text(shown)
    assert "articles are the owner's" in {
        rule.place.name for rule in load(tmp_path, MEMORY_SYSTEMS).write_rules
    }


def test_every_recipe_has_its_cases_and_every_case_its_recipe() -> None:
    assert {path.stem for path in CASES.glob("*.toml")} == set(RECIPES)


@pytest.mark.parametrize("preset", ["group", "open"])
@pytest.mark.parametrize("recipe", RECIPES.values(), ids=RECIPES)
def test_a_recipe_draws_no_warning(tmp_path: Path, recipe: Recipe, preset: str) -> None:
    people = f'[actors]\nowners = ["{cast.owner.npub}"]\nagents = ["{cast.robot.npub}"]\n'
    (tmp_path / "00-actors.toml").write_text(people)
    assert list(warnings_of(recipe.laid_over(preset, tmp_path))) == []


@pytest.mark.parametrize(("recipe", "preset", "case"), _rows())
def test_a_recipe_decides_as_it_says(
    tmp_path: Path, recipe: Recipe, preset: str, case: Case
) -> None:
    result = result_of(case, recipe.laid_over(preset, tmp_path))
    assert result.passed, f"want {case.want}, got {result.got} by {result.rule or 'no rule'}"
