"""Metrics in the text format of Prometheus, the same numbers for `rookery status`, readiness.

Invariants: for the event loop's thread only; nothing here takes a lock. Stages are measured once
per batch, query or sampled frame, never per row. The values of a label are bounded: of values that
a client or a policy file chooses at most `_MAX_VALUES` are kept.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence  # noqa: TC003 — msgspec reads the annotations
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, fields
from time import monotonic
from typing import TYPE_CHECKING, Final

from prometheus_client import CollectorRegistry, GCCollector, ProcessCollector, generate_latest
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
)
from prometheus_client.registry import Collector

from relay import __version__
from relay.errors import Reject, WriteOutcome
from relay.observe.costly import SLOW_S, CostlyRead, CostlyReads
from relay.observe.day import Day, Totals
from relay.observe.histogram import Histogram
from relay.observe.refusals import Refusals
from relay.observe.traces import configured_traces

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterator

    from prometheus_client.core import Metric

    from relay.nostr.filters import Filter
    from relay.observe.traces import Traces

_SIZES: Final = (1.0, 4.0, 16.0, 64.0, 256.0)
_MAX_VALUES: Final = 200
"""Of a label; further values are counted as `other`."""
_OTHER: Final = "other"
_SHOWN_RULES: Final = 50
_SHOWN_READS: Final = 20

_OUTCOMES: Final = {outcome: (outcome.name.lower(), "") for outcome in WriteOutcome}
"""Labels `outcome` and `prefix`; a refusal has `refused` and its prefix."""

_COUNTERS: Final[Mapping[str, str]] = {
    "connections_opened": "Connections accepted since start.",
    "connections_refused": "Connections refused because of a limit or a blocked address.",
    "live_deliveries": "Events sent to live subscriptions.",
    "rows_sent": "Stored events sent to queries.",
    "outbox_closes": "Connections closed because they read too slowly.",
}
_GAUGES: Final[Mapping[str, str]] = {
    "connections": "Open connections.",
    "policies_current": "1: the policy files are in force; 0: the last reload failed.",
}


@dataclass(frozen=True, slots=True)
class WriteStages:
    """Seconds that batches of events took in each stage, in order."""

    parse: Histogram = field(default_factory=Histogram)
    """Of one frame in `SAMPLED_OF`, of any message."""
    verify_queue: Histogram = field(default_factory=Histogram)
    """How long one event of a batch was queued; also `plugin_queue` and `commit_queue`."""
    verify: Histogram = field(default_factory=Histogram)
    plugin_queue: Histogram = field(default_factory=Histogram)
    plugins: Histogram = field(default_factory=Histogram)
    commit_queue: Histogram = field(default_factory=Histogram)
    lookup: Histogram = field(default_factory=Histogram)
    """Until the store has looked up what the batch is judged against."""
    decide: Histogram = field(default_factory=Histogram)
    policies: Histogram = field(default_factory=Histogram)
    """Of `decide`: the group and policy rules, for the first event of the batch."""
    commit: Histogram = field(default_factory=Histogram)
    """The statements that change the store, and the commit."""
    deliver: Histogram = field(default_factory=Histogram)
    """Until the events are in the outboxes of all subscribers."""


@dataclass(frozen=True, slots=True)
class ReadStages:
    """Seconds that a REQ took in each stage, in order. Of REQs that one short read answers, `plan`
    and `send` of one in `SAMPLED_OF`."""

    plan: Histogram = field(default_factory=Histogram)
    """Computing what the reader may read, and opening the subscription."""
    queue: Histogram = field(default_factory=Histogram)
    """Behind other queries of its connection; only for REQs that one short read does not answer."""
    query: Histogram = field(default_factory=Histogram)
    send: Histogram = field(default_factory=Histogram)
    """Rows into the outbox, and waiting for its client to read."""


SAMPLED_OF: Final = 16
"""Of what takes about as long as to record it, one in so many is recorded."""


class Traffic:
    """Frames of websockets, and their bytes: payloads in, whole frames out."""

    __slots__ = ("bytes_in", "bytes_out", "frames_in", "frames_out")

    def __init__(self) -> None:
        self.frames_in = self.frames_out = self.bytes_in = self.bytes_out = 0


_TRAFFIC: Final[Mapping[str, str]] = {
    "frames_in": "Frames read from clients.",
    "frames_out": "Frames written to clients.",
    "bytes_in": "Bytes of frames read from clients.",
    "bytes_out": "Bytes of frames written to clients.",
}


class Metrics(Collector):
    """The metrics of this relay, in a registry of its own."""

    def __init__(self) -> None:
        self._numbers = dict.fromkeys((*_COUNTERS, *_GAUGES), 0)
        self._numbers["policies_current"] = 1
        self._events: dict[tuple[str, str], int] = {}
        self._refusals: dict[str, int] = {}
        self._swept: dict[str, int] = {}
        self._reloads = {"ok": 0, "failed": 0}
        self._plugins: dict[str, Histogram] = {}
        self.traffic = Traffic()
        self.write = WriteStages()
        self.read = ReadStages()
        self.refusals = Refusals()
        self.costly_reads = CostlyReads()
        self.day = Day()
        self.traces: Traces | None = None
        self.verify_batches = Histogram(_SIZES)
        self.plugin_batches = Histogram(_SIZES)
        self._commits = Histogram()
        self._commit_batches = Histogram(_SIZES)
        self._scans = Histogram()
        self._began = monotonic()
        self._watched: dict[str, _Watched] = {}
        self._registry = CollectorRegistry()
        self._registry.register(self)
        ProcessCollector(registry=self._registry)
        GCCollector(registry=self._registry)

    def committed(self, size: int, seconds: float) -> None:
        """A commit of `size` events, whether it failed or not."""
        self._commits.add(seconds)
        self._commit_batches.add(size)

    def swept(self, kinds: Mapping[int, int]) -> None:
        """kind → rows deleted by a sweep: expired or released by retention rules."""
        for kind, number in kinds.items():
            _count(self._swept, str(kind), number)

    def answered(self, results: Sequence[WriteOutcome | Reject]) -> None:
        """Counts outcomes of events."""
        events, refusals = self._events, self._refusals
        stored = results.count(WriteOutcome.STORED)
        if stored:
            key = _OUTCOMES[WriteOutcome.STORED]
            events[key] = events.get(key, 0) + stored
        if stored == len(results):
            return
        for result in results:
            if result is WriteOutcome.STORED:
                continue
            if isinstance(result, Reject):
                key = ("refused", result.prefix.value)
                _count(refusals, result.rule, 1)
            else:
                key = _OUTCOMES[result]
            events[key] = events.get(key, 0) + 1

    def connections(self, number: int) -> None:
        """Open now."""
        self._numbers["connections_opened"] += max(0, number - self._numbers["connections"])
        self._numbers["connections"] = number

    def connection_refused(self) -> None:
        self._numbers["connections_refused"] += 1

    def delivered(self, number: int) -> None:
        """Live events put into outboxes."""
        self._numbers["live_deliveries"] += number

    def plugin_took(self, name: str, seconds: float) -> None:
        """One request to a plug-in, about a batch of events."""
        times = self._plugins.get(name)
        if times is None:
            name = name if len(self._plugins) < _MAX_VALUES else _OTHER
            times = self._plugins.setdefault(name, Histogram())
        times.add(seconds)

    def scanned(
        self, filters: Sequence[Filter], rows: int, reading_s: float, sending_s: float
    ) -> CostlyRead | None:
        """One query sent its last stored event. As `CostlyReads.took`."""
        self._numbers["rows_sent"] += rows
        self._scans.add(reading_s + sending_s)
        return self.costly_reads.took("REQ", filters, rows, reading_s)

    def too_slow(self) -> None:
        """A connection is closed because its outbox is full."""
        self._numbers["outbox_closes"] += 1

    def reloaded(self, *, ok: bool) -> None:
        """A reload of the policies; not `ok`: the previous ones stay in force."""
        self._reloads["ok" if ok else "failed"] += 1
        self._numbers["policies_current"] = int(ok)

    @asynccontextmanager
    async def with_traces(self, to_install: str) -> AsyncIterator[None]:
        """Inside, `traces` are those that the environment configures; sent before it ends.

        `to_install`: the command that installs their library.
        """
        self.traces = traces = configured_traces(to_install)
        try:
            yield
        finally:
            self.traces = None
            if traces is not None:
                await asyncio.to_thread(traces.close)

    def watch(
        self,
        name: str,
        text: str,
        read: Callable[[], float | Mapping[str, float]],
        label: str = "",
    ) -> None:
        """Register `rookery_<name>`, read at every scrape: a counter if the name ends in `_total`,
        else a gauge. With a `label`, `read` gives the number of each of its values."""
        self._watched[name] = _Watched(text, label, read)

    def status(self) -> Status:
        """The same numbers, for `rookery status`."""
        events = {" ".join(filter(None, labels)): number for labels, number in self._events.items()}
        refusals = sorted(self._refusals.items(), key=lambda each: -each[1])
        watched = {
            name.removesuffix("_total"): sum(each.values().values())
            for name, each in self._watched.items()
        }
        traffic = {name: getattr(self.traffic, name) for name in _TRAFFIC}
        return Status(
            version=__version__,
            at=monotonic(),
            up_s=monotonic() - self._began,
            numbers=self._numbers | traffic | watched,
            events=events,
            refusals=dict(refusals[:_SHOWN_RULES]),
            reads=self.costly_reads.most(_SHOWN_READS),
            stages={
                f"{pipeline} {name}": StageTimes(times.count, times.sum)
                for pipeline, stages in (("write", self.write), ("read", self.read))
                for name, times in _histograms_of(stages).items()
            },
        )

    def sample(self, at: int) -> None:
        """Adds to `day`; called every minute. `at`: Unix seconds."""
        now = self.status()
        self.day.add(
            at,
            now.up_s,
            Totals(
                now.events.get("stored", 0),
                sum(self._refusals.values()),
                self._numbers["live_deliveries"],
                self._scans.count,
            ),
            self._commits,
            self._scans,
            self._numbers["connections"],
            now.numbers.get("file_bytes", 0),
        )

    def page(self) -> bytes:
        """Prometheus text format 0.0.4."""
        return generate_latest(self._registry)

    def collect(self) -> Iterator[Metric]:
        """Called by prometheus-client on a scrape."""
        yield _gauge("info", "The running version.", {__version__: 1}, "version")
        for name, text in _TRAFFIC.items():
            yield _counter(name, text, {"": getattr(self.traffic, name)})
        for name, text in _COUNTERS.items():
            yield _counter(name, text, {"": self._numbers[name]})
        for name, text in _GAUGES.items():
            yield _gauge(name, text, {"": self._numbers[name]})
        for name, watched in self._watched.items():
            as_metric = _counter if name.endswith("_total") else _gauge
            yield as_metric(name, watched.text, watched.values(), watched.label)
        events = CounterMetricFamily(
            "rookery_events",
            "Events by outcome; prefix is that of a refusal.",
            labels=("outcome", "prefix"),
        )
        for labels, number in (dict.fromkeys(_OUTCOMES.values(), 0) | self._events).items():
            events.add_metric(labels, number)
        yield events
        yield _counter("refusals", "Events refused, by rule.", self._refusals, "rule")
        slow = f"Queries that took {SLOW_S} s or more, without waits for their client."
        yield _counter("slow_queries", slow, {"": self.costly_reads.slow})
        yield _counter("swept", "Events deleted by sweeps, by kind.", self._swept, "kind")
        yield _counter("policy_reloads", "Reloads of the policies.", self._reloads, "result")
        for name, text, histograms, label in (
            ("commit_seconds", "Duration of a commit.", {"": self._commits}, ""),
            ("commit_batch_events", "Events per commit.", {"": self._commit_batches}, ""),
            ("verify_batch_events", "Events verified together.", {"": self.verify_batches}, ""),
            ("plugin_batch_events", "Events per request.", {"": self.plugin_batches}, ""),
            ("scan_seconds", "From a query to its last stored event.", {"": self._scans}, ""),
            ("write_seconds", "Stages of a write.", _histograms_of(self.write), "stage"),
            ("read_seconds", "Stages of a REQ.", _histograms_of(self.read), "stage"),
            ("plugin_seconds", "Requests to plug-ins.", self._plugins, "plugin"),
        ):
            yield _histogram(name, text, histograms, label)


@dataclass(frozen=True, slots=True)
class _Watched:
    text: str
    label: str
    read: Callable[[], float | Mapping[str, float]]

    def values(self) -> Mapping[str, float]:
        try:
            found = self.read()
        except OSError:  # of a file or disk that has a fault: the other numbers are still there
            return {}
        return {"": found} if isinstance(found, int | float) else found


def _count(numbers: dict[str, int], value: str, number: int) -> None:
    if value not in numbers and len(numbers) >= _MAX_VALUES:
        value = _OTHER
    numbers[value] = numbers.get(value, 0) + number


def _histograms_of(stages: WriteStages | ReadStages) -> Mapping[str, Histogram]:
    return {each.name: getattr(stages, each.name) for each in fields(stages)}


def _histogram(
    name: str, text: str, histograms: Mapping[str, Histogram], label: str
) -> HistogramMetricFamily:
    family = HistogramMetricFamily(f"rookery_{name}", text, labels=(label,) if label else ())
    for value, each in histograms.items():
        family.add_metric((value,) if label else (), each.buckets, each.sum)
    return family


def _counter(
    name: str, text: str, values: Mapping[str, float], label: str = ""
) -> CounterMetricFamily:
    family = CounterMetricFamily(f"rookery_{name}", text, labels=(label,) if label else ())
    for value, number in values.items():
        family.add_metric((value,) if label else (), number)
    return family


def _gauge(name: str, text: str, values: Mapping[str, float], label: str = "") -> GaugeMetricFamily:
    family = GaugeMetricFamily(f"rookery_{name}", text, labels=(label,) if label else ())
    for value, number in values.items():
        family.add_metric((value,) if label else (), number)
    return family


@dataclass(frozen=True, slots=True)
class StageTimes:
    """Of one stage since start."""

    count: int
    seconds: float


@dataclass(frozen=True, slots=True)
class Status:
    """What a running relay does. `numbers` are metrics without `rookery_` and `_total`."""

    version: str
    at: float
    """Monotonic seconds; the difference of two is the time between them."""
    up_s: float
    numbers: Mapping[str, float]
    events: Mapping[str, int]
    """By outcome and, of refusals, prefix."""
    refusals: Mapping[str, int]
    """By rule, most first."""
    reads: Sequence[CostlyRead]
    """Most seconds first."""
    stages: Mapping[str, StageTimes] = field(default_factory=dict)
    """`write parse` and so on, in order of the pipelines."""
    plugins: Mapping[str, str] = field(default_factory=dict)
    """Name → its problem; empty when it answers."""
    problems: Mapping[str, str] = field(default_factory=dict)
    """As in /readyz."""
    url: str = ""
    """Where it listens."""


class Readiness:
    """Problems shown by /readyz: component ("policies") → one line for the admin."""

    def __init__(self) -> None:
        self._problems: dict[str, str] = {}

    def note(self, name: str, text: str) -> None:
        self._problems[name] = text

    def clear(self, name: str) -> None:
        self._problems.pop(name, None)

    @property
    def problems(self) -> Mapping[str, str]:
        return dict(self._problems)
