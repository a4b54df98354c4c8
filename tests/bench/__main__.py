"""`python -m tests.bench` runs the rows and prints one table.

The reference relay is installed once, by pip, into a venv in the cache folder (`--cache`); corpora
and its filled store are kept there too: the first run takes some minutes longer. `--quick` is a
smoke run. Numbers of one run belong together; those of two runs do not.
"""

import argparse
import json
import os
import platform
import re
import resource
import signal
import sys
from dataclasses import asdict
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from tests.bench.loads import Measure
from tests.bench.relays import Command, NostrRelay, Rookery, Target
from tests.bench.rows import FULL, QUICK, Bench, Outcome, Result, Row, now_iso, run

NOTHING = "–"
BUSY = 0.9  # of a core: from here on the client may be what is measured


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m tests.bench", description="What the relay does in a second, as a table."
    )
    home = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    parser.add_argument("--quick", action="store_true", help="about a second a row, small stores")
    parser.add_argument("--only", default="", metavar="REGEX", help="rows whose name it finds")
    parser.add_argument("--rounds", type=int, default=1, help="of each row; the median counts")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the numbers there too")
    parser.add_argument(
        "--peer",
        default="nostr-relay",
        metavar="none|nostr-relay|CMD",
        help="what to run beside; CMD starts a relay, with {port} and {dir} put in",
    )
    parser.add_argument("--relay", metavar="CMD", help="measure this relay and not the checkout")
    parser.add_argument("--cache", type=Path, default=Path(home) / "rookery-bench")
    return parser.parse_args()


def peer(name: str, cache: Path) -> Target | None:
    match name:
        case "none":
            return None
        case "nostr-relay":
            return NostrRelay(cache)
        case _:
            return Command(name)


def number(value: float) -> str:
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:,.1f}"


def amount(row: Row, measure: Measure | None) -> str:
    if measure is None:
        return NOTHING
    if measure.beside is None:
        return number(measure.rate)
    return f"{number(measure.rate)} ({number(measure.beside)} {row.beside})"


def delay(value: float | None) -> str:
    return NOTHING if value is None else f"{value:,.2f}" if value < 100 else f"{value:,.0f}"


def load(measure: Measure | None) -> str:
    if measure is None or measure.busy is None:
        return NOTHING
    return f"{measure.busy:.0%}" + ("!" if measure.busy > BUSY else "")


def table(results: list[Result], ours: str, theirs: str) -> Table:
    made = Table(title=f"{ours} beside {theirs}", title_justify="left")
    made.add_column("row", no_wrap=True)
    made.add_column("unit", no_wrap=True)
    for name in (ours, theirs):
        made.add_column(name, justify="right", no_wrap=True)
        for word in ("p50 ms", "p99 ms", "client"):
            made.add_column(word, justify="right", style="dim", no_wrap=True)
    made.add_column("ratio", justify="right", style="bold", no_wrap=True)
    for result in results:
        cells = [result.row.name, result.row.unit]
        for outcome in (result.ours, result.theirs):
            measure = outcome.measure
            cells.append(amount(result.row, measure))
            cells.append(delay(measure.p50_ms if measure else None))
            cells.append(delay(measure.p99_ms if measure else None))
            cells.append(load(measure))
        cells.append(NOTHING if result.ratio is None else f"{result.ratio:,.1f}×")
        made.add_row(*cells)
    return made


def report(
    results: list[Result], ours: str, theirs: str, began: str, where: str
) -> dict[str, object]:
    def told(outcome: Outcome) -> dict[str, object]:
        return asdict(outcome.measure) if outcome.measure else {"fault": outcome.fault or None}

    return {
        "began": began,
        "machine": where,
        "rows": [
            {
                "row": result.row.name,
                "unit": result.row.unit,
                "better": result.row.better,
                ours: told(result.ours),
                theirs: told(result.theirs),
                "ratio": result.ratio,
            }
            for result in results
        ],
    }


def machine() -> str:
    python, load_1m = platform.python_version(), os.getloadavg()[0]
    return f"{os.cpu_count()} cores, Python {python}, load {load_1m:.2f}"


def main() -> int:
    options = arguments()
    options.cache.mkdir(parents=True, exist_ok=True)
    # A relay lives in a session of its own: leave by an exception, so that it is ended.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(max(soft, 8192), hard), hard))
    ours: Target = Command(options.relay) if options.relay else Rookery()
    theirs = peer(options.peer, options.cache)
    # Refreshed by hand between and in long steps: a thread that draws would take the client's core.
    shown = Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        TimeElapsedColumn(),
        console=Console(stderr=True),
        auto_refresh=False,
        transient=True,
        disable=not sys.stderr.isatty(),
    )
    results: list[Result] = []
    ended = ""
    began, where = now_iso(), machine()
    with shown:
        task = shown.add_task("")

        def progress(text: str, done: int, total: int) -> None:
            shown.update(task, description=text, completed=done, total=total, refresh=True)

        bench = Bench(QUICK if options.quick else FULL, options.cache, progress)
        try:
            for result in run(bench, ours, theirs, re.compile(options.only), options.rounds):
                results.append(result)
        except (KeyboardInterrupt, SystemExit):
            ended = "interrupted: the rows that were done"
    where += f" before, {os.getloadavg()[0]:.2f} after"  # the load of the runs is in the latter
    name = theirs.name if theirs else "none"
    console = Console()
    console.width = max(console.width, 150)  # narrower, cells lose their numbers
    console.print(table(results, ours.name, name))
    console.print(f"{began}, {where}", highlight=False)
    console.print("client: part of a core that the load generator used; ratio: times better")
    for result in results:
        for each in (result.ours, result.theirs):
            if each.fault:
                console.print(f"! {each.fault}", markup=False, highlight=False, soft_wrap=True)
    if options.json:
        told = report(results, ours.name, name, began, where)
        options.json.write_text(json.dumps(told, indent=2) + "\n")
    if ended:
        console.print(f"! {ended}")
        return 130
    return 1 if any(result.ours.measure is None for result in results) else 0


if __name__ == "__main__":
    sys.exit(main())
