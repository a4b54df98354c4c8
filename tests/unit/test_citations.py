"""The code cites only NIPs, statements of tests/conformance and files of this repository."""

from __future__ import annotations

import re
from pathlib import Path

from tests.conformance.statements import all_statements

ROOT = Path(__file__).parents[2]
SOURCES = sorted(
    path
    for folder in ("relay", "policies", "deploy")
    for path in (ROOT / folder).rglob("*")
    if path.suffix in (".py", ".sql", ".toml", ".service", ".yaml") or path.name == "Dockerfile"
)
TESTS = sorted(
    path
    for path in (ROOT / "tests").rglob("*")
    if path.suffix in (".py", ".nostr", ".toml", ".md", ".mjs") and path != Path(__file__)
)
OUTSIDE = re.compile(
    r"\bDESIGN\b|[Cc]ontract §|CONTRACT\b|MEMORY\.md|MEMORY [A-Z]-\d|NIPS\.md|\bSTYLE\b"
)
FILE = re.compile(r"\b(?:docs|tests|policies|relay|deploy)/[\w./-]*\w\.(?:md|py|sql|txt)\b")
STATEMENT = re.compile(r"\b(?:N\d\d|NK|[ADGMSXZ])-\d+")


def name_of(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


def lost_in(text: str) -> list[str]:
    """What it cites that is not here."""
    return [
        *OUTSIDE.findall(text),
        *(path for path in FILE.findall(text) if not (ROOT / path).exists()),
        *(id_ for id_ in STATEMENT.findall(text) if id_ not in all_statements()),
    ]


def test_what_a_source_cites_can_be_found() -> None:
    found = {name_of(path): lost_in(path.read_text("utf-8")) for path in SOURCES}
    assert len(found) > 100
    assert {path: lost for path, lost in found.items() if lost} == {}


def test_what_is_not_here_is_found() -> None:
    cited = ["MEMORY.md", "docs/nowhere.md", "G-999"]
    assert lost_in(f"As {', '.join(cited)} and N01-01 say: docs/architecture.md") == cited


def test_no_test_cites_a_page_outside_of_the_repository() -> None:
    found = [
        f"{name_of(path)}: {cited}"
        for path in TESTS
        for cited in OUTSIDE.findall(path.read_text("utf-8"))
    ]
    assert found == []
