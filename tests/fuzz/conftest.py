"""A tally for each test of this folder, and the sum of all under pytest's last line."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.fuzz.effort import Tally

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


@pytest.fixture
def tally(
    request: pytest.FixtureRequest, record_property: Callable[[str, object], None]
) -> Iterator[Tally]:
    tally = Tally(request.node.name.removeprefix("test_").replace("_", " "))
    yield tally
    record_property("fuzz", str(tally))
    record_property("examples", tally.counts["examples"])


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    reports = [
        report
        for reports in terminalreporter.stats.values()
        for report in reports
        if isinstance(report, pytest.TestReport)
    ]
    found = [(name, value) for report in reports for name, value in report.user_properties]
    if any(name == "examples" for name, _ in found):
        terminalreporter.section("fuzz")
        for name, value in found:
            if name == "fuzz":
                terminalreporter.write_line(str(value))
        total = sum(value for name, value in found if name == "examples" and isinstance(value, int))
        terminalreporter.write_line(f"{total} examples")
