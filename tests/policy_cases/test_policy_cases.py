"""Every table in this folder is run by the code behind `rookery policy test`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from policies.cases import case_table, results

if TYPE_CHECKING:
    from policies.cases import Result

HERE = Path(__file__).parent
TABLES = sorted(HERE.glob("*.toml"))


def _rows() -> list[object]:
    return [
        pytest.param(result, id=f"{path.stem}:{result.case.line} {result.case.says}")
        for path in TABLES
        for result in results(case_table(path), None)
    ]


def test_there_are_tables() -> None:
    assert TABLES


@pytest.mark.parametrize("result", _rows())
def test_the_policies_decide_as_the_tables_say(result: Result) -> None:
    assert result.passed, f"want {result.case.want}, got {result.got} by {result.rule or 'no rule'}"
