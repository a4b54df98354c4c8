"""`rookery status` and `rookery top`: what a relay does and how it is, on one screen."""

from __future__ import annotations

import asyncio
import os
import shutil
import sys
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Final

import click
import orjson

from relay.cli.backup import LAST_BACKUP
from relay.cli.humanize import age_of, counted, size_of
from relay.cli.options import (
    console,
    folder_option,
    json_option,
    no_data_folder,
    print_json,
    printable,
)
from relay.cli.tables import Column, Holds, as_table
from relay.clock import unix_now
from relay.errors import UserError
from relay.files import content_of
from relay.server.control import RemoteFolder
from relay.storage.sqlite.beside_relay import growth_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from pathlib import Path

    from rich.table import Table

    from relay.observe import Status

_EVERY_S: Final = 1.0
_DAY_S: Final = 86_400
_LONG_DAYS: Final = 3652
_RATES: Final = (
    "frames_in",
    "frames_out",
    "bytes_in",
    "bytes_out",
    "rows_sent",
    "live_deliveries",
)
_QUEUES: Final = {
    "events_waiting": "events to be committed",
    "queries_waiting": "queries",
    "search_lag_rows": "rows to be indexed",
    "negentropy_records": "records of negentropy",
}
_ROWS: Final = 8
"""Rows of each table; a screen has few lines."""
_PLANS: Final = 2


@dataclass(frozen=True, slots=True)
class Disk:
    """Facts from the files, whether a relay runs or not."""

    store_bytes: int
    wal_bytes: int
    search_bytes: int
    free_bytes: int
    bytes_per_day: int
    """Growth of the files, estimated from the newest events; 0: none of the last days."""
    backup_at: int | None
    """None: no `rookery backup` is recorded here."""


@click.command("status", epilog="Example: rookery status --data ./data")
@folder_option
@json_option
def status_command(folder: Path, *, as_json: bool) -> None:
    """Show the relay's activity: connections, rates, refusals, queues, costly queries, disk.

    Rates are measured over one second. For a stopped relay only file sizes are shown.
    """
    asyncio.run(_print_once(folder, as_json=as_json))


@click.command("top", epilog="Example: rookery top --data ./data")
@folder_option
def top_command(folder: Path) -> None:
    """Show `rookery status`, again every second; `q` or Ctrl-C ends it.

    Without a terminal it is printed once.
    """
    if sys.stdin.isatty() and console().is_terminal:
        asyncio.run(_follow(folder))
    else:
        asyncio.run(_print_once(folder, as_json=False))


async def _print_once(folder: Path, *, as_json: bool) -> None:
    disk = disk_of(folder, unix_now())
    before = await running_status(folder)
    after = None
    if before is not None:
        await asyncio.sleep(_EVERY_S)
        after = await running_status(folder)
    if as_json:
        told = {} if after is None else asdict(after)
        rates = {} if before is None or after is None else _rates(before, after)
        print_json({"running": after is not None, **told, "rates": rates, "disk": asdict(disk)})
        return
    for part in _screen(folder, before, after, disk):
        console().print(part)


async def _follow(folder: Path) -> None:
    from rich.console import Group
    from rich.live import Live

    before, disk = await running_status(folder), disk_of(folder, unix_now())
    ended = asyncio.Event()
    with _pressed("q", ended.set), Live(console=console(), screen=True, auto_refresh=False) as live:
        number = 0
        while not ended.is_set():
            with suppress(TimeoutError):
                await asyncio.wait_for(ended.wait(), _EVERY_S)
            after = await running_status(folder)
            number += 1
            if number % 10 == 0:  # reads some pages of the store
                disk = disk_of(folder, unix_now())
            live.update(Group(*_screen(folder, before, after, disk)), refresh=True)
            before = after


@contextmanager
def _pressed(key: str, call: Callable[[], None]) -> Iterator[None]:
    """Inside, calls it when the key is pressed, without waiting for a line."""
    import termios
    import tty

    loop, terminal = asyncio.get_running_loop(), sys.stdin.fileno()
    before = termios.tcgetattr(terminal)

    def read() -> None:
        pressed = os.read(terminal, 64)
        if not pressed or key.encode() in pressed:
            call()

    tty.setcbreak(terminal)
    loop.add_reader(terminal, read)
    try:
        yield
    finally:
        loop.remove_reader(terminal)
        termios.tcsetattr(terminal, termios.TCSADRAIN, before)


async def running_status(folder: Path) -> Status | None:
    """None: no relay runs on the folder. Raises UserError for what is no data folder."""
    if not (folder / "rookery.toml").exists() and not (folder / "rookery.db").exists():
        raise no_data_folder(folder)
    if not (folder / "control.sock").exists():
        return None
    with suppress(UserError):
        async with RemoteFolder(folder / "control.sock") as relay:
            return await relay.status()
    return None


def disk_of(folder: Path, now: int) -> Disk:
    """Sizes, free space and growth. Raises StoreFault."""
    sizes = {name: _size(folder / name) for name in ("rookery.db", "rookery.db-wal", "search.db")}
    recent = growth_of(folder / "rookery.db", now - 7 * _DAY_S)
    per_day = 0
    if recent is not None and recent.share:
        files = sizes["rookery.db"] + sizes["search.db"]
        per_day = int(recent.share * files * _DAY_S / max(now - recent.since, 3600))
    return Disk(
        sizes["rookery.db"],
        sizes["rookery.db-wal"],
        sizes["search.db"],
        shutil.disk_usage(folder).free,
        per_day,
        _last_backup(folder),
    )


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except FileNotFoundError:
        return 0


def _last_backup(folder: Path) -> int | None:
    try:
        noted = orjson.loads(content_of(folder / LAST_BACKUP))
        return int(noted["created_at"])
    except (OSError, ValueError, KeyError, TypeError):
        return None


# the screen --------------------------------------------------------------------------------------


def _screen(
    folder: Path, before: Status | None, after: Status | None, disk: Disk
) -> Sequence[str | Table]:
    if after is None:
        running = f"no relay runs on {folder}"
        return [printable(running), *_disk_lines(disk)]
    rates = {} if before is None else _rates(before, after)
    numbers = after.numbers
    parts: list[str | Table] = [
        f"{printable(after.url) or 'a relay'}  version {printable(after.version)}  up"
        f" {_duration(after.up_s)}",
        f"connections {numbers.get('connections', 0):,.0f}"
        f" ({numbers.get('connections_logged_in', 0):,.0f} logged in),"
        f" subscriptions {numbers.get('subscriptions', 0):,.0f}",
        "per second: "
        + ", ".join(f"{name.replace('_', ' ')} {rate:,.0f}" for name, rate in rates.items()),
        "queues: " + ", ".join(f"{what} {numbers.get(n, 0):,.0f}" for n, what in _QUEUES.items()),
        *_disk_lines(disk),
    ]
    if version := numbers.get("policy_version", 0):
        parts.append(f"policies: version {version:.0f} of the database")
    if vectors := numbers.get("search_vectors", 0):
        parts.append(f"recall by meaning: {vectors:,.0f} texts compared")
    erasing = numbers.get("erasure_pending_seconds", 0)
    if erasing:
        parts.append(f"deleted texts may still be in a file: for {erasing:,.0f} s")
    for name, text in after.problems.items():
        parts.append(printable(f"problem: {name}: {text}"))
    for name, problem in after.plugins.items():
        parts.append(printable(f"plug-in {name}: {problem or 'answers'}"))
    parts += _tables(after)
    return parts


def _disk_lines(disk: Disk) -> Sequence[str]:
    growth = "growth unknown"
    if disk.bytes_per_day:
        days = disk.free_bytes // disk.bytes_per_day
        left = counted(days, "day") if days < _LONG_DAYS else "more than ten years"
        growth = f"about {size_of(disk.bytes_per_day)} a day: full in {left}"
    backup = "none known" if disk.backup_at is None else age_of(disk.backup_at, unix_now())
    return [
        f"disk: store {size_of(disk.store_bytes)}, WAL {size_of(disk.wal_bytes)}, search"
        f" {size_of(disk.search_bytes)}, free {size_of(disk.free_bytes)}; {growth}",
        f"last backup: {backup}",
    ]


def _tables(status: Status) -> Iterator[str | Table]:
    if status.refusals:
        yield ""
        yield as_table(
            (Column("refused by rule"), Column("events", Holds.NUMBER)),
            [(printable(rule), f"{n:,}") for rule, n in list(status.refusals.items())[:_ROWS]],
        )
    times = [(name, each) for name, each in status.stages.items() if each.count]
    if times:
        yield ""
        slowest = sorted(times, key=lambda each: -each[1].seconds)[:_ROWS]
        yield as_table(
            (Column("stages"), *(Column(name, Holds.NUMBER) for name in ("times", "mean", "all"))),
            [
                (
                    printable(name),
                    f"{each.count:,}",
                    f"{1000 * each.seconds / each.count:.2f} ms",
                    f"{each.seconds:.1f} s",
                )
                for name, each in slowest
            ],
        )
    if status.reads:
        yield ""
        columns = (
            Column("costly queries"),
            *(Column(name, Holds.NUMBER) for name in ("time", "longest", "its rows")),
        )
        yield as_table(
            columns,
            [
                (
                    printable(read.shape),
                    f"{read.seconds:.3f} s",
                    f"{1000 * read.longest_s:.1f} ms",
                    f"{read.rows:,}",
                )
                for read in status.reads[:_ROWS]
            ],
        )
        plans = [(read.shape, read.plan) for read in status.reads[:_ROWS] if read.plan]
        for shape, plan in plans[:_PLANS]:
            yield ""
            yield printable(f"plan of {shape}:")
            yield from (f"  {printable(step)}" for step in plan)


def _rates(before: Status, after: Status) -> Mapping[str, float]:
    """Per second, between the two."""
    seconds = max(after.at - before.at, 0.001)
    if after.up_s < before.up_s:  # another process
        return {}
    events = sum(after.events.values()) - sum(before.events.values())
    refused = sum(after.refusals.values()) - sum(before.refusals.values())
    moved = {name: after.numbers.get(name, 0) - before.numbers.get(name, 0) for name in _RATES}
    counts = {"events": events, "refused": refused, **moved}
    return {name: round(count / seconds, 1) for name, count in counts.items()}


def _duration(seconds: float) -> str:
    for size, name in ((_DAY_S, "day"), (3600, "hour"), (60, "minute")):
        if seconds >= size:
            return counted(int(seconds // size), name)
    return counted(int(seconds), "second")
