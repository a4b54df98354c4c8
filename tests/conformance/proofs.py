"""The proofs: what `pytest --collect-only` finds that names statements."""

from __future__ import annotations

import io
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.conformance.statements import Unknown, check_known

if TYPE_CHECKING:
    from collections.abc import Iterable

TESTS = Path(__file__).parents[1]


class CollectionFailed(Exception):
    """The tests could not all be collected; with what pytest said."""


@dataclass(frozen=True, slots=True, order=True)
class Proof:
    path: str
    """From the folder of the tests, with slashes."""
    name: str
    """Of the test; empty when the file as a whole is the proof."""

    def __str__(self) -> str:
        return f"{self.path}::{self.name}" if self.name else self.path


@dataclass(slots=True)
class Collected:
    """A plugin of pytest that keeps what the markers of the tests say."""

    proofs: dict[str, set[Proof]] = field(default_factory=dict)
    """Id → its proofs."""

    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        for item in items:
            if is_expected_to_pass(item):
                for id_, proof in proofs_of(item):
                    self.proofs.setdefault(id_, set()).add(proof)


def is_expected_to_pass(item: pytest.Item) -> bool:
    """A test that is skipped or must fail proves nothing."""
    return not any(item.get_closest_marker(name) for name in ("skip", "xfail"))


def proofs_of(item: pytest.Item) -> Iterable[tuple[str, Proof]]:
    """(id, proof) for each statement that the marks of a test name. Raises Unknown."""
    for mark in item.iter_markers("proves"):
        path = item.path.relative_to(TESTS).as_posix() if item.path.is_relative_to(TESTS) else ""
        name = getattr(item, "originalname", None) or item.name
        by = mark.kwargs.get("by")
        check_known(mark.args, item.nodeid)
        for id_ in mark.args:
            yield id_, Proof(by, "") if by else Proof(path, name)


def check_marks(items: Iterable[pytest.Item]) -> None:
    """Raises pytest.UsageError, which ends the collection, for a mark without a statement."""
    try:
        for item in items:
            for _ in proofs_of(item):
                pass
    except Unknown as unknown:
        raise pytest.UsageError(str(unknown)) from None


def collected() -> dict[str, set[Proof]]:
    """Id → its proofs, of the whole suite. Raises CollectionFailed."""
    plugin, said = Collected(), io.StringIO()
    arguments = ["--collect-only", "-qq", "-p", "no:cacheprovider", str(TESTS)]
    with redirect_stdout(said), redirect_stderr(said):
        code = pytest.main(arguments, plugins=[plugin])
    if code != pytest.ExitCode.OK:
        raise CollectionFailed(said.getvalue())
    return plugin.proofs
