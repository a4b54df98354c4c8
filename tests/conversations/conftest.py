"""Scripts for one relay are played one after the other, in whatever order the tests run."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.conversations.script import script_file


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """So that few workers start the same relay."""
    places = [
        (place, (item.callspec.params["store"], *relay_of(item.callspec.params["path"])))
        for place, item in enumerate(items)
        if isinstance(item, pytest.Function)
        and item.originalname == "test_the_relay_answers_as_written"
    ]
    played = [items[place] for place, _ in sorted(places, key=lambda each: each[1])]
    for (place, _), item in zip(places, played, strict=True):
        items[place] = item


def relay_of(path: object) -> tuple[str, str]:
    assert isinstance(path, Path)
    script = script_file(path)
    return script.preset, script.policy
