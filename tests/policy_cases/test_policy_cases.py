"""Every table in this folder is run by the code behind `rookery policy test`."""

from __future__ import annotations

from itertools import takewhile
from pathlib import Path

import pytest

from policies.cases import case_table
from relay.cli.policy.case_runner import results
from relay.memory.systems import MEMORY_SYSTEMS
from tests.conformance.statements import ids_named_in

HERE = Path(__file__).parent
TABLES = sorted(HERE.glob("*.toml"))


def _proves(path: Path) -> list[pytest.MarkDecorator]:
    """The statements that the comment at the top of a table names: all of it is their proof."""
    lines = path.read_text(encoding="utf-8").splitlines()
    ids = ids_named_in(" ".join(takewhile(lambda line: line.startswith("#"), lines)))
    return [pytest.mark.proves(*ids, by=f"policy_cases/{path.name}")] if ids else []


def test_there_are_tables() -> None:
    assert TABLES


@pytest.mark.parametrize(
    "path", [pytest.param(path, id=path.stem, marks=_proves(path)) for path in TABLES]
)
def test_the_policies_decide_as_the_tables_say(path: Path) -> None:
    wrong = [
        f"{path.name}:{row.case.line} {row.case.says}: want {row.case.want}, "
        f"got {row.got} by {row.rule or 'no rule'}"
        for row in results(case_table(path), None, MEMORY_SYSTEMS)
        if not row.passed
    ]
    assert not wrong
