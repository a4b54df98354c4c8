"""Logging, Prometheus metrics and readiness.

Invariants: not used by pure modules. No event content and no secret key in a log line; ids, public
keys, addresses and rule names are allowed. Metrics are plain numbers, updated on the event loop
once per batch and rendered on a scrape.
"""

from __future__ import annotations

import logging
import re
import sys
import traceback
from bisect import bisect_left
from collections import deque
from collections.abc import Mapping, Sequence  # noqa: TC003 — msgspec reads the annotations
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from itertools import accumulate
from time import monotonic, perf_counter
from typing import TYPE_CHECKING, Final, Protocol, TextIO

import orjson
from prometheus_client import (
    CollectorRegistry,
    GCCollector,
    Histogram,
    ProcessCollector,
    generate_latest,
)
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
)
from prometheus_client.registry import Collector

from relay import __version__
from relay.verdict import Reject, WriteOutcome

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator
    from ipaddress import IPv4Address, IPv6Address

    from prometheus_client.core import Metric

    from relay.nostr.event import Event
    from relay.nostr.filters import Filter

# -- log lines ------------------------------------------------------------------------------------

_SECRET: Final = re.compile(r"nsec1[a-z0-9]+", re.IGNORECASE)
_OURS: Final = "rookery"
_STANDARD: Final = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName"}


class LogSettings(Protocol):
    """`[log]` of rookery.toml."""

    @property
    def level(self) -> str:
        """Lowest level that is logged: "debug", "info", "warning" or "error"."""

    @property
    def format(self) -> str:
        """ "text", "json", or "auto": text on a terminal, else json."""


_MAX_LINES: Final = 1000
_MAX_LINE_CHARS: Final = 2000


@dataclass(frozen=True, slots=True)
class LogLine:
    """One line of the log."""

    number: int
    """Counted since start, from 1."""
    at: int
    """Unix seconds."""
    level: str
    logger: str
    text: str


class LogLines(logging.Handler):
    """The last lines of the log, for `rookery log`."""

    def __init__(self) -> None:
        super().__init__()
        self.name = _OURS
        self._last: deque[LogLine] = deque(maxlen=_MAX_LINES)
        self._number = 0

    def emit(self, record: logging.LogRecord) -> None:
        extra = "".join(f"  {name}={value}" for name, value in _extra(record).items())
        text = _masked(_one_line(f"{record.getMessage()}{extra}"))[:_MAX_LINE_CHARS]
        self._number += 1
        level = record.levelname.lower()
        line = LogLine(self._number, int(record.created), level, record.name, text)
        self._last.append(line)

    def after(self, number: int) -> Sequence[LogLine]:
        """Kept lines with a higher number, oldest first."""
        return [line for line in tuple(self._last) if line.number > number]


def set_up_logging(log: LogSettings, stream: TextIO | None = None) -> LogLines:
    """Log to `stream`, by default stderr; structured fields come from `extra={"peer": …}`.

    A second call replaces the handlers of the first; others stay. Gives the last lines.
    """
    lines = LogLines()
    stream = sys.stderr if stream is None else stream
    handler = logging.StreamHandler(stream)
    handler.name = _OURS
    is_text = log.format == "text" or (log.format == "auto" and stream.isatty())
    handler.setFormatter(TextLines() if is_text else JsonLines())
    root = logging.getLogger()
    for old in [old for old in root.handlers if old.name == _OURS]:
        root.removeHandler(old)
    root.addHandler(handler)
    root.addHandler(lines)
    root.setLevel(log.level.upper())
    # The access log has one line per request; metrics count them instead.
    logging.getLogger("aiohttp.access").setLevel(logging.WARNING)
    # Its debug lines hold statements with their values.
    logging.getLogger("aiosqlite").setLevel(logging.INFO)
    return lines


class TextLines(logging.Formatter):
    """`2026-05-04 12:34:56 info relay.write.ingest: text  peer=::1`, then the traceback."""

    def format(self, record: logging.LogRecord) -> str:
        clock = datetime.fromtimestamp(record.created).astimezone().strftime("%Y-%m-%d %H:%M:%S")
        extra = "".join(f"  {name}={value}" for name, value in _extra(record).items())
        text = _one_line(f"{record.getMessage()}{extra}")
        line = f"{clock} {record.levelname.lower()} {record.name}: {text}"
        trace = _trace(record)
        return _masked(f"{line}\n{trace}" if trace else line)


class JsonLines(logging.Formatter):
    """`{"time":…,"level":…,"logger":…,"text":…}` and the fields of `extra`."""

    def format(self, record: logging.LogRecord) -> str:
        line: dict[str, object] = {
            **_extra(record),
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "text": record.getMessage(),
        }
        trace = _trace(record)
        if trace:
            line["trace"] = trace
        try:
            return _masked(orjson.dumps(line, default=str).decode())
        except TypeError:  # a file name that is not UTF-8, an integer over 64 bits
            safe = {_utf8(name): _utf8(value) for name, value in line.items()}
            return _masked(orjson.dumps(safe).decode())


def _extra(record: logging.LogRecord) -> Mapping[str, object]:
    return {name: value for name, value in vars(record).items() if name not in _STANDARD}


def _trace(record: logging.LogRecord) -> str:
    if record.exc_info is None or record.exc_info[1] is None:
        return ""
    return _utf8("".join(traceback.format_exception(record.exc_info[1])).rstrip("\n"))


def _utf8(value: object) -> str:
    return str(value).encode("utf-8", "backslashreplace").decode()


def _one_line(text: str) -> str:
    """Escapes control characters: a client must not forge log lines or control a terminal."""
    if text.isprintable():
        return text
    return "".join(
        char if char.isprintable() else char.encode("unicode_escape").decode() for char in text
    )


def _masked(line: str) -> str:
    """Second line of defence: no caller should log a secret key."""
    return _SECRET.sub("nsec1…", line) if "nsec1" in line.lower() else line


# -- metrics --------------------------------------------------------------------------------------

_SIZES: Final = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512)
_SECONDS: Final = (
    0.0001,
    0.00025,
    0.0005,
    0.001,
    0.0025,
    0.005,
    0.01,
    0.025,
    0.05,
    0.1,
    0.25,
    0.5,
    1,
    2.5,
    10,
)

_OUTCOMES: Final = {outcome: (outcome.name.lower(), "") for outcome in WriteOutcome}
"""Labels `outcome` and `prefix`; a refusal has `refused` and its prefix."""

_COUNTERS: Final[Mapping[str, str]] = {
    "frames_in": "Frames read from clients.",
    "frames_out": "Frames written to clients.",
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


class Metrics(Collector):
    """The metrics of this relay, in a registry of its own.

    Only for the event loop's thread: numbers are kept in plain dicts, because a counter of
    prometheus-client looks up labels and takes a lock on every increment.
    """

    def __init__(self) -> None:
        self._numbers = dict.fromkeys((*_COUNTERS, *_GAUGES), 0)
        self._numbers["policies_current"] = 1
        self._events: dict[tuple[str, str], int] = {}
        self._refusals: dict[str, int] = {}
        self._swept: dict[str, int] = {}
        self._reloads = {"ok": 0, "failed": 0}
        self.refusals = Refusals()
        self.costly_reads = CostlyReads()
        self._began = monotonic()
        self._watched: dict[str, tuple[str, Callable[[], float]]] = {}
        self._registry = CollectorRegistry()
        self._batch = self._histogram("commit_batch_events", "Events per commit.", _SIZES)
        self._commit = self._histogram("commit_seconds", "Duration of a commit.", _SECONDS)
        self._scans = [0] * (len(_SECONDS) + 1)
        """Of `scan_seconds`: how many took up to each bound, the last one more."""
        self._scan_seconds = 0.0
        self._registry.register(self)
        ProcessCollector(registry=self._registry)
        GCCollector(registry=self._registry)

    @contextmanager
    def commit(self, size: int) -> Iterator[None]:
        """Times a commit of `size` events; failed ones count too."""
        began = perf_counter()
        try:
            yield
        finally:
            self._commit.observe(perf_counter() - began)
            self._batch.observe(size)

    def swept(self, kinds: Mapping[int, int]) -> None:
        """kind → rows deleted by a sweep: expired or released by retention rules."""
        for kind, number in kinds.items():
            self._swept[str(kind)] = self._swept.get(str(kind), 0) + number

    def answered(self, results: Iterable[WriteOutcome | Reject]) -> None:
        """Counts outcomes of events."""
        events, refusals = self._events, self._refusals
        for result in results:
            if isinstance(result, Reject):
                key = ("refused", result.prefix.value)
                refusals[result.rule] = refusals.get(result.rule, 0) + 1
            else:
                key = _OUTCOMES[result]
            events[key] = events.get(key, 0) + 1

    def connections(self, number: int) -> None:
        """Open now."""
        self._numbers["connections_opened"] += max(0, number - self._numbers["connections"])
        self._numbers["connections"] = number

    def connection_refused(self) -> None:
        self._numbers["connections_refused"] += 1

    def frames_in(self, number: int) -> None:
        self._numbers["frames_in"] += number

    def frames_out(self, number: int) -> None:
        self._numbers["frames_out"] += number

    def delivered(self, number: int) -> None:
        """Live events put into outboxes."""
        self._numbers["live_deliveries"] += number

    def scanned(
        self, filters: Sequence[Filter], rows: int, seconds: float, waited: float = 0.0
    ) -> None:
        """One query sent its last stored event; so long of it, it `waited` for its client."""
        self._numbers["rows_sent"] += rows
        self._scans[bisect_left(_SECONDS, seconds)] += 1
        self._scan_seconds += seconds
        self.costly_reads.took("REQ", filters, rows, seconds - waited)

    def too_slow(self) -> None:
        """A connection is closed because its outbox is full."""
        self._numbers["outbox_closes"] += 1

    def reloaded(self, *, ok: bool) -> None:
        """A reload of the policies; not `ok`: the previous ones stay in force."""
        self._reloads["ok" if ok else "failed"] += 1
        self._numbers["policies_current"] = int(ok)

    def watch(self, name: str, text: str, read: Callable[[], float]) -> None:
        """Register the gauge `rookery_<name>`, read on every scrape."""
        self._watched[name] = (text, read)

    def status(self) -> Status:
        """The same numbers, for `rookery status`."""
        events = {" ".join(filter(None, labels)): number for labels, number in self._events.items()}
        refusals = sorted(self._refusals.items(), key=lambda each: -each[1])
        return Status(
            version=__version__,
            at=monotonic(),
            up_s=monotonic() - self._began,
            numbers=self._numbers | {name: read() for name, (_, read) in self._watched.items()},
            events=events,
            refusals=dict(refusals[:_SHOWN_RULES]),
            reads=self.costly_reads.most(_SHOWN_READS),
        )

    def page(self) -> bytes:
        """Prometheus text format 0.0.4."""
        return generate_latest(self._registry)

    def collect(self) -> Iterator[Metric]:
        """Called by prometheus-client on a scrape."""
        yield _gauge("info", "The running version.", 1, {"version": __version__})
        for name, text in _COUNTERS.items():
            yield CounterMetricFamily(f"rookery_{name}", text, self._numbers[name])
        for name, text in _GAUGES.items():
            yield _gauge(name, text, self._numbers[name])
        for name, (text, read) in self._watched.items():
            yield _gauge(name, text, read())
        events = CounterMetricFamily(
            "rookery_events",
            "Events by outcome; prefix is that of a refusal.",
            labels=("outcome", "prefix"),
        )
        for labels, number in (dict.fromkeys(_OUTCOMES.values(), 0) | self._events).items():
            events.add_metric(labels, number)
        yield events
        yield _counter("refusals", "Events refused, by rule.", self._refusals, "rule")
        yield _counter("swept", "Events deleted by sweeps, by kind.", self._swept, "kind")
        scans = [*zip(map(str, (*_SECONDS, "+Inf")), accumulate(self._scans), strict=True)]
        yield HistogramMetricFamily(
            "rookery_scan_seconds",
            "Time from a query to its last stored event.",
            buckets=scans,
            sum_value=self._scan_seconds,
        )
        yield _counter("policy_reloads", "Reloads of the policies.", self._reloads, "result")

    def _histogram(self, name: str, text: str, bounds: Sequence[float]) -> Histogram:
        return Histogram(f"rookery_{name}", text, buckets=bounds, registry=self._registry)


def _counter(name: str, text: str, values: Mapping[str, int], label: str) -> CounterMetricFamily:
    family = CounterMetricFamily(f"rookery_{name}", text, labels=(label,))
    for word, number in values.items():
        family.add_metric((word,), number)
    return family


def _gauge(
    name: str, text: str, value: float, labels: Mapping[str, str] | None = None
) -> GaugeMetricFamily:
    labels = labels or {}
    family = GaugeMetricFamily(f"rookery_{name}", text, labels=tuple(labels))
    family.add_metric(tuple(labels.values()), value)
    return family


# -- costly reads ---------------------------------------------------------------------------------

_NOTE_S: Final = 0.001
_MAX_SHAPES: Final = 64
_MAX_LISTED: Final = 4
"""Kinds and filters that a shape names one by one."""
_SHOWN_RULES: Final = 50
_SHOWN_READS: Final = 20


@dataclass(slots=True)
class CostlyRead:
    """The cost of REQs or COUNTs of one shape since start."""

    shape: str
    """Kinds, names of tags and numbers of values; never a value."""
    seconds: float
    """All together, estimated: see `CostlyReads`."""
    longest_s: float
    rows: int
    """Sent by the longest."""


class CostlyReads:
    """The shapes of filters that take most of the time.

    A shape is worked out once per millisecond of reading, not for each query: the query that
    completes a millisecond is noted with all the time since the one before it. Shapes get their
    share that way, and those that take long are always noted.
    """

    def __init__(self) -> None:
        self._reads: dict[str, CostlyRead] = {}
        self._unnoted_s = 0.0

    def took(self, verb: str, filters: Sequence[Filter], rows: int, seconds: float) -> None:
        self._unnoted_s += seconds
        if self._unnoted_s < _NOTE_S:
            return
        shape = f"{verb} {shape_of(filters)}"
        read = self._reads.get(shape)
        if read is None:
            if len(self._reads) >= _MAX_SHAPES:
                del self._reads[min(self._reads.values(), key=lambda each: each.seconds).shape]
            read = self._reads[shape] = CostlyRead(shape, 0.0, 0.0, 0)
        read.seconds += self._unnoted_s
        self._unnoted_s = 0.0
        if seconds > read.longest_s:
            read.longest_s, read.rows = seconds, rows

    def most(self, number: int) -> Sequence[CostlyRead]:
        """Most seconds first."""
        return sorted(self._reads.values(), key=lambda each: -each.seconds)[:number]


def shape_of(filters: Sequence[Filter]) -> str:
    """`kinds 9,11 #h 1 since limit 100`: filters without their values, which are counted."""
    shapes = [_shape(filter_) for filter_ in filters[:_MAX_LISTED]]
    if len(filters) > _MAX_LISTED:
        shapes.append(f"{len(filters) - _MAX_LISTED} more")
    return " | ".join(shapes)


def _shape(filter_: Filter) -> str:
    words = []
    if filter_.kinds is not None:
        listed = sorted(filter_.kinds)[:_MAX_LISTED]
        more = [f"{_about(len(filter_.kinds) - _MAX_LISTED)} more"]
        named = [*map(str, listed), *(more if len(filter_.kinds) > _MAX_LISTED else ())]
        words.append(f"kinds {','.join(named)}")
    for name, values in (("ids", filter_.ids), ("authors", filter_.authors)):
        if values is not None:
            words.append(f"{name} {_about(len(values))}")
    words += [f"#{name} {_about(len(values))}" for name, values in filter_.tags]
    given = {"search": filter_.search, "since": filter_.since, "until": filter_.until}
    words += [name for name, value in given.items() if value is not None]
    if filter_.limit is not None:
        words.append(f"limit {_about(filter_.limit)}")
    return " ".join(words) or "everything"


def _about(number: int) -> str:
    """Up to the next power of ten, so that there are few shapes."""
    if number <= 1:
        return str(number)
    return f"<={10 ** len(str(number - 1))}"


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
    plugins: Mapping[str, str] = field(default_factory=dict)
    """Name → its problem; empty when it answers."""
    problems: Mapping[str, str] = field(default_factory=dict)
    """As in /readyz."""
    url: str = ""
    """Where it listens."""


# -- the last refusals ----------------------------------------------------------------------------

_REFUSALS: Final = 1000
_MAX_GROUP: Final = 64
_MAX_TEXT: Final = 400


@dataclass(frozen=True, slots=True)
class Refusal:
    """One refused event, without its content."""

    number: int
    """Counted since start, from 1."""
    at: int
    """Unix seconds."""
    rule: str
    prefix: str
    kind: int
    author: str
    """64 hex; not verified when the refusal came before the signature check."""
    event_id: str
    connection: int | None
    """None: an import."""
    address: str | None
    group: str | None = None
    """Its tag `h`."""
    text: str = ""
    """What its author was told."""


class Refusals:
    """The last refusals; metrics count all of them."""

    def __init__(self, max_kept: int = _REFUSALS) -> None:
        self._last: deque[Refusal] = deque(maxlen=max_kept)
        self._number = 0

    def note(
        self,
        reject: Reject,
        event: Event,
        at: int,
        connection: int | None,
        address: IPv4Address | IPv6Address | None,
    ) -> None:
        self._number += 1
        self._last.append(
            Refusal(
                self._number,
                at,
                reject.rule,
                reject.prefix.value,
                event.kind,
                event.pubkey,
                event.id,
                connection,
                None if address is None else str(address),
                next((value[:_MAX_GROUP] for value in event.tag_values("h")), None),
                reject.text[:_MAX_TEXT],
            )
        )

    def after(self, number: int) -> Sequence[Refusal]:
        """Kept refusals with a higher number, oldest first."""
        return [refusal for refusal in self._last if refusal.number > number]


# -- readiness ------------------------------------------------------------------------------------


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
