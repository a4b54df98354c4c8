"""Every table in this folder is run by the code behind `rookery policy test`."""

from __future__ import annotations

from itertools import takewhile
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from policies.cases import case_table
from relay.cli.policy.case_runner import results
from relay.memory.systems import MEMORY_SYSTEMS
from tests.conformance.statements import ids_named_in

if TYPE_CHECKING:
    from relay.cli.policy.case_runner import Result

HERE = Path(__file__).parent
TABLES = sorted(HERE.glob("*.toml"))


def _rows() -> list[object]:
    return [
        pytest.param(
            result, id=f"{path.stem}:{result.case.line} {result.case.says}", marks=_proves(path)
        )
        for path in TABLES
        for result in results(case_table(path), None, MEMORY_SYSTEMS)
    ]


def _proves(path: Path) -> list[pytest.MarkDecorator]:
    """The statements that the comment at the top of a table names: all of it is their proof."""
    lines = path.read_text(encoding="utf-8").splitlines()
    ids = ids_named_in(" ".join(takewhile(lambda line: line.startswith("#"), lines)))
    return [pytest.mark.proves(*ids, by=f"policy_cases/{path.name}")] if ids else []


def test_there_are_tables() -> None:
    assert TABLES


@pytest.mark.parametrize("result", _rows())
def test_the_policies_decide_as_the_tables_say(result: Result) -> None:
    assert result.passed, f"want {result.case.want}, got {result.got} by {result.rule or 'no rule'}"
