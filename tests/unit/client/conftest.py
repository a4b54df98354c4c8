"""A fake relay, and clients that lose no time."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from relay.client import Pace
from tests.harness.patience import ANSWER_S
from tests.unit.client.fake_relay import FakeRelay

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

PACE = Pace(deadline_s=ANSWER_S, challenge_s=0.05, first_wait_s=0.01, longest_wait_s=0.02)


@pytest.fixture
async def fake() -> AsyncIterator[FakeRelay]:
    async with FakeRelay() as relay:
        yield relay


@pytest.fixture
def pace() -> Pace:
    """Quick to come back, and with a deadline far beyond what a test needs."""
    return PACE
