"""Progress bars: on stderr, only on a terminal, removed when done."""

from __future__ import annotations

import sys
from enum import Enum, auto
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from rich.progress import Progress, ProgressColumn


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


def progress_bar(*amounts: Amount | str, is_shown: bool | None = None) -> Progress:
    """Description, bar, amounts, remaining time.

    A str in `amounts` is a rich template. `is_shown`: None: on a terminal only.
    """
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

    shown = sys.stderr.isatty() if is_shown is None else is_shown
    return Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        *map(_column, amounts),
        TimeRemainingColumn(),
        console=Console(stderr=True, markup=False, emoji=False),
        disable=not shown,
        transient=True,
    )


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
