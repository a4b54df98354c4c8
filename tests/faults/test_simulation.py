"""A relay of which one seed decides everything keeps what it promised; mutants do not.

`SEED=7 make faults` runs one world again. The worlds run in a process of their own: the order of a
set of texts must be the same each time.
"""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from tests.effort import tries
from tests.faults.simulated.mutants import MUTANTS
from tests.harness.patience import PROGRAM_S

pytestmark = [pytest.mark.slow, pytest.mark.process]

STEPS = tries(2000, 2000, 1000)
FIRST = int(os.environ.get("SEED", "1"))
WORLDS = 1 if "SEED" in os.environ else tries(50, 4, 1)
OF_PROCESS = min(WORLDS, 10)
"""Worlds, one after the other."""


def simulate(*options: str) -> tuple[int, str]:
    done = subprocess.run(
        [sys.executable, "-m", "tests.faults.simulated", *options],
        env={**os.environ, "PYTHONHASHSEED": "0"},
        capture_output=True,
        text=True,
        timeout=4 * PROGRAM_S * OF_PROCESS,
        check=False,
    )
    assert not done.stderr, done.stderr
    return done.returncode, done.stdout


@pytest.mark.timeout(700 * OF_PROCESS)
@pytest.mark.parametrize("seed", range(FIRST, FIRST + WORLDS, OF_PROCESS))
def test_what_was_promised_is_kept(seed: int) -> None:
    code, said = simulate("--seed", f"{seed}", "--worlds", f"{OF_PROCESS}", "--steps", f"{STEPS}")
    print(said)
    assert code == 0, said


def test_a_seed_gives_the_same_run_again() -> None:
    (_, one), (_, again), (_, other) = (
        simulate("--seed", seed, "--steps", "1000") for seed in ("14", "14", "4")
    )
    assert one.split()[-1] == again.split()[-1] != other.split()[-1]


@pytest.mark.mutant
@pytest.mark.timeout(700)
def test_each_mutant_is_found() -> None:
    mutants = [*MUTANTS]
    code, said = simulate("--mutant", *mutants, "--seed", "2", "--worlds", "25", "--steps", "600")
    print(said)
    assert len(MUTANTS) > 10
    assert said.count("step ") == len(mutants), said
    assert code == 1
