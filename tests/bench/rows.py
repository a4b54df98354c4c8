"""The rows of the table: what each measures, on which relay, with which numbers."""

import json
import random
import re
import shutil
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path

from tests.bench import (
    browsing,
    corpus,
    forgetting,
    loads,
    noting,
    observing,
    plugged,
    relays,
    remembering,
    ruled,
    searching,
    transcribing,
    wire,
)
from tests.bench.corpus import Corpus, Shape
from tests.bench.loads import Measure, Question
from tests.bench.relays import Preset, Rookery, Running, Target

READERS = 8  # connections that ask, one REQ in flight each
QUESTIONS = 1000  # different ones in a row
INDEXED_S = 600.0  # until everything that was filled in can be found
FILLERS, FILL_WINDOW, FILL_S = 8, 256, 1800.0


@dataclass(frozen=True, slots=True)
class Scale:
    """How long and how much."""

    seconds: float
    written: int  # events at most in a writing row
    archive: int  # events in the store that is read
    lines: int  # events at most in a live row
    compared: int  # events in each run of the policy row
    pairs: int  # runs of each preset in the policy row
    idle: int
    searched: int  # events in the store that is searched


FULL = Scale(
    seconds=6.0,
    written=240_000,
    archive=100_000,
    lines=100_000,
    compared=60_000,
    pairs=3,
    idle=1000,
    searched=1_000_000,
)
QUICK = Scale(
    seconds=1.0,
    written=20_000,
    archive=4_000,
    lines=10_000,
    compared=4_000,
    pairs=2,
    idle=200,
    searched=40_000,
)


@dataclass(slots=True)
class Bench:
    """What rows share: the corpora and the relays that are read, each made when first asked for."""

    scale: Scale
    cache: Path
    progress: Callable[[str, int, int], None]
    _corpora: dict[Shape, Corpus] = field(default_factory=dict)
    _questions: dict[str, list[Question]] = field(default_factory=dict)
    _archives: dict[str, Running] = field(default_factory=dict)
    _open: ExitStack = field(default_factory=ExitStack)

    def corpus(self, shape: Shape) -> Corpus:
        if shape not in self._corpora:
            count = {
                corpus.NOTES: self.scale.written,
                corpus.ARCHIVE: self.scale.archive,
                corpus.LINES: self.scale.lines,
            }[shape]
            self._corpora[shape] = corpus.load(
                shape, count, self.cache, lambda done, all_: self.progress("signing", done, all_)
            )
        return self._corpora[shape]

    @contextmanager
    def folder(self) -> Iterator[Path]:
        # Beside the cache and not in /tmp, which may be memory: an fsync has to cost what it costs.
        made = Path(tempfile.mkdtemp(prefix="run-", dir=self.cache))
        try:
            yield made
        finally:
            shutil.rmtree(made, ignore_errors=True)

    @contextmanager
    def fresh(self, target: Target, preset: Preset) -> Iterator[Running]:
        """The target with an empty store."""
        with self.folder() as folder, target.start(folder, preset) as relay:
            yield relay

    def archive(self, target: Target) -> Running:
        """The target with the archive in its store, running until `close`."""
        if target.name not in self._archives:
            events = self.corpus(corpus.ARCHIVE)
            folder = self._open.enter_context(self.folder())
            if not target.kept(folder, events.digest):
                with target.start(folder, Preset.OPEN) as relay:
                    loads.ingest(
                        relay,
                        events,
                        FILLERS,
                        FILL_WINDOW,
                        FILL_S,
                        lambda done, all_: self.progress(f"filling {target.name}", done, all_),
                    )
                target.keep(folder, events.digest)
            relay = self._open.enter_context(target.start(folder, Preset.OPEN))
            self._archives[target.name] = relay
        return self._archives[target.name]

    def searched(self, target: Target) -> Path:
        """A folder of ours with many events, made at its first use."""
        if not isinstance(target, Rookery):
            raise relays.RelayFault("only the store of this checkout can be filled at its door")
        return searching.filled(
            self.cache,
            self.scale.searched,
            lambda folder: target.made(folder, Preset.OPEN),
            lambda done, all_: self.progress("filling what is searched", done, all_),
        )

    def close(self) -> None:
        """Ends the relays that were being read."""
        self._archives.clear()
        self._open.close()

    def questions(self, kind: str) -> list[Question]:
        if not self._questions:
            self._questions = questions(self.corpus(corpus.ARCHIVE))
        return self._questions[kind]


def questions(archive: Corpus) -> dict[str, list[Question]]:
    """Filters whose answers lie all over the archive, with the number of events in each answer.

    None names a kind: the archive has only one, and the reference would take its index of kinds,
    sort the whole store for every answer and look seven times slower than it is without.
    """
    chance = random.Random(7)
    authors: Counter[str] = Counter()
    words: Counter[str] = Counter()
    people: Counter[str] = Counter()
    times = []
    for event in archive.events():
        authors[event["pubkey"]] += 1
        (_, word), (_, person), _ = event["tags"]
        words[word] += 1
        people[person] += 1
        times.append(event["created_at"])
    times.sort()

    def some(key: str, values: Counter[str], limit: int) -> list[Question]:
        return [
            Question({key: [value], "limit": limit}, min(limit, values[value]))
            for value in chance.choices(sorted(values), k=QUESTIONS)
        ]

    newer_half = times[len(times) // 2 :]
    return {
        "pages": [
            Question({"until": until, "limit": 500}, 500)
            for until in chance.choices(newer_half, k=QUESTIONS)
        ],
        "authors": some("authors", authors, 20),
        "t": some("#t", words, 100),
        "p": some("#p", people, 50),
        "ids": [
            Question({"ids": [event_id.decode()]}, 1)
            for event_id in chance.choices(archive.ids, k=QUESTIONS)
        ],
    }


@dataclass(frozen=True, slots=True)
class Row:
    name: str
    unit: str
    load: Callable[[Bench, Target], Measure]
    beside: str = ""  # unit of Measure.beside
    better: str = "more"
    peer: bool = True  # whether the reference can be asked the same
    reads: bool = False  # uses Bench.archive


def ingest(connections: int, window: int) -> Row:
    def load(bench: Bench, target: Target) -> Measure:
        events = bench.corpus(corpus.NOTES)
        with bench.fresh(target, Preset.GROUP) as relay:
            return loads.ingest(relay, events, connections, window, bench.scale.seconds)

    return Row(f"ingest {connections} × {window}", "ev/s", load)


def read(name: str, kind: str, *, count: str = "requests") -> Row:
    def load(bench: Bench, target: Target) -> Measure:
        asked = bench.questions(kind)
        result = loads.ask(bench.archive(target), asked, READERS, bench.scale.seconds)
        if count == "requests":
            return result
        return replace(result, rate=result.rate * asked[0].answers, beside=result.rate)

    if count == "requests":
        return Row(name, "req/s", load, reads=True)
    return Row(name, "ev/s", load, beside="req/s", reads=True)


def live(subscribers: int, window: int = 128) -> Row:
    def load(bench: Bench, target: Target) -> Measure:
        events = bench.corpus(corpus.LINES)
        with bench.fresh(target, Preset.GROUP) as relay:
            return loads.fan_out(relay, events, subscribers, window, bench.scale.seconds)

    return Row(f"live to {subscribers}", "deliveries/s", load, beside="ev/s")


def count_cost(bench: Bench, target: Target) -> Measure:
    """What a COUNT of one author's events takes, in times of a REQ for the newest of them."""
    authors = [{"authors": asked.filter["authors"]} for asked in bench.questions("authors")]
    counts = [wire.frame(json.dumps(["COUNT", "q", author]).encode()) for author in authors]
    newest = [
        wire.frame(json.dumps(["REQ", "q", {**author, "limit": 1}]).encode()) for author in authors
    ]
    relay = bench.archive(target)
    return loads.compare(relay, counts, b'["COUNT"', newest, bench.scale.seconds)


def negentropy(bench: Bench, target: Target) -> Measure:
    """A client that lacks one event in a thousand asks what it lacks."""
    folder = bench.searched(target)
    ours = searching.items(bench.scale.searched, 1000)
    with target.start(folder, Preset.OPEN) as relay:
        return loads.reconcile(relay, ours, bench.scale.searched // 1000, 5)


def sync(bench: Bench, target: Target) -> Measure:
    """Seconds until two relays of the archive are alike, each of which lacks half a percent."""
    if not isinstance(target, Rookery):
        raise loads.LoadFault("sync is a command of this checkout")
    lines = bench.corpus(corpus.ARCHIVE).path.read_bytes().splitlines(keepends=True)
    differ = random.Random(11).sample(range(len(lines)), len(lines) // 100)
    half = len(differ) // 2
    with bench.folder() as here, bench.folder() as there:
        for folder, lacks in ((here, set(differ[:half])), (there, set(differ[half:]))):
            target.made(folder, Preset.OPEN)
            events = folder / "events.jsonl"
            events.write_bytes(b"".join(line for at, line in enumerate(lines) if at not in lacks))
            target.run(folder, "import", str(events), "--data", str(folder / "data"))
        with target.start(there, Preset.OPEN) as relay:
            url = f"ws://{wire.HOST}:{relay.port}"
            told = json.loads(target.run(here, "sync", url, "--data", str(here / "data"), "--json"))
    if (told["received"], told["sent"]) != (half, len(differ) - half):
        raise loads.LoadFault(f"received {told['received']}, sent {told['sent']}")
    compared = told["bytes_compared_sent"] + told["bytes_compared_received"]
    return Measure(rate=told["seconds"], beside=compared / 1000)


def idle_memory(bench: Bench, target: Target) -> Measure:
    with bench.fresh(target, Preset.GROUP) as relay:
        return loads.idle(relay, bench.scale.idle)


def taken(name: str, load: Callable[[Bench, Target], Measure]) -> Row:
    """What something takes of the rate of ingest."""
    return Row(name, "% of ingest", load, "% by its CPU", "less", peer=False)


def search(kind: str) -> Row:
    def load(bench: Bench, target: Target) -> Measure:
        folder = bench.searched(target)
        with target.start(folder, Preset.OPEN) as relay:
            asked = loads.answered(relay, searching.questions(folder, kind), INDEXED_S)
            return loads.ask(relay, asked, 1, bench.scale.seconds)

    return Row(f"search {kind}", "req/s", load, peer=False)


ROWS = (
    ingest(8, 64),
    ingest(32, 256),
    read("REQ limit 500", "pages", count="events"),
    read("REQ author limit 20", "authors"),
    read("REQ #t limit 100", "t"),
    read("REQ ids", "ids"),
    read("REQ #p limit 50", "p"),
    Row("COUNT author", "× a REQ limit 1", count_cost, better="less", peer=False, reads=True),
    search("0.1 %"),
    search("1 %"),
    search("two words"),
    Row("negentropy, first answer", "s", negentropy, beside="MiB", better="less", peer=False),
    live(100),
    live(500),
    taken("policies, the default set", ruled.default_set),
    taken("policies, 1,000 kinds", ruled.distinct_kinds),
    taken("groups of what is named", ruled.derived_groups),
    taken("plug-in, a function", plugged.function),
    taken("plug-in, async", plugged.coroutine),
    taken("plug-in, a process", plugged.process),
    Row("a sweep", "% of ingest", forgetting.sweeping, "rows/s swept", "less", peer=False),
    taken("a deletion a second", forgetting.erasing),
    Row("policies, reloads", "ms later, slowest OK", ruled.reloading, "ms", "less", peer=False),
    Row("sync, 1 % differs", "s", sync, beside="kB compared", better="less", peer=False),
    Row(
        "Aman, 100,000 events folded",
        "s",
        remembering.rehydration,
        "× reading them",
        "less",
        peer=False,
    ),
    Row("memory set", "notes/s", noting.memory_set, peer=False),
    Row("context of a full ring", "contexts/s", noting.context, peer=False),
    Row("nmem, a hook", "hooks/s", observing.hooks, peer=False),
    Row("nmem, search of 100,000", "searches/s", observing.found, peer=False),
    Row("nmem, cache made anew", "s", observing.rebuilt, better="less", peer=False),
    Row("sessions sent to a relay", "MB/s", transcribing.importing, "when it has them", peer=False),
    Row("sessions written again", "MB/s", transcribing.exporting, peer=False),
    Row("console, first page", "ms of a core", browsing.first_page, "bytes", "less", peer=False),
    Row("console, dearest page", "ms of a core", browsing.any_page, "bytes", "less", peer=False),
    Row(
        "console, ten watch Live", "% of a core", browsing.watching, "ms a page", "less", peer=False
    ),
    Row("idle memory", "KiB/connection", idle_memory, better="less"),
)


@dataclass(frozen=True, slots=True)
class Outcome:
    """What one relay did in one row: a Measure, or why there is none."""

    measure: Measure | None
    fault: str = ""


@dataclass(frozen=True, slots=True)
class Result:
    row: Row
    ours: Outcome
    theirs: Outcome

    @property
    def ratio(self) -> float | None:
        """How many times better ours is."""
        ours, theirs = self.ours.measure, self.theirs.measure
        if ours is None or theirs is None or min(ours.rate, theirs.rate) <= 0:
            return None
        return theirs.rate / ours.rate if self.row.better == "less" else ours.rate / theirs.rate


NOTHING = Outcome(None)


def run(
    bench: Bench, ours: Target, theirs: Target | None, only: re.Pattern[str], rounds: int
) -> Iterator[Result]:
    """Each row on ours, then on theirs, `rounds` times in turn; the median by rate counts."""
    chosen = [row for row in ROWS if only.search(row.name)]
    last_read = max((at for at, row in enumerate(chosen) if row.reads), default=-1)
    try:
        for at, row in enumerate(chosen):
            targets = [ours, theirs] if row.peer and theirs is not None else [ours]
            outcomes: dict[str, list[Outcome]] = {target.name: [] for target in targets}
            for _ in range(rounds):
                for target in targets:
                    bench.progress(f"{row.name}: {target.name}", at, len(chosen))
                    outcomes[target.name].append(outcome(bench, row, target))
            if at == last_read:
                bench.close()
            middle = [median(outcomes[target.name]) for target in targets]
            yield Result(row, middle[0], middle[1] if len(middle) > 1 else NOTHING)
    finally:
        bench.close()


def outcome(bench: Bench, row: Row, target: Target) -> Outcome:
    try:
        return Outcome(row.load(bench, target))
    except (loads.LoadFault, relays.RelayFault, wire.WireFault, OSError) as fault:
        return Outcome(None, f"{row.name}, {target.name}: {fault}")


def median(outcomes: list[Outcome]) -> Outcome:
    """The one in the middle by rate; a fault in any round is the row's."""
    for each in outcomes:
        if each.measure is None:
            return each
    ordered = sorted(outcomes, key=lambda each: each.measure.rate if each.measure else 0.0)
    return ordered[len(ordered) // 2]


def now_iso() -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
