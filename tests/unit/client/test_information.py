"""Fields of the relay information document, present, malformed or missing."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from relay.client import Client
from relay.client.information import (
    can_search,
    keeps_memory,
    limit_in,
    lists_nip,
    offers_memory,
    owners_in,
    reads_prefixes,
)
from tests.cast import owner, robot
from tests.unit.client.conftest import TIMEOUTS

if TYPE_CHECKING:
    from tests.harness.fake_relay import FakeRelay

SAID = {
    "pubkey": owner.pubkey,
    "supported_nips": [1, 50],
    "limitation": {"max_limit": 500},
    "memory": {"prefix_d_kinds": [30078], "index_tags": ["hk"]},
}


def test_fields_are_read() -> None:
    assert owners_in(SAID) == {owner.pubkey}
    assert (lists_nip(SAID, 1), lists_nip(SAID, 77), can_search(SAID)) == (True, False, True)
    assert (limit_in(SAID, "max_limit"), limit_in(SAID, "max_message_length")) == (500, None)
    assert keeps_memory(SAID)
    assert (reads_prefixes(SAID, 30078), reads_prefixes(SAID, 78)) == (True, False)
    assert (offers_memory(SAID, "index_tags", "hk"), offers_memory(SAID, "x", "hk")) == (
        True,
        False,
    )


@pytest.mark.proves("G-30")
@pytest.mark.parametrize(
    "odd",
    [
        {},
        dict.fromkeys(SAID),
        dict.fromkeys(SAID, "text"),
        dict.fromkeys(SAID, 50),
        {field: [[]] for field in SAID},
        {field: {} for field in SAID if field != "memory"},
        {"pubkey": "", "limitation": {"max_limit": "500"}, "memory": []},
        {"pubkey": owner.npub, "limitation": {"max_limit": 0}, "memory": True},
        {"pubkey": owner.pubkey.upper(), "limitation": {"max_limit": -1}},
        {"limitation": {"max_limit": True}},
    ],
)
def test_fields_missing_or_of_another_type_count_as_absent(odd: dict[str, Any]) -> None:
    assert owners_in(odd) == frozenset()
    assert not can_search(odd)
    assert limit_in(odd, "max_limit") is None
    assert not keeps_memory(odd)
    assert not reads_prefixes(odd, 30078)


async def test_a_missing_document_or_unreachable_relay_gives_an_empty_document(
    fake: FakeRelay,
) -> None:
    async with Client(fake.url, robot, timeouts=TIMEOUTS) as client:
        assert await client.information_or_empty() == {"name": "a fake"}
        fake.information = ["not", "a", "document"]
        assert await client.information_or_empty() == {}
        await fake.stop()
        assert await client.information_or_empty() == {}
    await fake.start()
