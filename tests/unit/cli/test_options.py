"""relay/cli/options.py: output without control characters."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from relay.cli.options import print_json, printable

if TYPE_CHECKING:
    import pytest

OBEYED = "\x1b[2J\x07\x7f\x9b31m\x85\u2028\u202e\u2066\u200f"


def test_text_has_no_control_characters() -> None:
    assert printable(f"a{OBEYED}b") == "a�[2J���31m�����b"


def test_json_is_complete_and_has_no_control_characters(
    capsys: pytest.CaptureFixture[str],
) -> None:
    value = {"naïve 🍵": [f"\\u009b {OBEYED} \\", "\\\x9b"]}
    print_json(value)
    text = capsys.readouterr().out
    assert json.loads(text) == value
    assert text.removesuffix("\n").isprintable()
    assert "naïve 🍵" in text
