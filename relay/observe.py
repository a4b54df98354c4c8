"""What the admin sees of a running relay: log lines, metrics, readiness.

House rules: for shells and orchestration only. Nothing that an event says and no secret key goes
into a log line; ids, public keys, addresses and rule names may. Metrics are plain numbers that the
loop's thread adds to, once for each batch; they become Prometheus text when somebody asks.
"""

from __future__ import annotations

import logging
import re
import traceback
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Final, TextIO

import orjson
from prometheus_client import (
    CollectorRegistry,
    GCCollector,
    Histogram,
    ProcessCollector,
    generate_latest,
)
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.exposition import CONTENT_TYPE_LATEST
from prometheus_client.registry import Collector

from relay import __version__
from relay.verdict import Reject, WriteOutcome

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from prometheus_client.core import Metric

# -- log lines ------------------------------------------------------------------------------------

_SECRET: Final = re.compile(r"nsec1[a-z0-9]+", re.IGNORECASE)
_OURS: Final = "rookery"
_STANDARD: Final = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName"}


def set_up_logging(level: str, form: str, stream: TextIO) -> None:
    """Send every log line to `stream`, from `level` ("debug" … "error") on.

    `form` is "text", "json" or "auto": text when the stream is a terminal. Called again, it
    replaces what it set up before and leaves handlers of others alone. A line brings its facts in
    `extra={"peer": …}`.
    """
    handler = logging.StreamHandler(stream)
    handler.name = _OURS
    is_text = form == "text" or (form == "auto" and stream.isatty())
    handler.setFormatter(TextLines() if is_text else JsonLines())
    root = logging.getLogger()
    for old in [old for old in root.handlers if old.name == _OURS]:
        root.removeHandler(old)
    root.addHandler(handler)
    root.setLevel(level.upper())
    # Its lines name each request and what was asked for; the metrics count, the console shows.
    logging.getLogger("aiohttp.access").setLevel(logging.WARNING)


class TextLines(logging.Formatter):
    """`2026-05-04 12:34:56 info relay.ingest: text  peer=::1`; one line, then the traceback."""

    def format(self, record: logging.LogRecord) -> str:
        clock = datetime.fromtimestamp(record.created).astimezone().strftime("%Y-%m-%d %H:%M:%S")
        facts = "".join(f"  {name}={value}" for name, value in _facts(record).items())
        text = _one_line(f"{record.getMessage()}{facts}")
        line = f"{clock} {record.levelname.lower()} {record.name}: {text}"
        trace = _trace(record)
        return _masked(f"{line}\n{trace}" if trace else line)


class JsonLines(logging.Formatter):
    """`{"time":…,"level":…,"logger":…,"text":…}` and the facts."""

    def format(self, record: logging.LogRecord) -> str:
        line: dict[str, object] = {
            **_facts(record),
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
        except TypeError:  # a file name that is no UTF-8 text, a number of more than 64 bits
            sound = {_utf8(name): _utf8(value) for name, value in line.items()}
            return _masked(orjson.dumps(sound).decode())


def _facts(record: logging.LogRecord) -> Mapping[str, object]:
    return {name: value for name, value in vars(record).items() if name not in _STANDARD}


def _trace(record: logging.LogRecord) -> str:
    if record.exc_info is None or record.exc_info[1] is None:
        return ""
    return _utf8("".join(traceback.format_exception(record.exc_info[1])).rstrip("\n"))


def _utf8(value: object) -> str:
    return str(value).encode("utf-8", "backslashreplace").decode()


def _one_line(text: str) -> str:
    """A client must not be able to write a line of the log, or to a terminal that shows it."""
    if text.isprintable():
        return text
    return "".join(
        char if char.isprintable() else char.encode("unicode_escape").decode() for char in text
    )


def _masked(line: str) -> str:
    """No line should hold a secret key; this is for the day when one does."""
    return _SECRET.sub("nsec1…", line) if "nsec1" in line.lower() else line


# -- metrics --------------------------------------------------------------------------------------

_SIZES: Final = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512)
_SECONDS: Final = (
    0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 10,
)  # fmt: skip

_OUTCOMES: Final = {outcome: (outcome.name.lower(), "") for outcome in WriteOutcome}
"""Labels `outcome` and `prefix`; of a refusal they are `refused` and its word."""

_COUNTERS: Final[Mapping[str, str]] = {
    "frames_in": "Frames read from clients.",
    "frames_out": "Frames written to clients.",
    "connections_opened": "Connections taken since the start.",
    "connections_refused": "Connections not taken because of a limit.",
    "live_deliveries": "Events sent to live subscriptions.",
    "rows_sent": "Stored events sent as answers.",
    "outbox_closes": "Connections closed because they read too slowly.",
}
_GAUGES: Final[Mapping[str, str]] = {
    "connections": "Open connections.",
    "subscriptions": "Open subscriptions.",
}


class Metrics(Collector):
    """What this relay counts, in a registry of its own.

    Hot paths add to the plain numbers (`metrics.frames_in += 40`), from the loop's thread only; a
    counter of prometheus-client would look its labels up and take a lock each time.
    """

    content_type: Final = CONTENT_TYPE_LATEST

    def __init__(self) -> None:
        self.frames_in = 0
        self.frames_out = 0
        self.connections = 0
        self.connections_opened = 0
        self.connections_refused = 0
        self.subscriptions = 0
        self.live_deliveries = 0
        self.rows_sent = 0
        self.outbox_closes = 0
        self._events: dict[tuple[str, str], int] = {}
        self._refusals: dict[str, int] = {}
        self._reloads = {"ok": 0, "failed": 0}
        self._policies_current = 1
        self._watched: dict[str, tuple[str, Callable[[], float]]] = {}
        self._registry = CollectorRegistry()
        self._batch = self._histogram("commit_batch_events", "Events of one commit.", _SIZES)
        self._commit = self._histogram("commit_seconds", "Time that one commit took.", _SECONDS)
        self._scan = self._histogram(
            "scan_seconds", "Time from a query to its last stored event.", _SECONDS
        )
        self._registry.register(self)
        ProcessCollector(registry=self._registry)
        GCCollector(registry=self._registry)

    def committed(self, results: Sequence[WriteOutcome | Reject], seconds: float) -> None:
        """One batch of the lane ended like this, after so long."""
        self._batch.observe(len(results))
        self._commit.observe(seconds)
        self.answered(results)

    def answered(self, results: Iterable[WriteOutcome | Reject]) -> None:
        """Events were answered outside the lane: refused before it, or ephemeral."""
        events, refusals = self._events, self._refusals
        for result in results:
            if isinstance(result, Reject):
                key = ("refused", result.prefix.value)
                refusals[result.rule] = refusals.get(result.rule, 0) + 1
            else:
                key = _OUTCOMES[result]
            events[key] = events.get(key, 0) + 1

    def scanned(self, seconds: float) -> None:
        """One query has its last stored event."""
        self._scan.observe(seconds)

    def policies_reloaded(self) -> None:
        self._reloads["ok"] += 1
        self._policies_current = 1

    def policies_kept(self) -> None:
        """A reload failed; the set before stays in force."""
        self._reloads["failed"] += 1
        self._policies_current = 0

    def watch(self, name: str, text: str, read: Callable[[], float]) -> None:
        """Also show the gauge `rookery_<name>`, read whenever a page is made."""
        self._watched[name] = (text, read)

    def page(self) -> bytes:
        """The page of /metrics, of `content_type`."""
        return generate_latest(self._registry)

    def collect(self) -> Iterator[Metric]:
        """What prometheus-client asks for a page."""
        yield _gauge("info", "The version that runs.", {__version__: 1}, "version")
        for name, text in _COUNTERS.items():
            counter = CounterMetricFamily(f"rookery_{name}", text)
            counter.add_metric((), getattr(self, name))
            yield counter
        for name, text in _GAUGES.items():
            yield _gauge(name, text, {"": getattr(self, name)})
        events = CounterMetricFamily(
            "rookery_events", "Events by how they ended; prefix is the word of a refusal.",
            labels=("outcome", "prefix"),
        )  # fmt: skip
        for labels, number in (dict.fromkeys(_OUTCOMES.values(), 0) | self._events).items():
            events.add_metric(labels, number)
        yield events
        yield _counter("refusals", "Events refused, by rule.", self._refusals, "rule")
        yield _counter("policy_reloads", "Reloads of the policies.", self._reloads, "result")
        yield _gauge(
            "policies_current", "1: the files are what is in force; 0: a set before them is.",
            {"": self._policies_current},
        )  # fmt: skip
        for name, (text, read) in self._watched.items():
            yield _gauge(name, text, {"": read()})

    def _histogram(self, name: str, text: str, bounds: Sequence[float]) -> Histogram:
        return Histogram(f"rookery_{name}", text, buckets=bounds, registry=self._registry)


def _counter(
    name: str, text: str, values: Mapping[str, int], label: str
) -> CounterMetricFamily:
    family = CounterMetricFamily(f"rookery_{name}", text, labels=(label,))
    for word, number in values.items():
        family.add_metric((word,), number)
    return family


def _gauge(
    name: str, text: str, values: Mapping[str, float], label: str | None = None
) -> GaugeMetricFamily:
    family = GaugeMetricFamily(f"rookery_{name}", text, labels=(label,) if label else ())
    for word, number in values.items():
        family.add_metric((word,) if label else (), number)
    return family


# -- readiness ------------------------------------------------------------------------------------


class Readiness:
    """What is wrong with this relay just now: name → one line for /readyz.

    A problem takes the relay out of service; a note is shown beside it (policies that failed to
    load leave the old ones in force, contract §4). A name is that of a part: "store", "policies".
    """

    def __init__(self) -> None:
        self._problems: dict[str, str] = {}
        self._notes: dict[str, str] = {}

    def fails(self, name: str, text: str) -> None:
        """This part cannot do its work."""
        self._notes.pop(name, None)
        self._problems[name] = text

    def warns(self, name: str, text: str) -> None:
        """This part works, but not as the admin wants."""
        self._problems.pop(name, None)
        self._notes[name] = text

    def recovers(self, name: str) -> None:
        self._problems.pop(name, None)
        self._notes.pop(name, None)

    @property
    def is_ready(self) -> bool:
        return not self._problems

    def page(self) -> bytes:
        """`{"ready":…,"problems":{…},"notes":{…}}`."""
        return orjson.dumps(
            {"ready": self.is_ready, "problems": self._problems, "notes": self._notes}
        )
