"""SQL of a store is written in its package `sql` alone, and its files are opened in one place."""

from __future__ import annotations

import ast
import re
from pathlib import Path
from typing import TYPE_CHECKING, Final

import pytest

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT: Final = Path(__file__).parents[3]
COMPOSING: Final = ("relay/storage/sqlite/sql/", "relay/storage/postgres/sql/")
CLIENT: Final = "relay/client/"
"""Has files of its own; they are no store."""
STATEMENT: Final = re.compile(
    r"\b(SELECT|INSERT|UPDATE|DELETE FROM|WHERE|ORDER BY"
    r"|(CREATE|DROP|ALTER) (TEMP |VIRTUAL )?(TABLE|INDEX|VIEW|TRIGGER))\b"
)
WORD: Final = re.compile(r"\b(SELECT|INSERT|UPDATE|DELETE|WHERE|ORDER|CREATE|DROP|ALTER)\b")
"""One of each, also of a text in parts."""


def sources() -> Iterator[Path]:
    for package in ("relay", "policies"):
        yield from (ROOT / package).rglob("*.py")


def texts(tree: ast.AST) -> Iterator[ast.Constant]:
    """String constants, parts of f-strings too; not docstrings."""
    alone = {node.value for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and node not in alone:
            yield node


def found_in(source: str) -> list[int]:
    """Lines with SQL."""
    if not WORD.search(source):
        return []  # to parse all takes 3 s
    return [text.lineno for text in texts(ast.parse(source)) if STATEMENT.search(str(text.value))]


def test_one_function_opens_the_files_of_a_store() -> None:
    """It looks at what is beside them first."""
    found = {
        (path.name, arguments)
        for path in (ROOT / "relay/storage").rglob("*.py")
        for arguments in re.findall(r"sqlite3\.connect\(\s*([^,)]+)", path.read_text("utf-8"))
        if arguments != '":memory:"'
    }
    only_read = ("copying.py", 'f"{copy.absolute(')
    assert found == {("connections.py", "path"), only_read}


@pytest.mark.slow
def test_no_module_but_those_of_the_package_sql_holds_sql() -> None:
    found = []
    for path in sources():
        name = path.relative_to(ROOT).as_posix()
        if not name.startswith((*COMPOSING, CLIENT)):
            found += [f"{name}:{line}" for line in found_in(path.read_text("utf-8"))]
    assert found == []


@pytest.mark.parametrize(
    ("source", "lines"),
    [
        ('x = "SELECT 1"', [1]),
        ('x = f"DELETE FROM {table}"', [1]),
        ('x = (\n    "a"\n    f" WHERE {y}"\n)', [2]),
        ('"""SELECT is a word of SQL."""\nx = "select a row"', []),
    ],
)
def test_what_counts_as_sql(source: str, lines: list[int]) -> None:
    assert found_in(source) == lines
