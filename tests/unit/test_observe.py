"""relay/observe.py: log lines, metrics, readiness."""

from __future__ import annotations

import asyncio
import gc
import io
import json
import logging
import os
import stat
import sys
import weakref
from ipaddress import ip_address
from time import perf_counter
from typing import TYPE_CHECKING
from unittest.mock import MagicMock

import orjson
import pytest
from prometheus_client.parser import text_string_to_metric_families

from relay.config import LogConfig, LogFormat, LogLevel
from relay.errors import Prefix, Reject, WriteOutcome
from relay.nostr.filters import Filter
from relay.observe import (
    REQUEST,
    CostlyReads,
    JsonLines,
    Metrics,
    Readiness,
    Refusals,
    configured_traces,
    read_log,
    request_id,
    set_up_logging,
    shape_of,
)
from relay.observe.logs import BoundedFile
from relay.observe.traces import Traces
from tests.cast import alice
from tests.unit.server.test_app import serving

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

log = logging.getLogger("relay.somewhere")
JSON = LogConfig(LogLevel.INFO, LogFormat.JSON)
TEXT = LogConfig(LogLevel.INFO, LogFormat.TEXT)


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.fixture(autouse=True)
def _logging_as_it_was() -> Iterator[None]:
    loggers = [logging.getLogger(name) for name in ("", "aiohttp.access", "aiohttp.websocket")]
    handlers, levels = list(loggers[0].handlers), [each.level for each in loggers]
    yield
    loggers[0].handlers[:] = handlers
    for logger, level in zip(loggers, levels, strict=True):
        logger.setLevel(level)


# -- log lines ------------------------------------------------------------------------------------


def test_a_json_line_has_time_level_logger_text_and_facts() -> None:
    out = io.StringIO()
    set_up_logging(JSON, out)
    log.info("took %d events", 5, extra={"peer": "::1", "level": "no"})
    line = orjson.loads(out.getvalue())
    assert out.getvalue().count("\n") == 1
    assert line.pop("time").endswith("+00:00")
    assert line == {
        "level": "info",
        "logger": "relay.somewhere",
        "text": "took 5 events",
        "peer": "::1",
    }


def test_a_text_line_reads_from_left_to_right() -> None:
    out = io.StringIO()
    set_up_logging(TEXT, out)
    log.warning("disk is full", extra={"path": "/srv"})
    assert out.getvalue()[20:] == "warning relay.somewhere: disk is full  path=/srv\n"


@pytest.mark.parametrize(("stream", "begins"), [(Terminal(), "2"), (io.StringIO(), "{")])
def test_auto_is_text_on_a_terminal_and_else_json(stream: io.StringIO, begins: str) -> None:
    set_up_logging(LogConfig(), stream)
    log.info("hello")
    assert stream.getvalue().startswith(begins)


def test_lines_below_the_level_are_not_written() -> None:
    out = io.StringIO()
    set_up_logging(LogConfig(LogLevel.ERROR, LogFormat.TEXT), out)
    log.warning("not this")
    log.error("this")
    assert out.getvalue().splitlines()[0].endswith("this")
    assert "not this" not in out.getvalue()


def test_a_second_set_up_replaces_the_first() -> None:
    first, second = io.StringIO(), io.StringIO()
    set_up_logging(TEXT, first)
    set_up_logging(TEXT, second)
    log.info("hello")
    assert first.getvalue() == ""
    assert second.getvalue().count("hello") == 1


def test_without_a_stream_lines_go_to_stderr(capsys: pytest.CaptureFixture[str]) -> None:
    set_up_logging(TEXT)
    log.info("hello")
    assert "hello" in capsys.readouterr().err


async def test_the_subprotocols_that_a_client_asks_for_are_in_no_line() -> None:
    """It is the only header in which a browser can send a token with a websocket."""
    out = io.StringIO()
    set_up_logging(TEXT, out)
    async with serving() as relay:
        url, protocols = f"ws://{relay.at}/", ("not-a-real-token",)
        await (await relay.browser.ws_connect(url, protocols=protocols)).close()
    assert "not-a-real-token" not in out.getvalue()


@pytest.mark.parametrize("form", [TEXT, JSON])
def test_a_client_cannot_forge_a_log_line(form: LogConfig) -> None:
    out = io.StringIO()
    set_up_logging(form, out)
    log.info("user agent %s", "x\n2026-01-01 error relay: \x1b[31mfire")
    assert out.getvalue().count("\n") == 1
    assert "\x1b" not in out.getvalue()


@pytest.mark.parametrize("form", [TEXT, JSON])
def test_a_secret_key_is_masked_in_the_log(form: LogConfig) -> None:
    out = io.StringIO()
    set_up_logging(form, out)
    log.info("could not use %s", alice.nsec, extra={"key": alice.nsec.upper()})
    assert alice.nsec[5:] not in out.getvalue().lower()
    assert "nsec1…" in out.getvalue()


@pytest.mark.parametrize("form", [TEXT, JSON])
def test_a_traceback_follows_its_line(form: LogConfig) -> None:
    out = io.StringIO()
    set_up_logging(form, out)
    try:
        raise ValueError("what went wrong")
    except ValueError:
        log.exception("a task failed")
    assert "a task failed" in out.getvalue()
    assert "ValueError: what went wrong" in out.getvalue()


@pytest.mark.parametrize("form", [TEXT, JSON])
async def test_what_asyncio_reports_without_an_exception_is_a_line(form: LogConfig) -> None:
    """Its handler gives `exc_info=False`: the line was lost."""
    out = io.StringIO()
    set_up_logging(form, out)
    loop = asyncio.get_running_loop()
    loop.default_exception_handler({"message": "Unclosed transport"})
    assert "Unclosed transport" in out.getvalue()


def test_values_that_json_cannot_encode_are_logged_as_text() -> None:
    # Formatted and not logged: what captures logs for a report could not pass this one on.
    facts = {"msg": "cannot read %s", "args": ("caf\udce9",), "size": 2**70, "path": object}
    line = orjson.loads(JsonLines().format(logging.makeLogRecord(facts)))
    assert line["text"] == "cannot read caf\\udce9"
    assert line["size"] == str(2**70)


def lines_of(out: io.StringIO) -> list[str]:
    return [orjson.loads(line)["text"] for line in out.getvalue().splitlines()]


def flood(number: int, **extra: object) -> None:
    for each in range(number):
        log.warning("the disk of %s is full", each, extra=extra)


def test_of_one_place_only_some_lines_a_minute_are_written_and_the_others_counted(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    now = [0.0]
    monkeypatch.setattr("relay.observe.logs.monotonic", lambda: now[0])
    out = io.StringIO()
    kept = set_up_logging(JSON, out)
    flood(1000)
    log.info("something else")
    assert len(lines_of(out)) == 60 + 1
    now[0] = 59.0
    flood(1)
    assert len(lines_of(out)) == 60 + 1
    now[0] = 60.0
    flood(1)
    left_out = "941 more lines like this were left out: the disk of %s is full"
    assert lines_of(out)[61:] == [left_out, "the disk of 0 is full"]
    assert [line.text for line in kept.after(61)] == lines_of(out)[61:]
    assert kept.counts["warning"] == 1002


def test_the_first_line_of_a_place_keeps_nothing_of_its_exception_in_memory(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A traceback holds what the failed functions had, up to megabytes, until the next line of this
    place: on a quiet relay for days."""

    class Page:
        pass

    def fails() -> weakref.ref[Page]:
        page = Page()
        try:
            raise ValueError(page)
        except ValueError:
            log.exception("a page could not be read: %s", page)
        return weakref.ref(page)

    monkeypatch.setattr(logging.getLogger(), "handlers", [])  # those of pytest keep records
    out = io.StringIO()
    kept = set_up_logging(JSON, out)
    page = fails()
    assert "ValueError" in out.getvalue()
    assert kept.counts["error"] == 1
    gc.collect()
    assert page() is None


def test_calls_that_are_audited_are_never_left_out() -> None:
    out = io.StringIO()
    set_up_logging(JSON, out)
    flood(100, audit=True)
    assert len(lines_of(out)) == 100


@pytest.mark.parametrize(
    ("stream", "no_colour", "level"),
    [
        (Terminal(), "", "\x1b[31merror\x1b[0m"),
        (Terminal(), "1", " error "),
        (io.StringIO(), "", " error "),
    ],
)
def test_levels_have_colours_on_a_terminal_unless_NO_COLOR_is_set(  # noqa: N802
    stream: io.StringIO, no_colour: str, level: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NO_COLOR", no_colour)
    monkeypatch.setenv("TERM", "xterm")
    set_up_logging(TEXT, stream)
    log.error("no")
    assert level in stream.getvalue()


def test_a_line_that_is_logged_for_a_client_has_the_id_of_its_request() -> None:
    kept = set_up_logging(JSON, io.StringIO())
    log.info("at start")
    was = REQUEST.set(lambda: request_id(7, 42))
    log.info("a query failed")
    REQUEST.reset(was)
    assert [line.text for line in kept.after(0)] == ["at start", "a query failed  request=7.42"]


def test_the_log_is_kept_in_a_file_of_the_relay_alone(tmp_path: Path) -> None:
    path = tmp_path / "rookery.log"
    first = set_up_logging(TEXT, io.StringIO())
    log.info("before the folder is locked")
    first.keep_in(path)
    try:
        raise ValueError("what went wrong")
    except ValueError:
        log.exception("a task failed", extra={"request": "7.42"})
    first.close()
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    with path.open("ab") as file:
        file.write(b'{"time":"2026-0')  # a kill
    one, two = read_log(path)
    assert (one.number, one.level, one.text) == (1, "info", "before the folder is locked")
    assert (two.level, two.text) == ("error", "a task failed  request=7.42")
    assert two.trace.endswith("ValueError: what went wrong")
    second = set_up_logging(TEXT, io.StringIO())
    second.keep_in(path)
    log.info("after a restart")
    assert [line.text for line in second.after(0)][-1] == "after a restart"
    assert [line.text for line in second.after(0)][:2] == [one.text, two.text]
    assert [line.text for line in read_log(path)][-1] == "after a restart"


def test_the_file_of_the_log_is_bounded(tmp_path: Path) -> None:
    file = BoundedFile(tmp_path / "rookery.log", max_bytes=1000)
    for number in range(1000):
        file.write(b'{"number":%4d}\n' % number)
    kept = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    assert sorted(kept) == ["rookery.log", "rookery.log.1"]
    assert max(map(len, kept.values())) <= 1000
    numbers = [
        json.loads(line)["number"]
        for name in sorted(kept, reverse=True)
        for line in kept[name].splitlines()
    ]
    assert numbers == [*range(1000 - len(numbers), 1000)]
    assert len(numbers) >= 62


def test_the_log_is_written_through_no_link_and_to_no_pipe(tmp_path: Path) -> None:
    letter, link, pipe = tmp_path / "letter", tmp_path / "link", tmp_path / "pipe"
    letter.write_text("mine")
    link.symlink_to(letter)
    os.mkfifo(pipe)
    for path in (link, pipe):
        file = BoundedFile(path)
        for _ in range(1000):  # more than a pipe takes
            file.write(b"x" * 1000)
        file.close()
    assert letter.read_text() == "mine"


def test_a_log_that_cannot_be_written_stops_nothing(tmp_path: Path) -> None:
    lines = set_up_logging(TEXT, io.StringIO())
    lines.keep_in(tmp_path / "missing" / "rookery.log")
    log.info("hello")
    assert [line.text for line in lines.after(0)] == ["hello"]


# -- metrics --------------------------------------------------------------------------------------


def samples(metrics: Metrics) -> dict[tuple[str, ...], float]:
    """(name, label values…) → value."""
    return {
        (sample.name, *sample.labels.values()): sample.value
        for family in text_string_to_metric_families(metrics.page().decode())
        for sample in family.samples
    }


def test_events_are_counted_by_outcome() -> None:
    metrics = Metrics()
    spam = Reject(Prefix.BLOCKED, "spam", "no spam")
    metrics.answered([WriteOutcome.STORED, WriteOutcome.STORED, WriteOutcome.DUPLICATE, spam])
    metrics.answered([spam, Reject(Prefix.INVALID, "kind", "form")])
    page = samples(metrics)
    assert page["rookery_events_total", "stored", ""] == 2
    assert page["rookery_events_total", "duplicate", ""] == 1
    assert page["rookery_events_total", "superseded", ""] == 0
    assert page["rookery_events_total", "refused", "blocked"] == 2
    assert page["rookery_events_total", "refused", "invalid"] == 1
    assert page["rookery_refusals_total", "no spam"] == 2
    assert page["rookery_refusals_total", "form"] == 1


def test_a_commit_is_measured_with_its_size() -> None:
    metrics = Metrics()
    metrics.committed(3, 0.001)
    metrics.committed(100, 0.3)
    page = samples(metrics)
    assert page["rookery_commit_batch_events_count",] == 2
    assert page["rookery_commit_batch_events_sum",] == 103
    assert page["rookery_commit_seconds_count",] == 2
    assert page["rookery_commit_batch_events_bucket", "4.0"] == 1


def test_traffic_is_counted_in_batches() -> None:
    metrics = Metrics()
    metrics.traffic.frames_in += 42
    metrics.traffic.frames_out += 7
    metrics.delivered(5)
    metrics.scanned((), 500, 0.002, 0.0)
    metrics.too_slow()
    metrics.connection_refused()
    metrics.watch("subscriptions", "Open subscriptions.", lambda: 9)
    page = samples(metrics)
    assert page["rookery_frames_in_total",] == 42
    assert page["rookery_frames_out_total",] == 7
    assert page["rookery_live_deliveries_total",] == 5
    assert page["rookery_rows_sent_total",] == 500
    assert page["rookery_scan_seconds_count",] == 1
    assert page["rookery_outbox_closes_total",] == 1
    assert page["rookery_connections_refused_total",] == 1
    assert page["rookery_subscriptions",] == 9


def test_a_label_has_a_bounded_number_of_values() -> None:
    metrics = Metrics()
    for number in range(300):
        metrics.answered([Reject(Prefix.BLOCKED, "no", f"rule {number}")])
        metrics.swept({number: 2})
        metrics.plugin_took(f"sifter {number}", 0.001)
    page = samples(metrics)
    assert page["rookery_refusals_total", "other"] == 100
    assert page["rookery_swept_total", "other"] == 200
    assert page["rookery_plugin_seconds_count", "other"] == 100
    assert len([key for key in page if key[0] == "rookery_refusals_total"]) == 201


def test_a_disk_with_a_fault_leaves_the_other_numbers() -> None:
    """A sample ended the task that takes them, and the stop of the relay failed."""

    def free() -> float:
        raise OSError("a fault")

    metrics = Metrics()
    metrics.watch("disk_free_bytes", "Free space.", free)
    metrics.watch("subscriptions", "Open subscriptions.", lambda: 9)
    metrics.sample(60)
    assert b"rookery_subscriptions 9.0" in metrics.page()


def test_a_day_of_minutes_is_kept_with_the_rates_of_each(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = 1000.0
    monkeypatch.setattr("relay.observe.metrics.monotonic", lambda: clock)
    metrics = Metrics()
    metrics.watch("file_bytes", "Sizes.", lambda: {"a": 5.0, "b": 7.0}, "file")
    for stored, slowest_s in ((60, 0.3), (0, 0.00001)):
        clock += 60
        metrics.answered([WriteOutcome.STORED] * stored)
        metrics.delivered(2 * stored)
        for seconds in [0.00001] * 50 + [slowest_s]:
            metrics.committed(1, seconds)
        metrics.sample(int(clock))
    first, second = metrics.day.samples
    assert (first.at, first.stored, first.deliveries, first.disk_bytes) == (1060, 1.0, 2.0, 12.0)
    assert (first.commit_p99_s, first.query_p99_s) == (0.5, 0.0)
    # Only what came since the sample before.
    assert (second.stored, second.commit_p99_s) == (0.0, 0.00002)
    for _ in range(1440):
        metrics.sample(int(clock))
    assert len(metrics.day.samples) == 1440
    assert second not in metrics.day.samples


def test_open_and_accepted_connections_are_counted() -> None:
    metrics = Metrics()
    for number in (1, 2, 1, 2, 1, 0):
        metrics.connections(number)
    page = samples(metrics)
    assert page["rookery_connections",] == 0
    assert page["rookery_connections_opened_total",] == 3


def test_a_failed_reload_shows_until_one_succeeds() -> None:
    metrics = Metrics()
    assert samples(metrics)["rookery_policies_current",] == 1
    metrics.reloaded(ok=False)
    page = samples(metrics)
    assert page["rookery_policies_current",] == 0
    assert page["rookery_policy_reloads_total", "failed"] == 1
    metrics.reloaded(ok=True)
    page = samples(metrics)
    assert page["rookery_policies_current",] == 1
    assert page["rookery_policy_reloads_total", "ok"] == 1


def test_a_gauge_is_read_on_a_scrape() -> None:
    metrics, waiting = Metrics(), [1, 2]
    metrics.watch("lane_waiting", "Events that wait for a commit.", lambda: len(waiting))
    waiting.append(3)
    assert samples(metrics)["rookery_lane_waiting",] == 3


def test_two_relays_in_one_process_have_separate_metrics() -> None:
    one, other = Metrics(), Metrics()
    one.connection_refused()
    assert samples(other)["rookery_connections_refused_total",] == 0


# -- readiness ------------------------------------------------------------------------------------


def test_a_problem_is_shown_until_it_is_cleared() -> None:
    readiness = Readiness()
    readiness.note("policies", "policies/20-tea.toml:3: unknown key")
    readiness.note("policies", "policies/20-tea.toml:4: unknown key")
    readiness.note("store", "disk full")
    assert readiness.problems == {
        "policies": "policies/20-tea.toml:4: unknown key",
        "store": "disk full",
    }
    readiness.clear("policies")
    readiness.clear("never noted")
    assert readiness.problems == {"store": "disk full"}


# -- the last refusals ----------------------------------------------------------------------------


def test_the_last_refusals_are_kept_without_content() -> None:
    refusals = Refusals(max_kept=2)
    event = alice.sign(1, [["t", "secret tag"]], "secret words", 1_700_000_000)
    for number in range(3):
        reject = Reject(Prefix.RESTRICTED, "no", f"rule {number}")
        refusals.note(reject, event, 1_700_000_001, 7, ip_address("10.1.2.3"))
    assert [each.rule for each in refusals.after(0)] == ["rule 1", "rule 2"]
    assert [each.number for each in refusals.after(2)] == [3]
    assert refusals.after(3) == []
    last = refusals.after(0)[-1]
    assert (last.at, last.prefix, last.kind) == (1_700_000_001, "restricted", 1)
    assert (last.author, last.event_id) == (alice.pubkey, event.id)
    assert (last.connection, last.address) == (7, "10.1.2.3")
    assert "secret" not in repr(last)


def test_a_refused_import_has_no_connection() -> None:
    refusals = Refusals()
    event = alice.sign(1, [], "", 1_700_000_000)
    refusals.note(Reject(Prefix.BLOCKED, "no", "x"), event, 1, None, None)
    [refusal] = refusals.after(0)
    assert (refusal.connection, refusal.address) == (None, None)


def test_the_costliest_shapes_of_filters_are_kept_without_their_values() -> None:
    reads = CostlyReads()
    wanted = Filter(kinds=frozenset({1}), tags=(("t", frozenset({"secret", "word"})),), limit=500)
    reads.took("REQ", [wanted], 7, 0.4)
    reads.took("REQ", [wanted, Filter()], 0, 0.1)
    reads.took("COUNT", [Filter(authors=frozenset(map(str, range(30))), since=5)], 0, 0.2)
    assert [(read.shape, round(read.seconds, 6)) for read in reads.most(9)] == [
        ("REQ kinds 1 #t <=10 limit <=1000", 0.4),
        ("COUNT authors <=100 since", 0.2),
        ("REQ kinds 1 #t <=10 limit <=1000 | everything", 0.1),
    ]
    assert (reads.most(1)[0].longest_s, reads.most(1)[0].rows) == (0.4, 7)


def test_short_queries_are_noted_once_in_a_millisecond_with_all_of_it() -> None:
    reads = CostlyReads()
    for _ in range(10_000):
        reads.took("REQ", [Filter(limit=1)], 1, 0.0002)
    (read,) = reads.most(9)
    assert read.seconds == pytest.approx(2.0, rel=0.01)
    assert read.longest_s == 0.0002


def test_the_list_of_shapes_is_bounded_and_keeps_the_costly_ones() -> None:
    reads = CostlyReads()
    reads.took("REQ", [Filter(limit=1)], 1, 60.0)
    for kind in range(5000):
        reads.took("REQ", [Filter(kinds=frozenset({kind}))], 1, 0.002)
    assert len(reads.most(5000)) == 64
    assert reads.most(1)[0].shape == "REQ limit 1"
    assert len(shape_of([Filter(kinds=frozenset(range(5000)))] * 5000)) < 300


def test_the_last_lines_of_the_log_are_kept_without_control_characters_and_secrets() -> None:
    lines = set_up_logging(LogConfig(LogLevel.INFO, LogFormat.TEXT), io.StringIO())
    log = logging.getLogger("rookery")
    for number in range(1500):
        log.info("line %d", number, extra={"audit": True})
    log.debug("not logged")
    log.warning("nsec1%s \x1b[2J", "q" * 58, extra={"peer": "x" * 9000})
    kept = lines.after(0)
    assert (len(kept), kept[0].text) == (1000, "line 501")
    assert kept[-1].level == "warning"
    assert kept[-1].text.startswith("nsec1… \\x1b[2J  peer=x")
    assert len(kept[-1].text) == 2000
    assert [line.number for line in lines.after(kept[-2].number)] == [kept[-1].number]


# -- traces ---------------------------------------------------------------------------------------


def test_without_an_endpoint_nothing_is_imported_for_traces(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name in ("OTEL_EXPORTER_OTLP_ENDPOINT", "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT"):
        monkeypatch.delenv(name, raising=False)
    before = {name for name in sys.modules if name.startswith("opentelemetry")}
    assert configured_traces("") is None
    assert {name for name in sys.modules if name.startswith("opentelemetry")} == before


def test_an_endpoint_without_the_library_is_a_warning(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", "http://127.0.0.1:1")
    monkeypatch.setitem(sys.modules, "opentelemetry.sdk.trace", None)
    assert configured_traces("pip install it") is None
    assert "`pip install it`" in caplog.text


def test_a_wrong_variable_of_traces_is_a_warning(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def exporter(**_: object) -> None:
        raise ValueError("could not convert string to float: '5 s'")

    for name in ("exporter.otlp.proto.http.trace_exporter", "sdk.resources", "sdk.trace"):
        monkeypatch.setitem(sys.modules, f"opentelemetry.{name}", MagicMock())
    monkeypatch.setitem(sys.modules, "opentelemetry.sdk.trace.export", MagicMock())
    sent = sys.modules["opentelemetry.exporter.otlp.proto.http.trace_exporter"]
    monkeypatch.setattr(sent, "OTLPSpanExporter", exporter)
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", "http://127.0.0.1:1")
    assert configured_traces("") is None
    assert "no traces are sent, an OTEL variable is wrong: could not convert" in caplog.text


def test_a_span_has_its_stages_and_their_times() -> None:
    sdk = pytest.importorskip("opentelemetry.sdk.trace")
    export = pytest.importorskip("opentelemetry.sdk.trace.export")
    memory = pytest.importorskip("opentelemetry.sdk.trace.export.in_memory_span_exporter")
    kept, provider = memory.InMemorySpanExporter(), sdk.TracerProvider()
    provider.add_span_processor(export.SimpleSpanProcessor(kept))
    began = perf_counter()
    Traces(provider).span(
        "batch",
        (("decide", began, began + 0.25), ("commit", began + 0.25, began + 1)),
        changes=2,
        requests=["7.42"],
    )
    decide, commit, batch = kept.get_finished_spans()
    assert [span.name for span in (decide, commit, batch)] == ["decide", "commit", "batch"]
    assert {decide.parent.span_id, commit.parent.span_id} == {batch.context.span_id}
    assert abs((decide.end_time - decide.start_time) - 250_000_000) < 10
    assert abs((batch.end_time - batch.start_time) - 1_000_000_000) < 10
    assert dict(batch.attributes) == {"changes": 2, "requests": ("7.42",)}
