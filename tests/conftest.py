"""What all tests share: how hypothesis works here, and what a mark may name."""

from __future__ import annotations

import signal
from typing import TYPE_CHECKING

from hypothesis import settings

from tests.conformance.proofs import check_marks

if TYPE_CHECKING:
    import pytest

# A busy machine is no fault of the code under test: pytest-timeout watches the clock instead.
settings.register_profile("rookery", deadline=None)
settings.load_profile("rookery")

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    # Of a shell that runs `make test &`: programs that tests start would not hear of Ctrl-C either.
    signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    check_marks(items)
