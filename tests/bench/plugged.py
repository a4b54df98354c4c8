"""What plug-ins cost: a Python function and a process, both of which accept everything."""

import json
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from tests.bench.loads import Measure
from tests.bench.relays import RelayFault, Rookery, Target
from tests.bench.ruled import Files, cost

if TYPE_CHECKING:
    from tests.bench.rows import Bench

SCRIPT = """\
import sys
for line in sys.stdin:
    at = line.index('"id":"') + 6
    print('{"id":"' + line[at:at + 64] + '","action":"accept"}', flush=True)
"""
MODULE = """\
def plain(event, arrival):
    return None
async def looping(event, arrival):
    return None
"""


@dataclass(slots=True)
class Equipped(Rookery):
    """This checkout with a package that has rules."""

    site: Path = Path()

    def environment(self) -> dict[str, str]:
        environment = Rookery.environment(self)
        path = os.pathsep.join([environment["PYTHONPATH"], str(self.site)])
        return {**environment, "PYTHONPATH": path}


@contextmanager
def equipped(bench: "Bench", target: Target) -> Iterator[Equipped]:
    if not isinstance(target, Rookery):
        raise RelayFault("only this checkout has these plug-ins")
    with bench.folder() as site:
        (site / "bench_rules.py").write_text(MODULE)
        info = site / "bench_rules-1.dist-info"
        info.mkdir()
        (info / "METADATA").write_text("Metadata-Version: 2.1\nName: bench-rules\nVersion: 1\n")
        points = ("plain", "looping")
        lines = [f"{point} = bench_rules:{point}\n" for point in points]
        (info / "entry_points.txt").write_text("".join(["[rookery.rules]\n", *lines]))
        yield Equipped(target.name, site)


def _plugin(line: str) -> Files:
    return {"90-plugin.toml": f'[[plugin]]\nname = "accepts all"\ndeadline_ms = 5000\n{line}\n'}


def process(bench: "Bench", target: Target) -> Measure:
    run = json.dumps([sys.executable, "accept.py"])
    with equipped(bench, target) as ours:
        return cost(bench, ours, {}, {**_plugin(f"run = {run}"), "accept.py": SCRIPT})


def function(bench: "Bench", target: Target) -> Measure:
    with equipped(bench, target) as ours:
        return cost(bench, ours, {}, _plugin('entry = "plain"'))


def coroutine(bench: "Bench", target: Target) -> Measure:
    with equipped(bench, target) as ours:
        return cost(bench, ours, {}, _plugin('entry = "looping"'))
