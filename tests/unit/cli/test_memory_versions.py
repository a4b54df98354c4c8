"""relay/cli/memory_versions.py: what a record of somebody else can cost its reader."""

from __future__ import annotations

from typing import TYPE_CHECKING

from relay.cli import memory_versions
from relay.cli.memory_versions import _compared, _formatted

if TYPE_CHECKING:
    import pytest


def test_of_many_lines_those_between_the_first_and_the_last_change_are_shown(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """To compare 40,000 lines of 100 kinds took twelve seconds."""

    def compare(*_: object, **__: object) -> None:
        raise AssertionError

    monkeypatch.setattr(memory_versions, "unified_diff", compare)
    same = [f"{number % 101}" for number in range(600)]
    before, after = [*same, "a", "b", *same], [*same, "b", "c", "d", *same]
    assert _compared(before, after, "was", "now") == [
        "--- was",
        "+++ now",
        *("-a", "-b", "+b", "+c", "+d"),
    ]
    assert _compared([*same], [*same], "was", "now") == []
    assert _compared([*same], same * 2, "was", "now")[2:] == [f"+{line}" for line in same]


def test_json_is_not_indented_to_a_hundred_megabytes() -> None:
    deep = "[" + ",".join(["[" * 240 + "]" * 240] * 500) + "]"
    assert _formatted(deep) == deep
    assert _formatted('{"a":[1]}') == '{\n  "a": [\n    1\n  ]\n}'
