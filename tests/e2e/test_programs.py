"""tests/harness/programs.py."""

from __future__ import annotations

import asyncio
from multiprocessing import active_children
from subprocess import PIPE

import pytest

from tests.harness.programs import start_rookery

pytestmark = pytest.mark.process


@pytest.mark.parametrize("steps", [1, 2, 3, 4])
async def test_a_program_whose_start_is_cancelled_is_ended(steps: int) -> None:
    before = {*active_children()}
    starting = asyncio.create_task(start_rookery("mcp", stdin=PIPE, stderr=PIPE))
    for _ in range(steps):
        await asyncio.sleep(0)
    starting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await starting
    assert {*active_children()} <= before
