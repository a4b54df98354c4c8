"""Tables on terminals of any width: what people copy out of them is there in one piece."""

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
@pytest.mark.parametrize("is_framed", [True, False])
def test_keys_and_numbers_are_whole_on_a_line_at_any_width(
    terminal: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    width: int,
    *,
    is_framed: bool,
) -> None:
    terminal.setenv("COLUMNS", str(width))
    print_table(COLUMNS, ROWS, is_framed=is_framed)
    out = capsys.readouterr().out
    for key in (alice.npub, bob.npub, "1,234,567"):
        assert sum(key in line for line in out.splitlines()) == 1
    assert "…" not in out
    assert out.count("words") == 16, "nor is a text cut"


def test_where_there_is_no_room_a_row_is_a_paragraph(
    terminal: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    terminal.setenv("COLUMNS", "80")
    columns = (Column("#", Holds.NUMBER), *COLUMNS)
    print_table(columns, [("1", alice.npub, "7", "hello"), ("2", bob.npub, "8", "")])
    assert capsys.readouterr().out == (
        f"author:\n{alice.npub}\n  # 1, events 7, said hello\n{bob.npub}\n  # 2, events 8\n"
    )


def test_a_table_without_rows_shows_its_heads(capsys: pytest.CaptureFixture[str]) -> None:
    print_table(COLUMNS, [])
    assert "author" in capsys.readouterr().out
