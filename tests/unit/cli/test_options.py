"""relay/cli/options.py: output without control characters."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import click
import pytest

from relay.cli.options import PublicKey, WholeNumber, print_json, printable

if TYPE_CHECKING:
    from pathlib import Path

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


@pytest.mark.parametrize(
    ("kind", "value", "says"),
    [
        (WholeNumber(0), "x", "'x' is not a whole number, 0 or more"),
        (WholeNumber(0), "-1", "-1 is not a whole number, 0 or more"),
        (WholeNumber(1, 65_535), "65536", "65536 is not a whole number from 1 to 65535"),
        (WholeNumber(), "1.5", "'1.5' is not a whole number"),
        (
            PublicKey(),
            "bob",
            "not a public key: 'bob' (an npub or 64 hex characters), nor a name of",
        ),
        (PublicKey(), "npub1bob", "not a valid npub: check that it was copied whole"),
    ],
)
def test_a_wrong_value_is_told_what_is_wanted(
    kind: WholeNumber | PublicKey,
    value: str,
    says: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    with pytest.raises(click.BadParameter) as wrong:
        kind.convert(value, None, None)
    assert says in wrong.value.message


def test_a_number_in_its_range_is_taken() -> None:
    assert [WholeNumber(1, 9).convert(each, None, None) for each in ("1", "9")] == [1, 9]
    assert WholeNumber().convert("-3", None, None) == -3
