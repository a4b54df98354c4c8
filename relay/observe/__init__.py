"""Log lines, refusals, metrics, readiness.

Invariants: not used by pure modules. No event content and no secret key in a log line; ids, public
keys, addresses and rule names are allowed. Metrics are plain numbers, updated on the event loop
once per batch and rendered on a scrape.
"""

from relay.observe.costly import SLOW_S, CostlyRead, CostlyReads, shape_of
from relay.observe.day import DAY_S, MAX_SAMPLES, Day, Sample
from relay.observe.logs import (
    LOG_FILE,
    REQUEST,
    JsonLines,
    LogLine,
    LogLines,
    LogSettings,
    TextLines,
    read_log,
    request_id,
    set_up_logging,
)
from relay.observe.metrics import SAMPLED_OF, Metrics, Readiness, StageTimes, Status, Traffic
from relay.observe.refusals import Refusal, Refusals
from relay.observe.traces import Stage, configured_traces

__all__ = [
    "DAY_S",
    "LOG_FILE",
    "MAX_SAMPLES",
    "REQUEST",
    "SAMPLED_OF",
    "SLOW_S",
    "CostlyRead",
    "CostlyReads",
    "Day",
    "JsonLines",
    "LogLine",
    "LogLines",
    "LogSettings",
    "Metrics",
    "Readiness",
    "Refusal",
    "Refusals",
    "Sample",
    "Stage",
    "StageTimes",
    "Status",
    "TextLines",
    "Traffic",
    "configured_traces",
    "read_log",
    "request_id",
    "set_up_logging",
    "shape_of",
]
