"""The line of input under `rookery chat`, and the messages above it."""

from __future__ import annotations

import pytest

from relay.cli.chat import _Numbers
from relay.cli.line_editor import END, LineEditor
from relay.cli.names import Names
from tests.cast import alice


@pytest.mark.parametrize(
    ("typed", "lines", "left"),
    [
        ("tea\n", ["tea"], ""),
        ("one\rtwo\nthr", ["one", "two"], "thr"),
        ("teaa\x7f\n", ["tea"], ""),
        ("\x7f\bx", [], "x"),
        ("gone\x15kept", [], "kept"),
        ("two words\x17", [], "two"),
        ("word\x17", [], ""),
        ("a\x1b[Ab\x1b[1;5Cc\x1bOHd\x1bxe", [], "abcde"),
        ("a\x00\x07\u202eb", [], "ab"),
        ("\x04", [END], ""),
        ("half\x04", [], "half"),
        ("é👍\n", ["é👍"], ""),
    ],
)
def test_keys(typed: str, lines: list[object], left: str) -> None:
    editor = LineEditor()
    assert editor.feed(typed.encode()) == lines
    assert editor.text == left


def test_a_character_may_arrive_in_parts() -> None:
    editor = LineEditor()
    for byte in "é\x1b[A👍\n".encode()[:-1]:
        assert editor.feed(bytes([byte])) == []
    assert editor.feed(b"\n") == ["é👍"]


def test_bytes_that_are_no_utf8_do_not_end_the_input() -> None:
    editor = LineEditor()
    assert editor.feed(b"a\xff\xfeb\n") == ["a��b"]


@pytest.mark.parametrize("text", ["short", "long " * 50, "漢字" * 40, ""])
@pytest.mark.parametrize("width", [10, 80])
def test_the_end_of_a_long_line_is_shown(text: str, width: int) -> None:
    from rich.cells import cell_len

    editor = LineEditor()
    editor.feed(text.encode())
    shown = editor.shown(width)
    assert cell_len(shown) < width
    assert shown.startswith("> ")
    assert text.endswith(shown[2:])
    assert shown[2:] or not text


def test_the_line_is_bounded() -> None:
    editor = LineEditor()
    editor.feed(b"x" * 100_000)
    assert len(editor.text) == 20_000


def test_of_the_messages_above_only_what_an_answer_needs_is_kept() -> None:
    """1,400 of a stranger with many tags took a gigabyte."""
    message = alice.sign(9, [["h", "tea"], *[["e", "0" * 64]] * 1000], "hi", 1000)
    shown = _Numbers()
    assert shown.added(message, Names({})).endswith(": hi")
    kept = shown[1]
    assert (kept.id, kept.pubkey, message in shown) == (message.id, alice.pubkey, True)
    assert (kept.tags, kept.content, kept.raw) == ([], "", b"")
