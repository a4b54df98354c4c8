"""A fake relay, and client timeouts that keep tests fast."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from relay.client import Timeouts
from tests.harness.fake_relay import FakeRelay
from tests.harness.patience import ANSWER_S

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

TIMEOUTS = Timeouts(deadline_s=ANSWER_S, challenge_s=0.05, first_backoff_s=0.01, max_backoff_s=0.02)


@pytest.fixture
async def fake() -> AsyncIterator[FakeRelay]:
    async with FakeRelay() as relay:
        yield relay


@pytest.fixture
def timeouts() -> Timeouts:
    """Quick to come back, and with a deadline far beyond what a test needs."""
    return TIMEOUTS
