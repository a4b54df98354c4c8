"""`rookery move`: from the file of a data folder to PostgreSQL, or back, while the relay runs.

It copies, follows what is written meanwhile, compares everything, and asks the relay to start
again: that start copies the rest (`relay.cli.move_switch`).
"""

from __future__ import annotations

import asyncio
import shutil
from contextlib import contextmanager, suppress
from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING, Final, NamedTuple

import click

from relay.cli.database import check_driver, database_of
from relay.cli.folder_lock import locked
from relay.cli.humanize import counted, size_of
from relay.cli.options import json_option, no_data_folder, print_json
from relay.errors import FolderBusy, UserError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from rich.progress import Progress

    from relay.cli.move_switch import Switch
    from relay.config import Config
    from relay.storage.moving import Move, Moved

_LOCK: Final = "move.lock"
_SCHEMES: Final = ("postgresql:", "postgres:")


class _Asked(NamedTuple):
    folder: Path
    config: Config
    to: Switch


class _Done(NamedTuple):
    moved: Moved
    copied_s: float
    pause_s: float | None
    """Seconds for which the relay did not answer; None: no relay ran."""


@click.command("move", epilog="Example: rookery move --from ./data --to postgresql:///rookery")
@click.option("--from", "source", required=True, metavar="DIR|URL", help="Where the events are.")
@click.option("--to", "target", metavar="URL|DIR", help="Where they go: an empty database, or DIR.")
@click.option(
    "--password-file",
    metavar="F",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="Password of the database of --to.",
)
@click.option("--cancel", is_flag=True, help="Cancel an unfinished move; the events stay in place.")
@json_option
def move_command(
    source: str, target: str | None, password_file: Path | None, *, cancel: bool, as_json: bool
) -> None:
    """Move the events of a data folder into a PostgreSQL database, or back, while its relay runs.

    One of --from and --to is the data folder, the other the postgresql:// address. All events are
    copied and compared, then the relay restarts with the new [storage] url. If the command is
    killed, run it again.
    """
    if cancel:
        folder = _checked(Path(target if target is not None and _is_url(source) else source))
        with _alone(folder):
            click.echo(asyncio.run(_cancelled(folder)))
        return
    if target is None:
        raise UserError("--to is missing: name the database or folder to move to", code=2)
    asked = _asked(source, target, password_file)
    with _alone(asked.folder):
        done = asyncio.run(_moved(asked))
    if done is None:
        if as_json:
            print_json({"completed": True})
        else:
            click.echo("the move that was interrupted is complete")
        return
    _report(asked, done, as_json=as_json)


@contextmanager
def _alone(folder: Path) -> Iterator[None]:
    try:
        with locked(folder, _LOCK):
            yield
    except FolderBusy as busy:
        raise UserError(f"another move of {folder} runs (process {busy.pid})") from None


def _is_url(text: str) -> bool:
    return text.startswith(_SCHEMES)


def _checked(folder: Path) -> Path:
    if not (folder / "relay.key").is_file():
        raise no_data_folder(folder)
    return folder


def _asked(source: str, target: str, password_file: Path | None) -> _Asked:
    """Raises UserError, ConfigFaults."""
    from relay.cli.move_switch import Switch, is_asked, settings_with
    from relay.config import PolicySource, load_config

    if _is_url(source) and _is_url(target):
        raise UserError("name the data folder of the relay in --from or --to", code=2)
    folder = _checked(Path(target if _is_url(source) else source))
    if not (_is_url(source) or _is_url(target) or Path(target).resolve() == folder.resolve()):
        raise UserError("--to another folder: `rookery backup` and `restore` do that", code=2)
    check_driver()
    config = load_config(folder / "rookery.toml")
    if _is_url(source) and config.storage.url != source:
        raise UserError(f"{folder}/rookery.toml: [storage] url is not {source}")
    if config.storage.policies is PolicySource.DATABASE:
        raise UserError(
            "the relay reads its policies from the database: run `rookery policy pull`, set"
            ' [storage] policies = "folder", restart the relay, then move'
        )
    to = target if _is_url(target) else None
    if config.storage.url == to and not is_asked(folder):
        raise UserError(f"the events of {folder} are there already")
    secret = None if password_file is None or to is None else str(password_file.absolute())
    switch = Switch(to, secret)
    settings_with(folder, switch)  # whether it can be written
    return _Asked(folder, config, switch)


async def _moved(asked: _Asked) -> _Done | None:
    """None: a move was interrupted when all but its end was done, and this was its end."""
    from relay.cli.move_switch import note, switch
    from relay.server.control import RemoteFolder

    folder = asked.folder
    if asked.config.storage.url == asked.to.to:
        with locked(folder):
            await switch(folder, asked.config, asked.to)
        return None
    note(folder, None)
    try:
        with locked(folder):
            moved, copied_s = await _copied(asked)
            with _noted(asked):
                await switch(folder, asked.config, asked.to)
            return _Done(moved, copied_s, None)
    except FolderBusy as busy:
        if not (folder / "control.sock").exists():
            raise UserError(str(busy)) from None
    async with RemoteFolder(folder / "control.sock"):
        moved, copied_s = await _copied(asked)
        return _Done(moved, copied_s, await _switched(asked))


async def _copied(asked: _Asked) -> tuple[Moved, float]:
    """Everything but what is written from now on, and how long that took."""
    from relay.cli.move_switch import source_of, target_of
    from relay.cli.progress import Amount, progress_bar
    from relay.storage.moving import Move

    began = perf_counter()
    source = await source_of(asked.folder, asked.config)
    try:
        await source.check()
        async with target_of(asked.folder, asked.config, asked.to) as (target, store):
            move = await Move.begun(source, target, store)
            with progress_bar(Amount.OF_TOTAL) as progress:
                await _copy(move, progress)
            moved = await move.verify()
            await move.catch_up()
    finally:
        await source.close()
    return moved, perf_counter() - began


async def _copy(move: Move, progress: Progress) -> None:
    task = progress.add_task("copy", total=None)
    await move.copy(lambda done, total: progress.update(task, completed=done, total=total))
    progress.update(task, description="compare")


@contextmanager
def _noted(asked: _Asked) -> Iterator[None]:
    """The request of the switch. Once rookery.toml was replaced it stays until the switch has
    ended: the next start, or the next `move`, does what is left."""
    from relay.cli.move_switch import note

    note(asked.folder, asked.to)
    try:
        yield
    except BaseException:
        if database_of(asked.folder) != asked.to.to:
            note(asked.folder, None)
        raise


async def _switched(asked: _Asked) -> float:
    """Seconds without answers. Raises UserError when the relay stayed with the old store."""
    from relay.cli.move_switch import note, noted
    from relay.cli.restart import restarted

    with _noted(asked):
        seconds = await restarted(asked.folder)
    left = noted(asked.folder)
    if left is not None or database_of(asked.folder) != asked.to.to:
        note(asked.folder, None)
        why = "the relay did not start again" if left is None else left.fault
        raise UserError(f"not moved, the relay continues with its old store: {why}")
    return seconds


async def _cancelled(folder: Path) -> str:
    """What may be dropped now. Raises UserError for a move of which only the end is left."""
    from relay.cli.move_switch import UNFINISHED, note, noted, source_of, unended
    from relay.config import load_config

    asked, left = noted(folder), unended(folder)
    if asked is not None and left is not None and database_of(folder) == asked.to:
        raise UserError(f"{left.text}, and rookery.toml names where they are now: {left.cure}")
    note(folder, None)
    config = load_config(folder / "rookery.toml")
    source = await source_of(folder, config)
    try:
        await source.end_log()
    finally:
        await source.close()
    with suppress(FileNotFoundError):
        shutil.rmtree(folder / UNFINISHED)
    if config.storage.url is None:
        return "the move is forgotten: what it copied to a database may be dropped"
    return f"a move to {folder} is forgotten; the events are in the database of [storage] url"


def _report(asked: _Asked, done: _Done, *, as_json: bool) -> None:
    from relay.cli.move_switch import MOVED

    moved, folder = done.moved, asked.folder
    if as_json:
        print_json({**moved._asdict(), "seconds": done.copied_s, "pause_seconds": done.pause_s})
        return
    others = ", ".join(
        [counted(moved.old_versions, "old version")]
        + [f"{number} {name.replace('_', ' ')}" for name, number in moved.entries.items() if number]
    )
    click.echo(
        f"moved {counted(moved.events, 'event')} ({size_of(moved.bytes)}), {others}; both sides are"
        f" equal (sha256 {moved.digest[:16]}…)"
    )
    pause = "" if done.pause_s is None else f"; the relay gave no answers for {done.pause_s:.1f} s"
    click.echo(f"copied and compared in {done.copied_s:.0f} s{pause}")
    if asked.to.to is not None:
        click.echo(f"the old file is {folder / MOVED}: delete it when all is well")
    else:
        click.echo("the tables in the database are no longer used: drop them when all is well")
