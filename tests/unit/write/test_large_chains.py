"""Memory records that lead to more records than may be read: refused, and others do not wait."""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING

import pytest

from relay.errors import ok_reply
from relay.facts import Origin
from relay.lifecycle.rows import MOST_NAMED
from relay.memory.anamnesis.references import entries_of, supersessions_of
from relay.nostr import kinds
from tests.cast import alice, owner, robot, rover
from tests.contract.writing import write
from tests.harness.relay_in_process import STORED, Batches, Home, policy_of, store_of

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from relay.nostr.event import Event
    from relay.nostr.keys import SecretKey

PAD = "x" * (500 << 10)
HASHES = [f"{number:064x}" for number in range(2 + MOST_NAMED // len(PAD))]


@pytest.fixture
async def home() -> AsyncIterator[Home]:
    async with store_of("reference") as store, Home(store, policy_of("open")) as home:
        yield home


def superseding(home: Home, who: SecretKey, old: str, new: str, pad: str = "") -> Event:
    fields = f'"superseded_by":"{new}","reason":"","timestamp":"2026-11-27T00:00:00Z"'
    tags = ["d", supersessions_of(old).d], ["x", old], ["zz", pad]
    return home.made(who, kinds.APP_DATA, *tags, content=f"{{{fields}}}")


async def test_a_record_that_leads_to_too_much_is_refused_alone(home: Home) -> None:
    """661 bytes of an agent made the writer read 109 MB, and all writes wait for 20 s."""
    for old, new in pairwise(HASHES):
        await write(home.store, superseding(home, robot, old, new, PAD))
    new = "a" * 64
    for hashed in (new, HASHES[0], HASHES[-1]):
        entry = home.made(robot, kinds.APP_RECORD, ["d", entries_of(hashed).d])
        await write(home.store, entry)
    watched = Batches(home.ingest)
    events = [
        superseding(home, robot, new, HASHES[0]),
        home.made(alice, 1),
        superseding(home, owner, new, HASHES[0]),
        superseding(home, owner, new, HASHES[-1]),
    ]
    letters = []
    for number, event in enumerate(events):
        letters.append(home.letter_from(f"192.0.2.{number}"))
        home.ingest.submit(event, letters[-1], Origin.WIRE)
    answers = [await letter.answer for letter in letters]
    refused = False, "blocked: the records that this one leads to are too large"
    assert answers == [refused, STORED, refused, STORED]
    assert len(watched.tried[0]) == len(events)
    assert ok_reply((await home.ingest.dry_run(events[0], letters[0])).result) == refused


async def test_what_one_may_not_read_is_unknown_before_it_is_too_large(home: Home) -> None:
    """Hidden records count, too: beside a chain of 4 MiB less a few bytes, the refusal for its size
    told whether a text is stored."""
    await home.do(owner, 9007, h="tea")
    await home.do(owner, 9002, ["name", "tea"], ["private"], ["hidden"], ["closed"], h="tea")
    hidden, nowhere = "a" * 64, "b" * 64
    secret = home.made(rover, kinds.APP_RECORD, ["d", entries_of(hidden).d], ["h", "tea"])
    await write(home.store, secret, group="tea")
    own = home.made(robot, kinds.APP_RECORD, ["d", entries_of(HASHES[0]).d])
    await write(home.store, own)
    for old, new in pairwise(HASHES):
        await write(home.store, superseding(home, robot, old, new, PAD))
    probes = [superseding(home, robot, hashed, HASHES[0]) for hashed in (hidden, nowhere)]
    assert await home.take(*probes, logins=[robot.pubkey]) == [
        (False, f"invalid: unknown memory {hashed[:12]}") for hashed in (hidden, nowhere)
    ]
