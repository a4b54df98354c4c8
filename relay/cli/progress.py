"""Progress bars: on stderr, only on a terminal, removed when done; and what slows them."""

from __future__ import annotations

import sys
from contextlib import contextmanager
from contextvars import ContextVar
from enum import Enum, auto
from math import ceil
from time import perf_counter
from typing import TYPE_CHECKING, Final

import click

from relay.cli.options import printable

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from rich.progress import Progress, ProgressColumn


_bar: ContextVar[Progress | None] = ContextVar("progress bar", default=None)
_MEASURED_S: Final = 5.0
"""The rate is measured for so long before it is told."""
RATE: Final = "{task.fields[rate]}"
"""The task's `rate` field."""


class Amount(Enum):
    """What is shown beside the bar."""

    OF_TOTAL = auto()
    """`3/17`"""
    BYTES = auto()
    """`1.2/4.5 MB`"""
    SPEED = auto()
    """`1.2 MB/s`"""


@contextmanager
def progress_bar(*amounts: Amount | str, is_shown: bool | None = None) -> Iterator[Progress]:
    """Description, bar, amounts, remaining time.

    A str in `amounts` is a rich template. `is_shown`: None: on a terminal only.
    """
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

    shown = sys.stderr.isatty() if is_shown is None else is_shown
    bar = Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        *map(_column, amounts),
        TimeRemainingColumn(),
        console=Console(stderr=True, markup=False, emoji=False),
        disable=not shown,
        transient=True,
    )
    token = _bar.set(bar)
    try:
        with bar:
            yield bar
    finally:
        _bar.reset(token)


def tell(text: str) -> None:
    """Print a line on stderr, above the bar if there is one."""
    bar = _bar.get()
    if bar is None:
        click.echo(printable(text), err=True)
    else:
        bar.console.out(printable(text), highlight=False)


class Pace:
    """Says that the relay's rate is waited for: in the bar, or once on stderr without a bar.

    For `Client.on_wait`.
    """

    def __init__(self, clock: Callable[[], float] = perf_counter) -> None:
        """`clock`: seconds."""
        self._clock = clock
        self._began: float | None = None
        self._first = 0
        self._first_bytes = 0.0
        self._is_told = False

    def __call__(self, accepted: int, waiting: int) -> None:
        now, bar = self._clock(), _bar.get()
        task = bar.tasks[0] if bar is not None and bar.tasks else None
        done = 0.0 if task is None else task.completed
        if self._began is None or accepted < self._first:  # the first, or of another file
            self._began, self._first, self._first_bytes = now, accepted, done
            return
        took = now - self._began
        if took < _MEASURED_S or accepted == self._first:
            return
        left_s = waiting * took / (accepted - self._first)
        if task is not None and task.total and done > self._first_bytes:
            left_s += (task.total - done) * took / (done - self._first_bytes)
        text = f"waiting for the relay's pace, about {max(1, ceil(left_s / 60))} min"
        if bar is not None and task is not None and not bar.disable:
            bar.update(task.id, description=text)
        elif not self._is_told:
            click.echo(text, err=True)
        self._is_told = True


def _column(amount: Amount | str) -> ProgressColumn:
    from rich.progress import (
        DownloadColumn,
        MofNCompleteColumn,
        TextColumn,
        TransferSpeedColumn,
    )

    match amount:
        case str():
            return TextColumn(amount)
        case Amount.OF_TOTAL:
            return MofNCompleteColumn()
        case Amount.BYTES:
            return DownloadColumn()
        case Amount.SPEED:
            return TransferSpeedColumn()
