"""What all tests share: how hypothesis works here, time limits, and what a mark may name."""

from __future__ import annotations

import signal
from typing import TYPE_CHECKING, Final

import pytest
from hypothesis import settings

from tests.conformance.proofs import check_marks

if TYPE_CHECKING:
    from collections.abc import Iterator
    from types import FrameType

    from pytest_timeout import Settings

# A busy machine is no fault of the code under test: pytest-timeout watches the clock instead.
settings.register_profile("rookery", deadline=None)
settings.load_profile("rookery")

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    # Of a shell that runs `make test &`: programs that tests start would not hear of Ctrl-C either.
    signal.signal(signal.SIGINT, signal.default_int_handler)

TEARDOWN_S: Final = 60.0


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    check_marks(items)


@pytest.hookimpl(wrapper=True, optionalhook=True)
def pytest_timeout_set_timer(item: pytest.Item, settings: Settings) -> Iterator[None]:
    """Repeat the alarm: the first may end a background task instead of the test that hangs."""
    result = yield
    signal.setitimer(signal.ITIMER_REAL, settings.timeout, TEARDOWN_S)
    return result


@pytest.hookimpl(wrapper=True)
def pytest_runtest_teardown(item: pytest.Item) -> Iterator[None]:
    """Bound each finalizer: pytest-timeout cancels its timer as soon as a test has failed."""

    def expired(_signal: int, _frame: FrameType | None) -> None:
        pytest.fail(f"teardown of {item.nodeid} took over {TEARDOWN_S:g} s")

    before = signal.signal(signal.SIGALRM, expired)
    signal.setitimer(signal.ITIMER_REAL, TEARDOWN_S, TEARDOWN_S)
    try:
        return (yield)
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
