"""What forgetting costs: ingest during a sweep of many events, and with one deletion a second."""

import json
import shutil
import statistics
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from tests.bench import corpus, loads, searching, wire
from tests.bench.loads import LoadFault, Measure
from tests.bench.relays import Preset, Running, Target
from tests.cast import robot

if TYPE_CHECKING:
    from tests.bench.rows import Bench

DELETION_S = 1.0
WRITERS, WINDOW = 8, 64
START_S, POLL_S = 120.0, 0.05
TENTH = searching.AUTHORS[: len(searching.AUTHORS) // 10]
RULE = '[[retention]]\nname = "a tenth"\nmatch = {{ authors = {keys} }}\ndays = {days}\n'
DUE, NOT_DUE = 1, 36_500
"""`days` of the rule: all rows of these authors are older than the one, none than the other."""


def sweeping(bench: "Bench", target: Target) -> Measure:
    """What a sweep takes of the rate of ingest, in percent; beside it how many rows a second go."""
    rates: dict[int, list[float]] = {NOT_DUE: [], DUE: []}
    gone: list[float] = []
    events = bench.corpus(corpus.NOTES)
    for turn in range(bench.scale.pairs):
        bench.progress("sweeps", turn, bench.scale.pairs)
        for days, rate in rates.items():
            with filled(bench, target, days) as relay:
                before = left(relay)
                if days == DUE:
                    before = begun(relay, before)
                measure = loads.ingest(relay, events, WRITERS, WINDOW, bench.scale.seconds)
                rate.append(measure.rate)
                if days == DUE:
                    gone.append((before - left(relay)) / bench.scale.seconds)
    if not all(gone):
        raise LoadFault("nothing was swept while events came")
    still, swept = (statistics.median(rate) for rate in rates.values())
    return Measure(rate=100 * (1 - swept / still), beside=statistics.median(gone))


@contextmanager
def filled(bench: "Bench", target: Target, days: int) -> Iterator[Running]:
    """A relay on a copy of the collection that is searched."""
    source = bench.searched(target)
    with bench.folder() as folder:
        skipped = shutil.ignore_patterns("*.sock", "*.lock", "search.db*")
        shutil.copytree(source / "data", folder / "data", ignore=skipped)
        rule = RULE.format(keys=json.dumps(TENTH), days=days)
        (folder / "data" / "policies" / "90-sweep.toml").write_text(rule)
        with target.start(folder, Preset.OPEN) as relay:
            yield relay


def begun(relay: Running, before: int) -> int:
    """What is left when the first rows have gone."""
    give_up_at = time.perf_counter() + START_S
    while (now := left(relay)) == before:
        if time.perf_counter() > give_up_at:
            raise LoadFault(f"no sweep began within {START_S:.0f} s")
        time.sleep(POLL_S)
    return now


def left(relay: Running) -> int:
    """Rows of those authors that are stored."""
    (reader,) = wire.connected(relay.port, 1)
    try:
        asked = json.dumps(["COUNT", "q", {"authors": TENTH}]).encode()
        answer = json.loads(reader.ask(wire.frame(asked), b'["COUNT"')[-1])
    finally:
        reader.close()
    return int(answer[2]["count"])


def erasing(bench: "Bench", target: Target) -> Measure:
    """What one deletion a second takes of the rate of ingest, in percent; beside it, of the relay's
    time on a core for each event, which other programs disturb less.

    After each the write-ahead logs are truncated and the text index is merged.
    """
    rates: tuple[list[float], list[float]] = ([], [])
    spent: tuple[list[float], list[float]] = ([], [])
    events = bench.corpus(corpus.NOTES)
    for turn in range(bench.scale.pairs):
        bench.progress("deletions", turn, bench.scale.pairs)
        for is_deleting, (rate, busy) in enumerate(zip(rates, spent, strict=True)):
            with bench.fresh(target, Preset.OPEN) as relay, deleting(relay, is_deleting) as deleted:
                before = relay.processor()
                measure = loads.ingest(relay, events, WRITERS, WINDOW, bench.scale.seconds)
                after = relay.processor()
                if is_deleting and not deleted:
                    raise LoadFault("nothing was deleted while events came")
            if before is None or after is None:
                raise LoadFault("no /proc to read times from")
            rate.append(measure.rate)
            busy.append((after - before) / measure.rate)
    still, slowed = (statistics.median(rate) for rate in rates)
    light, heavy = (statistics.median(busy) for busy in spent)
    return Measure(rate=100 * (1 - slowed / still), beside=100 * (1 - light / heavy))


@contextmanager
def deleting(relay: Running, is_deleting: int) -> Iterator[list[str]]:
    """Inside, a note is written and deleted every second, on a thread; gives the ids."""
    deleted: list[str] = []
    ended = threading.Event()

    def delete() -> None:
        (writer,) = wire.connected(relay.port, 1)
        try:
            while not ended.wait(DELETION_S):
                now = int(time.time())
                note = robot.sign(1, [], f"said {time.monotonic_ns()}", now)
                for event in (note, robot.sign(5, [["e", note.id]], "", now)):
                    writer.ask(wire.frame(b'["EVENT",' + event.raw + b"]"), b'["OK"')
                deleted.append(note.id)
        finally:
            writer.close()

    thread = threading.Thread(target=delete, daemon=True)
    if is_deleting:
        thread.start()
    try:
        yield deleted
    finally:
        ended.set()
        if is_deleting:
            thread.join()
