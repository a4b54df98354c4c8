"""Several relays on one database, killed, stopped and cut off, keep what one of them promises.

`CHAOS_S=600 make faults` does it for ten minutes, `SEED=7` with another order of disturbances.
"""

from __future__ import annotations

import os
from collections import Counter
from math import inf
from typing import TYPE_CHECKING

import pytest

from tests.effort import IS_ALL, tries
from tests.faults.chaos.checker import faults
from tests.faults.chaos.mutants import MUTANTS
from tests.faults.chaos.world import World
from tests.harness.network import Cable, Place, why_not
from tests.harness.postgres import MISSING, PostgresServer, programs
from tests.harness.relay_program import Mutant

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from tests.faults.chaos.history import History

pytestmark = [pytest.mark.slow, pytest.mark.process]

SECONDS = float(os.environ.get("CHAOS_S", tries(60, 15, 1)))
HAS_CABLE = IS_ALL or "CHAOS_S" in os.environ
"""One of the relays has a network of its own to the database, where that can be."""
DISTURBANCES = tries(1, 1, 3)
"""Each so many of the disturbances happens."""
MUTANT_S, TRIES = tries(5, 5, 2), 8
"""It depends on the machine as well what happens at once: another world shows it then."""
SOME = tries(1, 3, len(MUTANTS))
"""Each so many of the mutants is tried."""
SEED = int(os.environ.get("SEED", "1"))


@pytest.fixture
def cable() -> Iterator[Cable | None]:
    if HAS_CABLE and why_not() is None:
        with Place() as database, Cable(database, 1) as cable:
            yield cable
    else:
        yield None


@pytest.fixture
def server(cable: Cable | None) -> Iterator[PostgresServer]:
    """Of one test alone, to be killed."""
    bin_ = programs()
    if bin_ is None:
        pytest.skip(MISSING)
    made = PostgresServer(bin_, place=None if cable is None else cable.database)
    yield made
    made.stop()


def figures(world: World, history: History) -> str:
    done = ", ".join(f"{name} {number}" for name, number in sorted(world.disturbances.done.items()))
    writes = [write for write in history.writes.values() if write.acknowledged < inf]
    longest = max(write.acknowledged - write.invoked for write in writes)
    answers = Counter(
        each.text.split(":")[0] if each.is_stored is not None else "none"
        for write in history.writes.values()
        for each in write.attempts
    )
    got = sum(len(stream.got) for stream in history.streams)
    return (
        f"{done}; commits cut {sum(proxy.cut_commits for proxy in world.proxies)};"
        f" {len(writes)} events acknowledged of {len(history.writes)}, answers {dict(answers)};"
        f" {got} deliveries to {len(history.streams)} REQs; longest until an OK {longest:.1f} s,"
        f" clients late by {max(history.lags):.2f} s"
    )


@pytest.mark.timeout(300 + 2 * SECONDS)
async def test_relays_on_one_database_keep_their_promises(
    tmp_path: Path, server: PostgresServer, cable: Cable | None
) -> None:
    async with World(tmp_path, server, SEED, cable=cable) as world:
        world.disturbances.some = world.disturbances.some[::DISTURBANCES]
        history = await world.run(SECONDS)
        print(figures(world, history))
        assert faults(history) == []


@pytest.mark.mutant
@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    ("breaks", "disturbance", "kind"),
    [each for each in MUTANTS[::SOME] if HAS_CABLE or "unplug" not in each],
)
async def test_a_relay_that_breaks_one_is_found(
    tmp_path: Path,
    server: PostgresServer,
    cable: Cable | None,
    breaks: Callable[[], None],
    disturbance: str,
    kind: str,
) -> None:
    if disturbance == "unplug" and cable is None:
        pytest.skip(why_not() or "")

    def mutant(folder: Path) -> Mutant:
        return Mutant(folder, breaks.__name__, "tests.faults.chaos.mutants")

    found: list[str] = []
    for seed in range(TRIES):
        async with World(tmp_path / f"{seed}", server, seed, mutant, cable) as world:
            world.disturbances.only(disturbance)
            found = faults(await world.disturb(MUTANT_S))
        if any(line.startswith(kind) for line in found):
            return
    pytest.fail(f"not found: {found}")
