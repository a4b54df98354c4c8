"""Conversations with the whole relay, its sockets aside."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests import cast
from tests.fuzz.effort import share
from tests.fuzz.relay_in_memory import RelayInMemory
from tests.fuzz.thrown import thrown

if TYPE_CHECKING:
    from relay.nostr.keys import SecretKey
    from tests.fuzz.effort import Tally
    from tests.fuzz.thrown import Thrown

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1200)]

NEW_WORLD_EVERY = 400
"""Examples after which so many people have vanished that little is taken any more."""


def test_every_conversation_is_answered_in_full(tally: Tally) -> None:
    with asyncio.Runner() as runner:
        relay = runner.run(RelayInMemory().__aenter__())

        @share(30)
        @given(
            who=st.sampled_from([None, cast.owner, cast.alice, cast.bob]),
            things=st.lists(thrown, min_size=1, max_size=5),
        )
        def converse(who: SecretKey | None, things: list[Thrown]) -> None:
            nonlocal relay
            tally.example()
            if tally.counts["examples"] % NEW_WORLD_EVERY == 0:
                relay = runner.run(relay.again())
            try:
                ledger = runner.run(relay.visits[who].say(things))
                ledger.check()
                assert not relay.faults.lines, relay.faults.lines
            except BaseException:
                relay = runner.run(relay.again())  # so that hypothesis can try it once more
                raise
            tally.counts["frames"] += len(things)
            tally.counts["events"] += sum(ledger.oks.values())
            for message in ledger.heard:
                if message[0] == "OK":
                    tally.counts["events taken"] += message[2]
                elif message[0] in ("EOSE", "COUNT", "CLOSED", "EVENT", "NEG-MSG"):
                    tally.counts[message[0]] += 1

        try:
            converse()
        finally:
            runner.run(relay.__aexit__())
    if tally.is_telling:
        counts = tally.counts
        assert counts["events taken"] > counts["events"] / 4, tally
        assert counts["EOSE"] > counts["examples"] / 10, tally
        assert counts["EVENT"] > counts["examples"] / 10, tally
