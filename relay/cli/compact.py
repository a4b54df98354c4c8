"""`rookery compact`: applies retention, then rewrites the files of a stopped relay."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final

import click

from relay.cli.database import refuse_database
from relay.cli.options import folder_option, json_option, print_json
from relay.cli.progress import Amount, progress_bar
from relay.errors import FolderBusy, UserError
from relay.write.commands import Purpose

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

_LOOK_S: Final = 0.2


@click.command("compact", epilog="Example: rookery compact --data ./data")
@folder_option
@json_option
def compact_command(folder: Path, *, as_json: bool) -> None:
    """Apply retention, then return unused space of the files to the file system.

    Only for a stopped relay. A running relay frees space by itself, if its files were created or
    compacted by this version. Needs as much free disk space as the compacted files take.
    """
    refuse_database(folder, "VACUUM there, or `rookery policy sweep` for retention alone")
    removed, files = asyncio.run(_compacted(folder))
    if as_json:
        names = {name: {"before": old, "after": new} for name, (old, new) in files.items()}
        print_json({"removed": removed, "files": names})
        return
    click.echo(f"{removed:,} event{'' if removed == 1 else 's'} removed")
    for name, (before, after) in files.items():
        click.echo(f"{name}: {before:,} -> {after:,} bytes")


async def _compacted(folder: Path) -> tuple[int, Mapping[str, tuple[int, int]]]:
    """Number of events removed; file name → sizes before and after."""
    from relay.cli.data_folder import LocalFolder
    from relay.cli.folder_lock import locked
    from relay.cli.services import run_services
    from relay.config import load_config
    from relay.storage.sqlite.compacting import compact, files_of, unfinished

    try:
        with locked(folder):
            config = load_config(folder / "rookery.toml")
            store, removed = folder / "rookery.db", 0
            before = {path.name: path.stat().st_size for path in files_of(store)}
            async with run_services(folder, config) as services:
                async for lines in LocalFolder(services).sweep(Purpose.SWEEP):
                    removed += sum(line.events for line in lines if line.held is None)
            sizes = {}
            with progress_bar(Amount.BYTES) as progress:
                for path in files_of(store):
                    old = path.stat().st_size
                    task = progress.add_task(f"compact {path.name}", total=old)
                    work = asyncio.create_task(asyncio.to_thread(compact, path))
                    while not (await asyncio.wait([work], timeout=_LOOK_S))[0]:
                        copy = unfinished(path)
                        progress.update(task, completed=copy.stat().st_size if copy.exists() else 0)
                    await work
                    new = path.stat().st_size
                    progress.update(task, completed=old)
                    sizes[path.name] = (before.get(path.name, old), new)
            return removed, sizes
    except FolderBusy as busy:
        raise UserError(
            f"{busy.fact}; stop it first: `compact` writes the files anew. A running relay gives"
            " free space back by itself"
        ) from None
