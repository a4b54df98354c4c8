"""What a Snowclaw agent does all day: notes that are stored at once, contexts for a model."""

import asyncio
import time
from typing import TYPE_CHECKING

from relay.client import Snowclaw
from relay.memory.snowclaw.context import Part
from relay.nostr.keys import SecretKey
from tests.bench import corpus, wire
from tests.bench.loads import LoadFault, Measure, percentile
from tests.bench.relays import Preset, Target

if TYPE_CHECKING:
    from tests.bench.rows import Bench

AGENT, OWNER = SecretKey(corpus.secret(0)), corpus.public(10_000)
CONTEXTS = 2000
RING = 20  # messages
SAID, BUDGET = 500, 4000  # characters of a message, tokens of a context: all of them fit


def memory_set(bench: "Bench", target: Target) -> Measure:
    """Notes in a second, each stored before the next, over 50 users; and how long one takes."""

    async def noted(url: str) -> list[float]:
        async with Snowclaw(url, AGENT, OWNER) as claw:
            await claw.load()
            took: list[float] = []
            ends = time.perf_counter() + bench.scale.seconds
            while (began := time.perf_counter()) < ends:
                claw.set_preference(corpus.public(len(took) % 50), "mood", str(len(took)))
                if len(await claw.flush()) != 1:
                    raise LoadFault("a note was not stored")
                took.append(time.perf_counter() - began)
        return took

    with bench.fresh(target, Preset.GROUP) as relay:
        took = asyncio.run(noted(f"ws://{wire.HOST}:{relay.port}"))
    return _measured(took)


def context(bench: "Bench", target: Target) -> Measure:
    """Contexts of a full ring in a second, without a relay; and how long one takes."""
    return _measured(asyncio.run(_assembled()))


async def _assembled() -> list[float]:
    text = corpus.prose()
    claw = Snowclaw("ws://127.0.0.1:1", AGENT, OWNER)
    messages = [
        SecretKey(corpus.secret(1 + number % 5)).sign(
            9, [["h", "tea"]], text[number * SAID : (number + 1) * SAID], 1_700_000_000 + number
        )
        for number in range(RING)
    ]
    for message in messages:
        claw.see(message)
        claw.note_user(message.pubkey, message.content[:80])
        claw.add_decision("tea", message.content[:80])
    took = []
    for number in range(CONTEXTS):
        began = time.perf_counter()
        made = claw.assemble(messages[number % RING], "Be kind.", BUDGET)
        took.append(time.perf_counter() - began)
    if made.dropped[Part.HISTORY]:
        raise LoadFault("the ring did not fit")
    return took


def _measured(took: list[float]) -> Measure:
    ordered = sorted(took)
    p50, p99 = percentile(ordered, 0.5) * 1000, percentile(ordered, 0.99) * 1000
    return Measure(rate=len(took) / sum(took), p50_ms=p50, p99_ms=p99)
