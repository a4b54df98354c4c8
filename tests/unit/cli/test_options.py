"""relay/cli/options.py: what commands print obeys nobody but the reader."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from relay.cli.options import print_json, printable

if TYPE_CHECKING:
    import pytest

OBEYED = "\x1b[2J\x07\x7f\x9b31m\x85\u2028\u202e\u2066\u200f"


def test_text_has_nothing_left_that_a_terminal_obeys() -> None:
    assert printable(f"a{OBEYED}b") == "a�[2J���31m�����b"


def test_json_says_all_of_it_and_has_nothing_that_a_terminal_obeys(
    capsys: pytest.CaptureFixture[str],
) -> None:
    value = {"naïve 🍵": [f"\\u009b {OBEYED} \\", "\\\x9b"]}
    print_json(value)
    text = capsys.readouterr().out
    assert json.loads(text) == value
    assert text.removesuffix("\n").isprintable()
    assert "naïve 🍵" in text
