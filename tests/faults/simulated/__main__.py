"""Run worlds, and say what is wrong with them."""

from __future__ import annotations

import argparse
import logging
import sys
import time
from contextlib import nullcontext

from tests.faults.simulated.mutants import MUTANTS
from tests.faults.simulated.promises import Broken
from tests.faults.simulated.world import World
from tests.harness.mutation import patched
from tests.harness.relay_in_process import policy_of


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.faults.simulated", description=__doc__)
    parser.add_argument("--seed", type=int, default=1, help="of the first world")
    parser.add_argument("--worlds", type=int, default=1)
    parser.add_argument("--steps", type=int, default=2000, help="of each world")
    parser.add_argument(
        "--mutant", nargs="+", choices=[*MUTANTS, "each"], help="with these faults, one at a time"
    )
    options = parser.parse_args()
    logging.disable()  # the disk fails on purpose
    if not options.mutant:
        return run(options, None)
    found = []
    for name in MUTANTS if "each" in options.mutant else options.mutant:
        print(f"{name}:")
        found.append(run(options, name))
    return min(found)


def run(options: argparse.Namespace, mutant: str | None) -> int:
    """1: a promise was broken."""
    policy = policy_of("open")
    for seed in range(options.seed, options.seed + options.worlds):
        began = time.monotonic()
        world = World(seed, policy)
        try:
            with patched(MUTANTS[mutant]()) if mutant else nullcontext():
                world.run(options.steps)
        except Broken as broken:
            print(f"seed {seed}, step {world.steps}: {broken}", flush=True)
            return 1
        print(
            f"seed {seed}: {world.steps} steps, {world.promises.commits} events,"
            f" {world.promises.faults} faults, {time.monotonic() - began:.1f} s,"
            f" {world.trace[:16]}",
            flush=True,
        )
    return 0


if __name__ == "__main__":
    sys.exit(main())
