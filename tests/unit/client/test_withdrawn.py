"""relay/client/withdrawn.py: which events a relay does not give any more."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from relay.client import Client
from relay.client.withdrawn import withdrawn
from tests.cast import alice

if TYPE_CHECKING:
    from relay.client import Timeouts
    from tests.harness.fake_relay import FakeRelay, Visitor


@pytest.mark.parametrize("is_estimate", [False, True])
async def test_only_a_number_that_is_no_estimate_shows_that_nothing_is_withdrawn(
    fake: FakeRelay, timeouts: Timeouts, *, is_estimate: bool
) -> None:
    async def two(visitor: Visitor, frame: list[Any]) -> None:
        more = {"approximate": True} if is_estimate else {}
        await visitor.say("COUNT", frame[1], {"count": 2, **more})

    kept, deleted = (alice.sign(1, [], text, 1_700_000_000) for text in ("tea", "cocoa"))
    await fake.publish(kept)
    fake.on["COUNT"] = two
    async with Client(fake.url, alice, timeouts=timeouts) as relay:
        document = {"supported_nips": [45]}
        gone = await withdrawn(relay, alice.pubkey, document, [kept.id, deleted.id])
    assert gone == ([deleted.id] if is_estimate else [])
