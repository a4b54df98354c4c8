"""OpenTelemetry spans of batches and REQs: with `rookery[otel]` and an endpoint, else nothing.

The environment variables of OpenTelemetry configure them. Invariants: no content, no key, no value
of a filter; the library is not imported without an endpoint.
"""

from __future__ import annotations

import logging
import os
from time import perf_counter, time_ns
from typing import TYPE_CHECKING, Any, Final

from relay import __version__

if TYPE_CHECKING:
    from collections.abc import Sequence

_log = logging.getLogger("rookery")

_ENDPOINTS: Final = ("OTEL_EXPORTER_OTLP_ENDPOINT", "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT")
_EXPORT_S: Final = 2.0
"""How long the relay waits at exit for a collector that does not answer."""

Stage = tuple[str, float, float]
"""Name, begin and end by `perf_counter`."""


class Traces:
    """Makes a span with its stages once they are over."""

    def __init__(self, provider: Any) -> None:
        """`provider`: a TracerProvider."""
        from opentelemetry.context import Context
        from opentelemetry.trace import set_span_in_context

        self._provider = provider
        self._tracer = provider.get_tracer("rookery", __version__)
        self._nothing = Context()
        self._within = set_span_in_context

    def span(self, name: str, stages: Sequence[Stage], **attributes: object) -> None:
        """From the begin of the first stage to the end of the last."""
        offset = time_ns() - int(perf_counter() * 1e9)
        start, end = stages[0][1], stages[-1][2]
        span = self._tracer.start_span(
            name, self._nothing, attributes=attributes, start_time=offset + int(start * 1e9)
        )
        if span.is_recording():
            context = self._within(span)
            for stage, began, ended in stages:
                child = self._tracer.start_span(
                    stage, context, start_time=offset + int(began * 1e9)
                )
                child.end(offset + int(ended * 1e9))
        span.end(offset + int(end * 1e9))

    def close(self) -> None:
        """Send what is left. Blocks for some seconds at most."""
        self._provider.shutdown()


def configured_traces(to_install: str) -> Traces | None:
    """None: no endpoint is set, the library is missing, or a variable is wrong.

    `to_install`: the command that installs the library.
    """
    if not any(os.environ.get(name) for name in _ENDPOINTS):
        return None
    try:
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
        from opentelemetry.sdk.resources import Resource
        from opentelemetry.sdk.trace import TracerProvider
        from opentelemetry.sdk.trace.export import BatchSpanProcessor
    except ImportError:
        _log.warning("no traces are sent: `%s` installs what it needs", to_install)
        return None
    named = {} if os.environ.get("OTEL_SERVICE_NAME") else {"service.name": "rookery"}
    provider = TracerProvider(resource=Resource.create(named))
    timeout = None
    if "OTEL_EXPORTER_OTLP_TIMEOUT" not in os.environ:
        timeout = _EXPORT_S
    try:
        provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter(timeout=timeout)))
    except ValueError as wrong:
        _log.warning("no traces are sent, an OTEL variable is wrong: %s", wrong)
        return None
    return Traces(provider)
