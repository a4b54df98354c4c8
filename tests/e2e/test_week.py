"""A week of work on two machines: every fold is the same on both and the model's, and no cache
holds what its key may not read.

`SEED=7` runs one week again. `make faults` runs more weeks, and all mutants.
"""

from __future__ import annotations

import os
import resource
from typing import TYPE_CHECKING

import pytest

from relay.client import PublishRefused
from tests.e2e.week.mutants import MUTANTS
from tests.e2e.week.script import Week
from tests.e2e.week.world import Patience
from tests.effort import tries
from tests.harness.mutation import patched

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.slow

FIRST = int(os.environ.get("SEED", "1"))
SEEDS = range(FIRST, FIRST + (1 if "SEED" in os.environ else tries(8, 2, 1)))


@pytest.mark.parametrize("seed", SEEDS)
async def test_two_machines_tell_the_same_and_nothing_that_is_not_theirs(
    seed: int, tmp_path: Path
) -> None:
    week = Week(seed, tmp_path, Patience())
    began = resource.getrusage(resource.RUSAGE_SELF)
    try:
        await week.run()
    except BaseException:
        print(f"SEED={seed}", *week.did, sep="\n")
        raise
    used = resource.getrusage(resource.RUSAGE_SELF)
    took = used.ru_utime + used.ru_stime - began.ru_utime - began.ru_stime
    print(f"{len(week.did)} steps, {took:.1f} s of CPU")


@pytest.mark.mutant
@pytest.mark.parametrize("name", [*MUTANTS][:: tries(1, len(MUTANTS))])
async def test_a_week_finds_what_is_wrong(name: str, tmp_path: Path) -> None:
    for seed in range(1, 7):
        with patched(MUTANTS[name]()):
            try:
                # Not until nobody would wait any more: it is found, or it is not there.
                await Week(seed, tmp_path / str(seed), Patience(5.0)).run()
            except (AssertionError, pytest.fail.Exception, PublishRefused) as found:
                print(f"{name}: {found}"[:300])
                return
    pytest.fail(f"not found: {name}")
