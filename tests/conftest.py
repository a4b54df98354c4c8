"""What all tests share: where files go, time limits, which tests start programs, marks."""

from __future__ import annotations

import gc
import os
import signal
import sys
import tempfile
from contextlib import suppress
from importlib import import_module
from itertools import groupby
from operator import itemgetter
from pathlib import Path
from typing import TYPE_CHECKING, Final

import pytest
from hypothesis import settings

from tests.conformance.proofs import check_marks
from tests.effort import IS_PART, examples

if TYPE_CHECKING:
    from collections.abc import Iterator
    from types import FrameType

    from pytest_timeout import Settings

# A busy machine is no fault of the code under test: pytest-timeout watches the clock instead.
settings.register_profile("rookery", deadline=None, max_examples=examples(100))
settings.load_profile("rookery")

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    # Of a shell that runs `make test &`: programs that tests start would not hear of Ctrl-C either.
    signal.signal(signal.SIGINT, signal.default_int_handler)

ROOT: Final = Path(__file__).parents[1]
TEARDOWN_S: Final = 60.0

OF_PROCESSES: Final = (
    "tests/conversations/test_conversations.py",
    "tests/e2e/",
    "tests/faults/test_environment.py",
    "tests/faults/test_kill.py",
    "tests/fuzz/test_wire.py",
    "tests/leaks/test_console.py",
    "tests/leaks/test_leaks.py",
    "tests/leaks/test_tells.py",
)
"""Every test below these starts programs."""
LONGEST: Final = (
    "tests/e2e/test_console.py",
    "tests/e2e/test_sweep_kill.py",
    "tests/e2e/test_restart.py",
    "tests/e2e/test_attacks.py",
    "tests/leaks/test_leaks.py",
    "tests/leaks/test_console.py",
    "tests/leaks/test_oracle.py",
    "tests/property/",
    "tests/faults/",
    "tests/e2e/",
)
"""Below these a test may take a minute; the longest first."""
MEMORY: Final = Path("/dev/shm")
MEMORY_FREE: Final = 4 << 30


def keep_files_in_memory() -> None:
    """Thousands of stores are opened, each waits for the disk a dozen times. TMPDIR goes first.

    What a test proves with `kill -9` does not depend on it: a dead process loses nothing of a
    tmpfs either.
    """
    if "TMPDIR" in os.environ or not os.access(MEMORY, os.W_OK | os.X_OK):
        return
    about = os.statvfs(MEMORY)
    if not about.f_flag & os.ST_NOEXEC and about.f_bavail * about.f_frsize >= MEMORY_FREE:
        os.environ["TMPDIR"] = str(MEMORY)
        tempfile.tempdir = None


keep_files_in_memory()


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    for item in items:
        if item.nodeid.startswith(OF_PROCESSES):
            item.add_marker("process")
    check_marks(items)
    if IS_PART:
        mutants = [item for item in items if item.get_closest_marker("mutant")]
        config.hook.pytest_deselected(items=mutants)
        items[:] = [item for item in items if not item.get_closest_marker("mutant")]
    if (worker := getattr(config, "workerinput", None)) is not None:
        items[:] = the_longest_first(items, worker["workercount"])


def the_longest_first(items: list[pytest.Item], workers: int) -> list[pytest.Item]:
    """The modules of `LONGEST` dealt out, so that each worker begins with some of them.

    pytest-xdist gives each worker an equal number of items in a row, and later what is left at the
    end of another's: these are then the short ones.
    """
    rest: list[pytest.Item] = []
    modules: list[tuple[int, list[pytest.Item]]] = []
    for name, found in groupby(items, lambda item: item.nodeid.partition("::")[0]):
        rank = next((at for at, begin in enumerate(LONGEST) if name.startswith(begin)), None)
        if rank is None:
            rest += found
        else:
            modules.append((rank, list(found)))
    modules.sort(key=itemgetter(0))
    ordered: list[pytest.Item] = []
    for worker in range(workers):
        share = [item for _, module in modules[worker::workers] for item in module]
        room = (len(items) - len(ordered)) // (workers - worker) - len(share)
        ordered += share + rest[: max(0, room)]
        del rest[: max(0, room)]
    return ordered + rest


def pytest_collection(session: pytest.Session) -> None:
    """A clean checkout has no rewritten asserts yet: each worker rewrites a share of the files.

    All of them take 20 s of CPU; the workers would do it at the same time, file by file.
    """
    worker = getattr(session.config, "workerinput", None)
    if worker is not None:
        files = sorted(file for arg in session.config.args for file in Path(arg).rglob("test_*.py"))
        number = int(worker["workerid"].removeprefix("gw"))
        for file in files[number :: worker["workercount"]]:
            name = ".".join(file.resolve().relative_to(ROOT).with_suffix("").parts)
            with suppress(Exception, pytest.skip.Exception):  # told when the file is collected
                import_module(name)


# Ten thousand items live to the end: the garbage collector need not look at them again and again.
gc.disable()


def pytest_collection_finish() -> None:
    gc.collect()
    gc.freeze()
    gc.enable()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Iterator[None]:
    """A test that starts a program says so by its mark: `make test-quick` starts none."""
    global _may_start_programs
    _may_start_programs = item.get_closest_marker("process") is not None
    try:
        return (yield)
    finally:
        _may_start_programs = True


_may_start_programs = True


def _watch(event: str, args: tuple[object, ...]) -> None:
    if event == "subprocess.Popen" and not _may_start_programs:
        raise AssertionError(f"starts {args[1]}: mark it with pytest.mark.process")


sys.addaudithook(_watch)


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
