"""Tables on terminals of any width: keys are never truncated."""

from __future__ import annotations

import pytest

from relay.cli.tables import Column, Holds, print_table
from tests.cast import alice, bob

COLUMNS = (
    Column("author", Holds.KEY),
    Column("events", Holds.NUMBER),
    Column("said"),
)
ROWS = [
    (alice.npub, "1,234,567", "words and more words " * 8),
    (bob.npub, "1", ""),
]


@pytest.fixture
def terminal(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    monkeypatch.setenv("FORCE_COLOR", "1")
    return monkeypatch


@pytest.mark.parametrize("width", [40, 80, 100, 120, 200])
def test_keys_and_numbers_are_never_wrapped(
    terminal: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    width: int,
) -> None:
    terminal.setenv("COLUMNS", str(width))
    print_table(COLUMNS, ROWS)
    out = capsys.readouterr().out
    for key in (alice.npub, bob.npub, "1,234,567"):
        assert sum(key in line for line in out.splitlines()) == 1
    assert "…" not in out
    assert out.count("words") == 16, "nor is a text cut"


def test_rows_become_paragraphs_on_a_narrow_terminal(
    terminal: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    terminal.setenv("COLUMNS", "80")
    columns = (Column("#", Holds.NUMBER), *COLUMNS)
    print_table(columns, [("1", alice.npub, "7", "hello"), ("2", bob.npub, "8", "")])
    assert capsys.readouterr().out == (
        f"author:\n{alice.npub}\n  # 1, events 7, said hello\n{bob.npub}\n  # 2, events 8\n"
    )


def test_blanks_in_a_paragraph_fill_no_line(
    terminal: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    terminal.setenv("COLUMNS", "80")
    print_table(COLUMNS, [(alice.npub, "7", f"soup{' ' * 70}vault{' ' * 75}  events 9")])
    assert capsys.readouterr().out.endswith("\n  events 7, said soup vault events 9\n")


def test_a_table_without_rows_has_headers(capsys: pytest.CaptureFixture[str]) -> None:
    print_table(COLUMNS, [])
    assert "author" in capsys.readouterr().out
