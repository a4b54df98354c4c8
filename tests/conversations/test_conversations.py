"""Every script of this folder, played to a relay of ours."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.conversations.relays import RelayDied, Relays
from tests.conversations.script import all_paths, name_of, script_file
from tests.conversations.stage import Failed, Manner, play

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

NOT_BUILT = {
    "memory/bad_aman_content": "checks of a record's content",
    "memory/bad_record_fields": "checks of a record's content",
    "memory/config_values": "checks of a record's content",
    "nip29/pins": "kind 9010",
    "nip29/subgroups": "parent and child",
    "nip50/search": "search",
    "verdicts/refused_content": "the rule key `content`",
    "verdicts/too_fast": "the rule key `rate`",
}
"""Scripts ahead of the relay, and what they wait for. One that passes must leave this table."""


def played(path: Path) -> object:
    marks = [pytest.mark.slow] if "\nrestart" in path.read_text(encoding="utf-8") else []
    waits_for = NOT_BUILT.get(name_of(path))
    if waits_for:
        ahead = pytest.mark.xfail(raises=(Failed, RelayDied), reason=f"not built: {waits_for}")
        marks.append(ahead)
    return pytest.param(path, id=name_of(path), marks=marks)


@pytest.fixture(scope="session")
def relays() -> Iterator[Relays]:
    with Relays() as running:
        yield running


@pytest.mark.parametrize("path", [played(path) for path in all_paths()])
async def test_the_relay_answers_as_written(path: Path, relays: Relays) -> None:
    script = script_file(path)
    await play(script, relays.relay_for(script), Manner())
