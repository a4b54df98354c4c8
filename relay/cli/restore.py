"""`rookery restore`: a data folder from a backup; `--check` only tries it."""

from __future__ import annotations

import asyncio
import os
from contextlib import contextmanager, nullcontext
from datetime import UTC, datetime
from pathlib import Path
from tempfile import gettempdir
from typing import TYPE_CHECKING, Final

import click

from relay.cli.backup import remove_left, staging_folder
from relay.cli.folder_lock import filling, refuse_root
from relay.cli.humanize import counted
from relay.cli.options import (
    RESTORING,
    json_option,
    print_json,
    printable,
    refuse_half_restored,
)
from relay.errors import ConfigFaults, StoreFault, UserError
from relay.files import make_private, sync
from relay.memory.fence import shell_word

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from relay.cli.archive import Manifest
    from relay.storage.sqlite.verifying import Report

_CHECKING: Final = f"{RESTORING}check-"
"""For `--check`, which removes no other folders: what a killed restore left beside files tells
where these came from."""


@click.command("restore", epilog="Example: rookery restore rookery-20260131-030000.tar.gz ./new")
@click.argument("file", metavar="FILE", type=click.Path(dir_okay=False, path_type=Path))
@click.argument(
    "folder", metavar="[DIR]", required=False, type=click.Path(file_okay=False, path_type=Path)
)
@click.option(
    "--check",
    "only_check",
    is_flag=True,
    help="Only try it: restore into a temporary folder (in DIR, else TMPDIR), open and verify it,"
    " then remove it.",
)
@json_option
def restore_command(file: Path, folder: Path | None, *, only_check: bool, as_json: bool) -> int:
    """Make the data folder DIR from the backup FILE. DIR must be missing or empty.

    All files are checked against the checksums in FILE before DIR is created.
    """
    if not file.is_file():
        raise UserError(f"{file} is not a file: name a file that `rookery backup` wrote")
    if only_check:
        return _drill(file, folder, as_json=as_json)
    if folder is None:
        raise UserError("DIR is missing: name the folder to make, or use --check", code=2)
    manifest = restored(file, folder)
    if as_json:
        print_json({"folder": str(folder), **_as_json(manifest)})
        return 0
    click.echo(f"restored {folder}: {_described(manifest)}")
    click.echo("events deleted after the backup are present again; keys/*.nsec are in no backup")
    click.echo(f"start it with: rookery serve --data {shell_word(folder)}")
    return 0


def restored(file: Path, folder: Path) -> Manifest:
    """Raises UserError; nothing is left behind then."""
    try:
        is_new = not folder.exists()
        parent = _ancestor(folder) if is_new else folder
        refuse_root(parent)
        with nullcontext() if is_new else filling(folder):
            if is_new or all(path.name.startswith(RESTORING) for path in folder.iterdir()):
                remove_left(parent, RESTORING)  # beside other files it tells where they came from
            if not is_new and any(folder.iterdir()):
                refuse_half_restored(folder)
                raise _not_overwritten(folder)
            # In an existing folder, which may be a mounted disk, rather than beside it.
            with _extracted(file, parent, RESTORING) as (staging, manifest):
                if is_new:
                    make_private(folder.parent)
                    _move([(staging, folder)], folder)
                else:
                    paths = sorted(staging.iterdir(), key=_order)
                    _move([(path, folder / path.name) for path in paths], folder)
        return manifest
    except OSError as error:
        raise UserError(f"{folder} was not restored: {error.strerror or error}") from error


def _not_overwritten(folder: Path) -> UserError:
    return UserError(
        f"{folder} is not empty and is not overwritten; choose a new folder, or move it away"
    )


def _ancestor(folder: Path) -> Path:
    """The nearest folder above it that exists."""
    return next(path for path in folder.absolute().parents if path.is_dir())


def _order(path: Path) -> int:
    """The store comes first: without it the rest would be served as a new relay. The settings come
    last: a folder that has them is complete."""
    return {"rookery.db": 0, "rookery.toml": 2}.get(path.name, 1)


def _move(pairs: Sequence[tuple[Path, Path]], folder: Path) -> None:
    """All or nothing."""
    try:
        for source, target in pairs:
            if os.path.lexists(target):  # of another program, since the folder was looked at
                raise _not_overwritten(folder)
            source.rename(target)
        sync(folder)
        sync(folder.parent)
    except BaseException:
        # The settings first: without them no command takes what is left for a relay.
        for source, target in reversed(pairs):
            # Not by a list of those that were moved: a signal may come before one is in it.
            if not source.exists():
                target.rename(source)
        raise


@contextmanager
def _extracted(file: Path, parent: Path, prefix: str) -> Iterator[tuple[Path, Manifest]]:
    """A new folder in `parent` with everything, checked; removed unless it was renamed."""
    from relay.cli.archive import STORE, read_archive
    from relay.cli.progress import Amount, progress_bar
    from relay.storage.sqlite.copying import facts_of

    with staging_folder(parent, prefix) as staging:
        with progress_bar(Amount.BYTES) as progress:
            task = progress.add_task("restore", total=file.stat().st_size)
            manifest = read_archive(
                file, staging, lambda done: progress.update(task, completed=done)
            )
        try:
            facts = facts_of(staging.absolute() / STORE)
        except StoreFault as fault:
            raise UserError(f"{file}: the store in it cannot be used: {fault}") from None
        if facts != (manifest.schema, manifest.events, manifest.head):
            raise UserError(f"{file}: its store does not match its manifest")
        if _names_a_database(staging / "rookery.toml"):
            raise UserError(
                f"{file}: its settings name a database, [storage] url, which no backup has"
            )
        (staging / "policies").mkdir(mode=0o700, exist_ok=True)
        for path, _, _ in os.walk(staging, topdown=False):
            sync(Path(path))
        yield staging, manifest


def _names_a_database(settings: Path) -> bool:
    """Commands would send a password to it that the settings name a file for."""
    from relay.config import load_config

    try:
        return load_config(settings).storage.url is not None
    except ConfigFaults:  # `serve` says which
        return False


def _drill(file: Path, parent: Path | None, *, as_json: bool) -> int:
    """Open the restored folder as `serve` would, then verify it."""
    from relay.cli.verify import print_report, report_as_json, verified

    if parent is not None and not parent.is_dir():
        raise UserError(f"{parent} is not a folder: with --check name one that exists, or none")
    try:
        parent = parent or Path(gettempdir())
        refuse_root(parent)  # also of TMPDIR: `su` keeps that of the user who runs it
        remove_left(parent, _CHECKING)
        with _extracted(file, parent, _CHECKING) as (staging, manifest):
            asyncio.run(_opened(staging))
            report: Report = verified(staging)
    except OSError as error:
        raise UserError(f"{file} was not restored: {error.strerror or error}") from error
    if as_json:
        print_json({"file": str(file), **_as_json(manifest), **report_as_json(report)})
    else:
        click.echo(f"{printable(str(file))}: {_described(manifest)}")
        print_report(report)
        click.echo("the temporary folder was removed")
    return 1 if report.findings else 0


async def _opened(folder: Path) -> None:
    from relay.cli.services import run_services
    from relay.config import load_config

    config = load_config(folder / "rookery.toml")
    async with run_services(folder, config) as services:
        head = services.store.committed()
        async with services.indexer:
            while not await services.indexer.reached(head):
                pass


def _described(manifest: Manifest) -> str:
    at = datetime.fromtimestamp(manifest.created_at, UTC)
    return (
        f"{counted(manifest.events, 'event')} as of {at:%Y-%m-%d %H:%M:%S} UTC, Rookery"
        f" {printable(manifest.rookery)}, schema {manifest.schema}"
    )


def _as_json(manifest: Manifest) -> dict[str, object]:
    return {
        "events": manifest.events,
        "head": manifest.head,
        "schema": manifest.schema,
        "created_at": manifest.created_at,
        "rookery": manifest.rookery,
    }
