"""Every script of this folder, played to a relay of ours."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
import pytest_asyncio

from tests.conversations.relays import Relays
from tests.conversations.runner import Manner, play
from tests.conversations.script import all_paths, name_of, script_file

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

NOT_BUILT: dict[str, str] = {}
"""Scripts ahead of the relay, and what they wait for. One that passes must leave this table."""


def played(path: Path) -> object:
    script = script_file(path)
    proof = f"conversations/{script.path}.nostr"
    marks = [pytest.mark.proves(*script.proves, by=proof)] if script.proves else []
    if script.restarts:
        marks.append(pytest.mark.slow)
    waits_for = NOT_BUILT.get(name_of(path))
    if waits_for:
        ahead = pytest.mark.xfail(raises=AssertionError, reason=f"not built: {waits_for}")
        marks.append(ahead)
    return pytest.param(path, id=name_of(path), marks=marks)


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def relays() -> AsyncIterator[Relays]:
    async with Relays() as running:
        yield running


@pytest.mark.asyncio(loop_scope="session")
@pytest.mark.parametrize("path", [played(path) for path in all_paths()])
async def test_the_relay_answers_as_written(path: Path, relays: Relays) -> None:
    script = script_file(path)
    await play(script, await relays.relay_for(script), Manner())
