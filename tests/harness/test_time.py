"""No test holds a time that was read when its module was imported: see `clock`."""

from __future__ import annotations

import ast
import re
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Iterator

TESTS = Path(__file__).parents[1]
CLOCKS = {"time.time", "time.time_ns", "clock.now", "now", "datetime.datetime.now", "datetime.now"}

CALL = re.compile(r"\b(time|time_ns|now)\(")


def evaluated_at_import(node: ast.AST) -> Iterator[ast.AST]:
    """Everything below but the bodies of functions; their defaults and decorators too."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.Lambda):
            continue
        yield child
        if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef):
            for part in (child.args, *child.decorator_list):
                yield from evaluated_at_import(part)
        else:
            yield from evaluated_at_import(child)


@pytest.mark.slow
def test_no_module_reads_the_clock_when_it_is_imported() -> None:
    found = [
        f"{path.relative_to(TESTS)}:{node.lineno}"
        for path in sorted(TESTS.rglob("*.py"))
        if CALL.search(text := path.read_text())  # to parse all takes 3 s
        for node in evaluated_at_import(ast.parse(text))
        if isinstance(node, ast.Call) and ast.unparse(node.func) in CLOCKS
    ]
    assert found == []
