"""What policies cost: the same load with them and without, in turns, in one run; medians count."""

import os
import signal
import statistics
import time
import tomllib
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import pairwise
from typing import TYPE_CHECKING

from policies.load import DEFAULTS
from tests.bench import corpus, loads
from tests.bench.loads import LoadFault, Measure
from tests.bench.relays import Preset, RelayFault, Rookery, Running, Target

if TYPE_CHECKING:
    from tests.bench.rows import Bench

DISTINCT = 1000
WRITERS, WINDOW = 8, 64
ALL_S = 600.0

Files = dict[str, str]
"""Policy files of an admin, by name."""


def no_rules() -> Files:
    """Every packaged rule off that can be switched off."""
    switches = [
        f'[[rule]]\nname = "{rule["name"]}"\nenabled = false\n'
        for path in sorted(DEFAULTS.glob("*.toml"))
        for rule in tomllib.loads(path.read_text("utf-8")).get("rule", [])
        if not rule.get("fixed", False)
    ]
    return {"90-no-rules.toml": "\n".join(switches)}


def many_rules() -> Files:
    """As many rules as kinds, from 0 on; the kind of the load has one too."""
    rules = [
        f'[[rule]]\nname = "kind {kind}"\nmatch = {{ kinds = [{kind}] }}\nwrite = ["known"]\n'
        for kind in range(DISTINCT)
    ]
    return {"90-many.toml": "\n".join(rules)}


@contextmanager
def ruled(bench: "Bench", target: Target, files: Files) -> Iterator[Running]:
    """Preset group, then these files, on an empty store."""
    if not isinstance(target, Rookery):
        raise RelayFault("only the policy files of this checkout are known")
    with bench.folder() as folder:
        target.made(folder, Preset.GROUP)
        for name, text in files.items():
            (folder / "data" / "policies" / name).write_text(text)
        with target.start(folder, Preset.GROUP) as relay:
            yield relay


def cost(bench: "Bench", target: Target, plain: Files, ruling: Files) -> Measure:
    """What the second files take of the rate with the first ones, in percent.

    Beside it, what they take in the relay's own time on a core, which other programs disturb less.
    """
    rates: tuple[list[float], list[float]] = ([], [])
    spent: tuple[list[float], list[float]] = ([], [])
    events = bench.corpus(corpus.NOTES).first(bench.scale.compared)
    for turn in range(bench.scale.pairs):
        bench.progress("policies", turn, bench.scale.pairs)
        for files, rate, busy in zip((plain, ruling), rates, spent, strict=True):
            with ruled(bench, target, files) as relay:
                before = relay.processor()
                rate.append(loads.ingest(relay, events, WRITERS, WINDOW, ALL_S).rate)
                after = relay.processor()
            if before is None or after is None:
                raise LoadFault("no /proc to read times from")
            busy.append(after - before)
    bare, slowed = (statistics.median(each) for each in rates)
    light, heavy = (statistics.median(each) for each in spent)
    return Measure(rate=100 * (1 - slowed / bare), beside=100 * (1 - light / heavy))


def derived_groups(bench: "Bench", target: Target) -> Measure:
    """What it costs to look up what each event names: notes of the load have an `e` each."""
    without, with_ = (
        {"90-derived.toml": f"[groups]\nderived = {kinds}\n"} for kinds in ([7], [1, 7])
    )
    return cost(bench, target, without, with_)


def default_set(bench: "Bench", target: Target) -> Measure:
    return cost(bench, target, no_rules(), {})


def distinct_kinds(bench: "Bench", target: Target) -> Measure:
    return cost(bench, target, {}, many_rules())


def reloading(bench: "Bench", target: Target) -> Measure:
    """By how much the slowest OK of half a second is later when the policies are read again in it.

    Every other half second has a reload, so that what else the machine does falls on both kinds;
    beside it the slowest OK of all.
    """
    slowest: dict[bool, list[float]] = {False: [], True: []}
    for turn in range(bench.scale.pairs):
        bench.progress("reloads", turn, bench.scale.pairs)
        with ruled(bench, target, {}) as relay:
            began: list[float] = []
            trace: list[tuple[float, float]] = []

            def twice_a_second(
                _: int, __: int, pid: int = relay.process.pid, began: list[float] = began
            ) -> None:
                began.append(time.perf_counter())
                if len(began) % 2:
                    os.kill(pid, signal.SIGHUP)

            seconds = bench.scale.seconds * 2
            notes = bench.corpus(corpus.NOTES)
            loads.ingest(relay, notes, WRITERS, WINDOW, seconds, twice_a_second, trace)
        for number, (start, end) in enumerate(pairwise(began)):
            spent = [spent for when, spent in trace if start <= when < end]
            slowest[number % 2 == 0].append(max(spent, default=0.0) * 1000)
    if not all(slowest.values()):
        raise LoadFault("the load was over before the second reload")
    still, moved = (statistics.median(each) for each in slowest.values())
    return Measure(rate=moved - still, beside=max(slowest[True]))
